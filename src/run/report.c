/* report.c - the small all_gathers at the end of a step: the loss's sums of every leaf, added in the tree, and the reports of the ranks.
 * Their results are what the trainer reads. */
#include "run/collective.h"

#include "base/reduce.h"

#include <string.h>

lk_status lk__gather_leaves(lk_program *p, const char *name, const void *mine, size_t elements, lk_dtype type)
{
    lk__run_collectives *x = p->collectives;
    const lk_parallel   *parallel = &p->plan->parallel;
    size_t               leaves = parallel->leaves ? (size_t)parallel->leaves : (size_t)parallel->world;
    size_t               bytes = leaves * elements * lk_dtype_size(type);
    for (int rank = 0; rank < parallel->world; rank++) {
        lk__range own = lk__plan_leaves(parallel, rank);
        x->displacements[rank] = (size_t)own.first * elements;
        x->counts[rank] = (size_t)lk__range_count(own) * elements;
    }
    if (!p->comm) {
        if (bytes) memcpy(x->gathered, mine, bytes);
        return LK_OK;
    }
    double    start = lk__now();
    lk_status status = lk_comm_all_gatherv(p->comm, mine, x->gathered, x->counts, x->displacements, type, NULL);
    double    end = lk__now();
    x->waited += end - start;
    lk__traced(p, name, start, end, bytes);
    return status;
}

void lk__reduce_gathered(const lk_program *p, size_t elements, lk_dtype type, lk_reduce_op op, void *out)
{
    const lk_parallel *parallel = &p->plan->parallel;
    const void        *in[LK__REDUCE_MOST];
    int                leaves = parallel->leaves ? parallel->leaves : parallel->world;
    for (int i = 0; i < leaves; i++) in[i] = p->collectives->gathered + (size_t)i * elements * lk_dtype_size(type);
    lk__reduce(out, in, leaves, elements, type, op);
}

lk_status lk__program_add_numbers(lk_program *p, const double *mine, int numbers, double *out)
{
    if (numbers > LK__RUN_NUMBERS)
        return lk__fail(p->context, LK_EINVAL, "%d numbers are too many; at most %d are exchanged at once", numbers,
                        LK__RUN_NUMBERS);
    lk_status status = lk__gather_leaves(p, "all_gather metrics", mine, (size_t)numbers, LK_F64);
    if (status >= 0) lk__reduce_gathered(p, (size_t)numbers, LK_F64, LK_SUM, out);
    return status;
}

/* The sums over each rank's samples, and the ranks' reports. */
lk_status lk__gather_reports(lk_program *p)
{
    lk__run_collectives *x = p->collectives;
    lk__run_sums         here = {0, 0, 0};
    for (int i = 0; i < lk__leaves_here(p); i++) {
        const double *numbers = lk__leaf_numbers(p, i);
        here.sum += numbers[LK__NUMBER_SUM];
        here.weight += numbers[LK__NUMBER_WEIGHT];
        here.correct += numbers[LK__NUMBER_CORRECT];
    }
    double mine[] = {here.sum, here.weight, here.correct, x->waited, p->stop_request, p->data, p->invalid_text[0] != 0};
    double *all = (double *)x->gathered;
    size_t  numbers = sizeof mine / sizeof *mine;
    x->waited = 0;
    if (!p->comm) {
        memcpy(all, mine, sizeof mine);
    } else {
        double    start = lk__now();
        lk_status status = lk_comm_all_gather(p->comm, mine, all, numbers, LK_F64, NULL);
        if (status < 0) return status;
        lk__traced(p, "all_gather rank status", start, lk__now(), sizeof mine);
    }
    for (int i = 0; i < p->plan->parallel.world; i++, all += numbers) {
        x->ranks[i] = (lk__run_sums){all[0], all[1], all[2]};
        x->reports[i] = (lk__run_report){all[3], all[4], all[5], all[6]};
    }
    return LK_OK;
}

void lk__program_report(lk_program *p, bool stop_request, double data)
{
    p->stop_request = stop_request;
    p->data = data;
}

bool lk__program_stop_requested(const lk_program *p)
{
    bool any = false;
    for (int i = 0; i < p->plan->parallel.world; i++) any |= p->collectives->reports[i].stop_request > 0;
    return any;
}
lk__run_report lk__program_rank_report(const lk_program *p, int rank) { return p->collectives->reports[rank]; }
lk__run_sums   lk__program_rank_sums(const lk_program *p, int rank) { return p->collectives->ranks[rank]; }
