/* shard.c - programs whose ranks have slices of the state: the reduce_scatter of a unit's gradients, kernels on this
 * rank's part of a state, and gradients by name. */
#include "run/shard.h"

#include "comm/comm.h"
#include "run/collective.h"
#include "run/interpreter.h"

/* ---- creation ---- */

static bool is_of_state(const lk__graph_value *v)
{
    return v->kind == LK__VALUE_STATE || v->kind == LK__VALUE_MASTER || v->kind == LK__VALUE_OPTIMIZER ||
           v->kind == LK__VALUE_SLICE;
}

/* An operand of a state: this rank's part of it, as a vector. */
static void cut_operand(const lk_plan *plan, const lk__graph_value *v, lk__kernel_operand *o)
{
    lk__range piece = lk__plan_piece(plan, (size_t)v->state);
    if (v->kind == LK__VALUE_STATE && plan->stage < 3 && o->data)
        o->data = (char *)o->data + (size_t)piece.first * lk_dtype_size(o->dtype);
    o->rank = 1;
    o->dims[0] = lk__range_count(piece);
}

void lk__shard_cut_operands(const lk_plan *plan, const lk_graph *g, const lk__graph_node *n, lk__kernel_call *call)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && is_of_state(&g->values[n->in[i]])) cut_operand(plan, &g->values[n->in[i]], &call->in[i]);
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && is_of_state(&g->values[n->out[i]]))
            cut_operand(plan, &g->values[n->out[i]], &call->out[i]);
}

/* ---- reduce_scatter ---- */

/* Of stage 1 the first set of gradients, whatever set the run computes; else what this run has made. */
static void *operand_address(const lk_program *p, const lk__plan_list *list, int value, const lk__kernel_operand *o,
                             bool first_set)
{
    return first_set ? p->memory.gradients + list->places[value].offset : o->data;
}

static size_t operand_bytes(const lk__kernel_operand *o)
{
    return (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype);
}

typedef struct scatter {
    const lk__run_instruction *in;
    lk__run_collective        *collective;
    char                      *from, *to;
} scatter;

static scatter find_scatter(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_list   *list = lk__run_slot_list(p, run, 0);
    scatter               s = {.in = &list->instructions[at]};
    const lk__graph_node *n = &list->planned->graph->nodes[s.in->node];
    bool                  first_set = list->planned->places[n->in[0]].region == LK__IN_GRADIENTS;
    s.collective = &p->collectives->all[s.in->collective];
    s.from = operand_address(p, list->planned, n->in[0], &s.in->call.in[0], first_set);
    s.to = operand_address(p, list->planned, n->out[0], &s.in->call.out[0], first_set);
    return s;
}

/* Experts have a group of their own. */
static lk_comm *group_of(const lk_program *p, const scatter *s)
{
    unsigned axes = s->in->call.attrs->mesh;
    return axes == lk__plan_shard_axes(p->plan) ? p->collectives->bulk : lk__run_group(p, axes);
}

static lk_status reduce_slice(lk_program *p, const scatter *s, const void *from, void *to, lk_work **work)
{
    const lk__kernel_operand *y = &s->in->call.out[0];
    double                    start = lk__now();
    lk_comm                  *group = group_of(p, s);
    lk_status status = lk_comm_reduce_scatter(group, from, to, (size_t)lk__operand_elements(y), y->dtype, LK_SUM, work);
    double    end = lk__now();
    p->collectives->waited += end - start;
    if (!work || !*work) lk__traced(p, s->in->name, start, end, operand_bytes(&s->in->call.in[0]));
    return status;
}

/* On the device. */
static lk_status queue_slice(lk_program *p, const scatter *s)
{
    const lk__kernel_operand *y = &s->in->call.out[0];
    lk__comm_call             call = {.kind = LK__REDUCE_SCATTER,
                                      .type = y->dtype,
                                      .reduce = LK_SUM,
                                      .count = (size_t)lk__operand_elements(y),
                                      .send = s->from,
                                      .recv = s->to,
                                      .site = LK_HERE};
    return lk__collective_queue(p, s->collective, group_of(p, s), &call);
}

/* Of experts that no other rank has: the slice is all of it. */
static bool is_alone(const lk_program *p, const scatter *s)
{
    return lk__mesh_extent(&p->plan->mesh, s->in->call.attrs->mesh) == 1;
}

static lk_status copy_slice(lk_program *p, const scatter *s)
{
    size_t bytes = operand_bytes(&s->in->call.out[0]);
    if (s->from == s->to || bytes == 0) return LK_OK;
    return p->device->backend->memory.copy(p->device, p->stream, s->to, s->from, bytes);
}

lk_status lk__run_start_shard(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    scatter s = find_scatter(p, run, at);
    (void)next;
    if (is_alone(p, &s)) return copy_slice(p, &s);
    if (p->group.queued) return queue_slice(p, &s);
    return reduce_slice(p, &s, s.from, s.to, s.collective->at_once ? NULL : &s.collective->work);
}

/* Through the host, where the group does not reach the device. */
lk_status lk__run_start_shard_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    scatter s = find_scatter(p, run, at);
    char   *from = p->collectives->mine, *to = p->collectives->gathered;
    (void)next;
    if (is_alone(p, &s)) return copy_slice(p, &s);
    lk_status status = lk__device_read(p->device, p->stream, from, s.from, operand_bytes(&s.in->call.in[0]));
    if (status >= 0) status = reduce_slice(p, &s, from, to, NULL);
    return status < 0 ? status : lk__device_write(p->device, p->stream, s.to, to, operand_bytes(&s.in->call.out[0]));
}

/* ---- gradients by name ---- */

/* Every rank sends the part that it has. Collective. */
static lk_status read_parts(lk_program *p, int state, void *data, size_t bytes)
{
    lk_dtype  type = p->plan->graph->real;
    size_t    size = lk_dtype_size(type);
    lk__range own = lk__plan_piece(p->plan, (size_t)state);
    lk_status status = LK_OK;

    const lk__plan_unit *u = &p->plan->units[p->plan->states[state].unit];
    (void)bytes;
    if (lk__range_count(own))
        status = lk__device_read(p->device, p->stream, (char *)data + (size_t)own.first * size,
                                 lk__gradient_set(p, 0) + lk__plan_gradient_piece(p->plan, (size_t)state),
                                 (size_t)lk__range_count(own) * size);
    for (int i = 0; i < lk__unit_shards(p->plan, u) && lk__unit_shards(p->plan, u) > 1 && status >= 0; i++) {
        lk__range piece = lk__plan_piece_of(p->plan, (size_t)state, i);
        if (lk__range_count(piece))
            status = lk_comm_broadcast(lk__run_group(p, u->axes), (char *)data + (size_t)piece.first * size,
                                       (size_t)lk__range_count(piece), type, i, NULL);
    }
    return status;
}

static lk_status has_parts(lk_program *p)
{
    (void)p;
    return LK_OK;
}
static void all_written(lk_program *p) { (void)p; }

const lk__run_gradients lk__gradients_of_shards = {
    .forgotten = true, .read = read_parts, .gather = has_parts, .reuse = has_parts, .written = all_written};
