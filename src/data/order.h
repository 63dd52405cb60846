/* data/order.h - the order of samples in an epoch, over all ranks: a function of (seed, epoch) and the number of
 * samples. */
#ifndef LK__ORDER_H
#define LK__ORDER_H

#include "base/random.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A listed order is a shuffled list of all indices. A computed one needs no memory: an index is a function of its
 * position. */
typedef enum lk__order_kind { LK__ORDER_SEQUENTIAL, LK__ORDER_LISTED, LK__ORDER_COMPUTED } lk__order_kind;

enum {
    LK__ORDER_SMALL = 1 << 16,   /* up to this many samples, an order is always listed */
    LK__ORDER_LARGEST = 1 << 28, /* above this many, it is always computed: the list would have 2 GiB */
    LK__ORDER_AHEAD = 1 << 22,   /* up to this many, a listed order may be made ahead, in a second list */
    LK__ORDER_ROUNDS = 8,
};

typedef struct lk__data_order {
    int64_t        count;
    uint64_t       seed;
    lk__order_kind kind;
    int64_t        epoch;   /* of indices or keys; -1 before the first */
    int64_t       *indices; /* listed: count of them; borrowed. NULL otherwise */
    uint64_t       keys[LK__ORDER_ROUNDS];
    /* listed: count indices, of the epoch after the epoch of `indices`; NULL: not made ahead */
    int64_t   *ahead;
    int64_t    ahead_epoch;  /* of ahead; -1: none */
    int64_t    listed, left; /* of ahead: how many indices it has, and how many of these are not shuffled yet */
    lk__random ahead_random;
    int        half; /* computed: bits of half of a number below the power of four that is not below count */
} lk__data_order;

/* `computed`: the data set asks for it (many small samples, such as the windows of a text). */
lk__order_kind lk__order_choose(int64_t count, bool shuffle, bool computed);
size_t         lk__order_bytes(int64_t count, lk__order_kind kind); /* of indices */
void lk__order_init(lk__data_order *order, int64_t count, uint64_t seed, lk__order_kind kind, int64_t *indices);
void lk__order_epoch(lk__data_order *order, int64_t epoch); /* generates that epoch's order unless it is current */
/* The order of the next epoch is created step by step, from now on, in a second list of lk__order_bytes, which is
 * borrowed. */
void lk__order_make_ahead(lk__data_order *order, int64_t *list);
/* A part of it: about `samples` indices. Does nothing where it is not made ahead. */
void    lk__order_advance(lk__data_order *order, int64_t samples);
int64_t lk__order_compute(const lk__data_order *order, int64_t position); /* of a computed order */

static inline int64_t lk__order_index(const lk__data_order *order, int64_t position)
{
    if (order->indices) return order->indices[position];
    return order->kind == LK__ORDER_COMPUTED ? lk__order_compute(order, position) : position;
}

#endif
