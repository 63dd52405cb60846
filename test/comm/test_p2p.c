/* test_p2p.c - the transport of GPUs that read and write each other's memory, on the emulated CUDA with a process for
 * each rank: every collective has the bits of shared memory, in symmetric memory and elsewhere; ranks that die or stop
 * are named, and what follows changes nothing; where ranks cannot reach each other's GPUs, the group is one of shared
 * memory, with a reason.
 *
 * With LK_TEST_GPU=1 on a real GPU, which the ranks share under MPS (test/device/peers.sh): the death of a rank then
 * ends the contexts of all. With LK_TEST_GPU=turns without MPS, as compute-sanitizer needs it: the ranks' kernels take
 * turns by time slices, so that a wait takes milliseconds, and less is tested.
 *
 * ctest: timeout 300, ranks 8 */
#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/flight_recorder.h"
#include "comm/transports.h"
#include "comm_ranks.h"

#include <lockstep/collective.h>

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { COUNT = 1021, MOST_RANKS = 8, MOST_BYTES = COUNT * 8 * MOST_RANKS, LARGE = 300007 };

static bool        on_gpu;       /* a real one, which all ranks share */
static const char *mps_of_turns; /* without MPS: a folder that looks as its daemon's does; NULL: not so */

/* ---- ranks as processes ---- */

typedef struct p2p_test {
    int                rank, size;
    lk_context        *context;
    lk_comm           *comm;
    lk__device        *device;
    lk__device_stream *stream;
    int32_t           *halted;
    char               log[1024]; /* all lines */
} p2p_test;

typedef struct p2p_job {
    int size;
    void (*function)(p2p_test *t);
    const char *backend, *name, *value; /* an environment variable of rank `odd` alone */
    const char *device;                 /* of rank `odd` alone */
    int         odd;
    int64_t     timeout_ms;
    bool        shares;    /* all ranks have one GPU */
    const char *recorders; /* a folder for the ranks' flight recorders */
} p2p_job;

/* What ranks tell each other beside the group. */
static struct {
    _Atomic int32_t pids[MOST_RANKS], told[MOST_RANKS];
} * common;

static void append_log(void *user, lk_log_level level, const char *text)
{
    p2p_test *t = user;
    size_t    used = strlen(t->log);
    (void)level;
    snprintf(t->log + used, sizeof t->log - used, "%s\n", text);
}

static int run_rank(const p2p_job *job, int rank)
{
    static p2p_test   t;
    lk_context_config context = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    config = LK_COMM_CONFIG_INIT;
    char              number[16], *word;
    t = (p2p_test){.rank = rank, .size = job->size};
    if (job->recorders) {
        char path[128];
        snprintf(path, sizeof path, "%s/%d", job->recorders, rank);
        setenv("LOCKSTEP_FLIGHT_RECORDER", path, 1);
    }
    snprintf(number, sizeof number, "%d", job->shares ? 0 : rank);
    setenv("LOCAL_RANK", number, 1);
    if (rank == job->odd && job->name) setenv(job->name, job->value, 1);
    context.threads = 1;
    context.log = append_log;
    context.log_user = &t;
    if (rank == job->odd && job->device) context.device = job->device;
    if (mps_of_turns) setenv("CUDA_MPS_PIPE_DIRECTORY", mps_of_turns, 1);
    REQUIRE(lk_context_create(&context, &t.context) == LK_OK, "%s", lk_context_error(NULL));
    if (mps_of_turns) unsetenv("CUDA_MPS_PIPE_DIRECTORY"); /* of the driver, which would look for the daemon */
    size_t before = lk_context_memory(t.context, LK_MEMORY_OTHER);
    config.rank = rank;
    config.world = job->size;
    config.backend = job->backend;
    config.join_ms = 60000;
    config.timeout_ms = job->timeout_ms ? job->timeout_ms : 120000;
    REQUIRE(lk_comm_create(t.context, &config, &t.comm) == LK_OK, "%s", lk_context_error(t.context));
    t.device = lk__context_device(t.context);
    REQUIRE(t.device->backend->memory.stream_create(t.device, &t.stream) == LK_OK);
    REQUIRE(lk__device_alloc(t.device, LK_MEMORY_OTHER, 64, &word) == LK_OK);
    t.halted = (int32_t *)word;
    job->function(&t);
    t.device->backend->memory.stream_free(t.device, t.stream);
    lk__device_free(t.device, LK_MEMORY_OTHER, t.halted, 64);
    lk_comm_free(t.comm);
    CHECK(lk_context_memory(t.context, LK_MEMORY_OTHER) == before, "%zu bytes are not freed",
          lk_context_memory(t.context, LK_MEMORY_OTHER) - before);
    lk_context_free(t.context);
    return check_failures != 0;
}

