/* test_images.c - decoding of PNG and JPEG files, against what Pillow and torchvision decoded (golden/make_images.py);
 * headers that are refused; truncated files; libraries' memory. */
#define _GNU_SOURCE
#include "data/image/decode.h"
#include "test_data.h"

#include <stdint.h>
#if __has_include(<jpeglib.h>)
#include <jpeglib.h>
#endif

typedef struct file {
    unsigned char *bytes;
    size_t         size;
} file;

static file read_golden(const char *name)
{
    char path[2048];
    file f;
    snprintf(path, sizeof path, "%s/test/golden/%s", LK_SOURCE_DIR, name);
    f.bytes = read_whole(path, &f.size);
    return f;
}

/* Decodes into a block of the exact size, with scratch memory of the exact size. NULL: failed, message is set. */
static unsigned char *decode(const unsigned char *bytes, size_t size, lk__image_target target, lk_status *status,
                             char message[LK__IMAGE_MESSAGE])
{
    lk__image_info info;
    int64_t        height, width;
    *status = lk__image_probe(bytes, size, true, &info, message);
    if (*status != LK_OK) return NULL;
    lk__image_size(&info, &height, &width);
    if (target.height) height = target.height, width = target.width;
    size_t         need = lk__image_scratch(&info, &target);
    void          *scratch = aligned_alloc(LK__ALIGN, lk__round_up(need, LK__ALIGN));
    unsigned char *out = malloc((size_t)(height * width * target.channels));
    CHECK(scratch && out);
    memset(scratch, 0xA5, need);
    *status = lk__image_decode(&(lk__image_file){&info, bytes, size}, &target, scratch, out, message);
    free(scratch);
    if (*status == LK_OK) return out;
    free(out);
    return NULL;
}

static bool can_decode(const char *name) { return strstr(name, ".png") ? lk__png_built() : lk__jpeg_built(); }

static void decoded_images_are_those_of_pillow_and_torchvision(void)
{
    char  line[512], name[128], how[16], source[16], message[LK__IMAGE_MESSAGE], path[1024];
    int   channels, height, width, most, cases = 0;
    long  offset;
    float mean;
    file  expected = read_golden("images.bin");
    snprintf(path, sizeof path, "%s/test/golden/images.txt", LK_SOURCE_DIR);
    FILE *list = fopen(path, "r");
    CHECK(list);
    while (fgets(line, sizeof line, list)) {
        CHECK(sscanf(line, "%127s %d %d %d %15s %15s %f %d %ld", name, &channels, &height, &width, how, source, &mean,
                     &most, &offset) == 9);
        if (!can_decode(name)) continue;
        bool             resized = strcmp(how, "resized") == 0;
        lk__image_target target = {channels, resized ? height : 0, resized ? width : 0};
        lk_status        status;
        size_t           n = (size_t)(channels * height * width);
        snprintf(path, sizeof path, "images/%s", name);
        file           f = read_golden(path);
        unsigned char *out = decode(f.bytes, f.size, target, &status, message);
        if (!out) fprintf(stderr, "%s %s\n", name, message);
        CHECK(out && (size_t)offset + n <= expected.size);
        double sum = 0;
        int    largest = 0;
        for (size_t i = 0; i < n; i++) {
            int difference = abs(out[i] - expected.bytes[(size_t)offset + i]);
            sum += difference;
            if (difference > largest) largest = difference;
        }
        if (sum / (double)n > mean || largest > most)
            fprintf(stderr, "%s: mean difference %.3f, largest %d\n", line, sum / (double)n, largest);
        CHECK(sum / (double)n <= mean && largest <= most);
        free(out);
        free(f.bytes);
        cases++;
    }
    fclose(list);
    free(expected.bytes);
    CHECK(cases > 50 || !lk__png_built() || !lk__jpeg_built());
}

/* A header that is cut anywhere needs more bytes, or is refused; a file that is cut anywhere is refused, or
 * complete. */
