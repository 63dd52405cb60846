/* test_experts.c - layers whose experts are split over the expert axis train as on one rank: losses, gradients, weights
 * and outputs in f64, for ranks as threads, with experts that get no token, one that gets all, capacities, unequal and
 * empty batches, and the other axes.
 *
 * ctest: timeout 300, label threaded, ranks 8 */
#include "mesh_training.h"

#include <lockstep/moe.h>

typedef enum model { LAYER, MIXTRAL } model;
/* Where a router sends tokens: anywhere; all to one expert; to half of them. */
typedef enum routing { LEARNED, ONE, HALF } routing;

typedef struct setting {
    const char *name, *mesh;
    model       model;
    routing     routing;
    int         micro_batches, stage, experts, k;
    bool        recompute, balance, shared;
    double      clip, capacity;
} setting;

/* A layer of the caller's own: its router adds a bias of the batch, by which tests choose the routes. */
static lk_tensor record_layer(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    int64_t   k = s->k ? s->k : 2, experts = s->experts, none_of[] = {experts, OUT};
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){rows, OUT}));
    lk_tensor bias = lk_input(g, "bias", LK_F64, 2, ((int64_t[]){rows, experts})), none = {0};
    lk_tensor h = lk_tanh(lk_linear(x, "in", WIDTH));
    lk_tensor p = lk_softmax(lk_add(lk_linear(h, "gate", experts), bias), -1);
    lk_groups groups = lk_group_rows(lk_topk(p, k).index, experts, (int64_t)s->capacity);
    lk_tensor up = lk_parameter(g, "up", 3, ((int64_t[]){experts, WIDTH, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.3);
    lk_tensor down = lk_parameter(g, "down", 3, ((int64_t[]){experts, OUT, WIDTH}), .init = LK_INIT_UNIFORM, .a = 0.3);
    /* never used by the loss */
    lk_tensor unused = lk_parameter(g, "unused", 2, none_of, .init = LK_INIT_UNIFORM, .a = 0.1);
    lk_tensor scale = lk_parameter(g, "scale", 1, ((int64_t[]){WIDTH}), .init = LK_INIT_UNIFORM, .a = 1);
    lk_tensor z = lk_mul(lk_grouped_linear(lk_gather_rows(h, groups, none), up, groups), scale);
    z = lk_tanh(z);
    z = lk_combine_rows(lk_grouped_linear(z, down, groups), groups, lk_topk(p, k).values);
    (void)unused;
    *y = z;
    lk_tensor loss = lk_mse(z, t);
    return s->balance ? lk_add(loss, lk_scale(lk_moe_balance(x), 0.1)) : loss;
}

static lk_tensor record_mixtral(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_transformer_config c = small_transformer(LK_TRANSFORMER_LLAMA);
    c.hidden = 16;
    c.experts = s->experts;
    c.experts_per_token = s->k;
    c.recompute = s->recompute ? 1 : 0;
    lk_tensor loss = record_transformer(g, &c, rows, y);
    return s->balance ? lk_add(loss, lk_scale(lk_moe_balance(*y), 0.1)) : loss;
}

static void make(const rank_test *r, net *n, const void *of, const char *axes)
{
    const setting *s = of;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      y;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.micro_batches = s->micro_batches;
    config.parallel.shard_stage = axes ? s->stage : 0;
    config.parallel.state = axes && s->shared ? LK_STATE_SHARED : LK_STATE_REPLICATED;
    int64_t rows = lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->of.graph) == LK_OK);
    config.loss = s->model == LAYER ? record_layer(n->of.graph, s, rows, &y) : record_mixtral(n->of.graph, s, rows, &y);
    make_training(r, s->name, s->clip, &config, y, n);
    s->model == LAYER ? bind_rows(n) : bind_text(n);
    if (s->model == LAYER) REQUIRE(lk_program_bind(n->of.program, "bias", n->bias) == LK_OK);
}

static void fill_bias(net *n, const void *of, int step, int64_t count)
{
    const setting *s = of;
    for (int64_t i = 0; i < count * s->experts && s->model == LAYER; i++) {
        int64_t expert = i % s->experts;
        bool    chosen = s->routing == ONE ? expert == (step + 1) % s->experts : expert % 2 == step % 2;
        n->bias[i] = s->routing == LEARNED || !chosen ? 0 : 20;
    }
}

