/* cost_measured.c - times of operations that were measured with another plan of the same model: the time of an
 * operation that was not measured in this layout is scaled from the one with the nearest amount of work. */
#include "plan/cost.h"

#include <math.h>

/* What the device's typical rates say of a node: its amount of work. */
static double work_of(const lk_plan *p, const lk_graph *g, const lk__graph_node *n)
{
    lk__device_rates rates = p->device->backend->kernels.rates;
    return lk__node_seconds(g, n, rates.flops, rates.memory);
}

lk_status lk_plan_calibrate(lk_plan *p, const lk_plan *measured, const double *seconds, size_t count)
{
    const lk__plan_list *list = &measured->train;
    if (count > list->order_count) count = list->order_count;
    lk__plan_cost_time *times = lk__alloc(p->context, LK_MEMORY_OTHER, (count + 1) * sizeof *times);
    size_t              used = 0;
    if (!times) return LK_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        double                work = work_of(measured, list->graph, n);
        if (seconds[i] > 0 && work > 0) times[used++] = (lk__plan_cost_time){n->op, work, seconds[i]};
    }
    lk__cost_free_times(p);
    p->times = times;
    p->times_count = used;
    p->times_bytes = (count + 1) * sizeof *times;
    return LK_OK;
}

void lk__cost_free_times(lk_plan *p)
{
    lk__free(p->context, LK_MEMORY_OTHER, p->times, p->times_bytes);
    p->times = NULL;
    p->times_count = p->times_bytes = 0;
}

double lk__cost_of_work(const lk_plan *p, lk__op op, double work)
{
    const lk__plan_cost_time *nearest = NULL;
    double                    total = 0, all = 0, least = INFINITY;
    for (size_t i = 0; i < p->times_count; i++) {
        const lk__plan_cost_time *t = &p->times[i];
        double                    distance = fabs(log(work / t->work));
        total += t->seconds;
        all += t->work;
        if (t->op == op && distance < least) nearest = t, least = distance;
    }
    if (work <= 0 || all <= 0) return 0;
    return work * (nearest ? nearest->seconds / nearest->work : total / all); /* else as all others on average */
}

/* Bytes that no cache has, as the update's: at the speed of that, or at the given rate. */
double lk__cost_of_bytes(const lk_plan *p, const lk_rates *r, double bytes)
{
    double work = 0, seconds = 0;
    for (size_t i = 0; i < p->times_count; i++) {
        if (lk__op_find(p->times[i].op)->effect != LK__EFFECT_STATE) continue;
        work += p->times[i].work;
        seconds += p->times[i].seconds;
    }
    return work > 0 ? bytes / p->device->backend->kernels.rates.memory * seconds / work : bytes / r->memory;
}

double lk__cost_node(const lk_plan *p, const lk_rates *r, const lk_graph *g, const lk__graph_node *n)
{
    if (p->times) return lk__cost_of_work(p, n->op, work_of(p, g, n));
    return lk__node_seconds(g, n, r->flops, r->memory);
}
