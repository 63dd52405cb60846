/* test_trainer_memory.c - each allocation fails once, from lk_trainer_create through the first step: the call returns
 * LK_ENOMEM with a message, nothing is lost, and with two ranks the other one is told.
 *
 * ctest: timeout 300, ranks 2, label threaded */
#include "comm_ranks.h"
#include "failing_allocator.h"

#include <lockstep.h>

static char root[] = "/tmp/lockstep-memory-XXXXXX", checkpoint[64], trace[64];

static lk_tensor tiny(lk_tensor x)
{
    x = lk_max_pool2d(lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 4, 3, .padding = 1), "bn")), 2);
    return lk_linear(lk_dropout(lk_flatten(x), 0.2), "fc", 10);
}

typedef enum way { PLAIN, SAVES, RESUMES, TRACES, ACCUMULATES, LEAVES, WAYS } way;

static const char *const way_names[WAYS] = {"plain", "saves", "resumes", "traces", "accumulates", "leaves"};

/* Trains a step and evaluates. From lk_trainer_create on, allocation n of this context fails; below 0: none. */
static lk_status train(lk_context *context, lk_comm *comm, way how, const char *save, meter *m, int64_t n)
{
    lk_trainer       *t = NULL;
    lk_dataset       *data[2] = {NULL};
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    for (int i = 0; i < 2; i++)
        REQUIRE(lk_dataset_open(context, "synthetic:1x8x8,count=40", i ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, NULL,
                                &data[i]) == LK_OK);
    config.model = tiny;
    config.train = data[0];
    config.test = data[1];
    config.comm = comm;
    config.batch = 16;
    config.steps = how == RESUMES ? 2 : 1;
    config.eval_every = 1;
    config.workers = how == SAVES || how == TRACES;
    config.save = save;
    config.files = &(lk_checkpoint_file){"config.json", "{}", 2};
    config.files_count = 1;
    config.resume_from = how == RESUMES ? checkpoint : NULL;
    config.trace = how == TRACES ? trace : NULL;
    config.accumulate = how == ACCUMULATES ? 2 : 0;
    config.leaves = how == LEAVES ? 4 : 0;
    atomic_store(&m->left, n < 0 ? INT64_MAX : n);
    lk_status status = lk_trainer_create(context, &config, &t);
    CHECK((status >= 0) == (t != NULL));
    if (status >= 0) status = lk_trainer_run(t);
    CHECK(status >= 0 || *lk_context_error(context), "%s fails without a message", lk_status_name(status));
    lk_trainer_free(t);
    for (int i = 0; i < 2; i++) lk_dataset_free(data[i]);
    return status;
}

static lk_context *open_metered(meter *m)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.allocator = metered(m);
    atomic_store(&m->left, INT64_MAX);
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    return context;
}

static void check_outcome(const char *what, int64_t n, meter *m, lk_status status)
{
    CHECK(status == LK_OK || status == LK_ENOMEM, "%s, allocation %lld: %s", what, (long long)n,
          lk_status_name(status));
    CHECK(atomic_load(&m->hit) || status == LK_OK, "%s: %s without a failure", what, lk_status_name(status));
    CHECK(atomic_load(&m->outstanding) == 0, "%s, allocation %lld: %lld bytes are lost", what, (long long)n,
          (long long)atomic_load(&m->outstanding));
}

/* ---- one rank ---- */

static lk_status train_alone(way how, meter *m, int64_t n)
{
    char        save[96];
    lk_context *context = open_metered(m);
    snprintf(save, sizeof save, "%s/saved-%d-%lld", root, m->permanent, (long long)n);
    lk_status status = train(context, NULL, how, how == SAVES ? save : NULL, m, n);
    lk_context_free(context);
    return status;
}

