/* data/sampler.h - which sample stands where in an epoch. */
#ifndef LK__SAMPLER_H
#define LK__SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lk__sampler {
    int64_t  count;
    uint64_t seed;
    bool     shuffle;
    int64_t  epoch; /* that order is of; -1 before the first */
    int64_t *order; /* count of them when shuffling; borrowed */
} lk__sampler;

size_t lk__sampler_bytes(int64_t count, bool shuffle); /* that order needs */
void   lk__sampler_init(lk__sampler *sampler, int64_t count, uint64_t seed, bool shuffle, int64_t *order);
void   lk__sampler_epoch(lk__sampler *sampler, int64_t epoch); /* makes that epoch's order; nothing when it is there */

static inline int64_t lk__sampler_index(const lk__sampler *sampler, int64_t position)
{
    return sampler->shuffle ? sampler->order[position] : position;
}

#endif
