/* geometry.c - random resized crop and rotation. Pixels are squares of side 1: the centre of the first is at 0.5. */
#include "data/augment/augment.h"

#include <math.h>

enum { ATTEMPTS = 10 }; /* torchvision's */

static int64_t scale_to_range(uint32_t bits, int64_t n) { return (int64_t)((uint64_t)bits * (uint64_t)n >> 32); }

/* The largest box in the middle whose ratio is within `ratio`. */
static lk__augment_box central_box(const lk__augment_image *image, const double ratio[2])
{
    int64_t height = image->height, width = image->width;
    double  own = (double)width / (double)height;
    if (own < ratio[0])
        height = (int64_t)lrint((double)width / ratio[0]);
    else if (own > ratio[1])
        width = (int64_t)lrint((double)height * ratio[1]);
    if (height < 1) height = 1;
    if (width < 1) width = 1;
    return (lk__augment_box){(image->height - height) / 2, (image->width - width) / 2, height, width};
}

lk__augment_box lk__augment_draw_box(const lk__random *random, int64_t index, const lk__augment_image *image,
                                     const double scale[2], const double ratio[2])
{
    double area = (double)(image->height * image->width), low = log(ratio[0]), high = log(ratio[1]);
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        uint32_t draw[4];
        lk__random4(random, (uint64_t)index, LK__DRAW_BOX + i, draw);
        double  target = area * (scale[0] + (scale[1] - scale[0]) * lk__random_unit(draw[0]));
        double  aspect = exp(low + (high - low) * lk__random_unit(draw[1]));
        int64_t width = (int64_t)lrint(sqrt(target * aspect)), height = (int64_t)lrint(sqrt(target / aspect));
        if (width < 1 || width > image->width || height < 1 || height > image->height) continue;
        return (lk__augment_box){scale_to_range(draw[2], image->height - height + 1),
                                 scale_to_range(draw[3], image->width - width + 1), height, width};
    }
    return central_box(image, ratio);
}

/* Between pixels first and second, `part` of the way. */
typedef struct between {
    int64_t first, second;
    float   part;
} between;

/* Where pixel i of the result is among `in` pixels, of which it has `ratio`. */
static between find_source(int64_t i, int64_t in, double ratio)
{
    double at = ((double)i + 0.5) * ratio - 0.5;
    if (at < 0) at = 0;
    int64_t first = (int64_t)at;
    return (between){first, first + 1 < in ? first + 1 : in - 1, (float)(at - (double)first)};
}

void lk__augment_resize(const lk__augment_image *image, const float *in, lk__augment_box box, float *out)
{
    int64_t width = image->width, plane = image->height * width;
    double  ratio_y = (double)box.height / (double)image->height, ratio_x = (double)box.width / (double)width;
    for (int64_t y = 0; y < image->height; y++) {
        between rows = find_source(y, box.height, ratio_y);
        for (int64_t x = 0; x < width; x++) {
            between columns = find_source(x, box.width, ratio_x);
            for (int64_t c = 0; c < image->channels; c++) {
                const float *from = in + c * plane + box.top * width + box.left;
                const float *up = from + rows.first * width, *down = from + rows.second * width;
                float        later = columns.part;
                float        above = up[columns.first] * (1 - later) + up[columns.second] * later;
                float        below = down[columns.first] * (1 - later) + down[columns.second] * later;
                out[c * plane + y * width + x] = above * (1 - rows.part) + below * rows.part;
            }
        }
    }
}

/* The pixel, or 0 outside of the image. */
static float pixel_at(const lk__augment_image *image, const float *plane, int64_t y, int64_t x)
{
    return y >= 0 && y < image->height && x >= 0 && x < image->width ? plane[y * image->width + x] : 0;
}

void lk__augment_rotate(const lk__augment_image *image, const float *in, double degrees, float *out)
{
    double  angle = degrees * (3.14159265358979323846 / 180), cosine = cos(angle), sine = sin(angle);
    double  middle_y = (double)image->height / 2, middle_x = (double)image->width / 2;
    int64_t plane = image->height * image->width;
    for (int64_t y = 0; y < image->height; y++) {
        for (int64_t x = 0; x < image->width; x++) {
            double  dy = (double)y + 0.5 - middle_y, dx = (double)x + 0.5 - middle_x;
            double  source_x = cosine * dx - sine * dy + middle_x - 0.5;
            double  source_y = sine * dx + cosine * dy + middle_y - 0.5;
            int64_t left = (int64_t)floor(source_x), up = (int64_t)floor(source_y);
            float   later = (float)(source_x - (double)left), lower = (float)(source_y - (double)up);
            for (int64_t c = 0; c < image->channels; c++) {
                const float *from = in + c * plane;
                float        above =
                    pixel_at(image, from, up, left) * (1 - later) + pixel_at(image, from, up, left + 1) * later;
                float below =
                    pixel_at(image, from, up + 1, left) * (1 - later) + pixel_at(image, from, up + 1, left + 1) * later;
                out[c * plane + y * image->width + x] = above * (1 - lower) + below * lower;
            }
        }
    }
}
