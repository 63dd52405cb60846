/* reduce.c - reductions over ranks, bound by memory bandwidth: every loop is one pass over its inputs, as `lockstep bench
 * comm` shows. Any alignment is allowed, and an output may be one of the inputs; the loops are marked as safe to
 * vectorise all the same. */
#include "base/reduce.h"

#include "base/bf16.h"
#include "base/reduce_wide.h"
#include "base/tree.h"

#include <string.h>

#if defined(__clang__)
#define FOR_EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define FOR_EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif

enum { BLOCK = 512 }; /* elements of a partial result; a tree's live ones stay in the L1 cache */

typedef float    f32 __attribute__((aligned(1), may_alias));
typedef double   f64 __attribute__((aligned(1), may_alias));
typedef uint16_t b16
    __attribute__((aligned(1), may_alias)); /* the bits of bf16. Only in memory: gcc 14 fails on such parameters */
typedef int8_t  i8 __attribute__((may_alias));
typedef uint8_t u8 __attribute__((may_alias));
typedef int32_t i32 __attribute__((aligned(1), may_alias));
typedef int64_t i64 __attribute__((aligned(1), may_alias));

static inline float    bf16_load(uint16_t x) { return lk__from_bf16((lk__bf16){x}); }
static inline uint16_t bf16_store(float x) { return lk__to_bf16(x).bits; }

#if defined(__aarch64__)
typedef __fp16       h16 __attribute__((aligned(1), may_alias));
static inline float  f16_load(__fp16 x) { return (float)x; }
static inline __fp16 f16_store(float x) { return (__fp16)x; }
#else
typedef uint16_t h16 __attribute__((aligned(1), may_alias));

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float f16_load(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    float    normal = float_of((rest << 13) + 0x38000000u), small = (float)rest * 0x1p-24f;
    uint32_t special = 0x7f800000u | (rest & 0x3ff) << 13 | ((rest & 0x3ff) ? 0x400000u : 0);
    uint32_t bits = rest >= 0x7c00 ? special : rest < 0x400 ? bits_of(small) : bits_of(normal);
    return float_of(bits | sign);
}

/* To the nearest, ties to even. Subnormal results are rounded by adding 0.5, whose last place is 2^-24. */
static inline uint16_t f16_store(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    uint32_t large = rest > 0x7f800000u ? 0x7e00 | (rest >> 13 & 0x1ff) : 0x7c00;
    uint32_t out = rest >= 0x47800000u ? large : rest < 0x38800000u ? small : normal;
    return (uint16_t)(out | sign);
}
#endif

#define AS_IS(x) (x)
#define ADD(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
/* NaN if one of the two is; the left one if both are. */
#define LEAST(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define GREATEST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* One type and operation. T is the stored type, A that of partial results; LOAD and STORE convert between them, COMBINE
 * takes two, and FINISH gets the tree's result and `scale`, which is the number of inputs or its reciprocal. */
