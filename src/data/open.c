/* open.c - opens data sets by name: the directories that are searched, and messages about missing files. */
#define _GNU_SOURCE
#include "base/config.h"
#include "data/array/array.h"
#include "data/csv/csv.h"
#include "data/dataset.h"
#include "data/folder/folder.h"
#include "data/text/text.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const fashion_names[10] = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                              "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
static const char *const digit_names[10] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};

/* NAME in the user's cache, as the XDG Base Directory Specification has it: a relative XDG_CACHE_HOME is invalid and ignored. Returns as
 * snprintf. */
static int cache_place(const char *name, bool xdg, char *path, size_t bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && cache && cache[0] == '/') return snprintf(path, bytes, "%s/lockstep/%s", cache, name);
    if (!home || !*home) {
        struct passwd *user = getpwuid(getuid());
        home = user && user->pw_dir ? user->pw_dir : "/";
    }
    return snprintf(path, bytes, "%s/.cache/lockstep/%s", home, name);
}

lk_status lk_data_directory(lk_context *context, const char *name, char *path, size_t bytes)
{
    const char *root = getenv("LOCKSTEP_DATA");
    if (bytes == 0) return lk__fail(context, LK_EINVAL, "a buffer of 0 bytes for a path");
    int length = root && *root ? snprintf(path, bytes, "%s/%s", root, name) : cache_place(name, true, path, bytes);
    if (length < 0 || (size_t)length >= bytes)
        return lk__fail(context, LK_EINVAL, "the path of %s is longer than %zu bytes", name, bytes);
    return LK_OK;
}

enum { PLACES = 6 };

/* Adds a place that is not in the list yet. */
static void add_place(char places[PLACES][LK__PATH], int *count, const char *path)
{
    for (int i = 0; i < *count; i++)
        if (strcmp(places[i], path) == 0) return;
    if (lk__path(places[*count], "%s", path)) (*count)++;
}

/* The directories to search for name if none was given: also ~/.cache where XDG_CACHE_HOME is another, for it may have been set later. */
static lk_status list_places(lk_context *context, const char *name, const char *packaged, char places[PLACES][LK__PATH],
                             int *count)
{
    char path[LK__PATH];
    *count = 0;
    lk_status status = lk_data_directory(context, name, places[(*count)++], LK__PATH);
    if (status < 0) return status;
    for (int xdg = 1; xdg >= 0; xdg--)
        if (cache_place(name, xdg == 1, path, sizeof path) < (int)sizeof path) add_place(places, count, path);
    if (packaged) add_place(places, count, packaged);
    return LK_OK;
}

/* Joins the places with commas, for a message. */
static void join_places(char *text, size_t bytes, char places[PLACES][LK__PATH], int count)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", places[i]);
}

static lk_status open_cifar(lk_context *context, const char *directory, lk_split split, const lk_open_options *options,
                            bool probe, lk_dataset **dataset)
{
    (void)options;
    char places[PLACES][LK__PATH], tried[LK__PATH];
    int  count = 0;
    if (directory) return lk__cifar_open(context, directory, split, probe, dataset);
    lk_status status = list_places(context, "cifar10", NULL, places, &count);
    if (status < 0) return status;
    for (int i = 0; i < count; i++)
        if (lk__cifar_exists(places[i], split)) return lk__cifar_open(context, places[i], split, probe, dataset);
    join_places(tried, sizeof tried, places, count);
    return lk__fail(context, LK_ENOENT,
                    "CIFAR-10 not found: searched for %s in %s. Get it with: lockstep data get cifar10. Or give its "
                    "directory: cifar10:DIR",
                    split == LK_SPLIT_TRAIN ? "data_batch_1.bin to data_batch_5.bin" : "test_batch.bin", tried);
}

