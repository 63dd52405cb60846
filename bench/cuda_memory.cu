/* cuda_memory.cu - kernels of a GPU that are bound by memory: layer norm with its gradient, and AdamW over the tensors
 * of GPT-2 124M. Their times, beside the rate of a copy within the GPU's memory, and how far samples of their results
 * are from a plain loop in double on the host.
 *
 * Built by `ninja cuda_memory` in a build with LK_CUDA, as build/bench/cuda_memory, or by
 *     nvcc -std=c++17 -O3 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -DLK_CUDA_SM_90A \
 *          -Iinclude -Isrc -o cuda_memory bench/cuda_memory.cu src/device/cuda/{layer_norm,adam}.cu
 *     ./cuda_memory [repeats]
 *
 * It needs no library of Lockstep: what the module would be given is defined here. The runs of a time are one CUDA
 * graph, as a training step is, and each run has other operands than the ones before, so that the second-level cache
 * has none of them. LOCKSTEP_CUDA_OVERLAP=0: kernels start only after the previous one has ended. */
#include "device/cuda/backend.h"
#include "device/cuda/cuda.h"

#include <algorithm>
#include <functional>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" {
lk_status lk__cuda_layer_norm(const lk__kernel_call *call);
lk_status lk__cuda_layer_norm_grad(const lk__kernel_call *call);
size_t    lk__cuda_layer_norm_grad_workspace(const lk__kernel_call *call, int threads);
lk_status lk__cuda_update_adam(const lk__kernel_call *const *calls, int n, const struct step_end *ending);
}

/* ---- what the module has of its library ---- */

lk__cuda_library lk__cuda_host;
bool             lk__cuda_early;

lk_status lk__cuda_check(lk__device *, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return LK_OK;
    printf("    failure: %s: %s\n", what, cudaGetErrorString(error));
    return LK_EIO;
}
cudaStream_t lk__cuda_stream_of(lk__device *, lk__device_stream *s) { return s->stream; }
lk_status    lk__cuda_launched(const lk__kernel_call *call)
{
    return lk__cuda_check(call->device, cudaGetLastError(), "launch");
}
lk_status lk__cuda_no_kernel(const lk__kernel_call *) { return LK_EUNSUPPORTED; }

static lk__cuda_device   gpu;
static lk__device_stream stream;
static int               repeats = 24;
static double            copy_rate; /* bytes a second, read and written */

