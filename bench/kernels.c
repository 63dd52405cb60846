/* kernels.c - the speed of products and convolutions in f32: GFLOP/s of each, and the fraction of the measured FMA
 * peak; and the speed of bf16 in proportion to it, with GFLOP/s and the fraction of the measured peak of bf16 where the
 * instruction set multiplies bf16. Of operations that memory bounds, that proportion alone matters.
 *
 *   kernels [threads [isa [part of a name]]]
 *
 * Each number is the best of several runs, of f32 and bf16 in turns, over data that was accessed before. The operations
 * counted are those of the direct algorithm, so one that needs fewer (Winograd) may exceed 100 %. "in 8 parts": the
 * time of a product whose sum has so many parts (base/sum_parts.h), in proportion to that without, in f32 and bf16. */
#include "base/base.h"
#include "base/bf16.h"
#include "base/isa.h"
#include "device/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    lk_context *context;
    const char *isa;
    int         threads;
    const char *only;      /* only lines whose name contains this; NULL: all */
    double      peak;      /* FLOP/s, f32, all threads */
    double      peak_bf16; /* the same of matrix instructions for bf16; 0: there are none */
    double      total;     /* seconds of one SimpleCNN step's kernels */
} bench;

static void *fresh(bench *b, size_t bytes)
{
    void *memory = lk__alloc(b->context, LK_MEMORY_OTHER, bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "kernels: %s\n", lk_context_error(b->context));
        exit(1);
    }
    return memory;
}

static lk__kernel_operand operand(bench *b, int rank, const int64_t *dims, bool index)
{
    lk__kernel_operand o = {.dtype = index ? LK_U8 : LK_F32, .rank = rank};
    for (int i = 0; i < rank; i++) o.dims[i] = dims[i];
    int64_t count = lk__operand_elements(&o);
    o.data = fresh(b, (size_t)count * lk_dtype_size(o.dtype));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)i * 2654435761u >> 8;
        if (index)
            ((uint8_t *)o.data)[i] = bits & 4 ? 255 : bits & 3;
        else
            ((float *)o.data)[i] = (float)bits / (1 << 23) - 1;
    }
    return o;
}

static size_t operand_bytes(const lk__kernel_operand *o)
{
    return (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype);
}

static void free_operands(bench *b, lk__kernel_call *call)
{
    for (int i = 0; i < call->inputs; i++)
        if (call->in[i].data) lk__free(b->context, LK_MEMORY_OTHER, call->in[i].data, operand_bytes(&call->in[i]));
    for (int i = 0; i < call->outputs; i++)
        lk__free(b->context, LK_MEMORY_OTHER, call->out[i].data, operand_bytes(&call->out[i]));
}

/* The same in bf16. Statistics, weights of norms and gradients of weights remain f32: all with one axis except a bias,
 * and output 0 of a weight gradient. */
static lk__kernel_operand narrowed(bench *b, const lk__kernel_operand *o, bool wide)
{
    lk__kernel_operand narrow = *o;
    int64_t            count = lk__operand_elements(o);
    if (!o->data) return narrow;
    if (o->dtype == LK_F32 && !wide) narrow.dtype = LK_BF16;
    narrow.data = fresh(b, operand_bytes(&narrow));
    if (narrow.dtype == LK_BF16)
        for (int64_t i = 0; i < count; i++) ((lk__bf16 *)narrow.data)[i] = lk__to_bf16(((const float *)o->data)[i]);
    else
        memcpy(narrow.data, o->data, operand_bytes(o));
    return narrow;
}

static lk__kernel_call narrowed_call(bench *b, lk__op op, const lk__kernel_call *call)
{
    lk__kernel_call narrow = *call;
    bool            weights =
        op == LK__OP_conv2d_grad_weight || op == LK__OP_linear_grad_weight || op == LK__OP_grouped_linear_grad_weight;
    bool product = op == LK__OP_conv2d || op == LK__OP_linear;
    bool lse_in = op == LK__OP_attention_grad, lse_out = op == LK__OP_attention; /* f32 as statistics are */
    for (int i = 0; i < call->inputs; i++)
        narrow.in[i] = narrowed(b, &call->in[i], (call->in[i].rank < 2 && !product) || (lse_in && i == 5));
    for (int i = 0; i < call->outputs; i++)
        narrow.out[i] = narrowed(b, &call->out[i], weights || call->out[i].rank < 2 || (lse_out && i == 1));
    return narrow;
}

