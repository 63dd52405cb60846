/* directory.c - a directory of known files replaced as a whole, and what a crash left of one put right. Where the filesystem
 * can, old and new change places in one step (renameat2); elsewhere the old one is moved aside first, and recovery moves it
 * back if the new one never came. */
#define _GNU_SOURCE
#include "train/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum suffix { PLAIN, TEMPORARY, OLD } suffix;

/* What `name` is by its ending, NAME.tmp.123 or NAME.old.123, and the length of NAME. */
static suffix suffix_of(const char *name, size_t *base)
{
    size_t n = strlen(name), digits = 0;
    *base = n;
    while (n && name[n - 1] >= '0' && name[n - 1] <= '9') n--, digits++;
    if (!digits || n <= 5) return PLAIN;
    suffix kind = memcmp(name + n - 5, ".tmp.", 5) == 0   ? TEMPORARY
                  : memcmp(name + n - 5, ".old.", 5) == 0 ? OLD
                                                          : PLAIN;
    if (kind != PLAIN) *base = n - 5;
    return kind;
}

static bool is_known(const char *name, size_t length, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(name, names[i], length) == 0) return true;
    return false;
}

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* True when no living process holds the lock that writers take. fd is then open and locked. */
static bool nobody_writes(int at, const char *name, int *fd)
{
    *fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return false;
}

/* A link is not followed: what it leads to is not in this directory. */
static DIR *open_here(const char *path)
{
    int  fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !stream) close(fd);
    return stream;
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* The first entry that is neither named nor a dead temporary of a named file; "" when there is none. False: errno says why the
 * directory cannot be read. */
