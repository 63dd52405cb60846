/* emulated_host.h - the part of CUDA's runtime interface that the host calls. Work of a stream is kept until somebody
 * waits for it, the latest time at which a GPU may do it: a wait that is missing, or memory that is reused too early,
 * then gives wrong results (runtime.cpp).
 *
 * Environment:
 *   LK_CUDA_EMULATED_FAIL=WHAT:N[:ERROR]  the N-th call of a kind fails: malloc, host, copy, launch, sync, stream,
 *                                         event, capture, instantiate, graph, export, map; devices:N sets how many
 *                                         there are; ERROR is CUDA's number
 *   LK_CUDA_EMULATED_GPUS=N               GPUs of the host, each with a UUID and an address on the PCI bus; a process
 *                                         sees those in CUDA_VISIBLE_DEVICES (numbers or UUIDs), which otherwise has no
 *                                         effect
 *   LK_CUDA_EMULATED_MEMORY=BYTES         of the device, default 16 GiB
 *   LK_CUDA_EMULATED_EAGER=1              work is done when it is queued, so that a debugger shows who queued it
 *   LK_CUDA_EMULATED_CUPTI=1              there is a CUPTI, which reports kernels, copies and fills (cupti.cpp)
 *   LK_CUDA_EMULATED_PEERS=drop           what this process writes to memory of another one never arrives there, as
 *                                         with some IOMMUs
 *   LK_CUDA_EMULATED_ORDER=0…3            the order of threads (bit 0: from the last) and blocks (bit 1) of every
 *                                         kernel, which otherwise changes from launch to launch */
#ifndef LK_EMULATED_HOST_H
#define LK_EMULATED_HOST_H

#include "emulated_types.h"

#define CUDART_VERSION 12040
#define CUDART_CB

