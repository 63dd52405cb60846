/* shm.c - the backend for ranks of one host: lays out its memory, creates and frees it. */
#define _GNU_SOURCE
#include "comm/shm/shm.h"

#include "comm/process.h"
#include "comm/rendezvous/identity.h"
#include "comm/rendezvous/local.h"
#include "comm/transports.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    POPULATE_WRITE = 23, /* MADV_POPULATE_WRITE, which not every libc has */
    SPINS = 400,         /* about 5 µs: what it takes to sleep and be woken */
    YIELDS = 20,         /* each followed by a quarter of SPINS: the rank that is waited for may need this core */
    SPINS_CROWDED = 20,  /* where ranks share cores, spinning delays the rank that is waited for */
    YIELDS_CROWDED = 10,
    RINGS_MOST = 4 << 20, /* bytes of all rings together, while each has at least RING_LEAST */
    RING_MOST = 128 << 10,
    RING_LEAST = 1 << 10,
};

static size_t ring_bytes(int size)
{
    size_t bytes = RING_MOST;
    while (bytes > RING_LEAST && bytes * (size_t)size * (size_t)size > RINGS_MOST) bytes /= 2;
    return bytes;
}

static size_t header_bytes(void) { return lk__round_up(sizeof(lk__shm_header), 4096); }

size_t lk__shm_bytes(int size)
{
    size_t n = (size_t)size;
    return header_bytes() + lk__round_up(n * sizeof(lk__shm_rank_slot), 4096) + n * LK__BUFFERS * LK__SHM_CHUNK +
           n * n * (sizeof(lk__shm_ring) + ring_bytes(size));
}

/* Of the group that was created. */
static lk__shm_rank_slot *first_slots(const lk__shm_mapping *m)
{
    return (lk__shm_rank_slot *)(m->base + header_bytes());
}

static void fill_rank_slot(lk__shm *s)
{
    cpu_set_t cpus;
    s->me->pid_namespace = lk__process_namespace("pid");
    s->me->pid = getpid();
    s->me->started = lk__process_started(s->me->pid);
    s->me->home = (int32_t)(s->home - first_slots(s->mapping));
    if (gethostname(s->me->host, LK__HOST_NAME - 1) != 0) snprintf(s->me->host, LK__HOST_NAME, "?");
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &cpus)) s->me->cpus[i / 64] |= (uint64_t)1 << i % 64;
    lk__shm_find_node(s);
    lk__comm_device_make(s->comm->context, &s->me->device);
    s->me->maps = s->comm->backend->maps_devices && lk__comm_maps_device(s->comm->context);
}

/* Once all ranks have filled their slots: spins depend on how many cores they have in total. */
static void choose_spins(lk__shm *s)
{
    int cores = 0;
    for (int word = 0; word < 16; word++) {
        uint64_t any = 0;
        for (int i = 0; i < s->size; i++) any |= s->rank_slots[i].cpus[word];
        cores += __builtin_popcountll(any);
    }
    s->spins = s->size <= cores ? SPINS : SPINS_CROWDED;
    s->yields = s->size <= cores ? YIELDS : YIELDS_CROWDED;
}

void lk__shm_set_layout(lk__shm *s, char *memory)
{
    s->header = (lk__shm_header *)memory;
    s->rank_slots = (lk__shm_rank_slot *)(memory + header_bytes());
    s->me = &s->rank_slots[s->rank];
    s->staging = (char *)s->rank_slots + lk__round_up((size_t)s->size * sizeof(lk__shm_rank_slot), 4096);
    s->rings = s->staging + (size_t)s->size * LK__BUFFERS * LK__SHM_CHUNK;
    s->ring_bytes = ring_bytes(s->size);
}

static size_t pointer_bytes(const lk__shm *s) { return 3 * (size_t)s->size * sizeof *s->pointers; }
static size_t message_bytes(const lk__shm *s) { return (size_t)s->size * sizeof *s->messages; }