static double time_run(const lk__kernel_entry *entry, const lk__kernel_call *call, int inner, double best)
{
    double start = lk__now();
    for (int j = 0; j < inner; j++) entry->run(call);
    double seconds = (lk__now() - start) / inner;
    return seconds < best ? seconds : best;
}

/* The parts of the factor that a product adds over, as --reproducible layout has them: up to 8 of at least 96. */
static int64_t parts_of(lk__op op, const lk__kernel_call *call)
{
    int64_t extent = op == LK__OP_linear || op == LK__OP_linear_grad_input   ? call->in[0].dims[1]
                     : op == LK__OP_conv2d || op == LK__OP_conv2d_grad_input ? call->in[0].dims[1]
                                                                             : 0,
            parts = 8;
    while (parts > 1 && extent / parts < 96) parts /= 2;
    return parts;
}

enum { PLAIN, NARROW, PARTS, NARROW_PARTS, CALLS };

/* flops 0: memory bounds it. */
static void time_call(bench *b, const char *name, lk__op op, lk__kernel_call *call, double flops, bool counts)
{
    const lk__kernel_entry *wide = &lk__cpu_kernels(LK_F32, b->isa)[op],
                           *narrow = &lk__cpu_kernels(LK_BF16, b->isa)[op];
    const lk__kernel_entry *entry[CALLS] = {wide, narrow, wide, narrow};
    size_t                  bytes[CALLS] = {0};
    double                  best[CALLS] = {1e9, 1e9, 1e9, 1e9};
    int                     inner = flops > 0 && flops < 1e7 ? 100 : 1;
    lk__op_attrs            in_parts = *call->attrs;
    if (b->only && !strstr(name, b->only)) {
        free_operands(b, call);
        return;
    }
    call->pool = lk__context_pool(b->context);
    call->step = &(lk__kernel_step){.step = 1};
    lk__kernel_call calls[CALLS] = {*call, narrowed_call(b, op, call)};
    in_parts.sum.parts = parts_of(op, call);
    for (int i = PARTS; i < CALLS; i++) {
        calls[i] = calls[i - PARTS];
        calls[i].attrs = &in_parts;
    }
    int ways = in_parts.sum.parts > 1 ? CALLS : PARTS;
    for (int i = 0; i < ways; i++) {
        bytes[i] = entry[i]->workspace ? entry[i]->workspace(&calls[i], b->threads) : 0;
        calls[i].workspace = fresh(b, bytes[i]);
    }
    for (int i = 0; i < (b->only ? 60 : 15); i++)
        for (int k = 0; k < ways; k++) best[k] = time_run(entry[k], &calls[k], inner, best[k]);
    if (counts) b->total += best[PLAIN];
    printf("%-30s %9.3f ms ", name, best[PLAIN] * 1e3);
    if (flops > 0)
        printf("%8.1f GFLOP/s %6.1f %% ", flops / best[PLAIN] * 1e-9, 100 * flops / best[PLAIN] / b->peak);
    else
        printf("%26s", "");
    printf(" %8.1f KiB workspace; bf16 %5.2f", (double)bytes[PLAIN] / 1024, best[PLAIN] / best[NARROW]);
    if (flops > 0 && b->peak_bf16 > 0)
        printf(" (%.1f GFLOP/s, %.1f %%)", flops / best[NARROW] * 1e-9, 100 * flops / best[NARROW] / b->peak_bf16);
    if (ways == CALLS)
        printf("; in %d parts %4.2f, %4.2f", (int)in_parts.sum.parts, best[PARTS] / best[PLAIN],
               best[NARROW_PARTS] / best[NARROW]);
    printf("\n");
    for (int i = 0; i < ways; i++) {
        lk__free(b->context, LK_MEMORY_OTHER, calls[i].workspace, bytes[i] ? bytes[i] : 1);
        if (i < PARTS) free_operands(b, &calls[i]);
    }
}

