/* layer_norm.c - layer norm over the last dims, and its gradient. A row is read again while it is in the cache; the
 * gradients of weight and bias are partial sums over the rows, which are added in order. Bound by memory. */
#include "device/cpu/row_parts.h"

typedef struct layer {
    const ELEMENT *x, *dy, *residual; /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const REAL    *w, *b, *saved_mean, *saved_rstd;
    ELEMENT       *y, *sum; /* sum: x + residual */
    REAL          *mean, *rstd;
    int64_t        rows, n, tiles;
    double         epsilon;
    double        *partial; /* (tiles, 2, n): dw, db */
    row_parts      parts;   /* by_part: how rows are summed */
    bool           by_part;
} layer;

static void set_extents(layer *s, const lk__kernel_operand *x, int axis, int64_t most)
{
    s->rows = dims_product(x, 0, x->rank - axis);
    s->n = dims_product(x, x->rank - axis, x->rank);
    s->tiles = tile_count(s->rows, s->n, most);
}

static void normalise_row(const layer *of, int64_t row)
{
    const layer    s = *of;
    const ELEMENT *x = s.x + row * s.n;
    ELEMENT       *y = s.y + row * s.n;
    double         total = 0, squares = 0;
    if (s.residual) {
        const ELEMENT *added = s.residual + row * s.n;
        EACH_VECTOR(i, s.n,
                    store_part(s.sum + row * s.n + i, load_part(x + i, lanes) + load_part(added + i, lanes), lanes););
        x = s.sum + row * s.n;
    }
    SUM_VECTORS(total, i, s.n, load_part(x + i, lanes));
    REAL mean = (REAL)(total / (double)s.n);
    SUM_VECTORS(squares, i, s.n, ({
                    vec d = load_part(x + i, lanes) - mean;
                    d  *d;
                }));
    REAL rstd = (REAL)(1 / sqrt(squares / (double)s.n + s.epsilon));
    EACH_VECTOR(i, s.n, {
        vec out = (load_part(x + i, lanes) - mean) * rstd;
        if (s.w) out = out * load_part(s.w + i, lanes);
        if (s.b) out = out + load_part(s.b + i, lanes);
        store_part(y + i, out, lanes);
    });
    s.mean[row] = mean;
    s.rstd[row] = rstd;
}

static void layer_tile(void *argument, int64_t tile, int worker)
{
    const layer *s = argument;
    (void)worker;
    for (int64_t row = tile_begin(s->rows, s->tiles, tile); row < tile_begin(s->rows, s->tiles, tile + 1); row++)
        normalise_row(s, row);
}

void KERNEL(layer_norm)(const lk__kernel_call *call)
{
    layer s = {.x = call->in[0].data, .w = input(call, 1), .b = input(call, 2), .y = call->out[0].data};
    s.mean = call->out[1].data;
    s.rstd = call->out[2].data;
    s.residual = input(call, 3);
    s.sum = output(call, 3);
    s.epsilon = call->attrs->epsilon;
    set_extents(&s, &call->in[0], call->attrs->axis, 0);
    lk__pool_run(call->pool, s.tiles, layer_tile, &s);
}

