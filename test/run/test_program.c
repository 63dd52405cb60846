/* test_program.c - what a program promises: it uses exactly the memory that its plan states, allocates nothing while it
 * runs, gives the same bits with any number of threads, handles every failing allocation, and reports where a model is
 * wrong.
 *
 * ctest: timeout 300, label threaded */
#include "failing_allocator.h"
#include "support.h"

#include <lockstep/moe.h>

typedef struct setting {
    const char *model;
    int         capacity, size; /* of the batch; of the images */
    bool        recompute;
} setting;

static const setting settings[] = {
    {"mlp", 32, 0, false}, {"cnn", 8, 28, false}, {"resnet18", 2, 16, false}, {"resnet20", 4, 32, true}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static const float gains[10] = {1, 0.5F, 2, 1, 1, 3, 1, 1, 0.25F, 1}; /* recorded data, in the mlp */

typedef struct data {
    float   *x;
    int32_t *y;
} data;

static lk_tensor record(lk_graph *g, const setting *s, lk_tensor *logits)
{
    int64_t   n = s->capacity;
    lk_tensor x = s->size ? lk_input(g, "x", LK_F32, 4, ((int64_t[]){n, 3, s->size, s->size}))
                          : lk_input(g, "x", LK_F32, 2, ((int64_t[]){n, 64}));
    lk_tensor y = lk_input(g, "y", LK_I32, 1, &n);
    *logits = lk_model_find(s->model)(x, (lk_model_options){.cifar_stem = true, .recompute = s->recompute});
    if (!s->size) *logits = lk_mul(*logits, lk_constant(g, LK_F32, 1, &(int64_t){10}, gains));
    return lk_cross_entropy(*logits, y);
}

static data make_data(const setting *s)
{
    int64_t each = s->size ? 3 * s->size * s->size : 64, n = s->capacity * each;
    data    d = {malloc((size_t)n * sizeof *d.x), malloc((size_t)s->capacity * sizeof *d.y)};
    for (int64_t i = 0; i < n; i++) d.x[i] = (float)(2 * number(1, (uint64_t)i) - 1);
    for (int i = 0; i < s->capacity; i++) d.y[i] = (int32_t)(number_bits(2, (uint64_t)i) % 10);
    return d;
}

static rig prepare(const setting *s, int threads, data *d)
{
    rig                 r = rig_open(LK_F32, threads);
    lk_tensor           logits;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.clip = 1;
    config.loss = record(r.graph, s, &logits);
    config.outputs = &logits;
    config.outputs_count = 1;
    config.optimizer = &optimizer;
    rig_plan(&r, &config, 11);
    *d = make_data(s);
    REQUIRE(lk_program_bind(r.program, "x", d->x) == LK_OK && lk_program_bind(r.program, "y", d->y) == LK_OK);
    return r;
}

static void finish(rig *r, data *d)
{
    rig_close(r);
    free(d->x);
    free(d->y);
}

static void train(rig *r, int64_t step, int64_t count)
{
    REQUIRE(lk_program_train(r->program, &(lk_step){.step = step, .count = count, .rate = 1e-3}) == LK_OK, "%s",
            lk_context_error(r->context));
}

static void a_plan_states_the_memory_to_the_byte(void)
{
    for (int i = 0; i < SETTINGS; i++)
        for (int threads = 1; threads <= 2; threads++) {
            data d;
            rig  r = prepare(&settings[i], threads, &d);
            for (int again = 0; again < 2; again++) { /* before and after a step */
                for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
                    CHECK(lk_context_memory(r.context, kind) == lk_plan_memory(r.plan, kind),
                          "%s, %d threads: %s: %zu stated, %zu held", settings[i].model, threads, lk_memory_name(kind),
                          lk_plan_memory(r.plan, kind), lk_context_memory(r.context, kind));
                train(&r, 1, settings[i].capacity);
            }
            size_t parameters = 4 * (size_t)lk_store_parameters(r.store);
            CHECK(lk_plan_memory(r.plan, LK_MEMORY_PARAMETERS) >= parameters);
            CHECK(lk_plan_memory(r.plan, LK_MEMORY_GRADIENTS) >= parameters);
            CHECK(lk_plan_memory(r.plan, LK_MEMORY_OPTIMIZER) >= 2 * parameters);
            CHECK(lk_plan_memory(r.plan, LK_MEMORY_ACTIVATIONS) > 0);
            finish(&r, &d);
        }
}

static void a_step_allocates_nothing(void)
{
    for (int i = 0; i < SETTINGS; i++) {
        data d;
        rig  r = prepare(&settings[i], 2, &d);
        train(&r, 1, settings[i].capacity);
        REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
        uint64_t before = lk_context_allocations(r.context);
        for (int step = 2; step <= 4; step++) {
            train(&r, step, settings[i].capacity - step % 2);
            REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
        }
        CHECK(lk_context_allocations(r.context) == before, "%s: %llu allocations", settings[i].model,
              (unsigned long long)(lk_context_allocations(r.context) - before));
        finish(&r, &d);
    }
}

static uint64_t bits_after_5_steps(const setting *s, int threads)
{
    data d;
    rig  r = prepare(s, threads, &d);
    REQUIRE(lk_context_threads(r.context) == threads);
    for (int step = 1; step <= 5; step++) train(&r, step, s->capacity - (step == 3));
    lk_metrics m = rig_metrics(&r);
    uint64_t   hash = lk_store_hash(r.store);
    CHECK(isfinite(m.loss) && m.loss > 0 && m.grad_norm > 0);
    REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    const float *logits = output_copy(r.program, 0, (size_t)s->capacity * 10 * sizeof *logits);
    for (int i = 0; i < s->capacity * 10; i++) {
        uint32_t word;
        memcpy(&word, &logits[i], sizeof word);
        hash = hash * 31 + word;
    }
    finish(&r, &d);
    return hash;
}

static void the_same_seed_gives_the_same_bits_with_1_2_and_3_threads(void)
{
    for (int i = 0; i < SETTINGS; i++) {
        uint64_t one = bits_after_5_steps(&settings[i], 1);
        CHECK(bits_after_5_steps(&settings[i], 1) == one, "%s, run again", settings[i].model);
        for (int threads = 2; threads <= 3; threads++)
            CHECK(bits_after_5_steps(&settings[i], threads) == one, "%s with %d threads", settings[i].model, threads);
    }
}

/* ---- allocations that fail ---- */

/* Everything from the context to a step; returns the first failure. */
static lk_status attempt(const setting *s, meter *m, data *d)
{
    rig               r = {0};
    lk_context_config cc = LK_CONTEXT_CONFIG_INIT;
    lk_status         status;
    cc.threads = 1;
    cc.allocator = metered(m);
    if ((status = lk_context_create(&cc, &r.context)) < 0) return status;
    if ((status = lk_graph_create(r.context, LK_F32, &r.graph)) < 0) goto done;
    lk_tensor           logits, loss = record(r.graph, s, &logits);
    lk_parameter_group  group = {.match = "*.bias", .lr_scale = 2, .weight_decay = 0};
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.clip = 1;
    optimizer.groups = &group;
    optimizer.groups_count = 1;
    config.loss = loss;
    config.outputs = &logits;
    config.outputs_count = 1;
    config.optimizer = &optimizer;
    if ((status = lk_plan_create(r.graph, &config, &r.plan)) < 0) goto done;
    if ((status = lk_store_create(r.plan, 1, &r.store)) < 0) goto done;
    if ((status = lk_program_create(r.plan, r.store, NULL, &r.program)) < 0) goto done;
    if ((status = lk_program_bind(r.program, "x", d->x)) < 0 || (status = lk_program_bind(r.program, "y", d->y)) < 0)
        goto done;
    status = lk_program_train(r.program, &(lk_step){.step = 1, .count = s->capacity, .rate = 1e-3});
done:
    CHECK(status >= 0 || *lk_context_error(r.context), "%s fails without a message", lk_status_name(status));
    lk_program_free(r.program);
    lk_store_free(r.store);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return status;
}

static void fail_each_allocation(const setting *s)
{
    data    d = make_data(s);
    int64_t n = 0, failures = 0;
    for (bool hit = true; hit && n < 100000; n++) {
        hit = false;
        for (int permanent = 0; permanent < 2; permanent++) {
            meter     m = {.left = n, .permanent = permanent};
            lk_status status = attempt(s, &m, &d);
            CHECK(status == LK_OK || status == LK_ENOMEM, "%s: allocation %lld: %s", s->model, (long long)n,
                  lk_status_name(status));
            CHECK(m.hit || status == LK_OK);
            CHECK(m.outstanding == 0, "%s: allocation %lld: %lld bytes are lost", s->model, (long long)n,
                  (long long)m.outstanding);
            hit = hit || m.hit;
            failures += status == LK_ENOMEM;
        }
    }
    CHECK(n > 50 && failures > n, "%lld allocations, %lld failures", (long long)n, (long long)failures);
    printf("     %s: each of %lld allocations failed once\n", s->model, (long long)n - 1);
    free(d.x);
    free(d.y);
}

static void a_failing_allocation_gives_enomem_and_loses_nothing(void)
{
    fail_each_allocation(&(setting){"mlp", 3, 0, false});
    fail_each_allocation(&(setting){"resnet20", 2, 8, true});
}

/* A plan of another capacity continues with the store of the first. */
static void a_store_can_be_used_by_a_second_plan(void)
{
    data                d, e;
    rig                 r = prepare(&settings[0], 1, &d), same = prepare(&settings[0], 1, &e);
    lk_graph           *graph = NULL;
    lk_plan            *plan = NULL;
    lk_program         *program = NULL;
    lk_tensor           logits;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.clip = 1;
    REQUIRE(lk_graph_create(r.context, LK_F32, &graph) == LK_OK);
    config.loss = record(graph, &(setting){"mlp", 7, 0, false}, &logits);
    config.optimizer = &optimizer;
    REQUIRE(lk_plan_create(graph, &config, &plan) == LK_OK && lk_program_create(plan, r.store, NULL, &program) == LK_OK,
            "%s", lk_context_error(r.context));
    for (int step = 1; step <= 3; step++) {
        train(&r, step, 32);
        train(&same, step, 32);
    }
    REQUIRE(lk_program_bind(program, "x", d.x) == LK_OK && lk_program_bind(program, "y", d.y) == LK_OK);
    for (int step = 4; step <= 6; step++) {
        REQUIRE(lk_program_train(program, &(lk_step){.step = step, .count = 7, .rate = 1e-3}) == LK_OK);
        train(&same, step, 7);
    }
    CHECK(lk_store_hash(r.store) == lk_store_hash(same.store));
    lk_program_free(program);
    lk_plan_free(plan);
    lk_graph_free(graph);
    finish(&r, &d);
    finish(&same, &e);
}

/* ---- user errors ---- */

/* A fresh graph with x (4*, 6), image (4*, 3, 8, 8), ids (4*) and a vector of 5; then `call`, which must fail on this
 * line. */
#define WRONG(call, expected)                                                                  \
    do {                                                                                    \
        rig       r = rig_open(LK_F32, 1);                                                  \
        lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 6})),               \
                  v = lk_parameter(r.graph, "v", 1, ((int64_t[]){5}));                      \
        lk_tensor image = lk_input(r.graph, "image", LK_F32, 4, ((int64_t[]){4, 3, 8, 8})); \
        lk_tensor ids = lk_input(r.graph, "ids", LK_I32, 1, ((int64_t[]){4}));              \
        (void)x, (void)v, (void)image, (void)ids;                                           \
        REQUIRE(lk_graph_status(r.graph) == LK_OK);                                         \
        (void)(call);                                                                       \
        check_wrong(&r, x, __LINE__, expected);                                                \
        rig_close(&r);                                                                      \
    } while (0)

