/* probe.c - reads the headers of PNG and JPEG files, without the libraries that decode them: sizes, kind, orientation.
 * Every read is within the given bytes, and sizes are limited before anything is allocated for them. */
#define _GNU_SOURCE
#include "data/image/decode.h"

#include <stdio.h>
#include <string.h>

typedef struct header {
    const unsigned char *bytes;
    size_t               size;
    bool                 complete; /* the file has no more bytes */
    lk__image_info      *info;
    char                *message;
} header;

#define REFUSE(h, status, ...) (snprintf((h)->message, LK__IMAGE_MESSAGE, __VA_ARGS__), (status))

static unsigned read16(const unsigned char *at) { return (unsigned)at[0] << 8 | at[1]; }
static uint32_t read32(const unsigned char *at) { return (uint32_t)read16(at) << 16 | read16(at + 2); }

static lk_status need_more(const header *h)
{
    return h->complete ? REFUSE(h, LK_EFORMAT, "is truncated: it ends after %zu bytes, before its pixels", h->size)
                       : LK_END;
}

static lk_status check_size(const header *h)
{
    int64_t width = h->info->width, height = h->info->height;
    if (width < 1 || height < 1)
        return REFUSE(h, LK_EFORMAT, "is damaged: its header declares %lldx%lld pixels", (long long)width,
                      (long long)height);
    if (width > LK__IMAGE_PIXELS / height)
        return REFUSE(h, LK_EUNSUPPORTED, "is too large: its header declares %lldx%lld pixels; the limit is %d",
                      (long long)width, (long long)height, LK__IMAGE_PIXELS);
    return LK_OK;
}

/* ---- PNG (ISO/IEC 15948): a signature, then chunks of length, type, data, CRC. ---- */

enum { PNG_SIGNATURE = 8, PNG_AROUND = 12, PNG_IHDR = 13 };

/* By colour type: PNG, table 11.1. */
static const struct {
    int         components, depths;
    const char *named;
} colours[7] = {{1, 1 | 2 | 4 | 8 | 16, "1, 2, 4, 8 or 16"},
                {0, 0, NULL},
                {3, 8 | 16, "8 or 16"},
                {3, 1 | 2 | 4 | 8, "1, 2, 4 or 8"},
                {2, 8 | 16, "8 or 16"},
                {0, 0, NULL},
                {4, 8 | 16, "8 or 16"}};

static lk_status read_ihdr(const header *h, const unsigned char *ihdr)
{
    int type = ihdr[9], depth = ihdr[8];
    h->info->width = read32(ihdr);
    h->info->height = read32(ihdr + 4);
    if (type > 6 || !colours[type].components)
        return REFUSE(h, LK_EFORMAT, "is damaged: its colour type is %d; PNG defines 0, 2, 3, 4 and 6", type);
    if (!(colours[type].depths & depth) || (depth & (depth - 1)))
        return REFUSE(h, LK_EFORMAT, "is damaged: its bit depth is %d; colour type %d allows %s", depth, type,
                      colours[type].named);
    if (ihdr[10] || ihdr[11] || ihdr[12] > 1)
        return REFUSE(h, LK_EFORMAT,
                      "is damaged: it has compression method %d, filter method %d and interlace method %d; PNG defines "
                      "0, 0, and 0 or 1",
                      ihdr[10], ihdr[11], ihdr[12]);
    h->info->components = colours[type].components;
    h->info->depth = depth;
    h->info->palette = type == 3;
    h->info->interlaced = ihdr[12] == 1;
    return check_size(h);
}

