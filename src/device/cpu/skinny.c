/* skinny.c - products whose A has few rows, such as the tokens of one step of generation: B, the weights, is read once,
 * in place, instead of being packed or multiplied with empty columns. Memory bounds it; bench/kernels.c gives the
 * fraction of a plain read.
 *
 * Each element is summed as in gemm.c and gemm_large.c, k by k within blocks, then block by block, or in the tree where
 * k consists of parts: its bits do not depend on which of these files computes it. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/gemm_chunk.h"
#include "device/cpu/skinny.h"
#include "device/cpu/square.h"

enum {
    AT_ONCE = 4,     /* rows whose sums are in registers at once */
    DEPTH = BLOCK_K, /* the most of a block of k */
    RUNS = 1024,     /* of k, at most */
    LEVELS = 5,      /* of sums that are to be added: the tree of LK__SUM_PARTS, and a block */
};

/* Elements of k that lie next to each other. A block is one run, or several where it has some of several segments. */
typedef struct k_run {
    int64_t k;
    int32_t length;
    int16_t merges; /* after the last run of a block: the top two sums are added so many times */
    bool    begins; /* a block */
} k_run;

typedef struct few {
    const gemm *g;
    int         runs;
    int64_t     blocks;
    int64_t     columns, tiles;
    REAL       *sums; /* [block][m][n], where blocks are summed apart */
    k_run       run[RUNS];
} few;

static int64_t count_blocks(const gemm *g)
{
    gemm_cursor cursor = gemm_first_chunk(g);
    int64_t     count = 0;
    for (int merges; g->k > 0 && gemm_more_blocks(g, &cursor); count++) gemm_next_block(g, &cursor, &merges);
    return count;
}

static void list_runs(few *f)
{
    gemm_cursor cursor = gemm_first_chunk(f->g);
    while (f->g->k > 0 && gemm_more_blocks(f->g, &cursor)) {
        int     merges;
        int64_t k = cursor.k, a, b, end = k + gemm_next_block(f->g, &cursor, &merges);
        for (bool begins = true; k < end; begins = false) {
            int64_t length = min64(end - k, gemm_run_at(f->g, k, &a, &b));
            k += length;
            f->run[f->runs++] = (k_run){a, (int32_t)length, (int16_t)(k == end ? merges : 0), begins};
        }
        f->blocks++;
    }
}

bool skinny_fit(const gemm *g)
{
    return g->m <= FEW && g->batch == 1 && !g->sum && !g->add && g->a_k == 1 && g->c_column == 1 &&
           count_blocks(g) + LK__SUM_PARTS * LK__SUM_SEGMENTS <= RUNS;
}

/* Rows of A from k on, as REALs. */
static void take_rows(const gemm *g, int64_t k, int64_t depth, REAL (*converted)[DEPTH], const REAL **rows)
{
    for (int64_t i = 0; i < g->m; i++) {
        const ELEMENT *from = g->a + i * g->a_row + k;
#if NARROW
        copy_wide(converted[i], from, depth);
        rows[i] = converted[i];
#else
        (void)converted, (void)depth;
        rows[i] = from;
#endif
    }
}

/* ---- B contiguous along k: VL × VL blocks of it are transposed in registers, so that a vector holds VL columns ----
 */

/* Columns whose sums are in registers at once: enough of them to hide the latency of an addition. At least two vectors:
 * where a loop has a single chain of sums, GCC 13 multiplies and adds apart on x86 (avoid-fma-max-bits), with other
 * bits than gemm's. */
#if VECTOR_BYTES == 16
enum { GROUPS = 4 };
#else
enum { GROUPS = 2 };
#endif
enum { WIDTH = GROUPS * VL };

/* Adds one run of k to sums[r][…] of WIDTH columns, b[column] being their rows in memory. `rows` is a constant where
 * this is inlined. */
