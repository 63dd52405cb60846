/* comm.h - groups of ranks, and their collectives.
 *
 * Every collective reduces in the same order, a pairwise tree over ranks: the same inputs give the same bits on every
 * rank, in every run and with every backend. Every wait has a deadline, and an error names the missing rank, its last
 * call and the source line of that call. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_comm lk_comm; /* one rank's membership in one group; use from one thread (lk_comm_abort from any) */
typedef struct lk_work lk_work; /* one operation in flight; wait for it from the comm's thread */

typedef enum lk_reduce_op { LK_SUM, LK_AVG, LK_MIN, LK_MAX, LK_PROD } lk_reduce_op;

typedef struct lk_comm_config {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_COMM_CONFIG_INIT */
    /* Negative: taken from the environment (RANK and WORLD_SIZE, or the variables that Open MPI, PMI or Slurm set); if
     * they are not set, the world has one rank. */
    int rank LK_ZERO, world LK_ZERO;
    /* On one host, the port only distinguishes a user's jobs, and nothing listens on it (0: LOCKSTEP_JOB, MASTER_PORT
     * or the parent process distinguishes them). With several hosts, rank 0 listens on it (0: LOCKSTEP_PORT, or the
     * MASTER_PORT that `lockstep run` sets). */
    int         port LK_ZERO;
    const char *backend LK_ZERO;    /* "self", "shm", "p2p", "tcp", "mpi" or "mixed"; NULL: automatic */
    int64_t     timeout_ms LK_ZERO; /* an operation fails after this time; no wait is unlimited */
    int64_t     stall_ms LK_ZERO;   /* after this time, a table of the ranks is logged, with the missing ones marked */
    /* How long to wait for all ranks to join. 0: LOCKSTEP_JOIN_TIMEOUT (in seconds) or, if that is not set, 10 minutes
     * with several hosts and 30 s with one. */
    int64_t join_ms LK_ZERO;
    /* host name, IPv4 or IPv6 address of rank 0, for ranks on several hosts. NULL: MASTER_ADDR */
    const char *address LK_ZERO;
} lk_comm_config;
#define LK_COMM_CONFIG_INIT \
    {.size = sizeof(lk_comm_config), .rank = -1, .world = -1, .timeout_ms = 600000, .stall_ms = 10000}

/* Joins the other ranks. After 5 s the missing ranks are logged; after join_ms the call fails, with a message that
 * lists the addresses that were tried and how each responded. config may be NULL. */
LK_API lk_status lk_comm_create(lk_context *context, const lk_comm_config *config, lk_comm **comm);
/* Ranks with the same colour form a group, ordered by key, then rank. Collective. colour < 0: *group is NULL. The group
 * uses comm's connections and their thread, and the shared memory that comm has mapped; a split opens no connections
 * and maps no memory. Operations of different groups are independent and may be in flight at the same time. A rank that
 * dies fails all its groups; any other failure affects only its own group. */
LK_API lk_status lk_comm_split_at(lk_site site, lk_comm *comm, int colour, int key, lk_comm **group);
#define lk_comm_split(...) lk_comm_split_at(LK_HERE, __VA_ARGS__)
/* Not a collective; NULL is fine; groups may be freed in any order. Operations in flight are cancelled, and lk_work
 * objects that were not waited for are freed. A peer that waits for this rank fails with "left the group". Freeing the
 * last group that uses connections closes them: over a network, the call returns once the other ranks' hosts have
 * received this rank's last messages, usually after a round trip. The call gives up after 5 s without progress if a
 * host does not respond, or if the buffers of a stopped rank are full. A forked child of this process is not a rank of
 * its groups: the child must not use them, and freeing them in the child has no effect. */
LK_API void lk_comm_free(lk_comm *comm);

LK_API int         lk_comm_rank(const lk_comm *comm);
LK_API int         lk_comm_size(const lk_comm *comm);
LK_API int         lk_comm_local_rank(const lk_comm *comm); /* among the ranks on this host */
LK_API int         lk_comm_local_size(const lk_comm *comm);
LK_API const char *lk_comm_backend(const lk_comm *comm);
/* The number of hosts, if all have the same number of ranks, at least two, the ranks are numbered host by host, and
 * those of a host share memory; otherwise 0. */
LK_API int lk_comm_hosts(const lk_comm *comm);
/* The status with which the group failed, or LK_OK; and the failure's message, with the table of ranks. */
LK_API lk_status   lk_comm_status(lk_comm *comm);
LK_API const char *lk_comm_error(lk_comm *comm);
/* Makes the group fail on every rank at once; may be called from any thread. */
LK_API void lk_comm_abort(lk_comm *comm, const char *why);
/* Mark the beginning and end of long work on one rank (a save, a download); its time does not count towards the other
 * ranks' deadlines. */
LK_API void lk_comm_busy_begin(lk_comm *comm, const char *what);
LK_API void lk_comm_busy_end(lk_comm *comm);

/* Allocates a zeroed buffer in memory that all ranks of the host share: collectives on it need no copies. Collective;
 * every rank must pass the same `bytes`. After a failure of the group the contents are undefined. It is freed by
 * lk_comm_release or with the comm. */
