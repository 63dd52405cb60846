/* tokenizer.c - a tokenizer's tokens, and ids back to text. */
#include "data/text/tokenizer.h"

#include <string.h>

lk_status lk__tokenizer_create(lk_context *context, lk__text_kind kind, lk_tokenizer **tokenizer)
{
    lk_tokenizer *t = *tokenizer = lk__alloc(context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->context = t->vocabulary.context = context;
    t->kind = kind;
    t->end = t->other_end = -1;
    for (int i = 0; i < 256; i++) t->single[i] = -1;
    return LK_OK;
}

void lk_tokenizer_free(lk_tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < t->files_count; i++)
        lk__free(t->context, LK_MEMORY_OTHER, (char *)t->files[i].text, t->files[i].bytes + 1);
    lk__vocabulary_free(&t->vocabulary);
    lk__bpe_free(t->context, &t->bpe);
    lk__added_free(t->context, &t->raw);
    lk__added_free(t->context, &t->normalized);
    lk__free(t->context, LK_MEMORY_OTHER, t, sizeof *t);
}

const char *lk_tokenizer_kind(const lk_tokenizer *t)
{
    return t->kind == LK__TEXT_BYTES ? "byte" : t->kind == LK__TEXT_CHARACTERS ? "char" : "bpe";
}

int64_t lk_tokenizer_vocabulary(const lk_tokenizer *t) { return (int64_t)t->vocabulary.count; }
int32_t lk_tokenizer_end(const lk_tokenizer *t) { return t->end; }
bool lk_tokenizer_is_end(const lk_tokenizer *t, int32_t id) { return id >= 0 && (id == t->end || id == t->other_end); }
int32_t lk_tokenizer_begin(const lk_tokenizer *t) { return t->prefix_count ? t->prefix[0] : -1; }

const int32_t *lk_tokenizer_prefix(const lk_tokenizer *t, int *count)
{
    *count = t->prefix_count;
    return t->prefix;
}

const int32_t *lk_tokenizer_suffix(const lk_tokenizer *t, int *count)
{
    *count = t->suffix_count;
    return t->suffix;
}

int32_t lk_tokenizer_find(const lk_tokenizer *t, const char *token)
{
    return lk__vocabulary_find(&t->vocabulary, token, strlen(token));
}

const char *lk_tokenizer_token(const lk_tokenizer *t, int32_t id, size_t *bytes)
{
    const lk__text_token *token = lk__vocabulary_token(&t->vocabulary, id);
    if (bytes) *bytes = token ? token->length : 0;
    return token ? t->vocabulary.pool + token->text : NULL;
}

bool lk_tokenizer_is_special(const lk_tokenizer *t, int32_t id)
{
    const lk__text_token *token = lk__vocabulary_token(&t->vocabulary, id);
    return token && token->special;
}

size_t lk_tokenizer_decode(const lk_tokenizer *t, const int32_t *ids, size_t count, char *text, size_t room)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const lk__text_token *token = lk__vocabulary_token(&t->vocabulary, ids[i]);
        if (!token || token->special) continue;
        size_t fits = used >= room ? 0 : room - used < token->length ? room - used : token->length;
        if (fits) memcpy(text + used, t->vocabulary.pool + token->text, fits);
        used += token->length;
    }
    return used;
}

void lk__tokenizer_find_end(lk_tokenizer *t, const char *name)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    t->end = name ? lk_tokenizer_find(t, name) : -1;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && t->end < 0; i++) t->end = lk_tokenizer_find(t, usual[i]);
}

const lk_tokenizer_file *lk_tokenizer_files(const lk_tokenizer *t, int *count)
{
    *count = t->files_count;
    return t->files;
}
