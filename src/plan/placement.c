/* placement.c - finds how values are placed along an axis of the mesh: from the factors of nodes, not from names.
 *
 * A trial cuts one factor of one product, and follows it along values: dimensions of the same factor (the feed-forward
 * width of a product, of the functions after it and of the next product; heads; channels) are cut together in forward
 * and backward. First come cuts that need only sums at products, in order of the bytes that they move relative to their
 * arithmetic; then the values between them are cut along the sequence; then the remaining products, where the savings
 * are worth the bytes. */
#include "plan/fuse.h"
#include "plan/readers.h"
#include "plan/tactics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    int                  node;
    lk__placement_choice choice;
    bool                 alone; /* the node's neighbours stay as they are */
    double               ratio; /* bytes that are moved in addition, by arithmetic */
} candidate;

static double arithmetic_of(const lk__placement_finder *f, size_t i)
{
    const lk__graph_node *n = &f->g->nodes[i];
    return n->dead ? 0 : lk__op_find(n->op)->arithmetic(f->g, n);
}

/* Of a factor that has the run-time count: within each sample. */
static int64_t repeat_of(const lk__placement_finder *f, size_t node, const lk__placement_factor *factor)
{
    const lk__graph_node *n = &f->g->nodes[node];
    for (int i = 0; i < n->inputs; i++) {
        const lk__placement_axis *axis = &factor->in[i];
        if (n->in[i] < 0 || axis->dim < 0) continue;
        const lk__graph_shape *s = &f->g->values[n->in[i]].shape;
        int64_t                samples = s->count_axis == axis->dim ? s->dims[axis->dim] / s->count_unit : 1;
        if (samples > axis->before && samples % axis->before == 0) return samples / axis->before;
    }
    return 1;
}

/* Whether the slower factor before this one can be cut too, so that less is replicated: of heads of queries, that of
 * keys and values. That is found from the products of queries; a product has a trial for each factor. */
static bool has_pair(const lk__placement_finder *f, size_t node, int index)
{
    for (int i = 0; i < f->g->nodes[node].inputs; i++)
        if (f->g->nodes[node].in[i] >= 0 && f->g->values[f->g->nodes[node].in[i]].kind == LK__VALUE_STATE) return false;
    for (int i = 0; i < f->factors[node].count; i++) {
        int64_t            extent = f->factors[node].factor[i].extent;
        lk__placement_node places;
        if (i == index || extent <= 1 || extent >= f->extent || f->extent % extent) continue;
        lk__placement_choice pair = {.factor = i, .repeat = 1, .copies = f->extent / (int)extent, .second = index};
        if (lk__placement_cut(f->g, &f->g->nodes[node], &f->factors[node], pair, f->extent, &places)) return true;
    }
    return false;
}

/* false: the factor cannot be cut. */
static bool choose(const lk__placement_finder *f, size_t node, int index, lk__placement_choice *choice)
{
    const lk__placement_factor *factor = &f->factors[node].factor[index];
    lk__placement_node          places;
    *choice = (lk__placement_choice){.factor = index, .repeat = repeat_of(f, node, factor)};
    return !has_pair(f, node, index) &&
           lk__placement_cut(f->g, &f->g->nodes[node], &f->factors[node], *choice, f->extent, &places) &&
           lk__placement_is_allowed(f, (int)node, *choice);
}

/* ---- products and what is between them ---- */

/* Factors that a trial from another product has followed need no trial of their own. */
static void mark_seen(const lk__placement_finder *f, uint32_t *seen)
{
    for (size_t i = 0; i < f->changes_count; i++) {
        int node = f->changes[i].node;
        if (node >= 0 && f->choice[node].repeat == 1) seen[node] |= 1u << f->choice[node].factor;
    }
}

static bool is_good(const lk__placement_finder *f) { return f->blocked == 0 && f->cuts_state && f->arithmetic > 0; }

static lk_status list_products(lk__placement_finder *f, uint32_t *seen, candidate *list, size_t *count)
{
    double before = lk__placement_bytes(f);
    *count = 0;
    for (size_t i = 0; i < f->nodes; i++) {
        if (f->choice[i].factor >= 0 || arithmetic_of(f, i) <= 0) continue;
        for (int k = 0; k < f->factors[i].count; k++) {
            lk__placement_choice choice;
            if (seen[i] >> k & 1 || !choose(f, i, k, &choice)) continue;
            lk_status status = lk__placement_try_node(f, (int)i, choice);
            if (status < 0) return status;
            mark_seen(f, seen);
            if (is_good(f))
                list[(*count)++] =
                    (candidate){(int)i, choice, false, (lk__placement_bytes(f) - before) / f->arithmetic};
            lk__placement_undo(f);
        }
    }
    return LK_OK;
}

