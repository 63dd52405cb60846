/* file.c - writes a file under a temporary name, flushes and renames it; reads small text files; computes digests.
 * Errors name the path and the reason, and leave the previous file unchanged. */
#define _GNU_SOURCE
#include "train/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux writes at most 2 GiB - 4 KiB in one call; ask for less, so that a short write means an error. */
static const size_t LARGEST_WRITE = (size_t)1 << 30;

static lk_status write_all(lk__file *f, const char *data, size_t bytes)
{
    lk__sha256_update(&f->sha, data, bytes);
    while (bytes) {
        ssize_t n = write(f->fd, data, bytes < LARGEST_WRITE ? bytes : LARGEST_WRITE);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const char *reason = n < 0 ? strerror(errno) : "no byte was written";
            return f->status = lk__fail(f->context, LK_EIO, "%s: cannot write at byte %llu: %s", f->path,
                                        (unsigned long long)f->bytes, reason);
        }
        data += n, bytes -= (size_t)n;
        f->bytes += (uint64_t)n;
    }
    return LK_OK;
}

static lk_status flush_staging(lk__file *f)
{
    size_t used = f->used;
    f->used = 0;
    return write_all(f, f->staging, used);
}

lk_status lk__file_create(lk__file *f, lk_context *context, const char *path, void *staging, size_t staging_bytes)
{
    *f = (lk__file){.context = context, .fd = -1, .staging = staging, .capacity = staging_bytes};
    lk__sha256_init(&f->sha);
    if (!staging_bytes) return f->status = lk__fail(context, LK_EINVAL, "%s: the staging buffer has 0 bytes", path);
    int length = snprintf(f->path, sizeof f->path, "%s", path);
    if (length >= 0 && length < (int)sizeof f->path - 32)
        snprintf(f->temporary, sizeof f->temporary, "%.*s.tmp.%ld", length, path, (long)getpid());
    else
        return f->status = lk__fail(context, LK_EINVAL, "%.200s…: the path is too long", path);

    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        if (S_ISDIR(info.st_mode)) return f->status = lk__fail(context, LK_EINVAL, "%s is a directory", path);
        f->direct = true;
        f->temporary[0] = 0;
        f->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    } else {
        unlink(f->temporary); /* left by an earlier process with this pid */
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0) (void)flock(f->fd, LOCK_EX | LOCK_NB); /* shows lk__directory_recover that the writer runs */
    }
    if (f->fd < 0) {
        const char *opened = f->direct ? path : f->temporary;
        f->status = lk__fail(context, LK_EIO, "%s: cannot create: %s", opened, strerror(errno));
        f->temporary[0] = 0; /* of another process: do not remove it */
    }
    return f->status;
}

lk_status lk__file_write(lk__file *f, const void *data, size_t bytes)
{
    if (f->status < 0) return f->status;
    if (bytes == 0) return LK_OK;
    if (bytes > f->capacity - f->used) {
        if (flush_staging(f) < 0) return f->status;
        if (bytes >= f->capacity) return write_all(f, data, bytes);
    }
    memcpy(f->staging + f->used, data, bytes);
    f->used += bytes;
    return LK_OK;
}

void *lk__file_reserve(lk__file *f, size_t *room)
{
    if (f->status < 0 || (f->used == f->capacity && flush_staging(f) < 0)) return NULL;
    *room = f->capacity - f->used;
    return f->staging + f->used;
}

void lk__file_advance(lk__file *f, size_t bytes) { f->used += bytes; }

/* Some filesystems do not support fsync of a directory (EINVAL): that is not an error. */
lk_status lk__file_sync_parent(lk_context *context, const char *path)
{
    char        parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t      length = slash ? (size_t)(slash - path) : 0;
    if (!slash)
        strcpy(parent, ".");
    else if (length == 0)
        strcpy(parent, "/");
    else {
        memcpy(parent, path, length);
        parent[length] = 0;
    }
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return lk__fail(context, LK_EIO, "%s: cannot open: %s", parent, strerror(errno));
    lk_status status = LK_OK;
    if (fsync(fd) < 0 && errno != EINVAL && errno != EROFS)
        status = lk__fail(context, LK_EIO, "%s: cannot flush to disk: %s", parent, strerror(errno));
    close(fd);
    return status;
}

