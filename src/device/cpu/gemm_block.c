/* gemm_block.c - one block of k of a product: packing its operands and multiplying them. */
#include "device/cpu/gemm_block.h"

/* `width`: columns of a panel. */
static inline __attribute__((always_inline)) void pack_panels(const gemm *g, const ELEMENT *b, int64_t n, int64_t k,
                                                              REAL *to, int64_t panel, int64_t width)
{
    int64_t whole = n / width, rest = n - whole * width;
    if (g->b_column == 1)
        for (int64_t q = 0; q < k; q++) { /* along the rows; the hardware does not prefetch the next row */
            const ELEMENT *from = b + q * g->b_k, *next = from + min64(4, k - 1 - q) * g->b_k;
            for (int64_t j = 0; j < whole; j++) {
                __builtin_prefetch(next + j * width, 0, 2);
                copy_wide(to + j * panel + q * width, from + j * width, width);
            }
        }
    else
        for (int64_t j = 0; j < whole; j++)
            transpose_wide(to + j * panel, width, b + j * width * g->b_column, g->b_column, width, k);
    if (rest == 0) return;
    b += whole * width * g->b_column;
    to += whole * panel;
    memset(to, 0, (size_t)(k * width) * sizeof(REAL));
    if (g->b_column == 1)
        for (int64_t q = 0; q < k; q++) copy_wide(to + q * width, b + q * g->b_k, rest);
    else
        transpose_wide(to, width, b, g->b_column, rest, k);
}

void gemm_pack_b(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, REAL *to, int64_t panel)
{
    pack_panels(g, b, n, k, to + first * NR, panel, NR);
}
void gemm_pack_b_large(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, REAL *to, int64_t panel)
{
    pack_panels(g, b, n, k, to + first * LARGE_NR, panel, LARGE_NR);
}

/* Of as many panels as a cache line has rows, so that each line is read once; the hardware does not prefetch the next
 * k. */
static void pack_a_columns(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, REAL *to, int64_t panel)
{
    enum { LINE = 64 / sizeof(REAL), AHEAD = 8 };
    int64_t i = 0;
    for (; i + LINE <= m && LINE % MR == 0; i += LINE, to += LINE / MR * panel)
        for (int64_t q = 0; q < k; q++) {
            const ELEMENT *from = a + q * g->a_k + i;
            __builtin_prefetch(from + min64(AHEAD, k - 1 - q) * g->a_k, 0, 2);
            for (int p = 0; p < LINE; p += MR) copy_wide(to + p / MR * panel + q * MR, from + p, MR);
        }
    for (; i < m; i += MR, to += panel) {
        int64_t rows = min64(MR, m - i);
        if (rows == MR)
            for (int64_t q = 0; q < k; q++) copy_wide(to + q * MR, a + q * g->a_k + i, MR);
        else
            for (int64_t q = 0; q < k; q++)
                for (int64_t p = 0; p < MR; p++) to[q * MR + p] = p < rows ? load_one(a + q * g->a_k + i + p) : 0;
    }
}

/* Of an A that is contiguous along k. */
static void pack_a_rows(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, REAL *to, int64_t panel)
{
    for (int64_t i = 0; i < m; i += MR, to += panel) {
        if (m - i < MR) memset(to, 0, (size_t)(k * MR) * sizeof(REAL));
        transpose_wide(to, MR, a + i * g->a_row, g->a_row, min64(MR, m - i), k);
    }
}

void gemm_pack_a(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, int64_t first, REAL *to, int64_t panel)
{
    if (g->a_k == 1)
        pack_a_rows(g, a, m, k, to + first * MR, panel);
    else
        pack_a_columns(g, a, m, k, to + first * MR, panel);
}

void gemm_multiply(int64_t m, int64_t n, const gemm_step *s)
{
    const REAL *rows[LONGEST];
    REAL       *to[LONGEST];
    runs        r = {.runs = 1, .length = s->k, .a_k = s->a_k, .ahead_row = s->a_row * (int64_t)sizeof(REAL)};
    for (int64_t i = 0; s->by_rows && i < m; i++) {
        rows[i] = s->a + i * s->a_row;
        to[i] = s->c + i * s->c_row;
    }
    const REAL *panel = s->b;
    for (int64_t j = 0; j < n; j += NR, panel += s->panel) {
        int64_t     columns = min64(NR, n - j);
        const REAL *first = s->start ? zeros : NULL;
        r.ahead = j == 0 ? (const char *)s->ahead : NULL;
        if (s->by_rows)
            micro_nn(m, rows, &r, panel, first, to, j, columns);
        else
            for (int64_t i = 0; i < m; i += MR)
                micro_tn(min64(MR, m - i), s->a + i * s->a_panel, &r, panel, first, s->c + i * s->c_row + j, s->c_row,
                         columns);
    }
}

void gemm_take_a(const gemm *g, const ELEMENT *from, int64_t m, int64_t n, bool in_place, REAL *scratch, gemm_step *s)
{
    s->a = scratch;
    s->a_row = s->a_panel = s->k;
    s->a_k = MR;
    s->by_rows = g->a_k == 1 && n < REUSED;
    if (in_place && (g->a_k != 1 || s->by_rows)) {
        s->a = (const REAL *)(const void *)from;
        s->a_row = g->a_row;
        s->a_panel = 1;
        s->a_k = g->a_k;
    } else if (s->by_rows) /* NARROW */
        for (int64_t i = 0; i < m; i++) copy_wide(scratch + i * s->k, from + i * g->a_row, s->k);
    else
        gemm_pack_a(g, from, m, s->k, 0, scratch, s->k * MR);
}
