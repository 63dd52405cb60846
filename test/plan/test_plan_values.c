/* test_plan_values.c - values in plans: constants are in the store, are compared by ranks and never saved; an output
 * that nothing reads is not computed; nothing is trained through a stopped gradient; gradients computed in forward are
 * used like any other.
 *
 * ctest: timeout 120, ranks 2 */
#include "plan/cost.h"
#include "plan/plan.h"
#include "support.h"

#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <unistd.h>

static const int64_t five = 5;

typedef struct text {
    char   all[16384];
    size_t used;
} text;

static void append(void *user, const char *piece, size_t bytes)
{
    text *t = user;
    if (t->used + bytes >= sizeof t->all) bytes = sizeof t->all - 1 - t->used;
    memcpy(t->all + t->used, piece, bytes);
    t->used += bytes;
}

static lk_plan_config configured(lk_tensor loss, const lk_optimizer_config *optimizer)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = loss;
    config.optimizer = optimizer;
    return config;
}

/* ---- recorded data ---- */

/* sum of (w · floats + the embedding of integers) where bytes are not 0 */
static lk_tensor with_constants(lk_graph *g, float first)
{
    float     floats[] = {first, -2, 3, 0, 1.25F};
    int32_t   integers[] = {2, 0, 1, 1, 2};
    uint8_t   bytes[] = {1, 0, 255, 1, 0};
    lk_tensor w = lk_parameter(g, "w", 1, &five, .init = LK_INIT_CONSTANT, .a = 2);
    lk_tensor table = lk_parameter(g, "table", 2, ((int64_t[]){3, 1}), .init = LK_INIT_CONSTANT, .a = 10);
    lk_tensor y = lk_mul(w, lk_constant(g, LK_F32, 1, &five, floats));
    lk_tensor z = lk_flatten(lk_f_embedding(lk_constant(g, LK_I32, 1, &five, integers), table));
    z = lk_where(lk_constant(g, LK_U8, 1, &five, bytes), lk_reshape(z, 1, &five), y);
    memset(floats, 0xFF, sizeof floats); /* the graph has a copy */
    memset(integers, 0xFF, sizeof integers);
    memset(bytes, 0xFF, sizeof bytes);
    return lk_sum(z); /* 10 + (-2) 2 + 10 + 10 + 1.25 · 2 */
}

static void constants_are_stored_as_planned_and_outlive_their_graph(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = configured(with_constants(r.graph, 0.5F), &sgd);
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    lk_graph_free(r.graph);
    r.graph = NULL;
    REQUIRE(lk_store_create(r.plan, 1, &r.store) == LK_OK &&
            lk_program_create(r.plan, r.store, NULL, &r.program) == LK_OK);
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_BUFFERS) == 3 * 64, "%zu", lk_plan_memory(r.plan, LK_MEMORY_BUFFERS));
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
        CHECK(lk_context_memory(r.context, kind) == lk_plan_memory(r.plan, kind), "%s", lk_memory_name(kind));
    for (int section = 0; section < 2; section++) {
        REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1}) == LK_OK &&
                lk_program_run(r.program, section ? LK_EVALUATE : LK_FORWARD) == LK_OK);
        CHECK(rig_metrics(&r).sum == 28.5, "%g", rig_metrics(&r).sum);
    }
    rig_close(&r);
}

