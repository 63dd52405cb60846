/* collective_queue.c - collectives that are queued on streams of the device, for groups whose transport supports that
 * (comm/queue.h). A start makes a stream of collectives wait for the kernels before it and queues the call there; the
 * wait makes the kernels after it wait for the call. The host waits for nothing, so a recording of the program's stream
 * includes both. The group of buckets has a stream of its own, so that the collectives of other groups do not queue
 * behind them; the calls of one group are on one stream, whose order is theirs on all ranks. The calls were compared
 * with those of the other ranks when the program was created (verify.c). */
#include "run/collective.h"
#include "run/interpreter.h"
#include "run/timeline.h"

#include "comm/comm.h"

lk_status lk__collective_queue_create(lk_program *p)
{
    const lk__device_memory *memory = &p->device->backend->memory;
    lk__run_collectives     *x = p->collectives;
    lk_status                status = LK_OK;
    if (!p->group.queued) return LK_OK;
    for (int i = 0; i < LK__RUN_STREAMS && status >= 0; i++) status = memory->stream_create(p->device, &x->streams[i]);
    if (status >= 0) status = memory->event_create(p->device, &x->ready);
    for (size_t i = 0; i < x->count && status >= 0; i++) status = memory->event_create(p->device, &x->all[i].ended);
    return status;
}

void lk__collective_queue_free(lk_program *p)
{
    const lk__device_memory *memory = &p->device->backend->memory;
    lk__run_collectives     *x = p->collectives;
    if (!p->group.queued) return;
    for (int i = 0; i < LK__RUN_STREAMS; i++)
        if (x->streams[i]) memory->stream_free(p->device, x->streams[i]); /* waits for its work */
    for (size_t i = 0; i < x->count; i++) memory->event_free(p->device, x->all[i].ended);
    memory->event_free(p->device, x->ready);
}

static lk_status enqueue(lk_program *p, lk_comm *group, const lk__comm_call *call, lk__device_stream *stream)
{
    lk__comm_stream on = {.device = p->device, .stream = stream, .halted = lk__queue_halted(p)};
    lk_status       status = lk__timeline_before(p, stream);
    if (status >= 0) status = lk__comm_enqueue(group, call, &on);
    lk__run_unit unit = {.name = lk__comm_kind_name(call->kind), .work = LK__WORK_KERNEL};
    return status < 0 ? status : lk__timeline_after(p, stream, &unit);
}

lk_status lk__collective_enqueue(lk_program *p, lk_comm *group, const lk__comm_call *call)
{
    return enqueue(p, group, call, p->stream);
}

lk_status lk__collective_queue(lk_program *p, lk__run_collective *c, lk_comm *group, const lk__comm_call *call)
{
    const lk__device_memory *memory = &p->device->backend->memory;
    lk__run_collectives     *x = p->collectives;
    if (!c) return enqueue(p, group, call, p->stream); /* it has no wait, and no other is in flight */
    lk__device_stream *stream = x->streams[group == x->bulk ? LK__RUN_STREAM_BUCKETS : LK__RUN_STREAM_VALUES];
    lk_status          status = memory->event_record(p->device, x->ready, p->stream);
    if (status >= 0) status = memory->event_wait(p->device, x->ready, stream);
    if (status >= 0) status = enqueue(p, group, call, stream);
    if (status >= 0) status = memory->event_record(p->device, c->ended, stream);
    c->queued = status >= 0;
    return status;
}

lk_status lk__collective_join(lk_program *p, lk__run_collective *c)
{
    c->queued = false;
    return p->device->backend->memory.event_wait(p->device, c->ended, p->stream);
}

/* ---- failures ---- */

enum { GROUPS = LK__MESH_GROUPS + 2 };

/* All groups with queued calls, some of them twice; NULL: there is none. */
static lk_comm *group_at(const lk_program *p, int i)
{
    if (i < LK__MESH_GROUPS) return lk__mesh_group_at(p->mesh, i);
    return i == LK__MESH_GROUPS ? p->collectives->bulk : p->comm;
}

/* The group that has failed; of several one whose cause is known: the others' calls ended because of it. */
static lk_comm *find_failed(const lk_program *p)
{
    for (int i = 0; i < GROUPS; i++)
        if (group_at(p, i) && lk__comm_knows_failure(group_at(p, i))) return group_at(p, i);
    for (int i = 0; i < GROUPS; i++)
        if (group_at(p, i) && lk_comm_status(group_at(p, i)) < 0) return group_at(p, i);
    return NULL;
}

lk_status lk__collective_queue_check(lk_program *p)
{
    lk_comm *failed = p->group.queued ? find_failed(p) : NULL;
    if (!failed) return LK_OK;
    for (int i = 0; i < GROUPS; i++)
        if (group_at(p, i) && group_at(p, i) != failed) lk__comm_fail_as(group_at(p, i), failed);
    return lk__comm_report_failure(failed);
}

/* Whether an update queues calls: the sum of the norm, or what gathers its results. */
static bool update_calls(const lk_program *p)
{
    const lk__run_list *list = &p->slots[0].train;
    for (size_t i = list->at.begin[LK_UPDATE]; p->plan->trains && i < list->at.end[LK_UPDATE]; i++)
        if (lk__action_kind_of(list->instructions[i].action) == LK__IS_START) return true;
    return false;
}

lk_status lk__collective_queue_spoil(lk_program *p, lk_status status)
{
    if (status == LK_EINVAL || status == LK_ENAN) return status; /* found out before anything changes */
    bool gathers = p->plan->stage == 1 || p->plan->stage == 2;
    bool unguarded = !lk__queue_halted(p) && update_calls(p); /* its kernels do not know that one has failed */
    return p->group.queued && (gathers || unguarded) ? lk__store_invalidate(p->store, status) : status;
}

lk_status lk__collective_queue_end_update(lk_program *p)
{
    if (!p->group.queued || !update_calls(p)) return LK_OK;
    lk_status status = lk__collective_queue_wait(p);
    return status < 0 ? lk__collective_queue_spoil(p, status) : LK_OK;
}

lk_status lk__collective_queue_explain(lk_program *p, lk_status status)
{
    lk_comm *bulk = p->collectives ? p->collectives->bulk : NULL;
    if (status >= 0 || !p->group.queued) return status;
    lk_status explained = bulk ? lk__comm_explain(bulk, status) : status;
    if (bulk != p->comm && explained == status) (void)lk__comm_explain(p->comm, status);
    explained = lk__collective_queue_check(p);
    return explained < 0 ? explained : status;
}

lk_status lk__collective_queue_wait(lk_program *p)
{
    if (!p->group.queued) return LK_OK;
    lk_status status = p->device->backend->memory.stream_wait(p->device, p->stream);
    return status < 0 ? lk__collective_queue_explain(p, status) : lk__collective_queue_check(p);
}
