/* evaluate.c - evaluates the test set, each sample once: every rank evaluates its part of each batch, and the ranks' sums are
 * added in a fixed order. */
#include "train/trainer.h"

#include <string.h>

static lk_status evaluate_part(lk_trainer *t, const lk_batch *b, int64_t first, int64_t count, double sums[4])
{
    size_t     row = (size_t)lk_dataset_elements(t->config.test) * lk_dtype_size(t->config.dtype);
    lk_step    step = {.step = 1, .count = count, .sample_ids = b->indices + first};
    lk_metrics m;
    lk_status  status = lk_program_bind(t->program, "features", (const char *)b->features + (size_t)first * row);
    if (status < 0 || (status = lk_program_bind(t->program, "labels", b->labels + first)) < 0 ||
        (status = lk_program_step(t->program, &step)) < 0 || (status = lk_program_run(t->program, LK_EVALUATE)) < 0)
        return status;
    lk_program_metrics(t->program, &m);
    double part[] = {m.sum, m.weight, m.correct, (double)count};
    for (int i = 0; i < 4; i++) sums[i] += part[i];
    return LK_OK;
}

lk_status lk_trainer_evaluate(lk_trainer *t, double *loss, double *accuracy, int64_t *samples)
{
    lk_batch      b;
    lk_status     status;
    lk__split_job job = {t->world, t->rank, t->config.leaves, 1};
    lk__range     own = lk__split_own(&job);
    double        sums[LK__LEAVES_MOST][4], all[4];
    if (!t->test) return lk__fail(t->context, LK_EINVAL, "there is no test set to evaluate on");
    memset(sums, 0, sizeof sums);
    /* All ranks evaluate with rank 0's running statistics: they differ since the last broadcast. */
    if ((status = lk__program_broadcast_buffers(t->program)) < 0) return status;
    if ((status = lk_loader_seek(t->test, 0, 0)) < 0) return status;
    while ((status = lk_loader_next(t->test, &b)) == LK_OK)
        for (int64_t i = own.first; i < own.end; i++) {
            lk__range rows = lk__split_part(b.total, lk__split_parts(&job), i);
            status = evaluate_part(t, &b, rows.first - b.offset, lk__range_count(rows), sums[i - own.first]);
            if (status < 0) return status;
        }
    if (status < 0 || (status = lk__program_add_numbers(t->program, sums[0], 4, all)) < 0) return status;
    *loss = all[1] > 0 ? all[0] / all[1] : 0;
    *accuracy = all[3] > 0 ? all[2] / all[3] : 0;
    *samples = (int64_t)all[3];
    return LK_OK;
}

lk_status lk__trainer_evaluate(lk_trainer *t)
{
    lk_event  e = {.kind = LK_EVENT_EVALUATED, .epoch = t->progress.epoch};
    double    start = lk__now();
    lk_status status = lk_trainer_evaluate(t, &e.loss, &e.accuracy, &e.samples);
    if (status < 0) return status;
    e.seconds = lk__now() - start;
    lk__trainer_emit(t, e);
    return LK_OK;
}
