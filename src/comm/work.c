/* work.c - operations in flight. A blocking call runs in the caller's thread if nothing is in flight; all others run in
 * one thread per group, which is started by the first asynchronous call. */
#include "comm/flight_recorder.h"

#include <stdio.h>
#include <string.h>

static bool is_transfer(const lk__comm_call *o) { return o->kind == LK__SEND || o->kind == LK__RECV; }

static lk_status run_in_caller(lk_comm *c, const lk__comm_call *o)
{
    lk__flight_recorder_begin(c->recorder, o);
    lk_status status;
    if (is_transfer(o)) {
        lk_work work = {.comm = c, .operation = *o};
        c->backend->transfer(c, &work);
        status = work.status;
    } else {
        status = c->backend->collective(c, o);
    }
    lk__flight_recorder_end(c->recorder, status);
    return status;
}

void lk__work_finish(lk_work *work, lk_status status)
{
    lk_comm *c = work->comm;
    work->status = status;
    if (!work->queued) {
        atomic_store_explicit(&work->done, true, memory_order_relaxed);
        return;
    }
    work->ended = lk__now();
    if (status < 0) snprintf(work->text, sizeof work->text, "%.511s", lk_context_error(c->context));
    lk_comm *watcher = work->watcher; /* read before: once it is done, work may be freed */
    pthread_mutex_lock(&c->lock);
    atomic_store(&work->done, true);
    atomic_fetch_sub(&c->pending, 1);
    pthread_cond_broadcast(&c->finished);
    pthread_mutex_unlock(&c->lock);
    if (watcher) lk__work_wake(watcher);
}

void lk__work_wake(lk_comm *c)
{
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->finished);
    pthread_mutex_unlock(&c->lock);
}

static lk_work *dequeue(lk_comm *c)
{
    lk_work *work = c->first;
    if (work && !(c->first = work->next)) c->last = NULL;
    if (work) work->next = NULL;
    return work;
}

lk_work *lk__work_next_transfer(lk_comm *c, lk_work *inside)
{
    if (!inside->queued) return NULL;
    c = inside->comm; /* a mixed group's works run on one of its groups */
    pthread_mutex_lock(&c->lock);
    lk_work *work = c->first && is_transfer(&c->first->operation) ? dequeue(c) : NULL;
    pthread_mutex_unlock(&c->lock);
    if (work) work->began = lk__now();
    return work;
}

bool lk__works_take_next(lk_comm *c, lk_work **in_progress)
{
    lk_work *more, **end = &(*in_progress)->next;
    bool     any = false;
    for (; (more = lk__work_next_transfer(c, *in_progress)); any = true) {
        while (*end) end = &(*end)->next;
        *end = more;
    }
    return any;
}

void lk__works_finish_complete(lk_work **in_progress, lk_status status)
{
    for (lk_work **at = in_progress; *at;) {
        lk_work *w = *at;
        if (!w->complete && status >= 0) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = NULL;
        lk__work_finish(w, w->complete ? LK_OK : status);
    }
}

bool lk__works_complete(const lk_work *in_progress)
{
    for (; in_progress; in_progress = in_progress->next)
        if (!in_progress->complete) return false;
    return true;
}

static void *thread_main(void *argument)
{
    lk_comm *c = argument;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->first && !atomic_load(&c->closing)) pthread_cond_wait(&c->queued, &c->lock);
        lk_work *work = atomic_load(&c->closing) ? NULL : dequeue(c);
        if (!work) break;
        pthread_mutex_unlock(&c->lock);
        work->began = lk__now();
        lk__flight_recorder_begin(c->recorder, &work->operation);
        if (is_transfer(&work->operation)) {
            c->backend->transfer(c, work);
            lk__flight_recorder_end(c->recorder, (lk_status)atomic_load(&c->failed));
        } else {
            lk_status status = c->backend->collective(c, &work->operation);
            lk__flight_recorder_end(c->recorder, status); /* before it is done: then the group may be freed */
            lk__work_finish(work, status);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Reuses one that was waited for, so that repeated calls allocate nothing, or makes one. */
static lk_work *obtain_work(lk_comm *c)
{
    pthread_mutex_lock(&c->lock);
    lk_work *work = c->spare;
    if (work) c->spare = work->next;
    pthread_mutex_unlock(&c->lock);
    return work ? work : lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *work);
}

/* Under the lock. */
static void put_spare(lk_comm *c, lk_work *work)
{
    work->next = c->spare;
    c->spare = work;
}

