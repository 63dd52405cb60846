/* test_launch_groups.c - launch groups: which nodes of a step the plan gives to a device as one launch, on a stand-in
 * for a device that takes every pattern; that views between nodes do not matter, and other readers of memory do; and
 * that within a group no result is where another node reads or writes. */
#include "plan/launch_group.h"
#include "support.h"

static int refused = -1; /* a kind that the stand-in has no kernel for */

static bool supports_all(lk__device *device, const lk__device_group *group)
{
    (void)device;
    for (int i = 0; i < group->count; i++)
        CHECK(group->calls[i]->in[0].rank <= LK_MAX_RANK && group->calls[i]->attrs, "call %d is not made", i);
    return (int)group->kind != refused;
}

static lk_status record_begin(lk__device *device, lk__device_stream *stream)
{
    (void)device, (void)stream;
    return LK_EUNSUPPORTED; /* plans alone are made */
}

static lk__device_group_kernel kernels[LK__GROUP_KINDS];
static lk__device_backend      stand_in;

/* A context whose device plans as one that has all groups and queues steps. */
static rig open_rig(bool groups)
{
    rig         r = rig_open(LK_F32, 1);
    lk__device *device = lk__context_device(r.context);
    for (int i = 0; i < LK__GROUP_KINDS; i++) kernels[i].supports = supports_all;
    stand_in = *device->backend;
    stand_in.recording.record_begin = record_begin;
    stand_in.kernels.group_kernels = groups ? kernels : NULL;
    device->backend = &stand_in;
    return r;
}

