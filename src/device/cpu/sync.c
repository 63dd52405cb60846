/* sync.c - the sum over ranks and leaves where there is one of each: a copy. With more of them the interpreter computes the sum
 * instead. */
#include "device/cpu/lanes.h"

void KERNEL(sync)(const lk__kernel_call *call)
{
    memcpy(call->out[0].data, call->in[0].data, (size_t)lk__operand_elements(&call->in[0]) * sizeof(double));
}
