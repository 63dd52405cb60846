/* device/cpu/matrix_tdpbf16ps.h - the tile of products with TDPBF16PS (x86-64 with AMX): what matrix_bfmmla.h
 * describes. Where EMULATED is 1, the instructions are C, over tiles in memory. Include unscheduled.h first.
 *
 * Two by two registers of 16 × 16 sums. Each instruction adds to its sums the products of 32 k's: the products of even
 * k's and those of odd k's are each summed from zero in order, the two sums are added, and the result is added to the
 * register's sum. */
#ifndef LK__MATRIX_TDPBF16PS_H
#define LK__MATRIX_TDPBF16PS_H

#include "device/cpu/cpu.h"

#define MATRIX_SKINNY 1
#define MATRIX_SKINNY_TILES 1
#define MATRIX_NARROW 0
#define MATRIX_PAIRS 1

enum { MATRIX_ROWS = 32, MATRIX_COLUMNS = 32, MATRIX_A_GROUP = 32, MATRIX_B_GROUP = 2, MATRIX_UNIT = 32 };
/* Of a register: rows, and 16 f32 or pairs of bf16 in each. */
enum { TILE_ROWS = 16, TILE_PAIRS = 16, TILE_ROW_BYTES = 64, TILE_COUNT = 8 };

#if EMULATED
/* Whether the thread's tiles are configured. As with the instructions, one that is used without is a fault. */
#define tiles_configured KERNEL(tiles_configured)
extern _Thread_local bool tiles_configured;
#define MATRIX_STATE _Thread_local bool tiles_configured;

static inline void expect_configured(bool expected)
{
    if (tiles_configured != expected) __builtin_trap();
}
static inline void matrix_begin(void)
{
    expect_configured(false);
    tiles_configured = true;
}
static inline void matrix_end(void)
{
    expect_configured(true);
    tiles_configured = false;
}
#else
#include <immintrin.h>

/* What LDTILECFG reads. */
typedef struct tile_config {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} tile_config;

/* Before and after the tiles of a thread. The calling convention saves no tiles, so what else runs on the thread may
 * have its own; and a thread whose tiles are released has less to save when it is interrupted. */
static inline void matrix_begin(void)
{
#define ALL_TILES(x)           \
    {                          \
        x, x, x, x, x, x, x, x \
    }
    static const tile_config config = {
        .palette = 1, .row_bytes = ALL_TILES(TILE_ROW_BYTES), .rows = ALL_TILES(TILE_ROWS)};
#undef ALL_TILES
    _tile_loadconfig(&config);
}
static inline void matrix_end(void) { _tile_release(); }
#endif

#endif

#if defined(LK__MATRIX_TILE) && !defined(LK__MATRIX_TDPBF16PS_TILE)
#define LK__MATRIX_TDPBF16PS_TILE

#include "device/cpu/matrix_pairs.h"
#if EMULATED
#include "device/cpu/bf16_instructions.h"

typedef struct tiles {
    char of[TILE_COUNT][TILE_ROWS * TILE_ROW_BYTES] __attribute__((aligned(TILE_ROW_BYTES)));
} tiles;
#define TILES_OF_A_THREAD \
    tiles t;              \
    expect_configured(true);

static inline void copy_tile(char *to, int64_t to_bytes, const char *from, int64_t from_bytes)
{
    for (int row = 0; row < TILE_ROWS; row++) memcpy(to + row * to_bytes, from + row * from_bytes, TILE_ROW_BYTES);
}
#define TILE_ZERO(tile) memset(t.of[tile], 0, sizeof t.of[tile])
#define TILE_LOAD(tile, from, bytes) copy_tile(t.of[tile], TILE_ROW_BYTES, (const char *)(from), bytes)
#define TILE_STORE(tile, to, bytes) copy_tile((char *)(to), bytes, t.of[tile], TILE_ROW_BYTES)
#define TILE_ADD_DOTS(sum, a, b)                                                             \
    lk__tdpbf16ps(TILE_ROWS, TILE_PAIRS, TILE_PAIRS, (float *)(void *)t.of[sum], TILE_PAIRS, \
                  (ELEMENT *)(void *)t.of[a], 2 * TILE_PAIRS, (ELEMENT *)(void *)t.of[b], 2 * TILE_PAIRS)

#else

#define TILES_OF_A_THREAD /* registers */
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, bytes) _tile_loadd(tile, from, bytes)
#define TILE_STORE(tile, to, bytes) _tile_stored(tile, to, bytes)
#define TILE_ADD_DOTS(sum, a, b) _tile_dpbf16ps(sum, a, b)
#endif

/* Of sums that are added to C: through memory, since tiles are added by no instruction. */
INLINE void add_sums(const REAL *sum, REAL *c, int64_t c_row)
{
    for (int i = 0; i < MATRIX_ROWS; i++)
        for (int j = 0; j < MATRIX_COLUMNS; j += VL)
            store_real(c + i * c_row + j, load_real(c + i * c_row + j) + load_real(sum + i * MATRIX_COLUMNS + j));
}

