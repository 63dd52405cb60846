/* comm/shm/shm.h - ranks of one host over shared memory: the layout of that memory, and how one rank waits for another.
 *
 * Every rank has a rank slot. Only its owner writes to it, except for the few words marked below, and counts in it only
 * grow:
 *   arrivals[].number   the collective that the owner has entered, with the call's signature and up to LK__SMALL bytes
 *                       of its data; two in turn, because once a rank has seen all others enter number n + 1, they have
 *                       all left number n;
 *   progress            steps of a large collective that the owner has done. Every rank does the same steps for the
 *                       same call.
 * A waiting rank spins briefly, then sleeps on the word that it waits for; the rank that changes the word wakes it. */
#ifndef LK__SHM_H
#define LK__SHM_H

#include "base/futex.h"
#include "comm/comm.h"
#include "comm/devices.h"
#include "comm/flight_recorder.h"
#include "comm/memory_nodes.h"
#include "comm/verdict.h"

#include <stdatomic.h>

enum {
    LK__SMALL = 16384 - 64,    /* bytes of data in an arrival */
    LK__SHM_CHUNK = 256 << 10, /* bytes of a staging buffer */
    LK__BUFFERS = 4,           /* three to publish in, one for results */
};

typedef struct lk__shm_arrival {
    _Alignas(128) _Atomic uint32_t number;
    uint32_t reserved;
    uint64_t signature;
    uint64_t send, recv; /* the buffers' location in symmetric memory: allocation << 40 | offset; 0: elsewhere */
    char     payload[LK__SMALL];
} lk__shm_arrival;

typedef struct lk__shm_rank_slot {
    lk__shm_arrival arrivals[2];
    _Alignas(128) _Atomic uint32_t progress;
    _Alignas(128) _Atomic uint32_t sleepers; /* ranks that sleep on one of the words above; written by them */
    _Atomic uint32_t waiters;                /* whether the owner sleeps on `doorbell` */
    /* incremented with each change of a ring to or from the owner, by its peer */
    _Alignas(128) _Atomic uint32_t doorbell;
    _Alignas(128) _Atomic uint64_t entered; /* operations begun, and ended: equal outside any operation */
    _Atomic uint64_t left;
    _Atomic uint64_t since;  /* when one of the two last changed, in ticks */
    _Atomic uint64_t failed; /* the latest operation that failed, as counted by `entered`; 0: none */
    _Atomic uint32_t notes;  /* a sequence count: odd while the owner writes one of the two records below */
    lk__comm_record  records[2];
    char             files[2][LK__FILE_NAME]; /* of the records */
    _Atomic int32_t  gone;                    /* the rank freed its comm */
    _Atomic int32_t  busy;                    /* declared long work */
    char             busy_with[64];
    int64_t          pid;
    uint64_t         started;       /* of the process, in ticks since boot: a pid alone may be reused */
    uint64_t         pid_namespace; /* in which `pid` is this process; 0: unknown, or not written yet */
    uint64_t         cpus[16];
    int32_t          maps;            /* peers may map its device's memory: the transport and the device can */
    _Atomic uint32_t released;        /* pieces of such memory of which the owner has unmapped its peers' parts */
    int32_t         node, node_group; /* the kernel's number of its memory node; equal for ranks that count as on one */
    lk__comm_device device;
    char            host[LK__HOST_NAME];
    int32_t         home;     /* the owner's slot in the group that was created, whose memory this one is in */
    _Atomic uint32_t waiting; /* there: waits of the owner, in any group of that memory, that go on or have failed */
    /* For a split whose new group begins with the owner: its number, and the block of memory that the group has; -1:
     * none was free. */
    _Alignas(128) _Atomic uint32_t split;
    int32_t split_block;
} lk__shm_rank_slot;

/* One direction between two ranks. */
typedef struct lk__shm_ring {
    _Alignas(128) _Atomic uint32_t head; /* bytes put in, by the sender */
    _Alignas(128) _Atomic uint32_t tail; /* bytes taken out, by the receiver */
} lk__shm_ring;

/* Memory for groups that are split from the one that was created, or from its descendants: blocks after its own,
 * without pages until they are used. A block is large enough for a group of all ranks. */
enum { LK__SHM_BLOCKS = 32 };

typedef struct lk__shm_block {
    _Atomic uint32_t users; /* ranks whose group it is; 0: it is free. Of ranks that died it is never free again */
    _Atomic uint32_t used;  /* before: it has to be cleared */
} lk__shm_block;

typedef struct lk__shm_header {
    lk__shm_block   blocks[LK__SHM_BLOCKS]; /* of the group that was created */
    _Atomic int32_t failure;                /* 0 none, 1 being written, 2 written */
    int32_t         status;
    lk__comm_cause  cause;
    char            text[LK__COMM_TEXT];
} lk__shm_header;

typedef struct lk__shm_symmetric {
    char                     *base; /* all ranks' parts, contiguous */
    size_t                    stride, bytes;
    uint64_t                  id;
    int                      *ranks; /* by rank: whose part its own is. NULL: the rank's; else another group's memory */
    struct lk__shm_symmetric *next;
} lk__shm_symmetric;

