/* cuda.cu - an NVIDIA GPU as a device: memory, copies, streams, events and recorded graphs.
 *
 * The device can be opened without a GPU or a driver, so that plans can be made on any machine; the first allocation
 * then fails with the reason. Calls without a stream wait: for all work of the device's streams before they begin, and
 * for their own. None of them uses CUDA's default streams, since work that other threads put on those would become part
 * of what a thread records. */
#include "device/cuda/cuda.h"

#include "device/cuda/autotuning.h"
#include "device/cuda/backend.h"
#include "device/cuda/dnn.h"
#include "device/cuda/spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

lk__cuda_library lk__cuda_host;

bool lk__cuda_early;

/* What CUDA and its libraries hold is not the plan's memory, and neither is what describes it: it is not accounted. */
struct lk__device_graph {
    cudaGraphExec_t graph;
};

static lk__cuda_device *as_cuda(lk__device *d) { return (lk__cuda_device *)d; }

/* ---- calls without a stream ---- */

/* The device's own stream, behind all that was queued on the others. */
static cudaStream_t begin_alone(lk__device *d)
{
    lk__cuda_device *c = as_cuda(d);
    for (lk__device_stream *s = c->streams; s; s = s->next) (void)cudaStreamSynchronize(s->stream); /* errors stay */
    return c->alone;
}

cudaStream_t lk__cuda_stream_of(lk__device *d, lk__device_stream *s) { return s ? s->stream : begin_alone(d); }

lk_status lk__cuda_end(lk__device *d, lk__device_stream *s, cudaError_t error, const char *what)
{
    if (error == cudaSuccess && !s) error = cudaStreamSynchronize(as_cuda(d)->alone);
    return lk__cuda_check(d, error, what);
}

/* ---- failures ---- */

/* What the user can do about an error of the driver; "" where its own text must do. */
static const char *advice(cudaError_t error)
{
    switch (error) {
    case cudaErrorInsufficientDriver: return ": the driver is missing or too old for this build; see `nvidia-smi`";
    case cudaErrorNoDevice: return ": the driver finds no GPU; see `nvidia-smi` and CUDA_VISIBLE_DEVICES";
    case cudaErrorDevicesUnavailable:
        return ": the GPU is busy, or in exclusive mode and used by another process; see `nvidia-smi`";
    case cudaErrorUnknown:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
        return ": the GPU is not responding; see `nvidia-smi`, and `dmesg` for Xid errors";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert: return ": a kernel before this point failed; run again with --device-sync to see which";
    default: return "";
    }
}

lk_status lk__cuda_check(lk__device *d, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return LK_OK;
    (void)cudaGetLastError(); /* of a call that failed by itself; what poisons the context stays */
    return lk__cuda_host.fail(d->context, error == cudaErrorMemoryAllocation ? LK_ENOMEM : LK_EIO,
                              "GPU %d: %s failed: %s%s", as_cuda(d)->number, what, cudaGetErrorString(error),
                              advice(error));
}

lk_status lk__cuda_launched(const lk__kernel_call *call)
{
    return lk__cuda_end(call->device, call->stream, cudaPeekAtLastError(), "a kernel");
}

static lk_status check_gpu(lk__device *d)
{
    const lk__cuda_device *c = as_cuda(d);
    if (c->number < 0) return lk__cuda_host.fail(d->context, LK_EUNSUPPORTED, "device cuda: %s", c->why);
    return lk__cuda_check(d, cudaSetDevice(c->number), "selecting it");
}

/* ---- memory ---- */

static void *cuda_alloc(lk__device *d, lk_memory kind, size_t bytes)
{
    void *memory = NULL;
    if (check_gpu(d) < 0) return NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&available, &total);
        lk__cuda_host.fail(d->context, LK_ENOMEM,
                           "GPU %d is out of memory: cannot allocate %.1f MiB%s%s; %.1f of its %.1f MiB is free",
                           as_cuda(d)->number, (double)bytes / 1048576.0, kind == LK_MEMORY_OTHER ? "" : " for ",
                           kind == LK_MEMORY_OTHER ? "" : lk__cuda_host.memory_name(kind),
                           (double)available / 1048576.0, (double)total / 1048576.0);
        return NULL;
    }
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, as_cuda(d)->alone);
    if (lk__cuda_end(d, NULL, error, "allocating memory") < 0) return NULL;
    lk__cuda_host.account_allocation(d->context, kind, bytes);
    return memory;
}

