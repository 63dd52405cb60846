/* conv_dnn.cu - convolutions of bf16, and with --tf32 of f32, by cuDNN's engines.
 *
 * They require weights as (O, kh, kw, C), so ours are first converted to that layout in the workspace, and dw is
 * converted back. Bias is part of the graph; relu, which must keep NaN, and the pool are our own kernels, which run
 * over the convolution's results. With by_heuristic cuDNN is not used: its choice of an engine depends on the number of
 * samples, so the bits of a sample would depend on it too. */
#include "device/cuda/conv_ways.h"

#include "device/cuda/dnn.h"
#include "device/cuda/gemm.h"

/* Bytes that an engine may use: larger than what the fast ones need for common shapes. */
static const size_t DNN_BYTES = (size_t)64 << 20;

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* The parts of the workspace: weights or dw in the library's layout; y or dy before the pool; the engine's, which the
 * sums of the bias gradient use after it. */
typedef struct dnn_space {
    size_t weights, full, engine;
} dnn_space;

static dnn_space space_of(const lk__kernel_call *call, const conv_shape &v, conv_direction direction)
{
    size_t    size = cuda_size(call->in[0].dtype), sums = 0;
    dnn_space s = {round_up((size_t)v.o * v.cg * v.taps * (direction == CONV_GRAD_WEIGHT ? 4 : size)), 0, DNN_BYTES};
    if (v.pool > 1) s.full = round_up((size_t)v.n * v.oh * v.ow * v.o * size);
    if (direction == CONV_GRAD_WEIGHT) sums = lk__cuda_column_sums_workspace(v.windows, v.o);
    if (sums > s.engine) s.engine = sums;
    return s;
}

/* Its engines for f32 round operands to TF32. */
static bool supports_library(const lk__cuda_device *device, const lk__kernel_call *call)
{
    return call->in[0].dtype == LK_BF16 || (call->in[0].dtype == LK_F32 && device && device->tf32);
}

size_t lk__cuda_conv_dnn_workspace(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    if (!supports_library(cuda_device(call), call)) return 0;
    dnn_space s = space_of(call, v, direction);
    return s.weights + s.full + s.engine + 256; /* engines want 256 bytes of alignment */
}

#ifndef LK__CUDA_DNN

lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *, conv_direction) { return LK_EUNSUPPORTED; }
lk_status lk__cuda_conv_dnn_prepare(lk__device *, const lk__kernel_call *, conv_direction) { return LK_OK; }

#else

#include "device/cuda/autotuning.h"
#include "device/cuda/measure.h"

#include <stdio.h>
#include <string.h>

/* ---- around the engines ---- */

/* to (O, taps, C) = from (O, C, taps), or back. Reads are scattered; weights are small. */
template <typename T> static __global__ void exchange_taps(const T *from, T *to, int cg, int taps, int64_t n, bool back)
{
    int inner = back ? taps : cg, outer = back ? cg : taps; /* of `to` */
    EACH_INDEX(i, n)
    {
        int64_t last = i % inner, middle = i / inner % outer, o = i / inner / outer;
        to[i] = from[(o * inner + last) * outer + middle];
    }
}

/* The gradient before the pool: zero but at the maxima. */
template <typename T>
static __global__ void scatter_gradient(const T *dy, const uint8_t *index, conv_shape v, T *to, int64_t n)
{
    EACH_INDEX(i, n)
    {
        int64_t o = i % v.o, pixel = i / v.o, x = pixel % v.ow, y = pixel / v.ow % v.oh, image = pixel / v.ow / v.oh;
        int64_t row = y / v.pool, column = x / v.pool, at = ((image * v.yh + row) * v.yw + column) * v.o + o;
        bool    inside = row < v.yh && column < v.yw;
        T       zero;
        store(&zero, (WIDE(T))0);
        to[i] = inside && index[at] == (y - row * v.pool) * v.pool + x - column * v.pool ? dy[at] : zero;
    }
}

