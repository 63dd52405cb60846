/* traced.c - the events that a program records in a trace. */
#include "run/program.h"

#include <stdio.h>

enum { NAME = 128 };

static void name_list(lk__run_list *list, char *names)
{
    for (size_t i = 0; i < list->count; i++, names += NAME) {
        lk__node_text(list->planned->graph, &list->planned->graph->nodes[list->instructions[i].node], names, NAME);
        list->instructions[i].name = names;
    }
}

/* "all_reduce bucket 1, 8.1 MiB": numbered as in lk_plan_step. */
static void name_bucket(const lk_program *p, size_t index, char *name)
{
    double      bytes = (double)lk__bucket_sent(p->plan, index);
    bool        large = bytes >= 1048576;
    const char *how = lk__exchange_by_slices(p) ? "all_to_all and all_gather" : "all_reduce";
    snprintf(name, NAME, "%s bucket %zu, %.1f %s", how, index, bytes / (large ? 1048576 : 1024), large ? "MiB" : "KiB");
}

/* Events of a step besides its kernels: buckets and sums of batch norm are at most as many as the instructions. */
enum { OTHER_EVENTS = 64 };

int64_t lk__program_trace_events(const lk_program *p)
{
    const lk_plan *plan = p->plan;
    int64_t        events = OTHER_EVENTS;
    for (int i = 0; i < plan->slots; i++) events += (int64_t)p->slots[i].train.count;
    if (plan->parallel.leaves && !plan->batch_leaves) events *= (plan->sets + plan->slots - 1) / plan->slots;
    return events * plan->parallel.micro_batches;
}

lk_status lk__program_trace(lk_program *p, lk__trace *trace)
{
    size_t slots = (size_t)p->plan->slots, each = p->slots[0].train.count, buckets = p->plan->buckets_count,
           bytes = (buckets + slots * each + p->evaluate.count) * NAME;
    if (trace && !p->trace_names) {
        if (!(p->trace_names = lk__alloc(p->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
        p->trace_names_bytes = bytes;
        char *names = p->trace_names;
        for (size_t i = 0; i < buckets; i++, names += NAME) name_bucket(p, i, names);
        for (size_t i = 0; i < slots; i++, names += each * NAME) name_list(&p->slots[i].train, names);
        name_list(&p->evaluate, names);
    }
    if (trace) {
        lk__trace_name_track(trace, LK__TRACK_STEPS, "steps");
        lk__trace_name_track(trace, LK__TRACK_COMPUTE, "compute");
        lk__trace_name_track(trace, LK__TRACK_COLLECTIVES, "collectives");
    }
    p->trace = trace;
    return LK_OK;
}

void lk__program_trace_step(const lk_program *p, double began, double data, double ended)
{
    lk__trace_event step = {"step", LK__TRACE_STEP, LK__TRACK_STEPS, began, ended, 0};
    lk__trace_event wait = {"data", LK__TRACE_DATA, LK__TRACK_STEPS, began, began + data, 0};
    lk__trace_add(p->trace, &step);
    lk__trace_add(p->trace, &wait);
}

void lk__traced(const lk_program *p, const char *name, double began, double ended, size_t bytes)
{
    if (!p->trace) return;
    lk__trace_add(p->trace, &(lk__trace_event){.name = name,
                                               .kind = LK__TRACE_COLLECTIVE,
                                               .track = LK__TRACK_COLLECTIVES,
                                               .begin = began,
                                               .end = ended,
                                               .bytes = (int64_t)bytes});
}

void lk__traced_bucket(const lk_program *p, size_t index, double began, double ended)
{
    if (p->trace) lk__traced(p, p->trace_names + index * NAME, began, ended, lk__bucket_sent(p->plan, index));
}
