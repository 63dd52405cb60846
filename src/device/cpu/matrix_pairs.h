/* device/cpu/matrix_pairs.h - packs panels for the tiles of x86-64, in which groups of B are pairs of values of k
 * (MATRIX_PAIRS). Vectors of 16 pairs are transposed in registers, 16 × 16 pairs at a time. */
#ifndef LK__MATRIX_PAIRS_H
#define LK__MATRIX_PAIRS_H

#include "device/cpu/cpu.h"

enum { PAIR_LINES = 16, PAIR_DEPTH = 32 }; /* of 16 × 16 pairs: lines, and k's */

typedef uint32_t pair_lines __attribute__((vector_size(PAIR_LINES * sizeof(uint32_t))));
typedef uint16_t pair_words __attribute__((vector_size(PAIR_LINES * sizeof(uint32_t))));

/* Swaps blocks of `apart` by `apart` pairs across the diagonal. */
#define SWAP_PAIRS(r, apart, low, high)                                  \
    for (int i = 0; i < PAIR_LINES; i++) {                               \
        if (i & (apart)) continue;                                       \
        pair_lines first = (r)[i], second = (r)[i + (apart)];            \
        (r)[i] = __builtin_shufflevector(first, second, low);            \
        (r)[i + (apart)] = __builtin_shufflevector(first, second, high); \
    }
#define ARGUMENTS(...) __VA_ARGS__

/* r[i][j] becomes r[j][i]. */
static inline __attribute__((always_inline)) void transpose_pairs(pair_lines r[PAIR_LINES])
{
    SWAP_PAIRS(r, 8, ARGUMENTS(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
               ARGUMENTS(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    SWAP_PAIRS(r, 4, ARGUMENTS(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
               ARGUMENTS(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    SWAP_PAIRS(r, 2, ARGUMENTS(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
               ARGUMENTS(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    SWAP_PAIRS(r, 1, ARGUMENTS(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
               ARGUMENTS(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
}

/* 16 lines, `line` elements apart, of which 32 k's are contiguous: pair p of all lines goes to `to` + p * to_pair. */
static inline __attribute__((always_inline)) void matrix_take_lines(ELEMENT *to, int64_t to_pair, const ELEMENT *from,
                                                                    int64_t line)
{
    pair_lines r[PAIR_LINES];
    for (int i = 0; i < PAIR_LINES; i++) memcpy(&r[i], from + i * line, sizeof r[i]);
    transpose_pairs(r);
    for (int p = 0; p < PAIR_LINES; p++) memcpy(to + p * to_pair, &r[p], sizeof r[p]);
}

/* 16 lines, contiguous, and `count` k's, at most 32, `step` elements apart: k q of line i goes to to[i * 32 + q]. The
 * count is a constant where speed matters. */
static inline __attribute__((always_inline)) void matrix_turn_lines(ELEMENT *to, const ELEMENT *from, int64_t step,
                                                                    const int64_t count)
{
    typedef uint16_t half __attribute__((vector_size(PAIR_LINES * sizeof(uint16_t))));
    pair_lines       r[PAIR_LINES];
    for (int64_t p = 0; p < PAIR_LINES; p++) {
        half first = {0}, second = {0};
        if (2 * p < count) memcpy(&first, from + 2 * p * step, sizeof first);
        if (2 * p + 1 < count) memcpy(&second, from + (2 * p + 1) * step, sizeof second);
        r[p] = __builtin_convertvector(first, pair_lines) | __builtin_convertvector(second, pair_lines) << 16;
    }
    transpose_pairs(r);
    for (int i = 0; i < PAIR_LINES; i++) memcpy(to + i * PAIR_DEPTH, &r[i], (size_t)count * sizeof *to);
}

/* to[column][k], 32 columns of two k's, from columns that are contiguous in memory, `step` elements from a k to the
 * next. */
static inline __attribute__((always_inline)) void matrix_take_many_columns(ELEMENT *to, const ELEMENT *from,
                                                                           int64_t step)
{
    pair_words first, second;
    memcpy(&first, from, sizeof first);
    memcpy(&second, from + step, sizeof second);
    pair_words low = __builtin_shufflevector(first, second, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8,
                                             40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
    pair_words high = __builtin_shufflevector(first, second, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23,
                                              55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
    memcpy(to, &low, sizeof low);
    memcpy(to + PAIR_DEPTH, &high, sizeof high);
}

/* The same of four columns. */
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

#undef SWAP_PAIRS
#undef ARGUMENTS
#endif
