/* device/cpu/lanes.h - loops over vectors with a tail, sums in a fixed order, and how work is split into tiles. A tail
 * uses the same vector arithmetic as the rest, so an element's bits do not depend on its position in a row.
 *
 * A vector store may alias anything, so a tile copies its description to locals; otherwise it would be read from memory
 * again after each store. */
#ifndef LK__LANES_H
#define LK__LANES_H

#include "device/cpu/cpu.h"
#if LK_REAL_BITS == 32
#include "device/cpu/element_bf16.h"
#else
#include "base/bf16.h"
#endif

enum {
    GRAIN = 16384, /* elements: less than this is one tile and runs on the calling thread */
    PARTS = 64,    /* maximum partial results of a reduction */
    RUN = 64,      /* rows that are added in REAL before they are added to a double */
};

#if LK_REAL_BITS == 32
#define REAL_DTYPE LK_F32
#else
#define REAL_DTYPE LK_F64
#endif

#define INLINE static inline __attribute__((always_inline))

/* The first `lanes` of a vector; the rest is zero. A constant VL makes it a plain load. (A loop up to `lanes` would
 * become a call of memcpy.) */
INLINE vec load_part_real(const REAL *p, int64_t lanes)
{
    if (lanes == VL) return load_real(p);
    vec v = {0};
    for (int l = 0; l < VL; l++)
        if (l < lanes) v[l] = p[l];
    return v;
}

INLINE void store_part_real(REAL *p, vec v, int64_t lanes)
{
    if (lanes == VL) {
        store_real(p, v);
        return;
    }
    for (int l = 0; l < VL; l++)
        if (l < lanes) p[l] = v[l];
}

#if NARROW
INLINE vec load_part_element(const ELEMENT *p, int64_t lanes)
{
    if (lanes == VL) return load_element(p);
    vec v = {0};
    for (int l = 0; l < VL; l++)
        if (l < lanes) v[l] = load_one_element(p + l);
    return v;
}

INLINE void store_part_element(ELEMENT *p, vec v, int64_t lanes)
{
    if (lanes == VL) {
        store_element(p, v);
        return;
    }
    for (int l = 0; l < VL; l++)
        if (l < lanes) store_one_element(p + l, v[l]);
}

/* Of numbers that are ELEMENTs already: a selection of them. */
INLINE void store_part_exact(ELEMENT *p, vec v, int64_t lanes)
{
    if (lanes == VL) {
        store_exact_element(p, v);
        return;
    }
    for (int l = 0; l < VL; l++)
        if (l < lanes) store_one_exact_element(p + l, v[l]);
}
#else
#define store_part_exact store_part_real
#endif
/* Rounds to bf16, also where ELEMENT is wider. */
INLINE void store_part_bf16(lk__bf16 *p, vec v, int64_t lanes)
{
#if LK_REAL_BITS == 32
    if (lanes == VL) {
        store_bf16(p, v);
        return;
    }
#endif
    for (int l = 0; l < VL; l++)
        if (l < lanes) p[l] = lk__to_bf16((float)v[l]);
}
#define load_part(p, lanes) BY_TYPE(load_part, p)(p, lanes)
#define store_part(p, v, lanes) BY_TYPE(store_part, p)(p, v, lanes)

INLINE vec zero_after(vec v, int64_t lanes)
{
    if (lanes == VL) return v;
    for (int l = 0; l < VL; l++)
        if (l >= lanes) v[l] = 0;
    return v;
}

/* The doubles of one vec: as many registers as they need, since compilers keep wider vectors in memory. */
typedef double wide __attribute__((vector_size(VECTOR_BYTES)));
typedef double wide_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));
enum { WIDE = VECTOR_BYTES / sizeof(double), WIDES = VL / WIDE };
typedef struct dvec {
    wide part[WIDES];
} dvec;

#if LK_REAL_BITS == 64
INLINE dvec to_double(vec v) { return (dvec){{v}}; }
INLINE vec  to_real(dvec d) { return d.part[0]; }
#else
#if VECTOR_BYTES == 16
#define LOW 0, 1
#define HIGH 2, 3
#define BOTH 0, 1, 2, 3
#elif VECTOR_BYTES == 32
#define LOW 0, 1, 2, 3
#define HIGH 4, 5, 6, 7
#define BOTH 0, 1, 2, 3, 4, 5, 6, 7
#else
#define LOW 0, 1, 2, 3, 4, 5, 6, 7
#define HIGH 8, 9, 10, 11, 12, 13, 14, 15
#define BOTH 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#endif
typedef REAL half __attribute__((vector_size(VECTOR_BYTES / 2)));
INLINE dvec  to_double(vec v)
{
#if defined(__aarch64__) /* where gcc converts a half vector one by one */
    return (dvec){{(wide)vcvt_f64_f32(vget_low_f32((float32x4_t)v)), (wide)vcvt_high_f64_f32((float32x4_t)v)}};
#else
    return (dvec){{__builtin_convertvector(__builtin_shufflevector(v, v, LOW), wide),
                   __builtin_convertvector(__builtin_shufflevector(v, v, HIGH), wide)}};
#endif
}
INLINE vec to_real(dvec d)
{
    return __builtin_shufflevector(__builtin_convertvector(d.part[0], half), __builtin_convertvector(d.part[1], half),
                                   BOTH);
}
#undef LOW
#undef HIGH
#undef BOTH
#endif

