/* train_together.cu - neighbouring nodes of a training step in one launch, for small models, whose steps are chains of kernels that latency
 * bounds: cross-entropy with its gradient, and both gradients of a linear layer with that of the relu before it. All results are written,
 * with the bits of the nodes one by one.
 *
 * Blocks of one launch run in any order, so a result of one node must not be where an earlier one reads or writes. Plans reuse memory, and
 * addresses are compared; where they overlap, nodes run one by one. */
#include "device/cuda/backend.h"
#include "device/cuda/gemm.h"
#include "device/cuda/operands.h"

/* The gradient of a row is written by the warp that reads its logits and writes its probabilities: it may replace either. */
static lk_status run_entropy(const lk__kernel_call *call, const lk__kernel_call *grad, int *done)
{
    const lk__kernel_operand *dx = &grad->out[0];
    if (call->in[0].dtype != dx->dtype || call->leaves || grad->leaves || !lk__cuda_entropy_suits(call, grad))
        return LK_OK;
    for (int i = 0; i < call->inputs; i++)
        if (operands_overlap(dx, &call->in[i]) && !(i == 0 && dx->data == call->in[i].data)) return LK_OK;
    for (int i = 0; i < call->outputs; i++)
        if (operands_overlap(dx, &call->out[i]) && !(i == 3 && dx->data == call->out[i].data)) return LK_OK;
    for (int i = 1; i < grad->inputs; i++)
        if (operands_overlap(dx, &grad->in[i])) return LK_OK;
    *done = 2;
    return lk__cuda_entropy_with_grad(call, grad);
}

/* Whether `relu` is relu's gradient of what `dx` gives, of the same type and shape. Its result may be that of dx, or apart from all. */
static bool is_relu_of(const lk__kernel_call *relu, const lk__kernel_call *dw, const lk__kernel_call *dx)
{
    const lk__kernel_operand *out = &relu->out[0], *from = &dx->out[0];
    if (relu->attrs->unary != LK__RELU || relu->in[0].data != from->data || relu->in[0].dtype != from->dtype ||
        relu->in[1].dtype != from->dtype || out->dtype != from->dtype ||
        lk__operand_elements(out) != lk__operand_elements(from) || operands_overlap(from, &relu->in[1]))
        return false;
    if (out->data != from->data && operands_overlap(out, from)) return false;
    return !operand_touches(out, dw, 0, true) && !operand_touches(out, dx, 0, false) &&
           !operands_overlap(out, &relu->in[1]);
}

static lk_status run_gradients(const lk__op *ops, const lk__kernel_call *const *calls, int count, int *done)
{
    const lk__kernel_call *dw = calls[0], *dx = calls[1];
    lk__cuda_product       weight, input = lk__cuda_input_product(dx);
    const lk__cuda_device *device = cuda_device(dw);
    if (!lk__cuda_weight_product(dw, &weight) || dx->leaves || weight.type != input.type ||
        dw->in[1].data != dx->in[0].data)
        return LK_OK;
    if (!lk__cuda_small_product_suits(device, &weight) || !lk__cuda_small_product_suits(device, &input) ||
        lk__cuda_few_rows_suit(device, &weight) || lk__cuda_few_rows_suit(device, &input))
        return LK_OK;
    if (operand_touches(&dx->out[0], dw, 0, true) || operand_touches(&dx->out[0], dx, 0, false)) return LK_OK;
    bool relu = count > 2 && ops[2] == LK__OP_unary_grad && is_relu_of(calls[2], dw, dx);
    *done = relu ? 3 : 2;
    return lk__cuda_small_gradients(dw, &weight, &input, relu ? calls[2]->in[1].data : NULL,
                                    relu ? calls[2]->out[0].data : NULL);
}

lk_status lk__cuda_run_train_nodes(lk__device *device, const lk__op *ops, const lk__kernel_call *const *calls,
                                   int count, int *done)
{
    if (device->by_heuristic || count < 2 || lk__cuda_together_is_off()) return LK_OK;
    if (ops[0] == LK__OP_cross_entropy && ops[1] == LK__OP_cross_entropy_grad)
        return run_entropy(calls[0], calls[1], done);
    if (ops[0] == LK__OP_linear_grad_weight && ops[1] == LK__OP_linear_grad_input)
        return run_gradients(ops, calls, count, done);
    return LK_OK;
}