static void truncated_files_are_refused(void)
{
    static const char *const names[] = {"images/rgb8.png", "images/420-progressive.jpg", "images/orientation6.jpg",
                                        "images/palette4-alpha-adam7.png"};
    char                     message[LK__IMAGE_MESSAGE];
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (!can_decode(names[k])) continue;
        file           f = read_golden(names[k]);
        lk_status      status;
        lk__image_info whole, info;
        CHECK(lk__image_probe(f.bytes, f.size, true, &whole, message) == LK_OK);
        unsigned char *complete = decode(f.bytes, f.size, (lk__image_target){3, 0, 0}, &status, message);
        size_t         pixels = (size_t)(whole.width * whole.height * 3), accepted = 0;
        for (size_t size = 0; size < f.size; size++) {
            unsigned char *cut = malloc(size ? size : 1); /* of the exact size, for sanitizers */
            memcpy(cut, f.bytes, size);
            status = lk__image_probe(cut, size, false, &info, message);
            CHECK(status == LK_END ||
                  (status == LK_OK && info.width == whole.width && info.orientation == whole.orientation));
            unsigned char *out = decode(cut, size, (lk__image_target){3, 0, 0}, &status, message);
            if (out) { /* only what follows the pixels is missing */
                CHECK(memcmp(out, complete, pixels) == 0);
                accepted++;
            } else {
                CHECK(status == LK_EFORMAT && message[0]);
            }
            free(out);
            free(cut);
        }
        CHECK(accepted < 32);
        free(complete);
        free(f.bytes);
    }
}

static void check_refused(const void *bytes, size_t size, lk_status wanted, const char *words)
{
    char           message[LK__IMAGE_MESSAGE];
    lk__image_info info;
    lk_status      status = lk__image_probe(bytes, size, true, &info, message);
    if (status != wanted || !strstr(message, words))
        fprintf(stderr, "%s, message: %s; wanted %s with \"%s\"\n", lk_status_name(status), message,
                lk_status_name(wanted), words);
    CHECK(status == wanted && strstr(message, words));
}
#define REFUSED(text, wanted, words) check_refused(text, sizeof text - 1, wanted, words)

static void other_formats_are_named(void)
{
    REFUSED("", LK_EFORMAT, "empty");
    REFUSED("hello, world, this is a text", LK_EFORMAT, "neither a PNG nor a JPEG");
    REFUSED("GIF89a..............", LK_EUNSUPPORTED, "GIF");
    REFUSED("RIFF\1\1\1\1WEBPVP8 ....", LK_EUNSUPPORTED, "WebP");
    REFUSED("\0\0\0\x18"
            "ftypheic........",
            LK_EUNSUPPORTED, "HEIF");
    REFUSED("BM..................", LK_EUNSUPPORTED, "BMP");
}

#define PNG_START "\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
#define PNG_REST "\0\0\0\0" "\0\0\0\1IDATx\0\0\0\0"

static void png_headers_are_checked(void)
{
    if (!lk__png_built()) return;
    REFUSED(PNG_START "\0\0\0\0"
                      "\0\0\0\5"
                      "\x8\2\0\0\0" PNG_REST,
            LK_EFORMAT, "0x5 pixels");
    REFUSED(PNG_START "\x7f\xff\xff\xff"
                      "\x7f\xff\xff\xff"
                      "\x8\2\0\0\0" PNG_REST,
            LK_EUNSUPPORTED, "too large");
    REFUSED(PNG_START "\0\0\x20\1"
                      "\0\0\x20\0"
                      "\x8\2\0\0\0" PNG_REST,
            LK_EUNSUPPORTED, "8193x8192");
    REFUSED(PNG_START "\0\0\0\5"
                      "\0\0\0\5"
                      "\x8\5\0\0\0" PNG_REST,
            LK_EFORMAT, "colour type is 5; PNG defines 0, 2, 3, 4 and 6");
    REFUSED(PNG_START "\0\0\0\5"
                      "\0\0\0\5"
                      "\x4\2\0\0\0" PNG_REST,
            LK_EFORMAT, "bit depth is 4; colour type 2 allows 8 or 16");
    REFUSED(PNG_START "\0\0\0\5"
                      "\0\0\0\5"
                      "\x8\2\0\0\2" PNG_REST,
            LK_EFORMAT, "interlace method 2; PNG defines 0, 0, and 0 or 1");
    REFUSED(PNG_START "\0\0\0\5"
                      "\0\0\0\5"
                      "\x8\2\0\0\0"
                      "\0\0\0\0"
                      "\0\0\0\0IEND\0\0\0\0",
            LK_EFORMAT, "before its pixels");
    REFUSED(PNG_START "\0\0\0\5"
                      "\0\0\0\5"
                      "\x8\2\0\0\0"
                      "\0\0\0\0"
                      "\xff\0\0\0tEXt\0\0\0\0",
            LK_EFORMAT, "chunk");
    REFUSED("\x89PNG\r\n\x1a\n\0\0\0\rIDAT.........................", LK_EFORMAT, "IHDR");
}

