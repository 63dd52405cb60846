/* oom.c - detects out-of-memory kills: the kernel's log, if readable, names the process; the counters of our cgroup
 * (version 2 or 1) and of the whole host only show that there was one. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include "base/limits.h"

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

void lk__oom_read(const char *root, long *in_cgroup, long *on_host)
{
    static const char *const names[] = {"memory.oom_control", "memory.events"}; /* of versions 1 and 2 */
    char                     folder[LK__LAUNCH_PATH], path[2 * LK__LAUNCH_PATH];
    snprintf(path, sizeof path, "%s/proc/vmstat", root);
    *on_host = read_counter(path);
    *in_cgroup = -1;
    for (int version = 1; version <= 2; version++) {
        if (!lk__cgroup_folder(root, "memory", version, folder, sizeof folder)) continue;
        snprintf(path, sizeof path, "%s%s/%s", root, folder, names[version - 1]);
        long value = read_counter(path);
        if (value >= 0) *in_cgroup = value;
    }
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
