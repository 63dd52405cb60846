/* concepts.c - data parallelism in three parts: which rank gets which sample, what all_reduce does to gradients, and
 * that the weights stay identical. Rank 0 gathers and prints all results, so the output is in order.
 *
 *   concepts [RANKS]     default: 2 */
#include <lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 11, FEATURES = 3, STEPS = 4, MOST_RANKS = 8 };

typedef struct model { /* y = w · x + b, and the squared error */
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
} model;

typedef struct job {
    lk_context *context;
    lk_comm    *comm;
    int         rank, world;
    float       x[SAMPLES * FEATURES], target[SAMPLES]; /* of this rank's samples */
    int64_t     count;
    bool        wrong; /* a result differs from what this program explains */
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

static const char *colour(int rank)
{
    static const char *const colours[] = {"\033[36m", "\033[33m", "\033[32m", "\033[35m"};
    if (!isatty(STDOUT_FILENO) || getenv("NO_COLOR")) return "";
    return rank < 0 ? "\033[0m" : colours[rank % 4];
}

/* ---- 1. which rank gets which sample ---- */

static lk_status show_epoch(job *j, lk_sampler *sampler, int64_t epoch)
{
    const int64_t *indices;
    int64_t        count, mine[SAMPLES], all[MOST_RANKS * SAMPLES];
    int            seen[SAMPLES] = {0}, once = 0;
    TRY(lk_sampler_epoch(sampler, epoch, &indices, &count));
    for (int64_t i = 0; i < SAMPLES; i++) mine[i] = i < count ? indices[i] : -1;
    TRY(lk_comm_gather(j->comm, mine, all, SAMPLES, LK_I64, 0, NULL));
    if (j->rank != 0) return LK_OK;
    for (int rank = 0; rank < j->world; rank++) {
        printf("  epoch %lld  %srank %d%s  samples", (long long)epoch, colour(rank), rank, colour(-1));
        for (const int64_t *s = all + rank * SAMPLES; s < all + (rank + 1) * SAMPLES && *s >= 0; s++) {
            printf(" %s%lld%s", colour(rank), (long long)*s, colour(-1));
            seen[*s]++;
        }
        printf("\n");
    }
    for (int i = 0; i < SAMPLES; i++) once += seen[i] == 1;
    printf("  epoch %lld  %d of %d samples occur exactly once\n", (long long)epoch, once, SAMPLES);
    j->wrong |= once != SAMPLES;
    return LK_OK;
}

static lk_status show_samples(job *j)
{
    lk_sampler       *sampler;
    lk_sampler_config config = LK_SAMPLER_CONFIG_INIT;
    config.count = SAMPLES;
    config.world = j->world;
    config.rank = j->rank;
    config.shuffle = true;
    if (j->rank == 0)
        printf("1. Which rank gets which sample: a new order each epoch, split over the ranks, no repetition\n");
    TRY(lk_sampler_create(j->context, &config, &sampler));
    lk_status status = LK_OK;
    for (int64_t epoch = 0; epoch < 2 && status >= 0; epoch++) status = show_epoch(j, sampler, epoch);
    /* The rest of this program uses this rank's samples of epoch 0. Sample s is (s / 10, s² / 100, 0.1), its target
     * s. */
    const int64_t *indices;
    if (status >= 0) status = lk_sampler_epoch(sampler, 0, &indices, &j->count);
    for (int64_t i = 0; i < j->count && status >= 0; i++) {
        float s = (float)indices[i];
        memcpy(j->x + i * FEATURES, (float[]){s / 10, s * s / 100, 0.1f}, FEATURES * sizeof(float));
        j->target[i] = s;
    }
    lk_sampler_free(sampler);
    return status;
}

/* ---- the model: with a comm its ranks synchronise every step, without one each rank trains alone ---- */

static lk_status make_model(job *j, lk_comm *comm, model *m)
{
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    TRY(lk_graph_create(j->context, LK_F32, &m->graph));
    lk_tensor x = lk_input(m->graph, "x", LK_F32, 2, ((int64_t[]){SAMPLES, FEATURES}));
    lk_tensor target = lk_input(m->graph, "target", LK_F32, 2, ((int64_t[]){SAMPLES, 1}));
    sgd.kind = LK_SGD;
    config.loss = lk_mse(lk_linear(x, "fc", 1), target);
    config.optimizer = &sgd;
    config.parallel.micro_batches = 2; /* lets us read gradients before they are synchronised */
    if (comm) config.parallel.world = j->world, config.parallel.rank = j->rank;
    TRY(lk_plan_create(m->graph, &config, &m->plan));
    TRY(lk_store_create(m->plan, 0, &m->store)); /* same seed, same weights on every rank */
    TRY(lk_program_create(m->plan, m->store, comm, &m->program));
    TRY(lk_program_bind(m->program, "x", j->x));
    return lk_program_bind(m->program, "target", j->target);
}

static void free_model(model *m)
{
    lk_program_free(m->program);
    lk_store_free(m->store);
    lk_plan_free(m->plan);
    lk_graph_free(m->graph);
    *m = (model){0};
}

static lk_status begin_step(job *j, model *m, int64_t step)
{
    TRY(lk_program_step(m->program, &(lk_step){.step = step, .count = j->count, .rate = 0.1}));
    TRY(lk_program_run(m->program, LK_FORWARD));
    return lk_program_run(m->program, LK_BACKWARD);
}

/* ---- 2. what all_reduce does to gradients ---- */

static lk_status show_gradients(job *j, model *m)
{
    float      own[MOST_RANKS * FEATURES], after[MOST_RANKS * FEATURES], sum[FEATURES] = {0}, gradient[FEATURES];
    lk_metrics metrics;
    lk_program_no_sync(m->program, true); /* backward does not synchronise … */
    TRY(begin_step(j, m, 1));
    TRY(lk_program_gradient_read(m->program, "fc.weight", gradient, sizeof gradient));
    TRY(lk_comm_gather(j->comm, gradient, own, FEATURES, LK_F32, 0, NULL));
    lk_program_no_sync(m->program, false);
    TRY(lk_program_run(m->program, LK_SYNC)); /* … this does: one all_reduce per bucket */
    TRY(lk_program_gradient_read(m->program, "fc.weight", gradient, sizeof gradient));
    TRY(lk_comm_gather(j->comm, gradient, after, FEATURES, LK_F32, 0, NULL));
    lk_program_metrics(m->program, &metrics); /* of all ranks */
    if (j->rank == 0) {
        printf("2. What all_reduce does to the gradient of fc.weight (of the loss summed over the samples)\n");
        for (int when = 0; when < 2; when++)
            for (int rank = 0; rank < j->world; rank++) {
                const float *g = (when ? after : own) + rank * FEATURES;
                printf("  %s  %srank %d%s", when ? "after LK_SYNC " : "before LK_SYNC", colour(rank), rank, colour(-1));
                for (int i = 0; i < FEATURES; i++) {
                    printf(" %s%10.4f%s", when ? "" : colour(rank), (double)g[i], colour(-1));
                    if (!when) sum[i] += g[i];
                    if (when) j->wrong |= !(fabsf(g[i] - sum[i]) <= 1e-5f * fabsf(sum[i])) || g[i] != after[i];
                }
                printf("\n");
            }
        printf("  over %2.0f samples       ", metrics.weight);
        for (int i = 0; i < FEATURES; i++) printf(" %10.4f", (double)after[i] / metrics.weight);
        printf("   the mean, which the update uses\n");
    }
    return LK_OK; /* no update: the next backward replaces these gradients */
}

/* ---- 3. the weights stay identical ---- */

static lk_status show_hashes(job *j, model *m, int64_t step, bool together)
{
    uint64_t hash = lk_store_hash(m->store), all[MOST_RANKS];
    bool     same = true;
    TRY(lk_comm_gather(j->comm, &hash, all, sizeof hash, LK_U8, 0, NULL));
    if (j->rank != 0) return LK_OK;
    printf("  %s  step %lld ", together ? "together" : "alone   ", (long long)step);
    for (int rank = 0; rank < j->world; rank++) {
        printf("  %srank %d %016llx%s", colour(rank), rank, (unsigned long long)all[rank], colour(-1));
        same &= all[rank] == all[0];
    }
    printf("  %s\n", same ? "same" : "different");
    j->wrong |= same != (together || step == 0 || j->world == 1);
    return LK_OK;
}

static lk_status show_steps(job *j, model *m, bool together)
{
    TRY(show_hashes(j, m, 0, together)); /* same seed: equal at the start */
    for (int64_t step = 1; step <= STEPS; step++) {
        TRY(begin_step(j, m, step));
        TRY(lk_program_run(m->program, LK_UPDATE)); /* synchronises first */
        TRY(show_hashes(j, m, step, together));
    }
    return LK_OK;
}

static lk_status run(job *j, model *together, model *alone)
{
    TRY(lk_comm_create(j->context, NULL, &j->comm));
    j->rank = lk_comm_rank(j->comm);
    j->world = lk_comm_size(j->comm);
    TRY(show_samples(j));
    TRY(make_model(j, j->comm, together));
    TRY(make_model(j, NULL, alone));
    TRY(show_gradients(j, together));
    if (j->rank == 0)
        printf("3. A hash of all weights after each step: synchronised, and for comparison each rank alone\n");
    TRY(show_steps(j, together, true));
    return show_steps(j, alone, false);
}

static int rank_main(int rank, void *user)
{
    job  *j = user; /* this process's own copy */
    model together = {0}, alone = {0};
    if (lk_context_create(NULL, &j->context) < 0) return 1;
    lk_status status = run(j, &together, &alone);
    if (status < 0) {
        fprintf(stderr, "concepts: rank %d: %s\n", rank, lk_context_error(j->context));
        if (j->comm) lk_comm_abort(j->comm, lk_context_error(j->context)); /* so that no rank waits for this one */
    }
    free_model(&together);
    free_model(&alone);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
    return status < 0 || j->wrong;
}

int main(int argc, char **argv)
{
    static job      j;
    lk_spawn_result result;
    int             ranks = argc > 1 ? atoi(argv[1]) : 2;
    if (ranks < 1 || ranks > MOST_RANKS) {
        fprintf(stderr, "usage: concepts [RANKS], 1 to %d\n", MOST_RANKS);
        return 2;
    }
    if (lk_spawn(ranks, rank_main, &j, &result) == LK_OK) return 0;
    fprintf(stderr, "concepts: %s\n", result.text);
    return 1;
}
