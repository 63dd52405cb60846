/* planned_transformer.h - shared by the tests of where collectives of a transformer are in its instruction list: its
 * plan on a mesh, of which no rank runs. */
#ifndef PLANNED_TRANSFORMER_H
#define PLANNED_TRANSFORMER_H

#include "plan/plan.h"
#include "support.h"

#include <lockstep/transformer.h>

typedef struct planned {
    rig      r;
    lk_mesh *mesh;
} planned;

typedef struct planned_size {
    int64_t layers, batch, context, width;
} planned_size;

SHARED planned plan_transformer(lk_transformer_kind kind, const char *axes, planned_size s, int pieces)
{
    planned               m = {.r = rig_open(LK_F32, 1)};
    lk_optimizer_config   adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config        config = LK_PLAN_CONFIG_INIT;
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    lk__mesh_grid         grid;
    int64_t               dims[] = {s.batch, s.context};
    c.kind = kind;
    c.vocabulary = 96;
    c.context = s.context;
    c.layers = s.layers;
    c.heads = 4;
    c.width = s.width;
    lk_tensor             tokens = lk_input(m.r.graph, "tokens", LK_I32, 2, dims);
    lk_tensor             labels = lk_input(m.r.graph, "labels", LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(tokens, &c);
    config.loss = lk_linear_cross_entropy(result.hidden, result.head, labels);
    config.optimizer = &adam;
    config.pieces = pieces;
    REQUIRE(lk__mesh_parse(m.r.context, axes, &grid) == LK_OK);
    REQUIRE(lk__mesh_over(m.r.context, &grid, NULL, &m.mesh) == LK_OK);
    config.mesh = m.mesh;
    REQUIRE(lk_plan_create(m.r.graph, &config, &m.r.plan) == LK_OK, "%s", lk_context_error(m.r.context));
    return m;
}

SHARED void close_planned(planned *m)
{
    lk_plan_free(m->r.plan);
    lk_mesh_free(m->mesh);
    lk_graph_free(m->r.graph);
    lk_context_free(m->r.context);
}

SHARED const lk__graph_node *node_at(const lk__plan_list *list, size_t position)
{
    return &list->graph->nodes[list->order[position]];
}

#endif
