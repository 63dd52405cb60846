/* binary.c - add, sub, mul and div with broadcasting. Axes that both operands walk alike are merged first, so equal
 * shapes are one long row, a scalar or a trailing vector a short inner loop. Bound by memory. */
#include "kernel/cpu/lanes.h"

typedef enum operation { ADD, SUB, MUL, DIV } operation;

typedef struct broadcast {
    operation   operation;
    const REAL *a, *b;
    REAL       *y;
    int         rank; /* of the merged axes, at least 1; the last is the inner loop */
    int64_t     dims[LK_MAX_RANK], a_step[LK_MAX_RANK], b_step[LK_MAX_RANK]; /* a step of 0 repeats */
    int64_t     n, tiles;
} broadcast;

/* x's dim that meets y's axis, counted from the right as broadcasting does. */
static int64_t dim_under(const lk__kernel_operand *x, const lk__kernel_operand *y, int axis)
{
    int own = axis - (y->rank - x->rank);
    return own < 0 ? 1 : x->dims[own];
}

static broadcast merge(const lk__kernel_call *call)
{
    const lk__kernel_operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    broadcast                 p = {.a = a->data, .b = b->data, .y = y->data, .n = lk__operand_elements(y)};
    int64_t                   dims[LK_MAX_RANK], a_step[LK_MAX_RANK], b_step[LK_MAX_RANK], a_next = 1, b_next = 1;
    int                       rank = 0; /* innermost first, turned round at the end */
    for (int axis = y->rank - 1; axis >= 0; axis--) {
        int64_t n = y->dims[axis], of_a = dim_under(a, y, axis), of_b = dim_under(b, y, axis);
        int64_t step_a = of_a == 1 ? 0 : a_next, step_b = of_b == 1 ? 0 : b_next;
        a_next *= of_a;
        b_next *= of_b;
        if (n == 1) continue;
        if (rank > 0) {
            int64_t inner = dims[rank - 1];
            if (step_a == a_step[rank - 1] * inner && step_b == b_step[rank - 1] * inner) {
                dims[rank - 1] *= n;
                continue;
            }
        }
        dims[rank] = n;
        a_step[rank] = step_a;
        b_step[rank++] = step_b;
    }
    if (rank == 0) dims[0] = 1, a_step[0] = b_step[0] = 1, rank = 1;
    p.rank = rank;
    for (int i = 0; i < rank; i++) {
        p.dims[i] = dims[rank - 1 - i];
        p.a_step[i] = a_step[rank - 1 - i];
        p.b_step[i] = b_step[rank - 1 - i];
    }
    return p;
}

/* One inner row; a step of 0 stands for one value. Scalar tails give the same bits: each is a single rounding. */
#define ROW(name, op)                                                                              \
    static void name(const REAL *a, int64_t a_step, const REAL *b, int64_t b_step, REAL *y, int64_t n) \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        if (a_step && b_step) {                                                                    \
            for (; i + 2 * VL <= n; i += 2 * VL) {                                                 \
                vec low = load(a + i) op load(b + i), high = load(a + i + VL) op load(b + i + VL); \
                store(y + i, low);                                                                 \
                store(y + i + VL, high);                                                           \
            }                                                                                      \
            for (; i + VL <= n; i += VL) store(y + i, load(a + i) op load(b + i));                 \
            for (; i < n; i++) y[i] = a[i] op b[i];                                                \
        } else if (a_step) {                                                                       \
            const REAL value = b[0];                                                               \
            for (; i + VL <= n; i += VL) store(y + i, load(a + i) op splat(value));                \
            for (; i < n; i++) y[i] = a[i] op value;                                               \
        } else {                                                                                   \
            const REAL value = a[0];                                                               \
            for (; i + VL <= n; i += VL) store(y + i, splat(value) op load(b + i));                \
            for (; i < n; i++) y[i] = value op b[i];                                               \
        }                                                                                          \
    }
ROW(add_row, +)
ROW(sub_row, -)
ROW(mul_row, *)
ROW(div_row, /)
#undef ROW

static void broadcast_tile(void *argument, int64_t tile, int worker)
{
    static void (*const rows[])(const REAL *, int64_t, const REAL *, int64_t, REAL *, int64_t) = {add_row, sub_row,
                                                                                                  mul_row, div_row};
    const broadcast *p = argument;
    int64_t          begin = tile_begin(p->n, p->tiles, tile), end = tile_begin(p->n, p->tiles, tile + 1);
    int64_t          index[LK_MAX_RANK], a = 0, b = 0, rest = begin;
    (void)worker;
    for (int i = p->rank - 1; i >= 0; i--) {
        index[i] = rest % p->dims[i];
        rest /= p->dims[i];
        a += index[i] * p->a_step[i];
        b += index[i] * p->b_step[i];
    }
    int last = p->rank - 1;
    while (begin < end) {
        int64_t n = min64(end - begin, p->dims[last] - index[last]);
        rows[p->operation](p->a + a, p->a_step[last], p->b + b, p->b_step[last], p->y + begin, n);
        begin += n;
        index[last] += n;
        a += n * p->a_step[last];
        b += n * p->b_step[last];
        for (int i = last; i > 0 && index[i] == p->dims[i]; i--) { /* carry into the next axis */
            index[i] = 0;
            index[i - 1]++;
            a += p->a_step[i - 1] - p->dims[i] * p->a_step[i];
            b += p->b_step[i - 1] - p->dims[i] * p->b_step[i];
        }
    }
}

/* Sums and weights are doubles in every program. */
static void doubles(const lk__kernel_call *call, operation operation)
{
    const double *a = call->in[0].data, *b = call->in[1].data;
    double       *y = call->out[0].data;
    int64_t       n = lk__operand_elements(&call->out[0]);
    for (int64_t i = 0; i < n; i++) {
        switch (operation) {
        case ADD: y[i] = a[i] + b[i]; break;
        case SUB: y[i] = a[i] - b[i]; break;
        case MUL: y[i] = a[i] * b[i]; break;
        case DIV: y[i] = a[i] / b[i]; break;
        }
    }
}

static void binary(const lk__kernel_call *call, operation operation)
{
    if (call->in[0].dtype == LK_F64 && REAL_DTYPE != LK_F64) {
        doubles(call, operation);
        return;
    }
    broadcast p = merge(call);
    p.operation = operation;
    p.tiles = tile_count(p.n, 1, 0);
    lk__pool_run(call->pool, p.tiles, broadcast_tile, &p);
}

void KERNEL(add)(const lk__kernel_call *call) { binary(call, ADD); }
void KERNEL(sub)(const lk__kernel_call *call) { binary(call, SUB); }
void KERNEL(mul)(const lk__kernel_call *call) { binary(call, MUL); }
void KERNEL(div)(const lk__kernel_call *call) { binary(call, DIV); }
