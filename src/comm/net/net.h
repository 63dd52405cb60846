/* comm/net/net.h - ranks that share no memory: a mesh of authenticated connections, served by one thread, and a
 * transport for bulk data.
 *
 * A group and all groups split from it, and from those, share the connections, their epoll set and the thread
 * (connections.h): every control message and every frame of bulk data has the id of its group.
 *
 * There are two kinds of traffic. Control messages (message.c, control.c) are small and use one connection per pair of
 * ranks that carries nothing else, so bulk data does not delay them: a rank has entered operation n with this call,
 * what it is doing, that it leaves, that the group failed and why. They are read by the thread that waits in an
 * operation, and by the connections' own thread while the program computes, so a waiting rank always knows what the
 * others are doing. Bulk data uses a transport: further connections (tcp.c), or MPI (mpi.c), which uses the mesh for
 * control messages only. Algorithms, order and failure reports (collective.c, transfer.c, verdict.c) are the same for
 * both.
 *
 * Every collective begins with lk__net_enter and waits until every rank has entered it (lk__net_await) before it
 * leaves: so a rank is never more than one collective ahead of another, and two arrivals per peer are enough. */
#ifndef LK__NET_H
#define LK__NET_H

#include "comm/comm.h"
#include "comm/net/connections.h"
#include "comm/net/message.h"
#include "comm/rendezvous/handshake.h"
#include "comm/verdict.h"

#include <sys/socket.h>

/* What one rank exchanges with another: either side may be 0 bytes. */
typedef struct lk__net_part {
    const void *send;
    void       *recv;
    size_t      send_bytes, recv_bytes;
} lk__net_part;

/* a transfer that a transport has begun; freed by finish */
typedef struct lk__net_transfer_state lk__net_transfer_state;

/* Moves bulk data. Called by one thread at a time for one group, and by several for groups that share connections. Adds
 * what it sends to net->sent when a transfer begins. */
struct lk__net_transport {
    const char *name;                /* the backend's: "tcp", "mpi" */
    int         streams;             /* connections per pair that the mesh makes for it */
    lk_status (*open)(lk__net *net); /* the ranks are connected; sets net->transport_state */
    /* Begins parts[i] with each rank i (the own part is ignored); parts are copied, buffers borrowed. All ranks of the
     * group begin their exchanges in one order and with matching sizes, so nothing is announced. Several may be in
     * flight. */
    lk_status (*exchange)(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight);
    /* One message between two ranks that have agreed on its id (unique among those in flight between them) and size. */
    lk_status (*send)(lk__net *net, int peer, uint64_t id, const void *data, size_t bytes,
                      lk__net_transfer_state **flight);
    lk_status (*recv)(lk__net *net, int peer, uint64_t id, void *data, size_t bytes, lk__net_transfer_state **flight);
    lk_status (*reserve)(lk__net *net, int count); /* memory for this many messages in flight; NULL: it needs none */
    /* Whether it is done: LK_OK, LK_END not yet. Sleeps up to `seconds` for it, in lk__net_pump where it can, and may
     * return earlier. A flight whose connection broke is never done: the control messages report it. */
    lk_status (*wait)(lk__net *net, lk__net_transfer_state *flight, double seconds);
    /* Frees it. One that is not done is cancelled: the transport no longer uses its buffers; where that is impossible
     * (MPI), it is leaked on purpose with what it holds. */
    void (*finish)(lk__net *net, lk__net_transfer_state *flight);
    /* Whether it still waits for `peer`, for tables; NULL: unknown. */
    bool (*pending)(lk__net *net, lk__net_transfer_state *flight, int peer);
    /* Bytes for `peer` that its system has not confirmed yet; NULL: the transport itself ensures that they arrive. */
    size_t (*unconfirmed)(const lk__net_connections *connections, int peer);
    void (*free)(
        /* never blocks; net->transport_state may be NULL; the group is no longer in the connections' list */
        lk__net *net);
    void (*close)(lk__net_connections *connections); /* after the last group; NULL: nothing to close */
};

/* ---- the mesh (rendezvous/connect.c): the ranks, and one or more connections to each ---- */

enum { LK__STREAMS = 4 };

