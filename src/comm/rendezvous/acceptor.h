/* comm/rendezvous/acceptor.h - the acceptor, which authenticates incoming connections, and the rendezvous server, with
 * which rank 0 waits for all other ranks. */
#ifndef LK__ACCEPTOR_H
#define LK__ACCEPTOR_H

#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/waiting.h"

#include <poll.h>

typedef struct lk__rendezvous_listener {
    int                     fd;
    struct sockaddr_storage bound;
    lk__rendezvous_address  address;
    uint32_t                scope; /* of the interface, for link-local IPv6 */
} lk__rendezvous_listener;

/* On this address only, at the first of `ports` that is free; the port in `where` is ignored. */
lk_status lk__listen(lk_context *context, const struct sockaddr_storage *where, lk__rendezvous_ports ports,
                     lk__rendezvous_listener *listener);
void      lk__listener_close(lk__rendezvous_listener *listener);
socklen_t lk__address_length(const struct sockaddr_storage *address);

/* A pending connection: nothing about it is trusted until its request is complete and verified. */
typedef struct lk__rendezvous_pending {
    int                      fd, poll; /* fd -1: unused; poll: index among the polled descriptors, -1: not polled */
    double                   since;
    size_t                   have;
    bool                     authenticated; /* its request was verified */
    char                     from[LK__ADDRESS_TEXT];
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request;
} lk__rendezvous_pending;

typedef struct lk__rendezvous_acceptor {
    lk_context              *context;
    const char              *token;
    lk__rendezvous_listener *listener;
    lk__rendezvous_pending  *pending;
    int                      most, dropped;
    int                      listener_poll; /* the listener's index among the polled descriptors, -1: not polled */
    int                      why;           /* errno while accept fails for lack of resources, 0: it does not */
    /* A connection was authenticated. Takes its descriptor, or leaves it pending, or drops it. */
    void (*accepted)(struct lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, void *user);
    void *user;
} lk__rendezvous_acceptor;

lk_status lk__acceptor_open(lk__rendezvous_acceptor *acceptor, lk_context *context, lk__rendezvous_listener *listener,
                            const char *token, int expected);
void      lk__acceptor_close(lk__rendezvous_acceptor *acceptor);
/* Fills in what is to be polled, at most `most` + 1 entries. Unused ones are left out: poll accepts no more than the
 * process may have descriptors. */
int  lk__acceptor_watch(lk__rendezvous_acceptor *acceptor, struct pollfd *polls);
void lk__acceptor_serve(lk__rendezvous_acceptor *acceptor, const struct pollfd *polls);
/* Closes and logs why; NULL: without a log line. */
void lk__acceptor_drop(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, const char *why);
/* Signs the reply and sends it to an authenticated connection. */
void lk__acceptor_reply(const lk__rendezvous_acceptor *acceptor, const lk__rendezvous_pending *connection,
                        const lk__rendezvous_reply *reply);

typedef struct lk__rendezvous_server {
    lk__rendezvous_acceptor  acceptor;
    lk__rendezvous_pending **ranks;   /* by rank: its pending connection, which the acceptor owns */
    int64_t                 *pids;    /* by rank: its process, 0: it has not connected yet */
    bool                    *missing; /* by rank */
    struct pollfd           *polls;
    lk__rendezvous_purpose   purpose;
    int                      size, dead;      /* dead: a rank that connected and then died; 0: none */
    lk_status (*check)(struct lk_comm *comm); /* LK_OK, or why waiting is useless; NULL: nothing is known */
    struct lk_comm *comm;
} lk__rendezvous_server;

lk_status lk__server_open(lk__rendezvous_server *server, lk_context *context, lk__rendezvous_listener *listener,
                          const char *token, lk__rendezvous_purpose purpose, int size);
/* Waits until all ranks have joined. Fails at waiting->end and names the missing ranks; on one host also as soon as a
 * rank that had joined died. from: the source of the port, for messages; "": none. */
lk_status lk__server_receive(lk__rendezvous_server *server, lk__rendezvous_waiting *waiting, const char *from);
lk__rendezvous_pending *lk__server_peer(const lk__rendezvous_server *server, int rank); /* NULL: not connected */
int lk__server_missing(const lk__rendezvous_server *server); /* the first rank that has not joined; -1: all have */
/* After a failure: records for the launcher which rank caused it, dead or late. */
void lk__server_note_failure(const lk__rendezvous_server *server, const struct lk_comm *comm);
void lk__server_close(lk__rendezvous_server *server);

/* The result of a reply to this request: LK_OK, or the failure. where: the address that replied. */
lk_status lk__reply_check(lk_context *context, const lk__rendezvous_reply *reply, lk__rendezvous_trust trust,
                          const lk__rendezvous_request *request, const char *where);

#endif
