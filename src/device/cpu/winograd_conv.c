/* winograd_conv.c - conv2d and conv2d_grad_input by Winograd's algorithm: a block of tiles is transformed, multiplied
 * plane by plane with a panel of transformed weights, and transformed back while it is in cache. Arithmetic bounds the
 * products, the first-level cache the transforms.
 *
 * Transformed weights are four times as large. Few of them are transformed once for all blocks. Many would go through
 * memory, so a block has as many tiles as the cache allows, and of each panel some rows at a time are transformed and
 * multiplied with all its tiles. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/winograd.h"

#if HAS_WINOGRAD

enum {
    TILES = 16,      /* of a block: a panel's products (36 × 16 × NR) stay in the first-level cache on NEON */
    MANY = 32 << 10, /* filters: more are transformed for each block */
    ROWS = 64,       /* of a panel of many filters that are transformed at a time: 36 × 64 × NR elements */
    /* elements of a block's transformed tiles: about half of the second-level cache (2 MiB with AVX-512) */
    CACHED = VL * 18432,
    MOST = 64 /* tiles of such a block */
};

typedef struct plan {
    const conv *v;
    bool        backward;
    bool        many;    /* filters */
    int64_t     in, out; /* channels; in: whole vectors, the rest zeros, which change no sum */
    int64_t     h, w;    /* of the result, before a pool */
    int64_t     padding;
    int64_t     panels;
    int64_t     rows; /* input channels that are multiplied at a time */
    int64_t     v_plane, m_plane, w_plane;
    tiling      t;
} plan;

static plan plan_of(const conv *v, bool backward)
{
    plan p = {.v = v, .backward = backward, .out = v->o, .padding = v->padding};
    p.h = v->yh * v->pool, p.w = v->yw * v->pool; /* pixels that a pool omits are not computed */
    if (backward) p.out = v->c, p.h = v->h, p.w = v->w, p.padding = 2 - v->padding;
    p.in = round_to(backward ? v->o : v->c, VL);
    p.panels = tiles_of(p.out, NR);
    p.many = v->whole_c * v->whole_o > MANY;
    p.rows = p.many ? ROWS : p.in;
    p.t = tiling_of(p.h, p.w, p.in, p.many ? max64(TILES, min64(MOST, CACHED / (PLANES * p.in))) : TILES);
    p.v_plane = p.t.tiles * p.in + SKEW;
    p.m_plane = p.t.tiles * NR + SKEW;
    p.w_plane = p.rows * NR + (p.many ? SKEW : 0);
    return p;
}

static size_t planes_of(const plan *p) { return space_of(PLANES * p->v_plane); }
static size_t weights_of(const plan *p) { return p->many ? 0 : space_of(p->panels * PLANES * p->w_plane); }
static size_t bias_of(const plan *p) { return space_of(p->panels * NR); }
static size_t scratch_of(const plan *p) /* of a worker */
{
    size_t both = space_of(p->t.window) + space_of(PLANES * p->m_plane);
    return both + (p->many ? space_of(PLANES * p->w_plane) : planes_of(p));
}

/* Blocks of tiles that are processed together where filters are many: each of their panels is work for a thread. */
static int64_t blocks_at_once(const plan *p, int threads) { return tiles_of(threads, p->panels); }

size_t winograd_workspace(const conv *v, bool backward, int threads)
{
    plan   p = plan_of(v, backward);
    size_t planes = p.many ? (size_t)blocks_at_once(&p, threads) * planes_of(&p) : 0;
    return weights_of(&p) + bias_of(&p) + planes + (size_t)threads * scratch_of(&p);
}

typedef struct job {
    plan                   p;
    const lk__kernel_call *call;
    REAL                  *weights, *bias;
    char                  *planes;     /* of the blocks, where all workers multiply them */
    int64_t                first, end; /* their units */
    char                  *scratch;
    size_t                 per_worker;
} job;

