/* jpeg.c - JPEG files through libjpeg (libjpeg-turbo on every current distribution). It allocates from the arena, and
 * reports an error by a jump to lk__jpeg_decode, whose variables live in a struct for that reason. */
#include "data/image/decode.h"

#include <stdio.h>
#include <string.h>

#ifdef LK_JPEG
#include "data/image/jpeg_memory.h"

#include <jerror.h>
#include <setjmp.h>

/* of a progressive file; encoders write about ten. Each costs a pass over all coefficients. */
enum { MOST_SCANS = 256 };

typedef struct jpeg {
    struct jpeg_decompress_struct file; /* first: the callbacks get a pointer to it */
    struct jpeg_error_mgr         errors;
    struct jpeg_source_mgr        source;
    struct jpeg_progress_mgr      progress;
    lk__image_jpeg_memory         memory;
    jmp_buf                       failed;
    char                         *message;
} jpeg;

bool lk__jpeg_built(void) { return true; }

static void report_error(j_common_ptr object)
{
    jpeg *j = (jpeg *)object;
    char  text[JMSG_LENGTH_MAX];
    if (object->err->msg_code == JERR_OUT_OF_MEMORY)
        snprintf(text, sizeof text, "decoding it needs more memory than its header implies");
    else
        object->err->format_message(object, text);
    snprintf(j->message, LK__IMAGE_MESSAGE, "is damaged: %s", text);
    longjmp(j->failed, 1);
}

/* Warnings about pixels are errors: what follows would be invented. Others are about data that nothing here depends
 * on. */
static void check_warning(j_common_ptr object, int level)
{
    int code = object->err->msg_code;
    if (level < 0 && (code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE ||
                      code == JWRN_MUST_RESYNC || code == JWRN_JPEG_EOF))
        report_error(object);
}

static void print_nothing(j_common_ptr object) { (void)object; }
static void do_nothing(j_decompress_ptr file) { (void)file; }

static boolean report_truncated(j_decompress_ptr file)
{
    jpeg *j = (jpeg *)file;
    snprintf(j->message, LK__IMAGE_MESSAGE, "is truncated");
    longjmp(j->failed, 1);
}

static void skip_bytes(j_decompress_ptr file, long bytes)
{
    if (bytes <= 0) return;
    if ((size_t)bytes > file->src->bytes_in_buffer) report_truncated(file);
    file->src->next_input_byte += bytes;
    file->src->bytes_in_buffer -= (size_t)bytes;
}

static void limit_scans(j_common_ptr object)
{
    jpeg *j = (jpeg *)object;
    if (j->file.input_scan_number <= MOST_SCANS) return;
    snprintf(j->message, LK__IMAGE_MESSAGE, "is damaged: it has more than %d scans", MOST_SCANS);
    longjmp(j->failed, 1);
}

size_t lk__jpeg_arena(const lk__image_info *info)
{
    size_t across = 1, down = 1, bytes = 256 << 10; /* tables */
    for (int i = 0; i < info->components; i++) {
        if ((size_t)(info->sampling[i] >> 4) > across) across = info->sampling[i] >> 4;
        if ((size_t)(info->sampling[i] & 15) > down) down = info->sampling[i] & 15;
    }
    size_t units_across = ((size_t)info->width + 8 * across - 1) / (8 * across);
    size_t units_down = ((size_t)info->height + 8 * down - 1) / (8 * down);
    for (int i = 0; i < info->components; i++) {
        /* Rows between the stages of the decoder: at most 40 of a component, and 4 that are scaled up. */
        bytes += 48 * lk__round_up(units_across * 8 * across + 64, 64);
        if (!info->several_scans) continue;
        size_t rows = units_down * (size_t)(info->sampling[i] & 15);
        bytes += rows * (units_across * (size_t)(info->sampling[i] >> 4) * sizeof(JBLOCK) + sizeof(void *)) + 256;
    }
    return bytes;
}

static void read_header(jpeg *j, const lk__image_info *info, int reduction, const lk__image_rows *rows)
{
    jpeg_read_header(&j->file, TRUE);
    if (j->file.image_width != info->width || j->file.image_height != info->height ||
        j->file.num_components != info->components ||
        jpeg_has_multiple_scans(&j->file) != (boolean)info->several_scans) {
        snprintf(j->message, LK__IMAGE_MESSAGE, "is damaged: it has two headers that differ");
        longjmp(j->failed, 1);
    }
    j->file.out_color_space = info->components == 1 ? JCS_GRAYSCALE : info->components == 3 ? JCS_RGB : JCS_CMYK;
    j->file.scale_num = 1;
    j->file.scale_denom = (unsigned)reduction;
    jpeg_start_decompress(&j->file);
    if (j->file.output_width != rows->width || j->file.output_height != rows->height ||
        j->file.output_components != rows->stored) {
        snprintf(j->message, LK__IMAGE_MESSAGE, "cannot be decoded: libjpeg returned %ux%u pixels with %d components",
                 j->file.output_width, j->file.output_height, j->file.output_components);
        longjmp(j->failed, 1);
    }
}

lk_status lk__jpeg_decode(const lk__image_file *file, int reduction, const lk__image_decoding *d)
{
    jpeg          j = {.message = d->message};
    volatile bool created = false, done = false; /* set after the jump buffer */
    d->message[0] = 0;
    j.file.err = jpeg_std_error(&j.errors);
    j.errors.error_exit = report_error;
    j.errors.emit_message = check_warning;
    j.errors.output_message = print_nothing;
    if (setjmp(j.failed) == 0) {
        jpeg_create_decompress(&j.file);
        lk__jpeg_memory_install((j_common_ptr)&j.file, &j.memory, d->arena);
        created = true;
        j.source = (struct jpeg_source_mgr){.next_input_byte = file->bytes,
                                            .bytes_in_buffer = file->size,
                                            .init_source = do_nothing,
                                            .fill_input_buffer = report_truncated,
                                            .skip_input_data = skip_bytes,
                                            .resync_to_restart = jpeg_resync_to_restart,
                                            .term_source = do_nothing};
        j.file.src = &j.source;
        j.progress.progress_monitor = limit_scans;
        j.file.progress = &j.progress;
        read_header(&j, file->info, reduction, d->rows);
        while (j.file.output_scanline < j.file.output_height) {
            JSAMPROW row = d->raw;
            int64_t  y = j.file.output_scanline;
            jpeg_read_scanlines(&j.file, &row, 1);
            lk__rows_put(d->rows, y, d->raw);
        }
        done = true;
    }
    if (created) lk__jpeg_memory_remove((j_common_ptr)&j.file, &j.memory);
    jpeg_destroy_decompress(&j.file);
    return done ? LK_OK : LK_EFORMAT;
}

#else

bool   lk__jpeg_built(void) { return false; }
size_t lk__jpeg_arena(const lk__image_info *info) { return (size_t)info->width * 0; }

lk_status lk__jpeg_decode(const lk__image_file *file, int reduction, const lk__image_decoding *d)
{
    (void)file, (void)reduction;
    snprintf(d->message, LK__IMAGE_MESSAGE, "is a JPEG file, but this build has no libjpeg to decode it");
    return LK_EUNSUPPORTED;
}

#endif
