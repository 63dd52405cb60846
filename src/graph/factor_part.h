/* graph/factor_part.h - parts of operands that are cut along a factor: their extents, and where their elements are in
 * the whole. */
#ifndef LK__FACTOR_PART_H
#define LK__FACTOR_PART_H

#include "graph/factor.h"

/* Elements first … first + length - 1 of a factor. */
typedef struct lk__factor_cut {
    int     factor; /* -1: nothing is cut */
    int64_t first, length;
} lk__factor_cut;

/* The extent of a dimension's part; `whole`: of the dimension. */
int64_t lk__factor_part_extent(const lk__factors *factors, const lk__factor_dim *dim, int64_t whole,
                               lk__factor_cut cut);
/* Where element i of the part is in the whole dimension. */
int64_t lk__factor_part_index(const lk__factors *factors, const lk__factor_dim *dim, int64_t i, lk__factor_cut cut);

/* Calls visit with the index of each element of an operand's part and with the index of the same element in the
 * whole. */
typedef void (*lk__factor_visit)(void *user, const int64_t *part, const int64_t *whole);
void lk__factor_part_visit(const lk__factors *factors, const lk__factor_dim dims[LK_MAX_RANK],
                           const lk__factor_shape *whole, lk__factor_cut cut, lk__factor_visit visit, void *user);

#endif
