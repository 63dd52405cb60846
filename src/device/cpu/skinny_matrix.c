/* skinny_matrix.c - skinny products (skinny.c) with a matrix instruction set: B is read once, in place. Memory bounds
 * it; bench/kernels.c gives the fraction of a plain read. Each element is summed as in a tile of gemm.c, in the same
 * groups of k: its bits do not depend on which of the two computes it. */
#include "device/cpu/unscheduled.h"

#define LK__MATRIX_TILE
#include "device/cpu/skinny.h"

#if HAS_SKINNY && !MATRIX_SKINNY_TILES

enum {
    DEPTH = BLOCK_K, /* the most of a block of k */
    WIDTH = MATRIX_DOT_COLUMNS,
    GROUPED_COLUMNS = 4 * WIDTH, /* for which A is packed once */
    AT_ONCE = 4,                 /* rows whose sums are in registers at once */
    K_STEP = 8,                  /* k's that are added to sums in memory at once; twice as many where there are */
    GROUP = 4                    /* k's that are added as one, the missing ones zero */
};

typedef struct few {
    const gemm *g;
    int64_t     block, blocks; /* of k */
    int64_t     columns, tiles;
    REAL       *sums; /* [block][m][n], where blocks are summed apart */
} few;

/* ---- B contiguous along k ---- */

/* Two rows of A from k on, [k / 4][row][k % 4]; a row that is missing is zero. */
static void pack_two_rows(const gemm *g, int64_t i, int64_t k, int64_t depth, ELEMENT *to)
{
    memset(to, 0, (size_t)(2 * round_to(depth, GROUP)) * sizeof *to);
    for (int64_t row = 0; row < min64(2, g->m - i); row++) {
        const ELEMENT *from = g->a + (i + row) * g->a_row + k;
        for (int64_t q = 0; q < depth; q += GROUP)
            memcpy(to + 2 * q + GROUP * row, from + q, (size_t)min64(GROUP, depth - q) * sizeof *to);
    }
}

/* The last k's of the columns, fewer than GROUP. */
static void dot_rest(matrix_sums *sums, const ELEMENT *a, const ELEMENT *const *b, int64_t k, int64_t depth)
{
    ELEMENT        rest[WIDTH][GROUP] = {0};
    const ELEMENT *columns[WIDTH];
    for (int j = 0; j < WIDTH; j++) {
        memcpy(rest[j], b[j] + k, (size_t)(depth - k) * sizeof *rest[j]);
        columns[j] = rest[j];
    }
    matrix_dot(sums, a + 2 * k, columns, GROUP);
}

/* One block of k, of all rows and of WIDTH columns: sums[row]. */
static void dot_columns(int64_t rows, const ELEMENT (*a)[2 * DEPTH], const ELEMENT *const *b, int64_t depth,
                        REAL (*to)[WIDTH])
{
    int64_t whole = depth / GROUP * GROUP;
    for (int64_t i = 0; i < rows; i += 2) {
        matrix_sums sums = {0};
        matrix_dot(&sums, a[i / 2], b, whole);
        if (whole < depth) dot_rest(&sums, a[i / 2], b, whole, depth);
        matrix_store_sums(&sums, to[i], to[i + 1]);
    }
}

/* n columns from j on. */
static void multiply_columns(const few *f, int64_t j, int64_t n)
{
    const gemm *g = f->g;
    ELEMENT     a[FEW / 2][2 * DEPTH];
    REAL        sums[FEW][GROUPED_COLUMNS] = {0}, more[FEW][WIDTH];
    for (int64_t k = 0; k < g->k; k += f->block) {
        int64_t depth = min64(f->block, g->k - k);
        for (int64_t i = 0; i < g->m; i += 2) pack_two_rows(g, i, k, depth, a[i / 2]);
        for (int64_t q = 0; q < n; q += WIDTH) {
            const ELEMENT *b[WIDTH];
            for (int64_t p = 0; p < WIDTH; p++) b[p] = g->b + (j + min64(q + p, n - 1)) * g->b_column + k;
            dot_columns(g->m, a, b, depth, more);
            for (int64_t i = 0; i < g->m; i++)
                for (int64_t p = 0; p < WIDTH; p++) sums[i][q + p] = k ? sums[i][q + p] + more[i][p] : more[i][p];
        }
    }
    for (int64_t i = 0; i < g->m; i++) finish_columns(g, i, j, n, sums[i]);
}

static void columns_tile(void *argument, int64_t tile, int worker)
{
    const few *f = argument;
    int64_t    end = min64(f->g->n, (tile + 1) * f->columns);
    (void)worker;
    for (int64_t j = tile * f->columns; j < end; j += GROUPED_COLUMNS)
        multiply_columns(f, j, min64(GROUPED_COLUMNS, end - j));
}

/* ---- B contiguous along its columns: a tile is a block of k and a strip of columns, whose sums are in the first-level
 * cache ---- */

/* Fewer than MATRIX_VECTOR columns, or than K_STEP k's: in whole ones, the missing ones zero. */
static void add_edge(int64_t rows, const ELEMENT *const *a, int64_t k, int64_t ks, const ELEMENT *b, int64_t b_row,
                     int64_t n, REAL (*sums)[STRIP])
{
    ELEMENT copy[K_STEP][MATRIX_VECTOR] = {0};
    for (int64_t q = 0; q < ks; q++) memcpy(copy[q], b + q * b_row, (size_t)n * sizeof **copy);
    for (int64_t r = 0; r < rows; r++)
        if (ks > GROUP)
            matrix_add_rows(1, K_STEP / 2, a + r, k, copy[0], MATRIX_VECTOR, sums[r], STRIP);
        else
            matrix_add_rows(1, GROUP / 2, a + r, k, copy[0], MATRIX_VECTOR, sums[r], STRIP);
}

