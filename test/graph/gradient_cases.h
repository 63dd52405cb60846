/* gradient_cases.h - the cases of test_gradients.c: every operation at awkward shapes, as functions that record it.
 * Those of layers are in gradient_layers.h. */
#ifndef GRADIENT_CASES_H
#define GRADIENT_CASES_H

#include "gradient_layers.h"

/* ---- element by element ---- */

static const shape pairs[][2] = {
    {{2, {3, 5}}, {2, {3, 5}}},
    {{2, {3, 5}}, {1, {5}}},
    {{1, {5}}, {2, {3, 5}}},
    {{2, {3, 1}}, {2, {1, 5}}},
    {{1, {1}}, {3, {3, 5, 7}}},
    {{0, {0}}, {2, {3, 5}}},
    {{2, {3, 5}}, {0, {0}}},
    {{4, {2, 1, 3, 1}}, {4, {1, 5, 1, 7}}},
    {{2, {1, 1}}, {2, {3, 5}}},
    {{1, {17}}, {1, {17}}},
    {{6, {2, 3, 1, 1, 5, 1}}, {6, {1, 3, 2, 7, 1, 2}}},
    {{1, {1}}, {1, {1}}},
    {{3, {7, 1, 3}}, {2, {1, 3}}},
    {{4, {3, 3, 5, 5}}, {4, {1, 3, 1, 1}}},
    {{4, {3, 1, 1, 5}}, {4, {3, 2, 7, 5}}},
    {{0, {0}}, {0, {0}}},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static lk_tensor build_binary(cell *c)
{
    const shape *s = pairs[c->variant / 4];
    lk_tensor    a = operand(c, PLAIN, s[0].rank, s[0].dims), b = operand(c, POSITIVE, s[1].rank, s[1].dims);
    switch (c->variant % 4) {
    case 0: return lk_add(a, b);
    case 1: return lk_sub(a, b);
    case 2: return lk_mul(a, b);
    default: return lk_div(a, b);
    }
}

/* One tensor on both sides. */
static lk_tensor build_binary_self(cell *c)
{
    lk_tensor a = OPERAND(c, POSITIVE, 3, 7);
    switch (c->variant) {
    case 0: return lk_add(a, a);
    case 1: return lk_mul(lk_sub(a, a), a);
    case 2: return lk_mul(a, a);
    default: return lk_mul(lk_div(a, a), a);
    }
}

static const shape unary_shapes[] = {{1, {1}}, {1, {17}}, {3, {3, 5, 7}}, {4, {2, 3, 5, 5}}, {0, {0}}};

static lk_tensor build_unary(cell *c)
{
    const shape *s = &PICK(unary_shapes, c->variant / 9);
    int          which = c->variant % 9;
    lk_tensor    x = operand(c, which == 0 ? SPREAD : which % 2 ? PLAIN : WIDE, s->rank, s->dims);
    switch (which) {
    case 0: return lk_relu(x);
    case 1:
    case 2: return lk_silu(x);
    case 3:
    case 4: return lk_sigmoid(x);
    case 5: return lk_tanh(x);
    case 6: return lk_gelu(x);
    case 7: return lk_gelu(x, .tanh = true);
    default: return lk_scale(lk_tanh(lk_scale(x, 0.5)), -3.25);
    }
}

/* Functions with a parameter, or that are not defined for all numbers. */
static lk_tensor build_unary_more(cell *c)
{
    const shape *s = &PICK(unary_shapes, c->variant / 8);
    int          which = c->variant % 8;
    lk_tensor    x = operand(c, which == 0 ? PLAIN : which == 5 ? SPREAD : POSITIVE, s->rank, s->dims);
    switch (which) {
    case 0: return lk_exp(x);
    case 1: return lk_log(x);
    case 2: return lk_sqrt(x);
    case 3: return lk_pow(x, 2.7);
    case 4: return lk_pow(x, -3);
    case 5: return lk_pow(x, 5);
    case 6: return lk_pow(x, 2);
    default: return lk_pow(lk_exp(lk_log(lk_sqrt(x))), 0.5);
    }
}

static lk_tensor build_unary_kinks(cell *c)
{
    const shape *s = &PICK(unary_shapes, c->variant / 5);
    lk_tensor    x = operand(c, SPREAD, s->rank, s->dims);
    switch (c->variant % 5) {
    case 0: return lk_clamp(x, -0.53, 0.41);
    case 1: return lk_clamp(x, 0.1, INFINITY);
    case 2: return lk_clamp(x, -INFINITY, 0.1);
    case 3: return lk_leaky_relu(x, -0.3);
    default: return lk_leaky_relu(lk_leaky_relu(x, 0.01), 3);
    }
}

/* A condition of each type, each operand broadcast once. */
static lk_tensor build_where(cell *c)
{
    static const struct {
        shape condition, a, b;
    } shapes[] = {{{2, {3, 5}}, {2, {3, 5}}, {2, {3, 5}}},
                  {{1, {5}}, {2, {3, 5}}, {2, {3, 1}}},
                  {{2, {3, 1}}, {1, {5}}, {0, {0}}},
                  {{0, {0}}, {2, {1, 5}}, {2, {3, 1}}},
                  {{3, {2, 1, 7}}, {2, {3, 1}}, {1, {7}}},
                  {{1, {1}}, {1, {1}}, {1, {1}}},
                  {{4, {2, 3, 5, 5}}, {4, {2, 3, 5, 5}}, {4, {1, 3, 1, 1}}}};
    static const lk_dtype types[] = {LK_U8, LK_I32, LK_I64, LK_F32, LK_F64};
    int                   n = c->variant / 5;
    lk_dtype              type = types[c->variant % 5];
    int64_t               elements = 1;
    uint64_t              data[150] = {0};
    for (int i = 0; i < shapes[n].condition.rank; i++) elements *= shapes[n].condition.dims[i];
    for (int64_t i = 0; i < elements; i++) {
        bool yes = number(9, (uint64_t)i) < 0.5;
        if (type == LK_U8) ((uint8_t *)data)[i] = yes ? 200 : 0;
        if (type == LK_I32) ((int32_t *)data)[i] = yes ? -1 : 0;
        if (type == LK_I64) ((int64_t *)data)[i] = yes ? INT64_C(1) << 40 : 0;
        if (type == LK_F32) ((float *)data)[i] = yes ? 1e-30F : -0.0F;
        if (type == LK_F64) ((double *)data)[i] = yes ? NAN : 0;
    }
    lk_tensor condition = lk_constant(c->graph, type, shapes[n].condition.rank, shapes[n].condition.dims, data);
    lk_tensor a = operand(c, PLAIN, shapes[n].a.rank, shapes[n].a.dims);
    lk_tensor b = operand(c, PLAIN, shapes[n].b.rank, shapes[n].b.dims);
    return lk_where(condition, lk_mul(a, a), lk_tanh(b));
}

/* A convolution's result as both operands, with a condition that needs a gradient but gets none. */
static lk_tensor build_where_image(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 7, 3, 3, 3);
    lk_tensor y = lk_f_conv2d(x, w, (lk_tensor){0});
    return lk_where(lk_relu(y), lk_mul(y, y), lk_tanh(y));
}

