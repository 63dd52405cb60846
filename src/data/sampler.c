/* sampler.c - the order of an epoch: Fisher and Yates's shuffle by counter-based numbers, a function of (seed,
 * epoch). */
#include "data/sampler.h"

#include "base/random.h"

size_t lk__sampler_bytes(int64_t count, bool shuffle) { return shuffle ? (size_t)count * sizeof(int64_t) : 0; }

void lk__sampler_init(lk__sampler *s, int64_t count, uint64_t seed, bool shuffle, int64_t *order)
{
    *s = (lk__sampler){.count = count, .seed = seed, .shuffle = shuffle, .epoch = -1, .order = order};
}

void lk__sampler_epoch(lk__sampler *s, int64_t epoch)
{
    if (s->epoch == epoch) return;
    s->epoch = epoch;
    if (!s->shuffle) return;
    lk__random random = lk__random_make(s->seed, LK__FOR_SHUFFLE, (uint64_t)epoch);
    for (int64_t i = 0; i < s->count; i++) s->order[i] = i;
    for (int64_t i = s->count - 1; i > 0; i--) {
        uint32_t index = 0;
        int64_t  j = (int64_t)lk__random_below(&random, (uint64_t)i, &index, (uint64_t)i + 1);
        int64_t  moved = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = moved;
    }
}
