/* trainer.c - the training loop: epochs of batches through the program's sections, evaluation, checkpoints, and events.
 * With several ranks each runs this loop over its share of the data, with the same steps, evaluations and saves. */
#include "train/trainer.h"

#include "base/config.h"
#include "comm/abort.h"
#include "data/dataset.h"
#include "data/transform.h"
#include "train/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const lk_dataset *any_dataset(const lk_trainer_config *config)
{
    return config->train ? config->train : config->test;
}

/* The caller's config, which may be of another version: *own is what it means. */
static lk_status read_config(lk_context *c, const lk_trainer_config *given, lk_trainer_config *own)
{
    *own = (lk_trainer_config)LK_TRAINER_CONFIG_INIT;
    lk_status status = lk__config_read(c, c ? "lk_trainer_config" : NULL, given, own, sizeof *own);
    if (status >= 0 && own->whole_batches && /* a part is a batch */
        __builtin_mul_overflow(own->batch, lk__trainer_split(own).world, &own->batch))
        own->batch = INT64_MAX;
    return status;
}

static lk_status check_config(lk_context *c, const lk_trainer_config *config)
{
    if (!config->model && !config->model_with && !config->loss)
        return lk__fail(c, LK_EINVAL, "a trainer needs a model or a loss");
    if (!config->train && !config->test)
        return lk__fail(c, LK_EINVAL, "a trainer needs a training set, or a test set to evaluate");
    if (lk_dataset_count(any_dataset(config)) < 1) return lk__fail(c, LK_EINVAL, "the data set is empty");
    if (config->batch < 1)
        return lk__fail(c, LK_EINVAL, "a batch of %lld samples is invalid: expected at least 1",
                        (long long)config->batch);
    if (config->epochs < 0 || config->steps < 0 || (config->epochs == 0 && config->steps == 0))
        return lk__fail(c, LK_EINVAL, "a trainer needs a number of epochs or steps above 0");
    if (config->trace && config->trace_steps < 1)
        return lk__fail(c, LK_EINVAL, "a trace of %lld steps is invalid: expected at least 1",
                        (long long)config->trace_steps);
    if (config->accumulate < 0 || config->leaves < 0 || config->check_every < 0)
        return lk__fail(c, LK_EINVAL, "accumulate, leaves and check_every must be 0 or more");
    if (config->leaves > LK__LEAVES_MOST || (config->leaves && config->leaves > config->batch))
        return lk__fail(c, LK_EINVAL, "a batch of %lld samples has at most one leaf per sample, and at most %d: not %d",
                        (long long)config->batch, LK__LEAVES_MOST, config->leaves);
    lk_status status = lk__trainer_check_mesh(c, config);
    if (status < 0) return status;
    int parts = lk__trainer_split(config).world;
    if (config->leaves && parts > config->leaves)
        return lk__fail(c, LK_EINVAL, "%d leaves for %d ranks: each rank needs at least one leaf", config->leaves,
                        parts);
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
    if (config->keep < 1) return lk__fail(c, LK_EINVAL, "keep is %d: at least 1 checkpoint must be kept", config->keep);
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
    if (read_config(NULL, given, &config) < 0) return 0;
    lk__split_job job = lk__trainer_split(&config);
    return lk__range_count(lk__split_share(&job, config.batch));
}

lk_state_mode lk_trainer_state(lk_context *c, const lk_trainer_config *given, char *why, size_t bytes)
{
    lk_trainer_config config;
    if (why && bytes) why[0] = 0;
    if (read_config(c, given, &config) < 0) return LK_STATE_REPLICATED;
    return lk__trainer_state_mode(c, &config, why, bytes);
}

/* Of the training set and of the test set. */
static void loader_configs(const lk_trainer_config *config, lk_loader_config loaders[2])
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
    test->batch = lk__split_largest(&job, config->batch) * lk__split_parts(&job); /* a part fits into every plan */
    test->shuffle = false;
    test->transform = lk__transform_evaluation(&config->transform);
    test->fixed_parts = config->whole_batches;
    set_share(config, train);
    set_share(config, test);
}

static lk_status create_store(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    return config->comm ? lk_store_create_shared(t->plan, config->seed, config->comm, &t->store)
                        : lk_store_create(t->plan, config->seed, &t->store);
}

