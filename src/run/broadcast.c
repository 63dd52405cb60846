/* broadcast.c - sends the state of rank 0 to all ranks or, where ranks have slices, the state of the first rank that
 * has the same slices. */
#include "run/collective.h"

#include "comm/queue.h"

static lk_status broadcast_queued(lk_program *p, lk_comm *group, char *memory, size_t bytes)
{
    lk__comm_call call = {
        .kind = LK__BROADCAST, .type = LK_U8, .count = bytes, .send = memory, .recv = memory, .site = LK_HERE};
    lk_status status = lk__collective_enqueue(p, group, &call);
    return status < 0 ? status : lk__collective_queue_wait(p);
}

/* Of the device; through the host where the group does not reach it. */
static lk_status broadcast_memory(lk_program *p, lk_comm *group, char *memory, size_t bytes)
{
    if (bytes == 0 || !group) return LK_OK;
    if (p->group.queued) return broadcast_queued(p, group, memory, bytes);
    if (lk__comm_reaches(group, p->device)) return lk_comm_broadcast(group, memory, bytes, LK_U8, 0, NULL);
    lk_status status = LK_OK;
    for (size_t at = 0; at < bytes && status >= 0; at += LK__STAGING_CHUNK) {
        size_t part = bytes - at < LK__STAGING_CHUNK ? bytes - at : LK__STAGING_CHUNK;
        status = lk__device_read(p->device, p->stream, p->memory.chunk, memory + at, part);
        if (status >= 0) status = lk_comm_broadcast(group, p->memory.chunk, part, LK_U8, 0, NULL);
        if (status >= 0) status = lk__device_write(p->device, p->stream, memory + at, p->memory.chunk, part);
    }
    return status;
}

static lk_status broadcast(lk_program *p, lk_comm *group, char *data, lk_memory kind)
{
    return broadcast_memory(p, group, data, p->store->plan->memory[kind]);
}

/* Ranks that split the batch have the same slices of buffers, and may have computed different values. */
lk_status lk__program_broadcast_buffers(lk_program *p)
{
    bool own = p->batch && !lk__store_shares_buffers(p->store);
    return own ? broadcast(p, p->batch, p->store->buffers, LK_MEMORY_BUFFERS) : LK_OK;
}

/* The ranks that have the same slices of everything; NULL: this one alone. */
static lk_status find_copies(lk_program *p, lk_comm **group)
{
    unsigned axes = LK_AXES_ALL & ~p->plan->split_axes;
    *group = p->plan->split_axes ? NULL : p->comm;
    if (*group || lk__mesh_extent(&p->plan->mesh, axes) == 1) return LK_OK;
    lk_status status = lk_mesh_create_groups(p->mesh, &axes, 1);
    return status < 0 ? status : lk_mesh_group(p->mesh, axes, group);
}

lk_status lk_program_broadcast(lk_program *p)
{
    lk_comm *group;
    if (!p->comm) return LK_OK;
    if (p->store->comm) {
        lk_status status = lk__store_broadcast(p->store);
        return status < 0 ? status : lk__program_broadcast_buffers(p);
    }
    lk_status status = find_copies(p, &group);
    if (status >= 0) status = broadcast(p, group, p->store->parameters, LK_MEMORY_PARAMETERS);
    if (status >= 0) status = broadcast(p, group, p->store->master, LK_MEMORY_MASTER);
    if (status >= 0) status = broadcast(p, group, p->store->optimizer, LK_MEMORY_OPTIMIZER);
    return status < 0 ? status : lk__program_broadcast_buffers(p);
}
