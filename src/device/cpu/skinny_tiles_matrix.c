/* skinny_tiles_matrix.c - skinny products (skinny.c) with tiles: B is read once, in place. Memory bounds it; `bench
 * generate` prints the fraction of a plain read. Each element has the sums of a tile of gemm.c, in the same order of k:
 * its bits do not depend on which of the two computes it. */
#include "device/cpu/unscheduled.h"

#define LK__MATRIX_TILE
#include "device/cpu/skinny.h"

#if HAS_SKINNY && MATRIX_SKINNY_TILES

/* AT_ONCE: columns of a pair of tiles; WIDEST: the sums of one block are in the first-level cache */
enum { UNIT = MATRIX_UNIT, AT_ONCE = 2 * TILE_PAIRS, WIDEST = 512 };

typedef struct few {
    const gemm *g;
    int64_t     block, columns; /* of k; of C in a tile of work */
    ELEMENT    *rows;           /* of A, packed, zero past the last row and the last k */
} few;

/* Blocks are added in their order. */
static void add_block(REAL *sums, const REAL *block, int64_t count, bool first)
{
    if (first)
        memcpy(sums, block, (size_t)count * sizeof *sums);
    else
        for (int64_t i = 0; i < count; i += VL) store_real(sums + i, load_real(sums + i) + load_real(block + i));
}

/* ---- lines of B in which k's are contiguous, as of a linear layer's weight, are the rows of the left operand; the
 * rows of A are the columns of the right one: [k / 2][row][k % 2] ---- */

typedef struct strip { /* columns of C from j on */
    int64_t j, count;
    REAL    sums[SKINNY_LINES][TILE_PAIRS], block[SKINNY_LINES][TILE_PAIRS]; /* of one block of k */
} strip;

static void pack_pairs(const few *f)
{
    const gemm *g = f->g;
    for (int64_t k = 0; k < g->k; k += MATRIX_B_GROUP)
        for (int64_t i = 0; i < g->m; i++)
            memcpy(f->rows + k * TILE_PAIRS + i * MATRIX_B_GROUP, g->a + i * g->a_row + k,
                   (size_t)min64(MATRIX_B_GROUP, g->k - k) * sizeof *f->rows);
}

/* Fewer lines than a strip has, or fewer k's than a unit: in whole ones, the missing ones zero. */
static void add_copied_lines(const few *f, strip *s, int64_t k, int64_t depth)
{
    const gemm *g = f->g;
    ELEMENT     copy[SKINNY_LINES][UNIT] = {0};
    for (int64_t i = 0; i < s->count; i++)
        memcpy(copy[i], g->b + (s->j + i) * g->b_column + k, (size_t)depth * sizeof **copy);
    matrix_skinny(copy[0], UNIT, f->rows + k * TILE_PAIRS, UNIT, s->block);
}

/* One block of k. */
static void multiply_block(const few *f, strip *s, int64_t from, int64_t depth)
{
    const gemm *g = f->g;
    int64_t     whole = from + depth / UNIT * UNIT;
    memset(s->block, 0, sizeof s->block);
    if (s->count == SKINNY_LINES)
        matrix_skinny(g->b + s->j * g->b_column + from, g->b_column, f->rows + from * TILE_PAIRS, whole - from,
                      s->block);
    else
        for (int64_t k = from; k < whole; k += UNIT) add_copied_lines(f, s, k, UNIT);
    if (whole < from + depth) add_copied_lines(f, s, whole, from + depth - whole);
}

static void multiply_lines(const few *f, strip *s)
{
    const gemm *g = f->g;
    for (int64_t k = 0; k < g->k; k += f->block) {
        multiply_block(f, s, k, min64(f->block, g->k - k));
        add_block(s->sums[0], s->block[0], SKINNY_LINES * TILE_PAIRS, k == 0);
    }
    for (int64_t i = 0; i < g->m; i++) {
        REAL row[SKINNY_LINES];
        for (int64_t q = 0; q < s->count; q++) row[q] = g->k > 0 ? s->sums[q][i] : 0;
        finish_columns(g, i, s->j, s->count, row);
    }
}

static void lines_tile(void *argument, int64_t tile, int worker)
{
    const few *f = argument;
    int64_t    end = min64(f->g->n, (tile + 1) * f->columns);
    strip      s;
    (void)worker;
    matrix_begin();
    for (s.j = tile * f->columns; s.j < end; s.j += SKINNY_LINES) {
        s.count = min64(SKINNY_LINES, end - s.j);
        multiply_lines(f, &s);
    }
    matrix_end();
}

/* ---- B contiguous along its columns: 32 k's of 32 columns at a time become pairs of k's, in the first-level cache.
 * The rows of A are those of the left operand: [k / 32][row][k % 32] ---- */

