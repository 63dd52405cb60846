/* ranks.h - what train, plan and bench say about several ranks: how a command starts itself on each, and how a rank joins. */
#ifndef RANKS_H
#define RANKS_H

#include "setup.h"

#define RANKS_OPTION(doc) TEXT_LETTER('n', "ranks", "N", NULL, doc)

/* How the ranks share a step: the same for a plan, a benchmark and a run. */
#define PARALLEL_OPTIONS                                                                                                      \
    CHOICE("parallel", "HOW", "data", "data", "data: every rank holds the whole model and takes its share of each batch"),    \
        NUMBER("bucket-mib", "X", "25", 0.001, 65536, "MiB of gradients that travel together while backward goes on; the first 1"), \
        INTEGER("accumulate", "K", "1", 1, 65536, "Micro-batches a step and rank: less memory, one synchronisation, the same result"), \
        FLAG("sync-batchnorm", "Batch norm over the whole batch instead of each rank's share"),                               \
        FLAG("reproducible", "The same bits with any number of ranks: what --leaves parts of the batch give is added in one order"), \
        INTEGER("leaves", "N", "8", 1, 64, "With --reproducible: parts of each batch; the most ranks there can be")

/* If -n asks for ranks and this process is none yet: checks the run, so that a mistake is found once and before anything is
 * started, then starts them, each with this same command line. *code: how they ended. check may use one thread alone. */
typedef int (*ranks_check)(const options *given, int ranks); /* 0, or the exit status after the mistake was reported */
bool ranks_start(const char *command_name, const options *given, ranks_check check, int *code);
/* The plan of s->config without its memory: what is wrong with model, data and options together. The same return. */
int ranks_plan(setup *s, const char *command_name);
/* Joins the ranks that the environment tells of (seconds; 0: the default); s->config.comm stays NULL where there is one alone. 0, or the exit status after
 * the failure was reported. */
int  ranks_join(setup *s, const char *command_name, const char *backend, double timeout, double join_timeout);
void ranks_leave(setup *s); /* fine when nobody joined */
/* fetch.c: --download: one rank of each host gets the data set if it is not there; the others wait. */
int ranks_fetch(setup *s, const char *command_name, const options *given);
/* Fills the parallel part of s->config. */
int ranks_make(setup *s, const char *command_name, const options *given);
/* "rank 1 of 2: cpu neon, 1 thread on cores 1, 32 of each batch of 64" */
void ranks_describe(const setup *s, char *out, size_t size);

#endif
