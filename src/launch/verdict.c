/* verdict.c - explains the end of a job: who failed first, when, where and how, and what became of the others. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"
#include "launch/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { LAST_LINES = 10, ERROR_BYTES = 65536, MISTAKE = 2 }; /* MISTAKE: the exit code for what the user can mend */

void lk__describe_end(int status, char *out, size_t size)
{
    if (WIFEXITED(status)) {
        int code = WEXITSTATUS(status);
        snprintf(out, size, "exit code %d%s", code,
                 code == 126   ? " (found but cannot be executed)"
                 : code == 127 ? " (command not found)"
                               : "");
        return;
    }
    int         signal = WTERMSIG(status);
    const char *short_name = sigabbrev_np(signal);
    snprintf(out, size, "signal %d (SIG%s, %s)%s", signal, short_name ? short_name : "?", strsignal(signal),
             WCOREDUMP(status) ? ", core dumped" : "");
}

static void memory_words(long kilobytes, char *out, size_t size)
{
    if (kilobytes >= 1 << 20)
        snprintf(out, size, "%.1f GiB", (double)kilobytes / 1048576.0);
    else
        snprintf(out, size, "%.1f MiB", (double)kilobytes / 1024.0);
}

/* The one string after "message": in what torch.distributed.elastic's record writes; enough of JSON for a sentence. */
static bool error_message(lk_context *context, const char *path, char *out, size_t size)
{
    char  *text = lk__alloc(context, LK_MEMORY_OTHER, ERROR_BYTES);
    FILE  *file = text ? fopen(path, "re") : NULL;
    size_t length = file ? fread(text, 1, ERROR_BYTES - 1, file) : 0, used = 0;
    if (file) fclose(file);
    const char *at = text;
    for (bool string = false; length && !string && (at = strstr(at, "\"message\""));) {
        at += strlen("\"message\"");
        at += strspn(at, " :\n\t");
        string = *at == '"';
    }
    for (at = length && at ? at + 1 : ""; *at && *at != '"' && used + 1 < size; at++) {
        if (*at == '\\' && at[1]) at++;
        out[used++] = (unsigned char)*at < 0x20 ? ' ' : *at;
    }
    out[used] = 0;
    lk__free(context, LK_MEMORY_OTHER, text, ERROR_BYTES);
    return used > 0;
}

static void say_memory(lk__launch_job *job, const lk__launch_child *child)
{
    long in_cgroup, on_host;
    if (WIFSIGNALED(child->status) && WTERMSIG(child->status) == SIGKILL && !child->asked) {
        char log[512];
        lk__oom_read("", &in_cgroup, &on_host);
        if (lk__oom_in_log("/dev/kmsg", child->pid, log, sizeof log)) lk__job_print(job, "  the kernel's log: %s", log);
        if (job->oom_cgroup >= 0 && in_cgroup > job->oom_cgroup)
            lk__job_print(job, "  the kernel killed for memory: this cgroup's limit was reached (oom_kill %ld -> %ld)",
                          job->oom_cgroup, in_cgroup);
        else if (job->oom_host >= 0 && on_host > job->oom_host)
            lk__job_print(job,
                          "  the kernel killed a process of this host for memory in that time (oom_kill %ld -> %ld)",
                          job->oom_host, on_host);
        else if (job->oom_cgroup >= 0 || job->oom_host >= 0)
            lk__job_print(job, "  the kernel counts no kill for memory: somebody sent the signal");
    }
    char words[32];
    memory_words(child->usage.ru_maxrss, words, sizeof words);
    lk__job_print(job, "  peak memory %s", words);
}

static void say_last_lines(lk__launch_job *job, const lk__launch_child *child)
{
    const char *text = child->tail.text, *end = text + child->tail.length, *start = end;
    int         lines = 0;
    if (start == text) return;
    while (start > text && lines < LAST_LINES) {
        start--;
        while (start > text && start[-1] != '\n') start--;
        lines++;
    }
    lk__job_print(job, "  its last lines:");
    while (start < end) {
        const char *newline = memchr(start, '\n', (size_t)(end - start));
        size_t      length = (size_t)((newline ? newline : end) - start);
        lk__sink_line(job->err, "    | ", start, length);
        start += length + 1;
    }
}

