/* placement_finder.c - trials of placements: derives the placements that follow from the placement of one node or
 * value, along the factors of the nodes that share values with it, and computes the cost of a set of placements. */
#include "plan/placement_finder.h"
#include "plan/sum_parts.h"

/* ---- who uses a value ---- */

static void count_uses(lk__placement_finder *f, bool fill)
{
    const lk_graph *g = f->g;
    for (size_t i = 0; i < f->nodes; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead) continue;
        for (int k = 0; k < n->inputs + n->outputs; k++) {
            bool output = k >= n->inputs;
            int  operand = output ? k - n->inputs : k, v = output ? n->out[operand] : n->in[operand];
            if (v < 0) continue;
            if (fill) f->uses[f->first_use[v]] = (lk__placement_use){(int)i, operand, output};
            f->first_use[fill ? v : v + 1]++;
        }
    }
}

static lk_status find_uses(lk__placement_finder *f)
{
    lk_context *c = f->g->context;
    if (!(f->first_use = lk__alloc(c, LK_MEMORY_OTHER, (f->values + 1) * sizeof *f->first_use))) return LK_ENOMEM;
    count_uses(f, false);
    for (size_t v = 0; v < f->values; v++) f->first_use[v + 1] += f->first_use[v];
    f->uses_count = f->first_use[f->values];
    if (f->uses_count && !(f->uses = lk__alloc(c, LK_MEMORY_OTHER, f->uses_count * sizeof *f->uses))) return LK_ENOMEM;
    count_uses(f, true);
    for (size_t v = f->values; v > 0; v--)
        f->first_use[v] = f->first_use[v - 1]; /* filling has moved them by one value */
    f->first_use[0] = 0;
    return LK_OK;
}

static void pin_value(lk__placement_finder *f, int v)
{
    if (v >= 0) f->pinned[v] = true;
}

/* What comes from the caller or is read by it is whole. */
static void pin_ends(lk__placement_finder *f)
{
    const lk__plan_list *list = f->list;
    for (size_t v = 0; v < f->values; v++)
        if (f->g->values[v].kind == LK__VALUE_INPUT || f->g->values[v].kind == LK__VALUE_CONSTANT) f->pinned[v] = true;
    for (int i = 0; i < list->numbers_count; i++) pin_value(f, list->numbers[i]);
    for (int i = 0; i < list->outputs_count; i++) pin_value(f, list->outputs[i]);
}

static void pin_lists(lk__placement_finder *f, size_t node)
{
    for (int i = 0; i < f->factors[node].count; i++)
        for (int k = 0; k < f->g->nodes[node].outputs; k++)
            if (f->factors[node].factor[i].lists >> k & 1) pin_value(f, f->g->nodes[node].out[k]);
}

static void find_twins(lk__placement_finder *f)
{
    const int *gradients = f->list->gradients;
    for (size_t v = 0; v < f->values; v++) f->twin[v] = -1;
    for (size_t i = 0; gradients && i < f->g->states_count; i++)
        if (gradients[i] >= 0) {
            f->twin[f->g->states[i].value] = gradients[i];
            f->twin[gradients[i]] = f->g->states[i].value;
        }
}

lk_status lk__placement_finder_init(lk__placement_finder *f)
{
    lk_context *c = f->g->context;
    f->nodes = f->g->nodes_count;
    f->values = f->g->values_count;
    f->factors = lk__alloc(c, LK_MEMORY_OTHER, f->nodes * sizeof *f->factors);
    f->choice = lk__alloc(c, LK_MEMORY_OTHER, f->nodes * sizeof *f->choice);
    f->held = lk__alloc(c, LK_MEMORY_OTHER, f->values * sizeof *f->held);
    f->pinned = lk__alloc(c, LK_MEMORY_OTHER, f->values * sizeof *f->pinned);
    f->twin = lk__alloc(c, LK_MEMORY_OTHER, f->values * sizeof *f->twin);
    f->paid = lk__alloc(c, LK_MEMORY_OTHER, 2 * f->values * sizeof *f->paid);
    if (!f->factors || !f->choice || !f->held || !f->pinned || !f->twin || !f->paid) return LK_ENOMEM;
    pin_ends(f);
    find_twins(f);
    for (size_t i = 0; i < f->nodes; i++) {
        f->choice[i] = (lk__placement_choice){.factor = -1};
        lk_status status =
            f->g->nodes[i].dead ? LK_OK : lk__placement_factors_find(f->g, &f->g->nodes[i], &f->factors[i]);
        if (status < 0) return status;
        pin_lists(f, i);
    }
    return find_uses(f);
}