static void time_conv(bench *b, const char *name, int64_t n, int64_t c, int64_t size, int64_t o, int64_t kernel,
                      int64_t stride, int64_t pool, bool input, bool counts)
{
    int64_t padding = kernel / 2, out = (size + 2 * padding - kernel) / stride + 1,
            pooled = pool > 1 ? out / pool : out;
    int64_t      x[] = {n, c, size, size}, w[] = {o, c, kernel, kernel}, y[] = {n, o, pooled, pooled};
    lk__op_attrs attrs = {
        .kernel = kernel, .stride = stride, .padding = padding, .groups = 1, .pool = pool, .activation = LK__RELU};
    double          flops = 2.0 * (double)(n * c * out * out * o * kernel * kernel);
    char            text[64];
    bool            has_index = pool > 1;
    lk__kernel_call forward = {.attrs = &attrs, .inputs = 3, .outputs = has_index ? 2 : 1};
    forward.in[0] = operand(b, 4, x, false), forward.in[1] = operand(b, 4, w, false),
    forward.in[2] = operand(b, 1, w, false);
    forward.out[0] = operand(b, 4, y, false);
    if (has_index) forward.out[1] = operand(b, 4, y, true);
    snprintf(text, sizeof text, "%s forward", name);
    time_call(b, text, LK__OP_conv2d, &forward, flops, counts);
    if (input) {
        lk__kernel_call dx = {.attrs = &attrs, .inputs = has_index ? 3 : 2, .outputs = 1};
        dx.in[0] = operand(b, 4, y, false), dx.in[1] = operand(b, 4, w, false), dx.out[0] = operand(b, 4, x, false);
        if (has_index) dx.in[2] = operand(b, 4, y, true);
        snprintf(text, sizeof text, "%s grad input", name);
        time_call(b, text, LK__OP_conv2d_grad_input, &dx, flops, counts);
    }
    lk__kernel_call dw = {.attrs = &attrs, .inputs = has_index ? 3 : 2, .outputs = 2};
    dw.in[0] = operand(b, 4, x, false), dw.in[1] = operand(b, 4, y, false);
    if (has_index) dw.in[2] = operand(b, 4, y, true);
    dw.out[0] = operand(b, 4, w, false), dw.out[1] = operand(b, 1, w, false);
    snprintf(text, sizeof text, "%s grad weight", name);
    time_call(b, text, LK__OP_conv2d_grad_weight, &dw, flops, counts);
}

/* in_first: the weight is (in, out), and nothing follows it, as in GPT-2. */
static void time_product(bench *b, const char *name, int64_t rows, int64_t inputs, int64_t outputs, bool in_first,
                         bool counts)
{
    int64_t x[] = {rows, inputs}, w[] = {in_first ? inputs : outputs, in_first ? outputs : inputs},
            y[] = {rows, outputs};
    int64_t         bias[] = {outputs};
    lk__op_attrs    attrs = {.activation = in_first ? LK__IDENTITY : LK__RELU, .transposed = in_first};
    double          flops = 2.0 * (double)(rows * inputs * outputs);
    char            text[64];
    lk__kernel_call forward = {.attrs = &attrs, .inputs = 3, .outputs = 1};
    forward.in[0] = operand(b, 2, x, false), forward.in[1] = operand(b, 2, w, false),
    forward.in[2] = operand(b, 1, bias, false);
    forward.out[0] = operand(b, 2, y, false);
    snprintf(text, sizeof text, "%s forward", name);
    time_call(b, text, LK__OP_linear, &forward, flops, counts);
    lk__kernel_call dx = {.attrs = &attrs, .inputs = 2, .outputs = 1};
    dx.in[0] = operand(b, 2, y, false), dx.in[1] = operand(b, 2, w, false), dx.out[0] = operand(b, 2, x, false);
    snprintf(text, sizeof text, "%s grad input", name);
    time_call(b, text, LK__OP_linear_grad_input, &dx, flops, counts);
    lk__kernel_call dw = {.attrs = &attrs, .inputs = 2, .outputs = 2};
    dw.in[0] = operand(b, 2, x, false), dw.in[1] = operand(b, 2, y, false);
    dw.out[0] = operand(b, 2, w, false), dw.out[1] = operand(b, 1, bias, false);
    snprintf(text, sizeof text, "%s grad weight", name);
    time_call(b, text, LK__OP_linear_grad_weight, &dw, flops, counts);
}

