/* ddp_mlp.c - starts ranks from code and trains on arrays: lk_spawn forks the ranks, lk_sampler assigns samples to
 * them, the gradients of several micro-batches are accumulated before they are synchronised, and rank 0 saves.
 *
 *   ddp_mlp [RANKS] [FILE.safetensors]     default: 2 ranks; then run infer FILE */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 2000, TESTS = 500, EPOCHS = 5, BATCH = 48, ACCUMULATE = 2 }; /* the batch of all ranks */

/* Ranks are forked, so they inherit these arrays. */
static float   points[2 * (SAMPLES + TESTS)];
static int32_t labels[SAMPLES + TESTS];

typedef struct job {
    const char *file;
    lk_context *context;
    lk_comm    *comm;
    int         rank, world;
    int64_t     micro; /* largest number of samples in a micro-batch of one rank */
    lk_sampler *train, *test;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    float       x[2 * BATCH]; /* the micro-batch */
    int32_t     y[BATCH];
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

static lk_tensor mlp(lk_tensor x) /* (N, 2) → (N, 4) */
{
    x = lk_gelu(lk_linear(x, "hidden", 32));
    return lk_linear(lk_dropout(x, 0.1), "out", 4);
}

static void make_points(void)
{
    for (int i = 0; i < SAMPLES + TESTS; i++) {
        labels[i] = rand() % 4;
        points[2 * i] = (labels[i] % 2 ? 1.0f : -1.0f) + 0.8f * ((float)rand() / (float)RAND_MAX - 0.5f);
        points[2 * i + 1] = (labels[i] / 2 ? 1.0f : -1.0f) + 0.8f * ((float)rand() / (float)RAND_MAX - 0.5f);
    }
}

static lk_status setup(job *j)
{
    TRY(lk_comm_create(j->context, NULL, &j->comm)); /* lk_spawn has set rank and size */
    j->rank = lk_comm_rank(j->comm);
    j->world = lk_comm_size(j->comm);
    j->micro = (BATCH + j->world * ACCUMULATE - 1) / (j->world * ACCUMULATE);

    lk_sampler_config sampling = LK_SAMPLER_CONFIG_INIT;
    sampling.world = j->world;
    sampling.rank = j->rank;
    sampling.count = TESTS;
    TRY(lk_sampler_create(j->context, &sampling, &j->test));
    sampling.count = SAMPLES;
    sampling.shuffle = true;
    TRY(lk_sampler_create(j->context, &sampling, &j->train));

    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      planning = LK_PLAN_CONFIG_INIT;
    sgd.kind = LK_SGD;
    sgd.lr = 0.1;
    sgd.momentum = 0.9;
    TRY(lk_graph_create(j->context, LK_F32, &j->graph));
    lk_tensor x = lk_input(j->graph, "x", LK_F32, 2, ((int64_t[]){j->micro, 2}));
    lk_tensor y = lk_input(j->graph, "y", LK_I32, 1, &j->micro);
    planning.loss = lk_cross_entropy(mlp(x), y);
    planning.optimizer = &sgd;
    planning.parallel = (lk_parallel){.world = j->world, .rank = j->rank, .micro_batches = ACCUMULATE};
    TRY(lk_plan_create(j->graph, &planning, &j->plan));
    TRY(lk_store_create(j->plan, 0, &j->store));
    TRY(lk_program_create(j->plan, j->store, j->comm, &j->program));
    TRY(lk_program_bind(j->program, "x", j->x));
    return lk_program_bind(j->program, "y", j->y);
}

/* Copies samples `first` … of the list into the micro-batch and returns their number: fewer at the end of the list, or
 * 0. */
static int64_t copy_samples(job *j, const int64_t *indices, int64_t count, int64_t first, int64_t offset)
{
    int64_t n = first >= count ? 0 : count - first < j->micro ? count - first : j->micro;
    for (int64_t i = 0; i < n; i++) {
        int64_t sample = offset + indices[first + i];
        j->x[2 * i] = points[2 * sample];
        j->x[2 * i + 1] = points[2 * sample + 1];
        j->y[i] = labels[sample];
    }
    return n;
}

static lk_status train_epoch(job *j, int64_t epoch, int64_t *step, double *loss)
{
    const int64_t *mine;
    int64_t        count, each = j->micro * ACCUMULATE, most = (SAMPLES + j->world - 1) / j->world;
    double         sum = 0, weight = 0;
    TRY(lk_sampler_epoch(j->train, epoch, &mine, &count));
    for (int64_t at = 0; at < most; at += each) { /* the longest list of all ranks: all take the same number of steps */
        lk_metrics m;
        lk_step    now = {.step = ++*step, .epoch = epoch, .rate = 0.1};
        for (int k = 0; k < ACCUMULATE; k++) {
            int64_t first = at + k * j->micro;
            now.count = copy_samples(j, mine, count, first, 0);
            now.sample_ids = now.count > 0 ? mine + first : NULL;
            lk_program_no_sync(j->program, k + 1 < ACCUMULATE); /* only the last one synchronises */
            TRY(lk_program_step(j->program, &now));
            TRY(lk_program_run(j->program, LK_FORWARD));
            TRY(lk_program_run(j->program, LK_BACKWARD));
        }
        TRY(lk_program_run(j->program, LK_SYNC));
        lk_program_metrics(j->program, &m); /* of all micro-batches of all ranks */
        TRY(lk_program_run(j->program, LK_UPDATE));
        sum += m.sum;
        weight += m.weight;
    }
    *loss = sum / weight;
    return LK_OK;
}

static lk_status evaluate(job *j, double *accuracy)
{
    const int64_t *mine;
    int64_t        count, counts[] = {0, 0}; /* correct, total */
    TRY(lk_sampler_epoch(j->test, 0, &mine, &count));
    for (int64_t at = 0; at < count; at += j->micro) {
        lk_metrics m;
        int64_t    n = copy_samples(j, mine, count, at, SAMPLES);
        TRY(lk_program_step(j->program, &(lk_step){.step = 1, .count = n}));
        TRY(lk_program_run(j->program, LK_EVALUATE));
        lk_program_metrics(j->program, &m);
        counts[0] += (int64_t)m.correct;
        counts[1] += n;
    }
    TRY(lk_comm_all_reduce(j->comm, counts, counts, 2, LK_I64, LK_SUM, NULL));
    *accuracy = (double)counts[0] / (double)counts[1];
    if (j->rank == 0)
        printf("%d rank%s: accuracy %.1f %% on %lld points\n", j->world, j->world == 1 ? "" : "s", 100 * *accuracy,
               (long long)counts[1]);
    return LK_OK;
}

static lk_status run(job *j, double *accuracy)
{
    int64_t step = 0;
    TRY(setup(j));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss;
        TRY(train_epoch(j, epoch, &step, &loss));
        if (j->rank == 0) printf("epoch %d: loss %.6f\n", epoch + 1, loss);
    }
    TRY(evaluate(j, accuracy));
    if (j->rank == 0 && j->file) TRY(lk_weights_save(j->store, j->file));
    return lk_comm_barrier(j->comm, NULL); /* no rank ends before the file is written */
}

