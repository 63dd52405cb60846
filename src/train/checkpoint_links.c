/* checkpoint_links.c - the links beside the steps of a checkpoint directory, which name the files of the newest. A
 * user's file with the name of a link is never replaced, even if it was moved there a moment ago: the directory entries
 * are exchanged, checked, and exchanged back. */
#define _GNU_SOURCE
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* True if an entry of the directory is a link that a save made for NAME: to step-N/NAME. False with errno 0 if it is
 * something else. */
static bool is_own_link(int directory, const char *entry, const char *name, int64_t *step)
{
    char    target[PATH_MAX];
    ssize_t n = readlinkat(directory, entry, target, sizeof target - 1);
    if (n < 0 && errno != EINVAL) return false;
    errno = 0;
    target[n < 0 ? 0 : n] = 0;
    char *slash = strchr(target, '/');
    if (!slash) return false;
    *slash = 0;
    return lk__checkpoint_parse(target, step) && strcmp(slash + 1, name) == 0;
}

bool lk__links_is_temporary(int directory, const char *entry)
{
    char    target[PATH_MAX];
    int64_t step;
    ssize_t n = readlinkat(directory, entry, target, sizeof target - 1);
    if (n <= 0) return false;
    target[n] = 0;
    char *slash = strchr(target, '/');
    if (slash) *slash = 0;
    return slash && lk__checkpoint_parse(target, &step);
}

/* ---- checks before the first step ---- */

static lk_status check_link(lk_context *c, const char *directory, const char *name)
{
    char      path[PATH_MAX];
    int64_t   step;
    lk_status status = lk__checkpoint_join(c, path, directory, name);
    if (status < 0) return status;
    int  fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool allowed = fd < 0 || is_own_link(fd, name, name, &step) || errno == ENOENT;
    if (fd >= 0) close(fd);
    if (allowed) return LK_OK;
    return lk__fail(c, LK_EINVAL,
                    "%s is not a link created by a save, and saving would replace it; move it, or save into another "
                    "directory",
                    path);
}

lk_status lk__links_check(lk_context *c, const char *directory, const lk_checkpoint_file *files, int count)
{
    lk_status status = LK_OK;
    for (int i = 0; i < LK__CHECKPOINT_FILES && status >= 0; i++)
        status = check_link(c, directory, lk__checkpoint_files[i]);
    for (int i = 0; i < count && status >= 0; i++) status = check_link(c, directory, files[i].name);
    return status;
}

/* ---- links to the newest checkpoint ---- */

static bool lacks_support(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

/* Gives the link `temporary` the name `name`. 0; EEXIST: that is a file of the user's, which stays; or another errno.
 * Without renameat2, on NFS for example, a moment is left between looking and renaming. */
static int place_link(int directory, const char *temporary, const char *name)
{
    int64_t step;
    if (renameat2(directory, temporary, directory, name, RENAME_NOREPLACE) == 0) return 0;
    if (errno == EEXIST && renameat2(directory, temporary, directory, name, RENAME_EXCHANGE) == 0) {
        if (is_own_link(directory, temporary, name, &step)) return unlinkat(directory, temporary, 0) == 0 ? 0 : errno;
        return renameat2(directory, temporary, directory, name, RENAME_EXCHANGE) == 0 ? EEXIST : errno;
    }
    if (!lacks_support(errno)) return errno;
    if (!is_own_link(directory, name, name, &step) && errno != ENOENT) return EEXIST;
    return renameat(directory, temporary, directory, name) == 0 ? 0 : errno;
}

/* Makes directory/name a link to step/name, in one step. */
static lk_status link_newest(lk__train_saver *s, int directory, const char *path, const char *step, const char *name)
{
    char target[PATH_MAX], temporary[64];
    snprintf(temporary, sizeof temporary, ".link.%ld", (long)getpid());
    if (lk__checkpoint_join(s->context, target, step, name) < 0) return LK_EINVAL;
    if (lk__links_is_temporary(directory, temporary)) (void)unlinkat(directory, temporary, 0); /* of an ended process */
    int error = symlinkat(target, directory, temporary) == 0 ? place_link(directory, temporary, name) : errno;
    if (error == 0) return LK_OK;
    if (lk__links_is_temporary(directory, temporary)) (void)unlinkat(directory, temporary, 0);
    if (error != EEXIST)
        return lk__fail(s->context, LK_EIO, "cannot create the link %s/%s: %s", path, name, strerror(error));
    if (!s->links_reported)
        lk__log(s->context, LK_LOG_WARNING,
                "%s/%s is not a link created by a save: it is left unchanged, and the newest checkpoint is %s/%s", path,
                name, path, step);
    s->links_reported = true;
    return LK_OK;
}

/* Whether a file of a step belongs to its checkpoint. One that does not exist is not the user's file. */
static bool is_part_of_step(int directory, int64_t step, const char *name)
{
    lk__file_name listed[LK__LISTED_FILES];
    char          step_name[64];
    bool          part = faccessat(directory, name, F_OK, 0) != 0;
    lk__checkpoint_name(step, step_name);
    int    fd = openat(directory, step_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    size_t count = fd < 0 ? 0 : lk__state_list(fd, listed);
    if (fd >= 0) close(fd);
    for (size_t i = 0; i < count && !part; i++) part = strcmp(listed[i], name) == 0;
    return part;
}

/* Removes links to the caller's files of other steps: the checkpoint of `step` does not have them. */
static void remove_other_links(const char *directory, int64_t step)
{
    DIR *stream = opendir(directory);
    if (!stream) return;
    for (struct dirent *entry; (entry = readdir(stream));) {
        int64_t target;
        if (is_own_link(dirfd(stream), entry->d_name, entry->d_name, &target) && target != step &&
            is_part_of_step(dirfd(stream), target, entry->d_name))
            (void)unlinkat(dirfd(stream), entry->d_name, 0);
    }
    closedir(stream);
}

lk_status lk__links_make(lk__train_saver *s, const char *directory, int64_t step)
{
    char      name[64];
    lk_status status = LK_OK;
    int       fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return lk__fail(s->context, LK_EIO, "%s: cannot open the directory: %s", directory, strerror(errno));
    lk__checkpoint_name(step, name);
    for (int i = 0; i < LK__CHECKPOINT_FILES && status >= 0; i++)
        status = link_newest(s, fd, directory, name, lk__checkpoint_files[i]);
    for (int i = 0; i < s->files_count && status >= 0; i++)
        status = link_newest(s, fd, directory, name, s->files[i].name);
    close(fd);
    if (status >= 0) remove_other_links(directory, step);
    return status;
}
