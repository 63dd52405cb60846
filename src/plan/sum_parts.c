/* sum_parts.c - the parts of the sums of nodes, for one result in every layout: their number and their possible
 * boundaries. Both follow from the graph that was recorded, never from the mesh.
 *
 * A dimension may be made of heads of some width, of channels of some pixels, or of queries, keys and values side by
 * side: that an axis cuts whole heads, and each of the three, is known to the operations whose lines of factors say
 * so. It is found for every dimension that belongs to the same factor, also through other nodes. */
#include "plan/sum_parts.h"

#include "graph/factor.h"
#include "graph/op/loss_parts.h"
#include "plan/fuse.h"

#include <stdio.h>
#include <string.h>

enum { PART_MINIMUM = 96 }; /* elements, unless the plan says otherwise */

/* What a dimension consists of. */
typedef struct composition {
    int64_t unit;                      /* elements that stay together; 0: not known, 1 */
    int64_t segment[LK__SUM_SEGMENTS]; /* side by side; 0: one thing */
} composition;

typedef struct compositions {
    lk_graph *g;
    composition (*of)[LK_MAX_RANK]; /* by value and dimension */
    bool changed;
} compositions;

/* ---- what dimensions consist of ---- */

static int64_t product_extent(const lk__factors *f, const lk__factor_product *p)
{
    int64_t extent = 1;
    for (int i = 0; i < p->count; i++) extent *= f->factor[p->factor[i]].extent;
    return extent;
}

/* The width of a head, which is coupled, or all but the slowest that has an extent. */
static int64_t product_unit(const lk__factors *f, const lk__factor_product *p)
{
    int64_t inner = 1;
    int     i = 0;
    if (p->count > 1 && f->factor[p->factor[p->count - 1]].coupled) return f->factor[p->factor[p->count - 1]].extent;
    while (i < p->count && f->factor[p->factor[i]].extent == 1) i++;
    for (i++; i < p->count; i++) inner *= f->factor[p->factor[i]].extent;
    return inner;
}

/* That which a dimension is, besides others of extent 1; -1: it consists of several. */
static int only_factor(const lk__factors *f, const lk__factor_dim *d)
{
    const lk__factor_product *p = &d->segment[0];
    int                       found = -1;
    for (int i = 0; i < p->count && d->segments == 1; i++) {
        if (f->factor[p->factor[i]].extent == 1 && p->count > 1) continue;
        if (found >= 0) return -1;
        found = p->factor[i];
    }
    return found;
}

/* Whether a faster factor follows this one in the dimension: it counts things of several elements. */
static bool has_elements(const lk__factor_dim *d, int factor)
{
    for (int s = 0; s < d->segments; s++)
        for (int i = 0; i + 1 < d->segment[s].count; i++)
            if (d->segment[s].factor[i] == factor) return true;
    return false;
}

static composition read_composition(const lk__factors *f, const lk__factor_dim *d)
{
    composition c = {0};
    for (int s = 0; s < d->segments; s++) {
        int64_t unit = product_unit(f, &d->segment[s]);
        if (unit > c.unit) c.unit = unit;
        if (d->segments > 1) c.segment[s] = product_extent(f, &d->segment[s]);
    }
    return c;
}

/* Both hold. */
static bool join(composition *to, const composition *from)
{
    bool changed = from->unit > to->unit || (from->segment[0] && !to->segment[0]);
    if (from->unit > to->unit) to->unit = from->unit;
    if (from->segment[0] && !to->segment[0]) memcpy(to->segment, from->segment, sizeof to->segment);
    return changed;
}

static composition *composition_of(compositions *c, const lk__graph_node *n, int operand, int dim)
{
    int v = operand < n->inputs ? n->in[operand] : n->out[operand - n->inputs];
    return v < 0 || dim >= c->g->values[v].shape.rank ? NULL : &c->of[v][dim];
}

