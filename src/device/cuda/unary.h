/* device/cuda/unary.h - the functions of LK__UNARY_LIST and their slopes, for kernels that compute one or fuse one. The formulas, and
 * so the results at infinities and NaN, are those of device/cpu/unary.c. R is float or double.
 *
 * QUICK: exp and quotients by the GPU's approximations, whose errors of 2^-16 at most bf16 does not show. With the exact functions
 * arithmetic would bound gelu and silu in bf16, not bytes. */
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

/* sqrt(2/pi) (x + 0.044715 x³), doubled: (1 + tanh u) / 2 is the sigmoid of 2 u. */
template <typename R> static __device__ __forceinline__ R gelu_inner(R x)
{
    return (R)2 * (R)0.79788456080286535588 * (x + (R)0.044715 * x * x * x);
}

template <int FUNCTION, bool QUICK = false, typename R>
static __device__ __forceinline__ R unary_of(R x, const unary_constants &c)
{
    switch (FUNCTION) {
    case LK__RELU: return x <= 0 ? (R)0 : x; /* NaN is kept */
    case LK__GELU: return (R)0.5 * x * ((R)1 + real_erf(x * (R)0.70710678118654752440));
    case LK__GELU_TANH: return ratio_of<QUICK>(x, (R)1 + exp_of<QUICK>(-gelu_inner(x)));
    case LK__SILU: return ratio_of<QUICK>(x, (R)1 + exp_of<QUICK>(-x));
    case LK__SIGMOID: return sigmoid_of<QUICK>(x);
    case LK__TANH: return real_tanh(x);
    case LK__EXP: return real_exp(x);
    case LK__LOG: return real_log(x);
    case LK__SQRT: return real_sqrt(x);
    case LK__POW: return pow_of(x, c.exponent);
    case LK__CLAMP: /* the lower bound first, as in PyTorch; NaN is kept */
        x = x < (R)c.minimum ? (R)c.minimum : x;
        return x > (R)c.maximum ? (R)c.maximum : x;
    case LK__LEAKY_RELU: return x > 0 ? x : x * (R)c.slope;
    default: return x;
    }
}

template <bool QUICK, typename R> static __device__ __forceinline__ R gelu_slope(R x)
{
    R cdf = (R)0.5 * ((R)1 + real_erf(x * (R)0.70710678118654752440));
    return cdf + x * (exp_of<QUICK>((R)-0.5 * x * x) * (R)0.39894228040143267794);
}

template <bool QUICK, typename R> static __device__ __forceinline__ R gelu_tanh_slope(R x)
{
    R s = sigmoid_of<QUICK>(gelu_inner(x)), flat = s * ((R)1 - s);
    R inner = (R)2 * (R)0.79788456080286535588 * ((R)1 + (R)3 * (R)0.044715 * x * x);
    /* Where the sigmoid's derivative is 0 the inner derivative may be infinite: their product is 0. */
    return s + (flat == 0 ? (R)0 : x * flat * inner);
}

template <bool QUICK, typename R> static __device__ __forceinline__ R silu_slope(R x)
{
    R s = sigmoid_of<QUICK>(x);
    return s == 0 ? (R)0 : s * ((R)1 + x * ((R)1 - s));
}

/* d times the slope; saved: the function's result where lk__unary_saves_result, else its operand. */
template <int FUNCTION, bool QUICK = false, typename R>
static __device__ __forceinline__ R unary_grad_of(R d, R saved, const unary_constants &c)
{
    switch (FUNCTION) {
    case LK__RELU: return saved <= 0 ? (R)0 : d;
    case LK__GELU: return d * gelu_slope<QUICK>(saved);
    case LK__GELU_TANH: return d * gelu_tanh_slope<QUICK>(saved);
    case LK__SILU: return d * silu_slope<QUICK>(saved);
    case LK__SIGMOID: return d * (((R)1 - saved) * saved);
    case LK__TANH: return d * ((R)1 - saved * saved);
    case LK__EXP: return d * saved;
    case LK__LOG: return d / saved;
    case LK__SQRT: return d / (saved + saved);
    case LK__POW: return d * (c.exponent == 0 ? (R)0 : pow_of(saved, c.exponent - 1) * (R)c.exponent);
    case LK__CLAMP: return saved >= (R)c.minimum && saved <= (R)c.maximum ? d : (R)0;
    case LK__LEAKY_RELU: return saved > 0 ? d : d * (R)c.slope;
    default: return d;
    }
}

#endif
