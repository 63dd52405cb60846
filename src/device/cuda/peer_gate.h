/* device/cuda/peer_gate.h - how the kernels of several ranks wait for each other: words that other GPUs and processes
 * see, the device's clock, and gates (device/peers.h).
 *
 * Words of flags are read and written with acquire and release at system scope. One thread waits; the others of its
 * block wait at a barrier, and no other block runs. A kernel that may wait allows the next kernel to start (overlap.h)
 * only after it has passed the gate: otherwise blocks of the next kernel could occupy the resources that a peer's
 * kernels need to reach the gate. */
#ifndef LK__CUDA_PEER_GATE_H
#define LK__CUDA_PEER_GATE_H

extern "C" {
#include "device/peers.h"
}
#include "device/cuda/cuda.h"

#if defined(LK_CUDA_EMULATED)
static inline uint64_t flag_load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void     flag_store(uint64_t *at, uint64_t x) { __atomic_store_n(at, x, __ATOMIC_RELEASE); }
static inline uint64_t flag_add(uint64_t *at, uint64_t x) { return __atomic_fetch_add(at, x, __ATOMIC_ACQ_REL); }
static inline uint64_t flag_exchange(uint64_t *at, uint64_t old, uint64_t x)
{
    __atomic_compare_exchange_n(at, &old, x, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return old;
}
/* Words that the host, or a kernel on another stream, reads and writes meanwhile. */
template <typename T> static inline T    host_load(const T *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
template <typename T> static inline void host_store(T *at, T x) { __atomic_store_n(at, x, __ATOMIC_RELEASE); }
#else
static __device__ __forceinline__ uint64_t flag_load(const uint64_t *at)
{
    uint64_t x;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
    return x;
}
static __device__ __forceinline__ void flag_store(uint64_t *at, uint64_t x)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(x) : "memory");
}
static __device__ __forceinline__ uint64_t flag_add(uint64_t *at, uint64_t x)
{
    uint64_t old;
    asm volatile("atom.acq_rel.sys.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(x) : "memory");
    return old;
}
/* Writes x if the word is `old`; returns what was there. */
static __device__ __forceinline__ uint64_t flag_exchange(uint64_t *at, uint64_t old, uint64_t x)
{
    uint64_t was;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(at), "l"(old), "l"(x) : "memory");
    return was;
}
template <typename T> static __device__ __forceinline__ T    host_load(const T *at) { return *(const volatile T *)at; }
template <typename T> static __device__ __forceinline__ void host_store(T *at, T x)
{
    __threadfence_system();
    *(volatile T *)at = x;
}
#endif

static __device__ __forceinline__ uint64_t clock_ns()
{
#if defined(LK_CUDA_EMULATED)
    return lk__emulated_clock_ns();
#else
    uint64_t x;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x)::"memory");
    return x;
#endif
}

/* ---- one call, as its kernels know it ---- */

typedef struct peer_call {
    lk__peers_group *group;
    int32_t         *halted;
    uint32_t         id;
    int32_t          home, gate;  /* gate `gate` of rank `home` */
    int32_t          other;       /* index of lk__peers_group.passed: 0, or 1 + the other rank of two */
    int32_t          ranks;       /* that wait at the gate */
    uint32_t         with;        /* a bit for each of them */
    int64_t          half_bytes;  /* of scratch memory: gate rounds use its halves in turn */
    bool             first, last; /* the kernel begins, or ends, the call */
    bool             pushes;      /* it writes to peers */
} peer_call;

static __device__ __forceinline__ bool is_halted(const peer_call &c)
{
    return c.halted && host_load(c.halted) == LK__HALTED_BY_GROUP;
}

/* All threads of a block, which must come to one result: kernels on other streams may write the words meanwhile. */
static __device__ __forceinline__ bool has_stopped(const peer_call &c)
{
    return __syncthreads_or(threadIdx.x == 0 && (host_load(&c.group->failed) || is_halted(c)));
}

