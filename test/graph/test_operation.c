/* test_operation.c - users' own operations in graphs, plans and programs: the results of built-in operations, gradients
 * against finite differences, data parallel and reproducible, in bf16 and recomputed; what is listed and compared; what
 * is refused.
 *
 * ctest: ranks 3 */
#include "failing_allocator.h"
#include "own_operations.h"
#include "plan/plan.h"
#include "support.h"

#include <lockstep/comm.h>
#include <sys/mman.h>

/* ---- one rank ---- */

enum { ROWS = 10, COLUMNS = 5 };

/* A model of x (N, COLUMNS): with own operations, or the same with built-in ones. */
static lk_tensor record_model(lk_tensor x, bool own, bool recompute, double factor)
{
    int64_t   columns = COLUMNS;
    lk_tensor a = lk_linear(x, "a", COLUMNS), b = lk_linear(x, "b", COLUMNS);
    lk_block_begin(x, "block", .recompute = recompute);
    lk_tensor    w = lk_parameter(x.graph, "w", 1, &columns, .init = LK_INIT_CONSTANT, .a = 0.75);
    lk_tensor    bias = lk_parameter(x.graph, "bias", 1, &columns, .init = LK_INIT_CONSTANT, .a = 0.25);
    lk_operation affine = affine_operation(&factor);
    lk_tensor    y = own ? lk_apply(&swish_gate, ((lk_tensor[]){a, b}), 2, NULL) : lk_mul(a, lk_silu(b));
    y = own ? lk_apply(&affine, ((lk_tensor[]){y, w, bias}), 3, NULL) : lk_scale(lk_add(lk_mul(y, w), bias), factor);
    lk_block_end(x);
    return lk_linear(lk_relu(y), "out", 3);
}

typedef struct result {
    double loss, gradients[512];
    int    count;
} result;

typedef struct variant {
    lk_dtype  real;
    lk_policy policy;
    bool      own, recompute, checked; /* checked: in the check mode, which allocates */
    int       threads;
    int64_t   count; /* samples, up to ROWS */
} variant;

static void fill_inputs(void *x, lk_dtype real, int32_t *labels, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count * COLUMNS; i++)
        set_real(x, real, i, 2 * number(7, (uint64_t)(first * COLUMNS + i)) - 1);
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)((first + i) % 3);
}

static result run_variant(variant v)
{
    rig                 r = rig_open(v.real, v.threads ? v.threads : 1);
    double              x[ROWS * COLUMNS];
    int32_t             labels[ROWS];
    result              out = {0};
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           in = lk_input(r.graph, "x", v.real, 2, ((int64_t[]){ROWS, COLUMNS}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){ROWS}));
    config.loss = lk_cross_entropy(record_model(in, v.own, v.recompute, 1.5), y);
    config.optimizer = &sgd;
    config.policy = v.policy;
    rig_plan(&r, &config, 3);
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
        CHECK(lk_context_memory(r.context, kind) == lk_plan_memory(r.plan, kind), "%s: %zu bytes held, %zu planned",
              lk_memory_name(kind), lk_context_memory(r.context, kind), lk_plan_memory(r.plan, kind));
    fill_inputs(x, v.real, labels, 0, ROWS);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "y", labels) == LK_OK);
    lk_step  step = {.step = 1, .count = v.count ? v.count : ROWS, .rate = 0.1};
    uint64_t allocations = lk_context_allocations(r.context);
    REQUIRE(lk_program_compute(r.program, &step) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(v.checked || lk_context_allocations(r.context) == allocations, "a step allocates");
    out.loss = rig_metrics(&r).loss;
    for (size_t i = 0; i < lk_store_count(r.store); i++) {
        lk_state    s = lk_store_at(r.store, i);
        const void *gradient = gradient_copy(r.program, r.store, s.name);
        for (int64_t k = 0; k < state_elements(&s); k++) out.gradients[out.count++] = real_at(gradient, s.dtype, k);
    }
    rig_close(&r);
    return out;
}

static void compare(const char *what, result a, result b, double tolerance)
{
    CHECK(fabs(a.loss - b.loss) <= tolerance * fabs(b.loss), "%s: loss %.17g and %.17g", what, a.loss, b.loss);
    CHECK(a.count == b.count);
    for (int i = 0; i < a.count; i++)
        CHECK(fabs(a.gradients[i] - b.gradients[i]) <= tolerance * (1 + fabs(b.gradients[i])),
              "%s: gradient %d is %.17g and %.17g", what, i, a.gradients[i], b.gradients[i]);
}

