/* memory_node.c - memory nodes, from the kernel's own lists and system calls: loading hwloc would take longer than
 * joining a group. */
#define _GNU_SOURCE
#include "base/memory_node.h"

#include "base/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES = 1024, PREFERRED = 1 /* MPOL_PREFERRED of linux/mempolicy.h, which not every system has */ };

static bool read_line(const char *root, const char *path, char *text, int size)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    FILE *file = fopen(whole, "re");
    if (!file) return false;
    bool read = fgets(text, size, file) != NULL;
    fclose(file);
    return read;
}

/* The end of the number, or range of numbers, at the beginning of the kernel's "0-3,8"; NULL: there is none. */
static const char *read_range(const char *text, long *first, long *last)
{
    char *end;
    *first = *last = strtol(text, &end, 10);
    if (end == text || *first < 0) return NULL;
    if (*end == '-') *last = strtol(end + 1, &end, 10);
    return *end == ',' ? end + 1 : end;
}

static int count_cores(const char *list, const uint64_t *cpus)
{
    int  count = 0;
    long first, last;
    while ((list = read_range(list, &first, &last)))
        for (long cpu = first; cpu <= last && cpu < 64 * LK__CPU_WORDS; cpu++)
            count += (int)(cpus[cpu / 64] >> cpu % 64 & 1);
    return count;
}

int lk__memory_node(const char *root, const uint64_t cpus[LK__CPU_WORDS])
{
    char        nodes[4096], cores[4096], path[96];
    const char *at = nodes;
    long        first, last;
    int         node = -1, most = 0;
    if (!read_line(root, "/sys/devices/system/node/online", nodes, sizeof nodes)) return -1;
    while ((at = read_range(at, &first, &last)))
        for (long i = first; i <= last && i < NODES; i++) {
            snprintf(path, sizeof path, "/sys/devices/system/node/node%ld/cpulist", i);
            int count = read_line(root, path, cores, sizeof cores) ? count_cores(cores, cpus) : 0;
            if (count > most) most = count, node = (int)i;
        }
    return node;
}

int lk__memory_nodes_given(const lk_context *context)
{
    const char *text = lk__environment(context, LK__ENV_LOCKSTEP_MEMORY_NODES);
    long        nodes = text ? strtol(text, NULL, 10) : 0;
    return nodes > 0 && nodes <= NODES ? (int)nodes : 0;
}

bool lk__memory_prefer_node(void *memory, size_t bytes, int node)
{
    uintptr_t     page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t     end = ((uintptr_t)memory + bytes + page - 1) / page * page;
    unsigned long mask[NODES / (8 * sizeof(unsigned long))] = {0};
    if (node < 0 || node >= NODES) return false;
    if (begin >= end) return true;
    mask[(size_t)node / (8 * sizeof *mask)] = 1ul << (size_t)node % (8 * sizeof *mask);
    /* The kernel reads one bit less than it is told. */
    return syscall(SYS_mbind, begin, end - begin, PREFERRED, mask, (unsigned long)NODES + 1, 0u) == 0;
}
