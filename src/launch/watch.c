/* watch.c - the launcher's event loop: signals, the children's output, their ends, and the deadline after a stop
 * request. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- stopping ---- */

/* A process that waits for a device, or that a debugger holds, does not end at SIGKILL: it is named after some time,
 * and again later. */
#define REMIND_SECONDS 5.0
#define REMIND_AGAIN_SECONDS 60.0

static void kill_all(lk__launch_job *job)
{
    if (!job->killing) {
        job->killed_at = lk__now();
        job->remind_at = job->killed_at + REMIND_SECONDS;
    }
    job->killing = true;
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (!child->running) continue;
        child->stop_requested = child->killed = true;
        kill(-child->pid, SIGKILL);
    }
}

/* Signals each rank's process, not its group: a rank that saves its state first may need its child processes. A remote
 * launcher stops at the end of its input. */
void lk__job_stop(lk__launch_job *job, lk__launch_end end_reason)
{
    if (job->end_reason != LK__RUNNING) return;
    job->end_reason = end_reason;
    /* remote launchers wait for their own ranks */
    job->deadline = lk__now() + job->config->grace + (job->uses_ssh ? 5.0 : 0.0);
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (!child->running) continue;
        child->stop_requested = true;
        if (child->input >= 0) {
            close(child->input);
            child->input = -1;
        } else if (kill(child->pid, lk__signal_for_ranks(job)) == 0) {
            kill(child->pid, SIGCONT); /* a stopped process would not handle it */
        }
    }
}

/* SIGUSR1 and SIGUSR2, where they do not stop the job. A remote launcher reads their numbers from its input, once it
 * has got the port. */
static void forward_signal(lk__launch_job *job, int signal)
{
    const unsigned char number = (unsigned char)signal;
    sigaddset(&job->forwarded, signal);
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (!child->running || (job->uses_ssh && job->answer_by > 0)) continue; /* no rank runs yet */
        if (child->input < 0)
            kill(child->pid, signal);
        else if (write(child->input, &number, 1) < 0)
            continue; /* its end is reported */
    }
}

/* The signal that a child ended for, if its exit code says so and the signal was a request to all of them: one that was
 * forwarded or, with `plain`, one at which `train` saves. 0: none. */
static int answered_signal(const lk__launch_job *job, int status)
{
    int  signal = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : 0;
    bool saves = job->config->plain && (signal == SIGINT || signal == SIGTERM || signal == SIGUSR1);
    return signal > 0 && (saves || (signal < NSIG && sigismember(&job->forwarded, signal) == 1)) ? signal : 0;
}

/* A rank has ended for such a signal: the others are ending, or saving, too. */
static void accept_stop(lk__launch_job *job, lk__launch_child *ended, int signal)
{
    ended->stop_requested = true;
    /* `train` ends with SIGTERM's code on ranks that did not get the signal themselves. */
    if (job->interrupts == 0 && (!job->signal || job->signal == SIGTERM)) job->signal = signal;
    if (job->end_reason != LK__RUNNING) return;
    job->end_reason = LK__SIGNALLED;
    job->interrupted = lk__now();
    job->deadline = job->interrupted + job->config->grace + (job->uses_ssh ? 5.0 : 0.0);
    for (int i = 0; i < job->count; i++) job->children[i].stop_requested |= job->children[i].running;
}

/* Stop requests that follow the first one this soon are the same: GNU timeout signals its child and its own process
 * group, schedulers signal all processes of a job. */
#define REPEATED_SECONDS 0.4

static bool is_repeated(const lk__launch_job *job)
{
    return job->interrupts > 0 && lk__now() < job->interrupted + REPEATED_SECONDS;
}

/* `train -n` has no limit after a stop request: its ranks finish a step and save, which takes as long as it does
 * without -n. */
static void end_grace(lk__launch_job *job)
{
    double waited = lk__now() - job->interrupted;
    if (!job->config->plain || job->end_reason != LK__SIGNALLED) {
        kill_all(job);
        return;
    }
    lk__job_print(job, "%d %s still running %.0f s after %s, and may be saving; a second signal kills %s at once",
                  job->alive, job->alive == 1 ? "rank is" : "ranks are", waited, strsignal(job->signal),
                  job->alive == 1 ? "it" : "them");
    job->deadline = lk__now() + waited;
}

/* Of those that are pending; the second stop request kills at once. */
static void handle_signals(lk__launch_job *job)
{
    int signal;
    while ((signal = lk__signals_next(job)) != 0) {
        if (signal == SIGCHLD) continue; /* the event loop reaps children anyway */
        if (!sigismember(&job->stops, signal)) {
            forward_signal(job, signal);
            continue;
        }
        if (is_repeated(job)) continue;
        if (!job->signal) job->signal = signal;
        if (job->interrupts++ == 0) {
            job->interrupted = lk__now();
            if (job->alive && job->end_reason == LK__RUNNING && !job->config->plain)
                lk__job_print(job, "%s: stopping %d %s%s within %g s; a second signal kills %s at once",
                              strsignal(signal), job->alive, job->uses_ssh ? "host" : "rank",
                              job->alive == 1 ? "" : "s", job->config->grace, job->alive == 1 ? "it" : "them");
            lk__job_stop(job, LK__SIGNALLED);
        } else {
            kill_all(job);
        }
    }
}