static void check_wrong(rig *r, lk_tensor x, int line, const char *expected)
{
    char place[64], first[1024];
    snprintf(place, sizeof place, "test_program.c:%d: ", line);
    CHECK(lk_graph_status(r->graph) == LK_EINVAL, "line %d: %s", line, lk_status_name(lk_graph_status(r->graph)));
    snprintf(first, sizeof first, "%s", lk_graph_error(r->graph));
    CHECK(strstr(first, place) && strstr(first, expected), "line %d, \"%s\": \"%s\"", line, expected, first);
    /* Later calls, valid or not, do nothing and keep the first message. */
    CHECK(lk_relu(x).id < 0 && lk_softmax(x, 9).id < 0 && lk_linear(x, "fc", 3).id < 0 &&
          lk_model_mlp(x, (lk_model_options){0}).id < 0);
    CHECK(strcmp(lk_graph_error(r->graph), first) == 0);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = x;
    CHECK(lk_plan_create(r->graph, &config, &r->plan) == LK_EINVAL && !r->plan);
    CHECK(strstr(lk_context_error(r->context), first), "\"%s\"", lk_context_error(r->context));
}

static void shapes_that_do_not_fit_are_named_with_file_and_line(void)
{
    lk_tensor none = {0};
    WRONG(lk_add(x, v), "do not broadcast");
    WRONG(lk_mul(x, lk_parameter(r.graph, "w", 2, ((int64_t[]){4, 6}))), "batch axis");
    WRONG(lk_add(x, none), "missing");
    WRONG(lk_add(x, ids), "b is i32; expected a floating-point type");
    WRONG(lk_add(x, lk_mse(x, x)), "b is f64, but the operands before it are f32; use lk_cast");
    WRONG(lk_tanh(ids), "x is i32; expected a floating-point type");
    WRONG(lk_cast(x, LK_I32), "expected f32, f64 or bf16");
    WRONG(lk_matmul(x, x), "the inner axes differ");
    WRONG(lk_matmul(x, v), "two axes");
    WRONG(lk_f_linear(x, lk_parameter(r.graph, "w", 2, ((int64_t[]){3, 5})), none), "has 6 features");
    WRONG(lk_f_linear(x, lk_parameter(r.graph, "w", 2, ((int64_t[]){3, 6})), v), "bias");
    WRONG(lk_addmm(none, x, lk_parameter(r.graph, "w", 2, ((int64_t[]){5, 6}))), "has 6 features");
    WRONG(lk_addmm(v, x, lk_parameter(r.graph, "w", 2, ((int64_t[]){6, 3}))), "bias");
    WRONG(lk_conv2d(x, "conv", 8, 3), "expected (N, C, H, W)");
    WRONG(lk_conv2d(image, "conv", 8, 9), "does not fit into");
    WRONG(lk_conv2d(image, "conv", 8, 3, .groups = 2), "groups");
    WRONG(lk_f_conv2d(image, lk_parameter(r.graph, "w", 4, ((int64_t[]){2, 5, 3, 3})), none), "has 3 channels");
    WRONG(lk_max_pool2d(image, 9), "does not fit into");
    WRONG(lk_max_pool2d(image, 2, .padding = 2), "more than half");
    WRONG(lk_max_pool2d(image, 0), "invalid");
    WRONG(lk_max_pool2d(image, 2, .stride = -1), "invalid");
    WRONG(lk_global_avg_pool2d(x), "4 axes");
    WRONG(lk_softmax(x, 2), "no axis 2");
    WRONG(lk_softmax(x, -3), "no axis");
    WRONG(lk_sum(x, .axes = ((int[]){5}), .axes_count = 1), "axis 5 is out of range");
    WRONG(lk_reshape(x, 2, ((int64_t[]){5, 5})), "24 elements");
    WRONG(lk_reshape(x, 2, ((int64_t[]){6, 4})), "split the batch axis");
    WRONG(lk_reshape(x, 2, ((int64_t[]){-1, -1})), "size -1 of axis 1 is invalid");
    WRONG(lk_reshape(x, 7, ((int64_t[]){4, 1, 1, 1, 1, 1, 6})), "7 axes");
    WRONG(lk_transpose(x, 0, 2), "axis 0 or 2");
    WRONG(lk_permute(x, (int[]){1, 1}), "given exactly once");
    WRONG(lk_slice(x, 1, 4, 3), "no range [4, 7)");
    WRONG(lk_slice(x, 0, 0, 2), "cannot slice the batch axis");
    WRONG(lk_concat(((lk_tensor[]){x, v}), 2, 1), "differ in more than axis 1");
    WRONG(lk_concat(((lk_tensor[]){x, x}), 2, 0), "cannot concatenate along the batch axis");
    WRONG(lk_concat(((lk_tensor[]){x, x, x, x, x, x, x, x, x}), 9, 1), "1 to 8");
    WRONG(lk_f_layer_norm(x, v, none), "does not match");
    WRONG(lk_batch_norm(lk_reshape(x, 3, ((int64_t[]){4, 2, 3})), "bn"), "(N, C) or (N, C, H, W)");
    WRONG(lk_dropout(x, 1.5), "0 to 1");
    WRONG(lk_f_embedding(x, lk_parameter(r.graph, "w", 2, ((int64_t[]){3, 5}))), "expected i32");
#define TWO_EXPERTS lk_input(r.graph, "experts", LK_I32, 2, ((int64_t[]){4, 2}))
    WRONG(lk_topk(x, 7).values, "topk: k is 7; expected 1 to 6");
    WRONG(lk_topk(x, 0).index, "topk: k is 0");
    WRONG(lk_group_rows(x, 4, 0).order, "expected i32");
    WRONG(lk_group_rows(ids, 4, 0).order, "expected (rows, experts per row)");
    WRONG(lk_moe(x, "moe", .experts = 2, .k = 3).y, "3 experts per token out of 2");
    WRONG(lk_moe(x, "moe").y, "2 experts per token out of 0");
    WRONG(lk_moe(x, "moe", .experts = 64, .capacity = 0.5).y, "every token would be dropped");
    WRONG(lk_moe(x, "moe", .experts = 4, .capacity = -1).y, "capacity is -1");
    WRONG(lk_moe(v, "moe", .experts = 4).y, "expected (tokens, width)");
    WRONG(lk_grouped_linear(x, lk_parameter(r.graph, "w", 3, ((int64_t[]){4, 5, 3})), lk_group_rows(TWO_EXPERTS, 4, 0)),
          "grouped_linear: x (4*, 6) does not match weight");
    WRONG(lk_gather_rows(lk_parameter(r.graph, "w", 2, ((int64_t[]){3, 5})), lk_group_rows(TWO_EXPERTS, 4, 0), none),
          "gather_rows: order (8*) and place (4*, 2) do not match the rows of (3, 5)");
    WRONG(lk_combine_rows(x, lk_group_rows(TWO_EXPERTS, 4, 0), none), "combine_rows: order");
    lk_buffer_options unsaved = {.not_saved = true};
#define CACHE(name, rows, width) \
    lk_buffer_at(LK_HERE, r.graph, name, LK_F32, 3, ((int64_t[]){4, rows, width}), 0, unsaved)
#define SEQUENCE lk_reshape(x, 3, ((int64_t[]){4, 2, 3}))
#define ROWS lk_input(r.graph, "rows", LK_I32, 2, ((int64_t[]){4, 2}))
    WRONG(lk_cache_write(SEQUENCE, SEQUENCE, ROWS), "must be a buffer with not_saved");
    WRONG(lk_cache_write(lk_buffer(r.graph, "c", LK_F32, 3, ((int64_t[]){4, 9, 3}), 0), SEQUENCE, ROWS),
          "must be a buffer with not_saved");
    WRONG(lk_cache_write(CACHE("c", 9, 4), SEQUENCE, ROWS),
          "must be (samples, rows, width), with the same batch and width");
    WRONG(lk_cache_write(CACHE("c", 9, 3), x, ROWS), "must be (samples, rows, width)");
    WRONG(lk_cache_write(CACHE("c", 9, 3), SEQUENCE, ids), "rows (4*) do not match (samples, tokens) of x (4*, 2, 3)");
    WRONG(lk_cache_write(CACHE("c", 9, 3), SEQUENCE, SEQUENCE), "rows is f32; expected i32");
    WRONG(lk_cache_write(CACHE("c", 9, 3), lk_cast(SEQUENCE, LK_BF16), ROWS), "x is bf16, but the cache is f32");
    WRONG(lk_cache_write(CACHE("c", 9, 3), none, ROWS), "x is missing");
    WRONG(lk_cross_entropy(x, x), "labels");
    WRONG(lk_cross_entropy(x, ids, .label_smoothing = 1.0), "label_smoothing");
    WRONG(lk_cross_entropy_each(x, x), "cross_entropy_each: labels");
    WRONG(lk_cross_entropy_each(x, ids, .label_smoothing = 1.0), "label_smoothing");
    WRONG(lk_mse_each(x, v), "mse_each: x and target must have the same shape");
    WRONG(lk_mse(x, v), "differ");
    /* Options that a layer does not have. */
    WRONG(lk_linear(x, "fc", 10, .stride = 2), "lk_linear \"fc\" has no option stride");
    WRONG(lk_linear(x, "fc", 10, .epsilon = 1e-3), "lk_linear \"fc\" has no option epsilon");
    WRONG(lk_conv2d(image, "conv", 4, 3, .momentum = 0.2), "lk_conv2d \"conv\" has no option momentum");
    WRONG(lk_embedding(ids, "words", 10, 4, .no_bias = true), "lk_embedding \"words\" has no option no_bias");
    WRONG(lk_layer_norm(x, "norm", .momentum = 0.2), "lk_layer_norm \"norm\" has no option momentum");
    WRONG(lk_rms_norm(x, "norm", .no_bias = true), "lk_rms_norm \"norm\" has no option no_bias");
    WRONG(lk_group_norm(x, "norm", 2, .groups = 3), "lk_group_norm \"norm\" has no option groups");
    WRONG(lk_batch_norm(x, "norm", .std = 0.02), "lk_batch_norm \"norm\" has no option std");
    WRONG(lk_layer_norm(x, "norm", .weight = v), "lk_layer_norm \"norm\" has no option weight");
    WRONG(lk_max_pool2d(image, 2, .groups = 3), "max_pool2d has no option groups");
    WRONG(lk_avg_pool2d(image, 2, .groups = 3), "avg_pool2d has no option groups");
    WRONG(lk_f_layer_norm(x, none, none, .momentum = 0.2), "layer_norm has no option momentum");
    WRONG(lk_f_rms_norm(x, none, .momentum = 0.2), "rms_norm has no option momentum");
    WRONG(lk_f_group_norm(x, 2, none, none, .momentum = 0.2), "group_norm has no option momentum");
    WRONG(lk_sum(x, .axes = (int[]){0, 1}), "sum: axes and axes_count must be set together");
    WRONG(lk_mean(x, .axes_count = 1), "mean: axes and axes_count must be set together");
    WRONG(lk_l1(x, v), "l1: x (4*, 6) and target (5) differ");
    WRONG(lk_bce_with_logits(x, lk_stop_gradient(v)), "differ");
    WRONG(lk_bce_with_logits(x, x, .weight = lk_scale(lk_slice(x, 1, 0, 3), 2)), "does not match the first axes");
    WRONG(lk_bce_with_logits(x, lk_mul(x, lk_sum(v))), "lk_stop_gradient");
    WRONG(lk_bce_with_logits(x, none), "target is missing");
    WRONG(lk_pow(x, NAN), "pow: nan is not a finite number");
    WRONG(lk_leaky_relu(x, INFINITY), "leaky_relu: inf is not a finite number");
    WRONG(lk_clamp(x, NAN, 1), "must not be NaN");
    WRONG(lk_log(ids), "x is i32");
    WRONG(lk_where(ids, x, v), "do not broadcast");
    WRONG(lk_where(none, x, x), "missing");
    WRONG(lk_where(x, x, none), "b is missing");
    WRONG(lk_where(x, ids, x), "a is i32");
    WRONG(lk_max(x, 2), "max: x (4*, 6) has no axis 2");
    WRONG(lk_max(x, 0), "cannot reduce the batch axis");
    WRONG(lk_argmax(x, -2), "argmax: cannot reduce the batch axis");
    WRONG(lk_f_group_norm(x, 4, none, none), "cannot be divided into 4 groups");
    WRONG(lk_f_group_norm(x, 2, v, none), "does not match the 6 channels");
    WRONG(lk_f_group_norm(v, 1, none, none), "expected (N, C, …)");
    WRONG(lk_group_norm(image, "norm", 0), "into 0 groups");
    WRONG(lk_constant(r.graph, LK_BF16, 1, ((int64_t[]){3}), "abcdef"), "bf16");
    WRONG(lk_constant(r.graph, LK_U8, 1, ((int64_t[]){3}), NULL), "there is no data");
    WRONG(lk_constant(r.graph, LK_U8, 1, ((int64_t[]){0}), "a"), "size 0");
    WRONG(lk_add(x, lk_constant(r.graph, LK_F64, 1, ((int64_t[]){1}), &(double){1})), "b is f64");
    WRONG((lk_block_end(x), x), "without lk_block_begin");
    WRONG((lk_parameter(r.graph, "v", 1, ((int64_t[]){3}))), "already exists");
    WRONG(lk_parameter(r.graph, "w", 1, ((int64_t[]){0})), "size 0");
    WRONG(lk_input(r.graph, "x", LK_F32, 1, ((int64_t[]){3})), "input \"x\" already exists");
    WRONG(lk_input(r.graph, "z", LK_F64, 1, ((int64_t[]){3})), "f64");
    WRONG(lk_add(x, ((lk_tensor){r.graph, 1000})), "not a tensor of this graph");
}

