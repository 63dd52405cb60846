/* bench_device.c - the table of `lockstep bench comm --device cuda`. */
#include "bench_device.h"

#include "json.h"

#include <stdio.h>
#include <string.h>

static bool has_parts(const lk_collective *c) { return c->sends_parts || c->receives_parts; }

double bench_bus_factor(const lk_collective *c, int ranks)
{
    double share = (ranks - 1.0) / ranks;
    if (has_parts(c)) return share;
    return c->root_sends || c->root_receives ? 1 : 2 * share;
}

static void print_head(void)
{
    printf("%12s %12s %6s %6s  %-9s  %35s %36s\n", "", "", "", "", "", "out-of-place            ",
           "in-place             ");
    printf("%12s %12s %6s %6s  %-9s", "size", "count", "type", "redop", "memory");
    for (int i = 0; i < 2; i++) printf(" %9s %8s %8s %8s", "time", "algbw", "busbw", "#wrong");
    printf("\n%12s %12s %6s %6s  %-9s", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; i++) printf(" %9s %8s %8s %8s", "(us)", "(GB/s)", "(GB/s)", "");
    printf("\n");
}

static void print_time(const bench_device *b, const lk_collective_time *t)
{
    double rate = (double)t->bytes / t->seconds / 1e9;
    printf(" %9.2f %8.2f %8.2f %8lld", t->seconds * 1e6, rate,
           rate * bench_bus_factor(b->collective, lk_comm_size(b->comm)), (long long)t->wrong);
}

static void print_json(const bench_device *b, const lk_collective_time *t)
{
    double rate = (double)t->bytes / t->seconds / 1e9;
    json   j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "op", b->collective->name);
    json_text(&j, "backend", lk_comm_backend(b->comm));
    json_integer(&j, "ranks", lk_comm_size(b->comm));
    json_integer(&j, "bytes", (int64_t)t->bytes);
    json_text(&j, "memory", t->symmetric ? "symmetric" : "ordinary");
    json_bool(&j, "in_place", t->in_place);
    json_integer(&j, "calls", t->calls);
    json_number(&j, "time_us", t->seconds * 1e6);
    json_number(&j, "best_us", t->best * 1e6);
    json_number(&j, "algbw_gb_per_s", rate);
    json_number(&j, "busbw_gb_per_s", rate * bench_bus_factor(b->collective, lk_comm_size(b->comm)));
    json_integer(&j, "wrong", t->wrong);
    json_close(&j, '}');
    json_line(&j);
}

/* times: out of place, then in place. */
static void print_row(bench_device *b, const lk_collective_time times[2])
{
    size_t parts = has_parts(b->collective) ? (size_t)lk_comm_size(b->comm) : 1;
    for (int i = 0; i < 2 && b->json; i++) print_json(b, &times[i]);
    if (b->json) return;
    if (!b->has_head) print_head();
    b->has_head = true;
    printf("%12zu %12zu %6s %6s  %-9s", times->bytes, times->bytes / 4 / parts, "float",
           b->collective->reduces ? "sum" : "none", times->symmetric ? "symmetric" : "ordinary");
    for (int i = 0; i < 2; i++) print_time(b, &times[i]);
    printf("\n");
    fflush(stdout);
}

static lk_status measure_memory(bench_device *b, size_t bytes, bool symmetric)
{
    lk_collective_time times[2];
    for (int i = 0; i < 2; i++) {
        times[i] = (lk_collective_time)LK_COLLECTIVE_TIME_INIT;
        times[i].bytes = bytes;
        times[i].symmetric = symmetric;
        times[i].in_place = i;
        lk_status status = lk_comm_time_queued(b->comm, b->collective->name, &times[i]);
        if (status < 0) return status;
    }
    if (lk_comm_rank(b->comm) == 0) print_row(b, times);
    return LK_OK;
}

lk_status bench_device_measure(bench_device *b, size_t bytes)
{
    size_t    parts = has_parts(b->collective) ? (size_t)lk_comm_size(b->comm) : 1;
    lk_status status = LK_OK;
    if (bytes < 4 * parts) bytes = 4 * parts;
    if (strcmp(b->memory, "ordinary") != 0) status = measure_memory(b, bytes, true);
    if (status >= 0 && strcmp(b->memory, "symmetric") != 0) status = measure_memory(b, bytes, false);
    return status;
}

void bench_device_legend(void)
{
    printf("\nColumns as in nccl-tests: algbw is bytes / time, busbw bytes on the bus / time. Each graph runs several "
           "calls; time is\nper call, the median over graphs. #wrong: elements that differ in any bit from the result "
           "of the collective on the host.\n");
}
