/* test_golden_ops.c - outputs and gradients of the operations against PyTorch's, in f64 and in f32. The values, and
 * what each case computes, are in golden/make_ops.py; operands are drawn by the same formula here. */
#include "golden_layers.h"

/* ---- element by element ---- */

static lk_tensor add(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 1, 5), b = OPERAND(c, PLAIN, 2, 1);
    return lk_add(a, b);
}
static lk_tensor sub(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 5), b = OPERAND(c, PLAIN, 3, 7, 5);
    return lk_sub(a, b);
}
static lk_tensor mul(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 1, 3, 1), b = OPERAND(c, PLAIN, 5, 1, 7);
    return lk_mul(a, b);
}
static lk_tensor of_div(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5), b = OPERAND(c, POSITIVE, 3, 1);
    return lk_div(a, b);
}
static lk_tensor div_scalar(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 7), b = operand(c, POSITIVE, 0, NULL);
    return lk_div(a, b);
}
static lk_tensor scale(cell *c) { return lk_scale(OPERAND(c, PLAIN, 17), -2.5); }
static lk_tensor relu(cell *c) { return lk_relu(OPERAND(c, SPREAD, 3, 17)); }
static lk_tensor silu(cell *c) { return lk_silu(OPERAND(c, WIDE, 3, 5, 7)); }
static lk_tensor sigmoid(cell *c) { return lk_sigmoid(OPERAND(c, WIDE, 17)); }
static lk_tensor of_tanh(cell *c) { return lk_tanh(OPERAND(c, WIDE, 3, 7)); }
static lk_tensor gelu(cell *c) { return lk_gelu(OPERAND(c, WIDE, 5, 7)); }
static lk_tensor gelu_tanh(cell *c) { return lk_gelu(OPERAND(c, WIDE, 5, 7), .tanh = true); }

static lk_tensor of_exp(cell *c) { return lk_exp(OPERAND(c, WIDE, 3, 17)); }
static lk_tensor of_log(cell *c) { return lk_log(OPERAND(c, POSITIVE, 5, 7)); }
static lk_tensor of_sqrt(cell *c) { return lk_sqrt(OPERAND(c, POSITIVE, 17)); }
static lk_tensor of_pow(cell *c) { return lk_pow(OPERAND(c, POSITIVE, 3, 7), 2.5); }
static lk_tensor pow_negative(cell *c) { return lk_pow(OPERAND(c, POSITIVE, 5), -1.5); }
static lk_tensor pow_cube(cell *c) { return lk_pow(OPERAND(c, SPREAD, 3, 5), 3); }
static lk_tensor pow_square(cell *c) { return lk_pow(OPERAND(c, PLAIN, 17), 2); }
static lk_tensor pow_zero(cell *c) { return lk_pow(OPERAND(c, PLAIN, 3), 0); }
static lk_tensor clamp(cell *c) { return lk_clamp(OPERAND(c, WIDE, 3, 17), -2, 3); }
static lk_tensor clamp_low(cell *c) { return lk_clamp(OPERAND(c, WIDE, 17), 0.5, INFINITY); }
static lk_tensor clamp_high(cell *c) { return lk_clamp(OPERAND(c, WIDE, 17), -INFINITY, -0.5); }
static lk_tensor clamp_crossed(cell *c) { return lk_clamp(OPERAND(c, WIDE, 17), 2, -1); }
static lk_tensor leaky_relu(cell *c) { return lk_leaky_relu(OPERAND(c, SPREAD, 3, 17), 0.1); }

static lk_tensor condition(cell *c) { return integers(c, (const int[]){1, 0, 2, 0, -3, 1}, 6, DIMS(3, 2, 1)); }

