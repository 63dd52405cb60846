/* cuda_attention.cu - attention and its gradient on a GPU, shape by shape: what cuDNN says to its graphs, how far its
 * results and those of our kernels for tensor cores are from those of the plain kernels, whether they have the same
 * bits in every run, and the times of all.
 *
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -Isrc -o cuda_attention \
 *          bench/cuda_attention.cu \
 *          src/device/cuda/{attention,attention_grad,attention_fast,attention_fast_grad,dnn_attention,dnn_load}.cu -ldl
 *     ./cuda_attention [repeats]
 *
 * It needs no library of Lockstep: what the module would be given is defined here. */
#include "device/cuda/dnn.h"
#include "device/cuda/dnn_attention.h"
#include "device/cuda/gemm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" lk_status lk__cuda_attention(const lk__kernel_call *call);
extern "C" size_t    lk__cuda_attention_workspace(const lk__kernel_call *call, int threads);
extern "C" lk_status lk__cuda_attention_grad(const lk__kernel_call *call);
extern "C" size_t    lk__cuda_attention_grad_workspace(const lk__kernel_call *call, int threads);

/* ---- what the module has of its library ---- */

static bool without_libraries, in_any_order;
bool        lk__cuda_plain(void) { return without_libraries; }
bool        lk__cuda_any_order(void) { return in_any_order; }

