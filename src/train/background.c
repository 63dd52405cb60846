/* background.c - saves in the background: every rank copies the chunks that it will write, which takes as long as
 * reading them, and its thread writes the copies, together with the other ranks, while training continues. The
 * copies are in memory to which the device copies quickly. */
#include "train/checkpoint.h"
#include "train/chunk_file.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct lk__train_background {
    lk__train_saver *saver;
    char            *chunks;  /* behind this struct: of the model's file, then of the optimizer's */
    size_t           bytes;   /* of this struct and the chunks */
    bool             running; /* the thread must be joined */
    atomic_bool      done;
    pthread_t        thread;
    const char      *directory;
    lk_progress      progress;
    int              keep;
    double           began, seconds;
    lk_status        status;
    char             error[2048]; /* the thread's error message: lk_context_error is per thread */
    int              failed_rank; /* lk_context_error_rank */
} lk__train_background;

static size_t align_chunks(uint64_t bytes) { return lk__round_up((size_t)bytes, LK__CHUNK_ALIGN); }

size_t lk__saver_background_bytes(const lk_plan *plan, uint64_t chunk, int writers, int turn)
{
    uint64_t files[2];
    size_t   bytes = sizeof(lk__train_background) + LK__CHUNK_ALIGN;
    lk__image_bounds(plan, files);
    for (int i = 0; i < 2 && turn >= 0; i++)
        bytes += align_chunks(lk__chunks_share(&(lk__chunks){.bytes = files[i], .size = chunk, .writers = writers}));
    return bytes;
}

lk_status lk__saver_background(lk__train_saver *s)
{
    size_t bytes = lk__saver_background_bytes(s->store->plan, s->chunk_bytes, s->writers.count, s->writers.turn);
    char  *memory = s->store->device->backend->memory.alloc_host(s->store->device, LK_MEMORY_CHECKPOINT, bytes);
    if (!memory) return LK_ENOMEM;
    lk__train_background *b = s->background = (lk__train_background *)memory;
    b->saver = s;
    b->chunks = (char *)align_chunks((uint64_t)(uintptr_t)memory + sizeof *b);
    b->bytes = bytes;
    return LK_OK;
}

static void *write_copy(void *argument)
{
    lk__train_background *b = argument;
    b->status = lk__saver_save(b->saver, b->directory, &b->progress, b->keep);
    if (b->status < 0) {
        snprintf(b->error, sizeof b->error, "%s", lk_context_error(b->saver->context));
        b->failed_rank = lk_context_error_rank(b->saver->context);
    }
    b->seconds = lk__now() - b->began;
    atomic_store(&b->done, true);
    return NULL;
}

/* Both files, one behind the other. */
static lk_status copy_chunks(lk__train_saver *s)
{
    char     *to = s->background->chunks;
    lk_status status = lk__store_check(s->store);
    if (status >= 0) status = lk__saver_measure(s);
    if ((status = lk__writers_agree(&s->writers, status)) < 0) return status; /* what follows is collective */
    for (int file = 0; file < 2; file++) {
        lk__safetensors_image image;
        if ((status = lk__image_make(s, file, &image)) < 0) return status;
        s->copied[file] = to = (char *)align_chunks((uint64_t)(uintptr_t)to);
        for (size_t i = 0; i < lk__chunks_rounds(&s->cut[file]); i++) {
            size_t index;
            if (status >= 0) status = lk__image_gather(s, (lk__checkpoint_round){&image, file, i}, to);
            if (lk__chunks_find(&s->cut[file], lk__saver_turn(s, file), i, &index))
                to += lk__chunks_bytes(&s->cut[file], index);
        }
    }
    return status;
}

lk_status lk__saver_copy(lk__train_saver *s) { return lk__writers_agree(&s->writers, copy_chunks(s)); }

lk_status lk__saver_begin(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk__train_background *b = s->background;
    b->began = lk__now();
    b->directory = directory;
    b->progress = *progress;
    b->keep = keep;
    if ((b->status = lk__saver_copy(s)) < 0) return b->status;
    atomic_store(&b->done, false);
    if (pthread_create(&b->thread, NULL, write_copy, b) != 0)
        write_copy(b); /* no thread available: write it now */
    else
        b->running = true;
    return LK_OK;
}

bool lk__saver_done(const lk__train_saver *s)
{
    const lk__train_background *b = s->background;
    return b && atomic_load(&b->done);
}

bool lk__saver_failed(const lk__train_saver *s) { return lk__saver_done(s) && s->background->status < 0; }

lk_status lk__saver_finish(lk__train_saver *s, lk_progress *progress, double *seconds)
{
    lk__train_background *b = s->background;
    if (!b->running && !atomic_load(&b->done)) return LK_END;
    if (b->running) pthread_join(b->thread, NULL);
    b->running = false;
    atomic_store(&b->done, false);
    *progress = b->progress;
    *seconds = b->seconds;
    if (b->status >= 0) return LK_OK;
    /* The directory was valid when the run started: a change since then is a failure, not a user error. */
    lk_status status = b->status == LK_EINVAL ? LK_EIO : b->status;
    return lk__fail_of_rank(s->context, status, b->failed_rank, "step %lld could not be saved: %s",
                            (long long)b->progress.step, b->error);
}

void lk__saver_background_free(lk__train_saver *s)
{
    lk__train_background *b = s->background;
    if (!b) return;
    if (b->running) pthread_join(b->thread, NULL);
    s->store->device->backend->memory.free_host(s->store->device, LK_MEMORY_CHECKPOINT, b, b->bytes);
    s->background = NULL;
}
