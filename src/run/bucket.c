/* bucket.c - what happens to a bucket of gradients between backward and the update, besides its reduction: sums of
 * micro-batches and leaves, rounding to the type in which it is reduced, and copies for a group that does not reach the
 * device's memory. */
#include "plan/expert_leaves.h"
#include "run/collective.h"
#include "run/interpreter.h"
#include "run/timeline.h"

static const lk__plan_bucket *bucket_at(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    return &p->plan->buckets[lk__run_at(p, run, at)->bucket];
}

/* The end of a unit of the timeline, where its kernel was queued. */
static lk_status end_unit(lk_program *p, lk_status status, lk__plan_action action)
{
    lk__run_unit unit = {.name = lk__action_name(action), .work = LK__WORK_KERNEL};
    return status < 0 ? status : lk__timeline_after(p, p->stream, &unit);
}

/* Elements from `at` on in the second set, to those of the first. */
static lk_status add_sets(lk_program *p, lk__plan_action action, size_t at, size_t count, lk_dtype type)
{
    const void *in[] = {lk__gradient_set(p, 0) + at, lk__gradient_set(p, 1) + at};
    lk_status   status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->kernels.add(p->device, p->stream, (char *)in[0], in, 2, count, type);
    return end_unit(p, status, action);
}

lk_status lk__run_add_sets(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    (void)next;
    return add_sets(p, LK__DO_ADD_SETS, b->offset, b->bytes / lk_dtype_size(b->dtype), b->dtype);
}

/* The slice of a micro-batch to the sum of those before it. */
lk_status lk__run_add_slices(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    size_t                 elements = b->bytes / lk_dtype_size(b->dtype) / (size_t)lk__bucket_owners(p->plan, b);
    (void)next;
    return add_sets(p, LK__DO_ADD_SLICES, b->slice, elements, b->dtype);
}

lk_status lk__run_add_leaves(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    lk__leaf_sum           made = {run->part, run->each, run->set};
    (void)next;
    if (lk__bucket_has_sources(p->plan, b)) return lk__expert_tree_add(p, run, b);
    if (run->each == 0) return LK_OK;
    return lk__plan_leaves_together(p->plan) ? lk__leaf_tree_add_all(p, b->offset, b->bytes, b->dtype)
                                             : lk__leaf_tree_add(p, made, b->offset, b->bytes, b->dtype);
}

/* ---- the type of a reduction ---- */

lk_status lk__run_round(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    lk_status              status = lk__timeline_before(p, p->stream);
    (void)next;
    if (status >= 0)
        status = lk__device_cast(p->device, p->stream, p->memory.gradients + b->offset, b->dtype,
                                 p->memory.gradients + lk__bucket_place(p->plan, b), lk__bucket_type(p->plan, b),
                                 (int64_t)(b->bytes / lk_dtype_size(b->dtype)));
    return end_unit(p, status, LK__DO_ROUND);
}

/* Elements first … first + count - 1 of a bucket, back to where the update reads them. */
static lk_status widen_range(lk_program *p, const lk__plan_bucket *b, size_t first, size_t count)
{
    lk_dtype  sent = lk__bucket_type(p->plan, b);
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0)
        status = lk__device_cast(
            p->device, p->stream, p->memory.gradients + lk__bucket_place(p->plan, b) + first * lk_dtype_size(sent),
            sent, p->memory.gradients + b->offset + first * lk_dtype_size(b->dtype), b->dtype, (int64_t)count);
    return end_unit(p, status, LK__DO_WIDEN);
}

lk_status lk__run_widen(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    (void)next;
    return widen_range(p, b, 0, b->bytes / lk_dtype_size(b->dtype));
}

lk_status lk__run_widen_slice(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    size_t                 slice = b->bytes / (size_t)lk__bucket_owners(p->plan, b) / lk_dtype_size(b->dtype);
    (void)next;
    return widen_range(p, b, (size_t)lk__bucket_own(p->plan, b) * slice, slice);
}

/* ---- copies ---- */

lk_status lk__run_copy_out(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    (void)next;
    return lk__stage_out(p, p->memory.gradients + lk__bucket_place(p->plan, b),
                         lk__bucket_sent(p->plan, (size_t)(b - p->plan->buckets)));
}

lk_status lk__run_copy_out_sets(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    lk_status              status = LK_OK;
    (void)next;
    for (int i = 0; i < p->plan->sets && status >= 0; i++)
        status = lk__stage_out(p, lk__gradient_set(p, i) + b->offset, b->bytes);
    return status;
}

lk_status lk__run_copy_in(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_bucket *b = bucket_at(p, run, at);
    (void)next;
    return lk__stage_in(p, p->memory.gradients + lk__bucket_place(p->plan, b),
                        lk__bucket_sent(p->plan, (size_t)(b - p->plan->buckets)));
}
