/* experts.cu - finds the largest elements of each row; groups rows by expert and restores their order. The number of
 * rows of an expert is known only on the device, and nothing here waits for it. All but the sort is bound by bytes. */
#include "device/cuda/map.h"

enum { THREADS = 256 };

/* ---- the largest of each row: a thread has a row, whose list is short ---- */

template <typename T> static __device__ __forceinline__ bool is_above(T a, T b) { return a > b || (a != a && b == b); }

template <typename T> static __global__ void topk_kernel(const T *x, T *y, int32_t *index, int64_t rows, int n, int k)
{
    EACH_INDEX(row, rows)
    {
        const T *from = x + row * n;
        T       *to = y + row * k;
        int32_t *at_to = index + row * k;
        int      have = 0;
        for (int i = 0; i < n; i++) {
            T value = from[i];
            if (have == k && !is_above(value, to[have - 1])) continue;
            int at = have < k ? have++ : have - 1;
            for (; at > 0 && is_above(value, to[at - 1]); at--) to[at] = to[at - 1], at_to[at] = at_to[at - 1];
            to[at] = value;
            at_to[at] = i;
        }
    }
}

template <typename T>
static __global__ void topk_grad_kernel(const T *dy, const int32_t *index, T *dx, int64_t rows, int n, int k)
{
    EACH_INDEX(row, rows)
    {
        for (int i = 0; i < n; i++) dx[row * n + i] = 0;
        for (int j = 0; j < k; j++) {
            int i = index[row * k + j];
            if (i >= 0 && i < n) dx[row * n + i] += dy[row * k + j];
        }
    }
}

extern "C" lk_status lk__cuda_topk(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0], *y = &call->out[0];
    int64_t                   rows = cuda_product(x, 0, x->rank - 1);
    int                       n = (int)x->dims[x->rank - 1], k = (int)y->dims[y->rank - 1];
    BY_WIDE_ELEMENT(y->dtype, T,
                    LAUNCH(topk_kernel<T>, cuda_blocks(rows, THREADS), THREADS, 0, cuda_stream(call),
                           in_data<T>(call, 0), out_data<T>(call, 0), out_data<int32_t>(call, 1), rows, n, k);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_topk_grad(const lk__kernel_call *call)
{
    const lk__kernel_operand *dy = &call->in[0], *dx = &call->out[0];
    int64_t                   rows = cuda_product(dx, 0, dx->rank - 1);
    int                       n = (int)dx->dims[dx->rank - 1], k = (int)dy->dims[dy->rank - 1];
    BY_WIDE_ELEMENT(dx->dtype, T,
                    LAUNCH(topk_grad_kernel<T>, cuda_blocks(rows, THREADS), THREADS, 0, cuda_stream(call),
                           in_data<T>(call, 0), in_data<int32_t>(call, 1), out_data<T>(call, 0), rows, n, k);)
    return lk__cuda_launched(call);
}

/* ---- groups: a block has an expert, and reads all ids twice, which are few ---- */

typedef struct groups {
    const int32_t         *ids;
    int32_t               *order, *place, *offsets;
    double                *counts; /* may be NULL */
    int32_t               *named;  /* workspace: of each expert */
    int64_t                n, most;
    int                    experts;
    lk__kernel_invalid_id *invalid;
} groups;

static __global__ void count_assignments(groups g)
{
    __shared__ int shared[32];
    int            e = blockIdx.x, mine = 0;
    for (int64_t i = threadIdx.x; i < g.n; i += THREADS) {
        int id = g.ids[i];
        mine += id == e;
        if (e == 0 && (id < 0 || id >= g.experts)) {
            g.place[i] = -1;
            report_invalid(g.invalid, LK__OP_group_rows, g.ids, g.n, i, g.experts);
        }
    }
    mine = block_sum(mine, shared);
    if (threadIdx.x == 0) g.named[e] = mine;
}

static __global__ void add_offsets(groups g)
{
    int64_t at = 0;
    for (int e = 0; e < g.experts; e++) {
        int64_t named = g.named[e];
        if (g.counts) g.counts[e] = (double)named;
        g.offsets[e] = (int32_t)at;
        at += named < g.most ? named : g.most;
    }
    g.offsets[g.experts] = (int32_t)at;
}

static __global__ void place_assignments(groups g)
{
    __shared__ int found[THREADS / 32];
    int            e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t        next = g.offsets[e], end = g.offsets[e + 1], used = g.offsets[g.experts];
    for (int64_t first = 0; first < g.n; first += THREADS) {
        int64_t  i = first + threadIdx.x;
        bool     mine = i < g.n && g.ids[i] == e;
        unsigned warps = __ballot_sync(0xffffffffu, mine);
        int      before = __popc(warps & ((1u << lane) - 1)), all = 0;
        __syncthreads();
        if (lane == 0) found[warp] = __popc(warps);
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) before += found[w];
            all += found[w];
        }
        if (mine) {
            int64_t at = next + before;
            g.place[i] = at < end ? (int32_t)at : -1;
            if (at < end) g.order[at] = (int32_t)i;
        }
        next += all;
    }
    if (e == 0)
        for (int64_t i = used + threadIdx.x; i < g.n; i += THREADS) g.order[i] = -1;
}

