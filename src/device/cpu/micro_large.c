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