static void cuda_free(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    (void)cudaFree(memory); /* waits for what uses it */
    lk__cuda_host.account(d->context, kind, -(ptrdiff_t)bytes);
}

static void cuda_available(lk__device *d, size_t *available, size_t *total)
{
    *available = *total = 0;
    if (as_cuda(d)->number < 0 || check_gpu(d) < 0) return;
    if (cudaMemGetInfo(available, total) != cudaSuccess) (void)cudaGetLastError();
}

static void *cuda_alloc_host(lk__device *d, lk_memory kind, size_t bytes)
{
    void *memory = NULL;
    if (check_gpu(d) < 0 ||
        lk__cuda_check(d, cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "allocating pinned memory") < 0)
        return NULL;
    memset(memory, 0, bytes);
    lk__cuda_host.account_allocation(d->context, kind, bytes);
    return memory;
}

static void cuda_free_host(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    (void)cudaFreeHost(memory);
    lk__cuda_host.account(d->context, kind, -(ptrdiff_t)bytes);
}

static void cuda_pin(lk__device *d, void *memory, size_t bytes)
{
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    lk__cuda_host.log(d->context, LK_LOG_DEBUG,
                      "%.1f MiB of the memory through which ranks exchange data could not be pinned: %s",
                      (double)bytes / 1048576.0, cudaGetErrorString(error));
}

static void cuda_unpin(lk__device *, void *memory)
{
    if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();
}

static lk_status copy_bytes(lk__device *d, lk__device_stream *s, void *to, const void *from, size_t bytes,
                            cudaMemcpyKind kind, const char *what)
{
    if (bytes == 0) return LK_OK;
    return lk__cuda_end(d, s, cudaMemcpyAsync(to, from, bytes, kind, lk__cuda_stream_of(d, s)), what);
}

static lk_status cuda_copy_in(lk__device *d, lk__device_stream *s, void *to, const void *host, size_t bytes)
{
    return copy_bytes(d, s, to, host, bytes, cudaMemcpyHostToDevice, "a copy to its memory");
}

static lk_status cuda_copy_out(lk__device *d, lk__device_stream *s, void *host, const void *from, size_t bytes)
{
    return copy_bytes(d, s, host, from, bytes, cudaMemcpyDeviceToHost, "a copy from its memory");
}

static lk_status cuda_copy(lk__device *d, lk__device_stream *s, void *to, const void *from, size_t bytes)
{
    return copy_bytes(d, s, to, from, bytes, cudaMemcpyDeviceToDevice, "a copy within its memory");
}

static lk_status cuda_fill(lk__device *d, lk__device_stream *s, void *memory, int byte, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    return lk__cuda_end(d, s, cudaMemsetAsync(memory, byte, bytes, lk__cuda_stream_of(d, s)), "filling memory");
}

/* ---- streams, events, graphs ---- */

static lk_status cuda_stream_create(lk__device *d, lk__device_stream **stream)
{
    lk_status status = check_gpu(d);
    *stream = NULL;
    if (status < 0) return status;
    lk__device_stream *s = (lk__device_stream *)lk__cuda_host.alloc(d->context, LK_MEMORY_OTHER, sizeof *s);
    if (!s) return LK_ENOMEM;
    cudaError_t error = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    if ((status = lk__cuda_check(d, error, "creating a stream")) < 0) {
        lk__cuda_host.free(d->context, LK_MEMORY_OTHER, s, sizeof *s);
        return status;
    }
    s->next = as_cuda(d)->streams;
    as_cuda(d)->streams = s;
    *stream = s;
    return LK_OK;
}

