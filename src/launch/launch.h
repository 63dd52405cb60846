/* launch/launch.h - the launcher's internals: a job, its children, their output, and the orphan reaper, which outlives
 * the launcher. */
#ifndef LK__LAUNCH_H
#define LK__LAUNCH_H

#include "base/base.h"
#include "comm/comm.h"
#include "launch/relay.h"

#include <lockstep/launch.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    LK__LAUNCH_PATH = 512,
    LK__JOB_ID = 128,
    LK__OWN_ID = 17,
    LK__TOKEN = 33,
    LK__ANSWER_SECONDS = 30,
    LK__LAUNCH_SIGNALS = 15
};

#define LK__TRY(call)                    \
    do {                                 \
        lk_status status_ = (call);      \
        if (status_ < 0) return status_; \
    } while (0)

/* A rank; in the launcher of `hosts`, one ssh process. */
typedef struct lk__launch_child {
    char              name[80];                /* "rank 3", "host b" */
    int               rank, local_rank, ranks; /* ranks: of a remote launcher; 0: one */
    pid_t             pid;                     /* also its process group */
    bool              running;
    bool              stop_requested; /* before it ended */
    bool              killed;         /* by SIGKILL */
    bool              no_answer;      /* a remote launcher that sent no answer, in time or before it ended */
    bool              unresponsive;   /* the cause of the failure, but it had not ended by itself; then: */
    char              state;          /* of its process, as in proc(5); 0: unknown */
    int               cause_kind;     /* a lk__comm_cause_kind, as the reporter has it */
    bool              consequence;    /* it failed because another rank failed */
    lk__comm_cause    cause;          /* the rank that its own failure is due to, once it ended */
    int               status;         /* from wait(2) */
    struct rusage     usage;
    double            began, ended; /* by lk__now */
    lk__launch_stream streams[2];   /* stdout, stderr */
    lk__launch_tail   tail;
    char              folder[LK__LAUNCH_PATH];
    char              error_file[LK__LAUNCH_PATH];
    char              flight_recorder[LK__LAUNCH_PATH]; /* path; comm/flight_recorder.h */
    int               input;                            /* write end of its standard input; -1: none */
    int               port; /* of a remote launcher: the free port that it reported; 0: it is not ready yet */
} lk__launch_child;

typedef struct lk__launch_reaper {
    pid_t pid;
    int   pipe; /* the launcher's end; the reaper acts once all copies of it are closed */
} lk__launch_reaper;

/* A process that descended from this one before the job began: bash -c 'tee log & exec lockstep run …' has one. */
typedef struct lk__launch_bystander {
    pid_t              pid, group;
    unsigned long long start; /* from /proc/PID/stat: with the pid it identifies one process uniquely */
} lk__launch_bystander;

typedef enum lk__launch_end {
    LK__RUNNING,
    LK__FAILED,
    LK__SIGNALLED,
    LK__INPUT_ENDED,
    LK__OUTPUT_CLOSED
} lk__launch_end;

/* What a remote launcher reads from its specification, and a local launch derives from its configuration. */
typedef struct lk__launch_part {
    int         first_rank, world;
    const char *token;            /* NULL: created for each generation */
    const char *parent;           /* the id of the enclosing job; NULL: from the environment */
    int         control;          /* descriptor whose end of file means stop; -1: none */
    int         colour;           /* of prefixes; below 0: by the terminal */
    int generation, max_restarts; /* for the ranks' environment; a remote launcher does not restart anything itself */
    const char *program_path;     /* of the program on the first launcher's host; NULL: not known */
} lk__launch_part;

