/* png.c - PNG files through libpng. It allocates from the arena, and reports an error by a jump to lk__png_decode,
 * whose variables live in a struct for that reason. Chunks that no pixel depends on are skipped unread. */
#include "data/image/decode.h"

#include <stdio.h>
#include <string.h>

#ifdef LK_PNG
#include <png.h>
#include <setjmp.h>

typedef struct png {
    png_structp          file;
    png_infop            about;
    const unsigned char *bytes;
    size_t               size, at;
    lk__image_arena     *arena;
    bool                 full; /* the arena */
    char                *message;
} png;

bool lk__png_built(void) { return true; }

static png_voidp allocate_block(png_structp file, png_alloc_size_t bytes)
{
    png  *p = png_get_mem_ptr(file);
    void *memory = lk__arena_take(p->arena, bytes);
    p->full = p->full || !memory;
    return memory;
}

static void free_block(png_structp file, png_voidp memory)
{
    lk__arena_return(((png *)png_get_mem_ptr(file))->arena, memory);
}

static void report_error(png_structp file, png_const_charp text)
{
    png *p = png_get_error_ptr(file);
    snprintf(p->message, LK__IMAGE_MESSAGE, "is damaged: %s", text);
    png_longjmp(file, 1);
}

static void ignore_warning(png_structp file, png_const_charp text) { (void)file, (void)text; }

static void read_bytes(png_structp file, png_bytep out, size_t bytes)
{
    png *p = png_get_io_ptr(file);
    if (bytes > p->size - p->at) png_error(file, "it is truncated");
    memcpy(out, p->bytes + p->at, bytes);
    p->at += bytes;
}

size_t lk__png_arena(const lk__image_info *info)
{
    /* zlib's state and window take 48 KB, or up to 256 KB in its replacements; two rows of at most 8 bytes for a
     * pixel. */
    return (512 << 10) + 4 * lk__round_up((size_t)info->width * 8 + 256, LK__ALIGN);
}

/* Rows of 8 bits, grey or RGB. */
static void set_transforms(png *p, const lk__image_info *info)
{
    png_set_keep_unknown_chunks(p->file, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(p->file, (png_uint_32)info->width, (png_uint_32)info->height);
    if (info->palette) png_set_palette_to_rgb(p->file);
    if (info->components < 3) png_set_expand_gray_1_2_4_to_8(p->file);
    if (info->depth == 16) png_set_strip_16(p->file); /* the high byte, as Pillow reads RGB of 16 bits */
    png_set_strip_alpha(p->file);
}

static void read_pixels(png *p, const lk__image_info *info, unsigned char *raw, lk__image_rows *rows)
{
    png_read_info(p->file, p->about);
    int passes = png_set_interlace_handling(p->file);
    png_read_update_info(p->file, p->about);
    size_t stride = (size_t)info->width * (size_t)rows->stored;
    if (png_get_image_width(p->file, p->about) != info->width ||
        png_get_image_height(p->file, p->about) != info->height || png_get_rowbytes(p->file, p->about) != stride ||
        (passes > 1) != info->interlaced)
        png_error(p->file, "its header does not match its pixels");
    for (int pass = 0; pass < passes; pass++) {
        for (int64_t y = 0; y < info->height; y++) {
            unsigned char *row = raw + (info->interlaced ? (size_t)y * stride : 0);
            png_read_row(p->file, row, NULL);
            if (pass == passes - 1) lk__rows_put(rows, y, row);
        }
    }
    png_colorp palette;
    int        entries = 0, largest = png_get_palette_max(p->file, p->about);
    if (info->palette && png_get_PLTE(p->file, p->about, &palette, &entries) && largest >= entries)
        png_error(p->file, "a pixel's index exceeds the palette");
}

lk_status lk__png_decode(const lk__image_file *file, const lk__image_decoding *d)
{
    char         *message = d->message;
    png           p = {.bytes = file->bytes, .size = file->size, .arena = d->arena, .message = message};
    volatile bool failed = true; /* set after the jump buffer */
    message[0] = 0;
    p.file = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &p, report_error, ignore_warning, &p, allocate_block,
                                      free_block);
    if (p.file) p.about = png_create_info_struct(p.file);
    if (p.about && setjmp(png_jmpbuf(p.file)) == 0) {
        png_set_read_fn(p.file, &p, read_bytes);
        set_transforms(&p, file->info);
        read_pixels(&p, file->info, d->raw, d->rows);
        failed = false;
    }
    png_destroy_read_struct(&p.file, &p.about, NULL);
    if (!failed) return LK_OK;
    if (p.full)
        snprintf(message, LK__IMAGE_MESSAGE, "is damaged: decoding it needs more memory than its header implies");
    if (!message[0])
        snprintf(message, LK__IMAGE_MESSAGE, "cannot be decoded: libpng %s failed to start", PNG_LIBPNG_VER_STRING);
    return LK_EFORMAT;
}

#else

bool   lk__png_built(void) { return false; }
size_t lk__png_arena(const lk__image_info *info) { return (size_t)info->width * 0; }

lk_status lk__png_decode(const lk__image_file *file, const lk__image_decoding *d)
{
    (void)file;
    snprintf(d->message, LK__IMAGE_MESSAGE, "is a PNG file, but this build has no libpng to decode it");
    return LK_EUNSUPPORTED;
}

#endif