static void cuda_stream_free(lk__device *d, lk__device_stream *s)
{
    if (!s) return;
    lk__device_stream **at = &as_cuda(d)->streams;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    (void)cudaStreamSynchronize(s->stream);
    (void)cudaStreamDestroy(s->stream);
    lk__cuda_host.free(d->context, LK_MEMORY_OTHER, s, sizeof *s);
}

static lk_status cuda_stream_wait(lk__device *d, lk__device_stream *s)
{
    return lk__cuda_check(d, cudaStreamSynchronize(lk__cuda_stream_of(d, s)), "waiting for its work");
}

static lk_status cuda_stream_query(lk__device *d, lk__device_stream *s)
{
    cudaError_t error = cudaStreamQuery(s->stream);
    return error == cudaErrorNotReady ? LK_END : lk__cuda_check(d, error, "waiting for its work");
}

static lk_status cuda_event_create(lk__device *d, lk__device_event **event)
{
    lk_status status = check_gpu(d);
    *event = NULL;
    if (status < 0) return status;
    lk__device_event *e = (lk__device_event *)lk__cuda_host.alloc(d->context, LK_MEMORY_OTHER, sizeof *e);
    if (!e) return LK_ENOMEM;
    status = lk__cuda_check(d, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming), "creating an event");
    if (status < 0)
        lk__cuda_host.free(d->context, LK_MEMORY_OTHER, e, sizeof *e);
    else
        *event = e;
    return status;
}

static void cuda_event_free(lk__device *d, lk__device_event *e)
{
    if (!e) return;
    (void)cudaEventDestroy(e->event);
    lk__cuda_host.free(d->context, LK_MEMORY_OTHER, e, sizeof *e);
}

static lk_status cuda_event_record(lk__device *d, lk__device_event *e, lk__device_stream *s)
{
    return lk__cuda_check(d, cudaEventRecord(e->event, s->stream), "recording an event");
}

static lk_status cuda_event_wait(lk__device *d, lk__device_event *e, lk__device_stream *s)
{
    return lk__cuda_check(d, cudaStreamWaitEvent(s->stream, e->event, 0), "waiting for an event");
}

static lk_status cuda_event_sync(lk__device *d, lk__device_event *e)
{
    return lk__cuda_check(d, cudaEventSynchronize(e->event), "waiting for its work");
}

static lk_status cuda_record_begin(lk__device *d, lk__device_stream *s)
{
    return lk__cuda_check(d, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed), "recording a graph");
}

static lk_status cuda_record_end(lk__device *d, lk__device_stream *s, lk__device_graph **graph)
{
    cudaGraph_t       recorded = NULL;
    lk__device_graph *g = NULL;
    lk_status         status = lk__cuda_check(d, cudaStreamEndCapture(s->stream, &recorded), "recording a graph");
    *graph = NULL;
    if (status >= 0 && !(g = (lk__device_graph *)calloc(1, sizeof *g))) status = LK_ENOMEM;
    if (status >= 0) status = lk__cuda_check(d, cudaGraphInstantiate(&g->graph, recorded, 0), "instantiating a graph");
    if (recorded) (void)cudaGraphDestroy(recorded);
    if (status < 0) free(g);
    if (status >= 0) *graph = g;
    return status;
}

static lk_status cuda_graph_run(lk__device *d, lk__device_stream *s, lk__device_graph *g)
{
    return lk__cuda_check(d, cudaGraphLaunch(g->graph, s->stream), "launching a graph");
}

static void cuda_graph_free(lk__device *d, lk__device_graph *g)
{
    if (!g) return;
    (void)d;
    (void)cudaGraphExecDestroy(g->graph);
    free(g);
}

/* ---- hashes ---- */

