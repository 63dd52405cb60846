/* test_safetensors.c - the safetensors format: the same bytes as the reference library writes, an error for every kind
 * of damage, full disks and failed allocations. */
#define _GNU_SOURCE
#include "check.h"

#include "base/base.h"
#include "train/file.h"
#include "train/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static lk_context *context;
static char        folder[] = "/tmp/lockstep-safetensors-XXXXXX";
static char        staging[LK__FILE_STAGING];

static const char *in_folder(const char *name)
{
    static char paths[8][512];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static size_t read_bytes(const char *path, unsigned char *out, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t n = fread(out, 1, size, file);
    fclose(file);
    return n;
}

static void write_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
}

/* ---- the tensors that several tests write ---- */

static const float   floats[6] = {0.0f, -1.5f, 3.25f, 1e-30f, -0.0f, 7.0f};
static const int64_t longs[1] = {-9000000000};
static const double  scalar[1] = {0.1};
static const uint8_t bytes3[3] = {1, 0, 1};
static const int32_t ints[2] = {-1, 1 << 30};

static size_t example(lk__safetensors_tensor t[8])
{
    size_t n = 0;
    t[n++] = (lk__safetensors_tensor){
        .name = "mask", .dtype = LK_U8, .boolean = true, .rank = 1, .dims = {3}, .data = bytes3};
    t[n++] = (lk__safetensors_tensor){.name = "b.weight", .dtype = LK_F32, .rank = 2, .dims = {2, 3}, .data = floats};
    t[n++] = (lk__safetensors_tensor){.name = "bn.num_batches_tracked", .dtype = LK_I64, .rank = 0, .data = longs};
    t[n++] =
        (lk__safetensors_tensor){.name = "a.weight", .dtype = LK_F32, .rank = 3, .dims = {1, 2, 2}, .data = floats + 1};
    t[n++] = (lk__safetensors_tensor){.name = "d", .dtype = LK_F64, .rank = 0, .data = scalar};
    t[n++] = (lk__safetensors_tensor){.name = "empty", .dtype = LK_F32, .rank = 2, .dims = {0, 4}, .data = NULL};
    t[n++] =
        (lk__safetensors_tensor){.name = "q\"\xc3\xa9\n\x01/\\", .dtype = LK_I32, .rank = 1, .dims = {2}, .data = ints};
    t[n++] = (lk__safetensors_tensor){.name = "u", .dtype = LK_U8, .rank = 1, .dims = {1}, .data = bytes3};
    return n;
}

/* Header that safetensors 0.8.0 (Python, safetensors.numpy.save) writes for example() with metadata {"format":
 * "pt"}. */
static const char reference_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"bn.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[8,16]},"
    "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[1,2,2],\"data_offsets\":[16,32]},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[32,56]},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[56,56]},"
    "\"q\\\"\xc3\xa9\\n\\u0001/\\\\\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[56,64]},"
    "\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[64,65]},"
    "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[65,68]}}";

static lk_status write_example(const char *path, char digest[65])
{
    lk__safetensors_tensor tensors[8];
    size_t                 count = example(tensors);
    lk__safetensors_pair   format = {"format", "pt"};
    return lk__safetensors_write(context, path, &(lk__safetensors_content){tensors, count, &format, 1},
                                 (lk__safetensors_staging){staging, sizeof staging}, digest);
}

static void the_file_equals_the_reference_librarys(void)
{
    unsigned char got[4096], expected[4096];
    size_t        header = (strlen(reference_header) + 7) / 8 * 8, length = 8 + header;
    memset(expected, ' ', sizeof expected);
    memset(expected, 0, 8);
    expected[0] = (unsigned char)(header & 255), expected[1] = (unsigned char)(header >> 8);
    memcpy(expected + 8, reference_header, strlen(reference_header));
    const struct {
        const void *data;
        size_t      bytes;
    } order[] = {{longs, 8}, {scalar, 8}, {floats + 1, 16}, {floats, 24}, {ints, 8}, {bytes3, 1}, {bytes3, 3}};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        memcpy(expected + length, order[i].data, order[i].bytes);
        length += order[i].bytes;
    }
    REQUIRE(write_example(in_folder("a.safetensors"), NULL) == LK_OK, "%s", lk_context_error(context));
    size_t n = read_bytes(in_folder("a.safetensors"), got, sizeof got);
    CHECK(n == length, "%zu %zu", n, length);
    CHECK(memcmp(got, expected, length) == 0);
}

