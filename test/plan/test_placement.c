/* test_placement.c - placements along the axis tensor, found from the factors of operations: what of each model is
 * split, what is summed and gathered, and that names do not matter. */
#include "plan/fuse.h"
#include "plan/placement.h"
#include "support.h"

#include <lockstep/nn.h>
#include <lockstep/transformer.h>

/* ---- a model whose gradients are made ---- */

typedef struct placed {
    rig            r;
    lk__plan_list  list;
    const char    *tactics; /* NULL: none */
    size_t         forward;
    lk__placements placements;
} placed;

static void set_mesh(lk_plan *p, const char *axes)
{
    REQUIRE(lk__mesh_parse(p->context, axes, &p->mesh) == LK_OK, "%s", lk_context_error(p->context));
}

/* The list of training as plans make it before placement. */
static lk_status place(placed *m, lk_tensor loss, const char *axes, int whole_sequences)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *p;
    config.loss = loss;
    REQUIRE(lk_plan_create(m->r.graph, &config, &m->r.plan) == LK_OK, "%s", lk_context_error(m->r.context));
    p = m->r.plan;
    lk__placement_rules rules = {.axis = LK_AXIS_TENSOR, .whole_sequences = whole_sequences, .tactics = m->tactics};
    set_mesh(p, axes);
    lk__plan_list *list = &m->list;
    REQUIRE(lk__graph_copy(p->graph, &list->graph) == LK_OK);
    lk__plan_find_numbers(p, list, loss.id);
    list->gradients = lk__alloc(p->context, LK_MEMORY_OTHER, p->graph->states_count * sizeof(int));
    REQUIRE(list->gradients && lk__pass_fuse(list, false, 0) == LK_OK && lk__pass_loss_scales(p, list) == LK_OK);
    m->forward = list->graph->nodes_count;
    REQUIRE(lk__pass_loss_gradients(p, list) == LK_OK, "%s", list->graph->error);
    return lk__placements_find(p, list, &rules, &m->forward, &m->placements);
}

static void close_placed(placed *m)
{
    lk__placements_free(m->r.context, &m->placements);
    lk__free(m->r.context, LK_MEMORY_OTHER, m->list.gradients, m->list.graph->states_count * sizeof(int));
    lk_graph_free(m->list.graph);
    lk_plan_free(m->r.plan);
    lk_graph_free(m->r.graph);
    lk_context_free(m->r.context);
}

/* ---- what was found ---- */

static const lk__placement_value *placement_of(const placed *m, const char *state)
{
    const lk_graph *g = m->list.graph;
    for (size_t i = 0; i < g->states_count; i++)
        if (strcmp(g->states[i].name, state) == 0) return &m->placements.values[g->states[i].value];
    REQUIRE(false, "there is no state %s", state);
    return NULL;
}

/* dim -1: replicated. */
static void check_state(const placed *m, const char *state, int dim, int64_t outer)
{
    const lk__placement_value *v = placement_of(m, state);
    bool                       right =
        dim < 0 ? v->kind == LK__PLACE_REPLICATED : v->kind == LK__PLACE_SPLIT && v->dim == dim && v->outer == outer;
    CHECK(right, "%s: kind %d, dimension %d in %lld", state, (int)v->kind, v->dim, (long long)v->outer);
}

typedef struct moved {
    int sums, scatters, gathers;
} moved;

static void count_conversion(const lk__placement_value *from, const lk__placement_value *to, moved *n)
{
    if (lk__placement_equal(from, to) || from->kind == LK__PLACE_REPLICATED) return;
    if (from->kind == LK__PLACE_PARTIAL)
        *(to->kind == LK__PLACE_SPLIT ? &n->scatters : &n->sums) += 1;
    else
        n->gathers++;
}

/* In nodes first … last - 1; of gathers, each reader counts. */
static moved count_moved(const placed *m, size_t first, size_t last)
{
    const lk_graph *g = m->list.graph;
    moved           n = {0};
    for (size_t i = first; i < last; i++) {
        const lk__graph_node *node = &g->nodes[i];
        for (int k = 0; k < node->inputs && !node->dead; k++)
            if (node->in[k] >= 0)
                count_conversion(&m->placements.values[node->in[k]], &m->placements.nodes[i].in[k], &n);
        for (int k = 0; k < node->outputs && !node->dead; k++)
            if (node->out[k] >= 0)
                count_conversion(&m->placements.nodes[i].out[k], &m->placements.values[node->out[k]], &n);
    }
    return n;
}

