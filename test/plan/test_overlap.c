/* test_overlap.c - collectives along the tensor axis run beside products of backward that do not depend on them: where
 * starts and waits are in the list of a transformer, and that every node still comes behind what it reads. */
#include "planned_transformer.h"

enum { LAYERS = 3 };

static const planned_size size = {LAYERS, 8, 16, 64};

/* Operations between a start and its wait. */
static double hidden_behind(const lk__plan_list *list, size_t start)
{
    double arithmetic = 0;
    for (size_t i = start + 1; i < list->order_count; i++) {
        const lk__graph_node *n = node_at(list, i);
        if (lk__op_find(n->op)->runs == LK__RUNS_WAIT && n->in[0] == node_at(list, start)->out[0]) return arithmetic;
        arithmetic += lk__op_find(n->op)->arithmetic(list->graph, n);
    }
    CHECK(false, "the collective at %zu is not waited for", start);
    return 0;
}

/* Of each layer, the all_gather of what was saved is hidden, and the reduce_scatter of the gradient; not the all_gather
 * of the gradient that both products behind it need. Norms' gradients are added meanwhile. */
static void collectives_of_backward_run_beside_products(void)
{
    for (int extent = 2; extent <= 4; extent += 2) {
        planned m = plan_transformer(LK_TRANSFORMER_GPT, extent == 2 ? "tensor=2" : "data=2,tensor=4", size, 0);
        const lk__plan_list *list = &m.r.plan->train;
        int                  hidden[LK__OP_COUNT] = {0};
        for (size_t i = list->end[LK_FORWARD]; i < list->end[LK_BACKWARD]; i++) {
            const lk__graph_node *n = node_at(list, i);
            if (lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && n->attrs.mesh == LK_AXIS_TENSOR)
                hidden[n->op] += hidden_behind(list, i) > 0;
        }
        CHECK(hidden[LK__OP_all_gather] >= 2 * LAYERS, "%d all_gathers", hidden[LK__OP_all_gather]);
        CHECK(hidden[LK__OP_reduce_scatter] >= 2 * LAYERS, "%d reduce_scatters", hidden[LK__OP_reduce_scatter]);
        CHECK(hidden[LK__OP_all_reduce] >= 2 * LAYERS, "%d all_reduces", hidden[LK__OP_all_reduce]);
        close_planned(&m);
    }
}

/* Collectives read and write the ranks' parts of each sample where they are. */
static void nothing_is_copied_into_another_order(void)
{
    for (int llama = 0; llama < 2; llama++) {
        planned m = plan_transformer(llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, "tensor=4", size, 0);
        const lk__plan_list *list = &m.r.plan->train;
        int                  gathers = 0;
        for (size_t i = 0; i < list->order_count; i++) {
            const lk__graph_node *n = node_at(list, i);
            CHECK(n->op != LK__OP_permute, "position %zu", i);
            gathers += n->op == LK__OP_all_gather && n->attrs.rows == 1;
        }
        CHECK(gathers >= 4 * LAYERS, "%d all_gathers", gathers);
        close_planned(&m);
    }
}

/* Gradients with respect to what several products read are added before their collective: of queries, keys and values
 * one, of gate and up one. */
static void summands_are_added_before_their_collective(void)
{
    for (int llama = 0; llama < 2; llama++) {
        planned m = plan_transformer(llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, "data=2,tensor=4", size, 0);
        const lk__plan_list *list = &m.r.plan->train;
        int                  sums = 0;
        for (size_t i = list->end[LK_FORWARD]; i < list->end[LK_BACKWARD]; i++) {
            const lk__graph_node *n = node_at(list, i);
            sums += n->op == LK__OP_reduce_scatter && n->attrs.mesh == LK_AXIS_TENSOR;
        }
        CHECK(sums == 2 * LAYERS, "%d reduce_scatters", sums);
        close_planned(&m);
    }
}

static void check_order(const planned *m)
{
    const lk__plan_list *list = &m->r.plan->train;
    const lk_graph      *g = list->graph;
    bool                *made = calloc(g->values_count, sizeof *made);
    REQUIRE(made);
    for (size_t i = 0; i < list->order_count; i++) {
        const lk__graph_node *n = node_at(list, i);
        for (int k = 0; k < n->inputs; k++)
            if (n->in[k] >= 0 && g->values[n->in[k]].kind == LK__VALUE_RESULT)
                CHECK(made[n->in[k]], "position %zu, %s: input %d is not made yet", i, lk__op_name(n->op), k);
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) made[n->out[k]] = true;
    }
    free(made);
}

static void nodes_come_behind_what_they_read(void)
{
    static const char *const meshes[] = {"tensor=2", "tensor=4", "data=2,tensor=2", "shard=2,tensor=2"};
    for (int i = 0; i < 8; i++) {
        planned m = plan_transformer(i % 2 ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA, meshes[i / 2], size, 0);
        check_order(&m);
        close_planned(&m);
    }
}

/* Without the axis, nothing moves: a collective that synchronises the batch is waited for where it was. */
static void other_lists_stay_as_they_are(void)
{
    planned              m = plan_transformer(LK_TRANSFORMER_GPT, "data=2", size, 0);
    const lk__plan_list *list = &m.r.plan->train;
    int                  last = -1;
    for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
        CHECK(list->order[i] > last, "position %zu", i);
        last = list->order[i];
    }
    close_planned(&m);
}

int main(void)
{
    RUN(collectives_of_backward_run_beside_products);
    RUN(nothing_is_copied_into_another_order);
    RUN(summands_are_added_before_their_collective);
    RUN(nodes_come_behind_what_they_read);
    RUN(other_lists_stay_as_they_are);
    return check_result();
}
