/* comm/comm.h - the inside of a group: works in flight, and the table of functions that a backend is. */
#ifndef LK__COMM_H
#define LK__COMM_H

#include "comm/operation.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LK__WORK_TEXT = 512 };

struct lk_work {
    lk_comm      *comm;
    lk__comm_call operation;
    atomic_bool   done;
    lk_status     status;
    double        began, ended;        /* lk__now, of a queued one */
    size_t        moved;               /* bytes, of a send or receive under way */
    bool          queued;              /* on the heap, for the comm's thread; otherwise on a blocking caller's stack */
    bool          complete;            /* a send or receive that only waits to be told so */
    bool          announced;           /* a send: the header is out; a receive: it has its message */
    lk_work      *next;                /* in the queue, or among the transfers under way */
    lk_work      *older, *newer;       /* among all works of the comm that are not waited for */
    lk_comm      *watcher;             /* woken when it is done: the mixed group that handed it on */
    char          text[LK__WORK_TEXT]; /* why a queued one failed, for the thread that waits for it */
};

/* Whom a failure is due to, so that whoever explains the end of a job finds the rank that caused it. */
typedef enum lk__comm_cause_kind {
    LK__CAUSE_UNKNOWN,
    LK__CAUSE_OWN,     /* the rank itself could not go on, and told the others */
    LK__CAUSE_DEAD,    /* its process or its connection ended */
    LK__CAUSE_LEFT,    /* it freed the group while others waited for it */
    LK__CAUSE_CUT_OFF, /* its host does not answer */
    LK__CAUSE_LATE,    /* the others waited for it until their deadline */
    LK__CAUSE_STOPPED, /* they did, and a signal had stopped it */
    LK__CAUSE_KINDS
} lk__comm_cause_kind;

typedef struct lk__comm_cause {
    int32_t kind, rank; /* rank: of the world, not of the group */
} lk__comm_cause;

enum { LK__CARD = 64 };

typedef struct lk__comm_member {
    int           colour, key;
    uint64_t      secret;         /* names the meeting of a new group; random */
    unsigned char card[LK__CARD]; /* the backend's */
} lk__comm_member;

struct lk__rendezvous_identity; /* place.h */

/* What carries a group. Functions that can fail have raised the group's failure, or said it in the context, when they
 * do. */
typedef struct lk__comm_backend {
    const char *name;
    lk_status (*collective)(lk_comm *comm, const lk__comm_call *operation); /* returns when this rank's part is done */
    /* Carries `first` and whatever lk__work_next_transfer gives meanwhile, side by side, until all are done. */
    void (*transfer)(lk_comm *comm, lk_work *first);
    lk_status (*allocate)(lk_comm *comm, uint64_t secret, size_t bytes,
                          void **memory); /* after the secrets were exchanged */
    void (*release)(lk_comm *comm, void *memory);
    lk_status (*failure)(lk_comm *comm); /* of the group, as far as any rank raised it; takes over its text */
    void (*raise)(lk_comm *comm, lk_status status, const char *text,
                  lk__comm_cause cause);           /* on all ranks; from any thread; the first counts */
    void (*busy)(lk_comm *comm, const char *what); /* NULL: no longer */
    void (*nudge)(lk_comm *comm); /* wakes this rank's own waits, which then look at comm->closing and at the queue */
    uint64_t (*sent)(const lk_comm *comm); /* bytes written where other ranks read them */
    void (*free)(lk_comm *comm);
    /* The beginning: comm has its rank and size, and gets its state. */
    lk_status (*create)(lk_comm *comm, const struct lk__rendezvous_identity *place);
    /* A split: first every rank writes into its card what the others need to find it (NULL: they need nothing). Then
     * those who belong together meet: `all` are the members of `parent`, and ranks[i] says who of them is rank i of
     * comm. comm NULL: nothing comes of it, and what was prepared goes. */
    lk_status (*prepare)(lk_comm *parent, lk__comm_member *mine);
    lk_status (*split)(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);
} lk__comm_backend;

extern const lk__comm_backend lk__backend_self, lk__backend_shm, lk__backend_tcp, lk__backend_mpi, lk__backend_mixed;

enum { LK__COMM_TEXT = 8192 };