static void own_operations_give_the_results_of_built_in_ones(void)
{
    compare("f64", run_variant((variant){.own = true, .real = LK_F64}), run_variant((variant){.real = LK_F64}), 1e-13);
    compare("f32", run_variant((variant){.own = true}), run_variant((variant){0}), 1e-5);
    compare("7 of 10 samples", run_variant((variant){.own = true, .real = LK_F64, .count = 7}),
            run_variant((variant){.real = LK_F64, .count = 7}), 1e-13);
    compare("bf16", run_variant((variant){.own = true, .policy = LK_POLICY_BF16}),
            run_variant((variant){.policy = LK_POLICY_BF16}), 0.1);
}

static void threads_and_recomputation_change_no_bit(void)
{
    result one = run_variant((variant){.own = true});
    for (int threads = 2; threads <= 3; threads++)
        compare("threads", run_variant((variant){.own = true, .threads = threads}), one, 0);
    compare("recomputed", run_variant((variant){.own = true, .recompute = true}), one, 0);
}

/* Operands are row-major also between convolutions, which store images with the channels last. */
static void images_are_row_major(void)
{
    double   losses[2], gradients[2][3];
    int64_t  channels = 3;
    double   x[4 * 2 * 6 * 6];
    uint64_t seed = 5;
    for (int own = 0; own < 2; own++) {
        rig                 r = rig_open(LK_F64, 1);
        lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
        lk_plan_config      config = LK_PLAN_CONFIG_INIT;
        lk_tensor in = lk_input(r.graph, "x", LK_F64, 4, ((int64_t[]){4, 2, 6, 6})), y = lk_conv2d(in, "conv1", 3, 3);
        lk_tensor w = lk_parameter(r.graph, "w", 1, &channels, .init = LK_INIT_NORMAL, .a = 1);
        y = own ? lk_apply(&channel_scale, ((lk_tensor[]){y, w}), 2, NULL)
                : lk_mul(y, lk_reshape(w, 3, ((int64_t[]){3, 1, 1})));
        y = lk_conv2d(y, "conv2", 2, 3);
        config.loss = lk_sum(lk_mul(y, y));
        config.optimizer = &sgd;
        rig_plan(&r, &config, seed);
        for (int i = 0; i < 4 * 2 * 6 * 6; i++) x[i] = number(9, (uint64_t)i) - 0.5;
        REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK);
        REQUIRE(lk_program_compute(r.program, &(lk_step){.step = 1, .count = 3}) == LK_OK);
        losses[own] = rig_metrics(&r).loss;
        REQUIRE(lk_program_gradient_read(r.program, "w", gradients[own], sizeof gradients[own]) == LK_OK);
        rig_close(&r);
    }
    CHECK(fabs(losses[0] - losses[1]) < 1e-12 * losses[0], "%.17g and %.17g", losses[0], losses[1]);
    for (int i = 0; i < 3; i++)
        CHECK(fabs(gradients[0][i] - gradients[1][i]) < 1e-12 * fabs(gradients[0][i]), "%d: %g and %g", i,
              gradients[0][i], gradients[1][i]);
}

/* The gradients of two outputs arrive together, and of one alone; an output of integers has none. */
static lk_tensor record_moments(cell *c)
{
    lk_tensor x = OPERAND(c, PLAIN, 4, 3), outputs[3];
    lk_apply(&moments, &x, 1, outputs);
    lk_tensor rows = lk_sum(lk_mul(outputs[0], lk_cast(lk_cast(outputs[2], c->real), c->real)));
    if (c->variant == 0) return lk_add(lk_cast(rows, LK_F64), lk_cast(outputs[1], LK_F64));
    return c->variant == 1 ? rows : outputs[1];
}

static double moments_loss(rig *r)
{
    REQUIRE(lk_program_step(r->program, &(lk_step){.step = 1}) == LK_OK &&
                lk_program_run(r->program, LK_FORWARD) == LK_OK,
            "%s", lk_context_error(r->context));
    return rig_metrics(r).sum;
}