static void constants_are_never_saved(void)
{
    char           file[] = "/tmp/lk_constants_XXXXXX";
    rig            r = rig_open(LK_F32, 1);
    lk_plan_config config = configured(with_constants(r.graph, 0.5F), NULL);
    int            fd = mkstemp(file);
    REQUIRE(fd >= 0);
    close(fd);
    rig_plan(&r, &config, 1);
    CHECK(lk_store_count(r.store) == 2);
    REQUIRE(lk_weights_save(r.store, file) == LK_OK, "%s", lk_context_error(r.context));
    lk__safetensors *saved = NULL;
    REQUIRE(lk__safetensors_open(r.context, file, &saved) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(lk__safetensors_count(saved) == 2 && lk__safetensors_find(saved, "w") &&
          lk__safetensors_find(saved, "table"));
    lk__safetensors_close(saved);
    unlink(file);
    rig_close(&r);
}

/* The sum of with_constants on a store of other constants, or none, is that of a store of its own; and the first
 * program's stays. */
static void a_store_serves_programs_with_other_constants(void)
{
    rig            r = rig_open(LK_F32, 1);
    lk_plan_config config = configured(with_constants(r.graph, 0.5F), NULL);
    rig_plan(&r, &config, 1);
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1}) == LK_OK &&
            lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    double before = rig_metrics(&r).sum;
    for (int how = 0; how < 4; how++) { /* the same; another number; one more; none */
        static const float added[] = {3}, none = 10;
        rig                other = rig_open_in(r.context, LK_F32);
        lk_tensor          sum = {0};
        if (how < 3) {
            sum = with_constants(other.graph, how == 1 ? 0.25F : 0.5F);
            if (how == 2) sum = lk_add(sum, lk_constant(other.graph, LK_F32, 0, NULL, added));
        } else {
            sum = lk_sum(lk_parameter(other.graph, "w", 1, &five, .init = LK_INIT_CONSTANT, .a = 2));
            lk_parameter(other.graph, "table", 2, ((int64_t[]){3, 1}), .init = LK_INIT_CONSTANT, .a = 10);
        }
        double wanted = how == 3 ? (double)none : how == 2 ? before + (double)added[0] : before;
        config = configured(sum, NULL);
        double sums[2];
        for (int own = 0; own < 2; own++) {
            lk_store *store = NULL;
            REQUIRE(lk_plan_create(other.graph, &config, &other.plan) == LK_OK, "%s", lk_context_error(r.context));
            CHECK((lk_plan_fingerprint(other.plan) == lk_plan_fingerprint(r.plan)) == (how == 0), "%d", how);
            REQUIRE(!own || lk_store_create(other.plan, 1, &store) == LK_OK);
            lk_status status = lk_program_create(other.plan, own ? store : r.store, NULL, &other.program);
            REQUIRE(status == LK_OK, "%d: %s", how, lk_context_error(r.context));
            REQUIRE(lk_program_step(other.program, &(lk_step){.step = 1}) == LK_OK &&
                    lk_program_run(other.program, LK_EVALUATE) == LK_OK);
            sums[own] = rig_metrics(&other).sum;
            lk_program_free(other.program);
            lk_store_free(store);
            lk_plan_free(other.plan);
            other.program = NULL;
            other.plan = NULL;
        }
        CHECK(sums[0] == wanted && sums[1] == wanted, "%d: %g, %g, not %g", how, sums[0], sums[1], wanted);
        rig_close(&other);
    }
    CHECK(lk_program_run(r.program, LK_EVALUATE) == LK_OK && rig_metrics(&r).sum == before);
    rig_close(&r);
}

static int rank_with_other_data(int rank, void *user)
{
    lk_comm            *comm = NULL;
    lk_comm_config      joining = LK_COMM_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    rig                 r = rig_open(LK_F32, 1);
    bool                differs = *(const bool *)user;
    lk_plan_config      config = configured(with_constants(r.graph, rank && differs ? 0.25F : 0.5F), &sgd);
    check_failures = 0; /* failures of the parent do not count here */
    joining.join_ms = 60000;
    config.parallel = (lk_parallel){.world = 2, .rank = rank};
    REQUIRE(lk_comm_create(r.context, &joining, &comm) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK && lk_store_create(r.plan, 1, &r.store) == LK_OK);
    lk_status status = lk_program_create(r.plan, r.store, comm, &r.program);
    CHECK(status == (differs ? LK_EMISMATCH : LK_OK), "%s", lk_context_error(r.context));
    if (differs)
        CHECK(strstr(lk_context_error(r.context), ": 0.5, -2, 3, 0, …") &&
                  strstr(lk_context_error(r.context), ": 0.25, -2, 3, 0, …") &&
                  strstr(lk_context_error(r.context), "rank 1: constant0 f32 (5)"),
              "%s", lk_context_error(r.context));
    lk_program_free(r.program);
    lk_store_free(r.store);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_comm_free(comm);
    lk_context_free(r.context);
    return check_result();
}

