/* gemm.c - the blocked matrix product: independent tiles of C, each of which packs what it needs into its worker's scratch.
 *
 * A is packed in panels too (micro_tn, which reads one stream instead of MR), by whole vectors or by transposing, except that one
 * which is contiguous along k and meets few columns is read in place (micro_nn). Where ELEMENT is narrower than REAL, both are converted block by block, and C's blocks are summed in scratch. B is
 * packed in panels; a B that is contiguous along k must be transposed for that, and where either operand could be B, the
 * product is transposed (C' = B' A') so that B is the smaller one. A large product packs each operand once, for all tiles. */
#include "device/cpu/gemm.h"

#include "base/tree.h"

enum {
    BLOCK_K = 256, /* a panel of B is 16 KiB (NEON, f32): it stays in the first-level cache */
    BLOCK_A =
        32 << 10, /* elements of A that are multiplied with a panel of B: with B's block, 3/8 of a second-level cache of 1 MiB */
    BLOCK_B = 64 << 10,
    BLOCK_C = 32 << 10, /* elements, where C goes through scratch */
    SHARED = 1 << 20,   /* elements of a B packed once for all tiles */
    SMALL = 8 << 10,    /* elements of an A that is not packed */
    REUSED = 6 * NR,    /* columns for which an A that is contiguous along k is transposed */
    LONGEST = 512,      /* rows or columns of a block */
    MANY = 32,          /* tiles: enough for as many threads */
    LEAST = 8 << 20     /* multiplications that justify a separate tile */
};

/* How C is split into blocks; depends on the shape alone. */
typedef struct blocks {
    int64_t m, n, k; /* largest extents of a block */
    int64_t rows, columns;
} blocks;

static int64_t even_part(int64_t n, int64_t largest, int64_t unit) /* splits n into equal parts of whole units */
{
    int64_t parts = max64(1, tiles_of(n, max64(unit, largest / unit * unit)));
    return max64(unit, round_to(tiles_of(n, parts), unit));
}

int64_t gemm_block_k(int64_t k) { return even_part(k, BLOCK_K, 4); }