#define DEFINE(name, T, A, LOAD, STORE, COMBINE, FINISH)                                                            \
    static void tree_##name(A *out, const T *const *in, size_t at, int n, size_t count, A *scratch)                 \
    {                                                                                                               \
        if (n == 1) {                                                                                               \
            const T *a = in[0] + at;                                                                                \
            FOR_EACH out[i] = (A)LOAD(a[i]);                                                                        \
        } else if (n == 2) {                                                                                        \
            const T *a = in[0] + at, *b = in[1] + at;                                                               \
            FOR_EACH out[i] = (A)COMBINE((A)LOAD(a[i]), (A)LOAD(b[i]));                                             \
        } else {                                                                                                    \
            int left = lk__tree_left(n);                                                                            \
            tree_##name(out, in, at, left, count, scratch);                                                         \
            tree_##name(scratch, in + left, at, n - left, count, scratch + BLOCK);                                  \
            FOR_EACH out[i] = (A)COMBINE(out[i], scratch[i]);                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static void reduce_##name(void *into, const void *const *from, int n, size_t count, double scale_)              \
    {                                                                                                               \
        A scale = (A)scale_;                                                                                        \
        T *out = into;                                                                                              \
        (void)scale;                                                                                                \
        if (n == 2) {                                                                                               \
            const T *a = from[0], *b = from[1];                                                                     \
            FOR_EACH out[i] = STORE((A)FINISH((A)COMBINE((A)LOAD(a[i]), (A)LOAD(b[i])), scale));                    \
        } else if (n == 4) {                                                                                        \
            const T *a = from[0], *b = from[1], *c = from[2], *d = from[3];                                         \
            FOR_EACH out[i] = STORE((A)FINISH((A)COMBINE((A)COMBINE((A)LOAD(a[i]), (A)LOAD(b[i])),                  \
                                                         (A)COMBINE((A)LOAD(c[i]), (A)LOAD(d[i]))), scale));        \
        } else {                                                                                                    \
            A acc[BLOCK], scratch[13 * BLOCK]; /* the depth of 4096 inputs */                                      \
            for (size_t at = 0, all = count; at < all; at += BLOCK) {                                               \
                T *to = out + at;                                                                                   \
                count = all - at < BLOCK ? all - at : BLOCK;                                                        \
                tree_##name(acc, (const T *const *)from, at, n, count, scratch);                                    \
                FOR_EACH to[i] = STORE((A)FINISH(acc[i], scale));                                                   \
            }                                                                                                       \
        }                                                                                                           \
    }

#define ALONE(x, scale) (x)
#define SCALED(x, scale) ((x) * (scale))
#define DIVIDED(x, scale) ((x) / (scale))

#define DEFINE_REAL(type, T, A, LOAD, STORE)                    \
    DEFINE(type##_sum, T, A, LOAD, STORE, ADD, ALONE)           \
    DEFINE(type##_scaled, T, A, LOAD, STORE, ADD, SCALED)       \
    DEFINE(type##_divided, T, A, LOAD, STORE, ADD, DIVIDED)     \
    DEFINE(type##_min, T, A, LOAD, STORE, LEAST, ALONE)         \
    DEFINE(type##_max, T, A, LOAD, STORE, GREATEST, ALONE)      \
    DEFINE(type##_prod, T, A, LOAD, STORE, TIMES, ALONE)

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
/* Unsigned arithmetic wraps; U is the unsigned type of T's size. */
#define DEFINE_WHOLE(type, T, U)                                                                   \
    DEFINE(type##_sum, T, U, (U), (T), ADD, ALONE)                                                 \
    DEFINE(type##_divided, T, int64_t, (int64_t), (T), ADD_WRAPPING, DIVIDED)                      \
    DEFINE(type##_min, T, T, AS_IS, AS_IS, SMALLER, ALONE)                                         \
    DEFINE(type##_max, T, T, AS_IS, AS_IS, LARGER, ALONE)                                          \
    DEFINE(type##_prod, T, U, (U), (T), TIMES, ALONE)
#define ADD_WRAPPING(a, b) ((uint64_t)(a) + (uint64_t)(b))

DEFINE_REAL(f32, f32, float, AS_IS, AS_IS)
DEFINE_REAL(f64, f64, double, AS_IS, AS_IS)
DEFINE_REAL(bf16, b16, float, bf16_load, bf16_store)
DEFINE_REAL(f16, h16, float, f16_load, f16_store)
DEFINE_WHOLE(i8, i8, uint8_t)
DEFINE_WHOLE(u8, u8, uint8_t)
DEFINE_WHOLE(i32, i32, uint32_t)
DEFINE_WHOLE(i64, i64, uint64_t)

typedef void (*reduction)(void *out, const void *const *in, int n, size_t count, double scale);

/* sum, avg (divided), min, max, prod, avg by multiplication, which is the same for a power of two and several times
 * faster. */
#define FIRST_FIVE(type) \
    reduce_##type##_sum, reduce_##type##_divided, reduce_##type##_min, reduce_##type##_max, reduce_##type##_prod
#define REAL(type) {FIRST_FIVE(type), reduce_##type##_scaled}
#define WHOLE(type) {FIRST_FIVE(type), NULL}

static const reduction table[LK_DTYPE_COUNT][6] = {
    [LK_F32] = REAL(f32), [LK_F64] = REAL(f64), [LK_BF16] = REAL(bf16), [LK_F16] = REAL(f16),
    [LK_I8] = WHOLE(i8),  [LK_U8] = WHOLE(u8),  [LK_I32] = WHOLE(i32),  [LK_I64] = WHOLE(i64),
};

void lk__reduce(void *out, const void *const *in, int n, size_t count, lk_dtype type, lk_reduce_op op)
{
    if (count == 0) return;
    if (n == 1) {
        if (out != in[0]) memmove(out, in[0], count * lk_dtype_size(type));
        return;
    }
    if (type == LK_F32 && op == LK_SUM && lk__reduce_is_wide(n, 1)) {
        lk__reduce_wide((float *const *)&out, 1, (const float *const *)in, n, count, LK__AHEAD_NONE);
        return;
    }
    bool scaled = op == LK_AVG && (n & (n - 1)) == 0 && table[type][5];
    table[type][scaled ? 5 : op](out, in, n, count, scaled ? 1.0 / n : n);
}

/* ---- partial results ---- */

lk_dtype lk__reduce_partial(lk_dtype type, lk_reduce_op op)
{
    bool half = type == LK_BF16 || type == LK_F16, whole = type != LK_F32 && type != LK_F64 && !half;
    if (half && op != LK_MIN && op != LK_MAX) return LK_F32;
    return whole && op == LK_AVG ? LK_I64 : type;
}

lk_reduce_op lk__reduce_step(lk_reduce_op op) { return op == LK_AVG ? LK_SUM : op; }

#define WIDEN(T, A, LOAD)                       \
    do {                                        \
        const T *a = in;                        \
        A       *to = out;                      \
        FOR_EACH to[i] = (A)LOAD(a[i]);         \
    } while (0)

void lk__reduce_widen(void *out, const void *in, size_t count, lk_dtype type, lk_dtype partial)
{
    if (type == partial) {
        if (out != in && count) memmove(out, in, count * lk_dtype_size(type));
        return;
    }
    switch (type) {
    case LK_BF16: WIDEN(b16, f32, bf16_load); break;
    case LK_F16: WIDEN(h16, f32, f16_load); break;
    case LK_I8: WIDEN(i8, i64, AS_IS); break;
    case LK_U8: WIDEN(u8, i64, AS_IS); break;
    case LK_I32: WIDEN(i32, i64, AS_IS); break;
    default: break;
    }
}

/* FINISH with 1/n where n is a power of two, and n elsewhere, as lk__reduce does. */
#define NARROW(T, A, C, STORE)                                                           \
    do {                                                                                 \
        const A *a = in;                                                                 \
        T       *to = out;                                                               \
        C        by = (C)(scaled ? 1.0 / n : n);                                         \
        if (op != LK_AVG) { FOR_EACH to[i] = STORE(a[i]); }                              \
        else if (scaled) { FOR_EACH to[i] = STORE(a[i] * by); }                          \
        else { FOR_EACH to[i] = STORE(a[i] / by); }                                      \
    } while (0)

#define NARROW_WHOLE(T)                                        \
    do {                                                       \
        const i64 *a = in;                                     \
        T         *to = out;                                   \
        FOR_EACH to[i] = (T)(a[i] / (int64_t)n);               \
    } while (0)

void lk__reduce_finish(void *out, const void *in, int n, size_t count, lk_dtype type, lk_reduce_op op)
{
    bool scaled = (n & (n - 1)) == 0;
    if (op != LK_AVG && lk__reduce_partial(type, op) == type) {
        if (out != in && count) memmove(out, in, count * lk_dtype_size(type));
        return;
    }
    switch (type) {
    case LK_F32: NARROW(f32, f32, float, AS_IS); break;
    case LK_F64: NARROW(f64, f64, double, AS_IS); break;
    case LK_BF16: NARROW(b16, f32, float, bf16_store); break;
    case LK_F16: NARROW(h16, f32, float, f16_store); break;
    case LK_I8: NARROW_WHOLE(i8); break;
    case LK_U8: NARROW_WHOLE(u8); break;
    case LK_I32: NARROW_WHOLE(i32); break;
    default: NARROW_WHOLE(i64); break;
    }
}
