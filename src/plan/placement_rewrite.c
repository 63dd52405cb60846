/* placement_rewrite.c - the graph of one rank, from the placements of values along an axis of the mesh (placement.h):
 * values get the shape of this rank's part, and where a node needs or produces a placement other than the one in which
 * a value is held, collectives and local cuts are inserted. A value keeps its number, which is its held form; other
 * forms are new values. */
#include "plan/placement.h"

#include "graph/factor.h"

#include <string.h>

/* Another form of a value, made where it was first needed. */
typedef struct form {
    int                 value, made;
    lk__placement_value place;
} form;

typedef struct rewriter {
    lk_plan              *plan;
    lk_graph             *g;
    const lk__placements *places;
    lk__graph_shape      *whole; /* by value that there was before: its shape then */
    form                 *forms;
    size_t                forms_count, forms_capacity;
    size_t                forward; /* nodes of it that there were before */
    bool                  in_backward;
} rewriter;

/* ---- shapes ---- */

/* Ranks among which something is exchanged: all along the axis, or those of a factor of it. */
typedef struct group {
    unsigned axes;
    int      extent, coordinate; /* this rank's */
} group;

static group find_group(const rewriter *r, unsigned axes)
{
    const lk__mesh_grid *mesh = &r->plan->mesh;
    return (group){axes, lk__mesh_extent(mesh, axes), lk__mesh_coordinate(mesh, axes, lk__plan_rank(r->plan))};
}

/* Those that have the parts, and those that have copies of one. */
static group holders(const rewriter *r, const lk__placement_value *place)
{
    return find_group(r, lk__placement_axes(place, r->places->axis));
}
static group neighbours(const rewriter *r, int copies)
{
    return find_group(r, lk__axes_neighbours(r->places->axis, copies));
}

static lk__graph_shape part_shape(const lk__graph_shape *whole, const lk__placement_value *place, int parts)
{
    lk__graph_shape s = *whole;
    s.dims[place->dim] /= parts;
    if (s.count_axis == place->dim) s.count_unit /= parts;
    return s;
}

/* The shape of a rank's part of a value, and where that lies in the whole. Summands of a part have its shape. */
static void set_part(const rewriter *r, lk__graph_value *v, const lk__graph_shape *whole,
                     const lk__placement_value *place)
{
    int dim = place->dim;
    v->shape = *whole;
    v->part = (lk__op_part){.rank = 0};
    if (place->kind != LK__PLACE_SPLIT && !place->copies) return;
    group g = holders(r, place);
    v->shape = part_shape(whole, place, g.extent);
    v->part.rank = whole->rank;
    memcpy(v->part.whole, whole->dims, sizeof v->part.whole);
    v->part.first[dim] =
        g.coordinate * (place->segment[0] ? place->segment[0] / g.extent : v->shape.dims[dim] / place->outer);
    v->part.outer[dim] = place->outer > 1 || whole->count_axis == dim ? place->outer : 0;
}

/* A value as rows, in each of which the ranks' parts follow each other: (rows, part) of one rank, (rows, ranks, part)
 * of all, as collectives have it too. */
typedef enum view { LOCAL, WHOLE } view;

static lk__graph_shape view_shape(const group *g, const lk__graph_shape *whole, const lk__placement_value *place,
                                  view form)
{
    int64_t before = 1, inner = 1, extent = g->extent, each = whole->dims[place->dim] / place->outer;
    for (int i = 0; i < place->dim; i++) before *= whole->dims[i];
    for (int i = place->dim + 1; i < whole->rank; i++) inner *= whole->dims[i];
    int64_t         rows = before * place->outer, part = each / extent * inner;
    int             last = form == LOCAL ? 1 : 2, axis = whole->count_axis;
    lk__graph_shape s = {.dtype = whole->dtype, .rank = last + 1, .count_axis = -1, .count_unit = 1};
    s.dims[0] = rows;
    s.dims[last] = part;
    if (form == WHOLE) s.dims[1] = extent;
    if (axis < 0) return s;
    s.count_axis = axis > place->dim ? last : 0;
    s.count_unit = axis == place->dim ? before * (whole->count_unit / each)
                                      : whole->count_unit * (s.dims[s.count_axis] / whole->dims[axis]);
    return s;
}

