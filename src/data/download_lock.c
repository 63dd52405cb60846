/* download_lock.c - one process at a time downloads into a directory, which hosts may share; the others wait. */
#include "data/download.h"
#include "data/path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INTERVAL_MS = 100 };

static int64_t file_bytes(const char *directory, const char *folder, const char *name, const char *suffix)
{
    char        path[LK__PATH];
    struct stat about;
    if (!lk__path(path, "%s/%s%s%s", directory, folder, name, suffix) || stat(path, &about) != 0) return 0;
    return about.st_size;
}

/* Bytes that are there, complete or not: they change as long as the other process gets on. */
static int64_t bytes_there(const lk__data_known_set *set, const char *directory)
{
    char    folder[LK__PATH] = "";
    int64_t sum = 0;
    for (int i = 0; i < set->file_count; i++)
        sum +=
            file_bytes(directory, "", set->files[i].name, "") + file_bytes(directory, "", set->files[i].name, ".part");
    if (set->member_count && !lk__path(folder, "%s/", set->member_directory)) return sum;
    for (int i = 0; i < set->member_count; i++)
        sum += file_bytes(directory, folder, set->members[i], "") +
               file_bytes(directory, folder, set->members[i], ".part");
    return sum;
}

/* Until the lock is free, the user stops it, or nothing has changed for the time limit. */
static lk_status wait_for_lock(lk__data_download *d, int fd)
{
    int64_t last = -1, idle_ms = 0;
    lk__log(d->context, LK_LOG_INFO, "another process is downloading into %s: waiting for it", d->directory);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return LK_OK;
        int64_t there = bytes_there(d->set, d->directory);
        idle_ms = there == last ? idle_ms + INTERVAL_MS : 0;
        last = there;
        if (d->progress && d->progress(d->user, there < d->total ? there : d->total, d->total) != 0)
            return lk__fail(d->context, LK_ECANCELED, "stopped while another process was downloading into %s",
                            d->directory);
        if (idle_ms > (int64_t)d->retry.lock_s * 1000)
            return lk__fail(d->context, LK_ETIMEOUT,
                            "another process has been downloading into %s without progress for %d s: end it, or use "
                            "another directory",
                            d->directory, d->retry.lock_s);
        nanosleep(&(struct timespec){0, INTERVAL_MS * 1000000}, NULL);
    }
    return LK_OK;
}

lk_status lk__download_lock(lk__data_download *d, int *fd)
{
    char path[LK__PATH];
    *fd = -1;
    if (!lk__path(path, "%s/.download.lock", d->directory)) return LK_OK; /* no file of it fits either: said then */
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return LK_OK; /* the first file that cannot be written is reported */
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return LK_OK;
    lk_status status = wait_for_lock(d, *fd);
    if (status < 0) lk__download_unlock(*fd);
    return status;
}

void lk__download_unlock(int fd)
{
    if (fd >= 0) close(fd);
}
