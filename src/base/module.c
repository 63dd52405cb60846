/* module.c - finds modules. */
#include "base/module.h"

#include "base/environment.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where an installed command finds the modules, from its own directory. */
#ifndef LK_MODULES_FROM_BIN
#define LK_MODULES_FROM_BIN "../lib/lockstep"
#endif

/* The directory of the shared library, or of a program that is linked with the static one. From the kernel, as an
 * absolute path; the loader's can be relative, because of the empty element that mpirun adds to LD_LIBRARY_PATH. */
static bool own_directory(char *out, size_t bytes)
{
    char          line[PATH_MAX + 128];
    unsigned long here = (unsigned long)(uintptr_t)own_directory, first, end;
    FILE         *maps = fopen("/proc/self/maps", "re");
    char         *path = NULL;
    while (maps && !path && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &first, &end) == 2 && first <= here && here < end) path = strchr(line, '/');
    if (maps) fclose(maps);
    if (!path) return false;
    *strrchr(path, '/') = 0;
    return (size_t)snprintf(out, bytes, "%s", path) < bytes;
}

bool lk__module_find(const char *file, char *path, size_t bytes)
{
    static const char *const directories[] = {"", "lockstep/", LK_MODULES_FROM_BIN "/"};
    const char              *given = lk__environment_text(NULL, LK__ENV_LOCKSTEP_MODULES);
    char                     own[PATH_MAX];
    if (given) {
        snprintf(path, bytes, "%s/%s", given, file);
        return access(path, R_OK) == 0;
    }
    if (!own_directory(own, sizeof own)) return false;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, bytes, "%s/%s%s", own, directories[i], file);
        if (access(path, R_OK) == 0) return true;
    }
    snprintf(path, bytes, "%s/%s", own, file);
    return false;
}
