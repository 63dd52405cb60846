/* checkpoint_isa.c - the instruction set of the kernels that computed a checkpoint: checks whether a run that continues
 * from it uses another one, which rounds differently. */
#include "train/checkpoint.h"

#include "device/kernel.h"

#include <string.h>

const char *lk__checkpoint_isa(const lk_store *store)
{
    return store->plan->device->backend->kernels.host_isa ? lk_context_isa(store->context) : "";
}

/* Sets may have some kernels in common: those of f32 where one adds instructions for a narrower type. */
static bool is_same_kernel(lk__op op, lk_dtype element, const char *a, const char *b)
{
    return lk__cpu_kernel(element, a, op) == lk__cpu_kernel(element, b, op);
}

static bool uses_same_kernels(const lk__plan_list *list, const char *a, const char *b)
{
    for (size_t i = 0; list->graph && i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_KERNEL || lk__node_custom(list->graph, n)) continue;
        if (!is_same_kernel(n->op, lk__node_element(list->graph, n), a, b)) return false;
    }
    return true;
}

bool lk__checkpoint_isa_differs(const lk_store *store, const char *saved)
{
    const lk_plan *p = store->plan;
    const char    *isa = lk__checkpoint_isa(store);
    if (!saved[0] || !isa[0] || strcmp(saved, isa) == 0) return false;
    return !uses_same_kernels(&p->train, saved, isa) || !uses_same_kernels(&p->evaluate, saved, isa);
}
