/* known.c - the public data sets: URLs, sizes and SHA-256.
 *
 * Sizes, sums and addresses are those that TensorFlow Datasets 4.9.4 publishes in its url_checksums (cifar10.txt,
 * fashion_mnist.txt, mnist.txt). Debian's package dataset-fashion-mnist holds the same files with another gzip header,
 * so its sums differ; with the name and time of the original header restored, all four have the sums below and the MD5
 * sums of Fashion-MNIST's README. The package's files are read where they are installed, never downloaded. */
#include "base/directories.h"
#include "data/download.h"
#include "data/path.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES(array) array, sizeof array / sizeof *array

static const lk__data_known_file cifar10_files[] = {
    {"cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
};
static const char *const         cifar10_members[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                      "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
static const lk__data_known_file fashion_files[] = {
    {"train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
    {"train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
    {"t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
    {"t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"},
};
static const lk__data_known_file mnist_files[] = {
    {"train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
    {"train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
    {"t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
    {"t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
};

const lk__data_known_set lk__known_sets[] = {
    {"cifar10", "https://www.cs.toronto.edu/~kriz", FILES(cifar10_files), NULL, "cifar-10-batches-bin",
     FILES(cifar10_members), 30730000},
    {"fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", FILES(fashion_files),
     "dataset-fashion-mnist", NULL, NULL, 0, 0},
    {"mnist", "https://storage.googleapis.com/cvdf-datasets/mnist", FILES(mnist_files), NULL, NULL, NULL, 0, 0},
};
const int lk__known_set_count = sizeof lk__known_sets / sizeof *lk__known_sets;

/* Whether all members of the archive exist with the right size. */
static bool is_unpacked(const lk__data_known_set *set, const char *directory)
{
    for (int i = 0; i < set->member_count; i++) {
        char        path[LK__PATH];
        struct stat about;
        if (!lk__path(path, "%s/%s/%s", directory, set->member_directory, set->members[i]) || stat(path, &about) != 0 ||
            !S_ISREG(about.st_mode) || about.st_size != set->member_bytes)
            return false;
    }
    return set->member_count > 0;
}

/* base/name; base itself if it already ends in /name. */
static bool make_url(char url[LK__PATH], const char *base, const char *name)
{
    size_t length = strlen(base), tail = strlen(name);
    if (length > tail && base[length - tail - 1] == '/' && strcmp(base + length - tail, name) == 0)
        return lk__path(url, "%s", base);
    while (length > 0 && base[length - 1] == '/') length--;
    return lk__path(url, "%.*s/%s", (int)length, base, name);
}

static lk_status report_unpacked(const lk__data_download *d)
{
    if (d->progress) d->progress(d->user, d->total, d->total);
    return LK_OK;
}

/* url: of all files, or NULL for the set's own. */
static lk_status download_and_unpack(lk__data_download *d, const char *url)
{
    const lk__data_known_set *set = d->set;
    lk_status                 status = LK_OK;
    for (int i = 0; i < set->file_count && status == LK_OK; i++) {
        char address[LK__PATH];
        if (!make_url(address, url ? url : set->url, set->files[i].name))
            return lk__fail(d->context, LK_EINVAL, "the URL %s is longer than %d bytes", url, LK__PATH);
        status = lk__download_file(d, &set->files[i], address);
    }
    if (status < 0 || set->member_count == 0) return status;
    char archive[LK__PATH];
    lk__path(archive, "%s/%s", d->directory, set->files[0].name); /* fits: it was just written */
    if ((status = lk__untar(d->context, archive, set, d->directory)) < 0) return status;
    unlink(archive);
    return LK_OK;
}

lk_status lk__data_get(lk_context *context, const lk__data_known_set *set, const char *directory,
                       const lk__data_transfer *transfer)
{
    lk__data_curl     curl = {0};
    lk__data_download d = {.context = context,
                           .curl = &curl,
                           .set = set,
                           .directory = directory,
                           .retry = transfer->retry,
                           .progress = transfer->progress,
                           .user = transfer->user};
    int               lock;
    for (int i = 0; i < set->file_count; i++) d.total += set->files[i].bytes;
    if (is_unpacked(set, directory)) return report_unpacked(&d);
    lk_status status = lk__make_directories(context, directory);
    if (status < 0) return status;
    if ((status = lk__curl_load(context, &curl)) < 0) return status;
    if ((status = lk__download_lock(&d, &lock)) >= 0) {
        status = is_unpacked(set, directory) ? report_unpacked(&d) : download_and_unpack(&d, transfer->url);
        lk__download_unlock(lock);
    }
    lk__curl_unload(&curl);
    return status;
}

lk_status lk_data_get(lk_context *context, const char *name, const char *directory, const char *url,
                      lk_data_progress progress, void *user)
{
    static const lk__data_retry retry = {
        .attempts = 4, .backoff_ms = 1000, .connect_ms = 15000, .stall_s = 30, .lock_s = 600};
    char                      usual[LK__PATH];
    const char               *names[8];
    const lk__data_known_set *set = NULL;
    for (int i = 0; i < lk__known_set_count; i++) {
        names[i] = lk__known_sets[i].name;
        if (name && strcmp(name, names[i]) == 0) set = &lk__known_sets[i];
    }
    if (!set) {
        const char *suggestion = name ? lk__suggest(name, names, (size_t)lk__known_set_count) : NULL;
        return lk__fail(context, LK_EINVAL, "unknown data set: %s%s%s%s; expected cifar10, fashion-mnist or mnist",
                        name ? name : "(nothing)", suggestion ? " (did you mean " : "", suggestion ? suggestion : "",
                        suggestion ? "?)" : "");
    }
    if (!directory) {
        lk_status status = lk_data_directory(context, name, usual, sizeof usual);
        if (status < 0) return status;
        directory = usual;
    }
    return lk__data_get(context, set, directory, &(lk__data_transfer){url, retry, progress, user});
}
