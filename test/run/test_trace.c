/* test_trace.c - recording from several threads, blocks, the overlap against known values and a simple count, and the
 * file. `test_trace DIR` only writes the file that trace_opens.sh reads with another JSON parser.
 *
 * ctest: label threaded */
#define _GNU_SOURCE
#include "test_data.h"

#include "base/json.h"
#include "run/trace.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>

static lk_context *context;

static lk__trace *make_trace(int64_t capacity)
{
    lk__trace *trace;
    CHECK_OK(context, lk__trace_create(context, capacity, &trace));
    return trace;
}

static void add_event(lk__trace *trace, const char *name, lk__trace_kind kind, int track, double begin, double end,
                      int64_t bytes)
{
    lk__trace_add(trace, &(lk__trace_event){name, kind, track, begin, end, bytes});
}

static void *pack(const lk__trace *trace, size_t *bytes)
{
    *bytes = lk__trace_packed_bytes(trace);
    void *block = malloc(*bytes);
    lk__trace_pack(trace, block);
    return block;
}

static lk__trace_overlap measure_overlap(const lk__trace *trace)
{
    size_t            bytes;
    void             *block = pack(trace, &bytes);
    lk__trace_overlap overlap;
    CHECK_OK(context, lk__trace_measure(context, block, bytes, &overlap));
    free(block);
    return overlap;
}

enum { THREADS = 4, EACH = 5000 };
static char names[THREADS][16];

typedef struct recorder {
    lk__trace *trace;
    int        number;
} recorder;

static void *record_events(void *argument)
{
    recorder *r = argument;
    for (int i = 0; i < EACH; i++) add_event(r->trace, names[r->number], LK__TRACE_KERNEL, r->number, i, i + 0.5, i);
    return NULL;
}

/* Every event of every thread is recorded once and completely, in its thread's order; past the capacity they are
 * counted. */
static void threads_record_without_loss_or_are_counted(void)
{
    for (int way = 0; way < 2; way++) {
        int64_t    capacity = way ? THREADS * EACH - 777 : THREADS * EACH + 1;
        lk__trace *trace = make_trace(capacity);
        pthread_t  threads[THREADS];
        recorder   recorders[THREADS];
        uint64_t   before = lk_context_allocations(context);
        for (int i = 0; i < THREADS; i++) {
            recorders[i] = (recorder){trace, i};
            snprintf(names[i], sizeof names[i], "work %d", i);
            CHECK(pthread_create(&threads[i], NULL, record_events, &recorders[i]) == 0);
        }
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        CHECK(lk_context_allocations(context) == before);
        int64_t kept = way ? capacity : THREADS * EACH;
        CHECK(lk__trace_count(trace) == kept && lk__trace_dropped(trace) == THREADS * EACH - kept);
        size_t         bytes;
        void          *block = pack(trace, &bytes);
        lk__trace_head head;
        lk__trace_walk walk;
        lk__trace_item item;
        const char    *text;
        int64_t        next[THREADS] = {0}, seen = 0;
        CHECK(lk__trace_begin(block, bytes, &head, &walk) && head.events == kept &&
              head.dropped == THREADS * EACH - kept);
        while (lk__trace_next(&walk, &item, &text)) {
            CHECK(item.track < THREADS && item.length == 6 && !memcmp(text, names[item.track], 6));
            CHECK(item.bytes >= next[item.track] && item.begin == (double)item.bytes && item.end == item.begin + 0.5);
            CHECK(way || item.bytes == next[item.track]);
            next[item.track] = item.bytes + 1;
            seen++;
        }
        CHECK(walk.left == 0 && seen == kept);
        free(block);
        lk__trace_free(trace);
    }
    lk__trace *trace = make_trace(10);
    add_event(trace, NULL, LK__TRACE_KERNEL, 0, 0, 1, 0);
    add_event(trace, "x", LK__TRACE_KERNEL, LK__TRACE_TRACKS, 0, 1, 0);
    add_event(trace, "x", LK__TRACE_KERNEL, -1, 0, 1, 0);
    add_event(trace, "x", LK__TRACE_KIND_COUNT, 0, 0, 1, 0);
    add_event(NULL, "x", LK__TRACE_KERNEL, 0, 0, 1, 0);
    CHECK(lk__trace_count(trace) == 0 && lk__trace_dropped(trace) == 4);
    lk__trace_free(trace);
    lk__trace_free(NULL);
    CHECK_FAILS(context, lk__trace_create(context, 0, &trace), LK_EINVAL, "0 events");
    CHECK_FAILS(context, lk__trace_create(context, INT64_MAX, &trace), LK_EINVAL, "events");
}