/* A rank of this very command that ended with a code has said why, in a line that stands above. */
static bool explained_itself(const lk__launch_job *job)
{
    return job->config->plain && job->first && WIFEXITED(job->first->status);
}

static const char *state_words(char state)
{
    switch (state) {
    case 'T':
    case 't': return "stopped by a signal";
    case 'D': return "waiting for a disk or a device";
    case 'Z':
    case 'X': return "ending";
    case 'R':
    case 'S': return "running";
    default: return "not known";
    }
}

static const char *describe_cause(int kind)
{
    switch (kind) {
    case LK__CAUSE_OWN: return "failed first and has not ended";
    case LK__CAUSE_LEFT: return "left its group while others waited for it";
    case LK__CAUSE_DEAD:
    case LK__CAUSE_CUT_OFF: return "was lost";
    default: return "stopped answering";
    }
}

/* The cause did not end by itself. */
static void say_unanswering(lk__launch_job *job, const lk__launch_child *child, const char *clock)
{
    if (job->head)
        lk__job_print(job, "rank %d %s: %s, noticed on %s at %s after %.1f s", job->reporter->cause.rank,
                      describe_cause(child->blamed), child->name, job->reporter->name, clock,
                      child->ended - child->began);
    else
        lk__job_print(job, "%s %s (state: %s), noticed by %s at %s after %.1f s, on %s, pid %d", child->name,
                      describe_cause(child->blamed), state_words(child->state), job->reporter->name, clock,
                      child->ended - child->began, job->host, (int)child->pid);
}

static void say_end(lk__launch_job *job, const lk__launch_child *child, const char *how, const char *clock)
{
    char because[64] = "failed first";
    if (lk__cause_elsewhere(job))
        snprintf(because, sizeof because, "failed because of rank %d, which is not on this host", child->cause.rank);
    lk__job_print(job, "%s %s: %s, at %s after %.1f s, on %s, pid %d", child->name, because, how, clock,
                  child->ended - child->began, job->host, (int)child->pid);
}

/* A rank that ended by itself outside a collective did not fail in one. */
static bool matters(const lk__launch_child *child, const char *collectives)
{
    return WIFSIGNALED(child->status) || strncmp(collectives, "it was in ", 10) == 0 ||
           strstr(collectives, "it had failed in ");
}

static void say_first(lk__launch_job *job, const lk__launch_child *child)
{
    char   how[160], clock[16];
    time_t now = time(NULL) - (time_t)(lk__now() - child->ended);
    lk__describe_end(child->status, how, sizeof how);
    if (child->silent && child->asked)
        snprintf(how, sizeof how, "no answer within %d s", LK__ANSWER_SECONDS);
    else if (child->silent)
        snprintf(how, sizeof how, "it ended without an answer");
    strftime(clock, sizeof clock, "%H:%M:%S", localtime(&now));
    if (child->unanswering) say_unanswering(job, child, clock);
    if (job->head && child->unanswering) return;
    if (job->head) {
        lk__job_print(job, "%s failed first: %s, at %s after %.1f s", child->name, how, clock,
                      child->ended - child->began);
        if (WIFEXITED(child->status) && WEXITSTATUS(child->status) == 255)
            lk__job_print(job, "  255 is also what ssh gives when it cannot reach a host");
        if (child->silent)
            lk__job_print(job,
                          "  look whether `%s %s '%s' --version` answers, without a password and without a question",
                          job->config->ssh, child->name + strlen("host "), job->config->remote_command);
        return; /* the far end explained its own */
    }
    if (!child->unanswering) say_end(job, child, how, clock);
    char said[1024];
    if (error_message(job->context, child->error_file, said, sizeof said)) lk__job_print(job, "  it said: %s", said);
    if (child->unanswering ? job->was_in[0] != 0
                           : lk__flight_recorder_read(child->diary, said, sizeof said) && matters(child, said))
        lk__job_print(job, "  of collectives: %s", child->unanswering ? job->was_in : said);
    say_memory(job, child);
    if (!explained_itself(job)) say_last_lines(job, child);
}

