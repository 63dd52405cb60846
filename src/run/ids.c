/* ids.c - labels and token ids out of range. Kernels report the first of a run; here it becomes an error that names
 * input, row, sample and value. With one rank the section fails at once. With other ranks, a rank that failed within a
 * step would leave them waiting, so the error is exchanged at LK_SYNC and all ranks fail together. */
#include "run/program.h"

#include <inttypes.h>
#include <stdio.h>

/* The input that holds the ids of an operation, since no operation computes ids; -1: the node has none. */
static int ids_input(const lk__plan_list *planned, const lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    int                 v = -1;
    for (int i = 0; i < n->inputs && v < 0; i++)
        if (lk__op_input(d, i)->types == LK__TYPE_I32) v = n->in[i];
    return v >= 0 && planned->places[v].region == LK__IN_INPUT ? (int)planned->places[v].offset : -1;
}

/* Elements of an input for each of its rows. */
static int64_t row_elements(const lk__graph_shape *s) { return s->rank ? lk__shape_elements(s) / s->dims[0] : 1; }

/* The position of the reported id among those that the caller bound, if it is in this input of a slot. */
static bool find_position(const lk_program *p, int input, int64_t *position)
{
    const lk__graph_shape *shape = &p->plan->graph->values[input].shape;
    for (int i = 0; i < p->plan->slots; i++) {
        const lk__run_slot *slot = &p->slots[i];
        intptr_t            offset = (intptr_t)p->ids.invalid.at - (intptr_t)lk__input_memory(p, slot, (size_t)input);
        intptr_t            first = (intptr_t)slot->inputs[input] - (intptr_t)lk__bound_memory(p, (size_t)input);
        if (!slot->inputs[input] || offset < 0 || (size_t)offset >= lk__bytes_at_count(shape, slot->step.count))
            continue;
        *position = (offset + first) / (intptr_t)sizeof(int32_t);
        return true;
    }
    return false;
}

/* The node that reported, and the position of the id in its input. */
static const lk__graph_node *find_reporter(const lk_program *p, const lk__plan_list *planned, int *input,
                                           int64_t *position)
{
    for (size_t i = 0; i < planned->order_count; i++) {
        const lk__graph_node *n = &planned->graph->nodes[planned->order[i]];
        if (n->op != p->ids.invalid.op || (*input = ids_input(planned, n)) < 0) continue;
        if (find_position(p, *input, position)) return n;
    }
    return NULL;
}

/* What an operation looks up, in what, and what that consists of. */
typedef struct lookup_words {
    const char *id, *table, *rows;
} lookup_words;

static bool looks_up_labels(lk__op op)
{
    return lk__op_find(op)->loss != LK__LOSS_NO || op == LK__OP_cross_entropy_each;
}

/* The value that a view is of. */
static int seen_through(const lk_graph *g, int v)
{
    while (v >= 0 && g->values[v].kind == LK__VALUE_RESULT &&
           lk__op_find(g->nodes[g->values[v].node].op)->runs == LK__RUNS_NOTHING)
        v = g->nodes[g->values[v].node].in[0];
    return v;
}

/* Where the placement pass has cut the ids, a kernel reads a part of them elsewhere: the first of that value among
 * those that the caller bound, for an operation of that kind. */
static const lk__graph_node *find_value(const lk_program *p, int *input, int64_t *position)
{
    const lk_graph *g = p->plan->graph;
    bool            label = looks_up_labels(p->ids.invalid.op);
    for (size_t i = 0; i < g->nodes_count && p->plan->placed_axes; i++) {
        const lk__graph_node *n = &g->nodes[i];
        const lk__graph_op   *d = lk__op_find(n->op);
        for (int k = 0; k < n->inputs && looks_up_labels(n->op) == label; k++) {
            int v = lk__op_input(d, k)->types == LK__TYPE_I32 ? seen_through(g, n->in[k]) : -1;
            if (v < 0 || g->values[v].kind != LK__VALUE_INPUT || lk__source_makes(p, (size_t)v)) continue;
            const int32_t *ids = p->slots[0].inputs[v];
            size_t count = ids ? lk__bytes_at_count(&g->values[v].shape, p->slots[0].step.count) / sizeof *ids : 0,
                   at = 0;
            while (at < count && ids[at] != p->ids.invalid.value) at++;
            if (at == count) continue;
            *input = v;
            *position = (int64_t)at + (ids - (const int32_t *)lk__bound_memory(p, (size_t)v));
            return n;
        }
    }
    return NULL;
}

