/* message.c - parses control messages. A peer was authenticated before, but a faulty one may send anything: lengths are
 * checked against the kind, numbers against their range, text is made printable. */
#include "comm/net/message.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are copied as they are in memory");
_Static_assert(sizeof(lk__comm_record) == 56 && sizeof(lk__net_call) == 168 && sizeof(lk__net_state) == 440,
               "no padding");

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

/* Terminates it, and replaces control characters. */
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

bool lk__message_parse(const void *bytes, size_t length, lk__net_message *message)
{
    if (length < sizeof(lk__net_message_header) || lk__message_length(bytes, length) != (long)length) return false;
    lk__net_message_header head;
    lk__net_message_arrive arrive;
    lk__net_message_fail   fail;
    memcpy(&head, bytes, sizeof head);
    message->kind = (lk__net_message_kind)head.kind;
    message->group = head.group;
    message->data = NULL;
    message->bytes = 0;
    switch (message->kind) {
    case LK__MESSAGE_ARRIVE:
        memcpy(&arrive, bytes, sizeof arrive);
        message->number = arrive.number;
        message->signature = arrive.signature;
        message->entered = arrive.entered;
        message->call = arrive.call;
        message->data = (const char *)bytes + sizeof arrive;
        message->bytes = length - sizeof arrive;
        return arrive.number > 0 && check_call(&message->call);
    case LK__MESSAGE_STATE:
        memcpy(&message->state, (const char *)bytes + sizeof head, sizeof message->state);
        make_printable(message->state.busy_with, sizeof message->state.busy_with);
        return message->state.since_us >= 0 && check_call(&message->state.calls[0]) &&
               check_call(&message->state.calls[1]);
    case LK__MESSAGE_FAIL:
        memcpy(&fail, bytes, sizeof fail);
        message->status = fail.status;
        message->proposed = fail.proposed != 0;
        message->cause = fail.cause;
        message->data = (const char *)bytes + sizeof fail;
        message->bytes = length - sizeof fail;
        return fail.status < 0 && lk__status_exists(fail.status) && (uint32_t)fail.cause.kind < LK__CAUSE_KINDS &&
               fail.cause.rank >= 0;
    case LK__MESSAGE_NOTE:
        message->data = (const char *)bytes + sizeof head;
        message->bytes = length - sizeof head;
        return message->bytes > 0;
    default: return true;
    }
}
