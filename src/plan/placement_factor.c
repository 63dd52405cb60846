/* placement_factor.c - which placements the operands of a node have when one of its factors is cut. */
#include "plan/placement_factor.h"

#include "graph/factor.h"
#include "plan/fuse.h"

#include <string.h>

/* ---- where operands have a factor ---- */

static int64_t product_extent(const lk__factors *f, const lk__factor_product *p, int count)
{
    int64_t extent = 1;
    for (int i = 0; i < count; i++) extent *= f->factor[p->factor[i]].extent;
    return extent;
}

static int position_in(const lk__factor_product *p, int factor)
{
    int at = -1;
    for (int i = 0; i < p->count; i++)
        if (p->factor[i] == factor) at = at < 0 ? i : p->count;
    return at < p->count ? at : -1;
}

/* Segments must have the factor as their slowest. Those of one extent are repetitions. */
static bool find_in_dim(const lk__factors *f, const lk__factor_dim *dim, int factor, lk__placement_axis *axis)
{
    int  at = position_in(&dim->segment[0], factor);
    bool equal = true;
    if (at < 0) return false;
    *axis = (lk__placement_axis){.segments = dim->segments, .before = product_extent(f, &dim->segment[0], at)};
    for (int i = 0; i < dim->segments; i++) {
        const lk__factor_product *p = &dim->segment[i];
        if (i > 0 && (at > 0 || position_in(p, factor) != 0)) return false;
        axis->segment[i] = product_extent(f, p, p->count);
        equal &= axis->segment[i] == axis->segment[0];
    }
    if (equal) memset(axis->segment, 0, sizeof axis->segment);
    return true;
}

/* false: the operand has the factor in a way that cannot be cut. */
static bool find_axis(const lk__factors *f, const lk__factor_dim *dims, const lk__graph_shape *shape, int factor,
                      lk__placement_axis *axis)
{
    *axis = (lk__placement_axis){.dim = -1};
    for (int d = 0; d < shape->rank; d++) {
        if (!lk__factor_in_dim(&dims[d], factor) || shape->dims[d] == 1) continue; /* 1: it is broadcast */
        if (axis->dim >= 0 || !find_in_dim(f, &dims[d], factor, axis)) return false;
        axis->dim = d;
    }
    return true;
}

/* ---- the factors of a node ---- */

/* The dimension of an output that lists the factor's parts; -1: none. */
static int listing_dim(const lk__factor_dim *dims, int factor)
{
    for (int d = 0; d < LK_MAX_RANK; d++)
        if (dims[d].listed == factor + 1) return d;
    return -1;
}

/* What is concatenated along a dimension that lists parts: no factor is cut there, and nothing is summed. */
static void read_listing(const lk__graph_node *n, const lk__factors *f, int factor, lk__placement_factor *p)
{
    for (int k = 0; k < n->outputs; k++) {
        int dim = n->out[k] < 0 ? -1 : listing_dim(f->out[k], factor);
        if (dim < 0) continue;
        p->factor = LK__PLACE_NO_FACTOR;
        p->coupled = false;
        p->lists |= 1u << k;
        p->partial &= ~(1u << k);
        p->out[k] = (lk__placement_axis){.dim = dim, .segments = 1, .before = 1};
    }
}

static void read_factor(const lk_graph *g, const lk__graph_node *n, const lk__factors *f, int factor,
                        lk__placement_factor *p)
{
    *p = (lk__placement_factor){
        .factor = factor, .extent = f->factor[factor].extent, .coupled = f->factor[factor].coupled, .added = f->added};
    for (int i = 0; i < n->inputs; i++) {
        p->in[i].dim = -1;
        if (n->in[i] >= 0 && !find_axis(f, f->in[i], &g->values[n->in[i]].shape, factor, &p->in[i])) p->coupled = true;
    }
    for (int k = 0; k < n->outputs; k++) {
        p->out[k].dim = -1;
        if (n->out[k] < 0) continue;
        if (!find_axis(f, f->out[k], &g->values[n->out[k]].shape, factor, &p->out[k])) p->coupled = true;
        if (lk__factor_is_summed(f, n->inputs, k, factor)) p->partial |= 1u << k;
    }
    read_listing(n, f, factor, p);
}

