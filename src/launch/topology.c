/* topology.c - assigns cores to ranks: equal runs of the allowed cores, in an order that keeps siblings together:
 * hwloc's, or by the kernel's numbers of sockets and cores. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu_place {
    int cpu, package, core;
} cpu_place;

static int read_topology(int cpu, const char *name)
{
    char path[96];
    int  value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;                            /* unknown topology: order by number */
    if (fscanf(file, "%d", &value) != 1) value = 0; /* NOLINT: the kernel's own number */
    fclose(file);
    return value;
}

static int compare_places(const void *a, const void *b)
{
    const cpu_place *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return x->cpu < y->cpu ? -1 : x->cpu > y->cpu;
}

void lk__topology_list(const cpu_set_t *set, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        int last = cpu;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) last++;
        if (used + 24 > size) return;
        used += (size_t)snprintf(out + used, size - used, last > cpu ? "%s%d-%d" : "%s%d", used ? "," : "", cpu, last);
        cpu = last;
    }
}

static void describe_cores(const char *how, const cpu_set_t *cores, int ranks, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s cores ", how);
    for (int i = 0; i < ranks && used + 80 < size; i++) {
        char one[64];
        lk__topology_list(&cores[i], one, sizeof one);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " | " : "", one);
    }
}

/* Cores that are local to the ranks' GPUs, instead of equal shares of all. A rank then has no more threads than
 * cores. */
static bool assign_by_gpus(lk_context *context, lk__launch_locality *locality, const cpu_place *places,
                           cpu_set_t *cores, int *threads)
{
    int order[CPU_SETSIZE];
    for (int i = 0; i < locality->count; i++) order[i] = places[i].cpu;
    locality->order = order;
    if (!lk__gpus_assign(context, locality, cores)) return false;
    for (int i = 0; i < locality->ranks; i++)
        if (CPU_COUNT(&cores[i]) < *threads) *threads = CPU_COUNT(&cores[i]);
    return true;
}

lk_status lk__topology_split(lk_context *context, int ranks, const char *device, cpu_set_t **cores, int *threads,
                             char text[LK__TOPOLOGY_TEXT])
{
    cpu_place places[CPU_SETSIZE];
    cpu_set_t allowed;
    int       count = 0, order[CPU_SETSIZE];
    *cores = NULL;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return lk__fail(context, LK_EIO, "cannot read the CPU affinity: %s", strerror(errno));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed)) places[count++] = (cpu_place){cpu, 0, 0};
    /* A rank is pinned to its share of the cores, but has no more threads than a CPU quota allows: a quota limits time,
     * not cores. */
    int share = count / ranks, busy = lk__cgroup_cores(count) / ranks;
    *threads = busy ? busy : 1;
    if (ranks > count) { /* pinning would give some cores more ranks than others; the scheduler balances better */
        snprintf(text, LK__TOPOLOGY_TEXT, "not pinned: only %d core%s", count, count == 1 ? "" : "s");
        return LK_OK;
    }
    int known = count > 2 ? lk__hwloc_order(order, CPU_SETSIZE) : 0; /* with two, the order does not matter */
    for (int i = 0; i < count; i++) {
        places[i].package = known ? known : read_topology(places[i].cpu, "physical_package_id");
        places[i].core = known ? 0 : read_topology(places[i].cpu, "core_id");
        for (int j = 0; j < known; j++)
            if (order[j] == places[i].cpu) places[i].package = j;
    }
    qsort(places, (size_t)count, sizeof *places, compare_places);
    *cores = lk__alloc(context, LK_MEMORY_OTHER, (size_t)ranks * sizeof **cores);
    if (!*cores) return LK_ENOMEM;
    lk__launch_locality locality = {.root = "",
                                    .visible = lk__environment(NULL, LK__ENV_CUDA_VISIBLE_DEVICES),
                                    .device = device ? device : lk__environment_text(NULL, LK__ENV_LOCKSTEP_DEVICE),
                                    .shares = lk__environment_flag(NULL, LK__ENV_LOCKSTEP_SHARE_DEVICE),
                                    .allowed = &allowed,
                                    .count = count,
                                    .ranks = ranks};
    bool                local = assign_by_gpus(context, &locality, places, *cores, threads);
    for (int i = 0; i < ranks && !local; i++) {
        CPU_ZERO(&(*cores)[i]); /* of an assignment that failed */
        for (int j = i * share; j < (i + 1) * share; j++) CPU_SET(places[j].cpu, &(*cores)[i]);
    }
    describe_cores(local ? "assigned by GPU locality to" : "assigned to", *cores, ranks, text, LK__TOPOLOGY_TEXT);
    return LK_OK;
}

lk_status lk__topology_bind(lk_context *context, const char *mode, int ranks, cpu_set_t **cores,
                            char text[LK__TOPOLOGY_TEXT])
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return lk__fail(context, LK_EIO, "cannot read the CPU affinity: %s", strerror(errno));
    if (!*cores) *cores = lk__alloc(context, LK_MEMORY_OTHER, (size_t)ranks * sizeof **cores);
    if (!*cores) return LK_ENOMEM;
    LK__TRY(lk__numa_bind(
        context, &(lk__launch_binding){"", mode, &allowed, lk__environment(NULL, LK__ENV_CUDA_VISIBLE_DEVICES), ranks},
        *cores));
    describe_cores("pinned to", *cores, ranks, text, LK__TOPOLOGY_TEXT);
    return LK_OK;
}

/* ---- number of ranks ---- */

/* The GPUs in CUDA_VISIBLE_DEVICES, else /dev/nvidia0 …: available without loading the driver. */
static int count_gpus(void)
{
    const char *visible = lk__environment(NULL, LK__ENV_CUDA_VISIBLE_DEVICES);
    int         count = 0;
    if (visible) {
        if (!*visible || strcmp(visible, "-1") == 0) return 0;
        for (count = 1; (visible = strchr(visible, ',')); visible++) count++;
        return count;
    }
    DIR           *directory = opendir("/dev");
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        count += strncmp(entry->d_name, "nvidia", 6) == 0 && entry->d_name[6] >= '0' && entry->d_name[6] <= '9';
    if (directory) closedir(directory);
    return count;
}

lk_status lk_launch_count(lk_context *context, const char *text, int *ranks)
{
    cpu_set_t allowed;
    char     *end;
    long      number = strtol(text, &end, 10);
    if (end != text && !*end) {
        if (number < 1 || number > 4096)
            return lk__fail(context, LK_EINVAL,
                            "cannot start %s ranks on one host: expected 1 to 4096, or auto, gpu or cpu", text);
        *ranks = (int)number;
        return LK_OK;
    }
    bool automatic = strcmp(text, "auto") == 0;
    if (!automatic && strcmp(text, "gpu") != 0 && strcmp(text, "cpu") != 0)
        return lk__fail(context, LK_EINVAL, "'%.40s' is not a number of ranks: expected a number, auto, gpu or cpu",
                        text);
    *ranks = strcmp(text, "cpu") == 0 ? 0 : count_gpus();
    if (*ranks) return LK_OK;
    if (strcmp(text, "gpu") == 0)
        return lk__fail(context, LK_EINVAL, "one rank per GPU was requested, but this host has no GPU");
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return lk__fail(context, LK_EIO, "cannot read the CPU affinity: %s", strerror(errno));
    *ranks = lk__cgroup_cores(CPU_COUNT(&allowed));
    return LK_OK;
}
