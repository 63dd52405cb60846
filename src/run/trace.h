/* run/trace.h - a timeline of what ran on each rank, in one file for Chrome's and Perfetto's viewers. A rank records
 * into preallocated memory and packs it into a block of bytes that can be sent; one rank writes all blocks. */
#ifndef LK__TRACE_H
#define LK__TRACE_H

#include "base/base.h"

typedef struct lk__trace lk__trace;

typedef enum lk__trace_kind {
    LK__TRACE_STEP,       /* a whole step, around the others */
    LK__TRACE_KERNEL,     /* arithmetic */
    LK__TRACE_COLLECTIVE, /* from start to completion, on any thread */
    LK__TRACE_WAIT,       /* waiting for another rank */
    LK__TRACE_DATA,       /* waiting for a batch */
    LK__TRACE_SAVE,
    LK__TRACE_RUN,  /* forward or backward of a micro-batch in a stage of a pipeline, around what it runs */
    LK__TRACE_COPY, /* between the memories of host and device, or within the device's */
    LK__TRACE_COUNTER, /* a number from `begin` on, in thousandths, which are in `bytes` */
    LK__TRACE_KIND_COUNT
} lk__trace_kind;

enum { LK__TRACE_TRACKS = 32 }; /* tracks of a rank in the viewer: a thread or a stream each */

typedef struct lk__trace_event {
    const char    *name; /* borrowed until the trace is freed; any bytes: what is not UTF-8 is shown as U+FFFD */
    lk__trace_kind kind;
    int            track;      /* 0 … LK__TRACE_TRACKS-1 */
    double         begin, end; /* lk__now */
    int64_t        bytes;      /* that it moves; 0: not shown */
} lk__trace_event;

/* Allocates memory for `capacity` events (LK_MEMORY_OTHER). */
lk_status lk__trace_create(lk_context *context, int64_t capacity, lk__trace **trace);
void      lk__trace_free(lk__trace *trace); /* NULL is fine */

void lk__trace_name_track(lk__trace *trace, int track, const char *name); /* borrowed; before it is packed */

/* From any thread, without a lock or an allocation. Events beyond the capacity, or with an invalid track or kind, are
 * dropped and counted. NULL records nothing. */
void    lk__trace_add(lk__trace *trace, const lk__trace_event *event);
int64_t lk__trace_count(const lk__trace *trace);
int64_t lk__trace_dropped(const lk__trace *trace);

/* Everything recorded, as one block without pointers. No thread may record meanwhile. */
size_t lk__trace_packed_bytes(const lk__trace *trace);
void   lk__trace_pack(const lk__trace *trace, void *block);

/* Seconds in which at least one collective was in flight, and those of them in which a kernel ran as well. */
typedef struct lk__trace_overlap {
    double collective, hidden;
} lk__trace_overlap;

lk_status lk__trace_measure(lk_context *context, const void *block, size_t bytes, lk__trace_overlap *overlap);

typedef struct lk__trace_part {
    int         rank;
    const char *label;  /* "rank 0, host a"; NULL: "rank N" */
    double      offset; /* seconds to add to that rank's clock for the common one */
    const void *block;
    size_t      bytes;
} lk__trace_part;

/* One JSON file in the trace event format: a process for each part, a thread for each of its tracks, time 0 at the
 * first event, and in otherData the overlap (hidden / collective, in percent; null without collectives) of all parts
 * together and of each, and the number of dropped events. LK_EFORMAT when a block was not made by lk__trace_pack. */
lk_status lk__trace_write(lk_context *context, const char *path, const lk__trace_part *parts, int count);

/* ---- Between trace.c and trace_write.c: a block is a head, then tracks' names and events, each followed by its text.
 */

typedef struct lk__trace_head {
    uint64_t magic, bytes;
    int64_t  tracks, events, dropped;
} lk__trace_head;

typedef struct lk__trace_item {
    double  begin, end;
    int64_t bytes;
    int32_t kind, track;
    int64_t length; /* of the text that follows; the next item is at the next multiple of 8 */
} lk__trace_item;

#define LK__TRACE_MAGIC 0x31454341525421A7u

typedef struct lk__trace_walk {
    const char *at, *end;
    int64_t     left;
} lk__trace_walk;

/* Checks the head and starts before the first item: head->tracks of them, then head->events. False: not a block. */
bool lk__trace_begin(const void *block, size_t bytes, lk__trace_head *head, lk__trace_walk *walk);
/* False at the end, and where an item extends past the block: then walk->left is above 0. */
bool lk__trace_next(lk__trace_walk *walk, lk__trace_item *item, const char **text);

#endif