extern "C" lk_status lk__cuda_group_rows(const lk__kernel_call *call)
{
    groups       g = {};
    cudaStream_t stream = cuda_stream(call);
    g.ids = in_data<int32_t>(call, 0);
    g.order = out_data<int32_t>(call, 0);
    g.place = out_data<int32_t>(call, 1);
    g.offsets = out_data<int32_t>(call, 2);
    g.counts = out_data<double>(call, 3);
    g.named = (int32_t *)call->workspace;
    g.n = lk__operand_elements(&call->in[0]);
    g.most = call->attrs->capacity > 0 ? call->attrs->capacity : g.n;
    g.experts = (int)call->attrs->experts;
    g.invalid = call->invalid;
    LAUNCH(count_assignments, (unsigned)g.experts, THREADS, 0, stream, g);
    LAUNCH(add_offsets, 1, 1, 0, stream, g);
    LAUNCH(place_assignments, (unsigned)g.experts, THREADS, 0, stream, g);
    return lk__cuda_launched(call);
}

extern "C" size_t lk__cuda_group_rows_workspace(const lk__kernel_call *call, int)
{
    return (size_t)call->attrs->experts * sizeof(int32_t);
}

/* ---- rows of several ranks: a block has those of one rank for one expert ---- */

typedef struct received {
    const int32_t *all; /* (ranks, of_all + 1) */
    int32_t       *offsets, *order, *place;
    int64_t        rows;
    int            ranks, of_all, experts, first; /* of this rank: how many, and which is the first */
} received;

static __device__ int64_t sent_rows(const received &r, int from, int e)
{
    const int32_t *offsets = r.all + (int64_t)from * (r.of_all + 1) + r.first;
    return offsets[e + 1] - offsets[e];
}

/* What comes from ranks before `rank` of all experts, and of experts before e of all ranks. */
static __global__ void place_received(received r)
{
    __shared__ int64_t at, to;
    int                rank = blockIdx.x / r.experts, e = blockIdx.x % r.experts;
    int64_t            count = sent_rows(r, rank, e);
    if (threadIdx.x == 0) {
        at = to = 0;
        for (int from = 0; from < r.ranks; from++)
            for (int i = 0; i < r.experts; i++) {
                int64_t one = sent_rows(r, from, i);
                if (from < rank || (from == rank && i < e)) at += one;
                if (i < e || (i == e && from < rank)) to += one;
            }
        if (rank == 0) r.offsets[e] = (int32_t)to;
        if (rank == r.ranks - 1 && e == r.experts - 1) r.offsets[r.experts] = (int32_t)(to + count);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count && at + i < r.rows && to + i < r.rows; i += THREADS) {
        r.order[to + i] = (int32_t)(at + i);
        r.place[at + i] = (int32_t)(to + i);
    }
    if (blockIdx.x > 0) return;
    int64_t used = 0;
    for (int from = 0; from < r.ranks; from++)
        for (int i = 0; i < r.experts; i++) used += sent_rows(r, from, i);
    for (int64_t i = used + threadIdx.x; i < r.rows; i += THREADS) r.order[i] = r.place[i] = -1;
}

extern "C" lk_status lk__cuda_route_rows(const lk__kernel_call *call)
{
    received r = {};
    r.all = in_data<int32_t>(call, 0);
    r.offsets = out_data<int32_t>(call, 0);
    r.order = out_data<int32_t>(call, 1);
    r.place = out_data<int32_t>(call, 2);
    r.rows = call->out[1].dims[0];
    r.ranks = (int)call->in[0].dims[0];
    r.of_all = (int)call->in[0].dims[1] - 1;
    r.experts = (int)call->out[0].dims[0] - 1;
    r.first = (int)call->attrs->start * r.experts;
    LAUNCH(place_received, (unsigned)(r.ranks * r.experts), THREADS, 0, cuda_stream(call), r);
    return lk__cuda_launched(call);
}

/* ---- rows ---- */

