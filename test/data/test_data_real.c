/* test_data_real.c - a subset of CIFAR-10 and Fashion-MNIST, compared with plain file reading and zlib's gzip reader.
 * Skipped (77) if either is not available. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "test_data.h"

#include <math.h>

static lk_context *context;

static void cifar_is_read_as_by_plain_file_reading(const char *directory)
{
    lk_dataset *d;
    CHECK_OK(context, lk_dataset_cifar10(context, directory, LK_SPLIT_TRAIN, &d));
    CHECK(lk_dataset_count(d) % 5000 == 0);
    int64_t at = 0;
    for (int f = 1; f <= 5; f++) {
        char          path[1200];
        unsigned char sample[3072];
        int32_t       label;
        size_t        size;
        snprintf(path, sizeof path, "%s/data_batch_%d.bin", directory, f);
        unsigned char *bytes = read_whole(path, &size);
        for (size_t i = 0; i < size / 3073; i++, at++) {
            CHECK_OK(context, get_pair(d, at, sample, &label));
            CHECK(label == bytes[i * 3073] && memcmp(sample, bytes + i * 3073 + 1, 3072) == 0);
        }
        free(bytes);
    }
    CHECK(at == lk_dataset_count(d));

    /* A shuffled, prefetched epoch: its mean equals that of a naive sum over the files' bytes. */
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    lk_loader       *loader;
    lk_batch         b;
    double           sum = 0, wanted = 0;
    int64_t          classes[10] = {0};
    c.dataset = d, c.batch = 64, c.shuffle = true, c.workers = 2;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (lk_loader_next(loader, &b) == LK_OK) {
        for (int64_t i = 0; i < b.count * 3072; i++) sum += ((const float *)b.fields[0])[i];
        for (int64_t i = 0; i < b.count; i++) classes[((const int32_t *)b.fields[1])[i]]++;
    }
    for (int64_t i = 0; i < lk_dataset_count(d); i++) {
        unsigned char sample[3072];
        int32_t       label;
        CHECK_OK(context, get_pair(d, i, sample, &label));
        classes[label]--;
        for (int k = 0; k < 3072; k++) wanted += (sample[k] / 255.0 - 0.5) / 0.5;
    }
    CHECK(fabs(sum - wanted) < 1e-6 * (double)lk_dataset_count(d) * 3072);
    for (int k = 0; k < 10; k++) CHECK(classes[k] == 0);
    lk_loader_free(loader);
    lk_dataset_free(d);
    CHECK_OK(context, lk_dataset_cifar10(context, directory, LK_SPLIT_TEST, &d));
    lk_dataset_free(d);
}

static void fashion_is_read_as_by_zlib(void)
{
    static const char *const sets[] = {"train", "t10k"};
    for (int set = 0; set < 2; set++) {
        lk_dataset *d;
        unsetenv("LOCKSTEP_DATA");
        setenv("HOME", "/nowhere", 1); /* so that the package is found */
        lk__context_read_environment(context);
        CHECK_OK(context, lk_dataset_open(context, "fashion-mnist", set ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, NULL, &d));
        CHECK(lk_dataset_count(d) == (set ? 10000 : 60000) && lk_dataset_find(d, "label")->classes == 10);
        CHECK(lk_dataset_field(d, 0)->dims[0] == 1 && lk_dataset_field(d, 0)->dims[1] == 28 &&
              lk_dataset_field(d, 0)->dims[2] == 28);
        CHECK(strcmp(lk_field_class_name(lk_dataset_find(d, "label"), 9), "Ankle boot") == 0);
        char path[256];
        snprintf(path, sizeof path, "/usr/share/datasets/fashion-mnist/%s-images-idx3-ubyte.gz", sets[set]);
        gzFile images = gzopen(path, "rb");
        snprintf(path, sizeof path, "/usr/share/datasets/fashion-mnist/%s-labels-idx1-ubyte.gz", sets[set]);
        gzFile labels = gzopen(path, "rb");
        CHECK(images && labels);
        unsigned char wanted[784], sample[784], head[16];
        int64_t       per_class[10] = {0};
        CHECK(gzread(images, head, 16) == 16 && gzread(labels, head, 8) == 8);
        for (int64_t i = 0; i < lk_dataset_count(d); i++) {
            int32_t label;
            CHECK_OK(context, get_pair(d, i, sample, &label));
            CHECK(gzread(images, wanted, 784) == 784 && memcmp(wanted, sample, 784) == 0);
            CHECK(gzgetc(labels) == label);
            per_class[label]++;
        }
        for (int k = 0; k < 10; k++) CHECK(per_class[k] == lk_dataset_count(d) / 10); /* classes are balanced */
        gzclose(images), gzclose(labels);
        lk_dataset_free(d);
    }
}

int main(void)
{
    bool skipped = false;
    context = make_context();
    char directory[1024];
    snprintf(directory, sizeof directory, "%s", shared("data/cifar-10-batches-bin"));
    if (access(directory, F_OK) == 0) {
        printf("cifar_is_read_as_its_files_say\n");
        cifar_is_read_as_by_plain_file_reading(directory);
    } else {
        printf("skipped: %s does not exist; set LOCKSTEP_SHARED\n", directory);
        skipped = true;
    }
    if (access("/usr/share/datasets/fashion-mnist", F_OK) == 0) {
        RUN(fashion_is_read_as_by_zlib);
    } else {
        printf("skipped: the package dataset-fashion-mnist is not installed\n");
        skipped = true;
    }
    free_context(context);
    return skipped ? 77 : 0;
}