/* Against a count over ticks: collectives that overlap each other, kernels that nest, touch and extend past them. */
static void overlap_equals_a_count_of_ticks(void)
{
    lk__trace *none = make_trace(4);
    CHECK(measure_overlap(none).collective == 0);
    add_event(none, "c", LK__TRACE_COLLECTIVE, 1, 1, 3, 0);
    CHECK(measure_overlap(none).collective == 2 && measure_overlap(none).hidden == 0);
    add_event(none, "k", LK__TRACE_KERNEL, 0, 0, 2.5, 0);
    CHECK(measure_overlap(none).collective == 2 && measure_overlap(none).hidden == 1.5);
    add_event(none, "w", LK__TRACE_WAIT, 0, 2.5, 3, 0);
    CHECK(measure_overlap(none).hidden == 1.5);
    lk__trace_free(none);

    enum { TICKS = 400 };
    uint32_t random = 12345;
    for (int round = 0; round < 200; round++) {
        bool       collective[TICKS] = {0}, kernel[TICKS] = {0};
        lk__trace *trace = make_trace(64);
        for (int i = 0; i < round % 60; i++) {
            random = random * 1664525u + 1013904223u;
            int  begin = (int)(random >> 8) % (TICKS - 40), length = (int)(random >> 20) % 40;
            bool is_kernel = random >> 31;
            add_event(trace, "e", is_kernel ? LK__TRACE_KERNEL : LK__TRACE_COLLECTIVE, is_kernel, begin, begin + length,
                      0);
            for (int t = begin; t < begin + length; t++) (is_kernel ? kernel : collective)[t] = true;
        }
        int flying = 0, hidden = 0;
        for (int t = 0; t < TICKS; t++) flying += collective[t], hidden += collective[t] && kernel[t];
        lk__trace_overlap overlap = measure_overlap(trace);
        CHECK(overlap.collective == flying && overlap.hidden == hidden);
        lk__trace_free(trace);
    }
}

/* The file that both parsers read: two ranks whose clocks are 100 s apart. */
static void write_sample(const char *path)
{
    lk__trace *a = make_trace(8), *b = make_trace(3);
    size_t     bytes_a, bytes_b;
    lk__trace_name_track(a, 0, "compute");
    lk__trace_name_track(a, 3, "communication \"ring\"");
    lk__trace_name_track(b, 0, "compute");
    add_event(a, "conv1\\weight \"gradient\"\n", LK__TRACE_KERNEL, 0, 50.0, 50.001, 0);
    add_event(a, "all_reduce bucket 0", LK__TRACE_COLLECTIVE, 3, 50.0005, 50.0025, 26214400);
    add_event(a, "größe \xff\xc0\xaf end", LK__TRACE_SAVE, 0, 50.003, 50.0030005, 0);
    for (int i = 0; i < 5; i++) add_event(b, "step", LK__TRACE_STEP, 0, 149.9995 + i, 150 + i, 0);
    void          *block_a = pack(a, &bytes_a), *block_b = pack(b, &bytes_b);
    lk__trace_part parts[] = {{0, NULL, 0, block_a, bytes_a}, {1, "rank 1, host b", -100, block_b, bytes_b}};
    CHECK_OK(context, lk__trace_write(context, path, parts, 2));
    free(block_a), free(block_b);
    lk__trace_free(a), lk__trace_free(b);
}

static void the_file_is_json_in_any_locale(void)
{
    for (int way = 0; way < 2; way++) {
        char           text[8192];
        lk__json       whole, events, other, value;
        lk__json_error error;
        double         number;
        if (way && !setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "de_DE")) continue;
        write_sample(scratch("trace.json"));
        setlocale(LC_ALL, "C");
        FILE *file = fopen(scratch("trace.json"), "r");
        CHECK(file);
        size_t length = fread(text, 1, sizeof text, file);
        fclose(file);
        CHECK(length > 0 && length < sizeof text && lk__json_parse(text, length, &whole, &error));
        CHECK(lk__json_get(&whole, "traceEvents", &events) && lk__json_get(&whole, "otherData", &other));
        CHECK(lk__json_count(&events) == 4 + 3 + 6); /* ranks, tracks, events */
        CHECK(lk__json_get(&other, "overlap_percent", &value) && lk__json_number(&value, &number) && number == 25);
        CHECK(lk__json_get(&other, "dropped_events", &value) && lk__json_number(&value, &number) && number == 2);
    }
}

