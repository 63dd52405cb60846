/* base/split.h - how a batch is split: over leaves or ranks, and a rank's share over micro-batches. Loader, planner,
 * program and trainer must agree on every row, so all of them call these functions. test_split.c compares it with its
 * definition. */
#ifndef LK__SPLIT_H
#define LK__SPLIT_H

#include <lockstep/base.h>

typedef struct lk__range {
    int64_t first, end;
} lk__range;

static inline int64_t lk__range_count(lk__range range) { return range.end - range.first; }

/* Where part `part` of `total` begins: total * part / parts, rounded down, without overflow of the product. Part
 * `parts` begins at the end, so the parts cover everything once, and their sizes differ by one at most. */
static inline int64_t lk__split(int64_t total, int64_t parts, int64_t part)
{
    return total / parts * part + total % parts * part / parts;
}

static inline lk__range lk__split_part(int64_t total, int64_t parts, int64_t part)
{
    return (lk__range){lk__split(total, parts, part), lk__split(total, parts, part + 1)};
}

/* How ranks share the batches of a job. */
typedef struct lk__split_job {
    int world, rank;
    int leaves;        /* 0: a rank's share is one part of the batch */
    int micro_batches; /* of a rank's share; at least 1; with leaves each is a run of them */
} lk__split_job;

/* Parts that a global batch is split into: the leaves, or one for each rank. */
int lk__split_parts(const lk__split_job *job);
/* The parts that this rank has. */
lk__range lk__split_own(const lk__split_job *job);
/* This rank's rows of a batch of `total`. */
lk__range lk__split_share(const lk__split_job *job, int64_t total);
/* The largest leaf or micro-batch of any rank, in batches of up to `batch` samples. */
int64_t lk__split_largest(const lk__split_job *job, int64_t batch);
/* The capacity of a rank's graph: one micro-batch; with leaves, the most leaves of one if each is as large as the
 * largest. And, from that capacity, the capacity of one leaf. */
int64_t lk__split_capacity(const lk__split_job *job, int64_t batch);
int64_t lk__split_leaf_capacity(const lk__split_job *job, int64_t capacity);

#endif
