/* watch.c - the launcher's one loop: signals, the children's lines, their ends, and the deadline of those asked to stop. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- stopping ---- */

static void kill_all(lk__launch_job *job)
{
    job->killing = true;
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (!child->running) continue;
        child->asked = child->forced = true;
        kill(-child->pid, SIGKILL);
    }
}

/* Ranks are asked one by one, not by group: a rank that saves its state first needs its helpers until it is done. A far end is
 * asked by the end of its input. */
void lk__job_stop(lk__launch_job *job, lk__launch_end why)
{
    if (job->why != LK__RUNNING) return;
    job->why = why;
    job->deadline = lk__now() + job->config->grace + (job->head ? 5.0 : 0.0); /* far ends wait for their own ranks */
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (!child->running) continue;
        child->asked = true;
        if (child->input >= 0) {
            close(child->input);
            child->input = -1;
        } else if (kill(child->pid, lk__signal_for_ranks(job)) == 0) {
            kill(child->pid, SIGCONT); /* a stopped process would never see it */
        }
    }
}

void lk__job_take_signals(lk__launch_job *job)
{
    struct signalfd_siginfo heard;
    while (read(job->signals, &heard, sizeof heard) == (ssize_t)sizeof heard) {
        int signal = (int)heard.ssi_signo;
        if (signal == SIGCHLD) continue;         /* whoever hears looks for the dead anyway */
        if (!sigismember(&job->stops, signal)) { /* SIGUSR1, SIGUSR2 */
            for (int i = 0; i < job->count; i++)
                if (job->children[i].running) kill(job->children[i].pid, signal);
            continue;
        }
        if (!job->signal) job->signal = signal;
        if (job->interrupts++ == 0) {
            if (job->alive && job->why == LK__RUNNING && !job->config->plain)
                lk__job_print(job, "%s: asking %d %s to stop, %g s at most; once more kills at once", strsignal(signal),
                              job->alive, job->head ? "hosts" : "ranks", job->config->grace);
            lk__job_stop(job, LK__SIGNALLED);
        } else {
            kill_all(job);
        }
    }
}

/* ---- the dead ---- */

static lk__launch_child *child_of(lk__launch_job *job, pid_t pid)
{
    for (int i = 0; i < job->count; i++)
        if (job->children[i].running && job->children[i].pid == pid) return &job->children[i];
    return NULL;
}

static bool is_debugged(const lk__launch_job *job, const lk__launch_child *child)
{
    return !job->head && child->rank == job->config->debug_rank;
}

static void note_end(lk__launch_job *job, lk__launch_child *child, int status, const struct rusage *usage, double now)
{
    child->running = false;
    child->status = status;
    child->usage = *usage;
    if (!child->unanswering) child->ended = now;
    child->silent |=
        job->head && status == 0 && child->port == 0 && !child->asked; /* whatever that was, it ran nothing */
    lk__cause_note_end(job, child);
    job->alive--;
    lk__reaper_tell(job, child->pid, false);
    if (child->input >= 0) close(child->input);
    child->input = -1;
}

