/* kernel/cpu/lanes.h - loops over vectors with a tail, sums in a fixed order, and how work is cut into tiles. A tail runs
 * the same vector arithmetic as the rest, so an element's bits do not depend on where in a row it stands. */
#ifndef LK__LANES_H
#define LK__LANES_H

#include "kernel/cpu/cpu.h"

enum {
    GRAIN = 16384, /* elements: less than this is one tile, and wakes no thread */
    PARTS = 64,    /* the most partial results that a reduction is cut into */
    RUN = 64,      /* rows that are added in REAL before they go into a double */
};

#if LK_REAL_BITS == 32
#define REAL_DTYPE LK_F32
#else
#define REAL_DTYPE LK_F64
#endif

typedef double dvec __attribute__((vector_size(VL * sizeof(double)))); /* the doubles of one vec */

#define INLINE static inline __attribute__((always_inline))

/* The first `lanes` of a vector; the rest is zero. A constant VL makes it a plain load. */
INLINE vec load_part(const REAL *p, int64_t lanes)
{
    if (lanes == VL) return load(p);
    vec v = {0};
    for (int64_t l = 0; l < lanes; l++) v[l] = p[l];
    return v;
}

INLINE void store_part(REAL *p, vec v, int64_t lanes)
{
    if (lanes == VL) {
        store(p, v);
        return;
    }
    for (int64_t l = 0; l < lanes; l++) p[l] = v[l];
}

INLINE vec zero_after(vec v, int64_t lanes)
{
    if (lanes == VL) return v;
    for (int64_t l = lanes; l < VL; l++) v[l] = 0;
    return v;
}

#define to_double(v) __builtin_convertvector((v), dvec) /* a macro: no register of x86 may return a dvec */

INLINE double lanes_sum(vec v)
{
    double total = 0;
    for (int l = 0; l < VL; l++) total += (double)v[l];
    return total;
}

INLINE REAL lanes_max(vec v)
{
    REAL best = v[0];
    for (int l = 1; l < VL; l++) best = v[l] > best ? v[l] : best;
    return best;
}

/* Runs the body for i = 0, VL, 2 VL, … below n; in it `lanes` says how many elements from i on exist. */
#define EACH_VECTOR(i, n, ...)                     \
    do {                                           \
        const int64_t n_ = (n);                    \
        int64_t       i = 0;                       \
        for (; i + VL <= n_; i += VL) {            \
            enum { lanes = VL };                   \
            __VA_ARGS__                            \
        }                                          \
        if (i < n_) {                              \
            const int64_t lanes = n_ - i;          \
            __VA_ARGS__                            \
        }                                          \
    } while (0)

/* Adds to the double `total` a vector expression over i in [0, n): REALs are added within blocks of 1024, doubles after. */
#define SUM_VECTORS(total, i, n, ...)                                                         \
    do {                                                                                      \
        const int64_t n_ = (n);                                                               \
        for (int64_t i = 0, end_; i < n_;) {                                                  \
            vec s0_ = {0}, s1_ = {0}, s2_ = {0}, s3_ = {0};                                   \
            end_ = min64(n_, i + 1024);                                                       \
            while (i + 4 * VL <= end_) {                                                      \
                enum { lanes = VL };                                                          \
                s0_ += (__VA_ARGS__), i += VL;                                                \
                s1_ += (__VA_ARGS__), i += VL;                                                \
                s2_ += (__VA_ARGS__), i += VL;                                                \
                s3_ += (__VA_ARGS__), i += VL;                                                \
            }                                                                                 \
            for (; i + VL <= end_; i += VL) {                                                 \
                enum { lanes = VL };                                                          \
                s0_ += (__VA_ARGS__);                                                         \
            }                                                                                 \
            if (i < end_) {                                                                   \
                const int64_t lanes = end_ - i;                                               \
                s1_ += zero_after(__VA_ARGS__, lanes);                                        \
                i = end_;                                                                     \
            }                                                                                 \
            (total) += lanes_sum((s0_ + s1_) + (s2_ + s3_));                                  \
        }                                                                                     \
    } while (0)

/* Work of n items of `size` elements each, cut into tiles of about GRAIN elements, or into at most `most` (0: no limit).
 * Fewer items never give more tiles, so a workspace for the capacity holds for every count. */
static inline int64_t tile_count(int64_t n, int64_t size, int64_t most)
{
    if (n <= 0) return 0;
    int64_t tiles = min64(n, max64(1, tiles_of(n * size, GRAIN)));
    return most ? min64(tiles, most) : tiles;
}

static inline int64_t tile_begin(int64_t n, int64_t tiles, int64_t tile)
{
    int64_t each = n / tiles, more = n % tiles;
    return tile * each + min64(tile, more);
}

/* An operand that may be absent: NULL then. */
static inline void *input(const lk__call *call, int i) { return i < call->inputs ? call->in[i].data : NULL; }
static inline void *output(const lk__call *call, int i) { return i < call->outputs ? call->out[i].data : NULL; }

/* The product of x's dims from axis `begin` up to `end`. */
static inline int64_t dims_product(const lk__operand *x, int begin, int end)
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= x->dims[i];
    return n;
}

#endif