/* Operations of a rank, of all. */
static double share_of_arithmetic(const placed *m)
{
    const lk_graph *g = m->list.graph;
    double          all = 0, own = 0;
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead) continue;
        double each = lk__op_find(n->op)->arithmetic(g, n);
        all += each;
        const lk__placement_node *place = &m->placements.nodes[i];
        int                       parts = place->factor == LK__PLACE_NO_FACTOR ? 1 : m->placements.extent;
        own += each / (place->copies && place->second < 0 ? parts / place->copies : parts);
    }
    return own / all;
}

/* What holds whatever was found: parts are equal, samples stay whole, and nothing that is read outside is split. */
static void check_places(const placed *m)
{
    const lk_graph *g = m->list.graph;
    for (size_t v = 0; v < g->values_count; v++) {
        const lk__placement_value *p = &m->placements.values[v];
        const lk__graph_shape     *s = &g->values[v].shape;
        CHECK(p->kind != LK__PLACE_PARTIAL, "value %zu is held as a summand", v);
        if (p->kind != LK__PLACE_SPLIT) continue;
        CHECK(g->values[v].kind != LK__VALUE_INPUT && p->dim < s->rank && p->outer >= 1);
        CHECK(s->dims[p->dim] % (p->outer * m->placements.extent) == 0, "value %zu", v);
        CHECK(s->count_axis != p->dim || s->dims[p->dim] / p->outer <= s->count_unit, "value %zu", v);
    }
    for (size_t i = 0; i < g->nodes_count; i++) /* states are written as they are held */
        for (int k = 0; k < g->nodes[i].inputs && !g->nodes[i].dead && lk__plan_has_effect(&g->nodes[i]); k++)
            if (g->nodes[i].in[k] >= 0 && g->values[g->nodes[i].in[k]].kind == LK__VALUE_STATE)
                CHECK(lk__placement_equal(&m->placements.nodes[i].in[k], &m->placements.values[g->nodes[i].in[k]]),
                      "input %d of %s", k, lk__op_name(g->nodes[i].op));
    for (int i = 0; i < m->list.numbers_count; i++)
        CHECK(m->list.numbers[i] < 0 || m->placements.values[m->list.numbers[i]].kind == LK__PLACE_REPLICATED);
    for (size_t i = 0; i < g->states_count; i++)
        if (m->list.gradients[i] >= 0)
            CHECK(lk__placement_equal(&m->placements.values[g->states[i].value],
                                      &m->placements.values[m->list.gradients[i]]),
                  "the gradient of %s", g->states[i].name);
}

/* ---- models ---- */

static lk_tensor rows(lk_graph *g, const char *name, int64_t n)
{
    return lk_input(g, name, LK_F32, 2, ((int64_t[]){8, n}));
}

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

static lk_tensor record_text(lk_graph *g, const lk_transformer_config *c)
{
    int64_t   dims[] = {4, 16};
    lk_tensor tokens = lk_input(g, "tokens", LK_I32, 2, dims), labels = lk_input(g, "labels", LK_I32, 2, dims);
    lk_transformer_result made = lk_transformer(tokens, c);
    return lk_linear_cross_entropy(made.hidden, made.head, labels);
}

