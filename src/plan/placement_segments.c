/* placement_segments.c - values that are side by side in one dimension, such as queries, keys and values: their slices
 * and concatenations (lk__graph_op.segments). Each segment is cut by itself, so that a rank has a part of each. */
#include "plan/placement_factor.h"

#include <string.h>

enum { SEGMENTS = LK__CUT_SEGMENTS };

typedef struct segments {
    int     count;            /* 0: none, or too many */
    int64_t extent[SEGMENTS]; /* of the first ones: more than that are equal */
} segments;

static lk__graph_segments kind_of(const lk__graph_node *n) { return lk__op_find(n->op)->segments; }

static bool is_sliced(const lk__graph_node *n) { return kind_of(n) == LK__SEGMENTS_SLICED; }

/* Whether it reads or makes one of them, by its attributes; otherwise all. */
static bool has_one(const lk__graph_node *n) { return is_sliced(n) || kind_of(n) == LK__SEGMENTS_FILLED; }

static int64_t whole_extent(const lk_graph *g, const lk__graph_node *n)
{
    return g->values[is_sliced(n) ? n->in[0] : n->out[0]].shape.dims[n->attrs.axis];
}

/* ---- slices ---- */

/* The next place behind `at` where one of the slices of a value along an axis begins or ends. */
static int64_t next_bound(const lk_graph *g, int value, int axis, int64_t at)
{
    int64_t next = g->values[value].shape.dims[axis];
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead || !is_sliced(n) || n->in[0] != value || n->attrs.axis != axis) continue;
        int64_t bounds[] = {n->attrs.start, n->attrs.start + n->attrs.length};
        for (int k = 0; k < 2; k++)
            if (bounds[k] > at && bounds[k] < next) next = bounds[k];
    }
    return next;
}

static segments find_bounds(const lk_graph *g, int value, int axis)
{
    segments s = {0};
    int64_t  whole = g->values[value].shape.dims[axis];
    for (int64_t at = 0, next; at < whole; at = next) {
        if (s.count == SEGMENTS) return (segments){0};
        next = next_bound(g, value, axis, at);
        s.extent[s.count++] = next - at;
    }
    return s;
}

static bool has_segment(const segments *s, int64_t start, int64_t length)
{
    int64_t at = 0;
    for (int i = 0; i < s->count; at += s->extent[i++])
        if (at == start && s->extent[i] == length) return true;
    return false;
}

/* Those of the value that a slice is of; of a gradient, whose other slices are values by themselves, those of a value
 * that has the same slice. */
static segments segments_of_slice(const lk_graph *g, const lk__graph_node *n)
{
    int64_t whole = whole_extent(g, n);
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *other = is_sliced(n) ? n : &g->nodes[i];
        bool                  same = !other->dead && is_sliced(other) && other->attrs.axis == n->attrs.axis &&
                    other->attrs.start == n->attrs.start && other->attrs.length == n->attrs.length &&
                    whole_extent(g, other) == whole;
        if (!same) continue;
        segments s = find_bounds(g, other->in[0], n->attrs.axis);
        if (has_segment(&s, n->attrs.start, n->attrs.length)) return s;
        if (other == n) break;
    }
    return (segments){0};
}

/* ---- concatenations ---- */

static segments segments_of_concat(const lk_graph *g, const lk__graph_node *n)
{
    segments s = {0};
    if (n->inputs > SEGMENTS) return s;
    for (int i = 0; i < n->inputs; i++) s.extent[s.count++] = g->values[n->in[i]].shape.dims[n->attrs.axis];
    return s;
}

/* ---- as a factor ---- */

static bool are_equal(const segments *s)
{
    for (int i = 1; i < s->count && i < SEGMENTS; i++)
        if (s->extent[i] != s->extent[0]) return false;
    return true;
}

static segments repeat_segment(int64_t whole, int64_t start, int64_t length)
{
    bool repeats = length > 0 && length < whole && whole % length == 0 && start % length == 0;
    return (segments){repeats ? (int)(whole / length) : 0, {length, length, length}};
}

/* Equal ones are repetitions, of which there may be many. */
static segments find_segments(const lk_graph *g, const lk__graph_node *n)
{
    segments s = has_one(n) ? segments_of_slice(g, n) : segments_of_concat(g, n);
    if (has_one(n) && (s.count < 2 || are_equal(&s)))
        return repeat_segment(whole_extent(g, n), n->attrs.start, n->attrs.length);
    return s;
}

bool lk__placement_has_segments(const lk_graph *g, const lk__graph_node *n)
{
    return kind_of(n) != LK__SEGMENTS_NONE && find_segments(g, n).count > 1;
}

void lk__placement_read_segments(const lk_graph *g, const lk__graph_node *n, lk__placement_factor *p)
{
    segments           s = find_segments(g, n);
    lk__placement_axis one = {.dim = n->attrs.axis, .segments = 1, .before = 1}, all = one;
    all.segments = s.count;
    if (!are_equal(&s)) memcpy(all.segment, s.extent, sizeof all.segment);
    *p = (lk__placement_factor){.factor = LK__PLACE_SLICE, .extent = has_one(n) ? n->attrs.length : s.extent[0]};
    for (int i = 0; i < n->inputs; i++) p->in[i] = is_sliced(n) ? all : one;
    p->out[0] = is_sliced(n) ? one : all;
}

/* Whether an operand has segments of unequal extents, with this sum. */
static bool has_sum(const lk__placement_axis *a, int64_t extent)
{
    int64_t sum = 0;
    for (int i = 0; i < SEGMENTS; i++) sum += a->segment[i];
    return a->dim >= 0 && a->segment[0] && sum == extent;
}

bool lk__placement_find_segments(const lk__placement_factors *factors, int64_t extent,
                                 int64_t segment[LK__CUT_SEGMENTS])
{
    for (int i = 0; i < factors->count * (LK__MAX_IN + LK__MAX_OUT); i++) {
        const lk__placement_factor *f = &factors->factor[i / (LK__MAX_IN + LK__MAX_OUT)];
        int                         operand = i % (LK__MAX_IN + LK__MAX_OUT);
        const lk__placement_axis   *a = operand < LK__MAX_IN ? &f->in[operand] : &f->out[operand - LK__MAX_IN];
        if (!has_sum(a, extent)) continue;
        memcpy(segment, a->segment, sizeof a->segment);
        return true;
    }
    return false;
}