static void every_output_can_have_a_gradient(void)
{
    for (int variant = 0; variant < 3; variant++) {
        rig                 r = rig_open(LK_F64, 1);
        cell                c = {.graph = r.graph, .real = LK_F64, .variant = variant};
        lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
        lk_plan_config      config = LK_PLAN_CONFIG_INIT;
        double              x[12], step = 1e-6;
        config.loss = record_moments(&c);
        config.optimizer = &sgd;
        rig_plan(&r, &config, 0);
        cell_fill(&c, &r, 11);
        moments_loss(&r);
        REQUIRE(lk_program_run(r.program, LK_BACKWARD) == LK_OK, "%s", lk_context_error(r.context));
        const double *gradient = gradient_copy(r.program, r.store, "p0");
        REQUIRE(lk_store_read(r.store, "p0", LK_STATE_VALUE, 0, 12, x, sizeof x) == LK_OK);
        for (int i = 0; i < 12; i++) {
            double sums[2], at = x[i];
            for (int side = 0; side < 2; side++) {
                x[i] = at + (side ? step : -step);
                REQUIRE(lk_store_write(r.store, "p0", LK_STATE_VALUE, 0, 12, x, sizeof x) == LK_OK);
                sums[side] = moments_loss(&r);
            }
            x[i] = at;
            double found = (sums[1] - sums[0]) / (2 * step);
            CHECK(fabs(found - gradient[i]) < 1e-6 * (1 + fabs(found)), "variant %d, element %d: %g, by differences %g",
                  variant, i, gradient[i], found);
        }
        cell_close(&c);
        rig_close(&r);
    }
}

/* ---- several ranks ---- */

typedef struct job {
    int      world, leaves, threads, steps;
    int      coupled;    /* samples: 1: by a user's operation, 2: by a softmax over the batch */
    bool     sum;        /* the loss is an output that `sums` names */
    double   factors[3]; /* by rank */
    double   losses[8];
    uint64_t hashes[3];
    char     error[2048];
} job;

enum { BATCH = 23 };

/* Every third batch has 2 samples, so that some ranks and leaves have none. */
static void train_steps(job *j, int rank, rig *r)
{
    float   x[BATCH * COLUMNS] = {0};
    int32_t labels[BATCH];
    REQUIRE(lk_program_bind(r->program, "x", x) == LK_OK && lk_program_bind(r->program, "y", labels) == LK_OK);
    for (int step = 1; step <= j->steps; step++) {
        int64_t total = step % 3 ? BATCH : 2, parts = j->leaves ? j->leaves : j->world;
        int64_t first = total * (j->leaves ? parts * rank / j->world : rank) / parts;
        int64_t next = total * (j->leaves ? parts * (rank + 1) / j->world : rank + 1) / parts;
        fill_inputs(x, LK_F32, labels, first + 100 * step, next - first);
        lk_step s = {.step = step, .count = next - first, .total = total, .rate = 1e-2};
        REQUIRE(lk_program_train(r->program, &s) == LK_OK, "%s", lk_context_error(r->context));
        if (rank == 0) j->losses[step - 1] = rig_metrics(r).loss;
    }
    j->hashes[rank] = lk_store_hash(r->store);
}

static int train_rank(int rank, void *user)
{
    job                *j = user;
    rig                 r = rig_open(LK_F32, j->threads);
    lk_comm            *comm = NULL;
    lk_comm_config      joining = LK_COMM_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    joining.join_ms = 60000;
    check_failures = 0;
    config.parallel = (lk_parallel){.world = j->world, .rank = rank, .leaves = j->leaves};
    int64_t   capacity = lk_parallel_capacity(&config.parallel, BATCH);
    lk_tensor in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){capacity, COLUMNS}));
    lk_tensor y = lk_input(r.graph, "y", LK_I32, 1, &capacity);
    if (j->coupled == 1) in = lk_apply(&centre, &in, 1, NULL);
    if (j->coupled == 2) in = lk_sub(in, lk_softmax(in, 0));
    lk_tensor logits = record_model(in, true, false, j->factors[rank]), outputs[3];
    if (j->sum) lk_apply(&moments, &logits, 1, outputs);
    config.loss = j->sum ? outputs[1] : lk_cross_entropy(logits, y);
    config.optimizer = &adam;
    if (j->world > 1) REQUIRE(lk_comm_create(r.context, &joining, &comm) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    if (j->leaves) CHECK(r.plan->batch_leaves == !j->coupled, "leaves of coupled samples cannot run as one batch");
    REQUIRE(lk_store_create(r.plan, 3, &r.store) == LK_OK);
    bool created = lk_program_create(r.plan, r.store, comm, &r.program) >= 0;
    if (!created && rank == 0) snprintf(j->error, sizeof j->error, "%s", lk_context_error(r.context));
    if (created) train_steps(j, rank, &r);
    lk_program_free(r.program);
    lk_store_free(r.store);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_comm_free(comm);
    lk_context_free(r.context);
    return created ? check_result() : 3;
}

