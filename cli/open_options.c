/* open_options.c - sets lk_open_options from the command's options, and refuses those that a data set does not use. */
#include "open_options.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Whether a word is in a list that is separated by ", ". */
static bool is_listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; *list; list += strcspn(list, " ") + (strchr(list, ' ') != NULL))
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || !list[length])) return true;
    return false;
}

/* Files named .jsonl below a directory are JSONL too. */
static bool is_text_directory(const char *data)
{
    char        path[4096];
    struct stat about;
    if (strncmp(data, "text:", 5) != 0) return false;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(data + 5, ","), data + 5);
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static int check_kind(const char *name, const options *given, const char *data)
{
    static const struct {
        const char *option, *kinds; /* that use it */
    } table[] = {{"label", "csv, npz, safetensors, jsonl"},
                 {"header", "csv"},
                 {"size", "folder"},
                 {"channels", "folder"},
                 {"cache", "folder"},
                 {"skip-broken", "folder"},
                 {"holdout", "folder, npy, npz, safetensors, csv, idx, text, jsonl, tokens"},
                 {"tokenizer", "text, jsonl, tokens"},
                 {"context", "text, jsonl, tokens, synthetic-tokens"},
                 {"packing", "text, jsonl, tokens"},
                 {"unknown-label", "folder, npy, npz, safetensors, csv, idx, jsonl"},
                 {"text-field", "jsonl"},
                 {"token-type", "tokens"},
                 {"stride", "text, jsonl, tokens"}};
    static const char known[] = "cifar10, fashion-mnist, mnist, synthetic, synthetic-tokens, folder, npy, npz, "
                                "safetensors, csv, idx, text, jsonl, tokens";
    char              kind[32];
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(data, ":"), data);
    if (!is_listed(known, kind)) return 0; /* opening it says so */
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        /* Those of a checkpoint's record belong to its own data, which image files may replace. */
        if (!options_chosen(given, table[i].option) || is_listed(table[i].kinds, kind)) continue;
        if (strcmp(table[i].option, "text-field") == 0 && is_text_directory(data)) continue;
        print_error(name, "--%s belongs to --data %s; %s does not use it", table[i].option, table[i].kinds, data);
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
    int         code = check_kind(name, given, data);
    const char *size = options_text(given, "size"), *channels = options_text(given, "channels"),
               *header = options_text(given, "header");
    if (code != 0) return code;
    *open = (lk_open_options)LK_OPEN_OPTIONS_INIT;
    if (size && !parse_size(size, &open->height, &open->width)) {
        print_error(name, "--size %s is invalid: give height and width, such as --size 224,224", size);
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