/* Starts the ranks and waits for them; `killed` ends by a signal. */
static void run_job(p2p_job job, int killed)
{
    static int jobs;
    char       name[64];
    pid_t      children[MOST_RANKS];
    check_ranks_announced(job.size);
    snprintf(name, sizeof name, "p2p-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", name, 1);
    memset(common, 0, sizeof *common);
    for (int i = 0; i < job.size; i++) {
        children[i] = fork();
        REQUIRE(children[i] >= 0);
        if (children[i] == 0) exit(run_rank(&job, i));
        atomic_store(&common->pids[i], (int32_t)children[i]);
    }
    for (int i = 0; i < job.size; i++) {
        int status;
        REQUIRE(waitpid(children[i], &status, 0) == children[i]);
        if (i == killed)
            CHECK(WIFSIGNALED(status), "rank %d: status %d", i, status);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d of %d: status %d", i, job.size, status);
    }
}

/* Waits, without the group, until another rank is here, too; number: above the last one. */
static void meet(const p2p_test *t, int other, int number)
{
    atomic_store(&common->told[t->rank], number);
    while (atomic_load(&common->told[other]) < number) usleep(1000);
}

static lk_status enqueue_in(p2p_test *t, lk_comm *comm, const lk__comm_call *call)
{
    return lk__comm_enqueue(comm, call, &(lk__comm_stream){t->device, t->stream, t->halted});
}

static bool is_peer(const p2p_test *t)
{
    lk__comm_abilities a = lk__comm_abilities_for(t->comm, t->device);
    return strcmp(lk_comm_backend(t->comm), "p2p") == 0 && a.queues && a.records && a.canonical && !a.reaches;
}

/* ---- all calls, against shared memory ---- */

typedef struct buffers {
    char *send, *recv; /* the device's */
    bool  in_place;
} buffers;

static void compare_call(p2p_test *t, lk_comm *comm, const lk__comm_call *as, const buffers *b)
{
    static char   mine[MOST_BYTES + LARGE * 8], made[MOST_BYTES + LARGE * 8], expected[MOST_BYTES + LARGE * 8];
    lk__comm_call call = *as;
    int           ranks = lk_comm_size(comm), rank = lk_comm_rank(comm);
    size_t        size = lk_dtype_size(call.type), part = call.count * size,
           all = (lk__collectives[call.kind].sends_parts || lk__collectives[call.kind].receives_parts ? (size_t)ranks
                                                                                                      : 1) *
                 part;
    lk__collective_place place = lk__collectives[call.kind].in_place;
    size_t               send_at = b->in_place && place == LK__PLACE_IN_RECV ? (size_t)rank * part : 0;
    size_t               recv_at = b->in_place && place == LK__PLACE_IN_SEND ? (size_t)rank * part : 0;
    REQUIRE(all <= sizeof mine);
    fill(mine, 17 + (uint64_t)call.kind, rank, all / size, call.type, call.reduce);
    memset(made, 0, all);
    memcpy(expected, b->in_place ? mine : made, all);
    call.send = b->in_place ? expected + send_at : mine;
    call.recv = expected + recv_at;
    REQUIRE(lk__comm_run(comm, &call, NULL) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(t->device->backend->memory.copy_in(t->device, t->stream, b->send, mine, all) == LK_OK);
    REQUIRE(t->device->backend->memory.fill(t->device, t->stream, b->recv, 0, all) == LK_OK);
    char *result = b->in_place ? b->send : b->recv;
    call.send = b->send + send_at;
    call.recv = result + recv_at;
    REQUIRE(enqueue_in(t, comm, &call) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk__device_read(t->device, t->stream, made, result, all) == LK_OK, "%s", lk_context_error(t->context));
    bool gets = lk__call_receives(&call, rank);
    CHECK(!gets || memcmp(made, expected, all) == 0, "%s of %zu elements of %s, op %d, %s, %d ranks",
          lk__comm_kind_name(call.kind), call.count, lk_dtype_name(call.type), (int)call.reduce,
          b->in_place ? "in place" : "not in place", ranks);
}

static const lk__comm_kind kinds[] = {LK__ALL_REDUCE, LK__REDUCE_SCATTER, LK__ALL_GATHER, LK__BROADCAST,
                                      LK__ALL_TO_ALL, LK__REDUCE,         LK__GATHER,     LK__SCATTER};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void compare_counts(p2p_test *t, lk_comm *comm, lk__comm_kind kind, lk_dtype type, lk_reduce_op op,
                           const buffers *b)
{
    static const size_t counts[] = {1, 3, COUNT};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        lk__comm_call call = {.kind = kind,
                              .type = type,
                              .reduce = op,
                              .count = counts[i],
                              .root = lk__collective_is_rooted(&lk__collectives[kind]) ? lk_comm_size(comm) - 1 : 0,
                              .site = LK_HERE};
        compare_call(t, comm, &call, b);
    }
}

static void *allocate(p2p_test *t, size_t bytes)
{
    void *memory;
    REQUIRE(lk__comm_alloc_device(t->comm, t->device, bytes, &memory) == LK_OK, "%s", lk_context_error(t->context));
    return memory;
}

