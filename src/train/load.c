/* load.c - loads weights into a store: checks names, shapes and types first, then copies everything. */
#include "train/load.h"

#include "base/dtype.h"
#include "train/list_names.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = LK__LOAD_STAGING / (2 * sizeof(double)) }; /* elements copied at a time */

static void format_shape(int rank, const int64_t *dims, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "×" : "", (long long)dims[i]);
    if (used < size) snprintf(out + used, size - used, ")");
}

bool lk__load_differs(const lk__safetensors_tensor *t, const lk_state *state, const char *path, char *out, size_t size)
{
    char shapes[2][128];
    bool same = t->rank == state->rank;
    for (int i = 0; same && i < t->rank; i++) same = t->dims[i] == state->dims[i];
    if (!same) {
        format_shape(t->rank, t->dims, shapes[0], sizeof shapes[0]);
        format_shape(state->rank, state->dims, shapes[1], sizeof shapes[1]);
        snprintf(out, size, "%s in %s and %s in the model", shapes[0], path, shapes[1]);
        return true;
    }
    if (t->dtype == state->dtype || (lk__dtype_is_real(t->dtype) && lk__dtype_is_real(state->dtype))) return false;
    snprintf(out, size, "%s in %s and %s in the model", lk__safetensors_type(t), path, lk_dtype_name(state->dtype));
    return true;
}

lk__weights_tensor lk__load_find(const lk__load_target *to)
{
    return to->exact ? lk__weights_find(&to->weights, to->name) : lk__weights_of_model(&to->weights, to->name);
}

static lk_status check_tensor(const lk__load_target *to)
{
    lk_context                   *c = to->store->context;
    const lk__safetensors_tensor *t = lk__load_find(to).tensor;
    char                          text[1024];
    if (!t)
        return lk__fail(c, LK_EMISMATCH, "%s has no \"%s\", which the model needs: it belongs to a different model",
                        to->path, to->name);
    if (!lk__load_differs(t, &to->state, to->path, text, sizeof text)) return LK_OK;
    return lk__fail(c, LK_EMISMATCH, "\"%s\" is %s%s", t->name, text,
                    text[0] == '(' ? ": it belongs to a different model" : "");
}

static lk_status write_elements(const lk__load_target *to, size_t first, const void *data, size_t bytes)
{
    first += to->first;
    lk__exchange_range range = {to->index, to->part, first, bytes};
    return lk__load_group_writes(to->group) ? lk__load_group_write(to->group, &range, data)
                                            : lk__store_write_bytes(to->store, to->index, to->part, first, data, bytes);
}

lk_status lk__load_copy(const lk__load_target *to)
{
    lk__weights_tensor            from = lk__load_find(to);
    const lk__safetensors_tensor *t = from.tensor;
    lk_dtype                      type = to->state.dtype;
    size_t                        from_size = lk_dtype_size(t->dtype), size = lk_dtype_size(type);
    char *chunk = to->staging, *converted = t->dtype == type ? chunk : chunk + CHUNK * sizeof(double);
    for (uint64_t done = 0, elements = t->bytes / from_size; done < elements;) {
        size_t    count = elements - done < CHUNK ? (size_t)(elements - done) : CHUNK;
        lk_status status = lk__safetensors_read(from.file, t, done * from_size, chunk, count * from_size);
        if (status < 0) return status;
        if (t->dtype != type) lk__dtype_convert(t->dtype, chunk, type, converted, count);
        status = write_elements(to, (size_t)done * size, converted, count * size);
        if (status < 0) return status;
        done += count;
    }
    return LK_OK;
}

typedef lk_status (*load_step)(const lk__load_target *to);

/* The tensors that a file has for one array of a state. */
static lk_status visit_name(lk__load_target *to, const char *name, load_step visit, size_t *count)
{
    lk_state  whole = to->state;
    size_t    length = lk__list_length(name, whole.rank, whole.dims), bytes = lk_dtype_size(whole.dtype);
    bool      list = lk__list_is(name, whole.rank);
    lk_status status = LK_OK;
    to->name = name;
    for (int i = 1; list && i < whole.rank; i++) {
        to->state.dims[i - 1] = whole.dims[i];
        bytes *= (size_t)whole.dims[i];
    }
    if (list) to->state.rank--;
    for (size_t i = 0; i < length && status >= 0; i++, ++*count) {
        char one[512];
        to->first = list ? i * bytes : 0;
        if (list && !lk__list_name(name, i, one, sizeof one))
            return lk__fail(to->store->context, LK_EINVAL, "parameter name \"%s\" is too long to load", name);
        if (list) to->name = one;
        status = visit(to);
    }
    to->state = whole;
    to->name = NULL; /* it may have been on this function's stack */
    return status;
}

