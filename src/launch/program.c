/* program.c - finds a program that is not in PATH. A shell that ssh starts often has a shorter PATH than the user's own
 * shell. Then the program's path on the launcher's host is tried and, for `lockstep` itself, the directory of this
 * executable. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_executable(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, X_OK) == 0;
}

bool lk__program_on_path(const char *name, char *out, size_t size)
{
    const char *at = lk__environment(NULL, LK__ENV_PATH);
    out[0] = 0;
    for (; at && !strchr(name, '/'); at++) {
        size_t length = strcspn(at, ":");
        int    used = snprintf(out, size, "%.*s/%s", (int)length, at, name);
        if (at[0] == '/' && used > 0 && (size_t)used < size && is_executable(out)) return true;
        at += length;
        if (!*at) break;
    }
    out[0] = 0;
    return false;
}

bool lk__program_beside(const char *name, char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    char   *slash = length > 0 ? memrchr(out, '/', (size_t)length) : NULL;
    if (slash && !strchr(name, '/') && (size_t)(slash + 1 - out) + strlen(name) < size) {
        strcpy(slash + 1, name);
        if (is_executable(out)) return true;
    }
    out[0] = 0;
    return false;
}

bool lk__program_is_own(const char *path)
{
    char    own[LK__LAUNCH_PATH];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    return length > 0 && strlen(path) == (size_t)length && memcmp(path, own, (size_t)length) == 0;
}
