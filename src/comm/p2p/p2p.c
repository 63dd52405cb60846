/* p2p.c - the transport of GPUs of one host that read and write each other's memory. It is the shared-memory transport
 * except for queued calls and device memory: comm->state is the state of shared memory, comm->p2p what this transport
 * adds. */
#include "comm/p2p/p2p.h"

static lk_status allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    return lk__backend_shm.allocate(c, secret, bytes, memory);
}

static void release(lk_comm *c, void *memory)
{
    if (!c->p2p || !lk__p2p_release(c, memory)) lk__backend_shm.release(c, memory);
}

static lk_status adopt(lk_comm *c, const lk_comm *of, void *memory)
{
    lk_status status = c->p2p && of->p2p ? lk__p2p_adopt(c, of, memory) : LK_END;
    return status == LK_END ? lk__backend_shm.adopt(c, of, memory) : status;
}

static lk_status failure(lk_comm *c) { return c->p2p ? lk__p2p_check(c->p2p, true) : lk__shm_failure(c->state); }
static lk_status known_failure(lk_comm *c) { return c->p2p ? lk__p2p_check(c->p2p, false) : lk__shm_failure(c->state); }

static void raise_failure(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    bool own = cause.kind == LK__CAUSE_OWN && cause.rank == lk__comm_cause_make(c, c->rank, LK__CAUSE_OWN).rank;
    if (!c->p2p || !own || !lk__p2p_blame_dead(c->p2p)) lk__backend_shm.raise(c, status, text, cause);
    if (c->p2p) lk__p2p_stop(c->p2p);
}

static lk_status explain(lk_comm *c, lk_status status)
{
    return c->p2p && lk__p2p_blame_dead(c->p2p) ? lk__comm_report_failure(c) : status;
}

static void     busy(lk_comm *c, const char *what) { lk__backend_shm.busy(c, what); }
static void     wake_waits(lk_comm *c) { lk__backend_shm.wake(c); }
static uint64_t sent(const lk_comm *c) { return lk__backend_shm.sent(c); }
static int      hosts(const lk_comm *c, const char **why) { return lk__backend_shm.hosts(c, why); }
static lk__shm *shared(const lk_comm *c) { return lk__backend_shm.shared(c); }

static char *peer(const lk_comm *c, const void *memory, int rank)
{
    char *parts[LK__PEERS_MOST];
    return c->p2p && lk__p2p_locate(c->p2p, memory, 1, parts) ? parts[rank] : lk__backend_shm.peer(c, memory, rank);
}

static void free_state(lk_comm *c)
{
    lk__p2p_end(c);
    lk__backend_shm.free(c);
}

static lk_status begin(lk_comm *c, lk_status status, bool quiet)
{
    if (status >= 0 && (status = lk__p2p_begin(c, quiet)) < 0) lk__backend_shm.free(c);
    return status;
}

static lk_status create(lk_comm *c, const struct lk__rendezvous_identity *identity)
{
    return begin(c, lk__backend_shm.create(c, identity), false);
}

static lk_status split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    return begin(c, lk__shm_split(parent, c, all, ranks), true);
}

static lk__comm_abilities abilities(const lk_comm *c, const lk__device *device)
{
    lk__comm_abilities a = lk__comm_abilities_on_host(c, device);
    if (c->p2p && device == c->p2p->device) a.queues = a.records = true;
    return a;
}

const lk__comm_backend lk__backend_p2p = {
    .name = "p2p",
    .text = "GPUs on one host, which read and write each other's memory",
    .scope = LK__SCOPE_HOST,
    .maps_devices = true,
    .collective = lk__shm_collective,
    .transfer = lk__shm_transfer,
    .allocate = allocate,
    .release = release,
    .failure = failure,
    .known_failure = known_failure,
    .raise = raise_failure,
    .explain = explain,
    .busy = busy,
    .wake = wake_waits,
    .sent = sent,
    .free = free_state,
    .create = create,
    .split = split,
    .abilities = abilities,
    .enqueue = lk__p2p_enqueue,
    .allocate_device = lk__p2p_allocate,
    .peer = peer,
    .adopt = adopt,
    .hosts = hosts,
    .shared = shared,
};
