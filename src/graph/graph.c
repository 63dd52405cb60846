/* graph.c - creating graphs, recording failures, and adding values, nodes, states, constants and blocks. */
#include "graph/op.h"

#include "base/hash.h"
#include "device/custom.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int add_block(lk_graph *g, const char *name, int parent, bool recompute)
{
    if (lk__grow(g->context, (void **)&g->blocks, &g->blocks_capacity, g->blocks_count + 1, sizeof *g->blocks) < 0)
        return -1;
    char *copy = lk__strdup(g->context, name);
    if (!copy) return -1;
    g->blocks[g->blocks_count] = (lk__graph_block){copy, parent, recompute};
    return (int)g->blocks_count++;
}

lk_status lk_graph_create(lk_context *context, lk_dtype real, lk_graph **graph)
{
    *graph = NULL;
    if (real != LK_F32 && real != LK_F64)
        return lk__fail(context, LK_EUNSUPPORTED, "a graph computes in f32 or f64, not %s", lk_dtype_name(real));
    lk_graph *g = lk__alloc(context, LK_MEMORY_OTHER, sizeof *g);
    if (!g) return LK_ENOMEM;
    g->context = context;
    g->real = real;
    if (add_block(g, "", -1, false) < 0) {
        lk_graph_free(g);
        return LK_ENOMEM;
    }
    *graph = g;
    return LK_OK;
}

void lk_graph_free(lk_graph *g)
{
    if (!g) return;
    lk_context *c = g->context;
    for (size_t i = 0; i < g->states_count; i++) {
        lk__strfree(c, g->states[i].name);
        for (size_t j = 0; j < g->states[i].aliases_count; j++) lk__strfree(c, g->states[i].aliases[j]);
        lk__free(c, LK_MEMORY_OTHER, g->states[i].aliases, g->states[i].aliases_capacity * sizeof(char *));
    }
    for (size_t i = 0; i < g->blocks_count; i++) lk__strfree(c, g->blocks[i].name);
    for (size_t i = 0; i < g->constants_count; i++)
        lk__free(c, LK_MEMORY_OTHER, g->constants[i].data, g->constants[i].bytes);
    lk__free(c, LK_MEMORY_OTHER, g->constants, g->constants_capacity * sizeof *g->constants);
    for (size_t i = 0; i < g->metrics_count; i++) lk__strfree(c, g->metrics[i].name);
    lk__free(c, LK_MEMORY_OTHER, g->metrics, g->metrics_capacity * sizeof *g->metrics);
    for (size_t i = 0; i < g->customs_count; i++) lk__custom_free(g->customs[i]);
    lk__free(c, LK_MEMORY_OTHER, g->customs, g->customs_capacity * sizeof *g->customs);
    for (size_t i = 0; i < g->values_count; i++) lk__strfree(c, (char *)g->values[i].name);
    lk__free(c, LK_MEMORY_OTHER, g->values, g->values_capacity * sizeof *g->values);
    lk__free(c, LK_MEMORY_OTHER, g->nodes, g->nodes_capacity * sizeof *g->nodes);
    lk__free(c, LK_MEMORY_OTHER, g->states, g->states_capacity * sizeof *g->states);
    lk__free(c, LK_MEMORY_OTHER, g->blocks, g->blocks_capacity * sizeof *g->blocks);
    lk__free(c, LK_MEMORY_OTHER, g, sizeof *g);
}

lk_status   lk_graph_status(const lk_graph *g) { return g ? g->status : LK_EINVAL; }
const char *lk_graph_error(const lk_graph *g) { return g ? g->error : "an empty tensor has no graph"; }
lk_context *lk_graph_context(const lk_graph *g) { return g ? g->context : NULL; }
lk_dtype    lk_graph_dtype(const lk_graph *g) { return g ? g->real : LK_F32; }

void lk__graph_fail(lk_graph *g, lk_site site, const char *format, ...)
{
    if (g->status < 0) return;
    g->status = LK_EINVAL;
    int used = snprintf(g->error, sizeof g->error, "%s:%d: ", site.file ? site.file : "?", site.line);
    if (used < 0 || (size_t)used >= sizeof g->error) used = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(g->error + used, sizeof g->error - (size_t)used, format, arguments);
    va_end(arguments);
}

