/* split.c - splitting a group: every rank opens a new listener, sends its address with the parent's collective, and the
 * ranks of each new group connect. */
#include "comm/rendezvous/connect.h"

#include <stdio.h>
#include <string.h>

static void close_listener(lk__net *net)
{
    if (!net->listener) return;
    lk__listener_close(net->listener);
    lk__free(net->comm->context, LK_MEMORY_OTHER, net->listener, sizeof *net->listener);
    net->listener = NULL;
}

_Static_assert(sizeof(lk__rendezvous_address) <= LK__MEMBER_DATA, "a member's data holds an address");

lk_status lk__net_prepare(lk_comm *parent, lk__comm_member *mine)
{
    lk__net *net = parent->state;
    close_listener(net);
    if (!(net->listener = lk__alloc(parent->context, LK_MEMORY_OTHER, sizeof *net->listener))) return LK_ENOMEM;
    lk__rendezvous_ports ports = {net->mesh.first_port, net->mesh.last_port};
    lk_status            status = lk__listen(parent->context, &net->mesh.bound, ports, net->listener);
    if (status < 0)
        close_listener(net);
    else
        memcpy(mine->data, &net->listener->address, sizeof net->listener->address);
    return status;
}

static lk_status connect_group(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks,
                               lk__net_mesh *mesh)
{
    lk__net                 *net = parent->state;
    size_t                   bytes = (size_t)c->size * sizeof(lk__rendezvous_endpoint);
    lk__rendezvous_endpoint *endpoints = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    uint64_t                 secrets[2] = {all[0].secret, all[ranks[0]].secret};
    lk_status                status = lk__mesh_make(mesh, c->context, c->rank, c->size, net->mesh.streams);
    if (!endpoints) status = LK_ENOMEM;
    for (int i = 0; i < c->size && status >= 0; i++) {
        const lk__net_mesh_rank *r = &net->mesh.ranks[ranks[i]];
        memcpy(&endpoints[i].address, all[ranks[i]].data, sizeof endpoints[i].address);
        endpoints[i].pid = r->pid;
        snprintf(endpoints[i].host, sizeof endpoints[i].host, "%s", r->host);
        snprintf(endpoints[i].host_id, sizeof endpoints[i].host_id, "%s", r->host_id);
    }
    lk__token_derive(net->mesh.token, secrets, sizeof secrets, mesh->token);
    mesh->secret = secrets[1];
    mesh->first_port = net->mesh.first_port;
    mesh->last_port = net->mesh.last_port;
    if (status >= 0) status = lk__mesh_connect(mesh, endpoints, net->listener, (double)c->connect_ms / 1e3);
    lk__free(c->context, LK_MEMORY_OTHER, endpoints, bytes);
    if (status < 0) lk__mesh_close(mesh);
    return status;
}

lk_status lk__net_split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk__net     *net = parent->state;
    lk__net_mesh mesh;
    lk_status    status = LK_OK;
    if (c) {
        status = connect_group(parent, c, all, ranks, &mesh);
        if (status >= 0) status = lk__net_create(c, &mesh, net->transport);
    }
    close_listener(net);
    return status;
}
