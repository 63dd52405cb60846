/* elementwise.cu - arithmetic with broadcasting, selection, scaling, fills and swiglu. Bound by bytes. */
#include "device/cuda/map.h"
#include "device/cuda/unary.h"

/* ---- add, sub, mul, div ---- */

struct plus_of {
    template <typename R> static __device__ __forceinline__ R of(R a, R b) { return a + b; }
};
struct minus_of {
    template <typename R> static __device__ __forceinline__ R of(R a, R b) { return a - b; }
};
struct times_of {
    template <typename R> static __device__ __forceinline__ R of(R a, R b) { return a * b; }
};
struct quotient_of {
    template <typename R> static __device__ __forceinline__ R of(R a, R b) { return a / b; }
};

template <typename T, typename F> struct binary_map {
    enum { PACKED = PACK(T) };
    broadcast walk;
    const T  *a, *b;
    T        *y;
    template <int N> struct values {
        lk__pack<T, N> a, b;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t offset[2];
        int     last = walk.rank - 1;
        broadcast_offsets(walk, at, offset);
        v.a = load_stepped<N>(a + offset[0], walk.step[0][last]);
        v.b = load_stepped<N>(b + offset[1], walk.step[1][last]);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) store(&v.a.at[i], F::of(load(&v.a.at[i]), load(&v.b.at[i])));
        store_pack<N>(y + at, v.a);
    }
};

/* Whether a broadcast operand can be read in packs: those that repeat along the row are read one by one. */
template <typename T> static bool operand_packs(const broadcast *walk, int k, const T *x)
{
    return !walk->step[k][walk->rank - 1] || is_aligned(x, 16);
}

template <typename T, typename F> static void launch_binary(const lk__kernel_call *call)
{
    binary_map<T, F> f = {broadcast_inputs(call, 2), in_data<T>(call, 0), in_data<T>(call, 1), out_data<T>(call, 0)};
    bool             packed = broadcast_packs(&f.walk, PACK(T)) && operand_packs(&f.walk, 0, f.a) &&
                  operand_packs(&f.walk, 1, f.b) && is_aligned(f.y, 16);
    launch_map(call, f, f.walk.n, packed);
}

#define BINARY(name, F)                                               \
    extern "C" lk_status lk__cuda_##name(const lk__kernel_call *call) \
    {                                                                 \
        BY_ELEMENT(call->out[0].dtype, T, launch_binary<T, F>(call);) \
        return lk__cuda_launched(call);                               \
    }
BINARY(add, plus_of)
BINARY(sub, minus_of)
BINARY(mul, times_of)
BINARY(div, quotient_of)
#undef BINARY

/* ---- where ---- */

/* NaN is not 0, -0 is. */
static __device__ __forceinline__ bool is_set(const void *condition, lk_dtype type, int64_t at)
{
    switch (type) {
    case LK_F32: return ((const float *)condition)[at] != 0;
    case LK_F64: return ((const double *)condition)[at] != 0;
    case LK_I32: return ((const int32_t *)condition)[at] != 0;
    case LK_I64: return ((const int64_t *)condition)[at] != 0;
    case LK_BF16:
    case LK_F16: return (((const uint16_t *)condition)[at] & 0x7fff) != 0;
    default: return ((const uint8_t *)condition)[at] != 0;
    }
}

template <typename T> struct where_map {
    enum { PACKED = PACK(T) };
    broadcast   walk;
    const void *condition;
    lk_dtype    type;
    const T    *a, *b;
    T          *y;
    template <int N> struct values {
        lk__pack<T, N>    a, b;
        lk__pack<bool, N> first;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t offset[3];
        int     last = walk.rank - 1;
        broadcast_offsets(walk, at, offset);
        v.a = load_stepped<N>(a + offset[1], walk.step[1][last]);
        v.b = load_stepped<N>(b + offset[2], walk.step[2][last]);
#pragma unroll
        for (int i = 0; i < N; i++) v.first.at[i] = is_set(condition, type, offset[0] + i * walk.step[0][last]);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!v.first.at[i]) v.a.at[i] = v.b.at[i];
        store_pack<N>(y + at, v.a);
    }
};

template <typename T> static void launch_where(const lk__kernel_call *call)
{
    where_map<T> f = {broadcast_inputs(call, 3), in_data<void>(call, 0), call->in[0].dtype,
                      in_data<T>(call, 1),       in_data<T>(call, 2),    out_data<T>(call, 0)};
    bool         packed = broadcast_packs(&f.walk, PACK(T)) && operand_packs(&f.walk, 1, f.a) &&
                  operand_packs(&f.walk, 2, f.b) && is_aligned(f.y, 16);
    launch_map(call, f, f.walk.n, packed);
}

