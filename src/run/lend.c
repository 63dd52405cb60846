/* lend.c - lends this rank's cores while it waits, and lets threads of this rank run on the cores of others. */
#define _GNU_SOURCE
#include "run/lend.h"

#include "base/futex.h"
#include "comm/abort.h"

#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>

enum {
    ABSENT, /* no helper, or none any more */
    STARTS,
    FREE,  /* it sleeps */
    TAKEN, /* a rank is about to wake it */
    RUNS   /* on the cores of that rank, which waits until it is free */
};

/* Seconds. A helper that finds no tile for IDLE gives the core back: not at once, since its rank may have lost its own core for a while.
 * A rank that has computed for less than SHORT in a step does not lend: waking a thread takes too long. */
static const double IDLE = 3e-3, SHORT = 1e-3;
/* A rank lends for at most MOST seconds and so many times its own computing, and takes a core back if its user does not complete an
 * instruction in so many slices. Then it waits as it would without lending, and reports who is late. */
static const double MOST = 1, MOST_TIMES = 4;
enum { SLICE_MS = 50, STALLED_SLICES = 4 };
enum { MEASURED = 16 }; /* one of so many short steps: on some machines reading the clock is a system call */

/* ---- the rank that is helped ---- */

static void run_helper(lk__run_lend *l, int seat)
{
    lk__pool *pool = lk__context_pool(l->program->context);
    int       worker = lk__pool_threads(pool) + seat;
    bool      worked = false;
    double    since = lk__now();
    for (int spins = 1; atomic_load_explicit(&l->own->computing, memory_order_relaxed); spins++) {
        if (lk__pool_help(pool, l, worker)) {
            worked = true;
            since = lk__now();
        } else if (spins % 64 == 0 && lk__now() - since > IDLE) {
            break;
        }
        lk__cpu_relax();
    }
    l->own->seats[seat].worked = worked;
}

static void *helper_main(void *argument)
{
    struct lk__lend_helper *h = argument;
    lk__lend_seat          *s = &h->lend->own->seats[h->seat];
    s->thread = (int32_t)syscall(SYS_gettid);
    uint32_t state = STARTS;
    (void)atomic_compare_exchange_strong(&s->state, &state, FREE);
    while ((state = atomic_load(&s->state)) != ABSENT) {
        if (state != RUNS) {
            lk__futex_wait(&s->state, state, 60000);
            continue;
        }
        run_helper(h->lend, h->seat);
        if (atomic_compare_exchange_strong(&s->state, &state, FREE)) lk__futex_wake(&s->state);
    }
    return NULL;
}

void lk__lend_begin(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l) return;
    lk__pool_admit_helpers(lk__context_pool(p->context), l, p->plan->helpers);
    if (l->computing) return;
    l->computing = true;
    l->begun = l->takes_long || l->steps % MEASURED == 0 ? lk__now() : 0;
    l->steps++;
    atomic_store_explicit(&l->own->done, 0, memory_order_relaxed);
    atomic_store_explicit(&l->own->computing, 1, memory_order_release);
}

void lk__lend_end(lk_program *p)
{
    if (p->lend) lk__pool_admit_helpers(lk__context_pool(p->context), NULL, 0);
}

/* ---- the rank that waits ---- */

/* A free seat of this rank; -1: none. taken: how many are not. */
static int free_seat(lk__lend_rank *r, int seats, int *taken)
{
    int found = -1;
    *taken = 0;
    for (int i = 0; i < seats; i++) {
        uint32_t state = atomic_load_explicit(&r->seats[i].state, memory_order_relaxed);
        if (state == FREE) found = i;
        *taken += state == TAKEN || state == RUNS;
    }
    return found;
}

/* The rank with most work left for each thread that works on it; -1: none that can be helped. */
static int neediest(const lk__run_lend *l, int *seat)
{
    uint32_t all = atomic_load_explicit(&l->own->done, memory_order_relaxed);
    double   most = -1;
    int      found = -1;
    for (int i = 0; i < l->count; i++) {
        lk__lend_rank *r = l->ranks[i];
        int            taken, free;
        if (i == l->index || r->pid_namespace != l->own->pid_namespace) continue;
        if (!atomic_load_explicit(&r->computing, memory_order_acquire)) continue;
        if ((free = free_seat(r, l->program->plan->helpers, &taken)) < 0) continue;
        uint32_t done = atomic_load_explicit(&r->done, memory_order_relaxed);
        double   left = (done < all ? all - done : 0) / (double)(1 + taken);
        if (left <= most) continue;
        most = left;
        found = i;
        *seat = free;
    }
    return found;
}

/* A core that is lent to a rank. */
typedef struct loan {
    int    rank, seat;
    double begin;
} loan;

