/* base/normal_f32.h - the normal numbers of base/normal.h as f32: the same bits, in less than half the time. */
#ifndef LK__NORMAL_F32_H
#define LK__NORMAL_F32_H

#include "base/random.h"

/* out[4 j + k] is (float)(deviation · x): x is the cosine (k = 0) and the sine (k = 1) that lk__normal_batch makes from
 * bits[0][j] and bits[1][j], and those of bits[2][j] and bits[3][j] (k = 2, 3). */
void lk__normal_f32(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation, float out[4 * LK__RANDOM_BATCH]);

#endif
