/* test_context.c - a failure's message belongs to the thread and the context of the call that failed, and is passed on
 * to a thread that gets the failure of another; two contexts in two threads train as each does alone.
 *
 * ctest: label threaded */
#include "check.h"

#include "base/base.h"

#include <lockstep.h>
#include <pthread.h>

static lk_context *open_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    return context;
}

/* ---- threads ---- */

typedef struct other {
    lk_context *context;
    int         number;
    char        seen[64], own[64];
} other;

static void *fail_elsewhere(void *argument)
{
    other *o = argument;
    snprintf(o->seen, sizeof o->seen, "%.60s", lk_context_error(o->context));
    for (int i = 0; i < 1000; i++) lk__fail(o->context, LK_EIO, "thread %d, failure %d", o->number, i);
    lk__fail_prefix(o->context, LK_EIO, "again: ");
    snprintf(o->own, sizeof o->own, "%.60s", lk_context_error(o->context));
    return NULL;
}

static void each_thread_has_its_own_message(void)
{
    enum { THREADS = 5 };
    lk_context *context = open_context();
    pthread_t   threads[THREADS];
    other       others[THREADS];
    CHECK(strcmp(lk_context_error(context), "") == 0, "before any failure: %s", lk_context_error(context));
    lk__fail(context, LK_EINVAL, "mine");
    for (int i = 0; i < THREADS; i++) {
        others[i] = (other){.context = context, .number = i};
        REQUIRE(pthread_create(&threads[i], NULL, fail_elsewhere, &others[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        char expected[64];
        pthread_join(threads[i], NULL);
        snprintf(expected, sizeof expected, "again: thread %d, failure 999", i);
        CHECK(strcmp(others[i].seen, "") == 0, "thread %d got \"%s\"", i, others[i].seen);
        CHECK(strcmp(others[i].own, expected) == 0, "thread %d: \"%s\"", i, others[i].own);
    }
    CHECK(strcmp(lk_context_error(context), "mine") == 0, "\"%s\"", lk_context_error(context));
    lk_context_free(context);
}

/* ---- contexts ---- */

static void contexts_of_a_thread_keep_their_messages(void)
{
    lk_context *contexts[4];
    for (int i = 0; i < 4; i++) contexts[i] = open_context();
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 4; i++) lk__fail(contexts[i], LK_EIO, "context %d, turn %d", i, turn);
        for (int i = 0; i < 4; i++) {
            char expected[64];
            snprintf(expected, sizeof expected, "context %d, turn %d", i, turn);
            CHECK(strcmp(lk_context_error(contexts[i]), expected) == 0, "\"%s\"", lk_context_error(contexts[i]));
        }
    }
    for (int i = 0; i < 4; i++) lk_context_free(contexts[i]);
}

/* A failure that another rank told keeps its rank under a prefix, and the next failure has none. */
static void a_message_says_whose_failure_it_is(void)
{
    lk_context *context = open_context();
    CHECK(lk_context_error_rank(context) == -1 && lk_context_error_rank(NULL) == -1);
    lk__fail_of_rank(context, LK_EIO, 3, "rank 3: the disk is full");
    lk__fail_prefix(context, LK_EIO, "step 7: ");
    CHECK(lk_context_error_rank(context) == 3, "%d", lk_context_error_rank(context));
    CHECK(strcmp(lk_context_error(context), "step 7: rank 3: the disk is full") == 0, "%s", lk_context_error(context));
    CHECK(lk__is_message(context, "step 7: rank 3: the disk is full") && !lk__is_message(context, "rank 3"));
    lk__fail(context, LK_EIO, "rank 3: in a text");
    CHECK(lk_context_error_rank(context) == -1, "%d", lk_context_error_rank(context));
    lk_context_free(context);
}

/* An allocator that returns the same block again, so that a second context has the address of the first. */
static char  block[1 << 16] __attribute__((aligned(64)));
static bool  taken;
static void *alloc_block(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (taken || bytes > sizeof block) return aligned_alloc(alignment, lk__round_up(bytes, alignment));
    taken = true;
    return block;
}

static void free_block(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    if (memory == block)
        taken = false;
    else
        free(memory);
}

static void a_new_context_at_an_old_address_has_no_message(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *first, *second;
    config.threads = 1;
    config.allocator = (lk_allocator){alloc_block, free_block, NULL};
    REQUIRE(lk_context_create(&config, &first) == LK_OK);
    lk__fail(first, LK_EIO, "of the first");
    CHECK(strcmp(lk_context_error(first), "of the first") == 0);
    lk_context_free(first);
    REQUIRE(lk_context_create(&config, &second) == LK_OK && second == first);
    CHECK(strcmp(lk_context_error(second), "") == 0, "\"%s\"", lk_context_error(second));
    lk_context_free(second);
}

/* ---- failures of another thread ---- */

static void a_failure_in_a_groups_thread_is_reported_to_the_waiter(void)
{
    lk_context *context = open_context();
    lk_comm    *comm;
    lk_work    *work = NULL;
    int32_t     from[4] = {1, 2, 3, 4}, to[4];
    size_t      three = 3, four = 4, none = 0;
    REQUIRE(lk_comm_create(context, NULL, &comm) == LK_OK, "%s", lk_context_error(context));
    for (int way = 0; way < 2; way++) { /* tested, then waited for */
        lk__fail(context, LK_EIO, "something else");
        REQUIRE(lk_comm_all_to_allv(comm, from, &three, &none, to, &four, &none, LK_I32, &work) == LK_OK);
        while (way && lk_work_test(work) == LK_END) {}
        if (way) CHECK(strstr(lk_context_error(context), "expects 4"), "tested: \"%s\"", lk_context_error(context));
        CHECK(lk_work_wait(work) == LK_EMISMATCH);
        CHECK(strstr(lk_context_error(context), "sends 3 elements to itself but expects 4"), "waited for: \"%s\"",
              lk_context_error(context));
    }
    lk_comm_free(comm);
    lk_context_free(context);
}

/* ---- two contexts at once ---- */

typedef struct training {
    const char        *model;
    int                threads;
    pthread_barrier_t *together; /* NULL: alone */
    uint64_t           program_hash, trainer_hash;
    double             loss;
} training;

/* Steps of a program on a batch that is drawn here, with odd counts. */
static void train_program(training *t, lk_context *context)
{
    enum { BATCH = 6, PIXELS = 3 * 12 * 12 };
    lk_graph           *graph;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    lk_metrics          metrics;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    float               images[BATCH * PIXELS];
    int32_t             labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)((i * 7919) % 1009) / 1009 - 0.5F;
    for (int i = 0; i < BATCH; i++) labels[i] = i * 3 % 10;
    REQUIRE(lk_graph_create(context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 4, ((int64_t[]){BATCH, 3, 12, 12}));
    lk_tensor y = lk_input(graph, "y", LK_I32, 1, ((int64_t[]){BATCH}));
    config.loss = lk_cross_entropy(lk_model_find(t->model)(x, (lk_model_options){.cifar_stem = true}), y);
    config.optimizer = &optimizer;
    REQUIRE(lk_plan_create(graph, &config, &plan) == LK_OK, "%s", lk_context_error(context));
    REQUIRE(lk_store_create(plan, 5, &store) == LK_OK, "%s", lk_context_error(context));
    REQUIRE(lk_program_create(plan, store, NULL, &program) == LK_OK, "%s", lk_context_error(context));
    REQUIRE(lk_program_bind(program, "x", images) == LK_OK && lk_program_bind(program, "y", labels) == LK_OK);
    for (int step = 1; step <= 4; step++)
        REQUIRE(lk_program_train(program, &(lk_step){.step = step, .count = BATCH - step % 2, .rate = 1e-3}) == LK_OK,
                "%s", lk_context_error(context));
    lk_program_metrics(program, &metrics);
    t->loss = metrics.loss;
    t->program_hash = lk_store_hash(store);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
}

static lk_tensor small_model(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 24)), "fc2", 10); }

