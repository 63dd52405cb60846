/* comm/net.h - ranks that share no memory: a mesh of authenticated connections that one thread a group serves, and a
 * transport that carries the bulk.
 *
 * Two kinds of traffic. Words (words.c, net_words.c) are small messages between any two ranks, over one connection a
 * pair that carries nothing else, so they pass whatever the bulk does: that a rank has come to operation n and with
 * which call, where it is, that it leaves, that the group failed and why. They are read by whoever waits, and by the
 * group's own thread while the program computes, so a rank that waits can always say what the others do. Bulk is
 * carried by a transport: further connections (tcp.c), or MPI (mpi.c), which then needs the mesh for its words alone.
 * Algorithms, order and verdicts (net_collective.c, net_transfer.c, net_verdict.c) are the same for both.
 *
 * Every collective begins with lk__net_enter and waits for every rank to come (lk__net_await) before it leaves: so a
 * rank is never more than one collective ahead of another, and two places for arrivals are enough. */
#ifndef LK__NET_H
#define LK__NET_H

#include "comm/comm.h"
#include "comm/net/message.h"
#include "comm/rendezvous/handshake.h"
#include "comm/verdict.h"

#include <sys/socket.h>

typedef struct lk__net lk__net;

/* What one rank exchanges with another: either side may be 0 bytes. */
typedef struct lk__net_part {
    const void *send;
    void       *recv;
    size_t      send_bytes, recv_bytes;
} lk__net_part;

typedef struct lk__net_transfer_state lk__net_transfer_state; /* something begun by a transport; freed by finish */

/* What carries the bulk. Called by one thread at a time. It adds what it sends to net->sent when it begins. */
typedef struct lk__net_transport {
    const char *name;                /* the backend's: "tcp", "mpi" */
    int         streams;             /* connections a pair that the mesh is to make for it */
    lk_status (*open)(lk__net *net); /* the mesh stands; sets net->transport_state */
    /* Begins parts[i] with each rank i (the own part is left alone); parts are copied, buffers borrowed. All ranks of
     * the group begin their exchanges in one order and with sizes that fit, so nothing is announced. Several may be
     * under way. */
    lk_status (*exchange)(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight);
    /* One message between two ranks that agreed on its id (unlike any other under way between them) and its size
     * before. */
    lk_status (*send)(lk__net *net, int peer, uint64_t id, const void *data, size_t bytes,
                      lk__net_transfer_state **flight);
    lk_status (*recv)(lk__net *net, int peer, uint64_t id, void *data, size_t bytes, lk__net_transfer_state **flight);
    /* Whether it is done: LK_OK, LK_END not yet. Sleeps up to `seconds` for it, in lk__net_pump where it can; other
     * reasons wake it too. A flight whose connection broke is never done: the words tell of it. */
    lk_status (*wait)(lk__net *net, lk__net_transfer_state *flight, double seconds);
    /* Frees it. One that is not done is given up: its buffers may no longer be touched by the transport, and where that
     * cannot be had (MPI) it is leaked on purpose with what it holds. */
    void (*finish)(lk__net *net, lk__net_transfer_state *flight);
    /* Whether it still waits for this rank, for tables; NULL: not to be known. */
    bool (*pending)(lk__net *net, lk__net_transfer_state *flight, int peer);
    void (*free)(lk__net *net); /* never blocks; net->transport_state may be NULL */
} lk__net_transport;

/* ---- the mesh (mesh.c, meet_net.c): who is there, and a connection or more to each ---- */

enum { LK__STREAMS = 4 };

typedef struct lk__net_mesh_rank {
    char    host[LK__HOST_NAME];
    char    host_id[LK__HOST_ID]; /* alike where ranks can share memory: boot, namespaces, user */
    int64_t pid;
    int     fds[1 + LK__STREAMS]; /* words, then the transport's; -1 none */
} lk__net_mesh_rank;

typedef struct lk__net_mesh {
    lk_context             *context;
    int                     rank, size, streams;
    lk__net_mesh_rank      *ranks;
    char                    token[LK__NET_TOKEN]; /* of this group, derived; groups split from it derive theirs */
    uint64_t                secret; /* random, alike on all ranks: names what they do together outside the mesh */
    struct sockaddr_storage bound;  /* where this rank listened, and the ports it may listen on: a split does again */
    int                     first_port, last_port;
} lk__net_mesh;

/* Meets all ranks of `place` and connects each with each; `streams` further connections a pair. */
lk_status lk__mesh_join(lk_comm *comm, const struct lk__rendezvous_identity *place, int streams, lk__net_mesh *mesh);
void      lk__mesh_close(lk__net_mesh *mesh); /* what nobody took over */
/* Ranks of this rank's host, and which of them this one is. */
void lk__mesh_locals(const lk__net_mesh *mesh, int *local_rank, int *local_size);

/* ---- a group over a mesh ---- */

/* Something in the net's set of descriptors; edge-triggered. `ready` is called by whoever pumps, with net->lock held,
 * and may only note it. */
typedef struct lk__net_handler {
    void (*ready)(struct lk__net_handler *handler, uint32_t events);
} lk__net_handler;

