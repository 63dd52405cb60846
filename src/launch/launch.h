/* launch/launch.h - the inside of the launcher: a job, its children, the lines they print, and the keeper that outlives it. */
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

enum { LK__LAUNCH_PATH = 512, LK__JOB_ID = 128, LK__OWN_ID = 17, LK__TOKEN = 33, LK__ANSWER_SECONDS = 30 };

#define LK__TRY(call)                    \
    do {                                 \
        lk_status status_ = (call);      \
        if (status_ < 0) return status_; \
    } while (0)

/* A rank, or in the launcher of `hosts` one ssh. */
typedef struct lk__launch_child {
    char              name[80];                /* "rank 3", "host b" */
    int               rank, local_rank, ranks; /* ranks: of a far end; 0: one */
    pid_t             pid;                     /* also its process group */
    bool              running;
    bool              asked;       /* to stop, before it ended */
    bool              forced;      /* it needed SIGKILL */
    bool              silent;      /* a far end that gave no answer, in time or before it ended */
    bool              unanswering; /* the cause of the failure, but it had not ended by itself; then: */
    char              state;       /* of its process, as proc(5) has them; 0: not known */
    int               blamed;      /* a lk__comm_cause_kind: for what */
    bool              consequence; /* it failed because another rank had */
    lk__comm_cause    cause;       /* whom its own failure is due to, once it ended */
    int               status;      /* as wait gives it */
    struct rusage     usage;
    double            began, ended; /* by lk__now */
    lk__launch_stream streams[2];   /* stdout, stderr */
    lk__launch_tail   tail;
    char              folder[LK__LAUNCH_PATH];
    char              error_file[LK__LAUNCH_PATH];
    char              diary[LK__LAUNCH_PATH]; /* comm/diary.h */
    int               input;                  /* write end of its standard input; -1: none */
    int               port;                   /* of a far end: the one that it found free; 0: it has not spoken yet */
} lk__launch_child;

typedef struct lk__launch_reaper {
    pid_t pid;
    int   pipe; /* the launcher's end; the keeper acts when all copies of it are gone */
} lk__launch_reaper;

/* A process that descended from this one before the job began: bash -c 'tee log & exec lockstep run …' has one. */
typedef struct lk__launch_bystander {
    pid_t              pid, group;
    unsigned long long start; /* as /proc/PID/stat gives it: with the pid it names one process for ever */
} lk__launch_bystander;

typedef enum lk__launch_end {
    LK__RUNNING,
    LK__FAILED,
    LK__SIGNALLED,
    LK__INPUT_ENDED,
    LK__OUTPUT_CLOSED
} lk__launch_end;

/* What a far end was told and a plain launch works out for itself. */
typedef struct lk__launch_part {
    int         first_rank, world;
    const char *token;                    /* NULL: made for each generation */
    const char *parent;                   /* the id of the job that this is a part of; NULL: from the environment */
    int         watch;                    /* its end means stop; -1: none */
    int         colour;                   /* of prefixes; below 0: by the terminal */
    int         generation, max_restarts; /* what the ranks are told; a far end restarts nothing by itself */
} lk__launch_part;

typedef struct lk__launch_job {
    lk_context             *context;
    const lk_launch_config *config;
    lk__launch_part         place;
    char                    id[LK__JOB_ID];
    char                    token[LK__TOKEN];
    char                    own_id[LK__OWN_ID]; /* the last part of id */
    const char             *run_id;
    char                    host[80];
    char                  folder[LK__LAUNCH_PATH]; /* goes with the job: diaries; error files where there are no logs */
    int                   lock;                    /* held in folder while the job lives; -1: none */
    char                  logs[LK__LAUNCH_PATH];   /* stays: logs and error files; "": none */
    int                   generation;
    const char           *address;
    int                   port;
    cpu_set_t            *cores;   /* one set a rank; NULL: not pinned */
    int                   threads; /* of each rank: LOCKSTEP_THREADS and OMP_NUM_THREADS */
    bool                  head;    /* children are ssh, not ranks */
    lk__launch_child     *children;
    int                   count, alive;
    lk__launch_reaper     keeper;
    lk__launch_sink       sinks[2];
    lk__launch_sink      *out, *err;   /* the same one where both are one file */
    int                   signals;     /* a signalfd */
    sigset_t              stops;       /* those that stop the job */
    int                   filtered[2]; /* files of filtered lines; -1: none */
    sigset_t              old_mask;
    struct sigaction      old_pipe, old_child;
    int                   was_reaper;
    lk__launch_bystander *bystanders;
    size_t                bystander_count, bystander_capacity;
    struct pollfd        *polls;
    size_t                poll_capacity;
    lk__launch_end        why;
    lk__launch_child     *first;    /* the cause of the failure */
    lk__launch_child     *reporter; /* whose group named it; NULL: none did */
    char   was_in[512];             /* what a first that had not ended was doing, before it was made to go on and end */
    double decide_by;               /* when to look for the cause again; 0: nothing to decide */
    int    signal, interrupts;
    bool   killing;
    double deadline;             /* for SIGKILL */
    double answer_by;            /* for the first word of far ends; 0: all have spoken */
    long   oom_cgroup, oom_host; /* counters when the generation began */
    double began;
} lk__launch_job;