/* ---- nodes between two forms ---- */

static int emit_view(lk_graph *g, lk_site site, int x, const lk__graph_shape *shape)
{
    if (x < 0 || lk__shape_equal(&g->values[x].shape, shape)) return x;
    int node = lk__emit_shaped(g, site, LK__OP_reshape, NULL, &x, 1, shape, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

/* The whole value from the parts of a group. */
static int emit_gather(lk_graph *g, lk_site site, int x, const lk__graph_shape *whole, const lk__placement_value *from,
                       const group *among)
{
    lk__op_attrs    attrs = {.mesh = among->axes, .parts = among->extent, .rows = 1};
    lk__graph_shape local = view_shape(among, whole, from, LOCAL);
    int             y = emit_view(g, site, x, &local);
    if (y >= 0) y = lk__emit_all_gather(g, site, &attrs, y);
    return emit_view(g, site, y, whole);
}

/* This rank's part of a sum over a group. */
static int emit_scatter(lk_graph *g, lk_site site, int x, const lk__graph_shape *whole, const lk__placement_value *to,
                        const group *among)
{
    lk__op_attrs    attrs = {.mesh = among->axes, .parts = among->extent, .rows = 1, .reduction = LK_SUM};
    lk__graph_shape all = view_shape(among, whole, to, WHOLE), part = part_shape(whole, to, among->extent);
    int             y = emit_view(g, site, x, &all);
    if (y >= 0) y = lk__emit_reduce_scatter(g, site, &attrs, y);
    return emit_view(g, site, y, &part);
}

/* This rank's part of a value that every rank of a group has. */
static int emit_cut(lk_graph *g, lk_site site, int x, const lk__graph_shape *whole, const lk__placement_value *to,
                    const group *among)
{
    lk__op_attrs    attrs = {.mesh = among->axes, .parts = among->extent, .axis = 1, .start = among->coordinate};
    lk__graph_shape all = view_shape(among, whole, to, WHOLE), one = all, part = part_shape(whole, to, among->extent);
    one.dims[1] = attrs.length = 1;
    int y = emit_view(g, site, x, &all);
    int node = y < 0 ? -1 : lk__emit_shaped(g, site, LK__OP_own_part, &attrs, &y, 1, &one, 1);
    return node < 0 ? -1 : emit_view(g, site, g->nodes[node].out[0], &part);
}

static int emit_sum(lk_graph *g, lk_site site, int x, const group *among)
{
    return x < 0 ? -1 : lk__emit_all_reduce(g, site, &(lk__op_attrs){.mesh = among->axes, .reduction = LK_SUM}, x);
}

/* Things side by side, each cut by itself: gathers each, or cuts each. */
static int emit_segments(lk_graph *g, lk_site site, int x, const lk__graph_shape *whole,
                         const lk__placement_value *place, const group *among, bool gathers)
{
    lk__placement_value one = {.kind = LK__PLACE_SPLIT, .dim = place->dim, .outer = 1};
    lk__op_attrs        attrs = {.axis = place->dim};
    int                 made[LK__CUT_SEGMENTS], count = 0;
    for (; count < LK__CUT_SEGMENTS && place->segment[count]; count++) {
        lk__graph_shape segment = *whole;
        segment.dims[place->dim] = place->segment[count];
        attrs.length = place->segment[count] / (gathers ? among->extent : 1);
        int y = x < 0 ? -1 : lk__emit1(g, site, LK__OP_slice, &attrs, &x, 1);
        attrs.start += attrs.length;
        if (y >= 0) y = (gathers ? emit_gather : emit_cut)(g, site, y, &segment, &one, among);
        if ((made[count] = y) < 0) return -1;
    }
    return lk__emit1(g, site, LK__OP_concat, &(lk__op_attrs){.axis = place->dim}, made, count);
}

/* Between a part and what its copies make of it: each a part of that. */
static int emit_among_copies(rewriter *r, lk_site site, int x, const lk__graph_shape *whole,
                             const lk__placement_value *from, const lk__placement_value *to)
{
    const lk__placement_value *shared = from->copies ? from : to;
    group                      among = neighbours(r, shared->copies);
    lk__graph_shape            part = part_shape(whole, shared, r->places->extent / shared->copies);
    if (from->kind == LK__PLACE_PARTIAL) return emit_scatter(r->g, site, x, &part, to, &among);
    return from->copies ? emit_cut(r->g, site, x, &part, to, &among) : emit_gather(r->g, site, x, &part, from, &among);
}

/* x, which has the form `from`, in the form `to`: x itself, or a new value. */
static int emit_form(rewriter *r, lk_site site, int x, const lk__graph_shape *whole, const lk__placement_value *given,
                     const lk__placement_value *to)
{
    lk__placement_value from = *given;
    group               there = holders(r, to);
    if (lk__placement_equal(&from, to)) return x;
    if (to->kind == LK__PLACE_SPLIT && from.kind != LK__PLACE_REPLICATED && from.copies != to->copies &&
        (from.copies == 0 || to->copies == 0) && !to->segment[0] && lk__placement_alike(&from, to))
        return emit_among_copies(r, site, x, whole, &from, to);
    if (from.kind == LK__PLACE_PARTIAL && from.copies) {
        group among = neighbours(r, from.copies);
        x = emit_sum(r->g, site, x, &among);
        from.kind = LK__PLACE_SPLIT;
        if (lk__placement_equal(&from, to)) return x;
    }
    if (from.kind == LK__PLACE_PARTIAL && to->kind == LK__PLACE_SPLIT && !to->copies && !to->segment[0])
        return emit_scatter(r->g, site, x, whole, to, &there);
    group here = holders(r, &from);
    if (from.kind == LK__PLACE_PARTIAL) x = emit_sum(r->g, site, x, &here);
    if (from.kind == LK__PLACE_SPLIT && from.segment[0])
        x = emit_segments(r->g, site, x, whole, &from, &here, true);
    else if (from.kind == LK__PLACE_SPLIT)
        x = emit_gather(r->g, site, x, whole, &from, &here);
    if (x < 0 || to->kind != LK__PLACE_SPLIT) return x;
    if (to->segment[0]) return emit_segments(r->g, site, x, whole, to, &there, false);
    return emit_cut(r->g, site, x, whole, to, &there);
}

/* ---- nodes ---- */

/* A value of before in the form that a node needs. */
static int find_form(rewriter *r, lk_site site, int v, const lk__placement_value *need)
{
    const lk__placement_value *held = &r->places->values[v];
    if (lk__placement_equal(held, need)) return v;
    for (size_t i = 0; i < r->forms_count; i++)
        if (r->forms[i].value == v && lk__placement_equal(&r->forms[i].place, need)) return r->forms[i].made;
    if (lk__grow(r->g->context, (void **)&r->forms, &r->forms_capacity, r->forms_count + 1, sizeof *r->forms) < 0) {
        lk__graph_no_memory(r->g);
        return -1;
    }
    int made = emit_form(r, site, v, &r->whole[v], held, need);
    if (made >= 0) set_part(r, &r->g->values[made], &r->whole[v], need);
    r->forms[r->forms_count++] = (form){v, made, *need};
    return made;
}

/* What is added to output 0 once that is a sum over the ranks, such as a bias. */
typedef struct addend {
    int value, dim; /* its one dimension is this one of the output; -1: it has the output's shape */
} addend;
typedef struct addends {
    addend all[LK__MAX_IN];
    int    count;
} addends;

/* Shapes of before for the node's operands, and back. */
static void swap_shapes(rewriter *r, const lk__graph_node *n)
{
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        int v = i < n->inputs ? n->in[i] : n->out[i - n->inputs];
        for (int k = 0; k < i && v >= 0; k++) /* an operand may be there twice */
            if (v == (k < n->inputs ? n->in[k] : n->out[k - n->inputs])) v = -1;
        if (v < 0) continue;
        lk__graph_shape shape = r->g->values[v].shape;
        r->g->values[v].shape = r->whole[v];
        r->whole[v] = shape;
    }
}

static const char *find_factors(rewriter *r, const lk__graph_node *n, lk__factors *f, char text[static 128])
{
    swap_shapes(r, n);
    const char *wrong = lk__node_factors(r->g, n, f, text);
    swap_shapes(r, n);
    return wrong;
}

/* The dimension of output 0 that is the one of input i. */
static int output_dim(const rewriter *r, const lk__factors *f, const lk__graph_node *n, int i)
{
    int rank = r->whole[n->out[0]].rank, dim = 0;
    if (r->whole[n->in[i]].rank == rank) return -1;
    while (dim < rank - 1 && memcmp(&f->out[0][dim], &f->in[i][0], sizeof f->in[i][0]) != 0) dim++;
    return dim;
}

/* Sets the attributes that count what is cut; moves what is added behind a sum from the inputs to `later`. */
static bool place_factor(rewriter *r, lk__graph_node *n, const lk__placement_node *place, addends *later)
{
    lk__factors f;
    char        text[128];
    int64_t     extents[LK__FACTORS];
    later->count = 0;
    int parts = place->copies ? r->places->extent / place->copies : r->places->extent;
    if (place->factor == LK__PLACE_SLICE) n->attrs.start /= parts, n->attrs.length /= parts;
    if (place->factor < 0) return true;
    const char *wrong = find_factors(r, n, &f, text);
    if (wrong) {
        lk__graph_fail(r->g, n->site, "%s: %s", lk__node_name(r->g, n), wrong);
        return false;
    }
    for (int i = 0; i < f.count; i++) {
        extents[i] = f.factor[i].extent / (i == place->factor ? parts : 1);
        if (place->copies && i == place->second) extents[i] /= place->copies;
    }
    for (int i = 0; i < n->inputs && n->out[0] >= 0 && place->out[0].kind == LK__PLACE_PARTIAL; i++) {
        if (n->in[i] < 0 || !(f.added >> i & 1)) continue;
        int form = find_form(r, n->site, n->in[i], &place->in[i]);
        if (form < 0) return false;
        later->all[later->count++] = (addend){form, output_dim(r, &f, n, i)};
        n->in[i] = -1;
    }
    lk__factors_attributes(&f, extents, &n->attrs);
    return true;
}

static int emit_addend(rewriter *r, lk_site site, int y, const addend *a)
{
    const lk__graph_shape *shape = &r->g->values[a->value].shape;
    lk__graph_shape        view = *shape;
    if (y < 0) return -1;
    if (a->dim >= 0) {
        view.rank = r->g->values[y].shape.rank - a->dim;
        for (int i = 1; i < view.rank; i++) view.dims[i] = 1;
    }
    int b = lk__emit_cast(r->g, site, emit_view(r->g, site, a->value, &view), r->g->values[y].shape.dtype);
    return b < 0 ? -1 : lk__emit1(r->g, site, LK__OP_add, NULL, (int[]){y, b}, 2);
}

/* What a node makes of a value, where that is not the form in which it is held. */
typedef struct output {
    int                        made, value;
    lk_dtype                   sent; /* in which it travels */
    const lk__placement_value *from;
    const addends             *later;
} output;

/* Summands of a sum of products travel in the type of sums, and what they are added to is rounded once. Rows that are
 * looked up are on one rank, and zero on the others. */
static lk_dtype sent_type(const lk_graph *g, const lk__graph_node *n, int v, const lk__placement_value *place)
{
    lk_dtype type = g->values[v].shape.dtype;
    bool     sum = place->kind == LK__PLACE_PARTIAL && lk__op_find(n->op)->arithmetic(g, n) > 0;
    return sum ? lk__wide_type(type) : type;
}

/* From what the node has made to the value as it is held. */
static bool finish_output(rewriter *r, lk_site site, const output *o)
{
    lk__graph_shape whole = r->whole[o->value];
    int             y = lk__emit_cast(r->g, site, o->made, o->sent);
    whole.dtype = o->sent;
    if (y >= 0) y = emit_form(r, site, y, &whole, o->from, &r->places->values[o->value]);
    for (int i = 0; i < o->later->count; i++) y = emit_addend(r, site, y, &o->later->all[i]);
    y = lk__emit_cast(r->g, site, y, r->whole[o->value].dtype);
    if (y >= 0) r->g->nodes[r->g->values[y].node].out[0] = o->value;
    return y >= 0;
}

/* Whether the kernel gives such an output in the type of sums. */
static bool makes_sums(const rewriter *r, const lk__graph_operand *o)
{
    bool image = o->layout == LK__LAYOUT_LAST;
    return o->types == LK__TYPE_PRODUCT && (!image || r->plan->device->backend->kernels.wide_images);
}

/* A value that the node makes instead of v. */
static int add_made(rewriter *r, const lk__graph_node *n, int k, const output *o)
{
    lk__graph_value value = r->g->values[o->value];
    value.kind = LK__VALUE_RESULT;
    set_part(r, &value, &r->whole[o->value], o->from);
    if (makes_sums(r, &lk__op_find(n->op)->out[k])) value.shape.dtype = o->sent;
    return lk__graph_add_value(r->g, &value);
}

/* Between the start of a collective and its wait its result cannot be read: both have it in one form. */
static bool check_in_flight(rewriter *r, const lk__graph_node *n, const lk__placement_node *place)
{
    lk__graph_runs runs = lk__op_find(n->op)->runs;
    bool           right = true;
    if (runs == LK__RUNS_COLLECTIVE) right = lk__placement_equal(&place->out[0], &r->places->values[n->out[0]]);
    if (runs == LK__RUNS_WAIT) right = lk__placement_equal(&place->in[0], &r->places->values[n->in[0]]);
    if (!right)
        lk__graph_fail(r->g, n->site, "%s: its operand and its result are split differently", lk__op_name(n->op));
    return right;
}

/* Forms that forward has made are not kept for backward, which makes its own: a gathered value is larger than a
 * part. */
static void begin_backward(rewriter *r, size_t index)
{
    if (r->in_backward || index < r->forward) return;
    r->forms_count = 0;
    r->in_backward = true;
}

static bool rewrite_node(void *user, const lk__graph_node *old, size_t index)
{
    static const addends      none = {.count = 0};
    rewriter                 *r = user;
    const lk__placement_node *place = &r->places->nodes[index];
    lk_graph                 *g = r->g;
    lk__graph_node            n = *old;
    addends                   later;
    output                    outputs[LK__MAX_OUT];
    begin_backward(r, index);
    if (!check_in_flight(r, old, place) || !place_factor(r, &n, place, &later)) return false;
    for (int i = 0; i < n.inputs; i++)
        if (n.in[i] >= 0 && (n.in[i] = find_form(r, n.site, n.in[i], &place->in[i])) < 0) return false;
    while (later.count && n.inputs > 0 && n.in[n.inputs - 1] < 0) n.inputs--;
    for (int k = 0; k < n.outputs; k++) {
        int v = n.out[k];
        outputs[k] = (output){.made = -1, .value = v, .from = &place->out[k], .later = k == 0 ? &later : &none};
        if (v < 0 || (lk__placement_equal(&place->out[k], &r->places->values[v]) && (k > 0 || !later.count))) continue;
        outputs[k].sent = sent_type(g, old, v, &place->out[k]);
        if ((n.out[k] = outputs[k].made = add_made(r, &n, k, &outputs[k])) < 0) return false;
    }
    if (lk__plan_append(g, &n) < 0) return false;
    for (int k = 0; k < n.outputs; k++)
        if (outputs[k].made >= 0 && !finish_output(r, n.site, &outputs[k])) return false;
    return true;
}

/* ---- the list ---- */

lk_status lk__placements_apply(lk_plan *plan, lk__plan_list *list, const lk__placements *places, size_t *forward)
{
    lk_graph *g = list->graph;
    size_t    values = g->values_count, bytes = values * sizeof(lk__graph_shape);
    rewriter  r = {.plan = plan, .g = g, .places = places, .forward = *forward};
    if (values && !(r.whole = lk__alloc(g->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    for (size_t v = 0; v < values; v++) {
        r.whole[v] = g->values[v].shape;
        set_part(&r, &g->values[v], &r.whole[v], &places->values[v]);
    }
    lk_status status = lk__plan_rebuild_at(g, rewrite_node, &r, forward);
    lk__free(g->context, LK_MEMORY_OTHER, r.forms, r.forms_capacity * sizeof *r.forms);
    lk__free(g->context, LK_MEMORY_OTHER, r.whole, bytes);
    return status;
}
