/* conv2d_grad_input.c - the gradient of a convolution with respect to its input.
 *
 * Row h of dx depends on kernel row i and row q of dy where h + padding = i + stride*q. So the pixels with the same
 * remainder of (h + padding, w + padding) modulo the stride form a phase, and each phase is a convolution of dy at
 * stride 1 with every stride-th tap, in reverse order. At stride 1 there is one phase. */
#include "device/cpu/winograd.h"

enum { BAND = 48 << 10, PIXELS = 512 }; /* elements of scratch and pixels that a band aims at */
enum { TRANSPOSED = 16, AT_ONCE = 4 };  /* taps and output channels that are packed at a time */

typedef struct plan {
    conv    v;
    int64_t panels;          /* of cg */
    int64_t tall, wide;      /* maximum taps of a phase */
    int64_t column, columns; /* of the window of dy: first (may be negative) and how many */
    int64_t band, bands;     /* rows of dx */
    int64_t window, result;  /* elements of a worker's scratch; result: the band of dx where ELEMENT is narrower */
} plan;

static int64_t band_rows(const plan *p, int64_t rows) { return tiles_of(rows - 1, p->v.stride) + p->tall; }

static plan plan_of(const lk__kernel_call *call)
{
    plan  p = {.v = conv_of_parts(call->attrs, &call->out[0], &call->in[1])};
    conv *v = &p.v;
    p.panels = tiles_of(v->cg, PANEL_COLUMNS);
    p.tall = tiles_of(v->kh, v->stride);
    p.wide = tiles_of(v->kw, v->stride);
    p.column = v->padding / v->stride - p.wide + 1;
    p.columns = (v->w - 1 + v->padding) / v->stride - p.column + 1;
    int64_t per_row = tiles_of(p.columns * v->og, v->stride);
    int64_t rows = max64(v->stride, min64(BAND / max64(1, per_row), tiles_of(PIXELS, max64(1, v->w))));
    int64_t bands = max64(1, tiles_of(v->h, rows));
    p.band = tiles_of(v->h, bands);
    p.bands = tiles_of(v->h, max64(1, p.band));
    p.window = band_rows(&p, p.band) * p.columns * v->og + CONV_RUN_UNIT;
    p.result = NARROW ? p.band * v->w * v->cg : 0;
    return p;
}

static int64_t taps(int64_t kernel, int64_t phase, int64_t stride)
{
    return phase < kernel ? (kernel - phase + stride - 1) / stride : 0;
}

/* What a pixel of phase (a, b) adds: taps of dy's window. */
static runs runs_of(const plan *p, int64_t a, int64_t b)
{
    const conv *v = &p->v;
    int64_t     tall = taps(v->kh, a, v->stride), wide = taps(v->kw, b, v->stride);
    return (runs){.runs = wide ? tall : 0, .length = wide * v->og, .a_run = p->columns * v->og};
}

static size_t packed_of(const plan *p)
{
    runs most = runs_of(p, 0, 0);
    return packed_space_of(conv_scratch(&most));
}
static size_t scratch_of(const plan *p)
{
    size_t pointers = lk__round_up((size_t)(p->band * p->v.w) * 2 * sizeof(void *), LK__ALIGN);
    return packed_space_of(p->window) + packed_of(p) + space_of(p->result) + pointers;
}

static int64_t weights_per_group(const plan *p)
{
    int64_t rows = 0;
    for (int64_t a = 0; a < p->v.stride; a++)
        for (int64_t b = 0; b < p->v.stride; b++) {
            runs r = runs_of(p, a, b);
            rows += conv_depth(&r);
        }
    return rows * p->panels * PANEL_COLUMNS;
}
static size_t weights_of(const plan *p) { return packed_space_of(p->v.groups * weights_per_group(p)); }

size_t KERNEL(conv2d_grad_input_workspace)(const lk__kernel_call *call, int threads)
{
    if (conv_has_parts(call)) return conv_parts_workspace(call, true, threads);
    plan p = plan_of(call);
    if (winograd_fits(&p.v)) return winograd_workspace(&p.v, true, threads);
    return weights_of(&p) + (size_t)threads * scratch_of(&p);
}

