/* layer_norm.c - layer norm over the last dims, and its gradient. A row is read again while it is in the cache. Bound
 * by memory. */
#include "device/cpu/norm.h"

static void normalise_row(const norm *of, int64_t row)
{
    const norm     s = *of;
    const ELEMENT *x = add_residual(&s, row);
    ELEMENT       *y = s.y + row * s.n;
    double         total = 0, squares = 0;
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
    (void)worker;
    normalise_tile(normalise_row, argument, tile);
}

void KERNEL(layer_norm)(const lk__kernel_call *call)
{
    norm s = {.x = call->in[0].data, .w = input(call, 1), .b = input(call, 2), .y = call->out[0].data};
    s.mean = call->out[1].data;
    s.rstd = call->out[2].data;
    s.residual = input(call, 3);
    s.sum = output(call, 3);
    s.epsilon = call->attrs->epsilon;
    set_extents(&s, &call->in[0], call->attrs->axis, 0);
    lk__pool_run(call->pool, s.tiles, layer_tile, &s);
}

/* grad_row's last part with the residual's gradient, which may be where dx is. */
static void grad_row_residual(const norm *of, int64_t row, REAL level, REAL slope)
{
    const norm     s = *of;
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
static void grad_row(const norm *of, int64_t row)
{
    const norm     s = *of;
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
    const norm *s = data;
    vec         d = load_part(s->dy + row * s->n + column, lanes);
    *first = d * ((load_part(s->x + row * s->n + column, lanes) - s->saved_mean[row]) * s->saved_rstd[row]);
    *second = d;
}

static void grad_tile(void *argument, int64_t tile, int worker)
{
    (void)worker;
    grad_tile_of(grad_row, weight_terms, 2, argument, tile);
}

size_t KERNEL(layer_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return grad_workspace(call, 2);
}

void KERNEL(layer_norm_grad)(const lk__kernel_call *call)
{
    norm s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .y = call->out[0].data, .sums = 2};
    s.saved_mean = call->in[3].data;
    s.saved_rstd = call->in[4].data;
    s.residual = input(call, 5);
    s.partial = wants_weights(call, 2) ? call->workspace : NULL;
    divide_rows(call, &s);
    run_grad(call, &s, grad_tile);
}