static lk_tensor build_dropout(cell *c)
{
    static const double p[] = {0, 0.3, 0.9, 1};
    double              probability = p[c->variant % 4];
    switch (c->variant / 4) {
    case 0: return lk_dropout(OPERAND(c, PLAIN, 3, 17), probability);
    case 1: return lk_dropout(lk_dropout(OPERAND(c, PLAIN, 5, 2, 3, 7), probability), 0.25);
    case 2: { /* an image: its layout must not change which elements are dropped */
        lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 7, 3, 3, 3);
        return lk_linear(lk_flatten(lk_dropout(lk_f_conv2d(x, w, (lk_tensor){0}), probability)), "fc", 3);
    }
    default: {
        lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 7, 3, 3, 3),
                  v = OPERAND(c, PLAIN, 1, 7, 2, 2);
        lk_tensor y = lk_dropout(lk_tanh(lk_f_conv2d(x, w, (lk_tensor){0})), probability);
        return lk_f_conv2d(lk_dropout(y, 0.5), v, (lk_tensor){0});
    }
    }
}

/* ---- along axes ---- */

static const shape axis_shapes[] = {{1, {7}},       {2, {3, 5}},       {2, {5, 1}},
                                    {3, {3, 7, 5}}, {4, {2, 3, 5, 3}}, {2, {3, 17}}};

