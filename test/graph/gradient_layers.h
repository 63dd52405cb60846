/* gradient_layers.h - the cases of gradient_cases.h that are layers: convolutions, pooling, norms, tables and experts;
 * and what a case is. */
#ifndef GRADIENT_LAYERS_H
#define GRADIENT_LAYERS_H

#include "support.h"

#include <lockstep/moe.h>

typedef lk_tensor (*builder)(cell *c);

typedef struct gradient_case {
    const char *name;
    builder     build;
    int         variants;
    bool        kinks; /* piecewise: a step of the differences must stay on one piece */
    bool        loss;  /* build gives the loss itself */
    bool        sync;  /* has a batch norm, which is tried synchronised too */
} gradient_case;

#define PICK(array, n) ((array)[(n) % (int)(sizeof(array) / sizeof *(array))])

typedef struct shape {
    int     rank;
    int64_t dims[LK_MAX_RANK];
} shape;

#define CASE(which, how_many, ...)                                                \
    {                                                                             \
        .name = #which, .build = build_##which, .variants = how_many, __VA_ARGS__ \
    }

/* ---- convolution and pooling ---- */

static const struct convolution {
    int64_t n, c, h, w, o, kh, kw, stride, padding, groups;
} convolutions[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 1},   {1, 3, 5, 5, 7, 3, 3, 1, 1, 1},    {3, 3, 7, 5, 5, 3, 3, 1, 0, 1},
    {2, 5, 7, 7, 3, 3, 3, 2, 1, 1},   {1, 2, 17, 5, 3, 5, 5, 3, 2, 1},   {3, 4, 5, 7, 6, 3, 3, 1, 1, 2},
    {2, 6, 7, 5, 6, 3, 3, 2, 1, 6},   {2, 6, 5, 5, 3, 1, 1, 1, 0, 3},    {1, 3, 7, 7, 16, 1, 1, 2, 0, 1},
    {2, 3, 5, 7, 5, 3, 5, 1, 2, 1},   {1, 1, 7, 7, 17, 7, 7, 1, 3, 1},   {2, 3, 6, 6, 5, 2, 2, 2, 0, 1},
    {3, 16, 5, 5, 17, 3, 3, 1, 1, 1}, {1, 17, 3, 3, 8, 3, 3, 3, 1, 1},   {1, 2, 3, 3, 4, 1, 1, 1, 1, 2},
    {5, 1, 3, 17, 1, 3, 1, 2, 1, 1},  {2, 4, 8, 8, 8, 3, 3, 1, 1, 1},    {1, 3, 11, 11, 4, 7, 7, 2, 3, 1},
    {1, 2, 3, 3, 2, 3, 3, 1, 2, 1},   {2, 8, 12, 12, 16, 3, 3, 1, 1, 1}, {1, 32, 8, 8, 64, 3, 3, 1, 1, 1},
    {2, 64, 4, 4, 9, 1, 1, 1, 0, 1},  {1, 16, 9, 16, 33, 3, 3, 2, 1, 1},
};
enum { CONVOLUTIONS = sizeof convolutions / sizeof *convolutions };

static lk_tensor convolve(cell *c, const struct convolution *v, bool bias)
{
    lk_tensor x = OPERAND(c, PLAIN, v->n, v->c, v->h, v->w),
              w = OPERAND(c, PLAIN, v->o, v->c / v->groups, v->kh, v->kw);
    return lk_f_conv2d(x, w, bias ? OPERAND(c, PLAIN, v->o) : (lk_tensor){0}, .stride = v->stride,
                       .padding = v->padding, .groups = v->groups);
}

static lk_tensor build_conv2d(cell *c) { return convolve(c, &convolutions[c->variant / 2], c->variant & 1); }
static lk_tensor build_conv2d_relu(cell *c)
{
    return lk_relu(convolve(c, &convolutions[c->variant / 2], c->variant & 1));
}

/* Those of the table with room for a window of 2 or 3 after the convolution. */
static lk_tensor build_conv2d_pool(cell *c)
{
    static const int with_room[] = {1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 18, 19, 20, 21, 22};
    lk_tensor        y = convolve(c, &convolutions[with_room[c->variant / 8]], c->variant & 1);
    if (c->variant & 2) y = lk_relu(y);
    return lk_max_pool2d(y, c->variant & 4 ? 3 : 2);
}

