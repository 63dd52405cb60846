/* device/cpu/conv.h - shared by the three convolution kernels: the geometry, padded copies of an image's rows, patches,
 * the fused pool and its gradient. Images are (H, W, C) in memory, so the pixels under a kernel row are one run. */
#ifndef LK__CONV_H
#define LK__CONV_H

#include "device/cpu/activate.h"
#include "device/cpu/gemm.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef struct conv {
    int64_t      n, c, h, w;                     /* x */
    int64_t      o, kh, kw;                      /* w */
    int64_t      oh, ow;                         /* of the convolution, before the pool */
    int64_t      yh, yw;                         /* of y and dy */
    int64_t      stride, padding, groups, pool;  /* pool >= 1 */
    int64_t      cg, og;                         /* channels of a group, in and out */
    int64_t      panels;                         /* of og */
    int64_t      whole_c, whole_o, whole_groups; /* of the whole, of which x and w may be parts */
    lk__op_unary activation;
    bool         relu;
} conv;

static inline conv conv_of(const lk__op_attrs *attrs, const int64_t *x, const int64_t *w)
{
    conv v = {.n = x[0], .c = x[1], .h = x[2], .w = x[3], .o = w[0], .kh = w[2], .kw = w[3]};
    v.stride = max64(1, attrs->stride);
    v.padding = attrs->padding;
    v.groups = max64(1, attrs->groups);
    v.pool = max64(1, attrs->pool);
    v.oh = (v.h + 2 * v.padding - v.kh) / v.stride + 1;
    v.ow = (v.w + 2 * v.padding - v.kw) / v.stride + 1;
    v.yh = v.oh / v.pool;
    v.yw = v.ow / v.pool;
    v.cg = v.c / v.groups;
    v.og = v.o / v.groups;
    v.panels = tiles_of(v.og, PANEL_COLUMNS);
    v.whole_c = v.c, v.whole_o = v.o, v.whole_groups = v.groups;
    v.activation = attrs->activation;
    v.relu = v.activation == LK__RELU;
    return v;
}

/* Of a call's operands. Which algorithm computes a part, and in which order it adds, follow from the whole. */
static inline conv conv_of_parts(const lk__op_attrs *attrs, const lk__kernel_operand *x, const lk__kernel_operand *w)
{
    conv v = conv_of(attrs, x->dims, w->dims);
    v.whole_c = lk__whole_extent(x, 1);
    v.whole_o = lk__whole_extent(w, 0);
    v.whole_groups = max64(1, v.whole_c / max64(1, lk__whole_extent(w, 1)));
    return v;
}

/* The whole, for everything on which the order of sums depends. */
static inline conv whole_conv(const conv *v)
{
    conv w = *v;
    w.c = v->whole_c, w.o = v->whole_o, w.groups = v->whole_groups;
    w.cg = w.c / w.groups, w.og = w.o / w.groups;
    w.panels = tiles_of(w.og, PANEL_COLUMNS);
    return w;
}

/* Rows and columns of an image that a scratch copy holds: from (row, column), which may be outside the image, where it
 * is zero. */
typedef struct window {
    int64_t row, column, rows, columns;
} window;

/* to[r][q][0…width) = channels first … first+width of the image (h, w, c); zeros past its last channel. */
#define copy_window KERNEL(copy_window)
void copy_window(PACKED *to, window at, const ELEMENT *image, int64_t h, int64_t w, int64_t c, int64_t first,
                 int64_t width);

/* to[pixel * patch_step + …]: the kh*kw*cg values under the kernel, in the order (row, column, channel), then one, then
 * zeros up to patch_deep. from is a window of x with `columns` columns of cg channels; up to VL past its end is read,
 * and up to MR + VL past the last patch is written. */
#define copy_patches KERNEL(copy_patches)
void copy_patches(REAL *to, const conv *v, const PACKED *from, int64_t columns, int64_t rows);

static inline int64_t patch_deep(const conv *v) { return round_to(v->kh * v->kw * v->cg + 1, MR); }
static inline int64_t patch_step(const conv *v) { return round_to(patch_deep(v), VL); }