static void stop_at(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* ---- operands ---- */

static std::vector<void *> allocations; /* of the case that runs */

static void *make_memory(size_t bytes)
{
    void *memory;
    stop_at(cudaMalloc(&memory, bytes), "cudaMalloc");
    allocations.push_back(memory);
    return memory;
}
static void free_memory(void)
{
    for (void *memory : allocations) cudaFree(memory);
    allocations.clear();
}

/* Evenly distributed in low … high, by a hash of the index and the seed. */
template <typename T> static __global__ void fill_kernel(T *x, int64_t n, uint32_t seed, float low, float high)
{
    EACH_INDEX(i, n)
    {
        uint32_t h = (uint32_t)i * 0x9e3779b1u ^ seed * 0x85ebca6bu;
        h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
        store(x + i, low + (high - low) * ((float)(h >> 8) * 0x1p-24f));
    }
}

/* Filled with numbers of low … high; with NaN where low > high. */
static lk__kernel_operand make_operand(lk_dtype type, int64_t rows, int64_t columns, float low, float high)
{
    static uint32_t    seed;
    lk__kernel_operand o = {};
    o.dtype = type, o.rank = columns ? 2 : 1, o.dims[0] = rows, o.dims[1] = columns;
    int64_t n = lk__operand_elements(&o);
    o.data = make_memory((size_t)n * cuda_size(type));
    seed++;
    if (low > high)
        cudaMemsetAsync(o.data, 0xff, (size_t)n * cuda_size(type), stream.stream);
    else if (type == LK_BF16)
        fill_kernel<<<1024, 256, 0, stream.stream>>>((bf16 *)o.data, n, seed, low, high);
    else
        fill_kernel<<<1024, 256, 0, stream.stream>>>((float *)o.data, n, seed, low, high);
    return o;
}

/* n elements from `first` on. */
static std::vector<double> read_part(const lk__kernel_operand *x, int64_t first, int64_t n)
{
    size_t              size = cuda_size(x->dtype);
    std::vector<char>   raw((size_t)n * size);
    std::vector<double> out((size_t)n);
    stop_at(cudaStreamSynchronize(stream.stream), "run");
    stop_at(cudaMemcpy(raw.data(), (const char *)x->data + (size_t)first * size, raw.size(), cudaMemcpyDeviceToHost),
            "copy");
    for (size_t i = 0; i < out.size(); i++)
        out[i] =
            x->dtype == LK_BF16 ? (double)__bfloat162float(((bf16 *)raw.data())[i]) : (double)((float *)raw.data())[i];
    return out;
}
static std::vector<double> read_all(const lk__kernel_operand *x) { return read_part(x, 0, lk__operand_elements(x)); }

/* ---- times ---- */

/* Seconds of one run, of `repeats` in a graph; the fastest of five launches. */
static double time_runs(const std::function<void(int)> &run)
{
    cudaGraph_t     graph;
    cudaGraphExec_t executable;
    cudaEvent_t     begin, end;
    double          best = INFINITY;
    stop_at(cudaEventCreate(&begin), "event");
    stop_at(cudaEventCreate(&end), "event");
    stop_at(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < repeats; i++) run(i);
    stop_at(cudaStreamEndCapture(stream.stream, &graph), "capture");
    stop_at(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (int i = 0; i < 6; i++) {
        float milliseconds = 0;
        stop_at(cudaEventRecord(begin, stream.stream), "event");
        stop_at(cudaGraphLaunch(executable, stream.stream), "graph");
        stop_at(cudaEventRecord(end, stream.stream), "event");
        stop_at(cudaEventSynchronize(end), "run");
        stop_at(cudaEventElapsedTime(&milliseconds, begin, end), "event");
        if (i > 0) best = std::min(best, (double)milliseconds * 1e-3 / repeats);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return best;
}

static void print_time(const char *name, double seconds, double bytes)
{
    printf("%-44s%9.1f us %8.0f GB/s %6.1f %% of a copy", name, seconds * 1e6, bytes / seconds * 1e-9,
           100 * bytes / seconds / copy_rate);
}

/* What is read and written by copies of so many bytes each. */
/* A kernel: the copies of a graph's nodes reach two thirds of its rate. */
static __global__ void copy_packs(uint4 *to, const uint4 *from, size_t packs)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < packs; i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

static double time_copy(size_t bytes)
{
    enum { PAIRS = 4 };
    void *from[PAIRS], *to[PAIRS];
    for (int i = 0; i < PAIRS; i++) from[i] = make_memory(bytes), to[i] = make_memory(bytes);
    double seconds = time_runs([&](int i) {
        copy_packs<<<(unsigned)(bytes / sizeof(uint4) / 512), 512, 0, stream.stream>>>(
            (uint4 *)to[i % PAIRS], (const uint4 *)from[i % PAIRS], bytes / sizeof(uint4));
    });
    free_memory();
    return seconds;
}

/* ---- layer norm ---- */

enum { SETS = 4, SAMPLES = 64 }; /* of operands, and of rows that are checked */

struct norm_calls {
    lk__op_attrs    attrs;
    lk__kernel_call forward[SETS], backward[SETS];
    int64_t         rows, n;
    lk_dtype        type;
    bool            residual, sums;
};

static void make_norms(norm_calls *c)
{
    int64_t rows = c->rows, n = c->n;
    c->attrs.axis = 1, c->attrs.epsilon = 1e-5;
    for (int i = 0; i < SETS; i++) {
        lk__kernel_call *f = &c->forward[i], *b = &c->backward[i];
        *f = *b = {};
        f->attrs = b->attrs = &c->attrs, f->device = b->device = &gpu.base, f->stream = b->stream = &stream;
        f->inputs = f->outputs = c->residual ? 4 : 3;
        f->in[0] = make_operand(c->type, rows, n, -2, 3);
        f->in[1] = make_operand(LK_F32, n, 0, 0.5f, 1.5f), f->in[2] = make_operand(LK_F32, n, 0, -1, 1);
        f->out[0] = make_operand(c->type, rows, n, 1, 0);
        f->out[1] = make_operand(LK_F32, rows, 0, 1, 0), f->out[2] = make_operand(LK_F32, rows, 0, 1, 0);
        if (c->residual)
            f->in[3] = make_operand(c->type, rows, n, -2, 2), f->out[3] = make_operand(c->type, rows, n, 1, 0);
        b->inputs = c->residual ? 6 : 5, b->outputs = c->sums ? 3 : 1;
        b->in[0] = make_operand(c->type, rows, n, -1, 1);
        b->in[1] = c->residual ? f->out[3] : f->in[0];
        b->in[2] = f->in[1], b->in[3] = f->out[1], b->in[4] = f->out[2];
        if (c->residual) b->in[5] = make_operand(c->type, rows, n, -1, 1);
        b->out[0] = make_operand(c->type, rows, n, 1, 0);
        for (int k = 1; k < b->outputs; k++) b->out[k] = make_operand(LK_F32, n, 0, 1, 0);
        b->workspace = make_memory(lk__cuda_layer_norm_grad_workspace(b, 1) + 1);
    }
}

/* The largest difference, as a fraction of the largest number. */
struct difference {
    double most, size;
    void   add(double x, double reference)
    {
        most = std::isnan(x) ? INFINITY : std::max(most, fabs(x - reference));
        size = std::max(size, fabs(reference));
    }
    double fraction() const { return most / (size > 0 ? size : 1); }
};

static void print_differences(const char *names, const std::vector<difference> &all)
{
    printf("  difference of %s:", names);
    for (const difference &d : all) printf(" %.1e", d.fraction());
    printf("\n");
}

/* y and the statistics, of every rows/SAMPLES-th row; and the sum is that of the rounded numbers. */
static void check_forward(const norm_calls *c)
{
    const lk__kernel_call  *f = &c->forward[0];
    std::vector<difference> found(4);
    std::vector<double>     w = read_all(&f->in[1]), b = read_all(&f->in[2]);
    for (int64_t row = 0; row < c->rows; row += c->rows / SAMPLES) {
        std::vector<double> x = read_part(&f->in[0], row * c->n, c->n), y = read_part(&f->out[0], row * c->n, c->n);
        double              mean = 0, squares = 0, rstd;
        if (c->residual) {
            std::vector<double> residual = read_part(&f->in[3], row * c->n, c->n),
                                sum = read_part(&f->out[3], row * c->n, c->n);
            for (int64_t i = 0; i < c->n; i++) found[3].add(sum[i], x[i] + residual[i]);
            x = sum;
        }
        for (double v : x) mean += v / (double)c->n;
        for (double v : x) squares += (v - mean) * (v - mean) / (double)c->n;
        rstd = 1 / sqrt(squares + 1e-5);
        for (int64_t i = 0; i < c->n; i++) found[0].add(y[i], (x[i] - mean) * rstd * w[i] + b[i]);
        found[1].add(read_part(&f->out[1], row, 1)[0], mean);
        found[2].add(read_part(&f->out[2], row, 1)[0], rstd);
    }
    print_differences("y, mean, rstd, sum", found);
}

/* dx of every rows/SAMPLES-th row, dw and db of all. */
static void check_backward(const norm_calls *c)
{
    const lk__kernel_call  *b = &c->backward[0];
    std::vector<difference> found(3);
    std::vector<double>     dw((size_t)c->n), db((size_t)c->n), w = read_all(&b->in[2]), dx, residual;
    std::vector<double>     dy = read_all(&b->in[0]), x = read_all(&b->in[1]), mean = read_all(&b->in[3]),
                        rstd = read_all(&b->in[4]);
    for (int64_t row = 0; row < c->rows; row++) {
        const double *d = &dy[row * c->n], *v = &x[row * c->n];
        double        level = 0, slope = 0, r = rstd[row], m = mean[row];
        for (int64_t i = 0; i < c->n; i++) {
            double h = (v[i] - m) * r;
            dw[i] += d[i] * h, db[i] += d[i];
            level += d[i] * w[i] / (double)c->n, slope += d[i] * w[i] * h / (double)c->n;
        }
        if (row % (c->rows / SAMPLES)) continue;
        dx = read_part(&b->out[0], row * c->n, c->n);
        if (c->residual) residual = read_part(&b->in[5], row * c->n, c->n);
        for (int64_t i = 0; i < c->n; i++)
            found[0].add(dx[i], r * (d[i] * w[i] - level - (v[i] - m) * r * slope) + (c->residual ? residual[i] : 0));
    }
    for (int k = 1; k < b->outputs; k++) {
        std::vector<double> sum = read_all(&b->out[k]);
        for (int64_t i = 0; i < c->n; i++) found[k].add(sum[i], k == 1 ? dw[i] : db[i]);
    }
    print_differences("dx, dw, db", found);
}

static void bench_norm(lk_dtype type, int64_t rows, int64_t n, bool residual, bool sums)
{
    norm_calls c = {};
    char       name[64];
    double     whole = (double)(rows * n) * (double)cuda_size(type);
    c.type = type, c.rows = rows, c.n = n, c.residual = residual, c.sums = sums;
    make_norms(&c);
    double seconds = time_runs([&](int i) { lk__cuda_layer_norm(&c.forward[i % SETS]); });
    snprintf(name, sizeof name, "norm %lldx%lld %s%s", (long long)rows, (long long)n, type == LK_BF16 ? "bf16" : "f32",
             residual ? ", residual" : "");
    print_time(name, seconds, whole * (residual ? 4 : 2));
    check_forward(&c);
    seconds = time_runs([&](int i) { lk__cuda_layer_norm_grad(&c.backward[i % SETS]); });
    snprintf(name, sizeof name, "  its gradient%s", sums ? ", dw, db" : "");
    print_time(name, seconds, whole * (residual ? 4 : 3));
    check_backward(&c);
    free_memory();
}

/* ---- AdamW ---- */

struct adam_tensor {
    lk__op_attrs    attrs;
    lk__kernel_call call;
};

static void add_tensor(std::vector<adam_tensor> *all, int64_t rows, int64_t columns)
{
    adam_tensor      t = {};
    lk__kernel_call *c = &t.call;
    t.attrs.lr_scale = 1, t.attrs.weight_decay = columns ? 0.1 : 0, t.attrs.beta1 = 0.9, t.attrs.beta2 = 0.95;
    t.attrs.epsilon = 1e-8, t.attrs.decoupled = true;
    c->inputs = 2, c->outputs = 4, c->device = &gpu.base, c->stream = &stream;
    c->in[0] = make_operand(LK_F32, rows, columns, -1, 1);
    c->out[0] = make_operand(LK_F32, rows, columns, -1, 1), c->out[1] = make_operand(LK_F32, rows, columns, -1, 1);
    c->out[2] = make_operand(LK_F32, rows, columns, 0, 1), c->out[3] = make_operand(LK_BF16, rows, columns, 1, 0);
    all->push_back(t);
}

/* 124M with 50,304 tokens. */
static std::vector<adam_tensor> make_gpt2(void)
{
    std::vector<adam_tensor> all;
    add_tensor(&all, 50304, 768), add_tensor(&all, 1024, 768);
    for (int layer = 0; layer < 12; layer++) {
        add_tensor(&all, 768, 0), add_tensor(&all, 768, 0), add_tensor(&all, 2304, 768), add_tensor(&all, 2304, 0);
        add_tensor(&all, 768, 768), add_tensor(&all, 768, 0), add_tensor(&all, 768, 0), add_tensor(&all, 768, 0);
        add_tensor(&all, 3072, 768), add_tensor(&all, 3072, 0), add_tensor(&all, 768, 3072), add_tensor(&all, 768, 0);
    }
    add_tensor(&all, 768, 0), add_tensor(&all, 768, 0);
    return all;
}

/* Up to 8192 numbers from the end of a tensor, which may be less than a block's part. */
static std::vector<double> read_end(const lk__kernel_operand *x)
{
    int64_t n = lk__operand_elements(x), some = std::min(n, (int64_t)8192);
    return read_part(x, n - some, some);
}

/* One step of each tensor; afterwards its state has other numbers. */
static void check_adam(const std::vector<adam_tensor> &all, const lk__kernel_step &step, double scale,
                       const std::function<void(int)> &run)
{
    std::vector<std::vector<double>> before[4];
    std::vector<difference>          found(4);
    for (const adam_tensor &t : all) {
        before[0].push_back(read_end(&t.call.in[0]));
        for (int k = 0; k < 3; k++) before[1 + k].push_back(read_end(&t.call.out[k]));
    }
    run(0);
    for (size_t a = 0; a < all.size(); a++) {
        const lk__op_attrs &o = all[a].attrs;
        std::vector<double> after[4];
        for (int k = 0; k < 4; k++) after[k] = read_end(&all[a].call.out[k]);
        for (size_t i = 0; i < after[0].size(); i++) {
            double g = before[0][a][i] * scale, p = before[1][a][i], m = before[2][a][i], v = before[3][a][i];
            m = o.beta1 * m + (1 - o.beta1) * g, v = o.beta2 * v + (1 - o.beta2) * g * g;
            p *= 1 - step.rate * o.weight_decay;
            p -= step.rate * m / (1 - pow(o.beta1, (double)step.step)) /
                 (sqrt(v / (1 - pow(o.beta2, (double)step.step))) + o.epsilon);
            found[0].add(after[0][i], p), found[1].add(after[1][i], m), found[2].add(after[2][i], v);
            found[3].add(after[3][i], p);
        }
    }
    print_differences("parameter, moments, bf16", found);
}

static void bench_adam(void)
{
    std::vector<adam_tensor>             all = make_gpt2();
    std::vector<const lk__kernel_call *> calls;
    lk__kernel_step                      step = {};
    lk__kernel_operand                   scale = make_operand(LK_F32, 2, 0, 1, 0); /* a double */
    lk__kernel_step                     *memory = (lk__kernel_step *)make_memory(sizeof step);
    double                               elements = 0, factor = 0.25;
    step.step = 7, step.rate = 6e-4;
    stop_at(cudaMemcpy(memory, &step, sizeof step, cudaMemcpyHostToDevice), "copy");
    stop_at(cudaStreamSynchronize(stream.stream), "fill");
    stop_at(cudaMemcpy(scale.data, &factor, sizeof factor, cudaMemcpyHostToDevice), "copy");
    for (adam_tensor &t : all) {
        t.call.attrs = &t.attrs, t.call.step_memory = memory;
        t.call.in[1] = scale, t.call.in[1].dtype = LK_F64, t.call.in[1].rank = 0;
        elements += (double)lk__operand_elements(&t.call.out[0]);
        calls.push_back(&t.call);
    }
    auto   run = [&](int) { lk__cuda_update_adam(calls.data(), (int)calls.size(), NULL); };
    double bytes = elements * (4 * 4 + 3 * 4 + 2), seconds;
    int    many = repeats;
    printf("AdamW, one step:");
    check_adam(all, step, factor, run);
    repeats = std::max(1, repeats / 4);
    seconds = time_runs(run);
    repeats = many;
    print_time("AdamW, GPT-2 124M, stored in bf16", seconds, bytes);
    printf("  %.1f M parameters in %zu tensors\n", elements * 1e-6, calls.size());
    free_memory();
}

int main(int count, char **arguments)
{
    const char *overlap = getenv("LOCKSTEP_CUDA_OVERLAP");
    if (count > 1) repeats = std::max((int)SETS, atoi(arguments[1]));
    stop_at(cudaSetDevice(0), "cudaSetDevice");
    stop_at(cudaStreamCreate(&stream.stream), "cudaStreamCreate");
    gpu.capability = 90;
    stop_at(cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    lk__cuda_early = !(overlap && strcmp(overlap, "0") == 0);
    double seconds = time_copy((size_t)512 << 20);
    copy_rate = 2.0 * (512 << 20) / seconds;
    print_time("copy of 512 MiB", seconds, 2.0 * (512 << 20));
    printf("\n");
    seconds = time_copy((size_t)16384 * 768 * 4);
    print_time("copy of 48 MiB", seconds, 2.0 * 16384 * 768 * 4);
    printf("\n");
    bench_norm(LK_BF16, 16384, 768, true, true);
    bench_norm(LK_BF16, 16384, 768, false, true);
    bench_norm(LK_BF16, 16384, 768, true, false);
    bench_norm(LK_BF16, 16384, 1024, true, true);
    bench_norm(LK_BF16, 32768, 384, true, true);
    bench_norm(LK_BF16, 8192, 2048, true, true);
    bench_norm(LK_BF16, 4096, 4096, true, true);
    bench_norm(LK_F32, 8192, 768, true, true);
    bench_adam();
    return 0;
}