INLINE void dot_columns(const int rows, const REAL *const *a, const ELEMENT *const *b, int64_t depth,
                        REAL (*sums)[WIDTH])
{
    vec     total[AT_ONCE][GROUPS];
    int64_t k = 0;
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int q = 0; q < GROUPS; q++) total[r][q] = load(sums[r] + q * VL);
    }
    for (; k + VL <= depth; k += VL) {
        UNROLL
        for (int q = 0; q < GROUPS; q++) {
            vec w[VL];
            UNROLL
            for (int l = 0; l < VL; l++) w[l] = load(b[q * VL + l] + k);
            transpose_square(w);
            UNROLL
            for (int l = 0; l < VL; l++) {
                UNROLL
                for (int r = 0; r < rows; r++) total[r][q] += (a[r][k + l] - (vec){0}) * w[l];
            }
        }
    }
    for (; k < depth; k++) {
        UNROLL
        for (int q = 0; q < GROUPS; q++) {
            vec w;
            for (int l = 0; l < VL; l++) w[l] = load_one(b[q * VL + l] + k);
            UNROLL
            for (int r = 0; r < rows; r++) total[r][q] += (a[r][k] - (vec){0}) * w;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int q = 0; q < GROUPS; q++) store(sums[r] + q * VL, total[r][q]);
    }
}

static void dot_rows(int64_t rows, const REAL *const *a, const ELEMENT *const *b, int64_t depth, REAL (*sums)[WIDTH])
{
    switch (rows) {
    case 1: dot_columns(1, a, b, depth, sums); break;
    case 2: dot_columns(2, a, b, depth, sums); break;
    case 3: dot_columns(3, a, b, depth, sums); break;
    default: dot_columns(4, a, b, depth, sums); break;
    }
}

typedef REAL level_sums[FEW][WIDTH];

static void add_top(int64_t m, level_sums *top)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < WIDTH; q += VL) store(top[-2][i] + q, load(top[-2][i] + q) + load(top[-1][i] + q));
}

/* WIDTH columns from j on, or as many as there are. */
static void multiply_columns(const few *f, int64_t j)
{
    const gemm    *g = f->g;
    const ELEMENT *b[WIDTH];
    const REAL    *a[FEW];
    REAL           converted[NARROW ? FEW : 1][DEPTH];
    level_sums     levels[LEVELS], *top = levels;
    int64_t        n = min64(WIDTH, g->n - j);
    if (f->runs == 0) memset(levels[0], 0, sizeof levels[0]);
    for (const k_run *run = f->run; run < f->run + f->runs; run++) {
        if (run->begins) memset(*top++, 0, (size_t)g->m * sizeof **top);
        take_rows(g, run->k, run->length, converted, a);
        for (int64_t q = 0; q < WIDTH; q++) b[q] = g->b + (j + min64(q, n - 1)) * g->b_column + run->k;
        for (int64_t i = 0; i < g->m; i += AT_ONCE)
            dot_rows(min64(AT_ONCE, g->m - i), a + i, b, run->length, top[-1] + i);
        for (int merges = run->merges; merges > 0; merges--, top--) add_top(g->m, top);
    }
    for (int64_t i = 0; i < g->m; i++) finish_columns(g, i, j, n, levels[0][i]);
}

static void columns_tile(void *argument, int64_t tile, int worker)
{
    const few *f = argument;
    int64_t    end = min64(f->g->n, (tile + 1) * f->columns);
    (void)worker;
    for (int64_t j = tile * f->columns; j < end; j += WIDTH) multiply_columns(f, j);
}

/* ---- B contiguous along its columns: a tile is a block of k and a strip of columns, whose sums are in the first-level
 * cache ---- */

enum { STEPS = 16 }; /* rows of B that are added at once, for one load and store of a sum */

/* Adds `steps` rows of B, one vector of columns of each, to the sums of `rows` rows of C. x: the factors,
 * [row][step]. */
INLINE void add_vector(const int rows, const int steps, const vec (*x)[STEPS], const ELEMENT *b, int64_t b_row,
                       int64_t lanes, REAL *sums)
{
    vec w[STEPS];
    UNROLL
    for (int q = 0; q < steps; q++) w[q] = load_part(b + q * b_row, lanes);
    UNROLL
    for (int r = 0; r < rows; r++) {
        vec total = load(sums + r * STRIP);
        UNROLL
        for (int q = 0; q < steps; q++) total += x[r][q] * w[q];
        store(sums + r * STRIP, total);
    }
}

/* The same for n columns. rows and steps are constants where this is inlined. */
INLINE void add_rows(const int rows, const int steps, const REAL *const *a, int64_t k, const ELEMENT *b, int64_t b_row,
                     int64_t n, REAL (*sums)[STRIP])
{
    vec     x[AT_ONCE][STEPS];
    int64_t j = 0;
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int q = 0; q < steps; q++) x[r][q] = a[r][k + q] - (vec){0};
    }
    UNROLL_2
    for (; j + VL <= n; j += VL) add_vector(rows, steps, x, b + j, b_row, VL, sums[0] + j);
    if (j < n) add_vector(rows, steps, x, b + j, b_row, n - j, sums[0] + j); /* sums past n are of no column */
}