static lk_tensor build_softmax(cell *c)
{
    const shape *s = &axis_shapes[c->variant / 8];
    int          axis = c->variant % 8 / 2;
    lk_tensor    x = operand(c, c->variant % 3 ? PLAIN : WIDE, s->rank, s->dims);
    axis %= s->rank;
    if (c->variant % 4 == 1) axis -= s->rank;
    return c->variant % 2 ? lk_log_softmax(x, axis) : lk_softmax(x, axis);
}

static const shape reduce_shapes[] = {
    {1, {17}}, {2, {3, 5}}, {3, {5, 1, 7}}, {4, {2, 3, 5, 3}}, {6, {2, 3, 1, 2, 5, 2}}};
enum { REDUCE_MASKS = 2 + 4 + 8 + 16 + 64 };

static lk_tensor build_reduce(cell *c)
{
    int          mask = c->variant / 4, axes[LK_MAX_RANK], count = 0, k = 0;
    const shape *s = reduce_shapes;
    for (; mask >= 1 << s->rank; k++) mask -= 1 << s->rank, s++;
    lk_tensor x = operand(c, PLAIN, s->rank, s->dims);
    for (int i = 0; i < s->rank; i++)
        if (mask >> i & 1) axes[count++] = i % 2 ? i - s->rank : i;
    bool keepdim = c->variant & 1;
    x = lk_tanh(x);           /* so that the gradient is not a constant */
    if (count == 0) return x; /* no axes are an error */
    return c->variant & 2 ? lk_mean(x, .axes = axes, .axes_count = count, .keepdim = keepdim)
                          : lk_sum(x, .axes = axes, .axes_count = count, .keepdim = keepdim);
}

static lk_tensor build_max(cell *c)
{
    const shape *s = &axis_shapes[c->variant / 8];
    int          axis = c->variant % 8 / 2 % s->rank;
    lk_tensor    x = operand(c, SPREAD, s->rank, s->dims);
    lk_tensor    y = lk_max(x, c->variant % 4 == 1 ? axis - s->rank : axis, .keepdim = c->variant % 2);
    return lk_mul(y, y);
}

/* The argmax selects, and gives no gradient to its own input. */
static lk_tensor build_argmax(cell *c)
{
    lk_tensor x = OPERAND(c, SPREAD, 3, 7), table = OPERAND(c, PLAIN, 7, 5);
    return lk_mul(lk_f_embedding(lk_argmax(x, 1), table), lk_sum(x));
}

static lk_tensor build_reduce_all(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5, 7);
    return c->variant ? lk_mean(lk_mul(x, x)) : lk_sum(lk_mul(x, x));
}

/* ---- shape ---- */

static lk_tensor build_reshape(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5, 7, 2), y;
    switch (c->variant) {
    case 0: y = lk_reshape(x, 2, ((int64_t[]){15, 14})); break;
    case 1: y = lk_reshape(x, 6, ((int64_t[]){1, 3, 5, 1, 2, 7})); break;
    case 2: y = lk_reshape(x, 3, ((int64_t[]){-1, 6, 5})); break;
    case 3: y = lk_reshape(x, 1, ((int64_t[]){-1})); break;
    case 4: y = lk_flatten(x); break;
    case 5: y = lk_flatten(lk_flatten(lk_flatten(x))); break;
    case 6: return x; /* a parameter directly in the loss */
    case 7: return lk_flatten(x);
    case 8: y = lk_add(lk_flatten(x), lk_reshape(x, 2, ((int64_t[]){3, 70}))); break;
    default: y = lk_reshape(lk_reshape(OPERAND(c, PLAIN, 1), 0, NULL), 3, ((int64_t[]){1, 1, 1}));
    }
    return lk_mul(y, y);
}

