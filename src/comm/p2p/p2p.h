/* comm/p2p/p2p.h - ranks of one host whose GPUs read and write each other's memory: the state of a group in addition to
 * its shared memory (comm/shm/shm.h), which is used for blocking calls, failures and everything else.
 *
 * Kernels execute queued calls (device/peers.h). For each group, every rank allocates one block of flags and scratch
 * memory, which its peers map, and one block for each piece of symmetric memory. While queued calls may be waiting for
 * a peer, a thread of the group watches the words that kernels write: it names the rank that a call waits for without
 * success, and ends waits for ranks that have died. */
#ifndef LK__P2P_H
#define LK__P2P_H

#include "comm/shm/shm.h"
#include "comm/transports.h"

/* Memory of all ranks, as mapped in this process. */
typedef struct lk__p2p_memory {
    char                  *parts[LK__PEERS_MOST]; /* by rank, including this one. NULL: not mapped */
    size_t                 bytes;                 /* of a part */
    bool                   adopted;               /* it belongs to another group */
    struct lk__p2p_memory *next;
} lk__p2p_memory;

/* The record of a queued call. */
typedef struct lk__p2p_record {
    lk__comm_call call; /* without buffers; its file is `file` */
    bool          used;
    char          file[LK__FILE_NAME];
} lk__p2p_record;

enum { LK__P2P_RECORDS = 1024 };

/* The latest queued call, since when the watching thread has seen it run, or ended. */
typedef struct lk__p2p_pending_call {
    uint64_t number;
    double   since;
    bool     runs;
} lk__p2p_pending_call;

typedef struct lk__p2p {
    lk_comm                *comm;
    lk__device             *device;
    const lk__device_peers *peers;
    lk__p2p_memory          block;       /* flags and scratch memory */
    lk__peers_group        *group;       /* the device's memory */
    lk__peers_progress     *progress;    /* the host's */
    lk__p2p_memory         *memory;      /* symmetric */
    uint32_t                released;    /* pieces of memory of which this rank has unmapped its peers' parts */
    double                  release_end; /* while the group ends: until when peers are waited for; 0: it does not end */
    lk__p2p_record         *records;     /* LK__P2P_RECORDS, by lk__peers_call.id */

    pthread_mutex_t lock; /* guards what follows, and the records; a leaf */
    pthread_cond_t  changed;
    pthread_t       watcher;
    bool            watching, closing;

    lk__p2p_pending_call pending;
    double               late_end; /* until when a rank that waits in another group is not named; 0: none does */
} lk__p2p;

/* ---- create.c ---- */

/* Makes comm->p2p for a group of shared memory that has been created. Where its ranks cannot reach each other's GPUs,
 * the backend becomes shm, and rank 0 logs why, unless `quiet`. */
lk_status lk__p2p_begin(lk_comm *comm, bool quiet);
void      lk__p2p_end(lk_comm *comm); /* frees comm->p2p; NULL is fine */

/* ---- memory.c ---- */

/* Tells all ranks whether this one could do its part of something, with the context's error where it could not, and
 * `bytes` of it; all: by rank, LK__PEERS_MOST of them, or NULL. LK_END: a rank could not; why names it and its reason.
 * Other failures are the group's. */
enum { LK__P2P_WHY = 256 };
lk_status lk__p2p_agree(lk_comm *comm, lk_status own, const lk__peers_handle *handle, lk__peers_handle *all,
                        char why[LK__P2P_WHY]);
/* Zeroed memory of all ranks. LK_END as above: nothing was allocated. */
lk_status lk__p2p_share(lk_comm *comm, size_t bytes, lk__p2p_memory *memory, char why[LK__P2P_WHY]);
/* Until when a rank that releases memory now waits for its peers to do the same: less once the group has failed. */
double lk__p2p_release_end(const lk__p2p *p2p);
/* Unmaps the peers' parts; frees its own part once they have unmapped it, or cannot use it any more. Waits only
 * for peers that run: where one was stopped by a signal, the process's end frees the memory. */
void      lk__p2p_unshare(lk_comm *comm, lk__p2p_memory *memory);
lk_status lk__p2p_allocate(lk_comm *comm, lk__device *device, uint64_t secret, size_t bytes, void **memory);
/* lk__comm_adopt; LK_END: it is not a device's memory. */
lk_status lk__p2p_adopt(lk_comm *comm, const lk_comm *of, const void *memory);
bool      lk__p2p_release(lk_comm *comm, const void *memory); /* false: it is not the device's */
/* Where all ranks have the bytes that this rank has at `own`; false: they are in no symmetric memory. */
bool lk__p2p_locate(const lk__p2p *p2p, const void *own, size_t bytes, char *parts[LK__PEERS_MOST]);

/* ---- queue.c ---- */

lk_status lk__p2p_enqueue(lk_comm *comm, const lk__comm_call *call, const lk__comm_stream *on);

/* ---- watch.c ---- */

lk_status lk__p2p_watch(lk__p2p *p2p); /* begins to watch, unless it does already */
void      lk__p2p_unwatch(lk__p2p *p2p);
void      lk__p2p_stop(lk__p2p *p2p); /* ends the waits of kernels */
/* The group's failure, also one that a kernel has met. waits: for another rank's reason where the kernel knows none,
 * briefly; otherwise that is LK_OK yet. */
lk_status lk__p2p_check(lk__p2p *p2p, bool waits);
/* Where this process has lost the device: waits briefly for another rank to have died, which under MPS ends the
 * contexts of all, and raises that. Whether the group has failed then. */
bool lk__p2p_blame_dead(lk__p2p *p2p);

#endif
