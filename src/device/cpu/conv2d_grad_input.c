/* conv2d_grad_input.c - the gradient of a convolution with respect to its input.
 *
 * Row h of dx depends on kernel row i and row q of dy where h + padding = i + stride*q. So the pixels with the same
 * remainder of (h + padding, w + padding) modulo the stride form a phase, and each phase is a convolution of dy at
 * stride 1 with every stride-th tap, in reverse order. At stride 1 there is one phase. */
#include "device/cpu/winograd.h"

enum { BAND = 48 << 10, PIXELS = 512 }; /* elements of scratch and pixels that a band aims at */
enum { TRANSPOSED = 16, AT_ONCE = 4 };               /* taps and output channels that are packed at a time */

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
    p.panels = tiles_of(v->cg, NR);
    p.tall = tiles_of(v->kh, v->stride);
    p.wide = tiles_of(v->kw, v->stride);
    p.column = v->padding / v->stride - p.wide + 1;
    p.columns = (v->w - 1 + v->padding) / v->stride - p.column + 1;
    int64_t per_row = tiles_of(p.columns * v->og, v->stride);
    int64_t rows = max64(v->stride, min64(BAND / max64(1, per_row), tiles_of(PIXELS, max64(1, v->w))));
    int64_t bands = max64(1, tiles_of(v->h, rows));
    p.band = tiles_of(v->h, bands);
    p.bands = tiles_of(v->h, max64(1, p.band));
    p.window = band_rows(&p, p.band) * p.columns * v->og;
    p.result = NARROW ? p.band * v->w * v->cg : 0;
    return p;
}

static size_t scratch_of(const plan *p)
{
    size_t pointers = lk__round_up((size_t)(p->band * p->v.w) * 2 * sizeof(void *), LK__ALIGN);
    return space_of(p->window) + space_of(p->result) + pointers;
}

static int64_t weights_per_group(const plan *p) { return p->v.kh * p->v.kw * p->v.og * p->panels * NR; }
static size_t  weights_of(const plan *p) { return space_of(p->v.groups * weights_per_group(p)); }

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
    REAL  *weights; /* [group][phase][panel][(tap row, tap column, o)][NR], taps from the last to the first */
    char  *scratch;
    size_t per_worker;
} job;

static int64_t taps(int64_t kernel, int64_t phase, int64_t stride)
{
    return phase < kernel ? (kernel - phase + stride - 1) / stride : 0;
}

/* Where a tap's rows are in the panel `panel` of a group's weights. */
static int64_t tap_offset(const plan *p, int64_t panel, int64_t row, int64_t column)
{
    const conv *v = &p->v;
    int64_t     s = v->stride, before = 0; /* rows of the phases before it */
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++) {
            int64_t tall = taps(v->kh, a, s), wide = taps(v->kw, b, s);
            if (row % s == a && column % s == b)
                return (before * p->panels + (panel * tall + tall - 1 - row / s) * wide * v->og +
                        (wide - 1 - column / s) * v->og) *
                       NR;
            before += tall * wide * v->og;
        }
    return 0;
}

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
        for (int64_t i = 0; i < count; i++) at[i] = tap_offset(p, panel, (first + i) / v->kw, (first + i) % v->kw);
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

/* The pixels of phase (a, b) in the band's rows; returns how many. result is the band's first pixel; they are `pixel`
 * elements apart. */
static int64_t gather_phase(const plan *p, int64_t a, int64_t b, int64_t first, int64_t rows, const REAL *window_copy,
                            REAL *result, int64_t pixel, const REAL **from, REAL **to)
{
    const conv *v = &p->v;
    int64_t     s = v->stride, count = 0, lowest = (first + v->padding) / s;
    int64_t     up = p->tall - taps(v->kh, a, s), left = p->wide - taps(v->kw, b, s);
    for (int64_t h = first; h < first + rows; h++) {
        if ((h + v->padding) % s != a) continue;
        int64_t row = (h + v->padding) / s - lowest + up;
        for (int64_t w = ((b - v->padding) % s + s) % s; w < v->w; w += s, count++) {
            int64_t column = (w + v->padding) / s - p->wide + 1 - p->column + left;
            from[count] = window_copy + (row * p->columns + column) * v->og;
            to[count] = result + ((h - first) * v->w + w) * pixel;
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
    REAL          *window_copy = (REAL *)scratch;
    REAL          *result = (REAL *)(scratch + space_of(p->window));
    const REAL   **from = (const REAL **)(scratch + space_of(p->window) + space_of(p->result));
    REAL         **to = (REAL **)(from + p->band * v->w);
    const ELEMENT *dy = (const ELEMENT *)job->call->in[0].data + n * v->yh * v->yw * v->o;
    const uint8_t *index = optional_in(job->call, 2);
    ELEMENT       *dx = (ELEMENT *)job->call->out[0].data + (n * v->h + first) * v->w * v->c + group * v->cg;
    const REAL    *weights = job->weights + group * weights_per_group(p);

    int64_t lowest = (first + v->padding) / s, highest = (first + rows - 1 + v->padding) / s;
    window  at = {lowest - p->tall + 1, p->column, highest - lowest + p->tall, p->columns};
    if (!NARROW) result = (REAL *)(void *)dx;
    if (index) index += n * v->yh * v->yw * v->o;
    expand_window(window_copy, at, v, dy, index, group * v->og, v->og, v->og, 0);
    for (int64_t a = 0; a < s; a++)
        for (int64_t b = 0; b < s; b++) {
            int64_t tall = taps(v->kh, a, s), wide = taps(v->kw, b, s), deep = tall * wide * v->og;
            int64_t count = gather_phase(p, a, b, first, rows, window_copy, result, NARROW ? v->cg : v->c, from, to);
            runs    how = {.runs = wide ? tall : 0, .length = wide * v->og, .a_run = p->columns * v->og};
            for (int64_t panel = 0; panel < p->panels; panel++, weights += deep * NR)
                micro_nn(count, from, &how, weights, zeros, to, panel * NR, min64(NR, v->cg - panel * NR));
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
    lk__pool_run(call->pool, v->groups * p->panels, pack_panel, &job);
    lk__pool_run(call->pool, v->n * p->bands * v->groups, run_tile, &job);
}