/* Wakes a helper on this rank's cores; false: it cannot. */
static bool lend(const lk__run_lend *l, loan *x)
{
    lk__lend_seat *s = &l->ranks[x->rank]->seats[x->seat];
    uint32_t       state = FREE;
    cpu_set_t      cores;
    if (!atomic_compare_exchange_strong(&s->state, &state, TAKEN)) return false;
    state = TAKEN;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || sched_setaffinity(s->thread, sizeof cores, &cores) != 0) {
        (void)atomic_compare_exchange_strong(&s->state, &state, FREE);
        return false;
    }
    x->begin = lk__now();
    if (!atomic_compare_exchange_strong(&s->state, &state, RUNS)) return false;
    lk__futex_wake(&s->state);
    return true;
}

/* Until the helper has given the core back. False: it had nothing to do, or its rank does nothing or takes too long. */
static bool take_back(lk__run_lend *l, const loan *x)
{
    lk__lend_rank *r = l->ranks[x->rank];
    lk__lend_seat *s = &r->seats[x->seat];
    uint32_t       done = atomic_load(&r->done);
    for (int stalled = 0; atomic_load(&s->state) == RUNS; stalled++) {
        if (stalled == STALLED_SLICES || lk__now() > l->until || lk_comm_status(l->program->comm) < 0) return false;
        lk__futex_wait(&s->state, RUNS, SLICE_MS);
        uint32_t now = atomic_load(&r->done);
        if (now != done) stalled = 0;
        done = now;
    }
    if (!s->worked) return false;
    l->lent++;
    if (l->program->trace)
        lk__trace_add(l->program->trace, &(lk__trace_event){.name = l->names[x->rank],
                                                            .kind = LK__TRACE_WAIT,
                                                            .track = LK__TRACK_COMPUTE,
                                                            .begin = x->begin,
                                                            .end = lk__now()});
    return true;
}

/* As many cores as this rank has threads. Whether another rank used one. */
static bool lend_all(lk__run_lend *l)
{
    loan loans[LK__MAX_THREADS];
    int  threads = lk_context_threads(l->program->context), count = 0, tries = threads + l->count;
    bool used = false;
    while (count < threads && tries-- > 0 && (loans[count].rank = neediest(l, &loans[count].seat)) >= 0)
        count += lend(l, &loans[count]); /* not if another rank was faster */
    for (int i = 0; i < count; i++) used |= take_back(l, &loans[i]);
    return used;
}

void lk__lend_cores(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l || !l->computing) return;
    l->computing = false;
    atomic_store_explicit(&l->own->computing, 0, memory_order_release);
    if (l->begun == 0) return;
    double now = lk__now(), computed = now - l->begun;
    l->takes_long = computed >= SHORT;
    l->until = now + MOST + MOST_TIMES * computed;
    while (l->takes_long && lend_all(l)) {}
}

/* ---- creating ---- */

static uint64_t pid_namespace(void)
{
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static lk_status start_helpers(lk__run_lend *l)
{
    for (; l->started < l->program->plan->helpers; l->started++) {
        struct lk__lend_helper *h = &l->helpers[l->started];
        *h = (struct lk__lend_helper){.lend = l, .seat = l->started};
        atomic_store(&l->own->seats[l->started].state, STARTS);
        if (pthread_create(&h->thread, NULL, helper_main, h) != 0)
            return lk__fail(l->program->context, LK_ENOMEM, "cannot start a thread that helps this rank");
    }
    return LK_OK;
}

lk_status lk__lend_create(lk_program *p)
{
    int    count = lk__plan_owners(p->plan);
    size_t names = lk__round_up(sizeof(lk__run_lend), LK__ALIGN),
           ranks = lk__round_up(names + (size_t)count * sizeof *p->lend->names, LK__ALIGN),
           bytes = ranks + (size_t)count * sizeof *p->lend->ranks;
    void *memory = NULL;
    if (p->plan->helpers == 0) return LK_OK;
    lk_status status = lk_comm_alloc(p->comm, sizeof(lk__lend_rank), &memory);
    if (status < 0) return status;
    lk__run_lend *l = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!l) {
        lk_comm_release(p->comm, memory);
        return LK_ENOMEM;
    }
    *l = (lk__run_lend){.program = p, .bytes = bytes, .own = memory, .count = count, .index = lk__plan_own(p->plan)};
    p->lend = l;
    l->names = (void *)((char *)l + names);
    l->ranks = (void *)((char *)l + ranks);
    l->own->pid_namespace = pid_namespace();
    for (int i = 0; i < count; i++) {
        l->ranks[i] = (lk__lend_rank *)lk__comm_peer(p->comm, memory, i);
        snprintf(l->names[i], sizeof *l->names, "lends its core to rank %d", p->plan->parallel.rank - l->index + i);
    }
    return l->own->pid_namespace ? start_helpers(l) : LK_OK;
}

void lk__lend_free(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l) return;
    atomic_store(&l->own->computing, 0);
    for (int i = 0; i < l->started; i++) {
        lk__lend_seat *s = &l->own->seats[i];
        atomic_store(&s->state, ABSENT);
        lk__futex_wake(&s->state);
        pthread_join(l->helpers[i].thread, NULL);
    }
    lk_comm_release(p->comm, l->own);
    lk__free(p->context, LK_MEMORY_OTHER, l, l->bytes);
    p->lend = NULL;
}
