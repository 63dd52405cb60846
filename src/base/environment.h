/* base/environment.h - the one table of environment variables. No other file calls getenv, which test/tree/one_home.sh
 * checks, except the command for options whose names are not known here (PET_…).
 *
 * A context reads all of them when it is created, so that later changes do not affect it. Without a context they are
 * read on request: by code that runs before there is one (the number of threads, the cores, modules), by kernels of
 * CUDA that benchmarks switch between runs, and by the launcher, whose environment is what it hands on to ranks. */
#ifndef LK__ENVIRONMENT_H
#define LK__ENVIRONMENT_H

#include "base/base.h"

#include <lockstep/environment.h>

/* X(name, group, type, low, high, meaning) */
#define LK__ENVIRONMENT(X)                                                                                             \
    X(LOCKSTEP_THREADS, SETTINGS, INTEGER, 1, 256,                                                                     \
      "compute threads per process; default: the available cores, divided by the number of ranks on the host")         \
    X(LOCKSTEP_DEVICE, SETTINGS, TEXT, 0, 0,                                                                           \
      "the device if neither --device nor the program chooses one: auto, cpu, cuda or cuda:N")                         \
    X(LOCKSTEP_ISA, SETTINGS, TEXT, 0, 0,                                                                              \
      "instruction set of the CPU kernels, unless the program chooses one; see `lockstep info`")                       \
    X(LOCKSTEP_DATA, SETTINGS, PATH, 0, 0, "the directory of public data sets, each in a subdirectory named after it") \
    X(LOCKSTEP_MODULES, SETTINGS, PATH, 0, 0, "the directory of the CUDA and MPI modules")                             \
    X(LOCKSTEP_TOKEN_FILE, SETTINGS, PATH, 0, 0,                                                                       \
      "the file that contains the job's token, which ranks on different hosts use to authenticate to each "            \
      "other")                                                                                                         \
    X(LOCKSTEP_TOKEN, SETTINGS, TEXT, 0, 0, "the token itself; `lockstep run` sets it for its ranks")                  \
    X(LOCKSTEP_PORT, SETTINGS, PORTS, 1, 65535, "the port of rank 0, or a range for all ranks")                        \
    X(LOCKSTEP_LOCAL_ADDR, SETTINGS, TEXT, 0, 0, "the address on which this host listens, like --local-addr")          \
    X(LOCKSTEP_JOIN_TIMEOUT, SETTINGS, NUMBER, 0.001, 1e7,                                                             \
      "seconds to wait for all ranks to join, like --join-timeout")                                                    \
    X(LOCKSTEP_SHARE_DEVICE, SETTINGS, FLAG, 0, 0, "several ranks may use one GPU, like --share-device")               \
    X(LOCKSTEP_TF32, SETTINGS, FLAG, 0, 0, "f32 matrix products and convolutions on GPUs may use TF32, like --tf32")   \
    X(LOCKSTEP_DEVICE_SYNC, SETTINGS, FLAG, 0, 0, "wait for the GPU after each instruction, like --device-sync")       \
    X(LOCKSTEP_CHECK_OPERATIONS, SETTINGS, FLAG, 0, 1, "check the user's operations while they run")                   \
    X(LOCKSTEP_NO_DEADLINES, SETTINGS, FLAG, 0, 1, "waits for other ranks never time out, for debugging")              \
    X(RANK, JOB, INTEGER, 0, 0, "rank of this process, as set by torchrun")                                            \
    X(WORLD_SIZE, JOB, INTEGER, 0, 0, "number of ranks")                                                               \
    X(LOCAL_RANK, JOB, INTEGER, 0, 0, "rank of this process on its host")                                              \
    X(LOCAL_WORLD_SIZE, JOB, INTEGER, 0, 0, "number of ranks on this host")                                            \
    X(GROUP_WORLD_SIZE, JOB, INTEGER, 0, 0, "number of hosts")                                                         \
    X(MASTER_ADDR, JOB, TEXT, 0, 0, "address of rank 0's host")                                                        \
    X(MASTER_PORT, JOB, TEXT, 0, 0, "port of rank 0; on one host it only identifies the job")                          \
    X(TORCHELASTIC_RUN_ID, JOB, TEXT, 0, 0, "the job's id, set by torchrun and `lockstep run`")                        \
    X(TORCHELASTIC_RESTART_COUNT, JOB, INTEGER, 0, 0, "how many times the ranks have been restarted")                  \
    X(TORCHELASTIC_USE_AGENT_STORE, JOB, TEXT, 0, 0, "True: the launcher itself uses MASTER_PORT")                     \
    X(LOCKSTEP_JOB, JOB, TEXT, 0, 0, "the job's id; a nested job's id is OUTER.INNER")                                 \
    X(LOCKSTEP_CORES, JOB, TEXT, 0, 0, "the cores that Lockstep's threads run on, such as 0-3,8")                      \
    X(LOCKSTEP_FLIGHT_RECORDER, JOB, PATH, 0, 0,                                                                       \
      "file in which a rank records its latest operation, for the launcher's report")                                  \
    X(LOCKSTEP_JOIN_COMMAND, JOB, TEXT, 0, 0,                                                                          \
      "the command that starts the ranks of another host, for the log line about missing hosts")                       \
    X(LOCKSTEP_TERMINAL, JOB, INTEGER, 1, 1e6, "columns of the terminal that the launcher writes to")                  \
    X(LOCKSTEP_STARTED_RANKS, JOB, FLAG, 0, 0,                                                                         \
      "the ranks were started by the -n option of the same command, which has already printed its notes")              \
    X(LOCKSTEP_BENCH_EXEC, JOB, TEXT, 0, 0,                                                                            \
      "the time at which `lockstep bench` started, from which it measures the time to the first step")                 \
    X(OMPI_COMM_WORLD_RANK, JOB, INTEGER, 0, 0, "rank (Open MPI)")                                                     \
    X(OMPI_COMM_WORLD_SIZE, JOB, INTEGER, 0, 0, "number of ranks (Open MPI)")                                          \
    X(OMPI_COMM_WORLD_LOCAL_RANK, JOB, INTEGER, 0, 0, "rank on this host (Open MPI)")                                  \
    X(OMPI_COMM_WORLD_LOCAL_SIZE, JOB, INTEGER, 0, 0, "ranks on this host (Open MPI)")                                 \
    X(PMI_RANK, JOB, INTEGER, 0, 0, "rank (MPICH and PMI)")                                                            \
    X(PMI_SIZE, JOB, INTEGER, 0, 0, "number of ranks (MPICH and PMI)")                                                 \
    X(MPI_LOCALRANKID, JOB, INTEGER, 0, 0, "rank on this host (MPICH)")                                                \
    X(MPI_LOCALNRANKS, JOB, INTEGER, 0, 0, "ranks on this host (MPICH)")                                               \
    X(HYDI_CONTROL_FD, JOB, TEXT, 0, 0, "set: MPICH's mpiexec started this process")                                   \
    X(PMIX_RANK, JOB, INTEGER, 0, 0, "rank (PMIx)")                                                                    \
    X(SLURM_PROCID, JOB, INTEGER, 0, 0, "rank (srun)")                                                                 \
    X(SLURM_LOCALID, JOB, INTEGER, 0, 0, "rank on this host (srun)")                                                   \
    X(SLURM_NTASKS_PER_NODE, JOB, INTEGER, 0, 0, "ranks on each host (sbatch)")                                        \
    X(SLURM_STEP_NUM_TASKS, JOB, INTEGER, 0, 0, "number of ranks (srun)")                                              \
    X(SLURM_STEP_TASKS_PER_NODE, JOB, TEXT, 0, 0, "ranks on each host (srun)")                                         \
    X(SLURM_RESTART_COUNT, JOB, INTEGER, 0, 0, "how many times Slurm has restarted the job")                           \
    X(OMP_NUM_THREADS, SYSTEM, TEXT, 0, 0, "OpenMP threads per process; `lockstep run` sets it if it is unset")        \
    X(CUDA_VISIBLE_DEVICES, SYSTEM, TEXT, 0, 0, "the GPUs that a process may use; `lockstep run` counts them")         \
    X(CUDA_MPS_PIPE_DIRECTORY, SYSTEM, PATH, 0, 0, "directory of the NVIDIA MPS daemon's pipes")                       \
    X(TORCH_NCCL_ASYNC_ERROR_HANDLING, SYSTEM, TEXT, 0, 0, "`lockstep run` sets it to 1 for PyTorch if it is unset")   \
    X(TORCH_ELASTIC_SHUTDOWN_TIMEOUT, SYSTEM, NUMBER, 0, 0,                                                            \
      "seconds that `lockstep run` gives ranks to exit, as with torchrun")                                             \
    X(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, SYSTEM, TEXT, 0, 0,                                                       \
      "prefix of the ranks' output lines, as with torchrun")                                                           \
    X(HOME, SYSTEM, PATH, 0, 0, "the home directory, which contains .cache/lockstep")                                  \
    X(XDG_CACHE_HOME, SYSTEM, PATH, 0, 0, "the directory for caches, instead of ~/.cache")                             \
    X(TMPDIR, SYSTEM, PATH, 0, 0, "the directory for temporary files")                                                 \
    X(PATH, SYSTEM, TEXT, 0, 0, "directories in which `lockstep run --hosts` looks for the program")                   \
    X(TERM, SYSTEM, TEXT, 0, 0, "dumb: no live progress line, no pager")                                               \
    X(NO_COLOR, SYSTEM, TEXT, 0, 0, "set: no colours")                                                                 \
    X(PAGER, SYSTEM, TEXT, 0, 0, "the program that shows long help; default: less")                                    \
    X(LOCKSTEP_VERIFY_SCHEDULE, CHECKS, FLAG, 0, 0, "verify the schedule of each program when it is created")          \
    X(LOCKSTEP_DIGESTS, CHECKS, PATH, 0, 0, "CPUs: write digests of all values to this file, with .RANK appended")     \
    X(LOCKSTEP_HOST_ID, CHECKS, TEXT, 0, 0, "processes with different values are treated as being on different hosts") \
    X(LOCKSTEP_MEMORY_NODES, CHECKS, INTEGER, 1, 1024,                                                                 \
      "divide the ranks of each host among this many simulated memory nodes")                                          \
    X(LOCKSTEP_CUDA_PLAIN, CHECKS, FLAG, 0, 0, "GPUs: built-in kernels only, without libraries")                       \
    X(LOCKSTEP_CUDA_ANY_ORDER, CHECKS, FLAG, 0, 0,                                                                     \
      "GPUs: libraries may add in any order, so results may differ from run to run")                                   \
    X(LOCKSTEP_CUDA_MEASURE, CHECKS, FLAG, 0, 0, "0: GPUs choose algorithms without measuring them")                   \
    X(LOCKSTEP_CUDA_TUNING_SECONDS, CHECKS, NUMBER, 0, 1e6,                                                            \
      "GPUs: maximum seconds of autotuning at startup (default 3); if set, shapes skipped earlier are tuned too")      \
    X(LOCKSTEP_CUDA_OVERLAP, CHECKS, FLAG, 0, 0, "0: a kernel starts only after the previous one has finished")        \
    X(LOCKSTEP_CUDA_LAUNCH_GROUPS, CHECKS, FLAG, 0, 0, "0: each kernel is launched separately")                        \
    X(LOCKSTEP_CUDA_TOGETHER, CHECKS, FLAG, 0, 0, "replaced by LOCKSTEP_CUDA_LAUNCH_GROUPS")                           \
    X(LOCKSTEP_CUDA_CUPTI, CHECKS, FLAG, 0, 0, "0: GPU traces do not use CUPTI")                                       \
    X(LOCKSTEP_CUDA_TENSOR, CHECKS, FLAG, 0, 0, "1: the emulated GPU has tensor cores, which is slow")

