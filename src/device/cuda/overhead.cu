/* overhead.cu - the memory that a CUDA context and the libraries need on a GPU in addition to what programs allocate.
 * Before there is a context, only NVML, the driver's management library, can report how much memory is used, so it is
 * queried before and after. */
#include "device/cuda/backend.h"
#include "device/cuda/dnn.h"

#include <dlfcn.h>
#include <string.h>

/* NVML's interface, as its manual has it; the header need not be installed. */
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef void *nvml_device;

typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *pci, nvml_device *device);
    int (*memory)(nvml_device device, nvml_memory *memory);
    nvml_device device;
} nvml;

static bool find_function(nvml *n, const char *name, void *to)
{
    void *address = dlsym(n->library, name);
    memcpy(to, &address, sizeof address);
    return address != NULL;
}

static void close_nvml(nvml *n)
{
    if (n->device) (void)n->shutdown();
    if (n->library) dlclose(n->library);
    *n = nvml{};
}

static bool open_nvml(nvml *n, int number)
{
    char pci[32] = "";
    *n = nvml{};
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    bool found = n->library && cudaDeviceGetPCIBusId(pci, sizeof pci, number) == cudaSuccess &&
                 find_function(n, "nvmlInit_v2", &n->init) && find_function(n, "nvmlShutdown", &n->shutdown) &&
                 find_function(n, "nvmlDeviceGetHandleByPciBusId_v2", &n->find) &&
                 find_function(n, "nvmlDeviceGetMemoryInfo", &n->memory) && n->init() == 0;
    if (found && n->find(pci, &n->device) != 0) {
        (void)n->shutdown();
        n->device = NULL;
    }
    (void)cudaGetLastError();
    if (!n->device) close_nvml(n);
    return n->device != NULL;
}

static bool used_bytes(const nvml *n, unsigned long long *used)
{
    nvml_memory memory;
    if (n->memory(n->device, &memory) != 0) return false;
    *used = memory.used;
    return true;
}

/* A device of the libraries alone: with a handle of each that is there. */
static void load_libraries(lk__cuda_device *device)
{
    char why[256];
    (void)lk__cuda_blas_load(device);
#ifdef LK__CUDA_DNN
    if (lk__dnn_library_version(why, sizeof why)) (void)lk__cuda_dnn_of(device);
#else
    (void)why;
#endif
}

bool lk__cuda_measure_held(int number, size_t *context, size_t *libraries)
{
    nvml               n;
    lk__cuda_device    device = {};
    unsigned long long before = 0, opened = 0, loaded = 0;
    device.base.backend = &lk__cuda_backend;
    device.number = number;
    if (!open_nvml(&n, number)) return false;
    bool measured = used_bytes(&n, &before) && cudaSetDevice(number) == cudaSuccess && cudaFree(NULL) == cudaSuccess &&
                    used_bytes(&n, &opened);
    if (measured) load_libraries(&device);
    measured = measured && used_bytes(&n, &loaded);
    lk__cuda_blas_free(&device);
    lk__cuda_dnn_free(device.dnn);
    close_nvml(&n);
    (void)cudaGetLastError();
    /* Nothing was added: the process had a context before. Less: another process has freed memory meanwhile. */
    if (!measured || opened <= before || loaded < opened) return false;
    *context = (size_t)(opened - before);
    *libraries = (size_t)(loaded - opened);
    return true;
}
