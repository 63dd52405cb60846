/* speed.cu - measures the speed of the GPU: large products by the functions that training uses, a large copy, and empty
 * kernels. Operands are random numbers, since products of zeros or equal numbers take less power, and the clock is then
 * higher. */
#include "device/cuda/autotuning.h"
#include "device/cuda/gemm.h"
#include "device/cuda/measure.h"
#include "device/cuda/spans.h"

#if defined(LK_CUDA_EMULATED)
enum { SIDE_BF16 = 32, SIDE_F32 = 32, SIDE_F64 = 32, SIDE_PLAIN = 32, EMPTY = 4 };
static const size_t COPY = 1 << 16;
#else
/* 1.4 ms of bf16 at 800 TFLOP/s, 2.5 ms of f32 at 55, 0.3 ms of f64 at 60: long beside the start of a kernel. */
enum { SIDE_BF16 = 8192, SIDE_F32 = 4096, SIDE_F64 = 2048, SIDE_PLAIN = 256, EMPTY = 256 };
static const size_t COPY = (size_t)512 << 20; /* ten times the second-level cache */
#endif

static __global__ void do_nothing() {}

template <typename T> static __global__ void fill_numbers(T *to, int64_t n)
{
    EACH_INDEX(i, n)
    {
        uint32_t x = (uint32_t)i * 2654435761u;
        x = (x ^ x >> 15) * 2246822519u;
        x = (x ^ x >> 13) * 3266489917u;
        store(to + i, (WIDE(T))((float)(x >> 8) * (1.0f / 16777216) - 0.5f));
    }
}

static lk_status fill_operands(const lk__kernel_call *call, lk_dtype type, void *memory, int64_t n)
{
    BY_ELEMENT(type, T, LAUNCH(fill_numbers<T>, cuda_blocks(n, 256), 256, 0, cuda_stream(call), (T *)memory, n);)
    return LK_OK;
}

/* Plain kernels are for checks, which do not look at the speed: they take a second for what the library multiplies in a
 * millisecond. */
static int64_t side_of(lk_dtype type)
{
    if (lk__cuda_plain()) return SIDE_PLAIN;
    return type == LK_BF16 ? SIDE_BF16 : type == LK_F64 ? SIDE_F64 : SIDE_F32;
}

/* x W' as linear computes it; 0: it failed. */
static double measure_products(lk__cuda_device *c, lk__cuda_clock *clock, lk_dtype type)
{
    int64_t          side = side_of(type);
    size_t           each = (size_t)(side * side) * cuda_size(type), workspace = lk__cuda_product_bytes(side, side, 1);
    char            *memory = (char *)clock_memory(clock, 3 * each + workspace);
    lk__kernel_call  call = {};
    lk__cuda_product p = {};
    float            milliseconds = -1;
    if (!memory) return 0;
    call.device = &c->base;
    call.stream = &clock->stream;
    p.m = p.n = p.k = p.a_ld = p.b_ld = p.c_ld = side;
    p.batch = 1;
    p.alpha = 1;
    p.type = p.type_c = type;
    p.b_transposed = true;
    p.a = memory;
    p.b = memory + each;
    p.c = memory + 2 * each;
    p.workspace = memory + 3 * each;
    if (fill_operands(&call, type, memory, 2 * side * side) >= 0 && lk__cuda_gemm_prepare(&c->base, &p) >= 0)
        milliseconds = clock_run(clock, [&] { return lk__cuda_gemm(&call, &p); });
    (void)cudaFree(memory);
    return milliseconds > 0 ? 2e3 * (double)side * (double)side * (double)side / (double)milliseconds : 0;
}

/* Bytes read and written a second. */
static double measure_copy(lk__cuda_clock *clock)
{
    float milliseconds = -1;
    for (size_t bytes = COPY; milliseconds < 0 && bytes >= COPY / 8; bytes /= 2) { /* less where memory is short */
        char *memory = (char *)clock_memory(clock, 2 * bytes);
        if (!memory) continue;
        milliseconds = clock_run(clock, [&] {
            return cudaMemcpyAsync(memory + bytes, memory, bytes, cudaMemcpyDeviceToDevice, clock->stream.stream) ==
                           cudaSuccess
                       ? LK_OK
                       : LK_EIO;
        });
        (void)cudaFree(memory);
        if (milliseconds > 0) return 2e3 * (double)bytes / (double)milliseconds;
    }
    return 0;
}

/* Seconds of a kernel in a graph of kernels that do nothing. */
static double measure_latency(lk__cuda_clock *clock)
{
    cudaStream_t    stream = clock->stream.stream;
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t ready = NULL;
    float           milliseconds = -1;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) return 0;
    for (int i = 0; i < EMPTY; i++) LAUNCH(do_nothing, 1, 32, 0, stream);
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess)
        milliseconds = clock_run(clock, [&] { return cudaGraphLaunch(ready, stream) == cudaSuccess ? LK_OK : LK_EIO; });
    if (ready) (void)cudaGraphExecDestroy(ready);
    if (graph) (void)cudaGraphDestroy(graph);
    return milliseconds > 0 ? 1e-3 * (double)milliseconds / EMPTY : 0;
}

lk_status lk__cuda_measure(lk__device *d, lk_dtype type, lk_device_speed *speed)
{
    lk__cuda_device *c = (lk__cuda_device *)d;
    lk__cuda_clock   clock;
    lk_device_speed *known = (unsigned)type < LK_DTYPE_COUNT ? &c->speed[type] : NULL;
    lk_status        status = d->backend->memory.check(d);
    if (status < 0) return status;
    if (type != LK_BF16 && type != LK_F64 && type != LK_F32)
        return lk__cuda_host.fail(d->context, LK_EINVAL, "speed is measured only for f32, f64 and bf16");
    if (known->flops > 0) {
        *speed = *known;
        return LK_OK;
    }
    (void)lk__cuda_stream_of(d, NULL); /* waits for all work that is queued */
    lk__cuda_tuning_restart(c);
    bool opened = clock_open(&clock);
    for (int i = 0; i < LK_DTYPE_COUNT; i++) /* memory and latency are the same for all types */
        if (c->speed[i].flops > 0) known->memory = c->speed[i].memory, known->latency = c->speed[i].latency;
    if (opened && !(known->memory > 0)) known->memory = measure_copy(&clock);
    if (opened && !(known->latency > 0)) known->latency = measure_latency(&clock);
    if (opened) known->flops = measure_products(c, &clock, type);
    clock_close(&clock);
    *speed = *known;
    if (known->flops > 0 && known->memory > 0 && known->latency > 0) return LK_OK;
    known->flops = 0;
    return lk__cuda_host.fail(d->context, LK_ENOMEM,
                              "GPU %d: cannot measure its speed: it has too little free memory, or a kernel failed",
                              c->number);
}
