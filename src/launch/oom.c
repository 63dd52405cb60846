/* oom.c - detects out-of-memory kills: the kernel's log, if readable, names the process; the counters of our cgroup (version 2 or 1)
 * and of the whole host only show that there was one. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number after oom_kill at the beginning of a line, or -1. */
static long read_counter(const char *path)
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
static long read_cgroup_counter(const char *root, const char *mount, const char *group, const char *name)
{
    char path[LK__LAUNCH_PATH + 256];
    snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, name);
    long value = read_counter(path);
    if (value >= 0) return value;
    snprintf(path, sizeof path, "%s%s/%s", root, mount, name);
    return read_counter(path);
}

void lk__oom_read(const char *root, long *in_cgroup, long *on_host)
{
    char path[LK__LAUNCH_PATH], line[LK__LAUNCH_PATH];
    snprintf(path, sizeof path, "%s/proc/vmstat", root);
    *on_host = read_counter(path);
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
            value = read_cgroup_counter(root, "/sys/fs/cgroup/memory", group, "memory.oom_control");
        else if (!*controllers)
            value = read_cgroup_counter(root, "/sys/fs/cgroup", group, "memory.events");
        if (value >= 0) *in_cgroup = value;
    }
    fclose(file);
}

/* The log device returns one record per read: "6,1234,5678901,-;text". A read after overwritten records fails once. */
bool lk__oom_in_log(const char *path, pid_t pid, char *out, size_t size)
{
    char record[2048], pattern[32];
    int  fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), misses = 0;
    bool found = false;
    if (fd < 0) return false;
    snprintf(pattern, sizeof pattern, "Killed process %d ", (int)pid);
    while (misses < 8) {
        ssize_t n = read(fd, record, sizeof record - 1);
        if (n == 0 || (n < 0 && errno != EPIPE && errno != EINTR)) break;
        if (n < 0) {
            misses++;
            continue;
        }
        record[n] = 0;
        char *text = strchr(record, ';');
        text = text ? text + 1 : record;
        if (!strstr(text, pattern) || !strstr(text, "ut of memory")) continue;
        snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text); /* the latest one: pids are reused */
        found = true;
    }
    close(fd);
    return found;
}
