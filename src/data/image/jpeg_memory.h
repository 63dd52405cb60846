/* data/image/jpeg_memory.h - libjpeg's memory manager over an arena, so that decoding allocates nothing. */
#ifndef LK__IMAGE_JPEG_MEMORY_H
#define LK__IMAGE_JPEG_MEMORY_H

#ifdef LK_JPEG
#include "data/image/decode.h"

#include <stdio.h>

#include <jpeglib.h>

typedef struct lk__image_jpeg_memory {
    struct jpeg_memory_mgr  methods; /* first: libjpeg has a pointer to it */
    struct jpeg_memory_mgr *original;
    lk__image_arena        *arena;
} lk__image_jpeg_memory;

/* Replaces the manager of an object that was just created. */
void lk__jpeg_memory_install(j_common_ptr object, lk__image_jpeg_memory *memory, lk__image_arena *arena);
/* Restores the original, which jpeg_destroy needs. */
void lk__jpeg_memory_remove(j_common_ptr object, const lk__image_jpeg_memory *memory);

#endif
#endif
