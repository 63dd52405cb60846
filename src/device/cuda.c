/* cuda.c - finds and loads the CUDA module: liblockstep itself links no CUDA. */
#define _GNU_SOURCE
#include "device/cuda/module.h"
#include "device/devices.h"

#include "base/hash.h"
#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    .uuid_text = lk__device_uuid_text,
    .environment = lk__environment,
    .mps = lk__cuda_mps,
};

lk_status lk__cuda_load(lk_context *context, const lk__cuda_module **module)
{
    char path[2 * PATH_MAX];
    *module = NULL;
    if (!lk__module_find("liblockstep-cuda.so", path, sizeof path))
        return lk__fail(context, LK_EUNSUPPORTED,
                        "device cuda: %s not found: build Lockstep where nvcc is installed, or set "
                        "LOCKSTEP_MODULES=DIR to the module's directory",
                        path);
    /* NODELETE: CUDA's threads and exit handlers cannot be unloaded. */
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!opened) return lk__fail(context, LK_EUNSUPPORTED, "device cuda: cannot load %s: %s", path, dlerror());
    void          *symbol = dlsym(opened, LK__CUDA_SYMBOL);
    lk__cuda_entry entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from data to function pointers */
    const lk__cuda_module *found = symbol ? entry() : NULL;
    dlclose(opened);
    if (!found || found->version != LK__CUDA_VERSION || found->op_count != LK__OP_COUNT)
        return lk__fail(context, LK_EUNSUPPORTED, "device cuda: %s was built for a different version of Lockstep",
                        path);
    found->start(&library);
    *module = found;
    return LK_OK;
}

static const lk__device_backend *load_backend(lk_context *context)
{
    const lk__cuda_module *module;
    return lk__cuda_load(context, &module) < 0 ? NULL : module->backend;
}

static int count_gpus(char *why, size_t bytes)
{
    const lk__cuda_module *module;
    if (lk__cuda_load(NULL, &module) >= 0) return module->devices(why, bytes);
    snprintf(why, bytes, "%s", lk_context_error(NULL));
    return 0;
}

bool lk__cuda_mps(const lk_context *context)
{
    char        path[PATH_MAX];
    const char *directory = lk__environment_text(context, LK__ENV_CUDA_MPS_PIPE_DIRECTORY);
    snprintf(path, sizeof path, "%s/control", directory ? directory : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

static void write_line(lk_text_callback write, void *user, const char *text)
{
    write(user, text, strlen(text));
    write(user, "\n", 1);
}

static lk_status report_lines(lk_text_callback write, void *user)
{
    const lk__cuda_module *module;
    char                   text[512];
    lk_status              status = lk__cuda_load(NULL, &module);
    if (status < 0) return status;
    for (int i = 0; module->line(i, text, sizeof text); i++) write_line(write, user, text);
    write_line(
        write, user,
        lk__cuda_mps(NULL)
            ? "MPS: its control daemon is running"
            : "MPS: not running; when ranks share a GPU (--share-device), start it with nvidia-cuda-mps-control -d");
    return LK_OK;
}

/* What a CUDA context and its libraries (cuBLASLt, cuDNN) hold, measured on an NVIDIA H200 with `lockstep plan --device
 * cuda`: shown where there is no GPU on which to measure. */
static const size_t H200_CONTEXT = (size_t)524 << 20, H200_LIBRARIES = (size_t)12 << 20;

static lk_status find_overhead(int number, lk_device_memory_overhead *overhead)
{
    const lk__cuda_module *module;
    char                   why[512];
    lk_status              status = lk__cuda_load(NULL, &module);
    if (status < 0) return status;
    overhead->measured =
        module->devices(why, sizeof why) > number && module->overhead(number, &overhead->context, &overhead->libraries);
    if (!overhead->measured) overhead->context = H200_CONTEXT, overhead->libraries = H200_LIBRARIES;
    return LK_OK;
}

const lk__device_entry lk__device_entry_cuda = {.name = "cuda",
                                                .text = "an NVIDIA GPU",
                                                .help = "cuda (the GPU of this rank), cuda:N",
                                                .numbered = true,
                                                .title = "CUDA",
                                                .unit = "GPU",
                                                .built_with = "nvcc",
                                                .built = LK_BUILT_CUDA,
                                                .reference = "an NVIDIA H200",
                                                .preference = 2,
                                                .load = load_backend,
                                                .count = count_gpus,
                                                .report = report_lines,
                                                .overhead = find_overhead};
