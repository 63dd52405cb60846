/* adam.c - Adam, and AdamW, which decays weights separately from the gradient, as torch.optim.Adam and AdamW. */
#include "graph/op/describe_optimizer.h"

DESCRIBE(adam)
OPTIMIZER_OPERATION(LK__HAS(beta1) | LK__HAS(beta2) | LK__HAS(epsilon) | LK__HAS(decoupled), 2,
                    MOMENT("exp_avg", REQUIRED), MOMENT("exp_avg_sq", REQUIRED));

static void decouple(lk__op_attrs *a) { a->decoupled = true; }

DESCRIBE_OPTIMIZER(adam){
    .name = "adam",
    .op = LK__OP_adam,
    .options = LK__OPTION(betas) | LK__OPTION(epsilon),
    .moments = {"exp_avg", "exp_avg_sq"},
};

DESCRIBE_OPTIMIZER(adamw){
    .name = "adamw",
    .op = LK__OP_adam,
    .options = LK__OPTION(betas) | LK__OPTION(epsilon),
    .moments = {"exp_avg", "exp_avg_sq"},
    .attributes = decouple,
};
