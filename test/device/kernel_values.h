/* kernel_values.h - calls of product and convolution kernels against plain loops in double: every instruction set of
 * this machine, f32, f64 and bf16, and the same bits with 1, 2 and 3 threads. bf16 gives the bits of f32, rounded once.
 * Or the kernels of the device that LOCKSTEP_DEVICE names, run three times. */
#ifndef KERNEL_VALUES_H
#define KERNEL_VALUES_H

#include "check.h"

#include "base/bf16.h"
#include "base/random.h"

#include "kernel_device.h"
#include "kernel_mutants.h"
#include "tested_isas.h"

#include <math.h>

enum { THREADS = 3, GUARD = KERNEL_GUARD };

static lk_context *contexts[THREADS];
static char        the_case[512]; /* the current case, for messages */
static uint32_t    draw_index;
static bool        narrow; /* bf16 is tested, not f32 and f64 */

static double draw(void) /* (-1, 1), with the few bits that the narrowest type holds */
{
    lk__random random = lk__random_make(1, LK__FOR_SYNTHETIC, 7);
    float      x = (float)(2 * lk__random_unit(lk__random_u32(&random, 0, draw_index++)) - 1);
    return (double)(narrow ? lk__from_bf16(lk__to_bf16(x)) : x);
}

static int64_t pick(int64_t below)
{
    lk__random random = lk__random_make(2, LK__FOR_SYNTHETIC, 7);
    return (int64_t)(lk__random_u32(&random, 1, draw_index++) % (uint32_t)below);
}

static void *require_memory(void *p)
{
    if (!p) exit(1);
    return p;
}

/* A tensor of doubles (the expected values) and the bytes that a kernel reads, in its type; images are channels
 * last. */
typedef struct values {
    int      rank;
    int64_t  dims[LK_MAX_RANK], count;
    double  *v;    /* row-major in the order of dims */
    double  *size; /* Σ|products|: the scale of rounding; NULL for inputs */
    double  *tile; /* the scale of single elements that are computed from whole tiles; NULL: size */
    double  *most; /* the largest Σ|products| of the sums of which an element is the maximum; NULL: size */
    bool     image;
    uint8_t *index; /* u8 instead, v == NULL */
} values;

static values make(int rank, const int64_t *dims, bool image)
{
    values x = {.rank = rank, .count = 1, .image = image};
    for (int i = 0; i < rank; i++) x.count *= x.dims[i] = dims[i];
    x.v = require_memory(calloc((size_t)x.count + 1, sizeof(double)));
    return x;
}

static values make_random(int rank, const int64_t *dims, bool image)
{
    values x = make(rank, dims, image);
    for (int64_t i = 0; i < x.count; i++) x.v[i] = draw();
    return x;
}

static values make_wanted(int rank, const int64_t *dims, bool image)
{
    values x = make(rank, dims, image);
    x.size = require_memory(calloc((size_t)x.count + 1, sizeof(double)));
    return x;
}

static void free_values(values *x)
{
    free(x->v);
    free(x->size);
    free(x->tile);
    free(x->most);
    free(x->index);
}

static int64_t place(const values *x, int64_t i) /* where element i is in the kernel's memory */
{
    if (!x->image) return i;
    int64_t C = x->dims[1], H = x->dims[2], W = x->dims[3];
    int64_t w = i % W, h = i / W % H, c = i / W / H % C, n = i / W / H / C;
    return ((n * H + h) * W + w) * C + c;
}

static size_t element(lk_dtype type) { return lk_dtype_size(type); }

