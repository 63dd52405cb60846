/* shape.c - moves elements without changing them: reshape, permute, slice, concat, conversion between channels first
 * and last. Elements are moved as 1, 2, 4 or 8 bytes whatever their type. Bound by memory. */
#include "device/cpu/lanes.h"

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint32_t quad_unaligned __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t half_quad __attribute__((vector_size(8)));
typedef uint16_t half_quad_unaligned __attribute__((vector_size(8), aligned(2), may_alias));

/* to[c * to_step + r] = from[r * from_step + c] for `rows` × `columns`; blocks keep both sides in cache lines. */
#define TRANSPOSE(bits)                                                                                             \
    static void transpose##bits(const uint##bits##_t *from, int64_t from_step, uint##bits##_t *to, int64_t to_step, \
                                int64_t rows, int64_t columns)                                                      \
    {                                                                                                               \
        for (int64_t r0 = 0; r0 < rows; r0 += 8)                                                                    \
            for (int64_t c = 0; c < columns; c++)                                                                   \
                for (int64_t r = r0; r < min64(rows, r0 + 8); r++) to[c * to_step + r] = from[r * from_step + c];   \
    }
TRANSPOSE(8)
TRANSPOSE(16)
TRANSPOSE(32)
TRANSPOSE(64)
#undef TRANSPOSE

/* The same for 2 and 4 bytes, 4×4 elements at a time; and images of three colours. */
#define TRANSPOSE_FAST(bits, quad, quad_unaligned)                                                                     \
    static void transpose_quads##bits(const uint##bits##_t *from, int64_t from_step, uint##bits##_t *to,               \
        int64_t to_step)                                                                                               \
    {                                                                                                                  \
        quad a = *(const quad_unaligned *)from, b = *(const quad_unaligned *)(from + from_step);                       \
        quad c = *(const quad_unaligned *)(from + 2 * from_step), d = *(const quad_unaligned *)(from + 3 * from_step); \
        quad ac_low = __builtin_shufflevector(a, c, 0, 4, 1, 5), ac_high = __builtin_shufflevector(a, c, 2, 6, 3, 7);  \
        quad bd_low = __builtin_shufflevector(b, d, 0, 4, 1, 5), bd_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);  \
        *(quad_unaligned *)to = __builtin_shufflevector(ac_low, bd_low, 0, 4, 1, 5);                                   \
        *(quad_unaligned *)(to + to_step) = __builtin_shufflevector(ac_low, bd_low, 2, 6, 3, 7);                       \
        *(quad_unaligned *)(to + 2 * to_step) = __builtin_shufflevector(ac_high, bd_high, 0, 4, 1, 5);                 \
        *(quad_unaligned *)(to + 3 * to_step) = __builtin_shufflevector(ac_high, bd_high, 2, 6, 3, 7);                 \
    }                                                                                                                  \
    static void interleave##bits(const uint##bits##_t *restrict a, const uint##bits##_t *restrict b,                   \
                                 const uint##bits##_t *restrict c, uint##bits##_t *restrict to, int64_t n)             \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            to[3 * i] = a[i];                                                                                          \
            to[3 * i + 1] = b[i];                                                                                      \
            to[3 * i + 2] = c[i];                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void transpose_fast##bits(const uint##bits##_t *x, int64_t from_step, uint##bits##_t *y, int64_t to_step,   \
                                     int64_t rows, int64_t columns)                                                    \
    {                                                                                                                  \
        if (rows == 3 && to_step == 3) {                                                                               \
            interleave##bits(x, x + from_step, x + 2 * from_step, y, columns);                                         \
            return;                                                                                                    \
        }                                                                                                              \
        int64_t whole_rows = rows & ~3, whole_columns = columns & ~3;                                                  \
        for (int64_t r = 0; r < whole_rows; r += 4)                                                                    \
            for (int64_t c = 0; c < whole_columns; c += 4)                                                             \
                transpose_quads##bits(x + r * from_step + c, from_step, y + c * to_step + r, to_step);                 \
        transpose##bits(x + whole_columns, from_step, y + whole_columns * to_step, to_step, whole_rows,                \
                        columns - whole_columns);                                                                      \
        transpose##bits(x + whole_rows * from_step, from_step, y + whole_rows, to_step, rows - whole_rows, columns);   \
    }
TRANSPOSE_FAST(16, half_quad, half_quad_unaligned)
TRANSPOSE_FAST(32, quad, quad_unaligned)
#undef TRANSPOSE_FAST

