/* update.cu - the update in a few launches: the norm of all gradients and their scale, then the optimizer of all parameters. */
#include "device/cuda/backend.h"

/* For the partial sums of all gradients' squares; those of more elements than fit are added one by one. */
static const size_t SUMS_BYTES = (size_t)1 << 20;

extern "C" size_t lk__cuda_gradient_scale_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return call->inputs > 1 ? SUMS_BYTES : 0;
}

static int count_equal(const lk__op *ops, int count, lk__op op)
{
    int n = 0;
    while (n < count && ops[n] == op) n++;
    return n;
}

/* square_sum of each gradient, additions of these, gradient_scale. */
static lk_status run_scale(const lk__op *ops, const lk__kernel_call *const *calls, int count, int *done)
{
    int squares = count_equal(ops, count, LK__OP_square_sum);
    int last = squares + count_equal(ops + squares, count - squares, LK__OP_add);
    if (last != 2 * squares - 1 || last >= count || ops[last] != LK__OP_gradient_scale ||
        lk__cuda_scale_many_workspace(calls, squares) > SUMS_BYTES)
        return LK_OK;
    *done = last + 1;
    return lk__cuda_scale_many(calls, squares, calls[last], calls[last]->workspace);
}

lk_status lk__cuda_run_many(lk__device *device, lk__device_nodes which, const lk__op *ops,
                            const lk__kernel_call *const *calls, int count, int *done)
{
    *done = 0;
    if (which == LK__NODES_OF_TRAINING) return lk__cuda_run_train_nodes(device, ops, calls, count, done);
    if (which == LK__NODES_OF_GENERATION) return lk__cuda_run_step_nodes(device, ops, calls, count, done);
    if (ops[0] == LK__OP_square_sum) return run_scale(ops, calls, count, done);
    if (ops[0] != LK__OP_adam && ops[0] != LK__OP_sgd) return LK_OK;
    *done = count_equal(ops, count, ops[0]);
    return lk__cuda_update_many(ops[0], calls, *done);
}
