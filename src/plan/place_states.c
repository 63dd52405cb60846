/* place_states.c - gives every array of a state, and every constant, its place in the memory of this rank: room for the
 * slices that it has. */
#include "plan/experts.h"

static size_t state_bytes(const lk_graph *g, const lk__graph_state *s)
{
    const lk__graph_shape *shape = &g->values[s->value].shape;
    return (size_t)lk__shape_elements(shape) * lk_dtype_size(shape->dtype);
}

/* Reserves `bytes` in a region, aligned to a cache line; returns their offset. */
static size_t reserve_bytes(lk_plan *p, lk_memory kind, size_t bytes)
{
    size_t offset = p->memory[kind];
    p->memory[kind] += lk__round_up(bytes, LK__ALIGN);
    return offset;
}

/* Of this rank's slice of an array, which has its type by now. */
static size_t reserve_slice(lk_plan *p, size_t state, lk__plan_array array)
{
    lk__plan_slices s = lk__plan_state_slices(p, state, array);
    size_t          bytes = (size_t)lk__slices_elements(&s, s.own) * lk_dtype_size(s.dtype);
    if (!s.apart) return reserve_bytes(p, s.memory, bytes);
    /* The parts that other ranks of the host have are in the same memory. */
    bytes = lk__round_up(bytes, LK__SLICE_ALIGN);
    size_t parts = (size_t)lk__mesh_extent(&p->mesh, s.apart);
    return reserve_bytes(p, s.memory, parts * bytes) +
           (size_t)lk__mesh_coordinate(&p->mesh, s.apart, lk__plan_rank(p)) * bytes;
}

static lk_status split_state(lk_plan *p, size_t state, const lk__plan_placement *placement)
{
    const lk__graph_shape *shape = &p->graph->values[p->graph->states[state].value].shape;
    for (int a = 0; a < LK__ARRAY_COUNT; a++) {
        lk__plan_splits *splits = &p->states[state].splits[a];
        placement->place(placement->user, p, state, (lk__plan_array)a, splits);
        for (int i = 0; i < splits->count; i++) {
            const lk__plan_cut *one = &splits->split[i];
            p->split_axes |= lk__axes_plain(one->axes);
            if (one->dim < 0 || one->dim >= shape->rank)
                return lk__fail(p->context, LK_EINVAL,
                                "\"%s\" has %d dimensions, so it cannot be split along dimension %d",
                                p->graph->states[state].name, shape->rank, one->dim);
            if (one->outer > 1 && shape->dims[one->dim] % one->outer)
                return lk__fail(
                    p->context, LK_EINVAL,
                    "dimension %d of \"%s\" has %lld elements, which cannot be divided into %lld repetitions", one->dim,
                    p->graph->states[state].name, (long long)shape->dims[one->dim], (long long)one->outer);
        }
    }
    return LK_OK;
}

static lk_status split_states(lk_plan *p, const lk__plan_placement *placement)
{
    if (placement && placement->mesh) p->mesh = *placement->mesh;
    lk_status split = lk__plan_split_experts(p);
    if (split < 0) return split;
    for (size_t i = 0; placement && i < p->graph->states_count; i++) {
        lk_status status = split_state(p, i, placement);
        if (status < 0) return status;
    }
    for (size_t i = 0; i < p->graph->states_count; i++)
        for (int k = 0; k < p->states[i].splits[LK__ARRAY_STORED].count; k++)
            p->split_axes |= lk__axes_plain(p->states[i].splits[LK__ARRAY_STORED].split[k].axes);
    return LK_OK;
}

/* Room for units: for all of one, or for this rank's slice. */
static void place_units(lk_plan *p)
{
    for (size_t i = 0; i < p->units_count; i++) {
        lk__plan_unit *u = &p->units[i];
        if (!lk__unit_is_held(p, u)) continue;
        int64_t each = lk__unit_each(p, u), stored = p->stage == 3 ? each : u->elements;
        u->stored = reserve_bytes(p, LK_MEMORY_PARAMETERS, (size_t)stored * lk_dtype_size(u->dtype));
        if (p->trains && lk__is_narrow(u->dtype))
            u->master = reserve_bytes(p, LK_MEMORY_MASTER, (size_t)each * lk_dtype_size(lk__wide_type(u->dtype)));
    }
}