static void transpose(const void *from, int64_t from_step, void *to, int64_t to_step, int64_t rows, int64_t columns,
                      size_t size)
{
    switch (size) {
    case 1: transpose8(from, from_step, to, to_step, rows, columns); return;
    case 2: transpose_fast16(from, from_step, to, to_step, rows, columns); return;
    case 4: transpose_fast32(from, from_step, to, to_step, rows, columns); return;
    default: transpose64(from, from_step, to, to_step, rows, columns); return;
    }
}

/* The iteration of a permute, in elements: y's axes are merged where they are contiguous in x. */
typedef struct permutation {
    const char *x;
    char       *y;
    size_t      size;
    int         rank;
    int64_t     dims[LK_MAX_RANK], x_step[LK_MAX_RANK], y_step[LK_MAX_RANK]; /* in y's order */
    int         other;                  /* the axis along which x is contiguous; y is along the last */
    int64_t     outer;                  /* the product of the axes that are neither */
    int64_t     columns, blocks, block; /* x's run is split into blocks, so that one large matrix makes many tiles */
    int64_t     tiles;
} permutation;

static void permute_tile(void *argument, int64_t tile, int worker)
{
    const permutation *p = argument;
    int                last = p->rank - 1;
    int64_t            items = p->outer * p->blocks, end = tile_begin(items, p->tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(items, p->tiles, tile); item < end; item++) {
        int64_t rest = item / p->blocks, begin = item % p->blocks * p->block, x = begin,
                y = begin * p->y_step[p->other];
        int64_t n = min64(p->block, p->columns - begin);
        for (int i = last; i >= 0; i--) {
            if (i == last || i == p->other) continue;
            x += rest % p->dims[i] * p->x_step[i];
            y += rest % p->dims[i] * p->y_step[i];
            rest /= p->dims[i];
        }
        if (p->other == last)
            memcpy(p->y + (size_t)y * p->size, p->x + (size_t)x * p->size, (size_t)n * p->size);
        else
            transpose(p->x + (size_t)x * p->size, p->x_step[last], p->y + (size_t)y * p->size, p->y_step[p->other],
                      p->dims[last], n, p->size);
    }
}

/* y's axis i has dims[i] elements and x_step[i] in x. Axes of size 1 and axes that stay neighbours are merged. */
static void permute_axes(const lk__kernel_call *call, int rank, const int64_t *dims, const int64_t *x_step)
{
    permutation p = {.x = call->in[0].data, .y = call->out[0].data, .size = lk_dtype_size(call->out[0].dtype)};
    int64_t     n = 1, step = 1;
    for (int i = 0; i < rank; i++) {
        n *= dims[i];
        if (dims[i] == 1) continue;
        if (p.rank && p.x_step[p.rank - 1] == x_step[i] * dims[i]) {
            p.dims[p.rank - 1] *= dims[i];
            p.x_step[p.rank - 1] = x_step[i];
        } else {
            p.dims[p.rank] = dims[i];
            p.x_step[p.rank++] = x_step[i];
        }
    }
    if (n == 0) return;
    if (p.rank == 0) p.dims[0] = 1, p.x_step[0] = 1, p.rank = 1;
    for (int i = p.rank - 1; i >= 0; i--) {
        p.y_step[i] = step;
        step *= p.dims[i];
        if (p.x_step[i] == 1) p.other = i;
    }
    int64_t last = p.dims[p.rank - 1];
    p.columns = p.dims[p.other];
    p.outer = n / (p.other == p.rank - 1 ? last : last * p.columns);
    p.block = p.other == p.rank - 1 ? GRAIN : max64(16, GRAIN / last & ~15);
    p.blocks = tiles_of(p.columns, p.block);
    p.tiles = tile_count(p.outer * p.blocks, n / (p.outer * p.blocks), 0);
    lk__pool_run(call->pool, p.tiles, permute_tile, &p);
}

void KERNEL(permute)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int64_t                   x_step[LK_MAX_RANK], own[LK_MAX_RANK], step = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        own[i] = step;
        step *= x->dims[i];
    }
    for (int i = 0; i < x->rank; i++) x_step[i] = own[call->attrs->axes[i]];
    permute_axes(call, x->rank, call->out[0].dims, x_step);
}