/* A call on empty tensors alone has no graph that keeps its error: its result is empty and holds the line. */
#define EMPTY(call)                                                                            \
    do {                                                                                       \
        lk_tensor y = (call);                                                                  \
        CHECK(!y.graph && y.id == -__LINE__, "line %d: %p %d", __LINE__, (void *)y.graph, y.id); \
    } while (0)

static void every_call_on_empty_tensors_returns_one(void)
{
    const lk_tensor        e = {0}, both[] = {e, e};
    const int64_t          dims[] = {2, 3};
    const int              axes[] = {1, 0};
    const lk_model_options options = {0};
    CHECK(lk_tensor_rank(e) == 0 && lk_tensor_dim(e, 0) == 0 && lk_tensor_dim(e, -1) == 0);
    CHECK(lk_tensor_dtype(e) == LK_F32 && lk_graph_dtype(e.graph) == LK_F32 && !lk_graph_context(e.graph));
    CHECK(lk_graph_status(e.graph) == LK_EINVAL && *lk_graph_error(e.graph));
    lk_plan       *plan;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    CHECK(lk_plan_create(e.graph, &config, &plan) == LK_EINVAL && !plan);
    EMPTY(lk_input(e.graph, "x", LK_F32, 2, dims));
    EMPTY(lk_parameter(e.graph, "w", 2, dims));
    EMPTY(lk_buffer(e.graph, "b", LK_F32, 2, dims, 0));
    lk_tie(e, "second");
    lk_block_begin(e, "block");
    lk_block_end(e);
    EMPTY(lk_add(e, e));
    EMPTY(lk_sub(e, e));
    EMPTY(lk_mul(e, e));
    EMPTY(lk_div(e, e));
    EMPTY(lk_scale(e, 2));
    EMPTY(lk_relu(e));
    EMPTY(lk_silu(e));
    EMPTY(lk_sigmoid(e));
    EMPTY(lk_tanh(e));
    EMPTY(lk_gelu(e));
    EMPTY(lk_exp(e));
    EMPTY(lk_log(e));
    EMPTY(lk_sqrt(e));
    EMPTY(lk_pow(e, 2));
    EMPTY(lk_clamp(e, 0, 1));
    EMPTY(lk_leaky_relu(e, 0.1));
    EMPTY(lk_where(e, e, e));
    EMPTY(lk_stop_gradient(e));
    EMPTY(lk_max(e, 0));
    EMPTY(lk_argmax(e, 0));
    EMPTY(lk_constant(e.graph, LK_F32, 2, dims, dims));
    EMPTY(lk_f_group_norm(e, 2, e, e));
    EMPTY(lk_group_norm(e, "norm", 2));
    EMPTY(lk_bce_with_logits(e, e));
    EMPTY(lk_l1(e, e));
    EMPTY(lk_dropout(e, 0.5));
    EMPTY(lk_softmax(e, -1));
    EMPTY(lk_log_softmax(e, 0));
    EMPTY(lk_sum(e));
    EMPTY(lk_mean(e, .axes = axes, .axes_count = 2));
    EMPTY(lk_reshape(e, 2, dims));
    EMPTY(lk_flatten(e));
    EMPTY(lk_transpose(e, 0, 1));
    EMPTY(lk_permute(e, axes));
    EMPTY(lk_slice(e, 0, 0, 1));
    EMPTY(lk_concat(both, 2, 0));
    EMPTY(lk_concat(both, 0, 0));
    EMPTY(lk_matmul(e, e));
    EMPTY(lk_f_linear(e, e, e));
    EMPTY(lk_addmm(e, e, e));
    EMPTY(lk_f_conv2d(e, e, e));
    EMPTY(lk_max_pool2d(e, 2));
    EMPTY(lk_avg_pool2d(e, 2));
    EMPTY(lk_global_avg_pool2d(e));
    EMPTY(lk_f_layer_norm(e, e, e));
    EMPTY(lk_f_rms_norm(e, e));
    EMPTY(lk_f_batch_norm(e, e, e, e, e, e));
    EMPTY(lk_f_embedding(e, e));
    EMPTY(lk_topk(e, 2).values);
    EMPTY(lk_group_rows(e, 2, 0).order);
    EMPTY(lk_moe(e, "moe", .experts = 4).y);
    EMPTY(lk_cache_write(e, e, e));
    EMPTY(lk_cross_entropy(e, e));
    EMPTY(lk_mse(e, e));
    EMPTY(lk_mse_each(e, e));
    EMPTY(lk_cross_entropy_each(e, e));
    EMPTY(lk_conv2d(e, "conv", 3, 3));
    EMPTY(lk_linear(e, "fc", 3));
    EMPTY(lk_embedding(e, "words", 3, 3));
    EMPTY(lk_layer_norm(e, "norm"));
    EMPTY(lk_rms_norm(e, "norm"));
    EMPTY(lk_batch_norm(e, "norm"));
    for (const char *const *name = lk_model_names(); *name; name++)
        CHECK(!lk_model_find(*name)(e, options).graph, "%s", *name);
}

