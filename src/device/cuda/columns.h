/* device/cuda/columns.h - sums down the columns of a matrix, in a fixed order: how a block's threads are assigned to
 * columns and rows, and how partial sums of parts of the rows are added. For gradients of norms' weights, statistics of
 * batch norm, and pooling.
 *
 * The division into parts depends on the shape alone. */
#ifndef LK__CUDA_COLUMNS_H
#define LK__CUDA_COLUMNS_H

#include "device/cuda/cuda.h"

/* 264 is two blocks for each multiprocessor of an H100 or H200, the GPU that this is tuned for; other GPUs get the same
 * division. */
enum { COLUMN_THREADS = 256, COLUMN_BLOCKS = 528, WEIGHT_PARTS = 264 };

/* A block of COLUMN_THREADS threads over a strip of columns: thread t has pack t % width of the strip, and every
 * `height`-th row from row t / width on. */
struct column_layout {
    int64_t rows;
    int     columns, packs; /* packs: of N columns each, in a row */
    int     width, height, strips;
    int     parts; /* of the rows; 0: there are none */
};

/* Rows of part `part`: from its beginning to the beginning of the next. */
static inline __host__ __device__ int64_t part_begin(int64_t rows, int64_t parts, int64_t part)
{
    return rows / parts * part + (rows % parts < part ? rows % parts : part);
}

static inline column_layout column_layout_of(int64_t rows, int64_t columns, int pack)
{
    column_layout l = {};
    l.rows = rows;
    l.columns = (int)columns;
    l.packs = (int)(columns / pack);
    for (l.width = 1; l.width < 32 && l.width < l.packs; l.width *= 2) {}
    l.height = COLUMN_THREADS / l.width;
    l.strips = (int)cuda_tiles(l.packs, l.width);
    int64_t most = cuda_tiles(COLUMN_BLOCKS, l.strips > 0 ? l.strips : 1);
    /* the most rows that a thread adds in the type of computation */
    int64_t least = cuda_tiles(rows, (int64_t)l.height * 256);
    int64_t parts = cuda_tiles(rows, (int64_t)l.height * 4);
    l.parts = (int)(least > most ? least : parts < most ? parts : most);
    return l;
}

/* Adds the N sums of each thread over the block's rows: thread t < width × N gets the sums of column t of the strip.
 * `shared`: COLUMN_THREADS packs. */
template <int N, typename W>
static __device__ __forceinline__ double strip_sum(const W (&sum)[N], const column_layout &l, lk__pack<W, N> *shared)
{
    lk__pack<W, N> pack; /* stored at once: one by one, the threads' numbers would conflict in the same banks */
#pragma unroll
    for (int j = 0; j < N; j++) pack.at[j] = sum[j];
    __syncthreads();
    shared[threadIdx.x] = pack;
    __syncthreads();
    const W *columns = shared[0].at + threadIdx.x;
    double   total = 0;
    if ((int)threadIdx.x < l.width * N)
        for (int r = 0; r < l.height; r++) total += (double)columns[r * l.width * N];
    return total;
}

/* Of a block of 1024 threads, 32 columns × 32 groups of parts: warp g gets the sum of column g in all of its lanes. */
static __device__ __forceinline__ double groups_sum(double x, double (*shared)[33])
{
    int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    __syncthreads();
    shared[group][lane] = x;
    __syncthreads();
    return warp_sum(shared[lane][group]);
}

/* Loads of a thread that are in flight together: all that it has of WEIGHT_PARTS, as each would take as long as they
 * do. */
enum { PARTS_AT_ONCE = (WEIGHT_PARTS + 31) / 32 };

/* partial (parts, sums, columns), one or two sums: added over the parts, in order, into first and second, which may be
 * NULL. 1024 threads for 32 columns. */
template <typename P, typename W>
static __global__ void __launch_bounds__(1024)
    add_weight_parts(const P *partial, int parts, int64_t columns, int sums, W *first, W *second)
{
    await_previous();
    __shared__ double shared[32][33];
    int64_t           wide = columns * sums, column = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    double            sum = 0;
    for (int first = threadIdx.x / 32; first < parts && column < wide; first += 32 * PARTS_AT_ONCE) {
        P part[PARTS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++)
            part[i] = first + 32 * i < parts ? partial[(first + 32 * i) * wide + column] : (P)0;
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++) sum += (double)part[i];
    }
    sum = groups_sum(sum, shared);
    column = (int64_t)blockIdx.x * 32 + threadIdx.x / 32;
    if (threadIdx.x % 32 != 0 || column >= wide) return;
    W *out = column < columns ? first : second;
    if (out) out[column % columns] = (W)sum;
}

template <typename P, typename W>
static void launch_weight_parts(cudaStream_t stream, const P *partial, int parts, int64_t columns, int sums, W *first,
                                W *second)
{
    if (columns > 0)
        LAUNCH_EARLY((add_weight_parts<P, W>), (unsigned)cuda_tiles(columns * sums, 32), 1024, 0, stream, partial,
                     parts, columns, sums, first, second);
}

#endif
