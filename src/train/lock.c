/* lock.c - the lock of a checkpoint directory: byte-range locks of the open file description (F_OFD_SETLK) on the file
 * .lockstep.lock in it. They end with the process, also by SIGKILL, and tell two trainers of one process apart; NFS carries them as
 * it carries any lock of fcntl.
 *
 * A child that was forked without exec shares the description, and would hold the lock beyond its parent's death. So the file
 * says who holds it (host, pid, start time) and by which byte: a holder that is dead for certain is succeeded on the next byte.
 * Byte 0 is held only while the file is read and written. */
#define _GNU_SOURCE
#include "train/lock.h"

#include "train/json.h"

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

enum { OWNER_BYTES = 1024, POLL_MS = 20, MOST_BYTES = 1 << 20 };
static const char   file_name[] = ".lockstep.lock";
static const double RESTART_PATIENCE = 10, TURN_PATIENCE = 2; /* seconds */

/* What the file says of its holder. Boot and namespace tell whether a pid can be looked up here. */
typedef struct owner {
    int64_t byte, pid;
    char    host[128], since[32], boot[64], namespace[64];
    char    started[32]; /* clock ticks since boot, as /proc has them; "" where there is no /proc */
} owner;

double lk__lock_patience(void)
{
    static const char *const names[] = {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"};
    bool                     restarted = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *count = getenv(names[i]);
        restarted |= count && atoi(count) > 0;
    }
    return restarted ? RESTART_PATIENCE : 0;
}

/* ---- who ---- */

/* The first line of a file, or nothing. */
static void read_line(const char *path, char *text, size_t room)
{
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, room - 1);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (fd >= 0) close(fd);
}

/* When a process started: field 22 of /proc/PID/stat, counted from behind the name, which may hold anything. */
static bool read_start(int64_t pid, char started[32])
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
    (void)read_start(o->pid, o->started);
    o->since[0] = 0;
    if (gmtime_r(&now, &utc)) strftime(o->since, sizeof o->since, "%Y-%m-%d %H:%M:%S UTC", &utc);
}

/* True only when it is certain: the pid is of this host and namespace, and its process has ended or is another one's. */
static bool is_dead(const owner *o)
{
    owner self;
    char  started[32];
    describe_self(&self);
    if (o->pid <= 0 || !o->boot[0] || !o->namespace[0] || !o->started[0] || strcmp(o->boot, self.boot) != 0 ||
        strcmp(o->namespace, self.namespace) != 0)
        return false;
    if (!read_start(o->pid, started)) return kill((pid_t)o->pid, 0) != 0 && errno == ESRCH;
    return strcmp(started, o->started) != 0;
}

/* ---- the file ---- */

/* What is written to the file, and from it to a terminal, is printable ASCII that needs no escape. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\') *text = '?';
}

static bool get_text(const lk__json *root, const char *key, char *text, size_t room)
{
    lk__json value;
    if (!lk__json_get(root, key, &value) || lk__json_string(&value, text, room) >= room) return false;
    make_plain(text);
    return true;
}

/* A file that holds something else has no holder, and its lock is at byte 1. */
static void read_owner(int fd, owner *o)
{
    char           text[OWNER_BYTES];
    lk__json       root, value;
    lk__json_error error;
    ssize_t        n = pread(fd, text, sizeof text, 0);
    *o = (owner){.byte = 1};
    bool good = n > 0 && lk__json_parse(text, (size_t)n, &root, &error) && lk__json_get(&root, "byte", &value) &&
                lk__json_integer(&value, &o->byte) && o->byte >= 1 && o->byte <= MOST_BYTES &&
                lk__json_get(&root, "pid", &value) && lk__json_integer(&value, &o->pid) &&
                get_text(&root, "host", o->host, sizeof o->host) &&
                get_text(&root, "since", o->since, sizeof o->since) &&
                get_text(&root, "boot", o->boot, sizeof o->boot) &&
                get_text(&root, "namespace", o->namespace, sizeof o->namespace) &&
                get_text(&root, "started", o->started, sizeof o->started);
    if (!good) *o = (owner){.byte = 1};
}

static bool write_owner(int fd, int64_t byte)
{
    char  text[OWNER_BYTES];
    owner o;
    describe_self(&o);
    make_plain(o.host);
    int n = snprintf(text, sizeof text,
                     "{\"host\":\"%s\",\"pid\":%" PRId64 ",\"since\":\"%s\",\"started\":\"%s\",\"boot\":\"%s\","
                     "\"namespace\":\"%s\",\"byte\":%" PRId64 "}\n",
                     o.host, o.pid, o.since, o.started, o.boot, o.namespace, byte);
    return n > 0 && n < (int)sizeof text && pwrite(fd, text, (size_t)n, 0) == n && ftruncate(fd, n) == 0;
}

