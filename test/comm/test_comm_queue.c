/* test_comm_queue.c - what transports say of a device, and calls that are queued on its streams: on the emulated CUDA,
 * with a transport of the test (queueing.h). Elsewhere that they are refused.
 *
 * ctest: timeout 120, ranks 5 */
#include "comm_ranks.h"
#include "queueing.h"

enum { COUNT = 1021, MOST_RANKS = 5, MOST_BYTES = COUNT * 8 * MOST_RANKS };

static lk_context *open_context(void)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    return context;
}

static lk_comm *open_group(lk_context *context)
{
    lk_comm       *comm;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.backend = "shm";
    config.join_ms = 60000;
    config.timeout_ms = 120000;
    REQUIRE(lk_comm_create(context, &config, &comm) == LK_OK, "%s", lk_context_error(context));
    return comm;
}

/* ---- any device ---- */

static void transports_of_the_host_queue_nothing(void)
{
    lk_context     *context = open_context();
    lk__device     *device = lk__context_device(context);
    lk_comm        *comm = open_group(context);
    void           *memory;
    char            bytes[8] = {0};
    lk__comm_call   call = {.kind = LK__BROADCAST, .type = LK_U8, .count = 8, .send = bytes, .recv = bytes};
    lk__comm_stream on = {.device = device};
    call.site = LK_HERE;
    for (size_t i = 0; lk__transport_at(i); i++) {
        lk__comm_abilities a = lk__transport_at(i)->abilities(comm, device);
        CHECK(a.reaches == lk__device_is_host(device) && !a.queues && !a.records && a.canonical, "%s",
              lk__transport_at(i)->name);
    }
    CHECK(lk__comm_enqueue(comm, &call, &on) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(context), "broadcast: backend shm cannot queue calls on the device "), "%s",
          lk_context_error(context));
    CHECK(lk__comm_alloc_device(comm, device, 8, &memory) == LK_EUNSUPPORTED && !memory);
    CHECK(strstr(lk_context_error(context), "backend shm does not support symmetric memory on the device "), "%s",
          lk_context_error(context));
    lk_comm_free(comm);
    lk_context_free(context);
}

/* ---- the emulation ---- */

typedef struct queue_test {
    lk_context        *context;
    lk_comm           *comm;
    lk__device        *device;
    lk__device_stream *stream;
    char              *send, *recv; /* the device's, symmetric */
    int32_t           *halted;
} queue_test;

static queue_test begin(void)
{
    queue_test t = {.context = open_context()};
    void      *send, *recv;
    char      *word;
    t.comm = open_group(t.context);
    t.device = lk__context_device(t.context);
    queueing_begin(t.comm);
    REQUIRE(t.device->backend->memory.stream_create(t.device, &t.stream) == LK_OK);
    REQUIRE(lk__comm_alloc_device(t.comm, t.device, MOST_BYTES, &send) == LK_OK);
    REQUIRE(lk__comm_alloc_device(t.comm, t.device, MOST_BYTES, &recv) == LK_OK);
    REQUIRE(lk__device_alloc(t.device, LK_MEMORY_OTHER, 64, &word) == LK_OK);
    t.send = send;
    t.recv = recv;
    t.halted = (int32_t *)word;
    return t;
}

static int end(queue_test *t)
{
    lk__device_free(t->device, LK_MEMORY_OTHER, t->halted, 64);
    t->device->backend->memory.stream_free(t->device, t->stream);
    lk_comm_release(t->comm, t->send);
    lk_comm_release(t->comm, t->recv);
    lk_comm_free(t->comm);
    lk_context_free(t->context);
    return check_result();
}

static lk_status enqueue(queue_test *t, const lk__comm_call *call)
{
    return lk__comm_enqueue(t->comm, call, &(lk__comm_stream){t->device, t->stream, t->halted});
}

static const lk__comm_kind kinds[] = {LK__ALL_REDUCE, LK__REDUCE_SCATTER, LK__ALL_GATHER, LK__BROADCAST,
                                      LK__ALL_TO_ALL};

