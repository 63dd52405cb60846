/* test_sum_parts_plan.c - which parts the sums of a plan have, where every layout must give the same bits: they follow
 * from the recorded graph, and are the same on one rank and on several. */
#include "placement_model.h"
#include "run/store.h"

static lk_status plan_loss(rig *r, lk_tensor loss, const char *axes, int minimum)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk__mesh_grid       grid;
    lk_mesh            *mesh = NULL;
    config.loss = loss;
    config.optimizer = &adam;
    config.parallel = (lk_parallel){.leaves = 8, .reproducible_layout = 1, .sum_part_minimum = minimum};
    REQUIRE(lk__mesh_parse(r->context, axes, &grid) == LK_OK && lk__mesh_over(r->context, &grid, NULL, &mesh) == LK_OK);
    config.mesh = mesh;
    lk_status status = lk_plan_create(r->graph, &config, &r->plan);
    lk_mesh_free(mesh);
    return status;
}

/* A transformer of width 128 with 4 heads, and a vocabulary of 512. */
static lk_status plan_text(rig *r, lk_transformer_kind kind, const char *axes, int minimum)
{
    lk_transformer_config c = small_model(kind);
    c.width = 128;
    c.vocabulary = 512;
    c.context = 64;
    int64_t               dims[] = {8, 64};
    lk_tensor             tokens = lk_input(r->graph, "tokens", LK_I32, 2, dims);
    lk_tensor             labels = lk_input(r->graph, "labels", LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(tokens, &c);
    return plan_loss(r, lk_linear_cross_entropy(result.hidden, result.head, labels), axes, minimum);
}

static void close_rig(rig *r)
{
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    lk_context_free(r->context);
}

/* The sum of the first node of this operation that reads the state of this name. */
static lk__op_summation sum_of(const rig *r, lk__op op, const char *state)
{
    const lk_graph *g = r->plan->train.graph;
    for (size_t i = 0; i < r->plan->train.order_count; i++) {
        const lk__graph_node *n = &g->nodes[r->plan->train.order[i]];
        for (int k = 0; k < n->inputs && n->op == op; k++)
            if (n->in[k] >= 0 && g->values[n->in[k]].kind == LK__VALUE_STATE &&
                strcmp(g->states[g->values[n->in[k]].state].name, state) == 0)
                return n->attrs.sum;
    }
    CHECK(false, "no %s reads %s", lk__op_name(op), state);
    return (lk__op_summation){0};
}

static void check_sum(const rig *r, lk__op op, const char *state, lk__op_summation expected)
{
    lk__op_summation sum = sum_of(r, op, state);
    if (sum.unit == 0) sum.unit = 1;
    CHECK(memcmp(&sum, &expected, sizeof sum) == 0, "%s of %s: %lld parts of %lld in %lld|%lld|%lld", lk__op_name(op),
          state, (long long)sum.parts, (long long)sum.unit, (long long)sum.segment[0], (long long)sum.segment[1],
          (long long)sum.segment[2]);
}

static void sums_have_the_same_parts_on_any_number_of_ranks(void)
{
    static const char *const axes[] = {"data=1", "data=2", "tensor=2", "tensor=4"};
    for (int i = 0; i < 4; i++) {
        rig r = rig_open(LK_F32, 1);
        REQUIRE(plan_text(&r, LK_TRANSFORMER_GPT, axes[i], 16) == LK_OK, "%s", lk_context_error(r.context));
        /* Queries, keys and values of 4 heads of 32 are side by side: a part has a head of each. */
        check_sum(&r, LK__OP_linear_grad_input, "transformer.h.0.attn.c_attn.weight",
                  (lk__op_summation){.parts = 4, .unit = 32, .segment = {128, 128, 128}});
        check_sum(&r, LK__OP_linear, "transformer.h.0.attn.c_proj.weight", (lk__op_summation){.parts = 4, .unit = 32});
        check_sum(&r, LK__OP_linear, "transformer.h.0.mlp.c_proj.weight", (lk__op_summation){.parts = 8, .unit = 1});
        check_sum(&r, LK__OP_linear_grad_input, "transformer.h.0.mlp.c_fc.weight",
                  (lk__op_summation){.parts = 8, .unit = 1});
        check_sum(&r, LK__OP_linear_grad_input, "transformer.wte.weight", (lk__op_summation){.parts = 8, .unit = 1});
        check_sum(&r, LK__OP_layer_norm_grad, "transformer.h.0.ln_1.weight", (lk__op_summation){.parts = 8, .unit = 1});
        close_rig(&r);
    }
}

/* Neither on one rank nor where a rank has one of the groups; over more ranks than groups they are not cut. */
static void channels_of_a_group_are_one_sum(void)
{
    static const char *const axes[] = {"data=1", "tensor=2", "tensor=4"};
    for (int i = 0; i < 3; i++) {
        rig       r = rig_open(LK_F32, 1);
        lk_tensor x = lk_input(r.graph, "x", LK_F32, 4, ((int64_t[]){8, 3, 16, 16}));
        lk_tensor labels = lk_input(r.graph, "labels", LK_I32, 1, ((int64_t[]){8}));
        x = lk_relu(lk_conv2d(lk_conv2d(x, "stem", 16, 3), "grouped", 16, 3, .groups = 2));
        lk_tensor loss = lk_cross_entropy(lk_linear(lk_global_avg_pool2d(x), "head", 8), labels);
        REQUIRE(plan_loss(&r, loss, axes[i], 2) == LK_OK, "%s", lk_context_error(r.context));
        check_sum(&r, LK__OP_conv2d, "grouped.weight", (lk__op_summation){.unit = 1});
        const lk__plan_splits *weight =
            &r.plan->states[lk__find_state(r.plan->graph, "grouped.weight")].splits[LK__ARRAY_STORED];
        for (int k = 0; k < weight->count; k++)
            CHECK(weight->split[k].dim == 0, "%s: dimension %d is cut", axes[i], weight->split[k].dim);
        close_rig(&r);
    }
}

static void a_part_has_the_minimum_of_elements(void)
{
    static const struct {
        int minimum, parts;
    } cases[] = {{64, 8}, {65, 4}, {0, 4}, {129, 2}, {257, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = rig_open(LK_F32, 1);
        REQUIRE(plan_text(&r, LK_TRANSFORMER_GPT, "data=1", cases[i].minimum) == LK_OK);
        check_sum(&r, LK__OP_linear, "transformer.h.0.mlp.c_proj.weight",
                  (lk__op_summation){.parts = cases[i].parts, .unit = 1});
        close_rig(&r);
    }
}

static void too_few_parts_for_an_axis_are_refused(void)
{
    rig r = rig_open(LK_F32, 1);
    CHECK(plan_text(&r, LK_TRANSFORMER_GPT, "tensor=4", 0) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(r.context),
                 "adds 128 elements in 1 part, which cannot be divided equally among 4 ranks along tensor"),
          "%s", lk_context_error(r.context));
    close_rig(&r);
}

int main(void)
{
    if (!has_layouts()) return check_result();
    RUN(sums_have_the_same_parts_on_any_number_of_ranks);
    RUN(channels_of_a_group_are_one_sum);
    RUN(a_part_has_the_minimum_of_elements);
    RUN(too_few_parts_for_an_axis_are_refused);
    return check_result();
}
