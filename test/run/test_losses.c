/* test_losses.c - several losses that are added: each is divided by its own weight in the global batch, whatever ranks,
 * micro-batches or leaves it is split over, and whoever has no labels for one of them. Compared with a loop in double,
 * whose gradient is a difference.
 *
 * ctest: timeout 240, ranks 3 */
#include "copies.h"
#include "plan/plan.h"

#include <lockstep.h>
#include <math.h>
#include <sys/mman.h>

enum { SAMPLES = 22, WIDTH = 3, HIDDEN = 4, CLASSES = 3, OUTPUTS = 2, STEPS = 4 };
enum {
    A_WEIGHT = CLASSES * HIDDEN,
    PRIORS = 6, /* numbers of each of two parameters that no sample uses */
    NUMBERS = HIDDEN * WIDTH + HIDDEN + A_WEIGHT + CLASSES + OUTPUTS * HIDDEN + OUTPUTS + 2 * PRIORS
};
static const double      rate = 0.3, factor_b = 0.5, factor_c = -0.25, factor_penalty = 0.01;
static const char *const names[] = {"trunk.weight", "trunk.bias", "a.weight", "a.bias",
                                    "b.weight",     "b.bias",     "prior",    "shaped"};
static const int sizes[] = {HIDDEN * WIDTH, HIDDEN, A_WEIGHT, CLASSES, OUTPUTS *HIDDEN, OUTPUTS, PRIORS, PRIORS};

static bool single; /* the model has loss b and the penalty alone */

/* ---- data: head a has labels for the last rows alone, so that a first rank, micro-batch or leaf has none ---- */

static float   xs[SAMPLES][WIDTH], targets[SAMPLES][OUTPUTS], weights[SAMPLES];
static int32_t labels[SAMPLES], others[SAMPLES];

static void fill_data(void)
{
    uint32_t state = 5;
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = i < 15 ? -100 : i % CLASSES;
        others[i] = i % 4 == 1 ? -100 : (i * 7) % CLASSES;
        weights[i] = (float)(i % 5) / 4;
        for (int k = 0; k < WIDTH + OUTPUTS; k++) {
            state = state * 1664525u + 1013904223u;
            *(k < WIDTH ? &xs[i][k] : &targets[i][k - WIDTH]) = (float)(int32_t)state / 2147483648.0f;
        }
    }
}

/* ---- the model ---- */

/* Of two parameters that no sample uses, of which one is reshaped first. */
static lk_tensor record_priors(lk_graph *g)
{
    lk_tensor prior = lk_parameter(g, "prior", 1, ((int64_t[]){PRIORS}), .init = LK_INIT_UNIFORM, .a = 0.5);
    lk_tensor shaped = lk_parameter(g, "shaped", 1, ((int64_t[]){PRIORS}), .init = LK_INIT_UNIFORM, .a = 0.5);
    shaped = lk_reshape(shaped, 2, ((int64_t[]){2, PRIORS / 2}));
    return lk_add(lk_sum(lk_mul(prior, prior)), lk_sum(lk_mul(shaped, shaped)));
}

static lk_tensor record_loss(lk_graph *g, lk_tensor x, lk_tensor label, lk_tensor other, lk_tensor weight,
                             lk_tensor target)
{
    lk_tensor h = lk_tanh(lk_linear(x, "trunk", HIDDEN));
    lk_tensor w = lk_parameter(g, "a.weight", 2, ((int64_t[]){CLASSES, HIDDEN}), .init = LK_INIT_UNIFORM, .a = 0.5);
    lk_tensor b = lk_parameter(g, "a.bias", 1, ((int64_t[]){CLASSES}));
    lk_tensor a = lk_f_linear(h, w, b), y = lk_linear(h, "b", OUTPUTS);
    lk_tensor loss_a = lk_cross_entropy(a, label), loss_b = lk_mse(y, target);
    lk_tensor loss_c = lk_cross_entropy(a, other, .weight = weight, .label_smoothing = 0.1);
    lk_tensor penalty = lk_add(lk_sum(lk_mul(w, w)), record_priors(g));
    lk_metric(loss_a, "a");
    lk_metric(loss_b, "b");
    if (lk_tensor_dtype(penalty) != LK_F64) penalty = lk_cast(penalty, LK_F64);
    if (single) return lk_add(loss_b, lk_scale(penalty, factor_penalty));
    lk_tensor loss = lk_add(lk_add(loss_a, lk_scale(loss_b, factor_b)), lk_scale(penalty, factor_penalty));
    return lk_sub(loss, lk_scale(loss_c, -factor_c));
}

/* ---- the oracle ---- */

