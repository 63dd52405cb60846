/* graphs.c - work that the device records. The first time it runs without recording, since kernels are loaded and
 * libraries choose their algorithms then. The second time it is recorded, and from then on it is queued as a whole. */
#include "run/timeline.h"

#include <string.h>

enum { GRAPHS = 128 }; /* leaves, each with a set of gradients, times sections */

typedef struct recording {
    lk__run_key       key;
    lk__device_graph *graph; /* NULL: it ran once */
    lk__run_units    *units; /* what it consists of; NULL: it was recorded while there was no timeline */
    uint64_t          used;  /* when; 0: free */
} recording;

struct lk__run_graphs {
    recording all[GRAPHS];
    uint64_t  uses;
};

lk_status lk__graphs_create(lk_program *p)
{
    if (!p->device->backend->recording.record_begin) return LK_OK;
    p->graphs = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *p->graphs);
    return p->graphs ? LK_OK : LK_ENOMEM;
}

static void forget(const lk_program *p, recording *r)
{
    if (r->graph) p->device->backend->recording.graph_free(p->device, r->graph);
    *r = (recording){.used = 0};
}

void lk__graphs_free(lk_program *p)
{
    if (!p->graphs) return;
    for (int i = 0; i < GRAPHS; i++) forget(p, &p->graphs->all[i]);
    lk__free(p->context, LK_MEMORY_OTHER, p->graphs, sizeof *p->graphs);
}

static bool equal_keys(const lk__run_key *a, const lk__run_key *b)
{
    return a->list == b->list && a->begin == b->begin && a->end == b->end && a->samples == b->samples &&
           a->total == b->total && a->gradients == b->gradients && a->batch == b->batch && a->way == b->way;
}

/* The recording for this key, or the one that was not used for the longest time, forgotten. */
static recording *find_recording(lk_program *p, const lk__run_key *key)
{
    recording *oldest = &p->graphs->all[0];
    for (int i = 0; i < GRAPHS; i++) {
        recording *r = &p->graphs->all[i];
        if (r->used && equal_keys(&r->key, key)) return r;
        if (r->used < oldest->used) oldest = r;
    }
    forget(p, oldest);
    return oldest;
}

static lk_status record(lk_program *p, recording *r, lk__run_issue issue)
{
    const lk__device_backend *backend = p->device->backend;
    lk_status                 status = lk__timeline_by_reports(p) ? lk__timeline_record(p, &r->units) : LK_OK;
    if (status >= 0) status = backend->recording.record_begin(p->device, p->stream);
    lk_status issued = status < 0 ? status : issue(p, &r->key);
    lk__timeline_record_end(p);
    if (status < 0) return status;
    status = backend->recording.record_end(p->device, p->stream, &r->graph);
    if (issued >= 0) return status;
    if (status >= 0) backend->recording.graph_free(p->device, r->graph);
    r->graph = NULL;
    return issued;
}

lk_status lk__run_recorded(lk_program *p, const lk__run_key *key, lk__run_issue issue)
{
    bool reports = lk__timeline_by_reports(p);
    if (p->waits || ((p->profile || p->trace) && !reports)) return issue(p, key);
    recording *r = find_recording(p, key);
    bool       again = r->used > 0;
    r->key = *key;
    r->used = ++p->graphs->uses;
    if (!again) return issue(p, key);
    if (reports && r->graph && !r->units) { /* recorded again, as it is not known which kernel is whose */
        p->device->backend->recording.graph_free(p->device, r->graph);
        r->graph = NULL;
    }
    lk_status status = r->graph ? LK_OK : record(p, r, issue);
    if (status >= 0 && reports) status = lk__timeline_ran(p, r->units);
    return status < 0 ? status : p->device->backend->recording.graph_run(p->device, p->stream, r->graph);
}
