/* environment.c - the environment of a rank: the variables that torchrun sets, and the job's id and token. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { OURS = 48, JOIN_COMMAND = 600 };

/* Values may have any length: role, address and id are user input. */
__attribute__((format(printf, 3, 4))) static void set_variable(lk__launch_environment *e, const char *name,
                                                               const char *format, ...)
{
    va_list arguments;
    size_t  lead = strlen(name) + 1;
    va_start(arguments, format);
    size_t length = (size_t)vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *entry = lk__alloc(e->context, LK_MEMORY_OTHER, lead + length + 1);
    if (!entry) {
        e->short_of_memory = true;
        return;
    }
    snprintf(entry, lead + 1, "%s=", name);
    va_start(arguments, format);
    vsnprintf(entry + lead, length + 1, format, arguments);
    va_end(arguments);
    e->list[e->count++] = entry;
    e->own++;
}

static bool is_set(const lk__launch_environment *e, const char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < e->count; i++)
        if (strncmp(e->list[i], entry, name) == 0) return true;
    return false;
}

/* Appends a word, quoted for a shell. */
static void append_quoted(char *out, size_t size, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    size_t            used = strlen(out);
    bool              quote = !*word || word[strspn(word, plain)];
    used += (size_t)snprintf(out + used, size - used, quote ? " '" : " ");
    for (; *word && used + 8 < size; word++) {
        used += (size_t)snprintf(out + used, size - used, *word == '\'' ? "'\\''" : "%c", *word);
    }
    if (*word) used += (size_t)snprintf(out + used, size - used, "…");
    if (quote) snprintf(out + used, size - used, "'");
}

/* The command that starts another node: comm/rendezvous/waiting.c replaces {node} by its number. */
static void set_join_command(const lk__launch_job *job, lk__launch_environment *e)
{
    const lk_launch_config *config = job->config;
    char                    text[JOIN_COMMAND];
    int                     used = snprintf(text, sizeof text,
                                            "lockstep run --nnodes %d --node-rank {node} --master-addr %.100s "
                                                                "--master-port %d -n %d",
                                            config->nodes, job->address, job->port, config->ranks);
    for (int i = 0; config->program[i] && used + 20 < (int)sizeof text; i++, used = (int)strlen(text))
        append_quoted(text, sizeof text, config->program[i]);
    set_variable(e, "LOCKSTEP_JOIN_COMMAND", "%s", text);
}

/* LOCAL_RANK, and with it the rank's GPU: torchrun's virtual local rank is 0, and only the rank's own GPU is
 * visible. */
static void set_local_rank(const lk_launch_config *config, const lk__launch_child *child, lk__launch_environment *e)
{
    const char *visible = lk__environment(NULL, LK__ENV_CUDA_VISIBLE_DEVICES);
    set_variable(e, "LOCAL_RANK", "%d", config->virtual_local_rank ? 0 : child->local_rank);
    if (!config->virtual_local_rank) return;
    for (int i = 0; visible && i < child->local_rank; i++)
        visible = strchr(visible, ',') ? strchr(visible, ',') + 1 : visible; /* job.c checked that there are enough */
    if (visible)
        set_variable(e, "CUDA_VISIBLE_DEVICES", "%.*s", (int)strcspn(visible, ","), visible);
    else
        set_variable(e, "CUDA_VISIBLE_DEVICES", "%d", child->local_rank);
}

/* The cores of Lockstep's own threads; a process that is bound has no others. */
static void set_cores(const lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *e)
{
    char list[4096] = "";
    if (job->cores && !job->config->numa_binding) lk__topology_list(&job->cores[child->local_rank], list, sizeof list);
    if (list[0] || lk__environment(NULL, LK__ENV_LOCKSTEP_CORES)) set_variable(e, "LOCKSTEP_CORES", "%s", list);
}

