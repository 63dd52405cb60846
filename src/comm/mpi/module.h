/* comm/mpi/module.h - what Lockstep asks of MPI, in plain C types. The module is a shared object of its own, built once
 * for each MPI, so that liblockstep links none and never sees which one it is. */
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
typedef struct lk__mpi_request lk__mpi_request; /* something under way */

/* Functions return 0, or -1 with a sentence in `text`, which holds LK__MPI_TEXT bytes. Any thread may call them: where
 * MPI itself allows one at a time, a lock sees to it. */
typedef struct lk__mpi_module {
    uint32_t version;
    /* Initialises MPI unless the program has, and says which rank of its world this is. What was initialised here is
     * finalised when the process ends, if all groups were left in order: otherwise others could wait in it for ever. */
    int (*start)(int *rank, int *size, char *text);
    /* A communicator of these ranks of the world; they alone call it, and wait for each other so long at most. */
    int (*join)(const int *ranks, int size, int tag, double seconds, lk__mpi_group **group, char *text);
    /* Local. Not in order: something is under way or the group failed, so it is left as it is for ever. */
    void (*leave)(lk__mpi_group *group, int in_order);
    int (*all_gather)(lk__mpi_group *group, const void *mine, void *all, size_t bytes, lk__mpi_request **request,
                      char *text);
    /* parts[i] with each rank i but this one. All ranks call it, in one order. */
    int (*exchange)(lk__mpi_group *group, const lk__mpi_part *parts, lk__mpi_request **request, char *text);
    int (*send)(lk__mpi_group *group, int peer, uint64_t id, const void *data, size_t bytes, lk__mpi_request **request,
                char *text);
    int (*recv)(lk__mpi_group *group, int peer, uint64_t id, void *data, size_t bytes, lk__mpi_request **request,
                char *text);
    int (*test)(lk__mpi_request *request, char *text); /* 1 done, 0 not yet */
    void (*drop)(lk__mpi_request *request);            /* a done one */
} lk__mpi_module;

/* The one symbol that a module exports. */
#define LK__MPI_SYMBOL "lockstep_mpi_module"
typedef const lk__mpi_module *(*lk__mpi_entry)(void);

#endif
