/* test_fingerprint.c - the number that tells whether a training set is the one that it was: the same for a copy,
 * another wherever a sample of a small set changes; a user's callbacks are not called for it. ctest: label quick */
#define _GNU_SOURCE
#include "data/dataset.h"
#include "data/image/decode.h"
#include "image_files.h"

static lk_context *context;

static uint64_t fingerprint_of(const lk_dataset *d)
{
    uint64_t value = 0;
    CHECK_OK(context, lk__dataset_fingerprint(d, &value));
    return value;
}

static uint64_t open_and_take(const char *name, const lk_open_options *options)
{
    lk_dataset *d = NULL;
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, options, &d));
    uint64_t value = d ? fingerprint_of(d) : 0;
    lk_dataset_free(d);
    return value;
}

/* ---- arrays ---- */

enum { ROWS = 37, WIDTH = 5 };

static uint64_t of_arrays(const float *values, const int32_t *labels, int64_t count)
{
    lk_field                 fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {WIDTH}},
                                         {.name = "label", .dtype = LK_I32, .classes = 3}};
    lk_dataset              *d = NULL;
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    config.count = count;
    config.fields = fields;
    config.fields_count = 2;
    config.data = (const void *[]){values, labels};
    CHECK_OK(context, lk_dataset_from_arrays(context, &config, &d));
    uint64_t value = fingerprint_of(d);
    lk_dataset_free(d);
    return value;
}

static void every_value_of_an_array_counts(void)
{
    static float   values[ROWS * WIDTH];
    static int32_t labels[ROWS];
    for (int i = 0; i < ROWS * WIDTH; i++) values[i] = (float)i * 0.25f;
    for (int i = 0; i < ROWS; i++) labels[i] = i % 3;
    uint64_t first = of_arrays(values, labels, ROWS);
    CHECK(first != 0 && of_arrays(values, labels, ROWS) == first);
    CHECK(of_arrays(values, labels, ROWS - 1) != first);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        values[i] += 0.125f;
        CHECK(of_arrays(values, labels, ROWS) != first);
        values[i] -= 0.125f;
    }
    for (int i = 0; i < ROWS; i++) {
        labels[i] = (labels[i] + 1) % 3;
        CHECK(of_arrays(values, labels, ROWS) != first);
        labels[i] = (labels[i] + 2) % 3;
    }
    CHECK(of_arrays(values, labels, ROWS) == first);
}

/* ---- a text, in windows at every offset that are more than is read of a data set ---- */

enum { TOKENS = 40300, CONTEXT = 256 };

static void every_token_of_a_text_counts(void)
{
    static unsigned char bytes[2 * TOKENS];
    char                 name[600];
    lk_open_options      options = LK_OPEN_OPTIONS_INIT;
    options.context = CONTEXT;
    snprintf(name, sizeof name, "tokens:%s", scratch("text.u16"));
    for (int i = 0; i < TOKENS; i++) bytes[2 * i] = (unsigned char)(i * 7 % 251);
    write_file(scratch("text.u16"), bytes, sizeof bytes);
    uint64_t first = open_and_take(name, &options);
    CHECK(first != 0 && open_and_take(name, &options) == first);
    for (int i = 0, at; i < 60; i++) {
        at = i == 0 ? 0 : i == 1 ? TOKENS - 1 : i * 997 % TOKENS;
        bytes[2 * at]++;
        write_file(scratch("text.u16"), bytes, sizeof bytes);
        CHECK(open_and_take(name, &options) != first);
        bytes[2 * at]--;
    }
}

/* ---- folders of images, and callbacks ---- */

static void a_folder_is_known_by_names_and_sizes(void)
{
    static const char *const names[] = {"a/1.png", "a/2.png", "b/1.png"};
    char                     here[600], there[600];
    if (!lk__png_built()) return;
    snprintf(here, sizeof here, "folder:%s", scratch("here"));
    snprintf(there, sizeof there, "folder:%s", scratch("there"));
    for (unsigned i = 0; i < 3; i++) {
        write_image(scratch("here"), names[i], 3, 5, 7, i);
        write_image(scratch("there"), names[i], 3, 5, 7, i);
    }
    uint64_t first = open_and_take(here, NULL);
    CHECK(first != 0 && open_and_take(there, NULL) == first);
    FILE *file = fopen(scratch("there/b/1.png"), "ab"); /* a decoder ignores what follows the image */
    CHECK(file && fputc(0, file) == 0 && fclose(file) == 0);
    CHECK(open_and_take(there, NULL) != first);
    write_image(scratch("here"), "b/2.png", 3, 5, 7, 9);
    CHECK(open_and_take(here, NULL) != first);
}

static lk_status get_sample(void *user, int64_t index, void *const *fields)
{
    (void)index;
    ++*(int *)user;
    *(float *)fields[0] = 1;
    return LK_OK;
}

static void callbacks_are_not_called(void)
{
    int                         calls = 0;
    lk_dataset                 *d = NULL;
    lk_field                    field = {.name = "features", .dtype = LK_F32};
    lk_dataset_callbacks_config config = LK_DATASET_CALLBACKS_CONFIG_INIT;
    config.count = 10;
    config.fields = &field;
    config.fields_count = 1;
    config.get = get_sample;
    config.user = &calls;
    CHECK_OK(context, lk_dataset_from_callbacks(context, &config, &d));
    CHECK(fingerprint_of(d) == 0 && calls == 0);
    lk_dataset_free(d);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    CHECK(lk_context_create(&config, &context) == LK_OK);
    make_scratch();
    RUN(every_value_of_an_array_counts);
    RUN(every_token_of_a_text_counts);
    RUN(a_folder_is_known_by_names_and_sizes);
    RUN(callbacks_are_not_called);
    lk_context_free(context);
    return 0;
}