static double row_entropy(const double *logits, int label, double smoothing)
{
    double sum = 0, all = 0;
    for (int k = 0; k < CLASSES; k++) sum += exp(logits[k]);
    for (int k = 0; k < CLASSES; k++) all += log(sum) - logits[k];
    return (1 - smoothing) * (log(sum) - logits[label]) + smoothing * all / CLASSES;
}

/* The losses of rows first … last - 1 from the parameters, one after the other in `p`. */
static double oracle_loss(const double *p, int first, int last, double means[3])
{
    const double *tw = p, *tb = tw + HIDDEN * WIDTH, *aw = tb + HIDDEN, *ab = aw + A_WEIGHT, *bw = ab + CLASSES;
    const double *bb = bw + OUTPUTS * HIDDEN, *priors = bb + OUTPUTS;
    double        sum[3] = {0}, count[3] = {0}, loss = 0;
    for (int i = first; i < last; i++) {
        double h[HIDDEN], a[CLASSES];
        for (int k = 0; k < HIDDEN; k++) {
            h[k] = tb[k];
            for (int j = 0; j < WIDTH; j++) h[k] += tw[k * WIDTH + j] * (double)xs[i][j];
            h[k] = tanh(h[k]);
        }
        for (int k = 0; k < CLASSES; k++) {
            a[k] = ab[k];
            for (int j = 0; j < HIDDEN; j++) a[k] += aw[k * HIDDEN + j] * h[j];
        }
        for (int k = 0; k < OUTPUTS; k++) {
            double y = bb[k] - (double)targets[i][k];
            for (int j = 0; j < HIDDEN; j++) y += bw[k * HIDDEN + j] * h[j];
            sum[1] += y * y;
            count[1]++;
        }
        if (labels[i] >= 0) sum[0] += row_entropy(a, labels[i], 0), count[0]++;
        if (others[i] < 0) continue;
        sum[2] += (double)weights[i] * row_entropy(a, others[i], 0.1);
        count[2] += (double)weights[i];
    }
    for (int k = 0; k < 3; k++) means[k] = count[k] != 0 ? sum[k] / count[k] : 0;
    for (int k = 0; k < A_WEIGHT; k++) loss += factor_penalty * aw[k] * aw[k];
    for (int k = 0; k < 2 * PRIORS; k++) loss += factor_penalty * priors[k] * priors[k];
    return single ? loss + means[1] : loss + means[0] + factor_b * means[1] + factor_c * means[2];
}

typedef struct trained {
    double   start[NUMBERS], end[NUMBERS], losses[STEPS], a[STEPS], b[STEPS];
    uint64_t hash;
} trained;

/* Rows of step `step`, from 0: all; the first ones, of which none has a label for head a; then others. */
static void rows_of(int step, int *first, int *last)
{
    *first = step == 2 ? 3 : 0;
    *last = step == 1 ? 15 : SAMPLES;
}

static void oracle_train(const double *start, trained *wanted, bool whole)
{
    double p[NUMBERS], gradient[NUMBERS], means[3];
    memcpy(p, start, sizeof p);
    for (int step = 0; step < STEPS; step++) {
        int first = 0, last = SAMPLES;
        if (!whole) rows_of(step, &first, &last);
        wanted->losses[step] = oracle_loss(p, first, last, means);
        wanted->a[step] = means[0];
        wanted->b[step] = means[1];
        for (int k = 0; k < NUMBERS; k++) {
            double at = p[k], by = 1e-5, above;
            p[k] = at + by;
            above = oracle_loss(p, first, last, means);
            p[k] = at - by;
            gradient[k] = (above - oracle_loss(p, first, last, means)) / (2 * by);
            p[k] = at;
        }
        for (int k = 0; k < NUMBERS; k++) p[k] -= rate * gradient[k];
    }
    memcpy(wanted->end, p, sizeof p);
}

static void check_trained(const trained *seen, bool whole, double tolerance, const char *what)
{
    static trained wanted;
    oracle_train(seen->start, &wanted, whole);
    for (int i = 0; i < STEPS; i++) {
        CHECK(fabs(seen->losses[i] - wanted.losses[i]) < tolerance, "%s, step %d: loss %.12g, %.12g", what, i + 1,
              seen->losses[i], wanted.losses[i]);
        CHECK(fabs(seen->a[i] - wanted.a[i]) < tolerance && fabs(seen->b[i] - wanted.b[i]) < tolerance,
              "%s, step %d: %.9g and %.9g, %.9g and %.9g", what, i + 1, seen->a[i], seen->b[i], wanted.a[i],
              wanted.b[i]);
    }
    for (int i = 0; i < NUMBERS; i++)
        CHECK(fabs(seen->end[i] - wanted.end[i]) < tolerance, "%s: parameter %d: %.12g, %.12g", what, i, seen->end[i],
              wanted.end[i]);
}

