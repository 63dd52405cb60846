/* signals.c - which signals stop a job, by torchrun's names, and how the launcher takes them. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

/* All that may be handled. SIGCHLD, SIGPIPE and SIGTTOU are the launcher's own; SIGKILL and SIGSTOP nobody handles. */
static const struct {
    const char *name;
    int         number;
} known[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},    {"SIGQUIT", SIGQUIT},
             {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGALRM", SIGALRM},  {"SIGXCPU", SIGXCPU},
             {"SIGPWR", SIGPWR},   {"SIGURG", SIGURG},   {"SIGIO", SIGIO},      {"SIGPROF", SIGPROF},
             {"SIGTSTP", SIGTSTP}, {"SIGCONT", SIGCONT}, {"SIGWINCH", SIGWINCH}};
enum { KNOWN = sizeof known / sizeof *known };

static int number_of(const char *name, size_t length)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) return known[i].number;
    return 0;
}

lk_status lk__signals_parse(lk_context *context, const char *text, sigset_t *signals)
{
    sigemptyset(signals);
    if (!text) return lk__fail(context, LK_EINVAL, "no signal stops the job: name some");
    for (const char *at = text;;) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), name = strcspn(at, ", ");
        int    number = number_of(at, name);
        if (!number || strspn(at + name, " ") != length - name)
            return lk__fail(
                context, LK_EINVAL,
                "'%.*s' is no signal that can be handled: a list such as SIGTERM,SIGINT,SIGUSR1 is expected, and "
                "SIGKILL, SIGSTOP, SIGCHLD and SIGPIPE cannot be in it",
                (int)(length < 40 ? length : 40), at);
        sigaddset(signals, number);
        if (!at[length]) return LK_OK;
        at += length + 1;
    }
}

/* What the caller ignores (nohup, a shell's background) stays ignored. */
lk_status lk__signals_take(lk__launch_job *job)
{
    sigset_t heard, blocked;
    LK__TRY(lk__signals_parse(job->context, job->config->signals, &job->stops));
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    for (size_t i = 0; i < KNOWN; i++) {
        struct sigaction now;
        int              number = known[i].number;
        if (!sigismember(&job->stops, number) && number != SIGUSR1 && number != SIGUSR2) continue;
        if (sigaction(number, NULL, &now) < 0 || now.sa_handler != SIG_IGN) sigaddset(&heard, number);
    }
    blocked = heard;
    sigaddset(&blocked, SIGTTOU); /* the terminal is handed to and taken back from --debug-rank */
    sigprocmask(SIG_BLOCK, &blocked, &job->old_mask);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &job->old_pipe);
    /* Where it is ignored the dead leave no status. The ranks start with the default as well, which every program expects. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &job->old_child);
    job->signals = signalfd(-1, &heard, SFD_NONBLOCK | SFD_CLOEXEC);
    return job->signals >= 0 ? LK_OK : lk__fail(job->context, LK_EIO, "cannot listen for signals: %s", strerror(errno));
}

int lk__signal_for_ranks(const lk__launch_job *job)
{
    bool usual = job->signal == SIGINT || job->signal == SIGHUP || job->signal == SIGQUIT;
    return job->why == LK__SIGNALLED && (job->config->plain || !usual) ? job->signal : SIGTERM;
}
