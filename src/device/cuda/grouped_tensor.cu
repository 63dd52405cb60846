/* grouped_tensor.cu - one product of bf16 for each expert, and the gradient of the weights, by the tensor cores of
 * sm_90a (wgmma.h). A block for each multiprocessor takes tile after tile: one thread copies the operands of the next
 * tiles into a ring of stages while two groups of four warps multiply. How a sum is divided depends on shapes alone. */
#include "device/cuda/grouped.h"

#if defined(LK_CUDA_SM_90A)

#include "device/cuda/wgmma.h"

enum {
    TILE_M = 128,
    TILE_N = 256,
    STAGES = 4,
    BYTES_A = TILE_M * WGMMA_LINE,
    BYTES_STAGE = BYTES_A + TILE_N * WGMMA_LINE,
    BYTES_SHARED = STAGES * BYTES_STAGE + 1024, /* aligned to 1024 */
    TILE_THREADS = 384,                         /* 128 copy, of which one works; 256 multiply */
    BAND = 8,                                   /* tiles of rows whose operands are in the cache together */
};

/* x w', with w (out, in) or (in, out); dy' x. */
enum grouped_kind { BY_OUTPUTS, BY_INPUTS, OF_WEIGHT };

/* As grouped_job. */
struct tensor_job {
    const int32_t *offsets;
    int            experts, rows, m, n, k;
};

struct grouped_tile {
    int expert;
    int first, rows; /* of the result: the first of an expert's, or of its gradient's, and how many */
    int i, j;        /* in them */
    int begin, end;  /* of k */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Tile t; false: there is none. What is past the last expert's rows are tiles without k. */
template <grouped_kind KIND> static __device__ bool find_tile(const tensor_job &job, int t, grouped_tile *tile)
{
    int wide = (job.n + TILE_N - 1) / TILE_N, high = 0, begin = 0, end = 0, e = 0;
    for (;; e++, begin = end) {
        if (e > job.experts || (e == job.experts && KIND == OF_WEIGHT)) return false;
        end = e < job.experts ? (int)end_of_expert(job.offsets, e, begin, job.rows) : job.rows;
        high = ((KIND == OF_WEIGHT ? job.m : end - begin) + TILE_M - 1) / TILE_M;
        if (t < high * wide) break;
        t -= high * wide;
    }
    int band = t / (BAND * wide), in_band = t - band * BAND * wide, rows = min((int)BAND, high - band * BAND);
    tile->expert = e;
    tile->first = KIND == OF_WEIGHT ? e * job.m : begin;
    tile->rows = KIND == OF_WEIGHT ? job.m : end - begin;
    tile->i = (band * BAND + in_band % rows) * TILE_M;
    tile->j = in_band / rows * TILE_N;
    tile->begin = KIND == OF_WEIGHT ? begin : 0;
    tile->end = KIND == OF_WEIGHT ? end : e < job.experts ? job.k : 0;
    return true;
}

template <grouped_kind KIND>
static __device__ void copy_stage(const CUtensorMap *a, const CUtensorMap *b, const grouped_tile &tile, int k,
                                  uint32_t to, uint32_t barrier)
{
    uint32_t to_b = to + BYTES_A;
    barrier_expect(barrier, BYTES_STAGE);
    if (KIND == OF_WEIGHT) {
        for (int x = 0; x < TILE_M / 64; x++) copy_tile(to + x * WGMMA_BLOCK, a, barrier, tile.i + x * 64, k);
        for (int x = 0; x < TILE_N / 64; x++) copy_tile(to_b + x * WGMMA_BLOCK, b, barrier, tile.j + x * 64, k);
        return;
    }
    copy_tile(to, a, barrier, k, tile.first + tile.i);
    if (KIND == BY_OUTPUTS)
        copy_tile(to_b, b, barrier, k, tile.j, tile.expert);
    else
        for (int x = 0; x < TILE_N / 64; x++)
            copy_tile(to_b + x * WGMMA_BLOCK, b, barrier, tile.j + x * 64, k, tile.expert);
}

/* Lines of k from `first` on, of all blocks of a stage: rows of the next expert. By the threads that multiply. */
static __device__ void clear_lines(uint32_t stage, int first, int thread)
{
    int packs = (64 - first) * 8;
    for (int x = thread; x < packs * (BYTES_STAGE / WGMMA_BLOCK); x += 256) {
        uint32_t at = stage + x / packs * WGMMA_BLOCK + (first + x % packs / 8) * WGMMA_LINE + x % 8 * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    products_see_stores();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* v[x] of lane q of four becomes v[q] of lane x. */
static __device__ __forceinline__ void transpose_four(uint32_t (&v)[4], int q)
{
    bool     odd = q & 1, upper = q & 2;
    uint32_t s = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1);
    uint32_t t = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
    v[0] = odd ? s : v[0], v[1] = odd ? v[1] : s, v[2] = odd ? t : v[2], v[3] = odd ? v[3] : t;
    s = __shfl_xor_sync(0xffffffffu, upper ? v[0] : v[2], 2);
    t = __shfl_xor_sync(0xffffffffu, upper ? v[1] : v[3], 2);
    v[0] = upper ? s : v[0], v[1] = upper ? t : v[1], v[2] = upper ? v[2] : s, v[3] = upper ? v[3] : t;
}

/* `row` is this thread's first, `to` the beginning of the expert's rows; n is a multiple of 8. */
static __device__ __forceinline__ void store_sums(bf16 *to, const grouped_tile &tile, int row, int n,
                                                  const float (&sum)[TILE_N / 2])
{
    int q = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8)
#pragma unroll
        for (int x = 0; x < TILE_N / 8; x += 4) {
            uint32_t v[4];
            int      column = tile.j + (x + q) * 8;
#pragma unroll
            for (int y = 0; y < 4; y++) {
                lk__pack<bf16, 2> pair;
                store(&pair.at[0], sum[(x + y) * 4 + half * 2]);
                store(&pair.at[1], sum[(x + y) * 4 + half * 2 + 1]);
                memcpy(&v[y], &pair, sizeof pair);
            }
            transpose_four(v, q);
            if (row < tile.rows && column < n)
                *(uint4 *)(to + (int64_t)row * n + column) = make_uint4(v[0], v[1], v[2], v[3]);
        }
}
static __device__ __forceinline__ void store_sums(float *to, const grouped_tile &tile, int row, int n,
                                                  const float (&sum)[TILE_N / 2])
{
    int column = tile.j + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8)
#pragma unroll
        for (int x = 0; x < TILE_N / 8; x++)
            if (row < tile.rows && column + x * 8 < n)
                *(float2 *)(to + (int64_t)row * n + column + x * 8) =
                    make_float2(sum[x * 4 + half * 2], sum[x * 4 + half * 2 + 1]);
}

