/* comm/comm.h - internals of a group: works in flight, and a backend's table of functions. */
#ifndef LK__COMM_H
#define LK__COMM_H

#include "comm/mesh.h"
#include "comm/queue.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LK__WORK_TEXT = 512 };

struct lk_work {
    lk_comm      *comm;
    lk__comm_call operation;
    atomic_bool   done;
    lk_status     status;
    double        began, ended;        /* lk__now, of a queued one */
    size_t        moved;               /* bytes, of a send or receive in progress */
    bool          queued;              /* on the heap, for the comm's thread; otherwise on a blocking caller's stack */
    bool          complete;            /* a send or receive that is done but not yet reported */
    bool          announced;           /* a send: its header is sent; a receive: it has its message */
    lk_work      *next;                /* in the queue, or among the transfers in progress */
    lk_work      *older, *newer;       /* among all works of the comm that were not waited for yet */
    lk_comm      *watcher;             /* woken when it is done: the mixed group that submitted it */
    char          text[LK__WORK_TEXT]; /* why a queued one failed, for the thread that waits for it */
};

/* Which rank caused a failure, and how; the launcher reports it. */
typedef enum lk__comm_cause_kind {
    LK__CAUSE_UNKNOWN,
    LK__CAUSE_OWN,     /* the rank itself failed, and reported it */
    LK__CAUSE_DEAD,    /* its process or its connection ended */
    LK__CAUSE_LEFT,    /* it freed the group while others waited for it */
    LK__CAUSE_CUT_OFF, /* its host does not answer */
    LK__CAUSE_LATE,    /* the others' deadline passed while they waited for it */
    LK__CAUSE_STOPPED, /* the same, and a signal had stopped it */
    LK__CAUSE_KINDS
} lk__comm_cause_kind;

typedef struct lk__comm_cause {
    int32_t kind, rank; /* rank: of the world, not of the group */
} lk__comm_cause;

typedef struct lk__comm_member {
    int      colour, key;
    uint64_t secret; /* names a new group of which this is the first rank; random */
} lk__comm_member;

struct lk__rendezvous_identity; /* rendezvous/identity.h */

/* Which ranks a transport connects: one, the ranks of a host, or any. */
typedef enum lk__comm_scope { LK__SCOPE_RANK, LK__SCOPE_HOST, LK__SCOPE_ANY } lk__comm_scope;

/* A transport: transports.h lists them. A function that fails has raised the group's failure, or set the context's
 * error. */
