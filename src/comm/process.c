/* process.c - looks at other processes of this host through /proc. */
#define _GNU_SOURCE
#include "comm/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In /proc/PID/stat the fields follow the name, which may hold anything but ends with the last ')'. */
bool lk__process_look(int64_t pid, char *state, uint64_t *started)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", state) != 1) return false;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    *started = at ? strtoull(at + 1, NULL, 10) : 0;
    return true;
}

uint64_t lk__process_started(int64_t pid)
{
    char     state;
    uint64_t started;
    return lk__process_look(pid, &state, &started) ? started : 0;
}

bool lk__process_gone(int64_t pid)
{
    char     state = 0;
    uint64_t started;
    if (!lk__process_look(pid, &state, &started)) return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    return state == 'Z' || state == 'X';
}
