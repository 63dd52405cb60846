/* hosts.c - a job on several hosts from one launcher: one ssh to each host, which runs a remote launcher there. Remote
 * launchers report that they are ready, receive the port, start their ranks, and stop when their standard input ends,
 * which also happens if this launcher is killed. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READY "lockstep-remote-launcher ready "
#define CAUSE "lockstep-remote-launcher cause "
enum { MOST_HOSTS = 1024, SSH_ARGUMENTS = 64 };

typedef struct remote_host {
    char name[256]; /* ssh's argument */
    int  ranks, first_rank;
} remote_host;

typedef struct launcher {
    lk__launch_job          job;
    remote_host            *hosts;
    int                     count, world, ready;
    lk__launch_spec        *spec;
    const lk_launch_config *config;
} launcher;

typedef struct line_handler { /* handles the messages of one remote launcher */
    launcher *launcher;
    int       index;
} line_handler;

/* NAME or NAME:RANKS; brackets around an IPv6 address are removed for ssh. False: invalid. */
static bool parse_host(const char *text, size_t length, remote_host *host)
{
    char *name = host->name, *end;
    if (length >= sizeof host->name) return false;
    snprintf(name, sizeof host->name, "%.*s", (int)length, text);
    char *colon = strchr(name, ':'), *open = strchr(name, '['), *close = strchr(name, ']');
    if (open) {
        if (!close || close < open || (close[1] && close[1] != ':')) return false;
        colon = close[1] ? close + 1 : NULL;
    } else if (colon && strchr(colon + 1, ':')) {
        return false; /* ambiguous: the last part may be a number of ranks */
    }
    if (colon) {
        long ranks = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || ranks < 1 || ranks > 4096) return false;
        host->ranks = (int)ranks;
        *colon = 0;
    }
    if (open) {
        memmove(close, close + 1, strlen(close));
        memmove(open, open + 1, strlen(open));
    }
    return *name && *name != '-';
}

typedef struct host_counts {
    int hosts, world; /* hosts, and ranks on all of them */
    int most;         /* ranks on one */
} host_counts;

/* "a:2,b:2"; a host without a number has config->ranks. */
static lk_status parse_hosts(lk_context *context, const lk_launch_config *config, remote_host *hosts,
                             host_counts *counts)
{
    const char *at = config->hosts;
    *counts = (host_counts){0};
    for (;;) {
        size_t length = strcspn(at, ",");
        if (counts->hosts == MOST_HOSTS) return lk__fail(context, LK_EINVAL, "more than %d hosts", MOST_HOSTS);
        remote_host *host = &hosts[counts->hosts++];
        host->ranks = config->ranks;
        host->first_rank = counts->world;
        if (!parse_host(at, length, host))
            return lk__fail(
                context, LK_EINVAL,
                "'%.*s' is not a host: expected NAME or NAME:RANKS, with IPv6 addresses in brackets, as in [::1]:2",
                (int)length, at);
        if (host->ranks > counts->most) counts->most = host->ranks;
        counts->world += host->ranks;
        if (!at[length]) return LK_OK;
        at += length + 1;
    }
}