/* Every kind and type; every operation for one kind that reduces; a large one of each form. */
static void compare_calls(p2p_test *t, lk_comm *comm, buffers b)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        b.in_place = in_place;
        for (int k = 0; k < KINDS; k++)
            for (int type = 0; type < LK_DTYPE_COUNT; type++)
                compare_counts(t, comm, kinds[k], (lk_dtype)type, LK_SUM, &b);
        for (int op = LK_SUM; op <= LK_PROD; op++)
            for (int type = 0; type < LK_DTYPE_COUNT; type++)
                compare_counts(t, comm, LK__ALL_REDUCE, (lk_dtype)type, (lk_reduce_op)op, &b);
    }
}

static void compare_all(p2p_test *t)
{
    size_t  bytes = MOST_BYTES;
    buffers symmetric, own;
    REQUIRE(is_peer(t), "%s: %s", lk_comm_backend(t->comm), t->log);
    symmetric = (buffers){.send = allocate(t, bytes), .recv = allocate(t, bytes)};
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, bytes, &own.send) == LK_OK);
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, bytes, &own.recv) == LK_OK);
    CHECK(lk__comm_peer(t->comm, symmetric.send, t->rank) == symmetric.send);
    compare_calls(t, t->comm, symmetric);
    compare_calls(t, t->comm, own);
    lk__device_free(t->device, LK_MEMORY_OTHER, own.send, bytes);
    lk__device_free(t->device, LK_MEMORY_OTHER, own.recv, bytes);
    lk_comm_release(t->comm, symmetric.send);
    lk_comm_release(t->comm, symmetric.recv);
}

static void calls_have_the_bits_of_shared_memory(void)
{
    for (int ranks = 2; ranks <= (on_gpu ? 4 : MOST_RANKS); ranks += ranks < 3 ? 1 : ranks == 3 ? 2 : 3)
        run_job((p2p_job){.size = ranks, .function = compare_all, .odd = -1}, -1);
}

/* Several pieces through scratch memory, and two passes. */
static void compare_large(p2p_test *t)
{
    static const lk__comm_kind large[] = {LK__ALL_REDUCE, LK__REDUCE_SCATTER, LK__ALL_GATHER, LK__BROADCAST};
    size_t                     bytes = (size_t)LARGE * 8;
    buffers                    symmetric, own;
    REQUIRE(is_peer(t), "%s", t->log);
    symmetric = (buffers){.send = allocate(t, bytes), .recv = allocate(t, bytes)};
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, bytes, &own.send) == LK_OK);
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, bytes, &own.recv) == LK_OK);
    own.in_place = false;
    for (size_t k = 0; k < sizeof large / sizeof *large; k++) {
        bool          parts = large[k] == LK__REDUCE_SCATTER || large[k] == LK__ALL_GATHER;
        lk__comm_call call = {.kind = large[k], .type = LK_F64, .count = parts ? LARGE / (size_t)t->size : LARGE};
        call.site = LK_HERE;
        compare_call(t, t->comm, &call, &symmetric);
        compare_call(t, t->comm, &call, &own);
    }
    lk__device_free(t->device, LK_MEMORY_OTHER, own.send, bytes);
    lk__device_free(t->device, LK_MEMORY_OTHER, own.recv, bytes);
    /* The rest is released with the group. */
}
static void large_calls_go_in_pieces(void) { run_job((p2p_job){.size = 3, .function = compare_large, .odd = -1}, -1); }

/* Around a ring, and the other way with another count. */
static void send_around(p2p_test *t)
{
    float *buffer, numbers[COUNT];
    char  *memory;
    int    next = (t->rank + 1) % t->size, before = (t->rank + t->size - 1) % t->size;
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, 2 * sizeof numbers, &memory) == LK_OK);
    buffer = (float *)memory;
    for (int i = 0; i < COUNT; i++) numbers[i] = (float)(1000 * t->rank + i);
    REQUIRE(lk__device_write(t->device, t->stream, buffer, numbers, sizeof numbers) == LK_OK);
    lk__comm_call send = {.kind = LK__SEND, .type = LK_F32, .count = COUNT, .root = next, .send = buffer};
    lk__comm_call recv = {.kind = LK__RECV, .type = LK_F32, .count = COUNT, .root = before, .recv = buffer + COUNT};
    send.site = recv.site = LK_HERE;
    /* The first rank sends first, the others receive first. */
    REQUIRE(enqueue_in(t, t->comm, t->rank == 0 ? &send : &recv) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(enqueue_in(t, t->comm, t->rank == 0 ? &recv : &send) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk__device_read(t->device, t->stream, numbers, buffer + COUNT, sizeof numbers) == LK_OK);
    for (int i = 0; i < COUNT; i++) CHECK(numbers[i] == (float)(1000 * before + i), "%d", i);
    lk__device_free(t->device, LK_MEMORY_OTHER, buffer, 2 * sizeof numbers);
}
static void sends_are_received(void) { run_job((p2p_job){.size = 3, .function = send_around, .odd = -1}, -1); }

