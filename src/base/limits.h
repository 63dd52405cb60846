/* base/limits.h - what this process may use of the machine: the CPU quota and the memory limits of its control groups
 * (cgroups, version 1 and 2), and the memory that is still available. A limit holds for a group and all groups below
 * it, so the limits of the process's own group and of every group above it count. `root` is a prefix of every path: ""
 * on a machine, the directory of an artificial tree in tests. */
#ifndef LK__LIMITS_H
#define LK__LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Path of the control group that contains this process, in the hierarchy of a controller ("memory", "cpu"). version: 1
 * or 2. False: it has none of that version. */
bool lk__cgroup_folder(const char *root, const char *controller, int version, char *folder, size_t bytes);

/* The smallest CPU quota, in cores; 0: there is none. */
double lk__limits_cores(const char *root);

/* Memory that some processes have in common: the host's, or the memory of a control group with a limit. */
typedef struct lk__memory_limit {
    uint64_t id;       /* the same in all processes that it holds for */
    int64_t  limit;    /* bytes, of a control group or of `process`; 0: the host's memory */
    int64_t available; /* bytes that can still be allocated without swapping: what is free, and what can be reclaimed */
    int64_t process;   /* not 0: it is the address space of one process (ulimit -v) */
} lk__memory_limit;

enum { LK__MEMORY_LIMITS = 8 };
typedef struct lk__memory_limits {
    int64_t          count; /* 0: nothing is known */
    lk__memory_limit all[LK__MEMORY_LIMITS];
} lk__memory_limits;

/* The host's memory, the control groups' limits and this process's own; if there are more than LK__MEMORY_LIMITS, those
 * with the least available. */
void lk__limits_memory(const char *root, lk__memory_limits *limits);

#endif
