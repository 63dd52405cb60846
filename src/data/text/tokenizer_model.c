/* tokenizer_model.c - the model of a tokenizer.json: vocabulary and merges. */
#include "data/text/byte_level.h"
#include "data/text/tokenizer_json.h"
#include "data/text/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- the vocabulary ---- */

/* Adds a token of the model; `text` is what it stands for: of BPE the bytes that its name spells, if it spells any. */
static lk_status add_token(lk_tokenizer *t, const lk__tokenizer_string *name, lk__tokenizer_string *text, int64_t id,
                           size_t expected)
{
    bool      spelled = false;
    size_t    length = 0;
    lk_status status = LK_OK;
    if (t->kind == LK__TEXT_BPE) {
        if ((status = lk__grow(t->context, (void **)&text->text, &text->room, name->length + 1, 1)) < 0) return status;
        spelled = lk__byte_level_decode(name->text, name->length, text->text, &length);
    }
    status = lk__vocabulary_add(&t->vocabulary, id,
                                &(lk__vocabulary_entry){name->text, name->length, spelled ? text->text : NULL, length},
                                expected);
    if (status < 0) return status;
    t->vocabulary.tokens[id].in_model = true;
    if (spelled && length == 1) t->single[(unsigned char)text->text[0]] = (int32_t)id;
    if (t->kind == LK__TEXT_CHARACTERS) {
        int character;
        if (name->length == 0 ||
            (lk__utf8_decode((const unsigned char *)name->text, &character), (size_t)character != name->length))
            return lk__fail(t->context, LK_EFORMAT,
                            "model.vocab has the token \"%.80s\", which is not a single character: WordLevel models "
                            "are supported only with single characters",
                            name->text);
        if (character == 1) t->single[(unsigned char)name->text[0]] = (int32_t)id;
    }
    return LK_OK;
}

static lk_status read_vocabulary(lk_tokenizer *t, const lk__json *model, lk__tokenizer_string *name,
                                 lk__tokenizer_string *text)
{
    lk__json  vocabulary, key, value;
    lk_status status = LK_OK;
    if (!lk__json_get(model, "vocab", &vocabulary) || vocabulary.kind != LK__JSON_OBJECT)
        return lk__fail(t->context, LK_EFORMAT, "model.vocab is missing, or is not an object");
    size_t        count = lk__json_count(&vocabulary);
    lk__json_walk walk = lk__json_begin(&vocabulary);
    if (count == 0) return lk__fail(t->context, LK_EFORMAT, "model.vocab is empty");
    while (status >= 0 && lk__json_next(&walk, &key, &value)) {
        int64_t id;
        if (!lk__json_integer(&value, &id))
            return lk__tokenizer_refuse(t->context, "an id in model.vocab", &value, "it must be a whole number");
        status = lk__tokenizer_decode_string(t->context, &key, "a token", name);
        if (status >= 0) status = add_token(t, name, text, id, count);
    }
    return status < 0 ? lk__fail_prefix(t->context, status, "model.vocab: ") : LK_OK;
}

/* ---- merges ---- */

/* The two tokens of a merge: ["a", "b"], or "a b". On success name is both, joined, and *split where the second
 * begins. */
static lk_status read_pair(lk_tokenizer *t, const lk__json *merge, lk__tokenizer_string *name,
                           lk__tokenizer_string *second, size_t *split)
{
    static const char pair[] = "it must be two tokens: [\"a\", \"b\"] or \"a b\"";
    lk_status         status;
    if (merge->kind == LK__JSON_STRING) {
        if ((status = lk__tokenizer_decode_string(t->context, merge, "a merge", name)) < 0) return status;
        char *space = memchr(name->text, ' ', name->length);
        if (!space || memchr(space + 1, ' ', name->length - (size_t)(space + 1 - name->text)))
            return lk__tokenizer_refuse(t->context, "a merge", merge, pair);
        *split = (size_t)(space - name->text);
        memmove(space, space + 1, name->length - *split - 1);
        name->length--;
        return LK_OK;
    }
    lk__json      left, right, more;
    lk__json_walk walk = lk__json_begin(merge);
    if (merge->kind != LK__JSON_ARRAY || !lk__json_next(&walk, NULL, &left) || !lk__json_next(&walk, NULL, &right) ||
        lk__json_next(&walk, NULL, &more))
        return lk__tokenizer_refuse(t->context, "a merge", merge, pair);
    if ((status = lk__tokenizer_decode_string(t->context, &left, "a token of a merge", name)) < 0 ||
        (status = lk__tokenizer_decode_string(t->context, &right, "a token of a merge", second)) < 0 ||
        (status = lk__grow(t->context, (void **)&name->text, &name->room, name->length + second->length + 1, 1)) < 0)
        return status;
    *split = name->length;
    memcpy(name->text + name->length, second->text, second->length + 1);
    name->length += second->length;
    return LK_OK;
}

