/* test_kernels_conv.c - convolution kernels, with bias, relu and pooling, and their gradients, at chosen and drawn
 * shapes.
 *
 * ctest: timeout 600, label threaded */
#include "kernel_values.h"

typedef struct shape {
    int64_t n, c, h, w, o, kh, kw, stride, padding, groups, pool;
    bool    relu, bias, index;
} shape;

typedef struct conv {
    shape  s;
    values x, w, b, full, y, index, dy, spread, dx, dw, db;
} conv;

static values make_index(const int64_t *dims)
{
    values x = make(4, dims, true);
    free(x.v);
    x.v = NULL;
    x.index = require_memory(malloc((size_t)x.count + 1));
    return x;
}

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

static void forward_product(conv *k, int64_t x, int64_t w, int64_t full)
{
    add_product(&k->full, full, k->x.v[x] * k->w.v[w]);
}
static void input_product(conv *k, int64_t x, int64_t w, int64_t full)
{
    add_product(&k->dx, x, k->spread.v[full] * k->w.v[w]);
}
static void weight_product(conv *k, int64_t x, int64_t w, int64_t full)
{
    add_product(&k->dw, w, k->spread.v[full] * k->x.v[x]);
}

static void oracle_pool(conv *k)
{
    const shape *s = &k->s;
    int64_t      p = s->pool ? s->pool : 1;
    for (int64_t i = 0; i < k->y.count; i++) {
        int64_t w = i % k->y.dims[3], h = i / k->y.dims[3] % k->y.dims[2], nc = i / k->y.dims[3] / k->y.dims[2];
        int64_t position = 0, best = -1;
        double  most = 0;
        for (int64_t a = 0; a < p * p; a++) {
            int64_t at = (nc * k->full.dims[2] + h * p + a / p) * k->full.dims[3] + w * p + a % p;
            if (best < 0 || k->full.v[at] > k->full.v[best]) best = at, position = a;
            most = fmax(most, k->full.size[at]);
        }
        bool dead = s->relu && k->full.v[best] <= 0;
        k->y.v[i] = dead ? 0 : k->full.v[best];
        k->y.size[i] = k->full.size[best];
        k->y.most[i] = most;
        if (k->index.index) k->index.index[i] = (uint8_t)(dead ? 255 : position);
    }
}

static double norm_of(const values *x, int64_t n, int64_t c, int64_t h, int64_t w, int64_t side)
{
    double squares = 0;
    for (int64_t i = h < 0 ? 0 : h; i < h + side && i < x->dims[2]; i++)
        for (int64_t j = w < 0 ? 0 : w; j < w + side && j < x->dims[3]; j++)
            squares += *at4(x, n, c, i, j) * *at4(x, n, c, i, j);
    return sqrt(squares);
}

/* Winograd's algorithm (3×3 at stride 1) transforms tiles of 6×6 pixels and of 4×4 of dy before it multiplies, so a
 * tap's rounding follows from the norms of whole tiles (Barabasz et al., "Error Analysis and Improving the Accuracy of
 * Winograd Convolution", 2018, section 4), not from its own products. The two differ most where pooling leaves three
 * quarters of dy zero. By Cauchy-Schwarz the norms are the larger. */
static void tile_sizes(conv *k)
{
    const shape *s = &k->s;
    double      *x = require_memory(calloc((size_t)s->c + 1, sizeof(double)));
    bool         winograd = s->kh == 3 && s->kw == 3 && s->stride == 1 && s->groups == 1;
    if (winograd) k->dw.tile = require_memory(calloc((size_t)k->dw.count + 1, sizeof(double)));
    int64_t tall = (k->full.dims[2] + 3) / 4, wide = (k->full.dims[3] + 3) / 4;
    for (int64_t i = 0; winograd && i < s->n * tall * wide; i++) {
        int64_t n = i / wide / tall, h = i / wide % tall * 4, w = i % wide * 4;
        for (int64_t c = 0; c < s->c; c++) x[c] = norm_of(&k->x, n, c, h - s->padding, w - s->padding, 6);
        for (int64_t o = 0; o < s->o; o++) {
            double dy = norm_of(&k->spread, n, o, h, w, 4);
            for (int64_t at = 0; at < 9 * s->c; at++) k->dw.tile[o * 9 * s->c + at] += dy * x[at / 9];
        }
    }
    free(x);
}

/* The same of dx, whose tiles of 4×4 pixels come from 6×6 of dy, most of them zero where they were pooled. */
static void input_tile_sizes(conv *k)
{
    const shape *s = &k->s;
    if (s->kh != 3 || s->kw != 3 || s->stride != 1 || s->groups != 1 || s->pool != 2) return;
    k->dx.tile = require_memory(calloc((size_t)k->dx.count + 1, sizeof(double)));
    int64_t tall = (s->h + 3) / 4, wide = (s->w + 3) / 4;
    for (int64_t i = 0; i < s->n * tall * wide; i++) {
        int64_t n = i / wide / tall, h = i / wide % tall * 4, w = i % wide * 4;
        for (int64_t o = 0; o < s->o; o++) {
            double dy = norm_of(&k->spread, n, o, h + s->padding - 2, w + s->padding - 2, 6);
            for (int64_t c = 0; c < s->c; c++) {
                double size = dy * norm_of(&k->w, o, c, 0, 0, 3);
                for (int64_t p = h; p < h + 4 && p < s->h; p++)
                    for (int64_t q = w; q < w + 4 && q < s->w; q++)
                        k->dx.tile[at4(&k->dx, n, c, p, q) - k->dx.v] += size;
            }
        }
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
        k->spread.v[(nc * k->full.dims[2] + h * p + position / p) * k->full.dims[3] + w * p + position % p] =
            k->dy.v[i];
    }
    for (int64_t i = 0; i < k->spread.count; i++)
        add_product(&k->db, i / k->full.dims[3] / k->full.dims[2] % k->s.o, k->spread.v[i]);
}

