/* routes.c - rows that go to the ranks which have their experts, and back (plan/experts.h): an all_to_all whose counts
 * follow from the offsets of all ranks. The number of rows that arrive becomes known here, and the kernels that compute
 * with them get their extents before they run. */
#include "run/collective.h"
#include "run/interpreter.h"

#include "comm/comm.h"

#include <string.h>

/* ---- creation ---- */

static int operand_value(const lk__graph_node *n, int i) { return i < n->inputs ? n->in[i] : n->out[i - n->inputs]; }

/* Operands whose extents follow from counts: on the host. What makes the routes has room for all; other devices
 * compute with that, since nothing reads the rows past the last. */
static size_t list_routed(const lk_program *p, const lk__run_list *list, lk__run_routed *routed)
{
    const lk_graph *g = list->planned ? list->planned->graph : NULL;
    size_t          count = 0;
    for (size_t i = 0; i < list->count && p->visible; i++) {
        const lk__graph_node *n = list->instructions[i].node < 0 ? NULL : &g->nodes[list->instructions[i].node];
        for (int k = 0; n && k < n->inputs + n->outputs && n->op != LK__OP_route_rows; k++) {
            int v = operand_value(n, k);
            if (v < 0 || !g->values[v].routed) continue;
            if (routed) routed[count] = (lk__run_routed){g->values[v].routed - 1, i, k};
            count++;
        }
    }
    return count;
}

/* Offsets that the host reads, where they are in a device's memory. */
static size_t most_offsets(const lk__run_list *list)
{
    size_t most = 0;
    for (size_t i = 0; i < list->count; i++) {
        const lk__run_instruction *in = &list->instructions[i];
        if (in->action != LK__DO_START_EXCHANGE_STAGED) continue;
        size_t count = (size_t)lk__operand_elements(&in->call.in[1]);
        if (count > most) most = count;
    }
    return most;
}

size_t lk__routes_lay_out(const lk_program *p, lk__run_collectives *x, char *memory, size_t used)
{
    const lk__run_list *lists[] = {&p->slots[0].train, &p->evaluate};
    size_t              ranks = (size_t)lk__mesh_extent(&p->plan->mesh, p->plan->expert_axes), offsets = 0;
    if (!p->plan->expert_axes) return used;
    for (int i = 0; i < 2; i++) {
        lk__run_routed *routed = memory ? (lk__run_routed *)(memory + used) : NULL;
        x->routed_count[i] = list_routed(p, lists[i], routed);
        x->routed[i] = routed;
        used += lk__round_up(x->routed_count[i] * sizeof *routed, LK__ALIGN);
        if (most_offsets(lists[i]) > offsets) offsets = most_offsets(lists[i]);
    }
    x->offsets = memory ? (int32_t *)(memory + used) : NULL;
    used += lk__round_up(offsets * sizeof *x->offsets, LK__ALIGN);
    x->route_counts = memory ? (size_t *)(memory + used) : NULL; /* of each collective: four arrays by rank */
    return used + lk__round_up(4 * ranks * x->count * sizeof(size_t), LK__ALIGN);
}

/* ---- counts ---- */

/* Elements that go to each rank and come from it, and where they begin. */
typedef struct counts {
    size_t *send, *send_at, *recv, *recv_at;
    int64_t sent, received; /* rows */
} counts;

/* Rows of rank `from` for the experts of rank `to`. */
static int64_t rows_between(const int32_t *offsets, int ranks, int64_t experts, int from, int to)
{
    const int32_t *row = offsets + from * (experts + 1);
    int64_t        each = experts / ranks;
    return row[(to + 1) * each] - row[to * each];
}

