/* flight_recorder.c - records a rank's latest operation in a mapped file. An operation costs a few stores and no system
 * call: the kernel keeps the page when the process ends. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"
#include "base/environment.h"
#include "comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Its blocks exist before it is mapped: in a file that is only sized, the first store would end the process by SIGBUS
 * where the disk is full. */
static bool allocate_file(int fd)
{
    int error;
    while ((error = posix_fallocate(fd, 0, sizeof(lk__comm_flight_recorder))) == EINTR) {}
    return error == 0;
}

static lk__comm_flight_recorder *map_file(const char *path)
{
    int   fd = fits_file_limit() ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *page = MAP_FAILED;
    if (fd < 0) return NULL;
    if (allocate_file(fd))
        page = mmap(NULL, sizeof(lk__comm_flight_recorder), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) return NULL;
    lk__comm_flight_recorder *recorder = page;
    recorder->site = NULL; /* stale, if an earlier process wrote the file */
    recorder->pid = getpid();
    recorder->started = lk__process_started(recorder->pid);
    recorder->magic = MAGIC;
    return recorder;
}

lk__comm_flight_recorder *lk__flight_recorder_open(const lk_context *context)
{
    const char *path = lk__environment_text(context, LK__ENV_LOCKSTEP_FLIGHT_RECORDER);
    return path ? map_file(path) : NULL;
}

void lk__flight_recorder_close(lk__comm_flight_recorder *recorder)
{
    if (recorder) munmap(recorder, sizeof *recorder);
}

void lk__flight_recorder_cause(lk__comm_flight_recorder *recorder, lk__comm_cause cause)
{
    uint64_t none = 0;
    if (recorder && cause.kind != LK__CAUSE_UNKNOWN)
        atomic_compare_exchange_strong(&recorder->cause, &none, (uint64_t)cause.kind << 32 | (uint32_t)cause.rank);
}

void lk__flight_recorder_own_cause(lk__comm_flight_recorder *recorder, lk__comm_cause cause)
{
    uint64_t before = recorder ? atomic_load(&recorder->cause) : 0;
    bool     lost = before >> 32 > LK__CAUSE_OWN && (int32_t)(uint32_t)before != cause.rank;
    if (!recorder || lost) return;
    atomic_store(&recorder->cause, (uint64_t)cause.kind << 32 | (uint32_t)cause.rank);
}

void lk__flight_recorder_joined(lk__comm_flight_recorder *recorder)
{
    if (recorder) atomic_store(&recorder->cause, 0);
}

/* Two threads may call this at once: see the header. */
__attribute__((no_sanitize("thread"))) void lk__flight_recorder_name(lk__comm_flight_recorder *recorder,
                                                                     const char               *file)
{
    size_t length = 0, i = 0;
    while (file && file[length]) length++;
    const char *from = !file ? "?" : length < sizeof recorder->file ? file : file + length - sizeof recorder->file + 1;
    for (; from[i] && i + 1 < sizeof recorder->file; i++) recorder->file[i] = from[i];
    recorder->file[i] = 0;
    atomic_store_explicit(&recorder->site, file, memory_order_relaxed);
}

static bool read_recorder(const char *path, lk__comm_flight_recorder *recorder)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, recorder, sizeof *recorder);
    close(fd);
    return n == sizeof *recorder && recorder->magic == MAGIC;
}

bool lk__flight_recorder_look(const char *path, lk__comm_cause *cause, int64_t *pid, uint64_t *started)
{
    lk__comm_flight_recorder recorder;
    if (!read_recorder(path, &recorder)) return false;
    uint64_t kind = recorder.cause >> 32;
    *cause =
        (lk__comm_cause){kind < LK__CAUSE_KINDS ? (int32_t)kind : LK__CAUSE_UNKNOWN, (int32_t)(uint32_t)recorder.cause};
    *pid = recorder.pid;
    *started = recorder.started;
    return true;
}

bool lk__flight_recorder_read(const char *path, char *out, size_t size)
{
    lk__comm_flight_recorder recorder;
    char                     text[256];
    if (!read_recorder(path, &recorder) || recorder.begun == 0) return false;
    recorder.file[sizeof recorder.file - 1] = 0;
    lk__comm_call o = {.kind = (lk__comm_kind)recorder.kind,
                       .type = (unsigned)recorder.type < LK_DTYPE_COUNT ? (lk_dtype)recorder.type : LK_U8,
                       .reduce = (unsigned)recorder.reduce <= LK_PROD ? (lk_reduce_op)recorder.reduce : LK_SUM,
                       .root = recorder.root,
                       .tag = recorder.tag,
                       .count = recorder.count,
                       .bytes = recorder.bytes,
                       .site = {recorder.file, recorder.line}};
    lk__call_describe(&o, recorder.number, text, sizeof text);
    if (recorder.begun != recorder.ended)
        snprintf(out, size, "it was in %s", text);
    else
        snprintf(out, size, "it was not in any; %s %s",
                 recorder.failed == recorder.ended ? "it had failed in" : "it had finished", text);
    return true;
}
