/* transfer.c - values that one stage of a pipeline sends to another: a send on the rank that computes them, a receive
 * and its wait on the rank that reads them. These nodes are added after the gradients, which are derived from the whole
 * graph.
 *
 * A send has no wait in the graph: another rank reads its operand until the slot of the micro-batch is used again, or
 * the step ends, and the program waits for it there (plan/instruction.c). A receive starts before its section, so that
 * its result has its memory from there on (plan/memory.c). */
#include "graph/op/describe.h"

int lk__emit_send(lk_graph *g, lk_site site, const lk__op_attrs *attrs, int x)
{
    lk__graph_shape sent = lk__shape_fixed(LK_U8, 0, NULL);
    return lk__emit_shaped(g, site, LK__OP_send, attrs, &x, 1, &sent, 1);
}

int lk__emit_receive(lk_graph *g, lk_site site, const lk__op_attrs *attrs, int like)
{
    lk__graph_shape shape = g->values[like].shape;
    lk__op_part     part = g->values[like].part;
    int             node = lk__emit_shaped(g, site, LK__OP_receive, attrs, NULL, 0, &shape, 1);
    if (node < 0) return -1;
    int y = g->nodes[node].out[0];
    g->values[y].part = part;
    int complete = lk__emit1(g, site, LK__OP_wait, NULL, (int[]){y, y}, 2);
    if (complete >= 0) g->values[complete].part = part;
    return complete;
}

#define TRANSFER                                                                                             \
    .in_place = LK__NO_OPERAND, .leaves = LK__LEAVES_SEPARATE, .runs = LK__RUNS_TRANSFER,                    \
    .evaluation = LK__EVALUATE_SAME, .recompute = LK__KEEP, .fuse = LK__FUSE_NOTHING, .loss = LK__LOSS_NO

DESCRIBE(send){
    .factors = "-",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("sent", GIVEN, REQUIRED, ROWS)},
    .attributes = LK__HAS(mesh) | LK__HAS(transfer),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    TRANSFER,
    .effect = LK__EFFECT_SENDS,
    .collective = LK__SEND,
    MEMORY_BOUND,
};

DESCRIBE(receive){
    .factors = "-",
    .inputs = -1,
    .outputs = 1,
    .out = {OPERAND("y", GIVEN, REQUIRED, ROWS)},
    .attributes = LK__HAS(mesh) | LK__HAS(transfer),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    TRANSFER,
    .effect = LK__EFFECT_NONE,
    .collective = LK__RECV,
    MEMORY_BOUND,
};