/* Between two copies of the stream, and compared with the blocking call. */
static void compare_call(queue_test *t, lk__comm_kind kind, lk_dtype type, size_t count)
{
    static char   mine[MOST_BYTES], made[MOST_BYTES], expected[MOST_BYTES];
    size_t        all = (size_t)lk_comm_size(t->comm) * count, size = lk_dtype_size(type);
    bool          in_place = kind == LK__BROADCAST;
    lk__comm_call call = {.kind = kind, .type = type, .reduce = LK_SUM, .count = count, .site = LK_HERE};
    fill(mine, 17 + (uint64_t)kind, lk_comm_rank(t->comm), all, type, LK_SUM);
    memset(made, 0, sizeof made);
    memcpy(expected, in_place ? mine : made, sizeof expected);
    call.send = in_place ? expected : mine;
    call.recv = expected;
    REQUIRE(lk__comm_run(t->comm, &call, NULL) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(t->device->backend->memory.copy_in(t->device, t->stream, t->send, mine, all * size) == LK_OK);
    REQUIRE(t->device->backend->memory.fill(t->device, t->stream, t->recv, 0, all * size) == LK_OK);
    call.send = t->send;
    call.recv = in_place ? t->send : t->recv;
    REQUIRE(enqueue(t, &call) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk__device_read(t->device, t->stream, made, call.recv, all * size) == LK_OK);
    CHECK(memcmp(made, expected, all * size) == 0, "%s of %zu elements of %s", lk__comm_kind_name(kind), count,
          lk_dtype_name(type));
}

static int compare_calls(int rank, void *user)
{
    static const size_t counts[] = {1, 3, 256, COUNT};
    queue_test          t = begin();
    (void)rank, (void)user;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int type = 0; type < LK_DTYPE_COUNT; type++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                compare_call(&t, kinds[k], (lk_dtype)type, counts[i]);
    return end(&t);
}

/* A recorded call runs with every run of its graph, and is not run when it is recorded. */
static int run_recorded(int rank, void *user)
{
    queue_test                  t = begin();
    const lk__device_recording *recording = &t.device->backend->recording;
    lk__device_graph           *graph;
    int64_t                     numbers[COUNT];
    int                         size = lk_comm_size(t.comm);
    lk__comm_call call = {.kind = LK__ALL_REDUCE, .type = LK_I64, .count = COUNT, .send = t.send, .recv = t.send};
    (void)user;
    call.site = LK_HERE;
    for (int i = 0; i < COUNT; i++) numbers[i] = i + rank;
    REQUIRE(lk__device_write(t.device, t.stream, t.send, numbers, sizeof numbers) == LK_OK);
    REQUIRE(recording->record_begin(t.device, t.stream) == LK_OK);
    REQUIRE(enqueue(&t, &call) == LK_OK && enqueue(&t, &call) == LK_OK);
    REQUIRE(recording->record_end(t.device, t.stream, &graph) == LK_OK);
    CHECK(queueing.queued == 2 && queueing.ran == 0);
    for (int i = 0; i < 3; i++) REQUIRE(recording->graph_run(t.device, t.stream, graph) == LK_OK);
    REQUIRE(lk__device_read(t.device, t.stream, numbers, t.send, sizeof numbers) == LK_OK);
    CHECK(queueing.queued == 2 && queueing.ran == 6);
    int64_t times = 1;
    for (int i = 0; i < 5; i++) times *= size; /* the first adds different numbers */
    for (int i = 0; i < COUNT; i++)
        CHECK(numbers[i] == times * (size * (int64_t)i + size * (size - 1) / 2), "%d: %lld", i, (long long)numbers[i]);
    recording->graph_free(t.device, graph);
    return end(&t);
}

static int refuse_invalid(int rank, void *user)
{
    queue_test    t = begin();
    lk__comm_call call = {.kind = LK__ALL_REDUCE, .type = LK_F32, .count = 4, .send = t.send, .site = LK_HERE};
    (void)rank, (void)user;
    CHECK(enqueue(&t, &call) == LK_EINVAL && strstr(lk_context_error(t.context), "all_reduce: a buffer is NULL"), "%s",
          lk_context_error(t.context));
    CHECK(queueing.queued == 0 && lk_comm_status(t.comm) == LK_OK);
    return end(&t);
}

/* The last rank fails instead of its second call: on the others that call fails, and the third changes nothing. */
static int fail_between(int rank, void *user)
{
    queue_test    t = begin();
    bool          last = rank == lk_comm_size(t.comm) - 1;
    float         one[4] = {1, 1, 1, 1}, made[4];
    int32_t       word;
    lk__comm_call call = {.kind = LK__ALL_REDUCE, .type = LK_F32, .count = 4, .send = t.send, .recv = t.recv};
    (void)user;
    call.site = LK_HERE;
    REQUIRE(lk__device_write(t.device, t.stream, t.send, one, sizeof one) == LK_OK);
    REQUIRE(enqueue(&t, &call) == LK_OK);
    REQUIRE(t.device->backend->memory.stream_wait(t.device, t.stream) == LK_OK);
    call.send = t.recv;
    call.recv = t.send;
    for (int i = 0; i < 2 && !last; i++) REQUIRE(enqueue(&t, &call) == LK_OK);
    (void)lk_comm_barrier(t.comm, NULL); /* behind it the first rank whose call fails may have failed the group */
    if (last) lk_comm_abort(queueing_find(t.comm)->inner, "the test asked for it");
    REQUIRE(lk__device_read(t.device, t.stream, made, t.send, sizeof made) == LK_OK);
    REQUIRE(lk__device_read(t.device, t.stream, &word, t.halted, sizeof word) == LK_OK);
    CHECK(made[0] == 1 && made[3] == 1, "%g, %g", (double)made[0], (double)made[3]);
    CHECK(word == (last ? 0 : LK__HALTED_BY_GROUP), "%d", (int)word);
    CHECK(last || (queueing.ran == 3 && lk_comm_status(t.comm) < 0));
    CHECK(last || strstr(lk_comm_error(t.comm), "the test asked for it"), "%s", lk_comm_error(t.comm));
    CHECK(last || enqueue(&t, &call) < 0);
    return end(&t);
}

static void spawn_all(int (*function)(int rank, void *user), int ranks)
{
    lk_spawn_result result;
    check_ranks_announced(ranks);
    CHECK(lk_spawn(ranks, function, NULL, &result) == LK_OK, "%d ranks: %s", ranks, result.text);
}

static void queued_calls_give_the_bits_of_blocking_ones(void)
{
    spawn_all(compare_calls, 2);
    spawn_all(compare_calls, 3);
    spawn_all(compare_calls, 5);
}
static void recorded_calls_run_with_every_run_of_the_graph(void) { spawn_all(run_recorded, 3); }
static void invalid_calls_are_refused_and_not_queued(void) { spawn_all(refuse_invalid, 2); }
static void a_failed_call_halts_those_behind_it(void) { spawn_all(fail_between, 3); }

int main(void)
{
    if (find_queue_call()) {
        RUN(queued_calls_give_the_bits_of_blocking_ones);
        RUN(recorded_calls_run_with_every_run_of_the_graph);
        RUN(invalid_calls_are_refused_and_not_queued);
        RUN(a_failed_call_halts_those_behind_it);
    }
    RUN_APART(transports_of_the_host_queue_nothing);
    return check_result();
}
