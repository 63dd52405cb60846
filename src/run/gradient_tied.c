/* gradient_tied.c - gradients by name of weights that several stages of a pipeline hold: each stage has the gradient of
 * its own uses, and the update adds them (plan/pipeline_tied.c). Callers read the same sum. */
#include "run/program.h"

#include "base/reduce.h"
#include "plan/pipeline.h"
#include "plan/pipeline_schedule.h"

/* Behind those of the plan's transfers. */
static int tag_of(const lk_program *p) { return p->plan->pipeline->pairs * LK__PIPELINE_PARTS; }

/* From the last stage to the first, as the update adds. `one`: room for another stage's. */
static lk_status add_stages(lk_program *p, int state, void *data, void *one, size_t bytes)
{
    lk_comm *stages = lk__run_group(p, LK__PLAN_STAGE_AXES);
    lk_dtype type = p->plan->graph->real;
    size_t   count = bytes / lk_dtype_size(type);
    uint64_t held = p->plan->states[state].splits[LK__ARRAY_STORED].held;
    int      own = lk__plan_own_stage(p->plan), next = own;
    char    *sum = (char *)one + bytes;
    for (int stage = lk__plan_stages(p->plan) - 1; stage > own; stage--) {
        const void *both[] = {sum, one};
        if (!(held >> stage & 1)) continue;
        lk_status status = lk_comm_recv(stages, next == own ? sum : one, count, type, stage, tag_of(p), NULL);
        if (status < 0) return status;
        if (next != own) lk__reduce(sum, both, 2, count, type, LK_SUM);
        next = stage;
    }
    lk__reduce(data, (const void *[]){sum, data}, 2, count, type, LK_SUM);
    lk_status status = LK_OK;
    for (int stage = own + 1; stage < lk__plan_stages(p->plan) && status >= 0; stage++)
        if (held >> stage & 1) status = lk_comm_send(stages, data, count, type, stage, tag_of(p), NULL);
    return status;
}

lk_status lk__gradient_add_stages(lk_program *p, int state, void *data)
{
    size_t   bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    int      first = lk__plan_first_holder(p->plan, (size_t)state);
    lk_dtype type = p->plan->graph->real;
    if (!lk__plan_is_tied(p->plan, (size_t)state)) return LK_OK;
    if (lk__plan_own_stage(p->plan) != first) {
        lk_comm  *stages = lk__run_group(p, LK__PLAN_STAGE_AXES);
        size_t    count = bytes / lk_dtype_size(type);
        lk_status status = lk_comm_send(stages, data, count, type, first, tag_of(p), NULL);
        return status < 0 ? status : lk_comm_recv(stages, data, count, type, first, tag_of(p), NULL);
    }
    void *room = lk__alloc(p->context, LK_MEMORY_OTHER, 2 * bytes);
    if (!room) return LK_ENOMEM;
    lk_status status = add_stages(p, state, data, room, bytes);
    lk__free(p->context, LK_MEMORY_OTHER, room, 2 * bytes);
    return status;
}
