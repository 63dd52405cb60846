/* loss.c - cross-entropy fused with softmax, squared and absolute errors, each as a sum and a weight in double. Tiles
 * write partial sums that are added in order; exp bounds cross-entropy. */
#include "device/cpu/entropy.h"
#include "device/sum_parts.h"

typedef struct entropy {
    const REAL           *logits, *weight;
    const int32_t        *labels;
    REAL                 *probs; /* of cross_entropy_grad: the output as well */
    REAL                 *each;  /* of cross_entropy_each: the output */
    const REAL           *saved;
    int64_t               rows, classes, ignore, tiles;
    int64_t               whole, origin; /* classes of the whole row, and the first of this part */
    double                smoothing, dloss;
    row_statistics       *records;    /* (parts of these classes, rows): the output of class_statistics */
    const row_statistics *statistics; /* (parts, rows), where the classes are cut; NULL: they are whole */
    int64_t               parts;
    lk__sum_parts         sums; /* of these classes, each of which has a record */
    double (*partial)[3];       /* sum, weight, correct */
    int64_t *invalid;           /* row of the first label out of range */
} entropy;

static entropy describe_call(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    entropy                   e = {.labels = call->in[1].data, .weight = input(call, 2)};
    e.classes = x->dims[x->rank - 1];
    e.whole = lk__whole_extent(x, x->rank - 1);
    e.origin = lk__part_first(x, x->rank - 1);
    e.rows = dims_product(x, 0, x->rank - 1);
    e.ignore = call->attrs->ignore_index;
    e.smoothing = call->attrs->label_smoothing;
    e.partial = call->workspace;
    e.tiles = tile_count(e.rows, e.whole, 0);
    e.sums = lk__operand_sum_parts(call->attrs, x, x->rank - 1);
    return e;
}

/* The loss of logits, whose statistics may come from all parts. */
static entropy describe_loss(const lk__kernel_call *call)
{
    entropy e = describe_call(call);
    e.logits = call->in[0].data;
    e.statistics = input(call, 3);
    e.parts = e.statistics ? call->in[3].dims[0] : 0;
    return e;
}

static bool has_class(const entropy *e, int64_t label) { return label != e->ignore && label >= 0 && label < e->whole; }

/* The loss of a row with a class whose sums have several parts, or whose statistics come from several ranks. */
static double joined_loss_of_row(const entropy *e, int64_t row, REAL *probs, bool *correct)
{
    const REAL    *x = e->logits + row * e->classes;
    int64_t        label = e->labels[row];
    row_statistics all, own[LK__SUM_PARTS] = {{0}};
    if (e->statistics) {
        all = join_statistics(e->statistics, e->parts, e->rows, row);
    } else {
        parts_statistics(x, &e->sums, 0, label, e->smoothing, own, 1);
        all = join_statistics(own, e->sums.count, 1, 0);
    }
    *correct = all.first == (double)label && all.at_label == all.most;
    if (probs) part_softmax(&all, x, e->classes, probs);
    return joined_loss(&all, e->whole, e->smoothing);
}

/* The loss of a row with a class; its softmax goes to probs unless NULL. */
static double loss_of_row(const entropy *e, int64_t row, REAL *probs, bool *correct)
{
    if (e->statistics || e->sums.count > 1) return joined_loss_of_row(e, row, probs, correct);
    return row_loss(e->logits + row * e->classes, e->classes, e->labels[row], e->smoothing, probs, correct);
}

static void entropy_tile(void *argument, int64_t tile, int worker)
{
    const entropy *e = argument;
    double         sum = 0, weight = 0, right = 0;
    int64_t        end = tile_begin(e->rows, e->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(e->rows, e->tiles, tile); row < end; row++) {
        REAL   *probs = e->probs ? e->probs + row * e->classes : NULL;
        int64_t label = e->labels[row];
        double  w = e->weight ? (double)e->weight[row] : 1;
        bool    correct;
        if (!has_class(e, label)) {
            if (probs) memset(probs, 0, (size_t)e->classes * sizeof *probs);
            if (label == e->ignore) continue;
            sum = (double)NAN;
            keep_first(e->invalid, row);
            continue;
        }
        sum += w * loss_of_row(e, row, probs, &correct);
        weight += w;
        right += correct;
    }
    e->partial[tile][0] = sum;
    e->partial[tile][1] = weight;
    e->partial[tile][2] = right;
}

/* The rows' own losses. */
static void each_tile(void *argument, int64_t tile, int worker)
{
    const entropy *e = argument;
    int64_t        end = tile_begin(e->rows, e->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(e->rows, e->tiles, tile); row < end; row++) {
        REAL   *probs = e->probs ? e->probs + row * e->classes : NULL;
        int64_t label = e->labels[row];
        double  w = e->weight ? (double)e->weight[row] : 1;
        bool    correct;
        if (!has_class(e, label)) {
            if (probs) memset(probs, 0, (size_t)e->classes * sizeof *probs);
            e->each[row] = label == e->ignore ? 0 : (REAL)NAN;
            if (label != e->ignore) keep_first(e->invalid, row);
            continue;
        }
        e->each[row] = (REAL)(w * loss_of_row(e, row, probs, &correct));
    }
}