LK_API lk_status lk_comm_alloc_at(lk_site site, lk_comm *comm, size_t bytes, void **memory);
#define lk_comm_alloc(...) lk_comm_alloc_at(LK_HERE, __VA_ARGS__)
/* Local. Call it only when no rank has an operation in flight that uses the memory. */
LK_API void lk_comm_release(lk_comm *comm, void *memory);
/* `bytes` is the amount that this rank is about to allocate. LK_ETOOLARGE: together, the ranks of a host would allocate
 * more than is available in its memory or within the limit of a control group; all ranks get the same message.
 * Otherwise LK_OK, as for lk_context_check_memory. Collective: call it before any rank allocates. */
LK_API lk_status lk_comm_check_memory_at(lk_site site, lk_comm *comm, size_t bytes);
#define lk_comm_check_memory(...) lk_comm_check_memory_at(LK_HERE, __VA_ARGS__)

/* ---- collectives. With work == NULL, a call blocks. Otherwise *work is an operation in flight, and buffers, counts
 * and displacements are borrowed until lk_work_wait returns. Operations of one comm run in the order of their calls,
 * which must be the same on every rank. A count of 0 and any alignment are allowed. Sums of bf16 and f16 are computed
 * in f32 and rounded once; integers wrap; LK_AVG is the sum divided by the size of the group (for integers: in 64 bits,
 * truncated towards zero); LK_MIN and LK_MAX give NaN where any rank has NaN. Buffers must not overlap, except in place
 * as described below. ---- */

LK_API lk_status lk_comm_all_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_reduce_op op, lk_work **work); /* in place when send == recv */
/* In operations with a root, a buffer that only the root uses may be NULL on other ranks. */
LK_API lk_status lk_comm_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, lk_reduce_op op, int root, lk_work **work);
LK_API lk_status lk_comm_broadcast_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int root,
                                      lk_work **work);
/* recv holds size × count elements. In place if send is this rank's part of recv, here and in the gathers below. */
LK_API lk_status lk_comm_all_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* send holds size × count elements; recv gets this rank's part. In place if recv is this rank's part of send, here and
 * in scatter. */
LK_API lk_status lk_comm_reduce_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                           lk_dtype type, lk_reduce_op op, lk_work **work);
LK_API lk_status lk_comm_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                    lk_dtype type, int root, lk_work **work);
/* send and recv hold size × count elements, one part per rank; in place when they are the same. */
LK_API lk_status lk_comm_all_to_all_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* The v forms take counts and displacements in elements, one per rank. All ranks must pass the same counts to
 * all_gatherv and gatherv. */
LK_API lk_status lk_comm_all_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                        const size_t *displacements, lk_dtype type, lk_work **work);
LK_API lk_status lk_comm_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                    const size_t *displacements, lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_all_to_allv_at(lk_site site, lk_comm *comm, const void *send, const size_t *send_counts,
                                        const size_t *send_displacements, void *recv, const size_t *recv_counts,
                                        const size_t *recv_displacements, lk_dtype type, lk_work **work);
/* Messages between two ranks; messages with the same tag arrive in order. Type and count must be the same on both
 * ranks. Consecutive sends and receives in flight progress concurrently, so two ranks may both send first and then
 * receive. */
LK_API lk_status lk_comm_send_at(lk_site site, lk_comm *comm, const void *buffer, size_t count, lk_dtype type, int to,
                                 int tag, lk_work **work);
LK_API lk_status lk_comm_recv_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int from,
                                 int tag, lk_work **work);
/* Completes when all ranks have entered it. */
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

/* Allocates memory for this many operations in flight at once, so that starting them allocates nothing. Local. */
LK_API lk_status lk_comm_reserve(lk_comm *comm, int works);
LK_API lk_status lk_work_test(lk_work *work); /* LK_OK: done; LK_END: not yet; or the failure; does not free work */
/* When the operation ran, in seconds of the monotonic clock; valid once lk_work_test reports that it is done. */
LK_API void      lk_work_span(const lk_work *work, double *began, double *ended);
LK_API lk_status lk_work_wait(lk_work *work); /* frees work, even if it fails */

/* ---- starting ranks from a program ---- */

typedef struct lk_spawn_result {
    int  rank;      /* the first rank that failed, or -1 */
    int  exit_code; /* that rank's, or -1 */
    int  signal;    /* the signal that ended that rank, or 0 */
    char text[256]; /* the message: what happened, or why nothing was started */
} lk_spawn_result;

/* Forks `ranks` processes; in each, the environment is set so that lk_comm_create joins the other ranks. `function`
 * returns the exit status of its process (255 for values outside 0 … 255). Waits for all processes; when one fails,
 * those still running get SIGTERM after two seconds and SIGKILL after four. LK_ECANCELED: a rank failed; LK_EINVAL:
 * this process has initialised CUDA, or already has threads (for example, a context with more than one), which a fork
 * would lose. result may be NULL. */
LK_API lk_status lk_spawn(int ranks, int (*function)(int rank, void *user), void *user, lk_spawn_result *result);

LK_END_DECLS
#endif