static lk_status add_merge(lk_tokenizer *t, const lk__json *merge, uint32_t rank, lk__tokenizer_string *name,
                           lk__tokenizer_string *second)
{
    size_t    split = 0;
    lk_status status = read_pair(t, merge, name, second, &split);
    if (status < 0) return status;
    int32_t left = lk__vocabulary_find(&t->vocabulary, name->text, split);
    int32_t right = lk__vocabulary_find(&t->vocabulary, name->text + split, name->length - split);
    int32_t both = lk__vocabulary_find(&t->vocabulary, name->text, name->length);
    if (left < 0 || right < 0 || both < 0)
        return lk__tokenizer_refuse(t->context, "a merge", merge,
                                    both < 0 ? "the merged token is not in model.vocab"
                                             : "one of its tokens is not in model.vocab");
    lk__bpe_add(&t->bpe, left, right, rank, both);
    return LK_OK;
}

static lk_status read_merges(lk_tokenizer *t, const lk__json *model, lk__tokenizer_string *name,
                             lk__tokenizer_string *second)
{
    lk__json merges, merge;
    uint32_t rank = 0;
    if (!lk__json_get(model, "merges", &merges) || merges.kind != LK__JSON_ARRAY)
        return lk__fail(t->context, LK_EFORMAT, "model.merges is missing, or is not a list");
    lk__json_walk walk = lk__json_begin(&merges);
    lk_status     status = lk__bpe_create(t->context, lk__json_count(&merges), &t->bpe);
    while (status >= 0 && lk__json_next(&walk, NULL, &merge)) status = add_merge(t, &merge, rank++, name, second);
    return status < 0 ? lk__fail_prefix(t->context, status, "model.merges, %u: ", rank ? rank - 1 : 0) : LK_OK;
}

/* ---- the model ---- */

/* Settings of BPE that change ids. */
static lk_status check_settings(lk_tokenizer *t, const lk__json *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    lk__json                 value;
    double                   dropout;
    bool                     fallback = false;
    if (lk__tokenizer_member(model, "dropout", &value) && (!lk__json_number(&value, &dropout) || dropout != 0))
        return lk__tokenizer_refuse(t->context, "model.dropout", &value, "expected null or 0");
    for (size_t i = 0; i < 2; i++) {
        char part[64];
        snprintf(part, sizeof part, "model.%s", affixes[i]);
        if (lk__tokenizer_member(model, affixes[i], &value) && !lk__json_equals(&value, ""))
            return lk__tokenizer_refuse(t->context, part, &value, "expected null or \"\"");
    }
    lk_status status = lk__tokenizer_bool(t->context, model, "model", "byte_fallback", &fallback);
    if (status >= 0 && fallback && lk__json_get(model, "byte_fallback", &value))
        return lk__tokenizer_refuse(t->context, "model.byte_fallback", &value, "expected false with ByteLevel");
    return status < 0 ? status : lk__tokenizer_bool(t->context, model, "model", "ignore_merges", &t->ignore_merges);
}

/* Bytes that are not in the vocabulary are an error when they are met; a token that stands for all of them is not
 * supported. */
static lk_status check_unknown(lk_tokenizer *t, const lk__json *model)
{
    lk__json unknown;
    if (!lk__tokenizer_member(model, "unk_token", &unknown)) return LK_OK;
    for (int i = 0; i < 256; i++)
        if (t->single[i] < 0)
            return lk__tokenizer_refuse(t->context, "model.unk_token", &unknown,
                                        "expected null, unless model.vocab has a token for each of the 256 bytes");
    return LK_OK;
}

/* Whether this is what lk__byte_tokenizer makes. */
static bool is_byte_tokenizer(const lk_tokenizer *t)
{
    if (t->vocabulary.count != 256 || t->bpe.slots || t->nfc || t->prefix_space) return false;
    for (int i = 0; i < 256; i++)
        if (t->single[i] != i) return false;
    return true;
}

lk_status lk__tokenizer_read_model(lk_tokenizer *t, const lk__json *root)
{
    lk__json             model, type;
    lk__tokenizer_string name = {0}, text = {0};
    lk_status            status = LK_OK;
    if (!lk__json_get(root, "model", &model) || model.kind != LK__JSON_OBJECT)
        return lk__fail(t->context, LK_EFORMAT, "model is not an object");
    const char *wanted = t->kind == LK__TEXT_CHARACTERS ? "WordLevel" : "BPE";
    if (lk__json_get(&model, "type", &type) && !lk__json_equals(&type, wanted)) /* old files of BPE have no type */
        return lk__tokenizer_refuse(t->context, "model.type", &type,
                                    t->kind == LK__TEXT_BPE ? "expected BPE with ByteLevel"
                                                            : "expected WordLevel with a Split into characters");
    if (t->kind == LK__TEXT_BPE) status = check_settings(t, &model);
    if (status >= 0) status = read_vocabulary(t, &model, &name, &text);
    if (status >= 0 && t->kind == LK__TEXT_BPE && (status = read_merges(t, &model, &name, &text)) >= 0)
        status = check_unknown(t, &model);
    lk__tokenizer_string_free(t->context, &name);
    lk__tokenizer_string_free(t->context, &text);
    if (status >= 0 && t->kind == LK__TEXT_BPE && is_byte_tokenizer(t)) t->kind = LK__TEXT_BYTES;
    return status;
}
