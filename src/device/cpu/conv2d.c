/* conv2d.c - convolution forward, with bias, a function and max pool in the same pass.
 *
 * A tile is one image's band of output rows in one group. A padded copy of the rows it reads stays in cache and is
 * multiplied in place, kernel row by kernel row. With a pool, pixels are processed window by window; a window of 2×2 is
 * pooled in registers, otherwise a strip of windows stays in cache until it is pooled, and only pooled values and the
 * positions of maxima are written to memory. Where ELEMENT is narrower than REAL, x is always copied and y always goes
 * through strips. With a matrix instruction set, the patches of a strip are packed. */
#include "device/cpu/winograd.h"

/* elements of x and pixels that a band aims at; pixels of a strip */
enum { BAND = 32 << 10, PIXELS = 512, STRIP = 64 };

typedef struct plan {
    conv    v;
    bool    copies; /* of x: padding, groups, another type; otherwise x is read in place */
    bool    pooled; /* in registers: windows of 2×2, whole panels; a part's last panel may have less */
    bool    strips; /* results go through a worker's scratch: another pool, another type */
    runs    r;      /* of a patch */
    int64_t deep;   /* rows of a panel of weights */
    int64_t band;   /* rows of the convolution in a band, whole pool windows */
    int64_t bands;
    int64_t columns;        /* of the window */
    int64_t strip;          /* pixels, whole pool windows */
    int64_t window, result; /* elements of a worker's scratch */
} plan;

static int64_t band_rows(const plan *p, int64_t rows) { return (rows - 1) * p->v.stride + p->v.kh; }
static int64_t pixels_of(const plan *p, int64_t rows) { return rows * p->v.yw * p->v.pool; }

static plan plan_of(const lk__kernel_call *call)
{
    plan  p = {.v = conv_of_parts(call->attrs, &call->in[0], &call->in[1])};
    conv *v = &p.v;
    p.copies = NARROW || v->padding > 0 || v->groups > 1;
    /* The other way adds a large panel in parts, so that both give other bits. */
    p.pooled = !MATRIX && MR % 4 == 0 && v->pool == 2 && v->whole_o / v->whole_groups % NR == 0;
    p.strips = !p.pooled && (NARROW || v->pool > 1);
    p.columns = v->w + 2 * v->padding;
    p.r = (runs){.runs = v->kh, .length = v->kw * v->cg, .a_run = p.columns * v->cg};
    p.deep = conv_depth(&p.r);
    int64_t used = v->yh * v->pool; /* rows and columns that the pool omits are not computed */
    int64_t rows = min64(BAND / max64(1, v->stride * p.columns * v->cg), tiles_of(PIXELS, max64(1, v->yw * v->pool)));
    rows = max64(v->pool, rows / v->pool * v->pool);
    p.band = round_to(tiles_of(used, max64(1, tiles_of(used, rows))), v->pool);
    p.bands = tiles_of(used, max64(1, p.band));
    p.strip = max64(1, STRIP / (v->pool * v->pool)) * v->pool * v->pool;
    p.window = p.copies ? band_rows(&p, p.band) * p.columns * v->cg + CONV_RUN_UNIT : 0;
    p.result = p.strips ? p.strip * v->og : 0;
    return p;
}

static size_t scratch_of(const plan *p)
{
    size_t pointers = lk__round_up((size_t)(pixels_of(p, p->band) * 2) * sizeof(void *), LK__ALIGN);
    return packed_space_of(p->window) + packed_space_of(conv_scratch(&p->r)) + space_of(p->result) + pointers;
}

static int64_t columns_of(const plan *p) { return p->v.groups * p->v.panels * PANEL_COLUMNS; }
static size_t  weights_of(const plan *p) { return packed_space_of(columns_of(p) * p->deep); }
static size_t  bias_of(const plan *p) { return space_of(columns_of(p)); }

size_t KERNEL(conv2d_workspace)(const lk__kernel_call *call, int threads)
{
    if (conv_has_parts(call)) return conv_parts_workspace(call, false, threads);
    plan p = plan_of(call);
    if (winograd_fits(&p.v)) return winograd_workspace(&p.v, false, threads);
    return weights_of(&p) + bias_of(&p) + (size_t)threads * scratch_of(&p);
}