/* Variables that affect ranks, and that ssh does not pass on. */
static bool is_forwarded(const char *entry)
{
    static const char *const begins[] = {
        "LOCKSTEP_", "OMP_", "NCCL_", "GLOO_", "TORCH_", "PYTHONPATH=", "CUDA_VISIBLE_DEVICES="};
    static const char *const own[] = {"LOCKSTEP_JOB=", "LOCKSTEP_TOKEN=", "LOCKSTEP_FLIGHT_RECORDER=",
                                      "LOCKSTEP_LOCAL_ADDR=", "LOCKSTEP_JOIN_COMMAND="};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(entry, own[i], strlen(own[i])) == 0) return false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(entry, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static lk_status write_spec(launcher *h, const remote_host *host, int node)
{
    const lk_launch_config *c = h->config;
    lk__launch_spec        *spec = h->spec;
    char                    directory[4096];
    const char             *first = strrchr(h->hosts[0].name, '@'); /* user@host */
    if (!getcwd(directory, sizeof directory))
        return lk__fail(h->job.context, LK_EIO, "cannot read the working directory: %s", strerror(errno));
    spec->length = 0;
    spec->full = false;
    lk__spec_add(spec, "token", "%s", h->job.token);
    lk__spec_add(spec, "job", "%s", h->job.id);
    lk__spec_add(spec, "directory", "%s", directory);
    lk__spec_add(spec, "address", "%s", c->master_address ? c->master_address : first ? first + 1 : h->hosts[0].name);
    lk__spec_add(spec, "port", "%d", c->master_port);
    lk__spec_add(spec, "world", "%d", h->world);
    lk__spec_add(spec, "first-rank", "%d", host->first_rank);
    lk__spec_add(spec, "ranks", "%d", host->ranks);
    lk__spec_add(spec, "nodes", "%d", h->count);
    lk__spec_add(spec, "node", "%d", node);
    lk__spec_add(spec, "run-id", "%s", h->job.run_id);
    lk__spec_add(spec, "role", "%s", c->role);
    lk__spec_add(spec, "grace", "%.17g", c->grace);
    lk__spec_add(spec, "join-timeout", "%.17g", c->join_timeout);
    lk__spec_add(spec, "no-pin", "%d", c->no_pin);
    lk__spec_add(spec, "virtual-local-rank", "%d", c->virtual_local_rank);
    lk__spec_add(spec, "signals", "%s", c->signals);
    lk__spec_add(spec, "generation", "%d", h->job.generation);
    lk__spec_add(spec, "max-restarts", "%d", c->max_restarts);
    lk__spec_add(spec, "colour", "%d", h->job.out->terminal && !lk__environment(NULL, LK__ENV_NO_COLOR));
    if (c->log_dir) lk__spec_add(spec, "log-dir", "%s", c->log_dir);
    if (c->tee) lk__spec_add(spec, "tee", "%s", c->tee);
    if (c->redirects) lk__spec_add(spec, "redirects", "%s", c->redirects);
    if (c->local_ranks_filter) lk__spec_add(spec, "filter", "%s", c->local_ranks_filter);
    if (c->line_prefix) lk__spec_add(spec, "line-prefix", "%s", c->line_prefix);
    if (c->stdout_filters) lk__spec_add(spec, "stdout-filters", "%s", c->stdout_filters);
    if (c->stderr_filters) lk__spec_add(spec, "stderr-filters", "%s", c->stderr_filters);
    if (c->numa_binding) lk__spec_add(spec, "numa-binding", "%s", c->numa_binding);
    if (c->device) lk__spec_add(spec, "device", "%s", c->device);
    for (char **entry = environ; *entry; entry++)
        if (is_forwarded(*entry)) lk__spec_add(spec, "environment", "%s", *entry);
    if (lk__program_on_path(c->program[0], directory, sizeof directory))
        lk__spec_add(spec, "program-path", "%s", directory);
    for (int i = 0; c->program[i]; i++) lk__spec_add(spec, "argument", "%s", c->program[i]);
    if (spec->full)
        return lk__fail(h->job.context, LK_EINVAL,
                        "the command line and the environment are too long to send to another host");
    spec->text[spec->length++] = 0;
    return LK_OK;
}

static void send_text(lk__launch_child *child, const void *text, size_t length)
{
    if (child->input >= 0 && write(child->input, text, length) < 0) return; /* its end is reported */
}

/* "KIND RANK": the first failure there is due to a rank of another host. */
static bool handle_cause(lk__launch_child *child, const char *line, size_t length)
{
    char text[32];
    int  kind, rank;
    snprintf(text, sizeof text, "%.*s", (int)(length < 31 ? length : 31), line);
    if (sscanf(text, "%d %d", &kind, &rank) != 2 || kind <= LK__CAUSE_UNKNOWN || kind >= LK__CAUSE_KINDS) return false;
    child->cause = (lk__comm_cause){kind, rank};
    return true;
}

void lk__hosts_report_cause(lk__launch_job *job)
{
    lk__launch_child *child = job->part.control >= 0 ? lk__cause_elsewhere(job) : NULL;
    char              text[64];
    if (!child) return;
    int length = snprintf(text, sizeof text, CAUSE "%d %d", child->cause.kind, child->cause.rank);
    lk__sink_line(job->out, "", text, (size_t)length);
}

/* A remote launcher's first line. When all are ready, each gets the port: node 0 chose a free one if none was given. */
static bool handle_line(void *user, const char *line, size_t length)
{
    line_handler     *handler = user;
    launcher         *h = handler->launcher;
    lk__launch_child *child = &h->job.children[handler->index];
    size_t            lead = strlen(READY);
    if (length > strlen(CAUSE) && memcmp(line, CAUSE, strlen(CAUSE)) == 0)
        return handle_cause(child, line + strlen(CAUSE), length - strlen(CAUSE));
    if (child->port > 0 || length <= lead || memcmp(line, READY, lead) != 0) return false;
    char number[16];
    snprintf(number, sizeof number, "%.*s", (int)(length - lead < 15 ? length - lead : 15), line + lead);
    child->port = (int)strtol(number, NULL, 10);
    if (++h->ready < h->count) return true;
    h->job.answer_by = 0;
    int size = snprintf(number, sizeof number, "%d", h->job.children[0].port);
    for (int i = 0; i < h->count; i++) send_text(&h->job.children[i], number, (size_t)size + 1);
    return true;
}

/* For the remote shell, whichever it is. Where this executable's path does not exist there, the one on PATH is
 * taken. */
static void write_command(const char *launcher, char *out, size_t size)
{
    if (lk__program_is_own(launcher) && !strpbrk(launcher, "\"$`\\"))
        snprintf(out, size, "exec sh -c 'p=\"%s\"; [ -x \"$p\" ] || p=lockstep; exec \"$p\" run --remote-launcher'",
                 launcher);
    else
        snprintf(out, size, "exec '%s' run --remote-launcher", launcher);
}

/* ssh and its arguments, the host, and one command line for the remote shell. */
static lk_status start_remote(launcher *h, int index)
{
    const lk_launch_config *c = h->config;
    char                    ssh[LK__LAUNCH_PATH], command[LK__LAUNCH_PATH];
    const char             *argv[SSH_ARGUMENTS + 3];
    int                     count = 0;
    char                   *rest = NULL;
    if (strchr(c->remote_command, '\''))
        return lk__fail(h->job.context, LK_EINVAL, "%s: the remote command's name must not contain quotes",
                        c->remote_command);
    if (strlen(c->ssh) >= sizeof ssh || strlen(c->remote_command) + 128 >= sizeof command)
        return lk__fail(h->job.context, LK_EINVAL, "the ssh command or the remote command is too long");
    LK__TRY(write_spec(h, &h->hosts[index], index));
    snprintf(ssh, sizeof ssh, "%s", c->ssh);
    for (char *word = strtok_r(ssh, " ", &rest); word && count < SSH_ARGUMENTS; word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    if (!count) return lk__fail(h->job.context, LK_EINVAL, "the ssh command is empty");
    argv[count++] = h->hosts[index].name;
    write_command(c->remote_command, command, sizeof command);
    argv[count++] = command;
    argv[count] = NULL;
    lk__launch_child      *child = &h->job.children[index];
    lk__launch_environment environment;
    snprintf(child->name, sizeof child->name, "host %.70s", h->hosts[index].name);
    LK__TRY(lk__environment_make_ssh(&h->job, &environment));
    lk_status status = lk__child_start(&h->job, child, argv, environment.list, false);
    lk__environment_free(&environment);
    if (status == LK_OK) send_text(child, h->spec->text, h->spec->length);
    return status;
}

static lk_status check_config(lk_context *context, const lk_launch_config *c)
{
    if (!c->program || !c->program[0]) return lk__fail(context, LK_EINVAL, "no program to start");
    if (c->debug_rank >= 0)
        return lk__fail(context, LK_EINVAL, "debugging a rank on the terminal requires all ranks to be on one host");
    if (c->local_address)
        return lk__fail(context, LK_EINVAL,
                        "a local address cannot be given for several hosts, since each has its own");
    sigset_t signals;
    LK__TRY(lk__signals_parse(context, c->signals, &signals));
    LK__TRY(lk__prefix_check(context, c));
    LK__TRY(lk__numa_check(context, c->numa_binding));
    if (c->nodes > 1)
        return lk__fail(context, LK_EINVAL,
                        "a list of hosts and several nodes are mutually exclusive: one launcher starts all hosts, or "
                        "each node has its own launcher");
    return LK_OK;
}

/* Starts all hosts once, with a new token and port: processes of an earlier generation cannot join. */
static lk_status run_generation(launcher *h, line_handler *handlers)
{
    lk_status status = lk__random_hex(h->job.context, h->job.token, (LK__TOKEN - 1) / 2);
    if (status < 0) return status;
    lk__job_begin(&h->job);
    h->ready = 0;
    h->job.answer_by = lk__now() + LK__ANSWER_SECONDS;
    for (int i = 0; i < h->count && status == LK_OK; i++) {
        handlers[i] = (line_handler){h, i};
        h->job.children[i].streams[0].consume = handle_line;
        h->job.children[i].streams[0].user = &handlers[i];
        h->job.children[i].rank = h->hosts[i].first_rank;
        h->job.children[i].ranks = h->hosts[i].ranks;
        status = start_remote(h, i);
    }
    if (status < 0) lk__job_stop(&h->job, LK__FAILED);
    lk_status watched = lk__job_watch(&h->job);
    return status < 0 ? status : watched;
}

static lk_status run_hosts(launcher *h, line_handler *handlers, int *exit_code)
{
    for (;; h->job.generation++) {
        LK__TRY(run_generation(h, handlers));
        lk__job_report(&h->job);
        if (h->job.end_reason != LK__FAILED || h->job.interrupts || h->job.generation == h->config->max_restarts) break;
        lk__job_print(&h->job, "restarting all ranks on all hosts: restart %d of %d", h->job.generation + 1,
                      h->config->max_restarts);
    }
    *exit_code = lk__job_result(&h->job);
    return LK_OK;
}

lk_status lk__launch_hosts(lk_context *context, const lk_launch_config *config, int *exit_code)
{
    lk_launch_config own = *config; /* the remote launchers write the files */
    own.log_dir = own.tee = own.redirects = own.stdout_filters = own.stderr_filters = NULL;
    LK__TRY(check_config(context, config));
    size_t           host_bytes = MOST_HOSTS * sizeof(remote_host), handler_bytes = MOST_HOSTS * sizeof(line_handler);
    launcher        *h = lk__alloc(context, LK_MEMORY_OTHER, sizeof *h);
    remote_host     *hosts = lk__alloc(context, LK_MEMORY_OTHER, host_bytes);
    line_handler    *handlers = lk__alloc(context, LK_MEMORY_OTHER, handler_bytes);
    lk__launch_spec *spec = lk__alloc(context, LK_MEMORY_OTHER, sizeof *spec);
    lk_status        status = h && hosts && handlers && spec ? LK_OK : LK_ENOMEM;
    if (status == LK_OK) {
        *h = (launcher){.hosts = hosts, .spec = spec, .config = config};
        host_counts counts;
        status = parse_hosts(context, config, hosts, &counts);
        h->count = counts.hosts;
        h->world = counts.world;
        if (status == LK_OK) status = lk__filter_check(context, config->local_ranks_filter, counts.most);
    }
    if (status == LK_OK) status = lk__descriptors_check(context, h->count, 3, "host");
    if (status == LK_OK) {
        lk__launch_part part = {0, h->world, NULL, NULL, -1, -1, 0, config->max_restarts, NULL};
        status = lk__job_open(&h->job, context, &own, &part, h->count);
        h->job.uses_ssh = true;
        if (status == LK_OK) status = run_hosts(h, handlers, exit_code);
        lk__job_close(&h->job);
    }
    lk__free(context, LK_MEMORY_OTHER, spec, sizeof *spec);
    lk__free(context, LK_MEMORY_OTHER, handlers, handler_bytes);
    lk__free(context, LK_MEMORY_OTHER, hosts, host_bytes);
    lk__free(context, LK_MEMORY_OTHER, h, sizeof *h);
    return status;
}

/* ---- the remote launcher ---- */

/* Text from the launcher; length: read so far. */
typedef struct received {
    char  *text;
    size_t size, length;
} received;

/* Reads up to and including an empty string, behind which the launcher sends nothing before our answer; or, for one =
 * true, one string, and nothing of what is behind it. */
static lk_status read_strings(lk_context *context, int in, bool one, received *r)
{
    for (;;) {
        ssize_t got = r->length < r->size ? read(in, r->text + r->length, one ? 1 : r->size - r->length) : 0;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return lk__fail(context, LK_EFORMAT,
                            r->length < r->size
                                ? "the launcher closed the connection before it sent the whole job specification"
                                : "the launcher sent a job specification that is too long");
        r->length += (size_t)got;
        if (r->text[r->length - 1]) continue;
        if (one || r->length == 1 || !r->text[r->length - 2]) return LK_OK;
    }
}

/* streams: in, out and err. */
static lk_status run_remote(lk_context *context, lk__launch_spec *spec, const int streams[3], int *exit_code)
{
    int      in = streams[0], out = streams[1];
    received job = {spec->text, sizeof spec->text, 0};
    LK__TRY(read_strings(context, in, false, &job));
    spec->length = job.length;
    LK__TRY(lk__spec_parse(context, spec));
    if (chdir(spec->directory) < 0)
        return lk__fail(context, LK_ENOENT, "%s: cannot change to this directory on this host: %s", spec->directory,
                        strerror(errno));
    if (!spec->config.master_port) LK__TRY(lk__free_port(context, &spec->config.master_port));
    char     ready[64], number[16];
    received port = {number, sizeof number, 0};
    size_t   size = (size_t)snprintf(ready, sizeof ready, READY "%d\n", spec->config.master_port);
    if (write(out, ready, size) != (ssize_t)size)
        return lk__fail(context, LK_EIO, "cannot answer the launcher: %s", strerror(errno));
    LK__TRY(read_strings(context, in, true, &port));
    spec->config.master_port = (int)strtol(number, NULL, 10);
    if (spec->config.master_port < 1 || spec->config.master_port > 65535)
        return lk__fail(context, LK_EFORMAT, "the launcher sent an invalid port");
    spec->config.out = out;
    spec->config.err = streams[2];
    lk__launch_part part = {spec->first_rank, spec->world,      spec->token,        spec->job,         in,
                            spec->colour,     spec->generation, spec->max_restarts, spec->program_path};
    return lk__launch_local(context, &spec->config, &part, exit_code);
}

lk_status lk_launch_remote(lk_context *context, int in, int out, int err, int *exit_code)
{
    lk__launch_spec *spec = lk__alloc(context, LK_MEMORY_OTHER, sizeof *spec);
    lk_status        status = spec ? run_remote(context, spec, (int[]){in, out, err}, exit_code) : LK_ENOMEM;
    lk__free(context, LK_MEMORY_OTHER, spec, sizeof *spec);
    return status;
}
