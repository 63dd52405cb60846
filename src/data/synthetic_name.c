/* synthetic_name.c - synthetic data sets by name: "synthetic:3x32x32,classes=10,count=5000,seed=1" and similarly for
 * tokens. */
#include "data/format.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static lk_status open_synthetic(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    const char                 *text = request->rest;
    lk_dataset_synthetic_config config = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    if (text && !parse_synthetic(text, &config))
        return lk__fail(context, LK_EINVAL,
                        "synthetic:%s is invalid; an example: synthetic:3x32x32,classes=10,count=5000,seed=1", text);
    config.dtype = config.rank == 3 ? LK_U8 : LK_F32;
    if (request->split == LK_SPLIT_TEST) { /* a quarter as many samples, after those of the training set */
        config.first = config.count;
        config.count = (config.count + 3) / 4;
    }
    return lk__synthetic_make(context, &config, request->probe, dataset);
}

static lk_status open_synthetic_tokens(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    const char                 *text = request->rest;
    lk_dataset_synthetic_config config = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    if (text && !parse_synthetic(text, &config))
        return lk__fail(
            context, LK_EINVAL,
            "synthetic-tokens:%s is invalid; an example: synthetic-tokens:256,vocabulary=65,count=5000,seed=1", text);
    if (request->split == LK_SPLIT_TEST) {
        config.first = config.count;
        config.count = (config.count + 3) / 4;
    }
    return lk__synthetic_tokens_make(context, &config, request->probe, dataset);
}

const lk__data_format lk__data_format_synthetic = {
    .about = {.name = "synthetic", .form = "synthetic[:SIZES]", .traits = LK_DATA_GENERATED},
    .open = open_synthetic,
};

const lk__data_format lk__data_format_synthetic_tokens = {
    .about = {.name = "synthetic-tokens",
              .form = "synthetic-tokens[:SIZES]",
              .options = "context",
              .traits = LK_DATA_GENERATED | LK_DATA_HIDDEN},
    .open = open_synthetic_tokens,
};
