/* huggingface_labels.c - the names of classes in a config.json: id2label, an object with the keys "0", "1", …, in any
 * order. */
#include "train/huggingface.h"

#include <stdio.h>
#include <string.h>

struct lk_hf_labels {
    lk_context  *context;
    const char **names; /* by id */
    int64_t      count;
    char        *text; /* of the names */
    size_t       bytes;
};

void lk_hf_labels_free(lk_hf_labels *l)
{
    if (!l) return;
    lk__free(l->context, LK_MEMORY_OTHER, l->names, (size_t)l->count * sizeof *l->names);
    lk__free(l->context, LK_MEMORY_OTHER, l->text, l->bytes);
    lk__free(l->context, LK_MEMORY_OTHER, l, sizeof *l);
}

int64_t     lk_hf_labels_count(const lk_hf_labels *l) { return l->count; }
const char *lk_hf_labels_at(const lk_hf_labels *l, int64_t i) { return i >= 0 && i < l->count ? l->names[i] : NULL; }

/* The number that a key is, written as str() of Python does; -1: it is none. */
static int64_t parse_id(const lk__json *key)
{
    char    text[24];
    size_t  length = lk__json_string(key, text, sizeof text);
    int64_t id = 0;
    if (length == 0 || length > 10 || strspn(text, "0123456789") != length || (text[0] == '0' && length > 1)) return -1;
    for (size_t i = 0; i < length; i++) id = id * 10 + (text[i] - '0');
    return id;
}

/* Decoded text is shorter than its JSON, quotes included, so it always fits. */
static const char *store_name(lk_hf_labels *l, const lk__json *value, size_t *used)
{
    char  *out = l->text + *used;
    size_t length = lk__json_string(value, out, l->bytes - *used);
    if (length == SIZE_MAX || strlen(out) != length) return NULL;
    *used += length + 1;
    return out;
}

static void store_names(lk__huggingface_reader *r, lk_hf_labels *l, const lk__json *object)
{
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(object);
    size_t        used = 0;
    while (r->status >= 0 && lk__json_next(&walk, &key, &value)) {
        int64_t id = parse_id(&key);
        if (id < 0 || id >= l->count || l->names[id])
            lk__hf_refuse(r, "id2label", object, "its keys must be the numbers from 0 to %lld, once each",
                          (long long)l->count - 1);
        else if (!(l->names[id] = store_name(l, &value, &used)))
            lk__hf_refuse(r, "id2label", object, "the name of class %lld is not a string", (long long)id);
    }
}

/* transformers' names of classes that have none. */
static lk_status invent_names(lk_hf_labels *l)
{
    enum { NAME = 32 };
    l->bytes = (size_t)l->count * NAME;
    if (!(l->text = lk__alloc(l->context, LK_MEMORY_OTHER, l->bytes))) return LK_ENOMEM;
    for (int64_t i = 0; i < l->count; i++) {
        snprintf(l->text + i * NAME, NAME, "LABEL_%lld", (long long)i);
        l->names[i] = l->text + i * NAME;
    }
    return LK_OK;
}

lk_status lk__hf_labels_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_hf_labels **labels)
{
    lk__huggingface_reader r;
    lk_transformer_config  config;
    lk__json               value;
    *labels = NULL;
    if (lk__hf_config_parse(context, label, text, length, &config) < 0 ||
        lk__hf_open(&r, context, label, text, length) < 0)
        return LK_EFORMAT;
    if (config.kind != LK_TRANSFORMER_ENCODER)
        return lk__fail(context, LK_EFORMAT, "%s does not describe a model with classes", label);
    lk_hf_labels *l = lk__alloc(context, LK_MEMORY_OTHER, sizeof *l);
    if (!l) return LK_ENOMEM;
    *l = (lk_hf_labels){.context = context, .count = config.classes};
    if (!(l->names = lk__alloc(context, LK_MEMORY_OTHER, (size_t)l->count * sizeof *l->names))) {
        r.status = LK_ENOMEM;
    } else if (!lk__hf_get(&r, &r.root, "id2label", &value)) {
        r.status = invent_names(l);
    } else {
        l->bytes = value.length;
        if (!(l->text = lk__alloc(context, LK_MEMORY_OTHER, l->bytes)))
            r.status = LK_ENOMEM;
        else
            store_names(&r, l, &value);
    }
    if (r.status >= 0)
        *labels = l;
    else
        lk_hf_labels_free(l);
    return r.status;
}