typedef struct lk__net_arrival { /* of one rank, at one collective */
    uint64_t number;             /* 0: none yet */
    uint64_t signature;
    size_t   bytes;
    char    *payload; /* LK__NET_SMALL, once it was needed */
} lk__net_arrival;

typedef struct lk__net_note_entry {
    struct lk__net_note_entry *next;
    size_t                     bytes;
    char                       data[];
} lk__net_note_entry;

/* All that this rank knows about another. Under net->lock, unless it is atomic. */
typedef struct lk__net_peer {
    lk__net_handler     handler;
    lk__net            *net;
    int                 rank, fd; /* -1: the connection is over */
    lk__net_arrival     arrivals[2];
    _Atomic uint64_t    arrived;             /* the latest number; what belongs to it was written before */
    lk__net_state       state;               /* as it said last, brought on by its arrivals */
    double              stated, asked;       /* when it said so; when it was last asked */
    bool                only_came;           /* that it came to a collective is all it said: it may have left since */
    atomic_bool         gone, dead, cut_off; /* left; its connection ended without a word; its host does not answer */
    _Atomic double      lost_at;             /* when one of these came true */
    atomic_bool         busy;
    double              probed;  /* when it was last asked whether it still is */
    atomic_bool         drained; /* the transport has nothing more to expect from it */
    lk__net_note_entry *notes, **last_note;
    char               *in, *out; /* half a word that came (LK__MESSAGE_MOST); words that did not fit the socket */
    size_t              in_bytes, out_bytes, out_room;
    int                 beats; /* told since it last said anything: one that is stopped shall not drown in them */
} lk__net_peer;

typedef struct lk__net_allocation lk__net_allocation; /* of lk_comm_alloc */

struct lk__net {
    lk_comm                 *comm;
    const lk__net_transport *transport;
    void                    *transport_state;
    atomic_bool abandoned; /* something was given up that the transport may still write to: its buffers are not freed */
    int         rank, size;
    lk__net_mesh     mesh;
    lk__net_peer    *peers;  /* by rank; the own one is unused */
    uint64_t         number; /* of the collective this rank is in, or was in last */
    uint64_t         signature;
    _Atomic uint64_t sent;
    _Atomic uint64_t progress; /* moves when the transport moves bytes */
    _Atomic uint64_t events;   /* moves with every word that came */

    pthread_mutex_t                 lock; /* guards the words; a leaf but for comm->failing */
    lk__net_state                   mine; /* what this rank does, since when, and whether all were told */
    double                          since;
    bool                            untold;
    char                           *inbox;       /* INBOX bytes to read into */
    int                             epoll, bell; /* the set; an eventfd in it that wakes who sleeps there */
    lk__net_handler                 bell_ear;
    int                             thread_bell; /* wakes the group's thread */
    atomic_int                      drivers;     /* callers that read the words themselves; the thread stands back */
    _Atomic double                  driven;      /* when one did last */
    atomic_bool                     watching;    /* the thread does */
    atomic_bool                     stop;
    pthread_t                       thread;
    bool                            running;
    int                             spins;
    bool                           *pending; /* by rank: whom the flight that is waited for still concerns */
    lk__net_allocation             *pieces;
    struct lk__rendezvous_listener *listener; /* prepared for a split */
    /* for the algorithms (net_collective.c, net_transfer.c), which make and free it */
    void *collective_state, *transfer_state;
};

/* Makes comm->state out of the mesh, which it takes over also when it fails, starts the thread, and sees that everyone
 * did (a barrier, within connect_ms). */
lk_status lk__net_create(lk_comm *comm, lk__net_mesh *mesh, const lk__net_transport *transport);
/* Both at once: what a backend's `create` is. */
lk_status lk__net_open(lk_comm *comm, const struct lk__rendezvous_identity *place, const lk__net_transport *transport);
/* The backend's `prepare` and `split` (net_split.c): the new group has a mesh of its own. */
lk_status lk__net_prepare(lk_comm *parent, lk__comm_member *mine);
lk_status lk__net_split(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);

/* The functions of a backend's table that a net has: LK__NET_TABLE("tcp", create, lk__net_prepare, lk__net_split). */
lk_status lk__net_collective(lk_comm *comm, const lk__comm_call *operation);             /* net_collective.c */
void      lk__net_transfer(lk_comm *comm, lk_work *first);                               /* net_transfer.c */
void      lk__net_collective_free(lk__net *net);                                         /* frees collective_state */
void      lk__net_transfer_free(lk__net *net);                                           /* frees transfer_state */
lk_status lk__net_allocate(lk_comm *comm, uint64_t secret, size_t bytes, void **memory); /* ordinary memory */
void      lk__net_release(lk_comm *comm, void *memory);
lk_status lk__net_table_failure(lk_comm *comm);
void      lk__net_table_raise(lk_comm *comm, lk_status status, const char *text, lk__comm_cause cause);
void      lk__net_table_busy(lk_comm *comm, const char *what);
void      lk__net_table_nudge(lk_comm *comm);
uint64_t  lk__net_table_sent(const lk_comm *comm);
void      lk__net_table_free(lk_comm *comm);
#define LK__NET_TABLE(name, create, prepare, split)                                                                    \
    {                                                                                                                  \
        name, lk__net_collective, lk__net_transfer, lk__net_allocate, lk__net_release, lk__net_table_failure,          \
            lk__net_table_raise, lk__net_table_busy, lk__net_table_nudge, lk__net_table_sent, lk__net_table_free,      \
            create, prepare, split                                                                                     \
    }

