/* rms_norm.c - RMS norm over the last dims, and its gradient; built like layer_norm.c. Bound by memory. */
#include "device/cpu/row_parts.h"

typedef struct rms {
    const ELEMENT *x, *dy, *residual; /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const REAL    *w, *saved;
    ELEMENT       *y, *sum; /* sum: x + residual */
    REAL          *rstd;
    int64_t        rows, n, tiles;
    double         epsilon;
    double        *partial; /* (tiles, n): dw */
    row_parts      parts;   /* by_part: how rows are summed */
    bool           by_part;
} rms;

static void set_extents(rms *s, const lk__kernel_operand *x, int axis, int64_t most)
{
    s->rows = dims_product(x, 0, x->rank - axis);
    s->n = dims_product(x, x->rank - axis, x->rank);
    s->tiles = tile_count(s->rows, s->n, most);
}

static void normalise_row(const rms *of, int64_t row)
{
    const rms      s = *of;
    const ELEMENT *x = s.x + row * s.n;
    ELEMENT       *y = s.y + row * s.n;
    double         squares = 0;
    if (s.residual) {
        const ELEMENT *added = s.residual + row * s.n;
        EACH_VECTOR(i, s.n,
                    store_part(s.sum + row * s.n + i, load_part(x + i, lanes) + load_part(added + i, lanes), lanes););
        x = s.sum + row * s.n;
    }
    SUM_VECTORS(squares, i, s.n, load_part(x + i, lanes) * load_part(x + i, lanes));
    REAL rstd = (REAL)(1 / sqrt(squares / (double)s.n + s.epsilon));
    EACH_VECTOR(i, s.n, {
        vec out = load_part(x + i, lanes) * rstd;
        if (s.w) out = out * load_part(s.w + i, lanes);
        store_part(y + i, out, lanes);
    });
    s.rstd[row] = rstd;
}

static void rms_tile(void *argument, int64_t tile, int worker)
{
    const rms *s = argument;
    (void)worker;
    for (int64_t row = tile_begin(s->rows, s->tiles, tile); row < tile_begin(s->rows, s->tiles, tile + 1); row++)
        normalise_row(s, row);
}

void KERNEL(rms_norm)(const lk__kernel_call *call)
{
    rms s = {.x = call->in[0].data, .w = input(call, 1), .y = call->out[0].data, .rstd = call->out[1].data};
    s.residual = input(call, 2);
    s.sum = output(call, 2);
    s.epsilon = call->attrs->epsilon;
    set_extents(&s, &call->in[0], call->attrs->axis, 0);
    lk__pool_run(call->pool, s.tiles, rms_tile, &s);
}

/* grad_row's last part with the residual's gradient, which may be where dx is. */
static void grad_row_residual(const rms *of, int64_t row, REAL slope)
{
    const rms      s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n, *added = s.residual + row * s.n;
    REAL           rstd = s.saved[row];
    EACH_VECTOR(i, s.n, {
        vec g = load_part(dy + i, lanes);
        if (s.w) g = g * load_part(s.w + i, lanes);
        vec d = (g - load_part(x + i, lanes) * slope) * rstd;
        store_part(s.y + row * s.n + i, d + load_part(added + i, lanes), lanes);
    });
}

/* dx = rstd (g - x rstd² mean(g x)), with g = dy w. */
static void grad_row(const rms *of, int64_t row)
{
    const rms      s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n;
    ELEMENT       *dx = s.y + row * s.n;
    REAL           rstd = s.saved[row];
    double         product = 0;
    if (s.w)
        SUM_VECTORS(product, i, s.n, load_part(dy + i, lanes) * load_part(s.w + i, lanes) * load_part(x + i, lanes));
    else
        SUM_VECTORS(product, i, s.n, load_part(dy + i, lanes) * load_part(x + i, lanes));
    REAL slope = (REAL)(product / (double)s.n * (double)rstd * (double)rstd);
    if (s.residual) {
        grad_row_residual(of, row, slope);
        return;
    }
    EACH_VECTOR(i, s.n, {
        vec g = load_part(dy + i, lanes);
        if (s.w) g = g * load_part(s.w + i, lanes);
        store_part(dx + i, (g - load_part(x + i, lanes) * slope) * rstd, lanes);
    });
}

INLINE void weight_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const rms *s = data;
    (void)second;
    *first =
        load_part(s->dy + row * s->n + column, lanes) * (load_part(s->x + row * s->n + column, lanes) * s->saved[row]);
}

/* Rows begin … end-1, which are added to dw unless partial is NULL. */
static void grad_rows(const rms *s, int64_t begin, int64_t end, double *partial)
{
    int64_t block = max64(1, GRAIN / max64(s->n, 1)), stop; /* rows that stay in the cache between the two readings */
    for (; begin < end; begin = stop) {
        stop = min64(end, begin + block);
        for (int64_t row = begin; row < stop; row++) grad_row(s, row);
        if (partial) sum_columns(weight_term, s, begin, stop, s->n, partial, NULL);
    }
}

static void grad_tile(void *argument, int64_t tile, int worker)
{
    const rms *s = argument;
    double    *partial = s->partial ? s->partial + tile * s->n : NULL;
    (void)worker;
    if (partial) memset(partial, 0, (size_t)s->n * sizeof(double));
    if (!s->by_part) {
        grad_rows(s, tile_begin(s->rows, s->tiles, tile), tile_begin(s->rows, s->tiles, tile + 1), partial);
        return;
    }
    row_range r = row_parts_range(&s->parts, tile);
    for (int64_t first = r.sample * s->parts.tokens; r.sample < r.last; r.sample++, first += s->parts.tokens)
        grad_rows(s, first + r.begin, first + r.end, partial);
}

static bool wants_weight(const lk__kernel_call *call) { return output(call, 1) != NULL; }

/* By parts of the rows where the sum over them may be cut. */
static void divide_rows(const lk__kernel_call *call, rms *s)
{
    const lk__kernel_operand *x = &call->in[1];
    set_extents(s, x, call->attrs->axis, PARTS);
    int dim = x->rank - (int)call->attrs->axis - 1; /* the last of the rows */
    s->by_part = wants_weight(call) && find_row_parts(call, x, dim, dims_product(x, 0, dim), s->n, &s->parts);
    if (s->by_part) s->tiles = row_parts_tiles(&s->parts);
}

size_t KERNEL(rms_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    rms s;
    (void)threads;
    divide_rows(call, &s);
    if (s.by_part) return row_parts_space(&s.parts, 1, s.n);
    return wants_weight(call) ? (size_t)(s.tiles * s.n) * sizeof(double) : 0;
}

void KERNEL(rms_norm_grad)(const lk__kernel_call *call)
{
    rms s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .saved = call->in[3].data};
    s.residual = input(call, 4);
    s.y = call->out[0].data;
    s.partial = wants_weight(call) ? call->workspace : NULL;
    divide_rows(call, &s);
    lk__pool_run(call->pool, s.tiles, grad_tile, &s);
    if (!wants_weight(call)) return;
    REAL *sums = s.by_part ? (REAL *)(s.partial + s.tiles * s.n) : NULL;
    if (sums)
        add_row_parts(call->pool, &s.parts, s.partial, s.n, sums);
    else if (s.tiles > 0)
        add_parts(call->pool, s.partial, s.tiles, s.n);
    REAL *dw = call->out[1].data;
    for (int64_t i = 0; i < s.n; i++) dw[i] = sums ? sums[i] : s.tiles ? (REAL)s.partial[i] : 0;
}
