/* test_trainer_ranks.c - trainers of several ranks: memory, refused options, detected failures, and that evaluation
 * uses every sample once.
 *
 * ctest: timeout 240, ranks 4 */
#include "check.h"
#include "copies.h"

#include <lockstep.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 4, TEXT = 2048 };

static char root[] = "/tmp/lockstep-ranks-XXXXXX";

/* The results of each rank, in memory shared with the parent. */
typedef struct results {
    int      status[MOST_RANKS];
    char     text[MOST_RANKS][TEXT]; /* the error */
    int64_t  step[MOST_RANKS];
    int      warnings; /* log lines that contain "not used" */
    char     warning[TEXT];
    int      nan_rank; /* 1 + the rank whose loader read the NaN sample; 0: none yet */
    double   loss, accuracy;
    int64_t  samples;
    uint64_t hash[MOST_RANKS];
} results;

typedef struct test_case test_case;
struct test_case {
    lk_trainer_config config;
    int               world, threads;
    const char       *train, *test;         /* data sets; "nan": callbacks, one sample of which is NaN */
    void (*before)(test_case *s, int rank); /* changes this rank's config */
    void (*after)(test_case *s, int rank, lk_trainer *t);
    lk_context *context;
    lk_trainer *trainer;
    int         rank;
    results    *results;
    char        save[128];
    uint64_t    allocations;
};

static lk_tensor tiny(lk_tensor x)
{
    x = lk_max_pool2d(lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 4, 3, .padding = 1), "bn")), 2);
    return lk_linear(lk_dropout(lk_flatten(x), 0.2), "fc", 10);
}

static lk_tensor tiny_with_unused(lk_tensor x)
{
    lk_tensor used = tiny(x);
    (void)lk_linear(x, "never", 3);
    return used;
}

static lk_tensor wider(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 17)), "fc2", 10); }
static lk_tensor narrow(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 16)), "fc2", 10); }

static void store_warning(void *user, lk_log_level level, const char *text)
{
    test_case *s = user;
    if (level != LK_LOG_WARNING || !strstr(text, "not used")) return;
    __atomic_add_fetch(&s->results->warnings, 1, __ATOMIC_SEQ_CST);
    snprintf(s->results->warning, TEXT, "%s", text);
}

enum { BAD_SAMPLE = 300 };

static lk_status get_sample(void *user, int64_t index, void *const *fields)
{
    test_case *s = user;
    float     *features = fields[0];
    int32_t   *label = fields[1];
    for (int i = 0; i < 64; i++) features[i] = (float)((index * 7 + i * 13) % 29) / 29 - 0.5f;
    *label = (int32_t)(index % 10);
    if (index != BAD_SAMPLE) return LK_OK;
    features[11] = NAN;
    __atomic_store_n(&s->results->nan_rank, 1 + s->rank, __ATOMIC_SEQ_CST);
    return LK_OK;
}

static lk_dataset *open_data(test_case *s, const char *name, lk_split split)
{
    lk_dataset *dataset;
    if (!name) return NULL;
    if (strcmp(name, "nan") != 0) {
        REQUIRE(lk_dataset_open(s->context, name, split, NULL, &dataset) == LK_OK, "%s", lk_context_error(s->context));
        return dataset;
    }
    lk_dataset_callbacks_config config = LK_DATASET_CALLBACKS_CONFIG_INIT;
    config.count = 512;
    config.fields = (lk_field[]){{.name = "image", .dtype = LK_F32, .rank = 3, .dims = {1, 8, 8}},
                                 {.name = "label", .dtype = LK_I32, .classes = 10}};
    config.fields_count = 2;
    config.get = get_sample;
    config.user = s;
    REQUIRE(lk_dataset_from_callbacks(s->context, &config, &dataset) == LK_OK);
    return dataset;
}