static lk_status record_and_plan(lk_context *c, const lk_trainer_config *config, lk_graph **graph, lk_plan **plan)
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
                                 .blocks_in_flight = config->blocks_in_flight};
    lk_loader_config loaders[2];
    lk_inputs        inputs;
    lk_plan_config   planning = LK_PLAN_CONFIG_INIT;
    lk_status        status = lk_graph_create(c, config->dtype, graph);
    if (status < 0) return status;
    loader_configs(config, loaders);
    status = lk_inputs_record(*graph, &loaders[config->train ? 0 : 1],
                              lk_mesh_capacity(config->mesh, &parallel, config->batch), &inputs);
    if (status < 0 && lk_graph_status(*graph) == LK_OK) return status;
    if ((status = lk__trainer_record(config, &inputs, &planning.loss)) < 0) return status;
    planning.optimizer = config->train ? &config->optimizer : NULL;
    planning.sync_batch_norm = config->sync_batch_norm;
    planning.policy = config->policy;
    planning.gradient_dtype = config->gradient_dtype;
    planning.parallel = parallel;
    planning.mesh = config->mesh;
    planning.tactics = config->tactics;
    planning.no_sequence_parallel = config->no_sequence_parallel;
    return lk_plan_create(*graph, &planning, plan);
}

lk_status lk_trainer_plan(lk_context *c, const lk_trainer_config *given, lk_graph **graph, lk_plan **plan,
                          size_t memory[LK_MEMORY_COUNT])
{
    lk_trainer_config        read;
    const lk_trainer_config *config = &read;
    lk_loader_config         loaders[2];
    lk__trainer_batch_source sources[2];
    lk_status                status = read_config(c, given, &read);
    *graph = NULL;
    *plan = NULL;
    if (status >= 0) status = check_config(c, config);
    if (status >= 0) loader_configs(config, loaders);
    if (status < 0 || (config->train && (status = lk__loader_check(c, &loaders[0])) < 0) ||
        (config->test && (status = lk__loader_check(c, &loaders[1])) < 0) ||
        (status = record_and_plan(c, config, graph, plan)) < 0 ||
        (status = lk__trainer_choose(c, config, *plan, loaders, sources)) < 0) {
        lk_plan_free(*plan);
        lk_graph_free(*graph);
        *plan = NULL;
        *graph = NULL;
        return status;
    }
    lk__trainer_memory(config, *plan, loaders, sources, lk__plan_ranks(*plan), lk__plan_rank(*plan), memory);
    return LK_OK;
}

void lk__trainer_emit(lk_trainer *t, lk_event event)
{
    if (event.kind != LK_EVENT_SAVED) event.step = t->progress.step;
    event.steps = t->steps;
    if (t->config.event && t->config.event(t->config.event_user, &event) != 0) t->stop_requested = true;
    if (t->world == 1) t->stop = t->stop_requested;
}

/* Data that became fewer than the run had passed in its epoch: the next one begins. */
static void leave_epoch(lk_trainer *t)
{
    long long count = t->config.train ? (long long)lk_dataset_count(t->config.train) : 0;
    if (!t->config.train || t->progress.position <= count) return;
    lk__log(
        t->context, LK_LOG_INFO,
        "the checkpoint is at sample %lld of an epoch, but the training set now has %lld samples: starting a new epoch",
        (long long)t->progress.position, count);
    t->progress.epoch++;
    t->progress.position = 0;
}

static lk_status open_loaders(lk_trainer *t)
{
    lk_loader_config loaders[2];
    loader_configs(&t->config, loaders);
    leave_epoch(t);
    lk_status status = lk__trainer_open_data(t, loaders);
    if (status >= 0 && t->train && (t->progress.epoch || t->progress.position))
        status = lk_loader_seek(t->train, t->progress.epoch, t->progress.position);
    return status;
}

/* Records the model, plans, decides where batches are made, and checks that there is memory for all of it. */
static lk_status make_plan(lk_trainer *t)
{
    lk_loader_config loaders[2];
    size_t           memory[LK_MEMORY_COUNT];
    lk_status        status = record_and_plan(t->context, &t->config, &t->graph, &t->plan);
    if (status < 0) return status;
    loader_configs(&t->config, loaders);
    for (int i = 0; i < 2; i++)
        if (loaders[i].dataset && (status = lk__loader_check(t->context, &loaders[i])) < 0) return status;
    status = lk__trainer_choose(t->context, &t->config, t->plan, loaders, t->sources);
    if (status < 0) return status;
    lk__trainer_memory(&t->config, t->plan, loaders, t->sources, t->writers.count, t->writers.turn, memory);
    lk__trainer_set_source(t->plan, loaders, t->sources);
    return lk__trainer_check_memory(t, memory);
}

