/* sysfs.c - reads the kernel's small files below /sys and /proc. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lk__sysfs_read(const char *root, char *out, size_t size, const char *format, ...)
{
    char    path[LK__LAUNCH_PATH];
    int     lead = snprintf(path, sizeof path, "%s", root);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + lead, sizeof path - (size_t)lead, format, arguments);
    va_end(arguments);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(out, 1, size - 1, file);
    fclose(file);
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
    return true;
}

void lk__sysfs_cpus(const char *text, const cpu_set_t *among, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (char *end; *text; text = *end ? end + 1 : end) {
        long first = strtol(text, &end, 10), last = first;
        if (end == text) return;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((int)cpu, among)) CPU_SET((int)cpu, set);
    }
}
