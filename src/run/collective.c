/* collective.c - runs the collectives of a list of instructions: buckets of gradients, and values such as the sums of synchronised
 * batch norm. One call serves all slots. A start that overlaps leaves a work in flight, which its wait takes; other starts run to the
 * end. */
#define _GNU_SOURCE
#include "run/collective.h"

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

/* ---- buckets ---- */

bool lk__buckets_by_slices(const lk_program *p) { return p->plan->parallel.leaves && !p->collectives->aligned; }

/* A reduced bucket is copied to where the update reads it. */
static lk_status finish_bucket(lk_program *p, const lk__run_collective *c)
{
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    char                  *memory = p->gradients + lk__bucket_place(p->plan, b);
    if (p->shared) return lk__shared_widen(p, b);
    lk_status status = lk__stage_in(p, memory, lk__bucket_sent(p->plan, (size_t)c->bucket));
    return status < 0 ? status : lk__bucket_widen(p, b);
}

/* With shared state, each rank's slice: while backward runs, or on one host in the update, straight from all ranks' gradients. */
static lk_status scatter_bucket(lk_program *p, lk__run_collective *c)
{
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    lk_dtype               type = lk__bucket_type(p->plan, b);
    char                  *data = p->gradients + lk__bucket_place(p->plan, b);
    size_t                 slice = lk__slice_bytes(p->plan, lk__bucket_sent(p->plan, (size_t)c->bucket));
    lk_status              status = lk__bucket_round(p, b);
    if (status < 0 || p->shared->lazy) return status;
    return lk__comm_reduce_scatter_host(p->collectives->bulk, data, data + (size_t)lk__plan_own(p->plan) * slice,
                                        slice / lk_dtype_size(type), type, LK_SUM, &c->work);
}

static lk_status reduce_bucket(lk_program *p, lk__run_collective *c)
{
    lk__run_collectives   *x = p->collectives;
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    lk_dtype               type = lk__bucket_type(p->plan, b);
    char                  *memory = p->gradients + lk__bucket_place(p->plan, b), *data = lk__exchanged(p, memory);
    size_t                 sent = lk__bucket_sent(p->plan, (size_t)c->bucket);
    if (!p->batch) return LK_OK;
    if (p->shared) return scatter_bucket(p, c);
    lk_status status = lk__bucket_round(p, b);
    if (status >= 0 && !lk__buckets_by_slices(p)) status = lk__stage_out(p, memory, sent);
    for (int i = 0; i < p->plan->sets && status >= 0 && lk__buckets_by_slices(p); i++)
        status = lk__stage_out(p, lk__gradient_set(p, i) + b->offset, b->bytes);
    if (status < 0) return status;
    double start = lk__now();
    if (lk__buckets_by_slices(p))
        status = lk__leaf_tree_reduce(p, b);
    else
        status = lk_comm_all_reduce(x->bulk, data, data, b->bytes / lk_dtype_size(b->dtype), type, LK_SUM,
                                    c->at_once ? NULL : &c->work);
    double end = lk__now();
    x->waited += end - start;
    if (c->work) return status;
    lk__traced(p, instruction_of(p, c)->name, start, end, sent);
    return status < 0 ? status : finish_bucket(p, c);
}

/* A bucket of the current leaf or micro-batch is complete: it is added to those before it and, if it is the last, reduced. */
static lk_status start_bucket(lk_program *p, lk__run_collective *c, bool last)
{
    const lk__plan_bucket *b = &p->plan->buckets[c->bucket];
    lk_status              status = LK_OK;
    if (!p->plan->parallel.leaves && p->pending > 0) status = lk__gradients_accumulate(p, b);
    if (!last || status < 0) return status;
    if (p->plan->parallel.leaves && (status = lk__leaf_tree_add(p, b)) < 0) return status;
    p->sent = (size_t)c->bucket + 1;
    return reduce_bucket(p, c);
}

/* ---- values within forward and backward ---- */

static bool gathers(const lk__run_instruction *in) { return in->op == LK__OP_all_gather; }
static bool scatters(const lk__run_instruction *in) { return in->op == LK__OP_reduce_scatter; }

/* Over leaves: those of all slots, or of the batch that they form. */
static lk_status run_over_leaves(lk_program *p, const lk__run_collective *c)
{
    const lk__run_instruction *in = instruction_of(p, c);
    const lk__kernel_operand  *source = &in->call.in[0];
    size_t    elements = (size_t)lk__operand_elements(source), bytes = elements * lk_dtype_size(source->dtype);
    char     *mine = p->collectives->mine;
    lk_status status = LK_OK;
    for (int i = 0; i < lk__leaves_here(p) && status >= 0; i++)
        status = lk__device_read(p->device, p->stream, mine + (size_t)i * bytes,
                                 p->plan->batch_leaves ? lk__leaf_batch_source(p, c->start, i)
                                                       : p->slots[i].train.instructions[c->start].call.in[0].data,
                                 bytes);
    if (status < 0 || (status = lk__gather_leaves(p, in->name, mine, elements, source->dtype)) < 0) return status;
    size_t made = (size_t)lk__operand_elements(&in->call.out[0]) * lk_dtype_size(in->call.out[0].dtype);
    if (!gathers(in)) lk__reduce_gathered(p, elements, source->dtype, in->call.attrs->reduction, mine);
    for (int i = 0; i < p->plan->slots && status >= 0; i++) {
        size_t part = scatters(in) ? (size_t)p->slots[i].step.part * made : 0; /* a leaf's own part */
        status = lk__device_write(p->device, p->stream, p->slots[i].train.instructions[c->start].call.out[0].data,
                                  gathers(in) ? p->collectives->gathered : mine + part, made);
    }
    return status;
}