INLINE void matrix_block(const ELEMENT *a, int64_t depth, const ELEMENT *b, const bool add, REAL *c, int64_t c_row)
{
    enum { A_BYTES = MATRIX_A_GROUP * sizeof(ELEMENT), B_BYTES = MATRIX_COLUMNS * MATRIX_B_GROUP * sizeof(ELEMENT) };
    REAL    sum[MATRIX_ROWS * MATRIX_COLUMNS];
    REAL   *to = add ? sum : c;
    int64_t row = add ? MATRIX_COLUMNS : c_row, bytes = row * (int64_t)sizeof(REAL);
    TILES_OF_A_THREAD
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < depth;
         k += MATRIX_UNIT, a += MATRIX_UNIT * MATRIX_ROWS, b += MATRIX_UNIT * MATRIX_COLUMNS) {
        TILE_LOAD(4, a, A_BYTES);
        TILE_LOAD(6, b, B_BYTES);
        TILE_ADD_DOTS(0, 4, 6);
        TILE_LOAD(7, b + 2 * TILE_PAIRS, B_BYTES);
        TILE_ADD_DOTS(1, 4, 7);
        TILE_LOAD(5, a + TILE_ROWS * MATRIX_A_GROUP, A_BYTES);
        TILE_ADD_DOTS(2, 5, 6);
        TILE_ADD_DOTS(3, 5, 7);
    }
    TILE_STORE(0, to, bytes);
    TILE_STORE(1, to + TILE_PAIRS, bytes);
    TILE_STORE(2, to + TILE_ROWS * row, bytes);
    TILE_STORE(3, to + TILE_ROWS * row + TILE_PAIRS, bytes);
    if (add) add_sums(sum, c, c_row);
}

enum { SKINNY_LINES = 4 * TILE_ROWS };

/* Adds the products of `depth` k's of 64 lines, in which k's are contiguous, and up to 16 rows, packed as B is:
 * sums[line][row]. */
INLINE void matrix_skinny(const ELEMENT *lines, int64_t line, const ELEMENT *rows, int64_t depth,
                          REAL (*sums)[TILE_PAIRS])
{
    int64_t bytes = line * (int64_t)sizeof(ELEMENT);
    TILES_OF_A_THREAD
    TILE_LOAD(0, sums[0], TILE_ROW_BYTES);
    TILE_LOAD(1, sums[TILE_ROWS], TILE_ROW_BYTES);
    TILE_LOAD(2, sums[2 * TILE_ROWS], TILE_ROW_BYTES);
    TILE_LOAD(3, sums[3 * TILE_ROWS], TILE_ROW_BYTES);
    for (int64_t k = 0; k < depth; k += MATRIX_UNIT) {
        const ELEMENT *at = lines + k;
        for (int64_t i = 0; i < SKINNY_LINES; i++) /* lines that follow: the hardware follows fewer streams */
            __builtin_prefetch(at + (SKINNY_LINES + i) * line, 0, 2);
        TILE_LOAD(6, rows + k * TILE_PAIRS, TILE_ROW_BYTES);
        TILE_LOAD(4, at, bytes);
        TILE_ADD_DOTS(0, 4, 6);
        TILE_LOAD(5, at + TILE_ROWS * line, bytes);
        TILE_ADD_DOTS(1, 5, 6);
        TILE_LOAD(4, at + 2 * TILE_ROWS * line, bytes);
        TILE_ADD_DOTS(2, 4, 6);
        TILE_LOAD(5, at + 3 * TILE_ROWS * line, bytes);
        TILE_ADD_DOTS(3, 5, 6);
    }
    TILE_STORE(0, sums[0], TILE_ROW_BYTES);
    TILE_STORE(1, sums[TILE_ROWS], TILE_ROW_BYTES);
    TILE_STORE(2, sums[2 * TILE_ROWS], TILE_ROW_BYTES);
    TILE_STORE(3, sums[3 * TILE_ROWS], TILE_ROW_BYTES);
}

/* Adds the products of 32 k's of up to 16 rows, [row][k], and 32 columns, [k / 2][column][k % 2]: sums[column /
 * 16][row] [column % 16]. */
INLINE void matrix_skinny_columns(const ELEMENT *rows, const ELEMENT *columns, REAL (*sums)[TILE_ROWS][TILE_PAIRS])
{
    TILES_OF_A_THREAD
    TILE_LOAD(0, sums[0][0], TILE_ROW_BYTES);
    TILE_LOAD(1, sums[1][0], TILE_ROW_BYTES);
    TILE_LOAD(4, rows, TILE_ROW_BYTES);
    TILE_LOAD(6, columns, 2 * TILE_ROW_BYTES);
    TILE_ADD_DOTS(0, 4, 6);
    TILE_LOAD(7, columns + 2 * TILE_PAIRS, 2 * TILE_ROW_BYTES);
    TILE_ADD_DOTS(1, 4, 7);
    TILE_STORE(0, sums[0][0], TILE_ROW_BYTES);
    TILE_STORE(1, sums[1][0], TILE_ROW_BYTES);
}

#endif
