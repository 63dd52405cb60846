/* test_pipeline.c - models that are cut into stages along the axis pipeline train as on one rank: losses, weights and
 * gradients in f64, for ranks as threads, with several micro-batches, unequal and empty batches.
 *
 * ctest: timeout 300, label threaded, ranks 8 */
#include "gpu_cases.h"
#include "mesh_net.h"

#include "plan/pipeline.h"

enum { BATCH = 6, TOKENS = 8, VOCABULARY = 24, WIDTH = 16, IN = 6, HIDDEN = 12, OUT = 4, STEPS = 4 };

typedef enum model { MLP, GPT, LLAMA, SKIPS, PLAIN } model;

typedef struct setting {
    const char          *name, *mesh;
    model                model;
    int                  micro_batches, leaves, stage, layers, hosts; /* layers 0: 2 */
    bool                 recompute, untied, whole_sequences, layout, shared;
    double               clip, dropout;
    lk_pipeline_schedule schedule;
} setting;

typedef struct net {
    mesh_net of;
    double   x[BATCH * IN], t[BATCH * OUT];
    int32_t  tokens[BATCH * TOKENS], labels[BATCH * TOKENS];
    int64_t  ids[BATCH];
} net;

static double number(uint64_t index) { return (double)(int64_t)(number_bits(5, index) >> 40) * 0x1p-23 - 1; }

/* Layers with blocks of their own, values that skip stages, and operations between blocks; or no blocks at all. */
static lk_tensor record_rows(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){rows, OUT}));
    lk_tensor h = lk_relu(lk_linear(x, "up", HIDDEN)), first = h;
    if (s->model == PLAIN) {
        lk_tensor a = lk_parameter(g, "a", 2, ((int64_t[]){HIDDEN, HIDDEN}), .init = LK_INIT_UNIFORM, .a = 0.3);
        lk_tensor b = lk_parameter(g, "b", 2, ((int64_t[]){OUT, HIDDEN}), .init = LK_INIT_UNIFORM, .a = 0.3),
                  none = {0};
        *y = lk_f_linear(lk_tanh(lk_f_linear(h, a, none)), b, none);
        return lk_mse(*y, t);
    }
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "blocks.%d", i);
        lk_block_begin(h, name);
        h = lk_tanh(lk_linear(h, "middle", HIDDEN));
        lk_block_end(h);
        if (s->model == SKIPS && i == 2) h = lk_add(h, first);
    }
    *y = lk_linear(h, "down", OUT);
    return lk_mse(*y, t);
}

static lk_tensor record_text(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    lk_tensor             tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor             labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    c.kind = s->model == GPT ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA;
    c.vocabulary = VOCABULARY;
    c.context = TOKENS;
    c.layers = s->layers ? s->layers : 2;
    c.heads = 4;
    c.kv_heads = s->model == GPT ? 0 : 2;
    c.width = WIDTH;
    c.hidden = 32;
    c.untied = s->untied;
    c.recompute = s->recompute ? 1 : 0;
    c.dropout = s->dropout;
    c.attention_dropout = s->dropout;
    lk_transformer_result made = lk_transformer(tokens, &c);
    *y = made.hidden;
    return lk_linear_cross_entropy(made.hidden, made.head, labels);
}

