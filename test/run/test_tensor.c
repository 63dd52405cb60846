/* test_tensor.c - models whose values are cut over the tensor axis train as on one rank: losses, weights, gradients and
 * outputs in f64, for ranks as threads, in meshes of 2 to 8 ranks, with unequal and empty batches.
 *
 * ctest: timeout 300, label threaded, ranks 8 */
#include "mesh_training.h"

enum { HIDDEN = 12 };

typedef enum model { MLP, JOINED, IMAGES, GPT, LLAMA, PACKED, SLICED, MERGED } model; /* from GPT on: of text */

typedef struct setting {
    const char *name, *mesh, *tactics;
    model       model;
    int         micro_batches, leaves, stage;
    int         heads, kv_heads; /* 0: 4 and, of llama, 2 */
    int         pieces;
    bool        whole_sequences, recompute;
    double      clip, dropout;
} setting;

static lk_tensor record_mlp(lk_graph *g, int64_t rows, lk_tensor *y)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){rows, OUT}));
    lk_tensor h = lk_relu(lk_linear(x, "up", HIDDEN));
    *y = lk_linear(lk_tanh(lk_linear(h, "middle", 2 * HIDDEN)), "down", OUT);
    return lk_mse(*y, t);
}

/* Dropout of weights, and of two values that are concatenated, of each of which a rank has a part. */
static lk_tensor record_joined(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){rows, OUT}));
    lk_tensor w = lk_parameter(g, "w", 2, ((int64_t[]){2 * HIDDEN, IN}), .init = LK_INIT_UNIFORM, .a = 0.3);
    lk_tensor h = lk_matmul(lk_gelu(lk_linear(x, "in", 2 * HIDDEN)), lk_dropout(w, s->dropout));
    lk_tensor both[] = {lk_tanh(lk_linear(h, "a", HIDDEN)), lk_gelu(lk_linear(h, "b", HIDDEN))};
    *y = lk_linear(lk_dropout(lk_concat(both, 2, 1), s->dropout), "out", OUT);
    return lk_mse(*y, t);
}

/* Two convolutions, of which the second has its channels cut; backward needs them whole for the norm. */
static lk_tensor record_images(lk_graph *g, int64_t rows, lk_tensor *y)
{
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){rows, IN}));
    lk_tensor t = lk_input(g, "t", LK_F64, 2, ((int64_t[]){rows, OUT}));
    x = lk_reshape(lk_linear(x, "in", 2 * 8 * 8), 4, (int64_t[]){-1, 2, 8, 8});
    x = lk_relu(lk_conv2d(lk_conv2d(x, "stem", 8, 3, .padding = 1), "conv", 8, 3, .padding = 1));
    x = lk_max_pool2d(lk_max_pool2d(x, 2), 2);
    *y = lk_linear(lk_layer_norm(lk_flatten(x), "norm"), "out", OUT);
    return lk_mse(*y, t);
}

/* Dropout of rows that are the tokens of all samples. */
static lk_tensor record_merged(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_tensor tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor x = lk_embedding(tokens, "table", VOCABULARY, WIDTH);
    for (int i = 0; i < 2; i++) {
        lk_block_begin(x, i ? "second" : "first");
        lk_tensor h = lk_reshape(lk_layer_norm(x, "norm"), 2, (int64_t[]){-1, WIDTH});
        h = lk_dropout(lk_linear(lk_gelu(lk_linear(h, "up", 2 * WIDTH)), "down", WIDTH), s->dropout);
        x = lk_add(x, lk_reshape(h, 3, (int64_t[]){-1, TOKENS, WIDTH}));
        lk_block_end(x);
    }
    *y = x;
    return lk_cross_entropy(lk_linear(lk_layer_norm(x, "last"), "head", VOCABULARY), labels);
}

static lk_tensor record_text(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    lk_transformer_config c = small_transformer(s->model == GPT ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA);
    if (s->heads) c.heads = s->heads;
    if (s->kv_heads && s->model != GPT) c.kv_heads = s->kv_heads;
    c.recompute = s->recompute ? 1 : 0;
    c.dropout = s->dropout;
    c.attention_dropout = s->dropout;
    return record_transformer(g, &c, rows, y);
}

