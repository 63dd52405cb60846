/* test_fuse.c - fusion by the patterns of descriptors: what is fused for a device with every kernel, before and after
 * the gradients are made, and that the parts of a fused node are the nodes that were recorded. */
#include "plan/fuse.h"
#include "support.h"

static lk__device_backend      stand_in;
static const lk__device_fusion all_fusions[] = {
    {LK__OP_linear, LK__FUSION_FUNCTION, ~0u, 0},     {LK__OP_linear, LK__FUSION_KEPT, ~0u, 0},
    {LK__OP_conv2d, LK__FUSION_FUNCTION, ~0u, 0},     {LK__OP_conv2d, LK__FUSION_MAX_POOL, 0, 0},
    {LK__OP_batch_norm_eval, LK__FUSION_SUM, 0, 0},   {LK__OP_batch_norm_eval, LK__FUSION_FUNCTION, ~0u, 0},
    {LK__OP_batch_norm, LK__FUSION_SUM, 0, 0},        {LK__OP_batch_norm, LK__FUSION_FUNCTION, ~0u, 0},
    {LK__OP_layer_norm, LK__FUSION_OPERAND, 0, 0},    {LK__OP_rms_norm, LK__FUSION_OPERAND, 0, 0},
    {LK__OP_layer_norm_grad, LK__FUSION_SUM, 0, 0},   {LK__OP_rms_norm_grad, LK__FUSION_SUM, 0, 0},
    {LK__OP_linear_grad_input, LK__FUSION_SUM, 0, 0}, {LK__OP_linear_grad_input, LK__FUSION_GRADIENT, ~0u, 0},
    {LK__OP_COUNT, (lk__fusion_kind)0, 0, 0},
};

/* A context whose device plans as one with these fusions. */
static rig open_rig(const lk__device_fusion *fusions)
{
    rig         r = rig_open(LK_F32, 1);
    lk__device *device = lk__context_device(r.context);
    stand_in = *device->backend;
    stand_in.kernels.fusions = fusions;
    device->backend = &stand_in;
    return r;
}

static int count_op(const lk_graph *g, lk__op op)
{
    int count = 0;
    for (size_t i = 0; i < g->nodes_count; i++) count += !g->nodes[i].dead && g->nodes[i].op == op;
    return count;
}

static const lk__graph_node *node_of(const lk_graph *g, lk__op op)
{
    for (size_t i = 0; i < g->nodes_count; i++)
        if (!g->nodes[i].dead && g->nodes[i].op == op) return &g->nodes[i];
    REQUIRE(false, "the graph has no node %s", lk__op_name(op));
    return NULL;
}

static lk_tensor rows(lk_graph *g, const char *name) { return lk_input(g, name, LK_F32, 2, ((int64_t[]){4, 6})); }

/* ---- what is fused ---- */

static void a_transformer_block_is_fused_in_both_directions(void)
{
    rig                 r = open_rig(all_fusions);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           x = lk_linear(rows(r.graph, "x"), "in", 6);
    lk_tensor           h = lk_gelu(lk_linear(lk_layer_norm(x, "norm"), "up", 12), .tanh = true);
    x = lk_add(x, lk_linear(h, "down", 6));
    config.loss = lk_mse(lk_linear(lk_layer_norm(x, "norm2"), "out", 6), rows(r.graph, "y"));
    config.optimizer = &sgd;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    const lk_graph *g = r.plan->train.graph;
    CHECK(count_op(g, LK__OP_unary) == 0 && count_op(g, LK__OP_unary_grad) == 0 && count_op(g, LK__OP_add) == 0);
    int functions = 0, kept = 0, gradients = 0, sums = 0;
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead) continue;
        functions += n->op == LK__OP_linear && n->attrs.activation == LK__GELU_TANH;
        kept += n->op == LK__OP_linear && n->outputs == 2 && n->out[1] >= 0;
        gradients += n->op == LK__OP_linear_grad_input && n->inputs == 3 && n->attrs.activation == LK__GELU_TANH;
        sums += (n->op == LK__OP_layer_norm && n->inputs == 4) || (n->op == LK__OP_layer_norm_grad && n->inputs == 6);
    }
    CHECK(functions == 1 && kept == 1 && gradients == 1 && sums == 2, "%d functions, %d kept, %d gradients, %d sums",
          functions, kept, gradients, sums);
    const lk_graph *e = r.plan->evaluate.graph;
    CHECK(node_of(e, LK__OP_linear) && count_op(e, LK__OP_unary) == 0);
    rig_close(&r);
}

static void a_device_without_kernels_fuses_nothing(void)
{
    rig            r = open_rig(NULL);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      y = lk_relu(lk_linear(rows(r.graph, "x"), "fc", 6));
    config.outputs = &y;
    config.outputs_count = 1;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(count_op(r.plan->evaluate.graph, LK__OP_unary) == 1);
    rig_close(&r);
}

