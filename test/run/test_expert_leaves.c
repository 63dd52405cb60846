/* test_expert_leaves.c - experts that are split over the expert axis, with a batch in leaves: weights, moments and
 * losses have the bits of one rank, for ranks as threads, with any number of leaves, leaves without samples, experts
 * without a token and one that gets all, a parameter that nothing uses, and the other axes; memory is what the plan
 * states.
 *
 * ctest: timeout 300, label threaded, ranks 8 */
#include "mesh_net.h"

#include <lockstep/moe.h>

enum { BATCH = 11, WIDTH = 16, IN = 6, OUT = 4, EXPERTS = 8, STEPS = 3 };

typedef enum routing { LEARNED, ONE, HALF } routing; /* where tokens go: anywhere; to one expert; to half of them */

typedef struct setting {
    const char *name, *mesh;
    int         leaves, stage, k;
    routing     routing;
    bool        balance, layout;
    double      clip;
} setting;

typedef struct net {
    mesh_net of;
    float    x[BATCH * IN], t[BATCH * OUT], bias[BATCH * EXPERTS];
} net;

static float number(uint64_t index) { return (float)(int64_t)(number_bits(9, index) >> 40) * 0x1p-23f - 1; }

static lk_tensor record(lk_graph *g, const setting *s, int64_t rows)
{
    int64_t   k = s->k ? s->k : 2;
    lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F32, 2, ((int64_t[]){rows, OUT}));
    lk_tensor bias = lk_input(g, "bias", LK_F32, 2, ((int64_t[]){rows, EXPERTS})), none = {0};
    lk_tensor h = lk_tanh(lk_linear(x, "in", WIDTH));
    lk_tensor p = lk_softmax(lk_add(lk_linear(h, "gate", EXPERTS), bias), -1);
    lk_groups groups = lk_group_rows(lk_topk(p, k).index, EXPERTS, 0);
    lk_tensor up = lk_parameter(g, "up", 3, ((int64_t[]){EXPERTS, WIDTH, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.3);
    lk_tensor down = lk_parameter(g, "down", 3, ((int64_t[]){EXPERTS, OUT, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.3);
    lk_tensor spare = lk_parameter(g, "spare", 3, ((int64_t[]){EXPERTS, 3, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.1);
    lk_tensor rows_of = lk_gather_rows(h, groups, none);
    lk_tensor z = lk_tanh(lk_grouped_linear(rows_of, up, groups));
    (void)lk_grouped_linear(rows_of, spare, groups); /* the loss does not depend on it */
    z = lk_combine_rows(lk_grouped_linear(z, down, groups), groups, lk_topk(p, k).values);
    lk_tensor loss = lk_mse(z, t);
    return s->balance ? lk_add(loss, lk_scale(lk_moe_balance(x), 0.1)) : loss;
}

/* axes NULL: one rank. */
static void make(const rank_test *r, net *n, const setting *s, const char *axes)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.leaves = s->leaves;
    config.parallel.reproducible_layout = s->layout;
    config.parallel.sum_part_minimum = s->layout ? 2 : 0;
    config.parallel.shard_stage = axes ? s->stage : 0;
    REQUIRE(lk_graph_create(r->context, LK_F32, &n->of.graph) == LK_OK);
    config.loss = record(n->of.graph, s, lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH));
    adam.kind = LK_ADAM;
    adam.lr = 0.01;
    adam.clip = s->clip;
    config.optimizer = &adam;
    make_program(r, s->name, &config, &n->of);
    REQUIRE(lk_program_bind(n->of.program, "x", n->x) == LK_OK && lk_program_bind(n->of.program, "t", n->t) == LK_OK &&
            lk_program_bind(n->of.program, "bias", n->bias) == LK_OK);
}

/* Samples first … first + count of the batch of a step. */
static void fill_rows(net *n, const setting *s, int step, int64_t first, int64_t count)
{
    uint64_t from = (uint64_t)step * 100000;
    for (int64_t i = 0; i < count * IN; i++) n->x[i] = number(from + (uint64_t)(first * IN + i));
    for (int64_t i = 0; i < count * OUT; i++) n->t[i] = number(from + 50000 + (uint64_t)(first * OUT + i));
    for (int64_t i = 0; i < count * EXPERTS; i++) {
        int64_t expert = i % EXPERTS;
        bool    chosen = s->routing == ONE ? expert == (step + 5) % EXPERTS : expert % 2 == step % 2;
        n->bias[i] = s->routing == LEARNED || !chosen ? 0 : 20;
    }
}

static double train_step(const rank_test *r, const setting *s, net *n, int step, int64_t total)
{
    lk__split_job job = split_of(r, &n->of, s->leaves, 0);
    if (lk_mesh_size(n->of.mesh) == 1) job.rank = 0;
    lk__range  rows = lk__split_share(&job, total);
    lk_step    one = {.step = step + 1, .count = lk__range_count(rows), .total = total, .rate = 0.01};
    lk_metrics m;
    fill_rows(n, s, step, rows.first, one.count);
    REQUIRE(lk_program_train(n->of.program, &one) == LK_OK, "%s: %s", s->name, lk_context_error(r->context));
    lk_program_metrics(n->of.program, &m);
    return m.loss;
}

static void check_setting(rank_test *r)
{
    const setting   *s = r->user;
    static const int totals[STEPS] = {BATCH, 3, BATCH - 1};
    net              own, whole;
    uint64_t         allocations = 0;
    memory_before    before = memory_now(r);
    make(r, &own, s, s->mesh);
    check_stated_memory(r, s->name, &own.of, &before);
    make(r, &whole, s, NULL);
    for (int i = 0; i < STEPS; i++) {
        double a = train_step(r, s, &whole, i, totals[i]), b = train_step(r, s, &own, i, totals[i]);
        CHECK(a == b, "%s, rank %d, step %d: loss %.17g, not %.17g", s->name, r->rank, i, b, a);
        if (i == 0) allocations = lk_context_allocations(r->context);
    }
    CHECK(lk_context_allocations(r->context) == allocations, "%s, rank %d: %llu allocations", s->name, r->rank,
          (unsigned long long)(lk_context_allocations(r->context) - allocations));
    uint64_t a = lk_store_hash(whole.of.store), b = lk_store_hash(own.of.store);
    CHECK(a == b, "%s, rank %d: weights and moments %016llx, not %016llx", s->name, r->rank, (unsigned long long)b,
          (unsigned long long)a);
    free_net(&own.of);
    free_net(&whole.of);
}

static void run_settings(const setting *all, size_t count)
{
    for (size_t i = 0; i < count; i++) run_ranks(ranks_of_mesh(all[i].mesh), NULL, check_setting, (void *)&all[i]);
}

static void leaves_give_the_bits_of_one_rank(void)
{
    static const setting all[] = {
        {.name = "8 leaves", .mesh = "expert=2", .leaves = 8},
        {.name = "6 leaves", .mesh = "expert=4", .leaves = 6},
        {.name = "a leaf each", .mesh = "expert=8", .leaves = 8, .k = 3},
        {.name = "11 leaves", .mesh = "data=2,expert=2", .leaves = 11},
        {.name = "expert outside", .mesh = "expert=2,data=3", .leaves = 7},
        {.name = "all to one", .mesh = "expert=4", .leaves = 8, .k = 1, .routing = ONE},
        {.name = "half gets none", .mesh = "data=2,expert=4", .leaves = 9, .routing = HALF},
        {.name = "stage 1", .mesh = "shard=2,expert=2", .leaves = 8, .stage = 1},
        {.name = "stage 3", .mesh = "shard=2,expert=2", .leaves = 5, .stage = 3},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* Where every sum is made in one order: the norm of clipping, and an auxiliary loss, which is that of each leaf. */
static void one_result_in_every_layout(void)
{
    static const setting all[] = {
        {.name = "clipped", .mesh = "expert=4", .leaves = 8, .layout = true, .balance = true, .clip = 0.1},
        {.name = "data inside", .mesh = "expert=2,data=2", .leaves = 6, .layout = true, .balance = true, .clip = 0.1},
        {.name = "sharded", .mesh = "shard=2,data=2,expert=2", .leaves = 8, .stage = 2, .layout = true, .clip = 0.1},
        {.name = "expert between", .mesh = "data=2,expert=2,shard=2", .leaves = 9, .layout = true, .balance = true},
        {.name = "the rest sliced", .mesh = "expert=2", .leaves = 6, .stage = 3, .layout = true, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* ---- mistakes ---- */

static void refuse(const setting *s, bool twice, const char *sentence)
{
    lk_context         *c;
    lk_mesh_config      mesh = LK_MESH_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_mesh            *m;
    lk_graph           *g;
    lk_plan            *plan;
    mesh.axes = s->mesh;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK && lk_mesh_create(c, &mesh, &m) == LK_OK &&
            lk_graph_create(c, LK_F32, &g) == LK_OK);
    config.mesh = m;
    config.optimizer = &sgd;
    config.parallel.leaves = s->leaves;
    if (twice) {
        lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){8, WIDTH})), none = {0};
        lk_tensor w = lk_parameter(g, "w", 3, ((int64_t[]){4, WIDTH, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.3);
        lk_groups groups = lk_group_rows(lk_topk(lk_linear(x, "gate", 4), 2).index, 4, 0);
        lk_tensor y = lk_tanh(lk_grouped_linear(lk_gather_rows(x, groups, none), w, groups));
        config.loss = lk_mse(lk_combine_rows(lk_grouped_linear(y, w, groups), groups, none), x);
    } else {
        config.loss = record(g, s, 8);
    }
    CHECK(lk_plan_create(g, &config, &plan) < 0 && strstr(lk_context_error(c), sentence), "%s: %s", sentence,
          lk_context_error(c));
    lk_graph_free(g);
    lk_mesh_free(m);
    lk_context_free(c);
}

static void what_leaves_cannot_add_is_refused(void)
{
    refuse(&(setting){.mesh = "expert=2", .leaves = 4, .balance = true}, false,
           "use --reproducible layout, which computes that loss for each leaf");
    refuse(&(setting){.mesh = "expert=2", .leaves = 4}, true,
           "several uses of a parameter while training with leaves, which is not supported");
}

static void other_devices_refuse_leaves(void)
{
    refuse(&(setting){.mesh = "expert=2", .leaves = 4}, false, "an expert's rows are not summed leaf by leaf");
}

int main(void)
{
    lk_context *c;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    bool cpu = strcmp(lk_context_device(c), "cpu") == 0;
    lk_context_free(c);
    if (cpu) {
        RUN(leaves_give_the_bits_of_one_rank);
        RUN(one_result_in_every_layout);
        RUN(what_leaves_cannot_add_is_refused);
    } else {
        RUN(other_devices_refuse_leaves);
    }
    return check_result();
}
