/* sgd.c - stochastic gradient descent, with momentum, as torch.optim.SGD. */
#include "graph/op/describe_optimizer.h"

DESCRIBE(sgd)
OPTIMIZER_OPERATION(LK__HAS(momentum) | LK__HAS(dampening) | LK__HAS(nesterov), 1, MOMENT("momentum", OPTIONAL));

static unsigned keep_momentum(const lk_optimizer_config *o) { return o->momentum != 0; }

static const char *check_nesterov(const lk_optimizer_config *o)
{
    bool good = !o->nesterov || (o->momentum > 0 && o->dampening == 0);
    return good ? NULL : "nesterov requires a momentum above 0 and no dampening";
}

DESCRIBE_OPTIMIZER(sgd){
    .name = "sgd",
    .op = LK__OP_sgd,
    .options = LK__OPTION(momentum) | LK__OPTION(dampening) | LK__OPTION(nesterov),
    .moments = {"momentum_buffer"},
    .keeps = keep_momentum,
    .check = check_nesterov,
};
