/* test_kernels_parts.c - small cases for kernel_parts.h, which cuts the operands of each along its factors: operands
 * and settings that the other tests of kernels have in large shapes alone. The results are compared with those of the
 * parts, and not with expected ones, which the other tests have. */
#include "kernel_case.h"

static const int64_t sample_ids[] = {7, 3, 12, 5};

typedef struct attention_case {
    int64_t batch, tokens, keys, heads, kv_heads, width; /* keys 0: packed */
    bool    causal, bounds;
    int64_t window;
    double  probability;
} attention_case;

static void set_attention(const attention_case *c)
{
    t.attrs = (lk__op_attrs){.heads = c->heads, .kv_heads = c->kv_heads, .scale = 0.7, .causal = c->causal};
    t.attrs.window = c->window;
    t.attrs.probability = c->probability;
    t.attrs.stream = 5;
    t.step.sample_ids = sample_ids;
    t.step.count = c->batch;
}

static void add_queries(const attention_case *c)
{
    int64_t packed = c->keys ? c->heads : c->heads + 2 * c->kv_heads;
    in(t.real, 3, DIMS(c->batch, c->tokens, packed * c->width));
    for (int i = 0; i < 2; i++) {
        if (c->keys)
            in(t.real, 3, DIMS(c->batch, c->keys, c->kv_heads * c->width));
        else
            no_in();
    }
}

static void add_bounds(const attention_case *c)
{
    int64_t keys = c->keys ? c->keys : c->tokens;
    if (!c->bounds) return;
    double *first = in(LK_I32, 2, DIMS(c->batch, c->tokens));
    double *last = in(LK_I32, 2, DIMS(c->batch, c->tokens)), *lengths = in(LK_I32, 1, DIMS(c->batch));
    for (int64_t i = 0; i < c->batch * c->tokens; i++) {
        first[i] = (double)(i * 5 % 3);
        last[i] = (double)(keys - 1 - i * 3 % 2);
    }
    for (int64_t i = 0; i < c->batch; i++) lengths[i] = (double)(keys - i % 2);
}

static void attention_by_heads_and_samples(void)
{
    static const attention_case cases[] = {
        {.batch = 3, .tokens = 5, .heads = 4, .kv_heads = 4, .width = 3},
        {.batch = 3, .tokens = 5, .heads = 6, .kv_heads = 2, .width = 4, .causal = true},
        {.batch = 2, .tokens = 7, .heads = 6, .kv_heads = 3, .width = 2, .bounds = true},
        {.batch = 2, .tokens = 6, .heads = 4, .kv_heads = 2, .width = 3, .causal = true, .window = 2},
        {.batch = 3, .tokens = 5, .heads = 4, .kv_heads = 2, .width = 3, .probability = 0.4},
        {.batch = 3, .tokens = 5, .keys = 7, .heads = 4, .kv_heads = 4, .width = 3},
        {.batch = 3, .tokens = 5, .keys = 8, .heads = 6, .kv_heads = 2, .width = 4, .bounds = true},
        {.batch = 2, .tokens = 7, .keys = 7, .heads = 6, .kv_heads = 3, .width = 2, .causal = true},
        {.batch = 2, .tokens = 6, .keys = 9, .heads = 4, .kv_heads = 2, .width = 3, .window = 2},
        {.batch = 3, .tokens = 5, .keys = 6, .heads = 4, .kv_heads = 2, .width = 3, .probability = 0.4},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const attention_case *c = &cases[i];
        begin(LK__OP_attention);
        set_attention(c);
        add_queries(c);
        add_bounds(c);
        out(t.real, 3, DIMS(c->batch, c->tokens, c->heads * c->width), NULL);
        out(t.wide, 3, DIMS(c->batch, c->heads, c->tokens), NULL);
        run_case();
        end_case();
        begin(LK__OP_attention_grad);
        set_attention(c);
        in(t.real, 3, DIMS(c->batch, c->tokens, c->heads * c->width));
        add_queries(c);
        in(t.real, 3, DIMS(c->batch, c->tokens, c->heads * c->width));
        double *lse = in(t.wide, 3, DIMS(c->batch, c->heads, c->tokens));
        for (int64_t k = 0; k < c->batch * c->heads * c->tokens; k++) lse[k] += 4; /* at least the scores */
        add_bounds(c);
        for (int k = 0; k < 3; k++) {
            int64_t rows = k && c->keys ? c->keys : c->tokens, heads = k ? c->kv_heads : c->heads;
            if (!c->keys) heads = c->heads + 2 * c->kv_heads;
            if (k == 0 || c->keys)
                out(t.real, 3, DIMS(c->batch, rows, heads * c->width), NULL);
            else
                no_out();
        }
        run_case();
        end_case();
    }
}

static void batch_norm_where_relu_passed(void)
{
    const int64_t dims[] = {3, 6, 2, 5}, channels[] = {6}, sums[] = {2, 6}, stats[] = {3, 6};
    begin(LK__OP_batch_norm_grad);
    t.attrs = (lk__op_attrs){.epsilon = 1e-5, .activation = LK__RELU};
    in(t.real, 4, dims), in(t.real, 4, dims);
    for (int i = 0; i < 3; i++) in(t.wide, 1, channels);
    in(t.real, 4, dims);
    out(t.real, 4, dims, NULL), out(t.wide, 1, channels, NULL), out(t.wide, 1, channels, NULL);
    run_case();
    end_case();
    begin(LK__OP_batch_norm_grad_stats);
    t.attrs = (lk__op_attrs){.activation = LK__RELU};
    in(t.real, 4, dims), in(t.real, 4, dims);
    for (int i = 0; i < 2; i++) in(t.wide, 1, channels);
    in(t.real, 4, dims);
    out(LK_F64, 2, sums, NULL), out(t.wide, 1, channels, NULL), out(t.wide, 1, channels, NULL);
    run_case();
    end_case();
    begin(LK__OP_batch_norm_grad_apply);
    t.attrs = (lk__op_attrs){.activation = LK__RELU};
    in(t.real, 4, dims), in(t.real, 4, dims);
    for (int i = 0; i < 3; i++) in(t.wide, 1, channels);
    in(t.real, 4, dims);
    in(LK_F64, 2, sums);
    double *rows = in(LK_F64, 2, stats);
    for (int c = 0; c < 6; c++) rows[c] = 30;
    out(t.real, 4, dims, NULL);
    run_case();
    end_case();
}

/* A fused pool's gradients go where the index says. */
static void convolution_behind_a_pool(void)
{
    const int64_t x[] = {3, 4, 6, 8}, y[] = {3, 6, 3, 4}, w[] = {6, 2, 3, 3}, b[] = {6};
    lk__op_attrs  attrs = {.stride = 1, .padding = 1, .groups = 2, .pool = 2, .activation = LK__RELU};
    for (int k = 0; k < 2; k++) {
        begin(k ? LK__OP_conv2d_grad_weight : LK__OP_conv2d_grad_input);
        t.attrs = attrs;
        in(t.real, 4, k ? x : y);
        in(t.real, 4, k ? y : w);
        double *index = in(LK_U8, 4, y);
        for (int64_t i = 0; i < 3 * 6 * 3 * 4; i++) index[i] = i % 5 == 4 ? 255 : (double)(i % 4);
        out(k ? t.wide : t.real, 4, k ? w : x, NULL);
        if (k) out(t.wide, 1, b, NULL);
        run_case();
        end_case();
    }
}

static void tests(void)
{
    attention_by_heads_and_samples();
    batch_norm_where_relu_passed();
    convolution_behind_a_pool();
}

int main(void) { return run_types(tests, LK_BF16); }
