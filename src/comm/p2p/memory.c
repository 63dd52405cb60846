/* memory.c - memory of GPUs that the ranks of a group map. The ranks agree on the result of every step, so that either
 * all of them have the memory or none. An allocation may be freed only when no other process has it mapped, so a rank
 * that releases one waits briefly for the others: they release it, too. */
#define _GNU_SOURCE
#include "comm/p2p/p2p.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct vote {
    int32_t          able;
    char             why[LK__P2P_WHY - 32];
    lk__peers_handle handle;
} vote;

lk_status lk__p2p_agree(lk_comm *c, lk_status own, const lk__peers_handle *handle, lk__peers_handle *all,
                        char why[LK__P2P_WHY])
{
    vote          mine = {.able = own >= 0}, votes[LK__PEERS_MOST];
    lk__comm_call o = {.kind = LK__ALL_GATHER,
                       .type = LK_U8,
                       .count = sizeof mine,
                       .send = &mine,
                       .recv = votes,
                       .site = {"lk_comm_create", 0}};
    if (own < 0) snprintf(mine.why, sizeof mine.why, "%s", lk_context_error(c->context));
    if (handle) mine.handle = *handle;
    lk_status status = lk__work_submit(c, &o, NULL);
    for (int i = 0; i < c->size && status >= 0; i++) {
        if (all) all[i] = votes[i].handle;
        if (votes[i].able) continue;
        snprintf(why, LK__P2P_WHY, "rank %d: %.*s", i, (int)sizeof votes[i].why - 1, votes[i].why);
        return LK_END;
    }
    return status;
}

static void unmap_peers(const lk__p2p *p, lk__p2p_memory *m)
{
    for (int i = 0; i < p->comm->size; i++) {
        if (i == p->comm->rank || !m->parts[i]) continue;
        p->peers->unmap(p->device, m->parts[i]);
        m->parts[i] = NULL;
    }
}

/* Ranks that may have this one's part mapped: they have not released as many pieces of memory, and have neither left
 * nor died. running: of them, those that are not stopped by a signal. */
typedef struct holders {
    int all, running;
} holders;

static holders count_holders(const lk__p2p *p)
{
    const lk__shm *s = p->comm->state;
    holders        h = {0, 0};
    for (int i = 0; i < s->size; i++) {
        lk__shm_rank_slot *slot = &s->rank_slots[i];
        bool               stopped;
        if (i == s->rank || (int32_t)(atomic_load(&slot->released) - p->released) >= 0) continue;
        if (atomic_load(&slot->gone) || lk__shm_dead(slot, &stopped)) continue;
        h.all++;
        h.running += !stopped;
    }
    return h;
}

enum { RELEASE_MS = 5000, FAILED_RELEASE_MS = 200 };

double lk__p2p_release_end(const lk__p2p *p)
{
    if (p->release_end > 0) return p->release_end;
    return lk__now() + (lk__shm_failure(p->comm->state) < 0 ? FAILED_RELEASE_MS : RELEASE_MS) / 1e3;
}

void lk__p2p_unshare(lk_comm *c, lk__p2p_memory *m)
{
    lk__p2p *p = c->p2p;
    double   end = lk__p2p_release_end(p);
    unmap_peers(p, m);
    atomic_store(&((lk__shm *)c->state)->me->released, ++p->released);
    if (!m->parts[c->rank]) return;
    while (count_holders(p).running > 0 && lk__now() < end) usleep(500);
    if (count_holders(p).all == 0) p->peers->free(p->device, m->parts[c->rank]); /* otherwise the process's end does */
    lk__account(c->context, LK_MEMORY_OTHER, -(ptrdiff_t)m->bytes);
    m->parts[c->rank] = NULL;
}

