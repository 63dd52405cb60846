/* comm/transports.h - the transports of this build: one name each. The table lk__backend_NAME of a transport (comm.h)
 * contains the rest: how far it reaches, when it is chosen, and its description for users. */
#ifndef LK__COMM_TRANSPORTS_H
#define LK__COMM_TRANSPORTS_H

#include "comm/comm.h"

#define LK__TRANSPORT_LIST(X) X(self) X(shm) X(p2p) X(tcp) X(mpi) X(mixed)

#define LK__TRANSPORT_DECLARE(name) extern const lk__comm_backend lk__backend_##name;
LK__TRANSPORT_LIST(LK__TRANSPORT_DECLARE)
#undef LK__TRANSPORT_DECLARE

struct lk__rendezvous_identity;

const lk__comm_backend *lk__transport_at(size_t index);       /* NULL past the last */
const lk__comm_backend *lk__transport_find(const char *name); /* NULL: there is none */
/* The network transport of groups over several hosts: of those that can run here, the one with the highest
 * preference. */
const lk__comm_backend *lk__transport_of_network(lk_context *context, const struct lk__rendezvous_identity *identity);
/* Whether the ranks get the job's token through the transport; otherwise they must have it before they connect. */
bool lk__transport_makes_token(lk_context *context, const lk__comm_backend *backend,
                               const struct lk__rendezvous_identity *identity);

#endif
