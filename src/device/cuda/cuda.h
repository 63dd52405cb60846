/* device/cuda/cuda.h - included by every file of the CUDA module: types of elements, launching, reductions in a fixed
 * order, and how a kernel is registered.
 *
 * An operation NAME has a function lk__cuda_NAME(call), which queues its work on the call's stream and returns; where
 * it needs scratch memory, lk__cuda_NAME_workspace(call), in bytes and from shapes alone, so that plans are made
 * without a GPU; and where something is to be done before the first run, lk__cuda_NAME_prepare(call). table.cu finds
 * them by these names.
 *
 * The same bits from run to run and on every GPU: no floating-point atomics, and how a sum is divided depends on shapes
 * alone, never on the number of multiprocessors. */
#ifndef LK__CUDA_H
#define LK__CUDA_H

extern "C" {
#include "base/dtype_list.h"
#include "device/cuda/module.h"
}

#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* ---- the device ---- */

struct lk__device_stream {
    cudaStream_t       stream;
    lk__device_stream *next; /* of the device */
};
struct lk__device_event {
    cudaEvent_t event;
};

struct lk__cuda_blas;   /* blas.cu: cuBLASLt */
struct lk__cuda_dnn;    /* dnn.cu: cuDNN */
struct lk__cuda_spans;  /* cupti.cu: what ran */
struct lk__cuda_tuning; /* autotuning.cu */

typedef struct lk__cuda_device {
    lk__device         base;
    int                number;     /* of the GPU; -1: there is none, and only plans are made */
    int                capability; /* 90 for 9.0; without a GPU, the plans' default, 90 */
    int                processors; /* multiprocessors */
    bool               tf32;       /* products and convolutions of f32 may round their operands */
    lk__device_stream *streams;    /* all of them */
    cudaStream_t       alone;      /* of calls without a stream */
    lk__cuda_blas     *blas;       /* NULL: not loaded; made on first use */
    lk__cuda_dnn      *dnn;
    lk__cuda_spans    *spans;                 /* NULL: none were asked for */
    lk_device_speed    speed[LK_DTYPE_COUNT]; /* by element type; flops 0: not measured */
    lk__cuda_tuning   *tuning;                /* made on first use */
    int32_t           *word;                  /* lk__cuda_word */
    char               why[256];              /* without a GPU: the reason */
} lk__cuda_device;

extern lk__cuda_library lk__cuda_host; /* what the library passed */

/* LK_OK, or a failure with a sentence that says what was being done. */
lk_status lk__cuda_check(lk__device *device, cudaError_t error, const char *what);
/* After the launches of a kernel function: `return lk__cuda_launched(call);` */
lk_status lk__cuda_launched(const lk__kernel_call *call);

static inline lk__cuda_device *cuda_device(const lk__kernel_call *call) { return (lk__cuda_device *)call->device; }
/* The stream of a call; without one the device's own, once all others have ended. lk__cuda_end: waits then. */
cudaStream_t lk__cuda_stream_of(lk__device *device, lk__device_stream *stream);
lk_status    lk__cuda_end(lk__device *device, lk__device_stream *stream, cudaError_t error, const char *what);
static inline cudaStream_t cuda_stream(const lk__kernel_call *call)
{
    return lk__cuda_stream_of(call->device, call->stream);
}

/* ---- launching ----
 *
 * LAUNCH(kernel, grid, block, shared_bytes, stream, arguments…); a kernel with several template arguments in
 * parentheses. In the tests' emulation (test/cuda_emulated), blocks and threads run one after the other on the CPU. */