typedef enum lk__environment_id {
#define LK__ENVIRONMENT_ID(name, group, type, low, high, doc) LK__ENV_##name,
    LK__ENVIRONMENT(LK__ENVIRONMENT_ID)
#undef LK__ENVIRONMENT_ID
        LK__ENV_COUNT
} lk__environment_id;

/* Like lk_environment_get. */
const char *lk__environment(const lk_context *context, lk__environment_id id);
/* The same, but an empty value counts as unset. */
const char *lk__environment_text(const lk_context *context, lk__environment_id id);
bool        lk__environment_flag(const lk_context *context, lk__environment_id id); /* set, not "", not "0" */
const char *lk__environment_name(lk__environment_id id);

/* What a context keeps of the environment. */
typedef struct lk__environment_values lk__environment_values;
/* Reads it now. NULL: out of memory. */
lk__environment_values *lk__environment_read(const lk_allocator *allocator);
void                    lk__environment_values_free(const lk_allocator *allocator, lk__environment_values *values);
const char             *lk__environment_value(const lk__environment_values *values, lk__environment_id id);
/* context.c: what the context has read; it reads it again, for tests that change it. */
const lk__environment_values *lk__context_environment(const lk_context *context);
lk_status                     lk__context_read_environment(lk_context *context);

#endif
