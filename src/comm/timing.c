/* timing.c - the speed of collectives that are queued on the ranks' GPUs, and whether their results equal the results
 * of blocking calls. */
#include "base/config.h"
#include "comm/comm.h"

#include <lockstep/collective.h>
#include <stdlib.h>
#include <string.h>

enum { TIMED_GRAPHS = 7, LARGE_CALLS = 5, MEDIUM_CALLS = 20, SMALL_CALLS = 100 };

typedef struct timing {
    lk_comm           *comm;
    lk__device        *device;
    lk__device_stream *stream;
    lk_collective_time t;
    lk__comm_call      call;             /* its buffers are the device's */
    char              *send, *recv;      /* of t.bytes on the device; the same in place */
    size_t             send_at, recv_at; /* where the call's buffers begin in them */
} timing;

/* ---- buffers ---- */

static lk_status allocate(timing *x, char **memory)
{
    if (!x->t.symmetric) return lk__device_alloc(x->device, LK_MEMORY_OTHER, x->t.bytes, memory);
    void     *shared = NULL;
    lk_status status = lk__comm_alloc_device(x->comm, x->device, x->t.bytes, &shared);
    *memory = shared;
    return status;
}

static void release(timing *x, char *memory)
{
    if (x->t.symmetric && memory)
        lk_comm_release(x->comm, memory);
    else if (memory)
        lk__device_free(x->device, LK_MEMORY_OTHER, memory, x->t.bytes);
}

static lk_status allocate_both(timing *x)
{
    lk_status status = allocate(x, &x->send);
    if (status < 0) return status;
    if (x->t.in_place)
        x->recv = x->send;
    else
        status = allocate(x, &x->recv);
    if (status < 0) return status;
    x->call.send = x->send + x->send_at;
    x->call.recv = x->recv + x->recv_at;
    return LK_OK;
}

static void release_both(timing *x)
{
    if (x->recv != x->send) release(x, x->recv);
    release(x, x->send);
}

/* ---- results ---- */

/* Numbers that need rounding when they are added. */
static void fill_numbers(float *numbers, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) numbers[i] = (float)((i * 7919 + (size_t)rank * 104729) % 4093) / 61.0f;
}

static int64_t count_different(const timing *x, const char *made, const char *expected)
{
    const lk__collective_facts *facts = lk__call_facts(&x->call);
    size_t  parts = facts->receives_parts ? (size_t)lk_comm_size(x->comm) : 1, count = parts * x->call.count;
    int64_t wrong = 0;
    if (!lk__call_receives(&x->call, lk_comm_rank(x->comm))) return 0;
    for (size_t i = 0; i < count; i++)
        wrong += memcmp(made + x->recv_at + 4 * i, expected + x->recv_at + 4 * i, 4) != 0;
    return wrong;
}

/* One call on the device and one of the host, with the same input. buffers: two of t.bytes. */
static lk_status compare_with_host(timing *x, char *mine, char *made)
{
    const lk__device_memory *memory = &x->device->backend->memory;
    lk__comm_call            host = x->call;
    int64_t                  wrong;
    fill_numbers((float *)(void *)mine, x->t.bytes / 4, lk_comm_rank(x->comm));
    lk_status status = lk__device_write(x->device, x->stream, x->send, mine, x->t.bytes);
    if (status >= 0 && !x->t.in_place) status = memory->fill(x->device, x->stream, x->recv, 0, x->t.bytes);
    if (status >= 0)
        status = lk__comm_enqueue(x->comm, &x->call, &(lk__comm_stream){.device = x->device, .stream = x->stream});
    if (status < 0) return status;
    memset(made, 0, x->t.bytes);
    host.send = mine + x->send_at;
    host.recv = (x->t.in_place ? mine : made) + x->recv_at;
    if ((status = lk__comm_run(x->comm, &host, NULL)) < 0) return status;
    char *expected = x->t.in_place ? mine : made, *read = x->t.in_place ? made : mine;
    if ((status = lk__device_read(x->device, x->stream, read, x->recv, x->t.bytes)) < 0) return status;
    wrong = count_different(x, read, expected);
    if (lk_comm_status(x->comm) < 0) return lk__comm_report_failure(x->comm);
    return lk_comm_all_reduce(x->comm, &wrong, &x->t.wrong, 1, LK_I64, LK_SUM, NULL);
}

static lk_status check_result(timing *x)
{
    char     *buffers = malloc(2 * x->t.bytes);
    lk_status status = buffers ? compare_with_host(x, buffers, buffers + x->t.bytes)
                               : lk__fail(x->comm->context, LK_ENOMEM,
                                          "out of memory: cannot allocate two buffers of %zu bytes", x->t.bytes);
    free(buffers);
    return status;
}

/* ---- times ---- */