/* Groups of two or three ranks in the reverse order, used in turns with the whole. */
static void use_children(p2p_test *t)
{
    lk_comm *child;
    buffers  b = {.in_place = false};
    REQUIRE(lk_comm_split(t->comm, t->rank % 2, -t->rank, &child) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(strcmp(lk_comm_backend(child), "p2p") == 0 && lk__comm_abilities_for(child, t->device).queues);
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, MOST_BYTES, &b.send) == LK_OK);
    REQUIRE(lk__device_alloc(t->device, LK_MEMORY_OTHER, MOST_BYTES, &b.recv) == LK_OK);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < KINDS; k++) {
            compare_counts(t, child, kinds[k], LK_F32, LK_SUM, &b);
            compare_counts(t, t->comm, kinds[k], LK_BF16, LK_SUM, &b);
        }
    lk__device_free(t->device, LK_MEMORY_OTHER, b.send, MOST_BYTES);
    lk__device_free(t->device, LK_MEMORY_OTHER, b.recv, MOST_BYTES);
    lk_comm_free(child);
}
static void groups_that_are_split_exchange_too(void)
{
    run_job((p2p_job){.size = 5, .function = use_children, .odd = -1}, -1);
}

/* Two calls in a graph, which runs three times: each takes the result of the one before. */
static void run_recorded(p2p_test *t)
{
    const lk__device_recording *recording = &t->device->backend->recording;
    lk__device_graph           *graph;
    int64_t                     numbers[COUNT], times = 1;
    char                       *memory = allocate(t, sizeof numbers);
    lk__comm_call call = {.kind = LK__ALL_REDUCE, .type = LK_I64, .count = COUNT, .send = memory, .recv = memory};
    call.site = LK_HERE;
    for (int i = 0; i < COUNT; i++) numbers[i] = i + t->rank;
    REQUIRE(lk__device_write(t->device, t->stream, memory, numbers, sizeof numbers) == LK_OK);
    REQUIRE(recording->record_begin(t->device, t->stream) == LK_OK);
    REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK && enqueue_in(t, t->comm, &call) == LK_OK);
    REQUIRE(recording->record_end(t->device, t->stream, &graph) == LK_OK, "%s", lk_context_error(t->context));
    for (int i = 0; i < 3; i++) REQUIRE(recording->graph_run(t->device, t->stream, graph) == LK_OK);
    REQUIRE(lk__device_read(t->device, t->stream, numbers, memory, sizeof numbers) == LK_OK);
    for (int i = 0; i < 5; i++) times *= t->size; /* the first adds different numbers */
    for (int i = 0; i < COUNT; i++)
        CHECK(numbers[i] == times * (t->size * (int64_t)i + t->size * (t->size - 1) / 2), "%d: %lld", i,
              (long long)numbers[i]);
    recording->graph_free(t->device, graph);
    lk_comm_release(t->comm, memory);
}
static void recorded_calls_run_with_every_run_of_the_graph(void)
{
    run_job((p2p_job){.size = 3, .function = run_recorded, .odd = -1}, -1);
}

/* Kernels wait for peers that come late by random times: the bits stay the same, those of shared memory. */
enum { DELAYED_RUNS = 50, DELAYED_CALLS = 4 };
static void delay_calls(p2p_test *t)
{
    static float  start[COUNT], made[COUNT], expected[COUNT];
    unsigned      seed = 17u * (unsigned)t->rank + (unsigned)t->size;
    char         *memory = allocate(t, 2 * sizeof start);
    lk__comm_call call = {.kind = LK__ALL_REDUCE, .type = LK_F32, .count = COUNT, .site = LK_HERE};
    fill(start, 17, t->rank, COUNT, LK_F32, LK_SUM);
    memcpy(expected, start, sizeof start);
    for (int i = 0; i < DELAYED_CALLS; i++)
        REQUIRE(lk_comm_all_reduce(t->comm, expected, expected, COUNT, LK_F32, LK_SUM, NULL) == LK_OK);
    for (int run = 0; run < DELAYED_RUNS; run++) {
        REQUIRE(lk__device_write(t->device, t->stream, memory, start, sizeof start) == LK_OK);
        for (int i = 0; i < DELAYED_CALLS; i++) {
            call.send = memory + (size_t)(i % 2) * sizeof start;
            call.recv = memory + (size_t)(1 - i % 2) * sizeof start;
            usleep((unsigned)rand_r(&seed) % 1500);
            REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK, "%s", lk_context_error(t->context));
        }
        REQUIRE(lk__device_read(t->device, t->stream, made, memory, sizeof made) == LK_OK);
        CHECK(memcmp(made, expected, sizeof made) == 0, "run %d of %d ranks", run, t->size);
    }
    lk_comm_release(t->comm, memory);
}
static void random_delays_keep_the_bits(void)
{
    static const int sizes[] = {2, 3, 5, 7};
    for (int i = 0; i < 4; i++) run_job((p2p_job){.size = sizes[i], .function = delay_calls, .odd = -1}, -1);
}