/* One product makes queries, keys and values, of unequal widths; attention reads them side by side, or slices. */
static lk_tensor record_packed(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    int64_t   heads = s->heads ? s->heads : 8, groups = s->kv_heads ? s->kv_heads : 2, d = 4;
    lk_tensor tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){rows, TOKENS})), none = {0};
    lk_tensor labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){rows, TOKENS}));
    lk_tensor x = lk_embedding(tokens, "table", VOCABULARY, WIDTH);
    for (int i = 0; i < 2; i++) {
        lk_block_begin(x, i ? "second" : "first");
        lk_tensor qkv = lk_linear(lk_layer_norm(x, "norm"), "qkv", (heads + 2 * groups) * d), q = qkv, k = none,
                  v = none;
        if (s->model == SLICED) {
            q = lk_tanh(lk_slice(qkv, 2, 0, heads * d));
            k = lk_slice(qkv, 2, heads * d, groups * d);
            v = lk_slice(qkv, 2, (heads + groups) * d, groups * d);
        }
        q = lk_attention(q, k, v, .heads = heads, .kv_heads = groups, .causal = true, .dropout = s->dropout);
        x = lk_add(x, lk_linear(q, "out", WIDTH));
        lk_block_end(x);
    }
    *y = x;
    return lk_cross_entropy(lk_linear(lk_layer_norm(x, "last"), "head", VOCABULARY), labels);
}

static lk_tensor record(lk_graph *g, const setting *s, int64_t rows, lk_tensor *y)
{
    switch (s->model) {
    case MLP: return record_mlp(g, rows, y);
    case JOINED: return record_joined(g, s, rows, y);
    case IMAGES: return record_images(g, rows, y);
    case PACKED:
    case SLICED: return record_packed(g, s, rows, y);
    case MERGED: return record_merged(g, s, rows, y);
    default: return record_text(g, s, rows, y);
    }
}

static void make(const rank_test *r, net *n, const void *of, const char *axes)
{
    const setting *s = of;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      y;
    memset(n, 0, sizeof *n);
    make_mesh(r, axes, &n->of);
    config.parallel.micro_batches = s->micro_batches;
    config.parallel.leaves = axes ? s->leaves : 0;
    config.no_sequence_parallel = s->whole_sequences;
    config.pieces = s->pieces;
    config.tactics = axes ? s->tactics : NULL;
    config.parallel.shard_stage = axes ? s->stage : 0;
    int64_t rows = lk_mesh_capacity(n->of.mesh, &config.parallel, BATCH);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->of.graph) == LK_OK);
    config.loss = record(n->of.graph, s, rows, &y);
    make_training(r, s->name, s->clip, &config, y, n);
    s->model < GPT ? bind_rows(n) : bind_text(n);
}

static void check_setting(rank_test *r)
{
    const setting  *s = r->user;
    const mesh_case c = {.name = s->name,
                         .mesh = s->mesh,
                         .leaves = s->leaves,
                         .micro_batches = s->micro_batches,
                         .setting = s,
                         .make = make};
    net             own, whole;
    train_as_on_one_rank(r, &c, &own, &whole);
    update_with_written_gradients(r, &c, &own, &whole);
    end_training(r, s->name, &own, &whole);
}

static void run_settings(const setting *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!gpu_leaves_out((int)i, 0, 3)) run_on_mesh(all[i].mesh, i == 0 || !runs_on_gpu(), check_setting, &all[i]);
}