static lk_status probe_png(const header *h)
{
    size_t at = PNG_SIGNATURE;
    if (h->size < at + PNG_AROUND + PNG_IHDR) return need_more(h);
    if (read32(h->bytes + at) != PNG_IHDR || memcmp(h->bytes + at + 4, "IHDR", 4) != 0)
        return REFUSE(h, LK_EFORMAT, "is damaged: it does not begin with the chunk IHDR");
    lk_status status = read_ihdr(h, h->bytes + at + 8);
    if (status < 0) return status;
    for (;;) { /* the chunks before the pixels; eXIf is the only one that matters here */
        size_t length = read32(h->bytes + at);
        if (length > INT32_MAX)
            return REFUSE(h, LK_EFORMAT, "is damaged: it has an invalid chunk of %zu bytes at byte %zu", length, at);
        if (h->size - at - PNG_AROUND < length) return need_more(h);
        if (memcmp(h->bytes + at + 4, "eXIf", 4) == 0)
            h->info->orientation = lk__exif_orientation(h->bytes + at + 8, length);
        at += PNG_AROUND + length;
        if (h->size - at < PNG_AROUND) return need_more(h);
        if (memcmp(h->bytes + at + 4, "IDAT", 4) == 0) return LK_OK;
        if (memcmp(h->bytes + at + 4, "IEND", 4) == 0)
            return REFUSE(h, LK_EFORMAT, "is damaged: it ends before its pixels");
    }
}

/* ---- JPEG (ITU-T T.81, annex B): markers, most of them with a length and data. ---- */

enum { SOF0 = 0xC0, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, APP1 = 0xE1, TEM = 0x01 };

/* A frame header, which declares the sizes. Its kinds: 0 baseline, 1 extended, 2 progressive; 9 and 10 the same with
 * arithmetic coding. */
static lk_status read_frame(const header *h, int kind, const unsigned char *data, size_t length)
{
    if (kind != 0 && kind != 1 && kind != 2 && kind != 9 && kind != 10)
        return REFUSE(h, LK_EUNSUPPORTED, "is a %s JPEG, which is not supported",
                      kind == 3 || kind == 11 ? "lossless" : "hierarchical");
    if (length < 6) return REFUSE(h, LK_EFORMAT, "is damaged: its JPEG frame header has %zu bytes", length);
    int depth = data[0], components = data[5];
    h->info->height = read16(data + 1);
    h->info->width = read16(data + 3);
    if (depth != 8)
        return REFUSE(h, LK_EUNSUPPORTED, "is a JPEG with %d bits per sample, which is not supported: expected 8",
                      depth);
    if (components != 1 && components != 3 && components != 4)
        return REFUSE(h, LK_EUNSUPPORTED, "is a JPEG with %d components, which is not supported: expected 1, 3 or 4",
                      components);
    if (length < 6 + 3 * (size_t)components)
        return REFUSE(h, LK_EFORMAT, "is damaged: its JPEG frame header has %zu bytes", length);
    for (int i = 0; i < components; i++) {
        int factors = data[6 + 3 * i + 1];
        if (factors >> 4 < 1 || factors >> 4 > 4 || (factors & 15) < 1 || (factors & 15) > 4)
            return REFUSE(h, LK_EFORMAT, "is damaged: it has sampling factors %d and %d", factors >> 4, factors & 15);
        h->info->sampling[i] = (unsigned char)factors;
    }
    if (h->info->height == 0)
        return REFUSE(h, LK_EUNSUPPORTED, "is a JPEG whose height follows its pixels, which is not supported");
    h->info->components = components;
    h->info->depth = depth;
    h->info->several_scans = kind == 2 || kind == 10;
    return check_size(h);
}

/* A segment with data; LK_END here: it was the scan, and the header is complete. */
static lk_status read_segment(const header *h, int marker, const unsigned char *data, size_t length)
{
    if (marker >= SOF0 && marker <= SOF0 + 15 && marker != DHT && marker != 0xC8 && marker != 0xCC)
        return h->info->components ? REFUSE(h, LK_EFORMAT, "is damaged: it has two frame headers")
                                   : read_frame(h, marker - SOF0, data, length);
    if (marker == APP1 && length > 6 && memcmp(data, "Exif\0\0", 6) == 0)
        h->info->orientation = lk__exif_orientation(data + 6, length - 6);
    if (marker != SOS) return LK_OK;
    if (!h->info->components || length < 1)
        return REFUSE(h, LK_EFORMAT, "is damaged: it has a scan before the frame header");
    if (data[0] < h->info->components) h->info->several_scans = true;
    return LK_END;
}