/* The numbers are CUDA's. */
#define LK_EMULATED_ERRORS(X)                                                                                 \
    X(cudaSuccess, 0, "no error")                                                                             \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                           \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                          \
    X(cudaErrorInitializationError, 3, "initialization error")                                                \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                                                    \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                     \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                               \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")        \
    X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                   \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                          \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                           \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                  \
    X(cudaErrorMapBufferObjectFailed, 205, "mapping of buffer object failed")                                 \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")       \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                                  \
    X(cudaErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.")    \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                         \
    X(cudaErrorNotReady, 600, "device not ready")                                                             \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                               \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                          \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                 \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                                   \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                               \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                  \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                              \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                                  \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                  \
    X(cudaErrorSystemNotReady, 802, "system not yet initialized")                                             \
    X(cudaErrorSystemDriverMismatch, 803, "system has unsupported display driver / cuda driver combination")  \
    X(cudaErrorCompatNotSupportedOnDevice, 804, "forward compatibility was attempted on non supported HW")    \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")             \
    X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")      \
    X(cudaErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences")    \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")           \
    X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                              \
    X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")        \
    X(cudaErrorStreamCaptureImplicit, 906,                                                                    \
      "operation would make the legacy stream depend on a capturing blocking stream")                         \
    X(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
    X(cudaErrorUnknown, 999, "unknown error")
enum cudaError {
#define LK_EMULATED_ERROR(name, number, text) name = number,
    LK_EMULATED_ERRORS(LK_EMULATED_ERROR)
#undef LK_EMULATED_ERROR
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaComputeMode {
    cudaComputeModeDefault,
    cudaComputeModeExclusive,
    cudaComputeModeProhibited,
    cudaComputeModeExclusiveProcess
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaDeviceAttr { /* CUDA's numbers */
                      cudaDevAttrMaxThreadsPerBlock = 1,
                      cudaDevAttrMaxSharedMemoryPerBlock = 8,
                      cudaDevAttrWarpSize = 10,
                      cudaDevAttrClockRate = 13,
                      cudaDevAttrMultiProcessorCount = 16,
                      cudaDevAttrIntegrated = 18,
                      cudaDevAttrComputeMode = 20,
                      cudaDevAttrConcurrentKernels = 31,
                      cudaDevAttrEccEnabled = 32,
                      cudaDevAttrMemoryClockRate = 36,
                      cudaDevAttrGlobalMemoryBusWidth = 37,
                      cudaDevAttrL2CacheSize = 38,
                      cudaDevAttrMaxThreadsPerMultiProcessor = 39,
                      cudaDevAttrAsyncEngineCount = 40,
                      cudaDevAttrUnifiedAddressing = 41,
                      cudaDevAttrComputeCapabilityMajor = 75,
                      cudaDevAttrComputeCapabilityMinor = 76,
                      cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
                      cudaDevAttrPageableMemoryAccess = 88,
                      cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

typedef struct CUstream_st    *cudaStream_t;
typedef struct CUevent_st     *cudaEvent_t;
typedef struct CUgraph_st     *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef void (*cudaHostFn_t)(void *data);

enum cudaGraphNodeType { /* CUDA's numbers */
                         cudaGraphNodeTypeKernel = 0,
                         cudaGraphNodeTypeMemcpy = 1,
                         cudaGraphNodeTypeMemset = 2,
                         cudaGraphNodeTypeHost = 3,
                         cudaGraphNodeTypeEmpty = 5
};

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define cudaStreamDefault 0x0u
#define cudaStreamNonBlocking 0x1u
#define cudaEventDefault 0x0u
#define cudaEventBlockingSync 0x1u
#define cudaEventDisableTiming 0x2u
#define cudaEventRecordDefault 0x0u
#define cudaEventWaitDefault 0x0u
#define cudaHostAllocDefault 0x0u
#define cudaHostAllocPortable 0x1u
#define cudaHostAllocMapped 0x2u
#define cudaHostAllocWriteCombined 0x4u
#define cudaHostRegisterDefault 0x0u
#define cudaDeviceScheduleAuto 0x0u
#define cudaDeviceScheduleSpin 0x1u
#define cudaDeviceScheduleYield 0x2u
#define cudaDeviceScheduleBlockingSync 0x4u
#define cudaGraphInstantiateFlagAutoFreeOnLaunch 1u

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char       name[256];
    cudaUUID_t uuid;
    size_t     totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int        regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int        major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, asyncEngineCount;
    int        integrated, canMapHostMemory, concurrentKernels, ECCEnabled, unifiedAddressing;
    int        pciBusID, pciDeviceID, pciDomainID, memoryBusWidth, l2CacheSize;
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int            device;
    void          *devicePointer, *hostPointer;
};

const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);

cudaError_t                                     lk__emulated_malloc(void **memory, size_t bytes);
cudaError_t                                     lk__emulated_malloc_host(void **memory, size_t bytes);
template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return lk__emulated_malloc((void **)memory, bytes);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **memory, size_t bytes, unsigned flags = 0)
{
    (void)flags;
    return lk__emulated_malloc_host((void **)memory, bytes);
}
template <typename T> static inline cudaError_t cudaHostAlloc(T **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return lk__emulated_malloc_host((void **)memory, bytes);
}
cudaError_t cudaFree(void *memory);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory);

/* Memory that other processes map. An exported allocation becomes shared memory of the host at its address. */
#define cudaIpcMemLazyEnablePeerAccess 0x1u
struct cudaIpcMemHandle_t {
    char reserved[64];
};
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported = 3 };
static inline cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int, int)
{
    *value = 1;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemset(void *memory, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void *memory, int byte, size_t bytes, cudaStream_t stream = 0);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream = 0, unsigned flags = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

cudaError_t                                     lk__emulated_function_attribute(cudaFuncAttribute attribute, int value);
template <typename F> static inline cudaError_t cudaFuncSetAttribute(F *, cudaFuncAttribute attribute, int value)
{
    return lk__emulated_function_attribute(attribute, value);
}
/* As many as fit by threads and shared memory. */
template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *, int threads, size_t shared)
{
    int by_threads = threads > 0 ? 2048 / threads : 0, by_memory = shared ? (int)(227 * 1024 / shared) : by_threads;
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    return cudaSuccess;
}

#endif
