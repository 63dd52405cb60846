/* traced.c - the events that a program records in a trace. */
#include "run/collective.h"
#include "run/timeline.h"

#include <stdio.h>

enum { NAME = 128 };

/* "all_reduce bucket 1, 8.1 MiB": numbered as in lk_plan_step. */
static void name_bucket(const lk_program *p, const lk__run_instruction *in, char *name)
{
    double bytes = (double)lk__bucket_sent(p->plan, (size_t)in->bucket);
    bool   large = bytes >= 1048576;
    snprintf(name, NAME, "%s bucket %d, %.1f %s", in->how, in->bucket, bytes / (large ? 1048576 : 1024),
             large ? "MiB" : "KiB");
}

/* "all_reduce batch norm sums": by the operand's name in the descriptor of the operation that makes it. */
static void name_collective(const lk_program *p, const lk_graph *g, const lk__run_instruction *in, char *name)
{
    const lk__graph_node  *n = &g->nodes[in->node];
    const lk__graph_value *x = &g->values[n->in[0]];
    const char            *how = in->how ? in->how : lk__op_name(n->op), *what = "values";
    if (x->kind == LK__VALUE_UNIT) what = "parameters";
    if (in->bucket >= 0) {
        name_bucket(p, in, name);
        return;
    }
    for (int i = 0; x->kind == LK__VALUE_RESULT && i < g->nodes[x->node].outputs; i++)
        if (g->nodes[x->node].out[i] == n->in[0]) what = lk__op_find(g->nodes[x->node].op)->out[i].name;
    snprintf(name, NAME, "%s %s", how, what);
}

/* "send to stage 1". */
static void name_transfer(const lk_graph *g, const lk__run_instruction *in, char *name)
{
    const lk__graph_node *n = &g->nodes[in->node];
    snprintf(name, NAME, "%s stage %d", n->op == LK__OP_send ? "send to" : "receive from", n->attrs.transfer.stage);
}

static void name_list(const lk_program *p, lk__run_list *list, char *names)
{
    const lk_graph *g = list->planned->graph;
    for (size_t i = 0; i < list->count; i++, names += NAME) {
        const lk__run_instruction *in = &list->instructions[i];
        if (in->node < 0)
            snprintf(names, NAME, "%s", lk__action_name(in->action));
        else if (lk__action_transfers(in->action))
            name_transfer(g, in, names);
        else if (lk__action_kind_of(in->action) == LK__IS_START)
            name_collective(p, g, in, names);
        else
            lk__node_text(g, &g->nodes[in->node], names, NAME);
        list->instructions[i].name = names;
    }
}

/* Of a step besides its instructions: the step, its data, metrics, reports. Of an instruction on a GPU: kernels, on
 * average. */
enum { OTHER_EVENTS = 64, KERNELS_EACH = 4 };

int64_t lk__program_trace_events(const lk_program *p)
{
    const lk_plan *plan = p->plan;
    int64_t        events = OTHER_EVENTS;
    for (int i = 0; i < plan->slots; i++) events += (int64_t)(p->slots[i].train.count + p->weights.count);
    if (p->device->backend->memory.event_seconds) events = KERNELS_EACH * events + OTHER_EVENTS;
    int64_t parts = 0;
    for (size_t i = 0; i < p->step_schedule.count; i++) parts += p->step_schedule.runs[i].section == LK_FORWARD;
    if (p->plan->pipeline) events += (int64_t)p->step_schedule.count;
    return parts > 1 ? events * parts : events;
}

/* ---- runs of stages ---- */

/* As lk_plan_timeline names them. */
enum { FORWARD, BACKWARD, WEIGHTS, RUN_KINDS };
static const char *const run_names[RUN_KINDS] = {"forward", "backward", "weight gradient"};

static char *run_name(const lk_program *p, int part, int kind)
{
    return p->trace_runs + ((size_t)part * RUN_KINDS + (size_t)kind) * NAME;
}

static size_t run_names_bytes(const lk_program *p)
{
    return p->plan->pipeline ? (size_t)p->division.here * RUN_KINDS * NAME : 0;
}

static void name_runs(lk_program *p, char *names)
{
    if (!p->plan->pipeline) return;
    p->trace_runs = names;
    for (int part = 0; part < p->division.here; part++)
        for (int kind = 0; kind < RUN_KINDS; kind++)
            snprintf(run_name(p, part, kind), NAME, "%s %d", run_names[kind], part);
}

void lk__traced_run(const lk_program *p, const lk__schedule_run *run, double began)
{
    int kind = run->section == LK_FORWARD ? FORWARD : run->half == LK__HALF_WEIGHTS ? WEIGHTS : BACKWARD;
    if (!p->trace || !p->trace_runs || run->section > LK_BACKWARD || run->receives == LK__RECEIVES_ALONE ||
        run->each == 0)
        return;
    lk__trace_add(p->trace, &(lk__trace_event){.name = run_name(p, run->part, kind),
                                               .kind = LK__TRACE_RUN,
                                               .track = LK__TRACK_RUNS,
                                               .begin = began,
                                               .end = lk__now()});
}

/* ---- the whole program ---- */

lk_status lk__program_trace(lk_program *p, lk__trace *trace)
{
    size_t slots = (size_t)p->plan->slots, each = p->slots[0].train.count,
           bytes = (slots * each + p->evaluate.count + p->weights.count) * NAME + run_names_bytes(p);
    if (trace && !p->trace_names) {
        if (!(p->trace_names = lk__alloc(p->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
        p->trace_names_bytes = bytes;
        char *names = p->trace_names;
        for (size_t i = 0; i < slots; i++, names += each * NAME) name_list(p, &p->slots[i].train, names);
        name_list(p, &p->evaluate, names);
        if (p->weights.count) name_list(p, &p->weights, names + p->evaluate.count * NAME);
        name_runs(p, names + (p->evaluate.count + p->weights.count) * NAME);
    }
    if (trace) {
        lk__trace_name_track(trace, LK__TRACK_STEPS, "steps");
        lk__trace_name_track(trace, LK__TRACK_COLLECTIVES, "collectives");
        if (p->plan->pipeline) lk__trace_name_track(trace, LK__TRACK_RUNS, "micro-batches");
    }
    lk_status status = lk__timeline_set(p, p->profile, trace);
    if (status < 0 || !trace) return status;
    if (lk__timeline_on(p)) {
        lk__trace_name_track(trace, LK__TRACK_KERNELS, "GPU kernels");
        lk__trace_name_track(trace, LK__TRACK_COPIES, "GPU copies");
    } else {
        lk__trace_name_track(trace, LK__TRACK_COMPUTE, "compute");
    }
    return LK_OK;
}

void lk__program_trace_step(const lk_program *p, double began, double data, double ended)
{
    lk__trace_event step = {"step", LK__TRACE_STEP, LK__TRACK_STEPS, began, ended, 0};
    lk__trace_event wait = {"data", LK__TRACE_DATA, LK__TRACK_STEPS, began, began + data, 0};
    lk__trace_add(p->trace, &step);
    lk__trace_add(p->trace, &wait);
    if (p->trace && p->plan->expert_axes) lk__routes_trace(p, began);
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
