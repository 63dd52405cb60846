/* test_axis_share.c - what an axis splits is at most 1.1 / extent of the whole on each rank: the state along shard, the
 * states of experts along expert, and the state and arithmetic of a convolutional network along tensor. */
#include "placement_model.h"

#include "plan/experts.h"

typedef struct planned {
    double bytes[LK_MEMORY_COUNT];
    double arithmetic;
    double dense; /* bytes of parameters that are not weights of experts */
} planned;

typedef enum kind { GPT, MIXTRAL, CNN } kind;

enum { BATCH = 8, TOKENS = 32 };

static lk_tensor record(rig *r, kind kind, int64_t rows)
{
    if (kind == CNN) {
        lk_tensor x = lk_input(r->graph, "x", LK_F32, 4, ((int64_t[]){rows, 3, 32, 32}));
        lk_tensor y = lk_input(r->graph, "y", LK_I32, 1, ((int64_t[]){rows}));
        return lk_cross_entropy(lk_model_cnn(x, (lk_model_options){.classes = 10}), y);
    }
    lk_transformer_config c = small_model(kind == GPT ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA);
    c.width = 128;
    c.layers = 4;
    c.vocabulary = 512;
    c.context = TOKENS;
    if (kind == MIXTRAL) {
        c.experts = 8;
        c.experts_per_token = 2;
    }
    lk_tensor             tokens = lk_input(r->graph, "tokens", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor             labels = lk_input(r->graph, "labels", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_transformer_result result = lk_transformer(tokens, &c);
    return lk_linear_cross_entropy(result.hidden, result.head, labels);
}

static planned plan_rank(kind kind, const char *axes, int stage)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk__mesh_grid       grid;
    lk_mesh            *mesh = NULL;
    planned             made = {.arithmetic = 0};
    REQUIRE(lk__mesh_parse(r.context, axes, &grid) == LK_OK && lk__mesh_over(r.context, &grid, NULL, &mesh) == LK_OK);
    config.mesh = mesh;
    config.parallel.state = LK_STATE_REPLICATED;
    config.parallel.shard_stage = stage;
    config.optimizer = &adam;
    config.loss = record(&r, kind, lk_mesh_capacity(mesh, &config.parallel, BATCH));
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    for (int k = 0; k < LK_MEMORY_COUNT; k++) made.bytes[k] = (double)lk_plan_memory(r.plan, (lk_memory)k);
    for (size_t i = 0; i < r.plan->train.order_count; i++) {
        const lk__graph_node *n = &r.plan->train.graph->nodes[r.plan->train.order[i]];
        made.arithmetic += lk__op_find(n->op)->arithmetic(r.plan->train.graph, n);
    }
    for (size_t i = 0; i < r.graph->states_count; i++)
        if (!lk__plan_is_expert(r.plan, i))
            made.dense += 4.0 * (double)lk__shape_elements(&r.graph->values[r.graph->states[i].value].shape);
    lk_plan_free(r.plan);
    lk_mesh_free(mesh);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return made;
}

static void check_share(const char *axes, const char *what, double own, double whole, int extent)
{
    printf("%s: %s %.3f\n", axes, what, own / whole);
    CHECK(own <= 1.1 / extent * whole, "%s: %s %g of %g", axes, what, own, whole);
}

static const lk_memory state[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS, LK_MEMORY_OPTIMIZER};

static void shard_splits_the_state(void)
{
    planned one = plan_rank(GPT, "data=1", 0);
    for (int extent = 2; extent <= 4; extent *= 2) {
        const char *axes = extent == 2 ? "shard=2" : "shard=4";
        planned     own = plan_rank(GPT, axes, 3);
        for (int i = 0; i < 3; i++)
            check_share(axes, lk_memory_name(state[i]), own.bytes[state[i]], one.bytes[state[i]], extent);
        check_share(axes, "arithmetic", own.arithmetic, one.arithmetic, extent);
    }
}

static void expert_splits_the_states_of_experts(void)
{
    planned one = plan_rank(MIXTRAL, "data=1", 0);
    for (int extent = 2; extent <= 4; extent *= 2) {
        const char *axes = extent == 2 ? "expert=2" : "expert=4";
        planned     own = plan_rank(MIXTRAL, axes, 0);
        CHECK(own.dense > 0 && own.dense < 0.5 * own.bytes[LK_MEMORY_PARAMETERS]);
        for (int i = 0; i < 3; i++) {
            double dense = own.dense * (state[i] == LK_MEMORY_OPTIMIZER ? 2 : 1); /* Adam's moments */
            check_share(axes, lk_memory_name(state[i]), own.bytes[state[i]] - dense, one.bytes[state[i]] - dense,
                        extent);
        }
    }
}

static void tensor_splits_the_state_of_a_convolutional_network(void)
{
    planned one = plan_rank(CNN, "data=1", 0), own = plan_rank(CNN, "tensor=2", 0);
    for (int i = 0; i < 3; i++)
        check_share("tensor=2", lk_memory_name(state[i]), own.bytes[state[i]], one.bytes[state[i]], 2);
    check_share("tensor=2", "arithmetic", own.arithmetic, one.arithmetic, 2);
}

int main(void)
{
    RUN(shard_splits_the_state);
    RUN(expert_splits_the_states_of_experts);
    RUN(tensor_splits_the_state_of_a_convolutional_network);
    return check_result();
}
