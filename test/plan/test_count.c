/* test_count.c - an axis has a capacity and a count: padding is never read (it is NaN here, and labels and ids that
 * would crash) and changes no bit of losses, gradients, updates or outputs. Also the differences between training and
 * evaluation.
 *
 * ctest: timeout 300 */
#include "support.h"

#include <limits.h>
#include <lockstep/moe.h>

enum { COUNT = 5, CAPACITY = 8, MOST_NAMES = 8 };

/* A model records its inputs by name through these, so that the harness can fill them. */
typedef struct model_inputs {
    lk_graph *graph;
    int64_t   capacity;
    struct {
        const char *name;
        int64_t     each;  /* elements of a row */
        int         range; /* i32 inputs: values 0 … range - 1; 0: floating */
        void       *data;
    } all[MOST_NAMES];
    int count;
} model_inputs;

static lk_tensor add_input(model_inputs *in, const char *name, int range, int rank, const int64_t *row)
{
    int64_t dims[LK_MAX_RANK] = {in->capacity}, each = 1;
    for (int i = 0; i < rank; i++) each *= dims[i + 1] = row[i];
    in->all[in->count].name = name;
    in->all[in->count].range = range;
    in->all[in->count++].each = each;
    return lk_input(in->graph, name, range ? LK_I32 : lk_graph_dtype(in->graph), rank + 1, dims);
}

/* The first `count` rows are the same for any capacity; the rest is poison. */
static void fill(model_inputs *in, int64_t count, lk_dtype real)
{
    for (int k = 0; k < in->count; k++) {
        int64_t n = in->capacity * in->all[k].each;
        if (!in->all[k].data) in->all[k].data = malloc((size_t)n * 8);
        for (int64_t i = 0; i < n; i++) {
            bool padding = i >= count * in->all[k].each;
            if (in->all[k].range)
                ((int32_t *)in->all[k].data)[i] =
                    padding ? INT_MIN / 2
                            : (int32_t)(number_bits((uint64_t)k + 9, (uint64_t)i) % (uint64_t)in->all[k].range);
            else
                set_real(in->all[k].data, real, i, padding ? NAN : 2 * number((uint64_t)k + 9, (uint64_t)i) - 1);
        }
    }
}

/* ---- models ---- */

typedef struct model_result {
    lk_tensor loss, output;
} model_result;
typedef model_result (*model)(model_inputs *in);

static model_result classified(model_inputs *in, lk_tensor logits)
{
    return (model_result){lk_cross_entropy(logits, add_input(in, "y", 10, 0, NULL), .label_smoothing = 0.05), logits};
}

static model_result mlp(model_inputs *in)
{
    return classified(in, lk_model_mlp(add_input(in, "x", 0, DIMS(17)), (lk_model_options){.hidden = 33}));
}

static model_result cnn(model_inputs *in)
{
    return classified(in, lk_model_cnn(add_input(in, "x", 0, DIMS(3, 12, 12)), (lk_model_options){0}));
}

static model_result resnet20(model_inputs *in)
{
    return classified(in, lk_model_resnet20(add_input(in, "x", 0, DIMS(3, 12, 12)), (lk_model_options){0}));
}

/* Tokens: embedding, attention, layer norm, dropout; the rows of the loss are count × 7. */
static model_result tokens(model_inputs *in)
{
    lk_tensor ids = add_input(in, "ids", 23, DIMS(7)), x = lk_embedding(ids, "embed", 23, 12);
    lk_tensor q = lk_linear(x, "q", 12), k = lk_linear(x, "k", 12), v = lk_linear(x, "v", 12);
    lk_tensor p = lk_dropout(lk_softmax(lk_scale(lk_matmul(q, k, .transpose_b = true), 0.3), -1), 0.1);
    x = lk_layer_norm(lk_add(x, lk_dropout(lk_matmul(p, v), 0.3)), "norm");
    x = lk_rms_norm(lk_add(x, lk_linear(lk_gelu(lk_linear(x, "up", 30)), "down", 12)), "rms");
    lk_tensor logits = lk_linear(x, "head", 23);
    lk_tensor w = add_input(in, "w", 0, DIMS(7));
    return (model_result){lk_cross_entropy(logits, ids, .weight = lk_mul(w, w)), logits};
}