/* ---- job.c ---- */
lk_status lk__launch_here(lk_context *context, const lk_launch_config *config, const lk__launch_part *place,
                          int *exit_code);
void      lk__job_print(lk__launch_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Descriptors, signals, folder, keeper, room for `count` children. Close it also when it fails. */
lk_status lk__job_open(lk__launch_job *job, lk_context *context, const lk_launch_config *config,
                       const lk__launch_part *place, int count);
void      lk__job_close(lk__launch_job *job);        /* waits for what is still to be written, unless interrupted */
void      lk__job_begin(lk__launch_job *job);        /* a generation: nobody has failed yet */
int       lk__job_result(const lk__launch_job *job); /* the exit code */
int       lk__exit_code(int status);                 /* as a shell gives it */
lk_status lk__random_hex(lk_context *context, char *out, size_t bytes); /* 2 × bytes digits and a NUL */

/* ---- hosts.c ---- */
lk_status lk__launch_hosts(lk_context *context, const lk_launch_config *config, int *exit_code);

/* Of a far end: says to its launcher that the failure here is due to a rank of another host, where it is. */
void lk__hosts_tell_blame(lk__launch_job *job);

/* ---- watch.c ---- */
lk_status lk__watch(lk__launch_job *job); /* until every child has ended and what they printed is in the queues */
void      lk__job_stop(lk__launch_job *job, lk__launch_end why);
void lk__job_take_signals(lk__launch_job *job); /* takes the signals that came; the second request to stop kills at once */
void lk__job_flush(lk__launch_job *job); /* until the queues are empty, the readers gone or somebody loses patience */

/* ---- signals.c ---- */
lk_status lk__signals_parse(lk_context *context, const char *text, sigset_t *signals); /* "SIGTERM,SIGUSR1" */
lk_status lk__signals_take(lk__launch_job *job);
/* What asks ranks to stop: SIGTERM. Where a signal stops the job: that one, if it is none of SIGINT, SIGHUP and SIGQUIT, or the
 * ranks are `plain`: then a terminal would have sent it to them as well. */
int lk__signal_for_ranks(const lk__launch_job *job);

/* ---- lines.c ---- */
lk_status lk__prefix_check(lk_context *context, const lk_launch_config *config);
void      lk__prefix_make(const lk__launch_job *job, lk__launch_child *child); /* for both of its streams */

/* ---- start.c ---- */
/* Forks. With a sentence: LK_EINVAL or LK_ENOENT when the program is none that can be executed, LK_EIO when the system does not
 * give what is needed. terminal: the child gets ours. */
lk_status lk__child_start(lk__launch_job *job, lk__launch_child *child, const char *const *argv,
                          char *const *environment, bool terminal);
lk_status lk__free_port(lk_context *context, int *port);
lk_status lk__own_address_check(lk_context *context,
                                const char *address); /* LK_EINVAL where this host does not have it */
/* Whether as many descriptors can be had as a job of `count` children needs; `each`: of every child, while it runs. */
lk_status lk__descriptors_check(lk_context *context, int count, int each, const char *noun);

/* ---- environment.c ---- */
typedef struct lk__launch_environment {
    lk_context *context;
    char      **list; /* NULL at the end; the first `own` are ours, the others this process's */
    size_t      capacity, count, own;
    bool        short_of_memory;
} lk__launch_environment;
lk_status lk__environment_make(lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *environment);
lk_status lk__environment_mark(lk__launch_job *job, lk__launch_environment *environment); /* ours, and the job's id */
void      lk__environment_free(lk__launch_environment *environment);

/* ---- topology.c ---- */
lk_status lk__topology_split(lk_context *context, int ranks, cpu_set_t **cores, int *threads, char *words, size_t size);
/* The same by memory nodes; takes *cores, made or NULL. */
lk_status lk__topology_bind(lk_context *context, const char *mode, int ranks, cpu_set_t **cores, char *words,
                            size_t size);

/* ---- numa.c ---- */
lk_status lk__numa_check(lk_context *context, const char *mode); /* LK_EINVAL for none of its words; NULL is fine */
/* One set a rank, within `allowed`. root is put before every path: "". visible: CUDA_VISIBLE_DEVICES, NULL: not set. LK_EINVAL with
 * the reason where this machine does not have what the mode needs. */
lk_status lk__numa_bind(lk_context *context, const char *root, const char *mode, const cpu_set_t *allowed,
                        const char *visible, int ranks, cpu_set_t *cores);

/* hwloc.c: the host's cores in an order in which neighbours share most; how many, 0 where hwloc is not there. */
int lk__hwloc_order(int *cpus, int most);

/* ---- keeper.c ---- */
lk_status lk__reaper_start(lk__launch_job *job);
void      lk__reaper_tell(lk__launch_job *job, pid_t pid, bool alive);
void      lk__reaper_end(lk__launch_job *job);
lk_status lk__bystanders_note(lk__launch_job *job); /* before anything of the job is started */
/* Asks the leftovers of a generation to go, waits up to `grace` seconds, then makes them. */
void lk__sweep(lk__launch_job *job, double grace);

/* ---- oom.c ---- */
/* How often the kernel killed for memory so far, in our cgroup and on the whole host; -1 where it does not say. `root` is put
 * before every path: "". */
void lk__oom_read(const char *root, long *in_cgroup, long *on_host);
/* What the kernel's log ("/dev/kmsg") says of this process having been killed for memory; false: nothing, or it may not be read. */
bool lk__oom_in_log(const char *path, pid_t pid, char *out, size_t size);

/* ---- cause.c ---- */
void lk__cause_note_end(lk__launch_job *job, lk__launch_child *child); /* takes what it left behind */
/* Whether it is known which rank caused the failure, if there is one: then it is job->first. False: nobody failed, or the end of
 * the one that is to cause is waited for. */
bool lk__cause_find(lk__launch_job *job);
/* The first failure's child where that failure is due to a rank of another host; else NULL. */
lk__launch_child *lk__cause_elsewhere(lk__launch_job *job);

/* ---- verdict.c ---- */
void lk__verdict(lk__launch_job *job);
void lk__describe_end(int status, char *out, size_t size); /* "exit code 3", "signal 11 (SIGSEGV: …)" */

/* ---- folder.c ---- */
lk_status lk__folder_name(lk__launch_job *job); /* the one that is removed: its name, before the keeper that is to remove it */
/* Whether a log directory is asked for, by name or because something is written to it. */
static inline bool lk__wants_logs(const lk_launch_config *config)
{
    return config->log_dir || config->tee || config->redirects || config->stdout_filters || config->stderr_filters;
}
lk_status lk__folder_open(lk__launch_job *job); /* makes it, and the one of the logs */
lk_status lk__folder_child(lk__launch_job   *job,
                           lk__launch_child *child); /* its directory, log files and error file of this generation */
void      lk__folder_remove(const char *path); /* with all that is in it; calls nothing that allocates from a context */
lk_status lk__folder_filtered(lk__launch_job *job); /* the files of filtered lines of this generation, where they are wanted */
void lk__folder_filtered_close(lk__launch_job *job);
/* Bits of "3" or "0:1,1:3" for one local rank; below 0: not understood. */
int lk__std_bits(const char *text, int local_rank);
/* "0,2": LK_EINVAL when it is no such list, or when one of them is not below `ranks`. NULL is fine. */
lk_status lk__filter_check(lk_context *context, const char *text, int ranks);
bool      lk__filter_has(const char *text, int local_rank);

#endif