typedef struct lk__net_mesh_rank {
    char    host[LK__HOST_NAME];
    char    host_id[LK__HOST_ID]; /* equal where ranks can share memory: boot id, namespaces, user */
    int64_t pid;
    int     fds[1 + LK__STREAMS]; /* control messages, then the transport's; -1: none */
} lk__net_mesh_rank;

typedef struct lk__net_mesh {
    lk_context        *context;
    int                rank, size, streams;
    lk__net_mesh_rank *ranks;
    char               token[LK__NET_TOKEN]; /* of this group; groups split from it derive theirs */
    uint64_t           secret;               /* random, equal on all ranks: names what they share outside the mesh */
} lk__net_mesh;

/* Joins all ranks of `identity` and connects every two of them, with `streams` further connections per pair. */
lk_status lk__mesh_join(lk_comm *comm, const struct lk__rendezvous_identity *identity, int streams, lk__net_mesh *mesh);
void      lk__mesh_close(lk__net_mesh *mesh); /* the connections that are still in the mesh */
/* The number of ranks on this host, and this rank's index among them. */
void lk__mesh_locals(const lk__net_mesh *mesh, int *local_rank, int *local_size);

/* ---- a group over a mesh ---- */

typedef struct lk__net_arrival { /* of one rank, at one collective */
    uint64_t number;             /* 0: none yet */
    uint64_t signature;
    size_t   bytes;
    char    *payload; /* LK__NET_SMALL, allocated when first needed */
} lk__net_arrival;

typedef struct lk__net_note_entry {
    struct lk__net_note_entry *next;
    size_t                     bytes;
    char                       data[LK__NET_NOTE];
} lk__net_note_entry;

/* What this rank knows about another of the group. Guarded by the connections' lock, except atomics. */
typedef struct lk__net_peer {
    lk__net_connection *connection;
    int                 rank;
    lk__net_arrival     arrivals[2];
    _Atomic uint64_t    arrived;        /* the latest number, stored after the arrival's data */
    lk__net_state       state;          /* as it reported last, updated by its arrivals */
    double              stated, asked;  /* when it reported; when it was last queried */
    bool                only_arrived;   /* its last message was an arrival: it may have left since */
    atomic_bool    gone, dead, cut_off; /* left; its connection ended without a message; its host does not answer */
    _Atomic double lost_at;             /* when one of these became true */
    atomic_bool    busy;
    double         probed;  /* when it was last queried while busy */
    atomic_bool    drained; /* the transport's connection to it ended */
    lk__net_note_entry *notes, **last_note;
} lk__net_peer;

typedef struct lk__net_allocation lk__net_allocation; /* of lk_comm_alloc */

struct lk__net {
    lk_comm                 *comm;
    lk__net_connections     *connections;
    lk__net                 *next;    /* in the connections' list of groups */
    lk__net_retired         *retired; /* becomes its entry in the list of groups that were freed */
    uint64_t                 id;      /* equal on all its ranks; 0: the group that made the connections */
    int                     *members; /* by rank: its connection */
    int                     *rank_of; /* by connection: its rank; -1: not in this group */
    const lk__net_transport *transport;
    void                    *transport_state;
    atomic_bool      abandoned; /* the transport may still write to cancelled transfers: their buffers are not freed */
    int              rank, size;
    lk__net_mesh     mesh;   /* its connections are taken out of it */
    lk__net_peer    *peers;  /* by rank; this rank's own entry is unused */
    uint64_t         number; /* of the current or last collective */
    uint64_t         signature;
    _Atomic uint64_t sent;
    _Atomic uint64_t progress; /* incremented when the transport moves bytes */
    /* incremented when anything changed that a thread of this group may wait for (lk__net_notify) */
    _Atomic uint32_t events;
    atomic_int       sleepers; /* threads that sleep on `events` */
    atomic_int       flights;  /* that the transport has begun and that were not finished */

    /* Guarded by the connections' lock. */
    lk__net_state       mine; /* what this rank does, since when, and whether the peers were not informed yet */
    double              since;
    bool                unreported;
    bool               *pending; /* by rank: whether the flight that is waited for still needs it */
    lk__net_allocation *pieces;
    lk__net_note_entry *spare_notes; /* were taken, to be used again */
    /* of collective.c and transfer.c, which allocate and free it */
    void *collective_state, *transfer_state;
};

