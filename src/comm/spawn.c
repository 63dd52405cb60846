/* spawn.c - ranks as forked processes. The parent keeps only their pids: the ranks join each other themselves. */
#define _GNU_SOURCE
#include "base/base.h"
#include "base/entropy.h"
#include "base/environment.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <lockstep/comm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_MS = 2000, MOST = 4096 };

static lk_status fail_spawn(lk_spawn_result *result, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static lk_status fail_spawn(lk_spawn_result *result, lk_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result->text, sizeof result->text, format, arguments);
    va_end(arguments);
    return status;
}

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int  count = 0;
    if (!tasks) return 1; /* unknown */
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* A thread that was joined may still be listed for a moment: pthread_join waits for the end of its code, not of its
 * task. */
static int threads_here(void)
{
    int count = count_threads();
    for (int tries = 0; count > 1 && tries < 100; tries++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        count = count_threads();
    }
    return count;
}

/* Whether the driver's library is loaded: the CUDA module loads it when it looks for GPUs. */
static bool cuda_started(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) dlclose(driver);
    return driver != NULL;
}

typedef struct job {
    char             name[128], token[33];
    int              ranks;
    pid_t            parent;
    sigset_t         before;
    struct sigaction on_child; /* the caller's for SIGCHLD */
} job;

/* In the child: never returns. */
static void run_rank(const job *j, int rank, int (*function)(int rank, void *user), void *user)
{
    char number[16], count[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != j->parent) _exit(1); /* the parent died before prctl */
    sigaction(SIGCHLD, &j->on_child, NULL);
    sigprocmask(SIG_SETMASK, &j->before, NULL);
    snprintf(number, sizeof number, "%d", rank);
    snprintf(count, sizeof count, "%d", j->ranks);
    setenv("RANK", number, 1);
    setenv("LOCAL_RANK", number, 1);
    setenv("WORLD_SIZE", count, 1);
    setenv("LOCAL_WORLD_SIZE", count, 1);
    setenv("LOCKSTEP_JOB", j->name, 1);
    setenv("LOCKSTEP_TOKEN", j->token, 1);
    /* The outer job's, where there is one: its launcher would take the numbers of these ranks for its own. */
    unsetenv("LOCKSTEP_FLIGHT_RECORDER");
    unsetenv("LOCKSTEP_JOIN_COMMAND");
    int code = function(rank, user);
    fflush(NULL);
    if (code < 0 || code > 255) code = 255; /* the system keeps eight bits: 256 would become 0, success */
    _exit(code);
}

/* If the caller ignores SIGCHLD or sets SA_NOCLDWAIT, the kernel would discard the ranks' exit status. */
static void block_sigchld(job *j)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &j->before);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &j->on_child);
}

static void restore_sigchld(const job *j)
{
    bool unwanted = j->on_child.sa_handler == SIG_IGN || (j->on_child.sa_flags & SA_NOCLDWAIT);
    sigaction(SIGCHLD, &j->on_child, NULL);
    /* The caller's own children that ended meanwhile: the kernel would have reaped them. */
    while (unwanted && waitpid(-1, NULL, WNOHANG) > 0) {}
    sigprocmask(SIG_SETMASK, &j->before, NULL);
}

/* lost: the status is unknown, because something else in this process waited for all children. */
static void record_end(lk_spawn_result *result, int rank, int status, bool lost)
{
    if (result->rank >= 0 || (!lost && WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
    result->rank = rank;
    if (lost) {
        snprintf(result->text, sizeof result->text, "rank %d exited, but its exit status was lost", rank);
        return;
    }
    result->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (WIFSIGNALED(status))
        snprintf(result->text, sizeof result->text, "rank %d was killed by signal %d (%s)", rank, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(result->text, sizeof result->text, "rank %d exited with status %d", rank, WEXITSTATUS(status));
}

/* SIGCHLD is blocked, so it can be waited for, with a time limit once a rank has failed. Other children are not
 * touched. */
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
            record_end(result, i, status, got < 0);
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
    if (ranks < 1 || ranks > MOST)
        return fail_spawn(result, LK_EINVAL, "cannot start %d ranks: expected 1 to %d", ranks, MOST);
    if (cuda_started())
        return fail_spawn(result, LK_EINVAL,
                          "CUDA is already initialised in this process, and a forked rank could not use it: call "
                          "lk_spawn before the first lk_context_create with a device other than \"cpu\"");
    int threads = threads_here();
    if (threads > 1)
        return fail_spawn(result, LK_EINVAL,
                          "this process has %d threads, of which a forked rank would have only one: call lk_spawn "
                          "before anything starts threads",
                          threads);
    /* In a nested job the name begins with the outer job's, so that its launcher finds these processes too. */
    char        inner[33];
    const char *outer = lk__environment(NULL, LK__ENV_LOCKSTEP_JOB);
    if (!lk__entropy_hex(inner, 16) || !lk__entropy_hex(j.token, 16))
        return fail_spawn(result, LK_EIO, "cannot get random numbers from the system");
    snprintf(j.name, sizeof j.name, "%.64s%s%s", outer ? outer : "", outer ? "." : "", inner);
    pid_t *pids = calloc((size_t)ranks, sizeof *pids);
    if (!pids) return fail_spawn(result, LK_ENOMEM, "out of memory: cannot start %d ranks", ranks);
    block_sigchld(&j);
    fflush(NULL); /* or every rank would print the buffered output again */
    lk_status status = LK_OK;
    for (int i = 0; i < ranks && status >= 0; i++) {
        pids[i] = fork();
        if (pids[i] == 0) run_rank(&j, i, function, user);
        if (pids[i] > 0) continue;
        status = fail_spawn(result, LK_EIO, "cannot start rank %d of %d: %s", i, ranks, strerror(errno));
        for (int k = 0; k < i; k++) kill(pids[k], SIGKILL);
    }
    lk_spawn_result ended = *result;
    wait_for_all(pids, ranks, &ended);
    free(pids);
    restore_sigchld(&j);
    if (status < 0) return status;
    *result = ended;
    return ended.rank < 0 ? LK_OK : LK_ECANCELED;
}