/* One thread of the call's first kernel. */
static __device__ inline void begin_call(const peer_call &c)
{
    lk__peers_group *g = c.group;
    g->number++;
    host_store(&g->progress->began_call, c.id);
    host_store(&g->progress->began, g->number);
}

/* Every thread of a block, at the end of a kernel of one or more blocks. */
static __device__ inline void end_kernel(const peer_call &c)
{
    if (!c.last) return;
    __syncthreads();
    if (threadIdx.x != 0) return;
    lk__peers_group *g = c.group;
    __threadfence();
    if (atomicAdd(&g->leaving, 1u) != gridDim.x - 1) return;
    g->leaving = 0;
    host_store(&g->progress->ended, g->number);
}

/* ---- gates ---- */

#define GATE_FAILED ((uint64_t)1 << 63)
#define GATE_COUNT (((uint64_t)1 << 56) - 1)

static __device__ __forceinline__ uint64_t gate_mark(uint64_t number, int culprit)
{
    return GATE_FAILED | (number & 1) << 62 | (uint64_t)culprit << 56;
}
static __device__ __forceinline__ int gate_culprit(uint64_t state) { return (int)(state >> 56 & 63); }

typedef enum gate_outcome { GATE_CLOSED, GATE_PASSED, GATE_BROKEN } gate_outcome;

/* Of gate round `number`, from 0. A rank that looks at a marked word waits for the failed round, or has not yet seen
 * that the one before was complete. */
static __device__ __forceinline__ gate_outcome judge_gate(uint64_t state, uint64_t number, int ranks)
{
    if (state & GATE_FAILED) return (state >> 62 & 1) == (number & 1) ? GATE_BROKEN : GATE_PASSED;
    return (state & GATE_COUNT) >= (number + 1) * (uint64_t)ranks ? GATE_PASSED : GATE_CLOSED;
}

/* Marks a gate round as failed, unless it is complete; the word as it is then. */
static __device__ inline uint64_t break_gate(lk__peers_gate *gate, uint64_t number, int ranks, int culprit)
{
    uint64_t state = flag_load(&gate->state);
    while (judge_gate(state, number, ranks) == GATE_CLOSED) {
        uint64_t was = flag_exchange(&gate->state, state, state | gate_mark(number, culprit));
        if (was == state) return state | gate_mark(number, culprit);
        state = was;
    }
    return state;
}

/* The first rank that has not arrived; -1: all have. */
static __device__ inline int find_absent(const lk__peers_gate *gate, uint64_t number, uint32_t with)
{
    for (int i = 0; i < LK__PEERS_MOST; i++)
        if ((with >> i & 1) && flag_load(&gate->arrived[i]) <= number) return i;
    return -1;
}

/* What every rank does whose wait has failed: the other gates must not keep the others waiting. */
static __device__ inline void fail_call(const peer_call &c, int culprit, uint64_t waited)
{
    lk__peers_group    *g = c.group;
    lk__peers_progress *p = g->progress;
    if (c.other != 0) break_gate(&g->flags[0]->gates[0], g->passed[0], g->ranks, culprit);
    host_store(&g->failed, 1u);
    host_store(&p->failed_number, g->number);
    host_store(&p->waited_ns, waited);
    host_store(&p->failed_call, c.id);
    host_store(&p->failed, (int32_t)(1 + culprit));
    /* Last: where another group's call stops because of it, the host finds the reason here. */
    if (c.halted) host_store(c.halted, (int32_t)LK__HALTED_BY_GROUP);
}

/* For tests: another time for every rank and gate round. */
static __device__ inline void delay_arrival(const lk__peers_group *g, uint64_t number)
{
    if (!g->delay_ns) return;
    uint64_t x = (number * 8 + (uint64_t)g->rank + 1) * 0x9E3779B97F4A7C15u, begin = clock_ns();
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    while (clock_ns() - begin < (x >> 33) % g->delay_ns) __nanosleep(100);
}

/* Whether somebody else has ended the wait: the host, a failure of another group, which ends this one's step, too, or
 * one at the gate of all ranks. */