static int compare_candidates(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->ratio != y->ratio) return x->ratio < y->ratio ? -1 : 1;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : x->choice.factor - y->choice.factor;
}

/* One round: what was not possible together with a better candidate may be in the next. *kept: how many were. */
static lk_status place_candidates(lk__placement_finder *f, uint32_t *seen, candidate *list, int *kept)
{
    size_t    count;
    lk_status status = list_products(f, seen, list, &count);
    *kept = 0;
    if (count) qsort(list, count, sizeof *list, compare_candidates);
    for (size_t i = 0; i < count && status >= 0; i++) {
        if (f->choice[list[i].node].factor >= 0) continue;
        status = lk__placement_try_node(f, list[i].node, list[i].choice);
        bool good = is_good(f);
        *kept += good;
        if (good)
            lk__placement_keep(f);
        else
            lk__placement_undo(f);
    }
    return status;
}

static lk_status place_products(lk__placement_finder *f)
{
    lk_context *c = f->g->context;
    size_t      most = 0;
    int         kept = 1;
    for (size_t i = 0; i < f->nodes; i++) most += arithmetic_of(f, i) > 0 ? (size_t)f->factors[i].count : 0;
    if (most == 0) return LK_OK;
    candidate *list = lk__alloc(c, LK_MEMORY_OTHER, most * sizeof *list);
    uint32_t  *seen = lk__alloc(c, LK_MEMORY_OTHER, f->nodes * sizeof *seen);
    lk_status  status = list && seen ? LK_OK : LK_ENOMEM;
    while (kept && status >= 0) {
        memset(seen, 0, f->nodes * sizeof *seen);
        status = place_candidates(f, seen, list, &kept);
    }
    lk__free(c, LK_MEMORY_OTHER, list, most * sizeof *list);
    lk__free(c, LK_MEMORY_OTHER, seen, f->nodes * sizeof *seen);
    return status;
}

/* ---- tables ---- */

/* Rows that are looked up: a rank has some of them, and what it does not find is zero. */
static bool looks_up(const lk__placement_finder *f, size_t node, const lk__placement_factor *factor)
{
    const lk__graph_node *n = &f->g->nodes[node];
    for (int i = 0; i < n->inputs && factor->partial; i++) {
        int v = n->in[i];
        if (v >= 0 && f->g->values[v].kind == LK__VALUE_STATE && f->g->values[v].shape.rank >= 2 && !f->pinned[v] &&
            f->held[v].kind == LK__PLACE_REPLICATED && factor->in[i].dim >= 0)
            return true;
    }
    return false;
}

static lk_status place_tables(lk__placement_finder *f)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < f->nodes && status >= 0; i++)
        for (int k = 0; k < f->factors[i].count && f->choice[i].factor < 0 && status >= 0; k++) {
            lk__placement_choice choice;
            if (!looks_up(f, i, &f->factors[i].factor[k]) || !choose(f, i, k, &choice)) continue;
            status = lk__placement_try_node(f, (int)i, choice);
            if (f->blocked == 0)
                lk__placement_keep(f);
            else
                lk__placement_undo(f);
        }
    return status;
}

/* ---- between products: along the sequence ---- */

/* A sum over the axis that every rank would have whole. */
static bool is_whole_sum(const lk__placement_finder *f, size_t v)
{
    const lk__graph_value *value = &f->g->values[v];
    if (value->kind != LK__VALUE_RESULT || f->pinned[v] || f->twin[v] >= 0 || f->held[v].kind) return false;
    lk__placement_node places;
    lk__placement_of_node(f, value->node, &places);
    for (int k = 0; k < f->g->nodes[value->node].outputs; k++)
        if (f->g->nodes[value->node].out[k] == (int)v) return places.out[k].kind == LK__PLACE_PARTIAL;
    return false;
}

/* A split of dimension d; within each sample where d has the run-time count. */
static bool split_of(const lk__placement_finder *f, size_t v, int d, lk__placement_value *place)
{
    const lk__graph_shape *s = &f->g->values[v].shape;
    *place = (lk__placement_value){
        .kind = LK__PLACE_SPLIT, .dim = d, .outer = s->count_axis == d ? s->dims[d] / s->count_unit : 1};
    return place->outer > 0 && s->dims[d] % (place->outer * f->extent) == 0;
}

