/* words.c - takes words apart. A peer has proved that it knows the token before its words come here, but a broken one
 * may say anything: lengths are checked against the kind, numbers against their range, text is made printable. */
#include "comm/words.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are copied as they lie in memory");
_Static_assert(sizeof(lk__record) == 56 && sizeof(lk__call) == 168 && sizeof(lk__state) == 432, "no holes");

static const struct {
    size_t least, most;
} lengths[] = {
    [LK__WORD_ARRIVE] = {sizeof(lk__word_arrive), sizeof(lk__word_arrive) + LK__NET_SMALL},
    [LK__WORD_STATE] = {sizeof(lk__word_state), sizeof(lk__word_state)},
    [LK__WORD_ASK] = {sizeof(lk__word_head), sizeof(lk__word_head)},
    [LK__WORD_FAIL] = {sizeof(lk__word_fail), sizeof(lk__word_fail) + LK__COMM_TEXT},
    [LK__WORD_GONE] = {sizeof(lk__word_head), sizeof(lk__word_head)},
    [LK__WORD_NOTE] = {sizeof(lk__word_head), sizeof(lk__word_head) + LK__NET_NOTE},
};

long lk__word_length(const void *bytes, size_t have)
{
    lk__word_head head;
    if (have < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    if (head.kind < LK__WORD_ARRIVE || head.kind > LK__WORD_NOTE || head.reserved) return -1;
    if (head.bytes < lengths[head.kind].least || head.bytes > lengths[head.kind].most) return -1;
    return (long)head.bytes;
}

/* Ends it, and replaces what a terminal would obey. */
static void make_printable(char *text, size_t room)
{
    text[room - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

void lk__words_clean(char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < ' ' && *text != '\n') || *text == 127) *text = '?';
}

static bool check_call(lk__call *call)
{
    const lk__record *r = &call->record;
    make_printable(call->file, sizeof call->file);
    return (uint32_t)r->kind < LK__KIND_COUNT && lk_dtype_size((lk_dtype)r->type) > 0 && (uint32_t)r->reduce <= LK_PROD;
}

bool lk__word_parse(const void *bytes, size_t length, lk__word *word)
{
    if (length < sizeof(lk__word_head) || lk__word_length(bytes, length) != (long)length) return false;
    lk__word_head   head;
    lk__word_arrive arrive;
    lk__word_fail   fail;
    memcpy(&head, bytes, sizeof head);
    word->kind = (lk__word_kind)head.kind;
    word->data = NULL;
    word->bytes = 0;
    switch (word->kind) {
    case LK__WORD_ARRIVE:
        memcpy(&arrive, bytes, sizeof arrive);
        word->number = arrive.number;
        word->signature = arrive.signature;
        word->entered = arrive.entered;
        word->call = arrive.call;
        word->data = (const char *)bytes + sizeof arrive;
        word->bytes = length - sizeof arrive;
        return arrive.number > 0 && check_call(&word->call);
    case LK__WORD_STATE:
        memcpy(&word->state, (const char *)bytes + sizeof head, sizeof word->state);
        make_printable(word->state.busy_with, sizeof word->state.busy_with);
        return word->state.since_us >= 0 && check_call(&word->state.calls[0]) && check_call(&word->state.calls[1]);
    case LK__WORD_FAIL:
        memcpy(&fail, bytes, sizeof fail);
        word->status = fail.status;
        word->proposed = fail.proposed != 0;
        word->blame = fail.blame;
        word->data = (const char *)bytes + sizeof fail;
        word->bytes = length - sizeof fail;
        return fail.status < 0 && fail.status >= LK_ECANCELED && (uint32_t)fail.blame.kind < LK__BLAME_KINDS &&
               fail.blame.rank >= 0;
    case LK__WORD_NOTE:
        word->data = (const char *)bytes + sizeof head;
        word->bytes = length - sizeof head;
        return word->bytes > 0;
    default: return true;
    }
}