static lookup_words words_of(lk__op op)
{
    if (looks_up_labels(op)) return (lookup_words){"label", "the loss", "classes"};
    if (op == LK__OP_rope) return (lookup_words){"position", "the table of angles", "rows"};
    if (op == LK__OP_cache_write) return (lookup_words){"row", "the cache", "rows"};
    return (lookup_words){"id", "the embedding", "rows"};
}

void lk__describe_invalid(const lk_program *p, const lk__plan_list *planned, char *text, size_t bytes)
{
    const lk__kernel_invalid_id *id = &p->ids.invalid;
    bool                         label = looks_up_labels(id->op);
    int                          input;
    int64_t                      position;
    char                         where[256] = "", ignored[64] = "";
    const lk__graph_node        *n = find_reporter(p, planned, &input, &position);
    if (!n) n = find_value(p, &input, &position);
    if (n) {
        const lk__graph_value *v = &p->plan->graph->values[input];
        int64_t                each = row_elements(&v->shape), row = position / each;
        size_t                 used =
            (size_t)snprintf(where, sizeof where, "input \"%.100s\", row %" PRId64 " of the batch", v->name, row);
        if (each > 1)
            used += (size_t)snprintf(where + used, sizeof where - used, ", position %" PRId64, position % each);
        if (p->step.sample_ids && v->shape.count_axis == 0 && row < p->step.count)
            used +=
                (size_t)snprintf(where + used, sizeof where - used, " (sample %" PRId64 ")", p->step.sample_ids[row]);
        snprintf(where + used, sizeof where - used, ": ");
        if (label) snprintf(ignored, sizeof ignored, "; %" PRId64 " is ignored", n->attrs.ignore_index);
    }
    lookup_words w = words_of(id->op);
    snprintf(text, bytes, "%s%s %" PRId32 " is out of range: %s has %" PRId64 " %s, 0 to %" PRId64 "%s", where, w.id,
             id->value, w.table, id->limit, w.rows, id->limit - 1, ignored);
}

void lk__drop_gradients(lk_program *p)
{
    p->progress.pending = 0;
    p->progress.written = false;
    p->progress.sent = false;
    p->progress.synced = false;
    p->ids.invalid_text[0] = 0;
    p->ids.invalid_forward = p->ids.invalid_backward = false;
}

lk_status lk__check_ids(lk_program *p, const lk__plan_list *planned)
{
    char text[sizeof p->ids.invalid_text];
    if (!p->ids.invalid.found) return LK_OK;
    p->ids.invalid.found = false;
    lk__describe_invalid(p, planned, text, sizeof text);
    if (planned == &p->plan->evaluate) return lk__fail(p->context, LK_EINVAL, "%s", text);
    if (!p->comm) {
        lk__drop_gradients(p);
        return lk__fail(p->context, LK_EINVAL, "%s. The step was not taken", text);
    }
    p->ids.invalid_forward = true;
    if (!p->ids.invalid_text[0]) snprintf(p->ids.invalid_text, sizeof p->ids.invalid_text, "%s", text);
    return LK_OK;
}

lk_status lk__share_ids(lk_program *p)
{
    char text[sizeof p->ids.invalid_text] = "";
    int  rank = 0, world = lk__plan_ranks(p->plan);
    while (rank < world && lk__program_rank_report(p, rank).invalid == 0) rank++;
    if (rank == world) return LK_OK;
    snprintf(text, sizeof text, "%s", p->ids.invalid_text);
    lk__drop_gradients(p);
    lk_status status = lk_comm_broadcast(p->comm, text, sizeof text, LK_U8, rank, NULL);
    if (status < 0) return status;
    text[sizeof text - 1] = 0;
    return lk__fail_of_rank(p->context, LK_EINVAL, rank, "rank %d: %s. The step was not taken", rank, text);
}