/* Every kind once; what a checking tool sees of the kernels. */
static void compare_kinds(p2p_test *t)
{
    buffers b = {.send = allocate(t, MOST_BYTES), .recv = allocate(t, MOST_BYTES)};
    for (int k = 0; k < KINDS; k++) compare_counts(t, t->comm, kinds[k], LK_F32, LK_SUM, &b);
    lk_comm_release(t->comm, b.send);
    lk_comm_release(t->comm, b.recv);
}
static void each_kind_has_the_bits_of_shared_memory(void)
{
    run_job((p2p_job){.size = 2, .function = compare_kinds, .odd = -1}, -1);
}

/* Times, and results compared by the library; calls that cannot be timed. */
static lk_status time_call(p2p_test *t, const char *name, lk_collective_time *time, int symmetric, int in_place)
{
    *time = (lk_collective_time)LK_COLLECTIVE_TIME_INIT;
    time->bytes = 4096;
    time->symmetric = symmetric;
    time->in_place = in_place;
    time->wrong = -1;
    return lk_comm_time_queued(t->comm, name, time);
}
static void time_calls(p2p_test *t)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"};
    lk_collective_time       time;
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 4; way++) {
            lk_status status = time_call(t, names[i], &time, way % 2, way / 2);
            CHECK(status == LK_OK, "%s: %s", names[i], lk_context_error(t->context));
            CHECK(time.wrong == 0 && time.calls == 100 && time.best > 0 && time.seconds >= time.best, "%s: %lld, %g",
                  names[i], (long long)time.wrong, time.seconds);
        }
    CHECK(time_call(t, "all_reduced", &time, 1, 1) == LK_EINVAL);
    CHECK(time_call(t, "all_reduce", &time, 1, t->rank == 1) == LK_EINVAL &&
              strstr(lk_context_error(t->context), "different collective calls"),
          "%s", lk_context_error(t->context));
    CHECK(time.wrong == -1, "a failure has written results");
    CHECK(lk_comm_status(t->comm) == LK_OK);
}
static void calls_are_timed(void) { run_job((p2p_job){.size = 3, .function = time_calls, .odd = -1}, -1); }

static void refuse_counts(p2p_test *t)
{
    size_t        counts[2] = {1, 1}, at[2] = {0, 1};
    char         *memory = allocate(t, 64);
    lk__comm_call call = {.kind = LK__ALL_TO_ALLV,
                          .type = LK_F32,
                          .send = memory,
                          .recv = memory + 32,
                          .send_counts = counts,
                          .send_displacements = at,
                          .recv_counts = counts,
                          .recv_displacements = at,
                          .site = LK_HERE};
    CHECK(enqueue_in(t, t->comm, &call) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(t->context), "all_to_allv cannot be queued on a GPU"), "%s",
          lk_context_error(t->context));
    CHECK(lk_comm_status(t->comm) == LK_OK);
    lk_comm_release(t->comm, memory);
}
static void calls_with_unknown_counts_are_refused(void)
{
    run_job((p2p_job){.size = 2, .function = refuse_counts, .odd = -1}, -1);
}

/* ---- ranks that do not come ---- */

/* The first call passes. Rank 1 then dies or stops, and the others make two more. */
static void begin_failing(p2p_test *t, char **memory, lk__comm_call *call)
{
    float one[4] = {1, 1, 1, 1};
    *memory = allocate(t, 64);
    *call = (lk__comm_call){.kind = LK__ALL_REDUCE, .type = LK_F32, .count = 4, .send = *memory, .recv = *memory + 32};
    call->site = LK_HERE;
    REQUIRE(lk__device_write(t->device, t->stream, *memory, one, sizeof one) == LK_OK);
    REQUIRE(enqueue_in(t, t->comm, call) == LK_OK);
    REQUIRE(t->device->backend->memory.stream_wait(t->device, t->stream) == LK_OK);
    call->send = *memory + 32;
    call->recv = *memory;
    call->site = LK_HERE;
}

/* What the calls should have written is as it was; the word says why. */
static void check_unchanged(p2p_test *t, const char *memory)
{
    float   made[4];
    int32_t word;
    REQUIRE(lk__device_read(t->device, t->stream, made, memory, sizeof made) == LK_OK);
    REQUIRE(lk__device_read(t->device, t->stream, &word, t->halted, sizeof word) == LK_OK);
    CHECK(made[0] == 1 && made[3] == 1, "%g, %g", (double)made[0], (double)made[3]);
    CHECK(word == LK__HALTED_BY_GROUP, "%d", (int)word);
}