static bool find_foreign(const char *path, const char *const *names, size_t count, char foreign[NAME_MAX + 1])
{
    foreign[0] = 0;
    DIR *stream = open_here(path);
    if (!stream) return false;
    for (struct dirent *entry; !foreign[0] && (entry = readdir(stream));) {
        size_t base;
        int    fd;
        if (is_dots(entry->d_name)) continue;
        suffix kind = suffix_of(entry->d_name, &base);
        bool   known = kind != OLD && is_known(entry->d_name, base, names, count);
        if (known && kind == TEMPORARY) {
            known = nobody_writes(dirfd(stream), entry->d_name, &fd);
            if (known) close(fd);
        }
        struct stat info;
        if (known)
            known = fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(info.st_mode);
        if (!known) snprintf(foreign, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(stream);
    return true;
}

/* LK_ENOENT, which is what most callers expect, sets no message. */
static lk_status refuse_foreign(lk_context *context, const char *path, const char *const *names, size_t count)
{
    char foreign[NAME_MAX + 1];
    if (!find_foreign(path, names, count, foreign)) {
        int why = errno;
        if (why == ENOENT) return LK_ENOENT;
        return lk__fail(context, why == ENOTDIR ? LK_EINVAL : LK_EIO, "%s: cannot open the directory: %s", path,
                        strerror(why));
    }
    if (!foreign[0]) return LK_OK;
    return lk__fail(context, LK_EINVAL, "%s: holds '%s', which is no part of a checkpoint; name another directory",
                    path, foreign);
}

/* Deletes what find_foreign allowed. Subdirectories were refused, so one level is all. */
static lk_status empty_and_remove(lk_context *context, const char *path)
{
    DIR *stream = open_here(path);
    if (!stream) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", path, strerror(errno));
    bool failed = false;
    for (struct dirent *entry; !failed && (entry = readdir(stream));)
        failed = !is_dots(entry->d_name) && unlinkat(dirfd(stream), entry->d_name, 0) < 0 && errno != ENOENT;
    int why = errno;
    closedir(stream);
    if (!failed && rmdir(path) == 0) return LK_OK;
    return lk__fail(context, LK_EIO, "%s: cannot remove: %s", path, strerror(failed ? why : errno));
}

lk_status lk__directory_remove(lk_context *context, const char *path, const char *const *names, size_t count)
{
    lk_status status = refuse_foreign(context, path, names, count);
    return status < 0 ? status : empty_and_remove(context, path);
}

lk_status lk__directory_prune(lk_context *context, const char *path, const char *const *names, size_t count)
{
    char      aside[PATH_MAX];
    lk_status status = LK_OK;
    int       length = snprintf(aside, sizeof aside, "%s.tmp.%ld", path, (long)getpid());
    if (length < 0 || length >= (int)sizeof aside) return lk__fail(context, LK_EINVAL, "the path %s is too long", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return LK_OK;
    if (fd < 0) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", path, strerror(errno));
    (void)flock(fd, LOCK_EX | LOCK_NB); /* until it is gone, so that a reader's recovery leaves it to us */
    if ((status = refuse_foreign(context, path, names, count)) < 0) goto done;
    status = lk__directory_remove(context, aside, names, count); /* an earlier process of this number left it */
    if (status < 0 && status != LK_ENOENT) goto done;
    status = rename(path, aside) == 0 ? empty_and_remove(context, aside)
                                      : lk__fail(context, LK_EIO, "%s: cannot move it aside: %s", path, strerror(errno));
done:
    close(fd);
    return status;
}

lk_status lk__directory_create(lk__train_directory *d, lk_context *context, const char *path, const char *const *names,
                               size_t count)
{
    *d = (lk__train_directory){.context = context, .fd = -1, .names = names, .count = count};
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length == 0 || length > sizeof d->path - 32)
        return lk__fail(context, LK_EINVAL, "'%.200s' cannot name a directory: it is %s", path,
                        length ? "too long" : "empty");
    snprintf(d->path, sizeof d->path, "%.*s", (int)length, path);
    snprintf(d->temporary, sizeof d->temporary, "%.*s.tmp.%ld", (int)length, path, (long)getpid());

    lk_status status = is_link(d->path) ? LK_OK : refuse_foreign(context, d->path, names, count);
    if (status == LK_ENOENT) status = LK_OK;
    if (status == LK_OK) {
        status =
            lk__directory_remove(context, d->temporary, names, count); /* an earlier process of this number left it */
        if (status == LK_ENOENT) status = LK_OK;
    }
    if (status == LK_OK && mkdir(d->temporary, 0777) < 0)
        status = lk__fail(context, LK_EIO, "%s: cannot create the directory: %s", d->temporary, strerror(errno));
    if (status < 0) {
        d->temporary[0] = 0;
        return status;
    }
    d->fd = open(d->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0) {
        status = lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", d->temporary, strerror(errno));
        lk__directory_abandon(d);
        return status;
    }
    (void)flock(d->fd, LOCK_EX | LOCK_NB);
    return LK_OK;
}

/* path ↔ temporary where the filesystem cannot exchange. On success the old directory is at `aside`. */
static lk_status swap_in_two_steps(lk__train_directory *d, char aside[PATH_MAX])
{
    snprintf(aside, PATH_MAX, "%.*s.old.%ld", PATH_MAX - 32, d->path, (long)getpid());
    int  old = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool moved = old >= 0 && flock(old, LOCK_EX | LOCK_NB) == 0 && rename(d->path, aside) == 0;
    if (moved && rename(d->temporary, d->path) == 0) {
        close(old);
        return LK_OK;
    }
    lk_status status = lk__fail(d->context, LK_EIO, "%s: cannot replace the directory: %s", d->path, strerror(errno));
    if (moved) (void)rename(aside, d->path);
    if (old >= 0) close(old);
    return status;
}

lk_status lk__directory_commit(lk__train_directory *d)
{
    lk_context *context = d->context;
    char        aside[PATH_MAX] = "";
    lk_status   status = LK_EINVAL;
    if (d->fd < 0) return lk__fail(context, LK_EINVAL, "%s: commit of a directory that was not created", d->path);
    if (fsync(d->fd) < 0 && errno != EINVAL) {
        status = lk__fail(context, LK_EIO, "%s: cannot flush to disk: %s", d->temporary, strerror(errno));
        goto done;
    }
    /* A link to a checkpoint that was moved elsewhere makes room; what it leads to stays. */
    if (is_link(d->path) && unlink(d->path) < 0 && errno != ENOENT) {
        status = lk__fail(context, LK_EIO, "%s: cannot remove the link: %s", d->path, strerror(errno));
        goto done;
    }
    status = refuse_foreign(context, d->path, d->names, d->count);
    if (status == LK_ENOENT) {
        status = LK_OK;
        if (rename(d->temporary, d->path) < 0)
            status = lk__fail(context, LK_EIO, "%s: cannot rename to %s: %s", d->temporary, d->path, strerror(errno));
    } else if (status == LK_OK) {
        if (renameat2(AT_FDCWD, d->temporary, AT_FDCWD, d->path, RENAME_EXCHANGE) == 0)
            snprintf(aside, sizeof aside, "%s", d->temporary);
        else if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
            status = swap_in_two_steps(d, aside);
        else
            status =
                lk__fail(context, LK_EIO, "%s: cannot exchange with %s: %s", d->temporary, d->path, strerror(errno));
    }
    if (status < 0) goto done;
    d->temporary[0] = 0;
    status = lk__file_sync_parent(context, d->path);
    /* The new one is in place. That the old one cannot be removed is worth a word, but is no failure of this save. */
    if (aside[0] && lk__directory_remove(context, aside, d->names, d->count) < 0)
        lk__log(context, LK_LOG_WARNING, "%s", lk_context_error(context));
done:
    lk__directory_abandon(d);
    return status;
}

void lk__directory_abandon(lk__train_directory *d)
{
    if (d->fd >= 0) close(d->fd);
    d->fd = -1;
    if (d->temporary[0]) (void)lk__directory_remove(d->context, d->temporary, d->names, d->count);
    d->temporary[0] = 0;
}

/* One leftover: `name` of parent, whose plain name would be its first `base` bytes. */
static void recover_entry(lk_context *context, int parent_fd, const char *parent, const char *name, size_t base,
                          suffix kind, const char *const *names, size_t count)
{
    char        full[PATH_MAX], plain[NAME_MAX + 1], foreign[NAME_MAX + 1];
    struct stat info = {0};
    int         fd;
    if (snprintf(full, sizeof full, "%s/%s", parent, name) >= (int)sizeof full || !nobody_writes(parent_fd, name, &fd))
        return;
    snprintf(plain, sizeof plain, "%.*s", (int)base, name);
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        bool ours = find_foreign(full, names, count, foreign) && !foreign[0];
        if (ours && kind == OLD && faccessat(parent_fd, plain, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
            if (renameat(parent_fd, name, parent_fd, plain) == 0)
                lk__log(context, LK_LOG_INFO, "%s/%s: restored after an interrupted save", parent, plain);
        } else if (ours) {
            (void)empty_and_remove(context, full);
        }
    } else if (kind == TEMPORARY && S_ISREG(info.st_mode) && is_known(name, base, names, count)) {
        (void)unlinkat(parent_fd, name, 0);
    }
    close(fd);
}

lk_status lk__directory_recover(lk_context *context, const char *parent, const char *const *names, size_t count)
{
    DIR *stream = opendir(parent);
    if (!stream && errno == ENOENT) return LK_OK;
    if (!stream) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", parent, strerror(errno));
    for (struct dirent *entry; (entry = readdir(stream));) {
        size_t base;
        suffix kind = suffix_of(entry->d_name, &base);
        if (kind != PLAIN) recover_entry(context, dirfd(stream), parent, entry->d_name, base, kind, names, count);
    }
    closedir(stream);
    return LK_OK;
}

lk_status lk__make_directories(lk_context *context, const char *path)
{
    char   partial[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial)
        return lk__fail(context, LK_EINVAL, "'%.200s' cannot name a directory: it is %s", path,
                        length ? "too long" : "empty");
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        if (mkdir(partial, 0777) == 0) continue;
        struct stat info;
        int         why = errno;
        if (stat(partial, &info) == 0 && S_ISDIR(info.st_mode)) continue;
        lk_status status = why == EEXIST || why == ENOTDIR ? LK_EINVAL : LK_EIO;
        return lk__fail(context, status, "%s: cannot create the directory: %s", partial,
                        why == EEXIST ? "a file of that name is in the way" : strerror(why));
    }
    return LK_OK;
}