lk_status lk__shm_make(lk_comm *c)
{
    lk__shm *s = c->state = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *s);
    if (!s) return LK_ENOMEM;
    *s = (lk__shm){
        .comm = c, .rank = c->rank, .size = c->size, .tick_start = lk__tick(), .time_start = lk__now(), .block = -1};
    s->pointers = lk__alloc(c->context, LK_MEMORY_OTHER, pointer_bytes(s));
    s->messages = lk__alloc(c->context, LK_MEMORY_OTHER, message_bytes(s));
    if (s->pointers && s->messages) return LK_OK;
    lk__shm_drop(c);
    return LK_ENOMEM;
}

void lk__shm_drop(lk_comm *c)
{
    lk__shm *s = c->state;
    lk__free(c->context, LK_MEMORY_OTHER, s->pointers, pointer_bytes(s));
    lk__free(c->context, LK_MEMORY_OTHER, s->messages, message_bytes(s));
    lk__free(c->context, LK_MEMORY_OTHER, s, sizeof *s);
    c->state = NULL;
}

lk_status lk__shm_begin(lk_comm *c, lk__shm_mapping *mapping, int block)
{
    lk__shm *s = c->state;
    s->mapping = mapping;
    s->block = block;
    lk__shm_set_layout(s, block < 0 ? mapping->base : mapping->base + mapping->own + (size_t)block * mapping->block);
    if (block < 0) s->home = s->me;
    fill_rank_slot(s);
    int64_t       timeout = c->timeout_ms;
    lk__comm_call o = {.kind = LK__BARRIER, .type = LK_U8, .site = {"lk_comm_create", 0}};
    c->timeout_ms = c->connect_ms;
    choose_spins(s);
    lk_status status = lk__shm_collective(c, &o);
    c->timeout_ms = timeout;
    choose_spins(s);
    if (status < 0) {
        status = lk__comm_report_failure(c);
        c->backend->free(c);
    }
    return status;
}

enum { BLOCK_ALIGN = 2 << 20 }; /* a huge page; any page's size divides it */

lk_status lk__shm_create(lk_comm *c, const lk__rendezvous_identity *identity, const char *key, const char *token)
{
    size_t bytes = lk__round_up(lk__shm_bytes(c->size), (size_t)sysconf(_SC_PAGESIZE)),
           block = lk__round_up(bytes, BLOCK_ALIGN), reserve = (1 + LK__SHM_BLOCKS) * block - bytes;
    lk__rendezvous_local rendezvous = {c->context, key, token, c->rank, c->size, (double)c->join_ms / 1000,
                                       identity,   c,   NULL,  NULL,    &reserve};
    lk__shm_mapping     *mapping = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *mapping);
    void                *memory;
    lk_status            status = mapping ? lk__shm_make(c) : LK_ENOMEM;
    if (status >= 0 && (status = lk__rendezvous_share(&rendezvous, bytes, &memory)) < 0) lk__shm_drop(c);
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, mapping, sizeof *mapping);
        return status;
    }
    *mapping = reserve ? (lk__shm_mapping){.base = memory, .own = block, .block = block, .blocks = LK__SHM_BLOCKS}
                       : (lk__shm_mapping){.base = memory, .own = bytes};
    atomic_init(&mapping->users, 1);
    return lk__shm_begin(c, mapping, -1);
}

/* ---- symmetric memory ---- */

lk_status lk__shm_check_ranks(lk_comm *c)
{
    lk__shm  *s = c->state;
    lk_status status = lk__shm_failure(s);
    for (int i = 0; i < s->size && status >= 0; i++)
        if (i != s->rank && (atomic_load(&s->rank_slots[i].gone) || lk__shm_dead(&s->rank_slots[i], NULL)))
            status = lk__shm_lost(s, i);
    return status < 0 ? lk__comm_report_failure(c) : LK_OK;
}

