/* comm/net_job.h - a collective over a network while it runs: what its ways (net_collective.c, net_pipeline.c) share. */
#ifndef LK__NET_JOB_H
#define LK__NET_JOB_H

#include "comm/net.h"

enum {
    LK__NET_LAG = 2, /* chunks whose slices are on their way while one is reduced */
    LK__NET_SLOTS = LK__NET_LAG + 1,
    LK__NET_CHUNK = 8 << 20, /* bytes at most that pass through memory aside at once */
};

/* Kept from call to call. */
typedef struct lk__net_room {
    lk__part    *parts;
    const void **from;
    bool        *needed; /* by flight: whom it concerns */
    char        *memory;
    size_t       bytes;
} lk__net_room;

typedef struct lk__net_job {
    lk__net             *net;
    const lk__operation *o;
    lk__net_room        *room;
    size_t               size; /* of an element */
    int                  rank, ranks;
} lk__net_job;

/* Room for so many bytes in job->room->memory; what was there is lost. */
lk_status lk__net_job_room(const lk__net_job *job, size_t bytes);
void      lk__net_job_clear(const lk__net_job *job); /* all parts are nothing */
/* Begins what job->room->parts say, as flight number `which` of those under way; and waits for it. */
lk_status lk__net_job_begin(const lk__net_job *job, int which, lk__flight **flight);
lk_status lk__net_job_land(const lk__net_job *job, int which, lk__flight **flight);
/* What came with `from`'s arrival; it is as long as this rank expects, because the calls are the same. */
lk_status lk__net_job_payload(const lk__net_job *job, int from, size_t bytes, const void **data);

/* After all have come: reductions and broadcasts in chunks. Each rank gets its slice of a chunk from all who have it,
 * reduces it, and hands the result on; while one chunk is reduced others are on their way. */
lk_status lk__net_pipelined(const lk__net_job *job);
/* An all_reduce of one chunk whose slices travel with the arrivals. */
lk_status lk__net_with_slices(const lk__net_job *job);

#endif
