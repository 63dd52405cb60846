/* conv2d_grad_weight.c - the gradient of a convolution with respect to its weight and bias.
 *
 * A tile sums over a chunk of images for a block of output channels, in the layout of packed weights; the chunks' sums
 * are then added in order. Chunks and bands, in which sums are made, depend on the shape of the whole alone. With a
 * matrix instruction set a band's patches and its gradient are packed, so that pixels are the k of their product. */
#include "device/cpu/gemm_block.h"
#include "device/cpu/winograd.h"

enum {
    PIXELS = 256,         /* of a band: a panel of dy stays in the first-level cache */
    BAND = 32 << 10,      /* elements of x that a band may copy */
    CHUNKS = 16,          /* at most; also the number of tiles wanted for threads */
    PARTIALS = 512 << 10, /* at most so many elements of partial sums */
    TRANSPOSED = 64       /* rows of a panel that are transposed at a time */
};

typedef struct plan {
    conv    v;
    bool    winograd, copies, patches, argmax; /* argmax: see argmax_patches.c */
    int64_t deep;           /* rows of a panel of dw; with patches the bias gradient is row kh*kw*cg */
    int64_t chunks, blocks; /* of images; of panels */
    int64_t block;          /* panels of a block */
    int64_t band, bands, columns;
    int64_t window, patch, panel; /* elements of a worker's scratch; panel: of dy, or of the sums of argmax_patches.c */
    int64_t pixels;               /* k's of a band's packed panels, with a matrix instruction set */
} plan;

/* From a row's first pixel to the next one's: whole units where they are small, which are packed in whole vectors. */
static int64_t row_pixels(const conv *v) { return PANEL_UNIT <= 4 ? packed_depth(v->ow) : v->ow; }
static int64_t band_rows(const plan *p, int64_t rows) { return (rows - 1) * p->v.stride + p->v.kh; }

static plan plan_of(const lk__kernel_call *call)
{
    plan  p = {.v = conv_of_parts(call->attrs, &call->in[0], &call->out[0])};
    conv *v = &p.v, whole = whole_conv(v);
    p.winograd = winograd_fits(v);
    /* Short kernel rows would waste most of a tile of MR rows. */
    p.patches = !MATRIX && whole.kw * whole.cg < 4 * MR && whole.kw * whole.cg % MR != 0;
    p.argmax = !p.winograd && argmax_patches_fit(&whole);
    p.patches = p.patches || p.argmax;
    /* micro_tn reads up to a multiple of MR, copy_patches whole vectors: at the end of x that would read past it. */
    p.copies = NARROW || v->padding > 0 || v->groups > 1 || p.patches || v->kw * v->cg % MR != 0;
    p.columns = v->w + 2 * v->padding;
    p.deep = p.patches ? patch_deep(v) : v->kh * v->kw * v->cg;
    int64_t deep = p.patches ? patch_deep(&whole) : whole.kh * whole.kw * whole.cg;
    int64_t sums = whole.groups * whole.panels * PANEL_COLUMNS * deep;
    p.chunks = max64(1, min64(PARTIALS / max64(1, sums), min64(v->n, CHUNKS)));
    p.blocks = min64(v->panels, tiles_of(CHUNKS, p.chunks * v->groups));
    p.block = tiles_of(v->panels, p.blocks);
    if (HAS_WINOGRAD && p.winograd) p.block = min64(p.block, winograd_weight_block(v));
    p.blocks = tiles_of(v->panels, p.block);
    int64_t per_row = v->stride * p.columns * whole.cg + (p.patches ? v->ow * patch_step(&whole) : 0);
    int64_t rows = max64(1, min64(BAND / max64(1, per_row), tiles_of(PIXELS, max64(1, v->ow))));
    if (p.argmax) rows = max64(1, rows / v->pool) * v->pool;
    int64_t bands = max64(1, tiles_of(v->oh, rows));
    p.band = p.argmax ? rows : tiles_of(v->oh, bands);
    p.bands = tiles_of(v->oh, max64(1, p.band));
    p.window = p.copies ? band_rows(&p, p.band) * p.columns * v->cg + max64(MR, VL) : 0;
    p.patch = p.patches ? p.band * v->ow * patch_step(v) + MR + VL : 0;
    p.panel = p.argmax ? patch_vectors(v) * VL * PANEL_COLUMNS : p.band * v->ow * PANEL_COLUMNS;
    p.pixels = packed_depth(p.band * row_pixels(v));
    return p;
}

