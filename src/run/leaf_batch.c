/* leaf_batch.c - leaves that run as one batch: operations that add over samples are called once per leaf, on its rows,
 * with its own sums. leaf_batch_create.c makes these calls. */
#include "run/collective.h"

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

int lk__leaf_batch_count(const lk_program *p, const lk__graph_node *n, int call)
{
    const lk__run_list *list = &p->slots[0].train;
    int                 end = list->part + list->each;
    if (!lk__leaf_batch_adds(n)) return 1;
    for (int leaf = list->part, count; leaf < end; leaf += count) {
        count = lk__leaf_subtree_of(p->plan, lk__plan_batch_part(p->plan), leaf, end);
        if (leaf == list->part + call) return count;
    }
    return 0;
}

/* The sum that a call makes. */
static lk__leaf_sum sum_of(const lk_program *p, const lk__graph_node *n, int call)
{
    int leaf = p->slots[0].train.part + call;
    return (lk__leaf_sum){leaf, lk__leaf_batch_count(p, n, call),
                          lk__leaf_set(p->plan, lk__plan_batch_part(p->plan), leaf)};
}

/* Sets a call's operands to the rows of its leaves, among those of the run. */
static void place_leaves(const lk_program *p, const lk__run_instruction *in, int index, lk__leaf_sum leaves)
{
    const lk__plan_list  *planned = &p->plan->train;
    const lk__graph_node *n = &planned->graph->nodes[in->node];
    lk__kernel_call      *call = &in->leaves[index];
    int64_t               begin = lk__part_row(p, p->slots[0].train.part);
    int64_t first = lk__part_row(p, leaves.first) - begin, last = lk__part_row(p, leaves.first + leaves.count) - begin;
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
            o->data = lk__gradient_set(p, leaves.set) + planned->places[v].offset;
        }
    }
}

/* Of a kernel that adds over leaves: where each of them begins in its rows. */
static void place_rows(const lk_program *p, const lk__run_instruction *in, int index, lk__leaf_sum sum)
{
    lk__kernel_leaves        *leaves = (lk__kernel_leaves *)in->leaves[index].leaves;
    int64_t                  *rows = (int64_t *)leaves->rows, begin = lk__part_row(p, sum.first), each = 1;
    const lk__kernel_operand *x = &in->call.in[0];
    for (int i = 0; i + 1 < x->rank; i++) each *= x->dims[i];
    if (p->slots[0].step.count) each /= p->slots[0].step.count; /* rows of a sample */
    leaves->count = sum.count;
    for (int i = 0; i <= sum.count; i++) rows[i] = (lk__part_row(p, sum.first + i) - begin) * each;
}

void lk__leaf_batch_patch(lk_program *p)
{
    lk__run_list *list = &p->slots[0].train;
    for (size_t i = 0; i < list->count; i++)
        for (int k = 0; list->instructions[i].leaves && k < list->each; k++) {
            lk__leaf_sum sum = sum_of(p, node_of(p, i), k);
            if (sum.count == 0) continue;
            place_leaves(p, &list->instructions[i], k, sum);
            if (lk__leaf_batch_adds(node_of(p, i))) place_rows(p, &list->instructions[i], k, sum);
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

/* The gradients that a call has made, to those of the leaves before. */
static lk_status add_gradients(lk_program *p, const lk__graph_node *n, lk__leaf_sum sum)
{
    const lk__plan_list *planned = &p->plan->train;
    lk_status            status = LK_OK;
    for (int i = 0; i < n->outputs && status >= 0; i++) {
        if (n->out[i] < 0 || planned->places[n->out[i]].region != LK__IN_GRADIENTS) continue;
        const lk__graph_shape *s = &planned->graph->values[n->out[i]].shape;
        status = lk__leaf_tree_add(p, sum, planned->places[n->out[i]].offset,
                                   (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype), s->dtype);
    }
    return status;
}

lk_status lk__leaf_batch_run(lk_program *p, lk__run_instruction *in)
{
    const lk__plan_list  *planned = &p->plan->train;
    const lk__graph_node *n = &planned->graph->nodes[in->node];
    for (int k = 0; k < p->slots[0].train.each; k++) {
        lk__leaf_sum sum = sum_of(p, n, k);
        if (sum.count == 0) continue;
        lk_status status = in->run(&in->leaves[k]);
        if (status >= 0) status = add_gradients(p, n, sum);
        if (status >= 0) status = keep_numbers(p, n, sum.first);
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