static lk_tensor build_permute(cell *c)
{
    static const int five[][5] = {{4, 3, 2, 1, 0}, {1, 2, 3, 4, 0}, {0, 2, 1, 4, 3}};
    static const int six[][6] = {
        {5, 4, 3, 2, 1, 0}, {2, 0, 1, 5, 3, 4}, {0, 1, 2, 3, 5, 4}, {1, 0, 2, 3, 4, 5}, {-1, 0, -2, 2, 1, 3}};
    int       n = c->variant;
    lk_tensor y;
    if (n < 24) { /* every order of four axes */
        int left[4] = {0, 1, 2, 3}, axes[4], rest = n;
        for (int i = 0; i < 4; i++) {
            int j = rest % (4 - i);
            rest /= 4 - i;
            axes[i] = left[j];
            for (; j < 3 - i; j++) left[j] = left[j + 1];
        }
        y = lk_permute(OPERAND(c, PLAIN, 3, 5, 2, 7), axes);
    } else if (n < 27) {
        y = lk_permute(OPERAND(c, PLAIN, 2, 3, 1, 5, 7), five[n - 24]);
    } else if (n < 32) {
        y = lk_permute(OPERAND(c, PLAIN, 2, 3, 1, 5, 2, 3), six[n - 27]);
    } else if (n < 41) {
        y = lk_transpose(OPERAND(c, PLAIN, 3, 5, 7), (n - 32) / 3, (n - 32) % 3 - 3);
    } else {
        y = lk_transpose(OPERAND(c, PLAIN, 17, 5), 0, 1);
    }
    return lk_mul(y, y);
}

static lk_tensor build_slice(cell *c)
{
    static const int64_t cuts[][4] = {/* axis, start, length */
                                      {0, 0, 1}, {0, 1, 2}, {0, 0, 3},  {1, 2, 3},
                                      {1, 4, 1}, {2, 0, 7}, {-1, 3, 2}, {-2, 0, 4}};
    lk_tensor            x = OPERAND(c, PLAIN, 3, 5, 7);
    lk_tensor            y = lk_slice(x, (int)cuts[c->variant][0], cuts[c->variant][1], cuts[c->variant][2]);
    return lk_mul(y, y);
}

static lk_tensor build_slices_overlap(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 5, 7);
    return lk_mul(lk_slice(x, 1, 0, 5), lk_slice(x, 1, 2, 5));
}

static lk_tensor build_concat(cell *c)
{
    int       count = c->variant / 3 + 1, axis = c->variant % 3;
    lk_tensor x[8];
    for (int i = 0; i < count; i++) {
        int64_t dims[3] = {3, 2, 5};
        dims[axis] = 1 + i % 4;
        x[i] = operand(c, PLAIN, 3, dims);
    }
    lk_tensor y = lk_concat(x, count, axis - (count % 2 ? 3 : 0));
    return lk_mul(y, y);
}

static lk_tensor build_concat_same(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5), y = lk_concat(((lk_tensor[]){x, lk_tanh(x), x}), 3, c->variant);
    return lk_mul(y, y);
}

/* ---- products ---- */

static lk_tensor build_matmul(cell *c)
{
    static const struct {
        int     batch_a, batch_b; /* how many batch axes */
        int64_t m, k, n;
    } sizes[] = {{0, 0, 5, 7, 3},  {0, 0, 1, 1, 1}, {0, 0, 17, 5, 1}, {1, 1, 3, 5, 7},    {1, 0, 3, 5, 7},
                 {0, 1, 3, 5, 7},  {2, 2, 5, 3, 1}, {2, 0, 2, 7, 5},  {0, 2, 2, 7, 5},    {0, 0, 33, 17, 19},
                 {1, 1, 1, 17, 1}, {4, 4, 2, 3, 2}, {4, 0, 2, 3, 2},  {0, 0, 65, 64, 66}, {1, 0, 9, 130, 70}};
    static const int64_t batch[] = {3, 2, 1, 2};
    int                  n = c->variant / 4, ta = c->variant & 1, tb = c->variant >> 1 & 1;
    int64_t              a[LK_MAX_RANK], b[LK_MAX_RANK];
    int                  ra = sizes[n].batch_a, rb = sizes[n].batch_b;
    memcpy(a, batch, sizeof batch);
    memcpy(b, batch, sizeof batch);
    a[ra + ta] = sizes[n].m, a[ra + 1 - ta] = sizes[n].k;
    b[rb + tb] = sizes[n].k, b[rb + 1 - tb] = sizes[n].n;
    return lk_matmul(operand(c, PLAIN, ra + 2, a), operand(c, PLAIN, rb + 2, b), .transpose_a = ta, .transpose_b = tb);
}

