/* device/cpu/element_bf16.h - bf16 as the element type of kernels. device/cpu/cpu.h includes this file where LK_ELEMENT
 * is bf16, and uses the functions here whose names end in _bf16. Every other narrow type that kernels store needs a
 * corresponding file. */
#ifndef LK__CPU_ELEMENT_BF16_H
#define LK__CPU_ELEMENT_BF16_H

#include "base/bf16.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/* A vector of bf16. store_bf16 rounds a result of arithmetic to nearest, ties to even; a NaN stays one, as in
 * lk__to_bf16: arithmetic has made it quiet, so its upper half is one too. store_exact stores numbers that are bf16
 * already. (On arm64 by intrinsics: GCC 12 loads and converts a half vector one by one.)
 *
 * BFCVT and BFCVTN round so by one instruction (CONVERTS_BF16): the same bits for every number, while FPCR has its
 * default, where denormals are not flushed. x86's VCVTNEPS2BF16 flushes them, whatever MXCSR says, so it is not
 * used. */
typedef lk__bf16 element_bf16;
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define CONVERTS_BF16 1
#else
#define CONVERTS_BF16 0
#endif

#if defined(__aarch64__)
static inline vec load_bf16(const lk__bf16 *p) { return (vec)vshll_n_u16(vld1_u16(&p->bits), 16); }
#if CONVERTS_BF16
static inline void store_bf16(lk__bf16 *p, vec v) { vst1_u16(&p->bits, (uint16x4_t)vcvt_bf16_f32((float32x4_t)v)); }
#else
static inline void store_bf16(lk__bf16 *p, vec v)
{
    /* -1 where the last bit kept is set */
    uint32x4_t bits = (uint32x4_t)v, odd = vtstq_u32(bits, vdupq_n_u32(1 << 16));
    uint32x4_t more = vandq_u32(vsubq_u32(vdupq_n_u32(0x7fff), odd), (uint32x4_t)(v == v));
    vst1_u16(&p->bits, vaddhn_u32(bits, more));
}
#endif
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

static inline REAL load_one_bf16(const lk__bf16 *p) { return lk__from_bf16(*p); }
#if CONVERTS_BF16
static inline void store_one_bf16(lk__bf16 *p, REAL x)
{
    bfloat16_t y = vcvth_bf16_f32(x);
    memcpy(p, &y, sizeof y);
}
#else
static inline void store_one_bf16(lk__bf16 *p, REAL x) { *p = lk__to_bf16(x); }
#endif
static inline void store_one_exact_bf16(lk__bf16 *p, REAL x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    p->bits = (uint16_t)(bits >> 16);
}

#endif
