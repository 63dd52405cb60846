/* gemm.c - the blocked matrix product: independent tiles of C, each of which packs what it needs into its worker's scratch.
 *
 * A needs no packing order when its k's are neighbours (micro_nn) and keeps them neighbours by row when they are not
 * (micro_tn), so copies are by whole vectors; only a B whose k's are neighbours is transposed. Where both sides can be B,
 * the product is turned over (C' = B' A') so that the smaller one is transposed. */
#include "kernel/cpu/gemm.h"

enum {
    BLOCK_K = 256,      /* a panel of B is 16 KiB (NEON, f32): it stays in the first-level cache */
    BLOCK_A = 32 << 10, /* elements: with B's and C's block about half of a second-level cache of 1 MiB */
    BLOCK_B = 64 << 10,
    BLOCK_C = 32 << 10,
    SHARED = 1 << 20,
    LONGEST = 512,         /* rows or columns of a block */
    MANY = 32,             /* tiles: enough for as many threads */
    LEAST = 1 << 23        /* multiplications that are worth a tile of their own */
};

typedef REAL quad __attribute__((vector_size(16)));
typedef REAL quad_unaligned __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));
enum { QL = 16 / sizeof(REAL) };

static inline quad load_quad(const REAL *p) { return (quad) * (const quad_unaligned *)p; }
static inline void store_quad(REAL *p, quad v) { *(quad_unaligned *)p = (quad_unaligned)v; }

