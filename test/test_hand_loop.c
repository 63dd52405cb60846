/* test_hand_loop.c - sections run by hand with several ranks: orders that are not the trainer's give the right gradients or are
 * refused, and ranks that start from different weights do not train.
 *
 * ctest: timeout 120, label threaded */
#include "comm_ranks.h"

#include <lockstep.h>

enum { ROWS = 4, IN = 3, OUT = 2 }; /* of one rank */

typedef struct net {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    double      x[ROWS * IN], y[ROWS * OUT];
} net;

/* y = W x + b and the squared error, in f64; each bucket holds one tensor. */
static lk_status make(const rank_test *t, net *n, int micro_batches, uint64_t seed)
{
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    *n = (net){0};
    REQUIRE(lk_graph_create(t->context, LK_F64, &n->graph) == LK_OK);
    lk_tensor x = lk_input(n->graph, "x", LK_F64, 2, ((int64_t[]){ROWS, IN}));
    lk_tensor y = lk_input(n->graph, "y", LK_F64, 2, ((int64_t[]){ROWS, OUT}));
    sgd.kind = LK_SGD;
    config.loss = lk_mse(lk_linear(x, "fc", OUT), y);
    config.optimizer = &sgd;
    config.parallel =
        (lk_parallel){.world = t->size, .rank = t->rank, .micro_batches = micro_batches, .bucket_bytes = 64};
    REQUIRE(lk_plan_create(n->graph, &config, &n->plan) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_store_create(n->plan, seed, &n->store) == LK_OK);
    lk_status status = lk_program_create(n->plan, n->store, t->comm, &n->program);
    if (status < 0) return status;
    REQUIRE(lk_program_bind(n->program, "x", n->x) == LK_OK && lk_program_bind(n->program, "y", n->y) == LK_OK);
    return LK_OK;
}

static void release(net *n)
{
    lk_program_free(n->program);
    lk_store_free(n->store);
    lk_plan_free(n->plan);
    lk_graph_free(n->graph);
}

static double number(int index) { return (double)(int64_t)(number_bits(11, (uint64_t)index) >> 40) * 0x1p-23 - 1; }

/* Samples of micro-batch `micro` of a rank. */
static void fill_net(net *n, int rank, int micro)
{
    for (int i = 0; i < ROWS * IN; i++) n->x[i] = number(1000 * rank + 100 * micro + i);
    for (int i = 0; i < ROWS * OUT; i++) n->y[i] = number(500000 + 1000 * rank + 100 * micro + i);
}

/* How far fc.weight's gradient is from the sum over all ranks' samples of micro-batches first … last, by its definition. */
static double error(const rank_test *t, const net *n, int first, int last)
{
    double        want[OUT * IN] = {0}, most = 0;
    lk_state      weight, bias;
    net           other;
    const double *have = lk_program_gradient(n->program, "fc.weight");
    REQUIRE(have && lk_store_find(n->store, "fc.weight", &weight) && lk_store_find(n->store, "fc.bias", &bias));
    for (int rank = 0; rank < t->size; rank++)
        for (int micro = first; micro <= last; micro++) {
            fill_net(&other, rank, micro);
            for (int row = 0; row < ROWS; row++)
                for (int o = 0; o < OUT; o++) {
                    double off = ((const double *)bias.data)[o] - other.y[row * OUT + o];
                    for (int i = 0; i < IN; i++)
                        off += ((const double *)weight.data)[o * IN + i] * other.x[row * IN + i];
                    for (int i = 0; i < IN; i++) want[o * IN + i] += 2 * off * other.x[row * IN + i];
                }
        }
    for (int i = 0; i < OUT * IN; i++) most = fmax(most, fabs(have[i] - want[i]));
    return most;
}

static lk_status backward(const rank_test *t, net *n, int micro)
{
    fill_net(n, t->rank, micro);
    REQUIRE(lk_program_step(n->program, &(lk_step){.step = 1, .count = ROWS, .rate = 0.1}) == LK_OK);
    REQUIRE(lk_program_run(n->program, LK_FORWARD) == LK_OK);
    return lk_program_run(n->program, LK_BACKWARD);
}

