/* test_vocabulary.c - a loss whose classes are cut over the tensor axis, in blocks of rows: losses, gradients and
 * weights are those of one rank, with tied and untied heads, smoothed and ignored labels, unequal and empty batches.
 *
 * ctest: timeout 300, label threaded, ranks 4 */
#include "mesh_net.h"

enum { BATCH = 4, TOKENS = 128, WIDTH = 4, CLASSES = 65536, STEPS = 2 };

typedef struct setting {
    const char *name, *mesh;
    lk_policy   policy;
    lk_dtype    real;
    bool        tied, whole_sequences;
    int         less; /* tokens of a sample than TOKENS */
    int         more; /* times so many classes; 0: once */
    int         blocks, micro_batches, leaves;
    double      smoothing, within;
} setting;

typedef struct net {
    mesh_net of;
    int32_t  tokens[BATCH * TOKENS], labels[BATCH * TOKENS];
} net;

static int64_t tokens_of(const setting *s) { return TOKENS - s->less; }
static int     classes_of(const setting *s) { return s->more ? s->more * CLASSES : CLASSES; }

static lk_tensor record(lk_graph *g, const setting *s, int64_t rows)
{
    int64_t   dims[] = {rows, tokens_of(s)}, table[] = {classes_of(s), WIDTH}, ignored = -7;
    lk_tensor tokens = lk_input(g, "tokens", LK_I32, 2, dims), labels = lk_input(g, "labels", LK_I32, 2, dims);
    lk_tensor words = lk_parameter(g, "words", 2, table, .init = LK_INIT_NORMAL, .a = 0.5), head = words;
    if (!s->tied) head = lk_parameter(g, "head", 2, table, .init = LK_INIT_NORMAL, .a = 0.5);
    lk_tensor x = lk_f_embedding(tokens, words);
    lk_tensor y = lk_gelu(lk_linear(lk_layer_norm(x, "before"), "grow", 4 * WIDTH));
    x = lk_layer_norm(lk_add(x, lk_linear(y, "shrink", WIDTH)), "last");
    return lk_linear_cross_entropy(x, head, labels, .label_smoothing = s->smoothing, .ignore_index = &ignored);
}

static void make(const rank_test *r, net *n, const setting *s, const char *axes)
{
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.micro_batches = s->micro_batches;
    config.parallel.leaves = axes ? s->leaves : 0;
    config.no_sequence_parallel = s->whole_sequences;
    config.policy = s->policy;
    int64_t rows = lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH);
    REQUIRE(lk_graph_create(r->context, s->real, &n->of.graph) == LK_OK);
    config.loss = record(n->of.graph, s, rows);
    sgd.kind = LK_SGD;
    sgd.lr = 0.1;
    config.optimizer = &sgd;
    make_program(r, s->name, &config, &n->of);
    REQUIRE(lk_program_bind(n->of.program, "tokens", n->tokens) == LK_OK &&
            lk_program_bind(n->of.program, "labels", n->labels) == LK_OK);
}

/* Samples first … first + count of the batch of a step; some labels are ignored. */
static void fill_rows(net *n, const setting *s, int step, int64_t first, int64_t count)
{
    uint64_t from = (uint64_t)step * 100000 + (uint64_t)(first * tokens_of(s));
    for (int64_t i = 0; i < count * tokens_of(s); i++) {
        n->tokens[i] = (int32_t)(number_bits(7, from + (uint64_t)i) % (uint64_t)classes_of(s));
        n->labels[i] = (int32_t)(number_bits(8, from + (uint64_t)i) % (uint64_t)classes_of(s));
        if (number_bits(9, from + (uint64_t)i) % 5 == 0) n->labels[i] = -7;
    }
}

static void compare(const setting *s, const char *what, const lk_state *state, const void *own, const void *whole)
{
    double largest = 1e-3;
    if (!own || !whole) return;
    double worst = largest_difference(own, whole, s->real, state_elements(state), &largest);
    CHECK(worst <= s->within * largest, "%s: %s of %s differs by %g of %g", s->name, what, state->name, worst, largest);
}

/* whole NULL: another rank compares. All ranks read, since they have parts of what is read. */
static void compare_all(const setting *s, net *own, net *whole)
{
    for (size_t i = 0; i < lk_store_count(own->of.store); i++) {
        lk_state state = lk_store_at(own->of.store, i);
        void    *gradient = gradient_copy(own->of.program, own->of.store, state.name), *value = NULL;
        if (state.dtype == s->real) value = state_copy(own->of.store, state.name);
        if (!whole) continue;
        compare(s, "the gradient", &state, gradient, gradient_copy(whole->of.program, whole->of.store, state.name));
        if (value) compare(s, "the value", &state, value, state_copy(whole->of.store, state.name));
    }
}

static lk_metrics compute(const rank_test *r, net *n, lk_step step)
{
    lk_metrics m;
    REQUIRE(lk_program_compute(n->of.program, &step) == LK_OK, "%s", lk_context_error(r->context));
    lk_program_metrics(n->of.program, &m);
    return m;
}

static lk_metrics evaluate(const rank_test *r, net *n, lk_step step)
{
    lk_metrics m;
    REQUIRE(lk_program_step(n->of.program, &step) == LK_OK && lk_program_run(n->of.program, LK_EVALUATE) == LK_OK, "%s",
            lk_context_error(r->context));
    lk_program_metrics(n->of.program, &m);
    return m;
}

