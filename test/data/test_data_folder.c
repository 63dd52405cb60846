/* test_data_folder.c - folders of images: which files, in which order and split; sizes and channels; broken files; the
 * cache; memory. ctest: label threaded */
#define _GNU_SOURCE
#include "data/image/decode.h"
#include "image_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

static lk_context *context;
static char        logged[16384];

static void keep_log(void *user, lk_log_level level, const char *text)
{
    size_t used = strlen(logged);
    (void)user, (void)level;
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

static const char *spec(const char *name)
{
    static char texts[4][600];
    static int  next;
    char       *text = texts[next++ % 4];
    snprintf(text, 600, "folder:%s", scratch(name));
    return text;
}

static const lk_open_options defaults = LK_OPEN_OPTIONS_INIT;

static lk_dataset *open_folder(const char *name, lk_split split, const lk_open_options *options)
{
    lk_dataset *d = NULL;
    CHECK_OK(context, lk_dataset_open(context, spec(name), split, options, &d));
    return d;
}

static lk_status try_open(const char *name, lk_split split, const lk_open_options *options)
{
    lk_dataset *d = (lk_dataset *)1;
    lk_status   status = lk_dataset_open(context, spec(name), split, options, &d);
    CHECK((status == LK_OK) == (d != NULL));
    if (d) lk_dataset_free(d);
    lk_dataset *probed = NULL;
    lk_status   again = lk_dataset_probe(context, spec(name), split, options, &probed);
    CHECK(again == status || (again == LK_OK && status == LK_EFORMAT)); /* a body shows only when it is decoded */
    lk_dataset_free(probed);
    return lk_dataset_open(context, spec(name), split, options, &d); /* for its message */
}

static const char *relative(const lk_dataset *d, const char *root, int64_t i)
{
    const char *name = lk_dataset_sample_name(d, i), *base = scratch(root);
    CHECK(strncmp(name, base, strlen(base)) == 0);
    return name + strlen(base) + 1;
}

/* Sample i is image `seed` of write_image. */
static bool holds_image(const lk_dataset *d, int64_t i, unsigned seed)
{
    size_t         bytes = lk_field_bytes(lk_dataset_field(d, 0));
    unsigned char *image = malloc(bytes);
    int32_t        label;
    void          *fields[] = {image, &label};
    CHECK_OK(context, lk_dataset_get(d, i, fields));
    bool same = true;
    for (size_t k = 0; k < bytes; k++) same = same && image[k] == pixel_of(seed, k);
    free(image);
    return same;
}

static int32_t label_of(const lk_dataset *d, int64_t i)
{
    int32_t label = -1;
    void   *fields[] = {NULL, &label};
    CHECK_OK(context, lk_dataset_get(d, i, fields));
    return label;
}

/* The order is torchvision's, as ImageFolder listed this tree; hidden files are its only difference. */
static void files_are_in_the_order_of_image_folder(void)
{
    static const char *const given[] = {"b/2.png",       "b/10.png",         "b/1.PNG",   "b/sub/0.png",
                                        "b/sub-a/9.png", "b/sub/deep/z.png", "b/Zed.png", "a/x.png",
                                        "a/y.JPG.png",   "c/\xc3\xa9.png",   "c/~.png",   "c/A.png"};
    static const char *const wanted[] = {"a/x.png",          "a/y.JPG.png", "b/1.PNG",     "b/10.png",
                                         "b/2.png",          "b/Zed.png",   "b/sub/0.png", "b/sub-a/9.png",
                                         "b/sub/deep/z.png", "c/A.png",     "c/~.png",     "c/\xc3\xa9.png"};
    for (unsigned i = 0; i < 12; i++) write_image(scratch("order"), given[i], 3, 5, 7, i);
    write_image(scratch("order"), "b/.hidden.png", 3, 9, 9, 0);
    write_image(scratch("order"), ".git/x.png", 3, 9, 9, 0);
    write_file(scratch("order/b/notes.txt"), "x", 1);
    write_file(scratch("order/README"), "x", 1);
    CHECK(symlink("sub", scratch("order/b/t-link")) == 0); /* links are followed */
    logged[0] = 0;
    lk_dataset *d = open_folder("order", LK_SPLIT_TRAIN, &defaults);
    CHECK(strstr(logged, "2 files that are not named"));
    CHECK(lk_dataset_count(d) == 14 && strcmp(lk_dataset_name(d), "folder") == 0);
    const lk_field *image = lk_dataset_find(d, "image"), *label = lk_dataset_find(d, "label");
    CHECK(image && image->rank == 3 && image->dims[0] == 3 && image->dims[1] == 5 && image->dims[2] == 7 &&
          image->dtype == LK_U8);
    CHECK(label && label->classes == 3 && strcmp(lk_field_class_name(label, 2), "c") == 0);
    int64_t k = 0;
    for (int64_t i = 0; i < 12; i++, k++) {
        if (i == 9) { /* the link's files are after those of b/sub/deep */
            CHECK(strcmp(relative(d, "order", k), "b/t-link/0.png") == 0);
            CHECK(strcmp(relative(d, "order", k + 1), "b/t-link/deep/z.png") == 0);
            k += 2;
        }
        CHECK(strcmp(relative(d, "order", k), wanted[i]) == 0);
        CHECK(label_of(d, k) == wanted[i][0] - 'a');
        unsigned seed = 0;
        while (strcmp(given[seed], wanted[i]) != 0) seed++;
        CHECK(holds_image(d, k, seed));
    }
    lk_dataset_free(d);
    lk_dataset *probed = NULL;
    CHECK_OK(context, lk_dataset_probe(context, spec("order/"), LK_SPLIT_TRAIN, NULL, &probed));
    unsigned char room[3 * 5 * 7];
    int32_t       number;
    CHECK(lk_dataset_count(probed) == 14);
    CHECK_FAILS(context, lk_dataset_get(probed, 0, (void *[]){room, &number}), LK_EINVAL, "probed");
    lk_dataset_free(probed);
    CHECK(symlink("../b", scratch("order/b/loop")) == 0);
    CHECK_FAILS(context, try_open("order", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "loop", "link");
    CHECK(unlink(scratch("order/b/loop")) == 0);
}

static void splits_are_directories_or_held_out(void)
{
    lk_open_options hold = defaults;
    for (unsigned i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "train/%c/%u.png", "xy"[i % 2], i);
        write_image(scratch("split"), name, 1, 4, 4, i);
    }
    write_image(scratch("split"), "val/y/9.png", 1, 4, 4, 9);
    lk_dataset *d = open_folder("split", LK_SPLIT_TEST, NULL);
    CHECK(lk_dataset_count(d) == 1 && label_of(d, 0) == 1 && holds_image(d, 0, 9));
    lk_dataset_free(d);
    write_image(scratch("split"), "test/x/8.png", 1, 4, 4, 8); /* has precedence */
    d = open_folder("split", LK_SPLIT_TEST, NULL);
    CHECK(lk_dataset_count(d) == 1 && label_of(d, 0) == 0 && holds_image(d, 0, 8));
    lk_dataset_free(d);
    d = open_folder("split", LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_count(d) == 4 && holds_image(d, 1, 2));
    lk_dataset_free(d);
    hold.holdout = 0.5;
    CHECK_FAILS(context, try_open("split", LK_SPLIT_TRAIN, &hold), LK_EINVAL, "split/test", "hold-out");
    write_image(scratch("split"), "test/zebra/8.png", 1, 4, 4, 8);
    CHECK_FAILS(context, try_open("split", LK_SPLIT_TEST, NULL), LK_EINVAL, "split/test: 'zebra' is not a class",
                "expected one of 'x', 'y'");
    lk_open_options skip = LK_OPEN_OPTIONS_INIT;
    skip.skip_unknown = true;
    logged[0] = 0;
    d = open_folder("split", LK_SPLIT_TEST, &skip);
    CHECK(lk_dataset_count(d) == 1 && label_of(d, 0) == 0 && lk_dataset_find(d, "label")->classes == 2);
    CHECK(strstr(logged, "1 images in 1 subdirectory that the training data does not have ('zebra') are left out"));
    lk_dataset_free(d);
    /* A class may be called train. */
    write_image(scratch("vehicles"), "train/1.png", 1, 4, 4, 1);
    write_image(scratch("vehicles"), "car/1.png", 1, 4, 4, 2);
    d = open_folder("vehicles", LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_count(d) == 2 && strcmp(lk_field_class_name(lk_dataset_find(d, "label"), 1), "train") == 0);
    lk_dataset_free(d);
    CHECK(lk_dataset_open(context, spec("vehicles"), LK_SPLIT_TEST, NULL, &d) == LK_END && !d);
    /* train/ alone is the directory of the classes. */
    write_image(scratch("alone"), "train/p/1.png", 1, 4, 4, 1);
    write_image(scratch("alone"), "train/q/1.png", 1, 4, 4, 2);
    d = open_folder("alone", LK_SPLIT_TRAIN, NULL);
    CHECK(lk_dataset_count(d) == 2 && strcmp(lk_field_class_name(lk_dataset_find(d, "label"), 1), "q") == 0);
    lk_dataset_free(d);
    CHECK(lk_dataset_open(context, spec("alone"), LK_SPLIT_TEST, NULL, &d) == LK_END && !d);
}

static bool has_sample(const lk_dataset *d, const char *root, const char *name)
{
    for (int64_t i = 0; i < lk_dataset_count(d); i++)
        if (strcmp(relative(d, root, i), name) == 0) return true;
    return false;
}

/* A folder for a model of the classes cat, dog and emu, of which it has some. */
static void classes_are_those_of_training(void)
{
    static const char *const names[] = {"cat", "dog", "emu"};
    static const lk_field    trained[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {1, 4, 4}},
                                          {.name = "label", .dtype = LK_I32, .classes = 3, .class_names = names}};
    lk_open_options          options = LK_OPEN_OPTIONS_INIT;
    options.expected = trained;
    options.expected_count = 2;
    write_image(scratch("new"), "emu/1.png", 1, 4, 4, 1);
    lk_dataset     *d = open_folder("new", LK_SPLIT_TRAIN, &options); /* one image, of one class */
    const lk_field *label = lk_dataset_find(d, "label");
    CHECK(lk_dataset_count(d) == 1 && label_of(d, 0) == 2 && holds_image(d, 0, 1));
    CHECK(label->classes == 3 && strcmp(label->class_names[0], "cat") == 0);
    lk_dataset_free(d);
    write_image(scratch("new"), "dog/2.png", 1, 4, 4, 2);
    d = open_folder("new", LK_SPLIT_TRAIN, &options);
    CHECK(lk_dataset_count(d) == 2 && label_of(d, 0) == 1 && holds_image(d, 0, 2) && label_of(d, 1) == 2);
    lk_dataset_free(d);
    write_image(scratch("new"), "dgo/3.png", 1, 4, 4, 3);
    CHECK_FAILS(context, try_open("new", LK_SPLIT_TRAIN, &options), LK_EINVAL, "new: 'dgo' is not a class",
                "did you mean 'dog'?", "--unknown-label skip");
    options.skip_unknown = true;
    d = open_folder("new", LK_SPLIT_TRAIN, &options);
    CHECK(lk_dataset_count(d) == 2 && label_of(d, 0) == 1 && label_of(d, 1) == 2);
    lk_dataset_free(d);
    /* Classes without names are directories of numbers. */
    lk_field numbered[] = {trained[0], {.name = "label", .dtype = LK_I32, .classes = 12}};
    options.expected = numbered;
    write_image(scratch("numbers"), "10/1.png", 1, 4, 4, 1);
    write_image(scratch("numbers"), "2/1.png", 1, 4, 4, 2);
    d = open_folder("numbers", LK_SPLIT_TRAIN, &options);
    CHECK(lk_dataset_count(d) == 2 && label_of(d, 0) == 10 && label_of(d, 1) == 2);
    CHECK(!lk_dataset_find(d, "label")->class_names && lk_dataset_find(d, "label")->classes == 12);
    lk_dataset_free(d);
}