lk_status lk__placement_factors_find(const lk_graph *g, const lk__graph_node *n, lk__placement_factors *factors)
{
    lk__graph_node plain = *n;
    bool           function = lk__plan_is_fused(n) && n->attrs.activation != LK__IDENTITY;
    lk__factors    f;
    char           text[128];
    *factors = (lk__placement_factors){0};
    if (function) plain.attrs.activation = LK__IDENTITY; /* it can be divided, and only the sum comes before it then */
    if (lk__node_factors(g, &plain, &f, text)) f.count = 0;
    int more = lk__placement_has_segments(g, n);
    if (f.count + more == 0) return LK_OK;
    factors->factor = lk__alloc(g->context, LK_MEMORY_OTHER, (size_t)(f.count + more) * sizeof *factors->factor);
    if (!factors->factor) return LK_ENOMEM;
    factors->count = f.count + more;
    for (int i = 0; i < f.count; i++) {
        read_factor(g, n, &f, i, &factors->factor[i]);
        factors->factor[i].fused = function && factors->factor[i].partial;
    }
    if (more) lk__placement_read_segments(g, n, &factors->factor[f.count]);
    return LK_OK;
}

void lk__placement_factors_free(lk_context *c, lk__placement_factors *factors)
{
    lk__free(c, LK_MEMORY_OTHER, factors->factor, (size_t)factors->count * sizeof *factors->factor);
    *factors = (lk__placement_factors){0};
}

/* ---- placements ---- */

/* The dimension that has the run-time count may be cut inside of a sample only. */
static bool fits_count(const lk__graph_shape *s, const lk__placement_value *place)
{
    if (s->count_axis != place->dim) return true;
    return s->count_unit % (s->dims[place->dim] / place->outer) == 0;
}

/* How one factor is cut. */
typedef struct cut {
    const lk__placement_factor *factor;
    const lk__placement_choice *choice;
    int                         parts;
} cut;

/* Things side by side: those that the operand has, or those that the factor was said to consist of. */
static bool place_segments(const lk__graph_shape *s, const lk__placement_axis *axis, const cut *c,
                           lk__placement_value *place)
{
    bool           own = axis->segment[0] != 0;
    const int64_t *from = own ? axis->segment : c->choice->segment;
    int64_t        inner = own ? 1 : s->dims[axis->dim] / c->factor->extent;
    if (c->choice->repeat > 1 || (own && c->choice->segment[0]) || (!own && (axis->segments > 1 || axis->before > 1)))
        return false;
    *place = (lk__placement_value){.kind = LK__PLACE_SPLIT, .dim = axis->dim, .outer = 1};
    for (int i = 0; i < LK__CUT_SEGMENTS; i++) {
        if (from[i] % c->parts) return false;
        place->segment[i] = from[i] * inner;
    }
    return s->count_axis != axis->dim;
}

/* Of one operand, along one factor. */
static bool place_operand(const lk_graph *g, int value, const lk__placement_axis *axis, const cut *c,
                          lk__placement_value *place)
{
    int64_t repeat = c->choice->repeat;
    *place = (lk__placement_value){.kind = LK__PLACE_REPLICATED};
    if (value < 0 || axis->dim < 0) return true;
    const lk__graph_shape *s = &g->values[value].shape;
    if (axis->segment[0] || c->choice->segment[0]) return place_segments(s, axis, c, place);
    if (axis->segments > 1 && repeat > 1) return false;
    *place = (lk__placement_value){.kind = LK__PLACE_SPLIT,
                                   .dim = axis->dim,
                                   .outer = axis->segments > 1 ? axis->segments : axis->before * repeat};
    return s->dims[axis->dim] % (place->outer * c->parts) == 0 && fits_count(s, place);
}

static bool repeats(const cut *c) { return c->choice->repeat > 1 || c->choice->segment[0]; }

/* Kernels know one origin of a part, which says nothing of a part of each of several things side by side, other than
 * samples: these may not be random, nor what ids look up, which is a factor that the ids do not have. */
static bool allows_repetitions(const lk_graph *g, const lk__graph_node *n, const lk__placement_factor *f)
{
    bool random = lk__op_find(n->op)->attributes & LK__HAS(stream);
    for (int i = 0; i < n->inputs; i++) {
        const lk__graph_shape *s = n->in[i] >= 0 ? &g->values[n->in[i]].shape : NULL;
        if (s && s->dtype == LK_I32 && f->in[i].dim < 0) return false;
        if (s && random && f->in[i].dim >= 0 && f->in[i].dim != s->count_axis) return false;
    }
    return true;
}

