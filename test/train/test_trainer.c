/* test_trainer.c - the trainer holds the memory that its plan states, to the byte; saves and deletes only what it
 * should; and resumes exactly.
 *
 * ctest: label threaded */
#include "check.h"
#include "copies.h"

#include <dirent.h>
#include <lockstep.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/lockstep-trainer-XXXXXX";

static lk_tensor tiny(lk_tensor x)
{
    x = lk_max_pool2d(lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 4, 3, .padding = 1), "bn")), 2);
    return lk_linear(lk_dropout(lk_flatten(x), 0.2), "fc", 10);
}

typedef struct fixture {
    lk_context       *context;
    lk_dataset       *train, *test;
    lk_trainer_config config;
    char              save[128];
} fixture;

static void open_fixture(fixture *b, int threads, const char *directory)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = threads;
    REQUIRE(lk_context_create(&config, &b->context) == LK_OK);
    REQUIRE(lk_dataset_open(b->context, "synthetic:1x8x8,count=100", LK_SPLIT_TRAIN, NULL, &b->train) == LK_OK);
    REQUIRE(lk_dataset_open(b->context, "synthetic:1x8x8,count=100", LK_SPLIT_TEST, NULL, &b->test) == LK_OK);
    b->config = (lk_trainer_config)LK_TRAINER_CONFIG_INIT;
    b->config.model = tiny;
    b->config.train = b->train;
    b->config.test = b->test;
    b->config.batch = 16; /* the last batch of an epoch is smaller */
    b->config.steps = 8;
    if (directory) {
        snprintf(b->save, sizeof b->save, "%s/%s", root, directory);
        b->config.save = b->save;
    }
}

static void close_fixture(fixture *b)
{
    lk_dataset_free(b->train);
    lk_dataset_free(b->test);
    lk_context_free(b->context);
}

/* Trains to `steps` and returns the hash of the weights. */
static uint64_t train(fixture *b, int64_t steps, lk_status expected)
{
    lk_trainer *t = NULL;
    b->config.steps = steps;
    lk_status status = lk_trainer_create(b->context, &b->config, &t);
    if (status >= 0) status = lk_trainer_run(t);
    CHECK(status == expected, "%s: %s", lk_status_name(status), lk_context_error(b->context));
    uint64_t hash = t ? lk_store_hash(lk_trainer_store(t)) : 0;
    lk_trainer_free(t);
    return hash;
}

static void a_trainer_holds_the_planned_memory(void)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS,   LK_MEMORY_OPTIMIZER,
                                      LK_MEMORY_BUFFERS,    LK_MEMORY_ACTIVATIONS, LK_MEMORY_WORKSPACE,
                                      LK_MEMORY_STAGING,    LK_MEMORY_LOADER,      LK_MEMORY_CHECKPOINT};
    for (int threads = 1; threads <= 3; threads++) {
        for (int workers = 0; workers <= 2; workers++) {
            fixture     b;
            lk_graph   *graph;
            lk_plan    *plan;
            lk_trainer *t;
            size_t      memory[LK_MEMORY_COUNT];
            open_fixture(&b, threads, "plan");
            b.config.workers = workers;
            b.config.resume = true;
            REQUIRE(lk_trainer_plan(b.context, &b.config, &graph, &plan, memory) == LK_OK, "%s",
                    lk_context_error(b.context));
            REQUIRE(lk_trainer_create(b.context, &b.config, &t) == LK_OK, "%s", lk_context_error(b.context));
            for (int pass = 0; pass < 2; pass++) { /* before the first step and after the last */
                for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
                    CHECK(lk_context_memory(b.context, kinds[i]) == memory[kinds[i]], "%s: held %zu, planned %zu",
                          lk_memory_name(kinds[i]), lk_context_memory(b.context, kinds[i]), memory[kinds[i]]);
                CHECK(memory[LK_MEMORY_CHECKPOINT] > 0 && memory[LK_MEMORY_LOADER] > 0);
                if (pass == 0) CHECK(lk_trainer_run(t) == LK_OK, "%s", lk_context_error(b.context));
            }
            lk_trainer_free(t);
            lk_plan_free(plan);
            lk_graph_free(graph);
            close_fixture(&b);
        }
    }
}

