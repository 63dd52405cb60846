/* launch.h - starts the ranks of a job, relays their output, reports how they ended and leaves no process behind. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_launch_config {
    size_t             size;           /* sizeof this struct; set by LK_LAUNCH_CONFIG_INIT */
    const char *const *program;        /* as for execvp, terminated by NULL */
    int                ranks;          /* on this host */
    int                nodes, node;    /* of hosts that each call lk_launch: their number, and the index of this one */
    const char        *master_address; /* NULL: this host; required when nodes > 1 */
    int                master_port;    /* 0: a free one for each generation; required when nodes > 1 */
    const char        *run_id;         /* TORCHELASTIC_RUN_ID; NULL: random */
    const char        *role;           /* ROLE_NAME */
    int                max_restarts;   /* of all ranks, after a failure; 0 when nodes > 1 */
    double             grace;          /* seconds from SIGTERM to SIGKILL */
    double             monitor_interval; /* seconds between updates of unfinished lines (progress bars) on a terminal */
    bool               no_pin;           /* do not set the ranks' CPU affinity */
    const char        *log_dir;          /* NULL: no files unless tee or redirects needs them */
    const char *tee, *redirects;    /* "0" … "3" or "0:1,1:3" by local rank: 1 stdout, 2 stderr; NULL: not given */
    const char *local_ranks_filter; /* "0,2": only the output of these is shown; NULL: all */
    int         debug_rank;         /* gets the terminal; below 0: none */
    const char *debugger;           /* prefix of debug_rank's command line, split at spaces; "": none */
    const char *hosts;              /* "a:2,b:2": over ssh; NULL: this host */
    const char *ssh;                /* remote shell: takes a host and a command line; split at spaces */
    const char *remote_command;     /* path or name of `lockstep` on those hosts */
    bool        plain;        /* relays lines without the rank prefix and prints nothing about threads and cores */
    int         out, err;     /* descriptors for the ranks' output and for the launcher's messages */
    double      join_timeout; /* seconds that ranks wait for each other: LOCKSTEP_JOIN_TIMEOUT; 0: their own default */
    const char *local_address; /* of this host, where its ranks listen for other hosts' ranks; NULL: of the interface to rank 0 */
    const char *signals; /* comma-separated names: these stop the job */
    const char *line_prefix; /* before each line: a template with ${rank}, ${local_rank}, ${role_name} and ${hostname}; NULL: "[rank N] " */
    const char *stdout_filters; /* lines that contain one of these strings are also written to filtered_stdout.log; "a,b", ",," is a comma */
    const char *stderr_filters;     /* the same to filtered_stderr.log; NULL: none */
    bool        virtual_local_rank; /* LOCAL_RANK is 0 for every rank, and CUDA_VISIBLE_DEVICES lists only its GPU */
    const char *numa_binding; /* "node", "socket", "exclusive" or "core-complex"; NULL: equal shares of the cores */
} lk_launch_config;
#define LK_LAUNCH_CONFIG_INIT                                                                                       \
    {sizeof(lk_launch_config), NULL, 1, 1, 0, NULL, 0, NULL, "default", 0, 10.0, 0.1, false, NULL, NULL, NULL, NULL, -1, \
     "gdb --args", NULL, "ssh", "lockstep", false, 1, 2, 0, NULL, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", NULL, NULL, NULL, false, NULL}

/* Runs the job to its end. LK_OK: it ran, and *exit_code is 0 or that of the first failure (128 + signal if a signal ended it); the
 * report is written to config->err. Any other status: the job was not started. Until it returns, it handles the process's signals and
 * reaps all of its children, also those that it did not start (it does not kill them). The process must have one thread only. */
LK_API lk_status lk_launch(lk_context *context, const lk_launch_config *config, int *exit_code);

/* The remote launcher of `hosts`: reads the job specification from descriptor `in` and stops the job when `in` reaches its end. */
LK_API lk_status lk_launch_remote(lk_context *context, int in, int out, int err, int *exit_code);

/* The number of ranks that "auto", "gpu", "cpu" or a number means on this host. */
LK_API lk_status lk_launch_count(lk_context *context, const char *text, int *ranks);

LK_END_DECLS
#endif
