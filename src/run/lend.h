/* run/lend.h - cores that a rank lends while it waits. The ranks of a host that share their state compute equal parts
 * of a batch, but on cores that are seldom equally fast: other programs, other virtual machines and other temperatures
 * slow some of them down. So a rank that has computed its gradients lends its cores to one that has not: a thread of
 * that rank, a helper, runs on them and takes tiles of its kernels until they are done. The thread that runs a tile
 * does not affect the bits.
 *
 * The helpers of a rank are threads of the rank's own process, since tiles use its memory. They sleep until another
 * rank sets one's affinity to its own cores and wakes it; that rank then sleeps until the helper is done. */
#ifndef LK__LEND_H
#define LK__LEND_H

#include "run/program.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* A helper, as other ranks see it. */
typedef struct lk__lend_slot {
    _Alignas(128) _Atomic uint32_t state; /* of lend.c */
    int32_t thread;                       /* the kernel's number */
} lk__lend_slot;

/* One rank's part of memory that all ranks of the host have mapped. */
typedef struct lk__lend_rank {
    _Alignas(128) _Atomic uint32_t computing; /* the number of its step, before LK_SYNC; 0: none */
    _Atomic uint32_t done;                    /* instructions of this step */
    cpu_set_t        cores;                   /* that it may use */
    uint64_t         pid_namespace;           /* in which `thread` is a number; 0: not known */
    lk__lend_slot    slots[LK__HELPERS];
} lk__lend_rank;

struct lk__run_lend {
    lk_program      *program;
    size_t           bytes; /* of this struct and what follows it */
    lk__lend_rank   *own;
    lk__lend_rank  **ranks; /* of this host, by index */
    int              count, index, started;
    bool             tried;      /* to start the helpers */
    bool             computing;  /* in a step, before its LK_SYNC */
    bool             crowded;    /* the ranks have more threads than cores */
    bool             takes_long; /* steps take long enough to lend */
    double           begun;      /* when this step began; 0: it is not measured */
    uint32_t         steps;
    double           until;  /* when it waits for helpers no longer in this step */
    _Atomic uint64_t helped; /* how often one of its helpers took tiles */
    char (*names)[32];       /* by rank, for the trace */
    struct lk__lend_helper {
        lk__run_lend *lend;
        int           slot;
        pthread_t     thread;
    } helpers[LK__HELPERS];
};

lk_status lk__lend_create(lk_program *program); /* with other ranks; nothing where the plan has no helpers */
void      lk__lend_free(lk_program *program);
/* Around a section of forward or backward. */
void lk__lend_begin(lk_program *program);
void lk__lend_end(lk_program *program);
/* Before this rank waits for the others' gradients. */
void lk__lend_cores(lk_program *program);

static inline void lk__lend_progress(lk_program *p) /* after every instruction */
{
    if (!p->lend) return;
    _Atomic uint32_t *done = &p->lend->own->done;
    atomic_store_explicit(done, atomic_load_explicit(done, memory_order_relaxed) + 1, memory_order_relaxed);
}

#endif
