/* test_data_arrays.c - data sets from NumPy and safetensors files: files that NumPy and safetensors wrote
 * (test/golden/arrays) give their elements, by the rules of docs/data.md for names, types and shapes; what is damaged
 * or not supported is refused by name. */
#define _GNU_SOURCE
#include "test_data.h"

#include "data/array/array.h"

static lk_context *context;

/* The elements of the stored arrays; see make_arrays.py. */
static double whole(int64_t i) { return (double)(i * 7 % 13); }
static double real(int64_t i) { return (double)(i * 7 % 13) / 4 - 1; }

static const char *golden(const char *name)
{
    static char paths[4][1024];
    static int  next;
    char       *path = paths[next++ % 4];
    snprintf(path, 1024, "%s/test/golden/arrays/%s", LK_SOURCE_DIR, name);
    return path;
}

static const char *pair(const char *x, const char *y)
{
    static char name[4096];
    snprintf(name, sizeof name, "npy:%s%s%s", golden(x), y ? "," : "", y ? golden(y) : "");
    return name;
}

static const char *of(const char *kind, const char *file)
{
    static char name[4096];
    snprintf(name, sizeof name, "%s:%s", kind, golden(file));
    return name;
}

static lk_dataset *open_set(const char *name, lk_split split, const lk_open_options *options)
{
    lk_dataset *d, *probed;
    CHECK_OK(context, lk_dataset_open(context, name, split, options, &d));
    /* A probe tells the same. */
    CHECK_OK(context, lk_dataset_probe(context, name, split, options, &probed));
    CHECK(lk_dataset_count(probed) == lk_dataset_count(d) && lk_dataset_fields(probed) == lk_dataset_fields(d));
    for (int i = 0; i < lk_dataset_fields(d); i++) {
        const lk_field *a = lk_dataset_field(d, i), *b = lk_dataset_field(probed, i);
        CHECK(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank && a->classes == b->classes);
        CHECK(memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0);
    }
    lk_dataset_free(probed);
    return d;
}

static double element(lk_dtype type, const void *data, int64_t i)
{
    switch (type) {
    case LK_U8: return ((const unsigned char *)data)[i];
    case LK_I32: return ((const int32_t *)data)[i];
    case LK_I64: return (double)((const int64_t *)data)[i];
    default: return (double)((const float *)data)[i];
    }
}

static void check_field(const lk_dataset *d, const char *name, lk_dtype type, int rank, int64_t d0, int64_t d1,
                        int64_t d2, double (*value)(int64_t))
{
    const lk_field *f = lk_dataset_find(d, name);
    int64_t         dims[] = {d0, d1, d2}, stored[64];
    void           *to[LK_MAX_FIELDS] = {0};
    CHECK(f && f->dtype == type && f->rank == rank);
    for (int i = 0; i < rank; i++) CHECK(f->dims[i] == dims[i]);
    int64_t n = lk_field_elements(f);
    CHECK((size_t)n * sizeof *stored <= sizeof stored * 8);
    char *bytes = malloc(lk_field_bytes(f));
    for (int i = 0; i < lk_dataset_fields(d); i++)
        if (lk_dataset_field(d, i) == f) to[i] = bytes;
    for (int64_t row = 0; row < lk_dataset_count(d); row++) {
        CHECK_OK(context, lk_dataset_get(d, row, to));
        for (int64_t i = 0; i < n; i++) CHECK(element(type, bytes, i) == value(row * n + i));
    }
    free(bytes);
}

static double odd(int64_t i) { return (double)(i * 7 % 13 % 2); }

static void every_number_type_of_numpy_is_read(void)
{
    static const struct {
        const char *file;
        lk_dtype    type;
        double (*value)(int64_t);
    } cases[] = {{"u1.npy", LK_U8, whole},  {"i1.npy", LK_I32, whole}, {"u2.npy", LK_I32, whole},
                 {"i2.npy", LK_I32, whole}, {"u4.npy", LK_I64, whole}, {"i4.npy", LK_I32, whole},
                 {"i8.npy", LK_I64, whole}, {"f2.npy", LK_F32, real},  {"f4.npy", LK_F32, real},
                 {"f8.npy", LK_F32, real},  {"b1.npy", LK_F32, odd},   {"v2.npy", LK_F32, real},
                 {"v3.npy", LK_F32, real}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_dataset *d = open_set(pair(cases[i].file, "y.npy"), LK_SPLIT_TRAIN, NULL);
        CHECK(lk_dataset_count(d) == 5 && lk_dataset_fields(d) == 2 && strcmp(lk_dataset_name(d), "npy") == 0);
        CHECK(lk_dataset_field(d, 0) == lk_dataset_find(d, "features"));
        check_field(d, "features", cases[i].type, 1, 3, 0, 0, cases[i].value);
        check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
        CHECK(lk_dataset_find(d, "label")->classes == 9);
        lk_dataset_free(d);
    }
}