typedef struct job {
    plan                   p;
    const lk__kernel_call *call;
    PACKED *weights; /* [group][phase][panel], rows (tap row, tap column, o), taps from the last to the first */
    char   *scratch;
    size_t  per_worker;
} job;

/* Where a tap's rows are: in a panel, which begins at `start`. */
typedef struct tap_place {
    int64_t start, row;
} tap_place;

static tap_place place_of_tap(const plan *p, int64_t panel, int64_t row, int64_t column)
{
    const conv *v = &p->v;
    int64_t     s = v->stride, before = 0; /* rows of the phases before it */
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++) {
            int64_t tall = taps(v->kh, a, s), wide = taps(v->kw, b, s);
            runs    r = runs_of(p, a, b);
            if (row % s == a && column % s == b)
                return (tap_place){(before * p->panels + panel * conv_depth(&r)) * PANEL_COLUMNS,
                                   (tall - 1 - row / s) * conv_run_depth(r.length) + (wide - 1 - column / s) * v->og};
            before += conv_depth(&r);
        }
    return (tap_place){0};
}

#if MATRIX
static void pack_panel(void *argument, int64_t tile, int worker)
{
    const job     *job = argument;
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    int64_t        group = tile / p->panels, first = tile % p->panels * MATRIX_COLUMNS;
    int64_t        columns = min64(MATRIX_COLUMNS, v->cg - first), area = v->kh * v->kw;
    PACKED        *to = job->weights + group * weights_per_group(p);
    const ELEMENT *w = (const ELEMENT *)job->call->in[1].data + (group * v->og * v->cg + first) * area;
    (void)worker;
    for (int64_t tap = 0; tap < area; tap++) {
        tap_place at = place_of_tap(p, tile % p->panels, tap / v->kw, tap % v->kw);
        for (int64_t o = 0; o < v->og; o++)
            for (int64_t j = 0; j < columns; j++)
                *conv_weight_at(to + at.start, at.row + o, j) = w[(o * v->cg + j) * area + tap];
    }
}
#else

static void pack_panel(void *argument, int64_t tile, int worker)
{
    const job     *job = argument;
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    int64_t        group = tile / p->panels, panel = tile % p->panels, area = v->kh * v->kw;
    int64_t        columns = min64(NR, v->cg - panel * NR);
    REAL          *to = job->weights + group * weights_per_group(p), rows[AT_ONCE][TRANSPOSED * NR];
    const ELEMENT *w = (const ELEMENT *)job->call->in[1].data + (group * v->og * v->cg + panel * NR) * area;
    (void)worker;
    if (columns < NR) memset(rows, 0, sizeof rows);
    for (int64_t first = 0; first < area; first += TRANSPOSED) {
        int64_t count = min64(TRANSPOSED, area - first), at[TRANSPOSED];
        for (int64_t i = 0; i < count; i++) {
            tap_place place = place_of_tap(p, panel, (first + i) / v->kw, (first + i) % v->kw);
            at[i] = place.start + place.row * NR;
        }
        for (int64_t o = 0; o < v->og; o += AT_ONCE) {
            int64_t outputs = min64(AT_ONCE, v->og - o);
            for (int64_t q = 0; q < outputs; q++) {
                const ELEMENT *from = w + (o + q) * v->cg * area + first;
                if (area == 1)
                    copy_wide(rows[q], from, columns);
                else
                    transpose_wide(rows[q], NR, from, area, columns, count);
            }
            for (int64_t i = 0; i < count; i++)
                for (int64_t q = 0; q < outputs; q++)
                    memcpy(to + at[i] + (o + q) * NR, rows[q] + i * NR, NR * sizeof(REAL));
        }
    }
}
#endif

/* Rows of the result that a tile computes. */
typedef struct row_band {
    int64_t       first, rows;
    const PACKED *window_copy;
    REAL         *result; /* the first pixel */
    int64_t       pixel;  /* elements from one pixel of the result to the next */
} row_band;

