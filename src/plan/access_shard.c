/* access_shard.c - the accesses of instructions on state that ranks have slices of: units are accessed state by state,
 * limited to this rank's part; the gaps between states are never read. */
#include "plan/access.h"

/* This rank's part of a value that is whole here, or all that is here of one that is cut. */
static void access_piece(lk__plan_accesses *a, lk__plan_access_kind kind, int v, size_t state, lk__plan_stage stage)
{
    lk__range piece = lk__plan_piece(a->plan, state);
    size_t    before = a->count, size = lk_dtype_size(a->list->graph->values[v].shape.dtype);
    bool      whole = a->list->graph->values[v].kind == LK__VALUE_STATE && a->plan->stage < 3;
    if (lk__range_count(piece) == 0) return;
    lk__access_value(a, kind, v, 0, LK__PART_ALL, 0)->stage = stage;
    if (a->count == before || !whole) return;
    a->all[before].end = a->all[before].begin + (size_t)piece.end * size;
    a->all[before].begin += (size_t)piece.first * size;
}

void lk__access_unit(lk__plan_accesses *a, lk__plan_access_kind kind, int unit, bool slice, lk__plan_stage stage)
{
    const lk_graph *g = a->list->graph;
    for (size_t i = 0; i < g->states_count; i++) {
        if (a->plan->states[i].unit != unit) continue;
        if (slice)
            access_piece(a, kind, g->states[i].value, i, stage);
        else
            lk__access_value(a, kind, g->states[i].value, 0, LK__PART_ALL, 0)->stage = stage;
    }
}

/* This rank's slice of a bucket, in the set that a run reduces to. */
static void access_slices(lk__plan_accesses *a, lk__plan_access_kind kind, int bucket, int set, int first, int count)
{
    const lk_plan *p = a->plan;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (!p->states[i].trained || p->units[p->states[i].unit].bucket != bucket) continue;
        if (lk__range_count(lk__plan_piece(p, i)) == 0) continue;
        lk__plan_content *content = lk__access_value(a, kind, p->states[i].gradient_slice, 0, 0, set);
        content->first = first;
        content->count = count;
        content->stage = LK__STAGE_REDUCED;
    }
}

void lk__access_widened(lk__plan_accesses *a, size_t state)
{
    if (lk__range_count(lk__plan_piece(a->plan, state)))
        lk__access_value(a, LK__WRITES, a->plan->states[state].gradient_slice, 0, LK__PART_ALL, 0);
}

/* Of stage 1, and with leaves, the first set is reduced, with all micro-batches or leaves in it, in place; else a run's
 * gradients are, which are in the arena. */
void lk__access_start_shard(lk__plan_accesses *a, const lk__schedule_run *run, int bucket)
{
    const lk_plan *p = a->plan;
    bool           once = !lk__plan_scatters(p);
    int            first = once ? 0 : run->part, count = once ? a->parts : 1;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (!p->states[i].trained || p->units[p->states[i].unit].bucket != bucket) continue;
        lk__plan_content *content = lk__access_value(a, once ? LK__READS_IN_PLACE : LK__READS, a->list->gradients[i], 0,
                                                     first, once ? 0 : run->set);
        content->count = count;
    }
    access_slices(a, LK__WRITES, bucket, once ? 0 : run->set, first, count);
}

bool lk__access_rounding(lk__plan_accesses *a, const lk__schedule_run *run, const lk__graph_node *n)
{
    const lk_plan  *p = a->plan;
    const lk_graph *g = a->list->graph;
    if (n->op != LK__OP_cast || !lk__plan_scatters(p)) return false;
    const lk__graph_value *x = &g->values[n->in[0]], *y = &g->values[n->out[0]];
    for (size_t i = 0; i < p->graph->states_count && x->kind == LK__VALUE_BUCKET; i++)
        if (p->states[i].trained && p->units[p->states[i].unit].bucket == x->state)
            lk__access_value(a, LK__READS, a->list->gradients[i], 0, run->part, run->set);
    if (x->kind == LK__VALUE_BUCKET) lk__access_value(a, LK__WRITES, n->out[0], 0, run->part, run->set);
    if (y->kind == LK__VALUE_BUCKET) lk__access_value(a, LK__READS, n->in[0], 0, run->part, run->set);
    if (y->kind == LK__VALUE_BUCKET) access_slices(a, LK__WRITES, y->state, run->set, run->part, 1);
    return x->kind == LK__VALUE_BUCKET || y->kind == LK__VALUE_BUCKET;
}

