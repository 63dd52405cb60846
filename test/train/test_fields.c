/* test_fields.c - samples of named fields: what batches hold, and trainers with losses and metrics of the user's own,
 * compared with a loop in double.
 *
 * ctest: timeout 240, ranks 3 */
#include "check.h"

#include <lockstep.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SAMPLES = 45, WIDTH = 3, OUTPUTS = 2, BATCH = 20, STEPS = 7, MOST_RANKS = 3, MOST_METRICS = 4 };

/* ---- a data set of six fields ---- */

static uint8_t images[SAMPLES][2][3][3];
static int32_t labels[SAMPLES];
static int64_t ids[SAMPLES][4];
static float   xs[SAMPLES][WIDTH], targets[SAMPLES][OUTPUTS], weights[SAMPLES];

static void fill_arrays(void)
{
    uint32_t state = 1;
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = i % 5;
        for (int k = 0; k < 18; k++) (&images[i][0][0][0])[k] = (uint8_t)(i * 5 + k);
        for (int k = 0; k < 4; k++) ids[i][k] = ((int64_t)i << 33) - k;
        for (int k = 0; k < WIDTH + OUTPUTS; k++) {
            state = state * 1664525u + 1013904223u;
            *(k < WIDTH ? &xs[i][k] : &targets[i][k - WIDTH]) = (float)(int32_t)state / 2147483648.0f;
        }
        weights[i] = (float)(i % 4) / 2; /* some samples do not count */
    }
}

static const lk_field all_fields[] = {
    {.name = "image", .dtype = LK_U8, .rank = 3, .dims = {2, 3, 3}},
    {.name = "label", .dtype = LK_I32, .classes = 5},
    {.name = "ids", .dtype = LK_I64, .rank = 1, .dims = {4}},
    {.name = "x", .dtype = LK_F32, .rank = 1, .dims = {WIDTH}},
    {.name = "target", .dtype = LK_F32, .rank = 1, .dims = {OUTPUTS}},
    {.name = "weight", .dtype = LK_F32},
};
enum { FIELDS = sizeof all_fields / sizeof *all_fields, FIRST_REGRESSION = 3 };
static const void *const all_data[] = {images, labels, ids, xs, targets, weights};

static lk_status copy_sample(void *user, int64_t index, void *const *fields)
{
    (void)user;
    for (int i = 0; i < FIELDS; i++) {
        size_t bytes = lk_field_bytes(&all_fields[i]);
        memcpy(fields[i], (const char *)all_data[i] + (size_t)index * bytes, bytes);
    }
    return LK_OK;
}

static lk_dataset *make_arrays(lk_context *context, int first)
{
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_dataset              *d;
    config.count = SAMPLES;
    config.fields = all_fields + first;
    config.fields_count = FIELDS - first;
    config.data = all_data + first;
    REQUIRE(lk_dataset_from_arrays(context, &config, &d) == LK_OK, "%s", lk_context_error(context));
    return d;
}

static lk_dataset *make_callbacks(lk_context *context)
{
    lk_dataset_callbacks_config config = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_dataset                 *d;
    config.count = SAMPLES;
    config.fields = all_fields;
    config.fields_count = FIELDS;
    config.get = copy_sample;
    REQUIRE(lk_dataset_from_callbacks(context, &config, &d) == LK_OK, "%s", lk_context_error(context));
    return d;
}

static lk_context *make_context_on(const char *device)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    config.device = device;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    return context;
}
static lk_context *make_context(void) { return make_context_on(NULL); }

/* Element k of a row of a batch as a double, and what it must be: field 0 is normalised, (v / 255 - 0.5) / 0.5, unless
 * it is raw. */
static double element(const lk_field *f, const void *data, int64_t i)
{
    switch (f->dtype) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_U8: return ((const uint8_t *)data)[i];
    case LK_I32: return ((const int32_t *)data)[i];
    default: return (double)((const int64_t *)data)[i];
    }
}

