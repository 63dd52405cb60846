/* tokenizer_parts.c - the parts of a tokenizer.json around the model: normalizer, pre-tokenizer, post-processor,
 * decoder. Unknown parts are refused by an error that names them: otherwise ids that differ from the ids of
 * `tokenizers` would go unnoticed. */
#include "data/text/tokenizer_json.h"

#include <string.h>

/* Runs over the members of a Sequence, which may be nested: JSON's depth bounds it. `list` is the member with them. */
typedef lk_status (*read_part)(lk_tokenizer *t, const lk__json *part);
static lk_status read_sequence(lk_tokenizer *t, const lk__json *sequence, const char *list, const char *part,
                               read_part read)
{
    lk__json  members, member;
    lk_status status = LK_OK;
    if (!lk__json_get(sequence, list, &members) || members.kind != LK__JSON_ARRAY)
        return lk__tokenizer_refuse(t->context, part, sequence, "a Sequence needs a list");
    lk__json_walk walk = lk__json_begin(&members);
    while (status >= 0 && lk__json_next(&walk, NULL, &member)) status = read(t, &member);
    return status;
}

static lk_status read_normalizer(lk_tokenizer *t, const lk__json *part)
{
    if (lk__tokenizer_is(part, "Sequence")) return read_sequence(t, part, "normalizers", "normalizer", read_normalizer);
    if (!lk__tokenizer_is(part, "NFC"))
        return lk__tokenizer_refuse(t->context, "normalizer", part, "expected NFC or none");
    t->nfc = true;
    return LK_OK;
}

lk_status lk__tokenizer_read_normalizer(lk_tokenizer *t, const lk__json *root)
{
    lk__json part;
    return lk__tokenizer_member(root, "normalizer", &part) ? read_normalizer(t, &part) : LK_OK;
}

/* ---- pre-tokenizers ---- */

static const char known_pretokenizers[] = "expected ByteLevel alone, after Digits with individual_digits, or after an "
                                          "Isolated Split with the regular expression of GPT-2, Llama 3 or Qwen 2";

static lk_status refuse_pretokenizer(lk_tokenizer *t, const lk__json *part)
{
    return lk__tokenizer_refuse(t->context, "pre_tokenizer", part, known_pretokenizers);
}

static lk_status read_split(lk_tokenizer *t, const lk__json *part, bool *characters)
{
    lk__json             pattern, behavior;
    bool                 invert = false;
    lk__tokenizer_string text = {0};
    lk_status            status = lk__tokenizer_bool(t->context, part, "pre_tokenizer", "invert", &invert);
    if (status < 0) return status;
    if (!lk__json_get(part, "behavior", &behavior) || !lk__json_equals(&behavior, "Isolated") || invert ||
        !lk__json_get(part, "pattern", &pattern) || !lk__json_get(&pattern, "Regex", &pattern))
        return refuse_pretokenizer(t, part);
    *characters = lk__json_equals(&pattern, LK__TOKENIZER_ANY_CHARACTER);
    status = lk__tokenizer_decode_string(t->context, &pattern, "pre_tokenizer.pattern.Regex", &text);
    if (status >= 0 && !*characters && !lk__pretokenizer_find(text.text, text.length, &t->pretokenizer))
        status = lk__tokenizer_refuse(t->context, "pre_tokenizer.pattern.Regex", &pattern,
                                      "expected the regular expression of GPT-2, Llama 3 or Qwen 2");
    lk__tokenizer_string_free(t->context, &text);
    return status;
}

typedef enum byte_level_place { ALONE, AFTER_SPLIT, AFTER_DIGITS } byte_level_place;

static lk_status read_byte_level(lk_tokenizer *t, const lk__json *part, byte_level_place place)
{
    bool      prefix = true, regex = true;
    lk_status status = lk__tokenizer_bool(t->context, part, "pre_tokenizer", "add_prefix_space", &prefix);
    if (status < 0 || (status = lk__tokenizer_bool(t->context, part, "pre_tokenizer", "use_regex", &regex)) < 0)
        return status;
    if (!lk__tokenizer_is(part, "ByteLevel")) return refuse_pretokenizer(t, part);
    if (place != ALONE && (prefix || regex != (place == AFTER_DIGITS)))
        return lk__tokenizer_refuse(t->context, "pre_tokenizer", part,
                                    place == AFTER_SPLIT
                                        ? "after a Split, add_prefix_space and use_regex must be false"
                                        : "after Digits, add_prefix_space must be false and use_regex true");
    t->prefix_space = prefix;
    if (regex) t->pretokenizer = place == AFTER_DIGITS ? LK__SPLIT_GPT2_DIGITS : LK__SPLIT_GPT2;
    return LK_OK;
}

/* ByteLevel, maybe with one before it that finds words or digits. */
static lk_status read_pretokenizers(lk_tokenizer *t, const lk__json *part)
{
    lk__json  members, first, second, more;
    bool      characters = false, individual = false;
    lk_status status;
    if (!lk__json_get(part, "pretokenizers", &members)) return refuse_pretokenizer(t, part);
    lk__json_walk walk = lk__json_begin(&members);
    if (!lk__json_next(&walk, NULL, &first)) return refuse_pretokenizer(t, part);
    if (!lk__json_next(&walk, NULL, &second)) return read_byte_level(t, &first, ALONE);
    if (lk__json_next(&walk, NULL, &more)) return refuse_pretokenizer(t, part);
    if (lk__tokenizer_is(&first, "Split")) {
        if ((status = read_split(t, &first, &characters)) < 0) return status;
        return characters ? refuse_pretokenizer(t, part) : read_byte_level(t, &second, AFTER_SPLIT);
    }
    if (!lk__tokenizer_is(&first, "Digits")) return refuse_pretokenizer(t, part);
    status = lk__tokenizer_bool(t->context, &first, "pre_tokenizer", "individual_digits", &individual);
    if (status < 0) return status;
    return individual ? read_byte_level(t, &second, AFTER_DIGITS) : refuse_pretokenizer(t, &first);
}