/* ---- for the algorithms; from the thread that runs the operation ---- */

/* This rank has come to the next collective: net->number is its number. All others are told, and get parts[i].send of
 * up to LK__NET_SMALL bytes with it (parts NULL: nothing; recv is not looked at). Fails with the group's failure. */
lk_status lk__net_enter(lk__net *net, const lk__comm_call *operation, const lk__net_part *parts);
/* Until `peer` (-1: everyone) has come to this collective, with the same call; or the group's failure. */
lk_status lk__net_await(lk__net *net, int peer);
/* Whether `peer` has come to a collective that this rank has not come to, and nothing that it said before is unread. */
bool lk__net_ahead(lk__net *net, int peer);
/* What came with it; until lk__net_leave. */
const void *lk__net_payload(const lk__net *net, int peer, size_t *bytes);
/* A send or receive: noted for tables, nobody is told. */
void lk__net_enter_transfer(lk__net *net, const lk__comm_call *operation);
/* The operation is over; gives status back. */
lk_status lk__net_leave(lk__net *net, lk_status status);
/* Until the flight is done, which depends on the ranks i with needed[i] (NULL: all). The caller still finishes it. */
lk_status lk__net_flight_wait(lk__net *net, lk__net_transfer_state *flight, const bool *needed);

/* A few bytes (LK__NET_NOTE at most) to one rank, in their order; kept there until it takes them. */
lk_status lk__net_send_note(lk__net *net, int peer, const void *data, size_t bytes);
/* The oldest note of `peer`: its length, or 0 when there is none. `into` has room for LK__NET_NOTE. */
size_t lk__net_take_note(lk__net *net, int peer, void *into);

/* Waiting for several things at once: read net->events and net->progress, look whether what is waited for is there,
 * else pump until one of them moves or `seconds` are over; then look round. */
bool lk__net_pump(lk__net *net, double seconds); /* true: something happened */
typedef struct lk__net_wait_state {
    double   since, begun, looked, moved; /* begun moves on while someone is busy */
    uint64_t progress;
    bool     told;
} lk__net_wait_state;
/* LK_OK, or: the group's failure; LK_ECANCELED when the comm is closing; one of needed[] (NULL: those who have not come
 * to this collective) is dead or gone; its deadline. Logs the table when it stalls. `wait_state` starts zeroed. Cheap
 * enough for every turn of a waiting loop. */
lk_status lk__net_check(lk__net *net, const bool *needed, lk__net_wait_state *wait_state);

/* ---- failure ---- */

lk_status lk__net_failure(lk__net *net); /* LK_OK, or the group's */
/* On all ranks, in one rank's words. lk__comm_cause_for(status) says whose it is. */
lk_status lk__net_raise(lk__net *net, lk_status status, const char *text);
lk_status lk__net_raise_because(lk__net *net, lk_status status, const char *text, lk__comm_cause cause);

/* ---- for movers ---- */

/* Adds a descriptor to the set; it leaves with its closing. */
lk_status lk__net_watch(lk__net *net, int fd, lk__net_handler *handler);

/* ---- inside (net.c, net_wait.c, net_words.c, net_verdict.c) ---- */

enum { LK__NET_INBOX = 64 << 10, LK__NET_SLICE_MS = 50 }; /* a wait looks round at least so often */

/* Under the lock. A whole word, in two parts. */
void lk__net_send_message(lk__net *net, int peer, const void *word, size_t bytes, const void *data, size_t data_bytes);
void lk__net_send_state(lk__net *net, int peer);
void lk__net_receive(lk__net_handler *handler, uint32_t events); /* a peer's handler */
void lk__net_forget_note(lk__net *net, lk__net_peer *peer);      /* its oldest */
void lk__net_wake(lk__net *net);                                 /* wakes who sleeps on the set */
int  lk__net_poll(lk__net *net, int milliseconds);               /* one wait on the set, and what came */
void lk__net_query_states(lk__net *net, double seconds);         /* where is everyone? until all answered */
lk_status lk__net_mismatch(lk__net *net, int peer);
lk_status lk__net_crossed(lk__net *net, const lk__comm_call *transfer);
lk_status lk__net_lost(lk__net *net, int peer);
lk_status lk__net_late(lk__net *net, const bool *missing, double seconds);
void      lk__net_stalled(lk__net *net, const bool *missing, double seconds);
/* Under the lock. The group has failed, for these reasons unless it had already: all are told. `peer` proposed it (-1:
 * this rank), and is told even if others were before. */
void lk__net_decide(lk__net *net, lk_status status, const char *text, lk__comm_cause cause, int peer);

#endif