void lk__placement_finder_free(lk__placement_finder *f)
{
    lk_context *c = f->g->context;
    for (size_t i = 0; f->factors && i < f->nodes; i++) lk__placement_factors_free(c, &f->factors[i]);
    lk__free(c, LK_MEMORY_OTHER, f->factors, f->nodes * sizeof *f->factors);
    lk__free(c, LK_MEMORY_OTHER, f->choice, f->nodes * sizeof *f->choice);
    lk__free(c, LK_MEMORY_OTHER, f->held, f->values * sizeof *f->held);
    lk__free(c, LK_MEMORY_OTHER, f->pinned, f->values * sizeof *f->pinned);
    lk__free(c, LK_MEMORY_OTHER, f->twin, f->values * sizeof *f->twin);
    lk__free(c, LK_MEMORY_OTHER, f->paid, 2 * f->values * sizeof *f->paid);
    lk__free(c, LK_MEMORY_OTHER, f->first_use, (f->values + 1) * sizeof *f->first_use);
    lk__free(c, LK_MEMORY_OTHER, f->uses, f->uses_count * sizeof *f->uses);
    lk__free(c, LK_MEMORY_OTHER, f->changes, f->changes_capacity * sizeof *f->changes);
}

/* ---- a trial ---- */

static lk_status add_change(lk__placement_finder *f, int node, int value)
{
    lk_status status =
        lk__grow(f->g->context, (void **)&f->changes, &f->changes_capacity, f->changes_count + 1, sizeof *f->changes);
    if (status >= 0) f->changes[f->changes_count++] = (lk__placement_change){node, value};
    return status;
}

/* Whether a product's weight is split. A table that is only added or looked up is not one. */
static bool cuts_weight(const lk__placement_finder *f, const lk__graph_node *n, const lk__placement_node *places)
{
    for (int i = 0; i < n->inputs && lk__op_find(n->op)->arithmetic(f->g, n) > 0; i++)
        if (n->in[i] >= 0 && f->g->values[n->in[i]].kind == LK__VALUE_STATE && !f->pinned[n->in[i]] &&
            f->g->values[n->in[i]].shape.rank >= 2 && places->in[i].kind == LK__PLACE_SPLIT)
            return true;
    return false;
}

/* Parameters and their gradients have no copies: a product that makes what has copies is cut further. */
static bool is_trained(const lk__placement_finder *f, int v)
{
    const lk__graph_value *value = &f->g->values[v];
    return f->twin[v] >= 0 || (value->kind == LK__VALUE_STATE && !f->g->states[value->state].buffer);
}

static lk_status hold_value(lk__placement_finder *f, int v, const lk__placement_value *place)
{
    if (v < 0 || place->kind != LK__PLACE_SPLIT || f->pinned[v] || f->held[v].kind == LK__PLACE_SPLIT) return LK_OK;
    if (f->keeps_states && (f->g->values[v].kind == LK__VALUE_STATE || f->twin[v] >= 0)) return LK_OK;
    if (place->copies && is_trained(f, v)) return LK_OK;
    f->held[v] = *place;
    return add_change(f, -1, v);
}

lk_status lk__placement_try_alone(lk__placement_finder *f, int node, lk__placement_choice choice)
{
    const lk__graph_node *n = &f->g->nodes[node];
    f->choice[node] = choice;
    f->arithmetic += lk__op_find(n->op)->arithmetic(f->g, n);
    f->chosen++;
    return add_change(f, node, -1);
}

