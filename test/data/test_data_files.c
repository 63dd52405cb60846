/* test_data_files.c - data sets from files and arrays: the bytes that were written are read back, and errors name the
 * file and the position in it. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "data/subset.h"
#include "test_data.h"

enum { RECORD = 3073 };
static lk_context *context;

static unsigned char noise(uint64_t n) { return (unsigned char)((n * 0x9E3779B97F4A7C15u) >> 56); }

/* `records` records of CIFAR-10, starting at number `first`: label i % 10, pixels by noise. */
static unsigned char *cifar_records(int first, int records)
{
    unsigned char *bytes = malloc((size_t)records * RECORD + 1);
    CHECK(bytes);
    for (int i = 0; i < records; i++)
        for (int k = 0; k < RECORD; k++)
            bytes[i * RECORD + k] =
                k == 0 ? (unsigned char)((first + i) % 10) : noise((uint64_t)(first + i) * RECORD + (uint64_t)k);
    return bytes;
}

static void cifar_files_of_any_length_are_read_in_order(void)
{
    static const int lengths[5] = {1, 3, 7, 2, 11};
    char             name[64];
    mkdir(scratch("cifar"), 0777);
    mkdir(scratch("cifar/cifar-10-batches-bin"), 0777);
    int first = 0;
    for (int i = 0; i < 5; first += lengths[i++]) {
        unsigned char *bytes = cifar_records(first, lengths[i]);
        snprintf(name, sizeof name, "cifar/cifar-10-batches-bin/data_batch_%d.bin", i + 1);
        write_file(scratch(name), bytes, (size_t)lengths[i] * RECORD);
        free(bytes);
    }
    const char *ways[] = {"cifar", "cifar/cifar-10-batches-bin"};
    for (int way = 0; way < 2; way++) {
        lk_dataset *d;
        CHECK_OK(context, lk_dataset_cifar10(context, scratch(ways[way]), LK_SPLIT_TRAIN, &d));
        CHECK(lk_dataset_count(d) == 24 && lk_dataset_field(d, 0)->rank == 3 &&
              lk_field_elements(lk_dataset_field(d, 0)) == 3072);
        CHECK(lk_dataset_field(d, 0)->dims[0] == 3 && lk_dataset_field(d, 0)->dims[1] == 32 &&
              lk_dataset_field(d, 0)->dims[2] == 32);
        CHECK(lk_dataset_field(d, 0)->dtype == LK_U8 && lk_dataset_find(d, "label")->classes == 10);
        CHECK(strcmp(lk_field_class_name(lk_dataset_find(d, "label"), 9), "truck") == 0 &&
              !lk_field_class_name(lk_dataset_find(d, "label"), 10) &&
              !lk_field_class_name(lk_dataset_find(d, "label"), -1));
        for (int i = 0; i < 24; i++) {
            unsigned char sample[3072];
            int32_t       label = -1;
            CHECK_OK(context, get_pair(d, i, sample, &label));
            CHECK(label == i % 10);
            for (int k = 0; k < 3072; k++) CHECK(sample[k] == noise((uint64_t)i * RECORD + (uint64_t)k + 1));
        }
        unsigned char sample[3072];
        int32_t       label;
        CHECK_FAILS(context, get_pair(d, 24, sample, &label), LK_EINVAL, "24");
        CHECK_FAILS(context, get_pair(d, -1, sample, &label), LK_EINVAL, "-1");
        CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 24 * RECORD + 24 * 4);
        lk_dataset_free(d);
    }
    lk_dataset *d;
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch("cifar"), LK_SPLIT_TEST, &d), LK_ENOENT, "test_batch.bin",
                "lockstep data get cifar10");
    CHECK(!d);
    char spec[600];
    snprintf(spec, sizeof spec, "cifar10:%s", scratch("cifar"));
    CHECK_OK(context, lk_dataset_open(context, spec, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_count(d) == 24 && strcmp(lk_dataset_name(d), "cifar10") == 0);
    lk_dataset_free(d);
}