/* Other operations with a count: reductions over the batch, products over it, reshapes that scale it, permuted axes. */
static model_result zoo(model_inputs *in)
{
    lk_tensor x = add_input(in, "x", 0, DIMS(6)), image = add_input(in, "image", 0, DIMS(4, 6, 6));
    lk_tensor h = lk_batch_norm(lk_linear(x, "a", 10), "bn");
    lk_tensor gram = lk_matmul(h, h, .transpose_a = true); /* (10, 10): a product over the batch */
    lk_tensor centre = lk_mean(h, .axes = (int[]){0}, .axes_count = 1, .keepdim = true); /* (1, 10), over the count */
    h = lk_add(lk_sub(h, centre), lk_linear(lk_tanh(h), "b", 10));
    h = lk_add(lk_matmul(h, lk_scale(gram, 0.02)), lk_sum(h));
    lk_tensor rows = lk_reshape(h, 2, ((int64_t[]){in->capacity * 5, 2})); /* (N·5, 2) */
    rows = lk_silu(lk_linear(rows, "c", 3));
    h = lk_reshape(rows, 2, ((int64_t[]){in->capacity, 15}));
    lk_tensor transposed = lk_transpose(lk_softmax(lk_transpose(h, 0, 1), 1), 0, 1); /* softmax along the batch */
    lk_tensor y = lk_conv2d(image, "conv", 6, 3, .padding = 1);
    y = lk_dropout(lk_avg_pool2d(lk_relu(lk_batch_norm(y, "bn2")), 2), 0.2);
    y = lk_max_pool2d(
        lk_mul(y, lk_parameter(in->graph, "gain", 4, ((int64_t[]){1, 6, 1, 1}), .init = LK_INIT_CONSTANT, .a = 1.5)), 3,
        .stride = 1);
    lk_tensor one = lk_parameter(in->graph, "one", 0, NULL, .init = LK_INIT_CONSTANT, .a = 1);
    lk_tensor all = lk_concat(
        ((lk_tensor[]){transposed, lk_slice(h, 1, 2, 5), lk_flatten(y), lk_div(x, lk_add(lk_mul(x, x), one))}), 4, 1);
    lk_tensor out = lk_linear(all, "d", 7);
    return (model_result){lk_mse(lk_sigmoid(out), add_input(in, "target", 0, DIMS(7))), out};
}

/* Operations that select, recorded data, and a loss that computes its gradient in forward. */
static model_result choices(model_inputs *in)
{
    static const uint8_t parts[] = {1, 0, 0, 1, 1, 0};
    lk_tensor            x = add_input(in, "x", 0, DIMS(6)), image = add_input(in, "image", 0, DIMS(4, 6, 6));
    lk_tensor            part = lk_constant(in->graph, LK_U8, 1, &(int64_t){6}, parts);
    lk_tensor            h = lk_where(part, lk_exp(x), lk_leaky_relu(lk_linear(x, "a", 6), 0.1));
    lk_tensor            y = lk_group_norm(lk_conv2d(image, "conv", 6, 3, .padding = 1), "norm", 3);
    y = lk_max(lk_clamp(y, -1, 1.5), -1);                     /* (N, 6, 6) */
    y = lk_add(lk_max(y, 1), lk_pow(lk_stop_gradient(h), 2)); /* (N, 6) */
    lk_tensor chosen = lk_embedding(lk_argmax(y, 1), "table", 6, 6);
    lk_tensor out = lk_linear(lk_add(lk_mul(h, chosen), lk_sqrt(lk_exp(y))), "b", 7);
    lk_tensor target = lk_sigmoid(add_input(in, "target", 0, DIMS(7))), w = add_input(in, "w", 0, 0, NULL);
    return (model_result){lk_bce_with_logits(out, target, .weight = lk_mul(w, w)), out};
}