typedef struct lk__launch_job {
    lk_context             *context;
    const lk_launch_config *config;
    lk__launch_part         part;
    char                    id[LK__JOB_ID];
    char                    token[LK__TOKEN];
    char                    own_id[LK__OWN_ID]; /* the last part of id */
    const char             *run_id;
    char                    host[80];
    char folder[LK__LAUNCH_PATH]; /* removed with the job: flight recorders, and error files if there are no logs */
    int  lock;                    /* held in folder while the job runs; -1: none */
    char logs[LK__LAUNCH_PATH];   /* kept: logs and error files; "": none */
    int  generation;
    const char *address;
    int         port;
    cpu_set_t  *cores; /* one set per rank: the cores of its threads; NULL: not pinned */
    /* one set per rank: the cores that its process may use; NULL: all that this one may */
    cpu_set_t            *allowed;
    int                   threads;  /* of each rank: LOCKSTEP_THREADS and OMP_NUM_THREADS */
    bool                  uses_ssh; /* children are ssh processes, not ranks */
    lk__launch_child     *children;
    int                   count, alive;
    lk__launch_reaper     reaper;
    lk__launch_sink       sinks[2];
    lk__launch_sink      *out, *err;   /* the same one if both are one file */
    int                   signals;     /* a signalfd */
    int                   passed[2];   /* a pipe: signals that other threads of this process received; 0: none yet */
    sigset_t              stops;       /* the signals that stop the job */
    sigset_t              handled;     /* those, SIGUSR1, SIGUSR2 and SIGCHLD, unless the caller ignores them */
    sigset_t              forwarded;   /* SIGUSR1 and SIGUSR2, if the ranks of this generation got them */
    int                   filtered[2]; /* files of filtered lines; -1: none */
    sigset_t              old_mask;
    struct sigaction      old_pipe, old_child, old_stops[LK__LAUNCH_SIGNALS];
    int                   was_reaper;
    lk__launch_bystander *bystanders;
    size_t                bystander_count, bystander_capacity;
    struct pollfd        *polls;
    size_t                poll_capacity;
    lk__launch_end        end_reason;
    lk__launch_child     *first;               /* the cause of the failure */
    lk__launch_child     *reporter;            /* the child whose group named it; NULL: none did */
    char                  last_operation[512]; /* of `first` if it had not ended, read before it was stopped */
    double                decide_by;           /* when to search for the cause again; 0: nothing is pending */
    int                   signal, interrupts;
    double                interrupted; /* when the first stop request arrived */
    bool                  killing;
    double                deadline;             /* for SIGKILL */
    double                killed_at, remind_at; /* of SIGKILL; when to name those that have not ended since */
    double                answer_by;            /* for the answers of remote launchers; 0: all have answered */
    long                  oom_cgroup, oom_host; /* counters when the generation began */
} lk__launch_job;

/* ---- job.c ---- */
lk_status lk__launch_local(lk_context *context, const lk_launch_config *config, const lk__launch_part *part,
                           int *exit_code);
