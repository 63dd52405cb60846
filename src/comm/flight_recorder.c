/* diary.c - the page that a rank's latest operation stands on. A few stores an operation, and no system call: the kernel keeps the page
 * whatever becomes of the process. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"
#include "comm/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAGIC 0x6c6b6469617279u

/* Growing a file past this limit would kill the process by SIGXFSZ. */
static bool fits_file_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= sizeof(lk__comm_flight_recorder);
}

static lk__comm_flight_recorder *map(const char *path)
{
    int   fd = fits_file_limit() ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *page = MAP_FAILED;
    if (fd < 0) return NULL;
    if (ftruncate(fd, sizeof(lk__comm_flight_recorder)) == 0)
        page = mmap(NULL, sizeof(lk__comm_flight_recorder), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) return NULL;
    lk__comm_flight_recorder *d = page;
    d->site = NULL; /* another process's, where this one followed it */
    d->pid = getpid();
    d->started = lk__process_started(d->pid);
    d->magic = MAGIC;
    return d;
}

lk__comm_flight_recorder *lk__flight_recorder_open(void)
{
    const char *path = getenv("LOCKSTEP_FLIGHT_RECORDER");
    return path && *path ? map(path) : NULL;
}

void lk__flight_recorder_close(lk__comm_flight_recorder *d)
{
    if (d) munmap(d, sizeof *d);
}

void lk__flight_recorder_cause(lk__comm_flight_recorder *d, lk__comm_cause cause)
{
    uint64_t none = 0;
    if (d && cause.kind != LK__CAUSE_UNKNOWN)
        atomic_compare_exchange_strong(&d->cause, &none, (uint64_t)cause.kind << 32 | (uint32_t)cause.rank);
}

void lk__flight_recorder_own_cause(lk__comm_flight_recorder *d, lk__comm_cause cause)
{
    if (d) atomic_store(&d->cause, (uint64_t)cause.kind << 32 | (uint32_t)cause.rank);
}

void lk__flight_recorder_joined(lk__comm_flight_recorder *d)
{
    if (d) atomic_store(&d->cause, 0);
}

/* Two threads may do this at once: see the header. */
__attribute__((no_sanitize("thread"))) void lk__flight_recorder_name(lk__comm_flight_recorder *d, const char *file)
{
    size_t length = 0, i = 0;
    while (file && file[length]) length++;
    const char *from = !file ? "?" : length < sizeof d->file ? file : file + length - sizeof d->file + 1;
    for (; from[i] && i + 1 < sizeof d->file; i++) d->file[i] = from[i];
    d->file[i] = 0;
    atomic_store_explicit(&d->site, file, memory_order_relaxed);
}

static bool load(const char *path, lk__comm_flight_recorder *d)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, d, sizeof *d);
    close(fd);
    return n == sizeof *d && d->magic == MAGIC;
}

bool lk__flight_recorder_look(const char *path, lk__comm_cause *cause, int64_t *pid, uint64_t *started)
{
    lk__comm_flight_recorder d;
    if (!load(path, &d)) return false;
    uint64_t kind = d.cause >> 32;
    *cause = (lk__comm_cause){kind < LK__CAUSE_KINDS ? (int32_t)kind : LK__CAUSE_UNKNOWN, (int32_t)(uint32_t)d.cause};
    *pid = d.pid;
    *started = d.started;
    return true;
}

bool lk__flight_recorder_read(const char *path, char *out, size_t size)
{
    lk__comm_flight_recorder d;
    char                     text[256];
    if (!load(path, &d) || d.begun == 0) return false;
    d.file[sizeof d.file - 1] = 0;
    lk__comm_call o = {.kind = (lk__comm_kind)d.kind,
                       .type = (unsigned)d.type < LK_DTYPE_COUNT ? (lk_dtype)d.type : LK_U8,
                       .reduce = (unsigned)d.reduce <= LK_PROD ? (lk_reduce_op)d.reduce : LK_SUM,
                       .root = d.root,
                       .tag = d.tag,
                       .count = d.count,
                       .bytes = d.bytes,
                       .site = {d.file, d.line}};
    lk__call_describe(&o, 0, text, sizeof text);
    if (d.begun != d.ended)
        snprintf(out, size, "it was in %s, its operation %llu", text, (unsigned long long)d.begun);
    else
        snprintf(out, size, "it was outside any; %s %s, its operation %llu",
                 d.failed == d.ended ? "it had failed in" : "it had finished", text, (unsigned long long)d.ended);
    return true;
}
