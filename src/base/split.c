/* split.c - the part of a batch that each rank has. */
#include "base/split.h"

static int64_t round_up(int64_t n, int64_t parts) { return n / parts + (n % parts > 0); }

int lk__split_parts(const lk__split_job *job) { return job->leaves ? job->leaves : job->world; }

lk__range lk__split_own(const lk__split_job *job)
{
    return lk__split_part(lk__split_parts(job), job->world, job->rank);
}

lk__range lk__split_share(const lk__split_job *job, int64_t total)
{
    lk__range own = lk__split_own(job);
    int       parts = lk__split_parts(job);
    return (lk__range){lk__split(total, parts, own.first), lk__split(total, parts, own.end)};
}

/* The most leaves that a micro-batch of a rank has. */
static int64_t most_leaves(const lk__split_job *job)
{
    return round_up(round_up(job->leaves, job->world), job->micro_batches);
}

int64_t lk__split_largest(const lk__split_job *job, int64_t batch)
{
    int64_t part = round_up(batch, lk__split_parts(job));
    return job->leaves ? part : round_up(part, job->micro_batches);
}

int64_t lk__split_capacity(const lk__split_job *job, int64_t batch)
{
    return lk__split_largest(job, batch) * (job->leaves ? most_leaves(job) : 1);
}

int64_t lk__split_leaf_capacity(const lk__split_job *job, int64_t capacity)
{
    return job->leaves ? round_up(capacity, most_leaves(job)) : capacity;
}
