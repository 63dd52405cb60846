/* on_device.c - where batches are made: by the host's loader; by the device, from the whole set in its memory; or by
 * the device, from bytes that the loader reads and the host sends as they are. The numbers are the same, bit for
 * bit. */
#include "train/trainer.h"

enum { SHARE = 4 }; /* auto: sets of at most 1 / SHARE of the memory that is free beside the plan */

/* What is free once the plan's memory is allocated; SIZE_MAX: not known. */
static size_t left_beside(const lk_plan *plan)
{
    size_t available, total, planned = 0;
    plan->device->backend->memory.available(plan->device, &available, &total);
    if (total == 0) return SIZE_MAX; /* it was opened for plans alone */
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) planned += plan->memory[kind];
    return available > planned ? available - planned : 0;
}

static lk_status refuse(lk_context *c, const char *why)
{
    return lk__fail(c, LK_EINVAL,
                    "the data cannot be kept on the device: %s; set data_on_device (--data-on-device) to auto or no",
                    why);
}

static lk_status require_both(lk_context *c, const lk_plan *plan, lk__trainer_sets *sets)
{
    const lk_loader_config *loaders = sets->loaders;
    size_t                  bytes = 0, left;
    for (int i = 0; i < 2; i++) {
        const char *why = loaders[i].dataset ? lk__gather_refused(plan->device, &loaders[i]) : NULL;
        if (why) return refuse(c, why);
        if (!loaders[i].dataset) continue;
        sets->sources[i] = LK__BATCHES_FROM_SET;
        bytes += lk__gather_bytes(&loaders[i], false);
    }
    if (bytes <= (left = left_beside(plan))) return LK_OK;
    return lk__fail(
        c, LK_EINVAL,
        "the data does not fit on the device: it takes %.1f MiB, and the plan leaves %.1f MiB free; set data_on_device "
        "(--data-on-device) to auto or no",
        (double)bytes / 1048576, (double)left / 1048576);
}

lk_status lk__trainer_choose(lk_context *c, const lk_trainer_config *config, const lk_plan *plan,
                             lk__trainer_sets *sets)
{
    size_t left, taken = 0;
    sets->sources[0] = sets->sources[1] = LK__BATCHES_BY_HOST;
    switch (config->data_on_device) {
    case LK_DATA_ON_HOST: return LK_OK;
    case LK_DATA_ON_DEVICE: return require_both(c, plan, sets);
    case LK_DATA_AUTO: break;
    default: return lk__fail(c, LK_EINVAL, "data_on_device is %d, which is invalid", config->data_on_device);
    }
    if (!plan->device->backend->memory.available) return LK_OK; /* its memory is the host's */
    left = left_beside(plan) / SHARE;
    for (int i = 0; i < 2; i++) {
        const lk_loader_config *loader = &sets->loaders[i];
        if (!loader->dataset) continue;
        size_t bytes = lk__gather_bytes(loader, false);
        /* A set that is read once, because nothing is trained, is not copied as a whole. */
        if (config->train && !lk__gather_refused(plan->device, loader) && bytes <= left - taken) {
            taken += bytes;
            sets->sources[i] = LK__BATCHES_FROM_SET;
        } else if (lk__gather_sends_bytes(plan->device, loader)) {
            sets->sources[i] = LK__BATCHES_FROM_BYTES;
        }
    }
    return LK_OK;
}

void lk__trainer_set_source(lk_plan *plan, const lk__trainer_sets *sets)
{
    const lk__trainer_batch_source *sources = sets->sources;
    lk__device_gather               gather[2], *used[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (sources[i] == LK__BATCHES_BY_HOST) continue;
        used[i] = &gather[i];
        lk__gather_describe(&sets->loaders[i], sources[i] == LK__BATCHES_FROM_BYTES, used[i]);
    }
    lk__plan_set_source(plan, used[0], used[1]);
}

void lk__trainer_data_bytes(lk_plan *plan, const lk__trainer_sets *sets, size_t memory[LK_MEMORY_COUNT])
{
    const lk_loader_config         *loaders = sets->loaders;
    const lk__trainer_batch_source *sources = sets->sources;
    lk__trainer_set_source(plan, sets);
    memory[LK_MEMORY_STAGING] = plan->memory[LK_MEMORY_STAGING];
    lk__plan_set_source(plan, NULL, NULL); /* the caller may bind inputs */
    memory[LK_MEMORY_LOADER] = memory[LK_MEMORY_DATA] = 0;
    for (int i = 0; i < 2; i++) {
        if (!loaders[i].dataset) continue;
        lk_loader_config stored = lk__gather_stored(&loaders[i]);
        memory[LK_MEMORY_LOADER] += sources[i] == LK__BATCHES_FROM_SET     ? lk__loader_indices_bytes(&loaders[i])
                                    : sources[i] == LK__BATCHES_FROM_BYTES ? lk_loader_bytes(&stored)
                                                                           : lk_loader_bytes(&loaders[i]);
        if (sources[i] != LK__BATCHES_BY_HOST)
            memory[LK_MEMORY_DATA] += lk__gather_bytes(&loaders[i], sources[i] == LK__BATCHES_FROM_BYTES);
    }
}

lk_status lk__trainer_open_data(lk_trainer *t)
{
    const lk_loader_config         *loaders = t->sets.loaders;
    const lk__trainer_batch_source *sources = t->sets.sources;
    const lk__device_gather        *gather[2] = {NULL, NULL};
    lk_loader                     **opened[2] = {&t->train, &t->test};
    lk_status                       status = LK_OK;
    for (int i = 0; i < 2 && status >= 0; i++) {
        bool             bytes = sources[i] == LK__BATCHES_FROM_BYTES;
        lk_loader_config stored = loaders[i];
        if (!loaders[i].dataset) continue;
        if (bytes) stored = lk__gather_stored(&loaders[i]);
        status = sources[i] == LK__BATCHES_FROM_SET ? lk__loader_create_indices(t->context, &stored, opened[i])
                                                    : lk_loader_create(t->context, &stored, opened[i]);
        if (status < 0 || sources[i] == LK__BATCHES_BY_HOST) continue;
        status = lk__gather_create(t->plan->device, &loaders[i], bytes, &t->on_device[i]);
        gather[i] = &t->on_device[i].gather;
        if (!bytes)
            lk__log(t->context, LK_LOG_DEBUG, "%.1f MiB of %s data is on the device",
                    (double)t->on_device[i].bytes / 1048576, i == 0 ? "training" : "test");
    }
    return status < 0 ? status : lk__program_set_sources(t->program, gather[0], gather[1]);
}

bool lk_trainer_data_on_device(const lk_trainer *t) { return t->sets.sources[0] == LK__BATCHES_FROM_SET; }
