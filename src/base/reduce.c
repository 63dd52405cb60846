/* reduce.c - reductions over ranks, bound by memory bandwidth: every loop is one pass over its inputs, as `lockstep
 * bench comm` shows. Any alignment is allowed, and an output may be one of the inputs; the loops are marked as safe to
 * vectorise all the same. */
#include "base/reduce.h"

#include "base/dtype.h"
#include "base/reduce_wide.h"
#include "base/tree.h"

#include <string.h>

#if defined(__clang__)
#define FOR_EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define FOR_EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif

/* For recursive functions: GCC would inline the recursion several levels deep, which takes seconds to compile and gains
 * nothing. */
#define NOINLINE __attribute__((noinline))

enum { BLOCK = 512 }; /* elements of a partial result; a tree's live ones stay in the L1 cache */

/* The types in memory, at any alignment. Only in memory: gcc 14 fails on such parameters. */
#define DEFINE_MEMORY(id, name, bytes, kind, sums, memory, ...) \
    typedef memory name##_memory __attribute__((aligned(1), may_alias));
LK__DTYPE_LIST(DEFINE_MEMORY)
#undef DEFINE_MEMORY

#define ADD(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
/* NaN if one of the two is; the left one if both are. */
#define LEAST(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define GREATEST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* One type and operation. T is the stored type, A that of partial results; LOAD and STORE convert between them, COMBINE
 * takes two, and FINISH gets the tree's result and `scale`, which is the number of inputs or its reciprocal. */
#define DEFINE(name, T, A, LOAD, STORE, COMBINE, FINISH)                                                            \
    NOINLINE static void tree_##name(A *out, const T *const *in, size_t at, int n, size_t count, A *scratch)        \
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
    DEFINE(type##_min, T, T, LK__AS_IS, LK__AS_IS, SMALLER, ALONE)                                         \
    DEFINE(type##_max, T, T, LK__AS_IS, LK__AS_IS, LARGER, ALONE)                                          \
    DEFINE(type##_prod, T, U, (U), (T), TIMES, ALONE)
#define ADD_WRAPPING(a, b) ((uint64_t)(a) + (uint64_t)(b))

#define DEFINE_COMPUTED DEFINE_REAL
#define DEFINE_STORED DEFINE_REAL
#define DEFINE_EXCHANGED DEFINE_REAL
#define DEFINE_INTEGER(name, T, A, LOAD, STORE) DEFINE_WHOLE(name, T, UNSIGNED_##name)
#define UNSIGNED_i8 uint8_t
#define UNSIGNED_u8 uint8_t
#define UNSIGNED_i32 uint32_t
#define UNSIGNED_i64 uint64_t
#define DEFINE_TYPE(id, name, bytes, kind, sums, memory, number, load, store, ...) \
    DEFINE_##kind(name, name##_memory, number, load, store)
LK__DTYPE_LIST(DEFINE_TYPE)

typedef void (*reduction)(void *out, const void *const *in, int n, size_t count, double scale);

/* sum, avg (divided), min, max, prod, avg by multiplication, which is the same for a power of two and several times
 * faster. */
#define FIRST_FIVE(type) \
    reduce_##type##_sum, reduce_##type##_divided, reduce_##type##_min, reduce_##type##_max, reduce_##type##_prod
#define ROW_COMPUTED(type) {FIRST_FIVE(type), reduce_##type##_scaled}
#define ROW_STORED ROW_COMPUTED
#define ROW_EXCHANGED ROW_COMPUTED
#define ROW_INTEGER(type) {FIRST_FIVE(type), NULL}

static const reduction table[LK_DTYPE_COUNT][6] = {
#define ROW(id, name, bytes, kind, ...) [LK_##id] = ROW_##kind(name),
    LK__DTYPE_LIST(ROW)
#undef ROW
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
    if (!lk__dtype_is_real(type)) return op == LK_AVG ? LK_I64 : type;
    return op == LK_MIN || op == LK_MAX ? type : lk__wide_type(type);
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
#define WIDEN_COMPUTED(T, A, LOAD) break /* it is its own partial type */
#define WIDEN_STORED WIDEN
#define WIDEN_EXCHANGED WIDEN
#define WIDEN_INTEGER(T, A, LOAD) WIDEN(T, i64_memory, LOAD)
#define WIDEN_CASE(id, name, bytes, kind, sums, memory, number, load, ...) \
    case LK_##id: WIDEN_##kind(name##_memory, f32_memory, load); break;
        LK__DTYPE_LIST(WIDEN_CASE)
    case LK_DTYPE_COUNT: break;
    }
}

/* FINISH with 1/n where n is a power of two, and n elsewhere, as lk__reduce does. */
#define FINISH_REAL(T, A, C, STORE)                                                       \
    do {                                                                                 \
        const A *a = in;                                                                 \
        T       *to = out;                                                               \
        C        by = (C)(scaled ? 1.0 / n : n);                                         \
        if (op != LK_AVG) { FOR_EACH to[i] = STORE(a[i]); }                              \
        else if (scaled) { FOR_EACH to[i] = STORE(a[i] * by); }                          \
        else { FOR_EACH to[i] = STORE(a[i] / by); }                                      \
    } while (0)

#define FINISH_INTEGER(T, A, C, STORE)                                     \
    do {                                                       \
        const i64_memory *a = in;                                   \
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
#define FINISH_COMPUTED FINISH_REAL
#define FINISH_STORED FINISH_REAL
#define FINISH_EXCHANGED FINISH_REAL
#define FINISH_CASE(id, name, bytes, kind, sums, memory, number, load, store, ...) \
    case LK_##id: FINISH_##kind(name##_memory, PARTIAL_##sums, number, store); break;
#define PARTIAL_F32 f32_memory
#define PARTIAL_F64 f64_memory
        LK__DTYPE_LIST(FINISH_CASE)
    case LK_DTYPE_COUNT: break;
    }
}
