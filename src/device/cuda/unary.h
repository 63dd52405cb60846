/* device/cuda/unary.h - the functions that the formulas of device/functions.h call, for kernels that compute a function
 * or fuse one. R is float or double.
 *
 * QUICK: exp and quotients use the GPU's approximations, whose error of at most 2^-16 is not visible in bf16. With the
 * exact functions, gelu and silu in bf16 would be bound by arithmetic, not by bytes. */
#ifndef LK__CUDA_UNARY_H
#define LK__CUDA_UNARY_H

#include "device/cuda/cuda.h"

typedef struct unary_constants {
    double exponent, minimum, maximum, slope;
} unary_constants;

static inline unary_constants unary_attributes(const lk__op_attrs *a)
{
    unary_constants c = {a->exponent, a->minimum, a->maximum, a->slope};
    return c;
}

static __device__ __forceinline__ float  real_exp(float x) { return expf(x); }
static __device__ __forceinline__ double real_exp(double x) { return exp(x); }
static __device__ __forceinline__ float  real_log(float x) { return logf(x); }
static __device__ __forceinline__ double real_log(double x) { return log(x); }
static __device__ __forceinline__ float  real_log1p(float x) { return log1pf(x); }
static __device__ __forceinline__ double real_log1p(double x) { return log1p(x); }
static __device__ __forceinline__ float  real_tanh(float x) { return tanhf(x); }
static __device__ __forceinline__ double real_tanh(double x) { return tanh(x); }
static __device__ __forceinline__ float  real_erf(float x) { return erff(x); }
static __device__ __forceinline__ double real_erf(double x) { return erf(x); }
static __device__ __forceinline__ float  real_sqrt(float x) { return sqrtf(x); }
static __device__ __forceinline__ double real_sqrt(double x) { return sqrt(x); }

#define QUICK_FOR(T) (sizeof(T) == 2)
template <bool QUICK> static __device__ __forceinline__ float  exp_of(float x) { return QUICK ? __expf(x) : expf(x); }
template <bool QUICK> static __device__ __forceinline__ double exp_of(double x) { return exp(x); }
template <bool QUICK> static __device__ __forceinline__ float  ratio_of(float a, float b)
{
    return QUICK ? __fdividef(a, b) : a / b;
}
template <bool QUICK> static __device__ __forceinline__ double ratio_of(double a, double b) { return a / b; }

template <bool QUICK = false, typename R> static __device__ __forceinline__ R sigmoid_of(R x)
{
    return ratio_of<QUICK>((R)1, (R)1 + exp_of<QUICK>(-x));
}

/* In double also for f32: p log x needs more digits than a float has. */
template <typename R> static __device__ inline R pow_of(R x, double p)
{
    if (p == 0) return 1;
    if (p == 1) return x;
    if (p == 2) return x * x;
    return (R)pow((double)x, p);
}

#include "device/functions.h"

#endif