/* axes NULL: one rank. */
static void make(const rank_test *r, net *n, const setting *s, const char *axes)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           y;
    bool                text = s->model == GPT || s->model == LLAMA;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.micro_batches = s->micro_batches;
    config.parallel.pipeline_schedule = s->schedule;
    config.parallel.leaves = axes || s->layout ? s->leaves : 0;
    config.parallel.reproducible_layout = s->layout;
    config.parallel.pipeline_schedule = s->schedule;
    config.no_sequence_parallel = s->whole_sequences;
    config.parallel.shard_stage = axes ? s->stage : 0;
    config.parallel.hosts = axes ? s->hosts : 0; /* as the plan has them: each rank is on this one */
    config.parallel.state = axes && s->shared ? LK_STATE_SHARED : LK_STATE_REPLICATED;
    int64_t rows = lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->of.graph) == LK_OK);
    config.loss = text ? record_text(n->of.graph, s, rows, &y) : record_rows(n->of.graph, s, rows, &y);
    adam.kind = LK_ADAM;
    adam.lr = 0.01;
    adam.clip = s->clip;
    config.outputs = &y;
    config.outputs_count = 1;
    config.optimizer = &adam;
    make_program(r, s->name, &config, &n->of);
    REQUIRE(lk_program_bind(n->of.program, text ? "tokens" : "x", text ? (void *)n->tokens : n->x) == LK_OK &&
            lk_program_bind(n->of.program, text ? "labels" : "t", text ? (void *)n->labels : n->t) == LK_OK);
}

/* Samples first … first + count of the batch of a step. */
static void fill_rows(net *n, int step, int64_t first, int64_t count)
{
    uint64_t from = (uint64_t)step * 100000;
    for (int64_t i = 0; i < count; i++) n->ids[i] = step * BATCH + first + i;
    for (int64_t i = 0; i < count * IN; i++) n->x[i] = number(from + (uint64_t)(first * IN + i));
    for (int64_t i = 0; i < count * OUT; i++) n->t[i] = number(from + 50000 + (uint64_t)(first * OUT + i));
    for (int64_t i = 0; i < count * TOKENS; i++) {
        n->tokens[i] = (int32_t)(number_bits(7, from + (uint64_t)(first * TOKENS + i)) % VOCABULARY);
        n->labels[i] = (int32_t)(number_bits(8, from + (uint64_t)(first * TOKENS + i)) % VOCABULARY);
    }
}

static double train_step(const rank_test *r, const setting *s, net *n, lk_step step)
{
    lk_metrics m;
    REQUIRE(lk_program_compute(n->of.program, &step) == LK_OK, "%s: %s", s->name, lk_context_error(r->context));
    lk_program_metrics(n->of.program, &m);
    return m.loss;
}

static void update(const rank_test *r, const setting *s, net *n)
{
    REQUIRE(lk_program_run(n->of.program, LK_UPDATE) == LK_OK, "%s: %s", s->name, lk_context_error(r->context));
}

/* Those of the caller, whole, instead of a backward's: one is scaled. */
static void write_gradients(const rank_test *r, const setting *s, net *n)
{
    lk_step     step = {.step = STEPS + 1, .count = 1, .total = 1, .rate = 0.01};
    const char *scaled = NULL;
    REQUIRE(lk_program_step(n->of.program, &step) == LK_OK);
    for (size_t i = 0; i < lk_store_count(n->of.store); i++) {
        lk_state state = lk_store_at(n->of.store, i);
        double  *values = copy_room(state_bytes(&state));
        if (state.buffer || state.frozen) continue;
        for (int64_t k = 0; k < state_elements(&state); k++) values[k] = number(i * 1000 + (uint64_t)k);
        REQUIRE(lk_program_gradient_write(n->of.program, state.name, values, state_bytes(&state)) == LK_OK, "%s: %s",
                s->name, lk_context_error(r->context));
        scaled = state.name;
    }
    REQUIRE(lk_program_gradient_scale(n->of.program, scaled, 0.5) == LK_OK, "%s", lk_context_error(r->context));
    update(r, s, n);
}

