/* kernel/cpu/columns.h - sums down the columns of a matrix whose elements are computed as they are read: the one loop
 * behind bias gradients, the statistics of batch norm and the gradients of norms' weights. */
#ifndef LK__COLUMNS_H
#define LK__COLUMNS_H

#include "kernel/cpu/lanes.h"

/* What rows × columns are added: one or two terms for `lanes` columns from `column` on. Written INLINE, so that it melts
 * into the loop. */
typedef void (*column_terms)(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second);

/* A strip of `vectors` vectors of columns, `unroll` rows at a time: enough independent sums to hide an addition's
 * latency. RUN × unroll rows are added in REAL, then go into doubles. */
INLINE void sum_strip(column_terms terms, const void *data, int64_t begin, int64_t end, int64_t column, int64_t lanes,
                      const int vectors, const int unroll, double *first, double *second)
{
    dvec total[2][4] = {0};
    for (int64_t row = begin; row < end;) {
        vec     sum[2][4] = {0};
        int64_t stop = min64(end, row + RUN * unroll);
        for (; row + unroll <= stop; row += unroll) {
            for (int k = 0; k < vectors * unroll; k++) {
                vec a = {0}, b = {0};
                terms(data, row + k / vectors, column + k % vectors * VL, lanes, &a, &b);
                sum[0][k] += a;
                if (second) sum[1][k] += b;
            }
        }
        for (; row < stop; row++) {
            for (int k = 0; k < vectors; k++) {
                vec a = {0}, b = {0};
                terms(data, row, column + k * VL, lanes, &a, &b);
                sum[0][k] += a;
                if (second) sum[1][k] += b;
            }
        }
        for (int k = 0; k < vectors * unroll; k++) {
            total[0][k % vectors] = dadd(total[0][k % vectors], to_double(sum[0][k]));
            if (second) total[1][k % vectors] = dadd(total[1][k % vectors], to_double(sum[1][k]));
        }
    }
    for (int k = 0; k < vectors; k++) {
        dadd_to(first + column + k * VL, total[0][k], lanes);
        if (second) dadd_to(second + column + k * VL, total[1][k], lanes);
    }
}

/* Adds to first[c] and, unless NULL, to second[c] the terms of rows begin … end-1, in an order that only their number
 * decides. */
INLINE void sum_columns(column_terms terms, const void *data, int64_t begin, int64_t end, int64_t columns, double *first,
                        double *second)
{
    int64_t c = 0;
    for (; c + 4 * VL <= columns; c += 4 * VL) sum_strip(terms, data, begin, end, c, VL, 4, 1, first, second);
    for (; c + 2 * VL <= columns; c += 2 * VL) sum_strip(terms, data, begin, end, c, VL, 2, 2, first, second);
    for (; c + VL <= columns; c += VL) sum_strip(terms, data, begin, end, c, VL, 1, 4, first, second);
    if (c < columns) sum_strip(terms, data, begin, end, c, columns - c, 1, 4, first, second);
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