static lk_tensor where(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 1, 5), b = OPERAND(c, PLAIN, 2, 1);
    return lk_where(condition(c), a, b);
}
static lk_tensor where_bytes(cell *c)
{
    static const uint8_t bytes[] = {1, 0, 0, 255, 7};
    lk_tensor            a = OPERAND(c, PLAIN, 3, 2, 5), b = operand(c, POSITIVE, 0, NULL);
    return lk_where(lk_constant(c->graph, LK_U8, 1, &(int64_t){5}, bytes), a, b);
}
static lk_tensor where_computed(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5), b = OPERAND(c, PLAIN, 3, 5);
    return lk_where(lk_relu(a), lk_mul(a, b), b);
}
static lk_tensor where_swapped(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 5), b = OPERAND(c, PLAIN, 3, 1, 5);
    return lk_where(condition(c), a, b);
}

/* ---- along axes ---- */

static lk_tensor softmax(cell *c) { return lk_softmax(OPERAND(c, WIDE, 3, 7), -1); }
static lk_tensor softmax_first(cell *c) { return lk_softmax(OPERAND(c, WIDE, 5, 3), 0); }
static lk_tensor softmax_middle(cell *c) { return lk_softmax(OPERAND(c, PLAIN, 3, 5, 7), 1); }
static lk_tensor log_softmax(cell *c) { return lk_log_softmax(OPERAND(c, WIDE, 5, 17), -1); }
static lk_tensor log_softmax_middle(cell *c) { return lk_log_softmax(OPERAND(c, PLAIN, 2, 3, 5), 1); }
static lk_tensor sum(cell *c) { return lk_sum(OPERAND(c, PLAIN, 3, 5, 7)); }
static lk_tensor sum_keepdim(cell *c)
{
    return lk_sum(OPERAND(c, PLAIN, 3, 5, 7), .axes = (int[]){1}, .axes_count = 1, .keepdim = true);
}
static lk_tensor sum_two(cell *c) { return lk_sum(OPERAND(c, PLAIN, 3, 5, 7), .axes = (int[]){0, 2}, .axes_count = 2); }
static lk_tensor mean(cell *c) { return lk_mean(OPERAND(c, PLAIN, 3, 5, 7)); }
static lk_tensor mean_two(cell *c)
{
    return lk_mean(OPERAND(c, PLAIN, 2, 3, 5, 3), .axes = (int[]){1, -1}, .axes_count = 2);
}

static lk_tensor of_max(cell *c) { return lk_max(OPERAND(c, SPREAD, 3, 7, 5), 1); }
static lk_tensor max_keepdim(cell *c) { return lk_max(OPERAND(c, SPREAD, 5, 3), 0, .keepdim = true); }
static lk_tensor max_last(cell *c) { return lk_max(OPERAND(c, PLAIN, 3, 5, 17), -1); }
static lk_tensor max_first_of_equals(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5);
    return lk_max(lk_concat(((lk_tensor[]){x, lk_stop_gradient(x)}), 2, 1), 1);
}
static lk_tensor max_second_of_equals(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5);
    return lk_mul(lk_max(lk_concat(((lk_tensor[]){lk_stop_gradient(x), x}), 2, 1), 1, .keepdim = true), x);
}
static lk_tensor argmax(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 7), table = OPERAND(c, PLAIN, 7, 5);
    return square(lk_f_embedding(lk_argmax(x, 1), table));
}

/* ---- shape ---- */

static lk_tensor reshape(cell *c) { return square(lk_reshape(OPERAND(c, PLAIN, 3, 5, 4), 2, ((int64_t[]){6, 10}))); }
static lk_tensor flatten(cell *c) { return square(lk_flatten(OPERAND(c, PLAIN, 3, 5, 2, 2))); }
static lk_tensor transpose(cell *c) { return square(lk_transpose(OPERAND(c, PLAIN, 3, 5, 7), 0, 2)); }
static lk_tensor permute(cell *c)
{
    return square(lk_permute(OPERAND(c, PLAIN, 2, 3, 1, 5, 2, 3), (int[]){2, 0, 1, 5, 3, 4}));
}
static lk_tensor slice(cell *c) { return square(lk_slice(OPERAND(c, PLAIN, 3, 7, 5), 1, 2, 4)); }
static lk_tensor concat(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 1, 5), b = OPERAND(c, PLAIN, 3, 4, 5), d = OPERAND(c, PLAIN, 3, 2, 5);
    return square(lk_concat(((lk_tensor[]){a, b, d}), 3, 1));
}