/* Tokens are grouped by expert over all samples. */
static model_result experts(model_inputs *in)
{
    lk_tensor     ids = add_input(in, "ids", 23, DIMS(7)), x = lk_embedding(ids, "embed", 23, 12);
    lk_moe_result first = lk_moe(x, "first", .experts = 4, .hidden = 9);
    x = lk_layer_norm(lk_add(x, first.y), "norm");
    lk_moe_result second = lk_moe(x, "second", .experts = 4, .hidden = 5, .plain_weights = true);
    lk_tensor     logits = lk_linear(lk_add(x, second.y), "head", 23);
    return (model_result){lk_cross_entropy(logits, ids), logits};
}

/* ---- a run ---- */

typedef struct session {
    rig          rig;
    model_inputs in;
    int64_t      output_row; /* elements */
} session;

static session begin(model build, int64_t capacity, lk_dtype real, lk_optimizer_kind kind, int threads)
{
    session s = {.rig = rig_open(real, threads), .in = {.capacity = capacity}};
    s.in.graph = s.rig.graph;
    model_result        m = build(&s.in);
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.kind = kind;
    config.loss = m.loss;
    config.outputs = &m.output;
    config.outputs_count = 1;
    config.optimizer = &optimizer;
    rig_plan(&s.rig, &config, 21);
    s.output_row = 1;
    for (int i = 1; i < lk_tensor_rank(m.output); i++) s.output_row *= lk_tensor_dim(m.output, i);
    return s;
}

static void bind(session *s, int64_t count)
{
    fill(&s->in, count, lk_graph_dtype(s->rig.graph));
    for (int i = 0; i < s->in.count; i++)
        REQUIRE(lk_program_bind(s->rig.program, s->in.all[i].name, s->in.all[i].data) == LK_OK, "%s",
                lk_context_error(s->rig.context));
}

static void end(session *s)
{
    rig_close(&s->rig);
    for (int i = 0; i < s->in.count; i++) free(s->in.all[i].data);
}

static void train(session *s, int64_t step, int64_t count)
{
    REQUIRE(lk_program_train(s->rig.program, &(lk_step){.step = step, .count = count, .rate = 1e-2, .seed = 4}) ==
                LK_OK,
            "%s", lk_context_error(s->rig.context));
}

static void check_same(session *a, session *b, const char *name, int64_t count)
{
    size_t     size = lk_dtype_size(lk_graph_dtype(a->rig.graph));
    lk_metrics m = rig_metrics(&a->rig), n = rig_metrics(&b->rig);
    CHECK(isfinite(m.loss) && m.weight > 0, "%s: loss %g", name, m.loss);
    CHECK(m.sum == n.sum && m.weight == n.weight && m.correct == n.correct, "%s: loss %.17g and %.17g", name, m.loss,
          n.loss);
    CHECK(lk_store_hash(a->rig.store) == lk_store_hash(b->rig.store), "%s: parameters or buffers", name);
    for (size_t i = 0; i < lk_store_count(a->rig.store); i++) {
        lk_state s = lk_store_at(a->rig.store, i);
        if (s.buffer) continue;
        const void *g = gradient_copy(a->rig.program, a->rig.store, s.name),
                   *h = gradient_copy(b->rig.program, b->rig.store, s.name);
        CHECK(g && h && memcmp(g, h, (size_t)state_elements(&s) * size) == 0, "%s: the gradient of %s", name, s.name);
        for (int64_t j = 0; j < state_elements(&s); j++)
            if (!isfinite(real_at(g, s.dtype, j))) {
                CHECK(false, "%s: the gradient of %s is not finite", name, s.name);
                break;
            }
    }
    REQUIRE(lk_program_run(a->rig.program, LK_EVALUATE) == LK_OK &&
            lk_program_run(b->rig.program, LK_EVALUATE) == LK_OK);
    m = rig_metrics(&a->rig), n = rig_metrics(&b->rig);
    CHECK(m.sum == n.sum && m.weight == n.weight && m.correct == n.correct, "%s: evaluated loss %.17g and %.17g", name,
          m.loss, n.loss);
    size_t bytes = (size_t)(count * a->output_row) * size;
    CHECK(memcmp(output_copy(a->rig.program, 0, bytes), output_copy(b->rig.program, 0, bytes), bytes) == 0,
          "%s: outputs", name);
}

