/* test_evaluation.c - trainers of several ranks that only evaluate: whole batches give the bits of one rank at awkward
 * sizes, a rank that fails ends all at once with its reason, and slow ranks are waited for beyond the timeout of
 * collectives.
 *
 * ctest: timeout 120, ranks 4 */
#include "check.h"
#include "gpu_cases.h"

#include <lockstep.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, FEATURES = 5, TEXT = 512 };

typedef struct results {
    lk_status     status[RANKS];
    char          text[RANKS][TEXT];
    lk_evaluation evaluation[RANKS];
    double        mae[RANKS];
    int           seen[256]; /* how often each sample was read, by all ranks */
} results;

typedef struct test_case {
    int         world, rank;
    int64_t     count, batch;
    bool        parts;  /* of batches, instead of whole ones */
    int64_t     broken; /* a sample that cannot be read; -1: none */
    int         slow;   /* a rank whose samples take 120 ms each; -1: none */
    lk_dtype    dtype;
    const char *backend;
    int64_t     timeout_ms;
    lk_context *context;
    results    *results;
} test_case;

static lk_tensor record_loss(const lk_inputs *inputs, void *user)
{
    (void)user;
    lk_tensor y = lk_linear(lk_tanh(lk_linear(inputs->tensors[0], "fc1", 7)), "fc2", 1);
    lk_metric(lk_l1(y, inputs->tensors[1]), "mae");
    return lk_mse(y, inputs->tensors[1]); /* adds squares of f32 in short runs, whose ends depend on the batch */
}

static lk_status get_sample(void *user, int64_t index, void *const *fields)
{
    test_case *s = user;
    float     *x = fields[0], *y = fields[1];
    __atomic_add_fetch(&s->results->seen[index], 1, __ATOMIC_SEQ_CST);
    if (s->slow == s->rank) nanosleep(&(struct timespec){0, 120000000}, NULL);
    for (int i = 0; i < FEATURES; i++) x[i] = (float)((index * 7 + i * 13) % 29) / 29 - 0.5f;
    y[0] = (float)(index % 11) * 1.7f + 3;
    return index == s->broken ? LK_EIO : LK_OK;
}

static int run_rank(int rank, void *user)
{
    test_case                  *s = user;
    lk_context_config           context = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config              joining = LK_COMM_CONFIG_INIT;
    lk_trainer_config           config = LK_TRAINER_CONFIG_INIT;
    lk_dataset_callbacks_config data = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_dataset                 *dataset;
    lk_trainer                 *trainer;
    check_failures = 0;
    s->rank = rank;
    context.threads = 1;
    REQUIRE(lk_context_create(&context, &s->context) == LK_OK);
    data.count = s->count;
    data.fields = (lk_field[]){{.name = "x", .dtype = LK_F32, .rank = 1, .dims = {FEATURES}},
                               {.name = "y", .dtype = LK_F32, .rank = 1, .dims = {1}}};
    data.fields_count = 2;
    data.get = get_sample;
    data.user = s;
    REQUIRE(lk_dataset_from_callbacks(s->context, &data, &dataset) == LK_OK);
    joining.backend = s->backend;
    if (s->timeout_ms) joining.timeout_ms = s->timeout_ms;
    if (s->world > 1) REQUIRE(lk_comm_create(s->context, &joining, &config.comm) == LK_OK);
    config.loss = record_loss;
    config.test = dataset;
    config.batch = s->batch;
    config.dtype = s->dtype;
    config.workers = 0; /* which would read samples of the next epoch ahead */
    config.whole_batches = !s->parts;
    lk_evaluation *result = &s->results->evaluation[rank];
    lk_status      status = lk_trainer_create(s->context, &config, &trainer);
    if (status >= 0) status = lk_trainer_evaluate(trainer, result);
    if (status >= 0) s->results->mae[rank] = lk_metrics_find(result->metrics, result->metrics_count, "mae")->value;
    s->results->status[rank] = status;
    if (status < 0) snprintf(s->results->text[rank], TEXT, "%s", lk_context_error(s->context));
    lk_trainer_free(trainer);
    lk_comm_free(config.comm);
    lk_dataset_free(dataset);
    lk_context_free(s->context);
    return check_result();
}

