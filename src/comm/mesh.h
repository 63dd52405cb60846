/* comm/mesh.h - how a mesh comes to be: the meeting over a network, then connections from each to each. */
#ifndef LK__MESH_H
#define LK__MESH_H

#include "comm/net.h"
#include "comm/place.h"
#include "comm/porch.h"

/* Between any two: who is the higher rank connects to the lower. Cards and mesh->token are known to all. */
lk_status lk__mesh_connect(lk__mesh *mesh, const lk__card *cards, lk__listener *listener, double seconds);
lk_status lk__mesh_make(lk__mesh *mesh, lk_context *context, int rank, int size, int streams);

/* The meeting over the network (meet_net.c): gives everyone's card and the group's token, and the listener. */
lk_status lk__meet_net(lk_comm *comm, const lk__place *place, lk__listener *listener, lk__card *cards, lk__mesh *mesh,
                       double end);

#endif
