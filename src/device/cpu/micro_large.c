/* micro_large.c - the micro-kernel of large products (gemm_large.c). Arithmetic bounds it. */
#include "device/cpu/unscheduled.h"

#define TILE_NV LARGE_NV
#include "device/cpu/micro_tile.h"

void micro_large(int64_t m, const REAL *a, const runs *r, const REAL *b, const REAL *start, REAL *c, int64_t c_row,
                 int64_t n)
{
    int64_t i = 0;
    for (; n == LARGE_NR && i + MR <= m; i += MR, a += r->a_run) tn_tile(a, r, b, start, c + i * c_row, c_row);
    for (; i < m; i += MR, a += r->a_run) tn_edge(min64(MR, m - i), a, r, b, start, c + i * c_row, c_row, n);
}

/* The sums that are to be added later are in memory, next to each other: the first-level cache. */
INLINE void tree_tile(const REAL *a, const tree_blocks *blocks, const REAL *b, bool add, REAL *c, int64_t c_row)
{
    tile  t, saved[TREE_STACK];
    REAL *to[MR];
    int   depth = 0;
    UNROLL
    for (int i = 0; i < MR; i++) to[i] = c + i * c_row;
    for (int block = 0; block < blocks->count; block++) {
        if (block == 0)
            start_tile(&t, zeros, to);
        else {
            UNROLL
            for (int i = 0; i < MR; i++) {
                UNROLL
                for (int j = 0; j < TILE_NV; j++) t.v[i][j] = (vec){0};
            }
        }
        UNROLL_LONG
        for (int64_t k = 0; k < blocks->length[block]; k++, a += MR, b += TILE_NR) add_outer(&t, a, b);
        for (int merge = 0; merge < blocks->merges[block]; merge++) {
            depth--;
            UNROLL
            for (int i = 0; i < MR; i++) {
                UNROLL
                for (int j = 0; j < TILE_NV; j++) t.v[i][j] = saved[depth].v[i][j] + t.v[i][j];
            }
        }
        if (block + 1 < blocks->count) saved[depth++] = t;
    }
    store_tile(&t, add, to);
}

static void tree_edge(int64_t m, const REAL *a, const tree_blocks *blocks, const REAL *b, bool add, REAL *c,
                      int64_t c_row, int64_t n)
{
    REAL buffer[MR * TILE_NR] = {0};
    for (int64_t i = 0; add && i < m; i++) memcpy(buffer + i * TILE_NR, c + i * c_row, (size_t)n * sizeof(REAL));
    tree_tile(a, blocks, b, add, buffer, TILE_NR);
    for (int64_t i = 0; i < m; i++) memcpy(c + i * c_row, buffer + i * TILE_NR, (size_t)n * sizeof(REAL));
}

void micro_tree(int64_t m, const REAL *a, int64_t a_run, const tree_blocks *blocks, const REAL *b, bool add, REAL *c,
                int64_t c_row, int64_t n)
{
    int64_t i = 0;
    for (; n == LARGE_NR && i + MR <= m; i += MR, a += a_run) tree_tile(a, blocks, b, add, c + i * c_row, c_row);
    for (; i < m; i += MR, a += a_run) tree_edge(min64(MR, m - i), a, blocks, b, add, c + i * c_row, c_row, n);
}