/* ---- products ---- */

static lk_tensor matmul(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 5, 7), b = OPERAND(c, PLAIN, 7, 3);
    return lk_matmul(a, b);
}
static lk_tensor matmul_ta(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 7, 5), b = OPERAND(c, PLAIN, 7, 3);
    return lk_matmul(a, b, .transpose_a = true);
}
static lk_tensor matmul_tb(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 5, 7), b = OPERAND(c, PLAIN, 3, 7);
    return lk_matmul(a, b, .transpose_b = true);
}
static lk_tensor matmul_tatb(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 7, 5), b = OPERAND(c, PLAIN, 3, 7);
    return lk_matmul(a, b, .transpose_a = true, .transpose_b = true);
}
static lk_tensor matmul_batched(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5, 7), b = OPERAND(c, PLAIN, 3, 2, 7);
    return lk_matmul(a, b, .transpose_b = true);
}
static lk_tensor matmul_shared_right(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5, 7), b = OPERAND(c, PLAIN, 7, 2);
    return lk_matmul(a, b);
}
static lk_tensor matmul_shared_left(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 7, 5), b = OPERAND(c, PLAIN, 3, 7, 2);
    return lk_matmul(a, b, .transpose_a = true);
}
static lk_tensor matmul_four_axes(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5, 3), b = OPERAND(c, PLAIN, 2, 3, 3, 1);
    return lk_matmul(a, b);
}
static lk_tensor linear(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 17), b = OPERAND(c, PLAIN, 7, 17), d = OPERAND(c, PLAIN, 7);
    return lk_f_linear(a, b, d);
}
static lk_tensor linear_relu(cell *c) { return lk_relu(linear(c)); }
static lk_tensor linear_three_axes(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5), b = OPERAND(c, PLAIN, 7, 5);
    return lk_f_linear(a, b, none);
}

/* ---- losses ---- */

static const double sample_weights[] = {0.5, 2, 0, 1.25, 3, 1, 0.75, 1, 0.125};

static lk_tensor cross(cell *c, lk_tensor logits, double smoothing, int64_t ignore, bool weighted)
{
    int labels[] = {2, 0, 1, 4, -100, 2, 3, -100, 0};
    for (int i = 0; i < 9 && ignore != -100; i++)
        labels[i] = labels[i] < 1 ? 1 : labels[i]; /* so that none is out of range */
    lk_tensor y = lk_tensor_rank(logits) == 2 ? integers(c, labels, 9, DIMS(9)) : integers(c, labels, 9, DIMS(3, 3));
    lk_tensor w = weighted ? reals(c, sample_weights, 9) : none;
    return lk_cross_entropy(logits, y, .label_smoothing = smoothing, .ignore_index = ignore == -100 ? NULL : &ignore,
                            .weight = w);
}

static lk_tensor entropy_each(cell *c, lk_tensor logits, double smoothing, bool weighted)
{
    static const int labels[] = {2, 0, 1, 4, -100, 2, 3, -100, 0};
    lk_tensor y = lk_tensor_rank(logits) == 2 ? integers(c, labels, 9, DIMS(9)) : integers(c, labels, 9, DIMS(3, 3));
    return lk_cross_entropy_each(logits, y, .label_smoothing = smoothing,
                                 .weight = weighted ? reals(c, sample_weights, 9) : none);
}

static lk_tensor cross_entropy_each(cell *c) { return entropy_each(c, OPERAND(c, WIDE, 9, 5), 0, false); }
static lk_tensor cross_entropy_each_weight(cell *c) { return entropy_each(c, OPERAND(c, PLAIN, 9, 5), 0.3, true); }
static lk_tensor cross_entropy_each_three_axes(cell *c)
{
    return entropy_each(c, OPERAND(c, WIDE, 3, 3, 5), 0.1, false);
}

