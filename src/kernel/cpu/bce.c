/* bce.c - binary cross-entropy of logits as a sum and a weight in double, and its gradient in the same pass. Tiles leave partial
 * sums that are added in order; exp and log bound it. */
#include "kernel/cpu/vmath.h"

typedef struct bce {
    const REAL *logits, *target, *weight; /* weight: one for `span` elements; NULL: 1 */
    REAL       *dlogits;                  /* NULL: nobody reads it */
    int64_t     rows, span, tiles;        /* without a weight one row is one element */
    double (*partial)[2];                 /* sum, weight */
} bce;

static bce describe(const lk__kernel_call *call)
{
    bce s = {.logits = call->in[0].data, .target = call->in[1].data, .weight = input(call, 2), .span = 1};
    s.rows = lk__operand_elements(&call->in[0]);
    if (s.weight) {
        s.span = dims_product(&call->in[0], call->in[2].rank, call->in[0].rank);
        s.rows = lk__operand_elements(&call->in[2]);
    }
    s.tiles = tile_count(s.rows, s.span, 0);
    s.partial = call->workspace;
    return s;
}

/* max(x, 0) - x t + log(1 + e^-|x|): no term overflows, and none cancels another. The slope is sigmoid(x) - t. */
INLINE vec loss_of(vec x, vec t, vec e) { return choose(x > 0, x, splat(0)) - x * t + vlog1p(e); }

/* n elements under one weight; their loss without it. */
static double row_loss(const REAL *x, const REAL *t, REAL *dx, REAL w, int64_t n)
{
    double total = 0;
    SUM_VECTORS(total, i, n, ({
                    vec a = load_part(x + i, lanes), b = load_part(t + i, lanes), e = vexp(-vabs(a));
                    if (dx) store_part(dx + i, (choose(a >= 0, splat(1), e) / (R(1.0) + e) - b) * w, lanes);
                    loss_of(a, b, e);
                }));
    return total;
}

static void weighted_tile(const bce *s, int64_t tile)
{
    double sum = 0, weight = 0;
    for (int64_t row = tile_begin(s->rows, s->tiles, tile); row < tile_begin(s->rows, s->tiles, tile + 1); row++) {
        int64_t at = row * s->span;
        sum += (double)s->weight[row] *
               row_loss(s->logits + at, s->target + at, s->dlogits ? s->dlogits + at : NULL, s->weight[row], s->span);
        weight += (double)s->weight[row] * (double)s->span;
    }
    s->partial[tile][0] = sum;
    s->partial[tile][1] = weight;
}

static void bce_tile(void *argument, int64_t tile, int worker)
{
    const bce *s = argument;
    int64_t    begin = tile_begin(s->rows, s->tiles, tile), n = tile_begin(s->rows, s->tiles, tile + 1) - begin;
    (void)worker;
    if (s->weight) {
        weighted_tile(s, tile);
        return;
    }
    s->partial[tile][0] = row_loss(s->logits + begin, s->target + begin, s->dlogits ? s->dlogits + begin : NULL, 1, n);
    s->partial[tile][1] = (double)n;
}

size_t KERNEL(bce_with_logits_workspace)(const lk__kernel_call *call, int threads)
{
    bce s = describe(call);
    (void)threads;
    return (size_t)s.tiles * sizeof *s.partial;
}

void KERNEL(bce_with_logits)(const lk__kernel_call *call)
{
    bce    s = describe(call);
    double total[2] = {0};
    s.dlogits = output(call, 2);
    lk__pool_run(call->pool, s.tiles, bce_tile, &s);
    for (int64_t tile = 0; tile < s.tiles; tile++)
        for (int k = 0; k < 2; k++) total[k] += s.partial[tile][k];
    for (int k = 0; k < 2; k++)
        if (output(call, k)) *(double *)output(call, k) = total[k];
}
