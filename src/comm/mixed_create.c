/* mixed_create.c - creates the groups of a mixed group: the flat one first, whose ranks tell each other their hosts,
 * then those within and across the hosts. Splits a mixed group, and frees it. */
#include "base/tree.h"
#include "comm/mixed.h"
#include "comm/net/net.h"
#include "comm/rendezvous/identity.h"
#include "comm/shm/shm.h"
#include "comm/transports.h"

#include <stdio.h>
#include <string.h>

void lk__mixed_free(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    for (int i = LK__GROUPS; i-- > 0;) lk_comm_free(m->groups[i]);
    lk__mixed_free_transfers(c);
    lk__free(c->context, LK_MEMORY_OTHER, m->scratch, m->scratch_bytes);
    lk__free(c->context, LK_MEMORY_OTHER, m->counts, 2 * (size_t)m->hosts * sizeof *m->counts);
    lk__free(c->context, LK_MEMORY_OTHER, m->neighbours, (size_t)c->size * sizeof *m->neighbours);
    lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
    c->state = NULL;
}

/* Finds each rank's host. Hosts are numbered in the order of their first ranks. */
static lk_status find_hosts(lk_comm *c)
{
    lk__comm_mixed          *m = c->state;
    const lk__net_mesh      *mesh = &((lk__net *)m->groups[LK__FLAT]->state)->mesh;
    const lk__net_mesh_rank *ranks = mesh->ranks;
    size_t                   bytes = (size_t)c->size * sizeof(int);
    int                     *host_of = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    m->neighbours = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)c->size * sizeof *m->neighbours);
    if (!host_of || !m->neighbours) {
        lk__free(c->context, LK_MEMORY_OTHER, host_of, bytes);
        return LK_ENOMEM;
    }
    for (int i = 0; i < c->size; i++) {
        int first = 0;
        while (strcmp(ranks[first].host_id, ranks[i].host_id) != 0) first++;
        host_of[i] = first == i ? m->hosts++ : host_of[first];
    }
    m->host = host_of[c->rank];
    for (int i = 0; i < c->size; i++) {
        m->neighbours[i] = host_of[i] == m->host ? m->each++ : -1;
        if (i < c->rank && m->neighbours[i] >= 0) m->local_rank++;
    }
    int each = c->size / m->hosts;
    m->ordered = true;
    m->regular = m->hosts > 1 && each > 1 && c->size % m->hosts == 0;
    for (int i = 0; i < c->size; i++) {
        m->ordered = m->ordered && (i == 0 || host_of[i] >= host_of[i - 1]);
        m->regular = m->regular && host_of[i] == i / each;
    }
    m->layered = m->regular && lk__tree_nests(c->size, m->hosts);
    lk__free(c->context, LK_MEMORY_OTHER, host_of, bytes);
    c->local_rank = m->local_rank;
    c->local_size = m->each;
    return LK_OK;
}

static lk_status set_local_world(lk_comm *c, lk_comm *local)
{
    const lk__comm_mixed *m = c->state;
    size_t                bytes = (size_t)m->each * sizeof(int);
    int                  *ranks = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    for (int i = 0; ranks && i < c->size; i++)
        if (m->neighbours[i] >= 0) ranks[m->neighbours[i]] = i;
    lk_status status = ranks ? lk__comm_set_world(local, c, ranks) : LK_ENOMEM;
    lk__free(c->context, LK_MEMORY_OTHER, ranks, bytes);
    return status;
}

