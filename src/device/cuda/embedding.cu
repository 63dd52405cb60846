/* embedding.cu - rows of a table by id, and the gradient of the table. An id out of range gives zeros, and is reported.
 * Bound by bytes: the rows of y or dy, and the whole table's gradient.
 *
 * The gradient adds in the order of the positions: positions are sorted by id, without exchanging equal ids, and the
 * rows of one id are added one after the other. An id with more than PART positions is added in parts of PART, then the
 * parts in order, so that a token that is a tenth of the batch is not summed by a single multiprocessor. */
#include "device/cuda/map.h"

/* ---- embedding ---- */

template <typename T> struct embedding_map {
    enum { PACKED = PACK(T) };
    const int32_t         *ids;
    const T               *table;
    T                     *y;
    int64_t                count, rows;
    int64_t                whole, origin; /* rows of the whole table, and the first of this part */
    divider                columns;
    lk__kernel_invalid_id *invalid;
    template <int N> struct values {
        lk__pack<T, N> x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, position = divide_off(column, columns), id = ids[position], row = id - origin;
        if (row >= 0 && row < rows) {
            v.x = load_pack<N>(table + row * columns.by + column);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) store(&v.x.at[i], 0);
        if (column == 0 && (id < 0 || id >= whole))
            report_invalid(invalid, LK__OP_embedding, ids, count, position, whole);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        store_pack<N>(y + at, v.x);
    }
};

template <typename T> static void launch_embedding(const lk__kernel_call *call)
{
    const lk__kernel_operand *table = &call->in[1];
    embedding_map<T>          f = {};
    f.ids = in_data<int32_t>(call, 0);
    f.table = (const T *)table->data;
    f.y = out_data<T>(call, 0);
    f.count = lk__operand_elements(&call->in[0]);
    f.rows = table->dims[0];
    f.whole = lk__whole_extent(table, 0);
    f.origin = lk__part_first(table, 0);
    f.columns = make_divider(table->dims[1]);
    f.invalid = call->invalid;
    bool packed = table->dims[1] % PACK(T) == 0 && is_aligned(f.table, 16) && is_aligned(f.y, 16);
    launch_map(call, f, f.count * table->dims[1], packed);
}