static lk_status map_peers(const lk__p2p *p, const lk__peers_handle *handles, lk__p2p_memory *m)
{
    lk_status status = LK_OK;
    for (int i = 0; i < p->comm->size && status >= 0; i++) {
        void *part = NULL;
        if (i == p->comm->rank) continue;
        status = p->peers->map(p->device, &handles[i], m->bytes, &part);
        m->parts[i] = part;
    }
    return status;
}

lk_status lk__p2p_share(lk_comm *c, size_t bytes, lk__p2p_memory *m, char why[LK__P2P_WHY])
{
    lk__p2p         *p = c->p2p;
    lk__peers_handle own = {{0}}, all[LK__PEERS_MOST];
    void            *part = NULL;
    *m = (lk__p2p_memory){.bytes = bytes};
    lk_status status = p->peers->allocate(p->device, bytes, &part, &own);
    m->parts[c->rank] = part;
    if (part) lk__account(c->context, LK_MEMORY_OTHER, (ptrdiff_t)bytes);
    status = lk__p2p_agree(c, status, &own, all, why);
    if (status == LK_OK) status = lk__p2p_agree(c, map_peers(p, all, m), NULL, NULL, why);
    if (status != LK_OK) lk__p2p_unshare(c, m);
    return status;
}

/* ---- symmetric memory ---- */

lk_status lk__p2p_allocate(lk_comm *c, lk__device *device, uint64_t secret, size_t bytes, void **memory)
{
    lk__p2p        *p = c->p2p;
    char            why[LK__P2P_WHY];
    lk__p2p_memory *m = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *m);
    (void)device, (void)secret;
    lk_status status = lk__p2p_agree(c, m ? LK_OK : LK_ENOMEM, NULL, NULL, why);
    if (status == LK_OK) status = lk__p2p_share(c, bytes, m, why);
    if (status == LK_END)
        status = lk__fail(c->context, LK_ENOMEM, "cannot allocate %zu bytes of symmetric memory: %s", bytes, why);
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
        return status;
    }
    lk__account(c->context, LK_MEMORY_OTHER, -(ptrdiff_t)bytes); /* by the caller */
    m->next = p->memory;
    p->memory = m;
    *memory = m->parts[c->rank];
    return LK_OK;
}

lk_status lk__p2p_adopt(lk_comm *c, const lk_comm *of, const void *memory)
{
    const lk__p2p_memory *theirs = of->p2p->memory;
    while (theirs && theirs->parts[of->rank] != memory) theirs = theirs->next;
    if (!theirs) return LK_END;
    lk__p2p_memory *m = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *m);
    if (!m) return LK_ENOMEM;
    *m = (lk__p2p_memory){.bytes = theirs->bytes, .adopted = true, .next = c->p2p->memory};
    for (int i = 0; i < c->size; i++) {
        int rank = lk__shm_rank_in(of, c->world ? c->world[i] : i);
        if (rank < 0) {
            lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
            return LK_OK;
        }
        m->parts[i] = theirs->parts[rank];
    }
    c->p2p->memory = m;
    return LK_OK;
}

bool lk__p2p_release(lk_comm *c, const void *memory)
{
    lk__p2p_memory **at = &c->p2p->memory;
    while (*at && (*at)->parts[c->rank] != memory) at = &(*at)->next;
    lk__p2p_memory *m = *at;
    if (!m) return false;
    *at = m->next;
    if (!m->adopted) {
        lk__account(c->context, LK_MEMORY_OTHER, (ptrdiff_t)m->bytes);
        lk__p2p_unshare(c, m);
    }
    lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
    return true;
}

bool lk__p2p_locate(const lk__p2p *p, const void *own, size_t bytes, char *parts[LK__PEERS_MOST])
{
    int rank = p->comm->rank;
    for (const lk__p2p_memory *m = p->memory; m; m = m->next) {
        const char *begin = m->parts[rank];
        if ((const char *)own < begin || (const char *)own + bytes > begin + m->bytes) continue;
        for (int i = 0; i < p->comm->size; i++) parts[i] = m->parts[i] + ((const char *)own - begin);
        return true;
    }
    return false;
}
