/* device/cpu/cpu.h - included by every CPU kernel. Each file is compiled once per element type (LK_ELEMENT f32, f64,
 * bf16, …: those of base/dtype_list.h that kernels store) and instruction set (LK_ISA neon_bf16, neon, avx2, …), so
 * loops here are written once, for a vector of VL REALs.
 *
 * ELEMENT is the type in which tensors are stored, REAL the type of all arithmetic, of sums, and of operands that are
 * always wide (statistics, gradients of parameters). They differ for narrow types (NARROW): load, store and similar
 * functions convert. */
#ifndef LK__CPU_H
#define LK__CPU_H

#include "device/kernel.h"

#include <math.h>
#include <string.h>

#define LK__ELEMENT_f32 1
#define LK__ELEMENT_f64 2
#define ELEMENT_ID_(name) LK__ELEMENT_##name
#define ELEMENT_ID(name) ELEMENT_ID_(name)
/* Any other type is 0 here: ELEMENT is narrower than REAL, which is f32, and element_NAME.h in this folder loads and
 * stores it. */
#if ELEMENT_ID(LK_ELEMENT) == 0
#define NARROW 1
#else
#define NARROW 0
#endif
#define QUOTE_(name) #name
#define QUOTE(name) QUOTE_(name)
#define ELEMENT_FILE_(element) device/cpu/element_##element.h
#define ELEMENT_FILE(element) ELEMENT_FILE_(element)
#define ELEMENT_HEADER QUOTE(ELEMENT_FILE(LK_ELEMENT))

#if ELEMENT_ID(LK_ELEMENT) == LK__ELEMENT_f64
#define LK_REAL_BITS 64
typedef double  REAL;
typedef int64_t INTEGER; /* of REAL's width: the type of a vector comparison */
#define R(x) x           /* a constant: R(0.5) */
#else
#define LK_REAL_BITS 32
typedef float   REAL;
typedef int32_t INTEGER;
#define R(x) x##f
#endif

/* Whether products multiply ELEMENTs as they are stored, by instructions that device/cpu/matrix_NAME.h describes
 * (LK_MATRIX). */
#if defined(LK_MATRIX)
#define MATRIX 1
#else
#define MATRIX 0
#endif
/* Whether the matrix instructions are those in C of bf16_instructions.h: for tests. */
#if defined(LK_EMULATED)
#define EMULATED 1
#else
#define EMULATED 0
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

/* load, store: a vector; load_one, store_one: one number. Of an array of REALs or of ELEMENTs, by the pointer's
 * type. */
static inline REAL load_one_real(const REAL *p) { return *p; }
static inline void store_one_real(REAL *p, REAL x) { *p = x; }
#if NARROW
#include ELEMENT_HEADER
#define ELEMENT_NAME_(name, element) name##_##element
#define ELEMENT_NAME(name, element) ELEMENT_NAME_(name, element)
typedef ELEMENT_NAME(element, LK_ELEMENT) ELEMENT;
#define load_element ELEMENT_NAME(load, LK_ELEMENT)
#define store_element ELEMENT_NAME(store, LK_ELEMENT)
#define store_exact_element ELEMENT_NAME(store_exact, LK_ELEMENT)
#define load_one_element ELEMENT_NAME(load_one, LK_ELEMENT)
#define store_one_element ELEMENT_NAME(store_one, LK_ELEMENT)
#define store_one_exact_element ELEMENT_NAME(store_one_exact, LK_ELEMENT)
#define BY_TYPE(name, p)                                                                                 \
    _Generic((p), const ELEMENT *: name##_element, ELEMENT *: name##_element, const REAL *: name##_real, \
             REAL *: name##_real)
#else
typedef REAL    ELEMENT;
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

/* Ids out of range: tiles keep the smallest position in *first, which starts at INT64_MAX; after all tiles the kernel
 * reports it. */
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