/* Sums that are made in parts, and gathered where a product needs them, move at most so many times the bytes: backward
 * gathers once again, and gradients of what is not split become sums. */
static const double more_bytes = 2.5;

/* The dimension along which the fewest nodes need the whole value: along the sequence, not along the width of norms. */
static lk_status find_split(lk__placement_finder *f, size_t v, lk__placement_value *best)
{
    double    before = lk__placement_bytes(f), least = 0;
    int       blocked = 0;
    lk_status status = LK_OK;
    *best = (lk__placement_value){0};
    for (int d = 0; d < f->g->values[v].shape.rank && status >= 0; d++) {
        lk__placement_value place;
        if (!split_of(f, v, d, &place)) continue;
        status = lk__placement_try_value(f, (int)v, &place);
        double bytes = lk__placement_bytes(f);
        bool   better = !best->kind || f->blocked < blocked || (f->blocked == blocked && bytes < least);
        if (f->chosen > f->blocked && bytes <= before * more_bytes && better)
            *best = place, least = bytes, blocked = f->blocked;
        lk__placement_undo(f);
    }
    return status;
}

static lk_status place_sums(lk__placement_finder *f)
{
    lk_status status = LK_OK;
    f->keeps_states = true;
    for (size_t v = 0; v < f->values && status >= 0; v++) {
        lk__placement_value best;
        if (!is_whole_sum(f, v)) continue;
        status = find_split(f, v, &best);
        if (best.kind && status >= 0) status = lk__placement_try_value(f, (int)v, &best);
        lk__placement_keep(f);
    }
    f->keeps_states = false;
    return status;
}

/* ---- products that are left ---- */

/* Operations that must be saved for a byte that is moved. */
static const double worth = 1;

static lk_status try_alternative(lk__placement_finder *f, const candidate *a)
{
    if (!a->alone) return lk__placement_try_node(f, a->node, a->choice);
    return lk__placement_try_alone(f, a->node, a->choice);
}

static lk_status place_rest(lk__placement_finder *f)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < f->nodes && status >= 0; i++) {
        candidate best = {.node = -1};
        if (f->choice[i].factor >= 0 || arithmetic_of(f, i) <= 0) continue;
        double before = lk__placement_bytes(f);
        for (int k = 0; k < 2 * f->factors[i].count && status >= 0; k++) {
            candidate a = {.node = (int)i, .alone = k % 2 == 1};
            if (!choose(f, i, k / 2, &a.choice)) continue;
            status = try_alternative(f, &a);
            a.ratio = (lk__placement_bytes(f) - before) / (f->arithmetic * (1 - 1.0 / f->extent));
            bool good = (a.alone || f->cuts_state) && a.ratio * worth < 1;
            if (good && (best.node < 0 || a.ratio < best.ratio)) best = a;
            lk__placement_undo(f);
        }
        if (best.node >= 0 && status >= 0) status = try_alternative(f, &best);
        lk__placement_keep(f);
    }
    return status;
}

/* ---- states ---- */

static const lk__plan_cut *cut_of(const lk_plan *p, size_t state, unsigned axis)
{
    const lk__plan_splits *splits = &p->states[state].splits[LK__ARRAY_STORED];
    for (int i = 0; i < splits->count; i++)
        if (lk__axes_plain(splits->split[i].axes) == axis) return &splits->split[i];
    return NULL;
}

/* Those that were placed stay as they are. */
static void hold_states(lk__placement_finder *f, unsigned axis)
{
    for (size_t i = 0; i < f->g->states_count; i++) {
        const lk__plan_cut *cut = cut_of(f->plan, i, axis);
        lk__placement_value place = {.kind = LK__PLACE_REPLICATED};
        if (cut)
            place = (lk__placement_value){.kind = LK__PLACE_SPLIT,
                                          .dim = cut->dim,
                                          .outer = cut->outer > 1 ? cut->outer : 1,
                                          .copies = lk__axes_factor(cut->axes)};
        if (cut) memcpy(place.segment, cut->segment, sizeof place.segment);
        lk__placement_hold_state(f, i, &place);
    }
}

static size_t count_cut_states(const lk__placement_finder *f)
{
    size_t cut = 0;
    for (size_t i = 0; i < f->g->states_count; i++) cut += f->held[f->g->states[i].value].kind == LK__PLACE_SPLIT;
    return cut;
}

