/* fuzz_messages.c - the control messages of a group over a network: any bytes are invalid, or a message whose parts are
 * printable and in range. An input is a stream of messages, as received from a connection. */
#include "comm/net/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void describe_call(const lk__net_call *call)
{
    char          text[256];
    lk__comm_call o = {.kind = (lk__comm_kind)call->record.kind,
                       .type = (lk_dtype)call->record.type,
                       .reduce = (lk_reduce_op)call->record.reduce,
                       .root = call->record.root,
                       .tag = call->record.tag,
                       .count = call->record.count,
                       .bytes = call->record.bytes,
                       .site = {call->file, call->record.line}};
    if (memchr(call->file, 0, sizeof call->file) == NULL) abort();
    lk__call_describe(&o, call->record.number, text, sizeof text);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lk__net_message message;
    size_t          at = 0;
    while (at < size) {
        long length = lk__message_length(data + at, size - at);
        if (length > (long)LK__MESSAGE_MOST) abort();
        if (length <= 0 || (size_t)length > size - at) return 0;
        if (lk__message_parse(data + at, (size_t)length - 1, &message)) abort(); /* incomplete */
        if (!lk__message_parse(data + at, (size_t)length, &message)) return 0;
        if (message.bytes && ((const uint8_t *)message.data < data + at ||
                              (const uint8_t *)message.data + message.bytes > data + at + (size_t)length))
            abort();
        if (message.kind == LK__MESSAGE_ARRIVE) describe_call(&message.call);
        if (message.kind == LK__MESSAGE_STATE) {
            describe_call(&message.state.calls[0]);
            describe_call(&message.state.calls[1]);
            if (memchr(message.state.busy_with, 0, sizeof message.state.busy_with) == NULL) abort();
        }
        if (message.kind == LK__MESSAGE_FAIL && *lk_status_name((lk_status)message.status) != 'L') abort();
        at += (size_t)length;
    }
    return 0;
}