/* The pixels of phase (a, b) in the band's rows; returns how many. */
static int64_t gather_phase(const plan *p, const row_band *band, int64_t a, int64_t b, const PACKED **from, REAL **to)
{
    const conv *v = &p->v;
    int64_t     s = v->stride, count = 0, first = band->first, lowest = (first + v->padding) / s;
    int64_t     up = p->tall - taps(v->kh, a, s), left = p->wide - taps(v->kw, b, s);
    for (int64_t h = first; h < first + band->rows; h++) {
        if ((h + v->padding) % s != a) continue;
        int64_t row = (h + v->padding) / s - lowest + up;
        for (int64_t w = ((b - v->padding) % s + s) % s; w < v->w; w += s, count++) {
            int64_t column = (w + v->padding) / s - p->wide + 1 - p->column + left;
            from[count] = band->window_copy + (row * p->columns + column) * v->og;
            to[count] = band->result + ((h - first) * v->w + w) * band->pixel;
        }
    }
    return count;
}

static void run_tile(void *argument, int64_t tile, int worker)
{
    const job     *job = argument;
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    int64_t        group = tile % v->groups, band = tile / v->groups % p->bands, n = tile / v->groups / p->bands;
    int64_t        first = band * p->band, rows = min64(p->band, v->h - first), s = v->stride;
    char          *scratch = job->scratch + (size_t)worker * job->per_worker;
    PACKED        *window_copy = (PACKED *)scratch, *packed = (PACKED *)(scratch + packed_space_of(p->window));
    REAL          *result = (REAL *)((char *)packed + packed_of(p));
    REAL         **to = (REAL **)((char *)result + space_of(p->result));
    const PACKED **from = (const PACKED **)(to + p->band * v->w);
    const ELEMENT *dy = (const ELEMENT *)job->call->in[0].data + n * v->yh * v->yw * v->o;
    const uint8_t *index = optional_in(job->call, 2);
    ELEMENT       *dx = (ELEMENT *)job->call->out[0].data + (n * v->h + first) * v->w * v->c + group * v->cg;
    const PACKED  *weights = job->weights + group * weights_per_group(p);

    int64_t lowest = (first + v->padding) / s, highest = (first + rows - 1 + v->padding) / s;
    window  at = {lowest - p->tall + 1, p->column, highest - lowest + p->tall, p->columns};
    if (!NARROW) result = (REAL *)(void *)dx;
    if (index) index += n * v->yh * v->yw * v->o;
    expand_window(window_copy, at, v, dy, index, group * v->og, v->og, v->og, 0);
    row_band rows_here = {first, rows, window_copy, result, NARROW ? v->cg : v->c};
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++) {
            int64_t      count = gather_phase(p, &rows_here, a, b, from, to);
            conv_product product = {.r = runs_of(p, a, b), .weights = weights, .columns = v->cg};
            conv_multiply(&product, count, from, to, packed);
            weights += p->panels * conv_depth(&product.r) * PANEL_COLUMNS;
        }
    if (!NARROW) return;
    for (int64_t i = 0, runs = v->groups == 1 ? 1 : rows * v->w, run = rows * v->w / runs * v->cg; i < runs; i++)
        copy_narrow(dx + i * v->c, result + i * v->cg, run);
}

void KERNEL(conv2d_grad_input)(const lk__kernel_call *call)
{
    if (conv_has_parts(call)) {
        conv_run_parts(call, true);
        return;
    }
    job   job = {.p = plan_of(call), .call = call, .weights = call->workspace};
    plan *p = &job.p;
    conv *v = &p->v;
    if (v->n * p->bands <= 0 || v->w <= 0) return;
    if (winograd_fits(v)) {
        winograd_run(call, v, true);
        return;
    }
    job.scratch = (char *)call->workspace + weights_of(p);
    job.per_worker = scratch_of(p);
    if (MATRIX) memset(job.weights, 0, weights_of(p)); /* what pads runs, panels and their columns */
    lk__pool_run(call->pool, v->groups * p->panels, pack_panel, &job);
    lk__pool_run(call->pool, v->n * p->bands * v->groups, run_tile, &job);
}