template <typename T> static __global__ void pool_image(const T *from, conv_shape v, T *y, uint8_t *index, int64_t n)
{
    EACH_INDEX(i, n)
    {
        int64_t o = i % v.o, pixel = i / v.o, column = pixel % v.yw, row = pixel / v.yw % v.yh,
                image = pixel / v.yw / v.yh;
        const T                *at = from + ((image * v.oh + row * v.pool) * v.ow + column * v.pool) * v.o + o;
        window_maximum<WIDE(T)> maximum;
        maximum.begin(load(at));
        for (int q = 1; q < v.pool * v.pool; q++)
            maximum.take(load(at + ((int64_t)(q / v.pool) * v.ow + q % v.pool) * v.o), q);
        maximum.put(v.relu, y + i, index ? index + i : NULL);
    }
}

template <typename T> static __global__ void relu_image(T *y, int64_t n)
{
    EACH_INDEX(i, n)
    {
        if (load(y + i) < 0) store(y + i, (WIDE(T))0);
    }
}

/* ---- graphs ---- */

typedef struct conv_key {
    char    what[8];
    int32_t type, direction, bias;
    int32_t n, c, h, w, o, kh, kw, stride, padding, groups, oh, ow;
} conv_key;

static conv_key key_of(const lk__kernel_call *call, const conv_shape &v, conv_direction direction)
{
    conv_key key;
    memset(&key, 0, sizeof key);
    memcpy(key.what, "conv2d", 7);
    key.type = call->in[0].dtype;
    key.direction = direction;
    key.bias = direction == CONV_FORWARD && in_data<void>(call, 2);
    key.n = v.n, key.c = v.c, key.h = v.h, key.w = v.w, key.o = v.o, key.kh = v.kh, key.kw = v.kw;
    key.stride = v.stride, key.padding = v.padding, key.groups = v.groups, key.oh = v.oh, key.ow = v.ow;
    return key;
}

/* (N, C, H, W) with the channels last. */
static lk__dnn_descriptor image_tensor(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int64_t n,
                                       int64_t c, int64_t h, int64_t w)
{
    lk__dnn_tensor_shape shape = {{n, c, h, w}, {h * w * c, 1, w * c, c}};
    return lk__dnn_tensor(g, what, uid, type, 4, &shape);
}

static void set_descriptor(lk__dnn_graph *g, lk__dnn_descriptor d, cudnnBackendAttributeName_t attribute,
                           const char *name, lk__dnn_descriptor value)
{
    lk__dnn_set_named(g, d, attribute, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

enum { UID_X = 1, UID_W, UID_Y, UID_BIAS };

/* The convolution's operation: CUDNN_ATTR_OPERATION_CONVOLUTION_<kind>_<x, w or y>. */
#define ADD_CONVOLUTION(g, descriptor, kind, X, W, Y, geometry, x, w, y)                                       \
    do {                                                                                                       \
        lk__dnn_descriptor operation = lk__dnn_make(g, descriptor, "the convolution");                         \
        float              one = 1, zero = 0;                                                                  \
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_CONV_DESC, #kind "_CONV_DESC",  \
                       geometry);                                                                              \
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##X, #kind "_" #X, x);          \
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##W, #kind "_" #W, w);          \
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##Y, #kind "_" #Y, y);          \
        lk__dnn_set(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA, CUDNN_TYPE_FLOAT, 1, &one); \
        lk__dnn_set(g, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_BETA, CUDNN_TYPE_FLOAT, 1, &zero); \
        lk__dnn_add_operation(g, operation, "the convolution");                                                \
    } while (0)

static lk__dnn_descriptor make_geometry(lk__dnn_graph *g, const conv_key *key)
{
    int64_t                two = 2, strides[2] = {key->stride, key->stride}, padding[2] = {key->padding, key->padding};
    int64_t                dilations[2] = {1, 1};
    cudnnDataType_t        compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    lk__dnn_descriptor     d = lk__dnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "the convolution's geometry");
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    lk__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    lk__dnn_finalize(g, d, "the convolution's geometry");
    return d;
}

