/* queue.c - what a group can do with a device, and calls that are queued on its streams. Queued calls are checked here
 * in the same way as blocking calls, so transports get only valid ones. */
#include "comm/comm.h"

lk__comm_abilities lk__comm_abilities_on_host(const lk_comm *c, const lk__device *device)
{
    (void)c;
    return (lk__comm_abilities){.reaches = lk__device_is_host(device), .canonical = true};
}

lk__comm_abilities lk__comm_abilities_for(const lk_comm *c, const lk__device *device)
{
    return c->backend->abilities(c, device);
}

bool lk__comm_reaches(const lk_comm *c, const lk__device *device) { return lk__comm_abilities_for(c, device).reaches; }

static lk_status refuse_device(lk_comm *c, const lk__device *device, const char *what)
{
    return lk__fail(c->context, LK_EUNSUPPORTED, "%s: backend %s cannot queue calls on the device %s", what,
                    c->backend->name, device->backend->name);
}

lk_status lk__comm_enqueue(lk_comm *c, const lk__comm_call *call, const lk__comm_stream *on)
{
    if (!lk__comm_abilities_for(c, on->device).queues)
        return refuse_device(c, on->device, lk__comm_kind_name(call->kind));
    lk_status status = lk__comm_check(c, call);
    if (status < 0) return status;
    if (lk_comm_status(c) < 0) return lk__comm_report_failure(c);
    return c->backend->enqueue(c, call, on);
}

bool lk__comm_knows_failure(lk_comm *c)
{
    const lk__comm_backend *b = c->backend;
    if (atomic_load(&c->failed) == LK_OK) (void)(b->known_failure ? b->known_failure(c) : b->failure(c));
    return atomic_load(&c->failed) < 0 && c->cause.kind != LK__CAUSE_UNKNOWN;
}

void lk__comm_fail_as(lk_comm *c, lk_comm *failed)
{
    c->backend->raise(c, (lk_status)atomic_load(&failed->failed), failed->text, failed->cause);
}

lk_status lk__comm_explain(lk_comm *c, lk_status status)
{
    return c->backend->explain ? c->backend->explain(c, status) : status;
}
