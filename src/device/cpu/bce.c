/* bce.c - binary cross-entropy of logits as a sum and a weight in double, and its gradient in the same pass. Tiles
 * leave partial sums that are added in order; exp and log bound it. */
#include "device/cpu/vmath.h"

typedef struct bce {
    const REAL *logits, *target, *weight; /* weight: one for `span` elements; NULL: 1 */
    REAL       *dlogits;                  /* NULL: not read */
    int64_t     rows, span, tiles;        /* without a weight one row is one element */
    double (*partial)[2];                 /* sum, weight */
} bce;

static bce describe_call(const lk__kernel_call *call)
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

/* max(x, 0) - x t + log(1 + e^-|x|): no overflow and no cancellation. The derivative is sigmoid(x) - t. */
INLINE vec loss_of(vec x, vec t, vec e) { return choose(x > 0, x, splat(0)) - x * t + vlog1p(e); }

/* The loss of n elements. Their weights: one each, or one for all of them. */
INLINE double row_loss(const REAL *x, const REAL *t, REAL *dx, const REAL *w, const bool each, int64_t n)
{
    double total = 0;
    SUM_VECTORS(total, i, n, ({
                    vec a = load_part(x + i, lanes), b = load_part(t + i, lanes), e = vexp(-vabs(a));
                    vec weight = each ? load_part(w + i, lanes) : splat(*w);
                    if (dx) store_part(dx + i, (choose(a >= 0, splat(1), e) / (R(1.0) + e) - b) * weight, lanes);
                    loss_of(a, b, e) * weight;
                }));
    return total;
}

static double row_losses(const bce *s, int64_t row, int64_t rows, double *weight)
{
    static const REAL one = 1;
    int64_t           at = row * s->span;
    const REAL       *x = s->logits + at, *t = s->target + at;
    REAL             *dx = s->dlogits ? s->dlogits + at : NULL;
    double            sum = 0;
    if (!s->weight) {
        *weight += (double)rows;
        return row_loss(x, t, dx, &one, false, rows);
    }
    if (s->span == 1) {
        SUM_VECTORS(*weight, i, rows, load_part(s->weight + row + i, lanes));
        return row_loss(x, t, dx, s->weight + row, true, rows);
    }
    for (int64_t i = 0; i < rows; i++, x += s->span, t += s->span) {
        sum += row_loss(x, t, dx, s->weight + row + i, false, s->span);
        *weight += (double)s->weight[row + i] * (double)s->span;
        if (dx) dx += s->span;
    }
    return sum;
}

static void bce_tile(void *argument, int64_t tile, int worker)
{
    const bce *s = argument;
    int64_t    begin = tile_begin(s->rows, s->tiles, tile), n = tile_begin(s->rows, s->tiles, tile + 1) - begin;
    double     weight = 0;
    (void)worker;
    s->partial[tile][0] = row_losses(s, begin, n, &weight);
    s->partial[tile][1] = weight;
}

size_t KERNEL(bce_with_logits_workspace)(const lk__kernel_call *call, int threads)
{
    bce s = describe_call(call);
    (void)threads;
    return (size_t)s.tiles * sizeof *s.partial;
}

void KERNEL(bce_with_logits)(const lk__kernel_call *call)
{
    bce    s = describe_call(call);
    double total[2] = {0};
    s.dlogits = output(call, 2);
    lk__pool_run(call->pool, s.tiles, bce_tile, &s);
    for (int64_t tile = 0; tile < s.tiles; tile++)
        for (int k = 0; k < 2; k++) total[k] += s.partial[tile][k];
    for (int k = 0; k < 2; k++)
        if (output(call, k)) *(double *)output(call, k) = total[k];
}