#define SOF(kind, depth, height, width, components) \
    "\xff\xd8\xff" kind "\0\x11" depth height width components "\1\x22\0\2\x11\1\3\x11\1"

static void jpeg_headers_are_checked(void)
{
    if (!lk__jpeg_built()) return;
    REFUSED(SOF("\xc3", "\x8", "\0\5", "\0\5", "\3"), LK_EUNSUPPORTED, "lossless");
    REFUSED(SOF("\xc5", "\x8", "\0\5", "\0\5", "\3"), LK_EUNSUPPORTED, "hierarchical");
    REFUSED(SOF("\xc0", "\xc", "\0\5", "\0\5", "\3"), LK_EUNSUPPORTED, "12 bits");
    REFUSED(SOF("\xc0", "\x8", "\0\5", "\0\5", "\2"), LK_EUNSUPPORTED, "2 components");
    REFUSED(SOF("\xc0", "\x8", "\0\0", "\0\5", "\3"), LK_EUNSUPPORTED, "height follows");
    REFUSED(SOF("\xc0", "\x8", "\0\5", "\0\0", "\3"), LK_EFORMAT, "0x5 pixels");
    REFUSED(SOF("\xc0", "\x8", "\xff\xff", "\xff\xff", "\3"), LK_EUNSUPPORTED, "too large");
    REFUSED("\xff\xd8\xff\xc0\0\4\x8\0", LK_EFORMAT, "frame header");
    REFUSED("\xff\xd8\xff\xc0\0\1", LK_EFORMAT, "segment");
    REFUSED("\xff\xd8\xff\xda\0\4\0\0", LK_EFORMAT, "scan before");
    REFUSED("\xff\xd8\xff\xd9", LK_EFORMAT, "before its pixels");
    REFUSED("\xff\xd8\xff\xc0\0\x11\x8\0\5\0\5\3\1\x52\0\2\x11\1\3\x11\1", LK_EFORMAT, "sampling");
}

/* Damage within the pixels: bad codes, and a palette that is too short. */
static void damaged_pixels_are_refused(void)
{
    char message[LK__IMAGE_MESSAGE];
    int  refused = 0;
    if (lk__jpeg_built()) {
        file           f = read_golden("images/444.jpg");
        lk_status      status;
        unsigned char *kept = malloc(f.size);
        memcpy(kept, f.bytes, f.size);
        for (size_t at = f.size - 300; at < f.size - 2; at += 7) {
            memcpy(f.bytes, kept, f.size);
            memset(f.bytes + at, 0xFF, f.size - at < 4 ? f.size - at : 4);
            unsigned char *out = decode(f.bytes, f.size, (lk__image_target){3, 0, 0}, &status, message);
            CHECK(out || (status == LK_EFORMAT && message[0]));
            refused += !out;
            free(out);
        }
        CHECK(refused > 20);
        free(kept);
        free(f.bytes);
    }
    if (lk__png_built()) {
        file           f = read_golden("images/palette8.png");
        unsigned char *palette = NULL;
        lk_status      status;
        for (size_t i = 0; i + 4 < f.size && !palette; i++)
            if (memcmp(f.bytes + i, "PLTE", 4) == 0) palette = f.bytes + i;
        CHECK(palette);
        palette[20] ^= 1; /* the checksum finds it */
        CHECK(!decode(f.bytes, f.size, (lk__image_target){3, 0, 0}, &status, message) && status == LK_EFORMAT);
        CHECK(strstr(message, "CRC"));
        free(f.bytes);
    }
}

#ifdef JPEG_LIB_VERSION
/* A JPEG file of noise, with these sampling factors. */
static unsigned char *encode(int width, int height, const int factors[3], bool progressive, bool arithmetic,
                             size_t *size)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr       errors;
    unsigned char              *bytes = NULL, row[3 * 80];
    unsigned long               length = 0;
    uint32_t                    seed = 1;
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &length);
    c.image_width = (JDIMENSION)width, c.image_height = (JDIMENSION)height;
    c.input_components = 3, c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    for (int i = 0; i < 3; i++)
        c.comp_info[i].h_samp_factor = factors[i] / 10, c.comp_info[i].v_samp_factor = factors[i] % 10;
    if (progressive) jpeg_simple_progression(&c);
#ifdef C_ARITH_CODING_SUPPORTED
    c.arith_code = arithmetic;
#else
    (void)arithmetic;