template <typename T> struct gather_rows_map {
    enum { PACKED = PACK(T) };
    const T       *x, *weight;
    T             *y;
    const int32_t *order;
    int64_t        all, k;
    divider        columns;
    template <int N> struct values {
        lk__pack<T, N> x;
        WIDE(T) by;
        bool there;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, position = divide_off(column, columns), from = order[position];
        v.there = from >= 0 && from < all;
        if (!v.there) return;
        v.by = weight ? load(weight + from) : (WIDE(T))1;
        v.x = load_pack<N>(x + from / k * columns.by + column);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) store(&v.x.at[i], v.there ? load(&v.x.at[i]) * v.by : (WIDE(T))0);
        store_pack<N>(y + at, v.x);
    }
};

template <typename T> struct combine_rows_map {
    enum { PACKED = PACK(T) };
    const T       *y, *weight;
    T             *x;
    const int32_t *place;
    int64_t        all, k;
    divider        columns;
    template <int N> struct values {
        WIDE(T) sum[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, row = divide_off(column, columns);
#pragma unroll
        for (int i = 0; i < N; i++) v.sum[i] = 0;
        for (int64_t j = row * k; j < (row + 1) * k; j++) {
            int64_t from = place[j];
            if (from < 0 || from >= all) continue;
            WIDE(T) by = weight ? load(weight + j) : (WIDE(T))1;
            lk__pack<T, N> term = load_pack<N>(y + from * columns.by + column);
#pragma unroll
            for (int i = 0; i < N; i++) v.sum[i] += by * load(&term.at[i]);
        }
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        lk__pack<T, N> sum;
#pragma unroll
        for (int i = 0; i < N; i++) store(&sum.at[i], v.sum[i]);
        store_pack<N>(x + at, sum);
    }
};

template <typename T, template <typename> class MAP> static void set_rows(const lk__kernel_call *call, MAP<T> *f)
{
    const lk__kernel_operand *place = &call->in[2];
    f->weight = in_data<T>(call, 3);
    f->all = place->dims[0] * place->dims[1];
    f->k = place->dims[1];
    f->columns = make_divider(call->out[0].dims[1]);
}

static bool packs_rows(const lk__kernel_call *call, int pack)
{
    return call->out[0].dims[1] % pack == 0 && is_aligned(call->in[0].data, 16) && is_aligned(call->out[0].data, 16);
}

template <typename T> static void launch_gather(const lk__kernel_call *call)
{
    gather_rows_map<T> f = {};
    set_rows(call, &f);
    f.x = in_data<T>(call, 0);
    f.y = out_data<T>(call, 0);
    f.order = in_data<int32_t>(call, 1);
    launch_map(call, f, lk__operand_elements(&call->out[0]), packs_rows(call, PACK(T)));
}

template <typename T> static void launch_combine(const lk__kernel_call *call)
{
    combine_rows_map<T> f = {};
    set_rows(call, &f);
    f.y = in_data<T>(call, 0);
    f.x = out_data<T>(call, 0);
    f.place = in_data<int32_t>(call, 2);
    launch_map(call, f, lk__operand_elements(&call->out[0]), packs_rows(call, PACK(T)));
}

extern "C" lk_status lk__cuda_gather_rows(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_gather<T>(call);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_combine_rows(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_combine<T>(call);)
    return lk__cuda_launched(call);
}

/* A warp has an assignment. */
template <typename T>
static __global__ void combine_grad_weight_kernel(const T *dx, const T *y, const int32_t *place, T *dweight,
                                                  int64_t all, int64_t k, int64_t columns)
{
    int64_t lane = threadIdx.x % 32, i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    WIDE(T) total = 0;
    if (i >= all) return;
    int64_t from = place[i];
    if (from >= 0 && from < all)
        for (int64_t c = lane; c < columns; c += 32)
            total += load(dx + i / k * columns + c) * load(y + from * columns + c);
    total = warp_sum(total);
    if (lane == 0) store(dweight + i, total);
}

extern "C" lk_status lk__cuda_combine_rows_grad_weight(const lk__kernel_call *call)
{
    const lk__kernel_operand *place = &call->in[2];
    int64_t                   all = lk__operand_elements(place), columns = call->in[0].dims[1];
    if (all == 0) return LK_OK;
    BY_ELEMENT(call->out[0].dtype, T,
               LAUNCH(combine_grad_weight_kernel<T>, (unsigned)cuda_tiles(all, THREADS / 32), THREADS, 0,
                      cuda_stream(call), in_data<T>(call, 0), in_data<T>(call, 1), (const int32_t *)place->data,
                      out_data<T>(call, 0), all, place->dims[1], columns);)
    return lk__cuda_launched(call);
}
