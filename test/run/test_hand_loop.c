/* test_hand_loop.c - sections run one by one, with one rank and with several: orders that are not the trainer's give
 * the right gradients or are rejected, ids out of range are named and change nothing, gradients reduced by other means
 * train like the program's, and ranks that start from different weights do not train.
 *
 * ctest: timeout 120, ranks 3, label threaded */
#include "comm_ranks.h"
#include "copies.h"
#include "plan/plan.h"

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

/* How far fc.weight's gradient is from the sum over all ranks' samples of micro-batches first … last, by its
 * definition. */
static double error(const rank_test *t, const net *n, int first, int last)
{
    double        want[OUT * IN] = {0}, most = 0;
    net           other;
    const double *have = gradient_copy(n->program, n->store, "fc.weight");
    const double *weight = state_copy(n->store, "fc.weight"), *bias = state_copy(n->store, "fc.bias");
    REQUIRE(have);
    for (int rank = 0; rank < t->size; rank++)
        for (int micro = first; micro <= last; micro++) {
            fill_net(&other, rank, micro);
            for (int row = 0; row < ROWS; row++)
                for (int o = 0; o < OUT; o++) {
                    double off = bias[o] - other.y[row * OUT + o];
                    for (int i = 0; i < IN; i++) off += weight[o * IN + i] * other.x[row * IN + i];
                    for (int i = 0; i < IN; i++) want[o * IN + i] += 2 * off * other.x[row * IN + i];
                }
        }
    for (int i = 0; i < OUT * IN; i++) most = fmax(most, fabs(have[i] - want[i]));
    return most;
}

static lk_status backward_of(const rank_test *t, net *n, int micro, int64_t count)
{
    fill_net(n, t->rank, micro);
    REQUIRE(lk_program_step(n->program, &(lk_step){.step = 1, .count = count, .rate = 0.1}) == LK_OK);
    REQUIRE(lk_program_run(n->program, LK_FORWARD) == LK_OK);
    return lk_program_run(n->program, LK_BACKWARD);
}

static lk_status backward(const rank_test *t, net *n, int micro) { return backward_of(t, n, micro, ROWS); }

/* Over tcp, buckets are reduced while backward continues; in shared memory only where a core is free. */
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

static void unused_gradients_are_replaced_also_those_in_flight(void) { run_everywhere(replace); }

static void accumulate(rank_test *t)
{
    net n;
    REQUIRE(make(t, &n, 2, 0) == LK_OK, "%s", lk_context_error(t->context));
    for (int micro = 0; micro < 3; micro++) {
        lk_program_no_sync(n.program, micro < 2);
        REQUIRE(backward(t, &n, micro) == LK_OK, "%s", lk_context_error(t->context));
    }
    REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
    CHECK(error(t, &n, 0, 2) < 1e-12, "off by %g", error(t, &n, 0, 2));
    lk_metrics m;
    lk_program_metrics(n.program, &m);
    CHECK(m.weight == 3.0 * t->size * ROWS * OUT, "weight %g", m.weight);

    /* With no_sync for the last one as well, LK_SYNC reduces everything. */
    REQUIRE(lk_program_run(n.program, LK_UPDATE) == LK_OK);
    lk_program_no_sync(n.program, true);
    REQUIRE(backward(t, &n, 0) == LK_OK && backward(t, &n, 1) == LK_OK);
    REQUIRE(lk_program_run(n.program, LK_SYNC) == LK_OK);
    CHECK(error(t, &n, 0, 1) < 1e-12, "off by %g", error(t, &n, 0, 1));
    release(&n);
}

static void no_sync_adds_the_gradients_of_all_micro_batches_and_ranks(void) { run_everywhere(accumulate); }

