/* test_leaf_sums.c - a sum over the tokens of each sample has the same bits whether the leaves of a batch run one by
 * one or as one batch: how many samples there are does not decide in which parts it is added,
 * wherever their axis is.
 *
 * ctest: timeout 60 */
#include "check.h"
#include "plan/plan.h"

#include <lockstep.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, TOKENS = 520, WIDTH = 32, OUT = 3, LEAVES = 8 };

static uint64_t train(lk_context *c, bool one_by_one, bool mean, bool permuted)
{
    lk_graph           *g;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_reduce_options   tokens = {.axes = (int[]){permuted ? 0 : 1}, .axes_count = 1};
    size_t              count = (size_t)BATCH * TOKENS * WIDTH;
    double             *x = malloc(count * sizeof *x), t[BATCH * OUT];
    REQUIRE(x && lk_graph_create(c, LK_F64, &g) == LK_OK);
    for (size_t i = 0; i < count; i++) x[i] = (double)(i * 2654435761u % 1000003) / 1000003 - 0.5;
    for (int i = 0; i < BATCH * OUT; i++) t[i] = (double)(i % 7) / 7;
    lk_tensor in = lk_input(g, "x", LK_F64, 3, ((int64_t[]){BATCH, TOKENS, WIDTH}));
    lk_tensor to = lk_input(g, "t", LK_F64, 2, ((int64_t[]){BATCH, OUT}));
    if (permuted) in = lk_permute(in, ((int[]){1, 0, 2}));
    lk_tensor pooled = mean ? lk_mean_at(LK_HERE, in, tokens) : lk_sum_at(LK_HERE, in, tokens);
    config.loss = lk_mse(lk_linear(pooled, "out", OUT), to);
    sgd.lr = 0.01;
    config.optimizer = &sgd;
    config.parallel.leaves = LEAVES;
    REQUIRE(lk__plan_create(g, &config, one_by_one, &plan) == LK_OK, "%s", lk_context_error(c));
    CHECK(plan->batch_leaves == !one_by_one);
    REQUIRE(lk_store_create(plan, 3, &store) == LK_OK && lk_program_create(plan, store, NULL, &program) == LK_OK, "%s",
            lk_context_error(c));
    REQUIRE(lk_program_bind(program, "x", x) == LK_OK && lk_program_bind(program, "t", t) == LK_OK);
    lk_step step = {.step = 1, .count = BATCH, .total = BATCH, .rate = 0.01};
    REQUIRE(lk_program_train(program, &step) == LK_OK, "%s", lk_context_error(c));
    uint64_t hash = lk_store_hash(store);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(g);
    free(x);
    return hash;
}

static void leaves_in_one_batch_give_the_bits_of_each_alone(void)
{
    lk_context *c;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    for (int i = 0; i < 4; i++)
        CHECK(train(c, false, i & 1, i & 2) == train(c, true, i & 1, i & 2), "a %s over tokens%s",
              i & 1 ? "mean" : "sum", i & 2 ? ", permuted" : "");
    lk_context_free(c);
}

int main(void)
{
    RUN(leaves_in_one_batch_give_the_bits_of_each_alone);
    return check_result();
}