/* Two readers of what relu is applied to; a pool with padding. */
static void what_others_read_is_not_fused(void)
{
    rig            r = open_rig(all_fusions);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      v = lk_linear(rows(r.graph, "x"), "fc", 6), image = lk_reshape(v, 4, ((int64_t[]){4, 1, 2, 3}));
    lk_tensor      outputs[] = {lk_relu(v), lk_max_pool2d(lk_conv2d(image, "conv", 2, 1), 2, .padding = 1)};
    config.outputs = outputs;
    config.outputs_count = 2;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(count_op(r.plan->evaluate.graph, LK__OP_unary) == 1 &&
          count_op(r.plan->evaluate.graph, LK__OP_max_pool2d) == 1);
    rig_close(&r);
}

/* ---- parts ---- */

static bool wants_all(const lk_graph *g, const lk__graph_node *n, void *user)
{
    (void)g, (void)n;
    (*(int *)user)++;
    return true;
}

/* Node by node in their order: operations, attributes, and which earlier node makes which operand. */
static bool same_nodes(const lk_graph *a, const lk_graph *b)
{
    size_t i = 0, j = 0;
    for (;; i++, j++) {
        while (i < a->nodes_count && a->nodes[i].dead) i++;
        while (j < b->nodes_count && b->nodes[j].dead) j++;
        if (i == a->nodes_count || j == b->nodes_count) return i == a->nodes_count && j == b->nodes_count;
        const lk__graph_node *x = &a->nodes[i], *y = &b->nodes[j];
        if (x->op != y->op || !lk__attrs_equal(&x->attrs, &y->attrs) || x->outputs != y->outputs) return false;
        int inputs = x->inputs > y->inputs ? x->inputs : y->inputs; /* absent ones at the end do not count */
        for (int k = 0; k < inputs; k++) {
            int v = k < x->inputs ? x->in[k] : -1, w = k < y->inputs ? y->in[k] : -1;
            if ((v < 0) != (w < 0)) return false;
            if (v < 0) continue;
            if (a->values[v].kind != b->values[w].kind) return false;
            lk__op p = a->values[v].kind == LK__VALUE_RESULT ? a->nodes[a->values[v].node].op : LK__OP_COUNT;
            lk__op q = b->values[w].kind == LK__VALUE_RESULT ? b->nodes[b->values[w].node].op : LK__OP_COUNT;
            if (p != q) return false;
        }
    }
}

/* Each fused node of the list is divided: the nodes are those of the graph that was recorded. */
static void check_parts(lk_graph *recorded, lk_tensor *outputs, int count, int fused)
{
    int           ids[4], split = 0;
    lk__plan_list list = {.outputs = ids, .outputs_count = count, .norm = -1};
    for (int i = 0; i < count; i++) ids[i] = outputs[i].id;
    REQUIRE(lk__graph_copy(recorded, &list.graph) == LK_OK);
    REQUIRE(lk__pass_fuse(&list, false, 0) == LK_OK && lk__pass_fuse(&list, true, 0) == LK_OK);
    CHECK(!same_nodes(recorded, list.graph), "nothing was fused");
    REQUIRE(lk__plan_split_fused(list.graph, wants_all, &split) == LK_OK);
    CHECK(split == fused, "%d nodes were fused, not %d", split, fused);
    CHECK(same_nodes(recorded, list.graph), "the parts are not the nodes that were recorded");
    for (size_t i = 0; i < list.graph->nodes_count; i++)
        for (int k = 0; k < list.graph->nodes[i].outputs && !list.graph->nodes[i].dead; k++)
            CHECK(list.graph->values[list.graph->nodes[i].out[k]].node == (int)i, "node %zu, output %d", i, k);
    for (int late = 0; late < 2; late++) REQUIRE(lk__pass_fuse(&list, late, 0) == LK_OK);
    CHECK(!same_nodes(recorded, list.graph), "the parts are not fused again");
    lk_graph_free(list.graph);
}

static void the_parts_of_fused_nodes_are_those_that_were_recorded(void)
{
    rig       r = open_rig(all_fusions);
    lk_tensor x = rows(r.graph, "x"), a = lk_relu(lk_linear(x, "a", 6)), b = lk_tanh(lk_linear(a, "b", 6));
    lk_tensor gelu = lk_gelu(lk_linear(b, "c", 6), .tanh = true), sum = lk_add(gelu, x), norm = lk_rms_norm(sum, "rms");
    lk_tensor image = lk_reshape(norm, 4, ((int64_t[]){4, 6, 1, 1}));
    lk_tensor conv = lk_conv2d(image, "conv", 6, 1);
    lk_tensor y = lk_relu(lk_add(lk_batch_norm(conv, "bn"), image));
    lk_tensor outputs[] = {y, sum};
    REQUIRE(y.id >= 0, "%s", lk_context_error(r.context));
    check_parts(r.graph, outputs, 2, 5); /* a, b, c, the sum with its norm, the batch norm with sum and relu */
    rig_close(&r);
}

int main(void)
{
    RUN(a_transformer_block_is_fused_in_both_directions);
    RUN(a_device_without_kernels_fuses_nothing);
    RUN(what_others_read_is_not_fused);
    RUN(the_parts_of_fused_nodes_are_those_that_were_recorded);
    return check_result();
}
