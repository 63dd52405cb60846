/* device/cuda/operands.h - where operands are: nodes run together only where results do not overlap what others read or write. */
#ifndef LK__CUDA_OPERANDS_H
#define LK__CUDA_OPERANDS_H

#include "device/cuda/cuda.h"

static inline bool operands_overlap(const lk__kernel_operand *a, const lk__kernel_operand *b)
{
    if (!a->data || !b->data) return false;
    const char *x = (const char *)a->data, *y = (const char *)b->data;
    return x < y + lk__operand_elements(b) * (int64_t)cuda_size(b->dtype) &&
           y < x + lk__operand_elements(a) * (int64_t)cuda_size(a->dtype);
}

/* Whether a result is where operand `from` … or a result of an earlier call is. */
static inline bool operand_touches(const lk__kernel_operand *out, const lk__kernel_call *call, int from, bool results)
{
    for (int i = from; i < call->inputs; i++)
        if (operands_overlap(out, &call->in[i])) return true;
    for (int i = 0; results && i < call->outputs; i++)
        if (operands_overlap(out, &call->out[i])) return true;
    return false;
}

#endif
