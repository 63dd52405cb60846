/* cast.cu - conversion between types, as in device/cpu/cast.c: a number that is wider than f32 is rounded to f32 before
 * it is rounded to bf16. Bound by bytes. */
#include "device/cuda/map.h"

static __device__ __forceinline__ void convert(float *y, float x) { *y = x; }
static __device__ __forceinline__ void convert(double *y, double x) { *y = x; }
static __device__ __forceinline__ void convert(double *y, float x) { *y = (double)x; }
static __device__ __forceinline__ void convert(float *y, double x) { *y = (float)x; }
static __device__ __forceinline__ void convert(bf16 *y, float x) { *y = __float2bfloat16_rn(x); }
static __device__ __forceinline__ void convert(bf16 *y, double x) { *y = __float2bfloat16_rn((float)x); }

/* A number of the type that is read, as float or double; i64 is rounded once, in the conversion to the type that is
 * written. */
template <typename Y> static __device__ __forceinline__ float  number(float x, Y *) { return x; }
template <typename Y> static __device__ __forceinline__ double number(double x, Y *) { return x; }
template <typename Y> static __device__ __forceinline__ float  number(bf16 x, Y *) { return __bfloat162float(x); }
template <typename Y> static __device__ __forceinline__ float  number(uint8_t x, Y *) { return (float)x; }
static __device__ __forceinline__ double                       number(int32_t x, double *) { return (double)x; }
static __device__ __forceinline__ double                       number(int64_t x, double *) { return (double)x; }
template <typename Y> static __device__ __forceinline__ float  number(int32_t x, Y *) { return (float)x; }
template <typename Y> static __device__ __forceinline__ float  number(int64_t x, Y *) { return (float)x; }

template <typename X, typename Y> struct cast_map {
    enum { WIDEST = sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y), PACKED = 16 / (int)WIDEST };
    const X *x;
    Y       *y;
    template <int N> struct values {
        lk__pack<X, N> x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.x = load_pack<N>(x + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        lk__pack<Y, N> to;
#pragma unroll
        for (int i = 0; i < N; i++) convert(&to.at[i], number(v.x.at[i], (Y *)NULL));
        store_pack<N>(y + at, to);
    }
};

/* Of the same type: a NaN keeps its bits. */
template <typename X> struct cast_map<X, X> {
    enum { PACKED = PACK(X) };
    const X *x;
    X       *y;
    template <int N> struct values {
        lk__pack<X, N> x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.x = load_pack<N>(x + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        store_pack<N>(y + at, v.x);
    }
};

template <typename X, typename Y> static void launch_cast(const lk__kernel_call *call)
{
    cast_map<X, Y> f = {in_data<X>(call, 0), out_data<Y>(call, 0)};
    launch_map(call, f, lk__operand_elements(&call->out[0]), is_aligned(f.x, 16) && is_aligned(f.y, 16));
}

template <typename Y> static lk_status cast_to(const lk__kernel_call *call)
{
    switch (call->in[0].dtype) {
    case LK_BF16: launch_cast<bf16, Y>(call); break;
    case LK_F32: launch_cast<float, Y>(call); break;
    case LK_F64: launch_cast<double, Y>(call); break;
    case LK_I32: launch_cast<int32_t, Y>(call); break;
    case LK_I64: launch_cast<int64_t, Y>(call); break;
    case LK_U8: launch_cast<uint8_t, Y>(call); break;
    default: return lk__cuda_no_kernel(call);
    }
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_cast(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, Y, return cast_to<Y>(call);)
    return LK_OK;
}