static int64_t partial_of(const plan *p)
{
    return p->v.groups * p->v.panels * (p->deep + 1) * PANEL_COLUMNS;
} /* dw, then db */
/* A kernel row's elements, as rows of packed panels. */
static int64_t packed_rows(const conv *v) { return round_to(v->kw * v->cg, PANEL_ROWS); }
/* Of a band's patches, then of a panel of dy. */
static int64_t packed_of(const plan *p)
{
    return MATRIX && !p->argmax ? (p->v.kh * packed_rows(&p->v) + PANEL_COLUMNS) * p->pixels : 0;
}
static size_t scratch_of(const plan *p)
{
    if (HAS_WINOGRAD && p->winograd) return winograd_weight_scratch(&p->v, p->block);
    size_t panels = p->argmax ? space_of(p->panel * p->block) : packed_space_of(p->panel * p->block);
    return packed_space_of(p->window) + space_of(p->patch) + panels + packed_space_of(packed_of(p));
}

size_t KERNEL(conv2d_grad_weight_workspace)(const lk__kernel_call *call, int threads)
{
    plan p = plan_of(call);
    return (size_t)p.chunks * space_of(partial_of(&p)) + (size_t)threads * scratch_of(&p);
}

typedef struct job {
    plan                   p;
    const lk__kernel_call *call;
    char                  *partials, *scratch;
    size_t                 per_worker;
} job;

static REAL *partial_at(const job *job, int64_t chunk, int64_t panel) /* panel counts through the groups */
{
    return (REAL *)(job->partials + (size_t)chunk * space_of(partial_of(&job->p))) +
           panel * (job->p.deep + 1) * PANEL_COLUMNS;
}

/* What a tile sums: a chunk of images, a block of panels of one group; the worker's scratch by purpose. */
typedef struct sum_tile {
    int64_t group, chunk, panel, panels; /* panel: the first, in the group */
    int64_t first, end;                  /* images */
    PACKED *window, *gradient, *packed;
    REAL   *patches, *sums; /* of argmax_patches.c; the sums are where else the gradient is */
} sum_tile;

static sum_tile tile_of(const job *job, int64_t tile, int worker)
{
    const plan *p = &job->p;
    const conv *v = &p->v;
    char       *scratch = job->scratch + (size_t)worker * job->per_worker;
    sum_tile    t = {.group = tile / p->blocks % v->groups, .chunk = tile / p->blocks / v->groups};
    t.panel = tile % p->blocks * p->block;
    t.panels = min64(p->block, v->panels - t.panel);
    t.first = t.chunk * v->n / p->chunks;
    t.end = (t.chunk + 1) * v->n / p->chunks;
    t.window = (PACKED *)scratch;
    t.patches = (REAL *)(scratch + packed_space_of(p->window));
    t.sums = (REAL *)((char *)t.patches + space_of(p->patch));
    t.gradient = (PACKED *)t.sums;
    t.packed = (PACKED *)((char *)t.gradient + packed_space_of(p->panel * p->block));
    return t;
}

/* Rows of one image. */
typedef struct band {
    int64_t n, first, rows;
    bool    start; /* of the tile's sums */
} band;

/* The rows of x that a band reads: where they are, or a copy of them; its patches, where it is summed by patches. */
static const PACKED *read_image(const job *job, const sum_tile *t, band b)
{
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    const ELEMENT *x = (const ELEMENT *)job->call->in[0].data + b.n * v->h * v->w * v->c;
    const PACKED  *image = (const PACKED *)(const void *)(x + b.first * v->stride * v->w * v->c);
    if (p->copies) {
        window at = {b.first * v->stride - v->padding, -v->padding, band_rows(p, b.rows), p->columns};
        copy_window(t->window, at, x, v->h, v->w, v->c, t->group * v->cg, v->cg);
        image = t->window;
    }
    if (p->patches) copy_patches(t->patches, v, image, p->columns, b.rows);
    return image;
}

#if MATRIX
/* The patches of a band: for each row of the kernel panels of its elements, of which pixels are the k. */
static void pack_image(const plan *p, const sum_tile *t, band b, const PACKED *image)
{
    const conv *v = &p->v;
    gemm        g = {.a_row = 1, .a_k = v->stride * v->cg};
    for (int64_t i = 0; i < v->kh; i++)
        for (int64_t r = 0; r < b.rows; r++)
            gemm_pack_a(&g, image + (r * v->stride + i) * p->columns * v->cg, v->kw * v->cg, v->ow, r * row_pixels(v),
                        t->packed + i * packed_rows(v) * p->pixels, p->pixels * MATRIX_ROWS);
}