static void ranks_compare_constants_and_report_the_line(void)
{
    for (int differs = 0; differs < 2; differs++) {
        lk_spawn_result result;
        CHECK(lk_spawn(2, rank_with_other_data, &(bool){differs}, &result) == LK_OK, "%s", result.text);
    }
}

/* ---- outputs that are made only if they are read ---- */

static void a_loss_computes_its_gradient_only_in_training(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    int64_t             dims[] = {1000, 8}; /* large enough to show in the plan's memory */
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 2, dims), target = lk_input(r.graph, "t", LK_F32, 2, dims);
    lk_tensor           logits = lk_linear(x, "fc", 8);
    lk_plan_config      config = configured(lk_bce_with_logits(logits, target), &sgd);
    static text         listing;
    rig_plan(&r, &config, 1);
    lk_plan_print(r.plan, append, &listing);
    char *forward = strstr(listing.all, "bce_with_logits("), *evaluate = strstr(listing.all, "evaluate");
    REQUIRE(forward && evaluate && forward < evaluate, "%s", listing.all);
    char *again = strstr(evaluate, "bce_with_logits(");
    REQUIRE(again, "%s", listing.all);
    int outputs[2] = {1, 1}; /* "%5, %6, %7 = bce…": one more than there are commas */
    for (int i = 0; i < 2; i++)
        for (char *c = i ? again : forward; *c != '\n'; c--) outputs[i] += *c == ',';
    CHECK(outputs[0] == 3 && outputs[1] == 2, "%d and %d outputs: %s", outputs[0], outputs[1], listing.all);
    CHECK(!strstr(listing.all, "scale_by"), "the gradient is used as it is: %s", listing.all);
    lk_plan *alone = NULL;
    config.optimizer = NULL;
    REQUIRE(lk_plan_create(r.graph, &config, &alone) == LK_OK);
    size_t held = lk_plan_memory(alone, LK_MEMORY_ACTIVATIONS);
    CHECK(held >= 32000 && held < 33000, "%zu bytes: logits alone", held);
    lk_plan_free(alone);
    rig_close(&r);
}

static void softmax(const double *x, double *y)
{
    double total = 0;
    for (int i = 0; i < 5; i++) total += exp(x[i]);
    for (int i = 0; i < 5; i++) y[i] = exp(x[i]) / total;
}

/* With parameters as logits, the gradient is in the region where micro-batches are added, whether forward computes it
 * (entropy 0) or backward does, from a result of forward (entropy 1: from the probabilities, in place otherwise). */