static void invalid_cifar_files_are_reported_with_record_and_byte(void)
{
    lk_dataset    *d;
    unsigned char *bytes = cifar_records(0, 5);
    mkdir(scratch("bad"), 0777);
    const char *file = "bad/test_batch.bin";
    const char *dir = "bad";

    write_file(scratch(file), bytes, 0);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "test_batch.bin",
                "empty");
    write_file(scratch(file), bytes, 100);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "truncated",
                "100 bytes");
    write_file(scratch(file), bytes, 4 * RECORD + 17);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "record 4",
                "byte 12292", "only 17 of 3073 bytes");
    write_file(scratch(file), bytes, 5 * RECORD - 1);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "record 4",
                "only 3072 of 3073 bytes");
    bytes[3 * RECORD] = 10;
    write_file(scratch(file), bytes, 5 * RECORD);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "record 3",
                "byte 9219", "label 10");
    write_gzip(scratch(file), bytes, 5 * RECORD);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "gzip");
    remove(scratch(file));
    mkdir(scratch(file), 0777);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TEST, &d), LK_EFORMAT, "not a file");
    rmdir(scratch(file));
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TRAIN, &d), LK_ENOENT, "data_batch_1.bin");
    mkdir(scratch("bad/cifar-10-batches-py"), 0777);
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch(dir), LK_SPLIT_TRAIN, &d), LK_ENOENT, "Python version");
    CHECK_FAILS(context, lk_dataset_cifar10(context, scratch("nowhere"), LK_SPLIT_TRAIN, &d), LK_ENOENT, "nowhere",
                "data_batch_5.bin");
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    free(bytes);
}

/* An IDX file of noise; labels when rank is 1 (i % 10). */
static unsigned char *idx_bytes(int rank, const uint32_t *dims, size_t *size)
{
    size_t total = 1, head = 4 + 4 * (size_t)rank;
    for (int i = 0; i < rank; i++) total *= dims[i];
    unsigned char *bytes = calloc(1, head + total + 64);
    CHECK(bytes);
    bytes[2] = 8;
    bytes[3] = (unsigned char)rank;
    for (int i = 0; i < rank; i++)
        for (int k = 0; k < 4; k++) bytes[4 + 4 * i + k] = (unsigned char)(dims[i] >> (24 - 8 * k));
    for (size_t i = 0; i < total; i++) bytes[head + i] = rank == 1 ? (unsigned char)(i % 10) : noise(i);
    *size = head + total;
    return bytes;
}

static void idx_files_open_by_name(void)
{
    static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6},
                               labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 2, 0, 1};
    char            name[1200];
    lk_dataset     *d;
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    write_file(scratch("own-images"), images, sizeof images);
    write_gzip(scratch("own-labels.gz"), labels, sizeof labels);
    snprintf(name, sizeof name, "idx:%s,%s", scratch("own-images"), scratch("own-labels"));
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_count(d) == 3 && lk_dataset_field(d, 0)->rank == 3 && lk_dataset_find(d, "label")->classes == 3);
    for (int i = 0; i < 3; i++) {
        unsigned char pixels[2];
        int32_t       label;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){pixels, &label}));
        CHECK(pixels[0] == 2 * i + 1 && pixels[1] == 2 * i + 2 && label == (i + 2) % 3);
    }
    lk_dataset_free(d);
    CHECK(lk_dataset_open(context, name, LK_SPLIT_TEST, NULL, &d) == LK_END && !d); /* no test set of its own */
    options.holdout = 0.999999;
    CHECK_OK(context, lk_dataset_probe(context, name, LK_SPLIT_TEST, &options, &d));
    CHECK(lk_dataset_count(d) == 3);
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_open(context, "idx:only", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL,
                "idx:IMAGES,LABELS");
    CHECK_FAILS(context, lk_dataset_open(context, "idx:/a,/b", LK_SPLIT_TRAIN, NULL, &d), LK_ENOENT, "/a");
}

static void idx_files_are_read_plain_and_gzip(void)
{
    static const uint32_t shapes[][4] = {{13, 5, 7, 0}, {1, 1, 1, 0}, {300, 28, 28, 0}, {13, 3, 4, 5}, {13, 9, 0, 0}};
    static const int      ranks[] = {3, 3, 3, 4, 2};
    for (int s = 0; s < 5; s++) {
        size_t         image_size, label_size;
        unsigned char *images = idx_bytes(ranks[s], shapes[s], &image_size),
                      *labels = idx_bytes(1, shapes[s], &label_size);
        size_t sample = (image_size - 4 - 4 * (size_t)ranks[s]) / shapes[s][0];
        for (int packed = 0; packed < 2; packed++) {
            remove(scratch("images.gz")), remove(scratch("images")), remove(scratch("labels")),
                remove(scratch("labels.gz"));
            (packed ? write_gzip : write_file)(scratch(packed ? "images.gz" : "images"), images, image_size);
            (packed ? write_file : write_gzip)(scratch(packed ? "labels" : "labels.gz"), labels, label_size);
            lk_dataset *d;
            CHECK_OK(context, lk_dataset_idx(context, scratch("images"), scratch("labels.gz"), 0, &d));
            CHECK(lk_dataset_count(d) == shapes[s][0] && lk_field_elements(lk_dataset_field(d, 0)) == (int64_t)sample);
            CHECK(lk_dataset_field(d, 0)->rank == (ranks[s] == 2 ? 1 : 3));
            if (ranks[s] == 3)
                CHECK(lk_dataset_field(d, 0)->dims[0] == 1 && lk_dataset_field(d, 0)->dims[1] == shapes[s][1] &&
                      lk_dataset_field(d, 0)->dims[2] == shapes[s][2]);
            CHECK(lk_dataset_find(d, "label")->classes == (shapes[s][0] < 10 ? (int)shapes[s][0] : 10));
            unsigned char *got = malloc(sample);
            for (uint32_t i = 0; i < shapes[s][0]; i++) {
                int32_t label = -1;
                CHECK_OK(context, get_pair(d, i, got, &label));
                CHECK(label == (int)(i % 10) && memcmp(got, images + 4 + 4 * ranks[s] + i * sample, sample) == 0);
            }
            free(got);
            lk_dataset_free(d);
        }
        free(images);
        free(labels);
    }
}

