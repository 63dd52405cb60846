/* group_training.cu - launch groups of forward and backward, for small models, whose steps are chains of kernels that
 * latency bounds: cross-entropy with its gradient, and both gradients of a linear layer with the gradient of the relu
 * before it. All results are written, with the same bits as when the nodes run one by one. */
#include "device/cuda/backend.h"
#include "device/cuda/gemm.h"

/* ---- the gradient of a row is written by the warp that reads its logits and writes its probabilities: it may replace
 * either ---- */

bool lk__cuda_supports_entropy(lk__device *device, const lk__device_group *g)
{
    const lk__kernel_call *loss = lk__group_call(g, LK__ROLE_LOSS), *grad = lk__group_call(g, LK__ROLE_GRADIENT);
    return runs_groups(device) && loss->in[0].dtype == grad->out[0].dtype && !loss->leaves && !grad->leaves &&
           lk__cuda_entropy_supports(loss);
}

lk_status lk__cuda_run_entropy(lk__device *, const lk__device_group *g)
{
    return lk__cuda_entropy_with_grad(lk__group_call(g, LK__ROLE_LOSS), lk__group_call(g, LK__ROLE_GRADIENT));
}

/* ---- both gradients of a linear layer ---- */

static bool is_small(const lk__cuda_device *device, const lk__cuda_product *p)
{
    return lk__cuda_small_product_supports(device, p) && !lk__cuda_skinny_support(device, p);
}

static bool has_type(const lk__kernel_operand *x, const lk__kernel_operand *as)
{
    return x->dtype == as->dtype && lk__operand_elements(x) == lk__operand_elements(as);
}

bool lk__cuda_supports_gradients(lk__device *device, const lk__device_group *g)
{
    const lk__kernel_call *dw = lk__group_call(g, LK__ROLE_WEIGHT), *dx = lk__group_call(g, LK__ROLE_INPUT);
    const lk__kernel_call *relu = lk__group_call(g, LK__ROLE_RELU);
    const lk__cuda_device *cuda = (const lk__cuda_device *)device;
    lk__cuda_product       weight, input = lk__cuda_input_product(dx);
    if (!runs_groups(device) || !lk__cuda_weight_product(dw, &weight) || dx->leaves || weight.type != input.type)
        return false;
    if (relu && (!has_type(&relu->out[0], &dx->out[0]) || !has_type(&relu->in[1], &dx->out[0]))) return false;
    return is_small(cuda, &weight) && is_small(cuda, &input);
}

lk_status lk__cuda_run_gradients(lk__device *, const lk__device_group *g)
{
    const lk__kernel_call *dw = lk__group_call(g, LK__ROLE_WEIGHT), *relu = lk__group_call(g, LK__ROLE_RELU);
    lk__cuda_product       weight, input = lk__cuda_input_product(lk__group_call(g, LK__ROLE_INPUT));
    (void)lk__cuda_weight_product(dw, &weight);
    return lk__cuda_small_gradients(dw, &weight, &input, relu ? relu->in[1].data : NULL,
                                    relu ? relu->out[0].data : NULL);
}