#endif
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < height; y++) {
        JSAMPROW rows = row;
        for (int i = 0; i < 3 * width; i++) row[i] = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
        jpeg_write_scanlines(&c, &rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    *size = length;
    return bytes;
}

/* With libjpeg's own memory manager. */
static void decode_plainly(unsigned char *bytes, size_t size, unsigned char *out)
{
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr         errors;
    unsigned char                 row[3 * 80];
    d.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&d);
    jpeg_mem_src(&d, bytes, size);
    jpeg_read_header(&d, TRUE);
    jpeg_start_decompress(&d);
    size_t plane = (size_t)d.output_width * d.output_height;
    while (d.output_scanline < d.output_height) {
        JSAMPROW rows = row;
        size_t   at = (size_t)d.output_scanline * d.output_width;
        jpeg_read_scanlines(&d, &rows, 1);
        for (size_t x = 0; x < d.output_width; x++)
            for (size_t c = 0; c < 3; c++) out[c * plane + at + x] = row[3 * x + c];
    }
    jpeg_destroy_decompress(&d);
}

static void all_sampling_factors_fit_the_planned_memory(void)
{
    static const int all[] = {11, 12, 14, 21, 22, 24, 41, 42};
    enum { COUNT = sizeof all / sizeof *all };
    char          message[LK__IMAGE_MESSAGE];
    unsigned char plain[3 * 80 * 80];
    for (int i = 0; i < COUNT * COUNT * 2; i++) {
        int       factors[3] = {all[i / 2 % COUNT], all[i / 2 / COUNT], 11}, blocks = 0;
        size_t    size;
        lk_status status;
        for (int k = 0; k < 3; k++) blocks += factors[k] / 10 * (factors[k] % 10);
        if (blocks > 10) continue; /* the standard's limit for a scan of all components */
        for (int side = 1; side <= 80; side += side < 8 ? 6 : 13) {
            int            height = 81 - side;
            unsigned char *bytes = encode(side, height, factors, i % 2, i / 2 % 3 == 0, &size);
            unsigned char *out = decode(bytes, size, (lk__image_target){3, 0, 0}, &status, message);
            if (!out) fprintf(stderr, "%dx%d, factors %d %d: %s\n", side, height, factors[0], factors[1], message);
            CHECK(out);
            decode_plainly(bytes, size, plain);
            CHECK(memcmp(out, plain, (size_t)(3 * side * height)) == 0);
            free(out);
            free(bytes);
        }
    }
}
#else
static void all_sampling_factors_fit_the_planned_memory(void) { printf("skipped: no libjpeg\n"); }
#endif

/* Exhaustive over small blocks: the first orientation entry of directory 0 counts, whatever is around it. */
static void the_orientation_is_that_of_directory_0(void)
{
    unsigned char block[] = {'I', 'I', 42, 0,    8, 0, 0, 0, 2, 0, 0x0F, 1, 2, 0, 1, 0, 0, 0, 0,
                             0,   0,   0,  0x12, 1, 3, 0, 1, 0, 0, 0,    6, 0, 0, 0, 0, 0, 0, 0};
    CHECK(lk__exif_orientation(block, sizeof block) == 6);
    for (size_t size = 0; size <= sizeof block; size++)
        CHECK(lk__exif_orientation(block, size) == (size >= 34 ? 6 : 1));
    for (int value = 0; value < 256; value++) {
        block[30] = (unsigned char)value;
        CHECK(lk__exif_orientation(block, sizeof block) == (value >= 1 && value <= 8 ? value : 1));
    }
    block[30] = 6, block[24] = 1; /* a BYTE is not an orientation, as for Pillow */
    CHECK(lk__exif_orientation(block, sizeof block) == 1);
    block[24] = 3, block[4] = 200; /* the directory is outside */
    CHECK(lk__exif_orientation(block, sizeof block) == 1);
    block[4] = 8, block[2] = 43;
    CHECK(lk__exif_orientation(block, sizeof block) == 1);
    unsigned char big[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 8, 0, 0};
    CHECK(lk__exif_orientation(big, sizeof big) == 8);
    const unsigned char wide[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 4, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0};
    CHECK(lk__exif_orientation(wide, sizeof wide) == 5); /* as a LONG, which Pillow takes too */
}

int main(void)
{
    RUN(decoded_images_are_those_of_pillow_and_torchvision);
    RUN(truncated_files_are_refused);
    RUN(other_formats_are_named);
    RUN(png_headers_are_checked);
    RUN(jpeg_headers_are_checked);
    RUN(damaged_pixels_are_refused);
    RUN(all_sampling_factors_fit_the_planned_memory);
    RUN(the_orientation_is_that_of_directory_0);
    return 0;
}