static void check_row(const lk_batch *b, int64_t row, bool raw)
{
    for (int i = 0; i < FIELDS; i++) {
        const lk_field *f = &b->about[i];
        int64_t         n = lk_field_elements(f), at = b->indices[row];
        for (int64_t k = 0; k < n; k++) {
            double got = element(f, b->fields[i], row * n + k);
            double stored = at < 0 ? 0 : element(&all_fields[i], all_data[i], at * n + k);
            double wanted = i == 0 && !raw && at >= 0 ? (stored / 255 - 0.5) / 0.5 : stored;
            CHECK(fabs(got - wanted) <= (i == 0 && !raw ? 1e-6 : 0), "%s: sample %lld: %g, not %g", f->name,
                  (long long)at, got, wanted);
        }
    }
}

static void batches_hold_every_field_in_its_type(void)
{
    lk_context *context = make_context();
    for (int way = 0; way < 16; way++) { /* arrays or callbacks; f32 or f64; raw or not; two workers or none */
        lk_dataset      *d = way & 1 ? make_callbacks(context) : make_arrays(context, 0);
        lk_loader_config config = LK_LOADER_CONFIG_INIT;
        lk_loader       *loader;
        lk_batch         b;
        lk_field         field;
        int              seen = 0;
        lk_dtype         real = way & 2 ? LK_F64 : LK_F32, types[] = {real, LK_I32, LK_I64, real, real, real};
        bool             raw = way & 4;
        if (raw) types[0] = LK_U8;
        config.dataset = d;
        config.batch = 8;
        config.shuffle = true;
        config.dtype = real;
        config.transform.raw = raw;
        config.workers = way & 8 ? 2 : 0;
        REQUIRE(lk_loader_create(context, &config, &loader) == LK_OK, "%s", lk_context_error(context));
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == lk_loader_bytes(&config));
        while (lk_loader_next(loader, &b) == LK_OK) {
            CHECK(b.fields_count == FIELDS);
            for (int i = 0; i < FIELDS; i++)
                CHECK(b.about[i].dtype == types[i] && strcmp(b.about[i].name, all_fields[i].name) == 0 &&
                      (uintptr_t)b.fields[i] % 64 == 0);
            for (int64_t row = 0; row < 8; row++) check_row(&b, row, raw);
            seen += (int)b.count;
        }
        CHECK(seen == SAMPLES && lk_loader_field(&config, 0, &field) && field.dtype == types[0] &&
              !lk_loader_field(&config, FIELDS, &field));
        lk_loader_free(loader);
        lk_dataset_free(d);
    }
    lk_context_free(context);
}

static void fields_are_found_by_name_and_read_alone(void)
{
    lk_context *context = make_context();
    for (int way = 0; way < 2; way++) {
        lk_dataset *d = way ? make_callbacks(context) : make_arrays(context, 0);
        float       target[OUTPUTS];
        void       *some[FIELDS] = {NULL};
        CHECK(lk_dataset_fields(d) == FIELDS && lk_dataset_find(d, "ids") == lk_dataset_field(d, 2));
        CHECK(!lk_dataset_find(d, "id") && !lk_dataset_field(d, FIELDS) && !lk_dataset_field(d, -1));
        CHECK(lk_field_bytes(lk_dataset_find(d, "ids")) == 32 && lk_field_elements(lk_dataset_find(d, "weight")) == 1);
        CHECK(strcmp(lk_dataset_sample_name(d, 3), "") == 0 && !lk_field_class_name(lk_dataset_find(d, "label"), 0));
        some[4] = target;
        CHECK(lk_dataset_get(d, 7, some) == LK_OK && memcmp(target, targets[7], sizeof target) == 0);
        lk_dataset_free(d);
    }
    lk_context_free(context);
}

/* ---- a trainer with a loss and metrics of its own, against a loop in double ---- */

