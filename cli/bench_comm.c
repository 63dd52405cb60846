/* bench_comm.c - `lockstep bench comm`: time and bandwidth of a collective, and what the memory of the same processes
 * allows. */
#define _GNU_SOURCE
#include "bench_comm.h"

#include "bench_device.h"
#include "clock.h"
#include "comm_limit.h"
#include "device.h"
#include "environment.h"
#include "json.h"
#include "times.h"

#include <lockstep/comm.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIZES = 32, MOST_TIMES = 2000 };

/* Of the ranks that this process starts, the one that failed first, in memory that all of them map: the others fail
 * with it, or for the same reason, and one message is enough. */
typedef struct failure {
    atomic_int taken;
    int        rank, code;
    char       text[1024];
} failure;

typedef struct bench {
    const options *given;
    const char    *device; /* without one, the processor: the host's memory is measured */
    size_t         sizes[SIZES];
    int            size_count;
    const char    *op;
    lk_collective  collective; /* of that name */
    bool           json;

    int         rank;
    lk_context *context;
    lk_comm    *comm;
    failure    *failure; /* NULL: a launcher started the ranks */
    size_t      bytes;   /* of the buffers that are measured now */
    double      times[MOST_TIMES];
} bench;

typedef struct result {
    size_t bytes;
    double seconds, best;
    double memcpy_rate; /* bytes per second, of all ranks together */
    double limit;       /* bytes of a buffer per second; NAN: unknown */
    bool   symmetric;
    int    calls;
} result;

/* "8,4K,1M": bytes, with K, M or G for powers of 1024. */
static bool parse_sizes(const char *text, bench *b)
{
    while (*text) {
        char              *end;
        unsigned long long n = strtoull(text, &end, 10);
        int                shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        if (shift) end++;
        if (end == text || *text == '-' || (*end && *end != ',') || n == 0 || n > (1ull << 40) >> shift ||
            b->size_count == SIZES)
            return false;
        b->sizes[b->size_count++] = (size_t)n << shift;
        text = *end ? end + 1 : end;
    }
    return b->size_count > 0;
}

static bool has_parts(const lk_collective *c) { return c->sends_parts || c->receives_parts; }

/* One collective on `bytes` of buffer: the received bytes of a gather, the sent bytes of a scatter. */
static lk_status run_collective(bench *b, char *buffer, char *second, size_t bytes)
{
    const lk_collective *c = &b->collective;
    size_t               count = bytes / 4, each = count / (size_t)lk_comm_size(b->comm);
    char                *part = buffer + (size_t)b->rank * each * 4;
    char                *send = c->receives_parts && !c->sends_parts ? part : buffer;
    char                *recv = second ? second : c->sends_parts ? part : buffer;
    return lk_comm_run(b->comm, b->op, send, recv, has_parts(c) ? each : count, LK_F32, LK_SUM, 0, NULL);
}

/* A rank's own memory with all ranks active at once. */
static lk_status measure_memcpy(bench *b, result *r)
{
    size_t each = r->bytes / (size_t)lk_comm_size(b->comm);
    char  *x = malloc(each + 4), *y = malloc(each + 4);
    if (!x || !y) {
        free(x);
        free(y);
        return LK_ENOMEM;
    }
    memset(x, 1, each + 4); /* not 0: pages that were never written share one zero page */
    memset(y, 1, each + 4);
    int       calls = each < 65536 ? 200 : each < 8 << 20 ? 20 : 7;
    lk_status status = lk_comm_barrier(b->comm, NULL);
    for (int i = 0; i < calls; i++) {
        double start = now();
        memcpy(x, y, each);
        __asm__ volatile("" : : "r"(x), "r"(y) : "memory");
        b->times[i] = now() - start;
    }
    r->memcpy_rate = (double)r->bytes / times_median(b->times, calls);
    free(x);
    free(y);
    return status;
}

static lk_status measure_limits(bench *b, result *r)
{
    double    seconds;
    lk_status status = measure_memcpy(b, r);
    if (status >= 0) status = comm_limit_measure(b->comm, &b->collective, r->bytes, &seconds);
    if (status >= 0) r->limit = (double)r->bytes / seconds;
    return status;
}

static lk_status measure_collective(bench *b, result *r)
{
    void     *buffer = NULL, *second = NULL;
    bool      two = comm_limit_needs_two(&b->collective);
    size_t    bytes = r->bytes + 64;
    lk_status status = LK_OK;
    if (r->symmetric) {
        status = lk_comm_alloc(b->comm, bytes, &buffer);
        if (status >= 0 && two) status = lk_comm_alloc(b->comm, bytes, &second);
    } else {
        buffer = aligned_alloc(64, (bytes + 63) / 64 * 64);
        second = two ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
        if (!buffer || (two && !second)) status = LK_ENOMEM;
        if (buffer) memset(buffer, 0, bytes);
        if (second) memset(second, 0, bytes);
    }
    r->calls = r->bytes < 65536 ? 2000 : r->bytes < 2 << 20 ? 300 : r->bytes < 32 << 20 ? 40 : 10;
    for (int i = 0; i < 3 && status >= 0; i++) status = run_collective(b, buffer, second, r->bytes);
    if (status >= 0) status = lk_comm_barrier(b->comm, NULL);
    int in_a_row = r->bytes < 4096 ? 16 : 1; /* reading the clock would take a tenth of the measured time */
    for (int i = 0; i < r->calls && status >= 0; i++) {
        double start = now();
        for (int k = 0; k < in_a_row && status >= 0; k++) status = run_collective(b, buffer, second, r->bytes);
        b->times[i] = (now() - start) / in_a_row;
    }
    r->seconds = times_median(b->times, r->calls);
    r->best = b->times[0];
    if (r->symmetric) {
        lk_comm_release(b->comm, buffer);
        lk_comm_release(b->comm, second);
    } else {
        free(buffer);
        free(second);
    }
    return status;
}

