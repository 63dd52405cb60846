/* groups.c - neighbouring calls of one operation in the update (a norm and an optimizer for each parameter) that the device runs together:
 * a launch for each of hundreds of small parameters would take longer than their arithmetic. */
#include "run/program.h"

enum { MOST = 4096 }; /* calls of a group */

static lk_status group_calls(lk_program *p, lk__run_list *list, size_t begin, size_t end)
{
    const lk__device_backend *backend = p->device->backend;
    const lk__kernel_call    *calls[MOST];
    lk__op                    op = list->planned->graph->nodes[list->instructions[begin].node].op;
    lk__run_instruction      *first = &list->instructions[begin];
    for (size_t i = begin; i < end; i++) calls[i - begin] = &list->instructions[i].call;
    first->grouped = (int)(end - begin);
    return backend->group_create(p->device, op, calls, first->grouped, &first->group);
}

lk_status lk__groups_create(lk_program *p)
{
    lk__run_list *list = &p->slots[0].train;
    lk_status     status = LK_OK;
    if (!p->plan->trains || !p->device->backend->group_create) return LK_OK;
    for (size_t i = list->begin[LK_UPDATE], stop; i < list->end[LK_UPDATE] && status >= 0; i = stop) {
        const lk__graph_node *nodes = list->planned->graph->nodes;
        for (stop = i + 1; stop < list->end[LK_UPDATE] && stop - i < MOST;) {
            bool same = list->instructions[stop].kind == LK__RUNS_KERNEL &&
                        nodes[list->instructions[stop].node].op == nodes[list->instructions[i].node].op;
            if (!same) break;
            stop++;
        }
        if (stop - i > 1 && list->instructions[i].kind == LK__RUNS_KERNEL) status = group_calls(p, list, i, stop);
    }
    return status;
}

void lk__groups_free(lk_program *p)
{
    lk__run_list *list = p->slots ? &p->slots[0].train : NULL;
    for (size_t i = 0; list && list->instructions && i < list->count; i++)
        if (list->instructions[i].group) p->device->backend->group_free(p->device, list->instructions[i].group);
}
