/* collective.c - the public collectives. Calls are validated here, so backends get valid operations. An invalid call
 * fails on the rank that made it and leaves the group unchanged. */
#include "comm/comm.h"

/* Whether this rank's buffers must not be NULL, where there is anything to move. */
static bool needs_send(const lk_comm *c, const lk__comm_call *o)
{
    if (lk__call_send_pattern(o, c->rank) == LK__SEND_NONE) return false;
    if (!o->send_counts) return !o->recv_counts || o->recv_counts[c->rank];
    for (int i = 0; i < c->size; i++)
        if (o->send_counts[i]) return true;
    return false;
}

static bool needs_recv(const lk_comm *c, const lk__comm_call *o)
{
    if (!lk__call_receives(o, c->rank)) return false;
    for (int i = 0; o->recv_counts && i < c->size; i++)
        if (o->recv_counts[i]) return true;
    return !o->recv_counts;
}

static bool lacks_counts(const lk__collective_facts *facts, const lk__comm_call *o)
{
    return facts->counts && (!o->recv_counts || !o->recv_displacements ||
                             (facts->sends_parts && (!o->send_counts || !o->send_displacements)));
}

lk_status lk__comm_check(lk_comm *c, const lk__comm_call *o)
{
    const lk__collective_facts *facts = lk__call_facts(o);
    const char                 *name = facts->name;
    size_t                      size = lk_dtype_size(o->type), most = o->count, furthest = 0;
    bool                        rooted = lk__collective_is_rooted(facts) || o->kind == LK__SEND || o->kind == LK__RECV;
    bool                        blocks = facts->sends_parts || facts->receives_parts;
    if (size == 0)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: unknown type %d", o->site.file, o->site.line, name,
                        (int)o->type);
    if (facts->reduces && (unsigned)o->reduce > LK_PROD)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: unknown reduction %d", o->site.file, o->site.line, name,
                        (int)o->reduce);
    if (rooted && (o->root < 0 || o->root >= c->size))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: rank %d does not exist in a group of %d ranks", o->site.file,
                        o->site.line, name, o->root, c->size);
    if (lacks_counts(facts, o))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: counts and displacements are required, one per rank",
                        o->site.file, o->site.line, name);
    for (int i = 0; facts->counts && i < c->size; i++) {
        size_t largest = o->recv_counts[i];
        if (o->send_counts && o->send_counts[i] > largest) largest = o->send_counts[i];
        if (largest > most) most = largest;
        if (o->recv_displacements[i] > furthest) furthest = o->recv_displacements[i];
        if (o->send_displacements && o->send_displacements[i] > furthest) furthest = o->send_displacements[i];
    }
    if (most > SIZE_MAX / 4 / size / (blocks ? (size_t)c->size : 1))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: a buffer of %zu elements is too large to address",
                        o->site.file, o->site.line, name, most);
    if (furthest > SIZE_MAX / 4 / size) /* so that adding a count does not overflow */
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: a displacement of %zu elements is too large to address",
                        o->site.file, o->site.line, name, furthest);
    if (most > 0 && ((!o->send && needs_send(c, o)) || (!o->recv && needs_recv(c, o))))
        return lk__fail(c->context, LK_EINVAL, "%s:%d: %s: a buffer is NULL", o->site.file, o->site.line, name);
    if (o->send && o->recv && !lk__call_buffers_fit(o, c->rank, c->size))
        return lk__fail(c->context, LK_EINVAL,
                        "%s:%d: %s: the send and receive buffers overlap: use separate buffers, or an in-place call as "
                        "described in lockstep/comm.h",
                        o->site.file, o->site.line, name);
    return LK_OK;
}

lk_status lk__comm_run(lk_comm *c, const lk__comm_call *o, lk_work **work)
{
    if (work) *work = NULL;
    lk_status status = lk__comm_check(c, o);
    return status < 0 ? status : lk__work_submit(c, o, work);
}

lk_status lk_comm_all_reduce_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_reduce_op op, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__ALL_REDUCE, .type = type, .reduce = op, .count = count, .send = send, .recv = recv, .site = site};
    return lk__comm_run(c, &o, work);
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
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_broadcast_at(lk_site site, lk_comm *c, void *buffer, size_t count, lk_dtype type, int root,
                               lk_work **work)
{
    lk__comm_call o = {.kind = LK__BROADCAST,
                       .type = type,
                       .root = root,
                       .count = count,
                       .send = buffer,
                       .recv = buffer,
                       .site = site};
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_all_gather_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_GATHER, .type = type, .count = count, .send = send, .recv = recv, .site = site};
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_reduce_scatter_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                    lk_reduce_op op, lk_work **work)
{
    lk__comm_call o = {.kind = LK__REDUCE_SCATTER,
                       .type = type,
                       .reduce = op,
                       .count = count,
                       .send = send,
                       .recv = recv,
                       .site = site};
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_gather_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                            int root, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__GATHER, .type = type, .root = root, .count = count, .send = send, .recv = recv, .site = site};
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_scatter_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                             int root, lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__SCATTER, .type = type, .root = root, .count = count, .send = send, .recv = recv, .site = site};
    return lk__comm_run(c, &o, work);
}

lk_status lk_comm_all_to_all_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count, lk_dtype type,
                                lk_work **work)
{
    lk__comm_call o = {.kind = LK__ALL_TO_ALL, .type = type, .count = count, .send = send, .recv = recv, .site = site};
    return lk__comm_run(c, &o, work);
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
    return lk__comm_run(c, &o, work);
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
    return lk__comm_run(c, &o, work);
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
    return lk__comm_run(c, &o, work);
}

static lk_status submit_transfer(lk_comm *c, const lk__comm_call *o, lk_work **work)
{
    if (work) *work = NULL;
    if (o->root == c->rank)
        return lk__fail(c->context, LK_EINVAL,
                        "%s:%d: %s: rank %d cannot send to or receive from itself; copy the data instead", o->site.file,
                        o->site.line, lk__comm_kind_name(o->kind), c->rank);
    return lk__comm_run(c, o, work);
}

lk_status lk_comm_send_at(lk_site site, lk_comm *c, const void *buffer, size_t count, lk_dtype type, int to, int tag,
                          lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__SEND, .type = type, .root = to, .tag = tag, .count = count, .send = buffer, .site = site};
    return submit_transfer(c, &o, work);
}

lk_status lk_comm_recv_at(lk_site site, lk_comm *c, void *buffer, size_t count, lk_dtype type, int from, int tag,
                          lk_work **work)
{
    lk__comm_call o = {
        .kind = LK__RECV, .type = type, .root = from, .tag = tag, .count = count, .recv = buffer, .site = site};
    return submit_transfer(c, &o, work);
}

lk_status lk_comm_barrier_at(lk_site site, lk_comm *c, lk_work **work)
{
    lk__comm_call o = {.kind = LK__BARRIER, .type = LK_U8, .site = site};
    return lk__comm_run(c, &o, work);
}