static void resuming_gives_the_bits_of_an_uninterrupted_run(void)
{
    fixture a, b;
    open_fixture(&a, 1, NULL);
    uint64_t whole = train(&a, 20, LK_OK);
    close_fixture(&a);
    open_fixture(&b, 1, "resumed");
    b.config.resume = true;
    for (int64_t steps = 3; steps < 20; steps += 4) train(&b, steps, LK_OK); /* stops within epochs of 7 steps */
    uint64_t resumed = train(&b, 20, LK_OK);
    CHECK(whole == resumed, "%016llx, %016llx", (unsigned long long)whole, (unsigned long long)resumed);
    close_fixture(&b);
}

/* ---- a schedule of the caller's ---- */

typedef struct rates {
    double  seen[64]; /* by step */
    int64_t steps;    /* as the callback was told */
    int64_t wrong;    /* this step gets an invalid rate; -1: none */
} rates;

static double own_cosine(void *user, int64_t step, int64_t steps)
{
    rates *r = user;
    r->steps = steps;
    if (step == r->wrong) return (double)NAN;
    /* A compiler may contract the formula in other ways than in the library, so that it decides no bits here. */
    lk_schedule cosine = {.kind = LK_SCHEDULE_COSINE, .minimum = 0.25, .total = steps};
    double      rate = lk_schedule_rate(&cosine, 0.01, step), along = (double)step / (double)steps;
    CHECK(fabs(rate - 0.01 * (0.25 + 0.75 * 0.5 * (1 + cos(3.141592653589793 * along)))) < 1e-16, "%.17g", rate);
    return rate;
}

static int store_rate(void *user, const lk_event *e)
{
    rates *r = user;
    if (e->kind == LK_EVENT_STEP) r->seen[e->step - 1] = e->rate;
    return 0;
}

static void a_schedule_callback_gives_the_rates(void)
{
    fixture  b;
    rates    own = {.wrong = -1}, none = {.wrong = -1}, wrong = {.wrong = 5};
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) { /* the built-in schedule, and the same from a callback */
        rates *r = i ? &own : &none;
        open_fixture(&b, 1, NULL);
        b.config.optimizer.lr = i ? 123 : 0.01; /* the callback's rates are not multiplied by it */
        b.config.schedule = (lk_schedule){.kind = LK_SCHEDULE_COSINE, .minimum = 0.25, .warmup = i ? 3 : 0};
        b.config.schedule_callback = i ? own_cosine : NULL;
        b.config.schedule_user = b.config.event_user = r;
        b.config.event = store_rate;
        hash[i] = train(&b, 12, LK_OK);
        close_fixture(&b);
    }
    CHECK(hash[0] == hash[1] && own.steps == 12, "%016llx, %016llx", (unsigned long long)hash[0],
          (unsigned long long)hash[1]);
    for (int i = 0; i < 12; i++) CHECK(own.seen[i] == none.seen[i] && own.seen[i] > 0, "step %d: %g", i, own.seen[i]);
    open_fixture(&b, 1, NULL);
    b.config.schedule_callback = own_cosine;
    b.config.schedule_user = &wrong;
    train(&b, 12, LK_EINVAL);
    CHECK(strstr(lk_context_error(b.context), "returned nan for step 5"), "%s", lk_context_error(b.context));
    close_fixture(&b);
}

static void damage_checkpoint(const fixture *b, int64_t step)
{
    char path[256];
    snprintf(path, sizeof path, "%s/step-%08lld/model.safetensors", b->save, (long long)step);
    FILE *file = fopen(path, "r+b");
    REQUIRE(file != NULL, "%s", path);
    fseek(file, -3, SEEK_END);
    fputc('X', file);
    fclose(file);
}

static void the_newest_checkpoint_is_never_removed(void)
{
    fixture b;
    int64_t step = 0;
    open_fixture(&b, 1, "damaged");
    b.config.resume = true;
    b.config.keep = 2;
    b.config.save_every = 1000; /* only at the end */
    train(&b, 4, LK_OK);
    train(&b, 8, LK_OK);
    damage_checkpoint(&b, 8);
    b.config.keep = 1;
    train(&b, 6, LK_OK); /* 8 is skipped, 4 is resumed, 6 is saved and stays */
    lk_trainer *t;
    REQUIRE(lk_trainer_create(b.context, &b.config, &t) == LK_OK, "%s", lk_context_error(b.context));
    CHECK(lk_trainer_progress(t)->step == 6, "resumed at %lld", (long long)lk_trainer_progress(t)->step);
    lk_trainer_free(t);
    train(&b, 8, LK_OK); /* replaces the damaged one */
    CHECK(lk_checkpoint_find(b.context, b.save, &step) == LK_OK && step == 8);
    REQUIRE(lk_trainer_create(b.context, &b.config, &t) == LK_OK, "%s", lk_context_error(b.context));
    CHECK(lk_trainer_progress(t)->step == 8);
    lk_trainer_free(t);
    close_fixture(&b);
}

