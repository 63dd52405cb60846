/* net.c - a group over connections: creating, splitting and freeing it. */
#define _GNU_SOURCE
#include "comm/net/net.h"

#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/identity.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { SPINS = 60 };

/* ---- the table's functions ---- */

lk_status lk__net_table_failure(lk_comm *c) { return lk__net_failure(c->state); }
void      lk__net_table_raise(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    lk__net_raise_because(c->state, status, text, cause);
}
void     lk__net_table_wake(lk_comm *c) { lk__net_notify(c->state); }
uint64_t lk__net_table_sent(const lk_comm *c) { return atomic_load(&((lk__net *)c->state)->sent); }

void lk__net_table_busy(lk_comm *c, const char *what)
{
    lk__net *net = c->state;
    pthread_mutex_lock(&net->connections->lock);
    net->mine.busy = what != NULL;
    snprintf(net->mine.busy_with, sizeof net->mine.busy_with, "%s", what ? what : "");
    for (int i = 0; i < net->size; i++)
        if (i != net->rank) lk__net_send_state(net, i);
    pthread_mutex_unlock(&net->connections->lock);
}

struct lk__net_allocation {
    lk__net_allocation *next;
    size_t              bytes;
    _Alignas(LK__ALIGN) char memory[];
};

lk_status lk__net_allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    lk__net            *net = c->state;
    lk__net_allocation *p = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *p + bytes);
    (void)secret;
    if (!p) return LK_ENOMEM;
    p->next = net->pieces;
    p->bytes = bytes;
    net->pieces = p;
    *memory = p->memory;
    return LK_OK;
}

void lk__net_release(lk_comm *c, void *memory)
{
    lk__net *net = c->state;
    for (lk__net_allocation **at = &net->pieces; *at; at = &(*at)->next) {
        lk__net_allocation *p = *at;
        if (p->memory != memory) continue;
        *at = p->next;
        lk__free(c->context, LK_MEMORY_OTHER, p, sizeof *p + p->bytes);
        return;
    }
}

/* ---- create and free ---- */

static size_t list_bytes(int count, size_t each) { return (size_t)count * each; }

static size_t retired_bytes(const lk__net_connections *cs)
{
    return sizeof(lk__net_retired) + (size_t)cs->size * sizeof(bool);
}

/* What it has besides the connections. */
static void free_group(lk__net *net)
{
    lk_context *context = net->comm->context;
    int         all = net->connections ? net->connections->size : 0;
    for (int i = 0; net->peers && i < net->size; i++) {
        lk__net_peer *p = &net->peers[i];
        while (p->notes) lk__net_forget_note(net, p);
        for (int k = 0; k < 2; k++) lk__free(context, LK_MEMORY_OTHER, p->arrivals[k].payload, LK__NET_SMALL);
    }
    for (lk__net_note_entry *note = net->spare_notes, *next; note; note = next) {
        next = note->next;
        lk__free(context, LK_MEMORY_OTHER, note, sizeof *note);
    }
    if (net->retired) lk__free(context, LK_MEMORY_OTHER, net->retired, retired_bytes(net->connections));
    lk__free(context, LK_MEMORY_OTHER, net->peers, list_bytes(net->size, sizeof *net->peers));
    lk__free(context, LK_MEMORY_OTHER, net->pending, list_bytes(net->size, sizeof *net->pending));
    lk__free(context, LK_MEMORY_OTHER, net->members, list_bytes(net->size, sizeof *net->members));
    lk__free(context, LK_MEMORY_OTHER, net->rank_of, list_bytes(all, sizeof *net->rank_of));
    lk__mesh_close(&net->mesh);
    net->comm->state = NULL;
    lk__free(context, LK_MEMORY_OTHER, net, sizeof *net);
}

void lk__net_table_free(lk_comm *c)
{
    lk__net             *net = c->state;
    lk__net_connections *cs = net->connections;
    bool                 failed = lk__net_failure(net) < 0;
    lk__connections_remove(net);
    if (net->collective_state) lk__net_collective_free(net);
    if (net->transfer_state) lk__net_transfer_free(net);
    net->transport->free(net);
    while (net->pieces) lk__net_release(c, net->pieces->memory);
    free_group(net);
    if (atomic_fetch_sub(&cs->users, 1) > 1) return;
    lk__connections_stop(cs);
    lk__net_disconnect(cs, (double)c->timeout_ms / 1e3, failed);
    lk__connections_close(cs);
}

/* Spin only where every rank of the host has a core. */
static int choose_spins(const lk_comm *c)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) >= c->local_size ? SPINS : 0;
}

static lk_status run_first_barrier(lk_comm *c)
{
    int64_t       timeout = c->timeout_ms;
    lk__comm_call o = {.kind = LK__BARRIER, .type = LK_U8, .site = {"lk_comm_create", 0}};
    c->timeout_ms = c->connect_ms;
    lk_status status = lk__net_collective(c, &o);
    c->timeout_ms = timeout;
    if (status < 0 && lk__net_failure(c->state) < 0) status = lk__comm_report_failure(c);
    return status;
}

/* Makes comm->state over these connections; members: by rank, its connection (NULL: the same). Takes the mesh, also
 * when it fails. */