static lk_tensor mse_each(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 5), b = OPERAND(c, PLAIN, 5);
    return lk_mse_each(a, b);
}

static lk_tensor mse_each_image(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5, 3), b = OPERAND(c, PLAIN, 2, 3, 5, 3);
    return lk_mse_each(a, b);
}

static lk_tensor cross_entropy(cell *c) { return cross(c, OPERAND(c, WIDE, 9, 5), 0, -100, false); }
static lk_tensor cross_entropy_smooth(cell *c) { return cross(c, OPERAND(c, WIDE, 9, 5), 0.1, -100, false); }
static lk_tensor cross_entropy_ignore(cell *c) { return cross(c, OPERAND(c, PLAIN, 9, 5), 0, 2, false); }
static lk_tensor cross_entropy_weight(cell *c) { return cross(c, OPERAND(c, WIDE, 9, 5), 0, -100, true); }
static lk_tensor cross_entropy_all(cell *c) { return cross(c, OPERAND(c, WIDE, 9, 5), 0.3, 2, true); }
static lk_tensor cross_entropy_three_axes(cell *c) { return cross(c, OPERAND(c, WIDE, 3, 3, 5), 0.1, -100, false); }

static lk_tensor mse(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5), b = OPERAND(c, PLAIN, 3, 5);
    return lk_mse(a, b);
}

static lk_tensor mse_image(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5, 3), b = OPERAND(c, PLAIN, 2, 3, 5, 3);
    return lk_mse(a, b);
}

static lk_tensor fused_attention(cell *c)
{
    lk_tensor q = OPERAND(c, PLAIN, 2, 5, 6), k = OPERAND(c, PLAIN, 2, 7, 6);
    return lk_attention(q, k, OPERAND(c, PLAIN, 2, 7, 6), .heads = 2);
}
static lk_tensor attention_causal(cell *c)
{
    lk_tensor q = OPERAND(c, WIDE, 2, 5, 6), k = OPERAND(c, PLAIN, 2, 5, 6);
    return lk_attention(q, k, OPERAND(c, PLAIN, 2, 5, 6), .heads = 2, .causal = true);
}
static lk_tensor attention_grouped(cell *c)
{
    lk_tensor q = OPERAND(c, PLAIN, 2, 5, 12), k = OPERAND(c, PLAIN, 2, 5, 6);
    return lk_attention(q, k, OPERAND(c, PLAIN, 2, 5, 6), .heads = 4, .kv_heads = 2, .causal = true, .scale = 0.3);
}
static lk_tensor attention_window(cell *c)
{
    lk_tensor q = OPERAND(c, PLAIN, 1, 9, 4), k = OPERAND(c, PLAIN, 1, 9, 4);
    return lk_attention(q, k, OPERAND(c, PLAIN, 1, 9, 4), .causal = true, .window = 3);
}
static lk_tensor attention_packed(cell *c)
{
    return lk_attention(OPERAND(c, PLAIN, 2, 5, 16), none, none, .heads = 2, .kv_heads = 1, .causal = true);
}

static lk_tensor rope(cell *c)
{
    double table[5 * 4];
    for (int position = 0; position < 5; position++)
        for (int i = 0; i < 2; i++) {
            double angle = position / pow(10000, i / 2.0);
            table[position * 4 + i] = cos(angle), table[position * 4 + 2 + i] = sin(angle);
        }
    lk_tensor x = OPERAND(c, PLAIN, 2, 5, 8);
    return lk_rope(x, lk_reshape(reals(c, table, 20), 2, ((int64_t[]){5, 4})), 2, none);
}

static lk_tensor swiglu(cell *c)
{
    lk_tensor gate = OPERAND(c, WIDE, 3, 7);
    return lk_swiglu(gate, OPERAND(c, PLAIN, 3, 7));
}

static lk_tensor linear_cross_entropy(cell *c)
{
    int       labels[] = {2, 0, 1, 4, -100, 2, 3, -100, 0};
    lk_tensor x = OPERAND(c, PLAIN, 9, 4), w = OPERAND(c, PLAIN, 5, 4);
    return lk_linear_cross_entropy(x, w, integers(c, labels, 9, DIMS(9)));
}

