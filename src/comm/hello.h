/* comm/hello.h - how two processes that meet, on one host or over a network, prove to each other that they belong to one
 * job, before either believes anything else. All messages have a fixed size, so there is no length to lie about:
 *
 *     who listens → who came    greeting: a random number
 *     who came → who listens    hello: who it is, a random number of its own, a MAC over all of it and the greeting
 *     who listens → who came    answer: yes, or no and why, a MAC over it and the hello's number; for a rank that came
 *                               to the meeting the cards of all ranks, once all have come, and a MAC over them */
#ifndef LK__HELLO_H
#define LK__HELLO_H

#include "comm/verdict.h"

#include <sys/socket.h>

enum { LK__NONCE = 32, LK__MAC = 32, LK__HOST_ID = 96, LK__ANSWER_TEXT = 512 };

/* Where a rank listens. On the wire, so IPv4 and IPv6 in one form; port little-endian as all else. */
typedef struct lk__address {
    uint16_t      family, port; /* 4, 6 */
    unsigned char bytes[16];
} lk__address;

typedef struct lk__card {
    lk__address address;
    uint32_t    reserved;
    int64_t     pid;
    char        host[LK__HOST_NAME];
    char        host_id[LK__HOST_ID]; /* alike where ranks can share memory */
} lk__card;

typedef struct lk__greeting {
    char          magic[8];
    unsigned char nonce[LK__NONCE];
} lk__greeting;

/* To learn who is there; to connect two ranks; to share memory. */
typedef enum lk__purpose { LK__TO_MEET = 1, LK__TO_PAIR, LK__TO_SHARE } lk__purpose;

typedef struct lk__hello {
    char          magic[8];
    uint32_t      purpose;
    int32_t       rank, size, stream;
    lk__card      card;
    unsigned char nonce[LK__NONCE], mac[LK__MAC];
} lk__hello;

typedef struct lk__answer {
    char          magic[8];
    int32_t       status, reserved;
    char          text[LK__ANSWER_TEXT];
    uint64_t      bytes;             /* of the memory whose descriptor comes along */
    unsigned char secret[LK__NONCE]; /* of the group */
    unsigned char mac[LK__MAC];
} lk__answer;

typedef enum lk__belief { LK__TRUE, LK__FOREIGN, LK__WRONG_TOKEN } lk__belief;

bool lk__greeting_make(lk__greeting *greeting); /* false: the system gives no random numbers */
bool lk__greeting_good(const lk__greeting *greeting);
/* Fills in magic, number and MAC. */
bool lk__hello_sign(lk__hello *hello, const lk__greeting *greeting, const char *token);
/* Looks at what came; text is made printable, and numbers that are impossible for any group are FOREIGN. */
lk__belief lk__hello_judge(lk__hello *hello, const lk__greeting *greeting, const char *token);
void       lk__answer_sign(lk__answer *answer, const lk__hello *hello, const char *token);
/* A refusal for a wrong token cannot be signed so that it is believed: WRONG_TOKEN then, with the text made printable. */
lk__belief lk__answer_judge(lk__answer *answer, const lk__hello *hello, const char *token);
void       lk__cards_sign(const lk__card *cards, int count, const lk__hello *hello, const char *token,
                          unsigned char mac[LK__MAC]);
bool       lk__cards_judge(lk__card *cards, int count, const lk__hello *hello, const char *token,
                           const unsigned char mac[LK__MAC]);
/* What this process says about itself, but for the address. */
void lk__card_make(lk__card *card);

/* A group's own token, out of its job's or its parent's. */
enum { LK__NET_TOKEN = 2 * LK__MAC + 1 };
void lk__token_derive(const char *token, const void *secret, size_t bytes, char derived[LK__NET_TOKEN]);

bool      lk__address_take(lk__address *address, const struct sockaddr_storage *from); /* false: of another family */
socklen_t lk__address_give(const lk__address *address, uint32_t scope, struct sockaddr_storage *to); /* 0: none */
/* "1.2.3.4:5", "[::1]:5", "the Unix socket @name" */
enum { LK__UNIX_NAME = 106, LK__ADDRESS_TEXT = 128 };
void lk__address_show(const struct sockaddr_storage *address, char *out, size_t bytes);

#endif
