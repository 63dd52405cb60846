/* micro_large.c - the micro-kernel of large products (gemm_large.c). Arithmetic bounds it. */
#include "device/cpu/unscheduled.h"

#define TILE_NV LARGE_NV
#include "device/cpu/micro_tile.h"

void micro_large(int64_t m, const REAL *a, int64_t a_panel, int64_t depth, const REAL *b, bool add, REAL *c,
                 int64_t c_row, int64_t n)
{
    runs        r = {.runs = 1, .length = depth, .a_run = a_panel, .a_k = MR};
    const REAL *start = add ? NULL : zeros;
    int64_t     i = 0;
    for (; n == LARGE_NR && i + MR <= m; i += MR, a += a_panel) tn_tile(a, &r, b, start, c + i * c_row, c_row);
    for (; i < m; i += MR, a += a_panel) tn_edge(min64(MR, m - i), a, &r, b, start, c + i * c_row, c_row, n);
}

enum { TREE_TILE = MR * TILE_NR };

/* c = (or +=) the sum of one block, to which the last `merges` tiles before `saved` are added. Not inlined: registers
 * hold the tile, and little else. */
static __attribute__((noinline)) void sum_block(const REAL *a, int64_t length, const REAL *b, const REAL *saved,
                                                int merges, bool add, REAL *c, int64_t c_row)
{
    tile  t;
    REAL *to[MR];
    UNROLL
    for (int i = 0; i < MR; i++) to[i] = c + i * c_row;
    start_tile(&t, NULL, to);
    UNROLL_LONG
    for (int64_t k = 0; k < length; k++, a += MR, b += TILE_NR) add_outer(&t, a, b);
    for (; merges > 0; merges--) {
        saved -= TREE_TILE;
        UNROLL
        for (int i = 0; i < MR; i++) {
            UNROLL
            for (int j = 0; j < TILE_NV; j++) t.v[i][j] = load(saved + i * TILE_NR + j * VL) + t.v[i][j];
        }
    }
    store_tile(&t, add, to);
}

/* The sums that are to be added later are in memory, next to each other: the first-level cache. */
static void tree_tile(const REAL *a, const tree_blocks *blocks, const REAL *b, bool add, REAL *c, int64_t c_row)
{
    REAL  stack[TREE_STACK * TREE_TILE];
    REAL *saved = stack;
    for (int block = 0; block < blocks->count; block++) {
        bool    last = block + 1 == blocks->count;
        int     merges = blocks->merges[block];
        int64_t length = blocks->length[block];
        REAL   *to = last ? c : saved - merges * TREE_TILE;
        sum_block(a, length, b, saved, merges, add && last, to, last ? c_row : TILE_NR);
        saved += (1 - merges) * TREE_TILE;
        a += length * MR;
        b += length * TILE_NR;
    }
}

static void tree_edge(int64_t m, const REAL *a, const tree_blocks *blocks, const REAL *b, bool add, REAL *c,
                      int64_t c_row, int64_t n)
{
    REAL buffer[MR * TILE_NR] = {0};
    for (int64_t i = 0; add && i < m; i++) memcpy(buffer + i * TILE_NR, c + i * c_row, (size_t)n * sizeof(REAL));
    tree_tile(a, blocks, b, add, buffer, TILE_NR);
    for (int64_t i = 0; i < m; i++) memcpy(c + i * c_row, buffer + i * TILE_NR, (size_t)n * sizeof(REAL));
}

void micro_tree(int64_t m, const REAL *a, int64_t a_panel, const tree_blocks *blocks, const REAL *b, bool add, REAL *c,
                int64_t c_row, int64_t n)
{
    int64_t i = 0;
    for (; n == LARGE_NR && i + MR <= m; i += MR, a += a_panel) tree_tile(a, blocks, b, add, c + i * c_row, c_row);
    for (; i < m; i += MR, a += a_panel) tree_edge(min64(MR, m - i), a, blocks, b, add, c + i * c_row, c_row, n);
}
