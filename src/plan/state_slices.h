/* plan/state_slices.h - which ranks have which elements of a state: for each of its arrays (the stored values, the
 * master copy, the moments) a list of slices, known from the plan alone. The store resolves them to addresses
 * (run/store.h).
 *
 * A slice is a range in every dimension, and the list divides the array into one slice for each part of the ranks:
 *   replicated              one slice, of which every rank has its own copy;
 *   shared by a host        one slice, in memory that the ranks of a host map: one copy for each memory node, or for
 *                           the host. Each of these ranks owns a range of it, which it updates: those elements
 *                           whose gradients are in its slice of a bucket;
 *   split                   along a dimension over an axis of the mesh, maybe along several, one after the other:
 *                           over axes of 2 and 3 ranks there are 6 slices. Ranks that differ in other axes have
 *                           copies of the same slice;
 *   held by some            by the ranks at some coordinates along pipeline; the others have an empty slice;
 *   both                    the ranks of a host that have the same slices of all arrays share one copy of them.
 * Values, master copies and moments are divided independently: with moments split and values whole it is ZeRO 1.
 *
 * The lists are computed when they are asked for, since a list of 1,024 ranks' slices for each array would be larger
 * than many models. */
#ifndef LK__STATE_SLICES_H
#define LK__STATE_SLICES_H

#include "base/split.h"
#include "comm/mesh.h"

#include <lockstep/plan.h>

typedef enum lk__plan_array {
    LK__ARRAY_STORED,
    LK__ARRAY_MASTER,
    LK__ARRAY_MOMENT_0, /* and the next ones */
    LK__ARRAY_COUNT = LK__ARRAY_MOMENT_0 + LK_MAX_MOMENTS
} lk__plan_array;

/* Along a dimension, into as many parts as these axes of the mesh have ranks: a rank has the part of its coordinate.
 * Their counts differ by one at most, so that parts may be empty. */
enum { LK__CUT_SEGMENTS = 3 };
typedef struct lk__plan_cut {
    int      dim;
    unsigned axes; /* maybe one that is factored (base/axes.h): neighbours have copies then */
    /* Above 1: the dimension consists of this many equal repetitions, and each of them is cut: queries, keys and values
     * that are side by side. */
    int64_t outer;
    /* Not 0: the dimension consists of this many elements of one thing, then of another, …, 0 after the last, each of
     * which is cut: queries, keys and values of unequal widths. The parts are equal. */
    int64_t segment[LK__CUT_SEGMENTS];
} lk__plan_cut;

/* After all other cuts: what is left, row-major, is part of a unit (plan/shard.h), which is cut into equal parts. */
typedef struct lk__plan_flat {
    unsigned axes;     /* 0: it is not */
    int64_t  at, each; /* elements: where it begins in the unit; of a part of that */
} lk__plan_flat;

enum { LK__SPLITS = 3 };
typedef struct lk__plan_splits {
    int           count; /* 0: whole */
    lk__plan_cut  split[LK__SPLITS];
    lk__plan_flat flat;
    /* Coordinates along pipeline, as bits, of the ranks that have it at all; the others have one more slice, which is
     * empty. 0: all of them. */
    uint64_t held;
} lk__plan_splits;

/* How strategies place arrays when the plan is created: sets *splits, which is empty, for one array of a state. */
typedef struct lk__plan_placement {
    void (*place)(void *user, const lk_plan *plan, size_t state, lk__plan_array array, lk__plan_splits *splits);
    void                *user;
    const lk__mesh_grid *mesh; /* instead of the plan's, of whose axes the passes know only data; NULL: the plan's */
} lk__plan_placement;

enum { LK__SLICES_RANK = LK_MAX_RANK + LK__SPLITS };

