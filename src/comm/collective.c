/* collective.c - the public collectives. Calls are validated here, so backends get valid operations. An invalid call
 * fails on the rank that made it and leaves the group unchanged. */
#include "comm/comm.h"

typedef enum needs { SEND_BUFFER = 1, RECV_BUFFER = 2, REDUCES = 4, ROOTED = 8, BLOCKS = 16, COUNTS = 32 } needs;

static lk_status check_call(lk_comm *c, const lk__comm_call *o, int needs)
{
    const char *name = lk__comm_kind_name(o->kind);
    size_t      size = lk_dtype_size(o->type), most = o->count, furthest = 0;
    if (size == 0)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: unknown type %d", o->site.file, o->site.line, name,
                        (int)o->type);
    if ((needs & REDUCES) && (unsigned)o->reduce > LK_PROD)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: unknown reduction %d", o->site.file, o->site.line, name,
                        (int)o->reduce);
    if ((needs & ROOTED) && (o->root < 0 || o->root >= c->size))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: there is no rank %d in a group of %d", o->site.file,
                        o->site.line, name, o->root, c->size);
    if ((needs & COUNTS) && (!o->recv_counts || !o->recv_displacements))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: counts and displacements are required, one per rank",
                        o->site.file, o->site.line, name);
    for (int i = 0; (needs & COUNTS) && i < c->size; i++) {
        size_t largest = o->recv_counts[i];
        if (o->send_counts && o->send_counts[i] > largest) largest = o->send_counts[i];
        if (largest > most) most = largest;
        if (o->recv_displacements[i] > furthest) furthest = o->recv_displacements[i];
        if (o->send_displacements && o->send_displacements[i] > furthest) furthest = o->send_displacements[i];
    }
    if (most > SIZE_MAX / 4 / size / ((needs & BLOCKS) ? (size_t)c->size : 1))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: %zu elements are more than can be addressed", o->site.file,
                        o->site.line, name, most);
    if (furthest > SIZE_MAX / 4 / size) /* so that adding a count does not overflow */
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: a displacement of %zu elements is more than can be addressed",
                        o->site.file, o->site.line, name, furthest);
    if (most > 0 && (((needs & SEND_BUFFER) && !o->send) || ((needs & RECV_BUFFER) && !o->recv)))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: a buffer is NULL", o->site.file, o->site.line, name);
    bool in_place = o->send == o->recv && (o->kind == LK__ALL_REDUCE || o->kind == LK__BROADCAST);
    if (!in_place && o->send && o->recv && !lk__call_buffers_fit(o, c->rank, c->size))
        return lk__fail(
            c->context, LK_EINVAL,
            "%s:%d: %s: the send and receive buffers overlap: give separate buffers, or call it in place as "
            "lockstep/comm.h describes",
            o->site.file, o->site.line, name);
    return LK_OK;
}

static lk_status check_and_submit(lk_comm *c, const lk__comm_call *o, int needs, lk_work **work)
{
    if (work) *work = NULL;
    lk_status status = check_call(c, o, needs);
    return status < 0 ? status : lk__work_submit(c, o, work);
}

lk_status lk_comm_all_reduce_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_reduce_op op, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__ALL_REDUCE, .type = type, .reduce = op, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | RECV_BUFFER | REDUCES, work);
}

lk_status lk_comm_reduce_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                            lk_reduce_op op, int root, lk_work **work)
{
    lk__comm_call o = {.kind = LK__REDUCE,
                       .type = type,
                       .reduce = op,
                       .root = root,
                       .count = count,
                       .send = send,
                       .recv = recv,
                       .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | (c->rank == root ? RECV_BUFFER : 0) | REDUCES | ROOTED, work);
}

lk_status lk_comm_broadcast_at(lk_site site, lk_comm *c, void *buffer, size_t count, lk_dtype type, int root,
                               lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__BROADCAST, .type = type, .root = root, .count = count, .send = buffer, .recv = buffer, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | ROOTED, work);
}

lk_status lk_comm_all_gather_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_GATHER, .type = type, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | RECV_BUFFER | BLOCKS, work);
}

lk_status lk_comm_reduce_scatter_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                    lk_reduce_op op, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__REDUCE_SCATTER, .type = type, .reduce = op, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | RECV_BUFFER | REDUCES | BLOCKS, work);
}