static void a_held_out_sample_stays_held_out(void)
{
    enum { FIRST = 240, MORE = 60 };
    bool            tested[FIRST];
    char            name[64];
    lk_open_options hold = defaults;
    hold.holdout = 0.25;
    for (unsigned i = 0; i < FIRST + MORE; i++) {
        snprintf(name, sizeof name, "%c/%u.png", "xyz"[i % 3], i);
        if (i == FIRST) { /* what is chosen from the first alone */
            lk_dataset *test = open_folder("held", LK_SPLIT_TEST, &hold),
                       *train = open_folder("held", LK_SPLIT_TRAIN, &hold);
            CHECK(lk_dataset_count(test) + lk_dataset_count(train) == FIRST);
            CHECK(lk_dataset_count(test) > 60 - 28 && lk_dataset_count(test) < 60 + 28); /* 4 standard deviations */
            for (unsigned k = 0; k < FIRST; k++) {
                char earlier[64];
                snprintf(earlier, sizeof earlier, "%c/%u.png", "xyz"[k % 3], k);
                tested[k] = has_sample(test, "held", earlier);
                CHECK(tested[k] != has_sample(train, "held", earlier));
            }
            lk_dataset_free(test);
            lk_dataset_free(train);
        }
        write_image(scratch("held"), name, 1, 2, 2, i);
    }
    lk_dataset *test = open_folder("held", LK_SPLIT_TEST, &hold);
    for (unsigned k = 0; k < FIRST; k++) {
        snprintf(name, sizeof name, "%c/%u.png", "xyz"[k % 3], k);
        CHECK(has_sample(test, "held", name) == tested[k]);
    }
    lk_dataset_free(test);
    hold.holdout = 1e-9;
    CHECK_FAILS(context, try_open("held", LK_SPLIT_TEST, &hold), LK_EINVAL, "hold-out", "test set");
    hold.holdout = 1.5;
    CHECK_FAILS(context, try_open("held", LK_SPLIT_TEST, &hold), LK_EINVAL, "hold-out");
}

