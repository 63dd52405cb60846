/* cuda_conv.cu - convolutions of f32 on a GPU, shape by shape: times of the kernels for all shapes (plain) and of those
 * for 3×3 kernels in every tile shape that is compiled in, how far their results are from those of plain loops in
 * double, and whether they have the same bits in every run.
 *
 *     nvcc -std=c++17 -O3 --expt-relaxed-constexpr -DLK_CONV_VARIANTS -gencode arch=compute_90a,code=sm_90a \
 *          -Iinclude -Isrc \
 *          -o cuda_conv bench/cuda_conv.cu src/device/cuda/{conv,conv_direct,conv_direct_weight,conv_first}.cu
 *     ./cuda_conv [-c] [-n batch] [shape …]     (-c: results alone; shapes from 0, all without)
 *
 * A time is that of one run within a CUDA graph of 20, the median of 15 replays: what the operation adds to a step,
 * with the gaps between kernels, and with operands in the L2 cache where they fit. `cold`: each run behind a memset of
 * 256 MiB, whose own time is subtracted. It needs no library of Lockstep: what the module would be given is defined
 * here. */
#include "device/cuda/conv_ways.h"
#include "device/cuda/gemm.h"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

/* ---- what the module has of its other files ---- */

static cudaStream_t stream;
#if !defined(LK_CUDA_EMULATED)
bool lk__cuda_early = true;
#endif
lk__cuda_library lk__cuda_host;
bool             lk__cuda_plain(void) { return true; } /* no libraries */
cudaStream_t     lk__cuda_stream_of(lk__device *, lk__device_stream *) { return stream; }
lk_status        lk__cuda_no_kernel(const lk__kernel_call *) { return LK_EUNSUPPORTED; }
lk_status        lk__cuda_check(lk__device *, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) printf("%s: %s\n", what, cudaGetErrorString(error));
    return error == cudaSuccess ? LK_OK : LK_EIO;
}
lk_status lk__cuda_launched(const lk__kernel_call *call)
{
    return lk__cuda_check(call->device, cudaGetLastError(), "launch");
}
lk_status lk__cuda_conv_tensor_run(const lk__kernel_call *, conv_direction) { return LK_EUNSUPPORTED; }
size_t    lk__cuda_conv_tensor_workspace(const lk__kernel_call *, conv_direction) { return 0; }
lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *, conv_direction) { return LK_EUNSUPPORTED; }
lk_status lk__cuda_conv_dnn_prepare(lk__device *, const lk__kernel_call *, conv_direction) { return LK_OK; }
size_t    lk__cuda_conv_dnn_workspace(const lk__kernel_call *, conv_direction) { return 0; }
lk_status lk__cuda_column_sums(const lk__kernel_call *, const void *, lk_dtype, const uint8_t *, int64_t, int64_t,
                               const lk__kernel_leaves *, void *, void *)
{
    return LK_EUNSUPPORTED;
}
size_t lk__cuda_column_sums_workspace(int64_t, int64_t) { return 0; }

/* ---- shapes ---- */

typedef struct setting {
    const char *name;
    int         n, c, side, o;
    bool        pools; /* with relu and bias */
} setting;

static const setting settings[] = {
    {"SimpleCNN conv1", 64, 3, 32, 32, true},           {"SimpleCNN conv2", 64, 32, 16, 64, true},
    {"ResNet-20 stem", 128, 3, 32, 16, false},          {"ResNet-20 16 channels", 128, 16, 32, 16, false},
    {"ResNet-20 32 channels", 128, 32, 16, 32, false},  {"ResNet-20 64 channels", 128, 64, 8, 64, false},
    {"ResNet-18 64 channels", 64, 64, 32, 64, false},   {"ResNet-18 128 channels", 64, 128, 16, 128, false},
    {"ResNet-18 256 channels", 64, 256, 8, 256, false},
};
enum { VARIANTS = 16, REPEATS = 20, REPLAYS = 15 };

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

