/* directories.c - creates a directory with its parents. */
#include "base/directories.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

bool lk__is_path_mistake(int error)
{
    static const int mistakes[] = {EACCES, EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS};
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        if (error == mistakes[i]) return true;
    return false;
}

lk_status lk__make_directories(lk_context *context, const char *path)
{
    char   partial[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial)
        return lk__fail(context, LK_EINVAL, "'%.200s' is not a valid directory name: it is %s", path,
                        length ? "too long" : "empty");
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        if (mkdir(partial, 0777) == 0) continue;
        struct stat info;
        int         error = errno;
        if (stat(partial, &info) == 0 && S_ISDIR(info.st_mode)) continue;
        return lk__fail(context, lk__is_path_mistake(error) ? LK_EINVAL : LK_EIO, "%s: cannot create the directory: %s",
                        partial, error == EEXIST ? "a file with that name exists" : strerror(error));
    }
    return LK_OK;
}
