/* comm/mpi.h - the MPI module, found and loaded. */
#ifndef LK__MPI_H
#define LK__MPI_H

#include "comm/comm.h"
#include "comm/mpi/module.h"

struct lk__rendezvous_identity;

/* The module for the MPI that started this process, or that the program has loaded. */
lk_status lk__mpi_load(lk_context *context, const lk__mpi_module **module);
/* Whether MPI started this process as the rank that place says, and its module is there. */
bool lk__mpi_offers(const struct lk__rendezvous_identity *place);

#endif
