/* device/cpu/cpu.h - included by every CPU kernel. Each file is compiled once per element type (LK_ELEMENT f32, f64, bf16) and
 * instruction set (LK_ISA neon, avx2, avx512, generic), so loops here are written once, for a vector of VL REALs.
 *
 * ELEMENT is the type in which tensors are stored, REAL the type of all arithmetic, of sums, and of operands that are always
 * wide (statistics, gradients of parameters). They differ for bf16 alone: load, store and the like convert. */
#ifndef LK__CPU_H
#define LK__CPU_H

#include "base/bf16.h"
#include "device/kernel.h"

#include <math.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LK__ELEMENT_f32 1
#define LK__ELEMENT_f64 2
#define LK__ELEMENT_bf16 3
#define ELEMENT_ID_(name) LK__ELEMENT_##name
#define ELEMENT_ID(name) ELEMENT_ID_(name)
#define NARROW (ELEMENT_ID(LK_ELEMENT) == LK__ELEMENT_bf16) /* ELEMENT is narrower than REAL */

#if ELEMENT_ID(LK_ELEMENT) == LK__ELEMENT_f64
#define LK_REAL_BITS 64
typedef double  REAL;
typedef int64_t INTEGER; /* of REAL's width: the type of a vector comparison */
#define R(x) x           /* a constant: R(0.5) */
#elif ELEMENT_ID(LK_ELEMENT) == LK__ELEMENT_f32 || NARROW
#define LK_REAL_BITS 32
typedef float   REAL;
typedef int32_t INTEGER;
#define R(x) x##f
#else
#error "compile with -DLK_ELEMENT=f32, f64 or bf16"
#endif
#if NARROW
typedef lk__bf16 ELEMENT;
#else
typedef REAL    ELEMENT;
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

static inline vec  load_real(const REAL *p) { return (vec) * (const vec_unaligned *)p; }
static inline void store_real(REAL *p, vec v) { *(vec_unaligned *)p = (vec_unaligned)v; }
static inline vec  splat(REAL x)
{
    return x - (vec){0};
} /* not 0 + x: that would turn -0 into 0, so compilers keep the addition */
/* mask lanes are 0 or -1, as in the result of a comparison. */
static inline vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline vec vmax(vec a, vec b) { return choose(a > b, a, b); }
/* x, or the bound that it is beyond; NaN stays. */
static inline vec vbound(vec x, REAL low, REAL high)
{
#if defined(__aarch64__) && LK_REAL_BITS == 32 /* one instruction a bound, where gcc has two for a choice */
    return (vec)vmaxq_f32(vminq_f32((float32x4_t)x, vdupq_n_f32(high)), vdupq_n_f32(low));
#else
    x = choose(x > high, splat(high), x);
    return choose(x < low, splat(low), x);
#endif
}

/* load, store: a vector; load_one, store_one: one number. Of an array of REALs or of ELEMENTs, by the pointer's type. */
static inline REAL load_one_real(const REAL *p) { return *p; }
static inline void store_one_real(REAL *p, REAL x) { *p = x; }
#if LK_REAL_BITS == 32
/* A vector of bf16. store_bf16 rounds a result of arithmetic to nearest, ties to even; a NaN stays one, as in lk__to_bf16:
 * arithmetic has made it quiet, so its upper half is one too. store_exact stores numbers that are bf16 already. (On arm64 by
 * intrinsics: GCC 12 loads and converts a half vector one by one.) */
#if defined(__aarch64__)
static inline vec  load_bf16(const lk__bf16 *p) { return (vec)vshll_n_u16(vld1_u16(&p->bits), 16); }
static inline void store_bf16(lk__bf16 *p, vec v)
{
    uint32x4_t bits = (uint32x4_t)v, odd = vtstq_u32(bits, vdupq_n_u32(1 << 16)); /* -1 where the last bit kept is set */
    uint32x4_t more = vandq_u32(vsubq_u32(vdupq_n_u32(0x7fff), odd), (uint32x4_t)(v == v));
    vst1_u16(&p->bits, vaddhn_u32(bits, more));
}
static inline void store_exact_bf16(lk__bf16 *p, vec v) { vst1_u16(&p->bits, vshrn_n_u32((uint32x4_t)v, 16)); }
#else
typedef uint16_t half_bits __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t half_bits_unaligned __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint32_t word_bits __attribute__((vector_size(VECTOR_BYTES)));

static inline vec load_bf16(const lk__bf16 *p)
{
    half_bits bits = (half_bits) * (const half_bits_unaligned *)p;
    return (vec)(__builtin_convertvector(bits, word_bits) << 16);
}
static inline void store_bf16(lk__bf16 *p, vec v)
{
    word_bits bits = (word_bits)v, more = (0x7fff + (bits >> 16 & 1)) & (word_bits)(v == v);
    *(half_bits_unaligned *)p = (half_bits_unaligned) __builtin_convertvector((bits + more) >> 16, half_bits);
}
static inline void store_exact_bf16(lk__bf16 *p, vec v)
{
    *(half_bits_unaligned *)p = (half_bits_unaligned) __builtin_convertvector((word_bits)v >> 16, half_bits);
}
#endif
#endif
#if NARROW
static inline vec  load_element(const ELEMENT *p) { return load_bf16(p); }
static inline void store_element(ELEMENT *p, vec v) { store_bf16(p, v); }
static inline REAL load_one_element(const ELEMENT *p) { return lk__from_bf16(*p); }
static inline void store_one_element(ELEMENT *p, REAL x) { *p = lk__to_bf16(x); }
#define BY_TYPE(name, p) \
    _Generic((p), const ELEMENT *: name##_element, ELEMENT *: name##_element, const REAL *: name##_real, REAL *: name##_real)
#else
#define BY_TYPE(name, p) name##_real
#endif
#define load(p) BY_TYPE(load, p)(p)
#define store(p, v) BY_TYPE(store, p)(p, v)
#define load_one(p) BY_TYPE(load_one, p)(p)
#define store_one(p, x) BY_TYPE(store_one, p)(p, x)

/* Copies n ELEMENTs to REALs or back; where they are the same type, as memcpy. */
static inline void copy_wide(REAL *to, const ELEMENT *from, int64_t n)
{
#if NARROW
    int64_t i = 0;
    for (; i + VL <= n; i += VL) store_real(to + i, load_element(from + i));
    for (; i < n; i++) to[i] = load_one_element(from + i);
#else
    memcpy(to, from, (size_t)n * sizeof(REAL));
#endif
}
static inline void copy_narrow(ELEMENT *to, const REAL *from, int64_t n)
{
#if NARROW
    int64_t i = 0;
    for (; i + VL <= n; i += VL) store_element(to + i, load_real(from + i));
    for (; i < n; i++) store_one_element(to + i, from[i]);
#else
    memcpy(to, from, (size_t)n * sizeof(REAL));
#endif
}

/* The symbol of a kernel in this build of its file: lk__conv2d_f32_neon. */
#define PASTE_(a, element, isa) lk__##a##_##element##_##isa
#define PASTE(a, element, isa) PASTE_(a, element, isa)
#define KERNEL(name) PASTE(name, LK_ELEMENT, LK_ISA)

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

/* Declared for the table (table.c): every op has run and, if it needs scratch, a workspace function. */
#define DECLARE_KERNEL(name, types)                  \
    void   KERNEL(name)(const lk__kernel_call *call); \
    size_t KERNEL(name##_workspace)(const lk__kernel_call *call, int threads) __attribute__((weak));
LK__OP_LIST_BUILT_IN(DECLARE_KERNEL)
#undef DECLARE_KERNEL

#endif
