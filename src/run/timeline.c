/* timeline.c - collects the times at which a program's work ran on its device, from the device's reports or by
 * events. */
#include "run/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMED = 4096, NAME = 96 };

typedef struct mark {
    lk__run_unit unit;
    int64_t      counts[LK__WORK_COUNT]; /* in the graph up to its end */
} mark;

struct lk__run_units {
    lk__run_units *next;
    mark          *marks;
    size_t         count, capacity;
};

typedef struct timed_unit {
    lk__run_unit      unit;
    lk__device_event *begin, *end;
} timed_unit;

typedef struct joint_name { /* of instructions that ran together */
    struct joint_name *next;
    const void        *list;
    size_t             begin, end;
    char               text[NAME];
} joint_name;

struct lk__run_timeline {
    bool                  on, reports;
    char                  source[16];
    lk__run_units        *all, *recording; /* recording: NULL while no graph is recorded */
    const lk__run_units **ran;             /* graphs that were queued, in order */
    size_t                ran_count, ran_capacity;
    timed_unit           *timed; /* TIMED of them; by events */
    size_t                timed_count;
    lk__device_event     *origin;
    double                origin_seconds; /* lk__now at `origin` */
    joint_name           *names;
    lk__run_other         others[LK__RUN_OTHERS];
    int                   others_count;
};

bool lk__timeline_on(const lk_program *p) { return p->timeline && p->timeline->on; }
bool lk__timeline_by_reports(const lk_program *p) { return lk__timeline_on(p) && p->timeline->reports; }

const char *lk__timeline_source(const lk_program *p)
{
    return p->timeline && p->timeline->source[0] ? p->timeline->source : "the host's clock";
}

int lk__timeline_others(const lk_program *p, const lk__run_other **others)
{
    *others = p->timeline ? p->timeline->others : NULL;
    return p->timeline ? p->timeline->others_count : 0;
}

/* ---- what was measured ---- */

static const char *find_joint_name(const lk_program *p, const lk__run_unit *u)
{
    lk__run_timeline *t = p->timeline;
    for (joint_name *n = t->names; n; n = n->next)
        if (n->list == u->list && n->begin == u->begin && n->end == u->end) return n->text;
    joint_name *n = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *n);
    if (!n) return "update";
    const lk_graph *g = u->list->planned->graph;
    size_t          kernels = 0;
    for (size_t i = u->begin; i < u->end; i++) kernels += u->list->instructions[i].node >= 0;
    n->list = u->list;
    n->begin = u->begin;
    n->end = u->end;
    snprintf(n->text, sizeof n->text, "%s, %zu instructions in one launch",
             lk__node_name(g, &g->nodes[u->list->instructions[u->end - 1].node]), kernels);
    n->next = t->names;
    t->names = n;
    return n->text;
}

/* What a unit is called in a trace. */
static const char *unit_name(const lk_program *p, const lk__run_unit *u)
{
    if (!u->list) return u->name;
    if (u->end - u->begin > 1) return find_joint_name(p, u);
    const char *name = u->list->instructions[u->begin].name;
    return name ? name : "kernel";
}

static void add_other(lk__run_timeline *t, const char *name, double seconds, int64_t bytes)
{
    int i = 0;
    while (i < t->others_count && strcmp(t->others[i].name, name) != 0) i++;
    if (i == LK__RUN_OTHERS) return;
    if (i == t->others_count) t->others[t->others_count++] = (lk__run_other){.name = name};
    t->others[i].seconds += seconds;
    t->others[i].bytes += bytes;
    t->others[i].runs++;
}

