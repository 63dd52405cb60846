/* device/cuda/product_epilogue.h - what our own product kernels do with a finished sum: alpha, beta, bias, activation,
 * and conversion to C's type. */
#ifndef LK__CUDA_PRODUCT_EPILOGUE_H
#define LK__CUDA_PRODUCT_EPILOGUE_H

#include "device/cuda/gemm.h"

template <typename W> static __device__ inline W gelu_tanh(W x)
{
    W inner = (W)0.7978845608028654 * (x + (W)0.044715 * x * x * x); /* sqrt(2/π) */
    return (W)0.5 * x * (1 + tanh(inner));
}
template <typename W> static __device__ inline W gelu_tanh_slope(W x)
{
    W c = (W)0.7978845608028654, t = tanh(c * (x + (W)0.044715 * x * x * x));
    return (W)0.5 * (1 + t) + (W)0.5 * x * (1 - t * t) * c * (1 + 3 * (W)0.044715 * x * x);
}

/* C's elements are T, or WIDE(T) where `wide`. */
template <typename T> struct product_epilogue {
    typedef WIDE(T) W;
    void       *c, *saved;
    const void *addend;
    int64_t     ld, batch_step, m, n;
    const T    *bias;
    W           alpha, beta;
    int         activation;
    bool        wide, gradient;

    __device__ W read(const void *p, int64_t at) const { return wide ? ((const W *)p)[at] : load((const T *)p + at); }
    __device__ void write(void *p, int64_t at, W x) const
    {
        if (wide)
            ((W *)p)[at] = x;
        else
            store((T *)p + at, x);
    }
    __device__ void select(int64_t batch)
    {
        c = wide ? (void *)((W *)c + batch * batch_step) : (T *)c + batch * batch_step;
    }
    __device__ W finish(int64_t at, int64_t column, W sum) const
    {
        W x = alpha * sum;
        if (beta != 0) x += beta * read(addend ? addend : c, at);
        if (bias) x += load(bias + column);
        if (activation == LK__RELU) return x < 0 ? 0 : x;
        if (activation != LK__GELU_TANH) return x;
        if (gradient) return x * gelu_tanh_slope(read(saved, at));
        if (saved) write(saved, at, x);
        return gelu_tanh(x);
    }
    __device__ void put(int64_t row, int64_t column, const W (&sums)[4][4]) const
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int64_t at = (row + r) * ld + column + q;
                if (row + r < m && column + q < n) write(c, at, finish(at, column + q, sums[r][q]));
            }
    }
    __device__ void put_one(int64_t batch, int64_t row, int64_t column, W sum) const
    {
        product_epilogue to = *this;
        to.select(batch);
        int64_t at = row * ld + column;
        to.write(to.c, at, to.finish(at, column, sum));
    }
};

template <typename T> static inline product_epilogue<T> product_epilogue_of(const lk__cuda_product *p)
{
    typedef WIDE(T) W;
    product_epilogue<T> to = {};
    to.c = p->c;
    to.saved = p->saved;
    to.addend = p->addend;
    to.ld = p->c_ld;
    to.batch_step = p->c_batch;
    to.m = p->m;
    to.n = p->n;
    to.bias = (const T *)p->bias;
    to.alpha = (W)p->alpha;
    to.beta = (W)p->beta;
    to.activation = (int)p->activation;
    to.wide = sizeof(T) != sizeof(W) && p->type_c != p->type;
    to.gradient = p->gradient;
    return to;
}

#endif
