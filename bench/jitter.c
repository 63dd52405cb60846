/* jitter.c - how much a machine slows down work that waits for the slowest core. N threads, each pinned to a core,
 * repeat multiply-adds of the widest vectors for some milliseconds without waiting for each other; the mean of all
 * pieces over the mean of each round's slowest is what a synchronous step of N equal parts can reach of N independent
 * processes at most.
 *
 *   jitter [threads [milliseconds [rounds]]] */
#define _GNU_SOURCE
#include "base/base.h"
#include "base/isa.h"
#include "device/peak.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct jitter {
    int               threads, rounds;
    lk__tile          spin;
    int64_t           steps;   /* of a piece */
    double           *seconds; /* (threads, rounds) */
    pthread_barrier_t begin;
} jitter;

typedef struct worker {
    jitter *of;
    int     number;
} worker;

static void compute(const jitter *j)
{
    for (int64_t i = 0; i < j->steps; i++) j->spin(NULL, i, 0);
}

static void *run_worker(void *argument)
{
    worker   *w = argument;
    jitter   *j = w->of;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(w->number, &core);
    (void)pthread_setaffinity_np(pthread_self(), sizeof core, &core);
    pthread_barrier_wait(&j->begin);
    for (int round = 0; round < j->rounds; round++) {
        double start = lk__now();
        compute(j);
        j->seconds[w->number * j->rounds + round] = lk__now() - start;
    }
    return NULL;
}

static void report(const jitter *j)
{
    double mean = 0, slowest = 0, least = 1e9;
    for (int round = 0; round < j->rounds; round++) {
        double most = 0;
        for (int i = 0; i < j->threads; i++) {
            double x = j->seconds[i * j->rounds + round];
            mean += x;
            if (x > most) most = x;
            if (x < least) least = x;
        }
        slowest += most;
    }
    mean /= (double)j->threads * j->rounds;
    slowest /= j->rounds;
    printf("%d threads, %d pieces each: shortest %.2f ms, mean %.2f ms, slowest of a round %.2f ms: a synchronous step "
           "reaches at most %.0f %%\n",
           j->threads, j->rounds, least * 1e3, mean * 1e3, slowest * 1e3, 100 * mean / slowest);
}

int main(int count, char **arguments)
{
    jitter j = {.threads = count > 1 ? atoi(arguments[1]) : 2, .rounds = count > 3 ? atoi(arguments[3]) : 100};
    double milliseconds = count > 2 ? atof(arguments[2]) : 25, start, operations;
    worker workers[CPU_SETSIZE];
    if (j.threads < 1 || j.threads > CPU_SETSIZE || j.rounds < 1 || milliseconds <= 0) {
        fprintf(stderr, "usage: jitter [threads [milliseconds [rounds]]]\n");
        return 2;
    }
    pthread_t threads[CPU_SETSIZE];
    j.seconds = calloc((size_t)j.threads * (size_t)j.rounds, sizeof *j.seconds);
    if (!j.seconds || pthread_barrier_init(&j.begin, NULL, (unsigned)j.threads) != 0) return 1;
    j.spin = lk__peak_loop(lk__isa_choose(NULL), &operations);
    if (!j.spin) {
        fprintf(stderr, "jitter: there is no loop of multiply-adds for this machine\n");
        return 1;
    }
    j.steps = 100;
    compute(&j); /* until the core has its speed */
    start = lk__now();
    compute(&j);
    j.steps = (int64_t)(100 * milliseconds * 1e-3 / (lk__now() - start)) + 1;
    for (int i = 0; i < j.threads; i++) {
        workers[i] = (worker){&j, i};
        if (pthread_create(&threads[i], NULL, run_worker, &workers[i]) != 0) return 1;
    }
    for (int i = 0; i < j.threads; i++) pthread_join(threads[i], NULL);
    report(&j);
    free(j.seconds);
    return 0;
}
