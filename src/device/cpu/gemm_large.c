/* gemm_large.c - a large product is split into slabs of C, and each slab into steps of a few chunks of k. The parts of
 * A and B that a step needs are packed once, for all of its tiles; several threads pack the next step while they
 * multiply, so that arithmetic hides the time to read it. The sums are the same as by tiles: blocks of k are the same,
 * and they are added to C in order. All products whose k consists of parts are computed here, including small ones. */
#include "device/cpu/gemm_chunk.h"

enum {
    SLAB = 4096, /* rows or columns of a slab */
    /* where partial results are in memory: elements of each, for one thread, several threads having so many times as
     * much; columns of a slab. B is packed anew for every slab of rows, which costs more than a larger slab. */
    PARTIAL = 512 << 10,
    PARTIAL_THREADS = 4,
    PARTIAL_COLUMNS = 1024,
    /* elements of A or B that one thread packs at a time, if that is more than a block of k: half of a cache */
    PACKED_ONCE = WIDER * (128 << 10),
    MOST_THREADS = 16, /* several threads pack so many times as much */
    LARGE = 192,       /* rows or columns: at least, of a large product */
    GROUP = 128,       /* rows or columns that are packed as one part: whole panels */
    GROUP_ROWS = GROUP / PANEL_ROWS * PANEL_ROWS,
    GROUP_COLUMNS = GROUP / PANEL_LARGE_COLUMNS * PANEL_LARGE_COLUMNS,
    WIDEST = 8 * PANEL_LARGE_COLUMNS, /* columns of a tile */
    CHUNKS = 32                       /* of a step, at most */
};

/* A narrower C goes through a slab of sums, which pays where packing takes more of the time. */
bool gemm_is_large(const gemm *g)
{
    bool large = g->m >= LARGE && g->n >= LARGE && g->m * g->n >= 2 * LARGE * LARGE;
    return g->alone && (MATRIX || c_in_place(g)) && g->k >= 64 && (large || gemm_keeps_b(g));
}

/* Several threads have two buffers of each operand. */
static int     buffers(int threads) { return threads > 1 ? 2 : 1; }
static int64_t packed_at_once(int threads) { return PACKED_ONCE * min64(threads, MOST_THREADS) / buffers(threads); }

/* Levels of partial results that are not C itself. */
static int levels_apart(const gemm *g) { return (g->parts.count > 1 ? gemm_levels(g) : 1) - c_in_place(g); }

/* The most rows and columns of a slab. */
static int64_t slab_columns(const gemm *g)
{
    return levels_apart(g) > 0 ? even_part(g->n, PARTIAL_COLUMNS, PANEL_LARGE_COLUMNS) : SLAB;
}
static int64_t slab_rows(const gemm *g, int threads)
{
    int64_t most = PARTIAL * min64(threads, PARTIAL_THREADS) / slab_columns(g) / GROUP_ROWS * GROUP_ROWS;
    return levels_apart(g) > 0 ? max64(GROUP_ROWS, min64(SLAB, most)) : SLAB;
}

/* Elements of a buffer that are enough for a smaller extent, too: of a smaller batch. */
static int64_t buffer_space(const gemm *g, int64_t extent, int64_t unit, int threads)
{
    int64_t rounded = round_to(extent, unit), most = max64(rounded * gemm_chunk_most(g), packed_at_once(threads));
    if (PANEL_UNIT > 1 && g->parts.count > 1) return most; /* each block has whole units */
    return min64(most, rounded * round_to(gemm_depth(g), BLOCK_UNIT));
}
static size_t a_bytes(const gemm *g, int threads)
{
    return packed_space_of(buffer_space(g, min64(slab_rows(g, threads), g->m), PANEL_ROWS, threads));
}
static size_t b_bytes(const gemm *g, int threads)
{
    return packed_space_of(buffer_space(g, min64(slab_columns(g), g->n), PANEL_LARGE_COLUMNS, threads));
}
static size_t level_bytes(const gemm *g, int threads)
{
    return space_of(min64(slab_rows(g, threads), g->m) * min64(slab_columns(g), g->n));
}

size_t gemm_large_space(const gemm *g, int threads)
{
    if (!gemm_is_large(g) && g->parts.count <= 1) return 0;
    return (size_t)buffers(threads) * (a_bytes(g, threads) + b_bytes(g, threads)) +
           (size_t)levels_apart(g) * level_bytes(g, threads);
}

typedef struct step {
    int64_t     i, j, m, n; /* its place in C */
    int64_t     k, depth;   /* its part of k, in chunks */
    int64_t     packed;     /* k's of its panels */
    int64_t     tile_m, tile_n, columns, tiles;
    int64_t     parts_a, parts_b, parts; /* that are packed; parts: of all blocks */
    int64_t     rows_a, columns_b;       /* m and n, rounded up to whole panels */
    int         buffer;
    int         chunks;
    gemm_cursor from; /* where the chunks of the next step begin */
    gemm_chunk  chunk[CHUNKS];
    int64_t     at[CHUNKS]; /* where each chunk is in the panels' k */
} step;

