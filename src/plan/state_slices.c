/* state_slices.c - the slices of states: the elements of which each rank has a copy. test_slices.c compares them with
 * their definition. */
#include "plan/experts.h"

#include <stdio.h>
#include <string.h>

typedef struct box {
    lk__range range[LK__SLICES_RANK];
} box;

static box whole_box(const lk__plan_slices *s)
{
    box b = {0};
    for (int i = 0; i < s->rank; i++) b.range[i].end = s->dims[i];
    return b;
}

static int extent_of(const lk__plan_slices *s, int split)
{
    return lk__mesh_extent(s->mesh, s->splits.split[split].axes);
}

/* Slices with elements: those of ranks that have none are behind them. */
static int full_parts(const lk__plan_slices *s) { return s->parts - (s->splits.held != 0); }

/* Parts of a flat cut, of each box. */
static int flat_parts(const lk__plan_slices *s)
{
    return s->splits.flat.axes ? lk__mesh_extent(s->mesh, s->splits.flat.axes) : 1;
}

/* Reduces a box to part `part` of it along the split's dimension. */
static void reduce_box(box *b, int dim, int extent, int part)
{
    lk__range *range = &b->range[dim], reduced = lk__split_part(lk__range_count(*range), extent, part);
    *range = (lk__range){range->first + reduced.first, range->first + reduced.end};
}

/* The last split's part changes first from one slice to the next, as the last dimension of an array does. */
static box box_of_part(const lk__plan_slices *s, int part)
{
    box b = whole_box(s);
    int below = full_parts(s) / flat_parts(s);
    if (part == full_parts(s)) return (box){0};
    part /= flat_parts(s);
    for (int i = 0; i < s->splits.count; i++) {
        int extent = extent_of(s, i);
        below /= extent;
        reduce_box(&b, s->splits.split[i].dim, extent, part / below % extent);
    }
    return b;
}

/* Which of `parts` parts has element `at` of `total`. */
static int part_with(int64_t total, int parts, int64_t at)
{
    int part = (int)(at / (total / parts + 1)); /* not behind it: no part has more elements than that */
    while (lk__split(total, parts, part + 1) <= at) part++;
    return part;
}

static int64_t inner_elements(const lk__plan_slices *s, int dim)
{
    int64_t elements = 1;
    for (int i = dim + 1; i < s->rank; i++) elements *= s->dims[i];
    return elements;
}

/* The last dimension that the box does not have whole: what is inside of it has no gaps. -1: it is the whole array. */
static int last_cut(const lk__plan_slices *s, const box *b)
{
    int dim = s->rank - 1;
    while (dim >= 0 && lk__range_count(b->range[dim]) == s->dims[dim]) dim--;
    return dim;
}

/* ---- segments ----
 *
 * Boxes are of an array in which those of the first part come first, then those of the second, …: there each part is
 * one range. */

/* A range of a dimension that lies together, both in the array and in that of the boxes. */
typedef struct segment_run {
    int64_t first, moved, count;
} segment_run;

/* The run with element `at` of the array or, if it is `moved`, of that of the boxes. */
static segment_run find_segment(const lk__plan_slices *s, int split, int64_t at, bool moved)
{
    const lk__plan_cut *cut = &s->splits.split[split];
    int64_t             extent = extent_of(s, split), each = s->dims[cut->dim] / extent, before = 0;
    if (!cut->segment[0]) return (segment_run){0, 0, s->dims[cut->dim]};
    for (int i = 0; i < LK__CUT_SEGMENTS && cut->segment[i]; before += cut->segment[i++]) {
        int64_t     count = cut->segment[i] / extent;
        int64_t     part = moved ? at / each : (at - before) / count;
        segment_run run = {before + part * count, part * each + before / extent, count};
        int64_t     first = moved ? run.moved : run.first;
        if (at >= first && at < first + count && part < extent) return run;
    }
    return (segment_run){at, at, 1}; /* not reached: they are the whole dimension */
}

static bool has_segments(const lk__plan_slices *s, int split) { return s->splits.split[split].segment[0] != 0; }

/* ---- one slice ---- */