static void gradient_of_logits_over_micro_batches(bool entropy)
{
    static const double  target[] = {0, 1, 0, 0, 0};
    static const int32_t label = 1;
    rig                  r = rig_open(LK_F64, 1);
    lk_optimizer_config  sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor            w = lk_parameter(r.graph, "w", 2, ((int64_t[]){1, 5}), .init = LK_INIT_UNIFORM, .a = 2);
    lk_tensor            t = lk_constant(r.graph, LK_F64, 2, ((int64_t[]){1, 5}), target);
    lk_tensor            one = lk_constant(r.graph, LK_I32, 1, ((int64_t[]){1}), &label);
    lk_plan_config       config = configured(entropy ? lk_cross_entropy(w, one) : lk_bce_with_logits(w, t), &sgd);
    config.parallel.micro_batches = 3;
    rig_plan(&r, &config, 1);
    for (int step = 1; step <= 2; step++) {
        for (int i = 0; i < 3; i++) {
            lk_program_no_sync(r.program, i < 2);
            REQUIRE(lk_program_step(r.program, &(lk_step){.step = step, .rate = 0.1}) == LK_OK &&
                    lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
        }
        REQUIRE(lk_program_run(r.program, LK_SYNC) == LK_OK);
        const double *gradient = gradient_copy(r.program, r.store, "w"), *x = state_copy(r.store, "w");
        double        p[5];
        softmax(x, p);
        for (int i = 0; i < 5; i++) {
            double one_batch = (entropy ? p[i] : 1 / (1 + exp(-x[i]))) - target[i];
            CHECK(fabs(gradient[i] - 3 * one_batch) < 1e-14, "step %d, %d: %g is not 3 times %g", step, i, gradient[i],
                  one_batch);
        }
        REQUIRE(lk_program_run(r.program, LK_UPDATE) == LK_OK);
    }
    rig_close(&r);
}

static void gradients_computed_in_forward_accumulate_over_micro_batches(void)
{
    gradient_of_logits_over_micro_batches(false);
    gradient_of_logits_over_micro_batches(true);
}

/* ---- no gradient ---- */

static lk_status plan_of(rig *r, lk_tensor loss, const char *frozen)
{
    lk_parameter_group  group = {.match = frozen, .frozen = true};
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    sgd.groups = &group;
    sgd.groups_count = frozen ? 1 : 0;
    lk_plan_config config = configured(loss, &sgd);
    return lk_plan_create(r->graph, &config, &r->plan);
}

/* Parameters behind a stopped gradient, a condition or an index are not trained through it, whether recorded or frozen
 * so. */
static void nothing_is_trained_through_operands_without_gradient(void)
{
    for (int how = 0; how < 6; how++) {
        rig       r = rig_open(LK_F32, 1);
        lk_tensor a = lk_parameter(r.graph, "a", 1, &five), b = lk_parameter(r.graph, "b", 1, &five);
        lk_tensor behind = how % 3 == 0   ? lk_stop_gradient(a)
                           : how % 3 == 1 ? lk_where(a, lk_scale(lk_stop_gradient(b), 2), lk_stop_gradient(b))
                                          : lk_f_embedding(lk_argmax(a, 0, .keepdim = true),
                                                           lk_stop_gradient(lk_reshape(b, 2, ((int64_t[]){5, 1}))));
        lk_tensor loss = lk_sum(how < 3 ? behind : lk_mul(behind, lk_sum(b)));
        CHECK(plan_of(&r, loss, NULL) == (how < 3 ? LK_EINVAL : LK_OK), "%d: %s", how, lk_context_error(r.context));
        lk_plan_free(r.plan);
        r.plan = NULL;
        CHECK(plan_of(&r, loss, "b") == LK_EINVAL && strstr(lk_context_error(r.context), "no trainable parameter"),
              "%d: %s", how, lk_context_error(r.context));
        rig_close(&r);
    }
}

/* Losses are f64 in every graph, and can be scaled and added: each by its own mean. */
static void losses_add_up_in_f32(void)
{
    static const float  target[] = {0, 1, 0.25F, 0.5F, 1};
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor           w = lk_parameter(r.graph, "w", 1, &five, .init = LK_INIT_UNIFORM, .a = 2);
    lk_tensor           t = lk_constant(r.graph, LK_F32, 1, &five, target);
    lk_tensor           both = lk_add(lk_scale(lk_mse(w, t), 0.5), lk_l1(w, t));
    lk_plan_config      config = configured(lk_add(both, lk_scale(lk_bce_with_logits(w, t), -3)), &sgd);
    rig_plan(&r, &config, 1);
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1}) == LK_OK &&
            lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
    const float *gradient = gradient_copy(r.program, r.store, "w"), *x = state_copy(r.store, "w");
    for (int i = 0; i < 5; i++) {
        double d = (double)x[i] - (double)target[i];
        double want = (d + (d > 0) - (d < 0) - 3 * (1 / (1 + exp(-(double)x[i])) - (double)target[i])) / 5;
        CHECK(fabs((double)gradient[i] - want) < 1e-6, "%d: %g, not %g", i, (double)gradient[i], want);
    }
    rig_close(&r);
}

/* ---- leaves ---- */

enum { LEAVES = 4, SAMPLES = 11 };