/* "ranks 0, 2-5" of those that `is` is true for; false when there are none. */
static bool list(const lk__launch_job *job, bool (*is)(const lk__launch_job *job, const lk__launch_child *child),
                 char *out, size_t size)
{
    size_t used = 0;
    bool   several = false;
    out[0] = 0;
    for (int i = 0; i < job->count; i++) {
        if (!is(job, &job->children[i])) continue;
        int last = i;
        while (!job->head && last + 1 < job->count && is(job, &job->children[last + 1])) last++;
        if (used + 100 > size) break;
        if (used || last > i) several = true;
        used += (size_t)snprintf(out + used, size - used, "%s", used ? ", " : "");
        if (job->head)
            used += (size_t)snprintf(out + used, size - used, "%s", job->children[i].name + strlen("host "));
        else if (last > i)
            used += (size_t)snprintf(out + used, size - used, "%d-%d", job->children[i].rank, job->children[last].rank);
        else
            used += (size_t)snprintf(out + used, size - used, "%d", job->children[i].rank);
        i = last;
    }
    if (!used) return false;
    const char *noun = job->head ? (several ? "hosts " : "host ") : several ? "ranks " : "rank ";
    size_t      lead = strlen(noun);
    memmove(out + lead, out, used + 1);
    memcpy(out, noun, lead);
    return true;
}

static bool was_stopped(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->asked && !child->forced;
}
static bool was_killed(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->forced;
}
static bool was_done(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && !child->asked && child->status == 0 && !child->silent;
}
static bool also_failed(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && !child->asked && !child->consequence && (child->status != 0 || child->silent);
}
static bool failed_after(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->consequence;
}

static void say_others(lk__launch_job *job)
{
    char        who[512], because[160];
    const char *lead = job->first ? "  " : "";
    if (job->why == LK__FAILED)
        snprintf(because, sizeof because, "because of %s", job->first->name);
    else if (job->why == LK__SIGNALLED)
        snprintf(because, sizeof because, "because of signal %d (%s)", job->signal, strsignal(job->signal));
    else if (job->why == LK__INPUT_ENDED)
        snprintf(because, sizeof because, "because the launcher that started this end is gone or said so");
    else if (job->out->error == EPIPE)
        snprintf(because, sizeof because, "because nobody reads standard output any more");
    else
        snprintf(because, sizeof because, "because standard output cannot be written");
    if (list(job, failed_after, who, sizeof who)) lk__job_print(job, "%sfailed %s: %s", lead, because, who);
    if (list(job, also_failed, who, sizeof who)) lk__job_print(job, "%sfailed at the same moment: %s", lead, who);
    bool quiet =
        job->config->plain && job->why == LK__SIGNALLED; /* rank 0 says that it was stopped, and what it saved */
    if (!quiet && list(job, was_stopped, who, sizeof who)) lk__job_print(job, "%sstopped %s: %s", lead, because, who);
    if (list(job, was_killed, who, sizeof who))
        lk__job_print(job, "%sstopped %s, by SIGKILL%s: %s", lead, because,
                      job->interrupts > 1 ? "" : " since SIGTERM did not do it in time", who);
    if (list(job, was_done, who, sizeof who)) lk__job_print(job, "%sdone before that: %s", lead, who);
}

void lk__verdict(lk__launch_job *job)
{
    bool mistake = explained_itself(job) && WEXITSTATUS(job->first->status) == MISTAKE;
    if (job->first && !mistake) say_first(job, job->first);
    if (job->why == LK__OUTPUT_CLOSED && job->out->error != EPIPE)
        lk__job_print(job, "standard output cannot be written: %s", strerror(job->out->error));
    if (job->why != LK__RUNNING && !mistake) say_others(job);
    for (int i = 0; i < 2 * job->count; i++)
        if (job->children[i / 2].streams[i % 2].file_error)
            lk__job_print(job, "the log of %s is not whole: %s", job->children[i / 2].name,
                          strerror(job->children[i / 2].streams[i % 2].file_error));
}
