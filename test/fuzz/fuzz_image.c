/* fuzz_image.c - PNG and JPEG files: any bytes are refused with a reason, or give an image of the size that the header
 * declares, within the memory that was planned for it; a part of the file gives the same header, or asks for more. An
 * input is a byte that selects channels and size, then the file. */
#include "data/image/image.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A part of the file, in a block of its own. */
static void probe_part(const uint8_t *bytes, size_t size, const lk__image_info *whole, lk_status wanted)
{
    lk__image_info info;
    char           message[LK__IMAGE_MESSAGE];
    uint8_t       *part = malloc(size ? size : 1);
    if (!part) abort();
    memcpy(part, bytes, size);
    lk_status status = lk__image_probe(part, size, false, &info, message);
    if (status == LK_OK && (wanted != LK_OK || info.width != whole->width || info.height != whole->height ||
                            info.components != whole->components || info.orientation != whole->orientation))
        abort();
    if (status < 0 && (wanted >= 0 || !message[0])) abort();
    free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lk__image_info info;
    int64_t        height, width;
    char           message[LK__IMAGE_MESSAGE];
    if (size < 1) return 0;
    lk__image_target target = {data[0] & 1 ? 3 : 1, data[0] & 2 ? 1 + (data[0] >> 2) : 0,
                               data[0] & 2 ? 1 + (data[0] >> 3) : 0};
    data++, size--;
    lk_status status = lk__image_probe(data, size, true, &info, message);
    probe_part(data, size / 2, &info, status);
    probe_part(data, size - size / 8, &info, status);
    if (status > 0 || (status < 0 && (!message[0] || (status != LK_EFORMAT && status != LK_EUNSUPPORTED)))) abort();
    if (status < 0) return 0;
    lk__image_size(&info, &height, &width);
    if (height < 1 || width < 1 || height * width > LK__IMAGE_PIXELS || info.orientation < 1 || info.orientation > 8)
        abort();
    if (height * width > 1 << 18) return 0; /* for the speed of fuzzing */
    if (target.height) height = target.height, width = target.width;
    size_t   need = lk__round_up(lk__image_scratch(&info, &target), LK__ALIGN);
    void    *scratch = aligned_alloc(LK__ALIGN, need);
    uint8_t *out = malloc((size_t)(target.channels * height * width));
    if (!scratch || !out) abort();
    status = lk__image_decode(&(lk__image_file){&info, data, size}, &target, scratch, out, message);
    if (status > 0 || (status < 0 && (!message[0] || (status != LK_EFORMAT && status != LK_EUNSUPPORTED)))) abort();
    unsigned sum = 0;
    for (int64_t i = 0; status == LK_OK && i < target.channels * height * width; i++) sum += out[i];
    volatile unsigned sink = sum; /* every byte is read, for sanitizers */
    (void)sink;
    free(scratch);
    free(out);
    return 0;
}