static lk_status make_sums(lk_trainer *t)
{
    if (!t->config.test) return LK_OK;
    t->evaluated_bytes = lk__trainer_evaluation_rows(t) * (size_t)lk__trainer_numbers(t) * sizeof *t->evaluated;
    t->evaluated = lk__alloc(t->context, LK_MEMORY_OTHER, t->evaluated_bytes);
    return t->evaluated ? LK_OK : LK_ENOMEM;
}

void lk__trainer_abort(lk_trainer *t, lk_status status)
{
    if (status < 0 && t->world > 1)
        lk__comm_abort_for(t->config.comm, t->failed_rank < 0 ? t->rank : t->failed_rank, lk_context_error(t->context));
}

/* All that saves will need, so that none of them allocates. Their threads have a group of their own. */
static lk_status prepare_saver(lk_trainer *t)
{
    lk_status status = lk__saver_init_chunks(&t->saver, t->store, LK__CHUNK, t->world);
    if (status < 0) return status;
    t->saver.writers = t->writers;
    t->writers.ranks = NULL;
    if (t->world > 1) {
        if ((status = lk_comm_split(t->config.comm, 0, t->rank, &t->saver.group)) < 0) return status;
        t->saver.writers.comm = t->saver.group;
        if ((status = lk_comm_reserve(t->saver.group, 2)) < 0) return status;
    }
    if ((status = lk__saver_background(&t->saver)) < 0 || t->rank != 0) return status;
    t->saver.lock = &t->lock;
    status = lk__saver_record(&t->saver, lk__record_write(&t->config, 0, NULL, 0));
    if (status >= 0) lk__record_write(&t->config, t->fingerprint, t->saver.record, t->saver.record_bytes);
    if (status >= 0) status = lk__saver_files(&t->saver, t->config.files, t->config.files_count);
    return status;
}