/* The weights' bits after three steps on the same samples, split into leaves that run one by one or as one batch. */
static uint64_t trained_in_leaves(bool one_by_one)
{
    static const uint8_t parts[] = {1, 0, 0, 1, 1, 0};
    static float         x[SAMPLES * 6], target[SAMPLES * 3], weight[SAMPLES];
    rig                  r = rig_open(LK_F32, 2);
    lk_optimizer_config  adam = LK_OPTIMIZER_CONFIG_INIT;
    int64_t              capacity = SAMPLES + 1;
    lk_tensor            in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){capacity, 6}));
    lk_tensor            t = lk_input(r.graph, "t", LK_F32, 2, ((int64_t[]){capacity, 3}));
    lk_tensor            w = lk_input(r.graph, "w", LK_F32, 1, &capacity);
    lk_tensor            part = lk_constant(r.graph, LK_U8, 1, &(int64_t){6}, parts);
    lk_tensor            h = lk_where(part, lk_leaky_relu(lk_linear(in, "a", 6), 0.1), in);
    h = lk_group_norm(h, "norm", 2);
    h = lk_add(h, lk_mul(lk_max(h, 1, .keepdim = true), lk_embedding(lk_argmax(h, 1), "table", 6, 6)));
    lk_plan_config config = configured(lk_bce_with_logits(lk_linear(h, "b", 3), t, .weight = w), &adam);
    config.parallel = (lk_parallel){.leaves = LEAVES};
    REQUIRE(lk__plan_create(r.graph, &config, one_by_one, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(r.plan->batch_leaves == !one_by_one);
    rig_start(&r, 1);
    for (int i = 0; i < SAMPLES * 6; i++) x[i] = (float)(2 * number(1, (uint64_t)i) - 1);
    for (int i = 0; i < SAMPLES * 3; i++) target[i] = (float)number(2, (uint64_t)i);
    for (int i = 0; i < SAMPLES; i++) weight[i] = (float)number(3, (uint64_t)i);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "t", target) == LK_OK &&
            lk_program_bind(r.program, "w", weight) == LK_OK);
    for (int step = 1; step <= 3; step++)
        REQUIRE(lk_program_train(r.program,
                                 &(lk_step){.step = step, .count = SAMPLES, .total = SAMPLES, .rate = 1e-2}) == LK_OK,
                "%s", lk_context_error(r.context));
    CHECK(isfinite(rig_metrics(&r).loss) && rig_metrics(&r).loss > 0);
    uint64_t hash = lk_store_hash(r.store);
    rig_close(&r);
    return hash;
}

/* A plan for two ranks with five leaves of a batch of up to 13 samples: at most three leaves of up to three samples. */
static void plan_of_leaves(rig *r, bool batch_norm, int64_t capacity, const lk_parallel *parallel, lk_plan **plan)
{
    lk_graph *graph;
    REQUIRE(lk_graph_create(r->context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){capacity, 6}));
    lk_tensor t = lk_input(graph, "t", LK_F32, 2, ((int64_t[]){capacity, 3}));
    lk_tensor h = lk_reshape(lk_linear(x, "a", 6), 2, ((int64_t[]){2 * capacity, 3}));
    if (batch_norm) h = lk_batch_norm(h, "norm");
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config config = configured(lk_mse(lk_linear(lk_reshape(h, 2, ((int64_t[]){-1, 6})), "b", 3), t), &adam);
    config.parallel = *parallel;
    REQUIRE(lk_plan_create(graph, &config, plan) == LK_OK, "%s", lk_context_error(r->context));
    lk_graph_free(graph);
}

static void keep_text(void *user, const char *text, size_t bytes)
{
    char  *all = user;
    size_t used = strlen(all);
    if (used + bytes < 4096) memcpy(all + used, text, bytes), all[used + bytes] = 0;
}

