/* shared_gradient.c - the sum of all ranks' gradients where ranks share their state: each has its own gradients, or the
 * sums of its slices, until a caller reads or changes the whole. */
#include "run/shared.h"

#include "comm/hosts.h"
#include "run/interpreter.h"

static lk_status read_sum(lk_program *p, int state, void *data, size_t bytes)
{
    lk__shared_sum(p, state, 0, (int64_t)(bytes / lk_dtype_size(p->plan->graph->real)), data, 0);
    return LK_OK;
}

static lk_status gather_sums(lk_program *p)
{
    lk__run_shared *x = p->shared;
    lk_status       status = LK_OK;
    if (x->summed == LK__SUMMED_WHOLE) return LK_OK;
    if (x->summed == LK__SUMMED_NOWHERE) { /* others may still read these gradients */
        if ((status = lk__comm_barrier_host(p->batch)) < 0) return status;
        lk__shared_sum_own(p);
        if ((status = lk__comm_barrier_host(p->batch)) < 0) return status;
    }
    if ((status = lk__shared_wait_slices(p)) < 0) return status;
    for (size_t i = 0; i < p->plan->graph->states_count; i++)
        if (p->plan->states[i].trained)
            lk__shared_copy(p, (int)i, 0, lk__state_elements(p->plan, (int)i),
                            lk__gradient_set(p, 0) + p->plan->states[i].gradient_offset);
    if ((status = lk__comm_barrier_host(p->batch)) < 0) return status; /* until then others read this rank's slices */
    x->summed = LK__SUMMED_WHOLE;
    return LK_OK;
}

/* Other ranks may still read this one's. */
static lk_status await_readers(lk_program *p)
{
    return p->shared->summed == LK__SUMMED_WHOLE ? LK_OK : lk__comm_barrier_host(p->batch);
}

static void all_written(lk_program *p) { p->shared->summed = LK__SUMMED_WHOLE; }

const lk__run_gradients lk__gradients_of_sharers = {
    .forgotten = true, .read = read_sum, .gather = gather_sums, .reuse = await_readers, .written = all_written};

/* A loss without a weight: its sum is divided by that of all ranks where it is whole. */
lk_status lk__run_divide_shared(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = p->progress.weight == 1 ? LK_OK : gather_sums(p);
    return status < 0 ? status : lk__run_divide(p, run, at, next);
}
