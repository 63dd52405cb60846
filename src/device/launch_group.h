/* device/launch_group.h - launch groups: neighbouring nodes that a device runs in one launch. The plan finds them by
 * patterns over the graph (plan/launch_group.c) and lays memory out so that no result of a group overlaps what another
 * of its nodes reads or writes, since blocks of one launch run in any order. A device lists the kinds for which it has
 * kernels; all results are the same as when the nodes run one by one.
 *
 * The calls of a group are in the order of their nodes; `role` says which call has which role. */
#ifndef LK__DEVICE_LAUNCH_GROUP_H
#define LK__DEVICE_LAUNCH_GROUP_H

#include "device/kernel.h"

struct lk__device;

/* In a step of generation, whose nodes write no weights, and rows of caches that no earlier node of the step reads: */
typedef enum lk__device_group_kind {
    /* a norm of the last axis, 1 to LK__GROUP_PRODUCTS linear layers of it, [swiglu of two of them] */
    LK__GROUP_OF_NORM,
    /* a linear layer by itself, whose weight can be read before the previous launch has ended */
    LK__GROUP_OF_PRODUCT,
    /* slices or rotations, writes of a key and a value into caches, and the attention that reads these */
    LK__GROUP_OF_ATTENTION,
    /* In a training step: */
    LK__GROUP_OF_ENTROPY,   /* cross-entropy, and its gradient, which may replace the logits or the probabilities */
    LK__GROUP_OF_GRADIENTS, /* both gradients of a linear layer, [relu's of that of its input, which it may replace] */
    LK__GROUP_OF_SCALE,     /* square sums of all gradients, their sum, and the scale of the gradients */
    LK__GROUP_OF_UPDATE,    /* one optimizer for parameters that follow each other */
    /* the scale of the gradients without a norm, then one optimizer for all: device/recording.h's end_step */
    LK__GROUP_OF_STEP_END,
    LK__GROUP_KINDS
} lk__device_group_kind;

enum { LK__GROUP_PRODUCTS = 3 };

/* Roles, by kind: the number of a call; -1: no call has it. */
enum {
    LK__ROLE_NORM = 0,      /* NORM: the first call */
    LK__ROLE_PRODUCT = 1,   /* NORM: the first of its products, which follow each other */
    LK__ROLE_LAST_PRODUCT,  /* NORM: the last */
    LK__ROLE_GATE,          /* NORM: swiglu */
    LK__ROLE_ATTENTION = 0, /* ATTENTION: the last call */
    LK__ROLE_QUERY,         /* ATTENTION: the slice or rotation that makes the queries; then those of … */
    LK__ROLE_KEY,
    LK__ROLE_VALUE,
    LK__ROLE_KEY_WRITE, /* ATTENTION: what writes the cache of keys, … */
    LK__ROLE_VALUE_WRITE,
    LK__ROLE_WEIGHT = 0, /* GRADIENTS: linear_grad_weight */
    LK__ROLE_INPUT,      /* GRADIENTS: linear_grad_input */
    LK__ROLE_RELU,       /* GRADIENTS: relu's gradient */
    LK__ROLE_LOSS = 0,   /* ENTROPY: cross_entropy */
    LK__ROLE_GRADIENT,   /* ENTROPY: its gradient */
    LK__ROLE_SCALE = 0,  /* SCALE, STEP_END: gradient_scale */
    LK__ROLE_SQUARES,    /* SCALE: the last of the square sums, which are the first calls */
    LK__GROUP_ROLES = 6
};

typedef struct lk__device_group {
    lk__device_group_kind         kind;
    int                           count;
    const lk__op                 *ops;
    const lk__kernel_call *const *calls;
    int                           role[LK__GROUP_ROLES];
} lk__device_group;

/* What a device has for a kind; both NULL: nothing. */
typedef struct lk__device_group_kernel {
    /* Whether it runs these calls in one launch, by their types and shapes: in planning at the capacity, and before
     * each run at the count of samples; where it does not then, the calls run one by one. */
    bool (*supports)(struct lk__device *device, const lk__device_group *group);
    lk_status (*run)(struct lk__device *device, const lk__device_group *group); /* NULL for STEP_END */
} lk__device_group_kernel;

static inline const lk__kernel_call *lk__group_call(const lk__device_group *group, int role)
{
    return group->role[role] < 0 ? NULL : group->calls[group->role[role]];
}

#endif
