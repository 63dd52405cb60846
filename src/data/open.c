/* open.c - opens data sets by name: finds the format in the registry. */
#include "base/config.h"
#include "data/format.h"
#include "data/text/text.h"

#include <stdio.h>
#include <string.h>

static const lk__data_format *const formats[] = {
#define FORMAT_ENTRY(name) &lk__data_format_##name,
    LK__DATA_FORMATS(FORMAT_ENTRY)
#undef FORMAT_ENTRY
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* ---- the registry ---- */

static const lk__data_format *find_format(const char *name)
{
    size_t length = strcspn(name, ":");
    for (int i = 0; i < FORMATS; i++)
        if (strlen(formats[i]->about.name) == length && memcmp(formats[i]->about.name, name, length) == 0)
            return formats[i];
    return NULL;
}

const lk_data_format *lk_data_format_at(int index)
{
    return index >= 0 && index < FORMATS ? &formats[index]->about : NULL;
}

const lk_data_format *lk_data_format_find(const char *name)
{
    const lk__data_format *format = name ? find_format(name) : NULL;
    return format ? &format->about : NULL;
}

/* Whether a word is in a list that is separated by spaces. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; list && *list; list += strcspn(list, " ") + (strchr(list, ' ') != NULL))
        if (strncmp(list, word, length) == 0 && (list[length] == ' ' || !list[length])) return true;
    return false;
}

bool lk_data_format_uses(const lk_data_format *format, const char *option, bool directory)
{
    return has_word(format->options, option) || (directory && has_word(format->directory_options, option));
}

/* ---- opening ---- */

static lk_status report_unknown(lk_context *context, const char *key)
{
    const char *names[FORMATS], *suggestion;
    char        all[512];
    size_t      used = 0;
    for (int i = 0; i < FORMATS; i++) {
        names[i] = formats[i]->about.name;
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                                 !i                ? ""
                                 : i < FORMATS - 1 ? ", "
                                                   : " and ",
                                 formats[i]->about.name);
    }
    if (!*key) return lk__fail(context, LK_EINVAL, "a data set needs a name: known names are %s", all);
    suggestion = lk__suggest(key, names, FORMATS);
    return lk__fail(context, LK_EINVAL, "unknown data set: %s%s%s%s; known names are %s", key,
                    suggestion ? " (did you mean " : "", suggestion ? suggestion : "", suggestion ? "?)" : "", all);
}

/* All samples: with nothing held out, those for training and those of a test set of its own. */
static lk_status open_all(const lk__data_format *format, lk_context *context, const lk__data_request *all,
                          lk_dataset **dataset)
{
    lk_dataset      *train = NULL, *test = NULL;
    lk_open_options  options = *all->options;
    lk__data_request request = {.rest = all->rest, .options = &options, .probe = all->probe};
    bool             text = format->about.traits & LK_DATA_TEXT;
    options.holdout = text ? -1 : 0;
    if (text && options.stride == 0) options.stride = options.context ? options.context : LK__TEXT_LENGTH;
    request.split = LK_SPLIT_TRAIN;
    lk_status status = format->open(context, &request, &train);
    if (status < 0) return status;
    request.split = LK_SPLIT_TEST;
    status = format->open(context, &request, &test);
    if (status == LK_OK) return lk__dataset_join(train, test, dataset);
    if (status == LK_END)
        *dataset = train;
    else
        lk_dataset_free(train);
    return status == LK_END ? LK_OK : status;
}

/* asked: without a rest, and with the options that the caller gave, which may be of another version. */
static lk_status open_named(lk_context *context, const char *name, const lk__data_request *asked, lk_dataset **dataset)
{
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    char            key[64];
    *dataset = NULL;
    if (!name) name = "";
    lk_status status = LK__CONFIG_READ(context, lk_open_options, asked->options, &options);
    if (status < 0) return status;
    const lk__data_format *format = find_format(name);
    const char            *colon = strchr(name, ':');
    lk__data_request       request = {.rest = colon && colon[1] ? colon + 1 : NULL,
                                      .split = asked->split,
                                      .options = &options,
                                      .probe = asked->probe};
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, ":"), name);
    if (!format) return report_unknown(context, key);
    if (request.split == LK_SPLIT_ALL) return open_all(format, context, &request, dataset);
    if (options.holdout == -1 && !(format->about.traits & LK_DATA_TEXT)) options.holdout = 0;
    return format->open(context, &request, dataset);
}

lk_status lk_dataset_open(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                          lk_dataset **dataset)
{
    return open_named(context, name, &(lk__data_request){.split = split, .options = options}, dataset);
}

lk_status lk_dataset_probe(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                           lk_dataset **dataset)
{
    return open_named(context, name, &(lk__data_request){.split = split, .options = options, .probe = true}, dataset);
}
