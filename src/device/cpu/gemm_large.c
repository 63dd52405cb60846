/* gemm_large.c - a large product is split into slabs; of each, some blocks of k of A and of B are packed at a time, once for all
 * tiles. The same sums as by tiles: blocks of k are the same, and each is added to C in their order. */
#include "device/cpu/gemm_block.h"

enum {
    SLAB = 4096, /* rows or columns of a slab */
    PACKED =
        512 << 10, /* elements of A or B that are packed at a time, if that is more than one block of k: half of a cache */
    LARGE = 192, /* rows or columns: at least, of a large product */
    TILES = 128  /* of a slab: so that threads end at about the same time */
};
bool gemm_is_large(const gemm *g)
{
    return g->alone && c_in_place(g) && g->m >= LARGE && g->n >= LARGE && g->k >= 64 && g->m * g->n >= 2 * LARGE * LARGE;
}
/* Elements that are enough for a smaller extent, too: of a smaller batch. */
static int64_t slab_space(int64_t extent, int64_t k, int64_t unit)
{
    int64_t rounded = round_to(min64(SLAB, extent), unit);
    return min64(max64(rounded * BLOCK_K, PACKED), rounded * round_to(k, 4));
}
size_t gemm_large_space(const gemm *g)
{
    return gemm_is_large(g) ? space_of(slab_space(g->m, g->k, MR)) + space_of(slab_space(g->n, g->k, LARGE_NR)) : 0;
}

typedef struct slab {
    const gemm *g;
    int64_t     i, j, m, n; /* its place in C */
    int64_t     k, depth;   /* what is packed of k, and … */
    int64_t     block;      /* … of which so many at a time */
    int64_t     tile_m, tile_n, columns, panels_a, panels_b;
    int64_t     rows_a, columns_b; /* m and n, rounded up to whole panels */
    REAL       *a, *b;
} slab;

/* Rows and columns that are packed as one tile: whole panels. */
enum { GROUP = 128, GROUP_ROWS = GROUP / MR * MR, GROUP_COLUMNS = GROUP / LARGE_NR * LARGE_NR };

/* Block of k by block of k, each in panels. */
static void pack_slab(void *argument, int64_t part, int worker)
{
    const slab *s = argument;
    const gemm *g = s->g;
    int64_t     groups = s->panels_a + s->panels_b, k = part / groups * s->block, depth = min64(s->block, s->depth - k);
    (void)worker;
    part %= groups;
    if (part < s->panels_b) {
        int64_t j = part * GROUP_COLUMNS;
        gemm_pack_b_large(g, g->b + (s->j + j) * g->b_column + (s->k + k) * g->b_k, min64(GROUP_COLUMNS, s->n - j),
                          depth, s->b + k * s->columns_b + j * depth, depth * LARGE_NR);
        return;
    }
    int64_t        i = (part - s->panels_b) * GROUP_ROWS, m = min64(GROUP_ROWS, s->m - i);
    const ELEMENT *from = g->a + (s->i + i) * g->a_row + (s->k + k) * g->a_k;
    REAL          *to = s->a + k * s->rows_a + i * depth;
    if (g->a_k == 1)
        gemm_pack_a_rows(g, from, m, depth, to);
    else
        gemm_pack_a(g, from, m, depth, to);
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
        int64_t     depth = min64(s->block, s->depth - k);
        const REAL *a = s->a + k * s->rows_a + i * depth, *b = s->b + k * s->columns_b + j * depth;
        const REAL *start = s->k + k == 0 && !g->add ? zeros : NULL;
        runs        r = {.runs = 1, .length = depth, .a_run = depth * MR, .a_k = MR};
        for (int64_t q = 0; q < n; q += LARGE_NR)
            micro_large(m, a, &r, b + q * depth, start, c + q, g->c_row, min64(LARGE_NR, n - q));
    }
    if (s->k + s->depth == g->k && (g->bias || g->activation == LK__RELU))
        for (int64_t q = 0; q < m; q++)
            gemm_finish_line(c + q * g->c_row, n, g->bias ? g->bias + s->j + j : NULL, 1, g->activation);
}

static void run_slab(slab *s, lk__pool *pool)
{
    int64_t rows, together;
    s->block = even_part(s->g->k, BLOCK_K, 4);
    s->rows_a = round_to(s->m, MR);
    s->columns_b = round_to(s->n, LARGE_NR);
    together = max64(1, PACKED / max64(s->rows_a, s->columns_b) / s->block) * s->block;
    s->tile_m = even_part(s->m, s->m >= MANY * GROUP ? GROUP : GROUP / 2, MR);
    rows = tiles_of(s->m, s->tile_m);
    s->tile_n = even_part(s->n, max64(4 * LARGE_NR, s->n / tiles_of(TILES, rows)), LARGE_NR);
    s->columns = tiles_of(s->n, s->tile_n);
    s->panels_a = tiles_of(s->m, GROUP_ROWS);
    s->panels_b = tiles_of(s->n, GROUP_COLUMNS);
    for (s->k = 0; s->k < s->g->k; s->k += s->depth) {
        s->depth = min64(together, s->g->k - s->k);
        lk__pool_run(pool, (s->panels_a + s->panels_b) * tiles_of(s->depth, s->block), pack_slab, s);
        lk__pool_run(pool, rows * s->columns, multiply_slab, s);
    }
}

void gemm_run_large(const gemm *g, lk__pool *pool, void *workspace)
{
    slab s = {.g = g, .a = workspace, .b = (REAL *)((char *)workspace + space_of(slab_space(g->m, g->k, MR)))};
    for (s.i = 0; s.i < g->m; s.i += SLAB)
        for (s.j = 0; s.j < g->n; s.j += SLAB) {
            s.m = min64(SLAB, g->m - s.i);
            s.n = min64(SLAB, g->n - s.j);
            run_slab(&s, pool);
        }
}
