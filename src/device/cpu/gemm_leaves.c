/* gemm_leaves.c - a product with k split into leaves, whose products are added in a tree. */
#include "device/cpu/gemm_block.h"

#include "base/tree.h"

typedef struct job {
    const gemm              *g;
    const lk__kernel_leaves *leaves;
    int64_t                  m, n, columns; /* largest extents of a tile; tiles in a row of them */
    gemm_scratch             scratch;
    char                    *workspace; /* of the workers */
} job;

typedef struct place { /* a tile: its position in C and its size */
    int64_t i, j, m, n;
} place;

/* The product of one leaf, into its own tile. Blocks depend on the leaf's length alone: its bits do not depend on other
 * leaves. */
static void multiply_leaf(const gemm *g, place p, int64_t first, int64_t last, PACKED *a, PACKED *b, REAL *sum)
{
    int64_t   block = even_part(last - first, BLOCK_K, BLOCK_UNIT);
    gemm_step s = {.start = true, .c = sum, .c_row = p.n};
    for (int64_t k = first; k < last; k += s.k, s.start = false) {
        s.k = min64(block, last - k);
        gemm_take_a(g, g->a + p.i * g->a_row + k * g->a_k, p.m, p.n, !NARROW && g->a_k == 1, a, &s);
        s.b = b;
        s.panel = apart_panel(s.k);
        gemm_pack_b(g, g->b + p.j * g->b_column + k * g->b_k, p.n, s.k, 0, b, s.panel);
        gemm_multiply(p.m, p.n, &s);
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
    const job  *job = argument;
    const gemm *g = job->g;
    place       p = {index / job->columns * job->m, index % job->columns * job->n, 0, 0};
    p.m = min64(job->m, g->m - p.i);
    p.n = min64(job->n, g->n - p.j);
    int64_t size = p.m * p.n;
    char   *scratch = job->workspace + (size_t)worker * gemm_scratch_worker(job->scratch);
    PACKED *a = (PACKED *)scratch, *b = (PACKED *)(scratch + job->scratch.a);
    REAL   *sums = (REAL *)((char *)job->leaves->sums + (size_t)worker * lk__kernel_leaves_bytes());
    int     depth = 0;
    for (int leaf = 0; leaf < job->leaves->count; leaf++) {
        multiply_leaf(g, p, job->leaves->rows[leaf], job->leaves->rows[leaf + 1], a, b, sums + depth * size);
        depth++;
        for (int merges = lk__tree_merges(leaf, job->leaves->count); merges > 0; merges--, depth--)
            add_tile(sums + (depth - 2) * size, sums + (depth - 1) * size, size);
    }
    REAL *out = (REAL *)g->c + p.i * g->c_row + p.j;
    for (int64_t i = 0; i < p.m; i++) memcpy(out + i * g->c_row, sums + i * p.n, (size_t)p.n * sizeof *out);
}

void gemm_run_leaves(const gemm *g, const lk__kernel_leaves *leaves, lk__pool *pool, void *workspace)
{
    job job = {.g = g, .leaves = leaves, .scratch = gemm_scratch_of(g)};
    if (g->m <= 0 || g->n <= 0) return;
    job.workspace = (char *)workspace + job.scratch.shared;
    job.m = even_part(g->m, 64, PANEL_ROWS);
    job.n = even_part(g->n, min64(LK__LEAVES_TILE / job.m, BLOCK_B / BLOCK_K),
                      PANEL_COLUMNS); /* B's block has room for it */
    while (job.m * job.n > LK__LEAVES_TILE) job.n -= PANEL_COLUMNS;
    job.columns = tiles_of(g->n, job.n);
    lk__pool_run(pool, tiles_of(g->m, job.m) * job.columns, run_leaf_tile, &job);
}