static void die_between(p2p_test *t)
{
    char         *memory;
    lk__comm_call call;
    begin_failing(t, &memory, &call);
    if (t->rank == 1) raise(SIGKILL);
    sleep(3); /* the time for which a rank has been in its call is that of the call */
    REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK && enqueue_in(t, t->comm, &call) == LK_OK);
    lk_status   status = t->device->backend->memory.stream_wait(t->device, t->stream);
    bool        lost = status < 0;
    const char *text = lk_comm_error(t->comm);
    if (lost) {
        CHECK(on_gpu && lk__comm_explain(t->comm, status) == LK_EIO);
        text = lk_context_error(t->context);
    }
    CHECK(lk_comm_status(t->comm) == LK_EIO, "%d: %s", (int)lk_comm_status(t->comm), text);
    CHECK(strstr(text, "rank 1 of 3 (") && strstr(text, " died while rank ") && strstr(text, "in #2 all_reduce f32") &&
              strstr(text, "test_p2p.c:"),
          "%s", text);
    CHECK(t->comm->cause.kind == LK__CAUSE_DEAD && t->comm->cause.rank == 1);
    const char *own = strstr(text, "  in #2 all_reduce f32"), *since = own ? strstr(own, " for ") : NULL;
    CHECK(since && strtod(since + 5, NULL) < 2.9, "%s", text);
    if (!lost) check_unchanged(t, memory);
    CHECK(enqueue_in(t, t->comm, &call) < 0);
}
static void a_rank_that_dies_is_named(void) { run_job((p2p_job){.size = 3, .function = die_between, .odd = -1}, 1); }

/* The others' deadline passes; then rank 1 goes on, and writes nothing into their memory, nor its own. */
static void stop_between(p2p_test *t)
{
    char         *memory;
    lk__comm_call call;
    begin_failing(t, &memory, &call);
    if (t->rank == 1) raise(SIGSTOP);
    REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK || t->rank == 1);
    REQUIRE(t->device->backend->memory.stream_wait(t->device, t->stream) == LK_OK);
    const char *text = lk_comm_error(t->comm);
    CHECK(lk_comm_status(t->comm) == LK_ETIMEOUT, "%d: %s", (int)lk_comm_status(t->comm), text);
    CHECK(strstr(text, "rank 1 of 3 (") && strstr(text, " did not complete #2 all_reduce f32") &&
              strstr(text, " within ") && strstr(text, "stopped by a signal"),
          "%s", text);
    CHECK(t->comm->cause.kind == LK__CAUSE_STOPPED && t->comm->cause.rank == 1);
    if (t->rank != 1) check_unchanged(t, memory);
    atomic_store(&common->told[t->rank], 1);
    if (t->rank == 0) {
        while (!atomic_load(&common->told[2])) usleep(1000);
        kill((pid_t)atomic_load(&common->pids[1]), SIGCONT);
        while (!atomic_load(&common->told[1])) usleep(1000);
        check_unchanged(t, memory);
    }
}
static void a_rank_that_stops_is_named_and_writes_nothing_later(void)
{
    run_job((p2p_job){.size = 3, .function = stop_between, .odd = -1, .timeout_ms = 3000}, -1);
}

/* Memory that a stopped rank has mapped is left to the end of the process: three pieces and a group that was split are
 * not waited for, one after the other. */
static void free_beside_stopped(p2p_test *t)
{
    char         *memory;
    lk_comm      *child;
    lk__comm_call call;
    REQUIRE(lk_comm_split(t->comm, 0, t->rank, &child) == LK_OK, "%s", lk_context_error(t->context));
    begin_failing(t, &memory, &call);
    (void)allocate(t, 64);
    (void)allocate(t, 64);
    if (t->rank == 1) raise(SIGSTOP);
    REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK || t->rank == 1);
    REQUIRE(t->device->backend->memory.stream_wait(t->device, t->stream) == LK_OK);
    CHECK(lk_comm_status(t->comm) == LK_ETIMEOUT);
    if (t->rank != 1) meet(t, 2 - t->rank, 1);
    double begin = lk__now();
    lk_comm_free(child);
    lk_comm_free(t->comm);
    CHECK(lk__now() - begin < 4 || t->rank == 1, "%g s", lk__now() - begin);
    t->comm = NULL;
    if (t->rank != 1) meet(t, 2 - t->rank, 2);
    if (t->rank == 0) {
        kill((pid_t)atomic_load(&common->pids[1]), SIGCONT);
    }
}
static void memory_that_a_stopped_rank_has_is_not_waited_for(void)
{
    run_job((p2p_job){.size = 3, .function = free_beside_stopped, .odd = -1, .timeout_ms = 3000}, -1);
}

/* ---- contexts that are lost ---- */

/* As under MPS where another client dies. */
static void lose_context(void)
{
    char path[512];
    void (*lose)(void) = NULL;
    snprintf(path, sizeof path, "%s/liblockstep-cuda.so", getenv("LOCKSTEP_MODULES"));
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL),
         *found = module ? dlsym(module, "lk__emulated_lose_context") : NULL;
    REQUIRE(found != NULL, "%s", path);
    memcpy(&lose, &found, sizeof lose);
    lose();
}

static lk__comm_cause recorded_cause(const char *folder, int rank)
{
    char           path[128];
    lk__comm_cause cause = {0, -1};
    int64_t        pid;
    uint64_t       started;
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    CHECK(lk__flight_recorder_look(path, &cause, &pid, &started), "%s", path);
    unlink(path);
    return cause;
}

