/* comm/rendezvous/handshake.h - how two processes, on one host or over a network, authenticate each other as members of
 * one job before they use anything else that they receive. All messages have a fixed size, so no length field has to be
 * validated:
 *
 *     listener → client    challenge: a nonce
 *     client → listener    request: identity, a nonce of its own, a MAC over both and the challenge
 *     listener → client    reply: accepted, or refused and why, a MAC over it and the request's nonce; to a rank that
 *                          joins also the endpoints of all ranks, once all have joined, and a MAC over them */
#ifndef LK__HANDSHAKE_H
#define LK__HANDSHAKE_H

#include "comm/devices.h"
#include "comm/verdict.h"

#include <sys/socket.h>

enum { LK__NONCE = 32, LK__MAC = 32, LK__HOST_ID = 96, LK__REPLY_TEXT = 512 };

/* Where a rank listens. Sent as it is, so IPv4 and IPv6 have one form; port is little-endian as all other fields. */
typedef struct lk__rendezvous_address {
    uint16_t      family, port; /* 4, 6 */
    unsigned char bytes[16];
} lk__rendezvous_address;

typedef struct lk__rendezvous_endpoint {
    lk__rendezvous_address address;
    lk__comm_device        device;
    int64_t                pid;
    char                   host[LK__HOST_NAME];
    char                   host_id[LK__HOST_ID]; /* equal where ranks can share memory */
} lk__rendezvous_endpoint;

typedef struct lk__rendezvous_challenge {
    char          magic[8];
    unsigned char nonce[LK__NONCE];
} lk__rendezvous_challenge;

/* To get the endpoints of all ranks; to connect two ranks; to share memory. */
typedef enum lk__rendezvous_purpose { LK__TO_JOIN = 1, LK__TO_CONNECT, LK__TO_SHARE } lk__rendezvous_purpose;

typedef struct lk__rendezvous_request {
    char                    magic[8];
    uint32_t                purpose;
    int32_t                 rank, size, stream;
    lk__rendezvous_endpoint endpoint;
    unsigned char           nonce[LK__NONCE], mac[LK__MAC];
} lk__rendezvous_request;

typedef struct lk__rendezvous_reply {
    char          magic[8];
    int32_t       status;
    int32_t       preparing; /* 1: all ranks have joined, rank 0 works on their memory, and another reply follows */
    char          text[LK__REPLY_TEXT];
    uint64_t      bytes;             /* of the memory whose descriptor is passed with it */
    unsigned char secret[LK__NONCE]; /* of the group */
    unsigned char mac[LK__MAC];
} lk__rendezvous_reply;

typedef enum lk__rendezvous_trust { LK__TRUSTED, LK__FOREIGN, LK__WRONG_TOKEN } lk__rendezvous_trust;

bool lk__challenge_make(lk__rendezvous_challenge *challenge); /* false: no entropy */
bool lk__challenge_valid(const lk__rendezvous_challenge *challenge);
/* Fills in magic, nonce and MAC. */
bool lk__request_sign(lk__rendezvous_request *request, const lk__rendezvous_challenge *challenge, const char *token);
/* Text is made printable. Ranks and sizes that no group can have are FOREIGN. */
lk__rendezvous_trust lk__request_verify(lk__rendezvous_request *request, const lk__rendezvous_challenge *challenge,
                                        const char *token);
void lk__reply_sign(lk__rendezvous_reply *reply, const lk__rendezvous_request *request, const char *token);
/* A refusal because of the token has a MAC that this rank cannot verify: WRONG_TOKEN, and the text is made
 * printable. */
lk__rendezvous_trust lk__reply_verify(lk__rendezvous_reply *reply, const lk__rendezvous_request *request,
                                      const char *token);
void lk__endpoints_sign(const lk__rendezvous_endpoint *endpoints, int count, const lk__rendezvous_request *request,
                        const char *token, unsigned char mac[LK__MAC]);
bool lk__endpoints_verify(lk__rendezvous_endpoint *endpoints, int count, const lk__rendezvous_request *request,
                          const char *token, const unsigned char mac[LK__MAC]);
/* Of this process, without the address. */
void lk__endpoint_make(const lk_context *context, lk__rendezvous_endpoint *endpoint);

/* A group's own token, derived from the token of its job or its parent. */
enum { LK__NET_TOKEN = 2 * LK__MAC + 1 };
void lk__token_derive(const char *token, const void *secret, size_t bytes, char derived[LK__NET_TOKEN]);

bool      lk__address_from_socket(lk__rendezvous_address        *address,
                                  const struct sockaddr_storage *from); /* false: of another family */
socklen_t lk__address_to_socket(const lk__rendezvous_address *address, uint32_t scope,
                                struct sockaddr_storage *to); /* 0: none */
/* "1.2.3.4:5", "[::1]:5", "the Unix socket @name" */
enum { LK__UNIX_NAME = 106, LK__ADDRESS_TEXT = 128 };
void lk__address_show(const struct sockaddr_storage *address, char *out, size_t bytes);

#endif