void      lk__job_print(lk__launch_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Descriptors, signals, folder, reaper, memory for `count` children. Close it also when it fails. */
lk_status lk__job_open(lk__launch_job *job, lk_context *context, const lk_launch_config *config,
                       const lk__launch_part *part, int count);
void      lk__job_close(lk__launch_job *job);        /* waits until queued output is written, unless interrupted */
void      lk__job_begin(lk__launch_job *job);        /* resets the state for a new generation */
int       lk__job_result(const lk__launch_job *job); /* the exit code */
int       lk__exit_code(int status);                 /* as in a shell */
lk_status lk__random_hex(lk_context *context, char *out, size_t bytes); /* 2 × bytes digits and a NUL */

/* ---- hosts.c ---- */
lk_status lk__launch_hosts(lk_context *context, const lk_launch_config *config, int *exit_code);

/* In a remote launcher: tells the first launcher if the failure here is due to a rank of another host. */
void lk__hosts_report_cause(lk__launch_job *job);

/* ---- watch.c ---- */
lk_status lk__job_watch(lk__launch_job *job); /* until every child has ended and all their output is queued */
void      lk__job_stop(lk__launch_job *job, lk__launch_end end_reason);
/* Waits once, at most `limit` seconds: handles signals (the second stop request kills at once), relays output, reaps
 * children, continues a stopped reaper and replaces a killed one. */
void lk__job_poll(lk__launch_job *job, double limit);
void lk__job_flush(lk__launch_job *job); /* until the queues are empty, the readers closed or another signal arrives */

/* ---- signals.c ---- */
lk_status lk__signals_parse(lk_context *context, const char *text, sigset_t *signals); /* "SIGTERM,SIGUSR1" */
lk_status lk__signals_open(lk__launch_job *job);
int       lk__signals_next(const lk__launch_job *job);             /* a signal that arrived; 0: none */
void      lk__signals_restore_in_child(const lk__launch_job *job); /* between fork and exec: async-signal-safe */
void      lk__signals_close(lk__launch_job *job);                  /* restores the caller's handlers and mask */
/* The signal that stops ranks: SIGTERM; if a signal stops the job, that one, unless it is SIGINT, SIGHUP or SIGQUIT.
 * With `plain`, those are passed on too, as a terminal would send them to the ranks as well. */
int lk__signal_for_ranks(const lk__launch_job *job);

/* ---- lines.c ---- */
lk_status lk__prefix_check(lk_context *context, const lk_launch_config *config);
void      lk__prefix_make(const lk__launch_job *job, lk__launch_child *child); /* for both of its streams */

/* ---- program.c ---- */
/* The path of a program without a slash in its name: on PATH; beside this executable. False: not there, out is "". */
bool lk__program_on_path(const char *name, char *out, size_t size);
bool lk__program_beside(const char *name, char *out, size_t size);
bool lk__program_is_own(const char *path); /* whether it is the path of this executable */

/* ---- start.c ---- */
/* Forks. Fails with LK_EINVAL or LK_ENOENT if the program cannot be executed, with LK_EIO if a system resource is
 * lacking. terminal: the child gets this process's terminal. */
lk_status lk__child_start(lk__launch_job *job, lk__launch_child *child, const char *const *argv,
                          char *const *environment, bool terminal);
lk_status lk__free_port(lk_context *context, int *port);
lk_status lk__own_address_check(lk_context *context, const char *address); /* LK_EINVAL if this host does not have it */
/* Checks that the descriptors for a job of `count` children are available; `each`: per child, while it runs. */
lk_status lk__descriptors_check(lk_context *context, int count, int each, const char *noun);

/* ---- environment.c ---- */
typedef struct lk__launch_environment {
    lk_context *context;
    char      **list; /* terminated by NULL; the first `own` are allocated here, the others are this process's */
    size_t      capacity, count, own;
    bool        short_of_memory;
} lk__launch_environment;
lk_status lk__environment_make(lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *environment);
lk_status lk__environment_make_ssh(lk__launch_job *job,
                                   /* this process's environment and the job's id */
                                   lk__launch_environment *environment);
void      lk__environment_free(lk__launch_environment *environment);

/* ---- topology.c ---- */
void lk__topology_list(const cpu_set_t *set, char *out, size_t size); /* "0-3,8" */
enum { LK__TOPOLOGY_TEXT = 512 };                                     /* bytes: how ranks are pinned, for a message */
/* device: lk_launch_config's. */
lk_status lk__topology_split(lk_context *context, int ranks, const char *device, cpu_set_t **cores, int *threads,
                             char text[LK__TOPOLOGY_TEXT]);
/* The same by memory nodes; *cores is reused, or allocated if NULL. */
lk_status lk__topology_bind(lk_context *context, const char *mode, int ranks, cpu_set_t **cores,
                            char text[LK__TOPOLOGY_TEXT]);

/* ---- numa.c ---- */
lk_status lk__numa_check(lk_context *context, const char *mode); /* LK_EINVAL for an unknown mode; NULL is fine */
typedef struct lk__launch_binding {
    const char      *root; /* prefix of every path, "" */
    const char      *mode;
    const cpu_set_t *allowed;
    const char      *visible; /* CUDA_VISIBLE_DEVICES; NULL: not set */
    int              ranks;
} lk__launch_binding;
/* One set per rank, within `allowed`. LK_EINVAL with the reason if this machine lacks what the mode needs. */
lk_status lk__numa_bind(lk_context *context, const lk__launch_binding *binding, cpu_set_t *cores);

/* Adds to each set the allowed cores of the memory nodes that it has a core of. */
void lk__numa_widen(const char *root, const cpu_set_t *allowed, int ranks, cpu_set_t *cores);

/* ---- gpus.c ---- */
enum { LK__GPUS = 64, LK__GPU_NAME = 32 };
typedef struct lk__launch_gpus {
    int  count;
    char names[LK__GPUS][LK__GPU_NAME]; /* addresses on the PCI bus, in their order */
} lk__launch_gpus;
void lk__gpus_list(const char *root, lk__launch_gpus *gpus);
/* How many GPUs a process sees. visible: CUDA_VISIBLE_DEVICES; NULL: not set. */
int lk__gpus_visible(const lk__launch_gpus *gpus, const char *visible);
/* The index in `gpus` of the one that a process sees under `number`; -1: not known. Entries of `visible` are numbers or
 * UUIDs. */
int  lk__gpu_find(const char *root, const lk__launch_gpus *gpus, const char *visible, int number);
bool lk__gpu_read(const char *root, const char *gpu, const char *file, char *out, size_t size); /* of its PCI device */

typedef struct lk__launch_locality {
    const char      *root; /* prefix of every path, "" */
    const char      *visible;
    const char      *device; /* LOCKSTEP_DEVICE; NULL: not set */
    bool             shares; /* ranks may share GPUs */
    const cpu_set_t *allowed;
    const int       *order; /* the allowed cores, in an order that keeps siblings together */
    int              count;
    int              ranks;
} lk__launch_locality;
/* Assigns to each rank cores that are local to its GPU: an equal share of those that it has in common with other ranks.
 * False: ranks do not use GPUs, or one has too few such cores, or the kernel does not list them. If the device is not
 * known, ranks count as using GPUs where there are as many of them. */
bool lk__gpus_assign(lk_context *context, const lk__launch_locality *locality, cpu_set_t *cores);

/* ---- sysfs.c ---- */
/* The first line of a file; false: there is none. root: prefix of every path, "". */
bool lk__sysfs_read(const char *root, char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Parses the kernel's "0-3,8"; cores outside `among` are dropped. */
void lk__sysfs_cpus(const char *text, const cpu_set_t *among, cpu_set_t *set);

/* hwloc.c: the host's cores in an order in which neighbours share most; returns their number, 0 if hwloc is not
 * available. */
int lk__hwloc_order(int *cpus, int most);

/* ---- reaper.c ---- */
lk_status lk__reaper_start(lk__launch_job *job);
void      lk__reaper_notify(lk__launch_job *job, pid_t pid, bool alive);
void      lk__reaper_stop(lk__launch_job *job);
lk_status lk__bystanders_record(lk__launch_job *job); /* before any process of the job is started */
/* Stops the remaining processes of a generation, relaying their output: SIGTERM, then SIGKILL after `grace` seconds. */
void lk__leftovers_stop(lk__launch_job *job, double grace);

/* ---- oom.c ---- */
/* Number of out-of-memory kills so far, in our cgroup and on the whole host; -1 if unknown. `root`: prefix of every
 * path, "". */
void lk__oom_read(const char *root, long *in_cgroup, long *on_host);
/* The line of the kernel's log ("/dev/kmsg") about this process's out-of-memory kill; false: none, or the log is not
 * readable. */
bool lk__oom_in_log(const char *path, pid_t pid, char *out, size_t size);

/* ---- cause.c ---- */
void lk__cause_record_end(lk__launch_job *job, lk__launch_child *child); /* reads its flight recorder */
/* True if the rank that caused the failure is known: it is job->first. False: no rank failed, or the end of the
 * probable cause is still awaited. */
bool lk__cause_find(lk__launch_job *job);
/* The first failure's child if that failure is due to a rank of another host; else NULL. */
lk__launch_child *lk__cause_elsewhere(lk__launch_job *job);

/* ---- report.c ---- */
bool lk__job_user_error(const lk__launch_job *job); /* with `plain`: a rank ended because of its options */
void lk__job_report(lk__launch_job *job);           /* explains on config->err how the generation ended */
void lk__job_report_unkilled(lk__launch_job *job);  /* names the children that run in spite of SIGKILL, and why */
void lk__describe_end(int status, char *out, size_t size); /* "exit code 3", "signal 11 (SIGSEGV: …)" */

/* ---- folder.c ---- */
/* sets job->folder, before the reaper starts, which may have to remove it */
lk_status lk__folder_name(lk__launch_job *job);
/* Whether a log directory is needed: named, or needed for another option. */
static inline bool lk__wants_logs(const lk_launch_config *config)
{
    return config->log_dir || config->tee || config->redirects || config->stdout_filters || config->stderr_filters;
}
lk_status lk__folder_open(lk__launch_job *job); /* creates it, and the log directory */
lk_status lk__folder_child(lk__launch_job   *job,
                           lk__launch_child *child); /* its directory, log files and error file of this generation */
int       lk__folder_remove(const char *path);       /* recursively, 0 or errno; does not allocate from a context */
lk_status lk__folder_filtered(lk__launch_job *job);  /* opens the files of filtered lines of this generation, if any */
void      lk__folder_filtered_close(lk__launch_job *job);
/* Bits of "3" or "0:1,1:3" for one local rank; below 0: invalid. */
int lk__std_bits(const char *text, int local_rank);
/* "0,2": LK_EINVAL if it is not a list of this form, or if an entry is not below `ranks`. NULL is fine. */
lk_status lk__filter_check(lk_context *context, const char *text, int ranks);
bool      lk__filter_has(const char *text, int local_rank);

#endif