/* The main function of each rank; returns its exit status. */
static int rank_main(int rank, void *user)
{
    job   *j = user; /* this process's own copy */
    double accuracy = 0;
    if (lk_context_create(NULL, &j->context) < 0) return 1;
    lk_status status = run(j, &accuracy);
    if (status < 0) {
        fprintf(stderr, "ddp_mlp: rank %d: %s\n", rank, lk_context_error(j->context));
        if (j->comm) lk_comm_abort(j->comm, lk_context_error(j->context)); /* so that no rank waits for this one */
    }
    lk_program_free(j->program);
    lk_store_free(j->store);
    lk_plan_free(j->plan);
    lk_graph_free(j->graph);
    lk_sampler_free(j->train);
    lk_sampler_free(j->test);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
    return status < 0 || accuracy < 0.9;
}

int main(int argc, char **argv)
{
    static job      j;
    lk_spawn_result result;
    int             ranks = argc > 1 ? atoi(argv[1]) : 2;
    if (ranks < 1 || ranks > BATCH / ACCUMULATE) {
        fprintf(stderr, "usage: ddp_mlp [RANKS] [FILE.safetensors]; 1 to %d ranks\n", BATCH / ACCUMULATE);
        return 2;
    }
    j.file = argc > 2 ? argv[2] : NULL;
    make_points();
    if (lk_spawn(ranks, rank_main, &j, &result) == LK_OK) return 0;
    fprintf(stderr, "ddp_mlp: %s\n", result.text);
    return 1;
}
