/* test_device.c - what every device does with its memory: the same results as plain loops over host memory; and that
 * the memory of the device `guarded` is a fault for everyone else.
 *
 * ctest: label threaded */
#include "base/hash.h"
#include "base/isa.h"
#include "device/device.h"
#include "device/peak.h"
#include "run/program.h"
#include "support.h"

#include <lockstep/device.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static lk_context *open_on(const char *name, lk__device **device)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 2;
    config.device = name;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", name);
    CHECK(strcmp(lk_context_device(context), name) == 0);
    *device = lk__context_device(context);
    return context;
}

static void each_device(void (*check)(lk_context *context, lk__device *device))
{
    const char *name;
    for (size_t i = 0; (name = lk_device_name(i)); i++) {
        lk__device *device;
        lk_context *context = open_on(name, &device);
        check(context, device);
        lk_context_free(context);
    }
}

static void devices_are_chosen_by_name(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    const char       *before = getenv("LOCKSTEP_DEVICE");
    char              kept[64];
    snprintf(kept, sizeof kept, "%s", before ? before : "");
    config.threads = 1;
    lk_device listed = LK_DEVICE_INIT;
    CHECK(lk_device_at(0, &listed) == LK_OK && strcmp(listed.name, "cpu") == 0 && listed.on_host && !listed.numbered &&
          lk_device_at(99, &listed) == LK_END);
    CHECK(lk_device_name(0) && strcmp(lk_device_name(0), "cpu") == 0 && lk_device_text(1) && !lk_device_name(99));
    unsetenv("LOCKSTEP_DEVICE");
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    CHECK(strcmp(lk_context_device(context), "cpu") == 0);
    lk_context_free(context);
    setenv("LOCKSTEP_DEVICE", "guarded", 1);
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    CHECK(strcmp(lk_context_device(context), "guarded") == 0);
    lk_context_free(context);
    config.device = "cpu"; /* the config is stronger */
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    CHECK(strcmp(lk_context_device(context), "cpu") == 0);
    lk_context_free(context);
    config.device = "none";
    CHECK(lk_context_create(&config, &context) == LK_EUNSUPPORTED && !context);
    if (before)
        setenv("LOCKSTEP_DEVICE", kept, 1);
    else
        unsetenv("LOCKSTEP_DEVICE");
}

/* ---- memory ---- */

enum { BYTES = 100003 };

static void check_copies(lk_context *c, lk__device *d)
{
    static unsigned char in[BYTES], out[BYTES];
    char                *a, *b;
    size_t               before = lk_context_memory(c, LK_MEMORY_WORKSPACE);
    uint64_t             calls = lk_context_allocations(c);
    for (int i = 0; i < BYTES; i++) in[i] = (unsigned char)(i * 7 + i / 251);
    REQUIRE(lk__device_alloc(d, LK_MEMORY_WORKSPACE, BYTES, &a) == LK_OK && a && (uintptr_t)a % LK__ALIGN == 0);
    REQUIRE(lk__device_alloc(d, LK_MEMORY_WORKSPACE, 1, &b) == LK_OK && b);
    CHECK(lk_context_memory(c, LK_MEMORY_WORKSPACE) == before + BYTES + 1 && lk_context_allocations(c) == calls + 2);
    lk__device_free(d, LK_MEMORY_WORKSPACE, b, 1);
    REQUIRE(lk__device_alloc(d, LK_MEMORY_WORKSPACE, BYTES, &b) == LK_OK);
    int zero = 1;
    REQUIRE(lk__device_read(d, NULL, out, a, BYTES) == LK_OK);
    for (int i = 0; i < BYTES; i++) zero &= out[i] == 0;
    CHECK(zero, "%s: new memory is not zero", d->backend->name);
    REQUIRE(lk__device_write(d, NULL, a, in, BYTES) == LK_OK &&
            d->backend->memory.copy(d, NULL, b, a + 3, BYTES - 3) == LK_OK &&
            d->backend->memory.fill(d, NULL, b + BYTES - 3, 0x5a, 3) == LK_OK &&
            lk__device_read(d, NULL, out, b, BYTES) == LK_OK);
    CHECK(memcmp(out, in + 3, BYTES - 3) == 0 && out[BYTES - 3] == 0x5a && out[BYTES - 1] == 0x5a, "%s",
          d->backend->name);
    lk__device_free(d, LK_MEMORY_WORKSPACE, a, BYTES);
    REQUIRE(lk__device_alloc(d, LK_MEMORY_WORKSPACE, BYTES, &a) == LK_OK &&
            lk__device_read(d, NULL, out, a, BYTES) == LK_OK);
    for (int i = 0; i < BYTES; i++) zero &= out[i] == 0;
    CHECK(zero, "%s: reused memory is not zero", d->backend->name);
    lk__device_free(d, LK_MEMORY_WORKSPACE, a, BYTES);
    lk__device_free(d, LK_MEMORY_WORKSPACE, b, BYTES);
    CHECK(lk_context_memory(c, LK_MEMORY_WORKSPACE) == before);
    REQUIRE(lk__device_alloc(d, LK_MEMORY_WORKSPACE, 0, &a) == LK_OK && !a);
    CHECK(lk__device_alloc(d, LK_MEMORY_WORKSPACE, SIZE_MAX / 4, &a) == LK_ENOMEM &&
              strstr(lk_context_error(c), "workspace"),
          "%s", lk_context_error(c));
    void *host = d->backend->memory.alloc_host(d, LK_MEMORY_WORKSPACE, 77);
    REQUIRE(host);
    memset(host, 1, 77);
    d->backend->memory.free_host(d, LK_MEMORY_WORKSPACE, host, 77);
}

