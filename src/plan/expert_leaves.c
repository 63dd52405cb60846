/* expert_leaves.c - locates the gradients of experts that the leaves of several ranks compute. */
#include "plan/expert_leaves.h"

#include "plan/experts.h"

lk__leaf_sum lk__source_leaf(const lk_plan *p, int source, int part, int each)
{
    int own = lk__plan_batch_part(p), of = lk__source_part(p, lk__plan_rank(p), source);
    int here = (int)lk__range_count(lk__plan_leaves(p, own)), there = (int)lk__range_count(lk__plan_leaves(p, of));
    int leaf = each ? part + there - here : there - lk__plan_most_leaves(p);
    return leaf < 0 ? (lk__leaf_sum){0, 0, 0} : (lk__leaf_sum){leaf, 1, lk__leaf_set(p, of, leaf)};
}

/* Sets of other sources. */
static size_t other_sets(const lk_plan *p) { return (size_t)(lk__plan_sources(p) - 1) * (size_t)p->sets; }

size_t lk__source_set(const lk_plan *p, const lk__plan_bucket *b, int source, int set)
{
    int    own = lk__plan_own_source(p);
    size_t at = p->memory[LK_MEMORY_GRADIENTS] - lk__source_bytes(p);
    if (source == own) return (size_t)set * p->gradient_bytes + b->offset;
    for (const lk__plan_bucket *x = p->buckets; x < b; x++)
        if (x->experts) at += other_sets(p) * x->bytes;
    return at + ((size_t)(source - (source > own)) * (size_t)p->sets + (size_t)set) * b->bytes;
}

size_t lk__source_bytes(const lk_plan *p)
{
    size_t bytes = 0;
    for (size_t i = 0; i < p->buckets_count && lk__plan_expert_leaves(p); i++)
        if (p->buckets[i].experts) bytes += other_sets(p) * p->buckets[i].bytes;
    return bytes;
}

int lk__source_gradient(const lk_plan *p, const lk__plan_list *list, const lk__graph_node *n)
{
    if (!lk__plan_expert_leaves(p) || !list->gradients) return -1;
    for (size_t i = 0; i < p->graph->states_count; i++)
        for (int k = 0; k < n->outputs && list->gradients[i] >= 0; k++)
            if (n->out[k] == list->gradients[i] && lk__plan_is_expert(p, i)) return (int)i;
    return -1;
}

const lk__plan_bucket *lk__gradient_bucket(const lk_plan *p, size_t state)
{
    const lk__plan_bucket *b = p->buckets;
    size_t                 at = p->states[state].gradient_offset;
    while (b + 1 < p->buckets + p->buckets_count && at >= b->offset + b->bytes) b++;
    return b;
}