static void bytes_depend_on_the_contents_alone(void)
{
    unsigned char          first[4096], second[4096];
    char                   digest[2][65], tiny[1];
    lk__safetensors_tensor tensors[8], reversed[8];
    size_t                 count = example(tensors);
    for (size_t i = 0; i < count; i++) reversed[i] = tensors[count - 1 - i];
    lk__safetensors_pair ab[] = {{"a", "1"}, {"b", "2"}}, ba[] = {{"b", "2"}, {"a", "1"}};
    CHECK(lk__safetensors_write(context, in_folder("x"), &(lk__safetensors_content){tensors, count, ab, 2},
                                (lk__safetensors_staging){staging, sizeof staging}, digest[0]) == LK_OK);
    CHECK(lk__safetensors_write(context, in_folder("y"), &(lk__safetensors_content){reversed, count, ba, 2},
                                (lk__safetensors_staging){tiny, 1}, digest[1]) == LK_OK);
    size_t n = read_bytes(in_folder("x"), first, sizeof first), m = read_bytes(in_folder("y"), second, sizeof second);
    CHECK(n == m && n > 0 && memcmp(first, second, n) == 0, "%zu %zu", n, m);
    CHECK(strcmp(digest[0], digest[1]) == 0);

    char command[600], line[200] = "";
    snprintf(command, sizeof command, "sha256sum %s/x", folder); /* coreutils' SHA-256 is independent of ours */
    FILE *pipe = popen(command, "r");
    REQUIRE(pipe && fgets(line, sizeof line, pipe));
    pclose(pipe);
    CHECK(strncmp(line, digest[0], 64) == 0, "%s %s", line, digest[0]);
    CHECK(lk__file_digest(context, in_folder("x"), staging, 7, digest[1]) == LK_OK &&
          strcmp(digest[0], digest[1]) == 0);
}

static void written_tensors_are_read_back(void)
{
    REQUIRE(write_example(in_folder("r"), NULL) == LK_OK);
    lk__safetensors_tensor tensors[8];
    size_t                 count = example(tensors), allocated = lk_context_memory(context, LK_MEMORY_OTHER);
    lk__safetensors       *file;
    REQUIRE(lk__safetensors_open(context, in_folder("r"), &file) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk__safetensors_count(file) == count);
    for (size_t i = 0; i < count; i++) {
        const lk__safetensors_tensor *t = lk__safetensors_find(file, tensors[i].name);
        REQUIRE(t, "%s", tensors[i].name);
        CHECK(t->dtype == tensors[i].dtype && t->boolean == tensors[i].boolean && t->rank == tensors[i].rank);
        CHECK(memcmp(t->dims, tensors[i].dims, sizeof t->dims) == 0);
        char out[64];
        CHECK(lk__safetensors_read(file, t, 0, out, (size_t)t->bytes) == LK_OK);
        CHECK(t->bytes == 0 || memcmp(out, tensors[i].data, (size_t)t->bytes) == 0);
        CHECK(lk__safetensors_read(file, t, t->bytes, out, 1) == LK_EINVAL);
        CHECK(lk__safetensors_read(file, t, UINT64_MAX, out, 1) == LK_EINVAL);
        if (t->bytes >= 3)
            CHECK(lk__safetensors_read(file, t, 1, out, 2) == LK_OK &&
                  memcmp(out, (const char *)tensors[i].data + 1, 2) == 0);
    }
    uint64_t at = lk__safetensors_at(file, 0)->offset;
    for (size_t i = 0; i < count; i++) {
        CHECK(lk__safetensors_at(file, i)->offset == at);
        at += lk__safetensors_at(file, i)->bytes;
    }
    CHECK(lk__safetensors_at(file, count) == NULL);
    CHECK(lk__safetensors_find(file, "c") == NULL && lk__safetensors_find(file, "") == NULL &&
          lk__safetensors_find(file, "zzz") == NULL);
    CHECK(strcmp(lk__safetensors_metadata(file, "format"), "pt") == 0 &&
          lk__safetensors_metadata(file, "forma") == NULL);
    lk__safetensors_close(file);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == allocated);

    lk__safetensors_tensor none[1];
    CHECK(lk__safetensors_write(context, in_folder("r"), &(lk__safetensors_content){none, 0, NULL, 0},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_OK);
    unsigned char small[64];
    CHECK(read_bytes(in_folder("r"), small, sizeof small) == 16 &&
          memcmp(small, "\x08\0\0\0\0\0\0\0{}      ", 16) == 0);
    REQUIRE(lk__safetensors_open(context, in_folder("r"), &file) == LK_OK);
    CHECK(lk__safetensors_count(file) == 0);
    lk__safetensors_close(file);
}