static void several_gzip_members_are_one_file(void)
{
    uint32_t       shape[3] = {40, 9, 9};
    size_t         image_size, label_size, first_size, second_size;
    unsigned char *images = idx_bytes(3, shape, &image_size), *labels = idx_bytes(1, shape, &label_size);
    write_gzip(scratch("one.gz"), images, 1000);
    write_gzip(scratch("two.gz"), images + 1000, image_size - 1000);
    unsigned char *first = read_whole(scratch("one.gz"), &first_size),
                  *second = read_whole(scratch("two.gz"), &second_size);
    unsigned char *both = malloc(first_size + second_size);
    memcpy(both, first, first_size);
    memcpy(both + first_size, second, second_size);
    write_file(scratch("both"), both, first_size + second_size);
    write_file(scratch("both-labels"), labels, label_size);
    lk_dataset   *d;
    unsigned char sample[81];
    int32_t       label;
    CHECK_OK(context, lk_dataset_idx(context, scratch("both"), scratch("both-labels"), 10, &d));
    CHECK_OK(context, get_pair(d, 39, sample, &label));
    CHECK(memcmp(sample, images + image_size - 81, 81) == 0);
    lk_dataset_free(d);
    free(images), free(labels), free(first), free(second), free(both);
}

static void invalid_idx_files_are_reported_with_position(void)
{
    uint32_t       shape[3] = {20, 6, 6}, other[1] = {19};
    size_t         image_size, label_size, other_size, packed_size;
    lk_dataset    *d;
    unsigned char *images = idx_bytes(3, shape, &image_size), *labels = idx_bytes(1, shape, &label_size);
    unsigned char *fewer = idx_bytes(1, other, &other_size);
    const char    *i_path = strdup(scratch("i")), *l_path = strdup(scratch("l"));
#define BAD_IDX(...) CHECK_FAILS(context, lk_dataset_idx(context, i_path, l_path, 10, &d), LK_EFORMAT, __VA_ARGS__)
    write_file(l_path, labels, label_size);
    write_file(i_path, images, 0);
    BAD_IDX("empty");
    write_file(i_path, images, 3);
    BAD_IDX("truncated", "header");
    write_file(i_path, images, 10);
    BAD_IDX("truncated", "header");
    write_file(i_path, images, image_size - 1);
    BAD_IDX("truncated", "719 of 720");
    write_file(i_path, images, image_size - 200);
    BAD_IDX("truncated");
    write_file(i_path, images, image_size + 1);
    BAD_IDX("more bytes than its header declares", "byte 736");
    images[0] = 'P';
    write_file(i_path, images, image_size);
    BAD_IDX("not an IDX file", "50 00 08 03");
    images[0] = 0, images[2] = 0x0d;
    write_file(i_path, images, image_size);
    BAD_IDX("type 0x0d");
    images[2] = 8, images[3] = 9;
    write_file(i_path, images, image_size);
    BAD_IDX("9 axes");
    images[3] = 0;
    write_file(i_path, images, image_size);
    BAD_IDX("0 axes");
    images[3] = 3;
    memset(images + 4, 0xff, 12); /* the product overflows 64 bits */
    write_file(i_path, images, image_size);
    BAD_IDX("declares more bytes");
    memset(images + 4, 0, 12);
    write_file(i_path, images, image_size);
    BAD_IDX("axis 0", "has length 0");
    free(images);
    images = idx_bytes(3, shape, &image_size);

    write_gzip(i_path, images, image_size);
    unsigned char *packed = read_whole(i_path, &packed_size);
    for (size_t cut = 2; cut < packed_size; cut += 37) { /* any truncation of gzip is detected */
        write_file(i_path, packed, cut);
        BAD_IDX("truncated");
    }
    write_file(i_path, packed, packed_size - 1);
    BAD_IDX("truncated");
    packed = realloc(packed, packed_size + 4);
    memcpy(packed + packed_size, "junk", 4);
    write_file(i_path, packed, packed_size + 4);
    BAD_IDX("trailing data after its gzip data");
    packed[packed_size - 6] ^= 1; /* the checksum */
    write_file(i_path, packed, packed_size);
    BAD_IDX("damaged");
    unsigned char *longer = calloc(1, image_size + 1);
    memcpy(longer, images, image_size);
    write_gzip(i_path, longer, image_size + 1);
    BAD_IDX("more bytes than its header declares");
    longer[4] = 0x40; /* a header that declares 10^9 samples in a small gzip */
    write_gzip(i_path, longer, image_size);
    BAD_IDX("declares more bytes");

    write_file(i_path, images, image_size);
    write_file(l_path, fewer, other_size);
    BAD_IDX("20 samples", "has 19");
    labels[8 + 13] = 200;
    write_file(l_path, labels, label_size);
    BAD_IDX("label 200", "sample 13", "byte 21");
    CHECK_OK(context, lk_dataset_idx(context, i_path, l_path, 0, &d)); /* 0: 201 classes by the largest label */
    CHECK(lk_dataset_find(d, "label")->classes == 201);
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_idx(context, l_path, i_path, 10, &d), LK_EFORMAT, "swapped");
    CHECK_FAILS(context, lk_dataset_idx(context, i_path, l_path, 257, &d), LK_EINVAL, "257");
    write_file(i_path, labels, label_size);
    BAD_IDX("swapped");
    CHECK_FAILS(context, lk_dataset_idx(context, "/nowhere/a", l_path, 10, &d), LK_ENOENT, "/nowhere/a");
    CHECK_FAILS(context, lk_dataset_idx(context, i_path, "/nowhere/b", 10, &d), LK_ENOENT, "/nowhere/b");
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    free(images), free(labels), free(fewer), free(packed), free(longer), free((void *)i_path), free((void *)l_path);
}

