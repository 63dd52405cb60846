/* placement_pass.c - the placement pass of one list: finds placements, gives states their slices, and rewrites the
 * list's graph to what this rank computes. */
#include "plan/sum_parts.h"

/* Of a plan that is like another one (like.h). */
static bool has_splits(const lk_plan *p)
{
    for (size_t i = 0; i < p->graph->states_count; i++)
        if (p->states[i].splits[LK__ARRAY_STORED].count) return true;
    return false;
}

lk_status lk__pass_placement(lk_plan *p, lk__plan_list *list, const lk_plan_config *config, size_t *forward)
{
    lk__placements      placements;
    bool                first = !p->trains || list == &p->train; /* the list by which states are placed */
    bool                placed = !first || has_splits(p);
    lk__placement_rules rules = {.axis = p->placed_axes,
                                 .placed = placed,
                                 .whole_sequences = config->no_sequence_parallel,
                                 .tactics = config->tactics};
    if (!p->placed_axes) return LK_OK;
    lk_status status = lk__placements_find(p, list, &rules, forward, &placements);
    if (status < 0) return status;
    if (p->parallel.reproducible_layout && p->trains) status = lk__sum_parts_check(p, list, &placements);
    if (first && status >= 0) status = lk__plan_place_states(p, NULL, config->optimizer);
    if (status >= 0) status = lk__placements_apply(p, list, &placements, forward);
    /* In every layout the same: each product's sum over the ranks is complete, and rounded, before it is added. */
    if (status >= 0 && !p->parallel.reproducible_layout) status = lk__plan_merge_sums(p, list, forward);
    lk__placements_free(p->context, &placements);
    return status;
}
