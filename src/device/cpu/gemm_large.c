/* gemm_large.c - a large product is split into slabs of C, and each into steps of some blocks of k. What a step needs
 * of A and B is packed once, for all of its tiles; several threads pack the next step while they multiply, so that
 * arithmetic hides the time to read it. The same sums as by tiles: blocks of k are the same, and each is added to C in
 * their order. */
#include "device/cpu/gemm_block.h"

enum {
    SLAB = 4096, /* rows or columns of a slab */
    /* elements of A or B that one thread packs at a time, if that is more than a block of k: half of a cache */
    PACKED = 128 << 10,
    MOST_THREADS = 16, /* several threads pack so many times as much */
    LARGE = 192,       /* rows or columns: at least, of a large product */
    GROUP = 128,       /* rows or columns that are packed as one part: whole panels */
    GROUP_ROWS = GROUP / MR * MR,
    GROUP_COLUMNS = GROUP / LARGE_NR * LARGE_NR,
    WIDEST = 8 * LARGE_NR /* columns of a tile */
};

bool gemm_is_large(const gemm *g)
{
    return g->alone && c_in_place(g) && g->m >= LARGE && g->n >= LARGE && g->k >= 64 &&
           g->m * g->n >= 2 * LARGE * LARGE;
}

/* Several threads have two buffers of each operand. */
static int     buffers(int threads) { return threads > 1 ? 2 : 1; }
static int64_t packed_at_once(int threads) { return PACKED * min64(threads, MOST_THREADS) / buffers(threads); }

/* Elements of a buffer that are enough for a smaller extent, too: of a smaller batch. */
static int64_t buffer_space(int64_t extent, int64_t k, int64_t unit, int threads)
{
    int64_t rounded = round_to(min64(SLAB, extent), unit);
    return min64(max64(rounded * BLOCK_K, packed_at_once(threads)), rounded * round_to(k, 4));
}
static size_t a_bytes(const gemm *g, int threads) { return space_of(buffer_space(g->m, g->k, MR, threads)); }
static size_t b_bytes(const gemm *g, int threads) { return space_of(buffer_space(g->n, g->k, LARGE_NR, threads)); }

size_t gemm_large_space(const gemm *g, int threads)
{
    return gemm_is_large(g) ? (size_t)buffers(threads) * (a_bytes(g, threads) + b_bytes(g, threads)) : 0;
}

typedef struct step {
    int64_t i, j, m, n; /* its place in C */
    int64_t k, depth;   /* its part of k, in blocks */
    int64_t tile_m, tile_n, columns, tiles;
    int64_t parts_a, parts_b, parts; /* that are packed; parts: of all blocks */
    int64_t rows_a, columns_b;       /* m and n, rounded up to whole panels */
    int     buffer;
} step;

typedef struct job {
    const gemm *g;
    int         threads;
    int64_t     block; /* of k */
    REAL       *a[2], *b[2];
    step now, next; /* the step whose tiles are multiplied, and the one that is packed meanwhile; either may be empty */
} job;

/* Chooses the tile for which all threads take least time: rounds of tiles, and a part of one since they do not end at
 * the same time, where an element of A or B takes the time of FETCH products. */
static void choose_tiles(step *s, int threads)
{
    const double FETCH = 4, REST = 0.3;
    double       least = 0;
    for (int64_t most_m = GROUP; most_m >= GROUP / 4; most_m /= 2)
        for (int64_t most_n = LARGE_NR; most_n <= WIDEST; most_n += LARGE_NR) {
            int64_t m = even_part(s->m, most_m, MR), n = even_part(s->n, most_n, LARGE_NR);
            int64_t columns = tiles_of(s->n, n), tiles = tiles_of(s->m, m) * columns;
            double  rounds = threads == 1 ? (double)tiles : (double)tiles_of(tiles, threads) + REST;
            double  time = rounds * ((double)(m * n) + FETCH * (double)(m + n));
            if (least > 0 && time >= least) continue;
            least = time;
            s->tile_m = m, s->tile_n = n;
            s->columns = columns, s->tiles = tiles;
        }
}

/* The step at (i, j, k); an empty one past the end of C. */
static step step_at(const job *job, int64_t i, int64_t j, int64_t k, const step *before)
{
    const gemm *g = job->g;
    step        s = *before;
    if (i >= g->m) return (step){0};
    s.i = i, s.j = j, s.k = k;
    if (k == 0) {
        s.m = min64(SLAB, g->m - i);
        s.n = min64(SLAB, g->n - j);
        s.rows_a = round_to(s.m, MR);
        s.columns_b = round_to(s.n, LARGE_NR);
        s.parts_a = tiles_of(s.m, GROUP_ROWS);
        s.parts_b = tiles_of(s.n, GROUP_COLUMNS);
        choose_tiles(&s, job->threads);
    }
    int64_t blocks = max64(1, packed_at_once(job->threads) / max64(s.rows_a, s.columns_b) / job->block);
    s.depth = min64(blocks * job->block, g->k - k);
    s.parts = (s.parts_a + s.parts_b) * tiles_of(s.depth, job->block);
    s.buffer = job->threads > 1 ? !before->buffer : 0;
    return s;
}