static void write_states(const lk__placement_finder *f, unsigned axis)
{
    for (size_t i = 0; i < f->g->states_count; i++) {
        const lk__placement_value *place = &f->held[f->g->states[i].value];
        if (place->kind != LK__PLACE_SPLIT) continue;
        for (int a = 0; a < LK__ARRAY_COUNT; a++) {
            lk__plan_splits *splits = &f->plan->states[i].splits[a];
            lk__plan_cut    *cut = &splits->split[splits->count++];
            *cut = (lk__plan_cut){.dim = place->dim, .axes = lk__placement_axes(place, axis), .outer = place->outer};
            memcpy(cut->segment, place->segment, sizeof cut->segment);
        }
    }
}

/* ---- a list ---- */

/* What nothing reads would keep values in forms that nobody needs; layout removes it later anyway. */
static lk_status remove_unread(lk__plan_list *list)
{
    lk__plan_readers readers;
    lk_status        status = lk__readers_find(list, true, &readers);
    for (size_t i = 0; i < list->graph->nodes_count && status >= 0; i++)
        if (!readers.needed[i]) list->graph->nodes[i].dead = true;
    lk__readers_free(list, &readers);
    return status;
}

typedef struct division {
    const lk__graph_node *nodes;
    const bool           *wanted; /* by node */
} division;

static bool wants_division(const lk_graph *g, const lk__graph_node *n, void *user)
{
    const division *d = user;
    (void)g;
    return d->wanted[n - d->nodes];
}

/* Divides the fused nodes whose sums are cut. *divided: how many. */
static lk_status divide_fused(lk__placement_finder *f, size_t *forward, size_t *divided)
{
    lk_graph *g = f->g;
    bool     *wanted = lk__alloc(g->context, LK_MEMORY_OTHER, f->nodes * sizeof *wanted);
    int       first = *forward < f->nodes ? g->nodes[*forward].out[0] : -1; /* the first value of backward */
    if (!wanted) return LK_ENOMEM;
    *divided = 0;
    for (size_t i = 0; i < f->nodes; i++) {
        wanted[i] = f->choice[i].factor >= 0 && f->factors[i].factor[f->choice[i].factor].fused;
        *divided += wanted[i];
    }
    lk_status status = *divided ? lk__plan_split_fused(g, wants_division, &(division){g->nodes, wanted}) : LK_OK;
    *forward = first >= 0 ? (size_t)g->values[first].node : g->nodes_count;
    lk__free(g->context, LK_MEMORY_OTHER, wanted, f->nodes * sizeof *wanted);
    return status;
}

/* Nodes that were divided along a coupled factor, which stays whole, are one again; *joined: there were some. */
static lk_status join_coupled(lk__placement_finder *f, bool *joined)
{
    bool *cut = lk__alloc(f->g->context, LK_MEMORY_OTHER, f->nodes * sizeof *cut);
    *joined = false;
    if (!cut) return LK_ENOMEM;
    for (size_t i = 0; i < f->nodes; i++)
        cut[i] = f->choice[i].factor >= 0 && f->factors[i].factor[f->choice[i].factor].lists;
    *joined = lk__placement_join_coupled(f->g, cut);
    lk__free(f->g->context, LK_MEMORY_OTHER, cut, f->nodes * sizeof *cut);
    return LK_OK;
}

static lk_status find_places(lk__placement_finder *f, const lk__placement_rules *rules)
{
    lk_status status = lk__placement_finder_init(f);
    if (status >= 0 && rules->placed) hold_states(f, rules->axis);
    if (status >= 0 && !rules->placed) status = lk__tactics_place(f, rules->tactics, rules->axis);
    if (status >= 0) status = lk__placement_recorded(f, rules->axis);
    if (status >= 0) status = lk__placement_follow_states(f);
    if (status >= 0 && !rules->placed) status = place_products(f);
    if (status >= 0 && !rules->placed) status = place_tables(f);
    if (status >= 0 && !rules->whole_sequences) status = place_sums(f);
    if (status >= 0) status = place_rest(f);
    return status;
}

static lk_status write_places(lk__placement_finder *f, lk__placements *places)
{
    lk_context *c = f->g->context;
    places->values_count = f->values;
    places->nodes_count = f->nodes;
    places->values = lk__alloc(c, LK_MEMORY_OTHER, f->values * sizeof *places->values);
    places->nodes = lk__alloc(c, LK_MEMORY_OTHER, f->nodes * sizeof *places->nodes);
    if (!places->values || !places->nodes) return LK_ENOMEM;
    memcpy(places->values, f->held, f->values * sizeof *places->values);
    for (size_t i = 0; i < f->nodes; i++) lk__placement_of_node(f, (int)i, &places->nodes[i]);
    return LK_OK;
}

