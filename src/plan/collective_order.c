/* collective_order.c - the collectives of a schedule in the order in which a rank takes part in them, and the first
 * difference between two ranks: there they would wait for each other, or add unrelated values. */
#include "plan/verify_schedule.h"

#include <stdio.h>

static bool takes_part(const lk__plan_instruction *in)
{
    lk__plan_action_kind kind = lk__action_kind_of(in->action);
    if (lk__action_transfers(in->action)) return false; /* simulated: plan/pipeline_schedule.h */
    return kind == LK__IS_START || kind == LK__IS_COLLECTIVE || in->action == LK__DO_LOSS_SCALES;
}

/* The scales of several losses are exchanged once in a step. */
static bool is_repeated(const lk__plan_order_list *order, size_t first, const lk__plan_instruction *in)
{
    for (size_t i = first; i < order->count && in->action == LK__DO_LOSS_SCALES; i++)
        if (order->all[i].action == in->action) return true;
    return false;
}

static bool is_queued(const lk__plan_checked *x, const lk__plan_instruction *in)
{
    return x->group.queued && (in->action == LK__DO_START || in->action == LK__DO_START_BUCKET ||
                               in->action == LK__DO_START_SHARD || in->action == LK__DO_SUM_NUMBERS);
}

static lk__plan_collective describe(const lk__plan_checked *x, const lk__plan_instruction *in)
{
    const lk_graph     *g = x->list->graph;
    lk__plan_collective c = {.action = in->action, .bucket = in->bucket, .type = LK_F64, .queued = is_queued(x, in)};
    if (in->action == LK__DO_START_STAGED) c.action = LK__DO_START; /* the same to the other ranks */
    if (in->node >= 0) {
        const lk__graph_node  *n = &g->nodes[in->node];
        const lk__graph_shape *s = &g->values[n->in[0]].shape;
        c.op = n->op;
        c.group = (int)n->attrs.group;
        c.axes = lk__node_axes(n);
        c.elements = lk__shape_elements(s);
        c.type = s->dtype;
    }
    if (in->bucket >= 0) {
        const lk__plan_bucket *b = &x->plan->buckets[in->bucket];
        c.elements = (int64_t)(b->bytes / lk_dtype_size(b->dtype));
        c.type = lk__bucket_type(x->plan, b);
    }
    return c;
}

lk_status lk__collective_order(const lk__plan_checked *x, lk__plan_order_list *order)
{
    size_t before = order->count;
    for (size_t r = 0; r < x->schedule->count; r++) {
        const lk__schedule_run *run = &x->schedule->runs[r];
        size_t                  end = lk__schedule_end(&x->instructions->at, run);
        for (size_t i = lk__schedule_begin(&x->instructions->at, run); i < end; i++) {
            const lk__plan_instruction *in = &x->instructions->all[i];
            if ((in->when & ~run->flags) || !takes_part(in) || is_repeated(order, before, in)) continue;
            lk_status status = lk__grow(x->plan->context, (void **)&order->all, &order->capacity, order->count + 1,
                                        sizeof *order->all);
            if (status < 0) return status;
            order->all[order->count++] = describe(x, in);
        }
    }
    return LK_OK;
}

lk_status lk__collective_order_of(const lk_plan *plan, lk__plan_group group, lk__schedule_kind kind,
                                  lk__plan_order_list *order)
{
    lk__plan_schedule     schedule;
    lk__plan_instructions instructions = {.all = NULL};
    lk_status             status = lk__plan_schedule_make(plan, kind, &schedule);
    if (status < 0 || schedule.count == 0) return status;
    const lk__plan_list *list = schedule.runs[0].list;
    lk__plan_checked     check = {
            .plan = plan, .group = group, .list = list, .instructions = &instructions, .schedule = &schedule};
    if ((status = lk__plan_instruct(plan, list, group, &instructions)) >= 0)
        status = lk__collective_order(&check, order);
    lk__plan_instructions_free(plan->context, &instructions);
    lk__plan_schedule_free(plan->context, &schedule);
    return status;
}

void lk__collective_order_free(lk_context *c, lk__plan_order_list *order)
{
    lk__free(c, LK_MEMORY_OTHER, order->all, order->capacity * sizeof *order->all);
    *order = (lk__plan_order_list){.all = NULL};
}

static bool is_same(const lk__plan_collective *a, const lk__plan_collective *b)
{
    return a->action == b->action && a->op == b->op && a->bucket == b->bucket && a->elements == b->elements &&
           a->type == b->type && a->group == b->group && a->axes == b->axes && a->queued == b->queued;
}

void lk__collective_text(const lk__plan_order_list *order, size_t i, char *text, size_t bytes)
{
    const lk__plan_collective *c = i < order->count ? &order->all[i] : NULL;
    char                       axes[64];
    const char                *queued = c && c->queued ? ", queued" : "";
    if (!c)
        snprintf(text, bytes, "missing");
    else if (c->bucket >= 0)
        snprintf(text, bytes, "\"%s\" of bucket %d, %lld elements of %s%s", lk__action_name(c->action), c->bucket,
                 (long long)c->elements, lk_dtype_name(c->type), queued);
    else if (c->elements)
        snprintf(text, bytes, "\"%s\" of %s along %s, %lld elements of %s%s", lk__action_name(c->action),
                 lk__op_name(c->op), lk__axes_text(c->axes, axes, sizeof axes), (long long)c->elements,
                 lk_dtype_name(c->type), queued);
    else
        snprintf(text, bytes, "\"%s\"", lk__action_name(c->action));
}

lk_status lk__collective_order_compare(const lk__plan_order_list *a, int rank_a, const lk__plan_order_list *b,
                                       int rank_b, char *text, size_t bytes)
{
    char   one[128], other[128];
    size_t i = 0;
    while (i < a->count && i < b->count && is_same(&a->all[i], &b->all[i])) i++;
    if (i == a->count && i == b->count) return LK_OK;
    lk__collective_text(a, i, one, sizeof one);
    lk__collective_text(b, i, other, sizeof other);
    snprintf(text, bytes, "collective %zu of the schedule is %s on rank %d and %s on rank %d", i, one, rank_a, other,
             rank_b);
    return LK_EMISMATCH;
}
