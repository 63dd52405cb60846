/* trainer_loop.c - the training loop: epochs of batches through the program's sections, evaluation, checkpoints, and
 * events. With several ranks each runs this loop over its share of the data, with the same steps, evaluations and
 * saves. */
#include "train/trainer.h"

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
    lk__trainer_emit_step(t, b, e, now - t->ended);
    t->ended = now;
    lk__trainer_poll_save(t);
    if ((status = check_replicas(t, false)) < 0) return status;
    bool epoch_end = b->position + b->total >= lk_dataset_count(config->train);
    if (epoch_end) lk__trainer_emit_epoch(t, b->epoch);
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
    lk_status status = lk__trainer_finish_queued(t, &e);
    t->pending = false;
    return status < 0 ? status : end_step(t, &b, e);
}

/* Whether something is due after the step of this batch that must see its results and nothing later. */
static bool must_wait(const lk_trainer *t, const lk_batch *b, int64_t step)
{
    const lk_trainer_config *config = &t->config;
    bool                     epoch_end = b->position + b->total >= lk_dataset_count(config->train);
    bool                     checks = t->world > 1 && config->check_every > 0 && step % config->check_every == 0;
    return epoch_end || step >= t->steps || checks || (config->test && is_due(config->eval_every, step, epoch_end)) ||
           (config->save && is_due(config->save_every, step, epoch_end));
}

/* Queues the step of a batch, then finishes the one before it. */
static lk_status queue_step(lk_trainer *t, const lk_batch *b)
{
    double    rate = t->queued_rate;
    lk_status status = lk__trainer_queue_batch(t, b);
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
    lk_status status = lk__trainer_train_batch(t, b, &e);
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
