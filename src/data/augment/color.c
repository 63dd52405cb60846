/* color.c - brightness, contrast, saturation and hue of images of 0 … 1, as torchvision's functional interface defines
 * them for floating-point tensors. */
#include "data/augment/augment.h"

#include <math.h>

lk__augment_jitter lk__augment_draw_jitter(const lk__random *random, int64_t index, const double strength[LK__COLORS])
{
    lk__augment_jitter jitter = {.order = {0, 1, 2, 3}};
    uint32_t           draw[4], swaps[4];
    lk__random4(random, (uint64_t)index, LK__DRAW_JITTER, draw);
    lk__random4(random, (uint64_t)index, LK__DRAW_JITTER + 1, swaps);
    for (int i = 0; i < LK__COLORS; i++) {
        double low = i == LK__HUE ? -strength[i] : strength[i] < 1 ? 1 - strength[i] : 0;
        double high = i == LK__HUE ? strength[i] : 1 + strength[i];
        jitter.factors[i] = low + (high - low) * lk__random_unit(draw[i]);
    }
    for (int i = LK__COLORS - 1; i > 0; i--) {
        int k = (int)((uint64_t)swaps[i] * (uint64_t)(i + 1) >> 32), swap = jitter.order[i];
        jitter.order[i] = jitter.order[k];
        jitter.order[k] = swap;
    }
    return jitter;
}

static float clamp(float v) { return v < 0 ? 0 : v > 1 ? 1 : v; }

/* ITU-R 601-2 luma, with torchvision's digits. */
static float luma(const float *pixels, int64_t plane, int64_t channels, int64_t i)
{
    if (channels < 3) return pixels[i];
    return 0.2989f * pixels[i] + 0.587f * pixels[plane + i] + 0.114f * pixels[2 * plane + i];
}

static void change_brightness(float *pixels, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i++) pixels[i] = clamp(pixels[i] * factor);
}

static void change_contrast(float *pixels, int64_t plane, int64_t channels, float factor)
{
    double sum = 0;
    for (int64_t i = 0; i < plane; i++) sum += (double)luma(pixels, plane, channels, i);
    float mean = (float)(sum / (double)plane) * (1 - factor);
    for (int64_t i = 0; i < plane * channels; i++) pixels[i] = clamp(pixels[i] * factor + mean);
}

static void change_saturation(float *pixels, int64_t plane, float factor)
{
    for (int64_t i = 0; i < plane; i++) {
        float grey = luma(pixels, plane, 3, i) * (1 - factor);
        for (int64_t c = 0; c < 3; c++) pixels[c * plane + i] = clamp(pixels[c * plane + i] * factor + grey);
    }
}

typedef struct hsv {
    float hue, saturation, value; /* hue: a part of the circle, 0 … 1 */
} hsv;

static hsv to_hsv(float r, float g, float b)
{
    float most = fmaxf(r, fmaxf(g, b)), range = most - fminf(r, fminf(g, b));
    if (range == 0) return (hsv){0, 0, most};
    float red = (most - r) / range, green = (most - g) / range, blue = (most - b) / range;
    float hue = most == r ? blue - green : most == g ? 2 + red - blue : 4 + green - red;
    return (hsv){fmodf(hue / 6 + 1, 1), range / most, most};
}

static void from_hsv(hsv c, float rgb[3])
{
    int   sector = c.hue >= 0 && c.hue < 1 ? (int)(c.hue * 6) : 0; /* not in 0 … 1: values that are no colours */
    float f = c.hue * 6 - (float)sector, v = c.value;
    float p = clamp(v * (1 - c.saturation)), q = clamp(v * (1 - c.saturation * f)),
          t = clamp(v * (1 - c.saturation * (1 - f)));
    const float table[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
    for (int k = 0; k < 3; k++) rgb[k] = table[sector % 6][k];
}

static void change_hue(float *pixels, int64_t plane, float shift)
{
    for (int64_t i = 0; i < plane; i++) {
        float rgb[3];
        hsv   c = to_hsv(pixels[i], pixels[plane + i], pixels[2 * plane + i]);
        c.hue = fmodf(c.hue + shift + 1, 1);
        from_hsv(c, rgb);
        for (int64_t k = 0; k < 3; k++) pixels[k * plane + i] = rgb[k];
    }
}

void lk__augment_color(const lk__augment_image *image, float *pixels, const lk__augment_jitter *jitter,
                       const double strength[LK__COLORS])
{
    int64_t plane = image->height * image->width;
    for (int i = 0; i < LK__COLORS; i++) {
        int   which = jitter->order[i];
        float factor = (float)jitter->factors[which];
        if (strength[which] == 0) continue;
        if (which == LK__BRIGHTNESS) change_brightness(pixels, plane * image->channels, factor);
        if (which == LK__CONTRAST) change_contrast(pixels, plane, image->channels, factor);
        if (which == LK__SATURATION && image->channels == 3) change_saturation(pixels, plane, factor);
        if (which == LK__HUE && image->channels == 3) change_hue(pixels, plane, factor);
    }
}