static lk_status run_over_ranks(lk_program *p, const lk__run_instruction *in, lk_work **work)
{
    const lk__kernel_call *call = &in->call;
    const lk_dtype         type = call->in[0].dtype;
    size_t elements = (size_t)lk__operand_elements(&call->in[0]), bytes = elements * lk_dtype_size(type);
    size_t made = (size_t)lk__operand_elements(&call->out[0]) * lk_dtype_size(type);
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

static lk_status start_values(lk_program *p, lk__run_collective *c)
{
    const lk__run_instruction *in = instruction_of(p, c);
    if (in->call.attrs->order == LK__ORDER_LEAVES) return run_over_leaves(p, c);
    return run_over_ranks(p, in, c->at_once ? NULL : &c->work);
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
    return c->bucket >= 0 && status >= 0 ? finish_bucket(p, c) : status;
}

/* A bucket that lk_program_no_sync held back starts here. */
static lk_status wait_for(lk_program *p, lk__run_collective *c)
{
    if (c->bucket >= 0 && (size_t)c->bucket >= p->sent) {
        lk_status status = p->plan->parallel.leaves ? lk__leaf_tree_add(p, &p->plan->buckets[c->bucket]) : LK_OK;
        p->sent = (size_t)c->bucket + 1;
        if (status < 0 || (status = reduce_bucket(p, c)) < 0) return status;
    }
    return c->work ? take_work(p, c) : LK_OK;
}

lk_status lk__collective_run(lk_program *p, size_t index, bool last)
{
    const lk__run_instruction *in = &p->slots[0].train.instructions[index];
    lk__run_collective        *c = &p->collectives->all[in->collective];
    if (in->kind == LK__RUNS_WAIT) return wait_for(p, c);
    return c->bucket >= 0 ? start_bucket(p, c, last) : start_values(p, c);
}

lk_status lk__collective_evaluate(lk_program *p, const lk__run_instruction *in)
{
    if (in->kind == LK__RUNS_WAIT) return LK_OK;
    if (in->call.attrs->order == LK__ORDER_LEAVES)
        return lk__fail(p->context, LK_EUNSUPPORTED, "evaluation has no leaves to add over");
    return run_over_ranks(p, in, NULL);
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
    if (!plan->parallel.leaves || x->aligned || plan->shared) return used;
    x->slice_bytes = lk__round_up(most / parts + 2 * LK__ALIGN, LK__ALIGN);
    x->slices = reserve_bytes(memory, &used, x->slice_bytes * 2 * leaves);
    x->scratch = reserve_bytes(memory, &used, lk__leaf_tree_scratch_bytes());
    return used;
}

static void find_collectives(const lk_program *p, lk__run_collectives *x)
{
    const lk__run_list *list = &p->slots[0].train;
    bool                reached = p->batch && lk__comm_reaches(p->batch, p->device);
    for (size_t i = 0; i < list->count; i++) {
        const lk__run_instruction *in = &list->instructions[i];
        if (in->kind != LK__RUNS_COLLECTIVE) continue;
        const lk_graph        *g = list->planned->graph;
        const lk__graph_value *value = &g->values[g->nodes[in->node].in[0]];
        bool                   bucket = value->kind == LK__VALUE_BUCKET;
        bool follows = i + 1 < list->count && in[1].kind == LK__RUNS_WAIT && in[1].collective == in->collective;
        x->all[in->collective] = (lk__run_collective){.start = i,
                                                      .bucket = bucket ? value->state : -1,
                                                      .at_once = !x->overlaps || (!bucket && (follows || !reached))};
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
    lk__run_collectives measured = {.aligned = lk__tree_nests(parallel->leaves, lk__plan_batch_parts(p->plan)),
                                    .count = p->slots[0].train.collectives};
    if (parallel->leaves > LK__LEAVES_MOST)
        return lk__fail(p->context, LK_EUNSUPPORTED, "%d leaves are too many; at most %d are supported",
                        parallel->leaves, LK__LEAVES_MOST);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_collectives *x = p->collectives = (lk__run_collectives *)memory;
    x->aligned = measured.aligned;
    x->count = measured.count;
    lay_out(p, x, memory);
    x->bytes = bytes;
    if (parallel->leaves) lk__leaf_tree_find(x, p->plan);
    x->overlaps = p->batch && lk__comm_overlaps(p->batch, lk_context_threads(p->context));
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