static counts set_counts(const lk_program *p, const lk__run_instruction *in, const int32_t *offsets, size_t number)
{
    const lk__kernel_operand *all = &in->call.in[1], *x = &in->call.in[0];
    int                       ranks = (int)all->dims[0];
    int64_t                   experts = all->dims[1] - 1, width = 1;
    int                       own = lk__mesh_coordinate(&p->plan->mesh, in->call.attrs->mesh, lk__plan_rank(p->plan));
    bool                      back = in->call.attrs->transposed;
    size_t                   *at = p->collectives->route_counts + 4 * number * (size_t)ranks;
    counts c = {.send = at, .send_at = at + ranks, .recv = at + 2 * ranks, .recv_at = at + 3 * ranks};
    for (int i = 1; i < x->rank; i++) width *= x->dims[i];
    for (int i = 0; i < ranks; i++) {
        int64_t away = rows_between(offsets, ranks, experts, own, i),
                here = rows_between(offsets, ranks, experts, i, own);
        c.send_at[i] = (size_t)(c.sent * width);
        c.recv_at[i] = (size_t)(c.received * width);
        c.send[i] = (size_t)((back ? here : away) * width);
        c.recv[i] = (size_t)((back ? away : here) * width);
        c.sent += back ? here : away;
        c.received += back ? away : here;
    }
    return c;
}

/* ---- loads ---- */

static void add_loads(lk_program *p, const lk__run_instruction *in, const int32_t *offsets)
{
    const lk__kernel_operand *all = &in->call.in[1];
    lk__run_loads            *loads = &p->collectives->loads;
    int                       ranks = (int)all->dims[0];
    int                       own = lk__mesh_coordinate(&p->plan->mesh, in->call.attrs->mesh, lk__plan_rank(p->plan));
    int64_t                   most = 0, total = 0;
    if (!p->trace || in->call.attrs->transposed) return; /* the way back is that of the same rows */
    for (int to = 0; to < ranks; to++) {
        int64_t rows = 0;
        for (int from = 0; from < ranks; from++) rows += rows_between(offsets, ranks, all->dims[1] - 1, from, to);
        if (rows > most) most = rows;
        if (to == own) loads->own += (double)rows;
        total += rows;
    }
    loads->most += (double)most;
    loads->mean += (double)total / ranks;
}

/* Of all kernels that compute rows of all ranks, since the program was created. */
static double routed_seconds(const lk_program *p)
{
    const lk__run_collectives *x = p->collectives;
    double                     seconds = 0;
    for (size_t i = 0; i < x->routed_count[0]; i++) {
        size_t at = x->routed[0][i].instruction;
        if (i > 0 && x->routed[0][i - 1].instruction == at) continue; /* another operand of the same one */
        for (int slot = 0; slot < p->plan->slots; slot++) seconds += p->slots[slot].train.instructions[at].seconds;
    }
    return seconds;
}

static void trace_number(const lk_program *p, const char *name, double at, double number)
{
    lk__trace_event event = {
        .name = name, .kind = LK__TRACE_COUNTER, .begin = at, .end = at, .bytes = (int64_t)(1e3 * number + 0.5)};
    lk__trace_add(p->trace, &event);
}

/* All wait for the rank with most rows: it takes longer than with the mean by so many times what a row takes here. */
void lk__routes_trace(const lk_program *p, double began)
{
    lk__run_loads *loads = &p->collectives->loads;
    double         seconds = routed_seconds(p), took = seconds - loads->seconds;
    if (loads->mean > 0) trace_number(p, "expert load, most / mean", began, loads->most / loads->mean);
    if (loads->own > 0 && seconds > 0)
        trace_number(p, "ms lost to unequal loads", began, 1e3 * took / loads->own * (loads->most - loads->mean));
    *loads = (lk__run_loads){.seconds = seconds};
}

/* What computes with rows of all ranks has as many as there are. */
static void set_extents(lk_program *p, lk__run_list *list, int all, int64_t rows)
{
    int which = list == &p->evaluate;
    for (size_t i = 0; i < p->collectives->routed_count[which]; i++) {
        const lk__run_routed *r = &p->collectives->routed[which][i];
        if (r->all != all) continue;
        lk__run_instruction *in = &list->instructions[r->instruction];
        int                  inputs = in->call.inputs;
        (r->operand < inputs ? &in->call.in[r->operand] : &in->call.out[r->operand - inputs])->dims[0] = rows;
    }
}

/* ---- running ---- */

