/* directory.c - replaces a directory of known files as a whole, and recovers from a crash in the middle. If the
 * filesystem supports it, old and new are exchanged in one step (renameat2); otherwise the old one is renamed first,
 * and recovery renames it back if the new one did not take its place. */
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

/* The kind of `name` by its ending, NAME.tmp.123 or NAME.old.123, and the length of NAME. */
static suffix parse_suffix(const char *name, size_t *base)
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

static bool is_name(const char *name, size_t length, const char *known)
{
    return strlen(known) == length && memcmp(name, known, length) == 0;
}

static bool is_known(const char *name, size_t length, const lk__file_names *known)
{
    for (size_t i = 0; i < known->count; i++)
        if (is_name(name, length, known->names[i])) return true;
    return false;
}

static bool is_listed(const char *name, size_t length, lk__file_name *listed, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_name(name, length, listed[i])) return true;
    return false;
}

static bool is_dot_entry(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* True if no running process holds the lock that writers take. fd is then open and locked. */
static bool lock_abandoned(int at, const char *name, int *fd)
{
    *fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return false;
}

/* Does not follow a link: its target is not in this directory. */
static DIR *open_no_follow(const char *path)
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

/* The first entry that is neither known nor an abandoned temporary of a known file; "" if there is none. False: the
 * directory cannot be read, and errno is set. */
static bool find_foreign(const char *path, const lk__file_names *names, char foreign[NAME_MAX + 1])
{
    lk__file_name listed[LK__LISTED_FILES];
    foreign[0] = 0;
    DIR *stream = open_no_follow(path);
    if (!stream) return false;
    size_t listed_count = names->list ? names->list(dirfd(stream), listed) : 0;
    for (struct dirent *entry; !foreign[0] && (entry = readdir(stream));) {
        size_t base;
        int    fd;
        if (is_dot_entry(entry->d_name)) continue;
        suffix kind = parse_suffix(entry->d_name, &base);
        bool   known = kind != OLD &&
                     (is_known(entry->d_name, base, names) || is_listed(entry->d_name, base, listed, listed_count));
        if (known && kind == TEMPORARY) {
            known = lock_abandoned(dirfd(stream), entry->d_name, &fd);
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

/* LK_ENOENT, which most callers expect, sets no message. */
static lk_status refuse_foreign(lk_context *context, const char *path, const lk__file_names *known)
{
    char foreign[NAME_MAX + 1];
    if (!find_foreign(path, known, foreign)) {
        int error = errno;
        if (error == ENOENT) return LK_ENOENT;
        return lk__fail(context, error == ENOTDIR ? LK_EINVAL : LK_EIO, "%s: cannot open the directory: %s", path,
                        strerror(error));
    }
    if (!foreign[0]) return LK_OK;
    return lk__fail(context, LK_EINVAL, "%s holds '%s', which is not part of a checkpoint; use another directory", path,
                    foreign);
}

lk_status lk__directory_check(lk_context *context, const char *path, const lk__file_names *known)
{
    return is_link(path) ? LK_OK : refuse_foreign(context, path, known);
}

int lk__directory_move(const char *from, const char *to)
{
    struct stat info;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return -1;
    errno = EEXIST;
    return lstat(to, &info) == 0 ? -1 : rename(from, to);
}

/* Deletes the entries that find_foreign allowed. Subdirectories were refused, so there is one level. The file that
 * lists others is last: after a kill in between, the others are still known. */
static lk_status empty_and_remove(lk_context *context, const char *path, const lk__file_names *known)
{
    const char *last = known->names[known->count - 1];
    DIR        *stream = open_no_follow(path);
    if (!stream) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", path, strerror(errno));
    bool failed = false;
    for (struct dirent *entry; !failed && (entry = readdir(stream));)
        failed = !is_dot_entry(entry->d_name) && strcmp(entry->d_name, last) != 0 &&
                 unlinkat(dirfd(stream), entry->d_name, 0) < 0 && errno != ENOENT;
    failed = failed || (unlinkat(dirfd(stream), last, 0) < 0 && errno != ENOENT);
    int error = errno;
    closedir(stream);
    if (!failed && rmdir(path) == 0) return LK_OK;
    return lk__fail(context, LK_EIO, "%s: cannot remove: %s", path, strerror(failed ? error : errno));
}

lk_status lk__directory_remove(lk_context *context, const char *path, const lk__file_names *known)
{
    lk_status status = refuse_foreign(context, path, known);
    return status < 0 ? status : empty_and_remove(context, path, known);
}

lk_status lk__directory_prune(lk_context *context, const char *path, const lk__file_names *known)
{
    char      aside[PATH_MAX];
    lk_status status = LK_OK;
    int       length = snprintf(aside, sizeof aside, "%s.tmp.%ld", path, (long)getpid());
    if (length < 0 || length >= (int)sizeof aside) return lk__fail(context, LK_EINVAL, "the path %s is too long", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return LK_OK;
    if (fd < 0) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", path, strerror(errno));
    (void)flock(fd, LOCK_EX | LOCK_NB); /* until it is removed, so that the recovery of a reader does not touch it */
    if ((status = refuse_foreign(context, path, known)) < 0) goto done;
    status = lk__directory_remove(context, aside, known); /* left by an earlier process with this pid */
    if (status < 0 && status != LK_ENOENT) goto done;
    status = rename(path, aside) == 0 ? empty_and_remove(context, aside, known)
                                      : lk__fail(context, LK_EIO, "%s: cannot rename: %s", path, strerror(errno));
done:
    close(fd);
    return status;
}

lk_status lk__directory_create(lk__train_directory *d, lk_context *context, const char *path,
                               const lk__file_names *known)
{
    *d = (lk__train_directory){.context = context, .fd = -1, .known = known};
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length == 0 || length > sizeof d->path - 32)
        return lk__fail(context, LK_EINVAL, "'%.200s' is not a valid directory name: it is %s", path,
                        length ? "too long" : "empty");
    snprintf(d->path, sizeof d->path, "%.*s", (int)length, path);
    snprintf(d->temporary, sizeof d->temporary, "%.*s.tmp.%ld", (int)length, path, (long)getpid());

    lk_status status = lk__directory_check(context, d->path, known);
    if (status == LK_ENOENT) status = LK_OK;
    if (status == LK_OK) {
        status = lk__directory_remove(context, d->temporary, known); /* left by an earlier process with this pid */
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

/* Exchanges path and temporary by two renames. On success the old directory is at `aside`, locked where the file system
 * has locks: recovery by another process then leaves it alone. */
static lk_status swap_in_two_steps(lk__train_directory *d, char aside[PATH_MAX])
{
    snprintf(aside, PATH_MAX, "%.*s.old.%ld", PATH_MAX - 32, d->path, (long)getpid());
    int  old = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool free = old >= 0 && (flock(old, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
    bool moved = free && rename(d->path, aside) == 0;
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
    /* A link to a checkpoint that was moved elsewhere is replaced; its target stays. */
    if (is_link(d->path) && unlink(d->path) < 0 && errno != ENOENT) {
        status = lk__fail(context, LK_EIO, "%s: cannot remove the link: %s", d->path, strerror(errno));
        goto done;
    }
    status = refuse_foreign(context, d->path, d->known);
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
            status = lk__fail(context, LK_EIO, "%s: cannot exchange the directory with %s: %s", d->temporary, d->path,
                              strerror(errno));
    }
    if (status < 0) goto done;
    d->temporary[0] = 0;
    status = lk__file_sync_parent(context, d->path);
    /* The new directory is in place, so a failure to remove the old one is only a warning. */
    if (aside[0] && lk__directory_remove(context, aside, d->known) < 0)
        lk__log(context, LK_LOG_WARNING, "%s", lk_context_error(context));
done:
    lk__directory_abandon(d);
    return status;
}

void lk__directory_abandon(lk__train_directory *d)
{
    if (d->fd >= 0) close(d->fd);
    d->fd = -1;
    if (d->temporary[0]) (void)lk__directory_remove(d->context, d->temporary, d->known);
    d->temporary[0] = 0;
}

typedef struct recovery {
    lk_context           *context;
    int                   parent_fd;
    const char           *parent;
    const lk__file_names *known;
    bool (*is_own)(const char *name);
} recovery;

/* Recovers one leftover: entry `name` of the parent, whose final name is its first `base` bytes. */
static void recover_entry(const recovery *r, const char *name, size_t base, suffix kind)
{
    lk_context *context = r->context;
    const char *parent = r->parent;
    int         parent_fd = r->parent_fd;
    char        full[PATH_MAX], plain[NAME_MAX + 1], foreign[NAME_MAX + 1];
    struct stat info = {0};
    int         fd;
    if (snprintf(full, sizeof full, "%s/%s", parent, name) >= (int)sizeof full || !lock_abandoned(parent_fd, name, &fd))
        return;
    snprintf(plain, sizeof plain, "%.*s", (int)base, name);
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        bool recoverable = r->is_own(plain) && find_foreign(full, r->known, foreign) && !foreign[0];
        if (recoverable && kind == OLD && faccessat(parent_fd, plain, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
            if (renameat(parent_fd, name, parent_fd, plain) == 0)
                lk__log(context, LK_LOG_INFO, "%s/%s: restored after an interrupted save", parent, plain);
        } else if (recoverable) {
            (void)empty_and_remove(context, full, r->known);
        }
    } else if (kind == TEMPORARY && S_ISREG(info.st_mode) && is_known(name, base, r->known)) {
        (void)unlinkat(parent_fd, name, 0);
    }
    close(fd);
}

lk_status lk__directory_recover(lk_context *context, const char *parent, const lk__file_names *known,
                                bool (*is_own)(const char *name))
{
    DIR *stream = opendir(parent);
    if (!stream && errno == ENOENT) return LK_OK;
    if (!stream) return lk__fail(context, LK_EIO, "%s: cannot open the directory: %s", parent, strerror(errno));
    recovery r = {context, dirfd(stream), parent, known, is_own};
    for (struct dirent *entry; (entry = readdir(stream));) {
        size_t base;
        suffix kind = parse_suffix(entry->d_name, &base);
        if (kind != PLAIN) recover_entry(&r, entry->d_name, base, kind);
    }
    closedir(stream);
    return LK_OK;
}
