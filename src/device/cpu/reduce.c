/* reduce.c - sum and mean over axes, their gradient, and the sum of squares. Adjacent axes that are treated alike are
 * merged, so nearly every sum is over the middle of (a, b, c); long sums are split into partial sums that are added in
 * order. */
#include "device/cpu/columns.h"

/* x's axes, merged, without axes of size 1. */
typedef struct groups {
    int     rank;
    int64_t dims[LK_MAX_RANK];
    bool    reduced[LK_MAX_RANK];
    int64_t added; /* elements that go into one sum */
} groups;

static groups merge_axes(const lk__kernel_operand *x, uint32_t mask)
{
    groups g = {.added = 1};
    for (int axis = 0; axis < x->rank; axis++) {
        bool reduced = mask >> axis & 1;
        if (reduced) g.added *= x->dims[axis];
        if (x->dims[axis] == 1) continue;
        if (g.rank && g.reduced[g.rank - 1] == reduced) {
            g.dims[g.rank - 1] *= x->dims[axis];
        } else {
            g.dims[g.rank] = x->dims[axis];
            g.reduced[g.rank++] = reduced;
        }
    }
    return g;
}

typedef struct sum {
    const REAL *x;
    REAL       *y;
    int64_t     a, b, c; /* y (a, c) = sum over b */
    int64_t     parts, tiles;
    double     *partial; /* (a, parts, c) when parts > 1 */
    double      divisor;
    groups      g; /* of the general case */
} sum;

/* True when the pattern is kept?-reduced?-kept?. */
static bool is_simple(const groups *g, sum *s)
{
    int64_t *slots[] = {&s->a, &s->b, &s->c};
    int      slot = 0;
    s->a = s->b = s->c = 1;
    for (int i = 0; i < g->rank; i++) {
        while (slot < 3 && g->reduced[i] != (slot == 1)) slot++;
        if (slot == 3) return false;
        *slots[slot++] = g->dims[i];
    }
    if (s->b == 1) s->c *= s->a, s->a = 1; /* nothing to add: one row to copy */
    return true;
}

/* How many parts each sum is split into, so that there is work for many threads: a × parts stays below 2 PARTS. */
static int64_t parts_of(const sum *s)
{
    int64_t wanted = tiles_of(PARTS, max64(s->a, 1));
    return max64(1, min64(min64(wanted, s->b), tiles_of(s->b * s->c, GRAIN)));
}

size_t KERNEL(sum_workspace)(const lk__kernel_call *call, int threads)
{
    groups g = merge_axes(&call->in[0], call->attrs->mask);
    sum    s;
    (void)threads;
    if (!is_simple(&g, &s) || s.b == 1) return 0;
    int64_t most = min64(s.b, tiles_of(s.b * s.c, GRAIN)); /* parts, whatever the count along a */
    return most > 1 ? (size_t)(min64(2 * PARTS, s.a * most) * s.c) * sizeof(double) : 0;
}

INLINE void element_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const sum *s = data;
    (void)second;
    *first = load_part(s->x + row * s->c + column, lanes);
}

/* The sums over rows begin … end-1 of (a, b, c) as (a b, c), accumulated in double, in strips that fit on the stack. */
static void sum_rows(const sum *s, int64_t begin, int64_t end, REAL *y, double *partial)
{
    enum { STRIP = 64 * VL };
    double buffer[STRIP];
    if (partial) {
        memset(partial, 0, (size_t)s->c * sizeof *partial);
        sum_columns(element_term, s, begin, end, s->c, partial, NULL);
        return;
    }
    for (int64_t column = 0; column < s->c; column += STRIP) {
        sum     strip = *s;
        int64_t columns = min64(STRIP, s->c - column);
        strip.x += column;
        memset(buffer, 0, sizeof buffer);
        sum_columns(element_term, &strip, begin, end, columns, buffer, NULL);
        for (int64_t i = 0; i < columns; i++) y[column + i] = (REAL)(buffer[i] / s->divisor);
    }
}