static bool cut_factor(const lk_graph *g, const lk__graph_node *n, const cut *c, lk__placement_node *places)
{
    const lk__placement_factor *f = c->factor;
    *places = (lk__placement_node){.factor = f->factor, .second = LK__PLACE_NO_FACTOR};
    if (f->coupled || f->extent <= 0 || f->extent % (c->choice->repeat * c->parts)) return false;
    if (repeats(c) && !allows_repetitions(g, n, f)) return false;
    for (int i = 0; i < n->inputs; i++)
        if (!place_operand(g, n->in[i], &f->in[i], c, &places->in[i])) return false;
    for (int k = 0; k < n->outputs; k++) {
        if (!place_operand(g, n->out[k], &f->out[k], c, &places->out[k])) return false;
        if (f->partial >> k & 1) places->out[k].kind = LK__PLACE_PARTIAL;
    }
    return true;
}

/* Whether b is the next factor behind a, of which there is nothing left when it is cut: both are cut as one then. */
static bool is_next(const lk__placement_factor *a, const lk__placement_axis *in_a, const lk__placement_axis *in_b)
{
    return in_a->dim == in_b->dim && in_a->segments == 1 && in_b->segments == 1 &&
           in_b->before == in_a->before * a->extent;
}

/* An operand of a node whose factors a and b are cut, as *place says of a. */
static bool add_second(const lk__placement_factor *a, const lk__placement_axis *in_a, const lk__placement_axis *in_b,
                       int copies, lk__placement_value *place)
{
    if (in_b->dim >= 0) return in_a->dim >= 0 && is_next(a, in_a, in_b);
    if (in_a->dim >= 0) place->copies = copies;
    return true;
}

static bool cut_two(const lk__graph_node *n, const lk__placement_factor *a, const lk__placement_factor *b, int copies,
                    lk__placement_node *places)
{
    places->second = b->factor;
    if (b->coupled || b->extent <= 0 || b->extent % copies) return false;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && !add_second(a, &a->in[i], &b->in[i], copies, &places->in[i])) return false;
    for (int k = 0; k < n->outputs; k++) {
        if (n->out[k] < 0) continue;
        bool over_a = a->partial >> k & 1, over_b = b->partial >> k & 1;
        if (!add_second(a, &a->out[k], &b->out[k], copies, &places->out[k]) || (over_a && !over_b)) return false;
        if (over_b && !over_a && a->out[k].dim < 0) return false;
        if (over_b) places->out[k].kind = LK__PLACE_PARTIAL;
    }
    return true;
}

bool lk__placement_cut(const lk_graph *g, const lk__graph_node *n, const lk__placement_factors *factors,
                       lk__placement_choice choice, int extent, lk__placement_node *places)
{
    const lk__placement_factor *f = &factors->factor[choice.factor];
    cut                         c = {f, &choice, choice.copies ? extent / choice.copies : extent};
    if (!choice.copies) return cut_factor(g, n, &c, places);
    if (extent % choice.copies || !cut_factor(g, n, &c, places)) return false;
    places->copies = choice.copies;
    if (choice.second >= 0) {
        bool all = choice.repeat == 1 && f->extent == extent / choice.copies;
        return all && cut_two(n, f, &factors->factor[choice.second], choice.copies, places);
    }
    for (int i = 0; i < n->inputs; i++) places->in[i].copies = places->in[i].kind ? choice.copies : 0;
    for (int k = 0; k < n->outputs; k++) places->out[k].copies = places->out[k].kind ? choice.copies : 0;
    return !f->partial; /* of copies a sum would count each */
}

/* ---- matching ---- */

static const lk__placement_axis *axis_of(const lk__placement_factor *f, const lk__placement_operand *o)
{
    return o->output ? &f->out[o->index] : &f->in[o->index];
}

/* How the factor must be cut, so that the operand is cut as it is placed. */
static bool match_axis(const lk_graph *g, const lk__graph_node *n, const lk__placement_factor *f,
                       const lk__placement_operand *o, lk__placement_choice *choice)
{
    const lk__placement_axis *axis = axis_of(f, o);
    int64_t                   unit = axis->segments > 1 ? axis->segments : axis->before;
    if (axis->segment[0]) return memcmp(axis->segment, o->place.segment, sizeof axis->segment) == 0;
    choice->repeat = o->place.outer / unit;
    if (!o->place.segment[0]) return o->place.outer % unit == 0;
    int64_t inner = g->values[o->output ? n->out[o->index] : n->in[o->index]].shape.dims[axis->dim] / f->extent;
    for (int i = 0; i < LK__CUT_SEGMENTS; i++) {
        if (unit > 1 || inner < 1 || o->place.segment[i] % inner) return false;
        choice->segment[i] = o->place.segment[i] / inner;
    }
    return true;
}

