/* tokenizer_json.c - reads a tokenizer.json: its parts, one after the other. */
#include "data/text/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

lk_status lk__tokenizer_decode_string(lk_context *context, const lk__json *value, const char *what,
                                      lk__tokenizer_string *string)
{
    if (value->kind != LK__JSON_STRING) return lk__tokenizer_refuse(context, what, value, "it must be a string");
    /* Escapes are longer than what they stand for. */
    lk_status status = lk__grow(context, (void **)&string->text, &string->room, value->length, 1);
    if (status < 0) return status;
    string->length = lk__json_string(value, string->text, string->room);
    return LK_OK;
}

void lk__tokenizer_string_free(lk_context *context, lk__tokenizer_string *string)
{
    lk__free(context, LK_MEMORY_OTHER, string->text, string->room);
    *string = (lk__tokenizer_string){0};
}

lk_status lk__tokenizer_refuse(lk_context *context, const char *part, const lk__json *value, const char *supported)
{
    char   text[LK__SHOWN], shown[LK__SHOWN];
    size_t length = value->length < sizeof text ? value->length : sizeof text - 1;
    memcpy(text, value->text, length);
    text[length] = 0;
    return lk__fail(context, LK_EFORMAT, "%s is %s, which is not supported: %s", part, lk__shown(text, shown),
                    supported);
}

bool lk__tokenizer_member(const lk__json *object, const char *key, lk__json *value)
{
    return lk__json_get(object, key, value) && value->kind != LK__JSON_NULL;
}

lk_status lk__tokenizer_bool(lk_context *context, const lk__json *object, const char *part, const char *key,
                             bool *value)
{
    lk__json member;
    char     name[80];
    if (!lk__tokenizer_member(object, key, &member) || lk__json_bool(&member, value)) return LK_OK;
    snprintf(name, sizeof name, "%s.%s", part, key);
    return lk__tokenizer_refuse(context, name, &member, "it must be true or false");
}

bool lk__tokenizer_is(const lk__json *object, const char *name)
{
    lk__json type;
    return lk__json_get(object, "type", &type) && lk__json_equals(&type, name);
}

/* The kind of model comes first: it says more than what surrounds it. */
static lk_status check_root(lk_context *context, const lk__json *root)
{
    lk__json value, type;
    if (root->kind != LK__JSON_OBJECT || !lk__tokenizer_member(root, "model", &value))
        return lk__fail(context, LK_EFORMAT, "not a Hugging Face tokenizer.json: it has no \"model\"");
    if (lk__json_get(&value, "type", &type) && !lk__json_equals(&type, "BPE") && !lk__json_equals(&type, "WordLevel"))
        return lk__tokenizer_refuse(context, "model.type", &type,
                                    "expected byte-level BPE or WordLevel of single characters");
    if (lk__tokenizer_member(root, "version", &value) && !lk__json_equals(&value, "1.0"))
        return lk__tokenizer_refuse(context, "version", &value, "expected \"1.0\"");
    return LK_OK;
}

/* Truncation and padding are not applied: transformers turns them off, too, unless a call asks for them. */
lk_status lk__tokenizer_read_json(lk_context *context, const char *text, size_t bytes, lk_tokenizer **tokenizer)
{
    lk__json       root;
    lk__json_error error;
    lk_tokenizer  *t;
    *tokenizer = NULL;
    if (!lk__json_parse(text, bytes, &root, &error))
        return lk__fail(context, LK_EFORMAT, "invalid JSON: %s at byte %zu", error.what, error.offset);
    lk_status status = check_root(context, &root);
    if (status < 0 || (status = lk__tokenizer_create(context, LK__TEXT_BPE, &t)) < 0) return status;
    if ((status = lk__tokenizer_read_normalizer(t, &root)) < 0 ||
        (status = lk__tokenizer_read_pretokenizer(t, &root)) < 0 || (status = lk__tokenizer_check_ends(t, &root)) < 0 ||
        (status = lk__tokenizer_read_model(t, &root)) < 0 || (status = lk__tokenizer_read_added(t, &root)) < 0 ||
        (status = lk__tokenizer_check_template(t)) < 0) {
        lk_tokenizer_free(t);
        return status;
    }
    lk__tokenizer_find_end(t, NULL);
    *tokenizer = t;
    return LK_OK;
}
