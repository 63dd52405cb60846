/* ranks.h - several ranks in train, eval, plan and bench: how a command starts itself as ranks, and how a rank
 * joins. */
#ifndef RANKS_H
#define RANKS_H

#include "mesh_options.h"
#include "setup.h"
#include "transport.h"

/* In a rank of a job that was started again: resumes what was saved, if anything was. */
void ranks_restarted(options *given);

#define RANKS_OPTION(doc) TEXT_SUGGESTED("ranks", "N", NULL, "auto|cpu|gpu", doc, .letter = 'n', .of = "mesh")

#define MESH_OPTION                                                                                                 \
    TEXT_SUGGESTED("mesh", "AXES", NULL, "data=|shard=|tensor=|pipeline=|expert=",                                  \
                   "The mesh of ranks, as named axes and their sizes, such as data=2,shard=2,tensor=2; -n 8 alone " \
                   "is data=8, and without -n the product of the sizes is the number of ranks. Ranks along the "    \
                   "last axis have consecutive numbers. data: each rank along it processes its share of every "     \
                   "batch. shard: like data, but each rank holds only a part of the state. tensor: each rank "      \
                   "computes a part of every large operation. pipeline: each rank has some of the blocks. expert: " \
                   "like data, but each rank has only a part of the experts",                                       \
                   .of = "ranks")

/* The options of a command whose ranks any launcher can start. */
#define RANKS_OF_LAUNCHERS                                                                                           \
    RANKS_OPTION("Start N ranks on this host: a number, gpu (one per GPU), cpu (one per core), or auto (gpu if "     \
                 "there are any, else cpu). `lockstep run`, torchrun, mpirun and srun can start them, too"), MESH_OPTION

/* How the ranks of a command reach each other, and how long they wait. */
#define TRANSPORT_OPTIONS                                                                                            \
    CHOICE_LISTED("backend", "NAME", "auto", transport_of_ranks,                                                     \
           "Transport between ranks; auto: on one host, direct exchange between GPUs, otherwise shared memory",      \
           .flags = OPTION_LOCAL),                                                                                   \
        NUMBER("timeout", "SECONDS", "600", 0.1, 1e7,                                                                \
               "A rank that does not enter a collective within this time counts as failed", .flags = OPTION_LOCAL),  \
        NUMBER("join-timeout", "SECONDS", NULL, 0.001, 1e7,                                                          \
               "How long ranks wait for each other to join (default LOCKSTEP_JOIN_TIMEOUT, else 600 between hosts, " \
               "30 on one)", .flags = OPTION_LOCAL)