typedef struct lk__comm_backend {
    const char    *name, *text; /* text: one line for users */
    lk__comm_scope scope;
    bool           alone;        /* may carry a world of one rank; otherwise self does */
    bool           maps_devices; /* of one over shared memory: a rank's peers may map its device's memory */
    /* For a network transport: over several hosts, the available one with the highest number is chosen; 0: only by its
     * name. */
    int preference;
    /* Whether it can run in this process with that identity; NULL: always. */
    bool (*available)(const lk_context *context, const struct lk__rendezvous_identity *identity);
    bool makes_token;  /* ranks get the job's token through it, and need not have one before */
    bool over_network; /* it uses the network transport that is chosen, which answers for makes_token */
    /* a collective in flight mostly waits for a network; else it needs a core for copying and adding */
    bool progresses;
    lk_status (*collective)(lk_comm *comm, const lk__comm_call *operation); /* returns when this rank's part is done */
    /* Runs `first` and the transfers that lk__work_next_transfer gives meanwhile, concurrently, until all are done. */
    void (*transfer)(lk_comm *comm, lk_work *first);
    lk_status (*reserve_transfers)(lk_comm *comm, int count); /* NULL: it needs nothing for them */
    lk_status (*allocate)(lk_comm *comm, uint64_t secret, size_t bytes,
                          void **memory); /* after the secrets were exchanged */
    void (*release)(lk_comm *comm, void *memory);
    lk_status (*failure)(lk_comm *comm);       /* of the group, raised by any rank; copies its text into comm */
    lk_status (*known_failure)(lk_comm *comm); /* the same without waiting for a reason; NULL: `failure` never waits */
    void (*raise)(lk_comm *comm, lk_status status, const char *text,
                  lk__comm_cause cause); /* on all ranks; from any thread; the first counts */
    /* lk__comm_explain; NULL: no other rank can make a device fail. */
    lk_status (*explain)(lk_comm *comm, lk_status status);
    void (*busy)(lk_comm *comm, const char *what); /* NULL: no longer */
    void (*wake)(lk_comm *comm); /* wakes this rank's own waits, which then check comm->closing and the queue */
    uint64_t (*sent)(const lk_comm *comm); /* bytes written where other ranks read them */
    void (*free)(lk_comm *comm);
    /* comm has its rank and size; create sets its state. */
    lk_status (*create)(lk_comm *comm, const struct lk__rendezvous_identity *identity);
    /* A split, after its gather: `all` are the members of `parent`, and ranks[i] is the member that becomes rank i of
     * comm. Called by the ranks of the new group. */
    lk_status (*split)(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);
    lk__comm_abilities (*abilities)(const lk_comm *comm, const lk__device *device);
    /* lk__comm_enqueue, of a valid call, and lk__comm_alloc_device, after the secrets were exchanged; `release` frees
     * that memory. Both NULL: it queues nothing on any device. */
    lk_status (*enqueue)(lk_comm *comm, const lk__comm_call *call, const lk__comm_stream *on);
    lk_status (*allocate_device)(lk_comm *comm, lk__device *device, uint64_t secret, size_t bytes, void **memory);
    /* Where this process has `rank`'s part of symmetric memory, of which `memory` is this rank's part. NULL: the ranks
     * have not mapped each other's parts. */
    char *(*peer)(const lk_comm *comm, const void *memory, int rank);
    /* lk__comm_adopt; NULL: its operations are the same wherever operands are. */
    lk_status (*adopt)(lk_comm *comm, const lk_comm *of, void *memory);
    int (*hosts)(const lk_comm *comm, const char **why); /* hosts.h; where there is `peer` */
    /* The group in shared memory of this host's ranks. NULL: they share none. */
    struct lk__shm *(*shared)(const lk_comm *comm);
} lk__comm_backend;

/* For transports that reach only the host's memory and add in the canonical order. */
lk__comm_abilities lk__comm_abilities_on_host(const lk_comm *comm, const lk__device *device);

enum { LK__COMM_TEXT = 8192 };

struct lk_comm {
    lk_context                      *context;
    const lk__comm_backend          *backend;
    void                            *state; /* the backend's */
    struct lk__p2p                  *p2p;   /* of the backend p2p, whose `state` is shared memory's; otherwise NULL */
    int                              rank, size, local_rank, local_size; /* local: on this host */
    int                             *world;  /* by rank: its rank in the world; NULL: the same */
    lk__mesh_grid                    grid;   /* of the mesh that it is a group of, for messages; size 0: none */
    unsigned                         along;  /* the axes along which it is; 0: the whole mesh */
    uint32_t                         splits; /* so far; equal on all ranks */
    pid_t                            owner;
    int64_t                          timeout_ms, stall_ms;
    int64_t                          join_ms;    /* until all ranks have joined */
    int64_t                          connect_ms; /* until all connections are made after that */
    struct lk__comm_flight_recorder *recorder;   /* NULL: none, as in the groups that a mixed one holds */
    /* gets the numbers of collectives: `recorder`, or the recorder of the mixed group for which this one runs them */
    struct lk__comm_flight_recorder *numbered;
    /* For a group that carries transfers for another, `outer`: LK_END when its rank `peer` has entered a collective of
     * the outer group which this rank has not entered; with the transfer that then can never complete, raises the
     * failure. */
    lk_comm *outer;
    lk_status (*crossed)(lk_comm *outer, int peer, const lk__comm_call *transfer);

    atomic_int      failed;  /* status of the group's first failure, once this rank knows it; text is set before */
    pthread_mutex_t failing; /* guards text while `failed` is set; a leaf */
    char            text[LK__COMM_TEXT];
    lk__comm_cause  cause;

