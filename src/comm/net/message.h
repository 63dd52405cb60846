/* comm/net/message.h - the control messages of a group over a network: their format, and their parser, which validates
 * everything. */
#ifndef LK__MESSAGE_H
#define LK__MESSAGE_H

#include "comm/verdict.h"

enum {
    LK__NET_SMALL = 8192, /* bytes of data in an arrival, at most */
    LK__NET_NOTE = 256,   /* bytes of a note, at most */
};

typedef enum lk__net_message_kind {
    LK__MESSAGE_ARRIVE = 1, /* the sender has entered a collective; data may follow */
    LK__MESSAGE_STATE,      /* the sender's state: a reply to ASK, and a heartbeat */
    LK__MESSAGE_ASK,        /* asks for the receiver's state */
    LK__MESSAGE_FAIL,       /* the group failed; or a rank that does not decide it proposes so */
    LK__MESSAGE_GONE,       /* the sender leaves the group */
    LK__MESSAGE_NOTE,       /* for a send or receive */
} lk__net_message_kind;

typedef struct lk__net_call {
    lk__comm_record record;
    char            file[LK__FILE_NAME];
} lk__net_call;

typedef struct lk__net_state {
    uint64_t     entered, left;
    int64_t      since_us;     /* microseconds from the latest change of the two to this message */
    int32_t      busy, failed; /* failed: whether the latest operation that ended did */
    int32_t      elsewhere;    /* in an operation of another group of these connections, or failed in one */
    int32_t      reserved;
    char         busy_with[LK__BUSY_TEXT];
    lk__net_call calls[2]; /* by parity */
} lk__net_state;

/* Every message begins with this. All fields are little-endian. */
typedef struct lk__net_message_header {
    uint32_t bytes; /* of the whole message */
    uint16_t kind, reserved;
    uint64_t group; /* its id: groups that were split from another share its connections */
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

/* A parsed message. `data` points into the bytes that were parsed. */
typedef struct lk__net_message {
    lk__net_message_kind kind;
    uint64_t             group;
    uint64_t             number, signature, entered; /* arrive */
    lk__net_call         call;                       /* arrive */
    lk__net_state        state;
    int                  status;   /* fail; below 0 */
    bool                 proposed; /* fail */
    lk__comm_cause       cause;    /* fail */
    const char          *data;     /* of an arrival or a note; the text of a failure, without a final NUL */
    size_t               bytes;
} lk__net_message;

/* The length of the message at the beginning of `have` bytes: 0: more bytes are needed, -1: not a message. */
long lk__message_length(const void *bytes, size_t have);
/* A complete message of lk__message_length bytes. False: invalid. Parsed text is printable, and numbers are in
 * range. */
bool lk__message_parse(const void *bytes, size_t length, lk__net_message *message);
/* Replaces control characters, except newlines, in a failure's text. */
void lk__message_clean_text(char *text);

#endif