/* Equal numbers of rows for each expert: to be compared with the product of all rows with one weight. */
static void time_experts(bench *b, const char *name, int64_t experts, int64_t rows, int64_t inputs, int64_t outputs)
{
    int64_t            x[] = {rows, inputs}, w[] = {experts, outputs, inputs}, y[] = {rows, outputs};
    double             flops = 2.0 * (double)(rows * inputs * outputs);
    char               text[64];
    lk__kernel_operand offsets[3] = {{.dtype = LK_I32, .rank = 1, .dims = {experts + 1}}};
    offsets[2] = offsets[1] = offsets[0];
    for (int i = 0; i < 3; i++) {
        offsets[i].data = fresh(b, operand_bytes(&offsets[i]));
        for (int64_t e = 0; e <= experts; e++) ((int32_t *)offsets[i].data)[e] = (int32_t)(rows / experts * e);
    }
    lk__op_attrs    plain = {0}, transposed = {.transposed = true};
    lk__kernel_call forward = {.attrs = &plain, .inputs = 3, .outputs = 1};
    forward.in[0] = operand(b, 2, x, false), forward.in[1] = operand(b, 3, w, false), forward.in[2] = offsets[0];
    forward.out[0] = operand(b, 2, y, false);
    snprintf(text, sizeof text, "%s forward", name);
    time_call(b, text, LK__OP_grouped_linear, &forward, flops, false);
    lk__kernel_call dx = {.attrs = &transposed, .inputs = 3, .outputs = 1};
    dx.in[0] = operand(b, 2, y, false), dx.in[1] = operand(b, 3, w, false), dx.in[2] = offsets[1];
    dx.out[0] = operand(b, 2, x, false);
    snprintf(text, sizeof text, "%s grad input", name);
    time_call(b, text, LK__OP_grouped_linear, &dx, flops, false);
    lk__kernel_call dw = {.attrs = &plain, .inputs = 3, .outputs = 1};
    dw.in[0] = operand(b, 2, x, false), dw.in[1] = operand(b, 2, y, false), dw.in[2] = offsets[2];
    dw.out[0] = operand(b, 3, w, false);
    snprintf(text, sizeof text, "%s grad weight", name);
    time_call(b, text, LK__OP_grouped_linear_grad_weight, &dw, flops, false);
}

static void time_linear(bench *b, const char *name, int64_t rows, int64_t inputs, int64_t outputs, bool counts)
{
    time_product(b, name, rows, inputs, outputs, false, counts);
}

/* Causal, queries, keys and values packed; half of the scores are computed, and counted. */
static void time_attention(bench *b, const char *name, int64_t n, int64_t t, int64_t heads, int64_t d)
{
    int64_t         q[] = {n, t, 3 * heads * d}, y[] = {n, t, heads * d}, lse[] = {n, heads, t};
    lk__op_attrs    attrs = {.causal = true, .heads = heads, .kv_heads = heads, .scale = 0.125};
    double          flops = 2.0 * (double)(n * heads * t * t * d);
    char            text[64];
    lk__kernel_call forward = {.attrs = &attrs, .inputs = 1, .outputs = 2};
    forward.in[0] = operand(b, 3, q, false), forward.out[0] = operand(b, 3, y, false),
    forward.out[1] = operand(b, 3, lse, false);
    snprintf(text, sizeof text, "%s forward", name);
    time_call(b, text, LK__OP_attention, &forward, flops, false);
    lk__kernel_call backward = {.attrs = &attrs, .inputs = 6, .outputs = 1};
    backward.in[0] = operand(b, 3, y, false), backward.in[1] = operand(b, 3, q, false);
    backward.in[4] = operand(b, 3, y, false), backward.in[5] = operand(b, 3, lse, false);
    backward.out[0] = operand(b, 3, q, false);
    snprintf(text, sizeof text, "%s grad", name);
    time_call(b, text, LK__OP_attention_grad, &backward, 2.5 * flops, false);
}

