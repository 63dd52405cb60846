/* device/cpu/matrix_bfmmla.h - the tile of products with BFMMLA (arm64 with FEAT_BF16). Where EMULATED is 1, its
 * instructions are those of bf16_instructions.h. Include unscheduled.h first.
 *
 * What a file matrix_NAME.h defines for an instruction set that multiplies bf16 (LK_MATRIX=NAME, CMakeLists.txt):
 *   MATRIX_ROWS, MATRIX_COLUMNS      of a tile of C
 *   MATRIX_A_GROUP, MATRIX_B_GROUP   k's of one row of A, or column of B, that are next to each other in a panel
 *   MATRIX_UNIT                      a panel's depth is a multiple of it, the missing k's zero
 *   MATRIX_SKINNY                    1: products with few rows have their own kernels (skinny_matrix.c); 0: they are
 *                                    tiles, too
 *   MATRIX_SKINNY_TILES              1: these take B's columns as the rows of tiles (skinny_tiles_matrix.c)
 *   MATRIX_PAIRS                     1: B_GROUP is 2, and panels are packed by matrix_pairs.h
 *   matrix_begin, matrix_end         before and after a thread's tiles, not nested
 *   MATRIX_STATE                     if it is defined: variables of these two, which micro_large_matrix.c has
 * and, where LK__MATRIX_TILE is defined before it is included:
 *   matrix_block                     a tile's sum over one block of k
 *   MATRIX_NARROW                    1: matrix_narrow, the same of 4 or 8 columns of a panel, has fewer instructions;
 *                                    0: the missing columns of a tile are computed, too
 *   matrix_take_columns              packs a group of B_GROUP k's of 4 columns that are contiguous along the columns
 *   matrix_sums, matrix_dot, matrix_store_sums, matrix_add_rows, MATRIX_DOT_COLUMNS, MATRIX_VECTOR   for skinny
 *                                    products (skinny_matrix.c)
 *   matrix_skinny, SKINNY_LINES, matrix_skinny_columns   the same where MATRIX_SKINNY_TILES is 1
 * A panel of A has MATRIX_ROWS rows: element (row, k) is at [k / A_GROUP][row][k % A_GROUP]. A panel of B has
 * MATRIX_COLUMNS columns: (k, column) is at [k / B_GROUP][column][k % B_GROUP].
 *
 * A result has the same bits wherever it is in a tile, and however it is computed: BFMMLA adds to each sum the two
 * products of k and k + 1, then those of k + 2 and k + 3; BFDOT does the first half of that. */
#ifndef LK__MATRIX_BFMMLA_H
#define LK__MATRIX_BFMMLA_H

#include "device/cpu/cpu.h"

#define MATRIX_SKINNY 1
#define MATRIX_SKINNY_TILES 0
#define MATRIX_NARROW 1
#define MATRIX_PAIRS 0

/* 24 accumulators of 2 × 2 sums, 4 vectors of A and at least one of B fit the 32 registers; two rows or columns of four
 * k's are a vector. */
enum { MATRIX_ROWS = 8, MATRIX_COLUMNS = 12, MATRIX_A_GROUP = 4, MATRIX_B_GROUP = 4, MATRIX_UNIT = 4 };

/* There is nothing to prepare. */
static inline void matrix_begin(void) {}
static inline void matrix_end(void) {}

#endif

#if defined(LK__MATRIX_TILE) && !defined(LK__MATRIX_BFMMLA_TILE)
#define LK__MATRIX_BFMMLA_TILE

/* Eight bf16, and the instructions of FEAT_BF16. */
#if EMULATED
#include "device/cpu/bf16_instructions.h"

typedef uint16x8_t eight_bf16;

INLINE float32x4_t add_2x2(float32x4_t c, eight_bf16 a, eight_bf16 b)
{
    float   sums[4];
    ELEMENT rows[8], columns[8];
    vst1q_f32(sums, c);
    vst1q_u16(&rows->bits, a);
    vst1q_u16(&columns->bits, b);
    lk__bfmmla(sums, rows, columns);
    return vld1q_f32(sums);
}
/* c + the products of the pair of k's in a lane of `a` with those of four columns. */
INLINE float32x4_t add_pair(float32x4_t c, uint16x8_t b, eight_bf16 a, const int lane)
{
    float   sums[4];
    ELEMENT row[8], columns[8];
    vst1q_f32(sums, c);
    vst1q_u16(&row->bits, a);
    vst1q_u16(&columns->bits, b);
    for (int j = 0; j < 4; j++) sums[j] = lk__bf16_dot_arm(sums[j], columns + 2 * j, row + 2 * lane);
    return vld1q_f32(sums);
}
#else
typedef bfloat16x8_t eight_bf16;

