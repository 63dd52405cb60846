/* data/image/decode.h - shared by the decoders: the memory they allocate from, and where they put the rows of an
 * image. */
#ifndef LK__IMAGE_DECODE_H
#define LK__IMAGE_DECODE_H

#include "data/image/image.h"
#include "data/image/resize.h"

/* A part of the scratch memory from which a library allocates for one image. Nothing is freed before the image is done,
 * except the latest block. */
typedef struct lk__image_arena {
    unsigned char *base;
    size_t         size, used;
    void          *latest;
} lk__image_arena;

void *lk__arena_take(lk__image_arena *arena, size_t bytes); /* aligned to LK__ALIGN; NULL: it is full */
void  lk__arena_return(lk__image_arena *arena, void *memory);

/* Turns the rows of an image into a sample: converts colours, applies the orientation, resizes. */
typedef struct lk__image_rows {
    int              stored;        /* components of a row that arrives: 1 grey, 3 RGB, 4 CMYK with inverted values */
    int              channels;      /* of the sample */
    int              orientation;   /* 1 to 8 */
    int64_t          width, height; /* of the rows that arrive */
    unsigned char   *row;           /* one row, in the channels of the sample */
    unsigned char   *turned;        /* orientations 5 to 8: the whole image */
    bool             resized;
    lk__image_resize resize; /* if resized */
    unsigned char   *out;    /* (channels, height, width) */
} lk__image_rows;

void lk__rows_put(lk__image_rows *rows, int64_t y, const unsigned char *row);
void lk__rows_finish(lk__image_rows *rows); /* after the last */

/* The EXIF orientation in a TIFF block: 1 if there is none. */
int lk__exif_orientation(const unsigned char *tiff, size_t size);

/* What a decoder uses, and where its rows and its message go. */
typedef struct lk__image_decoding {
    lk__image_arena *arena;
    unsigned char   *raw;
    lk__image_rows  *rows;
    char            *message; /* LK__IMAGE_MESSAGE */
} lk__image_decoding;

/* Each decoder: whether it was built in; the components of its rows; arena bytes; decoding. `raw` has room for the
 * image if it is interlaced, else for one row. */
bool      lk__png_built(void);
size_t    lk__png_arena(const lk__image_info *info);
lk_status lk__png_decode(const lk__image_file *file, const lk__image_decoding *d);

/* reduction: 1, 2, 4 or 8; the image is decoded at 1/reduction of its size, rounded up. */
bool      lk__jpeg_built(void);
size_t    lk__jpeg_arena(const lk__image_info *info);
lk_status lk__jpeg_decode(const lk__image_file *file, int reduction, const lk__image_decoding *d);

#endif
