/* dtype.c - the table of element types, and conversions of arrays between them. */
#include "base/dtype.h"

#include <stdio.h>

#define DEFINE_CONVERSIONS(id, name, bytes, kind, sums, memory, number, load, store, ...)  \
    static void name##_to_double(double *out, const void *in, size_t count)                 \
    {                                                                                       \
        for (size_t i = 0; i < count; i++) out[i] = (double)load(((const memory *)in)[i]);  \
    }                                                                                       \
    static void name##_from_double(void *out, const double *in, size_t count)               \
    {                                                                                       \
        for (size_t i = 0; i < count; i++) ((memory *)out)[i] = store((number)in[i]);       \
    }                                                                                       \
    static void name##_from_float(void *out, const float *in, size_t count)                 \
    {                                                                                       \
        for (size_t i = 0; i < count; i++) ((memory *)out)[i] = store((number)in[i]);       \
    }                                                                                       \
    _Static_assert(sizeof(memory) == bytes, #name);
LK__DTYPE_LIST(DEFINE_CONVERSIONS)

static const lk__dtype table[LK_DTYPE_COUNT + 1] = {
#define ROW(id, name, bytes, kind, sums, memory, number, load, store, safetensors, order, numpy, text) \
    [LK_##id] = {#name,                                                                                \
                 text,                                                                                 \
                 safetensors,                                                                          \
                 numpy,                                                                                \
                 order,                                                                                \
                 bytes,                                                                                \
                 LK__DTYPE_##kind,                                                                     \
                 LK_##sums,                                                                            \
                 name##_to_double,                                                                     \
                 name##_from_double,                                                                   \
                 name##_from_float},
    LK__DTYPE_LIST(ROW)
#undef ROW
        [LK_DTYPE_COUNT] =
            {.name = "?", .text = "?", .safetensors = "?", .kind = LK__DTYPE_INTEGER, .sums = LK_DTYPE_COUNT},
};

const lk__dtype *lk__dtype_of(lk_dtype type) { return &table[(unsigned)type < LK_DTYPE_COUNT ? type : LK_DTYPE_COUNT]; }

size_t lk_dtype_size(lk_dtype type) { return (unsigned)type < LK_DTYPE_COUNT ? table[type].size : 0; }

const char *lk_dtype_name(lk_dtype type) { return (unsigned)type < LK_DTYPE_COUNT ? table[type].name : "?"; }

bool lk_dtype_parse(const char *name, lk_dtype *type)
{
    for (int i = 0; i < LK_DTYPE_COUNT; i++) {
        if (strcmp(name, table[i].name) == 0) {
            *type = (lk_dtype)i;
            return true;
        }
    }
    return false;
}

void lk__dtype_convert(lk_dtype from, const void *in, lk_dtype to, void *out, size_t count)
{
    double numbers[256];
    for (size_t at = 0, some; at < count; at += some) {
        some = count - at < 256 ? count - at : 256;
        table[from].to_double(numbers, (const char *)in + at * table[from].size, some);
        table[to].from_double((char *)out + at * table[to].size, numbers, some);
    }
}

lk__dtype_names lk__dtype_names_of(bool (*has)(lk_dtype type))
{
    lk__dtype_names names = {""};
    size_t          used = 0;
    int             last = LK_DTYPE_COUNT - 1;
    while (last > 0 && !has((lk_dtype)last)) last--;
    for (int i = 0; i <= last; i++) {
        if (!has((lk_dtype)i) || used >= sizeof names.text) continue;
        used += (size_t)snprintf(names.text + used, sizeof names.text - used, "%s%s",
                                 !used       ? ""
                                 : i == last ? " or "
                                             : ", ",
                                 table[i].name);
    }
    return names;
}