/* a + b, and a + b² */
INLINE dvec dadd(dvec a, dvec b)
{
    for (int i = 0; i < WIDES; i++) a.part[i] += b.part[i];
    return a;
}
INLINE dvec dadd_square(dvec a, dvec b)
{
    for (int i = 0; i < WIDES; i++) a.part[i] += b.part[i] * b.part[i];
    return a;
}
INLINE double dlane(dvec d, int64_t lane) { return d.part[lane / WIDE][lane % WIDE]; }

/* Adds the first `lanes` to memory. */
INLINE void dadd_to(double *p, dvec d, int64_t lanes)
{
    if (lanes == VL)
        for (int i = 0; i < WIDES; i++) *(wide_unaligned *)(p + i * WIDE) += (wide_unaligned)d.part[i];
    else
        for (int64_t l = 0; l < lanes; l++) p[l] += dlane(d, l);
}

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

#if defined(__clang__)
#define UNROLL_2 _Pragma("clang loop unroll_count(2)")
#define UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL_2 _Pragma("GCC unroll 2")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

/* Runs the body for i = 0, VL, 2 VL, … below n; `lanes` is the number of elements from i on, at most VL. */
#define EACH_VECTOR(i, n, ...)                     \
    do {                                           \
        const int64_t n_ = (n);                    \
        int64_t       i = 0;                       \
        UNROLL_2                                   \
        for (; i + VL <= n_; i += VL) {            \
            enum { lanes = VL };                   \
            __VA_ARGS__                            \
        }                                          \
        if (i < n_) {                              \
            const int64_t lanes = n_ - i;          \
            __VA_ARGS__                            \
        }                                          \
    } while (0)

/* Vectors of a function that are computed together: each is a long chain of dependent operations, which hide each
 * other's latency. As many as the registers hold. */
#if defined(__aarch64__) || defined(__AVX512F__)
enum { GROUPED = 4 };
#else
enum { GROUPED = 2 };
#endif

/* Stores a vector expression over i in [0, n) to out + i. All of a group are computed before the first is stored, so
 * that `out` may be an operand of the expression and compilers may mix the operations of a group. */
#define MAP_VECTORS(store, out, i, n, ...)                                                                 \
    do {                                                                                                   \
        const int64_t n_ = (n);                                                                            \
        int64_t       i = 0;                                                                               \
        while (i + GROUPED * VL <= n_) {                                                                  \
            enum { lanes = VL };                                                                           \
            vec group_[GROUPED];                                                                          \
            UNROLL_4                                                                                       \
            for (int g_ = 0; g_ < GROUPED; g_++, i += VL) group_[g_] = (__VA_ARGS__);                     \
            UNROLL_4                                                                                       \
            for (int g_ = 0; g_ < GROUPED; g_++) store((out) + i + (g_ - GROUPED) * VL, group_[g_], lanes); \
        }                                                                                                  \
        for (; i < n_; i += VL) {                                                                          \
            const int64_t lanes = n_ - i < VL ? n_ - i : VL;                                               \
            store((out) + i, __VA_ARGS__, lanes);                                                          \
        }                                                                                                  \
    } while (0)

/* Adds to the double `total` a vector expression over i in [0, n): REALs are added within blocks of 1024, doubles
 * after. */
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

/* Work of n items of `size` elements each, split into tiles of about GRAIN elements, at most `most` of them (0: no
 * limit). Fewer items never give more tiles, so a workspace for the capacity is enough for every count. */
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
static inline void *input(const lk__kernel_call *call, int i) { return i < call->inputs ? call->in[i].data : NULL; }
static inline void *output(const lk__kernel_call *call, int i) { return i < call->outputs ? call->out[i].data : NULL; }

/* The product of x's dims from axis `begin` up to `end`. */
static inline int64_t dims_product(const lk__kernel_operand *x, int begin, int end)
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= x->dims[i];
    return n;
}

#endif
