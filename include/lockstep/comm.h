/* comm.h - groups of ranks, and their collectives.
 *
 * Every collective reduces in one order, a pairwise tree over ranks: the same inputs give the same bits on every rank,
 * in every run and with every backend. Every wait has a deadline, and an error names the missing rank, its last call
 * and where that call is. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_comm lk_comm; /* one rank's membership in one group; use from one thread (lk_comm_abort from any) */
typedef struct lk_work lk_work; /* one operation in flight; wait for it from the comm's thread */

typedef enum lk_reduce_op { LK_SUM, LK_AVG, LK_MIN, LK_MAX, LK_PROD } lk_reduce_op;

typedef struct lk_comm_config {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_COMM_CONFIG_INIT */
    /* Negative: from the environment: RANK and WORLD_SIZE, or what Open MPI, PMI or Slurm set; else a world of one. */
    int rank LK_ZERO, world LK_ZERO;
    /* On one host it only distinguishes the jobs of one user, and nothing listens on it (0: LOCKSTEP_JOB, MASTER_PORT
     * or the parent process). Over several, where rank 0 listens (0: LOCKSTEP_PORT, or lockstep run's MASTER_PORT). */
    int         port LK_ZERO;
    const char *backend LK_ZERO;    /* "self", "shm", "p2p", "tcp", "mpi" or "mixed"; NULL chooses */
    int64_t     timeout_ms LK_ZERO; /* for each operation, which then fails; a wait is never unlimited */
    int64_t     stall_ms LK_ZERO;   /* after this long, a table of the ranks, with the missing ones marked, is logged */
    /* Until all ranks have joined. 0: LOCKSTEP_JOIN_TIMEOUT (seconds), else 10 minutes over several hosts and 30 s on
     * one. */
    int64_t join_ms LK_ZERO;
    /* of rank 0, a name or IPv4 or IPv6: then ranks may be on several hosts. NULL: MASTER_ADDR */
    const char *address LK_ZERO;
} lk_comm_config;
#define LK_COMM_CONFIG_INIT \
    {.size = sizeof(lk_comm_config), .rank = -1, .world = -1, .timeout_ms = 600000, .stall_ms = 10000}

/* Joins the other ranks. Fails after join_ms with the addresses tried and what answered;
 * after 5 s the missing ranks are logged. config may be NULL. */
LK_API lk_status lk_comm_create(lk_context *context, const lk_comm_config *config, lk_comm **comm);
/* Ranks with the same colour form a group, ordered by key, then rank. Collective. colour < 0: *group is NULL. The group
 * uses comm's connections and their thread, and shared memory that comm has mapped: a split opens none. Operations of
 * different groups are independent and may be in flight at the same time. A rank that dies fails all its groups; any
 * other failure affects only its own group. */
LK_API lk_status lk_comm_split_at(lk_site site, lk_comm *comm, int colour, int key, lk_comm **group);
#define lk_comm_split(...) lk_comm_split_at(LK_HERE, __VA_ARGS__)
/* Not a collective; NULL is fine; groups in any order. Operations in flight are cancelled, and works that were not
 * waited for are freed. A peer that waits for this rank fails with "left the group". The last group that uses
 * connections closes them: over a network it returns once the other ranks' hosts have received this rank's last
 * messages, usually after a round trip; it gives up on a host that does not respond, or a stopped rank whose buffers
 * are full, after 5 s without progress. A forked child of this process is not a rank of its groups: it must not use
 * them, and freeing one there does nothing. */
LK_API void lk_comm_free(lk_comm *comm);

LK_API int         lk_comm_rank(const lk_comm *comm);
LK_API int         lk_comm_size(const lk_comm *comm);
LK_API int         lk_comm_local_rank(const lk_comm *comm); /* among the ranks on this host */
LK_API int         lk_comm_local_size(const lk_comm *comm);
LK_API const char *lk_comm_backend(const lk_comm *comm);
/* The number of hosts, if each has the same number of ranks, two or more, numbered host
 * by host and sharing memory; otherwise 0. */
LK_API int lk_comm_hosts(const lk_comm *comm);
/* The group's failure, or LK_OK; and its message, with the table of ranks. */
LK_API lk_status   lk_comm_status(lk_comm *comm);
LK_API const char *lk_comm_error(lk_comm *comm);
/* Fails the group on every rank at once; from any thread. */
LK_API void lk_comm_abort(lk_comm *comm, const char *why);
/* Long work of one rank (a save, a download): it does not count towards the others' deadlines. */
LK_API void lk_comm_busy_begin(lk_comm *comm, const char *what);
LK_API void lk_comm_busy_end(lk_comm *comm);

/* A buffer in memory that all ranks of the host share: collectives on it need no copies. Collective; every rank passes
 * the same `bytes`. Zeroed. After a failure of the group its contents are undefined. Freed with the comm, or before. */
