/* argmax_patches.c - a convolution's weight gradient directly from a pooled gradient.
 *
 * Of the pool² pixels of a window only the maximum has a gradient, so for few input channels (a patch of a few vectors)
 * it is cheaper to add the patch at each maximum, times its gradient, than to multiply the mostly zero gradient of all
 * pixels: a quarter of the products for a pool of 2. It is bound by loads, one for each product. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/conv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { AT_ONCE = 4 }; /* the most channels whose sums are in registers at once */

bool argmax_patches_fit(const conv *v) { return v->pool > 1 && v->pool < 16 && patch_vectors(v) <= 8; }

/* Positions of maxima: where the patch is, from the first patch of its window on, and the bits of the gradient that
 * count (all or, at 255, none: a branch would be mispredicted half of the time). */
typedef struct positions {
    int32_t offset[256];
    INTEGER bits[256];
} positions;

INLINE REAL gradient_at(const positions *at, const ELEMENT *dy, int64_t index)
{
#if defined(__aarch64__)
    (void)at;
    return index == 255 ? 0 : load_one(dy);
#else
    REAL    x = load_one(dy);
    INTEGER bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= at->bits[index];
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

/* sum + a × b, rounded once. Not left to the compiler: for x86-64 some versions of GCC fuse it where a loop has several
 * sums and do not where it has one (avoid-fma-max-bits), so that the bits of a channel would follow from the channels
 * beside it. */
INLINE vec add_fused(vec sum, REAL a, vec b)
{
#if defined(__aarch64__) && LK_REAL_BITS == 32
    return (vec)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)b, a);
#elif defined(__aarch64__)
    return (vec)vfmaq_n_f64((float64x2_t)sum, (float64x2_t)b, a);
#elif defined(__AVX512F__) && LK_REAL_BITS == 32
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)sum);
#elif defined(__AVX512F__)
    return (vec)_mm512_fmadd_pd(_mm512_set1_pd(a), (__m512d)b, (__m512d)sum);
#elif defined(__FMA__) && LK_REAL_BITS == 32
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)sum);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_pd(_mm256_set1_pd(a), (__m256d)b, (__m256d)sum);
#else
    return sum + a * b;
#endif
}

/* `channels` channels at once: sum[0…vectors) += gradient × patch at the maximum, over the band's windows. */
INLINE void add_channels(const int channels, const int vectors, const conv *v, const REAL *patches, int64_t rows,
                         const ELEMENT *dy, const uint8_t *index, const positions *at, REAL *sum)
{
    vec     total[AT_ONCE][8];
    int64_t step = patch_step(v), right = v->pool * step, down = v->pool * v->ow * step, width = v->yw, next = v->o;
    UNROLL
    for (int c = 0; c < channels; c++) {
        UNROLL
        for (int k = 0; k < vectors; k++) total[c][k] = load(sum + (c * vectors + k) * VL);
    }
    for (int64_t r = 0; r < rows; r++, patches += down) {
        const REAL *window = patches;
        for (int64_t q = 0; q < width; q++, window += right, dy += next, index += next) {
            UNROLL
            for (int c = 0; c < channels; c++) {
                REAL        gradient = gradient_at(at, dy + c, index[c]);
                const REAL *patch = window + at->offset[index[c]];
                UNROLL
                for (int k = 0; k < vectors; k++) total[c][k] = add_fused(total[c][k], gradient, load(patch + k * VL));
            }
        }
    }
    UNROLL
    for (int c = 0; c < channels; c++) {
        UNROLL
        for (int k = 0; k < vectors; k++) store(sum + (c * vectors + k) * VL, total[c][k]);
    }
}

/* Few vectors: several channels together, so that there are sums enough to hide the latency of an addition. */
INLINE void add_all(const int vectors, const conv *v, const REAL *patches, int64_t rows, const ELEMENT *dy,
                    const uint8_t *index, const positions *at, int64_t channels, REAL *sums)
{
    const int together = vectors <= 2 ? AT_ONCE : vectors <= 4 ? AT_ONCE / 2 : 1;
    int64_t   c = 0;
    for (; c + together <= channels; c += together)
        add_channels(together, vectors, v, patches, rows, dy + c, index + c, at, sums + c * vectors * VL);
    for (; c < channels; c++)
        add_channels(1, vectors, v, patches, rows, dy + c, index + c, at, sums + c * vectors * VL);
}

void add_argmax_patches(const conv *v, const REAL *patches, int64_t rows, const ELEMENT *dy, const uint8_t *index,
                        int64_t channels, REAL *sums)
{
    positions at = {{0}, {0}};
    for (int64_t i = 0; i < v->pool * v->pool; i++) {
        at.offset[i] = (int32_t)((i / v->pool * v->ow + i % v->pool) * patch_step(v));
        at.bits[i] = -1;
    }
    switch (patch_vectors(v)) {
    case 1: add_all(1, v, patches, rows, dy, index, &at, channels, sums); break;
    case 2: add_all(2, v, patches, rows, dy, index, &at, channels, sums); break;
    case 3: add_all(3, v, patches, rows, dy, index, &at, channels, sums); break;
    case 4: add_all(4, v, patches, rows, dy, index, &at, channels, sums); break;
    case 5: add_all(5, v, patches, rows, dy, index, &at, channels, sums); break;
    case 6: add_all(6, v, patches, rows, dy, index, &at, channels, sums); break;
    case 7: add_all(7, v, patches, rows, dy, index, &at, channels, sums); break;
    default: add_all(8, v, patches, rows, dy, index, &at, channels, sums); break;
    }
}