static void run_with_recorders(void (*function)(p2p_test *t), int killed, lk__comm_cause cause)
{
    char folder[] = "/tmp/lockstep-test-recorders-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    run_job((p2p_job){.size = 3, .function = function, .odd = -1, .recorders = folder}, killed);
    for (int i = 0; i < 3; i++) {
        lk__comm_cause found = recorded_cause(folder, i);
        CHECK(i == killed || (found.kind == cause.kind && found.rank == cause.rank), "rank %d records %d of rank %d", i,
              (int)found.kind, (int)found.rank);
    }
    rmdir(folder);
}

/* No queued call runs. Rank 2 asks for the reason of its failure, rank 0 only reports it; one of them is the first. */
static int  first_to_fail;
static void die_outside_calls(p2p_test *t)
{
    char         *memory;
    lk__comm_call call;
    begin_failing(t, &memory, &call);
    if (t->rank == 1) raise(SIGKILL);
    lose_context();
    lk_status status = enqueue_in(t, t->comm, &call);
    CHECK(status == LK_EIO && strstr(lk_context_error(t->context), "illegal memory access"), "%d: %s", (int)status,
          lk_context_error(t->context));
    meet(t, 2 - t->rank, 1);
    if (t->rank != first_to_fail) meet(t, 2 - t->rank, 2);
    if (t->rank == 2)
        CHECK(lk__comm_explain(t->comm, status) == LK_EIO && strstr(lk_context_error(t->context), "died"), "%s",
              lk_context_error(t->context));
    else
        lk_comm_abort(t->comm, lk_context_error(t->context));
    atomic_store(&common->told[t->rank], 2);
    const char *text = lk_comm_error(t->comm);
    CHECK(strstr(text, "rank 1 of 3 (") && strstr(text, " died while rank ") &&
              strstr(text, "was outside any operation, after #1 all_reduce f32"),
          "%s", text);
}
static void a_rank_whose_death_took_the_context_is_named(void)
{
    for (first_to_fail = 0; first_to_fail <= 2; first_to_fail += 2)
        run_with_recorders(die_outside_calls, 1, (lk__comm_cause){LK__CAUSE_DEAD, 1});
}

/* Rank 0's own GPU fails; nobody has died. */
static void lose_alone(p2p_test *t)
{
    char         *memory;
    lk__comm_call call;
    begin_failing(t, &memory, &call);
    if (t->rank == 0) {
        lose_context();
        CHECK(enqueue_in(t, t->comm, &call) == LK_EIO);
        lk_comm_abort(t->comm, lk_context_error(t->context));
    }
    while (lk_comm_status(t->comm) == LK_OK) usleep(1000);
    CHECK(lk_comm_status(t->comm) == LK_ECANCELED && strstr(lk_comm_error(t->comm), "rank 0 of 3 aborted the group"),
          "%s", lk_comm_error(t->comm));
}
static void a_rank_that_loses_its_own_gpu_is_named(void)
{
    run_with_recorders(lose_alone, -1, (lk__comm_cause){LK__CAUSE_OWN, 0});
}

/* Another rank's abort ends waits long before the deadline. */
static void abort_between(p2p_test *t)
{
    char         *memory;
    lk__comm_call call;
    begin_failing(t, &memory, &call);
    if (t->rank == 1) {
        lk_comm_abort(t->comm, "the test asked for it");
    } else {
        REQUIRE(enqueue_in(t, t->comm, &call) == LK_OK || lk_comm_status(t->comm) < 0);
        REQUIRE(t->device->backend->memory.stream_wait(t->device, t->stream) == LK_OK);
    }
    CHECK(lk_comm_status(t->comm) == LK_ECANCELED);
    CHECK(strstr(lk_comm_error(t->comm), "the test asked for it"), "%s", lk_comm_error(t->comm));
}
static void an_abort_ends_waits(void) { run_job((p2p_job){.size = 3, .function = abort_between, .odd = -1}, -1); }

/* ---- groups that exchange through the host's memory ---- */

static const char *expected_reason; /* NULL: no line */

static void expect_shared_memory(p2p_test *t)
{
    int sum = 1;
    CHECK(strcmp(lk_comm_backend(t->comm), "shm") == 0, "%s", lk_comm_backend(t->comm));
    CHECK(!lk__comm_abilities_for(t->comm, t->device).queues);
    lk_collective_time time;
    CHECK(time_call(t, "all_reduce", &time, 1, 1) == LK_EUNSUPPORTED);
    const char *line = strstr(t->log, "the GPUs exchange data through the host's memory, not directly: ");
    CHECK((line != NULL) == (t->rank == 0 && expected_reason), "rank %d: %s", t->rank, t->log);
    CHECK(!line || strstr(line, expected_reason), "%s", t->log);
    CHECK(lk_comm_all_reduce(t->comm, &sum, &sum, 1, LK_I32, LK_SUM, NULL) == LK_OK && sum == t->size);
}

static void fall_back(p2p_job job, const char *reason)
{
    expected_reason = reason;
    job.function = expect_shared_memory;
    run_job(job, -1);
}