/* Outputs of an evaluation, where each rank has its own samples. */
static void compare_outputs(const rank_test *r, const void *of, net *own, net *whole, lk__range rows, int64_t total)
{
    const setting *s = of;
    int64_t        each = s->model == LAYER ? OUT : TOKENS * WIDTH, count = lk__range_count(rows);
    double         a[BATCH * TOKENS * WIDTH], b[BATCH * TOKENS * WIDTH], largest = 1e-3;
    lk_step        step = {.step = 1, .count = count, .total = total};
    REQUIRE(lk_program_step(own->of.program, &step) == LK_OK && lk_program_run(own->of.program, LK_EVALUATE) == LK_OK,
            "%s: %s", s->name, lk_context_error(r->context));
    REQUIRE(lk_program_output_read(own->of.program, 0, b, (size_t)(count * each) * sizeof *b) == LK_OK);
    step.count = total;
    REQUIRE(lk_program_step(whole->of.program, &step) == LK_OK &&
            lk_program_run(whole->of.program, LK_EVALUATE) == LK_OK);
    REQUIRE(lk_program_output_read(whole->of.program, 0, a, (size_t)(total * each) * sizeof *a) == LK_OK);
    double worst = largest_difference(b, a + rows.first * each, LK_F64, count * each, &largest);
    CHECK(worst <= 1e-9 * largest, "%s, rank %d: outputs differ by %g of %g", s->name, r->rank, worst, largest);
}

static mesh_case case_of(const setting *s)
{
    return (mesh_case){.name = s->name,
                       .mesh = s->mesh,
                       .micro_batches = s->micro_batches,
                       .setting = s,
                       .make = make,
                       .fill = fill_bias};
}

static void check_setting(rank_test *r)
{
    const setting *s = r->user;
    mesh_case      c = case_of(s);
    net            own, whole;
    if (s->micro_batches == 0) c.compare_updated = compare_outputs;
    train_as_on_one_rank(r, &c, &own, &whole);
    end_training(r, s->name, &own, &whole);
}

static void run_settings(const setting *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!gpu_leaves_out((int)i, 0, 3))
            run_on_mesh(all[i].mesh, i == 0 || all[i].routing != LEARNED, check_setting, &all[i]);
}

/* A capacity is that of each rank's own tokens: which are omitted does not depend on who has the experts. */
static void check_capacity(rank_test *r)
{
    const setting  *s = r->user;
    const mesh_case c = case_of(s);
    net             own, other;
    char            data[32];
    check_memory(r, &c);
    snprintf(data, sizeof data, "data=%d", r->size);
    make(r, &own, s, s->mesh);
    make(r, &other, s, data);
    lk__split_job job = split_of(r, &own.of, 0, 0);
    for (int i = 0; i < STEPS; i++) {
        int64_t   total = i == 2 ? 1 : BATCH;
        lk__range rows = lk__split_share(&job, total);
        compare_step(r, &c, &own, &other, (mesh_step){i, rows, rows, total});
    }
    free_net(&own.of);
    free_net(&other.of);
}

