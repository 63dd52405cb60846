/* max.c - the maximum over one axis and where it is: x seen as (outer, n, inner). The first of equal values counts, and NaN is
 * above all numbers, as in PyTorch. Bound by memory. */
#include "kernel/cpu/lanes.h"

typedef struct maximum {
    const REAL    *x;
    REAL          *y;     /* NULL: not wanted */
    int32_t       *index; /* NULL: not wanted */
    int64_t        outer, n, inner, tiles;
    const int32_t *at; /* of max_grad */
} maximum;

static maximum describe(const lk__kernel_operand *x, int axis)
{
    maximum m = {.outer = dims_product(x, 0, axis), .n = x->dims[axis], .inner = dims_product(x, axis + 1, x->rank)};
    m.tiles = tile_count(m.outer, m.n * m.inner, 0);
    return m;
}

typedef struct best {
    vec  value;
    ivec index;
} best;

/* Lanes in which x takes the place of what was found so far. */
INLINE ivec above(vec x, vec found) { return (x > found) | ((x != x) & (found == found)); }

INLINE best take(best b, vec x, ivec index)
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

/* Along neighbours in memory: lane l sees x[l], x[l + VL], …; then the lanes are compared. */
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
            b = take(b, load(x + i), at);
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

/* Down the columns of (n, inner), a vector of columns at a time. */
static void column_maxima(const maximum *m, int64_t outer)
{
    const REAL *x = m->x + outer * m->n * m->inner;
    int64_t     to = outer * m->inner, inner = m->inner;
    EACH_VECTOR(i, inner, {
        best b = {load_part(x + i, lanes), {0}};
        for (int64_t k = 1; k < m->n; k++) b = take(b, load_part(x + k * inner + i, lanes), (ivec){0} + (INTEGER)k);
        if (m->y) store_part(m->y + to + i, b.value, lanes);
        for (int64_t l = 0; m->index && l < lanes; l++) m->index[to + i + l] = (int32_t)b.index[l];
    });
}

static void maximum_tile(void *argument, int64_t tile, int worker)
{
    const maximum *m = argument;
    int64_t        end = tile_begin(m->outer, m->tiles, tile + 1), index;
    REAL           value;
    (void)worker;
    for (int64_t outer = tile_begin(m->outer, m->tiles, tile); outer < end; outer++) {
        if (m->inner != 1) {
            column_maxima(m, outer);
            continue;
        }
        row_maximum(m->x + outer * m->n, m->n, &value, &index);
        if (m->y) m->y[outer] = value;
        if (m->index) m->index[outer] = (int32_t)index;
    }
}

void KERNEL(max)(const lk__kernel_call *call)
{
    maximum m = describe(&call->in[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.y = call->out[0].data;
    m.index = output(call, 1);
    lk__pool_run(call->pool, m.tiles, maximum_tile, &m);
}

void KERNEL(argmax)(const lk__kernel_call *call)
{
    maximum m = describe(&call->in[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.index = call->out[0].data;
    lk__pool_run(call->pool, m.tiles, maximum_tile, &m);
}

static void maximum_grad_tile(void *argument, int64_t tile, int worker)
{
    const maximum *m = argument;
    int64_t        end = tile_begin(m->outer, m->tiles, tile + 1);
    (void)worker;
    for (int64_t outer = tile_begin(m->outer, m->tiles, tile); outer < end; outer++) {
        REAL *dx = m->y + outer * m->n * m->inner;
        memset(dx, 0, (size_t)(m->n * m->inner) * sizeof *dx);
        for (int64_t i = 0; i < m->inner; i++)
            dx[m->at[outer * m->inner + i] * m->inner + i] = m->x[outer * m->inner + i];
    }
}

void KERNEL(max_grad)(const lk__kernel_call *call)
{
    maximum m = describe(&call->out[0], call->attrs->axis);
    m.x = call->in[0].data;
    m.at = call->in[1].data;
    m.y = call->out[0].data;
    lk__pool_run(call->pool, m.tiles, maximum_grad_tile, &m);
}