INLINE void add_block(const int rows, const REAL *const *a, const ELEMENT *b, int64_t b_row, int64_t depth, int64_t n,
                      REAL (*sums)[STRIP])
{
    const int steps = rows == 1 ? STEPS : STEPS / 2;
    int64_t   k = 0;
    for (; k + steps <= depth; k += steps, b += steps * b_row) add_rows(rows, steps, a, k, b, b_row, n, sums);
    for (; k < depth; k++, b += b_row) add_rows(rows, 1, a, k, b, b_row, n, sums);
}

/* The sums of one block, in n columns from j on, of as many rows of A from i on. */
static void sum_strip(const few *f, const k_run *run, int64_t i, int64_t j, int64_t n, REAL (*sums)[STRIP])
{
    const gemm *g = f->g;
    const REAL *a[FEW];
    REAL        converted[NARROW ? FEW : 1][DEPTH];
    int64_t     rows = min64(AT_ONCE, g->m - i);
    for (int64_t r = 0; r < rows; r++) memset(sums[r], 0, (size_t)round_to(n, VL) * sizeof(REAL));
    do {
        const ELEMENT *b = g->b + run->k * g->b_k + j;
        take_rows(g, run->k, run->length, converted, a);
        switch (rows) {
        case 1: add_block(1, a + i, b, g->b_k, run->length, n, sums); break;
        case 2: add_block(2, a + i, b, g->b_k, run->length, n, sums); break;
        case 3: add_block(3, a + i, b, g->b_k, run->length, n, sums); break;
        default: add_block(4, a + i, b, g->b_k, run->length, n, sums); break;
        }
    } while (++run < f->run + f->runs && !run->begins);
}

static const k_run *first_run(const few *f, int64_t block)
{
    const k_run *run = f->run;
    for (; block > 0; block--) do
            run++;
        while (!run->begins);
    return run;
}

static void strip_tile(void *argument, int64_t tile, int worker)
{
    const few  *f = argument;
    const gemm *g = f->g;
    int64_t     strips = tiles_of(g->n, f->columns), block = tile / strips, j = tile % strips * f->columns;
    int64_t     n = min64(f->columns, g->n - j);
    REAL        sums[AT_ONCE][STRIP];
    (void)worker;
    for (int64_t i = 0; i < g->m; i += AT_ONCE) {
        sum_strip(f, first_run(f, block), i, j, n, sums);
        for (int64_t r = 0; r < min64(AT_ONCE, g->m - i); r++)
            memcpy(f->sums + (block * g->m + i + r) * g->n + j, sums[r], (size_t)n * sizeof(REAL));
    }
}

/* Row i of the blocks' sums, each of which is added where the one below it on the stack is. */
static void add_blocks_of_row(const few *f, int64_t i)
{
    const gemm *g = f->g;
    int64_t     stack[LEVELS], block = 0;
    int         depth = 0;
    for (const k_run *run = f->run; run < f->run + f->runs; run++) {
        if (run->begins) stack[depth++] = block++;
        for (int merges = run->merges; merges > 0; merges--, depth--) {
            REAL       *sum = f->sums + (stack[depth - 2] * g->m + i) * g->n;
            const REAL *more = f->sums + (stack[depth - 1] * g->m + i) * g->n;
            for (int64_t j = 0; j < g->n; j++) sum[j] += more[j];
        }
    }
}

static void add_blocks(const few *f)
{
    const gemm *g = f->g;
    for (int64_t i = 0; i < g->m; i++) {
        REAL *sum = f->sums + i * g->n;
        add_blocks_of_row(f, i);
        if (f->blocks == 0) memset(sum, 0, (size_t)g->n * sizeof *sum);
        finish_columns(g, i, 0, g->n, sum);
    }
}

int64_t skinny_space(const gemm *g)
{
    return g->b_k == 1 && g->b_transposed ? 0 : g->m * g->n * max64(1, count_blocks(g));
}

void skinny_run(const gemm *g, lk__pool *pool, void *workspace)
{
    few f;
    f.g = g, f.sums = workspace;
    f.runs = 0, f.blocks = 0;
    list_runs(&f);
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
