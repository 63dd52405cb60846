/* hosts.c - collectives of ranks that keep one copy of something on every host. On a single host they are the ordinary
 * collectives. */
#include "comm/hosts.h"

#include "base/tree.h"
#include "comm/comm.h"

int lk__comm_hosts(const lk_comm *c, const char **why)
{
    if (why) *why = "do not share memory";
    return c->backend->hosts ? c->backend->hosts(c, why) : 0;
}

int lk_comm_hosts(const lk_comm *c) { return lk__comm_hosts(c, NULL); }

lk_status lk__comm_barrier_host_at(lk_site site, lk_comm *c)
{
    lk__comm_call o = {.kind = LK__BARRIER_HOST, .type = LK_U8, .site = site};
    return lk__comm_hosts(c, NULL) > 1 ? lk__work_submit(c, &o, NULL) : lk_comm_barrier_at(site, c, NULL);
}

static lk_status refuse_call(lk_comm *c, const lk__comm_call *o, const char *why)
{
    return lk__fail(c->context, LK_EUNSUPPORTED, "%s:%d: %s: the ranks of this group (%s) %s", o->site.file,
                    o->site.line, lk__comm_kind_name(o->kind), c->backend->name, why);
}

lk_status lk__comm_reduce_scatter_host_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count,
                                          lk_dtype type, lk_reduce_op op, lk_work **work)
{
    const char   *why;
    int           hosts = lk__comm_hosts(c, &why);
    lk__comm_call o = {.kind = LK__REDUCE_SCATTER_HOST,
                       .type = type,
                       .reduce = op,
                       .count = count,
                       .send = send,
                       .recv = recv,
                       .site = site};
    if (hosts == 1) return lk_comm_reduce_scatter_at(site, c, send, recv, count, type, op, work);
    if (work) *work = NULL;
    if (hosts == 0) return refuse_call(c, &o, why);
    if (!lk__tree_nests(c->size, hosts))
        return refuse_call(c, &o,
                           "cannot reduce host by host in the reproducible order: each host must have the same "
                           "number of ranks, a power of two");
    return lk__work_submit(c, &o, work);
}

lk_status lk__comm_all_gather_host_at(lk_site site, lk_comm *c, const void *send, void *recv, size_t count,
                                      lk_dtype type, lk_work **work)
{
    const char   *why;
    lk__comm_call o = {
        .kind = LK__ALL_GATHER_HOST, .type = type, .count = count, .send = send, .recv = recv, .site = site};
    if (work) *work = NULL;
    return lk__comm_hosts(c, &why) == 0 ? refuse_call(c, &o, why) : lk__comm_run(c, &o, work);
}

lk_status lk__comm_all_reduce_across_at(lk_site site, lk_comm *c, void *data, size_t count, lk_dtype type,
                                        lk_reduce_op op)
{
    const char   *why;
    int           hosts = lk__comm_hosts(c, &why);
    lk__comm_call o = {.kind = LK__ALL_REDUCE_ACROSS,
                       .type = type,
                       .reduce = op,
                       .count = count,
                       .send = data,
                       .recv = data,
                       .site = site};
    if (hosts == 1) return LK_OK;
    return hosts == 0 ? refuse_call(c, &o, why) : lk__work_submit(c, &o, NULL);
}
