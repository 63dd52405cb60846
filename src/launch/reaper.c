/* keeper.c - a small process in a session of its own that holds a pipe to the launcher. When the launcher is gone, however it
 * went, the keeper kills the ranks' process groups and whoever carries the job's id in its environment. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEEPER_NAME "lk-keeper"
enum { GONE, ALIVE, THE_END, PROCESSES = 16384, MARK = LK__JOB_ID + 16 };

typedef struct message {
    int32_t pid, what;
} message;

static void pause_for(long milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

/* ---- who belongs to the job ---- */

/* Whether one of the NUL-parted strings of a process's environment is LOCKSTEP_JOB=id, or begins a part of that job (id.…). */
static bool carries(pid_t pid, const char *id)
{
    char   text[1 << 14], path[48], mark[MARK];
    size_t length = (size_t)snprintf(mark, sizeof mark, "LOCKSTEP_JOB=%s", id), held = 0;
    bool   found = false, begins = true; /* begins: text starts at the beginning of a string */
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    for (;;) {
        ssize_t got = read(fd, text + held, sizeof text - 1 - held);
        if (got <= 0 && held == 0) break;
        size_t end = held + (got > 0 ? (size_t)got : 0);
        text[end] = 0;
        size_t at = 0;
        while (at < end) {
            size_t rest = strlen(text + at);
            if (at + rest == end && got > 0 && rest < sizeof mark)
                break; /* perhaps cut: look again with more behind it */
            if (begins && strncmp(text + at, mark, length) == 0 && (!text[at + length] || text[at + length] == '.'))
                found = true;
            begins = at + rest < end;
            at += rest + 1;
        }
        if (at > end) at = end;
        memmove(text, text + at, end - at);
        held = end - at;
        if (found || got <= 0) break;
    }
    close(fd);
    return found;
}

typedef struct process {
    pid_t              pid, parent, group;
    bool               ours;
    unsigned long long start;
} process;

/* From /proc/PID/stat; the name in it may hold anything, so what is asked stands after the last parenthesis. False: not to be
 * known, dead, or a keeper. */
static bool read_stat(process *p)
{
    char path[48], text[512], state;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = 0;
    char *after = strrchr(text, ')');
    if (!after) return false;
    /* The keeper of a job inside this one ends by itself, once it has buried its own and removed their files. */
    char *name = strchr(text, '(');
    if (name && strncmp(name, "(" KEEPER_NAME ")", sizeof "(" KEEPER_NAME ")" - 1) == 0) return false;
    return sscanf(after, ") %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state,
                  &p->parent, &p->group, &p->start) == 4 &&
           state != 'Z' && state != 'X';
}

static int list_processes(process *list, int most)
{
    DIR           *directory = opendir("/proc");
    struct dirent *entry;
    int            count = 0;
    while (directory && count < most && (entry = readdir(directory))) {
        process *p = &list[count];
        *p = (process){.pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0};
        if (p->pid > 1 && read_stat(p)) count++;
    }
    if (directory) closedir(directory);
    return count;
}

static int by_pid(const void *a, const void *b)
{
    const process *x = a, *y = b;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

/* Also by its group, so that a bystander's child is known for one when it is orphaned and comes to us: ranks have groups of their
 * own. */
static bool is_bystander(const lk__launch_job *job, const process *p)
{
    for (size_t i = 0; i < job->bystander_count; i++) {
        const lk__launch_bystander *b = &job->bystanders[i];
        if (b->group == p->group || (b->pid == p->pid && b->start == p->start)) return true;
    }
    return false;
}

/* Our descendants, generation after generation until there are no more; not the keeper, no bystander and what descends from one. */
static void mark_descendants(const lk__launch_job *job, process *list, int count)
{
    pid_t self = getpid();
    qsort(list, (size_t)count, sizeof *list, by_pid);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < count; i++) {
            if (list[i].ours || list[i].pid == job->keeper.pid || is_bystander(job, &list[i])) continue;
            process *parent = bsearch(&(process){.pid = list[i].parent}, list, (size_t)count, sizeof *list, by_pid);
            if (list[i].parent == self || (parent && parent->ours)) list[i].ours = more = true;
        }
    }
}

lk_status lk__bystanders_note(lk__launch_job *job)
{
    siginfo_t about;
    process   list[PROCESSES];
    if (waitid(P_ALL, 0, &about, WEXITED | WNOHANG | WNOWAIT) < 0) return LK_OK; /* no child at all, as is usual */
    int count = list_processes(list, PROCESSES);
    mark_descendants(job, list, count);
    for (int i = 0; i < count; i++) {
        size_t at = job->bystander_count;
        if (!list[i].ours) continue;
        if (lk__grow(job->context, (void **)&job->bystanders, &job->bystander_capacity, at + 1,
                     sizeof *job->bystanders) < 0)
            return LK_ENOMEM;
        job->bystanders[job->bystander_count++] = (lk__launch_bystander){list[i].pid, list[i].group, list[i].start};
    }
    return LK_OK;
}