static void an_empty_tensor_among_others_is_named(void)
{
    const lk_tensor e = {0};
    WRONG(lk_add(e, x), "missing");
    WRONG(lk_matmul(x, e), "missing");
    WRONG(lk_mse(x, e), "missing");
    WRONG(lk_concat(((lk_tensor[]){x, e}), 2, 0), "argument 2 is missing");
    WRONG(lk_concat(((lk_tensor[]){e, x}), 2, 0), "first argument is missing");
    WRONG(lk_f_linear(x, e, e), "linear: the weight is missing");
    WRONG(lk_addmm(e, x, e), "linear: the weight is missing");
    WRONG(lk_f_conv2d(image, e, e), "conv2d: the weight is missing");
    WRONG(lk_f_linear(e, v, e), "missing");
    WRONG(lk_f_layer_norm(e, v, e), "missing");
    WRONG(lk_f_rms_norm(e, v), "missing");
    WRONG(lk_f_batch_norm(image, e, e, e, e, e), "running_mean");
    WRONG(lk_f_embedding(ids, e), "embedding: ids and a table are required");
    WRONG(lk_cross_entropy(e, ids), "cross_entropy: logits (…, classes) and labels are required");
    WRONG(lk_cross_entropy(x, e), "cross_entropy: logits (…, classes) and labels are required");
    WRONG(lk_relu(((lk_tensor){x.graph, 99})), "argument 1 is not a tensor of this graph");
    WRONG(lk_tie(((lk_tensor){x.graph, 99}), "second"), "needs a parameter");

    rig       r = rig_open(LK_F32, 1);
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){2, 3})), lost = {0};
    CHECK(lk_tensor_rank((lk_tensor){r.graph, 99}) == 0 && lk_tensor_dim((lk_tensor){r.graph, -1}, 0) == 0);
    lost = lk_relu(lost);
    int            line = __LINE__ - 1;
    char           expected[64];
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_sum(lk_linear(lost, "fc", 3));
    snprintf(expected, sizeof expected, "empty tensor, first passed to the call on line %d", line);
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL && strstr(lk_context_error(r.context), expected), "%s",
          lk_context_error(r.context));
    config.loss = x;
    config.outputs = &lost;
    config.outputs_count = 1;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL &&
          strstr(lk_context_error(r.context), "output 0 is an empty tensor"));
    rig_close(&r);
}