/* ---- a loop by hand ---- */

typedef struct job {
    int         world, micro_batches, leaves;
    bool        one_by_one, by_sections, shared, narrow;
    double      tolerance;
    lk_policy   policy;
    trained    *out;
    const char *what;
} job;

static lk_context *make_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    return context;
}

static void read_numbers(const lk_store *store, lk_dtype type, double *to)
{
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); to += sizes[i++]) {
        const void *data = state_copy(store, names[i]);
        for (int k = 0; k < sizes[i]; k++)
            to[k] = type == LK_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
    }
}

static lk_comm *join(lk_context *context, int world)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    lk_comm       *comm = NULL;
    config.join_ms = config.timeout_ms = 60000;
    if (world > 1) REQUIRE(lk_comm_create(context, &config, &comm) == LK_OK, "%s", lk_context_error(context));
    return comm;
}

static void run_step(const job *j, lk_context *context, lk_program *program, const lk_step *step)
{
    if (!j->by_sections) {
        REQUIRE(lk_program_train(program, step) == LK_OK, "%s: %s", j->what, lk_context_error(context));
        return;
    }
    REQUIRE(lk_program_step(program, step) == LK_OK && lk_program_run(program, LK_FORWARD) == LK_OK &&
                lk_program_run(program, LK_BACKWARD) == LK_OK && lk_program_run(program, LK_UPDATE) == LK_OK,
            "%s: %s", j->what, lk_context_error(context));
}

static int run_rank(int rank, void *user)
{
    const job          *j = user;
    lk_dtype            real = j->narrow ? LK_F32 : LK_F64;
    lk_context         *context = make_context();
    lk_comm            *comm = join(context, j->world);
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_parallel parallel = {.world = j->world, .rank = rank, .micro_batches = j->micro_batches, .leaves = j->leaves};
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    double      x[SAMPLES][WIDTH], target[SAMPLES][OUTPUTS], weight[SAMPLES];
    check_failures = 0;
    if (j->shared) parallel.state = LK_STATE_SHARED;
    int64_t capacity = lk_parallel_capacity(&parallel, SAMPLES);
    REQUIRE(lk_graph_create(context, real, &graph) == LK_OK);
    lk_tensor in = lk_input(graph, "x", real, 2, ((int64_t[]){capacity, WIDTH}));
    lk_tensor label = lk_input(graph, "label", LK_I32, 1, &capacity),
              other = lk_input(graph, "other", LK_I32, 1, &capacity);
    lk_tensor w = lk_input(graph, "weight", real, 1, &capacity);
    lk_tensor y = lk_input(graph, "target", real, 2, ((int64_t[]){capacity, OUTPUTS}));
    sgd.kind = LK_SGD;
    sgd.lr = rate;
    config.loss = record_loss(graph, in, label, other, w, y);
    config.optimizer = &sgd;
    config.parallel = parallel;
    config.policy = j->policy;
    REQUIRE(lk__plan_create(graph, &config, j->one_by_one, &plan) == LK_OK, "%s", lk_context_error(context));
    REQUIRE((j->shared ? lk_store_create_shared(plan, 2, comm, &store) : lk_store_create(plan, 2, &store)) == LK_OK,
            "%s", lk_context_error(context));
    REQUIRE(lk_program_create(plan, store, comm, &program) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) read_numbers(store, real, j->out->start);
    for (int step = 0; step < STEPS; step++) {
        int first, last;
        rows_of(step, &first, &last);
        lk__split_job split = {j->world, rank, j->leaves, j->micro_batches ? j->micro_batches : 1};
        lk__range     own = lk__split_own(&split);
        int64_t       total = last - first, parts = lk__split_parts(&split);
        int64_t       row = first + lk__split(total, parts, own.first), end = first + lk__split(total, parts, own.end);
        for (int64_t i = row; i < end; i++) { /* dense in the program's type, from the rank's first row */
            for (int k = 0; k < WIDTH; k++)
                j->narrow ? (void)(((float *)x)[(i - row) * WIDTH + k] = xs[i][k])
                          : (void)(x[i - row][k] = (double)xs[i][k]);
            for (int k = 0; k < OUTPUTS; k++)
                j->narrow ? (void)(((float *)target)[(i - row) * OUTPUTS + k] = targets[i][k])
                          : (void)(target[i - row][k] = (double)targets[i][k]);
            j->narrow ? (void)(((float *)weight)[i - row] = weights[i]) : (void)(weight[i - row] = (double)weights[i]);
        }
        REQUIRE(lk_program_bind(program, "x", x) == LK_OK && lk_program_bind(program, "label", labels + row) == LK_OK &&
                lk_program_bind(program, "other", others + row) == LK_OK &&
                lk_program_bind(program, "weight", weight) == LK_OK &&
                lk_program_bind(program, "target", target) == LK_OK);
        lk_step    now = LK_STEP_INIT; /* the optimizer's rate */
        lk_metrics m;
        now.step = step + 1;
        now.count = end - row;
        now.total = total;
        run_step(j, context, program, &now);
        lk_program_metrics(program, &m);
        if (rank) continue;
        j->out->losses[step] = m.loss;
        j->out->a[step] = m.named[0].value;
        j->out->b[step] = m.named[1].value;
    }
    if (rank == 0) read_numbers(store, real, j->out->end);
    if (rank == 0) j->out->hash = lk_store_hash(store);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_comm_free(comm);
    lk_context_free(context);
    return check_result();
}