static void sum_tile(void *argument, int64_t tile, int worker)
{
    const sum *s = argument;
    int64_t    items = s->a * s->parts, stop = tile_begin(items, s->tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(items, s->tiles, tile); item < stop; item++) {
        int64_t row = item / s->parts, part = item % s->parts;
        int64_t begin = tile_begin(s->b, s->parts, part), end = tile_begin(s->b, s->parts, part + 1);
        double *partial = s->parts > 1 ? s->partial + item * s->c : NULL;
        if (s->c > 1) {
            sum_rows(s, row * s->b + begin, row * s->b + end, s->y + row * s->c, partial);
            continue;
        }
        const REAL *x = s->x + row * s->b + begin;
        double      total = 0;
        SUM_VECTORS(total, i, end - begin, load_part(x + i, lanes));
        if (partial)
            *partial = total;
        else
            s->y[row] = (REAL)(total / s->divisor);
    }
}

static void finish_sums(const sum *s, lk__pool *pool)
{
    for (int64_t row = 0; row < s->a; row++) {
        double *total = s->partial + row * s->parts * s->c;
        add_parts(pool, total, s->parts, s->c);
        for (int64_t i = 0; i < s->c; i++) s->y[row * s->c + i] = (REAL)(total[i] / s->divisor);
    }
}

/* Any pattern of axes, one element of y after the other. */
static void general_tile(void *argument, int64_t tile, int worker)
{
    const sum *s = argument;
    int64_t    kept[LK_MAX_RANK], kept_step[LK_MAX_RANK], dims[LK_MAX_RANK], steps[LK_MAX_RANK], step = 1;
    int        kept_rank = 0, rank = 0; /* innermost first */
    for (int i = s->g.rank - 1; i >= 0; step *= s->g.dims[i--]) {
        if (s->g.reduced[i]) {
            dims[rank] = s->g.dims[i];
            steps[rank++] = step;
        } else {
            kept[kept_rank] = s->g.dims[i];
            kept_step[kept_rank++] = step;
        }
    }
    int64_t stop = tile_begin(s->a, s->tiles, tile + 1), runs = s->g.added / dims[0];
    (void)worker;
    for (int64_t out = tile_begin(s->a, s->tiles, tile); out < stop; out++) {
        const REAL *base = s->x;
        double      total = 0;
        int64_t     rest = out;
        for (int i = 0; i < kept_rank; rest /= kept[i++]) base += rest % kept[i] * kept_step[i];
        for (int64_t run = 0; run < runs; run++) {
            const REAL *x = base;
            rest = run;
            for (int i = 1; i < rank; rest /= dims[i++]) x += rest % dims[i] * steps[i];
            if (steps[0] == 1)
                SUM_VECTORS(total, i, dims[0], load_part(x + i, lanes));
            else
                for (int64_t i = 0; i < dims[0]; i++) total += (double)x[i * steps[0]];
        }
        s->y[out] = (REAL)(total / s->divisor);
    }
}

void KERNEL(sum)(const lk__kernel_call *call)
{
    sum s = {.x = call->in[0].data, .y = call->out[0].data, .partial = call->workspace};
    s.g = merge_axes(&call->in[0], call->attrs->mask);
    s.divisor = call->attrs->mean ? (double)s.g.added : 1;
    if (lk__operand_elements(&call->out[0]) == 0) return;
    if (s.g.added == 0) { /* sums of nothing; their mean is NaN, as in PyTorch */
        for (int64_t i = 0, n = lk__operand_elements(&call->out[0]); i < n; i++) s.y[i] = (REAL)(0 / s.divisor);
        return;
    }
    if (!is_simple(&s.g, &s)) {
        s.a = lk__operand_elements(&call->out[0]);
        s.tiles = tile_count(s.a, s.g.added, 0);
        lk__pool_run(call->pool, s.tiles, general_tile, &s);
        return;
    }
    s.parts = parts_of(&s);
    s.tiles = tile_count(s.a * s.parts, tiles_of(s.b, s.parts) * s.c, 0);
    lk__pool_run(call->pool, s.tiles, sum_tile, &s);
    if (s.parts > 1) finish_sums(&s, call->pool);
}