/* Gradients that were reduced over ranks would be reduced again. */
static void add_after_sending(rank_test *t)
{
    net n;
    REQUIRE(make(t, &n, 2, 0) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(backward(t, &n, 0) == LK_OK);
    lk_status status = backward(t, &n, 1);
    if (t->size == 1) {
        CHECK(status == LK_OK && lk_program_run(n.program, LK_SYNC) == LK_OK && error(t, &n, 0, 1) < 1e-12);
    } else {
        CHECK(status == LK_EINVAL && strstr(lk_context_error(t->context), "lk_program_no_sync"), "%s",
              lk_context_error(t->context));
        CHECK(lk_program_run(n.program, LK_SYNC) == LK_OK && error(t, &n, 0, 0) < 1e-12);
    }
    release(&n);
}

static void adding_to_gradients_that_were_sent_is_rejected(void) { run_everywhere(add_after_sending); }

static lk_status run_step(const rank_test *t, net *n, int micro)
{
    lk_status status = backward(t, n, micro);
    return status < 0 ? status : lk_program_run(n->program, LK_UPDATE);
}

#define CHECK_ERROR(t, call, code, expected)                                                                         \
    do {                                                                                                         \
        lk_status got = (call);                                                                                 \
        CHECK(got == (code) && strstr(lk_context_error((t)->context), expected), "%s: %d: %s", #call, (int)got,   \
              lk_context_error((t)->context));                                                                   \
    } while (0)

static void run_out_of_order(rank_test *t)
{
    net n, straight;
    REQUIRE(make(t, &n, 1, 0) == LK_OK && make(t, &straight, 1, 0) == LK_OK, "%s", lk_context_error(t->context));
    uint64_t      before = lk_store_hash(n.store);
    const lk_step step = {.step = 1, .count = ROWS, .rate = 0.1};
    fill_net(&n, t->rank, 0);
    REQUIRE(lk_program_step(n.program, &step) == LK_OK);
    CHECK_ERROR(t, lk_program_run(n.program, LK_UPDATE), LK_EINVAL, "LK_FORWARD, LK_BACKWARD, LK_UPDATE");
    CHECK_ERROR(t, lk_program_run(n.program, LK_BACKWARD), LK_EINVAL, "without its LK_FORWARD");
    CHECK(lk_program_run(n.program, LK_FORWARD) == LK_OK && lk_program_run(n.program, LK_EVALUATE) == LK_OK);
    CHECK_ERROR(t, lk_program_run(n.program, LK_BACKWARD), LK_EINVAL, "after LK_EVALUATE");
    CHECK_ERROR(t, lk_program_run(n.program, LK_SYNC), LK_EINVAL, "LK_BACKWARD");
    CHECK_ERROR(t, lk_program_run(n.program, LK_UPDATE), LK_EINVAL, "has no gradients");
    CHECK(lk_store_hash(n.store) == before);

    /* Evaluating between LK_SYNC and LK_UPDATE is allowed. */
    REQUIRE(backward(t, &n, 0) == LK_OK && lk_program_run(n.program, LK_SYNC) == LK_OK);
    CHECK_ERROR(t, lk_program_run(n.program, LK_BACKWARD), LK_EINVAL, "without its LK_FORWARD");
    REQUIRE(lk_program_step(n.program, &(lk_step){.step = 1, .count = 1, .rate = 0.1}) == LK_OK);
    REQUIRE(lk_program_run(n.program, LK_EVALUATE) == LK_OK && lk_program_run(n.program, LK_UPDATE) == LK_OK);
    REQUIRE(run_step(t, &straight, 0) == LK_OK);
    CHECK(lk_store_hash(n.store) == lk_store_hash(straight.store) && lk_store_hash(n.store) != before);
    CHECK_ERROR(t, lk_program_run(n.program, LK_UPDATE), LK_EINVAL, "has no gradients");
    release(&n);
    release(&straight);
}

static void sections_in_another_order_are_rejected_with_the_right_order(void) { run_everywhere(run_out_of_order); }

/* ---- ids out of range ---- */

enum { TOKENS = 3, WORDS = 11, CLASSES = 5, SAMPLES = 12 }; /* most samples of one rank */

typedef struct reader {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    int32_t     ids[SAMPLES * TOKENS], labels[SAMPLES];
    int64_t     sample_ids[SAMPLES];
} reader;

typedef struct reader_case {
    lk_parallel parallel;
    int64_t     capacity;
    bool        one_by_one; /* leaves do not run as one batch */
} reader_case;

static void fill_reader(reader *r, int rank)
{
    for (int i = 0; i < SAMPLES; i++) {
        r->sample_ids[i] = 1000 * rank + 2 * i;
        r->labels[i] = (rank + i) % CLASSES;
        for (int k = 0; k < TOKENS; k++) r->ids[i * TOKENS + k] = (7 * rank + 5 * i + k) % WORDS;
    }
    r->labels[1] = -100;
}

static void make_reader(const rank_test *t, reader *r, reader_case c)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    *r = (reader){0};
    c.parallel.world = t->size;
    c.parallel.rank = t->rank;
    REQUIRE(lk_graph_create(t->context, LK_F32, &r->graph) == LK_OK);
    lk_tensor ids = lk_input(r->graph, "ids", LK_I32, 2, ((int64_t[]){c.capacity, TOKENS}));
    lk_tensor labels = lk_input(r->graph, "labels", LK_I32, 1, &c.capacity);
    lk_tensor x = lk_flatten(lk_embedding(ids, "words", WORDS, 4));
    config.loss = lk_cross_entropy(lk_linear(x, "fc", CLASSES), labels);
    config.optimizer = &adam;
    config.parallel = c.parallel;
    REQUIRE(lk__plan_create(r->graph, &config, c.one_by_one, &r->plan) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_store_create(r->plan, 0, &r->store) == LK_OK);
    REQUIRE(lk_program_create(r->plan, r->store, t->comm, &r->program) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_program_bind(r->program, "ids", r->ids) == LK_OK &&
            lk_program_bind(r->program, "labels", r->labels) == LK_OK);
    fill_reader(r, t->rank);
}

