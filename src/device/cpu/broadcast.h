/* device/cpu/broadcast.h - iterates over operands of broadcast shapes together. Axes that all operands traverse alike
 * are merged first, so equal shapes become one long row, and a scalar or a trailing vector becomes a short inner
 * loop. */
#ifndef LK__BROADCAST_H
#define LK__BROADCAST_H

#include "device/cpu/lanes.h"

enum { BROADCAST_MOST = 3 };

typedef struct broadcast {
    int     operands; /* inputs, from the first */
    int     rank;     /* of the merged axes, at least 1; the last is the inner loop */
    int64_t dims[LK_MAX_RANK];
    int64_t step[BROADCAST_MOST][LK_MAX_RANK]; /* in elements; a step of 0 repeats */
    int64_t n, tiles;
} broadcast;

/* x's dim that corresponds to y's axis, aligned from the right as in broadcasting. */
static inline int64_t dim_under(const lk__kernel_operand *x, const lk__kernel_operand *y, int axis)
{
    int own = axis - (y->rank - x->rank);
    return own < 0 ? 1 : x->dims[own];
}

/* Whether y's axis can be merged with the axis before it, for every operand. */
static inline bool continues(const broadcast *p, const int64_t *step)
{
    if (p->rank == 0) return false;
    for (int k = 0; k < p->operands; k++)
        if (step[k] != p->step[k][p->rank - 1] * p->dims[p->rank - 1]) return false;
    return true;
}

static inline void swap64(int64_t *a, int64_t *b)
{
    int64_t keep = *a;
    *a = *b;
    *b = keep;
}

static inline broadcast broadcast_merge(const lk__kernel_call *call, int operands)
{
    const lk__kernel_operand *y = &call->out[0];
    broadcast                 p = {.operands = operands, .n = lk__operand_elements(y)};
    int64_t                   next[BROADCAST_MOST], step[BROADCAST_MOST];
    for (int k = 0; k < operands; k++) next[k] = 1;
    for (int axis = y->rank - 1; axis >= 0; axis--) { /* innermost first, reversed at the end */
        for (int k = 0; k < operands; k++) {
            int64_t own = dim_under(&call->in[k], y, axis);
            step[k] = own == 1 ? 0 : next[k];
            next[k] *= own;
        }
        if (y->dims[axis] == 1) continue;
        if (continues(&p, step)) {
            p.dims[p.rank - 1] *= y->dims[axis];
            continue;
        }
        for (int k = 0; k < operands; k++) p.step[k][p.rank] = step[k];
        p.dims[p.rank++] = y->dims[axis];
    }
    if (p.rank == 0) {
        p.dims[p.rank++] = 1;
        for (int k = 0; k < operands; k++) p.step[k][0] = 1;
    }
    for (int i = 0, j = p.rank - 1; i < j; i++, j--) {
        swap64(&p.dims[i], &p.dims[j]);
        for (int k = 0; k < operands; k++) swap64(&p.step[k][i], &p.step[k][j]);
    }
    p.tiles = tile_count(p.n, 1, 0);
    return p;
}

/* Part of an inner row: n elements of y from `begin` on, and the first position in each operand. Steps are along the
 * last axis: 1, or 0 for one value. */
typedef void (*broadcast_row)(const void *data, const int64_t at[BROADCAST_MOST], int64_t begin, int64_t n);

static inline void broadcast_walk(const broadcast *p, int64_t tile, broadcast_row row, const void *data)
{
    int64_t begin = tile_begin(p->n, p->tiles, tile), end = tile_begin(p->n, p->tiles, tile + 1), rest = begin;
    int64_t index[LK_MAX_RANK], at[BROADCAST_MOST] = {0};
    int     last = p->rank - 1;
    for (int i = last; i >= 0; i--) {
        index[i] = rest % p->dims[i];
        rest /= p->dims[i];
        for (int k = 0; k < p->operands; k++) at[k] += index[i] * p->step[k][i];
    }
    while (begin < end) {
        int64_t n = min64(end - begin, p->dims[last] - index[last]);
        row(data, at, begin, n);
        begin += n;
        index[last] += n;
        for (int k = 0; k < p->operands; k++) at[k] += n * p->step[k][last];
        for (int i = last; i > 0 && index[i] == p->dims[i]; i--) { /* carry into the next axis */
            index[i] = 0;
            index[i - 1]++;
            for (int k = 0; k < p->operands; k++) at[k] += p->step[k][i - 1] - p->dims[i] * p->step[k][i];
        }
    }
}

#endif
