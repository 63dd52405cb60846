/* watch.c - the words that kernels write about queued calls, and the thread that reads them: a kernel cannot find out
 * why a peer has not arrived, and meanwhile the host waits for the stream. */
#define _GNU_SOURCE
#include "comm/p2p/p2p.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- what the kernels have written ---- */

static uint64_t read_number(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static int32_t  read_word(const int32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* Before the group has begun there are no words. */
static bool is_running(const lk__p2p *p)
{
    return p->progress && read_number(&p->progress->began) > read_number(&p->progress->ended);
}

void lk__p2p_stop(lk__p2p *p)
{
    if (p->progress) __atomic_store_n(&p->progress->stop, 1, __ATOMIC_RELEASE);
}

/* ---- the verdict ---- */

/* A rank as its blocking calls show it; of this one, the queued call in which it is. */
static void view_rank(void *state, int rank, lk__comm_rank_view *v)
{
    lk__p2p *p = state;
    lk__shm_view(p->comm->state, rank, v);
    if (rank != p->comm->rank) return;
    const lk__peers_progress *w = p->progress;
    bool                      failed = read_word(&w->failed);
    uint64_t                  number = failed ? w->failed_number : read_number(&w->began);
    lk__p2p_record           *r = &p->records[(failed ? w->failed_call : w->began_call) % LK__P2P_RECORDS];
    if (number == 0) return;
    if (v->entered > 0 && v->entered % 2 == 0) { /* the last blocking call stays as the one before */
        v->records[1] = v->records[0];
        memcpy(v->files[1], v->files[0], sizeof v->files[1]);
    }
    int which = v->entered > 0 ? 0 : 1;
    pthread_mutex_lock(&p->lock);
    lk__comm_record_make(&v->records[which], &r->call, number);
    snprintf(v->files[which], sizeof v->files[which], "%s", r->file);
    bool watched = p->pending.number == number;
    v->since = failed ? (double)w->waited_ns / 1e9 : watched ? lk__now() - p->pending.since : 0;
    pthread_mutex_unlock(&p->lock);
    v->failed = 0;
    v->entered = v->entered > 0 ? 2 : 1;
    v->left = v->entered - (failed || is_running(p));
}

static lk__comm_table table_of(lk__p2p *p)
{
    return (lk__comm_table){.comm = p->comm,
                            .rank = p->comm->rank,
                            .size = p->comm->size,
                            .state = p,
                            .view = view_rank,
                            .outside = !is_running(p) && !read_word(&p->progress->failed)};
}

/* A rank that has died or left; -1: none. */
static int find_lost(const lk__p2p *p, bool left_too)
{
    const lk__shm *s = p->comm->state;
    for (int i = 0; i < s->size; i++) {
        lk__shm_rank_slot *slot = &s->rank_slots[i];
        if (i == s->rank) continue;
        if (lk__shm_dead(slot, NULL) || (left_too && atomic_load(&slot->gone))) return i;
    }
    return -1;
}

static lk_status raise_lost(lk__p2p *p, int rank)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(p);
    lk__verdict_lost(&table, rank, &report);
    return lk__shm_raise_because(p->comm->state, LK_EIO, report.text, report.cause);
}

static lk_status raise_late(lk__p2p *p, int rank)
{
    bool            missing[LK__PEERS_MOST] = {false};
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(p);
    missing[rank] = true;
    lk__verdict_late(&table, missing, (double)p->progress->waited_ns / 1e9, true, &report);
    return lk__shm_raise_because(p->comm->state, LK_ETIMEOUT, report.text, report.cause);
}

/* Whether the rank that a call misses waits in another group. As for blocking calls, that group's failure, which names
 * the cause and fails this one, is waited for. */
static bool may_be_explained(lk__p2p *p, int culprit)
{
    const lk__shm *s = p->comm->state;
    double         now = lk__now();
    if (!lk__shm_elsewhere(s, culprit)) return false;
    pthread_mutex_lock(&p->lock);
    if (p->late_end == 0) p->late_end = now + (double)lk__verdict_put_off_ms(p->comm) / 1e3;
    bool may = now < p->late_end;
    pthread_mutex_unlock(&p->lock);
    return may;
}

/* Of the call in which a kernel's wait has failed. Another rank may be about to say why, because it met the failure
 * first, or this one's program, from another group: unless `waits`, that is LK_OK. */
static lk_status raise_failed(lk__p2p *p, int culprit, bool waits)
{
    lk__shm *s = p->comm->state;
    int      lost = find_lost(p, true);
    if (lost >= 0) return raise_lost(p, lost);
    if (culprit >= 0 && culprit < p->comm->size && culprit != p->comm->rank) {
        for (; may_be_explained(p, culprit) && lk__shm_failure(s) == LK_OK; usleep(1000))
            if (!waits) return LK_OK;
        return raise_late(p, culprit);
    }
    if (!waits) return LK_OK;
    double end = lk__now() + 1;
    while (lk__shm_failure(s) == LK_OK && lk__now() < end) usleep(1000);
    return lk__shm_raise(s, LK_EIO, "a queued call ended before all ranks had arrived, and no rank reported why");
}

lk_status lk__p2p_check(lk__p2p *p, bool waits)
{
    lk__shm  *s = p->comm->state;
    lk_status status = lk__shm_failure(s);
    int32_t   failed = status < 0 || !p->progress ? 0 : read_word(&p->progress->failed);
    if (failed) status = raise_failed(p, failed - 1, waits);
    if (status < 0) lk__p2p_stop(p);
    return status;
}

enum { DEATH_MS = 2000 }; /* until a dead process is known to be dead: its memory is given back first */

bool lk__p2p_blame_dead(lk__p2p *p)
{
    double end = lk__now() + DEATH_MS / 1e3;
    if (!p->progress || !p->peers->is_lost(p->device)) return false;
    for (int lost; lk__now() < end; usleep(5000)) {
        if (lk__shm_failure(p->comm->state) < 0) return true;
        if ((lost = find_lost(p, false)) < 0) continue;
        (void)raise_lost(p, lost);
        return true;
    }
    return false;
}

/* ---- the thread ---- */

enum { SLICE_MS = 50, PATIENCE_MS = 500, WAITING_MS = 100 };

/* Milliseconds for which the call that runs has been seen to run; 0: none does. */
static double watch_pending(lk__p2p *p)
{
    uint64_t number = read_number(&p->progress->began);
    bool     runs = is_running(p);
    double   now = lk__now();
    pthread_mutex_lock(&p->lock);
    if (runs != p->pending.runs || number != p->pending.number) p->pending = (lk__p2p_pending_call){number, now, runs};
    double since = p->pending.since;
    pthread_mutex_unlock(&p->lock);
    return runs ? (now - since) * 1e3 : 0;
}

/* Tells the ranks of other groups that this one waits in a call, also in one that has failed, until it knows why. */
static void show_waiting(lk__p2p *p, double pending_ms, bool *shown)
{
    bool waits = pending_ms >= WAITING_MS || read_word(&p->progress->failed);
    if (waits && !*shown) lk__shm_wait_begin(p->comm->state);
    if (!waits && *shown) lk__shm_wait_end(p->comm->state, LK_OK);
    *shown = waits;
}

/* One that has left, or died, may have done its part before: a call that goes on ends soon. */
static lk_status check_lost(lk__p2p *p, double pending_ms)
{
    if (pending_ms < PATIENCE_MS) return LK_OK;
    int lost = find_lost(p, true);
    return lost < 0 ? LK_OK : raise_lost(p, lost);
}

static void wait_slice(lk__p2p *p)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += SLICE_MS * 1000000L;
    end.tv_sec += end.tv_nsec / 1000000000L;
    end.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&p->changed, &p->lock, &end);
}

static void *watch(void *argument)
{
    lk__p2p  *p = argument;
    lk_status status = LK_OK;
    bool      shown = false;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        pthread_mutex_unlock(&p->lock);
        double pending_ms = watch_pending(p);
        show_waiting(p, pending_ms, &shown);
        status = lk__p2p_check(p, true);
        if (status >= 0) status = check_lost(p, pending_ms);
        if (status < 0) lk__p2p_stop(p);
        pthread_mutex_lock(&p->lock);
        if (status < 0) break;
        wait_slice(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (shown) lk__shm_wait_end(p->comm->state, status);
    return NULL;
}

lk_status lk__p2p_watch(lk__p2p *p)
{
    if (p->watching) return LK_OK;
    int error = pthread_create(&p->watcher, NULL, watch, p);
    if (error)
        return lk__fail(p->comm->context, LK_ENOMEM, "cannot start the thread that watches queued calls: %s",
                        strerror(error));
    p->watching = true;
    return LK_OK;
}

void lk__p2p_unwatch(lk__p2p *p)
{
    if (!p->watching) return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->watcher, NULL);
    p->watching = false;
}
