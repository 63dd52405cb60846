/* shape.cu - moves elements without changing them: copies, slices, concatenation, permutation, collectives of a group
 * of one. Elements are moved as units of 1 to 16 bytes whatever their type. Bound by bytes. */
#include "device/cuda/map.h"

/* ---- rows made of segments ----
 *
 * A row of the output is one segment after the other, each from its own operand, or zeros: copies, slice, slice_grad
 * and concat. */

typedef struct segment {
    const char *from; /* NULL: zeros */
    int64_t     end;  /* in bytes of a row */
    int64_t     step; /* bytes from row to row */
} segment;

enum { SEGMENTS = LK__MAX_IN };

typedef struct segments {
    segment    at[SEGMENTS];
    int        count;
    char      *to;
    int64_t    rows, bytes; /* of the output */
    const int *part;        /* in memory of the device: the first segment's part; NULL: 0. Parts follow each other. */
} segments;

template <int BYTES> struct unit;
template <> struct unit<16> {
    typedef uint4 type;
};
template <> struct unit<8> {
    typedef uint64_t type;
};
template <> struct unit<4> {
    typedef uint32_t type;
};
template <> struct unit<2> {
    typedef uint16_t type;
};
template <> struct unit<1> {
    typedef uint8_t type;
};

template <int BYTES> struct segments_map {
    enum { PACKED = 1 };
    segments s;
    divider  over; /* units of a row */
    template <int N> struct values {
        typename unit<BYTES>::type x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, row = divide_off(column, over), begin = 0;
        int     k = 0;
        column *= BYTES;
        while (k < s.count - 1 && column >= s.at[k].end) begin = s.at[k++].end;
        v.x = {};
        if (!s.at[k].from) return;
        int64_t part = s.part ? *s.part * s.rows * s.bytes : 0;
        v.x = *(const typename unit<BYTES>::type *)(s.at[k].from + part + row * s.at[k].step + (column - begin));
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        ((typename unit<BYTES>::type *)s.to)[at] = v.x;
    }
};

template <int BYTES> static void launch_units(const lk__kernel_call *call, const segments *s)
{
    segments_map<BYTES> f = {*s, make_divider(s->bytes / BYTES)};
    launch_map(call, f, s->rows * s->bytes / BYTES, false);
}

/* In the largest units in which every segment begins, ends and advances. */
static lk_status move_segments(const lk__kernel_call *call, const segments *s)
{
    uintptr_t bits = (uintptr_t)s->to | (uintptr_t)s->bytes;
    if (s->rows * s->bytes == 0) return LK_OK;
    for (int k = 0; k < s->count; k++) {
        bits |= (uintptr_t)s->at[k].end;
        if (s->at[k].from) bits |= (uintptr_t)s->at[k].from | (uintptr_t)s->at[k].step;
    }
    if (bits % 16 == 0)
        launch_units<16>(call, s);
    else if (bits % 8 == 0)
        launch_units<8>(call, s);
    else if (bits % 4 == 0)
        launch_units<4>(call, s);
    else if (bits % 2 == 0)
        launch_units<2>(call, s);
    else
        launch_units<1>(call, s);
    return lk__cuda_launched(call);
}

static void add_segment(segments *s, const void *from, int64_t bytes, int64_t step)
{
    if (bytes == 0) return;
    s->bytes += bytes;
    s->at[s->count++] = segment{(const char *)from, s->bytes, step};
}

/* All of the output, from input 0. */
static lk_status copy_whole(const lk__kernel_call *call, const int *part)
{
    int64_t  bytes = lk__operand_elements(&call->out[0]) * (int64_t)cuda_size(call->out[0].dtype);
    segments s = {};
    if (call->in[0].data == call->out[0].data && !part) return LK_OK;
    s.to = out_data<char>(call, 0);
    s.rows = 1;
    s.part = part;
    add_segment(&s, call->in[0].data, bytes, bytes);
    return move_segments(call, &s);
}

