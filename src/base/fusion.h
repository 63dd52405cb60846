/* base/fusion.h - how the kernel of an operation can do the work of a neighbouring node as well. Descriptors list the
 * patterns of an operation (graph/op.h), devices those for which they have kernels (device/fusion.h); one pass applies
 * them (plan/fuse.c). */
#ifndef LK__FUSION_H
#define LK__FUSION_H

typedef enum lk__fusion_kind {
    LK__FUSION_NONE = 1,
    /* a following addition: the other value, with the shape and type of output 0, is input `operand` */
    LK__FUSION_SUM,
    LK__FUSION_FUNCTION, /* a following function, the only reader: attribute `activation` */
    LK__FUSION_KEPT,     /* the same, with readers of what the function is applied to, which is output `operand` */
    /* a following gradient of a function: attribute `activation`; its saved value is input `operand` */
    LK__FUSION_GRADIENT,
    LK__FUSION_MAX_POOL, /* a following max pool, whose windows neither overlap nor are padded: attribute `pool` */
    /* an addition before it: its second operand is input `operand`, and the sum is a further output */
    LK__FUSION_OPERAND,
} lk__fusion_kind;

#endif
