/* numa.c - assigns cores by memory node, socket or shared cache, as torchrun's --numa-binding does. A rank belongs to
 * the node of the GPU whose number is its local rank; if that is unknown, ranks are distributed over the nodes in equal
 * runs. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 1024, TEXT = 4096 };

typedef struct host {
    const char *root; /* prefix of every path */
    cpu_set_t   allowed;
    int         count;        /* nodes with at least one allowed core */
    int         ids[NODES];   /* the kernel's numbers of them */
    cpu_set_t   cores[NODES]; /* the allowed cores of each */
} host;

static int package_of(const char *root, int cpu)
{
    char text[64];
    return lk__sysfs_read(root, text, sizeof text, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu)
               ? atoi(text)
               : -1;
}

static int first_cpu(const cpu_set_t *set)
{
    int cpu = 0;
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, set)) cpu++;
    return cpu;
}

static void find_nodes(host *h)
{
    char text[TEXT];
    for (int id = 0; id < NODES; id++) {
        if (!lk__sysfs_read(h->root, text, sizeof text, "/sys/devices/system/node/node%d/cpulist", id)) continue;
        lk__sysfs_cpus(text, &h->allowed, &h->cores[h->count]);
        if (CPU_COUNT(&h->cores[h->count]) > 0) h->ids[h->count++] = id;
    }
}

/* ---- the node of each rank ---- */

static int node_of_gpu(const host *h, const char *name)
{
    char text[64];
    int  id = lk__gpu_read(h->root, name, "numa_node", text, sizeof text) ? atoi(text) : -1;
    for (int i = 0; i < h->count; i++)
        if (h->ids[i] == id) return i;
    return -1;
}

static void choose_nodes(const host *h, int ranks, const char *visible, int *nodes)
{
    lk__launch_gpus gpus;
    lk__gpus_list(h->root, &gpus);
    bool known = gpus.count > 0;
    for (int i = 0; i < ranks && known; i++) {
        int gpu = lk__gpu_find(h->root, &gpus, visible, i);
        nodes[i] = gpu >= 0 ? node_of_gpu(h, gpus.names[gpu]) : -1;
        known = nodes[i] >= 0;
    }
    for (int i = 0; i < ranks && !known; i++) nodes[i] = (int)((long)i * h->count / ranks);
}

/* ---- the cores within the node ---- */

static void select_socket(const host *h, int node, cpu_set_t *cores)
{
    int package = package_of(h->root, first_cpu(&h->cores[node]));
    *cores = h->cores[node];
    for (int i = 0; i < h->count; i++)
        if (package_of(h->root, first_cpu(&h->cores[i])) == package) CPU_OR(cores, cores, &h->cores[i]);
}

/* The CPUs that share a core or a cache with `cpu`; only `cpu` itself if unknown. */
static void select_sharers(const host *h, int cpu, const char *name, const cpu_set_t *among, cpu_set_t *set)
{
    char text[TEXT];
    CPU_ZERO(set);
    if (lk__sysfs_read(h->root, text, sizeof text, "/sys/devices/system/cpu/cpu%d/%s", cpu, name))
        lk__sysfs_cpus(text, among, set);
    CPU_SET(cpu, set);
}

/* The path of the core's third-level cache below /sys/devices/system/cpu/cpuN/; false: the kernel lists none. */
static bool find_cache(const host *h, int cpu, char *out, size_t size)
{
    char text[16];
    for (int i = 0; i < 16; i++)
        if (lk__sysfs_read(h->root, text, sizeof text, "/sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, i) &&
            atoi(text) == 3) {
            snprintf(out, size, "cache/index%d/shared_cpu_list", i);
            return true;
        }
    return false;
}

/* Splits a node into groups that share a core (or a cache); returns their number, -1: the kernel lists no such
 * cache. */
static int split_node(const host *h, int node, bool caches, cpu_set_t *groups)
{
    cpu_set_t left = h->cores[node];
    int       count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char name[64] = "topology/thread_siblings_list";
        if (!CPU_ISSET(cpu, &left)) continue;
        if (caches && !find_cache(h, cpu, name, sizeof name)) return -1;
        select_sharers(h, cpu, name, &left, &groups[count]);
        CPU_XOR(&left, &left, &groups[count++]);
    }
    return count;
}

/* What ranks are bound by. */
typedef struct binder {
    lk_context               *context;
    const lk__launch_binding *binding;
    const host               *host;
    int                      *nodes;  /* of each rank */
    cpu_set_t                *groups; /* room for those of a node */
} binder;

/* The part of rank `index` of the `sharing` ranks of a node: the first ranks get one group more if the number is not
 * divisible. */