/* And its sums as they are, where the kernel has all of them to itself. */
static void run_image(spec *s, bool alone, char name[320])
{
    run(s, name);
    if (!narrow || !alone) return;
    size_t used = strlen(name);
    snprintf(name + used, 320 - used, ", sums");
    s->sums = true;
    run(s, name);
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
    k.y.most = require_memory(calloc((size_t)k.y.count + 1, sizeof(double)));
    k.dy = make_random(4, y, true);
    k.spread = make(4, full, true);
    k.dx = make_wanted(4, x, true);
    k.dw = make_wanted(4, w, false);
    k.db = make_wanted(1, w, false);
    if (p > 1) k.index = make_index(y);
    for (int64_t i = 0; s->bias && i < k.full.count; i++) add_product(&k.full, i, k.b.v[i / ow / oh % s->o]);
    each_product(&k, forward_product);
    oracle_pool(&k);
    oracle_spread(&k);
    each_product(&k, input_product);
    each_product(&k, weight_product);
    tile_sizes(&k);
    input_tile_sizes(&k);

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
    spec y_of = {.op = LK__OP_conv2d,
                 .attrs = attrs,
                 .in = {&k.x, &k.w, s->bias ? &k.b : NULL},
                 .out = {&k.y, s->index ? index : NULL},
                 .capacity = extra,
                 .batched_in = 0x301,
                 .close_index = positions_are_close,
                 .argument = &k};
    run_image(&y_of, p == 1 && !s->relu && !s->bias, name);
    snprintf(name, sizeof name, "conv2d_grad_input %s", text);
    spec dx_of = {.op = LK__OP_conv2d_grad_input,
                  .attrs = attrs,
                  .in = {&k.dy, &k.w, index},
                  .out = {&k.dx, NULL},
                  .capacity = extra,
                  .batched_in = 0x105};
    run_image(&dx_of, true, name);
    snprintf(name, sizeof name, "conv2d_grad_weight %s", text);
    run(&(spec){LK__OP_conv2d_grad_weight,
                attrs,
                {&k.x, &k.dy, index},
                {&k.dw, s->bias ? &k.db : NULL},
                extra,
                7,
                NULL,
                NULL,
                false},
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

/* Shapes whose parts would be computed by another algorithm, or summed in other blocks, if they were the whole. */
static void parts_are_computed_as_the_whole_is(void)
{
    static const shape shapes[] = {
        {3, 32, 6, 6, 32, 3, 3, 1, 1, 1, 0, true, true, false}, /* by Winograd's algorithm, which needs whole vectors */
        {2, 48, 7, 7, 16, 3, 3, 1, 1, 1, 2, true, true, true},
        {1, 16, 9, 10, 80, 3, 3, 1, 2, 1, 2, false, true, true},
        {2, 64, 24, 3, 16, 3, 3, 1, 1, 1, 0, false, false, false}, /* tiles in a block of the weight's gradient */
        {3, 192, 4, 4, 176, 3, 3, 1, 1, 1, 0, true, true, false},  /* many filters; images of a chunk */
        {1, 64, 6, 6, 32, 5, 5, 1, 2, 1, 2, true, true, true},     /* pooled in registers; a panel in parts */
        {2, 128, 6, 6, 64, 5, 5, 1, 2, 2, 2, true, true, true},
        {2, 7, 40, 9, 17, 3, 3, 1, 1, 1, 0, false, true, false}, /* bands of rows */
        {2, 12, 33, 21, 6, 2, 2, 2, 1, 2, 0, false, true, false},
        {3, 3, 11, 5, 17, 1, 1, 1, 3, 1, 3, true, true, true}, /* from positions of maxima: one vector, one sum */
        {3, 9, 9, 4, 51, 2, 2, 1, 2, 3, 2, true, true, true},
        {1, 14, 12, 12, 7, 3, 3, 1, 1, 1, 2, true, true, true}, /* more vectors than the whole may have for it */
    };
    parts_of_all = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_conv(&shapes[i]);
    parts_of_all = false;
}

/* Training must get a NaN loss from a NaN, so neither relu nor max pool may hide one. */
static void nan_passes(const char *isa, lk_dtype real, int64_t channels, int64_t pool)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(real, isa, LK__OP_conv2d);
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
    open_contexts();
    for (int pass = first_tested_type(*tested_isas()) == LK_BF16; pass < 2; pass++) {
        narrow = pass == 1;
        draw_index = 0; /* the same cases and numbers, rounded to bf16 */
        RUN(convolutions_of_chosen_shapes);
        RUN(convolutions_of_drawn_shapes);
    }
    for (int pass = 0; pass < (SANITIZED ? 1 : 2) && !getenv("LK_TEST_SLOW") && !kernel_device; pass++) {
        narrow = pass == 1;
        RUN(parts_are_computed_as_the_whole_is);
    }
    narrow = false;
    RUN(nan_is_not_hidden_by_relu_and_pool);
    list_kernels_ran(__BASE_FILE__);
    list_mutants_tried(__BASE_FILE__);
    return close_contexts();
}
