/* device/cpu/norm.h - what layer norm and RMS norm share: rows of the last dims are tiles, and the gradients of weight
 * and bias are partial sums over rows, which are added in order. Each norm defines how one row is normalised, how its
 * gradient is computed, and what is added to the gradients of its weights. Bound by memory. */
#ifndef LK__CPU_NORM_H
#define LK__CPU_NORM_H

#include "device/cpu/row_parts.h"

typedef struct norm {
    const ELEMENT *x, *dy, *residual; /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const REAL    *w, *b, *saved_mean, *saved_rstd;
    ELEMENT       *y, *sum; /* sum: x + residual */
    REAL          *mean, *rstd;
    int64_t        rows, n, tiles;
    double         epsilon;
    int            sums;    /* 1: dw; 2: dw and db */
    double        *partial; /* (tiles, sums, n); NULL: no gradient of weights is read */
    row_parts      parts;   /* by_part: how rows are summed */
    bool           by_part;
} norm;

/* Declared INLINE, so that they are inlined into the loops. */
typedef void (*norm_row)(const norm *s, int64_t row);

static inline void set_extents(norm *s, const lk__kernel_operand *x, int axis, int64_t most)
{
    s->rows = dims_product(x, 0, x->rank - axis);
    s->n = dims_product(x, x->rank - axis, x->rank);
    s->tiles = tile_count(s->rows, s->n, most);
}

/* The row that is normalised: x, or x + residual, which is written to sum. */
INLINE const ELEMENT *add_residual(const norm *s, int64_t row)
{
    const ELEMENT *x = s->x + row * s->n;
    if (!s->residual) return x;
    const ELEMENT *added = s->residual + row * s->n;
    ELEMENT       *sum = s->sum + row * s->n;
    EACH_VECTOR(i, s->n, store_part(sum + i, load_part(x + i, lanes) + load_part(added + i, lanes), lanes););
    return sum;
}

INLINE void normalise_tile(norm_row normalise, const norm *s, int64_t tile)
{
    for (int64_t row = tile_begin(s->rows, s->tiles, tile); row < tile_begin(s->rows, s->tiles, tile + 1); row++)
        normalise(s, row);
}

/* ---- gradients ---- */

/* Rows begin … end-1, whose terms are added to dw and db unless partial is NULL. sums is a constant. */
INLINE void grad_rows(norm_row grad, column_terms terms, const int sums, const norm *s, int64_t begin, int64_t end,
                      double *partial)
{
    int64_t block = max64(1, GRAIN / max64(s->n, 1)), stop; /* rows that stay in the cache between the two readings */
    for (; begin < end; begin = stop) {
        stop = min64(end, begin + block);
        for (int64_t row = begin; row < stop; row++) grad(s, row);
        if (partial) sum_columns(terms, s, begin, stop, s->n, partial, sums == 2 ? partial + s->n : NULL);
    }
}

INLINE void grad_tile_of(norm_row grad, column_terms terms, const int sums, const norm *s, int64_t tile)
{
    row_range r = {0, 1, tile_begin(s->rows, s->tiles, tile), tile_begin(s->rows, s->tiles, tile + 1)};
    double   *partial = s->partial ? s->partial + tile * sums * s->n : NULL;
    if (partial) memset(partial, 0, (size_t)(sums * s->n) * sizeof(double));
    if (s->by_part) r = row_parts_range(&s->parts, tile);
    for (; r.sample < r.last; r.sample++) {
        int64_t first = s->by_part ? r.sample * s->parts.tokens : 0;
        grad_rows(grad, terms, sums, s, first + r.begin, first + r.end, partial);
    }
}

static inline bool wants_weights(const lk__kernel_call *call, int sums)
{
    return output(call, 1) || (sums == 2 && output(call, 2));
}

/* By parts of the rows where the sums over them may be cut. */
static inline void divide_rows(const lk__kernel_call *call, norm *s)
{
    const lk__kernel_operand *x = &call->in[1];
    set_extents(s, x, call->attrs->axis, PARTS);
    int dim = x->rank - (int)call->attrs->axis - 1; /* the last of the rows */
    s->by_part = wants_weights(call, s->sums) && find_row_parts(call, x, dim, dims_product(x, 0, dim), s->n, &s->parts);
    if (s->by_part) s->tiles = row_parts_tiles(&s->parts);
}

static inline size_t grad_workspace(const lk__kernel_call *call, int sums)
{
    norm s = {.sums = sums};
    divide_rows(call, &s);
    if (s.by_part) return row_parts_space(&s.parts, 1, sums * s.n);
    return wants_weights(call, sums) ? (size_t)(s.tiles * sums * s.n) * sizeof(double) : 0;
}

/* Outputs 1 … `count` of a gradient from their sums, n each. */
static inline void write_sums(const lk__kernel_call *call, int count, int64_t n, const double *wide, const REAL *sums)
{
    for (int k = 1; k <= count; k++) {
        REAL *out = output(call, k);
        for (int64_t i = 0, at = (k - 1) * n; out && i < n; i++, at++)
            out[i] = sums ? sums[at] : wide ? (REAL)wide[at] : 0;
    }
}

/* tile: grad_tile_of with the norm's functions. */
static inline void run_grad(const lk__kernel_call *call, norm *s, lk__tile tile)
{
    int64_t columns = s->sums * s->n;
    lk__pool_run(call->pool, s->tiles, tile, s);
    if (!wants_weights(call, s->sums)) return;
    REAL *sums = s->by_part ? (REAL *)(s->partial + s->tiles * columns) : NULL;
    if (sums)
        add_row_parts(call->pool, &s->parts, s->partial, columns, sums);
    else if (s->tiles > 0)
        add_parts(call->pool, s->partial, s->tiles, columns);
    write_sums(call, s->sums, s->n, s->tiles ? s->partial : NULL, sums);
}

#endif