static lk_status select_part(const binder *b, int node, int index, int sharing, cpu_set_t *cores)
{
    lk_context *context = b->context;
    const host *h = b->host;
    cpu_set_t  *groups = b->groups;
    bool        caches = strcmp(b->binding->mode, "core-complex") == 0;
    int         count = split_node(h, node, caches, groups);
    CPU_ZERO(cores);
    if (count < 0)
        return lk__fail(
            context, LK_EINVAL,
            "NUMA binding core-complex: this machine reports no L3 cache; node, socket and exclusive are available");
    if (caches) {
        *cores = groups[index % count];
        return LK_OK;
    }
    if (count < sharing)
        return lk__fail(context, LK_EINVAL,
                        "NUMA binding exclusive: node %d has only %d cores for %d ranks; the bindings node and socket "
                        "let ranks share cores",
                        h->ids[node], count, sharing);
    int each = count / sharing, more = count % sharing, first = index * each + (index < more ? index : more);
    for (int i = first; i < first + each + (index < more); i++) CPU_OR(cores, cores, &groups[i]);
    return LK_OK;
}

static lk_status bind_rank(const binder *b, int rank, cpu_set_t *cores)
{
    const char *mode = b->binding->mode;
    const int  *nodes = b->nodes;
    int         index = 0, sharing = 0;
    for (int i = 0; i < b->binding->ranks; i++) {
        index += i < rank && nodes[i] == nodes[rank];
        sharing += nodes[i] == nodes[rank];
    }
    if (strcmp(mode, "node") == 0)
        *cores = b->host->cores[nodes[rank]];
    else if (strcmp(mode, "socket") == 0)
        select_socket(b->host, nodes[rank], cores);
    else
        return select_part(b, nodes[rank], index, sharing, cores);
    return LK_OK;
}

lk_status lk__numa_check(lk_context *context, const char *mode)
{
    static const char *const modes[] = {"node", "socket", "exclusive", "core-complex"};
    for (int i = 0; i < 4; i++)
        if (!mode || strcmp(mode, modes[i]) == 0) return LK_OK;
    return lk__fail(context, LK_EINVAL,
                    "'%.40s' is not a NUMA binding: expected node, socket, exclusive or core-complex", mode);
}

lk_status lk__numa_bind(lk_context *context, const lk__launch_binding *binding, cpu_set_t *cores)
{
    int        ranks = binding->ranks;
    size_t     group_bytes = CPU_SETSIZE * sizeof(cpu_set_t), node_bytes = (size_t)ranks * sizeof(int);
    host      *h = lk__alloc(context, LK_MEMORY_OTHER, sizeof *h);
    cpu_set_t *groups = lk__alloc(context, LK_MEMORY_OTHER, group_bytes);
    int       *nodes = lk__alloc(context, LK_MEMORY_OTHER, node_bytes);
    lk_status  status = h && groups && nodes ? lk__numa_check(context, binding->mode) : LK_ENOMEM;
    binder     b = {context, binding, h, nodes, groups};
    if (status >= 0) {
        h->root = binding->root;
        h->allowed = *binding->allowed;
        find_nodes(h);
        if (h->count == 0)
            status = lk__fail(context, LK_EINVAL,
                              "NUMA binding %s: this machine reports no memory nodes (/sys/devices/system/node)",
                              binding->mode);
    }
    if (status >= 0) choose_nodes(h, ranks, binding->visible, nodes);
    for (int i = 0; i < ranks && status >= 0; i++) status = bind_rank(&b, i, &cores[i]);
    lk__free(context, LK_MEMORY_OTHER, nodes, node_bytes);
    lk__free(context, LK_MEMORY_OTHER, groups, group_bytes);
    lk__free(context, LK_MEMORY_OTHER, h, sizeof *h);
    return status;
}

void lk__numa_widen(const char *root, const cpu_set_t *allowed, int ranks, cpu_set_t *cores)
{
    char      text[TEXT];
    cpu_set_t every, online, node, both;
    memset(&every, 0xff, sizeof every);
    CPU_ZERO(&online);
    if (lk__sysfs_read(root, text, sizeof text, "/sys/devices/system/node/online"))
        lk__sysfs_cpus(text, &every, &online);
    for (int i = 0; i < ranks && CPU_COUNT(&online) < 2; i++) cores[i] = *allowed;
    for (int id = 0; id < NODES && CPU_COUNT(&online) > 1; id++) {
        if (!CPU_ISSET(id, &online)) continue;
        if (!lk__sysfs_read(root, text, sizeof text, "/sys/devices/system/node/node%d/cpulist", id)) continue;
        lk__sysfs_cpus(text, allowed, &node);
        for (int i = 0; i < ranks; i++) {
            CPU_AND(&both, &node, &cores[i]);
            if (CPU_COUNT(&both) > 0) CPU_OR(&cores[i], &cores[i], &node);
        }
    }
}
