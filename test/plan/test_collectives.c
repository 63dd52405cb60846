/* test_collectives.c - collectives are instructions: where buckets stand in the list, what memory a collective in
 * flight keeps, and the gradients of all_reduce, all_gather and reduce_scatter against one rank that has the whole
 * batch, for ranks as threads and for leaves.
 *
 * ctest: timeout 300, label threaded, ranks 3 */
#include "comm/comm.h"
#include "comm_ranks.h"
#include "copies.h"
#include "plan/plan.h"

#include <lockstep.h>

enum { ROWS = 4, MOST = 3, LEAVES = 6, IN = 5, HIDDEN = 3, OUT = 2, BATCH = ROWS * MOST };

/* ---- a model with a sum, or a gathered value, over the whole batch ---- */

typedef enum kind { WHOLE, REDUCED, GATHERED, SCATTERED } kind; /* WHOLE: by operations of one rank */

typedef struct setting {
    kind kind;
    int  leaves;
    int  parts;      /* above 0: the sum is multiplied by so many rows of a parameter, which are added afterwards */
    bool one_by_one; /* leaves do not run as one batch */
    bool apart;      /* kernels run between start and wait */
} setting;

static double number(int index) { return (double)(int64_t)(number_bits(5, (uint64_t)index) >> 40) * 0x1p-23 - 1; }

static lk_tensor wrap(lk_graph *g, int value) { return (lk_tensor){g, value}; }

/* Sum over all samples of h. As a gather: the parts' sums, which are added afterwards. As a reduce_scatter: every part
 * gets one row of the product, and gathers those of the others. */
static lk_tensor total(lk_graph *g, setting s, int parts, lk_tensor h, lk_tensor *between)
{
    lk_tensor    sum = lk_sum(h, .axes = (int[]){0}, .axes_count = 1);
    lk__op_attrs attrs = {.order = s.leaves ? LK__ORDER_LEAVES : LK__ORDER_RANKS};
    lk__op       op = s.kind == GATHERED    ? LK__OP_all_gather
                      : s.kind == SCATTERED ? LK__OP_reduce_scatter
                                            : LK__OP_all_reduce;
    if (s.parts) sum = lk_mul(lk_parameter(g, "rows", 2, ((int64_t[]){s.parts, HIDDEN})), sum);
    if (s.kind == WHOLE) return s.parts ? lk_sum(sum, .axes = (int[]){0}, .axes_count = 1) : sum;
    if (s.kind != REDUCED) attrs.parts = parts;
    int started = lk__emit1(g, LK_HERE, op, &attrs, &sum.id, 1);
    REQUIRE(started >= 0, "%s", g->error);
    if (s.apart) *between = lk_tanh(lk_linear(*between, "between", HIDDEN));
    lk_tensor all = wrap(g, lk__emit1(g, LK_HERE, LK__OP_wait, NULL, (int[]){started, sum.id}, 2));
    if (s.kind == SCATTERED) all = wrap(g, lk__emit_all_gather(g, LK_HERE, &attrs, all.id));
    return s.kind != REDUCED ? lk_sum(all, .axes = (int[]){0}, .axes_count = 1) : all;
}

typedef struct net {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    double      x[BATCH * IN], t[BATCH * OUT];
} net;

static void make(const rank_test *r, net *n, setting s, int64_t capacity, lk_parallel parallel)
{
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    int                 parts = s.leaves ? s.leaves : parallel.world;
    memset(n, 0, sizeof *n);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->graph) == LK_OK);
    lk_tensor x = lk_input(n->graph, "x", LK_F64, 2, ((int64_t[]){capacity, IN}));
    lk_tensor t = lk_input(n->graph, "t", LK_F64, 2, ((int64_t[]){capacity, OUT}));
    lk_tensor h = lk_linear(x, "first", HIDDEN), other = h;
    lk_tensor sum = total(n->graph, s, parts, h, &other);
    if (!s.apart || s.kind == WHOLE) other = lk_tanh(lk_linear(other, "between", HIDDEN));
    lk_tensor y = lk_linear(lk_mul(other, lk_tanh(sum)), "last", OUT);
    sgd.kind = LK_SGD;
    config.loss = lk_mse(y, t);
    config.outputs = &y;
    config.outputs_count = 1;
    config.optimizer = &sgd;
    config.parallel = parallel;
    REQUIRE(lk__plan_create(n->graph, &config, s.one_by_one, &n->plan) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_store_create(n->plan, 3, &n->store) == LK_OK);
    REQUIRE(lk_program_create(n->plan, n->store, parallel.world > 1 ? r->comm : NULL, &n->program) == LK_OK, "%s",
            lk_context_error(r->context));
    REQUIRE(lk_program_bind(n->program, "x", n->x) == LK_OK && lk_program_bind(n->program, "t", n->t) == LK_OK);
}

