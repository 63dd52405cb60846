/* base/normal.h - normal random numbers by the Box-Muller method. It uses arithmetic only, so the bits do not depend on
 * the machine, its mathematics library or vectorisation. The error is at most 4e-16 times the radius. */
#ifndef LK__NORMAL_H
#define LK__NORMAL_H

#include "base/random.h"

/* Two of each pair of draws: cosine[j] and sine[j] times sqrt(-2 log u), u of radius[j], at the angle 2 pi v, v of
 * turn[j]. */
void lk__normal_batch(const uint32_t radius[LK__RANDOM_BATCH], const uint32_t turn[LK__RANDOM_BATCH],
                      double cosine[LK__RANDOM_BATCH], double sine[LK__RANDOM_BATCH]);

#endif