static void fail_each_allocation(way how)
{
    int64_t n = 0, failures = 0;
    for (bool hit = true; hit && n < 100000; n++) {
        hit = false;
        for (int permanent = 0; permanent < 2; permanent++) {
            meter     m = {.permanent = permanent};
            lk_status status = train_alone(how, &m, n);
            check_outcome(way_names[how], n, &m, status);
            hit = hit || atomic_load(&m.hit);
            failures += status == LK_ENOMEM;
        }
    }
    CHECK(n > 50 && failures > n, "%s: %lld allocations, %lld failures", way_names[how], (long long)n,
          (long long)failures);
    printf("     %s: each of %lld allocations failed once\n", way_names[how], (long long)n - 1);
}

static void a_failing_allocation_gives_enomem_and_loses_nothing(void)
{
    meter       m = {.permanent = false};
    lk_context *context = open_metered(&m);
    CHECK(train(context, NULL, PLAIN, checkpoint, &m, -1) == LK_OK, "%s", lk_context_error(context));
    lk_context_free(context);
    for (way how = 0; how < WAYS; how++) fail_each_allocation(how);
}

/* ---- two ranks ---- */

typedef struct pair {
    meter     meters[2];
    int       victim;
    int64_t   n; /* of the victim */
    lk_status status[2];
    char      text[1024]; /* of the other */
} pair;

static void *train_rank(void *argument)
{
    static atomic_int started;
    pair             *p = argument;
    int               rank = atomic_fetch_add(&started, 1) % 2;
    lk_comm          *comm;
    lk_context       *context = open_metered(&p->meters[rank]);
    lk_comm_config    config = LK_COMM_CONFIG_INIT;
    config.rank = rank;
    config.world = 2;
    config.join_ms = 60000;
    config.timeout_ms = 60000;
    REQUIRE(lk_comm_create(context, &config, &comm) == LK_OK, "%s", lk_context_error(context));
    p->status[rank] = train(context, comm, PLAIN, NULL, &p->meters[rank], rank == p->victim ? p->n : -1);
    if (rank != p->victim) snprintf(p->text, sizeof p->text, "%s", lk_context_error(context));
    lk_comm_free(comm);
    lk_context_free(context);
    return NULL;
}

static void fail_each_allocation_of(int victim)
{
    int64_t n = 0;
    for (bool hit = true; hit && n < 100000; n++) {
        pair      p = {.victim = victim, .n = n};
        pthread_t threads[2];
        char      job[64], what[32];
        snprintf(job, sizeof job, "memory-%ld-%d-%lld", (long)getpid(), victim, (long long)n);
        snprintf(what, sizeof what, "rank %d of 2", victim);
        setenv("LOCKSTEP_JOB", job, 1);
        for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, train_rank, &p) == 0);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        lk_status its = p.status[victim], others = p.status[!victim];
        check_outcome(what, n, &p.meters[victim], its);
        CHECK((its == LK_OK) == (others == LK_OK) && others != LK_ETIMEOUT,
              "%s, allocation %lld: %s; the other: %s: %s", what, (long long)n, lk_status_name(its),
              lk_status_name(others), p.text);
        CHECK(atomic_load(&p.meters[!victim].outstanding) == 0, "%s, allocation %lld: the other loses memory", what,
              (long long)n);
        hit = atomic_load(&p.meters[victim].hit);
    }
    CHECK(n > 50);
    printf("     rank %d of 2: each of %lld allocations failed once\n", victim, (long long)n - 1);
}

static void a_rank_without_memory_ends_the_other(void)
{
    check_ranks_announced(2);
    for (int victim = 0; victim < 2; victim++) fail_each_allocation_of(victim);
}

int main(void)
{
    char command[160];
    REQUIRE(mkdtemp(root) != NULL);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", root);
    snprintf(trace, sizeof trace, "%s/trace.json", root);
    RUN(a_failing_allocation_gives_enomem_and_loses_nothing);
    RUN(a_rank_without_memory_ends_the_other);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
    return check_result();
}