typedef struct job {
    const gemm *g;
    int         threads;
    int64_t     rows, columns; /* of a slab, at most */
    PACKED     *a[2], *b[2];
    REAL       *levels; /* partial results of a slab that are not in C */
    int64_t     level;  /* elements from one to the next */
    step now, next; /* the step whose tiles are multiplied, and the one that is packed meanwhile; either may be empty */
} job;

/* Chooses the tile for which all threads take least time: rounds of tiles, and a part of one since they do not end at
 * the same time, where an element of A or B takes the time of FETCH products. */
static void choose_tiles(step *s, int threads)
{
    const double FETCH = 4, REST = 0.3;
    double       least = 0;
    for (int64_t most_m = GROUP; most_m >= GROUP / 4; most_m /= 2)
        for (int64_t most_n = PANEL_LARGE_COLUMNS; most_n <= WIDEST; most_n += PANEL_LARGE_COLUMNS) {
            int64_t m = even_part(s->m, most_m, PANEL_ROWS), n = even_part(s->n, most_n, PANEL_LARGE_COLUMNS);
            int64_t columns = tiles_of(s->n, n), tiles = tiles_of(s->m, m) * columns;
            double  rounds = threads == 1 ? (double)tiles : (double)tiles_of(tiles, threads) + REST;
            double  time = rounds * ((double)(m * n) + FETCH * (double)(m + n));
            if (least > 0 && time >= least) continue;
            least = time;
            s->tile_m = m, s->tile_n = n;
            s->columns = columns, s->tiles = tiles;
        }
}

/* As many chunks as are packed at once; at least one. */
static void take_chunks(const job *job, step *s)
{
    int64_t     most = packed_at_once(job->threads) / max64(s->rows_a, s->columns_b);
    gemm_cursor next = s->from;
    for (s->chunks = 0, s->depth = s->packed = 0; s->chunks < CHUNKS; s->chunks++, s->from = next) {
        gemm_chunk *chunk = &s->chunk[s->chunks];
        if (!gemm_next_chunk(job->g, &next, chunk)) return;
        if (s->chunks > 0 && s->packed + chunk->packed > most) return;
        s->at[s->chunks] = s->packed;
        s->depth += chunk->depth;
        s->packed += chunk->packed;
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
        s.m = min64(job->rows, g->m - i);
        s.n = min64(job->columns, g->n - j);
        s.rows_a = round_to(s.m, PANEL_ROWS);
        s.columns_b = round_to(s.n, PANEL_LARGE_COLUMNS);
        s.parts_a = tiles_of(s.m, GROUP_ROWS);
        s.parts_b = tiles_of(s.n, GROUP_COLUMNS);
        s.from = gemm_first_chunk(g);
        choose_tiles(&s, job->threads);
    }
    take_chunks(job, &s);
    s.parts = (s.parts_a + s.parts_b) * s.chunks;
    s.buffer = job->threads > 1 ? !before->buffer : 0;
    return s;
}

static step step_after(const job *job, const step *s)
{
    if (s->k + s->depth < gemm_depth(job->g)) return step_at(job, s->i, s->j, s->k + s->depth, s);
    if (s->j + s->n < job->g->n) return step_at(job, s->i, s->j + s->n, 0, s);
    return step_at(job, s->i + s->m, 0, 0, s);
}

/* One block: k's from `k` on, in the order in which they are added, which may come from several places. `at`: where the
 * block begins in the chunk's panels. */
static void pack_block(const job *job, const step *s, int chunk, int64_t part, int64_t k, int64_t length, int64_t at)
{
    const gemm *g = job->g;
    int64_t     panel = s->chunk[chunk].packed, a_from, b_from;
    for (int64_t done = 0, run; done < length; done += run) {
        run = min64(length - done, gemm_run_at(g, k + done, &a_from, &b_from));
        if (part < s->parts_b) {
            int64_t j = part * GROUP_COLUMNS;
            PACKED *to = job->b[s->buffer] + s->at[chunk] * s->columns_b + j * panel + at * PANEL_LARGE_COLUMNS;
            gemm_pack_b_large(g, g->b + (s->j + j) * g->b_column + b_from, min64(GROUP_COLUMNS, s->n - j), run, done,
                              to, panel * PANEL_LARGE_COLUMNS);
            continue;
        }
        int64_t i = (part - s->parts_b) * GROUP_ROWS;
        PACKED *to = job->a[s->buffer] + s->at[chunk] * s->rows_a + i * panel + at * PANEL_ROWS;
        gemm_pack_a(g, g->a + (s->i + i) * g->a_row + a_from, min64(GROUP_ROWS, s->m - i), run, done, to,
                    panel * PANEL_ROWS);
    }
}

