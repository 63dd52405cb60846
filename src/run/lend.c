/* lend.c - lends this rank's cores while it waits, and lets threads of this rank run on the cores of others. */
#define _GNU_SOURCE
#include "run/lend.h"

#include "run/interpreter.h"

#include "base/futex.h"
#include "comm/abort.h"
#include "run/collective.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The state of a slot: what its helper does, and in the upper bits the number of the loan, so that a rank whose loan
 * has ended does not take another rank's for its own. */
enum {
    ABSENT, /* no helper, or none any more */
    STARTS,
    UNUSED, /* it sleeps, and found nothing to do in the latest loan */
    USED,   /* it sleeps, and took tiles in the latest loan */
    TAKEN,  /* a rank is about to wake it */
    RUNS,   /* on the cores of that rank, which waits until it sleeps */
    LOAN = 8
};
static bool is_free(uint32_t state) { return state % LOAN == UNUSED || state % LOAN == USED; }

/* Seconds. A helper that finds no tile for IDLE gives the core back: not at once, since its rank may have lost its own
 * core for a while. A rank that has computed for less than SHORT in a step does not lend: waking a thread takes too
 * long. */
static const double IDLE = 3e-3, SHORT = 1e-3;
/* A rank waits for its helpers for at most MOST seconds, and so many slices without a completed instruction. Then it
 * waits for gradients, as it would without lending: that wait says who is late. */
static const double MOST = 2;
enum { SLICE_MS = 50, STALLED_SLICES = 4 };
enum { MEASURED = 16 }; /* one of so many short steps: their time is measured no more often than that */

/* ---- the rank that is helped ---- */

/* Until its rank has made the gradients of this step. Whether it took a tile. */
static bool help(lk__run_lend *l, int slot)
{
    lk__pool *pool = lk__context_pool(l->program->context);
    int       worker = lk__pool_threads(pool) + slot;
    uint32_t  step = atomic_load(&l->own->computing);
    bool      took = false;
    double    since = lk__now();
    for (int spins = 1; step && atomic_load_explicit(&l->own->computing, memory_order_relaxed) == step; spins++) {
        if (lk__pool_help(pool, l, worker)) {
            if (!took) atomic_fetch_add(&l->helped, 1);
            took = true;
            since = lk__now();
        } else if (spins % 64 == 0 && lk__now() - since > IDLE) {
            break;
        }
        lk__cpu_relax();
    }
    return took;
}

static void *helper_main(void *argument)
{
    struct lk__lend_helper *h = argument;
    lk__lend_slot          *s = &h->lend->own->slots[h->slot];
    s->thread = (int32_t)syscall(SYS_gettid);
    uint32_t state = STARTS;
    (void)atomic_compare_exchange_strong(&s->state, &state, UNUSED);
    while ((state = atomic_load(&s->state)) != ABSENT) {
        if (state % LOAN != RUNS) {
            lk__futex_wait(&s->state, state, 60000);
            continue;
        }
        uint32_t done = state - RUNS + (help(h->lend, h->slot) ? USED : UNUSED);
        if (atomic_compare_exchange_strong(&s->state, &state, done)) lk__futex_wake(&s->state);
    }
    return NULL;
}

/* More threads than cores: a core on which one waits is not idle. */
static bool is_crowded(const lk__run_lend *l)
{
    cpu_set_t all = l->own->cores;
    for (int i = 0; i < l->count; i++) CPU_OR(&all, &all, &l->ranks[i]->cores);
    return CPU_COUNT(&all) < l->count * lk_context_threads(l->program->context);
}

/* Threads of another pid namespace cannot be moved to this rank's cores, nor this rank's to theirs. */
static bool has_neighbours(const lk__run_lend *l)
{
    for (int i = 0; i < l->count; i++)
        if (i != l->index && l->ranks[i]->pid_namespace == l->own->pid_namespace) return l->own->pid_namespace != 0;
    return false;
}

/* Before the second long step: where steps are short, ranks crowded or cores kept, a helper would never work. The step
 * needs none of them: where a limit on processes (pids.max, ulimit -u) allows no more threads, it computes without. */