static int run_rank(int rank, void *user)
{
    test_case        *s = user;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    joining = LK_COMM_CONFIG_INIT;
    lk_comm          *comm = NULL;
    lk_trainer       *t = NULL;
    check_failures = 0;
    s->rank = rank;
    config.threads = s->threads ? s->threads : 1;
    config.log = store_warning;
    config.log_user = s;
    REQUIRE(lk_context_create(&config, &s->context) == LK_OK);
    lk_dataset *train = open_data(s, s->train, LK_SPLIT_TRAIN), *test = open_data(s, s->test, LK_SPLIT_TEST);
    joining.join_ms = 60000;
    joining.timeout_ms = 60000;
    if (s->world > 1) REQUIRE(lk_comm_create(s->context, &joining, &comm) == LK_OK, "%s", lk_context_error(s->context));
    s->config.comm = comm;
    s->config.train = train;
    s->config.test = test;
    s->config.event_user = s;
    if (s->before) s->before(s, rank);
    lk_status status = lk_trainer_create(s->context, &s->config, &t);
    s->trainer = t;
    if (status >= 0 && train) status = lk_trainer_run(t);
    s->results->status[rank] = status;
    if (status < 0) snprintf(s->results->text[rank], TEXT, "%s", lk_context_error(s->context));
    if (t) s->results->step[rank] = lk_trainer_progress(t)->step;
    if (t) s->results->hash[rank] = lk_store_hash(lk_trainer_store(t));
    if (s->after) s->after(s, rank, t);
    lk_trainer_free(t);
    lk_comm_free(comm);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_context_free(s->context);
    return check_result();
}

static test_case make_case(int world, const char *save)
{
    test_case s = {.config = LK_TRAINER_CONFIG_INIT, .world = world, .train = "synthetic:1x8x8,count=100"};
    s.config.model = tiny;
    s.config.batch = 16; /* the last batch of an epoch has 4 */
    s.config.steps = 12;
    s.results = mmap(NULL, sizeof *s.results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(s.results != MAP_FAILED);
    if (save) snprintf(s.save, sizeof s.save, "%s/%s", root, save);
    return s;
}

static void run_case(test_case *s)
{
    lk_spawn_result result;
    if (s->save[0]) s->config.save = s->save;
    check_ranks_announced(s->world);
    lk_status status = lk_spawn(s->world, run_rank, s, &result);
    CHECK(status == LK_OK, "%s", result.text);
}

static void free_case(test_case *s) { munmap(s->results, sizeof *s->results); }

/* All ranks failed with this status, and each message contains the text. */
static void check_all_failed(const test_case *s, lk_status status, const char *text)
{
    for (int i = 0; i < s->world; i++) {
        CHECK(s->results->status[i] == status, "rank %d: %s: %s", i, lk_status_name(s->results->status[i]),
              s->results->text[i]);
        CHECK(strstr(s->results->text[i], text), "rank %d: no \"%s\" in: %s", i, text, s->results->text[i]);
    }
}

/* ---- memory ---- */

static void check_held(test_case *s, int rank, lk_trainer *t)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS,   LK_MEMORY_OPTIMIZER,
                                      LK_MEMORY_BUFFERS,    LK_MEMORY_ACTIVATIONS, LK_MEMORY_WORKSPACE,
                                      LK_MEMORY_STAGING,    LK_MEMORY_LOADER,      LK_MEMORY_CHECKPOINT};
    lk_graph              *graph;
    lk_plan               *plan;
    size_t                 held[LK_MEMORY_COUNT], memory[LK_MEMORY_COUNT];
    REQUIRE(t, "%s", s->results->text[rank]);
    for (int i = 0; i < LK_MEMORY_COUNT; i++) held[i] = lk_context_memory(s->context, (lk_memory)i);
    REQUIRE(lk_trainer_plan(s->context, &s->config, &graph, &plan, memory) == LK_OK, "%s",
            lk_context_error(s->context));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        CHECK(held[kinds[i]] == memory[kinds[i]],
              "rank %d of %d, %d micro-batches, %d leaves: %s: held %zu, planned %zu", rank, s->world,
              s->config.accumulate, s->config.leaves, lk_memory_name(kinds[i]), held[kinds[i]], memory[kinds[i]]);
    CHECK(memory[LK_MEMORY_GRADIENTS] > 0 && memory[LK_MEMORY_CHECKPOINT] > 0);
    lk_plan_free(plan);
    lk_graph_free(graph);
}

static void ranks_hold_the_planned_memory(void)
{
    for (int world = 2; world <= 3; world++) {
        for (int variant = 0; variant < 5; variant++) {
            char name[32];
            snprintf(name, sizeof name, "plan-%d-%d", world, variant);
            test_case s = make_case(world, name);
            s.test = "synthetic:1x8x8,count=50";
            s.after = check_held;
            s.threads = variant == 1 ? 2 : 1;
            s.config.accumulate = variant == 2 ? 3 : 0;
            s.config.leaves = variant > 2 ? 8 : 0;
            s.config.sync_batch_norm = variant == 4;
            run_case(&s);
            CHECK(s.results->status[0] == LK_OK, "%s", s.results->text[0]);
            free_case(&s);
        }
    }
}