/* Every stage that holds the tied embedding has its whole gradient, and what is scaled there is scaled once. */
static void compare_tied(const rank_test *r, const setting *s, net *own, net *whole)
{
    const char *name = s->model == GPT ? "transformer.wte.weight" : "model.embed_tokens.weight";
    int         state = lk__find_state(own->of.graph, name);
    double      a[VOCABULARY * WIDTH], b[VOCABULARY * WIDTH], largest = 1e-3;
    if (state < 0 || !lk__plan_is_tied(own->of.plan, (size_t)state)) return;
    net *all[] = {own, whole};
    for (int i = 0; i < 2; i++)
        REQUIRE(lk_program_gradient_scale(all[i]->of.program, name, 0.5) == LK_OK, "%s: %s", s->name,
                lk_context_error(r->context));
    REQUIRE(lk_program_gradient_read(whole->of.program, name, a, sizeof a) == LK_OK);
    lk_status status = lk_program_gradient_read(own->of.program, name, b, sizeof b);
    if (!lk__plan_holds(own->of.plan, (size_t)state)) {
        CHECK(status == LK_ENOENT, "%s, rank %d: %d", s->name, r->rank, status);
        return;
    }
    REQUIRE(status == LK_OK, "%s, rank %d: %s", s->name, r->rank, lk_context_error(r->context));
    double worst = largest_difference(b, a, LK_F64, VOCABULARY * WIDTH, &largest);
    CHECK(worst <= 1e-9 * largest, "%s, rank %d: the tied gradient differs by %g of %g", s->name, r->rank, worst,
          largest);
}

/* The program alone is there: the plan states its memory to the byte, and steps and evaluations allocate nothing. */
static void check_memory(rank_test *r, const setting *s)
{
    net           n;
    uint64_t      allocations = 0;
    memory_before before = memory_now(r);
    make(r, &n, s, s->mesh);
    lk__split_job job = split_of(r, &n.of, s->leaves, s->micro_batches);
    lk__range     rows = lk__split_share(&job, BATCH);
    fill_rows(&n, 0, rows.first, lk__range_count(rows));
    for (int i = 0; i < 3; i++) {
        lk_step step = {.step = i + 1, .count = lk__range_count(rows), .total = BATCH, .rate = 0.01};
        if (i == 1) allocations = lk_context_allocations(r->context);
        REQUIRE(lk_program_train(n.of.program, &step) == LK_OK, "%s: %s", s->name, lk_context_error(r->context));
        step.count = 1;
        REQUIRE(lk_program_step(n.of.program, &step) == LK_OK && lk_program_run(n.of.program, LK_EVALUATE) == LK_OK,
                "%s: %s", s->name, lk_context_error(r->context));
    }
    CHECK(lk_context_allocations(r->context) == allocations, "%s, rank %d: %llu allocations", s->name, r->rank,
          (unsigned long long)(lk_context_allocations(r->context) - allocations));
    check_stated_memory(r, s->name, &n.of, &before);
    free_net(&n.of);
}

/* Every rank has the outputs of an evaluation. */
static void compare_outputs(rank_test *r, const setting *s, net *own, net *whole)
{
    bool          text = s->model == GPT || s->model == LLAMA;
    int64_t       count = text ? TOKENS * WIDTH : OUT;
    lk_step       step = {.step = STEPS, .count = 1, .total = 1};
    double        largest = 1e-3;
    const double *a, *b;
    net          *all[] = {own, whole};
    for (int i = 0; i < 2; i++) {
        fill_rows(all[i], STEPS, 0, 1);
        REQUIRE(lk_program_step(all[i]->of.program, &step) == LK_OK &&
                    lk_program_run(all[i]->of.program, LK_EVALUATE) == LK_OK,
                "%s: %s", s->name, lk_context_error(r->context));
    }
    a = output_copy(whole->of.program, 0, (size_t)count * sizeof *a);
    b = output_copy(own->of.program, 0, (size_t)count * sizeof *b);
    double worst = largest_difference(b, a, LK_F64, count, &largest);
    CHECK(worst <= 1e-9 * largest, "%s, rank %d: outputs differ by %g of %g", s->name, r->rank, worst, largest);
}