/* One pass over the operands of a node: those dimensions that are one factor consist of the same. */
static void follow_node(compositions *c, const lk__graph_node *n)
{
    lk__factors f;
    char        text[128];
    composition of[LK__FACTORS] = {0};
    if (n->dead || lk__node_factors(c->g, n, &f, text)) return;
    for (int write = 0; write < 2; write++)
        for (int i = 0; i < n->inputs + n->outputs; i++)
            for (int d = 0; d < LK_MAX_RANK; d++) {
                const lk__factor_dim *dim = i < n->inputs ? &f.in[i][d] : &f.out[i - n->inputs][d];
                composition          *here = composition_of(c, n, i, d);
                int                   factor = only_factor(&f, dim);
                if (!here || dim->segments == 0 || dim->listed) continue;
                composition read = read_composition(&f, dim);
                if (factor < 0)
                    c->changed |= join(here, &read);
                else if (write)
                    c->changed |= join(here, &of[factor]);
                else
                    join(&of[factor], here);
            }
}

static lk_status find_compositions(compositions *c)
{
    size_t bytes = c->g->values_count * sizeof *c->of;
    if (bytes && !(c->of = lk__alloc(c->g->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    do {
        c->changed = false;
        for (size_t i = 0; i < c->g->nodes_count; i++) follow_node(c, &c->g->nodes[i]);
        for (size_t i = c->g->nodes_count; i > 0; i--) follow_node(c, &c->g->nodes[i - 1]);
    } while (c->changed);
    return LK_OK;
}

/* ---- the parts of a node's sum ---- */

/* Where a node has the factor that it adds over, the last such dimension: an input and its dimension. */
typedef struct summed {
    int     input, dim;
    int64_t extent;
    bool    inside; /* with others in that dimension, such as the heads of a group */
} summed;

static bool is_samples(const lk_graph *g, const lk__graph_node *n, const lk__factors *f, int factor)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && g->values[n->in[i]].shape.count_axis >= 0 &&
            lk__factor_of_samples(f->in[i], g->values[n->in[i]].shape.count_axis) == factor)
            return true;
    return false;
}

/* One of several things side by side that does not have it is a sum over it, too: keys and values, over the heads of
 * queries. */
static bool lacks_segment(const lk__factor_dim dims[LK_MAX_RANK], int factor)
{
    for (int d = 0; d < LK_MAX_RANK; d++) {
        int has = 0;
        for (int s = 0; s < dims[d].segments; s++) {
            lk__factor_dim one = {.segments = 1, .segment = {dims[d].segment[s]}};
            has += lk__factor_in_dim(&one, factor);
        }
        if (has && has < dims[d].segments) return true;
    }
    return false;
}

static bool is_summed(const lk__graph_node *n, const lk__factors *f, int factor)
{
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0 && (lk__factor_is_summed(f, n->inputs, k, factor) || lacks_segment(f->out[k], factor)))
            return true;
    return false;
}

/* Factor `factor` in dimension d of input i, where the node adds over it and it can be cut. */
static bool read_sum(const lk_graph *g, const lk__graph_node *n, const lk__factors *f, int factor, summed *at)
{
    const lk__factor_dim *dim = &f->in[at->input][at->dim];
    if (!lk__factor_in_dim(dim, factor) || f->factor[factor].extent <= 1 || !is_summed(n, f, factor) ||
        is_samples(g, n, f, factor))
        return false;
    for (int i = 0; i < at->input; i++) /* whether it can be cut follows from the first input that has it */
        if (lk__factor_in(f->in[i], factor)) return false;
    at->inside = only_factor(f, dim) < 0;
    at->extent = at->inside ? f->factor[factor].extent : g->values[n->in[at->input]].shape.dims[at->dim];
    /* Channels of several groups are not cut, nor is what is coupled, but for heads that unpacking frees. */
    return at->inside ? has_elements(dim, factor) : !f->factor[factor].coupled;
}