/* Weighted squares of a linear model, and four metrics: one of elements, one with weights, one of integers, another
 * loss. */
static lk_tensor weighted_squares(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor x = lk_inputs_find(inputs, "x"), target = lk_inputs_find(inputs, "target");
    lk_tensor weight = lk_inputs_find(inputs, "weight");
    lk_tensor y = lk_linear(x, "fc", OUTPUTS), difference = lk_sub(y, target);
    lk_tensor each = lk_sum(lk_mul(difference, difference), .axes = (int[]){1}, .axes_count = 1); /* (N) */
    lk_metric(difference, "bias");
    lk_metric(lk_mul(each, weight), "each", .weight = lk_sum(weight)); /* a call with options among the options */
    lk_metric(lk_argmax(target, -1), "class");
    lk_metric(lk_mse(y, target), "mse");
    return lk_loss(lk_mul(each, weight), .weight = weight);
}

typedef struct numbers {
    double loss;
    double sums[MOST_METRICS][2];
} numbers;

/* The same in double: one model, all samples of a batch, SGD. */
typedef struct oracle {
    double w[OUTPUTS][WIDTH], b[OUTPUTS];
} oracle;

static void oracle_sample(const oracle *o, int64_t i, numbers *n, double *weight, oracle *gradient)
{
    double square = 0;
    for (int k = 0; k < OUTPUTS; k++) {
        double difference = o->b[k] - (double)targets[i][k];
        for (int j = 0; j < WIDTH; j++) difference += o->w[k][j] * (double)xs[i][j];
        square += difference * difference;
        n->sums[0][0] += difference;
        gradient->b[k] += 2 * difference * (double)weights[i];
        for (int j = 0; j < WIDTH; j++) gradient->w[k][j] += 2 * difference * (double)weights[i] * (double)xs[i][j];
    }
    n->loss += square * (double)weights[i];
    *weight += (double)weights[i];
    n->sums[0][1] += OUTPUTS;
    n->sums[1][0] += square * (double)weights[i];
    n->sums[1][1] += (double)weights[i];
    n->sums[2][0] += targets[i][1] > targets[i][0];
    n->sums[2][1] += 1;
    n->sums[3][0] += square;
    n->sums[3][1] += OUTPUTS;
}

static const double RATE = 0.1;

static numbers oracle_batch(oracle *o, const int64_t *indices, int64_t count, bool train)
{
    numbers n = {0};
    oracle  gradient = {{{0}}, {0}};
    double  weight = 0;
    for (int64_t i = 0; i < count; i++) oracle_sample(o, indices[i], &n, &weight, &gradient);
    n.loss /= weight;
    for (int k = 0; k < OUTPUTS && train; k++) {
        o->b[k] -= RATE * gradient.b[k] / weight;
        for (int j = 0; j < WIDTH; j++) o->w[k][j] -= RATE * gradient.w[k][j] / weight;
    }
    return n;
}

typedef struct test_case {
    lk_trainer_config config;
    int               world;
    numbers          *seen; /* (STEPS + 1): the last is the evaluation; memory shared with the ranks */
    uint64_t         *hash;
    oracle            start;
} test_case;

static void keep_numbers(numbers *to, double loss, const lk_named_metric *metrics, int count)
{
    static const char *const names[] = {"bias", "each", "class", "mse"};
    CHECK(count == MOST_METRICS, "%d metrics", count);
    to->loss = loss;
    for (int i = 0; i < MOST_METRICS; i++) {
        const lk_named_metric *m = lk_metrics_find(metrics, count, names[i]);
        REQUIRE(m, "no metric %s", names[i]);
        CHECK(m->value == m->sum / m->weight);
        to->sums[i][0] = m->sum;
        to->sums[i][1] = m->weight;
    }
}

