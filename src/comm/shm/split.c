/* split.c - memory of groups that are split from a group of this host: blocks after the memory of the original group,
 * which all its ranks have mapped. The first rank of a new group takes a block, and the others wait for it in the
 * parent's memory. Where no block is free, the ranks share new memory, as a group that is created does. */
#include "comm/shm/shm.h"

#include "comm/rendezvous/local.h"

#include <stdio.h>
#include <string.h>

static lk__shm_header *header_of(const lk__shm_mapping *m) { return (lk__shm_header *)m->base; }

static char *block_at(const lk__shm_mapping *m, int block) { return m->base + m->own + (size_t)block * m->block; }

/* The number of a free one, which `users` ranks then have; -1: there is none. */
static int take_block(const lk__shm_mapping *m, int users)
{
    for (int i = 0; i < m->blocks; i++) {
        uint32_t none = 0;
        if (atomic_compare_exchange_strong(&header_of(m)->blocks[i].users, &none, (uint32_t)users)) return i;
    }
    return -1;
}

/* What an earlier group left: all but the contents of staging buffers and rings. */
static void clear_block(const lk__shm *s, char *memory)
{
    memset(memory, 0, (size_t)(s->staging - memory));
    for (size_t i = 0; i < (size_t)s->size * (size_t)s->size; i++)
        memset(s->rings + i * (sizeof(lk__shm_ring) + s->ring_bytes), 0, sizeof(lk__shm_ring));
}

/* On the first rank. Every rank's process is recorded at once, so that a rank that dies before it joins is known as
 * dead. */
static int prepare_block(const lk__shm *parent, const lk_comm *c, const int *ranks)
{
    lk__shm_mapping *m = parent->mapping;
    int              block = take_block(m, c->size);
    lk__shm          layout = {.rank = c->rank, .size = c->size};
    if (block < 0) return -1;
    char          *memory = block_at(m, block);
    lk__shm_block *b = &header_of(m)->blocks[block];
    if (!lk__rendezvous_commit(c->context, memory, lk__shm_bytes(c->size))) {
        atomic_store(&b->users, 0);
        return -1;
    }
    lk__shm_set_layout(&layout, memory);
    if (atomic_exchange(&b->used, 1)) clear_block(&layout, memory);
    for (int i = 0; i < c->size; i++) {
        const lk__shm_rank_slot *from = &parent->rank_slots[ranks[i]];
        lk__shm_rank_slot       *to = &layout.rank_slots[i];
        to->pid = from->pid;
        to->started = from->started;
        to->pid_namespace = from->pid_namespace;
        to->home = from->home;
        memcpy(to->host, from->host, sizeof to->host);
    }
    return block;
}

/* The block of the new group; all ranks of the parent count its splits. */
static lk_status agree_on_block(lk_comm *parent, const lk_comm *c, const int *ranks, uint32_t number, int *block)
{
    lk__shm           *s = parent->state;
    lk__shm_rank_slot *first = &s->rank_slots[ranks[0]];
    int64_t            timeout = parent->timeout_ms;
    lk_status          status = LK_OK;
    if (c->rank == 0) {
        first->split_block = prepare_block(s, c, ranks);
        lk__shm_post(s, &first->split, number);
    } else {
        parent->timeout_ms = parent->connect_ms;
        status = lk__shm_wait_for_one(s, ranks[0], &first->split, number);
        parent->timeout_ms = timeout;
    }
    *block = status < 0 ? -1 : first->split_block;
    return status < 0 ? lk__comm_report_failure(parent) : LK_OK;
}

lk_status lk__shm_split_as(lk_comm *parent, lk_comm *c, const int *ranks, uint32_t number, uint64_t secret)
{
    lk__shm_mapping *m = ((lk__shm *)parent->state)->mapping;
    char             name[64], token[24];
    int              block;
    lk_status        status = agree_on_block(parent, c, ranks, number, &block);
    if (status < 0) return status;
    if (block < 0) {
        snprintf(name, sizeof name, "group-%016llx", (unsigned long long)secret);
        snprintf(token, sizeof token, "%016llx", (unsigned long long)(secret * 0x9E3779B97F4A7C15u));
        return lk__shm_create(c, NULL, name, token);
    }
    if ((status = lk__shm_make(c)) < 0) {
        atomic_fetch_sub(&header_of(m)->blocks[block].users, 1);
        return status;
    }
    ((lk__shm *)c->state)->home = ((lk__shm *)parent->state)->home;
    atomic_fetch_add(&m->users, 1);
    if (c->rank > 0)
        (void)lk__rendezvous_commit(c->context, block_at(m, block), lk__shm_bytes(c->size)); /* its page tables */
    if ((status = lk__shm_begin(c, m, block)) < 0) (void)lk__shm_check_ranks(parent); /* whose rank it is, too */
    return status;
}

lk_status lk__shm_split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    return lk__shm_split_as(parent, c, ranks, parent->splits, all[ranks[0]].secret ^ all[0].secret);
}

void lk__shm_leave_mapping(lk__shm *s)
{
    lk__shm_mapping *m = s->mapping;
    if (s->block >= 0) atomic_fetch_sub(&header_of(m)->blocks[s->block].users, 1);
    if (atomic_fetch_sub(&m->users, 1) > 1) return;
    lk__rendezvous_unmap(m->base, m->own + (size_t)m->blocks * m->block);
    lk__free(s->comm->context, LK_MEMORY_OTHER, m, sizeof *m);
}