static int count_allocations(void *user, const lk_event *e)
{
    test_case *s = user;
    if (e->kind == LK_EVENT_STEP && e->step == 4) s->allocations = lk_context_allocations(s->context);
    if (e->kind == LK_EVENT_STEP && e->step == 20)
        CHECK(lk_context_allocations(s->context) == s->allocations,
              "rank %d, %d leaves, %s: %llu allocations in 16 steps", s->rank, s->config.leaves,
              lk_comm_backend(s->config.comm),
              (unsigned long long)(lk_context_allocations(s->context) - s->allocations));
    return 0;
}

static void a_step_allocates_nothing(void)
{
    for (int variant = 0; variant < 7; variant++) {
        test_case s = make_case(variant == 4 ? 3 : 2, NULL);
        s.config.event = count_allocations;
        s.config.steps = 22;
        s.config.accumulate = variant == 1 ? 2 : 0;
        s.config.leaves = variant == 2 || variant == 4 ? 8
                          : variant == 5               ? 6
                                         : 0; /* 6 leaves on 2 ranks and 8 on 3 do not split the tree evenly */
        s.config.sync_batch_norm = variant >= 3;
        s.config.policy = variant == 6 ? LK_POLICY_BF16 : LK_POLICY_RECORDED;
        s.config.gradient_dtype = variant == 6 ? LK_BF16 : LK_F32;
        run_case(&s);
        CHECK(s.results->status[0] == LK_OK, "%s", s.results->text[0]);
        free_case(&s);
    }
}

/* ---- refused options ---- */

static void other_model(test_case *s, int rank) { s->config.model = rank == 1 ? wider : narrow; }
static void other_rate(test_case *s, int rank) { s->config.optimizer.lr = rank == 1 ? 2e-3 : 1e-3; }
static void other_beta(test_case *s, int rank) { s->config.optimizer.beta2 = rank == 1 ? 0.99 : 0.999; }
static void other_steps(test_case *s, int rank) { s->config.steps = rank == 1 ? 13 : 12; }
static void other_seed(test_case *s, int rank) { s->config.seed = rank == 1 ? 5 : 4; }
static void other_batch(test_case *s, int rank) { s->config.batch = rank == 1 ? 20 : 16; }
static void other_smoothing(test_case *s, int rank) { s->config.label_smoothing = rank == 1 ? 0.1 : 0; }
static void other_schedule(test_case *s, int rank) { s->config.schedule.warmup = rank == 1 ? 3 : 0; }
static void other_evaluation(test_case *s, int rank) { s->config.eval_every = rank == 1 ? 2 : 3; }
static void other_saving(test_case *s, int rank) { s->config.save_every = rank == 1 ? 5 : 4; }
static void other_trace(test_case *s, int rank)
{
    s->config.trace = rank == 1 ? "/dev/null" : NULL;
    s->config.trace_steps = 2;
}
static void other_policy(test_case *s, int rank) { s->config.policy = rank == 1 ? LK_POLICY_BF16 : LK_POLICY_RECORDED; }
static void other_gradients(test_case *s, int rank) { s->config.gradient_dtype = rank == 1 ? LK_BF16 : LK_F32; }
static void other_products(test_case *s, int rank)
{
    s->config.matmul_precision = rank == 1 ? LK_MATMUL_BF16 : LK_MATMUL_HIGHEST;
}
static void other_crop(test_case *s, int rank) { s->config.transform.crop_padding = rank == 1 ? 1 : 0; }

/* Differs between the ranks from step 7 of 12 on. */
static double own_rate(void *user, int64_t step, int64_t steps)
{
    return step < steps / 2 + 1 ? 1e-3 : *(const double *)user;
}
static void other_callback(test_case *s, int rank)
{
    static const double late[] = {1e-4, 2e-4};
    s->config.schedule_callback = own_rate;
    s->config.schedule_user = (void *)&late[rank == 1];
}
static void no_callback(test_case *s, int rank)
{
    other_callback(s, 0);
    if (rank == 1) s->config.schedule_callback = NULL;
}