static lk_status allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    lk__shm           *s = c->state;
    lk__shm_symmetric *y = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *y);
    char               name[32], token[24];
    void              *base;
    s->symmetric_ids++; /* equal on all ranks, even if this one fails */
    snprintf(name, sizeof name, "memory-%016llx", (unsigned long long)secret);
    snprintf(token, sizeof token, "%016llx", (unsigned long long)secret);
    lk__rendezvous_local rendezvous = {c->context,
                                       name,
                                       token,
                                       s->rank,
                                       s->size,
                                       (double)c->connect_ms / 1000,
                                       NULL,
                                       c,
                                       lk__shm_check_ranks,
                                       lk__shm_nodes(s) > 1 ? lk__shm_place : NULL,
                                       NULL};
    size_t               stride = lk__round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    lk_status            status = lk__rendezvous_share(&rendezvous, stride * (size_t)s->size, &base);
    if (status >= 0 && !y) { /* known only now, so that the others do not wait for this rank */
        lk__rendezvous_unmap(base, stride * (size_t)s->size);
        status = LK_ENOMEM;
    }
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, y, sizeof *y);
        return status;
    }
    *y = (lk__shm_symmetric){
        .base = base, .stride = stride, .bytes = bytes, .id = s->symmetric_ids, .next = s->symmetric};
    s->symmetric = y;
    s->fits = (lk__comm_call){.kind = LK__BARRIER}; /* it was checked without this memory */
    *memory = y->base + y->stride * (size_t)s->rank;
    /* Its own part now, if that was not done when it was mapped. A kernel before 5.14 does it page by page, when they
     * are used. */
    (void)madvise(*memory, stride, POPULATE_WRITE);
    return LK_OK;
}

static void release(lk_comm *c, void *memory)
{
    lk__shm *s = c->state;
    for (lk__shm_symmetric **at = &s->symmetric; *at; at = &(*at)->next) {
        lk__shm_symmetric *y = *at;
        if (lk__shm_part(y, s->rank) != (char *)memory) continue;
        *at = y->next;
        s->fits = (lk__comm_call){.kind = LK__BARRIER};
        if (!y->ranks) lk__rendezvous_unmap(y->base, y->stride * (size_t)s->size);
        if (y->ranks) lk__free(c->context, LK_MEMORY_OTHER, y->ranks, (size_t)s->size * sizeof *y->ranks);
        lk__free(c->context, LK_MEMORY_OTHER, y, sizeof *y);
        return;
    }
}

static const lk__shm_symmetric *find_symmetric(const lk_comm *c, const void *memory)
{
    const lk__shm           *s = c->state;
    const lk__shm_symmetric *y = s->symmetric;
    while (y && lk__shm_part(y, s->rank) != memory) y = y->next;
    return y;
}

static char *peer(const lk_comm *c, const void *memory, int rank)
{
    const lk__shm_symmetric *y = find_symmetric(c, memory);
    return y ? lk__shm_part(y, rank) : NULL;
}

int lk__shm_rank_in(const lk_comm *c, int world)
{
    for (int i = 0; i < c->size; i++)
        if ((c->world ? c->world[i] : i) == world) return i;
    return -1;
}

static lk_status adopt(lk_comm *c, const lk_comm *of, void *memory)
{
    lk__shm                 *s = c->state;
    const lk__shm_symmetric *theirs = of->backend == c->backend ? find_symmetric(of, memory) : NULL;
    uint64_t                 id = ++s->symmetric_ids; /* equal on all ranks, even if this one fails */
    if (!theirs || theirs->ranks) return LK_OK;
    lk__shm_symmetric *y = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *y);
    int               *ranks = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)s->size * sizeof *ranks);
    bool               inside = y && ranks;
    for (int i = 0; i < s->size && inside; i++)
        inside = (ranks[i] = lk__shm_rank_in(of, c->world ? c->world[i] : i)) >= 0;
    if (!inside) {
        lk__free(c->context, LK_MEMORY_OTHER, y, sizeof *y);
        if (ranks) lk__free(c->context, LK_MEMORY_OTHER, ranks, (size_t)s->size * sizeof *ranks);
        return y && ranks ? LK_OK : LK_ENOMEM;
    }
    *y = *theirs;
    y->id = id;
    y->ranks = ranks;
    y->next = s->symmetric;
    s->symmetric = y;
    s->fits = (lk__comm_call){.kind = LK__BARRIER};
    return LK_OK;
}

