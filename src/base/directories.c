/* directories.c - creates a directory with its parents. */
#include "base/directories.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

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
        bool mistake = error == EEXIST || error == ENOTDIR || error == ENAMETOOLONG;
        return lk__fail(context, mistake ? LK_EINVAL : LK_EIO, "%s: cannot create the directory: %s", partial,
                        error == EEXIST ? "a file of that name exists" : strerror(error));
    }
    return LK_OK;
}