static step step_after(const job *job, const step *s)
{
    if (s->k + s->depth < job->g->k) return step_at(job, s->i, s->j, s->k + s->depth, s);
    if (s->j + s->n < job->g->n) return step_at(job, s->i, s->j + s->n, 0, s);
    return step_at(job, s->i + s->m, 0, 0, s);
}

/* Block of k by block of k, each in panels. */
static void pack_part(const job *job, const step *s, int64_t part)
{
    const gemm *g = job->g;
    int64_t groups = s->parts_a + s->parts_b, k = part / groups * job->block, depth = min64(job->block, s->depth - k);
    part %= groups;
    if (part < s->parts_b) {
        int64_t j = part * GROUP_COLUMNS;
        gemm_pack_b_large(g, g->b + (s->j + j) * g->b_column + (s->k + k) * g->b_k, min64(GROUP_COLUMNS, s->n - j),
                          depth, job->b[s->buffer] + k * s->columns_b + j * depth, depth * LARGE_NR);
        return;
    }
    int64_t        i = (part - s->parts_b) * GROUP_ROWS, m = min64(GROUP_ROWS, s->m - i);
    const ELEMENT *from = g->a + (s->i + i) * g->a_row + (s->k + k) * g->a_k;
    REAL          *to = job->a[s->buffer] + k * s->rows_a + i * depth;
    if (g->a_k == 1)
        gemm_pack_a_rows(g, from, m, depth, to);
    else
        gemm_pack_a(g, from, m, depth, to);
}

static void multiply_tile(const job *job, const step *s, int64_t tile)
{
    const gemm *g = job->g;
    int64_t     i = tile / s->columns * s->tile_m, j = tile % s->columns * s->tile_n;
    int64_t     m = min64(s->tile_m, s->m - i), n = min64(s->tile_n, s->n - j);
    REAL       *c = (REAL *)g->c + (s->i + i) * g->c_row + s->j + j;
    for (int64_t k = 0; k < s->depth; k += job->block) {
        int64_t     depth = min64(job->block, s->depth - k);
        const REAL *a = job->a[s->buffer] + k * s->rows_a + i * depth,
                   *b = job->b[s->buffer] + k * s->columns_b + j * depth;
        const REAL *start = s->k + k == 0 && !g->add ? zeros : NULL;
        runs        r = {.runs = 1, .length = depth, .a_run = depth * MR, .a_k = MR};
        for (int64_t q = 0; q < n; q += LARGE_NR)
            micro_large(m, a, &r, b + q * depth, start, c + q, g->c_row, min64(LARGE_NR, n - q));
    }
    if (s->k + s->depth == g->k && (g->bias || g->activation))
        for (int64_t q = 0; q < m; q++)
            gemm_finish_line(c + q * g->c_row, n, g->bias ? g->bias + s->j + j : NULL, 1, g->activation);
}

/* The parts to pack are distributed evenly among the tiles: few threads read memory at a time. */
static void run_task(void *argument, int64_t task, int worker)
{
    const job *job = argument;
    int64_t    tasks = job->now.tiles + job->next.parts, packed = task * job->next.parts / tasks;
    (void)worker;
    if ((task + 1) * job->next.parts / tasks > packed)
        pack_part(job, &job->next, packed);
    else
        multiply_tile(job, &job->now, task - packed);
}

static void run_steps(job *job, const step *now, const step *next, lk__pool *pool)
{
    job->now = *now;
    job->next = *next;
    lk__pool_run(pool, now->tiles + next->parts, run_task, job);
}

void gemm_run_large(const gemm *g, lk__pool *pool, void *workspace)
{
    const step none = {0};
    int        threads = lk__pool_workers(pool);
    job        job = {.g = g, .threads = threads, .block = gemm_block_k(g->k)};
    for (int i = 0; i < buffers(threads); i++) {
        job.a[i] = (REAL *)((char *)workspace + (size_t)i * (a_bytes(g, threads) + b_bytes(g, threads)));
        job.b[i] = (REAL *)((char *)job.a[i] + a_bytes(g, threads));
    }
    step now, next = step_at(&job, 0, 0, 0, &none);
    run_steps(&job, &none, &next, pool);
    while (next.tiles > 0) {
        now = next;
        next = step_after(&job, &now);
        if (threads > 1) {
            run_steps(&job, &now, &next, pool);
        } else { /* in one buffer */
            run_steps(&job, &now, &none, pool);
            run_steps(&job, &none, &next, pool);
        }
    }
}
