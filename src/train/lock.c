/* lock.c - the lock of a checkpoint directory: byte-range locks of the open file description (F_OFD_SETLK) on the file
 * .lockstep.lock in it. They end with the process, also by SIGKILL, and distinguish two trainers of one process; NFS
 * supports them as it supports other fcntl locks.
 *
 * A child that was forked without exec shares the description, and would hold the lock after its parent has ended. So
 * the file records the holder (host, pid, start time) and its byte: if that process has certainly ended, the next
 * holder locks the next byte. Byte 0 is held only while the file is read and written, and by a reader that removes what
 * an ended writer left. */
#define _GNU_SOURCE
#include "train/lock.h"

#include "base/environment.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OWNER_BYTES = 1024, POLL_MS = 20, MAX_BYTE = 1 << 20 };
static const char   file_name[] = ".lockstep.lock";
static const double RESTART_TIMEOUT = 10, FILE_TIMEOUT = 10; /* seconds; the latter for byte 0 */

/* The holder as recorded in the file. Boot id and pid namespace show whether the pid can be looked up here. */
typedef struct owner {
    int64_t byte, pid;
    char    host[128], since[32], boot[64], namespace[64];
    char    started[32]; /* clock ticks since boot, from /proc; "" without /proc */
} owner;

double lk__lock_timeout(const lk_context *context)
{
    static const lk__environment_id counts[] = {LK__ENV_TORCHELASTIC_RESTART_COUNT, LK__ENV_SLURM_RESTART_COUNT};
    bool                            restarted = false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *count = lk__environment(context, counts[i]);
        restarted |= count && atoi(count) > 0;
    }
    return restarted ? RESTART_TIMEOUT : 0;
}

/* ---- identity of a process ---- */

/* The first line of a file, or "". */
static void read_line(const char *path, char *text, size_t room)
{
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, room - 1);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (fd >= 0) close(fd);
}

/* The start time of a process: field 22 of /proc/PID/stat, counted from the end of the name, which may contain
 * anything. */
static bool read_start_time(int64_t pid, char started[32])
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    read_line(path, text, sizeof text);
    const char *at = strrchr(text, ')');
    for (int field = 2; field < 22 && at; field++) at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    if (!at) return false;
    snprintf(started, 32, "%.*s", (int)strspn(at, "0123456789"), at);
    return true;
}

static void describe_self(owner *o)
{
    time_t    now = time(NULL);
    struct tm utc;
    ssize_t   n = readlink("/proc/self/ns/pid", o->namespace, sizeof o->namespace - 1);
    o->namespace[n > 0 ? n : 0] = 0;
    read_line("/proc/sys/kernel/random/boot_id", o->boot, sizeof o->boot);
    if (gethostname(o->host, sizeof o->host) != 0) snprintf(o->host, sizeof o->host, "?");
    o->host[sizeof o->host - 1] = 0;
    o->pid = getpid();
    o->started[0] = 0;
    (void)read_start_time(o->pid, o->started);
    o->since[0] = 0;
    if (gmtime_r(&now, &utc)) strftime(o->since, sizeof o->since, "%Y-%m-%d %H:%M:%S UTC", &utc);
}

/* True only if certain: the pid is of this host and namespace, and the process has ended or its pid was reused. */
static bool has_ended(const owner *o)
{
    owner self;
    char  started[32];
    describe_self(&self);
    if (o->pid <= 0 || !o->boot[0] || !o->namespace[0] || !o->started[0] || strcmp(o->boot, self.boot) != 0 ||
        strcmp(o->namespace, self.namespace) != 0)
        return false;
    if (!read_start_time(o->pid, started)) return kill((pid_t)o->pid, 0) != 0 && errno == ESRCH;
    return strcmp(started, o->started) != 0;
}

/* ---- the file ---- */

