/* cost.c - the estimate of a step: the time of each instruction, when each bucket is complete and when it is reduced,
 * and how much of that backward does not hide. Times are measured where given, otherwise arithmetic and bytes over the
 * machine's rates. */
#include "plan/cost.h"
#include "plan/leaf_stack.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double lk__node_seconds(const lk_graph *g, const lk__graph_node *n, double flops, double memory)
{
    const lk__graph_op *d = lk__op_find(n->op);
    return fmax(d->arithmetic(g, n) / flops, d->bytes(g, n) / memory);
}

double lk__cost_instruction(const lk_plan *p, const lk_rates *r, size_t position)
{
    const lk_graph       *g = p->train.graph;
    const lk__graph_node *n = &g->nodes[p->train.order[position]];
    if (lk__op_find(n->op)->runs != LK__RUNS_KERNEL) return 0; /* collectives are estimated by themselves */
    if (r->seconds && position < r->seconds_count) return r->seconds[position];
    return lk__cost_node(p, r, g, n);
}

void lk__cost_print(const lk__plan_cost_output *o, const char *format, ...)
{
    char    text[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (o->write && n > 0) o->write(o->user, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

double lk__cost_section(const lk_plan *p, const lk_rates *r, size_t begin, size_t end)
{
    double total = 0;
    for (size_t i = begin; i < end; i++) total += lk__cost_instruction(p, r, i);
    return total;
}

/* Two sets are read and one is written. */
double lk__cost_add_sets(const lk_plan *p, const lk_rates *r)
{
    bool adds = p->sets > 1 && !p->parallel.leaves && lk__plan_runs(p) > 1;
    return adds ? lk__cost_of_bytes(p, r, 3 * (double)p->gradient_bytes) : 0;
}

/* The position of the kernel that runs at `time` after the start of backward, or the last one. */
static size_t running_at(const lk_plan *p, const lk_rates *r, size_t begin, size_t end, double time)
{
    double at = 0;
    size_t last = begin;
    for (size_t i = begin; i < end && at <= time; i++) {
        if (lk__op_find(p->train.graph->nodes[p->train.order[i]].op)->runs != LK__RUNS_KERNEL) continue;
        at += lk__cost_instruction(p, r, i);
        last = i;
    }
    return last;
}

static const char *instruction_name(const lk_plan *p, size_t position, char *text, size_t size)
{
    const lk__graph_node *n = &p->train.graph->nodes[p->train.order[position]];
    snprintf(text, size, "%s", lk__node_name(p->train.graph, n));
    for (int i = 0; i < n->outputs; i++)
        for (size_t s = 0; n->out[i] >= 0 && s < p->train.graph->states_count; s++)
            if (p->train.gradients[s] == n->out[i])
                snprintf(text, size, "%s of %.60s", lk__node_name(p->train.graph, n), p->train.graph->states[s].name);
    return text;
}

/* An all_reduce over N sends, and receives, 2(N-1)/N of its bytes; a reduce_scatter half of that. */
static double reduction_seconds(const lk_plan *p, const lk_rates *r, double bytes)
{
    double owners = lk__plan_owners(p), ways = p->shared ? 1 : 2, hosts = p->parallel.hosts;
    double within = ways * r->latency + ways * (owners - 1) / owners * bytes / r->link;
    return hosts > 1 ? within + 2 * r->latency + 2 * (hosts - 1) / hosts * bytes / owners / r->link : within;
}

/* How this rank's leaves run and, if not as one batch, because of what. */
static void print_leaves(const lk_plan *p, const lk__plan_cost_output *o)
{
    const lk_parallel *parallel = &p->parallel;
    int                leaves = (int)lk__range_count(lk__plan_own_leaves(p));
    char               batches[32] = "one after the other";
    if (!parallel->leaves) return;
    if (p->batch_leaves) snprintf(batches, sizeof batches, "as one batch");
    if (p->batch_leaves && lk__plan_runs(p) > 1) snprintf(batches, sizeof batches, "as %d batches", lk__plan_runs(p));
    lk__cost_print(o, "  %d of %d leaves, %s", leaves, parallel->leaves, batches);
    if (p->couples >= 0) {
        const lk__graph_node *n = &p->train.graph->nodes[p->couples];
        lk__cost_print(o, ": %s at %s:%d sums over samples within the model", lk__node_name(p->train.graph, n),
                       n->site.file ? n->site.file : "?", n->site.line);
    }
    lk__cost_print(o, "\n");
}

double lk_plan_step(const lk_plan *p, const lk_rates *r, lk_text_callback write, void *user)
{
    const lk__plan_list *list = &p->train;
    lk__plan_cost_output o = {write, user};
    if (!p->trains) return 0;
    size_t begin = list->end[LK_FORWARD], end = list->end[LK_BACKWARD];
    double runs = lk__plan_runs(p);
    double forward = lk__cost_section(p, r, 0, begin), backward = lk__cost_section(p, r, begin, end);
    double update = lk__cost_section(p, r, list->end[LK_SYNC], list->end[LK_UPDATE]) / lk__cost_owners(p);
    double link = 0, finished = 0;
    double sync_seconds = lk__plan_ranks(p) > 1 ? 2 * r->latency : 0, syncs = p->syncs * runs * sync_seconds;
    lk__cost_print(&o, "step of rank %d of %d: %.3f ms forward, %.3f ms backward%s, %.3f ms update\n", lk__plan_rank(p),
                   lk__plan_ranks(p), 1e3 * forward, 1e3 * backward, runs > 1 ? " per micro-batch" : "", 1e3 * update);
    print_leaves(p, &o);
    double add = lk__cost_add_sets(p, r);
    if (add > 0)
        lk__cost_print(&o, "  %.3f ms to accumulate the gradients of each micro-batch after the first\n", 1e3 * add);
    if (lk__cost_has_axes(p)) return lk__cost_mesh(p, r, &o);
    if (p->syncs)
        lk__cost_print(&o,
                       "  %d sums over all ranks in forward and backward (synchronised batch norm), %.3f ms each, not "
                       "overlapped\n",
                       p->syncs, 1e3 * sync_seconds);
    for (size_t i = 0; i < p->buckets_count && lk__plan_batch_parts(p) > 1; i++) {
        const lk__plan_bucket *b = &p->buckets[i];
        double complete = lk__cost_section(p, r, begin, lk__bucket_complete(p, i)), start = fmax(complete, finished);
        char   first[96], last[96];
        finished = start + reduction_seconds(p, r, (double)lk__bucket_sent(p, i));
        link += finished - start;
        lk__cost_print(
            &o,
            "  bucket %zu: %s of %zu bytes (%d tensor%s), complete %.3f ms into backward, in flight %.3f to %.3f ms", i,
            !p->shared               ? "all_reduce"
            : p->parallel.hosts == 1 ? "reduce_scatter"
                                     : "reduce_scatter on every host, then all_reduce of the slices between hosts,",
            lk__bucket_sent(p, i), b->states, b->states == 1 ? "" : "s", 1e3 * complete, 1e3 * start, 1e3 * finished);
        if (start < backward)
            lk__cost_print(
                &o, ", during %s to %s", instruction_name(p, running_at(p, r, begin, end, start), first, sizeof first),
                instruction_name(p, running_at(p, r, begin, end, fmin(finished, backward)), last, sizeof last));
        lk__cost_print(&o, "%s\n",
                       finished > backward ? start < backward ? ", and after backward" : ", after backward" : "");
    }
    if (lk__plan_ranks(p) > 1)
        lk__cost_print(&o, "  metrics: all_gather of a few numbers per rank, %.3f ms\n", 1e3 * sync_seconds);
    if (p->shared)
        lk__cost_print(&o, "  update: each rank updates its slice, then all ranks%s synchronise, %.3f ms\n",
                       p->parallel.hosts > 1 ? " on a host" : "", 1e3 * sync_seconds);
    double exposed = fmax(0, finished - backward);
    double critical =
        runs * (forward + backward) + (runs - 1) * add + syncs + exposed + sync_seconds * (p->shared ? 2 : 1) + update;
    lk__cost_print(&o, "critical path %.3f ms", 1e3 * critical);
    if (link > 0)
        lk__cost_print(&o, ": %.3f ms of %.3f ms on the link are hidden by backward", 1e3 * (link - exposed),
                       1e3 * link);
    lk__cost_print(&o, "\n");
    return critical;
}