/* The job's id comes first, so that finding it rarely needs more than the first page of /proc/PID/environ. */
static void set_all(lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *e)
{
    const lk_launch_config *config = job->config;
    set_variable(e, "LOCKSTEP_JOB", "%s", job->id);
    if (job->token[0]) set_variable(e, "LOCKSTEP_TOKEN", "%s", job->token);
    struct winsize size;
    if (isatty(config->err) && ioctl(config->err, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        set_variable(e, "LOCKSTEP_TERMINAL", "%d", (int)size.ws_col);
    if (config->join_timeout > 0) set_variable(e, "LOCKSTEP_JOIN_TIMEOUT", "%.17g", config->join_timeout);
    if (config->local_address) set_variable(e, "LOCKSTEP_LOCAL_ADDR", "%s", config->local_address);
    if (config->nodes > 1 && !job->part.token)
        set_join_command(job, e);
    else if (lk__environment(NULL, LK__ENV_LOCKSTEP_JOIN_COMMAND))
        set_variable(e, "LOCKSTEP_JOIN_COMMAND", "%s", ""); /* that of an enclosing job does not apply */
    if (config->debug_rank >= 0) set_variable(e, "LOCKSTEP_NO_DEADLINES", "1");
    set_cores(job, child, e);
    set_variable(e, "RANK", "%d", child->rank);
    set_variable(e, "WORLD_SIZE", "%d", job->part.world);
    set_local_rank(config, child, e);
    set_variable(e, "LOCAL_WORLD_SIZE", "%d", job->count);
    set_variable(e, "GROUP_RANK", "%d", config->node);
    set_variable(e, "GROUP_WORLD_SIZE", "%d", config->nodes);
    set_variable(e, "ROLE_RANK", "%d", child->rank);
    set_variable(e, "ROLE_WORLD_SIZE", "%d", job->part.world);
    set_variable(e, "ROLE_NAME", "%s", config->role);
    set_variable(e, "MASTER_ADDR", "%s", job->address);
    set_variable(e, "MASTER_PORT", "%d", job->port);
    set_variable(e, "TORCHELASTIC_RUN_ID", "%s", job->run_id);
    set_variable(e, "TORCHELASTIC_RESTART_COUNT", "%d", job->part.generation + job->generation);
    set_variable(e, "TORCHELASTIC_MAX_RESTARTS", "%d", job->part.max_restarts);
    set_variable(e, "TORCHELASTIC_SIGNALS_TO_HANDLE", "%s", config->signals);
    set_variable(e, "TORCHELASTIC_ERROR_FILE", "%s", child->error_file);
    set_variable(e, "LOCKSTEP_FLIGHT_RECORDER", "%s", child->flight_recorder);
    set_variable(e, "TORCHELASTIC_USE_AGENT_STORE", "False"); /* the ranks create their own store */
    if (!lk__environment(NULL, LK__ENV_TORCH_NCCL_ASYNC_ERROR_HANDLING))
        set_variable(e, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (!lk__environment(NULL, LK__ENV_OMP_NUM_THREADS)) set_variable(e, "OMP_NUM_THREADS", "%d", job->threads);
    if (!lk__environment(NULL, LK__ENV_LOCKSTEP_THREADS))
        set_variable(e, "LOCKSTEP_THREADS", "%d", job->threads < LK__MAX_THREADS ? job->threads : LK__MAX_THREADS);
}

static lk_status make_environment(lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *e)
{
    size_t inherited = 0;
    while (environ[inherited]) inherited++;
    *e = (lk__launch_environment){.context = job->context, .capacity = inherited + OURS};
    e->list = lk__alloc(job->context, LK_MEMORY_OTHER, e->capacity * sizeof *e->list);
    if (!e->list) return LK_ENOMEM;
    if (child)
        set_all(job, child, e);
    else
        set_variable(e, "LOCKSTEP_JOB", "%s", job->id);
    if (e->short_of_memory) {
        lk__environment_free(e);
        return LK_ENOMEM;
    }
    for (size_t i = 0; i < inherited; i++)
        if (!is_set(e, environ[i])) e->list[e->count++] = environ[i];
    return LK_OK;
}

lk_status lk__environment_make(lk__launch_job *job, const lk__launch_child *child, lk__launch_environment *e)
{
    return make_environment(job, child, e);
}
lk_status lk__environment_make_ssh(lk__launch_job *job, lk__launch_environment *e)
{
    return make_environment(job, NULL, e);
}

void lk__environment_free(lk__launch_environment *e)
{
    for (size_t i = 0; i < e->own; i++) lk__strfree(e->context, e->list[i]);
    lk__free(e->context, LK_MEMORY_OTHER, e->list, e->capacity * sizeof *e->list);
}
