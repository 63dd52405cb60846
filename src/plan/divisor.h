/* plan/divisor.h - the extent of an axis that a message proposes instead of one that does not divide something. */
#ifndef LK__PLAN_DIVISOR_H
#define LK__PLAN_DIVISOR_H

#include <stdint.h>

/* The divisor of n above 1 that is nearest to extent, which is not one itself; of two equally near, the smaller. 1:
 * there is none, since n is 1 or less. */
int64_t lk__nearest_divisor(int64_t n, int64_t extent);

#endif
