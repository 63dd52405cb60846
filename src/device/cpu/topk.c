/* topk.c - finds the largest elements of each row, computes their gradient, and groups assignments by expert. The
 * largest are found by insertion into a short list: k is small, and most elements of a long row are below its last one.
 * Grouping is a counting sort by one thread: it reads and writes two numbers for each assignment. */
#include "device/cpu/lanes.h"

typedef struct chosen {
    const REAL *x;
    REAL       *y;
    int32_t    *index;
    int64_t     rows, n, k, tiles;
} chosen;

/* As PyTorch: NaN is the largest. */
static inline bool is_above(REAL a, REAL b) { return a > b || (a != a && b == b); }

static void topk_tile(void *argument, int64_t tile, int worker)
{
    const chosen *c = argument;
    int64_t       end = tile_begin(c->rows, c->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(c->rows, c->tiles, tile); row < end; row++) {
        const REAL *x = c->x + row * c->n;
        REAL       *y = c->y + row * c->k;
        int32_t    *index = c->index + row * c->k;
        int64_t     have = 0;
        for (int64_t i = 0; i < c->n; i++) {
            if (have == c->k && !is_above(x[i], y[have - 1])) continue;
            int64_t at = have < c->k ? have++ : have - 1;
            for (; at > 0 && is_above(x[i], y[at - 1]); at--) y[at] = y[at - 1], index[at] = index[at - 1];
            y[at] = x[i];
            index[at] = (int32_t)i;
        }
    }
}

static chosen rows_of_call(const lk__kernel_operand *x, const lk__kernel_operand *y)
{
    chosen c = {.n = x->dims[x->rank - 1], .k = y->dims[y->rank - 1], .rows = dims_product(x, 0, x->rank - 1)};
    c.tiles = tile_count(c.rows, c.n, 0);
    return c;
}

void KERNEL(topk)(const lk__kernel_call *call)
{
    chosen c = rows_of_call(&call->in[0], &call->out[0]);
    c.x = call->in[0].data;
    c.y = call->out[0].data;
    c.index = call->out[1].data;
    lk__pool_run(call->pool, c.tiles, topk_tile, &c);
}

/* x is the gradient of the largest here, y that of the row. */
static void topk_grad_tile(void *argument, int64_t tile, int worker)
{
    const chosen *c = argument;
    int64_t       end = tile_begin(c->rows, c->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(c->rows, c->tiles, tile); row < end; row++) {
        REAL *dx = c->y + row * c->n;
        memset(dx, 0, (size_t)c->n * sizeof *dx);
        for (int64_t j = 0; j < c->k; j++) {
            int64_t i = c->index[row * c->k + j];
            if (i >= 0 && i < c->n) dx[i] += c->x[row * c->k + j];
        }
    }
}

void KERNEL(topk_grad)(const lk__kernel_call *call)
{
    chosen c = rows_of_call(&call->out[0], &call->in[0]);
    c.x = call->in[0].data;
    c.index = call->in[1].data;
    c.y = call->out[0].data;
    lk__pool_run(call->pool, c.tiles, topk_grad_tile, &c);
}

/* ---- groups ---- */

void KERNEL(group_rows)(const lk__kernel_call *call)
{
    const int32_t *ids = call->in[0].data;
    int32_t       *order = call->out[0].data, *place = call->out[1].data, *offsets = call->out[2].data;
    double        *counts = output(call, 3);
    int64_t       *next = call->workspace; /* of each expert: how many assignments, then the next place */
    int64_t        n = lk__operand_elements(&call->in[0]), experts = call->attrs->experts, at = 0, invalid = INT64_MAX;
    int64_t        most = call->attrs->capacity > 0 ? call->attrs->capacity : n;
    memset(next, 0, (size_t)experts * sizeof *next);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < experts)
            next[ids[i]]++;
        else
            keep_first(&invalid, i);
    for (int64_t e = 0; e < experts; e++) {
        int64_t named = next[e];
        if (counts) counts[e] = (double)named;
        offsets[e] = (int32_t)at;
        next[e] = at;
        at += min64(named, most);
    }
    offsets[experts] = (int32_t)at;
    for (int64_t i = 0; i < n; i++) {
        bool known = ids[i] >= 0 && ids[i] < experts, fits = known && next[ids[i]] < offsets[ids[i] + 1];
        place[i] = fits ? (int32_t)next[ids[i]]++ : -1;
        if (fits) order[place[i]] = (int32_t)i;
    }
    for (; at < n; at++) order[at] = -1;
    report_invalid(call, LK__OP_group_rows, ids, invalid, experts);
}

size_t KERNEL(group_rows_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return (size_t)call->attrs->experts * sizeof(int64_t);
}

/* Rows that rank `from` sends to this one, for expert e of its own. */
static int64_t sent_rows(const lk__kernel_call *call, int64_t from, int64_t e)
{
    const lk__kernel_operand *all = &call->in[0];
    int64_t                   experts = all->dims[1] - 1, each = experts / all->dims[0];
    const int32_t            *offsets = (const int32_t *)all->data + from * (experts + 1) + call->attrs->start * each;
    return offsets[e + 1] - offsets[e];
}

void KERNEL(route_rows)(const lk__kernel_call *call)
{
    int64_t  ranks = call->in[0].dims[0], experts = call->out[0].dims[0] - 1, rows = call->out[1].dims[0], at = 0;
    int32_t *offsets = call->out[0].data, *order = call->out[1].data, *place = call->out[2].data;
    int32_t *bounds = call->outputs > 3 ? call->out[3].data : NULL;
    memset(order, -1, (size_t)rows * sizeof *order);
    memset(place, -1, (size_t)rows * sizeof *place);
    offsets[0] = 0;
    for (int64_t e = 0; e < experts; e++) {
        offsets[e + 1] = offsets[e];
        for (int64_t r = 0; r < ranks; r++) offsets[e + 1] += (int32_t)sent_rows(call, r, e);
    }
    for (int64_t r = 0; r < ranks; r++)
        for (int64_t e = 0; e < experts; e++) {
            int64_t to = offsets[e];
            for (int64_t before = 0; before < r; before++) to += sent_rows(call, before, e);
            if (bounds) {
                bounds[2 * (r * experts + e)] = (int32_t)to;
                bounds[2 * (r * experts + e) + 1] = (int32_t)(to + sent_rows(call, r, e));
            }
            for (int64_t i = sent_rows(call, r, e); i > 0 && at < rows && to < rows; i--, at++, to++) {
                order[to] = (int32_t)at;
                place[at] = (int32_t)to;
            }
        }
}