static lk_status choose_node(lk__placement_finder *f, int node, lk__placement_choice choice)
{
    const lk__graph_node *n = &f->g->nodes[node];
    lk__placement_node    places;
    lk_status             status = lk__placement_try_alone(f, node, choice);
    (void)lk__placement_cut(f->g, n, &f->factors[node], choice, f->extent, &places);
    f->cuts_state |= !f->keeps_states && cuts_weight(f, n, &places);
    for (int i = 0; i < n->inputs && status >= 0; i++) status = hold_value(f, n->in[i], &places.in[i]);
    for (int k = 0; k < n->outputs && status >= 0; k++) {
        if (places.out[k].copies) places.out[k].kind = LK__PLACE_SPLIT; /* summed among the copies of a part alone */
        status = hold_value(f, n->out[k], &places.out[k]);
    }
    return status;
}

/* A node that writes states (running statistics, a cache) needs them as they are held: a part of a copy would be
 * lost. Sums over the ranks may need the bits of the whole. */
bool lk__placement_is_allowed(const lk__placement_finder *f, int node, lk__placement_choice choice)
{
    const lk__graph_node *n = &f->g->nodes[node];
    lk__placement_node    places;
    bool                  effect = lk__plan_has_effect(n), sums = f->plan->parallel.reproducible_layout;
    if (!effect && !sums) return true;
    (void)lk__placement_cut(f->g, n, &f->factors[node], choice, f->extent, &places);
    if (sums && !lk__sum_parts_keep(f->plan, f->list, n, &places, f->extent)) return false;
    if (!effect) return true;
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0 || f->g->values[n->in[i]].kind != LK__VALUE_STATE) continue;
        bool stays = f->keeps_states || f->pinned[n->in[i]] || f->held[n->in[i]].kind == LK__PLACE_SPLIT;
        if (stays && !lk__placement_equal(&f->held[n->in[i]], &places.in[i])) return false;
    }
    return true;
}

static lk_status propagate_value(lk__placement_finder *f, int v)
{
    lk__placement_value place = f->held[v];
    lk_status           status = f->twin[v] >= 0 ? hold_value(f, f->twin[v], &place) : LK_OK;
    for (size_t i = f->first_use[v]; i < f->first_use[v + 1] && status >= 0; i++) {
        const lk__placement_use *use = &f->uses[i];
        if (f->choice[use->node].factor >= 0) continue;
        lk__placement_operand operand = {use->output, use->operand, place};
        lk__placement_choice  choice =
            lk__placement_match(f->g, &f->g->nodes[use->node], &f->factors[use->node], &operand, f->extent);
        if (choice.factor >= 0 && lk__placement_is_allowed(f, use->node, choice))
            status = choose_node(f, use->node, choice);
        else
            f->blocked += !use->output && !place.copies; /* copies are few: that they are gathered is no reason */
    }
    return status;
}

static lk_status propagate(lk__placement_finder *f)
{
    lk_status status = LK_OK;
    for (; f->next < f->changes_count && status >= 0; f->next++)
        if (f->changes[f->next].node < 0) status = propagate_value(f, f->changes[f->next].value);
    return status;
}

lk_status lk__placement_try_node(lk__placement_finder *f, int node, lk__placement_choice choice)
{
    lk_status status = choose_node(f, node, choice);
    return status < 0 ? status : propagate(f);
}

lk_status lk__placement_try_value(lk__placement_finder *f, int v, const lk__placement_value *place)
{
    lk_status status = hold_value(f, v, place);
    return status < 0 ? status : propagate(f);
}

void lk__placement_hold_state(lk__placement_finder *f, size_t state, const lk__placement_value *place)
{
    int v = f->g->states[state].value, values[] = {v, f->twin[v]};
    for (int i = 0; i < 2; i++) {
        if (values[i] < 0) continue;
        f->held[values[i]] = *place;
        f->pinned[values[i]] = true;
    }
}

/* The nodes that read the states, or make their gradients, come first, so that the order of states does not matter. */
lk_status lk__placement_follow_states(lk__placement_finder *f)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < f->g->states_count && status >= 0; i++) {
        int v = f->g->states[i].value;
        if (!f->pinned[v] || !f->held[v].kind) continue;
        status = propagate_value(f, v);
        if (status >= 0 && f->twin[v] >= 0) status = propagate_value(f, f->twin[v]);
    }
    if (status >= 0) status = propagate(f);
    lk__placement_keep(f);
    return status;
}

void lk__placement_keep(lk__placement_finder *f)
{
    f->changes_count = f->next = 0;
    f->blocked = f->chosen = 0;
    f->arithmetic = 0;
    f->cuts_state = false;
}

