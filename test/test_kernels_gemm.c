/* test_kernels_gemm.c - convolution, linear and matmul kernels against plain loops in double: every instruction set of this
 * machine, f32, f64 and bf16, awkward shapes, and the same bits with 1, 2 and 3 threads. bf16 gives the bits of f32, rounded once. Or the kernels
 * of the device that LOCKSTEP_DEVICE names, run three times.
 *
 * ctest: timeout 300, label threaded */
#include "check.h"

#include "base/bf16.h"
#include "base/isa.h"
#include "base/random.h"

#include "kernel_device.h"

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

/* A tensor of doubles (the expected values) and the bytes that a kernel reads, in its type; images are channels last. */
typedef struct values {
    int      rank;
    int64_t  dims[LK_MAX_RANK], count;
    double  *v;    /* row-major in the order of dims */
    double  *size; /* Σ|products|: the scale of rounding; NULL for inputs */
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

static values make_index(const int64_t *dims)
{
    values x = make(4, dims, true);
    free(x.v);
    x.v = NULL;
    x.index = require_memory(malloc((size_t)x.count + 1));
    return x;
}

static void free_values(values *x)
{
    free(x->v);
    free(x->size);
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

/* Single elements to 4 × tolerance (Winograd's rounding comes from the whole tile, not from the element's own products), all
 * together to the tolerance, as norms; what is stored in bf16 may in addition be rounded once. One difference per case is
 * reported. */
static void check_values(const values *want, const lk__kernel_operand *o, double tolerance, int output)
{
    double errors = 0, sizes = 0, rounding = o->dtype == LK_BF16 ? 0x1p-8 : 0;
    for (int64_t i = 0; i < want->count; i++) {
        double x = got(o, place(want, i)), error = fmax(0, fabs(x - want->v[i]) - rounding * fabs(want->v[i]));
        if (isnan(x)) error = INFINITY;
        errors += error * error;
        sizes += want->size[i] * want->size[i];
        if (error <= 4 * tolerance * want->size[i] + 1e-30) continue;
        CHECK(false, "%s: output %d, element %lld is %.17g instead of %.17g (scale %g)", the_case, output, (long long)i,
              x, want->v[i], want->size[i]);
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
} spec;

/* Gradients of weights, and sums over a batch, are f32 where elements are bf16. */
static lk_dtype output_type(const spec *s, lk_dtype real)
{
    bool wide = s->op == LK__OP_conv2d_grad_weight || s->op == LK__OP_linear_grad_weight;
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
                call.in[i] = (lk__kernel_operand){(void *)1, s->in[i]->index ? LK_U8 : real, s->in[i]->rank, {0}};
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
                call.out[i] = (lk__kernel_operand){(void *)1, s->out[i]->index ? LK_U8 : result, s->out[i]->rank, {0}};
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
    const lk__kernel_entry *entry = &lk__cpu_kernels(LK_F32, isa)[s->op];
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

static void run_one(const spec *s, const char *isa, lk_dtype real)
{
    const lk__kernel_entry *entry = &lk__cpu_kernels(real, isa)[s->op];
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
    if (real == LK_BF16 && !kernel_device) compare_with_f32(s, isa, &calls[0]);
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
    for (int i = 0; lk__isa_names[i] && !kernel_device; i++)
        if (lk__isa_available(lk__isa_names[i])) run_types(s, text, lk__isa_names[i]);
    if (kernel_device) run_types(s, text, lk_context_isa(contexts[0]));
}

/* Convolutions. */

typedef struct shape {
    int64_t n, c, h, w, o, kh, kw, stride, padding, groups, pool;
    bool    relu, bias, index;
} shape;

typedef struct conv {
    shape  s;
    values x, w, b, full, y, index, dy, spread, dx, dw, db;
} conv;

static double *at4(const values *x, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return &x->v[((n * x->dims[1] + c) * x->dims[2] + h) * x->dims[3] + w];
}

/* Calls f for every product x * w → full of the convolution. */
static void each_product(conv *k, void (*f)(conv *k, int64_t x, int64_t w, int64_t full))
{
    const shape *s = &k->s;
    int64_t      cg = s->c / s->groups, og = s->o / s->groups;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t o = 0; o < s->o; o++)
            for (int64_t p = 0; p < k->full.dims[2]; p++)
                for (int64_t q = 0; q < k->full.dims[3]; q++)
                    for (int64_t c = 0; c < cg; c++)
                        for (int64_t i = 0; i < s->kh; i++)
                            for (int64_t j = 0; j < s->kw; j++) {
                                int64_t h = p * s->stride + i - s->padding, w = q * s->stride + j - s->padding;
                                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                                f(k, at4(&k->x, n, o / og * cg + c, h, w) - k->x.v, at4(&k->w, o, c, i, j) - k->w.v,
                                  at4(&k->full, n, o, p, q) - k->full.v);
                            }
}

static void add(values *to, int64_t i, double product)
{
    to->v[i] += product;
    to->size[i] += fabs(product);
}

static void forward_product(conv *k, int64_t x, int64_t w, int64_t full) { add(&k->full, full, k->x.v[x] * k->w.v[w]); }
static void input_product(conv *k, int64_t x, int64_t w, int64_t full)
{
    add(&k->dx, x, k->spread.v[full] * k->w.v[w]);
}
static void weight_product(conv *k, int64_t x, int64_t w, int64_t full)
{
    add(&k->dw, w, k->spread.v[full] * k->x.v[x]);
}

static void oracle_pool(conv *k)
{
    const shape *s = &k->s;
    int64_t      p = s->pool ? s->pool : 1;
    for (int64_t i = 0; i < k->y.count; i++) {
        int64_t w = i % k->y.dims[3], h = i / k->y.dims[3] % k->y.dims[2], nc = i / k->y.dims[3] / k->y.dims[2];
        int64_t position = 0, best = -1;
        for (int64_t a = 0; a < p * p; a++) {
            int64_t at = (nc * k->full.dims[2] + h * p + a / p) * k->full.dims[3] + w * p + a % p;
            if (best < 0 || k->full.v[at] > k->full.v[best]) best = at, position = a;
        }
        bool dead = s->relu && k->full.v[best] <= 0;
        k->y.v[i] = dead ? 0 : k->full.v[best];
        k->y.size[i] = k->full.size[best];
        if (k->index.index) k->index.index[i] = (uint8_t)(dead ? 255 : position);
    }
}

/* The position of a maximum may differ from the oracle's where the two values differ by rounding alone. */
static bool positions_are_close(const values *want, const lk__kernel_operand *index, void *argument, double tolerance)
{
    const conv *k = argument;
    int64_t     p = k->s.pool;
    for (int64_t i = 0; i < want->count; i++) {
        int position = ((uint8_t *)index->data)[place(want, i)];
        if (position == want->index[i]) continue;
        double slack = 8 * tolerance * k->y.size[i];
        if (position == 255) {
            if (k->s.relu && k->y.v[i] <= slack) continue;
            return false;
        }
        if (position >= p * p) return false;
        int64_t w = i % want->dims[3], h = i / want->dims[3] % want->dims[2], nc = i / want->dims[3] / want->dims[2];
        double  x = k->full.v[(nc * k->full.dims[2] + h * p + position / p) * k->full.dims[3] + w * p + position % p];
        if (fabs(x - k->y.v[i]) > slack) return false;
    }
    return true;
}

static void oracle_spread(conv *k)
{
    int64_t p = k->s.pool ? k->s.pool : 1;
    for (int64_t i = 0; i < k->dy.count; i++) {
        int64_t w = i % k->y.dims[3], h = i / k->y.dims[3] % k->y.dims[2], nc = i / k->y.dims[3] / k->y.dims[2];
        int     position = p > 1 ? k->index.index[i] : 0;
        if (position == 255) continue;
        k->spread.v[(nc * k->full.dims[2] + h * p + position / p) * k->full.dims[3] + w * p + position % p] = k->dy.v[i];
    }
    for (int64_t i = 0; i < k->spread.count; i++)
        add(&k->db, i / k->full.dims[3] / k->full.dims[2] % k->s.o, k->spread.v[i]);
}

static void check_conv(const shape *s)
{
    int64_t oh = (s->h + 2 * s->padding - s->kh) / s->stride + 1, ow = (s->w + 2 * s->padding - s->kw) / s->stride + 1;
    int64_t p = s->pool ? s->pool : 1, x[] = {s->n, s->c, s->h, s->w}, w[] = {s->o, s->c / s->groups, s->kh, s->kw};
    int64_t full[] = {s->n, s->o, oh, ow}, y[] = {s->n, s->o, oh / p, ow / p};
    if (s->h + 2 * s->padding < s->kh || s->w + 2 * s->padding < s->kw || oh / p < 1 || ow / p < 1) return;
    conv k = {.s = *s, .x = make_random(4, x, true), .w = make_random(4, w, false), .b = make_random(1, w, false)};
    k.full = make_wanted(4, full, true);
    k.y = make_wanted(4, y, true);
    k.dy = make_random(4, y, true);
    k.spread = make(4, full, true);
    k.dx = make_wanted(4, x, true);
    k.dw = make_wanted(4, w, false);
    k.db = make_wanted(1, w, false);
    if (p > 1) k.index = make_index(y);
    for (int64_t i = 0; s->bias && i < k.full.count; i++) add(&k.full, i, k.b.v[i / ow / oh % s->o]);
    each_product(&k, forward_product);
    oracle_pool(&k);
    oracle_spread(&k);
    each_product(&k, input_product);
    each_product(&k, weight_product);

    char text[256];
    snprintf(text, sizeof text,
             "x %lldx%lldx%lldx%lld o %lld k %lldx%lld stride %lld padding %lld groups %lld pool %lld%s%s%s",
             (long long)s->n, (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->o, (long long)s->kh,
             (long long)s->kw, (long long)s->stride, (long long)s->padding, (long long)s->groups, (long long)s->pool,
             s->relu ? " relu" : "", s->bias ? " bias" : "", s->index ? " index" : "");
    lk__op_attrs attrs = {
        .kernel = s->kh, .stride = s->stride, .padding = s->padding, .groups = s->groups, .pool = s->pool};
    attrs.activation = s->relu ? LK__RELU : LK__IDENTITY;
    values *index = p > 1 ? &k.index : NULL;
    char    name[320];
    int64_t extra = pick(3);
    snprintf(name, sizeof name, "conv2d %s", text);
    run(&(spec){LK__OP_conv2d,
                attrs,
                {&k.x, &k.w, s->bias ? &k.b : NULL},
                {&k.y, s->index ? index : NULL},
                extra,
                0x301,
                positions_are_close,
                &k},
        name);
    snprintf(name, sizeof name, "conv2d_grad_input %s", text);
    run(&(spec){LK__OP_conv2d_grad_input, attrs, {&k.dy, &k.w, index}, {&k.dx, NULL}, extra, 0x105, NULL, NULL}, name);
    snprintf(name, sizeof name, "conv2d_grad_weight %s", text);
    run(
        &(spec){
            LK__OP_conv2d_grad_weight, attrs, {&k.x, &k.dy, index}, {&k.dw, s->bias ? &k.db : NULL}, extra, 7, NULL, NULL},
        name);
    values *all[] = {&k.x, &k.w, &k.b, &k.full, &k.y, &k.index, &k.dy, &k.spread, &k.dx, &k.dw, &k.db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_values(all[i]);
}

static void convolutions_of_chosen_shapes(void)
{
    static const shape shapes[] = {
        {2, 3, 32, 32, 32, 3, 3, 1, 1, 1, 2, true, true, true},  /* SimpleCNN's first */
        {5, 32, 16, 16, 64, 3, 3, 1, 1, 1, 2, true, true, true}, /* and second */
        {19, 16, 6, 6, 16, 3, 3, 1, 1, 1, 2, true, true, true},  /* more images than chunks */
        {0, 16, 8, 8, 16, 3, 3, 1, 1, 1, 2, true, true, true},
        {0, 3, 5, 5, 2, 3, 3, 1, 1, 1, 0, false, true, false},
        {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, false, false, false},
        {1, 17, 40, 41, 18, 3, 3, 1, 1, 1, 0, true, true, false}, /* several bands */
        {1, 16, 41, 40, 33, 3, 3, 1, 1, 1, 3, true, true, true},
        {2, 16, 7, 7, 48, 3, 3, 1, 1, 1, 0, true, true, false}, /* odd, not whole tiles */
        {2, 20, 9, 5, 17, 3, 3, 1, 0, 1, 0, false, true, false},
        {1, 24, 8, 8, 24, 3, 3, 1, 2, 1, 2, false, true, true},
        {3, 192, 6, 7, 176, 3, 3, 1, 1, 1, 2, true, true, true}, /* many filters: one block of tiles, several, bands */
        {2, 240, 70, 3, 144, 3, 3, 1, 1, 1, 0, false, true, false},
        {1, 3, 20, 20, 8, 7, 7, 2, 3, 1, 0, true, true, false},  /* ResNet's stem */
        {2, 8, 9, 9, 16, 1, 1, 2, 0, 1, 0, false, false, false}, /* and shortcut */
        {1, 40, 5, 5, 70, 5, 5, 1, 2, 1, 0, false, true, false},
        {2, 6, 7, 7, 6, 3, 3, 1, 1, 6, 0, true, true, false}, /* depthwise */
        {1, 34, 6, 6, 68, 3, 3, 1, 1, 2, 2, true, true, true},
        {2, 5, 7, 2, 5, 3, 2, 3, 1, 1, 0, false, true, false},
        {1, 4, 3, 3, 4, 2, 2, 1, 3, 1, 0, false, true, false},  /* padding past the kernel */
        {1, 3, 12, 12, 5, 3, 3, 1, 1, 1, 3, true, true, false}, /* a pool without positions: evaluation */
        /* those that a GPU has kernels of 3×3 for, in each of their tiles */
        {1, 128, 8, 16, 64, 3, 3, 1, 1, 1, 0, true, true, false},
        {3, 32, 16, 16, 32, 3, 3, 1, 1, 1, 0, false, false, false},
        {1, 16, 16, 32, 16, 3, 3, 1, 1, 1, 2, true, true, true},
        {2, 64, 8, 8, 64, 3, 3, 1, 1, 1, 0, true, true, false},
        {1, 32, 8, 8, 32, 3, 3, 1, 1, 1, 2, false, true, true},
        {2, 3, 16, 64, 64, 3, 3, 1, 1, 1, 0, false, true, false},
        {1, 3, 8, 32, 16, 3, 3, 1, 1, 1, 2, true, false, true},
        {40, 16, 16, 16, 16, 3, 3, 1, 1, 1, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_conv(&shapes[i]);
}

static void convolutions_of_drawn_shapes(void)
{
    static const int64_t channels[] = {1, 3, 5, 17}, sizes[] = {1, 2, 7, 4}, kernels[] = {1, 2, 3, 5, 7},
                         pools[] = {0, 0, 2, 3};
    for (int i = 0; i < repetitions(240); i++) {
        shape s = {.n = 1 + 2 * pick(2), .h = sizes[pick(4)] + pick(9), .w = sizes[pick(4)] + pick(9)};
        s.groups = pick(4) == 0 ? 1 + pick(3) : 1;
        s.c = s.groups * channels[pick(4)];
        s.o = s.groups * channels[pick(4)];
        s.kh = kernels[pick(5)];
        s.kw = pick(3) ? s.kh : kernels[pick(5)];
        s.stride = 1 + pick(3);
        s.padding = pick(4);
        s.pool = pools[pick(4)];
        s.relu = pick(2);
        s.bias = pick(2);
        s.index = s.pool && pick(3);
        check_conv(&s);
    }
}

/* Products. */

/* transposed: the weight is (in, out). */
static void check_layout(int64_t rows, int64_t inputs, int64_t outputs, bool bias, bool relu, bool transposed)
{
    int64_t rank3 = rows > 3 && rows % 2 == 0 ? 1 : 0; /* (…, I): sometimes two leading axes */
    int64_t xd[] = {rank3 ? rows / 2 : rows, rank3 ? 2 : inputs, inputs}, yd[] = {xd[0], rank3 ? 2 : outputs, outputs};
    int64_t wd[] = {transposed ? inputs : outputs, transposed ? outputs : inputs}, bd[] = {outputs};
    int64_t of_output = transposed ? 1 : inputs, of_input = transposed ? outputs : 1;
    int     rank = rank3 ? 3 : 2;
    values  x = make_random(rank, xd, false), w = make_random(2, wd, false), b = make_random(1, bd, false);
    values  dy = make_random(rank, yd, false), y = make_wanted(rank, yd, false), dx = make_wanted(rank, xd, false);
    values  dw = make_wanted(2, wd, false), db = make_wanted(1, bd, false);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            double g = dy.v[r * outputs + o];
            if (bias) add(&y, r * outputs + o, b.v[o]);
            add(&db, o, g);
            for (int64_t i = 0; i < inputs; i++) {
                int64_t at = o * of_output + i * of_input;
                add(&y, r * outputs + o, x.v[r * inputs + i] * w.v[at]);
                add(&dx, r * inputs + i, g * w.v[at]);
                add(&dw, at, g * x.v[r * inputs + i]);
            }
            if (relu && y.v[r * outputs + o] < 0) y.v[r * outputs + o] = 0;
        }
    char         name[128];
    lk__op_attrs attrs = {.activation = relu ? LK__RELU : LK__IDENTITY, .transposed = transposed};
    int64_t      extra = pick(3);
    snprintf(name, sizeof name, "linear%s %lldx%lld to %lld%s%s", transposed ? " transposed" : "", (long long)rows,
             (long long)inputs, (long long)outputs, bias ? " bias" : "", relu ? " relu" : "");
    run(&(spec){LK__OP_linear, attrs, {&x, &w, bias ? &b : NULL}, {&y, NULL}, extra, 0x101, NULL, NULL}, name);
    snprintf(name, sizeof name, "linear_grad_input %lldx%lld to %lld", (long long)rows, (long long)inputs,
             (long long)outputs);
    run(&(spec){LK__OP_linear_grad_input, attrs, {&dy, &w, NULL}, {&dx, NULL}, extra, 0x101, NULL, NULL}, name);
    snprintf(name, sizeof name, "linear_grad_weight %lldx%lld to %lld%s", (long long)rows, (long long)inputs,
             (long long)outputs, bias ? " bias" : "");
    run(&(spec){LK__OP_linear_grad_weight, attrs, {&x, &dy, NULL}, {&dw, bias ? &db : NULL}, extra, 3, NULL, NULL},
        name);
    values *all[] = {&x, &w, &b, &dy, &y, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_values(all[i]);
}

static void check_linear(int64_t rows, int64_t inputs, int64_t outputs, bool bias, bool relu)
{
    check_layout(rows, inputs, outputs, bias, relu, false);
    check_layout(rows, inputs, outputs, bias, relu, true);
}

static void linear_layers(void)
{
    static const int64_t sizes[] = {1, 3, 4, 5, 7, 10, 16, 17, 31, 32, 33, 64, 70, 130};
    check_linear(64, 1024, 128, true, true);
    check_linear(33, 700, 600, true, true);
    check_linear(600, 70, 600, true, false);
    check_linear(2, 4096, 40, true, true);
    check_linear(32, 64, 128, true, true);
    check_linear(32, 128, 10, true, false);
    check_linear(1, 1, 1, true, true);
    check_linear(0, 16, 8, true, true);
    for (int rows = 1; rows <= 9; rows++) check_linear(rows, 300 + rows, 130 - rows, rows % 2, rows % 3 == 0);
    for (int i = 0; i < repetitions(120); i++)
        check_linear(sizes[pick(14)], sizes[pick(14)], sizes[pick(14)], pick(2), pick(2));
}

/* left, right: whether that operand has a batch; sum: the output has none. */
static void check_matmul(int64_t batch, int64_t m, int64_t n, int64_t k, bool left, bool right, bool sum, bool ta,
                         bool tb)
{
    int64_t ad[] = {batch, ta ? k : m, ta ? m : k}, bd[] = {batch, tb ? n : k, tb ? k : n}, yd[] = {batch, m, n};
    bool    out = (left || right) && !sum;
    values  a = make_random(left ? 3 : 2, left ? ad : ad + 1, false),
           b = make_random(right ? 3 : 2, right ? bd : bd + 1, false);
    values y = make_wanted(out ? 3 : 2, out ? yd : yd + 1, false);
    for (int64_t q = 0; q < (left || right ? batch : 1); q++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t p = 0; p < k; p++)
                    add(&y, (out ? q * m * n : 0) + i * n + j,
                        a.v[(left ? q * m * k : 0) + (ta ? p * m + i : i * k + p)] *
                            b.v[(right ? q * k * n : 0) + (tb ? j * k + p : p * n + j)]);
    char name[160];
    snprintf(name, sizeof name, "matmul %lld of %lldx%lldx%lld%s%s%s%s%s", (long long)batch, (long long)m, (long long)n,
             (long long)k, left ? " left" : "", right ? " right" : "", sum ? " sum" : "", ta ? " ta" : "",
             tb ? " tb" : "");
    lk__op_attrs attrs = {.transpose_a = ta, .transpose_b = tb};
    run(&(spec){LK__OP_matmul,
                attrs,
                {&a, &b, NULL},
                {&y, NULL},
                pick(3),
                (left ? 1 : 0) | (right ? 2 : 0) | (out ? 0x100 : 0),
                NULL,
                NULL},
        name);
    free_values(&a), free_values(&b), free_values(&y);
}

static void matrix_products(void)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 30, 33, 64, 100};
    for (int t = 0; t < 4; t++) {
        check_matmul(1, 260, 270, 530, false, false, false, t & 1, t >> 1);
        check_matmul(3, 64, 64, 32, true, true, false, t & 1, t >> 1);
        check_matmul(0, 4, 5, 6, true, true, true, t & 1, t >> 1);
        check_matmul(0, 4, 5, 6, true, true, false, t & 1, t >> 1);
        check_matmul(1, 4, 5, 0, true, true, false, t & 1, t >> 1);
        check_matmul(1, 300, 20, 600, false, false, false, t & 1, t >> 1);
    }
    for (int i = 0; i < repetitions(200); i++) {
        bool left = pick(2), right = pick(2);
        check_matmul(1 + pick(4), sizes[pick(11)], sizes[pick(11)], sizes[pick(11)], left, right,
                     (left || right) && pick(2), pick(2), pick(2));
    }
}

/* ---- few rows ---- */

/* The bits of one product of `rows` rows, with workspace for `capacity` of them; the caller frees them. */
static unsigned char *product_bits(const char *isa, lk_dtype real, lk__op op, const values *x, const values *w,
                                   const values *b, int64_t rows, bool tb, int threads)
{
    const lk__kernel_entry *entry = &lk__cpu_kernels(real, isa)[op];
    lk__op_attrs            attrs = {.transpose_b = tb, .activation = op == LK__OP_linear ? LK__RELU : LK__IDENTITY};
    int64_t                 n = op == LK__OP_linear || tb ? w->dims[0] : w->dims[1], yd[] = {rows, n};
    values                  y = make(2, yd, false);
    lk__kernel_call         call = {
                .attrs = &attrs, .inputs = b ? 3 : 2, .outputs = 1, .pool = lk__context_pool(contexts[threads - 1])};
    call.in[0] = operand(x, real), call.in[1] = operand(w, real), call.out[0] = operand(&y, real);
    if (b) call.in[2] = operand(b, real);
    call.out[0].dims[0] = x->dims[0];
    size_t bytes = entry->workspace(&call, threads);
    call.in[0].dims[0] = call.out[0].dims[0] = rows;
    call.workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(bytes + 1, LK__ALIGN)));
    entry->run(&call);
    unsigned char *bits = call.out[0].data;
    free(call.workspace), free(call.in[0].data), free(call.in[1].data), free(call.in[2].data), free_values(&y);
    return bits;
}

/* Products with few rows have kernels of their own: a row's bits must not depend on how many others there are. */
static void check_few_rows(int64_t n, int64_t k, lk__op op, bool tb, bool bias)
{
    enum { MANY_ROWS = 23 };
    bool    columns = op == LK__OP_linear || tb;
    int64_t xd[] = {MANY_ROWS, k}, wd[] = {columns ? n : k, columns ? k : n};
    values  x = make_random(2, xd, false), w = make_random(2, wd, false), b = make_random(1, &n, false);
    for (int i = 0; lk__isa_names[i]; i++)
        for (int real = LK_F32; real <= LK_BF16 && lk__isa_available(lk__isa_names[i]); real++) {
            const char    *isa = lk__isa_names[i];
            size_t         row = (size_t)n * element((lk_dtype)real);
            unsigned char *all = product_bits(isa, (lk_dtype)real, op, &x, &w, bias ? &b : NULL, MANY_ROWS, tb, 1);
            for (int64_t rows = 1; rows <= 9; rows++) {
                unsigned char *few =
                    product_bits(isa, (lk_dtype)real, op, &x, &w, bias ? &b : NULL, rows, tb, 1 + (int)rows % 3);
                CHECK(memcmp(all, few, (size_t)rows * row) == 0, "%s %s: %lld of %d rows of %s %lldx%lld%s differ", isa,
                      lk_dtype_name((lk_dtype)real), (long long)rows, MANY_ROWS, lk__op_name(op), (long long)k,
                      (long long)n, tb ? " transposed" : "");
                free(few);
            }
            free(all);
        }
    free_values(&x), free_values(&w), free_values(&b);
}

static void a_row_does_not_depend_on_the_number_of_rows(void)
{
    static const int64_t sizes[][2] = {{1, 1},    {3, 5},    {16, 16},   {17, 33},    {31, 255},
                                       {64, 256}, {65, 257}, {300, 514}, {257, 1030}, {1031, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_few_rows(sizes[i][0], sizes[i][1], LK__OP_linear, false, i % 2);
        check_few_rows(sizes[i][0], sizes[i][1], LK__OP_matmul, false, false);
        check_few_rows(sizes[i][0], sizes[i][1], LK__OP_matmul, true, false);
    }
}

/* On a GPU they have kernels of their own where algorithms need not be a function of the shape alone. Columns that are cut into segments,
 * more of them than a GPU has warps, and rows that are no multiple of what a warp reads at once. */
static void products_of_few_rows(void)
{
    static const int64_t sizes[][2] = {{64, 256}, {40, 512}, {12, 2048}, {300, 264}, {560, 72}, {24, 8 * 331}};
    bool                 by_heuristic = kernel_device && kernel_device->by_heuristic;
    if (kernel_device) kernel_device->by_heuristic = false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t rows = 1 + (int64_t)i % 2; rows <= 8; rows = 3 * rows - 1)
            check_linear(rows, sizes[i][1], sizes[i][0], i % 2, rows % 2);
    check_linear(1, 16, 20000, true, true);
    if (kernel_device) kernel_device->by_heuristic = by_heuristic;
}

/* Training must get a NaN loss from a NaN, so neither relu nor max pool may hide one. */
static void nan_passes(const char *isa, lk_dtype real, int64_t channels, int64_t pool)
{
    const lk__kernel_entry *entry = &lk__cpu_kernels(real, isa)[LK__OP_conv2d];
    int64_t                 side = 8, out = pool ? side / pool : side;
    int64_t      xd[] = {1, channels, side, side}, wd[] = {channels, channels, 3, 3}, yd[] = {1, channels, out, out};
    lk__op_attrs attrs = {.kernel = 3, .stride = 1, .padding = 1, .groups = 1, .pool = pool, .activation = LK__RELU};
    values       x = make_random(4, xd, true), w = make_random(4, wd, false), y = make(4, yd, true);
    *at4(&x, 0, 0, 5, 6) = NAN;
    lk__kernel_call call = {.attrs = &attrs, .inputs = 2, .outputs = 1, .pool = lk__context_pool(contexts[0])};
    call.in[0] = operand(&x, real), call.in[1] = operand(&w, real), call.out[0] = operand(&y, real);
    call.workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(entry->workspace(&call, 1) + 1, LK__ALIGN)));
    const char *wrong = NULL;
    if (kernel_device)
        wrong = run_on_device(LK__OP_conv2d, real, &call, NULL, false);
    else
        entry->run(&call);
    CHECK(!wrong, "conv2d with a NaN: %s", wrong);
    int64_t p = pool ? pool : 1, missed = 0;
    for (int64_t o = 0; o < channels; o++)
        for (int64_t h = 4; h <= 6; h++)
            for (int64_t q = 5; q <= 7; q++)
                missed += !isnan(got(&call.out[0], place(&y, (o * out + h / p) * out + q / p)));
    CHECK(missed == 0, "%s %s, %lld channels, pool %lld: %lld values hide a NaN", isa, lk_dtype_name(real),
          (long long)channels, (long long)pool, (long long)missed);
    free(call.workspace), free(call.in[0].data), free(call.in[1].data), free(call.out[0].data);
    free_values(&x), free_values(&w), free_values(&y);
}

static void nan_is_not_hidden_by_relu_and_pool(void)
{
    for (int i = 0; lk__isa_names[i]; i++)
        for (int real = LK_F32; real <= LK_BF16 && lk__isa_available(lk__isa_names[i]);
             real++) /* a device runs each time */
            for (int64_t pool = 0; pool <= 2; pool += 2) {
                nan_passes(lk__isa_names[i], (lk_dtype)real, 3, pool);
                nan_passes(lk__isa_names[i], (lk_dtype)real, 16, pool);
            }
}

int main(void)
{
    for (int t = 0; t < THREADS; t++) {
        lk_context_config config = LK_CONTEXT_CONFIG_INIT;
        config.threads = t + 1;
        REQUIRE(lk_context_create(&config, &contexts[t]) == LK_OK, "%s", lk_context_error(NULL));
    }
    open_kernel_device(contexts[0]);
    for (int pass = 0; pass < 2; pass++) {
        narrow = pass == 1;
        RUN(convolutions_of_chosen_shapes);
        RUN(convolutions_of_drawn_shapes);
        RUN(linear_layers);
        RUN(products_of_few_rows);
        RUN(matrix_products);
    }
    narrow = true; /* numbers that every type holds */
    if (kernel_device)
        printf("skipped: a row's bits may depend on the number of rows on a device\n");
    else
        RUN(a_row_does_not_depend_on_the_number_of_rows);
    RUN(nan_is_not_hidden_by_relu_and_pool);
    list_kernels_ran(__BASE_FILE__);
    close_kernel_device();
    for (int t = 0; t < THREADS; t++) lk_context_free(contexts[t]);
    return check_result();
}
