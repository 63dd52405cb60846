/* report.c - the small all_gather at the end of a step: the reports of the ranks, and the loss's sums of every leaf,
 * which are added in the tree. They are one exchange, since each is a place where all ranks wait for the slowest. The
 * results are what the trainer reads. */
#include "run/collective.h"

#include "base/reduce.h"

#include <string.h>

lk_status lk__gather_leaves(lk_program *p, const char *name, const void *mine, size_t elements, lk_dtype type)
{
    lk__run_collectives *x = p->collectives;
    const lk_plan       *plan = p->plan;
    int                  parts = lk__plan_batch_parts(plan);
    size_t               leaves = (size_t)lk__plan_all_leaves(plan);
    size_t               bytes = leaves * elements * lk_dtype_size(type);
    for (int part = 0; part < parts; part++) {
        lk__range own = lk__plan_leaves(plan, part);
        x->displacements[part] = (size_t)own.first * elements;
        x->counts[part] = (size_t)lk__range_count(own) * elements;
    }
    if (!p->batch) {
        if (bytes) memcpy(x->gathered, mine, bytes);
        return LK_OK;
    }
    double    start = lk__now();
    lk_status status = lk_comm_all_gatherv(p->batch, mine, x->gathered, x->counts, x->displacements, type, NULL);
    double    end = lk__now();
    x->waited += end - start;
    lk__traced(p, name, start, end, bytes);
    return status;
}

void lk__reduce_gathered(const lk_program *p, size_t elements, lk_dtype type, lk_reduce_op op, void *out)
{
    const void *in[LK__REDUCE_MOST];
    int         leaves = lk__plan_all_leaves(p->plan);
    for (int i = 0; i < leaves; i++) in[i] = p->collectives->gathered + (size_t)i * elements * lk_dtype_size(type);
    lk__reduce(out, in, leaves, elements, type, op);
}

lk_status lk__program_add_numbers(lk_program *p, const double *mine, int numbers, double *out)
{
    if (numbers > LK__RUN_NUMBERS)
        return lk__fail(p->context, LK_EINVAL, "too many numbers (%d): at most %d can be exchanged at once", numbers,
                        LK__RUN_NUMBERS);
    lk_status status = lk__gather_leaves(p, "all_gather metrics", mine, (size_t)numbers, LK_F64);
    if (status >= 0) lk__reduce_gathered(p, (size_t)numbers, LK_F64, LK_SUM, out);
    return status;
}

lk_status lk__program_gather_numbers(lk_program *p, const double *mine, size_t count, double *all)
{
    if (!p->batch) {
        memcpy(all, mine, count * sizeof *all);
        return LK_OK;
    }
    double    start = lk__now();
    lk_status status = lk_comm_all_gather(p->batch, mine, all, count, LK_F64, NULL);
    lk__traced(p, "all_gather metrics", start, lk__now(), count * sizeof *all);
    return status;
}

lk_status lk__program_add_stages(lk_program *p, double *numbers, size_t count)
{
    lk_comm *group = lk__plan_stages(p->plan) > 1 ? lk__mesh_find_group(p->mesh, LK__PLAN_STAGE_AXES) : NULL;
    if (!group) return LK_OK;
    double    start = lk__now();
    lk_status status = lk_comm_all_reduce(group, numbers, numbers, count, LK_F64, LK_SUM, NULL);
    lk__traced(p, "all_reduce metrics", start, lk__now(), count * sizeof *numbers);
    return status;
}

/* ---- the exchange of LK_SYNC ---- */

/* This rank's report, then the numbers of its leaves; returns how many numbers that are. */
static size_t write_report(lk_program *p, double *mine)
{
    lk__run_collectives *x = p->collectives;
    size_t               rows = (size_t)p->division.rows, numbers = (size_t)p->plan->evaluate.numbers_count;
    lk__run_sums         here = {0, 0, 0};
    for (size_t i = 0; i < rows; i++) {
        const double *row = lk__row_numbers(p, (int)i);
        here.sum += row[LK__NUMBER_SUM];
        here.weight += row[LK__NUMBER_WEIGHT];
        here.correct += row[LK__NUMBER_CORRECT];
    }
    if (p->plan->losses_count) { /* the mean of this rank's samples: several losses have no common sum */
        double own[LK__PLAN_NUMBERS] = {0};
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < numbers; k++) own[k] += lk__row_numbers(p, (int)i)[k];
        here = (lk__run_sums){lk__plan_mean_loss(p->plan, own), 1, 0};
    }
    const double report[LK__RUN_REPORT] = {here.sum,
                                           here.weight,
                                           here.correct,
                                           x->waited,
                                           p->stop_request,
                                           p->data,
                                           p->ids.invalid_text[0] != 0,
                                           p->progress.allows_update};
    memcpy(mine, report, sizeof report);
    memcpy(mine + LK__RUN_REPORT, p->numbers, rows * numbers * sizeof *mine);
    x->waited = 0;
    p->progress.allows_update = false;
    return LK__RUN_REPORT + rows * numbers;
}