/* Processes that carry the job's id (no bystander does: they are older than it) or, where that is asked, descend from us. Sends
 * signal to each (0: none) and returns how many there are. */
static int processes_of(const lk__launch_job *job, bool descendants, int signal)
{
    process list[PROCESSES];
    int     count = list_processes(list, PROCESSES), ours = 0;
    pid_t   self = getpid();
    if (descendants) mark_descendants(job, list, count);
    for (int i = 0; i < count; i++) {
        if (list[i].pid == self || list[i].pid == job->keeper.pid) continue;
        if (!list[i].ours && !carries(list[i].pid, job->id)) continue;
        ours++;
        if (signal) kill(list[i].pid, signal);
        if (signal == SIGTERM) kill(list[i].pid, SIGCONT); /* a stopped process would never see it */
    }
    return ours;
}

/* ---- the keeper ---- */

typedef struct groups {
    pid_t list[4096];
    int   count;
} groups;

static void note(groups *g, const message *m)
{
    for (int i = 0; i < g->count; i++) {
        if (g->list[i] != m->pid) continue;
        if (m->what == GONE) g->list[i] = g->list[--g->count];
        return;
    }
    if (m->what == ALIVE && g->count < (int)(sizeof g->list / sizeof *g->list)) g->list[g->count++] = m->pid;
}

/* Until a look finds nobody: what was forking when we looked is found the next time. */
static void bury(const lk__launch_job *job, const groups *g)
{
    for (int i = 0; i < g->count; i++) kill(-g->list[i], SIGKILL);
    for (int round = 0; round < 500 && processes_of(job, false, SIGKILL) > 0; round++) pause_for(2);
}

static void keep(const lk__launch_job *job, int pipe)
{
    groups  g = {.count = 0};
    message m;
    for (;;) {
        ssize_t got = read(pipe, &m, sizeof m);
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof m) break;
        if (m.what == THE_END) _exit(0);
        note(&g, &m);
    }
    bury(job, &g);
    lk__folder_remove(job->folder);
    _exit(0);
}

lk_status lk__reaper_start(lk__launch_job *job)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return lk__fail(job->context, LK_EIO, "cannot make a pipe: %s", strerror(errno));
    job->keeper.pid = fork();
    if (job->keeper.pid == 0) {
        setsid();
        prctl(PR_SET_NAME, KEEPER_NAME);
        static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
        /* Nothing of ours stays open in it: whoever reads our output must see its end when we are gone. */
        dup2(ends[0], STDIN_FILENO);
        if (close_range(1, ~0u, 0) < 0) /* a kernel before 5.9 */
            for (int fd = 1; fd < 4096; fd++) close(fd);
        if (chdir("/") < 0) _exit(1);
        keep(job, STDIN_FILENO);
    }
    close(ends[0]);
    if (job->keeper.pid < 0) {
        close(ends[1]);
        return lk__fail(job->context, LK_EIO, "cannot start the keeper process: %s", strerror(errno));
    }
    job->keeper.pipe = ends[1];
    for (int i = 0; i < job->count; i++) /* another keeper died: this one must know who is there */
        if (job->children[i].running) lk__reaper_tell(job, job->children[i].pid, true);
    return LK_OK;
}

void lk__reaper_tell(lk__launch_job *job, pid_t pid, bool alive)
{
    message m = {pid, alive ? ALIVE : GONE};
    if (job->keeper.pipe >= 0 && write(job->keeper.pipe, &m, sizeof m) < 0) return; /* its death is heard by SIGCHLD */
}

void lk__reaper_end(lk__launch_job *job)
{
    message m = {0, THE_END};
    if (job->keeper.pid <= 0) return;
    if (write(job->keeper.pipe, &m, sizeof m) < 0) kill(job->keeper.pid, SIGKILL);
    close(job->keeper.pipe);
    while (waitpid(job->keeper.pid, NULL, 0) < 0 && errno == EINTR) {}
    job->keeper = (lk__launch_reaper){0, -1};
}

void lk__sweep(lk__launch_job *job, double grace)
{
    double until = lk__now() + grace;
    int    left = processes_of(job, true, SIGTERM);
    while (left > 0 && lk__now() < until && !job->killing) {
        pause_for(5);
        lk__job_take_signals(job);
        while (waitpid(-1, NULL, WNOHANG) > 0) {} /* orphans come to us; the dead are not leftovers */
        left = processes_of(job, true, 0);
    }
    for (int round = 0; round < 1000 && left > 0; round++) {
        left = processes_of(job, true, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        if (left) pause_for(2);
    }
}