static void a_perceptron_trains_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "mlp over 2", .mesh = "tensor=2", .model = MLP},
        {.name = "mlp over 4", .mesh = "tensor=4", .model = MLP},
        {.name = "mlp, data", .mesh = "data=2,tensor=2", .model = MLP, .clip = 0.1},
        {.name = "mlp, micro-batches", .mesh = "tensor=2", .model = MLP, .micro_batches = 2, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void convolutions_train_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "images over 2", .mesh = "tensor=2", .model = IMAGES, .clip = 0.1},
        {.name = "images, data", .mesh = "data=2,tensor=2", .model = IMAGES, .micro_batches = 2},
        {.name = "images over 4", .mesh = "tensor=4", .model = IMAGES},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void transformers_train_as_on_one_rank(void)
{
    static const setting all[] = {
        {.name = "gpt over 2, sequence", .mesh = "tensor=2", .model = GPT, .clip = 0.1},
        {.name = "gpt over 2", .mesh = "tensor=2", .model = GPT, .whole_sequences = true},
        {.name = "gpt over 4, sequence", .mesh = "tensor=4", .model = GPT},
        {.name = "gpt, data, recomputed", .mesh = "data=2,tensor=2", .model = GPT, .clip = 0.1, .recompute = true},
        {.name = "gpt, leaves", .mesh = "data=2,tensor=2", .model = GPT, .clip = 0.1, .leaves = 4},
        {.name = "gpt, dropout", .mesh = "tensor=2", .model = GPT, .dropout = 0.2},
        {.name = "gpt, dropout, whole sequences",
         .mesh = "tensor=4",
         .model = GPT,
         .dropout = 0.2,
         .whole_sequences = true},
        {.name = "gpt, dropout, data", .mesh = "data=2,tensor=2", .model = GPT, .dropout = 0.2, .recompute = true},
        {.name = "llama over 2", .mesh = "tensor=2", .model = LLAMA},
        {.name = "llama, data", .mesh = "data=2,tensor=2", .model = LLAMA, .micro_batches = 2, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* Queries are split by heads over all ranks, keys and values over as many as they have heads, with copies. */
static void fewer_heads_of_keys_than_ranks(void)
{
    static const setting all[] = {
        {.name = "2 over 4", .mesh = "tensor=4", .model = LLAMA},
        {.name = "2 over 4, whole sequences", .mesh = "tensor=4", .model = LLAMA, .whole_sequences = true},
        {.name = "1 over 2", .mesh = "tensor=2", .model = LLAMA, .kv_heads = 1, .clip = 0.1},
        {.name = "1 over 4", .mesh = "tensor=4", .model = LLAMA, .kv_heads = 1},
        {.name = "4 over 8", .mesh = "tensor=8", .model = LLAMA, .heads = 8, .kv_heads = 4, .clip = 0.1},
        {.name = "2 over 8", .mesh = "tensor=8", .model = LLAMA, .heads = 8, .kv_heads = 2, .recompute = true},
        {.name = "2 over 4, dropout", .mesh = "tensor=4", .model = LLAMA, .dropout = 0.2},
        {.name = "1 over 4, dropout", .mesh = "tensor=4", .model = LLAMA, .kv_heads = 1, .dropout = 0.2},
        {.name = "2 of 8 over 4, dropout", .mesh = "tensor=4", .model = LLAMA, .heads = 8, .dropout = 0.2},
        {.name = "2 over 4, data", .mesh = "data=2,tensor=4", .model = LLAMA, .micro_batches = 2, .clip = 0.1},
        {.name = "2 over 4, shard", .mesh = "shard=2,tensor=4", .model = LLAMA, .stage = 3, .clip = 0.1},
        {.name = "2 over 4, tensor outside", .mesh = "tensor=4,data=2", .model = LLAMA, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void unequal_widths_side_by_side_are_cut(void)
{
    static const setting all[] = {
        {.name = "packed over 2", .mesh = "tensor=2", .model = PACKED, .clip = 0.1},
        {.name = "packed, whole sequences", .mesh = "tensor=2", .model = PACKED, .whole_sequences = true},
        {.name = "packed, dropout", .mesh = "tensor=2", .model = PACKED, .dropout = 0.2},
        {.name = "packed over 4", .mesh = "tensor=4", .model = PACKED, .kv_heads = 4, .micro_batches = 2},
        {.name = "packed, 2 over 4", .mesh = "tensor=4", .model = PACKED, .clip = 0.1},
        {.name = "packed, 2 over 4, dropout", .mesh = "tensor=4", .model = PACKED, .dropout = 0.2},
        {.name = "packed, 1 over 4", .mesh = "tensor=4", .model = PACKED, .kv_heads = 1},
        {.name = "sliced over 2", .mesh = "tensor=2", .model = SLICED, .dropout = 0.2},
        {.name = "sliced, 2 over 4", .mesh = "data=2,tensor=4", .model = SLICED, .clip = 0.1},
        {.name = "sliced, shard", .mesh = "shard=2,tensor=2", .model = SLICED, .stage = 3, .clip = 0.1},
        {.name = "packed, shard", .mesh = "shard=2,tensor=4", .model = PACKED, .stage = 2, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* Where a part begins in the whole says nothing of a part of each of several values side by side. */
static void what_follows_from_positions_is_not_cut_in_repetitions(void)
{
    static const setting all[] = {
        {.name = "joined, dropout", .mesh = "tensor=2", .model = JOINED, .dropout = 0.3},
        {.name = "joined, dropout over 4", .mesh = "tensor=4", .model = JOINED, .dropout = 0.3, .clip = 0.1},
        {.name = "table in 2",
         .mesh = "tensor=2",
         .model = GPT,
         .tactics = "transformer.wte.weight: 0/2@tensor",
         .dropout = 0.2},
        {.name = "table in 2, whole sequences",
         .mesh = "tensor=4",
         .model = GPT,
         .tactics = "transformer.wte.weight: 0/2@tensor",
         .whole_sequences = true},
        {.name = "head in 3", .mesh = "tensor=2", .model = PACKED, .tactics = "head.weight: out/3@tensor"},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* Also where a micro-batch has room for one sample, of which a rank may have one row. */
static void dropout_of_merged_rows_drops_the_tokens_of_the_whole(void)
{
    static const setting all[] = {
        {.name = "merged", .mesh = "tensor=2", .model = MERGED, .dropout = 0.3},
        {.name = "merged, one sample", .mesh = "tensor=2", .model = MERGED, .dropout = 0.3, .micro_batches = BATCH},
        {.name = "merged, one sample, data",
         .mesh = "data=2,tensor=2",
         .model = MERGED,
         .dropout = 0.3,
         .micro_batches = BATCH / 2},
        {.name = "merged, one row", .mesh = "tensor=8", .model = MERGED, .dropout = 0.3, .micro_batches = BATCH},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* The last pieces of the smaller batches are empty. */
static void collectives_in_pieces(void)
{
    static const setting all[] = {
        {.name = "mlp in pieces", .mesh = "tensor=2", .model = MLP, .pieces = 4},
        {.name = "gpt in pieces", .mesh = "tensor=2", .model = GPT, .dropout = 0.2, .clip = 0.1, .pieces = 4},
        {.name = "gpt in pieces, whole sequences",
         .mesh = "tensor=4",
         .model = GPT,
         .whole_sequences = true,
         .pieces = 2},
        {.name = "llama in pieces, 2 over 4", .mesh = "tensor=4", .model = LLAMA, .recompute = true, .pieces = 8},
        {.name = "packed in pieces", .mesh = "data=2,tensor=2", .model = PACKED, .micro_batches = 2, .pieces = 2},
        {.name = "sliced in pieces, 2 over 4", .mesh = "tensor=4", .model = SLICED, .clip = 0.1, .pieces = 3},
        {.name = "gpt in pieces, stage 3", .mesh = "shard=2,tensor=2", .model = GPT, .stage = 3, .pieces = 3},
    };
    run_settings(all, sizeof all / sizeof *all);
}

static void tensor_and_shard_multiply(void)
{
    static const setting all[] = {
        {.name = "mlp, stage 1", .mesh = "shard=2,tensor=2", .model = MLP, .stage = 1, .clip = 0.1},
        {.name = "gpt, stage 1", .mesh = "shard=2,tensor=2", .model = GPT, .stage = 1, .clip = 0.1},
        {.name = "gpt, stage 2", .mesh = "shard=2,tensor=2", .model = GPT, .stage = 2, .micro_batches = 2},
        {.name = "gpt, stage 3", .mesh = "shard=2,tensor=2", .model = GPT, .stage = 3, .clip = 0.1},
        {.name = "llama, stage 3", .mesh = "shard=2,tensor=2", .model = LLAMA, .stage = 3, .recompute = true},
        {.name = "gpt on three axes", .mesh = "data=2,shard=2,tensor=2", .model = GPT, .stage = 3, .clip = 0.1},
    };
    run_settings(all, sizeof all / sizeof *all);
}

/* One rank changes its copy of a slice, then of a state that all have: both are found, and who has it. */
static void diverge(rank_test *r)
{
    static const setting     s = {.name = "diverged", .mesh = "data=2,tensor=2", .model = GPT};
    static const char *const names[] = {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.ln_1.weight"};
    static const char *const found[] = {"rank 3's slice of \"transformer.h.1.mlp.c_fc.weight\" differs from rank 1's",
                                        "rank 3's \"transformer.h.1.ln_1.weight\" differs from rank 0's"};
    net                      n;
    make(r, &n, &s, s.mesh);
    REQUIRE(lk_program_verify(n.of.program, 7) == LK_OK, "%s", lk_context_error(r->context));
    for (int i = 0; i < 2; i++) {
        int    index = lk__find_state(n.of.plan->graph, names[i]);
        char  *memory = lk__store_memory(n.of.store, (size_t)index, LK_STATE_VALUE);
        double before, other = 1e3;
        REQUIRE(index >= 0 && lk__device_read(n.of.plan->device, NULL, &before, memory, sizeof before) == LK_OK);
        if (r->rank == 3) REQUIRE(lk__device_write(n.of.plan->device, NULL, memory, &other, sizeof other) == LK_OK);
        CHECK(lk_program_verify(n.of.program, 7) == LK_EMISMATCH);
        CHECK(strstr(lk_context_error(r->context), found[i]), "rank %d: %s", r->rank, lk_context_error(r->context));
        if (r->rank == 3) REQUIRE(lk__device_write(n.of.plan->device, NULL, memory, &before, sizeof before) == LK_OK);
        REQUIRE(lk_program_verify(n.of.program, 7) == LK_OK, "%s", lk_context_error(r->context));
    }
    free_net(&n.of);
}

static void replicas_of_a_slice_are_compared(void) { run_ranks(4, NULL, diverge, NULL); }

/* A token and a label that do not exist: all ranks fail with the same sentence, which says where they are. */
static void look_up_wrong(rank_test *r)
{
    static const setting     s = {.name = "ids", .mesh = "data=2,tensor=2", .model = GPT};
    static const char *const found[] = {
        "input \"tokens\", row 1 of the batch, position 6 (sample 4): id 29 is out of range",
        "input \"labels\", row 1 of the batch, position 6 (sample 4): label 29 is out of range"};
    net n;
    make(r, &n, &s, s.mesh);
    int part = lk_mesh_coordinate(n.of.mesh, LK_AXIS_DATA, r->rank);
    for (int i = 0; i < 2; i++) {
        lk_step step = {.step = 1, .count = BATCH / 2, .total = BATCH, .rate = 0.01, .sample_ids = n.ids};
        fill_rows(&n, 0, part * BATCH / 2, step.count);
        if (part == 1) (i == 0 ? n.tokens : n.labels)[TOKENS + 6] = 29;
        CHECK(lk_program_compute(n.of.program, &step) == LK_EINVAL);
        CHECK(strstr(lk_context_error(r->context), found[i]), "rank %d: %s", r->rank, lk_context_error(r->context));
    }
    free_net(&n.of);
}

static void ids_out_of_range_are_named(void) { run_ranks(4, NULL, look_up_wrong, NULL); }

/* ---- bf16 ---- */

enum { ROWS = 16, NARROW_IN = 32, NARROW_HIDDEN = 512 };

/* The outputs of two products in bf16, of which the second is a sum over the ranks, with and without a bias. */
static void evaluate_narrow(const rank_test *r, const char *axes, float y[ROWS * NARROW_IN])
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_mesh_config mesh = LK_MESH_CONFIG_INIT;
    net            n = {0};
    float          x[ROWS * NARROW_IN];
    lk_step        step = {.step = 1, .count = ROWS, .total = ROWS};
    mesh.axes = axes;
    if (axes) mesh.comm = r->comm;
    REQUIRE(lk_mesh_create(r->context, &mesh, &n.of.mesh) == LK_OK &&
            lk_graph_create(r->context, LK_F32, &n.of.graph) == LK_OK);
    lk_tensor in = lk_input(n.of.graph, "x", LK_F32, 2, ((int64_t[]){ROWS, NARROW_IN}));
    lk_tensor out = lk_linear(lk_relu(lk_linear(in, "up", NARROW_HIDDEN)), "down", NARROW_IN);
    out = lk_linear(lk_relu(lk_linear(out, "wide", NARROW_HIDDEN)), "narrow", NARROW_IN, .no_bias = true);
    config.policy = LK_POLICY_BF16;
    config.outputs = &out;
    config.outputs_count = 1;
    config.mesh = n.of.mesh;
    REQUIRE(lk_plan_create(n.of.graph, &config, &n.of.plan) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_store_create_shared(n.of.plan, 3, axes ? r->comm : NULL, &n.of.store) == LK_OK, "%s",
            lk_context_error(r->context));
    REQUIRE(lk_program_create(n.of.plan, n.of.store, axes ? r->comm : NULL, &n.of.program) == LK_OK, "%s",
            lk_context_error(r->context));
    for (int i = 0; i < ROWS * NARROW_IN; i++) x[i] = (float)number((uint64_t)i);
    REQUIRE(lk_program_bind(n.of.program, "x", x) == LK_OK && lk_program_step(n.of.program, &step) == LK_OK &&
                lk_program_run(n.of.program, LK_EVALUATE) == LK_OK,
            "%s", lk_context_error(r->context));
    REQUIRE(lk_program_output_read(n.of.program, 0, y, ROWS * NARROW_IN * sizeof *y) == LK_OK);
    free_net(&n.of);
}

/* Summands are not rounded: of the sums, only those that lie between two numbers of bf16 may differ. */
static void compare_narrow(rank_test *r)
{
    static float whole[8][ROWS * NARROW_IN], own[8][ROWS * NARROW_IN];
    int          other = 0;
    evaluate_narrow(r, NULL, whole[r->rank]);
    evaluate_narrow(r, lk_comm_size(r->comm) == 2 ? "tensor=2" : "tensor=4", own[r->rank]);
    for (int i = 0; i < ROWS * NARROW_IN; i++) other += own[r->rank][i] != whole[r->rank][i];
    CHECK(other <= ROWS * NARROW_IN / 50, "rank %d of %d: %d of %d elements differ", r->rank, lk_comm_size(r->comm),
          other, ROWS * NARROW_IN);
}

static void partial_sums_of_bf16_are_rounded_once(void)
{
    run_ranks(2, NULL, compare_narrow, NULL);
    run_ranks(4, NULL, compare_narrow, NULL);
}

int main(void)
{
    RUN(a_perceptron_trains_as_on_one_rank);
    RUN(convolutions_train_as_on_one_rank);
    RUN(transformers_train_as_on_one_rank);
    RUN(fewer_heads_of_keys_than_ranks);
    RUN(unequal_widths_side_by_side_are_cut);
    RUN(what_follows_from_positions_is_not_cut_in_repetitions);
    RUN(dropout_of_merged_rows_drops_the_tokens_of_the_whole);
    RUN(collectives_in_pieces);
    RUN(tensor_and_shard_multiply);
    RUN(replicas_of_a_slice_are_compared);
    RUN(ids_out_of_range_are_named);
    RUN(partial_sums_of_bf16_are_rounded_once);
    return check_result();
}
