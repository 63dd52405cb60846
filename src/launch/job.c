/* job.c - one job on one host, from its configuration to its exit code, including restarts (generations). */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/launch.h"

#include "base/config.h"
#include "base/entropy.h"
#include "comm/rendezvous/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 4096, TOKEN_BYTES = 16 };

void lk__job_print(lk__launch_job *job, const char *format, ...)
{
    char    text[2048], shown[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lk_printable(text, shown, sizeof shown); /* may contain names of hosts, files and programs */
    lk__sink_line(job->err, "lockstep run: ", shown, strlen(shown));
    lk__sink_flush(job->err);
}

int lk__exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

lk_status lk__random_hex(lk_context *context, char *out, size_t bytes)
{
    if (!lk__entropy_hex(out, bytes))
        return lk__fail(context, LK_EIO, "cannot get random numbers from the system: %s", strerror(errno));
    return LK_OK;
}

/* ---- opening and closing a job ---- */

static bool same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static lk_status make_names(lk__launch_job *job)
{
    const char *parent = job->part.parent ? job->part.parent : lk__environment(NULL, LK__ENV_LOCKSTEP_JOB);
    if (lk__random_hex(job->context, job->own_id, (LK__OWN_ID - 1) / 2) < 0) return LK_EIO;
    /* The id of a job inside a job contains both ids, so that the end of the outer job also ends the inner one. */
    if (parent && *parent && strlen(parent) + LK__OWN_ID + 1 < sizeof job->id)
        snprintf(job->id, sizeof job->id, "%s.%s", parent, job->own_id);
    else
        snprintf(job->id, sizeof job->id, "%s", job->own_id);
    job->run_id = job->config->run_id ? job->config->run_id : job->own_id;
    if (gethostname(job->host, sizeof job->host - 1) < 0) snprintf(job->host, sizeof job->host, "this host");
    return LK_OK;
}

lk_status lk__job_open(lk__launch_job *job, lk_context *context, const lk_launch_config *config,
                       const lk__launch_part *part, int count)
{
    memset(job, 0, sizeof *job);
    job->context = context;
    job->config = config;
    job->part = *part;
    job->reaper = (lk__launch_reaper){0, -1};
    job->filtered[0] = job->filtered[1] = -1;
    job->lock = -1;
    lk__sink_open(&job->sinks[0], context, config->out);
    lk__sink_open(&job->sinks[1], context, config->err);
    job->out = &job->sinks[0];
    job->err = same_file(config->out, config->err) ? job->out : &job->sinks[1];
    prctl(PR_GET_CHILD_SUBREAPER, &job->was_reaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphaned descendants are reparented to us, so that we find them */
    LK__TRY(lk__signals_open(job));
    LK__TRY(make_names(job));
    LK__TRY(lk__folder_name(job));
    LK__TRY(lk__bystanders_record(job));
    job->children = lk__alloc(context, LK_MEMORY_OTHER, (size_t)count * sizeof *job->children);
    if (!job->children) return LK_ENOMEM;
    job->count = count;
    LK__TRY(lk__reaper_start(job)); /* before the folder is created, so that it is always removed */
    return lk__folder_open(job);
}

void lk__job_close(lk__launch_job *job)
{
    if (job->children) lk__job_flush(job);
    lk__folder_filtered_close(job);
    int why = job->folder[0] ? lk__folder_remove(job->folder) : 0;
    if (why)
        lk__job_print(job, "cannot remove the temporary files in %s: %s; the next launch will try again", job->folder,
                      strerror(why));
    if (job->lock >= 0) close(job->lock);
    lk__reaper_stop(job); /* after the folder was removed */
    prctl(PR_SET_CHILD_SUBREAPER, job->was_reaper);
    lk__signals_close(job);
    lk__sink_free(&job->sinks[0]);
    lk__sink_free(&job->sinks[1]);
    lk__free(job->context, LK_MEMORY_OTHER, job->bystanders, job->bystander_capacity * sizeof *job->bystanders);
    lk__free(job->context, LK_MEMORY_OTHER, job->polls, job->poll_capacity * sizeof *job->polls);
    lk__free(job->context, LK_MEMORY_OTHER, job->children, (size_t)job->count * sizeof *job->children);
    lk__free(job->context, LK_MEMORY_OTHER, job->cores, (size_t)job->count * sizeof *job->cores);
    lk__free(job->context, LK_MEMORY_OTHER, job->allowed, (size_t)job->count * sizeof *job->allowed);
}

void lk__job_begin(lk__launch_job *job)
{
    job->end_reason = LK__RUNNING;
    job->first = job->reporter = NULL;
    job->decide_by = 0;
    job->killing = false;
    sigemptyset(&job->forwarded);
    lk__oom_read("", &job->oom_cgroup, &job->oom_host);
    memset(job->children, 0, (size_t)job->count * sizeof *job->children);
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        child->input = -1;
        for (int j = 0; j < 2; j++) {
            child->streams[j].fd = child->streams[j].file = -1;
            child->streams[j].sink = j ? job->err : job->out;
            child->streams[j].tail = &child->tail;
        }
    }
}

int lk__job_result(const lk__launch_job *job)
{
    switch (job->end_reason) {
    case LK__RUNNING: return 0;
    case LK__FAILED: /* an unresponsive rank or host was ended by us, so its status means nothing */
        return job->first->no_answer || job->first->unresponsive ? 1 : lk__exit_code(job->first->status);
    case LK__SIGNALLED:
        for (int i = 0; i < job->count; i++)
            if (!job->config->plain || job->children[i].status != 0) return 128 + job->signal;
        return 0; /* one command in several processes, and each ended with 0 */
    case LK__INPUT_ENDED: return 128 + SIGTERM;
    case LK__OUTPUT_CLOSED: return job->out->error == EPIPE ? 128 + SIGPIPE : 1;
    }
    return 1;
}

/* ---- ranks on this host ---- */

static lk_status check_config(lk_context *context, const lk_launch_config *config)
{
    if (!config->program || !config->program[0]) return lk__fail(context, LK_EINVAL, "no program to start");
    if (config->ranks < 1 || config->ranks > MOST_RANKS)
        return lk__fail(context, LK_EINVAL, "cannot start %d ranks on one host: expected 1 to %d", config->ranks,
                        MOST_RANKS);
    if (config->nodes < 1 || config->node < 0 || config->node >= config->nodes)
        return lk__fail(context, LK_EINVAL, "node rank %d of %d nodes: expected 0 to %d", config->node, config->nodes,
                        config->nodes - 1);
    if (config->nodes > 1 && (!config->master_address || !config->master_port))
        return lk__fail(context, LK_EINVAL, "%d nodes require the address and port of node 0", config->nodes);
    if (config->nodes > 1 && config->max_restarts)
        return lk__fail(context, LK_EINVAL,
                        "restarts are not supported with %d nodes: each launcher controls only its own ranks",
                        config->nodes);
    if (config->join_timeout < 0)
        return lk__fail(context, LK_EINVAL, "the join timeout is %g s: expected 0 (the default) or more",
                        config->join_timeout);
    if (config->numa_binding && config->no_pin)
        return lk__fail(context, LK_EINVAL,
                        "numa_binding (--numa-binding) and no_pin (--no-pin) are mutually exclusive");
    LK__TRY(lk__numa_check(context, config->numa_binding));
    if (config->local_address) LK__TRY(lk__own_address_check(context, config->local_address));
    if (config->grace < 0 || config->monitor_interval <= 0 || config->max_restarts < 0)
        return lk__fail(context, LK_EINVAL,
                        "the grace period and the number of restarts must not be negative, and the monitor interval "
                        "must be positive");
    sigset_t signals;
    LK__TRY(lk__signals_parse(context, config->signals, &signals));
    LK__TRY(lk__prefix_check(context, config));
    const char *const texts[] = {config->tee, config->redirects};
    for (int i = 0; i < 2; i++)
        if (texts[i] && lk__std_bits(texts[i], 0) < 0)
            return lk__fail(context, LK_EINVAL,
                            "'%.40s' is invalid: expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a "
                            "comma-separated list of LOCAL_RANK:WHICH",
                            texts[i]);
    return LK_OK;
}

static lk_status check_debug(lk_context *context, const lk_launch_config *config, const lk__launch_part *part)
{
    int rank = config->debug_rank;
    if (rank < 0) return LK_OK;
    if (rank < part->first_rank || rank >= part->first_rank + config->ranks)
        return lk__fail(context, LK_EINVAL, "rank %d cannot be debugged here: this host has ranks %d to %d", rank,
                        part->first_rank, part->first_rank + config->ranks - 1);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return lk__fail(context, LK_EINVAL,
                        "rank %d cannot be given the terminal: standard input and output are not a terminal", rank);
    return LK_OK;
}

/* Launchers of several nodes create no token. A token that the user set for the ranks is checked before they are
 * started. */
static lk_status check_token(lk_context *context, const lk_launch_config *config, const lk__launch_part *part)
{
    char        token[LK__TOKEN_ROOM];
    const char *file = lk__environment_text(NULL, LK__ENV_LOCKSTEP_TOKEN_FILE),
               *text = lk__environment_text(NULL, LK__ENV_LOCKSTEP_TOKEN);
    if (config->nodes == 1 || part->token) return LK_OK;
    if (file) return lk__token_read(context, file, token);
    return text ? lk__token_check(context, "LOCKSTEP_TOKEN", text) : LK_OK;
}

/* With virtual local ranks, every rank needs a GPU of its own. */
static lk_status check_devices(lk_context *context, const lk_launch_config *config)
{
    const char *visible = lk__environment(NULL, LK__ENV_CUDA_VISIBLE_DEVICES);
    int         count = visible && *visible ? 1 : 0;
    for (const char *at = visible; at && (at = strchr(at, ',')); at++) count++;
    if (config->virtual_local_rank && visible && count < config->ranks)
        return lk__fail(context, LK_EINVAL, "%d ranks need one GPU each, but CUDA_VISIBLE_DEVICES lists only %d",
                        config->ranks, count);
    return LK_OK;
}

static void name_child(lk__launch_job *job, lk__launch_child *child, int local_rank)
{
    child->local_rank = local_rank;
    child->rank = job->part.first_rank + local_rank;
    snprintf(child->name, sizeof child->name, "rank %d", child->rank);
    lk__prefix_make(job, child);
}

/* The debugger's command line, followed by the program's. */
static lk_status start_in_debugger(lk__launch_job *job, lk__launch_child *child, char *const *environment)
{
    const lk_launch_config *config = job->config;
    const char             *text = config->debugger ? config->debugger : "";
    size_t                  bytes = strlen(text) + 1, most = bytes / 2 + 1, count = 0; /* words, and a NULL */
    while (config->program[count]) count++;
    most += count;
    char        *debugger = lk__strdup(job->context, text), *rest = NULL;
    const char **argv = lk__alloc(job->context, LK_MEMORY_OTHER, most * sizeof *argv);
    lk_status    status = LK_ENOMEM;
    if (debugger && argv) {
        count = 0;
        for (char *word = strtok_r(debugger, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) argv[count++] = word;
        for (size_t i = 0; config->program[i]; i++) argv[count++] = config->program[i];
        argv[count] = NULL;
        status = lk__child_start(job, child, argv, environment, true);
    }
    lk__free(job->context, LK_MEMORY_OTHER, argv, most * sizeof *argv);
    lk__free(job->context, LK_MEMORY_OTHER, debugger, bytes);
    return status;
}

static lk_status start_rank(lk__launch_job *job, lk__launch_child *child)
{
    lk__launch_environment environment;
    LK__TRY(lk__folder_child(job, child));
    LK__TRY(lk__environment_make(job, child, &environment));
    lk_status status = child->rank == job->config->debug_rank
                           ? start_in_debugger(job, child, environment.list)
                           : lk__child_start(job, child, job->config->program, environment.list, false);
    lk__environment_free(&environment);
    return status;
}

/* Each generation has its own token and, if we choose it, its own port: processes of an earlier generation cannot
 * join. */
static lk_status make_rendezvous(lk__launch_job *job)
{
    const lk_launch_config *config = job->config;
    job->address = config->master_address ? config->master_address : "127.0.0.1";
    job->port = config->master_port;
    if (!job->port) LK__TRY(lk__free_port(job->context, &job->port));
    if (job->part.token)
        snprintf(job->token, sizeof job->token, "%s", job->part.token);
    else if (config->nodes == 1)
        LK__TRY(lk__random_hex(job->context, job->token, TOKEN_BYTES));
    return LK_OK;
}

static lk_status run_generation(lk__launch_job *job)
{
    lk_status status = make_rendezvous(job);
    lk__job_begin(job);
    if (status == LK_OK) status = lk__folder_filtered(job);
    for (int i = 0; i < job->count; i++) name_child(job, &job->children[i], i);
    for (int i = 0; i < job->count && status == LK_OK; i++) status = start_rank(job, &job->children[i]);
    if (status < 0) { /* stops the ranks that run already */
        job->end_reason = LK__FAILED;
        job->deadline = 0;
    }
    lk_status watched = lk__job_watch(job);
    return status < 0 ? status : watched;
}

/* A number that the user set is kept; if only one of the two variables is set, it counts for both. */
static lk_status read_threads(lk__launch_job *job)
{
    const char *omp = lk__environment(NULL, LK__ENV_OMP_NUM_THREADS),
               *own = lk__environment_text(NULL, LK__ENV_LOCKSTEP_THREADS);
    int number = omp ? atoi(omp) : 0; /* of "4,2", OpenMP's form for nested teams, the outer number */
    if (number > 0) job->threads = number;
    if (own && !lk__threads_parse(own, &job->threads))
        return lk__fail(job->context, LK_EINVAL,
                        "LOCKSTEP_THREADS is '%.40s' in the environment: expected a number from 1 to %d", own,
                        LK__MAX_THREADS);
    return LK_OK;
}

static void print_job(lk__launch_job *job, const char *pinned)
{
    const lk_launch_config *config = job->config;
    const char             *threads = lk__environment(NULL, LK__ENV_OMP_NUM_THREADS);
    char                    where[96] = "", omp[32], own[48] = "";
    if (config->nodes > 1)
        snprintf(where, sizeof where, " (%d to %d of %d, node %d of %d)", job->part.first_rank,
                 job->part.first_rank + job->count - 1, job->part.world, config->node, config->nodes);
    snprintf(omp, sizeof omp, "%d", job->threads);
    if (threads && lk__environment(NULL, LK__ENV_LOCKSTEP_THREADS))
        snprintf(own, sizeof own, ", LOCKSTEP_THREADS=%d", job->threads);
    lk__job_print(job, "%d rank%s%s on %s, %s, OMP_NUM_THREADS=%s%s%s%s", job->count, job->count == 1 ? "" : "s", where,
                  job->host, pinned, threads ? threads : omp, own, job->logs[0] ? ", logs in " : "", job->logs);
}

/* A rank's process may use all cores of the memory nodes on which its own are, unless the user has bound it: see
 * base/pin.c. */
static lk_status allow_cores(lk__launch_job *job)
{
    cpu_set_t all;
    size_t    bytes = (size_t)job->count * sizeof *job->allowed;
    if (!job->cores || sched_getaffinity(0, sizeof all, &all) < 0) return LK_OK;
    if (!(job->allowed = lk__alloc(job->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    memcpy(job->allowed, job->cores, bytes);
    if (!job->config->numa_binding) lk__numa_widen("", &all, job->count, job->allowed);
    return LK_OK;
}

lk_status lk__launch_local(lk_context *context, const lk_launch_config *config, const lk__launch_part *part,
                           int *exit_code)
{
    lk__launch_job job;
    char           pinned[LK__TOPOLOGY_TEXT];
    LK__TRY(check_config(context, config));
    LK__TRY(check_debug(context, config, part));
    LK__TRY(check_token(context, config, part));
    LK__TRY(check_devices(context, config));
    LK__TRY(lk__descriptors_check(context, config->ranks, lk__wants_logs(config) ? 4 : 2, "rank"));
    lk_status status = lk__job_open(&job, context, config, part, config->ranks);
    if (status == LK_OK)
        status = lk__topology_split(context, job.count, config->device, &job.cores, &job.threads, pinned);
    if (status == LK_OK && config->numa_binding)
        status = lk__topology_bind(context, config->numa_binding, job.count, &job.cores, pinned);
    if (status >= 0) status = read_threads(&job);
    if (status < 0) goto done;
    if (config->no_pin) {
        lk__free(context, LK_MEMORY_OTHER, job.cores, job.cores ? (size_t)job.count * sizeof *job.cores : 0);
        job.cores = NULL;
        snprintf(pinned, sizeof pinned, "not pinned");
    }
    if ((status = allow_cores(&job)) < 0) goto done;
    if (!config->plain) print_job(&job, pinned);
    for (;;) {
        status = run_generation(&job);
        if (status < 0) break;
        lk__job_report(&job);
        lk__hosts_report_cause(&job);
        if (job.end_reason != LK__FAILED || job.interrupts || job.generation == config->max_restarts) break;
        if (lk__job_user_error(&job)) break; /* the same command would end so again */
        job.generation++;
        lk__job_print(&job, "restarting all ranks: restart %d of %d", job.generation, config->max_restarts);
    }
    if (status == LK_OK) *exit_code = lk__job_result(&job);
done:
    lk__job_close(&job);
    return status;
}

lk_status lk_launch(lk_context *context, const lk_launch_config *given, int *exit_code)
{
    lk_launch_config config = LK_LAUNCH_CONFIG_INIT;
    LK__TRY(LK__CONFIG_READ(context, lk_launch_config, given, &config));
    if (config.hosts) return lk__launch_hosts(context, &config, exit_code);
    LK__TRY(lk__filter_check(context, config.local_ranks_filter, config.ranks));
    lk__launch_part part = {
        config.node * config.ranks, config.nodes * config.ranks, NULL, NULL, -1, -1, 0, config.max_restarts, NULL};
    return lk__launch_local(context, &config, &part, exit_code);
}