static lk_status open_idx_set(lk_context *context, bool fashion, const char *directory, lk_split split, bool probe,
                              lk_dataset **dataset)
{
    const char *name = fashion ? "fashion-mnist" : "mnist", *set = split == LK_SPLIT_TRAIN ? "train" : "t10k";
    /* The directory itself, and the subdirectory of PyTorch's downloads. */
    const char *const layouts[] = {"", fashion ? "/FashionMNIST/raw" : "/MNIST/raw"};
    char              places[PLACES][LK__PATH], tried[LK__PATH], images[LK__PATH], labels[LK__PATH], found[LK__PATH];
    int               count = 1;
    if (directory) {
        if (!lk__path(places[0], "%s", directory))
            return lk__fail(context, LK_EINVAL, "%s: the path is longer than %d bytes", name, LK__PATH);
    } else {
        lk_status status =
            list_places(context, name, fashion ? "/usr/share/datasets/fashion-mnist" : NULL, places, &count);
        if (status < 0) return status;
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 2; k++) {
            if (lk__path(images, "%s%s/%s-images-idx3-ubyte", places[i], layouts[k], set) &&
                lk__path(labels, "%s%s/%s-labels-idx1-ubyte", places[i], layouts[k], set) &&
                lk__idx_find(images, found) && lk__idx_find(labels, found))
                return lk__idx_open(context, name, images, labels, 10, fashion ? fashion_names : digit_names, NULL,
                                    probe, dataset);
        }
    }
    join_places(tried, sizeof tried, places, count);
    return lk__fail(context, LK_ENOENT,
                    "%s not found: searched for %s-images-idx3-ubyte and %s-labels-idx1-ubyte, plain and .gz, in %s. "
                    "Get it with: lockstep data get %s%s. Or give its directory: %s:DIR",
                    fashion ? "Fashion-MNIST" : "MNIST", set, set, tried, name,
                    fashion ? ", or install the package dataset-fashion-mnist" : "", name);
}

/* Parses a number at *text and advances *text; false if there is none or it is above `most`. */
static bool parse_number(const char **text, int64_t most, int64_t *number)
{
    char *end;
    errno = 0;
    if (**text < '0' || **text > '9') return false;
    long long value = strtoll(*text, &end, 10);
    if (errno || value > most) return false;
    *text = end;
    *number = value;
    return true;
}

/* "3x32x32,classes=10,count=5000,seed=1"; each part is optional. */
static bool parse_synthetic(const char *text, lk_dataset_synthetic_config *config)
{
    int64_t number;
    if (*text >= '0' && *text <= '9') {
        config->rank = 0;
        do {
            if (config->rank > 0) text++; /* the x */
            if (config->rank >= LK_MAX_RANK || !parse_number(&text, INT32_MAX, &config->dims[config->rank++]))
                return false;
        } while (*text == 'x');
        if (*text == ',' && text[1])
            text++;
        else if (*text)
            return false;
    }
    while (*text) {
        static const char *const keys[] = {"classes=", "count=", "seed=", "vocabulary="};
        int                      key = 0;
        while (key < 4 && strncmp(text, keys[key], strlen(keys[key])) != 0) key++;
        if (key == 4) return false;
        text += strlen(keys[key]);
        if (!parse_number(&text, key % 3 == 0 ? INT32_MAX : INT64_MAX, &number)) return false;
        if (key % 3 == 0) config->classes = (int)number;
        if (key == 1) config->count = number;
        if (key == 2) config->seed = (uint64_t)number;
        if (*text == ',' && text[1])
            text++;
        else if (*text)
            return false;
    }
    return true;
}

static lk_status open_fashion(lk_context *context, const char *directory, lk_split split,
                              const lk_open_options *options, bool probe, lk_dataset **dataset)
{
    (void)options;
    return open_idx_set(context, true, directory, split, probe, dataset);
}

static lk_status open_mnist(lk_context *context, const char *directory, lk_split split, const lk_open_options *options,
                            bool probe, lk_dataset **dataset)
{
    (void)options;
    return open_idx_set(context, false, directory, split, probe, dataset);
}

static lk_status open_synthetic(lk_context *context, const char *text, lk_split split, const lk_open_options *options,
                                bool probe, lk_dataset **dataset)
{
    (void)options;
    lk_dataset_synthetic_config config = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    if (text && !parse_synthetic(text, &config))
        return lk__fail(context, LK_EINVAL,
                        "synthetic:%s is invalid; an example: synthetic:3x32x32,classes=10,count=5000,seed=1", text);
    config.dtype = config.rank == 3 ? LK_U8 : LK_F32;
    if (split == LK_SPLIT_TEST) { /* a quarter as many samples, after those of the training set */
        config.first = config.count;
        config.count = (config.count + 3) / 4;
    }
    return lk__synthetic_make(context, &config, probe, dataset);
}