LK_API lk_status lk_comm_alloc_at(lk_site site, lk_comm *comm, size_t bytes, void **memory);
#define lk_comm_alloc(...) lk_comm_alloc_at(LK_HERE, __VA_ARGS__)
LK_API void lk_comm_release(lk_comm *comm, void *memory); /* local; once no operation of any rank uses it */
/* LK_ETOOLARGE: what the ranks of a host would allocate, `bytes` for this one, exceeds what its memory or a control
 * group's limit has available; all ranks get the same message. Otherwise LK_OK, as lk_context_check_memory. Collective:
 * call it before any of them allocates. */
LK_API lk_status lk_comm_check_memory_at(lk_site site, lk_comm *comm, size_t bytes);
#define lk_comm_check_memory(...) lk_comm_check_memory_at(LK_HERE, __VA_ARGS__)

/* ---- collectives. work == NULL: blocks. Otherwise *work is in flight, and buffers (counts and displacements too) are
 * borrowed until it is waited for. Operations of one comm run in the order of their calls, which must be the same on
 * every rank; count 0 is allowed, and any alignment. Sums of bf16 and f16 are computed in f32 and rounded once;
 * integers wrap; avg is the sum divided by the size (for integers: in 64 bits, truncated towards zero); min and max
 * give NaN where a rank has one. Overlapping buffers, other than in place as described below, are rejected. ---- */

LK_API lk_status lk_comm_all_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_reduce_op op, lk_work **work); /* in place when send == recv */
/* Where there is a root, a buffer that only the root fills or receives may be NULL on other ranks. */
LK_API lk_status lk_comm_reduce_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, lk_reduce_op op, int root, lk_work **work);
LK_API lk_status lk_comm_broadcast_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int root,
                                      lk_work **work);
/* recv holds size × count. In place when send is this rank's part of recv, here and in the gathers below. */
LK_API lk_status lk_comm_all_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* send holds size × count; recv gets this rank's part. In place when recv is this rank's part of send, here and in
 * scatter. */
LK_API lk_status lk_comm_reduce_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                           lk_dtype type, lk_reduce_op op, lk_work **work);
LK_API lk_status lk_comm_gather_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                   lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_scatter_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                    lk_dtype type, int root, lk_work **work);
/* send holds size × count, one part per rank, and so does recv; in place when they are the same. */
LK_API lk_status lk_comm_all_to_all_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                       lk_dtype type, lk_work **work);
/* The v forms: counts and displacements in elements, one per rank. All ranks pass the
 * same counts to all_gatherv and gatherv. */
LK_API lk_status lk_comm_all_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                        const size_t *displacements, lk_dtype type, lk_work **work);
LK_API lk_status lk_comm_gatherv_at(lk_site site, lk_comm *comm, const void *send, void *recv, const size_t *counts,
                                    const size_t *displacements, lk_dtype type, int root, lk_work **work);
LK_API lk_status lk_comm_all_to_allv_at(lk_site site, lk_comm *comm, const void *send, const size_t *send_counts,
                                        const size_t *send_displacements, void *recv, const size_t *recv_counts,
                                        const size_t *recv_displacements, lk_dtype type, lk_work **work);
/* Between two ranks, in order for each tag. Type and count must be the same on both. Consecutive sends and receives in
 * flight progress concurrently, so two ranks may both send to each other first and then receive. */
LK_API lk_status lk_comm_send_at(lk_site site, lk_comm *comm, const void *buffer, size_t count, lk_dtype type, int to,
                                 int tag, lk_work **work);
LK_API lk_status lk_comm_recv_at(lk_site site, lk_comm *comm, void *buffer, size_t count, lk_dtype type, int from,
                                 int tag, lk_work **work);
/* Done when all ranks have entered it. */
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

/* Allocates memory for this many works in flight at once, so that they allocate nothing later. Local. */
LK_API lk_status lk_comm_reserve(lk_comm *comm, int works);
LK_API lk_status lk_work_test(lk_work *work); /* LK_OK done, LK_END not yet, or the failure; does not take work */
/* When it ran, in seconds of the monotonic clock; valid once lk_work_test reports that it is done. */
LK_API void      lk_work_span(const lk_work *work, double *began, double *ended);
LK_API lk_status lk_work_wait(lk_work *work); /* takes work, also when it fails */

/* ---- ranks from code ---- */

typedef struct lk_spawn_result {
    int  rank;      /* the first that failed, or -1 */
    int  exit_code; /* its own, or -1 */
    int  signal;    /* the signal that ended it, or 0 */
    char text[256]; /* the message: what happened, or why nothing was started */
} lk_spawn_result;

/* Forks `ranks` processes, each a rank that lk_comm_create joins to the others by its environment; function returns its
 * exit status (255 for values outside 0 … 255). Waits for all; when one fails, the others have two seconds to end
 * before they are stopped. LK_ECANCELED: a rank failed; LK_EINVAL: this process has threads already (a context with
 * more than one, for example), which a fork would lose. result may be NULL. */
LK_API lk_status lk_spawn(int ranks, int (*function)(int rank, void *user), void *user, lk_spawn_result *result);

LK_END_DECLS
#endif
