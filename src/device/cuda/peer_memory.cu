/* peer_memory.cu - memory that the processes of other ranks map, by CUDA's IPC handles; the check that a peer's writes
 * arrive; and the module's functions for device/peers.h. */
#include "device/cuda/backend.h"
#include "device/cuda/peer_launch.h"

static_assert(sizeof(cudaIpcMemHandle_t) == LK__PEERS_HANDLE, "a handle");

enum { GRANULE = 2 << 20 }; /* bytes: a handle is one of the whole allocation of the driver, which has so many */

static lk_status allocate_shared(lk__device *device, size_t bytes, void **memory, lk__peers_handle *handle)
{
    cudaIpcMemHandle_t ipc;
    size_t             whole = (size_t)cuda_tiles((int64_t)bytes, GRANULE) * GRANULE;
    *memory = NULL;
    lk_status status = lk__cuda_check(device, cudaMalloc(memory, whole), "allocating memory for other ranks");
    if (status >= 0)
        status = lk__cuda_check(device, cudaIpcGetMemHandle(&ipc, *memory), "sharing memory with other ranks");
    cudaStream_t stream = status >= 0 ? lk__cuda_stream_of(device, NULL) : NULL;
    if (status >= 0) status = lk__cuda_end(device, NULL, cudaMemsetAsync(*memory, 0, whole, stream), "filling memory");
    if (status >= 0) memcpy(handle->bytes, &ipc, sizeof ipc);
    if (status < 0 && *memory) {
        (void)cudaFree(*memory);
        *memory = NULL;
    }
    return status;
}

static void free_shared(lk__device *device, void *memory)
{
    (void)device;
    (void)cudaFree(memory);
}

/* A GPU without IPC (MIG, some containers) does not give a handle. */
static lk_status check_sharing(lk__device *device)
{
    lk__peers_handle handle;
    void            *memory;
    lk_status        status = allocate_shared(device, 1, &memory, &handle);
    if (status >= 0) free_shared(device, memory);
    return status;
}

/* The ranks' gates need atomics on each other's memory. */
static lk_status check_atomics(lk__device *device, const void *memory)
{
    cudaPointerAttributes attributes;
    int                   own = ((lk__cuda_device *)device)->number, native = 1;
    lk_status status = lk__cuda_check(device, cudaPointerGetAttributes(&attributes, memory), "finding a peer's GPU");
    if (status < 0 || attributes.device == own || attributes.device < 0) return status;
    status = lk__cuda_check(
        device, cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, own, attributes.device),
        "querying peer access between GPUs");
    if (status < 0 || native) return status;
    return lk__cuda_host.fail(device->context, LK_EUNSUPPORTED,
                              "GPUs %d and %d do not support atomics on each other's memory", own, attributes.device);
}

static void unmap_shared(lk__device *device, void *memory)
{
    (void)device;
    (void)cudaIpcCloseMemHandle(memory);
}

static lk_status map_shared(lk__device *device, const lk__peers_handle *handle, size_t bytes, void **memory)
{
    cudaIpcMemHandle_t ipc;
    (void)bytes;
    *memory = NULL;
    memcpy(&ipc, handle->bytes, sizeof ipc);
    lk_status status = lk__cuda_check(device, cudaIpcOpenMemHandle(memory, ipc, cudaIpcMemLazyEnablePeerAccess),
                                      "mapping a peer's memory");
    if (status >= 0) status = check_atomics(device, *memory);
    if (status < 0 && *memory) {
        unmap_shared(device, *memory);
        *memory = NULL;
    }
    return status;
}

static lk_status load_kernels(lk__device *device)
{
    lk__peers_group *stopped = NULL;
    cudaStream_t     stream = lk__cuda_stream_of(device, NULL);
    lk_status status = lk__cuda_check(device, cudaMalloc((void **)&stopped, sizeof *stopped), "allocating memory");
    if (status >= 0) /* `failed` is not 0 then */
        status = lk__cuda_check(device, cudaMemsetAsync(stopped, 1, sizeof *stopped, stream), "filling memory");
    if (status >= 0) status = lk__peer_load_kernels(device, stream, stopped);
    if (status >= 0) status = lk__cuda_end(device, NULL, cudaSuccess, "loading the kernels of collectives");
    if (stopped) (void)cudaFree(stopped);
    return status;
}

/* ---- patterns ---- */

static lk_status write_pattern(lk__device *device, void *memory, size_t words, uint32_t seed)
{
    cudaStream_t stream = lk__cuda_stream_of(device, NULL);
    LAUNCH(write_pattern_kernel, cuda_blocks((int64_t)words, PEER_THREADS), PEER_THREADS, 0, stream, (uint32_t *)memory,
           (int64_t)words, seed);
    return lk__cuda_end(device, NULL, cudaGetLastError(), "writing a pattern");
}

static lk_status check_pattern(lk__device *device, const void *memory, size_t words, uint32_t seed, bool *same)
{
    int32_t *word = lk__cuda_word(device), differs = 0;
    *same = false;
    if (!word) return LK_ENOMEM;
    cudaStream_t stream = lk__cuda_stream_of(device, NULL);
    LAUNCH(check_pattern_kernel, cuda_blocks((int64_t)words, PEER_THREADS), PEER_THREADS, 0, stream,
           (const uint32_t *)memory, (int64_t)words, seed, word);
    cudaError_t error = cudaMemcpyAsync(&differs, word, sizeof differs, cudaMemcpyDeviceToHost, stream);
    lk_status   status = lk__cuda_end(device, NULL, error, "checking a pattern");
    *same = status >= 0 && !differs;
    return status;
}

/* ---- processes that share a GPU ---- */

static const char *find_turns(const lk__device *device)
{
    if (lk__cuda_host.mps(device->context)) return NULL;
    return "without MPS, so their kernels take turns: start the MPS daemon with `nvidia-cuda-mps-control -d` to let "
           "them run at the same time and exchange data directly";
}

/* An error that poisons the context is what every call returns from then on. */
static bool is_context_lost(lk__device *device)
{
    const lk__cuda_device *c = (lk__cuda_device *)device;
    cudaError_t            error = cudaSetDevice(c->number);
    if (error == cudaSuccess) error = cudaStreamQuery(c->alone);
    if (error == cudaSuccess || error == cudaErrorNotReady) return false;
    (void)cudaGetLastError();
    return true;
}

const lk__device_peers lk__cuda_peers = {check_sharing,          allocate_shared, free_shared,    map_shared,
                                         unmap_shared,           load_kernels,    write_pattern,  check_pattern,
                                         lk__cuda_peers_enqueue, find_turns,      is_context_lost};