/* `steps` times K_STEP k's; rows and steps are constants where this is inlined. */
INLINE void add_rows(const int rows, const int steps, const ELEMENT *const *a, int64_t k, const ELEMENT *b,
                     int64_t b_row, int64_t n, REAL (*sums)[STRIP])
{
    int64_t j = 0;
    for (; j + MATRIX_VECTOR <= n; j += MATRIX_VECTOR)
        matrix_add_rows(rows, steps * K_STEP / 2, a, k, b + j, b_row, sums[0] + j, STRIP);
    for (int step = 0; j < n && step < steps; step++)
        add_edge(rows, a, k + step * K_STEP, K_STEP, b + step * K_STEP * b_row + j, b_row, n - j,
                 (REAL(*)[STRIP])(sums[0] + j));
}

INLINE void add_block(const int rows, const ELEMENT *const *a, const ELEMENT *b, int64_t b_row, int64_t depth,
                      int64_t n, REAL (*sums)[STRIP])
{
    const int steps = 2;
    int64_t   k = 0;
    for (; k + steps * K_STEP <= depth; k += steps * K_STEP, b += steps * K_STEP * b_row)
        add_rows(rows, steps, a, k, b, b_row, n, sums);
    for (; k + K_STEP <= depth; k += K_STEP, b += K_STEP * b_row) add_rows(rows, 1, a, k, b, b_row, n, sums);
    for (int64_t j = 0; k < depth && j < n; j += MATRIX_VECTOR)
        add_edge(rows, a, k, depth - k, b + j, b_row, min64(MATRIX_VECTOR, n - j), (REAL(*)[STRIP])(sums[0] + j));
}

static void strip_tile(void *argument, int64_t tile, int worker)
{
    const few     *f = argument;
    const gemm    *g = f->g;
    int64_t        strips = tiles_of(g->n, f->columns), block = tile / strips, j = tile % strips * f->columns;
    int64_t        n = min64(f->columns, g->n - j), k = block * f->block, depth = min64(f->block, g->k - k);
    const ELEMENT *b = g->b + k * g->b_k + j, *a[FEW];
    ELEMENT        copied[FEW][DEPTH] = {0}; /* zero after the last k */
    REAL           sums[AT_ONCE][STRIP];
    (void)worker;
    for (int64_t i = 0; i < g->m; i++) {
        memcpy(copied[i], g->a + i * g->a_row + k, (size_t)depth * sizeof **copied);
        a[i] = copied[i];
    }
    for (int64_t i = 0; i < g->m; i += AT_ONCE) {
        int64_t rows = min64(AT_ONCE, g->m - i);
        for (int64_t r = 0; r < rows; r++) memset(sums[r], 0, (size_t)round_to(n, MATRIX_VECTOR) * sizeof(REAL));
        switch (rows) {
        case 1: add_block(1, a + i, b, g->b_k, depth, n, sums); break;
        case 2: add_block(2, a + i, b, g->b_k, depth, n, sums); break;
        case 3: add_block(3, a + i, b, g->b_k, depth, n, sums); break;
        default: add_block(4, a + i, b, g->b_k, depth, n, sums); break;
        }
        for (int64_t r = 0; r < rows; r++)
            memcpy(f->sums + (block * g->m + i + r) * g->n + j, sums[r], (size_t)n * sizeof(REAL));
    }
}

/* Of a product whose blocks are summed apart. */
static void add_blocks(const few *f)
{
    const gemm *g = f->g;
    for (int64_t i = 0; i < g->m; i++) {
        REAL *sum = f->sums + i * g->n;
        for (int64_t block = 1; block < f->blocks; block++) {
            const REAL *more = f->sums + (block * g->m + i) * g->n;
            for (int64_t j = 0; j < g->n; j++) sum[j] += more[j];
        }
        if (f->blocks == 0) memset(sum, 0, (size_t)g->n * sizeof *sum);
        finish_columns(g, i, 0, g->n, sum);
    }
}

/* Parts of k are summed by gemm_large.c. */
bool skinny_fit(const gemm *g)
{
    return g->m <= FEW && g->batch == 1 && !g->sum && !g->add && g->a_k == 1 && g->c_column == 1 && g->parts.count <= 1;
}

int64_t skinny_space(const gemm *g)
{
    return g->b_k == 1 && g->b_transposed ? 0 : g->m * g->n * max64(1, tiles_of(g->k, gemm_block_k(g->k)));
}

void skinny_run(const gemm *g, lk__pool *pool, void *workspace)
{
    few f = {.g = g, .block = gemm_block_k(g->k), .sums = workspace};
    f.blocks = tiles_of(g->k, f.block);
    if (g->b_transposed) {
        f.columns = max64(WIDTH, TILE / max64(1, g->k) / WIDTH * WIDTH);
        lk__pool_run(pool, tiles_of(g->n, f.columns), columns_tile, &f);
        return;
    }
    int64_t parts = min64(tiles_of(TILES, max64(1, f.blocks)), tiles_of(g->n * g->k, TILE));
    f.columns = min64(STRIP, round_to(tiles_of(g->n, max64(1, parts)), 16));
    lk__pool_run(pool, f.blocks * tiles_of(g->n, f.columns), strip_tile, &f);
    add_blocks(&f);
}

#endif
