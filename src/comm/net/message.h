/* comm/words.h - the small messages of a group over a network: their bytes, and their parser, which believes nothing. */
#ifndef LK__MESSAGE_H
#define LK__MESSAGE_H

#include "comm/verdict.h"

enum {
    LK__NET_SMALL = 8192, /* bytes of data that travel with an arrival */
    LK__NET_NOTE = 256,   /* bytes of a note */
};

typedef enum lk__net_message_kind {
    LK__MESSAGE_ARRIVE = 1, /* has come to a collective; data may follow */
    LK__MESSAGE_STATE,      /* where it is: an answer, and its pulse */
    LK__MESSAGE_ASK,        /* where are you? */
    LK__MESSAGE_FAIL,       /* the group failed; or that it should, says one that does not decide it */
    LK__MESSAGE_GONE,       /* leaves the group */
    LK__MESSAGE_NOTE,       /* for a send or receive */
} lk__net_message_kind;

typedef struct lk__net_call {
    lk__comm_record record;
    char            file[LK__FILE_NAME];
} lk__net_call;

typedef struct lk__net_state {
    uint64_t     entered, left;
    int64_t      since_us;     /* of the latest change of the two, before this was said */
    int32_t      busy, failed; /* failed: the latest operation that ended */
    char         busy_with[LK__BUSY_TEXT];
    lk__net_call calls[2]; /* by parity */
} lk__net_state;

/* On the wire everything is little-endian and begins with this. */
typedef struct lk__net_message_header {
    uint32_t bytes; /* of the whole word */
    uint16_t kind, reserved;
} lk__net_message_header;

typedef struct lk__net_message_arrive {
    lk__net_message_header head;
    uint64_t               number, signature, entered;
    lk__net_call           call;
} lk__net_message_arrive;

typedef struct lk__net_message_state {
    lk__net_message_header head;
    lk__net_state          state;
} lk__net_message_state;

typedef struct lk__net_message_fail {
    lk__net_message_header head;
    int32_t                status, proposed;
    lk__comm_cause         cause;
} lk__net_message_fail;

enum {
    LK__MESSAGE_MOST = sizeof(lk__net_message_arrive) + LK__NET_SMALL > sizeof(lk__net_message_fail) + LK__COMM_TEXT
                           ? sizeof(lk__net_message_arrive) + LK__NET_SMALL
                           : sizeof(lk__net_message_fail) + LK__COMM_TEXT
};

/* A word taken apart. `data` points into what was parsed. */
typedef struct lk__net_message {
    lk__net_message_kind kind;
    uint64_t             number, signature, entered; /* arrive */
    lk__net_call         call;                       /* arrive */
    lk__net_state        state;
    int                  status;   /* fail; below 0 */
    bool                 proposed; /* fail */
    lk__comm_cause       cause;    /* fail */
    const char          *data;     /* of an arrival or a note; the text of a failure, which does not end in 0 */
    size_t               bytes;
} lk__net_message;

/* How long the word at the beginning of `have` bytes is: 0 when more is needed to know, -1 when it is no word. */
long lk__message_length(const void *bytes, size_t have);
/* A whole word, as long as lk__message_length said. False: it is none. Whatever it gives can be shown and indexed. */
bool lk__message_parse(const void *bytes, size_t length, lk__net_message *word);
/* A failure's text as it is shown: lines stay, what else a terminal would obey is replaced. */
void lk__message_clean_text(char *text);

#endif