static void make_graph(lk__dnn_graph *g, const conv_key *key)
{
    bool               narrow = key->type == LK_BF16;
    cudnnDataType_t    type = narrow ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT, wide = CUDNN_DATA_FLOAT;
    int64_t            cg = key->c / key->groups;
    bool               weight = narrow && key->direction == CONV_GRAD_WEIGHT; /* has a value before its result */
    lk__dnn_descriptor geometry = make_geometry(g, key);
    lk__dnn_descriptor x = image_tensor(g, "x", UID_X, type, key->n, key->c, key->h, key->w);
    lk__dnn_descriptor w = image_tensor(g, "w", weight ? 0 : UID_W, weight ? wide : type, key->o, cg, key->kh, key->kw);
    lk__dnn_descriptor y =
        image_tensor(g, "y", key->bias ? 0 : UID_Y, key->bias ? wide : type, key->n, key->o, key->oh, key->ow);
    if (key->direction == CONV_FORWARD) {
        ADD_CONVOLUTION(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, FORWARD, X, W, Y, geometry, x, w, y);
        if (!key->bias) return;
        lk__dnn_descriptor b = image_tensor(g, "bias", UID_BIAS, type, 1, key->o, 1, 1);
        lk__dnn_descriptor sum = image_tensor(g, "y + bias", UID_Y, type, key->n, key->o, key->oh, key->ow);
        lk__dnn_pointwise(g, "bias", CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, y, b, NULL, sum);
    } else if (key->direction == CONV_GRAD_INPUT) {
        ADD_CONVOLUTION(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, BWD_DATA, DX, W, DY, geometry,
                        x, w, y);
    } else {
        ADD_CONVOLUTION(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, BWD_FILTER, X, DW, DY,
                        geometry, x, w, y);
        if (!narrow) return;

        /* Through an identity, because no engine for the convolution alone has an f32 result from bf16. */
        lk__dnn_descriptor dw = image_tensor(g, "dw", UID_W, wide, key->o, cg, key->kh, key->kw);
        lk__dnn_pointwise(g, "dw as f32", CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, w, NULL, NULL, dw);
    }
}

/* The entry of a key, made where there is none, with up to `most` plans; its `chosen` is negative where our own kernels
 * are faster. */
static lk__dnn_entry *get_entry(lk__cuda_dnn *dnn, const conv_key *key, int most)
{
    lk__dnn_entry *e = lk__dnn_find(dnn, key, sizeof *key);
    if (e || !(e = lk__dnn_add(dnn, key, sizeof *key))) return e;
    make_graph(&e->graph, key);
    if (!lk__dnn_failed(&e->graph)) lk__dnn_build_plans(e, DNN_BYTES, !lk__cuda_any_order(), most);
    return e;
}

/* ---- running ---- */

template <typename T>
static lk_status run_plan_of(const lk__kernel_call *call, const conv_shape &v, conv_direction direction,
                             lk__cuda_dnn *dnn, const lk__dnn_plan *plan)
{
    typedef float W;
    dnn_space     space = space_of(call, v, direction);
    char *workspace = (char *)round_up((size_t)call->workspace), *engine = workspace + space.weights + space.full;
    T    *full = (T *)(workspace + space.weights);
    cudaStream_t stream = cuda_stream(call);
    int64_t      weights = (int64_t)v.o * v.cg * v.taps, pixels = (int64_t)v.n * v.oh * v.ow * v.o;
    int64_t      outputs = v.windows * v.o;
    const bool   pooled = v.pool > 1, forward = direction == CONV_FORWARD, weight = direction == CONV_GRAD_WEIGHT;
    const int    gradient = weight ? 1 : 0;
    if (!weight)
        LAUNCH((exchange_taps<T>), cuda_blocks(weights, 256), 256, 0, stream, in_data<T>(call, 1), (T *)workspace, v.cg,
               v.taps, weights, false);
    if (pooled && !forward)
        LAUNCH((scatter_gradient<T>), cuda_blocks(pixels, 256), 256, 0, stream, in_data<T>(call, gradient),
               in_data<uint8_t>(call, 2), v, full, pixels);
    int64_t   uids[4] = {UID_X, UID_W, UID_Y, UID_BIAS};
    void     *x = direction == CONV_GRAD_INPUT ? call->out[0].data : call->in[0].data;
    void     *y = pooled ? (void *)full : forward ? call->out[0].data : call->in[gradient].data;
    void     *bias = forward ? in_data<void>(call, 2) ? call->in[2].data : NULL : NULL;
    void     *pointers[4] = {x, workspace, y, bias};
    lk_status status = lk__dnn_run(dnn, call, plan, bias ? 4 : 3, uids, pointers, engine);
    if (status < 0) return status;
    if (weight)
        LAUNCH((exchange_taps<W>), cuda_blocks(weights, 256), 256, 0, stream, (const W *)workspace,
               out_data<W>(call, 0), v.cg, v.taps, weights, true);
    if (weight && out_data<W>(call, 1))
        return lk__cuda_column_sums(call, call->in[1].data, call->in[1].dtype,
                                    pooled ? in_data<uint8_t>(call, 2) : NULL, v.windows, v.o, NULL, call->out[1].data,
                                    engine);
    if (forward && pooled)
        LAUNCH((pool_image<T>), cuda_blocks(outputs, 256), 256, 0, stream, full, v, out_data<T>(call, 0),
               out_data<uint8_t>(call, 1), outputs);
    else if (forward && v.relu)
        LAUNCH((relu_image<T>), cuda_blocks(outputs, 256), 256, 0, stream, out_data<T>(call, 0), outputs);
    return lk__cuda_launched(call);
}