void lk__placements_free(lk_context *c, lk__placements *places)
{
    lk__free(c, LK_MEMORY_OTHER, places->values, places->values_count * sizeof *places->values);
    lk__free(c, LK_MEMORY_OTHER, places->nodes, places->nodes_count * sizeof *places->nodes);
    *places = (lk__placements){0};
}

/* The extent nearest to the mesh's along which something can be split; 1: none up to twice that. */
static int nearest_extent(const lk_plan *p, lk__plan_list *list, int extent)
{
    for (int away = 1; away <= extent; away++)
        for (int sign = -1; sign <= 1; sign += 2) {
            int                  other = extent + sign * away;
            size_t               cut = 0;
            lk__placement_finder f = {.plan = (lk_plan *)p, .list = list, .g = list->graph, .extent = other};
            if (other < 2) continue;
            if (lk__placement_finder_init(&f) >= 0 && place_products(&f) >= 0) cut = count_cut_states(&f);
            lk__placement_finder_free(&f);
            if (cut) return other;
        }
    return 1;
}

static lk_status refuse_axis(const lk_plan *p, lk__plan_list *list, unsigned axis, int extent)
{
    const char *name = lk_axis_name((lk_axis)axis);
    int         nearest = nearest_extent(p, list, extent);
    char        advice[96] = "use another axis";
    if (nearest > 1) snprintf(advice, sizeof advice, "the nearest extent that works is %s=%d", name, nearest);
    return lk__fail(p->context, LK_EUNSUPPORTED,
                    "%s=%d splits nothing in this model: no width, number of heads or number of channels between its "
                    "matrix products is divisible by %d; %s",
                    name, extent, extent, advice);
}

/* One attempt; *again: the graph was changed by what it found. Writes where states are, or all placements. */
static lk_status find_once(lk__placement_finder *f, const lk__placement_rules *rules, size_t *forward,
                           lk__placements *places, bool *again)
{
    size_t    divided = 0;
    lk_status status = find_places(f, rules);
    if (status >= 0) status = join_coupled(f, again);
    if (status >= 0 && !*again) status = divide_fused(f, forward, &divided);
    if (divided) *again = true;
    if (status < 0 || *again) return status;
    if (rules->placed) return write_places(f, places);
    if (count_cut_states(f) == 0) return refuse_axis(f->plan, f->list, rules->axis, f->extent);
    write_states(f, rules->axis);
    return LK_OK;
}

static lk_status find_in(lk_plan *p, lk__plan_list *list, const lk__placement_rules *rules, size_t *forward,
                         lk__placements *places)
{
    bool      again = true;
    lk_status status = lk__placement_divide_packed(list->graph, places->extent, forward);
    if (status >= 0) status = lk__placement_divide_coupled(p, list->graph, rules, forward);
    while (again && status >= 0) {
        lk__placement_finder f = {
            .plan = p, .list = list, .g = list->graph, .extent = places->extent, .forward = *forward};
        again = false;
        status = find_once(&f, rules, forward, places, &again);
        lk__placement_finder_free(&f);
    }
    return status;
}

/* Of a copy of the list's graph. What the other values are is found again from the states alone: so a plan whose
 * tactics say where all states are is the same as the one that found them. */
static lk_status find_states(lk_plan *p, const lk__plan_list *list, const lk__placement_rules *rules, size_t forward)
{
    lk__plan_list  tried = *list;
    lk__placements none = {.axis = rules->axis, .extent = lk__mesh_extent(&p->mesh, rules->axis)};
    lk_status      status = lk__graph_copy(list->graph, &tried.graph);
    if (status < 0) return status;
    status = find_in(p, &tried, rules, &forward, &none);
    lk_graph_free(tried.graph);
    return status;
}

lk_status lk__placements_find(lk_plan *p, lk__plan_list *list, const lk__placement_rules *rules, size_t *forward,
                              lk__placements *places)
{
    lk__placement_rules placed = *rules;
    lk_status           status = remove_unread(list);
    *places = (lk__placements){.axis = rules->axis, .extent = lk__mesh_extent(&p->mesh, rules->axis)};
    placed.placed = true;
    if (status >= 0 && !rules->placed) status = find_states(p, list, rules, *forward);
    if (status >= 0) status = find_in(p, list, &placed, forward, places);
    if (status < 0) lk__placements_free(p->context, places);
    return status;
}