static void compare(const char *name, model build, lk_dtype real, int threads)
{
    session batch_leaves = begin(build, CAPACITY, real, LK_ADAM, threads),
            exact = begin(build, COUNT, real, LK_ADAM, 1);
    bind(&batch_leaves, COUNT);
    bind(&exact, COUNT);
    for (int step = 1; step <= 3; step++) {
        train(&batch_leaves, step, COUNT);
        train(&exact, step, COUNT);
        check_same(&batch_leaves, &exact, name, COUNT);
    }
    /* A full batch in between has no effect. */
    bind(&batch_leaves, CAPACITY);
    train(&batch_leaves, 4, CAPACITY);
    for (size_t i = 0; i < lk_store_count(batch_leaves.rig.store); i++) {
        lk_state s = lk_store_at(batch_leaves.rig.store, i);
        for (int part = 0; part <= s.moments; part++)
            write_part(exact.rig.store, &s, (lk_state_part)part,
                       part_copy(batch_leaves.rig.store, s.name, (lk_state_part)part));
    }
    bind(&batch_leaves, 2);
    bind(&exact, 2);
    train(&batch_leaves, 5, 2);
    train(&exact, 5, 2);
    check_same(&batch_leaves, &exact, name, 2);
    end(&batch_leaves);
    end(&exact);
}

#define EVERY_MODEL(X) X(mlp) X(cnn) X(resnet20) X(tokens) X(zoo) X(choices) X(experts)
static const struct {
    const char *name;
    model       build;
} models[] = {
#define ROW(name) {#name, name},
    EVERY_MODEL(ROW)
#undef ROW
};
enum { MODELS = sizeof models / sizeof *models };

static void five_samples_of_eight_give_the_bits_of_five_of_five(void)
{
    for (int i = 0; i < MODELS; i++) {
        compare(models[i].name, models[i].build, LK_F32, 1);
        compare(models[i].name, models[i].build, LK_F32, 2);
        compare(models[i].name, models[i].build, LK_F64, 1);
    }
}

static void an_empty_batch_changes_nothing(void)
{
    for (int i = 0; i < MODELS; i++) {
        session s = begin(models[i].build, CAPACITY, LK_F32, LK_SGD, 1);
        bind(&s, COUNT);
        train(&s, 1, COUNT);
        uint64_t before = lk_store_hash(s.rig.store);
        bind(&s, 0);
        train(&s, 2, 0);
        lk_metrics m = rig_metrics(&s.rig);
        CHECK(m.loss == 0 && m.sum == 0 && m.weight == 0 && m.correct == 0, "%s: loss %g", models[i].name, m.loss);
        CHECK(lk_store_hash(s.rig.store) == before, "%s", models[i].name);
        for (size_t k = 0; k < lk_store_count(s.rig.store); k++) {
            lk_state     state = lk_store_at(s.rig.store, k);
            const float *g = gradient_copy(s.rig.program, s.rig.store, state.name);
            int64_t      bad = 0;
            for (int64_t j = 0; g && j < state_elements(&state); j++) bad += !isfinite(g[j]);
            CHECK(bad == 0, "%s: %lld elements of the gradient of %s are not finite", models[i].name, (long long)bad,
                  state.name);
        }
        REQUIRE(lk_program_run(s.rig.program, LK_EVALUATE) == LK_OK);
        CHECK(rig_metrics(&s.rig).loss == 0);
        bind(&s, COUNT);
        train(&s, 3, COUNT);
        CHECK(isfinite(rig_metrics(&s.rig).loss) && lk_store_hash(s.rig.store) != before);
        end(&s);
    }
}

