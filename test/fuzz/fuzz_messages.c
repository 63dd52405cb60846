/* fuzz_words.c - the words of a group over a network: any bytes are no word, or one whose parts can be shown and counted.
 * An input is a stream of words, as a connection gives it. */
#include "comm/net/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void show(const lk__net_call *call)
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
    lk__net_message word;
    size_t          at = 0;
    while (at < size) {
        long length = lk__message_length(data + at, size - at);
        if (length > (long)LK__MESSAGE_MOST) abort();
        if (length <= 0 || (size_t)length > size - at) return 0;
        if (lk__message_parse(data + at, (size_t)length - 1, &word)) abort(); /* not whole */
        if (!lk__message_parse(data + at, (size_t)length, &word)) return 0;
        if (word.bytes && ((const uint8_t *)word.data < data + at ||
                           (const uint8_t *)word.data + word.bytes > data + at + (size_t)length))
            abort();
        if (word.kind == LK__MESSAGE_ARRIVE) show(&word.call);
        if (word.kind == LK__MESSAGE_STATE) {
            show(&word.state.calls[0]);
            show(&word.state.calls[1]);
            if (memchr(word.state.busy_with, 0, sizeof word.state.busy_with) == NULL) abort();
        }
        if (word.kind == LK__MESSAGE_FAIL && *lk_status_name((lk_status)word.status) != 'L') abort();
        at += (size_t)length;
    }
    return 0;
}