static void dropped_writes_are_found(void)
{
    fall_back((p2p_job){.size = 3, .odd = 1, .name = "LK_CUDA_EMULATED_PEERS", .value = "drop"},
              "a test pattern that the GPU of rank 1 wrote to the memory of rank 0 did not arrive");
}
static void memory_that_cannot_be_shared_is_not(void)
{
    fall_back((p2p_job){.size = 3, .odd = 2, .name = "LK_CUDA_EMULATED_FAIL", .value = "export:1"}, "rank 2: ");
    fall_back((p2p_job){.size = 3, .odd = 1, .name = "LK_CUDA_EMULATED_FAIL", .value = "map:2"}, "rank 1: ");
}
static void a_rank_without_a_gpu_keeps_all_on_the_host(void)
{
    fall_back((p2p_job){.size = 3, .odd = 2, .device = "cpu"}, "rank 2 has no GPU whose memory other ranks can map");
}
/* On the host's processor. */
static void without_gpus_it_is_shared_memory(void)
{
    fall_back((p2p_job){.size = 2, .odd = -1, .backend = "p2p"}, "rank 0 has no GPU whose memory other ranks can map");
}
static void it_can_be_turned_off(void) { fall_back((p2p_job){.size = 2, .odd = -1, .backend = "shm"}, NULL); }

/* Ranks that share a GPU take turns on it without MPS: one that waits would keep the other one from running. */
static void expect_peers(p2p_test *t) { CHECK(is_peer(t), "%s: %s", lk_comm_backend(t->comm), t->log); }
static void ranks_that_share_a_gpu_need_mps(void)
{
    char folder[] = "/tmp/lockstep-test-mps-XXXXXX", path[64];
    REQUIRE(mkdtemp(folder) != NULL);
    setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
    fall_back((p2p_job){.size = 2, .odd = -1, .shares = true}, NULL);
    snprintf(path, sizeof path, "%s/control", folder);
    REQUIRE(mkfifo(path, 0600) == 0);
    run_job((p2p_job){.size = 2, .odd = -1, .shares = true, .function = expect_peers}, -1);
    /* The ranks' environments differ. */
    fall_back((p2p_job){.size = 3, .odd = 1, .shares = true, .name = "CUDA_MPS_PIPE_DIRECTORY", .value = "/nowhere"},
              "rank 1: kernels of ranks that share a GPU take turns");
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
    fall_back((p2p_job){.size = 3, .odd = 1, .shares = true, .name = "CUDA_MPS_PIPE_DIRECTORY", .value = folder}, NULL);
    unlink(path);
    rmdir(folder);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

/* Without MPS. The ranks think that it runs, since they would not exchange directly otherwise. */
static int check_in_turns(void)
{
    static char folder[] = "/tmp/lockstep-test-mps-XXXXXX";
    char        path[64];
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/control", folder);
    REQUIRE(mkfifo(path, 0600) == 0);
    mps_of_turns = folder;
    RUN(each_kind_has_the_bits_of_shared_memory);
    RUN(large_calls_go_in_pieces);
    RUN(sends_are_received);
    RUN(recorded_calls_run_with_every_run_of_the_graph);
    unlink(path);
    rmdir(folder);
    return check_result();
}

static bool is_emulated(void)
{
    const char *folder = getenv("LOCKSTEP_MODULES"), *device = getenv("LOCKSTEP_DEVICE");
    return folder && strstr(folder, "cuda_emulated") && device && strcmp(device, "cuda") == 0;
}

int main(void)
{
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(common != MAP_FAILED);
    const char *gpu = getenv("LK_TEST_GPU");
    on_gpu = gpu != NULL;
    if (gpu && strcmp(gpu, "turns") == 0) return check_in_turns();
    if (!is_emulated() && !on_gpu) {
        setenv("LOCKSTEP_DEVICE", "cpu", 1);
        RUN(without_gpus_it_is_shared_memory);
        return check_result();
    }
    if (!on_gpu) setenv("LK_CUDA_EMULATED_GPUS", "8", 1);
    RUN(calls_have_the_bits_of_shared_memory);
    RUN(large_calls_go_in_pieces);
    RUN(sends_are_received);
    RUN(groups_that_are_split_exchange_too);
    RUN(recorded_calls_run_with_every_run_of_the_graph);
    RUN(random_delays_keep_the_bits);
    RUN(calls_are_timed);
    RUN(calls_with_unknown_counts_are_refused);
    RUN(a_rank_that_stops_is_named_and_writes_nothing_later);
    RUN(an_abort_ends_waits);
    RUN(memory_that_a_stopped_rank_has_is_not_waited_for);
    RUN(a_rank_that_dies_is_named);
    if (on_gpu) return check_result();
    RUN(a_rank_whose_death_took_the_context_is_named);
    RUN(a_rank_that_loses_its_own_gpu_is_named);
    RUN(dropped_writes_are_found);
    RUN(memory_that_cannot_be_shared_is_not);
    RUN(a_rank_without_a_gpu_keeps_all_on_the_host);
    RUN(it_can_be_turned_off);
    RUN(ranks_that_share_a_gpu_need_mps);
    return check_result();
}