lk_status lk__tokenizer_read_pretokenizer(lk_tokenizer *t, const lk__json *root)
{
    lk__json part;
    bool     characters = false;
    if (!lk__tokenizer_member(root, "pre_tokenizer", &part))
        return lk__fail(t->context, LK_EFORMAT, "a missing pre_tokenizer is not supported: %s", known_pretokenizers);
    if (lk__tokenizer_is(&part, "Sequence")) return read_pretokenizers(t, &part);
    if (!lk__tokenizer_is(&part, "Split")) return read_byte_level(t, &part, ALONE);
    lk_status status = read_split(t, &part, &characters);
    t->kind = LK__TEXT_CHARACTERS;
    return status >= 0 && !characters ? refuse_pretokenizer(t, &part) : status;
}

/* ---- post-processors and decoders ---- */

static lk_status refuse_template(lk_tokenizer *t, const lk__json *part, const char *why)
{
    return lk__tokenizer_refuse(t->context, "post_processor", part, why);
}

/* Appends the ids of a special token of a template: {NAME: {"ids": [ID, …]}, …}. */
static lk_status add_template_token(lk_tokenizer *t, const lk__json *part, const lk__json *token, int32_t *list,
                                    int *count)
{
    lk__json name, tokens, key, entry, ids, id;
    int64_t  number;
    bool     found = false;
    if (!lk__json_get(token, "id", &name) || !lk__json_get(part, "special_tokens", &tokens))
        return refuse_template(t, part, "a template needs \"special_tokens\"");
    lk__json_walk walk = lk__json_begin(&tokens);
    while (!found && lk__json_next(&walk, &key, &entry))
        found = key.length == name.length && memcmp(key.text, name.text, key.length) == 0 &&
                lk__json_get(&entry, "ids", &ids);
    if (!found) return refuse_template(t, part, "every token of a template needs its ids in \"special_tokens\"");
    walk = lk__json_begin(&ids);
    while (lk__json_next(&walk, NULL, &id)) {
        if (!lk__json_integer(&id, &number) || number < 0 || number > INT32_MAX || *count == LK__TOKENIZER_AROUND)
            return refuse_template(t, part,
                                   "expected integer token ids, at most 8 before the text and at most 8 after it");
        list[(*count)++] = (int32_t)number;
    }
    return LK_OK;
}

/* The tokens around a single text: {"single": [{"SpecialToken": {"id": NAME}}, {"Sequence": {"id": "A"}}, …]}. */
static lk_status read_template(lk_tokenizer *t, const lk__json *part)
{
    lk__json  single, item, token;
    bool      text = false;
    lk_status status = LK_OK;
    if (t->prefix_count || t->suffix_count) return refuse_template(t, part, "expected at most one template");
    if (!lk__tokenizer_member(part, "single", &single)) return LK_OK;
    lk__json_walk walk = lk__json_begin(&single);
    while (status >= 0 && lk__json_next(&walk, NULL, &item)) {
        if (lk__json_get(&item, "SpecialToken", &token))
            status = add_template_token(t, part, &token, text ? t->suffix : t->prefix,
                                        text ? &t->suffix_count : &t->prefix_count);
        else if (text || !lk__json_get(&item, "Sequence", &token))
            status = refuse_template(t, part, "expected a template with one Sequence");
        else
            text = true;
    }
    return status;
}

/* They add tokens at the ends of a text, which lk_tokenizer_prefix and lk_tokenizer_suffix give, or correct offsets. */
static lk_status check_post_processor(lk_tokenizer *t, const lk__json *part)
{
    if (lk__tokenizer_is(part, "Sequence"))
        return read_sequence(t, part, "processors", "post_processor", check_post_processor);
    if (lk__tokenizer_is(part, "TemplateProcessing")) return read_template(t, part);
    return lk__tokenizer_is(part, "ByteLevel") ? LK_OK
                                               : refuse_template(t, part, "expected ByteLevel or TemplateProcessing");
}

lk_status lk__tokenizer_check_template(const lk_tokenizer *t)
{
    for (int i = 0; i < t->prefix_count + t->suffix_count; i++) {
        int32_t id = i < t->prefix_count ? t->prefix[i] : t->suffix[i - t->prefix_count];
        if (!lk_tokenizer_token(t, id, NULL))
            return lk__fail(t->context, LK_EFORMAT,
                            "the post_processor template uses token %d, which is not in the vocabulary", (int)id);
    }
    return LK_OK;
}

lk_status lk__tokenizer_check_ends(lk_tokenizer *t, const lk__json *root)
{
    lk__json    part;
    const char *decoder = t->kind == LK__TEXT_CHARACTERS ? "Fuse" : "ByteLevel";
    lk_status   status = lk__tokenizer_member(root, "post_processor", &part) ? check_post_processor(t, &part) : LK_OK;
    if (status < 0) return status;
    if (!lk__tokenizer_member(root, "decoder", &part))
        return lk__fail(t->context, LK_EFORMAT, "there is no decoder: expected %s", decoder);
    return lk__tokenizer_is(&part, decoder)
               ? LK_OK
               : lk__tokenizer_refuse(t->context, "decoder", &part,
                                      t->kind == LK__TEXT_CHARACTERS ? "expected Fuse with single characters"
                                                                     : "expected ByteLevel");
}
