/* run/timeline.h - when a program's work runs on a device that runs it independently of the host (a GPU), for profiles
 * and traces. Where the device reports it (CUPTI), steps run as the usual recorded graphs; otherwise events are
 * recorded around each unit of work, and no work is recorded as a graph. On other devices there is no timeline: the
 * interpreter waits for each instruction.
 *
 * A unit is an instruction, several instructions of the update that the device runs together, or other work with a
 * name. With reports, the number of kernels, copies and fills up to the end of each unit is noted while a graph is
 * recorded: they run in that order. */
#ifndef LK__TIMELINE_H
#define LK__TIMELINE_H

#include "run/program.h"

typedef struct lk__run_unit {
    lk__run_list   *list; /* instructions begin … end-1 of it; NULL: other work */
    size_t          begin, end;
    const char     *name; /* of other work; a literal */
    lk__device_work work; /* of other work */
    size_t          bytes;
} lk__run_unit;

typedef struct lk__run_units lk__run_units; /* those of one recorded graph; owned by the timeline */

/* Other work of a program, by name. */
typedef struct lk__run_other {
    const char *name;
    double      seconds;
    int64_t     runs, bytes;
} lk__run_other;
enum { LK__RUN_OTHERS = 32 };

/* Sets profile and trace of the program, and starts or stops the timeline; collects first what has run. */
lk_status lk__timeline_set(lk_program *program, bool profile, lk__trace *trace);
void      lk__timeline_free(lk_program *program);
bool      lk__timeline_on(const lk_program *program);
bool      lk__timeline_by_reports(const lk_program *program); /* on, and graphs may run */
/* Reads what has run: into the instructions' seconds and the trace. Waits for what is queued. */
void        lk__timeline_collect(const lk_program *program);
const char *lk__timeline_source(const lk_program *program); /* "CUPTI", "events", "the host's clock" */
/* Work that is not an instruction, at most LK__RUN_OTHERS. */
int lk__timeline_others(const lk_program *program, const lk__run_other **others);

/* Around the calls that queue a unit on a stream; nothing where the timeline is off. */
lk_status lk__timeline_before(lk_program *program, lk__device_stream *stream);
lk_status lk__timeline_after(lk_program *program, lk__device_stream *stream, const lk__run_unit *unit);

/* graphs.c: while a graph is recorded, and when one was queued. */
lk_status lk__timeline_record(lk_program *program, lk__run_units **units);
void      lk__timeline_record_end(lk_program *program);
lk_status lk__timeline_ran(lk_program *program, const lk__run_units *units);

#endif
