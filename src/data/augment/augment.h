/* data/augment/augment.h - random changes of images beyond crop and flip. Images are floats (channels, height,
 * width). */
#ifndef LK__AUGMENT_H
#define LK__AUGMENT_H

#include "device/batch.h"

#include <lockstep/data.h>

typedef struct lk__augment_image {
    int64_t channels, height, width;
} lk__augment_image;

/* ---- geometry.c ---- */

typedef struct lk__augment_box {
    int64_t top, left, height, width;
} lk__augment_box;

/* The box of torchvision's RandomResizedCrop: an area of `scale` times the image's, a ratio width / height within
 * `ratio`. */
lk__augment_box lk__augment_draw_box(const lk__random *random, int64_t index, const lk__augment_image *image,
                                     const double scale[2], const double ratio[2]);
/* The box of `in`, resized to the whole of `out`, bilinearly (it is never larger than the image, so nothing
 * aliases). */
void lk__augment_resize(const lk__augment_image *image, const float *in, lk__augment_box box, float *out);
/* Anticlockwise around the centre, bilinearly; what comes from outside is 0. */
void lk__augment_rotate(const lk__augment_image *image, const float *in, double degrees, float *out);

/* ---- color.c ---- */

enum { LK__BRIGHTNESS, LK__CONTRAST, LK__SATURATION, LK__HUE, LK__COLORS };

typedef struct lk__augment_jitter {
    double factors[LK__COLORS]; /* 1 changes nothing; hue: 0, as a part of the circle */
    int    order[LK__COLORS];
} lk__augment_jitter;

/* Like torchvision's ColorJitter: each factor is uniform in 1 ± strength, not below 0; the hue in ± strength; in random
 * order. */
lk__augment_jitter lk__augment_draw_jitter(const lk__random *random, int64_t index, const double strength[LK__COLORS]);
/* In place; values are 0 … 1 before and after. One channel has neither saturation nor hue. */
void lk__augment_color(const lk__augment_image *image, float *pixels, const lk__augment_jitter *jitter,
                       const double strength[LK__COLORS]);

/* ---- mixup.c ---- */

typedef struct lk__augment_mixup {
    int64_t partner; /* a sample of the data set */
    double  mix;     /* the weight of the first */
} lk__augment_mixup;

/* Beta(alpha, alpha), the same bits on every machine. */
lk__augment_mixup lk__mixup_draw(uint64_t seed, int64_t epoch, int64_t index, int64_t count, double alpha);

#endif
