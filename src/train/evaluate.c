/* evaluate.c - evaluates the test set, each sample once. Every rank evaluates its part of each batch, and the ranks'
 * sums are added in a fixed order; or every rank evaluates whole batches, whose results are added in the order of
 * batches, as a single rank would add them. */
#include "train/trainer.h"

#include <string.h>

static lk_status bind_part(lk_trainer *t, const lk_batch *b, int64_t first)
{
    lk_status status = LK_OK;
    for (int i = 0; i < b->fields_count && status >= 0; i++)
        status = lk_program_bind(t->program, b->about[i].name,
                                 (const char *)b->fields[i] + (size_t)first * lk_field_bytes(&b->about[i]));
    return status;
}

static lk_status evaluate_part(lk_trainer *t, const lk_batch *b, int64_t first, int64_t count, double *sums)
{
    lk_step   step = {.step = 1, .count = count, .sample_ids = b->indices + first};
    double    part[LK__TRAINER_NUMBERS];
    lk_status status = bind_part(t, b, first);
    if (status < 0 || (status = lk_program_step(t->program, &step)) < 0 ||
        (status = lk_program_run(t->program, LK_EVALUATE)) < 0)
        return status;
    lk__trainer_get_numbers(t, lk__plan_own_stage(t->plan) == 0 ? count : 0, part); /* samples are counted once */
    for (int i = 0; i < lk__trainer_numbers(t); i++) sums[i] += part[i];
    return LK_OK;
}

/* ---- a part of each batch ---- */

/* This rank's part of every batch, into t->evaluated. Ranks may gather parameters for each run: one that has fewer
 * leaves of a batch than others runs without samples as often as they do. */
static lk_status evaluate_own(lk_trainer *t)
{
    lk_batch      b;
    lk__split_job job = lk__trainer_split(&t->config);
    lk__range     own = lk__split_own(&job);
    int           numbers = lk__trainer_numbers(t);
    double        none[LK__TRAINER_NUMBERS] = {0};
    int64_t       end = own.first + (lk__split_parts(&job) + job.world - 1) / job.world;
    lk_status     status = lk_loader_seek(t->test, 0, 0);
    if (status < 0) return status;
    while ((status = lk_loader_next(t->test, &b)) == LK_OK)
        for (int64_t i = own.first; i < end; i++) {
            bool      has = i < own.end;
            lk__range rows = lk__split_part(b.total, lk__split_parts(&job), has ? i : own.first);
            status = evaluate_part(t, &b, rows.first - b.offset, has ? lk__range_count(rows) : 0,
                                   has ? t->evaluated + (i - own.first) * numbers : none);
            if (status < 0) return status;
        }
    return status < 0 ? status : LK_OK;
}

/* Ranks meet after many batches, and the fastest may wait for longer than a collective may take. */
static void declare_busy(lk_trainer *t, bool busy)
{
    if (t->world > 1 && busy) lk_comm_busy_begin(t->config.comm, "an evaluation");
    if (t->world > 1 && !busy) lk_comm_busy_end(t->config.comm);
}

static lk_status evaluate_parts(lk_trainer *t, double *all)
{
    memset(t->evaluated, 0, t->evaluated_bytes);
    declare_busy(t, true);
    lk_status status = evaluate_own(t);
    declare_busy(t, false);
    if (status >= 0)
        status = lk__program_add_stages(t->program, t->evaluated, t->evaluated_bytes / sizeof *t->evaluated);
    return status < 0 ? status : lk__program_add_numbers(t->program, t->evaluated, lk__trainer_numbers(t), all);
}

/* ---- whole batches ---- */

enum { ROUNDS = 32 }; /* batches of each rank after which their numbers are exchanged */

size_t lk__trainer_evaluation_rows(const lk_trainer *t)
{
    lk__split_job job = lk__trainer_split(&t->config);
    return t->config.whole_batches ? ROUNDS * (1 + (size_t)lk__split_parts(&job))
                                   : (size_t)lk__range_count(lk__split_own(&job));
}

/* The numbers of this rank's next batches, one row each; at the end of the set a rank may have none for the last.
 * LK_END: all are done. Every rank has as many rows. */
static lk_status evaluate_rounds(lk_trainer *t, double *mine, int *rounds)
{
    lk_batch  b;
    int       numbers = lk__trainer_numbers(t);
    lk_status status = LK_OK;
    memset(mine, 0, ROUNDS * (size_t)numbers * sizeof *mine);
    for (*rounds = 0; *rounds < ROUNDS && (status = lk_loader_next(t->test, &b)) == LK_OK; ++*rounds)
        if ((status = evaluate_part(t, &b, 0, b.count, mine + *rounds * numbers)) < 0) break;
    return status;
}

static lk_status evaluate_batches(lk_trainer *t, double *all)
{
    lk__split_job job = lk__trainer_split(&t->config);
    int           numbers = lk__trainer_numbers(t), parts = lk__split_parts(&job), rounds;
    double       *mine = t->evaluated, *gathered = mine + ROUNDS * numbers;
    lk_status     status = lk_loader_seek(t->test, 0, 0), ended = LK_OK;
    memset(all, 0, (size_t)numbers * sizeof *all);
    while (status >= 0 && ended == LK_OK) {
        declare_busy(t, true);
        ended = evaluate_rounds(t, mine, &rounds);
        declare_busy(t, false);
        if (ended < 0) return ended;
        if (rounds == 0) break; /* on all ranks */
        if ((status = lk__program_add_stages(t->program, mine, (size_t)(rounds * numbers))) < 0) return status;
        status = lk__program_gather_numbers(t->program, mine, (size_t)(rounds * numbers), gathered);
        for (int i = 0; status >= 0 && i < rounds * parts; i++) { /* batch i of these is the one of rank i % parts */
            const double *batch = gathered + (i % parts * rounds + i / parts) * numbers;
            for (int k = 0; k < numbers; k++) all[k] += batch[k];
        }
    }
    return status;
}

static lk_status evaluate_all(lk_trainer *t, double *all)
{
    /* All ranks evaluate with rank 0's running statistics: they differ since the last broadcast. */
    lk_status status = lk__program_broadcast_buffers(t->program);
    if (status < 0) return status;
    return t->config.whole_batches ? evaluate_batches(t, all) : evaluate_parts(t, all);
}

lk_status lk_trainer_evaluate(lk_trainer *t, lk_evaluation *result)
{
    int    numbers = lk__trainer_numbers(t);
    double all[LK__TRAINER_NUMBERS];
    *result = (lk_evaluation){0};
    if (!t->test) return lk__fail(t->context, LK_EINVAL, "there is no test set to evaluate on");
    lk_status status = evaluate_all(t, all);
    lk__trainer_abort(t, status);
    if (status < 0) return status;
    *result = (lk_evaluation){.loss = lk__plan_mean_loss(t->plan, all),
                              .samples = (int64_t)all[numbers - 1],
                              .metrics = t->named,
                              .metrics_count = lk__trainer_set_named(t, all)};
    return LK_OK;
}

lk_status lk__trainer_evaluate(lk_trainer *t)
{
    lk_evaluation result;
    double        start = lk__now();
    lk_status     status = lk_trainer_evaluate(t, &result);
    if (status < 0) return status;
    lk__trainer_emit(t, (lk_event){.kind = LK_EVENT_EVALUATED,
                                   .epoch = t->progress.epoch,
                                   .loss = result.loss,
                                   .samples = result.samples,
                                   .metrics = result.metrics,
                                   .metrics_count = result.metrics_count,
                                   .seconds = lk__now() - start});
    return LK_OK;
}