void KERNEL(cross_entropy_each)(const lk__kernel_call *call)
{
    entropy e = describe_loss(call);
    int64_t invalid = INT64_MAX;
    e.invalid = &invalid;
    e.each = call->out[0].data;
    e.probs = output(call, 1);
    lk__pool_run(call->pool, e.tiles, each_tile, &e);
    report_invalid(call, LK__OP_cross_entropy_each, e.labels, invalid, e.whole);
}

size_t KERNEL(cross_entropy_workspace)(const lk__kernel_call *call, int threads)
{
    const lk__kernel_operand *x = &call->in[0];
    (void)threads;
    return (size_t)tile_count(dims_product(x, 0, x->rank - 1), lk__whole_extent(x, x->rank - 1), 0) * sizeof(double[3]);
}

void KERNEL(cross_entropy)(const lk__kernel_call *call)
{
    entropy e = describe_loss(call);
    double  total[3] = {0};
    int64_t invalid = INT64_MAX;
    e.invalid = &invalid;
    e.probs = output(call, 3);
    lk__pool_run(call->pool, e.tiles, entropy_tile, &e);
    for (int64_t tile = 0; tile < e.tiles; tile++)
        for (int k = 0; k < 3; k++) total[k] += e.partial[tile][k];
    for (int k = 0; k < 3; k++)
        if (output(call, k)) *(double *)output(call, k) = total[k];
    report_invalid(call, LK__OP_cross_entropy, e.labels, invalid, e.whole);
}

static void entropy_grad_tile(void *argument, int64_t tile, int worker)
{
    const entropy *e = argument;
    int64_t        end = tile_begin(e->rows, e->tiles, tile + 1);
    REAL           even = (REAL)(e->smoothing / (double)e->whole);
    (void)worker;
    for (int64_t row = tile_begin(e->rows, e->tiles, tile); row < end; row++) {
        const REAL *probs = e->saved + row * e->classes;
        REAL       *dx = e->probs + row * e->classes;
        int64_t     label = e->labels[row], at = label - e->origin; /* in another part: not 0 … classes - 1 */
        bool        here = at >= 0 && at < e->classes;
        if (!has_class(e, label)) {
            memset(dx, 0, (size_t)e->classes * sizeof *dx);
            continue;
        }
        REAL factor = (REAL)(e->dloss * (e->weight ? (double)e->weight[row] : 1));
        REAL at_label = here ? probs[at] : 0; /* before dx replaces it */
        EACH_VECTOR(i, e->classes, store_part(dx + i, (load_part(probs + i, lanes) - even) * factor, lanes););
        if (here) dx[at] = (at_label - even - (REAL)(1 - e->smoothing)) * factor;
    }
}

void KERNEL(cross_entropy_grad)(const lk__kernel_call *call)
{
    entropy e = describe_call(call);
    e.saved = call->in[0].data;
    e.probs = call->out[0].data;
    e.dloss = input(call, 3) ? *(const double *)input(call, 3) : 1;
    lk__pool_run(call->pool, e.tiles, entropy_grad_tile, &e);
}

/* ---- class_statistics ---- */

static void statistics_tile(void *argument, int64_t tile, int worker)
{
    const entropy  *e = argument;
    row_statistics *to = e->records;
    int64_t         end = tile_begin(e->rows, e->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(e->rows, e->tiles, tile); row < end; row++) {
        int64_t     label = e->labels[row];
        const REAL *x = e->logits + row * e->classes;
        if (has_class(e, label))
            parts_statistics(x, &e->sums, e->origin, label, e->smoothing, to + row, e->rows);
        else
            for (int i = 0; i < e->sums.count; i++) to[i * e->rows + row] = (row_statistics){0};
    }
}

void KERNEL(class_statistics)(const lk__kernel_call *call)
{
    entropy e = describe_call(call);
    e.logits = call->in[0].data;
    e.records = call->out[0].data;
    lk__pool_run(call->pool, e.tiles, statistics_tile, &e);
}

/* ---- mse, l1 ---- */

typedef struct difference {
    const REAL *x, *target;
    REAL       *dx, factor;
    int64_t     n, tiles;
    double     *partial;
} difference;

INLINE vec square(vec d) { return d * d; }
INLINE vec sign(vec d) { return choose(d > 0, splat(1), choose(d < 0, splat(-1), splat(0))); }

