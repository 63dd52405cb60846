/* device/cpu/matrix_vdpbf16ps.h - the tile of products with VDPBF16PS (x86-64 with AVX512_BF16): what matrix_bfmmla.h
 * describes. Where EMULATED is 1, the instruction is that of bf16_instructions.h. Include unscheduled.h first.
 *
 * A pair of k's of one row of A is multiplied with the pairs of 16 columns of B; sums add their pairs in order. */
#ifndef LK__MATRIX_VDPBF16PS_H
#define LK__MATRIX_VDPBF16PS_H

#include "device/cpu/cpu.h"

#define MATRIX_SKINNY 0
#define MATRIX_SKINNY_TILES 0
#define MATRIX_NARROW 0
#define MATRIX_PAIRS 1

/* 24 accumulators of 16 sums, 3 vectors of B and one of A fit the 32 registers. */
enum { MATRIX_ROWS = 8, MATRIX_COLUMNS = 48, MATRIX_A_GROUP = 2, MATRIX_B_GROUP = 2, MATRIX_UNIT = 2 };

/* There is nothing to prepare. */
static inline void matrix_begin(void) {}
static inline void matrix_end(void) {}

#endif

#if defined(LK__MATRIX_TILE) && !defined(LK__MATRIX_VDPBF16PS_TILE)
#define LK__MATRIX_VDPBF16PS_TILE

#include "device/cpu/matrix_pairs.h"
#if EMULATED
#include "device/cpu/bf16_instructions.h"
#else
#include <immintrin.h>
#endif

enum { SUMS = 16, VECTORS_OF_COLUMNS = MATRIX_COLUMNS / SUMS };
typedef float    sums __attribute__((vector_size(SUMS * sizeof(float))));
typedef float    sums_unaligned __attribute__((vector_size(SUMS * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef uint32_t pairs __attribute__((vector_size(SUMS * sizeof(uint32_t))));
typedef uint32_t pairs_unaligned __attribute__((vector_size(SUMS * sizeof(uint32_t)), aligned(2), may_alias));

/* By address: without AVX-512 there is no rule by which functions take such vectors. */
INLINE void add_dots(sums *sum, const pairs *columns, const ELEMENT *row)
{
#if EMULATED
    for (int lane = 0; lane < SUMS; lane++) {
        uint32_t pair = (*columns)[lane];
        ELEMENT  column[2];
        memcpy(column, &pair, sizeof column);
        (*sum)[lane] = lk__vdpbf16ps((*sum)[lane], column, row);
    }
#else
    int32_t pair;
    memcpy(&pair, row, sizeof pair);
    *sum = (sums)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)*columns, (__m512bh)_mm512_set1_epi32(pair));
#endif
}

INLINE void matrix_block(const ELEMENT *a, int64_t depth, const ELEMENT *b, const bool add, REAL *c, int64_t c_row)
{
    sums sum[MATRIX_ROWS][VECTORS_OF_COLUMNS];
    UNROLL
    for (int i = 0; i < MATRIX_ROWS; i++) {
        UNROLL
        for (int j = 0; j < VECTORS_OF_COLUMNS; j++) sum[i][j] = (sums){0};
    }
    for (int64_t k = 0; k < depth; k += 2, a += 2 * MATRIX_ROWS, b += 2 * MATRIX_COLUMNS) {
        pairs columns[VECTORS_OF_COLUMNS];
        UNROLL
        for (int j = 0; j < VECTORS_OF_COLUMNS; j++) columns[j] = (pairs) * (const pairs_unaligned *)(b + 2 * SUMS * j);
        UNROLL
        for (int i = 0; i < MATRIX_ROWS; i++) {
            UNROLL
            for (int j = 0; j < VECTORS_OF_COLUMNS; j++) add_dots(&sum[i][j], &columns[j], a + 2 * i);
        }
    }
    UNROLL
    for (int i = 0; i < MATRIX_ROWS; i++) {
        UNROLL
        for (int j = 0; j < VECTORS_OF_COLUMNS; j++) {
            sums_unaligned *to = (sums_unaligned *)(c + i * c_row + SUMS * j);
            *to = (sums_unaligned)(add ? (sums)*to + sum[i][j] : sum[i][j]);
        }
    }
}

#endif
