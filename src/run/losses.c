/* losses.c - several losses that are added, each divided by its own weight in the global batch. The weights of all
 * micro-batches or leaves of this rank are computed before the first forward of a step, from inputs alone
 * (plan/losses.c), and added over the ranks before the first backward, in the tree: with leaves they are the same bits
 * for any number of ranks. */
#include "run/collective.h"
#include "run/interpreter.h"

#include <string.h>

static size_t weights_bytes(const lk_program *p)
{
    return (size_t)p->division.rows * (size_t)p->plan->losses_count * sizeof *p->losses.weights;
}

lk_status lk__losses_create(lk_program *p)
{
    size_t bytes = weights_bytes(p);
    if (bytes && !(p->losses.weights = lk__alloc(p->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    return LK_OK;
}

void lk__losses_free(lk_program *p)
{
    if (p->losses.weights) lk__free(p->context, LK_MEMORY_OTHER, p->losses.weights, weights_bytes(p));
}

static bool has_several(const lk_program *p) { return p->plan->trains && p->plan->losses_count > 0; }

/* ---- weights of this rank ---- */

static lk_status begin_step(lk_program *p)
{
    if (p->division.adds && p->progress.pending > 0 && !p->progress.synced)
        return lk__fail(
            p->context, LK_EINVAL,
            "each of several losses is divided by its own weight over the whole step, so LK_FORWARD cannot follow "
            "LK_BACKWARD before the update: let lk_program_compute or lk_program_train run the micro-batches");
    p->losses.has_scales = false;
    if (p->losses.weights) memset(p->losses.weights, 0, weights_bytes(p));
    return LK_OK;
}

/* Elements of a value at the slot's count. */
static double count_elements(const lk__graph_shape *s, int64_t samples)
{
    return (double)(lk__bytes_at_count(s, samples) / lk_dtype_size(s->dtype));
}

/* Adds the weights of slot 0's samples. */
static lk_status weigh_samples(lk_program *p, double *weights)
{
    const lk_plan *plan = p->plan;
    int64_t        samples = p->slots[0].step.count;
    lk_status      status = LK_OK;
    if (plan->weights.order_count) {
        lk__drop_activations(p); /* activations are overwritten */
        lk__schedule_run run = lk__schedule_run_of(&p->plan->weights, LK__IF_WAITED);
        if ((status = lk__interpret(p, &run)) < 0) return status;
    }
    for (int i = 0; i < plan->losses_count && status >= 0; i++) {
        const lk__plan_loss *loss = &plan->losses[i];
        double               weight = 1;
        if (loss->weigh == LK__WEIGH_ELEMENTS) weight = count_elements(&loss->elements, samples);
        if (loss->weigh == LK__WEIGH_COMPUTED)
            status = lk__program_number(p, p->slots[0].arena, &plan->weights, plan->weights.numbers[i], 0, &weight);
        weights[i] += weight;
    }
    return status;
}

lk_status lk__losses_weigh_slot(lk_program *p)
{
    if (!has_several(p)) return LK_OK;
    lk_status status = begin_step(p);
    return status < 0 ? status : weigh_samples(p, p->losses.weights);
}

/* Part by part, into the row of each or into that of all. */
lk_status lk__losses_weigh_step(lk_program *p)
{
    const lk__plan_division *d = &p->division;
    if (!has_several(p)) return LK_OK;
    lk_status status = begin_step(p);
    for (int i = 0; i < d->here && status >= 0; i++) {
        int64_t first = lk__part_row(p, i);
        status = lk__slot_set(p, 0, first, lk__part_row(p, i + 1) - first);
        if (status >= 0) status = weigh_samples(p, p->losses.weights + i % d->rows * p->plan->losses_count);
    }
    return status;
}

/* ---- before a backward ---- */

static lk_status add_ranks(lk_program *p)
{
    const lk_plan *plan = p->plan;
    double         all[LK_MAX_LOSSES];
    lk_status      status = lk__program_add_numbers(p, p->losses.weights, plan->losses_count, all);
    for (int i = 0; i < plan->losses_count && status >= 0; i++) /* a loss without labels has no gradient */
        p->losses.scales[i] = all[i] != 0 ? plan->losses[i].factor / all[i] : 0;
    p->losses.has_scales = status >= 0;
    return status;
}

static lk_status write_scale(lk_program *p, const lk__run_slot *slot, int i)
{
    const lk__plan_list *planned = &p->plan->train;
    int                  value = p->plan->losses[i].scale;
    const double         wide = p->losses.scales[i];
    const float          narrow = (float)wide;
    bool                 f32 = planned->graph->values[value].shape.dtype == LK_F32;
    if (planned->places[value].region != LK__IN_ACTIVATIONS)
        return LK_OK; /* nothing reads it: a loss without gradient */
    void *to = lk__program_resolve(p, slot->arena, p->memory.gradients, planned->places[value]);
    return lk__device_write(p->device, p->stream, to, f32 ? (const void *)&narrow : &wide,
                            f32 ? sizeof narrow : sizeof wide);
}

/* The weights are added over all ranks once in a step; what each gradient is multiplied by is written in every
 * backward. */
lk_status lk__run_loss_scales(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)at, (void)next;
    lk_status status = p->losses.has_scales ? LK_OK : add_ranks(p);
    for (int slot = 0; slot < run->slots; slot++)
        for (int i = 0; i < p->plan->losses_count && status >= 0; i++)
            status = write_scale(p, lk__run_slot_at(p, run, slot), i);
    return status;
}

lk_status lk__losses_keep_numbers(lk_program *p)
{
    const lk__plan_list *planned = &p->plan->train;
    lk_status            status = LK_OK;
    for (int i = 0; i < p->plan->losses_count && status >= 0; i++) {
        int    number = lk__number_losses(p->plan) + 2 * i, value = planned->numbers[number];
        double sum;
        if (p->plan->losses[i].weigh != LK__WEIGH_RUNS) continue;
        status = lk__program_number(p, p->slots[0].arena, planned, value, 0, &sum);
        for (int leaf = 0; leaf < p->division.here && status >= 0; leaf++) lk__row_numbers(p, leaf)[number] = sum;
    }
    return status;
}
