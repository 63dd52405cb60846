/* mixed_transfer.c - send and receive of a mixed group: within the host in the local group, to other hosts in the flat
 * one. */
#include "comm/mixed.h"
#include "comm/net/net.h"

#include <time.h>

lk_status lk__mixed_check_crossed(lk_comm *c, int neighbour, const lk__comm_call *transfer)
{
    lk__comm_mixed *m = c->state;
    lk__net        *net = m->groups[LK__FLAT]->state;
    int             peer = 0;
    while (m->neighbours[peer] != neighbour) peer++;
    if (!lk__net_ahead(net, peer)) return LK_OK;
    if (!transfer) return LK_END;
    lk__comm_call mine = *transfer;
    mine.root = peer;
    (void)lk__net_crossed(net, &mine);
    return lk__mixed_failure(c);
}

/* A send or receive of this group that runs in one of its groups. */
typedef struct submitted {
    struct submitted *next;
    lk_work          *work, *inside;
} submitted;

static lk_comm *route(lk_comm *c, const lk__comm_call *o, lk__comm_call *inside)
{
    lk__comm_mixed *m = c->state;
    *inside = *o;
    if (m->neighbours[o->root] < 0) return m->groups[LK__FLAT];
    inside->root = m->neighbours[o->root];
    return m->groups[LK__LOCAL];
}

static void put_spare(lk_comm *c, submitted *h)
{
    lk__comm_mixed *m = c->state;
    h->next = m->spare;
    m->spare = h;
}

static submitted *take_submitted(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    submitted      *h = m->spare;
    if (!h) return lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *h);
    m->spare = h->next;
    *h = (submitted){.next = NULL};
    return h;
}

lk_status lk__mixed_reserve_transfers(lk_comm *c, int count)
{
    lk__comm_mixed *m = c->state;
    lk_status       status = LK_OK;
    for (int i = LK__FLAT; i <= LK__LOCAL && status >= 0; i++)
        if (m->groups[i]) status = lk__comm_reserve_transfers(m->groups[i], count);
    for (int i = 0; i < count && status >= 0; i++) {
        submitted *h = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *h);
        if (!h) return LK_ENOMEM;
        put_spare(c, h);
    }
    return status;
}

static void submit_transfer(lk_comm *c, lk_work *work, submitted **list)
{
    lk__comm_call inside;
    lk_comm      *group = route(c, &work->operation, &inside);
    submitted    *h = take_submitted(c);
    lk_status     status = h ? lk__work_submit_watched(group, &inside, c, &h->inside) : LK_ENOMEM;
    if (status < 0) {
        if (h) put_spare(c, h);
        lk__work_finish(work, status);
        return;
    }
    h->work = work;
    while (*list) list = &(*list)->next;
    *list = h;
}

/* Finishes what is done. Once the last one is, the group may be used from another thread: nothing may follow. */
static void finish_done(lk_comm *c, submitted **list)
{
    for (submitted **at = list; *at;) {
        submitted *h = *at;
        bool       over = atomic_load(&c->closing);
        if (lk_work_test(h->inside) == LK_END && !over) {
            at = &h->next;
            continue;
        }
        lk_work  *work = h->work;
        lk_status status = over ? LK_ECANCELED : lk_work_wait(h->inside); /* otherwise it is freed with its group */
        if (status < 0) (void)lk__mixed_failure(c);
        *at = h->next;
        put_spare(c, h);
        lk__work_finish(work, status);
    }
}

static void wait_for_any(lk_comm *c, const submitted *list)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec++;
    pthread_mutex_lock(&c->lock);
    bool any = atomic_load(&c->closing) ||
               (c->first && (c->first->operation.kind == LK__SEND || c->first->operation.kind == LK__RECV));
    for (; list && !any; list = list->next) any = lk_work_test(list->inside) != LK_END;
    if (!any) pthread_cond_timedwait(&c->finished, &c->lock, &deadline);
    pthread_mutex_unlock(&c->lock);
}

/* Transfers within the host and over the network have to progress concurrently: each runs in its group's own thread. */
void lk__mixed_transfer(lk_comm *c, lk_work *first)
{
    lk__comm_mixed *m = c->state;
    submitted      *list = NULL;
    if (m->hosts == 1 || m->each == 1) {
        lk_comm *group = m->groups[m->hosts == 1 ? LK__LOCAL : LK__FLAT];
        group->backend->transfer(group, first);
        (void)lk__mixed_failure(c);
        return;
    }
    if (!first->queued) { /* a blocking call, the only one */
        lk_work  inside = {.comm = c};
        lk_comm *group = route(c, &first->operation, &inside.operation);
        inside.comm = group;
        group->backend->transfer(group, &inside);
        if (inside.status < 0) (void)lk__mixed_failure(c);
        lk__work_finish(first, inside.status);
        return;
    }
    submit_transfer(c, first, &list);
    while (list) {
        for (lk_work *more; (more = lk__work_next_transfer(c, list->work));) submit_transfer(c, more, &list);
        wait_for_any(c, list);
        finish_done(c, &list);
    }
}

void lk__mixed_free_transfers(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    for (submitted *h = m->spare, *next; h; h = next) {
        next = h->next;
        lk__free(c->context, LK_MEMORY_OTHER, h, sizeof *h);
    }
    m->spare = NULL;
}
