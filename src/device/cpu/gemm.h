/* device/cpu/gemm.h - the two micro-kernels of all matrix products and convolutions, and the blocked product built on
 * them.
 *
 * Both add to an MR × NR tile of C held in registers. B is always a packed panel: row k holds NR consecutive columns,
 * the missing ones zero. K is `runs` runs of `length`, so that a kernel row of a channels-last image, or a row of its
 * pixels, is read in place. */
#ifndef LK__GEMM_H
#define LK__GEMM_H

#include "device/cpu/cpu.h"
#include "device/sum_parts.h"

/* MR × NV vectors of accumulators, NV of B and at least one of A fit the registers: 32 on arm64 and AVX-512, 16
 * else. */
#if defined(__aarch64__)
enum { MR = 4, NV = 4 };
#elif defined(__AVX512F__)
enum { MR = 8, NV = 2 };
#elif defined(__AVX2__)
enum { MR = 6, NV = 2 };
#else
enum { MR = 4, NV = 2 };
#endif
enum { NR = NV * VL };
/* For large products, which have many panels: a wider tile where the registers hold one, since a loop over k begins and
 * ends less often for as many products, and loads fewer vectors. */
#if defined(__aarch64__)
#define LARGE_NV 6
#elif defined(__AVX512F__)
#define LARGE_NV 3
#else
#define LARGE_NV NV
#endif
enum { LARGE_NR = LARGE_NV * VL };

/* Panels of products (gemm*.c): PACKED elements, of ROWS rows of A, and COLUMNS or LARGE_COLUMNS columns of B. Those of
 * a matrix instruction set (matrix_NAME.h) hold ELEMENTs, whole units of k. */
#if MATRIX
#define MATRIX_FILE_(name) device/cpu/matrix_##name.h
#define MATRIX_FILE(name) MATRIX_FILE_(name)
#include QUOTE(MATRIX_FILE(LK_MATRIX))
typedef ELEMENT PACKED;
enum {
    PANEL_ROWS = MATRIX_ROWS,
    PANEL_COLUMNS = MATRIX_COLUMNS,
    PANEL_LARGE_COLUMNS = MATRIX_COLUMNS,
    PANEL_UNIT = MATRIX_UNIT
};
#else
typedef REAL PACKED;
enum { PANEL_ROWS = MR, PANEL_COLUMNS = NR, PANEL_LARGE_COLUMNS = LARGE_NR, PANEL_UNIT = 1 };
static inline void matrix_begin(void) {}
static inline void matrix_end(void) {}
#endif

typedef struct runs {
    int64_t runs, length;
    int64_t a_run; /* elements of A from a run to the next */
    int64_t a_k;   /* micro_tn: elements of A from a k to the next; micro_nn has 1 */
    /* micro_nn on x86: memory that is prefetched meanwhile, as many bytes as A has of each row; NULL: none. */
    const char *ahead;
    int64_t     ahead_row; /* bytes from a row to the next */
} runs;

#define zeros KERNEL(zeros)
extern const REAL zeros[LARGE_NR];

/* c[i][column + j] = start[j] + Σ a[i][k] b[k][j] for i < m, j < n <= NR; start == NULL: += Σ instead. */
#define micro_nn KERNEL(micro_nn)
void micro_nn(int64_t m, const REAL *const *a, const runs *r, const REAL *b, const REAL *start, REAL *const *c,
              int64_t column, int64_t n);

/* The dense case without edges: c[i*NR + j] = (or +=) Σ a[i*k + …] b[…][j] for i < m, a multiple of MR. */
#define micro_rows KERNEL(micro_rows)
void micro_rows(int64_t m, const REAL *a, int64_t k, const REAL *b, bool add, REAL *c);

/* c[i*c_row + j] = start[j] + Σ a[k*a_k + i] b[k][j]. Reads a up to the next multiple of MR past m. */
#define micro_tn KERNEL(micro_tn)
void micro_tn(int64_t m, const REAL *a, const runs *r, const REAL *b, const REAL *start, REAL *c, int64_t c_row,
              int64_t n);

/* c[i*c_row + j] = (or +=, to add) Σ a(k, i) b(k, j) over k < depth, whole units, where B is a panel of
 * PANEL_LARGE_COLUMNS columns, n of which are used, and A consists of panels of PANEL_ROWS rows, a_panel apart. */
#define micro_large KERNEL(micro_large)
void micro_large(int64_t m, const PACKED *a, int64_t a_panel, int64_t depth, const PACKED *b, bool add, REAL *c,
                 int64_t c_row, int64_t n);

/* Blocks of k, one after the other in A and B, of which each is summed by itself, from zero; the sums go onto a stack,
 * whose top two are then added this many times. One sum remains. */
enum { TREE_BLOCKS = 12, TREE_STACK = 4 };
typedef struct tree_blocks {
    int     count;
    int     merges[TREE_BLOCKS];
    int64_t length[TREE_BLOCKS];
} tree_blocks;

