/* golden_layers.h - the cases of test_golden_ops.c that are layers: convolutions, pooling, norms, tables and
 * experts. */
#ifndef GOLDEN_LAYERS_H
#define GOLDEN_LAYERS_H

#include "support.h"

#include <lockstep/moe.h>

typedef lk_tensor (*builder)(cell *c);

static const lk_tensor none;

static lk_tensor square(lk_tensor x) { return lk_mul(x, x); }

/* ---- convolution and pooling ---- */

static lk_tensor conv(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 7, 5), b = OPERAND(c, PLAIN, 5, 3, 3, 3), d = OPERAND(c, PLAIN, 5);
    return lk_f_conv2d(a, b, d, .padding = 1);
}
static lk_tensor conv_relu(cell *c) { return lk_relu(conv(c)); }
static lk_tensor conv_stride(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 5, 7, 7), b = OPERAND(c, PLAIN, 3, 5, 3, 3);
    return lk_f_conv2d(a, b, none, .stride = 2, .padding = 1);
}
static lk_tensor conv_five(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 1, 2, 17, 5), b = OPERAND(c, PLAIN, 3, 2, 5, 5), d = OPERAND(c, PLAIN, 3);
    return lk_f_conv2d(a, b, d, .stride = 3, .padding = 2);
}
static lk_tensor conv_groups(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 4, 5, 7), b = OPERAND(c, PLAIN, 6, 2, 3, 3), d = OPERAND(c, PLAIN, 6);
    return lk_f_conv2d(a, b, d, .padding = 1, .groups = 2);
}
static lk_tensor conv_depthwise(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 6, 7, 5), b = OPERAND(c, PLAIN, 6, 1, 3, 3);
    return lk_f_conv2d(a, b, none, .stride = 2, .padding = 1, .groups = 6);
}
static lk_tensor conv_one(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 1, 3, 7, 7), b = OPERAND(c, PLAIN, 16, 3, 1, 1);
    return lk_f_conv2d(a, b, none, .stride = 2);
}
static lk_tensor conv_oblong(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5, 7), b = OPERAND(c, PLAIN, 5, 3, 3, 5);
    return lk_f_conv2d(a, b, none, .padding = 2);
}
static lk_tensor conv_stem(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 1, 3, 11, 11), b = OPERAND(c, PLAIN, 4, 3, 7, 7);
    return lk_f_conv2d(a, b, none, .stride = 2, .padding = 3);
}
static lk_tensor conv_many(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 16, 5, 5), b = OPERAND(c, PLAIN, 17, 16, 3, 3);
    return lk_f_conv2d(a, b, none, .padding = 1);
}
static lk_tensor conv_relu_pool(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 9, 8), b = OPERAND(c, PLAIN, 8, 3, 3, 3), d = OPERAND(c, PLAIN, 8);
    return lk_max_pool2d(lk_relu(lk_f_conv2d(a, b, d, .padding = 1)), 2);
}
static lk_tensor conv_pool_three(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 1, 2, 9, 10), b = OPERAND(c, PLAIN, 5, 2, 3, 3);
    return lk_max_pool2d(lk_f_conv2d(a, b, none, .padding = 1), 3);
}
static lk_tensor max_pool(cell *c) { return lk_max_pool2d(OPERAND(c, SPREAD, 3, 5, 7, 7), 2); }
static lk_tensor max_pool_overlap(cell *c)
{
    return lk_max_pool2d(OPERAND(c, SPREAD, 2, 3, 7, 5), 3, .stride = 2, .padding = 1);
}
static lk_tensor avg_pool(cell *c) { return square(lk_avg_pool2d(OPERAND(c, PLAIN, 3, 5, 7, 7), 2)); }
static lk_tensor avg_pool_overlap(cell *c)
{
    return square(lk_avg_pool2d(OPERAND(c, PLAIN, 2, 3, 7, 5), 3, .stride = 2, .padding = 1));
}
static lk_tensor global_avg_pool(cell *c) { return square(lk_global_avg_pool2d(OPERAND(c, PLAIN, 2, 5, 3, 7))); }

/* ---- norms and tables ---- */

static lk_tensor layer_norm(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 3, 17), b = OPERAND(c, POSITIVE, 17), d = OPERAND(c, PLAIN, 17);
    return lk_f_layer_norm(a, b, d);
}
static lk_tensor layer_norm_two(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 2, 3, 5, 3), b = OPERAND(c, POSITIVE, 5, 3), d = OPERAND(c, PLAIN, 5, 3);
    return lk_f_layer_norm(a, b, d, .epsilon = 0.25);
}
static lk_tensor layer_norm_alone(cell *c) { return lk_f_layer_norm(OPERAND(c, WIDE, 2, 3, 7), none, none); }
static lk_tensor rms_norm(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 3, 17), b = OPERAND(c, POSITIVE, 17);
    return lk_f_rms_norm(a, b);
}
static lk_tensor rms_norm_alone(cell *c) { return lk_f_rms_norm(OPERAND(c, PLAIN, 2, 3, 7), none, .epsilon = 0.25); }

/* A buffer of each statistic, which the test reads back. */
static lk_tensor normalised(cell *c, lk_tensor x, lk_tensor w, lk_tensor b)
{
    int64_t   channels = lk_tensor_dim(x, 1);
    lk_tensor mean = lk_buffer(c->graph, "mean", c->real, 1, &channels, 0);
    lk_tensor var = lk_buffer(c->graph, "var", c->real, 1, &channels, 1);
    return lk_f_batch_norm(x, w, b, mean, var, none, .momentum = 0.3);
}

