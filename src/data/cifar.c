/* cifar.c - the binary version of CIFAR-10: records of a label byte and 3 × 32 × 32 pixels, held in memory
 * unchanged. */
#include "data/dataset.h"

enum { CLASSES = 10, FILES = 5 };

static const char *const class_names[CLASSES] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};
static const char *const train_files[FILES] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                               "data_batch_4.bin", "data_batch_5.bin"};
static const char *const test_files[1] = {"test_batch.bin"};

static lk_status report_truncated(lk_context *context, const char *name, uint64_t size)
{
    uint64_t records = size / LK__CIFAR_RECORD;
    return lk__fail(context, LK_EFORMAT,
                    "%s is truncated or in a different format: record %llu, at byte %llu, has only %d of %d bytes",
                    name, (unsigned long long)records, (unsigned long long)records * LK__CIFAR_RECORD,
                    (int)(size % LK__CIFAR_RECORD), LK__CIFAR_RECORD);
}

lk_status lk__cifar_check(lk_context *context, const char *name, const unsigned char *bytes, size_t size,
                          int64_t *count)
{
    *count = 0;
    if (size == 0) return lk__fail(context, LK_EFORMAT, "%s is empty", name);
    int64_t records = (int64_t)(size / LK__CIFAR_RECORD);
    for (int64_t i = 0; i < records; i++) {
        unsigned label = bytes[i * LK__CIFAR_RECORD];
        if (label >= CLASSES)
            return lk__fail(context, LK_EFORMAT,
                            "%s: record %lld, at byte %lld, has label %u: CIFAR-10 labels are 0 to 9. The file is "
                            "damaged or in a different format",
                            name, (long long)i, (long long)i * LK__CIFAR_RECORD, label);
    }
    if (size % LK__CIFAR_RECORD != 0) return report_truncated(context, name, size);
    *count = records;
    return LK_OK;
}

/* Searches the directory and its cifar-10-batches-bin. *missing is the first file that is in neither. */
static bool find_directory(const char *directory, const char *const *files, int count, char found[LK__PATH],
                           const char **missing)
{
    static const char *const places[] = {"", "/cifar-10-batches-bin"};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        int n = 0;
        for (; n < count; n++) {
            char path[LK__PATH];
            if (!lk__path(path, "%s%s/%s", directory, places[p], files[n]) || !lk__path_exists(path)) break;
        }
        if (n > 0 || p == 0) *missing = files[n < count ? n : 0];
        if (n < count) continue;
        return lk__path(found, "%s%s", directory, places[p]);
    }
    return false;
}

bool lk__cifar_exists(const char *directory, lk_split split)
{
    bool        train = split == LK_SPLIT_TRAIN;
    const char *missing;
    char        found[LK__PATH];
    return find_directory(directory, train ? train_files : test_files, train ? FILES : 1, found, &missing);
}

static lk_status report_missing(lk_context *context, const char *directory, bool train, const char *missing)
{
    char        path[LK__PATH];
    bool        foreign = lk__path(path, "%s/cifar-10-batches-py", directory) && lk__path_exists(path);
    const char *python = foreign ? " (cifar-10-batches-py is the Python version; expected the binary one)" : "";
    return lk__fail(context, LK_ENOENT,
                    "CIFAR-10 not found in %s or its cifar-10-batches-bin: searched for %s; %s is missing%s. Get it "
                    "with: lockstep data get cifar10",
                    directory, train ? "data_batch_1.bin to data_batch_5.bin" : "test_batch.bin", missing, python);
}

/* The files of a split, open. */
typedef struct cifar_files {
    int             count;
    char            paths[FILES][LK__PATH];
    lk__data_stream streams[FILES];
    uint64_t        total; /* bytes */
} cifar_files;

static void close_files(cifar_files *f)
{
    for (int i = 0; i < f->count; i++) lk__stream_close(&f->streams[i]);
}

static lk_status check_file(lk_context *context, const char *path, const lk__data_stream *stream, bool whole)
{
    if (stream->gzip) return lk__fail(context, LK_EFORMAT, "%s is compressed with gzip: decompress it first", path);
    if (stream->size < LK__CIFAR_RECORD)
        return lk__fail(context, LK_EFORMAT, "%s is %s: it has %llu bytes, but a CIFAR-10 record has %d", path,
                        stream->size ? "truncated" : "empty", (unsigned long long)stream->size, LK__CIFAR_RECORD);
    if (whole && stream->size % LK__CIFAR_RECORD != 0) return report_truncated(context, path, stream->size);
    return LK_OK;
}

