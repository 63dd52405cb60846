/* comm/mesh.h - the steps in which a mesh comes to be: a listener, a porch where those who came are looked at, and
 * connections from each to each. */
#ifndef LK__MESH_H
#define LK__MESH_H

#include "comm/hello.h"
#include "comm/net.h"
#include "comm/place.h"

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
    int          fd; /* -1: nobody */
    double       since;
    size_t       have;
    bool         known; /* its hello was judged true */
    char         from[64];
    lk__greeting greeting;
    lk__hello    hello;
} lk__visitor;

typedef struct lk__porch {
    lk_context   *context;
    const char   *token;
    lk__listener *listener;
    lk__visitor  *visitors;
    int           most, dropped, why; /* why: the system let nobody in, errno */
    /* One has proved itself. Takes its descriptor, or leaves it to stay, or has it dropped. */
    void (*came)(struct lk__porch *porch, lk__visitor *visitor, void *user);
    void *user;
} lk__porch;

lk_status lk__porch_open(lk__porch *porch, lk_context *context, lk__listener *listener, const char *token,
                         int expected);
void      lk__porch_close(lk__porch *porch);
int       lk__porch_watch(lk__porch *porch, struct pollfd *polls); /* most + 1 of them */
void      lk__porch_serve(lk__porch *porch, const struct pollfd *polls);
/* Closes; why NULL: silently. */
void lk__porch_drop(lk__porch *porch, lk__visitor *visitor, const char *why);
/* Says it to a visitor that is known. */
void lk__porch_answer(lk__porch *porch, lk__visitor *visitor, const lk__answer *answer);

/* Between any two: who is the higher rank connects to the lower. Cards and mesh->token are known to all. */
lk_status lk__mesh_connect(lk__mesh *mesh, const lk__card *cards, lk__listener *listener, double seconds);
lk_status lk__mesh_make(lk__mesh *mesh, lk_context *context, int rank, int size, int streams);

/* The meeting over the network (meet_net.c): gives everyone's card and the group's token, and the listener. */
lk_status lk__meet_net(lk_comm *comm, const lk__place *place, lk__listener *listener, lk__card *cards, lk__mesh *mesh,
                       double end);

#endif