static void a_capacity_omits_the_same_tokens(void)
{
    static const setting all[] = {
        {.name = "capacity 1", .mesh = "expert=2", .experts = 4, .capacity = 1, .clip = 0.1},
        {.name = "capacity 1, all to one", .mesh = "expert=2", .experts = 4, .k = 1, .capacity = 1, .routing = ONE},
        {.name = "capacity 1, half gets none", .mesh = "expert=2", .experts = 4, .capacity = 1, .routing = HALF},
        {.name = "capacity of all", .mesh = "expert=2", .experts = 4, .capacity = BATCH, .routing = ONE, .k = 1},
        {.name = "capacity, data", .mesh = "data=2,expert=2", .experts = 4, .capacity = 1, .clip = 0.1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!gpu_leaves_out((int)i, 0, 3)) run_on_mesh(all[i].mesh, i == 1, check_capacity, &all[i]);
}

static void a_layer_trains_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "2 ranks", .mesh = "expert=2", .experts = 4, .clip = 0.1},
        {.name = "an expert each", .mesh = "expert=4", .experts = 4},
        {.name = "more ranks than samples", .mesh = "expert=8", .experts = 8},
        {.name = "all to one", .mesh = "expert=2", .experts = 4, .k = 1, .routing = ONE, .clip = 0.1},
        {.name = "all to one of 4", .mesh = "expert=4", .experts = 8, .k = 1, .routing = ONE},
        {.name = "half gets none", .mesh = "expert=4", .experts = 8, .routing = HALF},
        {.name = "balance", .mesh = "expert=2", .experts = 4, .balance = true},
        {.name = "micro-batches", .mesh = "expert=2", .experts = 4, .micro_batches = 2, .clip = 0.1},
        {.name = "data", .mesh = "data=2,expert=2", .experts = 4, .clip = 0.1},
        {.name = "expert outside", .mesh = "expert=2,data=2", .experts = 4, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void mixtral_trains_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "mixtral", .mesh = "expert=2", .model = MIXTRAL, .experts = 4, .balance = true, .clip = 0.1},
        {.name = "recomputed", .mesh = "expert=4", .model = MIXTRAL, .experts = 4, .recompute = true},
        {.name = "tensor", .mesh = "expert=2,tensor=2", .model = MIXTRAL, .experts = 4, .clip = 0.1},
        {.name = "tensor outside", .mesh = "tensor=2,expert=2", .model = MIXTRAL, .experts = 4, .balance = true},
        {.name = "three axes", .mesh = "data=2,expert=2,tensor=2", .model = MIXTRAL, .experts = 4, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void experts_and_shard_multiply(void)
{
    static const setting all[] = {
        {.name = "stage 1", .mesh = "shard=2,expert=2", .model = MIXTRAL, .experts = 4, .stage = 1, .clip = 0.1},
        {.name = "stage 2", .mesh = "shard=2,expert=2", .model = MIXTRAL, .experts = 4, .stage = 2, .micro_batches = 2},
        {.name = "stage 3", .mesh = "shard=2,expert=2", .model = MIXTRAL, .experts = 4, .stage = 3, .clip = 0.1},
        {.name = "expert outside", .mesh = "expert=2,shard=2", .model = MIXTRAL, .experts = 4, .clip = 0.1},
        {.name = "the rest sliced", .mesh = "expert=2", .model = MIXTRAL, .experts = 4, .stage = 3, .clip = 0.1},
        {.name = "the rest in stage 2", .mesh = "expert=2", .model = MIXTRAL, .experts = 4, .stage = 2},
        {.name = "the rest in stage 1", .mesh = "expert=2", .model = MIXTRAL, .experts = 4, .stage = 1},
        {.name = "data", .mesh = "data=2,shard=2,expert=2", .model = MIXTRAL, .experts = 4, .clip = 0.1},
        {.name = "tensor", .mesh = "shard=2,expert=2,tensor=2", .model = MIXTRAL, .experts = 4, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* One copy of what all have, and in the same memory the parts of experts. */
static void ranks_of_a_host_share_the_state(void)
{
    static const setting all[] = {
        {.name = "shared, a layer", .mesh = "expert=2", .experts = 4, .clip = 0.1, .shared = true},
        {.name = "shared, an expert each", .mesh = "expert=4", .experts = 4, .shared = true},
        {.name = "shared, all to one", .mesh = "expert=2", .experts = 4, .k = 1, .routing = ONE, .shared = true},
        {.name = "shared", .mesh = "expert=2", .model = MIXTRAL, .experts = 4, .clip = 0.1, .shared = true},
        {.name = "shared, data",
         .mesh = "data=2,expert=2",
         .model = MIXTRAL,
         .experts = 4,
         .clip = 0.1,
         .shared = true},
        {.name = "shared, shard", .mesh = "expert=2,shard=2", .model = MIXTRAL, .experts = 4, .shared = true},
        {.name = "shared, tensor",
         .mesh = "expert=2,tensor=2",
         .model = MIXTRAL,
         .experts = 4,
         .clip = 0.1,
         .shared = true},
        {.name = "shared, micro-batches",
         .mesh = "data=2,expert=2",
         .model = MIXTRAL,
         .experts = 4,
         .micro_batches = 2,
         .shared = true},
        {.name = "shared, three axes",
         .mesh = "data=2,expert=2,tensor=2",
         .model = MIXTRAL,
         .experts = 4,
         .clip = 0.1,
         .shared = true},
    };
    lk_context *c;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    bool host = lk__device_is_host(lk__context_device(c));
    lk_context_free(c);
    for (size_t i = 0; i < sizeof all / sizeof *all && host; i++)
        run_on_mesh(all[i].mesh, false, check_setting, &all[i]);
}

/* ---- mistakes ---- */

static const setting two_groupings = {.experts = 4};

/* Two layers add what experts of different groupings made, row by row, as if these were the same tokens. */
static lk_tensor record_two_groupings(lk_graph *g)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){BATCH, IN})), sum = {0}, none = {0};
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){BATCH, OUT})), values = {0};
    lk_groups groups;
    for (int i = 0; i < 2; i++) {
        lk_block_begin(x, i ? "b" : "a");
        lk_topk_result top = lk_topk(lk_softmax(lk_linear(x, "gate", 4), -1), 2);
        groups = lk_group_rows(top.index, 4, 0);
        values = top.values;
        lk_tensor w = lk_parameter(g, "w", 3, ((int64_t[]){4, OUT, IN}), .init = LK_INIT_UNIFORM, .a = 0.3);
        lk_tensor y = lk_grouped_linear(lk_gather_rows(x, groups, none), w, groups);
        lk_block_end(x);
        sum = i ? lk_add(sum, y) : y;
    }
    return lk_mse(lk_combine_rows(sum, groups, values), t);
}