static inline void transpose_quads(REAL *to, int64_t to_row, const REAL *from, int64_t from_row)
{
#if LK_REAL_BITS == 32
    quad a = load_quad(from), b = load_quad(from + from_row);
    quad c = load_quad(from + 2 * from_row), d = load_quad(from + 3 * from_row);
    quad ab_low = __builtin_shufflevector(a, b, 0, 4, 2, 6), ab_high = __builtin_shufflevector(a, b, 1, 5, 3, 7);
    quad cd_low = __builtin_shufflevector(c, d, 0, 4, 2, 6), cd_high = __builtin_shufflevector(c, d, 1, 5, 3, 7);
    store_quad(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store_quad(to + to_row, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    store_quad(to + 2 * to_row, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store_quad(to + 3 * to_row, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
#else
    quad a = load_quad(from), b = load_quad(from + from_row);
    store_quad(to, __builtin_shufflevector(a, b, 0, 2));
    store_quad(to + to_row, __builtin_shufflevector(a, b, 1, 3));
#endif
}

/* Not inlined: with known rows GCC warns of an overflow that the loops exclude. */
__attribute__((noinline)) void transpose(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows,
                                         int64_t columns)
{
    int64_t i = 0;
    for (; i + QL <= rows; i += QL) {
        int64_t j = 0;
        for (; j + QL <= columns; j += QL) transpose_quads(to + j * to_row + i, to_row, from + i * from_row + j, from_row);
        for (; j < columns; j++)
            for (int64_t q = i; q < i + QL; q++) to[j * to_row + q] = from[q * from_row + j];
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * to_row + i] = from[i * from_row + j];
}

/* How C is cut: by shape alone. */
typedef struct blocks {
    int64_t m, n, k; /* largest extents of a block */
    int64_t rows, columns;
} blocks;

static int64_t even_part(int64_t n, int64_t largest, int64_t unit) /* cuts n into equal parts of whole units */
{
    int64_t parts = max64(1, tiles_of(n, max64(unit, largest / unit * unit)));
    return max64(unit, round_to(tiles_of(n, parts), unit));
}

static blocks cut(const gemm *g, bool through_scratch)
{
    blocks b;
    b.k = even_part(g->k, BLOCK_K, 4);
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

/* The product turned over: C' = B' A'. */
static gemm turned(const gemm *g)
{
    gemm t = *g;
    t.m = g->n, t.n = g->m;
    t.a = g->b, t.a_row = g->b_column, t.a_k = g->b_k, t.a_batch = g->b_batch;
    t.b = g->a, t.b_k = g->a_k, t.b_column = g->a_row, t.b_batch = g->a_batch;
    t.c_row = g->c_column, t.c_column = g->c_row;
    return t;
}

typedef struct job {
    gemm   g;
    blocks cut;
    bool   turned; /* bias goes along rows */
    REAL  *shared; /* all of B packed, [block of k][panel][k][NR]; NULL: each tile packs its own */
    char  *workspace;
    size_t per_worker;
} job;

static int64_t longest_block(const gemm *g, int64_t unit) { return min64(LONGEST, round_to(max64(g->m, g->n), unit)); }
static int64_t a_space(const gemm *g)
{
    return max64(min64(BLOCK_A, longest_block(g, MR) * round_to(g->k, 4)), (int64_t)MR * BLOCK_K) + MR;
}
static int64_t b_space(const gemm *g)
{
    return max64(min64(BLOCK_B, longest_block(g, NR) * round_to(g->k, 4)), (int64_t)NR * BLOCK_K) + longest_block(g, NR);
}
static int64_t c_space(const gemm *g) { return min64(BLOCK_C, longest_block(g, NR) * longest_block(g, NR)); }

/* Transposing costs more than copying: a B that many tiles would transpose is packed once for all, if that is not too
 * much memory. Such a B has the fewer columns. */
static int64_t shared_columns(const gemm *g)
{
    bool transposed = g->b_k == 1 && g->b_column != 1 && g->a_k == 1;
    return transposed && g->alone ? round_to(min64(g->m, g->n), NR) : 0;
}
static int64_t shared_space(const gemm *g) { return min64(SHARED, shared_columns(g) * g->k); }

static size_t worker_space(const gemm *g) { return space_of(a_space(g)) + space_of(b_space(g)) + space_of(c_space(g)); }

size_t gemm_workspace(const gemm *g, int threads)
{
    return space_of(shared_space(g)) + (size_t)threads * worker_space(g);
}

/* Panels of NR columns, each k × NR, `panel` elements apart. */
static void pack_b(const gemm *g, const REAL *b, int64_t n, int64_t k, REAL *to, int64_t panel)
{
    int64_t whole = n / NR;
    if (g->b_column == 1) {
        for (int64_t q = 0; q < k; q++) { /* along the rows, as memory likes it */
            const REAL *from = b + q * g->b_k;
            for (int64_t j = 0; j < whole; j++) memcpy(to + j * panel + q * NR, from + j * NR, NR * sizeof(REAL));
        }
    } else {
        for (int64_t j = 0; j < whole; j++) transpose(to + j * panel, NR, b + j * NR * g->b_column, g->b_column, NR, k);
    }
    int64_t rest = n - whole * NR;
    if (rest == 0) return;
    b += whole * NR * g->b_column;
    to += whole * panel;
    memset(to, 0, (size_t)(k * NR) * sizeof(REAL));
    if (g->b_column == 1)
        for (int64_t q = 0; q < k; q++) memcpy(to + q * NR, b + q * g->b_k, (size_t)rest * sizeof(REAL));
    else
        transpose(to, NR, b, g->b_column, rest, k);
}

/* Rows of k (micro_nn), or panels of MR rows, each k × MR (micro_tn). */
static void pack_a(const gemm *g, const REAL *a, int64_t m, int64_t k, REAL *to)
{
    if (g->a_k == 1) {
        for (int64_t i = 0; i < m; i++) memcpy(to + i * k, a + i * g->a_row, (size_t)k * sizeof(REAL));
        return;
    }
    for (int64_t i = 0; i < m; i += MR, to += k * MR) {
        int64_t rows = min64(MR, m - i);
        if (rows == MR)
            for (int64_t q = 0; q < k; q++) memcpy(to + q * MR, a + q * g->a_k + i, MR * sizeof(REAL));
        else
            for (int64_t q = 0; q < k; q++)
                for (int64_t p = 0; p < MR; p++) to[q * MR + p] = p < rows ? a[q * g->a_k + i + p] : 0;
    }
}

/* A block that will be packed next, asked for line by line while this one is multiplied. */
typedef struct ahead {
    const char *row;
    int64_t     stride, bytes, rows; /* bytes from row to row; of a row that are wanted; rows left */
    int64_t     at;                  /* in the row */
    int64_t     lines;               /* at a time */
} ahead;

static ahead look_at(const REAL *from, int64_t stride, int64_t rows, int64_t columns, int64_t times)
{
    ahead a = {.row = (const char *)from, .stride = stride * (int64_t)sizeof(REAL), .rows = rows};
    a.bytes = columns * (int64_t)sizeof(REAL);
    a.lines = tiles_of(rows * tiles_of(a.bytes, LK__ALIGN), max64(1, times));
    return a;
}

static inline void look_ahead(ahead *a)
{
    for (int64_t i = 0; i < a->lines && a->rows > 0; i++) {
        __builtin_prefetch(a->row + a->at, 0, 2);
        if ((a->at += LK__ALIGN) < a->bytes) continue;
        a->at = 0;
        a->row += a->stride;
        a->rows--;
    }
}

enum { STRIP = 4 * MR }; /* rows between two looks ahead */

/* C's block += (or =, with start) A's rows times B's panels. */
static void multiply(bool rows_of_k, const REAL *a, int64_t a_row, const REAL *b, int64_t panel, int64_t m, int64_t n, int64_t k,
                     const REAL *bias, bool start, REAL *c, int64_t c_row, ahead next)
{
    const REAL *rows[LONGEST];
    REAL       *to[LONGEST];
    runs        r = {.runs = 1, .length = k, .a_k = MR};
    for (int64_t i = 0; rows_of_k && i < m; i++) {
        rows[i] = a + i * a_row;
        to[i] = c + i * c_row;
    }
    for (int64_t j = 0; j < n; j += NR, b += panel) {
        int64_t     columns = min64(NR, n - j);
        REAL        padded[NR] = {0};
        const REAL *first = start ? zeros : NULL;
        if (start && bias) first = memcpy(padded, bias + j, (size_t)columns * sizeof(REAL));
        for (int64_t i = 0; i < m; i += STRIP) {
            int64_t end = min64(m, i + STRIP);
            look_ahead(&next);
            if (rows_of_k)
                micro_nn(end - i, rows + i, &r, b, first, to + i, j, columns);
            else
                for (int64_t q = i; q < end; q += MR)
                    micro_tn(min64(MR, end - q), a + q * k, &r, b, first, c + q * c_row + j, c_row, columns);
        }
    }
}

typedef struct place { /* a tile: where in C, and how much of it */
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

/* What will be packed after block k of this tile: the larger of A's and B's next block, if it is large. */
static ahead next_block(const job *job, place p, int64_t part, int64_t k, bool packs_a)
{
    const gemm *g = &job->g;
    int64_t     depth = min64(job->cut.k, g->k - k), times = tiles_of(p.n, NR) * tiles_of(p.m, STRIP);
    const REAL *a = g->a + (p.batch + part) * g->a_batch + p.i * g->a_row + k * g->a_k;
    const REAL *b = g->b + (p.batch + part) * g->b_batch + p.j * g->b_column + k * g->b_k;
    if (depth <= 0) return (ahead){0};
    if (!job->shared && (p.n >= p.m || !packs_a))
        return g->b_column == 1 ? look_at(b, g->b_k, depth, p.n, times) : look_at(b, g->b_column, p.n, depth, times);
    if (!packs_a) return (ahead){0};
    return g->a_k == 1 ? look_at(a, g->a_row, p.m, depth, times) : look_at(a, g->a_k, depth, p.m, times);
}

static void finish_tile(const job *job, place p, bool empty, REAL *sum, int64_t row, REAL *out)
{
    const gemm *g = &job->g;
    const REAL *bias = g->bias ? g->bias + (job->turned ? p.i : p.j) : NULL;
    for (int64_t i = 0; i < p.m; i++) {
        REAL *line = sum + i * row;
        if (empty) /* no k at all */
            for (int64_t j = 0; j < p.n; j++) line[j] = bias && !job->turned ? bias[j] : 0;
        if (bias && job->turned)
            for (int64_t j = 0; j < p.n; j++) line[j] += bias[i];
        if (g->activation == LK__RELU) relu_in_place(line, p.n);
    }
    if (g->c_column != 1) transpose(out, g->c_column, sum, row, p.m, p.n);
}

static void run_tile(void *argument, int64_t index, int worker)
{
    const job  *job = argument;
    const gemm *g = &job->g;
    place       p = place_of(job, index);
    char       *scratch = job->workspace + (size_t)worker * job->per_worker;
    REAL       *a = (REAL *)scratch, *b = (REAL *)(scratch + space_of(a_space(g)));
    REAL       *c = (REAL *)(scratch + space_of(a_space(g)) + space_of(b_space(g)));
    REAL       *out = g->c + p.batch * g->c_batch + p.i * g->c_row + p.j * g->c_column;
    bool        direct = g->c_column == 1;
    REAL       *sum = direct ? out : c;
    int64_t     sum_row = direct ? g->c_row : p.n;
    const REAL *bias = g->bias && !job->turned ? g->bias + p.j : NULL;
    bool        start = true;
    /* Small A's whose rows do not fall on the same cache sets are used where they lie. */
    bool in_place = g->a_k == 1 && (p.m * g->k <= 8192 || (p.n <= NR && g->a_row % 256 != 0));
    for (int64_t part = 0; part < (g->sum ? g->batch : 1); part++) {
        const REAL *a_from = g->a + (p.batch + part) * g->a_batch + p.i * g->a_row;
        const REAL *b_from = g->b + (p.batch + part) * g->b_batch + p.j * g->b_column;
        for (int64_t k = 0; k < g->k; k += job->cut.k, start = false) {
            int64_t     depth = min64(job->cut.k, g->k - k);
            const REAL *panels = job->shared ? job->shared + k * round_to(g->n, NR) + p.j * depth : b;
            if (!in_place) pack_a(g, a_from + k * g->a_k, p.m, depth, a);
            /* Panels of own scratch stand one row apart, lest a row's pieces all go to one set of the cache. */
            int64_t panel = job->shared ? depth * NR : (depth + 1) * NR;
            if (!job->shared) pack_b(g, b_from + k * g->b_k, p.n, depth, b, panel);
            multiply(g->a_k == 1, in_place ? a_from + k : a, in_place ? g->a_row : depth, panels, panel, p.m, p.n, depth,
                     bias, start, sum, sum_row, next_block(job, p, part, k + depth, !in_place));
        }
    }
    finish_tile(job, p, start, sum, sum_row, out);
}

static void share(void *argument, int64_t block, int worker)
{
    const job *job = argument;
    int64_t    k = block * job->cut.k, depth = min64(job->cut.k, job->g.k - k);
    (void)worker;
    pack_b(&job->g, job->g.b + k * job->g.b_k, job->g.n, depth, job->shared + k * round_to(job->g.n, NR), depth * NR);
}

void gemm_run(const gemm *g, lk__pool *pool, void *workspace)
{
    job job = {.g = *g};
    if (g->m <= 0 || g->n <= 0 || (g->batch <= 0 && !g->sum)) return;
    if (g->b_k == 1 && g->b_column != 1 && (g->a_k != 1 || g->n > g->m)) {
        job.g = turned(g);
        job.turned = true;
    }
    job.cut = cut(&job.g, job.turned);
    job.per_worker = worker_space(g);
    int64_t columns = shared_columns(g);
    if (columns > 0 && columns * g->k <= SHARED && job.cut.rows > 1) {
        job.shared = workspace;
        lk__pool_run(pool, tiles_of(job.g.k, job.cut.k), share, &job);
    }
    job.workspace = (char *)workspace + space_of(shared_space(g));
    lk__pool_run(pool, job.cut.rows * job.cut.columns * (g->sum ? 1 : g->batch), run_tile, &job);
}