lk__plan_slice lk__slices_at(const lk__plan_slices *s, int part)
{
    box            b = box_of_part(s, part);
    lk__plan_slice slice = {0};
    for (int i = 0; i < s->rank; i++) {
        slice.first[i] = b.range[i].first;
        slice.count[i] = lk__range_count(b.range[i]);
    }
    return slice;
}

static int64_t box_elements(const lk__plan_slices *s, const box *b)
{
    int64_t elements = 1;
    for (int i = 0; i < s->rank; i++) elements *= lk__range_count(b->range[i]);
    return elements;
}

/* Of a box with so many elements, those that are in one flat part. */
static lk__range flat_range(const lk__plan_slices *s, int64_t elements, int flat)
{
    const lk__plan_flat *cut = &s->splits.flat;
    if (!cut->axes) return (lk__range){0, elements};
    lk__range range = {flat * cut->each - cut->at, (flat + 1) * cut->each - cut->at};
    if (range.first < 0) range.first = 0;
    if (range.end > elements) range.end = elements;
    return range.first < range.end ? range : (lk__range){0, 0};
}

int64_t lk__slices_elements(const lk__plan_slices *s, int part)
{
    box b = box_of_part(s, part);
    if (part == full_parts(s)) return 0; /* of a single number, too */
    return lk__range_count(flat_range(s, box_elements(s, &b), part % flat_parts(s)));
}

/* ---- owners ---- */

lk__range lk__slices_owned(const lk__plan_slices *s, int owner)
{
    int64_t   elements = lk__slices_elements(s, s->own), first = s->owned_first + owner * s->owned_each;
    lk__range owned = {first, first + s->owned_each};
    if (owned.first < 0) owned.first = 0;
    if (owned.end > elements) owned.end = elements;
    return owned.first < owned.end ? owned : (lk__range){0, 0};
}

int lk__slices_owner(const lk__plan_slices *s, int64_t element, lk__range *owned)
{
    int owner = (int)((element - s->owned_first) / s->owned_each);
    *owned = lk__slices_owned(s, owner);
    return owner;
}

/* The bucket that has a state's gradient; NULL: there are none yet. */
static const lk__plan_bucket *bucket_of(const lk_plan *p, const lk__plan_state *sp)
{
    for (size_t i = 0; i < p->buckets_count; i++)
        if (sp->gradient_offset < p->buckets[i].offset + p->buckets[i].bytes) return &p->buckets[i];
    return NULL;
}

enum { OWNED = LK__SLICE_ALIGN / sizeof(float) }; /* elements: no cache line has two owners, also of bf16 */

/* A range of a bucket for each owner, across the tensors in it, or this rank's parts of them; of an array that is split
 * otherwise, equal ones of each slice. What nobody updates is the first one's. */
static void set_owners(const lk_plan *p, const lk__plan_state *sp, lk__plan_slices *s)
{
    bool                   owned = p->shared && sp->trained;
    bool                   as_computed = s->parts == 1 || lk__plan_cut_axes(p);
    const lk__plan_bucket *b = owned && as_computed ? bucket_of(p, sp) : NULL;
    s->owner = owned ? lk__plan_sharer_apart(p, s->apart, lk__plan_rank(p)) : 0;
    s->owners = owned && s->parts > 1 ? lk__plan_sharers_apart(p, s->apart, lk__plan_rank(p)) : 1;
    s->owned_each = (lk__slices_elements(s, s->own) + s->owners - 1) / s->owners;
    if (s->owners > 1) s->owned_each = (s->owned_each + OWNED - 1) / OWNED * OWNED;
    if (s->owned_each == 0) s->owned_each = 1; /* of nothing: a divisor */
    if (!b) return;
    size_t size = lk_dtype_size(b->dtype);
    s->owners = lk__bucket_owners(p, b);
    s->owned_first = ((int64_t)b->offset - (int64_t)sp->gradient_offset) / (int64_t)size;
    s->owned_each = (int64_t)(lk__slice_bytes(p, b, b->bytes) / size);
}

/* The trained state whose gradient is the first from byte `offset` on; -1: none. */
static int next_trained(const lk_plan *p, size_t offset)
{
    int found = -1;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        const lk__plan_state *s = &p->states[i];
        if (!s->trained || s->wide_bytes == 0 || s->gradient_offset < offset) continue;
        if (found < 0 || s->gradient_offset < p->states[found].gradient_offset) found = (int)i;
    }
    return found;
}

