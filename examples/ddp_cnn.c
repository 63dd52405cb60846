/* ddp_cnn.c - data-parallel training by hand: what the trainer does with several ranks, and what a PyTorch DDP script
 * contains: setup, a share of every batch, one synchronisation per step, metrics of all ranks, a checkpoint from rank
 * 0, cleanup.
 *
 *   ddp_cnn [DATA] [EPOCHS] [DIR]                           one rank
 *   lockstep run -n 2 ddp_cnn cifar10 5 runs/ddp            two ranks; torchrun --no-python and mpirun also start it */
#include <lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, SEED = 0 }; /* the global batch: samples of all ranks in one step */

typedef struct job {
    lk_context         *context;
    lk_comm            *comm;
    int                 rank, world;
    lk_dataset         *train, *test;
    lk_loader          *batches, *tests;
    lk_optimizer_config adam;
    lk_graph           *graph;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    int64_t             steps; /* updates done */
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

static lk_tensor simple_cnn(lk_tensor x)                                        /* (N, 3, 32, 32) */
{
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv1", 32, 3, .padding = 1)), 2);  /* (N, 32, 16, 16) */
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv2", 64, 3, .padding = 1)), 2);  /* (N, 64, 8, 8) */
    x = lk_relu(lk_linear(lk_flatten(x), "fc1", 512));
    return lk_linear(x, "fc2", 10);                                             /* logits (N, 10) */
}

/* Rank and size come from the launcher's environment; without one there is one rank. */
static lk_status setup(job *j)
{
    TRY(lk_comm_create(j->context, NULL, &j->comm));
    j->rank = lk_comm_rank(j->comm);
    j->world = lk_comm_size(j->comm);
    if (j->rank == 0) printf("%d rank%s over %s\n", j->world, j->world == 1 ? "" : "s", lk_comm_backend(j->comm));
    return LK_OK;
}

/* Each rank reads its own part of every global batch: all use the same order, and every sample occurs once per
 * epoch. */
static lk_status open_data(job *j, const char *data)
{
    lk_loader_config config = LK_LOADER_CONFIG_INIT;
    TRY(lk_dataset_open(j->context, data, LK_SPLIT_TRAIN, NULL, &j->train));
    TRY(lk_dataset_open(j->context, data, LK_SPLIT_TEST, NULL, &j->test));
    config.dataset = j->train;
    config.batch = BATCH;
    config.shuffle = true;
    config.seed = SEED;
    config.workers = 1;
    config.parts = j->world;
    config.first_part = j->rank;
    config.last_part = j->rank + 1;
    TRY(lk_loader_create(j->context, &config, &j->batches));
    config.dataset = j->test;
    config.shuffle = false;
    return lk_loader_create(j->context, &config, &j->tests);
}

/* The model's code does not depend on ranks: the plan does. The ranks compare their programs before they run. */
static lk_status make_model(job *j)
{
    lk_plan_config   config = LK_PLAN_CONFIG_INIT;
    lk_loader_config loading = LK_LOADER_CONFIG_INIT;
    lk_inputs        inputs; /* one for each field of a sample: image and label */
    config.parallel.world = j->world;
    config.parallel.rank = j->rank;
    loading.dataset = j->train;
    TRY(lk_graph_create(j->context, LK_F32, &j->graph));
    TRY(lk_inputs_record(j->graph, &loading, lk_parallel_capacity(&config.parallel, BATCH), &inputs));
    j->adam = (lk_optimizer_config)LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_cross_entropy(simple_cnn(inputs.tensors[0]), lk_inputs_find(&inputs, "label"));
    config.optimizer = &j->adam;
    TRY(lk_plan_create(j->graph, &config, &j->plan));
    TRY(lk_store_create(j->plan, SEED, &j->store));
    return lk_program_create(j->plan, j->store, j->comm, &j->program);
}

/* Rank 0 reads the checkpoint, if there is one, and broadcasts it: weights, moments, position in the data. */
static lk_status start_from(job *j, const char *directory)
{
    lk_progress done = {0, 0, 0, SEED};
    if (j->rank == 0 && directory && lk_checkpoint_find(j->context, directory, &done.step) == LK_OK) {
        TRY(lk_checkpoint_load(j->store, directory, &done));
        printf("resuming from step %lld\n", (long long)done.step);
    }
    TRY(lk_comm_broadcast(j->comm, &done, sizeof done, LK_U8, 0, NULL));
    j->steps = done.step;
    TRY(lk_program_broadcast(j->program));
    return lk_loader_seek(j->batches, done.epoch, done.position);
}

static lk_status bind_batch(job *j, const lk_batch *batch, const lk_step *step)
{
    TRY(lk_batch_bind(batch, j->program));
    return lk_program_step(j->program, step);
}

static lk_status train_step(job *j, const lk_batch *batch, lk_metrics *own, lk_metrics *all)
{
    lk_step step = {.step = j->steps + 1,
                    .epoch = batch->epoch,
                    .count = batch->count, /* may be 0 in the last batch: this rank still takes part */
                    .seed = SEED,
                    .rate = j->adam.lr,
                    .sample_ids = batch->indices};
    TRY(bind_batch(j, batch, &step));
    TRY(lk_program_run(j->program, LK_FORWARD));
    lk_program_metrics(j->program, own);          /* of this rank's samples */
    TRY(lk_program_run(j->program, LK_BACKWARD)); /* a bucket is reduced as soon as its gradients are complete */
    TRY(lk_program_run(j->program, LK_SYNC));
    lk_program_metrics(j->program, all); /* of the global batch, equal on every rank: so all ranks stop here, or none */
    if (!isfinite(all->loss)) return LK_ENAN;
    TRY(lk_program_run(j->program, LK_UPDATE)); /* divides the summed gradients by the samples of all ranks */
    j->steps++;
    return LK_OK;
}

static lk_status train_epoch(job *j, int64_t epoch)
{
    double     mine[] = {0, 0, 0}, sum = 0, weight = 0; /* this rank's loss, its weight, and samples */
    lk_batch   batch;
    lk_metrics own, all;
    lk_status  status;
    while ((status = lk_loader_next(j->batches, &batch)) == LK_OK) {
        TRY(train_step(j, &batch, &own, &all));
        mine[0] += own.sum;
        mine[1] += own.weight;
        mine[2] += (double)batch.count;
        sum += all.sum;
        weight += all.weight;
    }
    TRY(status);
    double *ranks = calloc((size_t)j->world, sizeof mine);
    status = ranks ? lk_comm_gather(j->comm, mine, ranks, 3, LK_F64, 0, NULL) : LK_ENOMEM;
    if (status >= 0 && j->rank == 0) {
        printf("epoch %lld: train loss %.6f", (long long)epoch + 1, weight > 0 ? sum / weight : 0);
        for (int i = 0; i < j->world && j->world > 1; i++)
            printf("%s rank %d %.4f of %.0f samples", i ? "," : ":", i,
                   ranks[3 * i + 1] > 0 ? ranks[3 * i] / ranks[3 * i + 1] : 0, ranks[3 * i + 2]);
        printf("\n");
    }
    free(ranks);
    return status;
}

/* Each rank evaluates its share; the sums are exact, because shares are not padded to equal sizes. */
static lk_status evaluate(job *j)
{
    double    sums[] = {0, 0, 0, 0}; /* loss, its weight, correct, samples */
    lk_batch  batch;
    lk_status status;
    while ((status = lk_loader_next(j->tests, &batch)) == LK_OK) {
        lk_metrics m;
        TRY(bind_batch(j, &batch, &(lk_step){.step = 1, .count = batch.count}));
        TRY(lk_program_run(j->program, LK_EVALUATE));
        lk_program_metrics(j->program, &m);
        double part[] = {m.sum, m.weight, m.correct, (double)batch.count};
        for (int i = 0; i < 4; i++) sums[i] += part[i];
    }
    TRY(status);
    TRY(lk_comm_all_reduce(j->comm, sums, sums, 4, LK_F64, LK_SUM, NULL));
    if (j->rank == 0)
        printf("  test loss %.6f, accuracy %.2f %% (%.0f of %.0f/%lld samples)\n", sums[0] / sums[1],
               100 * sums[2] / sums[3], sums[2], sums[3], (long long)lk_dataset_count(j->test));
    return LK_OK;
}

/* Rank 0 writes; busy_begin tells the waiting ranks that it is still working. The checkpoint does not depend on the
 * number of ranks. */
static lk_status save(job *j, const char *directory)
{
    lk_progress done = {j->steps, lk_loader_epoch(j->batches), lk_loader_position(j->batches), SEED};
    if (j->rank == 0) {
        lk_comm_busy_begin(j->comm, "saving a checkpoint");
        lk_status status = lk_checkpoint_save(j->store, directory, &done, 2);
        lk_comm_busy_end(j->comm);
        TRY(status);
    }
    return lk_comm_barrier(j->comm, NULL);
}

static lk_status run(job *j, const char *data, int epochs, const char *directory)
{
    TRY(setup(j));
    TRY(open_data(j, data));
    TRY(make_model(j));
    TRY(start_from(j, directory));
    while (lk_loader_epoch(j->batches) < epochs) {
        int64_t epoch = lk_loader_epoch(j->batches);
        TRY(train_epoch(j, epoch));
        TRY(evaluate(j));
        if (directory) TRY(save(j, directory));
    }
    return LK_OK;
}

static void cleanup(job *j)
{
    lk_program_free(j->program);
    lk_store_free(j->store);
    lk_plan_free(j->plan);
    lk_graph_free(j->graph);
    lk_loader_free(j->batches);
    lk_loader_free(j->tests);
    lk_dataset_free(j->train);
    lk_dataset_free(j->test);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
}

int main(int argc, char **argv)
{
    job j = {0};
    if (lk_context_create(NULL, &j.context) < 0) return 1;
    lk_status status = run(&j, argc > 1 ? argv[1] : "cifar10", argc > 2 ? atoi(argv[2]) : 5, argc > 3 ? argv[3] : NULL);
    if (status < 0) {
        const char *reason = status == LK_ENAN ? "the loss became NaN or infinite" : lk_context_error(j.context);
        fprintf(stderr, "ddp_cnn: rank %d, after step %lld: %s\n", j.rank, (long long)j.steps, reason);
        if (j.comm) lk_comm_abort(j.comm, reason); /* so that no rank waits for this one */
    }
    cleanup(&j);
    return status < 0;
}
