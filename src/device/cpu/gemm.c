/* gemm.c - the blocked matrix product: independent tiles of C, each of which packs what it needs into its worker's
 * scratch.
 *
 * A is packed in panels too (micro_tn, which reads one stream instead of MR), by whole vectors or by transposing,
 * except that an A which is contiguous along k and is multiplied with few columns is read in place (micro_nn). Where
 * ELEMENT is narrower than REAL, both are converted block by block, and C's blocks are summed in scratch. B is packed
 * in panels; a B that is contiguous along k must be transposed for that, and where either operand could be B, the
 * product is transposed (C' = B' A') so that B is the smaller one. A large product packs each operand once, for all
 * tiles.
 *
 * With a matrix instruction set (MATRIX), both operands are packed in panels without conversion; both layouts cost the
 * same. */
#include "device/cpu/gemm_block.h"

enum { LARGE_A = 64 << 10 }; /* elements: fewer are in a cache */

/* How C is split into blocks; depends on the shape alone. */
typedef struct blocks {
    int64_t m, n, k; /* largest extents of a block */
    int64_t rows, columns;
} blocks;

int64_t gemm_block_k(int64_t k) { return even_part(k, BLOCK_K, BLOCK_UNIT); }

static blocks choose_blocks(const gemm *g, bool through_scratch)
{
    blocks b;
    b.k = gemm_block_k(g->k);
    b.m = even_part(g->m, min64(LONGEST, BLOCK_A / b.k), PANEL_ROWS);
    b.n = even_part(g->n, min64(LONGEST, BLOCK_B / b.k), PANEL_COLUMNS);
    double  products = (double)g->m * (double)g->n * (double)g->k * (g->sum ? (double)g->batch : 1);
    int64_t outputs = g->sum ? 1 : g->batch;
    for (;;) {
        b.rows = tiles_of(g->m, b.m);
        b.columns = tiles_of(g->n, b.n);
        int64_t tiles = b.rows * b.columns;
        bool    fits = !through_scratch || b.m * b.n <= BLOCK_C;
        if (fits && (tiles * outputs >= MANY || products < 2.0 * LEAST * (double)tiles)) return b;
        if (b.m >= 4 * PANEL_ROWS && b.m >= b.n)
            b.m = round_to(tiles_of(b.m, 2), PANEL_ROWS);
        else if (b.n >= 4 * PANEL_COLUMNS)
            b.n = round_to(tiles_of(b.n, 2), PANEL_COLUMNS);
        else
            return b;
    }
}

/* The transposed product: C' = B' A'. */
static gemm transposed_product(const gemm *g)
{
    gemm t = *g;
    t.m = g->n, t.n = g->m;
    t.a = g->b, t.a_row = g->b_column, t.a_k = g->b_k, t.a_batch = g->b_batch;
    t.b = g->a, t.b_k = g->a_k, t.b_column = g->a_row, t.b_batch = g->a_batch;
    t.c_row = g->c_column, t.c_column = g->c_row;
    return t;
}

typedef struct job {
    gemm         g; /* may be the transposed product */
    blocks       cut;
    bool         transposed; /* bias goes along rows */
    PACKED      *shared;     /* all of B packed, by block of k and panel; NULL: each tile packs its own */
    gemm_scratch scratch;
    char        *workspace; /* of the workers */
} job;

/* Scratch for g and any smaller m, n, k. A transposed B remains B when A is contiguous along k, and then has the fewer
 * columns unless it is one of a group; otherwise the product is transposed. */
static bool    may_transpose(const gemm *g) { return !MATRIX && g->b_transposed; }
static int64_t columns_of_b(const gemm *g)
{
    return !may_transpose(g) || gemm_keeps_b(g) ? g->n : g->a_k == 1 ? min64(g->m, g->n) : g->m;
}
static int64_t a_space(const gemm *g)
{
    bool    reused = max64(g->m, g->n) >= REUSED;
    int64_t most = (NARROW || reused) && may_transpose(g) ? max64(g->m, g->n) : g->m;
    int64_t rows = round_to(min64(LONGEST, most), PANEL_ROWS);
    bool    in_place = !NARROW && !reused && (g->a_k == 1 || g->b_transposed);
    return in_place ? 0 : min64(BLOCK_A + PANEL_ROWS * BLOCK_K, rows * round_to(g->k, BLOCK_UNIT));
}
static int64_t b_space(const gemm *g) /* one row of each panel is unused */
{
    int64_t columns = round_to(min64(LONGEST, columns_of_b(g)), PANEL_COLUMNS);
    return min64(BLOCK_B + PANEL_COLUMNS * BLOCK_K, columns * round_to(g->k, BLOCK_UNIT)) + columns * PANEL_UNIT;
}
static int64_t c_space(const gemm *g) { return may_transpose(g) || !c_in_place(g) ? min64(BLOCK_C, g->m * g->n) : 0; }

