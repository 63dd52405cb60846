/* report.c - explains the end of a job: which rank failed first, when, where and how, and how the others ended. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"
#include "launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LAST_LINES = 10, VISIBLE_LINES = 5, ERROR_BYTES = 65536, USER_ERROR = 2 }; /* USER_ERROR: an exit code */

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

static void format_memory(long kilobytes, char *out, size_t size)
{
    if (kilobytes >= 1 << 20)
        snprintf(out, size, "%.1f GiB", (double)kilobytes / 1048576.0);
    else
        snprintf(out, size, "%.1f MiB", (double)kilobytes / 1024.0);
}

/* The first string value of "message" in the JSON file that torch.distributed.elastic's record writes. */
static bool read_error_message(lk_context *context, const char *path, char *out, size_t size)
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

/* Ranks have this process's limits. At the soft limit of CPU time the kernel sends SIGXCPU, at the hard one, which
 * ulimit -t sets as well, SIGKILL. */
static bool is_over_cpu_limit(const lk__launch_child *child, double *used, double *limit)
{
    const struct rusage *usage = &child->usage;
    struct rlimit        limits;
    *used = (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
            (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
    if (getrlimit(RLIMIT_CPU, &limits) != 0) return false;
    rlim_t least = WTERMSIG(child->status) == SIGKILL ? limits.rlim_max : limits.rlim_cur;
    *limit = (double)least;
    return least != RLIM_INFINITY && *used + 0.5 >= *limit; /* the two are not counted by the same clock */
}

/* What a signal means that the system sends and that is not a fault of the program's memory. True: the reason is
 * certain. */
static bool print_signal(lk__launch_job *job, const lk__launch_child *child)
{
    double used, limit;
    if (!WIFSIGNALED(child->status) || child->stop_requested) return false;
    int  signal = WTERMSIG(child->status);
    bool over = is_over_cpu_limit(child, &used, &limit);
    switch (signal) {
    case SIGKILL:
    case SIGXCPU:
        if (over)
            lk__job_print(job, "  the CPU time limit was reached: %.1f s of %.0f s were used; raise it with ulimit -t",
                          used, limit);
        else if (signal == SIGXCPU)
            lk__job_print(job, "  the CPU time limit was reached after %.1f s: raise it with ulimit -t", used);
        return over;
    case SIGXFSZ: lk__job_print(job, "  a write exceeded the file size limit: raise it with ulimit -f"); return true;
    case SIGBUS:
        lk__job_print(job, "  a memory-mapped file could not be read or written: is the disk, TMPDIR or /dev/shm full, "
                           "or was the file truncated?");
        return true;
    case SIGILL:
        lk__job_print(
            job,
            "  the program executed an instruction that this CPU does not have: was it built for a different CPU?");
        return true;
    case SIGSYS:
        lk__job_print(job, "  a system call was blocked by a filter (seccomp, for example in a container)");
        return true;
    default: return false;
    }
}

static void print_memory(lk__launch_job *job, const lk__launch_child *child, bool explained)
{
    long in_cgroup, on_host;
    if (WIFSIGNALED(child->status) && WTERMSIG(child->status) == SIGKILL && !child->stop_requested && !explained) {
        char log[512];
        lk__oom_read("", &in_cgroup, &on_host);
        if (lk__oom_in_log("/dev/kmsg", child->pid, log, sizeof log)) lk__job_print(job, "  kernel log: %s", log);
        if (job->oom_cgroup >= 0 && in_cgroup > job->oom_cgroup)
            lk__job_print(job, "  out-of-memory kill: this cgroup's memory limit was reached (oom_kill %ld -> %ld)",
                          job->oom_cgroup, in_cgroup);
        else if (job->oom_host >= 0 && on_host > job->oom_host)
            lk__job_print(job,
                          "  out-of-memory kill: the kernel has killed a process on this host since the ranks started "
                          "(oom_kill %ld -> %ld)",
                          job->oom_host, on_host);
        else if (job->oom_cgroup >= 0 || job->oom_host >= 0)
            lk__job_print(job, "  the kernel counted no out-of-memory kill: a process sent the signal");
    }
    char text[32];
    format_memory(child->usage.ru_maxrss, text, sizeof text);
    lk__job_print(job, "  peak memory %s", text);
}

/* `printed`: lines of the job's error output before this report. A rank whose newest line is among the last of them is
 * not quoted. */
static void print_last_lines(lk__launch_job *job, const lk__launch_child *child, uint64_t printed)
{
    const char *text = child->tail.text, *end = text + child->tail.length, *start = end;
    int         lines = 0;
    if (start == text || (child->tail.sink == job->err && child->tail.line + VISIBLE_LINES > printed)) return;
    while (start > text && lines < LAST_LINES) {
        start--;
        while (start > text && start[-1] != '\n') start--;
        lines++;
    }
    lk__job_print(job, "  last lines of its output:");
    while (start < end) {
        const char *newline = memchr(start, '\n', (size_t)(end - start));
        size_t      length = (size_t)((newline ? newline : end) - start);
        lk__sink_line(job->err, "    | ", start, length);
        start += length + 1;
    }
}

/* With `plain`, ranks run this same command: one that ended with an exit code has printed its error already. */
static bool has_printed_error(const lk__launch_job *job)
{
    return job->config->plain && job->first && WIFEXITED(job->first->status);
}

static const char *describe_state(char state)
{
    switch (state) {
    case 'T':
    case 't': return "stopped by a signal";
    case 'D': return "waiting for a disk or a device";
    case 'Z':
    case 'X': return "ending";
    case 'R':
    case 'S': return "running";
    default: return "unknown";
    }
}

static const char *describe_cause(int kind)
{
    switch (kind) {
    case LK__CAUSE_OWN: return "failed first and is still running";
    case LK__CAUSE_LEFT: return "left its group while others waited for it";
    case LK__CAUSE_DEAD:
    case LK__CAUSE_CUT_OFF: return "was lost";
    default: return "stopped answering";
    }
}

/* The cause did not end by itself. */
static void print_unresponsive(lk__launch_job *job, const lk__launch_child *child, const char *clock)
{
    if (job->uses_ssh)
        lk__job_print(job, "rank %d %s: %s, noticed on %s at %s after %.1f s", job->reporter->cause.rank,
                      describe_cause(child->cause_kind), child->name, job->reporter->name, clock,
                      child->ended - child->began);
    else
        lk__job_print(job, "%s %s (state: %s), noticed by %s at %s after %.1f s, on %s, pid %d", child->name,
                      describe_cause(child->cause_kind), describe_state(child->state), job->reporter->name, clock,
                      child->ended - child->began, job->host, (int)child->pid);
}

static void print_end(lk__launch_job *job, const lk__launch_child *child, const char *how, const char *clock)
{
    char because[64] = "failed first";
    if (lk__cause_elsewhere(job))
        snprintf(because, sizeof because, "failed because of rank %d, which is not on this host", child->cause.rank);
    lk__job_print(job, "%s %s: %s, at %s after %.1f s, on %s, pid %d", child->name, because, how, clock,
                  child->ended - child->began, job->host, (int)child->pid);
}

/* A rank that ended by itself outside a collective did not fail in one. */
static bool failed_in_collective(const lk__launch_child *child, const char *collectives)
{
    return WIFSIGNALED(child->status) || strncmp(collectives, "it was in ", 10) == 0 ||
           strstr(collectives, "it had failed in ");
}

static void print_first(lk__launch_job *job, const lk__launch_child *child)
{
    char     how[160], clock[16];
    time_t   now = time(NULL) - (time_t)(lk__now() - child->ended);
    uint64_t printed = job->err->lines;
    lk__describe_end(child->status, how, sizeof how);
    if (child->no_answer && child->stop_requested)
        snprintf(how, sizeof how, "no answer within %d s", LK__ANSWER_SECONDS);
    else if (child->no_answer)
        snprintf(how, sizeof how, "it exited without answering");
    strftime(clock, sizeof clock, "%H:%M:%S", localtime(&now));
    if (child->unresponsive) print_unresponsive(job, child, clock);
    if (job->uses_ssh && child->unresponsive) return;
    if (job->uses_ssh) {
        lk__job_print(job, "%s failed first: %s, at %s after %.1f s", child->name, how, clock,
                      child->ended - child->began);
        if (WIFEXITED(child->status) && WEXITSTATUS(child->status) == 255)
            lk__job_print(job, "  255 is also ssh's exit code when it cannot reach a host");
        if (WIFEXITED(child->status) && WEXITSTATUS(child->status) == 127 && child->port == 0)
            lk__job_print(job,
                          "  Lockstep was not found at %s on that host, or on its PATH: give its path there with "
                          "--remote-command",
                          job->config->remote_command);
        if (child->no_answer)
            lk__job_print(job, "  check that `%s %s '%s' --version` works without a password and without a prompt",
                          job->config->ssh, child->name + strlen("host "), job->config->remote_command);
        return; /* the remote launcher reported its own ranks */
    }
    if (!child->unresponsive) print_end(job, child, how, clock);
    char text[1024];
    if (read_error_message(job->context, child->error_file, text, sizeof text))
        lk__job_print(job, "  error message: %s", text);
    if (child->unresponsive
            ? job->last_operation[0] != 0
            : lk__flight_recorder_read(child->flight_recorder, text, sizeof text) && failed_in_collective(child, text))
        lk__job_print(job, "  collectives: %s", child->unresponsive ? job->last_operation : text);
    print_memory(job, child, print_signal(job, child));
    if (!has_printed_error(job)) print_last_lines(job, child, printed);
}

/* "ranks 0, 2-5": the children for which `is` returns true; false if there are none. */
static bool list_children(const lk__launch_job *job,
                          bool (*is)(const lk__launch_job *job, const lk__launch_child *child), char *out, size_t size)
{
    size_t used = 0;
    bool   several = false;
    out[0] = 0;
    for (int i = 0; i < job->count; i++) {
        if (!is(job, &job->children[i])) continue;
        int last = i;
        while (!job->uses_ssh && last + 1 < job->count && is(job, &job->children[last + 1])) last++;
        if (used + 100 > size) break;
        if (used || last > i) several = true;
        used += (size_t)snprintf(out + used, size - used, "%s", used ? ", " : "");
        if (job->uses_ssh)
            used += (size_t)snprintf(out + used, size - used, "%s", job->children[i].name + strlen("host "));
        else if (last > i)
            used += (size_t)snprintf(out + used, size - used, "%d-%d", job->children[i].rank, job->children[last].rank);
        else
            used += (size_t)snprintf(out + used, size - used, "%d", job->children[i].rank);
        i = last;
    }
    if (!used) return false;
    const char *noun = job->uses_ssh ? (several ? "hosts " : "host ") : several ? "ranks " : "rank ";
    size_t      lead = strlen(noun);
    memmove(out + lead, out, used + 1);
    memcpy(out, noun, lead);
    return true;
}

static bool was_stopped(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->stop_requested && !child->killed;
}
static bool was_killed(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->killed;
}
static bool had_finished(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && !child->stop_requested && child->status == 0 && !child->no_answer;
}
static bool also_failed(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && !child->stop_requested && !child->consequence &&
           (child->status != 0 || child->no_answer);
}
static bool failed_after(const lk__launch_job *job, const lk__launch_child *child)
{
    return child != job->first && child->consequence;
}

static void print_others(lk__launch_job *job)
{
    char        names[512], because[160];
    const char *lead = job->first ? "  " : "";
    if (job->end_reason == LK__FAILED)
        snprintf(because, sizeof because, "because of %s", job->first->name);
    else if (job->end_reason == LK__SIGNALLED)
        snprintf(because, sizeof because, "because of signal %d (%s)", job->signal, strsignal(job->signal));
    else if (job->end_reason == LK__INPUT_ENDED)
        snprintf(because, sizeof because, "because the first launcher ended or requested it");
    else if (job->out->error == EPIPE)
        snprintf(because, sizeof because, "because the reader of standard output closed it");
    else
        snprintf(because, sizeof because, "because writing to standard output failed");
    if (list_children(job, failed_after, names, sizeof names))
        lk__job_print(job, "%sfailed %s: %s", lead, because, names);
    if (list_children(job, also_failed, names, sizeof names))
        lk__job_print(job, "%sfailed at the same time: %s", lead, names);
    /* rank 0 prints that it was stopped, and what it saved */
    bool quiet = job->config->plain && job->end_reason == LK__SIGNALLED;
    if (!quiet && list_children(job, was_stopped, names, sizeof names))
        lk__job_print(job, "%sstopped %s: %s", lead, because, names);
    if (list_children(job, was_killed, names, sizeof names))
        lk__job_print(job, "%sstopped %s, by SIGKILL%s: %s", lead, because,
                      job->interrupts > 1 ? "" : " after the grace period", names);
    if (list_children(job, had_finished, names, sizeof names))
        lk__job_print(job, "%sfinished earlier: %s", lead, names);
}

/* ---- ranks that do not end ---- */

typedef struct hold {
    char state;  /* D if a thread has it, else the first thread's; 0: unknown */
    int  tracer; /* the process that traces a thread; 0: none */
} hold;

/* From /proc/PID/task/TID/status, in which a newline in the process's name is escaped. */
static void look_at_thread(int task, const char *id, hold *h)
{
    char path[280], text[1024], state;
    snprintf(path, sizeof path, "%s/status", id);
    int     fd = openat(task, path, O_RDONLY | O_CLOEXEC), tracer = 0;
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *at = strstr(text, "\nState:"), *traced = strstr(text, "\nTracerPid:");
    if (at && sscanf(at, " State: %c", &state) == 1 && (!h->state || state == 'D')) h->state = state;
    if (traced && sscanf(traced, " TracerPid: %d", &tracer) == 1 && tracer > 0) h->tracer = tracer;
}

/* All threads: the first is a zombie if only another one waits for a device. */
static hold find_hold(pid_t pid)
{
    hold           h = {0, 0};
    char           path[48];
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.') look_at_thread(dirfd(directory), entry->d_name, &h);
    if (directory) closedir(directory);
    return h;
}

void lk__job_report_unkilled(lk__launch_job *job)
{
    for (int i = 0; i < job->count; i++) {
        const lk__launch_child *child = &job->children[i];
        char                    debugger[96] = "";
        if (!child->running) continue;
        hold h = find_hold(child->pid);
        if (h.tracer)
            snprintf(debugger, sizeof debugger, ", held by a debugger (pid %d): detach or end the debugger", h.tracer);
        lk__job_print(job, "%s (pid %d) has not ended %.0f s after SIGKILL: state %c (%s)%s", child->name,
                      (int)child->pid, lk__now() - job->killed_at, h.state ? h.state : '?', describe_state(h.state),
                      debugger);
    }
}

/* ---- the end of a generation ---- */

bool lk__job_user_error(const lk__launch_job *job)
{
    return has_printed_error(job) && WEXITSTATUS(job->first->status) == USER_ERROR;
}

void lk__job_report(lk__launch_job *job)
{
    bool user_error = lk__job_user_error(job);
    if (job->first && !user_error) print_first(job, job->first);
    if (job->end_reason == LK__OUTPUT_CLOSED && job->out->error != EPIPE)
        lk__job_print(job, "cannot write to standard output: %s", strerror(job->out->error));
    if (job->end_reason != LK__RUNNING && !user_error) print_others(job);
    for (int i = 0; i < 2 * job->count; i++)
        if (job->children[i / 2].streams[i % 2].file_error)
            lk__job_print(job, "the log of %s is incomplete: %s", job->children[i / 2].name,
                          strerror(job->children[i / 2].streams[i % 2].file_error));
}
