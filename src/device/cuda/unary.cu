/* unary.cu - functions of one element and their gradients. Bound by bytes, except pow, which is computed in double. */
#include "device/cuda/map.h"
#include "device/cuda/unary.h"

template <typename T, int FUNCTION> struct unary_map {
    enum { PACKED = PACK(T) };
    const T        *x;
    T              *y;
    unary_constants constants;
    template <int N> struct values {
        lk__pack<T, N> x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.x = load_pack<N>(x + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) store(&v.x.at[i], unary_of<FUNCTION, QUICK_FOR(T)>(load(&v.x.at[i]), constants));
        store_pack<N>(y + at, v.x);
    }
};

template <typename T, int FUNCTION> struct unary_grad_map {
    enum { PACKED = PACK(T) };
    const T        *dy, *saved;
    T              *dx;
    unary_constants constants;
    template <int N> struct values {
        lk__pack<T, N> dy, saved;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.dy = load_pack<N>(dy + at);
        v.saved = load_pack<N>(saved + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            store(&v.dy.at[i],
                  unary_grad_of<FUNCTION, QUICK_FOR(T)>(load(&v.dy.at[i]), load(&v.saved.at[i]), constants));
        store_pack<N>(dx + at, v.dy);
    }
};

template <typename T> static void launch_unary(const lk__kernel_call *call)
{
    const T *x = in_data<T>(call, 0);
    T       *y = out_data<T>(call, 0);
    int64_t  n = lk__operand_elements(&call->out[0]);
    bool     packed = is_aligned(x, 16) && is_aligned(y, 16);
    switch (call->attrs->unary) {
#define CASE(constant, name, saves, fused, recorded) \
    case constant: launch_map(call, unary_map<T, constant>{x, y, unary_attributes(call->attrs)}, n, packed); break;
        LK__UNARY_LIST(CASE)
#undef CASE
    }
}

template <typename T> static void launch_unary_grad(const lk__kernel_call *call)
{
    const T *dy = in_data<T>(call, 0), *saved = in_data<T>(call, 1);
    T       *dx = out_data<T>(call, 0);
    int64_t  n = lk__operand_elements(&call->out[0]);
    bool     packed = is_aligned(dy, 16) && is_aligned(saved, 16) && is_aligned(dx, 16);
    switch (call->attrs->unary) {
#define CASE(constant, name, saves, fused, recorded)                                                            \
    case constant:                                                                                              \
        launch_map(call, unary_grad_map<T, constant>{dy, saved, dx, unary_attributes(call->attrs)}, n, packed); \
        break;
        LK__UNARY_LIST(CASE)
#undef CASE
    }
}

extern "C" lk_status lk__cuda_unary(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_unary<T>(call);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_unary_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_unary_grad<T>(call);)
    return lk__cuda_launched(call);
}