void lk_graph_fail(lk_graph *g, const char *format, ...)
{
    va_list arguments;
    if (g->status < 0) return;
    g->status = LK_EINVAL;
    va_start(arguments, format);
    vsnprintf(g->error, sizeof g->error, format, arguments);
    va_end(arguments);
}

void lk__graph_no_memory(lk_graph *g)
{
    if (g->status < 0) return;
    g->status = LK_ENOMEM;
    snprintf(g->error, sizeof g->error, "out of memory: cannot extend the graph");
}

int lk__graph_add_value(lk_graph *g, const lk__graph_value *value)
{
    if (lk__grow(g->context, (void **)&g->values, &g->values_capacity, g->values_count + 1, sizeof *g->values) < 0) {
        lk__graph_no_memory(g);
        return -1;
    }
    g->values[g->values_count] = *value;
    return (int)g->values_count++;
}

/* NULL: not a value of a graph. */
static const lk__graph_shape *shape_of(lk_tensor x)
{
    return x.graph && x.id >= 0 && (size_t)x.id < x.graph->values_count ? &x.graph->values[x.id].shape : NULL;
}

/* "layer1.0" + "conv1" → "layer1.0.conv1" */
static char *scoped_name(lk_graph *g, const char *name)
{
    char        full[512];
    const char *scope = g->blocks[g->block].name;
    int         n = snprintf(full, sizeof full, "%s%s%s", scope, *scope ? "." : "", name);
    if (n < 0 || (size_t)n >= sizeof full) {
        if (g->status == LK_OK) {
            g->status = LK_EINVAL;
            snprintf(g->error, sizeof g->error, "the name \"%.60s…\" is too long: expected at most %zu characters",
                     name, sizeof full - 1);
        }
        return NULL;
    }
    return lk__strdup(g->context, full);
}

static bool check_dims(lk_graph *g, lk_site site, const char *name, int rank, const int64_t *dims)
{
    if (rank < 0 || rank > LK_MAX_RANK) {
        lk__graph_fail(g, site, "%s has %d axes; expected 0 to %d", name, rank, LK_MAX_RANK);
        return false;
    }
    int64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 1) {
            lk__graph_fail(g, site, "axis %d of %s has the invalid size %lld", i, name, (long long)dims[i]);
            return false;
        }
        if (dims[i] > LK__MOST_ELEMENTS / elements) {
            lk__graph_fail(g, site, "%s has more than 2^44 elements, the maximum for a tensor", name);
            return false;
        }
        elements *= dims[i];
    }
    return true;
}

static bool check_name(lk_graph *g, lk_site site, const char *name)
{
    if (name && *name) return true;
    lk__graph_fail(g, site, "inputs, parameters and buffers need a name");
    return false;
}

static lk__graph_shape make_shape(lk_dtype type, int rank, const int64_t *dims, int count_axis)
{
    lk__graph_shape s = {.dtype = type, .rank = rank, .count_axis = count_axis, .count_unit = 1};
    for (int i = 0; i < rank; i++) s.dims[i] = dims[i];
    return s;
}

lk_tensor lk_input_at(lk_site site, lk_graph *g, const char *name, lk_dtype type, int rank, const int64_t *dims,
                      lk_input_options options)
{
    lk_tensor none = {g, g ? -1 : -site.line};
    if (!g || g->status < 0 || !check_name(g, site, name) || !check_dims(g, site, name, rank, dims)) return none;
    if (type != g->real && type != LK_I32 && type != LK_U8 && type != LK_I64) {
        lk__graph_fail(g, site, "input %s has type %s; expected %s, u8, i32 or i64", name, lk_dtype_name(type),
                       lk_dtype_name(g->real));
        return none;
    }
    for (size_t i = 0; i < g->values_count; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && strcmp(g->values[i].name, name) == 0) {
            lk__graph_fail(g, site, "input \"%s\" already exists, recorded at %s:%d", name, g->values[i].site.file,
                           g->values[i].site.line);
            return none;
        }
    lk__graph_value v = {.shape = make_shape(type, rank, dims, rank > 0 && !options.fixed ? 0 : -1),
                         .kind = LK__VALUE_INPUT,
                         .node = -1,
                         .state = -1,
                         .site = site};
    if (!(v.name = lk__strdup(g->context, name))) {
        lk__graph_no_memory(g);
        return none;
    }
    int id = lk__graph_add_value(g, &v);
    if (id < 0) lk__strfree(g->context, (char *)v.name);
    return (lk_tensor){g, id};
}

