/* tokenizer_added.c - the added tokens of a tokenizer.json. */
#include "data/text/nfc.h"
#include "data/text/tokenizer_json.h"

/* `tokenizers` numbers tokens that the model does not have itself, behind those before; ids that disagree with that are
 * refused. */
static lk_status check_id(lk_tokenizer *t, const lk__tokenizer_string *name, int64_t id, int64_t *next)
{
    int32_t known = lk__vocabulary_find(&t->vocabulary, name->text, name->length);
    int64_t expected = known >= 0 ? known : *next;
    if (id != expected)
        return lk__fail(t->context, LK_EFORMAT, "added_tokens: \"%.80s\" has the id %lld; expected %lld", name->text,
                        (long long)id, (long long)expected);
    if (id >= *next) *next = id + 1;
    if (known >= 0) return LK_OK;
    return lk__vocabulary_add(&t->vocabulary, id, &(lk__vocabulary_entry){name->text, name->length, NULL, 0},
                              t->vocabulary.used + 1);
}

/* Tokens that are normalised are searched in normalised text, so their own text is normalised first. */
static lk_status add_searched(lk_tokenizer *t, const lk__tokenizer_string *name, bool normalized,
                              const lk__added_token *token)
{
    lk__nfc_scratch nfc = {0};
    const char     *text = name->text;
    size_t          length = name->length;
    lk_status       status = LK_OK;
    if (normalized && t->nfc) status = lk__nfc(t->context, &nfc, &text, &length);
    if (status >= 0) status = lk__added_add(t->context, normalized ? &t->normalized : &t->raw, text, length, token);
    lk__nfc_scratch_free(t->context, &nfc);
    return status;
}

static lk_status add_token(lk_tokenizer *t, const lk__json *item, lk__tokenizer_string *name, int64_t *next)
{
    static const char part[] = "added_tokens";
    lk__json          value;
    lk__added_token   token = {0};
    int64_t           id;
    bool              special = false, normalized, single_word = false;
    lk_status         status;
    if (!lk__json_get(item, "content", &value))
        return lk__tokenizer_refuse(t->context, part, item, "each token needs a \"content\"");
    if ((status = lk__tokenizer_decode_string(t->context, &value, "added_tokens: content", name)) < 0) return status;
    if (name->length == 0) return lk__tokenizer_refuse(t->context, part, item, "its \"content\" is empty");
    if (!lk__json_get(item, "id", &value) || !lk__json_integer(&value, &id))
        return lk__tokenizer_refuse(t->context, part, item, "each token needs an integer \"id\"");
    if ((status = lk__tokenizer_bool(t->context, item, part, "special", &special)) < 0) return status;
    normalized = !special;
    if ((status = lk__tokenizer_bool(t->context, item, part, "normalized", &normalized)) < 0 ||
        (status = lk__tokenizer_bool(t->context, item, part, "single_word", &single_word)) < 0 ||
        (status = lk__tokenizer_bool(t->context, item, part, "lstrip", &token.strip_left)) < 0 ||
        (status = lk__tokenizer_bool(t->context, item, part, "rstrip", &token.strip_right)) < 0)
        return status;
    if (single_word) return lk__tokenizer_refuse(t->context, part, item, "\"single_word\" must be false");
    if ((status = check_id(t, name, id, next)) < 0) return status;
    lk__text_token *known = &t->vocabulary.tokens[id];
    known->special = special;
    /* it stands for itself, whatever bytes its name spells */
    known->text = known->name, known->length = known->name_length;
    token.id = (int32_t)id;
    return add_searched(t, name, normalized, &token);
}

lk_status lk__tokenizer_read_added(lk_tokenizer *t, const lk__json *root)
{
    lk__json             list, item;
    lk__tokenizer_string name = {0};
    lk_status            status = LK_OK;
    int64_t              next = (int64_t)t->vocabulary.used; /* the model's number of tokens */
    if (!lk__tokenizer_member(root, "added_tokens", &list)) return LK_OK;
    if (list.kind != LK__JSON_ARRAY)
        return lk__tokenizer_refuse(t->context, "added_tokens", &list, "it must be a list");
    lk__json_walk walk = lk__json_begin(&list);
    while (status >= 0 && lk__json_next(&walk, NULL, &item)) status = add_token(t, &item, &name, &next);
    lk__tokenizer_string_free(t->context, &name);
    lk__added_sort(&t->raw);
    lk__added_sort(&t->normalized);
    if (t->kind == LK__TEXT_BYTES && t->raw.count + t->normalized.count > 0) t->kind = LK__TEXT_BPE;
    return status;
}