static int hosts(const lk_comm *c, const char **why)
{
    (void)c, (void)why;
    return 1;
}

/* ---- the rest of the table ---- */

static lk_status failure(lk_comm *c) { return lk__shm_failure(c->state); }
static void      raise_failure(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    (void)lk__shm_raise_because(c->state, status, text, cause);
}
static void     wake_waits(lk_comm *c) { lk__shm_wake_self(c->state); }
static uint64_t sent(const lk_comm *c) { return ((const lk__shm *)c->state)->sent; }

static void busy(lk_comm *c, const char *what)
{
    lk__shm *s = c->state;
    if (what) snprintf(s->me->busy_with, sizeof s->me->busy_with, "%s", what);
    atomic_store(&s->me->busy, what ? 1 : 0);
}

/* Wakes peers that wait for this rank, so that they check the group at once. */
static void leave_group(lk__shm *s)
{
    atomic_store(&s->me->gone, 1);
    _Atomic uint32_t *words[] = {&s->me->arrivals[0].number, &s->me->arrivals[1].number, &s->me->progress};
    if (atomic_load(&s->me->sleepers))
        for (int i = 0; i < 3; i++) lk__futex_wake(words[i]);
    for (int i = 0; i < s->size; i++)
        if (atomic_load(&s->rank_slots[i].waiters)) lk__futex_wake(&s->rank_slots[i].doorbell);
}

static void free_state(lk_comm *c)
{
    lk__shm *s = c->state;
    leave_group(s);
    while (s->symmetric) release(c, lk__shm_part(s->symmetric, s->rank));
    lk__shm_transfer_free(s);
    lk__shm_leave_mapping(s);
    lk__shm_drop(c);
}

/* Ranks of one host check by its pid whether another one is alive. */
static lk_status check_namespaces(lk_comm *c)
{
    const lk__shm *s = c->state;
    for (int i = 1; i < c->size; i++)
        if (s->rank_slots[i].pid_namespace != s->rank_slots[0].pid_namespace)
            return lk__fail(c->context, LK_EINVAL,
                            "rank %d of %d is in another pid namespace (container) than rank 0, so they count as on "
                            "different hosts: set LOCAL_WORLD_SIZE to the number of ranks in each container, and, "
                            "unless lockstep run starts them, MASTER_ADDR, LOCKSTEP_PORT and LOCKSTEP_TOKEN_FILE",
                            i, c->size);
    return LK_OK;
}

static lk_status check_devices(lk_comm *c)
{
    const lk__shm   *s = c->state;
    size_t           bytes = (size_t)c->size * sizeof(lk__comm_device);
    lk__comm_device *devices = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    if (!devices) return LK_ENOMEM;
    for (int i = 0; i < c->size; i++) devices[i] = s->rank_slots[i].device;
    lk_status status = lk__comm_devices_check(c->context, devices, c->size, c->rank);
    lk__free(c->context, LK_MEMORY_OTHER, devices, bytes);
    return status;
}

static lk_status create(lk_comm *c, const lk__rendezvous_identity *identity)
{
    lk_status status = lk__shm_create(c, identity, identity->key, identity->token);
    if (status < 0) return status;
    status = check_namespaces(c);
    if (status >= 0) status = check_devices(c);
    if (status < 0) free_state(c);
    return status;
}

static lk__shm *shared(const lk_comm *c) { return c->state; }

const lk__comm_backend lk__backend_shm = {
    .name = "shm",
    .text = "shared memory, between ranks on one host",
    .scope = LK__SCOPE_HOST,
    .alone = true,
    .collective = lk__shm_collective,
    .transfer = lk__shm_transfer,
    .allocate = allocate,
    .release = release,
    .failure = failure,
    .raise = raise_failure,
    .busy = busy,
    .wake = wake_waits,
    .sent = sent,
    .free = free_state,
    .create = create,
    .split = lk__shm_split,
    .abilities = lk__comm_abilities_on_host,
    .peer = peer,
    .adopt = adopt,
    .hosts = hosts,
    .shared = shared,
};