static lk_tensor build_matmul_self(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5, 5);
    return lk_matmul(x, x, .transpose_a = c->variant & 1, .transpose_b = c->variant >> 1);
}

static lk_tensor build_linear(cell *c)
{
    static const shape   shapes[] = {{2, {3, 5}},       {2, {1, 1}},   {1, {7}},    {3, {2, 3, 5}},
                                     {4, {2, 1, 3, 7}}, {2, {17, 33}}, {2, {5, 17}}};
    static const int64_t features[] = {7, 1, 3, 17, 5, 19, 64};
    int                  n = c->variant / 4 % 7;
    bool                 in_first = c->variant >= 7 * 4; /* addmm */
    int64_t              in = shapes[n].dims[shapes[n].rank - 1], out = features[n];
    lk_tensor            x = operand(c, PLAIN, shapes[n].rank, shapes[n].dims);
    lk_tensor            w = in_first ? OPERAND(c, PLAIN, in, out) : OPERAND(c, PLAIN, out, in);
    lk_tensor            b = c->variant & 1 ? OPERAND(c, PLAIN, out) : (lk_tensor){0};
    lk_tensor            y = in_first ? lk_addmm(b, x, w) : lk_f_linear(x, w, b);
    return c->variant & 2 ? lk_relu(y) : y;
}

/* ---- losses ---- */

static const int    labels[2][9] = {{2, 0, 1, 4, -100, 2, 3, -100, 0}, {2, 0, 1, 4, 2, 2, 3, 1, 0}};
static const double sample_weights[] = {0.5, 2, 0, 1.25, 3, 1, 0.75, 1, 0.125, 2, 1, 0.3, 1, 1, 1};

static lk_tensor cross_entropy(cell *c)
{
    int     n = c->variant;
    shape   s = n & 4 ? (shape){3, {3, 5, 5}} : (shape){2, {n & 8 ? 1 : 9, 5}};
    int64_t rows = 1, ignored = 2;
    for (int i = 0; i + 1 < s.rank; i++) rows *= s.dims[i];
    lk_tensor logits = operand(c, n & 1 ? PLAIN : WIDE, s.rank, s.dims);
    lk_tensor y = integers(c, labels[n >> 4 & 1], 9, s.rank - 1, s.dims), w = {0};
    if (n & 2) {
        w = reals(c, sample_weights, (int)rows);
        if (s.rank == 3) w = lk_reshape(w, 2, s.dims);
    }
    return lk_cross_entropy(logits, y, .label_smoothing = n & 1 ? 0.1 : 0, .weight = w,
                            .ignore_index = n & 16 ? &ignored : NULL);
}

/* Bits: 0 smoothing, 1 weights, 2 three axes. */
static lk_tensor entropy_each(cell *c)
{
    int           n = c->variant;
    const int64_t rows[] = {3, 3, 5};
    shape         s = n & 4 ? (shape){3, {3, 3, 5}} : (shape){2, {9, 5}};
    lk_tensor     logits = operand(c, n & 1 ? PLAIN : WIDE, s.rank, s.dims), w = {0};
    lk_tensor     y = integers(c, labels[0], 9, s.rank - 1, s.dims);
    if (n & 2) w = n & 4 ? lk_reshape(reals(c, sample_weights, 9), 2, rows) : reals(c, sample_weights, 9);
    return lk_cross_entropy_each(logits, y, .label_smoothing = n & 1 ? 0.1 : 0, .weight = w);
}

static lk_tensor square_each(cell *c)
{
    static const shape shapes[] = {{1, {17}}, {2, {3, 5}}, {4, {2, 3, 5, 3}}};
    const shape       *s = &shapes[c->variant];
    lk_tensor          x = operand(c, PLAIN, s->rank, s->dims), target = operand(c, PLAIN, s->rank, s->dims);
    return lk_mse_each(x, target);
}

static lk_tensor scaled_cross_entropy(cell *c) { return lk_scale(cross_entropy(c), -0.75); }

