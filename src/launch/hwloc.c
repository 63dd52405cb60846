/* hwloc.c - cores in hwloc's order: threads of a core, cores of a cache, caches of a memory node and nodes of a socket
 * are adjacent. The library is loaded only when it is needed, so that it does not delay anything else. */
#define _GNU_SOURCE
#include "launch/launch.h"

#ifdef LK_HWLOC
#include <dlfcn.h>
#include <hwloc.h>

#define NEEDED(X)                                                                                 \
    X(hwloc_topology_init) X(hwloc_topology_load) X(hwloc_topology_destroy) X(hwloc_get_type_depth) \
    X(hwloc_get_nbobjs_by_depth) X(hwloc_get_obj_by_depth)

typedef struct hwloc {
#define MEMBER(name) __typeof__(&name) name;
    NEEDED(MEMBER)
#undef MEMBER
} hwloc;

static void *load_hwloc(hwloc *h)
{
    void *library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    bool all = true;
#define FIND(name) all &= (*(void **)&h->name = dlsym(library, #name)) != NULL;
    NEEDED(FIND)
#undef FIND
    if (all) return library;
    dlclose(library);
    return NULL;
}

int lk__hwloc_order(int *cpus, int most)
{
    hwloc            h;
    hwloc_topology_t topology;
    int              count = 0;
    void            *library = load_hwloc(&h);
    if (!library) return 0;
    if (h.hwloc_topology_init(&topology) == 0) {
        if (h.hwloc_topology_load(topology) == 0) {
            int depth = h.hwloc_get_type_depth(topology, HWLOC_OBJ_PU);
            int units = depth < 0 ? 0 : (int)h.hwloc_get_nbobjs_by_depth(topology, depth);
            for (int i = 0; i < units && count < most; i++)
                cpus[count++] = (int)h.hwloc_get_obj_by_depth(topology, depth, (unsigned)i)->os_index;
        }
        h.hwloc_topology_destroy(topology);
    }
    dlclose(library);
    return count;
}
#else
int lk__hwloc_order(int *cpus, int most)
{
    (void)cpus;
    (void)most;
    return 0;
}
#endif
