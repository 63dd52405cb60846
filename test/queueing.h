/* queueing.h - a transport for tests that queues its calls on streams of the emulated CUDA. It is shared memory in
 * everything else: a queued call is a function on the stream, which runs the collective in a group of the transport's
 * own, so that it is not ordered with blocking calls. */
#ifndef QUEUEING_H
#define QUEUEING_H

#include "check.h"
#include "comm/comm.h"
#include "comm/transports.h"

typedef lk_status (*queue_call)(lk__device_stream *stream, void (*function)(void *), void *argument);

typedef struct queueing_call {
    struct queueing_group *group;
    lk__comm_call          call;
    int32_t               *halted;
    struct queueing_call  *next;
} queueing_call;

typedef struct queueing_memory {
    lk__device             *device;
    void                   *memory;
    size_t                  bytes;
    struct queueing_memory *next;
} queueing_memory;

enum { QUEUEING_STREAMS = 4 };

typedef struct queueing_group {
    lk_comm               *outer, *inner;
    queueing_call         *calls; /* all that were queued: a graph may run them again */
    queueing_memory       *memory;
    lk__device_stream     *streams[QUEUEING_STREAMS]; /* of its calls */
    struct queueing_group *next;
} queueing_group;

/* Of this process, which is one rank. */
static struct {
    queue_call       queue;
    lk__comm_backend backend;
    queueing_group  *groups;
    bool             not_canonical, not_recorded; /* what it says of itself */
    int              queued, ran;                 /* calls */
} queueing;

/* The function of the emulation; NULL: this is no emulation. */
static inline queue_call find_queue_call(void)
{
    char        path[512];
    const char *folder = getenv("LOCKSTEP_MODULES");
    snprintf(path, sizeof path, "%s/liblockstep-cuda.so", folder ? folder : ".");
    void      *module = folder ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void      *found = module ? dlsym(module, "lk__emulated_queue_call") : NULL;
    queue_call function = NULL;
    memcpy(&function, &found, sizeof function);
    return function;
}

static queueing_group *queueing_find(const lk_comm *c)
{
    queueing_group *g = queueing.groups;
    while (g && g->outer != c) g = g->next;
    REQUIRE(g != NULL, "the group is not one of the transport");
    return g;
}

static lk__comm_abilities queueing_abilities(const lk_comm *c, const lk__device *device)
{
    lk__comm_abilities a = lk__comm_abilities_on_host(c, device);
    a.queues = !a.reaches;
    a.records = a.queues && !queueing.not_recorded;
    a.canonical = !queueing.not_canonical;
    return a;
}

static void queueing_run(void *argument)
{
    queueing_call *q = argument;
    lk_comm       *inner = q->group->inner;
    queueing.ran++;
    if (q->halted && *q->halted == LK__HALTED_BY_GROUP) return;
    lk_status status = lk__work_submit(inner, &q->call, NULL);
    if (status >= 0) return;
    if (q->halted) *q->halted = LK__HALTED_BY_GROUP;
    lk__backend_shm.raise(q->group->outer, status, lk_comm_error(inner), inner->cause);
}

static void queueing_note_stream(queueing_group *g, lk__device_stream *stream)
{
    for (int i = 0; i < QUEUEING_STREAMS; i++) {
        if (!g->streams[i]) g->streams[i] = stream;
        if (g->streams[i] == stream) return;
    }
    REQUIRE(false, "a group has too many streams");
}

/* The most streams with calls of one group, beside a program's own, on which nothing else of the group is in flight.
 * Streams have no common order, which calls of a group must have. */
static inline int queueing_side_streams(const lk__device_stream *own)
{
    int most = 0;
    for (const queueing_group *g = queueing.groups; g; g = g->next) {
        int count = 0;
        for (int i = 0; i < QUEUEING_STREAMS; i++) count += g->streams[i] && g->streams[i] != own;
        if (count > most) most = count;
    }
    return most;
}

static lk_status queueing_enqueue(lk_comm *c, const lk__comm_call *call, const lk__comm_stream *on)
{
    queueing_group *g = queueing_find(c);
    queueing_call  *q = calloc(1, sizeof *q);
    REQUIRE(q != NULL);
    *q = (queueing_call){.group = g, .call = *call, .halted = on->halted, .next = g->calls};
    g->calls = q;
    queueing_note_stream(g, on->stream);
    queueing.queued++;
    return queueing.queue(on->stream, queueing_run, q);
}

static lk_status queueing_allocate(lk_comm *c, lk__device *device, uint64_t secret, size_t bytes, void **memory)
{
    queueing_group  *g = queueing_find(c);
    queueing_memory *m = calloc(1, sizeof *m);
    (void)secret;
    REQUIRE(m != NULL);
    *m = (queueing_memory){device, device->backend->memory.alloc(device, LK_MEMORY_OTHER, bytes), bytes, g->memory};
    REQUIRE(m->memory != NULL);
    lk__account(c->context, LK_MEMORY_OTHER, -(ptrdiff_t)bytes); /* the caller's */
    g->memory = m;
    *memory = m->memory;
    return LK_OK;
}

static void queueing_release(lk_comm *c, void *memory)
{
    queueing_memory **at = &queueing_find(c)->memory;
    while (*at && (*at)->memory != memory) at = &(*at)->next;
    queueing_memory *m = *at;
    if (!m) {
        lk__backend_shm.release(c, memory);
        return;
    }
    *at = m->next;
    lk__account(c->context, LK_MEMORY_OTHER, (ptrdiff_t)m->bytes);
    m->device->backend->memory.free(m->device, LK_MEMORY_OTHER, m->memory, m->bytes);
    free(m);
}

static void queueing_free(lk_comm *c)
{
    queueing_group *g = queueing_find(c), **at = &queueing.groups;
    while (g->memory) queueing_release(c, g->memory->memory);
    for (queueing_call *q = g->calls, *next; q; q = next) {
        next = q->next;
        free(q);
    }
    lk_comm_free(g->inner);
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    free(g);
    lk__backend_shm.free(c);
}

/* Makes the group for queued calls of one that is there. */
static void queueing_adopt(lk_comm *c)
{
    queueing_group *g = calloc(1, sizeof *g);
    REQUIRE(g != NULL);
    *g = (queueing_group){.outer = c, .next = queueing.groups};
    c->backend = &lk__backend_shm;
    REQUIRE(lk_comm_split(c, 0, lk_comm_rank(c), &g->inner) == LK_OK, "%s", lk_context_error(c->context));
    c->backend = &queueing.backend;
    queueing.groups = g;
}

static lk_status queueing_split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk_status status = lk__backend_shm.split(parent, c, all, ranks);
    if (status >= 0) queueing_adopt(c);
    return status;
}

/* The group, over shared memory, becomes one of this transport. On all ranks. */
static inline void queueing_begin(lk_comm *c)
{
    queueing.queue = find_queue_call();
    REQUIRE(queueing.queue != NULL);
    queueing.backend = lk__backend_shm;
    queueing.backend.name = "queueing";
    queueing.backend.abilities = queueing_abilities;
    queueing.backend.enqueue = queueing_enqueue;
    queueing.backend.allocate_device = queueing_allocate;
    queueing.backend.release = queueing_release;
    queueing.backend.free = queueing_free;
    queueing.backend.split = queueing_split;
    queueing_adopt(c);
}

#endif
