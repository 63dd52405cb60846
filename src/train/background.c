/* background.c - saves in the background: the store is copied, which takes as long as reading it, and a thread writes the copy
 * while training continues. The copy is in memory to which the device copies quickly. */
#include "train/checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct lk__train_background {
    lk__train_saver *saver;
    lk_store         copy; /* the store's plan over memory of this struct */
    lk__device       host;
    size_t           bytes;
    bool             running; /* the thread must be joined */
    atomic_bool      done;
    pthread_t        thread;
    const char      *directory;
    lk_progress      progress;
    int              keep;
    double           began, seconds;
    lk_status        status;
    char             error[2048]; /* the thread's error message: lk_context_error is per thread */
} lk__train_background;

static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER, LK_MEMORY_BUFFERS, LK_MEMORY_OPTIMIZER};
enum { KINDS = 4 };

static size_t copy_bytes(const lk_plan *plan)
{
    size_t bytes = 0;
    for (int i = 0; i < KINDS; i++) bytes += lk__round_up(lk_plan_memory(plan, kinds[i]), LK__ALIGN);
    return bytes;
}

size_t lk__saver_background_bytes(const lk_plan *plan)
{
    return lk__round_up(sizeof(lk__train_background), LK__ALIGN) + copy_bytes(plan);
}

lk_status lk__saver_background(lk__train_saver *s)
{
    const lk_plan *plan = s->store->plan;
    size_t bytes = lk__saver_background_bytes(plan), used = lk__round_up(sizeof(lk__train_background), LK__ALIGN);
    char  *memory = s->store->device->backend->alloc_host(s->store->device, LK_MEMORY_CHECKPOINT, bytes);
    if (!memory) return LK_ENOMEM;
    lk__train_background *b = s->background = (lk__train_background *)memory;
    char                **to[] = {&b->copy.parameters, &b->copy.master, &b->copy.buffers, &b->copy.optimizer};
    b->copy = *s->store;
    b->copy.comm = NULL; /* also of a store that ranks share it is this rank's own */
    b->copy.device = &b->host; /* host memory, whatever the store's device is */
    b->host = (lk__device){.backend = &lk__device_cpu, .context = s->context};
    b->bytes = bytes;
    for (int i = 0; i < KINDS; i++) {
        *to[i] = memory + used;
        used += lk__round_up(lk_plan_memory(plan, kinds[i]), LK__ALIGN);
    }
    return LK_OK;
}

static void *write_copy(void *argument)
{
    lk__train_background *b = argument;
    lk__train_saver       writer = *b->saver;
    writer.store = &b->copy;
    b->status = lk__saver_save(&writer, b->directory, &b->progress, b->keep);
    b->saver->links_reported = writer.links_reported; /* read by the next save alone */
    if (b->status < 0) snprintf(b->error, sizeof b->error, "%s", lk_context_error(b->saver->context));
    b->seconds = lk__now() - b->began;
    atomic_store(&b->done, true);
    return NULL;
}

lk_status lk__saver_begin(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk__train_background *b = s->background;
    const char           *from[] = {s->store->parameters, s->store->master, s->store->buffers, s->store->optimizer};
    char                 *to[] = {b->copy.parameters, b->copy.master, b->copy.buffers, b->copy.optimizer};
    b->began = lk__now();
    b->saver = s;
    b->directory = directory;
    b->progress = *progress;
    b->keep = keep;
    b->status = lk__store_check(s->store);
    if (b->status < 0) return b->status;
    atomic_store(&b->done, false);
    for (int i = 0; i < KINDS; i++) {
        lk_status status =
            lk__device_read(s->store->device, NULL, to[i], from[i], lk_plan_memory(s->store->plan, kinds[i]));
        if (status < 0) return status;
    }
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
    return lk__fail(s->context, status, "step %lld could not be saved: %s", (long long)b->progress.step, b->error);
}

void lk__saver_background_free(lk__train_saver *s)
{
    lk__train_background *b = s->background;
    if (!b) return;
    if (b->running) pthread_join(b->thread, NULL);
    s->store->device->backend->free_host(s->store->device, LK_MEMORY_CHECKPOINT, b, b->bytes);
    s->background = NULL;
}