lk_status lk_comm_gather_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                            int root, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__GATHER, .type = type, .root = root, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | (c->rank == root ? RECV_BUFFER : 0) | ROOTED | BLOCKS, work);
}

lk_status lk_comm_scatter_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                             int root, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__SCATTER, .type = type, .root = root, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, RECV_BUFFER | (c->rank == root ? SEND_BUFFER : 0) | ROOTED | BLOCKS, work);
}

lk_status lk_comm_all_to_all_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_TO_ALL, .type = type, .count = count, .send = send, .recv = recv, .site = site};
    return check_and_submit(c, &o, SEND_BUFFER | RECV_BUFFER | BLOCKS, work);
}

/* Where this rank sends nothing, send may be NULL. */
static int need_send_buffer(const lk_comm *c, const size_t *counts)
{
    return counts && counts[c->rank] ? SEND_BUFFER : 0;
}

lk_status lk_comm_all_gatherv_at(lk_site site, lk_comm *c, const void *send, void *recv, const size_t *counts,
                                 const size_t *displacements, lk_dtype type, lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_GATHERV,
                       .type = type,
                       .send = send,
                       .recv = recv,
                       .recv_counts = counts,
                       .recv_displacements = displacements,
                       .site = site};
    return check_and_submit(c, &o, need_send_buffer(c, counts) | RECV_BUFFER | BLOCKS | COUNTS, work);
}

lk_status lk_comm_gatherv_at(lk_site site, lk_comm *c, const void *send, void *recv, const size_t *counts,
                             const size_t *displacements, lk_dtype type, int root, lk_work **work)
{
    lk__comm_call o = {.kind = LK__GATHERV,
                       .type = type,
                       .root = root,
                       .send = send,
                       .recv = recv,
                       .recv_counts = counts,
                       .recv_displacements = displacements,
                       .site = site};
    return check_and_submit(
        c, &o, need_send_buffer(c, counts) | (c->rank == root ? RECV_BUFFER : 0) | ROOTED | BLOCKS | COUNTS, work);
}

lk_status lk_comm_all_to_allv_at(lk_site site, lk_comm *c, const void *send, const size_t *send_counts,
                                 const size_t *send_displacements, void *recv, const size_t *recv_counts,
                                 const size_t *recv_displacements, lk_dtype type, lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_TO_ALLV,
                       .type = type,
                       .send = send,
                       .recv = recv,
                       .send_counts = send_counts,
                       .send_displacements = send_displacements,
                       .recv_counts = recv_counts,
                       .recv_displacements = recv_displacements,
                       .site = site};
    if (work) *work = NULL;
    if (!send_counts || !send_displacements)
        return lk__fail(c->context, LK_EINVAL,
                        "%s:%d: all_to_allv: counts and displacements are required, one per rank", site.file, site.line);
    int buffers = 0;
    for (int i = 0; recv_counts && i < c->size; i++)
        buffers |= (send_counts[i] ? SEND_BUFFER : 0) | (recv_counts[i] ? RECV_BUFFER : 0);
    return check_and_submit(c, &o, buffers | BLOCKS | COUNTS, work);
}

static lk_status submit_transfer(lk_comm *c, const lk__comm_call *o, int buffer, lk_work **work)
{
    if (work) *work = NULL;
    if (o->root == c->rank)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: rank %d cannot transfer to itself; copy instead",
                        o->site.file, o->site.line, lk__comm_kind_name(o->kind), c->rank);
    return check_and_submit(c, o, buffer | ROOTED, work);
}

lk_status lk_comm_send_at(lk_site site, lk_comm *c, const void *buffer, size_t count, lk_dtype type, int to, int tag,
                          lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__SEND, .type = type, .root = to, .tag = tag, .count = count, .send = buffer, .site = site};
    return submit_transfer(c, &o, SEND_BUFFER, work);
}

lk_status lk_comm_recv_at(lk_site site, lk_comm *c, void *buffer, size_t count, lk_dtype type, int from, int tag,
                          lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__RECV, .type = type, .root = from, .tag = tag, .count = count, .recv = buffer, .site = site};
    return submit_transfer(c, &o, RECV_BUFFER, work);
}

lk_status lk_comm_barrier_at(lk_site site, lk_comm *c, lk_work **work)
{
    lk__comm_call o = {.kind = LK__BARRIER, .type = LK_U8, .site = site};
    return check_and_submit(c, &o, 0, work);
}
