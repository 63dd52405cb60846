/* weights.c - opens weights as one file or as shards with an index, as Hugging Face's libraries write large models. */
#include "train/weights.h"

#include "base/json.h"
#include "train/file.h"

#include <stdio.h>
#include <string.h>

enum { INDEX_LIMIT = 64 << 20, MOST_SHARDS = 4096 };

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static lk_status add_shard(lk__weights *w, const char *name, const char *path)
{
    lk_status status = lk__grow(w->context, (void **)&w->shards, &w->capacity, w->count + 1, sizeof *w->shards);
    if (status < 0) return status;
    lk__weights_shard *shard = &w->shards[w->count++];
    *shard = (lk__weights_shard){0};
    if (name && !(shard->name = lk__strdup(w->context, name))) return LK_ENOMEM;
    if ((status = lk__safetensors_open(w->context, path, &shard->file)) < 0) return status;
    w->tensors += lk__safetensors_count(shard->file);
    return LK_OK;
}

/* The shard of that name, which is opened when the index names it first. */
static lk_status find_shard(lk__weights *w, const char *name, lk__weights_shard **shard)
{
    char        path[PATH_MAX], shown[LK__SHOWN];
    const char *slash = strrchr(w->path, '/');
    int         directory = slash ? (int)(slash - w->path) + 1 : 0;
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->shards[i].name, name) == 0) {
            *shard = &w->shards[i];
            return LK_OK;
        }
    if (!name[0] || strchr(name, '/') || name[0] == '.')
        return lk__fail(w->context, LK_EFORMAT,
                        "%s names the shard \"%s\", which is not the name of a file in the same directory", w->path,
                        lk__shown(name, shown));
    if (w->count == MOST_SHARDS)
        return lk__fail(w->context, LK_EFORMAT, "%s names more than %d shards", w->path, MOST_SHARDS);
    int n = snprintf(path, sizeof path, "%.*s%s", directory, w->path, name);
    if (n < 0 || n >= (int)sizeof path)
        return lk__fail(w->context, LK_EFORMAT, "%s: the path of the shard \"%s\" is too long", w->path,
                        lk__shown(name, shown));
    lk_status status = add_shard(w, name, path);
    if (status == LK_ENOENT)
        return lk__fail(w->context, LK_ENOENT, "%s names the shard \"%s\", but there is no such file", w->path,
                        lk__shown(name, shown));
    *shard = &w->shards[w->count - 1];
    return status;
}

/* One member of "weight_map": a tensor and the shard that holds it. */
static lk_status check_entry(lk__weights *w, const lk__json *key, const lk__json *value)
{
    char               name[512], file[256], shown[LK__SHOWN];
    lk__weights_shard *shard = NULL;
    size_t             n = lk__json_string(key, name, sizeof name), m = lk__json_string(value, file, sizeof file);
    if (n >= sizeof name || strlen(name) != n)
        return lk__fail(w->context, LK_EFORMAT, "%s: a tensor's name is longer than %zu bytes or contains U+0000",
                        w->path, sizeof name - 1);
    if (m >= sizeof file || strlen(file) != m)
        return lk__fail(w->context, LK_EFORMAT, "%s: the shard of \"%s\" is not a file name", w->path,
                        lk__shown(name, shown));
    lk_status status = find_shard(w, file, &shard);
    if (status < 0) return status;
    if (lk__safetensors_find(shard->file, name)) return LK_OK;
    return lk__fail(w->context, LK_EFORMAT, "%s says that %s contains \"%s\", but it does not", w->path, file,
                    lk__shown(name, shown));
}

/* Fails with a tensor that a shard holds and the index does not list. */
static lk_status report_unlisted(const lk__weights *w, const lk__json *map)
{
    char shown[LK__SHOWN];
    for (size_t i = 0; i < w->tensors; i++) {
        lk__json    value;
        const char *name = lk__weights_at(w, i).tensor->name;
        if (!lk__json_get(map, name, &value))
            return lk__fail(w->context, LK_EFORMAT, "%s does not list \"%s\", which one of its shards holds", w->path,
                            lk__shown(name, shown));
    }
    return lk__fail(w->context, LK_EFORMAT, "%s: a tensor is listed twice, or two shards hold it", w->path);
}

static lk_status read_index(lk__weights *w, const char *text, size_t length)
{
    lk__json       root, map, key, value;
    lk__json_error error;
    size_t         entries = 0;
    if (!lk__json_parse(text, length, &root, &error))
        return lk__fail(w->context, LK_EFORMAT, "%s: byte %zu: %s", w->path, error.offset, error.what);
    if (!lk__json_get(&root, "weight_map", &map) || map.kind != LK__JSON_OBJECT)
        return lk__fail(w->context, LK_EFORMAT,
                        "%s has no object \"weight_map\", so it is not an index of weight files", w->path);
    lk__json_walk walk = lk__json_begin(&map);
    for (; lk__json_next(&walk, &key, &value); entries++) {
        lk_status status = check_entry(w, &key, &value);
        if (status < 0) return status;
    }
    return entries == w->tensors ? LK_OK : report_unlisted(w, &map);
}

lk_status lk__weights_open(lk_context *c, const char *path, lk__weights *w)
{
    *w = (lk__weights){.context = c, .path = path};
    if (!ends_with(path, ".json")) return add_shard(w, NULL, path);
    char     *text;
    size_t    length;
    lk_status status = lk__read_text(c, path, INDEX_LIMIT, &text, &length);
    if (status < 0) return status;
    status = read_index(w, text, length);
    lk__text_free(c, text, length);
    return status;
}

void lk__weights_close(lk__weights *w)
{
    for (size_t i = 0; i < w->count; i++) {
        lk__strfree(w->context, w->shards[i].name);
        lk__safetensors_close(w->shards[i].file);
    }
    if (w->context) lk__free(w->context, LK_MEMORY_OTHER, w->shards, w->capacity * sizeof *w->shards);
    *w = (lk__weights){0};
}

lk__weights_tensor lk__weights_at(const lk__weights *w, size_t index)
{
    for (size_t i = 0; i < w->count; i++) {
        size_t count = lk__safetensors_count(w->shards[i].file);
        if (index < count) return (lk__weights_tensor){w->shards[i].file, lk__safetensors_at(w->shards[i].file, index)};
        index -= count;
    }
    return (lk__weights_tensor){0};
}

lk__weights_tensor lk__weights_find(const lk__weights *w, const char *name)
{
    for (size_t i = 0; i < w->count; i++) {
        const lk__safetensors_tensor *t = lk__safetensors_find(w->shards[i].file, name);
        if (t) return (lk__weights_tensor){w->shards[i].file, t};
    }
    return (lk__weights_tensor){0};
}
