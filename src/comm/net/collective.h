/* comm/net_job.h - a collective over a network while it runs: what its ways (net_collective.c, net_pipeline.c) share. */
#ifndef LK__NET_COLLECTIVE_H
#define LK__NET_COLLECTIVE_H

#include "comm/net/net.h"

enum {
    LK__NET_LAG = 2, /* chunks whose slices are on their way while one is reduced */
    LK__NET_SLOTS = LK__NET_LAG + 1,
    LK__NET_CHUNK = 8 << 20, /* bytes at most that pass through memory aside at once */
};

/* Kept from call to call. */
typedef struct lk__net_scratch {
    lk__net_part *parts;
    const void  **from;
    bool         *needed; /* by flight: whom it concerns */
    char         *memory;
    size_t        bytes;
} lk__net_scratch;

typedef struct lk__net_collective_run {
    lk__net             *net;
    const lk__comm_call *o;
    lk__net_scratch     *room;
    size_t               size; /* of an element */
    int                  rank, ranks;
} lk__net_collective_run;

/* Room for so many bytes in job->room->memory; what was there is lost. */
lk_status lk__net_run_reserve(const lk__net_collective_run *job, size_t bytes);
void      lk__net_run_clear(const lk__net_collective_run *job); /* all parts are nothing */
/* Begins what job->room->parts say, as flight number `which` of those under way; and waits for it. */
lk_status lk__net_run_begin(const lk__net_collective_run *job, int which, lk__net_transfer_state **flight);
lk_status lk__net_run_finish(const lk__net_collective_run *job, int which, lk__net_transfer_state **flight);
/* What came with `from`'s arrival; it is as long as this rank expects, because the calls are the same. */
lk_status lk__net_run_payload(const lk__net_collective_run *job, int from, size_t bytes, const void **data);

/* After all have come: reductions and broadcasts in chunks. Each rank gets its slice of a chunk from all who have it,
 * reduces it, and hands the result on; while one chunk is reduced others are on their way. */
lk_status lk__net_pipelined(const lk__net_collective_run *job);
/* An all_reduce of one chunk whose slices travel with the arrivals. */
lk_status lk__net_with_slices(const lk__net_collective_run *job);

#endif
