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

#if MATRIX_NARROW
static __attribute__((noinline)) void narrow_4(const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b,
                                               bool add, REAL *c, int64_t c_row)
{
    if (add)
        matrix_narrow(2, 4, a, a_panel, depth, b, true, c, c_row);
    else
        matrix_narrow(2, 4, a, a_panel, depth, b, false, c, c_row);
}
static __attribute__((noinline)) void narrow_8(const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b,
                                               bool add, REAL *c, int64_t c_row)
{
    if (add)
        matrix_narrow(1, 8, a, a_panel, depth, b, true, c, c_row);
    else
        matrix_narrow(1, 8, a, a_panel, depth, b, false, c, c_row);
}

/* Whole panels of rows of 4 or 8 columns; returns how many rows are done. */
static int64_t multiply_narrow(int64_t m, const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b, bool add,
                               REAL *c, int64_t c_row, int64_t n)
{
    int64_t i = 0;
    for (; n == 4 && i + 2 * MATRIX_ROWS <= m; i += 2 * MATRIX_ROWS)
        narrow_4(a + i / MATRIX_ROWS * a_panel, a_panel, depth, b, add, c + i * c_row, c_row);
    for (; n == 8 && i + MATRIX_ROWS <= m; i += MATRIX_ROWS)
        narrow_8(a + i / MATRIX_ROWS * a_panel, a_panel, depth, b, add, c + i * c_row, c_row);
    return i;
}
#else
static int64_t multiply_narrow(int64_t m, const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b, bool add,
                               REAL *c, int64_t c_row, int64_t n)
{
    (void)m, (void)a, (void)a_panel, (void)depth, (void)b, (void)add, (void)c, (void)c_row, (void)n;
    return 0;
}
#endif

void micro_large(int64_t m, const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b, bool add, REAL *c,
                 int64_t c_row, int64_t n)
{
    int64_t i = n < MATRIX_COLUMNS ? multiply_narrow(m, a, a_panel, depth, b, add, c, c_row, n) : 0;
    REAL    tile[TILE];
    a += i / MATRIX_ROWS * a_panel;
    for (; n == MATRIX_COLUMNS && i + MATRIX_ROWS <= m; i += MATRIX_ROWS, a += a_panel)
        sum_tile(a, depth, b, add, c + i * c_row, c_row);
    for (; i < m; i += MATRIX_ROWS, a += a_panel) {
        set_tile(a, depth, b, tile, MATRIX_COLUMNS);
        store_part_of_tile(tile, min64(MATRIX_ROWS, m - i), n, add, c + i * c_row, c_row);
    }
}

/* A partial sum of a tile: its rows are `row` apart. */
typedef struct tile_sum {
    REAL   *sum;
    int64_t row;
} tile_sum;

/* The sum that came first is on the left. */
static void merge_tiles(tile_sum to, const REAL *more)
{
    for (int i = 0; i < MATRIX_ROWS; i++) {
        UNROLL
        for (int j = 0; j < MATRIX_COLUMNS; j += VL)
            store_real(to.sum + i * to.row + j,
                       load_real(to.sum + i * to.row + j) + load_real(more + i * MATRIX_COLUMNS + j));
    }
}

/* The sums that are to be added later are in memory, the first-level cache: the first one in `to`, the others next to
 * each other. A block whose sum is added at once is not stored before. */
static void tree_tile(const PACKED *a, const tree_blocks *blocks, const PACKED *b, tile_sum to)
{
    REAL     stack[TREE_STACK - 1][TILE];
    tile_sum level[TREE_STACK];
    int      depth = 0;
    level[0] = to;
    for (int i = 1; i < TREE_STACK; i++) level[i] = (tile_sum){stack[i - 1], MATRIX_COLUMNS};
    for (int block = 0; block < blocks->count; block++) {
        int64_t length = packed_depth(blocks->length[block]);
        int     merges = blocks->merges[block];
        if (merges > 0)
            add_tile(a, length, b, level[depth - 1].sum, level[depth - 1].row);
        else
            set_tile(a, length, b, level[depth].sum, level[depth].row), depth++;
        for (; merges > 1; merges--, depth--) merge_tiles(level[depth - 2], level[depth - 1].sum);
        a += length * MATRIX_ROWS;
        b += length * MATRIX_COLUMNS;
    }
}

void micro_tree(int64_t m, const PACKED *a, int64_t a_panel, const tree_blocks *blocks, const PACKED *b, bool add,
                REAL *c, int64_t c_row, int64_t n)
{
    REAL tile[TILE];
    for (int64_t i = 0; i < m; i += MATRIX_ROWS, a += a_panel) {
        if (!add && n == MATRIX_COLUMNS && m - i >= MATRIX_ROWS) {
            tree_tile(a, blocks, b, (tile_sum){c + i * c_row, c_row});
            continue;
        }
        tree_tile(a, blocks, b, (tile_sum){tile, MATRIX_COLUMNS});
        store_part_of_tile(tile, min64(MATRIX_ROWS, m - i), n, add, c + i * c_row, c_row);
    }
}
