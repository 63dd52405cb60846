/* resume.c - loads and saves checkpoints of a trainer. Rank 0 decides what is loaded; the ranks that see the directory
 * read and write, and the others receive what was read. A checkpoint does not depend on the number of ranks. */
#include "train/trainer.h"

#include "data/dataset.h"
#include "train/describe.h"
#include "train/load_group.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

lk_status lk__trainer_share_status(lk_trainer *t, int rank, lk_status status)
{
    return lk__group_tell(t->context, t->config.comm, rank, status, &t->failed_rank);
}

lk_status lk__trainer_agree(lk_trainer *t, lk_status status)
{
    return lk__group_agree(t->context, t->config.comm, status, &t->failed_rank);
}

/* ---- locking ---- */

lk_status lk__trainer_lock(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    lk_status                status = LK_OK;
    if (!config->save) return LK_OK;
    if (t->rank == 0) {
        if (t->world > 1) lk_comm_busy_begin(config->comm, "waiting for the lock of the checkpoint directory");
        lk__checkpoint_save save = {
            .directory = config->save, .files = config->files, .files_count = config->files_count};
        status = lk__checkpoint_open(t->context, &save, lk__lock_timeout(t->context), &t->lock);
        if (t->world > 1) lk_comm_busy_end(config->comm);
    }
    if ((status = lk__trainer_share_status(t, 0, status)) < 0) return status;
    return lk__writers_find(&t->writers, t->context, config->comm, config->save);
}

/* ---- loading ---- */

/* The position in an epoch means other samples where the training set has changed. That may be intended. */
static void compare_data(lk_trainer *t, const lk_description *d, const char *directory)
{
    int64_t  samples, own = t->config.train ? lk_dataset_count(t->config.train) : 0;
    uint64_t fingerprint;
    lk__description_data(d, &samples, &fingerprint);
    if (own == 0 || samples == 0) return;
    if (samples != own)
        lk__log(t->context, LK_LOG_WARNING,
                "the training set is not the one that %s was trained on: it has %lld samples, but that one had %lld",
                directory, (long long)own, (long long)samples);
    else if (fingerprint && t->fingerprint && fingerprint != t->fingerprint)
        lk__log(t->context, LK_LOG_WARNING,
                "the training set is not the one that %s was trained on: it has the same number of samples, but "
                "different contents",
                directory);
}

/* A checkpoint of other samples than this run's: the message shows both, which that of its first tensor would not. */
static lk_status check_data(lk_trainer *t, const char *directory)
{
    lk_description *d;
    lk_status       status = lk__describe(t->context, directory, &d);
    if (status < 0) return status == LK_ENOMEM ? status : LK_OK; /* loading finds the reason, or an older checkpoint */
    status = lk_description_check(d, t->config.train ? t->config.train : t->config.test);
    if (status >= 0) compare_data(t, d, directory);
    lk_description_free(d);
    return status;
}

/* A directory may be written in several ways. */
static bool is_same_directory(const char *a, const char *b)
{
    struct stat first, second;
    return strcmp(a, b) == 0 || (stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
                                 first.st_ino == second.st_ino);
}

/* Whether `directory` is that of one of the steps in `parent`, where it may be a link. */
static bool is_step_of(const char *directory, const char *parent)
{
    char    other[PATH_MAX], name[64];
    int64_t step;
    if (!lk__checkpoint_is_step(directory, &step)) return false;
    int n = snprintf(other, sizeof other, "%s/..", directory);
    if (n > 0 && n < (int)sizeof other && is_same_directory(other, parent)) return true;
    if (step < 0) return false;
    lk__checkpoint_name(step, name);
    n = snprintf(other, sizeof other, "%s/%s", parent, name);
    return n > 0 && n < (int)sizeof other && is_same_directory(other, directory);
}

/* A run that goes on from an earlier step than the newest would replace the later ones, and a restart would resume
 * them. */
static lk_status check_later(lk_trainer *t, int64_t newest)
{
    if (newest <= t->progress.step) return LK_OK;
    return lk__fail(
        t->context, LK_EINVAL,
        "%s holds later checkpoints than step %lld, up to step %lld, which this run would replace: save into "
        "another directory, or move the later ones away",
        t->config.save, (long long)t->progress.step, (long long)newest);
}