/* A tile's sum of f(x - target), and a tile of slope(x - target) times the factor. */
#define DIFFERENCE(name, f, slope)                                                                                 \
    static void name##_tile(void *argument, int64_t tile, int worker)                                              \
    {                                                                                                              \
        const difference *s = argument;                                                                            \
        int64_t           begin = tile_begin(s->n, s->tiles, tile);                                                \
        int64_t           n = tile_begin(s->n, s->tiles, tile + 1) - begin;                                        \
        const REAL       *x = s->x + begin, *target = s->target + begin;                                           \
        double            total = 0;                                                                               \
        (void)worker;                                                                                              \
        SUM_VECTORS(total, i, n, f(load_part(x + i, lanes) - load_part(target + i, lanes)));                       \
        s->partial[tile] = total;                                                                                  \
    }                                                                                                              \
    static void name##_grad_tile(void *argument, int64_t tile, int worker)                                         \
    {                                                                                                              \
        const difference *s = argument;                                                                            \
        int64_t           begin = tile_begin(s->n, s->tiles, tile);                                                \
        int64_t           n = tile_begin(s->n, s->tiles, tile + 1) - begin;                                        \
        const REAL       *x = s->x + begin, *target = s->target + begin;                                           \
        (void)worker;                                                                                              \
        EACH_VECTOR(i, n, {                                                                                        \
            vec d = load_part(x + i, lanes) - load_part(target + i, lanes);                                        \
            store_part(s->dx + begin + i, slope(d) * s->factor, lanes);                                            \
        });                                                                                                        \
    }
#define HALF_SQUARE_SLOPE(d) (d)
DIFFERENCE(mse, square, HALF_SQUARE_SLOPE)
DIFFERENCE(l1, vabs, sign)
#undef HALF_SQUARE_SLOPE
#undef DIFFERENCE

static size_t difference_workspace(const lk__kernel_call *call)
{
    return (size_t)tile_count(lk__operand_elements(&call->in[0]), 1, 0) * sizeof(double);
}

static void add_differences(const lk__kernel_call *call, void (*tile)(void *, int64_t, int))
{
    difference s = {.x = call->in[0].data, .target = call->in[1].data, .partial = call->workspace};
    double     total = 0;
    s.n = lk__operand_elements(&call->in[0]);
    s.tiles = tile_count(s.n, 1, 0);
    lk__pool_run(call->pool, s.tiles, tile, &s);
    for (int64_t i = 0; i < s.tiles; i++) total += s.partial[i];
    *(double *)call->out[0].data = total;
    if (output(call, 1)) *(double *)output(call, 1) = (double)s.n;
}

static void difference_grad(const lk__kernel_call *call, double factor, void (*tile)(void *, int64_t, int))
{
    difference s = {.x = call->in[0].data, .target = call->in[1].data, .dx = call->out[0].data};
    double     dloss = input(call, 2) ? *(const double *)input(call, 2) : 1;
    s.factor = (REAL)(factor * dloss);
    s.n = lk__operand_elements(&call->out[0]);
    s.tiles = tile_count(s.n, 1, 0);
    lk__pool_run(call->pool, s.tiles, tile, &s);
}

size_t KERNEL(mse_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return difference_workspace(call);
}

size_t KERNEL(l1_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return difference_workspace(call);
}

void KERNEL(mse)(const lk__kernel_call *call) { add_differences(call, mse_tile); }
void KERNEL(mse_grad)(const lk__kernel_call *call) { difference_grad(call, 2, mse_grad_tile); }
void KERNEL(l1)(const lk__kernel_call *call) { add_differences(call, l1_tile); }
void KERNEL(l1_grad)(const lk__kernel_call *call) { difference_grad(call, 1, l1_grad_tile); }

/* ---- total ---- */

static void total_tile(void *argument, int64_t tile, int worker)
{
    const difference *s = argument;
    int64_t           begin = tile_begin(s->n, s->tiles, tile);
    int64_t           n = tile_begin(s->n, s->tiles, tile + 1) - begin;
    const REAL       *x = s->x + begin;
    double            total = 0;
    (void)worker;
    SUM_VECTORS(total, i, n, load_part(x + i, lanes));
    s->partial[tile] = total;
}

static double add_elements(const lk__kernel_call *call, const lk__kernel_operand *x)
{
    difference s = {.x = x->data, .partial = call->workspace, .n = lk__operand_elements(x)};
    double     total = 0;
    s.tiles = tile_count(s.n, 1, 0);
    lk__pool_run(call->pool, s.tiles, total_tile, &s);
    for (int64_t i = 0; i < s.tiles; i++) total += s.partial[i];
    return total;
}

size_t KERNEL(total_workspace)(const lk__kernel_call *call, int threads)
{
    int64_t x = lk__operand_elements(&call->in[0]), w = input(call, 1) ? lk__operand_elements(&call->in[1]) : 0;
    (void)threads;
    return (size_t)tile_count(x > w ? x : w, 1, 0) * sizeof(double);
}

void KERNEL(total)(const lk__kernel_call *call)
{
    *(double *)call->out[0].data = add_elements(call, &call->in[0]);
    *(double *)call->out[1].data =
        input(call, 1) ? add_elements(call, &call->in[1]) : (double)lk__operand_elements(&call->in[0]);
}
