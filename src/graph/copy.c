/* copy.c - copies a graph: for passes, which change their copy, without names and data that no pass reads; for the
 * plan, completely. */
#include "device/custom.h"
#include "graph/graph.h"

#include <string.h>

lk_status lk__graph_copy(const lk_graph *from, lk_graph **copy)
{
    lk_context *c = from->context;
    lk_graph   *g = lk__alloc(c, LK_MEMORY_OTHER, sizeof *g);
    *copy = NULL;
    if (!g) return LK_ENOMEM;
    g->context = c;
    g->real = from->real;
    g->dropouts = from->dropouts;
#define COPY_ARRAY(name)                                                                                               \
    if (lk__grow(c, (void **)&g->name, &g->name##_capacity, from->name##_count, sizeof *g->name) < 0) goto fail;       \
    if (from->name##_count) memcpy(g->name, from->name, from->name##_count * sizeof *g->name)
    COPY_ARRAY(nodes);
    g->nodes_count = from->nodes_count;
    COPY_ARRAY(values);
    for (size_t i = 0; i < from->values_count; i++) {
        g->values_count = i + 1;
        if (from->values[i].name && !(g->values[i].name = lk__strdup(c, from->values[i].name))) goto fail;
    }
    COPY_ARRAY(blocks);
    for (size_t i = 0; i < from->blocks_count; i++) {
        g->blocks_count = i + 1;
        if (!(g->blocks[i].name = lk__strdup(c, from->blocks[i].name))) goto fail;
    }
    COPY_ARRAY(states);
    for (size_t i = 0; i < from->states_count; i++) {
        lk__graph_state *s = &g->states[i];
        s->aliases = NULL;
        s->aliases_count = s->aliases_capacity = 0; /* names of tied weights matter to the store alone */
        g->states_count = i + 1;
        if (!(s->name = lk__strdup(c, from->states[i].name))) goto fail;
    }
    COPY_ARRAY(metrics);
    for (size_t i = 0; i < from->metrics_count; i++) {
        g->metrics_count = i + 1;
        if (!(g->metrics[i].name = lk__strdup(c, from->metrics[i].name))) goto fail;
    }
    COPY_ARRAY(constants);
    g->constants_count = from->constants_count;
    for (size_t i = 0; i < from->constants_count; i++) g->constants[i].data = NULL;
    COPY_ARRAY(customs);
    for (size_t i = 0; i < from->customs_count; i++) {
        if (lk__custom_copy(from->customs[i], &g->customs[i]) < 0) goto fail;
        g->customs_count = i + 1;
    }
#undef COPY_ARRAY
    *copy = g;
    return LK_OK;
fail:
    lk_graph_free(g);
    return LK_ENOMEM;
}

void lk__graph_set_capacity(lk_graph *g, int64_t capacity)
{
    for (size_t i = 0; i < g->values_count; i++) {
        lk__graph_shape *s = &g->values[i].shape;
        if (s->count_axis >= 0) s->dims[s->count_axis] = capacity * s->count_unit;
    }
}

lk_status lk__graph_copy_rest(const lk_graph *from, lk_graph *g)
{
    lk_context *c = g->context;
    for (size_t i = 0; i < from->states_count; i++) {
        const lk__graph_state *s = &from->states[i];
        lk__graph_state       *to = &g->states[i];
        if (lk__grow(c, (void **)&to->aliases, &to->aliases_capacity, s->aliases_count, sizeof(char *)) < 0)
            return LK_ENOMEM;
        for (size_t j = 0; j < s->aliases_count; j++) {
            if (!(to->aliases[j] = lk__strdup(c, s->aliases[j]))) return LK_ENOMEM;
            to->aliases_count++;
        }
    }
    for (size_t i = 0; i < from->constants_count; i++) {
        lk__graph_constant *k = &g->constants[i];
        if (!(k->data = lk__alloc(c, LK_MEMORY_OTHER, k->bytes))) return LK_ENOMEM;
        memcpy(k->data, from->constants[i].data, k->bytes);
    }
    return LK_OK;
}
