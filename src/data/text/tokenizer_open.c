/* tokenizer_open.c - opens tokenizers by name: the files of a directory, whose contents are kept unchanged. */
#define _GNU_SOURCE
#include "base/json.h"
#include "data/array/map.h"
#include "data/path.h"
#include "data/text/tokenizer.h"

#include <string.h>
#include <sys/stat.h>

enum { LARGEST_FILE = 1 << 30 };

static const char json_name[] = "tokenizer.json", config_name[] = "tokenizer_config.json",
                  special_name[] = "special_tokens_map.json";
/* Files that AutoTokenizer reads beside the first, if they exist. */
static const char *const other_names[] = {config_name, special_name, "chat_template.jinja"};

lk_status lk__tokenizer_keep_file(lk_tokenizer *t, const char *name, const char *text, size_t bytes)
{
    char *copy = lk__alloc(t->context, LK_MEMORY_OTHER, bytes + 1);
    if (!copy) return LK_ENOMEM;
    if (bytes) memcpy(copy, text, bytes);
    t->files[t->files_count++] = (lk_tokenizer_file){name, copy, bytes};
    return LK_OK;
}

/* eos_token is a string, or an object with the string as `content`. That of tokenizer_config.json, which is read first,
 * ends a document; where special_tokens_map.json has another one, a text that is generated ends there, too. */
static lk_status read_end_token(lk_tokenizer *t, const lk__json *config, bool other)
{
    lk__json value;
    if (!lk__json_get(config, "eos_token", &value)) return LK_OK;
    if (value.kind == LK__JSON_OBJECT && !lk__json_get(&value, "content", &value)) return LK_OK;
    size_t length = lk__json_string(&value, NULL, 0);
    if (length == SIZE_MAX) return LK_OK;
    char *name = lk__alloc(t->context, LK_MEMORY_OTHER, length + 1);
    if (!name) return LK_ENOMEM;
    lk__json_string(&value, name, length + 1);
    if (other)
        t->other_end = lk_tokenizer_find(t, name);
    else
        lk__tokenizer_find_end(t, name);
    lk__free(t->context, LK_MEMORY_OTHER, name, length + 1);
    return LK_OK;
}

/* *named: it has an end token. */
static lk_status read_config(lk_tokenizer *t, const char *text, size_t bytes, bool other, bool *named)
{
    lk__json       config, value;
    lk__json_error error;
    if (!lk__json_parse(text, bytes, &config, &error))
        return lk__fail(t->context, LK_EFORMAT, "invalid JSON: %s at byte %zu", error.what, error.offset);
    if (config.kind != LK__JSON_OBJECT) return lk__fail(t->context, LK_EFORMAT, "not a JSON object");
    *named = lk__json_get(&config, "eos_token", &value) && value.kind != LK__JSON_NULL;
    return read_end_token(t, &config, other);
}

/* A file of the directory, if it exists; *map is then not empty. */
static lk_status map_optional(lk_context *context, const char *directory, const char *name, lk__map *map,
                              char path[LK__PATH])
{
    *map = (lk__map){0};
    if (!lk__path(path, "%s%s", directory, name) || !lk__path_exists(path)) return LK_OK;
    return lk__map_open(context, path, map);
}

static lk_status keep_files_beside(lk_tokenizer *t, const char *directory)
{
    char      path[LK__PATH];
    lk__map   map;
    lk_status status = LK_OK;
    bool      named = false, also = false;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names && status >= 0; i++) {
        bool config = strcmp(other_names[i], config_name) == 0, special = strcmp(other_names[i], special_name) == 0;
        if ((status = map_optional(t->context, directory, other_names[i], &map, path)) >= 0 && map.size) {
            const char *text = (const char *)map.bytes;
            if (config) status = read_config(t, text, map.size, false, &named);
            if (special) status = read_config(t, text, map.size, named, &also);
            if (status < 0) lk__fail_prefix(t->context, status, "%s: ", path);
            if (status >= 0) status = lk__tokenizer_keep_file(t, other_names[i], text, map.size);
        }
        lk__map_close(&map);
    }
    return status;
}

/* label: what errors name it. */
typedef struct json_text {
    const char *label, *text;
    size_t      bytes;
} json_text;

/* directory: with the files beside the tokenizer.json, ends with a slash or is ""; NULL: the text stands alone. */
static lk_status read_text(lk_context *context, const json_text *json, const char *directory, lk_tokenizer **tokenizer)
{
    lk_tokenizer *t;
    lk_status     status = lk__tokenizer_read_json(context, json->text, json->bytes, &t);
    if (status < 0) return lk__fail_prefix(context, status, "%s: ", json->label);
    status = lk__tokenizer_keep_file(t, json_name, json->text, json->bytes);
    if (status >= 0 && directory) status = keep_files_beside(t, directory);
    if (status >= 0) status = lk__tokenizer_write_files(t);
    if (status < 0)
        lk_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}

lk_status lk_tokenizer_from_json(lk_context *context, const char *label, const char *text, size_t bytes,
                                 lk_tokenizer **tokenizer)
{
    *tokenizer = NULL;
    return read_text(context, &(json_text){label, text, bytes}, NULL, tokenizer);
}

static lk_status read_files(lk_context *context, const char *path, const char *directory, lk_tokenizer **tokenizer)
{
    lk__map   map;
    lk_status status = lk__map_open(context, path, &map);
    if (status >= 0 && map.size > LARGEST_FILE)
        status = lk__fail(context, LK_EFORMAT, "%s is larger than %d bytes", path, LARGEST_FILE);
    if (status >= 0)
        status = read_text(context, &(json_text){path, (const char *)map.bytes, map.size}, directory, tokenizer);
    lk__map_close(&map);
    return status;
}

static lk_status fail_without_json(lk_context *context, const char *directory)
{
    char path[LK__PATH];
    bool sentencepiece = lk__path(path, "%s/tokenizer.model", directory) && lk__path_exists(path);
    return lk__fail(context, LK_ENOENT, "%s has no tokenizer.json%s", directory,
                    sentencepiece ? ": its tokenizer.model is a SentencePiece model, which is not supported"
                                  : "; save_pretrained of a fast tokenizer in transformers writes one");
}

lk_status lk_tokenizer_open(lk_context *context, const char *name, lk_tokenizer **tokenizer)
{
    struct stat about;
    char        path[LK__PATH], directory[LK__PATH];
    *tokenizer = NULL;
    if (strcmp(name, "byte") == 0) return lk__byte_tokenizer(context, tokenizer);
    if (stat(name, &about) != 0)
        return lk__fail(
            context, LK_ENOENT, "unknown tokenizer \"%s\": use byte, a tokenizer.json, or a directory that has one%s",
            name, strcmp(name, "char") == 0 ? "; char is built from a text's characters, so it needs that text" : "");
    if (!S_ISDIR(about.st_mode)) {
        const char *base = strrchr(name, '/');
        base = base ? base + 1 : name;
        bool standard = strcmp(base, json_name) == 0 && lk__path(directory, "%.*s", (int)(base - name), name);
        return read_files(context, name, standard ? directory : NULL, tokenizer);
    }
    if (!lk__path(path, "%s/%s", name, json_name) || !lk__path(directory, "%s/", name))
        return lk__fail(context, LK_EINVAL, "the path %.80s… is too long", name);
    if (!lk__path_exists(path)) return fail_without_json(context, name);
    return read_files(context, path, directory, tokenizer);
}