static trained *new_trained(void)
{
    trained *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(t != MAP_FAILED);
    return t;
}

static uint64_t run_job(job j)
{
    lk_spawn_result result;
    j.out = new_trained();
    check_ranks_announced(j.world);
    CHECK(lk_spawn(j.world, run_rank, &j, &result) == LK_OK, "%s: %s", j.what, result.text);
    check_trained(j.out, false, j.tolerance > 0 ? j.tolerance : 1e-8, j.what);
    uint64_t hash = j.out->hash;
    munmap(j.out, sizeof *j.out);
    return hash;
}

static bool on_cpu(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return !device || !*device || strcmp(device, "cpu") == 0;
}

static void each_loss_is_divided_by_its_own_weight(void)
{
    run_job((job){.world = 1, .what = "one rank"});
    run_job((job){.world = 1, .by_sections = true, .what = "by sections"});
    run_job((job){.world = 1, .micro_batches = 3, .what = "three micro-batches"});
    run_job((job){.world = 1, .narrow = true, .tolerance = 1e-5, .what = "f32"});
    run_job((job){.world = 1, .narrow = true, .policy = LK_POLICY_BF16, .tolerance = 5e-2, .what = "bf16"});
}

static void ranks_and_micro_batches_change_nothing(void)
{
    for (int world = 2; world <= 3; world++) {
        run_job((job){.world = world, .what = "ranks"});
        run_job((job){.world = world, .by_sections = true, .what = "ranks, by sections"});
        run_job((job){.world = world, .micro_batches = 2, .what = "ranks and micro-batches"});
        if (on_cpu()) run_job((job){.world = world, .shared = true, .micro_batches = 3, .what = "shared state"});
    }
}

static void leaves_give_the_same_bits_at_any_number_of_ranks(void)
{
    uint64_t hash = run_job((job){.world = 1, .leaves = 5, .what = "leaves"});
    for (int world = 1; world <= 3; world++) {
        uint64_t other =
            run_job((job){.world = world, .leaves = 5, .one_by_one = world == 2, .what = "leaves and ranks"});
        CHECK(other == hash, "%d ranks", world);
    }
}

/* The gradient of the penalty is the same on every leaf, each of which has its own set of gradients. */
static void a_penalty_counts_once_whatever_leaves_there_are(void)
{
    single = true;
    uint64_t hash = run_job((job){.world = 1, .leaves = 5, .what = "penalty, leaves"});
    CHECK(run_job((job){.world = 1, .leaves = 4, .micro_batches = 2, .what = "penalty, micro-batches"}) != 0);
    for (int world = 2; world <= 3; world++)
        CHECK(run_job((job){.world = world, .leaves = 5, .what = "penalty, ranks"}) == hash, "%d ranks", world);
    single = false;
}

/* ---- the trainer ---- */

typedef struct training {
    int      world, accumulate, leaves;
    trained *out;
} training;

static lk_dataset *make_set(lk_context *context)
{
    static const lk_field    fields[] = {{.name = "x", .dtype = LK_F32, .rank = 1, .dims = {WIDTH}},
                                         {.name = "label", .dtype = LK_I32},
                                         {.name = "other", .dtype = LK_I32},
                                         {.name = "weight", .dtype = LK_F32},
                                         {.name = "target", .dtype = LK_F32, .rank = 1, .dims = {OUTPUTS}}};
    const void              *data[] = {xs, labels, others, weights, targets};
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_dataset              *set;
    config.count = SAMPLES;
    config.fields = fields;
    config.fields_count = 5;
    config.data = data;
    REQUIRE(lk_dataset_from_arrays(context, &config, &set) == LK_OK, "%s", lk_context_error(context));
    return set;
}

