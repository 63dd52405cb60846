/* resume.c - what a trainer starts from and what it leaves. Rank 0 reads and writes; the others get what it read, so only its
 * host needs the files, and a checkpoint says nothing of how many ranks there were. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

lk_status lk__trainer_share(lk_trainer *t, int rank, lk_status status)
{
    struct {
        int32_t status;
        char    text[1020];
    } word = {.status = status};
    if (t->world == 1) return status;
    if (status < 0) snprintf(word.text, sizeof word.text, "%s", lk_context_error(t->context));
    lk_status sent = lk_comm_broadcast(t->config.comm, &word, sizeof word, LK_U8, rank, NULL);
    if (sent < 0) return sent;
    if (word.status < 0) t->culprit = rank;
    if (word.status >= 0 || t->rank == rank) return (lk_status)word.status;
    word.text[sizeof word.text - 1] = 0;
    return lk__fail(t->context, (lk_status)word.status, "rank %d: %s", rank, word.text);
}

/* ---- locking ---- */

lk_status lk__trainer_lock(lk_trainer *t)
{
    const lk_trainer_config *f = &t->config;
    lk_status                status = LK_OK;
    if (!f->save) return LK_OK;
    if (t->rank == 0) {
        if (t->world > 1) lk_comm_busy_begin(f->comm, "waiting for the lock of the checkpoint directory");
        status = lk__checkpoint_open(t->context, f->save, lk__lock_patience(), &t->lock);
        if (t->world > 1) lk_comm_busy_end(f->comm);
    }
    return lk__trainer_share(t, 0, status);
}

/* ---- loading ---- */

/* What init and resume say, into the store and the progress. A directory that holds somebody's checkpoint is never written
 * into unless it is the one that this run goes on from. *from: what was resumed. */
static lk_status load(lk_trainer *t, const char **from)
{
    const lk_trainer_config *f = &t->config;
    int64_t                  step;
    lk_status                status = LK_OK;
    if (f->init && (status = lk_weights_load(t->store, f->init)) < 0) return status;
    bool same = f->resume_from && f->save && strcmp(f->resume_from, f->save) == 0;
    bool taken = f->save && lk__checkpoint_newest(t->context, f->save, &step);
    if (taken && !same && (!f->resume || f->resume_from))
        return lk__fail(t->context, LK_EINVAL,
                        "%s already holds a checkpoint (step %lld); resume it, or save into another directory", f->save,
                        (long long)step);
    *from = f->resume_from ? f->resume_from : taken ? f->save : NULL;
    if (*from && (status = lk_checkpoint_load(t->store, *from, &t->progress)) < 0) return status;
    if (taken) t->saved = t->progress.step;
    return LK_OK;
}

lk_status lk__trainer_load(lk_trainer *t)
{
    const lk_trainer_config *f = &t->config;
    const char              *from = NULL;
    lk_status                status = LK_OK;
    t->progress = (lk_progress){.seed = f->seed};
    t->saved = -1;
    bool reads = f->init || f->resume_from || (f->save && f->resume);
    if (t->rank == 0) {
        if (t->world > 1 && reads) lk_comm_busy_begin(f->comm, "reading a checkpoint");
        status = load(t, &from);
        if (t->world > 1 && reads) lk_comm_busy_end(f->comm);
    }
    if ((status = lk__trainer_share(t, 0, status)) < 0) return status;
    if (t->world > 1) {
        int64_t words[] = {t->progress.step,          t->progress.epoch, t->progress.position,
                           (int64_t)t->progress.seed, t->saved,          from != NULL};
        if ((status = lk_comm_broadcast(f->comm, words, 6, LK_I64, 0, NULL)) < 0) return status;
        t->progress = (lk_progress){words[0], words[1], words[2], (uint64_t)words[3]};
        t->saved = words[4];
        if (words[5] && !from) from = f->resume_from ? f->resume_from : f->save;
        /* What came from a seed is the same everywhere, which the program verified; what was read was read once. */
        if ((f->init || from) && (status = lk_program_broadcast(t->program)) < 0) return status;
    }
    if (!from) return LK_OK;
    if (t->progress.seed != f->seed)
        lk__log(t->context, LK_LOG_INFO, "going on with the checkpoint's seed %llu, not %llu",
                (unsigned long long)t->progress.seed, (unsigned long long)f->seed);
    t->config.seed = t->progress.seed;
    lk__trainer_tell(t, (lk_event){.kind = LK_EVENT_RESUMED, .epoch = t->progress.epoch, .path = from});
    return LK_OK;
}

/* ---- saving ---- */

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

static void tell_saved(lk_trainer *t, const lk_progress *progress, double seconds)
{
    lk__trainer_tell(t, (lk_event){.kind = LK_EVENT_SAVED,
                                   .epoch = progress->epoch,
                                   .step = progress->step,
                                   .seconds = seconds,
                                   .path = t->config.save});
}

/* Rank 0: ends the save that is being written, if there is one. */
static lk_status settle(lk_trainer *t)
{
    lk_progress progress;
    double      seconds;
    lk_status   status = lk__saver_finish(&t->saver, &progress, &seconds);
    if (status == LK_OK) tell_saved(t, &progress, seconds);
    return status < 0 ? status : LK_OK;
}

void lk__trainer_look_at_save(lk_trainer *t)
{
    if (!lk__saver_done(&t->saver)) return;
    if (!lk__saver_failed(&t->saver)) {
        (void)settle(t);
        return;
    }
    t->wish = true; /* all ranks stop after the same step, and the save at the end tells all of them why */
    if (t->world == 1) t->stop = true;
}

lk_status lk__trainer_save(lk_trainer *t, bool last)
{
    const lk_trainer_config *f = &t->config;
    lk_status                status = LK_OK;
    if (!f->save) return LK_OK;
    bool      writes = t->saved != t->progress.step;
    lk_status finite = writes ? check_finite(t) : LK_OK;
    if (t->rank == 0) {
        if (t->world > 1) lk_comm_busy_begin(f->comm, "saving a checkpoint");
        status = settle(t); /* what was begun is finished also when there is nothing good to follow it */
        if (status >= 0) status = finite;
        if (status >= 0 && writes) status = lk__saver_begin(&t->saver, f->save, &t->progress, f->keep);
        if (status >= 0 && last) status = settle(t);
        if (t->world > 1) lk_comm_busy_end(f->comm);
    }
    if ((status = lk__trainer_share(t, 0, status)) >= 0) t->saved = t->progress.step;
    return status;
}