static void names_give_directories_or_advice(void)
{
    lk_dataset    *d;
    char           path[512];
    uint32_t       shape[3] = {11, 28, 28};
    size_t         image_size, label_size;
    unsigned char *images = idx_bytes(3, shape, &image_size), *labels = idx_bytes(1, shape, &label_size);
    setenv("LOCKSTEP_DATA", scratch("data"), 1);
    setenv("HOME", scratch("home"), 1);
    unsetenv("XDG_CACHE_HOME");
    lk__context_read_environment(context);
    CHECK_OK(context, lk_data_directory(context, "mnist", path, sizeof path));
    CHECK(strcmp(path, scratch("data/mnist")) == 0);
    CHECK_FAILS(context, lk_data_directory(context, "mnist", path, 10), LK_EINVAL, "10 bytes");
    CHECK_FAILS(context, lk_dataset_open(context, "mnist", LK_SPLIT_TEST, NULL, &d), LK_ENOENT, scratch("data/mnist"),
                scratch("home/.cache/lockstep/mnist"), "t10k-images-idx3-ubyte", "lockstep data get mnist");
    CHECK_FAILS(context, lk_dataset_open(context, "fashion-mnist:/nowhere", LK_SPLIT_TRAIN, NULL, &d), LK_ENOENT,
                "/nowhere", "train-labels-idx1-ubyte", "dataset-fashion-mnist", "lockstep data get fashion-mnist");
    CHECK_FAILS(context, lk_dataset_open(context, "cifar10", LK_SPLIT_TRAIN, NULL, &d), LK_ENOENT,
                scratch("data/cifar10"), "data_batch_1.bin", "lockstep data get cifar10");
    CHECK_FAILS(context, lk_dataset_open(context, "cifar", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL,
                "did you mean cifar10?");
    CHECK_FAILS(context, lk_dataset_open(context, "imagenet-22k", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "imagenet-22k",
                "synthetic");
    CHECK_FAILS(context, lk_dataset_open(context, "", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "needs a name");
    unsetenv("LOCKSTEP_DATA");
    lk__context_read_environment(context);
    CHECK_OK(context, lk_data_directory(context, "mnist", path, sizeof path));
    CHECK(strcmp(path, scratch("home/.cache/lockstep/mnist")) == 0);

    mkdir(scratch("home"), 0777), mkdir(scratch("home/.cache"), 0777), mkdir(scratch("home/.cache/lockstep"), 0777);
    mkdir(scratch("home/.cache/lockstep/mnist"), 0777);
    mkdir(scratch("home/.cache/lockstep/mnist/MNIST"), 0777),
        mkdir(scratch("home/.cache/lockstep/mnist/MNIST/raw"), 0777);
    write_gzip(scratch("home/.cache/lockstep/mnist/t10k-images-idx3-ubyte.gz"), images, image_size);
    write_gzip(scratch("home/.cache/lockstep/mnist/t10k-labels-idx1-ubyte.gz"), labels, label_size);
    write_file(scratch("home/.cache/lockstep/mnist/MNIST/raw/train-images-idx3-ubyte"), images, image_size);
    write_file(scratch("home/.cache/lockstep/mnist/MNIST/raw/train-labels-idx1-ubyte"), labels, label_size);
    CHECK_OK(context, lk_dataset_open(context, "mnist", LK_SPLIT_TEST, NULL, &d));
    CHECK(lk_dataset_count(d) == 11 && lk_dataset_find(d, "label")->classes == 10 &&
          strcmp(lk_field_class_name(lk_dataset_find(d, "label"), 3), "3") == 0);
    lk_dataset_free(d);
    CHECK_OK(context, lk_dataset_open(context, "mnist", LK_SPLIT_TRAIN, NULL, &d)); /* PyTorch's subdirectory */
    lk_dataset_free(d);
    setenv("LOCKSTEP_DATA", scratch("data"), 1); /* falls back to the cache */
    lk__context_read_environment(context);
    CHECK_OK(context, lk_dataset_open(context, "mnist", LK_SPLIT_TEST, NULL, &d));
    lk_dataset_free(d);

    /* XDG_CACHE_HOME replaces ~/.cache; what is in ~/.cache is still found. A relative one is ignored, as its
     * specification says. */
    setenv("XDG_CACHE_HOME", scratch("xdg"), 1);
    lk__context_read_environment(context);
    CHECK_OK(context, lk_dataset_open(context, "mnist", LK_SPLIT_TEST, NULL, &d));
    lk_dataset_free(d);
    unsetenv("LOCKSTEP_DATA");
    lk__context_read_environment(context);
    CHECK_OK(context, lk_data_directory(context, "mnist", path, sizeof path));
    CHECK(strcmp(path, scratch("xdg/lockstep/mnist")) == 0);
    CHECK_FAILS(context, lk_dataset_open(context, "cifar10", LK_SPLIT_TRAIN, NULL, &d), LK_ENOENT,
                scratch("xdg/lockstep/cifar10"), scratch("home/.cache/lockstep/cifar10"));
    setenv("XDG_CACHE_HOME", "relative", 1);
    lk__context_read_environment(context);
    CHECK_OK(context, lk_data_directory(context, "mnist", path, sizeof path));
    CHECK(strcmp(path, scratch("home/.cache/lockstep/mnist")) == 0);
    unsetenv("XDG_CACHE_HOME");
    lk__context_read_environment(context);
    free(images), free(labels);
}

static void write_idx(const char *name, int rank, const int *dims, size_t bytes)
{
    unsigned char file[4096] = {0, 0, 8, (unsigned char)rank};
    for (int i = 0; i < rank; i++) file[4 + 4 * i + 3] = (unsigned char)dims[i];
    write_file(scratch(name), file, 4 + 4 * (size_t)rank + bytes);
}

static void probing_finds_sizes_and_invalid_files_without_reading_samples(void)
{
    char           name[256];
    lk_dataset    *d = NULL;
    unsigned char *bytes = cifar_records(0, 3), sample[3072];
    int32_t        label;
    mkdir(scratch("probe"), 0777);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "probe/data_batch_%d.bin", i);
        write_file(scratch(name), bytes, 3 * RECORD);
    }
    snprintf(name, sizeof name, "cifar10:%s", scratch("probe"));
    CHECK_OK(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_count(d) == 15 && lk_field_elements(lk_dataset_field(d, 0)) == 3072 &&
          lk_dataset_find(d, "label")->classes == 10);
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    CHECK_FAILS(context, get_pair(d, 0, sample, &label), LK_EINVAL, "probed, not opened");
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_probe(context, name, LK_SPLIT_TEST, NULL, &d), LK_ENOENT, "test_batch.bin");
    write_file(scratch("probe/data_batch_4.bin"), bytes, 2 * RECORD + 7);
    CHECK_FAILS(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, NULL, &d), LK_EFORMAT, "data_batch_4.bin");
    free(bytes);

    write_idx("probe/train-images-idx3-ubyte", 3, (int[]){5, 4, 6}, 120);
    write_idx("probe/train-labels-idx1-ubyte", 1, (int[]){5}, 5);
    snprintf(name, sizeof name, "mnist:%s", scratch("probe"));
    CHECK_OK(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_count(d) == 5 && lk_dataset_field(d, 0)->rank == 3 &&
          lk_field_elements(lk_dataset_field(d, 0)) == 24);
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    lk_dataset_free(d);
    write_idx("probe/train-images-idx3-ubyte", 3, (int[]){5, 4, 6}, 119);
    CHECK_FAILS(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, NULL, &d), LK_EFORMAT, "train-images");

    CHECK_OK(context, lk_dataset_probe(context, "synthetic:3x8x8,count=1000000000,classes=7", LK_SPLIT_TEST, NULL, &d));
    CHECK(lk_dataset_count(d) == 250000000 && lk_dataset_find(d, "label")->classes == 7);
    lk_dataset_free(d);
    CHECK_FAILS(context, lk_dataset_probe(context, "synthetic:x", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "synthetic:x");
}

