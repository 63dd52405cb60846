/* argmax_patches.c - a convolution's weight gradient directly from a pooled gradient.
 *
 * Of the pool² pixels of a window only the maximum has a gradient, so for few input channels (a patch of a few vectors)
 * it is cheaper to add the patch at each maximum, times its gradient, than to multiply the mostly zero gradient of all pixels: a
 * quarter of the products for a pool of 2. Loads bound it, one for each product. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/conv.h"

bool argmax_patches_fit(const conv *v) { return v->pool > 1 && v->pool < 16 && patch_vectors(v) <= 8; }

/* One channel: sum[0…vectors) += gradient × patch at the maximum, over the band's windows. */
INLINE void add_channel(const conv *v, const REAL *patches, int64_t rows, const ELEMENT *dy, const uint8_t *index,
                        const int32_t *offset, int vectors, REAL *sum)
{
    vec     total[8];
    int64_t step = patch_step(v), right = v->pool * step, down = v->pool * v->ow * step, width = v->yw, next = v->o;
    UNROLL
    for (int k = 0; k < vectors; k++) total[k] = load(sum + k * VL);
    for (int64_t r = 0; r < rows; r++, patches += down) {
        const REAL *window = patches;
        for (int64_t q = 0; q < width; q++, window += right, dy += next, index += next) {
            REAL        gradient = *index == 255 ? 0 : load_one(dy);
            const REAL *patch = window + offset[*index];
            UNROLL
            for (int k = 0; k < vectors; k++) total[k] += gradient * load(patch + k * VL);
        }
    }
    UNROLL
    for (int k = 0; k < vectors; k++) store(sum + k * VL, total[k]);
}

void add_argmax_patches(const conv *v, const REAL *patches, int64_t rows, const ELEMENT *dy, const uint8_t *index,
                        int64_t channels, REAL *sums)
{
    int64_t vectors = patch_vectors(v);
    int32_t offset[256] = {0}; /* of a position's patch from the first patch of its window */
    for (int64_t i = 0; i < v->pool * v->pool; i++)
        offset[i] = (int32_t)((i / v->pool * v->ow + i % v->pool) * patch_step(v));
    for (int64_t c = 0; c < channels; c++, dy++, index++, sums += vectors * VL) switch (vectors) {
        case 1: add_channel(v, patches, rows, dy, index, offset, 1, sums); break;
        case 2: add_channel(v, patches, rows, dy, index, offset, 2, sums); break;
        case 3: add_channel(v, patches, rows, dy, index, offset, 3, sums); break;
        case 4: add_channel(v, patches, rows, dy, index, offset, 4, sums); break;
        case 5: add_channel(v, patches, rows, dy, index, offset, 5, sums); break;
        case 6: add_channel(v, patches, rows, dy, index, offset, 6, sums); break;
        case 7: add_channel(v, patches, rows, dy, index, offset, 7, sums); break;
        default: add_channel(v, patches, rows, dy, index, offset, 8, sums); break;
        }
}
