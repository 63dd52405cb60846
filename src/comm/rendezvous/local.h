/* comm/meet.h - how ranks of one host find each other and come to share memory: a Unix socket that rank 0 listens on
 * for a moment. */
#ifndef LK__LOCAL_H
#define LK__LOCAL_H

#include "base/base.h"

typedef struct lk__rendezvous_local {
    lk_context *context;
    const char *key;   /* the name they all know */
    const char *token; /* what they prove to know, without saying it */
    int         rank, size;
    double      seconds; /* how long it may take */
    const struct lk__rendezvous_identity
                         *place; /* of ranks that join: what is said of those who are missing; NULL: all have joined */
    const struct lk_comm *comm;  /* of which group: its flight record says whom a failure is due to; NULL: none */
} lk__rendezvous_local;

/* Gives all ranks rank 0's `bytes` of zeroed memory, mapped at *memory. Every rank has it, or every rank that came
 * fails. Other processes that come to the same name are dropped and logged. */
lk_status lk__rendezvous_share(const lk__rendezvous_local *meeting, size_t bytes, void **memory);
void      lk__rendezvous_unmap(void *memory, size_t bytes); /* unmaps; NULL is fine */

/* HMAC-SHA-256 (RFC 2104). */
void lk__hmac(const char *key, const void *message, size_t bytes, unsigned char mac[32]);
/* In a time that does not depend on where they differ. */
bool lk__hmac_same(const unsigned char a[32], const unsigned char b[32]);

#endif
