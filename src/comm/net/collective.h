/* comm/net/collective.h - a running collective over a network: what collective.c and pipeline.c share. */
#ifndef LK__NET_COLLECTIVE_H
#define LK__NET_COLLECTIVE_H

#include "comm/net/net.h"

enum {
    LK__NET_LAG = 2, /* chunks whose slices are in flight while one is reduced */
    LK__NET_SLOTS = LK__NET_LAG + 1,
    LK__NET_CHUNK = 8 << 20, /* bytes of scratch memory at most */
};

/* Kept from call to call. */
typedef struct lk__net_scratch {
    lk__net_part *parts;
    const void  **from;
    bool         *needed; /* by flight: the ranks it involves */
    char         *memory;
    size_t        bytes;
} lk__net_scratch;

typedef struct lk__net_collective_run {
    lk__net             *net;
    const lk__comm_call *o;
    lk__net_scratch     *scratch;
    size_t               size; /* of an element */
    int                  rank, ranks;
} lk__net_collective_run;

/* Makes run->scratch->memory at least this large; its contents are lost. */
lk_status lk__net_run_reserve(const lk__net_collective_run *run, size_t bytes);
void      lk__net_run_clear(const lk__net_collective_run *run); /* sets all parts to empty */
/* Begins an exchange of run->scratch->parts, as flight number `which` of those in flight; and waits for it. */
lk_status lk__net_run_begin(const lk__net_collective_run *run, int which, lk__net_transfer_state **flight);
lk_status lk__net_run_finish(const lk__net_collective_run *run, int which, lk__net_transfer_state **flight);
/* The data of `from`'s arrival. Another length than `bytes` is a mismatch, although the calls are the same. */
lk_status lk__net_run_payload(const lk__net_collective_run *run, int from, size_t bytes, const void **data);

/* After all ranks have entered: reductions and broadcasts in chunks. Each rank gets its slice of a chunk from all ranks
 * that have it, reduces it, and sends the result; while one chunk is reduced others are in flight. Parts in rows: a
 * chunk is made contiguous before it is sent, and distributed to its rows when it is there. */
lk_status lk__net_pipelined(const lk__net_collective_run *run);
/* An all_reduce of one chunk whose slices are sent with the arrivals. */
lk_status lk__net_with_slices(const lk__net_collective_run *run);

#endif