static lk_status run_plan(const lk__kernel_call *call, const conv_shape &v, conv_direction direction, lk__cuda_dnn *dnn,
                          const lk__dnn_plan *plan)
{
    return call->in[0].dtype == LK_BF16 ? run_plan_of<bf16>(call, v, direction, dnn, plan)
                                        : run_plan_of<float>(call, v, direction, dnn, plan);
}

/* Operands of an engine begin at multiples of 16 bytes. */
static bool operands_aligned(const lk__kernel_call *call)
{
    for (int i = 0; i < call->inputs; i++)
        if ((uintptr_t)call->in[i].data % 16) return false;
    for (int i = 0; i < call->outputs; i++)
        if ((uintptr_t)call->out[i].data % 16) return false;
    return true;
}

/* Its engines read 16 bytes of channels at once. Of others that it lists some give wrong results: the gradient by the
 * weights of 4 channels in bf16 was seen to be. */
static bool channels_support(const lk__kernel_call *call, const conv_shape &v)
{
    int pack = 16 / (int)cuda_size(call->in[0].dtype);
    return v.cg % pack == 0 && v.o / v.groups % pack == 0;
}

static lk__cuda_dnn *library_for(lk__cuda_device *device, const lk__kernel_call *call, const conv_shape &v)
{
    if (!supports_library(device, call) || !channels_support(call, v) || device->base.by_heuristic ||
        lk__cuda_plain() || v.windows <= 0 || v.o <= 0 || v.c <= 0)
        return NULL;
    return lk__cuda_dnn_of(device);
}

lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape    v = lk__cuda_conv_shape(call, direction);
    lk__cuda_dnn *dnn = library_for(cuda_device(call), call, v);
    if (!dnn || !operands_aligned(call)) return LK_EUNSUPPORTED;
    conv_key       key = key_of(call, v, direction);
    lk__dnn_entry *e = get_entry(dnn, &key, 1);
    if (!e || e->plan_count == 0 || e->chosen < 0) return LK_EUNSUPPORTED;
    return run_plan(call, v, direction, dnn, &e->plans[e->chosen]);
}

/* ---- measuring ---- */

typedef struct conv_choice {
    int32_t plan; /* in the library's order; -1: our own kernel */
    int64_t engine;
} conv_choice;

/* The call over memory of its own; NULL: there is not enough. */
static void *place_operands(lk__cuda_clock *clock, lk__kernel_call *call, conv_direction direction)
{
    size_t bytes = 0, offsets[LK__MAX_IN + LK__MAX_OUT], workspace = lk__cuda_conv_workspace(call, direction);
    for (int i = 0; i < call->inputs + call->outputs; i++) {
        const lk__kernel_operand *o = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
        offsets[i] = bytes;
        if (o->data) bytes += round_up((size_t)lk__operand_elements(o) * cuda_size(o->dtype));
    }
    void *memory = clock_memory(clock, bytes + workspace);
    if (!memory) return NULL;
    for (int i = 0; i < call->inputs + call->outputs; i++) {
        lk__kernel_operand *o = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
        if (o->data) o->data = (char *)memory + offsets[i];
    }
    call->workspace = (char *)memory + bytes;
    return memory;
}

