/* lion.c - Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2). */
#include "graph/op/describe_optimizer.h"

DESCRIBE(lion) OPTIMIZER_OPERATION(LK__HAS(beta1) | LK__HAS(beta2), 1, MOMENT("exp_avg", REQUIRED));

static void set_defaults(lk_optimizer_config *o) { o->beta2 = 0.99; } /* the paper's */

DESCRIBE_OPTIMIZER(lion){
    .name = "lion",
    .op = LK__OP_lion,
    .options = LK__OPTION(betas),
    .moments = {"exp_avg"},
    .defaults = set_defaults,
};