static lk_status record_calls(timing *x, lk__device_graph **graph)
{
    const lk__device_recording *recording = &x->device->backend->recording;
    lk__comm_stream             on = {.device = x->device, .stream = x->stream};
    lk_status                   status = recording->record_begin(x->device, x->stream);
    for (int i = 0; i < x->t.calls && status >= 0; i++) status = lk__comm_enqueue(x->comm, &x->call, &on);
    lk_status ended = recording->record_end(x->device, x->stream, graph);
    return status < 0 ? status : ended;
}

static lk_status run_graph(timing *x, lk__device_graph *graph, double *seconds)
{
    lk_status status = lk_comm_barrier(x->comm, NULL);
    double    begin = lk__now();
    if (status >= 0) status = x->device->backend->recording.graph_run(x->device, x->stream, graph);
    if (status >= 0) status = x->device->backend->memory.stream_wait(x->device, x->stream);
    *seconds = (lk__now() - begin) / x->t.calls;
    if (status < 0) return lk__comm_explain(x->comm, status);
    return lk_comm_status(x->comm) < 0 ? lk__comm_report_failure(x->comm) : LK_OK;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static lk_status measure(timing *x)
{
    lk__device_graph *graph = NULL;
    double            times[TIMED_GRAPHS], first;
    lk_status         status = x->device->backend->memory.fill(x->device, x->stream, x->send, 0, x->t.bytes);
    x->t.calls = x->t.bytes <= 65536 ? SMALL_CALLS : x->t.bytes <= (size_t)4 << 20 ? MEDIUM_CALLS : LARGE_CALLS;
    if (status >= 0) status = record_calls(x, &graph);
    if (status >= 0) status = run_graph(x, graph, &first);
    for (int i = 0; i < TIMED_GRAPHS && status >= 0; i++) status = run_graph(x, graph, &times[i]);
    if (graph) x->device->backend->recording.graph_free(x->device, graph);
    if (status < 0) return status;
    qsort(times, TIMED_GRAPHS, sizeof *times, compare_times);
    x->t.best = times[0];
    x->t.seconds = times[TIMED_GRAPHS / 2];
    return LK_OK;
}

/* ---- calls ---- */

/* The calls of ranks are compared by the host's call; this is what it does not have. */
static lk_status agree(timing *x)
{
    int32_t   own[4] = {x->t.symmetric, -x->t.symmetric, x->t.in_place, -x->t.in_place}, most[4];
    lk_status status = lk_comm_all_reduce(x->comm, own, most, 4, LK_I32, LK_MAX, NULL);
    if (status >= 0 && (most[0] != -most[1] || most[2] != -most[3]))
        return lk__fail(x->comm->context, LK_EINVAL, "the ranks are timing different collective calls");
    return status;
}

static lk_status describe_call(timing *x, const char *name)
{
    lk_context                 *context = x->comm->context;
    const lk__collective_facts *f = lk__collectives;
    int                         ranks = lk_comm_size(x->comm), rank = lk_comm_rank(x->comm);
    while (f < lk__collectives + LK__SEND && strcmp(f->name, name) != 0) f++;
    if (f == lk__collectives + LK__SEND || f->counts || f->senders == LK__RANKS_NONE)
        return lk__fail(context, LK_EINVAL, "'%.40s' is not a collective that can be timed", name);
    bool   parts = f->sends_parts || f->receives_parts;
    size_t count = x->t.bytes / 4 / (parts ? (size_t)ranks : 1), part = (size_t)rank * count * 4;
    if (count == 0)
        return lk__fail(context, LK_EINVAL, "a size of %zu bytes is too small: every rank needs at least one element",
                        x->t.bytes);
    x->call = (lk__comm_call){.kind = (lk__comm_kind)(f - lk__collectives), .type = LK_F32, .count = count};
    x->call.site = LK_HERE;
    x->send_at = x->t.in_place && f->in_place == LK__PLACE_IN_RECV ? part : 0;
    x->recv_at = x->t.in_place && f->in_place == LK__PLACE_IN_SEND ? part : 0;
    if (!lk__comm_abilities_for(x->comm, x->device).queues)
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "%s: the ranks communicate through host memory with backend %s, which cannot queue calls on the device %s",
            f->name, lk_comm_backend(x->comm), x->device->backend->name);
    return LK_OK;
}

lk_status lk_comm_time_queued(lk_comm *comm, const char *name, lk_collective_time *time)
{
    size_t size = time->size < sizeof *time ? time->size : sizeof *time;
    timing x = {.comm = comm, .device = lk__context_device(comm->context)};
    memcpy(&x.t, time, size);
    lk_status status = describe_call(&x, name);
    if (status >= 0) status = agree(&x);
    if (status >= 0) status = x.device->backend->memory.stream_create(x.device, &x.stream);
    if (status < 0) return status;
    if ((status = allocate_both(&x)) >= 0) status = check_result(&x);
    if (status >= 0) status = measure(&x);
    release_both(&x);
    x.device->backend->memory.stream_free(x.device, x.stream);
    if (status >= 0) memcpy(time, &x.t, size);
    return status;
}