/* grad_row's last part with the residual's gradient, which may be where dx is. */
static void grad_row_residual(const layer *of, int64_t row, REAL level, REAL slope)
{
    const layer    s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n, *added = s.residual + row * s.n;
    REAL           mean = s.saved_mean[row], rstd = s.saved_rstd[row];
    EACH_VECTOR(i, s.n, {
        vec g = load_part(dy + i, lanes);
        if (s.w) g = g * load_part(s.w + i, lanes);
        vec d = (g - level - (load_part(x + i, lanes) - mean) * slope) * rstd;
        store_part(s.y + row * s.n + i, d + load_part(added + i, lanes), lanes);
    });
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd. */
static void grad_row(const layer *of, int64_t row)
{
    const layer    s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n;
    ELEMENT       *dx = s.y + row * s.n;
    REAL           mean = s.saved_mean[row], rstd = s.saved_rstd[row];
    double         total = 0, product = 0;
    if (s.w) {
        SUM_VECTORS(total, i, s.n, load_part(dy + i, lanes) * load_part(s.w + i, lanes));
        SUM_VECTORS(product, i, s.n,
                    load_part(dy + i, lanes) * load_part(s.w + i, lanes) * (load_part(x + i, lanes) - mean));
    } else {
        SUM_VECTORS(total, i, s.n, load_part(dy + i, lanes));
        SUM_VECTORS(product, i, s.n, load_part(dy + i, lanes) * (load_part(x + i, lanes) - mean));
    }
    REAL level = (REAL)(total / (double)s.n);
    REAL slope = (REAL)(product / (double)s.n * (double)rstd * (double)rstd); /* of x - mean */
    if (s.residual) {
        grad_row_residual(of, row, level, slope);
        return;
    }
    EACH_VECTOR(i, s.n, {
        vec g = load_part(dy + i, lanes);
        if (s.w) g = g * load_part(s.w + i, lanes);
        store_part(dx + i, (g - level - (load_part(x + i, lanes) - mean) * slope) * rstd, lanes);
    });
}

INLINE void weight_terms(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const layer *s = data;
    vec          d = load_part(s->dy + row * s->n + column, lanes);
    *first = d * ((load_part(s->x + row * s->n + column, lanes) - s->saved_mean[row]) * s->saved_rstd[row]);
    *second = d;
}

/* Rows begin … end-1, which are added to dw and db unless partial is NULL. */
static void grad_rows(const layer *s, int64_t begin, int64_t end, double *partial)
{
    int64_t block = max64(1, GRAIN / max64(s->n, 1)), stop; /* rows that stay in the cache between the two readings */
    for (; begin < end; begin = stop) {
        stop = min64(end, begin + block);
        for (int64_t row = begin; row < stop; row++) grad_row(s, row);
        if (partial) sum_columns(weight_terms, s, begin, stop, s->n, partial, partial + s->n);
    }
}

static void grad_tile(void *argument, int64_t tile, int worker)
{
    const layer *s = argument;
    double      *partial = s->partial ? s->partial + tile * 2 * s->n : NULL;
    (void)worker;
    if (partial) memset(partial, 0, (size_t)(2 * s->n) * sizeof(double));
    if (!s->by_part) {
        grad_rows(s, tile_begin(s->rows, s->tiles, tile), tile_begin(s->rows, s->tiles, tile + 1), partial);
        return;
    }
    row_range r = row_parts_range(&s->parts, tile);
    for (int64_t first = r.sample * s->parts.tokens; r.sample < r.last; r.sample++, first += s->parts.tokens)
        grad_rows(s, first + r.begin, first + r.end, partial);
}

static bool wants_weights(const lk__kernel_call *call) { return output(call, 1) || output(call, 2); }

/* By parts of the rows where the sums over them may be cut. */
static void divide_rows(const lk__kernel_call *call, layer *s)
{
    const lk__kernel_operand *x = &call->in[1];
    set_extents(s, x, call->attrs->axis, PARTS);
    int dim = x->rank - (int)call->attrs->axis - 1; /* the last of the rows */
    s->by_part = wants_weights(call) && find_row_parts(call, x, dim, dims_product(x, 0, dim), s->n, &s->parts);
    if (s->by_part) s->tiles = row_parts_tiles(&s->parts);
}

size_t KERNEL(layer_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    layer s;
    (void)threads;
    divide_rows(call, &s);
    if (s.by_part) return row_parts_space(&s.parts, 1, 2 * s.n);
    return wants_weights(call) ? (size_t)(s.tiles * 2 * s.n) * sizeof(double) : 0;
}

void KERNEL(layer_norm_grad)(const lk__kernel_call *call)
{
    layer s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .y = call->out[0].data};
    s.saved_mean = call->in[3].data;
    s.saved_rstd = call->in[4].data;
    s.residual = input(call, 5);
    s.partial = wants_weights(call) ? call->workspace : NULL;
    divide_rows(call, &s);
    lk__pool_run(call->pool, s.tiles, grad_tile, &s);
    if (!wants_weights(call)) return;
    REAL *sums = s.by_part ? (REAL *)(s.partial + s.tiles * 2 * s.n) : NULL;
    if (sums)
        add_row_parts(call->pool, &s.parts, s.partial, 2 * s.n, sums);
    else if (s.tiles > 0)
        add_parts(call->pool, s.partial, s.tiles, 2 * s.n);
    for (int k = 1; k <= 2; k++) {
        REAL *out = output(call, k);
        for (int64_t i = 0, at = (k - 1) * s.n; out && i < s.n; i++, at++)
            out[i] = sums ? sums[at] : s.tiles ? (REAL)s.partial[at] : 0;
    }
}
