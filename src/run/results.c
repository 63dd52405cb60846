/* results.c - the results of a run that the host reads: loss and metrics of a batch and, with their reports, of all
 * ranks, and the norm of the gradient; and the numbers among them that the update needs. */
#include "run/interpreter.h"

#include "run/collective.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers ---- */

lk_status lk__program_number(const lk_program *p, const char *arena, const lk__plan_list *planned, int value,
                             double otherwise, double *number)
{
    float narrow;
    *number = otherwise;
    if (value < 0) return LK_OK;
    const void *data = lk__program_resolve(p, arena, p->memory.gradients, planned->places[value]);
    if (planned->graph->values[value].shape.dtype != LK_F32)
        return lk__device_read(p->device, p->stream, number, data, sizeof *number);
    lk_status status = lk__device_read(p->device, p->stream, &narrow, data, sizeof narrow);
    *number = (double)narrow;
    return status;
}

static lk_status read_numbers(const lk_program *p, const lk__run_slot *slot, const lk__plan_list *planned,
                              double *numbers)
{
    lk_status status = LK_OK;
    for (int i = 0; i < planned->numbers_count && status >= 0; i++)
        status = lk__program_number(p, slot->arena, planned, planned->numbers[i], lk__number_otherwise(p->plan, i),
                                    &numbers[i]);
    return status;
}

static double mean(double sum, double weight) { return weight != 0 ? sum / weight : 0; }

void lk__metrics_set(lk_program *p, const double *numbers)
{
    int count = (int)p->plan->graph->metrics_count;
    for (int i = 0; i < count; i++) {
        const double *pair = numbers + LK__NUMBER_METRICS + 2 * i;
        p->named[i] = (lk_named_metric){p->plan->graph->metrics[i].name, pair[0], pair[1], mean(pair[0], pair[1])};
    }
    double loss = lk__plan_mean_loss(p->plan, numbers);
    bool   several = p->plan->losses_count > 0; /* they have no common sum */
    memcpy(p->latest, numbers, (size_t)p->plan->evaluate.numbers_count * sizeof *numbers);
    p->metrics = (lk_metrics){.loss = loss,
                              .sum = several ? loss : numbers[LK__NUMBER_SUM],
                              .weight = several ? 1 : numbers[LK__NUMBER_WEIGHT],
                              .correct = numbers[LK__NUMBER_CORRECT],
                              .named = p->named,
                              .named_count = count};
}

/* ---- of a batch ---- */

lk_status lk__run_loss(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    double    numbers[LK__PLAN_NUMBERS];
    lk_status status = lk__collective_queue_wait(p); /* what they were computed from */
    (void)at, (void)next;
    if (status >= 0) status = read_numbers(p, lk__run_slot_at(p, run, 0), run->list, numbers);
    if (status < 0) return status;
    lk__metrics_set(p, numbers);
    return lk__check_ids(p, run->list);
}

lk_status lk__run_outputs(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    p->progress.evaluated = p->slots[0].step.count;
    return lk__run_loss(p, run, at, next);
}

/* Metrics of a micro-batch count when its gradients do. */
lk_status lk__run_numbers(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_list *planned = run->list;
    (void)at, (void)next;
    for (int i = 0; i < run->slots; i++) {
        double    numbers[LK__PLAN_NUMBERS], *to = lk__row_numbers(p, run->row + i);
        lk_status status = read_numbers(p, lk__run_slot_at(p, run, i), planned, numbers);
        if (status < 0) return status;
        for (int k = 0; k < planned->numbers_count; k++)
            to[k] = run->flags & LK__IF_ADDS ? to[k] + numbers[k] : numbers[k];
    }
    return LK_OK;
}

lk_status lk__run_leaf_numbers(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return lk__losses_keep_numbers(p);
}

/* ---- of all ranks ---- */

/* The update divides by the weight of all ranks. */
lk_status lk__use_reports(lk_program *p, const lk__plan_list *planned)
{
    double    all[LK__PLAN_NUMBERS];
    lk_status status = lk__share_ids(p);
    if (status < 0) return status;
    lk__add_reports(p, all);
    if (planned->numbers[LK__NUMBER_WEIGHT] < 0) all[LK__NUMBER_WEIGHT] = 1;
    lk__metrics_set(p, all);
    p->progress.weight = all[LK__NUMBER_WEIGHT];
    return LK_OK;
}

lk_status lk__run_report_step(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = lk__collective_queue_wait(p); /* a failure of theirs must be known before the update */
    (void)at, (void)next;
    if (status >= 0) status = lk__gather_reports(p);
    return status < 0 ? status : lk__use_reports(p, run->list);
}

/* All ranks have the same reports, so that all of them stop here. */
lk_status lk__check_losses(lk_program *p, int64_t step)
{
    int rank = 0, world = lk__plan_ranks(p->plan);
    while (rank < world && isfinite(lk__program_rank_sums(p, rank).sum)) rank++;
    if (rank == world) return LK_OK;
    double loss = lk__program_rank_sums(p, rank).sum;
    lk__drop_gradients(p);
    char whose[48] = "the loss";
    if (world > 1) snprintf(whose, sizeof whose, "the loss of rank %d", rank);
    return lk__fail(p->context, LK_ENAN, "step %lld: %s is %g: the update was skipped, and no state has changed",
                    (long long)step, whose, loss);
}

/* Gradients of the caller's own have no loss. */
lk_status lk__run_check_loss(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return p->progress.written ? LK_OK : lk__check_losses(p, p->step.step);
}

/* The weight is among the activations, which other sections may have overwritten since LK_SYNC. */
lk_status lk__run_weight(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_list *planned = run->list;
    int                  weight = planned->numbers[LK__NUMBER_WEIGHT];
    (void)at, (void)next;
    void *to = lk__program_resolve(p, p->slots[0].arena, p->memory.gradients, planned->places[weight]);
    return lk__device_write(p->device, p->stream, to, &p->progress.weight, sizeof p->progress.weight);
}

lk_status lk__run_divide(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return p->progress.weight == 1 ? LK_OK : lk__scale_gradients(p, 1 / p->progress.weight);
}

lk_status lk__run_norm(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_list *planned = run->list;
    lk_status            status = lk__collective_queue_end_update(p);
    (void)at, (void)next;
    if (status < 0) return status;
    return lk__program_number(p, p->slots[0].arena, planned, planned->norm, 0, &p->metrics.grad_norm);
}