static lk_status fail_text(lk_context *context, lk_status status, const char *format, ...)
{
    va_list arguments;
    (void)context;
    va_start(arguments, format);
    printf("    failure: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    return status;
}
static void log_text(lk_context *context, lk_log_level level, const char *format, ...)
{
    va_list arguments;
    (void)context, (void)level;
    va_start(arguments, format);
    printf("    ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}
static lk__cuda_library make_library(void)
{
    lk__cuda_library library = {};
    library.fail = fail_text;
    library.log = log_text;
    return library;
}
lk__cuda_library lk__cuda_host = make_library();

lk_status lk__cuda_check(lk__device *device, cudaError_t error, const char *what)
{
    (void)device;
    return error == cudaSuccess ? LK_OK : fail_text(NULL, LK_EIO, "%s: %s", what, cudaGetErrorString(error));
}
cudaStream_t lk__cuda_stream_of(lk__device *device, lk__device_stream *stream)
{
    (void)device, (void)stream;
    return 0;
}
lk_status lk__cuda_launched(const lk__kernel_call *call)
{
    return lk__cuda_check(call->device, cudaGetLastError(), "launch");
}
lk_status lk__cuda_no_kernel(const lk__kernel_call *call)
{
    (void)call;
    return LK_EUNSUPPORTED;
}

/* ---- one case ---- */

typedef struct setting {
    const char *name;
    int64_t     batch, t, s, heads, groups, d; /* s 0: packed */
    bool        causal;
    bool        gradient;
} setting;

static const setting settings[] = {
    {"GPT-2 124M, batch 16", 16, 1024, 0, 12, 12, 64, true, true},
    {"GPT-2 124M, batch 64", 64, 1024, 0, 12, 12, 64, true, true},
    {"Llama 125M, batch 16", 16, 2048, 2048, 12, 4, 64, true, true},
    {"width 128, 16 heads", 4, 2048, 0, 16, 16, 128, true, true},
    {"width 128, 16 heads over 4", 4, 1024, 1024, 16, 4, 128, false, true},
    {"small", 2, 128, 0, 3, 1, 32, true, true},
    {"odd length", 2, 777, 0, 6, 2, 64, true, true},
    {"generation, GPT-2, S 1024", 1, 1, 1024, 12, 12, 64, false, false},
    {"generation, Llama-3.2-1B, S 4096", 1, 1, 4096, 32, 8, 64, false, false},
};

static lk__cuda_device gpu;
static int             repeats = 20;

static void stop_at(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void *reserve(size_t bytes)
{
    void *memory;
    stop_at(cudaMalloc(&memory, bytes ? bytes : 1), "cudaMalloc");
    stop_at(cudaMemset(memory, 0xff, bytes), "cudaMemset"); /* NaN */
    return memory;
}

static float next_normal(void) /* nearly */
{
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += (float)rand() / (float)RAND_MAX;
    return sum;
}

static void *make_random(int64_t n)
{
    std::vector<bf16> x((size_t)n);
    float             some[1024];
    for (int i = 0; i < 1024; i++) some[i] = next_normal();
    for (int64_t i = 0; i < n; i++) x[(size_t)i] = __float2bfloat16_rn(some[rand() % 1024]);
    void *memory = reserve((size_t)n * 2);
    stop_at(cudaMemcpy(memory, x.data(), (size_t)n * 2, cudaMemcpyHostToDevice), "copy");
    return memory;
}

static std::vector<float> read_back(const lk__kernel_operand *x)
{
    size_t             n = (size_t)lk__operand_elements(x), bytes = n * cuda_size(x->dtype);
    std::vector<char>  raw(bytes);
    std::vector<float> out(n);
    stop_at(cudaMemcpy(raw.data(), x->data, bytes, cudaMemcpyDeviceToHost), "copy");
    for (size_t i = 0; i < n; i++)
        out[i] = x->dtype == LK_BF16 ? __bfloat162float(((bf16 *)raw.data())[i]) : ((float *)raw.data())[i];
    return out;
}

static lk__kernel_operand describe_operand(lk_dtype type, int64_t a, int64_t b, int64_t c, void *data)
{
    lk__kernel_operand x = {};
    x.dtype = type;
    x.rank = 3;
    x.dims[0] = a, x.dims[1] = b, x.dims[2] = c;
    x.data = data;
    return x;
}

typedef lk_status (*run_function)(const lk__kernel_call *call);

/* Microseconds of a run, the least of several batches of them; below 0: it failed. */
static double measure(run_function run, const lk__kernel_call *call)
{
    cudaEvent_t begin, end;
    double      best = 1e30;
    if (run(call) < 0) return -1;
    stop_at(cudaDeviceSynchronize(), "the first run");
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int k = 0; k < 3; k++) {
        float ms;
        cudaEventRecord(begin, 0);
        for (int i = 0; i < repeats; i++)
            if (run(call) < 0) return -1;
        cudaEventRecord(end, 0);
        stop_at(cudaEventSynchronize(end), "runs");
        cudaEventElapsedTime(&ms, begin, end);
        best = fmin(best, ms * 1e3 / repeats);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return best;
}

static void print_difference(const char *name, const std::vector<float> &plain_result, const std::vector<float> &other)
{
    double largest = 0, error = 0, squares = 0, error_squares = 0;
    int    bad = 0;
    for (size_t i = 0; i < other.size(); i++) {
        double x = plain_result[i], e = fabs(x - other[i]);
        bad += !(e == e);
        largest = fmax(largest, fabs(x));
        error = fmax(error, e);
        squares += x * x;
        error_squares += e * e;
    }
    printf("    %-4s largest %.3g, difference %.3g at most, %.2g in norm%s\n", name, largest, error,
           sqrt(error_squares / squares), bad ? ", NOT FINITE" : "");
}

enum { PLAIN, OWN, LIBRARY, ATOMICS, KINDS };
static const char *const kinds[KINDS] = {"plain", "tensor cores", "cuDNN", "cuDNN with atomics"};

static void choose(int kind)
{
    setenv("LOCKSTEP_CUDA_PLAIN", kind == PLAIN ? "1" : "0", 1);
    without_libraries = kind < LIBRARY;
    in_any_order = kind == ATOMICS;
}

static std::vector<std::vector<float>> read_results(const lk__kernel_call *call)
{
    std::vector<std::vector<float>> results;
    for (int i = 0; i < call->outputs; i++)
        results.push_back(call->out[i].data ? read_back(&call->out[i]) : std::vector<float>());
    return results;
}

static bool has_same_bits(run_function run, const lk__kernel_call *call, const std::vector<std::vector<float>> &results)
{
    for (int k = 0; k < 3; k++) {
        if (run(call) < 0) return false;
        std::vector<std::vector<float>> again = read_results(call);
        for (size_t i = 0; i < again.size(); i++)
            if (memcmp(again[i].data(), results[i].data(), again[i].size() * sizeof(float)) != 0) return false;
    }
    return true;
}

/* Where a kind does not do it, the next simpler one runs in its place. The last kind's results stay. */
static void compare(const char *what, run_function run, lk__kernel_call *call, const char *const *names,
                    double arithmetic, double bytes)
{
    std::vector<std::vector<float>> reference;
    for (int kind = 0; kind < KINDS; kind++) {
        if (kind == ATOMICS && run != lk__cuda_attention_grad) continue;
        choose(kind);
        for (int i = 0; i < call->outputs; i++)
            if (call->out[i].data)
                cudaMemset(call->out[i].data, 0xff,
                           (size_t)lk__operand_elements(&call->out[i]) * cuda_size(call->out[i].dtype));
        double time = measure(run, call);
        if (time < 0) continue;
        std::vector<std::vector<float>> results = read_results(call);
        printf("  %s, %s: %.1f us, %.1f TFLOP/s, %.0f GB/s of keys and values; %s\n", what, kinds[kind], time,
               arithmetic / time * 1e-6, bytes / time * 1e-3,
               has_same_bits(run, call, results) ? "the same bits in 4 runs" : "DIFFERENT BITS FROM RUN TO RUN");
        if (kind == PLAIN)
            reference = results;
        else
            for (int i = 0; i < call->outputs; i++)
                if (call->out[i].data) print_difference(names[i], reference[(size_t)i], results[(size_t)i]);
    }
}

static void run_setting(const setting *x)
{
    bool         packed = x->s == 0;
    int64_t      s = packed ? x->t : x->s, q_row = (packed ? x->heads + 2 * x->groups : x->heads) * x->d;
    int64_t      k_row = x->groups * x->d, row = x->heads * x->d;
    lk__op_attrs attrs = {};
    double       pairs = (double)(x->batch * x->heads) * (double)x->t * (double)s * (x->causal ? 0.5 : 1);
    double       keys = 2.0 * 2 * (double)(x->batch * s * k_row);
    attrs.heads = x->heads;
    attrs.kv_heads = x->groups;
    attrs.causal = x->causal;
    attrs.scale = 1 / sqrt((double)x->d);
    printf("%s: batch %lld, %lld queries, %lld keys, %lld heads over %lld, width %lld%s%s\n", x->name,
           (long long)x->batch, (long long)x->t, (long long)s, (long long)x->heads, (long long)x->groups,
           (long long)x->d, x->causal ? ", causal" : "", packed ? ", packed" : "");

    lk__kernel_call forward = {};
    forward.attrs = &attrs;
    forward.device = &gpu.base;
    forward.inputs = packed ? 1 : 3;
    forward.outputs = 2;
    forward.in[0] = describe_operand(LK_BF16, x->batch, x->t, q_row, make_random(x->batch * x->t * q_row));
    if (!packed)
        for (int i = 1; i < 3; i++)
            forward.in[i] = describe_operand(LK_BF16, x->batch, s, k_row, make_random(x->batch * s * k_row));
    forward.out[0] = describe_operand(LK_BF16, x->batch, x->t, row, reserve((size_t)(x->batch * x->t * row) * 2));
    forward.out[1] =
        describe_operand(LK_F32, x->batch, x->heads, x->t, reserve((size_t)(x->batch * x->heads * x->t) * 4));
    size_t bytes = lk__cuda_attention_workspace(&forward, 1);
    forward.workspace = reserve(bytes);
    static const char *const forward_names[] = {"y", "lse"}, *const backward_names[] = {"dq", "dk", "dv"};
    compare("forward", lk__cuda_attention, &forward, forward_names, 4 * pairs * (double)x->d, keys);
    cudaFree(forward.workspace);

    lk__kernel_call backward = {};
    if (x->gradient) {
        backward.attrs = &attrs;
        backward.device = &gpu.base;
        backward.inputs = 6;
        backward.outputs = packed ? 1 : 3;
        backward.in[0] = describe_operand(LK_BF16, x->batch, x->t, row, make_random(x->batch * x->t * row));
        for (int i = 0; i < 3; i++) backward.in[1 + i] = forward.in[i];
        backward.in[4] = forward.out[0];
        backward.in[5] = forward.out[1];
        for (int i = 0; i < backward.outputs; i++) {
            backward.out[i] = forward.in[i];
            backward.out[i].data = reserve((size_t)lk__operand_elements(&forward.in[i]) * 2);
        }
        choose(ATOMICS);
        bytes = lk__cuda_attention_grad_workspace(&backward, 1);
        choose(LIBRARY);
        size_t ordered = lk__cuda_attention_grad_workspace(&backward, 1);
        bytes = bytes > ordered ? bytes : ordered;
        printf("  the gradient's workspace: %.1f MiB\n", (double)ordered / 1048576);
        backward.workspace = reserve(bytes);
        compare("backward", lk__cuda_attention_grad, &backward, backward_names, 10 * pairs * (double)x->d, 0);
        cudaFree(backward.workspace);
        cudaFree(backward.in[0].data);
        for (int i = 0; i < backward.outputs; i++) cudaFree(backward.out[i].data);
    }
    for (int i = 0; i < forward.inputs; i++) cudaFree(forward.in[i].data);
    for (int i = 0; i < 2; i++) cudaFree(forward.out[i].data);
}

int main(int count, char **arguments)
{
    cudaDeviceProp properties;
    char           why[256] = "";
    if (count > 1) repeats = atoi(arguments[1]);
    stop_at(cudaSetDevice(0), "cudaSetDevice");
    stop_at(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    gpu.capability = properties.major * 10 + properties.minor;
    int version = lk__dnn_library_version(why, sizeof why);
    printf("%s, cuDNN %d %s\n", properties.name, version, why);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        run_setting(&settings[i]);
        fflush(stdout);
    }
    lk__cuda_dnn_free(gpu.dnn);
    return 0;
}
