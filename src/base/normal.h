/* base/normal.h - normal random numbers by Box and Muller's method, from arithmetic alone: the same bits on every
 * machine, whichever mathematics library it has, and in loops that a compiler vectorises. Within 4e-16 of the exact
 * values, times their radius. */
#ifndef LK__NORMAL_H
#define LK__NORMAL_H

#include "base/random.h"

/* Two of each pair of draws: cosine[j] and sine[j] times sqrt(-2 log u), u of radius[j], at the angle 2 pi v, v of
 * turn[j]. */
void lk__normal_batch(const uint32_t radius[LK__RANDOM_BATCH], const uint32_t turn[LK__RANDOM_BATCH],
                      double cosine[LK__RANDOM_BATCH], double sine[LK__RANDOM_BATCH]);

#endif
