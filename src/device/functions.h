/* device/functions.h - the formulas of the functions of base/function.h and of their gradients, for the CPU and for
 * CUDA: a new function needs both here. The formulas, and so the results at infinities and NaN, are the same on both.
 *
 * The CPU's are vectors (vec), in a list for device/cpu/unary.c, which includes this after device/cpu/vmath.h; CUDA's
 * are scalars of type R, float or double, in two switches that are resolved at compile time, for device/cuda/unary.h,
 * which has the functions that they call. */
#ifndef LK__FUNCTIONS_H
#define LK__FUNCTIONS_H

#if !defined(__cplusplus)

/* ---- the CPU ---- */

#define SQRT_HALF R(0.70710678118654752440)
#define INVERSE_SQRT_2PI R(0.39894228040143267794)
#define SQRT_2_OVER_PI R(0.79788456080286535588)
#define GELU_CUBIC R(0.044715)

/* relu keeps NaN, as in PyTorch. */
INLINE vec relu(vec x) { return choose(x <= 0, splat(0), x); }
INLINE vec gelu(vec x) { return R(0.5) * x * (R(1.0) + verf(x * SQRT_HALF)); }
/* (1 + tanh u) / 2 is the sigmoid of 2 u: one exp instead of tanh's polynomials. */
INLINE vec gelu_tanh(vec x)
{
    return x / (R(1.0) + vexp_bounded(R(-2.0) * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
}
/* The lower bound first, as in PyTorch: where it is above the upper bound, the result is the upper bound. NaN is
 * kept. */
INLINE vec clamp(vec x, REAL low, REAL high)
{
    x = choose(x < low, splat(low), x);
    return choose(x > high, splat(high), x);
}
INLINE vec leaky_relu(vec x, REAL slope) { return choose(x > 0, x, x * slope); }
INLINE vec pow_slope(vec x, double p) { return p == 0 ? splat(0) : vpow(x, p - 1) * (REAL)p; }
INLINE vec silu(vec x) { return x / (R(1.0) + vexp(-x)); }

INLINE vec gelu_slope(vec x)
{
    vec cdf = R(0.5) * (R(1.0) + verf(x * SQRT_HALF));
    return cdf + x * (vexp(R(-0.5) * x * x) * INVERSE_SQRT_2PI);
}
INLINE vec gelu_tanh_slope(vec x)
{
    vec square = x * x;
    vec sigmoid = R(1.0) / (R(1.0) + vexp_bounded(R(-2.0) * SQRT_2_OVER_PI * (x + GELU_CUBIC * square * x)));
    vec inner = R(2.0) * SQRT_2_OVER_PI * (R(1.0) + R(3.0) * GELU_CUBIC * square);
    vec flat = sigmoid * (R(1.0) - sigmoid);
    /* Where the sigmoid's derivative is 0 the inner derivative may be infinite: their product is 0. */
    return sigmoid + choose(flat == 0, splat(0), x * flat * inner);
}
INLINE vec silu_slope(vec x)
{
    vec s = vsigmoid(x);
    return choose(s == 0, splat(0), s * (R(1.0) + x * (R(1.0) - s)));
}

/* X(constant, store, f, df): f of VALUE; df of DY, the gradient that arrives, and SAVED, the result or the operand as
 * base/function.h says. store: store_part, or store_part_exact where f is one of its operands or 0. Attributes are
 * those of `a`. */
#define LK__CPU_FUNCTIONS(X)                                                                                          \
    X(LK__RELU, store_part_exact, relu(VALUE), choose(SAVED <= 0, splat(0), DY))                                      \
    X(LK__GELU, store_part, gelu(VALUE), DY *gelu_slope(SAVED))                                                       \
    X(LK__GELU_TANH, store_part, gelu_tanh(VALUE), DY *gelu_tanh_slope(SAVED))                                        \
    X(LK__SILU, store_part, silu(VALUE), DY *silu_slope(SAVED))                                                       \
    X(LK__SIGMOID, store_part, vsigmoid(VALUE), DY *((R(1.0) - SAVED) * SAVED))                                       \
    X(LK__TANH, store_part, vtanh(VALUE), DY *(R(1.0) - SAVED * SAVED))                                               \
    X(LK__EXP, store_part, vexp(VALUE), DY *SAVED)                                                                    \
    X(LK__LOG, store_part, vlog(VALUE), DY / SAVED)                                                                   \
    X(LK__SQRT, store_part, vsqrt(VALUE), DY / (SAVED + SAVED))                                                       \
    X(LK__POW, store_part, vpow(VALUE, a.exponent), DY *pow_slope(SAVED, a.exponent))                                 \
    X(LK__CLAMP, store_part, clamp(VALUE, (REAL)a.minimum, (REAL)a.maximum),                                          \
      choose((SAVED >= (REAL)a.minimum) & (SAVED <= (REAL)a.maximum), DY, splat(0)))                                  \
    X(LK__LEAKY_RELU, store_part, leaky_relu(VALUE, (REAL)a.slope), choose(SAVED > 0, DY, DY * (REAL)a.slope))

#else

/* ---- CUDA ---- */

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

#endif