static lk_tensor any_loss(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 9, 5), weight = reals(c, sample_weights, 9);
    lk_tensor each = lk_sum(lk_mul(x, lk_tanh(x)), .axes = (int[]){1}, .axes_count = 1);
    return lk_loss(lk_mul(each, weight), .weight = weight);
}

static lk_tensor l1(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 3, 5), b = OPERAND(c, PLAIN, 3, 5);
    return lk_l1(a, b);
}

static lk_tensor l1_image(cell *c)
{
    lk_tensor a = OPERAND(c, PLAIN, 2, 3, 5, 3), b = OPERAND(c, PLAIN, 2, 3, 5, 3);
    return lk_l1(a, b);
}

static lk_tensor bce(cell *c, lk_tensor weight)
{
    double target[45];
    for (int i = 0; i < 45; i++) target[i] = i * 7 % 11 / 10.0;
    lk_tensor x = OPERAND(c, WIDE, 9, 5);
    return lk_bce_with_logits(x, lk_reshape(reals(c, target, 45), 2, ((int64_t[]){9, 5})), .weight = weight);
}

static lk_tensor bce_with_logits(cell *c) { return bce(c, none); }
static lk_tensor bce_with_logits_weight(cell *c) { return bce(c, reals(c, sample_weights, 9)); }

/* ---- recorded data, and no gradient ---- */

static lk_tensor recorded(cell *c, int rank, const int64_t *dims)
{
    static const float  f32[] = {0.5F, -2, 3, 0, 1.25F};
    static const double f64[] = {0.5, -2, 3, 0, 1.25};
    return lk_constant(c->graph, c->real, rank, dims, c->real == LK_F32 ? (const void *)f32 : f64);
}

static lk_tensor constant(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5);
    return lk_add(lk_mul(x, recorded(c, DIMS(5))), recorded(c, DIMS(3, 1)));
}

static lk_tensor stop_gradient(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 5), y = OPERAND(c, PLAIN, 5);
    return lk_add(lk_mul(x, lk_stop_gradient(x)), lk_mul(lk_stop_gradient(y), x));
}

/* ---- several at once ---- */

static lk_tensor attention(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 7, 5), q = OPERAND(c, PLAIN, 5, 5), k = OPERAND(c, PLAIN, 5, 5),
              v = OPERAND(c, PLAIN, 5, 5);
    lk_tensor score = lk_matmul(lk_f_linear(x, q, none), lk_f_linear(x, k, none), .transpose_b = true);
    lk_tensor mixed = lk_matmul(lk_softmax(lk_scale(score, 0.5), -1), lk_f_linear(x, v, none));
    return lk_f_layer_norm(lk_add(x, mixed), none, none);
}

static lk_tensor squeeze_and_excite(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 3, 4, 5, 5), w1 = OPERAND(c, PLAIN, 4, 4, 3, 3), w2 = OPERAND(c, PLAIN, 4, 4);
    lk_tensor y = lk_add(lk_relu(lk_f_conv2d(x, w1, none, .padding = 1)), x);
    lk_tensor gate = lk_sigmoid(lk_f_linear(lk_global_avg_pool2d(y), w2, none));
    return lk_mul(y, lk_reshape(gate, 4, ((int64_t[]){3, 4, 1, 1})));
}

/* ---- the table ---- */