/* Fills the planes with the unit's tiles from `first` on: [plane][p->rows channels at a time][tile][channel]. */
static void transform_unit(const job *job, unit u, int64_t first, REAL *copy, REAL *planes)
{
    const plan    *p = &job->p;
    const conv    *v = p->v;
    const ELEMENT *from = (const ELEMENT *)job->call->in[0].data;
    window         at = {4 * u.row - p->padding, -p->padding, 4 * u.rows + 2, 4 * p->t.wide + 2};
    int64_t        row = at.columns * p->in;
    if (p->backward) {
        const uint8_t *index = optional_in(job->call, 2);
        int64_t        start = u.n * v->yh * v->yw * v->o;
        expand_window(copy, at, v, from + start, index ? index + start : NULL, 0, v->o, p->in, 0);
    } else {
        copy_window(copy, at, from + u.n * v->h * v->w * v->c, v->h, v->w, v->c, 0, p->in);
    }
    for (int64_t i = 0; i < u.rows; i++)
        for (int64_t j = 0; j < p->t.wide; j++, first++)
            for (int64_t c = 0; c < p->in; c += p->rows) {
                int64_t rows = min64(p->rows, p->in - c);
                transform_input(copy + 4 * i * row + 4 * j * p->in + c, row, p->in, rows,
                                planes + c * p->t.tiles + first * rows, p->v_plane);
            }
}

/* bias may be NULL. */
INLINE void output_line(const vec m[6], const vec *bias, vec out[4])
{
    vec even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    out[0] = (m[0] + even_a) + (bias ? even_b + *bias : even_b);
    out[1] = A1 * odd_a + (bias ? B1 * odd_b + *bias : B1 * odd_b);
    out[2] = A2 * even_a + (bias ? B2 * even_b + *bias : B2 * even_b);
    out[3] = A3 * odd_a + (B3 * odd_b + (bias ? m[5] + *bias : m[5]));
}

/* 36 planes of products → 4×4 vectors of results. */
INLINE void transform_output(const REAL *from, int64_t plane, vec bias, vec out[16])
{
    vec t[4][6];
    UNROLL
    for (int j = 0; j < 6; j++) {
        vec m[6], line[4];
        UNROLL
        for (int i = 0; i < 6; i++) m[i] = load(from + (i * 6 + j) * plane);
        output_line(m, NULL, line);
        UNROLL
        for (int i = 0; i < 4; i++) t[i][j] = line[i];
    }
    UNROLL
    for (int i = 0; i < 4; i++) output_line(t[i], &bias, out + 4 * i);
}

/* Where a tile's results are stored: rows × columns of its 4×4 pixels, or of their pooled windows, exist. */
typedef struct target {
    ELEMENT *y;
    uint8_t *index;
    int64_t  row, pixel; /* elements from one to the next */
    int64_t  rows, columns;
    bool     relu;
} target;

/* VL channels of one tile. */
INLINE void store_plain(const vec out[16], const target *to, int64_t q, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            vec x = out[4 * i + j];
            store(to->y + i * to->row + j * to->pixel + q, to->relu ? choose(x < splat(0), splat(0), x) : x);
        }
    }
}

INLINE void store_pool(const vec out[16], const target *to, int64_t q, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i += 2) {
        for (int64_t j = 0; j < columns; j += 2) {
            const vec *x = out + 4 * i + j;
            vec        best = greater(greater(x[0], x[1]), greater(x[4], x[5]));
            vec        argmax = choose_argmax(x[4] == best, 2, splat(3));
            argmax = choose_argmax(x[0] == best, 0, choose_argmax(x[1] == best, 1, argmax));
            int64_t at = i / 2 * to->row + j / 2 * to->pixel + q;
            store_pooled(best, argmax, to->relu, to->y + at, to->index ? to->index + at : NULL);
        }
    }
}

/* Of the 16 vectors of a tile. */
static void activate_tile(vec *out, lk__op_unary function)
{
    REAL x[16 * VL];
    for (int i = 0; i < 16; i++) store_real(x + i * VL, out[i]);
    activate(x, 16 * VL, function);
    for (int i = 0; i < 16; i++) out[i] = load_real(x + i * VL);
}