static void release_reader(reader *r)
{
    lk_program_free(r->program);
    lk_store_free(r->store);
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
}

/* The last rank's batch has one id out of range: every rank reports it, and nothing changes. */
static void check_invalid(rank_test *t, reader *r, int64_t count, const char *expected)
{
    char     all[256];
    uint64_t before = lk_store_hash(r->store);
    lk_step  step = {.step = 1, .count = count, .total = count * t->size, .rate = 0.1, .sample_ids = r->sample_ids};
    snprintf(all, sizeof all, "%s%s", t->size > 1 ? t->size == 2 ? "rank 1: " : "rank 2: " : "", expected);
    CHECK_ERROR(t, lk_program_train(r->program, &step), LK_EINVAL, all);
    CHECK_ERROR(t, lk_program_run(r->program, LK_UPDATE), LK_EINVAL, "has no gradients");
    CHECK(lk_store_hash(r->store) == before);
    fill_reader(r, t->rank);
    CHECK(lk_program_train(r->program, &step) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(lk_store_hash(r->store) != before);
}

static void try_cases(rank_test *t, reader_case c, int64_t count)
{
    reader r;
    bool   last = t->rank == t->size - 1;
    char   expected[256];
    make_reader(t, &r, c);
    if (last) r.labels[count - 2] = CLASSES, r.labels[count - 1] = -1; /* the first is named */
    snprintf(
        expected, sizeof expected,
        "input \"labels\", row %d of the batch (sample %d): label 5 is out of range: the loss has 5 classes, 0 to 4; "
        "-100 is ignored",
        (int)count - 2, 1000 * (t->size - 1) + 2 * ((int)count - 2));
    check_invalid(t, &r, count, expected);
    if (last) r.ids[2 * TOKENS + 1] = -7;
    snprintf(
        expected, sizeof expected,
        "input \"ids\", row 2 of the batch, position 1 (sample %d): id -7 is out of range: the embedding has 11 rows",
        1000 * (t->size - 1) + 4);
    check_invalid(t, &r, count, expected);
    release_reader(&r);
}

static void invalid(rank_test *t)
{
    try_cases(t, (reader_case){{0}, SAMPLES, false}, SAMPLES);
    try_cases(t, (reader_case){{0}, SAMPLES, false}, 5);
    try_cases(t, (reader_case){{.micro_batches = 3}, 4, false}, SAMPLES);
    try_cases(t, (reader_case){{.leaves = 4 * t->size}, SAMPLES, true}, SAMPLES);
    try_cases(t, (reader_case){{.leaves = 4 * t->size}, SAMPLES, false}, SAMPLES);
}

static void an_id_out_of_range_is_reported_on_every_rank_and_changes_nothing(void) { run_everywhere(invalid); }

/* By sections: with one rank LK_FORWARD reports it; with several LK_SYNC does. */
static void invalid_sections(rank_test *t)
{
    reader r;
    make_reader(t, &r, (reader_case){{.micro_batches = 2}, SAMPLES, false});
    uint64_t before = lk_store_hash(r.store);
    lk_step  step = {.step = 1, .count = SAMPLES, .rate = 0.1};
    REQUIRE(lk_program_step(r.program, &step) == LK_OK);
    lk_program_no_sync(r.program, true);
    REQUIRE(lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
    lk_program_no_sync(r.program, false);
    r.labels[3] = 99;
    if (t->size == 1) {
        CHECK_ERROR(t, lk_program_run(r.program, LK_FORWARD), LK_EINVAL, "row 3 of the batch: label 99");
        CHECK_ERROR(t, lk_program_run(r.program, LK_BACKWARD), LK_EINVAL, "LK_FORWARD");
    } else {
        CHECK(lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
    }
    CHECK(lk_program_run(r.program, LK_UPDATE) == LK_EINVAL, "%s", lk_context_error(t->context));
    CHECK_ERROR(t, lk_program_run(r.program, LK_UPDATE), LK_EINVAL, "has no gradients");
    CHECK_ERROR(t, lk_program_run(r.program, LK_EVALUATE), LK_EINVAL, "row 3 of the batch: label 99");
    CHECK(lk_store_hash(r.store) == before);
    release_reader(&r);
}

/* A batch that the loop skips after its forward, or whose gradients it replaces, does not count. */
static void skip_invalid(rank_test *t)
{
    for (int replaced = 0; replaced < 2; replaced++) {
        reader r;
        make_reader(t, &r, (reader_case){{0}, SAMPLES, false});
        lk_step step = {.step = 1, .count = SAMPLES, .rate = 0.1};
        REQUIRE(lk_program_step(r.program, &step) == LK_OK);
        r.labels[3] = t->rank == 0 ? 99 : 0;
        CHECK(lk_program_run(r.program, LK_FORWARD) == (t->size > 1 ? LK_OK : LK_EINVAL));
        if (replaced && t->size > 1) CHECK(lk_program_run(r.program, LK_BACKWARD) == LK_OK);
        fill_reader(&r, t->rank);
        REQUIRE(lk_program_run(r.program, LK_FORWARD) == LK_OK && lk_program_run(r.program, LK_BACKWARD) == LK_OK);
        CHECK(lk_program_run(r.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(t->context));
        release_reader(&r);
    }
}

static void a_batch_with_an_id_out_of_range_can_be_skipped(void) { run_everywhere(skip_invalid); }

static void an_id_out_of_range_in_one_micro_batch_drops_the_whole_update(void) { run_everywhere(invalid_sections); }

/* ---- written gradients ---- */

static const char *const parameters[] = {"fc.weight", "fc.bias"};
static const size_t      elements[] = {OUT * IN, OUT};

/* The same net in a program for one rank. */
static void make_for_one_rank(const rank_test *t, net *n, int micro_batches)
{
    rank_test alone = *t;
    alone.size = 1;
    alone.rank = 0;
    alone.comm = NULL;
    REQUIRE(make(&alone, n, micro_batches, 0) == LK_OK, "%s", lk_context_error(t->context));
}

static double distance(const net *a, const net *b)
{
    double most = 0;
    for (int k = 0; k < 2; k++) {
        const double *x = state_copy(a->store, parameters[k]), *y = state_copy(b->store, parameters[k]);
        for (size_t i = 0; i < elements[k]; i++) most = fmax(most, fabs(x[i] - y[i]));
    }
    return most;
}

/* All gradients, added over ranks by hand. */
static void reduce_by_hand(const rank_test *t, net *n, double factor)
{
    for (int k = 0; k < 2; k++) {
        double g[OUT * IN];
        REQUIRE(lk_program_gradient_read(n->program, parameters[k], g, elements[k] * sizeof *g) == LK_OK, "%s",
                lk_context_error(t->context));
        REQUIRE(lk_comm_all_reduce(t->comm, g, g, elements[k], LK_F64, LK_SUM, NULL) == LK_OK);
        for (size_t i = 0; i < elements[k]; i++) g[i] *= factor;
        REQUIRE(lk_program_gradient_write(n->program, parameters[k], g, elements[k] * sizeof *g) == LK_OK, "%s",
                lk_context_error(t->context));
    }
}

static void train_by_hand(rank_test *t)
{
    net built_in, averaged, scaled;
    REQUIRE(make(t, &built_in, 1, 0) == LK_OK, "%s", lk_context_error(t->context));
    make_for_one_rank(t, &averaged, 1);
    make_for_one_rank(t, &scaled, 1);
    for (int step = 0; step < 5; step++) {
        REQUIRE(run_step(t, &built_in, step) == LK_OK);
        REQUIRE(backward(t, &averaged, step) == LK_OK);
        reduce_by_hand(t, &averaged, 1.0 / t->size);
        REQUIRE(lk_program_run(averaged.program, LK_UPDATE) == LK_OK);
        REQUIRE(backward(t, &scaled, step) == LK_OK);
        reduce_by_hand(t, &scaled, 1);
        REQUIRE(lk_program_gradient_scale(scaled.program, NULL, 1.0 / t->size) == LK_OK);
        REQUIRE(lk_program_gradient_scale(scaled.program, "fc.bias", 4) == LK_OK);
        REQUIRE(lk_program_gradient_scale(scaled.program, "fc.bias", 0.25) == LK_OK);
        REQUIRE(lk_program_run(scaled.program, LK_UPDATE) == LK_OK);
        CHECK(distance(&built_in, &averaged) < 1e-14 && distance(&built_in, &scaled) < 1e-14, "%g, %g",
              distance(&built_in, &averaged), distance(&built_in, &scaled));
    }
    release(&built_in);
    release(&averaged);
    release(&scaled);
}

/* Ranks with different numbers of samples, some with none: sums over the sum of the weights. */
static void train_by_hand_uneven(rank_test *t)
{
    net built_in, summed;
    REQUIRE(make(t, &built_in, 1, 0) == LK_OK, "%s", lk_context_error(t->context));
    make_for_one_rank(t, &summed, 2);
    for (int step = 0; step < 5; step++) {
        lk_metrics m;
        int64_t    count = t->rank == 0 ? 1 + step % ROWS : t->rank == 1 ? step % 2 : 0;
        REQUIRE(backward_of(t, &built_in, step, count) == LK_OK &&
                lk_program_run(built_in.program, LK_UPDATE) == LK_OK);
        REQUIRE(backward_of(t, &summed, step, count) == LK_OK && lk_program_run(summed.program, LK_SYNC) == LK_OK);
        lk_program_metrics(summed.program, &m);
        CHECK(m.weight == (double)(count * OUT));
        reduce_by_hand(t, &summed, 1);
        REQUIRE(lk_comm_all_reduce(t->comm, &m.weight, &m.weight, 1, LK_F64, LK_SUM, NULL) == LK_OK);
        REQUIRE(lk_program_gradient_weight(summed.program, m.weight) == LK_OK, "%s", lk_context_error(t->context));
        REQUIRE(lk_program_run(summed.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(t->context));
        CHECK(distance(&built_in, &summed) < 1e-14, "%g", distance(&built_in, &summed));
    }
    release(&built_in);
    release(&summed);
}

static void gradients_reduced_by_hand_train_like_the_programs(void)
{
    run_everywhere(train_by_hand);
    run_everywhere(train_by_hand_uneven);
}

static void write_gradients(rank_test *t)
{
    net    n;
    double g[OUT * IN], read[OUT * IN], before[OUT * IN];
    REQUIRE(make(t, &n, 2, 0) == LK_OK, "%s", lk_context_error(t->context));
    lk_program *p = n.program;
    for (int i = 0; i < OUT * IN; i++) g[i] = number(77 + i);
    CHECK_ERROR(t, lk_program_gradient_read(p, "fc.weight", read, sizeof read), LK_EINVAL, "LK_BACKWARD");
    CHECK_ERROR(t, lk_program_gradient_scale(p, NULL, 2), LK_EINVAL, "LK_BACKWARD");
    CHECK_ERROR(t, lk_program_gradient_weight(p, 2), LK_EINVAL, "LK_BACKWARD");
    CHECK_ERROR(t, lk_program_gradient_write(p, "fc.weight", g, sizeof g - 8), LK_EINVAL,
                "(2, 3) in f64, has 48 bytes, not 40");
    CHECK_ERROR(t, lk_program_gradient_write(p, "fc", g, sizeof g), LK_ENOENT, "no parameter \"fc\"");
    CHECK_ERROR(t, lk_program_run(p, LK_UPDATE), LK_EINVAL, "lk_program_gradient_write");

    /* Without a backward: used as written, the others are zero, and one update uses them. */
    REQUIRE(lk_program_step(p, &(lk_step){.step = 1, .count = ROWS, .rate = 0.5}) == LK_OK);
    double bias_before[OUT];
    memcpy(before, state_copy(n.store, "fc.weight"), sizeof before);
    memcpy(bias_before, state_copy(n.store, "fc.bias"), sizeof bias_before);
    REQUIRE(lk_program_gradient_write(p, "fc.weight", g, sizeof g) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(lk_program_gradient_read(p, "fc.weight", read, sizeof read) == LK_OK && memcmp(read, g, sizeof g) == 0);
    CHECK(lk_program_gradient_read(p, "fc.bias", read, OUT * sizeof *read) == LK_OK && read[0] == 0 && read[1] == 0);
    REQUIRE(lk_program_run(p, LK_UPDATE) == LK_OK, "%s", lk_context_error(t->context));
    const double *weight = state_copy(n.store, "fc.weight");
    for (int i = 0; i < OUT * IN; i++) CHECK(weight[i] == before[i] - g[i] * 0.5);
    CHECK(memcmp(state_copy(n.store, "fc.bias"), bias_before, sizeof bias_before) == 0);
    CHECK_ERROR(t, lk_program_run(p, LK_UPDATE), LK_EINVAL, "has no gradients");

    /* They cannot be accessed while they are reduced; with no_sync they are this rank's, and LK_SYNC reduces what was
     * written. */
    REQUIRE(backward(t, &n, 0) == LK_OK);
    if (t->size > 1) {
        CHECK_ERROR(t, lk_program_gradient_read(p, "fc.weight", read, sizeof read), LK_EINVAL, "run LK_SYNC first");
        CHECK_ERROR(t, lk_program_gradient_write(p, "fc.weight", read, sizeof read), LK_EINVAL, "run LK_SYNC first");
    }
    REQUIRE(lk_program_run(p, LK_SYNC) == LK_OK &&
            lk_program_gradient_read(p, "fc.weight", read, sizeof read) == LK_OK);
    CHECK(memcmp(read, gradient_copy(p, n.store, "fc.weight"), sizeof read) == 0 && error(t, &n, 0, 0) < 1e-12);
    CHECK_ERROR(t, lk_program_gradient_scale(p, NULL, NAN), LK_EINVAL, "nan");
    CHECK_ERROR(t, lk_program_gradient_weight(p, 0), LK_EINVAL, "above 0");
    REQUIRE(lk_program_run(p, LK_UPDATE) == LK_OK);
    lk_program_no_sync(p, true);
    REQUIRE(backward(t, &n, 0) == LK_OK);
    for (int i = 0; i < OUT * IN; i++) g[i] = 1 + t->rank;
    REQUIRE(lk_program_gradient_write(p, "fc.weight", g, sizeof g) == LK_OK, "%s", lk_context_error(t->context));
    if (t->size > 1) CHECK_ERROR(t, lk_program_gradient_weight(p, 2), LK_EINVAL, "LK_SYNC");
    REQUIRE(lk_program_run(p, LK_SYNC) == LK_OK &&
            lk_program_gradient_read(p, "fc.weight", read, sizeof read) == LK_OK);
    CHECK(read[0] == t->size * (t->size + 1) / 2 && read[5] == read[0], "%g", read[0]);
    release(&n);
}

static void written_gradients_count_as_a_backward_and_are_checked(void) { run_everywhere(write_gradients); }

/* Any single number may be the loss: it has no weight, but a weight that was set still divides. */
static void a_weight_divides_the_gradients_of_every_loss(void)
{
    lk_context         *context;
    lk_graph           *graph;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    double              x[] = {1, 2, 3}, was[3];
    REQUIRE(lk_context_create(NULL, &context) == LK_OK && lk_graph_create(context, LK_F64, &graph) == LK_OK);
    lk_tensor input = lk_input(graph, "x", LK_F64, 2, ((int64_t[]){1, 3}));
    sgd.kind = LK_SGD;
    config.loss = lk_sum(lk_mul(input, lk_parameter(graph, "w", 2, ((int64_t[]){1, 3}))));
    config.optimizer = &sgd;
    REQUIRE(lk_plan_create(graph, &config, &plan) == LK_OK && lk_store_create(plan, 0, &store) == LK_OK &&
            lk_program_create(plan, store, NULL, &program) == LK_OK);
    REQUIRE(lk_program_bind(program, "x", x) == LK_OK);
    for (int weight = 1; weight <= 4; weight *= 2) {
        memcpy(was, state_copy(store, "w"), sizeof was);
        REQUIRE(lk_program_step(program, &(lk_step){.step = 1, .count = 1, .rate = 1}) == LK_OK &&
                lk_program_run(program, LK_FORWARD) == LK_OK && lk_program_run(program, LK_BACKWARD) == LK_OK);
        if (weight > 1) REQUIRE(lk_program_gradient_weight(program, weight) == LK_OK);
        REQUIRE(lk_program_run(program, LK_UPDATE) == LK_OK);
        const double *w = state_copy(store, "w");
        for (int i = 0; i < 3; i++) CHECK(w[i] == was[i] - x[i] / weight);
    }
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_context_free(context);
}

static void start_differently(rank_test *t)
{
    net       n;
    lk_status status = make(t, &n, 1, t->rank == t->size - 1 ? 1 : 0);
    CHECK(status == LK_EMISMATCH && strstr(lk_context_error(t->context), "fc.weight") && !n.program, "%d: %s", status,
          lk_context_error(t->context));
    release(&n);
}

static void ranks_that_start_from_other_weights_are_rejected(void)
{
    for (int size = 2; size <= 3; size++) run_ranks(size, NULL, start_differently, NULL);
}

/* fc.weight after a step with this rate; *status: of lk_program_train. */
static double first_weight_after(const rank_test *t, net *n, const lk_step *step, lk_status *status)
{
    fill_net(n, t->rank, 0);
    *status = lk_program_train(n->program, step);
    return *(const double *)state_copy(n->store, "fc.weight");
}

/* LK_STEP_INIT has the optimizer's rate; 0 is 0, and no other number below 0 is a rate. */
static void take_rates(rank_test *t)
{
    net       n;
    lk_status status;
    REQUIRE(make(t, &n, 1, 0) == LK_OK);
    double  before = *(const double *)state_copy(n.store, "fc.weight"), moved[2];
    lk_step step = LK_STEP_INIT;
    step.count = ROWS;
    CHECK(step.step == 1 && step.rate == LK_RATE_OF_OPTIMIZER);
    moved[0] = first_weight_after(t, &n, &step, &status) - before;
    CHECK(status == LK_OK && fabs(moved[0]) > 1e-5, "moved by %g", moved[0]);
    release(&n);
    REQUIRE(make(t, &n, 1, 0) == LK_OK);
    step.rate = 1e-3; /* what LK_OPTIMIZER_CONFIG_INIT has */
    moved[1] = first_weight_after(t, &n, &step, &status) - before;
    CHECK(status == LK_OK && moved[0] == moved[1], "%g, %g", moved[0], moved[1]);
    double after = before + moved[1];
    step.rate = 0;
    CHECK(first_weight_after(t, &n, &step, &status) == after && status == LK_OK);
    CHECK(first_weight_after(t, &n, &(lk_step){.step = 1, .count = ROWS}, &status) == after && status == LK_OK);
    const double wrong[] = {-0.5, -2, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        step.rate = wrong[i];
        CHECK(first_weight_after(t, &n, &step, &status) == after && status == LK_EINVAL, "%g", wrong[i]);
        CHECK(strstr(lk_context_error(t->context), "LK_STEP_INIT"), "%s", lk_context_error(t->context));
    }
    release(&n);
}

static void a_step_without_a_rate_has_the_optimizers(void) { run_ranks(1, NULL, take_rates, NULL); }

/* One rank's loss is NaN or infinite: nothing changes on any rank, and the next step trains. */
static void meet_nan(rank_test *t)
{
    net     n;
    lk_step step = LK_STEP_INIT;
    REQUIRE(make(t, &n, 1, 0) == LK_OK);
    step.count = ROWS;
    for (int how = 0; how < 4; how++) {
        uint64_t before = lk_store_hash(n.store);
        fill_net(&n, t->rank, 0);
        if (t->rank == t->size - 1) n.x[1] = how & 1 ? NAN : INFINITY;
        lk_status status = LK_OK;
        if (how < 2) {
            status = lk_program_train(n.program, &step);
        } else {
            REQUIRE(lk_program_step(n.program, &step) == LK_OK && lk_program_run(n.program, LK_FORWARD) == LK_OK &&
                    lk_program_run(n.program, LK_BACKWARD) == LK_OK);
            status = lk_program_run(n.program, LK_UPDATE);
        }
        CHECK(status == LK_ENAN && strstr(lk_context_error(t->context), "no state has changed"), "%d: %d, %s", how,
              status, lk_context_error(t->context));
        CHECK(t->size == 1 || strstr(lk_context_error(t->context), t->size == 2 ? "rank 1" : "rank 2"), "%s",
              lk_context_error(t->context));
        CHECK(lk_store_hash(n.store) == before);
        CHECK(lk_program_run(n.program, LK_UPDATE) == LK_EINVAL); /* the gradients are dropped */
        fill_net(&n, t->rank, 0);
        CHECK(lk_program_train(n.program, &step) == LK_OK && lk_store_hash(n.store) != before, "%s",
              lk_context_error(t->context));
    }
    release(&n);
}

static void a_loss_that_is_not_finite_changes_nothing(void) { run_everywhere(meet_nan); }

/* A step that follows a backward by hand adds to its gradients, with the collectives in the last backward or, with
 * no_sync, in LK_SYNC. */
static void add_a_step(rank_test *t)
{
    net     n;
    lk_step step = LK_STEP_INIT;
    REQUIRE(make(t, &n, 2, 0) == LK_OK);
    step.count = ROWS;
    for (int held = 0; held < 2; held++) {
        lk_program_no_sync(n.program, true);
        REQUIRE(backward(t, &n, 0) == LK_OK && backward(t, &n, 1) == LK_OK);
        lk_program_no_sync(n.program, held);
        fill_net(&n, t->rank, 2);
        REQUIRE(lk_program_compute(n.program, &step) == LK_OK, "%s", lk_context_error(t->context));
        CHECK(error(t, &n, 0, 2) < 1e-12, "off by %g", error(t, &n, 0, 2));
        REQUIRE(lk_program_run(n.program, LK_UPDATE) == LK_OK);
    }
    release(&n);
}

static void a_step_adds_to_the_gradients_of_sections_by_hand(void) { run_everywhere(add_a_step); }

/* The same nodes, but a bucket of another size on the last rank. */
static void order_otherwise(rank_test *t)
{
    net         n;
    lk_program *second;
    REQUIRE(make(t, &n, 1, 0) == LK_OK);
    if (t->rank == t->size - 1) n.plan->buckets[0].bytes /= 2;
    lk_status   status = lk_program_create(n.plan, n.store, t->comm, &second);
    const char *text = lk_context_error(t->context);
    char        who[32];
    snprintf(who, sizeof who, "rank %d: ", t->size - 1);
    CHECK(status == LK_EMISMATCH && !second, "%d", status);
    CHECK(strstr(text, "same order") && strstr(text, "rank 0: ") && strstr(text, who) && strstr(text, "bucket 0"), "%s",
          text);
    if (t->rank == t->size - 1) n.plan->buckets[0].bytes *= 2;
    REQUIRE(lk_program_create(n.plan, n.store, t->comm, &second) == LK_OK, "%s", lk_context_error(t->context));
    lk_program_free(second);
    release(&n);
}

static void ranks_with_other_collectives_are_rejected_before_the_first_step(void)
{
    for (int size = 2; size <= 3; size++) run_ranks(size, NULL, order_otherwise, NULL);
}

int main(void)
{
    RUN(a_step_without_a_rate_has_the_optimizers);
    RUN(a_loss_that_is_not_finite_changes_nothing);
    RUN(unused_gradients_are_replaced_also_those_in_flight);
    RUN(no_sync_adds_the_gradients_of_all_micro_batches_and_ranks);
    RUN(adding_to_gradients_that_were_sent_is_rejected);
    RUN(sections_in_another_order_are_rejected_with_the_right_order);
    RUN(an_id_out_of_range_is_reported_on_every_rank_and_changes_nothing);
    RUN(an_id_out_of_range_in_one_micro_batch_drops_the_whole_update);
    RUN(a_batch_with_an_id_out_of_range_can_be_skipped);
    RUN(gradients_reduced_by_hand_train_like_the_programs);
    RUN(written_gradients_count_as_a_backward_and_are_checked);
    RUN(a_weight_divides_the_gradients_of_every_loss);
    RUN(ranks_that_start_from_other_weights_are_rejected);
    RUN(a_step_adds_to_the_gradients_of_sections_by_hand);
    RUN(ranks_with_other_collectives_are_rejected_before_the_first_step);
    return check_result();
}