/* Where the part of a rank begins. */
static inline char *lk__shm_part(const lk__shm_symmetric *y, int rank)
{
    return y->base + y->stride * (size_t)(y->ranks ? y->ranks[rank] : rank);
}

/* What this process has mapped for a group that was created, and the groups split from it; unmapped with the last of
 * them. */
typedef struct lk__shm_mapping {
    char      *base;
    size_t     own, block; /* bytes of that group, and of a block */
    int        blocks;     /* 0: groups that are split map separate memory */
    atomic_int users;
} lk__shm_mapping;

struct lk__shm_message; /* transfer.c */

typedef struct lk__shm {
    lk_comm                   *comm;
    lk__shm_mapping           *mapping;
    int                        block; /* of the mapping; -1: its beginning */
    lk__shm_header            *header;
    lk__shm_rank_slot         *rank_slots, *me, *home; /* home: lk__shm_rank_slot.home */
    char                      *staging;                /* size × BUFFERS × CHUNK */
    char                      *rings;
    size_t                     ring_bytes; /* of data; a power of two */
    int                        rank, size;
    int                        spins, yields;
    uint32_t                   arrivals, progress; /* this rank's own counts */
    uint64_t                   number, operations;
    uint64_t                   sent;
    uint64_t                   symmetric_ids;
    lk__shm_symmetric         *symmetric;
    const lk__comm_node_range *node_ranges; /* of lk__comm_alloc_on_nodes, while it runs */
    size_t                     node_ranges_count;
    const void               **pointers;    /* three per rank, for collectives */
    lk__comm_call              recorded[2]; /* the last two calls */
    lk__comm_call              fits; /* the last call whose buffers were checked against the ends of symmetric memory */
    bool                       slow; /* the current call slept, so the clock is read again at its end */
    _Atomic(_Atomic uint32_t *) sleeping_on; /* for lk_comm_free from a thread other than the one that waits */
    uint64_t                    tick_start;
    double                      time_start;
    struct lk__shm_message    **messages; /* by rank: buffered messages, and the one being read */
    struct lk__shm_message     *spare;    /* were received, to be used again */
    bool                        has_spare;
} lk__shm;

/* A counter with the same rate on all cores; takes a few nanoseconds, where clock_gettime takes tens. */
static inline uint64_t lk__tick(void)
{
#if defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#elif defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)(lk__now() * 1e9);
#endif
}

/* ---- waiting (wait.c) ---- */

lk_status lk__shm_wait(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target);

