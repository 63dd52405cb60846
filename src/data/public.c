/* public.c - the public data sets by name: the directories that are searched for their files, and messages about
 * missing ones. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "data/format.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const fashion_names[10] = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                              "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
static const char *const digit_names[10] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};

/* NAME in the user's cache, as the XDG Base Directory Specification has it: a relative XDG_CACHE_HOME is invalid and
 * ignored. Returns as snprintf. */
static int cache_place(const lk_context *context, const char *name, bool xdg, char *path, size_t bytes)
{
    const char *cache = lk__environment(context, LK__ENV_XDG_CACHE_HOME),
               *home = lk__environment(context, LK__ENV_HOME);
    if (xdg && cache && cache[0] == '/') return snprintf(path, bytes, "%s/lockstep/%s", cache, name);
    if (!home || !*home) {
        struct passwd *user = getpwuid(getuid());
        home = user && user->pw_dir ? user->pw_dir : "/";
    }
    return snprintf(path, bytes, "%s/.cache/lockstep/%s", home, name);
}

lk_status lk_data_directory(lk_context *context, const char *name, char *path, size_t bytes)
{
    const char *root = lk__environment_text(context, LK__ENV_LOCKSTEP_DATA);
    if (bytes == 0) return lk__fail(context, LK_EINVAL, "the path buffer has 0 bytes");
    int length = root ? snprintf(path, bytes, "%s/%s", root, name) : cache_place(context, name, true, path, bytes);
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

/* The directories to search for name if none was given: also ~/.cache where XDG_CACHE_HOME is another, for it may
 * have been set later. */
static lk_status list_places(lk_context *context, const char *name, const char *packaged, char places[PLACES][LK__PATH],
                             int *count)
{
    char path[LK__PATH];
    *count = 0;
    lk_status status = lk_data_directory(context, name, places[(*count)++], LK__PATH);
    if (status < 0) return status;
    for (int xdg = 1; xdg >= 0; xdg--)
        if (cache_place(context, name, xdg == 1, path, sizeof path) < (int)sizeof path) add_place(places, count, path);
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

static lk_status open_cifar(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    lk_split split = request->split;
    char     places[PLACES][LK__PATH], tried[LK__PATH];
    int      count = 0;
    if (request->rest) return lk__cifar_open(context, request->rest, split, request->probe, dataset);
    lk_status status = list_places(context, "cifar10", NULL, places, &count);
    if (status < 0) return status;
    for (int i = 0; i < count; i++)
        if (lk__cifar_exists(places[i], split))
            return lk__cifar_open(context, places[i], split, request->probe, dataset);
    join_places(tried, sizeof tried, places, count);
    return lk__fail(context, LK_ENOENT,
                    "CIFAR-10 not found: searched for %s in %s. Get it with: lockstep data get cifar10. Or give its "
                    "directory: cifar10:DIR",
                    split == LK_SPLIT_TRAIN ? "data_batch_1.bin to data_batch_5.bin" : "test_batch.bin", tried);
}

static lk_status open_idx_set(lk_context *context, bool fashion, const lk__data_request *request, lk_dataset **dataset)
{
    const char *directory = request->rest, *name = fashion ? "fashion-mnist" : "mnist";
    const char *set = request->split == LK_SPLIT_TRAIN ? "train" : "t10k";
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
    lk__data_idx_config config = {
        .name = name, .classes = 10, .class_names = fashion ? fashion_names : digit_names, .probe = request->probe};
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 2; k++) {
            if (lk__path(images, "%s%s/%s-images-idx3-ubyte", places[i], layouts[k], set) &&
                lk__path(labels, "%s%s/%s-labels-idx1-ubyte", places[i], layouts[k], set) &&
                lk__idx_find(images, found) && lk__idx_find(labels, found))
                return lk__idx_open(context, &config, images, labels, dataset);
        }
    }
    join_places(tried, sizeof tried, places, count);
    return lk__fail(context, LK_ENOENT,
                    "%s not found: searched for %s-images-idx3-ubyte and %s-labels-idx1-ubyte, plain and .gz, in %s. "
                    "Get it with: lockstep data get %s%s. Or give its directory: %s:DIR",
                    fashion ? "Fashion-MNIST" : "MNIST", set, set, tried, name,
                    fashion ? ", or install the package dataset-fashion-mnist" : "", name);
}

static lk_status open_fashion(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    return open_idx_set(context, true, request, dataset);
}

static lk_status open_mnist(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    return open_idx_set(context, false, request, dataset);
}

const lk__data_format lk__data_format_cifar10 = {
    .about = {.name = "cifar10",
              .form = "cifar10[:DIR]",
              .traits = LK_DATA_PUBLIC,
              .samples = {50000, 10000},
              .image = {3, 32, 32},
              .classes = 10},
    .open = open_cifar,
};

const lk__data_format lk__data_format_fashion_mnist = {
    .about = {.name = "fashion-mnist",
              .form = "fashion-mnist[:DIR]",
              .traits = LK_DATA_PUBLIC,
              .samples = {60000, 10000},
              .image = {1, 28, 28},
              .classes = 10},
    .open = open_fashion,
};

const lk__data_format lk__data_format_mnist = {
    .about = {.name = "mnist",
              .form = "mnist[:DIR]",
              .traits = LK_DATA_PUBLIC,
              .samples = {60000, 10000},
              .image = {1, 28, 28},
              .classes = 10},
    .open = open_mnist,
};
