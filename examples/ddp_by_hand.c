/* ddp_by_hand.c - data parallelism as tutorials teach it: every rank runs forward and backward over its share of the
 * batch, all_reduces each gradient, and updates its own copy of the weights. The lk_program runs on one rank alone;
 * reduce_gradients below does what DistributedDataParallel does inside. `built-in` trains the same with Lockstep's own
 * data parallelism.
 *
 *   ddp_by_hand [RANKS] [average|sum|built-in]     default: 2 ranks, average */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1920, EPOCHS = 3, BATCH = 48, HIDDEN = 32, CLASSES = 4 }; /* the batch of all ranks */
enum { LARGEST = HIDDEN * CLASSES };                                       /* elements of the largest parameter */

typedef enum way { AVERAGE, SUM, BUILT_IN } way;

/* Ranks are forked, so they inherit these arrays. */
static float   points[2 * SAMPLES];
static int32_t labels[SAMPLES];

typedef struct job {
    way         way;
    lk_context *context;
    lk_comm    *comm;
    int         rank, world;
    int64_t     share; /* samples of the batch for this rank */
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    float       gradient[LARGEST];
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

static void make_points(void)
{
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = rand() % CLASSES;
        points[2 * i] = (labels[i] % 2 ? 1.0f : -1.0f) + 1.6f * ((float)rand() / (float)RAND_MAX - 0.5f);
        points[2 * i + 1] = (labels[i] / 2 ? 1.0f : -1.0f) + 1.6f * ((float)rand() / (float)RAND_MAX - 0.5f);
    }
}

static lk_status setup(job *j)
{
    TRY(lk_comm_create(j->context, NULL, &j->comm));
    j->rank = lk_comm_rank(j->comm);
    j->world = lk_comm_size(j->comm);
    j->share = BATCH / j->world;

    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      planning = LK_PLAN_CONFIG_INIT;
    sgd.kind = LK_SGD;
    sgd.momentum = 0.9;
    TRY(lk_graph_create(j->context, LK_F32, &j->graph));
    lk_tensor x = lk_input(j->graph, "x", LK_F32, 2, ((int64_t[]){j->share, 2}));
    lk_tensor y = lk_input(j->graph, "y", LK_I32, 1, &j->share);
    planning.loss = lk_cross_entropy(lk_linear(lk_relu(lk_linear(x, "hidden", HIDDEN)), "out", CLASSES), y);
    planning.optimizer = &sgd;
    if (j->way == BUILT_IN) planning.parallel = (lk_parallel){.world = j->world, .rank = j->rank};
    TRY(lk_plan_create(j->graph, &planning, &j->plan));
    TRY(lk_store_create(j->plan, 0, &j->store)); /* same seed, same weights on every rank */
    return lk_program_create(j->plan, j->store, j->way == BUILT_IN ? j->comm : NULL, &j->program);
}

/* Gradients are of the loss summed over the samples, and the update divides them by the number of samples, of which the
 * program counts its own. The average over ranks, divided by that, is the mean over the batch, because all shares are
 * equal; with the sum over ranks, lk_program_gradient_weight sets the number of samples of all ranks. */
static lk_status reduce_gradients(job *j)
{
    for (size_t i = 0; i < lk_store_count(j->store); i++) {
        lk_state state = lk_store_at(j->store, i);
        size_t   count = 1;
        for (int k = 0; k < state.rank; k++) count *= (size_t)state.dims[k];
        TRY(lk_program_gradient_read(j->program, state.name, j->gradient, count * sizeof *j->gradient));
        TRY(lk_comm_all_reduce(j->comm, j->gradient, j->gradient, count, LK_F32, LK_SUM, NULL));
        for (size_t k = 0; k < count && j->way == AVERAGE; k++) j->gradient[k] /= (float)j->world;
        TRY(lk_program_gradient_write(j->program, state.name, j->gradient, count * sizeof *j->gradient));
    }
    return j->way == SUM ? lk_program_gradient_weight(j->program, BATCH) : LK_OK;
}

static lk_status train_step(job *j, int64_t step, int64_t epoch, int64_t first, double sums[2])
{
    lk_metrics m;
    int64_t    mine = first + j->rank * j->share;
    TRY(lk_program_bind(j->program, "x", points + 2 * mine));
    TRY(lk_program_bind(j->program, "y", labels + mine));
    TRY(lk_program_step(j->program, &(lk_step){.step = step, .epoch = epoch, .count = j->share, .rate = 0.05}));
    TRY(lk_program_run(j->program, LK_FORWARD));
    lk_program_metrics(j->program, &m); /* of this rank's samples */
    TRY(lk_program_run(j->program, LK_BACKWARD));
    if (j->way != BUILT_IN) TRY(reduce_gradients(j));
    TRY(lk_program_run(j->program, LK_UPDATE));
    sums[0] += m.sum;
    sums[1] += m.weight;
    return LK_OK;
}

/* Checks that all ranks hold the same weights, though each ran its own update. */
static lk_status compare_weights(job *j, bool *same)
{
    int64_t hash = (int64_t)lk_store_hash(j->store), least, most;
    TRY(lk_comm_all_reduce(j->comm, &hash, &least, 1, LK_I64, LK_MIN, NULL));
    TRY(lk_comm_all_reduce(j->comm, &hash, &most, 1, LK_I64, LK_MAX, NULL));
    *same = least == most;
    if (j->rank == 0) printf("the weights of all ranks are %s\n", *same ? "the same" : "not the same");
    return LK_OK;
}

static lk_status run(job *j, bool *same)
{
    int64_t step = 0;
    TRY(setup(j));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double sums[2] = {0, 0};
        for (int64_t first = 0; first < SAMPLES; first += BATCH) TRY(train_step(j, ++step, epoch, first, sums));
        TRY(lk_comm_all_reduce(j->comm, sums, sums, 2, LK_F64, LK_SUM, NULL));
        if (j->rank == 0) printf("epoch %d: loss %.6f\n", epoch + 1, sums[0] / sums[1]);
    }
    return compare_weights(j, same);
}

/* The main function of each rank; returns its exit status. */
static int rank_main(int rank, void *user)
{
    job *j = user; /* this process's own copy */
    bool same = false;
    if (lk_context_create(NULL, &j->context) < 0) return 1;
    lk_status status = run(j, &same);
    if (status < 0) {
        fprintf(stderr, "ddp_by_hand: rank %d: %s\n", rank, lk_context_error(j->context));
        if (j->comm) lk_comm_abort(j->comm, lk_context_error(j->context)); /* so that no rank waits for this one */
    }
    lk_program_free(j->program);
    lk_store_free(j->store);
    lk_plan_free(j->plan);
    lk_graph_free(j->graph);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
    return !same;
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {"average", "sum", "built-in"};
    static job               j;
    lk_spawn_result          result;
    int                      ranks = argc > 1 ? atoi(argv[1]) : 2, way = 0;
    while (argc > 2 && way < 3 && strcmp(argv[2], ways[way]) != 0) way++;
    if (ranks < 1 || ranks > BATCH || BATCH % ranks != 0 || way == 3) {
        fprintf(stderr, "usage: ddp_by_hand [RANKS] [average|sum|built-in]; RANKS must divide %d\n", BATCH);
        return 2;
    }
    j.way = (enum way)way;
    make_points();
    if (lk_spawn(ranks, rank_main, &j, &result) == LK_OK) return 0;
    fprintf(stderr, "ddp_by_hand: %s\n", result.text);
    return 1;
}
