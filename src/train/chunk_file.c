/* chunk_file.c - a file that several processes write. Whole blocks bypass the page cache where possible. Each flushes
 * its own descriptor: on a network file system others cannot flush what it has written. */
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
    *f = (lk__chunk_file){context, path, open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), -1};
    if (f->fd < 0) return lk__fail(context, LK_EIO, "%s: cannot create: %s", path, strerror(errno));
    lk_status status = reserve(f, bytes);
    if (status < 0) lk__chunk_file_close(f);
    return status;
}

lk_status lk__chunk_file_open(lk__chunk_file *f, lk_context *context, const char *path)
{
    *f = (lk__chunk_file){context, path, open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW), -1};
    if (f->fd < 0) return lk__fail(context, LK_EIO, "%s: cannot open: %s", path, strerror(errno));
    f->direct = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_DIRECT);
    return LK_OK;
}

/* How many of the bytes can be written past the page cache: whole blocks. */
static size_t count_direct(const lk__chunk_file *f, uint64_t at, const char *from, size_t bytes)
{
    bool aligned = at % LK__CHUNK_ALIGN == 0 && (uintptr_t)from % LK__CHUNK_ALIGN == 0;
    return f->direct >= 0 && aligned ? bytes / LK__CHUNK_ALIGN * LK__CHUNK_ALIGN : 0;
}

static void close_direct(lk__chunk_file *f)
{
    if (f->direct >= 0) close(f->direct);
    f->direct = -1;
}

lk_status lk__chunk_file_write(lk__chunk_file *f, uint64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        size_t  direct = count_direct(f, at, from, bytes);
        ssize_t n = direct ? pwrite(f->direct, from, direct, (off_t)at) : pwrite(f->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && direct && (errno == EINVAL || errno == EOPNOTSUPP)) {
            close_direct(f); /* some file systems open such files and do not write them */
            continue;
        }
        if (n <= 0)
            return lk__fail(f->context, LK_EIO, "%s: cannot write at byte %llu: %s", f->path, (unsigned long long)at,
                            n < 0 ? strerror(errno) : "no byte was written");
        /* The disk works while the next chunks are made; not an error where it is not supported, because flushing
         * reports those. */
        if (!direct) (void)sync_file_range(f->fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE);
        from += n, at += (uint64_t)n, bytes -= (size_t)n;
    }
    return LK_OK;
}

lk_status lk__chunk_file_flush(lk__chunk_file *f)
{
    lk_status status = LK_OK;
    close_direct(f);
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
    close_direct(f);
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
