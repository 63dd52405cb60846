/* order.c - the order of an epoch: a Fisher-Yates shuffle by counter-based random numbers, a function of (seed, epoch). */
#include "data/order.h"

#include "base/random.h"

size_t lk__order_bytes(int64_t count, bool shuffle) { return shuffle ? (size_t)count * sizeof(int64_t) : 0; }

void lk__order_init(lk__data_order *o, int64_t count, uint64_t seed, bool shuffle, int64_t *indices)
{
    *o = (lk__data_order){.count = count, .seed = seed, .shuffle = shuffle, .epoch = -1, .indices = indices};
}

void lk__order_epoch(lk__data_order *o, int64_t epoch)
{
    if (o->epoch == epoch) return;
    o->epoch = epoch;
    if (!o->shuffle) return;
    lk__random random = lk__random_make(o->seed, LK__FOR_SHUFFLE, (uint64_t)epoch);
    for (int64_t i = 0; i < o->count; i++) o->indices[i] = i;
    for (int64_t i = o->count - 1; i > 0; i--) {
        uint32_t index = 0;
        int64_t  j = (int64_t)lk__random_below(&random, (uint64_t)i, &index, (uint64_t)i + 1);
        int64_t  moved = o->indices[i];
        o->indices[i] = o->indices[j];
        o->indices[j] = moved;
    }
}
