/* reaper.c - the orphan reaper: a small process in its own session that holds a pipe to the launcher. When the launcher
 * has ended, for whatever reason, it kills the ranks' process groups and every process with the job's id in its
 * environment. */
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

#define REAPER_NAME "lk-reaper"
#define SEARCH_SECONDS 0.02 /* between two searches of /proc for processes that ranks have left */
#define KILL_SECONDS 5.0    /* for those to end after SIGKILL; one that waits for a device may take longer */
enum { ENDED, STARTED, JOB_DONE, MARK = LK__JOB_ID + 16 };

typedef struct message {
    int32_t pid, what;
} message;

static void pause_for(long milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

/* ---- processes of the job ---- */

/* Whether a process's environment has LOCKSTEP_JOB=id, or the id of a job inside that job (id.…). */
static bool has_job_id(pid_t pid, const char *id)
{
    char   text[1 << 14], path[48], mark[MARK];
    size_t length = (size_t)snprintf(mark, sizeof mark, "LOCKSTEP_JOB=%s", id), held = 0;
    bool   found = false, begins = true; /* begins: text starts at the beginning of an entry */
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
                break; /* the entry may be incomplete: read more first */
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

typedef struct process_list {
    process *list;
    size_t   count, capacity;
} process_list;

/* From /proc/PID/stat; the name in it may contain any character, so parsing starts after the last parenthesis. False:
 * unreadable, dead, or a reaper. */
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
    /* The reaper of a job inside this one ends by itself, once it has killed its processes and removed their files. */
    char *name = strchr(text, '(');
    if (name && strncmp(name, "(" REAPER_NAME ")", sizeof "(" REAPER_NAME ")" - 1) == 0) return false;
    return sscanf(after, ") %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state,
                  &p->parent, &p->group, &p->start) == 4 &&
           state != 'Z' && state != 'X';
}

/* Of those in /proc; false: there are no more. */
static bool read_next(DIR *directory, process *p)
{
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        *p = (process){.pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0};
        if (p->pid > 1 && read_stat(p)) return true;
    }
    return false;
}

static void free_list(lk_context *context, process_list *all)
{
    lk__free(context, LK_MEMORY_OTHER, all->list, all->capacity * sizeof *all->list);
}

/* Free the list also if this fails. */
static lk_status list_processes(lk_context *context, process_list *all)
{
    DIR      *directory = opendir("/proc");
    process   p;
    lk_status status = LK_OK;
    *all = (process_list){NULL, 0, 0};
    while (directory && status == LK_OK && read_next(directory, &p)) {
        status = lk__grow(context, (void **)&all->list, &all->capacity, all->count + 1, sizeof *all->list);
        if (status == LK_OK) all->list[all->count++] = p;
    }
    if (directory) closedir(directory);
    return status;
}

static int by_pid(const void *a, const void *b)
{
    const process *x = a, *y = b;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

/* Also by its group, so that a bystander's child is recognised when it is orphaned and reparented to us: ranks have
 * groups of their own. */
static bool is_bystander(const lk__launch_job *job, const process *p)
{
    for (size_t i = 0; i < job->bystander_count; i++) {
        const lk__launch_bystander *b = &job->bystanders[i];
        if (b->group == p->group || (b->pid == p->pid && b->start == p->start)) return true;
    }
    return false;
}

/* Marks our descendants, except the reaper, bystanders and their descendants. Repeats until a pass finds no more. */
static void mark_descendants(const lk__launch_job *job, process_list *all)
{
    pid_t    self = getpid();
    process *list = all->list;
    if (all->count) qsort(list, all->count, sizeof *list, by_pid);
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < all->count; i++) {
            if (list[i].ours || list[i].pid == job->reaper.pid || is_bystander(job, &list[i])) continue;
            process *parent = bsearch(&(process){.pid = list[i].parent}, list, all->count, sizeof *list, by_pid);
            if (list[i].parent == self || (parent && parent->ours)) list[i].ours = more = true;
        }
    }
}

lk_status lk__bystanders_record(lk__launch_job *job)
{
    siginfo_t    about;
    process_list all;
    if (waitid(P_ALL, 0, &about, WEXITED | WNOHANG | WNOWAIT) < 0) return LK_OK; /* no children: the usual case */
    lk_status status = list_processes(job->context, &all);
    if (status == LK_OK) mark_descendants(job, &all);
    for (size_t i = 0; i < all.count && status == LK_OK; i++) {
        const process *p = &all.list[i];
        if (!p->ours) continue;
        status = lk__grow(job->context, (void **)&job->bystanders, &job->bystander_capacity, job->bystander_count + 1,
                          sizeof *job->bystanders);
        if (status == LK_OK)
            job->bystanders[job->bystander_count++] = (lk__launch_bystander){p->pid, p->group, p->start};
    }
    free_list(job->context, &all);
    return status;
}

/* Sends signal (0: none) to a process that is ours, or has the job's id (bystanders are older than it and do not have
 * it); returns whether it is one. */
static bool signal_process(const lk__launch_job *job, const process *p, int signal)
{
    if (p->pid == getpid() || p->pid == job->reaper.pid) return false;
    if (!p->ours && !has_job_id(p->pid, job->id)) return false;
    if (signal) kill(p->pid, signal);
    if (signal == SIGTERM) kill(p->pid, SIGCONT); /* a stopped process would not handle it */
    return true;
}

/* To all processes with the job's id; returns their number. Allocates nothing from the context, whose allocator may not
 * work in a forked process. */