INLINE float32x4_t add_2x2(float32x4_t c, eight_bf16 a, eight_bf16 b) { return vbfmmlaq_f32(c, a, b); }
/* c + the products of the pair of k's in a lane of `a` with those of four columns. */
INLINE float32x4_t add_pair(float32x4_t c, uint16x8_t b, eight_bf16 a, const int lane)
{
    eight_bf16 columns = (eight_bf16)b;
    switch (lane) {
    case 0: return vbfdotq_laneq_f32(c, columns, a, 0);
    case 1: return vbfdotq_laneq_f32(c, columns, a, 1);
    case 2: return vbfdotq_laneq_f32(c, columns, a, 2);
    default: return vbfdotq_laneq_f32(c, columns, a, 3);
    }
}
#endif
INLINE eight_bf16 load_eight(const ELEMENT *p) { return (eight_bf16)vld1q_u16(&p->bits); }

enum { PAIRS_OF_ROWS = MATRIX_ROWS / 2, PAIRS_OF_COLUMNS = MATRIX_COLUMNS / 2 };

/* Two 2 × 2 sums side by side: their upper row, or their lower one, of four columns. */
INLINE float32x4_t join_rows(float32x4_t left, float32x4_t right, const bool lower)
{
    float64x2_t x = (float64x2_t)left, y = (float64x2_t)right;
    return (float32x4_t)(lower ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
}

/* c[i*c_row + j] = (or +=) Σ a(i, k) b(k, j) over `depth` k's, a multiple of MATRIX_UNIT, of a whole tile. The sum
 * starts at 0 and is then added. */
INLINE void matrix_block(const ELEMENT *a, int64_t depth, const ELEMENT *b, const bool add, REAL *c, int64_t c_row)
{
    float32x4_t sum[PAIRS_OF_ROWS][PAIRS_OF_COLUMNS];
    UNROLL
    for (int i = 0; i < PAIRS_OF_ROWS; i++) {
        UNROLL
        for (int j = 0; j < PAIRS_OF_COLUMNS; j++) sum[i][j] = vdupq_n_f32(0);
    }
    for (int64_t k = 0; k < depth; k += 4, a += 4 * MATRIX_ROWS, b += 4 * MATRIX_COLUMNS) {
        eight_bf16 rows[PAIRS_OF_ROWS];
        UNROLL
        for (int i = 0; i < PAIRS_OF_ROWS; i++) rows[i] = load_eight(a + 8 * i);
        UNROLL
        for (int j = 0; j < PAIRS_OF_COLUMNS; j++) {
            eight_bf16 columns = load_eight(b + 8 * j);
            UNROLL
            for (int i = 0; i < PAIRS_OF_ROWS; i++) sum[i][j] = add_2x2(sum[i][j], rows[i], columns);
        }
    }
    UNROLL
    for (int i = 0; i < MATRIX_ROWS; i++) {
        UNROLL
        for (int j = 0; j < PAIRS_OF_COLUMNS; j += 2) {
            float      *to = c + i * c_row + 2 * j;
            float32x4_t row = join_rows(sum[i / 2][j], sum[i / 2][j + 1], i % 2);
            vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), row) : row);
        }
    }
}

/* The same of the first `columns` columns of B's panel, 4 or 8, and of `panels` of A's: two of them with 4 columns, so
 * that there are enough sums for the latency of the instruction. */
INLINE void matrix_narrow(const int panels, const int columns, const ELEMENT *a, int64_t a_panel, int64_t depth,
                          const ELEMENT *b, const bool add, REAL *c, int64_t c_row)
{
    float32x4_t sum[2 * PAIRS_OF_ROWS][PAIRS_OF_COLUMNS];
    UNROLL
    for (int i = 0; i < panels * PAIRS_OF_ROWS; i++) {
        UNROLL
        for (int j = 0; j < columns / 2; j++) sum[i][j] = vdupq_n_f32(0);
    }
    for (int64_t k = 0; k < depth; k += 4, a += 4 * MATRIX_ROWS, b += 4 * MATRIX_COLUMNS) {
        eight_bf16 pairs[PAIRS_OF_COLUMNS];
        UNROLL
        for (int j = 0; j < columns / 2; j++) pairs[j] = load_eight(b + 8 * j);
        UNROLL
        for (int i = 0; i < panels * PAIRS_OF_ROWS; i++) {
            eight_bf16 rows = load_eight(a + i / PAIRS_OF_ROWS * a_panel + i % PAIRS_OF_ROWS * 8);
            UNROLL
            for (int j = 0; j < columns / 2; j++) sum[i][j] = add_2x2(sum[i][j], rows, pairs[j]);
        }
    }
    UNROLL
    for (int i = 0; i < panels * MATRIX_ROWS; i++) {
        UNROLL
        for (int j = 0; j < columns / 2; j += 2) {
            float      *to = c + i * c_row + 2 * j;
            float32x4_t row = join_rows(sum[i / 2][j], sum[i / 2][j + 1], i % 2);
            vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), row) : row);
        }
    }
}