static bool choose_fastest(lk__device *device, const lk__kernel_call *planned, const conv_shape &v,
                           conv_direction direction, lk__cuda_dnn *dnn, lk__dnn_entry *e)
{
    lk__kernel_call call = *planned;
    lk__cuda_clock  clock = {};
    void           *memory = NULL;
    float           best = -1;
    bool            measured = clock_open(&clock) && (memory = place_operands(&clock, &call, direction));
    call.device = device;
    call.stream = &clock.stream;
    if (measured) {
        best = clock_run(&clock, [&] { return lk__cuda_conv_own(&call, direction); });
        e->chosen = -1;
    }
    for (int i = 0; measured && i < e->plan_count; i++) {
        float time = clock_run(&clock, [&] { return run_plan(&call, v, direction, dnn, &e->plans[i]); });
        if (time < 0 || (best >= 0 && time >= best)) continue;
        best = time;
        e->chosen = i;
    }
    clock_close(&clock);
    if (memory) (void)cudaFree(memory);
    return measured;
}

/* Takes a choice that was measured before, or given. */
static bool take_choice(lk__cuda_device *device, lk__dnn_entry *e, const lk__cuda_question *question,
                        lk__cuda_answer answer, const conv_choice *choice)
{
    bool fits = choice->plan < 0 || (choice->plan < e->plan_count && e->plans[choice->plan].engine == choice->engine);
    if (answer == CHOICE_GIVEN && !fits) lk__cuda_choice_refuse(device, question);
    if (answer == CHOICE_NONE || answer == CHOICE_FIRST || !fits) return false;
    e->chosen = choice->plan < 0 ? -1 : choice->plan;
    return true;
}

lk_status lk__cuda_conv_dnn_prepare(lk__device *base, const lk__kernel_call *call, conv_direction direction)
{
    lk__cuda_device *device = (lk__cuda_device *)base;
    conv_shape       v = lk__cuda_conv_shape(call, direction);
    lk__cuda_dnn    *dnn = library_for(device, call, v);
    conv_key         key = key_of(call, v, direction);
    char             library[64];
    conv_choice      choice;
    if (!dnn) return LK_OK;
    snprintf(library, sizeof library, "cuDNN %d", lk__dnn_version(dnn));
    lk__cuda_question question = {library, &key, sizeof key};
    memset(&choice, 0, sizeof choice);

    lk__cuda_answer answer = lk__cuda_choice_find(device, &question, &choice, sizeof choice);
    bool            there = lk__dnn_find(dnn, &key, sizeof key), first = answer == CHOICE_FIRST;
    bool            open = answer == CHOICE_NONE && !there, measures = open && lk__cuda_choice_measures(device);
    /* Plans take long to make: no more of them than are needed. */
    int            most = measures ? DNN_PLANS : choice.plan > 0 ? choice.plan + 1 : 1;
    lk__dnn_entry *e = get_entry(dnn, &key, most);
    if (!e || e->plan_count == 0) { /* not an error: ours run */
        lk__cuda_host.log(base->context, LK_LOG_DEBUG,
                          "cuDNN has no engine for this convolution of %d input and %d output channels", v.c, v.o);
        return LK_OK;
    }
    bool listed = take_choice(device, e, &question, answer, &choice), refused = answer != CHOICE_NONE && !first;
    if (refused && !listed && !there) measures = lk__cuda_choice_measures(device);
    if (!listed && measures && choose_fastest(base, call, v, direction, dnn, e)) {
        choice.plan = e->chosen;
        choice.engine = e->chosen < 0 ? 0 : e->plans[e->chosen].engine;
        lk__cuda_choice_keep(device, &question, &choice, sizeof choice);
        listed = true;
    }
    if (listed) lk__cuda_choice_use(device, &question, &choice, sizeof choice);
    if (first) e->chosen = 0;
    if (first || (open && !measures)) lk__cuda_choice_first(device, &question);
    return LK_OK;
}

#endif