size_t lk__plan_list_owned(const lk_plan *p, int owner, lk__plan_owned *owned)
{
    size_t count = 0;
    for (int state = next_trained(p, 0); state >= 0; state = next_trained(p, p->states[state].gradient_offset + 1)) {
        lk__plan_slices s = lk__plan_state_slices(p, (size_t)state, LK__ARRAY_STORED);
        lk__range       range = lk__slices_owned(&s, s.apart && owner == lk__plan_own(p) ? s.owner : owner);
        if (lk__range_count(range) == 0) continue;
        if (owned) owned[count] = (lk__plan_owned){state, range.first, lk__range_count(range)};
        count++;
    }
    return count;
}

/* ---- ranks ---- */

/* Whether a rank has a slice with elements. */
static bool is_holder(const lk__plan_slices *s, int rank)
{
    return !s->splits.held || (s->splits.held >> lk__mesh_coordinate(s->mesh, LK_AXIS_PIPELINE, rank) & 1);
}

int lk__slices_part(const lk__plan_slices *s, int rank)
{
    int part = 0;
    if (!is_holder(s, rank)) return full_parts(s);
    for (int i = 0; i < s->splits.count; i++)
        part = part * extent_of(s, i) + lk__mesh_coordinate(s->mesh, s->splits.split[i].axes, rank);
    if (s->splits.flat.axes) part = part * flat_parts(s) + lk__mesh_coordinate(s->mesh, s->splits.flat.axes, rank);
    return part;
}

int lk__slices_holder(const lk__plan_slices *s, int part, int near)
{
    int below = full_parts(s) / flat_parts(s), rank = s->first_counts ? 0 : near, flat = part % flat_parts(s),
        first = 0;
    if (part == full_parts(s)) return near;
    while (!is_holder(s, rank)) rank = lk__mesh_member(s->mesh, LK_AXIS_PIPELINE, rank, first++);
    part /= flat_parts(s);
    for (int i = 0; i < s->splits.count; i++) {
        int extent = extent_of(s, i);
        below /= extent;
        rank = lk__mesh_member(s->mesh, s->splits.split[i].axes, rank, part / below % extent);
    }
    return s->splits.flat.axes ? lk__mesh_member(s->mesh, s->splits.flat.axes, rank, flat) : rank;
}

/* ---- runs ---- */

/* Which box has an element of the whole array: then it, and the elements behind it that are next to each other. */
static lk__plan_run find_in_boxes(const lk__plan_slices *s, int64_t first, int64_t *elements)
{
    box     b = whole_box(s);
    int64_t at[LK__SLICES_RANK], rest = first, most = INT64_MAX;
    int     part = 0;
    for (int i = s->rank - 1; i >= 0; rest /= s->dims[i], i--) at[i] = rest % s->dims[i];
    for (int i = 0; i < s->splits.count; i++) {
        int dim = s->splits.split[i].dim, extent = extent_of(s, i);
        if (has_segments(s, i)) {
            segment_run run = find_segment(s, i, at[dim], false);
            int64_t     inner = inner_elements(s, dim);
            most = (run.first + run.count - at[dim]) * inner - first % inner;
            at[dim] += run.moved - run.first;
        }
        lk__range range = b.range[dim];
        int       with = part_with(lk__range_count(range), extent, at[dim] - range.first);
        reduce_box(&b, dim, extent, with);
        part = part * extent + with;
    }
    int cut = last_cut(s, &b);
    *elements = box_elements(s, &b);
    if (cut < 0) return (lk__plan_run){part, first, first, inner_elements(s, -1) - first};
    int64_t inner = inner_elements(s, cut), inside = first % inner, place = 0;
    for (int i = 0; i <= cut; i++) place = place * lk__range_count(b.range[i]) + at[i] - b.range[i].first;
    lk__plan_run run = {part, first, place * inner + inside, (b.range[cut].end - at[cut]) * inner - inside};
    if (run.count > most) run.count = most;
    return run;
}