static job *new_job(job from)
{
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(j != MAP_FAILED);
    *j = from;
    if (!j->threads) j->threads = 1;
    if (!j->factors[0]) j->factors[0] = j->factors[1] = j->factors[2] = 1.5;
    return j;
}

static job run_job(job from)
{
    job            *j = new_job(from);
    lk_spawn_result ended = {0};
    check_ranks_announced(from.world);
    CHECK(lk_spawn(j->world, train_rank, j, &ended) == LK_OK, "%d ranks: %s", j->world, ended.text);
    job out = *j;
    munmap(j, sizeof *j);
    return out;
}

static void ranks_share_a_batch(void)
{
    job one = run_job((job){.world = 1, .steps = 7});
    for (int world = 2; world <= 3; world++) {
        job several = run_job((job){.world = world, .steps = 7});
        for (int i = 0; i < 7; i++)
            CHECK(fabs(one.losses[i] - several.losses[i]) < 1e-5 * one.losses[i],
                  "%d ranks, step %d: %.9g, one rank %.9g", world, i, several.losses[i], one.losses[i]);
        for (int i = 1; i < world; i++) CHECK(several.hashes[i] == several.hashes[0], "rank %d of %d", i, world);
    }
}

static void leaves_give_the_same_bits_at_any_size(void)
{
    for (int coupled = 0; coupled < 3; coupled++) {
        job one = run_job((job){.world = 1, .steps = 7, .leaves = 6, .coupled = coupled});
        for (int world = 1; world <= 3; world++)
            for (int threads = 1; threads <= 2; threads++) {
                job other =
                    run_job((job){.world = world, .steps = 7, .leaves = 6, .coupled = coupled, .threads = threads});
                CHECK(other.hashes[0] == one.hashes[0], "%d ranks × %d threads%s", world, threads,
                      coupled ? ", coupled" : "");
            }
        CHECK(run_job((job){.world = 1, .steps = 7, .leaves = 0, .coupled = coupled}).hashes[0] != one.hashes[0]);
    }
}

static void a_sum_over_samples_is_one_over_ranks_and_leaves(void)
{
    job one = run_job((job){.world = 1, .steps = 7, .sum = true}),
        leaves = run_job((job){.world = 1, .steps = 7, .sum = true, .leaves = 6});
    for (int world = 1; world <= 3; world++) {
        job several = run_job((job){.world = world, .steps = 7, .sum = true});
        for (int i = 0; i < 7; i++)
            CHECK(fabs(one.losses[i] - several.losses[i]) < 1e-5 * one.losses[i],
                  "%d ranks, step %d: %.9g, one rank %.9g", world, i, several.losses[i], one.losses[i]);
        CHECK(run_job((job){.world = world, .steps = 7, .sum = true, .leaves = 6}).hashes[0] == leaves.hashes[0],
              "%d ranks", world);
    }
}

static void ranks_with_other_attributes_are_refused(void)
{
    job            *j = new_job((job){.world = 2, .steps = 1, .factors = {1.5, 2.5}});
    lk_spawn_result ended = {0};
    CHECK(lk_spawn(2, train_rank, j, &ended) < 0);
    CHECK(strstr(j->error, "custom affine, factor 1.5(") && strstr(j->error, "custom affine, factor 2.5("), "%s",
          j->error);
    munmap(j, sizeof *j);
}

/* ---- listings ---- */

typedef struct listing {
    char   text[1 << 14];
    size_t used;
} listing;

static void append_text(void *user, const char *text, size_t bytes)
{
    listing *l = user;
    REQUIRE(l->used + bytes < sizeof l->text);
    memcpy(l->text + l->used, text, bytes);
    l->text[l->used += bytes] = 0;
}

