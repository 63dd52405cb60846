/* program.c - binding inputs, splitting a batch into micro-batches or leaves, steps, and reading results; sections run
 * in section.c, and create.c makes programs. */
#include "run/program.h"

#include <math.h>
#include <string.h>

/* ---- inputs and step ---- */

static bool has_count(const lk__graph_value *v) { return v->kind == LK__VALUE_INPUT && v->shape.count_axis >= 0; }

lk_status lk__slot_set(lk_program *p, int index, int64_t first, int64_t count)
{
    const lk_graph *g = p->plan->graph;
    lk__run_slot   *slot = &p->slots[index];
    const lk_step  *s = &p->step;
    if (count < 0 || count > p->capacity)
        return lk__fail(p->context, LK_EINVAL, "a batch of %lld samples is out of range: the plan's capacity is %lld",
                        (long long)count, (long long)p->capacity);
    for (size_t i = 0; i < p->values; i++) {
        const lk__graph_value *v = &g->values[i];
        const char            *data = lk__bound_memory(p, i);
        if (v->kind != LK__VALUE_INPUT) continue;
        if (data && first > 0 && has_count(v))
            data += (size_t)first * (size_t)(lk__shape_elements(&v->shape) / v->shape.dims[0]) *
                    lk_dtype_size(v->shape.dtype);
        /* Kernels of a device with its own memory read copies, whose address does not change. */
        bool same = slot->staged ? !slot->inputs[i] == !data : slot->inputs[i] == data;
        slot->inputs[i] = data;
        if (same) continue;
        slot->train.samples = -1;
        if (index == 0) p->evaluate.samples = p->weights.samples = -1;
    }
    slot->first = first;
    slot->step.step = s->step;
    slot->step.epoch = s->epoch;
    slot->step.count = count;
    slot->step.seed = s->seed;
    slot->step.rate = s->rate;
    slot->ids = s->sample_ids ? s->sample_ids + first : NULL;
    slot->step.sample_ids = lk__ids_memory(p, slot);
    return LK_OK;
}

lk_status lk_program_bind(lk_program *p, const char *input, const void *data)
{
    const lk_graph *g = p->plan->graph;
    for (size_t i = 0; i < p->values; i++) {
        if (g->values[i].kind != LK__VALUE_INPUT || strcmp(g->values[i].name, input) != 0) continue;
        p->bound[i] = data;
        return lk__slot_set(p, 0, 0, p->slots[0].step.count);
    }
    return lk__fail(p->context, LK_ENOENT, "the model has no input \"%s\"", input);
}

lk_status lk__step_set(lk_program *p, const lk_step *step)
{
    if (step->step < 1)
        return lk__fail(p->context, LK_EINVAL, "the step is %lld; steps are counted from 1", (long long)step->step);
    double rate = step->rate == LK_RATE_OF_OPTIMIZER ? p->plan->lr : step->rate;
    if (!(rate >= 0) || !isfinite(rate))
        return lk__fail(p->context, LK_EINVAL,
                        "step %lld: the learning rate is %g; expected a finite number of at least 0 (LK_STEP_INIT uses "
                        "the optimizer's)",
                        (long long)step->step, rate);
    p->step = *step;
    p->step.rate = rate;
    return LK_OK;
}

lk_status lk_program_step(lk_program *p, const lk_step *step)
{
    lk_status status = lk__step_set(p, step);
    lk__source_use(p, p->sources[1]);
    return status < 0 ? status : lk__slot_set(p, 0, 0, step->count);
}

lk_status lk_program_run(lk_program *p, lk_section section)
{
    if ((unsigned)section >= LK_SECTION_COUNT)
        return lk__fail(p->context, LK_EINVAL, "unknown section %d", (int)section);
    if (section != LK_EVALUATE && !p->plan->trains)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it only evaluates");
    if (!p->division.by_hand && (section == LK_FORWARD || section == LK_BACKWARD))
        return lk__fail(p->context, LK_EINVAL,
                        "a program with leaves runs LK_FORWARD and LK_BACKWARD together: call lk_program_compute");
    lk_status status = section == LK_FORWARD ? lk__losses_weigh_slot(p) : LK_OK;
    return status < 0 ? status : lk__section_by_hand(p, section);
}