/* Adds to the numbers of the ranks in this one's stage those of the same parts in the others: each number is that of
 * one stage, and 0 in the others. */
static void add_stages(const lk_program *p)
{
    const lk_plan       *plan = p->plan;
    lk__run_collectives *x = p->collectives;
    double              *all = (double *)x->gathered;
    for (int part = 0; part < lk__plan_batch_parts(plan); part++) {
        int rank = lk__plan_batch_rank(plan, part);
        for (int stage = 0; stage < lk__plan_stages(plan); stage++) {
            int other = lk__mesh_member(&plan->mesh, LK__PLAN_STAGE_AXES, rank, stage);
            for (size_t i = LK__RUN_REPORT; i < x->counts[rank] && other != rank; i++)
                all[x->displacements[rank] + i] += all[x->displacements[other] + i];
        }
    }
}

lk_status lk__gather_reports(lk_program *p)
{
    lk__run_collectives *x = p->collectives;
    const lk_plan       *plan = p->plan;
    size_t               numbers = (size_t)plan->evaluate.numbers_count, at = 0;
    size_t               own = write_report(p, (double *)x->mine);
    for (int rank = 0; rank < lk__plan_ranks(plan); rank++) {
        lk__range leaves = lk__plan_leaves(plan, lk__plan_batch_part_of(plan, rank));
        x->displacements[rank] = at;
        at += x->counts[rank] = LK__RUN_REPORT + (size_t)lk__range_count(leaves) * numbers;
    }
    if (p->comm) {
        double    start = lk__now();
        lk_status status =
            lk_comm_all_gatherv(p->comm, x->mine, x->gathered, x->counts, x->displacements, LK_F64, NULL);
        double end = lk__now();
        x->waited += end - start;
        lk__traced(p, "all_gather metrics", start, end, own * sizeof(double));
        if (status < 0) return status;
    } else {
        memcpy(x->gathered, x->mine, own * sizeof(double));
    }
    for (int i = 0; i < lk__plan_ranks(plan); i++) {
        const double *all = (const double *)x->gathered + x->displacements[i];
        x->ranks[i] = (lk__run_sums){all[0], all[1], all[2]};
        x->reports[i] = (lk__run_report){all[3], all[4], all[5], all[6]};
        p->progress.update_allowed = (i == 0 || p->progress.update_allowed) && all[7] != 0;
    }
    add_stages(p);
    return LK_OK;
}

void lk__add_reports(const lk_program *p, double *out)
{
    const lk__run_collectives *x = p->collectives;
    size_t                     numbers = (size_t)p->plan->evaluate.numbers_count;
    const void                *in[LK__REDUCE_MOST];
    int                        leaves = 0;
    for (int part = 0; part < lk__plan_batch_parts(p->plan); part++) {
        int           rank = lk__plan_batch_rank(p->plan, part);
        const double *all = (const double *)x->gathered + x->displacements[rank] + LK__RUN_REPORT;
        for (size_t i = 0; LK__RUN_REPORT + i * numbers < x->counts[rank]; i++) in[leaves++] = all + i * numbers;
    }
    lk__reduce(out, in, leaves, numbers, LK_F64, LK_SUM);
}

void lk__program_report(lk_program *p, bool stop_request, double data)
{
    p->stop_request = stop_request;
    p->data = data;
}

bool lk__program_stop_requested(const lk_program *p)
{
    bool any = false;
    for (int i = 0; i < lk__plan_ranks(p->plan); i++) any |= p->collectives->reports[i].stop_request > 0;
    return any;
}
lk__run_report lk__program_rank_report(const lk_program *p, int rank) { return p->collectives->reports[rank]; }
lk__run_sums   lk__program_rank_sums(const lk_program *p, int rank) { return p->collectives->ranks[rank]; }
const double  *lk__program_numbers(const lk_program *p) { return p->latest; }