static lk__graph_state *find_state(lk_graph *g, const char *name)
{
    for (size_t i = 0; i < g->states_count; i++) {
        if (strcmp(g->states[i].name, name) == 0) return &g->states[i];
        for (size_t j = 0; j < g->states[i].aliases_count; j++)
            if (strcmp(g->states[i].aliases[j], name) == 0) return &g->states[i];
    }
    return NULL;
}

static lk_tensor add_state(lk_graph *g, lk_site site, const char *name, lk_dtype type, int rank, const int64_t *dims,
                           lk__graph_state state)
{
    lk_tensor none = {g, -1};
    if (g->status < 0 || !check_name(g, site, name) || !check_dims(g, site, name, rank, dims)) return none;
    if (lk__grow(g->context, (void **)&g->states, &g->states_capacity, g->states_count + 1, sizeof *g->states) < 0 ||
        !(state.name = scoped_name(g, name))) {
        lk__graph_no_memory(g);
        return none;
    }
    lk__graph_state *other = find_state(g, state.name);
    if (other) {
        lk__graph_fail(g, site, "\"%s\" already exists, recorded at %s:%d; tie it with lk_tie or choose another name",
                       state.name, other->site.file, other->site.line);
        lk__strfree(g->context, state.name);
        return none;
    }
    lk__graph_value v = {.shape = make_shape(type, rank, dims, -1),
                         .kind = LK__VALUE_STATE,
                         .node = -1,
                         .state = (int)g->states_count,
                         .needs_gradient = !state.buffer && !state.frozen,
                         .site = site};
    state.site = site;
    state.value = lk__graph_add_value(g, &v);
    g->states[g->states_count++] = state;
    return (lk_tensor){g, state.value};
}

static bool is_constant_type(lk_dtype type)
{
    return type == LK_F32 || type == LK_F64 || type == LK_I32 || type == LK_I64 || type == LK_U8;
}

lk_tensor lk_constant_at(lk_site site, lk_graph *g, lk_dtype type, int rank, const int64_t *dims, const void *data)
{
    lk_tensor none = {g, -1};
    if (!g) return (lk_tensor){NULL, -site.line};
    if (g->status < 0 || !check_dims(g, site, "a constant", rank, dims)) return none;
    if (!data) {
        lk__graph_fail(g, site, "constant: there is no data");
        return none;
    }
    if (!is_constant_type(type)) {
        lk__graph_fail(g, site, "constant: the type is %s; expected f32, f64, i32, i64 or u8", lk_dtype_name(type));
        return none;
    }
    lk__graph_value    v = {.shape = make_shape(type, rank, dims, -1),
                            .kind = LK__VALUE_CONSTANT,
                            .node = -1,
                            .state = (int)g->constants_count,
                            .site = site};
    lk__graph_constant k = {.bytes = (size_t)lk__shape_elements(&v.shape) * lk_dtype_size(type)};
    if (lk__grow(g->context, (void **)&g->constants, &g->constants_capacity, g->constants_count + 1,
                 sizeof *g->constants) < 0 ||
        !(k.data = lk__alloc(g->context, LK_MEMORY_OTHER, k.bytes))) {
        lk__graph_no_memory(g);
        return none;
    }
    memcpy(k.data, data, k.bytes);
    k.hash = lk__hash64(data, k.bytes, 0);
    k.value = lk__graph_add_value(g, &v);
    g->constants[g->constants_count++] = k;
    return (lk_tensor){g, k.value};
}

lk_tensor lk_parameter_at(lk_site site, lk_graph *g, const char *name, int rank, const int64_t *dims,
                          lk_parameter_options options)
{
    if (!g) return (lk_tensor){NULL, -site.line};
    return add_state(g, site, name, g->real, rank, dims,
                     (lk__graph_state){
                         .frozen = options.frozen, .no_decay = options.no_decay, .init = options.init, .a = options.a});
}

lk_tensor lk_buffer_at(lk_site site, lk_graph *g, const char *name, lk_dtype type, int rank, const int64_t *dims,
                       double value, lk_buffer_options options)
{
    if (!g) return (lk_tensor){NULL, -site.line};
    if (type != g->real && type != LK_I64) {
        lk__graph_fail(g, site, "buffer %s has type %s; expected %s or i64", name, lk_dtype_name(type),
                       lk_dtype_name(g->real));
        return (lk_tensor){g, -1};
    }
    return add_state(
        g, site, name, type, rank, dims,
        (lk__graph_state){.buffer = true, .not_saved = options.not_saved, .init = LK_INIT_CONSTANT, .a = value});
}

