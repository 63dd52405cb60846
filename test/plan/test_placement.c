/* test_placement.c - placements along the tensor axis, found from the factors of operations: what of each model is
 * split, what is summed and gathered, and that names do not matter. */
#include "placement_model.h"

/* Of the second product, whose sum a function follows, the sum is made in parts for the third. */
static void products_are_cut_by_turns(void)
{
    placed    m = {.r = rig_open(LK_F32, 1)};
    lk_tensor labels = lk_input(m.r.graph, "labels", LK_I32, 1, ((int64_t[]){8}));
    lk_tensor x = lk_relu(lk_linear(rows(m.r.graph, "x", 20), "one", 16));
    x = lk_linear(lk_relu(lk_linear(x, "two", 12)), "three", 10);
    REQUIRE(place(&m, lk_cross_entropy(x, labels), "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "one.weight", 0, 1);
    check_state(&m, "one.bias", 0, 1);
    check_state(&m, "two.weight", 1, 1);
    check_state(&m, "two.bias", -1, 1);
    check_state(&m, "three.weight", 1, 1);
    check_state(&m, "three.bias", -1, 1);
    moved n = count_moved(&m, 0, m.forward);
    CHECK(n.sums == 1 && n.scatters == 1 && n.gathers == 0, "%d, %d, %d", n.sums, n.scatters, n.gathers);
    CHECK(share_of_arithmetic(&m) <= 0.55, "%.3f", share_of_arithmetic(&m));
    check_places(&m);
    close_placed(&m);
}

static void check_gpt(const placed *m)
{
    check_state(m, "transformer.wte.weight", -1, 1);
    check_state(m, "transformer.h.1.attn.c_attn.weight", 1, 3); /* queries, keys and values are side by side */
    check_state(m, "transformer.h.1.attn.c_attn.bias", 0, 3);
    check_state(m, "transformer.h.1.attn.c_proj.weight", 0, 1);
    check_state(m, "transformer.h.1.attn.c_proj.bias", -1, 1);
    check_state(m, "transformer.h.1.mlp.c_fc.weight", 1, 1);
    check_state(m, "transformer.h.1.mlp.c_fc.bias", 0, 1);
    check_state(m, "transformer.h.1.mlp.c_proj.weight", 0, 1);
    check_state(m, "transformer.h.1.ln_1.weight", -1, 1);
}

static void heads_and_width_of_gpt_are_split(void)
{
    for (int extent = 2; extent <= 4; extent += 2) {
        placed                m = {.r = rig_open(LK_F32, 1)};
        lk_transformer_config c = small_model(LK_TRANSFORMER_GPT);
        lk_tensor             loss = record_text(m.r.graph, &c);
        REQUIRE(place(&m, loss, extent == 2 ? "data=2,tensor=2" : "tensor=4", 1) == LK_OK);
        check_gpt(&m);
        moved n = count_moved(&m, 0, m.forward);
        CHECK(n.sums == 4 + 4 && n.gathers == 1 && n.scatters == 0, "%d, %d, %d", n.sums, n.gathers, n.scatters);
        CHECK(share_of_arithmetic(&m) < 1.1 / extent, "%.3f", share_of_arithmetic(&m));
        check_places(&m);
        close_placed(&m);
    }
}

/* Sums are made in parts, which only products need whole. */
static void between_products_the_sequence_is_split(void)
{
    placed                m = {.r = rig_open(LK_F32, 1)};
    lk_transformer_config c = small_model(LK_TRANSFORMER_GPT);
    lk_tensor             loss = record_text(m.r.graph, &c);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK);
    check_gpt(&m);
    const lk_graph *g = m.list.graph;
    for (size_t i = 0; i < g->nodes_count; i++)
        CHECK(g->nodes[i].dead || m.placements.nodes[i].factor >= 0, "node %zu, %s, is whole", i,
              lk__op_name(g->nodes[i].op));
    moved n = count_moved(&m, 0, m.forward);
    CHECK(n.scatters == 4 + 1 && n.gathers == 4 && n.sums == 3, "%d, %d, %d", n.scatters, n.gathers, n.sums);
    check_places(&m);
    close_placed(&m);
}

static void llama_is_split_by_groups_of_heads(void)
{
    for (int whole = 0; whole < 2; whole++) {
        placed                m = {.r = rig_open(LK_F32, 1)};
        lk_transformer_config c = small_model(LK_TRANSFORMER_LLAMA);
        c.kv_heads = 2;
        c.untied = true;
        lk_tensor loss = record_text(m.r.graph, &c);
        REQUIRE(place(&m, loss, "tensor=2", whole) == LK_OK);
        check_state(&m, "model.layers.0.self_attn.q_proj.weight", 0, 1);
        check_state(&m, "model.layers.0.self_attn.k_proj.weight", 0, 1);
        check_state(&m, "model.layers.0.self_attn.v_proj.weight", 0, 1);
        check_state(&m, "model.layers.0.self_attn.o_proj.weight", 1, 1);
        check_state(&m, "model.layers.1.mlp.gate_proj.weight", 0, 1);
        check_state(&m, "model.layers.1.mlp.up_proj.weight", 0, 1);
        check_state(&m, "model.layers.1.mlp.down_proj.weight", 1, 1);
        check_state(&m, "model.layers.1.input_layernorm.weight", -1, 1);
        CHECK(share_of_arithmetic(&m) < 0.55, "%.3f", share_of_arithmetic(&m));
        check_places(&m);
        close_placed(&m);
    }
}

static const lk__placement_node *node_of(const placed *m, lk__op op)
{
    for (size_t i = 0; i < m->list.graph->nodes_count; i++)
        if (!m->list.graph->nodes[i].dead && m->list.graph->nodes[i].op == op) return &m->placements.nodes[i];
    REQUIRE(false, "there is no %s", lk__op_name(op));
    return NULL;
}

/* How an output of it is held. */
static const lk__placement_value *held_of(const placed *m, lk__op op, int output)
{
    size_t node = (size_t)(node_of(m, op) - m->placements.nodes);
    return &m->placements.values[m->list.graph->nodes[node].out[output]];
}

/* Also where the heads of each group could be divided among all ranks: then all would have all keys and values. */
static void heads_of_keys_are_split_before_those_of_queries(void)
{
    placed                m = {.r = rig_open(LK_F32, 1)};
    lk_transformer_config c = small_model(LK_TRANSFORMER_LLAMA);
    c.heads = 8;
    c.kv_heads = 2;
    REQUIRE(place(&m, record_text(m.r.graph, &c), "tensor=4", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "model.layers.0.self_attn.q_proj.weight", 0, 1);
    check_state(&m, "model.layers.0.self_attn.k_proj.weight", 0, 1);
    CHECK(node_of(&m, LK__OP_attention)->in[1].copies == 2);
    check_places(&m);
    close_placed(&m);
}

/* The axis is factored: queries over all ranks, keys and values over as many as they have heads. Weights are split over
 * all. */
static void fewer_heads_of_keys_than_ranks_are_copied(void)
{
    for (int whole = 0; whole < 2; whole++)
        for (int kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
            placed                m = {.r = rig_open(LK_F32, 1)};
            lk_transformer_config c = small_model(LK_TRANSFORMER_LLAMA);
            c.heads = 8;
            c.kv_heads = kv_heads;
            c.vocabulary = 512;
            lk_tensor loss = record_text(m.r.graph, &c);
            REQUIRE(place(&m, loss, "tensor=8", whole) == LK_OK, "%s", lk_context_error(m.r.context));
            check_state(&m, "model.layers.0.self_attn.q_proj.weight", 0, 1);
            check_state(&m, "model.layers.0.self_attn.o_proj.weight", 1, 1);
            if (kv_heads > 1) {
                check_state(&m, "model.layers.0.self_attn.k_proj.weight", 0, 1);
                check_state(&m, "model.layers.0.self_attn.v_proj.weight", 0, 1);
            }
            const lk__placement_node *forward = node_of(&m, LK__OP_attention);
            const lk__placement_node *backward = node_of(&m, LK__OP_attention_grad);
            CHECK(forward->in[0].kind == LK__PLACE_SPLIT && forward->in[0].copies == 0);
            CHECK(kv_heads == 1 || forward->in[1].copies == 8 / kv_heads, "%d copies", forward->in[1].copies);
            CHECK(kv_heads > 1 || forward->in[1].kind == LK__PLACE_REPLICATED);
            CHECK(backward->out[1].kind == LK__PLACE_PARTIAL && backward->out[2].kind == LK__PLACE_PARTIAL);
            /* The weights of values are cut further than those have heads, and so is dv: a reduce_scatter, which sends
             * half as much as an all_reduce. rope needs whole heads of dk. */
            const lk__placement_value *dv = held_of(&m, LK__OP_attention_grad, 2);
            CHECK(kv_heads == 1 || (dv->kind == LK__PLACE_SPLIT && dv->copies == 0),
                  "%d heads of keys: dv has %d copies", kv_heads, dv->copies);
            printf("%d heads of keys over 8 ranks%s: %.4f of the arithmetic\n", kv_heads,
                   whole ? ", whole sequences" : "", share_of_arithmetic(&m));
            CHECK(share_of_arithmetic(&m) <= 1.1 / 8, "%d of 8: %.4f", kv_heads, share_of_arithmetic(&m));
            check_places(&m);
            close_placed(&m);
        }
}

/* Attention is cut as far as its heads can be, and what each of two ranks computes twice is that alone. */
static void heads_that_the_ranks_do_not_divide_are_cut_into_fewer_parts(void)
{
    static const struct {
        int heads, kv_heads, extent, parts;
    } cases[] = {{12, 6, 4, 2}, {6, 6, 4, 2}, {6, 2, 4, 2}, {4, 4, 8, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        placed                m = {.r = rig_open(LK_F32, 1)};
        lk_transformer_config c = small_model(LK_TRANSFORMER_LLAMA);
        char                  axes[32];
        c.heads = cases[i].heads;
        c.kv_heads = cases[i].kv_heads;
        c.width = 96;
        snprintf(axes, sizeof axes, "tensor=%d", cases[i].extent);
        REQUIRE(place(&m, record_text(m.r.graph, &c), axes, 0) == LK_OK, "%s", lk_context_error(m.r.context));
        check_state(&m, "model.layers.0.self_attn.q_proj.weight", 0, 1);
        check_state(&m, "model.layers.0.self_attn.k_proj.weight", 0, 1);
        check_state(&m, "model.layers.0.self_attn.o_proj.weight", 1, 1);
        const lk__placement_node *forward = node_of(&m, LK__OP_attention);
        CHECK(forward->copies == cases[i].extent / cases[i].parts, "%d heads over %d: %d copies", cases[i].heads,
              cases[i].extent, forward->copies);
        CHECK(forward->in[0].kind == LK__PLACE_SPLIT && forward->in[1].kind == LK__PLACE_SPLIT);
        check_places(&m);
        close_placed(&m);
    }
}

static void an_encoder_is_split(void)
{
    for (int whole = 0; whole < 2; whole++) {
        placed                m = {.r = rig_open(LK_F32, 1)};
        lk_transformer_config c = small_model(LK_TRANSFORMER_ENCODER);
        lk_tensor             labels = lk_input(m.r.graph, "labels", LK_I32, 1, ((int64_t[]){4}));
        lk_tensor             lengths = lk_input(m.r.graph, "lengths", LK_I32, 1, ((int64_t[]){4}));
        lk_tensor             tokens = lk_input(m.r.graph, "tokens", LK_I32, 2, ((int64_t[]){4, 16}));
        lk_transformer_result made = lk_transformer(tokens, &c, .lengths = lengths);
        REQUIRE(place(&m, lk_cross_entropy(made.logits, labels), "tensor=2", whole) == LK_OK);
        check_state(&m, "bert.encoder.layer.1.attention.self.query.weight", 0, 1);
        check_state(&m, "bert.encoder.layer.1.attention.self.key.bias", 0, 1);
        check_state(&m, "bert.encoder.layer.1.attention.output.dense.weight", 1, 1);
        check_state(&m, "bert.encoder.layer.1.intermediate.dense.weight", 0, 1);
        check_state(&m, "bert.encoder.layer.1.output.dense.weight", 1, 1);
        check_state(&m, "bert.encoder.layer.1.output.LayerNorm.weight", -1, 1);
        check_state(&m, "bert.pooler.dense.weight", 0, 1);
        check_state(&m, "classifier.weight", 1, 1);
        CHECK(share_of_arithmetic(&m) < 0.55, "%.3f", share_of_arithmetic(&m));
        check_places(&m);
        close_placed(&m);
    }
}

static void split_channels(const char *model)
{
    placed    m = {.r = rig_open(LK_F32, 1)};
    lk_tensor loss = record_images(m.r.graph, lk_model_find(model), (lk_model_options){.classes = 10});
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK);
    const lk_graph *g = m.list.graph;
    for (size_t i = 0; i < g->states_count; i++) /* of all products */
        if (g->values[g->states[i].value].shape.rank >= 2)
            CHECK(placement_of(&m, g->states[i].name)->kind == LK__PLACE_SPLIT, "%s is whole", g->states[i].name);
    CHECK(share_of_arithmetic(&m) < 0.55, "%.3f", share_of_arithmetic(&m));
    check_places(&m);
    close_placed(&m);
}

static void channels_of_images_are_split(void)
{
    split_channels("cnn");
    split_channels("resnet20");
}

/* Heads that a user makes of a width, by reshapes, permutations and products of batches, under any names. */
static void names_do_not_matter(void)
{
    placed      m = {.r = rig_open(LK_F32, 1)};
    int64_t     apart[] = {-1, 16, 4, 8}, together[] = {-1, 16, 32};
    int         order[] = {0, 2, 1, 3};
    lk_tensor   x = lk_input(m.r.graph, "x", LK_F32, 3, ((int64_t[]){4, 16, 32}));
    lk_tensor   h = lk_layer_norm(x, "n"), part[3];
    const char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) part[i] = lk_permute(lk_reshape(lk_linear(h, names[i], 32), 4, apart), order);
    lk_tensor score = lk_softmax(lk_matmul(part[0], part[1], .transpose_b = true), -1);
    h = lk_reshape(lk_permute(lk_matmul(score, part[2]), order), 3, together);
    x = lk_add(x, lk_linear(h, "d", 32));
    x = lk_add(x, lk_linear(lk_mul(lk_linear(x, "e", 48), lk_sigmoid(lk_linear(x, "f", 48))), "g", 32));
    lk_tensor y = lk_input(m.r.graph, "y", LK_F32, 3, ((int64_t[]){4, 16, 32}));
    REQUIRE(place(&m, lk_mse(lk_layer_norm(x, "o"), y), "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "a.weight", 0, 1);
    check_state(&m, "b.weight", 0, 1);
    check_state(&m, "c.bias", 0, 1);
    check_state(&m, "d.weight", 1, 1);
    check_state(&m, "e.weight", 0, 1);
    check_state(&m, "f.weight", 0, 1);
    check_state(&m, "g.weight", 1, 1);
    check_state(&m, "g.bias", -1, 1);
    check_places(&m);
    close_placed(&m);
}

static void an_extent_that_divides_nothing_is_refused(void)
{
    placed                m = {.r = rig_open(LK_F32, 1)};
    lk_transformer_config c = small_model(LK_TRANSFORMER_GPT);
    lk_tensor             loss = record_text(m.r.graph, &c);
    CHECK(place(&m, loss, "tensor=5", 0) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(m.r.context), "tensor=4"), "%s", lk_context_error(m.r.context));
    close_placed(&m);
}

/* Queries, keys and values that are cut out of one product. */
static void slices_of_what_lies_side_by_side_are_cut(void)
{
    placed    m = {.r = rig_open(LK_F32, 1)};
    lk_tensor x = lk_input(m.r.graph, "x", LK_F32, 3, ((int64_t[]){4, 16, 32})), part[3];
    lk_tensor y = lk_input(m.r.graph, "y", LK_F32, 3, ((int64_t[]){4, 16, 32}));
    lk_tensor all = lk_linear(lk_layer_norm(x, "n"), "all", 96);
    for (int i = 0; i < 3; i++) part[i] = lk_slice(all, 2, 32 * i, 32);
    x = lk_add(x, lk_linear(lk_attention(part[0], part[1], part[2], .heads = 4), "out", 32));
    REQUIRE(place(&m, lk_mse(lk_layer_norm(x, "o"), y), "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "all.weight", 0, 3);
    check_state(&m, "all.bias", 0, 3);
    check_state(&m, "out.weight", 1, 1);
    CHECK(share_of_arithmetic(&m) < 0.55, "%.3f", share_of_arithmetic(&m));
    check_places(&m);
    close_placed(&m);
}

/* Of unequal widths: read side by side, or as slices, by 8 heads of queries and `groups` of keys. */
static void check_unequal(bool sliced, int64_t groups, int extent, const char *tactics)
{
    placed    m = {.r = rig_open(LK_F32, 1), .tactics = tactics};
    int64_t   q = 32, k = groups * 4, widths[] = {q, k, k};
    lk_tensor x = lk_input(m.r.graph, "x", LK_F32, 3, ((int64_t[]){4, 16, 32})), part[3] = {{0}};
    lk_tensor y = lk_input(m.r.graph, "y", LK_F32, 3, ((int64_t[]){4, 16, 32}));
    lk_tensor all = part[0] = lk_linear(lk_layer_norm(x, "n"), "all", q + 2 * k);
    for (int i = 0, at = 0; i < 3 && sliced; at += (int)widths[i++]) part[i] = lk_slice(all, 2, at, widths[i]);
    x = lk_add(x, lk_linear(lk_attention(part[0], part[1], part[2], .heads = 8, .kv_heads = groups), "out", 32));
    char axes[16];
    snprintf(axes, sizeof axes, "tensor=%d", extent);
    REQUIRE(place(&m, lk_mse(lk_layer_norm(x, "o"), y), axes, 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "all.weight", 0, 1);
    check_state(&m, "all.bias", 0, 1);
    check_state(&m, "out.weight", 1, 1);
    for (int i = 0; i < 3; i++)
        CHECK(placement_of(&m, "all.weight")->segment[i] == widths[i], "%lld of %lld over %d: segment %d is %lld",
              (long long)groups, 8LL, extent, i, (long long)placement_of(&m, "all.weight")->segment[i]);
    CHECK(share_of_arithmetic(&m) < 1.1 / extent, "%d groups over %d%s: %.3f", (int)groups, extent,
          sliced ? ", sliced" : "", share_of_arithmetic(&m));
    check_places(&m);
    close_placed(&m);
}

static void unequal_widths_side_by_side_are_cut(void)
{
    for (int sliced = 0; sliced < 2; sliced++) {
        check_unequal(sliced, 4, 2, NULL);
        check_unequal(sliced, 4, 4, NULL);
        check_unequal(sliced, 2, 4, NULL);
        check_unequal(sliced, 2, 8, NULL);
        check_unequal(sliced, 1, 4, NULL);
        check_unequal(sliced, 2, 4, "all.*: out@tensor\nout.weight: in@tensor\n*: whole@tensor");
    }
}

/* ---- the vocabulary ---- */

static int count_op(const placed *m, lk__op op)
{
    int count = 0;
    for (size_t i = 0; i < m->list.graph->nodes_count; i++)
        count += !m->list.graph->nodes[i].dead && m->list.graph->nodes[i].op == op;
    return count;
}

/* Tied to the embedding or not: no rank has all logits, nor all of the table. */
static void the_vocabulary_is_split(void)
{
    for (int k = 0; k < 8; k++) {
        bool                  llama = k & 1, whole = k & 2;
        placed                m = {.r = rig_open(k & 4 ? LK_F64 : LK_F32, 1)};
        lk_transformer_config c = small_model(llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT);
        c.vocabulary = 64;
        c.untied = llama;
        lk_tensor loss = record_text(m.r.graph, &c);
        REQUIRE(place(&m, loss, "tensor=2", whole) == LK_OK, "%s", lk_context_error(m.r.context));
        check_state(&m, llama ? "model.embed_tokens.weight" : "transformer.wte.weight", 0, 1);
        if (llama) check_state(&m, "lm_head.weight", 0, 1);
        CHECK(count_op(&m, LK__OP_linear_cross_entropy) == 0 && count_op(&m, LK__OP_class_statistics) == 1);
        for (size_t v = 0; v < m.list.graph->values_count; v++) {
            const lk__graph_shape *s = &m.list.graph->values[v].shape;
            if (m.list.graph->values[v].kind == LK__VALUE_RESULT && s->rank == 2 && s->dims[0] == 64 &&
                s->dims[1] == 64 && !m.list.graph->nodes[m.list.graph->values[v].node].dead)
                CHECK(m.placements.values[v].kind == LK__PLACE_SPLIT, "value %zu", v);
        }
        CHECK(share_of_arithmetic(&m) < 0.55, "%.3f", share_of_arithmetic(&m));
        check_places(&m);
        close_placed(&m);
    }
}

/* Where a tactic keeps the table whole, the loss is one node as before. */
static void a_vocabulary_that_stays_whole_changes_nothing(void)
{
    placed                m = {.r = rig_open(LK_F32, 1), .tactics = "transformer.wte.weight: whole@tensor"};
    lk_transformer_config c = small_model(LK_TRANSFORMER_GPT);
    c.vocabulary = 64;
    lk_tensor loss = record_text(m.r.graph, &c);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_gpt(&m);
    CHECK(count_op(&m, LK__OP_linear_cross_entropy) == 1 && count_op(&m, LK__OP_class_statistics) == 0);
    CHECK(count_op(&m, LK__OP_cross_entropy) == 0);
    check_places(&m);
    close_placed(&m);
}

int main(void)
{
    RUN(products_are_cut_by_turns);
    RUN(heads_and_width_of_gpt_are_split);
    RUN(between_products_the_sequence_is_split);
    RUN(llama_is_split_by_groups_of_heads);
    RUN(fewer_heads_of_keys_than_ranks_are_copied);
    RUN(heads_of_keys_are_split_before_those_of_queries);
    RUN(heads_that_the_ranks_do_not_divide_are_cut_into_fewer_parts);
    RUN(an_encoder_is_split);
    RUN(channels_of_images_are_split);
    RUN(slices_of_what_lies_side_by_side_are_cut);
    RUN(unequal_widths_side_by_side_are_cut);
    RUN(the_vocabulary_is_split);
    RUN(a_vocabulary_that_stays_whole_changes_nothing);
    RUN(names_do_not_matter);
    RUN(an_extent_that_divides_nothing_is_refused);
    return check_result();
}
