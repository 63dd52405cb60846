/* comm/mpi/mpi.h - finding and loading the MPI module. */
#ifndef LK__MPI_H
#define LK__MPI_H

#include "comm/comm.h"
#include "comm/mpi/module.h"

struct lk__rendezvous_identity;

/* The module for the MPI that started this process, or that the program has loaded. */
lk_status lk__mpi_load(lk_context *context, const lk__mpi_module **module);
/* Whether MPI started this process with the same rank and size as `identity`, and its module is available. */
bool lk__mpi_available(const lk_context *context, const struct lk__rendezvous_identity *identity);

#endif