static void memory_is_zero_at_first_and_copies_arrive(void) { each_device(check_copies); }

/* Every byte of a region can be written without changing another one; sizes of 0, 1 and one past an alignment. */
static void check_parts(lk_context *c, lk__device *d)
{
    enum { PARTS = 5 };
    static const size_t sizes[PARTS] = {1, 0, 65537, 256, 4097};
    char               *memory[PARTS], *block;
    unsigned char       read[65537];
    lk__device_part     parts[PARTS];
    size_t   before[2] = {lk_context_memory(c, LK_MEMORY_GRADIENTS), lk_context_memory(c, LK_MEMORY_BUFFERS)};
    size_t   other = lk_context_memory(c, LK_MEMORY_OTHER);
    uint64_t calls = lk_context_allocations(c);
    for (int i = 0; i < PARTS; i++)
        parts[i] = (lk__device_part){i % 2 ? LK_MEMORY_BUFFERS : LK_MEMORY_GRADIENTS, sizes[i], &memory[i]};
    REQUIRE(lk__device_alloc_parts(d, parts, PARTS, &block) == LK_OK);
    CHECK(!memory[1] && (block != NULL) == d->backend->memory.one_block);
    CHECK(lk_context_allocations(c) == calls + (d->backend->memory.one_block ? 1 : PARTS - 1));
    CHECK(lk_context_memory(c, LK_MEMORY_GRADIENTS) == before[0] + 1 + 65537 + 4097 &&
          lk_context_memory(c, LK_MEMORY_BUFFERS) == before[1] + 256 && lk_context_memory(c, LK_MEMORY_OTHER) == other);
    for (int round = 0; round < 2; round++) /* zeros at first, then each one's own byte */
        for (int i = 0; i < PARTS; i++) {
            if (sizes[i] == 0) continue;
            CHECK((uintptr_t)memory[i] % LK__ALIGN == 0);
            REQUIRE(lk__device_read(d, NULL, read, memory[i], sizes[i]) == LK_OK);
            for (size_t k = 0; k < sizes[i]; k++)
                REQUIRE(read[k] == (round ? i + 1 : 0), "part %d, byte %zu is %d", i, k, read[k]);
            REQUIRE(round || d->backend->memory.fill(d, NULL, memory[i], i + 1, sizes[i]) == LK_OK);
        }
    lk__device_free_parts(d, parts, PARTS, block);
    CHECK(!memory[0] && lk_context_memory(c, LK_MEMORY_GRADIENTS) == before[0] &&
          lk_context_memory(c, LK_MEMORY_BUFFERS) == before[1] && lk_context_memory(c, LK_MEMORY_OTHER) == other);
}
static void regions_that_are_allocated_together_are_apart(void) { each_device(check_parts); }

static void check_streams(lk_context *c, lk__device *d)
{
    const lk__device_backend *b = d->backend;
    lk__device_stream        *first, *second;
    lk__device_event         *event;
    char                     *memory;
    int                       number = 41;
    REQUIRE(b->memory.stream_create(d, &first) == LK_OK && b->memory.stream_create(d, &second) == LK_OK &&
            b->memory.event_create(d, &event) == LK_OK &&
            lk__device_alloc(d, LK_MEMORY_OTHER, sizeof number, &memory) == LK_OK);
    (void)c;
    CHECK(b->memory.copy_in(d, first, memory, &number, sizeof number) == LK_OK &&
          b->memory.event_record(d, event, first) == LK_OK && b->memory.event_wait(d, event, second) == LK_OK &&
          b->memory.fill(d, second, memory, 1, 1) == LK_OK &&
          b->memory.copy_out(d, second, &number, memory, sizeof number) == LK_OK &&
          b->memory.stream_wait(d, second) == LK_OK);
    CHECK(number == 1, "%d", number);
    lk__device_free(d, LK_MEMORY_OTHER, memory, sizeof number);
    b->memory.event_free(d, event);
    b->memory.stream_free(d, second);
    b->memory.stream_free(d, first);
}

