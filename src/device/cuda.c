/* cuda.c - finds and loads the CUDA module: liblockstep itself links no CUDA. */
#define _GNU_SOURCE
#include "device/cuda/module.h"

#include "base/hash.h"
#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

static const lk__cuda_library library = {
    .alloc = lk__alloc,
    .free = lk__free,
    .account = lk__account,
    .account_allocation = lk__account_allocation,
    .fail = lk__fail,
    .log = lk__log,
    .hash64 = lk__hash64,
    .memory_name = lk_memory_name,
    .op_name = lk__op_name,
    .environment = lk__environment,
};

lk_status lk__cuda_load(lk_context *context, const lk__cuda_module **module)
{
    char path[2 * PATH_MAX];
    *module = NULL;
    if (!lk__module_find("liblockstep-cuda.so", path, sizeof path))
        return lk__fail(context, LK_EUNSUPPORTED,
                        "device cuda: there is no %s: build Lockstep where nvcc is installed, or give the module's "
                        "directory with LOCKSTEP_MODULES=DIR",
                        path);
    /* NODELETE: CUDA's threads and exit handlers cannot be unloaded. */
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!opened) return lk__fail(context, LK_EUNSUPPORTED, "device cuda: %s cannot be loaded: %s", path, dlerror());
    void          *symbol = dlsym(opened, LK__CUDA_SYMBOL);
    lk__cuda_entry entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from data to function pointers */
    const lk__cuda_module *found = symbol ? entry() : NULL;
    dlclose(opened);
    if (!found || found->version != LK__CUDA_VERSION || found->op_count != LK__OP_COUNT)
        return lk__fail(context, LK_EUNSUPPORTED, "device cuda: %s belongs to another version of Lockstep", path);
    found->start(&library);
    *module = found;
    return LK_OK;
}