static lk__kernel_operand operand(const values *x, lk_dtype real)
{
    lk__kernel_operand o = {.dtype = x->index ? LK_U8 : real, .rank = x->rank};
    memcpy(o.dims, x->dims, sizeof o.dims);
    size_t         bytes = (size_t)x->count * element(o.dtype);
    unsigned char *data = require_memory(malloc(bytes + GUARD));
    memset(data, 0xff, bytes + GUARD); /* NaN, and the guard */
    for (int64_t i = 0; i < x->count; i++) {
        int64_t at = place(x, i);
        if (x->index)
            data[at] = x->index[i];
        else if (!x->size && real == LK_F32)
            ((float *)(void *)data)[at] = (float)x->v[i];
        else if (!x->size && real == LK_BF16)
            ((lk__bf16 *)(void *)data)[at] = lk__to_bf16((float)x->v[i]);
        else if (!x->size)
            ((double *)(void *)data)[at] = x->v[i];
    }
    o.data = data;
    return o;
}

static double got(const lk__kernel_operand *o, int64_t at)
{
    if (o->dtype == LK_BF16) return (double)lk__from_bf16(((lk__bf16 *)o->data)[at]);
    return o->dtype == LK_F32 ? (double)((float *)o->data)[at] : ((double *)o->data)[at];
}

static void check_guard(const void *data, size_t bytes, const char *what)
{
    const unsigned char *p = data;
    size_t               whole = 0;
    while (whole < GUARD && p[bytes + whole] == 0xff) whole++;
    CHECK(whole == GUARD, "%s writes past %s", the_case, what);
}

/* Single elements to 4 × tolerance, all together to the tolerance, as norms; what is stored in bf16 may in addition be
 * rounded once. One difference per case is reported. */
static void check_values(const values *want, const lk__kernel_operand *o, double tolerance, int output)
{
    double errors = 0, sizes = 0, rounding = o->dtype == LK_BF16 ? 0x1p-8 : 0;
    for (int64_t i = 0; i < want->count; i++) {
        double x = got(o, place(want, i)), error = fmax(0, fabs(x - want->v[i]) - rounding * fabs(want->v[i]));
        if (isnan(x)) error = INFINITY;
        errors += error * error;
        sizes += want->size[i] * want->size[i];
        /* f64 has no Winograd kernels. */
        double scale = want->tile && o->dtype != LK_F64 ? want->tile[i] : want->size[i];
        if (error <= 4 * tolerance * scale + 1e-30) continue;
        CHECK(false, "%s: output %d, element %lld is %.17g instead of %.17g (scale %g)", the_case, output, (long long)i,
              x, want->v[i], scale);
        return;
    }
    CHECK(errors <= tolerance * tolerance * sizes, "%s: output %d: error %g of the scale", the_case, output,
          sqrt(errors / sizes));
}

typedef struct spec {
    lk__op       op;
    lk__op_attrs attrs;
    values      *in[3], *out[2];
    int64_t      capacity;   /* of dims[0] for the workspace: at least the dims */
    int64_t      batched_in; /* bit i: operand i has the batch as dims[0] */
    bool (*close_index)(const values *want, const lk__kernel_operand *index, void *argument, double tolerance);
    void *argument;
    bool  sums; /* of bf16 in f32: summands of what ranks add */
} spec;

/* Gradients of weights, and sums over a batch, are f32 where elements are bf16. */
static lk_dtype output_type(const spec *s, lk_dtype real)
{
    bool wide = s->op == LK__OP_conv2d_grad_weight || s->op == LK__OP_linear_grad_weight || s->sums;
    if (s->op == LK__OP_matmul) wide = s->out[0]->rank == 2 && (s->in[0]->rank > 2 || s->in[1]->rank > 2);
    return real == LK_BF16 && wide ? LK_F32 : real;
}