static void a_stream_waits_for_the_event_of_another(void) { each_device(check_streams); }

/* ---- sums, hashes, checks ---- */

static void check_sums(lk_context *c, lk__device *d)
{
    enum { N = 5, COUNT = 40001 };
    static float host[N][COUNT], sum[COUNT];
    char        *arrays[N];
    (void)c;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < COUNT; k++) host[i][k] = (float)(2 * number((uint64_t)i, (uint64_t)k) - 1);
        REQUIRE(lk__device_alloc(d, LK_MEMORY_OTHER, sizeof host[i], &arrays[i]) == LK_OK &&
                lk__device_write(d, NULL, arrays[i], host[i], sizeof host[i]) == LK_OK);
    }
    REQUIRE(d->backend->kernels.add(d, NULL, arrays[0], (const void *const *)arrays, N, COUNT, LK_F32) == LK_OK);
    REQUIRE(lk__device_read(d, NULL, sum, arrays[0], sizeof sum) == LK_OK);
    int wrong = 0;
    for (int k = 0; k < COUNT; k++)
        wrong += sum[k] != ((host[0][k] + host[1][k]) + (host[2][k] + host[3][k])) + host[4][k];
    CHECK(wrong == 0, "%s: %d sums", d->backend->name, wrong);
    uint64_t hash;
    REQUIRE(d->backend->kernels.hash(d, arrays[1], sizeof host[1], 9, &hash) == LK_OK);
    CHECK(hash == lk__hash64(host[1], sizeof host[1], 9));
    static const double bad[] = {1, INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 4; k++) {
        float  narrow = (float)bad[k];
        double wide[] = {3, bad[k], 4};
        bool   finite;
        REQUIRE(lk__device_write(d, NULL, arrays[2] + 4 * (COUNT - 1), &narrow, 4) == LK_OK &&
                d->backend->kernels.finite(d, arrays[2], COUNT, LK_F32, &finite) == LK_OK);
        CHECK(finite == (k == 0), "%s: %g in f32", d->backend->name, bad[k]);
        REQUIRE(lk__device_write(d, NULL, arrays[3], wide, sizeof wide) == LK_OK &&
                d->backend->kernels.finite(d, arrays[3], 3, LK_F64, &finite) == LK_OK);
        CHECK(finite == (k == 0), "%s: %g in f64", d->backend->name, bad[k]);
    }
    for (int i = 0; i < N; i++) lk__device_free(d, LK_MEMORY_OTHER, arrays[i], sizeof host[i]);
}

static void sums_hashes_and_checks_are_those_of_plain_loops(void) { each_device(check_sums); }

/* Measured once for each type, from then on the same; the host is not measured here. */
static void check_speed(lk_context *context, lk__device *device)
{
    static const lk_dtype types[] = {LK_F32, LK_F64, LK_BF16};
    lk_device_speed       first, again;
    for (int i = 0; i < 3; i++) {
        lk_status status = lk_device_measure(context, types[i], &first);
        if (!device->backend->kernels.measure) {
            CHECK(status == LK_EUNSUPPORTED && first.flops == 0, "%s", device->backend->name);
            continue;
        }
        REQUIRE(status == LK_OK, "%s", lk_context_error(context));
        CHECK(first.flops > 0 && first.flops < 1e17 && first.memory > 0 && first.memory < 1e15 && first.latency > 0 &&
                  first.latency < 1,
              "%s: %g operations/s, %g bytes/s, %g s", lk_dtype_name(types[i]), first.flops, first.memory,
              first.latency);
        REQUIRE(lk_device_measure(context, types[i], &again) == LK_OK);
        CHECK(memcmp(&first, &again, sizeof first) == 0, "%s", lk_dtype_name(types[i]));
    }
    if (device->backend->kernels.measure) CHECK(lk_device_measure(context, LK_I32, &first) == LK_EINVAL);
}

static void speed_is_measured_once(void) { each_device(check_speed); }

