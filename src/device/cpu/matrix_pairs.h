/* device/cpu/matrix_pairs.h - packing for tiles whose groups of B are pairs of k's: those of x86-64. */
#ifndef LK__MATRIX_PAIRS_H
#define LK__MATRIX_PAIRS_H

#include "device/cpu/cpu.h"

/* to[column][k], four columns of two k's, from columns that are contiguous in memory, `step` elements from a k to the
 * next. */
static inline __attribute__((always_inline)) void matrix_take_columns(ELEMENT *to, const ELEMENT *from, int64_t step)
{
    typedef uint16_t four __attribute__((vector_size(8)));
    typedef uint16_t eight __attribute__((vector_size(16)));
    four             first, second;
    memcpy(&first, from, sizeof first);
    memcpy(&second, from + step, sizeof second);
    eight both = __builtin_shufflevector(first, second, 0, 4, 1, 5, 2, 6, 3, 7);
    memcpy(to, &both, sizeof both);
}

#endif
