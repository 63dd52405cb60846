/* spawn.c - ranks as forked processes. The parent keeps nothing but their numbers: each rank meets the others by
 * itself. */
#define _GNU_SOURCE
#include "base/base.h"
#include "base/entropy.h"

#include <dirent.h>
#include <errno.h>
#include <lockstep/comm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 2000, MOST = 4096 };

static lk_status refuse(lk_spawn_result *result, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static lk_status refuse(lk_spawn_result *result, lk_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result->text, sizeof result->text, format, arguments);
    va_end(arguments);
    return status;
}

static int threads_here(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int  count = 0;
    if (!tasks) return 1; /* not to be known */
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

typedef struct job {
    char             name[128], token[33];
    int              ranks;
    pid_t            parent;
    sigset_t         before;
    struct sigaction at_death; /* the caller's for SIGCHLD */
} job;

/* In the child: never returns. */
static void be_rank(const job *j, int rank, int (*function)(int rank, void *user), void *user)
{
    char number[16], count[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != j->parent) _exit(1); /* it died before the line above */
    sigaction(SIGCHLD, &j->at_death, NULL);
    sigprocmask(SIG_SETMASK, &j->before, NULL);
    snprintf(number, sizeof number, "%d", rank);
    snprintf(count, sizeof count, "%d", j->ranks);
    setenv("RANK", number, 1);
    setenv("LOCAL_RANK", number, 1);
    setenv("WORLD_SIZE", count, 1);
    setenv("LOCAL_WORLD_SIZE", count, 1);
    setenv("LOCKSTEP_JOB", j->name, 1);
    setenv("LOCKSTEP_TOKEN", j->token, 1);
    int code = function(rank, user);
    fflush(NULL);
    if (code < 0 || code > 255) code = 255; /* the system keeps eight bits, and those of 256 would read as success */
    _exit(code);
}

/* Where the caller ignores SIGCHLD, or wants no status of its children, the dead would leave none to us either. */
static void take_deaths(job *j)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &j->before);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &j->at_death);
}

static void give_deaths_back(const job *j)
{
    bool unwanted = j->at_death.sa_handler == SIG_IGN || (j->at_death.sa_flags & SA_NOCLDWAIT);
    sigaction(SIGCHLD, &j->at_death, NULL);
    /* The caller's own children that died meanwhile: the kernel would have buried them. */
    while (unwanted && waitpid(-1, NULL, WNOHANG) > 0) {}
    sigprocmask(SIG_SETMASK, &j->before, NULL);
}

/* lost: status is not known, because something else in this process waited for all children. */
static void note(lk_spawn_result *result, int rank, int status, bool lost)
{
    if (result->rank >= 0 || (!lost && WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
    result->rank = rank;
    if (lost) {
        snprintf(result->text, sizeof result->text, "rank %d is gone, and its exit status with it", rank);
        return;
    }
    result->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (WIFSIGNALED(status))
        snprintf(result->text, sizeof result->text, "rank %d was ended by signal %d (%s)", rank, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(result->text, sizeof result->text, "rank %d ended with status %d", rank, WEXITSTATUS(status));
}

/* SIGCHLD is blocked, so it can be waited for, with a time limit once a rank has failed. Other children are left
 * alone. */
static void wait_for_all(pid_t *pids, int ranks, lk_spawn_result *result)
{
    sigset_t child;
    double   failed = 0;
    int      left = 0, sent = 0;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (int i = 0; i < ranks; i++) left += pids[i] > 0;
    while (left > 0) {
        for (int i = 0; i < ranks; i++) {
            int   status = 0;
            pid_t got = pids[i] > 0 ? waitpid(pids[i], &status, WNOHANG) : 0;
            if (got == 0 || (got < 0 && errno != ECHILD)) continue;
            pids[i] = 0;
            left--;
            note(result, i, status, got < 0);
        }
        if (result->rank >= 0 && failed == 0) failed = lk__now();
        int late = failed > 0 ? (int)((lk__now() - failed) * 1000) / GRACE_MS : 0;
        for (; sent < late && sent < 2; sent++)
            for (int i = 0; i < ranks; i++)
                if (pids[i] > 0) kill(pids[i], sent == 0 ? SIGTERM : SIGKILL);
        struct timespec slice = {.tv_nsec = 100000000};
        if (left > 0) sigtimedwait(&child, NULL, &slice);
    }
}

lk_status lk_spawn(int ranks, int (*function)(int rank, void *user), void *user, lk_spawn_result *result)
{
    lk_spawn_result own;
    job             j = {.ranks = ranks, .parent = getpid()};
    if (!result) result = &own;
    *result = (lk_spawn_result){.rank = -1, .exit_code = -1};
    if (ranks < 1 || ranks > MOST) return refuse(result, LK_EINVAL, "%d ranks: 1 … %d can be started", ranks, MOST);
    int threads = threads_here();
    if (threads > 1)
        return refuse(result, LK_EINVAL,
                      "this process has %d threads, and a forked rank would have one: call lk_spawn before anything "
                      "starts threads",
                      threads);
    /* A job inside a job: whoever looks for the outer one's processes finds these too. */
    char        inner[33];
    const char *outer = getenv("LOCKSTEP_JOB");
    if (!lk__entropy_hex(inner, 16) || !lk__entropy_hex(j.token, 16))
        return refuse(result, LK_EIO, "the system gives no random numbers");
    snprintf(j.name, sizeof j.name, "%.64s%s%s", outer ? outer : "", outer ? "." : "", inner);
    pid_t *pids = calloc((size_t)ranks, sizeof *pids);
    if (!pids) return refuse(result, LK_ENOMEM, "no memory");
    take_deaths(&j);
    fflush(NULL); /* or every rank would print what is in the buffers */
    lk_status status = LK_OK;
    for (int i = 0; i < ranks && status >= 0; i++) {
        pids[i] = fork();
        if (pids[i] == 0) be_rank(&j, i, function, user);
        if (pids[i] > 0) continue;
        status = refuse(result, LK_EIO, "cannot start rank %d of %d: %s", i, ranks, strerror(errno));
        for (int k = 0; k < i; k++) kill(pids[k], SIGKILL);
    }
    lk_spawn_result ended = *result;
    wait_for_all(pids, ranks, &ended);
    free(pids);
    give_deaths_back(&j);
    if (status < 0) return status;
    *result = ended;
    return ended.rank < 0 ? LK_OK : LK_ECANCELED;
}
