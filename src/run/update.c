/* update.c - the calls of the update section as arrays, for devices that run several of them in one launch: a launch for each of hundreds
 * of small parameters would take longer than their arithmetic. */
#include "run/program.h"

struct lk__run_update {
    size_t                  begin, end; /* instructions of the section */
    size_t                  bytes;      /* of this struct and its arrays */
    lk__op                 *ops;
    const lk__kernel_call **calls;
};

lk_status lk__update_create(lk_program *p)
{
    const lk__run_list *list = &p->slots[0].train;
    size_t              begin = list->begin[LK_UPDATE], end = list->end[LK_UPDATE], count = end - begin;
    if (!p->plan->trains || !p->device->backend->run_many || begin >= end) return LK_OK;
    size_t          bytes = sizeof *p->update + count * (sizeof(lk__kernel_call *) + sizeof(lk__op));
    lk__run_update *u = p->update = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!u) return LK_ENOMEM;
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

void lk__update_free(lk_program *p)
{
    if (p->update) lk__free(p->context, LK_MEMORY_OTHER, p->update, p->update->bytes);
}

lk_status lk__update_run(lk_program *p, size_t begin, size_t *end)
{
    const lk__run_update *u = p->update;
    int                   done = 0;
    *end = begin;
    if (begin < u->begin || begin >= u->end) return LK_OK;
    lk_status status = p->device->backend->run_many(p->device, u->ops + (begin - u->begin),
                                                    u->calls + (begin - u->begin), (int)(u->end - begin), &done);
    *end = begin + (size_t)done;
    return status;
}
