/* loader.c - batches, made by the caller or ahead of time by worker threads. Slots form a ring in the order of batches;
 * the samples of a slot are assigned under the lock, so they do not depend on which worker fills it and when. */
#define _GNU_SOURCE
#include "base/config.h"
#include "base/split.h"
#include "data/batch.h"
#include "data/order.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_PARTS = 1 << 20 }; /* a rank has at least one, and the product of two fits int64_t */

typedef struct slot {
    void               *fields[LK_MAX_FIELDS];
    int64_t            *indices;
    int64_t             count, epoch, position, total, offset; /* as in lk_batch */
    bool                ready;                                 /* guarded by lock */
    lk_status           status;
    atomic_int_fast64_t reading; /* the current sample, or -1 */
    char                message[LK__DATASET_MESSAGE];
} slot;

/* The layout of the one block of LK_MEMORY_LOADER; all offsets are multiples of LK__ALIGN. */
typedef struct layout {
    int    slots, scratches;
    size_t fields[LK_MAX_FIELDS], indices, slot; /* bytes */
    size_t order, ahead, table, scratch;
    size_t total;
} layout;

struct lk_loader {
    lk_context      *context;
    lk_loader_config config;
    layout           layout;
    char            *memory;
    size_t           own_bytes; /* of this struct including slots and threads */
    int64_t          capacity;  /* rows of a slot */
    lk__batch_maker  maker;
    slot            *slots;
    pthread_t       *threads;
    int              started; /* threads */

    /* Used by the caller's thread alone. */
    int64_t epoch, position;

    /* Shared with workers. A leaf lock: nothing else is locked while it is held. */
    pthread_mutex_t lock;
    pthread_cond_t  work; /* workers wait: a slot became free, or stop */
    pthread_cond_t  done; /* the caller waits: a slot became ready, or no worker fills any */
    lk__data_order  order;
    int64_t         next_epoch, next_position; /* of the next batch to assign */
    uint64_t        assigned, consumed;        /* batches since the last seek; batch n is in slot n % slots */
    bool            borrowed;                  /* the caller uses batch `consumed` */
    int             filling;                   /* number of workers that fill a slot */
    bool            paused, stop;
    atomic_bool     cancel; /* stop filling after the current sample */
};