extern "C" lk_status lk__cuda_embedding(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_embedding<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- sorting positions by id ----
 *
 * A block has a range of ids and reads all ids twice: the first time it counts those of its range and those below it,
 * which gives the place of each of its ids; the second time it puts their positions there. Each warp has a contiguous
 * part of the positions, and within a warp lanes are in order, so positions of one id stay in order. */

enum { SORT_WARPS = 16, SORT_RANGE = 32 * SORT_WARPS, SORT_BITS = 9, SORT_AHEAD = 8 };

/* Sums of the threads before this one; *all: of the whole block. shared: SORT_WARPS. */
static __device__ __forceinline__ int32_t exclusive_scan(int32_t x, int32_t *shared, int32_t *all)
{
    int     lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t sum = x, before = 0;
    for (int offset = 1; offset < 32; offset *= 2) {
        int32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
        if (w == warp) before = *all;
        *all += shared[w];
    }
    return before + sum - x;
}

/* Lanes whose `local` equals this lane's, among those of `mask`. */
static __device__ __forceinline__ unsigned lanes_with(int32_t local, unsigned mask)
{
    for (int bit = 0; bit < SORT_BITS; bit++) {
        bool     set = local >> bit & 1;
        unsigned same = __ballot_sync(0xffffffffu, set);
        mask &= set ? same : ~same;
    }
    return mask;
}

/* order: positions sorted by id; starts (rows + 1): where each id's positions begin. Ids out of range are left out. */
static __global__ void __launch_bounds__(SORT_RANGE)
    sort_ids_kernel(const int32_t *ids, int64_t n, int64_t origin, int64_t rows, int32_t *order, int32_t *starts)
{
    __shared__ int32_t counts[SORT_WARPS][SORT_RANGE], scratch[SORT_WARPS];
    const int          lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
    const int64_t      range = SORT_RANGE, low = blockIdx.x * range, width = rows - low < range ? rows - low : range;
    const int64_t      each = (n + SORT_RANGE - 1) / SORT_RANGE * 32, begin = warp * each;
    const int64_t      end = begin + each < n ? begin + each : n;
    int32_t            lower = 0, all_lower, all;
    for (int w = 0; w < SORT_WARPS; w++) counts[w][thread] = 0;
    __syncthreads();
#pragma unroll 8
    for (int64_t i = begin + lane; i < end; i += 32) {
        int64_t id = ids[i] - origin;
        if (id >= 0 && id < low) lower++;
        if (id >= low && id < low + width) atomicAdd(&counts[warp][id - low], 1);
    }
    exclusive_scan(lower, scratch, &all_lower); /* and all counts are complete */
    int32_t own = 0;
    for (int w = 0; w < SORT_WARPS; w++) own += counts[w][thread];
    int32_t at = all_lower + exclusive_scan(own, scratch, &all);
    if (thread < width) starts[low + thread] = at;
    if (thread == 0 && low + width == rows) starts[rows] = all_lower + all;
    for (int w = 0; w < SORT_WARPS; w++) { /* from counts to where the warp's first position goes */
        int32_t count = counts[w][thread];
        counts[w][thread] = at;
        at += count;
    }
    __syncthreads();
    for (int64_t first = begin; first < end; first += 32 * SORT_AHEAD) {
        int32_t local[SORT_AHEAD];
#pragma unroll
        for (int u = 0; u < SORT_AHEAD; u++) {
            int64_t i = first + u * 32 + lane, id = i < end ? ids[i] - origin : -1;
            local[u] = id >= low && id < low + width ? (int32_t)(id - low) : -1;
        }
#pragma unroll
        for (int u = 0; u < SORT_AHEAD; u++) {
            bool     mine = local[u] >= 0;
            unsigned mask = __ballot_sync(0xffffffffu, mine);
            if (!mask) continue;
            unsigned same = lanes_with(local[u], mask);
            int      rank = __popc(same & ((1u << lane) - 1)), count = __popc(same);
            int32_t  place = mine ? counts[warp][local[u]] : 0;
            __syncwarp();
            if (mine) order[place + rank] = (int32_t)(first + u * 32 + lane);
            if (mine && rank == 0) counts[warp][local[u]] = place + count;
            __syncwarp();
        }
    }
}

/* ---- the gradient ---- */

enum { THREADS = 256, PART = 128 }; /* positions of a part */

template <typename T> struct table_grad {
    const int32_t *ids, *order, *starts;
    const T       *dy;
    WIDE(T) * dtable, *partial; /* partial (2 ⌈n / PART⌉, columns): the parts' sums */
    int64_t rows, columns, origin; /* origin: the id of row 0, which is not 0 where the table is a part */
    divider chunks; /* a warp has 32 packs of columns */
};

/* A part's sum: one slot for whole parts and one for last ones, by where the part begins. Of all parts of long runs no
 * two have the same slot: whole ones of PART positions begin at least that far apart, and so do last ones, each of
 * which follows a whole one. */
static __device__ __forceinline__ int64_t part_slot(int64_t begin, int64_t end)
{
    return 2 * (begin / PART) + (begin + PART >= end);
}

template <int N, typename R> struct pack_sum {
    lk__pack<R, N>                  at;
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < N; i++) at.at[i] = 0;
    }
    template <typename T> __device__ __forceinline__ void add(const T *p)
    {
        lk__pack<T, N> x = load_pack<N>(p);
#pragma unroll
        for (int i = 0; i < N; i++) at.at[i] += load(&x.at[i]);
    }
};

template <int N, typename T>
static __device__ __forceinline__ pack_sum<N, WIDE(T)> add_positions(const table_grad<T> &g, int64_t begin, int64_t end,
                                                                     int64_t column)
{
    pack_sum<N, WIDE(T)> sum;
    sum.clear();
#pragma unroll 8
    for (int64_t i = begin; i < end; i++) sum.add(g.dy + g.order[i] * g.columns + column);
    return sum;
}

/* The parts that begin among PART sorted positions: of the run that has the first of them, and of one that begins among
 * them and, being long, has the position after them. */
template <int N, typename T> static __global__ void __launch_bounds__(THREADS) table_parts_kernel(table_grad<T> g)
{
    int64_t chunk = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, group = divide_off(chunk, g.chunks);
    int64_t column = (chunk * 32 + threadIdx.x % 32) * N, first = group * PART, next = first + PART;
    int64_t all = g.starts[g.rows];
    if (first >= all || column >= g.columns) return;
    int64_t id = g.ids[g.order[first]] - g.origin;
    int64_t begin = g.starts[id], end = g.starts[id + 1];
    if (end - begin > PART) {
        int64_t at = begin + (first - begin + PART - 1) / PART * PART;
        if (at < end) {
            pack_sum<N, WIDE(T)> sum = add_positions<N>(g, at, at + PART < end ? at + PART : end, column);
            store_pack<N>(g.partial + part_slot(at, end) * g.columns + column, sum.at);
        }
    }
    if (next >= all) return;
    int64_t other = g.ids[g.order[next]] - g.origin;
    if (other == id) return;
    begin = g.starts[other];
    end = g.starts[other + 1];
    if (begin == next || end - begin <= PART) return;
    pack_sum<N, WIDE(T)> sum = add_positions<N>(g, begin, begin + PART, column);
    store_pack<N>(g.partial + part_slot(begin, end) * g.columns + column, sum.at);
}