static void release(net *n)
{
    lk_program_free(n->program);
    lk_store_free(n->store);
    lk_plan_free(n->plan);
    lk_graph_free(n->graph);
}

/* Rows first … first + count of the batch. */
static void fill_rows(net *n, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count * IN; i++) n->x[i] = number((int)(first * IN + i));
    for (int64_t i = 0; i < count * OUT; i++) n->t[i] = number((int)(100000 + first * OUT + i));
}

static void compare(const rank_test *r, net *own, net *whole, const char *what)
{
    for (size_t i = 0; i < lk_store_count(whole->store); i++) {
        lk_state s = lk_store_at(whole->store, i);
        double   a[64], b[64], worst = 0, largest = 0;
        size_t   bytes = state_bytes(&s);
        REQUIRE(bytes <= sizeof a && lk_program_gradient_read(whole->program, s.name, a, bytes) == LK_OK);
        REQUIRE(lk_program_gradient_read(own->program, s.name, b, bytes) == LK_OK, "%s", lk_context_error(r->context));
        for (int64_t k = 0; k < state_elements(&s); k++) {
            worst = fmax(worst, fabs(a[k] - b[k]));
            largest = fmax(largest, fabs(a[k]));
        }
        CHECK(worst <= 1e-12 * largest, "%s, rank %d of %d: the gradient of %s differs by %g of %g", what, r->rank,
              r->size, s.name, worst, largest);
    }
}

/* The gradients of all ranks' program, and of one rank that has the whole batch. */
static void check_setting(rank_test *r, setting s, const char *what)
{
    static const int totals[] = {BATCH, 7, 1};
    lk_parallel      parallel = {.world = r->size, .rank = r->rank, .leaves = s.leaves, .bucket_bytes = 64};
    lk__split_job    job = {r->size, r->rank, s.leaves, 1};
    net              own, whole;
    make(r, &own, s, lk_parallel_capacity(&parallel, BATCH), parallel);
    make(r, &whole, (setting){.kind = WHOLE, .parts = s.parts}, BATCH, (lk_parallel){0});
    for (int i = 0; i < 3; i++) {
        lk__range rows = lk__split_share(&job, totals[i]);
        lk_step   step = {.step = 1, .count = lk__range_count(rows), .total = totals[i]};
        fill_rows(&own, rows.first, step.count);
        fill_rows(&whole, 0, totals[i]);
        REQUIRE(lk_program_compute(own.program, &step) == LK_OK, "%s: %s", what, lk_context_error(r->context));
        step.count = totals[i];
        REQUIRE(lk_program_compute(whole.program, &step) == LK_OK, "%s", lk_context_error(r->context));
        compare(r, &own, &whole, what);
    }
    release(&own);
    release(&whole);
}

static void check_ranks(rank_test *r)
{
    check_setting(r, (setting){.kind = REDUCED}, "all_reduce");
    check_setting(r, (setting){.kind = REDUCED, .apart = true}, "all_reduce beside kernels");
    check_setting(r, (setting){.kind = GATHERED}, "all_gather");
    check_setting(r, (setting){.kind = GATHERED, .apart = true}, "all_gather beside kernels");
    check_setting(r, (setting){.kind = REDUCED, .leaves = LEAVES}, "all_reduce over leaves");
    check_setting(r, (setting){.kind = REDUCED, .leaves = LEAVES, .one_by_one = true},
                  "all_reduce over leaves in turn");
    check_setting(r, (setting){.kind = GATHERED, .leaves = LEAVES}, "all_gather over leaves");
    check_setting(r, (setting){.kind = SCATTERED, .parts = r->size}, "reduce_scatter");
    check_setting(r, (setting){.kind = SCATTERED, .parts = r->size, .apart = true}, "reduce_scatter beside kernels");
    check_setting(r, (setting){.kind = SCATTERED, .parts = LEAVES, .leaves = LEAVES}, "reduce_scatter over leaves");
}