static void many_tensors_are_sorted_and_found(void)
{
    enum { MANY = 1009 };
    static lk__safetensors_tensor tensors[MANY];
    static char                   names[MANY][16];
    static int32_t                values[MANY];
    for (int i = 0; i < MANY; i++) {
        int k = (i * 613) % MANY; /* a permutation: MANY is prime */
        snprintf(names[i], sizeof names[i], "t%d", k);
        values[i] = k;
        tensors[i] =
            (lk__safetensors_tensor){.name = names[i], .dtype = LK_I32, .rank = 1, .dims = {1}, .data = &values[i]};
    }
    REQUIRE(lk__safetensors_write(context, in_folder("m"), &(lk__safetensors_content){tensors, MANY, NULL, 0},
                                  (lk__safetensors_staging){staging, 100}, NULL) == LK_OK);
    lk__safetensors *file;
    REQUIRE(lk__safetensors_open(context, in_folder("m"), &file) == LK_OK, "%s", lk_context_error(context));
    for (int i = 0; i < MANY; i++) {
        char    name[16];
        int32_t value = -1;
        snprintf(name, sizeof name, "t%d", i);
        const lk__safetensors_tensor *t = lk__safetensors_find(file, name);
        CHECK(t && lk__safetensors_read(file, t, 0, &value, 4) == LK_OK && value == i);
        if (i)
            CHECK(strcmp(lk__safetensors_at(file, (size_t)i - 1)->name, lk__safetensors_at(file, (size_t)i)->name) < 0);
    }
    lk__safetensors_close(file);
}

