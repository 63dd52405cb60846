/* device/cpu/row_parts.h - sums over rows (samples, tokens), whose tokens an axis of the mesh may cut. Each part of the
 * tokens is summed separately over all samples, and the parts are added in the pairwise tree (base/sum_parts.h). Within
 * a part, runs of samples are summed separately, in double, and added in order. Both divisions depend only on the
 * number of tokens of the whole, so the sums of a rank's parts have the same bits as in the whole. */
#ifndef LK__CPU_ROW_PARTS_H
#define LK__CPU_ROW_PARTS_H

#include "base/sum_parts.h"
#include "device/cpu/columns.h"

typedef struct row_parts {
    lk__sum_parts parts;
    int64_t       samples, tokens; /* of this call */
    int64_t       runs;            /* of samples; a tile is a part and a run */
} row_parts;

/* Of rows (samples, tokens) of n columns, with the tokens in dimension `dim` of x. False: they are one sum. */
static inline bool find_row_parts(const lk__kernel_call *call, const lk__kernel_operand *x, int dim, int64_t samples,
                                  int64_t n, row_parts *r)
{
    const lk__op_summation *sum = &call->attrs->sum;
    if (sum->parts <= 1 || dim < 1) return false;
    int64_t whole = lk__whole_extent(x, dim);
    r->samples = samples;
    r->tokens = x->dims[dim];
    r->runs = max64(1, min64(samples, tile_count(samples * whole, n, PARTS) / sum->parts));
    return lk__sum_parts_of(sum, whole, lk__part_first(x, dim), r->tokens, &r->parts);
}

static inline int64_t row_parts_tiles(const row_parts *r) { return r->parts.count * r->runs; }

/* Rows begin … end-1 of a sample are in the tile. */
typedef struct row_range {
    int64_t sample, last; /* samples sample … last-1 */
    int64_t begin, end;
} row_range;

static inline row_range row_parts_range(const row_parts *r, int64_t tile)
{
    int64_t part = tile / r->runs, run = tile % r->runs;
    return (row_range){tile_begin(r->samples, r->runs, run), tile_begin(r->samples, r->runs, run + 1),
                       r->parts.begin[0][part], r->parts.begin[0][part + 1]};
}

/* rows (count, columns): adds all to the first, in the pairwise tree. */
static inline void add_in_tree(REAL *rows, int count, int64_t columns)
{
    if (count < 2) return;
    int   left = lk__tree_left(count);
    REAL *more = rows + left * columns;
    add_in_tree(rows, left, columns);
    add_in_tree(more, count - left, columns);
    EACH_VECTOR(i, columns, store_part(rows + i, load_part(rows + i, lanes) + load_part(more + i, lanes), lanes););
}

/* The room for partial (tiles, columns) of `sums` sums, followed by room for (parts, columns) REALs of one of them. */
static inline size_t row_parts_space(const row_parts *r, int64_t sums, int64_t columns)
{
    return (size_t)columns *
           ((size_t)(sums * row_parts_tiles(r)) * sizeof(double) + (size_t)r->parts.count * sizeof(REAL));
}

/* partial (tiles, columns): the sums of the parts, each rounded like the sums of other ranks, added in the tree into
 * the first of `parts`. */
static inline void add_row_parts(lk__pool *pool, const row_parts *r, double *partial, int64_t columns, REAL *parts)
{
    for (int part = 0; part < r->parts.count; part++) {
        double *from = partial + part * r->runs * columns;
        add_parts(pool, from, r->runs, columns);
        for (int64_t i = 0; i < columns; i++) parts[part * columns + i] = (REAL)from[i];
    }
    add_in_tree(parts, r->parts.count, columns);
}

#endif
