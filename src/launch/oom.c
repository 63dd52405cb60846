/* oom.c - whether the kernel killed for memory: counters of our cgroup (version 2 or 1) and of the whole host. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number after the word oom_kill at the beginning of a line, or -1. */
static long counter(const char *path)
{
    char  line[256];
    long  value = -1;
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "oom_kill ", 9) == 0) value = strtol(line + 9, NULL, 10);
    fclose(file);
    return value;
}

/* A container may see its own cgroup at the mount's root instead of at the path that /proc gives. */
static long counter_below(const char *root, const char *mount, const char *group, const char *name)
{
    char path[LK__PATH + 256];
    snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, name);
    long value = counter(path);
    if (value >= 0) return value;
    snprintf(path, sizeof path, "%s%s/%s", root, mount, name);
    return counter(path);
}

void lk__oom_read(const char *root, long *in_cgroup, long *on_host)
{
    char path[LK__PATH], line[LK__PATH];
    snprintf(path, sizeof path, "%s/proc/vmstat", root);
    *on_host = counter(path);
    *in_cgroup = -1;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) { /* "0::/path" of version 2, "4:memory:/path" of version 1 */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        if (strcmp(group, "/") == 0) group = "";
        long value = -1;
        if (strcmp(controllers, "memory") == 0)
            value = counter_below(root, "/sys/fs/cgroup/memory", group, "memory.oom_control");
        else if (!*controllers)
            value = counter_below(root, "/sys/fs/cgroup", group, "memory.events");
        if (value >= 0) *in_cgroup = value;
    }
    fclose(file);
}