/* The last channels of a part, fewer than VL: as whole vectors on the stack, of which `count` are copied. */
static void store_rest(const vec out[16], const target *to, int64_t q, int64_t pool, int64_t count)
{
    ELEMENT y[16 * VL];
    uint8_t index[16 * VL];
    target  rest = {.y = y, .index = to->index ? index : NULL, .row = 4 / pool * VL, .pixel = VL, .relu = to->relu};
    if (pool == 1)
        store_plain(out, &rest, 0, to->rows, to->columns);
    else
        store_pool(out, &rest, 0, to->rows, to->columns);
    for (int64_t i = 0; i < to->rows / pool; i++)
        for (int64_t j = 0; j < to->columns / pool; j++) {
            int64_t at = i * to->row + j * to->pixel + q, from = i * rest.row + j * rest.pixel;
            memcpy(to->y + at, y + from, (size_t)count * sizeof(ELEMENT));
            if (to->index) memcpy(to->index + at, index + from, (size_t)count);
        }
}

/* One tile of one panel: transforms the products back and stores the result. */
static void finish_tile(const job *job, int64_t n, int64_t ty, int64_t tx, int64_t panel, const REAL *products)
{
    const plan *p = &job->p;
    const conv *v = p->v;
    int64_t     pool = p->backward ? 1 : v->pool, channels = min64(NR, p->out - panel * NR);
    target      to = {.row = p->w / pool * p->out, .pixel = p->out, .relu = v->relu && !p->backward};
    int64_t     at = (n * (p->h / pool) + 4 / pool * ty) * to.row + 4 / pool * tx * p->out + panel * NR;
    to.y = (ELEMENT *)job->call->out[0].data + at;
    to.index = pool > 1 ? optional_out(job->call, 1) : NULL;
    to.rows = min64(4, p->h - 4 * ty);
    to.columns = min64(4, p->w - 4 * tx);
    if (to.index) to.index += at;
    bool whole = to.rows == 4 && to.columns == 4;
    for (int64_t q = 0; q < channels; q += VL) {
        vec out[16];
        transform_output(products + q, p->m_plane, load(job->bias + panel * NR + q), out);
        if (activates(v->activation) && !p->backward) activate_tile(out, v->activation);
        if (channels - q < VL)
            store_rest(out, &to, q, pool, channels - q);
        else if (pool == 1 && whole)
            store_plain(out, &to, q, 4, 4);
        else if (pool == 1)
            store_plain(out, &to, q, to.rows, to.columns);
        else if (whole)
            store_pool(out, &to, q, 4, 4);
        else
            store_pool(out, &to, q, to.rows, to.columns);
    }
}

/* Transforms back the panel's products of units first … end. */
static void finish_units(const job *job, int64_t first, int64_t end, int64_t panel, const REAL *products)
{
    const tiling *t = &job->p.t;
    for (int64_t i = first; i < end; i++) {
        unit u = unit_of(t, i);
        for (int64_t ty = u.row; ty < u.row + u.rows; ty++)
            for (int64_t tx = 0; tx < t->wide; tx++, products += NR) finish_tile(job, u.n, ty, tx, panel, products);
    }
}

static void run_block(void *argument, int64_t block, int worker)
{
    const job    *job = argument;
    const plan   *p = &job->p;
    const tiling *t = &p->t;
    char         *scratch = job->scratch + (size_t)worker * job->per_worker;
    REAL         *copy = (REAL *)scratch, *planes = (REAL *)(scratch + space_of(t->window));
    REAL         *products = (REAL *)(scratch + space_of(t->window) + planes_of(p));
    int64_t       first = block * t->units, end = min64(p->v->n * t->bands, first + t->units), tiles = 0;
    for (int64_t i = first; i < end; i++) {
        unit u = unit_of(t, i);
        transform_unit(job, u, tiles, copy, planes);
        tiles += u.rows * t->wide;
    }
    for (int64_t panel = 0; panel < p->panels; panel++) {
        const REAL *weights = job->weights + panel * PLANES * p->w_plane;
        for (int64_t f = 0; f < PLANES; f++)
            micro_rows(round_to(tiles, MR), planes + f * p->v_plane, p->in, weights + f * p->w_plane, false,
                       products + f * p->m_plane);
        finish_units(job, first, end, panel, products);
    }
}