static void a_checkpoint_of_another_run_is_not_overwritten(void)
{
    fixture     b;
    lk_trainer *t;
    open_fixture(&b, 1, "taken");
    train(&b, 2, LK_OK);
    CHECK(lk_trainer_create(b.context, &b.config, &t) == LK_EINVAL &&
          strstr(lk_context_error(b.context), "already holds"));
    b.config.resume_from = "/tmp/lockstep-no-such-run";
    b.config.save = NULL;
    CHECK(lk_trainer_create(b.context, &b.config, &t) == LK_ENOENT, "%s", lk_context_error(b.context));
    close_fixture(&b);
}

static void weights_that_overflowed_are_not_saved(void)
{
    fixture b;
    int64_t step;
    open_fixture(&b, 1, "overflow");
    b.config.optimizer.kind = LK_SGD;
    b.config.optimizer.lr = 1e38;
    b.config.save_every = 1;
    train(&b, 8, LK_ENAN);
    CHECK(strstr(lk_context_error(b.context), "step") != NULL, "%s", lk_context_error(b.context));
    if (lk_checkpoint_find(b.context, b.save, &step) == LK_OK) { /* what is there is finite */
        fixture       c;
        lk_evaluation result;
        lk_trainer   *t;
        open_fixture(&c, 1, NULL);
        c.config.train = NULL;
        c.config.init = b.save;
        REQUIRE(lk_trainer_create(c.context, &c.config, &t) == LK_OK, "%s", lk_context_error(c.context));
        for (size_t i = 0; i < lk_store_count(lk_trainer_store(t)); i++) {
            lk_state s = lk_store_at(lk_trainer_store(t), i);
            if (s.dtype == LK_F32) CHECK(isfinite(*(float *)state_copy(lk_trainer_store(t), s.name)), "%s", s.name);
        }
        CHECK(lk_trainer_evaluate(t, &result) == LK_OK);
        lk_trainer_free(t);
        close_fixture(&c);
    }
    close_fixture(&b);
}

static lk_tensor returns_nothing(lk_tensor x)
{
    (void)lk_relu(x);
    return (lk_tensor){0};
}

enum { EMPTY_LINE = __LINE__ + 3 };
static lk_tensor loses_its_tensor(lk_tensor x)
{
    lk_tensor y = lk_relu(returns_nothing(x));
    return lk_linear(lk_flatten(y), "fc", 10);
}

static lk_graph *another_graph;
static lk_tensor returns_another(lk_tensor x)
{
    (void)x;
    return lk_input(another_graph, "x", LK_F32, 2, ((int64_t[]){16, 10}));
}

enum { SHAPE_LINE = __LINE__ + 3 };
static lk_tensor returns_three_axes(lk_tensor x)
{
    return lk_reshape(lk_linear(lk_flatten(x), "fc", 6), 3, ((int64_t[]){-1, 2, 3}));
}

static lk_tensor returns_too_few(lk_tensor x) { return lk_linear(lk_flatten(x), "fc", 9); }

