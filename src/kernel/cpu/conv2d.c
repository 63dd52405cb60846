/* conv2d.c - convolution forward, with bias, relu and max pool in the same pass.
 *
 * A tile is one image's band of output rows in one group: a padded copy of the rows it reads stays in cache and is
 * multiplied where it lies, kernel row by kernel row; with a pool, so does the convolution's result, and only the pooled
 * values and the winners' positions go to memory. */
#include "kernel/cpu/conv.h"

enum { BAND = 48 << 10, PIXELS = 512 }; /* elements of scratch and pixels that a band aims at */

typedef struct plan {
    conv    v;
    bool    copies;  /* of x: padding or groups; otherwise x is used where it lies */
    bool    patches;
    int64_t deep;    /* K of the product */
    int64_t band;    /* rows of the convolution in a band, whole pool windows */
    int64_t bands;
    int64_t columns; /* of the window */
    int64_t window, patch, result; /* elements of a worker's scratch */
} plan;

static int64_t band_rows(const plan *p, int64_t rows) { return (rows - 1) * p->v.stride + p->v.kh; }

static plan plan_of(const lk__call *call)
{
    plan  p = {.v = conv_of(call->attrs, call->in[0].dims, call->in[1].dims)};
    conv *v = &p.v;
    p.patches = wants_patches(v);
    p.copies = v->padding > 0 || v->groups > 1 || p.patches;
    p.columns = p.copies ? v->w + 2 * v->padding : v->w;
    p.deep = p.patches ? patch_row(v) : v->kh * v->kw * v->cg;
    int64_t per_row = (p.copies ? v->stride * p.columns * v->cg : 0) + (p.patches ? v->ow * p.deep : 0) +
                      (v->pool > 1 ? v->ow * v->og : 0);
    int64_t used = v->yh * v->pool; /* rows that a pool's last incomplete window leaves out are never computed */
    int64_t rows = min64(BAND / max64(1, per_row), tiles_of(PIXELS, max64(1, v->ow)));
    rows = max64(v->pool, rows / v->pool * v->pool);
    int64_t bands = max64(1, tiles_of(used, rows));
    p.band = round_to(tiles_of(used, bands), v->pool);
    p.bands = tiles_of(used, max64(1, p.band));
    p.window = p.copies ? band_rows(&p, p.band) * p.columns * v->cg + VL : 0;
    p.patch = p.patches ? p.band * v->ow * p.deep + VL : 0;
    p.result = v->pool > 1 ? p.band * v->ow * v->og : 0;
    return p;
}

typedef struct job {
    plan           p;
    const lk__call *call;
    const REAL     *weights, *bias; /* bias: NR multiples for each group */
    char           *scratch;
    size_t          per_worker;
} job;

static size_t scratch_of(const plan *p)
{
    size_t pointers = lk__round_up((size_t)(p->band * p->v.ow) * 2 * sizeof(void *), LK__ALIGN);
    return space_of(p->window) + space_of(p->patch) + space_of(p->result) + pointers;
}

static size_t weights_of(const plan *p) { return space_of(p->v.groups * p->v.panels * NR * p->deep); }
static size_t bias_of(const plan *p) { return space_of(p->v.groups * p->v.panels * NR); }

size_t KERNEL(conv2d_workspace)(const lk__call *call, int threads)
{
    plan p = plan_of(call);
    return weights_of(&p) + bias_of(&p) + (size_t)threads * scratch_of(&p);
}

static void run_tile(void *argument, int64_t tile, int worker)
{
    const job  *job = argument;
    const plan *p = &job->p;
    const conv *v = &p->v;
    int64_t     group = tile % v->groups, band = tile / v->groups % p->bands, n = tile / v->groups / p->bands;
    int64_t     first = band * p->band, rows = min64(p->band, v->yh * v->pool - first), pixels = rows * v->ow;
    char       *scratch = job->scratch + (size_t)worker * job->per_worker;
    REAL       *window_copy = (REAL *)scratch;
    REAL       *patches = (REAL *)(scratch + space_of(p->window));
    REAL       *result = (REAL *)(scratch + space_of(p->window) + space_of(p->patch));
    const REAL **from = (const REAL **)(scratch + space_of(p->window) + space_of(p->patch) + space_of(p->result));
    REAL       **to = (REAL **)(from + p->band * v->ow);
    const REAL *x = (const REAL *)job->call->in[0].data + n * v->h * v->w * v->c;
    REAL       *y = (REAL *)job->call->out[0].data + ((n * v->yh + first / v->pool) * v->yw) * v->o + group * v->og;
    uint8_t    *index = optional_out(job->call, 1);

    const REAL *image = x + first * v->stride * v->w * v->c;
    if (p->copies) {
        window at = {first * v->stride - v->padding, -v->padding, band_rows(p, rows), p->columns};
        copy_window(window_copy, at, x, v->h, v->w, v->c, group * v->cg, v->cg);
        image = window_copy;
    }
    if (p->patches) copy_patches(patches, p->deep, v, image, p->columns, rows);

    REAL   *out = v->pool > 1 ? result : y;
    int64_t out_pixel = v->pool > 1 ? v->og : v->o, pixel = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t q = 0; q < v->ow; q++, pixel++) {
            from[pixel] = p->patches ? patches + pixel * p->deep : image + (r * p->columns + q) * v->stride * v->cg;
            to[pixel] = out + pixel * out_pixel;
        }
    runs how = {.runs = v->kh, .length = v->kw * v->cg, .a_run = p->columns * v->cg};
    if (p->patches) how = (runs){.runs = 1, .length = p->deep};
    for (int64_t panel = 0; panel < v->panels; panel++) {
        int64_t at = group * v->panels + panel;
        micro_nn(pixels, from, &how, job->weights + at * p->deep * NR, job->bias + at * NR, to, panel * NR,
                 min64(NR, v->og - panel * NR));
    }
    if (v->pool > 1) {
        if (index) index += ((n * v->yh + first / v->pool) * v->yw) * v->o + group * v->og;
        pool_rows(v, result, rows / v->pool, y, index);
    } else if (v->relu) {
        if (v->groups == 1)
            relu_in_place(y, pixels * v->o);
        else
            for (int64_t i = 0; i < pixels; i++) relu_in_place(y + i * v->o, v->og);
    }
}

void KERNEL(conv2d)(const lk__call *call)
{
    job   job = {.p = plan_of(call), .call = call};
    plan *p = &job.p;
    conv *v = &p->v;
    if (v->n * p->bands <= 0 || v->yw <= 0) return;
    char       *workspace = call->workspace;
    REAL       *weights = (REAL *)workspace, *bias = (REAL *)(workspace + weights_of(p));
    const REAL *b = optional_in(call, 2);
    pack_weights(v, call->in[1].data, weights, p->deep, call->pool);
    memset(bias, 0, bias_of(p));
    for (int64_t g = 0; b && g < v->groups; g++)
        memcpy(bias + g * v->panels * NR, b + g * v->og, (size_t)v->og * sizeof(REAL));
    job.weights = weights;
    job.bias = bias;
    job.scratch = workspace + weights_of(p) + bias_of(p);
    job.per_worker = scratch_of(p);
    lk__pool_run(call->pool, v->n * p->bands * v->groups, run_tile, &job);
}