static uint64_t fingerprint_of(double factor, bool print, listing *graph, listing *plan)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    int64_t             columns = 3;
    lk_operation        affine = affine_operation(&factor);
    if (!print) affine.print = NULL;
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 3})), w = lk_parameter(r.graph, "w", 1, &columns);
    config.loss = lk_sum(lk_apply(&affine, ((lk_tensor[]){x, w, {0}}), 3, NULL));
    config.optimizer = &sgd;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    if (graph) lk_graph_print(r.graph, append_text, graph);
    if (plan) lk_plan_print(r.plan, append_text, plan);
    uint64_t fingerprint = lk_plan_fingerprint(r.plan);
    rig_close(&r);
    return fingerprint;
}

static void listings_and_fingerprints_show_the_operation(void)
{
    static listing graph, plan;
    CHECK(fingerprint_of(1.5, true, &graph, &plan) == fingerprint_of(1.5, true, NULL, NULL));
    CHECK(fingerprint_of(1.5, true, NULL, NULL) != fingerprint_of(1.25, true, NULL, NULL));
    CHECK(fingerprint_of(1.5, false, NULL, NULL) != fingerprint_of(1.25, false, NULL, NULL));
    CHECK(strstr(graph.text, "= custom affine, factor 1.5(x, w)  (4*, 3)"), "%s", graph.text);
    CHECK(strstr(plan.text, "= custom_grad affine, factor 1.5(x, w, "), "%s", plan.text);
    graph.used = 0;
    fingerprint_of(1.5, false, &graph, NULL);
    CHECK(strstr(graph.text, "= custom affine, attributes 0x"), "%s", graph.text);
}

static void profiles_name_the_operation(void)
{
    static listing      profile;
    rig                 r = rig_open(LK_F32, 1);
    float               x[ROWS * COLUMNS];
    int32_t             labels[ROWS];
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){ROWS, COLUMNS}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){ROWS}));
    config.loss = lk_cross_entropy(record_model(in, true, false, 1.5), y);
    config.optimizer = &sgd;
    rig_plan(&r, &config, 3);
    fill_inputs(x, LK_F32, labels, 0, ROWS);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "y", labels) == LK_OK);
    lk_program_profile(r.program, true);
    REQUIRE(lk_program_train(r.program, &(lk_step){.step = 1, .count = ROWS, .rate = 0.1}) == LK_OK);
    lk_program_profile_print(r.program, append_text, &profile);
    CHECK(strstr(profile.text, "= custom swish_gate(") && strstr(profile.text, "= custom_grad affine, factor 1.5("),
          "%s", profile.text);
    rig_close(&r);
}

/* ---- what is refused ---- */

static void refused(const lk_operation *operation, int count, const char *message)
{
    rig       r = rig_open(LK_F32, 1);
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 3})), outputs[LK_OPERATION_OUTPUTS];
    lk_tensor ids = lk_input(r.graph, "ids", LK_I32, 1, ((int64_t[]){4}));
    lk_tensor y = lk_apply(operation, ((lk_tensor[]){x, count == 2 ? ids : x, x, x, x, x, x, x, x}), count, outputs);
    CHECK(y.graph == r.graph && y.id < 0 && lk_graph_status(r.graph) == LK_EINVAL);
    CHECK(strstr(lk_graph_error(r.graph), message) && strstr(lk_graph_error(r.graph), "test_operation.c:"),
          "%s; \"%s\"", lk_graph_error(r.graph), message);
    rig_close(&r);
}

static lk_status rank_seven(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    call->outputs[0].rank = 7;
    return LK_OK;
}
static lk_status half_the_rows(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    call->outputs[0].dims[0] /= 2;
    return LK_OK;
}
static lk_status no_axis_of_samples(const lk_operation_call *call)
{
    call->outputs[0].rank = 1;
    call->outputs[0].dims[0] = 3;
    return LK_OK;
}
static lk_status bf16_output(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    call->outputs[0].dtype = LK_BF16;
    return LK_OK;
}
static lk_status refuses(const lk_operation_call *call)
{
    (void)call;
    return LK_EINVAL;
}

