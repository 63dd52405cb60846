/* test_pipeline.c - models that are cut into stages along the pipeline axis train as on one rank: losses, weights and
 * gradients in f64, for ranks as threads, with several micro-batches, unequal and empty batches.
 *
 * ctest: timeout 300, label threaded, ranks 8 */
#include "mesh_training.h"

#include "plan/pipeline.h"

enum { HIDDEN = 12 };

typedef enum model { MLP, GPT, LLAMA, SKIPS, PLAIN } model;

typedef struct setting {
    const char          *name, *mesh;
    model                model;
    int                  micro_batches, leaves, stage, layers, hosts; /* layers 0: 2 */
    bool                 recompute, untied, whole_sequences, layout, shared;
    double               clip, dropout;
    lk_pipeline_schedule schedule;
} setting;

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
    lk_transformer_config c = small_transformer(s->model == GPT ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA);
    if (s->layers) c.layers = s->layers;
    c.untied = s->untied;
    c.recompute = s->recompute ? 1 : 0;
    c.dropout = s->dropout;
    c.attention_dropout = s->dropout;
    return record_transformer(g, &c, rows, y);
}

static bool is_text(const setting *s) { return s->model == GPT || s->model == LLAMA; }

static void make(const rank_test *r, net *n, const void *of, const char *axes)
{
    const setting *s = of;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      y;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.micro_batches = s->micro_batches;
    config.parallel.pipeline_schedule = s->schedule;
    config.parallel.leaves = axes || s->layout ? s->leaves : 0;
    config.parallel.reproducible_layout = s->layout;
    config.no_sequence_parallel = s->whole_sequences;
    config.parallel.shard_stage = axes ? s->stage : 0;
    config.parallel.hosts = axes ? s->hosts : 0; /* as the plan has them: each rank is on this one */
    config.parallel.state = axes && s->shared ? LK_STATE_SHARED : LK_STATE_REPLICATED;
    int64_t rows = lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->of.graph) == LK_OK);
    config.loss = is_text(s) ? record_text(n->of.graph, s, rows, &y) : record_rows(n->of.graph, s, rows, &y);
    make_training(r, s->name, s->clip, &config, y, n);
    is_text(s) ? bind_text(n) : bind_rows(n);
}

/* Every stage that holds the tied embedding has its whole gradient, and what is scaled there is scaled once. */
static void compare_tied(const rank_test *r, const void *of, net *own, net *whole)
{
    const setting *s = of;
    const char    *name = s->model == GPT ? "transformer.wte.weight" : "model.embed_tokens.weight";
    int            state = lk__find_state(own->of.graph, name);
    double         a[VOCABULARY * WIDTH], b[VOCABULARY * WIDTH], largest = 1e-3;
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

/* Every rank has the outputs of an evaluation. */
static void compare_outputs(rank_test *r, const setting *s, net *own, net *whole)
{
    int64_t       count = is_text(s) ? TOKENS * WIDTH : OUT;
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
    const setting  *s = r->user;
    const mesh_case c = {.name = s->name,
                         .mesh = s->mesh,
                         .leaves = s->leaves,
                         .micro_batches = s->micro_batches,
                         .setting = s,
                         .make = make,
                         .compare_computed = compare_tied};
    net             own, whole;
    train_as_on_one_rank(r, &c, &own, &whole);
    CHECK((own.of.plan->train.weights_begin > 0) ==
              (s->schedule == LK_PIPELINE_ZERO_BUBBLE && lk__plan_own_stage(own.of.plan) > 0),
          "%s, rank %d: gradients of weights begin at %zu", s->name, r->rank, own.of.plan->train.weights_begin);
    compare_outputs(r, s, &own, &whole);
    update_with_written_gradients(r, &c, &own, &whole);
    end_training(r, s->name, &own, &whole);
}

static void run_settings(const setting *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!gpu_leaves_out((int)i, 0, 3)) run_on_mesh(all[i].mesh, i == 0, check_setting, &all[i]);
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
        run_on_mesh(all[i].mesh, false, check_setting, &all[i]);
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