typedef struct job {
    plan                   p;
    const lk__kernel_call *call;
    const PACKED          *weights;
    const REAL            *bias; /* padded to whole panels for each group */
    char                  *scratch;
    size_t                 per_worker;
} job;

/* The address of each pixel's values, pool window by pool window; without a pool row by row. */
static void list_pixels(const plan *p, const PACKED *image, int64_t rows, const PACKED **from)
{
    const conv *v = &p->v;
    int64_t     pool = v->pool, down = v->stride * p->columns * v->cg, right = v->stride * v->cg;
    for (int64_t r = 0; r < rows; r += pool)
        for (int64_t q = 0; q < v->yw * pool; q += pool)
            for (int64_t i = r; i < r + pool; i++)
                for (int64_t j = q; j < q + pool; j++) *from++ = image + i * down + j * right;
}

/* All panels of `count` pixels. */
static void multiply(const job *job, int64_t group, const PACKED **from, REAL **to, int64_t count, PACKED *packed)
{
    const plan  *p = &job->p;
    int64_t      column = group * p->v.panels * PANEL_COLUMNS;
    conv_product product = {p->r, job->weights + column * p->deep, job->bias + column, p->v.og};
    conv_multiply(&product, count, from, to, packed);
}

#if !MATRIX

/* What is pooled in registers: a panel's operands, its channels that exist, and the tile's results. */
typedef struct pooled_panel {
    runs        how;
    const REAL *weights, *bias;
    int64_t     channels;
    ELEMENT    *y;
    uint8_t    *index; /* may be NULL */
} pooled_panel;

/* A panel with fewer than NR channels: some windows at a time are pooled in a whole one on the stack. */
static void multiply_pooled_edge(const conv *v, const pooled_panel *p, const REAL **from, int64_t windows)
{
    enum { WINDOWS = 4 };
    ELEMENT y[WINDOWS * NR];
    uint8_t index[WINDOWS * NR];
    for (int64_t first = 0; first < windows; first += WINDOWS) {
        int64_t count = min64(WINDOWS, windows - first);
        micro_pool(count, from + 4 * first, &p->how, p->weights, p->bias, v->relu, y, p->index ? index : NULL, NR);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = (first + i) * v->o;
            memcpy(p->y + at, y + i * NR, (size_t)p->channels * sizeof(ELEMENT));
            if (p->index) memcpy(p->index + at, index + i * NR, (size_t)p->channels);
        }
    }
}

/* All panels of the pool windows of a tile. */
static void multiply_pooled(const job *job, int64_t group, const REAL **from, int64_t windows, ELEMENT *y,
                            uint8_t *index)
{
    const plan *p = &job->p;
    const conv *v = &p->v;
    for (int64_t panel = 0; panel < v->panels; panel++) {
        int64_t      at = group * v->panels + panel;
        pooled_panel q = {.channels = v->og - panel * NR, .y = y + panel * NR};
        q.how = p->r;
        q.weights = job->weights + at * p->deep * NR;
        q.bias = job->bias + at * NR;
        q.index = index ? index + panel * NR : NULL;
        if (q.channels >= NR)
            micro_pool(windows, from, &q.how, q.weights, q.bias, v->relu, q.y, q.index, v->o);
        else
            multiply_pooled_edge(v, &q, from, windows);
    }
}
#endif

/* A strip's results, from pixel i of the tile on: pooled, or only rounded. y and index are the tile's. */
static void finish_strip(const plan *p, REAL *result, int64_t i, int64_t count, ELEMENT *y, uint8_t *index)
{
    const conv *v = &p->v;
    int64_t     area = v->pool * v->pool, done = i / area * v->o;
    y += done;
    if (v->pool > 1) {
        pool_windows(result, count / area, v->pool, v->og, v->relu, y, index ? index + done : NULL, v->o);
        return;
    }
    if (v->relu) relu_in_place(result, count * v->og);
    if (activates(v->activation)) activate(result, count * v->og, v->activation);
    if (v->groups == 1)
        copy_narrow(y, result, count * v->o);
    else
        for (int64_t q = 0; q < count; q++) copy_narrow(y + q * v->o, result + q * v->og, v->og);
}

