/* collective.c - collectives over one rank and one leaf, which are copies; over several ranks or leaves, the
 * interpreter runs them instead. Also cuts this rank's or leaf's part out of a gathered value. */
#include "device/cpu/lanes.h"

static void copy_from(const lk__kernel_call *call, int64_t part)
{
    size_t bytes = (size_t)lk__operand_elements(&call->out[0]) * lk_dtype_size(call->out[0].dtype);
    if (bytes) memcpy(call->out[0].data, (const char *)call->in[0].data + (size_t)part * bytes, bytes);
}

void KERNEL(all_reduce)(const lk__kernel_call *call) { copy_from(call, 0); }
void KERNEL(all_gather)(const lk__kernel_call *call) { copy_from(call, 0); }
void KERNEL(reduce_scatter)(const lk__kernel_call *call) { copy_from(call, 0); }
void KERNEL(exchange_rows)(const lk__kernel_call *call) { copy_from(call, 0); }
void KERNEL(own_part)(const lk__kernel_call *call) { copy_from(call, call->step->part); }

void KERNEL(wait)(const lk__kernel_call *call) { (void)call; }