static void check_setting(rank_test *r)
{
    const setting   *s = r->user;
    static const int totals[STEPS] = {BATCH, BATCH - 1, 1, BATCH};
    net              own, whole;
    check_memory(r, s);
    make(r, &own, s, s->mesh);
    make(r, &whole, s, NULL);
    lk__split_job job = split_of(r, &own.of, s->leaves, s->micro_batches);
    CHECK(own.of.plan->splits, "%s: nothing is split", s->name);
    CHECK((own.of.plan->train.weights_begin > 0) ==
              (s->schedule == LK_PIPELINE_ZERO_BUBBLE && lk__plan_own_stage(own.of.plan) > 0),
          "%s, rank %d: gradients of weights begin at %zu", s->name, r->rank, own.of.plan->train.weights_begin);
    for (int i = 0; i < STEPS; i++) {
        lk__range rows = lk__split_share(&job, totals[i]);
        lk_step   step = {.step = i + 1, .count = lk__range_count(rows), .total = totals[i], .rate = 0.01};
        fill_rows(&own, i, rows.first, step.count);
        fill_rows(&whole, i, 0, totals[i]);
        step.sample_ids = own.ids;
        double b = train_step(r, s, &own, step);
        step.count = totals[i];
        step.sample_ids = whole.ids;
        double a = train_step(r, s, &whole, step);
        CHECK(fabs(a - b) <= 1e-9 * fabs(a), "%s, rank %d, step %d: loss %.15g, not %.15g", s->name, r->rank, i, b, a);
        compare_gradients(r, s->name, &own.of, &whole.of);
        compare_tied(r, s, &own, &whole);
        update(r, s, &own);
        update(r, s, &whole);
        compare_states(r, s->name, &own.of, &whole.of);
    }
    compare_outputs(r, s, &own, &whole);
    write_gradients(r, s, &own);
    write_gradients(r, s, &whole);
    compare_states(r, s->name, &own.of, &whole.of);
    REQUIRE(lk_program_verify(own.of.program, STEPS) == LK_OK, "%s: %s", s->name, lk_context_error(r->context));
    free_net(&own.of);
    free_net(&whole.of);
}

static void run_settings(const setting *all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lk_comm_config tcp = LK_COMM_CONFIG_INIT;
        if (gpu_leaves_out((int)i, 0, 3)) continue;
        tcp.backend = "tcp";
        int ranks = ranks_of_mesh(all[i].mesh);
        run_ranks(ranks, NULL, check_setting, (void *)&all[i]);
        if (i == 0) run_ranks(ranks, &tcp, check_setting, (void *)&all[i]);
    }
}