static void compare_losses(const rank_test *r, const setting *s, const char *what, lk_metrics own, lk_metrics whole)
{
    CHECK(fabs(own.loss - whole.loss) <= s->within * fabs(whole.loss), "%s, rank %d: %s %.15g, not %.15g", s->name,
          r->rank, what, own.loss, whole.loss);
    if (s->within < 1e-3)
        CHECK(own.correct == whole.correct, "%s: %s: %g right, not %g", s->name, what, own.correct, whole.correct);
}

/* Blocks of rows, each of which exchanges its statistics; no value has the logits of all rows. */
static void check_blocks(const setting *s, const net *n)
{
    const lk__plan_list *lists[] = {&n->of.plan->train, &n->of.plan->evaluate};
    int64_t              parts = lk_mesh_extent(n->of.mesh, LK_AXIS_TENSOR);
    for (int k = 0; k < 2; k++) {
        const lk_graph *g = lists[k]->graph;
        int             blocks = 0;
        for (size_t i = 0; i < lists[k]->order_count; i++) {
            const lk__graph_node *node = &g->nodes[lists[k]->order[i]];
            blocks += node->op == LK__OP_class_statistics;
            for (int o = 0; o < node->outputs; o++) {
                const lk__graph_shape *y = node->out[o] < 0 ? NULL : &g->values[node->out[o]].shape;
                if (y && y->rank == 2 && y->dims[1] == classes_of(s) / parts)
                    CHECK(y->dims[0] * s->blocks <= BATCH * tokens_of(s), "%s: %lld rows", s->name,
                          (long long)y->dims[0]);
            }
        }
        CHECK(blocks == s->blocks, "%s: %d blocks", s->name, blocks);
    }
}

static void train(const rank_test *r, const setting *s, net *n, lk_step step, lk_metrics *m)
{
    uint64_t before = lk_context_allocations(r->context);
    *m = compute(r, n, step);
    REQUIRE(lk_program_run(n->of.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(r->context));
    if (step.step > 1)
        CHECK(lk_context_allocations(r->context) == before, "%s, rank %d: a step allocates", s->name, r->rank);
}

static void check_setting(rank_test *r)
{
    const setting   *s = r->user;
    static const int totals[STEPS] = {BATCH - 1, 1};
    net              own, whole;
    lk_metrics       a, b;
    bool             compares = r->rank == 0;
    memory_before    before = memory_now(r);
    make(r, &own, s, s->mesh);
    check_stated_memory(r, s->name, &own.of, &before);
    if (compares) make(r, &whole, s, NULL);
    check_blocks(s, &own);
    lk__split_job job = split_of(r, &own.of, s->leaves, s->micro_batches);
    for (int i = 0; i < STEPS; i++) {
        lk__range rows = lk__split_share(&job, totals[i]);
        lk_step   step = {.step = i + 1, .count = lk__range_count(rows), .total = totals[i], .rate = 0.1}, all = step;
        bool      evaluates = i > 0 && job.world == 1 && s->micro_batches <= 1;
        all.count = totals[i];
        fill_rows(&own, s, i, rows.first, step.count);
        train(r, s, &own, step, &a);
        if (compares) {
            fill_rows(&whole, s, i, 0, totals[i]);
            train(r, s, &whole, all, &b);
            compare_losses(r, s, "loss", a, b);
        }
        compare_all(s, &own, compares ? &whole : NULL);
        if (evaluates) a = evaluate(r, &own, step);
        if (evaluates && compares) compare_losses(r, s, "evaluation", a, evaluate(r, &whole, all));
    }
    REQUIRE(lk_program_verify(own.of.program, STEPS) == LK_OK, "%s", lk_context_error(r->context));
    free_net(&own.of);
    if (compares) free_net(&whole.of);
}

static void run_setting(setting s)
{
    if (!s.within) s.within = 1e-9, s.real = LK_F64;
    if (!s.blocks) s.blocks = 2;
    run_ranks(ranks_of_mesh(s.mesh), NULL, check_setting, &s);
}

static void blocks_of_rows_give_the_loss_of_one_rank(void)
{
    run_setting((setting){.name = "tied", .mesh = "tensor=2", .tied = true, .smoothing = 0.1});
    run_setting((setting){.name = "over 4", .mesh = "tensor=4", .smoothing = 0.2});
    run_setting((setting){.name = "odd", .mesh = "tensor=2", .less = 3, .tied = true, .blocks = 5});
}

static void other_axes_and_leaves_divide_the_batch(void)
{
    run_setting((setting){.name = "data", .mesh = "data=2,tensor=2", .more = 2});
    run_setting((setting){.name = "leaves", .mesh = "data=2,tensor=2", .leaves = 2, .tied = true, .more = 2});
    run_setting((setting){.name = "micro-batches, whole sequences",
                          .mesh = "tensor=2",
                          .micro_batches = 2,
                          .more = 2,
                          .whole_sequences = true});
}

static void bf16_is_near(void)
{
    run_setting((setting){.name = "bf16",
                          .mesh = "tensor=2",
                          .real = LK_F32,
                          .policy = LK_POLICY_BF16,
                          .smoothing = 0.1,
                          .within = 2e-2});
}

int main(void)
{
    RUN(blocks_of_rows_give_the_loss_of_one_rank);
    RUN(other_axes_and_leaves_divide_the_batch);
    RUN(bf16_is_near);
    return check_result();
}