static lk_status cuda_hash(lk__device *d, const void *memory, size_t bytes, uint64_t seed, uint64_t *hash)
{
    void     *copy = bytes ? lk__cuda_host.alloc(d->context, LK_MEMORY_OTHER, bytes) : NULL;
    lk_status status = bytes && !copy ? LK_ENOMEM : LK_OK;
    if (status >= 0) status = cuda_copy_out(d, NULL, copy, memory, bytes);
    if (status >= 0) status = cuda_stream_wait(d, NULL);
    if (status >= 0) *hash = lk__cuda_host.hash64(copy, bytes, seed);
    lk__cuda_host.free(d->context, LK_MEMORY_OTHER, copy, bytes);
    return status;
}

/* ---- what the planner asks ---- */

static const lk__device_fusion fusions[] = {
    {LK__OP_linear, LK__FUSION_FUNCTION, LK__FUNCTION_BIT(LK__RELU), 0},
    {LK__OP_conv2d, LK__FUSION_FUNCTION, LK__FUNCTION_BIT(LK__RELU), 0},
    {LK__OP_batch_norm, LK__FUSION_FUNCTION, LK__FUNCTION_BIT(LK__RELU), 0},
    {LK__OP_batch_norm_eval, LK__FUSION_FUNCTION, LK__FUNCTION_BIT(LK__RELU), 0},
    {LK__OP_conv2d, LK__FUSION_MAX_POOL, 0, 0},
    {LK__OP_batch_norm, LK__FUSION_SUM, 0, 0},
    {LK__OP_batch_norm_eval, LK__FUSION_SUM, 0, 0},
    {LK__OP_layer_norm, LK__FUSION_OPERAND, 0, 0},
    {LK__OP_rms_norm, LK__FUSION_OPERAND, 0, 0},
    {LK__OP_layer_norm_grad, LK__FUSION_SUM, 0, 0},
    {LK__OP_rms_norm_grad, LK__FUSION_SUM, 0, 0},
    {LK__OP_linear_grad_input, LK__FUSION_SUM, 0, 0},
    {LK__OP_linear, LK__FUSION_KEPT, LK__FUNCTION_BIT(LK__GELU_TANH), 1u << LK_BF16},
    {LK__OP_linear_grad_input, LK__FUSION_GRADIENT, LK__FUNCTION_BIT(LK__GELU_TANH), 1u << LK_BF16},
    {LK__OP_COUNT, (lk__fusion_kind)0, 0, 0},
};

/* ---- opening ---- */

/* The first of these environment variables that is set to a number; -1: none. */
static int local_variable(const lk_context *context, const lk__environment_id *ids)
{
    for (; *ids != LK__ENV_COUNT; ids++) {
        const char *text = lk__cuda_host.environment(context, *ids);
        if (text && *text >= '0' && *text <= '9') return atoi(text);
    }
    return -1;
}

int lk__cuda_count(char *why, size_t bytes)
{
    int         count = 0, version = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
        snprintf(why, bytes, "this machine has no NVIDIA driver (libcuda.so.1 was not found)");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, bytes,
                 "the NVIDIA driver is too old: it supports CUDA %d.%d, and this build needs %d.%d or later",
                 version / 1000, version % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (error == cudaSuccess)
        snprintf(why, bytes, "the driver finds no GPU; see `nvidia-smi` and CUDA_VISIBLE_DEVICES");
    else
        snprintf(why, bytes, "the driver finds no GPU: %s%s", cudaGetErrorString(error), advice(error));
    return 0;
}

static bool variable_is_set(const lk_context *context, lk__environment_id id)
{
    const char *text = lk__cuda_host.environment(context, id);
    return text && *text && strcmp(text, "0") != 0;
}

/* Which GPU: the number, else the local rank's. A process may see only some of the host's GPUs, so that several ranks
 * have the same number: comm/devices.h compares their UUIDs when ranks join, which a context of CUDA precedes. Ranks
 * that -n of a command started all see the same, and more of them than GPUs fail here. */
