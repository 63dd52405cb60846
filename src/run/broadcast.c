/* broadcast.c - makes the state of all ranks that of rank 0; where values are cut over an axis, that of the first of
 * those that have the same parts. */
#include "run/program.h"

#include "comm/abort.h"

/* Ranks that have the same slices: all, unless an axis cuts values. NULL: this rank alone. */
static lk_comm *equal_ranks(const lk_program *p) { return p->plan->placed_axes ? p->batch : p->comm; }

/* Of the device; through the host where the group does not reach it. */
static lk_status broadcast_memory(lk_program *p, char *memory, size_t bytes)
{
    lk_comm *comm = equal_ranks(p);
    if (bytes == 0 || !comm) return LK_OK;
    if (lk__comm_reaches(comm, p->device)) return lk_comm_broadcast(comm, memory, bytes, LK_U8, 0, NULL);
    lk_status status = LK_OK;
    for (size_t at = 0; at < bytes && status >= 0; at += LK__STAGING_CHUNK) {
        size_t part = bytes - at < LK__STAGING_CHUNK ? bytes - at : LK__STAGING_CHUNK;
        status = lk__device_read(p->device, p->stream, p->memory.chunk, memory + at, part);
        if (status >= 0) status = lk_comm_broadcast(comm, p->memory.chunk, part, LK_U8, 0, NULL);
        if (status >= 0) status = lk__device_write(p->device, p->stream, memory + at, p->memory.chunk, part);
    }
    return status;
}

static lk_status broadcast(lk_program *p, char *data, lk_memory kind)
{
    return broadcast_memory(p, data, p->store->plan->memory[kind]);
}

lk_status lk__program_broadcast_buffers(lk_program *p)
{
    bool own = p->comm && !lk__store_shares_buffers(p->store);
    return own ? broadcast(p, p->store->buffers, LK_MEMORY_BUFFERS) : LK_OK;
}

lk_status lk_program_broadcast(lk_program *p)
{
    if (!p->comm) return LK_OK;
    if (p->store->comm) {
        lk_status status = lk__store_broadcast(p->store);
        return status < 0 ? status : lk__program_broadcast_buffers(p);
    }
    lk_status status = broadcast(p, p->store->parameters, LK_MEMORY_PARAMETERS);
    if (status >= 0) status = broadcast(p, p->store->master, LK_MEMORY_MASTER);
    if (status >= 0) status = broadcast(p, p->store->optimizer, LK_MEMORY_OPTIMIZER);
    return status < 0 ? status : lk__program_broadcast_buffers(p);
}
