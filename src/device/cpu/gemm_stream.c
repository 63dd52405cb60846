/* gemm_stream.c - a product of few rows of A with a large B that is contiguous along its columns, such as a linear
 * layer's weight in the gradient of its input: while a block of B is multiplied, the next one is packed a few rows at a
 * time, so that arithmetic hides the time to read it. It is used on processors whose hardware prefetching does not
 * achieve this (x86). The sums and their order are those of gemm.c. */
#include "device/cpu/gemm_block.h"

enum {
    WIDTH = 256,      /* columns of a block */
    FEWEST = 64 << 10 /* elements of B: fewer are in a cache */
};

bool gemm_streams(const gemm *g)
{
    return VECTOR_BYTES > 16 && !NARROW && g->alone && c_in_place(g) && g->a_k == 1 && g->b_column == 1 &&
           !g->b_transposed && g->m <= LONGEST && g->n >= WIDTH && g->n * g->k >= FEWEST;
}

static size_t block_space(const gemm *g) { return space_of((min64(BLOCK_K, round_to(g->k, 4)) + 1) * WIDTH); }

size_t gemm_stream_space(const gemm *g, int threads)
{
    gemm one = *g;
    one.m = 1;
    return gemm_streams(&one) ? (size_t)threads * 2 * block_space(g) : 0;
}

typedef struct job {
    const gemm *g;
    int64_t     block;   /* of k */
    int64_t     columns; /* of a tile, whole WIDTHs */
    char       *workspace;
} job;

typedef struct block { /* of B: n columns from j on, depth rows from k on */
    int64_t j, n, k, depth;
    int64_t packed; /* rows */
    PACKED *to;
} block;

static block block_at(const job *job, int64_t j, int64_t end, int64_t k, PACKED *to)
{
    return (block){j, min64(WIDTH, end - j), k, min64(job->block, job->g->k - k), 0, to};
}

static const ELEMENT *next_row(const gemm *g, const block *b) { return g->b + (b->k + b->packed) * g->b_k + b->j; }

/* Panels are one row apart, as in gemm.c. */
static void pack_rows(const gemm *g, block *b, int64_t rows)
{
    rows = min64(rows, b->depth - b->packed);
    if (rows > 0) gemm_pack_b(g, next_row(g, b), b->n, rows, b->packed, b->to, (b->depth + 1) * NR);
    b->packed += rows;
}

/* Multiplies the block and packs the next one (NULL: there is none). */
static void multiply_block(const gemm *g, const block *b, block *next)
{
    const REAL *rows[LONGEST], *first = b->k == 0 && !g->add ? zeros : NULL;
    REAL       *to[LONGEST];
    int64_t     calls = tiles_of(g->m, MR) * tiles_of(b->n, NR),
            at_once = next ? max64(MR, tiles_of(next->depth, calls)) : 0;
    for (int64_t i = 0; i < g->m; i++) {
        rows[i] = (const REAL *)(const void *)g->a + i * g->a_row + b->k;
        to[i] = (REAL *)g->c + i * g->c_row + b->j;
    }
    for (int64_t j = 0; j < b->n; j += NR)
        for (int64_t i = 0; i < g->m; i += MR) {
            runs r = {.runs = 1, .length = b->depth, .ahead_row = g->b_k * (int64_t)sizeof(REAL)};
            if (next && next->packed < next->depth) r.ahead = (const char *)next_row(g, next);
            micro_nn(min64(MR, g->m - i), rows + i, &r, (const REAL *)(const void *)b->to + j * (b->depth + 1), first,
                     to + i, j, min64(NR, b->n - j));
            if (next) pack_rows(g, next, at_once);
        }
}

static void finish_block(const gemm *g, const block *b)
{
    if (!g->bias && !g->activation) return;
    for (int64_t i = 0; i < g->m; i++)
        gemm_finish_line((REAL *)g->c + i * g->c_row + b->j, b->n, g->bias ? g->bias + b->j : NULL, 1, g->activation);
}

static void run_tile(void *argument, int64_t tile, int worker)
{
    const job  *job = argument;
    const gemm *g = job->g;
    size_t      size = block_space(g);
    char       *scratch = job->workspace + (size_t)worker * 2 * size;
    PACKED     *buffer[2] = {(PACKED *)scratch, (PACKED *)(scratch + size)};
    int64_t     end = min64(g->n, (tile + 1) * job->columns);
    block       now = block_at(job, tile * job->columns, end, 0, buffer[0]), next;
    pack_rows(g, &now, now.depth);
    for (int turn = 1; now.j < end; turn ^= 1, now = next) {
        bool last = now.k + now.depth >= g->k;
        next = block_at(job, last ? now.j + now.n : now.j, end, last ? 0 : now.k + now.depth, buffer[turn]);
        multiply_block(g, &now, next.j < end ? &next : NULL);
        if (last) finish_block(g, &now);
    }
}

/* No sum depends on the tiles: one for a single thread, so that only its first block is not packed meanwhile. */
void gemm_run_stream(const gemm *g, lk__pool *pool, void *workspace)
{
    job     job = {.g = g, .block = gemm_block_k(g->k), .workspace = workspace};
    int64_t blocks = tiles_of(g->n, WIDTH), threads = lk__pool_workers(pool);
    job.columns = tiles_of(blocks, threads == 1 ? 1 : 2 * threads) * WIDTH;
    lk__pool_run(pool, tiles_of(g->n, job.columns), run_tile, &job);
}