static void train_trainer(training *t, lk_context *context)
{
    lk_dataset       *train, *test;
    lk_trainer       *trainer;
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    REQUIRE(lk_dataset_open(context, "synthetic:1x8x8,count=60", LK_SPLIT_TRAIN, NULL, &train) == LK_OK);
    REQUIRE(lk_dataset_open(context, "synthetic:1x8x8,count=60", LK_SPLIT_TEST, NULL, &test) == LK_OK);
    config.model = small_model;
    config.train = train;
    config.test = test;
    config.batch = 16;
    config.steps = 6;
    config.workers = 2;
    REQUIRE(lk_trainer_create(context, &config, &trainer) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk_trainer_run(trainer) == LK_OK, "%s", lk_context_error(context));
    t->trainer_hash = lk_store_hash(lk_trainer_store(trainer));
    lk_trainer_free(trainer);
    lk_dataset_free(train);
    lk_dataset_free(test);
}

static void *train_in_own_context(void *argument)
{
    training         *t = argument;
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = t->threads;
    if (t->together) pthread_barrier_wait(t->together);
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    train_program(t, context);
    train_trainer(t, context);
    CHECK(*lk_context_error(context) == 0, "%s", lk_context_error(context));
    lk_context_free(context);
    return NULL;
}

static void two_contexts_in_two_threads_train_as_each_does_alone(void)
{
    static const char *const models[] = {"mlp", "cnn", "resnet20"};
    for (int round = 0; round < 3; round++) {
        pthread_barrier_t together;
        pthread_t         threads[2];
        training          alone[2], both[2];
        REQUIRE(pthread_barrier_init(&together, NULL, 2) == 0);
        for (int i = 0; i < 2; i++) {
            alone[i] = (training){.model = models[(round + i) % 3], .threads = 1 + i};
            train_in_own_context(&alone[i]);
            both[i] = (training){.model = alone[i].model, .threads = alone[i].threads, .together = &together};
        }
        for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, train_in_own_context, &both[i]) == 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            CHECK(both[i].program_hash == alone[i].program_hash && both[i].loss == alone[i].loss, "%s: other bits",
                  alone[i].model);
            CHECK(both[i].trainer_hash == alone[i].trainer_hash, "the trainer beside %s: other bits", alone[i].model);
        }
        CHECK(alone[0].program_hash != alone[1].program_hash);
        pthread_barrier_destroy(&together);
    }
}

int main(void)
{
    RUN(each_thread_has_its_own_message);
    RUN(contexts_of_a_thread_keep_their_messages);
    RUN(a_message_says_whose_failure_it_is);
    RUN(a_new_context_at_an_old_address_has_no_message);
    RUN(a_failure_in_a_groups_thread_is_reported_to_the_waiter);
    RUN(two_contexts_in_two_threads_train_as_each_does_alone);
    return check_result();
}