static lk_status choose_gpu(lk_context *context, lk__cuda_device *c, int number)
{
    static const lk__environment_id ranks[] = {LK__ENV_LOCAL_RANK, LK__ENV_OMPI_COMM_WORLD_LOCAL_RANK,
                                               LK__ENV_MPI_LOCALRANKID, LK__ENV_SLURM_LOCALID, LK__ENV_COUNT};
    static const lk__environment_id sizes[] = {LK__ENV_LOCAL_WORLD_SIZE, LK__ENV_OMPI_COMM_WORLD_LOCAL_SIZE,
                                               LK__ENV_MPI_LOCALNRANKS, LK__ENV_SLURM_NTASKS_PER_NODE, LK__ENV_COUNT};
    int count = lk__cuda_count(c->why, sizeof c->why), size = local_variable(context, sizes);
    int rank = local_variable(context, ranks);
    c->number = -1;
    if (count == 0) return LK_OK;
    if (number >= count)
        return lk__cuda_host.fail(context, LK_EINVAL, "device cuda:%d: this machine has %d GPU%s, numbered from 0",
                                  number, count, count == 1 ? "" : "s");
    c->base.may_share = number >= 0 || variable_is_set(context, LK__ENV_LOCKSTEP_SHARE_DEVICE);
    if (size > count && !c->base.may_share && variable_is_set(context, LK__ENV_LOCKSTEP_STARTED_RANKS))
        return lk__cuda_host.fail(context, LK_EINVAL,
                                  "%d ranks on this host need one GPU each, but the host has %d: start at most %d, or "
                                  "let ranks share one with --share-device (for tests and small models)",
                                  size, count, count);
    c->number = number >= 0 ? number : rank > 0 ? rank % count : 0;
    return LK_OK;
}

/* Code of GPUs before 9.0, compiled for this one by its driver, does not wait for the kernel before. */
#if defined(LK_CUDA_EMULATED)
static bool code_waits() { return true; }
#else
static __global__ void probe_code() {}
static bool            code_waits()
{
    cudaFuncAttributes probe = {};
    return cudaFuncGetAttributes(&probe, probe_code) == cudaSuccess && probe.ptxVersion >= 90;
}
#endif

static bool starts_early(const lk_context *context, int capability)
{
    const char *text = lk__cuda_host.environment(context, LK__ENV_LOCKSTEP_CUDA_OVERLAP); /* 0: to compare */
    return capability >= 90 && !(text && strcmp(text, "0") == 0) && code_waits();
}

static lk_status cuda_open(lk_context *context, int number, lk__device **device)
{
    lk__cuda_device *c = (lk__cuda_device *)lk__cuda_host.alloc(context, LK_MEMORY_OTHER, sizeof *c);
    *device = NULL;
    if (!c) return LK_ENOMEM;
    c->base.backend = &lk__cuda_backend;
    c->base.context = context;
    c->capability = 90;
    c->tf32 = variable_is_set(context, LK__ENV_LOCKSTEP_TF32);
    const char *measures = lk__cuda_host.environment(
        context, LK__ENV_LOCKSTEP_CUDA_MEASURE); /* 0: for tests, which have hundreds of shapes */
    c->base.by_heuristic = measures && strcmp(measures, "0") == 0;
    lk_status      status = choose_gpu(context, c, number);
    cudaDeviceProp properties;
    if (status >= 0 && c->number >= 0) {
        status = lk__cuda_check(&c->base, cudaGetDeviceProperties(&properties, c->number), "reading its properties");
        if (status >= 0) c->capability = 10 * properties.major + properties.minor;
        if (status >= 0) c->processors = properties.multiProcessorCount;
        if (status >= 0) memcpy(c->base.uuid, properties.uuid.bytes, sizeof c->base.uuid);
        if (status >= 0 && c->capability < 80)
            status = lk__cuda_host.fail(context, LK_EUNSUPPORTED,
                                        "GPU %d (%s) has compute capability %d.%d; 8.0 or later is needed", c->number,
                                        properties.name, properties.major, properties.minor);
        if (status >= 0) status = check_gpu(&c->base);
        if (status >= 0) lk__cuda_early = starts_early(context, c->capability);
        if (status >= 0)
            status = lk__cuda_check(&c->base, cudaStreamCreateWithFlags(&c->alone, cudaStreamNonBlocking),
                                    "creating a stream");
    }
    if (status < 0)
        lk__cuda_host.free(context, LK_MEMORY_OTHER, c, sizeof *c);
    else
        *device = &c->base;
    return status;
}

