/* cuda_products.cu - matrix products and convolutions on a GPU, shape by shape: the times of the library's algorithm
 * (as measured and as first listed), of our tensor cores' kernels and of the plain kernels, how far their results are
 * from the plain kernels', whether bits repeat, and whether a row's bits depend on the number of rows where they must
 * not.
 *
 * Built by `ninja cuda_products` in a build with LK_CUDA, as build/bench/cuda_products, or by
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -DLK_CUDA_SM_90A -Iinclude -Isrc \
 *          -o cuda_products bench/cuda_products.cu \
 *          src/device/cuda/{products,small_products,skinny,skinny_transposed,linear,blas,autotuning}.cu \
 *          src/device/cuda/{column_sums,grouped_linear,grouped_tensor,conv,conv_dnn,conv_direct}.cu \
 *          src/device/cuda/{conv_direct_weight,conv_first,conv_tensor,dnn_load}.cu -ldl
 *     XDG_CACHE_HOME=/tmp/none ./cuda_products [repeats [experts]]
 *
 * It needs no library of Lockstep: what the module would be given is defined here. A cache file of choices is used
 * where there is one. */
#include "device/cuda/conv_ways.h"
#include "device/cuda/gemm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" {
#define DECLARE(name)                                                                \
    lk_status lk__cuda_##name(const lk__kernel_call *call);                          \
    size_t    lk__cuda_##name##_workspace(const lk__kernel_call *call, int threads); \
    lk_status lk__cuda_##name##_prepare(lk__device *device, const lk__device_kernel *kernel, lk__kernel_call *call);
DECLARE(linear)
DECLARE(linear_grad_input)
DECLARE(linear_grad_weight)
DECLARE(grouped_linear)
DECLARE(grouped_linear_grad_weight) DECLARE(conv2d) DECLARE(conv2d_grad_input) DECLARE(conv2d_grad_weight)
}

/* ---- what the module has of its library ---- */

