/* launch.h - starts the ranks of a job, relays their output, reports how they ended and leaves no process behind. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_launch_config {
    size_t             size LK_ZERO;    /* sizeof this struct; set by LK_LAUNCH_CONFIG_INIT */
    const char *const *program LK_ZERO; /* argument vector for execvp, terminated by NULL */
    int                ranks LK_ZERO;   /* on this host */
    int nodes LK_ZERO, node LK_ZERO;    /* number of hosts, each of which calls lk_launch, and the index of this host */
    const char *master_address LK_ZERO; /* NULL: this host; required when nodes > 1 */
    int         master_port LK_ZERO;    /* 0: a free one whenever ranks are started; required when nodes > 1 */
    const char *run_id LK_ZERO;         /* TORCHELASTIC_RUN_ID; NULL: random */
    const char *role LK_ZERO;           /* ROLE_NAME */
    int         max_restarts LK_ZERO;   /* of all ranks, after a failure; must be 0 when nodes > 1 */
    double      grace LK_ZERO;          /* seconds from SIGTERM to SIGKILL */
    double monitor_interval LK_ZERO;    /* seconds between updates of unfinished lines (progress bars) on a terminal */
    bool   no_pin LK_ZERO;              /* do not set the ranks' CPU affinity */
    const char *log_dir LK_ZERO;        /* NULL: no log files, unless tee or redirects require them */
    /* "0" (none), "1" (stdout), "2" (stderr), "3" (both), or by local rank, as in "0:1,1:3"; NULL: not given */
    const char *tee LK_ZERO, *redirects LK_ZERO;
    const char *local_ranks_filter LK_ZERO; /* "0,2": only these ranks' output is shown; NULL: all */
    int         debug_rank LK_ZERO;         /* the rank that gets the terminal; negative: none */
    const char *debugger LK_ZERO;           /* prefix of debug_rank's command line, split at spaces; "": none */
    const char *hosts LK_ZERO;              /* "a:2,b:2": over ssh; NULL: this host */
    const char *ssh LK_ZERO;                /* remote shell: takes a host and a command line; split at spaces */
    const char *remote_command LK_ZERO;     /* path or name of `lockstep` on those hosts */
    /* relay lines without the rank prefix, print nothing about threads and cores and, after a stop request, wait for as
     * long as ranks are saving */
    bool plain LK_ZERO;
    int  out LK_ZERO, err LK_ZERO; /* descriptors for the ranks' output and for the launcher's messages */
    /* seconds that ranks wait for each other to join (LOCKSTEP_JOIN_TIMEOUT); 0: the ranks' default */
    double join_timeout LK_ZERO;
    /* address on which this host's ranks listen for ranks on other hosts; NULL: the interface towards rank 0 */
    const char *local_address LK_ZERO;
    const char *signals LK_ZERO; /* comma-separated names of signals that stop the job */
    /* prefix of each line: a template with ${rank}, ${local_rank}, ${role_name} and ${hostname}; NULL: "[rank N] " */
    const char *line_prefix LK_ZERO;
    /* lines that contain one of these strings ("a,b"; ",," stands for a comma) are also written to
     * filtered_stdout.log */
    const char *stdout_filters LK_ZERO;
    const char *stderr_filters LK_ZERO; /* the same for filtered_stderr.log; NULL: none */
    bool virtual_local_rank LK_ZERO; /* LOCAL_RANK is 0 for every rank, and CUDA_VISIBLE_DEVICES lists only its GPU */
    /* "node", "socket", "exclusive" or "core-complex"; NULL: equal shares of the cores */
    const char *numa_binding LK_ZERO;
    /* the device on which ranks compute, as in lk_context_config: ranks on GPUs get cores local to their GPU. NULL:
     * LOCKSTEP_DEVICE or, if that is not set, GPUs if there are exactly as many as ranks */
    const char *device LK_ZERO;
} lk_launch_config;
#define LK_LAUNCH_CONFIG_INIT                                                                                         \
    {.size = sizeof(lk_launch_config), .ranks = 1, .nodes = 1, .role = "default", .grace = 10.0,                      \
     .monitor_interval = 0.1, .debug_rank = -1, .debugger = "gdb --args", .ssh = "ssh", .remote_command = "lockstep", \
     .out = 1, .err = 2, .signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}

/* Runs the job to its end. LK_OK: the job ran, and *exit_code is 0 or the exit code of the rank that failed first (128
 * + signal if a signal ended it); the report is written to config->err. Any other status: the job was not started.
 * Until lk_launch returns, it handles the process's signals and reaps all of the process's children, even those that it
 * did not start (which it does not kill). Only one thread at a time may call it. */
LK_API lk_status lk_launch(lk_context *context, const lk_launch_config *config, int *exit_code);

/* The launcher on each remote host of lk_launch_config.hosts: reads the job specification from descriptor `in`, and
 * stops the job when `in` reaches its end. */
LK_API lk_status lk_launch_remote(lk_context *context, int in, int out, int err, int *exit_code);

/* The number of ranks that `text` ("auto", "gpu", "cpu" or a number) stands for on this host. */
LK_API lk_status lk_launch_count(lk_context *context, const char *text, int *ranks);
/* The number of NUMA nodes of this host on which that many ranks run, with the cores that lk_launch assigns to them. */
LK_API lk_status lk_launch_nodes(lk_context *context, int ranks, int *nodes);
/* Bytes that each rank may allocate under this process's limit on address space (ulimit -v), which ranks inherit;
 * SIZE_MAX: there is no limit. */
LK_API size_t lk_launch_rank_memory(void);

LK_END_DECLS
#endif