static void sizes_and_channels_are_those_of_the_options(void)
{
    lk_open_options o = defaults;
    write_image(scratch("sizes"), "a/1.png", 3, 8, 6, 1);
    write_image(scratch("sizes"), "a/2.png", 1, 8, 6, 2);
    write_image(scratch("sizes"), "b/3.png", 3, 6, 8, 3);
    CHECK_FAILS(context, try_open("sizes", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "a/1.png is 8x6", "b/3.png is 6x8",
                "--size");
    o.height = 8, o.width = 6;
    lk_dataset *d = open_folder("sizes", LK_SPLIT_TRAIN, &o);
    CHECK(lk_dataset_find(d, "image")->dims[0] == 3 && lk_dataset_find(d, "image")->dims[1] == 8);
    CHECK(holds_image(d, 0, 1)); /* of that size already */
    lk_dataset_free(d);
    o.channels = 1;
    d = open_folder("sizes", LK_SPLIT_TRAIN, &o);
    CHECK(lk_dataset_find(d, "image")->dims[0] == 1 && holds_image(d, 1, 2));
    lk_dataset_free(d);
    o.width = 0;
    CHECK_FAILS(context, try_open("sizes", LK_SPLIT_TRAIN, &o), LK_EINVAL, "size");
    o.width = 6, o.channels = 2;
    CHECK_FAILS(context, try_open("sizes", LK_SPLIT_TRAIN, &o), LK_EINVAL, "channels");
    o.channels = 0, o.height = 1 << 20;
    CHECK_FAILS(context, try_open("sizes", LK_SPLIT_TRAIN, &o), LK_EINVAL, "size");
    o = defaults, o.regression = true;
    CHECK_FAILS(context, try_open("sizes", LK_SPLIT_TRAIN, &o), LK_EINVAL, "regression");
    /* The test set has the channels of the training set, whatever its own first image is. */
    write_image(scratch("grey"), "train/a/1.png", 3, 4, 4, 1);
    write_image(scratch("grey"), "train/b/1.png", 3, 4, 4, 1);
    write_image(scratch("grey"), "test/b/1.png", 1, 4, 4, 1);
    d = open_folder("grey", LK_SPLIT_TEST, NULL);
    CHECK(lk_dataset_find(d, "image")->dims[0] == 3);
    lk_dataset_free(d);
}

static void mistakes_are_named(void)
{
    CHECK_FAILS(context, try_open("nowhere", LK_SPLIT_TRAIN, NULL), LK_ENOENT, "nowhere", "No such file");
    write_file(scratch("file"), "x", 1);
    CHECK_FAILS(context, try_open("file", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "this is a file");
    mkdir(scratch("empty"), 0777);
    CHECK_FAILS(context, try_open("empty", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "empty", "no subdirectories");
    mkdir(scratch("empty/a"), 0777);
    CHECK_FAILS(context, try_open("empty", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "only one class (a)");
    mkdir(scratch("empty/b"), 0777);
    CHECK_FAILS(context, try_open("empty", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "class a has no PNG or JPEG files");
    write_image(scratch("empty"), "a/1.png", 3, 4, 4, 1);
    CHECK_FAILS(context, try_open("empty", LK_SPLIT_TRAIN, NULL), LK_EINVAL, "class b has no PNG or JPEG files");
    lk_dataset *d;
    CHECK_FAILS(context, lk_dataset_open(context, "folder:", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "folder:DIR");
    CHECK_FAILS(context, lk_dataset_open(context, "folder", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "folder:DIR");
}

/* Cuts a file in its pixels. */
static void truncate_image(const char *name)
{
    struct stat about;
    CHECK(stat(scratch(name), &about) == 0 && truncate(scratch(name), about.st_size * 2 / 3) == 0);
}

static lk_status load_all(lk_dataset *d, int workers, int64_t *samples)
{
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    lk_loader       *loader;
    lk_batch         batch;
    lk_status        status;
    c.dataset = d, c.batch = 4, c.workers = workers;
    *samples = 0;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == lk_loader_bytes(&c));
    uint64_t before = lk_context_allocations(context);
    while ((status = lk_loader_next(loader, &batch)) == LK_OK) *samples += batch.count;
    CHECK(lk_context_allocations(context) == before); /* decoding uses the loader's memory */
    lk_loader_free(loader);
    return status;
}

static void broken_files_are_named_or_left_out(void)
{
    lk_open_options skip = defaults;
    int64_t         samples;
    skip.skip_broken = true;
    for (unsigned i = 0; i < 10; i++) {
        char name[64];
        snprintf(name, sizeof name, "%c/%u.png", "ab"[i % 2], i);
        write_image(scratch("broken"), name, 3, 16, 16, i);
    }
    truncate_image("broken/b/5.png"); /* the header is whole: only decoding finds it */
    lk_dataset *d = open_folder("broken", LK_SPLIT_TRAIN, &defaults);
    CHECK_FAILS(context, load_all(d, 0, &samples), LK_EFORMAT, "broken/b/5.png", "truncated");
    CHECK_FAILS(context, load_all(d, 3, &samples), LK_EFORMAT, "broken/b/5.png", "truncated");
    lk_dataset_free(d);
    write_file(scratch("broken/a/0.png"), "text", 4); /* the first of all */
    write_file(scratch("broken/a/4.png"), "", 0);
    CHECK(symlink("nothing", scratch("broken/b/6.png")) == 0);
    CHECK_FAILS(context, try_open("broken", LK_SPLIT_TRAIN, &defaults), LK_EFORMAT, "broken/a/0.png",
                "neither a PNG nor a JPEG", "--skip-broken");
    for (int threads = 1; threads <= 3; threads++) {
        logged[0] = 0;
        d = open_folder("broken", LK_SPLIT_TRAIN, &skip);
        CHECK(lk_dataset_count(d) == 7);
        CHECK(strstr(logged, "4 of 11 images are broken"));
        CHECK(strstr(logged, "a/0.png is neither") && strstr(logged, "a/4.png is empty") &&
              strstr(logged, "b/5.png is") && strstr(logged, "b/6.png cannot be read"));
        static const unsigned left[] = {2, 6, 8, 1, 3, 7, 9};
        for (int i = 0; i < 7; i++) CHECK(holds_image(d, i, left[i]) && label_of(d, i) == (i >= 3));
        CHECK(load_all(d, 2, &samples) == LK_END && samples == 7);
        lk_dataset_free(d);
    }
    /* A file that grows after the data set was opened is an error, not an overrun. */
    d = open_folder("broken", LK_SPLIT_TRAIN, &skip);
    write_image(scratch("broken"), "a/2.png", 3, 200, 200, 0);
    CHECK_FAILS(context, load_all(d, 1, &samples), LK_EFORMAT, "a/2.png", "changed");
    lk_dataset_free(d);
    for (unsigned i = 0; i < 10; i++) {
        char name[64];
        snprintf(name, sizeof name, "broken/%c/%u.png", "ab"[i % 2], i);
        write_file(scratch(name), "x", 1);
    }
    CHECK_FAILS(context, lk_dataset_open(context, spec("broken"), LK_SPLIT_TRAIN, &skip, &d), LK_EFORMAT,
                "none of its 11");
}

/* ---- single files ---- */

static void single_files_are_in_the_order_of_their_paths(void)
{
    lk_open_options options = defaults;
    lk_dataset     *d = NULL;
    int64_t         samples;
    for (unsigned i = 0; i < 6; i++) {
        static const char *const names[] = {"z.png", "d/2.png", "d/10.png", "d/deep/0.png", "a.png", "picture"};
        write_image(scratch("single"), names[i], 3, 6, 4, i);
    }
    char paths[4][600];
    snprintf(paths[0], 600, "%s", scratch("single/z.png"));
    snprintf(paths[1], 600, "%s/", scratch("single/d"));
    snprintf(paths[2], 600, "%s", scratch("single/picture")); /* a file that is named may have any name */
    snprintf(paths[3], 600, "%s", scratch("single/z.png"));
    const char *const list[] = {paths[0], paths[1], paths[2], paths[3]};
    CHECK_OK(context, lk_dataset_images(context, list, 4, NULL, &d));
    static const unsigned    seeds[] = {0, 2, 1, 3, 5, 0};
    static const char *const wanted[] = {"z.png", "d/10.png", "d/2.png", "d/deep/0.png", "picture", "z.png"};
    const lk_field          *image = lk_dataset_field(d, 0);
    CHECK(lk_dataset_count(d) == 6 && lk_dataset_fields(d) == 1 && strcmp(lk_dataset_name(d), "images") == 0);
    CHECK(strcmp(image->name, "image") == 0 && image->dims[0] == 3 && image->dims[1] == 6 && image->dims[2] == 4);
    for (int i = 0; i < 6; i++) CHECK(strcmp(relative(d, "single", i), wanted[i]) == 0 && holds_image(d, i, seeds[i]));
    CHECK(load_all(d, 2, &samples) == LK_END && samples == 6);
    lk_dataset_free(d);

    write_image(scratch("single"), "large.png", 3, 20, 30, 9);
    snprintf(paths[3], 600, "%s", scratch("single/large.png"));
    CHECK_FAILS(context, lk_dataset_images(context, list, 4, NULL, &d), LK_EINVAL, "large.png");
    CHECK(d == NULL);
    options.height = 5, options.width = 7, options.channels = 1;
    CHECK_OK(context, lk_dataset_images(context, list, 4, &options, &d));
    image = lk_dataset_field(d, 0);
    CHECK(image->dims[0] == 1 && image->dims[1] == 5 && image->dims[2] == 7 && load_all(d, 1, &samples) == LK_END);
    lk_dataset_free(d);

    write_file(scratch("single/broken.png"), "text", 4);
    snprintf(paths[2], 600, "%s", scratch("single/broken.png"));
    CHECK_FAILS(context, lk_dataset_images(context, list, 4, &options, &d), LK_EFORMAT, "broken.png", "neither");
    options.skip_broken = true;
    logged[0] = 0;
    CHECK_OK(context, lk_dataset_images(context, list, 4, &options, &d));
    CHECK(lk_dataset_count(d) == 5 && strstr(logged, "images: 1 of 6 images are broken") &&
          strstr(logged, "broken.png"));
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_images(context, list + 2, 1, &options, &d), LK_EFORMAT, "images: none of its 1");
    snprintf(paths[0], 600, "%s", scratch("single/nothing.png"));
    CHECK_FAILS(context, lk_dataset_images(context, list, 1, NULL, &d), LK_ENOENT, "nothing.png", "No such file");
    CHECK(mkdir(scratch("single/empty"), 0777) == 0);
    snprintf(paths[0], 600, "%s", scratch("single/empty"));
    CHECK_FAILS(context, lk_dataset_images(context, list, 1, NULL, &d), LK_EINVAL, "empty", "no PNG or JPEG");
    CHECK_FAILS(context, lk_dataset_images(context, list, 0, NULL, &d), LK_EINVAL, "at least one");
}

/* ---- the cache ---- */

static int count_files(const char *directory, char path[1024])
{
    int            count = 0;
    struct dirent *entry;
    DIR           *d = opendir(scratch(directory));
    while (d && (entry = readdir(d))) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, 1024, "%s/%s", scratch(directory), entry->d_name);
        count++;
    }
    if (d) closedir(d);
    return count;
}

/* Another image of the same size and time: only a cache still has the old one. */
static void replace_secretly(const char *name, unsigned seed)
{
    struct stat   before;
    unsigned char planes[3 * 16 * 16], file[4000];
    CHECK(stat(scratch(name), &before) == 0);
    for (size_t i = 0; i < sizeof planes; i++) planes[i] = pixel_of(seed, i);
    size_t size = make_png(file, 3, 16, 16, planes);
    CHECK(size == (size_t)before.st_size); /* noise does not compress, so sizes are equal */
    write_file(scratch(name), file, size);
    struct timespec times[2] = {before.st_atim, before.st_mtim};
    CHECK(utimensat(AT_FDCWD, scratch(name), times, 0) == 0);
}

static void write_cached(void)
{
    for (unsigned i = 0; i < 12; i++) {
        char name[64];
        snprintf(name, sizeof name, "%c/%02u.png", "abc"[i / 4], i);
        write_image(scratch("cached"), name, 3, 16, 16, i);
    }
}

static void a_cache_keeps_decoded_samples(void)
{
    lk_open_options o = defaults;
    char            path[1024], other[1024];
    int64_t         samples;
    write_cached();
    char *directory = strdup(scratch("deep/er/cache"));
    o.cache = directory;
    lk_dataset *d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    for (unsigned i = 0; i < 12; i++) CHECK(holds_image(d, i, i) && label_of(d, i) == (int32_t)i / 4);
    CHECK(count_files("deep/er/cache", path) == 1); /* no temporary file is left */
    lk_dataset_free(d);
    struct stat about;
    CHECK(stat(path, &about) == 0 && about.st_size < 4096 + 12 * (3 * 16 * 16 + 200));

    replace_secretly("cached/b/05.png", 50);
    d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    CHECK(holds_image(d, 5, 5));
    CHECK(load_all(d, 2, &samples) == LK_END && samples == 12);
    lk_dataset_free(d);
    d = open_folder("cached", LK_SPLIT_TRAIN, &defaults);
    CHECK(holds_image(d, 5, 50));
    lk_dataset_free(d);

    /* Another size has a file of its own; other files than before make it stale. */
    o.height = o.width = 8;
    d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    CHECK(lk_field_bytes(lk_dataset_field(d, 0)) == 3 * 8 * 8 && count_files("deep/er/cache", other) == 2);
    lk_dataset_free(d);
    o.height = o.width = 0;
    CHECK(utimensat(AT_FDCWD, scratch("cached/a/00.png"), NULL, 0) == 0); /* newer */
    d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    CHECK(holds_image(d, 5, 50));
    lk_dataset_free(d);
    write_image(scratch("cached"), "a/000.png", 3, 16, 16, 99);
    d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    CHECK(lk_dataset_count(d) == 13 && holds_image(d, 1, 99) && holds_image(d, 13 - 1, 11));
    lk_dataset_free(d);
    CHECK(unlink(scratch("cached/a/000.png")) == 0);
    free(directory);
}

enum { HEADER = 104 }; /* bytes of the header that are used; then zeros up to 4096 */

/* Each byte of the header, and bytes of tables and samples, damaged; cut at many places: samples are always right. */
static void a_damaged_cache_is_created_anew(void)
{
    lk_open_options o = defaults;
    char            path[1024];
    size_t          size;
    write_cached();
    char *directory = strdup(scratch("damaged"));
    o.cache = directory;
    lk_dataset *d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    lk_dataset_free(d);
    CHECK(count_files("damaged", path) == 1);
    unsigned char *whole = read_whole(path, &size), *bytes = malloc(size);
    size_t         tables = 4096 + 12 * 3 * 16 * 16;
    for (size_t at = 0; at < size; at += at < HEADER ? 1 : at < 4096 ? 997 : at < tables ? 211 : 13) {
        memcpy(bytes, whole, size);
        bytes[at] ^= 0x10;
        write_file(path, bytes, size);
        d = open_folder("cached", LK_SPLIT_TRAIN, &o);
        for (unsigned i = 0; i < 12; i++) CHECK(holds_image(d, i, i));
        lk_dataset_free(d);
        d = open_folder("cached", LK_SPLIT_TRAIN, &o); /* by now it is right again */
        lk_dataset_free(d);
        size_t         again_size;
        unsigned char *again = read_whole(path, &again_size);
        CHECK(again_size == size && (memcmp(again, whole, size) == 0 || (at >= HEADER && at < 4096)));
        free(again);
    }
    for (size_t cut = 0; cut < size; cut += 401) {
        write_file(path, whole, cut);
        d = open_folder("cached", LK_SPLIT_TRAIN, &o);
        for (unsigned i = 0; i < 12; i++) CHECK(holds_image(d, i, i));
        lk_dataset_free(d);
    }
    free(whole);
    free(bytes);
    free(directory);
}

static void the_cache_remembers_broken_files(void)
{
    lk_open_options o = defaults;
    write_cached();
    truncate_image("cached/b/06.png");
    char *directory = strdup(scratch("remembers"));
    o.cache = directory;
    CHECK_FAILS(context, try_open("cached", LK_SPLIT_TRAIN, &o), LK_EFORMAT, "b/06.png", "--skip-broken");
    o.skip_broken = true;
    for (int again = 0; again < 2; again++) {
        logged[0] = 0;
        lk_dataset *d = open_folder("cached", LK_SPLIT_TRAIN, &o);
        CHECK(lk_dataset_count(d) == 11 && holds_image(d, 6, 7) && strstr(logged, "1 of 12") &&
              strstr(logged, "b/06.png is"));
        lk_dataset_free(d);
    }
    free(directory);
    directory = strdup(scratch("file/cache"));
    o.cache = directory; /* below a file: it cannot be created */
    lk_dataset *d;
    CHECK_FAILS(context, lk_dataset_open(context, spec("cached"), LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "file");
    free(directory);
}

static void several_processes_share_a_cache(void)
{
    lk_open_options o = defaults;
    char            path[1024];
    write_cached();
    char *directory = strdup(scratch("shared-cache"));
    o.cache = directory;
    for (int round = 0; round < 6; round++) {
        pid_t children[5];
        for (int i = 0; i < 5; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0);
            if (children[i] > 0) continue;
            context = make_context();
            lk_dataset *d = open_folder("cached", LK_SPLIT_TRAIN, &o);
            for (unsigned k = 0; k < 12; k++) CHECK(holds_image(d, k, k));
            lk_dataset_free(d);
            lk_context_free(context);
            _exit(0);
        }
        for (int i = 0; i < 5; i++) {
            int status;
            CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        CHECK(count_files("shared-cache", path) == 1);
        if (round % 2) CHECK(unlink(path) == 0);
        if (round % 2 == 0) CHECK(utimensat(AT_FDCWD, scratch("cached/a/00.png"), NULL, 0) == 0); /* stale */
    }
    free(directory);
}

/* A writer that was killed leaves a temporary file, which the next one takes over. */
static void a_killed_writer_does_not_block(void)
{
    lk_open_options o = defaults;
    char            path[1024], temporary[1100];
    write_cached();
    char *directory = strdup(scratch("killed"));
    o.cache = directory;
    lk_dataset_free(open_folder("cached", LK_SPLIT_TRAIN, &o));
    CHECK(count_files("killed", path) == 1 && unlink(path) == 0);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    write_file(temporary, "half", 4);
    lk_dataset *d = open_folder("cached", LK_SPLIT_TRAIN, &o);
    CHECK(holds_image(d, 3, 3) && count_files("killed", path) == 1);
    lk_dataset_free(d);
    free(directory);
}

static lk_status open_and_free(lk_context *with)
{
    lk_open_options o = LK_OPEN_OPTIONS_INIT;
    lk_dataset     *d = NULL;
    char            path[1024], *directory = strdup(scratch("memory"));
    o.cache = directory;
    o.skip_broken = true;
    while (count_files("memory", path) > 0) CHECK(unlink(path) == 0);
    lk_status status = lk_dataset_open(with, spec("cached"), LK_SPLIT_TRAIN, &o, &d);
    lk_dataset_free(d);
    free(directory);
    return status;
}

static lk_status open_files_and_free(lk_context *with)
{
    lk_open_options o = LK_OPEN_OPTIONS_INIT;
    lk_dataset     *d = NULL;
    char            path[600];
    snprintf(path, sizeof path, "%s", scratch("cached"));
    o.skip_broken = true;
    lk_status status = lk_dataset_images(with, (const char *[]){path}, 1, &o, &d);
    lk_dataset_free(d);
    return status;
}

static void running_out_of_memory_is_reported(void)
{
    write_cached();
    truncate_image("cached/b/06.png");
    CHECK(fail_each_allocation(open_and_free) > 10);
    CHECK(fail_each_allocation(open_files_and_free) > 5);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    if (!lk__png_built()) {
        printf("skipped: built without libpng\n");
        return 77;
    }
    config.threads = 2;
    config.log = keep_log;
    CHECK(lk_context_create(&config, &context) == LK_OK);
    make_scratch();
    RUN(files_are_in_the_order_of_image_folder);
    RUN(splits_are_directories_or_held_out);
    RUN(classes_are_those_of_training);
    RUN(a_held_out_sample_stays_held_out);
    RUN(sizes_and_channels_are_those_of_the_options);
    RUN(mistakes_are_named);
    RUN(broken_files_are_named_or_left_out);
    RUN(single_files_are_in_the_order_of_their_paths);
    RUN(a_cache_keeps_decoded_samples);
    RUN(a_damaged_cache_is_created_anew);
    RUN(the_cache_remembers_broken_files);
    RUN(several_processes_share_a_cache);
    RUN(a_killed_writer_does_not_block);
    RUN(running_out_of_memory_is_reported);
    free_context(context);
    return 0;
}