/* The ring of stages: a stage is full once it was copied, and empty once both groups have multiplied it. */
struct ring {
    uint32_t memory, full, empty; /* addresses */
    uint32_t stage, parity;

    __device__ uint32_t at() const { return memory + stage * BYTES_STAGE; }
    __device__ void     next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

template <grouped_kind KIND>
static __device__ void copy_tiles(const CUtensorMap *a, const CUtensorMap *b, const tensor_job &job, ring r)
{
    grouped_tile tile;
    for (int t = blockIdx.x; find_tile<KIND>(job, t, &tile); t += (int)gridDim.x)
        for (int k = tile.begin; k < tile.end; k += WGMMA_DEEP, r.next()) {
            barrier_wait(r.empty + 8 * r.stage, r.parity ^ 1);
            copy_stage<KIND>(a, b, tile, k, r.at(), r.full + 8 * r.stage);
        }
}

/* Adds a tile's k, of group 0 or 1: 64 rows. */
template <grouped_kind KIND>
static __device__ __forceinline__ void multiply_stages(const grouped_tile &tile, int group, ring &r,
                                                       float (&sum)[TILE_N / 2])
{
    const bool A_ALONG_K = KIND != OF_WEIGHT, B_ALONG_K = KIND == BY_OUTPUTS;
    int        before = -1; /* the stage that the products in flight read */
    for (int k = tile.begin; k < tile.end; k += WGMMA_DEEP, r.next()) {
        barrier_wait(r.full + 8 * r.stage, r.parity);
        if (KIND == OF_WEIGHT && tile.end - k < WGMMA_DEEP)
            clear_lines(r.at(), tile.end - k, group * 128 + threadIdx.x % 128);
        uint64_t a = describe_tile<A_ALONG_K>(r.at() + group * WGMMA_BLOCK);
        uint64_t b = describe_tile<B_ALONG_K>(r.at() + BYTES_A);
        products_begin();
#pragma unroll
        for (int step = 0; step < 4; step++)
            multiply_tiles<A_ALONG_K, B_ALONG_K>(sum, a + step * WGMMA_STEP(A_ALONG_K),
                                                 b + step * WGMMA_STEP(B_ALONG_K));
        products_commit();
        if (before >= 0) {
            products_wait<1>();
            if (threadIdx.x % 128 == 0) barrier_arrive(r.empty + 8 * before);
        }
        before = (int)r.stage;
    }
    products_wait<0>();
    if (before >= 0 && threadIdx.x % 128 == 0) barrier_arrive(r.empty + 8 * before);
}

#endif

template <grouped_kind KIND, typename T>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    grouped_tensor_tiles(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, T *y,
                         tensor_job job)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    DYNAMIC_SHARED(char, memory);
    __shared__ __align__(8) uint64_t barriers[2 * STAGES];
    ring                             r = {};
    r.memory = (shared_address(memory) + 1023) & ~1023u;
    r.full = shared_address(barriers);
    r.empty = r.full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) barrier_init(r.full + 8 * s, 1), barrier_init(r.empty + 8 * s, 2);
        barriers_are_visible();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_release<40>();
        if (threadIdx.x == 0) copy_tiles<KIND>(&a, &b, job, r);
        return;
    }
    registers_take<232>();
    int          group = threadIdx.x / 128 - 1, lane_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    grouped_tile tile;
    for (int t = blockIdx.x; find_tile<KIND>(job, t, &tile); t += (int)gridDim.x) {
        float sum[TILE_N / 2];
#pragma unroll
        for (int x = 0; x < TILE_N / 2; x++) sum[x] = 0;
        multiply_stages<KIND>(tile, group, r, sum);
        store_sums(y + (int64_t)tile.first * job.n, tile, tile.i + group * 64 + lane_row, job.n, sum);
    }