static void reap(lk__launch_job *job)
{
    int           status;
    struct rusage usage;
    pid_t         pid;
    double        now = lk__now(); /* one for all that are found now: in which order tells nothing */
    while ((pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0) {
        if (pid == job->keeper.pid) { /* somebody killed it: the job must not go on without */
            close(job->keeper.pipe);
            job->keeper = (lk__launch_reaper){0, -1};
            if (lk__reaper_start(job) < 0) lk__job_print(job, "the keeper died: %s", lk_context_error(job->context));
            continue;
        }
        lk__launch_child *child = child_of(job, pid);
        if (!child) continue; /* an orphan of a rank */
        if (WIFSTOPPED(status)) {
            /* Ctrl-Z at the debugger: no shell waits for it that could wake it. */
            if (is_debugged(job, child)) kill(-pid, SIGCONT);
            continue;
        }
        if (is_debugged(job, child)) tcsetpgrp(STDIN_FILENO, getpgrp()); /* Ctrl-C is for us again */
        note_end(job, child, status, &usage, now);
    }
    if (pid == 0 || errno != ECHILD) return;
    for (int i = 0; i < job->count; i++) { /* nobody is left to wait for, whatever took them */
        if (!job->children[i].running) continue;
        lk__job_print(job, "%s is gone, and its exit status with it", job->children[i].name);
        note_end(job, &job->children[i], W_EXITCODE(1, 0), &(struct rusage){0}, now);
    }
}

/* ---- the loop ---- */

static void add(lk__launch_job *job, int *count, int fd, short events)
{
    if (fd >= 0) job->polls[(*count)++] = (struct pollfd){fd, events, 0};
}

/* Which streams may be read: those whose lines find room. */
static bool may_read(const lk__launch_stream *stream) { return stream->fd >= 0 && !lk__sink_full(stream->sink); }

static int time_to_wait(const lk__launch_job *job, double limit)
{
    double wait = limit, now = lk__now();
    if (job->why != LK__RUNNING && !job->killing && job->deadline - now < wait) wait = job->deadline - now;
    if (job->answer_by > 0 && job->why == LK__RUNNING && job->answer_by - now < wait) wait = job->answer_by - now;
    if (job->decide_by > 0 && job->why == LK__RUNNING && job->decide_by - now < wait) wait = job->decide_by - now;
    if ((job->out->terminal || job->err->terminal) && job->config->monitor_interval < wait)
        wait = job->config->monitor_interval;
    return wait <= 0 ? 0 : (int)(wait * 1000.0) + 1;
}

static void end_of_watch(lk__launch_job *job)
{
    char    bytes[256];
    ssize_t got = read(job->place.watch, bytes, sizeof bytes);
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
    job->place.watch = -1;
    lk__job_stop(job, LK__INPUT_ENDED);
}

/* One wait, and whatever it brings. */
static void turn(lk__launch_job *job, double limit)
{
    int count = 0;
    add(job, &count, job->signals, POLLIN);
    add(job, &count, job->place.watch, POLLIN);
    for (int i = 0; i < 2; i++)
        if (lk__sink_waiting(&job->sinks[i])) add(job, &count, job->sinks[i].fd, POLLOUT);
    for (int i = 0; i < job->count; i++)
        for (int j = 0; j < 2; j++)
            if (may_read(&job->children[i].streams[j])) add(job, &count, job->children[i].streams[j].fd, POLLIN);
    if (poll(job->polls, (nfds_t)count, time_to_wait(job, limit)) < 0) return;

    int at = 0;
    lk__job_take_signals(job);
    at++;
    if (job->place.watch >= 0 && job->polls[at++].revents) end_of_watch(job);
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

static bool any_stream(const lk__launch_job *job)
{
    for (int i = 0; i < 2 * job->count; i++)
        if (job->children[i / 2].streams[i % 2].fd >= 0) return true;
    return false;
}

/* All writers are dead, so each stream ends; only a process that got away could hold one open, and it is not waited for. */
static void drain(lk__launch_job *job)
{
    double until = lk__now() + 1.0;
    while (any_stream(job) && !job->killing) {
        turn(job, 0.1);
        bool slow = lk__sink_waiting(&job->sinks[0]) || lk__sink_waiting(&job->sinks[1]);
        if (slow) until = lk__now() + 1.0;
        if (lk__now() > until) break;
    }
    for (int i = 0; i < 2 * job->count; i++) lk__line_stream_end(&job->children[i / 2].streams[i % 2], job->context);
}

/* A far end that does not speak in time failed, whatever it is doing. */
static void check_answers(lk__launch_job *job)
{
    if (job->answer_by <= 0 || job->why != LK__RUNNING || lk__now() < job->answer_by) return;
    for (int i = 0; i < job->count && !job->first; i++) {
        if (job->children[i].port > 0) continue;
        job->first = &job->children[i];
        job->first->silent = true;
    }
    lk__job_stop(job, LK__FAILED);
}

lk_status lk__watch(lk__launch_job *job)
{
    size_t most = 4 + 2 * (size_t)job->count;
    if (lk__grow(job->context, (void **)&job->polls, &job->poll_capacity, most, sizeof *job->polls) < 0)
        return LK_ENOMEM;
    while (job->alive > 0) {
        turn(job, 60.0);
        reap(job);
        if (job->why == LK__RUNNING && lk__cause_find(job)) lk__job_stop(job, LK__FAILED);
        check_answers(job);
        if (job->why != LK__RUNNING && !job->killing && lk__now() >= job->deadline) kill_all(job);
    }
    lk__sweep(job, job->killing ? 0.0 : job->config->grace);
    drain(job);
    if (job->why == LK__RUNNING && lk__cause_find(job)) job->why = LK__FAILED; /* what far ends said is whole now */
    return LK_OK;
}

void lk__job_flush(lk__launch_job *job)
{
    int interrupts = job->interrupts;
    while (job->interrupts == interrupts && (lk__sink_waiting(&job->sinks[0]) || lk__sink_waiting(&job->sinks[1]))) {
        struct pollfd polls[3] = {{job->signals, POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}};
        for (int i = 0; i < 2; i++)
            if (lk__sink_waiting(&job->sinks[i])) polls[1 + i].fd = job->sinks[i].fd;
        poll(polls, 3, 1000);
        lk__job_take_signals(job);
        for (int i = 0; i < 2; i++) lk__sink_flush(&job->sinks[i]);
    }
}