lk_status lk_trainer_create(lk_context *c, const lk_trainer_config *given, lk_trainer **trainer)
{
    lk_trainer_config        read;
    const lk_trainer_config *config = &read;
    lk_status                status = read_config(c, given, &read);
    *trainer = NULL;
    if (status >= 0) status = check_config(c, config);
    if (status < 0) return status;
    lk_trainer *t = lk__alloc(c, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->context = c;
    t->config = *config;
    t->world = lk__trainer_mesh(config).size;
    t->rank = lk__trainer_mesh(config).rank;
    t->failed_rank = -1;
    t->steps = lk__trainer_steps(config);
    t->lock = (lk__lock)LK__LOCK_INIT;
    t->writers = lk__writers_alone(c);
    if (t->config.schedule.kind == LK_SCHEDULE_COSINE && t->config.schedule.total == 0)
        t->config.schedule.total = t->steps;
    t->late = lk__alloc(c, LK_MEMORY_OTHER, 2 * (size_t)t->world * sizeof *t->late);
    if (!t->late) status = LK_ENOMEM;
    if (status >= 0) status = lk__trainer_compare_options(c, config);
    if (status >= 0) status = lk__trainer_lock(t);
    if (status < 0 || (status = make_plan(t)) < 0 || (status = create_store(t)) < 0 ||
        (status = lk__trainer_load_algorithms(t)) < 0 ||
        (status = lk_program_create(t->plan, t->store, config->comm, &t->program)) < 0 ||
        (status = lk__trainer_load(t)) < 0 || (config->save && (status = prepare_saver(t)) < 0) ||
        (status = make_sums(t)) < 0 || (status = open_loaders(t)) < 0 || (status = lk__trainer_trace_open(t)) < 0) {
        lk__trainer_abort(t, status);
        lk_trainer_free(t);
        return status;
    }
    *trainer = t;
    return LK_OK;
}

void lk_trainer_free(lk_trainer *t)
{
    if (!t) return;
    lk_loader_free(t->train);
    lk_loader_free(t->test);
    for (int i = 0; i < 2; i++) lk__gather_free(&t->on_device[i]);
    lk__saver_free(&t->saver);
    lk__writers_free(&t->writers);
    lk_load_report_free(t->loaded);
    lk__lock_release(&t->lock);
    lk_program_free(t->program);
    lk_store_free(t->store);
    lk_plan_free(t->plan);
    lk_graph_free(t->graph);
    lk__trace_free(t->trace);
    lk__free(t->context, LK_MEMORY_OTHER, t->evaluated, t->evaluated_bytes);
    lk__free(t->context, LK_MEMORY_OTHER, t->late, 2 * (size_t)t->world * sizeof *t->late);
    lk__free(t->context, LK_MEMORY_OTHER, t, sizeof *t);
}

lk_store             *lk_trainer_store(lk_trainer *t) { return t->store; }
const lk_progress    *lk_trainer_progress(const lk_trainer *t) { return &t->progress; }
const lk_load_report *lk_trainer_load_report(const lk_trainer *t) { return t->loaded; }

/* ---- one step ---- */

static bool all_finite(const lk_field *field, const void *data, int64_t samples)
{
    int64_t n = samples * lk_field_elements(field);
    for (int64_t i = 0; i < n && (field->dtype == LK_F32 || field->dtype == LK_F64); i++)
        if (!(field->dtype == LK_F32 ? isfinite(((const float *)data)[i]) : isfinite(((const double *)data)[i])))
            return false;
    return true;
}

/* Finds the first rank whose samples are not finite: synchronised batch norm spreads NaN to all ranks in the same
 * step. */
static lk_status find_failed_rank(lk_trainer *t, const lk_batch *b, int *rank)
{
    int64_t first = INT64_MAX;
    for (int i = 0; i < b->fields_count; i++)
        if (!all_finite(&b->about[i], b->fields[i], b->count)) first = t->rank;
    if (t->sources[0] == LK__BATCHES_FROM_SET && !lk__gather_finite(t->config.train, b->indices, b->count))
        first = t->rank;
    lk_status status =
        t->world > 1 ? lk_comm_all_reduce(t->config.comm, &first, &first, 1, LK_I64, LK_MIN, NULL) : LK_OK;
    if (status >= 0 && first != INT64_MAX) *rank = (int)first;
    return status;
}

/* Fails with the rank and the samples of the NaN, which that rank broadcasts: all ranks set the same message. */
static lk_status report_not_finite(lk_trainer *t, const lk_batch *b, int rank)
{
    char      samples[256] = "", whose[32] = "the";
    size_t    used = 0;
    lk_status status = find_failed_rank(t, b, &rank);
    for (int64_t i = 0; i < b->count && used + 32 < sizeof samples; i++)
        used +=
            (size_t)snprintf(samples + used, sizeof samples - used, "%s%lld", i ? ", " : "", (long long)b->indices[i]);
    if (used + 32 >= sizeof samples) snprintf(samples + used, sizeof samples - used, ", …");
    if (t->world > 1) snprintf(whose, sizeof whose, "rank %d's", rank);
    t->failed_rank = rank;
    if (status >= 0 && t->world > 1)
        status = lk_comm_broadcast(t->config.comm, samples, sizeof samples, LK_U8, rank, NULL);
    if (status < 0) return status;
    return lk__fail(
        t->context, LK_ENAN,
        "%s loss became %g at step %lld (epoch %lld); the batch contained samples %s. The weights were not updated; a "
        "lower learning rate, a warm-up or clipping may help",
        whose, lk__program_rank_sums(t->program, rank).sum, (long long)t->progress.step + 1, (long long)b->epoch + 1,
        samples);
}

/* The rank that waits least is the one that the others wait for. */
static void update_lateness(lk_trainer *t)
{
    double most = 0;
    for (int i = 0; i < t->world; i++) most = fmax(most, lk__program_rank_report(t->program, i).waited);
    for (int i = 0; i < t->world; i++) {
        lk__run_report report = lk__program_rank_report(t->program, i);
        t->late[2 * i] += 0.1 * (most - report.waited - t->late[2 * i]);
        t->late[2 * i + 1] += 0.1 * (report.data - t->late[2 * i + 1]);
    }
}

/* The learning rate of a step, counted from 0. */
static lk_status find_rate(lk_trainer *t, int64_t step, double *rate)
{
    *rate = lk__trainer_rate(&t->config, step, t->steps);
    if (isfinite(*rate) && *rate >= 0) return LK_OK;
    return lk__fail(t->context, LK_EINVAL, "schedule_callback returned %g for step %lld: expected a rate of 0 or more",
                    *rate, (long long)step);
}

/* The step of a batch: the number and the rate, and what the program is given. */
static lk_status make_step(lk_trainer *t, const lk_batch *b, int64_t number, lk_step *step)
{
    *step = (lk_step){.step = number + 1,
                      .epoch = b->epoch,
                      .count = b->count,
                      .total = b->total,
                      .seed = t->config.seed,
                      .sample_ids = b->indices};
    return find_rate(t, number, &step->rate);
}

/* After the step of a batch: what it gave, in the progress and in the event. */
static lk_status take_results(lk_trainer *t, const lk_batch *b, lk_event *e)
{
    lk_metrics m;
    lk_program_metrics(t->program, &m);
    if (t->world > 1) {
        t->stop = lk__program_stop_requested(t->program);
        update_lateness(t);
    }
    lk__run_sums own = lk__program_rank_sums(t->program, t->rank);
    t->own = (lk__run_sums){t->own.sum + own.sum, t->own.weight + own.weight, t->own.correct + (double)b->count};
    t->all = (lk__run_sums){t->all.sum + m.sum, t->all.weight + m.weight, 0};
    t->progress.step++;
    t->progress.epoch = b->epoch;
    t->progress.position = b->position + b->total;
    e->loss = m.loss;
    e->grad_norm = m.grad_norm;
    double numbers[LK__TRAINER_NUMBERS];
    lk__trainer_get_numbers(t, b->total, numbers);
    e->metrics = t->named;
    e->metrics_count = lk__trainer_set_named(t, numbers);
    return LK_OK;
}

static lk_status train_batch(lk_trainer *t, const lk_batch *b, lk_event *e)
{
    lk_step   step;
    lk_status status = make_step(t, b, t->progress.step, &step);
    e->rate = step.rate;
    if (status >= 0) status = lk_batch_bind(b, t->program);
    lk__program_report(t->program, t->stop_requested, t->data);
    lk__program_allow_update(t->program);
    if (status < 0 || (status = lk_program_compute(t->program, &step)) < 0) return status;
    for (int i = 0; i < t->world; i++)
        if (!isfinite(lk__program_rank_sums(t->program, i).sum)) return report_not_finite(t, b, i);
    if ((status = lk_program_run(t->program, LK_UPDATE)) < 0) return status;
    return take_results(t, b, e);
}

/* The same without waiting: the step before this one is finished meanwhile. */
static lk_status queue_batch(lk_trainer *t, const lk_batch *b)
{
    lk_step   step;
    lk_status status = make_step(t, b, t->progress.step + (t->pending ? 1 : 0), &step);
    if (status >= 0) status = lk_batch_bind(b, t->program);
    if (status >= 0) status = lk_program_queue(t->program, &step);
    t->queued_rate = step.rate;
    return status;
}

static lk_status finish_queued(lk_trainer *t, lk_event *e)
{
    lk_batch *b = &t->queued;
    lk_status status = lk_program_result(t->program);
    if (status < 0 && status != LK_ENAN) return status; /* that is reported with the samples below */
    b->indices = lk__program_result_ids(t->program);
    b->fields_count = 0; /* they may hold the next batch already */
    if (!isfinite(lk__program_rank_sums(t->program, 0).sum)) return report_not_finite(t, b, 0);
    return take_results(t, b, e);
}

static void emit_step(lk_trainer *t, const lk_batch *b, lk_event e, double seconds)
{
    e.kind = LK_EVENT_STEP;
    e.epoch = b->epoch;
    e.samples = b->total;
    e.seconds = seconds;
    e.late_rank = -1;
    for (int i = 0; i < t->world && t->world > 1; i++)
        if (e.late_rank < 0 || t->late[2 * i] > e.late) e.late_rank = i, e.late = t->late[2 * i];
    if (e.late_rank >= 0) e.late_in = t->late[2 * e.late_rank + 1] > e.late / 2 ? "data" : "compute";
    lk__trainer_emit(t, e);
}

static void emit_epoch(lk_trainer *t, int64_t epoch)
{
    lk__trainer_emit(t, (lk_event){.kind = LK_EVENT_EPOCH,
                                   .epoch = epoch,
                                   .samples = (int64_t)t->own.correct,
                                   .loss = t->all.weight > 0 ? t->all.sum / t->all.weight : 0,
                                   .own_loss = t->own.weight > 0 ? t->own.sum / t->own.weight : 0});
    t->own = t->all = (lk__run_sums){0, 0, 0};
}

/* ---- the loop ---- */

static bool is_due(int64_t every, int64_t step, bool epoch_end)
{
    return every > 0 ? step % every == 0 : every == 0 && epoch_end;
}

static lk_status check_replicas(lk_trainer *t, bool last)
{
    int64_t every = t->config.check_every;
    if (t->world == 1 || every == 0 || t->checked == t->progress.step || (!last && t->progress.step % every != 0))
        return LK_OK;
    t->checked = t->progress.step;
    return lk_program_verify(t->program, t->progress.step);
}

/* After a step: events, then what is due. */
static lk_status end_step(lk_trainer *t, const lk_batch *b, lk_event e)
{
    const lk_trainer_config *config = &t->config;
    double                   now = lk__now();
    lk_status                status;
    lk__program_trace_step(t->program, t->began, t->data, now);
    emit_step(t, b, e, now - t->ended);
    t->ended = now;
    lk__trainer_poll_save(t);
    if ((status = check_replicas(t, false)) < 0) return status;
    bool epoch_end = b->position + b->total >= lk_dataset_count(config->train);
    if (epoch_end) emit_epoch(t, b->epoch);
    if (config->test && is_due(config->eval_every, t->progress.step, epoch_end)) {
        if ((status = lk__trainer_evaluate(t)) < 0) return status;
        t->evaluated_at = t->progress.step;
        t->ended = lk__now();
    }
    if (config->save && is_due(config->save_every, t->progress.step, epoch_end)) {
        if ((status = lk__trainer_save(t, false)) < 0) return status;
        t->ended = lk__now();
    }
    return LK_OK;
}

static lk_status end_queued(lk_trainer *t)
{
    lk_event  e = {.kind = LK_EVENT_STEP, .rate = t->queued_rate};
    lk_batch  b = t->queued;
    lk_status status = finish_queued(t, &e);
    t->pending = false;
    return status < 0 ? status : end_step(t, &b, e);
}

/* Whether something is due after the step of this batch that must see its results and nothing later. */
static bool must_wait(const lk_trainer *t, const lk_batch *b, int64_t step)
{
    const lk_trainer_config *config = &t->config;
    bool                     epoch_end = b->position + b->total >= lk_dataset_count(config->train);
    return epoch_end || step >= t->steps || (config->test && is_due(config->eval_every, step, epoch_end)) ||
           (config->save && is_due(config->save_every, step, epoch_end));
}

/* Queues the step of a batch, then finishes the one before it. */
static lk_status queue_step(lk_trainer *t, const lk_batch *b)
{
    double    rate = t->queued_rate;
    lk_status status = queue_batch(t, b);
    if (status < 0) return status;
    double queued = t->queued_rate;
    t->queued_rate = rate;
    if (t->pending && (status = end_queued(t)) < 0) return status;
    t->queued = *b;
    t->queued_rate = queued;
    t->pending = true;
    return must_wait(t, b, t->progress.step + 1) ? end_queued(t) : LK_OK;
}

static lk_status train_step(lk_trainer *t, const lk_batch *b)
{
    lk_event  e = {.kind = LK_EVENT_STEP};
    lk_status status = train_batch(t, b, &e);
    return status < 0 ? status : end_step(t, b, e);
}

static lk_status run_loop(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    lk_status                status = LK_OK;
    bool                     queues = lk__program_queues(t->program);
    t->ended = lk__now();
    t->evaluated_at = -1;
    while (t->progress.step + t->pending < t->steps && !t->stop) {
        lk_batch b;
        double   began = lk__now();
        status = lk_loader_next(t->train, &b);
        if (status == LK_END) continue; /* the next call starts the next epoch */
        if (status < 0 || (status = lk__trainer_trace_step(t)) < 0) return status;
        t->began = began;
        t->data = lk__now() - began;
        if ((status = queues ? queue_step(t, &b) : train_step(t, &b)) < 0) return status;
    }
    if (t->pending && (status = end_queued(t)) < 0) return status;
    if ((status = check_replicas(t, true)) < 0) return status;
    if (!t->stop && config->test && config->eval_every >= 0 && t->evaluated_at != t->progress.step &&
        (status = lk__trainer_evaluate(t)) < 0)
        return status;
    if ((status = lk__trainer_save(t, true)) < 0 || (status = lk__trainer_trace_write(t)) < 0) return status;
    return t->stop && t->progress.step < t->steps
               ? lk__fail(t->context, LK_ECANCELED, "stopped on request after step %lld", (long long)t->progress.step)
               : LK_OK;
}

lk_status lk_trainer_run(lk_trainer *t)
{
    if (!t->train) return lk__fail(t->context, LK_EINVAL, "this trainer has no training set: it only evaluates");
    lk_status status = run_loop(t);
    if (status != LK_ECANCELED || !t->stop) lk__trainer_abort(t, status);
    return status;
}
