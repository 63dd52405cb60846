/* data/image/resize.h - bilinear resizing with antialiasing, as Pillow's resize(BILINEAR): a triangle filter, as wide
 * as the reduction, first along rows, then along columns, with 22 fractional bits and a result of bytes after each. */
#ifndef LK__IMAGE_RESIZE_H
#define LK__IMAGE_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One axis: from elements begin … begin + extent of `in` to `out` elements. */
typedef struct lk__image_axis {
    int64_t in, out;
    double  begin, extent;
} lk__image_axis;

/* The weights of one axis. Output i is the sum of weights[i × taps + k] × input[first[i] + k] over k < taps: as many
 * for every output, some of them with weight 0, because the processor then predicts the loop. */
typedef struct lk__image_filter {
    int64_t  out;
    bool     copies; /* the input is the output */
    int64_t  taps;
    int32_t *first, *weights;
} lk__image_filter;

typedef struct lk__image_resize {
    int              channels;
    lk__image_filter across, down;
    unsigned char   *middle; /* (in height, out width, channels): rows that were resized */
} lk__image_resize;

/* Bytes of the memory for lk__resize_init. */
size_t lk__resize_bytes(int channels, const lk__image_axis *across, const lk__image_axis *down);
void   lk__resize_init(lk__image_resize *resize, int channels, const lk__image_axis *across, const lk__image_axis *down,
                       void *memory);
/* Row y of the input, interleaved; in any order. */
void lk__resize_row(lk__image_resize *resize, int64_t y, const unsigned char *row);
void lk__resize_finish(const lk__image_resize *resize, unsigned char *out); /* out: (channels, height, width) */

#endif
