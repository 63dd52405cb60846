/* winograd_weight.c - conv2d_grad_weight by Winograd's algorithm: for each of the 36 planes the product of a block's
 * transformed x and dy over its tiles; the planes are summed over a chunk's images and transformed to 3×3 taps once. */
#include "device/cpu/winograd.h"

#if HAS_WINOGRAD

enum {
    LARGEST = 16 << 10, /* elements of one plane of a tile's sums: 36 of them about fit into the second-level cache */
    CHANNELS = 64 /* of x, where it has more, that are summed at a time: also its transformed tiles are in that cache */
};

int64_t winograd_weight_block(const conv *v) { return max64(1, LARGEST / (v->c * NR)); }

typedef struct plan {
    tiling  t;
    int64_t channels; /* of x at a time, whole vectors */
    int64_t pixels;   /* of a unit's copy of dy */
    int64_t v_plane, g_plane, s_plane;
} plan;

static plan plan_of(const conv *v)
{
    plan p = {.channels = min64(round_to(v->c, VL), CHANNELS)};
    /* The tiles of a block are summed by themselves: as many as of the whole. */
    int64_t whole = min64(v->whole_c, CHANNELS);
    p.t = tiling_of(v->oh, v->ow, p.channels, max64(16, min64(64, 2048 / whole)));
    p.pixels = 16 * p.t.band * p.t.wide;
    p.v_plane = p.t.tiles * p.channels + SKEW;
    p.g_plane = p.t.tiles * NR + SKEW;
    p.s_plane = p.channels * NR + SKEW;
    return p;
}

size_t winograd_weight_scratch(const conv *v, int64_t panels)
{
    plan p = plan_of(v);
    return space_of(p.t.window) + space_of(PLANES * p.v_plane + MR) + space_of(p.pixels * NR) +
           space_of(PLANES * p.g_plane) + space_of(panels * PLANES * p.s_plane);
}

/* What one call sums: images from `first` to before `end`, panels of dy, into sums `step` elements apart; `scratch` by
 * purpose. */
typedef struct sum_job {
    const lk__kernel_call *call;
    const conv            *v;
    plan                   p;
    int64_t                first, end, panel, panels, step;
    REAL                  *to;
    REAL   *x_copy, *x, *dy_copy, *dy, *sums; /* x, dy: transformed, in planes; sums: of the planes' products */
    int64_t channel, channels, padded;        /* of x: those that are summed now; padded: to whole vectors */
} sum_job;

static void divide_scratch(sum_job *j, char *scratch)
{
    const plan *p = &j->p;
    j->x_copy = (REAL *)scratch;
    j->x = j->x_copy + space_of(p->t.window) / sizeof(REAL);
    j->dy_copy = j->x + space_of(PLANES * p->v_plane + MR) / sizeof(REAL);
    j->dy = j->dy_copy + space_of(p->pixels * NR) / sizeof(REAL);
    j->sums = j->dy + space_of(PLANES * p->g_plane) / sizeof(REAL);
}

/* One band of tile rows of x: padded, transformed, as the block's tiles from `first` on. */
static void transform_x(const sum_job *job, unit u, int64_t first)
{
    const conv    *v = job->v;
    const plan    *p = &job->p;
    const ELEMENT *x = (const ELEMENT *)job->call->in[0].data + u.n * v->h * v->w * v->c;
    window         at = {4 * u.row - v->padding, -v->padding, 4 * u.rows + 2, 4 * p->t.wide + 2};
    int64_t        channels = job->padded, row = at.columns * channels;
    copy_window(job->x_copy, at, x, v->h, v->w, v->c, job->channel, channels);
    for (int64_t i = 0; i < u.rows; i++)
        for (int64_t j = 0; j < p->t.wide; j++, first++)
            transform_input(job->x_copy + 4 * i * row + 4 * j * channels, row, channels, channels,
                            job->x + first * channels, p->v_plane);
}

/* The same for one panel of dy, whose pixels are also summed for the bias. */
static void transform_dy(const sum_job *job, unit u, int64_t first, int64_t panel, REAL *bias, bool start)
{
    const conv    *v = job->v;
    const plan    *p = &job->p;
    int64_t        from = u.n * v->yh * v->yw * v->o, channel = panel * NR, row = 4 * p->t.wide * NR;
    const uint8_t *index = optional_in(job->call, 2);
    window         at = {4 * u.row, 0, 4 * u.rows, 4 * p->t.wide};
    expand_window(job->dy_copy, at, v, (const ELEMENT *)job->call->in[1].data + from, index ? index + from : NULL,
                  channel, min64(NR, v->o - channel), NR, 0);
    add_rows(bias, job->dy_copy, at.rows * at.columns, start);
    for (int64_t i = 0; i < u.rows; i++)
        for (int64_t j = 0; j < p->t.wide; j++, first++)
            transform_gradient(job->dy_copy + 4 * i * row + 4 * j * NR, row, NR, job->dy + first * NR, p->g_plane);
}

/* Adds the products of the units from `block` to before `last`. */
static void add_block(const sum_job *job, int64_t block, int64_t last)
{
    const plan *p = &job->p;
    bool        start = block == job->first * p->t.bands;
    int64_t     tiles = 0;
    for (int64_t i = block; i < last; i++) {
        unit u = unit_of(&p->t, i);
        transform_x(job, u, tiles);
        tiles += u.rows * p->t.wide;
    }
    runs how = {.runs = 1, .length = tiles, .a_k = job->padded};
    for (int64_t q = 0; q < job->panels; q++) {
        REAL   *bias = job->to + q * job->step + 9 * job->v->c * NR;
        int64_t at = 0;
        for (int64_t i = block; i < last; i++) {
            unit u = unit_of(&p->t, i);
            transform_dy(job, u, at, job->panel + q, bias, start && i == block);
            at += u.rows * p->t.wide;
        }
        for (int64_t f = 0; f < PLANES; f++)
            micro_tn(job->channels, job->x + f * p->v_plane, &how, job->dy + f * p->g_plane, start ? zeros : NULL,
                     job->sums + (q * PLANES + f) * p->s_plane, NR, NR);
    }
}

static void sum_channels(const sum_job *job)
{
    const plan *p = &job->p;
    int64_t     end = job->end * p->t.bands;
    for (int64_t block = job->first * p->t.bands; block < end; block += p->t.units)
        add_block(job, block, min64(end, block + p->t.units));
    for (int64_t q = 0; q < job->panels; q++)
        for (int64_t i = 0; i < job->channels; i++)
            transform_weight_sum(job->sums + q * PLANES * p->s_plane + i * NR, p->s_plane,
                                 job->to + q * job->step + (job->channel + i) * NR, job->v->c * NR);
}

void winograd_weight_sum(const lk__kernel_call *call, const conv *v, int64_t first, int64_t end, int64_t panel,
                         int64_t panels, REAL *to, int64_t step, char *scratch)
{
    sum_job job = {.call = call, .v = v, .p = plan_of(v), .first = first, .end = end, .panel = panel, .panels = panels};
    job.to = to;
    job.step = step;
    divide_scratch(&job, scratch);
    for (; job.channel < v->c; job.channel += job.p.channels) {
        job.channels = min64(job.p.channels, v->c - job.channel);
        job.padded = round_to(job.channels, VL);
        sum_channels(&job);
    }
}

#endif