/* Loads the weights that init and resume name, and the progress. A directory that already holds a checkpoint is written
 * to only if this run resumes from it, or from its newest step. *from: the directory that was resumed. */
static lk_status load_initial(lk_trainer *t, lk__load_group *group, const char **from)
{
    const lk_trainer_config *config = &t->config;
    int64_t                  step;
    lk_status                status = LK_OK;
    if (config->init && (status = lk__weights_load_group(t->store, group, config->init)) < 0) return status;
    bool resumes_step = config->resume_from && config->save && is_step_of(config->resume_from, config->save);
    bool resumes_save =
        resumes_step || (config->resume_from && config->save && is_same_directory(config->resume_from, config->save));
    bool has_checkpoint = config->save && lk__checkpoint_newest(t->context, config->save, &step);
    if (has_checkpoint && !resumes_save && (!config->resume || config->resume_from))
        return lk__fail(t->context, LK_EINVAL,
                        "%s already holds a checkpoint (step %lld); resume it, or save into another directory",
                        config->save, (long long)step);
    *from = config->resume_from ? config->resume_from : has_checkpoint ? config->save : NULL;
    if (*from && ((status = check_data(t, *from)) < 0 ||
                  (status = lk__checkpoint_load_group(t->store, group, *from, &t->progress)) < 0))
        return status;
    if (config->save && has_checkpoint && resumes_step && (status = check_later(t, step)) < 0) return status;
    if (!*from && config->init_partial &&
        (status = lk__weights_load_partial_group(t->store, group, config->init_partial, &t->loaded)) < 0)
        return status;
    if (has_checkpoint) t->saved = t->progress.step;
    return LK_OK;
}

/* Rank 0 alone, which sends its list to the others. */
lk_status lk__trainer_load_algorithms(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    const char              *from = config->resume_from ? config->resume_from : config->resume ? config->save : NULL;
    char                    *lines = NULL;
    size_t                   length = 0;
    if (!from || t->rank != 0 || !t->plan->device->backend->kernels.choose_begin) return LK_OK;
    lk_description *d;
    lk_status       status = lk__describe(t->context, from, &d);
    if (status < 0) return status == LK_ENOMEM ? status : LK_OK; /* loading finds the reason, or an older checkpoint */
    status = lk__description_algorithms(d, &lines, &length);
    if (status >= 0 && lines) status = lk__plan_set_algorithms(t->plan, lines, strlen(lines));
    lk__text_free(t->context, lines, length);
    lk_description_free(d);
    return status;
}

lk_status lk__trainer_load(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    const char              *from = NULL;
    lk_status                status = LK_OK;
    t->progress = (lk_progress){.seed = config->seed};
    t->saved = -1;
    bool reads = config->init || config->init_partial || config->resume_from || (config->save && config->resume);
    lk__load_group group = {.store = t->store, .comm = config->comm, .busy = true};
    bool           shares = t->world > 1 && reads;
    if (t->rank == 0) {
        if (shares) lk_comm_busy_begin(config->comm, "reading a checkpoint");
        t->store->alone = true; /* the others wait below */
        if (config->train && (config->save || config->resume_from))
            status = lk__dataset_fingerprint(config->train, &t->fingerprint);
        if (status >= 0) status = load_initial(t, shares ? &group : NULL, &from);
        t->store->alone = false;
        if (shares) lk_comm_busy_end(config->comm);
        group.busy = false;
        lk_status ended = shares ? lk__load_group_end(&group) : LK_OK;
        if (status >= 0) status = ended;
        group.loaded = group.loaded || t->plan->splits;
    } else if (shares && (status = lk__load_group_serve(&group)) < 0 && lk_comm_status(config->comm) < 0)
        return status;
    if ((status = lk__trainer_share_status(t, 0, status)) < 0) return status;
    if (t->world > 1) {
        int64_t state[] = {t->progress.step, t->progress.epoch, t->progress.position, (int64_t)t->progress.seed,
                           t->saved,         from != NULL,      group.loaded};
        if ((status = lk_comm_broadcast(config->comm, state, 7, LK_I64, 0, NULL)) < 0) return status;
        t->progress = (lk_progress){state[0], state[1], state[2], (uint64_t)state[3]};
        t->saved = state[4];
        if (state[5] && !from) from = config->resume_from ? config->resume_from : config->save;
        /* Weights from a seed are equal on all ranks, which the program verified; only rank 0 has read weights from a
         * file. */
        bool loaded = config->init || config->init_partial || from;
        if (loaded && !state[6] && (status = lk_program_broadcast(t->program)) < 0) return status;
    }
    if (!from) return LK_OK;
    if (t->progress.seed != config->seed)
        lk__log(t->context, LK_LOG_INFO, "using the checkpoint's seed %llu, not %llu",
                (unsigned long long)t->progress.seed, (unsigned long long)config->seed);
    t->config.seed = t->progress.seed;
    int64_t before = config->train ? t->progress.epoch * lk_dataset_count(config->train) + t->progress.position : 0;
    lk__trainer_emit(t,
                     (lk_event){.kind = LK_EVENT_RESUMED, .epoch = t->progress.epoch, .samples = before, .path = from});
    return LK_OK;
}

