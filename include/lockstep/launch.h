/* launch.h - starts the ranks of a job, passes on what they print, explains how they ended and leaves nobody behind. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_launch_config {
    size_t             size;             /* sizeof this struct; set by LK_LAUNCH_CONFIG_INIT */
    const char *const *program;          /* as execvp takes it, NULL at the end */
    int                ranks;            /* on this host */
    int                nodes, node;      /* several hosts, each with its own lk_launch: how many, and which this is */
    const char        *master_address;   /* NULL: this host; needed when nodes > 1 */
    int                master_port;      /* 0: a free one for each generation; needed when nodes > 1 */
    const char        *run_id;           /* TORCHELASTIC_RUN_ID; NULL: made up */
    const char        *role;             /* ROLE_NAME */
    int                max_restarts;     /* of all ranks, after a failure; 0 when nodes > 1 */
    double             grace;            /* seconds from SIGTERM to SIGKILL */
    double             monitor_interval; /* seconds between looks at unfinished lines (progress bars) on a terminal */
    bool               no_pin;           /* leave the ranks' affinity alone */
    const char        *log_dir;          /* NULL: no files unless tee or redirects asks for them */
    const char *tee, *redirects;    /* "0" … "3" or "0:1,1:3" by local rank: 1 stdout, 2 stderr; NULL: not given */
    const char *local_ranks_filter; /* "0,2": only these are shown; NULL: all */
    int         debug_rank;         /* gets the terminal; below 0: none */
    const char *debugger;           /* put before debug_rank's program, split at blanks; "" for none */
    const char *hosts;              /* "a:2,b:2": over ssh; NULL: this host */
    const char *ssh;                /* the command that takes a host and a command line, split at blanks */
    const char *remote_command;     /* what `lockstep` is called on those hosts */
    bool        plain; /* passes lines on as they are, without the rank's name, and says nothing of threads and cores */
    int         out, err;     /* descriptors for the ranks' output and for what the launcher says */
    double      join_timeout; /* seconds that ranks wait for each other: LOCKSTEP_JOIN_TIMEOUT; 0: their own default */
    const char *local_address; /* of this host, where its ranks listen for those of other hosts; NULL: what leads to rank 0 */
    const char *signals;       /* names with commas between: these stop the job */
    const char *line_prefix; /* before each line: a template with ${rank}, ${local_rank}, ${role_name} and ${hostname}; NULL: "[rank N] " */
    const char *stdout_filters; /* lines that hold one of these words are also written to filtered_stdout.log; "a,b", ",," is a comma */
    const char *stderr_filters;     /* the same to filtered_stderr.log; NULL: none */
    bool        virtual_local_rank; /* LOCAL_RANK is 0 for every rank, and CUDA_VISIBLE_DEVICES names its GPU alone */
    const char *numa_binding; /* "node", "socket", "exclusive" or "core-complex" instead of equal shares of the cores; NULL: those */
} lk_launch_config;
#define LK_LAUNCH_CONFIG_INIT                                                                                       \
    {sizeof(lk_launch_config), NULL, 1, 1, 0, NULL, 0, NULL, "default", 0, 10.0, 0.1, false, NULL, NULL, NULL, NULL, -1, \
     "gdb --args", NULL, "ssh", "lockstep", false, 1, 2, 0, NULL, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", NULL, NULL, NULL, false, NULL}

/* Runs the job to its end. LK_OK: it ran, and *exit_code is 0 or the first failure's (128 + signal where a signal ended it); why
 * stands on config->err. Anything else: it was not started. Takes the process over while it lasts: its signals, and the ends of
 * its children, also of those that it did not start (it leaves them alive). One thread only. */
LK_API lk_status lk_launch(lk_context *context, const lk_launch_config *config, int *exit_code);

/* The far end of `hosts`: reads what to run from descriptor `in` and stops everything when that ends. */
LK_API lk_status lk_launch_far_end(lk_context *context, int in, int out, int err, int *exit_code);

/* How many ranks "auto", "gpu", "cpu" or a number means on this host. */
LK_API lk_status lk_launch_count(lk_context *context, const char *text, int *ranks);

LK_END_DECLS
#endif