lk__plan_run lk__slices_find(const lk__plan_slices *s, int64_t first)
{
    int64_t              elements;
    lk__plan_run         run = find_in_boxes(s, first, &elements);
    const lk__plan_flat *cut = &s->splits.flat;
    if (!cut->axes) return run;
    int       flat = (int)((cut->at + run.at) / cut->each);
    lk__range range = flat_range(s, elements, flat);
    if (run.count > range.end - run.at) run.count = range.end - run.at;
    run.part = run.part * flat_parts(s) + flat;
    run.at -= range.first;
    return run;
}

/* Of the box that a part is of; `at`: in the box. */
static lk__plan_run run_in_box(const lk__plan_slices *s, int part, int64_t at)
{
    box b = box_of_part(s, part);
    int cut = last_cut(s, &b);
    if (cut < 0) return (lk__plan_run){part, at, at, inner_elements(s, -1) - at};
    int64_t inner = inner_elements(s, cut), inside = at % inner, rest = at / inner, place[LK__SLICES_RANK], first = 0;
    int64_t most = INT64_MAX;
    for (int i = cut; i >= 0; rest /= lk__range_count(b.range[i]), i--)
        place[i] = b.range[i].first + rest % lk__range_count(b.range[i]);
    int64_t count = (b.range[cut].end - place[cut]) * inner - inside;
    for (int i = 0; i < s->splits.count; i++) {
        int dim = s->splits.split[i].dim;
        if (!has_segments(s, i)) continue;
        segment_run run = find_segment(s, i, place[dim], true);
        int64_t     below = inner_elements(s, dim);
        most = (run.moved + run.count - place[dim]) * below;
        place[dim] += run.first - run.moved;
    }
    for (int i = 0; i <= cut; i++) first = first * s->dims[i] + place[i];
    first = first * inner + inside;
    for (int i = 0; i < s->splits.count; i++)
        if (has_segments(s, i)) most -= first % inner_elements(s, s->splits.split[i].dim);
    return (lk__plan_run){part, first, at, count < most ? count : most};
}

lk__plan_run lk__slices_run(const lk__plan_slices *s, int part, int64_t at)
{
    if (!s->splits.flat.axes) return run_in_box(s, part, at);
    box          b = box_of_part(s, part);
    lk__range    range = flat_range(s, box_elements(s, &b), part % flat_parts(s));
    lk__plan_run run = run_in_box(s, part, range.first + at);
    if (run.count > range.end - run.at) run.count = range.end - run.at;
    run.at = at;
    return run;
}

/* ---- of a plan ---- */

bool lk__plan_has_array(const lk_plan *p, size_t state, lk__plan_array array)
{
    const lk__plan_state *sp = &p->states[state];
    if (array == LK__ARRAY_STORED) return true;
    return array == LK__ARRAY_MASTER ? sp->master : (int)(array - LK__ARRAY_MOMENT_0) < sp->moments;
}

/* Repetitions that are cut become a dimension before that which is cut. */
static void divide_repetitions(lk__plan_slices *s)
{
    for (int i = 0; i < s->splits.count; i++) {
        int     dim = s->splits.split[i].dim;
        int64_t outer = s->splits.split[i].outer;
        if (outer <= 1) continue;
        memmove(&s->dims[dim + 1], &s->dims[dim], (size_t)(s->rank - dim) * sizeof *s->dims);
        s->rank++;
        s->dims[dim] = outer;
        s->dims[dim + 1] /= outer;
        for (int k = 0; k < s->splits.count; k++) s->splits.split[k].dim += s->splits.split[k].dim >= dim;
    }
}

