/* mesh_training.h - shared by the tests of models that are cut along one axis of a mesh: small models and batches in
 * f64 that every rank can generate, trained on the mesh and on one rank, whose losses, gradients and weights agree. */
#ifndef MESH_TRAINING_H
#define MESH_TRAINING_H

#include "gpu_cases.h"
#include "mesh_net.h"

enum { BATCH = 6, TOKENS = 8, VOCABULARY = 24, WIDTH = 16, IN = 6, OUT = 4, STEPS = 4, MOST_EXPERTS = 8 };

typedef struct net {
    mesh_net of;
    double   x[BATCH * IN], t[BATCH * OUT], bias[BATCH * MOST_EXPERTS]; /* bias: of a router */
    int32_t  tokens[BATCH * TOKENS], labels[BATCH * TOKENS];
    int64_t  ids[BATCH];
} net;

/* A setting of a test, as this file sees it. */
typedef struct mesh_case {
    const char *name, *mesh;
    int         leaves, micro_batches;
    const void *setting; /* the test's own */
    /* The model with its program; axes NULL: on one rank. */
    void (*make)(const rank_test *r, net *n, const void *setting, const char *axes);
    /* What else `count` rows of the batch of a step have. NULL: nothing. */
    void (*fill)(net *n, const void *setting, int step, int64_t count);
    /* Further comparisons, before the update of a step and after it. NULL: none. */
    void (*compare_computed)(const rank_test *r, const void *setting, net *own, net *whole);
    void (*compare_updated)(const rank_test *r, const void *setting, net *own, net *whole, lk__range rows,
                            int64_t total);
} mesh_case;

SHARED double number(uint64_t index) { return (double)(int64_t)(number_bits(5, index) >> 40) * 0x1p-23 - 1; }

SHARED lk_transformer_config small_transformer(lk_transformer_kind kind)
{
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    c.kind = kind;
    c.vocabulary = VOCABULARY;
    c.context = TOKENS;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = kind == LK_TRANSFORMER_GPT ? 0 : 2;
    c.width = WIDTH;
    c.hidden = 32;
    return c;
}

/* Its loss; *y: the last hidden values. */
SHARED lk_tensor record_transformer(lk_graph *g, const lk_transformer_config *c, int64_t rows, lk_tensor *y)
{
    lk_tensor             tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor             labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_transformer_result made = lk_transformer(tokens, c);
    *y = made.hidden;
    return lk_linear_cross_entropy(made.hidden, made.head, labels);
}

/* The program of a plan with the output y, trained by Adam. */
SHARED void make_training(const rank_test *r, const char *name, double clip, lk_plan_config *config, lk_tensor y,
                          net *n)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    adam.kind = LK_ADAM;
    adam.lr = 0.01;
    adam.clip = clip;
    config->outputs = &y;
    config->outputs_count = 1;
    config->optimizer = &adam;
    make_program(r, name, config, &n->of);
}

SHARED void bind_rows(net *n)
{
    REQUIRE(lk_program_bind(n->of.program, "x", n->x) == LK_OK && lk_program_bind(n->of.program, "t", n->t) == LK_OK);
}

SHARED void bind_text(net *n)
{
    REQUIRE(lk_program_bind(n->of.program, "tokens", n->tokens) == LK_OK &&
            lk_program_bind(n->of.program, "labels", n->labels) == LK_OK);
}

/* Samples first … first + count of the batch of a step. */
SHARED void fill_rows(net *n, int step, int64_t first, int64_t count)
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

static void fill_case(const mesh_case *c, net *n, int step, int64_t first, int64_t count)
{
    fill_rows(n, step, first, count);
    if (c->fill) c->fill(n, c->setting, step, count);
}

static double train_step(const rank_test *r, const char *name, net *n, lk_step step)
{
    lk_metrics m;
    REQUIRE(lk_program_compute(n->of.program, &step) == LK_OK, "%s: %s", name, lk_context_error(r->context));
    lk_program_metrics(n->of.program, &m);
    return m.loss;
}

SHARED void update(const rank_test *r, const char *name, net *n)
{
    REQUIRE(lk_program_run(n->of.program, LK_UPDATE) == LK_OK, "%s: %s", name, lk_context_error(r->context));
}

/* Those of the caller, whole, instead of a backward's: one is scaled. */
static void write_gradients(const rank_test *r, const char *name, net *n)
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
                name, lk_context_error(r->context));
        scaled = state.name;
    }
    REQUIRE(lk_program_gradient_scale(n->of.program, scaled, 0.5) == LK_OK, "%s", lk_context_error(r->context));
    update(r, name, n);
}

