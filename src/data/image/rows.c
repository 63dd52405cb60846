/* rows.c - converts the rows of a decoder to a sample: colours as in Pillow, the EXIF orientation, separate planes. */
#include "data/image/decode.h"

#include <string.h>

/* Pillow's "L": ITU-R BT.601 in 16 fractional bits. */
static unsigned char grey_of(unsigned red, unsigned green, unsigned blue)
{
    return (unsigned char)((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

/* Pillow's CMYK to RGB, of one colour: key minus its share of the ink, both inverted as Adobe stores them. */
static unsigned char colour_of(unsigned ink, unsigned key)
{
    unsigned product = (255 - ink) * key + 128, share = ((product >> 8) + product) >> 8;
    return (unsigned char)(key - share);
}

static void convert_cmyk(const unsigned char *from, int64_t width, int channels, unsigned char *to)
{
    for (int64_t x = 0; x < width; x++, from += 4, to += channels) {
        unsigned char red = colour_of(from[0], from[3]), green = colour_of(from[1], from[3]),
                      blue = colour_of(from[2], from[3]);
        if (channels == 1)
            to[0] = grey_of(red, green, blue);
        else
            to[0] = red, to[1] = green, to[2] = blue;
    }
}

/* The row in the sample's channels: the same memory if it has them already. */
static const unsigned char *convert_row(lk__image_rows *r, const unsigned char *from)
{
    unsigned char *to = r->row;
    if (r->stored == r->channels) return from;
    if (r->stored == 4)
        convert_cmyk(from, r->width, r->channels, to);
    else if (r->stored == 1)
        for (int64_t x = 0; x < r->width; x++) to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = from[x];
    else
        for (int64_t x = 0; x < r->width; x++) to[x] = grey_of(from[3 * x], from[3 * x + 1], from[3 * x + 2]);
    return to;
}

/* A row of the sample that is not resized: one plane for each channel. */
static void split_row(const lk__image_rows *r, int64_t width, int64_t height, int64_t y, const unsigned char *row)
{
    size_t         plane = (size_t)(width * height);
    unsigned char *red = r->out + (size_t)(y * width), *green = red + plane, *blue = green + plane;
    if (r->channels == 1) {
        memcpy(red, row, (size_t)width);
        return;
    }
    for (int64_t x = 0; x < width; x++) red[x] = row[3 * x];
    for (int64_t x = 0; x < width; x++) green[x] = row[3 * x + 1];
    for (int64_t x = 0; x < width; x++) blue[x] = row[3 * x + 2];
}

static void deliver_row(lk__image_rows *r, int64_t width, int64_t height, int64_t y, const unsigned char *row)
{
    if (r->resized)
        lk__resize_row(&r->resize, y, row);
    else
        split_row(r, width, height, y, row);
}

static void mirror_row(lk__image_rows *r, const unsigned char *from)
{
    size_t pixel = (size_t)r->channels, n = (size_t)r->width;
    /* In place as well: each pair is exchanged. */
    for (size_t x = 0; x < (n + 1) / 2; x++) {
        for (size_t c = 0; c < pixel; c++) {
            unsigned char left = from[x * pixel + c], right = from[(n - 1 - x) * pixel + c];
            r->row[x * pixel + c] = right;
            r->row[(n - 1 - x) * pixel + c] = left;
        }
    }
}

/* Orientations 5 to 8: row y becomes a column, of an image that is as wide as this one is high. */
static void turn_row(lk__image_rows *r, int64_t y, const unsigned char *row)
{
    bool    right = r->orientation == 6 || r->orientation == 7, up = r->orientation == 7 || r->orientation == 8;
    size_t  pixel = (size_t)r->channels, stride = (size_t)r->height * pixel;
    int64_t column = right ? r->height - 1 - y : y;
    for (int64_t x = 0; x < r->width; x++) {
        unsigned char *to = r->turned + (size_t)(up ? r->width - 1 - x : x) * stride + (size_t)column * pixel;
        for (size_t c = 0; c < pixel; c++) to[c] = row[(size_t)x * pixel + c];
    }
}

void lk__rows_put(lk__image_rows *r, int64_t y, const unsigned char *row)
{
    row = convert_row(r, row);
    if (r->orientation > 4) {
        turn_row(r, y, row);
        return;
    }
    if (r->orientation == 2 || r->orientation == 3) {
        mirror_row(r, row);
        row = r->row;
    }
    deliver_row(r, r->width, r->height, r->orientation > 2 ? r->height - 1 - y : y, row);
}

void lk__rows_finish(lk__image_rows *r)
{
    if (r->orientation > 4)
        for (int64_t y = 0; y < r->width; y++)
            deliver_row(r, r->height, r->width, y, r->turned + (size_t)(y * r->height) * (size_t)r->channels);
    if (r->resized) lk__resize_finish(&r->resize, r->out);
}
