/* conv_multiply_matrix.c - multiplies patches by weights with a matrix instruction set: the patches of a few pixels at
 * a time are packed into panels, which stay in a cache. Bound by arithmetic; packing a patch copies up to 8 times
 * CONV_RUN_UNIT elements at a time. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/conv.h"

enum { AT_ONCE = 64 / MATRIX_ROWS * MATRIX_ROWS }; /* pixels */
enum { UNIT_BYTES = CONV_RUN_UNIT * sizeof(ELEMENT) };

/* A unit of a run, of which so many bytes are kept; the others become zero. */
INLINE void copy_unit(PACKED *to, const PACKED *from, size_t kept)
{
    uint64_t x = 0;
    memcpy(&x, from, UNIT_BYTES);
    x &= UINT64_MAX >> 8 * (sizeof x - kept); /* the first elements are in the lowest bits: little-endian */
    memcpy(to, &x, UNIT_BYTES);
}

/* Where the k's from k on, a unit of a run, of the first row of a panel are. */
INLINE PACKED *unit_at(PACKED *panel, int64_t k)
{
    return panel + k / MATRIX_A_GROUP * MATRIX_ROWS * MATRIX_A_GROUP + k % MATRIX_A_GROUP;
}

/* `count` elements of every row of a panel; it is a constant where this is inlined. */
INLINE void copy_rows(PACKED *to, const PACKED *const *from, int64_t q, const int64_t count)
{
    for (int row = 0; row < MATRIX_ROWS; row++)
        memcpy(to + row * MATRIX_A_GROUP, from[row] + q, (size_t)count * sizeof *to);
}

/* Of whole units of a run, `left` elements that go to k and later: those that its group has room for, or fewer. Returns
 * how many. */
INLINE int64_t copy_units(PACKED *panel, int64_t k, const PACKED *const *from, int64_t q, int64_t left)
{
    PACKED *to = unit_at(panel, k);
    left = min64(left, MATRIX_A_GROUP - k % MATRIX_A_GROUP);
    if (left >= 8 * CONV_RUN_UNIT) return copy_rows(to, from, q, 8 * CONV_RUN_UNIT), 8 * CONV_RUN_UNIT;
    if (left >= 4 * CONV_RUN_UNIT) return copy_rows(to, from, q, 4 * CONV_RUN_UNIT), 4 * CONV_RUN_UNIT;
    if (left >= 2 * CONV_RUN_UNIT) return copy_rows(to, from, q, 2 * CONV_RUN_UNIT), 2 * CONV_RUN_UNIT;
    return copy_rows(to, from, q, CONV_RUN_UNIT), CONV_RUN_UNIT;
}

/* The patches of a whole panel. */
static void pack_patches(const runs *r, const PACKED *const *from, PACKED *to)
{
    int64_t rest = r->length % CONV_RUN_UNIT, depth = conv_depth(r), k = 0;
    for (int64_t i = 0; i < r->runs; i++) {
        int64_t q = i * r->a_run, end = q + r->length - rest;
        for (int64_t copied; q < end; q += copied, k += copied) copied = copy_units(to, k, from, q, end - q);
        if (!rest) continue;
        PACKED *at = unit_at(to, k);
        for (int row = 0; row < MATRIX_ROWS; row++)
            copy_unit(at + row * MATRIX_A_GROUP, from[row] + q, (size_t)rest * sizeof(ELEMENT));
        k += CONV_RUN_UNIT;
    }
    for (; k < depth; k += CONV_RUN_UNIT)
        for (int row = 0; row < MATRIX_ROWS; row++) memset(unit_at(to, k) + row * MATRIX_A_GROUP, 0, UNIT_BYTES);
}

/* Rows past the last pixel repeat it: nothing of them is stored. */
static void pack_pixels(const runs *r, int64_t count, const PACKED *const *from, PACKED *to)
{
    int64_t panel = conv_depth(r) * MATRIX_ROWS;
    for (int64_t i = 0; i < count; i += MATRIX_ROWS, to += panel) {
        const PACKED *rows[MATRIX_ROWS];
        for (int64_t row = 0; row < MATRIX_ROWS; row++) rows[row] = from[min64(i + row, count - 1)];
        pack_patches(r, rows, to);
    }
}

