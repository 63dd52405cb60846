/* comm/mpi/module.h - what Lockstep uses of MPI, in plain C types. The module is a separate shared object, built once
 * for each MPI, so that liblockstep links no MPI and does not depend on which one is used. */
#ifndef LK__MPI_MODULE_H
#define LK__MPI_MODULE_H

#include <stddef.h>
#include <stdint.h>

enum { LK__MPI_VERSION = 1, LK__MPI_TEXT = 512 };

/* What is exchanged with one rank. */
typedef struct lk__mpi_part {
    const void *send;
    void       *recv;
    size_t      send_bytes, recv_bytes;
} lk__mpi_part;

typedef struct lk__mpi_group   lk__mpi_group;   /* a communicator */
typedef struct lk__mpi_request lk__mpi_request; /* an operation in progress */

/* Functions return 0, or -1 with a message in `text`, which holds LK__MPI_TEXT bytes. Any thread may call them: where
 * MPI allows one thread at a time, a lock serialises the calls. */
typedef struct lk__mpi_module {
    uint32_t version;
    /* Initialises MPI unless the program has, and gives the rank and size of its world. MPI initialised here is
     * finalised when the process ends, if all groups were left in order: otherwise finalising could block without
     * end. */
    int (*start)(int *rank, int *size, char *text);
    /* Makes a communicator of these ranks of the world; only they call it, and wait up to `seconds` for each other. */
    int (*join)(const int *ranks, int size, int tag, double seconds, lk__mpi_group **group, char *text);
    /* Local. Not in_order: an operation is in progress or the group failed, so it is leaked on purpose. */
    void (*leave)(lk__mpi_group *group, int in_order);
    int (*all_gather)(lk__mpi_group *group, const void *mine, void *all, size_t bytes, lk__mpi_request **request,
                      char *text);
    /* Exchanges parts[i] with each rank i except this one. All ranks call it, in the same order. */
    int (*exchange)(lk__mpi_group *group, const lk__mpi_part *parts, lk__mpi_request **request, char *text);
    int (*send)(lk__mpi_group *group, int peer, uint64_t id, const void *data, size_t bytes, lk__mpi_request **request,
                char *text);
    int (*recv)(lk__mpi_group *group, int peer, uint64_t id, void *data, size_t bytes, lk__mpi_request **request,
                char *text);
    int (*test)(lk__mpi_request *request, char *text); /* 1 done, 0 not yet */
    void (*drop)(lk__mpi_request *request);            /* one that is done */
} lk__mpi_module;

/* The one symbol that a module exports. */
#define LK__MPI_SYMBOL "lockstep_mpi_module"
typedef const lk__mpi_module *(*lk__mpi_entry)(void);

#endif