/* Adds up the sizes of the files before they are read, so that there is one allocation and no copy. whole: their sizes
 * are checked. */
static lk_status open_files(lk_context *context, const char *directory, bool train, bool whole, cifar_files *f)
{
    const char *const *files = train ? train_files : test_files;
    const char        *missing = NULL;
    char               found[LK__PATH];
    lk_status          status = LK_OK;
    int                count = train ? FILES : 1;
    f->count = 0;
    f->total = 0;
    if (!find_directory(directory, files, count, found, &missing))
        return report_missing(context, directory, train, missing);
    while (f->count < count && status == LK_OK) {
        char            *path = f->paths[f->count];
        lk__data_stream *stream = &f->streams[f->count];
        lk__path(path, "%s/%s", found, files[f->count]); /* fits: find_directory formatted it before */
        f->count++;
        status = lk__stream_open(context, path, stream);
        if (status == LK_OK) status = check_file(context, path, stream, whole);
        f->total += stream->size;
    }
    if (status < 0) close_files(f);
    return status;
}

/* All records, and their labels. */
static lk_status read_files(lk_context *context, cifar_files *f, lk_dataset *d)
{
    int32_t       *labels = lk__dataset_column(d, 1);
    unsigned char *bytes = d->owned[0] = lk__alloc(context, LK_MEMORY_DATA, (size_t)f->total);
    d->owned_bytes[0] = (size_t)f->total;
    d->strides[0] = LK__CIFAR_RECORD;
    if (!labels || !bytes) return LK_ENOMEM;
    for (int i = 0; i < f->count; i++) {
        size_t    got = 0;
        int64_t   records = 0;
        lk_status status = lk__stream_read(&f->streams[i], bytes, (size_t)f->streams[i].size, &got);
        if (status == LK_OK) status = lk__cifar_check(context, f->paths[i], bytes, got, &records);
        if (status < 0) return status;
        if (got != f->streams[i].size)
            return lk__fail(context, LK_EFORMAT, "%s was truncated while being read", f->paths[i]);
        bytes += got;
    }
    bytes = d->owned[0];
    for (int64_t i = 0; i < d->count; i++) labels[i] = bytes[i * LK__CIFAR_RECORD];
    d->columns[0] = bytes + 1; /* past the first record's label */
    return LK_OK;
}

lk_status lk__cifar_open(lk_context *context, const char *directory, lk_split split, bool probe, lk_dataset **dataset)
{
    static const int64_t dims[3] = {3, 32, 32};
    cifar_files          files;
    lk_dataset          *d = NULL;
    *dataset = NULL;
    lk_status status = open_files(context, directory, split == LK_SPLIT_TRAIN, probe, &files);
    if (status < 0) return status;
    lk__dataset_labelled about = {.name = "cifar10",
                                  .count = (int64_t)(files.total / LK__CIFAR_RECORD),
                                  .rank = 3,
                                  .dims = dims,
                                  .dtype = LK_U8,
                                  .classes = CLASSES,
                                  .class_names = class_names};
    status = lk__dataset_make_labelled(context, &about, &d);
    if (status == LK_OK && !probe) status = read_files(context, &files, d);
    close_files(&files);
    if (status == LK_OK)
        *dataset = d;
    else
        lk_dataset_free(d);
    return status;
}

lk_status lk_dataset_cifar10(lk_context *context, const char *directory, lk_split split, lk_dataset **dataset)
{
    lk_dataset *parts[2] = {0};
    if (split != LK_SPLIT_ALL) return lk__cifar_open(context, directory, split, false, dataset);
    *dataset = NULL;
    lk_status status = lk__cifar_open(context, directory, LK_SPLIT_TRAIN, false, &parts[0]);
    if (status == LK_OK) status = lk__cifar_open(context, directory, LK_SPLIT_TEST, false, &parts[1]);
    if (status == LK_OK) return lk__dataset_join(parts[0], parts[1], dataset);
    lk_dataset_free(parts[0]);
    return status;
}
