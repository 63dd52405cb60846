/* device/peers.h - memory of a device that the processes of other ranks map, and the collectives that kernels run in
 * it: ranks read and write each other's memory, and wait for each other by flags in it.
 *
 * Every rank of a group has one block that all its peers map: its flags, then scratch memory. Only kernels use it.
 * Ranks wait for each other at gates. A gate is one word in the memory of its first rank, which counts arrivals; a rank
 * that has waited too long marks the same word as failed, by comparing and exchanging it. So either all ranks pass or
 * none does, also where one arrives just as another gives up. A gate round is one passing of the gate by all its ranks;
 * rounds are numbered from 0. The number of rounds that a rank has passed is kept in the group's own block
 * (lk__peers_group.passed), so that every run of a recording continues where the last one ended. One block of one
 * kernel waits at a gate, so no kernel needs several of its blocks to run at once.
 *
 * Every wait ends: when all ranks have arrived, at the deadline by the device's clock, or by order of a rank or the
 * host. A wait whose late rank cannot be identified ends at twice the deadline. Every wait that ends before all ranks
 * have arrived is a failure. The kernel then writes lk__peers_progress, and LK__HALTED_BY_GROUP to the call's `halted`
 * word; from then on no call of the group reads or writes anything, here or at a peer: each looks at the group's
 * `failed` and at `halted` first. A kernel that writes to peers does so only while none of them can have given up by
 * its deadline: it has passed the gate less than half a deadline ago, and the gate's word is not marked. A peer that
 * ends its wait by order, of its host or of another rank's failure, may do so at any time: what is then written is
 * memory of the group, which its owner neither reads nor frees before the writer has unmapped it. */
#ifndef LK__DEVICE_PEERS_H
#define LK__DEVICE_PEERS_H

#include "device/memory.h"

enum {
    LK__PEERS_MOST = 8,                                               /* ranks of a group */
    LK__PEERS_HANDLE = 64,                                            /* bytes */
    LK__PEERS_BLOCK_BYTES = 8 << 20,                                  /* flags and scratch of a rank in a group */
    LK__PEERS_FLAG_BYTES = 64 << 10,                                  /* of them, the flags' */
    LK__PEERS_SCRATCH = LK__PEERS_BLOCK_BYTES - LK__PEERS_FLAG_BYTES, /* and the scratch memory's */
    LK__PEERS_STOPPED = LK__PEERS_MOST, /* the failure's culprit where no rank is: the host stopped the group, or */
                                        /* another group had failed */
};

/* In a call's `halted` word: a wait of a group has failed. */
enum { LK__HALTED_BY_GROUP = -1 };

/* What another process needs to map memory: an IPC handle of CUDA. */
typedef struct lk__peers_handle {
    unsigned char bytes[LK__PEERS_HANDLE];
} lk__peers_handle;

/* Bits 0 to 55 of `state` count arrivals. Bit 63: a wait has failed; bit 62 is then that of the number of the failed
 * gate round, bits 56 to 61 are the culprit. `arrived`: by rank, how often it has arrived. */
typedef struct lk__peers_gate {
    uint64_t state, arrived[LK__PEERS_MOST], reserved[15 - LK__PEERS_MOST];
} lk__peers_gate;

/* At the beginning of a rank's block; zeroed by `allocate`. The gate of all ranks is the first of rank 0; the gate of
 * two ranks a < b is gate 1 + b of rank a. */
typedef struct lk__peers_flags {
    lk__peers_gate gates[1 + LK__PEERS_MOST];
} lk__peers_flags;

/* In the host's memory (alloc_host), zeroed: how far the queued calls of the group have come on this rank. */
typedef struct lk__peers_progress {
    uint64_t began,
        ended; /* numbers of queued calls, from 1, that have begun and ended; each run of a recording counts */
    uint32_t began_call; /* lk__peers_call.id of `began`, written before it */
    int32_t  stop;       /* written by the host: waits end at once, with LK__PEERS_STOPPED as the culprit */
    /* Of the first failure on this rank. `failed` is written last: 0, or 1 + the culprit: the rank whose flag was
     * waited for, or that another rank's failure names. */
    uint64_t failed_number, waited_ns;
    uint32_t failed_call;
    int32_t  failed;
} lk__peers_progress;

/* A rank's private block of a group, in its device's memory; no other rank maps it. The host writes it once, with
 * everything after `progress` 0. */
typedef struct lk__peers_group {
    int32_t             rank, ranks;
    int64_t             deadline_ns;           /* of a wait */
    lk__peers_flags    *flags[LK__PEERS_MOST]; /* by rank, as mapped here, including this one */
    char               *scratch[LK__PEERS_MOST];
    lk__peers_progress *progress;
    uint64_t delay_ns; /* for tests: a rank waits up to this long before it arrives at a gate; 0: it does not */
    /* Kernels write these. */
    uint64_t number;                     /* calls that have begun */
    uint64_t passed[1 + LK__PEERS_MOST]; /* gate rounds so far, of all ranks and with each other one */
    uint64_t opened_ns;                  /* the latest time at which the last gate was known to be closed */
    uint32_t failed;                     /* a wait has failed: nothing is done any more */
    uint32_t late;                       /* a kernel did not write to its peers because they may have given up */
    uint32_t leaving;                    /* blocks of the running kernel that have ended */
    uint32_t reserved;
} lk__peers_group;