static void refuse(lk_context *c, const char *axes, const setting *s, const char *sentence)
{
    lk_mesh_config      mesh = LK_MESH_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_mesh            *m;
    lk_graph           *g;
    lk_plan            *plan;
    lk_tensor           y;
    mesh.axes = axes;
    REQUIRE(lk_mesh_create(c, &mesh, &m) == LK_OK && lk_graph_create(c, LK_F64, &g) == LK_OK);
    if (s && s != &two_groupings) config.loss = record_layer(g, s, BATCH, &y);
    if (!s)
        config.loss = lk_mse(lk_linear(lk_input(g, "x", LK_F64, 2, ((int64_t[]){BATCH, IN})), "fc", OUT),
                             lk_input(g, "t", LK_F64, 2, ((int64_t[]){BATCH, OUT})));
    if (s == &two_groupings) config.loss = record_two_groupings(g);
    config.mesh = m;
    config.optimizer = &sgd;
    config.parallel.leaves = s && s->capacity > 0 ? 8 : 0;
    CHECK(lk_plan_create(g, &config, &plan) < 0 && strstr(lk_context_error(c), sentence), "%s: %s", sentence,
          lk_context_error(c));
    lk_graph_free(g);
    lk_mesh_free(m);
}

static void mistakes_are_one_sentence(void)
{
    static const setting four = {.experts = 4}, full = {.experts = 4, .capacity = 2};
    lk_context          *c;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    refuse(c, "expert=2", NULL, "has 2 ranks along expert, but the model has no experts");
    refuse(c, "expert=3", &four,
           "has 3 ranks along expert, which do not divide the 4 experts of \"up\"; the nearest "
           "extent that works is expert=2");
    refuse(c, "expert=7", &four, "the nearest extent that works is expert=4");
    refuse(c, "expert=8", &four, "do not divide the 4 experts");
    refuse(c, "data=1", &full, "group_rows has a capacity, which applies to all samples that run together");
    refuse(c, "expert=2", &two_groupings, "add reads rows of two groupings of tokens");
    lk_context_free(c);
}

int main(void)
{
    RUN(a_layer_trains_as_on_one_rank);
    RUN(a_capacity_omits_the_same_tokens);
    RUN(mixtral_trains_as_on_one_rank);
    RUN(experts_and_shard_multiply);
    RUN(ranks_of_a_host_share_the_state);
    RUN(mistakes_are_one_sentence);
    return check_result();
}
