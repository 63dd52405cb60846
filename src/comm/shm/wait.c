/* wait.c - waiting for another rank: spin, then sleep in slices of time, and check the group between them. */
#define _GNU_SOURCE
#include "comm/shm/shm.h"

#include "base/pool.h"

#include <sched.h>

enum { SLICE_MS = 50 };

static bool reached(_Atomic uint32_t *word, uint32_t target)
{
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}

/* Whether a rank that has entered the same collective made another call. Only where `word` is an arrival's. */
static lk_status check_mismatch(lk__shm *s, _Atomic uint32_t *word, uint32_t target)
{
    size_t           offset = (size_t)((char *)word - (char *)s->rank_slots) % sizeof(lk__shm_rank_slot);
    lk__shm_arrival *mine = &s->me->arrivals[target & 1];
    if (offset != (size_t)((char *)&mine->number - (char *)s->me)) return LK_OK;
    for (int i = 0; i < s->size; i++) {
        lk__shm_arrival *other = &s->rank_slots[i].arrivals[target & 1];
        if (atomic_load_explicit(&other->number, memory_order_acquire) == target && other->signature != mine->signature)
            return lk__shm_mismatch(s, i);
    }
    return LK_OK;
}

/* Between two slices: checks for failure, lost ranks and the deadline. word may be NULL. */
static lk_status check_group(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, lk__shm_wait_state *p)
{
    double    now = lk__now();
    lk_status status = lk__shm_failure(s);
    if (status < 0) return status;
    if (atomic_load(&s->comm->closing)) return LK_ECANCELED;
    if (lk__shm_excused(s, peer, word, target)) p->begun += now - p->checked; /* declared work does not count */
    p->checked = now;
    if (word && (status = check_mismatch(s, word, target)) < 0) return status;
    bool all = now - p->checked_all > (s->size <= 8 ? 0.25 : 1.0); /* ranks that it waits for later may have died too */
    if (all) p->checked_all = now;
    for (int i = all ? 0 : peer; i < (all ? s->size : peer + 1); i++) {
        lk__shm_rank_slot *rank_slot = &s->rank_slots[i];
        if (i == s->rank || (!atomic_load(&rank_slot->gone) && !lk__shm_dead(rank_slot, NULL))) continue;
        if (word) { /* it may have done its part before it left */
            _Atomic uint32_t *its =
                (_Atomic uint32_t *)((char *)word + (i - peer) * (ptrdiff_t)sizeof(lk__shm_rank_slot));
            if (reached(its, target)) continue;
        } else if (i != peer) {
            continue;
        }
        return lk__shm_lost(s, i);
    }
    double waited = now - p->begun;
    if (!p->reported && (now - p->since) * 1000 >= (double)s->comm->stall_ms) {
        p->reported = true;
        lk__shm_stalled(s, peer, word, target, now - p->since);
    }
    int64_t deadline = s->comm->timeout_ms;
    if (waited * 1000 < (double)deadline) return LK_OK;
    if (lk__shm_all_elsewhere(s, peer, word, target)) deadline += lk__verdict_put_off_ms(s->comm);
    return waited * 1000 >= (double)deadline ? lk__shm_late(s, peer, word, target, waited) : LK_OK;
}

/* each: whether every rank has such a word in its slot, and has to reach the target. */
static lk_status sleep_until(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, bool each)
{
    double             now = lk__now();
    lk__shm_wait_state p = {.since = now, .begun = now, .checked = now, .checked_all = now};
    lk__shm_rank_slot *rank_slot = &s->rank_slots[peer];
    lk_status          status = LK_OK;
    s->slow = true;
    lk__shm_wait_begin(s);
    while (status >= 0) {
        atomic_fetch_add(&rank_slot->sleepers, 1);
        atomic_store(&s->sleeping_on, word);
        uint32_t value = atomic_load(word);
        if (!reached(word, target) && !atomic_load(&s->comm->closing)) lk__futex_wait(word, value, SLICE_MS);
        atomic_store(&s->sleeping_on, NULL);
        atomic_fetch_sub(&rank_slot->sleepers, 1);
        if (reached(word, target)) break;
        status = check_group(s, peer, each ? word : NULL, target, &p);
    }
    /* A rank that fails later than this call, which it has completed, must not fail it here. */
    if (reached(word, target)) status = LK_OK;
    lk__shm_wait_end(s, status);
    return status;
}

lk_status lk__shm_wait(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    for (int yields = 0; yields <= s->yields; yields++) {
        for (int i = 0; i < (yields ? s->spins / 4 : s->spins); i++) {
            if (reached(word, target)) return LK_OK;
            lk__cpu_relax();
        }
        sched_yield();
        if (reached(word, target)) return LK_OK;
    }
    return sleep_until(s, peer, word, target, true);
}

lk_status lk__shm_wait_for_one(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    return reached(word, target) ? LK_OK : sleep_until(s, peer, word, target, false);
}

/* ---- the doorbell: a futex for transfers, which wait for several peers at once ---- */

void lk__shm_ring_doorbell(lk__shm *s, int peer)
{
    lk__shm_rank_slot *rank_slot = &s->rank_slots[peer];
    atomic_fetch_add(&rank_slot->doorbell, 1);
    if (atomic_load(&rank_slot->waiters)) lk__futex_wake(&rank_slot->doorbell);
}

void lk__shm_wake_self(lk__shm *s)
{
    lk__shm_ring_doorbell(s, s->rank);
    _Atomic uint32_t *word = atomic_load(&s->sleeping_on);
    if (word) lk__futex_wake(word);
}

lk_status lk__shm_sleep(lk__shm *s, int peer, uint32_t seen, lk__shm_wait_state *p)
{
    _Atomic uint32_t *doorbell = &s->me->doorbell;
    if (p->tries++ < (unsigned)(s->spins + s->yields)) {
        if (p->tries <= (unsigned)s->spins)
            lk__cpu_relax();
        else
            sched_yield();
        return LK_OK;
    }
    if (p->begun == 0) p->since = p->begun = p->checked = p->checked_all = lk__now();
    lk_status status = LK_OK;
    lk__shm_wait_begin(s);
    atomic_fetch_add(&s->me->waiters, 1);
    if (atomic_load(doorbell) == seen && !atomic_load(&s->comm->closing)) lk__futex_wait(doorbell, seen, SLICE_MS);
    atomic_fetch_sub(&s->me->waiters, 1);
    if (atomic_load(doorbell) == seen) status = check_group(s, peer, NULL, 0, p);
    lk__shm_wait_end(s, status);
    return status;
}