static lk__kernel_call call_of(const spec *s, lk_dtype real, bool data)
{
    lk__kernel_call call = {.attrs = &s->attrs};
    lk_dtype        result = output_type(s, real);
    for (int i = 0; i < 3; i++)
        if (s->in[i]) {
            call.inputs = i + 1;
            if (data)
                call.in[i] = operand(s->in[i], real);
            else {
                call.in[i] = (lk__kernel_operand){
                    .data = (void *)1, .dtype = s->in[i]->index ? LK_U8 : real, .rank = s->in[i]->rank};
                memcpy(call.in[i].dims, s->in[i]->dims, sizeof call.in[i].dims);
                if (s->batched_in >> i & 1) call.in[i].dims[0] += s->capacity;
            }
        }
    for (int i = 0; i < 2; i++)
        if (s->out[i]) {
            call.outputs = i + 1;
            if (data)
                call.out[i] = operand(s->out[i], result);
            else {
                call.out[i] = (lk__kernel_operand){
                    .data = (void *)1, .dtype = s->out[i]->index ? LK_U8 : result, .rank = s->out[i]->rank};
                memcpy(call.out[i].dims, s->out[i]->dims, sizeof call.out[i].dims);
                if (s->batched_in >> (8 + i) & 1) call.out[i].dims[0] += s->capacity;
            }
        }
    return call;
}

static void free_operands(lk__kernel_call *call)
{
    for (int i = 0; i < 3; i++) free(call->in[i].data);
    for (int i = 0; i < 2; i++) free(call->out[i].data);
}

/* The bf16 kernel's results are the f32 kernel's on the same numbers, rounded once. */
static void compare_with_f32(const spec *s, const char *isa, const lk__kernel_call *narrow_call)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(LK_F32, isa, s->op);
    lk__kernel_call         call = call_of(s, LK_F32, true);
    call.pool = lk__context_pool(contexts[0]);
    size_t bytes = entry->workspace ? entry->workspace(&call, 1) : 0;
    call.workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(bytes + 1, LK__ALIGN)));
    entry->run(&call);
    for (int i = 0; i < 2 && s->out[i]; i++) {
        const lk__kernel_operand *o = &narrow_call->out[i];
        int64_t                   different = 0;
        for (int64_t at = 0; at < s->out[i]->count && o->dtype != LK_U8; at++) {
            float x = ((float *)call.out[i].data)[at];
            different += got(o, at) != (double)(o->dtype == LK_BF16 ? lk__from_bf16(lk__to_bf16(x)) : x);
        }
        if (o->dtype == LK_U8) different = memcmp(o->data, call.out[i].data, (size_t)s->out[i]->count) != 0;
        CHECK(different == 0, "%s: %lld elements of output %d are not the f32 kernel's", the_case, (long long)different,
              i);
    }
    free(call.workspace);
    free_operands(&call);
}

/* Whether a kernel may compute in f32 as well, by the set that its own extends: where a pool leaves one gradient of a
 * window, that of a weight with short patches is. */
static bool may_compute_in_f32(const spec *s) { return s->op == LK__OP_conv2d_grad_weight && s->attrs.pool > 1; }

/* Instructions in C have the bits of the machine's, where it has them. */
static void compare_with_instructions(const spec *s, const char *isa, const lk__kernel_call *emulated)
{
    char  name[40] = "";
    char *end = strstr(isa, "_emulated");
    if (!end || end - isa >= (long)sizeof name) return;
    memcpy(name, isa, (size_t)(end - isa));
    if (!lk__isa_available(name)) return;
    if (may_compute_in_f32(s) && strcmp(lk__isa_extended(name), lk__isa_extended(isa)) != 0) return;
    const lk__kernel_entry *entry = lk__cpu_kernel(LK_BF16, name, s->op);
    lk__kernel_call         call = call_of(s, LK_BF16, true);
    call.pool = lk__context_pool(contexts[0]);
    size_t bytes = entry->workspace ? entry->workspace(&call, 1) : 0;
    call.workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(bytes + 1, LK__ALIGN)));
    entry->run(&call);
    for (int i = 0; i < 2 && s->out[i]; i++)
        CHECK(memcmp(call.out[i].data, emulated->out[i].data, (size_t)s->out[i]->count * element(call.out[i].dtype)) ==
                  0,
              "%s: output %d has other bits than with the instructions", the_case, i);
    free(call.workspace);
    free_operands(&call);
}

