/* load.c - from a safetensors file into a store: names, shapes and types are checked first, then everything is copied. */
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

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float    value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static double f16(uint16_t bits)
{
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? (double)__builtin_nan("") : sign * __builtin_inf();
    return sign * (exponent ? __builtin_ldexp(1024 + fraction, exponent - 25) : __builtin_ldexp(fraction, -24));
}

static double element(lk_dtype type, const void *data, size_t i)
{
    switch (type) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_BF16: return bf16(((const uint16_t *)data)[i]);
    default: return f16(((const uint16_t *)data)[i]);
    }
}

static bool real(lk_dtype type) { return type == LK_F32 || type == LK_F64 || type == LK_BF16 || type == LK_F16; }

static lk_status check(lk_context *c, const char *path, const lk__safetensors_tensor *t, const lk_state *state,
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
    if (t->dtype != state->dtype && !(real(t->dtype) && real(state->dtype)))
        return lk__fail(c, LK_EMISMATCH, "\"%s\" is %s in %s and %s in the model", name, lk__safetensors_type(t), path,
                        lk_dtype_name(state->dtype));
    return LK_OK;
}

static lk_status copy(lk__safetensors *file, const lk__safetensors_tensor *t, lk_dtype type, void *out)
{
    if (t->dtype == type) return lk__safetensors_read(file, t, 0, out, (size_t)t->bytes);
    double chunk[CHUNK / sizeof(double)];
    size_t size = lk_dtype_size(t->dtype), at = 0;
    for (uint64_t done = 0; done < t->bytes;) {
        size_t    bytes = t->bytes - done < CHUNK ? (size_t)(t->bytes - done) : CHUNK;
        lk_status status = lk__safetensors_read(file, t, done, chunk, bytes);
        if (status < 0) return status;
        for (size_t i = 0; i < bytes / size; i++, at++) {
            double value = element(t->dtype, chunk, i);
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
    return check(c, path, lk__safetensors_find(file, name), state, name);
}

static lk_status visit_copy(lk_context *c, const char *path, lk__safetensors *file, const lk_state *state,
                            const char *name, void *data)
{
    (void)c;
    (void)path;
    return copy(file, lk__safetensors_find(file, name), state->dtype, data);
}

/* Calls f for every tensor that the file must hold; counts them. */
static lk_status each(lk_store *s, const char *path, lk__safetensors *file, lk__train_load_what what, visit f,
                      size_t *count)
{
    lk_status status = LK_OK;
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s) && status >= 0; i++) {
        lk_state    state = lk_store_at(s, i);
        const char *alias;
        if (what == LK__LOAD_MODEL) {
            status = f(s->context, path, file, &state, state.name, state.data);
            ++*count;
            for (size_t j = 0; status >= 0 && (alias = lk_store_alias(s, i, j)); j++, ++*count)
                status = f(s->context, path, file, &state, alias, state.data);
            continue;
        }
        for (int m = 0; m < state.moments && status >= 0; m++, ++*count) {
            char name[512];
            snprintf(name, sizeof name, "%s.%s", state.name, lk__moment_name(state.moments, m));
            status = f(s->context, path, file, &state, name, state.moment[m]);
        }
    }
    return status;
}

/* A name in the file that the model does not have: strict loading refuses it. */
static lk_status name_stranger(lk_store *s, const char *path, lk__safetensors *file)
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

static lk_status load(lk_store *s, const char *path, lk__train_load_what what, bool check_only)
{
    lk__safetensors *file;
    size_t           count;
    lk_status        status = lk__safetensors_open(s->context, path, &file);
    if (status < 0) return status;
    status = each(s, path, file, what, visit_check, &count);
    if (status >= 0 && count != lk__safetensors_count(file)) status = name_stranger(s, path, file);
    if (status == LK_EMISMATCH && what == LK__LOAD_OPTIMIZER)
        lk__fail_prefix(s->context, status, "the saved optimizer state does not fit (was the optimizer another?): ");
    if (status >= 0 && !check_only) status = each(s, path, file, what, visit_copy, &count);
    lk__safetensors_close(file);
    return status;
}

lk_status lk__load_check(lk_store *s, const char *path, lk__train_load_what what) { return load(s, path, what, true); }
lk_status lk__load_tensors(lk_store *s, const char *path, lk__train_load_what what)
{
    return load(s, path, what, false);
}