static void a_program_rejects_invalid_calls(void)
{
    data           d;
    rig            r = prepare(&settings[0], 1, &d), evaluation = rig_open(LK_F32, 1);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      logits;
    config.loss = record(evaluation.graph, &settings[0], &logits);
    rig_plan(&evaluation, &config, 1);
    lk_program *p = evaluation.program, *other = NULL;
    CHECK(lk_program_step(p, &(lk_step){.step = 1, .count = 33}) == LK_EINVAL &&
          strstr(lk_context_error(evaluation.context), "32"));
    CHECK(lk_program_step(p, &(lk_step){.step = 1, .count = -1}) == LK_EINVAL);
    CHECK(lk_program_step(p, &(lk_step){.step = 0, .count = 1}) == LK_EINVAL);
    CHECK(lk_program_bind(p, "z", d.x) == LK_ENOENT && strstr(lk_context_error(evaluation.context), "\"z\""));
    CHECK(lk_program_step(p, &(lk_step){.step = 1, .count = 32}) == LK_OK);
    CHECK(lk_program_run(p, LK_EVALUATE) == LK_EINVAL && strstr(lk_context_error(evaluation.context), "not bound"));
    REQUIRE(lk_program_bind(p, "x", d.x) == LK_OK && lk_program_bind(p, "y", d.y) == LK_OK);
    CHECK(lk_program_run(p, LK_EVALUATE) == LK_OK);
    CHECK(lk_program_run(p, LK_FORWARD) == LK_EINVAL && strstr(lk_context_error(evaluation.context), "only evaluates"));
    CHECK(lk_program_run(p, (lk_section)17) == LK_EINVAL);
    CHECK(!lk_program_gradient(p, "fc1.weight") && !lk_program_output(p, 0));
    CHECK(lk_program_create(r.plan, evaluation.store, NULL, &other) == LK_EMISMATCH &&
          !other); /* it has no optimizer state */
    data c;
    rig  cnn = prepare(&settings[1], 1, &c);
    CHECK(lk_program_create(r.plan, cnn.store, NULL, &other) == LK_EMISMATCH && !other);
    CHECK(strstr(lk_context_error(r.context), "states"), "%s", lk_context_error(r.context));
    finish(&cnn, &c);
    CHECK(lk_plan_memory(evaluation.plan, LK_MEMORY_GRADIENTS) == 0 &&
          lk_plan_memory(evaluation.plan, LK_MEMORY_OPTIMIZER) == 0);
    rig_close(&evaluation);
    finish(&r, &d);
}