/* sums[channel][0 … patch_vectors * VL) += Σ over `rows` rows of pool windows of the patch at the window's maximum
 * times its gradient, for the channels that start at dy and index. patches belong to the windows' pixels. */
#define add_argmax_patches KERNEL(add_argmax_patches)
void add_argmax_patches(const conv *v, const REAL *patches, int64_t rows, const ELEMENT *dy, const uint8_t *index,
                        int64_t channels, REAL *sums);
static inline int64_t patch_vectors(const conv *v) { return tiles_of(v->kh * v->kw * v->cg + 1, VL); }
#define argmax_patches_fit KERNEL(argmax_patches_fit)
bool argmax_patches_fit(const conv *v);

/* The gradient before the pool, at the window's pixels and the channels first … first+channels of dy, zero outside:
 * to[channel / width * block + pixel * width + channel % width]. index may be NULL when there is no pool. */
#define expand_window KERNEL(expand_window)
void expand_window(PACKED *to, window at, const conv *v, const ELEMENT *dy, const uint8_t *index, int64_t first,
                   int64_t channels, int64_t width, int64_t block);

/* Positions of maxima, VL bytes in memory, as REALs: GCC 12 fails on blends of 64-bit integers for plain x86-64. */
#if defined(__aarch64__)
#if LK_REAL_BITS == 32
static const uint8_t widen[16] = {0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3, 255, 255, 255};
static const uint8_t narrow[16] = {0, 4, 8, 12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
#else
static const uint8_t widen[16] = {0, 255, 255, 255, 255, 255, 255, 255, 1, 255, 255, 255, 255, 255, 255, 255};
static const uint8_t narrow[16] = {0, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
#endif
static inline vec load_argmax(const uint8_t *p)
{
    uint32_t word = 0;
    memcpy(&word, p, VL);
    return __builtin_convertvector((ivec)vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), vld1q_u8(widen)), vec);
}
static inline void store_argmax(uint8_t *p, vec v)
{
    uint8x16_t integers = (uint8x16_t) __builtin_convertvector(v, ivec);
    uint32_t   word = vgetq_lane_u32(vreinterpretq_u32_u8(vqtbl1q_u8(integers, vld1q_u8(narrow))), 0);
    memcpy(p, &word, VL);
}
#else
typedef uint8_t   bytes __attribute__((vector_size(VL)));
typedef uint8_t   bytes_unaligned __attribute__((vector_size(VL), aligned(1), may_alias));
static inline vec load_argmax(const uint8_t *p)
{
    return __builtin_convertvector(__builtin_convertvector((bytes) * (const bytes_unaligned *)p, ivec), vec);
}
static inline void store_argmax(uint8_t *p, vec v)
{
    *(bytes_unaligned *)p = (bytes_unaligned) __builtin_convertvector(__builtin_convertvector(v, ivec), bytes);
}
#endif

/* The greater, and NaN if either is. */
static inline vec greater(vec a, vec b)
{
#if defined(__aarch64__) && LK_REAL_BITS == 32
    return (vec)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#elif defined(__aarch64__)
    return (vec)vmaxq_f64((float64x2_t)a, (float64x2_t)b);
#elif defined(__AVX512F__) && LK_REAL_BITS == 32 /* its maximum is b if either is NaN */
    return (vec)_mm512_mask_mov_ps(_mm512_max_ps((__m512)a, (__m512)b),
                                   _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q), (__m512)a);
#else
    return choose((a > b) | (a != a), a, b);
#endif
}

/* The first of equal maxima counts, as in PyTorch: call it from the last position to the first. */
static inline vec choose_argmax(ivec equal, int64_t position, vec argmax)
{
    return choose(equal, splat((REAL)position), argmax);
}

/* A pooled vector and the positions of its maxima; 255 with relu at or below 0. index may be NULL. */
static inline void store_pooled(vec best, vec argmax, bool relu, ELEMENT *y, uint8_t *index)
{
    ivec dead = best <= splat(0);
    store(y, relu ? choose(dead, splat(0), best) : best);
    if (index) store_argmax(index, relu ? choose(dead, splat(255), argmax) : argmax);
}

