/* comm/net/connections.h - the connections of a group that was created, which the groups split from it share: their
 * epoll set, the thread that serves them while no caller does, and which group a message belongs to.
 *
 * Any number of threads may wait at once, each for its own group. One of them polls the set for all (lk__net_pump); the
 * others sleep until something changes in their group, or until no thread polls any more. */
#ifndef LK__CONNECTIONS_H
#define LK__CONNECTIONS_H

#include "comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct lk__net             lk__net;           /* a group, net.h */
typedef struct lk__net_transport   lk__net_transport; /* net.h */
typedef struct lk__net_connections lk__net_connections;

/* Handles a descriptor of the epoll set; edge-triggered. `ready` is called by the thread that polls, with the lock
 * held. */
typedef struct lk__net_handler {
    void (*ready)(struct lk__net_handler *handler, uint32_t events);
} lk__net_handler;

/* A message of a group that this rank has not created yet: its peer returned from the split earlier. */
typedef struct lk__net_early {
    struct lk__net_early *next;
    uint64_t              group;
    size_t                bytes;
    char                  data[];
} lk__net_early;

/* Control messages to and from one rank of the group that was created. Guarded by the lock. */
typedef struct lk__net_connection {
    lk__net_handler      handler;
    lk__net_connections *connections;
    int                  rank, fd;         /* -1: closed */
    int                  host;             /* the first rank of its host */
    atomic_bool          cut_off, drained; /* its host does not answer; the transport's connection to it ended */
    char  *in, *out; /* an incomplete message (LK__MESSAGE_MOST); messages that the socket did not accept yet */
    size_t in_bytes, out_bytes, out_room;
    bool   ended;      /* this rank has sent its last message and closed its direction of the connection */
    int    heartbeats; /* sent since its last message; limited, so that they do not pile up for one that is stopped */
    lk__net_early *early, **last_early; /* older ones first */
    size_t         early_bytes;
} lk__net_connection;

/* A group that this rank has freed and others have not: what they still send to it is ignored. */
typedef struct lk__net_retired {
    struct lk__net_retired *next;
    uint64_t                group;
    int                     left;       /* ranks that may still send */
    bool                    expected[]; /* by connection */
} lk__net_retired;

struct lk__net_connections {
    lk_context              *context;
    int                      rank, size; /* of the group that was created */
    lk__net_connection      *all;        /* by rank; this rank's own entry is unused */
    const lk__net_transport *transport;
    void                    *streams; /* the transport's own, shared by all groups */
    atomic_int               users;   /* groups; the last one that is freed closes them */

    /* guards the control messages of all groups, and the lists; only comm->failing is locked inside */
    pthread_mutex_t    lock;
    lk__net           *groups;
    lk__net_retired   *retired;
    char              *inbox;         /* LK__NET_INBOX bytes to read into */
    int                epoll, wakeup; /* the set; an eventfd in it that wakes a thread which sleeps there */
    lk__net_handler    wakeup_handler;
    int                thread_wakeup; /* wakes the connections' thread */
    atomic_bool        polling;       /* a caller polls the set for all */
    _Atomic(lk__net *) poller;        /* its group, while it may sleep there */
    atomic_int         followers;     /* callers that sleep on their group's `events` meanwhile */
    atomic_int         waiting;  /* operations of all groups that are running or have failed */
    atomic_int         drivers;  /* callers in an operation, who poll the set themselves; the thread then does not */
    _Atomic double     driven;   /* when one did last */
    atomic_bool        watching; /* the thread polls the set */
    atomic_bool        stop;
    pthread_t          thread;
    bool               running;
    int                spins;
};

enum { LK__NET_INBOX = 64 << 10 };

struct lk__net_mesh;
/* Takes the mesh's connections for control messages, and starts no thread yet. */
lk_status lk__connections_make(lk_context *context, struct lk__net_mesh *mesh, const lk__net_transport *transport,
                               lk__net_connections **made);
lk_status lk__connections_start(lk__net_connections *connections); /* its thread */
void      lk__connections_stop(lk__net_connections *connections);  /* ends it */
/* Closes and frees all; no group is left, and the thread has ended. NULL is fine. */
void lk__connections_close(lk__net_connections *connections);

/* Adds a descriptor to the epoll set; closing removes it. */
lk_status lk__connections_watch(lk__net_connections *connections, int fd, lk__net_handler *handler);
/* Waits once on the set and handles the events; returns how many. */
int lk__connections_poll(lk__net_connections *connections, int milliseconds);

/* Adds the group, and handles what its peers have sent already. */
void lk__connections_add(lk__net *net);
/* Removes the group and informs its peers, who may still send to it. */
void lk__connections_remove(lk__net *net);
/* Tells the ranks with which this one would have formed a group that it does not join it. members: their
 * connections. */
void lk__connections_decline(lk__net_connections *connections, uint64_t group, const int *members, int size);

/* Something changed that threads of this group may wait for; wakes them. With or without the lock. */
void lk__net_notify(lk__net *net);
/* The same for every group with flights: bytes can be moved. Under the lock. */
void lk__connections_notify_flights(lk__net_connections *connections);
/* From transports, without the lock: a connection to this rank ended (`drained`), since its host does not answer if
 * cut_off. */
void lk__connections_drained(lk__net_connections *connections, int rank, bool cut_off);

/* Under the lock: sends a message in two parts; what the socket does not accept is queued. */
void lk__connection_send(lk__net_connection *connection, const void *message, size_t bytes, const void *data,
                         size_t data_bytes);
void lk__connection_receive(lk__net_handler *handler, uint32_t events); /* a connection's handler */
/* Under the lock: handles the messages of `net` that this connection's rank sent before it was made. */
void lk__connection_replay(lk__net_connection *connection, lk__net *net);
/* Under the lock: closes it, and its rank is lost in all groups that it has not left. why: errno, 0: its end. */
void lk__connection_lose(lk__net_connection *connection, int why);

#endif