static void make_plan(rig *r, const lk_plan_config *config)
{
    REQUIRE(lk_plan_create(r->graph, config, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
}

/* ---- what was found ---- */

static int count_groups(const lk__plan_list *list, lk__device_group_kind kind)
{
    int count = 0;
    for (size_t i = 0; i < list->launches_count; i++) count += list->launches[i].kind == kind;
    return count;
}

static const lk__plan_launch *group_of(const lk__plan_list *list, lk__device_group_kind kind)
{
    for (size_t i = 0; i < list->launches_count; i++)
        if (list->launches[i].kind == kind) return &list->launches[i];
    REQUIRE(false, "the list has no group of kind %d", (int)kind);
    return NULL;
}

/* The operation of the node with this number in a group. */
static lk__op member(const lk__plan_list *list, const lk__plan_launch *g, int number)
{
    for (size_t p = g->first; p <= g->last; p++) {
        lk__op op = list->graph->nodes[list->order[p]].op;
        if (lk__op_find(op)->runs != LK__RUNS_NOTHING && number-- == 0) return op;
    }
    return LK__OP_COUNT;
}

typedef struct bytes {
    int    region;
    size_t begin, end;
} bytes;
static bytes bytes_of(const lk__plan_list *list, int v)
{
    const lk__graph_shape *s = &list->graph->values[v].shape;
    size_t                 begin = list->places[v].offset;
    return (bytes){(int)list->places[v].region, begin, begin + (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype)};
}

/* A result may be where its own group reads only if it replaces all of that operand, as the last node. */
static void check_apart(const lk__plan_list *list, const lk__plan_launch *g)
{
    const lk__graph_node *nodes = list->graph->nodes;
    for (size_t p = g->first; p <= g->last; p++)
        for (size_t q = g->first; q <= p; q++) {
            const lk__graph_node *n = &nodes[list->order[p]], *other = &nodes[list->order[q]];
            for (int k = 0; k < n->outputs; k++)
                for (int i = 0; i < other->inputs + other->outputs && n->out[k] >= 0; i++) {
                    int v = i < other->inputs ? other->in[i] : other->out[i - other->inputs];
                    if (v < 0 || (p == q && i >= other->inputs)) continue;
                    bytes a = bytes_of(list, n->out[k]), b = bytes_of(list, v);
                    bool  shares = lk__op_shares_memory(n->op) || lk__op_shares_memory(other->op);
                    bool  replaces = p == g->last && a.begin == b.begin && a.end == b.end &&
                                    (g->kind == LK__GROUP_OF_ENTROPY || g->kind == LK__GROUP_OF_GRADIENTS);
                    CHECK(a.region != b.region || a.end <= b.begin || b.end <= a.begin || shares || replaces,
                          "kind %d: %s writes where %s reads or writes", (int)g->kind, lk__op_name(n->op),
                          lk__op_name(other->op));
                }
        }
}

static void check_all_apart(const lk__plan_list *list)
{
    for (size_t i = 0; i < list->launches_count; i++)
        if (list->launches[i].kind < LK__GROUP_OF_SCALE) check_apart(list, &list->launches[i]);
}

/* ---- a training step ---- */

static lk_tensor record_mlp(lk_graph *g, int64_t width)
{
    lk_tensor x = lk_input(g, "x", LK_F32, 3, ((int64_t[]){32, 4, 4})),
              y = lk_input(g, "y", LK_I32, 1, ((int64_t[]){32}));
    x = lk_relu(lk_linear(lk_flatten(x), "fc1", width));
    x = lk_relu(lk_linear(x, "fc2", width));
    return lk_cross_entropy(lk_linear(x, "fc3", 10), y);
}

static rig plan_mlp(bool groups, double clip)
{
    rig                 r = open_rig(groups);
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    adam.clip = clip;
    config.loss = record_mlp(r.graph, 24);
    config.optimizer = &adam;
    make_plan(&r, &config);
    return r;
}

static void a_training_step_has_groups(void)
{
    rig                    r = plan_mlp(true, 0);
    const lk__plan_list   *list = &r.plan->train;
    const lk__plan_launch *g = group_of(list, LK__GROUP_OF_ENTROPY);
    CHECK(member(list, g, g->role[LK__ROLE_LOSS]) == LK__OP_cross_entropy &&
          member(list, g, g->role[LK__ROLE_GRADIENT]) == LK__OP_cross_entropy_grad && g->count == 2);
    CHECK(g->first < list->end[LK_FORWARD] && g->last >= list->end[LK_FORWARD], "the gradient is in backward");
    CHECK(count_groups(list, LK__GROUP_OF_GRADIENTS) == 2, "x gets no gradient, so fc1 has none of its input");
    g = group_of(list, LK__GROUP_OF_GRADIENTS);
    CHECK(g->count == 3 && member(list, g, g->role[LK__ROLE_WEIGHT]) == LK__OP_linear_grad_weight &&
          member(list, g, g->role[LK__ROLE_INPUT]) == LK__OP_linear_grad_input &&
          member(list, g, g->role[LK__ROLE_RELU]) == LK__OP_unary_grad);
    CHECK(group_of(list, LK__GROUP_OF_UPDATE)->count == 6 && count_groups(list, LK__GROUP_OF_SCALE) == 0);
    CHECK(group_of(list, LK__GROUP_OF_STEP_END)->count == 7 && r.plan->evaluate.launches_count == 0);
    check_all_apart(list);
    rig_close(&r);
}

static void a_clipped_update_has_a_group_for_the_norm(void)
{
    rig                    r = plan_mlp(true, 1);
    const lk__plan_list   *list = &r.plan->train;
    const lk__plan_launch *g = group_of(list, LK__GROUP_OF_SCALE);
    CHECK(g->role[LK__ROLE_SQUARES] == 5 && member(list, g, 5) == LK__OP_square_sum &&
          member(list, g, 6) == LK__OP_add);
    CHECK(g->role[LK__ROLE_SCALE] == 11 && member(list, g, 11) == LK__OP_gradient_scale && g->count == 12);
    CHECK(count_groups(list, LK__GROUP_OF_STEP_END) == 0, "its result has a norm");
    rig_close(&r);
}

/* Without groups memory is laid out as before, and a group that the device refuses leaves no trace. */
static void a_device_decides_which_groups_there_are(void)
{
    rig    r = plan_mlp(false, 0);
    size_t arena = r.plan->train.arena;
    CHECK(r.plan->train.launches_count == 0);
    rig_close(&r);
    refused = LK__GROUP_OF_GRADIENTS;
    r = plan_mlp(true, 0);
    CHECK(count_groups(&r.plan->train, LK__GROUP_OF_GRADIENTS) == 0 &&
          count_groups(&r.plan->train, LK__GROUP_OF_ENTROPY) == 1);
    CHECK(r.plan->train.arena >= arena);
    refused = -1;
    rig_close(&r);
}

/* ---- a step of generation ---- */

enum { SAMPLES = 3, ROOM = 16, WIDTH = 8 };

static lk_tensor with_norm(lk_tensor x, const char *name) { return lk_rms_norm(x, name); }

/* Two layers: keys and values are slices of one product. */
static lk_tensor record_step(lk_graph *g)
{
    int64_t   cache[] = {SAMPLES, ROOM, WIDTH};
    lk_tensor rows = lk_input(g, "rows", LK_I32, 2, ((int64_t[]){SAMPLES, 1})),
              first = lk_input(g, "first", LK_I32, 2, ((int64_t[]){SAMPLES, 1})),
              last = lk_input(g, "last", LK_I32, 2, ((int64_t[]){SAMPLES, 1})),
              x = lk_input(g, "x", LK_F32, 3, ((int64_t[]){SAMPLES, 1, WIDTH}));
    for (int i = 0; i < 2; i++) {
        lk_block_begin(x, i ? "1" : "0");
        lk_tensor all = lk_linear(with_norm(x, "norm"), "qkv", 3 * WIDTH);
        lk_tensor q = lk_slice(all, 2, 0, WIDTH), k = lk_slice(all, 2, WIDTH, WIDTH),
                  v = lk_slice(all, 2, 2 * WIDTH, WIDTH);
        lk_tensor keys = lk_cache_write(lk_buffer(g, "key", LK_F32, 3, cache, 0, .not_saved = true), k, rows);
        lk_tensor values = lk_cache_write(lk_buffer(g, "value", LK_F32, 3, cache, 0, .not_saved = true), v, rows);
        lk_tensor y = lk_attention(q, keys, values, .heads = 2, .kv_heads = 2, .first = first, .last = last);
        x = lk_add(x, lk_linear(y, "out", WIDTH));
        lk_tensor z = with_norm(x, "norm2");
        lk_tensor gate = lk_linear(z, "gate", 12), up = lk_linear(z, "up", 12); /* in this order on every compiler */
        x = lk_add(x, lk_linear(lk_swiglu(gate, up), "down", WIDTH));
        lk_block_end(x);
    }
    return x;
}

static void a_step_of_generation_has_groups(void)
{
    rig            r = open_rig(true);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      y = record_step(r.graph);
    config.outputs = &y;
    config.outputs_count = 1;
    make_plan(&r, &config);
    const lk__plan_list   *list = &r.plan->evaluate;
    const lk__plan_launch *g = group_of(list, LK__GROUP_OF_ATTENTION);
    CHECK(count_groups(list, LK__GROUP_OF_ATTENTION) == 2 && g->count == 6 && g->role[LK__ROLE_ATTENTION] == 5);
    CHECK(member(list, g, g->role[LK__ROLE_QUERY]) == LK__OP_slice &&
          member(list, g, g->role[LK__ROLE_KEY]) == LK__OP_slice && g->role[LK__ROLE_VALUE] != g->role[LK__ROLE_KEY]);
    CHECK(member(list, g, g->role[LK__ROLE_KEY_WRITE]) == LK__OP_cache_write &&
          member(list, g, g->role[LK__ROLE_VALUE_WRITE]) == LK__OP_cache_write);
    CHECK(count_groups(list, LK__GROUP_OF_NORM) == 4 && count_groups(list, LK__GROUP_OF_PRODUCT) == 4);
    int gated = 0;
    for (size_t i = 0; i < list->launches_count; i++)
        if (list->launches[i].kind == LK__GROUP_OF_NORM && list->launches[i].role[LK__ROLE_GATE] >= 0) {
            gated++;
            CHECK(list->launches[i].count == 4 && list->launches[i].role[LK__ROLE_LAST_PRODUCT] == 2);
        }
    CHECK(gated == 2, "%d norms run with swiglu", gated);
    check_all_apart(list);
    rig_close(&r);
}

int main(void)
{
    RUN(a_training_step_has_groups);
    RUN(a_clipped_update_has_a_group_for_the_norm);
    RUN(a_device_decides_which_groups_there_are);
    RUN(a_step_of_generation_has_groups);
    return check_result();
}
