/* test_losses_refused.c - what is computed of losses and cannot be divided by their weights is refused, with its line:
 * functions other than sums, weights that the model computes, and micro-batches whose weights are not known. */
#include "check.h"

#include <lockstep.h>
#include <math.h>

static lk_context *make_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    return context;
}

static void sums_that_cannot_be_taken_apart_are_refused(void)
{
    lk_context         *context = make_context();
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    for (int i = 0; i < 4; i++) {
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        lk_graph      *g;
        lk_plan       *plan;
        REQUIRE(lk_graph_create(context, LK_F64, &g) == LK_OK);
        lk_tensor         x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){4, 3})), y = lk_linear(x, "fc", 3);
        lk_tensor         label = lk_input(g, "label", LK_I32, 1, ((int64_t[]){4}));
        lk_tensor         a = lk_cross_entropy(y, label), b = lk_mse(y, x);
        lk_tensor         own = lk_loss(lk_sum(lk_mul(y, y), .axes = (int[]){1}, .axes_count = 1),
                                        .weight = lk_stop_gradient(lk_max(y, 1))); /* of the model's own results */
        lk_tensor         losses[] = {lk_add(a, lk_exp(b)), lk_div(a, b), lk_add(a, lk_mean(y)), lk_add(a, own)};
        const char *const texts[] = {"unary of a loss", "div of a loss", "this part of the loss is summed or averaged",
                                     "the weight of this loss depends on fc."};
        config.loss = losses[i];
        config.optimizer = &sgd;
        CHECK(lk_plan_create(g, &config, &plan) == LK_EINVAL && strstr(lk_context_error(context), texts[i]), "%d: %s",
              i, lk_context_error(context));
        CHECK(!plan && strstr(lk_context_error(context), "test_losses_refused.c:"));
        lk_graph_free(g);
    }
    lk_context_free(context);
}

/* Doubled 60 times: every use of a loss is counted, and none is walked twice. */
static void a_loss_that_is_added_to_itself_is_counted(void)
{
    lk_context         *context = make_context();
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_step             step = LK_STEP_INIT;
    lk_metrics          metrics;
    double              x[2][3] = {{1, 2, 3}, {4, 5, 6}}, squares = 0;
    lk_graph           *g;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    REQUIRE(lk_graph_create(context, LK_F64, &g) == LK_OK);
    lk_tensor in = lk_input(g, "x", LK_F64, 2, ((int64_t[]){2, 3})), w = lk_parameter(g, "w", 1, ((int64_t[]){3}));
    lk_tensor y = lk_mul(in, w), sum = lk_mse(y, in);
    for (int i = 0; i < 60; i++) sum = lk_add(sum, sum);
    config.loss = lk_add(lk_scale(sum, 0x1p-60), lk_l1(y, in));
    config.optimizer = &sgd;
    REQUIRE(lk_plan_create(g, &config, &plan) == LK_OK && lk_store_create(plan, 0, &store) == LK_OK &&
                lk_program_create(plan, store, NULL, &program) == LK_OK && lk_program_bind(program, "x", x) == LK_OK,
            "%s", lk_context_error(context));
    step.count = 2;
    REQUIRE(lk_program_train(program, &step) == LK_OK, "%s", lk_context_error(context));
    for (int i = 0; i < 6; i++) squares += x[i / 3][i % 3] * (x[i / 3][i % 3] + 1); /* w is 0 */
    lk_program_metrics(program, &metrics);
    CHECK(fabs(metrics.loss - squares / 6) < 1e-12, "%.17g", metrics.loss);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

/* The weights of the whole step are known where one call runs all of its micro-batches. */
static void micro_batches_by_hand_are_refused(void)
{
    lk_context         *context = make_context();
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_step             step = LK_STEP_INIT;
    double              x[4][3] = {{1, 2, 3}, {4, 5, 6}};
    lk_graph           *g;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    REQUIRE(lk_graph_create(context, LK_F64, &g) == LK_OK);
    lk_tensor in = lk_input(g, "x", LK_F64, 2, ((int64_t[]){4, 3})), y = lk_linear(in, "fc", 3);
    config.loss = lk_loss(lk_add(lk_mse(y, in), lk_l1(y, in))); /* a sum of losses is a loss */
    config.optimizer = &sgd;
    config.parallel.micro_batches = 2;
    REQUIRE(lk_plan_create(g, &config, &plan) == LK_OK && lk_store_create(plan, 0, &store) == LK_OK &&
                lk_program_create(plan, store, NULL, &program) == LK_OK && lk_program_bind(program, "x", x) == LK_OK,
            "%s", lk_context_error(context));
    step.count = 4;
    REQUIRE(lk_program_step(program, &step) == LK_OK && lk_program_run(program, LK_FORWARD) == LK_OK &&
            lk_program_run(program, LK_BACKWARD) == LK_OK);
    CHECK(lk_program_run(program, LK_FORWARD) == LK_EINVAL && strstr(lk_context_error(context), "lk_program_compute"),
          "%s", lk_context_error(context));
    CHECK(lk_program_run(program, LK_UPDATE) == LK_OK, "%s", lk_context_error(context));
    step.count = 8; /* two micro-batches of 4, of which the inputs hold 8 */
    double more[8][3] = {{1, 2, 3}, {4, 5, 6}};
    CHECK(lk_program_bind(program, "x", more) == LK_OK && lk_program_train(program, &step) == LK_OK, "%s",
          lk_context_error(context));
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

int main(void)
{
    RUN(sums_that_cannot_be_taken_apart_are_refused);
    RUN(a_loss_that_is_added_to_itself_is_counted);
    RUN(micro_batches_by_hand_are_refused);
    return check_result();
}