template <int N, typename T> static __global__ void __launch_bounds__(THREADS) table_rows_kernel(table_grad<T> g)
{
    int64_t chunk = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, row = divide_off(chunk, g.chunks);
    int64_t column = (chunk * 32 + threadIdx.x % 32) * N;
    if (row >= g.rows || column >= g.columns) return;
    int64_t              begin = g.starts[row], end = g.starts[row + 1];
    pack_sum<N, WIDE(T)> sum;
    if (end - begin <= PART) {
        sum = add_positions<N>(g, begin, end, column);
    } else {
        sum.clear();
#pragma unroll 8
        for (int64_t at = begin; at < end; at += PART) sum.add(g.partial + part_slot(at, end) * g.columns + column);
    }
    store_pack<N>(g.dtable + row * g.columns + column, sum.at);
}

typedef struct grad_layout {
    size_t order, starts, partial, bytes; /* offsets in the workspace */
} grad_layout;

static grad_layout layout_workspace(const lk__kernel_call *call)
{
    int64_t     n = lk__operand_elements(&call->in[0]), rows = call->out[0].dims[0], columns = call->out[0].dims[1];
    grad_layout l = {};
    l.starts = (size_t)cuda_tiles(n, 16) * 64;
    l.partial = l.starts + (size_t)cuda_tiles(rows + 1, 16) * 64;
    l.bytes = l.partial + (size_t)(2 * cuda_tiles(n, PART) * columns) * cuda_size(call->out[0].dtype);
    return l;
}

extern "C" size_t lk__cuda_embedding_grad_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return layout_workspace(call).bytes;
}

template <int N, typename T> static void launch_table_grad(const lk__kernel_call *call, table_grad<T> &g, int64_t n)
{
    cudaStream_t stream = cuda_stream(call);
    int64_t      chunks = cuda_tiles(g.columns, 32 * N), groups = cuda_tiles(n, PART);
    g.chunks = make_divider(chunks);
    if (n > PART)
        LAUNCH((table_parts_kernel<N, T>), (unsigned)cuda_tiles(groups * chunks, THREADS / 32), THREADS, 0, stream, g);
    LAUNCH((table_rows_kernel<N, T>), (unsigned)cuda_tiles(g.rows * chunks, THREADS / 32), THREADS, 0, stream, g);
}

template <typename T> static void launch_embedding_grad(const lk__kernel_call *call)
{
    grad_layout   l = layout_workspace(call);
    char         *workspace = (char *)call->workspace;
    int32_t      *order = (int32_t *)workspace, *starts = (int32_t *)(workspace + l.starts);
    int64_t       n = lk__operand_elements(&call->in[0]);
    table_grad<T> g = {};
    g.ids = in_data<int32_t>(call, 0);
    g.order = order;
    g.starts = starts;
    g.dy = in_data<T>(call, 1);
    g.dtable = out_data<WIDE(T)>(call, 0);
    g.partial = (WIDE(T) *)(workspace + l.partial);
    g.rows = call->out[0].dims[0];
    g.columns = call->out[0].dims[1];
    g.origin = lk__part_first(&call->out[0], 0);
    if (g.rows * g.columns == 0) return;
    LAUNCH(sort_ids_kernel, (unsigned)cuda_tiles(g.rows, SORT_RANGE), SORT_RANGE, 0, cuda_stream(call), g.ids, n,
           g.origin, g.rows, order, starts);
    enum { N = PACK(WIDE(T)) }; /* of 16 bytes in dtable, which has the most: a warp writes whole sectors at once */
    if (g.columns % N == 0 && is_aligned(g.dy, N * sizeof(T)) && is_aligned(g.dtable, 16))
        launch_table_grad<N>(call, g, n);
    else
        launch_table_grad<1>(call, g, n);
}

extern "C" lk_status lk__cuda_embedding_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[1].dtype, T, launch_embedding_grad<T>(call);)
    return lk__cuda_launched(call);
}
