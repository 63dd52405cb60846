/* bandwidth.c - reads memory with several threads at once, each its own part, and times whole passes. */
#define _GNU_SOURCE
#include "bandwidth.h"

#include "clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 64 << 20, PASSES = 6, MOST_THREADS = 256 };

/* Where all threads wait for each other: how often one has arrived. */
typedef struct barrier {
    atomic_int threads; /* 0: not all have been started */
    atomic_int arrived;
} barrier;

typedef struct reader {
    pthread_t thread;
    barrier  *barrier;
    double    seconds[PASSES]; /* of each pass of all threads */
    bool      failed;
} reader;

/* Eight independent sums: memory bounds it, not an addition's latency. */
static uint64_t read_words(const uint64_t *words, size_t count)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (int k = 0; k < 8; k++) s[k] += words[i + k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

/* Returns once every thread has called it for the `turn`-th time. */
static void wait_for_all(barrier *m, int turn)
{
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->threads) == 0 || atomic_load(&m->arrived) < turn * atomic_load(&m->threads)) sched_yield();
}

static void *run_reader(void *argument)
{
    reader   *r = argument;
    uint64_t *words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->failed = words == MAP_FAILED;
    if (!r->failed) {
        madvise(words, BYTES, MADV_HUGEPAGE);
        memset(words, 1, BYTES); /* not 0: pages that were never written share one zero page */
    }
    for (int pass = 0; pass < PASSES; pass++) {
        wait_for_all(r->barrier, 2 * pass + 1);
        double   start = now();
        uint64_t sum = r->failed ? 0 : read_words(words, BYTES / sizeof *words);
        __asm__ volatile("" : : "r"(sum)); /* so that the reads are not left out */
        wait_for_all(r->barrier, 2 * pass + 2);
        r->seconds[pass] = now() - start;
    }
    if (!r->failed) munmap(words, BYTES);
    return NULL;
}

double bandwidth_measure(int threads)
{
    static reader readers[MOST_THREADS];
    barrier       m = {0};
    double        best = 0;
    int           started = 1;
    for (int i = 0; i < threads && i < MOST_THREADS; i++) readers[i] = (reader){.barrier = &m};
    while (started < threads && started < MOST_THREADS &&
           pthread_create(&readers[started].thread, NULL, run_reader, &readers[started]) == 0)
        started++;
    atomic_store(&m.threads, started);
    run_reader(&readers[0]);
    bool failed = readers[0].failed;
    for (int i = 1; i < started; i++) {
        pthread_join(readers[i].thread, NULL);
        failed |= readers[i].failed;
    }
    for (int pass = 1; pass < PASSES && !failed; pass++) {
        double rate = (double)started * BYTES / readers[0].seconds[pass];
        if (rate > best) best = rate;
    }
    return best;
}