/* One factor, into extent / copies parts. */
static lk__placement_choice match_one(const lk_graph *g, const lk__graph_node *n, const lk__placement_factors *factors,
                                      const lk__placement_operand *o, int extent, int copies)
{
    for (int i = 0; i < factors->count; i++) {
        lk__placement_choice choice = {.factor = i, .repeat = 1, .copies = copies, .second = -1};
        lk__placement_node   places;
        bool                 same = axis_of(&factors->factor[i], o)->dim == o->place.dim;
        if (same && match_axis(g, n, &factors->factor[i], o, &choice) &&
            lk__placement_cut(g, n, factors, choice, extent, &places))
            return choice;
    }
    return (lk__placement_choice){.factor = -1};
}

/* One that is cut into as many parts as it has, and the next one into the rest. */
static lk__placement_choice match_two(const lk_graph *g, const lk__graph_node *n, const lk__placement_factors *factors,
                                      const lk__placement_operand *o, int extent)
{
    for (int i = 0; i < factors->count; i++) {
        const lk__placement_factor *a = &factors->factor[i];
        const lk__placement_axis   *axis = axis_of(a, o);
        if (axis->dim != o->place.dim || axis->segments != 1 || axis->before != o->place.outer || o->place.segment[0])
            continue;
        if (a->extent <= 1 || a->extent >= extent || extent % a->extent) continue;
        int copies = extent / (int)a->extent;
        for (int k = 0; k < factors->count; k++) {
            lk__placement_choice choice = {.factor = i, .repeat = 1, .copies = copies, .second = k};
            lk__placement_node   places;
            if (k == i || !lk__placement_cut(g, n, factors, choice, extent, &places)) continue;
            const lk__placement_value *made = o->output ? &places.out[o->index] : &places.in[o->index];
            if (made->copies == o->place.copies) return choice;
        }
    }
    return (lk__placement_choice){.factor = -1};
}

/* Whether a part of the operand ends inside an element of the factor: 6 heads over 4 ranks. */
static bool ends_inside(const lk_graph *g, const lk__graph_node *n, const lk__placement_factor *f,
                        const lk__placement_operand *o, int extent)
{
    const lk__placement_axis *axis = axis_of(f, o);
    int                       v = o->output ? n->out[o->index] : n->in[o->index];
    return axis->dim == o->place.dim && !axis->segment[0] && f->extent % extent &&
           g->values[v].shape.dims[axis->dim] > f->extent * axis->before * axis->segments;
}

/* Such a factor is cut into as many parts as divide it, each of which several ranks have; among these the next factor
 * is cut, where it can be. */
static lk__placement_choice match_fewer(const lk_graph *g, const lk__graph_node *n,
                                        const lk__placement_factors *factors, const lk__placement_operand *o,
                                        int extent)
{
    lk__placement_choice found = {.factor = -1};
    bool                 inside = false;
    for (int i = 0; i < factors->count && !o->place.copies; i++) {
        const lk__placement_factor *a = &factors->factor[i];
        if (!ends_inside(g, n, a, o, extent)) continue;
        inside = true;
        for (int k = 0; k < factors->count && axis_of(a, o)->before == o->place.outer; k++) {
            lk__placement_choice two = {.factor = i, .repeat = 1, .second = k};
            lk__placement_node   places;
            two.copies = a->extent > 1 && extent % a->extent == 0 ? extent / (int)a->extent : 0;
            if (k != i && two.copies && lk__placement_cut(g, n, factors, two, extent, &places)) return two;
        }
    }
    for (int copies = 2; copies < extent && inside && found.factor < 0; copies++)
        if (extent % copies == 0) found = match_one(g, n, factors, o, extent, copies);
    return found;
}

lk__placement_choice lk__placement_match(const lk_graph *g, const lk__graph_node *n,
                                         const lk__placement_factors *factors, const lk__placement_operand *o,
                                         int extent)
{
    /* what is written stays, so that it is written as it is read */
    bool                 further = !o->place.copies || !lk__plan_has_effect(n);
    lk__placement_choice found = {.factor = -1};
    if (further) found = match_one(g, n, factors, o, extent, 0);
    if (found.factor < 0) found = match_two(g, n, factors, o, extent);
    if (found.factor < 0 && o->place.copies) found = match_one(g, n, factors, o, extent, o->place.copies);
    if (found.factor < 0) found = match_fewer(g, n, factors, o, extent);
    return found;
}