/* Bits: 0 packed, 1 causal, 2 grouped queries, 3 bounds of documents and lengths, 4 dropout. */
static lk_tensor build_dot_product_attention(cell *c)
{
    enum { N = 2, T = 5, D = 3 };
    int       n = c->variant, heads = 2, groups = n & 4 ? 1 : 2;
    lk_tensor none = {0}, first = {0}, lengths = {0};
    int       starts[N * T] = {0, 0, 2, 2, 2, 0, 1, 1, 3, 3}, counts[N] = {5, 4};
    double    dropout = n & 16 ? 0.3 : 0;
    if (n & 8)
        first = integers(c, starts, N * T, 2, (int64_t[]){N, T}), lengths = integers(c, counts, N, 1, (int64_t[]){N});
    if (n & 1)
        return lk_attention(OPERAND(c, PLAIN, N, T, (heads + 2 * groups) * D), none, none, .heads = heads,
                            .kv_heads = groups, .causal = n & 2, .dropout = dropout, .first = first,
                            .lengths = lengths);
    lk_tensor q = OPERAND(c, PLAIN, N, T, heads * D), k = OPERAND(c, PLAIN, N, T, groups * D);
    return lk_attention(q, k, OPERAND(c, PLAIN, N, T, groups * D), .heads = heads, .kv_heads = groups, .causal = n & 2,
                        .window = n & 2 ? 3 : 0, .scale = 0.7, .dropout = dropout, .first = first, .lengths = lengths);
}

static lk_tensor build_rotated(cell *c)
{
    enum { N = 2, T = 3, D = 4 };
    int       places[N * T] = {0, 1, 2, 3, 0, 1};
    double    angles[4 * D];
    lk_tensor positions = {0};
    for (int i = 0; i < 4 * D; i++) angles[i] = sin(i + 0.5);
    if (c->variant & 1) positions = integers(c, places, N * T, 2, (int64_t[]){N, T});
    lk_tensor table = lk_reshape(reals(c, angles, 4 * D), 2, ((int64_t[]){4, D}));
    lk_tensor x = lk_rope(OPERAND(c, PLAIN, N, T, 2 * D), table, 2, positions);
    return c->variant & 2 ? lk_mul(x, x) : x;
}

static lk_tensor build_gated(cell *c)
{
    lk_tensor x = OPERAND(c, WIDE, 3, 7);
    return lk_swiglu(x, c->variant ? x : OPERAND(c, PLAIN, 3, 7));
}

/* Bits: 0 three axes, 1 a multiple of the loss, 2 smoothing. */
static lk_tensor linear_entropy(cell *c)
{
    int       n = c->variant, labels[] = {2, 0, 1, 4, -100, 2};
    lk_tensor x = n & 1 ? OPERAND(c, PLAIN, 2, 3, 4) : OPERAND(c, PLAIN, 6, 4), w = OPERAND(c, PLAIN, 5, 4);
    lk_tensor y = n & 1 ? integers(c, labels, 6, 2, (int64_t[]){2, 3}) : integers(c, labels, 6, 1, (int64_t[]){6});
    lk_tensor loss = lk_linear_cross_entropy(x, w, y, .label_smoothing = n & 4 ? 0.1 : 0);
    return n & 2 ? lk_scale(loss, -0.37) : loss;
}

static lk_tensor mean_square(cell *c)
{
    static const shape shapes[] = {{2, {3, 5}}, {1, {17}}, {4, {2, 3, 5, 3}}, {0, {0}}};
    const shape       *s = &shapes[c->variant / 2];
    lk_tensor          x = operand(c, PLAIN, s->rank, s->dims), target = operand(c, PLAIN, s->rank, s->dims);
    lk_tensor          loss = lk_mse(x, target);
    return c->variant & 1 ? lk_scale(loss, -0.37) : loss;
}

static lk_tensor absolute(cell *c)
{
    static const shape shapes[] = {{2, {3, 5}}, {1, {17}}, {4, {2, 3, 5, 3}}, {0, {0}}};
    const shape       *s = &shapes[c->variant / 2];
    lk_tensor          x = operand(c, PLAIN, s->rank, s->dims), target = operand(c, POSITIVE, s->rank, s->dims);
    lk_tensor          loss = lk_l1(x, target);
    return c->variant & 1 ? lk_scale(loss, -0.37) : loss;
}