/* Waits until `word`, in the rank slot of `peer`, has reached target. */
static inline lk_status lk__shm_await(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    if ((int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0) return LK_OK;
    return lk__shm_wait(s, peer, word, target);
}

/* The same, of a word that only `peer` sets: it does not matter whether others do. */
lk_status lk__shm_wait_for_one(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target);

/* Sets one of this rank's own words and wakes the ranks that sleep on it. */
static inline void lk__shm_post(lk__shm *s, _Atomic uint32_t *word, uint32_t value)
{
    atomic_store(word, value);
    if (atomic_load(&s->me->sleepers)) lk__futex_wake(word);
}

/* Sleeps until this rank's doorbell is no longer `seen`, or for a limited time; then checks the group. `peer` is a rank
 * that it waits for. */
typedef struct lk__shm_wait_state {
    double   since, begun, checked, checked_all; /* begun advances while a rank is busy */
    bool     reported;
    unsigned tries;
} lk__shm_wait_state;
lk_status lk__shm_sleep(lk__shm *s, int peer, uint32_t seen, lk__shm_wait_state *wait_state);
void      lk__shm_ring_doorbell(lk__shm *s, int peer);
void      lk__shm_wake_self(lk__shm *s); /* wakes this rank's own waits */

/* What the ranks of all groups in the same memory see between the two: this rank waits for another one. It stays so
 * where the wait fails: what that says has to reach the other groups. */
static inline void lk__shm_wait_begin(lk__shm *s) { atomic_fetch_add(&s->home->waiting, 1); }
static inline void lk__shm_wait_end(lk__shm *s, lk_status status)
{
    if (status >= 0 || atomic_load(&s->comm->closing)) atomic_fetch_sub(&s->home->waiting, 1);
}

/* ---- shm.c ---- */

int lk__shm_rank_in(const lk_comm *comm, int world); /* the rank in `comm` of a rank of the world; -1: none */

/* ---- memory nodes (node.c) ---- */

void lk__shm_find_node(lk__shm *s); /* of this rank: writes it into its slot */
int  lk__shm_nodes(const lk__shm *s);
int  lk__shm_node(const lk__shm *s, int rank);
/* On rank 0, where `memory` is all of an allocation that has no pages yet. */
void lk__shm_place(lk_comm *comm, char *memory, size_t bytes);

/* ---- failure (verdict.c) ---- */

/* Records the call in this rank's slot. */
void lk__shm_record(lk__shm *s, const lk__comm_call *operation, uint64_t number);

/* Reading the clock takes a thirtieth of the smallest collective: so it is read while waiting for other ranks, and at
 * the end only of calls that took long. */
static inline void lk__shm_stamp(lk__shm *s)
{
    if (LK__CHECKED) atomic_store_explicit(&s->me->since, lk__tick(), memory_order_relaxed);
}

/* Whether the call equals the last but one, in whose record it goes: then it is recorded already. */
static inline bool lk__shm_recorded(const lk__comm_call *o, const lk__comm_call *n)
{
    return n->kind == o->kind && n->count == o->count && n->type == o->type && n->reduce == o->reduce &&
           n->root == o->root && n->tag == o->tag && n->bytes == o->bytes && n->site.line == o->site.line &&
           n->site.file == o->site.file && !o->recv_counts && o->site.file;
}

/* Called after the arrival is published, so that recording does not delay the others: a rank that detects calls that
 * differ waits briefly for the records. */
static inline void lk__shm_enter(lk__shm *s, const lk__comm_call *o, uint64_t number)
{
    if (!LK__CHECKED) return;
    uint64_t         entered = ++s->operations, which = entered & 1;
    lk__comm_record *r = &s->me->records[which];
    if (lk__shm_recorded(o, &s->recorded[which]))
        r->number = number;
    else
        lk__shm_record(s, o, number);
    atomic_store_explicit(&s->me->entered, entered, memory_order_release);
    if (number) lk__flight_recorder_number(s->comm->numbered, number);
    lk__shm_stamp(s);
}

static inline lk_status lk__shm_leave(lk__shm *s, lk_status status)
{
    if (!LK__CHECKED) return status;
    if (s->slow) lk__shm_stamp(s);
    if (status < 0) atomic_store_explicit(&s->me->failed, s->operations, memory_order_relaxed);
    atomic_store_explicit(&s->me->left, s->operations, memory_order_relaxed);
    return status;
}

lk_status lk__shm_failure(lk__shm *s); /* LK_OK, or the group's failure, copied to comm */
lk_status lk__shm_raise(lk__shm *s, lk_status status, const char *text); /* with lk__comm_cause_for(status) */
lk_status lk__shm_raise_because(lk__shm *s, lk_status status, const char *text, lk__comm_cause cause);
void      lk__shm_view(void *shm, int rank, lk__comm_rank_view *view); /* lk__comm_table.view */
bool      lk__shm_dead(const lk__shm_rank_slot *rank_slot, bool *stopped);
/* Whether all missing ranks are busy, or wait themselves while another is busy. */
bool lk__shm_excused(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target);
/* Whether the rank is in no operation of this group, but waits in one of another group, or has failed there: then a
 * rank of that group, or one that is waited for by it in turn, is why it does not come. */
bool lk__shm_elsewhere(const lk__shm *s, int rank);
/* The same of all missing ranks. */
bool lk__shm_all_elsewhere(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target);
/* Report and raise a failure. word: what is waited for in each rank slot; NULL: only `peer` is waited for. */
lk_status lk__shm_mismatch(lk__shm *s, int peer);
lk_status lk__shm_crossed(lk__shm *s, const lk__comm_call *transfer);
lk_status lk__shm_lost(lk__shm *s, int peer);
lk_status lk__shm_late(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds);
void      lk__shm_stalled(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds);

/* ---- memory of the group (shm.c, split.c) ---- */

/* Makes comm->state, without memory; and begins the group in zeroed memory of lk__shm_bytes, which it takes also when
 * it fails. */
lk_status lk__shm_make(lk_comm *comm);
lk_status lk__shm_begin(lk_comm *comm, lk__shm_mapping *mapping, int block);
/* Fails the group if another rank has died or left. */
lk_status lk__shm_check_ranks(lk_comm *comm);
void      lk__shm_drop(lk_comm *comm); /* frees what lk__shm_make made */
size_t    lk__shm_bytes(int size);
void      lk__shm_leave_mapping(lk__shm *s);            /* this rank no longer uses its group's memory */
void      lk__shm_set_layout(lk__shm *s, char *memory); /* where the parts of a group's memory are */
/* ranks: of the parent; number: of its split, higher than any earlier one; secret: equal on all ranks of the new
 * group. */
lk_status lk__shm_split_as(lk_comm *parent, lk_comm *comm, const int *ranks, uint32_t number, uint64_t secret);
lk_status lk__shm_split(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);

/* ---- moving data ---- */

lk_status lk__shm_collective(lk_comm *comm, const lk__comm_call *operation); /* collective.c */
void      lk__shm_transfer(lk_comm *comm, lk_work *first);                   /* transfer.c */
void      lk__shm_transfer_free(lk__shm *s);

static inline char *lk__shm_buffer(const lk__shm *s, int rank, int buffer)
{
    return s->staging + ((size_t)rank * LK__BUFFERS + (size_t)buffer) * LK__SHM_CHUNK;
}

#endif