/* relu (if set) and max pool of `count` consecutive windows: from[window][position][channels] →
 * y[window][0…channels), the y and index of consecutive windows `step` elements apart. index may be NULL. */
#define pool_windows KERNEL(pool_windows)
void pool_windows(const REAL *from, int64_t count, int64_t pool, int64_t channels, bool relu, ELEMENT *y,
                  uint8_t *index, int64_t step);

/* micro_nn and a max pool of 2×2 in one: a lists the rows of each window's four pixels, y and index of consecutive
 * windows are `step` elements apart, each NR channels. index may be NULL. */
#define micro_pool KERNEL(micro_pool)
void micro_pool(int64_t windows, const REAL *const *a, const runs *r, const REAL *b, const REAL *start, bool relu,
                ELEMENT *y, uint8_t *index, int64_t step);

/* sum[0…PANEL_COLUMNS) += (or =, to start) the sum of `rows` rows of this many: part of a bias gradient. */
static inline void add_rows(REAL *sum, const PACKED *from, int64_t rows, bool start)
{
    enum { VECTORS = PANEL_COLUMNS / VL };
    vec total[VECTORS];
    for (int j = 0; j < VECTORS; j++) total[j] = splat(0);
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < VECTORS; j++) total[j] += load(from + i * PANEL_COLUMNS + j * VL);
    for (int j = 0; j < VECTORS; j++) store(sum + j * VL, start ? total[j] : load(sum + j * VL) + total[j]);
}

/* Convolutions whose sums consist of parts, or are not rounded (conv_sum.c): conv2d or, input, conv2d_grad_input. */
#define conv_has_parts KERNEL(conv_has_parts)
bool conv_has_parts(const lk__kernel_call *call);
#define conv_parts_workspace KERNEL(conv_parts_workspace)
size_t conv_parts_workspace(const lk__kernel_call *call, bool input, int threads);
#define conv_run_parts KERNEL(conv_run_parts)
void conv_run_parts(const lk__kernel_call *call, bool input);

/* ---- products of patches and weights (conv_multiply.c, conv_multiply_matrix.c) ---- */

/* A patch is r->runs runs of r->length elements, a_run apart. In a panel of weights a run has whole units of k: those
 * that are missing, and those after the last run, are zero. Up to CONV_RUN_UNIT elements past a run are read. */
#if MATRIX
enum { CONV_RUN_UNIT = MATRIX_A_GROUP < 4 ? MATRIX_A_GROUP : 4 };
#else
enum { CONV_RUN_UNIT = 1 };
#endif
static inline int64_t conv_run_depth(int64_t length) { return round_to(length, CONV_RUN_UNIT); }
static inline int64_t conv_depth(const runs *r) { return packed_depth(r->runs * conv_run_depth(r->length)); }

#if MATRIX
/* Row k of a panel's column. */
static inline PACKED *conv_weight_at(PACKED *panel, int64_t k, int64_t column)
{
    return panel + (k / MATRIX_B_GROUP * MATRIX_COLUMNS + column) * MATRIX_B_GROUP + k % MATRIX_B_GROUP;
}
#endif

/* to[i][j] = start[j] + Σ patch i, from from[i] on, times column j, for i < count, j < columns. weights: panels of
 * PANEL_COLUMNS columns and conv_depth rows; start: as many, or NULL: zeros. scratch: conv_scratch(r) elements. */
typedef struct conv_product {
    runs          r;
    const PACKED *weights;
    const REAL   *start;
    int64_t       columns;
} conv_product;
#define conv_multiply KERNEL(conv_multiply)
void conv_multiply(const conv_product *p, int64_t count, const PACKED *const *from, REAL *const *to, PACKED *scratch);
#define conv_scratch KERNEL(conv_scratch)
int64_t conv_scratch(const runs *r);

/* Weights as panels of og: [g][panel], the rows of a panel (row, column, channel). */
#define pack_weights KERNEL(pack_weights)
void pack_weights(const conv *v, const ELEMENT *w, PACKED *to, lk__pool *pool);

#endif
