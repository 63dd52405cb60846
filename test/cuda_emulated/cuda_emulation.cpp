/* cuda_emulation.cpp - tests the emulation of CUDA itself: places in the grid, barriers, exchange within a warp, shared
 * memory, streams that do their work late, graphs, memory of other processes, and that mistakes of kernels are
 * found. */
#include "device/cuda/cuda.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

static int failures;
#define CHECK(condition, ...)                                        \
    do {                                                             \
        if (condition) break;                                        \
        fprintf(stderr, "FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition); \
        fprintf(stderr, __VA_ARGS__);                                \
        fprintf(stderr, "\n");                                       \
        failures++;                                                  \
    } while (0)

template <typename T> struct device_array {
    T     *data = NULL;
    size_t count;
    explicit device_array(size_t n) : count(n) { CHECK(cudaMalloc(&data, n * sizeof(T)) == cudaSuccess, "malloc"); }
    ~device_array() { cudaFree(data); }
    std::vector<T> read()
    {
        std::vector<T> out(count);
        CHECK(cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess, "read");
        return out;
    }
    void write(const std::vector<T> &in)
    {
        CHECK(cudaMemcpy(data, in.data(), count * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess, "write");
    }
};

/* ---- kernels ---- */

static __global__ void write_places(uint32_t *out)
{
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

template <typename T> static __global__ void sum_rows(T *out, const T *in, int64_t n)
{
    __shared__ T shared[32];
    T            x = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) x += in[blockIdx.x * n + i];
    x = block_sum(x, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = x;
}

static __global__ void reverse_block(int *data, int n)
{
    DYNAMIC_SHARED(int, shared);
    if ((int)threadIdx.x >= n) return; /* ended threads count as arrived */
    shared[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = shared[n - 1 - threadIdx.x];
}

static __global__ void exchange(int *out, int64_t *wide, double *real)
{
    int lane = threadIdx.x % 32;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, lane * 10, 5);
    out[64 + threadIdx.x] = __shfl_xor_sync(0xffffffffu, lane, 3);
    out[128 + threadIdx.x] = __shfl_down_sync(0xffffffffu, lane, 4);
    out[192 + threadIdx.x] = __shfl_up_sync(0xffffffffu, lane, 2, 8);
    out[256 + threadIdx.x] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    out[320 + threadIdx.x] = __any_sync(0xffffffffu, lane == 7) + 2 * __all_sync(0xffffffffu, lane < 31);
    wide[threadIdx.x] = __shfl_sync(0xffffffffu, ((int64_t)lane << 40) + 1, 31);
    real[threadIdx.x] = warp_sum(1.0 / (1 + lane));
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u; /* two groups of one warp wait on their own */
    for (int i = 0; i < (lane < 16 ? 3 : 7); i++) __syncwarp(half);
    __syncwarp();
}

static __global__ void count_atomically(int *counter, unsigned *least, unsigned long long *total)
{
    atomicAdd(counter, 1);
    atomicMin(least, blockIdx.x * blockDim.x + threadIdx.x + 3);
    atomicAdd(total, 1ull);
}

static __global__ void read_unwritten(float *out)
{
    __shared__ float shared[64];
    DYNAMIC_SHARED(float, dynamic);
    __syncthreads();
    float x = shared[threadIdx.x], y = dynamic[threadIdx.x];
    __syncthreads();
    shared[threadIdx.x] = dynamic[threadIdx.x] = 1;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = x == x || y == y ? 0 : shared[threadIdx.x];
}

static __global__ void round_trip(bf16 *out, const float *in)
{
    out[threadIdx.x] = __float2bfloat16_rn(in[threadIdx.x]);
}

static __global__ void add_one(float *x, int64_t n) { EACH_INDEX(i, n) x[i] += 1; }
static __global__ void add_from(float *x, const float *y, int64_t n) { EACH_INDEX(i, n) x[i] += y[0]; }

static __global__ void race(int *out) /* reads its neighbour's number without a barrier */
{
    __shared__ int shared[64];
    shared[threadIdx.x] = -1;
    __syncthreads();
    shared[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

static __global__ void barrier_of_half(int *out)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
static __global__ void past_shared(int *out)
{
    DYNAMIC_SHARED(int, shared);
    shared[threadIdx.x + out[0]] = 1;
}
static __global__ void past_memory(float *x, int64_t i) { x[i] = 1; }

/* ---- tests ---- */

static void threads_know_their_place(void)
{
    device_array<uint32_t> out(3 * 2 * 2 * 5 * 3 * 2);
    LAUNCH(write_places, dim3(3, 2, 2), dim3(5, 3, 2), 0, cudaStreamLegacy, out.data);
    std::vector<uint32_t> got = out.read();
    for (uint32_t i = 0; i < got.size(); i++) CHECK(got[i] == i / 30 * 1000 + i % 30, "%u: %u", i, got[i]);
}

static void sums_wait_for_all(void)
{
    for (int block : {32, 96, 256, 1024}) {
        device_array<double> in(7 * 1000), out(7);
        std::vector<double>  numbers(7000);
        for (int i = 0; i < 7000; i++) numbers[(size_t)i] = i % 13;
        in.write(numbers);
        LAUNCH(sum_rows<double>, 7, block, 0, cudaStreamLegacy, out.data, in.data, (int64_t)1000);
        std::vector<double> got = out.read();
        for (int r = 0; r < 7; r++) {
            double want = 0;
            for (int i = 0; i < 1000; i++) want += numbers[(size_t)(r * 1000 + i)];
            CHECK(got[(size_t)r] == want, "row %d: %g, not %g", r, got[(size_t)r], want);
        }
    }
    device_array<int> numbers(100);
    std::vector<int>  in(100);
    for (int i = 0; i < 100; i++) in[(size_t)i] = i;
    numbers.write(in);
    LAUNCH(reverse_block, 1, 256, 100 * sizeof(int), cudaStreamLegacy, numbers.data, 100);
    std::vector<int> got = numbers.read();
    for (int i = 0; i < 100; i++) CHECK(got[(size_t)i] == 99 - i, "%d: %d", i, got[(size_t)i]);
}

static void lanes_exchange(void)
{
    device_array<int>     out(384);
    device_array<int64_t> wide(64);
    device_array<double>  real(64);
    LAUNCH(exchange, 1, 64, 0, cudaStreamLegacy, out.data, wide.data, real.data);
    std::vector<int>     got = out.read();
    std::vector<int64_t> got_wide = wide.read();
    std::vector<double>  got_real = real.read();
    double               sum = 0;
    for (int i = 0; i < 32; i++) sum += 1.0 / (1 + i);
    for (int i = 0; i < 64; i++) {
        int lane = i % 32;
        CHECK(got[(size_t)i] == 50, "%d", got[(size_t)i]);
        CHECK(got[(size_t)(64 + i)] == (lane ^ 3), "%d", got[(size_t)(64 + i)]);
        CHECK(got[(size_t)(128 + i)] == (lane + 4 < 32 ? lane + 4 : lane), "%d", got[(size_t)(128 + i)]);
        CHECK(got[(size_t)(192 + i)] == (lane % 8 >= 2 ? lane - 2 : lane), "%d", got[(size_t)(192 + i)]);
        CHECK(got[(size_t)(256 + i)] == 0x49249249, "%x", got[(size_t)(256 + i)]);
        CHECK(got[(size_t)(320 + i)] == 1, "%d", got[(size_t)(320 + i)]);
        CHECK(got_wide[(size_t)i] == (31ll << 40) + 1, "%lld", (long long)got_wide[(size_t)i]);
        CHECK(fabs(got_real[(size_t)i] - sum) < 1e-14, "%g", got_real[(size_t)i]);
    }
}

static void atomics_and_conversions(void)
{
    device_array<int>                counter(1);
    device_array<unsigned>           least(1);
    device_array<unsigned long long> total(1);
    cudaMemset(counter.data, 0, sizeof(int));
    cudaMemset(least.data, 0xff, sizeof(int));
    cudaMemset(total.data, 0, 8);
    LAUNCH(count_atomically, 5, 77, 0, cudaStreamLegacy, counter.data, least.data, total.data);
    CHECK(counter.read()[0] == 385 && least.read()[0] == 3 && total.read()[0] == 385, "%d", counter.read()[0]);
    device_array<float> in(4);
    device_array<bf16>  out(4);
    in.write({1.00390625f, 1.01171875f, NAN, -INFINITY}); /* ties go to even */
    LAUNCH(round_trip, 1, 4, 0, cudaStreamLegacy, out.data, in.data);
    std::vector<bf16> got = out.read();
    const unsigned    want[] = {0x3f80, 0x3f82, 0x7fff, 0xff80};
    for (size_t i = 0; i < 4; i++) CHECK(__bfloat16_as_ushort(got[i]) == want[i], "%x", __bfloat16_as_ushort(got[i]));
}

static void memory_is_not_zero(void)
{
    device_array<unsigned char> fresh(1000);
    CHECK(fresh.read()[999] == 0xCD, "%x", fresh.read()[999]);
    device_array<float> out(640);
    LAUNCH(read_unwritten, 10, 64, 64 * sizeof(float), cudaStreamLegacy, out.data);
    for (float x : out.read()) CHECK(x == 1, "shared memory had a number");
    size_t before, after, all;
    cudaMemGetInfo(&before, &all);
    {
        device_array<char> some(12345);
        cudaMemGetInfo(&after, &all);
        CHECK(before - after == 12345, "%zu", before - after);
    }
    cudaMemGetInfo(&after, &all);
    CHECK(before == after, "%zu", after);
}

static void streams_work_late(void)
{
    cudaStream_t one, two;
    cudaEvent_t  event;
    float       *pinned;
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMallocHost(&pinned, sizeof(float));
    device_array<float> x(1), y(1);
    *pinned = 1;
    cudaMemcpyAsync(x.data, pinned, sizeof(float), cudaMemcpyHostToDevice, one);
    *pinned = 2; /* too early: a GPU may not have read it */
    cudaStreamSynchronize(one);
    CHECK(x.read()[0] == 2, "%g", x.read()[0]);
    cudaMemsetAsync(y.data, 0, sizeof(float), two);
    cudaStreamSynchronize(two);
    LAUNCH(add_one, 1, 1, 0, one, x.data, (int64_t)1);          /* 3 */
    LAUNCH(add_from, 1, 1, 0, two, y.data, x.data, (int64_t)1); /* does not wait */
    cudaStreamSynchronize(two);
    CHECK(y.read()[0] == 2, "%g", y.read()[0]);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event);
    LAUNCH(add_from, 1, 1, 0, two, y.data, x.data, (int64_t)1);
    CHECK(cudaStreamQuery(two) == cudaErrorNotReady && cudaStreamQuery(two) == cudaSuccess, "query");
    CHECK(y.read()[0] == 5, "%g", y.read()[0]);
    cudaEventDestroy(event);
    cudaStreamDestroy(one);
    cudaStreamDestroy(two);
    cudaFreeHost(pinned);
}

static void graphs_repeat(void)
{
    cudaStream_t    stream, side;
    cudaEvent_t     begin, end;
    cudaGraph_t     graph;
    cudaGraphExec_t executable;
    size_t          nodes = 0;
    void           *refused;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
    device_array<float> x(5), y(5);
    cudaMemset(x.data, 0, 5 * sizeof(float));
    cudaMemset(y.data, 0, 5 * sizeof(float));
    {
        int64_t n = 5;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "begin");
        LAUNCH(add_one, 1, 32, 0, stream, x.data, n);
        cudaEventRecord(begin, stream);
        cudaStreamWaitEvent(side, begin);
        LAUNCH(add_from, 1, 32, 0, side, y.data, x.data, n);
        cudaEventRecord(end, side);
        cudaStreamWaitEvent(stream, end);
        n = 0; /* the graph has copies */
        CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "end");
    }
    cudaGraphGetNodes(graph, NULL, &nodes);
    CHECK(nodes == 2, "%zu", nodes);
    CHECK(x.read()[0] == 0, "it ran");
    CHECK(cudaGraphInstantiate(&executable, graph) == cudaSuccess, "instantiate");
    cudaGraphDestroy(graph);
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess, "launch");
    cudaStreamSynchronize(stream);
    CHECK(x.read()[4] == 3 && y.read()[4] == 6, "%g %g", x.read()[4], y.read()[4]);
    cudaGraphExecDestroy(executable);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "begin");
    CHECK(cudaMalloc(&refused, 1) == cudaErrorStreamCaptureUnsupported, "malloc in a capture");
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated, "end");
    cudaGetLastError();
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(begin, stream);
    cudaStreamWaitEvent(side, begin);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined, "a stream that was not joined");
    cudaGetLastError();
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaStreamDestroy(side);
    cudaStreamDestroy(stream);
}