/* A line for each of the four, which the table of a stall shows. */
static lk_site site_of(bool back, bool backward)
{
    if (!backward) {
        if (!back) return LK_HERE; /* tokens to their experts */
        return LK_HERE;            /* results to their tokens */
    }
    if (!back) return LK_HERE; /* gradients of results to the experts */
    return LK_HERE;            /* gradients of tokens back */
}

static lk_status exchange(lk_program *p, const lk__run_instruction *in, const counts *c, const void *from, void *to,
                          lk_site site, lk_work **work)
{
    const lk__kernel_operand *y = &in->call.out[0];
    size_t                    size = lk_dtype_size(y->dtype), bytes = (size_t)lk__operand_elements(y) * size;
    double                    start = lk__now();
    lk__comm_call             call = {.kind = LK__ALL_TO_ALLV,
                                      .type = y->dtype,
                                      .send = from,
                                      .recv = to,
                                      .send_counts = c->send,
                                      .send_displacements = c->send_at,
                                      .recv_counts = c->recv,
                                      .recv_displacements = c->recv_at,
                                      .site = site};
    int                       last = lk__mesh_extent(&p->plan->mesh, in->call.attrs->mesh) - 1;
    size_t                    filled = (c->recv_at[last] + c->recv[last]) * size;
    /* of assignments that exceed a capacity, which no expert has computed */
    if (in->call.attrs->transposed && filled < bytes) memset((char *)to + filled, 0, bytes - filled);
    lk_status status = lk__comm_run(lk__run_group(p, in->call.attrs->mesh), &call, work);
    double    end = lk__now();
    p->collectives->waited += end - start;
    if (!work || !*work) lk__traced(p, in->name, start, end, (c->send_at[last] + c->send[last]) * size);
    return status;
}

static lk_site find_site(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    const lk__run_list *list = lk__run_slot_list(p, run, 0);
    return site_of(list->instructions[at].call.attrs->transposed,
                   list != &p->evaluate && at >= list->at.begin[LK_BACKWARD]);
}

static int64_t rows_by_expert(const lk__run_instruction *in, const counts *c)
{
    return in->call.attrs->transposed ? c->sent : c->received;
}

lk_status lk__run_start_exchange(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_list              *list = lk__run_slot_list(p, run, 0);
    const lk__run_instruction *in = &list->instructions[at];
    const lk__graph_node      *n = &list->planned->graph->nodes[in->node];
    lk__run_collective        *collective = lk__collective_at(p, run, at);
    counts                     c = set_counts(p, in, in->call.in[1].data, (size_t)(collective - p->collectives->all));
    (void)next;
    set_extents(p, list, n->in[1], rows_by_expert(in, &c));
    add_loads(p, in, in->call.in[1].data);
    return exchange(p, in, &c, in->call.in[0].data, in->call.out[0].data, find_site(p, run, at),
                    collective->at_once ? NULL : &collective->work);
}

lk_status lk__run_start_exchange_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_instruction *in = &lk__run_slot_list(p, run, 0)->instructions[at];
    const lk__kernel_operand  *x = &in->call.in[0], *all = &in->call.in[1], *y = &in->call.out[0];
    lk__run_collective        *collective = lk__collective_at(p, run, at);
    char                      *from = p->collectives->mine, *to = p->collectives->gathered;
    (void)next;
    lk_status status = lk__device_read(p->device, p->stream, p->collectives->offsets, all->data,
                                       (size_t)lk__operand_elements(all) * sizeof(int32_t));
    if (status < 0) return status;
    counts c = set_counts(p, in, p->collectives->offsets, (size_t)(collective - p->collectives->all));
    add_loads(p, in, p->collectives->offsets);
    status =
        lk__device_read(p->device, p->stream, from, x->data, (size_t)lk__operand_elements(x) * lk_dtype_size(x->dtype));
    if (status >= 0) status = exchange(p, in, &c, from, to, find_site(p, run, at), NULL);
    return status < 0 ? status
                      : lk__device_write(p->device, p->stream, y->data, to,
                                         (size_t)lk__operand_elements(y) * lk_dtype_size(y->dtype));
}
