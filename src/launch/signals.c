/* signals.c - the signals that stop a job, by torchrun's names, and how they reach the launcher's event loop. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

/* The signals that may be handled. The launcher itself uses SIGCHLD, SIGPIPE and SIGTTOU; SIGKILL and SIGSTOP cannot be
 * handled. */
static const struct {
    const char *name;
    int         number;
} known[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},    {"SIGQUIT", SIGQUIT},
             {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGALRM", SIGALRM},  {"SIGXCPU", SIGXCPU},
             {"SIGPWR", SIGPWR},   {"SIGURG", SIGURG},   {"SIGIO", SIGIO},      {"SIGPROF", SIGPROF},
             {"SIGTSTP", SIGTSTP}, {"SIGCONT", SIGCONT}, {"SIGWINCH", SIGWINCH}};
enum { KNOWN = sizeof known / sizeof *known };
_Static_assert((int)KNOWN == (int)LK__LAUNCH_SIGNALS, "old_stops has an entry for each");

static int signal_number(const char *name, size_t length)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) return known[i].number;
    return 0;
}

lk_status lk__signals_parse(lk_context *context, const char *text, sigset_t *signals)
{
    sigemptyset(signals);
    if (!text) return lk__fail(context, LK_EINVAL, "the list of signals that stop the job is empty");
    for (const char *at = text;;) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), name = strcspn(at, ", ");
        int    number = signal_number(at, name);
        if (!number || strspn(at + name, " ") != length - name)
            return lk__fail(
                context, LK_EINVAL,
                "'%.*s' is not a signal that can be handled: expected a list such as SIGTERM,SIGINT,SIGUSR1, without "
                "SIGKILL, SIGSTOP, SIGCHLD and SIGPIPE",
                (int)(length < 40 ? length : 40), at);
        sigaddset(signals, number);
        if (!at[length]) return LK_OK;
        at += length + 1;
    }
}

/* The launcher blocks the signals that it handles and reads them from a signalfd. The kernel delivers a signal to any
 * thread that does not block it, though, and threads that existed before (the caller's, those of CUDA's driver) do not:
 * there this handler passes it on. Without it SIGCHLD would be lost, and SIGTERM would end the process. Dispositions
 * belong to the process, and so does this. */
static atomic_int pass_to = -1; /* a pipe */
static atomic_int passing;      /* handlers that run now: the pipe is not closed before they have ended */
static pid_t      owner;        /* whose handlers these are: a forked process has none of them */

static void pass_on(int number)
{
    int           saved = errno;
    unsigned char byte = (unsigned char)number;
    atomic_fetch_add(&passing, 1);
    int to = atomic_load(&pass_to);
    if (to >= 0 && write(to, &byte, 1) < 0) errno = 0; /* it is full of signals, so the launcher wakes up anyway */
    atomic_fetch_sub(&passing, 1);
    errno = saved;
}

/* Signals that the caller ignores (nohup, a shell's background job) stay ignored. */
static bool is_handled(const lk__launch_job *job, int number)
{
    struct sigaction now;
    if (!sigismember(&job->stops, number) && number != SIGUSR1 && number != SIGUSR2) return false;
    return sigaction(number, NULL, &now) < 0 || now.sa_handler != SIG_IGN;
}

lk_status lk__signals_open(lk__launch_job *job)
{
    sigset_t         blocked;
    struct sigaction passes = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    LK__TRY(lk__signals_parse(job->context, job->config->signals, &job->stops));
    if (pipe2(job->passed, O_NONBLOCK | O_CLOEXEC) < 0) {
        job->passed[0] = job->passed[1] = 0;
        return lk__fail(job->context, LK_EIO, "cannot create a pipe: %s", strerror(errno));
    }
    sigemptyset(&job->handled);
    for (size_t i = 0; i < KNOWN; i++)
        if (is_handled(job, known[i].number)) sigaddset(&job->handled, known[i].number);
    sigaddset(&job->handled, SIGCHLD);
    blocked = job->handled;
    sigaddset(&blocked, SIGTTOU); /* for tcsetpgrp, which gives the terminal to --debug-rank and takes it back */
    sigprocmask(SIG_BLOCK, &blocked, &job->old_mask);
    if (owner != getpid()) atomic_store(&passing, 0);
    owner = getpid();
    atomic_store(&pass_to, job->passed[1]);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &job->old_pipe);
    sigaction(SIGCHLD, &passes, &job->old_child); /* if it were ignored, children would leave no exit status */
    for (size_t i = 0; i < KNOWN; i++)
        if (sigismember(&job->handled, known[i].number)) sigaction(known[i].number, &passes, &job->old_stops[i]);
    job->signals = signalfd(-1, &job->handled, SFD_NONBLOCK | SFD_CLOEXEC);
    return job->signals >= 0 ? LK_OK : lk__fail(job->context, LK_EIO, "cannot open a signalfd: %s", strerror(errno));
}

int lk__signals_next(const lk__launch_job *job)
{
    struct signalfd_siginfo info;
    unsigned char           byte;
    if (read(job->signals, &info, sizeof info) == (ssize_t)sizeof info) return (int)info.ssi_signo;
    return read(job->passed[0], &byte, 1) == 1 ? byte : 0;
}

static void restore_stops(const lk__launch_job *job)
{
    sigaction(SIGPIPE, &job->old_pipe, NULL);
    for (size_t i = 0; i < KNOWN; i++)
        if (sigismember(&job->handled, known[i].number)) sigaction(known[i].number, &job->old_stops[i], NULL);
}

void lk__signals_restore_in_child(const lk__launch_job *job)
{
    restore_stops(job);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* which every program expects */
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
}

void lk__signals_close(lk__launch_job *job)
{
    sigset_t pending, child;
    if (job->passed[1] == 0) return; /* nothing was changed */
    if (job->signals > 0) close(job->signals);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD); /* one that is pending for us must not reach the caller */
    while (sigpending(&pending) == 0 && sigismember(&pending, SIGCHLD) == 1)
        sigtimedwait(&child, NULL, &(struct timespec){0, 0});
    restore_stops(job);
    sigaction(SIGCHLD, &job->old_child, NULL);
    atomic_store(&pass_to, -1);
    while (atomic_load(&passing) > 0) sched_yield();
    for (int i = 0; i < 2; i++) close(job->passed[i]);
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
}

int lk__signal_for_ranks(const lk__launch_job *job)
{
    bool usual = job->signal == SIGINT || job->signal == SIGHUP || job->signal == SIGQUIT;
    return job->end_reason == LK__SIGNALLED && (job->config->plain || !usual) ? job->signal : SIGTERM;
}
