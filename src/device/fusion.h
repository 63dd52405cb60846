/* device/fusion.h - the fusions for which a device has kernels: a row for each operation and kind. */
#ifndef LK__DEVICE_FUSION_H
#define LK__DEVICE_FUSION_H

#include "base/fusion.h"
#include "base/op.h"

typedef struct lk__device_fusion {
    lk__op          op;
    lk__fusion_kind kind;      /* 0: the end of the table */
    uint32_t        functions; /* FUNCTION, KEPT, GRADIENT: bits of lk__op_unary */
    uint32_t        types;     /* of the fused result: bits of lk_dtype; 0: all */
} lk__device_fusion;

static inline bool lk__device_fuses(const lk__device_fusion *table, lk__op op, lk__fusion_kind kind,
                                    lk__op_unary function, lk_dtype type)
{
    bool function_matters = kind == LK__FUSION_FUNCTION || kind == LK__FUSION_KEPT || kind == LK__FUSION_GRADIENT;
    for (const lk__device_fusion *row = table; row && row->kind; row++)
        if (row->op == op && row->kind == kind && (!row->types || row->types >> type & 1) &&
            (!function_matters || row->functions >> function & 1))
            return true;
    return false;
}

#endif