/* ---- training and evaluation ---- */

static model_result one_norm(model_inputs *in)
{
    lk_tensor y = lk_batch_norm(add_input(in, "x", 0, DIMS(3, 2, 5)), "bn", .momentum = 0.25);
    return (model_result){lk_mse(y, add_input(in, "target", 0, DIMS(3, 2, 5))), y};
}

/* Against sums in double over the rows that exist. */
static void running_statistics_are_of_the_count(void)
{
    session s = begin(one_norm, CAPACITY, LK_F64, LK_SGD, 1);
    double  mean[3] = {0}, var[3] = {1, 1, 1};
    for (int step = 1; step <= 3; step++) {
        int64_t count = step == 2 ? CAPACITY : COUNT;
        bind(&s, count);
        REQUIRE(lk_program_step(s.rig.program, &(lk_step){.step = step, .count = count}) == LK_OK);
        REQUIRE(lk_program_run(s.rig.program, LK_FORWARD) == LK_OK);
        const double *x = s.in.all[0].data;
        for (int c = 0; c < 3; c++) {
            double sum = 0, squares = 0, n = (double)count * 10;
            for (int64_t i = 0; i < count * 10; i++) sum += x[i / 10 * 30 + c * 10 + i % 10];
            for (int64_t i = 0; i < count * 10; i++) squares += pow(x[i / 10 * 30 + c * 10 + i % 10] - sum / n, 2);
            mean[c] += 0.25 * (sum / n - mean[c]);
            var[c] += 0.25 * (squares / (n - 1) - var[c]);
        }
    }
    const double *m = state_copy(s.rig.store, "bn.running_mean"), *v = state_copy(s.rig.store, "bn.running_var");
    CHECK(*(int64_t *)state_copy(s.rig.store, "bn.num_batches_tracked") == 3);
    for (int c = 0; c < 3; c++) {
        CHECK(fabs(m[c] - mean[c]) < 1e-15, "mean %d: %.17g, %.17g", c, m[c], mean[c]);
        CHECK(fabs(v[c] - var[c]) < 1e-15, "var %d: %.17g, %.17g", c, v[c], var[c]);
    }
    uint64_t before = lk_store_hash(s.rig.store);
    REQUIRE(lk_program_run(s.rig.program, LK_EVALUATE) == LK_OK);
    CHECK(lk_store_hash(s.rig.store) == before); /* evaluation does not change them … */
    const double *x = s.in.all[0].data, *y = output_copy(s.rig.program, 0, COUNT * 30 * sizeof *y);
    for (int64_t i = 0; i < COUNT * 30; i++) { /* … and normalises with them */
        int64_t c = i / 10 % 3;
        double  expected = (x[i] - mean[c]) / sqrt(var[c] + 1e-5);
        CHECK(fabs(y[i] - expected) < 1e-14, "element %lld: %.17g, %.17g", (long long)i, y[i], expected);
    }
    end(&s);
}

enum { ROWS = 40, COLUMNS = 200 };

/* The gradients of the sums of two dropouts are their masks. */
static model_result masks(model_inputs *in)
{
    lk_tensor a = lk_parameter(in->graph, "a", 2, ((int64_t[]){ROWS, COLUMNS}), .init = LK_INIT_CONSTANT, .a = 1);
    lk_tensor b = lk_parameter(in->graph, "b", 2, ((int64_t[]){ROWS, COLUMNS}), .init = LK_INIT_CONSTANT, .a = 1);
    lk_tensor y = lk_add(lk_dropout(a, 0.25), lk_dropout(b, 0.25));
    return (model_result){lk_sum(y), y};
}

typedef double mask[ROWS][COLUMNS];