static void a_file_without_events_is_valid(void)
{
    char           text[1024];
    lk__json       whole, other, value;
    lk__json_error error;
    CHECK_OK(context, lk__trace_write(context, scratch("none.json"), NULL, 0));
    FILE *file = fopen(scratch("none.json"), "r");
    CHECK(file);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    CHECK(lk__json_parse(text, length, &whole, &error) && lk__json_get(&whole, "otherData", &other));
    CHECK(lk__json_get(&other, "overlap_percent", &value) && value.kind == LK__JSON_NULL);
}

/* A block that is truncated or changed anywhere is rejected or read, never past its end. */
static void damaged_blocks_are_rejected(void)
{
    lk__trace        *trace = make_trace(4);
    size_t            bytes;
    lk__trace_overlap overlap;
    lk__trace_name_track(trace, 1, "track");
    add_event(trace, "collective", LK__TRACE_COLLECTIVE, 1, 1, 2, 3);
    add_event(trace, "kernel", LK__TRACE_KERNEL, 1, 1, 2, 3);
    char *block = pack(trace, &bytes);
    CHECK_OK(context, lk__trace_measure(context, block, bytes, &overlap));
    for (size_t n = 0; n < bytes; n++) { /* in memory of exactly that size, for the sanitizer */
        char *cut = malloc(n ? n : 1);
        memcpy(cut, block, n);
        CHECK(lk__trace_measure(context, cut, n, &overlap) == LK_EFORMAT);
        if (n >= sizeof(lk__trace_head)) {
            ((lk__trace_head *)(void *)cut)->bytes = n;
            CHECK(lk__trace_measure(context, cut, n, &overlap) == LK_EFORMAT);
        }
        free(cut);
    }
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            block[i] ^= (char)(1 << bit);
            lk_status status = lk__trace_measure(context, block, bytes, &overlap);
            CHECK(status == LK_OK || status == LK_EFORMAT || status == LK_ENOMEM);
            block[i] ^= (char)(1 << bit);
        }
    block[0] ^= 1;
    lk__trace_part part = {7, NULL, 0, block, bytes};
    CHECK_FAILS(context, lk__trace_write(context, scratch("never.json"), &part, 1), LK_EFORMAT, "rank 7", "damaged");
    CHECK(access(scratch("never.json"), F_OK) < 0);
    block[0] ^= 1;
    CHECK_FAILS(context, lk__trace_write(context, scratch("no/such/file"), &part, 1), LK_EIO, "no/such/file");
    CHECK_FAILS(context, lk__trace_write(context, "/dev/full", &part, 1), LK_EIO, "/dev/full", "No space");
    free(block);
    lk__trace_free(trace);
}

static lk_status attempt(lk_context *starving)
{
    lk__trace *trace;
    char       block[512];
    lk_status  status = lk__trace_create(starving, 3, &trace);
    if (status < 0) return status;
    add_event(trace, "kernel", LK__TRACE_KERNEL, 1, 1, 2, 3);
    size_t bytes = lk__trace_packed_bytes(trace);
    CHECK(bytes <= sizeof block);
    lk__trace_pack(trace, block);
    lk__trace_part parts[] = {{0, NULL, 0, block, bytes}, {1, NULL, 0, block, bytes}};
    status = lk__trace_write(starving, scratch("starving.json"), parts, 2);
    lk__trace_free(trace);
    return status;
}

static void any_allocation_may_fail(void) { CHECK(fail_each_allocation(attempt) == 5); }

int main(int count, char **arguments)
{
    context = make_context();
    if (count > 1) {
        char path[512];
        snprintf(path, sizeof path, "%s/trace.json", arguments[1]);
        write_sample(path);
    } else {
        make_scratch();
        RUN(threads_record_without_loss_or_are_counted);
        RUN(overlap_equals_a_count_of_ticks);
        RUN(the_file_is_json_in_any_locale);
        RUN(a_file_without_events_is_valid);
        RUN(damaged_blocks_are_rejected);
        RUN(any_allocation_may_fail);
    }
    free_context(context);
    return 0;
}
