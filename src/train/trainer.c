/* trainer.c - the loop: epochs of batches through the program's sections, evaluation, checkpoints, and events about them. */
#include "train/checkpoint.h"

#include <lockstep/trainer.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct lk_trainer {
    lk_context       *context;
    lk_trainer_config config;
    lk_graph         *graph;
    lk_plan          *plan;
    lk_store         *store;
    lk_program       *program;
    lk_loader        *train, *test;
    lk__saver         saver;
    lk_progress       progress;
    int64_t           steps; /* in all */
    int64_t           saved; /* step of the latest checkpoint; -1: none */
    bool              stop;
};

static const lk_dataset *samples(const lk_trainer_config *f) { return f->train ? f->train : f->test; }

static lk_status check(lk_context *c, const lk_trainer_config *f)
{
    if (f->size != sizeof *f) return lk__fail(c, LK_EINVAL, "lk_trainer_config is of another version of Lockstep");
    if (!f->model && !f->model_with) return lk__fail(c, LK_EINVAL, "a trainer needs a model");
    if (!f->train && !f->test)
        return lk__fail(c, LK_EINVAL, "a trainer needs a training set, or a test set to evaluate");
    if (lk_dataset_count(samples(f)) < 1) return lk__fail(c, LK_EINVAL, "the data set is empty");
    if (lk_dataset_classes(samples(f)) < 1) return lk__fail(c, LK_EINVAL, "the data set has no classes to learn");
    if (f->batch < 1) return lk__fail(c, LK_EINVAL, "a batch of %lld samples", (long long)f->batch);
    if (f->epochs < 0 || f->steps < 0 || (f->epochs == 0 && f->steps == 0))
        return lk__fail(c, LK_EINVAL, "say for how many epochs or steps to train");
    if (f->keep < 1) return lk__fail(c, LK_EINVAL, "keep is %d; at least one checkpoint must stay", f->keep);
    if (f->train && f->test &&
        (lk_dataset_rank(f->test) != lk_dataset_rank(f->train) ||
         memcmp(lk_dataset_dims(f->test), lk_dataset_dims(f->train),
                (size_t)lk_dataset_rank(f->train) * sizeof(int64_t)) != 0 ||
         lk_dataset_classes(f->test) > lk_dataset_classes(f->train)))
        return lk__fail(c, LK_EMISMATCH,
                        "the test set's samples have another shape or more classes than the training set's");
    return LK_OK;
}

static int64_t steps_per_epoch(const lk_trainer_config *f)
{
    return (lk_dataset_count(samples(f)) + f->batch - 1) / f->batch;
}

static int64_t total_steps(const lk_trainer_config *f)
{
    return f->steps > 0 ? f->steps : f->epochs * steps_per_epoch(f);
}

static void loader_configs(const lk_trainer_config *f, lk_loader_config *train, lk_loader_config *test)
{
    *train = (lk_loader_config)LK_LOADER_CONFIG_INIT;
    train->dataset = f->train;
    train->batch = f->batch;
    train->shuffle = true;
    train->seed = f->seed;
    train->workers = f->workers;
    train->dtype = f->dtype;
    train->transform = f->transform;
    *test = *train;
    test->dataset = f->test;
    test->shuffle = false;
    test->transform.crop_padding = 0;
    test->transform.flip = 0;
}

static lk_status record(lk_context *c, const lk_trainer_config *f, lk_graph **graph, lk_plan **plan)
{
    int64_t   dims[LK_MAX_RANK] = {f->batch};
    int       rank = lk_dataset_rank(samples(f)) + 1;
    lk_status status = lk_graph_create(c, f->dtype, graph);
    if (status < 0) return status;
    if (rank > LK_MAX_RANK) return lk__fail(c, LK_EINVAL, "samples of %d axes; at most %d", rank - 1, LK_MAX_RANK - 1);
    memcpy(dims + 1, lk_dataset_dims(samples(f)), (size_t)(rank - 1) * sizeof *dims);
    lk_tensor x = lk_input(*graph, "features", f->dtype, rank, dims);
    lk_tensor labels = lk_input(*graph, "labels", LK_I32, 1, dims);
    lk_tensor logits = f->model ? f->model(x) : f->model_with(x, f->model_user);
    if (lk_graph_status(*graph) == LK_OK &&
        (lk_tensor_rank(logits) != 2 || lk_tensor_dim(logits, 1) < lk_dataset_classes(samples(f))))
        return lk__fail(c, LK_EMISMATCH, "the model gives %lld logits a sample; the data has %d classes",
                        (long long)lk_tensor_dim(logits, -1), lk_dataset_classes(samples(f)));
    lk_tensor      loss = lk_cross_entropy(logits, labels, .label_smoothing = f->label_smoothing);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = loss;
    config.optimizer = f->train ? &f->optimizer : NULL;
    return lk_plan_create(*graph, &config, plan);
}

