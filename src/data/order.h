/* data/order.h - the order of samples in an epoch, over all ranks. */
#ifndef LK__ORDER_H
#define LK__ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lk__data_order {
    int64_t  count;
    uint64_t seed;
    bool     shuffle;
    int64_t  epoch;   /* of indices; -1 before the first */
    int64_t *indices; /* count of them when shuffling; borrowed */
} lk__data_order;

size_t lk__order_bytes(int64_t count, bool shuffle); /* of indices */
void   lk__order_init(lk__data_order *order, int64_t count, uint64_t seed, bool shuffle, int64_t *indices);
void   lk__order_epoch(lk__data_order *order, int64_t epoch); /* generates that epoch's order unless it is current */

static inline int64_t lk__order_index(const lk__data_order *order, int64_t position)
{
    return order->shuffle ? order->indices[position] : position;
}

#endif