/* Text in the file is printable ASCII that needs no escape, since messages show it on a terminal. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\') *text = '?';
}

static bool get_string(const lk__json *root, const char *key, char *text, size_t room)
{
    lk__json value;
    if (!lk__json_get(root, key, &value) || lk__json_string(&value, text, room) >= room) return false;
    make_printable(text);
    return true;
}

/* A file with other contents has no holder, and its lock is at byte 1. */
static void read_owner(int fd, owner *o)
{
    char           text[OWNER_BYTES];
    lk__json       root, value;
    lk__json_error error;
    ssize_t        n = pread(fd, text, sizeof text, 0);
    *o = (owner){.byte = 1};
    bool good = n > 0 && lk__json_parse(text, (size_t)n, &root, &error) && lk__json_get(&root, "byte", &value) &&
                lk__json_integer(&value, &o->byte) && o->byte >= 1 && o->byte <= MAX_BYTE &&
                lk__json_get(&root, "pid", &value) && lk__json_integer(&value, &o->pid) &&
                get_string(&root, "host", o->host, sizeof o->host) &&
                get_string(&root, "since", o->since, sizeof o->since) &&
                get_string(&root, "boot", o->boot, sizeof o->boot) &&
                get_string(&root, "namespace", o->namespace, sizeof o->namespace) &&
                get_string(&root, "started", o->started, sizeof o->started);
    if (!good) *o = (owner){.byte = 1};
}

static bool write_owner(int fd, int64_t byte)
{
    char  text[OWNER_BYTES];
    owner o;
    describe_self(&o);
    make_printable(o.host);
    int n = snprintf(text, sizeof text,
                     "{\"host\":\"%s\",\"pid\":%" PRId64 ",\"since\":\"%s\",\"started\":\"%s\",\"boot\":\"%s\","
                     "\"namespace\":\"%s\",\"byte\":%" PRId64 "}\n",
                     o.host, o.pid, o.since, o.started, o.boot, o.namespace, byte);
    return n > 0 && n < (int)sizeof text && pwrite(fd, text, (size_t)n, 0) == n && ftruncate(fd, n) == 0;
}

/* LK_ENOENT, without a message, if it does not exist and `create` is false. */
static lk_status open_file(lk_context *c, const char *directory, bool create, int *fd)
{
    char        path[PATH_MAX];
    struct stat info;
    int         n = snprintf(path, sizeof path, "%s/%s", directory, file_name);
    if (n < 0 || n >= (int)sizeof path)
        return lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, file_name);
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0), 0666);
    if (*fd < 0 && errno == ENOENT && !create) return LK_ENOENT;
    if (*fd < 0)
        return lk__fail(c, LK_EIO, "%s is not writable: cannot open its lock file %s: %s", directory, file_name,
                        strerror(errno));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return LK_OK;
    close(*fd);
    *fd = -1;
    return lk__fail(c, LK_EINVAL, "%s is not a regular file; remove it: the directory's lock file must have this name",
                    path);
}

/* ---- the lock ---- */