static void run_case(test_case *s)
{
    lk_spawn_result result;
    if (!s->results)
        s->results = mmap(NULL, sizeof *s->results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(s->results != MAP_FAILED);
    memset(s->results, 0, sizeof *s->results);
    check_ranks_announced(s->world);
    CHECK(lk_spawn(s->world, run_rank, s, &result) == LK_OK, "%s", result.text);
}

/* Every rank has the numbers of one rank, and every sample was read once. */
static void check_same(const test_case *s, const lk_evaluation *one, double mae)
{
    for (int rank = 0; rank < s->world; rank++) {
        const lk_evaluation *e = &s->results->evaluation[rank];
        CHECK(s->results->status[rank] == LK_OK, "rank %d: %s", rank, s->results->text[rank]);
        CHECK(e->samples == s->count, "%d ranks: %lld of %lld samples", s->world, (long long)e->samples,
              (long long)s->count);
        CHECK(memcmp(&e->loss, &one->loss, sizeof e->loss) == 0,
              "%d ranks, %lld samples in batches of %lld: %.17g, one rank %.17g", s->world, (long long)s->count,
              (long long)s->batch, e->loss, one->loss);
        CHECK(s->results->mae[rank] == mae, "%d ranks: mae %.17g, one rank %.17g", s->world, s->results->mae[rank],
              mae);
    }
    for (int64_t i = 0; i < s->count; i++)
        CHECK(s->results->seen[i] == 1, "%d ranks: sample %lld was read %d times", s->world, (long long)i,
              s->results->seen[i]);
}

static void whole_batches_give_the_bits_of_one_rank(void)
{
    static const int64_t counts[] = {1, 2, 3, 5, 64, 101, 255}, batches[] = {1, 2, 7, 16, 300};
    test_case            s = {.broken = -1, .slow = -1};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            if (gpu_leaves_out((int)c, (int)b, 7)) continue;
            s.count = counts[c], s.batch = batches[b], s.dtype = (c + b) % 3 == 2 ? LK_F64 : LK_F32;
            s.world = 1, s.parts = true; /* as without this option */
            run_case(&s);
            lk_evaluation one = s.results->evaluation[0];
            double        mae = s.results->mae[0];
            CHECK(one.loss > 0 && one.samples == s.count, "%s", s.results->text[0]);
            s.parts = false;
            for (s.world = runs_on_gpu() ? 2 : 1; s.world <= RANKS; s.world++) {
                s.backend = (c + b + (size_t)s.world) % 2 && s.world > 1 ? "tcp" : NULL;
                run_case(&s);
                check_same(&s, &one, mae);
            }
        }
}

/* More batches than ranks exchange at once, and exactly as many. */
static void batches_are_added_in_their_order(void)
{
    test_case s = {.broken = -1, .slow = -1, .batch = 1};
    for (s.count = 191; s.count <= 193; s.count++) { /* 3 ranks of 64 */
        s.world = 1;
        run_case(&s);
        lk_evaluation one = s.results->evaluation[0];
        double        mae = s.results->mae[0];
        s.world = 3;
        run_case(&s);
        check_same(&s, &one, mae);
    }
}

static void a_rank_that_fails_ends_all_with_its_reason(void)
{
    test_case s = {.world = 3, .count = 200, .batch = 4, .broken = 5, .slow = -1}; /* of rank 1 */
    for (int parts = 0; parts < 2; parts++) {
        s.parts = parts;
        run_case(&s);
        for (int rank = 0; rank < s.world; rank++) {
            CHECK(s.results->status[rank] < 0, "rank %d has a result", rank);
            CHECK(strstr(s.results->text[rank], "sample 5"), "rank %d: %s", rank, s.results->text[rank]);
        }
    }
}

/* Two seconds of samples on one rank, and hardly any time on the other, with collectives that time out sooner. */
static void a_slow_rank_is_waited_for(void)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        test_case s = {.world = 2, .count = 36, .batch = 2, .broken = -1, .slow = 1, .timeout_ms = 1500};
        s.parts = tcp;
        s.backend = tcp ? "tcp" : NULL;
        run_case(&s);
        for (int rank = 0; rank < s.world; rank++)
            CHECK(s.results->status[rank] == LK_OK, "rank %d, %s: %s", rank, tcp ? "tcp" : "shm",
                  s.results->text[rank]);
    }
}

static void refusals(void)
{
    lk_context       *c;
    lk_trainer       *trainer;
    lk_dataset       *d;
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    REQUIRE(lk_dataset_open(c, "synthetic:4,count=8", LK_SPLIT_TRAIN, NULL, &d) == LK_OK);
    config.loss = record_loss;
    config.test = d;
    config.whole_batches = 1;
    for (int i = 0; i < 3; i++) {
        config.train = i == 0 ? d : NULL;
        config.leaves = i == 1 ? 2 : 0;
        config.accumulate = i == 2 ? 2 : 0;
        CHECK(lk_trainer_create(c, &config, &trainer) == LK_EINVAL && strstr(lk_context_error(c), "whole_batches"),
              "%d: %s", i, lk_context_error(c));
    }
    lk_dataset_free(d);
    lk_context_free(c);
}

int main(void)
{
    RUN_APART(whole_batches_give_the_bits_of_one_rank);
    RUN_APART(batches_are_added_in_their_order);
    RUN_APART(a_rank_that_fails_ends_all_with_its_reason);
    RUN_APART(a_slow_rank_is_waited_for);
    RUN_APART(refusals);
    return check_result();
}