static const struct golden_case {
    const char *name;
    builder     build;
    bool        loss; /* build returns the loss itself */
} cases[] = {
    {"add", add, false},
    {"sub", sub, false},
    {"mul", mul, false},
    {"div", of_div, false},
    {"div_scalar", div_scalar, false},
    {"scale", scale, false},
    {"relu", relu, false},
    {"silu", silu, false},
    {"sigmoid", sigmoid, false},
    {"tanh", of_tanh, false},
    {"gelu", gelu, false},
    {"gelu_tanh", gelu_tanh, false},
    {"exp", of_exp, false},
    {"log", of_log, false},
    {"sqrt", of_sqrt, false},
    {"pow", of_pow, false},
    {"pow_negative", pow_negative, false},
    {"pow_cube", pow_cube, false},
    {"pow_square", pow_square, false},
    {"pow_zero", pow_zero, false},
    {"clamp", clamp, false},
    {"clamp_low", clamp_low, false},
    {"clamp_high", clamp_high, false},
    {"clamp_crossed", clamp_crossed, false},
    {"leaky_relu", leaky_relu, false},
    {"where", where, false},
    {"where_bytes", where_bytes, false},
    {"where_computed", where_computed, false},
    {"where_swapped", where_swapped, false},
    {"softmax", softmax, false},
    {"softmax_first", softmax_first, false},
    {"softmax_middle", softmax_middle, false},
    {"log_softmax", log_softmax, false},
    {"log_softmax_middle", log_softmax_middle, false},
    {"sum", sum, false},
    {"sum_keepdim", sum_keepdim, false},
    {"sum_two", sum_two, false},
    {"mean", mean, false},
    {"mean_two", mean_two, false},
    {"max", of_max, false},
    {"max_keepdim", max_keepdim, false},
    {"max_last", max_last, false},
    {"max_first_of_equals", max_first_of_equals, false},
    {"max_second_of_equals", max_second_of_equals, false},
    {"argmax", argmax, false},
    {"reshape", reshape, false},
    {"flatten", flatten, false},
    {"transpose", transpose, false},
    {"permute", permute, false},
    {"slice", slice, false},
    {"concat", concat, false},
    {"matmul", matmul, false},
    {"matmul_ta", matmul_ta, false},
    {"matmul_tb", matmul_tb, false},
    {"matmul_tatb", matmul_tatb, false},
    {"matmul_batched", matmul_batched, false},
    {"matmul_shared_right", matmul_shared_right, false},
    {"matmul_shared_left", matmul_shared_left, false},
    {"matmul_four_axes", matmul_four_axes, false},
    {"linear", linear, false},
    {"linear_relu", linear_relu, false},
    {"linear_three_axes", linear_three_axes, false},
    LAYER_CASES,
    {"cross_entropy", cross_entropy, true},
    {"cross_entropy_smooth", cross_entropy_smooth, true},
    {"cross_entropy_ignore", cross_entropy_ignore, true},
    {"cross_entropy_weight", cross_entropy_weight, true},
    {"cross_entropy_all", cross_entropy_all, true},
    {"cross_entropy_three_axes", cross_entropy_three_axes, true},
    {"cross_entropy_each", cross_entropy_each, false},
    {"cross_entropy_each_weight", cross_entropy_each_weight, false},
    {"cross_entropy_each_three_axes", cross_entropy_each_three_axes, false},
    {"mse_each", mse_each, false},
    {"mse_each_image", mse_each_image, false},
    {"mse", mse, true},
    {"mse_image", mse_image, true},
    {"fused_attention", fused_attention, false},
    {"attention_causal", attention_causal, false},
    {"attention_grouped", attention_grouped, false},
    {"attention_window", attention_window, false},
    {"attention_packed", attention_packed, false},
    {"rope", rope, false},
    {"swiglu", swiglu, false},
    {"linear_cross_entropy", linear_cross_entropy, true},
    {"loss", any_loss, true},
    {"l1", l1, true},
    {"l1_image", l1_image, true},
    {"bce_with_logits", bce_with_logits, true},
    {"bce_with_logits_weight", bce_with_logits_weight, true},
    {"constant", constant, false},
    {"stop_gradient", stop_gradient, false},
    {"attention", attention, false},
    {"squeeze_and_excite", squeeze_and_excite, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* The difference of two arrays, relative to the largest value. */
static double distance(const void *a, lk_dtype real, const double *b, int64_t n)
{
    double worst = 0, largest = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(real_at(a, real, i) - b[i]);
        if (isnan(off)) return INFINITY;
        worst = fmax(worst, off);
        largest = fmax(largest, fabs(b[i]));
    }
    return worst / largest;
}

static void check_array(lk__safetensors *file, const char *of, const char *name, const void *data, lk_dtype real,
                        double tolerance)
{
    char    prefix[64];
    int64_t n;
    snprintf(prefix, sizeof prefix, "%s/", of);
    double *expected = golden(file, prefix, name, &n), off = distance(data, real, expected, n);
    CHECK(off <= tolerance, "%s: %s (%s) is off by %g", of, name, lk_dtype_name(real), off);
    free(expected);
}

static void check_case(lk__safetensors *file, const struct golden_case *k, lk_dtype real, lk_policy policy,
                       double tolerance)
{
    rig                 r = rig_open(real, 1);
    cell                c = {.graph = r.graph, .real = real};
    lk_tensor           y = k->build(&c);
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = k->loss ? y : weighted_sum(&c, y);
    config.outputs = &y;
    config.outputs_count = k->loss ? 0 : 1;
    config.optimizer = &optimizer;
    config.policy = policy;
    rig_plan(&r, &config, 1);
    cell_fill(&c, &r, 100);
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1}) == LK_OK);
    REQUIRE(lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
    lk_metrics m = rig_metrics(&r);
    check_array(file, k->name, "loss", &m.sum, LK_F64, tolerance * 10); /* a sum of many: its terms may cancel */
    if (k->loss) check_array(file, k->name, "weight", &m.weight, LK_F64, 1e-14);
    for (size_t i = 0; i < lk_store_count(r.store); i++) {
        lk_state s = lk_store_at(r.store, i);
        if (s.buffer)
            check_array(file, k->name, s.name, state_copy(r.store, s.name), real, tolerance);
        else if (!s.frozen)
            check_array(file, k->name, s.name, gradient_copy(r.program, r.store, s.name), real, tolerance);
    }
    REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    size_t bytes = lk_dtype_size(lk_tensor_dtype(y));
    for (int i = 0; i < lk_tensor_rank(y); i++) bytes *= (size_t)lk_tensor_dim(y, i);
    if (!k->loss) check_array(file, k->name, "y", output_copy(r.program, 0, bytes), real, tolerance);
    rig_close(&r);
    cell_close(&c);
}

