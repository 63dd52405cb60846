/* collective.c - the collectives among the instructions: buckets of gradients, and values such as the sums of
 * synchronised batch norm. One call serves all slots: over leaves it combines the values of all slots; along an axis
 * that cuts values, each slot has its own collective, one after the other. A start that overlaps leaves a work in
 * flight, which its wait takes; other starts run to the end. */
#define _GNU_SOURCE
#include "run/collective.h"
#include "run/interpreter.h"

#include "comm/comm.h"
#include "comm/hosts.h"

#include <sched.h>
#include <string.h>

lk__run_collective *lk__collective_at(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_collectives *x = p->collectives;
    const lk__run_instruction *in = lk__run_at(p, run, at);
    size_t first = in->bucket >= 0 ? 0 : (size_t)run->slot * x->each; /* buckets are once for all slots */
    if (run->list == &p->plan->weights) return NULL;
    return &x->all[(run->list == &p->plan->evaluate ? x->evaluate : first) + (size_t)in->collective];
}

static lk_work **work_of(lk__run_collective *c) { return c && !c->at_once ? &c->work : NULL; }

/* ---- buckets ---- */

/* Of a state that the ranks of a host share: each gets the sum of its slice. */
lk_status lk__run_start_scatter(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective    *c = lk__collective_at(p, run, at);
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    lk_dtype               type = lk__bucket_type(p->plan, b);
    char                  *data = p->memory.gradients + lk__bucket_place(p->plan, b);
    size_t                 slice = lk__slice_bytes(p->plan, b, lk__bucket_sent(p->plan, (size_t)c->bucket));
    unsigned               axes = lk__run_at(p, run, at)->call.attrs->mesh; /* not 0: of experts */
    (void)next;
    if (axes && lk__mesh_extent(&p->plan->mesh, axes) == 1) return LK_OK;
    return lk__comm_reduce_scatter_host(axes ? lk__run_group(p, axes) : p->collectives->bulk, data,
                                        data + (size_t)lk__bucket_own(p->plan, b) * slice, slice / lk_dtype_size(type),
                                        type, LK_SUM, &c->work);
}

/* Adds the time of a call that was waited for, and records it. */
static void end_call(lk_program *p, const lk__run_instruction *in, double start, size_t bytes)
{
    double end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, in->name, start, end, bytes);
}

lk_status lk__run_start_bucket(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective    *c = lk__collective_at(p, run, at);
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    char                  *data = lk__exchanged(p, p->memory.gradients + lk__bucket_place(p->plan, b));
    double                 start = lk__now();
    unsigned               axes = lk__run_at(p, run, at)->call.attrs->mesh; /* not 0: of experts */
    (void)next;
    if (axes && lk__mesh_extent(&p->plan->mesh, axes) == 1) return LK_OK;
    lk_comm      *group = axes ? lk__run_group(p, axes) : p->collectives->bulk;
    lk__comm_call call = {.kind = LK__ALL_REDUCE,
                          .type = lk__bucket_type(p->plan, b),
                          .reduce = LK_SUM,
                          .count = b->bytes / lk_dtype_size(b->dtype),
                          .send = data,
                          .recv = data,
                          .site = LK_HERE};
    if (p->group.queued) return lk__collective_queue(p, c, group, &call);
    lk_status status = lk__comm_run(group, &call, work_of(c));
    if (c->work)
        p->collectives->waited += lk__now() - start;
    else
        end_call(p, lk__run_at(p, run, at), start, lk__bucket_sent(p->plan, (size_t)c->bucket));
    return status;
}

lk_status lk__run_start_slices(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    double                     start = lk__now();
    (void)next;
    lk_status status = lk__leaf_tree_reduce(p, &p->plan->buckets[in->bucket]);
    end_call(p, in, start, lk__bucket_sent(p->plan, (size_t)in->bucket));
    return status;
}

lk_status lk__run_start_sources(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    double                     start = lk__now();
    (void)next;
    lk_status status = lk__expert_tree_reduce(p, &p->plan->buckets[in->bucket]);
    end_call(p, in, start, lk__bucket_sent(p->plan, (size_t)in->bucket));
    return status;
}

/* ---- values within forward and backward ---- */

static lk__comm_kind               kind_of(const lk__run_instruction *in) { return lk__op_find(in->op)->collective; }
static const lk__collective_facts *facts_of(const lk__run_instruction *in) { return &lk__collectives[kind_of(in)]; }