static int on_event(void *user, const lk_event *e)
{
    test_case *t = user;
    bool       step = e->kind == LK_EVENT_STEP;
    if (step || e->kind == LK_EVENT_EVALUATED)
        keep_numbers(&t->seen[step ? e->step - 1 : STEPS], e->loss, e->metrics, e->metrics_count);
    return 0;
}

static void read_weights(lk_trainer *t, lk_dtype type, oracle *o)
{
    lk_store *store = lk_trainer_store(t);
    float     narrow[OUTPUTS * WIDTH];
    void     *to = type == LK_F64 ? (void *)o->w : narrow;
    CHECK(lk_store_read(store, "fc.weight", LK_STATE_VALUE, 0, OUTPUTS * WIDTH, to,
                        OUTPUTS * WIDTH * lk_dtype_size(type)) == LK_OK);
    for (int i = 0; type == LK_F32 && i < OUTPUTS * WIDTH; i++) (&o->w[0][0])[i] = (double)narrow[i];
    to = type == LK_F64 ? (void *)o->b : narrow;
    CHECK(lk_store_read(store, "fc.bias", LK_STATE_VALUE, 0, OUTPUTS, to, OUTPUTS * lk_dtype_size(type)) == LK_OK);
    for (int i = 0; type == LK_F32 && i < OUTPUTS; i++) o->b[i] = (double)narrow[i];
}

static int run_rank(int rank, void *user)
{
    test_case     *s = user;
    lk_context    *context = make_context();
    lk_comm_config joining = LK_COMM_CONFIG_INIT;
    lk_trainer    *t = NULL;
    lk_dataset    *data = make_arrays(context, FIRST_REGRESSION);
    joining.join_ms = joining.timeout_ms = 60000;
    if (s->world > 1)
        REQUIRE(lk_comm_create(context, &joining, &s->config.comm) == LK_OK, "%s", lk_context_error(context));
    s->config.train = s->config.test = data;
    s->config.event = rank == 0 ? on_event : NULL;
    s->config.event_user = s;
    REQUIRE(lk_trainer_create(context, &s->config, &t) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) read_weights(t, s->config.dtype, (oracle *)(s->hash + 1));
    CHECK(lk_trainer_run(t) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) *s->hash = lk_store_hash(lk_trainer_store(t));
    lk_trainer_free(t);
    lk_comm_free(s->config.comm);
    lk_dataset_free(data);
    lk_context_free(context);
    return check_result();
}

static void run_case(test_case *s, numbers seen[STEPS + 1], uint64_t *hash)
{
    size_t          bytes = (STEPS + 1) * sizeof(numbers) + sizeof(uint64_t) + sizeof(oracle);
    lk_spawn_result result;
    s->seen = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(s->seen != MAP_FAILED);
    s->hash = (uint64_t *)(s->seen + STEPS + 1);
    check_ranks_announced(s->world);
    CHECK(lk_spawn(s->world, run_rank, s, &result) == LK_OK, "%s", result.text);
    memcpy(seen, s->seen, (STEPS + 1) * sizeof *seen);
    *hash = *s->hash;
    memcpy(&s->start, s->hash + 1, sizeof s->start);
    munmap(s->seen, bytes);
    s->config.comm = NULL;
}

static test_case make_case(int world, lk_dtype dtype)
{
    test_case s = {.config = LK_TRAINER_CONFIG_INIT, .world = world};
    s.config.loss = weighted_squares;
    s.config.dtype = dtype;
    s.config.batch = BATCH; /* the last batch of an epoch has 5 */
    s.config.steps = STEPS;
    s.config.optimizer.kind = LK_SGD;
    s.config.optimizer.lr = RATE;
    s.config.seed = 3;
    s.config.workers = 0;
    return s;
}

