/* memory.cu - sums over arrays in the order of the pairwise tree, with the bits of lk__reduce (base/reduce.c), and the
 * check whether numbers are finite. Bound by bytes. */
#include "device/cuda/backend.h"
#include "device/cuda/map.h"
#include "device/cuda/partial.h"

/* ---- add: unsigned integers, which wrap, for integers ---- */

typedef struct addends {
    const void *in[LK__DEVICE_ADDENDS];
} addends;

/* Leaf after leaf, as a binary counter: level l holds the sum of a whole subtree of 2^l leaves where bit l of the
 * number of leaves so far is set. At the end the subtrees are added from the smallest, which is the tree of
 * base/tree.h: its left subtree is the largest power of two. LEVELS: so many bits has the number of leaves. */
template <int N, int LEVELS, typename T> struct add_map {
    enum { PACKED = N };
    typedef partial_of<T>          partial;
    typedef typename partial::type sum;
    addends                        a;
    int                            n;
    T                             *out;
    template <int M> struct values {
        lk__pack<sum, M> x;
    };
    template <int M> __device__ __forceinline__ void read(int64_t at, values<M> &v) const
    {
        lk__pack<sum, M> level[LEVELS];
        v.x = {};
        for (int leaf = 0; leaf < n; leaf++) {
            lk__pack<T, M> raw = load_pack<M>((const T *)a.in[leaf] + at);
#pragma unroll
            for (int i = 0; i < M; i++) v.x.at[i] = partial::load(raw.at[i]);
            bool carries = true;
#pragma unroll
            for (int l = 0; l < LEVELS; l++) {
                if (!carries) continue;
                carries = leaf >> l & 1;
#pragma unroll
                for (int i = 0; i < M; i++) {
                    if (carries)
                        v.x.at[i] = level[l].at[i] + v.x.at[i];
                    else
                        level[l].at[i] = v.x.at[i];
                }
            }
        }
        bool first = true;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (!(n >> l & 1)) continue;
#pragma unroll
            for (int i = 0; i < M; i++) v.x.at[i] = first ? level[l].at[i] : level[l].at[i] + v.x.at[i];
            first = false;
        }
    }
    template <int M> __device__ __forceinline__ void write(int64_t at, values<M> &v) const
    {
        lk__pack<T, M> rounded;
#pragma unroll
        for (int i = 0; i < M; i++) rounded.at[i] = partial::store(v.x.at[i]);
        store_pack<M>(out + at, rounded);
    }
};

/* As launch_map, without a call. */
template <typename F> static void launch_add_map(cudaStream_t stream, const F &f, int64_t n)
{
    enum { N = F::PACKED };
    unsigned blocks = (unsigned)cuda_tiles(n / N + 1, MAP_THREADS);
    LAUNCH((map_kernel<N, 1, F>), blocks, MAP_THREADS, 0, stream, f, n);
}

template <typename T>
static void launch_add(cudaStream_t stream, void *out, const void *const *in, int n, int64_t count)
{
    enum { N = sizeof(T) == 1 ? 4 : 16 / (int)sizeof(T) };
    addends a = {};
    bool    packed = is_aligned(out, 16);
    for (int i = 0; i < n; i++) {
        a.in[i] = in[i];
        packed = packed && is_aligned(in[i], 16);
    }
    if (packed && n < 8)
        launch_add_map(stream, add_map<N, 3, T>{a, n, (T *)out}, count);
    else if (packed)
        launch_add_map(stream, add_map<N, 7, T>{a, n, (T *)out}, count);
    else
        launch_add_map(stream, add_map<1, 7, T>{a, n, (T *)out}, count);
}

lk_status lk__cuda_add(lk__device *device, lk__device_stream *stream, void *out, const void *const *in, int n,
                       size_t count, lk_dtype type)
{
    cudaStream_t on = lk__cuda_stream_of(device, stream);
    if (count == 0) return LK_OK;
    if (n == 1) {
        if (out == in[0]) return LK_OK;
        cudaError_t error = cudaMemcpyAsync(out, in[0], count * cuda_size(type), cudaMemcpyDeviceToDevice, on);
        return lk__cuda_end(device, stream, error, "copying an array");
    }
    switch (type) {
    case LK_F32: launch_add<float>(on, out, in, n, (int64_t)count); break;
    case LK_F64: launch_add<double>(on, out, in, n, (int64_t)count); break;
    case LK_BF16: launch_add<bf16>(on, out, in, n, (int64_t)count); break;
    case LK_F16: launch_add<half_bits>(on, out, in, n, (int64_t)count); break;
    case LK_I32: launch_add<uint32_t>(on, out, in, n, (int64_t)count); break;
    case LK_I64: launch_add<uint64_t>(on, out, in, n, (int64_t)count); break;
    default: launch_add<uint8_t>(on, out, in, n, (int64_t)count); break; /* i8, u8 */
    }
    return lk__cuda_end(device, stream, cudaGetLastError(), "adding arrays");
}

/* ---- finite ---- */

/* Infinities and NaN have all bits of the exponent set. */
template <typename U>
static __global__ void __launch_bounds__(MAP_THREADS)
    not_finite_kernel(const U *x, int64_t n, U exponent, int32_t *found)
{
    bool bad = false;
    EACH_INDEX(i, n) bad |= (x[i] & exponent) == exponent;
    if (bad) *found = 1; /* all that write, write the same */
}

template <typename U>
static void launch_not_finite(cudaStream_t stream, const void *x, int64_t n, U exponent, int32_t *found)
{
    unsigned blocks = cuda_blocks(n, 16 * MAP_THREADS);
    LAUNCH(not_finite_kernel<U>, blocks, MAP_THREADS, 0, stream, (const U *)x, n, exponent, found);
}

lk_status lk__cuda_finite(lk__device *device, const void *memory, int64_t elements, lk_dtype type, bool *finite)
{
    int32_t *word = NULL, found = 0;
    *finite = true;
    if (elements > 0) word = lk__cuda_word(device);
    if (!word) return elements > 0 ? LK_ENOMEM : LK_OK;
    cudaStream_t stream = lk__cuda_stream_of(device, NULL);
    switch (type) {
    case LK_F32: launch_not_finite<uint32_t>(stream, memory, elements, 0x7f800000u, word); break;
    case LK_F64: launch_not_finite<uint64_t>(stream, memory, elements, (uint64_t)0x7ff << 52, word); break;
    case LK_BF16: launch_not_finite<uint16_t>(stream, memory, elements, (uint16_t)0x7f80, word); break;
    case LK_F16:
        return lk__cuda_host.fail(device->context, LK_EUNSUPPORTED, "checking f16 for finite values is not supported");
    default: return LK_OK; /* integers */
    }
    cudaError_t error = cudaMemcpyAsync(&found, word, sizeof found, cudaMemcpyDeviceToHost, stream);
    lk_status   status = lk__cuda_end(device, NULL, error, "checking whether numbers are finite");
    *finite = !found;
    return status;
}
