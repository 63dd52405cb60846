/* test_blocks.c - recomputation of blocks, frozen groups and tied weights in whole models: the memory they save, the
 * states they do not change, and that all bits are the same. */
#include "support.h"

static const int ids[] = {2, 0, 2, 6, 2, 5, 0};

enum { BATCH = 6, WIDTH = 24, DEPTH = 16 };

/* Many blocks that each keep several values; block i is recomputed where bit i of `which` is set. */
static lk_tensor deep(lk_graph *g, unsigned which)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){BATCH, WIDTH}));
    for (int i = 0; i < DEPTH; i++) {
        char name[8];
        snprintf(name, sizeof name, "b%d", i);
        lk_block_begin(x, name, .recompute = which >> i & 1);
        lk_tensor y = lk_gelu(lk_linear(lk_layer_norm(x, "norm"), "fc1", 4 * WIDTH));
        lk_block_begin(x, "inner", .recompute = i % 3 == 0 && which >> i & 1);
        y = lk_dropout(lk_silu(lk_linear(y, "fc2", 2 * WIDTH)), 0.2);
        lk_block_end(x);
        x = lk_add(x, lk_linear(y, "fc3", WIDTH));
        lk_block_end(x);
    }
    return lk_mse(x, lk_input(g, "y", LK_F64, 2, ((int64_t[]){BATCH, WIDTH})));
}

typedef struct trained {
    size_t   activations;
    uint64_t hash;
    double   loss;
} trained;

static trained train_deep(unsigned which)
{
    rig                 r = rig_open(LK_F64, 1);
    double              x[BATCH * WIDTH], y[BATCH * WIDTH];
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = deep(r.graph, which);
    config.optimizer = &optimizer;
    rig_plan(&r, &config, 5);
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = 2 * number(1, (uint64_t)i) - 1, y[i] = number(2, (uint64_t)i);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "y", y) == LK_OK);
    for (int step = 1; step <= 3; step++)
        REQUIRE(lk_program_train(
                    r.program, &(lk_step){.step = step, .count = BATCH - step % 2, .rate = 1e-2, .seed = 3}) == LK_OK);
    trained t = {lk_plan_memory(r.plan, LK_MEMORY_ACTIVATIONS), lk_store_hash(r.store), rig_metrics(&r).loss};
    rig_close(&r);
    return t;
}

static void recomputation_saves_memory_and_changes_no_bit(void)
{
    trained kept = train_deep(0), all = train_deep(~0u), half = train_deep(0x5a5a);
    CHECK(all.hash == kept.hash && half.hash == kept.hash && all.loss == kept.loss);
    CHECK(all.activations < kept.activations / 3, "%zu bytes recomputed, %zu kept", all.activations, kept.activations);
    CHECK(all.activations < half.activations && half.activations < kept.activations, "%zu", half.activations);
}

static trained train_resnet(bool recompute, int frozen)
{
    rig                 r = rig_open(LK_F64, 1);
    lk_tensor           x = lk_input(r.graph, "x", LK_F64, 4, ((int64_t[]){3, 3, 12, 12}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){3}));
    lk_parameter_group  groups[] = {{.match = "layer2.*", .frozen = true}};
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.groups = groups;
    optimizer.groups_count = frozen;
    config.loss = lk_cross_entropy(lk_model_resnet20(x, (lk_model_options){.recompute = recompute}), y);
    config.optimizer = &optimizer;
    rig_plan(&r, &config, 5);
    double  image[3 * 3 * 12 * 12];
    int32_t label[] = {1, 7, 3};
    for (int i = 0; i < 3 * 3 * 12 * 12; i++) image[i] = 2 * number(1, (uint64_t)i) - 1;
    REQUIRE(lk_program_bind(r.program, "x", image) == LK_OK && lk_program_bind(r.program, "y", label) == LK_OK);
    lk_state inside, before;
    REQUIRE(lk_store_find(r.store, "layer2.1.conv2.weight", &inside) &&
            lk_store_find(r.store, "conv1.weight", &before));
    double at_first[2] = {*(double *)state_copy(r.store, inside.name), *(double *)state_copy(r.store, before.name)};
    for (int step = 1; step <= 3; step++)
        REQUIRE(lk_program_train(r.program, &(lk_step){.step = step, .count = 3, .rate = 1e-3}) == LK_OK);
    CHECK((gradient_copy(r.program, r.store, inside.name) == NULL) == frozen);
    CHECK((*(double *)state_copy(r.store, inside.name) == at_first[0]) == frozen);
    CHECK(gradient_copy(r.program, r.store, before.name) && *(double *)state_copy(r.store, before.name) != at_first[1]);
    CHECK(inside.frozen == frozen && inside.moments == (frozen ? 0 : 2));
    trained t = {lk_plan_memory(r.plan, LK_MEMORY_ACTIVATIONS), lk_store_hash(r.store), rig_metrics(&r).loss};
    rig_close(&r);
    return t;
}

static void recomputed_residual_blocks_update_running_statistics_once(void)
{
    trained kept = train_resnet(false, false), again = train_resnet(true, false);
    CHECK(kept.hash == again.hash &&
          kept.loss == again.loss); /* the hash covers running_mean, running_var and their counts */
    CHECK(again.activations < kept.activations * 3 / 4, "%zu bytes recomputed, %zu kept", again.activations,
          kept.activations);
}

static void frozen_groups_get_no_gradient_and_pass_it_on(void)
{
    trained frozen = train_resnet(false, true), recomputed = train_resnet(true, true);
    CHECK(frozen.hash == recomputed.hash);
}

static void tied_weights_share_value_and_gradient(void)
{
    rig                 r = rig_open(LK_F64, 1);
    lk_tensor           tokens = lk_input(r.graph, "ids", LK_I32, 1, ((int64_t[]){7}), .fixed = true);
    lk_tensor           e = lk_embedding(tokens, "embed", 7, 5);
    lk_tensor           table = {r.graph, tokens.id + 1}; /* the parameter that the embedding made */
    lk_tensor           logits = lk_linear(lk_tanh(e), "head", 7, .weight = table, .no_bias = true);
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_cross_entropy(logits, tokens);
    config.optimizer = &optimizer;
    rig_plan(&r, &config, 5);
    REQUIRE(lk_program_bind(r.program, "ids", ids) == LK_OK);
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1}) == LK_OK &&
            lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
    lk_state first, second;
    CHECK(lk_store_count(r.store) == 1 && lk_store_parameters(r.store) == 35);
    REQUIRE(lk_store_find(r.store, "embed.weight", &first) && lk_store_find(r.store, "head.weight", &second));
    CHECK(first.name == second.name && first.data == second.data);
    CHECK(lk_store_alias(r.store, 0, 0) && strcmp(lk_store_alias(r.store, 0, 0), "head.weight") == 0 &&
          !lk_store_alias(r.store, 0, 1));
    CHECK(lk_program_gradient(r.program, "embed.weight") == lk_program_gradient(r.program, "head.weight"));
    CHECK(gradient_copy(r.program, r.store, "head.weight") && !gradient_copy(r.program, r.store, "head"));
    CHECK(lk_program_gradient_read(r.program, "head", copy_room(8), 8) == LK_ENOENT);
    rig_close(&r);
}

int main(void)
{
    RUN(recomputation_saves_memory_and_changes_no_bit);
    RUN(recomputed_residual_blocks_update_running_statistics_once);
    RUN(frozen_groups_get_no_gradient_and_pass_it_on);
    RUN(tied_weights_share_value_and_gradient);
    return check_result();
}