/* Over tcp, buckets travel while backward goes on; over shared memory only where a core is free. */
static void run_everywhere(void (*function)(rank_test *t))
{
    lk_comm_config tcp = LK_COMM_CONFIG_INIT;
    tcp.backend = "tcp";
    for (int size = 1; size <= 3; size++) {
        run_ranks(size, NULL, function, NULL);
        if (size > 1) run_ranks(size, &tcp, function, NULL);
    }
}

static void replace(rank_test *t)
{
    net n;
    REQUIRE(make(t, &n, 1, 0) == LK_OK, "%s", lk_context_error(t->context));
    for (int round = 0; round < 20; round++) {
        REQUIRE(backward(t, &n, 0) == LK_OK);
        REQUIRE(backward(t, &n, 1) == LK_OK, "%s", lk_context_error(t->context));
        REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
        CHECK(error(t, &n, 1, 1) < 1e-12, "off by %g", error(t, &n, 1, 1));
    }
    release(&n);
}

static void gradients_that_nobody_took_are_replaced_also_those_on_their_way(void) { run_everywhere(replace); }

static void accumulate(rank_test *t)
{
    net n;
    REQUIRE(make(t, &n, 2, 0) == LK_OK, "%s", lk_context_error(t->context));
    for (int micro = 0; micro < 3; micro++) {
        lk_no_sync(n.program, micro < 2);
        REQUIRE(backward(t, &n, micro) == LK_OK, "%s", lk_context_error(t->context));
    }
    REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
    CHECK(error(t, &n, 0, 2) < 1e-12, "off by %g", error(t, &n, 0, 2));
    lk_metrics m;
    lk_program_metrics(n.program, &m);
    CHECK(m.weight == 3.0 * t->size * ROWS * OUT, "weight %g", m.weight);

    /* The last may keep silent as well: then synchronising sends everything. */
    REQUIRE(lk_program_run(n.program, LK_UPDATE) == LK_OK);
    lk_no_sync(n.program, true);
    REQUIRE(backward(t, &n, 0) == LK_OK && backward(t, &n, 1) == LK_OK);
    REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
    CHECK(error(t, &n, 0, 1) < 1e-12, "off by %g", error(t, &n, 0, 1));
    release(&n);
}

static void no_sync_adds_up_what_all_micro_batches_of_all_ranks_give(void) { run_everywhere(accumulate); }

/* What has been added over ranks would be added over ranks again. */
static void forget(rank_test *t)
{
    net n;
    REQUIRE(make(t, &n, 2, 0) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(backward(t, &n, 0) == LK_OK);
    lk_status status = backward(t, &n, 1);
    if (t->size == 1) {
        CHECK(status == LK_OK && lk_program_run(n.program, LK_SYNC) == LK_OK && error(t, &n, 0, 1) < 1e-12);
    } else {
        CHECK(status == LK_EINVAL && strstr(lk_context_error(t->context), "lk_no_sync"), "%s",
              lk_context_error(t->context));
        CHECK(lk_program_run(n.program, LK_SYNC) == LK_OK && error(t, &n, 0, 0) < 1e-12);
    }
    release(&n);
}

static void adding_to_gradients_that_were_sent_is_refused(void) { run_everywhere(forget); }

static void differ(rank_test *t)
{
    net       n;
    lk_status status = make(t, &n, 1, t->rank == t->size - 1 ? 1 : 0);
    CHECK(status == LK_EMISMATCH && strstr(lk_context_error(t->context), "fc.weight") && !n.program, "%d: %s", status,
          lk_context_error(t->context));
    release(&n);
}

static void ranks_that_start_from_other_weights_are_refused(void)
{
    for (int size = 2; size <= 3; size++) run_ranks(size, NULL, differ, NULL);
}

int main(void)
{
    RUN(gradients_that_nobody_took_are_replaced_also_those_on_their_way);
    RUN(no_sync_adds_up_what_all_micro_batches_of_all_ranks_give);
    RUN(adding_to_gradients_that_were_sent_is_refused);
    RUN(ranks_that_start_from_other_weights_are_refused);
    return check_result();
}