static blocks choose_blocks(const gemm *g, bool through_scratch)
{
    blocks b;
    b.k = gemm_block_k(g->k);
    b.m = even_part(g->m, min64(LONGEST, BLOCK_A / b.k), MR);
    b.n = even_part(g->n, min64(LONGEST, BLOCK_B / b.k), NR);
    double  products = (double)g->m * (double)g->n * (double)g->k * (g->sum ? (double)g->batch : 1);
    int64_t outputs = g->sum ? 1 : g->batch;
    for (;;) {
        b.rows = tiles_of(g->m, b.m);
        b.columns = tiles_of(g->n, b.n);
        int64_t tiles = b.rows * b.columns;
        bool    fits = !through_scratch || b.m * b.n <= BLOCK_C;
        if (fits && (tiles * outputs >= MANY || products < 2.0 * LEAST * (double)tiles)) return b;
        if (b.m >= 4 * MR && b.m >= b.n)
            b.m = round_to(tiles_of(b.m, 2), MR);
        else if (b.n >= 4 * NR)
            b.n = round_to(tiles_of(b.n, 2), NR);
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

/* Whether C's sums can be added up where C is. */
static bool c_in_place(const gemm *g) { return g->c_column == 1 && (!NARROW || g->c_wide); }

typedef struct job {
    gemm   asked, g; /* g may be the transposed product */
    blocks cut;
    bool   transposed; /* bias goes along rows */
    REAL  *shared;     /* all of B packed, [block of k][panel][k][NR]; NULL: each tile packs its own */
    char  *workspace;
    size_t per_worker;
} job;

/* Scratch for g and any smaller m, n, k. A transposed B remains B when A is contiguous along k, and then has the fewer columns;
 * otherwise the product is transposed. */
static int64_t columns_of_b(const gemm *g) { return !g->b_transposed ? g->n : g->a_k == 1 ? min64(g->m, g->n) : g->m; }
static int64_t a_space(const gemm *g)
{
    bool    reused = max64(g->m, g->n) >= REUSED;
    int64_t most = (NARROW || reused) && g->b_transposed ? max64(g->m, g->n) : g->m;
    int64_t rows = round_to(min64(LONGEST, most), MR);
    bool    in_place = !NARROW && !reused && (g->a_k == 1 || g->b_transposed);
    return in_place ? 0 : min64(BLOCK_A + MR * BLOCK_K, rows * round_to(g->k, 4));
}
static int64_t b_space(const gemm *g) /* one row of each panel is unused */
{
    int64_t columns = round_to(min64(LONGEST, columns_of_b(g)), NR);
    return min64(BLOCK_B + NR * BLOCK_K, columns * round_to(g->k, 4)) + columns;
}
static int64_t c_space(const gemm *g) { return g->b_transposed || !c_in_place(g) ? min64(BLOCK_C, g->m * g->n) : 0; }

/* Transposing costs more than copying: a B that many tiles would transpose is packed once for all of them, unless that takes
 * too much memory. */
static int64_t shared_columns(const gemm *g)
{
    return g->b_transposed && g->a_k == 1 && g->alone ? round_to(columns_of_b(g), NR) : 0;
}
static int64_t shared_space(const gemm *g) { return min64(SHARED, shared_columns(g) * g->k); }

/* A large product is split into slabs; of each, some blocks of k of A and of B are packed at a time, once for all tiles. */
enum {
    SLAB = 4096, /* rows or columns of a slab */
    PACKED =
        512 << 10, /* elements of A or B that are packed at a time, if that is more than one block of k: half of a cache */
    LARGE = 192, /* rows or columns: at least, of a large product */
    TILES = 128  /* of a slab: so that threads end at about the same time */
};
static bool is_large(const gemm *g)
{
    return g->alone && c_in_place(g) && g->m >= LARGE && g->n >= LARGE && g->k >= 64 && g->m * g->n >= 4 * LARGE * LARGE;
}
static int64_t slab_space(int64_t extent, int64_t k, int64_t unit)
{
    return round_to(min64(SLAB, extent), unit) *
           min64(max64(BLOCK_K, PACKED / round_to(min64(SLAB, extent), unit)), round_to(k, 4));
}
static size_t large_space(const gemm *g)
{
    return is_large(g) ? space_of(slab_space(g->m, g->k, MR)) + space_of(slab_space(g->n, g->k, NR)) : 0;
}

static size_t worker_space(const gemm *g) { return space_of(a_space(g)) + space_of(b_space(g)) + space_of(c_space(g)); }

size_t gemm_workspace(const gemm *g, int threads)
{
    size_t tiled = space_of(shared_space(g)) + (size_t)threads * worker_space(g), large = large_space(g);
    return tiled > large ? tiled : large;
}

/* Panels of NR columns, each k × NR, `panel` elements apart. */
static void pack_b(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, REAL *to, int64_t panel)
{
    int64_t whole = n / NR, rest = n - whole * NR;
    if (g->b_column == 1)
        for (int64_t q = 0; q < k; q++) { /* along the rows; the hardware does not prefetch the next row */
            const ELEMENT *from = b + q * g->b_k, *next = from + min64(4, k - 1 - q) * g->b_k;
            for (int64_t j = 0; j < whole; j++) {
                __builtin_prefetch(next + j * NR, 0, 2);
                copy_wide(to + j * panel + q * NR, from + j * NR, NR);
            }
        }
    else
        for (int64_t j = 0; j < whole; j++)
            transpose_wide(to + j * panel, NR, b + j * NR * g->b_column, g->b_column, NR, k);
    if (rest == 0) return;
    b += whole * NR * g->b_column;
    to += whole * panel;
    memset(to, 0, (size_t)(k * NR) * sizeof(REAL));
    if (g->b_column == 1)
        for (int64_t q = 0; q < k; q++) copy_wide(to + q * NR, b + q * g->b_k, rest);
    else
        transpose_wide(to, NR, b, g->b_column, rest, k);
}

/* Panels of MR rows, each k × MR. */
static void pack_a(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, REAL *to)
{
    for (int64_t i = 0; i < m; i += MR, to += k * MR) {
        int64_t rows = min64(MR, m - i);
        if (rows == MR)
            for (int64_t q = 0; q < k; q++) copy_wide(to + q * MR, a + q * g->a_k + i, MR);
        else
            for (int64_t q = 0; q < k; q++)
                for (int64_t p = 0; p < MR; p++) to[q * MR + p] = p < rows ? load_one(a + q * g->a_k + i + p) : 0;
    }
}

/* The same of an A that is contiguous along k. */
static void pack_a_rows(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, REAL *to)
{
    for (int64_t i = 0; i < m; i += MR, to += k * MR) {
        if (m - i < MR) memset(to, 0, (size_t)(k * MR) * sizeof(REAL));
        transpose_wide(to, MR, a + i * g->a_row, g->a_row, min64(MR, m - i), k);
    }
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

/* One block of k. */
typedef struct step {
    const REAL *a; /* rows, or panels: (i, k) at a[i*a_panel + k*a_k] */
    bool        by_rows;
    int64_t     a_row, a_panel, a_k;
    const REAL *b; /* panels, `panel` elements apart */
    int64_t     panel, k;
    bool        start;
    REAL       *c;
    int64_t     c_row;
} step;

/* C's block += (or =, to start) A's rows times B's panels. */
static void multiply(int64_t m, int64_t n, const step *s)
{
    const REAL *rows[LONGEST];
    REAL       *to[LONGEST];
    runs        r = {.runs = 1, .length = s->k, .a_k = s->a_k};
    for (int64_t i = 0; s->by_rows && i < m; i++) {
        rows[i] = s->a + i * s->a_row;
        to[i] = s->c + i * s->c_row;
    }
    const REAL *panel = s->b;
    for (int64_t j = 0; j < n; j += NR, panel += s->panel) {
        int64_t     columns = min64(NR, n - j);
        const REAL *first = s->start ? zeros : NULL;
        if (s->by_rows)
            micro_nn(m, rows, &r, panel, first, to, j, columns);
        else
            for (int64_t i = 0; i < m; i += MR)
                micro_tn(min64(MR, m - i), s->a + i * s->a_panel, &r, panel, first, s->c + i * s->c_row + j, s->c_row,
                         columns);
    }
}

/* line += bias (if not NULL; `step` 0: one for the whole line, 1: one per element), then the activation. */
static void finish_line(REAL *line, int64_t n, const ELEMENT *bias, int64_t step, lk__op_unary activation)
{
    int64_t j = 0;
    bool    relu = activation == LK__RELU;
    vec     b = bias && step == 0 ? load_one(bias) - (vec){0} : (vec){0};
    for (; j + VL <= n; j += VL) {
        vec x = load(line + j);
        if (bias) x += step ? load(bias + j) : b;
        store(line + j, relu ? choose(x < splat(0), splat(0), x) : x);
    }
    for (; j < n; j++) {
        REAL x = bias ? line[j] + load_one(bias + j * step) : line[j];
        line[j] = relu && x < 0 ? 0 : x;
    }
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

static void finish_tile(const job *job, place p, bool empty, REAL *sum, int64_t row, int64_t at)
{
    const gemm    *g = &job->g;
    const ELEMENT *bias = g->bias ? g->bias + (job->transposed ? p.i : p.j) : NULL;
    for (int64_t i = 0; empty && i < p.m; i++) /* no k at all */
        memset(sum + i * row, 0, (size_t)p.n * sizeof *sum);
    /* The bias is added last, also when transposed: a row's numbers do not depend on the number of rows. */
    if (bias || g->activation == LK__RELU)
        for (int64_t i = 0; i < p.m; i++)
            finish_line(sum + i * row, p.n, bias ? bias + (job->transposed ? i : 0) : NULL, !job->transposed,
                        g->activation);
    if (NARROW && !g->c_wide)
        store_narrow(g, at, sum, p.m, p.n);
    else if (g->c_column != 1)
        transpose((REAL *)g->c + at, g->c_column, sum, row, p.m, p.n);
}

/* One block of A, from `from` on, for n columns: in place where micro-kernels can read it, else in `scratch`. */
static void take_a(const gemm *g, const ELEMENT *from, int64_t m, int64_t n, bool in_place, REAL *scratch, step *s)
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
    else if (g->a_k == 1)
        pack_a_rows(g, from, m, s->k, scratch);
    else
        pack_a(g, from, m, s->k, scratch);
}

static void run_tile(void *argument, int64_t index, int worker)
{
    const job  *job = argument;
    const gemm *g = &job->g;
    place       p = place_of(job, index);
    char       *scratch = job->workspace + (size_t)worker * job->per_worker;
    REAL       *a = (REAL *)scratch, *b = (REAL *)(scratch + space_of(a_space(&job->asked)));
    REAL       *c = (REAL *)((char *)b + space_of(b_space(&job->asked)));
    int64_t     at = p.batch * g->c_batch + p.i * g->c_row + p.j * g->c_column;
    bool        direct = c_in_place(g);
    step        s = {.start = !g->add, .c = direct ? (REAL *)g->c + at : c, .c_row = direct ? g->c_row : p.n};
    bool        in_place = !NARROW && (g->a_k == 1 || (p.m % MR == 0 && p.m * g->k <= SMALL));
    for (int64_t part = 0; part < (g->sum ? g->batch : 1); part++) {
        const ELEMENT *a_from = g->a + (p.batch + part) * g->a_batch + p.i * g->a_row;
        const ELEMENT *b_from = g->b + (p.batch + part) * g->b_batch + p.j * g->b_column;
        for (int64_t k = 0; k < g->k; k += s.k, s.start = false) {
            s.k = min64(job->cut.k, g->k - k);
            take_a(g, a_from + k * g->a_k, p.m, p.n, in_place, a, &s);
            s.b = job->shared ? job->shared + k * round_to(g->n, NR) + p.j * s.k : b;
            /* Panels in a worker's scratch are one row apart, so that the parts of a row do not map to one cache set. */
            s.panel = job->shared ? s.k * NR : (s.k + 1) * NR;
            if (!job->shared) pack_b(g, b_from + k * g->b_k, p.n, s.k, b, s.panel);
            multiply(p.m, p.n, &s);
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
    pack_b(g, g->b + k * g->b_k, g->n, depth, job->shared + k * round_to(g->n, NR), depth * NR);
}

/* ---- large products ---- */

typedef struct slab {
    const gemm *g;
    int64_t     i, j, m, n; /* its place in C */
    int64_t     k, depth;   /* what is packed of k, and … */
    int64_t     block;      /* … of which so many at a time */
    int64_t     tile_m, tile_n, columns, panels_a, panels_b;
    int64_t     rows_a, columns_b; /* m and n, rounded up to whole panels */
    REAL       *a, *b;
} slab;

enum { GROUP = 128, GROUP_ROWS = GROUP / MR * MR }; /* columns and rows that are packed as one tile: whole panels */

/* Block of k by block of k, each in panels. */
static void pack_slab(void *argument, int64_t part, int worker)
{
    const slab *s = argument;
    const gemm *g = s->g;
    int64_t     groups = s->panels_a + s->panels_b, k = part / groups * s->block, depth = min64(s->block, s->depth - k);
    (void)worker;
    part %= groups;
    if (part < s->panels_b) {
        int64_t j = part * GROUP;
        pack_b(g, g->b + (s->j + j) * g->b_column + (s->k + k) * g->b_k, min64(GROUP, s->n - j), depth,
               s->b + k * s->columns_b + j * depth, depth * NR);
        return;
    }
    int64_t        i = (part - s->panels_b) * GROUP_ROWS, m = min64(GROUP_ROWS, s->m - i);
    const ELEMENT *from = g->a + (s->i + i) * g->a_row + (s->k + k) * g->a_k;
    REAL          *to = s->a + k * s->rows_a + i * depth;
    if (g->a_k == 1)
        pack_a_rows(g, from, m, depth, to);
    else
        pack_a(g, from, m, depth, to);
}

static void multiply_slab(void *argument, int64_t tile, int worker)
{
    const slab *s = argument;
    const gemm *g = s->g;
    int64_t     i = tile / s->columns * s->tile_m, j = tile % s->columns * s->tile_n;
    int64_t     m = min64(s->tile_m, s->m - i), n = min64(s->tile_n, s->n - j);
    REAL       *c = (REAL *)g->c + (s->i + i) * g->c_row + s->j + j;
    (void)worker;
    for (int64_t k = 0; k < s->depth; k += s->block) {
        int64_t depth = min64(s->block, s->depth - k);
        step    now = {.a = s->a + k * s->rows_a + i * depth,
                       .a_panel = depth,
                       .a_k = MR,
                       .b = s->b + k * s->columns_b + j * depth,
                       .panel = depth * NR,
                       .k = depth,
                       .start = s->k + k == 0 && !g->add,
                       .c = c,
                       .c_row = g->c_row};
        multiply(m, n, &now);
    }
    if (s->k + s->depth == g->k && (g->bias || g->activation == LK__RELU))
        for (int64_t q = 0; q < m; q++)
            finish_line(c + q * g->c_row, n, g->bias ? g->bias + s->j + j : NULL, 1, g->activation);
}

static void run_slab(slab *s, lk__pool *pool)
{
    int64_t rows, together;
    s->block = even_part(s->g->k, BLOCK_K, 4);
    s->rows_a = round_to(s->m, MR);
    s->columns_b = round_to(s->n, NR);
    together = max64(1, PACKED / max64(s->rows_a, s->columns_b) / s->block) * s->block;
    s->tile_m = even_part(s->m, s->m >= MANY * GROUP ? GROUP : GROUP / 2, MR);
    rows = tiles_of(s->m, s->tile_m);
    s->tile_n = even_part(s->n, max64(4 * NR, s->n / tiles_of(TILES, rows)), NR);
    s->columns = tiles_of(s->n, s->tile_n);
    s->panels_a = tiles_of(s->m, GROUP_ROWS);
    s->panels_b = tiles_of(s->n, GROUP);
    for (s->k = 0; s->k < s->g->k; s->k += s->depth) {
        s->depth = min64(together, s->g->k - s->k);
        lk__pool_run(pool, (s->panels_a + s->panels_b) * tiles_of(s->depth, s->block), pack_slab, s);
        lk__pool_run(pool, rows * s->columns, multiply_slab, s);
    }
}

/* The same sums as by tiles: blocks of k are the same, and each is added to C in their order. */
static void run_large(const gemm *g, lk__pool *pool, void *workspace)
{
    slab s = {.g = g, .a = workspace, .b = (REAL *)((char *)workspace + space_of(slab_space(g->m, g->k, MR)))};
    for (s.i = 0; s.i < g->m; s.i += SLAB)
        for (s.j = 0; s.j < g->n; s.j += SLAB) {
            s.m = min64(SLAB, g->m - s.i);
            s.n = min64(SLAB, g->n - s.j);
            run_slab(&s, pool);
        }
}

void gemm_run(const gemm *g, lk__pool *pool, void *workspace)
{
    job job = {.asked = *g, .g = *g};
    if (g->m <= 0 || g->n <= 0 || (g->batch <= 0 && !g->sum)) return;
    if (is_large(g)) {
        run_large(g, pool, workspace);
        return;
    }
    if (few_rows_fit(g) && few_rows_space(g) <= b_space(g)) {
        few_rows_run(g, pool, workspace);
        return;
    }
    if (g->b_transposed && (g->a_k != 1 || g->n > g->m)) {
        job.g = transposed_product(g);
        job.transposed = true;
    }
    job.cut = choose_blocks(&job.g, job.transposed || !c_in_place(&job.g));
    job.per_worker = worker_space(g);
    int64_t columns = shared_columns(g);
    if (columns > 0 && columns * g->k <= SHARED && job.cut.rows > 1) {
        job.shared = workspace;
        lk__pool_run(pool, tiles_of(job.g.k, job.cut.k), pack_shared_b, &job);
    }
    job.workspace = (char *)workspace + space_of(shared_space(g));
    lk__pool_run(pool, job.cut.rows * job.cut.columns * (g->sum ? 1 : g->batch), run_tile, &job);
}

/* ---- k split into leaves ---- */

typedef struct leaf_job {
    job                      job;
    const lk__kernel_leaves *leaves;
} leaf_job;

/* The product of one leaf, into its own tile. Blocks depend on the leaf's length alone: its bits do not depend on other leaves. */
static void multiply_leaf(const job *job, place p, int64_t first, int64_t last, REAL *scratch, REAL *sum)
{
    const gemm *g = &job->g;
    REAL       *a = scratch, *b = (REAL *)((char *)scratch + space_of(a_space(&job->asked)));
    int64_t     block = even_part(last - first, BLOCK_K, 4);
    step        s = {.start = true, .c = sum, .c_row = p.n};
    for (int64_t k = first; k < last; k += s.k, s.start = false) {
        s.k = min64(block, last - k);
        take_a(g, g->a + p.i * g->a_row + k * g->a_k, p.m, p.n, !NARROW && g->a_k == 1, a, &s);
        s.b = b;
        s.panel = (s.k + 1) * NR;
        pack_b(g, g->b + p.j * g->b_column + k * g->b_k, p.n, s.k, b, s.panel);
        multiply(p.m, p.n, &s);
    }
    if (s.start) memset(sum, 0, (size_t)(p.m * p.n) * sizeof *sum);
}

static void add_tile(REAL *to, const REAL *more, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) store(to + i, load(to + i) + load(more + i));
    for (; i < n; i++) to[i] += more[i];
}

/* Partial results are added as soon as the pairwise tree allows it. */
static void run_leaf_tile(void *argument, int64_t index, int worker)
{
    const leaf_job *q = argument;
    const job      *job = &q->job;
    place           p = place_of(job, index);
    int64_t         size = p.m * p.n;
    REAL           *scratch = (REAL *)(job->workspace + (size_t)worker * job->per_worker);
    REAL           *sums = (REAL *)((char *)q->leaves->sums + (size_t)worker * lk__kernel_leaves_bytes());
    int             depth = 0;
    for (int leaf = 0; leaf < q->leaves->count; leaf++) {
        multiply_leaf(job, p, q->leaves->rows[leaf], q->leaves->rows[leaf + 1], scratch, sums + depth * size);
        depth++;
        for (int merges = lk__tree_merges(leaf, q->leaves->count); merges > 0; merges--, depth--)
            add_tile(sums + (depth - 2) * size, sums + (depth - 1) * size, size);
    }
    REAL *out = (REAL *)job->g.c + p.i * job->g.c_row + p.j;
    for (int64_t i = 0; i < p.m; i++) memcpy(out + i * job->g.c_row, sums + i * p.n, (size_t)p.n * sizeof *out);
}

void gemm_run_leaves(const gemm *g, const lk__kernel_leaves *leaves, lk__pool *pool, void *workspace)
{
    leaf_job q = {.job = {.asked = *g, .g = *g}, .leaves = leaves};
    blocks  *b = &q.job.cut;
    if (g->m <= 0 || g->n <= 0) return;
    q.job.per_worker = worker_space(g);
    q.job.workspace = (char *)workspace + space_of(shared_space(g));
    b->m = even_part(g->m, 64, MR);
    b->n = even_part(g->n, LK__LEAVES_TILE / b->m, NR);
    while (b->m * b->n > LK__LEAVES_TILE) b->n -= NR;
    b->rows = tiles_of(g->m, b->m);
    b->columns = tiles_of(g->n, b->n);
    lk__pool_run(pool, b->rows * b->columns, run_leaf_tile, &q);
}
