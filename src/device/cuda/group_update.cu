/* group_update.cu - launch groups of the update: the norm of all gradients and their scale, then the optimizer of all
 * parameters. Also contains the table of all kinds of launch groups. */
#include "device/cuda/backend.h"

/* For the partial sums of all gradients' squares; those of more elements than fit are added one by one. */
static const size_t SUMS_BYTES = (size_t)1 << 20;

extern "C" size_t lk__cuda_gradient_scale_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return call->inputs > 1 ? SUMS_BYTES : 0;
}

static bool supports_scale(lk__device *, const lk__device_group *g)
{
    return lk__cuda_scale_many_workspace(g->calls, g->role[LK__ROLE_SQUARES] + 1) <= SUMS_BYTES;
}

static lk_status run_scale(lk__device *, const lk__device_group *g)
{
    const lk__kernel_call *scale = lk__group_call(g, LK__ROLE_SCALE);
    return lk__cuda_scale_many(g->calls, g->role[LK__ROLE_SQUARES] + 1, scale, scale->workspace);
}

static bool supports_update(lk__device *, const lk__device_group *g) { return lk__cuda_updates(g->ops[0]); }

static lk_status run_update(lk__device *, const lk__device_group *g)
{
    return lk__cuda_update_many(g->ops[0], g->calls, g->count);
}

static bool supports_step_end(lk__device *device, const lk__device_group *g)
{
    (void)device;
    return lk__cuda_updates(g->ops[1]) && !lk__cuda_groups_are_off();
}

const lk__device_group_kernel lk__cuda_group_kernels[] = {
    {lk__cuda_supports_norm, lk__cuda_run_norm},
    {lk__cuda_supports_product, lk__cuda_run_product},
    {lk__cuda_supports_attention, lk__cuda_run_attention},
    {lk__cuda_supports_entropy, lk__cuda_run_entropy},
    {lk__cuda_supports_gradients, lk__cuda_run_gradients},
    {supports_scale, run_scale},
    {supports_update, run_update},
    {supports_step_end, NULL}, /* end_step */
};
static_assert(sizeof lk__cuda_group_kernels / sizeof *lk__cuda_group_kernels == LK__GROUP_KINDS, "in their order");
