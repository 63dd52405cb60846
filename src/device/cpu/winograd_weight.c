/* winograd_weight.c - conv2d_grad_weight by Winograd's algorithm: for each of the 36 planes the product of a block's transformed x
 * and dy over its tiles; the planes are summed over a chunk's images and transformed to 3×3 taps once. */
#include "device/cpu/winograd.h"

enum {
    LARGEST = 16 << 10, /* elements of one plane of a tile's sums: 36 of them about fit into the second-level cache */
    CHANNELS = 64 /* of x, where it has more, that are summed at a time: also its transformed tiles are in that cache */
};

int64_t winograd_weight_block(const conv *v) { return max64(1, LARGEST / (v->c * NR)); }

typedef struct plan {
    tiling  t;
    int64_t channels; /* of x at a time */
    int64_t pixels;   /* of a unit's copy of dy */
    int64_t v_plane, g_plane, s_plane;
} plan;

static plan plan_of(const conv *v)
{
    plan p = {.channels = min64(v->c, CHANNELS)};
    p.t = tiling_of(v->oh, v->ow, p.channels, max64(16, min64(64, 2048 / p.channels)));
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

/* One band of tile rows of x, `channels` channels from c on: padded, transformed, as the block's tiles from `first` on. */
static void transform_x(const lk__kernel_call *call, const conv *v, const plan *p, unit u, int64_t first, int64_t c,
                        int64_t channels, REAL *copy, REAL *planes)
{
    const ELEMENT *x = (const ELEMENT *)call->in[0].data + u.n * v->h * v->w * v->c;
    window         at = {4 * u.row - v->padding, -v->padding, 4 * u.rows + 2, 4 * p->t.wide + 2};
    int64_t        row = at.columns * channels;
    copy_window(copy, at, x, v->h, v->w, v->c, c, channels);
    for (int64_t i = 0; i < u.rows; i++)
        for (int64_t j = 0; j < p->t.wide; j++, first++)
            transform_input(copy + 4 * i * row + 4 * j * channels, row, channels, channels, planes + first * channels,
                            p->v_plane);
}

/* The same for one panel of dy, whose pixels are also summed for the bias. */
static void transform_dy(const lk__kernel_call *call, const conv *v, const plan *p, unit u, int64_t first,
                         int64_t panel, REAL *copy, REAL *planes, REAL *bias, bool start)
{
    int64_t        from = u.n * v->yh * v->yw * v->o, channel = panel * NR, row = 4 * p->t.wide * NR;
    const uint8_t *index = optional_in(call, 2);
    window         at = {4 * u.row, 0, 4 * u.rows, 4 * p->t.wide};
    expand_window(copy, at, v, (const ELEMENT *)call->in[1].data + from, index ? index + from : NULL, channel,
                  min64(NR, v->o - channel), NR, 0);
    add_rows(bias, copy, at.rows * at.columns, start);
    for (int64_t i = 0; i < u.rows; i++)
        for (int64_t j = 0; j < p->t.wide; j++, first++)
            transform_gradient(copy + 4 * i * row + 4 * j * NR, row, NR, planes + first * NR, p->g_plane);
}

/* The sums of `channels` channels of x from c on. */
static void sum_channels(const lk__kernel_call *call, const conv *v, const plan *p, int64_t first, int64_t end,
                         int64_t c, int64_t channels, int64_t panel, int64_t panels, REAL *to, int64_t step,
                         char *scratch)
{
    REAL *x_copy = (REAL *)scratch, *x = x_copy + space_of(p->t.window) / sizeof(REAL);
    REAL *dy_copy = x + space_of(PLANES * p->v_plane + MR) / sizeof(REAL),
         *dy = dy_copy + space_of(p->pixels * NR) / sizeof(REAL);
    REAL   *sums = dy + space_of(PLANES * p->g_plane) / sizeof(REAL);
    int64_t bands = p->t.bands, deep = 9 * v->c;
    for (int64_t block = first * bands; block < end * bands; block += p->t.units) {
        int64_t last = min64(end * bands, block + p->t.units), tiles = 0;
        bool    start = block == first * bands;
        for (int64_t i = block; i < last; i++) {
            unit u = unit_of(&p->t, i);
            transform_x(call, v, p, u, tiles, c, channels, x_copy, x);
            tiles += u.rows * p->t.wide;
        }
        for (int64_t q = 0; q < panels; q++) {
            runs    how = {.runs = 1, .length = tiles, .a_k = channels};
            int64_t at = 0;
            for (int64_t i = block; i < last; i++) {
                unit u = unit_of(&p->t, i);
                transform_dy(call, v, p, u, at, panel + q, dy_copy, dy, to + q * step + deep * NR, start && i == block);
                at += u.rows * p->t.wide;
            }
            for (int64_t f = 0; f < PLANES; f++)
                micro_tn(channels, x + f * p->v_plane, &how, dy + f * p->g_plane, start ? zeros : NULL,
                         sums + (q * PLANES + f) * p->s_plane, NR, NR);
        }
    }
    for (int64_t q = 0; q < panels; q++)
        for (int64_t i = 0; i < channels; i++)
            transform_weight_sum(sums + q * PLANES * p->s_plane + i * NR, p->s_plane, to + q * step + (c + i) * NR,
                                 v->c * NR);
}

void winograd_weight_sum(const lk__kernel_call *call, const conv *v, int64_t first, int64_t end, int64_t panel,
                         int64_t panels, REAL *to, int64_t step, char *scratch)
{
    plan p = plan_of(v);
    for (int64_t c = 0; c < v->c; c += p.channels)
        sum_channels(call, v, &p, first, end, c, min64(p.channels, v->c - c), panel, panels, to, step, scratch);
}
