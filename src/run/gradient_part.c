/* gradient_part.c - gradients by name where the placement pass has cut the parameter: a rank has the gradient of its
 * part, and callers read and write the whole. */
#include "run/program.h"

#include <string.h>

bool lk__gradient_is_part(const lk_program *p, int state)
{
    return lk__plan_gradient_bytes(p->plan, (size_t)state) < p->plan->states[state].wide_bytes;
}

/* The axes along which they are, and the parts along these alone. */
static unsigned axes_of(const lk_program *p, int state)
{
    const lk__plan_splits *splits = &p->plan->states[state].splits[LK__ARRAY_STORED];
    unsigned               axes = 0;
    for (int i = 0; i < splits->count; i++)
        axes |= splits->split[i].axes & p->plan->expert_axes ? p->plan->expert_axes : p->plan->placed_axes;
    return axes;
}

static lk__plan_slices slices_of(const lk_program *p, int state)
{
    lk__plan_slices s = lk__plan_state_slices(p->plan, (size_t)state, LK__ARRAY_STORED);
    s.splits.flat = (lk__plan_flat){0};
    s.splits.held = 0; /* of those that have it */
    s.parts = lk__mesh_extent(&p->plan->mesh, axes_of(p, state));
    s.own = lk__slices_part(&s, lk__plan_rank(p->plan));
    return s;
}

/* Copies a part, row-major by itself, into the whole, or the reverse. */
static void copy_part(const lk__plan_slices *s, int part, size_t size, char *whole, char *own, bool out)
{
    int64_t elements = lk__slices_elements(s, part);
    for (int64_t at = 0; at < elements;) {
        lk__plan_run run = lk__slices_run(s, part, at);
        char        *there = whole + (size_t)run.first * size, *here = own + (size_t)at * size;
        memcpy(out ? here : there, out ? there : here, (size_t)run.count * size);
        at += run.count;
    }
}

lk_status lk__gradient_gather(lk_program *p, int state, const void *part, void *data)
{
    lk__plan_slices s = slices_of(p, state);
    size_t          size = lk_dtype_size(p->plan->graph->real), bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    size_t          room = (size_t)s.parts * bytes;
    unsigned        axes = axes_of(p, state);
    char           *parts = lk__alloc(p->context, LK_MEMORY_OTHER, room);
    if (!parts) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather(lk__run_group(p, axes), part, parts, bytes, LK_U8, NULL);
    for (int i = 0; i < s.parts && status >= 0; i++) {
        int member = lk__mesh_member(&p->plan->mesh, axes, lk__plan_rank(p->plan), i);
        copy_part(&s, lk__slices_part(&s, member), size, data, parts + (size_t)i * bytes, false);
    }
    lk__free(p->context, LK_MEMORY_OTHER, parts, room);
    return status;
}

void lk__gradient_cut(const lk_program *p, int state, const void *data, void *part)
{
    lk__plan_slices s = slices_of(p, state);
    copy_part(&s, s.own, lk_dtype_size(p->plan->graph->real), (char *)data, part, true);
}