extern "C" lk_status lk__cuda_reshape(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_stop_gradient(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_all_reduce(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_all_gather(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_reduce_scatter(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_exchange_rows(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_wait(const lk__kernel_call *call) { return copy_whole(call, NULL); }
extern "C" lk_status lk__cuda_own_part(const lk__kernel_call *call)
{
    return copy_whole(call, &call->step_memory->part);
}

extern "C" lk_status lk__cuda_slice(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = cuda_product(x, axis + 1, x->rank) * (int64_t)cuda_size(x->dtype);
    segments                  s = {};
    s.to = out_data<char>(call, 0);
    s.rows = cuda_product(x, 0, axis);
    add_segment(&s, (const char *)x->data + call->attrs->start * inner, call->out[0].dims[axis] * inner,
                x->dims[axis] * inner);
    return move_segments(call, &s);
}

extern "C" lk_status lk__cuda_slice_grad(const lk__kernel_call *call)
{
    const lk__kernel_operand *dx = &call->out[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = cuda_product(dx, axis + 1, dx->rank) * (int64_t)cuda_size(dx->dtype);
    int64_t                   length = call->in[0].dims[axis] * inner, before = call->attrs->start * inner;
    segments                  s = {};
    s.to = (char *)dx->data;
    s.rows = cuda_product(dx, 0, axis);
    add_segment(&s, NULL, before, 0);
    add_segment(&s, call->in[0].data, length, length);
    add_segment(&s, NULL, dx->dims[axis] * inner - before - length, 0);
    return move_segments(call, &s);
}

extern "C" lk_status lk__cuda_concat(const lk__kernel_call *call)
{
    const lk__kernel_operand *y = &call->out[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = cuda_product(y, axis + 1, y->rank) * (int64_t)cuda_size(y->dtype);
    segments                  s = {};
    s.to = (char *)y->data;
    s.rows = cuda_product(y, 0, axis);
    for (int i = 0; i < call->inputs; i++) {
        int64_t length = call->in[i].data ? call->in[i].dims[axis] * inner : 0;
        add_segment(&s, call->in[i].data, length, length);
    }
    return move_segments(call, &s);
}

/* ---- permute ----
 *
 * y's axes, merged where they stay neighbours. Where x and y are contiguous along different axes, tiles of both go
 * through shared memory, so that reads and writes are of whole sectors; where one of the two axes is short (three
 * colours), each thread gathers. */

enum { TILE = 32, TILE_ROWS = 8 }; /* threads: TILE × TILE_ROWS */

typedef struct permutation {
    int     rank;
    int64_t dims[LK_MAX_RANK], x_step[LK_MAX_RANK], y_step[LK_MAX_RANK]; /* in y's order */
    divider over[LK_MAX_RANK];
    int     other; /* the axis along which x is contiguous; y is along the last */
    int64_t n;
    divider tiles_x, tiles_y; /* along `other` and along the last axis */
} permutation;

template <typename U> struct gather_map {
    enum { PACKED = 1 };
    permutation p;
    const U    *x;
    U          *y;
    template <int N> struct values {
        U x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t from = 0;
        for (int i = p.rank - 1; i > 0; i--) {
            int64_t index = at, outer = divide_off(index, p.over[i]);
            from += index * p.x_step[i];
            at = outer;
        }
        v.x = x[from + at * p.x_step[0]];
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const { y[at] = v.x; }
};

template <typename U> static __global__ void transpose_kernel(permutation p, const U *x, U *y)
{
    __shared__ U tile[TILE][TILE + 1]; /* one more: rows and columns in different banks */
    int          last = p.rank - 1, lane = threadIdx.x % TILE, row = threadIdx.x / TILE;
    int64_t      column = blockIdx.x, rest = divide_off(column, p.tiles_x), at = rest;
    int64_t      outer = divide_off(at, p.tiles_y), x_at = 0, y_at = 0;
    int64_t      c0 = column * TILE, r0 = at * TILE; /* along `other`, along the last axis */
    for (int i = last; i >= 0; i--) {
        if (i == last || i == p.other) continue;
        int64_t index = outer;
        outer = divide_off(index, p.over[i]);
        x_at += index * p.x_step[i];
        y_at += index * p.y_step[i];
    }
    for (int r = row; r < TILE; r += TILE_ROWS)
        if (r0 + r < p.dims[last] && c0 + lane < p.dims[p.other])
            tile[r][lane] = x[x_at + (r0 + r) * p.x_step[last] + c0 + lane];
    __syncthreads();
    for (int c = row; c < TILE; c += TILE_ROWS)
        if (c0 + c < p.dims[p.other] && r0 + lane < p.dims[last])
            y[y_at + (c0 + c) * p.y_step[p.other] + r0 + lane] = tile[lane][c];
}

template <typename U> static void launch_permute(const lk__kernel_call *call, permutation *p)
{
    const U *x = in_data<U>(call, 0);
    U       *y = out_data<U>(call, 0);
    int64_t  columns = p->dims[p->other], rows = p->dims[p->rank - 1];
    if (p->other == p->rank - 1 || columns < TILE / 4 || rows < TILE / 4) {
        launch_map(call, gather_map<U>{*p, x, y}, p->n, false);
        return;
    }
    int64_t tiles_x = cuda_tiles(columns, TILE), tiles_y = cuda_tiles(rows, TILE);
    p->tiles_x = make_divider(tiles_x);
    p->tiles_y = make_divider(tiles_y);
    unsigned blocks = (unsigned)(p->n / columns / rows * tiles_x * tiles_y);
    LAUNCH(transpose_kernel<U>, blocks, TILE * TILE_ROWS, 0, cuda_stream(call), *p, x, y);
}

/* Where x is contiguous along y's last axis too, its elements move in units of up to 16 bytes. */
static size_t widen_unit(const lk__kernel_call *call, permutation *p, size_t size)
{
    int last = p->rank - 1;
    if (p->other != last) return size;
    while (size < 16) {
        bool whole =
            p->dims[last] % 2 == 0 && is_aligned(call->in[0].data, 2 * size) && is_aligned(call->out[0].data, 2 * size);
        for (int i = 0; whole && i < last; i++) whole = p->x_step[i] % 2 == 0;
        if (!whole) return size;
        for (int i = 0; i < last; i++) p->x_step[i] /= 2;
        for (int i = 0; i < last; i++) p->y_step[i] /= 2;
        p->dims[last] /= 2;
        p->n /= 2;
        size *= 2;
    }
    return size;
}

/* y's axis i has dims[i] elements and x_step[i] in x. */
static lk_status permute_axes(const lk__kernel_call *call, int rank, const int64_t *dims, const int64_t *x_step)
{
    permutation p = {};
    int64_t     step = 1;
    p.n = 1;
    for (int i = 0; i < rank; i++) {
        p.n *= dims[i];
        if (dims[i] == 1) continue;
        if (p.rank && p.x_step[p.rank - 1] == x_step[i] * dims[i]) {
            p.dims[p.rank - 1] *= dims[i];
            p.x_step[p.rank - 1] = x_step[i];
        } else {
            p.dims[p.rank] = dims[i];
            p.x_step[p.rank++] = x_step[i];
        }
    }
    if (p.n == 0) return LK_OK;
    if (p.rank == 0) p.dims[0] = 1, p.x_step[0] = 1, p.rank = 1;
    for (int i = p.rank - 1; i >= 0; i--) {
        p.y_step[i] = step;
        step *= p.dims[i];
        if (p.x_step[i] == 1) p.other = i;
    }
    size_t size = widen_unit(call, &p, cuda_size(call->out[0].dtype));
    for (int i = 0; i < p.rank; i++) p.over[i] = make_divider(p.dims[i]);
    switch (size) {
    case 16: launch_permute<uint4>(call, &p); break;
    case 8: launch_permute<uint64_t>(call, &p); break;
    case 4: launch_permute<uint32_t>(call, &p); break;
    case 2: launch_permute<uint16_t>(call, &p); break;
    default: launch_permute<uint8_t>(call, &p); break;
    }
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_permute(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int64_t                   x_step[LK_MAX_RANK], own[LK_MAX_RANK], step = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        own[i] = step;
        step *= x->dims[i];
    }
    for (int i = 0; i < x->rank; i++) x_step[i] = own[call->attrs->axes[i]];
    return permute_axes(call, x->rank, call->out[0].dims, x_step);
}

extern "C" lk_status lk__cuda_to_channels_last(const lk__kernel_call *call)
{
    const int64_t *d = call->in[0].dims, pixels = d[2] * d[3];
    const int64_t  dims[] = {d[0], pixels, d[1]}, step[] = {d[1] * pixels, 1, pixels};
    return permute_axes(call, 3, dims, step);
}

extern "C" lk_status lk__cuda_to_channels_first(const lk__kernel_call *call)
{
    const int64_t *d = call->in[0].dims, pixels = d[2] * d[3];
    const int64_t  dims[] = {d[0], d[1], pixels}, step[] = {d[1] * pixels, 1, d[1]};
    return permute_axes(call, 3, dims, step);
}