/* Like micro_large, for the sum of several blocks, each of which begins with a new unit. */
#define micro_tree KERNEL(micro_tree)
void micro_tree(int64_t m, const PACKED *a, int64_t a_panel, const tree_blocks *blocks, const PACKED *b, bool add,
                REAL *c, int64_t c_row, int64_t n);

/* to[j*to_row + i] = from[i*from_row + j] for i < rows, j < columns. */
#define transpose KERNEL(transpose)
void transpose(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows, int64_t columns);
/* The same, and to each row of `from` its bias is added, if there is one; then relu. */
#define transpose_finish KERNEL(transpose_finish)
void transpose_finish(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows, int64_t columns,
                      const REAL *bias, bool relu);
#if NARROW
#define transpose_wide KERNEL(transpose_wide)
#define transpose_narrow KERNEL(transpose_narrow)
void transpose_wide(REAL *to, int64_t to_row, const ELEMENT *from, int64_t from_row, int64_t rows, int64_t columns);
void transpose_narrow(ELEMENT *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows, int64_t columns);
#else
#define transpose_wide transpose
#define transpose_narrow transpose
#endif

/* C = A B (+ bias by column, then activation), for each of `batch`; or, with sum, C = Σ over the batch of A B. Sums are
 * REALs, and are rounded once where C is narrower. */
typedef struct gemm {
    int64_t        m, n, k, batch;
    const ELEMENT *a; /* (i, k) at a[i*a_row + k*a_k]; one of the two is 1 */
    int64_t        a_row, a_k, a_batch;
    const ELEMENT *b; /* (k, j) at b[k*b_k + j*b_column]; one of the two is 1 */
    int64_t        b_k, b_column, b_batch;
    bool           b_transposed; /* b_k is 1 because of the layout, not because there is one column */
    void          *c;            /* (i, j) at c[i*c_row + j*c_column] */
    int64_t        c_row, c_column, c_batch;
    bool           c_wide; /* C consists of REALs also where ELEMENT is narrower */
    const ELEMENT *bias;   /* n of them, or NULL */
    lk__op_unary   activation;
    bool           sum;
    bool           add;     /* C += instead; C consists of REALs with c_column 1, without bias */
    bool           alone;   /* batch is always 1 */
    bool           grouped; /* one of several products, each with its own B */
    lk__sum_parts  parts;   /* of k, each of which is summed by itself; up to 1: k is one part */
} gemm;

#define gemm_run KERNEL(gemm_run)
void gemm_run(const gemm *g, lk__pool *pool, void *workspace);
/* The same with k split into leaves, whose products are added in a tree. For products whose c_column is 1, without
 * bias. */
#define gemm_run_leaves KERNEL(gemm_run_leaves)
void gemm_run_leaves(const gemm *g, const lk__kernel_leaves *leaves, lk__pool *pool, void *workspace);
/* Enough for g and for any smaller m, n, k. */
#define gemm_workspace KERNEL(gemm_workspace)
size_t gemm_workspace(const gemm *g, int threads);

/* The largest extent of a block of k, in which products are summed before blocks are added. */
#define gemm_block_k KERNEL(gemm_block_k)
int64_t gemm_block_k(int64_t k);

/* Skinny products, without packing B (skinny.c, skinny_matrix.c, skinny_tiles_matrix.c). `space`: REALs of workspace.
 * Sets with a tile in whose order nothing else adds have none. */
#if MATRIX
#define HAS_SKINNY MATRIX_SKINNY
#else
#define HAS_SKINNY 1
#endif
#define skinny_fit KERNEL(skinny_fit)
#define skinny_space KERNEL(skinny_space)
#define skinny_run KERNEL(skinny_run)
bool    skinny_fit(const gemm *g);
int64_t skinny_space(const gemm *g);
void    skinny_run(const gemm *g, lk__pool *pool, void *workspace);

/* Bytes of `count` REALs, or PACKED elements, rounded up to a cache line. */
static inline size_t  space_of(int64_t count) { return lk__round_up((size_t)count * sizeof(REAL), LK__ALIGN); }
static inline size_t  packed_space_of(int64_t count) { return lk__round_up((size_t)count * sizeof(PACKED), LK__ALIGN); }
static inline int64_t round_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
/* Of k's in a panel. */
static inline int64_t packed_depth(int64_t k) { return round_to(k, PANEL_UNIT); }

/* An optional operand's data, or NULL. */
static inline void *optional_in(const lk__kernel_call *call, int i)
{
    return i < call->inputs ? call->in[i].data : NULL;
}
static inline void *optional_out(const lk__kernel_call *call, int i)
{
    return i < call->outputs ? call->out[i].data : NULL;
}

/* Vectors over `count` REALs and the rest one by one: relu keeps NaN. */
static inline void relu_in_place(REAL *x, int64_t count)
{
    int64_t i = 0;
    for (; i + VL <= count; i += VL) {
        vec v = load(x + i);
        store(x + i, choose(v < splat(0), splat(0), v));
    }
    for (; i < count; i++) x[i] = x[i] < 0 ? 0 : x[i];
}

#endif