static lk_tensor trainer_loss(const lk_inputs *in, void *user)
{
    (void)user;
    return record_loss(in->graph, lk_inputs_find(in, "x"), lk_inputs_find(in, "label"), lk_inputs_find(in, "other"),
                       lk_inputs_find(in, "weight"), lk_inputs_find(in, "target"));
}

static int on_event(void *user, const lk_event *e)
{
    trained *out = user;
    if (e->kind != LK_EVENT_STEP) return 0;
    out->losses[e->step - 1] = e->loss;
    out->a[e->step - 1] = e->metrics[0].value;
    out->b[e->step - 1] = e->metrics[1].value;
    return 0;
}

/* The mean over a test set whose batches have other weights each is not the mean of the batches' means. */
static void check_evaluation(lk_context *context, const training *t, lk_comm *comm, lk_trainer *trainer)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_trainer       *evaluator;
    lk_evaluation     result;
    double            p[NUMBERS], means[3];
    lk_dataset       *set = make_set(context);
    config.loss = trainer_loss;
    config.dtype = LK_F64;
    config.test = set;
    config.batch = 7;
    config.workers = 0;
    config.comm = comm;
    config.leaves = t->leaves;
    REQUIRE(lk_trainer_create(context, &config, &evaluator) == LK_OK, "%s", lk_context_error(context));
    for (size_t i = 0; i < lk_store_count(lk_trainer_store(trainer)); i++) {
        lk_state s = lk_store_at(lk_trainer_store(evaluator), i);
        write_state(lk_trainer_store(evaluator), &s, state_copy(lk_trainer_store(trainer), s.name));
    }
    read_numbers(lk_trainer_store(evaluator), LK_F64, p);
    REQUIRE(lk_trainer_evaluate(evaluator, &result) == LK_OK, "%s", lk_context_error(context));
    CHECK(fabs(result.loss - oracle_loss(p, 0, SAMPLES, means)) < 1e-12 && result.samples == SAMPLES, "%.17g",
          result.loss);
    lk_trainer_free(evaluator);
    lk_dataset_free(set);
}

static int train_rank(int rank, void *user)
{
    const training   *t = user;
    lk_context       *context = make_context();
    lk_comm          *comm = join(context, t->world);
    lk_dataset       *set = make_set(context);
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_trainer       *trainer;
    check_failures = 0;
    config.loss = trainer_loss;
    config.dtype = LK_F64;
    config.train = set;
    config.batch = SAMPLES; /* each step has all samples, in some order */
    config.steps = STEPS;
    config.optimizer.kind = LK_SGD;
    config.optimizer.lr = rate;
    config.workers = 0;
    config.comm = comm;
    config.accumulate = t->accumulate;
    config.leaves = t->leaves;
    if (rank == 0) config.event = on_event, config.event_user = t->out;
    REQUIRE(lk_trainer_create(context, &config, &trainer) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) read_numbers(lk_trainer_store(trainer), LK_F64, t->out->start);
    CHECK(lk_trainer_run(trainer) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) read_numbers(lk_trainer_store(trainer), LK_F64, t->out->end);
    check_evaluation(context, t, comm, trainer);
    lk_trainer_free(trainer);
    lk_dataset_free(set);
    lk_comm_free(comm);
    lk_context_free(context);
    return check_result();
}

static void trainers_add_losses(void)
{
    static const training cases[] = {
        {1, 1, 0, NULL}, {1, 3, 0, NULL}, {2, 1, 0, NULL}, {3, 2, 0, NULL}, {2, 1, 4, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training        t = cases[i];
        lk_spawn_result result;
        char            what[80];
        t.out = new_trained();
        snprintf(what, sizeof what, "trainer, %d ranks, %d micro-batches, %d leaves", t.world, t.accumulate, t.leaves);
        CHECK(lk_spawn(t.world, train_rank, &t, &result) == LK_OK, "%s: %s", what, result.text);
        check_trained(t.out, true, 1e-8, what);
        munmap(t.out, sizeof *t.out);
    }
}

int main(void)
{
    fill_data();
    RUN_APART(each_loss_is_divided_by_its_own_weight);
    RUN_APART(ranks_and_micro_batches_change_nothing);
    RUN_APART(leaves_give_the_same_bits_at_any_number_of_ranks);
    RUN_APART(a_penalty_counts_once_whatever_leaves_there_are);
    RUN_APART(trainers_add_losses);
    return check_result();
}
