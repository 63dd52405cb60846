/* gradient_part.c - gradients by name where the placement pass has cut the parameter: a rank has the gradient of its part,
 * and callers read and write the whole. */
#include "run/program.h"

#include <string.h>

bool lk__gradient_is_part(const lk_program *p, int state)
{
    return lk__plan_gradient_bytes(p->plan, (size_t)state) < p->plan->states[state].wide_bytes;
}

static char *part_memory(const lk_program *p, int state)
{
    return lk__gradient_set(p, 0) + p->plan->states[state].gradient_offset;
}

/* The parts along these axes alone. */
static lk__plan_slices slices_of(const lk_program *p, int state)
{
    lk__plan_slices s = lk__plan_state_slices(p->plan, (size_t)state, LK__ARRAY_STORED);
    s.splits.flat = (lk__plan_flat){0};
    s.parts = lk__mesh_extent(&p->plan->mesh, p->plan->placed_axes);
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

lk_status lk__gradient_gather(lk_program *p, int state, void *data)
{
    lk__plan_slices s = slices_of(p, state);
    size_t          size = lk_dtype_size(p->plan->graph->real), bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    size_t          room = (size_t)(s.parts + 1) * bytes;
    char           *parts = lk__alloc(p->context, LK_MEMORY_OTHER, room);
    if (!parts) return LK_ENOMEM;
    lk_status status = lk__device_read(p->device, p->stream, parts, part_memory(p, state), bytes);
    lk_comm  *group = lk__run_group(p, p->plan->placed_axes);
    if (status >= 0) status = lk_comm_all_gather(group, parts, parts + bytes, bytes, LK_U8, NULL);
    for (int i = 0; i < s.parts && status >= 0; i++)
        copy_part(&s, i, size, data, parts + (size_t)(i + 1) * bytes, false);
    lk__free(p->context, LK_MEMORY_OTHER, parts, room);
    return status;
}

lk_status lk__gradient_cut(lk_program *p, int state, const void *data)
{
    lk__plan_slices s = slices_of(p, state);
    size_t          size = lk_dtype_size(p->plan->graph->real), bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    char           *part = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!part) return LK_ENOMEM;
    copy_part(&s, s.own, size, (char *)data, part, true);
    lk_status status = lk__device_write(p->device, p->stream, part_memory(p, state), part, bytes);
    lk__free(p->context, LK_MEMORY_OTHER, part, bytes);
    return status;
}