static void arrays_of_the_fields_type_are_not_copied(void)
{
    lk_dataset *d = open_set(pair("f4.npy", "y.npy"), LK_SPLIT_TRAIN, NULL);
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 5 * sizeof(int32_t)); /* the labels were int64 */
    lk_dataset_free(d);
    d = open_set(pair("f8.npy", NULL), LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_fields(d) == 1 && lk_context_memory(context, LK_MEMORY_DATA) == 15 * sizeof(float));
    lk_dataset_free(d);
}

static double channels_first(int64_t i) /* of (5, 4, 6, 3) as (5, 3, 4, 6) */
{
    int64_t x = i % 6, y = i / 6 % 4, c = i / 24 % 3, n = i / 72;
    return whole(((n * 4 + y) * 6 + x) * 3 + c);
}

static void bytes_of_three_or_four_axes_are_images(void)
{
    lk_dataset *d = open_set(pair("grey.npy", "y.npy"), LK_SPLIT_TRAIN, NULL);
    check_field(d, "image", LK_U8, 3, 1, 4, 6, whole);
    lk_dataset_free(d);
    d = open_set(pair("first.npy", "y.npy"), LK_SPLIT_TRAIN, NULL);
    check_field(d, "image", LK_U8, 3, 3, 4, 6, whole);
    lk_dataset_free(d);
    d = open_set(pair("last.npy", "y.npy"), LK_SPLIT_TRAIN, NULL);
    check_field(d, "image", LK_U8, 3, 3, 4, 6, channels_first);
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_open(context, pair("both.npy", "y.npy"), LK_SPLIT_TRAIN, NULL, &d), LK_EFORMAT,
                "both.npy", "(5, 3, 4, 3)", "the second or the last axis", "np.float32");
}

static void labels_are_classes_or_targets(void)
{
    lk_open_options regression = LK_OPEN_OPTIONS_INIT;
    regression.regression = true;
    static const char *const classes[] = {"y.npy", "y_f8.npy", "y_column.npy"};
    for (int i = 0; i < 3; i++) {
        lk_dataset *d = open_set(pair("f4.npy", classes[i]), LK_SPLIT_TRAIN, NULL);
        check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
        lk_dataset_free(d);
        d = open_set(pair("f4.npy", classes[i]), LK_SPLIT_TRAIN, &regression);
        check_field(d, "target", LK_F32, 0, 0, 0, 0, whole);
        CHECK(!lk_dataset_find(d, "label"));
        lk_dataset_free(d);
    }
    lk_dataset *d = open_set(pair("f4.npy", "y_fraction.npy"), LK_SPLIT_TRAIN, NULL);
    check_field(d, "target", LK_F32, 0, 0, 0, 0, real);
    lk_dataset_free(d);
    d = open_set(pair("f4.npy", "y_multi.npy"), LK_SPLIT_TRAIN, NULL); /* several numbers for each sample */
    check_field(d, "target", LK_F32, 1, 3, 0, 0, odd);
    lk_dataset_free(d);
}

static void archives_give_a_field_for_each_array(void)
{
    static const char *const files[] = {"stored.npz", "deflated.npz", "descriptors.npz"};
    for (int i = 0; i < 3; i++) {
        lk_dataset *d = open_set(of("npz", files[i]), LK_SPLIT_TRAIN, NULL);
        CHECK(lk_dataset_count(d) == 5 && lk_dataset_fields(d) == 3);
        CHECK(strcmp(lk_dataset_field(d, 0)->name, "image") == 0 && strcmp(lk_dataset_field(d, 1)->name, "label") == 0);
        check_field(d, "image", LK_U8, 3, 3, 4, 6, channels_first);
        check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
        check_field(d, "weight", LK_F32, 0, 0, 0, 0, real);
        lk_dataset_free(d);
        CHECK(lk_dataset_open(context, of("npz", files[i]), LK_SPLIT_TEST, NULL, &d) == LK_END && !d);
    }
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    options.label = "weight";
    lk_dataset *d = open_set(of("npz", "stored.npz"), LK_SPLIT_TRAIN, &options);
    check_field(d, "target", LK_F32, 0, 0, 0, 0, real);
    check_field(d, "y", LK_I64, 0, 0, 0, 0, whole);
    lk_dataset_free(d);
    options.label = "colour";
    CHECK_FAILS(context, lk_dataset_open(context, of("npz", "stored.npz"), LK_SPLIT_TRAIN, &options, &d), LK_EINVAL,
                "no array 'colour'");
}