void lk_tie_at(lk_site site, lk_tensor parameter, const char *name)
{
    lk_graph *g = parameter.graph;
    if (!g || g->status < 0 || !check_name(g, site, name)) return;
    if (!shape_of(parameter) || g->values[parameter.id].kind != LK__VALUE_STATE) {
        lk__graph_fail(g, site, "lk_tie(\"%s\") needs a parameter or a buffer", name);
        return;
    }
    lk__graph_state *s = &g->states[g->values[parameter.id].state];
    char            *full = scoped_name(g, name);
    if (!full ||
        lk__grow(g->context, (void **)&s->aliases, &s->aliases_capacity, s->aliases_count + 1, sizeof(char *)) < 0) {
        lk__strfree(g->context, full);
        lk__graph_no_memory(g);
        return;
    }
    lk__graph_state *other = find_state(g, full);
    if (other) {
        lk__graph_fail(g, site, "\"%s\" already exists, recorded at %s:%d", full, other->site.file, other->site.line);
        lk__strfree(g->context, full);
        return;
    }
    s->aliases[s->aliases_count++] = full;
}

void lk_block_begin_at(lk_site site, lk_tensor x, const char *name, lk_block_options options)
{
    lk_graph *g = x.graph;
    if (!g || g->status < 0) return;
    if (!name) {
        lk__graph_fail(g, site, "a block needs a name");
        return;
    }
    char *full = *name ? scoped_name(g, name) : lk__strdup(g->context, g->blocks[g->block].name);
    int   block = full ? add_block(g, full, g->block, options.recompute) : -1;
    lk__strfree(g->context, full);
    if (block < 0)
        lk__graph_no_memory(g);
    else
        g->block = block;
}

void lk_block_end_at(lk_site site, lk_tensor x)
{
    lk_graph *g = x.graph;
    if (!g || g->status < 0) return;
    if (g->block == 0)
        lk__graph_fail(g, site, "lk_block_end without lk_block_begin");
    else
        g->block = g->blocks[g->block].parent;
}

/* That operands are there, and that no attribute is set that the operation has not. */
static bool check_node(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs)
{
    const lk__graph_op *d = lk__op_find(op);
    bool                repeats = d->inputs > 0 && d->in[d->inputs - 1].presence == LK__REPEATED;
    if (inputs > d->inputs && !repeats && inputs > 0) {
        lk__graph_fail(g, site, "%s takes %d operands, not %d", lk__op_name(op), d->inputs, inputs);
        return false;
    }
    for (int i = 0; i < d->inputs || i < inputs; i++) {
        const lk__graph_operand *o = lk__op_input(d, i);
        int                      v = i < inputs ? in[i] : -1;
        if (v < 0 && o->presence == LK__REQUIRED) {
            lk__graph_fail(g, site, "%s: %s is missing", lk__op_name(op), o->name);
            return false;
        }
    }
    lk__attr_set unknown = attrs ? lk__attrs_set(attrs) & ~d->attributes : 0;
    for (int i = 0; i < LK__ATTR_COUNT; i++)
        if (unknown >> i & 1) {
            lk__graph_fail(g, site, "%s has no attribute %s", lk__op_name(op), lk__attr_name(i));
            return false;
        }
    return true;
}

/* Adds the node; the caller sets its outputs. */
static lk__graph_node *add_node(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in,
                                int inputs, int outputs)
{
    if (lk__grow(g->context, (void **)&g->nodes, &g->nodes_capacity, g->nodes_count + 1, sizeof *g->nodes) < 0) {
        lk__graph_no_memory(g);
        return NULL;
    }
    lk__graph_node *node = &g->nodes[g->nodes_count++];
    *node = (lk__graph_node){.op = op, .inputs = inputs, .outputs = outputs, .block = g->block, .site = site};
    if (attrs) node->attrs = *attrs;
    for (int i = 0; i < inputs; i++) node->in[i] = in[i];
    for (int i = 0; i < outputs; i++) node->out[i] = -1;
    return node;
}

