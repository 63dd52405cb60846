/* device/cpu/micro_tile.h - the inner loops of the micro-kernels: an MR × NR tile of C in registers; TILE_NV vectors
 * per row, if that is defined. Include unscheduled.h first. */
#ifndef LK__MICRO_TILE_H
#define LK__MICRO_TILE_H

#include "device/cpu/gemm.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef TILE_NV
#define TILE_NV NV
#endif
enum { TILE_NR = TILE_NV * VL };
typedef struct tile {
    vec v[MR][TILE_NV];
} tile;

#if defined(__aarch64__)
/* c + a[lane] * b */
INLINE vec add_product(vec c, vec a, int lane, vec b)
{
#if LK_REAL_BITS == 32
    float32x4_t x = (float32x4_t)c, y = (float32x4_t)b, z = (float32x4_t)a;
    switch (lane) {
    case 0: return (vec)vfmaq_laneq_f32(x, y, z, 0);
    case 1: return (vec)vfmaq_laneq_f32(x, y, z, 1);
    case 2: return (vec)vfmaq_laneq_f32(x, y, z, 2);
    default: return (vec)vfmaq_laneq_f32(x, y, z, 3);
    }
#else
    float64x2_t x = (float64x2_t)c, y = (float64x2_t)b, z = (float64x2_t)a;
    return lane == 0 ? (vec)vfmaq_laneq_f64(x, y, z, 0) : (vec)vfmaq_laneq_f64(x, y, z, 1);
#endif
}
#endif

/* One k: each of the MR scalars at a[i] times the row b. */
INLINE void add_scalars(tile *t, const REAL *const *a, int64_t k, const REAL *b)
{
    vec row[TILE_NV];
    UNROLL
    for (int j = 0; j < TILE_NV; j++) row[j] = load(b + j * VL);
    UNROLL
    for (int i = 0; i < MR; i++) {
        vec x = a[i][k] - (vec){0}; /* a broadcast: x - 0 is x for every x, also -0 */
        UNROLL
        for (int j = 0; j < TILE_NV; j++) t->v[i][j] += x * row[j];
    }
}

#if defined(__aarch64__)
/* VL k's: one vector of each row of A, its lanes times VL rows of B. */
INLINE void add_vectors(tile *t, const REAL *const *a, int64_t k, const REAL *b)
{
    vec x[MR];
    UNROLL
    for (int i = 0; i < MR; i++) x[i] = load(a[i] + k);
    UNROLL
    for (int lane = 0; lane < VL; lane++) {
        UNROLL
        for (int j = 0; j < TILE_NV; j++) {
            vec row = load(b + lane * TILE_NR + j * VL);
            UNROLL
            for (int i = 0; i < MR; i++) t->v[i][j] = add_product(t->v[i][j], x[i], lane, row);
        }
    }
}
#endif

/* C's cache lines are needed at the end; they are prefetched while the products are summed. */
INLINE void start_tile(tile *t, const REAL *start, REAL *const *c)
{
    UNROLL
    for (int i = 0; i < MR; i++) {
        __builtin_prefetch(c[i], 1, 3);
        UNROLL
        for (int line = 64; line < (int)sizeof(REAL) * TILE_NR; line += 64)
            __builtin_prefetch((const char *)c[i] + line, 1, 3);
        UNROLL
        for (int j = 0; j < TILE_NV; j++) t->v[i][j] = load((start ? start : zeros) + j * VL);
    }
}

INLINE void store_tile(const tile *t, bool add, REAL *const *c)
{
    UNROLL
    for (int i = 0; i < MR; i++) {
        UNROLL
        for (int j = 0; j < TILE_NV; j++) store(c[i] + j * VL, add ? load(c[i] + j * VL) + t->v[i][j] : t->v[i][j]);
    }
}

