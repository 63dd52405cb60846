/* sampler.h - which sample goes to which rank, for loops that fetch their samples themselves. A loader needs none: it
 * makes a share of each batch (lk_loader_config.parts). */
#ifndef LOCKSTEP_SAMPLER_H
#define LOCKSTEP_SAMPLER_H

#include <lockstep/base.h>
#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_sampler lk_sampler; /* use from one thread */

typedef struct lk_sampler_config {
    size_t   size;  /* sizeof this struct; set by LK_SAMPLER_CONFIG_INIT */
    int64_t  count; /* samples of the data set */
    int      world; /* ranks that share them */
    int      rank;  /* 0 … world-1: whose samples these are */
    uint64_t seed;  /* of shuffling; the same on all ranks */
    bool     shuffle;   /* a new order each epoch, from (seed, epoch): the loader's order */
    bool     drop_last; /* leave out the count % world last, so that all ranks have equally many */
    /* The lists of PyTorch's DistributedSampler of the same arguments, index by index: shuffled by torch.randperm (of
     * the CPU, seeded with seed + epoch; any count), and without drop_last padded by repetition to equally many. */
    bool compatible;
} lk_sampler_config;
#define LK_SAMPLER_CONFIG_INIT                                             \
    {                                                                      \
        sizeof(lk_sampler_config), 0, 1, 0, 0, false, false, false         \
    }

/* All memory is taken here (LK_MEMORY_LOADER): the rank's list and, when shuffling, the order of all. */
LK_API lk_status lk_sampler_create(lk_context *context, const lk_sampler_config *config, lk_sampler **sampler);
LK_API void      lk_sampler_free(lk_sampler *sampler); /* NULL is fine */

/* This rank's samples of that epoch, in order: position p of the epoch is rank p % world's. Over all ranks every sample
 * comes exactly once (but for compatible padding and drop_last), and ranks differ by one sample at most. Any epoch, in
 * any order; borrowed until the next call or lk_sampler_free. *count is the same in every epoch, and may be 0. */
LK_API lk_status lk_sampler_epoch(lk_sampler *sampler, int64_t epoch, const int64_t **indices, int64_t *count);

LK_END_DECLS
#endif