static void a_model_that_returns_no_logits_fails_with_the_expected_shape(void)
{
    char line[160], place[96];
    snprintf(line, sizeof line,
             "returned no tensor: it must return logits (N, 10); the first call on an empty tensor is on line %d",
             EMPTY_LINE);
    snprintf(place, sizeof place, "test_trainer.c:%d: the model returns (16*, 2, 3); ", SHAPE_LINE);
    const struct {
        lk_tensor (*model)(lk_tensor x);
        lk_status   status;
        const char *words;
    } cases[] = {{returns_nothing, LK_EINVAL, "returned no tensor"},
                 {loses_its_tensor, LK_EINVAL, line},
                 {returns_another, LK_EINVAL, "does not belong to the graph of its input"},
                 {returns_three_axes, LK_EMISMATCH, place},
                 {returns_three_axes, LK_EMISMATCH, "need logits (N, classes) with at least 10 classes"},
                 {returns_too_few, LK_EMISMATCH, "returns (16*, 9)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture b;
        open_fixture(&b, 1, NULL);
        b.config.model = cases[i].model;
        REQUIRE(lk_graph_create(b.context, LK_F32, &another_graph) == LK_OK);
        train(&b, 1, cases[i].status);
        CHECK(strstr(lk_context_error(b.context), cases[i].words), "%s", lk_context_error(b.context));
        lk_graph_free(another_graph);
        close_fixture(&b);
    }
}

static void evaluation_alone_holds_no_memory_for_training(void)
{
    fixture       b;
    lk_trainer   *t;
    lk_evaluation result;
    open_fixture(&b, 1, NULL);
    b.config.train = NULL;
    REQUIRE(lk_trainer_create(b.context, &b.config, &t) == LK_OK, "%s", lk_context_error(b.context));
    CHECK(lk_context_memory(b.context, LK_MEMORY_GRADIENTS) == 0 &&
          lk_context_memory(b.context, LK_MEMORY_OPTIMIZER) == 0);
    REQUIRE(lk_trainer_evaluate(t, &result) == LK_OK && result.samples == lk_dataset_count(b.test));
    const lk_named_metric *accuracy = lk_metrics_find(result.metrics, result.metrics_count, "accuracy");
    REQUIRE(accuracy && result.metrics_count == 1);
    CHECK(result.loss > 0 && accuracy->value >= 0 && accuracy->value <= 1 &&
          accuracy->weight == (double)result.samples);
    CHECK(lk_trainer_run(t) == LK_EINVAL);
    lk_trainer_free(t);
    close_fixture(&b);
}

static int stop_at_three(void *user, const lk_event *e)
{
    (void)user;
    return e->kind == LK_EVENT_STEP && e->step == 3;
}

static void an_event_can_stop_training_and_progress_is_saved(void)
{
    fixture b;
    int64_t step;
    open_fixture(&b, 1, "stopped");
    b.config.event = stop_at_three;
    train(&b, 8, LK_ECANCELED);
    bool queues = strcmp(lk_context_device(b.context), "cuda") == 0; /* one more step is queued when the event comes */
    CHECK(lk_checkpoint_find(b.context, b.save, &step) == LK_OK && step == (queues ? 4 : 3));
    close_fixture(&b);
}

/* ---- one writer ---- */

static void a_second_trainer_on_one_directory_is_refused(void)
{
    fixture     a, b;
    lk_trainer *first, *second;
    open_fixture(&a, 1, "shared");
    open_fixture(&b, 1, "shared");
    b.config.resume = true;
    REQUIRE(lk_trainer_create(a.context, &a.config, &first) == LK_OK, "%s", lk_context_error(a.context));
    CHECK(lk_trainer_create(b.context, &b.config, &second) == LK_EINVAL && !second &&
              strstr(lk_context_error(b.context), "is being written by another run (host "),
          "%s", lk_context_error(b.context));
    CHECK(lk_trainer_run(first) == LK_OK, "%s", lk_context_error(a.context));
    CHECK(lk_trainer_create(b.context, &b.config, &second) == LK_EINVAL, "until the first is freed");
    lk_trainer_free(first);
    REQUIRE(lk_trainer_create(b.context, &b.config, &second) == LK_OK, "%s", lk_context_error(b.context));
    CHECK(lk_trainer_progress(second)->step == 8);
    lk_trainer_free(second);
    close_fixture(&a);
    close_fixture(&b);
}

static void a_refused_trainer_releases_the_directory(void)
{
    fixture     b;
    lk_trainer *t;
    open_fixture(&b, 1, "freed");
    train(&b, 2, LK_OK);
    CHECK(lk_trainer_create(b.context, &b.config, &t) == LK_EINVAL &&
          strstr(lk_context_error(b.context), "already holds"));
    b.config.resume = true;
    train(&b, 4, LK_OK);
    close_fixture(&b);
}

static void a_file_of_the_user_is_refused_before_the_first_step(void)
{
    fixture     b;
    lk_trainer *t;
    char        path[256];
    open_fixture(&b, 1, "own");
    REQUIRE(mkdir(b.save, 0777) == 0);
    snprintf(path, sizeof path, "%s/model.safetensors", b.save);
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs("mine", file) >= 0 && fclose(file) == 0);
    CHECK(lk_trainer_create(b.context, &b.config, &t) == LK_EINVAL && strstr(lk_context_error(b.context), path), "%s",
          lk_context_error(b.context));
    struct stat info;
    CHECK(lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 4);
    close_fixture(&b);
}

