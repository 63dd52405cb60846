/* collective.c - the collectives among the instructions: buckets of gradients, and values such as the sums of synchronised batch norm. One
 * call serves all slots. A start that overlaps leaves a work in flight, which its wait takes; other starts run to the end. */
#define _GNU_SOURCE
#include "run/collective.h"
#include "run/interpreter.h"

#include "base/tree.h"
#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/hosts.h"
#include "run/shared.h"

#include <sched.h>
#include <string.h>

static const lk__run_instruction *instruction_of(const lk_program *p, const lk__run_collective *c)
{
    return &p->slots[0].train.instructions[c->start];
}

/* Where an instruction's work in flight is noted; NULL: in evaluation, where every collective is waited for at once. */
static lk__run_collective *collective_at(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    return run->section == LK_EVALUATE ? NULL : &p->collectives->all[lk__run_at(p, run, at)->collective];
}

static lk_work **work_of(lk__run_collective *c) { return c && !c->at_once ? &c->work : NULL; }

/* ---- buckets ---- */

/* Of a state that the ranks of a host share: each gets the sum of its slice. */
lk_status lk__run_start_scatter(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective    *c = collective_at(p, run, at);
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    lk_dtype               type = lk__bucket_type(p->plan, b);
    char                  *data = p->memory.gradients + lk__bucket_place(p->plan, b);
    size_t                 slice = lk__slice_bytes(p->plan, lk__bucket_sent(p->plan, (size_t)c->bucket));
    (void)next;
    return lk__comm_reduce_scatter_host(p->collectives->bulk, data, data + (size_t)lk__plan_own(p->plan) * slice,
                                        slice / lk_dtype_size(type), type, LK_SUM, &c->work);
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
    lk__run_collective    *c = collective_at(p, run, at);
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    char                  *data = lk__exchanged(p, p->memory.gradients + lk__bucket_place(p->plan, b));
    double                 start = lk__now();
    (void)next;
    lk_status status = lk_comm_all_reduce(p->collectives->bulk, data, data, b->bytes / lk_dtype_size(b->dtype),
                                          lk__bucket_type(p->plan, b), LK_SUM, work_of(c));
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

/* ---- values within forward and backward ---- */

static bool gathers(const lk__run_instruction *in) { return in->op == LK__OP_all_gather; }
static bool scatters(const lk__run_instruction *in) { return in->op == LK__OP_reduce_scatter; }

/* Over leaves: those of all slots, or of the batch that they form. */
lk_status lk__run_start_leaves(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    const lk__kernel_operand  *source = &in->call.in[0];
    size_t    elements = (size_t)lk__operand_elements(source), bytes = elements * lk_dtype_size(source->dtype);
    char     *mine = p->collectives->mine;
    lk_status status = LK_OK;
    (void)next;
    if (run->section == LK_EVALUATE)
        return lk__fail(p->context, LK_EUNSUPPORTED, "evaluation has no leaves to add over");
    for (int i = 0; i < lk__leaves_here(p) && status >= 0; i++)
        status = lk__device_read(p->device, p->stream, mine + (size_t)i * bytes,
                                 lk__run_slot_list(p, run, 0)->by_leaf
                                     ? lk__leaf_batch_source(p, at, i)
                                     : lk__run_slot_list(p, run, i)->instructions[at].call.in[0].data,
                                 bytes);
    if (status < 0 || (status = lk__gather_leaves(p, in->name, mine, elements, source->dtype)) < 0) return status;
    size_t made = (size_t)lk__operand_elements(&in->call.out[0]) * lk_dtype_size(in->call.out[0].dtype);
    if (!gathers(in)) lk__reduce_gathered(p, elements, source->dtype, in->call.attrs->reduction, mine);
    for (int i = 0; i < run->slots && status >= 0; i++) {
        size_t part = scatters(in) ? (size_t)p->slots[i].step.part * made : 0; /* a leaf's own part */
        status = lk__device_write(p->device, p->stream, lk__run_slot_list(p, run, i)->instructions[at].call.out[0].data,
                                  gathers(in) ? p->collectives->gathered : mine + part, made);
    }
    return status;
}

lk_status lk__run_start(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    const lk__kernel_call     *call = &in->call;
    const lk_dtype             type = call->in[0].dtype;
    size_t    elements = (size_t)lk__operand_elements(&call->in[0]), bytes = elements * lk_dtype_size(type);
    size_t    made = (size_t)lk__operand_elements(&call->out[0]) * lk_dtype_size(type);
    lk_work **work = p->batch ? work_of(collective_at(p, run, at)) : NULL;
    (void)next;
    if (!p->batch) return in->run(call);
    /* Through the host, where the group does not reach the device. */
    bool      reached = lk__comm_reaches(p->batch, p->device);
    void     *from = reached ? call->in[0].data : p->collectives->mine;
    void     *to = reached ? call->out[0].data : p->collectives->gathered;
    lk_status status = reached ? LK_OK : lk__device_read(p->device, p->stream, from, call->in[0].data, bytes);
    double    start = lk__now();
    if (status >= 0 && gathers(in))
        status = lk_comm_all_gather(p->batch, from, to, elements, type, work);
    else if (status >= 0 && scatters(in))
        status = lk_comm_reduce_scatter(p->batch, from, to, elements / (size_t)lk__plan_batch_parts(p->plan), type,
                                        call->attrs->reduction, work);
    else if (status >= 0)
        status = lk_comm_all_reduce(p->batch, from, to, elements, type, call->attrs->reduction, work);
    double end = lk__now();
    if (status >= 0 && !reached) status = lk__device_write(p->device, p->stream, call->out[0].data, to, made);
    p->collectives->waited += end - start;
    if (!work || !*work) lk__traced(p, in->name, start, end, bytes);
    return status;
}

/* ---- waiting ---- */

/* The span must be read before lk_work_wait frees the work, so tracing waits for its end first. */
static lk_status take_work(lk_program *p, lk__run_collective *c)
{
    const lk__run_instruction *in = instruction_of(p, c);
    const lk__kernel_operand  *x = &in->call.in[0];
    lk_work                   *work = c->work;
    double                     start = lk__now(), began, ended;
    while (p->trace && lk_work_test(work) == LK_END) sched_yield();
    if (p->trace) {
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
    lk__run_collective *c = collective_at(p, run, at);
    (void)next;
    return c && c->work ? take_work(p, c) : LK_OK;
}

lk_status lk__collectives_drain(lk_program *p)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < p->collectives->count; i++) {
        lk_status one = p->collectives->all[i].work ? take_work(p, &p->collectives->all[i]) : LK_OK;
        if (status >= 0) status = one;
    }
    return status;
}

