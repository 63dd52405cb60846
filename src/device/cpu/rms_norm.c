/* rms_norm.c - RMS norm over the last dims, and its gradient; built like layer_norm.c. Bound by memory. */
#include "device/cpu/norm.h"

static void normalise_row(const norm *of, int64_t row)
{
    const norm     s = *of;
    const ELEMENT *x = add_residual(&s, row);
    ELEMENT       *y = s.y + row * s.n;
    double         squares = 0;
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
    (void)worker;
    normalise_tile(normalise_row, argument, tile);
}

void KERNEL(rms_norm)(const lk__kernel_call *call)
{
    norm s = {.x = call->in[0].data, .w = input(call, 1), .y = call->out[0].data, .rstd = call->out[1].data};
    s.residual = input(call, 2);
    s.sum = output(call, 2);
    s.epsilon = call->attrs->epsilon;
    set_extents(&s, &call->in[0], call->attrs->axis, 0);
    lk__pool_run(call->pool, s.tiles, rms_tile, &s);
}

/* grad_row's last part with the residual's gradient, which may be where dx is. */
static void grad_row_residual(const norm *of, int64_t row, REAL slope)
{
    const norm     s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n, *added = s.residual + row * s.n;
    REAL           rstd = s.saved_rstd[row];
    EACH_VECTOR(i, s.n, {
        vec g = load_part(dy + i, lanes);
        if (s.w) g = g * load_part(s.w + i, lanes);
        vec d = (g - load_part(x + i, lanes) * slope) * rstd;
        store_part(s.y + row * s.n + i, d + load_part(added + i, lanes), lanes);
    });
}

/* dx = rstd (g - x rstd² mean(g x)), with g = dy w. */
static void grad_row(const norm *of, int64_t row)
{
    const norm     s = *of;
    const ELEMENT *x = s.x + row * s.n, *dy = s.dy + row * s.n;
    ELEMENT       *dx = s.y + row * s.n;
    REAL           rstd = s.saved_rstd[row];
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
    const norm *s = data;
    (void)second;
    *first = load_part(s->dy + row * s->n + column, lanes) *
             (load_part(s->x + row * s->n + column, lanes) * s->saved_rstd[row]);
}

static void grad_tile(void *argument, int64_t tile, int worker)
{
    (void)worker;
    grad_tile_of(grad_row, weight_term, 1, argument, tile);
}

size_t KERNEL(rms_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return grad_workspace(call, 1);
}

void KERNEL(rms_norm_grad)(const lk__kernel_call *call)
{
    norm s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .y = call->out[0].data, .sums = 1};
    s.saved_rstd = call->in[3].data;
    s.residual = input(call, 4);
    s.partial = wants_weights(call, 1) ? call->workspace : NULL;
    divide_rows(call, &s);
    run_grad(call, &s, grad_tile);
}