/* Chunk by chunk, each in panels. Blocks are apart where panels have whole units of k. */
static void pack_part(const job *job, const step *s, int64_t part)
{
    int64_t           groups = s->parts_a + s->parts_b, k, at = 0;
    int               index = (int)(part / groups);
    const gemm_chunk *chunk = &s->chunk[index];
    k = chunk->k;
    part %= groups;
    if (PANEL_UNIT == 1) {
        pack_block(job, s, index, part, k, chunk->depth, 0);
        return;
    }
    for (int i = 0; i < chunk->blocks.count; i++) {
        int64_t length = chunk->blocks.length[i];
        pack_block(job, s, index, part, k, length, at);
        k += length;
        at += packed_depth(length);
    }
}

typedef struct tile_place { /* in the slab */
    int64_t i, j, m, n;
} tile_place;

/* The tile of a level of partial results: level 0 is C, where that is possible. */
static REAL *find_level(const job *job, const step *s, const tile_place *p, int level, int64_t *row)
{
    const gemm *g = job->g;
    bool        in_place = c_in_place(g);
    *row = in_place && level == 0 ? g->c_row : s->n;
    if (in_place && level == 0) return (REAL *)g->c + (s->i + p->i) * g->c_row + s->j + p->j;
    return job->levels + (level - in_place) * job->level + p->i * s->n + p->j;
}

static void multiply_chunk(const job *job, const step *s, const tile_place *p, int index)
{
    const gemm_chunk *chunk = &s->chunk[index];
    int64_t           depth = chunk->packed, row;
    const PACKED     *a = job->a[s->buffer] + s->at[index] * s->rows_a + p->i * depth;
    const PACKED     *b = job->b[s->buffer] + s->at[index] * s->columns_b + p->j * depth;
    REAL             *c = find_level(job, s, p, chunk->level, &row);
    for (int64_t q = 0; q < p->n; q += PANEL_LARGE_COLUMNS) {
        int64_t n = min64(PANEL_LARGE_COLUMNS, p->n - q);
        if (chunk->blocks.count == 1)
            micro_large(p->m, a, depth * PANEL_ROWS, depth, b + q * depth, chunk->add, c + q, row, n);
        else
            micro_tree(p->m, a, depth * PANEL_ROWS, &chunk->blocks, b + q * depth, chunk->add, c + q, row, n);
    }
}

static void add_level(const job *job, const step *s, const tile_place *p, int level)
{
    int64_t     to_row, row;
    const REAL *more = find_level(job, s, p, level, &row);
    REAL       *to = find_level(job, s, p, level - 1, &to_row);
    for (int64_t i = 0; i < p->m; i++, to += to_row, more += row) {
        int64_t j = 0;
        for (; j + VL <= p->n; j += VL) store(to + j, load(to + j) + load(more + j));
        for (; j < p->n; j++) to[j] += more[j];
    }
}

/* The bias is added last, and where C is narrower than the sums they are rounded once. */
static void finish_tile(const job *job, const step *s, const tile_place *p)
{
    const gemm    *g = job->g;
    const ELEMENT *bias = g->bias ? g->bias + s->j + p->j : NULL;
    bool           narrow = !c_in_place(g);
    int64_t        row;
    REAL          *c = find_level(job, s, p, 0, &row);
    if (!bias && !g->activation && !narrow) return;
    for (int64_t i = 0; i < p->m; i++, c += row) {
        if (bias || g->activation) gemm_finish_line(c, p->n, bias, 1, g->activation);
        if (narrow) copy_narrow((ELEMENT *)g->c + (s->i + p->i + i) * g->c_row + s->j + p->j, c, p->n);
    }
}

static void multiply_tile(const job *job, const step *s, int64_t tile)
{
    tile_place p = {.i = tile / s->columns * s->tile_m, .j = tile % s->columns * s->tile_n};
    p.m = min64(s->tile_m, s->m - p.i), p.n = min64(s->tile_n, s->n - p.j);
    matrix_begin();
    for (int i = 0; i < s->chunks; i++) {
        const gemm_chunk *chunk = &s->chunk[i];
        multiply_chunk(job, s, &p, i);
        for (int level = chunk->level; level > chunk->level - chunk->after; level--) add_level(job, s, &p, level);
    }
    matrix_end();
    if (s->k + s->depth == gemm_depth(job->g)) finish_tile(job, s, &p);
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
    job        job = {.g = g, .threads = threads, .rows = slab_rows(g, threads), .columns = slab_columns(g)};
    for (int i = 0; i < buffers(threads); i++) {
        job.a[i] = (PACKED *)((char *)workspace + (size_t)i * (a_bytes(g, threads) + b_bytes(g, threads)));
        job.b[i] = (PACKED *)((char *)job.a[i] + a_bytes(g, threads));
    }
    job.level = (int64_t)(level_bytes(g, threads) / sizeof(REAL));
    job.levels = (REAL *)((char *)workspace + (size_t)buffers(threads) * (a_bytes(g, threads) + b_bytes(g, threads)));
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