static void a_directory_without_the_data_set_sets_no_error(void)
{
    static const unsigned char record[3073] = {3};
    lk_context                *fresh;
    lk_dataset                *d;
    setenv("LOCKSTEP_DATA", scratch("data"), 1);
    setenv("HOME", scratch("home"), 1);
    lk__context_read_environment(context);
    mkdir(scratch("home/.cache/lockstep/cifar10"), 0777);
    write_file(scratch("home/.cache/lockstep/cifar10/test_batch.bin"), record, sizeof record);
    CHECK(lk_context_create(NULL, &fresh) == LK_OK);
    CHECK_OK(fresh, lk_dataset_open(fresh, "cifar10", LK_SPLIT_TEST, NULL, &d)); /* the second place that is searched */
    CHECK(strcmp(lk_context_error(fresh), "") == 0);
    lk_dataset_free(d);
    lk_context_free(fresh);
}

static void synthetic_samples_depend_on_seed_and_number_alone(void)
{
    lk_dataset_synthetic_config c = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_dataset                 *all, *part, *other;
    float                       a[64], b[64];
    int32_t                     la, lb;
    c.count = 500;
    CHECK_OK(context, lk_dataset_synthetic(context, &c, &all));
    c.first = 400, c.count = 100;
    CHECK_OK(context, lk_dataset_synthetic(context, &c, &part));
    c.seed = 1;
    CHECK_OK(context, lk_dataset_synthetic(context, &c, &other));
    int same_labels = 0;
    for (int i = 0; i < 100; i++) {
        CHECK_OK(context, get_pair(all, 400 + i, a, &la));
        CHECK_OK(context, get_pair(part, i, b, &lb));
        CHECK(la == lb && memcmp(a, b, sizeof a) == 0);
        CHECK_OK(context, get_pair(other, i, b, &lb));
        CHECK(memcmp(a, b, sizeof a) != 0);
        same_labels += la == lb;
    }
    CHECK(same_labels < 40);
    lk_dataset_free(all), lk_dataset_free(part), lk_dataset_free(other);
}