    /* Works in flight, run in the order of their calls by one thread that is started with the first of them. */
    pthread_mutex_t lock; /* guards the queue and the list; a leaf */
    pthread_cond_t  queued, finished;
    lk_work        *first, *last; /* not yet started */
    lk_work        *newest;       /* of all that were not waited for yet */
    lk_work        *spare;        /* waited for, to be reused */
    atomic_int      pending;      /* queued or running; while 0, blocking calls run in the caller's thread */
    atomic_bool     closing;      /* waits end with LK_ECANCELED */
    bool            running;
    pthread_t       thread;
};

/* Without a backend. Limits come from `like`, or from config where it is NULL. */
lk_status lk__comm_make(lk_context *context, const lk_comm *like, const lk_comm_config *config, lk_comm **comm);
void      lk__comm_drop(lk_comm *comm); /* frees what lk__comm_make made, not the backend's state */

/* Records the group's failure on this rank unless it has one already, and returns the recorded status. */
lk_status lk__comm_record_failure(lk_comm *comm, lk_status status, const char *text, lk__comm_cause cause);
/* Records the members' ranks in the world: the ranks of `like` at ranks[0 … comm->size); NULL: the same. */
lk_status lk__comm_set_world(lk_comm *comm, const lk_comm *like, const int *ranks);
/* "rank 5, data 1 tensor 1": a member, with its coordinates where the group is one of a mesh of several axes. */
enum { LK__MEMBER_TEXT = 128 };
const char *lk__comm_member_text(const lk_comm *comm, int rank, char text[LK__MEMBER_TEXT]);
/* A failure that `rank` of this group caused. */
lk__comm_cause lk__comm_cause_make(const lk_comm *comm, int rank, lk__comm_cause_kind kind);
/* Records that joining failed because of `rank`. comm NULL is fine. */
void lk__comm_join_failed(const lk_comm *comm, int rank, lk__comm_cause_kind kind);
/* For failures that name no other rank: lack of memory is caused by this rank, calls that differ by none. */
lk__comm_cause lk__comm_cause_for(const lk_comm *comm, lk_status status);
/* Sets the context's error to the group's failure. */
lk_status lk__comm_report_failure(lk_comm *comm);

/* ---- works ---- */

/* Whether a call is valid on this rank; an error names it and its line. */
lk_status lk__comm_check(lk_comm *comm, const lk__comm_call *call);
/* Checks a call and submits it: the last step of all public collectives. */
lk_status lk__comm_run(lk_comm *comm, const lk__comm_call *call, lk_work **work);
lk_status lk__work_submit(lk_comm *comm, const lk__comm_call *operation, lk_work **work); /* NULL: waits */
lk_work  *lk__work_next_transfer(lk_comm *comm,
                                 lk_work *inside); /* a send or receive that is next in the queue, else NULL */
void      lk__work_finish(lk_work *work, lk_status status);
/* Appends all of them to the list, which is not empty; returns whether there were any. */
bool lk__works_take_next(lk_comm *comm, lk_work **in_progress);
/* Finishes the transfers that are complete and removes them from the list; with a failure, all. */
void lk__works_finish_complete(lk_work **in_progress, lk_status status);
bool lk__works_complete(const lk_work *in_progress);
/* Queues it in `comm`, whose own thread runs it; `watcher` is woken when it is done. */
lk_status lk__work_submit_watched(lk_comm *comm, const lk__comm_call *operation, lk_comm *watcher, lk_work **work);
/* Allocates memory for `count` sends and receives of this rank in flight, and as many of other ranks to it. Local; call
 * it while none are in flight. */
lk_status lk__comm_reserve_transfers(lk_comm *comm, int count);
void      lk__work_wake(lk_comm *comm);  /* threads that wait for works of comm check again */
void      lk__work_close(lk_comm *comm); /* cancels what is in flight */

/* Whether it pays to have collectives in flight while `threads` threads compute: the backend progresses by itself, or a
 * core is free for its thread. Otherwise computing loses as much time as is hidden. */
bool lk__comm_overlaps(const lk_comm *comm, int threads);

/* Bytes that this rank has sent to its peers so far, or written where they read them. */
uint64_t lk__comm_sent(const lk_comm *comm);

/* Joins the ranks of this host that know `key`. identity: for log lines about missing ranks; NULL: all have joined. */
lk_status lk__shm_create(lk_comm *comm, const struct lk__rendezvous_identity *identity, const char *key,
                         const char *token);

#endif
