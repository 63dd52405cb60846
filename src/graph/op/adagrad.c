/* adagrad.c - Adagrad, as torch.optim.Adagrad. The store writes the initial value of the sums; the kernel does not read
 * that option. */
#include "graph/op/describe_optimizer.h"

DESCRIBE(adagrad)
OPTIMIZER_OPERATION(LK__HAS(epsilon) | LK__HAS(lr_decay) | LK__HAS(initial_accumulator_value), 1,
                    MOMENT("sum", REQUIRED));

static double initial_sum(const lk_optimizer_config *o, int moment)
{
    (void)moment;
    return o->initial_accumulator_value;
}

static void set_defaults(lk_optimizer_config *o) { o->epsilon = 1e-10; } /* PyTorch's */

DESCRIBE_OPTIMIZER(adagrad){
    .name = "adagrad",
    .op = LK__OP_adagrad,
    .options = LK__OPTION(epsilon) | LK__OPTION(lr_decay) | LK__OPTION(initial_accumulator_value),
    .moments = {"sum"},
    .initial = initial_sum,
    .defaults = set_defaults,
};
