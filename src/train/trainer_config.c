/* trainer_config.c - the config of a trainer: checks it, and derives the configs of the loaders and of the plan. */
#include "train/trainer.h"

#include "base/config.h"
#include "data/dataset.h"
#include "data/transform.h"

static const lk_dataset *any_dataset(const lk_trainer_config *config)
{
    return config->train ? config->train : config->test;
}

lk_status lk__trainer_read_config(lk_context *c, const lk_trainer_config *given, lk_trainer_config *own)
{
    *own = (lk_trainer_config)LK_TRAINER_CONFIG_INIT;
    lk_status status = lk__config_read(c, c ? "lk_trainer_config" : NULL, given, own, sizeof *own);
    if (status >= 0 && own->whole_batches && /* a part is a batch */
        __builtin_mul_overflow(own->batch, lk__trainer_split(own).world, &own->batch))
        own->batch = INT64_MAX;
    return status;
}

lk_status lk__trainer_check_config(lk_context *c, const lk_trainer_config *config)
{
    if (!config->model && !config->model_with && !config->loss)
        return lk__fail(c, LK_EINVAL, "a trainer needs a model or a loss");
    if (!config->train && !config->test)
        return lk__fail(c, LK_EINVAL, "a trainer needs a training set, or a test set to evaluate");
    if (lk_dataset_count(any_dataset(config)) < 1) return lk__fail(c, LK_EINVAL, "the data set is empty");
    if (config->batch < 1)
        return lk__fail(c, LK_EINVAL, "the batch size is %lld; expected at least 1", (long long)config->batch);
    if (config->epochs < 0 || config->steps < 0 || (config->epochs == 0 && config->steps == 0))
        return lk__fail(c, LK_EINVAL, "a trainer needs a positive number of epochs or steps");
    if (config->trace && config->trace_steps < 1)
        return lk__fail(c, LK_EINVAL, "trace_steps is %lld; expected at least 1", (long long)config->trace_steps);
    if (config->accumulate < 0 || config->leaves < 0 || config->check_every < 0)
        return lk__fail(c, LK_EINVAL, "accumulate, leaves and check_every must be 0 or more");
    if (config->leaves > LK__LEAVES_MOST || (config->leaves && config->leaves > config->batch))
        return lk__fail(c, LK_EINVAL,
                        "a batch of %lld samples can have at most one leaf per sample and at most %d leaves, not %d",
                        (long long)config->batch, LK__LEAVES_MOST, config->leaves);
    lk_status status = lk__trainer_check_mesh(c, config);
    if (status < 0) return status;
    int parts = lk__trainer_split(config).world;
    if (config->leaves && parts > config->leaves)
        return lk__fail(c, LK_EINVAL, "%d leaves are too few for %d ranks: each rank needs at least one leaf",
                        config->leaves, parts);
    if (config->whole_batches && (config->train || config->leaves || config->accumulate > 1))
        return lk__fail(c, LK_EINVAL,
                        "whole_batches applies only to a trainer without a training set, leaves or micro-batches");
    if (config->init && config->init_partial)
        return lk__fail(c, LK_EINVAL, "init and init_partial are mutually exclusive: both give initial weights");
    for (int i = 0; i < config->record_count; i++)
        if (!config->record[i].name || !config->record[i].value)
            return lk__fail(c, LK_EINVAL, "record %d has no name or no value", i);
    status = lk__checkpoint_files_check(c, config->files, config->files_count);
    if (status < 0) return status;
    if (config->keep < 1) return lk__fail(c, LK_EINVAL, "keep is %d; at least 1 checkpoint must be kept", config->keep);
    return lk__trainer_check_fields(c, config);
}

static int64_t steps_per_epoch(const lk_trainer_config *config)
{
    return (lk_dataset_count(any_dataset(config)) + config->batch - 1) / config->batch;
}

int64_t lk__trainer_steps(const lk_trainer_config *config)
{
    return config->steps > 0 ? config->steps : config->epochs * steps_per_epoch(config);
}

double lk__trainer_rate(const lk_trainer_config *config, int64_t step, int64_t steps)
{
    return config->schedule_callback ? config->schedule_callback(config->schedule_user, step, steps)
                                     : lk_schedule_rate(&config->schedule, config->optimizer.lr, step);
}

/* Sets this rank's share of every batch. */
static void set_share(const lk_trainer_config *config, lk_loader_config *loader)
{
    lk__split_job job = lk__trainer_split(config);
    lk__range     own = lk__split_own(&job);
    if (lk__split_parts(&job) == 1) return;
    loader->parts = lk__split_parts(&job);
    loader->first_part = (int)own.first;
    loader->last_part = (int)own.end;
}

int64_t lk_trainer_share(const lk_trainer_config *given)
{
    lk_trainer_config config;
    if (lk__trainer_read_config(NULL, given, &config) < 0) return 0;
    lk__split_job job = lk__trainer_split(&config);
    return lk__range_count(lk__split_share(&job, config.batch));
}