/* ---- creating and freeing ---- */

/* The widest operand of a collective other than a bucket, in bytes. */
static size_t widest_operand(const lk__plan_list *list)
{
    size_t most = (LK__RUN_NUMBERS + LK__RUN_REPORT) * sizeof(double);
    for (size_t i = 0; list->graph && i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_COLLECTIVE) continue;
        const lk__graph_value *x = &list->graph->values[n->in[0]];
        size_t                 bytes = (size_t)lk__shape_elements(&x->shape) * lk_dtype_size(x->shape.dtype);
        if (x->kind != LK__VALUE_BUCKET && bytes > most) most = bytes;
    }
    return most;
}

/* Reserves the next bytes of one block; with memory NULL it only measures. */
static void *reserve_bytes(char *memory, size_t *used, size_t bytes)
{
    char *at = memory ? memory + *used : NULL;
    *used += lk__round_up(bytes, LK__ALIGN);
    return at;
}

static size_t lay_out(const lk_program *p, lk__run_collectives *x, char *memory)
{
    const lk_plan *plan = p->plan;
    size_t         used = lk__round_up(sizeof *x, LK__ALIGN), ranks = (size_t)lk__plan_ranks(plan), most = 0;
    size_t         parts = (size_t)lk__plan_batch_parts(plan);
    size_t leaves = plan->parallel.leaves ? (size_t)plan->parallel.leaves : parts, widest = widest_operand(&plan->train);
    if (widest_operand(&plan->evaluate) > widest) widest = widest_operand(&plan->evaluate);
    for (size_t i = 0; i < plan->buckets_count; i++)
        if (plan->buckets[i].bytes > most) most = plan->buckets[i].bytes;
    x->all = reserve_bytes(memory, &used, x->count * sizeof *x->all);
    x->subtrees = reserve_bytes(memory, &used, 2 * leaves * sizeof *x->subtrees);
    x->counts = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->displacements = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->more_counts = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->more_displacements = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->gathered = reserve_bytes(memory, &used, leaves * widest);
    x->mine = reserve_bytes(memory, &used, leaves * widest);
    x->reports = reserve_bytes(memory, &used, ranks * sizeof *x->reports);
    x->ranks = reserve_bytes(memory, &used, ranks * sizeof *x->ranks);
    if (!lk__plan_by_slices(plan) || plan->shared) return used;
    x->slice_bytes = lk__round_up(most / parts + 2 * LK__ALIGN, LK__ALIGN);
    x->slices = reserve_bytes(memory, &used, x->slice_bytes * 2 * leaves);
    x->scratch = reserve_bytes(memory, &used, lk__leaf_tree_scratch_bytes());
    return used;
}