/* Shares memory among the ranks of this host: for a split, that of the parent's. */
static lk_status share_memory(lk_comm *c, lk_comm *local, lk_comm *parent, const int *ranks)
{
    const lk__comm_mixed *m = c->state;
    const lk__net_mesh   *mesh = &((lk__net *)m->groups[LK__FLAT]->state)->mesh;
    uint64_t              secret = mesh->secret ^ (uint64_t)m->host * 0x9E3779B97F4A7C15u;
    char                  name[64];
    if (m->each == 1) return local->backend->create(local, NULL);
    if (!parent) {
        snprintf(name, sizeof name, "mixed-%016llx-%d", (unsigned long long)mesh->secret, m->host);
        return lk__shm_create(local, NULL, name, mesh->token);
    }
    const lk__comm_mixed *from = parent->state;
    size_t                bytes = (size_t)m->each * sizeof(int);
    int                  *local_ranks = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    lk_status             status = local_ranks ? LK_OK : LK_ENOMEM;
    for (int i = 0; local_ranks && i < c->size; i++)
        if (m->neighbours[i] >= 0) local_ranks[m->neighbours[i]] = from->neighbours[ranks[i]];
    if (status >= 0) status = lk__shm_split_as(from->groups[LK__LOCAL], local, local_ranks, parent->splits, secret);
    lk__free(c->context, LK_MEMORY_OTHER, local_ranks, bytes);
    /* A rank of the parent is lost: its own message has the ranks' numbers in the parent. */
    return status < 0 && lk__mixed_failure(parent) < 0 ? lk__comm_report_failure(parent) : status;
}

static lk_status make_local(lk_comm *c, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    lk_comm        *local;
    lk_status       status = lk__comm_make(c->context, c, NULL, &local);
    if (status < 0) return status;
    local->join_ms = c->connect_ms; /* its ranks have joined already */
    local->rank = local->local_rank = m->local_rank;
    local->size = local->local_size = m->each;
    local->backend = m->each == 1 ? &lk__backend_self : &lk__backend_shm;
    local->outer = c;
    local->crossed = m->hosts > 1 ? lk__mixed_check_crossed : NULL;
    status = set_local_world(c, local);
    if (status >= 0) status = share_memory(c, local, parent, ranks);
    if (status < 0)
        lk__comm_drop(local);
    else
        m->groups[LK__LOCAL] = local;
    return status;
}

/* The ranks with the same local rank on every host. */
static lk_status make_across(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    m->counts = lk__alloc(c->context, LK_MEMORY_OTHER, 2 * (size_t)m->hosts * sizeof *m->counts);
    m->displacements = m->counts ? m->counts + m->hosts : NULL;
    lk_status status = lk_comm_split_at((lk_site){"lk_comm_create", 0}, m->groups[LK__FLAT], m->local_rank, c->rank,
                                        &m->groups[LK__ACROSS]);
    return status >= 0 && !m->counts ? LK_ENOMEM : status; /* the others do not wait for this rank */
}

/* Makes the other groups; the flat group is connected. parent: of a split, whose members `ranks` are the ranks of c. */
static lk_status make_groups(lk_comm *c, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    lk_status       status = find_hosts(c);
    if (status >= 0) status = make_local(c, parent, ranks);
    if (status >= 0 && m->regular) status = make_across(c);
    if (status < 0) lk__mixed_free(c);
    return status;
}

static lk_status finish_create(lk_comm *c, lk_comm *flat, lk_status status, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    if (status >= 0) {
        m->groups[LK__FLAT] = flat;
        return make_groups(c, parent, ranks);
    }
    lk__comm_drop(flat);
    lk__mixed_free(c);
    return status;
}

static lk_status begin_create(lk_comm *c, lk_comm **flat)
{
    lk__comm_mixed *m = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *m);
    lk_status       status = m ? lk__comm_make(c->context, c, NULL, flat) : LK_ENOMEM;
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
        return status;
    }
    c->state = m;
    (*flat)->rank = c->rank;
    (*flat)->size = c->size;
    status = c->world ? lk__comm_set_world(*flat, c, NULL) : LK_OK;
    return status < 0 ? finish_create(c, *flat, status, NULL, NULL) : LK_OK;
}

lk_status lk__mixed_create(lk_comm *c, const lk__rendezvous_identity *identity)
{
    lk_comm  *flat = NULL;
    lk_status status = begin_create(c, &flat);
    if (status < 0) return status;
    flat->backend = lk__transport_of_network(c->context, identity);
    return finish_create(c, flat, flat->backend->create(flat, identity), NULL, NULL);
}

lk_status lk__mixed_split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk_comm  *parent_flat = ((lk__comm_mixed *)parent->state)->groups[LK__FLAT], *flat = NULL;
    lk_status status = begin_create(c, &flat);
    if (status < 0) return status;
    flat->backend = parent_flat->backend;
    return finish_create(c, flat, parent_flat->backend->split(parent_flat, flat, all, ranks), parent, ranks);
}
