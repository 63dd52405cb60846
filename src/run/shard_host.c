/* shard_host.c - parameters that the ranks of a host gather once for all of them (plan/shard.h, lk__plan_host): their
 * memory, of which every rank allocates a share, and their gathers. */
#include "run/shard.h"

#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/hosts.h"
#include "run/collective.h"
#include "run/interpreter.h"

lk_status lk__host_create(lk_program *p)
{
    const lk__plan_host *host = &p->plan->host;
    size_t               share = lk__plan_host_share(p->plan);
    void                *memory;
    if (share == 0) return LK_OK;
    const char *why;
    int         hosts = lk__comm_hosts(p->shard, &why);
    if (hosts == 0)
        return lk__fail(p->context, LK_EUNSUPPORTED,
                        "the plan's ranks gather parameters once on every host, but the ranks of this group (%s) %s: "
                        "set lk_parallel.hosts to lk_comm_hosts",
                        lk_comm_backend(p->shard), why);
    if (hosts != host->hosts)
        return lk__fail(p->context, LK_EMISMATCH,
                        "the plan is for ranks along shard on %d host%s, but they are on %d: set lk_parallel.hosts to "
                        "lk_comm_hosts",
                        host->hosts, host->hosts == 1 ? "" : "s", hosts);
    lk_status status = lk_comm_alloc(p->shard, share, &memory);
    if (status < 0) return lk__fail_prefix(p->context, status, "gathered parameters in the host's shared memory: ");
    p->memory.host_share = memory;
    p->memory.host = lk__comm_peer(p->shard, memory, 0); /* the shares follow each other */
    lk__account(p->context, LK_MEMORY_STAGING, (ptrdiff_t)share);
    return LK_OK;
}

void lk__host_free(lk_program *p)
{
    if (!p->memory.host_share) return;
    lk_comm_release(p->shard, p->memory.host_share);
    lk__account(p->context, LK_MEMORY_STAGING, -(ptrdiff_t)lk__plan_host_share(p->plan));
}

static lk_status gather_unit(lk_program *p, const lk__run_instruction *in, lk_work **work)
{
    const lk__kernel_operand *x = &in->call.in[0];
    size_t                    elements = (size_t)lk__operand_elements(x);
    double                    start = lk__now();
    lk_status status = lk__comm_all_gather_host(lk__run_group(p, in->call.attrs->mesh), x->data, in->call.out[0].data,
                                                elements, x->dtype, work);
    double    end = lk__now();
    p->collectives->waited += end - start;
    if (!work || !*work) lk__traced(p, in->name, start, end, elements * lk_dtype_size(x->dtype));
    return status;
}

lk_status lk__run_start_host(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective *c = lk__collective_at(p, run, at);
    (void)next; /* once for all slots, which advance together */
    return gather_unit(p, lk__run_at(p, run, at), c && !c->at_once ? &c->work : NULL);
}