static float *make_random(int64_t n, double scale)
{
    std::vector<float> x((size_t)n);
    for (float &v : x) v = (float)(scale * ((double)rand() / RAND_MAX * 2 - 1));
    void *memory = reserve(x.size() * sizeof(float));
    stop_at(cudaMemcpy(memory, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
    return (float *)memory;
}

/* Positions of maxima; a tenth of the windows have none. */
static uint8_t *make_positions(int64_t n)
{
    std::vector<uint8_t> x((size_t)n);
    for (uint8_t &v : x) v = rand() % 10 == 0 ? 255 : (uint8_t)(rand() % 4);
    void *memory = reserve(x.size());
    stop_at(cudaMemcpy(memory, x.data(), x.size(), cudaMemcpyHostToDevice), "copy");
    return (uint8_t *)memory;
}

template <typename T> static std::vector<T> read_back(const void *from, size_t n)
{
    std::vector<T> out(n);
    stop_at(cudaMemcpy(out.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return out;
}

/* ---- the reference: plain loops in double ---- */

static __device__ double gradient_at(const float *dy, const uint8_t *index, const setting &s, int64_t n, int y, int x,
                                     int o)
{
    if (!index) return dy[((n * s.side + y) * s.side + x) * s.o + o];
    int     half = s.side / 2;
    int64_t at = ((n * half + y / 2) * half + x / 2) * s.o + o;
    return index[at] == y % 2 * 2 + x % 2 ? dy[at] : 0;
}

/* direction forward: out (pixel, o) before relu and pool, with the bias; grad_input: out (pixel, c). */
static __global__ void reference_image(setting s, bool input, const float *from, const uint8_t *index, const float *w,
                                       const float *bias, double *out, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int     width = input ? s.c : s.o, deep = input ? s.o : s.c;
    if (i >= count) return;
    int     to = (int)(i % width), x = (int)(i / width % s.side), y = (int)(i / width / s.side % s.side);
    int64_t n = i / width / s.side / s.side;
    double  sum = bias ? bias[to] : 0;
    for (int ky = 0; ky < 3; ky++)
        for (int kx = 0; kx < 3; kx++) {
            int row = input ? y - ky + 1 : y + ky - 1, column = input ? x - kx + 1 : x + kx - 1;
            if (row < 0 || row >= s.side || column < 0 || column >= s.side) continue;
            for (int k = 0; k < deep; k++) {
                double  u = input ? gradient_at(from, index, s, n, row, column, k)
                                  : from[((n * s.side + row) * s.side + column) * s.c + k];
                int64_t o = input ? k : to, c = input ? to : k;
                sum += u * w[((o * s.c + c) * 3 + ky) * 3 + kx];
            }
        }
    out[i] = sum;
}

/* A block computes element blockIdx.x*step of dw; those behind it are the bias gradients. */
static __global__ void reference_weight(setting s, const float *from, const float *dy, const uint8_t *index,
                                        int64_t step, int64_t sampled, double *out)
{
    __shared__ double sums[256];
    bool              is_bias = blockIdx.x >= sampled;
    int64_t           i = is_bias ? 0 : blockIdx.x * step, pixels = (int64_t)s.n * s.side * s.side;
    int               kx = (int)(i % 3), ky = (int)(i / 3 % 3), c = (int)(i / 9 % s.c);
    int               o = is_bias ? (int)(blockIdx.x - sampled) : (int)(i / 9 / s.c);
    double            sum = 0;
    for (int64_t p = threadIdx.x; p < pixels; p += 256) {
        int     x = (int)(p % s.side), y = (int)(p / s.side % s.side), row = y + ky - 1, column = x + kx - 1;
        int64_t n = p / s.side / s.side;
        double  g = gradient_at(dy, index, s, n, y, x, o);
        if (is_bias)
            sum += g;
        else if (row >= 0 && row < s.side && column >= 0 && column < s.side)
            sum += g * from[((n * s.side + row) * s.side + column) * s.c + c];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int t = 1; t < 256; t++) sum += sums[t];
    out[blockIdx.x] = sum;
}

typedef struct difference {
    double error, largest, squares, error_squares;
} difference;
static void compare(difference *d, double want, double got)
{
    double e = fabs(want - got);
    d->error = e == e ? fmax(d->error, e) : INFINITY;
    d->largest = fmax(d->largest, fabs(want));
    d->squares += want * want;
    d->error_squares += e * e;
}

/* ---- one direction of one shape ---- */

typedef struct job {
    const setting      *s;
    conv_direction      direction;
    lk__kernel_call     call;
    std::vector<double> reference; /* images: before relu and pool; weights: sampled, then the bias */
    int64_t             step, sampled;
} job;

static void make_reference(job *j)
{
    const setting &s = *j->s;
    const float   *a = (const float *)j->call.in[0].data, *b = (const float *)j->call.in[1].data;
    const uint8_t *index = s.pools ? (const uint8_t *)j->call.in[2].data : NULL;
    int64_t        n, weights = (int64_t)9 * s.c * s.o;
    double        *out;
    if (j->direction == CONV_GRAD_WEIGHT) {
        j->step = weights > 2000 ? weights / 2000 | 1 : 1;
        j->sampled = (weights + j->step - 1) / j->step;
        n = j->sampled + s.o;
        out = (double *)reserve((size_t)n * sizeof(double));
        LAUNCH(reference_weight, (unsigned)n, 256, 0, stream, s, a, b, index, j->step, j->sampled, out);
    } else {
        bool input = j->direction == CONV_GRAD_INPUT;
        n = (int64_t)s.n * s.side * s.side * (input ? s.c : s.o);
        out = (double *)reserve((size_t)n * sizeof(double));
        LAUNCH(reference_image, (unsigned)((n + 255) / 256), 256, 0, stream, s, input, a, input ? index : NULL, b,
               input ? NULL : (const float *)j->call.in[2].data, out, n);
    }
    stop_at(cudaDeviceSynchronize(), "the reference");
    j->reference = read_back<double>(out, (size_t)n);
    cudaFree(out);
}

/* A pooled result against the pixel that it names: which of two nearly equal maxima is not said. */
static difference check_forward(const job *j)
{
    const setting     &s = *j->s;
    int                half = s.side / 2;
    size_t             count = (size_t)lk__operand_elements(&j->call.out[0]);
    std::vector<float> y = read_back<float>(j->call.out[0].data, count);
    difference         d = {};
    if (!s.pools) {
        for (size_t i = 0; i < count; i++) compare(&d, fmax(j->reference[i], 0), y[i]);
        return d;
    }
    std::vector<uint8_t> at = read_back<uint8_t>(j->call.out[1].data, count);
    for (size_t i = 0; i < count; i++) {
        int64_t o = (int64_t)i % s.o, x = (int64_t)i / s.o % half, row = (int64_t)i / s.o / half; /* of all images */
        double  want = 0, named = 0;
        for (int p = 0; p < 4; p++) {
            double v = j->reference[(size_t)(((row * 2 + p / 2) * s.side + x * 2 + p % 2) * s.o + o)];
            want = fmax(want, v);
            if (at[i] == p) named = v;
        }
        compare(&d, want, y[i]);
        compare(&d, want, at[i] < 4 || at[i] == 255 ? named : NAN);
    }
    return d;
}

static difference check_results(const job *j)
{
    if (j->direction == CONV_FORWARD) return check_forward(j);
    difference         d = {};
    std::vector<float> got = read_back<float>(j->call.out[0].data, (size_t)lk__operand_elements(&j->call.out[0]));
    if (j->direction == CONV_GRAD_INPUT) {
        for (size_t i = 0; i < got.size(); i++) compare(&d, j->reference[i], got[i]);
        return d;
    }
    std::vector<float> db = read_back<float>(j->call.out[1].data, (size_t)j->s->o);
    for (int64_t i = 0; i < j->sampled; i++) compare(&d, j->reference[(size_t)i], got[(size_t)(i * j->step)]);
    for (int o = 0; o < j->s->o; o++) compare(&d, j->reference[(size_t)(j->sampled + o)], db[(size_t)o]);
    return d;
}

static lk_status run_once(const job *j, bool plain)
{
    setenv("LOCKSTEP_CUDA_PLAIN", plain ? "1" : "0", 1);
    return plain ? lk__cuda_conv_own(&j->call, j->direction) : lk__cuda_conv_direct_run(&j->call, j->direction);
}

static void *flush;
enum { FLUSH_BYTES = 256 << 20 };
static bool checks_only;

/* Microseconds of a run; with `cold`, of a memset and a run; with `empty`, of the memset. */
static double measure(const job *j, bool plain, bool cold, bool empty)
{
    cudaGraph_t         graph;
    cudaGraphExec_t     exec;
    cudaEvent_t         begin, end;
    std::vector<double> times;
    stop_at(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    for (int i = 0; i < REPEATS; i++) {
        if (cold) stop_at(cudaMemsetAsync(flush, i, FLUSH_BYTES, stream), "memset");
        if (!empty) run_once(j, plain);
    }
    stop_at(cudaStreamEndCapture(stream, &graph), "capture");
    stop_at(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = 0; i < REPLAYS + 2; i++) {
        float ms;
        cudaEventRecord(begin, stream);
        stop_at(cudaGraphLaunch(exec, stream), "graph");
        cudaEventRecord(end, stream);
        stop_at(cudaEventSynchronize(end), "runs");
        cudaEventElapsedTime(&ms, begin, end);
        if (i >= 2) times.push_back(ms * 1e3 / REPEATS);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static std::vector<float> run_and_read(const job *j, bool plain)
{
    for (int i = 0; i < j->call.outputs; i++)
        cudaMemset(j->call.out[i].data, 0xff,
                   (size_t)lk__operand_elements(&j->call.out[i]) * cuda_size(j->call.out[i].dtype));
    run_once(j, plain);
    stop_at(cudaDeviceSynchronize(), "a run");
    return read_back<float>(j->call.out[0].data, (size_t)lk__operand_elements(&j->call.out[0]));
}

/* One line, or none where the kernel does not do this shape. */
static void measure_kernel(const job *j, const char *name, bool plain, double memset_time)
{
    if (run_once(j, plain) < 0) return;
    const setting     &s = *j->s;
    std::vector<float> results = run_and_read(j, plain);
    difference         d = check_results(j);
    std::vector<float> again = run_and_read(j, plain);
    bool               same = memcmp(again.data(), results.data(), results.size() * sizeof(float)) == 0;
    double             time = checks_only ? NAN : measure(j, plain, false, false);
    double             cold = checks_only ? NAN : measure(j, plain, true, false) - memset_time;
    double             flop = 2.0 * s.n * s.side * s.side * 9 * s.c * s.o, norm = sqrt(d.error_squares / d.squares);
    printf("    %-28s %7.2f us %6.1f TFLOP/s   cold %7.2f us   error %.1e of %.3g, %.1e in norm%s%s\n", name, time,
           flop / time * 1e-6, cold, d.error, d.largest, norm, norm < 1e-5 ? "" : "  WRONG",
           same ? "" : "  DIFFERENT BITS");
    fflush(stdout);
}

static lk__kernel_operand describe_operand(lk_dtype type, int rank, int64_t a, int64_t b, int64_t c, int64_t d,
                                           void *data)
{
    lk__kernel_operand x = {};
    x.dtype = type;
    x.rank = rank;
    x.dims[0] = a, x.dims[1] = b, x.dims[2] = c, x.dims[3] = d;
    x.data = data;
    return x;
}

static void measure_direction(job *j, const char *name, double memset_time)
{
    char   text[64];
    size_t bytes = 1;
    /* The largest workspace of all variants. */
    for (int plain = 0; plain < 2; plain++)
        for (int v = -1; v < VARIANTS; v++) {
            setenv("LOCKSTEP_CUDA_PLAIN", plain ? "1" : "0", 1);
            lk__cuda_conv_direct_variant = v, lk__cuda_conv_direct_blocks = 264;
            bytes = std::max(bytes, lk__cuda_conv_workspace(&j->call, j->direction));
        }
    j->call.workspace = reserve(bytes);
    make_reference(j);
    printf("  %s\n", name);
    measure_kernel(j, "plain", true, memset_time);
    for (int v = -1; v < VARIANTS; v++) {
        bool weight = j->direction == CONV_GRAD_WEIGHT && j->s->c != 3;
        for (int blocks = 132; blocks <= (weight ? 264 : 132); blocks += 132) {
            lk__cuda_conv_direct_variant = v, lk__cuda_conv_direct_blocks = blocks;
            if (v < 0)
                snprintf(text, sizeof text, "as chosen%s", blocks > 132 ? ", 264 blocks" : "");
            else
                snprintf(text, sizeof text, "variant %d%s", v, blocks > 132 ? ", 264 blocks" : "");
            if (v >= 0 && j->s->c == 3) continue;
            measure_kernel(j, text, false, memset_time);
        }
    }
    lk__cuda_conv_direct_variant = -1, lk__cuda_conv_direct_blocks = 132;
    cudaFree(j->call.workspace);
}

static void run_setting(const setting *s, double memset_time)
{
    lk__cuda_device gpu = {};
    lk__op_attrs    attrs = {};
    int             out = s->pools ? s->side / 2 : s->side;
    int64_t         pixels = (int64_t)s->n * s->side * s->side, results = (int64_t)s->n * out * out * s->o;
    attrs.kernel = 3, attrs.stride = 1, attrs.padding = 1, attrs.groups = 1, attrs.pool = s->pools ? 2 : 0;
    attrs.activation = LK__RELU;
    printf("%s: batch %d, %d to %d channels, %dx%d%s\n", s->name, s->n, s->c, s->o, s->side, s->side,
           s->pools ? ", relu and pool" : ", relu");
    lk__kernel_operand x = describe_operand(LK_F32, 4, s->n, s->c, s->side, s->side, make_random(pixels * s->c, 1));
    lk__kernel_operand w = describe_operand(LK_F32, 4, s->o, s->c, 3, 3, make_random((int64_t)s->o * s->c * 9, 0.1));
    lk__kernel_operand b = describe_operand(LK_F32, 1, s->o, 1, 1, 1, make_random(s->o, 0.1));
    lk__kernel_operand y = describe_operand(LK_F32, 4, s->n, s->o, out, out, reserve((size_t)results * 4));
    lk__kernel_operand dy = describe_operand(LK_F32, 4, s->n, s->o, out, out, make_random(results, 1));
    lk__kernel_operand at = describe_operand(LK_U8, 4, s->n, s->o, out, out, reserve((size_t)results));
    lk__kernel_operand index = describe_operand(LK_U8, 4, s->n, s->o, out, out, make_positions(results));
    lk__kernel_operand dx = x, dw = w, db = b;
    dx.data = reserve((size_t)(pixels * s->c) * 4), dw.data = reserve((size_t)s->o * s->c * 36),
    db.data = reserve((size_t)s->o * 4);

    job j = {};
    j.s = s;
    j.call.attrs = &attrs, j.call.device = &gpu.base;
    j.direction = CONV_FORWARD;
    j.call.in[0] = x, j.call.in[1] = w, j.call.in[2] = b, j.call.inputs = 3;
    j.call.out[0] = y, j.call.out[1] = at, j.call.outputs = s->pools ? 2 : 1;
    measure_direction(&j, "forward", memset_time);

    attrs.activation = LK__IDENTITY;
    j.call.in[2] = index, j.call.inputs = s->pools ? 3 : 2;
    if (s->c != 3) {
        j.direction = CONV_GRAD_INPUT;
        j.call.in[0] = dy, j.call.in[1] = w;
        j.call.out[0] = dx, j.call.outputs = 1;
        measure_direction(&j, "grad_input", memset_time);
    }
    j.direction = CONV_GRAD_WEIGHT;
    j.call.in[0] = x, j.call.in[1] = dy;
    j.call.out[0] = dw, j.call.out[1] = db, j.call.outputs = 2;
    measure_direction(&j, "grad_weight and bias", memset_time);
    void *all[] = {x.data, w.data, b.data, y.data, dy.data, at.data, index.data, dx.data, dw.data, db.data};
    for (void *p : all) cudaFree(p);
}

int main(int count, char **arguments)
{
    cudaDeviceProp properties;
    int            shapes = sizeof settings / sizeof *settings;
    stop_at(cudaSetDevice(0), "cudaSetDevice");
    stop_at(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    stop_at(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    flush = reserve(FLUSH_BYTES);
    int batch = 0, given = 1;
    if (count > given && strcmp(arguments[given], "-c") == 0) checks_only = true, given++;
    if (count > given + 1 && strcmp(arguments[given], "-n") == 0) batch = atoi(arguments[given + 1]), given += 2;
    double memset_time = checks_only ? 0 : measure(NULL, false, true, true);
    for (int i = 0; i < (count > given ? count - given : shapes); i++) {
        int number = count > given ? atoi(arguments[given + i]) : i;
        if (number < 0 || number >= shapes) continue;
        setting s = settings[number];
        if (batch > 0) s.n = batch;
        run_setting(&s, memset_time);
    }
    return 0;
}
