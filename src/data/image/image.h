/* data/image/image.h - PNG and JPEG files in memory, decoded into samples (channels, height, width) of bytes: what
 * Pillow's Image.open, ImageOps.exif_transpose, convert("RGB") or convert("L") and resize(BILINEAR) give. */
#ifndef LK__IMAGE_H
#define LK__IMAGE_H

#include "base/base.h"

enum { LK__IMAGE_MESSAGE = 256 };
enum { LK__IMAGE_PIXELS = 1 << 26 }; /* the most that are decoded; a header that declares more is refused */

typedef enum lk__image_format { LK__IMAGE_PNG, LK__IMAGE_JPEG } lk__image_format;

/* What a file's header says. */
typedef struct lk__image_info {
    lk__image_format format;
    int64_t          width, height; /* as stored; see lk__image_size */
    int              components;    /* as stored: 1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha, or CMYK */
    int              depth;         /* bits of a component; of an index, with a palette */
    bool             palette;       /* PNG; components is 3 */
    bool             interlaced;    /* PNG: Adam7 */
    bool             several_scans; /* JPEG: the decoder holds all coefficients until it has read the last scan */
    unsigned char    sampling[4];   /* JPEG: horizontal × 16 + vertical factor of each component */
    int              orientation;   /* EXIF: 1 to 8; 1 without */
} lk__image_info;

bool lk__image_supported(void); /* whether this build has libpng or libjpeg */

/* Reads the header in the first `size` bytes of a file; complete: there are no more. LK_END: more of the file is
 * needed. LK_EFORMAT: it is damaged or neither PNG nor JPEG. LK_EUNSUPPORTED: a kind that is not decoded, or this build
 * lacks the library. Both write a reason, which follows the file's name in a message: "is truncated". Never
 * allocates. */
lk_status lk__image_probe(const void *bytes, size_t size, bool complete, lk__image_info *info,
                          char message[LK__IMAGE_MESSAGE]);
/* Width and height as shown: exchanged by orientations 5 to 8. */
void lk__image_size(const lk__image_info *info, int64_t *height, int64_t *width);

typedef struct lk__image_target {
    int     channels;      /* 1: grey, 3: RGB; alpha is dropped */
    int64_t height, width; /* resized to this; 0: as in the file */
} lk__image_target;

/* Bytes of scratch memory for lk__image_decode. */
size_t lk__image_scratch(const lk__image_info *info, const lk__image_target *target);
typedef struct lk__image_file {
    const lk__image_info *info; /* by lk__image_probe */
    const void           *bytes;
    size_t                size;
} lk__image_file;
/* Decodes a whole file. scratch is aligned to LK__ALIGN and is all the memory used, except what libjpeg allocates for
 * its object (about 20 KB). out is (channels, height, width). Fails as lk__image_probe does; pixels that are missing or
 * damaged are a failure, and then out is undefined. */
lk_status lk__image_decode(const lk__image_file *file, const lk__image_target *target, void *scratch,
                           unsigned char *out, char message[LK__IMAGE_MESSAGE]);

#endif
