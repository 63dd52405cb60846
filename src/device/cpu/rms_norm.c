/* rms_norm.c - RMS norm over the last dims, and its gradient; built like layer_norm.c. Bound by memory. */
#include "device/cpu/columns.h"

typedef struct rms {
    const ELEMENT *x, *dy, *residual; /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const REAL    *w, *saved;
    ELEMENT       *y, *sum; /* sum: x + residual */
    REAL          *rstd;
    int64_t        rows, n, tiles;
    double         epsilon;
    double        *partial; /* (tiles, n): dw */
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

static void grad_tile(void *argument, int64_t tile, int worker)
{
    const rms *s = argument;
    int64_t    begin = tile_begin(s->rows, s->tiles, tile), end = tile_begin(s->rows, s->tiles, tile + 1), stop;
    int64_t    block = max64(1, GRAIN / max64(s->n, 1)); /* rows that stay in the cache between the two readings */
    (void)worker;
    if (s->partial) memset(s->partial + tile * s->n, 0, (size_t)s->n * sizeof(double));
    for (; begin < end; begin = stop) {
        stop = min64(end, begin + block);
        for (int64_t row = begin; row < stop; row++) grad_row(s, row);
        if (s->partial) sum_columns(weight_term, s, begin, stop, s->n, s->partial + tile * s->n, NULL);
    }
}

static bool wants_weight(const lk__kernel_call *call) { return output(call, 1) != NULL; }

size_t KERNEL(rms_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    rms s;
    (void)threads;
    set_extents(&s, &call->in[1], call->attrs->axis, PARTS);
    return wants_weight(call) ? (size_t)(s.tiles * s.n) * sizeof(double) : 0;
}

void KERNEL(rms_norm_grad)(const lk__kernel_call *call)
{
    rms s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .saved = call->in[3].data};
    s.residual = input(call, 4);
    s.y = call->out[0].data;
    s.partial = wants_weight(call) ? call->workspace : NULL;
    set_extents(&s, &call->in[1], call->attrs->axis, PARTS);
    lk__pool_run(call->pool, s.tiles, grad_tile, &s);
    if (!wants_weight(call)) return;
    if (s.tiles > 0) add_parts(call->pool, s.partial, s.tiles, s.n);
    REAL *dw = call->out[1].data;
    for (int64_t i = 0; i < s.n; i++) dw[i] = s.tiles ? (REAL)s.partial[i] : 0;
}