struct lk_comm {
    lk_context                      *context;
    const lk__comm_backend          *backend;
    void                            *state;                              /* the backend's */
    int                              rank, size, local_rank, local_size; /* local: on this host */
    int                             *world; /* by rank: which rank of the world that is; NULL: the same */
    pid_t                            owner;
    int64_t                          timeout_ms, stall_ms;
    int64_t                          join_ms;    /* until all ranks have come */
    int64_t                          connect_ms; /* for what they then do to be connected */
    struct lk__comm_flight_recorder *diary;      /* diary.h; NULL: none, as in the groups that a mixed one holds */
    /* Of a group that carries transfers for another, `outer`: LK_END when its rank `peer` has come to a collective of the outer
     * group which this rank has not come to; with the transfer that then waits for ever, the failure of all. */
    lk_comm *outer;
    lk_status (*crossed)(lk_comm *outer, int peer, const lk__comm_call *transfer);

    atomic_int      failed;  /* status of the group's first failure, once this rank knows it; text is set before */
    pthread_mutex_t failing; /* guards text while `failed` is set; a leaf */
    char            text[LK__COMM_TEXT];
    lk__comm_cause  cause;

    /* Works in flight: asked for in order, run in order by one thread that starts with the first of them. */
    pthread_mutex_t lock; /* guards the queue and the list; a leaf */
    pthread_cond_t  queued, finished;
    lk_work        *first, *last; /* not yet begun */
    lk_work        *newest;       /* of all that nobody waited for yet */
    lk_work        *spare;        /* waited for, to be used again */
    atomic_int      pending;      /* queued or running: while none is, blocking calls run where they are called */
    atomic_bool     closing;      /* waits give up */
    bool            running;
    pthread_t       thread;
};

/* Takes `state` over on success; on failure the caller keeps it. */
lk_status lk__comm_make(lk_context *context, const lk_comm *like, const lk_comm_config *config, lk_comm **comm);
void      lk__comm_drop(lk_comm *comm); /* what lk__comm_make made, without its backend */

/* Notes the group's failure here, the first alone, and returns the status that counts. */
lk_status lk__comm_note(lk_comm *comm, lk_status status, const char *text, lk__comm_cause cause);
/* Notes which ranks of the world the members are: those of `like` at ranks[0 … comm->size); NULL: the same. */
lk_status lk__comm_set_world(lk_comm *comm, const lk_comm *like, const int *ranks);
/* A failure due to `rank` of this group. */
lk__comm_cause lk__comm_cause_make(const lk_comm *comm, int rank, lk__comm_cause_kind kind);
/* A group could not be joined because of `rank`, says this rank. comm NULL is fine. */
void lk__comm_join_failed(const lk_comm *comm, int rank, lk__comm_cause_kind kind);
/* Of failures that name no other rank: no memory is this rank's own trouble, calls that differ are nobody's. */
lk__comm_cause lk__comm_cause_for(const lk_comm *comm, lk_status status);
/* The failure once more, into the context. */
lk_status lk__comm_failed(lk_comm *comm);

/* ---- works ---- */

lk_status lk__work_submit(lk_comm *comm, const lk__comm_call *operation, lk_work **work); /* NULL: waits */
lk_work  *lk__work_next_transfer(lk_comm *comm,
                                 lk_work *inside); /* a send or receive that is next in the queue, else NULL */
void      lk__work_finish(lk_work *work, lk_status status);
/* Of transfers under way side by side: finishes those that are complete and takes them out of the list; with a failure, all. */
void lk__works_sweep(lk_work **under_way, lk_status status);
bool lk__works_complete(const lk_work *under_way);
/* Queues it in `comm`, whose own thread runs it; `watcher` is woken when it is done. */
lk_status lk__work_hand_on(lk_comm *comm, const lk__comm_call *operation, lk_comm *watcher, lk_work **work);
void      lk__work_wake(lk_comm *comm);  /* whoever waits for works of comm looks again */
void      lk__work_close(lk_comm *comm); /* gives up what is in flight */

/* Bytes that this rank wrote where its peers read them, so far. */
uint64_t lk__comm_sent(const lk_comm *comm);

/* Meets the ranks of this host that know `key`. place: where ranks come from that have not joined yet; NULL: all have. */
lk_status lk__shm_create(lk_comm *comm, const struct lk__rendezvous_identity *place, const char *key, const char *token);

#endif
