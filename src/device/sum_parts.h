/* device/sum_parts.h - which parts of a sum (base/sum_parts.h) a kernel's operand has. */
#ifndef LK__DEVICE_SUM_PARTS_H
#define LK__DEVICE_SUM_PARTS_H

#include "device/kernel.h"

/* The parts along dimension `dim` of an operand. Plans cut it only at boundaries of parts (lk__sum_parts_nest). */
static inline lk__sum_parts lk__operand_sum_parts(const lk__op_attrs *attrs, const lk__kernel_operand *x, int dim)
{
    lk__sum_parts    parts;
    lk__op_summation none = {0};
    int64_t          whole = lk__whole_extent(x, dim), first = lk__part_first(x, dim), extent = x->dims[dim];
    if (!lk__sum_parts_of(&attrs->sum, whole, first, extent, &parts))
        lk__sum_parts_of(&none, whole, first, extent, &parts);
    return parts;
}

#endif
