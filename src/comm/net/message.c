/* words.c - takes words apart. A peer has proved that it knows the token before its words come here, but a broken one
 * may say anything: lengths are checked against the kind, numbers against their range, text is made printable. */
#include "comm/net/message.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are copied as they lie in memory");
_Static_assert(sizeof(lk__comm_record) == 56 && sizeof(lk__net_call) == 168 && sizeof(lk__net_state) == 432,
               "no holes");

static const struct {
    size_t least, most;
} lengths[] = {
    [LK__MESSAGE_ARRIVE] = {sizeof(lk__net_message_arrive), sizeof(lk__net_message_arrive) + LK__NET_SMALL},
    [LK__MESSAGE_STATE] = {sizeof(lk__net_message_state), sizeof(lk__net_message_state)},
    [LK__MESSAGE_ASK] = {sizeof(lk__net_message_header), sizeof(lk__net_message_header)},
    [LK__MESSAGE_FAIL] = {sizeof(lk__net_message_fail), sizeof(lk__net_message_fail) + LK__COMM_TEXT},
    [LK__MESSAGE_GONE] = {sizeof(lk__net_message_header), sizeof(lk__net_message_header)},
    [LK__MESSAGE_NOTE] = {sizeof(lk__net_message_header), sizeof(lk__net_message_header) + LK__NET_NOTE},
};

long lk__message_length(const void *bytes, size_t have)
{
    lk__net_message_header head;
    if (have < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    if (head.kind < LK__MESSAGE_ARRIVE || head.kind > LK__MESSAGE_NOTE || head.reserved) return -1;
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

void lk__message_clean_text(char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < ' ' && *text != '\n') || *text == 127) *text = '?';
}

static bool check_call(lk__net_call *call)
{
    const lk__comm_record *r = &call->record;
    make_printable(call->file, sizeof call->file);
    return (uint32_t)r->kind < LK__KIND_COUNT && lk_dtype_size((lk_dtype)r->type) > 0 && (uint32_t)r->reduce <= LK_PROD;
}

bool lk__message_parse(const void *bytes, size_t length, lk__net_message *word)
{
    if (length < sizeof(lk__net_message_header) || lk__message_length(bytes, length) != (long)length) return false;
    lk__net_message_header head;
    lk__net_message_arrive arrive;
    lk__net_message_fail   fail;
    memcpy(&head, bytes, sizeof head);
    word->kind = (lk__net_message_kind)head.kind;
    word->data = NULL;
    word->bytes = 0;
    switch (word->kind) {
    case LK__MESSAGE_ARRIVE:
        memcpy(&arrive, bytes, sizeof arrive);
        word->number = arrive.number;
        word->signature = arrive.signature;
        word->entered = arrive.entered;
        word->call = arrive.call;
        word->data = (const char *)bytes + sizeof arrive;
        word->bytes = length - sizeof arrive;
        return arrive.number > 0 && check_call(&word->call);
    case LK__MESSAGE_STATE:
        memcpy(&word->state, (const char *)bytes + sizeof head, sizeof word->state);
        make_printable(word->state.busy_with, sizeof word->state.busy_with);
        return word->state.since_us >= 0 && check_call(&word->state.calls[0]) && check_call(&word->state.calls[1]);
    case LK__MESSAGE_FAIL:
        memcpy(&fail, bytes, sizeof fail);
        word->status = fail.status;
        word->proposed = fail.proposed != 0;
        word->cause = fail.cause;
        word->data = (const char *)bytes + sizeof fail;
        word->bytes = length - sizeof fail;
        return fail.status < 0 && fail.status >= LK_ECANCELED && (uint32_t)fail.cause.kind < LK__CAUSE_KINDS &&
               fail.cause.rank >= 0;
    case LK__MESSAGE_NOTE:
        word->data = (const char *)bytes + sizeof head;
        word->bytes = length - sizeof head;
        return word->bytes > 0;
    default: return true;
    }
}
