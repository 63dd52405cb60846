/* open_options.c - sets lk_open_options from the command's options, and refuses those that a data set does not use. */
#include "open_options.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the formats of the library ---- */

bool data_has(const char *data, unsigned traits)
{
    const lk_data_format *format = lk_data_format_find(data);
    return format && (format->traits & traits) == traits;
}

bool data_uses(const char *data, const char *option)
{
    const lk_data_format *format = lk_data_format_find(data);
    return format && lk_data_format_uses(format, option, false);
}

const char *data_names_at(int index)
{
    for (int i = 0; lk_data_format_at(i); i++)
        if (!(lk_data_format_at(i)->traits & LK_DATA_HIDDEN) && index-- == 0) return lk_data_format_at(i)->form;
    return NULL;
}

/* Adds "name, name or name" (joint: " or ") of the formats with one of `traits`; returns what is used of `out`. */
static size_t add_names(char *out, size_t size, size_t used, unsigned traits, const char *joint)
{
    const char *last = NULL;
    int         count = 0;
    for (int i = 0; lk_data_format_at(i); i++) {
        const lk_data_format *format = lk_data_format_at(i);
        if (!(format->traits & traits) || (format->traits & LK_DATA_HIDDEN)) continue;
        if (last && used < size) used += (size_t)snprintf(out + used, size - used, count > 1 ? ", %s" : "%s", last);
        last = format->name;
        count++;
    }
    if (last && used < size) used += (size_t)snprintf(out + used, size - used, "%s%s", count > 1 ? joint : "", last);
    return used;
}

void data_names_describe(char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, ": ");
    used = add_names(out, size, used, LK_DATA_PUBLIC | LK_DATA_GENERATED, " or ");
    if (used < size)
        used += (size_t)snprintf(
            out + used, size - used,
            "; without :DIR, the data set is looked up where `lockstep data get` stores it. Your own files:");
    const char *separator = " ";
    for (int i = 0; lk_data_format_at(i) && used < size; i++) {
        const lk_data_format *format = lk_data_format_at(i);
        if (format->traits & (LK_DATA_PUBLIC | LK_DATA_GENERATED | LK_DATA_HIDDEN)) continue;
        used += (size_t)snprintf(out + used, size - used, format->doc ? "%s%s (%s)" : "%s%s", separator, format->form,
                                 format->doc);
        separator = ", ";
    }
    if (used < size) snprintf(out + used, size - used, ". Default: synthetic for mlp and transformers, else cifar10");
}

void data_names_public(char *out, size_t size) { (void)add_names(out, size, 0, LK_DATA_PUBLIC, " and "); }

/* ---- options ---- */

/* Whether the name is that of a directory, whose files may be of another kind. */
static bool is_directory(const char *data)
{
    char        path[4096];
    struct stat about;
    const char *colon = strchr(data, ':');
    if (!colon) return false;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(colon + 1, ","), colon + 1);
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Writes the formats that use an option, separated by commas; false: it is not an option of formats. */
static bool list_formats(const char *option, char *out, size_t size)
{
    size_t used = 0;
    for (int i = 0; lk_data_format_at(i) && used < size; i++)
        if (lk_data_format_uses(lk_data_format_at(i), option, false))
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", lk_data_format_at(i)->name);
    return used > 0;
}

/* An option that other formats use. */
static int check_format(const char *name, const options *given, const char *data)
{
    const lk_data_format *format = lk_data_format_find(data);
    char                  list[512];
    if (!format) return 0; /* opening it reports that */
    for (const option *row = given->table; row->name || row->doc; row++) {
        /* Those of a checkpoint's record belong to its own data, which image files may replace. */
        if (!row->name || !options_chosen(given, row->name) || !list_formats(row->name, list, sizeof list)) continue;
        if (lk_data_format_uses(format, row->name, is_directory(data))) continue;
        print_error(name, "--%s applies only to --data %s; %s does not use it", row->name, list, data);
        return EXIT_USER_ERROR;
    }
    return 0;
}

static void set_text_options(const options *given, lk_open_options *open)
{
    const char *packing = options_text(given, "packing"), *type = options_text(given, "token-type");
    open->tokenizer = options_text(given, "tokenizer");
    open->context = options_integer(given, "context");
    open->text_field = options_text(given, "text-field");
    open->packing = strcmp(packing, "documents") == 0 ? 1 : strcmp(packing, "windows") == 0 ? -1 : 0;
    open->token_bytes = !type ? 0 : strcmp(type, "u32") == 0 ? 4 : 2;
    open->stride = options_chosen(given, "stride") ? options_integer(given, "stride") : 0;
}

/* "H,W", both whole numbers. */
static bool parse_size(const char *text, int64_t *height, int64_t *width)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    *height = strtoll(text, &end, 10);
    if (*end != ',' || end[1] < '0' || end[1] > '9') return false;
    *width = strtoll(end + 1, &end, 10);
    return !*end && *height > 0 && *width > 0;
}

int open_options_set(const char *name, const options *given, const char *data, lk_open_options *open)
{
    int         code = check_format(name, given, data);
    const char *size = options_text(given, "size"), *channels = options_text(given, "channels"),
               *header = options_text(given, "header");
    if (code != 0) return code;
    *open = (lk_open_options)LK_OPEN_OPTIONS_INIT;
    if (size && !parse_size(size, &open->height, &open->width)) {
        print_error(name, "--size %s is invalid: expected height and width, such as --size 224,224", size);
        return EXIT_USER_ERROR;
    }
    open->channels = channels ? atoi(channels) : 0;
    open->label = options_text(given, "label");
    open->header = strcmp(header, "yes") == 0 ? 1 : strcmp(header, "no") == 0 ? -1 : 0;
    open->holdout = options_number(given, "holdout");
    if (open->holdout == 0 && options_given(given, "holdout")) open->holdout = -1; /* nothing, also of a text */
    open->cache = options_text(given, "cache");
    open->skip_broken = options_flag(given, "skip-broken");
    open->skip_unknown = strcmp(options_text(given, "unknown-label"), "skip") == 0;
    set_text_options(given, open);
    return 0;
}