/* A nearest-mean classifier trained on the training set must do well on the test set: so a network can learn it. */
static void check_learnable(lk_dataset *train, lk_dataset *test)
{
    int64_t n = lk_field_elements(lk_dataset_field(train, 0)), classes = lk_dataset_find(train, "label")->classes;
    bool    bytes = lk_dataset_field(train, 0)->dtype == LK_U8;
    double *mean = calloc((size_t)(n * classes), sizeof *mean), *seen = calloc((size_t)classes, sizeof *seen);
    void   *sample = malloc((size_t)n * 4);
    int     correct = 0;
    int32_t label;
    for (int64_t i = 0; i < lk_dataset_count(train); i++) {
        CHECK_OK(context, get_pair(train, i, sample, &label));
        CHECK(label >= 0 && label < classes);
        seen[label]++;
        for (int64_t k = 0; k < n; k++)
            mean[label * n + k] += bytes ? ((unsigned char *)sample)[k] : ((float *)sample)[k];
    }
    for (int64_t c = 0; c < classes; c++) {
        CHECK(seen[c] > 0);
        for (int64_t k = 0; k < n; k++) mean[c * n + k] /= seen[c];
    }
    for (int64_t i = 0; i < lk_dataset_count(test); i++) {
        CHECK_OK(context, get_pair(test, i, sample, &label));
        int    best = 0;
        double least = 1e300;
        for (int64_t c = 0; c < classes; c++) {
            double distance = 0;
            for (int64_t k = 0; k < n; k++) {
                double difference = mean[c * n + k] - (bytes ? ((unsigned char *)sample)[k] : ((float *)sample)[k]);
                distance += difference * difference;
            }
            if (distance < least) least = distance, best = (int)c;
        }
        correct += best == label;
    }
    CHECK(correct > 0.9 * (double)lk_dataset_count(test));
    free(mean), free(seen), free(sample);
}