static int signal_by_id(const lk__launch_job *job, int signal)
{
    DIR    *directory = opendir("/proc");
    process p;
    int     found = 0;
    while (directory && read_next(directory, &p)) found += signal_process(job, &p, signal);
    if (directory) closedir(directory);
    return found;
}

/* To these and our descendants; only to these if memory is exhausted. */
static int signal_leftovers(const lk__launch_job *job, int signal)
{
    process_list all;
    int          found = 0;
    lk_status    status = list_processes(job->context, &all);
    if (status == LK_OK) mark_descendants(job, &all);
    for (size_t i = 0; i < all.count && status == LK_OK; i++) found += signal_process(job, &all.list[i], signal);
    free_list(job->context, &all);
    return status == LK_OK ? found : signal_by_id(job, signal);
}

/* ---- the reaper process ---- */

typedef struct groups {
    pid_t list[4096];
    int   count;
} groups;

static void update_groups(groups *g, const message *m)
{
    for (int i = 0; i < g->count; i++) {
        if (g->list[i] != m->pid) continue;
        if (m->what == ENDED) g->list[i] = g->list[--g->count];
        return;
    }
    if (m->what == STARTED && g->count < (int)(sizeof g->list / sizeof *g->list)) g->list[g->count++] = m->pid;
}

/* Repeats until no process is found: a fork during one pass is found in the next. */
static void kill_job(const lk__launch_job *job, const groups *g)
{
    for (int i = 0; i < g->count; i++) kill(-g->list[i], SIGKILL);
    for (int round = 0; round < 500 && signal_by_id(job, SIGKILL) > 0; round++) pause_for(2);
}

static void run_reaper(const lk__launch_job *job, int pipe)
{
    groups  g = {.count = 0};
    message m;
    for (;;) {
        ssize_t got = read(pipe, &m, sizeof m);
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof m) break;
        if (m.what == JOB_DONE) _exit(0);
        update_groups(&g, &m);
    }
    kill_job(job, &g);
    (void)lk__folder_remove(job->folder);
    _exit(0);
}

lk_status lk__reaper_start(lk__launch_job *job)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return lk__fail(job->context, LK_EIO, "cannot create a pipe: %s", strerror(errno));
    job->reaper.pid = fork();
    if (job->reaper.pid == 0) {
        setsid();
        prctl(PR_SET_NAME, REAPER_NAME);
        static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
        /* Closes all inherited descriptors: readers of our output must see end of file when we have ended. */
        dup2(ends[0], STDIN_FILENO);
        if (close_range(1, ~0u, 0) < 0) /* a kernel before 5.9 */
            for (int fd = 1; fd < 4096; fd++) close(fd);
        if (chdir("/") < 0) _exit(1);
        run_reaper(job, STDIN_FILENO);
    }
    close(ends[0]);
    if (job->reaper.pid < 0) {
        close(ends[1]);
        return lk__fail(job->context, LK_EIO, "cannot start the orphan reaper process: %s", strerror(errno));
    }
    job->reaper.pipe = ends[1];
    for (int i = 0; i < job->count; i++) /* replaces a reaper that died: register the running children */
        if (job->children[i].running) lk__reaper_notify(job, job->children[i].pid, true);
    return LK_OK;
}

void lk__reaper_notify(lk__launch_job *job, pid_t pid, bool alive)
{
    message m = {pid, alive ? STARTED : ENDED};
    if (job->reaper.pipe >= 0 && write(job->reaper.pipe, &m, sizeof m) < 0) return; /* SIGCHLD reports its death */
}

void lk__reaper_stop(lk__launch_job *job)
{
    message m = {0, JOB_DONE};
    pid_t   pid = job->reaper.pid;
    int     status;
    if (pid <= 0) return;
    if (write(job->reaper.pipe, &m, sizeof m) < 0) kill(pid, SIGKILL);
    close(job->reaper.pipe);
    for (;;) {
        pid_t got = waitpid(pid, &status, WUNTRACED);
        if (got == pid && WIFSTOPPED(status))
            kill(pid, SIGCONT); /* stopped, it would not read the message */
        else if (got == pid || errno != EINTR)
            break;
    }
    job->reaper = (lk__launch_reaper){0, -1};
}

/* Relays output, since a process that saves its state may print more than a pipe holds, until none of `left` processes
 * is found, the time is over or, unless they are killed, a second stop request arrives. signal: sent at each search.
 * Returns how many were found last. */
static int wait_for_leftovers(lk__launch_job *job, int left, int signal, double until)
{
    while (left > 0 && lk__now() < until && (signal == SIGKILL || !job->killing)) {
        double now, next = lk__now() + SEARCH_SECONDS;
        while ((now = lk__now()) < next) lk__job_poll(job, next - now);
        left = signal_leftovers(job, signal);
    }
    return left;
}

void lk__leftovers_stop(lk__launch_job *job, double grace)
{
    int left = signal_leftovers(job, SIGTERM);
    left = wait_for_leftovers(job, left, 0, lk__now() + grace);
    if (left > 0) left = signal_leftovers(job, SIGKILL);
    if (left > 0 && !job->killing)
        lk__job_print(job, "%d process%s that ranks had left did not end within %g s and %s killed", left,
                      left == 1 ? "" : "es", grace, left == 1 ? "was" : "were");
    (void)wait_for_leftovers(job, left, SIGKILL, lk__now() + KILL_SECONDS);
}