/* first: of the unit in this run. */
static void add_span(const lk_program *p, const lk__run_unit *u, const lk__device_span *s, bool first)
{
    if (p->profile && u && u->list) {
        lk__run_instruction *in = &u->list->instructions[u->begin];
        in->seconds += s->end - s->begin;
        in->runs += first;
        in->together = u->end - u->begin;
    } else if (p->profile) {
        add_other(p->timeline, u ? u->name : s->name, s->end - s->begin, s->bytes);
    }
    if (!p->trace) return;
    bool kernel = s->work == LK__WORK_KERNEL;
    lk__trace_add(p->trace, &(lk__trace_event){.name = u ? unit_name(p, u) : s->name,
                                               .kind = kernel ? LK__TRACE_KERNEL : LK__TRACE_COPY,
                                               .track = kernel ? LK__TRACK_KERNELS : LK__TRACK_COPIES,
                                               .begin = s->begin,
                                               .end = s->end,
                                               .bytes = s->bytes});
}

/* ---- by events ---- */

/* Times are relative to an event whose time by the host's clock is known; anew each time, as they are floats. */
static lk_status set_origin(const lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_timeline         *t = p->timeline;
    lk_status                 status = backend->memory.stream_wait(p->device, p->stream);
    double                    before = lk__now();
    if (status >= 0) status = backend->memory.event_record(p->device, t->origin, p->stream);
    if (status >= 0) status = backend->memory.event_sync(p->device, t->origin);
    t->origin_seconds = (before + lk__now()) / 2;
    return status;
}

static lk_status start_events(const lk_program *p)
{
    lk__run_timeline *t = p->timeline;
    lk_status         status = LK_OK;
    if (!t->timed) t->timed = lk__alloc(p->context, LK_MEMORY_OTHER, TIMED * sizeof *t->timed);
    if (!t->timed) return LK_ENOMEM;
    if (!t->origin) status = p->device->backend->memory.timed_event_create(p->device, &t->origin);
    t->timed_count = 0;
    return status < 0 ? status : set_origin(p);
}

static lk_status collect_events(const lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_timeline         *t = p->timeline;
    lk_status                 status = LK_OK;
    for (size_t i = 0; i < t->timed_count && status >= 0; i++) {
        const timed_unit *u = &t->timed[i];
        double            begin = 0, end = 0;
        status = backend->memory.event_sync(p->device, u->end);
        if (status >= 0) status = backend->memory.event_seconds(p->device, t->origin, u->begin, &begin);
        if (status >= 0) status = backend->memory.event_seconds(p->device, t->origin, u->end, &end);
        if (status < 0) break;
        lk__device_span span = {.begin = t->origin_seconds + begin,
                                .end = t->origin_seconds + end,
                                .work = u->unit.list ? LK__WORK_KERNEL : u->unit.work,
                                .bytes = (int64_t)u->unit.bytes};
        add_span(p, &u->unit, &span, true);
    }
    t->timed_count = 0;
    return status < 0 ? status : set_origin(p);
}

/* ---- by the device's reports ---- */

static int by_graph_and_time(const void *a, const void *b)
{
    const lk__device_span *x = a, *y = b;
    if (x->graph != y->graph) return x->graph < y->graph ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* A kernel may be started while the one before it still runs, for which it then waits: its time begins when that one
 * has ended. */
static void clip_kernels(lk__device_span *spans, size_t count, double *ended)
{
    for (size_t i = 0; i < count; i++) {
        lk__device_span *s = &spans[i];
        if (s->work != LK__WORK_KERNEL) continue;
        s->begin = fmin(fmax(s->begin, *ended), s->end);
        *ended = fmax(*ended, s->end);
    }
}

/* Gives the spans of one run of a graph to its units, kind by kind in their order. False: their number is not that of
 * the recording. */
static bool add_graph(const lk_program *p, const lk__run_units *units, const lk__device_span *spans, size_t count)
{
    int64_t seen[LK__WORK_COUNT] = {0};
    size_t  at[LK__WORK_COUNT] = {0};
    for (size_t i = 0; i < count; i++) seen[spans[i].work]++;
    if (!units || units->count == 0 || units->marks[units->count - 1].counts[LK__WORK_KERNEL] != seen[LK__WORK_KERNEL])
        return false;
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < count; i++) {
        lk__device_work work = spans[i].work;
        int64_t         index = seen[work]++;
        size_t         *unit = &at[work];
        while (*unit < units->count && units->marks[*unit].counts[work] <= index) ++*unit;
        bool first = *unit < units->count && work == LK__WORK_KERNEL &&
                     index == (*unit ? units->marks[*unit - 1].counts[work] : 0);
        add_span(p, *unit < units->count ? &units->marks[*unit].unit : NULL, &spans[i], first);
    }
    return true;
}