lk_status lk_trainer_plan(lk_context *c, const lk_trainer_config *f, lk_graph **graph, lk_plan **plan,
                          size_t memory[LK_MEMORY_COUNT])
{
    lk_loader_config train, test;
    lk_status        status = check(c, f);
    *graph = NULL;
    *plan = NULL;
    if (status < 0 || (status = record(c, f, graph, plan)) < 0) {
        lk_graph_free(*graph);
        *graph = NULL;
        return status;
    }
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) memory[kind] = lk_plan_memory(*plan, (lk_memory)kind);
    loader_configs(f, &train, &test);
    memory[LK_MEMORY_LOADER] = (f->train ? lk_loader_bytes(&train) : 0) + (f->test ? lk_loader_bytes(&test) : 0);
    memory[LK_MEMORY_CHECKPOINT] = f->save ? lk_checkpoint_bytes(*plan) : 0;
    return LK_OK;
}

static void tell(lk_trainer *t, lk_event event)
{
    event.step = t->progress.step;
    event.steps = t->steps;
    if (t->config.event && t->config.event(t->config.event_user, &event) != 0) t->stop = true;
}

static lk_status resume(lk_trainer *t, const char *directory)
{
    const lk_trainer_config *f = &t->config;
    lk_status                status = lk_checkpoint_load(t->store, directory, &t->progress);
    if (status < 0) return status;
    if (t->progress.seed != f->seed)
        lk__log(t->context, LK_LOG_INFO, "going on with the checkpoint's seed %llu, not %llu",
                (unsigned long long)t->progress.seed, (unsigned long long)f->seed);
    t->config.seed = t->progress.seed;
    tell(t, (lk_event){.kind = LK_EVENT_RESUMED, .epoch = t->progress.epoch, .path = directory});
    return LK_OK;
}

/* What init and resume say, into the store and the progress. A directory that holds somebody's checkpoint is never written
 * into unless it is the one that this run goes on from. */
static lk_status load(lk_trainer *t)
{
    const lk_trainer_config *f = &t->config;
    int64_t                  step;
    lk_status                status = LK_OK;
    t->progress = (lk_progress){.seed = f->seed};
    t->saved = -1;
    if (f->init && (status = lk_weights_load(t->store, f->init)) < 0) return status;
    bool same = f->resume_from && f->save && strcmp(f->resume_from, f->save) == 0;
    bool taken = f->save && lk_checkpoint_find(t->context, f->save, &step) == LK_OK;
    if (taken && !same && (!f->resume || f->resume_from))
        return lk__fail(t->context, LK_EINVAL,
                        "%s already holds a checkpoint (step %lld); resume it, or save into another directory", f->save,
                        (long long)step);
    if (f->resume_from)
        status = resume(t, f->resume_from);
    else if (taken)
        status = resume(t, f->save);
    if (status >= 0 && taken) t->saved = t->progress.step;
    return status;
}

static lk_status open_loaders(lk_trainer *t)
{
    lk_loader_config train, test;
    loader_configs(&t->config, &train, &test);
    lk_status status = t->config.train ? lk_loader_create(t->context, &train, &t->train) : LK_OK;
    if (status >= 0 && t->config.test) status = lk_loader_create(t->context, &test, &t->test);
    if (status >= 0 && t->train && (t->progress.epoch || t->progress.position))
        status = lk_loader_seek(t->train, t->progress.epoch, t->progress.position);
    return status;
}