SHARED void update_with_written_gradients(const rank_test *r, const mesh_case *c, net *own, net *whole)
{
    write_gradients(r, c->name, own);
    write_gradients(r, c->name, whole);
    compare_states(r, c->name, &own->of, &whole->of);
}

/* The program alone is there: the plan states its memory to the byte, and steps and evaluations allocate nothing. */
SHARED void check_memory(const rank_test *r, const mesh_case *c)
{
    net           n;
    uint64_t      allocations = 0;
    memory_before before = memory_now(r);
    c->make(r, &n, c->setting, c->mesh);
    lk__split_job job = split_of(r, &n.of, c->leaves, c->micro_batches);
    lk__range     rows = lk__split_share(&job, BATCH);
    fill_case(c, &n, 0, rows.first, lk__range_count(rows));
    for (int i = 0; i < 3; i++) {
        lk_step step = {.step = i + 1, .count = lk__range_count(rows), .total = BATCH, .rate = 0.01};
        if (i == 1) allocations = lk_context_allocations(r->context);
        REQUIRE(lk_program_train(n.of.program, &step) == LK_OK, "%s: %s", c->name, lk_context_error(r->context));
        step.count = lk__range_count(rows) > 0;
        REQUIRE(lk_program_step(n.of.program, &step) == LK_OK && lk_program_run(n.of.program, LK_EVALUATE) == LK_OK,
                "%s: %s", c->name, lk_context_error(r->context));
    }
    CHECK(lk_context_allocations(r->context) == allocations, "%s, rank %d: %llu allocations", c->name, r->rank,
          (unsigned long long)(lk_context_allocations(r->context) - allocations));
    check_stated_memory(r, c->name, &n.of, &before);
    free_net(&n.of);
}

/* A step of two programs: which samples of the batch each has. */
typedef struct mesh_step {
    int       number;
    lk__range own, other;
    int64_t   total;
} mesh_step;

static double train_rows(const rank_test *r, const mesh_case *c, net *n, const mesh_step *s, lk__range rows)
{
    lk_step step = {
        .step = s->number + 1, .count = lk__range_count(rows), .total = s->total, .rate = 0.01, .sample_ids = n->ids};
    fill_case(c, n, s->number, rows.first, step.count);
    return train_step(r, c->name, n, step);
}

SHARED void compare_step(const rank_test *r, const mesh_case *c, net *own, net *other, mesh_step s)
{
    double b = train_rows(r, c, own, &s, s.own), a = train_rows(r, c, other, &s, s.other);
    CHECK(fabs(a - b) <= 1e-9 * fabs(a), "%s, rank %d, step %d: loss %.15g, not %.15g", c->name, r->rank, s.number, b,
          a);
    compare_gradients(r, c->name, &own->of, &other->of);
    if (c->compare_computed) c->compare_computed(r, c->setting, own, other);
    update(r, c->name, own);
    update(r, c->name, other);
    compare_states(r, c->name, &own->of, &other->of);
    if (c->compare_updated) c->compare_updated(r, c->setting, own, other, s.own, s.total);
}

/* The model on the mesh, with its memory checked, and on one rank; then STEPS steps of both. */
SHARED void train_as_on_one_rank(const rank_test *r, const mesh_case *c, net *own, net *whole)
{
    static const int totals[STEPS] = {BATCH, BATCH - 1, 1, BATCH};
    check_memory(r, c);
    c->make(r, own, c->setting, c->mesh);
    c->make(r, whole, c->setting, NULL);
    CHECK(own->of.plan->splits, "%s: nothing is split", c->name);
    lk__split_job job = split_of(r, &own->of, c->leaves, c->micro_batches);
    for (int i = 0; i < STEPS; i++)
        compare_step(r, c, own, whole, (mesh_step){i, lk__split_share(&job, totals[i]), {0, totals[i]}, totals[i]});
}

/* Both are freed; the ranks of the mesh agree. */
SHARED void end_training(const rank_test *r, const char *name, net *own, net *whole)
{
    REQUIRE(lk_program_verify(own->of.program, STEPS) == LK_OK, "%s: %s", name, lk_context_error(r->context));
    free_net(&own->of);
    free_net(&whole->of);
}

/* `check` on the ranks of a mesh, with the setting as their `user`; over_tcp: once more over TCP. */
SHARED void run_on_mesh(const char *mesh, bool over_tcp, void (*check)(rank_test *r), const void *setting)
{
    lk_comm_config tcp = LK_COMM_CONFIG_INIT;
    int            ranks = ranks_of_mesh(mesh);
    tcp.backend = "tcp";
    run_ranks(ranks, NULL, check, (void *)setting);
    if (over_tcp) run_ranks(ranks, &tcp, check, (void *)setting);
}

#endif