static void draw_mask(session *s, const char *name, uint64_t seed, int64_t epoch, int64_t step, const int64_t *ids,
                      mask *out)
{
    REQUIRE(lk_program_step(s->rig.program,
                            &(lk_step){.step = step, .epoch = epoch, .seed = seed, .sample_ids = ids, .count = ROWS}) ==
            LK_OK);
    REQUIRE(lk_program_run(s->rig.program, LK_FORWARD) == LK_OK &&
            lk_program_run(s->rig.program, LK_BACKWARD) == LK_OK);
    memcpy(out, gradient_copy(s->rig.program, s->rig.store, name), sizeof *out);
}

static double equal_part(mask *a, mask *b)
{
    int equal = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) equal += (*a)[i][j] == (*b)[i][j];
    return equal / (double)(ROWS * COLUMNS);
}

static void dropout_is_a_function_of_seed_epoch_sample_and_operation(void)
{
    static mask first, other;
    session     s = begin(masks, ROWS, LK_F64, LK_SGD, 1);
    int64_t     ids[ROWS];
    int         dropped = 0;
    for (int i = 0; i < ROWS; i++) ids[i] = 1000 + i;
    draw_mask(&s, "a", 1, 0, 1, ids, &first);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            dropped += first[i][j] == 0;
            CHECK(first[i][j] == 0 || fabs(first[i][j] - 4.0 / 3) < 1e-15, "%g", first[i][j]);
        }
    /* five standard deviations */
    CHECK(abs(dropped - ROWS * COLUMNS / 4) < 5 * 39, "%d of %d", dropped, ROWS * COLUMNS);
    /* Two independent masks agree in 1/16 + 9/16 of the elements, here within 5 deviations of 0.0054. */
#define INDEPENDENT() CHECK(fabs(equal_part(&first, &other) - 0.625) < 0.027, "%g", equal_part(&first, &other))
    draw_mask(&s, "b", 1, 0, 1, ids, &other);
    INDEPENDENT();
    draw_mask(&s, "a", 2, 0, 1, ids, &other);
    INDEPENDENT();
    draw_mask(&s, "a", 1, 1, 1, ids, &other);
    INDEPENDENT();
    draw_mask(&s, "a", 1, 0, 2, ids, &other); /* a sample keeps its mask within an epoch, in any step … */
    CHECK(equal_part(&first, &other) == 1);
    for (int i = 0; i < ROWS; i++) ids[i] = 1000 + ROWS - 1 - i; /* … and in any row */
    draw_mask(&s, "a", 1, 0, 1, ids, &other);
    for (int i = 0; i < ROWS; i++) CHECK(memcmp(first[i], other[ROWS - 1 - i], sizeof first[i]) == 0, "row %d", i);
    for (int i = 0; i < ROWS; i++) ids[i] = 1000000007 + i;
    draw_mask(&s, "a", 1, 0, 1, ids, &other);
    INDEPENDENT();
    /* Without sample ids each step has its own masks. */
    draw_mask(&s, "a", 1, 0, 1, NULL, &first);
    draw_mask(&s, "a", 1, 0, 1, NULL, &other);
    CHECK(equal_part(&first, &other) == 1);
    draw_mask(&s, "a", 1, 0, 2, NULL, &other);
    INDEPENDENT();
    REQUIRE(lk_program_run(s.rig.program, LK_EVALUATE) == LK_OK); /* nothing is dropped: 1 + 1 everywhere */
    const double *y = output_copy(s.rig.program, 0, ROWS * COLUMNS * sizeof *y);
    int           twos = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++) twos += y[i] == 2;
    CHECK(twos == ROWS * COLUMNS);
    end(&s);
}

int main(void)
{
    RUN(five_samples_of_eight_give_the_bits_of_five_of_five);
    RUN(an_empty_batch_changes_nothing);
    RUN(running_statistics_are_of_the_count);
    RUN(dropout_is_a_function_of_seed_epoch_sample_and_operation);
    return check_result();
}