/* How the ranks share a step: the same options for a plan, a benchmark and a run. */
#define PARALLEL_OPTIONS                                                                                               \
    CHOICE("parallel", "HOW", "data", "data",                                                                          \
           "Deprecated and replaced by --mesh: --parallel data -n 8 is --mesh data=8. The next version will remove "   \
           "--parallel"),                                                                                              \
        CHOICE("state", "WHERE", "auto", "auto|shared|replicated",                                                     \
               "Where parameters and optimizer state are kept. shared (CPUs only): one copy for each host, of which "  \
               "each rank updates a slice. replicated: every rank has its own copy. auto: shared where possible. "     \
               "All give the same bits"),                                                                              \
        FLAG("keep-cores", "With shared state, a rank that waits for others on its host leaves its cores idle "        \
             "instead of lending them to ranks that are still computing. The bits are the same"),                      \
        NUMBER("bucket-mib", "X", "25", 0.001, 65536,                                                                  \
               "MiB of gradients per bucket, reduced during the backward pass; a larger gradient has a bucket of its " \
               "own. Without this option, the first bucket holds at most 1 MiB"),                                      \
        INTEGER("accumulate", "K", "1", 1, 65536,                                                                      \
                "Gradient accumulation: micro-batches per step and rank; less memory, one synchronisation, the "       \
                "same result. With --reproducible each must consist of whole leaves",                                  \
                .of = "reproducible"),                                                                                 \
        SAME_AS("micro-batches", "N", "accumulate",                                                                    \
                "Another name for --accumulate; checkpoints record it as accumulate. With a pipeline axis, the "       \
                "number of micro-batches that pass through the stages in every step; use at least 4 per stage to "     \
                "keep idle time low"),                                                                                 \
        CHOICE("gradient-dtype", "TYPE", "f32", GRADIENT_CHOICES,                                                      \
               "Type in which gradients are all-reduced; a narrower type sends fewer bytes, but rounds the "           \
               "gradients. Not with --reproducible or --dtype f64"),                                                   \
        FLAG("sync-batchnorm", "Batch norm over the whole batch instead of each rank's share"),                        \
        CHOICE("reproducible", "[layout]", "false", "true|layout|false",                                               \
               "The same bits with any number of ranks that split the batch: the gradients of the batch's --leaves "   \
               "parts are added in a fixed order. layout: also the same bits in every --mesh, on CPUs: every sum "     \
               "that an axis could split is added in a fixed order, on one rank as well. With --accumulate a "         \
               "micro-batch must consist of whole leaves",                                                             \
               .without = "true"),                                                                                     \
        INTEGER("leaves", "N", "8", 1, 64,                                                                             \
                "With --reproducible: number of parts into which a batch is divided, which is also the maximum "       \
                "number of ranks that can share it",                                                                   \
                .of = "reproducible"),                                                                                 \
        TEXT("stages", "BLOCKS", NULL, "The blocks of each stage along the pipeline axis, such as 0-5,6-11, instead "  \
             "of a division by estimated time and memory; - for a first or last stage without blocks",                 \
             .of = "mesh", .axes = LK_AXIS_PIPELINE),                                                                  \
        CHOICE_LISTED("pipeline-schedule", "NAME", "1f1b", mesh_options_schedule,                                      \
                      "Order in which the stages compute micro-batches. 1f1b: alternates the forward pass of one "     \
                      "with the backward pass of another. gpipe: all forward passes first, which keeps the "           \
                      "activations of all micro-batches. zero-bubble: like 1f1b, but weight gradients are computed "   \
                      "where a stage would otherwise wait. All give the same bits",                                    \
                      .of = "mesh", .axes = LK_AXIS_PIPELINE),                                                         \
        TRAINING_LIST(LK_TRAINER_MESH_OPTIONS) /* ends with a comma */

/* If -n or --mesh requests ranks and this process is not one of them: checks the run, so that a user error is found
 * once and before anything is started, then starts the ranks, each with this same command line. *code: their exit
 * status. check must not start threads. */
typedef int (*ranks_check)(const options *given, int ranks); /* 0, or the exit status after the error was printed */
bool ranks_start(const char *command_name, const options *given, ranks_check check, int *code);
/* Plans s->config without allocating its memory: finds errors in the combination of model, data and options. The same
 * return. */
int ranks_plan(setup *s, const char *command_name, const options *given);
/* Joins the ranks given by the environment, by the TRANSPORT_OPTIONS that the command has; s->config.comm stays NULL
 * for a single rank. 0, or the exit status after the failure was printed. */
int  ranks_join(setup *s, const char *command_name, const options *given);
void ranks_abort(setup *s); /* this rank cannot go on: no other waits for it. Fine if not joined */
void ranks_leave(setup *s); /* fine if not joined */
/* fetch.c: --download: one rank of each host downloads the data set if it is missing; the others wait. */
int ranks_fetch(setup *s, const char *command_name, const options *given);
/* Sets s->config.mesh from --mesh, where that is given, and without a comm s->config.plan_world. `ranks` must be its
 * number of ranks; 0: any. 0, or the exit status after the error was printed. ranks_make does it where it was not
 * done. */
int ranks_mesh(setup *s, const char *command_name, const options *given, int ranks);
/* Sets the parallel part of s->config. */
int ranks_make(setup *s, const char *command_name, const options *given);
/* "rank 1 of 2: cpu neon, 1 thread on cores 1, 32 of each batch of 64" */
void ranks_describe(const setup *s, char *out, size_t size);

#endif