/* ---- ended children ---- */

static lk__launch_child *find_running(lk__launch_job *job, pid_t pid)
{
    for (int i = 0; i < job->count; i++)
        if (job->children[i].running && job->children[i].pid == pid) return &job->children[i];
    return NULL;
}

static bool is_debugged(const lk__launch_job *job, const lk__launch_child *child)
{
    return !job->uses_ssh && child->rank == job->config->debug_rank;
}

static void record_end(lk__launch_job *job, lk__launch_child *child, int status, const struct rusage *usage, double now)
{
    bool answers = !child->stop_requested || (job->end_reason == LK__SIGNALLED && job->interrupts == 0);
    int  signal = answers ? answered_signal(job, status) : 0;
    child->running = false;
    if (signal) accept_stop(job, child, signal);
    child->status = status;
    child->usage = *usage;
    if (!child->unresponsive) child->ended = now;
    /* it ended without running anything */
    child->no_answer |= job->uses_ssh && status == 0 && child->port == 0 && !child->stop_requested;
    lk__cause_record_end(job, child);
    job->alive--;
    lk__reaper_notify(job, child->pid, false);
    if (child->input >= 0) close(child->input);
    child->input = -1;
}

/* Orphans of ranks too, which are reparented to us: a zombie is not a leftover. */
static void reap_children(lk__launch_job *job)
{
    int           status;
    struct rusage usage;
    pid_t         pid;
    double        now = lk__now(); /* one time for all that are found now: their order means nothing */
    while ((pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0) {
        if (pid == job->reaper.pid && WIFSTOPPED(status)) { /* stopped, it could not act if this process died */
            kill(pid, SIGCONT);
            continue;
        }
        if (pid == job->reaper.pid) { /* it was killed: the job must not run without one */
            close(job->reaper.pipe);
            job->reaper = (lk__launch_reaper){0, -1};
            if (lk__reaper_start(job) < 0)
                lk__job_print(job, "the orphan reaper died: %s", lk_context_error(job->context));
            continue;
        }
        lk__launch_child *child = find_running(job, pid);
        if (!child) continue; /* an orphan of a rank */
        if (WIFSTOPPED(status)) {
            /* Ctrl-Z in the debugger: no shell waits for it that could continue it. */
            if (is_debugged(job, child)) kill(-pid, SIGCONT);
            continue;
        }
        if (is_debugged(job, child)) tcsetpgrp(STDIN_FILENO, getpgrp()); /* the terminal's signals are for us again */
        record_end(job, child, status, &usage, now);
    }
    if (pid == 0 || errno != ECHILD) return;
    for (int i = 0; i < job->count; i++) { /* there are no children left: they were reaped elsewhere */
        if (!job->children[i].running) continue;
        lk__job_print(job, "%s has ended, but its exit status is not available", job->children[i].name);
        record_end(job, &job->children[i], W_EXITCODE(1, 0), &(struct rusage){0}, now);
    }
}

/* ---- the loop ---- */

static void add_poll(lk__launch_job *job, int *count, int fd, short events)
{
    if (fd >= 0) job->polls[(*count)++] = (struct pollfd){fd, events, 0};
}

/* Streams are read only while their sink's queue has room. */
static bool may_read(const lk__launch_stream *stream) { return stream->fd >= 0 && !lk__sink_full(stream->sink); }

static int wait_milliseconds(const lk__launch_job *job, double limit)
{
    double wait = limit, now = lk__now();
    bool   running = job->alive > 0 && job->end_reason == LK__RUNNING, stopping = job->alive > 0 && !running;
    double deadline = job->killing ? job->remind_at : job->deadline;
    if (stopping && deadline - now < wait) wait = deadline - now;
    if (running && job->answer_by > 0 && job->answer_by - now < wait) wait = job->answer_by - now;
    if (running && job->decide_by > 0 && job->decide_by - now < wait) wait = job->decide_by - now;
    if ((job->out->terminal || job->err->terminal) && job->config->monitor_interval < wait)
        wait = job->config->monitor_interval;
    return wait <= 0 ? 0 : (int)(wait * 1000.0) + 1;
}

static void check_control(lk__launch_job *job)
{
    char    bytes[256];
    ssize_t got = read(job->part.control, bytes, sizeof bytes);
    for (ssize_t i = 0; i < got; i++)
        if (bytes[i] == SIGUSR1 || bytes[i] == SIGUSR2) forward_signal(job, bytes[i]);
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
    job->part.control = -1;
    lk__job_stop(job, LK__INPUT_ENDED);
}

/* Waits once and handles the events. */
static void poll_once(lk__launch_job *job, double limit)
{
    int count = 0;
    add_poll(job, &count, job->signals, POLLIN);
    add_poll(job, &count, job->passed[0], POLLIN);
    add_poll(job, &count, job->part.control, POLLIN);
    for (int i = 0; i < 2; i++)
        if (lk__sink_waiting(&job->sinks[i])) add_poll(job, &count, job->sinks[i].fd, POLLOUT);
    for (int i = 0; i < job->count; i++)
        for (int j = 0; j < 2; j++)
            if (may_read(&job->children[i].streams[j])) add_poll(job, &count, job->children[i].streams[j].fd, POLLIN);
    if (poll(job->polls, (nfds_t)count, wait_milliseconds(job, limit)) < 0) return;

    int at = 2; /* both sources of signals are read together */
    handle_signals(job);
    if (job->part.control >= 0 && job->polls[at++].revents) check_control(job);
    for (int i = 0; i < 2; i++) lk__sink_flush(&job->sinks[i]);
    for (; at < count; at++) {
        if (!(job->polls[at].revents & (POLLIN | POLLHUP | POLLERR))) continue;
        for (int i = 0; i < 2 * job->count; i++) {
            lk__launch_stream *stream = &job->children[i / 2].streams[i % 2];
            if (stream->fd == job->polls[at].fd) lk__line_stream_read(stream, job->context);
        }
    }
    if (job->out->terminal || job->err->terminal)
        for (int i = 0; i < 2 * job->count; i++) lk__line_stream_peek(&job->children[i / 2].streams[i % 2]);
    for (int i = 0; i < 2; i++) lk__sink_flush(&job->sinks[i]);
    if (job->out->closed) lk__job_stop(job, LK__OUTPUT_CLOSED);
}

void lk__job_poll(lk__launch_job *job, double limit)
{
    poll_once(job, limit);
    reap_children(job);
}

static bool any_stream(const lk__launch_job *job)
{
    for (int i = 0; i < 2 * job->count; i++)
        if (job->children[i / 2].streams[i % 2].fd >= 0) return true;
    return false;
}

/* All writers have ended, so each stream ends; if an escaped process keeps one open, it is given up after a second. */
static void drain(lk__launch_job *job)
{
    double until = lk__now() + 1.0;
    while (any_stream(job) && !job->killing) {
        poll_once(job, 0.1);
        bool slow = lk__sink_waiting(&job->sinks[0]) || lk__sink_waiting(&job->sinks[1]);
        if (slow) until = lk__now() + 1.0;
        if (lk__now() > until) break;
    }
    for (int i = 0; i < 2 * job->count; i++) lk__line_stream_end(&job->children[i / 2].streams[i % 2], job->context);
}

/* A remote launcher that does not answer in time has failed. */
static void check_answers(lk__launch_job *job)
{
    if (job->answer_by <= 0 || job->end_reason != LK__RUNNING || lk__now() < job->answer_by) return;
    for (int i = 0; i < job->count && !job->first; i++) {
        if (job->children[i].port > 0) continue;
        job->first = &job->children[i];
        job->first->no_answer = true;
    }
    lk__job_stop(job, LK__FAILED);
}

lk_status lk__job_watch(lk__launch_job *job)
{
    size_t most = 5 + 2 * (size_t)job->count;
    if (lk__grow(job->context, (void **)&job->polls, &job->poll_capacity, most, sizeof *job->polls) < 0)
        return LK_ENOMEM;
    while (job->alive > 0) {
        lk__job_poll(job, 60.0);
        if (job->end_reason == LK__RUNNING && lk__cause_find(job)) lk__job_stop(job, LK__FAILED);
        check_answers(job);
        if (job->end_reason != LK__RUNNING && !job->killing && lk__now() >= job->deadline) end_grace(job);
        if (job->killing && lk__now() >= job->remind_at) {
            lk__job_report_unkilled(job);
            job->remind_at = lk__now() + REMIND_AGAIN_SECONDS;
        }
    }
    lk__leftovers_stop(job, job->killing ? 0.0 : job->config->grace);
    drain(job);
    if (job->end_reason == LK__RUNNING && lk__cause_find(job))
        job->end_reason = LK__FAILED; /* the output of remote launchers is complete now */
    return LK_OK;
}

void lk__job_flush(lk__launch_job *job)
{
    int interrupts = job->interrupts;
    while (job->interrupts == interrupts && (lk__sink_waiting(&job->sinks[0]) || lk__sink_waiting(&job->sinks[1]))) {
        struct pollfd polls[4] = {
            {job->signals, POLLIN, 0}, {job->passed[0], POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}};
        for (int i = 0; i < 2; i++)
            if (lk__sink_waiting(&job->sinks[i])) polls[2 + i].fd = job->sinks[i].fd;
        poll(polls, 4, 1000);
        handle_signals(job);
        for (int i = 0; i < 2; i++) lk__sink_flush(&job->sinks[i]);
    }
}
