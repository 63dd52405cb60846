/* image_files.h - writes PNG files, with zlib alone, for tests of folders of images. */
#ifndef IMAGE_FILES_H
#define IMAGE_FILES_H

#include "test_data.h"

static inline size_t put_chunk(unsigned char *out, const char *name, const unsigned char *data, size_t size)
{
    unsigned long crc = crc32(crc32(0, (const unsigned char *)name, 4), data, (unsigned)size);
    for (int i = 0; i < 4; i++) out[i] = (unsigned char)(size >> (24 - 8 * i));
    memcpy(out + 4, name, 4);
    if (size) memcpy(out + 8, data, size);
    for (int i = 0; i < 4; i++) out[8 + size + i] = (unsigned char)(crc >> (24 - 8 * i));
    return size + 12;
}

/* A PNG file of (channels, height, width), 1 or 3 channels; returns its size. out has room for 3 × height × width +
 * 1000 bytes. */
static inline size_t make_png(unsigned char *out, int channels, int height, int width, const unsigned char *planes)
{
    size_t         row = 1 + (size_t)(width * channels), plane = (size_t)(height * width), at = 8;
    unsigned long  packed_size = compressBound(row * (size_t)height);
    unsigned char *rows = calloc((size_t)height, row), *packed = malloc(packed_size);
    unsigned char  header[13] = {0,
                                 0,
                                 (unsigned char)(width >> 8),
                                 (unsigned char)width,
                                 0,
                                 0,
                                 (unsigned char)(height >> 8),
                                 (unsigned char)height,
                                 8,
                                channels == 3 ? 2 : 0};
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++)
                rows[(size_t)y * row + 1 + (size_t)(x * channels + c)] =
                    planes[(size_t)c * plane + (size_t)(y * width + x)];
    CHECK(compress(packed, &packed_size, rows, row * (unsigned long)height) == Z_OK);
    memcpy(out, "\x89PNG\r\n\x1a\n", 8);
    at += put_chunk(out + at, "IHDR", header, sizeof header);
    at += put_chunk(out + at, "IDAT", packed, packed_size);
    at += put_chunk(out + at, "IEND", NULL, 0);
    free(rows);
    free(packed);
    return at;
}

/* Pixel i of image `seed`. */
static inline unsigned char pixel_of(unsigned seed, size_t i)
{
    uint64_t h = (seed + 1) * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u;
    return (unsigned char)((h ^ h >> 29) * 0xBF58476D1CE4E5B9u >> 56);
}

/* Writes root/name, and the directories it is in. */
static inline void write_image(const char *root, const char *name, int channels, int height, int width, unsigned seed)
{
    char           path[1024];
    size_t         n = (size_t)(channels * height * width);
    unsigned char *planes = malloc(n), *file = malloc(n + n / 100 + 1000);
    for (size_t i = 0; i < n; i++) planes[i] = pixel_of(seed, i);
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0777);
    }
    write_file(path, file, make_png(file, channels, height, width, planes));
    free(planes);
    free(file);
}

#endif