static lk_tensor build_conv2d_shared(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 3, 3, 3, 3), b = OPERAND(c, PLAIN, 3);
    lk_tensor y = lk_f_conv2d(x, w, b, .padding = 1);
    if (c->variant) y = lk_relu(y);
    return lk_add(lk_f_conv2d(y, w, b, .padding = 1), y);
}

static const struct pooling {
    int64_t n, c, h, w, kernel, stride, padding;
} poolings[] = {{1, 1, 2, 2, 2, 0, 0}, {3, 5, 7, 7, 2, 0, 0},  {2, 3, 7, 5, 3, 2, 1}, {1, 17, 5, 5, 3, 1, 1},
                {1, 3, 9, 9, 3, 0, 0}, {2, 1, 17, 3, 3, 3, 0}, {1, 2, 5, 5, 5, 0, 0}, {1, 3, 5, 7, 2, 1, 1},
                {2, 4, 3, 3, 1, 0, 0}, {1, 8, 6, 6, 2, 3, 0}};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

static lk_tensor build_max_pool(cell *c)
{
    const struct pooling *p = &poolings[c->variant];
    return lk_max_pool2d(OPERAND(c, SPREAD, p->n, p->c, p->h, p->w), p->kernel, .stride = p->stride,
                         .padding = p->padding);
}

static lk_tensor build_avg_pool(cell *c)
{
    const struct pooling *p = &poolings[c->variant];
    lk_tensor             y =
        lk_avg_pool2d(OPERAND(c, PLAIN, p->n, p->c, p->h, p->w), p->kernel, .stride = p->stride, .padding = p->padding);
    return lk_mul(y, y);
}

static lk_tensor build_global_avg_pool(cell *c)
{
    static const int64_t dims[][4] = {{1, 1, 1, 1}, {3, 5, 7, 3}, {2, 17, 1, 5}};
    lk_tensor            y = lk_global_avg_pool2d(operand(c, PLAIN, 4, dims[c->variant]));
    return lk_mul(y, y);
}

/* ---- norms ---- */

static lk_tensor build_layer_norm(cell *c)
{
    static const shape shapes[] = {{2, {3, 5}}, {2, {1, 17}}, {3, {2, 3, 7}}, {4, {2, 3, 5, 3}}, {1, {7}}};
    const shape       *s = &shapes[c->variant / 8];
    int                trailing = c->variant % 8 / 4 + 1;
    lk_tensor          x = operand(c, WIDE, s->rank, s->dims), w = {0}, b = {0};
    if (trailing > s->rank) trailing = s->rank;
    if (c->variant & 1) w = operand(c, POSITIVE, trailing, s->dims + s->rank - trailing);
    if ((c->variant & 3) == 3) b = operand(c, PLAIN, trailing, s->dims + s->rank - trailing);
    if ((c->variant & 3) == 2) b = operand(c, PLAIN, 1, s->dims + s->rank - 1); /* a bias alone */
    return lk_f_layer_norm(x, w, b, .epsilon = c->variant & 4 ? 0.3 : 0);
}

static lk_tensor build_rms_norm(cell *c)
{
    static const shape shapes[] = {{2, {3, 5}}, {2, {1, 17}}, {3, {2, 3, 7}}, {4, {2, 3, 5, 3}}, {1, {7}}};
    const shape       *s = &shapes[c->variant / 4];
    int                trailing = c->variant % 4 / 2 + 1;
    lk_tensor          x = operand(c, WIDE, s->rank, s->dims), w = {0};
    if (trailing > s->rank) trailing = s->rank;
    if (c->variant & 1) w = operand(c, POSITIVE, trailing, s->dims + s->rank - trailing);
    return lk_f_rms_norm(x, w, .epsilon = c->variant & 2 ? 0.3 : 0);
}

/* A residual stream, whose additions and norms some devices fuse: x = a + b, its norm, and what the norm gave added to
 * x; also where a part of this must not be fused, because x is read before its norm or one of the terms is
 * broadcast. */