/* Makes comm->state and the connections from the mesh, which it takes also when it fails, starts the thread, and runs a
 * barrier (within connect_ms). transport_state: the transport's, if it exists already; the caller's while this
 * fails. */
lk_status lk__net_create(lk_comm *comm, lk__net_mesh *mesh, const lk__net_transport *transport, void *transport_state);
/* lk__mesh_join and lk__net_create: a backend's `create`. */
lk_status lk__net_open(lk_comm *comm, const struct lk__rendezvous_identity *identity,
                       const lk__net_transport *transport);
/* A backend's `split`: the new group shares the parent's connections. */
lk_status lk__net_split(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);
/* The same, with a transport's state for the new group; the caller's while this fails. */
lk_status lk__net_split_with(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks,
                             void *transport_state);

/* The shared functions of a network transport's table: LK__NET_TABLE(create, lk__net_split, .name = "tcp", …). */
lk_status lk__net_collective(lk_comm *comm, const lk__comm_call *operation);             /* collective.c */
void      lk__net_transfer(lk_comm *comm, lk_work *first);                               /* transfer.c */
void      lk__net_collective_free(lk__net *net);                                         /* frees collective_state */
void      lk__net_transfer_free(lk__net *net);                                           /* frees transfer_state */
lk_status lk__net_allocate(lk_comm *comm, uint64_t secret, size_t bytes, void **memory); /* ordinary memory */
void      lk__net_release(lk_comm *comm, void *memory);
lk_status lk__net_table_failure(lk_comm *comm);
void      lk__net_table_raise(lk_comm *comm, lk_status status, const char *text, lk__comm_cause cause);
void      lk__net_table_busy(lk_comm *comm, const char *what);
void      lk__net_table_wake(lk_comm *comm);
uint64_t  lk__net_table_sent(const lk_comm *comm);
void      lk__net_table_free(lk_comm *comm);
lk_status lk__net_reserve_transfers(lk_comm *comm, int count); /* transfer.c */
lk_status lk__net_reserve_notes(lk__net *net, int count);
#define LK__NET_TABLE(create_, split_, ...)                                                                         \
    {                                                                                                               \
        .scope = LK__SCOPE_ANY, .progresses = true, .collective = lk__net_collective, .transfer = lk__net_transfer, \
        .allocate = lk__net_allocate, .release = lk__net_release, .failure = lk__net_table_failure,                 \
        .raise = lk__net_table_raise, .busy = lk__net_table_busy, .wake = lk__net_table_wake,                       \
        .sent = lk__net_table_sent, .free = lk__net_table_free, .create = create_, .split = split_,                 \
        .abilities = lk__comm_abilities_on_host, .reserve_transfers = lk__net_reserve_transfers, __VA_ARGS__        \
    }

/* ---- for the algorithms; from the thread that runs the operation ---- */

/* Enters the next collective, whose number is then net->number. Sends an arrival to all other ranks, with parts[i].send
 * of up to LK__NET_SMALL bytes (parts NULL: none; recv is ignored). Fails with the group's failure. */
lk_status lk__net_enter(lk__net *net, const lk__comm_call *operation, const lk__net_part *parts);
/* Waits until `peer` (-1: every rank) has entered this collective with the same call; or the group's failure. */
lk_status lk__net_await(lk__net *net, int peer);
/* Whether `peer` has entered a collective that this rank has not, and all its earlier notes were read. */
bool lk__net_ahead(lk__net *net, int peer);
/* The data of its arrival; valid until lk__net_leave. */
const void *lk__net_payload(const lk__net *net, int peer, size_t *bytes);
/* A send or receive: recorded for tables, no message is sent. */
void lk__net_enter_transfer(lk__net *net, const lk__comm_call *operation);
/* Ends the operation; returns status. */
lk_status lk__net_leave(lk__net *net, lk_status status);
/* Waits until the flight is done, which depends on the ranks i with needed[i] (NULL: all). The caller finishes it. */
lk_status lk__net_flight_wait(lk__net *net, lk__net_transfer_state *flight, const bool *needed);