static lk_status fail_text(lk_context *, lk_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("    failure: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    return status;
}
static void log_text(lk_context *, lk_log_level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("    ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}
static void    *alloc_bytes(lk_context *, lk_memory, size_t bytes) { return calloc(1, bytes); }
static void     free_bytes(lk_context *, lk_memory, void *memory, size_t) { free(memory); }
static uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}
/* All shapes are measured, however long it takes. */
static const char *read_environment(const lk_context *, lk__environment_id id)
{
#define NAME(name, group, type, low, high, text) #name,
    static const char *const names[] = {LK__ENVIRONMENT(NAME)};
#undef NAME
    const char *value = getenv(names[id]);
    return !value && id == LK__ENV_LOCKSTEP_CUDA_TUNING_SECONDS ? "100000" : value;
}
static lk__cuda_library make_library()
{
    lk__cuda_library library = {};
    library.fail = fail_text, library.log = log_text;
    library.alloc = alloc_bytes, library.free = free_bytes, library.hash64 = hash_bytes;
    library.environment = read_environment;
    return library;
}
lk__cuda_library lk__cuda_host = make_library();
bool             lk__cuda_early; /* kernels begin once those before them have ended */

lk_status lk__cuda_check(lk__device *, cudaError_t error, const char *what)
{
    return error == cudaSuccess ? LK_OK : fail_text(NULL, LK_EIO, "%s: %s", what, cudaGetErrorString(error));
}
cudaStream_t lk__cuda_stream_of(lk__device *, lk__device_stream *s) { return s->stream; }
lk_status    lk__cuda_launched(const lk__kernel_call *call)
{
    return lk__cuda_check(call->device, cudaGetLastError(), "launch");
}
lk_status lk__cuda_no_kernel(const lk__kernel_call *) { return LK_EUNSUPPORTED; }

/* ---- calls ---- */

typedef lk_status (*run_function)(const lk__kernel_call *call);
typedef size_t (*workspace_function)(const lk__kernel_call *call, int threads);
typedef lk_status (*prepare_function)(lk__device *device, const lk__device_kernel *kernel, lk__kernel_call *call);

static lk__cuda_device   gpu;
static lk__device_stream stream;
static int               repeats = 20;

static void stop_at(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static lk__kernel_operand make_operand(lk_dtype type, bool random, int rank, const int64_t *dims)
{
    lk__kernel_operand o = {};
    o.dtype = type, o.rank = rank;
    for (int i = 0; i < rank; i++) o.dims[i] = dims[i];
    size_t            n = (size_t)lk__operand_elements(&o), bytes = n * cuda_size(type);
    std::vector<char> x(bytes);
    for (size_t i = 0; i < n && random; i++) {
        float v = (float)rand() / (float)RAND_MAX * 2 - 1;
        if (type == LK_BF16)
            ((bf16 *)x.data())[i] = __float2bfloat16_rn(v);
        else if (type == LK_F32)
            ((float *)x.data())[i] = v;
        else
            x[i] = (char)(rand() % 5 == 4 ? 255 : rand() % 4); /* positions in windows of 2×2 */
    }
    stop_at(cudaMalloc(&o.data, bytes + 1), "cudaMalloc");
    if (!random) memset(x.data(), 0xff, bytes); /* NaN */
    stop_at(cudaMemcpy(o.data, x.data(), bytes, cudaMemcpyHostToDevice), "copy");
    return o;
}

static std::vector<float> read_back(const lk__kernel_operand *x)
{
    size_t             n = (size_t)lk__operand_elements(x);
    std::vector<char>  raw(n * cuda_size(x->dtype));
    std::vector<float> out(n);
    stop_at(cudaMemcpy(raw.data(), x->data, raw.size(), cudaMemcpyDeviceToHost), "copy");
    for (size_t i = 0; i < n; i++)
        out[i] = x->dtype == LK_BF16  ? __bfloat162float(((bf16 *)raw.data())[i])
                 : x->dtype == LK_F32 ? ((float *)raw.data())[i]
                                      : (float)(unsigned char)raw[i];
    return out;
}

/* Runs it, and gives microseconds; the results are in `out`, which is empty where it failed or bits differ between
 * runs. */
static float time_call(const lk__kernel_call *call, run_function run, std::vector<std::vector<float>> *out)
{
    cudaEvent_t begin, end;
    float       milliseconds = 0;
    out->clear();
    stop_at(cudaEventCreate(&begin), "event");
    stop_at(cudaEventCreate(&end), "event");
    if (run(call) < 0) return -1;
    stop_at(cudaStreamSynchronize(stream.stream), "run");
    for (int i = 0; i < call->outputs; i++) out->push_back(read_back(&call->out[i]));
    stop_at(cudaEventRecord(begin, stream.stream), "event");
    for (int i = 0; i < repeats; i++)
        if (run(call) < 0) return -1;
    stop_at(cudaEventRecord(end, stream.stream), "event");
    stop_at(cudaEventSynchronize(end), "run");
    stop_at(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    for (int i = 0; i < call->outputs; i++) {
        std::vector<float> again = read_back(&call->out[i]);
        if (memcmp(again.data(), (*out)[(size_t)i].data(), again.size() * sizeof(float)) != 0)
            printf("    output %d has other bits in another run\n", i);
    }
    return milliseconds * 1000 / (float)repeats;
}

static void print_way(const char *name, float time, double operations, const std::vector<std::vector<float>> &out,
                      const std::vector<std::vector<float>> &reference)
{
    printf("    %-22s", name);
    if (time < 0) {
        printf(" failed\n");
        return;
    }
    printf("%9.1f us %7.1f TFLOPS", (double)time, operations / (double)time * 1e-6);
    for (size_t i = 0; i < out.size() && i < reference.size(); i++) {
        double difference = 0, size = 0;
        for (size_t k = 0; k < out[i].size(); k++) {
            double d = (double)out[i][k] - (double)reference[i][k];
            difference += d * d, size += (double)reference[i][k] * (double)reference[i][k];
        }
        printf("  error %.1e", sqrt(difference / (size > 0 ? size : 1)));
    }
    printf("\n");
}

/* All ways of one call. The workspace is that of the operation. */
static void compare_ways(lk__kernel_call *call, double operations, run_function run, workspace_function workspace,
                         prepare_function prepare, run_function own)
{
    std::vector<std::vector<float>> reference, out;
    call->device = &gpu.base;
    call->stream = &stream;
    stop_at(cudaMalloc(&call->workspace, workspace(call, 1) + 1), "cudaMalloc");
    setenv("LOCKSTEP_CUDA_PLAIN", "1", 1);
    float time = time_call(call, run, &reference);
    print_way("plain", time, operations, reference, reference);
    setenv("LOCKSTEP_CUDA_PLAIN", "0", 1);
    if (own) {
        time = time_call(call, own, &out);
        print_way("our own", time, operations, out, reference);
    }
    gpu.base.by_heuristic = true;
    time = time_call(call, run, &out);
    print_way("reproducible", time, operations, out, reference);
    gpu.base.by_heuristic = false;
    if (prepare(&gpu.base, NULL, call) < 0) printf("    preparing failed\n");
    time = time_call(call, run, &out);
    print_way("measured", time, operations, out, reference);
    cudaFree(call->workspace);
    for (int i = 0; i < call->inputs; i++) cudaFree(call->in[i].data);
    for (int i = 0; i < call->outputs; i++) cudaFree(call->out[i].data);
}

/* ---- products ---- */

static void bench_linear(const char *name, lk_dtype type, int64_t rows, int64_t inputs, int64_t outputs, bool relu)
{
    lk_dtype     wide = type == LK_BF16 ? LK_F32 : type;
    lk__op_attrs attrs = {};
    double       operations = 2.0 * (double)rows * (double)inputs * (double)outputs;
    int64_t      xd[] = {rows, inputs}, wd[] = {outputs, inputs}, yd[] = {rows, outputs};
    printf("%s: %lld rows, %lld to %lld, %s\n", name, (long long)rows, (long long)inputs, (long long)outputs,
           type == LK_BF16 ? "bf16" : "f32");
    lk__kernel_call call = {};
    call.attrs = &attrs;
    attrs.activation = relu ? LK__RELU : LK__IDENTITY;
    call.inputs = 3, call.outputs = 1;
    call.in[0] = make_operand(type, true, 2, xd), call.in[1] = make_operand(type, true, 2, wd);
    call.in[2] = make_operand(type, true, 1, &outputs), call.out[0] = make_operand(type, false, 2, yd);
    printf("  linear\n");
    compare_ways(&call, operations, lk__cuda_linear, lk__cuda_linear_workspace, lk__cuda_linear_prepare, NULL);
    attrs.activation = LK__IDENTITY;
    call.inputs = 2;
    call.in[0] = make_operand(type, true, 2, yd), call.in[1] = make_operand(type, true, 2, wd);
    call.out[0] = make_operand(type, false, 2, xd);
    printf("  linear_grad_input\n");
    compare_ways(&call, operations, lk__cuda_linear_grad_input, lk__cuda_linear_grad_input_workspace,
                 lk__cuda_linear_grad_input_prepare, NULL);
    call.outputs = 2;
    call.in[0] = make_operand(type, true, 2, xd), call.in[1] = make_operand(type, true, 2, yd);
    call.out[0] = make_operand(wide, false, 2, wd), call.out[1] = make_operand(wide, false, 1, &outputs);
    printf("  linear_grad_weight\n");
    compare_ways(&call, operations, lk__cuda_linear_grad_weight, lk__cuda_linear_grad_weight_workspace,
                 lk__cuda_linear_grad_weight_prepare, NULL);
}

/* Experts' products beside one dense product with the same arithmetic, by the library's measured algorithm. */
static void bench_grouped(int64_t rows, int64_t inputs, int64_t outputs, int64_t experts)
{
    static const run_function ways[2][3] = {
        {lk__cuda_linear, lk__cuda_linear_grad_input, lk__cuda_linear_grad_weight},
        {lk__cuda_grouped_linear, lk__cuda_grouped_linear, lk__cuda_grouped_linear_grad_weight}};
    static const prepare_function prepare[] = {lk__cuda_linear_prepare, lk__cuda_linear_grad_input_prepare,
                                               lk__cuda_linear_grad_weight_prepare};
    static const char *const      names[] = {"linear", "linear_grad_input", "linear_grad_weight"};
    int64_t xd[] = {rows, inputs}, yd[] = {rows, outputs}, wd[] = {outputs, inputs}, gd[] = {experts, outputs, inputs};
    int64_t od[] = {experts + 1};
    double  operations = 2.0 * (double)rows * (double)inputs * (double)outputs;
    std::vector<int32_t>            offsets;
    std::vector<std::vector<float>> out;
    for (int64_t e = 0; e <= experts; e++) offsets.push_back((int32_t)(rows * e / experts));
    printf("%lld experts: %lld rows, %lld to %lld, bf16\n", (long long)experts, (long long)rows, (long long)inputs,
           (long long)outputs);
    for (int kind = 0; kind < 3; kind++) {
        float time[2];
        for (int grouped = 0; grouped < 2; grouped++) {
            lk__op_attrs    attrs = {};
            lk__kernel_call call = {};
            bool            weight = kind == 2;
            attrs.transposed = grouped && kind == 1; /* the weight's outputs are added */
            call.attrs = &attrs, call.device = &gpu.base, call.stream = &stream;
            call.inputs = grouped ? 3 : 2, call.outputs = 1;
            call.in[0] = make_operand(LK_BF16, true, 2, kind == 1 ? yd : xd);
            call.in[1] = weight    ? make_operand(LK_BF16, true, 2, yd)
                         : grouped ? make_operand(LK_BF16, true, 3, gd)
                                   : make_operand(LK_BF16, true, 2, wd);
            call.out[0] = !weight   ? make_operand(LK_BF16, false, 2, kind == 1 ? xd : yd)
                          : grouped ? make_operand(LK_F32, false, 3, gd)
                                    : make_operand(LK_F32, false, 2, wd);
            if (grouped) {
                call.in[2] = make_operand(LK_F32, true, 1, od);
                call.in[2].dtype = LK_I32;
                stop_at(cudaMemcpy(call.in[2].data, offsets.data(), offsets.size() * 4, cudaMemcpyHostToDevice),
                        "copy");
            }
            stop_at(cudaMalloc(&call.workspace, LK__CUDA_PRODUCT_BYTES), "cudaMalloc");
            if (!grouped && prepare[kind](&gpu.base, NULL, &call) < 0) printf("    preparing failed\n");
            time[grouped] = time_call(&call, ways[grouped][kind], &out);
            cudaFree(call.workspace);
            for (int i = 0; i < call.inputs; i++) cudaFree(call.in[i].data);
            cudaFree(call.out[0].data);
        }
        printf("    %-22s%9.1f us %7.1f TFLOPS, %.2f of dense\n", names[kind], (double)time[1],
               operations / (double)time[1] * 1e-6, (double)(time[0] / time[1]));
    }
}

/* With by_heuristic a row has the same bits for every number of rows. */
static void check_rows(lk_dtype type, int64_t inputs, int64_t outputs)
{
    static const int64_t counts[] = {4096, 1000, 513, 64, 31, 1};
    lk__op_attrs         attrs = {};
    lk__kernel_call      call = {};
    std::vector<float>   all;
    int64_t              xd[] = {4096, inputs}, wd[] = {outputs, inputs}, yd[] = {4096, outputs};
    call.attrs = &attrs, call.device = &gpu.base, call.stream = &stream;
    call.inputs = 2, call.outputs = 1;
    call.in[0] = make_operand(type, true, 2, xd), call.in[1] = make_operand(type, true, 2, wd);
    call.out[0] = make_operand(type, false, 2, yd);
    stop_at(cudaMalloc(&call.workspace, LK__CUDA_PRODUCT_BYTES), "cudaMalloc");
    gpu.base.by_heuristic = true;
    printf("rows of %s, %lld to %lld:", type == LK_BF16 ? "bf16" : "f32", (long long)inputs, (long long)outputs);
    for (int64_t rows : counts) {
        call.in[0].dims[0] = call.out[0].dims[0] = rows;
        if (lk__cuda_linear(&call) < 0) printf(" (failed)");
        stop_at(cudaStreamSynchronize(stream.stream), "run");
        std::vector<float> y = read_back(&call.out[0]);
        if (all.empty()) all = y;
        printf(" %lld %s", (long long)rows, memcmp(all.data(), y.data(), y.size() * sizeof(float)) ? "DIFFER" : "same");
    }
    printf("\n");
    gpu.base.by_heuristic = false;
    cudaFree(call.workspace);
}

/* ---- convolutions ---- */

template <conv_direction direction> static lk_status run_own(const lk__kernel_call *call)
{
    return lk__cuda_conv_own(call, direction);
}

static void bench_conv(const char *name, lk_dtype type, int64_t n, int64_t c, int64_t h, int64_t o, int64_t k,
                       int64_t s, bool pool)
{
    lk_dtype     wide = type == LK_BF16 ? LK_F32 : type;
    lk__op_attrs attrs = {};
    int64_t      p = k / 2, full = (h + 2 * p - k) / s + 1, side = pool ? full / 2 : full;
    double       operations = 2.0 * (double)(n * full * full * o) * (double)(c * k * k);
    int64_t      xd[] = {n, c, h, h}, wd[] = {o, c, k, k}, yd[] = {n, o, side, side};
    printf("%s: %lld images of %lld channels, %lldx%lld, to %lld, kernel %lld, stride %lld, %s\n", name, (long long)n,
           (long long)c, (long long)h, (long long)h, (long long)o, (long long)k, (long long)s,
           type == LK_BF16 ? "bf16" : "f32");
    attrs.stride = s, attrs.padding = p, attrs.groups = 1, attrs.pool = pool ? 2 : 0;
    attrs.activation = pool ? LK__RELU : LK__IDENTITY;
    lk__kernel_call call = {};
    call.attrs = &attrs;
    call.inputs = pool ? 3 : 2, call.outputs = pool ? 2 : 1;
    call.in[0] = make_operand(type, true, 4, xd), call.in[1] = make_operand(type, true, 4, wd);
    call.in[2] = make_operand(type, true, 1, &o);
    call.out[0] = make_operand(type, false, 4, yd), call.out[1] = make_operand(LK_U8, false, 4, yd);
    printf("  conv2d\n");
    compare_ways(&call, operations, lk__cuda_conv2d, lk__cuda_conv2d_workspace, lk__cuda_conv2d_prepare,
                 run_own<CONV_FORWARD>);
    call.outputs = 1;
    call.in[0] = make_operand(type, true, 4, yd), call.in[1] = make_operand(type, true, 4, wd);
    call.in[2] = make_operand(LK_U8, true, 4, yd), call.out[0] = make_operand(type, false, 4, xd);
    printf("  conv2d_grad_input\n");
    compare_ways(&call, operations, lk__cuda_conv2d_grad_input, lk__cuda_conv2d_grad_input_workspace,
                 lk__cuda_conv2d_grad_input_prepare, run_own<CONV_GRAD_INPUT>);
    call.outputs = 2;
    call.in[0] = make_operand(type, true, 4, xd), call.in[1] = make_operand(type, true, 4, yd);
    call.in[2] = make_operand(LK_U8, true, 4, yd);
    call.out[0] = make_operand(wide, false, 4, wd), call.out[1] = make_operand(wide, false, 1, &o);
    printf("  conv2d_grad_weight\n");
    compare_ways(&call, operations, lk__cuda_conv2d_grad_weight, lk__cuda_conv2d_grad_weight_workspace,
                 lk__cuda_conv2d_grad_weight_prepare, run_own<CONV_GRAD_WEIGHT>);
}

int main(int count, char **arguments)
{
    if (count > 1) repeats = atoi(arguments[1]);
    stop_at(cudaSetDevice(0), "cudaSetDevice");
    stop_at(cudaStreamCreate(&stream.stream), "cudaStreamCreate");
    gpu.capability = 90;
    bench_grouped(16384, 1024, 4096, 8);
    bench_grouped(16384, 4096, 1024, 8);
    bench_grouped(32768, 4096, 4096, 8);
    if (count > 2) return 0; /* experts alone */
    bench_conv("SimpleCNN 1", LK_F32, 64, 3, 32, 32, 3, 1, true);
    bench_conv("SimpleCNN 2", LK_F32, 64, 32, 16, 64, 3, 1, true);
    bench_linear("SimpleCNN fc1", LK_F32, 64, 4096, 128, true);
    bench_linear("SimpleCNN fc2", LK_F32, 64, 128, 10, false);
    bench_linear("tiny MLP", LK_F32, 32, 64, 128, true);
    bench_linear("generation, GPT-2", LK_BF16, 1, 768, 2304, false);
    bench_linear("generation, GPT-2, logits", LK_BF16, 1, 768, 50304, false);
    bench_linear("generation, Llama-3.2-1B", LK_BF16, 1, 2048, 8192, false);
    bench_linear("generation, batch 8", LK_BF16, 8, 768, 3072, false);
    bench_linear("GPT-2, attention", LK_BF16, 16384, 768, 2304, false);
    bench_linear("GPT-2, projection", LK_BF16, 16384, 768, 768, false);
    bench_linear("GPT-2, up", LK_BF16, 16384, 768, 3072, false);
    bench_linear("GPT-2, down", LK_BF16, 16384, 3072, 768, false);
    check_rows(LK_BF16, 768, 3072);
    check_rows(LK_F32, 768, 768);
    check_rows(LK_F32, 4096, 128);
    bench_conv("ResNet-18, stem", LK_BF16, 256, 3, 32, 64, 3, 1, false);
    bench_conv("ResNet-18, 64", LK_BF16, 256, 64, 32, 64, 3, 1, false);
    bench_conv("ResNet-18, 64 to 128", LK_BF16, 256, 64, 32, 128, 3, 2, false);
    bench_conv("ResNet-18, shortcut", LK_BF16, 256, 64, 32, 128, 1, 2, false);
    bench_conv("ResNet-18, 128", LK_BF16, 256, 128, 16, 128, 3, 1, false);
    bench_conv("ResNet-18, 256", LK_BF16, 256, 256, 8, 256, 3, 1, false);
    bench_conv("ResNet-18, 512", LK_BF16, 256, 512, 4, 512, 3, 1, false);
    return 0;
}
