/* comm/meet.h - how ranks of one host find each other and come to share memory: a Unix socket that rank 0 listens on
 * for a moment. */
#ifndef LK__MEET_H
#define LK__MEET_H

#include "base/base.h"

typedef struct lk__meeting {
    lk_context *context;
    const char *key;   /* the name they all know */
    const char *token; /* what they prove to know, without saying it */
    int         rank, size;
    double      seconds; /* how long it may take */
} lk__meeting;

/* Gives all ranks rank 0's `bytes` of zeroed memory, mapped at *memory. Every rank has it, or every rank that came
 * fails. Other processes that come to the same name are dropped and logged. */
lk_status lk__meet(const lk__meeting *meeting, size_t bytes, void **memory);
void      lk__unmeet(void *memory, size_t bytes); /* unmaps; NULL is fine */

/* All of it from a socket, by `end` (lk__now). False: closed, failed or late, as errno says. */
bool lk__read_whole(int fd, void *into, size_t bytes, double end);

/* HMAC-SHA-256 (RFC 2104). */
void lk__hmac(const char *key, const void *message, size_t bytes, unsigned char mac[32]);

#endif
