/* added.c - searching text for added tokens: a table of first bytes, then a binary search that narrows byte by byte. */
#include "data/text/added.h"

#include <stdlib.h>
#include <string.h>

lk_status lk__added_add(lk_context *context, lk__added *added, const char *text, size_t length,
                        const lk__added_token *token)
{
    lk_status status =
        lk__grow(context, (void **)&added->tokens, &added->capacity, added->count + 1, sizeof *added->tokens);
    if (status < 0) return status;
    lk__added_token *new = &added->tokens[added->count];
    *new = *token;
    new->length = length;
    new->text = lk__alloc(context, LK_MEMORY_OTHER, length);
    if (!new->text) return LK_ENOMEM;
    memcpy(new->text, text, length);
    added->count++;
    added->firsts += !added->first[(unsigned char)text[0]];
    added->first[(unsigned char)text[0]] = true;
    if (length > added->longest) added->longest = length;
    return LK_OK;
}

static int compare_tokens(const void *left, const void *right)
{
    const lk__added_token *a = left, *b = right;
    int                    order = memcmp(a->text, b->text, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

void lk__added_sort(lk__added *added)
{
    if (added->count) qsort(added->tokens, added->count, sizeof *added->tokens, compare_tokens);
}

void lk__added_free(lk_context *context, lk__added *added)
{
    for (size_t i = 0; i < added->count; i++)
        lk__free(context, LK_MEMORY_OTHER, added->tokens[i].text, added->tokens[i].length);
    lk__free(context, LK_MEMORY_OTHER, added->tokens, added->capacity * sizeof *added->tokens);
    *added = (lk__added){0};
}

/* The first token of [low, high), which agree in `depth` bytes, whose next byte is at least `byte`; those without one
 * come first. */
static size_t search_byte(const lk__added *added, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t                 middle = low + (high - low) / 2;
        const lk__added_token *token = &added->tokens[middle];
        int                    next = token->length > depth ? (unsigned char)token->text[depth] : -1;
        if (next < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that text begins with. */
static const lk__added_token *match_longest(const lk__added *added, const char *text, size_t bytes)
{
    const lk__added_token *found = NULL;
    size_t                 low = 0, high = added->count;
    for (size_t depth = 0; depth < bytes && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = search_byte(added, low, high, depth, byte);
        high = search_byte(added, low, high, depth, byte + 1);
        if (low < high && added->tokens[low].length == depth + 1) found = &added->tokens[low];
    }
    return found;
}

/* The next place where a token may begin, or bytes. */
static size_t find_first(const lk__added *added, const char *text, size_t bytes, size_t from)
{
    if (added->firsts == 1) { /* '<', as a rule */
        const char *found = memchr(text + from, added->tokens[0].text[0], bytes - from);
        return found ? (size_t)(found - text) : bytes;
    }
    while (from < bytes && !added->first[(unsigned char)text[from]]) from++;
    return from;
}

const lk__added_token *lk__added_find(const lk__added *added, const char *text, size_t bytes, size_t from,
                                      size_t *start)
{
    if (added->count == 0) return NULL;
    for (; from < bytes && (from = find_first(added, text, bytes, from)) < bytes; from++) {
        const lk__added_token *token = match_longest(added, text + from, bytes - from);
        if (!token) continue;
        *start = from;
        return token;
    }
    return NULL;
}