static lk_tensor build_norm_residual(cell *c)
{
    bool      rms = c->variant & 1, read_before = c->variant & 2, broadcast = c->variant & 4;
    lk_tensor a = OPERAND(c, WIDE, 2, 3, 8), b = broadcast ? OPERAND(c, PLAIN, 3, 8) : OPERAND(c, PLAIN, 2, 3, 8);
    lk_tensor w = OPERAND(c, POSITIVE, 8), none = {0};
    lk_tensor x = c->variant & 8 ? lk_add(b, a) : lk_add(a, b), early = read_before ? lk_tanh(x) : x;
    lk_tensor y = rms ? lk_f_rms_norm(x, w, .epsilon = 0.3) : lk_f_layer_norm(x, w, none, .epsilon = 0.3);
    lk_tensor z = c->variant & 8 ? lk_add(lk_tanh(y), x) : lk_add(early, lk_tanh(y));
    return lk_add(z, rms ? lk_f_rms_norm(z, none, .epsilon = 0.3) : lk_f_layer_norm(z, none, w, .epsilon = 0.3));
}

static lk_tensor build_group_norm(cell *c)
{
    static const shape shapes[] = {
        {2, {3, 6}}, {3, {2, 6, 5}}, {4, {2, 6, 3, 3}}, {5, {1, 12, 2, 1, 3}}, {3, {1, 6, 17}}};
    static const int groups[] = {1, 2, 3, 6};
    const shape     *s = &shapes[c->variant / 16];
    lk_tensor        x = operand(c, WIDE, s->rank, s->dims), w = {0}, b = {0};
    if (c->variant & 1) w = operand(c, POSITIVE, 1, s->dims + 1);
    if (c->variant & 2) b = operand(c, PLAIN, 1, s->dims + 1);
    return lk_f_group_norm(x, groups[c->variant / 4 % 4], w, b, .epsilon = c->variant & 4 ? 0.3 : 0.01);
}

/* Between convolutions, whose images are stored in another layout. */
static lk_tensor build_group_norm_layer(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 2, 3, 5, 5), w = OPERAND(c, PLAIN, 6, 3, 3, 3), v = OPERAND(c, PLAIN, 2, 6, 2, 2);
    lk_tensor y = lk_group_norm(lk_f_conv2d(x, w, (lk_tensor){0}), "norm", 3);
    c->operands += 2;
    return lk_f_conv2d(lk_tanh(y), v, (lk_tensor){0});
}

static lk_tensor normed(cell *c, lk_tensor x, bool weight, bool bias)
{
    int64_t   channels = lk_tensor_dim(x, 1);
    lk_tensor w = weight ? operand(c, POSITIVE, 1, &channels) : (lk_tensor){0};
    lk_tensor b = bias ? operand(c, PLAIN, 1, &channels) : (lk_tensor){0};
    lk_tensor mean = lk_buffer(c->graph, "mean", c->real, 1, &channels, 0);
    lk_tensor var = lk_buffer(c->graph, "var", c->real, 1, &channels, 1);
    return lk_f_batch_norm(x, w, b, mean, var, (lk_tensor){0});
}

static lk_tensor build_batch_norm(cell *c)
{
    static const shape shapes[] = {{2, {3, 5}},        {2, {17, 1}},      {4, {1, 3, 5, 3}},
                                   {4, {3, 17, 2, 3}}, {4, {5, 1, 1, 1}}, {4, {2, 7, 5, 5}}};
    const shape       *s = &shapes[c->variant / 4];
    return normed(c, operand(c, PLAIN, s->rank, s->dims), c->variant & 1, c->variant & 2);
}

static lk_tensor build_batch_norm_relu(cell *c) { return lk_relu(build_batch_norm(c)); }

/* ---- tables ---- */

static const int ids[] = {2, 0, 2, 6, 2, 5, 0};

static lk_tensor build_embedding(cell *c)
{
    static const shape shapes[] = {{1, {5}}, {2, {3, 7}}, {1, {1}}, {3, {2, 3, 5}}};
    const shape       *s = &shapes[c->variant];
    lk_tensor          table = OPERAND(c, PLAIN, 7, c->variant == 2 ? 1 : 5);
    lk_tensor          y = lk_f_embedding(integers(c, ids, 7, s->rank, s->dims), table);
    return lk_mul(y, y);
}

