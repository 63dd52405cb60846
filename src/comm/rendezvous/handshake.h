/* comm/hello.h - how two processes that meet, on one host or over a network, prove to each other that they belong to one
 * job, before either believes anything else. All messages have a fixed size, so there is no length to lie about:
 *
 *     who listens → who came    greeting: a random number
 *     who came → who listens    hello: who it is, a random number of its own, a MAC over all of it and the greeting
 *     who listens → who came    answer: yes, or no and why, a MAC over it and the hello's number; for a rank that came
 *                               to the meeting the cards of all ranks, once all have come, and a MAC over them */
#ifndef LK__HANDSHAKE_H
#define LK__HANDSHAKE_H

#include "comm/verdict.h"

#include <sys/socket.h>

enum { LK__NONCE = 32, LK__MAC = 32, LK__HOST_ID = 96, LK__REPLY_TEXT = 512 };

/* Where a rank listens. On the wire, so IPv4 and IPv6 in one form; port little-endian as all else. */
typedef struct lk__rendezvous_address {
    uint16_t      family, port; /* 4, 6 */
    unsigned char bytes[16];
} lk__rendezvous_address;

typedef struct lk__rendezvous_card {
    lk__rendezvous_address address;
    uint32_t               reserved;
    int64_t                pid;
    char                   host[LK__HOST_NAME];
    char                   host_id[LK__HOST_ID]; /* alike where ranks can share memory */
} lk__rendezvous_card;

typedef struct lk__rendezvous_challenge {
    char          magic[8];
    unsigned char nonce[LK__NONCE];
} lk__rendezvous_challenge;

/* To learn who is there; to connect two ranks; to share memory. */
typedef enum lk__rendezvous_purpose { LK__TO_JOIN = 1, LK__TO_CONNECT, LK__TO_SHARE } lk__rendezvous_purpose;

typedef struct lk__rendezvous_request {
    char                magic[8];
    uint32_t            purpose;
    int32_t             rank, size, stream;
    lk__rendezvous_card card;
    unsigned char       nonce[LK__NONCE], mac[LK__MAC];
} lk__rendezvous_request;

typedef struct lk__rendezvous_reply {
    char          magic[8];
    int32_t       status, reserved;
    char          text[LK__REPLY_TEXT];
    uint64_t      bytes;             /* of the memory whose descriptor comes along */
    unsigned char secret[LK__NONCE]; /* of the group */
    unsigned char mac[LK__MAC];
} lk__rendezvous_reply;

typedef enum lk__rendezvous_trust { LK__TRUSTED, LK__FOREIGN, LK__WRONG_TOKEN } lk__rendezvous_trust;

bool lk__challenge_make(lk__rendezvous_challenge *greeting); /* false: the system gives no random numbers */
bool lk__challenge_valid(const lk__rendezvous_challenge *greeting);
/* Fills in magic, number and MAC. */
bool lk__request_sign(lk__rendezvous_request *hello, const lk__rendezvous_challenge *greeting, const char *token);
/* Looks at what came; text is made printable, and numbers that are impossible for any group are FOREIGN. */
lk__rendezvous_trust lk__request_verify(lk__rendezvous_request *hello, const lk__rendezvous_challenge *greeting,
                                        const char *token);
void lk__reply_sign(lk__rendezvous_reply *answer, const lk__rendezvous_request *hello, const char *token);
/* A refusal for a wrong token cannot be signed so that it is believed: WRONG_TOKEN then, with the text made printable. */
lk__rendezvous_trust lk__reply_verify(lk__rendezvous_reply *answer, const lk__rendezvous_request *hello,
                                      const char *token);
void lk__cards_sign(const lk__rendezvous_card *cards, int count, const lk__rendezvous_request *hello, const char *token,
                    unsigned char mac[LK__MAC]);
bool lk__cards_verify(lk__rendezvous_card *cards, int count, const lk__rendezvous_request *hello, const char *token,
                      const unsigned char mac[LK__MAC]);
/* What this process says about itself, but for the address. */
void lk__card_make(lk__rendezvous_card *card);

/* A group's own token, out of its job's or its parent's. */
enum { LK__NET_TOKEN = 2 * LK__MAC + 1 };
void lk__token_derive(const char *token, const void *secret, size_t bytes, char derived[LK__NET_TOKEN]);

bool      lk__address_take(lk__rendezvous_address        *address,
                           const struct sockaddr_storage *from); /* false: of another family */
socklen_t lk__address_give(const lk__rendezvous_address *address, uint32_t scope,
                           struct sockaddr_storage *to); /* 0: none */
/* "1.2.3.4:5", "[::1]:5", "the Unix socket @name" */
enum { LK__UNIX_NAME = 106, LK__ADDRESS_TEXT = 128 };
void lk__address_show(const struct sockaddr_storage *address, char *out, size_t bytes);

#endif
