/* group_norm.c - group norm and its gradient. The channels of a group are contiguous, so a group is one row, whose
 * second read finds it in the cache; the gradients of weight and bias are partial sums over samples, which are added in
 * order. Bound by memory. */
#include "device/cpu/norm.h"

typedef struct grouped {
    const ELEMENT *x, *dy;
    const REAL    *w, *b, *saved_mean, *saved_rstd;
    ELEMENT       *y;
    REAL          *mean, *rstd;
    int64_t        samples, channels, groups, size; /* size: elements of a channel */
    int64_t        tiles;
    double         epsilon;
    double        *partial; /* (tiles, 2, channels): dw, db */
} grouped;

static grouped describe_operand(const lk__kernel_operand *x, const lk__op_attrs *attrs, int64_t most)
{
    grouped s = {.samples = x->dims[0], .channels = x->dims[1], .groups = attrs->groups, .epsilon = attrs->epsilon};
    s.size = dims_product(x, 2, x->rank);
    s.tiles = tile_count(s.samples, s.channels * s.size, most);
    return s;
}

static void normalise_group(const grouped *of, int64_t row)
{
    const grouped  s = *of;
    int64_t        each = s.channels / s.groups, n = each * s.size, first = row % s.groups * each;
    const ELEMENT *x = s.x + row * n;
    ELEMENT       *y = s.y + row * n;
    double         total = 0, squares = 0;
    SUM_VECTORS(total, i, n, load_part(x + i, lanes));
    REAL mean = (REAL)(total / (double)n);
    SUM_VECTORS(squares, i, n, ({
                    vec d = load_part(x + i, lanes) - mean;
                    d  *d;
                }));
    REAL rstd = (REAL)(1 / sqrt(squares / (double)n + s.epsilon));
    for (int64_t c = 0; c < each; c++, x += s.size, y += s.size) {
        REAL w = s.w ? s.w[first + c] : 1, b = s.b ? s.b[first + c] : 0;
        EACH_VECTOR(i, s.size, store_part(y + i, (load_part(x + i, lanes) - mean) * rstd * w + b, lanes););
    }
    s.mean[row] = mean;
    s.rstd[row] = rstd;
}

static void group_tile(void *argument, int64_t tile, int worker)
{
    const grouped *s = argument;
    int64_t        rows = s->samples * s->groups, end = tile_begin(rows, s->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(rows, s->tiles, tile); row < end; row++) normalise_group(s, row);
}

void KERNEL(group_norm)(const lk__kernel_call *call)
{
    grouped s = describe_operand(&call->in[0], call->attrs, 0);
    s.tiles = tile_count(s.samples * s.groups, s.channels / s.groups * s.size, 0);
    s.x = call->in[0].data;
    s.w = input(call, 1);
    s.b = input(call, 2);
    s.y = call->out[0].data;
    s.mean = call->out[1].data;
    s.rstd = call->out[2].data;
    lk__pool_run(call->pool, s.tiles, group_tile, &s);
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd; also dw and db. */
static void grad_group(const grouped *of, int64_t row, double *dw, double *db)
{
    const grouped  s = *of;
    int64_t        each = s.channels / s.groups, n = each * s.size, first = row % s.groups * each;
    const ELEMENT *x = s.x + row * n, *dy = s.dy + row * n;
    ELEMENT       *dx = s.y + row * n;
    REAL           mean = s.saved_mean[row], rstd = s.saved_rstd[row];
    double         total = 0, product = 0;
    for (int64_t c = 0; c < each; c++) {
        const ELEMENT *xc = x + c * s.size, *dyc = dy + c * s.size;
        double         sum = 0, moment = 0, w = s.w ? (double)s.w[first + c] : 1;
        SUM_VECTORS(sum, i, s.size, load_part(dyc + i, lanes));
        SUM_VECTORS(moment, i, s.size, load_part(dyc + i, lanes) * (load_part(xc + i, lanes) - mean));
        total += w * sum;
        product += w * moment;
        if (dw) dw[first + c] += moment * (double)rstd;
        if (db) db[first + c] += sum;
    }
    REAL level = (REAL)(total / (double)n);
    REAL slope = (REAL)(product / (double)n * (double)rstd * (double)rstd); /* of x - mean */
    for (int64_t c = 0; c < each; c++, x += s.size, dy += s.size, dx += s.size) {
        REAL w = s.w ? s.w[first + c] : 1;
        EACH_VECTOR(i, s.size, {
            vec g = load_part(dy + i, lanes) * w;
            store_part(dx + i, (g - level - (load_part(x + i, lanes) - mean) * slope) * rstd, lanes);
        });
    }
}

static void grad_tile(void *argument, int64_t tile, int worker)
{
    const grouped *s = argument;
    int64_t        end = tile_begin(s->samples, s->tiles, tile + 1) * s->groups;
    double        *dw = s->partial ? s->partial + tile * 2 * s->channels : NULL, *db = dw ? dw + s->channels : NULL;
    (void)worker;
    if (dw) memset(dw, 0, (size_t)(2 * s->channels) * sizeof *dw);
    for (int64_t row = tile_begin(s->samples, s->tiles, tile) * s->groups; row < end; row++) grad_group(s, row, dw, db);
}

size_t KERNEL(group_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    grouped s = describe_operand(&call->in[1], call->attrs, PARTS);
    (void)threads;
    return wants_weights(call, 2) ? (size_t)(s.tiles * 2 * s.channels) * sizeof(double) : 0;
}

void KERNEL(group_norm_grad)(const lk__kernel_call *call)
{
    grouped s = describe_operand(&call->in[1], call->attrs, PARTS);
    s.dy = call->in[0].data;
    s.x = call->in[1].data;
    s.w = input(call, 2);
    s.saved_mean = call->in[3].data;
    s.saved_rstd = call->in[4].data;
    s.y = call->out[0].data;
    s.partial = wants_weights(call, 2) ? call->workspace : NULL;
    lk__pool_run(call->pool, s.tiles, grad_tile, &s);
    if (!wants_weights(call, 2)) return;
    if (s.tiles > 0) add_parts(call->pool, s.partial, s.tiles, 2 * s.channels);
    write_sums(call, 2, s.channels, s.tiles ? s.partial : NULL, NULL);
}