lk_status lk_trainer_create(lk_context *c, const lk_trainer_config *config, lk_trainer **trainer)
{
    lk_status status = check(c, config);
    *trainer = NULL;
    if (status < 0) return status;
    lk_trainer *t = lk__alloc(c, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->context = c;
    t->config = *config;
    t->steps = total_steps(config);
    if (t->config.schedule.kind == LK_COSINE && t->config.schedule.total == 0) t->config.schedule.total = t->steps;
    if ((status = record(c, config, &t->graph, &t->plan)) < 0 ||
        (status = lk_store_create(t->plan, config->seed, &t->store)) < 0 ||
        (status = lk_program_create(t->plan, t->store, &t->program)) < 0 || (status = load(t)) < 0 ||
        (config->save && (status = lk__saver_init(&t->saver, t->store)) < 0) || (status = open_loaders(t)) < 0) {
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
    lk__saver_free(&t->saver);
    lk_program_free(t->program);
    lk_store_free(t->store);
    lk_plan_free(t->plan);
    lk_graph_free(t->graph);
    lk__free(t->context, LK_MEMORY_OTHER, t, sizeof *t);
}

lk_store          *lk_trainer_store(lk_trainer *t) { return t->store; }
const lk_progress *lk_trainer_progress(const lk_trainer *t) { return &t->progress; }

static lk_status bind(lk_trainer *t, const lk_batch *b)
{
    lk_status status = lk_program_bind(t->program, "features", b->features);
    return status < 0 ? status : lk_program_bind(t->program, "labels", b->labels);
}

lk_status lk_trainer_evaluate(lk_trainer *t, double *loss, double *accuracy, int64_t *samples)
{
    lk_batch   b;
    lk_metrics m;
    lk_status  status;
    double     sum = 0, weight = 0, correct = 0;
    if (!t->test) return lk__fail(t->context, LK_EINVAL, "there is no test set to evaluate on");
    if ((status = lk_loader_seek(t->test, 0, 0)) < 0) return status;
    *samples = 0;
    while ((status = lk_loader_next(t->test, &b)) == LK_OK) {
        lk_step step = {.step = 1, .count = b.count, .sample_ids = b.indices};
        if ((status = bind(t, &b)) < 0 || (status = lk_program_step(t->program, &step)) < 0 ||
            (status = lk_program_run(t->program, LK_EVALUATE)) < 0)
            return status;
        lk_program_metrics(t->program, &m);
        sum += m.sum;
        weight += m.weight;
        correct += m.correct;
        *samples += b.count;
    }
    if (status < 0) return status;
    *loss = weight > 0 ? sum / weight : 0;
    *accuracy = *samples > 0 ? correct / (double)*samples : 0;
    return LK_OK;
}

static lk_status evaluate(lk_trainer *t)
{
    lk_event  e = {.kind = LK_EVENT_EVALUATED, .epoch = t->progress.epoch};
    double    start = lk__now();
    lk_status status = lk_trainer_evaluate(t, &e.loss, &e.accuracy, &e.samples);
    if (status < 0) return status;
    e.seconds = lk__now() - start;
    tell(t, e);
    return LK_OK;
}

/* An update can overflow without the loss having shown it yet: such weights must not take a good checkpoint's place. */
static lk_status check_finite(lk_trainer *t)
{
    for (size_t i = 0; i < lk_store_count(t->store); i++) {
        lk_state state = lk_store_at(t->store, i);
        int64_t  elements = 1;
        bool     finite = true;
        for (int k = 0; k < state.rank; k++) elements *= state.dims[k];
        if (state.dtype == LK_F32)
            for (int64_t k = 0; k < elements; k++) finite &= isfinite(((const float *)state.data)[k]) != 0;
        else if (state.dtype == LK_F64)
            for (int64_t k = 0; k < elements; k++) finite &= isfinite(((const double *)state.data)[k]) != 0;
        if (!finite)
            return lk__fail(t->context, LK_ENAN,
                            "\"%s\" became infinite or NaN by step %lld, which was therefore not saved; a lower "
                            "learning rate, a warm-up or clipping may help",
                            state.name, (long long)t->progress.step);
    }
    return LK_OK;
}

static lk_status save(lk_trainer *t)
{
    double start = lk__now();
    if (!t->config.save || t->saved == t->progress.step) return LK_OK;
    lk_status finite = check_finite(t);
    if (finite < 0) return finite;
    lk_status status = lk__saver_save(&t->saver, t->config.save, &t->progress, t->config.keep);
    if (status < 0) return status;
    t->saved = t->progress.step;
    tell(t,
         (lk_event){
             .kind = LK_EVENT_SAVED, .epoch = t->progress.epoch, .seconds = lk__now() - start, .path = t->config.save});
    return LK_OK;
}

static lk_status not_finite(lk_trainer *t, const lk_batch *b, double loss)
{
    char   samples[256] = "";
    size_t used = 0;
    for (int64_t i = 0; i < b->count && used + 24 < sizeof samples; i++)
        used +=
            (size_t)snprintf(samples + used, sizeof samples - used, "%s%lld", i ? ", " : "", (long long)b->indices[i]);
    return lk__fail(
        t->context, LK_ENAN,
        "the loss became %g at step %lld (epoch %lld); the batch held samples %s%s. That step was not taken; a lower "
        "learning rate, a warm-up or clipping may help",
        loss, (long long)t->progress.step + 1, (long long)b->epoch + 1, samples,
        used + 24 < sizeof samples ? "" : ", …");
}

static lk_status train_batch(lk_trainer *t, const lk_batch *b, lk_metrics *m, double *rate)
{
    *rate = lk_schedule_rate(&t->config.schedule, t->config.optimizer.lr, t->progress.step);
    lk_step   step = {.step = t->progress.step + 1,
                      .epoch = b->epoch,
                      .count = b->count,
                      .seed = t->config.seed,
                      .rate = *rate,
                      .sample_ids = b->indices};
    lk_status status = bind(t, b);
    if (status < 0 || (status = lk_program_step(t->program, &step)) < 0 ||
        (status = lk_program_run(t->program, LK_FORWARD)) < 0)
        return status;
    lk_program_metrics(t->program, m);
    if (!isfinite(m->loss)) return not_finite(t, b, m->loss);
    if ((status = lk_program_run(t->program, LK_BACKWARD)) < 0 || (status = lk_program_run(t->program, LK_UPDATE)) < 0)
        return status;
    lk_program_metrics(t->program, m);
    t->progress.step++;
    t->progress.epoch = b->epoch;
    t->progress.position = b->position + b->count;
    return LK_OK;
}

static bool due(int64_t every, int64_t step, bool epoch_end)
{
    return every > 0 ? step % every == 0 : every == 0 && epoch_end;
}

lk_status lk_trainer_run(lk_trainer *t)
{
    const lk_trainer_config *f = &t->config;
    double                   last = lk__now();
    lk_status                status = LK_OK;
    int64_t                  evaluated = -1;
    if (!t->train) return lk__fail(t->context, LK_EINVAL, "this trainer has no training set: it only evaluates");
    while (t->progress.step < t->steps && !t->stop) {
        lk_batch   b;
        lk_metrics m;
        double     rate;
        status = lk_loader_next(t->train, &b);
        if (status == LK_END) continue; /* the next call begins the next epoch */
        if (status < 0 || (status = train_batch(t, &b, &m, &rate)) < 0) return status;
        double now = lk__now();
        tell(t, (lk_event){.kind = LK_EVENT_STEP,
                           .epoch = b.epoch,
                           .samples = b.count,
                           .loss = m.loss,
                           .rate = rate,
                           .grad_norm = m.grad_norm,
                           .seconds = now - last});
        last = now;
        bool epoch_end = b.position + b.count >= lk_dataset_count(f->train);
        if (f->test && due(f->eval_every, t->progress.step, epoch_end)) {
            if ((status = evaluate(t)) < 0) return status;
            evaluated = t->progress.step;
            last = lk__now();
        }
        if (f->save && due(f->save_every, t->progress.step, epoch_end)) {
            if ((status = save(t)) < 0) return status;
            last = lk__now();
        }
    }
    if (!t->stop && f->test && f->eval_every >= 0 && evaluated != t->progress.step && (status = evaluate(t)) < 0)
        return status;
    if ((status = save(t)) < 0) return status;
    return t->stop && t->progress.step < t->steps
               ? lk__fail(t->context, LK_ECANCELED, "stopped on request after step %lld", (long long)t->progress.step)
               : LK_OK;
}