#if defined(LK_CUDA_EMULATED)
#define LAUNCH(kernel, grid, block, shared, stream, ...)                    \
    lk__emulated_launch(#kernel, (grid), (block), (shared), (stream),       \
                        [=](auto... lk__passed) { kernel(lk__passed...); }, \
                        ##__VA_ARGS__)
/* The dynamic shared memory of a block, as an array of T. */
#define DYNAMIC_SHARED(T, name) T *name = (T *)lk__emulated_shared()
#else
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(T, name)                                  \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    T                                            *name = (T *)name##_bytes
#endif
#include "device/cuda/overlap.h"

static inline int64_t  cuda_tiles(int64_t n, int64_t each) { return (n + each - 1) / each; }
static const int64_t   CUDA_MOST_BLOCKS = 1 << 20; /* of grids whose blocks loop over what is left: EACH_INDEX */
static inline unsigned cuda_blocks(int64_t n, int64_t each)
{
    int64_t blocks = cuda_tiles(n, each);
    return (unsigned)(blocks < 1 ? 1 : blocks > CUDA_MOST_BLOCKS ? CUDA_MOST_BLOCKS : blocks);
}
/* for i in 0 … n-1, divided over all threads of the grid */
#define EACH_INDEX(i, n)                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (int64_t)(n); \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- elements: stored as T, computed as WIDE(T) ---- */

typedef __nv_bfloat16 bf16;
template <typename T> struct lk__wide {
    typedef T type;
};
template <> struct lk__wide<bf16> {
    typedef float type;
};
#define WIDE(T) typename lk__wide<T>::type

static __device__ __forceinline__ float  load(const float *p) { return *p; }
static __device__ __forceinline__ double load(const double *p) { return *p; }
static __device__ __forceinline__ float  load(const bf16 *p) { return __bfloat162float(*p); }
static __device__ __forceinline__ void   store(float *p, float x) { *p = x; }
static __device__ __forceinline__ void   store(double *p, double x) { *p = x; }
static __device__ __forceinline__ void   store(bf16 *p, float x) { *p = __float2bfloat16_rn(x); }

/* N neighbouring elements that are read and written at once: 16 bytes where N is PACK(T). Addresses are multiples of
 * the size. */
template <typename T, int N> struct alignas(N * sizeof(T)) lk__pack {
    T at[N];
};
#define PACK(T) (16 / (int)sizeof(T))
template <int N, typename T> static __device__ __forceinline__ lk__pack<T, N> load_pack(const T *p)
{
    return *(const lk__pack<T, N> *)p;
}
template <int N, typename T> static __device__ __forceinline__ void store_pack(T *p, const lk__pack<T, N> &x)
{
    *(lk__pack<T, N> *)p = x;
}

/* Runs the statements with T as the C++ type of an element type. */
#define BY_ELEMENT(dtype, T, ...)                       \
    switch (dtype) {                                    \
    case LK_F32: {                                      \
        typedef float T;                                \
        __VA_ARGS__                                     \
    } break;                                            \
    case LK_F64: {                                      \
        typedef double T;                               \
        __VA_ARGS__                                     \
    } break;                                            \
    case LK_BF16: {                                     \
        typedef bf16 T;                                 \
        __VA_ARGS__                                     \
    } break;                                            \
    default: return lk__cuda_no_kernel(call);           \
    }
/* The same for f32 and f64 only: operations that are computed in f32 at least. */
#define BY_WIDE_ELEMENT(dtype, T, ...)                  \
    switch (dtype) {                                    \
    case LK_F32: {                                      \
        typedef float T;                                \
        __VA_ARGS__                                     \
    } break;                                            \
    case LK_F64: {                                      \
        typedef double T;                               \
        __VA_ARGS__                                     \
    } break;                                            \
    default: return lk__cuda_no_kernel(call);           \
    }
lk_status lk__cuda_no_kernel(const lk__kernel_call *call); /* LK_EUNSUPPORTED */

static inline size_t cuda_size(lk_dtype type) /* bytes of an element */
{
    switch (type) {
#define SIZE_CASE(id, name, bytes, ...) \
    case LK_##id: return bytes;
        LK__DTYPE_LIST(SIZE_CASE)
#undef SIZE_CASE
    default: return 0;
    }
}

/* ---- operands ---- */

template <typename T> static inline const T *in_data(const lk__kernel_call *call, int i)
{
    return i < call->inputs ? (const T *)call->in[i].data : NULL;
}
template <typename T> static inline T *out_data(const lk__kernel_call *call, int i)
{
    return i < call->outputs ? (T *)call->out[i].data : NULL;
}
static inline int64_t cuda_product(const lk__kernel_operand *x, int begin, int end) /* of dims begin … end-1 */
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= x->dims[i];
    return n;
}

/* ---- reductions over a warp and a block, in a fixed order ---- */

template <typename T> static __device__ __forceinline__ T warp_sum(T x)
{
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
template <typename T> static __device__ __forceinline__ T warp_max(T x) /* NaN wins */
{
    for (int offset = 16; offset > 0; offset /= 2) {
        T y = __shfl_xor_sync(0xffffffffu, x, offset);
        x = x > y || x != x ? x : y;
    }
    return x;
}
/* Of all threads of a block, whose number is a multiple of 32; every thread gets the result. `shared`: 32 T, free again
 * after the next __syncthreads. */
template <typename T> static __device__ __forceinline__ T block_sum(T x, T *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : (T)0);
}
template <typename T> static __device__ __forceinline__ T block_max(T x, T *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? shared[lane] : shared[0]);
}

/* ---- ids out of range ----
 *
 * A kernel that finds one calls this from the thread that found it; of several in one kernel the first in memory is
 * kept, and the first kernel's. `ids` … `ids + n` is the kernel's operand; report may be NULL. */
static __device__ inline void report_invalid(lk__kernel_invalid_id *report, lk__op op, const int32_t *ids, int64_t n,
                                             int64_t position, int64_t limit)
{
    if (!report) return;
    while (atomicCAS(&report->busy, 0, 1) != 0) {}
    __threadfence();
    volatile lk__kernel_invalid_id *r = report;
    const int32_t                  *at = (const int32_t *)r->at;
    bool                            earlier = r->op == op && at >= ids && at < ids + n && at > ids + position;
    if (!r->found || earlier) {
        r->op = op;
        r->at = ids + position;
        r->value = ids[position];
        r->limit = limit;
        r->found = true;
    }
    __threadfence();
    atomicExch(&report->busy, 0);
}

#endif
