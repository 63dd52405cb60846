/* shared_hosts.c - sums of gradients over several hosts that backward's collectives do not compute: sums over leaves,
 * where a rank holds several subtrees, or ranks hold subtrees of different sizes. The leaves of a host are one subtree:
 * an owner sums its slices over them straight from the memory of the host, then with the owners of the same slices on
 * the other hosts. */
#include "run/shared.h"

#include "comm/hosts.h"
#include "run/collective.h"

lk_status lk__shared_exchange(lk_program *p)
{
    lk__run_shared *x = p->shared;
    const lk_plan  *plan = p->plan;
    lk_status       status = LK_OK;
    lk__shared_sum_own(p);
    double start = lk__now();
    size_t sent = 0;
    for (size_t i = 0; i < plan->buckets_count && status >= 0; i++) {
        const lk__plan_bucket *b = &plan->buckets[i];
        size_t                 slice = lk__slice_bytes(plan, b, b->bytes);
        status = lk__comm_all_reduce_across(p->batch,
                                            lk__gradient_set(p, 0) + b->offset + (size_t)lk__plan_own(plan) * slice,
                                            slice / lk_dtype_size(b->dtype), b->dtype, LK_SUM);
        sent += slice;
    }
    double end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, "all_reduce of slices between hosts", start, end, sent);
    x->summed = LK__SUMMED_SLICES;
    x->slices_pending = true;
    /* Whoever runs the sections may read the gradient next, alone. */
    return status < 0 || p->progress.update_allowed ? status : lk__shared_wait_slices(p);
}

lk_status lk__shared_wait_slices(lk_program *p)
{
    if (!p->shared->slices_pending) return LK_OK;
    double    start = lk__now();
    lk_status status = lk__comm_barrier_host(p->batch);
    double    end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, "barrier slices", start, end, 0);
    p->shared->slices_pending = status < 0;
    return status;
}
