/* comm.h - a group of ranks and what they do together.
 *
 * Every collective adds in one order, a pairwise tree over ranks: the same inputs give the same bits on every rank,
 * every run and every backend. Every wait has a deadline, and whoever fails says which rank was missing, what it did
 * last and where. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_comm lk_comm; /* one rank's place in one group; use from one thread (lk_comm_abort from any) */
typedef struct lk_work lk_work; /* one operation in flight; wait for it from the comm's thread */

typedef enum lk_reduce_op { LK_SUM, LK_AVG, LK_MIN, LK_MAX, LK_PROD } lk_reduce_op;

typedef struct lk_comm_config {
    size_t size; /* sizeof this struct; set by LK_COMM_CONFIG_INIT */
    /* Below 0: from the environment: RANK and WORLD_SIZE, or what Open MPI, PMI or Slurm set; else a world of one. */
    int rank, world;
    /* On one host it tells the jobs of one user apart, and nothing listens there (0: LOCKSTEP_JOB, MASTER_PORT or the
     * parent process). Over several, where rank 0 listens (0: LOCKSTEP_PORT, or lockstep run's MASTER_PORT). */
    int         port;
    const char *backend;    /* "self", "shm", "tcp", "mpi" or "mixed"; NULL chooses */
    int64_t     timeout_ms; /* for each operation: then it fails. There is no "for ever" */
    int64_t     stall_ms;   /* a table of who is missing goes to the log after this long */
    /* Until all ranks have joined. 0: LOCKSTEP_JOIN_TIMEOUT (seconds), else 10 minutes over several hosts and 30 s on one. */
    int64_t     join_ms;
    const char *address;    /* rank 0's, a name or IPv4 or IPv6: then ranks may be on several hosts. NULL: MASTER_ADDR */
} lk_comm_config;
#define LK_COMM_CONFIG_INIT {sizeof(lk_comm_config), -1, -1, 0, NULL, 600000, 10000, 0, NULL}

/* Meets the other ranks. Fails within join_ms and says what was tried and what answered; after 5 s the log says who is missing.
 * config may be NULL. */
LK_API lk_status lk_comm_create(lk_context *context, const lk_comm_config *config, lk_comm **comm);
/* Ranks with the same colour form a group, ordered by key, then rank. Collective. colour < 0: *group is NULL. */
LK_API lk_status lk_comm_split_at(lk_site site, lk_comm *comm, int colour, int key, lk_comm **group);
#define lk_comm_split(...) lk_comm_split_at(LK_HERE, __VA_ARGS__)
/* Local; NULL is fine; groups in any order. What is in flight is given up, and works not yet waited for go with it. A
 * peer that waits for this rank is told that it left. A child that this process forks is no rank of its groups: it makes
 * no call on them, and freeing one there does nothing. */
LK_API void lk_comm_free(lk_comm *comm);

LK_API int         lk_comm_rank(const lk_comm *comm);
LK_API int         lk_comm_size(const lk_comm *comm);
LK_API int         lk_comm_local_rank(const lk_comm *comm); /* among the ranks on this host */
LK_API int         lk_comm_local_size(const lk_comm *comm);
LK_API const char *lk_comm_backend(const lk_comm *comm);
/* The group's failure, or LK_OK; and its sentence, with the table. */
LK_API lk_status   lk_comm_status(lk_comm *comm);
LK_API const char *lk_comm_error(lk_comm *comm);
/* Fails the group on every rank, now; from any thread. */
LK_API void lk_comm_abort(lk_comm *comm, const char *why);
/* Long work of one rank (a save, a download): others' deadlines for this rank are put off while it lasts. */
LK_API void lk_comm_busy_begin(lk_comm *comm, const char *what);
LK_API void lk_comm_busy_end(lk_comm *comm);

/* A buffer that all ranks of the host see: collectives on it copy nothing. Collective; every rank gives the same
 * bytes. Zeroed. After a failure of the group its contents are undefined. Freed with the comm, or before. */
LK_API lk_status lk_comm_alloc_at(lk_site site, lk_comm *comm, size_t bytes, void **memory);
#define lk_comm_alloc(...) lk_comm_alloc_at(LK_HERE, __VA_ARGS__)
LK_API void lk_comm_release(lk_comm *comm, void *memory); /* local; when no operation uses it any more on any rank */

/* ---- collectives. work == NULL: blocks. Otherwise *work is in flight, and buffers (counts and displacements too) are
 * borrowed until it is waited for. Operations of one comm run in the order of their calls, the same on every rank;
 * count 0 is allowed, and any alignment. Sums of bf16 and f16 are taken in f32 and rounded once; integers wrap; avg is
 * the sum divided by the size (of integers: taken in 64 bits, cut towards zero); min and max give NaN where a rank has
 * one. Buffers are the same, as said below, or apart: those that overlap otherwise are refused. ---- */