static void synthetic_data_can_be_learned(void)
{
    static const char *const names[] = {"synthetic", "synthetic:3x32x32,count=400",
                                        "synthetic:5x7,classes=3,count=200,seed=9", "synthetic:seed=4"};
    static const int64_t     counts[] = {4096, 400, 200, 4096};
    for (int i = 0; i < 4; i++) {
        lk_dataset *train, *test;
        CHECK_OK(context, lk_dataset_open(context, names[i], LK_SPLIT_TRAIN, NULL, &train));
        CHECK_OK(context, lk_dataset_open(context, names[i], LK_SPLIT_TEST, NULL, &test));
        CHECK(lk_dataset_count(train) == counts[i] && lk_dataset_count(test) == counts[i] / 4);
        CHECK(lk_dataset_field(train, 0)->dtype == (i == 1 ? LK_U8 : LK_F32));
        CHECK(lk_dataset_find(train, "label")->classes == (i == 2 ? 3 : 10));
        check_learnable(train, test);
        lk_dataset_free(train), lk_dataset_free(test);
    }
    static const char *const bad[] = {"synthetic:3x",
                                      "synthetic:x3",
                                      "synthetic:3x32x32,",
                                      "synthetic:count=",
                                      "synthetic:count=5,,seed=1",
                                      "synthetic:classes=99999999999",
                                      "synthetic:64 ",
                                      "synthetic:1x1x1x1x1x1x1",
                                      "synthetic:size=4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lk_dataset *d;
        CHECK_FAILS(context, lk_dataset_open(context, bad[i], LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, bad[i]);
    }
    lk_dataset *d;
    CHECK_FAILS(context, lk_dataset_open(context, "synthetic:0", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "of length 0");
    CHECK_FAILS(context, lk_dataset_open(context, "synthetic:count=0", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL,
                "0 samples");
    CHECK_FAILS(context, lk_dataset_open(context, "synthetic:classes=0", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL,
                "0 classes");
    CHECK_FAILS(context,
                lk_dataset_open(context, "synthetic:2000000000x2000000000x2000000000", LK_SPLIT_TRAIN, NULL, &d),
                LK_EINVAL, "too large");
}

static void arrays_are_copied_or_borrowed_and_labels_checked(void)
{
    float                    features[6] = {1, 2, 3, 4, 5, 6}, got[2];
    int32_t                  labels[3] = {0, 2, 1}, label;
    lk_dataset              *copied, *borrowed, *d;
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_field                 fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {2}},
                                         {.name = "label", .dtype = LK_I32, .classes = 3}};
    const void              *data[] = {features, labels};
    c.count = 3, c.fields = fields, c.fields_count = 2, c.data = data, c.copy = true;
    CHECK_OK(context, lk_dataset_from_arrays(context, &c, &copied));
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == sizeof features + sizeof labels);
    c.copy = false;
    CHECK_OK(context, lk_dataset_from_arrays(context, &c, &borrowed));
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == sizeof features + sizeof labels);
    features[3] = 40;
    CHECK_OK(context, get_pair(copied, 1, got, &label));
    CHECK(got[0] == 3 && got[1] == 4 && label == 2);
    CHECK_OK(context, get_pair(borrowed, 1, got, &label));
    CHECK(got[0] == 3 && got[1] == 40 && label == 2);
    labels[1] = 3;
    CHECK_FAILS(context, get_pair(borrowed, 1, got, &label), LK_EINVAL, "sample 1", "label 3");
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "sample 1", "label 3", "0 to 2");
    labels[1] = -1;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "label -1");
    fields[1].classes = 0;
    CHECK_OK(context, lk_dataset_from_arrays(context, &c, &d));
    lk_dataset_free(d);
    fields[0].dtype = LK_F64;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "f64");
    fields[0].dtype = LK_F32, c.count = 0;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "0 samples");
    c.count = 3, fields[0].rank = LK_MAX_RANK;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "rank 6");
    fields[0].rank = 1, data[1] = NULL;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "field 1 (label)");
    data[1] = labels, fields[1].name = "features";
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "two fields are named features");
    fields[1].name = "";
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "has no name");
    fields[1].name = "label", fields[0].classes = 3;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "class numbers must be i32");
    fields[0].classes = 0, c.fields_count = LK_MAX_FIELDS + 1;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "17");
    c.size = 0;
    CHECK_FAILS(context, lk_dataset_from_arrays(context, &c, &d), LK_EINVAL, "LK_DATASET_ARRAYS_CONFIG_INIT");
    CHECK(!d);
    lk_dataset_free(copied), lk_dataset_free(borrowed), lk_dataset_free(NULL);
}

