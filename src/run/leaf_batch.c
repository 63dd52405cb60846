/* leaf_batch.c - leaves that run as one batch: operations that add over samples are called once per leaf, on its rows,
 * with its own sums. leaf_batch_create.c makes these calls. */
#include "run/program.h"

#include <string.h>

static const lk__graph_node *node_of(const lk_program *p, size_t i)
{
    return &p->plan->train.graph->nodes[p->slots[0].train.instructions[i].node];
}

static int value_of(const lk__graph_node *n, int i) { return i < n->inputs ? n->in[i] : n->out[i - n->inputs]; }
static lk__kernel_operand *operand_of(lk__kernel_call *call, const lk__graph_node *n, int i)
{
    return i < n->inputs ? &call->in[i] : &call->out[i - n->inputs];
}

/* Sets a leaf's operands to rows first … last of the instruction's. */
static void place_leaf(const lk_program *p, const lk__run_instruction *in, int leaf, int64_t first, int64_t last)
{
    const lk__plan_list  *planned = &p->plan->train;
    const lk__graph_node *n = &planned->graph->nodes[in->node];
    lk__kernel_call      *call = &in->leaves[leaf];
    for (int j = 0; j < n->inputs + n->outputs; j++) {
        int v = value_of(n, j);
        if (v < 0) continue;
        const lk__graph_shape    *s = &planned->graph->values[v].shape;
        const lk__kernel_operand *whole = operand_of((lk__kernel_call *)&in->call, n, j);
        lk__kernel_operand       *o = operand_of(call, n, j);
        if (s->count_axis == 0) {
            size_t row = (size_t)(lk__shape_elements(s) / s->dims[0] * s->count_unit) * lk_dtype_size(s->dtype);
            o->data = (char *)whole->data + (size_t)first * row;
            o->dims[0] = (last - first) * s->count_unit;
        } else if (planned->places[v].region == LK__IN_GRADIENTS) {
            o->data = lk__gradient_set(p, leaf) + planned->places[v].offset;
        }
    }
}

/* Sets the operands to all rows of the subtree that begins with this leaf, and where its leaves begin in them. */
static void place_subtree(const lk_program *p, const lk__run_instruction *in, int leaf, int count)
{
    lk__kernel_leaves        *leaves = (lk__kernel_leaves *)in->leaves[leaf].leaves;
    int64_t                  *rows = (int64_t *)leaves->rows, begin = lk__part_row(p, leaf), each = 1;
    const lk__kernel_operand *x = &in->call.in[0];
    for (int i = 0; i + 1 < x->rank; i++) each *= x->dims[i];
    if (p->slots[0].step.count) each /= p->slots[0].step.count; /* rows of a sample */
    leaves->count = count;
    for (int i = 0; i <= count; i++) rows[i] = (lk__part_row(p, leaf + i) - begin) * each;
    place_leaf(p, in, leaf, begin, lk__part_row(p, leaf + count));
}

void lk__leaf_batch_patch(lk_program *p)
{
    lk__run_list *list = &p->slots[0].train;
    int           here = p->division.here;
    for (size_t i = 0; i < list->count; i++)
        for (int s = 0; list->instructions[i].leaves && s < here; s++) {
            int count = lk__leaf_subtree(p, s);
            if (!lk__leaf_batch_adds(node_of(p, i)))
                place_leaf(p, &list->instructions[i], s, lk__part_row(p, s), lk__part_row(p, s + 1));
            else if (count)
                place_subtree(p, &list->instructions[i], s, count);
        }
}

/* Reads the numbers of a leaf that this node has made. */
static lk_status keep_numbers(lk_program *p, const lk__graph_node *n, int leaf)
{
    const lk__plan_list *planned = &p->plan->train;
    lk_status            status = LK_OK;
    for (int i = 0; i < n->outputs; i++)
        for (int k = 0; k < planned->numbers_count && n->out[i] >= 0 && status >= 0; k++)
            if (planned->numbers[k] == n->out[i])
                status = lk__program_number(p, p->slots[0].arena, planned, planned->numbers[k], 0,
                                            &lk__row_numbers(p, leaf)[k]);
    return status;
}

lk_status lk__leaf_batch_run(lk_program *p, lk__run_instruction *in)
{
    const lk__plan_list  *planned = &p->plan->train;
    const lk__graph_node *n = &planned->graph->nodes[in->node];
    for (int s = 0; s < p->division.here; s++) {
        if (lk__leaf_batch_adds(n) && !lk__leaf_subtree(p, s)) continue;
        lk_status status = in->run(&in->leaves[s]);
        if (status >= 0) status = keep_numbers(p, n, s);
        if (status < 0) return status;
    }
    return LK_OK;
}

/* The address of leaf `leaf`'s operand of the collective at `index`. */
const void *lk__leaf_batch_source(const lk_program *p, size_t index, int leaf)
{
    const lk__run_list *list = &p->slots[0].train;
    int                 v = node_of(p, index)->in[0];
    for (size_t i = index; i-- > 0;) {
        const lk__graph_node *n = list->instructions[i].leaves ? node_of(p, i) : NULL;
        for (int k = 0; n && k < n->outputs; k++)
            if (n->out[k] == v) return list->instructions[i].leaves[leaf].out[k].data;
    }
    return NULL; /* not reached: the plan has made one */
}
