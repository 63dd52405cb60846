/* comm/words.h - the small messages of a group over a network: their bytes, and their parser, which believes nothing. */
#ifndef LK__WORDS_H
#define LK__WORDS_H

#include "comm/verdict.h"

enum {
    LK__NET_SMALL = 8192, /* bytes of data that travel with an arrival */
    LK__NET_NOTE = 256,   /* bytes of a note */
};

typedef enum lk__word_kind {
    LK__WORD_ARRIVE = 1, /* has come to a collective; data may follow */
    LK__WORD_STATE,      /* where it is: an answer, and its pulse */
    LK__WORD_ASK,        /* where are you? */
    LK__WORD_FAIL,       /* the group failed; or that it should, says one that does not decide it */
    LK__WORD_GONE,       /* leaves the group */
    LK__WORD_NOTE,       /* for a send or receive */
} lk__word_kind;

typedef struct lk__call {
    lk__record record;
    char       file[LK__FILE_NAME];
} lk__call;

typedef struct lk__state {
    uint64_t entered, left;
    int64_t  since_us; /* of the latest change of the two, before this was said */
    int32_t  busy, failed; /* failed: the latest operation that ended */
    char     busy_with[LK__BUSY_TEXT];
    lk__call calls[2]; /* by parity */
} lk__state;

/* On the wire everything is little-endian and begins with this. */
typedef struct lk__word_head {
    uint32_t bytes; /* of the whole word */
    uint16_t kind, reserved;
} lk__word_head;

typedef struct lk__word_arrive {
    lk__word_head head;
    uint64_t      number, signature, entered;
    lk__call      call;
} lk__word_arrive;

typedef struct lk__word_state {
    lk__word_head head;
    lk__state     state;
} lk__word_state;

typedef struct lk__word_fail {
    lk__word_head head;
    int32_t       status, proposed;
    lk__blame     blame;
} lk__word_fail;

enum {
    LK__WORD_MOST = sizeof(lk__word_arrive) + LK__NET_SMALL > sizeof(lk__word_fail) + LK__COMM_TEXT
                        ? sizeof(lk__word_arrive) + LK__NET_SMALL
                        : sizeof(lk__word_fail) + LK__COMM_TEXT
};

/* A word taken apart. `data` points into what was parsed. */
typedef struct lk__word {
    lk__word_kind kind;
    uint64_t      number, signature, entered; /* arrive */
    lk__call      call;                       /* arrive */
    lk__state     state;
    int           status;   /* fail; below 0 */
    bool          proposed; /* fail */
    lk__blame     blame;    /* fail */
    const char   *data;   /* of an arrival or a note; the text of a failure, which does not end in 0 */
    size_t        bytes;
} lk__word;

/* How long the word at the beginning of `have` bytes is: 0 when more is needed to know, -1 when it is no word. */
long lk__word_length(const void *bytes, size_t have);
/* A whole word, as long as lk__word_length said. False: it is none. Whatever it gives can be shown and indexed. */
bool lk__word_parse(const void *bytes, size_t length, lk__word *word);
/* A failure's text as it is shown: lines stay, what else a terminal would obey is replaced. */
void lk__words_clean(char *text);

#endif
