/* chunk_file.c - a file that several processes write. Each flushes its own descriptor: on a network file system others cannot flush what
 * it has written. */
#define _GNU_SOURCE
#include "train/chunk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static lk_status reserve(const lk__chunk_file *f, uint64_t bytes)
{
    if (fallocate(f->fd, 0, 0, (off_t)bytes) == 0) return LK_OK;
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    if (!full && ftruncate(f->fd, (off_t)bytes) == 0) return LK_OK;
    return lk__fail(f->context, LK_EIO, "%s: cannot reserve %llu bytes: %s", f->path, (unsigned long long)bytes,
                    strerror(errno));
}

lk_status lk__chunk_file_create(lk__chunk_file *f, lk_context *context, const char *path, uint64_t bytes)
{
    *f = (lk__chunk_file){context, path, open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (f->fd < 0) return lk__fail(context, LK_EIO, "%s: cannot create: %s", path, strerror(errno));
    lk_status status = reserve(f, bytes);
    if (status < 0) lk__chunk_file_close(f);
    return status;
}

lk_status lk__chunk_file_open(lk__chunk_file *f, lk_context *context, const char *path)
{
    *f = (lk__chunk_file){context, path, open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW)};
    return f->fd >= 0 ? LK_OK : lk__fail(context, LK_EIO, "%s: cannot open: %s", path, strerror(errno));
}

lk_status lk__chunk_file_write(const lk__chunk_file *f, uint64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    uint64_t    first = at;
    while (bytes) {
        ssize_t n = pwrite(f->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return lk__fail(f->context, LK_EIO, "%s: cannot write at byte %llu: %s", f->path, (unsigned long long)at,
                            n < 0 ? strerror(errno) : "no byte was written");
        from += n, at += (uint64_t)n, bytes -= (size_t)n;
    }
    /* The disk works while the next chunks are made; not an error where it is not supported, because flushing reports those. */
    (void)sync_file_range(f->fd, (off_t)first, (off_t)(at - first), SYNC_FILE_RANGE_WRITE);
    return LK_OK;
}

lk_status lk__chunk_file_flush(lk__chunk_file *f)
{
    lk_status status = LK_OK;
    if (fsync(f->fd) < 0)
        status = lk__fail(f->context, LK_EIO, "%s: cannot flush to disk: %s", f->path, strerror(errno));
    /* NFS and disk quotas may report only here that a write failed. */
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) < 0 && errno != EINTR && status >= 0)
        status = lk__fail(f->context, LK_EIO, "%s: cannot close: %s", f->path, strerror(errno));
    return status;
}

void lk__chunk_file_close(lk__chunk_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