/* Gathers what `mine` has of this rank's leaves on all ranks, adds it, and writes the result to all slots. */
static lk_status reduce_leaves(lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    const lk__kernel_operand  *source = &in->call.in[0];
    size_t                     elements = (size_t)lk__operand_elements(source);
    char                      *mine = p->collectives->mine;
    lk_status                  status = lk__gather_leaves(p, in->name, mine, elements, source->dtype);
    if (status < 0) return status;
    size_t made = (size_t)lk__operand_elements(&in->call.out[0]) * lk_dtype_size(in->call.out[0].dtype);
    const lk__collective_facts *facts = facts_of(in);
    if (facts->sends_parts && !facts->reduces)
        return lk__fail(p->context, LK_EUNSUPPORTED, "%s is not supported over leaves: only reductions and gathers are",
                        facts->name);
    if (facts->reduces) lk__reduce_gathered(p, elements, source->dtype, in->call.attrs->reduction, mine);
    for (int i = 0; i < run->slots && status >= 0; i++) {
        size_t part =
            facts->sends_parts ? (size_t)lk__run_slot_at(p, run, i)->step.part * made : 0; /* a leaf's own part */
        status = lk__device_write(p->device, p->stream, lk__run_slot_list(p, run, i)->instructions[at].call.out[0].data,
                                  facts->reduces ? mine + part : p->collectives->gathered, made);
    }
    return status;
}

static lk_status read_leaf(lk_program *p, const lk__schedule_run *run, size_t at, int leaf, const void *from)
{
    const lk__kernel_operand *source = &lk__run_at(p, run, at)->call.in[0];
    size_t                    bytes = (size_t)lk__operand_elements(source) * lk_dtype_size(source->dtype);
    return lk__device_read(p->device, p->stream, p->collectives->mine + (size_t)leaf * bytes, from, bytes);
}

/* Over leaves: those of all slots. */
lk_status lk__run_start_leaves(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)next;
    for (int i = 0; i < p->division.here && status >= 0; i++)
        status = read_leaf(p, run, at, i, lk__run_slot_list(p, run, i)->instructions[at].call.in[0].data);
    return status < 0 ? status : reduce_leaves(p, run, at);
}

/* The same of the batch that they form. */
lk_status lk__run_start_leaf_batch(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)next;
    for (int i = 0; i < p->division.here && status >= 0; i++)
        status = read_leaf(p, run, at, i, lk__leaf_batch_source(p, at, i));
    return status < 0 ? status : reduce_leaves(p, run, at);
}

lk_status lk__run_refuse_leaves(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return lk__fail(p->context, LK_EUNSUPPORTED, "evaluation has no leaves to sum over");
}

/* The rows in each of which the ranks' parts lie side by side. */
static size_t count_rows(const lk__kernel_call *call)
{
    size_t rows = 1;
    for (int i = 0; i < (int)call->attrs->rows; i++) rows *= (size_t)call->in[0].dims[i];
    return rows;
}

static lk_comm *group_of(const lk_program *p, const lk__run_instruction *in)
{
    return lk__run_group(p, in->call.attrs->mesh);
}

/* The collective of a node, from and to this memory. */
static lk__comm_call call_of(const lk_program *p, const lk__run_instruction *in, const void *from, void *to)
{
    size_t parts = facts_of(in)->sends_parts ? (size_t)lk_comm_size(group_of(p, in)) : 1;
    return (lk__comm_call){.kind = kind_of(in),
                           .type = in->call.in[0].dtype,
                           .reduce = in->call.attrs->reduction,
                           .count = (size_t)lk__operand_elements(&in->call.in[0]) / parts,
                           .rows = count_rows(&in->call),
                           .send = from,
                           .recv = to,
                           .site = LK_HERE};
}

/* Returns when it has ended, or with a work. */
static lk_status start_value(lk_program *p, const lk__run_instruction *in, const void *from, void *to, lk_work **work)
{
    lk__comm_call call = call_of(p, in, from, to);
    size_t        bytes = (size_t)lk__operand_elements(&in->call.in[0]) * lk_dtype_size(call.type);
    double        start = lk__now();
    lk_status     status = lk__comm_run(group_of(p, in), &call, work);
    double        end = lk__now();
    p->collectives->waited += end - start;
    if (!work || !*work) lk__traced(p, in->name, start, end, bytes);
    return status;
}

/* On the device, of the only slot. */
static lk_status start_queued(lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    lk__comm_call              call = call_of(p, in, in->call.in[0].data, in->call.out[0].data);
    return lk__collective_queue(p, lk__collective_at(p, run, at), group_of(p, in), &call);
}

