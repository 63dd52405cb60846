/* process.c - reads /proc/PID/stat. The command name in it may contain any character; it ends with the last ')'. */
#define _GNU_SOURCE
#include "comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FLAGS = 9,  /* the field of the kernel's flags of a process */
    EXITING = 4 /* PF_EXITING, one of them since Linux 2.4 */
};

bool lk__process_look(int64_t pid, lk__process *p)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", &p->state) != 1) return false;
    p->exiting = false;
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (at && field + 1 == FLAGS) p->exiting = strtoul(at + 1, NULL, 10) & EXITING;
    }
    p->started = at ? strtoull(at + 1, NULL, 10) : 0;
    return true;
}

uint64_t lk__process_started(int64_t pid)
{
    lk__process p;
    return lk__process_look(pid, &p) ? p.started : 0;
}

bool lk__process_gone(int64_t pid)
{
    lk__process p;
    if (!lk__process_look(pid, &p)) return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    return lk__process_over(&p);
}

uint64_t lk__process_namespace(const char *kind)
{
    char        path[48];
    struct stat about;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    return stat(path, &about) == 0 ? about.st_ino : 0;
}