/* Sends at most LK__NET_NOTE bytes to one rank, in order; they are queued there until they are taken. */
lk_status lk__net_send_note(lk__net *net, int peer, const void *data, size_t bytes);
/* Takes the oldest note of `peer`: its length, or 0 when there is none. `into` has room for LK__NET_NOTE. */
size_t lk__net_take_note(lk__net *net, int peer, void *into);

/* To wait for several things at once: read net->events, check what is waited for, else pump until events are no longer
 * `seen` or `seconds` are over; then call lk__net_check. */
bool lk__net_pump(lk__net *net, uint32_t seen, double seconds); /* true: there were events */
typedef struct lk__net_wait_state {
    double   since, begun, checked, moved; /* begun advances while a rank is busy */
    double   late_end; /* until when ranks that wait in other groups are not reported as late; 0: not asked yet */
    uint64_t progress;
    bool     reported;
} lk__net_wait_state;
/* LK_OK, or: the group's failure; LK_ECANCELED when the comm is closing; a failure because one of needed[] (NULL: the
 * ranks that have not entered this collective) is lost or late. Logs the table when it stalls. `wait_state` starts
 * zeroed. Cheap enough for every iteration of a waiting loop. */
lk_status lk__net_check(lk__net *net, const bool *needed, lk__net_wait_state *wait_state);

/* ---- failure ---- */

lk_status lk__net_failure(lk__net *net); /* LK_OK, or the group's */
/* On all ranks, with one text. The cause is lk__comm_cause_for(status). */
lk_status lk__net_raise(lk__net *net, lk_status status, const char *text);
lk_status lk__net_raise_because(lk__net *net, lk_status status, const char *text, lk__comm_cause cause);

/* ---- internal (net.c, wait.c, control.c, verdict.c) ---- */

enum { LK__NET_SLICE_MS = 50 }; /* a wait checks at least this often */

/* The header of a message of `bytes` of this group. */
lk__net_message_header lk__net_head(const lk__net *net, lk__net_message_kind kind, size_t bytes);
/* Under the lock. One message, in two parts. */
void lk__net_send_message(lk__net *net, int peer, const void *message, size_t bytes, const void *data,
                          size_t data_bytes);
void lk__net_send_ask(lk__net *net, int peer);
void lk__net_send_state(lk__net *net, int peer);
void lk__net_forget_note(lk__net *net, lk__net_peer *peer); /* its oldest */
/* Under the lock. Handles a message of the connection to `peer`. False: it violates the protocol. */
bool lk__net_handle(lk__net *net, int peer, const lk__net_message *message);
enum { LK__NET_ASK_MS = 300 }; /* ranks that compute answer within about 20: their connections' thread does */
void lk__net_query_states(lk__net *net, double seconds); /* asks all ranks for their state; until all have answered */
lk_status lk__net_mismatch(lk__net *net, int peer);
lk_status lk__net_crossed(lk__net *net, const lk__comm_call *transfer);
lk_status lk__net_lost(lk__net *net, int peer);
lk_status lk__net_late(lk__net *net, const bool *missing, double seconds);
void      lk__net_stalled(lk__net *net, const bool *missing, double seconds);
bool      lk__net_host_cut_off(lk__net *net, int rank); /* whether a rank of its host is known to be cut off */
void      lk__net_send_departure(lk__net *net); /* under the lock: informs the peers that this rank leaves the group */
/* Once this rank has left all groups and the thread has ended: waits until all that was sent is confirmed: while bytes
 * are being confirmed, and up to 5 s for a peer that confirms none. failed: of the last group, whose bulk data is then
 * of no use. */
void lk__net_disconnect(lk__net_connections *connections, double seconds, bool failed); /* disconnect.c */
/* Under the lock. Fails the group, unless it has failed already, and informs all ranks. `peer` proposed it (-1: this
 * rank), and is informed even if the others were before. */
void lk__net_decide(lk__net *net, lk_status status, const char *text, lk__comm_cause cause, int peer);
void lk__net_send_failure(lk__net *net, int peer); /* under the lock; the group's, if it has failed */

#endif