static void time_matmul(bench *b, const char *name, int64_t batch, int64_t m, int64_t n, int64_t k, bool ta, bool tb)
{
    int64_t         x[] = {batch, ta ? k : m, ta ? m : k}, w[] = {batch, tb ? n : k, tb ? k : n}, y[] = {batch, m, n};
    lk__op_attrs    attrs = {.transpose_a = ta, .transpose_b = tb};
    lk__kernel_call call = {.attrs = &attrs, .inputs = 2, .outputs = 1};
    call.in[0] = operand(b, 3, x, false), call.in[1] = operand(b, 3, w, false), call.out[0] = operand(b, 3, y, false);
    time_call(b, name, LK__OP_matmul, &call, 2.0 * (double)(batch * m * n * k), false);
}

/* What memory bounds, on the activations of ResNet-20: batch_norm, its gradient, relu, a sum, a max pool and its
 * gradient. */
static void time_activations(bench *b, int64_t n, int64_t c, int64_t size)
{
    int64_t         x[] = {n, c, size, size}, y[] = {n, c, size / 2, size / 2};
    lk__op_attrs    norm = {.epsilon = 1e-5, .momentum = 0.1, .activation = LK__RELU}, relu = {.unary = LK__RELU};
    lk__op_attrs    pool = {.kernel = 2, .stride = 2};
    lk__kernel_call forward = {.attrs = &norm, .inputs = 3, .outputs = 3};
    forward.in[0] = operand(b, 4, x, false), forward.out[0] = operand(b, 4, x, false);
    for (int i = 1; i < 3; i++) forward.in[i] = operand(b, 1, &c, false), forward.out[i] = operand(b, 1, &c, false);
    time_call(b, "batch_norm", LK__OP_batch_norm, &forward, 0, false);
    lk__kernel_call backward = {.attrs = &norm, .inputs = 6, .outputs = 3};
    for (int i = 0; i < 6; i++) backward.in[i] = i < 2 || i == 5 ? operand(b, 4, x, false) : operand(b, 1, &c, false);
    for (int i = 0; i < 3; i++) backward.out[i] = i < 1 ? operand(b, 4, x, false) : operand(b, 1, &c, false);
    time_call(b, "batch_norm_grad", LK__OP_batch_norm_grad, &backward, 0, false);
    lk__kernel_call unary = {.attrs = &relu, .inputs = 1, .outputs = 1};
    unary.in[0] = operand(b, 4, x, false), unary.out[0] = operand(b, 4, x, false);
    time_call(b, "relu", LK__OP_unary, &unary, 0, false);
    lk__kernel_call sum = {.attrs = &relu, .inputs = 2, .outputs = 1};
    sum.in[0] = operand(b, 4, x, false), sum.in[1] = operand(b, 4, x, false), sum.out[0] = operand(b, 4, x, false);
    time_call(b, "add", LK__OP_add, &sum, 0, false);
    lk__kernel_call large = {.attrs = &pool, .inputs = 1, .outputs = 2};
    large.in[0] = operand(b, 4, x, false), large.out[0] = operand(b, 4, y, false),
    large.out[1] = operand(b, 4, y, true);
    time_call(b, "max_pool2d", LK__OP_max_pool2d, &large, 0, false);
    lk__kernel_call small = {.attrs = &pool, .inputs = 2, .outputs = 1};
    small.in[0] = operand(b, 4, y, false), small.in[1] = operand(b, 4, y, true), small.out[0] = operand(b, 4, x, false);
    time_call(b, "max_pool2d_grad", LK__OP_max_pool2d_grad, &small, 0, false);
    lk__kernel_call mean = {.attrs = &pool, .inputs = 1, .outputs = 1};
    int64_t         rows[] = {n, c};
    mean.in[0] = operand(b, 4, x, false), mean.out[0] = operand(b, 2, rows, false);
    time_call(b, "global_avg_pool2d", LK__OP_global_avg_pool2d, &mean, 0, false);
    lk__kernel_call last = {.attrs = &pool, .inputs = 1, .outputs = 1};
    last.in[0] = operand(b, 4, x, false), last.out[0] = operand(b, 4, x, false);
    time_call(b, "to_channels_last", LK__OP_to_channels_last, &last, 0, false);
}