/* The tile += Σ a[i][k] b[k][j]. */
INLINE void add_runs(tile *t, const REAL *const *a, const runs *r, const REAL *b)
{
    const REAL *row[MR];
    UNROLL
    for (int i = 0; i < MR; i++) row[i] = a[i];
#if defined(__aarch64__)
    for (int64_t run = 0; run < r->runs; run++) {
        int64_t k = 0;
        for (; k + VL <= r->length; k += VL, b += VL * TILE_NR) add_vectors(t, row, k, b);
        for (; k < r->length; k++, b += TILE_NR) add_scalars(t, row, k, b);
        UNROLL
        for (int i = 0; i < MR; i++) row[i] += r->a_run;
    }
#else /* one index for all rows: MR pointers and it fit the registers of x86 */
    for (int64_t run = 0, first = 0; run < r->runs; run++, first += r->a_run)
        for (int64_t k = first; k < first + r->length; k++, b += TILE_NR) add_scalars(t, row, k, b);
#endif
}

#if !defined(__aarch64__)
/* The same of one run, with a cache line of each of MR rows prefetched for as many bytes of A. */
INLINE void add_run_ahead(tile *t, const REAL *const *a, const runs *r, const REAL *b)
{
    enum { LINE = 64, STEP = LINE / sizeof(REAL) };
    const REAL *row[MR];
    const char *ahead = r->ahead;
    UNROLL
    for (int i = 0; i < MR; i++) row[i] = a[i];
    for (int64_t k = 0; k < r->length; ahead += LINE) {
        const char *line = ahead;
        UNROLL
        for (int i = 0; i < MR; i++, line += r->ahead_row) __builtin_prefetch(line, 0, 2);
        for (int64_t end = min64(k + STEP, r->length); k < end; k++, b += TILE_NR) add_scalars(t, row, k, b);
    }
}
#endif

/* Adds the products of one k. */
INLINE void add_outer(tile *t, const REAL *x, const REAL *b)
{
#if defined(__aarch64__)
    vec scalars[MR / VL];
    UNROLL
    for (int i = 0; i < MR / VL; i++) scalars[i] = load(x + i * VL);
    UNROLL
    for (int j = 0; j < TILE_NV; j++) {
        vec row = load(b + j * VL);
        UNROLL
        for (int i = 0; i < MR; i++) t->v[i][j] = add_product(t->v[i][j], scalars[i / VL], i % VL, row);
    }
#else
    const REAL *scalars[MR];
    UNROLL
    for (int i = 0; i < MR; i++) scalars[i] = x + i;
    add_scalars(t, scalars, 0, b);
#endif
}

INLINE void tn_tile(const REAL *a, const runs *r, const REAL *b, const REAL *start, REAL *c, int64_t c_row)
{
    enum { LONG = 96 }; /* shorter runs end too often in the middle of four */
    tile  t;
    REAL *to[MR];
    UNROLL
    for (int i = 0; i < MR; i++) to[i] = c + i * c_row;
    start_tile(&t, start, to);
    for (int64_t run = 0; run < r->runs; run++, a += r->a_run) {
        const REAL *x = a;
        if (r->length >= LONG) {
            UNROLL_LONG
            for (int64_t k = 0; k < r->length; k++, x += r->a_k, b += TILE_NR) add_outer(&t, x, b);
        } else {
            for (int64_t k = 0; k < r->length; k++, x += r->a_k, b += TILE_NR) add_outer(&t, x, b);
        }
    }
    store_tile(&t, !start, to);
}

/* A partial tile of m rows and n columns, in a whole one on the stack. */
INLINE void tn_edge(int64_t m, const REAL *a, const runs *r, const REAL *b, const REAL *start, REAL *c, int64_t c_row,
                    int64_t n)
{
    REAL buffer[MR * TILE_NR] = {0};
    for (int64_t i = 0; !start && i < m; i++) memcpy(buffer + i * TILE_NR, c + i * c_row, (size_t)n * sizeof(REAL));
    tn_tile(a, r, b, start, buffer, TILE_NR);
    for (int64_t i = 0; i < m; i++) memcpy(c + i * c_row, buffer + i * TILE_NR, (size_t)n * sizeof(REAL));
}

#endif
