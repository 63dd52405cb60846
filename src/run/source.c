/* source.c - inputs that the device makes itself, from a data set in its memory or from samples that the host sends as
 * they are stored. A program has one source for training steps and one for evaluations; a step uses that of its kind,
 * and what the caller bound otherwise. */
#include "run/timeline.h"

#include <string.h>

struct lk__run_source {
    lk__device_gather gather;
    size_t            input[LK__DEVICE_FIELDS]; /* by field: its value id in the plan's graph */
    size_t            bytes;                    /* of this struct */
    bool              made[];                   /* by value id */
};

static lk_status find_inputs(const lk_program *p, lk__run_source *source)
{
    const lk_graph *g = p->plan->graph;
    for (int k = 0; k < source->gather.count; k++) {
        const char *name = source->gather.fields[k].name;
        size_t      i = 0;
        while (i < p->values && !(g->values[i].kind == LK__VALUE_INPUT && strcmp(g->values[i].name, name) == 0)) i++;
        if (i == p->values) return lk__fail(p->context, LK_ENOENT, "the model has no input \"%s\"", name);
        source->input[k] = i;
        source->made[i] = true;
    }
    return LK_OK;
}

static lk_status make_source(lk_program *p, const lk__device_gather *gather, lk__run_source **to)
{
    size_t bytes = sizeof **to + p->values * sizeof(bool);
    if (!gather) return LK_OK;
    lk__run_source *source = *to = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!source) return LK_ENOMEM;
    source->gather = *gather;
    source->bytes = bytes;
    return find_inputs(p, source);
}

lk_status lk__program_set_sources(lk_program *p, const lk__device_gather *train, const lk__device_gather *evaluate)
{
    lk__sources_free(p);
    lk_status status = make_source(p, train, &p->sources[0]);
    return status < 0 ? status : make_source(p, evaluate, &p->sources[1]);
}

void lk__sources_free(lk_program *p)
{
    p->source = NULL;
    for (int i = 0; i < 2; i++) {
        if (p->sources[i]) lk__free(p->context, LK_MEMORY_OTHER, p->sources[i], p->sources[i]->bytes);
        p->sources[i] = NULL;
    }
}

void lk__source_use(lk_program *p, const lk__run_source *source) { p->source = source; }

bool lk__source_sends(const lk_program *p) { return p->source && p->source->gather.by_row; }

bool lk__source_makes(const lk_program *p, size_t input) { return p->source && p->source->made[input]; }

const void *lk__bound_memory(const lk_program *p, size_t input)
{
    return lk__source_makes(p, input) ? p->memory.staged : p->bound[input];
}

const void *lk__source_samples(const lk_program *p, const lk__run_slot *slot, int field)
{
    return (const char *)p->bound[p->source->input[field]] + (size_t)slot->first * p->plan->source.row_bytes[field];
}

lk_status lk__source_gather(lk_program *p, const lk__run_slot *slot, lk__device_rows rows, const char *sent)
{
    lk__device_gather gather = p->source->gather;
    if (!slot->ids && slot->step.count > 0)
        return lk__fail(p->context, LK_EINVAL, "the device makes the inputs of this program: a step needs sample_ids");
    rows.rows = slot->step.count;
    rows.header = slot->staged;
    for (int i = 0; i < gather.count; i++) {
        rows.to[i] = (void *)lk__input_memory(p, slot, p->source->input[i]);
        if (sent) gather.fields[i].samples = sent + lk__plan_sent_offset(p->plan, i);
    }
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->kernels.gather(p->device, p->stream, &gather, &rows);
    return status < 0 ? status
                      : lk__timeline_after(p, p->stream,
                                           &(lk__run_unit){.name = "rows of the batch", .work = LK__WORK_KERNEL});
}