/* The order in which the trainer's loader gives the samples. */
static void oracle_run(const test_case *s, numbers wanted[STEPS + 1])
{
    lk_context      *context = make_context_on("cpu"); /* the next case forks */
    lk_dataset      *data = make_arrays(context, FIRST_REGRESSION);
    lk_loader_config config = LK_LOADER_CONFIG_INIT;
    oracle           o = s->start;
    lk_loader       *loader;
    lk_batch         b;
    int64_t          all[SAMPLES];
    config.dataset = data;
    config.batch = BATCH;
    config.shuffle = true;
    config.seed = s->config.seed;
    REQUIRE(lk_loader_create(context, &config, &loader) == LK_OK);
    for (int step = 0; step < STEPS;) {
        if (lk_loader_next(loader, &b) != LK_OK) continue; /* the end of an epoch */
        wanted[step++] = oracle_batch(&o, b.indices, b.count, true);
    }
    for (int64_t i = 0; i < SAMPLES; i++) all[i] = i;
    wanted[STEPS] = oracle_batch(&o, all, SAMPLES, false);
    lk_loader_free(loader);
    lk_dataset_free(data);
    lk_context_free(context);
}

static void check_numbers(const numbers *seen, const numbers *wanted, double tolerance, const char *what)
{
    for (int step = 0; step <= STEPS; step++) {
        CHECK(fabs(seen[step].loss - wanted[step].loss) <= tolerance * fabs(wanted[step].loss),
              "%s: step %d: loss %.17g, %.17g", what, step, seen[step].loss, wanted[step].loss);
        for (int i = 0; i < MOST_METRICS; i++) {
            const double *got = seen[step].sums[i], *want = wanted[step].sums[i];
            CHECK(fabs(got[0] - want[0]) <= tolerance * 10 && got[1] == want[1],
                  "%s: step %d: metric %d: %.17g / %.17g, not %.17g / %.17g", what, step, i, got[0], got[1], want[0],
                  want[1]);
        }
    }
}

static void losses_and_metrics_are_those_of_a_loop_in_double(void)
{
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int way = 0; way < 3; way++) { /* plain, with micro-batches, with leaves */
            test_case s = make_case(world, LK_F64);
            numbers   seen[STEPS + 1], wanted[STEPS + 1];
            uint64_t  hash;
            char      what[64];
            if (way == 1) s.config.accumulate = 3;
            if (way == 2) s.config.leaves = 4;
            run_case(&s, seen, &hash);
            oracle_run(&s, wanted);
            snprintf(what, sizeof what, "%d ranks, way %d", world, way);
            check_numbers(seen, wanted, 1e-13, what);
        }
}

static void metrics_have_the_same_bits_at_any_world_size(void)
{
    for (int policy = 0; policy < 2; policy++) {
        numbers  first[STEPS + 1], seen[STEPS + 1];
        uint64_t hash = 0, other;
        for (int world = 1; world <= MOST_RANKS; world++) {
            test_case s = make_case(world, LK_F32);
            s.config.leaves = 4;
            s.config.policy = policy ? LK_POLICY_BF16 : LK_POLICY_RECORDED;
            run_case(&s, world == 1 ? first : seen, world == 1 ? &hash : &other);
            if (world == 1) continue;
            CHECK(memcmp(seen, first, sizeof seen) == 0 && other == hash, "%d ranks", world);
        }
        CHECK(first[0].loss > 0 && first[STEPS].loss < first[0].loss, "%g, %g", first[0].loss, first[STEPS].loss);
    }
}

/* ---- what is refused ---- */