/* Once for each slot; but slots that advance together gather parameters once, however many a rank has. */
static int count_calls(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_list *list = lk__run_slot_list(p, run, 0);
    const lk_graph     *g = list->planned->graph;
    int                 sent = g->nodes[list->instructions[at].node].in[0];
    return g->values[sent].kind == LK__VALUE_UNIT ? 1 : run->slots;
}

lk_status lk__run_start(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_work **work = run->slots > 1 ? NULL : work_of(lk__collective_at(p, run, at));
    lk_status status = LK_OK;
    (void)next;
    if (p->group.queued) return start_queued(p, run, at);
    for (int i = 0, calls = count_calls(p, run, at); i < calls && status >= 0; i++) {
        const lk__run_instruction *in = &lk__run_slot_list(p, run, i)->instructions[at];
        status = start_value(p, in, in->call.in[0].data, in->call.out[0].data, work);
    }
    return status;
}

static lk_status start_staged(lk_program *p, const lk__run_instruction *in)
{
    const lk__kernel_operand *x = &in->call.in[0], *y = &in->call.out[0];
    char                     *from = p->collectives->mine, *to = p->collectives->gathered;
    lk_status                 status =
        lk__device_read(p->device, p->stream, from, x->data, (size_t)lk__operand_elements(x) * lk_dtype_size(x->dtype));
    if (status >= 0) status = start_value(p, in, from, to, NULL);
    return status < 0 ? status
                      : lk__device_write(p->device, p->stream, y->data, to,
                                         (size_t)lk__operand_elements(y) * lk_dtype_size(y->dtype));
}

/* Through the host, where the group does not reach the device. */
lk_status lk__run_start_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)next;
    for (int i = 0, calls = count_calls(p, run, at); i < calls && status >= 0; i++)
        status = start_staged(p, &lk__run_slot_list(p, run, i)->instructions[at]);
    return status;
}

static lk_status start_alone(lk_program *p, const lk__run_instruction *in)
{
    const lk__kernel_operand *x = &in->call.in[0], *y = &in->call.out[0];
    size_t                    bytes = (size_t)lk__operand_elements(y) * lk_dtype_size(y->dtype);
    if (in->run) return in->run(&in->call);
    if (bytes == 0 || x->data == y->data) return LK_OK;
    return p->device->backend->memory.copy(p->device, p->stream, y->data, x->data, bytes);
}

/* A group of one. Collectives that have no kernel for it are copies. */
lk_status lk__run_start_alone(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)next;
    for (int i = 0; i < run->slots && status >= 0; i++)
        status = start_alone(p, &lk__run_slot_list(p, run, i)->instructions[at]);
    return status;
}

/* ---- waiting ---- */

/* The span must be read before lk_work_wait frees the work, so tracing waits for its end first. */
lk_status lk__collective_take(lk_program *p, lk__run_collective *c)
{
    const lk__run_instruction *in = &c->list->instructions[c->start];
    const lk__kernel_operand  *x = in->call.inputs ? &in->call.in[0] : &in->call.out[0];
    lk_work                   *work = c->work;
    double                     start = lk__now(), began, ended;
    while (p->trace && lk_work_test(work) == LK_END) sched_yield();
    if (p->trace && in->op == LK__OP_receive) { /* it may be there long before anything is sent */
        lk__trace_add(p->trace, &(lk__trace_event){.name = in->name,
                                                   .kind = LK__TRACE_WAIT,
                                                   .track = LK__TRACK_COLLECTIVES,
                                                   .begin = start,
                                                   .end = lk__now()});
    } else if (p->trace) {
        lk_work_span(work, &began, &ended);
        lk__traced(p, in->name, began, ended, (size_t)lk__operand_elements(x) * lk_dtype_size(x->dtype));
    }
    c->work = NULL;
    lk_status status = lk_work_wait(work);
    p->collectives->waited += lk__now() - start;
    return status;
}

lk_status lk__run_wait(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective *c = lk__collective_at(p, run, at);
    (void)next;
    if (c && c->queued) return lk__collective_join(p, c);
    return c && c->work ? lk__collective_take(p, c) : LK_OK;
}

lk_status lk__collectives_drain(lk_program *p)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < p->collectives->count; i++) {
        lk__run_collective *c = &p->collectives->all[i];
        lk_status           one = c->queued ? lk__collective_join(p, c) : c->work ? lk__collective_take(p, c) : LK_OK;
        if (status >= 0) status = one;
    }
    return status;
}