static lk_status make_group(lk_comm *c, lk__net_connections *cs, lk__net_mesh *mesh, uint64_t id, const int *members)
{
    lk__net *net = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *net);
    if (!net) {
        lk__mesh_close(mesh);
        return LK_ENOMEM;
    }
    *net = (lk__net){.comm = c,
                     .connections = cs,
                     .id = id,
                     .transport = cs->transport,
                     .rank = mesh->rank,
                     .size = mesh->size,
                     .mesh = *mesh,
                     .since = lk__now()};
    mesh->ranks = NULL; /* owned by net now */
    c->state = net;
    lk__mesh_locals(&net->mesh, &c->local_rank, &c->local_size);
    net->retired = lk__alloc(c->context, LK_MEMORY_OTHER, retired_bytes(cs));
    net->peers = lk__alloc(c->context, LK_MEMORY_OTHER, list_bytes(net->size, sizeof *net->peers));
    net->pending = lk__alloc(c->context, LK_MEMORY_OTHER, list_bytes(net->size, sizeof *net->pending));
    net->members = lk__alloc(c->context, LK_MEMORY_OTHER, list_bytes(net->size, sizeof *net->members));
    net->rank_of = lk__alloc(c->context, LK_MEMORY_OTHER, list_bytes(cs->size, sizeof *net->rank_of));
    if (!net->retired || !net->peers || !net->pending || !net->members || !net->rank_of) {
        free_group(net);
        return LK_ENOMEM;
    }
    for (int i = 0; i < cs->size; i++) net->rank_of[i] = -1;
    for (int i = 0; i < net->size; i++) {
        int at = net->members[i] = members ? members[i] : i;
        net->rank_of[at] = i;
        net->peers[i] = (lk__net_peer){.connection = &cs->all[at], .rank = i};
        net->peers[i].last_note = &net->peers[i].notes;
    }
    atomic_fetch_add(&cs->users, 1);
    return LK_OK;
}

/* The transport, the list of groups, and a barrier. */
static lk_status join_group(lk_comm *c, void *transport_state)
{
    lk__net  *net = c->state;
    lk_status status;
    net->transport_state = transport_state;
    lk__connections_add(net);
    status = net->transport->open(net);
    if (status >= 0 && !net->connections->running) status = lk__connections_start(net->connections);
    if (status >= 0) status = run_first_barrier(c);
    if (status >= 0) return LK_OK;
    if (transport_state) net->transport_state = NULL; /* the caller's */
    lk__net_table_free(c);
    return status;
}

lk_status lk__net_create(lk_comm *c, lk__net_mesh *mesh, const lk__net_transport *transport, void *transport_state)
{
    lk__net_connections *cs;
    lk_status            status = lk__connections_make(c->context, mesh, transport, &cs);
    if (status >= 0)
        status = make_group(c, cs, mesh, 0, NULL);
    else
        lk__mesh_close(mesh);
    if (status < 0) {
        lk__connections_close(cs);
        return status;
    }
    cs->spins = choose_spins(c);
    return join_group(c, transport_state);
}

lk_status lk__net_open(lk_comm *c, const struct lk__rendezvous_identity *identity, const lk__net_transport *transport)
{
    lk__net_mesh mesh;
    /* more than one help only between hosts */
    int       streams = transport->streams > 1 && !identity->many_hosts ? 1 : transport->streams;
    lk_status status = lk__mesh_join(c, identity, streams, &mesh);
    return status < 0 ? status : lk__net_create(c, &mesh, transport, NULL);
}

/* ---- split ---- */

/* The new group's ranks; it has no connections of its own. */
static lk_status make_mesh(const lk__net *net, const lk_comm *c, const lk__comm_member *all, const int *ranks,
                           lk__net_mesh *mesh)
{
    uint64_t secrets[2] = {all[0].secret, all[ranks[0]].secret};
    *mesh = (lk__net_mesh){.context = c->context, .rank = c->rank, .size = c->size, .secret = secrets[1]};
    if (!(mesh->ranks = lk__alloc(c->context, LK_MEMORY_OTHER, list_bytes(c->size, sizeof *mesh->ranks))))
        return LK_ENOMEM;
    for (int i = 0; i < c->size; i++) {
        mesh->ranks[i] = net->mesh.ranks[ranks[i]];
        for (int s = 0; s <= LK__STREAMS; s++) mesh->ranks[i].fds[s] = -1;
    }
    lk__token_derive(net->mesh.token, secrets, sizeof secrets, mesh->token);
    return LK_OK;
}

/* The id of the new group is random, drawn by its first rank with this split: all ranks know it, and no other group has
 * it. */
lk_status lk__net_split_with(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks,
                             void *transport_state)
{
    lk__net     *net = parent->state;
    uint64_t     id = all[ranks[0]].secret ? all[ranks[0]].secret : 1;
    size_t       bytes = list_bytes(c->size, sizeof(int));
    int         *members = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    lk__net_mesh mesh = {.context = c->context};
    lk_status    status = members ? make_mesh(net, c, all, ranks, &mesh) : LK_ENOMEM;
    for (int i = 0; members && i < c->size; i++) members[i] = net->members[ranks[i]];
    if (status >= 0) status = make_group(c, net->connections, &mesh, id, members);
    bool made = status >= 0;
    if (made)
        status = join_group(c, transport_state);
    else if (members)
        lk__connections_decline(net->connections, id, members, c->size);
    lk__free(c->context, LK_MEMORY_OTHER, members, bytes);
    return status;
}

lk_status lk__net_split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    return lk__net_split_with(parent, c, all, ranks, NULL);
}