static void names_tell_training_from_test(void)
{
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    lk_dataset     *d = open_set(of("npz", "keras.npz"), LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_count(d) == 5 && lk_dataset_fields(d) == 2);
    check_field(d, "image", LK_U8, 3, 1, 4, 6, whole);
    check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
    lk_dataset_free(d);
    d = open_set(of("npz", "keras.npz"), LK_SPLIT_TEST, NULL);
    CHECK(lk_dataset_count(d) == 2);
    check_field(d, "image", LK_U8, 3, 1, 4, 6, whole);
    lk_dataset_free(d);
    options.holdout = 0.5;
    CHECK_FAILS(context, lk_dataset_open(context, of("npz", "keras.npz"), LK_SPLIT_TEST, &options, &d), LK_EINVAL,
                "has its own test set");
}

static void tensors_give_a_field_each(void)
{
    lk_dataset *d = open_set(of("safetensors", "data.safetensors"), LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_count(d) == 5 && lk_dataset_fields(d) == 4);
    check_field(d, "image", LK_U8, 3, 3, 4, 6, whole);
    check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
    check_field(d, "tokens", LK_I32, 1, 7, 0, 0, whole);
    check_field(d, "weight", LK_F32, 0, 0, 0, 0, real);
    lk_dataset_free(d);
}

/* The two parts are disjoint and complete, and stay the same. */
static void held_out_rows_are_the_test_set(void)
{
    enum { ROWS = 1000 };
    static float   x[ROWS];
    unsigned char *header;
    size_t         size;
    char           name[1024];
    for (int i = 0; i < ROWS; i++) x[i] = (float)i;
    header = read_whole(golden("y_fraction.npy"), &size); /* f4 (5): 128 bytes, then the data */
    CHECK(size == 148);
    unsigned char *file = malloc(128 + sizeof x);
    memcpy(file, header, 128);
    char *shape = memmem(file, 128, "(5,), }", 7);
    CHECK(shape);
    memcpy(shape, "(1000,)}", 8);
    memcpy(file + 128, x, sizeof x);
    write_file(scratch("x.npy"), file, 128 + sizeof x);
    snprintf(name, sizeof name, "npy:%s", scratch("x.npy"));
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    options.holdout = 0.25;
    lk_dataset *train = open_set(name, LK_SPLIT_TRAIN, &options), *test = open_set(name, LK_SPLIT_TEST, &options);
    int         seen[ROWS] = {0};
    CHECK(lk_dataset_count(train) + lk_dataset_count(test) == ROWS);
    CHECK(lk_dataset_count(test) > 200 && lk_dataset_count(test) < 300);
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < lk_dataset_count(part ? test : train); i++) {
            float v;
            void *to[] = {&v};
            CHECK_OK(context, lk_dataset_get(part ? test : train, i, to));
            seen[(int)v]++;
        }
    for (int i = 0; i < ROWS; i++) CHECK(seen[i] == 1);
    lk_dataset_free(train);
    lk_dataset_free(test);
    free(file), free(header);
}

#define REFUSED(name, status, ...)                                                                      \
    do {                                                                                                \
        lk_dataset *none_ = NULL;                                                                       \
        CHECK_FAILS(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &none_), status, __VA_ARGS__); \
        CHECK(!none_);                                                                                  \
    } while (0)