lk_status lk__load_visit(lk__load_target *to, lk__train_load_what what, load_step visit, size_t *count)
{
    lk_store *s = to->store;
    lk_status status = LK_OK;
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s) && status >= 0; i++) {
        to->state = lk_store_at(s, i);
        to->index = i;
        to->part = LK_STATE_VALUE;
        if (to->state.not_saved) continue;
        if (what == LK__LOAD_MODEL) {
            const char *alias;
            status = visit_name(to, to->state.name, visit, count);
            for (size_t j = 0; status >= 0 && (alias = lk_store_alias(s, i, j)); j++)
                status = visit_name(to, alias, visit, count);
            continue;
        }
        for (int m = 0; m < to->state.moments && status >= 0; m++) {
            char name[512];
            snprintf(name, sizeof name, "%s.%s", to->state.name, lk_store_moment_name(s, i, m));
            to->part = (lk_state_part)(LK_STATE_MOMENT_0 + m);
            status = visit_name(to, name, visit, count);
        }
    }
    return status;
}

/* Fails with the name of a tensor that the model does not have. */
static lk_status refuse_tensor(const lk__load_target *to, const char *name)
{
    lk_context *c = to->store->context;
    lk_state    state;
    char        text[LK__SHOWN];
    if (lk_store_find(to->store, name, &state) && state.not_saved)
        return lk__fail(c, LK_EMISMATCH,
                        "%s holds \"%s\", which the model never saves: it belongs to a different model", to->path,
                        lk__shown(name, text));
    return lk__fail(c, LK_EMISMATCH, "%s holds \"%s\", which the model does not have: it belongs to a different model",
                    to->path, lk__shown(name, text));
}

/* The file may hold more than the model's tensors only if no model needs it. */
static lk_status check_rest(const lk__load_target *to, size_t used)
{
    lk_status status = LK_OK;
    if (used == to->weights.tensors) return LK_OK;
    if (to->exact)
        return lk__fail(to->store->context, LK_EMISMATCH, "%s holds more tensors than the model's optimizer has",
                        to->path);
    for (size_t i = 0; i < to->weights.tensors && status >= 0; i++) {
        lk__weights_use    use;
        lk__weights_tensor one = lk__weights_at(&to->weights, i);
        status = lk__weights_classify(&to->weights, to->store, one, &use);
        if (status >= 0 && use == LK__WEIGHTS_UNKNOWN) status = refuse_tensor(to, one.tensor->name);
    }
    return status;
}

static lk_status copy_tensors(lk__load_target *to, lk__train_load_what what)
{
    lk_context *c = to->store->context;
    size_t      count;
    if (!(to->staging = lk__alloc(c, LK_MEMORY_OTHER, LK__LOAD_STAGING))) return LK_ENOMEM;
    lk_status status = lk__load_visit(to, what, lk__load_copy, &count);
    lk__free(c, LK_MEMORY_OTHER, to->staging, LK__LOAD_STAGING);
    return status;
}

static lk_status load_file(lk_store *s, lk__load_group *group, const char *path, lk__train_load_what what,
                           bool check_only)
{
    lk__load_target to = {.store = s, .group = group, .path = path, .exact = what == LK__LOAD_OPTIMIZER};
    size_t          count = 0;
    lk_status       status = lk__weights_open(s->context, path, &to.weights);
    if (status >= 0) status = lk__load_visit(&to, what, check_tensor, &count);
    if (status >= 0) status = check_rest(&to, count);
    if (status == LK_EMISMATCH && what == LK__LOAD_OPTIMIZER)
        lk__fail_prefix(s->context, status,
                        "the saved optimizer state does not match (was it saved with a different optimizer, or with "
                        "different frozen parameters?): ");
    if (status >= 0 && !check_only) status = copy_tensors(&to, what);
    lk__weights_close(&to.weights);
    return status;
}

lk_status lk__load_check(lk_store *s, const char *path, lk__train_load_what what)
{
    return load_file(s, NULL, path, what, true);
}

lk_status lk__load_tensors(lk_store *s, lk__load_group *group, const char *path, lk__train_load_what what)
{
    return load_file(s, group, path, what, false);
}