/* Transposing costs more than copying: a B that many tiles would transpose is packed once for all of them, unless that
 * takes too much memory. */
static int64_t shared_columns(const gemm *g)
{
    bool shares = MATRIX || (g->b_transposed && g->a_k == 1);
    return shares && g->alone ? round_to(columns_of_b(g), PANEL_COLUMNS) : 0;
}
static int64_t shared_space(const gemm *g) { return min64(SHARED, shared_columns(g) * packed_depth(g->k)); }

gemm_scratch gemm_scratch_of(const gemm *g)
{
    return (gemm_scratch){packed_space_of(shared_space(g)), packed_space_of(a_space(g)), packed_space_of(b_space(g)),
                          space_of(c_space(g))};
}

/* One of a batch, each of which is a product by itself; or, with sum, the one product. */
static gemm one_of_batch(const gemm *g, int64_t batch)
{
    gemm   one = *g;
    size_t element = NARROW && !g->c_wide ? sizeof(ELEMENT) : sizeof(REAL);
    if (g->sum) return one;
    one.batch = 1;
    one.a += batch * g->a_batch;
    one.b += batch * g->b_batch;
    one.c = (char *)g->c + (size_t)(batch * g->c_batch) * element;
    return one;
}

size_t gemm_workspace(const gemm *g, int threads)
{
    if (g->parts.count > 1) {
        gemm one = one_of_batch(g, 0);
        return gemm_large_space(&one, threads);
    }
    gemm_scratch s = gemm_scratch_of(g);
    size_t       bytes = s.shared + (size_t)threads * gemm_scratch_worker(s);
    size_t       other = max64((int64_t)gemm_large_space(g, threads), (int64_t)gemm_stream_space(g, threads));
    return bytes > other ? bytes : other;
}

typedef struct place { /* a tile: its position in C and its size */
    int64_t batch, i, j, m, n;
} place;

static place place_of(const job *job, int64_t index)
{
    int64_t per = job->cut.rows * job->cut.columns, tile = index % per;
    place   p = {index / per, tile / job->cut.columns * job->cut.m, tile % job->cut.columns * job->cut.n, 0, 0};
    p.m = min64(job->cut.m, job->g.m - p.i);
    p.n = min64(job->cut.n, job->g.n - p.j);
    return p;
}

/* Rounds the sums, (m, n) with rows n apart, to C at `at`. */
static void store_narrow(const gemm *g, int64_t at, const REAL *sum, int64_t m, int64_t n)
{
    ELEMENT *out = (ELEMENT *)g->c + at;
    if (g->c_column != 1)
        transpose_narrow(out, g->c_column, sum, n, m, n);
    else if (g->c_row == n)
        copy_narrow(out, sum, m * n);
    else
        for (int64_t i = 0; i < m; i++) copy_narrow(out + i * g->c_row, sum + i * n, n);
}

/* The bias is added last, also when transposed: a row's numbers do not depend on the number of rows. */
static void finish_tile(const job *job, place p, bool empty, REAL *sum, int64_t row, int64_t at)
{
    const gemm    *g = &job->g;
    const ELEMENT *bias = g->bias ? g->bias + (job->transposed ? p.i : p.j) : NULL;
    bool           narrow = NARROW && !g->c_wide, finishes = bias || g->activation;
    REAL          *c = (REAL *)g->c + at;
    for (int64_t i = 0; empty && i < p.m; i++) /* no k at all */
        memset(sum + i * row, 0, (size_t)p.n * sizeof *sum);
    if (!NARROW && job->transposed && !activates(g->activation)) {
        transpose_finish(c, g->c_column, sum, row, p.m, p.n, (const REAL *)(const void *)bias,
                         g->activation == LK__RELU);
        return;
    }
    for (int64_t i = 0; finishes && i < p.m; i++)
        gemm_finish_line(sum + i * row, p.n, bias ? bias + (job->transposed ? i : 0) : NULL, !job->transposed,
                         g->activation);
    if (narrow)
        store_narrow(g, at, sum, p.m, p.n);
    else if (g->c_column != 1)
        transpose(c, g->c_column, sum, row, p.m, p.n);
}

/* Where A is large: the next block of the tile's rows, and after the last one the first block of the rows that
 * follow. */
static const PACKED *next_rows(const gemm *g, place p, int64_t k, const gemm_step *s)
{
    if (g->m * g->k < LARGE_A) return NULL;
    return k + s->k < g->k ? s->a + s->k : p.i + 2 * p.m <= g->m ? s->a - k + p.m * g->a_row : NULL;
}

