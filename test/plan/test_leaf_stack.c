/* test_leaf_stack.c - the sets of gradients that leaves need: a stack of sums of whole subtrees, compared with a stack
 * that is kept leaf by leaf, for every number of leaves and ranks; and the memory of plans, which grows with the depth
 * of the tree. */
#include "plan/leaf_stack.h"
#include "support.h"

/* Whether leaves first … first + count - 1 are a subtree of the tree over n, from its definition. */
static bool is_subtree(int n, int first, int count)
{
    int low = 0, high = n;
    while (high - low > count) {
        int left = 1;
        while (left * 2 < high - low) left *= 2;
        if (first < low + left)
            high = low + left;
        else
            low += left;
    }
    return low == first && high == first + count;
}

typedef struct naive_stack {
    int first[64], count[64], height;
} naive_stack;

/* Returns how often two sums were added. */
static int push_leaves(naive_stack *s, int n, int origin, int first, int count)
{
    int merges = 0;
    s->first[s->height] = first;
    s->count[s->height++] = count;
    while (s->height > 1 &&
           is_subtree(n, origin + s->first[s->height - 2], s->count[s->height - 2] + s->count[s->height - 1])) {
        s->height--;
        s->count[s->height - 1] += s->count[s->height];
        merges++;
    }
    return merges;
}

static void check_part(const lk_plan *p, int part, int *sets)
{
    lk__range   own = lk__plan_leaves(p, part);
    int         n = p->parallel.leaves, here = (int)lk__range_count(own);
    naive_stack naive = {.height = 0};
    for (int leaf = 0; leaf < here; leaf++) {
        CHECK(lk__leaf_set(p, part, leaf) == naive.height, "%d leaves, part %d, leaf %d", n, part, leaf);
        if (naive.height + 1 > *sets) *sets = naive.height + 1;
        int merges = push_leaves(&naive, n, (int)own.first, leaf, 1);
        CHECK(lk__leaf_merges(p, part, leaf, 1) == merges, "%d leaves, part %d, leaf %d", n, part, leaf);
    }
    lk__leaf_sum sums[64];
    int          height = lk__leaf_stack(p, part, here, sums);
    CHECK(height == naive.height);
    for (int i = 0; i < height; i++)
        CHECK(sums[i].first == naive.first[i] && sums[i].count == naive.count[i] && sums[i].set == i);
}

/* The same where each micro-batch puts the largest subtrees that it has whole onto the stack. */
static void check_runs(const lk_plan *p, int part, int runs, int sets)
{
    lk__range   own = lk__plan_leaves(p, part);
    naive_stack naive = {.height = 0};
    for (int i = 0; i < runs; i++) {
        lk__range run = lk__split_part(lk__range_count(own), runs, i);
        for (int leaf = (int)run.first, count; leaf < run.end; leaf += count) {
            count = lk__leaf_subtree_of(p, part, leaf, (int)run.end);
            CHECK(lk__leaf_set(p, part, leaf) == naive.height && naive.height < sets);
            int merges = push_leaves(&naive, p->parallel.leaves, (int)own.first, leaf, count);
            CHECK(lk__leaf_merges(p, part, leaf, count) == merges);
        }
    }
    CHECK(naive.height == lk__leaf_stack(p, part, (int)lk__range_count(own), NULL));
}

static void the_stack_is_that_of_leaves_one_after_the_other(void)
{
    for (int leaves = 1; leaves <= 64; leaves++)
        for (int world = 1; world <= leaves && world <= 9; world++) {
            lk_plan p = {.parallel = {.leaves = leaves, .micro_batches = 1}, .batch_leaves = true};
            int     sets = 1;
            p.mesh = lk__mesh_data(world, 0);
            for (int part = 0; part < world; part++) check_part(&p, part, &sets);
            CHECK(lk__leaf_sets(&p) == sets, "%d leaves, %d ranks: %d sets, expected %d", leaves, world,
                  lk__leaf_sets(&p), sets);
            CHECK(sets <= 2 * lk__tree_depth(lk__plan_most_leaves(&p)));
            for (int part = 0; part < world; part++)
                for (int runs = 1; runs <= lk__plan_most_leaves(&p); runs++) check_runs(&p, part, runs, sets);
        }
}

/* ---- memory ---- */

static size_t gradient_bytes(rig *r, bool batch_norm, bool sync, lk_parallel parallel)
{
    lk_graph           *graph;
    lk_plan            *plan;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    int64_t             capacity = lk_parallel_capacity(&parallel, 64);
    REQUIRE(lk_graph_create(r->context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){capacity, 6}));
    lk_tensor t = lk_input(graph, "t", LK_F32, 2, ((int64_t[]){capacity, 3}));
    lk_tensor h = lk_layer_norm(lk_linear(x, "a", 6), "norm");
    if (batch_norm) h = lk_batch_norm(h, "batch");
    config.loss = lk_mse(lk_linear(h, "b", 3), t);
    config.optimizer = &adam;
    config.parallel = parallel;
    config.sync_batch_norm = sync;
    REQUIRE(lk_plan_create(graph, &config, &plan) == LK_OK, "%s", lk_context_error(r->context));
    size_t bytes = lk_plan_memory(plan, LK_MEMORY_GRADIENTS);
    lk_plan_free(plan);
    lk_graph_free(graph);
    return bytes;
}

static void memory_grows_with_the_depth_of_the_tree(void)
{
    rig r = rig_open(LK_F32, 1);
    for (int batch_norm = 0; batch_norm < 2; batch_norm++) { /* as one batch, and one after the other */
        size_t one = gradient_bytes(&r, batch_norm, false, (lk_parallel){.leaves = 1});
        CHECK(one > 0 && gradient_bytes(&r, batch_norm, false, (lk_parallel){0}) == one);
        for (int depth = 1; depth <= 6; depth++) {
            lk_parallel leaves = {.leaves = 1 << depth};
            CHECK(gradient_bytes(&r, batch_norm, false, leaves) == (size_t)(depth + 1) * one, "depth %d", depth);
            leaves.micro_batches = 2;
            CHECK(gradient_bytes(&r, batch_norm, false, leaves) == (size_t)(depth + 1) * one, "depth %d", depth);
        }
    }
    rig_close(&r);
}

int main(void)
{
    RUN(the_stack_is_that_of_leaves_one_after_the_other);
    RUN(memory_grows_with_the_depth_of_the_tree);
    return check_result();
}