int main(int argc, char **argv)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    bench             b = {0};
    config.threads = argc > 1 ? atoi(argv[1]) : 1;
    config.isa = argc > 2 ? argv[2] : NULL;
    b.only = argc > 3 ? argv[3] : NULL;
    if (lk_context_create(&config, &b.context) != LK_OK) {
        fprintf(stderr, "kernels: the number of threads or the instruction set is invalid\n");
        return 2;
    }
    b.threads = lk_context_threads(b.context);
    b.isa = lk_context_isa(b.context);
    b.peak = lk_context_peak(b.context, LK_F32);
    if (lk__isa_extended(b.isa)) b.peak_bf16 = lk_context_peak(b.context, LK_BF16);
    printf("%s, %d thread%s, FMA peak %.1f GFLOP/s", b.isa, b.threads, b.threads == 1 ? "" : "s", b.peak * 1e-9);
    if (b.peak_bf16 > 0) printf(", bf16 peak %.1f GFLOP/s", b.peak_bf16 * 1e-9);
    printf("\n");
    time_conv(&b, "conv1 3>32 32x32", 64, 3, 32, 32, 3, 1, 2, false, true);
    time_conv(&b, "conv2 32>64 16x16", 64, 32, 16, 64, 3, 1, 2, true, true);
    time_linear(&b, "fc1 64x4096>512", 64, 4096, 512, true);
    time_linear(&b, "fc2 64x512>10", 64, 512, 10, true);
    printf("%-30s %9.3f ms\n", "SimpleCNN, batch 64, together", b.total * 1e3);
    time_linear(&b, "dense 2048x384>1024", 2048, 384, 1024, false);
    time_experts(&b, "8 experts 2048x384>1024", 8, 2048, 384, 1024);
    time_linear(&b, "dense 512x128>256", 512, 128, 256, false);
    time_experts(&b, "8 experts 512x128>256", 8, 512, 128, 256);
    time_linear(&b, "mlp 32x64>128", 32, 64, 128, false);
    time_linear(&b, "mlp 32x128>10", 32, 128, 10, false);
    time_conv(&b, "resnet20 16>16 32x32", 16, 16, 32, 16, 3, 1, 0, true, false);
    time_conv(&b, "resnet20 64>64 8x8", 64, 64, 8, 64, 3, 1, 0, true, false);
    time_conv(&b, "resnet18 64>128 28x28/2", 4, 64, 28, 128, 3, 2, 0, true, false);
    time_conv(&b, "resnet18 256>256 7x7", 4, 256, 7, 256, 3, 1, 0, true, false);
    time_conv(&b, "resnet18 64>128 1x1 28/2", 4, 64, 28, 128, 1, 2, 0, true, false);
    time_matmul(&b, "matmul 512x512x512", 1, 512, 512, 512, false, false);
    time_matmul(&b, "matmul 512x512x512 tb", 1, 512, 512, 512, false, true);
    time_matmul(&b, "matmul 12 x 256x256x64 tb", 12, 256, 256, 64, false, true);
    time_product(&b, "gpt c_attn 1024x384>1152", 1024, 384, 1152, true, false);
    time_product(&b, "gpt proj 1024x384>384", 1024, 384, 384, true, false);
    time_product(&b, "gpt c_fc 1024x384>1536", 1024, 384, 1536, true, false);
    time_product(&b, "gpt c_proj 1024x1536>384", 1024, 1536, 384, true, false);
    time_product(&b, "llama up 1024x384>1024", 1024, 384, 1024, false, false);
    time_product(&b, "gpt2 c_fc 4096x768>3072", 4096, 768, 3072, true, false);
    time_product(&b, "512 up 1024x512>2048", 1024, 512, 2048, true, false);
    time_product(&b, "512 down 1024x2048>512", 1024, 2048, 512, true, false);
    time_product(&b, "token 1x384>1536", 1, 384, 1536, true, false);
    time_product(&b, "token 1x384>1024", 1, 384, 1024, false, false);
    time_product(&b, "tokens 4x1536>384", 4, 1536, 384, true, false);
    time_attention(&b, "attention 4x6 256x64", 4, 256, 6, 64);
    time_attention(&b, "attention 1x12 1024x64", 1, 1024, 12, 64);
    time_activations(&b, 64, 16, 32);
    lk_context_free(b.context);
    return 0;
}
