/* cuda_bf16.h - stands in for CUDA's header of this name: bfloat16 as kernels store, load and convert it. */
#ifndef LK_EMULATED_CUDA_BF16_H
#define LK_EMULATED_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits(round(x)) {}
    explicit __nv_bfloat16(double x) : bits(round((float)x)) {}
    explicit __nv_bfloat16(int x) : bits(round((float)x)) {}
    __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
    operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{bits}; }
    operator float() const { return lk__emulated_cast<float>((unsigned)bits << 16); }

  private:
    /* To nearest, ties to even; every NaN becomes 0x7fff, as on the GPU. */
    static unsigned short round(float x)
    {
        unsigned u = lk__emulated_cast<unsigned>(x);
        return x != x ? 0x7fff : (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) : x(low), y(high) {}
};

typedef __nv_bfloat16  nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16  __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16  __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16  __double2bfloat16(double x) { return __nv_bfloat16(x); }
static inline float          __bfloat162float(__nv_bfloat16 x) { return x; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline short          __bfloat16_as_short(__nv_bfloat16 x) { return (short)x.bits; }
static inline __nv_bfloat16  __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return __nv_bfloat162(low, high); }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return __nv_bfloat162(x.x, x.y); }
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __nv_bfloat162(x, x); }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
static inline float2         __bfloat1622float2(__nv_bfloat162 x) { return float2{x.x, x.y}; }
static inline float          __low2float(__nv_bfloat162 x) { return x.x; }
static inline float          __high2float(__nv_bfloat162 x) { return x.y; }
static inline __nv_bfloat16  __low2bfloat16(__nv_bfloat162 x) { return x.x; }
static inline __nv_bfloat16  __high2bfloat16(__nv_bfloat162 x) { return x.y; }

#endif