/* A sum and its weight; as the loss itself, and a multiple of it. A metric beside it must not change anything. */
static lk_tensor any_loss(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 9, 5), weight = reals(c, sample_weights, 9);
    lk_tensor each = lk_sum(lk_mul(x, lk_tanh(x)), .axes = (int[]){1}, .axes_count = 1);
    if (c->variant & 2) lk_metric(each, "each", .weight = weight);
    lk_tensor loss = lk_loss(lk_mul(each, weight), .weight = weight);
    return c->variant & 1 ? lk_scale(loss, -0.37) : loss;
}

/* The loss itself, where the gradient is the one that forward computed, and a multiple of it, where that is scaled. */
static lk_tensor binary_entropy(cell *c)
{
    int       n = c->variant;
    double    targets[45];
    lk_tensor weight = {0}, x = OPERAND(c, n & 1 ? PLAIN : WIDE, 9, 5);
    for (int i = 0; i < 45; i++) targets[i] = n & 2 ? number(3, (uint64_t)i) : i % 3 == 0;
    if (n & 4) x = lk_tanh(lk_f_linear(x, OPERAND(c, PLAIN, 5, 5), (lk_tensor){0}));
    if (n & 8) weight = reals(c, sample_weights, 9);
    lk_tensor target = lk_reshape(reals(c, targets, 45), 2, ((int64_t[]){9, 5}));
    lk_tensor loss = lk_bce_with_logits(x, target, .weight = weight);
    return n & 16 ? lk_scale(loss, -0.37) : loss;
}

/* Target and weight are constant functions of x: no gradient may reach x through them. */
static lk_tensor binary_entropy_of_itself(cell *c)
{
    lk_tensor x = OPERAND(c, POSITIVE, 3, 5);
    return lk_bce_with_logits(lk_log(x), lk_stop_gradient(lk_sub(x, x)), .weight = lk_stop_gradient(lk_div(x, x)));
}

static lk_tensor mean_square_of_convolution(cell *c)
{
    return lk_mse(convolve(c, &convolutions[3], true), OPERAND(c, PLAIN, 2, 3, 4, 4));
}

/* ---- several at once ---- */

static lk_tensor build_attention(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 7, 5), q = lk_linear(x, "q", 5), k = lk_linear(x, "k", 5),
              v = lk_linear(x, "v", 5);
    c->operands += 6; /* the layers' weights and biases */
    lk_tensor p = lk_softmax(lk_scale(lk_matmul(q, k, .transpose_b = true), 0.447), -1);
    lk_tensor y = lk_add(x, lk_matmul(lk_dropout(p, 0.2), v));
    return lk_layer_norm(lk_add(y, lk_gelu(y)), "norm");
}

static lk_tensor build_residual(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 4, 5, 5), w1 = OPERAND(c, PLAIN, 4, 4, 3, 3);
    lk_tensor y = lk_relu(normed(c, lk_f_conv2d(x, w1, (lk_tensor){0}, .padding = 1), true, true));
    lk_tensor w2 = OPERAND(c, PLAIN, 4, 4, 3, 3);
    y = lk_relu(lk_add(lk_f_conv2d(y, w2, (lk_tensor){0}, .padding = 1), x));
    if (c->variant == 1) y = lk_max_pool2d(y, 2);
    if (c->variant == 2) y = lk_mul(y, lk_reshape(lk_sigmoid(lk_global_avg_pool2d(y)), 4, ((int64_t[]){3, 4, 1, 1})));
    if (c->variant == 3) y = lk_permute(y, ((int[]){0, 2, 3, 1}));
    return y;
}

/* Images that are added to convolutions, and whose gradient is an image. */
static lk_tensor build_image_parameter(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 7, 3, 3, 3), p = OPERAND(c, PLAIN, 2, 7, 3, 3);
    lk_tensor y = lk_f_conv2d(x, w, (lk_tensor){0});
    switch (c->variant) {
    case 0: return lk_add(y, p);
    case 1: return lk_mul(p, lk_tanh(y));
    case 2: return lk_avg_pool2d(lk_sub(y, p), 2);
    case 3: return lk_add(lk_reshape(y, 3, ((int64_t[]){2, 7, 9})), lk_reshape(p, 3, ((int64_t[]){2, 7, 9})));
    default: return lk_concat(((lk_tensor[]){y, p, y}), 3, 1);
    }
}

