/* create.c - finds out whether the ranks of a group reach each other's GPUs, and creates what the group needs for that.
 * Each pair writes and reads a pattern first: some machines drop what one GPU writes to another one's memory (IOMMU,
 * ACS) without an error. The ranks exchange their results, so all of them come to the same decision. */
#define _GNU_SOURCE
#include "comm/p2p/p2p.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- whether they may ---- */

static bool is_same_gpu(const lk__comm_device *a, const lk__comm_device *b)
{
    return memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

/* Whether two ranks use one GPU. */
static bool shares_gpu(const lk_comm *c)
{
    const lk__shm *s = c->state;
    for (int i = 1; i < c->size; i++)
        for (int k = 0; k < i; k++)
            if (is_same_gpu(&s->rank_slots[i].device, &s->rank_slots[k].device)) return true;
    return false;
}

/* From what all ranks know of each other, so that they come to the same result without a message. */
static bool may_begin(const lk_comm *c, char why[LK__P2P_WHY])
{
    const lk__shm *s = c->state;
    *why = 0;
    if (c->size > LK__PEERS_MOST) {
        snprintf(why, LK__P2P_WHY, "at most %d ranks can exchange data directly, but there are %d", LK__PEERS_MOST,
                 c->size);
        return false;
    }
    for (int i = 0; i < c->size; i++) {
        if (s->rank_slots[i].maps) continue;
        snprintf(why, LK__P2P_WHY, "rank %d has no GPU whose memory other ranks can map", i);
        return false;
    }
    return true;
}

/* ---- the pattern ---- */

enum { PATTERN_WORDS = 1024 };

static uint32_t seed_of(int writer, int owner) { return 0x9E3779B9u * (uint32_t)(1 + writer * LK__PEERS_MOST + owner); }

/* Where `writer` writes in a rank's scratch memory. */
static char *pattern_at(const lk__p2p *p, int writer, int owner)
{
    return p->block.parts[owner] + LK__PEERS_FLAG_BYTES + (size_t)writer * PATTERN_WORDS * sizeof(uint32_t);
}

static lk_status write_patterns(const lk__p2p *p)
{
    lk_status status = LK_OK;
    int       own = p->comm->rank;
    for (int i = 0; i < p->comm->size && status >= 0; i++)
        status = p->peers->write_pattern(p->device, pattern_at(p, own, i), PATTERN_WORDS, seed_of(own, i));
    return status;
}

static lk_status check_one(const lk__p2p *p, int writer, int owner)
{
    bool      same = false;
    lk_status status =
        p->peers->check_pattern(p->device, pattern_at(p, writer, owner), PATTERN_WORDS, seed_of(writer, owner), &same);
    if (status < 0 || same) return status;
    return lk__fail(p->comm->context, LK_EUNSUPPORTED,
                    "a test pattern that the GPU of rank %d wrote to the memory of rank %d did not arrive", writer,
                    owner);
}

/* What the others wrote to this rank's memory, and what each has in its own. */
static lk_status check_patterns(const lk__p2p *p)
{
    lk_status status = LK_OK;
    for (int i = 0; i < p->comm->size && status >= 0; i++) {
        status = check_one(p, i, p->comm->rank);
        if (status >= 0) status = check_one(p, i, i);
    }
    return status;
}

/* ---- what a group has ---- */

/* Kernels that take turns on a GPU must not wait for each other. Ranks need not agree about that: each reads its own
 * environment. */
static lk_status check_turns(const lk__p2p *p)
{
    if (!shares_gpu(p->comm) || !p->peers->takes_turns(p->device)) return LK_OK;
    return lk__fail(p->comm->context, LK_EUNSUPPORTED, "kernels of ranks that share a GPU take turns");
}

static lk_status make_own(lk__p2p *p)
{
    lk_comm                 *c = p->comm;
    const lk__device_memory *memory = &p->device->backend->memory;
    lk_status                status = check_turns(p);
    if (status >= 0) status = p->peers->check(p->device);
    if (status < 0) return status;
    p->records = lk__alloc(c->context, LK_MEMORY_OTHER, LK__P2P_RECORDS * sizeof *p->records);
    p->progress = memory->alloc_host(p->device, LK_MEMORY_OTHER, sizeof *p->progress);
    p->group = memory->alloc(p->device, LK_MEMORY_OTHER, sizeof *p->group);
    if (!p->records || !p->progress || !p->group) return LK_ENOMEM;
    memset(p->progress, 0, sizeof *p->progress);
    return p->peers->prepare(p->device);
}

static lk_status write_group(lk__p2p *p)
{
    lk_comm        *c = p->comm;
    lk__peers_group group = {.rank = c->rank,
                             .ranks = c->size,
                             .deadline_ns = c->timeout_ms < INT64_MAX / 1000000 ? c->timeout_ms * 1000000 : INT64_MAX,
                             .progress = p->progress};
    for (int i = 0; i < c->size; i++) {
        group.flags[i] = (lk__peers_flags *)p->block.parts[i];
        group.scratch[i] = p->block.parts[i] + LK__PEERS_FLAG_BYTES;
    }
    return lk__device_write(p->device, NULL, p->group, &group, sizeof group);
}

/* LK_END: it cannot be done, and why says the reason. */
static lk_status begin_steps(lk__p2p *p, char why[LK__P2P_WHY])
{
    lk_comm  *c = p->comm;
    lk_status status = lk__p2p_agree(c, make_own(p), NULL, NULL, why);
    if (status == LK_OK) status = lk__p2p_share(c, LK__PEERS_BLOCK_BYTES, &p->block, why);
    if (status == LK_OK) status = lk__p2p_agree(c, write_patterns(p), NULL, NULL, why);
    if (status == LK_OK) status = lk__p2p_agree(c, check_patterns(p), NULL, NULL, why);
    return status;
}

static void fall_back(lk_comm *c, const char *why, bool quiet)
{
    c->backend = &lk__backend_shm;
    if (*why && c->rank == 0 && !quiet)
        lk__log(c->context, LK_LOG_INFO, "the GPUs exchange data through the host's memory, not directly: %s", why);
}

lk_status lk__p2p_begin(lk_comm *c, bool quiet)
{
    char why[LK__P2P_WHY] = "";
    if (!may_begin(c, why)) {
        fall_back(c, why, quiet);
        return LK_OK;
    }
    lk__p2p *p = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM; /* the others learn it when this rank frees the group */
    p->comm = c;
    p->device = lk__context_device(c->context);
    p->peers = p->device->backend->peers;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    c->p2p = p;
    int64_t timeout = c->timeout_ms;
    c->timeout_ms = c->connect_ms;
    lk_status status = begin_steps(p, why);
    c->timeout_ms = timeout;
    if (status == LK_OK) status = lk__p2p_agree(c, write_group(p), NULL, NULL, why);
    if (status == LK_OK) return LK_OK;
    bool said = check_turns(p) < 0; /* comm/devices.c */
    lk__p2p_end(c);
    if (status < 0) return status;
    fall_back(c, why, quiet || said);
    return LK_OK;
}

void lk__p2p_end(lk_comm *c)
{
    lk__p2p *p = c->p2p;
    if (!p) return;
    const lk__device_memory *memory = &p->device->backend->memory;
    lk__p2p_unwatch(p);
    p->release_end = lk__p2p_release_end(p);
    while (p->memory) (void)lk__p2p_release(c, p->memory->parts[c->rank]);
    lk__p2p_unshare(c, &p->block);
    if (p->group) memory->free(p->device, LK_MEMORY_OTHER, p->group, sizeof *p->group);
    if (p->progress) memory->free_host(p->device, LK_MEMORY_OTHER, p->progress, sizeof *p->progress);
    lk__free(c->context, LK_MEMORY_OTHER, p->records, LK__P2P_RECORDS * sizeof *p->records);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    lk__free(c->context, LK_MEMORY_OTHER, p, sizeof *p);
    c->p2p = NULL;
}