static void the_plan_decides_whether_leaves_run_as_one_batch(void)
{
    lk_parallel leaves = {.world = 2, .rank = 1, .leaves = 5}, alone = {.world = 2, .rank = 1};
    int64_t     capacity = lk_parallel_capacity(&leaves, 13);
    rig         r = rig_open(LK_F32, 1);
    lk_plan    *batched, *apart, *leaf;
    char        texts[2][4096] = {"", ""};
    CHECK(capacity == 9 && lk_parallel_capacity(&(lk_parallel){.leaves = 5}, 13) == 15);
    CHECK(lk_parallel_capacity(&(lk_parallel){0}, 13) == 13 && lk_parallel_capacity(&alone, 13) == 7 &&
          lk_parallel_capacity(&(lk_parallel){.world = 2, .micro_batches = 3}, 13) == 3);
    plan_of_leaves(&r, false, capacity, &leaves, &batched);
    plan_of_leaves(&r, true, capacity, &leaves, &apart);
    plan_of_leaves(&r, true, 3, &alone, &leaf);
    CHECK(batched->batch_leaves && lk_plan_capacity(batched) == 9);
    CHECK(!apart->batch_leaves && lk_plan_capacity(apart) == 3, "capacity %lld", (long long)lk_plan_capacity(apart));
    /* A leaf needs no more memory than a batch of its size. */
    CHECK(lk_plan_memory(apart, LK_MEMORY_ACTIVATIONS) == lk_plan_memory(leaf, LK_MEMORY_ACTIVATIONS));
    /* The first two of this rank's leaves are added before the third is there. */
    CHECK(lk_plan_memory(apart, LK_MEMORY_GRADIENTS) == 2 * lk_plan_memory(leaf, LK_MEMORY_GRADIENTS));
    lk_rates rates = {.flops = 1e9, .memory = 1e9, .link = 1e9, .latency = 1e-6};
    lk_plan_step(batched, &rates, keep_text, texts[0]);
    lk_plan_step(apart, &rates, keep_text, texts[1]);
    CHECK(strstr(texts[0], "3 of 5 leaves, as one batch\n"), "%s", texts[0]);
    CHECK(strstr(texts[1], "3 of 5 leaves, one after the other: batch_norm at "), "%s", texts[1]);
    lk_plan_free(batched);
    lk_plan_free(apart);
    lk_plan_free(leaf);
    rig_close(&r);
}

static void leaves_as_one_batch_give_the_same_bits(void) { CHECK(trained_in_leaves(false) == trained_in_leaves(true)); }

/* Every micro-batch but the first adds its gradients to the sum: two sets are read, and one is written. */
static void the_estimate_counts_sums_of_micro_batches(void)
{
    rig         r = rig_open(LK_F32, 1);
    lk_parallel one = {.micro_batches = 1}, four = {.micro_batches = 4};
    lk_plan    *alone, *parts;
    plan_of_leaves(&r, false, 3, &one, &alone);
    plan_of_leaves(&r, false, 3, &four, &parts);
    lk_rates rates = {.flops = 1e30, .memory = 1e9, .link = 1e9};
    double   once = lk_plan_step(alone, &rates, NULL, NULL), more = lk_plan_step(parts, &rates, NULL, NULL);
    double   update = lk__cost_section(alone, &rates, alone->train.end[LK_SYNC], alone->train.end[LK_UPDATE]);
    double adds = 3 * 3 * (double)alone->gradient_bytes / rates.memory, expected = 4 * (once - update) + update + adds;
    CHECK(fabs(more - expected) <= 1e-9 * expected, "%g s, not %g", more, expected);
    lk_plan_free(alone);
    lk_plan_free(parts);
    rig_close(&r);
}

int main(void)
{
    RUN(ranks_compare_constants_and_report_the_line); /* first: after a context on a GPU no rank can be forked */
    RUN(constants_are_stored_as_planned_and_outlive_their_graph);
    RUN(constants_are_never_saved);
    RUN(a_store_serves_programs_with_other_constants);
    RUN(a_loss_computes_its_gradient_only_in_training);
    RUN(gradients_computed_in_forward_accumulate_over_micro_batches);
    RUN(nothing_is_trained_through_operands_without_gradient);
    RUN(losses_add_up_in_f32);
    RUN(leaves_as_one_batch_give_the_same_bits);
    RUN(the_plan_decides_whether_leaves_run_as_one_batch);
    RUN(the_estimate_counts_sums_of_micro_batches);
    return check_result();
}
