/* reduce.c - sum and mean over axes, their gradient, and the sum of squares. Adjacent axes that are treated alike are
 * merged, so nearly every sum is over the middle of (a, b, c); long sums are split into partial sums that are added in
 * order. */
#include "device/cpu/row_parts.h"

#include "base/exact_sum.h"

/* x's axes, merged, without axes of size 1 in the whole. */
typedef struct groups {
    int     rank;
    int64_t dims[LK_MAX_RANK];
    bool    reduced[LK_MAX_RANK];
    int64_t added; /* elements that go into one sum */
    /* Of the whole, of which x may be a part along an axis that is kept: a group consists of `repeats` runs of `whole`
     * elements, of which x has those from `first` on. */
    int64_t whole[LK_MAX_RANK], first[LK_MAX_RANK], repeats[LK_MAX_RANK];
} groups;

/* The extent of a kept axis in the whole. The first axis may have a run-time count: where another one is cut it is not,
 * and its extent is that of this run. */
static int64_t kept_extent(const lk__kernel_operand *x, int axis)
{
    bool other = false;
    for (int i = 1; x->part && i < x->rank; i++) other |= x->part->whole[i] != x->dims[i];
    return axis == 0 && other ? x->dims[0] : lk__whole_extent(x, axis);
}

/* Appends an axis to the last group, or begins one with it. */
static void add_axis(groups *g, const lk__kernel_operand *x, int axis, bool reduced)
{
    int64_t own = x->dims[axis], whole = reduced ? own : kept_extent(x, axis);
    if (!g->rank || g->reduced[g->rank - 1] != reduced) {
        g->dims[g->rank] = g->whole[g->rank] = g->repeats[g->rank] = 1;
        g->first[g->rank] = 0;
        g->reduced[g->rank++] = reduced;
    }
    int i = g->rank - 1;
    if (whole != own) { /* what is before it repeats */
        int64_t outer = max64(1, x->part->outer[axis]);
        g->repeats[i] = max64(1, g->whole[i]) * outer;
        g->whole[i] = whole / outer;
        g->first[i] = x->part->first[axis];
    } else {
        g->whole[i] *= own;
        g->first[i] *= own;
    }
    g->dims[i] *= own;
}

static groups merge_axes(const lk__kernel_operand *x, uint32_t mask)
{
    groups g = {.added = 1};
    for (int axis = 0; axis < x->rank; axis++) {
        bool reduced = mask >> axis & 1;
        if (reduced) g.added *= x->dims[axis];
        if ((reduced ? x->dims[axis] : kept_extent(x, axis)) != 1) add_axis(&g, x, axis, reduced);
    }
    return g;
}

typedef struct sum {
    const REAL *x;
    REAL       *y;
    int64_t     a, b, c; /* y (a, c) = sum over b */
    /* Of the whole, from which the order of sums follows: its a and c. It has `runs` runs of `whole_run` columns, of
     * each of which the c columns are those from `first` on. */
    int64_t whole_a, whole_c, runs, whole_run, first;
    int64_t parts, tiles;
    double *partial; /* (a, parts, c) when parts > 1 */
    double  divisor;
    groups  g; /* of the general case */
    /* Where the last of the summed axes may be cut: b is (rows.samples, rows.tokens), and the sum of each part. */
    row_parts rows;
} sum;

/* True when the pattern is kept?-reduced?-kept?. */
static bool is_simple(const groups *g, sum *s)
{
    int64_t *slots[] = {&s->a, &s->b, &s->c};
    int      slot = 0;
    s->a = s->b = s->c = s->whole_a = s->whole_c = s->runs = s->whole_run = 1;
    s->first = 0;
    for (int i = 0; i < g->rank; i++) {
        while (slot < 3 && g->reduced[i] != (slot == 1)) slot++;
        if (slot == 3) return false;
        if (slot == 0) s->whole_a = g->repeats[i] * g->whole[i];
        if (slot == 2) {
            s->runs = g->repeats[i];
            s->whole_run = g->whole[i];
            s->whole_c = s->runs * s->whole_run;
            s->first = g->first[i];
        }
        *slots[slot++] = g->dims[i];
    }
    bool alone = s->c % s->runs != 0 || s->first + s->c / s->runs > s->whole_run; /* cut along two axes */
    if (s->b == 1) s->c *= s->a, s->a = s->whole_a = 1;                           /* nothing to add: one row to copy */
    if (s->b == 1 || alone) s->whole_c = s->whole_run = s->c, s->runs = 1, s->first = 0;
    return true;
}

/* The most parts of a sum, whatever the count along a. */
static int64_t most_parts(const sum *s) { return min64(s->b, tiles_of(s->b * s->whole_c, GRAIN)); }

/* How many parts each sum is split into, so that there is work for many threads: a × parts stays below 2 PARTS. */
static int64_t parts_of(const sum *s) { return max64(1, min64(tiles_of(PARTS, max64(s->whole_a, 1)), most_parts(s))); }

/* Whether the sum is made by parts of its last axis. */
static bool has_parts(const lk__kernel_call *call, sum *s)
{
    const lk__kernel_operand *x = &call->in[0];
    int64_t                   samples = 1;
    uint32_t                  mask = call->attrs->mask;
    int                       dim = mask ? 31 - __builtin_clz(mask) : 0;
    for (int i = 0; i < dim; i++) samples *= mask >> i & 1 ? x->dims[i] : 1;
    return s->b > 1 && !call->attrs->mean && find_row_parts(call, x, dim, samples, s->whole_c, &s->rows);
}