static int opening; /* which way of opening attempt tests */

static lk_status attempt(lk_context *c)
{
    lk_dataset      *d = NULL;
    lk_loader       *loader = NULL;
    lk_status        status = opening == 0   ? lk_dataset_idx(c, scratch("fi"), scratch("fl"), 10, &d)
                              : opening == 1 ? lk_dataset_cifar10(c, scratch("cifar"), LK_SPLIT_TRAIN, &d)
                              : opening == 2 ? lk_dataset_synthetic(c, NULL, &d)
                                             : lk_dataset_open(c, "synthetic:3x8x8,count=40", LK_SPLIT_TEST, NULL, &d);
    lk_loader_config l = LK_LOADER_CONFIG_INIT;
    l.dataset = d, l.workers = 2, l.shuffle = true;
    if (status == LK_OK) status = lk_loader_create(c, &l, &loader);
    CHECK((status == LK_OK) == (loader != NULL));
    lk_loader_free(loader);
    lk_dataset_free(d);
    return status;
}

static void any_allocation_can_fail(void)
{
    uint32_t       shape[3] = {11, 28, 28};
    size_t         image_size, label_size;
    unsigned char *images = idx_bytes(3, shape, &image_size), *labels = idx_bytes(1, shape, &label_size);
    write_gzip(scratch("fi.gz"), images, image_size);
    write_file(scratch("fl"), labels, label_size);
    for (opening = 0; opening < 4; opening++) CHECK(fail_each_allocation(attempt) >= 4);
    free(images), free(labels);
}

/* lk__dataset_hold_out, of a data set in memory: both splits together are the whole, and a smaller set is split
 * alike. */
static void rows_are_held_out_by_their_number(void)
{
    int32_t                  values[1000];
    bool                     tested[1000] = {false};
    lk_field                 field = {.name = "features", .dtype = LK_I32};
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    for (int i = 0; i < 1000; i++) values[i] = i;
    c.fields = &field, c.fields_count = 1, c.data = (const void *[]){values};
    int64_t seen = 0;
    for (int pass = 0; pass < 4; pass++) {
        lk_dataset *d;
        lk_split    split = pass % 2 ? LK_SPLIT_TRAIN : LK_SPLIT_TEST;
        c.count = pass < 2 ? 1000 : 300;
        CHECK_OK(context, lk_dataset_from_arrays(context, &c, &d));
        CHECK_OK(context, lk__dataset_hold_out(d, split, 0.1, NULL));
        if (pass == 0) CHECK(lk_dataset_count(d) > 60 && lk_dataset_count(d) < 140);
        for (int64_t i = 0; i < lk_dataset_count(d); i++) {
            int32_t value;
            CHECK_OK(context, lk_dataset_get(d, i, (void *[]){&value}));
            if (pass == 0) tested[value] = true;
            CHECK(tested[value] == (split == LK_SPLIT_TEST));
            seen++;
        }
        lk_dataset_free(d);
    }
    CHECK(seen == 1300);
    lk_dataset *d;
    CHECK_OK(context, lk_dataset_from_arrays(context, &c, &d));
    CHECK(lk__dataset_hold_out(d, LK_SPLIT_TEST, 0, NULL) == LK_END &&
          lk__dataset_hold_out(d, LK_SPLIT_TRAIN, 0, NULL) == LK_OK);
    CHECK_FAILS(context, lk__dataset_hold_out(d, LK_SPLIT_TRAIN, 1, NULL), LK_EINVAL, "hold-out");
    CHECK_FAILS(context, lk__dataset_hold_out(d, LK_SPLIT_TEST, 1e-12, NULL), LK_EINVAL, "none for the test set");
    lk_dataset_free(d);
}

int main(void)
{
    make_scratch();
    context = make_context();
    RUN(cifar_files_of_any_length_are_read_in_order);
    RUN(invalid_cifar_files_are_reported_with_record_and_byte);
    RUN(idx_files_are_read_plain_and_gzip);
    RUN(idx_files_open_by_name);
    RUN(several_gzip_members_are_one_file);
    RUN(invalid_idx_files_are_reported_with_position);
    RUN(names_give_directories_or_advice);
    RUN(probing_finds_sizes_and_invalid_files_without_reading_samples);
    RUN(a_directory_without_the_data_set_sets_no_error);
    RUN(synthetic_samples_depend_on_seed_and_number_alone);
    RUN(synthetic_data_can_be_learned);
    RUN(arrays_are_copied_or_borrowed_and_labels_checked);
    RUN(rows_are_held_out_by_their_number);
    RUN(any_allocation_can_fail);
    free_context(context);
    return 0;
}
