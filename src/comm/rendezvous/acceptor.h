/* comm/acceptor.h - where a rank listens: the acceptor, on which all who come are looked at, and the server, which is rank 0's
 * when all the others come to it. */
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

/* On this address only; its port is not looked at. The first of `ports` that is free. */
lk_status lk__listen(lk_context *context, const struct sockaddr_storage *where, lk__rendezvous_ports ports,
                     lk__rendezvous_listener *listener);
void      lk__listener_close(lk__rendezvous_listener *listener);
socklen_t lk__address_length(const struct sockaddr_storage *address);

/* One who came: everything about it is unknown until its hello is whole and right. */
typedef struct lk__rendezvous_pending {
    int                      fd, poll; /* -1: nobody; not watched */
    double                   since;
    size_t                   have;
    bool                     known; /* its hello was judged true */
    char                     from[LK__ADDRESS_TEXT];
    lk__rendezvous_challenge greeting;
    lk__rendezvous_request   hello;
} lk__rendezvous_pending;

typedef struct lk__rendezvous_acceptor {
    lk_context              *context;
    const char              *token;
    lk__rendezvous_listener *listener;
    lk__rendezvous_pending  *pending;
    int                      most, dropped, door; /* door: the listener's place in what is polled, -1: not watched */
    int                      why;                 /* errno while the system lets nobody in, 0: it does */
    /* One has proved itself. Takes its descriptor, or leaves it to stay, or has it dropped. */
    void (*came)(struct lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, void *user);
    void *user;
} lk__rendezvous_acceptor;

lk_status lk__acceptor_open(lk__rendezvous_acceptor *acceptor, lk_context *context, lk__rendezvous_listener *listener,
                            const char *token, int expected);
void      lk__acceptor_close(lk__rendezvous_acceptor *acceptor);
/* Writes down who is to be polled, most + 1 at the most, and only who is there: poll takes no more than a process may
 * have descriptors. */
int  lk__acceptor_watch(lk__rendezvous_acceptor *acceptor, struct pollfd *polls);
void lk__acceptor_serve(lk__rendezvous_acceptor *acceptor, const struct pollfd *polls);
/* Closes; why NULL: silently. */
void lk__acceptor_drop(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, const char *why);
/* Says it to a connection that is known. */
void lk__acceptor_reply(const lk__rendezvous_acceptor *acceptor, const lk__rendezvous_pending *connection,
                        const lk__rendezvous_reply *answer);

typedef struct lk__rendezvous_server {
    lk__rendezvous_acceptor  acceptor;
    lk__rendezvous_pending **ranks;   /* by rank: who of the pending it is; they stay on the acceptor */
    int64_t                 *pids;    /* by rank: the process that it came as, 0: it has not come yet */
    bool                    *missing; /* by rank */
    struct pollfd           *polls;
    lk__rendezvous_purpose   purpose;
    int                      size, dead; /* dead: a rank whose process came and died; 0: none */
} lk__rendezvous_server;

lk_status lk__server_open(lk__rendezvous_server *server, lk_context *context, lk__rendezvous_listener *listener,
                          const char *token, lk__rendezvous_purpose purpose, int size);
/* Until all have come, or waiting->end, and fails with who has not; on one host also as soon as a rank that had come has died.
 * from: who said where to listen, "" nobody. */
lk_status lk__server_receive(lk__rendezvous_server *server, lk__rendezvous_waiting *waiting, const char *from);
lk__rendezvous_pending *lk__server_peer(const lk__rendezvous_server *server, int rank); /* NULL: it is not there */
/* After it failed: notes for the launcher which rank that was due to, dead or late. */
void lk__server_note_failure(const lk__rendezvous_server *server, const struct lk_comm *comm);
void lk__server_close(lk__rendezvous_server *server);

/* What an answer says to who came with this hello: LK_OK, or the failure. where: who answered. */
lk_status lk__reply_check(lk_context *context, const lk__rendezvous_reply *answer, lk__rendezvous_trust belief,
                          const lk__rendezvous_request *hello, const char *where);

#endif
