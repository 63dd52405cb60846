/* update.c - calls of a section as arrays, for devices that run several of them in one launch: the update's, since a launch for each of
 * hundreds of small parameters would take longer than their arithmetic; and those of a step of generation. */
#include "run/program.h"

struct lk__run_update {
    const lk__run_list     *list;
    size_t                  begin, end; /* instructions of the section */
    size_t                  bytes;      /* of this struct and its arrays */
    lk__op                 *ops;
    const lk__kernel_call **calls;
};

static lk_status gather_calls(lk_program *p, const lk__run_list *list, lk_section section, lk__run_update **update)
{
    size_t begin = list->begin[section], end = list->end[section], count = end - begin;
    if (begin >= end) return LK_OK;
    size_t          bytes = sizeof **update + count * (sizeof(lk__kernel_call *) + sizeof(lk__op));
    lk__run_update *u = *update = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!u) return LK_ENOMEM;
    u->list = list;
    u->begin = begin;
    u->end = end;
    u->bytes = bytes;
    u->calls = (const lk__kernel_call **)(u + 1);
    u->ops = (lk__op *)(u->calls + count);
    for (size_t i = 0; i < count; i++) {
        u->calls[i] = &list->instructions[begin + i].call;
        u->ops[i] = list->planned->graph->nodes[list->instructions[begin + i].node].op;
    }
    return LK_OK;
}

lk_status lk__update_create(lk_program *p)
{
    lk_status status = LK_OK;
    if (!p->device->backend->run_many) return LK_OK;
    if (p->plan->trains) status = gather_calls(p, &p->slots[0].train, LK_UPDATE, &p->update);
    if (status >= 0 && lk__plan_runs_together(&p->plan->evaluate))
        status = gather_calls(p, &p->evaluate, LK_EVALUATE, &p->step_calls);
    return status;
}

static void free_calls(lk_program *p, lk__run_update *u)
{
    if (u) lk__free(p->context, LK_MEMORY_OTHER, u, u->bytes);
}

void lk__update_free(lk_program *p)
{
    free_calls(p, p->update);
    free_calls(p, p->step_calls);
}

lk_status lk__update_run(lk_program *p, const lk__run_list *list, size_t begin, size_t limit, size_t *end)
{
    const lk__run_update *u = list == &p->evaluate ? p->step_calls : p->update;
    int                   done = 0;
    *end = begin;
    if (!u || list != u->list || begin < u->begin || begin >= u->end) return LK_OK;
    if (limit > u->end) limit = u->end;
    lk_status status = p->device->backend->run_many(p->device, u->ops + (begin - u->begin),
                                                    u->calls + (begin - u->begin), (int)(limit - begin), &done);
    *end = begin + (size_t)done;
    return status;
}