static void pack_units(const few *f)
{
    const gemm *g = f->g;
    for (int64_t k = 0; k < g->k; k += UNIT)
        for (int64_t i = 0; i < g->m; i++)
            memcpy(f->rows + k * TILE_ROWS + i * UNIT, g->a + i * g->a_row + k,
                   (size_t)min64(UNIT, g->k - k) * sizeof *f->rows);
}

static void pair_columns(const ELEMENT *from, int64_t step, ELEMENT (*pairs)[2 * AT_ONCE])
{
    for (int64_t p = 0; p < UNIT; p += 2) matrix_take_many_columns(pairs[p / 2], from + p * step, step);
}

/* Up to 32 k's of n columns; `sums` has a multiple of AT_ONCE of them. */
static void add_unit(const few *f, const ELEMENT *b, int64_t k, int64_t n, REAL (*sums)[TILE_ROWS][TILE_PAIRS])
{
    const gemm *g = f->g;
    int64_t     depth = min64(UNIT, g->k - k), next = min64(UNIT, max64(0, g->k - k - UNIT));
    for (int64_t j = 0; j < n; j += AT_ONCE, sums += 2) {
        ELEMENT pairs[UNIT / 2][2 * AT_ONCE];
        int64_t count = min64(AT_ONCE, n - j);
        for (int64_t p = 0; p < next; p++) /* the hardware follows fewer streams */
            __builtin_prefetch(b + (UNIT + p) * g->b_k + j, 0, 2);
        if (count == AT_ONCE && depth == UNIT)
            pair_columns(b + j, g->b_k, pairs);
        else {
            ELEMENT copy[UNIT][AT_ONCE] = {0};
            for (int64_t p = 0; p < depth; p++) memcpy(copy[p], b + p * g->b_k + j, (size_t)count * sizeof **copy);
            pair_columns(copy[0], AT_ONCE, pairs);
        }
        matrix_skinny_columns(f->rows + k * TILE_ROWS, pairs[0], sums);
    }
}

static void columns_tile(void *argument, int64_t tile, int worker)
{
    const few  *f = argument;
    const gemm *g = f->g;
    int64_t     first = tile * f->columns, n = min64(f->columns, g->n - first);
    int64_t     count = tiles_of(n, AT_ONCE) * 2 * TILE_ROWS * TILE_PAIRS;
    REAL        sums[WIDEST / TILE_PAIRS][TILE_ROWS][TILE_PAIRS], block[WIDEST / TILE_PAIRS][TILE_ROWS][TILE_PAIRS];
    (void)worker;
    memset(sums, 0, (size_t)count * sizeof(REAL));
    matrix_begin();
    for (int64_t from = 0; from < g->k; from += f->block) {
        memset(block, 0, (size_t)count * sizeof(REAL));
        for (int64_t k = from; k < min64(from + f->block, g->k); k += UNIT)
            add_unit(f, g->b + k * g->b_k + first, k, n, block);
        add_block(sums[0][0], block[0][0], count, from == 0);
    }
    matrix_end();
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < n; j += TILE_PAIRS)
            finish_columns(g, i, first + j, min64(TILE_PAIRS, n - j), sums[j / TILE_PAIRS][i]);
}

/* Parts of k are summed by gemm_large.c. */
bool skinny_fit(const gemm *g)
{
    bool lines = g->b_k == 1 && g->b_transposed, columns = g->b_column == 1 && !g->b_transposed;
    return g->m <= FEW && g->batch == 1 && !g->sum && !g->add && g->a_k == 1 && g->c_column == 1 &&
           g->parts.count <= 1 && (lines || columns);
}

int64_t skinny_space(const gemm *g)
{
    return tiles_of(packed_depth(g->k) * TILE_PAIRS * (int64_t)sizeof(ELEMENT), sizeof(REAL));
}

void skinny_run(const gemm *g, lk__pool *pool, void *workspace)
{
    few f = {.g = g, .block = gemm_block_k(g->k), .rows = workspace};
    memset(f.rows, 0, (size_t)(packed_depth(g->k) * TILE_PAIRS) * sizeof *f.rows);
    if (g->b_transposed) {
        f.columns = max64(1, TILE / max64(1, g->k) / SKINNY_LINES) * SKINNY_LINES;
        pack_pairs(&f);
        lk__pool_run(pool, tiles_of(g->n, f.columns), lines_tile, &f);
        return;
    }
    f.columns = min64(WIDEST, round_to(tiles_of(g->n, TILES), 2 * AT_ONCE));
    pack_units(&f);
    lk__pool_run(pool, tiles_of(g->n, f.columns), columns_tile, &f);
}

#endif
