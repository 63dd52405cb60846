/* leaf_batch_create.c - leaves that run as one batch: creates the calls of an operation that adds over samples, one for
 * each leaf. */
#include "run/program.h"

static const lk__graph_node *node_of(const lk_program *p, size_t i)
{
    return &p->plan->train.graph->nodes[p->slots[0].train.instructions[i].node];
}

/* Whether a collective reads the output: such sums need memory for each leaf. */
static bool is_private(const lk__plan_list *planned, const lk__graph_node *n, int output)
{
    for (size_t i = 0; i < planned->order_count; i++) {
        const lk__graph_node *reader = &planned->graph->nodes[planned->order[i]];
        if (lk__op_find(reader->op)->runs == LK__RUNS_COLLECTIVE && reader->in[0] == n->out[output]) return true;
    }
    return false;
}

static size_t private_bytes(const lk__plan_list *planned, const lk__graph_node *n)
{
    size_t bytes = 0;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && is_private(planned, n, i))
            bytes += lk__round_up((size_t)lk__shape_elements(&planned->graph->values[n->out[i]].shape) * sizeof(double),
                                  LK__ALIGN);
    return bytes;
}

/* Of lk__kernel_leaves and its rows. */
static size_t leaves_bytes(size_t here)
{
    return lk__round_up(sizeof(lk__kernel_leaves) + (here + 1) * sizeof(int64_t), LK__ALIGN);
}

/* Leaves of a run at most. */
static size_t most_of_run(const lk_program *p)
{
    int runs = p->plan->parallel.micro_batches;
    return (size_t)((p->division.here + runs - 1) / runs);
}

size_t lk__leaf_batch_sums_bytes(const lk_program *p)
{
    const lk__plan_list *planned = &p->plan->train;
    size_t               bytes = 0;
    for (size_t i = 0; i < planned->order_count; i++) {
        const lk__graph_node *n = &planned->graph->nodes[planned->order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_NOTHING && lk__plan_by_leaf(planned, planned->order[i]))
            bytes += private_bytes(planned, n);
    }
    return bytes * (size_t)p->division.here;
}

lk_status lk__leaf_batch_build(lk_program *p)
{
    const lk__plan_list *planned = &p->plan->train;
    lk__run_list        *list = &p->slots[0].train;
    size_t               here = most_of_run(p), calls = 0, trees = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (!lk__plan_by_leaf(planned, list->instructions[i].node)) continue;
        calls += here;
        trees += lk__leaf_batch_adds(node_of(p, i)) ? here : 0;
    }
    p->leaf_bytes = lk__round_up(calls * sizeof(lk__kernel_call), LK__ALIGN) + trees * leaves_bytes(here);
    list->by_leaf = true;
    p->leaf_memory = lk__alloc(p->context, LK_MEMORY_OTHER, p->leaf_bytes);
    if (!p->leaf_memory) return LK_ENOMEM;
    lk__kernel_call *call = (lk__kernel_call *)p->leaf_memory;
    char            *tree = p->leaf_memory + lk__round_up(calls * sizeof(lk__kernel_call), LK__ALIGN);
    char            *sums = p->memory.leaf_sums;
    for (size_t i = 0; i < list->count; i++) {
        lk__run_instruction *in = &list->instructions[i];
        if (!lk__plan_by_leaf(planned, in->node)) continue;
        in->leaves = call;
        in->issue = lk__leaf_batch_run;
        for (size_t s = 0; s < here; s++, call++) {
            *call = in->call;
            if (lk__leaf_batch_adds(node_of(p, i))) {
                lk__kernel_leaves *leaves = (lk__kernel_leaves *)tree;
                *leaves = (lk__kernel_leaves){.rows = (int64_t *)(leaves + 1),
                                              .sums = p->memory.workspace + p->plan->leaf_sums_offset};
                call->leaves = leaves;
                tree += leaves_bytes(here);
            }
            for (int k = 0; k < node_of(p, i)->outputs; k++)
                if (call->out[k].data && is_private(planned, node_of(p, i), k)) {
                    call->out[k].data = sums;
                    sums += lk__round_up((size_t)lk__operand_elements(&call->out[k]) * sizeof(double), LK__ALIGN);
                }
        }
    }
    return LK_OK;
}
