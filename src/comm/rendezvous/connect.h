/* comm/mesh.h - how a mesh comes to be: the meeting over a network, then connections from each to each. */
#ifndef LK__CONNECT_H
#define LK__CONNECT_H

#include "comm/net/net.h"
#include "comm/rendezvous/acceptor.h"
#include "comm/rendezvous/identity.h"

/* Between any two: who is the higher rank connects to the lower. Cards and mesh->token are known to all. */
lk_status lk__mesh_connect(lk__net_mesh *mesh, const lk__rendezvous_card *cards, lk__rendezvous_listener *listener,
                           double seconds);
lk_status lk__mesh_make(lk__net_mesh *mesh, lk_context *context, int rank, int size, int streams);

/* The meeting over the network (meet_net.c): gives everyone's card and the group's token, and the listener. */
lk_status lk__rendezvous_join(lk_comm *comm, const lk__rendezvous_identity *place, lk__rendezvous_listener *listener,
                              lk__rendezvous_card *cards, lk__net_mesh *mesh, double end);

#endif