/* 0; EAGAIN if another description holds it; or another errno. */
static int lock_byte(int fd, int64_t byte, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int          code;
    while ((code = fcntl(fd, F_OFD_SETLK, &range)) != 0 && errno == EINTR) {}
    return code == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

/* With byte 0 held: locks the byte of a new holder. */
static int lock_holder_byte(int fd, const owner *holder, int64_t *byte)
{
    *byte = holder->byte;
    int error = lock_byte(fd, *byte, F_WRLCK);
    if (error != EAGAIN || !has_ended(holder)) return error;
    *byte = holder->byte < MAX_BYTE ? holder->byte + 1 : 1;
    return lock_byte(fd, *byte, F_WRLCK);
}

typedef struct attempt {
    lk_context *context;
    const char *directory;
    int         fd;
    bool        keep; /* acquire, not only check */
    int64_t     byte;
    owner       holder;
    bool        holder_read; /* byte 0 was locked, so holder is valid */
} attempt;

/* LK_END: another process holds it. LK_EUNSUPPORTED: the filesystem has no locks. */
static lk_status try_once(attempt *a)
{
    bool written = true;
    int  error = lock_byte(a->fd, 0, F_WRLCK), write_error = 0;
    a->holder_read = error == 0;
    if (a->holder_read) {
        read_owner(a->fd, &a->holder);
        error = lock_holder_byte(a->fd, &a->holder, &a->byte);
        if (error == 0 && a->keep && !(written = write_owner(a->fd, a->byte))) write_error = errno;
        if (error == 0 && (!a->keep || !written)) (void)lock_byte(a->fd, a->byte, F_UNLCK);
        (void)lock_byte(a->fd, 0, F_UNLCK);
    }
    if (!written)
        return lk__fail(a->context, LK_EIO, "%s is not writable: cannot write its lock file %s: %s", a->directory,
                        file_name, strerror(write_error));
    if (error == 0 || error == EAGAIN) return error ? LK_END : LK_OK;
    return lk__fail(a->context, LK_EUNSUPPORTED, "cannot lock %s: %s", a->directory, strerror(error));
}

static lk_status report_holder(const attempt *a)
{
    char         holder[256] = "another process";
    const owner *o = &a->holder;
    if (o->pid > 0)
        snprintf(holder, sizeof holder, "another run (host %s, pid %" PRId64 ", since %s)", o->host, o->pid, o->since);
    return lk__fail(a->context, LK_EINVAL,
                    "%s is being written by %s; wait until it ends, or save into another directory", a->directory,
                    holder);
}

static lk_status acquire(attempt *a, double timeout)
{
    double    began = lk__now();
    lk_status status;
    while ((status = try_once(a)) == LK_END) {
        double limit = a->holder_read || timeout > FILE_TIMEOUT ? timeout : FILE_TIMEOUT;
        if (lk__now() - began >= limit) return report_holder(a);
        nanosleep(&(struct timespec){0, POLL_MS * 1000000}, NULL);
    }
    return status;
}

lk_status lk__lock_acquire(lk_context *c, const char *directory, double timeout, lk__lock *lock)
{
    attempt a = {.context = c, .directory = directory, .keep = true};
    *lock = (lk__lock)LK__LOCK_INIT;
    lk_status status = open_file(c, directory, true, &a.fd);
    if (status < 0) return status;
    status = acquire(&a, timeout);
    if (status == LK_OK || status == LK_EUNSUPPORTED)
        lock->directory = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (status == LK_OK) {
        lock->fd = a.fd;
        lock->pid = getpid();
        lock->byte = a.byte;
        return LK_OK;
    }
    close(a.fd);
    if (status != LK_EUNSUPPORTED) return status;
    lk__log(c, LK_LOG_WARNING, "%s; two runs that save there at the same time are not detected", lk_context_error(c));
    return LK_OK;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

lk__lock_place lk__lock_find(const lk__lock *lock, const char *directory)
{
    struct stat own, there;
    char        path[PATH_MAX];
    if (lock->directory >= 0 &&
        (fstat(lock->directory, &own) != 0 || stat(directory, &there) != 0 || !is_same_file(&own, &there)))
        return LK__LOCK_MOVED;
    if (lock->fd < 0) return LK__LOCK_IN_PLACE; /* the filesystem has no locks */
    int n = snprintf(path, sizeof path, "%s/%s", directory, file_name);
    if (n < 0 || n >= (int)sizeof path || fstat(lock->fd, &own) != 0 || lstat(path, &there) != 0 ||
        !is_same_file(&own, &there))
        return LK__LOCK_LOST;
    return LK__LOCK_IN_PLACE;
}

void lk__lock_release(lk__lock *lock)
{
    if (lock->directory >= 0) close(lock->directory);
    /* Unlocks explicitly, since a forked child may share the description and keep it open. Such a child does not
     * unlock. */
    if (lock->fd >= 0 && lock->pid == getpid()) (void)lock_byte(lock->fd, lock->byte, F_UNLCK);
    if (lock->fd >= 0) close(lock->fd);
    *lock = (lk__lock)LK__LOCK_INIT;
}

lk_status lk__lock_check(lk_context *c, const char *directory, double timeout)
{
    attempt   a = {.context = c, .directory = directory};
    lk_status status = open_file(c, directory, false, &a.fd);
    if (status < 0) return status == LK_ENOENT ? LK_OK : status;
    status = acquire(&a, timeout);
    close(a.fd);
    return status == LK_EUNSUPPORTED ? LK_OK : status;
}

bool lk__lock_idle_begin(const char *directory, int *fd)
{
    char    path[PATH_MAX];
    owner   holder;
    int64_t byte;
    int     n = snprintf(path, sizeof path, "%s/%s", directory, file_name);
    *fd = n > 0 && n < (int)sizeof path ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (*fd < 0) return false;
    if (lock_byte(*fd, 0, F_WRLCK) == 0) {
        read_owner(*fd, &holder);
        if (lock_holder_byte(*fd, &holder, &byte) == 0) {
            (void)lock_byte(*fd, byte, F_UNLCK); /* byte 0 suffices: to acquire the lock takes both */
            return true;
        }
        (void)lock_byte(*fd, 0, F_UNLCK);
    }
    close(*fd);
    *fd = -1;
    return false;
}

void lk__lock_idle_end(int fd)
{
    (void)lock_byte(fd, 0, F_UNLCK); /* explicitly, as lk__lock_release does */
    close(fd);
}