static lk_status open_synthetic_tokens(lk_context *context, const char *text, lk_split split,
                                       const lk_open_options *options, bool probe, lk_dataset **dataset)
{
    (void)options;
    lk_dataset_synthetic_config config = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    if (text && !parse_synthetic(text, &config))
        return lk__fail(
            context, LK_EINVAL,
            "synthetic-tokens:%s is invalid; an example: synthetic-tokens:256,vocabulary=65,count=5000,seed=1", text);
    if (split == LK_SPLIT_TEST) {
        config.first = config.count;
        config.count = (config.count + 3) / 4;
    }
    return lk__synthetic_tokens_make(context, &config, probe, dataset);
}

/* The kinds of data sets, by the part of the name before the colon. */
static const struct {
    const char *name;
    lk_status (*open)(lk_context *context, const char *rest, lk_split split, const lk_open_options *options, bool probe,
                      lk_dataset **dataset); /* rest: after the colon; NULL: nothing */
    bool text;                               /* a holdout of 0 is its own default; of others it is none, as -1 */
} kinds[] = {
    {"cifar10", open_cifar, false},
    {"fashion-mnist", open_fashion, false},
    {"mnist", open_mnist, false},
    {"synthetic", open_synthetic, false},
    {"synthetic-tokens", open_synthetic_tokens, false},
    {"folder", lk__data_folder_open, false},
    {"npy", lk__npy_open, false},
    {"npz", lk__npz_open, false},
    {"safetensors", lk__safetensors_data_open, false},
    {"csv", lk__csv_open_data, false},
    {"idx", lk__idx_open_data, false},
    {"text", lk__text_open, true},
    {"jsonl", lk__jsonl_open, true},
    {"tokens", lk__tokens_open, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static lk_status report_unknown(lk_context *context, const char *key)
{
    const char *names[KINDS], *suggestion;
    char        all[512];
    size_t      used = 0;
    for (int i = 0; i < KINDS; i++) {
        names[i] = kinds[i].name;
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                                 !i              ? ""
                                 : i < KINDS - 1 ? ", "
                                                 : " and ",
                                 kinds[i].name);
    }
    if (!*key) return lk__fail(context, LK_EINVAL, "a data set needs a name: known are %s", all);
    suggestion = lk__suggest(key, names, KINDS);
    return lk__fail(context, LK_EINVAL, "unknown data set: %s%s%s%s; known are %s", key,
                    suggestion ? " (did you mean " : "", suggestion ? suggestion : "", suggestion ? "?)" : "", all);
}

/* All samples: with nothing held out, those for training and those of a test set of its own. */
static lk_status open_all(int kind, lk_context *context, const char *rest, lk_open_options *options, bool probe,
                          lk_dataset **dataset)
{
    lk_dataset *train = NULL, *test = NULL;
    options->holdout = kinds[kind].text ? -1 : 0;
    if (kinds[kind].text && options->stride == 0)
        options->stride = options->context ? options->context : LK__TEXT_LENGTH;
    lk_status status = kinds[kind].open(context, rest, LK_SPLIT_TRAIN, options, probe, &train);
    if (status < 0) return status;
    status = kinds[kind].open(context, rest, LK_SPLIT_TEST, options, probe, &test);
    if (status == LK_OK) return lk__dataset_join(train, test, dataset);
    if (status == LK_END)
        *dataset = train;
    else
        lk_dataset_free(train);
    return status == LK_END ? LK_OK : status;
}

static lk_status open_named(lk_context *context, const char *name, lk_split split, const lk_open_options *given,
                            bool probe, lk_dataset **dataset)
{
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    char            key[64];
    *dataset = NULL;
    if (!name) name = "";
    lk_status status = LK__CONFIG_READ(context, lk_open_options, given, &options);
    if (status < 0) return status;
    const char *colon = strchr(name, ':');
    size_t      length = colon ? (size_t)(colon - name) : strlen(name);
    snprintf(key, sizeof key, "%.*s", length < sizeof key ? (int)length : (int)sizeof key - 1, name);
    for (int i = 0; i < KINDS; i++)
        if (strcmp(key, kinds[i].name) == 0) {
            const char *rest = colon && colon[1] ? colon + 1 : NULL;
            if (split == LK_SPLIT_ALL) return open_all(i, context, rest, &options, probe, dataset);
            if (options.holdout == -1 && !kinds[i].text) options.holdout = 0;
            return kinds[i].open(context, rest, split, &options, probe, dataset);
        }
    return report_unknown(context, key);
}

lk_status lk_dataset_open(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                          lk_dataset **dataset)
{
    return open_named(context, name, split, options, false, dataset);
}

lk_status lk_dataset_probe(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                           lk_dataset **dataset)
{
    return open_named(context, name, split, options, true, dataset);
}