static void invalid_tensors_are_refused(void)
{
    float                  one = 1;
    lk__safetensors_tensor twice[2] = {{.name = "a", .dtype = LK_F32, .data = &one},
                                       {.name = "a", .dtype = LK_F64, .data = &one}};
    lk__safetensors_tensor bad[] = {
        {.name = "\xff", .dtype = LK_F32, .data = &one},
        {.name = "__metadata__", .dtype = LK_F32, .data = &one},
        {.name = "a", .dtype = LK_DTYPE_COUNT, .data = &one},
        {.name = "a", .dtype = LK_F32, .data = NULL},
        {.name = "a", .dtype = LK_F32, .rank = 7, .data = &one},
        {.name = "a", .dtype = LK_F32, .rank = 1, .dims = {-1}, .data = &one},
        {.name = "a", .dtype = LK_F32, .rank = 2, .dims = {INT64_MAX / 2, 3}, .data = &one},
        {.name = "a", .dtype = LK_F32, .boolean = true, .data = &one},
    };
    lk__safetensors_pair same[2] = {{"k", "1"}, {"k", "2"}}, not_utf8[1] = {{"k", "\xc3"}};
    const char          *path = in_folder("never");
    CHECK(lk__safetensors_write(context, path, &(lk__safetensors_content){twice, 2, NULL, 0},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EINVAL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(lk__safetensors_write(context, path, &(lk__safetensors_content){&bad[i], 1, NULL, 0},
                                    (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EINVAL,
              "%zu", i);
    CHECK(lk__safetensors_write(context, path, &(lk__safetensors_content){twice, 1, same, 2},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EINVAL);
    CHECK(lk__safetensors_write(context, path, &(lk__safetensors_content){twice, 1, not_utf8, 1},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EINVAL);
    CHECK(lk__safetensors_write(context, path, &(lk__safetensors_content){twice, 1, NULL, 0},
                                (lk__safetensors_staging){staging, 0}, NULL) == LK_EINVAL);
    CHECK(access(path, F_OK) < 0);
}

/* ---- damage ---- */

/* A file of the given header and `data` bytes, opened from memory of exactly its size, so that a sanitizer detects
 * overruns. */
static lk_status open_text(const char *header, size_t header_bytes, size_t data, lk__safetensors **file)
{
    size_t         length = 8 + header_bytes + data;
    unsigned char *bytes = calloc(length, 1);
    REQUIRE(bytes);
    uint64_t n = header_bytes;
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, header_bytes);
    lk_status status = lk__safetensors_open_memory(context, "bad.safetensors", bytes, length, file);
    lk__safetensors_close(*file);
    free(bytes);
    return status;
}

/* 640 and 1152 bytes: the file starts with 80 02 and 80 04, as pickles of protocols 2 and 4 do. */
static void a_header_whose_length_looks_like_a_pickle_is_read(void)
{
    for (size_t length = 640; length <= 1152; length += 512) {
        char             header[2048];
        lk__safetensors *file = NULL;
        int              used = snprintf(header, sizeof header, "{}");
        memset(header + used, ' ', sizeof header - (size_t)used);
        CHECK(open_text(header, length, 0, &file) == LK_OK, "%s", lk_context_error(context));
    }
}

static void damaged_headers_give_a_clear_error(void)
{
#define T(fields) "{\"t\":{" fields "}}"
#define GOOD "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"
    static const struct {
        const char *header;
        size_t      data;
        const char *expected;
    } cases[] = {
        {"[]", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"{} x", 0, "trailing characters"},
        {"{ ", 0, "expected a key"},
        {"{\"t\"}", 0, "expected ':'"},
        {"{\"t\":}", 0, "expected a value"},
        {"{\"t\":{},}", 0, "expected a key"},
        {"{\"t\":{} \"u\":{}}", 0, "expected ','"},
        {"{\"t", 0, "unterminated string"},
        {"{\"\xff\":{}}", 0, "not UTF-8"},
        {"{\"\xc0\xaf\":{}}", 0, "not UTF-8"},
        {"{\"\xed\xa0\x80\":{}}", 0, "not UTF-8"},
        {"{\"\xf4\x90\x80\x80\":{}}", 0, "not UTF-8"},
        {"{\"a\nb\":{}}", 0, "control character"},
        {"{\"\\x\":{}}", 0, "unknown escape"},
        {"{\"\\u12g4\":{}}", 0, "four hexadecimal"},
        {"{\"\\ud800\":{}}", 0, "surrogate"},
        {"{\"\\ud800\\u0041\":{}}", 0, "surrogate"},
        {"{\"\\udc00\\ud800\":{}}", 0, "surrogate"},
        {"{\"a\\u0000b\":{}}", 0, "U+0000"},
        {"{\"t\":tru}", 0, "expected a value"},
        {"{\"t\":01}", 0, "a leading zero"},
        {"{\"t\":-}", 0, "without digits"},
        {"{\"t\":1.}", 0, "after the decimal point"},
        {"{\"t\":1e+}", 0, "exponent"},
        {"{\"t\":7}", 0, "'t' is not an object"},
        {T(""), 0, "'t' has no dtype"},
        {T("\"dtype\":\"F32\""), 0, "'t' has no shape"},
        {T("\"dtype\":\"F32\",\"shape\":[]"), 0, "'t' has no data_offsets"},
        {T(GOOD ",\"dtype\":\"F32\""), 8, "a duplicate field"},
        {T(GOOD ",\"stride\":1"), 8, "an unknown field"},
        {T("\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, "type 'F8_E4M3', which is not supported"},
        {T("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "type 'f32', which is not supported"},
        {T("\"dtype\":\"F32\\u001b[2J\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
         "type 'F32\\x1b[2J', which is not supported"},
        {T("\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "not a string"},
        {T("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, "shape of tensor 't' is not an array"},
        {T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "not an integer"},
        {T("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "not an integer"},
        {T("\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]"), 8, "not an integer"},
        {T("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, "not an integer"},
        {T("\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8, "not an integer"},
        {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8, "more than 6 axes"},
        {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
         "does not match its type and shape"},
        {T("\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]"), 8,
         "does not match its type and shape"},
        {T("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, "does not match its type and shape"},
        {T("\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "does not match its type and shape"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[null,8]"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":{\"a\":0,\"b\":8}"), 8, "not [begin, end]"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,99999999999999999999]"), 8, "not [begin, end]"},
        {T(GOOD), 7, "truncated or damaged"},
        {T(GOOD), 0, "truncated or damaged"},
        {T(GOOD), 9, "1 bytes follow the last"},
        {"{}", 3, "3 bytes follow the last"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12, "a gap"},
        {"{\"t\":{" GOOD "},\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9,
         "two tensors are named 't'"},
        {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "which overlaps"},
        {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "which overlaps"},
        {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9,13]}}", 13, "a gap"},
        {"{\"__metadata__\":1}", 0, "not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "not a string"},
        {"{\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"2\"}}", 0, "'a' twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice"},
    };
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk__safetensors *file;
        lk_status        status = open_text(cases[i].header, strlen(cases[i].header), cases[i].data, &file);
        CHECK(status == LK_EFORMAT, "%s gives %s", cases[i].header, lk_status_name(status));
        const char *text = lk_context_error(context);
        CHECK(strstr(text, cases[i].expected), "%s gives: %s", cases[i].header, text);
        CHECK(strncmp(text, "bad.safetensors: ", 17) == 0, "%s", text);
    }
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held, "a refused file leaks");
    lk__safetensors *file;
    CHECK(open_text(T(GOOD), strlen(T(GOOD)), 8, &file) == LK_OK, "the valid header is accepted");
    CHECK(open_text("{\"\\u0074\\ud83d\\ude00\" :\t{" GOOD "} }", strlen("{\"\\u0074\\ud83d\\ude00\" :\t{" GOOD "} }"),
                    8, &file) == LK_OK);
}

static void deep_nesting_is_refused_and_does_not_overflow_the_stack(void)
{
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP);
    REQUIRE(text);
    memset(text, '[', DEEP);
    memcpy(text, "{\"t\":", 5);
    lk__safetensors *file;
    CHECK(open_text(text, DEEP, 0, &file) == LK_EFORMAT && strstr(lk_context_error(context), "nested too deeply"));
    free(text);
}

static void invalid_header_lengths_are_refused(void)
{
    static const struct {
        uint64_t    header;
        size_t      length; /* of the whole file */
        const char *expected;
    } cases[] = {
        {0, 0, "as small as"},
        {0, 7, "as small as"},
        {0, 8, "a header of 0 bytes"},
        {1, 9, "of 1 bytes"},
        {3, 10, "truncated"},
        {UINT64_MAX, 100, "not a safetensors file"},
        {100000001, 100, "not a safetensors file"},
        {100000000, 100, "truncated"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char   *bytes = calloc(cases[i].length + 1, 1);
        lk__safetensors *file;
        memcpy(bytes, &cases[i].header, cases[i].length < 8 ? cases[i].length : 8);
        CHECK(lk__safetensors_open_memory(context, "short", bytes, cases[i].length, &file) == LK_EFORMAT, "%zu", i);
        CHECK(file == NULL && strstr(lk_context_error(context), cases[i].expected), "%s", lk_context_error(context));
        free(bytes);
    }
}

static void every_truncation_is_detected(void)
{
    unsigned char bytes[4096];
    REQUIRE(write_example(in_folder("t"), NULL) == LK_OK);
    size_t n = read_bytes(in_folder("t"), bytes, sizeof bytes);
    for (size_t length = 0; length < n; length++) {
        lk__safetensors *file;
        unsigned char   *part = malloc(length ? length : 1);
        memcpy(part, bytes, length);
        CHECK(lk__safetensors_open_memory(context, "cut", part, length, &file) == LK_EFORMAT, "%zu", length);
        free(part);
    }
    lk__safetensors *file;
    REQUIRE(lk__safetensors_open(context, in_folder("t"), &file) == LK_OK);
    const lk__safetensors_tensor *t = lk__safetensors_find(file, "mask");
    char                          out[3];
    REQUIRE(truncate(in_folder("t"), (off_t)n - 1) == 0);
    CHECK(lk__safetensors_read(file, t, 0, out, 3) == LK_EFORMAT, "a file that shrinks after it was opened");
    lk__safetensors_close(file);
    CHECK(lk__safetensors_open(context, in_folder("absent"), &file) == LK_ENOENT);
    CHECK(lk__safetensors_open(context, folder, &file) == LK_EFORMAT && strstr(lk_context_error(context), "directory"));
    CHECK(lk__safetensors_open(context, "/dev/null", &file) == LK_EFORMAT &&
          strstr(lk_context_error(context), "device"));
}

/* ---- allocation and disk failures ---- */

static int64_t allocations_left;

static void *failing_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (allocations_left-- <= 0) return NULL;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void plain_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static void the_nth_allocation_can_fail(void)
{
    lk_context       *poor;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.allocator = (lk_allocator){failing_alloc, plain_free, NULL};
    allocations_left = 100;
    REQUIRE(lk_context_create(&config, &poor) == LK_OK);
    size_t held = lk_context_memory(poor, LK_MEMORY_OTHER);
    REQUIRE(write_example(in_folder("n"), NULL) == LK_OK);
    int failed = 0;
    for (int n = 0;; n++) {
        lk__safetensors *file;
        allocations_left = n;
        lk_status status = lk__safetensors_open(poor, in_folder("n"), &file);
        if (status == LK_OK) {
            lk__safetensors_close(file);
            break;
        }
        CHECK(status == LK_ENOMEM && file == NULL, "%d %s", n, lk_status_name(status));
        CHECK(lk_context_memory(poor, LK_MEMORY_OTHER) == held, "%d leaks", n);
        failed++;
    }
    CHECK(failed >= 6, "%d", failed);
    lk_context_free(poor);
}

static int entries_of_folder(void)
{
    char command[600], line[32] = "";
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *pipe = popen(command, "r");
    REQUIRE(pipe && fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

static void a_full_disk_leaves_the_old_file(void)
{
    enum { BIG = 300000 };
    static char            zeros[BIG];
    lk__safetensors_tensor t = {.name = "big", .dtype = LK_U8, .rank = 1, .dims = {BIG}, .data = zeros};
    CHECK(lk__safetensors_write(context, "/dev/full", &(lk__safetensors_content){&t, 1, NULL, 0},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EIO);
    CHECK(strstr(lk_context_error(context), "/dev/full") && strstr(lk_context_error(context), strerror(ENOSPC)), "%s",
          lk_context_error(context));
    struct stat info;
    CHECK(stat("/dev/full", &info) == 0 && S_ISCHR(info.st_mode));

    const char *path = in_folder("kept");
    REQUIRE(write_example(path, NULL) == LK_OK);
    unsigned char before[4096], after[4096];
    size_t        n = read_bytes(path, before, sizeof before);
    int           entries = entries_of_folder();
    pid_t         child = fork();
    if (child == 0) {
        struct rlimit limit = {100000, 100000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        lk_status   status = lk__safetensors_write(context, path, &(lk__safetensors_content){&t, 1, NULL, 0},
                                                   (lk__safetensors_staging){staging, sizeof staging}, NULL);
        const char *text = lk_context_error(context);
        _exit(status == LK_EIO && strstr(text, path) && strstr(text, strerror(EFBIG)) ? 0 : 1);
    }
    int result;
    REQUIRE(child > 0 && waitpid(child, &result, 0) == child);
    CHECK(result == 0);
    CHECK(read_bytes(path, after, sizeof after) == n && memcmp(before, after, n) == 0);
    CHECK(entries_of_folder() == entries, "a temporary was left behind");

    CHECK(lk__safetensors_write(context, in_folder("no/such/folder"), &(lk__safetensors_content){&t, 1, NULL, 0},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EIO);
    CHECK(lk__safetensors_write(context, folder, &(lk__safetensors_content){&t, 1, NULL, 0},
                                (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_EINVAL,
          "over a directory");
}

/* ---- the reference library, if it is installed ---- */

static int python(const char *script)
{
    const char *path = in_folder("script.py");
    write_bytes(path, script, strlen(script));
    char command[1200];
    snprintf(command, sizeof command, "cd %s && python3 script.py", folder);
    return system(command);
}

static void the_reference_library_agrees_in_both_directions(void)
{
    if (system("python3 -c 'import numpy, safetensors.numpy' >/dev/null 2>&1") != 0) {
        printf("     (skipped: python3 has no safetensors; the stored header was compared)\n");
        return;
    }
    REQUIRE(write_example(in_folder("ours"), NULL) == LK_OK);
    CHECK(
        python(
            "import numpy as np\n"
            "from safetensors import safe_open\n"
            "from safetensors.numpy import load_file, save_file\n"
            "f = np.array([0.0, -1.5, 3.25, 1e-30, -0.0, 7.0], np.float32)\n"
            "want = {'mask': np.array([1, 0, 1], np.bool_), 'b.weight': f.reshape(2, 3),\n"
            "        'bn.num_batches_tracked': np.array(-9000000000, np.int64), 'a.weight': f[1:5].reshape(1, 2, 2),\n"
            "        'd': np.array(0.1, np.float64), 'empty': np.zeros((0, 4), np.float32),\n"
            "        'q\"\\u00e9\\n\\x01/\\\\': np.array([-1, 1 << 30], np.int32), 'u': np.array([1], np.uint8)}\n"
            "got = load_file('ours')\n"
            "assert set(got) == set(want), (set(got), set(want))\n"
            "for k in want:\n"
            "    assert got[k].dtype == want[k].dtype and got[k].shape == want[k].shape, k\n"
            "    assert got[k].tobytes() == want[k].tobytes(), k\n"
            "assert safe_open('ours', 'numpy').metadata() == {'format': 'pt'}\n"
            "save_file({k: v.copy() for k, v in want.items()}, 'theirs', metadata={'format': 'pt'})\n"
            "assert open('ours', 'rb').read() == open('theirs', 'rb').read()\n"
            "save_file({'h': np.array([1.5, -2], np.float16), 'i': np.array([-3], np.int8)}, 'half')\n") == 0);
    lk__safetensors *file;
    REQUIRE(lk__safetensors_open(context, in_folder("theirs"), &file) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk__safetensors_count(file) == 8);
    lk__safetensors_close(file);
    REQUIRE(lk__safetensors_open(context, in_folder("half"), &file) == LK_OK, "%s", lk_context_error(context));
    const lk__safetensors_tensor *h = lk__safetensors_find(file, "h"), *i = lk__safetensors_find(file, "i");
    unsigned char                 out[4];
    CHECK(h && h->dtype == LK_F16 && lk__safetensors_read(file, h, 0, out, 4) == LK_OK &&
          memcmp(out, "\x00\x3e\x00\xc0", 4) == 0);
    CHECK(i && i->dtype == LK_I8 && strcmp(lk__safetensors_type(i), "I8") == 0);
    lk__safetensors_close(file);
}

int main(void)
{
    REQUIRE(mkdtemp(folder) && lk_context_create(NULL, &context) == LK_OK);
    RUN(the_file_equals_the_reference_librarys);
    RUN(bytes_depend_on_the_contents_alone);
    RUN(written_tensors_are_read_back);
    RUN(many_tensors_are_sorted_and_found);
    RUN(invalid_tensors_are_refused);
    RUN(damaged_headers_give_a_clear_error);
    RUN(a_header_whose_length_looks_like_a_pickle_is_read);
    RUN(deep_nesting_is_refused_and_does_not_overflow_the_stack);
    RUN(invalid_header_lengths_are_refused);
    RUN(every_truncation_is_detected);
    RUN(the_nth_allocation_can_fail);
    RUN(a_full_disk_leaves_the_old_file);
    RUN(the_reference_library_agrees_in_both_directions);
    lk_context_free(context);
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
    return check_result();
}