/* A table that is also the output's weight: tied as language models do. */
static lk_tensor build_embedding_tied(cell *c)
{
    lk_tensor table = OPERAND(c, PLAIN, 7, 5);
    lk_tensor y = lk_f_embedding(integers(c, ids, 7, 1, &(int64_t){7}), table);
    return lk_log_softmax(lk_f_linear(lk_tanh(y), table, (lk_tensor){0}), 1);
}

/* ---- mixture of experts ---- */

static lk_tensor build_topk(cell *c)
{
    lk_tensor      x = c->variant ? OPERAND(c, SPREAD, 2, 3, 7) : OPERAND(c, SPREAD, 5);
    lk_topk_result top = lk_topk(x, c->variant == 2 ? 7 : 3);
    return lk_mul(top.values, top.values);
}

/* Rows to experts of which one is not used, with and without weights, and with a capacity. */
static lk_tensor build_grouped_rows(cell *c)
{
    static const int experts[] = {0, 2, 2, 3, 2, 0, 3, 2};
    lk_groups        g = lk_group_rows(integers(c, experts, 8, 2, ((int64_t[]){4, 2})), 4, c->variant & 1 ? 2 : 0);
    lk_tensor        x = OPERAND(c, PLAIN, 4, 5), weight = OPERAND(c, PLAIN, 4, 2), none = {0};
    lk_tensor        w = OPERAND(c, PLAIN, 4, 3, 5);
    lk_tensor        y = lk_grouped_linear(lk_gather_rows(x, g, c->variant & 2 ? weight : none), w, g);
    return lk_combine_rows(lk_mul(y, y), g, c->variant & 4 ? weight : none);
}

/* All that lk_moe records, with operands as its parameters. */
static lk_tensor build_experts(cell *c)
{
    lk_tensor      x = OPERAND(c, PLAIN, 6, 5), gate = OPERAND(c, SPREAD, 4, 5), none = {0};
    lk_tensor      w1 = OPERAND(c, PLAIN, 4, 3, 5), w3 = OPERAND(c, PLAIN, 4, 3, 5), w2 = OPERAND(c, PLAIN, 4, 5, 3);
    lk_topk_result top = lk_topk(lk_softmax(lk_f_linear(x, gate, none), -1), 2);
    lk_groups      g = lk_group_rows(top.index, 4, 0);
    lk_tensor      rows = lk_gather_rows(x, g, none), weight = top.values;
    if (c->variant) weight = lk_div(weight, lk_sum(weight, .axes = (int[]){1}, .axes_count = 1, .keepdim = true));
    lk_tensor inner = lk_swiglu(lk_grouped_linear(rows, w1, g), lk_grouped_linear(rows, w3, g));
    return lk_combine_rows(lk_grouped_linear(inner, w2, g), g, weight);
}

/* Of two layers. */
static lk_tensor balance(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 6, 5), none = {0};
    for (int i = 0; i < 2; i++)
        lk_group_rows(lk_topk(lk_softmax(lk_f_linear(x, OPERAND(c, SPREAD, 4, 5), none), -1), 2).index, 4, 0);
    return lk_moe_balance(x);
}

/* Rows of the table in gradient_cases.h. */
#define LAYER_CASES \
    CASE(conv2d, CONVOLUTIONS * 2), \
    CASE(conv2d_relu, CONVOLUTIONS * 2, .kinks = true), \
    CASE(conv2d_pool, 18 * 8, .kinks = true), \
    CASE(conv2d_shared, 2, .kinks = true), \
    CASE(max_pool, POOLINGS, .kinks = true), \
    CASE(avg_pool, POOLINGS), \
    CASE(global_avg_pool, 3), \
    CASE(layer_norm, 40), \
    CASE(rms_norm, 20), \
    CASE(norm_residual, 16), \
    CASE(group_norm, 80), \
    CASE(group_norm_layer, 1), \
    CASE(batch_norm, 24, .sync = true), \
    CASE(batch_norm_relu, 24, .kinks = true, .sync = true), \
    CASE(embedding, 4), \
    CASE(embedding_tied, 1), \
    CASE(topk, 3, .kinks = true), \
    CASE(grouped_rows, 8), \
    CASE(experts, 2, .kinks = true), \
    {.name = "moe_balance", .build = balance, .variants = 1, .loss = true, .kinks = true}

#endif