void KERNEL(to_channels_last)(const lk__kernel_call *call)
{
    const int64_t *d = call->in[0].dims, pixels = d[2] * d[3];
    permute_axes(call, 3, (int64_t[]){d[0], pixels, d[1]}, (int64_t[]){d[1] * pixels, 1, pixels});
}

void KERNEL(to_channels_first)(const lk__kernel_call *call)
{
    const int64_t *d = call->in[0].dims, pixels = d[2] * d[3];
    permute_axes(call, 3, (int64_t[]){d[0], d[1], pixels}, (int64_t[]){d[1] * pixels, 1, d[1]});
}

/* Copies rows of bytes; the bytes before and after each in the destination are zeroed or not changed. */
typedef struct rows_copy {
    const char *from;
    char       *to;
    int64_t     rows, bytes, from_step, to_step, tiles;
    int64_t     before, after; /* bytes of zeros around each row */
} rows_copy;

static void copy_tile(void *argument, int64_t tile, int worker)
{
    const rows_copy *c = argument;
    int64_t          end = tile_begin(c->rows, c->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(c->rows, c->tiles, tile); row < end; row++) {
        char *to = c->to + row * c->to_step;
        if (c->before) memset(to - c->before, 0, (size_t)c->before);
        if (c->bytes) memcpy(to, c->from + row * c->from_step, (size_t)c->bytes);
        if (c->after) memset(to + c->bytes, 0, (size_t)c->after);
    }
}

static void copy_rows(const lk__kernel_call *call, rows_copy *c)
{
    c->tiles = tile_count(c->rows, (c->bytes + c->before + c->after) / 4, 0);
    lk__pool_run(call->pool, c->tiles, copy_tile, c);
}

static void copy_bytes(const lk__kernel_call *call)
{
    int64_t bytes = lk__operand_elements(&call->out[0]) * (int64_t)lk_dtype_size(call->out[0].dtype), row = 4 * GRAIN;
    if (call->in[0].data == call->out[0].data) return;
    rows_copy whole = {.from = call->in[0].data, .to = call->out[0].data, .rows = bytes / row, .bytes = row};
    whole.from_step = whole.to_step = row;
    copy_rows(call, &whole);
    int64_t done = bytes / row * row;
    if (done < bytes)
        memcpy((char *)call->out[0].data + done, (const char *)call->in[0].data + done, (size_t)(bytes - done));
}

void KERNEL(reshape)(const lk__kernel_call *call) { copy_bytes(call); }
void KERNEL(stop_gradient)(const lk__kernel_call *call) { copy_bytes(call); }

void KERNEL(slice)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = dims_product(x, axis + 1, x->rank) * (int64_t)lk_dtype_size(x->dtype);
    rows_copy                 c = {.to = call->out[0].data, .rows = dims_product(x, 0, axis)};
    c.from = (const char *)x->data + call->attrs->start * inner;
    c.to_step = c.bytes = call->out[0].dims[axis] * inner;
    c.from_step = x->dims[axis] * inner;
    copy_rows(call, &c);
}

void KERNEL(slice_grad)(const lk__kernel_call *call)
{
    const lk__kernel_operand *dx = &call->out[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = dims_product(dx, axis + 1, dx->rank) * (int64_t)lk_dtype_size(dx->dtype);
    rows_copy                 c = {.from = call->in[0].data, .rows = dims_product(dx, 0, axis)};
    c.before = call->attrs->start * inner;
    c.to = (char *)dx->data + c.before;
    c.from_step = c.bytes = call->in[0].dims[axis] * inner;
    c.to_step = dx->dims[axis] * inner;
    c.after = c.to_step - c.before - c.bytes;
    copy_rows(call, &c);
}

void KERNEL(concat)(const lk__kernel_call *call)
{
    const lk__kernel_operand *y = &call->out[0];
    int                       axis = call->attrs->axis;
    int64_t                   inner = dims_product(y, axis + 1, y->rank) * (int64_t)lk_dtype_size(y->dtype), at = 0;
    for (int i = 0; i < call->inputs; i++) {
        const lk__kernel_operand *x = &call->in[i];
        if (!x->data) continue;
        rows_copy c = {.from = x->data, .to = (char *)y->data + at, .rows = dims_product(y, 0, axis)};
        c.from_step = c.bytes = x->dims[axis] * inner;
        c.to_step = y->dims[axis] * inner;
        at += c.bytes;
        if (c.bytes) copy_rows(call, &c);
    }
}