static lk_tensor batch_norm(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 3, 5, 2, 3), b = OPERAND(c, POSITIVE, 5), d = OPERAND(c, PLAIN, 5);
    return normalised(c, a, b, d);
}

static lk_tensor batch_norm_relu(cell *c) { return lk_relu(batch_norm(c)); }
static lk_tensor batch_norm_rows(cell *c) { return normalised(c, OPERAND(c, WIDE, 7, 3), none, none); }

static lk_tensor group_norm(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 3, 6, 5), b = OPERAND(c, POSITIVE, 6), d = OPERAND(c, PLAIN, 6);
    return lk_f_group_norm(a, 3, b, d);
}
static lk_tensor group_norm_image(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 2, 4, 3, 5), b = OPERAND(c, POSITIVE, 4), d = OPERAND(c, PLAIN, 4);
    return lk_f_group_norm(a, 2, b, d, .epsilon = 0.25);
}
static lk_tensor group_norm_rows(cell *c)
{
    lk_tensor a = OPERAND(c, WIDE, 3, 8), b = OPERAND(c, POSITIVE, 8);
    return lk_f_group_norm(a, 2, b, none);
}
static lk_tensor group_norm_alone(cell *c) { return lk_f_group_norm(OPERAND(c, PLAIN, 2, 5, 3), 1, none, none); }

static const int ids[] = {2, 0, 2, 6, 2, 5, 0};

static lk_tensor embedding(cell *c)
{
    return square(lk_f_embedding(integers(c, ids, 7, DIMS(7)), OPERAND(c, PLAIN, 7, 5)));
}

static lk_tensor embedding_two_axes(cell *c)
{
    return square(lk_f_embedding(integers(c, ids, 7, DIMS(3, 7)), OPERAND(c, PLAIN, 7, 3)));
}

/* ---- mixture of experts ---- */

static lk_tensor topk(cell *c) { return square(lk_topk(OPERAND(c, SPREAD, 3, 7), 3).values); }

static lk_tensor record_experts(cell *c, bool normalised, int64_t capacity)
{
    lk_tensor      x = OPERAND(c, PLAIN, 7, 5), gate = OPERAND(c, SPREAD, 4, 5);
    lk_tensor      w1 = OPERAND(c, PLAIN, 4, 3, 5), w3 = OPERAND(c, PLAIN, 4, 3, 5), w2 = OPERAND(c, PLAIN, 4, 5, 3);
    lk_topk_result top = lk_topk(lk_softmax(lk_f_linear(x, gate, none), -1), 2);
    lk_groups      g = lk_group_rows(top.index, 4, capacity);
    lk_tensor      rows = lk_gather_rows(x, g, none), weight = top.values;
    if (normalised) weight = lk_div(weight, lk_sum(weight, .axes = (int[]){1}, .axes_count = 1, .keepdim = true));
    lk_tensor inner = lk_swiglu(lk_grouped_linear(rows, w1, g), lk_grouped_linear(rows, w3, g));
    return lk_combine_rows(lk_grouped_linear(inner, w2, g), g, weight);
}
static lk_tensor experts(cell *c) { return record_experts(c, true, 0); }
static lk_tensor experts_plain(cell *c) { return record_experts(c, false, 0); }
static lk_tensor experts_capacity(cell *c) { return record_experts(c, true, 3); }

/* Rows of the table in test_golden_ops.c. */
#define LAYER_CASES \
    {"conv", conv, false}, \
    {"conv_relu", conv_relu, false}, \
    {"conv_stride", conv_stride, false}, \
    {"conv_five", conv_five, false}, \
    {"conv_groups", conv_groups, false}, \
    {"conv_depthwise", conv_depthwise, false}, \
    {"conv_one", conv_one, false}, \
    {"conv_oblong", conv_oblong, false}, \
    {"conv_stem", conv_stem, false}, \
    {"conv_many", conv_many, false}, \
    {"conv_relu_pool", conv_relu_pool, false}, \
    {"conv_pool_three", conv_pool_three, false}, \
    {"max_pool", max_pool, false}, \
    {"max_pool_overlap", max_pool_overlap, false}, \
    {"avg_pool", avg_pool, false}, \
    {"avg_pool_overlap", avg_pool_overlap, false}, \
    {"global_avg_pool", global_avg_pool, false}, \
    {"layer_norm", layer_norm, false}, \
    {"layer_norm_two", layer_norm_two, false}, \
    {"layer_norm_alone", layer_norm_alone, false}, \
    {"rms_norm", rms_norm, false}, \
    {"rms_norm_alone", rms_norm_alone, false}, \
    {"batch_norm", batch_norm, false}, \
    {"batch_norm_relu", batch_norm_relu, false}, \
    {"batch_norm_rows", batch_norm_rows, false}, \
    {"group_norm", group_norm, false}, \
    {"group_norm_image", group_norm_image, false}, \
    {"group_norm_rows", group_norm_rows, false}, \
    {"group_norm_alone", group_norm_alone, false}, \
    {"embedding", embedding, false}, \
    {"embedding_two_axes", embedding_two_axes, false}, \
    {"topk", topk, false}, \
    {"experts", experts, false}, \
    {"experts_plain", experts_plain, false}, \
    {"experts_capacity", experts_capacity, false}

#endif
