/* path.c - formats paths; one that is too long is an error, never truncated. */
#define _GNU_SOURCE
#include "data/path.h"

#include <stdio.h>
#include <string.h>
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

lk_status lk__path_pair(lk_context *context, const char *example, const char *text, char paths[2][LK__PATH])
{
    const char *comma = text ? strchr(text, ',') : NULL;
    int         first = !text ? 0 : comma ? (int)(comma - text) : (int)strlen(text);
    paths[1][0] = 0;
    if (first > 0 && lk__path(paths[0], "%.*s", first, text)) {
        if (!comma) return LK_OK;
        if (comma[1] && !strchr(comma + 1, ',') && lk__path(paths[1], "%s", comma + 1)) return LK_OK;
    }
    return lk__fail(context, LK_EINVAL, "expected file names, as in %s (not \"%s\")", example, text ? text : "");
}
