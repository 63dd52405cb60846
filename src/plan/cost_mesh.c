/* cost_mesh.c - the estimate of a step in which collectives run along several axes of the mesh: the instructions in
 * their order, with one link between a rank and all others, on which a collective waits for those that were started
 * before it. */
#include "plan/cost.h"
#include "plan/leaf_stack.h"
#include "plan/traffic.h"

#include <math.h>
#include <stdio.h>

enum { SETS = 1 << LK__MESH_AXES };

/* Of the collectives along one set of axes. */
typedef struct link_use {
    int    collectives;
    double bytes, busy, exposed; /* seconds on the link; that kernels waited, also behind other collectives */
} link_use;

typedef struct simulation {
    const lk_plan  *plan;
    const lk_rates *rates;
    double          clock, link; /* when the kernels, and the link, have done what was started */
    double         *finished;    /* by value: when the collective that makes it ends; 0: none does */
    unsigned       *axes;        /* by value: of that collective */
    double          routed;      /* seconds of kernels that compute rows of ranks with different experts */
    link_use        use[SETS];   /* by set of axes */
} simulation;

bool lk__cost_has_axes(const lk_plan *p) { return lk__mesh_extent(&p->mesh, LK_AXIS_DATA) < p->mesh.size; }

static void start_collective(simulation *s, const lk__graph_node *n)
{
    const lk_plan *p = s->plan;
    unsigned       axes = lk__plan_collective_axes(p, n);
    if (!axes) return;
    double    bytes = lk__plan_collective_bytes(p, p->train.graph, n), begin = fmax(s->clock, s->link);
    double    ways = lk__op_find(n->op)->collective == LK__ALL_REDUCE ? 2 : 1;
    link_use *use = &s->use[axes];
    s->link = begin + ways * s->rates->latency + bytes / s->rates->link;
    s->finished[n->out[0]] = s->link;
    s->axes[n->out[0]] = axes;
    use->collectives++;
    use->bytes += bytes;
    use->busy += s->link - begin;
}

static void wait_for(simulation *s, int value)
{
    double late = s->finished[value] - s->clock;
    s->finished[value] = 0;
    if (late <= 0) return;
    s->use[s->axes[value]].exposed += late;
    s->clock += late;
}

/* Gradients of whole buckets are reduced once in a step, behind the last micro-batch; slices of them with each. */
static bool is_postponed(const lk_plan *p, const lk__graph_node *n, bool last)
{
    return !last && !lk__plan_scatters(p) && lk__plan_is_bucket(p->train.graph, n);
}

static bool is_routed(const lk_graph *g, const lk__graph_node *n)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && g->values[n->in[i]].routed) return true;
    return false;
}

static void run_kernel(simulation *s, size_t position, double parts)
{
    const lk__plan_list *list = &s->plan->train;
    double               seconds = lk__cost_instruction(s->plan, s->rates, position) / parts;
    s->clock += seconds;
    if (is_routed(list->graph, &list->graph->nodes[list->order[position]])) s->routed += seconds;
}

/* Of tied weights, in the update; transfers before that are in the timeline of the stages. */
static void receive_gradient(simulation *s, const lk__graph_node *n, size_t position)
{
    const lk__plan_list   *list = &s->plan->train;
    const lk__graph_shape *shape = n->outputs ? &list->graph->values[n->out[0]].shape : NULL;
    if (n->op != LK__OP_receive || position < list->end[LK_BACKWARD]) return;
    s->clock +=
        s->rates->latency + (double)lk__shape_elements(shape) * (double)lk_dtype_size(shape->dtype) / s->rates->link;
}

static void run_nodes(simulation *s, size_t begin, size_t end, bool last)
{
    const lk__plan_list *list = &s->plan->train;
    double               parts = begin < list->end[LK_SYNC] ? 1 : lk__cost_owners(s->plan);
    for (size_t i = begin; i < end; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        switch (lk__op_find(n->op)->runs) {
        case LK__RUNS_COLLECTIVE:
            if (!is_postponed(s->plan, n, last)) start_collective(s, n);
            break;
        case LK__RUNS_WAIT: wait_for(s, n->in[0]); break;
        case LK__RUNS_TRANSFER: receive_gradient(s, n, i); break;
        default: run_kernel(s, i, parts); break;
        }
    }
}

static void print_uses(const simulation *s, const lk__plan_cost_output *o)
{
    char text[LK__MESH_TEXT];
    for (unsigned axes = 1; axes < SETS; axes++) {
        const link_use *use = &s->use[axes];
        if (use->collectives == 0) continue;
        int ranks = lk__mesh_extent(&s->plan->mesh, axes);
        lk__cost_print(o,
                       "  along %s, %d ranks: %d collective%s, in which a rank sends %.0f bytes, %.3f ms on the link, "
                       "%.3f ms of it hidden\n",
                       lk__mesh_list_axes(axes, text), ranks, use->collectives, use->collectives == 1 ? "" : "s",
                       use->bytes, 1e3 * use->busy, 1e3 * fmax(0, use->busy - use->exposed));
    }
}

/* Every exchange waits for the rank that has got most rows. */
static void print_imbalance(const simulation *s, const lk__plan_cost_output *o)
{
    static const double load = 1.5;
    int                 ranks = lk__mesh_extent(&s->plan->mesh, s->plan->expert_axes);
    if (s->routed <= 0) return;
    lk__cost_print(o,
                   "  experts compute for %.3f ms if loads are equal; a rank with %g times the mean load takes %.3f ms "
                   "longer, and a rank with all tokens %.3f ms longer\n",
                   1e3 * s->routed, load, 1e3 * (load - 1) * s->routed, 1e3 * (ranks - 1) * s->routed);
}

double lk__cost_mesh(const lk_plan *p, const lk_rates *r, const lk__plan_cost_output *o)
{
    const lk__plan_list *list = &p->train;
    simulation           s = {.plan = p, .rates = r};
    size_t               values = list->graph->values_count, backward = list->end[LK_BACKWARD];
    size_t               bytes = values * (sizeof *s.finished + sizeof *s.axes);
    int                  runs = lk__plan_runs(p);
    if (!(s.finished = lk__alloc(p->context, LK_MEMORY_OTHER, bytes))) return 0;
    s.axes = (unsigned *)(s.finished + values);
    for (int i = 0; i < runs; i++) {
        run_nodes(&s, 0, backward, i == runs - 1);
        if (i > 0) s.clock += lk__cost_add_sets(p, r);
    }
    double computed = s.clock;
    run_nodes(&s, backward, list->end[LK_SYNC], true);
    run_nodes(&s, list->end[LK_SYNC], list->order_count, true);
    double metrics = 2 * r->latency * (p->shared ? 2 : 1);
    print_uses(&s, o);
    print_imbalance(&s, o);
    if (p->pipeline) s.clock += lk__cost_pipeline(p, r, computed / runs, o) - computed;
    lk__cost_print(o, "  metrics: all_gather of a few numbers per rank, %.3f ms\n", 1e3 * metrics);
    lk__cost_print(o, "critical path %.3f ms\n", 1e3 * (s.clock + metrics));
    lk__free(p->context, LK_MEMORY_OTHER, s.finished, bytes);
    return s.clock + metrics;
}