/* The list of one array. */
typedef struct lk__plan_slices {
    const lk__mesh_grid *mesh;
    int                  rank; /* dimensions, those of the state; repetitions that are cut are a dimension */
    int64_t              dims[LK__SLICES_RANK];
    lk_dtype             dtype;
    lk__plan_splits      splits;
    int                  parts; /* slices, including the empty one of ranks that do not have it */
    int                  own;   /* this rank's, of `parts` */
    /* axes along which the ranks that share a copy of the state have different parts of it, one after the other */
    unsigned apart;
    int      owner; /* this rank, of `owners`, of a state that is trained and shared */
    int owners; /* ranks that share a copy of a slice, each with a range that it updates; 1: a rank has it for itself */
    /* where range i begins, maybe before the slice, and its distance from the previous range */
    int64_t   owned_first, owned_each;
    lk_holder holder; /* of one copy of a slice */
    /* copies may differ (running statistics of a rank's own samples), and files have the copy of the lowest rank */
    bool      first_counts;
    lk_memory memory; /* the region, and where this rank's slice begins in it */
    size_t    offset;
} lk__plan_slices;

typedef struct lk__plan_slice {
    int64_t first[LK__SLICES_RANK], count[LK__SLICES_RANK]; /* by dimension */
} lk__plan_slice;

/* Where ranks have different slices they exchange bytes (run/exchange.h) through two buffers of a window for each rank:
 * the smaller, the more ranks there are; more than the caches hold would not be faster. */
enum {
    LK__EXCHANGE_BUFFER = 4 << 20,
    LK__EXCHANGE_WINDOW = 4096,
    LK__EXCHANGE_CHUNK = 1 << 20,
    LK__EXCHANGE_RANK = 128
};
static inline size_t lk__exchange_window(int ranks)
{
    size_t each = LK__EXCHANGE_BUFFER / (size_t)ranks / LK__EXCHANGE_WINDOW * LK__EXCHANGE_WINDOW;
    return each < LK__EXCHANGE_WINDOW ? LK__EXCHANGE_WINDOW : each;
}
/* What a store needs for that: the buffers, a chunk that is gathered, and what is known of each rank. 0: every rank has
 * everything. */
size_t lk__plan_exchange_bytes(const lk_plan *plan);

/* Bytes of the gradient that this rank computes of a state: of its part of it, where the placement pass has cut it. */
size_t lk__plan_gradient_bytes(const lk_plan *plan, size_t state);

lk__plan_slices lk__plan_state_slices(const lk_plan *plan, size_t state, lk__plan_array array);
bool            lk__plan_has_array(const lk_plan *plan, size_t state, lk__plan_array array);
/* How its arrays are split, as ", values: 0 over 1", a dimension and axes; "": not at all. */
const char *lk__plan_splits_text(const lk_plan *plan, size_t state, char *text, size_t bytes);
bool        lk__plan_splits_state(const lk_plan *plan); /* some array of some state is divided into several slices */

/* What one owner updates of the trained states, in the order of their gradients. */
typedef struct lk__plan_owned {
    int     state;
    int64_t first, count; /* elements */
} lk__plan_owned;
/* owner: of the ranks that share this one's copy. How many; NULL: only counts. */
size_t lk__plan_list_owned(const lk_plan *plan, int owner, lk__plan_owned *owned);

lk__plan_slice lk__slices_at(const lk__plan_slices *slices, int part);
int64_t        lk__slices_elements(const lk__plan_slices *slices, int part); /* of that slice */
/* The elements of this rank's slice that one of its owners updates, row-major in it; and who updates one, with the
 * elements around it that are the same owner's. */
lk__range lk__slices_owned(const lk__plan_slices *slices, int owner);
int       lk__slices_owner(const lk__plan_slices *slices, int64_t element, lk__range *owned);
int       lk__slices_part(const lk__plan_slices *slices, int rank); /* which one a rank has */
/* The rank whose copy of a slice rank `near` reads: its own, or the copy of the rank that differs from it only in the
 * axes of the splits. */
int lk__slices_holder(const lk__plan_slices *slices, int part, int near);

/* Elements that follow each other both in the whole array, row-major, and in the memory of a slice. */
typedef struct lk__plan_run {
    int     part;
    int64_t first, at, count; /* in the whole array; in the slice */
} lk__plan_run;
/* The run, as long as there is one, that begins with element `first` of the whole array; or with element `at` of a
 * slice. There must be such an element. */
lk__plan_run lk__slices_find(const lk__plan_slices *slices, int64_t first);
lk__plan_run lk__slices_run(const lk__plan_slices *slices, int part, int64_t at);

#endif
