/* like.c - creates a plan whose states are split in the same way as the states of another plan. */
#include "plan/like.h"

#include <string.h>

void lk__plan_place_like(void *user, const lk_plan *p, size_t state, lk__plan_array array, lk__plan_splits *splits)
{
    const lk_plan *like = user;
    (void)p;
    *splits = like->states[state].splits[array];
}

/* Those along axes that cut values; slices along shard follow from the states by themselves. */
void lk__plan_copy_splits(lk_plan *p, const lk_plan *like)
{
    for (size_t i = 0; i < p->graph->states_count; i++)
        for (int a = 0; a < LK__ARRAY_COUNT; a++) {
            const lk__plan_splits *from = &like->states[i].splits[a];
            lk__plan_splits       *to = &p->states[i].splits[a];
            for (int k = 0; k < from->count; k++)
                if (from->split[k].axes & p->placed_axes) to->split[to->count++] = from->split[k];
        }
}

lk_status lk__plan_create_like(lk_graph *graph, const lk_plan_config *config, const lk_plan *like, lk_plan **plan)
{
    lk__plan_placement placement = {.place = lk__plan_place_like, .user = (void *)like};
    bool               same = graph->states_count == like->graph->states_count;
    for (size_t i = 0; i < graph->states_count && same; i++)
        same = strcmp(graph->states[i].name, like->graph->states[i].name) == 0;
    *plan = NULL;
    if (!same && graph->status >= 0)
        return lk__fail(graph->context, LK_EMISMATCH,
                        "the graph's states differ from those of the plan that it must match");
    return lk__plan_create_placed(graph, config, false, &placement, plan);
}