/* to[column][k], four of each, from columns that are contiguous in memory, `step` elements from a k to the next. */
INLINE void matrix_take_columns(ELEMENT *to, const ELEMENT *from, int64_t step)
{
    uint16x8_t k[4];
    UNROLL
    for (int q = 0; q < 4; q++) k[q] = vcombine_u16(vld1_u16(&from[q * step].bits), vdup_n_u16(0));
    uint32x4_t first = (uint32x4_t)vzip1q_u16(k[0], k[1]), second = (uint32x4_t)vzip1q_u16(k[2], k[3]);
    vst1q_u16(&to[0].bits, (uint16x8_t)vzip1q_u32(first, second));
    vst1q_u16(&to[8].bits, (uint16x8_t)vzip2q_u32(first, second));
}

/* ---- skinny products, for which B is read where it is ---- */

enum { MATRIX_DOT_COLUMNS = 16, MATRIX_VECTOR = 8 }; /* columns: whose sums are in registers; of a vector of B */

typedef struct matrix_sums { /* of two rows and MATRIX_DOT_COLUMNS columns */
    float32x4_t v[MATRIX_DOT_COLUMNS / 2];
} matrix_sums;

/* Adds the products of `depth` k's, a multiple of 4, of two rows of A, [k / 4][row][k % 4], and columns of B that are
 * contiguous along k. */
INLINE void matrix_dot(matrix_sums *sums, const ELEMENT *a, const ELEMENT *const *b, int64_t depth)
{
    int64_t k = 0;
    for (; k + 8 <= depth; k += 8) {
        eight_bf16 first = load_eight(a + 2 * k), second = load_eight(a + 2 * k + 8);
        UNROLL
        for (int j = 0; j < MATRIX_DOT_COLUMNS / 2; j++) {
            uint64x2_t x = (uint64x2_t)vld1q_u16(&b[2 * j][k].bits), y = (uint64x2_t)vld1q_u16(&b[2 * j + 1][k].bits);
            sums->v[j] = add_2x2(sums->v[j], first, (eight_bf16)vzip1q_u64(x, y));
            sums->v[j] = add_2x2(sums->v[j], second, (eight_bf16)vzip2q_u64(x, y));
        }
    }
    if (k == depth) return;
    eight_bf16 rows = load_eight(a + 2 * k);
    UNROLL
    for (int j = 0; j < MATRIX_DOT_COLUMNS / 2; j++) {
        uint16x8_t columns = vcombine_u16(vld1_u16(&b[2 * j][k].bits), vld1_u16(&b[2 * j + 1][k].bits));
        sums->v[j] = add_2x2(sums->v[j], rows, (eight_bf16)columns);
    }
}

INLINE void matrix_store_sums(const matrix_sums *sums, REAL *upper, REAL *lower)
{
    UNROLL
    for (int j = 0; j < MATRIX_DOT_COLUMNS / 2; j += 2) {
        vst1q_f32(upper + 2 * j, join_rows(sums->v[j], sums->v[j + 1], false));
        vst1q_f32(lower + 2 * j, join_rows(sums->v[j], sums->v[j + 1], true));
    }
}

/* Adds to sums[r*sums_row + …], of `rows` rows of A and a vector of columns, the products of this many pairs of k's:
 * a[r], contiguous along k, and rows of B, b_row apart. rows and pairs are constants where this is inlined. */
INLINE void matrix_add_rows(const int rows, const int pairs, const ELEMENT *const *a, int64_t k, const ELEMENT *b,
                            int64_t b_row, REAL *sums, int64_t sums_row)
{
    float32x4_t sum[4][2];
    UNROLL
    for (int r = 0; r < rows; r++) {
        sum[r][0] = vld1q_f32(sums + r * sums_row);
        sum[r][1] = vld1q_f32(sums + r * sums_row + 4);
    }
    UNROLL
    for (int q = 0; q < pairs; q++) {
        uint16x8_t x = vld1q_u16(&b[2 * q * b_row].bits), y = vld1q_u16(&b[(2 * q + 1) * b_row].bits);
        uint16x8_t low = vzip1q_u16(x, y), high = vzip2q_u16(x, y);
        UNROLL
        for (int r = 0; r < rows; r++) {
            eight_bf16 factors = load_eight(a[r] + k + q / 4 * 8);
            sum[r][0] = add_pair(sum[r][0], low, factors, q % 4);
            sum[r][1] = add_pair(sum[r][1], high, factors, q % 4);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        vst1q_f32(sums + r * sums_row, sum[r][0]);
        vst1q_f32(sums + r * sums_row + 4, sum[r][1]);
    }
}

#endif
