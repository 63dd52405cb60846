/* placement_model.h - shared by the tests of placements: models whose gradients are made, placed along an axis, and
 * what was found for them. */
#ifndef PLACEMENT_MODEL_H
#define PLACEMENT_MODEL_H

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

static inline void set_mesh(lk_plan *p, const char *axes)
{
    REQUIRE(lk__mesh_parse(p->context, axes, &p->mesh) == LK_OK, "%s", lk_context_error(p->context));
}

/* The list of training as plans make it before placement. */
static inline lk_status place(placed *m, lk_tensor loss, const char *axes, int whole_sequences)
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

static inline void close_placed(placed *m)
{
    lk__placements_free(m->r.context, &m->placements);
    lk__free(m->r.context, LK_MEMORY_OTHER, m->list.gradients, m->list.graph->states_count * sizeof(int));
    lk_graph_free(m->list.graph);
    lk_plan_free(m->r.plan);
    lk_graph_free(m->r.graph);
    lk_context_free(m->r.context);
}

/* Whether the device has one result in every layout; says so otherwise. */
static inline bool has_layouts(void)
{
    rig  r = rig_open(LK_F32, 1);
    bool has = !lk__context_device(r.context)->backend->kernels.choose_begin;
    if (!has) printf("skipped: on CPUs alone\n");
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return has;
}

/* ---- what was found ---- */

static inline const lk__placement_value *placement_of(const placed *m, const char *state)
{
    const lk_graph *g = m->list.graph;
    for (size_t i = 0; i < g->states_count; i++)
        if (strcmp(g->states[i].name, state) == 0) return &m->placements.values[g->states[i].value];
    REQUIRE(false, "there is no state %s", state);
    return NULL;
}

/* dim -1: replicated. */
static inline void check_state(const placed *m, const char *state, int dim, int64_t outer)
{
    const lk__placement_value *v = placement_of(m, state);
    bool                       right =
        dim < 0 ? v->kind == LK__PLACE_REPLICATED : v->kind == LK__PLACE_SPLIT && v->dim == dim && v->outer == outer;
    CHECK(right, "%s: kind %d, dimension %d in %lld", state, (int)v->kind, v->dim, (long long)v->outer);
}

typedef struct moved {
    int sums, scatters, gathers;
} moved;

static inline void count_conversion(const lk__placement_value *from, const lk__placement_value *to, moved *n)
{
    if (lk__placement_equal(from, to) || from->kind == LK__PLACE_REPLICATED) return;
    if (from->kind == LK__PLACE_PARTIAL)
        *(to->kind == LK__PLACE_SPLIT ? &n->scatters : &n->sums) += 1;
    else
        n->gathers++;
}

/* In nodes first … last - 1; of gathers, each reader counts. */
static inline moved count_moved(const placed *m, size_t first, size_t last)
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
static inline double share_of_arithmetic(const placed *m)
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
static inline void check_places(const placed *m)
{
    const lk_graph *g = m->list.graph;
    for (size_t v = 0; v < g->values_count; v++) {
        const lk__placement_value *p = &m->placements.values[v];
        const lk__graph_shape     *s = &g->values[v].shape;
        CHECK(p->kind != LK__PLACE_PARTIAL, "value %zu is held as a summand", v);
        if (p->kind != LK__PLACE_SPLIT) continue;
        CHECK(g->values[v].kind != LK__VALUE_INPUT && p->dim < s->rank && p->outer >= 1);
        CHECK(s->dims[p->dim] % (p->outer * (m->placements.extent / (p->copies ? p->copies : 1))) == 0, "value %zu", v);
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

static inline lk_tensor rows(lk_graph *g, const char *name, int64_t n)
{
    return lk_input(g, name, LK_F32, 2, ((int64_t[]){8, n}));
}

static inline lk_tensor record_text(lk_graph *g, const lk_transformer_config *c)
{
    int64_t   dims[] = {4, 16};
    lk_tensor tokens = lk_input(g, "tokens", LK_I32, 2, dims), labels = lk_input(g, "labels", LK_I32, 2, dims);
    lk_transformer_result made = lk_transformer(tokens, c);
    return lk_linear_cross_entropy(made.hidden, made.head, labels);
}

static inline lk_transformer_config small_model(lk_transformer_kind kind)
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

static inline lk_tensor record_images(lk_graph        *g, lk_tensor (*model)(lk_tensor, lk_model_options),
                                      lk_model_options options)
{
    lk_tensor x = lk_input(g, "x", LK_F32, 4, ((int64_t[]){8, 3, 16, 16}));
    lk_tensor labels = lk_input(g, "labels", LK_I32, 1, ((int64_t[]){8}));
    return lk_cross_entropy(model(x, options), labels);
}

#endif
