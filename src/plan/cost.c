/* cost.c - a step on paper: how long each instruction takes, when each bucket is whole, travels and arrives, and what of that
 * nothing hides. Times are measured ones where they are given, else arithmetic and bytes over the machine's rates. */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double lk__node_seconds(const lk_graph *g, const lk__graph_node *n, double flops, double memory)
{
    const lk__graph_op *d = lk__op_find(n->op);
    return fmax(d->arithmetic(g, n) / flops, d->bytes(g, n) / memory);
}

/* Seconds of the instruction at a position of the order. */
static double takes(const lk_plan *p, const lk_rates *r, size_t position)
{
    const lk_graph       *g = p->train.graph;
    const lk__graph_node *n = &g->nodes[p->train.order[position]];
    if (r->seconds && position < r->seconds_count) return r->seconds[position];
    return lk__node_seconds(g, n, r->flops, r->memory);
}

typedef struct page {
    lk_write write;
    void    *user;
} page;

__attribute__((format(printf, 2, 3))) static void say(const page *o, const char *format, ...)
{
    char    text[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (o->write && n > 0) o->write(o->user, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static double section_seconds(const lk_plan *p, const lk_rates *r, size_t begin, size_t end)
{
    double total = 0;
    for (size_t i = begin; i < end; i++) total += takes(p, r, i);
    return total;
}

/* What runs at `time`, counted from the start of backward. */
static size_t running_at(const lk_plan *p, const lk_rates *r, size_t begin, size_t end, double time)
{
    double at = 0;
    size_t i = begin;
    for (; i + 1 < end; i++)
        if ((at += takes(p, r, i)) > time) break;
    return i;
}

static const char *name_at(const lk_plan *p, size_t position, char *text, size_t size)
{
    const lk__graph_node *n = &p->train.graph->nodes[p->train.order[position]];
    snprintf(text, size, "%s", lk__op_name(n->op));
    for (int i = 0; i < n->outputs; i++)
        for (size_t s = 0; n->out[i] >= 0 && s < p->train.graph->states_count; s++)
            if (p->train.gradients[s] == n->out[i])
                snprintf(text, size, "%s of %.60s", lk__op_name(n->op), p->train.graph->states[s].name);
    return text;
}

/* An all_reduce sends, and receives, 2(N-1)/N of its bytes. */
static double travels(const lk_plan *p, const lk_rates *r, double bytes)
{
    double world = p->parallel.world;
    return 2 * r->latency + 2 * (world - 1) / world * bytes / r->link;
}

double lk_plan_step(const lk_plan *p, const lk_rates *r, lk_write write, void *user)
{
    const lk__plan_order *t = &p->train;
    page                  o = {write, user};
    if (!p->trains) return 0;
    size_t begin = t->end[LK_FORWARD], end = t->end[LK_BACKWARD];
    double runs = p->parallel.leaves && !p->parallel.batch_leaves ? p->sets : p->parallel.micro_batches;
    double forward = section_seconds(p, r, 0, begin), backward = section_seconds(p, r, begin, end);
    double update = section_seconds(p, r, t->end[LK_SYNC], t->end[LK_UPDATE]), link = 0, arrived = 0;
    double meeting = p->parallel.world > 1 ? 2 * r->latency : 0, syncs = p->syncs * runs * meeting;
    say(&o, "step of rank %d of %d: %.3f ms forward, %.3f ms backward%s, %.3f ms update\n", p->parallel.rank,
        p->parallel.world, 1e3 * forward, 1e3 * backward, runs > 1 ? " a micro-batch" : "", 1e3 * update);
    if (p->syncs)
        say(&o, "  %d sums over all ranks within them (synchronised batch norm), each %.3f ms, which nothing hides\n",
            p->syncs, 1e3 * meeting);
    for (size_t i = 0; i < p->buckets_count && p->parallel.world > 1; i++) {
        const lk__plan_bucket *b = &p->buckets[i];
        double                 whole = section_seconds(p, r, begin, b->after + 1), start = fmax(whole, arrived);
        char                   first[96], last[96];
        arrived = start + travels(p, r, (double)b->bytes);
        link += arrived - start;
        say(&o,
            "  bucket %zu: all_reduce of %zu bytes (%d tensor%s), whole %.3f ms into backward, travels %.3f to %.3f ms",
            i, b->bytes, b->states, b->states == 1 ? "" : "s", 1e3 * whole, 1e3 * start, 1e3 * arrived);
        if (start < backward)
            say(&o, ", over %s to %s", name_at(p, running_at(p, r, begin, end, start), first, sizeof first),
                name_at(p, running_at(p, r, begin, end, fmin(arrived, backward)), last, sizeof last));
        say(&o, "%s\n", arrived > backward ? start < backward ? ", and past its end" : ", after its end" : "");
    }
    if (p->parallel.world > 1) say(&o, "  metrics: all_gather of a few numbers a rank, %.3f ms\n", 1e3 * meeting);
    double exposed = fmax(0, arrived - backward);
    double critical = runs * (forward + backward) + syncs + exposed + meeting + update;
    say(&o, "critical path %.3f ms", 1e3 * critical);
    if (link > 0)
        say(&o, ": %.3f ms of %.3f ms on the link are hidden by backward", 1e3 * (link - exposed), 1e3 * link);
    say(&o, "\n");
    return critical;
}

size_t lk_plan_instructions(const lk_plan *p) { return p->train.order_count; }

int64_t lk_plan_capacity(const lk_plan *p)
{
    const lk_graph *g = p->graph;
    int64_t         least = INT64_MAX;
    for (size_t i = 0; i < g->values_count; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && g->values[i].shape.count_axis >= 0 &&
            g->values[i].shape.dims[0] < least)
            least = g->values[i].shape.dims[0];
    return least;
}