static void cuda_close(lk__device *d)
{
    lk__cuda_device *c = as_cuda(d);
    lk__cuda_blas_free(c);
    lk__cuda_dnn_free(c->dnn);
    lk__cuda_spans_free(c);
    lk__cuda_tuning_free(c->tuning);
    if (c->word) (void)cudaFree(c->word);
    if (c->alone) (void)cudaStreamDestroy(c->alone);
    lk__cuda_host.free(d->context, LK_MEMORY_OTHER, c, sizeof *c);
}

int32_t *lk__cuda_word(lk__device *d)
{
    lk__cuda_device *c = as_cuda(d);
    if (!c->word && lk__cuda_check(d, cudaMalloc((void **)&c->word, LK__ALIGN), "allocating memory") < 0) return NULL;
    return cuda_fill(d, NULL, c->word, 0, LK__ALIGN) < 0 ? NULL : c->word;
}

static lk__device_backend make_backend()
{
    lk__device_backend b = {};
    b.name = "cuda";
    b.text = "an NVIDIA GPU";
    b.kernels.rates = {400e12, 4e12};
    b.open = cuda_open;
    b.close = cuda_close;
    b.memory.check = check_gpu;
    b.memory.alloc = cuda_alloc;
    b.memory.free = cuda_free;
    b.memory.available = cuda_available;
    b.memory.one_block = true;
    b.memory.alloc_host = cuda_alloc_host;
    b.memory.free_host = cuda_free_host;
    b.memory.pin = cuda_pin;
    b.memory.unpin = cuda_unpin;
    b.memory.copy_in = cuda_copy_in;
    b.memory.copy_out = cuda_copy_out;
    b.memory.copy = cuda_copy;
    b.memory.fill = cuda_fill;
    b.memory.stream_create = cuda_stream_create;
    b.memory.stream_free = cuda_stream_free;
    b.memory.stream_wait = cuda_stream_wait;
    b.memory.event_create = cuda_event_create;
    b.memory.event_free = cuda_event_free;
    b.memory.event_record = cuda_event_record;
    b.memory.event_wait = cuda_event_wait;
    b.memory.event_sync = cuda_event_sync;
    b.memory.timed_event_create = lk__cuda_timed_event_create;
    b.memory.event_seconds = lk__cuda_event_seconds;
    b.recording.spans_begin = lk__cuda_spans_begin;
    b.recording.spans_end = lk__cuda_spans_end;
    b.recording.record_counts = lk__cuda_record_counts;
    b.kernels.measure = lk__cuda_measure;
    b.recording.record_begin = cuda_record_begin;
    b.recording.record_end = cuda_record_end;
    b.recording.graph_run = cuda_graph_run;
    b.recording.graph_free = cuda_graph_free;
    b.recording.add_numbers = lk__cuda_add_numbers;
    b.recording.judge_numbers = lk__cuda_judge_numbers;
    b.recording.publish = lk__cuda_publish;
    b.recording.end_step = lk__cuda_end_step;
    b.memory.stream_query = cuda_stream_query;
    b.kernels.group_kernels = lk__cuda_group_kernels;
    b.kernels.find = lk__cuda_find;
    b.kernels.choose_begin = lk__cuda_choose_begin;
    b.kernels.list_tuned = lk__cuda_list_tuned;
    b.kernels.add = lk__cuda_add;
    b.kernels.hash = cuda_hash;
    b.kernels.finite = lk__cuda_finite;
    b.kernels.fusions = fusions;
    b.kernels.channels_last = true;
    b.kernels.wide_images = true;
    b.peers = &lk__cuda_peers;
    return b;
}

const lk__device_backend lk__cuda_backend = make_backend();
