/* start.c - starts one child with its process group, pipes and cores. A pipe reports whether exec succeeded. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

lk_status lk__free_port(lk_context *context, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t          length = sizeof address;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool               got = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
               getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    int why = errno;
    if (fd >= 0) close(fd);
    if (!got) return lk__fail(context, LK_EIO, "cannot find a free port: %s", strerror(why));
    *port = ntohs(address.sin_port);
    return LK_OK;
}

lk_status lk__own_address_check(lk_context *context, const char *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    int             why = getaddrinfo(address, NULL, &hints, &found);
    bool            ours = false;
    if (why != 0)
        return lk__fail(context, LK_EINVAL, "the local address '%.100s' does not resolve: %s", address,
                        gai_strerror(why));
    for (struct addrinfo *a = found; a && !ours; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ours = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    if (ours) return LK_OK;
    return lk__fail(context, LK_EINVAL, "'%.100s' is not an address of this host: ranks cannot listen there", address);
}

/* Held: signalfd, the reaper's pipe, the folder's lock, the two logs of filtered lines. Temporary: the pipes of the
 * child that is being started, and files in /proc. */
enum { DESCRIPTORS_HELD = 5, DESCRIPTORS_TEMPORARY = 8 };

lk_status lk__descriptors_check(lk_context *context, int count, int each, const char *noun)
{
    int           needed = DESCRIPTORS_HELD + count * each + DESCRIPTORS_TEMPORARY, got = 0;
    int          *list = lk__alloc(context, LK_MEMORY_OTHER, (size_t)needed * sizeof *list);
    struct rlimit limit;
    if (!list) return LK_ENOMEM;
    while (got < needed && (list[got] = got ? fcntl(list[0], F_DUPFD_CLOEXEC, 0) : open("/", O_PATH | O_CLOEXEC)) >= 0)
        got++;
    int why = errno;
    for (int i = 0; i < got; i++) close(list[i]);
    lk__free(context, LK_MEMORY_OTHER, list, (size_t)needed * sizeof *list);
    if (got == needed) return LK_OK;
    if (why != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return lk__fail(context, LK_EIO, "cannot open the %d files and pipes that %d %s%s need: %s", needed, count,
                        noun, count == 1 ? "" : "s", strerror(why));
    return lk__fail(context, LK_EIO,
                    "%d %s%s need %d file descriptors in the launcher, but only %d are free (limit %llu): raise the "
                    "limit with ulimit -n %llu",
                    count, noun, count == 1 ? "" : "s", needed, got, (unsigned long long)limit.rlim_cur,
                    (unsigned long long)limit.rlim_cur + (unsigned long long)(needed - got));
}

/* User errors: exec's error for a program that does not exist or is not executable. Others are system failures. */
static lk_status exec_status(int why)
{
    static const int user_errors[] = {EACCES, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG, ENOEXEC, E2BIG};
    if (why == ENOENT) return LK_ENOENT;
    for (size_t i = 0; i < sizeof user_errors / sizeof *user_errors; i++)
        if (why == user_errors[i]) return LK_EINVAL;
    return LK_EIO;
}

typedef struct pipes {
    int in[2], out[2], err[2], failed[2]; /* failed: errno from the child; closed by exec */
} pipes;

static void close_both(int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
}

/* In the child, after fork: only async-signal-safe calls. Returns with errno set if something failed. */
static void prepare_child(lk__launch_job *job, const lk__launch_child *child, const pipes *p, pid_t parent,
                          bool terminal)
{
    int group = setpgid(0, 0);
    lk__reaper_notify(job, getpid(), true); /* before exec, in case the launcher is killed now */
    if (group < 0) return;
    if (terminal) {
        if (tcsetpgrp(STDIN_FILENO, getpid()) < 0) return; /* signals, including SIGTTOU, are still blocked */
    } else {
        int  input = p->in[0] >= 0 ? p->in[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
        bool keeps_input = !job->uses_ssh && child->local_rank == 0 && child->rank == 0 && !isatty(STDIN_FILENO) &&
                           job->part.control < 0;
        if (!keeps_input && dup2(input, STDIN_FILENO) < 0) return;
        if (dup2(p->out[1], STDOUT_FILENO) < 0 || dup2(p->err[1], STDERR_FILENO) < 0) return;
    }
    /* The reaper kills orphans; this is faster, and also works if reaper and launcher are killed together. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) return;
    if (getppid() != parent) _exit(137);
    if (job->allowed && !job->uses_ssh &&
        sched_setaffinity(0, sizeof *job->allowed, &job->allowed[child->local_rank]) < 0)
        return;
    lk__signals_restore_in_child(job); /* ranks ignore what nohup ignores */
    errno = 0;
}

/* Where the program may be if PATH does not have it; "": nowhere. */
typedef struct places {
    char paths[2][LK__LAUNCH_PATH];
} places;

static void find_places(const lk__launch_job *job, const char *name, places *p)
{
    p->paths[0][0] = p->paths[1][0] = 0;
    if (job->uses_ssh || strchr(name, '/')) return;
    const char *path = job->part.program_path;
    if (path && strlen(path) < sizeof p->paths[0] && strcmp(name, job->config->program[0]) == 0)
        memcpy(p->paths[0], path, strlen(path) + 1);
    (void)lk__program_beside(name, p->paths[1], sizeof p->paths[1]);
}

/* In the child. Returns with errno set. */
static void execute(const char *const *argv, char *const *environment, const places *elsewhere)
{
    execvpe(argv[0], (char *const *)argv, environment);
    int why = errno;
    for (int i = 0; i < 2 && why == ENOENT; i++)
        if (elsewhere->paths[i][0]) execve(elsewhere->paths[i], (char *const *)argv, environment);
    errno = why;
}

static void keep_parent_ends(lk__launch_child *child, pipes *p)
{
    child->streams[0].fd = p->out[0];
    child->streams[1].fd = p->err[0];
    child->input = p->in[1];
    p->out[0] = p->err[0] = p->in[1] = -1;
}

lk_status lk__child_start(lk__launch_job *job, lk__launch_child *child, const char *const *argv,
                          char *const *environment, bool terminal)
{
    pipes     p = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    places    elsewhere;
    pid_t     parent = getpid();
    int       why = 0;
    lk_status status = LK_OK;
    if (pipe2(p.failed, O_CLOEXEC) < 0) goto no_pipe;
    if (!terminal && (pipe2(p.out, O_CLOEXEC) < 0 || pipe2(p.err, O_CLOEXEC) < 0)) goto no_pipe;
    if (job->uses_ssh && pipe2(p.in, O_CLOEXEC) < 0) goto no_pipe;

    find_places(job, argv[0], &elsewhere);
    child->began = lk__now();
    child->pid = fork();
    if (child->pid == 0) {
        errno = 0;
        prepare_child(job, child, &p, parent, terminal);
        if (!errno) execute(argv, environment, &elsewhere);
        why = errno;
        if (write(p.failed[1], &why, sizeof why) < 0) _exit(126);
        _exit(127);
    }
    if (child->pid < 0) {
        status = lk__fail(job->context, LK_EIO, "cannot fork: %s", strerror(errno));
        goto done;
    }
    child->running = true;
    job->alive++;
    setpgid(child->pid, child->pid); /* the child does the same: whichever runs first */
    close(p.failed[1]);
    p.failed[1] = -1;
    if (!terminal) keep_parent_ends(child, &p);
    ssize_t got;
    while ((got = read(p.failed[0], &why, sizeof why)) < 0 && errno == EINTR) {}
    if (got == (ssize_t)sizeof why)
        status = lk__fail(job->context, exec_status(why), "%s: cannot start: %s", argv[0], strerror(why));
    goto done;

no_pipe:
    status = lk__fail(job->context, LK_EIO, "cannot create a pipe: %s", strerror(errno));
done:
    close_both(p.in);
    close_both(p.out);
    close_both(p.err);
    close_both(p.failed);
    return status;
}
