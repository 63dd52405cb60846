/* print.c - a graph as text with one operation per line, and as Graphviz's dot. */
#include "base/hash.h"
#include "graph/op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct sink {
    lk_text_callback write;
    void            *user;
} sink;

static void emit(const sink *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void emit(const sink *s, const char *format, ...)
{
    char    text[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n > 0) s->write(s->user, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void value_name(const lk_graph *g, int id, char *text, size_t bytes)
{
    const lk__graph_value *v = &g->values[id];
    if (v->kind == LK__VALUE_STATE)
        snprintf(text, bytes, "%s", g->states[v->state].name);
    else if (v->kind == LK__VALUE_MASTER)
        snprintf(text, bytes, "%s.master", g->states[v->state].name);
    else if (v->kind == LK__VALUE_OPTIMIZER)
        snprintf(text, bytes, "%s.m%d", g->states[v->state].name, v->slot);
    else if (v->kind == LK__VALUE_CONSTANT)
        snprintf(text, bytes, "constant%d", v->state);
    else if (v->kind == LK__VALUE_BUCKET)
        snprintf(text, bytes, "bucket%d%s", v->state, v->slot ? ".slice" : "");
    else if (v->name)
        snprintf(text, bytes, "%s", v->name);
    else
        snprintf(text, bytes, "%%%d", id);
}

/* " huber, delta 1.5": a user's operation and its attributes. */
static void custom_text(const lk_operation *o, char *text, size_t bytes)
{
    char shown[256] = "";
    if (o->print && o->attributes_bytes)
        o->print(o->attributes, shown, sizeof shown);
    else if (o->attributes_bytes)
        snprintf(shown, sizeof shown, "attributes 0x%016llx",
                 (unsigned long long)lk__hash64(o->attributes, o->attributes_bytes, 0));
    shown[sizeof shown - 1] = 0;
    snprintf(text, bytes, " %s%s%s", o->name, *shown ? ", " : "", shown);
}

/* What all ranks have in common: not where the part of this one begins. */
static lk__op_attrs common_attrs(const lk__graph_node *n)
{
    lk__op_attrs attrs = n->attrs;
    if (n->attrs.mesh) attrs.start = 0;
    return attrs;
}

/* "conv2d+relu+max_pool 2, padding 1" */
static void op_text(const lk_graph *g, const lk__graph_node *n, char *text, size_t bytes)
{
    const lk__kernel_custom *custom = lk__node_custom(g, n);
    lk__op_attrs             attrs = common_attrs(n);
    int                      used = snprintf(text, bytes, "%s", lk__op_name(n->op));
    if (custom)
        custom_text(&custom->operation, text + used, bytes - (size_t)used);
    else
        lk__attrs_text(&attrs, lk__op_find(n->op)->attributes, text + used, bytes - (size_t)used);
}

uint64_t lk__node_hash(const lk_graph *g, const lk__graph_node *n, uint64_t hash)
{
    const lk__kernel_custom *custom = lk__node_custom(g, n);
    char                     text[1024];
    lk__node_text(g, n, text, sizeof text);
    lk__op_attrs attrs = common_attrs(n);
    hash = lk__attrs_hash(&attrs, lk__hash64(text, strlen(text), hash));
    if (!custom) return hash;
    const lk_operation *o = &custom->operation;
    hash = lk__hash64(o->types, sizeof o->types, lk__hash64(o->attributes, o->attributes_bytes, hash));
    return lk__hash64((unsigned[]){o->sums, o->coupled, o->no_gradient, o->saved_outputs}, 4 * sizeof(unsigned), hash);
}

void lk__node_text(const lk_graph *g, const lk__graph_node *n, char *text, size_t bytes)
{
    char   name[256], op[512];
    size_t used = 0;
    op_text(g, n, op, sizeof op);
#define MORE(...)                                                                     \
    do {                                                                              \
        if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, __VA_ARGS__); \
    } while (0)
    bool first = true;
    for (int i = 0; i < n->outputs; i++) {
        if (n->out[i] < 0) continue;
        value_name(g, n->out[i], name, sizeof name);
        MORE("%s%s", first ? "" : ", ", name);
        first = false;
    }
    MORE(" = %s(", op);
    first = true;
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0) continue;
        value_name(g, n->in[i], name, sizeof name);
        MORE("%s%s", first ? "" : ", ", name);
        first = false;
    }
    MORE(")");
    if (n->outputs > 0 && n->out[0] >= 0) {
        char     shape[128];
        lk_dtype type = g->values[n->out[0]].shape.dtype;
        lk__shape_text(&g->values[n->out[0]].shape, shape, sizeof shape);
        MORE("  %s%s%s", type == g->real ? "" : lk_dtype_name(type), type == g->real ? "" : " ", shape);
    }
#undef MORE
}