/* For each instruction set that this machine has: the loop runs, and leaves numbers alone that the compiler keeps in
 * registers. */
static void the_peak_of_multiply_adds_is_measured(void)
{
    for (int i = 0; lk__isa_names[i]; i++) {
        double   operations, kept[16];
        lk__tile loop = lk__peak_loop(lk__isa_names[i], &operations);
        if (!lk__isa_available(lk__isa_names[i])) continue;
        REQUIRE(loop && operations > 0, "%s", lk__isa_names[i]);
        for (int k = 0; k < 16; k++) kept[k] = 1.5 * (k + operations);
        loop(NULL, i, 0);
        for (int k = 0; k < 16; k++) CHECK(kept[k] == 1.5 * (k + operations), "%s", lk__isa_names[i]);
    }
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 3;
    config.device = "cpu";
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    CHECK(lk_context_peak(context, LK_F32) > 0 && lk_context_peak(context, LK_F64) > 0 &&
          lk_context_peak(context, LK_BF16) > 0);
    CHECK(lk_context_peak(context, LK_I32) == 0);
    lk_context_free(context);
}

/* ---- guarded ---- */

/* Whether a child that accesses the address ends by a segmentation fault. */
static bool faults(volatile char *address, bool writes)
{
    pid_t child = fork();
    int   status;
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not a sanitizer's report */
        if (writes)
            *address = 1;
        else
            (void)*address;
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void guarded_memory_faults_outside_the_device(void)
{
    lk__device *d;
    lk_context *c = open_on("guarded", &d);
    char       *memory, number = 5, host = 0;
    REQUIRE(lk__device_alloc(d, LK_MEMORY_OTHER, 4097, &memory) == LK_OK);
    for (int i = 0; i < 2; i++) { /* also after the device has used it */
        CHECK(faults(memory, false) && faults(memory, true) && faults(memory + 4096, false));
        REQUIRE(lk__device_write(d, NULL, memory + 4096, &number, 1) == LK_OK);
    }
    CHECK(!faults(&host, true));
    /* And the device takes no other memory for its own. */
    CHECK(d->backend->memory.copy_in(d, NULL, &host, &number, 1) == LK_EINVAL &&
          strstr(lk_context_error(c), "target of a copy"));
    CHECK(d->backend->memory.copy_out(d, NULL, &host, &number, 1) == LK_EINVAL &&
          d->backend->memory.copy(d, NULL, memory, &host, 1) == LK_EINVAL &&
          d->backend->memory.fill(d, NULL, &host, 0, 1) == LK_EINVAL && host == 0);
    uint64_t hash;
    bool     finite;
    CHECK(d->backend->kernels.hash(d, &host, 1, 0, &hash) == LK_EINVAL &&
          d->backend->kernels.finite(d, &host, 1, LK_F32, &finite) == LK_EINVAL);
    const void *in[] = {memory, &host};
    CHECK(d->backend->kernels.add(d, NULL, memory, in, 2, 1, LK_F32) == LK_EINVAL);
    lk__device_free(d, LK_MEMORY_OTHER, memory, 4097);
    lk_context_free(c);
}

/* ---- programs ---- */

typedef struct net {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    float       x[4 * 3];
    int32_t     y[4];
} net;

static void open_net(net *n, const char *device)
{
    lk__device         *opened;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    n->context = open_on(device, &opened);
    REQUIRE(lk_graph_create(n->context, LK_F32, &n->graph) == LK_OK);
    lk_tensor x = lk_input(n->graph, "x", LK_F32, 2, ((int64_t[]){4, 3})),
              y = lk_input(n->graph, "y", LK_I32, 1, ((int64_t[]){4}));
    lk_tensor out = lk_linear(lk_relu(lk_linear(x, "fc1", 5)), "fc2", 3);
    config.loss = lk_cross_entropy(out, y);
    config.outputs = &out;
    config.outputs_count = 1;
    config.optimizer = &sgd;
    REQUIRE(lk_plan_create(n->graph, &config, &n->plan) == LK_OK && lk_store_create(n->plan, 1, &n->store) == LK_OK &&
                lk_program_create(n->plan, n->store, NULL, &n->program) == LK_OK,
            "%s", lk_context_error(n->context));
    for (int i = 0; i < 12; i++) n->x[i] = (float)number(1, (uint64_t)i);
    for (int i = 0; i < 4; i++) n->y[i] = i % 3;
    REQUIRE(lk_program_bind(n->program, "x", n->x) == LK_OK && lk_program_bind(n->program, "y", n->y) == LK_OK);
    REQUIRE(lk_program_step(n->program, &(lk_step){.step = 1, .count = 4, .rate = 0.1}) == LK_OK);
}

static void close_net(net *n)
{
    lk_program_free(n->program);
    lk_store_free(n->store);
    lk_plan_free(n->plan);
    lk_graph_free(n->graph);
    lk_context_free(n->context);
}

static void pointers_into_a_device_are_null_off_the_cpu(void)
{
    for (int i = 0; i < 2; i++) {
        net      n;
        lk_state s;
        bool     host = i == 0;
        open_net(&n, host ? "cpu" : "guarded");
        REQUIRE(lk_program_run(n.program, LK_FORWARD) == LK_OK && lk_program_run(n.program, LK_BACKWARD) == LK_OK);
        REQUIRE(lk_store_find(n.store, "fc1.weight", &s));
        CHECK((s.data != NULL) == host && (s.moment[0] != NULL) == host && s.moments == 2);
        CHECK((lk_program_gradient(n.program, "fc1.weight") != NULL) == host);
        REQUIRE(lk_program_run(n.program, LK_EVALUATE) == LK_OK);
        CHECK((lk_program_output(n.program, 0) != NULL) == host);
        CHECK((lk_plan_memory(n.plan, LK_MEMORY_STAGING) == 0) == host);
        close_net(&n);
    }
}

/* The plans have the same instructions, and a step the same bits. */
static void guarded_computes_the_bits_of_the_cpu(void)
{
    net      n[2];
    uint64_t hash[2], plan[2];
    double   loss[2];
    for (int i = 0; i < 2; i++) {
        open_net(&n[i], i ? "guarded" : "cpu");
        for (int step = 1; step <= 5; step++) {
            n[i].x[0] = (float)step; /* the caller's array changes between steps without a new bind */
            REQUIRE(lk_program_train(n[i].program, &(lk_step){.step = step, .count = 4, .rate = 0.1}) == LK_OK);
        }
        lk_metrics m;
        lk_program_metrics(n[i].program, &m);
        hash[i] = lk_store_hash(n[i].store);
        loss[i] = m.loss;
        plan[i] = lk_plan_fingerprint(n[i].plan);
        close_net(&n[i]);
    }
    CHECK(hash[0] == hash[1] && loss[0] == loss[1] && plan[0] == plan[1], "%.17g, %.17g", loss[0], loss[1]);
}

/* A kernel that fails ends its section with its status: here it gets an operand that is not the device's. */
static void the_status_of_a_kernel_ends_its_section(void)
{
    static const lk_section sections[] = {LK_FORWARD, LK_BACKWARD, LK_UPDATE, LK_EVALUATE};
    static char             elsewhere[4096];
    for (int i = 0; i < 4; i++) {
        net n;
        open_net(&n, "guarded");
        const lk__run_list *list = sections[i] == LK_EVALUATE ? &n.program->evaluate : &n.program->slots[0].train;
        for (int k = 0; k < i && sections[i] != LK_EVALUATE; k++)
            REQUIRE(lk_program_run(n.program, sections[k]) == LK_OK);
        if (sections[i] == LK_UPDATE) REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
        if (sections[i] == LK_EVALUATE)
            REQUIRE(lk_program_run(n.program, LK_EVALUATE) == LK_OK); /* sets the operands */
        if (sections[i] == LK_FORWARD) REQUIRE(lk_program_run(n.program, LK_FORWARD) == LK_OK);
        size_t last = list->at.end[sections[i]] - 1;
        while (list->instructions[last].action != LK__DO_KERNEL) last--;
        list->instructions[last].call.out[0].data = elsewhere;
        CHECK(lk_program_run(n.program, sections[i]) == LK_EINVAL &&
                  strstr(lk_context_error(n.context), "output of a kernel"),
              "section %d: %s", sections[i], lk_context_error(n.context));
        close_net(&n);
    }
}

int main(void)
{
    RUN(devices_are_chosen_by_name);
    RUN(memory_is_zero_at_first_and_copies_arrive);
    RUN(regions_that_are_allocated_together_are_apart);
    RUN(a_stream_waits_for_the_event_of_another);
    RUN(sums_hashes_and_checks_are_those_of_plain_loops);
    RUN(speed_is_measured_once);
    RUN(the_peak_of_multiply_adds_is_measured);
    RUN(guarded_memory_faults_outside_the_device);
    RUN(pointers_into_a_device_are_null_off_the_cpu);
    RUN(guarded_computes_the_bits_of_the_cpu);
    RUN(the_status_of_a_kernel_ends_its_section);
    return check_result();
}