static void run_everywhere(void (*function)(rank_test *r))
{
    lk_comm_config tcp = LK_COMM_CONFIG_INIT;
    tcp.backend = "tcp";
    for (int size = 1; size <= MOST; size++) run_ranks(size, NULL, function, NULL);
    run_ranks(2, &tcp, function, NULL);
    run_ranks(3, &tcp, function, NULL);
}

static void gradients_are_those_of_one_rank_with_the_whole_batch(void) { run_everywhere(check_ranks); }

/* Evaluation with a collective is collective too. */
static void check_evaluation(rank_test *r)
{
    lk_parallel parallel = {.world = r->size, .rank = r->rank};
    net         own, whole;
    double      a[BATCH * OUT], b[BATCH * OUT];
    lk_step     step = {.step = 1, .count = ROWS};
    make(r, &own, (setting){.kind = REDUCED}, ROWS, parallel);
    make(r, &whole, (setting){.kind = WHOLE}, BATCH, (lk_parallel){0});
    fill_rows(&own, r->rank * ROWS, ROWS);
    fill_rows(&whole, 0, ROWS * r->size);
    REQUIRE(lk_program_step(own.program, &step) == LK_OK && lk_program_run(own.program, LK_EVALUATE) == LK_OK, "%s",
            lk_context_error(r->context));
    step.count = ROWS * r->size;
    REQUIRE(lk_program_step(whole.program, &step) == LK_OK && lk_program_run(whole.program, LK_EVALUATE) == LK_OK);
    REQUIRE(lk_program_output_read(own.program, 0, b, ROWS * OUT * sizeof *b) == LK_OK);
    REQUIRE(lk_program_output_read(whole.program, 0, a, (size_t)(ROWS * OUT * r->size) * sizeof *a) == LK_OK);
    for (int i = 0; i < ROWS * OUT; i++)
        CHECK(fabs(a[r->rank * ROWS * OUT + i] - b[i]) < 1e-12, "rank %d: output %d", r->rank, i);
    release(&own);
    release(&whole);
}

static void evaluation_sums_over_ranks_too(void) { run_everywhere(check_evaluation); }

/* ---- plans ---- */