/* BARRIER: nothing moves. REDUCE: all ranks have `count` elements; the receivers get them reduced. REDUCE_PARTS: all
 * ranks have a part of `count` elements for each rank, and each gets its part reduced. COPY: the rest. */
typedef enum lk__peers_form {
    LK__PEERS_BARRIER,
    LK__PEERS_REDUCE,
    LK__PEERS_REDUCE_PARTS,
    LK__PEERS_COPY
} lk__peers_form;

/* One queued call, the same on all its ranks but for addresses and parts. Reductions have the bits of lk__reduce
 * (base/reduce.h), in the order of ranks. When it has run, no peer reads or writes this rank's buffers any more. */
typedef struct lk__peers_call {
    lk__peers_form   form;
    lk_dtype         type;
    lk_reduce_op     reduce;
    uint32_t         id;     /* for lk__peers_progress */
    uint32_t         with;   /* a bit for each rank that takes part, this one, too: all, or two of a COPY */
    lk__peers_group *group;  /* of the device's memory */
    int32_t         *halted; /* comm/queue.h; may be NULL */
    int              rank, ranks;
    size_t count;    /* of a reduction; of COPY the largest part that any rank sends to any other, or to itself */
    size_t row;      /* REDUCE_PARTS and COPY: elements of a row, 0: none. See below */
    bool   receives; /* REDUCE: this rank gets the result */

    /* Of this rank. */
    const void *send;
    void       *recv;
    /* Where all ranks' buffers are, as mapped here: all of them are in symmetric memory, and the call needs no scratch.
     * NULL, on all ranks: parts pass through scratch. peer_recv: only of REDUCE, for results in two passes; NULL where
     * not all ranks receive. */
    bool        symmetric;
    const char *peer_send[LK__PEERS_MOST];
    char       *peer_recv[LK__PEERS_MOST];

    /* COPY, in elements. This rank sends out_count[i] to rank i, from out_at[i] of its send buffer on; it gets
     * in_count[i] of rank i, which begin at peer_at[i] of that rank's send buffer, to in_at[i] of recv. One part for
     * all ranks has the same out_at for all of them (`same`), and is published once. */
    bool    same;
    int64_t out_count[LK__PEERS_MOST], out_at[LK__PEERS_MOST];
    int64_t in_count[LK__PEERS_MOST], in_at[LK__PEERS_MOST], peer_at[LK__PEERS_MOST];
} lk__peers_call;

/* With rows (an all_gather or a reduce_scatter), element e of rank r's part is at (e / row * ranks + r) * row + e % row
 * of the whole, which COPY receives (in_at is 0) and REDUCE_PARTS sends. */
static inline size_t lk__peers_row_at(size_t row, int ranks, int rank, size_t e)
{
    return (e / row * (size_t)ranks + (size_t)rank) * row + e % row;
}

/* Of devices whose memory other processes can map. Each sets an error where it fails. */
typedef struct lk__device_peers {
    /* LK_OK, or LK_EUNSUPPORTED with the reason: this device cannot at all (MIG, a driver without IPC). */
    lk_status (*check)(lk__device *device);
    /* Zeroed memory that others may map, and its handle. Not accounted. */
    lk_status (*allocate)(lk__device *device, size_t bytes, void **memory, lk__peers_handle *handle);
    void (*free)(lk__device *device, void *memory); /* once no peer has it mapped, where all is well */
    lk_status (*map)(lk__device *device, const lk__peers_handle *handle, size_t bytes, void **memory);
    void (*unmap)(lk__device *device, void *memory);
    /* Loads the kernels, so that nothing waits for the device once one of them may spin. */
    lk_status (*prepare)(lk__device *device);
    /* Writes `words` words that follow from `seed` to memory, with a kernel, and waits; and whether they are there,
     * read by a kernel. */
    lk_status (*write_pattern)(lk__device *device, void *memory, size_t words, uint32_t seed);
    lk_status (*check_pattern)(lk__device *device, const void *memory, size_t words, uint32_t seed, bool *same);
    lk_status (*enqueue)(lk__device *device, lk__device_stream *stream, const lk__peers_call *call);
    /* NULL: kernels of several processes run on this device at the same time, so that one may wait for another.
     * Otherwise why they take turns, and what the user can do about it: it follows "N ranks share DEVICE". */
    const char *(*takes_turns)(const lk__device *device);
    /* Whether nothing can be done with the device any more, by this process. */
    bool (*is_lost)(lk__device *device);
} lk__device_peers;

#endif