INLINE void copy_start(REAL *to, const REAL *from, int64_t n)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) store_real(to + j, load_real(from + j));
    for (; j < n; j++) to[j] = from[j];
}

/* One panel of weights, in blocks of k, of which each is summed by itself. */
static void multiply_panel(const conv_product *p, int64_t count, const PACKED *a, int64_t column, REAL *c,
                           int64_t c_row)
{
    int64_t depth = conv_depth(&p->r), block = gemm_block_k(depth), n = min64(MATRIX_COLUMNS, p->columns - column);
    const PACKED *b = p->weights + column * depth;
    for (int64_t i = 0; p->start && i < count; i++) copy_start(c + i * c_row, p->start + column, n);
    for (int64_t k = 0; k < depth; k += block)
        micro_large(count, a + k * MATRIX_ROWS, depth * MATRIX_ROWS, min64(block, depth - k), b + k * MATRIX_COLUMNS,
                    p->start || k > 0, c, c_row, n);
    for (int64_t i = 0; depth == 0 && !p->start && i < count; i++) memset(c + i * c_row, 0, (size_t)n * sizeof *c);
}

/* Elements from a pixel's results to the next one's, where that is the same for all; else 0. */
static int64_t distance_of(int64_t count, REAL *const *to)
{
    int64_t distance = count > 1 ? to[1] - to[0] : MATRIX_COLUMNS;
    for (int64_t i = 1; i < count; i++)
        if (to[i] - to[0] != i * distance) return 0;
    return distance;
}

static void multiply_some(const conv_product *p, int64_t count, const PACKED *a, REAL *const *to)
{
    int64_t distance = distance_of(count, to);
    REAL    tile[AT_ONCE * MATRIX_COLUMNS];
    for (int64_t j = 0; j < p->columns; j += MATRIX_COLUMNS) {
        if (distance) {
            multiply_panel(p, count, a, j, to[0] + j, distance);
            continue;
        }
        multiply_panel(p, count, a, j, tile, MATRIX_COLUMNS);
        for (int64_t i = 0; i < count; i++)
            memcpy(to[i] + j, tile + i * MATRIX_COLUMNS, (size_t)min64(MATRIX_COLUMNS, p->columns - j) * sizeof **to);
    }
}

void conv_multiply(const conv_product *p, int64_t count, const PACKED *const *from, REAL *const *to, PACKED *scratch)
{
    matrix_begin();
    for (int64_t i = 0; i < count; i += AT_ONCE) {
        int64_t some = min64(AT_ONCE, count - i);
        pack_pixels(&p->r, some, from + i, scratch);
        multiply_some(p, some, scratch, to + i);
    }
    matrix_end();
}

int64_t conv_scratch(const runs *r) { return AT_ONCE * conv_depth(r); }

/* ---- weights ---- */

typedef struct weights {
    const conv    *v;
    const ELEMENT *from;
    PACKED        *to;
} weights;

static void pack_panel(void *argument, int64_t tile, int worker)
{
    const weights *job = argument;
    const conv    *v = job->v;
    runs           r = {.runs = v->kh, .length = v->kw * v->cg};
    int64_t        group = tile / v->panels, panel = tile % v->panels, depth = conv_depth(&r);
    int64_t        columns = min64(MATRIX_COLUMNS, v->og - panel * MATRIX_COLUMNS), deep = v->kh * v->kw * v->cg;
    const ELEMENT *w = job->from + (group * v->og + panel * MATRIX_COLUMNS) * deep;
    PACKED        *to = job->to + tile * depth * MATRIX_COLUMNS;
    (void)worker;
    memset(to, 0, (size_t)(depth * MATRIX_COLUMNS) * sizeof *to);
    for (int64_t j = 0; j < columns; j++)
        for (int64_t channel = 0; channel < v->cg; channel++)
            for (int64_t row = 0; row < v->kh; row++)
                for (int64_t column = 0; column < v->kw; column++)
                    *conv_weight_at(to, row * conv_run_depth(r.length) + column * v->cg + channel, j) = *w++;
}

void pack_weights(const conv *v, const ELEMENT *w, PACKED *to, lk__pool *pool)
{
    weights job = {v, w, to};
    lk__pool_run(pool, v->groups * v->panels, pack_panel, &job);
}
