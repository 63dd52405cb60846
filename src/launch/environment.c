/* environment.c - what a rank finds in its environment: the names that torchrun sets, and the job's id and token. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { OURS = 40 };

/* Any length: a role, an address and an id are the user's own words. */
__attribute__((format(printf, 3, 4))) static void set(lk__environment *e, const char *name, const char *format, ...)
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

static bool is_set(const lk__environment *e, const char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < e->count; i++)
        if (strncmp(e->list[i], entry, name) == 0) return true;
    return false;
}

/* The job's id comes first, so that a look for it rarely needs more than the first page of /proc/PID/environ. */
static void set_all(lk__job *job, const lk__child *child, lk__environment *e)
{
    const lk_launch_config *config = job->config;
    set(e, "LOCKSTEP_JOB", "%s", job->id);
    if (job->token[0]) set(e, "LOCKSTEP_TOKEN", "%s", job->token);
    struct winsize size;
    if (isatty(config->err) && ioctl(config->err, TIOCGWINSZ, &size) == 0)
        set(e, "LOCKSTEP_TERMINAL", "%d", (int)size.ws_col);
    if (config->debug_rank >= 0) set(e, "LOCKSTEP_NO_DEADLINES", "1");
    set(e, "RANK", "%d", child->rank);
    set(e, "WORLD_SIZE", "%d", job->place.world);
    set(e, "LOCAL_RANK", "%d", child->local_rank);
    set(e, "LOCAL_WORLD_SIZE", "%d", job->count);
    set(e, "GROUP_RANK", "%d", config->node);
    set(e, "GROUP_WORLD_SIZE", "%d", config->nodes);
    set(e, "ROLE_RANK", "%d", child->rank);
    set(e, "ROLE_WORLD_SIZE", "%d", job->place.world);
    set(e, "ROLE_NAME", "%s", config->role);
    set(e, "MASTER_ADDR", "%s", job->address);
    set(e, "MASTER_PORT", "%d", job->port);
    set(e, "TORCHELASTIC_RUN_ID", "%s", job->run_id);
    set(e, "TORCHELASTIC_RESTART_COUNT", "%d", job->place.generation + job->generation);
    set(e, "TORCHELASTIC_MAX_RESTARTS", "%d", job->place.max_restarts);
    set(e, "TORCHELASTIC_ERROR_FILE", "%s", child->error_file);
    set(e, "LOCKSTEP_DIARY", "%s", child->diary);
    set(e, "TORCHELASTIC_USE_AGENT_STORE", "False"); /* the ranks make their own store */
    if (!getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING")) set(e, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (!getenv("OMP_NUM_THREADS")) set(e, "OMP_NUM_THREADS", "%d", job->threads);
    if (!getenv("LOCKSTEP_THREADS")) set(e, "LOCKSTEP_THREADS", "%d", job->threads);
}

static lk_status make(lk__job *job, const lk__child *child, lk__environment *e)
{
    size_t inherited = 0;
    while (environ[inherited]) inherited++;
    *e = (lk__environment){.context = job->context, .capacity = inherited + OURS};
    e->list = lk__alloc(job->context, LK_MEMORY_OTHER, e->capacity * sizeof *e->list);
    if (!e->list) return LK_ENOMEM;
    if (child)
        set_all(job, child, e);
    else
        set(e, "LOCKSTEP_JOB", "%s", job->id);
    if (e->short_of_memory) {
        lk__environment_free(e);
        return LK_ENOMEM;
    }
    for (size_t i = 0; i < inherited; i++)
        if (!is_set(e, environ[i])) e->list[e->count++] = environ[i];
    return LK_OK;
}

lk_status lk__environment_make(lk__job *job, const lk__child *child, lk__environment *e) { return make(job, child, e); }
lk_status lk__environment_mark(lk__job *job, lk__environment *e) { return make(job, NULL, e); }

void lk__environment_free(lk__environment *e)
{
    for (size_t i = 0; i < e->own; i++) lk__strfree(e->context, e->list[i]);
    lk__free(e->context, LK_MEMORY_OTHER, e->list, e->capacity * sizeof *e->list);
}