/* Where an array of a state is: in the unit's room for it, which begins at `offset`, or in its own. */
static size_t place_array(lk_plan *p, size_t state, lk__plan_array array, size_t offset)
{
    const lk__plan_state *sp = &p->states[state];
    if (sp->unit < 0) return reserve_slice(p, state, array);
    lk_dtype type = p->units[sp->unit].dtype;
    int64_t  at = array == LK__ARRAY_STORED && p->stage < 3 ? sp->unit_at : lk__plan_piece_at(p, state);
    return offset + (size_t)at * lk_dtype_size(array == LK__ARRAY_STORED ? type : lk__wide_type(type));
}

static void place_states(lk_plan *p)
{
    for (size_t i = 0; i < p->graph->states_count; i++) {
        const lk__graph_state *s = &p->graph->states[i];
        lk__plan_state        *sp = &p->states[i];
        lk_dtype               type = p->graph->values[s->value].shape.dtype;
        const lk__plan_unit   *u = sp->unit >= 0 ? &p->units[sp->unit] : NULL;
        sp->bytes = state_bytes(p->graph, s);
        sp->wide_bytes = sp->bytes / lk_dtype_size(type) * lk_dtype_size(lk__wide_type(type));
        sp->place.region = s->buffer ? LK__IN_BUFFERS : LK__IN_PARAMETERS;
        sp->place.offset = place_array(p, i, LK__ARRAY_STORED, u ? u->stored : 0);
        /* Frozen parameters have one too: a checkpoint loses no bits, whatever the policy of the run that resumes
         * it. */
        sp->master = p->trains && !s->buffer && lk__is_narrow(type);
        if (sp->master) sp->master_offset = place_array(p, i, LK__ARRAY_MASTER, u ? u->master : 0);
    }
}

static void place_constants(lk_plan *p)
{
    for (size_t i = 0; i < p->graph->constants_count; i++)
        p->constants[i] = reserve_bytes(p, LK_MEMORY_BUFFERS, p->graph->constants[i].bytes);
}

static void place_unit_moments(lk_plan *p)
{
    int moments = 0;
    for (size_t i = 0; i < p->graph->states_count; i++)
        if (p->states[i].moments > moments) moments = p->states[i].moments;
    for (size_t i = 0; i < p->units_count; i++) {
        lk__plan_unit *u = &p->units[i];
        if (!lk__unit_is_held(p, u)) continue;
        size_t bytes = (size_t)lk__unit_each(p, u) * lk_dtype_size(lk__wide_type(u->dtype));
        for (int m = 0; m < moments && !u->frozen; m++) u->moments[m] = reserve_bytes(p, LK_MEMORY_OPTIMIZER, bytes);
    }
}

void lk__plan_place_moments(lk_plan *p)
{
    place_unit_moments(p);
    for (size_t i = 0; i < p->graph->states_count; i++) {
        lk__plan_state *sp = &p->states[i];
        if (p->train.gradients[i] < 0) continue;
        for (int m = 0; m < sp->moments; m++)
            sp->moment_offset[m] = place_array(p, i, (lk__plan_array)(LK__ARRAY_MOMENT_0 + m),
                                               sp->unit >= 0 ? p->units[sp->unit].moments[m] : 0);
    }
}

lk_status lk__plan_place_states(lk_plan *p, const lk__plan_placement *placement, const lk_optimizer_config *optimizer)
{
    lk_status status = split_states(p, placement);
    if (status >= 0) status = lk__plan_make_units(p, optimizer);
    if (status < 0) return status;
    p->splits = lk__plan_splits_state(p);
    place_units(p);
    place_states(p);
    place_constants(p);
    return LK_OK;
}