/* Classes that a loss can be divided by, or the last dimension of the first input that has such a factor. */
static bool find_sum(const lk_graph *g, const lk__graph_node *n, summed *found)
{
    const lk__graph_coupled *rule = &lk__op_find(n->op)->coupled;
    lk__graph_node           plain = *n;
    lk__factors              f;
    char                     text[128];
    if (rule->divide) {
        const lk__graph_shape *s = &g->values[n->in[rule->input]].shape;
        int                    dim = rule->dim < 0 ? s->rank + rule->dim : rule->dim;
        *found = (summed){rule->input, dim, s->dims[dim], false};
        return true;
    }
    if (lk__plan_is_fused(n)) plain.attrs.activation = LK__IDENTITY; /* applied to the sum, and divided from it */
    if (lk__node_factors(g, &plain, &f, text)) return false;
    for (int i = 0; i < n->inputs; i++)
        for (int d = n->in[i] < 0 ? -1 : g->values[n->in[i]].shape.rank - 1; d >= 0; d--)
            for (int k = 0; k < f.count; k++) {
                *found = (summed){.input = i, .dim = d};
                if (read_sum(g, n, &f, k, found)) return true;
            }
    return false;
}

/* 8, or fewer, so that each has `minimum` elements and at least one unit of each thing side by side. */
static int64_t count_parts(const lk__op_summation *sum, int64_t whole, int64_t minimum)
{
    int64_t parts = LK__SUM_PARTS, units = whole / (sum->unit > 1 ? sum->unit : 1);
    for (int s = 0; s < LK__SUM_SEGMENTS && sum->segment[s]; s++)
        if (sum->segment[s] / (sum->unit > 1 ? sum->unit : 1) < units) units = sum->segment[s] / sum->unit;
    while (parts > 1 && (whole / parts < minimum || units < parts)) parts /= 2;
    return parts;
}

static void set_parts(const lk_plan *p, compositions *c, lk__graph_node *n)
{
    summed           at;
    lk__op_summation sum = {0};
    if (n->dead || n->attrs.sum.parts > 1 || !(lk__op_find(n->op)->attributes & LK__HAS(sum)) ||
        !find_sum(c->g, n, &at))
        return;
    const composition *of = &c->of[n->in[at.input]][at.dim];
    /* What reads memory once is not slower with smaller parts; heads of a group are parts already. */
    bool    product = (lk__op_find(n->op)->arithmetic(c->g, n) > 0 && !at.inside) || lk__op_find(n->op)->coupled.divide;
    int64_t minimum = p->parallel.sum_part_minimum ? p->parallel.sum_part_minimum : PART_MINIMUM;
    if (!at.inside) {
        sum.unit = of->unit;
        memcpy(sum.segment, of->segment, sizeof sum.segment);
    }
    sum.parts = at.inside ? at.extent : count_parts(&sum, at.extent, product ? minimum : 1);
    if (sum.parts > 1) n->attrs.sum = sum;
}

static lk_status set_all_parts(const lk_plan *p, lk_graph *g)
{
    compositions c = {.g = g};
    size_t       bytes = g->values_count * sizeof *c.of;
    lk_status    status = find_compositions(&c);
    for (size_t i = 0; i < g->nodes_count && status >= 0; i++) set_parts(p, &c, &g->nodes[i]);
    lk__free(g->context, LK_MEMORY_OTHER, c.of, bytes);
    return status;
}

/* ---- losses in blocks of rows ---- */

/* A product and its loss in one node, whose blocks of rows must not depend on the ranks (graph/op/loss_parts.c). */
static bool has_blocks(const lk__graph_node *n)
{
    const lk__graph_op *op = lk__op_find(n->op);
    return !n->dead && op->coupled.divide && op->attributes & LK__HAS(rows);
}

/* Samples of the largest leaf. */
static int64_t leaf_samples(const lk_plan *p)
{
    lk__split_job job = lk__plan_split(p, lk__plan_batch_part(p));
    int64_t       capacity = lk_plan_capacity(p);
    return p->batch_leaves ? lk__split_leaf_capacity(&job, capacity) : capacity; /* otherwise it was reduced */
}

