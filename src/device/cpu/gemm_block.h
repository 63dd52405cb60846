/* device/cpu/gemm_block.h - shared by the algorithms for products (gemm.c, gemm_large.c, gemm_stream.c, gemm_leaves.c):
 * the sizes of blocks, and one block of k of a tile of C. */
#ifndef LK__GEMM_BLOCK_H
#define LK__GEMM_BLOCK_H

#include "device/cpu/activate.h"
#include "device/cpu/gemm.h"

/* As many panels and blocks are in a cache with PACKED elements of half the size. */
#if MATRIX
#define WIDER 2
#else
#define WIDER 1
#endif
enum {
    BLOCK_K = 256 * WIDER, /* a panel of B is 16 KiB (NEON, f32): it stays in the first-level cache */
    /* elements of A that are multiplied with a panel of B: with B's block, 3/8 of a second-level cache of 1 MiB */
    BLOCK_A = WIDER * (32 << 10),
    BLOCK_B = WIDER * (64 << 10),
    BLOCK_C = 32 << 10,                           /* elements, where C goes through scratch */
    SHARED = 1 << 20,                             /* elements of a B packed once for all tiles */
    SMALL = 8 << 10,                              /* elements of an A that is not packed */
    BLOCK_UNIT = PANEL_UNIT > 4 ? PANEL_UNIT : 4, /* blocks of k are multiples of it, except the last */
    REUSED = 6 * NR,                              /* columns for which an A that is contiguous along k is transposed */
    LONGEST = 512,                                /* rows or columns of a block */
    MANY = 32,                                    /* tiles: enough for as many threads */
    LEAST = 8 << 20                               /* multiplications that justify a separate tile */
};

static inline int64_t even_part(int64_t n, int64_t largest, int64_t unit) /* splits n into equal parts of whole units */
{
    int64_t parts = max64(1, tiles_of(n, max64(unit, largest / unit * unit)));
    return max64(unit, round_to(tiles_of(n, parts), unit));
}

/* Whether C's sums can be added up where C is. */
static inline bool c_in_place(const gemm *g) { return g->c_column == 1 && (!NARROW || g->c_wide); }

/* Whether a transposed B is packed although A is smaller: one of a group of products reads a B that is not in a cache,
 * and to transpose it once takes less time than to read several of its rows at once, for each panel of A (Neoverse V1:
 * 10 % less for 64 x 128 -> 256; not measured on x86). */
static inline bool gemm_keeps_b(const gemm *g)
{
#if defined(__aarch64__)
    enum { ROWS = 48, COLUMNS = 192 };
    return g->grouped && g->b_transposed && g->a_k == 1 && g->m >= ROWS && g->n >= COLUMNS;
#else
    (void)g;
    return false;
#endif
}

/* Bytes: of a B packed for all tiles, then for each worker of its blocks of A, B and C. */
typedef struct gemm_scratch {
    size_t shared, a, b, c;
} gemm_scratch;
#define gemm_scratch_of KERNEL(gemm_scratch_of)
gemm_scratch         gemm_scratch_of(const gemm *g);
static inline size_t gemm_scratch_worker(gemm_scratch s) { return s.a + s.b + s.c; }

/* Elements from a panel in a worker's scratch to the next: more than it has, so that the parts of a row do not map to
 * one cache set. */
static inline int64_t apart_panel(int64_t k) { return (packed_depth(k) + PANEL_UNIT) * PANEL_COLUMNS; }

/* Packs k's into panels that hold `first` of them already, `panel` elements apart; the rest of a unit is zero until the
 * next ones are packed. B: panels of PANEL_COLUMNS columns; gemm_pack_b_large: of PANEL_LARGE_COLUMNS. */
#define gemm_pack_b KERNEL(gemm_pack_b)
#define gemm_pack_b_large KERNEL(gemm_pack_b_large)
void gemm_pack_b(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, PACKED *to, int64_t panel);
void gemm_pack_b_large(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, PACKED *to, int64_t panel);
/* A: panels of PANEL_ROWS rows. */
#define gemm_pack_a KERNEL(gemm_pack_a)
void gemm_pack_a(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, int64_t first, PACKED *to, int64_t panel);

/* One block of k. */
typedef struct gemm_step {
    const PACKED *a; /* rows, or panels: (i, k) at a[i*a_panel + k*a_k] */
    bool          by_rows;
    int64_t       a_row, a_panel, a_k;
    const PACKED *b; /* panels, `panel` elements apart */
    int64_t       panel, k;
    bool          start;
    REAL         *c;
    int64_t       c_row;
    const PACKED *ahead; /* by_rows, on x86: the next block of A's rows, which is prefetched; NULL: none */
} gemm_step;

/* Sets A of the step, from `from` on, for n columns: in place where micro-kernels can read it, else in `scratch`. */
#define gemm_take_a KERNEL(gemm_take_a)
void gemm_take_a(const gemm *g, const ELEMENT *from, int64_t m, int64_t n, bool in_place, PACKED *scratch,
                 gemm_step *s);
/* C's block += (or =, to start) A's rows times B's panels. */
#define gemm_multiply KERNEL(gemm_multiply)
void gemm_multiply(int64_t m, int64_t n, const gemm_step *s);
/* line += bias (if not NULL; `step` 0: one for the whole line, 1: one per element), then the activation. */
#define gemm_finish_line KERNEL(gemm_finish_line)
void gemm_finish_line(REAL *line, int64_t n, const ELEMENT *bias, int64_t step, lk__op_unary activation);

/* gemm_stream.c */
#define gemm_streams KERNEL(gemm_streams)
#define gemm_stream_space KERNEL(gemm_stream_space)
#define gemm_run_stream KERNEL(gemm_run_stream)
bool   gemm_streams(const gemm *g);
size_t gemm_stream_space(const gemm *g, int threads); /* bytes, for any m */
void   gemm_run_stream(const gemm *g, lk__pool *pool, void *workspace);

/* gemm_large.c */
#define gemm_is_large KERNEL(gemm_is_large)
#define gemm_large_space KERNEL(gemm_large_space)
#define gemm_run_large KERNEL(gemm_run_large)
bool   gemm_is_large(const gemm *g);
size_t gemm_large_space(const gemm *g, int threads); /* bytes; 0 if it is not large */
void   gemm_run_large(const gemm *g, lk__pool *pool, void *workspace);

#endif