static void a_plan_rejects_settings_out_of_range(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_tensor           logits, loss = record(r.graph, &settings[0], &logits);
    lk_parameter_group  nameless = LK_PARAMETER_GROUP_INIT;
    lk_optimizer_config bad[9], good = LK_OPTIMIZER_CONFIG_INIT;
    for (int i = 0; i < 9; i++) bad[i] = good;
    bad[0].lr = -1;
    bad[1].beta1 = 1;
    bad[2].beta2 = NAN;
    bad[3].clip = -1;
    bad[4].nesterov = true;
    bad[5].weight_decay = -0.1;
    bad[6].momentum = NAN;
    bad[7].size = 1;
    bad[8].groups = &nameless;
    bad[8].groups_count = 1;
    for (int i = 0; i < 9; i++) {
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        config.loss = loss;
        config.optimizer = &bad[i];
        CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL && !r.plan && *lk_context_error(r.context), "%d",
              i);
    }
    CHECK(lk_plan_create(r.graph, NULL, &r.plan) == LK_OK && r.plan, "%s", lk_context_error(r.context)); /* defaults */
    lk_plan_free(r.plan);
    r.plan = NULL;
    CHECK(lk_plan_create(r.graph, NULL, NULL) == LK_EINVAL && strstr(lk_context_error(r.context), "is NULL"));
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = logits;
    config.optimizer = &good;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL &&
          strstr(lk_context_error(r.context), "single number"));
    lk_block_begin(logits, "open");
    config.loss = loss;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL && strstr(lk_context_error(r.context), "\"open\""));
    rig_close(&r);
}

int main(void)
{
    RUN(a_plan_states_the_memory_to_the_byte);
    RUN(a_step_allocates_nothing);
    RUN(the_same_seed_gives_the_same_bits_with_1_2_and_3_threads);
    RUN(a_failing_allocation_gives_enomem_and_loses_nothing);
    RUN(a_store_can_be_used_by_a_second_plan);
    RUN(shapes_that_do_not_fit_are_named_with_file_and_line);
    RUN(every_call_on_empty_tensors_returns_one);
    RUN(an_empty_tensor_among_others_is_named);
    RUN(a_program_rejects_invalid_calls);
    RUN(a_plan_rejects_settings_out_of_range);
    return check_result();
}
