/* max.c - the maximum over one axis and its index, with x as (outer, n, inner). Of equal values the first is taken, and
 * NaN is greater than all numbers, as in PyTorch. Bound by memory. */
#include "device/cpu/lanes.h"

enum { COLUMNS = 4, STRIP = 64 * VL }; /* vectors of columns processed together; columns of a strip, the unit of work */

typedef struct maximum {
    const REAL    *x;
    REAL          *y;     /* NULL: not needed */
    int32_t       *index; /* NULL: not needed */
    int64_t        outer, n, inner, strips, tiles; /* strips of columns, where inner is above 1 */
    const int32_t *at; /* of max_grad */
} maximum;

static maximum describe_operand(const lk__kernel_operand *x, int axis)
{
    maximum m = {.outer = dims_product(x, 0, axis), .n = x->dims[axis], .inner = dims_product(x, axis + 1, x->rank)};
    m.strips = tiles_of(m.inner, STRIP);
    m.tiles = tile_count(m.outer * m.strips, m.n * min64(m.inner, STRIP), 0);
    return m;
}

typedef struct best {
    vec  value;
    ivec index;
} best;

/* Lanes in which x replaces the maximum found so far. */
INLINE ivec above(vec x, vec found) { return (x > found) | ((x != x) & (found == found)); }

INLINE best keep_larger(best b, vec x, ivec index)
{
    ivec more = above(x, b.value);
    return (best){choose(more, x, b.value), (more & index) | (~more & b.index)};
}

INLINE ivec lane_numbers(void)
{
    ivec lane;
    for (int l = 0; l < VL; l++) lane[l] = l;
    return lane;
}

/* Along contiguous elements: lane l reads x[l], x[l + VL], …; then the lanes are compared. */
static void row_maximum(const REAL *x, int64_t n, REAL *value, int64_t *index)
{
    int64_t i = 0;
    *value = x[0];
    *index = 0;
    if (n >= VL) {
        ivec at = lane_numbers();
        best b = {load(x), at};
        for (i = VL; i + VL <= n; i += VL) {
            at += VL;
            b = keep_larger(b, load(x + i), at);
        }
        *value = b.value[0];
        *index = (int64_t)b.index[0];
        for (int l = 1; l < VL; l++) {
            REAL other = b.value[l];
            bool same = other == *value || (other != other && *value != *value);
            bool more = other > *value || (other != other && *value == *value);
            if (!more && !(same && b.index[l] < *index)) continue;
            *value = other;
            *index = (int64_t)b.index[l];
        }
    }
    for (; i < n; i++) {
        if (!(x[i] > *value || (x[i] != x[i] && *value == *value))) continue;
        *value = x[i];
        *index = i;
    }
}

/* Along `vectors` adjacent vectors of columns of (n, inner): several, so that whole cache lines are used. */
INLINE void column_maxima(const maximum *m, int64_t outer, int64_t column, int64_t lanes, const int vectors)
{
    const REAL *x = m->x + outer * m->n * m->inner + column;
    int64_t     to = outer * m->inner + column, inner = m->inner;
    best        b[COLUMNS];
    for (int v = 0; v < vectors; v++) b[v] = (best){load_part(x + v * VL, lanes), {0}};
    for (int64_t k = 1; k < m->n; k++)
        for (int v = 0; v < vectors; v++)
            b[v] = keep_larger(b[v], load_part(x + k * inner + v * VL, lanes), (ivec){0} + (INTEGER)k);
    for (int v = 0; v < vectors; v++) {
        if (m->y) store_part(m->y + to + v * VL, b[v].value, lanes);
        for (int l = 0; m->index && l < VL; l++)
            if (l < lanes) m->index[to + v * VL + l] = (int32_t)b[v].index[l];
    }
}

static void strip_maxima(const maximum *m, int64_t outer, int64_t begin, int64_t end)
{
    for (; begin + COLUMNS * VL <= end; begin += COLUMNS * VL) column_maxima(m, outer, begin, VL, COLUMNS);
    for (; begin + VL <= end; begin += VL) column_maxima(m, outer, begin, VL, 1);
    if (begin < end) column_maxima(m, outer, begin, end - begin, 1);
}

static void maximum_tile(void *argument, int64_t tile, int worker)
{
    const maximum *m = argument;
    int64_t        items = m->outer * m->strips, end = tile_begin(items, m->tiles, tile + 1), index;
    REAL           value;
    (void)worker;
    for (int64_t item = tile_begin(items, m->tiles, tile); item < end; item++) {
        int64_t outer = item / m->strips, column = item % m->strips * STRIP;
        if (m->inner != 1) {
            strip_maxima(m, outer, column, min64(m->inner, column + STRIP));
            continue;
        }
        row_maximum(m->x + outer * m->n, m->n, &value, &index);
        if (m->y) m->y[outer] = value;
        if (m->index) m->index[outer] = (int32_t)index;
    }
}

void KERNEL(max)(const lk__kernel_call *call)
{
    maximum m = describe_operand(&call->in[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.y = call->out[0].data;
    m.index = output(call, 1);
    lk__pool_run(call->pool, m.tiles, maximum_tile, &m);
}

void KERNEL(argmax)(const lk__kernel_call *call)
{
    maximum m = describe_operand(&call->in[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.index = call->out[0].data;
    lk__pool_run(call->pool, m.tiles, maximum_tile, &m);
}

/* One row of dx at a time: (outer, k) of `inner` elements, or all n of them where inner is 1. */
static void maximum_grad_tile(void *argument, int64_t tile, int worker)
{
    const maximum *m = argument;
    int64_t        inner = m->inner, rows = inner == 1 ? m->outer : m->outer * m->n;
    int64_t        end = tile_begin(rows, m->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(rows, m->tiles, tile); row < end; row++) {
        if (inner == 1) {
            memset(m->y + row * m->n, 0, (size_t)m->n * sizeof *m->y);
            m->y[row * m->n + m->at[row]] = m->x[row];
            continue;
        }
        int64_t        k = row % m->n, from = row / m->n * inner;
        const REAL    *dy = m->x + from;
        const int32_t *at = m->at + from;
        REAL          *dx = m->y + row * inner;
        for (int64_t i = 0; i < inner; i++) dx[i] = at[i] == k ? dy[i] : 0;
    }
}

void KERNEL(max_grad)(const lk__kernel_call *call)
{
    maximum m = describe_operand(&call->out[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.at = call->in[1].data;
    m.y = call->out[0].data;
    m.tiles = m.inner == 1 ? tile_count(m.outer, m.n, 0) : tile_count(m.outer * m.n, m.inner, 0);
    lk__pool_run(call->pool, m.tiles, maximum_grad_tile, &m);
}