static void what_is_not_supported_is_refused_by_name(void)
{
    REFUSED(pair("fortran.npy", "y.npy"), LK_EFORMAT, "fortran.npy", "Fortran order", "np.ascontiguousarray");
    REFUSED(pair("big.npy", "y.npy"), LK_EFORMAT, "big-endian", "newbyteorder");
    REFUSED(pair("objects.npy", "y.npy"), LK_EFORMAT, "Python objects", "allow_pickle=False");
    REFUSED(pair("f4.npy", "strings.npy"), LK_EFORMAT, "strings.npy", "strings", "return_inverse");
    REFUSED(pair("records.npy", "y.npy"), LK_EFORMAT, "structured");
    REFUSED(pair("complex.npy", "y.npy"), LK_EFORMAT, "complex");
    REFUSED(pair("scalar.npy", "y.npy"), LK_EFORMAT, "single number");
    REFUSED(pair("empty.npy", "y.npy"), LK_EFORMAT, "no elements");
    REFUSED(pair("nan.npy", "y.npy"), LK_EFORMAT, "nan.npy: row 3", "NaN", "index 1");
    REFUSED(pair("infinite.npy", "y.npy"), LK_EFORMAT, "row 2", "infinite as float32");
    REFUSED("npy:", LK_EINVAL, "npy:X.npy,Y.npy");
    REFUSED("npy:a,b,c", LK_EINVAL, "npy:X.npy,Y.npy");
    REFUSED("npy:/nowhere.npy", LK_ENOENT, "/nowhere.npy");
    REFUSED(of("npz", "f4.npy"), LK_EFORMAT, "not a zip archive");
    REFUSED(of("safetensors", "stored.npz"), LK_EFORMAT, "zip archive");
    /* one long axis: both orders */
    lk_dataset *d = open_set(pair("fortran_column.npy", "y.npy"), LK_SPLIT_TRAIN, NULL);
    check_field(d, "features", LK_F32, 1, 1, 0, 0, real);
    lk_dataset_free(d);
    char name[4096];
    write_file(scratch("short.npy"), "\x93NUMPY", 6);
    snprintf(name, sizeof name, "npy:%s,%s", golden("grey.npy"), scratch("short.npy"));
    REFUSED(name, LK_EFORMAT, "short.npy", "fewer than 10 bytes");
    snprintf(name, sizeof name, "npy:%s", LK_SOURCE_DIR);
    REFUSED(name, LK_EFORMAT, "a directory");
}

static void arrays_of_other_lengths_are_refused(void)
{
    unsigned char *bytes;
    size_t         size;
    char           name[4096];
    bytes = read_whole(golden("y.npy"), &size); /* i8 (5) */
    char *shape = memmem(bytes, size, "(5,)", 4);
    CHECK(shape);
    memcpy(shape, "(4,)", 4);
    write_file(scratch("four.npy"), bytes, size - 8);
    snprintf(name, sizeof name, "npy:%s,%s", golden("f4.npy"), scratch("four.npy"));
    REFUSED(name, LK_EFORMAT, "f4.npy has 5 rows", "four.npy has 4");
    memcpy(bytes + 128 + 16, (int64_t[]){-3}, 8);
    memcpy(shape, "(5,)", 4);
    write_file(scratch("negative.npy"), bytes, size);
    snprintf(name, sizeof name, "npy:%s,%s", golden("f4.npy"), scratch("negative.npy"));
    REFUSED(name, LK_EFORMAT, "negative.npy: row 2", "start at 0");
    memset(bytes + 128, 0, size - 128);
    write_file(scratch("zeros.npy"), bytes, size);
    snprintf(name, sizeof name, "npy:%s,%s", golden("f4.npy"), scratch("zeros.npy"));
    REFUSED(name, LK_EFORMAT, "only the label 0", "two classes");
    free(bytes);
}

/* Every truncation, and every byte changed, is refused or read; never a crash, never a leak. */
static void damaged_files_are_refused(void)
{
    static const char *const files[] = {"f8.npy", "stored.npz", "deflated.npz", "descriptors.npz", "data.safetensors"};
    for (int f = 0; f < 5; f++) {
        size_t         size;
        unsigned char *bytes = read_whole(golden(files[f]), &size);
        char           name[1024];
        const char    *dot = strrchr(files[f], '.') + 1;
        lk_dataset    *d;
        snprintf(name, sizeof name, "%s:%s", dot, scratch("damaged"));
        for (size_t n = 0; n < size; n++) {
            write_file(scratch("damaged"), bytes, n);
            CHECK(lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d) == LK_EFORMAT && !d);
            CHECK(strstr(lk_context_error(context), "damaged"));
        }
        for (size_t n = 0; n < size; n++) {
            bytes[n] ^= 0x55;
            write_file(scratch("damaged"), bytes, size);
            lk_status status = lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d);
            CHECK(status == LK_OK || status == LK_EFORMAT);
            lk_dataset_free(d);
            bytes[n] ^= 0x55;
        }
        free(bytes);
        CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    }
}