/* ---- saving ---- */

/* An update can overflow before the loss shows it: such weights must not replace a finite checkpoint. */
static lk_status check_finite(lk_trainer *t)
{
    for (size_t i = 0; i < lk_store_count(t->store); i++) {
        bool      finite;
        lk_status status = lk__store_finite(t->store, i, &finite);
        if (status < 0) return status;
        if (!finite)
            return lk__fail(t->context, LK_ENAN,
                            "\"%s\" is infinite or NaN after step %lld, which was not saved; a lower learning rate, a "
                            "warm-up or clipping may help",
                            lk_store_at(t->store, i).name, (long long)t->progress.step);
    }
    return LK_OK;
}

static void emit_saved(lk_trainer *t, const lk_progress *progress, double seconds)
{
    lk__trainer_emit(t, (lk_event){.kind = LK_EVENT_SAVED,
                                   .epoch = progress->epoch,
                                   .step = progress->step,
                                   .seconds = seconds,
                                   .path = t->config.save});
}

/* Waits for the save in progress, if there is one. Its status is that of all ranks. */
static lk_status finish_save(lk_trainer *t)
{
    lk_progress progress;
    double      seconds;
    lk_status   status = lk__saver_finish(&t->saver, &progress, &seconds);
    if (status == LK_OK && t->rank == 0) emit_saved(t, &progress, seconds);
    return status < 0 ? status : LK_OK;
}

void lk__trainer_poll_save(lk_trainer *t)
{
    if (!lk__saver_done(&t->saver)) return;
    if (!lk__saver_failed(&t->saver)) {
        (void)finish_save(t);
        return;
    }
    t->stop_requested = true; /* all ranks stop after the same step, and the save at the end shares the failure */
    if (t->world == 1) t->stop = true;
}

lk_status lk__trainer_save(lk_trainer *t, bool last)
{
    const lk_trainer_config *config = &t->config;
    if (!config->save) return LK_OK;
    bool      writes = t->saved != t->progress.step;
    lk_status finite = writes ? check_finite(t) : LK_OK;
    if (t->world > 1) lk_comm_busy_begin(config->comm, "saving a checkpoint");
    lk_status status = finish_save(t); /* also if the current weights are not finite */
    if (status >= 0) status = finite;
    if (t->world > 1) lk_comm_busy_end(config->comm);
    if ((status = lk__trainer_agree(t, status)) < 0) return status;
    if (t->world > 1) lk_comm_busy_begin(config->comm, "saving a checkpoint");
    if (writes) status = lk__saver_begin(&t->saver, config->save, &t->progress, config->keep);
    if (status >= 0 && last) status = finish_save(t);
    if (t->world > 1) lk_comm_busy_end(config->comm);
    if ((status = lk__trainer_agree(t, status)) >= 0) t->saved = t->progress.step;
    return status;
}