extern "C" lk_status lk__cuda_where(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, launch_where<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- scale, scale_by, fill ---- */

template <typename T> struct scale_map {
    enum { PACKED = PACK(T) };
    const T *x;
    T       *y;
    WIDE(T) scale;
    const double *factor; /* instead of scale; NULL: none */
    template <int N> struct values {
        lk__pack<T, N> x;
        WIDE(T) by;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.x = load_pack<N>(x + at);
        v.by = factor ? (WIDE(T)) * factor : scale;
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) store(&v.x.at[i], load(&v.x.at[i]) * v.by);
        store_pack<N>(y + at, v.x);
    }
};

template <typename T> static void launch_scale(const lk__kernel_call *call, double scale, const double *factor)
{
    scale_map<T> f = {in_data<T>(call, 0), out_data<T>(call, 0), (WIDE(T))scale, factor};
    launch_map(call, f, lk__operand_elements(&call->out[0]), is_aligned(f.x, 16) && is_aligned(f.y, 16));
}

extern "C" lk_status lk__cuda_scale(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_scale<T>(call, call->attrs->scale, NULL);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_scale_by(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_scale<T>(call, 1, in_data<double>(call, 1));)
    return lk__cuda_launched(call);
}

template <typename T> struct fill_map {
    enum { PACKED = PACK(T) };
    T *y;
    WIDE(T) value;
    template <int N> struct values {
    };
    template <int N> __device__ __forceinline__ void read(int64_t, values<N> &) const {}
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &) const
    {
        lk__pack<T, N> x;
#pragma unroll
        for (int i = 0; i < N; i++) store(&x.at[i], value);
        store_pack<N>(y + at, x);
    }
};

template <typename T> static void launch_fill(const lk__kernel_call *call)
{
    fill_map<T> f = {out_data<T>(call, 0), (WIDE(T))call->attrs->scale};
    launch_map(call, f, lk__operand_elements(&call->out[0]), is_aligned(f.y, 16));
}

extern "C" lk_status lk__cuda_fill(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_fill<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- swiglu: silu(gate) · up (Shazeer 2020) ---- */

template <typename T> struct swiglu_map {
    enum { PACKED = PACK(T) };
    const T *gate, *up;
    T       *y;
    template <int N> struct values {
        lk__pack<T, N> gate, up;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.gate = load_pack<N>(gate + at);
        v.up = load_pack<N>(up + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            WIDE(T) x = load(&v.gate.at[i]);
            store(&v.gate.at[i], x * sigmoid_of<QUICK_FOR(T)>(x) * load(&v.up.at[i]));
        }
        store_pack<N>(y + at, v.gate);
    }
};

template <typename T> struct swiglu_grad_map {
    enum { PACKED = PACK(T) };
    const T *dy, *gate, *up;
    T       *dgate, *dup; /* NULL: not wanted */
    template <int N> struct values {
        lk__pack<T, N> dy, gate, up;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.dy = load_pack<N>(dy + at);
        v.gate = load_pack<N>(gate + at);
        v.up = load_pack<N>(up + at);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            WIDE(T)
            x = load(&v.gate.at[i]),
            s = sigmoid_of<QUICK_FOR(T)>(x), d = load(&v.dy.at[i]), u = load(&v.up.at[i]);
            store(&v.gate.at[i], d * u * s * ((WIDE(T))1 + x * ((WIDE(T))1 - s)));
            store(&v.up.at[i], d * x * s);
        }
        if (dgate) store_pack<N>(dgate + at, v.gate);
        if (dup) store_pack<N>(dup + at, v.up);
    }
};

template <typename T> static void launch_swiglu(const lk__kernel_call *call)
{
    swiglu_map<T> f = {in_data<T>(call, 0), in_data<T>(call, 1), out_data<T>(call, 0)};
    bool          packed = is_aligned(f.gate, 16) && is_aligned(f.up, 16) && is_aligned(f.y, 16);
    launch_map(call, f, lk__operand_elements(&call->in[0]), packed);
}

template <typename T> static void launch_swiglu_grad(const lk__kernel_call *call)
{
    swiglu_grad_map<T> f = {in_data<T>(call, 0), in_data<T>(call, 1), in_data<T>(call, 2), out_data<T>(call, 0),
                            out_data<T>(call, 1)};
    bool packed = is_aligned(f.dy, 16) && is_aligned(f.gate, 16) && is_aligned(f.up, 16) && is_aligned(f.dgate, 16) &&
                  is_aligned(f.dup, 16);
    launch_map(call, f, lk__operand_elements(&call->in[0]), packed);
}

extern "C" lk_status lk__cuda_swiglu(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_swiglu<T>(call);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_swiglu_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[0].dtype, T, launch_swiglu_grad<T>(call);)
    return lk__cuda_launched(call);
}