/* The directory of stored.npz in zip64's form (APPNOTE 4.3.14 to 4.3.16, 4.5.3): sizes and offsets of 64 bits. */
static void directories_of_zip64_are_read(void)
{
    size_t         size, at, used;
    unsigned char *bytes = read_whole(golden("stored.npz"), &size), *out = calloc(1, size + 1024);
    unsigned char *end = bytes + size - 22;
    uint32_t       directory, directory_bytes;
    char           name[1024];
    CHECK(memcmp(end, "PK\5\6", 4) == 0);
    memcpy(&directory_bytes, end + 12, 4);
    memcpy(&directory, end + 16, 4);
    memcpy(out, bytes, directory);
    used = directory;
    for (at = directory; at < directory + directory_bytes;) {
        uint16_t name_bytes, extra_bytes, sixteen = 28;
        uint32_t stored, plain, offset, all_ones = 0xffffffff;
        memcpy(&stored, bytes + at + 20, 4), memcpy(&plain, bytes + at + 24, 4), memcpy(&offset, bytes + at + 42, 4);
        memcpy(&name_bytes, bytes + at + 28, 2), memcpy(&extra_bytes, bytes + at + 30, 2);
        unsigned char *to = out + used;
        memcpy(to, bytes + at, 46 + name_bytes);
        memcpy(to + 20, &all_ones, 4), memcpy(to + 24, &all_ones, 4), memcpy(to + 42, &all_ones, 4);
        memcpy(to + 30, &sixteen, 2);
        uint16_t extra[2] = {1, 24};
        uint64_t values[3] = {plain, stored, offset};
        memcpy(to + 46 + name_bytes, extra, 4), memcpy(to + 50 + name_bytes, values, 24);
        used += 46 + name_bytes + 28u;
        at += 46u + name_bytes + extra_bytes;
    }
    uint64_t end64[7] = {0, 44, 0, 0, 3, 3, used - directory}, start = directory, locator_at = used;
    memcpy(out + used, "PK\6\6", 4), memcpy(out + used + 4, &end64[1], 8);
    memcpy(out + used + 24, &end64[4], 8), memcpy(out + used + 32, &end64[5], 8);
    memcpy(out + used + 40, &end64[6], 8), memcpy(out + used + 48, &start, 8);
    used += 56;
    memcpy(out + used, "PK\6\7", 4), memcpy(out + used + 8, &locator_at, 8), out[used + 16] = 1;
    used += 20;
    memcpy(out + used, end, 22);
    memset(out + used + 8, 0xff, 12);
    used += 22;
    write_file(scratch("zip64.npz"), out, used);
    snprintf(name, sizeof name, "npz:%s", scratch("zip64.npz"));
    lk_dataset *d = open_set(name, LK_SPLIT_TRAIN, NULL);
    check_field(d, "label", LK_I32, 0, 0, 0, 0, whole);
    lk_dataset_free(d);
    free(bytes), free(out);
}

static lk_status open_once(lk_context *limited)
{
    static const char *const files[] = {"npz", "deflated.npz", "npz", "stored.npz", "safetensors", "data.safetensors"};
    for (int i = 0; i < 6; i += 2) {
        lk_dataset *d;
        lk_status   status = lk_dataset_open(limited, of(files[i], files[i + 1]), LK_SPLIT_TRAIN, NULL, &d);
        lk_dataset_free(d);
        if (status < 0) return status;
    }
    return LK_OK;
}

static void each_failed_allocation_is_reported(void) { CHECK(fail_each_allocation(open_once) > 10); }

int main(void)
{
    make_scratch();
    context = make_context();
    RUN(every_number_type_of_numpy_is_read);
    RUN(arrays_of_the_fields_type_are_not_copied);
    RUN(bytes_of_three_or_four_axes_are_images);
    RUN(labels_are_classes_or_targets);
    RUN(archives_give_a_field_for_each_array);
    RUN(names_tell_training_from_test);
    RUN(tensors_give_a_field_each);
    RUN(held_out_rows_are_the_test_set);
    RUN(what_is_not_supported_is_refused_by_name);
    RUN(arrays_of_other_lengths_are_refused);
    RUN(damaged_files_are_refused);
    RUN(directories_of_zip64_are_read);
    RUN(each_failed_allocation_is_reported);
    free_context(context);
    return 0;
}