static void print_result(const bench *b, const result *r)
{
    double rate = (double)r->bytes / r->seconds, bus = rate * bench_bus_factor(&b->collective, lk_comm_size(b->comm));
    if (!b->json) {
        printf("%11zu %12.2f %12.2f %9.2f %9.2f  %-9s %9.2f %9.2f\n", r->bytes, r->seconds * 1e6, r->best * 1e6,
               rate / 1e9, bus / 1e9, r->symmetric ? "symmetric" : "ordinary", r->memcpy_rate / 1e9, r->limit / 1e9);
        fflush(stdout);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "op", b->op);
    json_text(&j, "backend", lk_comm_backend(b->comm));
    json_integer(&j, "ranks", lk_comm_size(b->comm));
    json_integer(&j, "bytes", (int64_t)r->bytes);
    json_number(&j, "time_us", r->seconds * 1e6);
    json_number(&j, "best_us", r->best * 1e6);
    json_number(&j, "algbw_gb_per_s", rate / 1e9);
    json_number(&j, "busbw_gb_per_s", bus / 1e9);
    json_text(&j, "memory", r->symmetric ? "symmetric" : "ordinary");
    json_number(&j, "memcpy_gb_per_s", r->memcpy_rate / 1e9);
    json_number(&j, "limit_gb_per_s", r->limit / 1e9);
    json_close(&j, '}');
    json_line(&j);
}

/* Collectives that the ranks' GPUs run by themselves. */
static lk_status measure_device(const bench *b)
{
    bench_device device = {
        .comm = b->comm, .collective = &b->collective, .memory = options_text(b->given, "memory"), .json = b->json};
    lk_status status = LK_OK;
    for (int i = 0; i < b->size_count && status >= 0; i++) status = bench_device_measure(&device, b->sizes[i] / 4 * 4);
    return status;
}

static lk_status measure_all(bench *b)
{
    const char *memory = options_text(b->given, "memory");
    lk_status   status = LK_OK;
    if (b->rank == 0 && !b->json)
        printf("%11s %12s %12s %9s %9s  %-9s %9s %9s\n", "bytes", "time us", "best us", "algbw", "busbw", "memory",
               "memcpy", "limit");
    for (int i = 0; i < b->size_count && status >= 0; i++) {
        result r = {.bytes = b->sizes[i] / 4 * 4};
        if (r.bytes == 0) r.bytes = 4;
        b->bytes = r.bytes;
        status = measure_limits(b, &r);
        for (int kind = 0; kind < 2 && status >= 0; kind++) {
            r.symmetric = kind == 0;
            if (strcmp(memory, r.symmetric ? "ordinary" : "symmetric") == 0) continue;
            status = measure_collective(b, &r);
            if (status >= 0 && b->rank == 0) print_result(b, &r);
        }
    }
    return status;
}

/* 0: not a number from 1 to 256. */
static int parse_ranks(const options *given)
{
    const char *text = options_text(given, "ranks");
    char       *end;
    long        ranks = text ? strtol(text, &end, 10) : 2;
    return text && (*end || ranks < 1 || ranks > 256) ? 0 : (int)ranks;
}

/* Pins each rank to its share of the cores if there are enough, as launchers do. */
static void pin_rank(int rank, int ranks)
{
    cpu_set_t all, mine;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < ranks) return;
    int each = CPU_COUNT(&all) / ranks;
    CPU_ZERO(&mine);
    for (int cpu = 0, nth = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ / each == rank) CPU_SET(cpu, &mine);
    (void)sched_setaffinity(0, sizeof mine, &mine);
}

static bool is_on_host(const bench *b)
{
    lk_device d = LK_DEVICE_INIT;
    return !device_find(b->device, &d) || d.on_host;
}

static void print_legend(const bench *b)
{
    const lk_collective *collective = &b->collective;
    if (!is_on_host(b)) {
        bench_device_legend();
        return;
    }
    printf("\nBandwidths in GB/s. algbw: bytes / time (the median of rank 0's calls); busbw: bytes on the bus / time, "
           "as in\nnccl-tests; memcpy: the ranks' own memory bandwidth for the same number of bytes. limit: bytes / "
           "the time that these ranks,\nworking at once, need to move the minimum amount of data for %s through memory "
           "that all of them map, without\nadding or waiting: with N ranks and buffers of S bytes, %s.\n",
           collective->name, collective->traffic);
}