/* The rows [*begin, *end) of a batch of n that this loader makes. */
static void share_of(const lk_loader_config *c, int64_t n, int64_t *begin, int64_t *end)
{
    int64_t all = c->fixed_parts ? c->batch : n;
    *begin = c->parts ? lk__split(all, c->parts, c->first_part) : 0;
    *end = c->parts ? lk__split(all, c->parts, c->last_part) : n;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* Because of rounding, a smaller batch may have a larger share than a full one. But `parts` more samples never make a
 * share smaller, so the largest is among the last `parts` sizes. */
static int64_t compute_capacity(const lk_loader_config *c)
{
    int64_t most = 1, begin, end;
    for (int64_t n = c->batch; n > 0 && n >= c->batch - c->parts; n--) {
        share_of(c, n, &begin, &end);
        if (end - begin > most) most = end - begin;
    }
    return most;
}

static lk__order_kind order_kind(const lk_loader_config *c)
{
    return lk__order_choose(lk_dataset_count(c->dataset), c->shuffle, c->dataset->computed_order);
}

/* indices: batches have no fields, and the caller's thread makes them. */
static layout plan_layout(const lk_loader_config *c, bool indices)
{
    layout l = {.slots = 1, .scratches = 1};
    if (c->workers > 0 && !indices) {
        l.slots = 1 + (c->prefetch ? c->prefetch : 2 * c->workers); /* one is borrowed by the caller */
        l.scratches = c->workers;
    }
    size_t rows = (size_t)compute_capacity(c);
    l.indices = lk__round_up(rows * sizeof(int64_t), LK__ALIGN);
    l.slot = l.indices;
    for (int i = 0; i < lk__batch_fields(c) && !indices; i++) {
        lk_field f = lk__batch_field_of(c, i);
        l.fields[i] = lk__round_up(rows * lk_field_bytes(&f), LK__ALIGN);
        l.slot += l.fields[i];
    }
    l.order = lk__round_up(lk__order_bytes(lk_dataset_count(c->dataset), order_kind(c)), LK__ALIGN);
    l.ahead = indices && lk_dataset_count(c->dataset) <= LK__ORDER_AHEAD ? l.order : 0;
    l.table = indices ? 0 : lk__round_up(lk__transform_bytes(c), LK__ALIGN);
    l.scratch = indices ? 0 : lk__batch_scratch(c);
    l.total = (size_t)l.slots * l.slot + l.order + l.ahead + l.table + (size_t)l.scratches * l.scratch;
    return l;
}

lk_status lk__loader_check(lk_context *context, const lk_loader_config *c)
{
#define REFUSE(...) return context ? lk__fail(context, LK_EINVAL, __VA_ARGS__) : LK_EINVAL
    if (!c->dataset) REFUSE("a loader needs a data set");
    if (c->batch < 1) REFUSE("the batch size is %lld; expected at least 1", (long long)c->batch);
    if (c->dtype != LK_F32 && c->dtype != LK_F64)
        REFUSE("batches of %s are not supported: expected f32 or f64", lk_dtype_name(c->dtype));
    if (c->workers < 0 || c->workers > LK__MAX_THREADS)
        REFUSE("the loader's number of workers is %d; expected 0 to %d", c->workers, LK__MAX_THREADS);
    if (c->prefetch < 0 || c->prefetch > 65536)
        REFUSE("the loader's number of batches to prefetch is %d; expected 0 to 65536", c->prefetch);
    if (c->prefetch && !c->workers)
        REFUSE("a loader that prefetches %d batches needs at least one worker", c->prefetch);
    if (c->timeout_ms < 1) REFUSE("the loader's timeout is %lld ms; expected at least 1 ms", (long long)c->timeout_ms);
    if (c->drop_last && lk_dataset_count(c->dataset) < c->batch)
        REFUSE("a data set of %lld samples has no full batch of %lld: use a smaller batch size, or do not drop the "
               "last batch",
               (long long)lk_dataset_count(c->dataset), (long long)c->batch);
    if (c->parts < 0 || c->parts > MAX_PARTS)
        REFUSE("a batch cannot have %d parts: expected 0 (not divided) to %d", c->parts, MAX_PARTS);
    if (c->parts ? c->first_part < 0 || c->first_part >= c->last_part || c->last_part > c->parts
                 : c->first_part || c->last_part)
        REFUSE(
            "parts %d to %d (exclusive) of a batch of %d parts are invalid: expected at least one part within 0 to %d",
            c->first_part, c->last_part, c->parts, c->parts);
    size_t all = 0;
    int    slots = 1 + (c->prefetch ? c->prefetch : 2 * c->workers);
    for (int i = 0; i < lk_dataset_fields(c->dataset); i++)
        all += (size_t)lk_field_elements(lk_dataset_field(c->dataset, i)) * sizeof(double) + 2 * LK__ALIGN;
    if (__builtin_mul_overflow((size_t)compute_capacity(c), all, &all) ||
        __builtin_mul_overflow(all, (size_t)slots, &all) || all > SIZE_MAX / 4)
        REFUSE("%d batches of %lld samples are too large to address", slots, (long long)c->batch);
#undef REFUSE
    return lk__transform_check(c->dataset->context, c);
}

lk_status lk__loader_read(lk_context *context, const lk_loader_config *given, lk_loader_config *own)
{
    *own = (lk_loader_config)LK_LOADER_CONFIG_INIT;
    lk_status status = lk__config_read(context, context ? "lk_loader_config" : NULL, given, own, sizeof *own);
    return status < 0 ? status : lk__loader_check(context, own);
}

bool lk_loader_field(const lk_loader_config *config, int i, lk_field *field)
{
    lk_loader_config own;
    if (lk__loader_read(NULL, config, &own) < 0 || i < 0 || i >= lk__batch_fields(&own)) return false;
    *field = lk__batch_field_of(&own, i);
    return true;
}

size_t lk_loader_bytes(const lk_loader_config *config)
{
    lk_loader_config own;
    return lk__loader_read(NULL, config, &own) < 0 ? 0 : plan_layout(&own, false).total;
}
size_t lk__loader_indices_bytes(const lk_loader_config *config)
{
    lk_loader_config own;
    return lk__loader_read(NULL, config, &own) < 0 ? 0 : plan_layout(&own, true).total;
}
int64_t lk_loader_capacity(const lk_loader_config *config)
{
    lk_loader_config own;
    return lk__loader_read(NULL, config, &own) < 0 ? 0 : compute_capacity(&own);
}

/* An epoch ends when no samples are left or, with drop_last, too few for a full batch. */
static bool is_epoch_over(const lk_loader *l, int64_t position)
{
    int64_t left = lk_dataset_count(l->config.dataset) - position;
    return left <= 0 || (l->config.drop_last && left < l->config.batch);
}

/* Assigns the next batch to the slot. Under the lock if there are workers. */
static void assign_batch(lk_loader *l, slot *s)
{
    if (is_epoch_over(l, l->next_position)) {
        l->next_epoch++;
        l->next_position = 0;
    }
    lk__order_epoch(&l->order, l->next_epoch);
    int64_t left = lk_dataset_count(l->config.dataset) - l->next_position;
    int64_t end;
    s->total = left < l->config.batch ? left : l->config.batch;
    share_of(&l->config, s->total, &s->offset, &end);
    s->count = end - s->offset;
    s->epoch = l->next_epoch;
    s->position = l->next_position;
    for (int64_t i = 0; i < s->count; i++) s->indices[i] = lk__order_index(&l->order, s->position + s->offset + i);
    lk__order_advance(&l->order, 2 * s->total); /* so that the next epoch begins without a pause */
    s->ready = false;
    l->next_position += s->total;
    l->assigned++;
}

static void fill_slot(lk_loader *l, slot *s, char *scratch)
{
    s->status = LK_OK;
    if (l->maker.count == 0) return; /* indices alone */
    lk__random    random = lk__transform_random(l->config.seed, s->epoch);
    lk__batch_row row = {
        .fields = s->fields, .epoch = s->epoch, .random = &random, .scratch = scratch, .message = s->message};
    for (int64_t i = 0; i < s->count; i++) {
        if (atomic_load_explicit(&l->cancel, memory_order_relaxed)) break;
        if (i + 2 < s->count) lk__batch_prefetch(&l->maker, s->indices[i + 2]);
        atomic_store_explicit(&s->reading, s->indices[i], memory_order_relaxed);
        row.row = i;
        row.index = s->indices[i];
        s->status = lk__batch_put(&l->maker, &row);
        if (s->status < 0) break;
    }
    atomic_store_explicit(&s->reading, -1, memory_order_relaxed);
    /* Padding does not depend on what the slot held before. */
    lk__batch_clear(&l->maker, s->fields, s->count, l->capacity);
    for (int64_t i = s->count; i < l->capacity; i++) s->indices[i] = -1;
}

static char *scratch_of(lk_loader *l, int worker)
{
    return l->memory + l->layout.total - (size_t)(worker + 1) * l->layout.scratch;
}

/* What a worker tells the thread pool, which leaves a core to it while it computes samples. */
typedef struct reader {
    bool counted; /* in lk__context_reading */
    bool waits;   /* its latest batch took much longer than its CPU time: it waits for storage */
} reader;

/* Samples in memory are only copied, which is done before a compute thread could make use of the core. */
static void count_reader(lk_loader *l, reader *r, bool reads)
{
    bool counted = reads && !r->waits && !l->maker.in_memory;
    if (counted != r->counted) lk__context_add_reading(l->context, counted ? 1 : -1);
    r->counted = counted;
}

static double thread_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static void read_slot(lk_loader *l, slot *s, char *scratch, reader *r)
{
    enum { WAITING = 4 }; /* times its CPU time; less is the share of a core that others use too */
    double began = lk__now(), used = thread_seconds();
    fill_slot(l, s, scratch);
    r->waits = lk__now() - began > WAITING * (thread_seconds() - used);
}

static void *worker_main(void *argument)
{
    lk_loader *l = argument;
    reader     self = {.counted = false};
    pthread_mutex_lock(&l->lock);
    char *scratch = scratch_of(l, l->started++);
    for (;;) {
        while (!l->stop && (l->paused || l->assigned >= l->consumed + (uint64_t)l->layout.slots)) {
            count_reader(l, &self, false);
            pthread_cond_wait(&l->work, &l->lock);
        }
        count_reader(l, &self, !l->stop);
        if (l->stop) break;
        slot *s = &l->slots[l->assigned % (uint64_t)l->layout.slots];
        assign_batch(l, s);
        l->filling++;
        pthread_mutex_unlock(&l->lock);
        read_slot(l, s, scratch, &self);
        pthread_mutex_lock(&l->lock);
        s->ready = true;
        l->filling--;
        pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static bool is_ready(const lk_loader *l, const slot *s) { return l->assigned > l->consumed && s->ready; }

/* Waits at most `ms` milliseconds, up to a second, until the slot is ready. */
static void wait_briefly(lk_loader *l, const slot *s, int64_t ms)
{
    struct timespec deadline;
    int             error = 0;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += ms / 1000;
    deadline.tv_nsec += ms % 1000 * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    while (!is_ready(l, s) && !error) error = pthread_cond_timedwait(&l->done, &l->lock, &deadline);
}

/* Waits until the slot is ready: false if the time limit passes first. Under the lock. In intervals, because time in
 * which the process was stopped, and its workers with it, must count as one of them at most. */
static bool wait_until_ready(lk_loader *l, const slot *s)
{
    int64_t left = l->config.timeout_ms, interval = left < 20000 ? left / 20 + 1 : 1000;
    while (!is_ready(l, s) && left > 0) {
        wait_briefly(l, s, left < interval ? left : interval);
        left -= interval;
    }
    return is_ready(l, s);
}

static lk_status report_timeout(const lk_loader *l, const slot *s)
{
    char    where[48] = "";
    int64_t reading = atomic_load_explicit(&s->reading, memory_order_relaxed);
    if (reading >= 0) snprintf(where, sizeof where, "; sample %lld is being read", (long long)reading);
    return lk__fail(l->context, LK_ETIMEOUT,
                    "epoch %lld, batch at position %lld: the loader's workers did not finish it within %.1f s%s",
                    (long long)l->epoch, (long long)l->position, (double)l->config.timeout_ms / 1000.0, where);
}

lk_status lk_loader_next(lk_loader *l, lk_batch *batch)
{
    bool      threaded = l->config.workers > 0;
    lk_status status = LK_OK;
    *batch = (lk_batch){0};
    if (threaded) pthread_mutex_lock(&l->lock);
    if (l->borrowed) {
        l->borrowed = false;
        l->consumed++;
        if (threaded) pthread_cond_signal(&l->work);
    }
    slot *s = &l->slots[l->consumed % (uint64_t)l->layout.slots];
    if (is_epoch_over(l, l->position)) {
        l->epoch++;
        l->position = 0;
        status = LK_END;
    } else if (threaded) {
        status = wait_until_ready(l, s) ? LK_OK : LK_ETIMEOUT;
    } else if (l->assigned == l->consumed) { /* else it was filled before, and failed */
        assign_batch(l, s);
        fill_slot(l, s, scratch_of(l, 0));
    }
    if (threaded) pthread_mutex_unlock(&l->lock);
    if (status != LK_OK) return status == LK_END ? status : report_timeout(l, s);
    if (s->status < 0)
        return lk__fail(l->context, s->status, "epoch %lld, batch at position %lld: %s", (long long)s->epoch,
                        (long long)s->position, s->message);
    *batch = (lk_batch){
        .fields = (const void *const *)s->fields,
        .about = l->maker.fields,
        .fields_count = l->maker.count,
        .indices = s->indices,
        .count = s->count,
        .epoch = s->epoch,
        .position = s->position,
        .total = s->total,
        .offset = s->offset,
    };
    l->borrowed = true;
    l->position += s->total;
    return LK_OK;
}

int64_t lk_loader_epoch(const lk_loader *l) { return l->epoch; }
int64_t lk_loader_position(const lk_loader *l) { return l->position; }

lk_status lk_loader_seek(lk_loader *l, int64_t epoch, int64_t position)
{
    int64_t count = lk_dataset_count(l->config.dataset);
    if (epoch < 0 || position < 0 || position > count)
        return lk__fail(l->context, LK_EINVAL, "cannot seek to epoch %lld, position %lld in a data set of %lld samples",
                        (long long)epoch, (long long)position, (long long)count);
    pthread_mutex_lock(&l->lock);
    l->paused = true;
    atomic_store(&l->cancel, true);
    while (l->filling > 0) pthread_cond_wait(&l->done, &l->lock); /* at most one sample */
    l->epoch = l->next_epoch = epoch;
    l->position = l->next_position = position;
    l->assigned = l->consumed = 0;
    l->borrowed = false;
    l->paused = false;
    atomic_store(&l->cancel, false);
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    return LK_OK;
}

/* Workers block all signals, so that the program's threads handle them. */
static lk_status start_workers(lk_loader *l)
{
    sigset_t all, before;
    int      error = 0, i = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; i < l->config.workers && !error; i++) error = pthread_create(&l->threads[i], NULL, worker_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return LK_OK;
    int wanted = l->config.workers;
    l->config.workers = i - 1; /* those that lk_loader_free must join */
    return lk__fail(l->context, LK_ENOMEM, "cannot start worker %d of %d: %s", i, wanted, strerror(error));
}

/* Returns where the slot ends. */
static char *place_slot(lk_loader *l, slot *s, char *at)
{
    atomic_init(&s->reading, -1);
    for (int i = 0; i < l->maker.count; i++, at += l->layout.fields[i - 1]) s->fields[i] = at;
    s->indices = (int64_t *)at;
    return at + l->layout.indices;
}

static lk_status create_loader(lk_context *context, const lk_loader_config *config, bool indices, lk_loader **loader)
{
    lk_status  status = LK_OK;
    layout     memory_layout = plan_layout(config, indices);
    size_t     slots_at = lk__round_up(sizeof(lk_loader), LK__ALIGN);
    size_t     threads_at = slots_at + lk__round_up((size_t)memory_layout.slots * sizeof(slot), LK__ALIGN);
    size_t     own_bytes = threads_at + (size_t)config->workers * sizeof(pthread_t);
    lk_loader *l = lk__alloc(context, LK_MEMORY_OTHER, own_bytes);
    if (!l) return LK_ENOMEM;
    l->context = context;
    l->config = *config;
    l->layout = memory_layout;
    l->capacity = compute_capacity(config);
    l->own_bytes = own_bytes;
    l->slots = (slot *)((char *)l + slots_at);
    l->threads = (pthread_t *)((char *)l + threads_at);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->memory = lk__alloc(context, LK_MEMORY_LOADER, memory_layout.total);
    if (!l->memory) {
        l->config.workers = 0;
        status = LK_ENOMEM;
        goto fail;
    }
    char *at = l->memory;
    char *table = at + (size_t)memory_layout.slots * memory_layout.slot + memory_layout.order + memory_layout.ahead;
    if (!indices) lk__batch_init(&l->maker, &l->config, memory_layout.table ? table : NULL);
    for (int i = 0; i < memory_layout.slots; i++) at = place_slot(l, &l->slots[i], at);
    lk__order_init(&l->order, lk_dataset_count(config->dataset), config->seed, order_kind(config), (int64_t *)at);
    if (memory_layout.ahead) lk__order_make_ahead(&l->order, (int64_t *)(at + memory_layout.order));
    if ((status = start_workers(l)) < 0) goto fail;
    *loader = l;
    return LK_OK;
fail:
    lk_loader_free(l);
    return status;
}

lk_status lk_loader_create(lk_context *context, const lk_loader_config *config, lk_loader **loader)
{
    lk_loader_config read;
    *loader = NULL;
    lk_status status = lk__loader_read(context, config, &read);
    return status < 0 ? status : create_loader(context, &read, false, loader);
}

lk_status lk__loader_create_indices(lk_context *context, const lk_loader_config *config, lk_loader **loader)
{
    lk_loader_config read;
    *loader = NULL;
    lk_status status = lk__loader_read(context, config, &read);
    read.workers = read.prefetch = 0;
    return status < 0 ? status : create_loader(context, &read, true, loader);
}

void lk_loader_free(lk_loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    atomic_store(&l->cancel, true);
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->config.workers; i++) pthread_join(l->threads[i], NULL);
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    lk__free(l->context, LK_MEMORY_LOADER, l->memory, l->layout.total);
    lk__free(l->context, LK_MEMORY_OTHER, l, l->own_bytes);
}