static bool has_kernels(const lk__run_units *units)
{
    return units->count > 0 && units->marks[units->count - 1].counts[LK__WORK_KERNEL] > 0;
}

/* Graphs ran in the order in which they were queued. */
static lk_status collect_reports(const lk_program *p)
{
    lk__run_timeline *t = p->timeline;
    lk__device_span  *spans;
    size_t            count, graphs = 0, unknown = 0, next = 0;
    double            ended = -INFINITY;
    lk_status         status = p->device->backend->recording.spans_end(p->device, &spans, &count);
    if (status < 0) return status;
    if (count) qsort(spans, count, sizeof *spans, by_graph_and_time);
    for (size_t i = 0, end; i < count; i = end) {
        bool kernels = false;
        for (end = i; end < count && spans[end].graph == spans[i].graph; end++)
            kernels |= spans[end].work == LK__WORK_KERNEL;
        const lk__run_units *units = NULL;
        if (spans[i].graph) clip_kernels(spans + i, end - i, &ended);
        while (spans[i].graph && kernels && !units && next < t->ran_count)
            if (has_kernels(t->ran[next++])) units = t->ran[next - 1];
        bool known = spans[i].graph && add_graph(p, units, spans + i, end - i);
        graphs += spans[i].graph != 0;
        unknown += spans[i].graph && !known;
        for (size_t k = i; k < end && !known; k++) add_span(p, NULL, &spans[k], true);
    }
    if (unknown)
        lk__log(p->context, LK_LOG_WARNING,
                "timeline: %zu of %zu graphs do not have as many kernels as were recorded (%zu graphs were queued): "
                "their kernels are shown under their own names",
                unknown, graphs, t->ran_count);
    t->ran_count = 0;
    return LK_OK;
}

/* ---- starting and stopping ---- */

static lk_status start_timeline(const lk_program *p)
{
    lk__run_timeline         *t = p->timeline;
    const lk__device_backend *backend = p->device->backend;
    lk_status                 status = backend->memory.stream_wait(p->device, p->stream);
    if (status < 0) return status;
    t->ran_count = 0;
    t->reports = backend->recording.spans_begin && backend->recording.spans_begin(p->device) >= 0;
    if (!t->reports && backend->recording.spans_begin && strcmp(t->source, "events") != 0)
        lk__log(p->context, LK_LOG_INFO,
                "kernels are timed by events, without CUDA graphs, because CUPTI is not used: %s",
                lk_context_error(p->context));
    if (!t->reports) status = start_events(p);
    snprintf(t->source, sizeof t->source, "%s", t->reports ? "CUPTI" : "events");
    t->on = status >= 0;
    return status;
}

static void stop_timeline(const lk_program *p)
{
    lk__run_timeline *t = p->timeline;
    lk_status         status = p->device->backend->memory.stream_wait(p->device, p->stream);
    if (status >= 0) status = t->reports ? collect_reports(p) : collect_events(p);
    if (status < 0)
        lk__log(p->context, LK_LOG_WARNING, "the times of kernels are incomplete: %s", lk_context_error(p->context));
    t->on = false;
}

void lk__timeline_collect(const lk_program *p)
{
    if (!lk__timeline_on(p)) return;
    stop_timeline(p);
    if (start_timeline(p) < 0)
        lk__log(p->context, LK_LOG_WARNING, "kernels are no longer timed: %s", lk_context_error(p->context));
}

lk_status lk__timeline_set(lk_program *p, bool profile, lk__trace *trace)
{
    if (lk__timeline_on(p)) stop_timeline(p);
    if (p->timeline && profile && !p->profile) p->timeline->others_count = 0;
    p->profile = profile;
    p->trace = trace;
    if ((!profile && !trace) || p->waits || !p->device->backend->memory.event_seconds) return LK_OK;
    if (!p->timeline && !(p->timeline = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *p->timeline))) return LK_ENOMEM;
    return start_timeline(p);
}