static void transform_panel(void *argument, int64_t panel, int worker)
{
    const job  *job = argument;
    const plan *p = &job->p;
    (void)worker;
    transform_weights(p->v, job->call->in[1].data, p->backward, panel, 0, p->in,
                      job->weights + panel * PLANES * p->w_plane, p->w_plane);
}

/* ---- many filters ---- */

static int64_t tiles_before(const tiling *t, int64_t first, int64_t unit) /* of units first … unit */
{
    int64_t images = unit / t->bands - first / t->bands;
    return ((images * t->tall + unit % t->bands * t->band) - first % t->bands * t->band) * t->wide;
}

static void transform_tiles(void *argument, int64_t index, int worker)
{
    const job    *job = argument;
    const tiling *t = &job->p.t;
    int64_t       block = index / t->units, first = job->first + block * t->units, unit = job->first + index;
    REAL         *copy = (REAL *)(job->scratch + (size_t)worker * job->per_worker);
    REAL         *planes = (REAL *)(job->planes + (size_t)block * planes_of(&job->p));
    transform_unit(job, unit_of(t, unit), tiles_before(t, first, unit), copy, planes);
}

static void multiply_panel(void *argument, int64_t index, int worker)
{
    const job  *job = argument;
    const plan *p = &job->p;
    int64_t     block = index / p->panels, panel = index % p->panels;
    int64_t     first = job->first + block * p->t.units, end = min64(job->end, first + p->t.units);
    int64_t     tiles = round_to(tiles_before(&p->t, first, end), MR);
    const REAL *planes = (const REAL *)(job->planes + (size_t)block * planes_of(p));
    REAL       *products = (REAL *)(job->scratch + (size_t)worker * job->per_worker + space_of(p->t.window));
    REAL       *weights = (REAL *)((char *)products + space_of(PLANES * p->m_plane));
    for (int64_t c = 0; c < p->in; c += p->rows) {
        int64_t rows = min64(p->rows, p->in - c);
        transform_weights(p->v, job->call->in[1].data, p->backward, panel, c, rows, weights, p->w_plane);
        for (int64_t f = 0; f < PLANES; f++)
            micro_rows(tiles, planes + f * p->v_plane + c * p->t.tiles, rows, weights + f * p->w_plane, c > 0,
                       products + f * p->m_plane);
    }
    finish_units(job, first, end, panel, products);
}

static void run_many(job *job)
{
    const plan *p = &job->p;
    lk__pool   *pool = job->call->pool;
    int64_t     units = p->v->n * p->t.bands, together = p->t.units * blocks_at_once(p, lk__pool_workers(pool));
    for (job->first = 0; job->first < units; job->first = job->end) {
        job->end = min64(units, job->first + together);
        lk__pool_run(pool, job->end - job->first, transform_tiles, job);
        lk__pool_run(pool, tiles_of(job->end - job->first, p->t.units) * p->panels, multiply_panel, job);
    }
}

void winograd_run(const lk__kernel_call *call, const conv *v, bool backward)
{
    job   job = {.p = plan_of(v, backward), .call = call, .weights = call->workspace};
    plan *p = &job.p;
    if (v->n <= 0) return;
    const ELEMENT *b = backward ? NULL : optional_in(call, 2);
    job.bias = (REAL *)((char *)call->workspace + weights_of(p));
    job.planes = (char *)job.bias + bias_of(p);
    job.scratch = job.planes;
    if (p->many) job.scratch += (size_t)blocks_at_once(p, lk__pool_workers(call->pool)) * planes_of(p);
    job.per_worker = scratch_of(p);
    memset(job.bias, 0, bias_of(p));
    if (b) copy_wide(job.bias, b, v->o);
    if (p->many) {
        run_many(&job);
        return;
    }
    lk__pool_run(call->pool, p->panels, transform_panel, &job);
    lk__pool_run(call->pool, tiles_of(v->n * p->t.bands, p->t.units), run_block, &job);
}

#endif