lk_status lk_comm_reserve(lk_comm *c, int works)
{
    for (int i = 0; i < works; i++) {
        lk_work *work = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *work);
        if (!work) return LK_ENOMEM;
        pthread_mutex_lock(&c->lock);
        put_spare(c, work);
        pthread_mutex_unlock(&c->lock);
    }
    return LK_OK;
}

lk_status lk__comm_reserve_transfers(lk_comm *c, int count)
{
    lk_status status = lk_comm_reserve(c, count);
    return status >= 0 && c->backend->reserve_transfers ? c->backend->reserve_transfers(c, count) : status;
}

static lk_status enqueue(lk_comm *c, const lk__comm_call *o, lk_comm *watcher, lk_work **made)
{
    lk_work *work = obtain_work(c);
    if (!work) return LK_ENOMEM;
    *work = (lk_work){.comm = c, .operation = *o, .watcher = watcher, .queued = true};
    pthread_mutex_lock(&c->lock);
    if (!c->running && pthread_create(&c->thread, NULL, thread_main, c) != 0) {
        put_spare(c, work);
        pthread_mutex_unlock(&c->lock);
        return lk__fail(c->context, LK_ENOMEM, "cannot start the thread that runs asynchronous operations");
    }
    c->running = true;
    if (c->last)
        c->last->next = work;
    else
        c->first = work;
    c->last = work;
    if ((work->older = c->newest)) work->older->newer = work;
    c->newest = work;
    atomic_fetch_add(&c->pending, 1);
    pthread_cond_signal(&c->queued);
    pthread_mutex_unlock(&c->lock);
    if (is_transfer(o)) c->backend->wake(c); /* it may run with those in progress */
    *made = work;
    return LK_OK;
}

lk_status lk__work_submit_watched(lk_comm *c, const lk__comm_call *o, lk_comm *watcher, lk_work **work)
{
    return enqueue(c, o, watcher, work);
}

lk_status lk__work_submit(lk_comm *c, const lk__comm_call *o, lk_work **work)
{
    if (atomic_load_explicit(&c->failed, memory_order_relaxed) != LK_OK) return lk__comm_report_failure(c);
    if (!work && atomic_load_explicit(&c->pending, memory_order_acquire) == 0) {
        lk_status status = run_in_caller(c, o);
        return status < 0 && atomic_load(&c->failed) != LK_OK ? lk__comm_report_failure(c) : status;
    }
    lk_work  *made = NULL;
    lk_status status = enqueue(c, o, NULL, &made);
    if (status < 0 || work) {
        if (work) *work = status < 0 ? NULL : made;
        return status;
    }
    return lk_work_wait(made);
}

/* The group's failure, if it has one, else the error of the thread that ran the work. */
static lk_status report_failure(lk_comm *c, lk_status status, const char *text)
{
    return atomic_load(&c->failed) != LK_OK ? lk__comm_report_failure(c) : lk__fail(c->context, status, "%s", text);
}

lk_status lk_work_test(lk_work *work)
{
    if (!atomic_load(&work->done)) return LK_END;
    return work->status < 0 ? report_failure(work->comm, work->status, work->text) : work->status;
}

lk_status lk_work_wait(lk_work *work)
{
    if (!work) return LK_OK;
    lk_comm *c = work->comm;
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&work->done)) pthread_cond_wait(&c->finished, &c->lock);
    if (work->newer)
        work->newer->older = work->older;
    else
        c->newest = work->older;
    if (work->older) work->older->newer = work->newer;
    char      text[LK__WORK_TEXT];
    lk_status status = work->status;
    if (status < 0) memcpy(text, work->text, sizeof text);
    put_spare(c, work);
    pthread_mutex_unlock(&c->lock);
    if (status >= 0) return status;
    (void)lk_comm_status(c); /* lets the backend report a failure of the group */
    return report_failure(c, status, text);
}

void lk__work_close(lk_comm *c)
{
    if (c->running) {
        pthread_mutex_lock(&c->lock);
        atomic_store(&c->closing, true);
        pthread_cond_broadcast(&c->queued);
        pthread_mutex_unlock(&c->lock);
        c->backend->wake(c);
        pthread_join(c->thread, NULL);
    }
    for (lk_work *work = c->newest, *older; work; work = older) {
        older = work->older;
        lk__free(c->context, LK_MEMORY_OTHER, work, sizeof *work);
    }
    for (lk_work *work = c->spare, *next; work; work = next) {
        next = work->next;
        lk__free(c->context, LK_MEMORY_OTHER, work, sizeof *work);
    }
}

void lk_work_span(const lk_work *work, double *began, double *ended)
{
    *began = work->began;
    *ended = work->ended;
}
