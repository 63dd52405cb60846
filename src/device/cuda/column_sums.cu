/* column_sums.cu - sums over the rows of a matrix, for gradients of biases. Bound by bytes.
 *
 * The rows of a leaf (without leaves: all rows) are cut into parts of fixed size. A block sums the part of a few
 * columns, 8 rows at a time; another kernel adds a leaf's parts in a fixed order, and the leaves in the pairwise
 * tree. */
#include "device/cuda/gemm.h"

extern "C" {
#include "base/tree.h"
}

enum { PART = 256 /* rows */, LANES = 32, ROWS = 8 };

/* The part with number p of leaf i begins at row rows[i] + p*PART. The parts of leaf i are numbered from first_part(i)
 * on: as a leaf of n rows has at most n/PART + 1 parts, the numbers of two leaves never meet. */
struct leaf_rows {
    int     count;
    int64_t rows[LK__LEAVES_MOST + 1];
    uint8_t merges[LK__LEAVES_MOST]; /* lk__tree_merges */
};
static __host__ __device__ inline int64_t first_part(const leaf_rows &leaves, int leaf)
{
    return leaves.rows[leaf] / PART + leaf;
}

template <typename T, int N>
static __global__ void __launch_bounds__(LANES *ROWS)
    sum_parts(const T *from, const uint8_t *index, int64_t columns, leaf_rows leaves, WIDE(T) * parts)
{
    typedef WIDE(T) W;
    __shared__ W shared[ROWS][LANES * N];
    int          lane = threadIdx.x % LANES, y = threadIdx.x / LANES, leaf = 0;
    int64_t      column = ((int64_t)blockIdx.y * LANES + lane) * N, part = blockIdx.x;
    while (leaf + 1 < leaves.count && part >= first_part(leaves, leaf + 1)) leaf++;
    int64_t row = leaves.rows[leaf] + (part - first_part(leaves, leaf)) * PART;
    int64_t end = min(leaves.rows[leaf + 1], row + PART);
    W       sum[N];
#pragma unroll
    for (int q = 0; q < N; q++) sum[q] = 0;
    if (column < columns)
#pragma unroll 4
        for (int64_t r = row + y; r < end; r += ROWS) {
            lk__pack<T, N> x = load_pack<N>(from + r * columns + column);
#pragma unroll
            for (int q = 0; q < N; q++)
                sum[q] += index && index[r * columns + column + q] == 255 ? (W)0 : load(&x.at[q]);
        }
#pragma unroll
    for (int q = 0; q < N; q++) shared[y][lane * N + q] = sum[q];
    __syncthreads();
    for (int c = threadIdx.x; c < LANES * N; c += LANES * ROWS) {
        int64_t to = (int64_t)blockIdx.y * LANES * N + c;
        W       total = shared[0][c];
        for (int r = 1; r < ROWS; r++) total += shared[r][c];
        if (to < columns) parts[part * columns + to] = total;
    }
}

template <typename W>
static __global__ void __launch_bounds__(LANES *ROWS)
    add_parts(const W *parts, int64_t columns, leaf_rows leaves, W *sums)
{
    __shared__ W shared[ROWS][LANES];
    W            stack[LK__LEAVES_DEPTH];
    int          lane = threadIdx.x % LANES, y = threadIdx.x / LANES, depth = 0;
    int64_t      column = (int64_t)blockIdx.x * LANES + lane;
    for (int leaf = 0; leaf < leaves.count; leaf++) {
        int64_t first = first_part(leaves, leaf);
        int64_t end = first + (leaves.rows[leaf + 1] - leaves.rows[leaf] + PART - 1) / PART;
        W       sum = 0;
        if (column < columns)
#pragma unroll 4
            for (int64_t part = first + y; part < end; part += ROWS) sum += parts[part * columns + column];
        __syncthreads();
        shared[y][lane] = sum;
        __syncthreads();
        if (y != 0) continue;
        for (int r = 1; r < ROWS; r++) sum += shared[r][lane];
        stack[depth++] = sum;
        for (int merges = leaves.merges[leaf]; merges > 0; merges--, depth--) stack[depth - 2] += stack[depth - 1];
    }
    if (y == 0 && column < columns) sums[column] = stack[0];
}

size_t lk__cuda_column_sums_workspace(int64_t rows, int64_t columns)
{
    return (size_t)(rows / PART + LK__LEAVES_MOST) * (size_t)columns * sizeof(double);
}

template <typename T>
static void sum_columns(cudaStream_t stream, const T *from, const uint8_t *index, int64_t columns,
                        const leaf_rows &leaves, WIDE(T) * sums, WIDE(T) * workspace)
{
    typedef WIDE(T) W;
    constexpr int wide = PACK(T);
    bool          packs = columns % wide == 0 && (uintptr_t)from % 16 == 0 && columns >= LANES * wide;
    int64_t       rows = leaves.rows[leaves.count], parts = rows / PART + leaves.count;
    bool          alone = leaves.count == 1 && rows <= PART;
    W            *to = alone ? sums : workspace;
    dim3          grid((unsigned)(alone ? 1 : parts), (unsigned)cuda_tiles(columns, LANES * (packs ? wide : 1)));
    if (packs)
        LAUNCH((sum_parts<T, wide>), grid, LANES * ROWS, 0, stream, from, index, columns, leaves, to);
    else
        LAUNCH((sum_parts<T, 1>), grid, LANES * ROWS, 0, stream, from, index, columns, leaves, to);
    if (!alone)
        LAUNCH((add_parts<W>), (unsigned)cuda_tiles(columns, LANES), LANES * ROWS, 0, stream, to, columns, leaves,
               sums);
}

lk_status lk__cuda_column_sums(const lk__kernel_call *call, const void *from, lk_dtype type, const uint8_t *index,
                               int64_t rows, int64_t columns, const lk__kernel_leaves *leaves, void *sums,
                               void *workspace)
{
    leaf_rows all = {1, {0, rows}, {0}};
    if (leaves) {
        all.count = leaves->count;
        for (int i = 0; i <= leaves->count; i++) all.rows[i] = leaves->rows[i];
        for (int i = 0; i < leaves->count; i++) all.merges[i] = (uint8_t)lk__tree_merges(i, leaves->count);
    }
    if (columns <= 0) return LK_OK;
    BY_ELEMENT(
        type, T,
        sum_columns<T>(cuda_stream(call), (const T *)from, index, columns, all, (WIDE(T) *)sums, (WIDE(T) *)workspace);)
    return lk__cuda_launched(call);
}