static void start_helpers(lk__run_lend *l)
{
    int error = 0;
    l->tried = true;
    if (!has_neighbours(l)) return;
    while (error == 0 && l->started < l->program->plan->helpers) {
        struct lk__lend_helper *h = &l->helpers[l->started];
        _Atomic uint32_t       *state = &l->own->slots[l->started].state;
        *h = (struct lk__lend_helper){.lend = l, .slot = l->started};
        atomic_store(state, STARTS);
        if ((error = pthread_create(&h->thread, NULL, helper_main, h)) == 0)
            l->started++;
        else
            atomic_store(state, ABSENT);
    }
    if (error)
        lk__log(l->program->context, LK_LOG_INFO,
                "only %d of the %d threads that use the cores of waiting ranks could be started (%s): steps may take "
                "longer",
                l->started, l->program->plan->helpers, strerror(error));
}

void lk__lend_begin(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l) return;
    lk__pool_admit_helpers(lk__context_pool(p->context), l, p->plan->helpers);
    if (l->computing) return;
    l->computing = true;
    if (l->steps == 0) l->crowded = is_crowded(l);
    if (l->takes_long && !l->crowded && !l->tried) start_helpers(l);
    l->begun = l->takes_long || l->steps % MEASURED == 0 ? lk__now() : 0;
    if (++l->steps == 0) l->steps = 1; /* 0: it does not compute */
    atomic_store_explicit(&l->own->done, 0, memory_order_relaxed);
    atomic_store(&l->own->computing, l->steps);
}

void lk__lend_end(lk_program *p)
{
    if (p->lend) lk__pool_admit_helpers(lk__context_pool(p->context), NULL, 0);
}

/* ---- the rank that waits ---- */

/* A free slot of this rank; -1: none. taken: how many are not. */
static int free_slot(lk__lend_rank *r, int slots, int *taken)
{
    int found = -1;
    *taken = 0;
    for (int i = 0; i < slots; i++) {
        uint32_t state = atomic_load_explicit(&r->slots[i].state, memory_order_relaxed);
        if (is_free(state)) found = i;
        *taken += state % LOAN == TAKEN || state % LOAN == RUNS;
    }
    return found;
}

/* The rank with most work left for each thread that works on it; -1: none that can be helped. */
static int neediest(const lk__run_lend *l, int *slot)
{
    uint32_t all = atomic_load_explicit(&l->own->done, memory_order_relaxed);
    double   most = -1;
    int      found = -1;
    for (int i = 0; i < l->count; i++) {
        lk__lend_rank *r = l->ranks[i];
        int            taken, free;
        if (i == l->index || r->pid_namespace != l->own->pid_namespace) continue;
        if (!atomic_load_explicit(&r->computing, memory_order_acquire)) continue;
        if ((free = free_slot(r, l->program->plan->helpers, &taken)) < 0) continue;
        uint32_t done = atomic_load_explicit(&r->done, memory_order_relaxed);
        double   left = (done < all ? all - done : 0) / (double)(1 + taken);
        if (left <= most) continue;
        most = left;
        found = i;
        *slot = free;
    }
    return found;
}

/* A core that is lent to a rank. */
typedef struct loan {
    int      rank, slot;
    uint32_t state; /* of the slot, while it lasts */
} loan;

/* Wakes a helper on these cores; false: it cannot. */
static bool lend(const lk__run_lend *l, const cpu_set_t *cores, loan *x)
{
    lk__lend_slot *s = &l->ranks[x->rank]->slots[x->slot];
    uint32_t       before = atomic_load(&s->state), taken = before - before % LOAN + LOAN + TAKEN;
    if (!is_free(before) || !atomic_compare_exchange_strong(&s->state, &before, taken)) return false;
    if (sched_setaffinity(s->thread, sizeof *cores, cores) != 0) {
        (void)atomic_compare_exchange_strong(&s->state, &taken, taken - TAKEN + UNUSED);
        return false;
    }
    x->state = taken - TAKEN + RUNS;
    if (!atomic_compare_exchange_strong(&s->state, &taken, x->state)) return false;
    lk__futex_wake(&s->state);
    return true;
}