static void layers_train_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "blocks over 2", .mesh = "pipeline=2", .model = MLP},
        {.name = "blocks over 4, micro-batches", .mesh = "pipeline=4", .model = MLP, .micro_batches = 3, .clip = 0.1},
        {.name = "values that skip stages", .mesh = "pipeline=4", .model = SKIPS, .micro_batches = 2, .clip = 0.1},
        {.name = "without blocks", .mesh = "pipeline=3", .model = PLAIN},
        {.name = "on 2 hosts", .mesh = "pipeline=2,data=2", .model = MLP, .micro_batches = 5, .hosts = 2},
        {.name = "on 3 hosts", .mesh = "pipeline=3", .model = SKIPS, .micro_batches = 6, .hosts = 3, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void transformers_train_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "llama, untied", .mesh = "pipeline=2", .model = LLAMA, .untied = true},
        {.name = "gpt", .mesh = "pipeline=2", .model = GPT},
        {.name = "gpt, micro-batches", .mesh = "pipeline=2", .model = GPT, .micro_batches = 4, .clip = 0.1},
        {.name = "gpt, recomputed", .mesh = "pipeline=2", .model = GPT, .micro_batches = 2, .recompute = true},
        {.name = "gpt, dropout", .mesh = "pipeline=2", .model = GPT, .micro_batches = 2, .dropout = 0.2},
        {.name = "gpt over 4", .mesh = "pipeline=4", .model = GPT, .layers = 4, .micro_batches = 3, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void schedules_give_the_same_result(void)
{
    static const setting all[] = {
        {.name = "gpipe", .mesh = "pipeline=2", .model = GPT, .micro_batches = 4, .schedule = LK_PIPELINE_GPIPE},
        {.name = "gpipe over 4",
         .mesh = "pipeline=4",
         .model = GPT,
         .layers = 4,
         .micro_batches = 5,
         .clip = 0.1,
         .schedule = LK_PIPELINE_GPIPE},
        {.name = "zero-bubble",
         .mesh = "pipeline=2",
         .model = GPT,
         .micro_batches = 4,
         .clip = 0.1,
         .schedule = LK_PIPELINE_ZERO_BUBBLE},
        {.name = "zero-bubble over 3",
         .mesh = "pipeline=3,data=2",
         .model = LLAMA,
         .layers = 3,
         .micro_batches = 3,
         .recompute = true,
         .schedule = LK_PIPELINE_ZERO_BUBBLE},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void stages_multiply_with_other_axes(void)
{
    static const setting all[] = {
        {.name = "data", .mesh = "pipeline=2,data=2", .model = GPT, .micro_batches = 2, .clip = 0.1},
        {.name = "data outside", .mesh = "data=2,pipeline=2", .model = GPT, .clip = 0.1},
        {.name = "leaves", .mesh = "data=2,pipeline=2", .model = GPT, .leaves = 4, .clip = 0.1},
        {.name = "tensor", .mesh = "pipeline=2,tensor=2", .model = GPT, .micro_batches = 2, .clip = 0.1},
        {.name = "stage 1", .mesh = "pipeline=2,shard=2", .model = GPT, .stage = 1, .clip = 0.1},
        {.name = "stage 2", .mesh = "pipeline=2,shard=2", .model = GPT, .stage = 2, .micro_batches = 2},
        {.name = "stage 3", .mesh = "pipeline=2,shard=2", .model = GPT, .stage = 3, .clip = 0.1},
        {.name = "stage 3, micro-batches", .mesh = "pipeline=2,shard=2", .model = GPT, .stage = 3, .micro_batches = 3},
        {.name = "stage 1, leaves", .mesh = "shard=2,pipeline=2", .model = GPT, .stage = 1, .leaves = 4, .clip = 0.1},
        {.name = "three axes", .mesh = "data=2,pipeline=2,tensor=2", .model = LLAMA, .micro_batches = 2, .clip = 0.1},
        {.name = "stage 2, tensor", .mesh = "pipeline=2,shard=2,tensor=2", .model = LLAMA, .stage = 2, .untied = true},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* Each stage has one copy of its state, of which every rank updates a part. */
static void ranks_of_a_stage_share_its_state(void)
{
    setting all[] = {
        {.name = "shared, gpt", .mesh = "pipeline=2,data=2", .model = GPT, .micro_batches = 3, .clip = 0.1},
        {.name = "shared, shard", .mesh = "shard=2,pipeline=2", .model = LLAMA, .untied = true},
        {.name = "shared, unequal stages", .mesh = "data=2,pipeline=3", .model = MLP, .micro_batches = 2, .clip = 0.1},
        {.name = "shared, without blocks", .mesh = "pipeline=2,data=3", .model = PLAIN, .clip = 0.1},
        {.name = "shared, leaves", .mesh = "data=2,pipeline=2", .model = GPT, .leaves = 4, .clip = 0.1},
        {.name = "shared, tensor",
         .mesh = "data=2,pipeline=2,tensor=2",
         .model = LLAMA,
         .micro_batches = 2,
         .clip = 0.1},
        {.name = "shared, zero-bubble",
         .mesh = "pipeline=2,data=4",
         .model = GPT,
         .micro_batches = 4,
         .recompute = true,
         .clip = 0.1,
         .schedule = LK_PIPELINE_ZERO_BUBBLE},
    };
    if (getenv("LOCKSTEP_DEVICE")) return; /* shared in the host's memory alone */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i].shared = true;
        run_ranks(ranks_of_mesh(all[i].mesh), NULL, check_setting, &all[i]);
    }
}

/* Gradients of one slice are made at different times: those of norms with what other stages wait for. */
static void postponed_gradients_are_reduced_in_slices(void)
{
    setting all[] = {
        {.name = "gpt", .mesh = "pipeline=2,shard=2", .model = GPT, .micro_batches = 4, .clip = 0.1},
        {.name = "llama",
         .mesh = "shard=2,pipeline=3",
         .model = LLAMA,
         .layers = 3,
         .micro_batches = 3,
         .untied = true},
        {.name = "gpt, recomputed",
         .mesh = "data=2,shard=2,pipeline=2",
         .model = GPT,
         .micro_batches = 2,
         .recompute = true},
        {.name = "llama, tensor",
         .mesh = "pipeline=2,shard=2,tensor=2",
         .model = LLAMA,
         .micro_batches = 2,
         .clip = 0.1},
        {.name = "gpt, leaves", .mesh = "shard=2,pipeline=2", .model = GPT, .leaves = 4, .clip = 0.1},
    };
    for (int stage = 1; stage <= 3; stage++) {
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            all[i].stage = stage, all[i].schedule = LK_PIPELINE_ZERO_BUBBLE;
        run_settings(all, sizeof all / sizeof *all);
    }
}

/* More micro-batches than slots, and fewer; some of them empty, since a batch has at most 6 samples. */
static void every_schedule_trains_as_one_rank(void)
{
    setting all[] = {
        {.name = "gpt over 2", .mesh = "pipeline=2", .model = GPT, .micro_batches = 6, .clip = 0.1},
        {.name = "gpt over 3", .mesh = "pipeline=3", .model = GPT, .layers = 3, .micro_batches = 7},
        {.name = "values over 4", .mesh = "pipeline=4", .model = SKIPS, .micro_batches = 2, .clip = 0.1},
    };
    for (int k = 0; lk_pipeline_schedule_name((lk_pipeline_schedule)k); k++) {
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i].schedule = (lk_pipeline_schedule)k;
        run_settings(all, sizeof all / sizeof *all);
    }
}

/* Stages have different nodes, and are compared nevertheless: ranks with different settings do not start. */
static void differ(rank_test *r)
{
    static const char *const names[] = {"micro-batches", "clipping", "dropout"};
    for (int i = 0; i < 3; i++) {
        setting             s = {.name = names[i], .model = GPT, .micro_batches = 2, .clip = 1};
        lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
        lk_plan_config      config = LK_PLAN_CONFIG_INIT;
        mesh_net            n = {0};
        lk_tensor           y;
        if (r->rank == 1 && i == 0) s.micro_batches = 3;
        if (r->rank == 1 && i == 1) s.clip = 2;
        if (r->rank == 1 && i == 2) s.dropout = 0.5; /* in both stages */
        make_mesh(r, "pipeline=2", &n);
        REQUIRE(lk_graph_create(r->context, LK_F64, &n.graph) == LK_OK);
        config.loss = record_text(n.graph, &s, 2, &y);
        config.parallel.micro_batches = s.micro_batches;
        sgd.clip = s.clip;
        config.optimizer = &sgd;
        config.mesh = n.mesh;
        REQUIRE(lk_plan_create(n.graph, &config, &n.plan) == LK_OK, "%s", lk_context_error(r->context));
        CHECK(lk_store_create_shared(n.plan, 3, r->comm, &n.store) == LK_EMISMATCH, "%s: not refused", s.name);
        free_net(&n);
    }
}

static void stages_with_different_settings_do_not_start(void) { run_ranks(2, NULL, differ, NULL); }

int main(void)
{
    RUN(layers_train_as_on_one_rank);
    RUN(transformers_train_as_on_one_rank);
    RUN(schedules_give_the_same_result);
    RUN(stages_multiply_with_other_axes);
    RUN(ranks_of_a_stage_share_its_state);
    RUN(postponed_gradients_are_reduced_in_slices);
    RUN(stages_with_different_settings_do_not_start);
    RUN(every_schedule_trains_as_one_rank);
    return check_result();
}
