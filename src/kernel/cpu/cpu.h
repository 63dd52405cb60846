/* kernel/cpu/cpu.h - included by every CPU kernel. Each file is compiled once per floating type (LK_REAL_BITS 32, 64) and
 * instruction set (LK_ISA neon, avx2, avx512, generic), so loops here are written once, for a vector of VL REALs. */
#ifndef LK__CPU_H
#define LK__CPU_H

#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

#if LK_REAL_BITS == 32
typedef float   REAL;
typedef int32_t INTEGER; /* of REAL's width: the type of a vector comparison */
#define R(x) x##f        /* a constant: R(0.5) */
#elif LK_REAL_BITS == 64
typedef double  REAL;
typedef int64_t INTEGER;
#define R(x) x
#else
#error "compile with -DLK_REAL_BITS=32 or 64"
#endif

/* Bytes of a vector register. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
enum { VL = VECTOR_BYTES / sizeof(REAL) };

/* Aligned in registers; load and store accept any address that is aligned to REAL. */
typedef REAL    vec __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL    vec_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef INTEGER ivec __attribute__((vector_size(VECTOR_BYTES)));

static inline vec  load(const REAL *p) { return (vec) * (const vec_unaligned *)p; }
static inline void store(REAL *p, vec v) { *(vec_unaligned *)p = (vec_unaligned)v; }
static inline vec  splat(REAL x)
{
    return x - (vec){0};
} /* not 0 + x: that would turn -0 into 0, so compilers keep the addition */
/* mask lanes are 0 or -1, as in the result of a comparison. */
static inline vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline vec vmax(vec a, vec b) { return choose(a > b, a, b); }

/* The symbol of a kernel in this build of its file: lk__conv2d_f32_neon. */
#define PASTE_(a, bits, isa) lk__##a##_f##bits##_##isa
#define PASTE(a, bits, isa) PASTE_(a, bits, isa)
#define KERNEL(name) PASTE(name, LK_REAL_BITS, LK_ISA)

/* Splits n elements into tiles of at least `grain`; depends on the shape alone. */
static inline int64_t tiles_of(int64_t n, int64_t grain) { return (n + grain - 1) / grain; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Ids out of range: tiles keep the smallest position in *first, which starts at INT64_MAX; after all tiles the kernel reports it. */
static inline void keep_first(int64_t *first, int64_t position)
{
    int64_t seen = __atomic_load_n(first, __ATOMIC_RELAXED);
    while (position < seen &&
           !__atomic_compare_exchange_n(first, &seen, position, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
static inline void report_invalid(const lk__kernel_call *call, lk__op op, const int32_t *ids, int64_t first,
                                  int64_t limit)
{
    if (first == INT64_MAX || !call->invalid || call->invalid->found) return;
    *call->invalid =
        (lk__kernel_invalid_id){.found = true, .op = op, .at = ids + first, .value = ids[first], .limit = limit};
}

/* Declared for the table: every op has run and, if it needs scratch, a workspace function. */
#define DECLARE_KERNEL(name)                                        \
    void   KERNEL(name)(const lk__kernel_call *call);                      \
    size_t KERNEL(name##_workspace)(const lk__kernel_call *call, int threads) __attribute__((weak));
LK__OP_LIST(DECLARE_KERNEL)
#undef DECLARE_KERNEL

#endif
