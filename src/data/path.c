/* path.c - formats paths; one that is too long is an error, never truncated. */
#define _GNU_SOURCE
#include "data/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool lk__path(char path[LK__PATH], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, LK__PATH, format, arguments);
    va_end(arguments);
    if (length >= 0 && length < LK__PATH) return true;
    path[0] = 0;
    return false;
}

bool lk__path_exists(const char *path) { return access(path, F_OK) == 0; }

lk_status lk__path_make(lk_context *context, const char *directory)
{
    char path[LK__PATH];
    if (!*directory || !lk__path(path, "%s", directory))
        return lk__fail(context, LK_EINVAL, "\"%s\" is not a valid directory name", directory);
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        char end = *p;
        *p = 0;
        struct stat about;
        int         error = mkdir(path, 0777) == 0 ? 0 : errno;
        if (error == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode)) error = 0;
        if (error)
            return lk__fail(context, error == EEXIST || error == ENOTDIR ? LK_EINVAL : LK_EIO,
                            "cannot create the directory %s: %s", path,
                            error == EEXIST ? "a file of that name exists" : strerror(error));
        *p = end;
        if (!end) return LK_OK;
    }
}

lk_status lk__path_pair(lk_context *context, const char *example, const char *text, char paths[2][LK__PATH])
{
    const char *comma = text ? strchr(text, ',') : NULL;
    int         first = !text ? 0 : comma ? (int)(comma - text) : (int)strlen(text);
    paths[1][0] = 0;
    if (first > 0 && lk__path(paths[0], "%.*s", first, text)) {
        if (!comma) return LK_OK;
        if (comma[1] && !strchr(comma + 1, ',') && lk__path(paths[1], "%s", comma + 1)) return LK_OK;
    }
    return lk__fail(context, LK_EINVAL, "the name of the data needs its files, as in %s (not \"%s\")", example,
                    text ? text : "");
}
