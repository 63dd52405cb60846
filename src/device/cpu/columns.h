/* device/cpu/columns.h - sums down the columns of a matrix whose elements are computed as they are read: the loop
 * shared by bias gradients, the statistics of batch norm and the gradients of norms' weights. */
#ifndef LK__COLUMNS_H
#define LK__COLUMNS_H

#include "device/cpu/lanes.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { SPAN = 64 }; /* vectors of columns that are summed together */

#if defined(__clang__)
#define UNROLL_LANES _Pragma("clang loop unroll(full)")
#else
#define UNROLL_LANES _Pragma("GCC unroll 16")
#endif

/* load_part without branches; what is past `lanes` (one at least) is undefined. Compilers contract a product and a sum
 * only within one basic block, and a column's bits must not depend on how many are computed with it. A constant VL
 * makes it a plain load. */
INLINE vec load_columns_real(const REAL *p, int64_t lanes)
{
    if (__builtin_constant_p(lanes) && lanes == VL) return load_real(p);
#if VECTOR_BYTES == 64 && LK_REAL_BITS == 32 /* where gcc does not unroll the loop */
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
#elif VECTOR_BYTES == 64
    return (vec)_mm512_maskz_loadu_pd((__mmask8)((1u << lanes) - 1), p);
#else
    vec v = {0};
    UNROLL_LANES
    for (int64_t l = 0; l < VL; l++) v[l] = p[l & -(int64_t)(l < lanes)];
    return v;
#endif
}
#if NARROW
INLINE vec load_columns_element(const ELEMENT *p, int64_t lanes)
{
    if (__builtin_constant_p(lanes) && lanes == VL) return load_element(p);
    vec v = {0};
    UNROLL_LANES
    for (int64_t l = 0; l < VL; l++) v[l] = load_one_element(p + (l & -(int64_t)(l < lanes)));
    return v;
}
#endif
#define load_columns(p, lanes) BY_TYPE(load_columns, p)(p, lanes)

/* The terms that are added: one or two for `lanes` columns from `column` on. Declared INLINE, so that it is inlined
 * into the loop. */
typedef void (*column_terms)(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second);

/* The rows whose terms are added, begin … end - 1 of data, and where their sums are. second may be NULL. */
typedef struct column_sums {
    const void *data;
    int64_t     begin, end;
    double     *first, *second;
} column_sums;

/* Few columns: a strip of `vectors` vectors in registers, `unroll` rows at a time: enough independent sums to hide an
 * addition's latency. RUN × unroll rows are added in REAL, then go into doubles. */
INLINE void sum_strip(column_terms terms, column_sums s, int64_t column, int64_t lanes, const int vectors,
                      const int unroll)
{
    dvec total[2][4] = {0};
    for (int64_t row = s.begin; row < s.end;) {
        vec     sum[2][4] = {0};
        int64_t stop = min64(s.end, row + RUN * unroll);
        for (; row + unroll <= stop; row += unroll) {
            for (int k = 0; k < vectors * unroll; k++) {
                vec a = {0}, b = {0};
                terms(s.data, row + k / vectors, column + k % vectors * VL, lanes, &a, &b);
                sum[0][k] += a;
                if (s.second) sum[1][k] += b;
            }
        }
        for (; row < stop; row++) {
            for (int k = 0; k < vectors; k++) {
                vec a = {0}, b = {0};
                terms(s.data, row, column + k * VL, lanes, &a, &b);
                sum[0][k] += a;
                if (s.second) sum[1][k] += b;
            }
        }
        for (int k = 0; k < vectors * unroll; k++) {
            total[0][k % vectors] = dadd(total[0][k % vectors], to_double(sum[0][k]));
            if (s.second) total[1][k % vectors] = dadd(total[1][k % vectors], to_double(sum[1][k]));
        }
    }
    for (int k = 0; k < vectors; k++) {
        dadd_to(s.first + column + k * VL, total[0][k], lanes);
        if (s.second) dadd_to(s.second + column + k * VL, total[1][k], lanes);
    }
}