/* The samples of this rank may follow from those of the global batch. */
static lk_status check_samples(lk_program *p)
{
    const lk__plan_division *d = &p->division;
    int64_t                  rows = lk__part_row(p, d->here);
    if (rows == p->step.count && (!d->global || p->step.total >= rows)) return LK_OK;
    return lk__fail(
        p->context, LK_EINVAL, "this rank has %lld samples of a batch of %lld, but rank %d's %d of %d leaves hold %lld",
        (long long)p->step.count, (long long)p->step.total, lk__plan_rank(p->plan), d->here, d->parts, (long long)rows);
}

/* Gives the slots of a run their micro-batches or leaves. */
static lk_status place_slots(lk_program *p, const lk__schedule_run *run)
{
    lk_status status = LK_OK;
    for (int slot = 0; slot < run->slots && status >= 0; slot++) {
        int     part = run->part + slot * run->each;
        int64_t row = lk__part_row(p, part);
        status = lk__slot_set(p, run->slot + slot, row, lk__part_row(p, part + run->each) - row);
        lk__kernel_step *step = &p->slots[run->slot + slot].step;
        step->updates_buffers = slot == 0 && run->writes_buffers && p->store->writes_buffers;
        step->part = run->number + slot;
    }
    return status;
}

static const lk__plan_schedule *schedule_of(const lk_program *p)
{
    return p->progress.no_sync ? &p->held_schedule : &p->step_schedule;
}

lk_status lk_program_compute(lk_program *p, const lk_step *step)
{
    const lk__plan_schedule *s = schedule_of(p);
    if (!p->plan->trains)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it only evaluates");
    lk_status status = lk__step_set(p, step);
    lk__source_use(p, p->sources[0]);
    if (status >= 0) status = check_samples(p);
    if (status >= 0) status = lk__losses_weigh_step(p);
    p->progress.earlier = p->progress.pending > 0 && !p->progress.synced;
    for (size_t i = 0; i < s->count && s->runs[i].section != LK_UPDATE && status >= 0; i++) {
        if (s->runs[i].section == LK_FORWARD) status = place_slots(p, &s->runs[i]);
        double began = p->trace ? lk__now() : 0;
        if (status >= 0) status = lk__section_run(p, &s->runs[i]);
        lk__traced_run(p, &s->runs[i], began);
    }
    return status;
}

lk_status lk_program_train(lk_program *p, const lk_step *step)
{
    const lk__plan_schedule *s = schedule_of(p);
    if (p->queue) return lk__step_train(p, step);
    lk__program_allow_update(p);
    lk_status status = lk_program_compute(p, step);
    if (status < 0) p->progress.allows_update = false;
    return status < 0 ? status : lk__section_run(p, &s->runs[s->count - 1]);
}

void lk__program_allow_update(lk_program *p) { p->progress.allows_update = true; }

void lk_program_no_sync(lk_program *p, bool enable) { p->progress.no_sync = enable; }

void lk_program_metrics(const lk_program *p, lk_metrics *metrics) { *metrics = p->metrics; }

static const void *output_memory(const lk_program *p, int i)
{
    const lk__plan_list *planned = &p->plan->evaluate;
    lk__plan_place       place = planned->places[planned->outputs[i]];
    if (place.region == LK__IN_INPUT) return lk__input_memory(p, &p->slots[0], place.offset);
    return lk__program_resolve(p, p->slots[0].arena, p->memory.gradients, place);
}

const void *lk_program_output(const lk_program *p, int i)
{
    bool exists = i >= 0 && i < p->plan->evaluate.outputs_count;
    return exists && p->visible ? output_memory(p, i) : NULL;
}

lk_status lk_program_output_read(lk_program *p, int i, void *data, size_t bytes)
{
    const lk__plan_list *planned = &p->plan->evaluate;
    if (i < 0 || i >= planned->outputs_count)
        return lk__fail(p->context, LK_ENOENT, "the plan has %d outputs; there is no output %d", planned->outputs_count,
                        i);
    if (p->progress.evaluated < 0)
        return lk__fail(p->context, LK_EINVAL,
                        "output %d is not available: run LK_EVALUATE, and read its outputs before the next run", i);
    size_t size = lk__bytes_at_count(&planned->graph->values[planned->outputs[i]].shape, p->progress.evaluated);
    if (size != bytes)
        return lk__fail(p->context, LK_EINVAL, "output %d has %zu bytes for %lld samples, not %zu", i, size,
                        (long long)p->progress.evaluated, bytes);
    return lk__device_read(p->device, p->stream, data, output_memory(p, i), bytes);
}