static lk_status probe_jpeg(const header *h)
{
    size_t at = 2;
    for (;;) {
        /* As libjpeg does: bytes between segments are skipped. */
        while (at < h->size && h->bytes[at] != 0xFF) at++;
        while (at < h->size && h->bytes[at] == 0xFF) at++;
        if (at >= h->size) return need_more(h);
        int marker = h->bytes[at++];
        if (marker == 0 || marker == TEM || (marker >= RST0 && marker < RST0 + 8) || marker == SOI) continue;
        if (marker == EOI) return REFUSE(h, LK_EFORMAT, "is damaged: it ends before its pixels");
        if (h->size - at < 2) return need_more(h);
        size_t length = read16(h->bytes + at);
        if (length < 2)
            return REFUSE(h, LK_EFORMAT, "is damaged: it has an invalid segment of %zu bytes at byte %zu", length, at);
        if (h->size - at < length) return need_more(h);
        lk_status status = read_segment(h, marker, h->bytes + at + 2, length - 2);
        if (status != LK_OK) return status == LK_END ? LK_OK : status;
        at += length;
    }
}

/* ---- ---- */

/* Names the formats that files with a wrong name have most often. */
static lk_status refuse_format(const header *h)
{
    static const struct {
        size_t      at;
        const char *magic, *name;
    } known[] = {{0, "GIF8", "GIF"}, {8, "WEBP", "WebP"},         {0, "BM", "BMP"}, {0, "II*", "TIFF"},
                 {0, "MM", "TIFF"},  {4, "ftyp", "HEIF or AVIF"}, {0, "P5", "PGM"}, {0, "P6", "PPM"}};
    if (h->size == 0) return REFUSE(h, LK_EFORMAT, "is empty");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].magic);
        if (h->size >= known[i].at + length && memcmp(h->bytes + known[i].at, known[i].magic, length) == 0)
            return REFUSE(h, LK_EUNSUPPORTED, "is a %s file: only PNG and JPEG are supported", known[i].name);
    }
    return REFUSE(h, LK_EFORMAT, "is neither a PNG nor a JPEG file");
}

lk_status lk__image_probe(const void *bytes, size_t size, bool complete, lk__image_info *info,
                          char message[LK__IMAGE_MESSAGE])
{
    static const unsigned char png[PNG_SIGNATURE] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    header                     h = {bytes, size, complete, info, message};
    *info = (lk__image_info){.orientation = 1};
    message[0] = 0;
    bool is_png = size >= sizeof png && memcmp(bytes, png, sizeof png) == 0;
    bool is_jpeg = size >= 3 && h.bytes[0] == 0xFF && h.bytes[1] == SOI && h.bytes[2] == 0xFF;
    if (!complete && size < 16) return LK_END;
    if (!is_png && !is_jpeg) return refuse_format(&h);
    info->format = is_png ? LK__IMAGE_PNG : LK__IMAGE_JPEG;
    if (is_png ? !lk__png_built() : !lk__jpeg_built())
        return REFUSE(&h, LK_EUNSUPPORTED, "is a %s file, but this build has no %s to decode it",
                      is_png ? "PNG" : "JPEG", is_png ? "libpng" : "libjpeg");
    return is_png ? probe_png(&h) : probe_jpeg(&h);
}

bool lk__image_supported(void) { return lk__png_built() || lk__jpeg_built(); }

void lk__image_size(const lk__image_info *info, int64_t *height, int64_t *width)
{
    bool turned = info->orientation > 4;
    *height = turned ? info->width : info->height;
    *width = turned ? info->height : info->width;
}