static int divide_loss(lk_graph *g, const lk__graph_node *n, void *user)
{
    const lk_plan  *p = user;
    lk__graph_node  loss = *n;
    lk__graph_shape rows = n->in[0] < 0 ? (lk__graph_shape){0} : g->values[n->in[0]].shape;
    summed          at;
    if (!has_blocks(n) || !find_sum(g, n, &at)) return lk__plan_append(g, n);
    int ranks = lk__mesh_extent(&p->mesh, p->placed_axes);
    if (!p->placed_axes || !lk__sum_parts_nest(&n->attrs.sum, at.extent, ranks)) ranks = 1;
    loss.attrs.rows = rows.count_axis == 0 ? leaf_samples(p) * rows.count_unit : rows.dims[0];
    return lk__op_find(n->op)->coupled.divide(g, &loss, ranks);
}

bool lk__sum_parts_needs_leaves(const lk_plan *p)
{
    for (size_t i = 0; i < p->graph->nodes_count && p->parallel.reproducible_layout; i++) {
        const lk__graph_node *n = &p->graph->nodes[i];
        summed                at;
        if (has_blocks(n) && find_sum(p->graph, n, &at) &&
            p->graph->values[n->in[0]].shape.dims[0] * at.extent > LK__LOSS_BLOCK)
            return true;
    }
    return false;
}

lk_status lk__pass_sum_parts(lk_plan *p, lk__plan_list *list, size_t *forward)
{
    lk_graph *g = list->graph;
    if (!p->parallel.reproducible_layout) return LK_OK;
    int       first = *forward < g->nodes_count ? g->nodes[*forward].out[0] : -1; /* the first value of backward */
    lk_status status = set_all_parts(p, g);
    if (status >= 0) status = lk__plan_rebuild(g, divide_loss, p);
    if (status < 0) return status;
    lk__plan_set_producers(g);
    *forward = first >= 0 ? (size_t)g->values[first].node : g->nodes_count;
    return set_all_parts(p, g);
}

/* ---- sums over ranks ---- */

/* Whether output k is a sum over what is cut, of which all summands but one are zero, such as rows that are looked
 * up. */
static bool is_selection(const lk_graph *g, const lk__graph_node *n, const lk__placement_node *place, int k)
{
    const int   cut[] = {place->factor, place->copies ? place->second : LK__PLACE_NO_FACTOR};
    lk__factors f;
    char        text[128];
    bool        selected = false;
    if (lk__node_factors(g, n, &f, text)) return false;
    for (int i = 0; i < 2; i++) {
        if (cut[i] < 0 || !lk__factor_is_summed(&f, n->inputs, k, cut[i])) continue;
        if (!f.factor[cut[i]].selected) return false;
        selected = true;
    }
    return selected;
}

/* Whether any order gives the same bits; the numbers of a loss are read by nobody else. */
static bool is_exact(const lk__plan_list *list, const lk__graph_node *n, const lk__placement_node *place, int k)
{
    return lk__plan_is_number(list, n->out[k]) || is_selection(list->graph, n, place, k);
}

static bool keeps(const lk_graph *g, const lk__graph_node *n, const lk__placement_node *place, int k, int extent)
{
    summed at;
    int    ranks = place->out[k].copies ? place->out[k].copies : extent;
    if (n->attrs.sum.parts <= 1 || !find_sum(g, n, &at)) return false;
    if (place->out[k].copies) return at.inside && at.extent % ranks == 0 && lk__tree_nests((int)at.extent, ranks);
    const lk__placement_value *in = &place->in[at.input];
    int                        segments = 0;
    while (segments < LK__SUM_SEGMENTS && n->attrs.sum.segment[segments]) segments++;
    if (in->kind != LK__PLACE_SPLIT || in->dim != at.dim || at.inside) return false;
    if (!in->segment[0] && in->outer != (segments ? segments : 1)) return false;
    if (in->copies) ranks = extent / in->copies;
    return lk__sum_parts_nest(&n->attrs.sum, at.extent, ranks);
}