/* How many products each element of a product's first output is a sum of; 0: it is no product. */
static int64_t products_in_sum(const spec *s)
{
    const values *x = s->in[0];
    int64_t       last = x->dims[x->rank - 1], rows = x->dims[x->rank - 2];
    switch (s->op) {
    case LK__OP_linear:
    case LK__OP_linear_grad_input: return last + 1; /* and a bias */
    case LK__OP_linear_grad_weight: return x->count / (last > 0 ? last : 1) + 1;
    case LK__OP_matmul:
        return (s->attrs.transpose_a ? rows : last) * (s->out[0]->rank < 3 && x->rank > 2 ? x->dims[0] : 1) *
               (s->out[0]->rank < 3 && x->rank < 3 && s->in[1]->rank > 2 ? s->in[1]->dims[0] : 1);
    case LK__OP_conv2d: return s->sums ? 0 : s->in[1]->count / s->in[1]->dims[0] + 1; /* sums are f32's */
    case LK__OP_conv2d_grad_input: return s->sums ? 0 : s->in[1]->count / s->in[1]->dims[1];
    case LK__OP_conv2d_grad_weight: { /* pixels, before a pool */
        const lk__op_attrs *a = &s->attrs;
        const int64_t      *kernel = s->out[0]->dims + 2;
        return x->dims[0] * ((rows + 2 * a->padding - kernel[0]) / a->stride + 1) *
               ((last + 2 * a->padding - kernel[1]) / a->stride + 1);
    }
    default: return 0;
    }
}

/* The results of instructions that multiply bf16. A product of two bf16 is exact in f32. The sum of a pair of products,
 * and what each pair is added to, are rounded to odd, by less than 2^-23 of a partial sum, which is no more than the
 * sum of magnitudes: two additions for each pair of k. Blocks and parts are added to nearest, no more often
 * than there are pairs. A number below 2^-126 may become zero in each of these steps. */
static void check_matrix_bound(const spec *s, const lk__kernel_call *call)
{
    int64_t       products = products_in_sum(s), wrong = 0;
    const values *want = s->out[0];
    for (int64_t at = 0; at < want->count; at++) {
        double result = got(&call->out[0], place(want, at)), size = want->most ? want->most[at] : want->size[at];
        double bound = (double)(products + 2) * (0x1p-23 * size + 0x1p-125);
        if (call->out[0].dtype == LK_BF16) bound += 0x1p-8 * (fabs(want->v[at]) + bound);
        wrong += !(fabs(result - want->v[at]) <= bound);
    }
    CHECK(wrong == 0, "%s: %lld of %lld elements are beyond the bound of %lld products", the_case, (long long)wrong,
          (long long)want->count, (long long)products);
}

/* A product that output i is a sum of. */
static void add_product(values *to, int64_t i, double product)
{
    to->v[i] += product;
    to->size[i] += fabs(product);
}

/* Nothing behind the outputs, and the bits of the first run, with so many threads. */
static void check_outputs(const spec *s, const lk__kernel_call *call, const lk__kernel_call *first, int threads)
{
    for (int i = 0; i < 2 && s->out[i]; i++) {
        size_t size = (size_t)s->out[i]->count * element(call->out[i].dtype);
        check_guard(call->out[i].data, size, "its output");
        CHECK(memcmp(call->out[i].data, first->out[i].data, size) == 0,
              "%s: run %d, with as many threads, changes output %d", the_case, threads, i);
    }
}

/* The factors of the operation, on a call that has run. */
static void check_call_parts(const spec *s, const char *isa, lk_dtype real, const lk__kernel_call *call)
{
    parts_case k = {.op = s->op, .real = real, .call = call, .isa = isa, .pool = lk__context_pool(contexts[0])};
    char       wrong[PARTS_TEXT];
    if (!parts_of_all && strcmp(isa, lk_context_isa(contexts[0])) != 0) return; /* the best one */
    for (int i = 0; i < 2 && s->out[i]; i++)
        for (int64_t e = 0; s->out[i]->size && e < s->out[i]->count; e++) k.terms = fmax(k.terms, s->out[i]->size[e]);
    bool right = check_parts(&k, wrong);
    CHECK(right, "%s: %s", the_case, wrong);
    if (right && !parts_of_all) try_mutants(&k);
}