/* Checks a new node and casts its inputs, which are copied to `to`, where their types differ from its element type. */
static bool prepare_node(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                         lk_dtype given, int to[LK__MAX_IN], lk_dtype *element)
{
    if (!check_node(g, site, op, attrs, in, inputs)) return false;
    for (int i = 0; i < inputs; i++) to[i] = in[i];
    return lk__choose_element(g, site, op, to, inputs, given, element) &&
           lk__cast_inputs(g, site, op, to, inputs, *element);
}

static int emit_outputs(lk_graph *g, lk__graph_node *node, const lk__graph_shape *shapes, lk_dtype element, int wanted)
{
    bool needs_gradient = lk__node_needs_gradient(g, node);
    int  index = (int)(node - g->nodes);
    for (int i = 0; i < node->outputs; i++) {
        if (!(wanted >> i & 1)) continue;
        if (!lk__shape_fits(&shapes[i])) {
            lk__graph_fail(g, node->site, "%s: its result %s has more than 2^44 elements, the maximum for a tensor",
                           lk__op_name(node->op), lk__shape_show(&shapes[i]).text);
            return -1;
        }
        lk__graph_value v = {
            .shape = shapes[i], .kind = LK__VALUE_RESULT, .node = index, .state = -1, .site = node->site};
        v.shape.dtype = lk__output_type(g, node, i, element, v.shape.dtype);
        v.needs_gradient = needs_gradient && lk__is_element(v.shape.dtype);
        if ((node->out[i] = lk__graph_add_value(g, &v)) < 0) return -1;
    }
    return index;
}

int lk__emit(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs, int wanted)
{
    static const lk__op_attrs none;
    lk__graph_shape           shapes[LK__MAX_OUT];
    int                       to[LK__MAX_IN];
    lk_dtype                  element;
    if (g->status < 0 || !prepare_node(g, site, op, attrs, in, inputs, LK_DTYPE_COUNT, to, &element)) return -1;
    lk__graph_shapes rule = {
        .graph = g, .site = site, .op = op, .attrs = attrs ? attrs : &none, .inputs = inputs, .out = shapes};
    for (int i = 0; i < inputs; i++) rule.in[i] = to[i] >= 0 ? &g->values[to[i]].shape : NULL;
    int             outputs = lk__op_find(op)->shape(&rule);
    lk__graph_node *node = outputs < 0 ? NULL : add_node(g, site, op, attrs, to, inputs, outputs);
    return node ? emit_outputs(g, node, shapes, element, wanted) : -1;
}

int lk__emit_shaped(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const lk__graph_shape *shapes, int outputs)
{
    return lk__emit_wanted(g, site, op, attrs, in, inputs, shapes, outputs, LK__ALL_OUTPUTS);
}

int lk__emit_wanted(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const lk__graph_shape *shapes, int outputs, int wanted)
{
    int      to[LK__MAX_IN];
    lk_dtype element;
    if (g->status < 0 || !prepare_node(g, site, op, attrs, in, inputs, shapes[0].dtype, to, &element)) return -1;
    lk__graph_node *node = add_node(g, site, op, attrs, to, inputs, outputs);
    return node ? emit_outputs(g, node, shapes, element, wanted) : -1;
}

int lk__emit_update(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const int *out, int outputs)
{
    int      to[LK__MAX_IN];
    lk_dtype element;
    if (g->status < 0 || !prepare_node(g, site, op, attrs, in, inputs, g->values[out[0]].shape.dtype, to, &element))
        return -1;
    lk__graph_node *node = add_node(g, site, op, attrs, to, inputs, outputs);
    if (!node) return -1;
    for (int i = 0; i < outputs; i++) node->out[i] = out[i];
    return (int)(node - g->nodes);
}

int lk__emit1(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs)
{
    int node = lk__emit(g, site, op, attrs, in, inputs, LK__ALL_OUTPUTS);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

int      lk_tensor_rank(lk_tensor x) { return shape_of(x) ? shape_of(x)->rank : 0; }
lk_dtype lk_tensor_dtype(lk_tensor x) { return shape_of(x) ? shape_of(x)->dtype : LK_F32; }

int64_t lk_tensor_dim(lk_tensor x, int axis)
{
    const lk__graph_shape *s = shape_of(x);
    if (!s) return 0;
    if (axis < 0) axis += s->rank;
    return axis >= 0 && axis < s->rank ? s->dims[axis] : 0;
}