LK_API lk_status lk_comm_all_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_reduce_op op, lk_work **work); /* in place when send == recv */
/* In all that have a root, the buffer which only the root fills or only the root gets may be NULL elsewhere. */
LK_API lk_status lk_comm_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, lk_reduce_op op, int root, lk_work **work);
LK_API lk_status lk_comm_broadcast_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int root,
                                      lk_work **work);
/* recv holds size × count. In place when send is this rank's part of recv, here and in the gathers below. */
LK_API lk_status lk_comm_all_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* send holds size × count; recv gets this rank's count. In place when recv is this rank's part of send, here and in
 * scatter. */
LK_API lk_status lk_comm_reduce_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                           lk_dtype type, lk_reduce_op op, lk_work **work);
LK_API lk_status lk_comm_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                    lk_dtype type, int root, lk_work **work);
/* send holds size × count, one part a rank, and so does recv; in place when they are the same. */
LK_API lk_status lk_comm_all_to_all_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* The v forms: counts and displacements in elements, one a rank. All ranks give all_gatherv and gatherv the same
 * counts. */
LK_API lk_status lk_comm_all_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                        const size_t *displacements, lk_dtype type, lk_work **work);
LK_API lk_status lk_comm_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                    const size_t *displacements, lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_all_to_allv_at(lk_site site, lk_comm *comm, const void *send, const size_t *send_counts,
                                        const size_t *send_displacements, void *recv, const size_t *recv_counts,
                                        const size_t *recv_displacements, lk_dtype type, lk_work **work);
/* Between two ranks, in their order for each tag. What was sent must be what is received: type and count. Neighbouring
 * sends and receives in flight go on side by side, so two ranks may send to each other first and receive then. */
LK_API lk_status lk_comm_send_at(lk_site site, lk_comm *comm, const void *buffer, size_t count, lk_dtype type, int to,
                                 int tag, lk_work **work);
LK_API lk_status lk_comm_recv_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int from,
                                 int tag, lk_work **work);
/* Done when all ranks have come to it. */
LK_API lk_status lk_comm_barrier_at(lk_site site, lk_comm *comm, lk_work **work);
#define lk_comm_all_reduce(...) lk_comm_all_reduce_at(LK_HERE, __VA_ARGS__)
#define lk_comm_reduce(...) lk_comm_reduce_at(LK_HERE, __VA_ARGS__)
#define lk_comm_broadcast(...) lk_comm_broadcast_at(LK_HERE, __VA_ARGS__)
#define lk_comm_all_gather(...) lk_comm_all_gather_at(LK_HERE, __VA_ARGS__)
#define lk_comm_reduce_scatter(...) lk_comm_reduce_scatter_at(LK_HERE, __VA_ARGS__)
#define lk_comm_gather(...) lk_comm_gather_at(LK_HERE, __VA_ARGS__)
#define lk_comm_scatter(...) lk_comm_scatter_at(LK_HERE, __VA_ARGS__)
#define lk_comm_all_to_all(...) lk_comm_all_to_all_at(LK_HERE, __VA_ARGS__)
#define lk_comm_all_gatherv(...) lk_comm_all_gatherv_at(LK_HERE, __VA_ARGS__)
#define lk_comm_gatherv(...) lk_comm_gatherv_at(LK_HERE, __VA_ARGS__)
#define lk_comm_all_to_allv(...) lk_comm_all_to_allv_at(LK_HERE, __VA_ARGS__)
#define lk_comm_send(...) lk_comm_send_at(LK_HERE, __VA_ARGS__)
#define lk_comm_recv(...) lk_comm_recv_at(LK_HERE, __VA_ARGS__)
#define lk_comm_barrier(...) lk_comm_barrier_at(LK_HERE, __VA_ARGS__)

/* Memory for so many works in flight at once, beforehand: with it they allocate nothing. Local. */
LK_API lk_status lk_comm_reserve(lk_comm *comm, int works);
LK_API lk_status lk_work_test(lk_work *work); /* LK_OK done, LK_END not yet, or the failure; does not take work */
/* When it was carried out, in seconds of the monotonic clock; once lk_work_test says that it is done. */
LK_API void      lk_work_span(const lk_work *work, double *began, double *ended);
LK_API lk_status lk_work_wait(lk_work *work); /* takes work, also when it fails */

/* ---- ranks from code ---- */

typedef struct lk_spawn_result {
    int  rank;      /* the first that failed, or -1 */
    int  exit_code; /* its own, or -1 */
    int  signal;    /* that ended it, or 0 */
    char text[256]; /* the sentence: what happened, or why nothing was started */
} lk_spawn_result;

/* Forks `ranks` processes, each a rank in whose environment lk_comm_create finds the others; each returns its exit
 * status from function (255 stands for what does not fit into 0 … 255). Waits for all; when one fails the rest is given two seconds, then stopped. LK_ECANCELED: a
 * rank failed; LK_EINVAL: this process has threads already (a context with more than one, for example), which a fork
 * would lose. result may be NULL. */
LK_API lk_status lk_spawn(int ranks, int (*function)(int rank, void *user), void *user, lk_spawn_result *result);

LK_END_DECLS
#endif