void lk__timeline_free(lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_timeline         *t = p->timeline;
    lk__device_span          *spans;
    size_t                    count;
    if (!t) return;
    if (t->on && t->reports) (void)backend->recording.spans_end(p->device, &spans, &count);
    for (lk__run_units *u = t->all, *next; u; u = next) {
        next = u->next;
        lk__free(p->context, LK_MEMORY_OTHER, u->marks, u->capacity * sizeof *u->marks);
        lk__free(p->context, LK_MEMORY_OTHER, u, sizeof *u);
    }
    for (joint_name *n = t->names, *next; n; n = next) {
        next = n->next;
        lk__free(p->context, LK_MEMORY_OTHER, n, sizeof *n);
    }
    for (size_t i = 0; t->timed && i < TIMED; i++) {
        backend->memory.event_free(p->device, t->timed[i].begin);
        backend->memory.event_free(p->device, t->timed[i].end);
    }
    if (t->origin) backend->memory.event_free(p->device, t->origin);
    lk__free(p->context, LK_MEMORY_OTHER, t->timed, TIMED * sizeof *t->timed);
    lk__free(p->context, LK_MEMORY_OTHER, (void *)t->ran, t->ran_capacity * sizeof *t->ran);
    lk__free(p->context, LK_MEMORY_OTHER, t, sizeof *t);
    p->timeline = NULL;
}

/* ---- units ---- */

lk_status lk__timeline_before(lk_program *p, lk__device_stream *stream)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_timeline         *t = p->timeline;
    lk_status                 status = LK_OK;
    if (!lk__timeline_on(p) || t->reports) return LK_OK;
    if (t->timed_count == TIMED) status = collect_events(p);
    timed_unit *u = &t->timed[t->timed_count];
    if (status >= 0 && !u->begin) status = backend->memory.timed_event_create(p->device, &u->begin);
    if (status >= 0 && !u->end) status = backend->memory.timed_event_create(p->device, &u->end);
    return status < 0 ? status : backend->memory.event_record(p->device, u->begin, stream);
}

static lk_status add_mark(const lk_program *p, lk__run_units *units, const lk__run_unit *unit)
{
    lk_status status =
        lk__grow(p->context, (void **)&units->marks, &units->capacity, units->count + 1, sizeof *units->marks);
    if (status < 0) return status;
    mark *m = &units->marks[units->count++];
    m->unit = *unit;
    return p->device->backend->recording.record_counts(p->device, p->stream, m->counts);
}

lk_status lk__timeline_after(lk_program *p, lk__device_stream *stream, const lk__run_unit *unit)
{
    lk__run_timeline *t = p->timeline;
    if (!lk__timeline_on(p)) return LK_OK;
    if (t->reports) return t->recording && stream == p->stream ? add_mark(p, t->recording, unit) : LK_OK;
    timed_unit *u = &t->timed[t->timed_count++];
    u->unit = *unit;
    return p->device->backend->memory.event_record(p->device, u->end, stream);
}

lk_status lk__timeline_record(lk_program *p, lk__run_units **units)
{
    lk__run_units *u = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *u);
    *units = u;
    if (!u) return LK_ENOMEM;
    u->next = p->timeline->all;
    p->timeline->all = p->timeline->recording = u;
    return LK_OK;
}

void lk__timeline_record_end(lk_program *p)
{
    if (p->timeline) p->timeline->recording = NULL;
}

lk_status lk__timeline_ran(lk_program *p, const lk__run_units *units)
{
    lk__run_timeline *t = p->timeline;
    lk_status status = lk__grow(p->context, (void **)&t->ran, &t->ran_capacity, t->ran_count + 1, sizeof *t->ran);
    if (status >= 0) t->ran[t->ran_count++] = units;
    return status;
}