#endif
}

/* ---- on the host ---- */

typedef CUresult (*encode_map)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                               const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                               const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                               CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill outside);

static encode_map find_encode()
{
    void                           *found = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode_map)found : NULL;
}

/* Copies of `rows` lines with 64 elements of x's last dimension, which has `width` elements. */
static bool describe_operand(encode_map encode, const lk__kernel_operand *x, int rows, CUtensorMap *map)
{
    cuuint64_t dims[3], strides[2], stride = sizeof(bf16);
    cuuint32_t box[3] = {64, (cuuint32_t)rows, 1}, steps[3] = {1, 1, 1};
    for (int i = 0; i < x->rank; i++) {
        dims[i] = (cuuint64_t)x->dims[x->rank - 1 - i];
        stride *= dims[i];
        if (i + 1 < x->rank) strides[i] = stride;
    }
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)x->rank, x->data, dims, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Numbers of rows and tiles are int. */
static bool is_supported(const lk__kernel_call *call, const lk__kernel_operand *x, const lk__kernel_operand *w,
                         const grouped_job &job)
{
    const int64_t most = INT32_MAX / 2;
    return job.rows < most && job.n < most && job.k < most && job.experts * (job.m + 1) < most &&
           (job.rows + job.experts * (job.m + 1)) * (job.n / TILE_N + 1) < most * TILE_M &&
           cuda_device(call)->capability == 90 && x->dtype == LK_BF16 && x->dims[x->rank - 1] % 8 == 0 &&
           w->dims[w->rank - 1] % 8 == 0 && ((uintptr_t)x->data & 15) == 0 && ((uintptr_t)w->data & 15) == 0;
}

struct grouped_operand {
    const lk__kernel_operand *of;
    int                       rows; /* lines of a copy */
};

template <grouped_kind KIND, typename T>
static bool launch(const lk__kernel_call *call, grouped_operand a, grouped_operand b, const grouped_job &job,
                   lk_status *status)
{
    CUtensorMap map_a, map_b;
    encode_map  encode = find_encode();
    int         processors = 0;
    if (!encode || !describe_operand(encode, a.of, a.rows, &map_a) || !describe_operand(encode, b.of, b.rows, &map_b))
        return false;
    cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, cuda_device(call)->number);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(grouped_tensor_tiles<KIND, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     BYTES_SHARED);
    *status = lk__cuda_check(call->device, error, "setting the shared memory of grouped_linear");
    if (*status < 0) return true;
    tensor_job small = {job.offsets, (int)job.experts, (int)job.rows, (int)job.m, (int)job.n, (int)job.k};
    LAUNCH((grouped_tensor_tiles<KIND, T>), (unsigned)processors, TILE_THREADS, BYTES_SHARED, cuda_stream(call), map_a,
           map_b, out_data<T>(call, 0), small);
    *status = lk__cuda_launched(call);
    return true;
}

template <typename T> static bool multiply(const lk__kernel_call *call, const grouped_job &job, lk_status *status)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    if (call->attrs->transposed) return launch<BY_INPUTS, T>(call, {x, TILE_M}, {w, 64}, job, status);
    return launch<BY_OUTPUTS, T>(call, {x, TILE_M}, {w, TILE_N}, job, status);
}

bool lk__cuda_grouped_tensor(const lk__kernel_call *call, const grouped_job &job, lk_status *status)
{
    if (!is_supported(call, &call->in[0], &call->in[1], job) || job.n % 8 || job.k == 0) return false;
    if (call->out[0].dtype == LK_BF16) return multiply<bf16>(call, job, status);
    return multiply<float>(call, job, status);
}

bool lk__cuda_grouped_tensor_grad_weight(const lk__kernel_call *call, const grouped_job &job, lk_status *status)
{
    int                       row = call->attrs->transposed ? 0 : 1;
    const lk__kernel_operand *a = &call->in[row], *b = &call->in[1 - row];
    if (!is_supported(call, a, b, job) || job.rows == 0) return false;
    return launch<OF_WEIGHT, float>(call, {a, 64}, {b, 64}, job, status);
}

#else

bool lk__cuda_grouped_tensor(const lk__kernel_call *, const grouped_job &, lk_status *) { return false; }
bool lk__cuda_grouped_tensor_grad_weight(const lk__kernel_call *, const grouped_job &, lk_status *) { return false; }

#endif