static void run_tile(void *argument, int64_t tile, int worker)
{
    const job     *job = argument;
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    int64_t        group = tile % v->groups, band = tile / v->groups % p->bands, n = tile / v->groups / p->bands;
    int64_t        first = band * p->band, rows = min64(p->band, v->yh * v->pool - first), pixels = pixels_of(p, rows);
    char          *scratch = job->scratch + (size_t)worker * job->per_worker;
    PACKED        *copy = (PACKED *)scratch, *packed = (PACKED *)(scratch + packed_space_of(p->window));
    REAL          *result = (REAL *)((char *)packed + packed_space_of(conv_scratch(&p->r)));
    REAL         **to = (REAL **)((char *)result + space_of(p->result));
    const PACKED **from = (const PACKED **)(to + pixels);
    int64_t        at = (n * v->yh + first / v->pool) * v->yw * v->o + group * v->og;
    uint8_t       *index = optional_out(job->call, 1);

    const ELEMENT *x = (const ELEMENT *)job->call->in[0].data + n * v->h * v->w * v->c;
    const PACKED  *image = (const PACKED *)(const void *)(x + first * v->stride * v->w * v->c);
    if (p->copies) {
        window rectangle = {first * v->stride - v->padding, -v->padding, band_rows(p, rows), p->columns};
        copy_window(copy, rectangle, x, v->h, v->w, v->c, group * v->cg, v->cg);
        image = copy;
    }
    list_pixels(p, image, rows, from);
    if (index) index += at;
#if !MATRIX
    if (p->pooled) {
        multiply_pooled(job, group, from, pixels / 4, (ELEMENT *)job->call->out[0].data + at, index);
        return;
    }
#endif
    if (p->strips) {
        ELEMENT *y = (ELEMENT *)job->call->out[0].data + at;
        for (int64_t i = 0; i < min64(pixels, p->strip); i++) to[i] = result + i * v->og;
        for (int64_t i = 0; i < pixels; i += p->strip) {
            int64_t count = min64(p->strip, pixels - i);
            multiply(job, group, from + i, to, count, packed);
            finish_strip(p, result, i, count, y, index);
        }
        return;
    }
    REAL *y = (REAL *)job->call->out[0].data + at;
    for (int64_t i = 0; i < pixels; i++) to[i] = y + i * v->o;
    multiply(job, group, from, to, pixels, packed);
    for (int64_t i = 0; v->activation && i < (v->groups == 1 ? 1 : pixels); i++) {
        int64_t count = v->groups == 1 ? pixels * v->o : v->og;
        if (v->relu)
            relu_in_place(y + i * v->o, count);
        else
            activate(y + i * v->o, count, v->activation);
    }
}

void KERNEL(conv2d)(const lk__kernel_call *call)
{
    if (conv_has_parts(call)) {
        conv_run_parts(call, false);
        return;
    }
    job   job = {.p = plan_of(call), .call = call};
    plan *p = &job.p;
    conv *v = &p->v;
    if (v->n * p->bands <= 0 || v->yw <= 0) return;
    if (winograd_fits(v)) {
        winograd_run(call, v, false);
        return;
    }
    char          *workspace = call->workspace;
    PACKED        *weights = (PACKED *)workspace;
    REAL          *bias = (REAL *)(workspace + weights_of(p));
    const ELEMENT *b = optional_in(call, 2);
    pack_weights(v, call->in[1].data, weights, call->pool);
    memset(bias, 0, bias_of(p));
    for (int64_t g = 0; b && g < v->groups; g++) copy_wide(bias + g * v->panels * PANEL_COLUMNS, b + g * v->og, v->og);
    job.weights = weights;
    job.bias = bias;
    job.scratch = workspace + weights_of(p) + bias_of(p);
    job.per_worker = scratch_of(p);
    lk__pool_run(call->pool, v->n * p->bands * v->groups, run_tile, &job);
}