/* What a rank allocates at most at a time, of the host's memory. */
static size_t most_bytes(const bench *b)
{
    size_t largest = 0, buffers = comm_limit_needs_two(&b->collective) ? 2 : 1;
    for (int i = 0; i < b->size_count; i++)
        if (b->sizes[i] > largest) largest = b->sizes[i];
    return lk_comm_size(b->comm) == 1 ? 2 * largest : buffers * largest; /* 2: memcpy of all of it */
}

/* A rank without a launcher leaves its message to the process that started it. */
static int report_failure(bench *b, lk_status status)
{
    char        memory[96];
    const char *text = lk_context_error(b->context);
    if (!b->failure) return report("bench", b->context, status);
    snprintf(memory, sizeof memory, "out of memory: cannot allocate the ranks' buffers of %zu bytes", b->bytes);
    if (!text[0]) text = status == LK_ENOMEM && b->bytes ? memory : lk_status_text(status);
    if (atomic_exchange(&b->failure->taken, 1) == 0) {
        b->failure->rank = b->rank;
        b->failure->code = command_exit_code(status);
        snprintf(b->failure->text, sizeof b->failure->text, "%s%s", text, command_remedy(status));
    }
    return command_exit_code(status);
}

/* rank -1: from the launcher's environment. */
static int rank_main(int rank, void *user)
{
    bench            *b = user;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm = LK_COMM_CONFIG_INIT;
    config.threads = 1;
    config.device = b->device;
    config.overcommit = options_flag(b->given, "overcommit");
    const char *backend = options_text(b->given, "backend");
    comm.backend = strcmp(backend, "auto") == 0 ? NULL : backend;
    if (rank >= 0) pin_rank(rank, parse_ranks(b->given));
    double    start = now();
    lk_status status = lk_context_create(&config, &b->context);
    if (status >= 0) status = lk_comm_create(b->context, &comm, &b->comm);
    double joined = now() - start;
    b->rank = status >= 0 ? lk_comm_rank(b->comm) : rank;
    if (status >= 0) status = lk_comm_check_memory(b->comm, most_bytes(b));
    if (status >= 0 && b->rank == 0 && !b->json)
        printf("%s, %d ranks, %s; joined in %.1f ms\n\n", b->op, lk_comm_size(b->comm), lk_comm_backend(b->comm),
               joined * 1e3);
    if (status >= 0) status = is_on_host(b) ? measure_all(b) : measure_device(b);
    int code = status < 0 ? report_failure(b, status) : 0;
    if (status >= 0 && rank < 0 && b->rank == 0 && !b->json) print_legend(b);
    lk_comm_free(b->comm);
    lk_context_free(b->context);
    return code;
}

static int start_ranks(bench *b)
{
    lk_spawn_result result;
    failure        *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) {
        print_error("bench", "cannot map memory for the ranks");
        return EXIT_FAILED;
    }
    b->failure = f;
    lk_status status = lk_spawn(parse_ranks(b->given), rank_main, b, &result);
    bool      mistake = status < 0 && f->code == EXIT_USER_ERROR;
    if (status >= 0 && !b->json) print_legend(b);
    if (status < 0 && !atomic_load(&f->taken))
        print_error("bench", "%s", result.text);
    else if (status < 0 && mistake) /* all ranks have the same options */
        print_error("bench", "%s", f->text);
    else if (status < 0)
        print_error("bench", "rank %d: %s", f->rank, f->text);
    munmap(f, sizeof *f);
    return mistake ? EXIT_USER_ERROR : status < 0 ? EXIT_FAILED : 0;
}

/* Those whose limit is known; the first is the default of --op. */
const char *bench_comm_op(int index)
{
    lk_collective c = LK_COLLECTIVE_INIT;
    for (int i = 0; lk_collective_at(i, &c) == LK_OK; i++)
        if (c.traffic && index-- == 0) return c.name;
    return NULL;
}

static lk_collective find_collective(const char *name)
{
    lk_collective c = LK_COLLECTIVE_INIT;
    for (int i = 0; lk_collective_at(i, &c) == LK_OK; i++)
        if (strcmp(c.name, name) == 0) break;
    return c;
}

int bench_comm(const options *given)
{
    static bench b;
    b = (bench){.given = given, .op = options_text(given, "op"), .json = options_flag(given, "json")};
    b.collective = find_collective(b.op);
    if (!parse_sizes(options_text(given, "sizes"), &b)) {
        print_error("bench", "--sizes '%s': expected at most %d comma-separated sizes up to 1024G, such as 8,4K,1M",
                    options_text(given, "sizes"), SIZES);
        return EXIT_USER_ERROR;
    }
    if (parse_ranks(given) == 0) {
        print_error("bench", "--ranks '%s': expected a number from 1 to 256", options_text(given, "ranks"));
        return EXIT_USER_ERROR;
    }
    int code = device_choose("bench", given, &b.device);
    if (code != 0) return code;
    if (!device_is_named(given)) b.device = device_of_host();
    return environment_rank() >= 0 ? rank_main(-1, &b) : start_ranks(&b);
}