typedef struct broadcast_job {
    const REAL *dy;
    REAL       *dx;
    REAL        factor;
    int         rank;
    int64_t     dims[LK_MAX_RANK], step[LK_MAX_RANK]; /* a step of 0 in dy along the summed axes */
    int64_t     n, tiles;
} broadcast_job;

static void expand_tile(void *argument, int64_t tile, int worker)
{
    const broadcast_job s = *(const broadcast_job *)argument;
    int64_t             begin = tile_begin(s.n, s.tiles, tile), end = tile_begin(s.n, s.tiles, tile + 1);
    int64_t             index[LK_MAX_RANK], at = 0, rest = begin;
    int                 last = s.rank - 1;
    (void)worker;
    for (int i = last; i >= 0; rest /= s.dims[i--]) {
        index[i] = rest % s.dims[i];
        at += index[i] * s.step[i];
    }
    while (begin < end) {
        int64_t     n = min64(end - begin, s.dims[last] - index[last]);
        REAL       *dx = s.dx + begin;
        const REAL *dy = s.dy + at;
        if (s.step[last]) {
            EACH_VECTOR(i, n, store_part(dx + i, load_part(dy + i, lanes) * s.factor, lanes););
        } else {
            vec value = splat(*dy * s.factor);
            EACH_VECTOR(i, n, store_part(dx + i, value, lanes););
        }
        begin += n;
        index[last] += n;
        at += n * s.step[last];
        for (int i = last; i > 0 && index[i] == s.dims[i]; i--) {
            index[i] = 0;
            index[i - 1]++;
            at += s.step[i - 1] - s.dims[i] * s.step[i];
        }
    }
}

void KERNEL(expand)(const lk__kernel_call *call)
{
    groups        g = merge_axes(&call->out[0], call->attrs->mask);
    broadcast_job s = {
        .dy = call->in[0].data, .dx = call->out[0].data, .n = lk__operand_elements(&call->out[0]), .factor = 1};
    int64_t step = 1;
    if (g.rank == 0) g = (groups){.rank = 1, .dims = {1}, .added = 1};
    s.rank = g.rank;
    for (int i = g.rank - 1; i >= 0; i--) {
        s.dims[i] = g.dims[i];
        s.step[i] = g.reduced[i] ? 0 : step;
        if (!g.reduced[i]) step *= g.dims[i];
    }
    if (call->attrs->mean) s.factor = (REAL)(1 / (double)g.added);
    s.tiles = tile_count(s.n, 1, 0);
    lk__pool_run(call->pool, s.tiles, expand_tile, &s);
}

typedef struct squares {
    const REAL *x;
    int64_t     n, tiles;
    double     *partial;
} squares;

static void square_tile(void *argument, int64_t tile, int worker)
{
    const squares *s = argument;
    int64_t        begin = lk__square_begin(s->n, tile), n = lk__square_begin(s->n, tile + 1) - begin;
    const REAL    *x = s->x + begin;
    dvec           even = {0}, odd = {0};
    double         sum = 0;
    int64_t        i = 0;
    (void)worker;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        even = dadd_square(even, to_double(load(x + i)));
        odd = dadd_square(odd, to_double(load(x + i + VL)));
    }
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int l = 0; l < VL; l++) sum += dlane(even, l) + dlane(odd, l);
    s->partial[tile] = sum;
}

size_t KERNEL(square_sum_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return (size_t)lk__square_parts(lk__operand_elements(&call->in[0])) * sizeof(double);
}

void KERNEL(square_sum)(const lk__kernel_call *call)
{
    squares s = {.x = call->in[0].data, .n = lk__operand_elements(&call->in[0]), .partial = call->workspace};
    double  total = 0;
    s.tiles = lk__square_parts(s.n);
    lk__pool_run(call->pool, s.tiles, square_tile, &s);
    for (int64_t i = 0; i < s.tiles; i++) total += s.partial[i];
    *(double *)call->out[0].data = total;
}
