/* load.c - loads a safetensors file into a store: checks names, shapes and types first, then copies everything. */
#include "train/load.h"

#include "train/safetensors.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 16384 }; /* bytes converted at a time */

const char *lk__moment_name(int moments, int m)
{
    static const char *const adam[] = {"exp_avg", "exp_avg_sq"};
    return moments == 2 ? adam[m] : "momentum_buffer";
}

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float    value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static double from_f16(uint16_t bits)
{
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? (double)__builtin_nan("") : sign * __builtin_inf();
    return sign * (exponent ? __builtin_ldexp(1024 + fraction, exponent - 25) : __builtin_ldexp(fraction, -24));
}

static double read_element(lk_dtype type, const void *data, size_t i)
{
    switch (type) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_BF16: return from_bf16(((const uint16_t *)data)[i]);
    default: return from_f16(((const uint16_t *)data)[i]);
    }
}

static bool is_float(lk_dtype type) { return type == LK_F32 || type == LK_F64 || type == LK_BF16 || type == LK_F16; }

static lk_status check_tensor(lk_context *c, const char *path, const lk__safetensors_tensor *t, const lk_state *state,
                              const char *name)
{
    if (!t)
        return lk__fail(c, LK_EMISMATCH, "%s has no \"%s\", which the model needs: it is of another model", path, name);
    bool same = t->rank == state->rank;
    for (int i = 0; same && i < t->rank; i++) same = t->dims[i] == state->dims[i];
    if (!same) {
        char   text[2][128];
        size_t used[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            const int64_t *dims = k ? state->dims : t->dims;
            text[k][0] = 0;
            for (int i = 0; i < (k ? state->rank : t->rank) && used[k] < sizeof text[k]; i++)
                used[k] += (size_t)snprintf(text[k] + used[k], sizeof text[k] - used[k], "%s%lld", i ? "×" : "",
                                            (long long)dims[i]);
        }
        return lk__fail(c, LK_EMISMATCH, "\"%s\" is (%s) in %s and (%s) in the model: it is of another model", name,
                        text[0], path, text[1]);
    }
    if (t->dtype != state->dtype && !(is_float(t->dtype) && is_float(state->dtype)))
        return lk__fail(c, LK_EMISMATCH, "\"%s\" is %s in %s and %s in the model", name, lk__safetensors_type(t), path,
                        lk_dtype_name(state->dtype));
    return LK_OK;
}

static lk_status copy_tensor(lk__safetensors *file, const lk__safetensors_tensor *t, lk_dtype type, void *out)
{
    if (t->dtype == type) return lk__safetensors_read(file, t, 0, out, (size_t)t->bytes);
    double chunk[CHUNK / sizeof(double)];
    size_t size = lk_dtype_size(t->dtype), at = 0;
    for (uint64_t done = 0; done < t->bytes;) {
        size_t    bytes = t->bytes - done < CHUNK ? (size_t)(t->bytes - done) : CHUNK;
        lk_status status = lk__safetensors_read(file, t, done, chunk, bytes);
        if (status < 0) return status;
        for (size_t i = 0; i < bytes / size; i++, at++) {
            double value = read_element(t->dtype, chunk, i);
            if (type == LK_F32)
                ((float *)out)[at] = (float)value;
            else
                ((double *)out)[at] = value;
        }
        done += bytes;
    }
    return LK_OK;
}

typedef lk_status (*visit)(lk_context *c, const char *path, lk__safetensors *file, const lk_state *state,
                           const char *name, void *data);

static lk_status visit_check(lk_context *c, const char *path, lk__safetensors *file, const lk_state *state,
                             const char *name, void *data)
{
    (void)data;
    return check_tensor(c, path, lk__safetensors_find(file, name), state, name);
}

static lk_status visit_copy(lk_context *c, const char *path, lk__safetensors *file, const lk_state *state,
                            const char *name, void *data)
{
    (void)c;
    (void)path;
    return copy_tensor(file, lk__safetensors_find(file, name), state->dtype, data);
}

/* Calls visitor for every tensor that the file must hold; counts them. */
static lk_status visit_tensors(lk_store *s, const char *path, lk__safetensors *file, lk__train_load_what what,
                               visit visitor, size_t *count)
{
    lk_status status = LK_OK;
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s) && status >= 0; i++) {
        lk_state    state = lk_store_at(s, i);
        const char *alias;
        if (what == LK__LOAD_MODEL) {
            status = visitor(s->context, path, file, &state, state.name, state.data);
            ++*count;
            for (size_t j = 0; status >= 0 && (alias = lk_store_alias(s, i, j)); j++, ++*count)
                status = visitor(s->context, path, file, &state, alias, state.data);
            continue;
        }
        for (int m = 0; m < state.moments && status >= 0; m++, ++*count) {
            char name[512];
            snprintf(name, sizeof name, "%s.%s", state.name, lk__moment_name(state.moments, m));
            status = visitor(s->context, path, file, &state, name, state.moment[m]);
        }
    }
    return status;
}

/* Fails with a name in the file that the model does not have. */
static lk_status report_unknown_tensor(lk_store *s, const char *path, lk__safetensors *file)
{
    lk_state state;
    for (size_t i = 0; i < lk__safetensors_count(file); i++) {
        const char *name = lk__safetensors_at(file, i)->name;
        char        text[LK__SHOWN];
        if (!lk_store_find(s, name, &state))
            return lk__fail(s->context, LK_EMISMATCH,
                            "%s holds \"%s\", which the model does not have: it is of another model", path,
                            lk__shown(name, text));
    }
    return lk__fail(s->context, LK_EMISMATCH, "%s holds more tensors than the model's optimizer", path);
}

static lk_status load_file(lk_store *s, const char *path, lk__train_load_what what, bool check_only)
{
    lk__safetensors *file;
    size_t           count;
    lk_status        status = lk__safetensors_open(s->context, path, &file);
    if (status < 0) return status;
    status = visit_tensors(s, path, file, what, visit_check, &count);
    if (status >= 0 && count != lk__safetensors_count(file)) status = report_unknown_tensor(s, path, file);
    if (status == LK_EMISMATCH && what == LK__LOAD_OPTIMIZER)
        lk__fail_prefix(s->context, status,
                        "the saved optimizer state does not match (was it saved with another optimizer?): ");
    if (status >= 0 && !check_only) status = visit_tensors(s, path, file, what, visit_copy, &count);
    lk__safetensors_close(file);
    return status;
}

lk_status lk__load_check(lk_store *s, const char *path, lk__train_load_what what)
{
    return load_file(s, path, what, true);
}

lk_status lk__load_tensors(lk_store *s, const char *path, lk__train_load_what what)
{
    return load_file(s, path, what, false);
}
