/* sampler.h - assigns samples to ranks, for training loops that read samples themselves. A loader needs no sampler: it
 * prepares a share of each batch (lk_loader_config.parts). */
#ifndef LOCKSTEP_SAMPLER_H
#define LOCKSTEP_SAMPLER_H

#include <lockstep/base.h>
#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_sampler lk_sampler; /* use from one thread */

typedef struct lk_sampler_config {
    size_t   size LK_ZERO;      /* sizeof this struct; set by LK_SAMPLER_CONFIG_INIT */
    int64_t  count LK_ZERO;     /* samples of the data set */
    int      world LK_ZERO;     /* ranks that share them */
    int      rank LK_ZERO;      /* 0 … world-1 */
    uint64_t seed LK_ZERO;      /* of the shuffle; must be the same on all ranks */
    bool     shuffle LK_ZERO;   /* a new order each epoch, from (seed, epoch): the loader's order */
    bool     drop_last LK_ZERO; /* skip the last count % world samples, so that all ranks have the same number */
    /* Return the same lists as PyTorch's DistributedSampler with the same arguments: shuffled like torch.randperm (on
     * the CPU, seeded with seed + epoch; for any count) and, without drop_last, padded by repetition to the same
     * length. */
    bool compatible LK_ZERO;
    /* with shuffle: use the order in which a loader reads text:, jsonl: or tokens: (lk_dataset_text is true); for more
     * than 65536 samples, this order is computed as needed and takes no memory */
    bool text LK_ZERO;
} lk_sampler_config;
#define LK_SAMPLER_CONFIG_INIT {.size = sizeof(lk_sampler_config), .world = 1}

/* Allocates all memory (LK_MEMORY_LOADER): the rank's list and, when shuffling, the order of all samples, unless it is
 * computed as needed: see `text`; also above 2^28 samples, except with `compatible`. */
LK_API lk_status lk_sampler_create(lk_context *context, const lk_sampler_config *config, lk_sampler **sampler);
LK_API void      lk_sampler_free(lk_sampler *sampler); /* NULL is fine */

/* This rank's samples of that epoch, in order: position p of the epoch belongs to rank p % world. Over all ranks, every
 * sample occurs exactly once (except with drop_last or the padding of `compatible`), and the numbers of samples per
 * rank differ by at most one. Epochs may be requested in any order. *indices is borrowed until the next call or
 * lk_sampler_free. *count is the same in every epoch, and may be 0. */
LK_API lk_status lk_sampler_epoch(lk_sampler *sampler, int64_t epoch, const int64_t **indices, int64_t *count);

LK_END_DECLS
#endif