/* Adds the products of one panel of dy, with so many channels. */
static void add_panel(const plan *p, const sum_tile *t, band b, const PACKED *image, const PACKED *gradient,
                      int64_t channels, REAL *sum)
{
    const conv *v = &p->v;
    gemm        g = {.b_column = 1, .b_k = MATRIX_COLUMNS};
    int64_t     run = v->kw * v->cg, depth = packed_depth(b.rows * row_pixels(v));
    PACKED     *packed = t->packed + v->kh * packed_rows(v) * p->pixels;
    int64_t     columns = MATRIX_NARROW ? min64(MATRIX_COLUMNS, round_to(channels, 4)) : MATRIX_COLUMNS;
    (void)image;
    for (int64_t r = 0; r < b.rows; r++)
        gemm_pack_b(&g, gradient + r * v->ow * MATRIX_COLUMNS, MATRIX_COLUMNS, v->ow, r * row_pixels(v), packed, 0);
    matrix_begin();
    for (int64_t i = 0; i < v->kh; i++)
        micro_large(run, t->packed + i * packed_rows(v) * p->pixels, p->pixels * MATRIX_ROWS, depth, packed, !b.start,
                    sum + i * run * MATRIX_COLUMNS, MATRIX_COLUMNS, columns);
    matrix_end();
    add_rows(sum + p->deep * MATRIX_COLUMNS, gradient, b.rows * v->ow, b.start);
}
#else
/* They are read in place. */
static void pack_image(const plan *p, const sum_tile *t, band b, const PACKED *image)
{
    (void)p, (void)t, (void)b, (void)image;
}

/* Adds the products of one panel of dy. */
static void add_panel(const plan *p, const sum_tile *t, band b, const REAL *image, const REAL *gradient,
                      int64_t channels, REAL *sum)
{
    const conv *v = &p->v;
    const REAL *from = b.start ? zeros : NULL;
    int64_t     pixels = b.rows * v->ow, run = v->kw * v->cg;
    (void)channels; /* the missing ones are zeros */
    if (p->patches) {
        runs flat = {.runs = 1, .length = pixels, .a_k = patch_step(v)};
        micro_tn(p->deep, t->patches, &flat, gradient, from, sum, NR, NR);
        return;
    }
    runs how = {.runs = b.rows, .length = v->ow, .a_run = v->stride * p->columns * v->cg, .a_k = v->stride * v->cg};
    for (int64_t i = 0; i < v->kh; i++)
        micro_tn(run, image + i * p->columns * v->cg, &how, gradient, from, sum + i * run * NR, NR, NR);
    add_rows(sum + p->deep * NR, gradient, pixels, b.start);
}
#endif

/* Adds one image's band of output rows. */
static void add_band(const job *job, const sum_tile *t, band b)
{
    const plan    *p = &job->p;
    const conv    *v = &p->v;
    int64_t        image_size = v->yh * v->yw * v->o, pixels = b.rows * v->ow;
    int64_t        channel = t->panel * PANEL_COLUMNS, channels = min64(t->panels * PANEL_COLUMNS, v->og - channel);
    const ELEMENT *dy = (const ELEMENT *)job->call->in[1].data + b.n * image_size;
    const uint8_t *index = optional_in(job->call, 2);
    const PACKED  *image = read_image(job, t, b);
    if (index) index += b.n * image_size;
    if (p->argmax) {
        int64_t windows = min64(b.rows / v->pool, v->yh - b.first / v->pool);
        int64_t from = b.first / v->pool * v->yw * v->o + t->group * v->og + channel;
        if (b.start) memset(t->sums, 0, (size_t)(t->panels * p->panel) * sizeof(REAL));
        add_argmax_patches(v, t->patches, windows, dy + from, index + from, channels, t->sums);
        return;
    }
    window at = {b.first, 0, b.rows, v->ow};
    expand_window(t->gradient, at, v, dy, index, t->group * v->og + channel, channels, PANEL_COLUMNS,
                  pixels * PANEL_COLUMNS);
    pack_image(p, t, b, image);
    for (int64_t q = 0; q < t->panels; q++)
        add_panel(p, t, b, image, t->gradient + q * pixels * PANEL_COLUMNS, channels - q * PANEL_COLUMNS,
                  partial_at(job, t->chunk, t->group * v->panels + t->panel + q));
}