lk_status lk__file_commit(lk__file *f, char digest[65])
{
    lk_context *context = f->context;
    lk_status   status = f->status;
    if (status < 0) goto done;
    if ((status = flush_staging(f)) < 0) goto done;
    if (fsync(f->fd) < 0 && !f->direct) {
        status = lk__fail(context, LK_EIO, "%s: cannot flush to disk: %s", f->path, strerror(errno));
        goto done;
    }
    /* NFS and disk quotas may report only here that a write failed. */
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) < 0 && errno != EINTR) {
        status = lk__fail(context, LK_EIO, "%s: cannot close: %s", f->path, strerror(errno));
        goto done;
    }
    if (!f->direct) {
        if (rename(f->temporary, f->path) < 0) {
            status = lk__fail(context, LK_EIO, "%s: cannot rename to %s: %s", f->temporary, f->path, strerror(errno));
            goto done;
        }
        f->temporary[0] = 0;
        status = lk__file_sync_parent(context, f->path);
    }
    if (status == LK_OK && digest) {
        unsigned char raw[32];
        lk__sha256_final(&f->sha, raw);
        lk__sha256_hex(raw, digest);
    }
done:
    lk__file_abandon(f);
    return status;
}

void lk__file_abandon(lk__file *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->temporary[0]) unlink(f->temporary);
    f->fd = -1;
    f->temporary[0] = 0;
    if (f->status == LK_OK) f->status = LK_ECANCELED; /* later writes are a caller's error and must fail */
}

lk_status lk__read_text(lk_context *context, const char *path, size_t limit, char **text, size_t *length)
{
    *text = NULL;
    *length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        lk_status status = errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO;
        return lk__fail(context, status, "%s: cannot open: %s", path, strerror(errno));
    }
    size_t    capacity = 0, used = 0;
    char     *buffer = NULL;
    lk_status status = LK_OK;
    for (;;) { /* reads to the end instead of asking for the size: pipes and /proc have none */
        if (used + 1 >= capacity && (status = lk__grow(context, (void **)&buffer, &capacity, used + 4096, 1)) < 0)
            break;
        ssize_t n = read(fd, buffer + used, capacity - used - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = lk__fail(context, LK_EIO, "%s: cannot read: %s", path, strerror(errno));
        if (n <= 0) break;
        used += (size_t)n;
        if (used > limit) {
            status = lk__fail(context, LK_EFORMAT, "%s is longer than %zu bytes; is this the right file?", path, limit);
            break;
        }
    }
    close(fd);
    if (status == LK_OK && memchr(buffer, 0, used))
        status = lk__fail(context, LK_EFORMAT, "%s contains a NUL byte, so it is not a text file", path);
    if (status == LK_OK && (*text = lk__alloc(context, LK_MEMORY_OTHER, used + 1))) {
        memcpy(*text, buffer, used); /* a copy of the exact size: lk__text_free takes the length alone */
        *length = used;
    } else if (status == LK_OK) {
        status = LK_ENOMEM;
    }
    lk__free(context, LK_MEMORY_OTHER, buffer, capacity);
    return status;
}

void lk__text_free(lk_context *context, char *text, size_t length)
{
    lk__free(context, LK_MEMORY_OTHER, text, length + 1);
}

lk_status lk__file_digest(lk_context *context, const char *path, void *staging, size_t staging_bytes, char digest[65])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        lk_status status = errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO;
        return lk__fail(context, status, "%s: cannot open: %s", path, strerror(errno));
    }
    lk__sha256 sha;
    lk__sha256_init(&sha);
    lk_status status = LK_OK;
    for (;;) {
        ssize_t n = read(fd, staging, staging_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = lk__fail(context, LK_EIO, "%s: cannot read: %s", path, strerror(errno));
        if (n <= 0) break;
        lk__sha256_update(&sha, staging, (size_t)n);
    }
    close(fd);
    if (status < 0) return status;
    unsigned char raw[32];
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, digest);
    return LK_OK;
}