static void find_collectives(const lk_program *p, lk__run_collectives *x)
{
    const lk__run_list *list = &p->slots[0].train;
    bool                reached = p->batch && lk__comm_reaches(p->batch, p->device);
    for (size_t i = list->count; i-- > 0;) { /* the first start of each counts: LK_SYNC may have a second of a bucket */
        const lk__run_instruction *in = &list->instructions[i];
        if (lk__action_kind_of(in->action) != LK__IS_START) continue;
        bool bucket = in->bucket >= 0;
        bool follows = i + 1 < list->count && in[1].action == LK__DO_WAIT && in[1].collective == in->collective;
        x->all[in->collective] = (lk__run_collective){
            .start = i, .bucket = in->bucket, .at_once = !x->overlaps || (!bucket && (follows || !reached))};
    }
}

/* Buckets get a group of their own where other collectives run in backward and must not queue behind them. */
static lk_status open_bulk(lk_program *p, lk__run_collectives *x)
{
    lk_status status = LK_OK;
    int       others = 0;
    for (size_t i = 0; i < x->count; i++) others += x->all[i].bucket < 0 && !x->all[i].at_once;
    x->bulk = p->batch;
    if (x->overlaps && p->plan->syncs) {
        status = lk_comm_split(p->batch, 0, lk__plan_batch_part(p->plan), &x->bulk);
        x->split = status >= 0;
    }
    /* All buckets at once, and one call that queues behind them. */
    if (status >= 0 && x->overlaps) status = lk_comm_reserve(x->bulk, (int)p->plan->buckets_count + 1);
    if (status >= 0 && others) status = lk_comm_reserve(p->batch, others + 1);
    return status;
}

lk_status lk__collectives_create(lk_program *p)
{
    const lk_parallel  *parallel = &p->plan->parallel;
    lk__run_collectives measured = {.count = p->slots[0].train.collectives};
    if (parallel->leaves > LK__LEAVES_MOST)
        return lk__fail(p->context, LK_EUNSUPPORTED, "%d leaves are too many; at most %d are supported",
                        parallel->leaves, LK__LEAVES_MOST);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_collectives *x = p->collectives = (lk__run_collectives *)memory;
    x->count = measured.count;
    lay_out(p, x, memory);
    x->bytes = bytes;
    if (parallel->leaves) lk__leaf_tree_find(x, p->plan);
    x->overlaps = p->group.overlaps;
    find_collectives(p, x);
    return p->batch ? open_bulk(p, x) : LK_OK;
}

void lk__collectives_free(lk_program *p)
{
    lk__run_collectives *x = p->collectives;
    if (!x) return;
    for (size_t i = 0; i < x->count; i++)
        if (x->all[i].work) (void)lk_work_wait(x->all[i].work);
    if (x->split) lk_comm_free(x->bulk);
    lk__free(p->context, LK_MEMORY_OTHER, x, x->bytes);
    p->collectives = NULL;
}