lk__plan_slices lk__plan_state_slices(const lk_plan *p, size_t state, lk__plan_array array)
{
    const lk__graph_state *gs = &p->graph->states[state];
    const lk__plan_state  *sp = &p->states[state];
    const lk__graph_shape *shape = &p->graph->values[gs->value].shape;
    lk__plan_slices        s = {
               .mesh = &p->mesh, .rank = shape->rank, .dtype = shape->dtype, .splits = sp->splits[array], .parts = 1};
    memcpy(s.dims, shape->dims, sizeof shape->dims);
    divide_repetitions(&s);
    if (array != LK__ARRAY_STORED) s.dtype = lk__wide_type(shape->dtype);
    s.memory = array == LK__ARRAY_MASTER   ? LK_MEMORY_MASTER
               : array != LK__ARRAY_STORED ? LK_MEMORY_OPTIMIZER
               : gs->buffer                ? LK_MEMORY_BUFFERS
                                           : LK_MEMORY_PARAMETERS;
    s.offset = array == LK__ARRAY_STORED   ? sp->place.offset
               : array == LK__ARRAY_MASTER ? sp->master_offset
                                           : sp->moment_offset[array - LK__ARRAY_MOMENT_0];
    for (int i = 0; i < s.splits.count; i++) s.parts *= extent_of(&s, i);
    s.parts = s.parts * flat_parts(&s) + (s.splits.held != 0);
    s.own = lk__slices_part(&s, lk__plan_rank(p));
    s.holder = lk_plan_holder(p, s.memory);
    if (p->shared && p->expert_axes && lk__plan_is_expert(p, state)) s.apart = p->expert_axes;
    s.first_counts = gs->buffer && p->own_buffers;
    set_owners(p, sp, &s);
    return s;
}

size_t lk__plan_gradient_bytes(const lk_plan *p, size_t state)
{
    const lk__plan_splits *splits = &p->states[state].splits[LK__ARRAY_STORED];
    size_t                 parts = 1;
    for (int i = 0; i < splits->count; i++) /* which are equal */
        if (splits->split[i].axes & lk__plan_cut_axes(p))
            parts *= (size_t)lk__mesh_extent(&p->mesh, splits->split[i].axes);
    return p->states[state].wide_bytes / parts;
}

bool lk__plan_splits_state(const lk_plan *p)
{
    for (size_t i = 0; i < p->graph->states_count; i++)
        for (int a = 0; a < LK__ARRAY_COUNT; a++) {
            if (p->states[i].splits[a].held || lk__mesh_extent(&p->mesh, p->states[i].splits[a].flat.axes) > 1)
                return true;
            for (int k = 0; k < p->states[i].splits[a].count; k++)
                if (lk__mesh_extent(&p->mesh, p->states[i].splits[a].split[k].axes) > 1) return true;
        }
    return false;
}

const char *lk__plan_splits_text(const lk_plan *p, size_t state, char *text, size_t bytes)
{
    static const char *const names[] = {"values", "master copy", "moment"};
    size_t                   used = 0;
    text[0] = '\0';
    if (p->states[state].splits[LK__ARRAY_STORED].held)
        used += (size_t)snprintf(text, bytes, ", of stages %llx",
                                 (unsigned long long)p->states[state].splits[LK__ARRAY_STORED].held);
    if (p->states[state].unit >= 0)
        used += (size_t)snprintf(text + used, bytes - used, ", slices from %lld on of unit %d",
                                 (long long)p->states[state].unit_at, p->states[state].unit);
    for (int a = 0; a < LK__ARRAY_COUNT; a++)
        for (int i = 0; i < p->states[state].splits[a].count && used < bytes; i++) {
            const lk__plan_cut *split = &p->states[state].splits[a].split[i];
            int                 moment = a - LK__ARRAY_MOMENT_0;
            char                number[16] = "";
            if (moment >= 0) snprintf(number, sizeof number, " %d", moment);
            used += (size_t)snprintf(text + used, bytes - used, ", %s%s: %d over %u", names[moment < 0 ? a : 2], number,
                                     split->dim, split->axes);
            if (split->outer > 1 && used < bytes)
                used += (size_t)snprintf(text + used, bytes - used, " in %lld", (long long)split->outer);
            for (int k = 0; k < LK__CUT_SEGMENTS && split->segment[k] && used < bytes; k++)
                used += (size_t)snprintf(text + used, bytes - used, "%s%lld", k ? " + " : " in ",
                                         (long long)split->segment[k]);
        }
    return text;
}

size_t lk__plan_exchange_bytes(const lk_plan *p)
{
    size_t ranks = (size_t)lk__plan_ranks(p);
    if (!p->splits) return 0;
    return ranks * (LK__EXCHANGE_RANK + 2 * lk__exchange_window((int)ranks)) + LK__EXCHANGE_CHUNK;
}