static lk_tensor wrong_name(const lk_inputs *inputs, void *user)
{
    (void)user;
    return lk_loss(lk_linear(lk_inputs_find(inputs, "x"), "fc", 1), .weight = lk_inputs_find(inputs, "wieght"));
}
static lk_tensor no_loss(const lk_inputs *inputs, void *user)
{
    (void)inputs, (void)user;
    return (lk_tensor){0};
}
static lk_tensor twice(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor y = lk_linear(lk_inputs_find(inputs, "x"), "fc", 1);
    lk_metric(y, "same");
    lk_metric(y, "same");
    return lk_loss(y);
}
static lk_tensor trained_weight(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor y = lk_linear(lk_inputs_find(inputs, "x"), "fc", 1);
    return lk_loss(y, .weight = y);
}
/* Numbers without an axis of samples, made from samples: each rank would have another mean. */
static lk_tensor mean_metric(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor y = lk_linear(lk_inputs_find(inputs, "x"), "fc", 1);
    lk_metric(lk_mean(y), "average");
    return lk_loss(y);
}
static lk_tensor summed_loss(const lk_inputs *inputs, void *user)
{
    (void)user;
    return lk_loss(lk_relu(lk_sum(lk_linear(lk_inputs_find(inputs, "x"), "fc", 1))));
}
static lk_tensor mean_loss(const lk_inputs *inputs, void *user)
{
    (void)user;
    return lk_mean(lk_linear(lk_inputs_find(inputs, "x"), "fc", OUTPUTS));
}
static lk_tensor squared_loss(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor mse = lk_mse(lk_linear(lk_inputs_find(inputs, "x"), "fc", OUTPUTS), lk_inputs_find(inputs, "target"));
    return lk_add(mse, lk_mul(mse, mse));
}
static lk_tensor mean_beside_loss(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor y = lk_linear(lk_inputs_find(inputs, "x"), "fc", OUTPUTS);
    return lk_add(lk_mse(y, lk_inputs_find(inputs, "target")), lk_cast(lk_mean(y), LK_F64));
}
static lk_tensor loss_of_samples(const lk_inputs *inputs, void *user)
{
    (void)user;
    return lk_linear(lk_inputs_find(inputs, "x"), "fc", 1);
}
static lk_tensor model_of_x(lk_tensor x) { return lk_linear(x, "fc", 3); }

static void mistakes_are_named(void)
{
    static const struct {
        lk_tensor (*loss)(const lk_inputs *inputs, void *user);
        const char *text;
    } cases[] = {
        {wrong_name, "no field \"wieght\" (did you mean weight?); its fields are x, target, weight"},
        {no_loss, "the loss function did not return a tensor"},
        {twice, "metric \"same\" already exists"},
        {trained_weight, "the weight has no gradient"},
        {mean_metric, "metric \"average\": x is already summed or averaged over samples"},
        {summed_loss, "loss: x is already summed or averaged over samples"},
        {mean_loss, "the loss is summed or averaged over samples"},
        {squared_loss, "mul of a loss is not supported. A loss is a sum over samples until the update divides it"},
        {mean_beside_loss, "this part of the loss is summed or averaged over samples"},
        {loss_of_samples, "the loss must be a single number: lk_loss sums"},
        {NULL, "a field \"label\" with class numbers"}};
    lk_context *context = make_context();
    lk_dataset *data = make_arrays(context, FIRST_REGRESSION);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
        lk_trainer       *t;
        config.loss = cases[i].loss;
        if (!config.loss) config.model = model_of_x;
        config.train = data;
        CHECK(lk_trainer_create(context, &config, &t) < 0 && strstr(lk_context_error(context), cases[i].text), "%s",
              lk_context_error(context));
    }
    lk_loader_config loading = LK_LOADER_CONFIG_INIT;
    lk_loader       *loader;
    loading.dataset = data;
    loading.transform.raw = true;
    loading.transform.flip = 0.5;
    CHECK(lk_loader_create(context, &loading, &loader) == LK_EINVAL && strstr(lk_context_error(context), "raw"), "%s",
          lk_context_error(context));
    lk_dataset_free(data);
    lk_context_free(context);
}

int main(void)
{
    fill_arrays();
    RUN_APART(batches_hold_every_field_in_its_type);
    RUN_APART(fields_are_found_by_name_and_read_alone);
    RUN_APART(losses_and_metrics_are_those_of_a_loop_in_double);
    RUN_APART(metrics_have_the_same_bits_at_any_world_size);
    RUN_APART(mistakes_are_named);
    return check_result();
}