static void ranks_with_different_models_or_options_are_refused(void)
{
    static const struct {
        void (*before)(test_case *s, int rank);
        const char *what, *mine, *theirs; /* in the first differing lines */
    } cases[] = {
        {other_model, "model", "fc1.weight f32 (16, 64)", "fc1.weight f32 (17, 64)"},
        {other_rate, "rate", "lr 0.001", "lr 0.002"},
        {other_beta, "beta", " 0.999, epsilon", " 0.98999"},
        {other_steps, "steps", "steps 12", "steps 13"},
        {other_seed, "seed", "seed 4,", "seed 5,"},
        {other_batch, "batch", "batch 16,", "batch 20,"},
        {other_smoothing, "smoothing", "smoothing 0", "smoothing 0.1"},
        {other_schedule, "schedule", "warmup 0", "warmup 3"},
        {other_evaluation, "evaluation", "eval every 3", "eval every 2"},
        {other_saving, "saving", "save every 4", "save every 5"},
        {other_trace, "trace", "trace 0", "trace 1"},
        {other_policy, "policy", "policy recorded", "policy bf16"},
        {other_gradients, "gradient type", "gradients in f32", "gradients in bf16"},
        {other_products, "products", "matmul precision highest", "matmul precision bf16"},
        {other_crop, "crop", "padding 0", "padding 1"},
        {other_callback, "callback", "last rate 0.0001", "last rate 0.0002"},
        {no_callback, "no callback", "schedule callback 1", "schedule callback 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_case s = make_case(i % 2 ? 3 : 2, "refused");
        s.test = "synthetic:1x8x8,count=50";
        s.before = cases[i].before;
        run_case(&s);
        check_all_failed(&s, LK_EMISMATCH, "rank 0: ");
        check_all_failed(&s, LK_EMISMATCH, "rank 1: ");
        for (int rank = 0; rank < s.world; rank++) {
            const char *first = strstr(s.results->text[rank], "rank 0: "),
                       *second = strstr(s.results->text[rank], "rank 1: ");
            CHECK(first && strstr(first, cases[i].mine) && second && strstr(second, cases[i].theirs) &&
                      s.results->step[rank] == 0,
                  "%s, rank %d: %s", cases[i].what, rank, s.results->text[rank]);
        }
        free_case(&s);
    }
}

/* ---- detected failures ---- */

static bool on_the_host(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return !device || strcmp(device, "cpu") == 0;
}

static int change_weights_of_rank_1(void *user, const lk_event *e)
{
    test_case *s = user;
    float      number;
    lk_state   state;
    if (s->rank != 1 || e->kind != LK_EVENT_STEP || e->step != 5) return 0;
    lk_store *store = lk_trainer_store(s->trainer);
    REQUIRE(lk_store_read(store, "fc.bias", LK_STATE_VALUE, 3, 1, &number, sizeof number) == LK_OK);
    number += 1e-6f;
    if (s->config.state == LK_STATE_REPLICATED) {
        REQUIRE(lk_store_write(store, "fc.bias", LK_STATE_VALUE, 3, 1, &number, sizeof number) == LK_OK);
    } else { /* a write would be by all ranks */
        REQUIRE(lk_store_find(store, "fc.bias", &state));
        ((float *)state.data)[3] = number;
    }
    return 0;
}

static void a_divergence_is_reported_with_rank_tensor_and_step(void)
{
    for (int variant = 0; variant < 3; variant++) { /* between checks, at a check, and only at the end */
        test_case s = make_case(3, variant ? NULL : "diverged");
        s.config.event = change_weights_of_rank_1;
        s.config.check_every = variant == 0 ? 4 : variant == 1 ? 5 : 1000;
        s.config.state = LK_STATE_REPLICATED;
        run_case(&s);
        check_all_failed(&s, LK_EMISMATCH, variant == 0 ? "at step 8 " : variant == 1 ? "at step 5 " : "at step 12 ");
        check_all_failed(&s, LK_EMISMATCH, "rank 1's");
        free_case(&s);
    }
    /* Where ranks share the weights, the copies of memory nodes are what can differ, until the next update. */
    if (!on_the_host()) return;
    test_case s = make_case(3, NULL);
    s.config.event = change_weights_of_rank_1;
    s.config.check_every = 5;
    s.config.state = LK_STATE_SHARED;
    s.config.sync_batch_norm = true;
    setenv("LOCKSTEP_MEMORY_NODES", "3", 1);
    run_case(&s);
    unsetenv("LOCKSTEP_MEMORY_NODES");
    check_all_failed(&s, LK_EMISMATCH, "at step 5 rank 1's \"fc.bias\"");
    free_case(&s);
}

static void check_nan(bool sync, int leaves)
{
    lk_context *context;
    int64_t     step;
    char        text[64];
    test_case   s = make_case(3, sync ? "nan-sync" : leaves ? "nan-leaves" : "nan");
    s.train = "nan";
    s.config.batch = 24;
    s.config.epochs = 1;
    s.config.steps = 0;
    s.config.workers = 0; /* so that the sample is read for the step that fails */
    s.config.save_every = 1;
    s.config.sync_batch_norm = sync;
    s.config.leaves = leaves;
    run_case(&s);
    CHECK(s.results->nan_rank > 0, "no rank read the sample");
    snprintf(text, sizeof text, "rank %d's", s.results->nan_rank - 1);
    check_all_failed(&s, LK_ENAN, text);
    snprintf(text, sizeof text, "step %lld", (long long)s.results->step[0] + 1);
    check_all_failed(&s, LK_ENAN, text);
    snprintf(text, sizeof text, " %d", BAD_SAMPLE); /* after "samples" or a comma */
    check_all_failed(&s, LK_ENAN, text);
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    lk_status found = lk_checkpoint_find(context, s.save, &step);
    CHECK(s.results->step[0] == 0 || (found == LK_OK && step <= s.results->step[0]),
          "the last checkpoint is of step %lld, not of %lld", (long long)step, (long long)s.results->step[0]);
    lk_context_free(context);
    free_case(&s);
}

static void a_nan_on_one_rank_stops_all_and_is_reported(void) { check_nan(false, 0); }
static void a_nan_in_a_leaf_is_reported(void) { check_nan(false, 6); }
static void a_nan_spread_by_batch_norm_is_reported_with_its_first_rank(void) { check_nan(true, 0); }

static int stop_rank_1(void *user, const lk_event *e)
{
    return ((test_case *)user)->rank == 1 && e->kind == LK_EVENT_STEP && e->step == 5;
}

static void a_stop_request_of_one_rank_stops_all_at_one_saved_step(void)
{
    lk_context *context;
    int64_t     step = -1;
    test_case   s = make_case(3, "stop");
    s.config.event = stop_rank_1;
    s.config.sync_batch_norm = true; /* so that statistics are equal on all ranks too */
    run_case(&s);
    check_all_failed(&s, LK_ECANCELED, "stopped on request");
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    CHECK(lk_checkpoint_find(context, s.save, &step) == LK_OK && step == s.results->step[0] && step >= 5 && step <= 6,
          "saved step %lld", (long long)step);
    for (int i = 0; i < 3; i++)
        CHECK(s.results->step[i] == step && s.results->hash[i] == s.results->hash[0], "rank %d stopped after step %lld",
              i, (long long)s.results->step[i]);
    lk_context_free(context);
    free_case(&s);
}

static int exit_in_step_3(void *user, const lk_event *e)
{
    test_case *s = user;
    if (s->rank == 1 && e->kind == LK_EVENT_STEP && e->step == 3) _exit(0); /* as if it had finished */
    return 0;
}

static void a_group_that_has_failed_does_not_save(void)
{
    lk_context *context;
    int64_t     step;
    test_case   s = make_case(2, "failed");
    s.config.event = exit_in_step_3;
    run_case(&s);
    CHECK(s.results->status[0] < 0 && strstr(s.results->text[0], "rank 1"), "%s", s.results->text[0]);
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    CHECK(lk_checkpoint_find(context, s.save, &step) == LK_ENOENT, "it saved step %lld", (long long)step);
    lk_context_free(context);
    free_case(&s);
}

/* ---- the checkpoint directory ---- */

static void hold_directory(int ready)
{
    lk_context *context;
    lk_dataset *data;
    lk_trainer *t;
    test_case   s = make_case(1, "held");
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    REQUIRE(lk_dataset_open(context, s.train, LK_SPLIT_TRAIN, NULL, &data) == LK_OK);
    s.config.train = data;
    s.config.save = s.save;
    REQUIRE(lk_trainer_create(context, &s.config, &t) == LK_OK, "%s", lk_context_error(context));
    (void)!write(ready, "x", 1);
    for (;;) pause();
}

static void a_directory_locked_by_another_run_is_refused_on_every_rank(void)
{
    int       ready[2];
    char      byte, text[64];
    test_case s = make_case(3, "held");
    REQUIRE(pipe(ready) == 0);
    pid_t holder = fork();
    if (holder == 0) hold_directory(ready[1]);
    close(ready[1]);
    REQUIRE(read(ready[0], &byte, 1) == 1);
    run_case(&s);
    snprintf(text, sizeof text, "pid %ld, since ", (long)holder);
    check_all_failed(&s, LK_EINVAL, text);
    check_all_failed(&s, LK_EINVAL, "is being written by another run");
    for (int i = 1; i < 3; i++)
        CHECK(strncmp(s.results->text[i], "rank 0: ", 8) == 0, "rank %d: %s", i, s.results->text[i]);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    run_case(&s);
    CHECK(s.results->status[0] == LK_OK && s.results->status[2] == LK_OK, "%s", s.results->text[0]);
    close(ready[0]);
    free_case(&s);
}

enum { FAILING_SAVE = 200 };

/* Makes the save of step 200 fail, and gives its thread time to fail. */
static int break_save(void *user, const lk_event *e)
{
    test_case *s = user;
    char       path[256];
    if (e->kind != LK_EVENT_STEP || s->rank != 0 || e->step < FAILING_SAVE) return 0;
    if (e->step > FAILING_SAVE) usleep(20000);
    if (e->step > FAILING_SAVE) return 0;
    /* all that is there; a file takes the directory's place */
    snprintf(path, sizeof path, "%s/.lockstep.lock", s->save);
    FILE *file = unlink(path) == 0 && rmdir(s->save) == 0 ? fopen(s->save, "w") : NULL;
    if (file) fclose(file);
    return 0;
}

static void a_failed_save_stops_all_ranks_at_one_step(void)
{
    test_case s = make_case(3, "unsaved");
    s.config.event = break_save;
    s.config.save_every = FAILING_SAVE;
    s.config.steps = 2 * FAILING_SAVE;
    run_case(&s);
    check_all_failed(&s, LK_EIO, "step 200 could not be saved: ");
    for (int i = 0; i < 3; i++)
        CHECK(s.results->step[i] == s.results->step[0] && s.results->step[i] < 2 * FAILING_SAVE,
              "rank %d stopped at step %lld", i, (long long)s.results->step[i]);
    free_case(&s);
}

static int stop_while_busy(int rank, void *user)
{
    lk_context       *context;
    lk_comm          *comm;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    joining = LK_COMM_CONFIG_INIT;
    (void)user;
    config.threads = 1;
    joining.join_ms = 60000;
    joining.timeout_ms = 500;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    REQUIRE(lk_comm_create(context, &joining, &comm) == LK_OK, "%s", lk_context_error(context));
    if (rank == 1) {
        lk_comm_busy_begin(comm, "saving a checkpoint");
        raise(SIGSTOP);
    }
    bool correct = lk_comm_barrier(comm, NULL) == LK_ETIMEOUT && strstr(lk_comm_error(comm), "rank 1") &&
                   strstr(lk_comm_error(comm), "stopped");
    if (!correct) fprintf(stderr, "%s\n", lk_comm_error(comm));
    lk_comm_free(comm);
    lk_context_free(context);
    return correct ? 7 : 1; /* lk_spawn then ends the other rank */
}

static void a_rank_stopped_during_a_save_times_out(void)
{
    lk_spawn_result result;
    CHECK(lk_spawn(2, stop_while_busy, NULL, &result) == LK_ECANCELED && result.rank == 0 && result.exit_code == 7,
          "%s", result.text);
}

/* ---- unused parameters ---- */

static void check_unused(test_case *s, int rank, lk_trainer *t)
{
    lk_state     state;
    lk_trainer  *fresh;
    lk_comm     *comm = s->config.comm;
    const float *trained, *start;
    REQUIRE(t && lk_store_find(lk_trainer_store(t), "never.weight", &state), "rank %d: %s", rank,
            s->results->text[rank]);
    trained = state_copy(lk_trainer_store(t), "never.weight");
    for (int i = 0; i < 2; i++) {
        const float *moment = part_copy(lk_trainer_store(t), "never.weight", (lk_state_part)(LK_STATE_MOMENT_0 + i));
        for (int64_t k = 0; k < state_elements(&state); k++) CHECK(moment[k] == 0, "its gradient was not zero");
    }
    s->config.comm = NULL;
    s->config.save = NULL;
    REQUIRE(lk_trainer_create(s->context, &s->config, &fresh) == LK_OK);
    start = state_copy(lk_trainer_store(fresh), "never.weight");
    CHECK(memcmp(trained, start, state_bytes(&state)) == 0, "it changed");
    lk_trainer_free(fresh);
    s->config.comm = comm;
}

static void unused_parameters_get_zero_gradients_and_one_warning(void)
{
    test_case s = make_case(3, NULL);
    s.config.model = tiny_with_unused;
    run_case(&s);
    CHECK(s.results->status[0] == LK_OK && s.results->status[2] == LK_OK, "%s", s.results->text[0]);
    CHECK(s.results->warnings == 1, "%d warnings", s.results->warnings);
    CHECK(strstr(s.results->warning, "never.weight") && strstr(s.results->warning, "never.bias") &&
              !strstr(s.results->warning, "conv"),
          "%s", s.results->warning);
    s.after = check_unused;
    run_case(&s);
    free_case(&s);
}

/* ---- evaluation ---- */

static void evaluate(test_case *s, int rank, lk_trainer *t)
{
    lk_evaluation result;
    REQUIRE(t && lk_trainer_evaluate(t, &result) == LK_OK, "rank %d: %s", rank, lk_context_error(s->context));
    if (rank == 0) {
        s->results->loss = result.loss;
        s->results->accuracy = lk_metrics_find(result.metrics, result.metrics_count, "accuracy")->value;
        s->results->samples = result.samples;
    }
}

static void evaluation_uses_each_of_10000_samples_once(void)
{
    test_case trained = make_case(1, "trained");
    trained.train = "synthetic:1x8x8,count=2000";
    trained.config.steps = 60;
    run_case(&trained);
    CHECK(trained.results->status[0] == LK_OK, "%s", trained.results->text[0]);
    double accuracy = 0, loss = 0;
    for (int world = 1; world <= 4; world++) {
        for (int leaves = 0; leaves <= 8; leaves += 8) {
            test_case s = make_case(world, NULL);
            s.train = NULL;
            s.test = "synthetic:1x8x8,count=40000"; /* the test set has a quarter of it */
            s.config.batch = 64;
            s.config.init = trained.save;
            s.config.leaves = leaves;
            s.after = evaluate;
            run_case(&s);
            CHECK(s.results->samples == 10000, "%d ranks: %lld samples", world, (long long)s.results->samples);
            if (world == 1 && !leaves) accuracy = s.results->accuracy, loss = s.results->loss;
            CHECK(s.results->accuracy == accuracy, "%d ranks: accuracy %.17g, one rank %.17g", world,
                  s.results->accuracy, accuracy);
            CHECK(fabs(s.results->loss - loss) <= 1e-6 * loss, "%d ranks: loss %.17g, one rank %.17g", world,
                  s.results->loss, loss);
            free_case(&s);
        }
    }
    CHECK(accuracy > 0.2 && accuracy < 1, "accuracy %g shows nothing", accuracy);
    free_case(&trained);
}

int main(void)
{
    REQUIRE(mkdtemp(root) != NULL);
    RUN_APART(ranks_hold_the_planned_memory);
    RUN_APART(a_step_allocates_nothing);
    RUN_APART(ranks_with_different_models_or_options_are_refused);
    RUN_APART(a_divergence_is_reported_with_rank_tensor_and_step);
    RUN_APART(a_nan_on_one_rank_stops_all_and_is_reported);
    RUN_APART(a_nan_in_a_leaf_is_reported);
    RUN_APART(a_nan_spread_by_batch_norm_is_reported_with_its_first_rank);
    RUN_APART(a_stop_request_of_one_rank_stops_all_at_one_saved_step);
    RUN_APART(a_group_that_has_failed_does_not_save);
    RUN_APART(a_directory_locked_by_another_run_is_refused_on_every_rank);
    RUN_APART(a_failed_save_stops_all_ranks_at_one_step);
    RUN_APART(a_rank_stopped_during_a_save_times_out);
    RUN_APART(unused_parameters_get_zero_gradients_and_one_warning);
    RUN_APART(evaluation_uses_each_of_10000_samples_once);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
    return check_result();
}