/* Until the helper has given the core back. False: it had nothing to do, or its rank does nothing or takes too long. */
static bool take_back(const lk__run_lend *l, const loan *x)
{
    lk__lend_rank *r = l->ranks[x->rank];
    lk__lend_slot *s = &r->slots[x->slot];
    uint32_t       done = atomic_load(&r->done), state;
    for (int stalled = 0; (state = atomic_load(&s->state)) == x->state; stalled++) {
        if (stalled == STALLED_SLICES || lk__now() > l->until || lk_comm_status(l->program->comm) < 0) return false;
        lk__futex_wait(&s->state, x->state, SLICE_MS);
        uint32_t now = atomic_load(&r->done);
        if (now != done) stalled = 0;
        done = now;
    }
    return state != x->state - RUNS + UNUSED;
}

/* The cores of this rank that are idle, one for each of its threads, while threads of its loader need the others. */
static int idle_cores(const lk_context *c, cpu_set_t *cores)
{
    if (sched_getaffinity(0, sizeof *cores, cores) != 0) return 0;
    int threads = lk_context_threads(c), left = CPU_COUNT(cores) - lk__context_reading(c);
    return left < threads ? left : threads;
}

/* Whether another rank used a core. */
static bool lend_all(lk__run_lend *l)
{
    loan      loans[LK__MAX_THREADS];
    cpu_set_t cores;
    int       idle = idle_cores(l->program->context, &cores), count = 0, tries = idle + l->count;
    bool      used = false;
    double    begin = lk__now();
    while (count < idle && tries-- > 0 && (loans[count].rank = neediest(l, &loans[count].slot)) >= 0)
        count += lend(l, &cores, &loans[count]); /* not if another rank was faster */
    for (int i = 0; i < count; i++) used |= take_back(l, &loans[i]);
    if (used && l->program->trace)
        lk__trace_add(l->program->trace, &(lk__trace_event){.name = l->names[loans[0].rank],
                                                            .kind = LK__TRACE_WAIT,
                                                            .track = LK__TRACK_COMPUTE,
                                                            .begin = begin,
                                                            .end = lk__now()});
    return used;
}

void lk__lend_cores(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l || !l->computing) return;
    l->computing = false;
    atomic_store(&l->own->computing, 0);
    if (l->begun == 0) return;
    double now = lk__now();
    l->takes_long = now - l->begun >= SHORT;
    if (!l->takes_long || l->crowded) return;
    l->until = now + MOST;
    while (lend_all(l)) {}
    p->collectives->waited += lk__now() - now; /* for ranks that are late */
}

/* ---- creating ---- */

static uint64_t pid_namespace(void)
{
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
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
    if (sched_getaffinity(0, sizeof l->own->cores, &l->own->cores) != 0) CPU_ZERO(&l->own->cores);
    for (int i = 0; i < count; i++) {
        l->ranks[i] = (lk__lend_rank *)lk__comm_peer(p->comm, memory, i);
        snprintf(l->names[i], sizeof *l->names, "lends its core to rank %d", lk__plan_rank(p->plan) - l->index + i);
    }
    return LK_OK;
}

void lk__lend_free(lk_program *p)
{
    lk__run_lend *l = p->lend;
    if (!l) return;
    atomic_store(&l->own->computing, 0);
    for (int i = 0; i < l->started; i++) {
        lk__lend_slot *s = &l->own->slots[i];
        atomic_store(&s->state, ABSENT);
        lk__futex_wake(&s->state);
        pthread_join(l->helpers[i].thread, NULL);
    }
    lk_comm_release(p->comm, l->own);
    lk__free(p->context, LK_MEMORY_OTHER, l, l->bytes);
    p->lend = NULL;
}

lk_status lk__run_lend_cores(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    lk__lend_cores(p);
    return LK_OK;
}
