/* signals.c - the signals that stop a job, by torchrun's names, and the launcher's signalfd. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

/* The signals that may be handled. The launcher itself uses SIGCHLD, SIGPIPE and SIGTTOU; SIGKILL and SIGSTOP cannot be handled. */
static const struct {
    const char *name;
    int         number;
} known[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},    {"SIGQUIT", SIGQUIT},
             {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGALRM", SIGALRM},  {"SIGXCPU", SIGXCPU},
             {"SIGPWR", SIGPWR},   {"SIGURG", SIGURG},   {"SIGIO", SIGIO},      {"SIGPROF", SIGPROF},
             {"SIGTSTP", SIGTSTP}, {"SIGCONT", SIGCONT}, {"SIGWINCH", SIGWINCH}};
enum { KNOWN = sizeof known / sizeof *known };

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

/* Signals that the caller ignores (nohup, a shell's background job) stay ignored. */
lk_status lk__signals_open(lk__launch_job *job)
{
    sigset_t handled, blocked;
    LK__TRY(lk__signals_parse(job->context, job->config->signals, &job->stops));
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    for (size_t i = 0; i < KNOWN; i++) {
        struct sigaction now;
        int              number = known[i].number;
        if (!sigismember(&job->stops, number) && number != SIGUSR1 && number != SIGUSR2) continue;
        if (sigaction(number, NULL, &now) < 0 || now.sa_handler != SIG_IGN) sigaddset(&handled, number);
    }
    blocked = handled;
    sigaddset(&blocked, SIGTTOU); /* for tcsetpgrp, which gives the terminal to --debug-rank and takes it back */
    sigprocmask(SIG_BLOCK, &blocked, &job->old_mask);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &job->old_pipe);
    /* If it is ignored, children leave no exit status. Ranks inherit the default, which every program expects. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &job->old_child);
    job->signals = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    return job->signals >= 0 ? LK_OK : lk__fail(job->context, LK_EIO, "cannot open a signalfd: %s", strerror(errno));
}

int lk__signal_for_ranks(const lk__launch_job *job)
{
    bool usual = job->signal == SIGINT || job->signal == SIGHUP || job->signal == SIGQUIT;
    return job->end_reason == LK__SIGNALLED && (job->config->plain || !usual) ? job->signal : SIGTERM;
}
