/* device/cpu/winograd.h - 3×3 convolutions at stride 1 by 6×6 products instead of 144 for each 4×4 tile of pixels.
 *
 * Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): F(4×4, 3×3) for the forward pass and the
 * input gradient, F(3×3, 4×4) for the weight gradient. Interpolation at 0, ±3/4, ±3/2 and infinity: their
 * products are exact in binary, and the error is half of that of 0, ±1, ±2 (6e-7 of the result's norm where the direct
 * sum has 1e-7). f32 only: f64 is for numerical checks. */
#ifndef LK__WINOGRAD_H
#define LK__WINOGRAD_H

#include "device/cpu/conv.h"

#define A1 ((REAL)0.75) /* a = 3/4 and its powers */
#define A2 ((REAL)0.5625)
#define A3 ((REAL)0.421875)
#define B1 ((REAL)1.5) /* b = 3/2 */
#define B2 ((REAL)2.25)
#define B3 ((REAL)3.375)
#define AB ((REAL)1.265625) /* a²b² */
#define SUM ((REAL)2.8125)  /* a² + b² */
/* The reciprocal denominators of the interpolation: at 0; at ±a, 1 / 2a²(a² - b²); at ±b, 1 / 2b²(b² - a²). */
#define AT_0 (64.0 / 81)
#define AT_A (-128.0 / 243)
#define AT_B (32.0 / 243)

enum { PLANES = 36, SKEW = 16 }; /* products of a tile; elements between planes, so that they do not share cache sets */

/* With a matrix instruction set the direct product takes less time, and its bound does not grow by the transforms. */
#define HAS_WINOGRAD !MATRIX

/* Whether the three kernels use it: depends only on the shape of an image and of the whole weights, not on the batch or
 * the part. A part's channels are padded to whole vectors. */
#if HAS_WINOGRAD
#define winograd_fits KERNEL(winograd_fits)
bool winograd_fits(const conv *v);
#else
static inline bool winograd_fits(const conv *v)
{
    (void)v;
    return false;
}
#endif

/* A block of tiles that is processed at once: `units` bands of `band` tile rows, numbered across the images. */
typedef struct tiling {
    int64_t tall, wide;  /* tiles of an image */
    int64_t band, bands; /* tile rows of a unit; units of an image */
    int64_t units;       /* of a block */
    int64_t tiles;       /* of a block, whole MRs */
    int64_t window;      /* elements of a unit's padded copy */
} tiling;

typedef struct unit { /* a band of tile rows of one image */
    int64_t n, row, rows;
} unit;

static inline unit unit_of(const tiling *t, int64_t index)
{
    int64_t band = index % t->bands;
    return (unit){index / t->bands, band * t->band, min64(t->band, t->tall - band * t->band)};
}

/* For images of h × w pixels to be covered; about `wanted` tiles in a block; `channels` in the copy. */
#define tiling_of KERNEL(tiling_of)
tiling tiling_of(int64_t h, int64_t w, int64_t channels, int64_t wanted);

/* 6×6 pixels of `channels` channels, `row` elements from row to row and `pixel` from one to the next → to[plane * f +
 * c] for the 36 f's. */
#define transform_input KERNEL(transform_input)
void transform_input(const REAL *from, int64_t row, int64_t pixel, int64_t channels, REAL *to, int64_t plane);

/* The same for 4×4 pixels of dy; transform_weight_sum applies the factors 1/f of the interpolation. */
#define transform_gradient KERNEL(transform_gradient)
void transform_gradient(const REAL *from, int64_t row, int64_t channels, REAL *to, int64_t plane);

/* 36 planes of NR sums (of V times transformed dy) → 9 taps, `tap` elements apart. */
#define transform_weight_sum KERNEL(transform_weight_sum)
void transform_weight_sum(const REAL *from, int64_t plane, REAL *to, int64_t tap);

/* `count` rows from `first` on of a panel of weights → to[f * plane + row * NR + …]. Forward: rows are c, columns are
 * o. Backward: taps in reverse order, rows are o, columns are c. Rows past the last channel are zeros. */
#define transform_weights KERNEL(transform_weights)
void transform_weights(const conv *v, const ELEMENT *w, bool backward, int64_t panel, int64_t first, int64_t count,
                       REAL *to, int64_t plane);

/* conv2d and conv2d_grad_input. */
#define winograd_run KERNEL(winograd_run)
void winograd_run(const lk__kernel_call *call, const conv *v, bool backward);
#define winograd_workspace KERNEL(winograd_workspace)
size_t winograd_workspace(const conv *v, bool backward, int threads);

/* conv2d_grad_weight's sums over images first … end of `panels` panels from `panel` on: to[q*step + …] are the 9c rows
 * of a panel in the layout of packed weights, then a row for the bias. */
#define winograd_weight_sum KERNEL(winograd_weight_sum)
void winograd_weight_sum(const lk__kernel_call *call, const conv *v, int64_t first, int64_t end, int64_t panel,
                         int64_t panels, REAL *to, int64_t step, char *scratch);
#define winograd_weight_scratch KERNEL(winograd_weight_scratch)
size_t winograd_weight_scratch(const conv *v, int64_t panels);
#define winograd_weight_block KERNEL(winograd_weight_block)
int64_t winograd_weight_block(const conv *v); /* maximum panels at once */

#endif