void lk__placement_undo(lk__placement_finder *f)
{
    for (size_t i = 0; i < f->changes_count; i++) {
        const lk__placement_change *c = &f->changes[i];
        if (c->node >= 0)
            f->choice[c->node] = (lk__placement_choice){.factor = -1};
        else
            f->held[c->value] = (lk__placement_value){0};
    }
    lk__placement_keep(f);
}

/* ---- what it costs ---- */

/* Inputs that are added to a sum follow how the sum is held. */
static void place_added(const lk__placement_finder *f, int node, unsigned added, lk__placement_node *places)
{
    const lk__graph_node *n = &f->g->nodes[node];
    lk__placement_node    held = {0};
    lk__placement_choice  choice = {.factor = -1};
    if (f->held[n->out[0]].kind == LK__PLACE_SPLIT)
        choice = lk__placement_match(f->g, n, &f->factors[node], &(lk__placement_operand){true, 0, f->held[n->out[0]]},
                                     f->extent);
    if (choice.factor >= 0) (void)lk__placement_cut(f->g, n, &f->factors[node], choice, f->extent, &held);
    for (int i = 0; i < n->inputs; i++)
        if (added >> i & 1) {
            places->in[i] = held.in[i];
            if (held.in[i].kind == LK__PLACE_SPLIT) places->in[i].copies = f->held[n->out[0]].copies;
        }
}

void lk__placement_of_node(const lk__placement_finder *f, int node, lk__placement_node *places)
{
    lk__placement_choice choice = f->choice[node];
    *places = (lk__placement_node){.factor = LK__PLACE_NO_FACTOR};
    if (f->g->nodes[node].dead || choice.factor < 0) return;
    const lk__placement_factor *factor = &f->factors[node].factor[choice.factor];
    (void)lk__placement_cut(f->g, &f->g->nodes[node], &f->factors[node], choice, f->extent, places);
    if (factor->added && places->out[0].kind == LK__PLACE_PARTIAL) place_added(f, node, factor->added, places);
}

static double convert(const lk__placement_finder *f, int v, const lk__placement_value *from,
                      const lk__placement_value *to)
{
    const lk__graph_shape *s = &f->g->values[v].shape;
    lk_dtype               type = from->kind == LK__PLACE_PARTIAL ? lk__wide_type(s->dtype) : s->dtype;
    double                 bytes = (double)lk__shape_elements(s) * (double)lk_dtype_size(type);
    int                    copies = from->copies ? from->copies : to->copies;
    if (lk__placement_equal(from, to) || from->kind == LK__PLACE_REPLICATED) return 0;
    bool among = copies && from->copies != to->copies && lk__placement_alike(from, to); /* the copies of each part */
    if (among && from->kind == LK__PLACE_SPLIT && from->copies) return 0;
    if (among || (from->kind == LK__PLACE_PARTIAL && copies)) bytes *= (double)copies / f->extent;
    return from->kind == LK__PLACE_PARTIAL && (to->kind == LK__PLACE_REPLICATED || to->copies) ? 2 * bytes : bytes;
}

/* A value that several nodes of a section need in the same form is converted once. */
static double convert_input(lk__placement_finder *f, size_t node, int v, const lk__placement_value *need)
{
    lk__placement_value *paid = &f->paid[2 * (size_t)v + (node >= f->forward)];
    if (lk__placement_equal(paid, need)) return 0;
    *paid = *need;
    return convert(f, v, &f->held[v], need);
}

double lk__placement_bytes(lk__placement_finder *f)
{
    double bytes = 0;
    for (size_t v = 0; v < f->values; v++) f->paid[2 * v] = f->paid[2 * v + 1] = f->held[v];
    for (size_t i = 0; i < f->nodes; i++) {
        const lk__graph_node *n = &f->g->nodes[i];
        lk__placement_node    places;
        if (n->dead) continue;
        lk__placement_of_node(f, (int)i, &places);
        for (int k = 0; k < n->inputs; k++)
            if (n->in[k] >= 0) bytes += convert_input(f, i, n->in[k], &places.in[k]);
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) bytes += convert(f, n->out[k], &places.out[k], &f->held[n->out[k]]);
    }
    return bytes;
}
