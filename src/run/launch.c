/* launch.c - launch groups: kernels of a section as arrays, for devices that run several of them in one launch: the update's, since a launch
 * for each of hundreds of small parameters would take longer than their arithmetic; those of a step that is queued, and of a step of
 * generation. */
#include "run/program.h"

struct lk__run_launch {
    const lk__run_list     *list;
    lk__device_nodes        nodes;
    size_t                  begin, end; /* instructions */
    size_t                  count;      /* kernels among them */
    size_t                  bytes;      /* of this struct and its arrays */
    const lk__kernel_call **calls;      /* by number in the group */
    size_t                 *at;         /* the same: instruction */
    lk__op                 *ops;
};

static size_t count_kernels(const lk__run_list *list, size_t begin, size_t end)
{
    size_t count = 0;
    for (size_t i = begin; i < end; i++) count += list->instructions[i].action == LK__DO_KERNEL;
    return count;
}

static lk_status gather_calls(lk_program *p, lk__device_nodes nodes, lk__run_list *list, size_t begin, size_t end,
                              lk__run_launch **update)
{
    size_t count = count_kernels(list, begin, end);
    if (count == 0) return LK_OK;
    size_t          bytes = sizeof **update + count * (sizeof(lk__kernel_call *) + sizeof(size_t) + sizeof(lk__op));
    lk__run_launch *u = *update = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!u) return LK_ENOMEM;
    *u = (lk__run_launch){.list = list, .nodes = nodes, .begin = begin, .end = end, .bytes = bytes};
    u->calls = (const lk__kernel_call **)(u + 1);
    u->at = (size_t *)(u->calls + count);
    u->ops = (lk__op *)(u->at + count);
    for (size_t i = begin; i < end; i++) {
        lk__run_instruction *in = &list->instructions[i];
        if (in->action != LK__DO_KERNEL) continue;
        in->launch = (int)u->count;
        u->calls[u->count] = &in->call;
        u->at[u->count] = i;
        u->ops[u->count++] = in->op;
    }
    return LK_OK;
}

lk_status lk__launch_create(lk_program *p)
{
    lk_status status = LK_OK;
    if (!p->device->backend->run_many) return LK_OK;
    lk__run_list *train = &p->slots[0].train, *evaluate = &p->evaluate;
    if (p->plan->trains)
        status = gather_calls(p, LK__NODES_OF_UPDATE, train, train->begin[LK_UPDATE], train->end[LK_UPDATE],
                              &p->launches[LK__LAUNCH_UPDATE]);
    if (status >= 0 && p->plan->trains && lk__plan_queues(p->plan)) /* one rank, and all are kernels */
        status = gather_calls(p, LK__NODES_OF_TRAINING, train, train->begin[LK_FORWARD], train->end[LK_BACKWARD],
                              &p->launches[LK__LAUNCH_TRAINING]);
    if (status >= 0 && lk__plan_runs_together(&p->plan->evaluate))
        status = gather_calls(p, LK__NODES_OF_GENERATION, evaluate, evaluate->begin[LK_EVALUATE],
                              evaluate->end[LK_EVALUATE], &p->launches[LK__LAUNCH_GENERATION]);
    return status;
}

void lk__launch_free(lk_program *p)
{
    for (int i = 0; i < LK__LAUNCHES; i++)
        if (p->launches[i]) lk__free(p->context, LK_MEMORY_OTHER, p->launches[i], p->launches[i]->bytes);
}

static bool has_call(const lk__run_launch *u, const lk__run_list *list, size_t at)
{
    return u && list == u->list && at >= u->begin && at < u->end;
}

lk_status lk__launch_group(lk_program *p, const lk__run_list *list, size_t at, size_t limit, size_t *end, bool *launched)
{
    const lk__run_launch *u = NULL;
    int                   first = list->instructions[at].launch, done = 0;
    for (int i = 0; i < LK__LAUNCHES && first >= 0; i++)
        if (has_call(p->launches[i], list, at)) u = p->launches[i];
    if (!u) return LK_OK;
    size_t behind = (size_t)first;
    while (behind < u->count && u->at[behind] < limit) behind++;
    lk_status status =
        p->device->backend->run_many(p->device, u->nodes, u->ops + first, u->calls + first, (int)behind - first, &done);
    *launched = done > 0;
    if (done > 0) *end = u->at[first + done - 1] + 1;
    return status;
}

lk_status lk__launch_end_step(lk_program *p, const lk__device_numbers *numbers, lk__device_result *results, bool *done)
{
    const lk__run_launch *u = p->launches[LK__LAUNCH_UPDATE];
    *done = false;
    if (!u || !p->device->backend->end_step) return LK_OK;
    return p->device->backend->end_step(p->device, numbers, u->ops, u->calls, (int)u->count, results, done);
}