static __device__ inline int find_order(const peer_call &c)
{
    lk__peers_group *g = c.group;
    if (host_load(&g->progress->stop) || is_halted(c)) return LK__PEERS_STOPPED;
    if (c.other == 0) return -1;
    uint64_t state = flag_load(&g->flags[0]->gates[0].state);
    return state & GATE_FAILED ? gate_culprit(state) : -1;
}

/* Whose fault it is that the deadline has passed. A rank whose kernel ended between its two words looks as if it had
 * arrived: as long again, and it is nobody's. */
static __device__ inline int find_late(const peer_call &c, const lk__peers_gate *gate, uint64_t number, uint64_t waited)
{
    uint64_t deadline = (uint64_t)c.group->deadline_ns;
    int      absent = waited > deadline ? find_absent(gate, number, c.with) : -1;
    return absent < 0 && waited > 2 * deadline ? LK__PEERS_STOPPED : absent;
}

/* One thread: waits until all have arrived; returns whether they have. */
static __device__ inline bool await_gate(const peer_call &c)
{
    lk__peers_group *g = c.group;
    lk__peers_gate  *gate = &g->flags[c.home]->gates[c.gate];
    uint64_t         number = g->passed[c.other], begin = clock_ns(), seen = begin;
    if (g->late) {
        fail_call(c, gate_culprit(break_gate(gate, number, c.ranks, g->rank)), 0);
        return false;
    }
    delay_arrival(g, number);
    flag_store(&gate->arrived[g->rank], number + 1);
    uint64_t     state = flag_add(&gate->state, 1) + 1;
    gate_outcome outcome = judge_gate(state, number, c.ranks);
    for (uint32_t polls = 1; outcome == GATE_CLOSED; polls++) {
        uint64_t now = clock_ns();
        int      culprit = polls % 64 == 0 ? find_order(c) : -1;
        if (culprit < 0) culprit = find_late(c, gate, number, now - begin);
        __nanosleep(polls < 64 ? 20 : 200);
        state = culprit >= 0 ? break_gate(gate, number, c.ranks, culprit) : flag_load(&gate->state);
        outcome = judge_gate(state, number, c.ranks);
        if (outcome == GATE_CLOSED) seen = now;
    }
    if (outcome == GATE_BROKEN) {
        fail_call(c, gate_culprit(state), clock_ns() - begin);
        return false;
    }
    g->opened_ns = seen;
    g->passed[c.other] = number + 1;
    return true;
}

/* One thread of a kernel that waits, where another group has halted the step: this rank will not arrive. Of a group
 * that has failed no step may update: the host clears `halted` after steps that failed by themselves. */
static __device__ inline void leave_group(const peer_call &c)
{
    lk__peers_group *g = c.group;
    if (g->failed) {
        if (c.halted) host_store(c.halted, (int32_t)LK__HALTED_BY_GROUP);
        return;
    }
    lk__peers_gate *gate = &g->flags[c.home]->gates[c.gate];
    fail_call(c, gate_culprit(break_gate(gate, g->passed[c.other], c.ranks, LK__PEERS_STOPPED)), 0);
}

/* All threads of the only block: whether all have arrived. */
static __device__ inline bool pass_gate(const peer_call &c)
{
    int failed = 0;
    __syncthreads(); /* what the block has published is written */
    if (threadIdx.x == 0) {
        __threadfence_system();
        failed = !await_gate(c);
    }
    return !__syncthreads_or(failed);
}

/* Whether no peer can have given up the gate round that follows by its deadline: a peer begins to wait for it after
 * `opened_ns`. */
static __device__ inline bool may_push(const peer_call &c)
{
    lk__peers_group *g = c.group;
    uint64_t         state = flag_load(&g->flags[c.home]->gates[c.gate].state);
    if (!(state & GATE_FAILED) && clock_ns() - g->opened_ns < (uint64_t)g->deadline_ns / 2) return true;
    g->late = 1;
    return false;
}

#endif