/* Many columns: four rows at a time, each read from left to right as the prefetcher expects, into sums in the cache. */
INLINE void sum_wide(column_terms terms, column_sums s, int64_t column, int64_t lanes, const int vectors)
{
    for (int64_t row = s.begin; row < s.end;) {
        vec     sum[2][SPAN];
        int64_t stop = min64(s.end, row + 2 * RUN);
        memset(sum[0], 0, (size_t)vectors * sizeof(vec));
        if (s.second) memset(sum[1], 0, (size_t)vectors * sizeof(vec));
        for (; row + 4 <= stop; row += 4) {
            for (int k = 0; k < vectors; k++) {
                vec a[4], b[4];
                for (int r = 0; r < 4; r++) terms(s.data, row + r, column + k * VL, lanes, &a[r], &b[r]);
                sum[0][k] += (a[0] + a[1]) + (a[2] + a[3]);
                if (s.second) sum[1][k] += (b[0] + b[1]) + (b[2] + b[3]);
            }
        }
        for (; row < stop; row++) {
            for (int k = 0; k < vectors; k++) {
                vec a, b;
                terms(s.data, row, column + k * VL, lanes, &a, &b);
                sum[0][k] += a;
                if (s.second) sum[1][k] += b;
            }
        }
        for (int k = 0; k < vectors; k++) {
            dadd_to(s.first + column + k * VL, to_double(sum[0][k]), lanes);
            if (s.second) dadd_to(s.second + column + k * VL, to_double(sum[1][k]), lanes);
        }
    }
}

/* Adds to first[c] and, unless NULL, to second[c] the terms of rows begin … end-1, in an order that depends
 * on their number alone. */
INLINE void sum_columns(column_terms terms, const void *data, int64_t begin, int64_t end, int64_t columns,
                        double *first, double *second)
{
    column_sums s = {data, begin, end, first, second};
    int64_t     c = 0;
    while (c + 5 * VL <= columns) {
        int vectors = (int)min64(SPAN, (columns - c) / VL);
        sum_wide(terms, s, c, VL, vectors);
        c += vectors * VL;
    }
    for (; c + 4 * VL <= columns; c += 4 * VL) sum_strip(terms, s, c, VL, 4, 1);
    for (; c + 2 * VL <= columns; c += 2 * VL) sum_strip(terms, s, c, VL, 2, 2);
    for (; c + VL <= columns; c += VL) sum_strip(terms, s, c, VL, 1, 4);
    if (c < columns) sum_strip(terms, s, c, columns - c, 1, 4);
}

/* Where sum_columns changes from one order to the next: sum_wide, then strips of 4, of 2, and of one vector. */
typedef struct column_orders {
    int64_t end[4];
} column_orders;

static inline column_orders orders_of(int64_t columns)
{
    column_orders o;
    int64_t       c = 0;
    while (c + 5 * VL <= columns) c += min64(SPAN, (columns - c) / VL) * VL;
    o.end[0] = c;
    o.end[1] = c += (columns - c) / (4 * VL) * 4 * VL;
    o.end[2] = c + (columns - c) / (2 * VL) * 2 * VL;
    o.end[3] = columns;
    return o;
}

/* `lanes` columns in the order of this number. */
INLINE void sum_vector(int kind, column_terms terms, column_sums s, int64_t column, int64_t lanes)
{
    if (kind == 0) sum_wide(terms, s, column, lanes, 1);
    if (kind == 1) sum_strip(terms, s, column, lanes, 1, 1);
    if (kind == 2) sum_strip(terms, s, column, lanes, 1, 2);
    if (kind == 3) sum_strip(terms, s, column, lanes, 1, 4);
}

/* sum_columns of columns origin … origin + columns - 1 of `whole`: the bits that it gives for all of them. */
INLINE void sum_columns_of(column_terms terms, const void *data, int64_t begin, int64_t end, int64_t columns,
                           int64_t origin, int64_t whole, double *first, double *second)
{
    column_orders o = orders_of(whole);
    column_sums   s = {data, begin, end, first, second};
    if (columns == whole) {
        sum_columns(terms, data, begin, end, columns, first, second);
        return;
    }
    for (int64_t c = 0, lanes; c < columns; c += lanes) {
        int kind = 0;
        while (origin + c >= o.end[kind]) kind++;
        lanes = min64(VL, min64(columns - c, o.end[kind] - origin - c));
        if (lanes == VL)
            sum_vector(kind, terms, s, c, VL);
        else
            sum_vector(kind, terms, s, c, lanes);
    }
}

/* partial (parts, columns): adds all parts to the first, in order. */
typedef struct column_parts {
    double *partial;
    int64_t parts, columns, tiles;
} column_parts;

static inline void add_parts_tile(void *argument, int64_t tile, int worker)
{
    const column_parts *p = argument;
    int64_t begin = tile_begin(p->columns, p->tiles, tile), end = tile_begin(p->columns, p->tiles, tile + 1);
    (void)worker;
    for (int64_t part = 1; part < p->parts; part++) {
        const double *from = p->partial + part * p->columns;
        for (int64_t i = begin; i < end; i++) p->partial[i] += from[i];
    }
}

static inline void add_parts(lk__pool *pool, double *partial, int64_t parts, int64_t columns)
{
    column_parts p = {partial, parts, columns, tile_count(columns, parts, 0)};
    if (parts > 1) lk__pool_run(pool, p.tiles, add_parts_tile, &p);
}

#endif