/* The sums of argmax_patches.c, in the layout of the other ways. */
static void transpose_sums(const job *job, const sum_tile *t)
{
    const plan *p = &job->p;
    const conv *v = &p->v;
    int64_t     length = patch_vectors(v) * VL;
    for (int64_t q = 0; q < t->panels; q++)
        transpose(partial_at(job, t->chunk, t->group * v->panels + t->panel + q), PANEL_COLUMNS, t->sums + q * p->panel,
                  length, min64(PANEL_COLUMNS, v->og - (t->panel + q) * PANEL_COLUMNS),
                  min64(p->deep, length)); /* the memory past length belongs to another worker */
}

static void sum_chunk(void *argument, int64_t tile, int worker)
{
    const job  *job = argument;
    const plan *p = &job->p;
    sum_tile    t = tile_of(job, tile, worker);
    if (HAS_WINOGRAD && p->winograd) {
        winograd_weight_sum(job->call, &p->v, t.first, t.end, t.panel, t.panels, partial_at(job, t.chunk, t.panel),
                            (p->deep + 1) * PANEL_COLUMNS, (char *)t.window);
        return;
    }
    for (int64_t n = t.first; n < t.end; n++)
        for (int64_t i = 0; i < p->bands; i++) {
            int64_t row = i * p->band;
            add_band(job, &t, (band){n, row, min64(p->band, p->v.oh - row), n == t.first && i == 0});
        }
    if (p->argmax) transpose_sums(job, &t);
}

/* Adds the chunks' sums of one panel and writes it in the weights' layout. */
static void finish_panel(void *argument, int64_t tile, int worker)
{
    const job  *job = argument;
    const plan *p = &job->p;
    const conv *v = &p->v;
    int64_t     group = tile / v->panels, panel = tile % v->panels, taps = v->kh * v->kw, deep = taps * v->cg;
    int64_t     columns = min64(PANEL_COLUMNS, v->og - panel * PANEL_COLUMNS),
            first = group * v->og + panel * PANEL_COLUMNS;
    REAL   *dw = (REAL *)job->call->out[0].data + first * deep, *db = optional_out(job->call, 1);
    REAL   *sum = partial_at(job, 0, tile);
    int64_t count = (p->deep + 1) * PANEL_COLUMNS;
    (void)worker;
    for (int64_t chunk = 1; chunk < p->chunks; chunk++) {
        const REAL *more = partial_at(job, chunk, tile);
        for (int64_t i = 0; i < count; i += VL) store(sum + i, load(sum + i) + load(more + i));
    }
    for (int64_t from = 0, channel = 0, tap = 0; from < deep; from += TRANSPOSED) {
        int64_t rows = min64(TRANSPOSED, deep - from);
        REAL    ordered[TRANSPOSED * PANEL_COLUMNS];
        for (int64_t i = 0; i < rows; i++) { /* (tap, channel) → (channel, tap) */
            memcpy(ordered + i * PANEL_COLUMNS, sum + (tap * v->cg + channel) * PANEL_COLUMNS,
                   PANEL_COLUMNS * sizeof(REAL));
            if (++tap == taps) tap = 0, channel++;
        }
        transpose(dw + from, deep, ordered, PANEL_COLUMNS, rows, columns);
    }
    /* With patches the row of ones follows the taps, otherwise the bias is the last row: both are row `deep`. */
    if (db) memcpy(db + first, sum + deep * PANEL_COLUMNS, (size_t)columns * sizeof(REAL));
}

void KERNEL(conv2d_grad_weight)(const lk__kernel_call *call)
{
    job   job = {.p = plan_of(call), .call = call, .partials = call->workspace};
    plan *p = &job.p;
    conv *v = &p->v;
    REAL *db = optional_out(call, 1);
    if (v->n <= 0 || v->oh <= 0 || v->ow <= 0) {
        memset(call->out[0].data, 0, (size_t)(v->o * v->cg * v->kh * v->kw) * sizeof(REAL));
        if (db) memset(db, 0, (size_t)v->o * sizeof(REAL));
        return;
    }
    job.scratch = job.partials + (size_t)p->chunks * space_of(partial_of(p));
    job.per_worker = scratch_of(p);
    lk__pool_run(call->pool, p->chunks * v->groups * p->blocks, sum_chunk, &job);
    lk__pool_run(call->pool, v->groups * v->panels, finish_panel, &job);
}
