/* comm/rendezvous/local.h - the rendezvous of one host: ranks get shared memory over a Unix socket on which rank 0
 * listens meanwhile. */
#ifndef LK__LOCAL_H
#define LK__LOCAL_H

#include "base/base.h"

typedef struct lk__rendezvous_local {
    lk_context *context;
    const char *key;   /* names the socket; equal on all ranks */
    const char *token; /* the shared secret, which is never sent */
    int         rank, size;
    double      seconds; /* how long it may take */
    /* of ranks that join, for log lines about missing ones; NULL: all have joined */
    const struct lk__rendezvous_identity *identity;
    struct lk_comm *comm;     /* the group whose flight recorder gets the cause of a failure; NULL: none */
    /* While this rank waits for others: LK_OK, or why waiting is useless. NULL: nothing is known before all have
     * joined. */
    lk_status (*check)(struct lk_comm *comm);
    /* On rank 0, once the memory can be mapped and before it has pages: says on which memory nodes they are to be.
     * NULL: anywhere. */
    void (*place)(struct lk_comm *comm, char *memory, size_t bytes);
    /* bytes that are mapped after the memory, without pages; set to 0 if that is not possible. NULL: none */
    size_t *reserve;
} lk__rendezvous_local;

/* Gives all ranks rank 0's `bytes` of zeroed memory, mapped at *memory. Every rank has it, or every rank that joined
 * fails. Connections of other processes are dropped and logged. With a reserve, bytes is a multiple of a page. */
lk_status lk__rendezvous_share(const lk__rendezvous_local *rendezvous, size_t bytes, void **memory);
/* Takes pages for a part of the reserve; false: the system has none, or cannot say so. */
bool lk__rendezvous_commit(lk_context *context, void *memory, size_t bytes);
void lk__rendezvous_unmap(void *memory, size_t bytes); /* unmaps, with the reserve; NULL is fine */

/* HMAC-SHA-256 (RFC 2104). */
void lk__hmac(const char *key, const void *message, size_t bytes, unsigned char mac[32]);
/* In constant time. */
bool lk__hmac_same(const unsigned char a[32], const unsigned char b[32]);

#endif