bool lk__sum_parts_keep(const lk_plan *p, const lk__plan_list *list, const lk__graph_node *n,
                        const lk__placement_node *place, int extent)
{
    for (int k = 0; k < n->outputs && p->parallel.reproducible_layout; k++)
        if (n->out[k] >= 0 && place->out[k].kind == LK__PLACE_PARTIAL && !is_exact(list, n, place, k) &&
            !keeps(list->graph, n, place, k, extent))
            return false;
    return true;
}

/* A product that computes whole what it could add over the ranks, had its sum more parts: those that are at least as
 * large as the plan says are too few. */
static bool lacks_parts(const lk_graph *g, const lk__graph_node *n, const lk__placements *places, size_t node)
{
    summed           at;
    lk__op_summation more = n->attrs.sum;
    bool             whole = false;
    if (lk__op_find(n->op)->arithmetic(g, n) <= 0 || !(lk__op_find(n->op)->attributes & LK__HAS(sum)) ||
        !find_sum(g, n, &at) || at.inside)
        return false;
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0 || (i != at.input && g->values[n->in[i]].kind != LK__VALUE_STATE)) continue;
        const lk__placement_value *held = &places->values[n->in[i]];
        whole |= held->kind == LK__PLACE_SPLIT && places->nodes[node].in[i].kind != LK__PLACE_SPLIT &&
                 (i != at.input || held->dim == at.dim);
    }
    more.parts = count_parts(&more, at.extent, 1);
    return whole && lk__sum_parts_nest(&more, at.extent, places->extent) &&
           !lk__sum_parts_nest(&n->attrs.sum, at.extent, places->extent);
}

static bool is_refused(const lk_plan *p, const lk__plan_list *list, const lk__placements *places, size_t node)
{
    const lk__graph_node *n = &list->graph->nodes[node];
    return !n->dead && (!lk__sum_parts_keep(p, list, n, &places->nodes[node], places->extent) ||
                        lacks_parts(list->graph, n, places, node));
}

/* The largest minimum that gives the sum enough parts; 0: none does. */
static int64_t fitting_minimum(const lk_graph *g, const lk__graph_node *n, int ranks)
{
    summed at;
    if (!find_sum(g, n, &at)) return 0;
    for (int64_t parts = 2; parts <= LK__SUM_PARTS; parts *= 2) {
        lk__op_summation more = n->attrs.sum;
        more.parts = parts;
        if (count_parts(&more, at.extent, at.extent / parts) == parts && lk__sum_parts_nest(&more, at.extent, ranks))
            return at.extent / parts;
    }
    return 0;
}

lk_status lk__sum_parts_check(const lk_plan *p, const lk__plan_list *list, const lk__placements *places)
{
    const lk_graph *g = list->graph;
    int64_t         minimum = INT64_MAX; /* that no sum of the model refuses */
    size_t          first = g->nodes_count;
    char            advice[64] = "";
    summed          at;
    for (size_t i = g->nodes_count; i-- > 0;) {
        if (!is_refused(p, list, places, i)) continue;
        int64_t fits = fitting_minimum(g, &g->nodes[i], places->extent);
        if (fits < minimum) minimum = fits;
        first = i;
    }
    if (first == g->nodes_count) return LK_OK;
    const lk__graph_node *n = &g->nodes[first];
    int64_t extent = find_sum(g, n, &at) ? at.extent : 1, parts = n->attrs.sum.parts > 1 ? n->attrs.sum.parts : 1;
    if (minimum > 0) snprintf(advice, sizeof advice, ", or --sum-part-minimum %lld or less", (long long)minimum);
    return lk__fail(p->context, LK_EUNSUPPORTED,
                    "%s:%d: %s adds %lld elements in %lld part%s, which cannot be divided equally among %d ranks along "
                    "%s: with --reproducible layout use a smaller extent%s",
                    n->site.file ? n->site.file : "?", n->site.line, lk__node_name(g, n), (long long)extent,
                    (long long)parts, parts == 1 ? "" : "s", places->extent, lk_axis_name((lk_axis)places->axis),
                    advice);
}
