/* list.c - collectives by index and by name. */
#include "base/config.h"
#include "comm/comm.h"

#include <lockstep/collective.h>
#include <string.h>

/* Those that move `count` elements, or parts of `count`, of every rank. */
static bool is_listed(const lk__collective_facts *facts)
{
    return facts - lk__collectives < LK__SEND && facts->senders != LK__RANKS_NONE && !facts->counts;
}

lk_status lk_collective_at(int index, lk_collective *out)
{
    size_t size = out->size < sizeof *out ? out->size : sizeof *out;
    for (const lk__collective_facts *f = lk__collectives; index >= 0 && f < lk__collectives + LK__SEND; f++) {
        if (!is_listed(f) || index-- > 0) continue;
        lk_collective made = {.size = out->size,
                              .name = f->name,
                              .traffic = f->traffic,
                              .root_sends = f->senders == LK__RANKS_ROOT,
                              .root_receives = f->receivers == LK__RANKS_ROOT,
                              .sends_parts = f->sends_parts,
                              .receives_parts = f->receives_parts,
                              .reduces = f->reduces};
        memcpy(out, &made, size);
        return LK_OK;
    }
    return LK_END;
}

lk_status lk_comm_run_at(lk_site site, lk_comm *c, const char *name, const void *send, void *recv, size_t count,
                         lk_dtype type, lk_reduce_op op, int root, lk_work **work)
{
    const lk__collective_facts *f = lk__collectives;
    while (f < lk__collectives + LK__SEND && !(is_listed(f) && strcmp(f->name, name) == 0)) f++;
    if (work) *work = NULL;
    if (f == lk__collectives + LK__SEND)
        return lk__fail(c->context, LK_EINVAL, "%s:%d: '%.40s' is not a collective that can be called by name",
                        site.file, site.line, name);
    lk__comm_call o = {.kind = (lk__comm_kind)(f - lk__collectives),
                       .type = type,
                       .reduce = f->reduces ? op : LK_SUM,
                       .root = lk__collective_is_rooted(f) ? root : 0,
                       .count = count,
                       .send = send,
                       .recv = recv,
                       .site = site};
    return lk__comm_run(c, &o, work);
}