/* Recorded data as an operand, an index and a convolution's weight. */
static lk_tensor build_constant(cell *c)
{
    double numbers[63];
    for (int i = 0; i < 63; i++) numbers[i] = number(77, (uint64_t)i);
    switch (c->variant) {
    case 0: return lk_mul(OPERAND(c, PLAIN, 3, 7), lk_constant(c->graph, LK_F64, 2, ((int64_t[]){3, 7}), numbers));
    case 1: return lk_f_embedding(lk_constant(c->graph, LK_I32, 1, &(int64_t){7}, ids), OPERAND(c, PLAIN, 7, 5));
    case 2: return lk_add(lk_constant(c->graph, LK_F64, 0, NULL, numbers), lk_tanh(OPERAND(c, PLAIN, 17)));
    default: {
        lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5),
                  w = lk_constant(c->graph, LK_F64, 4, ((int64_t[]){7, 3, 1, 3}), numbers);
        return lk_f_conv2d(lk_tanh(x), w, (lk_tensor){0});
    }
    }
}

/* A parameter that is read several times: its gradients are added. */
static lk_tensor build_many_uses(cell *c)
{
    lk_tensor w = OPERAND(c, PLAIN, 5, 5), y = OPERAND(c, PLAIN, 3, 5);
    for (int i = 0; i < 4; i++) y = lk_tanh(lk_f_linear(y, w, (lk_tensor){0}));
    return lk_add(lk_matmul(y, w), lk_sum(w));
}

/* Two parameters whose gradients are the same value. */
static lk_tensor build_equal_gradients(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5), b = OPERAND(c, PLAIN, 3, 5), d = OPERAND(c, PLAIN, 15);
    return lk_add(lk_add(a, b), lk_reshape(d, 2, ((int64_t[]){3, 5})));
}

static const gradient_case cases[] = {
    CASE(binary, PAIRS * 4),
    CASE(binary_self, 4),
    CASE(unary, 45),
    CASE(unary_more, 40),
    CASE(unary_kinks, 25, .kinks = true),
    CASE(where, 35),
    CASE(where_image, 1, .kinks = true),
    CASE(dropout, 16),
    CASE(softmax, 48),
    CASE(reduce, REDUCE_MASKS * 4),
    CASE(reduce_all, 2),
    CASE(max, 48, .kinks = true),
    CASE(argmax, 1, .kinks = true),
    CASE(reshape, 10),
    CASE(permute, 42),
    CASE(slice, 8),
    CASE(slices_overlap, 1),
    CASE(concat, 24),
    CASE(concat_same, 2),
    CASE(matmul, 15 * 4),
    CASE(matmul_self, 4),
    CASE(linear, 7 * 8, .kinks = true),
    LAYER_CASES,
    CASE(dot_product_attention, 32),
    CASE(rotated, 4),
    CASE(gated, 2),
    {.name = "linear_cross_entropy", .build = linear_entropy, .variants = 8, .loss = true},
    {.name = "cross_entropy", .build = cross_entropy, .variants = 32, .loss = true},
    {.name = "cross_entropy_each", .build = entropy_each, .variants = 8},
    {.name = "mse_each", .build = square_each, .variants = 3},
    {.name = "scaled_cross_entropy", .build = scaled_cross_entropy, .variants = 32, .loss = true},
    {.name = "mse", .build = mean_square, .variants = 8, .loss = true},
    {.name = "loss", .build = any_loss, .variants = 4, .loss = true},
    {.name = "l1", .build = absolute, .variants = 8, .loss = true, .kinks = true},
    {.name = "bce_with_logits", .build = binary_entropy, .variants = 32, .loss = true},
    {.name = "bce_with_logits_of_itself", .build = binary_entropy_of_itself, .variants = 1, .loss = true},
    {.name = "mse_of_convolution", .build = mean_square_of_convolution, .variants = 1, .loss = true},
    CASE(attention, 1),
    CASE(residual, 4, .kinks = true, .sync = true),
    CASE(image_parameter, 5),
    CASE(constant, 4),
    CASE(many_uses, 1),
    CASE(equal_gradients, 1),
};

#endif