static bool overlap(size_t a, size_t a_bytes, size_t b, size_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

static size_t bytes_of(const lk__graph_value *v)
{
    return (size_t)lk__shape_elements(&v->shape) * lk_dtype_size(v->shape.dtype);
}

/* Whether the node writes into that range of the region. */
static bool writes(const lk__plan_list *list, const lk__graph_node *n, lk__plan_region region, size_t at, size_t bytes)
{
    for (int i = 0; i < n->outputs; i++) {
        if (n->out[i] < 0) continue;
        const lk__plan_place *p = &list->places[n->out[i]];
        if (p->region == region && overlap(p->offset, bytes_of(&list->graph->values[n->out[i]]), at, bytes))
            return true;
    }
    return false;
}

/* The node of the bucket with that operation, and its position. */
static size_t find_bucket(const lk__plan_list *list, lk__op op, size_t bucket)
{
    for (size_t i = 0; i < list->order_count; i++) {
        const lk__graph_node  *n = &list->graph->nodes[list->order[i]];
        const lk__graph_value *v = n->inputs ? &list->graph->values[n->in[0]] : NULL;
        if (n->op == op && v->kind == LK__VALUE_BUCKET && (size_t)v->state == bucket) return i;
    }
    return SIZE_MAX;
}

static void check_buckets(const lk_plan *plan)
{
    const lk__plan_list *list = &plan->train;
    size_t               covered = 0;
    for (size_t b = 0; b < plan->buckets_count; b++) {
        const lk__plan_bucket *bucket = &plan->buckets[b];
        size_t start = find_bucket(list, LK__OP_all_reduce, b), wait = find_bucket(list, LK__OP_wait, b), last = 0;
        REQUIRE(start < list->order_count && wait < list->order_count, "bucket %zu", b);
        CHECK(start >= list->end[LK_FORWARD] && start < list->end[LK_BACKWARD], "bucket %zu", b);
        CHECK(wait >= list->end[LK_BACKWARD] && wait < list->end[LK_SYNC], "bucket %zu", b);
        for (size_t i = 0; i < list->end[LK_BACKWARD]; i++)
            if (i != start &&
                writes(list, &list->graph->nodes[list->order[i]], LK__IN_GRADIENTS, bucket->offset, bucket->bytes))
                last = i;
        for (size_t i = last + 1; i < start; i++) /* one kernel may complete several */
            CHECK(find_bucket(list, LK__OP_all_reduce, b - 1) >= i, "bucket %zu is complete at %zu and starts at %zu",
                  b, last, start);
        CHECK(start > last, "bucket %zu is complete at %zu and starts at %zu", b, last, start);
        CHECK(bucket->offset == covered);
        covered += bucket->bytes;
    }
    CHECK(covered == plan->gradient_bytes);
}

static void plan_net(rank_test *r, lk_parallel parallel, setting s, lk_plan **plan)
{
    net                 n;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    REQUIRE(lk_graph_create(r->context, LK_F64, &n.graph) == LK_OK);
    lk_tensor x = lk_input(n.graph, "x", LK_F64, 2, ((int64_t[]){16, IN}));
    lk_tensor t = lk_input(n.graph, "t", LK_F64, 2, ((int64_t[]){16, OUT}));
    lk_tensor h = lk_linear(x, "first", HIDDEN), other = h;
    lk_tensor sum = total(n.graph, s, parallel.leaves ? parallel.leaves : parallel.world, h, &other);
    config.loss = lk_mse(lk_linear(lk_mul(other, sum), "last", OUT), t);
    config.optimizer = &sgd;
    config.parallel = parallel;
    REQUIRE(lk_plan_create(n.graph, &config, plan) == LK_OK, "%s", lk_context_error(r->context));
    lk_graph_free(n.graph);
}

static void check_plans(rank_test *r)
{
    lk_plan *plan;
    plan_net(r, (lk_parallel){.world = 3, .bucket_bytes = 64}, (setting){.kind = WHOLE}, &plan);
    CHECK(plan->buckets_count == 4 && plan->reduces);
    check_buckets(plan);
    lk_plan_free(plan);
    plan_net(r, (lk_parallel){.world = 3}, (setting){.kind = REDUCED, .apart = true}, &plan);
    CHECK(plan->buckets_count == 1 && plan->syncs == 2, "%d", plan->syncs);
    check_buckets(plan);
    lk_plan_free(plan);
    plan_net(r, (lk_parallel){.leaves = 4}, (setting){.kind = WHOLE}, &plan);
    check_buckets(plan);
    lk_plan_free(plan);
    plan_net(r, (lk_parallel){.micro_batches = 2}, (setting){.kind = WHOLE}, &plan); /* alone: nothing is reduced */
    CHECK(!plan->reduces && find_bucket(&plan->train, LK__OP_all_reduce, 0) == SIZE_MAX);
    CHECK(plan->train.end[LK_SYNC] == plan->train.end[LK_BACKWARD]);
    lk_plan_free(plan);
}

static void a_bucket_starts_where_it_is_complete_and_is_waited_for_in_sync(void)
{
    run_ranks(1, NULL, check_plans, NULL);
}

/* From a start to its wait nothing else writes what the collective reads and writes. */
static void check_flight(rank_test *r)
{
    for (kind k = REDUCED; k <= SCATTERED; k++) {
        lk_plan *plan;
        int      seen = 0;
        plan_net(r, (lk_parallel){.world = 2}, (setting){.kind = k, .apart = true, .parts = k == SCATTERED ? 2 : 0},
                 &plan);
        const lk__plan_list *list = &plan->train;
        for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
            const lk__graph_node *start = &list->graph->nodes[list->order[i]];
            size_t                wait = i + 1;
            if (lk__op_find(start->op)->runs != LK__RUNS_COLLECTIVE) continue;
            while (wait < list->order_count && (list->graph->nodes[list->order[wait]].op != LK__OP_wait ||
                                                list->graph->nodes[list->order[wait]].in[0] != start->out[0]))
                wait++;
            REQUIRE(wait < list->order_count);
            const lk__graph_node *end = &list->graph->nodes[list->order[wait]];
            int                   flying[] = {start->in[0], start->out[0]};
            CHECK(list->places[end->out[0]].offset == list->places[start->out[0]].offset);
            for (int v = 0; v < 2; v++)
                for (size_t j = i + 1; j < wait; j++) {
                    const lk__plan_place *p = &list->places[flying[v]];
                    CHECK(!writes(list, &list->graph->nodes[list->order[j]], p->region, p->offset,
                                  bytes_of(&list->graph->values[flying[v]])),
                          "instruction %zu overwrites a collective in flight", j);
                    seen++;
                }
        }
        CHECK(seen > 0, "no kernel runs beside a collective");
        lk_plan_free(plan);
    }
}

