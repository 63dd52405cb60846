/* trainer.c - creates the parts of a trainer, in the required order. The loop is in trainer_loop.c. */
#include "train/trainer.h"

#include "comm/abort.h"
#include "data/dataset.h"
#include "train/record.h"

static lk_status create_store(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    return config->comm ? lk_store_create_shared(t->plan, config->seed, config->comm, &t->store)
                        : lk_store_create(t->plan, config->seed, &t->store);
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
    leave_epoch(t);
    lk_status status = lk__trainer_open_data(t);
    if (status >= 0 && t->train && (t->progress.epoch || t->progress.position))
        status = lk_loader_seek(t->train, t->progress.epoch, t->progress.position);
    return status;
}

/* Records the model, plans, decides where batches are made, and checks that there is memory for all of it. */
static lk_status make_plan(lk_trainer *t)
{
    const lk_loader_config *loaders = t->sets.loaders;
    size_t                  memory[LK_MEMORY_COUNT];
    lk_status               status = lk__trainer_make_plan(t->context, &t->config, &t->graph, &t->plan);
    if (status >= 0) status = lk__plan_use_group(t->plan, t->config.comm);
    if (status < 0) return status;
    lk__trainer_loaders(&t->config, t->sets.loaders);
    for (int i = 0; i < 2; i++)
        if (loaders[i].dataset && (status = lk__loader_check(t->context, &loaders[i])) < 0) return status;
    status = lk__trainer_choose(t->context, &t->config, t->plan, &t->sets);
    if (status < 0) return status;
    lk__trainer_memory(&t->config, t->plan, &t->sets, &t->writers, memory);
    lk__trainer_set_source(t->plan, &t->sets);
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
    lk_status                status = lk__trainer_read_config(c, given, &read);
    *trainer = NULL;
    if (status >= 0) status = lk__trainer_check_config(c, config);
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