static void run_one(const spec *s, const char *isa, lk_dtype real)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(real, isa, s->op);
    double                  tolerance = real == LK_F64 ? 1e-15 : 6e-7;
    lk__kernel_call         calls[THREADS];
    bool                    on_device = false;
    for (int t = 0; t < THREADS; t++) {
        lk__kernel_call ask = call_of(s, real, false), *call = &calls[t];
        *call = call_of(s, real, true);
        if (t == 0) on_device = runs_on_device(s->op, real, call->in, call->inputs, call->out, call->outputs);
        if (on_device) {
            const char *wrong = run_on_device(s->op, real, call, &ask, t % 2 == 1);
            CHECK(!wrong, "%s: %s", the_case, wrong);
            check_outputs(s, call, &calls[0], t + 1);
            continue;
        }
        size_t bytes = entry->workspace ? entry->workspace(&ask, t + 1) : 0;
        char  *workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(bytes + GUARD, LK__ALIGN)));
        memset(workspace, 0xff, bytes + GUARD);
        call->workspace = workspace;
        call->pool = lk__context_pool(contexts[t]);
        entry->run(call);
        kernel_ran[real][s->op] |= !kernel_device;
        check_guard(workspace, bytes, "its workspace");
        free(workspace);
        check_outputs(s, call, &calls[0], t + 1);
    }
    for (int i = 0; i < 2 && s->out[i]; i++)
        if (s->out[i]->index)
            CHECK(s->close_index(s->out[i], &calls[0].out[i], s->argument, tolerance), "%s: wrong positions of maxima",
                  the_case);
        else
            check_values(s->out[i], &calls[0].out[i], tolerance, i);
    bool own = lk__cpu_kernels(real, isa)[s->op].run == entry->run; /* not of the set that isa extends */
    bool multiplied = real == LK_BF16 && !kernel_device && lk__isa_extended(isa) && own && products_in_sum(s) > 0;
    if (multiplied)
        check_matrix_bound(s, &calls[0]), compare_with_instructions(s, isa, &calls[0]);
    else if (real == LK_BF16 && !kernel_device)
        compare_with_f32(s, isa, &calls[0]);
    check_call_parts(s, isa, real, &calls[0]);
    for (int t = 0; t < THREADS; t++) free_operands(&calls[t]);
}

static void run_types(const spec *s, const char *text, const char *isa)
{
    for (int real = narrow ? LK_BF16 : LK_F32; real <= (narrow ? LK_BF16 : LK_F64); real++) {
        snprintf(the_case, sizeof the_case, "%s %s %s", text, lk_dtype_name((lk_dtype)real),
                 kernel_device ? kernel_device->backend->name : isa);
        run_one(s, isa, (lk_dtype)real);
    }
}

static void run(const spec *s, const char *text)
{
    const char *const *isas = tested_isas();
    for (int i = 0; isas[i] && !kernel_device; i++)
        if (lk__isa_available(isas[i])) run_types(s, text, isas[i]);
    if (kernel_device) run_types(s, text, lk_context_isa(contexts[0]));
}

static inline void open_contexts(void)
{
    for (int t = 0; t < THREADS; t++) {
        lk_context_config config = LK_CONTEXT_CONFIG_INIT;
        config.threads = t + 1;
        REQUIRE(lk_context_create(&config, &contexts[t]) == LK_OK, "%s", lk_context_error(NULL));
    }
    open_kernel_device(contexts[0]);
}

static inline int close_contexts(void)
{
    close_kernel_device();
    for (int t = 0; t < THREADS; t++) lk_context_free(contexts[t]);
    return check_result();
}

#endif