static lk_transformer_config small_model(lk_transformer_kind kind)
{
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    c.kind = kind;
    c.vocabulary = 65;
    c.context = 16;
    c.layers = 2;
    c.heads = 4;
    c.width = 32;
    return c;
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
            printf("%d heads of keys over 8 ranks%s: %.4f of the arithmetic\n", kv_heads,
                   whole ? ", whole sequences" : "", share_of_arithmetic(&m));
            CHECK(share_of_arithmetic(&m) <= 1.1 / 8, "%d of 8: %.4f", kv_heads, share_of_arithmetic(&m));
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

static lk_tensor record_images(lk_graph *g, lk_tensor (*model)(lk_tensor, lk_model_options), lk_model_options options)
{
    lk_tensor x = lk_input(g, "x", LK_F32, 4, ((int64_t[]){8, 3, 16, 16}));
    lk_tensor labels = lk_input(g, "labels", LK_I32, 1, ((int64_t[]){8}));
    return lk_cross_entropy(model(x, options), labels);
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

/* ---- tactics ---- */

static void take_text(void *user, const char *text, size_t bytes) { strncat(user, text, bytes); }

/* Models that are split in many ways: products one after the other that are both cut along their outputs (cnn), heads
 * that the extent does not divide, two forms of keys and values. */
static lk_tensor record_any(lk_graph *g, int model)
{
    static const lk_transformer_kind kinds[] = {LK_TRANSFORMER_GPT, LK_TRANSFORMER_GPT, LK_TRANSFORMER_LLAMA};
    if (model > 2)
        return record_images(g, lk_model_find(model == 3 ? "cnn" : "resnet20"), (lk_model_options){.classes = 10});
    lk_transformer_config c = small_model(kinds[model]);
    if (model == 1) c.heads = 6, c.width = 48;
    if (model == 2) c.kv_heads = 2, c.vocabulary = 64, c.heads = 8;
    return record_text(g, &c);
}

static bool same_placements(const lk__placements *a, const lk__placements *b)
{
    bool same = a->values_count == b->values_count && a->nodes_count == b->nodes_count;
    for (size_t v = 0; v < a->values_count && same; v++) same = lk__placement_equal(&a->values[v], &b->values[v]);
    for (size_t i = 0; i < a->nodes_count && same; i++) same = a->nodes[i].factor == b->nodes[i].factor;
    return same;
}

/* As they are printed, and read again: all values are where they were, not only the states. */
static void tactics_that_a_plan_prints_place_the_same(void)
{
    for (int k = 0; k < 20; k++) {
        char   text[2][8192] = {"", ""};
        placed m[2] = {{.r = rig_open(LK_F32, 1)}, {.r = rig_open(LK_F32, 1), .tactics = text[0]}};
        for (int again = 0; again < 2; again++) {
            lk_tensor loss = record_any(m[again].r.graph, k / 4);
            REQUIRE(place(&m[again], loss, k & 1 ? "tensor=4" : "tensor=2", k & 2) == LK_OK, "case %d: %s", k,
                    lk_context_error(m[again].r.context));
            m[again].r.plan->placed_axes = LK_AXIS_TENSOR;
            lk_plan_tactics(m[again].r.plan, take_text, text[again]);
        }
        CHECK(strcmp(text[0], text[1]) == 0, "case %d: %s\n%s", k, text[0], text[1]);
        CHECK(same_placements(&m[0].placements, &m[1].placements), "case %d: %s", k, text[0]);
        if (k == 0) {
            CHECK(strstr(text[0], "transformer.h.*.mlp.c_fc.weight: out@tensor\n"), "%s", text[0]);
            CHECK(strstr(text[0], "transformer.h.*.attn.c_attn.weight: out/3@tensor\n"), "%s", text[0]);
            CHECK(strstr(text[0], "*: whole@tensor\n") && !strstr(text[0], "wte"), "%s", text[0]);
        }
        close_placed(&m[0]);
        close_placed(&m[1]);
    }
}

static lk_tensor record_chain(lk_graph *g)
{
    lk_tensor x = lk_relu(lk_linear(rows(g, "x", 20), "one", 16));
    return lk_mse(lk_linear(lk_relu(lk_linear(x, "two", 12)), "three", 8), rows(g, "y", 8));
}

static void tactics_override_what_is_found(void)
{
    placed    m = {.r = rig_open(LK_F32, 1),
                   .tactics = "# the other way\n\n two.* : out@tensor # and the bias\none.weight: whole@tensor\n"};
    lk_tensor loss = record_chain(m.r.graph);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "one.weight", -1, 1);
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

/* Each state is where its line says, whatever would follow from the other lines. */
static void tactics_decide_each_state(void)
{
    placed    m = {.r = rig_open(LK_F32, 1),
                   .tactics = "one.weight: out@tensor\none.bias: whole@tensor\ntwo.weight: out@tensor\n"};
    lk_tensor loss = record_chain(m.r.graph);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "one.weight", 0, 1);
    check_state(&m, "one.bias", -1, 1);
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

static void refuse_tactics(const char *tactics, const char *why)
{
    placed    m = {.r = rig_open(LK_F32, 1), .tactics = tactics};
    lk_tensor loss = record_chain(m.r.graph);
    CHECK(place(&m, loss, "tensor=4", 0) < 0, "%s", tactics);
    CHECK(strstr(lk_context_error(m.r.context), why), "%s: %s", tactics, lk_context_error(m.r.context));
    close_placed(&m);
}

static void tactics_that_cannot_be_followed_are_refused(void)
{
    refuse_tactics("\nfour.weight: out@tensor", "line 2: no state matches four.weight");
    refuse_tactics("one.weight: height@tensor", "has no factor height; it has out, in");
    refuse_tactics("one.weight: 2@tensor", "has no factor 2");
    refuse_tactics("one.weight: out@tensro", "no axis tensro");
    refuse_tactics("one.weight: out@data", "not along data");
    refuse_tactics("one.weight = out@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: @tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out/@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out*x@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out/3@tensor", "out of \"one.weight\" is 16, which tensor=4 does not divide");
    placed    m = {.r = rig_open(LK_F32, 1), .tactics = "two.weight: out@tensor"};
    lk_tensor loss = record_chain(m.r.graph);
    CHECK(place(&m, loss, "tensor=5", 0) == LK_EINVAL);
    CHECK(strstr(lk_context_error(m.r.context),
                 "out of \"two.weight\" is 12, which tensor=5 does not divide; the nearest "
                 "extent that works is 4"),
          "%s", lk_context_error(m.r.context));
    close_placed(&m);
}

/* ---- lk_place ---- */

/* The second product's width instead of the first one's; and in between, whole. */
static void a_model_places_its_values(void)
{
    placed    m = {.r = rig_open(LK_F32, 1)};
    lk_tensor x = lk_relu(lk_linear(rows(m.r.graph, "x", 20), "one", 16));
    x = lk_relu(lk_place(lk_linear(lk_place(x, "tensor", LK_REPLICATED), "two", 12), "tensor", -1));
    lk_tensor loss = lk_mse(lk_linear(x, "three", 8), rows(m.r.graph, "y", 8));
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

static void placements_that_are_impossible_are_refused(void)
{
    static const struct {
        const char *axis;
        int         dim;
        const char *why;
    } cases[] = {{"tensor", 1, "has 12 elements, which tensor=5 does not divide; the nearest extent that works is 4"},
                 {"tensor", 0, "has the batch"},
                 {"tensor", 2, "2 is not a dimension of x, which has 2"},
                 {"tensor", -3, "-3 is not a dimension"},
                 {"tensro", 0, "no axis tensro"},
                 {"data", 0, "not along data"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        placed    m = {.r = rig_open(LK_F32, 1)};
        lk_tensor x = lk_place(lk_linear(rows(m.r.graph, "x", 20), "one", 12), cases[i].axis, cases[i].dim);
        lk_tensor loss = lk_mse(lk_linear(x, "two", 8), rows(m.r.graph, "y", 8));
        if (lk_graph_status(m.r.graph) == LK_OK) {
            CHECK(place(&m, loss, "tensor=5", 0) == LK_EINVAL);
            CHECK(strstr(lk_context_error(m.r.context), cases[i].why), "%s", lk_context_error(m.r.context));
            close_placed(&m);
        } else {
            CHECK(strstr(lk_graph_error(m.r.graph), cases[i].why), "%s", lk_graph_error(m.r.graph));
            lk_graph_free(m.r.graph);
            lk_context_free(m.r.context);
        }
    }
}

/* ---- it is parallel: what a plan says of one rank ---- */

typedef struct planned {
    size_t bytes[LK_MEMORY_COUNT];
    double arithmetic;
    int    blocks; /* of rows, of a loss whose classes are split */
} planned;

/* A transformer, and the batch of it. */
typedef struct text_model {
    lk_transformer_kind kind;
    int64_t             vocabulary, batch, context;
} text_model;

static planned plan_rank(const text_model *model, const char *axes, const char *tactics)
{
    rig                   r = rig_open(LK_F32, 1);
    lk_optimizer_config   adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config        config = LK_PLAN_CONFIG_INIT;
    lk_transformer_config c = small_model(model->kind);
    lk__mesh_grid         grid;
    lk_mesh              *mesh = NULL;
    planned               made = {.arithmetic = 0};
    c.width = 128;
    c.layers = 4;
    c.vocabulary = model->vocabulary;
    c.context = model->context;
    int64_t               dims[] = {model->batch, model->context};
    lk_tensor             tokens = lk_input(r.graph, "tokens", LK_I32, 2, dims);
    lk_tensor             labels = lk_input(r.graph, "labels", LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(tokens, &c);
    config.loss = lk_linear_cross_entropy(result.hidden, result.head, labels);
    config.optimizer = &adam;
    config.tactics = tactics;
    REQUIRE(lk__mesh_parse(r.context, axes, &grid) == LK_OK && lk__mesh_over(r.context, &grid, NULL, &mesh) == LK_OK);
    config.mesh = mesh;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    for (int k = 0; k < LK_MEMORY_COUNT; k++) made.bytes[k] = lk_plan_memory(r.plan, (lk_memory)k);
    for (size_t i = 0; i < r.plan->train.order_count; i++) {
        const lk__graph_node *n = &r.plan->train.graph->nodes[r.plan->train.order[i]];
        made.arithmetic += lk__op_find(n->op)->arithmetic(r.plan->train.graph, n);
        made.blocks += n->op == LK__OP_class_statistics;
    }
    lk_plan_free(r.plan);
    lk_mesh_free(mesh);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return made;
}

static void a_rank_has_its_share_of_arithmetic_and_memory(void)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS, LK_MEMORY_OPTIMIZER,
                                      LK_MEMORY_ACTIVATIONS};
    for (int llama = 0; llama < 2; llama++) {
        text_model model = {llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, 512, 8, 64};
        planned    one = plan_rank(&model, "data=1", NULL);
        for (int extent = 2; extent <= 4; extent *= 2) {
            planned own = plan_rank(&model, extent == 2 ? "tensor=2" : "tensor=4", NULL);
            printf("%s tensor=%d: arithmetic %.3f", llama ? "llama" : "gpt", extent, own.arithmetic / one.arithmetic);
            for (int i = 0; i < 4; i++)
                printf(", %s %.3f", lk_memory_name(kinds[i]),
                       (double)own.bytes[kinds[i]] / (double)one.bytes[kinds[i]]);
            printf("\n");
            CHECK(own.arithmetic <= 1.1 / extent * one.arithmetic);
            for (int i = 0; i < 3; i++)
                CHECK((double)own.bytes[kinds[i]] <= 1.1 / extent * (double)one.bytes[kinds[i]], "%s",
                      lk_memory_name(kinds[i]));
            double gathered = 2 * 8 * 64 * 128 * sizeof(float); /* what a product needs whole, and the next one */
            CHECK((double)own.bytes[LK_MEMORY_ACTIVATIONS] <=
                  1.1 / extent * (double)one.bytes[LK_MEMORY_ACTIVATIONS] + gathered);
        }
    }
}

/* Rows of a long context are done in blocks: no rank has its part of all logits, and none of these is computed twice. A
 * vocabulary that is split takes less than one that every rank has. */
static void logits_of_a_long_context_are_never_there_at_once(void)
{
    for (int llama = 0; llama < 2; llama++) {
        text_model model = {llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, 32768, 8, 2048};
        planned    one = plan_rank(&model, "data=1", NULL);
        for (int extent = 2; extent <= 4; extent *= 2) {
            const char *axes = extent == 2 ? "tensor=2" : "tensor=4";
            planned     own = plan_rank(&model, axes, NULL);
            planned     whole =
                plan_rank(&model, axes,
                          llama ? "model.embed_tokens.weight: whole@tensor" : "transformer.wte.weight: whole@tensor");
            size_t used = own.bytes[LK_MEMORY_ACTIVATIONS] + own.bytes[LK_MEMORY_WORKSPACE];
            size_t less = whole.bytes[LK_MEMORY_ACTIVATIONS] + whole.bytes[LK_MEMORY_WORKSPACE];
            size_t logits = (size_t)(8 * 2048 * 32768 / extent) * sizeof(float);
            size_t all = one.bytes[LK_MEMORY_ACTIVATIONS] + one.bytes[LK_MEMORY_WORKSPACE];
            printf("%s tensor=%d: %d blocks, arithmetic %.3f, %zu bytes (%.3f); whole vocabulary %zu; logits %zu\n",
                   llama ? "llama" : "gpt", extent, own.blocks, own.arithmetic / one.arithmetic, used,
                   (double)used / (double)all, less, logits);
            CHECK(own.blocks == 32, "%d", own.blocks);
            CHECK(own.arithmetic <= 1.1 / extent * one.arithmetic);
            CHECK((double)used <= 1.1 / extent * (double)all && used < less && used < logits);
        }
    }
}

int main(void)
{
    RUN(products_are_cut_by_turns);
    RUN(heads_and_width_of_gpt_are_split);
    RUN(between_products_the_sequence_is_split);
    RUN(llama_is_split_by_groups_of_heads);
    RUN(fewer_heads_of_keys_than_ranks_are_copied);
    RUN(heads_of_keys_are_split_before_those_of_queries);
    RUN(an_encoder_is_split);
    RUN(channels_of_images_are_split);
    RUN(slices_of_what_lies_side_by_side_are_cut);
    RUN(unequal_widths_side_by_side_are_cut);
    RUN(the_vocabulary_is_split);
    RUN(a_vocabulary_that_stays_whole_changes_nothing);
    RUN(names_do_not_matter);
    RUN(an_extent_that_divides_nothing_is_refused);
    RUN(tactics_that_a_plan_prints_place_the_same);
    RUN(tactics_override_what_is_found);
    RUN(tactics_decide_each_state);
    RUN(tactics_that_cannot_be_followed_are_refused);
    RUN(a_model_places_its_values);
    RUN(placements_that_are_impossible_are_refused);
    RUN(a_rank_has_its_share_of_arithmetic_and_memory);
    RUN(logits_of_a_long_context_are_never_there_at_once);
    return check_result();
}