static void memory_in_flight_is_not_overwritten(void) { run_ranks(1, NULL, check_flight, NULL); }

static void check_errors(rank_test *r)
{
    lk_graph *g;
    REQUIRE(lk_graph_create(r->context, LK_F64, &g) == LK_OK);
    lk_tensor x = lk_input(g, "x", LK_F64, 2, ((int64_t[]){16, IN}));
    CHECK(lk__emit_all_reduce(g, LK_HERE, NULL, x.id) < 0);
    CHECK(strstr(g->error, "all_reduce: x has shape (16*, 5); expected a shape without a batch axis"), "%s", g->error);
    lk_graph_free(g);
    REQUIRE(lk_graph_create(r->context, LK_F64, &g) == LK_OK);
    lk_tensor w = lk_parameter(g, "w", 1, ((int64_t[]){IN}));
    CHECK(lk__emit_all_gather(g, LK_HERE, &(lk__op_attrs){0}, w.id) < 0);
    CHECK(strstr(g->error, "all_gather: 0 parts of (5)"), "%s", g->error);
    lk_graph_free(g);
    REQUIRE(lk_graph_create(r->context, LK_F64, &g) == LK_OK);
    w = lk_parameter(g, "w", 1, ((int64_t[]){IN}));
    CHECK(lk__emit_reduce_scatter(g, LK_HERE, &(lk__op_attrs){.parts = 4}, w.id) < 0);
    CHECK(strstr(g->error, "reduce_scatter: x has shape (5); its first axis must have size 4"), "%s", g->error);
    lk_graph_free(g);
    REQUIRE(lk_graph_create(r->context, LK_F64, &g) == LK_OK);
    w = lk_parameter(g, "w", 0, NULL);
    int most = lk__emit_all_reduce(g, LK_HERE, &(lk__op_attrs){.reduction = LK_MAX}, w.id), gradients[1];
    REQUIRE(most >= 0);
    CHECK(lk__graph_grad(g, most, gradients) < 0);
    CHECK(strstr(g->error, "all_reduce has a gradient only with the sum reduction"), "%s", g->error);
    lk_graph_free(g);
}

static void operands_that_do_not_fit_are_refused(void) { run_ranks(1, NULL, check_errors, NULL); }

/* ---- whether collectives overlap with kernels ---- */

static void check_overlap(rank_test *r)
{
    bool tcp = strcmp(lk_comm_backend(r->comm), "tcp") == 0;
    CHECK(lk__comm_overlaps(r->comm, 1 << 20) == tcp); /* no machine has a core free beside that many threads */
    CHECK(lk__comm_overlaps(r->comm, -1));
}

static void the_backend_decides_whether_collectives_overlap(void)
{
    lk_comm_config tcp = LK_COMM_CONFIG_INIT;
    tcp.backend = "tcp";
    run_ranks(2, NULL, check_overlap, NULL);
    run_ranks(2, &tcp, check_overlap, NULL);
}

int main(void)
{
    RUN(gradients_are_those_of_one_rank_with_the_whole_batch);
    RUN(evaluation_sums_over_ranks_too);
    RUN(a_bucket_starts_where_it_is_complete_and_is_waited_for_in_sync);
    RUN(memory_in_flight_is_not_overwritten);
    RUN(operands_that_do_not_fit_are_refused);
    RUN(the_backend_decides_whether_collectives_overlap);
    return check_result();
}
