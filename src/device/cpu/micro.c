/* micro.c - the micro-kernels. Arithmetic bounds them: bench/kernels.c gives the fraction of the peak. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/micro_tile.h"

const REAL zeros[LARGE_NR];

static void nn_tile(const REAL *const *a, const runs *r, const REAL *b, const REAL *start, REAL *const *c)
{
    tile t;
    start_tile(&t, start, c);
#if !defined(__aarch64__)
    if (r->ahead)
        add_run_ahead(&t, a, r, b);
    else
#endif
        add_runs(&t, a, r, b);
    store_tile(&t, !start, c);
}

/* A partial tile of m rows and n columns is computed in a whole one on the stack. */
static void nn_edge(int64_t m, const REAL *const *a, int64_t shift, const runs *r, const REAL *b, const REAL *start,
                    REAL *const *c, int64_t column, int64_t n)
{
    REAL        buffer[MR][NR];
    const REAL *rows[MR];
    REAL       *to[MR];
    for (int i = 0; i < MR; i++) {
        rows[i] = a[min64(i, m - 1)] + shift;
        to[i] = buffer[i];
        for (int64_t j = 0; j < NR; j++) buffer[i][j] = !start && i < m && j < n ? c[i][column + j] : 0;
    }
    nn_tile(rows, r, b, start, to);
    for (int64_t i = 0; i < m; i++) memcpy(c[i] + column, buffer[i], (size_t)n * sizeof(REAL));
}

enum { PANEL = 32 << 10 }; /* bytes of B that stay in the first-level cache beside A */

void micro_nn(int64_t m, const REAL *const *a, const runs *r, const REAL *b, const REAL *start, REAL *const *c,
              int64_t column, int64_t n)
{
    /* A panel larger than the cache is used in parts of whole runs; otherwise every row would read it from memory. */
    int64_t bytes = max64(1, r->length * NR * (int64_t)sizeof(REAL)), part = max64(1, PANEL / bytes), first = 0;
    if (part * 3 / 2 >= r->runs) part = max64(1, r->runs);
    do {
        runs    now = {.runs = min64(part, r->runs - first), .length = r->length, .a_run = r->a_run};
        int64_t i = 0;
        now.ahead_row = r->ahead_row;
        for (; n == NR && i + MR <= m; i += MR) {
            now.ahead = r->ahead ? r->ahead + i * r->ahead_row : NULL;
            const REAL *from[MR];
            REAL       *to[MR];
            UNROLL
            for (int q = 0; q < MR; q++) from[q] = a[i + q] + first * r->a_run;
            UNROLL
            for (int q = 0; q < MR; q++) to[q] = c[i + q] + column;
            nn_tile(from, &now, b, start, to);
        }
        now.ahead = NULL;
        for (; i < m; i += MR) nn_edge(min64(MR, m - i), a + i, first * r->a_run, &now, b, start, c + i, column, n);
        first += part;
        b += part * r->length * NR;
        start = NULL;
    } while (first < r->runs);
}

void micro_rows(int64_t m, const REAL *a, int64_t k, const REAL *b, bool add, REAL *c)
{
    for (int64_t i = 0; i < m; i += MR, a += MR * k, c += MR * NR) {
        const REAL *row[MR];
        REAL       *to[MR];
        const REAL *panel = b;
        tile        t;
        UNROLL
        for (int q = 0; q < MR; q++) {
            row[q] = a + q * k;
            to[q] = c + q * NR;
            UNROLL
            for (int j = 0; j < NV; j++) t.v[q][j] = (vec){0};
        }
        int64_t at = 0;
#if defined(__aarch64__)
        for (; at + VL <= k; at += VL, panel += VL * NR) add_vectors(&t, row, at, panel);
#endif
        for (; at < k; at++, panel += NR) add_scalars(&t, row, at, panel);
        store_tile(&t, add, to);
    }
}

void micro_tn(int64_t m, const REAL *a, const runs *r, const REAL *b, const REAL *start, REAL *c, int64_t c_row,
              int64_t n)
{
    int64_t i = 0;
    for (; n == NR && i + MR <= m; i += MR) tn_tile(a + i, r, b, start, c + i * c_row, c_row);
    for (; i < m; i += MR) tn_edge(min64(MR, m - i), a + i, r, b, start, c + i * c_row, c_row, n);
}