static void invalid_operations_and_operands_are_refused(void)
{
    lk_operation o = centre;
    o.size = 0;
    refused(&o, 1, "size");
    o = centre, o.name = "two words";
    refused(&o, 1, "name of up to 63 letters");
    o = centre, o.name = NULL;
    refused(&o, 1, "name of up to 63 letters");
    o = centre, o.inputs = 9;
    refused(&o, 9, "centre: inputs is out of range");
    o = centre, o.outputs = 0;
    refused(&o, 1, "centre: outputs is out of range");
    o = centre, o.forward = NULL;
    refused(&o, 1, "centre: the callbacks shape and forward are required");
    o = centre, o.optional = 2;
    refused(&o, 1, "names an input that the operation does not have");
    o = centre, o.sums = 2;
    refused(&o, 1, "names an output that the operation does not have");
    o = centre, o.attributes_bytes = 4;
    refused(&o, 1, "attributes is NULL");
    o = centre, o.device = "cuda";
    refused(&o, 1, "device is not \"cpu\"");
    o = centre, o.factors = "(n, c -> (n, c)";
    refused(&o, 1, "centre: factors \"(n, c -> (n, c)\": expected a name at \"-> (n, c)\"");
    o = centre, o.factors = "(n, c) -> (c, n)";
    refused(&o, 1, "its factors");
    refused(&centre, 2, "centre takes 1 inputs, not 2");
    refused(&swish_gate, 2, "swish_gate: input 1 is i32, but must be f32 or f64");
    o = centre, o.types[0] = 1u << LK_F64;
    refused(&o, 1, "centre: input 0 is f32, which is not among the types that it accepts");
    o = centre, o.shape = rank_seven;
    refused(&o, 1, "gives 7 axes to output 0");
    o = centre, o.shape = half_the_rows;
    refused(&o, 1, "output 0 to (2*, 3), but the batch axis");
    o = centre, o.shape = no_axis_of_samples;
    refused(&o, 1, "output 0 (3) has no batch axis");
    o = centre, o.sums = 1;
    refused(&o, 1, "`sums` says that it is a sum");
    o = centre, o.shape = bf16_output;
    refused(&o, 1, "the type of output 0 to bf16");
    o = centre, o.shape = refuses;
    refused(&o, 1, "centre: its shape rule rejects these operands");
}

static void a_gradient_needs_a_backward(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_operation        o = centre;
    o.backward = NULL;
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 3}));
    lk_tensor plain = lk_linear(lk_apply(&o, &x, 1, NULL), "fc", 2); /* before all parameters: no gradient is needed */
    config.optimizer = &sgd;
    config.loss = lk_sum(plain);
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    lk_plan_free(r.plan);
    r.plan = NULL;
    config.loss = lk_sum(lk_apply(&o, &plain, 1, NULL));
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL &&
              strstr(lk_context_error(r.context), "centre has no backward"),
          "%s", lk_context_error(r.context));
    rig_close(&r);
}

static lk_status fails_with_a_message(const lk_operation_call *call)
{
    return lk_operation_fail(call, "there are %lld rows", (long long)call->inputs[0].dims[0]);
}
static lk_status fails_without(const lk_operation_call *call)
{
    (void)call;
    return LK_EIO;
}

static void evaluate_and_expect(const lk_operation *operation, lk_status status, const char *message)
{
    rig            r = rig_open(LK_F32, 1);
    float          x[12] = {0};
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_tensor      in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 3})), y = lk_apply(operation, &in, 1, NULL);
    config.outputs = &y;
    config.outputs_count = 1;
    rig_plan(&r, &config, 0);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK);
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = 3}) == LK_OK);
    CHECK(lk_program_run(r.program, LK_EVALUATE) == status);
    CHECK(strstr(lk_context_error(r.context), message), "%s", lk_context_error(r.context));
    rig_close(&r);
}

static void a_failing_callback_ends_the_section(void)
{
    lk_operation o = centre;
    o.forward = fails_with_a_message;
    evaluate_and_expect(&o, LK_EINVAL, "test_operation.c:");
    evaluate_and_expect(&o, LK_EINVAL, ": there are 3 rows");
    o.forward = fails_without;
    evaluate_and_expect(&o, LK_EIO, "its forward returned LK_EIO");
}

static lk_status forgets_the_last(const lk_operation_call *call)
{
    lk_operand part = call->outputs[0];
    part.dims[0]--;
    if (!call->backward) memcpy(part.data, call->inputs[0].data, (size_t)lk_operand_elements(&part) * 4);
    return LK_OK;
}

