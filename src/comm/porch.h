/* comm/porch.h - where a rank listens: the porch, on which all who come are looked at, and the party, which is rank 0's
 * when all the others come to it. */
#ifndef LK__PORCH_H
#define LK__PORCH_H

#include "comm/hello.h"
#include "comm/waiting.h"

#include <poll.h>

typedef struct lk__listener {
    int                     fd;
    struct sockaddr_storage bound;
    lk__address             address;
    uint32_t                scope; /* of the interface, for link-local IPv6 */
} lk__listener;

/* On this address only; its port is not looked at. The first of `ports` that is free. */
lk_status lk__listen(lk_context *context, const struct sockaddr_storage *where, lk__ports ports,
                     lk__listener *listener);
void      lk__listener_close(lk__listener *listener);
socklen_t lk__address_length(const struct sockaddr_storage *address);

/* One who came: everything about it is unknown until its hello is whole and right. */
typedef struct lk__visitor {
    int          fd, poll; /* -1: nobody; not watched */
    double       since;
    size_t       have;
    bool         known; /* its hello was judged true */
    char         from[LK__ADDRESS_TEXT];
    lk__greeting greeting;
    lk__hello    hello;
} lk__visitor;

typedef struct lk__porch {
    lk_context   *context;
    const char   *token;
    lk__listener *listener;
    lk__visitor  *visitors;
    int           most, dropped, door; /* door: the listener's place in what is polled, -1: not watched */
    int           why;                 /* errno while the system lets nobody in, 0: it does */
    /* One has proved itself. Takes its descriptor, or leaves it to stay, or has it dropped. */
    void (*came)(struct lk__porch *porch, lk__visitor *visitor, void *user);
    void *user;
} lk__porch;

lk_status lk__porch_open(lk__porch *porch, lk_context *context, lk__listener *listener, const char *token,
                         int expected);
void      lk__porch_close(lk__porch *porch);
/* Writes down who is to be polled, most + 1 at the most, and only who is there: poll takes no more than a process may
 * have descriptors. */
int  lk__porch_watch(lk__porch *porch, struct pollfd *polls);
void lk__porch_serve(lk__porch *porch, const struct pollfd *polls);
/* Closes; why NULL: silently. */
void lk__porch_drop(lk__porch *porch, lk__visitor *visitor, const char *why);
/* Says it to a visitor that is known. */
void lk__porch_answer(const lk__porch *porch, const lk__visitor *visitor, const lk__answer *answer);

typedef struct lk__party {
    lk__porch      porch;
    lk__visitor  **seats; /* by rank: who of the visitors it is; they stay on the porch */
    int64_t       *pids;    /* by rank: the process that it came as, 0: it has not come yet */
    bool          *missing; /* by rank */
    struct pollfd *polls;
    lk__purpose    purpose;
    int            size, dead; /* dead: a rank whose process came and died; 0: none */
} lk__party;

lk_status lk__party_open(lk__party *party, lk_context *context, lk__listener *listener, const char *token,
                         lk__purpose purpose, int size);
/* Until all have come, or waiting->end, and fails with who has not; on one host also as soon as a rank that had come has died.
 * from: who said where to listen, "" nobody. */
lk_status    lk__party_receive(lk__party *party, lk__waiting *waiting, const char *from);
lk__visitor *lk__party_guest(const lk__party *party, int rank); /* NULL: it is not there */
/* After it failed: notes for the launcher which rank that was due to, dead or late. */
void lk__party_note_failure(const lk__party *party, const struct lk_comm *comm);
void         lk__party_close(lk__party *party);

/* What an answer says to who came with this hello: LK_OK, or the failure. where: who answered. */
lk_status lk__answer_heed(lk_context *context, const lk__answer *answer, lk__belief belief, const lk__hello *hello,
                          const char *where);

#endif