static void run_tile(void *argument, int64_t index, int worker)
{
    const job  *job = argument;
    const gemm *g = &job->g;
    place       p = place_of(job, index);
    char       *scratch = job->workspace + (size_t)worker * gemm_scratch_worker(job->scratch);
    PACKED     *a = (PACKED *)scratch, *b = (PACKED *)(scratch + job->scratch.a);
    REAL       *c = (REAL *)(scratch + job->scratch.a + job->scratch.b);
    int64_t     at = p.batch * g->c_batch + p.i * g->c_row + p.j * g->c_column;
    bool        direct = c_in_place(g);
    gemm_step   s = {.start = !g->add, .c = direct ? (REAL *)g->c + at : c, .c_row = direct ? g->c_row : p.n};
    bool        in_place = !NARROW && (g->a_k == 1 || (p.m % MR == 0 && p.m * g->k <= SMALL));
    for (int64_t part = 0; part < (g->sum ? g->batch : 1); part++) {
        const ELEMENT *a_from = g->a + (p.batch + part) * g->a_batch + p.i * g->a_row;
        const ELEMENT *b_from = g->b + (p.batch + part) * g->b_batch + p.j * g->b_column;
        for (int64_t k = 0; k < g->k; k += s.k, s.start = false) {
            s.k = min64(job->cut.k, g->k - k);
            gemm_take_a(g, a_from + k * g->a_k, p.m, p.n, in_place, a, &s);
            s.b = job->shared ? job->shared + k * round_to(g->n, PANEL_COLUMNS) + p.j * packed_depth(s.k) : b;
            s.panel = job->shared ? packed_depth(s.k) * PANEL_COLUMNS : apart_panel(s.k);
            s.ahead = s.by_rows && in_place ? next_rows(g, p, k, &s) : NULL;
            if (!job->shared) gemm_pack_b(g, b_from + k * g->b_k, p.n, s.k, 0, b, s.panel);
            gemm_multiply(p.m, p.n, &s);
        }
    }
    finish_tile(job, p, s.start, s.c, s.c_row, at);
}

static void pack_shared_b(void *argument, int64_t block, int worker)
{
    const job  *job = argument;
    const gemm *g = &job->g;
    int64_t     k = block * job->cut.k, depth = min64(job->cut.k, g->k - k);
    (void)worker;
    gemm_pack_b(g, g->b + k * g->b_k, g->n, depth, 0, job->shared + k * round_to(g->n, PANEL_COLUMNS),
                packed_depth(depth) * PANEL_COLUMNS);
}

/* Of a k that consists of parts. A sum over no samples is 0. */
static void run_parts(const gemm *g, lk__pool *pool, void *workspace)
{
    for (int64_t i = 0; g->sum && g->batch <= 0 && i < g->m; i++)
        memset((REAL *)g->c + i * g->c_row, 0, (size_t)g->n * sizeof(REAL));
    for (int64_t batch = 0; batch < (g->sum ? g->batch > 0 : g->batch); batch++) {
        gemm one = one_of_batch(g, batch);
        gemm_run_large(&one, pool, workspace);
    }
}

/* Whether a skinny product is done, with so many bytes of workspace. */
static bool ran_skinny(const gemm *g, size_t bytes, lk__pool *pool, void *workspace)
{
#if HAS_SKINNY
    if (!skinny_fit(g) || space_of(skinny_space(g)) > bytes) return false;
    skinny_run(g, pool, workspace);
    return true;
#else
    (void)g, (void)bytes, (void)pool, (void)workspace;
    return false;
#endif
}

void gemm_run(const gemm *g, lk__pool *pool, void *workspace)
{
    job job = {.g = *g, .scratch = gemm_scratch_of(g)};
    if (g->m <= 0 || g->n <= 0 || (g->batch <= 0 && !g->sum)) return;
    if (g->parts.count > 1) {
        if (!ran_skinny(g, gemm_large_space(g, lk__pool_workers(pool)), pool, workspace)) run_parts(g, pool, workspace);
        return;
    }
    if (gemm_is_large(g)) {
        gemm_run_large(g, pool, workspace);
        return;
    }
    if (ran_skinny(g, packed_space_of(b_space(g)), pool, workspace)) return;
    if (gemm_streams(g)) {
        gemm_run_stream(g, pool, workspace);
        return;
    }
    if (may_transpose(g) && !gemm_keeps_b(g) && (g->a_k != 1 || g->n > g->m)) {
        job.g = transposed_product(g);
        job.transposed = true;
    }
    job.cut = choose_blocks(&job.g, job.transposed || !c_in_place(&job.g));
    int64_t columns = shared_columns(g);
    if (columns > 0 && columns * packed_depth(g->k) <= SHARED && job.cut.rows > 1) {
        job.shared = workspace;
        lk__pool_run(pool, tiles_of(job.g.k, job.cut.k), pack_shared_b, &job);
    }
    job.workspace = (char *)workspace + job.scratch.shared;
    lk__pool_run(pool, job.cut.rows * job.cut.columns * (g->sum ? 1 : g->batch), run_tile, &job);
}