/* LK_ENOENT, without a message, when it is not there and not to be made. */
static lk_status open_file(lk_context *c, const char *directory, bool make, int *fd)
{
    char        path[PATH_MAX];
    struct stat info;
    int         n = snprintf(path, sizeof path, "%s/%s", directory, file_name);
    if (n < 0 || n >= (int)sizeof path)
        return lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, file_name);
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (make ? O_CREAT : 0), 0666);
    if (*fd < 0 && errno == ENOENT && !make) return LK_ENOENT;
    if (*fd < 0)
        return lk__fail(c, LK_EIO, "%s cannot be written to: its lock %s cannot be opened: %s", directory, file_name,
                        strerror(errno));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return LK_OK;
    close(*fd);
    *fd = -1;
    return lk__fail(c, LK_EINVAL, "%s is in the way: the lock of the directory is to be a file", path);
}

/* ---- the lock ---- */

/* 0, EAGAIN when another description holds it, or the reason why it cannot be locked. */
static int lock_byte(int fd, int64_t byte, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int          code;
    while ((code = fcntl(fd, F_OFD_SETLK, &range)) != 0 && errno == EINTR) {}
    return code == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

/* With byte 0 held: the byte that a new holder has. */
static int take_next(int fd, const owner *holder, int64_t *byte)
{
    *byte = holder->byte;
    int why = lock_byte(fd, *byte, F_WRLCK);
    if (why != EAGAIN || !is_dead(holder)) return why;
    *byte = holder->byte < MOST_BYTES ? holder->byte + 1 : 1;
    return lock_byte(fd, *byte, F_WRLCK);
}

typedef struct attempt {
    lk_context *context;
    const char *directory;
    int         fd;
    bool        keep; /* the lock is wanted, not only asked about */
    int64_t     byte;
    owner       holder;
    bool        seen; /* byte 0 was ours, so the holder is known */
} attempt;

/* LK_END: another holds it. LK_EUNSUPPORTED: there are no locks. */
static lk_status try_once(attempt *a)
{
    bool written = true;
    int  why = lock_byte(a->fd, 0, F_WRLCK), write_error = 0;
    a->seen = why == 0;
    if (a->seen) {
        read_owner(a->fd, &a->holder);
        why = take_next(a->fd, &a->holder, &a->byte);
        if (why == 0 && a->keep && !(written = write_owner(a->fd, a->byte))) write_error = errno;
        if (why == 0 && (!a->keep || !written)) (void)lock_byte(a->fd, a->byte, F_UNLCK);
        (void)lock_byte(a->fd, 0, F_UNLCK);
    }
    if (!written)
        return lk__fail(a->context, LK_EIO, "%s cannot be written to: its lock %s cannot be written: %s", a->directory,
                        file_name, strerror(write_error));
    if (why == 0 || why == EAGAIN) return why ? LK_END : LK_OK;
    return lk__fail(a->context, LK_EUNSUPPORTED, "%s cannot be locked: %s", a->directory, strerror(why));
}

static lk_status refuse(const attempt *a)
{
    char         who[256] = "another process";
    const owner *o = &a->holder;
    if (o->pid > 0)
        snprintf(who, sizeof who, "another run (host %s, pid %" PRId64 ", since %s)", o->host, o->pid, o->since);
    return lk__fail(a->context, LK_EINVAL,
                    "%s is being written by %s; let it end first, or save into another directory", a->directory, who);
}

static lk_status acquire(attempt *a, double patience)
{
    double    began = lk__now();
    lk_status status;
    while ((status = try_once(a)) == LK_END) {
        double limit = a->seen || patience > TURN_PATIENCE ? patience : TURN_PATIENCE;
        if (lk__now() - began >= limit) return refuse(a);
        nanosleep(&(struct timespec){0, POLL_MS * 1000000}, NULL);
    }
    return status;
}

lk_status lk__lock_take(lk_context *c, const char *directory, double patience, lk__lock *lock)
{
    attempt a = {.context = c, .directory = directory, .keep = true};
    *lock = (lk__lock)LK__LOCK_INIT;
    lk_status status = open_file(c, directory, true, &a.fd);
    if (status < 0) return status;
    if ((status = acquire(&a, patience)) == LK_OK) {
        *lock = (lk__lock){a.fd, getpid(), a.byte};
        return LK_OK;
    }
    close(a.fd);
    if (status != LK_EUNSUPPORTED) return status;
    lk__log(c, LK_LOG_WARNING, "%s; two runs that save there at once would not notice each other", lk_context_error(c));
    return LK_OK;
}

void lk__lock_release(lk__lock *lock)
{
    if (lock->fd < 0) return;
    /* By name, not by closing: a forked child may share the description. In such a child it is not ours to end. */
    if (lock->pid == getpid()) (void)lock_byte(lock->fd, lock->byte, F_UNLCK);
    close(lock->fd);
    *lock = (lk__lock)LK__LOCK_INIT;
}

lk_status lk__lock_check(lk_context *c, const char *directory, double patience)
{
    attempt   a = {.context = c, .directory = directory};
    lk_status status = open_file(c, directory, false, &a.fd);
    if (status < 0) return status == LK_ENOENT ? LK_OK : status;
    status = acquire(&a, patience);
    close(a.fd);
    return status == LK_EUNSUPPORTED ? LK_OK : status;
}