static void check_all(lk_dtype real, lk_policy policy, double tolerance)
{
    rig              r = rig_open(real, 1);
    lk__safetensors *file = golden_open(r.context, "ops.safetensors");
    for (int i = 0; i < CASES; i++) check_case(file, &cases[i], real, policy, tolerance);
    lk__safetensors_close(file);
    rig_close(&r);
}

static void outputs_and_gradients_are_pytorchs_in_f64(void) { check_all(LK_F64, LK_POLICY_RECORDED, 1e-13); }
static void outputs_and_gradients_are_pytorchs_in_f32(void) { check_all(LK_F32, LK_POLICY_RECORDED, 1e-5); }
static void outputs_and_gradients_are_near_pytorchs_in_bf16(void) { check_all(LK_F32, LK_POLICY_BF16, 3e-2); }

static void every_stored_case_is_run(void)
{
    rig              r = rig_open(LK_F64, 1);
    lk__safetensors *file = golden_open(r.context, "ops.safetensors");
    for (size_t i = 0; i < lk__safetensors_count(file); i++) {
        const char *name = lk__safetensors_at(file, i)->name, *slash = strchr(name, '/');
        bool        found = false;
        for (int j = 0; j < CASES && slash; j++)
            if (strlen(cases[j].name) == (size_t)(slash - name) &&
                strncmp(cases[j].name, name, (size_t)(slash - name)) == 0)
                found = true;
        CHECK(found, "%s", name);
    }
    lk__safetensors_close(file);
    rig_close(&r);
}

int main(void)
{
    RUN(every_stored_case_is_run);
    RUN(outputs_and_gradients_are_pytorchs_in_f64);
    RUN(outputs_and_gradients_are_pytorchs_in_f32);
    RUN(outputs_and_gradients_are_near_pytorchs_in_bf16);
    return check_result();
}
