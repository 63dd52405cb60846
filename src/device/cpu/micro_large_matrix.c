/* micro_large_matrix.c - the micro-kernels of products with a matrix instruction set: tiles of C, whole or partial, and
 * trees of sums. Arithmetic bounds them: bench/kernels.c gives the fraction of the peak. */
#include "device/cpu/unscheduled.h"

#define LK__MATRIX_TILE
#include "device/cpu/gemm.h"

#if defined(MATRIX_STATE)
MATRIX_STATE
#endif

enum { TILE = MATRIX_ROWS * MATRIX_COLUMNS };

/* Not inlined: registers hold the tile, and little else. */
static __attribute__((noinline)) void set_tile(const PACKED *a, int64_t depth, const PACKED *b, REAL *c, int64_t c_row)
{
    matrix_block(a, depth, b, false, c, c_row);
}
static __attribute__((noinline)) void add_tile(const PACKED *a, int64_t depth, const PACKED *b, REAL *c, int64_t c_row)
{
    matrix_block(a, depth, b, true, c, c_row);
}

static void sum_tile(const PACKED *a, int64_t depth, const PACKED *b, bool add, REAL *c, int64_t c_row)
{
    if (add)
        add_tile(a, depth, b, c, c_row);
    else
        set_tile(a, depth, b, c, c_row);
}

/* m rows and n columns of a tile. */
static void store_part_of_tile(const REAL *tile, int64_t m, int64_t n, bool add, REAL *c, int64_t c_row)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * c_row + j] = add ? c[i * c_row + j] + tile[i * MATRIX_COLUMNS + j] : tile[i * MATRIX_COLUMNS + j];
}

void micro_large(int64_t m, const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b, bool add, REAL *c,
                 int64_t c_row, int64_t n)
{
    int64_t i = 0;
    REAL    tile[TILE];
    for (; n == MATRIX_COLUMNS && i + MATRIX_ROWS <= m; i += MATRIX_ROWS, a += a_panel)
        sum_tile(a, depth, b, add, c + i * c_row, c_row);
    for (; i < m; i += MATRIX_ROWS, a += a_panel) {
        set_tile(a, depth, b, tile, MATRIX_COLUMNS);
        store_part_of_tile(tile, min64(MATRIX_ROWS, m - i), n, add, c + i * c_row, c_row);
    }
}

/* The sum that came first is on the left. */
static void merge_tiles(REAL *to, const REAL *more)
{
    for (int i = 0; i < TILE; i += VL) store_real(to + i, load_real(to + i) + load_real(more + i));
}

/* The sums that are to be added later are in memory, next to each other: the first-level cache. */
static void tree_tile(const PACKED *a, const tree_blocks *blocks, const PACKED *b, REAL (*stack)[TILE])
{
    int depth = 0;
    for (int block = 0; block < blocks->count; block++) {
        int64_t length = packed_depth(blocks->length[block]);
        set_tile(a, length, b, stack[depth++], MATRIX_COLUMNS);
        for (int merges = blocks->merges[block]; merges > 0; merges--, depth--)
            merge_tiles(stack[depth - 2], stack[depth - 1]);
        a += length * MATRIX_ROWS;
        b += length * MATRIX_COLUMNS;
    }
}

void micro_tree(int64_t m, const PACKED *a, int64_t a_panel, const tree_blocks *blocks, const PACKED *b, bool add,
                REAL *c, int64_t c_row, int64_t n)
{
    REAL stack[TREE_STACK][TILE];
    for (int64_t i = 0; i < m; i += MATRIX_ROWS, a += a_panel) {
        tree_tile(a, blocks, b, stack);
        store_part_of_tile(stack[0], min64(MATRIX_ROWS, m - i), n, add, c + i * c_row, c_row);
    }
}
