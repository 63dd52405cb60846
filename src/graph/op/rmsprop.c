/* rmsprop.c - RMSprop, as torch.optim.RMSprop. */
#include "graph/op/describe_optimizer.h"

DESCRIBE(rmsprop)
OPTIMIZER_OPERATION(LK__HAS(alpha) | LK__HAS(epsilon) | LK__HAS(momentum) | LK__HAS(centered), 3,
                    MOMENT("square_avg", REQUIRED), MOMENT("grad_avg", OPTIONAL), MOMENT("momentum", OPTIONAL));

static unsigned keep_moments(const lk_optimizer_config *o)
{
    return 1u | (o->centered ? 2u : 0) | (o->momentum != 0 ? 4u : 0);
}

DESCRIBE_OPTIMIZER(rmsprop){
    .name = "rmsprop",
    .op = LK__OP_rmsprop,
    .options = LK__OPTION(alpha) | LK__OPTION(epsilon) | LK__OPTION(momentum) | LK__OPTION(centered),
    .moments = {"square_avg", "grad_avg", "momentum_buffer"},
    .keeps = keep_moments,
};
