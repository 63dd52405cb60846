/* test_node_factors.c - the lines of factors of the nodes of whole plans: they fit the shapes, and say along which axis
 * each result has the samples, as the shape rules do. */
#include "schedule_plans.h"

#include "graph/factor.h"

/* The factor that the samples are, in the inputs of a node; -1: they have none. */
static int factor_of_samples(const lk_graph *g, const lk__graph_node *n, const lk__factors *f)
{
    for (int i = 0; i < n->inputs; i++) {
        int factor = n->in[i] < 0 ? -1 : lk__factor_of_samples(f->in[i], g->values[n->in[i]].shape.count_axis);
        if (factor >= 0) return factor;
    }
    return -1;
}

static void check_node(const layout *l, const lk_graph *g, const lk__graph_node *n)
{
    lk__factors f;
    char        why[128], text[256];
    const char *wrong = lk__node_factors(g, n, &f, why);
    lk__node_text(g, n, text, sizeof text);
    CHECK(!wrong, "%s: %s: %s", l->name, text, wrong);
    if (wrong || strcmp(lk__op_find(n->op)->factors, "-") == 0) return;
    int samples = factor_of_samples(g, n, &f);
    for (int i = 0; i < n->outputs && samples >= 0; i++) {
        if (n->out[i] < 0) continue;
        const lk__graph_shape *s = &g->values[n->out[i]].shape;
        int                    axis = -1;
        for (int d = 0; d < s->rank; d++)
            if (f.out[i][d].segments == 1 && f.out[i][d].segment[0].factor[0] == samples) axis = d;
        CHECK(axis == s->count_axis, "%s: %s: output %d has the samples along axis %d; its factors say %d", l->name,
              text, i, s->count_axis, axis);
    }
}

static void lines_fit_the_nodes_of_plans(void)
{
    for (int i = 0; i < LAYOUTS; i++) {
        planned p = open_plan(&layouts[i], 0);
        for (int list = 0; list < 2; list++) {
            const lk_graph *g = list ? p.plan->evaluate.graph : p.plan->train.graph;
            for (size_t k = 0; g && k < g->nodes_count; k++)
                if (!g->nodes[k].dead) check_node(&layouts[i], g, &g->nodes[k]);
        }
        close_plan(&p);
    }
}

int main(void)
{
    RUN(lines_fit_the_nodes_of_plans);
    return check_result();
}
