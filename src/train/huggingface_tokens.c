/* huggingface_tokens.c - the tokens that begin, end and pad, in a config.json and a generation_config.json. Either may
 * have a list of tokens that end a text: generation ends at any of them. */
#include "train/huggingface.h"

typedef lk__huggingface_reader reader;

enum { MOST_ENDS = sizeof(((lk_transformer_config *)0)->more_eos) / sizeof(int32_t) };

/* Ids beyond the vocabulary are none. False: there is no room. */
static bool add_end(lk_transformer_config *c, int64_t id)
{
    if (id < 0 || id >= c->vocabulary || id == c->eos) return true;
    for (int i = 0; i < c->more_eos_count; i++)
        if (c->more_eos[i] == id) return true;
    if (c->eos >= 0 && c->more_eos_count == MOST_ENDS) return false;
    if (c->eos < 0)
        c->eos = id;
    else
        c->more_eos[c->more_eos_count++] = (int32_t)id;
    return true;
}

/* An id or a list of them. */
static void add_ends(reader *r, lk_transformer_config *c, const lk__json *value)
{
    static const char key[] = "eos_token_id";
    lk__json          one = *value;
    int64_t           id = -1;
    bool              list = value->kind == LK__JSON_ARRAY;
    lk__json_walk     walk = lk__json_begin(value);
    while (list ? lk__json_next(&walk, NULL, &one) : true) {
        if (!lk__json_integer(&one, &id))
            lk__hf_refuse(r, key, value, list ? "expected a list of token ids" : "expected a token id");
        else if (!add_end(c, id))
            lk__hf_refuse(r, key, value, "at most %d end-of-text tokens are supported", MOST_ENDS + 1);
        if (!list || r->status < 0) return;
    }
}

/* Whether the key has a value; *null: it is null, which means that there is no such token. */
static bool find_token(reader *r, const char *key, lk__json *value, bool *null)
{
    bool found = lk__hf_get(r, &r->root, key, value);
    *null = !found && r->status >= 0 && lk__json_get(&r->root, key, value);
    return found;
}

/* -1: none, or beyond the vocabulary. */
static int64_t read_token(reader *r, const char *key, int64_t vocabulary, int64_t missing)
{
    lk__json value;
    int64_t  id = missing;
    bool     null;
    if (find_token(r, key, &value, &null) && !lk__json_integer(&value, &id))
        lk__hf_refuse(r, key, &value, "expected a token id");
    return !null && id >= 0 && id < vocabulary ? id : -1;
}

void lk__hf_read_tokens(reader *r, lk_transformer_config *c, int64_t bos, int64_t eos, int64_t pad)
{
    lk__json value;
    bool     null;
    c->bos = read_token(r, "bos_token_id", c->vocabulary, bos);
    c->pad = read_token(r, "pad_token_id", c->vocabulary, pad);
    c->eos = -1;
    if (find_token(r, "eos_token_id", &value, &null))
        add_ends(r, c, &value);
    else if (!null)
        add_end(c, eos);
}

lk_status lk__hf_generation_parse(lk_context *context, const char *label, const char *text, size_t length,
                                  lk_transformer_config *c)
{
    reader   r;
    lk__json value;
    if (lk__hf_open(&r, context, label, text, length) < 0) return r.status;
    if (c->bos < 0) c->bos = read_token(&r, "bos_token_id", c->vocabulary, -1);
    if (c->pad < 0) c->pad = read_token(&r, "pad_token_id", c->vocabulary, -1);
    if (lk__hf_get(&r, &r.root, "eos_token_id", &value)) add_ends(&r, c, &value);
    return r.status;
}