lk_state_mode lk_trainer_state(lk_context *c, const lk_trainer_config *given, char *why, size_t bytes)
{
    lk_trainer_config config;
    if (why && bytes) why[0] = 0;
    if (lk__trainer_read_config(c, given, &config) < 0) return LK_STATE_REPLICATED;
    return lk__trainer_state_mode(c, &config, why, bytes);
}

/* That of one rank, or of its micro-batch: what a model adds over a batch is then the same with any number of ranks. A
 * part of it fits into every plan. Leaves are as large as in training. */
static int64_t evaluation_batch(const lk__split_job *job, int64_t batch)
{
    lk__split_job one = {.world = 1, .micro_batches = job->micro_batches};
    int64_t       parts = lk__split_largest(job, batch) * lk__split_parts(job), most = lk__split_largest(&one, batch);
    return job->leaves || parts < most ? parts : most;
}

void lk__trainer_loaders(const lk_trainer_config *config, lk_loader_config loaders[2])
{
    lk__split_job     job = lk__trainer_split(config);
    lk_loader_config *train = &loaders[0], *test = &loaders[1];
    *train = (lk_loader_config)LK_LOADER_CONFIG_INIT;
    train->dataset = config->train;
    train->batch = config->batch;
    train->shuffle = true;
    train->seed = config->seed;
    train->workers = config->workers;
    train->dtype = config->dtype;
    train->transform = config->transform;
    *test = *train;
    test->dataset = config->test;
    test->batch = evaluation_batch(&job, config->batch);
    test->shuffle = false;
    test->transform = lk__transform_evaluation(&config->transform);
    test->fixed_parts = config->whole_batches;
    set_share(config, train);
    set_share(config, test);
}

lk_status lk__trainer_make_plan(lk_context *c, const lk_trainer_config *config, lk_graph **graph, lk_plan **plan)
{
    lk__mesh_grid    mesh = lk__trainer_mesh(config);
    lk_parallel      parallel = {.world = mesh.size,
                                 .rank = mesh.rank,
                                 .micro_batches = config->accumulate,
                                 .leaves = config->leaves,
                                 .bucket_bytes = config->bucket_bytes,
                                 .state = lk__trainer_state_mode(c, config, NULL, 0),
                                 .hosts = lk__trainer_hosts(config, NULL),
                                 .keep_cores = config->keep_cores,
                                 .shard_stage = config->shard_stage,
                                 .blocks_in_flight = config->blocks_in_flight,
                                 .reproducible_layout = config->reproducible_layout,
                                 .sum_part_minimum = config->sum_part_minimum,
                                 .pipeline_schedule = config->pipeline_schedule};
    lk_loader_config loaders[2];
    lk_inputs        inputs;
    lk_plan_config   planning = LK_PLAN_CONFIG_INIT;
    lk_status        status = lk_graph_create(c, config->dtype, graph);
    if (status < 0) return status;
    lk__trainer_loaders(config, loaders);
    status = lk_inputs_record(*graph, &loaders[config->train ? 0 : 1],
                              lk_mesh_capacity(config->mesh, &parallel, config->batch), &inputs);
    if (status < 0 && lk_graph_status(*graph) == LK_OK) return status;
    if ((status = lk__trainer_record(config, &inputs, &planning.loss)) < 0) return status;
    planning.optimizer = config->train ? &config->optimizer : NULL;
    planning.sync_batch_norm = config->sync_batch_norm;
    planning.policy = config->policy;
    planning.gradient_dtype = config->gradient_dtype;
    planning.matmul_precision = config->matmul_precision;
    planning.parallel = parallel;
    planning.mesh = config->mesh;
    planning.tactics = config->tactics;
    planning.stages = config->stages;
    planning.no_sequence_parallel = config->no_sequence_parallel;
    planning.pieces = lk__trainer_pieces(config);
    planning.joint_evaluation = !config->whole_batches;
    return lk_plan_create(*graph, &planning, plan);
}

lk_status lk_trainer_plan(lk_context *c, const lk_trainer_config *given, lk_graph **graph, lk_plan **plan,
                          size_t memory[LK_MEMORY_COUNT])
{
    lk_trainer_config        read;
    const lk_trainer_config *config = &read;
    lk__trainer_sets         sets;
    lk_status                status = lk__trainer_read_config(c, given, &read);
    *graph = NULL;
    *plan = NULL;
    if (status >= 0) status = lk__trainer_check_config(c, config);
    if (status >= 0) lk__trainer_loaders(config, sets.loaders);
    if (status < 0 || (config->train && (status = lk__loader_check(c, &sets.loaders[0])) < 0) ||
        (config->test && (status = lk__loader_check(c, &sets.loaders[1])) < 0) ||
        (status = lk__trainer_make_plan(c, config, graph, plan)) < 0 ||
        (status = lk__trainer_choose(c, config, *plan, &sets)) < 0) {
        lk_plan_free(*plan);
        lk_graph_free(*graph);
        *plan = NULL;
        *graph = NULL;
        return status;
    }
    lk__writers writers = {.count = lk__plan_ranks(*plan), .turn = lk__plan_rank(*plan)};
    lk__trainer_memory(config, *plan, &sets, &writers, memory);
    return LK_OK;
}