/* Of stages 2 and 3: the slice of a micro-batch to the sum of those before it. */
void lk__access_add_slices(lk__plan_accesses *a, const lk__schedule_run *run, int bucket)
{
    access_slices(a, LK__READS_IN_PLACE, bucket, 0, 0, run->part);
    access_slices(a, LK__READS, bucket, 1, run->part, 1);
    access_slices(a, LK__WRITES, bucket, 0, 0, run->part + 1);
}

/* Over the ranks that have the same slices. */
void lk__access_sum_slices(lk__plan_accesses *a, int bucket)
{
    access_slices(a, LK__READS_IN_PLACE, bucket, 0, 0, a->parts);
    access_slices(a, LK__WRITES, bucket, 0, 0, a->parts);
}

void lk__access_made_slices(lk__plan_accesses *a, int bucket) { access_slices(a, LK__WRITES, bucket, 0, 0, a->parts); }

/* ---- the norm, part by part ---- */

/* This rank's part of each gradient whose squares are added. */
void lk__access_fetch_parts(lk__plan_accesses *a)
{
    for (size_t i = 0; i < a->plan->graph->states_count; i++)
        if (a->plan->states[i].trained && lk__range_count(lk__plan_piece(a->plan, i)))
            lk__access_value(a, LK__READS, a->plan->states[i].gradient_slice, 0, LK__PART_ALL, 0);
    lk__access_number(a, LK__WRITES, LK__SPACE_PEERS, 0, LK__PART_ALL, 1);
}

void lk__access_square_parts(lk__plan_accesses *a, const lk__graph_node *n)
{
    size_t state = (size_t)a->list->graph->values[n->in[0]].state;
    lk__access_number(a, LK__READS, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    lk__access_number(a, LK__READS, LK__SPACE_PEERS, 0, LK__PART_ALL, 1);
    if (lk__range_count(lk__plan_piece(a->plan, state))) lk__access_value(a, LK__READS, n->in[0], 0, LK__PART_ALL, 0);
    lk__access_number(a, LK__WRITES, LK__SPACE_SQUARES, state, LK__PART_ALL, 1);
}

void lk__access_add_squares(lk__plan_accesses *a)
{
    for (size_t i = 0; i < a->list->order_count; i++) {
        const lk__graph_node *n = &a->list->graph->nodes[a->list->order[i]];
        if (n->op != LK__OP_square_sum) continue;
        lk__access_number(a, LK__READS, LK__SPACE_SQUARES, (size_t)a->list->graph->values[n->in[0]].state, LK__PART_ALL,
                          1);
        lk__access_value(a, LK__WRITES, n->out[0], 0, LK__PART_ALL, 0);
    }
}

/* A kernel on this rank's part of a state: of the optimizer, or the squares of its gradient. */
void lk__access_slice(lk__plan_accesses *a, const lk__graph_node *n)
{
    size_t state = (size_t)a->list->graph->values[n->in[0]].state;
    bool   writes_state = lk__op_find(n->op)->effect == LK__EFFECT_STATE;
    lk__access_number(a, LK__READS, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    if (lk__range_count(lk__plan_piece(a->plan, state))) lk__access_value(a, LK__READS, n->in[0], 0, LK__PART_ALL, 0);
    for (int i = 1; i < n->inputs; i++)
        if (n->in[i] >= 0) lk__access_value(a, LK__READS, n->in[i], 0, LK__PART_ALL, 0);
    for (int i = 0; i < n->outputs; i++) {
        if (n->out[i] < 0) continue;
        if (!writes_state) lk__access_value(a, LK__WRITES, n->out[i], 0, LK__PART_ALL, 0);
        if (writes_state) access_piece(a, LK__READS_IN_PLACE, n->out[i], state, LK__STAGE_MADE);
        if (writes_state) access_piece(a, LK__WRITES, n->out[i], state, LK__STAGE_UPDATED);
    }
}
