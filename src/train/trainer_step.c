/* trainer_step.c - one step of training: runs a batch through the program, reads the results, and reports them. */
#include "train/trainer.h"

#include "data/dataset.h"

#include <math.h>
#include <stdio.h>

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
    if (t->sets.sources[0] == LK__BATCHES_FROM_SET && !lk__gather_finite(t->config.train, b->indices, b->count))
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

/* The rank that waits least is the one that the others wait for. A mean in which each step counts 0.9 times as much as
 * the next; of the first steps, of those that there were. */
static void update_lateness(lk_trainer *t)
{
    double most = 0, weight = 0.1 / (1 - pow(0.9, (double)++t->late_steps));
    for (int i = 0; i < t->world; i++) most = fmax(most, lk__program_rank_report(t->program, i).waited);
    for (int i = 0; i < t->world; i++) {
        lk__run_report report = lk__program_rank_report(t->program, i);
        t->late[2 * i] += weight * (most - report.waited - t->late[2 * i]);
        t->late[2 * i + 1] += weight * (report.data - t->late[2 * i + 1]);
    }
}

/* The learning rate of a step, counted from 0. */
static lk_status find_rate(lk_trainer *t, int64_t step, double *rate)
{
    *rate = lk__trainer_rate(&t->config, step, t->steps);
    if (isfinite(*rate) && *rate >= 0) return LK_OK;
    return lk__fail(t->context, LK_EINVAL,
                    "schedule_callback returned %g for step %lld: expected a finite rate of at least 0", *rate,
                    (long long)step);
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

lk_status lk__trainer_train_batch(lk_trainer *t, const lk_batch *b, lk_event *e)
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

lk_status lk__trainer_queue_batch(lk_trainer *t, const lk_batch *b)
{
    lk_step   step;
    lk_status status = make_step(t, b, t->progress.step + (t->pending ? 1 : 0), &step);
    if (status >= 0) status = lk_batch_bind(b, t->program);
    if (status >= 0) status = lk_program_queue(t->program, &step);
    t->queued_rate = step.rate;
    return status;
}

lk_status lk__trainer_finish_queued(lk_trainer *t, lk_event *e)
{
    lk_batch *b = &t->queued;
    lk__program_report(t->program, t->stop_requested, t->data);
    lk_status status = lk_program_result(t->program);
    if (status < 0 && status != LK_ENAN) return status; /* that is reported with the samples below */
    b->indices = lk__program_result_ids(t->program);
    b->fields_count = 0; /* they may hold the next batch already */
    for (int i = 0; i < t->world; i++)
        if (!isfinite(lk__program_rank_sums(t->program, i).sum)) return report_not_finite(t, b, i);
    return take_results(t, b, e);
}

void lk__trainer_emit_step(lk_trainer *t, const lk_batch *b, lk_event e, double seconds)
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

void lk__trainer_emit_epoch(lk_trainer *t, int64_t epoch)
{
    lk__trainer_emit(t, (lk_event){.kind = LK_EVENT_EPOCH,
                                   .epoch = epoch,
                                   .samples = (int64_t)t->own.correct,
                                   .loss = t->all.weight > 0 ? t->all.sum / t->all.weight : 0,
                                   .own_loss = t->own.weight > 0 ? t->own.sum / t->own.weight : 0});
    t->own = t->all = (lk__run_sums){0, 0, 0};
}
