/* optimizer.c - the common scale of all gradients: 1 / weight (1 without a weight, 0 for a weight of 0), times clip /
 * (norm + 1e-6) where that is below 1. */
#include "device/cpu/vmath.h"

#include "base/exact_sum.h"

static double scalar(const double *x, double otherwise) { return x ? *x : otherwise; }

static double squares_of(const lk__kernel_call *call, int i)
{
    int count = (int)lk__operand_elements(&call->in[i]);
    return count > 1 && input(call, i) ? lk__exact_round(input(call, i), count) : scalar(input(call, i), 0);
}

void KERNEL(gradient_scale)(const lk__kernel_call *call)
{
    double weight = scalar(input(call, 0), 1), squares = 0, clip = call->attrs->clip;
    for (int i = 1; i < call->inputs; i++) squares += squares_of(call, i);
    double scale = weight == 0 ? 0 : 1 / weight;
    double norm = sqrt(squares) * scale;
    double factor = clip / (norm + 1e-6);
    /* A NaN norm makes the scale NaN: it must not count as a small one. */
    *(double *)call->out[0].data = clip > 0 && !(factor >= 1) ? scale * factor : scale;
    if (output(call, 1)) *(double *)output(call, 1) = norm;
}
