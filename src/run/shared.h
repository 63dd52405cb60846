/* run/shared.h - what a program needs to update a state that the ranks of a host share: the gradients of all ranks, and
 * this rank's slices.
 *
 * A step has two waits for all ranks of a host, three with clipping:
 *   the reports of LK_SYNC    a rank sends its own when it has made all its gradients and read all parameters for
 *                             the last time. So from here on gradients may be summed, and slices updated, by
 *                             their owners;
 *   the parts of the norm     with clipping: owners publish the squares of their slices;
 *   the end of the update     from here on the state is the new one for all, and gradients may be overwritten.
 * Where the caller may read the state between LK_SYNC and LK_UPDATE, the update begins with one more.
 *
 * On several hosts each has a copy of the state, and its own of the last two waits; the reports are those of all hosts.
 * A collective sums a bucket's slices over all of them while backward runs, or lk__shared_exchange does so after the
 * reports. */
#ifndef LK__RUN_SHARED_H
#define LK__RUN_SHARED_H

#include "run/program.h"

/* Where the sum of all ranks' gradients is, once the program is synced. */
typedef enum lk__run_summed {
    LK__SUMMED_NOWHERE, /* every rank has its own gradients */
    LK__SUMMED_SLICES,  /* each rank's slices are in its own gradients */
    LK__SUMMED_WHOLE    /* all of it is in everyone's gradients */
} lk__run_summed;

/* A part of a tensor that one thread sums and updates. */
typedef struct lk__run_block {
    int     state;
    int64_t first, count; /* elements, at most LK__SHARED_BLOCK */
    bool    last;         /* its sum is made only when it is updated: see below */
} lk__run_block;

/* With clipping: a part of square_sum (device/kernel.h) that begins in one of this rank's pieces. Its owner sums all of
 * it. So that the gradients of the next rank's slice, in which it may end, are not overwritten before, that rank sums
 * the beginning of its slice, up to where the first part begins in it, into other memory and only when it is updated:
 * such blocks are `last`. */
typedef struct lk__run_part {
    int     state;
    int64_t first, count, own; /* elements; own: of them, in this rank's slice */
    double *squares;           /* where its sum is published */
} lk__run_part;

enum { LK__SHARED_BLOCK = LK__SQUARE_PART };

/* The sum over all ranks of a range of their gradients, as far as each has its own: at most LK__SHARED_BLOCK elements
 * from byte `offset` of a set on, into `out`; on thread `worker`. */
typedef void (*lk__run_sum)(const lk_program *program, size_t offset, size_t count, lk_dtype type, void *out,
                            int worker);

struct lk__run_shared {
    size_t         bytes;     /* of this struct and its arrays */
    char         **gradients; /* by rank of this host: its gradients, in this process */
    char         **of_experts;    /* the same for ranks with this rank's experts */
    int            experts_count; /* how many these are */
    size_t         experts_first; /* where gradients of experts begin in a set: after all others */
    lk__run_block *blocks;
    size_t         blocks_count;
    lk__run_part  *parts;
    size_t         parts_count;
    int           *optimizers, *norms; /* by state: its instructions in the update; -1: none */
    void          *symmetric;          /* of `squares` */
    double        *squares;            /* of all parts of all tensors, in one order; shared by all ranks of the host */
    size_t         squares_count;      /* doubles */
    int            square_doubles;     /* of a part: 1, or as many as an exact sum has (base/exact_sum.h) */
    int64_t       *first_square;  /* by state: its first in `squares` */
    char          *scratch;       /* by thread: sums of a block, then what making them needs */
    size_t         scratch_bytes; /* of a thread */
    lk__run_summed summed;
    bool           lazy; /* summed in the update or by lk__shared_exchange, not by collectives while backward runs */
    bool        slices_pending; /* other ranks' slices may not be summed yet: lk__shared_wait_slices waits for them */
    lk__run_sum sum;            /* of gradients that have not been summed yet */
};

lk_status lk__shared_create(lk_program *program); /* with other ranks; nothing where the state is not shared */
void      lk__shared_free(lk_program *program);

/* ---- shared_gradient.c: the sum of all ranks' gradients for callers ---- */
extern const lk__run_gradients lk__gradients_of_sharers;

/* ---- shared_sum.c ---- */
/* When a program is created: how gradients are summed, over leaves or over ranks, which may have rounded them for
 * that. */
lk__run_sum lk__shared_sum_of(bool leaves, bool rounded);
/* The sum over all ranks of `count` elements of a gradient, from `first` on: into `out`, wherever it is; on thread
 * `worker`. */
void lk__shared_sum(const lk_program *program, int state, int64_t first, int64_t count, void *out, int worker);
/* Elements of a sum of which each owner has its own. */
void lk__shared_copy(const lk_program *program, int state, int64_t first, int64_t count, char *out);
/* The sums of this rank's slices, into its own gradients. */
void lk__shared_sum_own(lk_program *program);
/* Gradients of the ranks that own parts of a state, by owner. */
char *const *lk__shared_gradients(const lk_program *program, int state);
/* ---- shared_hosts.c ---- */
/* On several hosts, where collectives have not: sums this rank's slices over the leaves of its host, then across the
 * hosts. When all ranks have their gradients. Collective. */
lk_status lk__shared_exchange(lk_program *program);
/* Before other ranks' slices are read: waits for the ranks of this host that may not have theirs. Collective. */
lk_status lk__shared_wait_slices(lk_program *program);

static inline int64_t lk__state_elements(const lk_plan *p, int state)
{
    return (int64_t)(lk__plan_gradient_bytes(p, (size_t)state) / lk_dtype_size(p->graph->real));
}

#endif