/* In the check mode every run of a program finds what is wrong; without it this one is a wrong result. */
static void programs_find_broken_promises_in_the_check_mode(void)
{
    lk_operation o = centre;
    o.forward = forgets_the_last;
    setenv("LOCKSTEP_CHECK_OPERATIONS", "1", 1);
    evaluate_and_expect(&o, LK_EMISMATCH, "centre at ");
    evaluate_and_expect(&o, LK_EMISMATCH, "forward does not write element 6 of output 0");
    result checked = run_variant((variant){.own = true, .checked = true});
    unsetenv("LOCKSTEP_CHECK_OPERATIONS");
    compare("in the check mode", checked, run_variant((variant){.own = true}), 0);
    evaluate_and_expect(&o, LK_OK, "");
}

/* ---- memory ---- */

/* Records, plans and checks an operation: the first failure. */
static lk_status use_operations(lk_context *context)
{
    lk_graph           *graph = NULL;
    lk_plan            *plan = NULL;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_operand          rows = {.dtype = LK_F32, .rank = 2, .dims = {5, 3}, .count_axis = 0, .count_unit = 1};
    lk_status           status = lk_graph_create(context, LK_F32, &graph);
    if (status >= 0) {
        lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){4, COLUMNS}));
        config.loss = lk_sum(record_model(x, true, true, 1.5));
        config.optimizer = &sgd;
        status = lk_plan_create(graph, &config, &plan);
    }
    if (status >= 0) status = lk_operation_check(context, &swish_gate, (lk_operand[]){rows, rows}, NULL, NULL);
    lk_plan_free(plan);
    lk_graph_free(graph);
    return status;
}

static void a_failing_allocation_gives_enomem_and_loses_nothing(void)
{
    lk_status status = LK_ENOMEM;
    for (int64_t n = 0; status != LK_OK && n < 5000; n++) {
        meter             m = {.left = n};
        lk_context_config config = LK_CONTEXT_CONFIG_INIT;
        lk_context       *context;
        config.threads = 1;
        config.allocator = metered(&m);
        status = lk_context_create(&config, &context);
        if (status >= 0) status = use_operations(context);
        CHECK(status == (atomic_load(&m.hit) ? LK_ENOMEM : LK_OK), "allocation %lld: %s, %s", (long long)n,
              lk_status_name(status), context ? lk_context_error(context) : "");
        lk_context_free(context);
        CHECK(atomic_load(&m.outstanding) == 0, "allocation %lld: %lld bytes are not freed", (long long)n,
              (long long)atomic_load(&m.outstanding));
    }
    CHECK(status == LK_OK);
}

/* ---- devices ---- */

static lk__device_kernel find_no_custom(lk__device *d, lk__op op, lk_dtype element, const lk__kernel_call *call)
{
    return call->custom ? (lk__device_kernel){0} : lk__device_cpu.kernels.find(d, op, element, call);
}

static void a_device_without_host_memory_refuses_it(void)
{
    rig                r = rig_open(LK_F32, 1);
    lk__device        *device = lk__context_device(r.context);
    lk__device_backend other = *device->backend;
    const void        *before = device->backend;
    lk_plan_config     config = LK_PLAN_CONFIG_INIT;
    other.kernels.find = find_no_custom;
    device->backend = &other;
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 3})), y = lk_apply(&centre, &x, 1, NULL);
    config.outputs = &y;
    config.outputs_count = 1;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(r.context), "centre at ") &&
              strstr(lk_context_error(r.context), "user-defined operations"),
          "%s", lk_context_error(r.context));
    device->backend = before;
    rig_close(&r);
}

int main(void)
{
    RUN(own_operations_give_the_results_of_built_in_ones);
    RUN(threads_and_recomputation_change_no_bit);
    RUN(images_are_row_major);
    RUN(every_output_can_have_a_gradient);
    RUN(ranks_share_a_batch);
    RUN(leaves_give_the_same_bits_at_any_size);
    RUN(a_sum_over_samples_is_one_over_ranks_and_leaves);
    RUN(ranks_with_other_attributes_are_refused);
    RUN(listings_and_fingerprints_show_the_operation);
    RUN(profiles_name_the_operation);
    RUN(invalid_operations_and_operands_are_refused);
    RUN(a_gradient_needs_a_backward);
    RUN(a_failing_callback_ends_the_section);
    RUN(programs_find_broken_promises_in_the_check_mode);
    RUN(a_failing_allocation_gives_enomem_and_loses_nothing);
    RUN(a_device_without_host_memory_refuses_it);
    return check_result();
}