static double element_at(lk_dtype type, const void *data, int64_t i)
{
    switch (type) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_I32: return ((const int32_t *)data)[i];
    case LK_I64: return (double)((const int64_t *)data)[i];
    case LK_U8: return ((const uint8_t *)data)[i];
    default: return NAN; /* lk_constant accepts no others */
    }
}

void lk__constant_text(const lk_graph *g, size_t index, char *text, size_t bytes)
{
    const lk__graph_constant *k = &g->constants[index];
    const lk__graph_shape    *s = &g->values[k->value].shape;
    int64_t                   elements = lk__shape_elements(s), shown = elements < 4 ? elements : 4;
    char                      shape[128];
    lk__shape_text(s, shape, sizeof shape);
    int used = snprintf(text, bytes, "constant%zu %s %s, data 0x%016llx: ", index, lk_dtype_name(s->dtype), shape,
                        (unsigned long long)k->hash);
    for (int64_t i = 0; i < shown && k->data && used > 0 && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%.9g%s", i ? ", " : "", element_at(s->dtype, k->data, i),
                         i == shown - 1 && shown < elements ? ", …" : "");
}

static bool is_source(const lk__graph_value *v)
{
    return v->kind == LK__VALUE_INPUT || v->kind == LK__VALUE_STATE || v->kind == LK__VALUE_CONSTANT;
}

void lk_graph_print(const lk_graph *g, lk_text_callback write, void *user)
{
    sink s = {write, user};
    char text[1024], shape[128];
    for (size_t i = 0; i < g->values_count; i++) {
        const lk__graph_value *v = &g->values[i];
        if (!is_source(v)) continue;
        value_name(g, (int)i, text, sizeof text);
        lk__shape_text(&v->shape, shape, sizeof shape);
        const lk__graph_state *state = v->kind == LK__VALUE_STATE ? &g->states[v->state] : NULL;
        emit(&s, "%-9s %-32s %s %s%s\n",
             v->kind == LK__VALUE_CONSTANT ? "constant"
             : !state                      ? "input"
             : state->buffer               ? "buffer"
                                           : "parameter",
             text, lk_dtype_name(v->shape.dtype), shape,
             state && state->frozen      ? " frozen"
             : state && state->not_saved ? " not saved"
                                         : "");
        for (size_t j = 0; state && j < state->aliases_count; j++)
            emit(&s, "%-9s %-32s the same as %s\n", "tied", state->aliases[j], text);
    }
    int block = 0;
    for (size_t i = 0; i < g->nodes_count; i++) {
        if (g->nodes[i].dead) continue;
        if (g->nodes[i].block != block)
            emit(&s, "block     %s\n", (block = g->nodes[i].block) ? g->blocks[block].name : "(model)");
        lk__node_text(g, &g->nodes[i], text, sizeof text);
        emit(&s, "  %s\n", text);
    }
}

void lk_graph_dot(const lk_graph *g, lk_text_callback write, void *user)
{
    sink s = {write, user};
    char text[256], shape[128];
    emit(&s, "digraph model {\n  rankdir=TB;\n  node [fontname=\"Helvetica\", fontsize=11];\n");
    for (size_t i = 0; i < g->values_count; i++) {
        const lk__graph_value *v = &g->values[i];
        if (!is_source(v)) continue;
        value_name(g, (int)i, text, sizeof text);
        lk__shape_text(&v->shape, shape, sizeof shape);
        emit(&s, "  v%zu [shape=%s, style=filled, fillcolor=\"%s\", label=\"%s\\n%s\"];\n", i,
             v->kind == LK__VALUE_INPUT ? "oval" : "box", v->kind == LK__VALUE_INPUT ? "#d9ead3" : "#fff2cc", text,
             shape);
    }
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead) continue;
        op_text(g, n, text, sizeof text);
        emit(&s, "  n%zu [shape=box, style=\"rounded,filled\", fillcolor=\"#cfe2f3\", label=\"%s\"];\n", i, text);
        for (int j = 0; j < n->inputs; j++) {
            if (n->in[j] < 0) continue;
            const lk__graph_value *v = &g->values[n->in[j]];
            lk__shape_text(&v->shape, shape, sizeof shape);
            if (v->kind == LK__VALUE_RESULT)
                emit(&s, "  n%d -> n%zu [label=\"%s\", fontsize=9];\n", v->node, i, shape);
            else
                emit(&s, "  v%d -> n%zu;\n", n->in[j], i);
        }
    }
    emit(&s, "}\n");
}
