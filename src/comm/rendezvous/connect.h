/* comm/rendezvous/connect.h - connects the ranks of a group: the rendezvous, then a connection between every two
 * ranks. */
#ifndef LK__CONNECT_H
#define LK__CONNECT_H

#include "comm/net/net.h"
#include "comm/rendezvous/acceptor.h"
#include "comm/rendezvous/identity.h"

/* Of any two ranks, the higher connects to the lower. All know the endpoints and mesh->token. */
lk_status lk__mesh_connect(lk__net_mesh *mesh, const lk__rendezvous_endpoint *endpoints,
                           lk__rendezvous_listener *listener, double seconds);
lk_status lk__mesh_make(lk__net_mesh *mesh, lk_context *context, int rank, int size, int streams);

/* The rendezvous over a network (network.c): gives all endpoints, the group's token, and the listener. */
lk_status lk__rendezvous_join(lk_comm *comm, const lk__rendezvous_identity *identity, lk__rendezvous_listener *listener,
                              lk__rendezvous_endpoint *endpoints, lk__net_mesh *mesh, double end);

#endif