/* ---- saves that fail, and failures during a save ---- */

enum { FAILING_SAVE = 1000 };

/* Makes the save of step 1000 fail, and gives its thread time to fail. */
static int break_save(void *user, const lk_event *e)
{
    fixture *b = user;
    char     path[256];
    if (e->kind != LK_EVENT_STEP || e->step < FAILING_SAVE) return 0;
    if (e->step > FAILING_SAVE) usleep(5000);
    if (e->step > FAILING_SAVE) return 0;
    /* all that is there; a file takes the directory's place */
    snprintf(path, sizeof path, "%s/.lockstep.lock", b->save);
    REQUIRE(unlink(path) == 0 && rmdir(b->save) == 0);
    FILE *file = fopen(b->save, "w");
    if (file) fclose(file);
    return 0;
}

static void check_failing_save(const char *directory, int64_t batch)
{
    fixture     b;
    lk_trainer *t;
    open_fixture(&b, 1, directory);
    b.config.event = break_save;
    b.config.event_user = &b;
    b.config.save_every = FAILING_SAVE;
    b.config.steps = 2 * FAILING_SAVE;
    b.config.batch = batch;
    b.config.test = NULL;
    REQUIRE(lk_trainer_create(b.context, &b.config, &t) == LK_OK, "%s", lk_context_error(b.context));
    CHECK(lk_trainer_run(t) == LK_EIO && strstr(lk_context_error(b.context), "step 1000 could not be saved: ") &&
              strstr(lk_context_error(b.context), "a file with that name exists"),
          "%s", lk_context_error(b.context));
    CHECK(lk_trainer_progress(t)->step > FAILING_SAVE && lk_trainer_progress(t)->step < 2 * FAILING_SAVE,
          "batches of %lld: stopped at step %lld", (long long)batch, (long long)lk_trainer_progress(t)->step);
    lk_trainer_free(t);
    close_fixture(&b);
}

static void a_failed_save_stops_training_with_its_error(void)
{
    check_failing_save("failing", 16);
    check_failing_save("failing-epochs", 100); /* each step ends an epoch */
}

static int cause_another_error(void *user, const lk_event *e)
{
    fixture  *b = user;
    lk_graph *graph;
    lk_plan  *plan;
    size_t    memory[LK_MEMORY_COUNT];
    if (e->kind == LK_EVENT_SAVED || e->step > 1) return 0;
    lk_trainer_config wrong = b->config;
    wrong.batch = -7;
    CHECK(lk_trainer_plan(b->context, &wrong, &graph, &plan, memory) == LK_EINVAL);
    return 0;
}

static void saving_does_not_replace_an_earlier_error(void)
{
    fixture b;
    open_fixture(&b, 1, "words");
    b.config.event = cause_another_error;
    b.config.event_user = &b;
    b.config.save_every = 1;
    b.config.keep = 1;
    train(&b, 8, LK_OK);
    CHECK(strcmp(lk_context_error(b.context), "the batch size is -7; expected at least 1") == 0, "\"%s\"",
          lk_context_error(b.context));
    close_fixture(&b);
    open_fixture(&b, 1, "no-words");
    b.config.save_every = 1;
    train(&b, 8, LK_OK);
    b.config.resume = true;
    train(&b, 12, LK_OK);
    CHECK(strcmp(lk_context_error(b.context), "") == 0, "nothing failed, but: %s", lk_context_error(b.context));
    close_fixture(&b);
}

int main(void)
{
    REQUIRE(mkdtemp(root) != NULL);
    RUN(a_trainer_holds_the_planned_memory);
    RUN(resuming_gives_the_bits_of_an_uninterrupted_run);
    RUN(a_schedule_callback_gives_the_rates);
    RUN(the_newest_checkpoint_is_never_removed);
    RUN(a_checkpoint_of_another_run_is_not_overwritten);
    RUN(weights_that_overflowed_are_not_saved);
    RUN(a_model_that_returns_no_logits_fails_with_the_expected_shape);
    RUN(evaluation_alone_holds_no_memory_for_training);
    RUN(an_event_can_stop_training_and_progress_is_saved);
    RUN(a_second_trainer_on_one_directory_is_refused);
    RUN(a_refused_trainer_releases_the_directory);
    RUN(a_file_of_the_user_is_refused_before_the_first_step);
    RUN(a_failed_save_stops_training_with_its_error);
    RUN(saving_does_not_replace_an_earlier_error);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
    return check_result();
}