/* The order of threads differs from launch to launch, so that a missing barrier changes results. */
static void races_show(void)
{
    device_array<int> out(64);
    int               different = 0;
    std::vector<int>  first;
    for (int i = 0; i < 16; i++) {
        LAUNCH(race, 1, 64, 0, cudaStreamLegacy, out.data);
        if (first.empty()) first = out.read();
        different += first != out.read();
    }
    CHECK(different > 0, "16 launches in the same order");
}

static void launches_are_checked(void)
{
    device_array<int> out(1);
    LAUNCH(race, 1, 1025, 0, cudaStreamLegacy, out.data);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration, "threads");
    LAUNCH(race, 0, 64, 0, cudaStreamLegacy, out.data);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration, "no blocks");
    LAUNCH(race, 1, 64, 64 << 10, cudaStreamLegacy, out.data);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "shared memory");
    CHECK(cudaGetLastError() == cudaSuccess, "an error is reported once");
    CHECK(cudaMemcpy(out.data, out.data, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue, "direction");
    CHECK(cudaMemsetAsync(out.data, 0, 1024, 0) == cudaErrorInvalidValue, "past the end");
    cudaGetLastError();
}

/* Memory of one process that another maps: what either writes, the other one reads. */
static void processes_share_memory(void)
{
    cudaIpcMemHandle_t handle;
    device_array<int>  out(1000);
    void              *own = NULL;
    int                status;
    out.write(std::vector<int>(1000, 3));
    CHECK(cudaIpcGetMemHandle(&handle, out.data) == cudaSuccess, "handle");
    CHECK(out.read()[999] == 3, "it is lost");
    CHECK(cudaIpcOpenMemHandle(&own, handle, 0) != cudaSuccess, "a process maps its own memory");
    cudaGetLastError();
    pid_t child = fork();
    if (child == 0) {
        int  seen[1000] = {0};
        int *mapped = NULL;
        bool right = cudaIpcOpenMemHandle((void **)&mapped, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess &&
                     mapped != out.data && cudaMemcpy(seen, mapped, sizeof seen, cudaMemcpyDeviceToHost) == cudaSuccess;
        LAUNCH(write_places, 1, 500, 0, cudaStreamLegacy, (uint32_t *)mapped);
        right = right && seen[0] == 3 && seen[999] == 3 && cudaDeviceSynchronize() == cudaSuccess;
        right = right && cudaFree(mapped) != cudaSuccess && cudaIpcCloseMemHandle(mapped) == cudaSuccess;
        _exit(right ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %d", status);
    CHECK(out.read()[499] == 499 && out.read()[500] == 3, "%d %d", out.read()[499], out.read()[500]);
}

/* Runs in a child, which must end by one of two signals and say `text`. */
template <typename F> static void dies(const char *text, F mistake)
{
    int  channel[2], status;
    char said[4096];
    CHECK(pipe(channel) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(channel[1], 2);
        signal(SIGSEGV, SIG_DFL);
        mistake();
        cudaDeviceSynchronize();
        _exit(0);
    }
    close(channel[1]);
    size_t  length = 0;
    ssize_t got;
    while ((got = read(channel[0], said + length, sizeof said - 1 - length)) > 0) length += (size_t)got;
    said[length] = 0;
    close(channel[0]);
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) &&
              (WTERMSIG(status) == SIGABRT || WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS),
          "status %d for %s", status, text);
    CHECK(strstr(said, text), "said: %s", said);
}

static void mistakes_are_found(void)
{
    device_array<int>   numbers(64);
    device_array<float> x(64);
    int                 on_stack = 0;
    float              *freed;
    numbers.write(std::vector<int>(64, 0));
    dies("no thread can go on: of 64 threads",
         [&] { LAUNCH(barrier_of_half, 1, 64, 0, cudaStreamLegacy, numbers.data); });
    dies("neither the device's memory nor pinned", [&] { LAUNCH(race, 1, 64, 0, cudaStreamLegacy, &on_stack); });
    dies("", [&] { LAUNCH(past_memory, 1, 1, 0, cudaStreamLegacy, x.data, (int64_t)64); });
    numbers.write(std::vector<int>(64, 1));
    dies("", [&] { LAUNCH(past_shared, 1, 64, 64 * sizeof(int), cudaStreamLegacy, numbers.data); });
    cudaMalloc(&freed, 64);
    cudaFree(freed);
    dies("neither the device's memory nor pinned",
         [&] { LAUNCH(past_memory, 1, 1, 0, cudaStreamLegacy, freed, (int64_t)0); });
}

static double seconds(void) /* of the processor */
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    threads_know_their_place();
    sums_wait_for_all();
    lanes_exchange();
    atomics_and_conversions();
    memory_is_not_zero();
    streams_work_late();
    graphs_repeat();
    races_show();
    launches_are_checked();
    processes_share_memory();
    mistakes_are_found();
    CHECK(cudaGetLastError() == cudaSuccess, "an error is left");
    if (argc > 1 && strcmp(argv[1], "--speed") == 0) {
        device_array<float>  x(1 << 20);
        device_array<double> in(1 << 20), out(4096);
        double               begin = seconds();
        for (int i = 0; i < 4; i++) LAUNCH(add_one, 4096, 256, 0, cudaStreamLegacy, x.data, (int64_t)1 << 20);
        cudaDeviceSynchronize();
        printf("%.1f ns a thread without barriers\n", (seconds() - begin) * 1e9 / (4 << 20));
        begin = seconds();
        LAUNCH(sum_rows<double>, 4096, 256, 0, cudaStreamLegacy, out.data, in.data, (int64_t)256);
        cudaDeviceSynchronize();
        printf("%.1f ns a thread with 10 shuffles and 2 barriers\n", (seconds() - begin) * 1e9 / (1 << 20));
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