size_t KERNEL(sum_workspace)(const lk__kernel_call *call, int threads)
{
    groups g = merge_axes(&call->in[0], call->attrs->mask);
    sum    s;
    (void)threads;
    if (!is_simple(&g, &s) || s.b == 1) return 0;
    if (has_parts(call, &s)) return row_parts_space(&s.rows, s.a, s.c);
    int64_t most = most_parts(&s);
    return most > 1 ? (size_t)(min64(2 * PARTS, s.a * most) * s.c) * sizeof(double) : 0;
}

INLINE void element_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const sum *s = data;
    (void)second;
    *first = load_part(s->x + row * s->c + column, lanes);
}

/* Adds rows begin … end-1 of (a b, c) of columns column … column + columns - 1, in double. */
static void add_strip_of(const sum *s, int64_t begin, int64_t end, int64_t column, int64_t columns, double *total)
{
    int64_t run = s->c / s->runs; /* columns of each run of the whole */
    if (s->c == s->whole_c) {
        sum strip = *s;
        strip.x += column;
        sum_columns(element_term, &strip, begin, end, columns, total, NULL);
        return;
    }
    for (int64_t at = column, n; at < column + columns; at += n) {
        sum     strip = *s;
        int64_t origin = at / run * s->whole_run + s->first + at % run;
        n = min64(column + columns - at, run - at % run);
        strip.x += at;
        sum_columns_of(element_term, &strip, begin, end, n, origin, s->whole_c, total + (at - column), NULL);
    }
}

/* The sums over rows begin … end-1, in strips that fit on the stack. */
static void sum_rows(const sum *s, int64_t begin, int64_t end, REAL *y, double *partial)
{
    enum { STRIP = 64 * VL }; /* sum_columns adds each in the order in which it would add them in all columns */
    double buffer[STRIP];
    if (partial) {
        memset(partial, 0, (size_t)s->c * sizeof *partial);
        add_strip_of(s, begin, end, 0, s->c, partial);
        return;
    }
    for (int64_t column = 0; column < s->c; column += STRIP) {
        int64_t columns = min64(STRIP, s->c - column);
        memset(buffer, 0, (size_t)columns * sizeof *buffer);
        add_strip_of(s, begin, end, column, columns, buffer);
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
        if (s->whole_c > 1) {
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

/* A part of the last axis, and a run of what is summed before it. */
static void part_tile(void *argument, int64_t tile, int worker)
{
    const sum *s = argument;
    int64_t    tiles = row_parts_tiles(&s->rows), tokens = s->rows.tokens;
    double    *partial = s->partial + tile * s->c;
    row_range  r = row_parts_range(&s->rows, tile % tiles);
    (void)worker;
    memset(partial, 0, (size_t)s->c * sizeof *partial);
    for (int64_t first = (tile / tiles * s->rows.samples + r.sample) * tokens; r.sample < r.last; r.sample++) {
        const REAL *x = s->x + first + r.begin; /* of one column */
        if (s->whole_c > 1)
            add_strip_of(s, first + r.begin, first + r.end, 0, s->c, partial);
        else
            SUM_VECTORS(*partial, i, r.end - r.begin, load_part(x + i, lanes));
        first += tokens;
    }
}

static void sum_by_parts(const sum *s, lk__pool *pool)
{
    int64_t tiles = row_parts_tiles(&s->rows);
    REAL   *parts = (REAL *)(s->partial + s->a * tiles * s->c);
    lk__pool_run(pool, s->a * tiles, part_tile, (void *)s);
    for (int64_t row = 0; row < s->a; row++) {
        add_row_parts(pool, &s->rows, s->partial + row * tiles * s->c, s->c, parts);
        memcpy(s->y + row * s->c, parts, (size_t)s->c * sizeof *parts);
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
    bool    adjacent = s->g.reduced[s->g.rank - 1]; /* also in the whole: a part may have one of what is kept */
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
            if (adjacent)
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
    if (has_parts(call, &s)) {
        sum_by_parts(&s, call->pool);
        return;
    }
    s.parts = call->attrs->parts ? min64(call->attrs->parts, s.b) : parts_of(&s);
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
    int64_t     each; /* doubles of an exact sum; 0: sums are rounded */
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

#if LK_REAL_BITS == 64
#define EXACT_SQUARES lk__exact_squares_f64
#else
#define EXACT_SQUARES lk__exact_squares_f32
#endif

static void square_exactly(void *argument, int64_t tile, int worker)
{
    const squares *s = argument;
    int64_t        begin = lk__square_begin(s->n, tile), n = lk__square_begin(s->n, tile + 1) - begin;
    (void)worker;
    EXACT_SQUARES(s->x + begin, n, s->partial + tile * s->each);
}

size_t KERNEL(square_sum_workspace)(const lk__kernel_call *call, int threads)
{
    int64_t each = call->attrs->parts ? call->attrs->parts : 1;
    (void)threads;
    return (size_t)(each * lk__square_parts(lk__operand_elements(&call->in[0]))) * sizeof(double);
}

void KERNEL(square_sum)(const lk__kernel_call *call)
{
    double *sum = call->out[0].data, total = 0;
    squares s = {.x = call->in[0].data,
                 .n = lk__operand_elements(&call->in[0]),
                 .each = call->attrs->parts,
                 .partial = call->workspace};
    s.tiles = lk__square_parts(s.n);
    lk__pool_run(call->pool, s.tiles, s.each ? square_exactly : square_tile, &s);
    for (int64_t i = 0; i < s.each; i++) sum[i] = 0;
    for (int64_t i = 0; i < s.tiles && s.each; i++) lk__exact_add(sum, s.partial + i * s.each, (int)s.each);
    if (s.each) return;
    for (int64_t i = 0; i < s.tiles; i++) total += s.partial[i];
    *sum = total;
}
