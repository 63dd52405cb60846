/* binary.c - add, sub, mul and div with broadcasting. Bound by memory. */
#include "device/cpu/broadcast.h"

typedef enum operation { ADD, SUB, MUL, DIV } operation;

typedef struct pair {
    broadcast      walk;
    operation      operation;
    const ELEMENT *a, *b;
    ELEMENT       *y;
} pair;

/* One inner row; a step of 0 repeats one value. Scalar tails give the same bits: each element is rounded once. */
#define ROW(name, op)                                                                              \
    static void name(const ELEMENT *a, int64_t a_step, const ELEMENT *b, int64_t b_step, ELEMENT *y, int64_t n) \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        if (a_step && b_step) {                                                                    \
            for (; i + 2 * VL <= n; i += 2 * VL) {                                                 \
                vec low = load(a + i) op load(b + i), high = load(a + i + VL) op load(b + i + VL); \
                store(y + i, low);                                                                 \
                store(y + i + VL, high);                                                           \
            }                                                                                      \
            for (; i + VL <= n; i += VL) store(y + i, load(a + i) op load(b + i));                 \
            for (; i < n; i++) store_one(y + i, load_one(a + i) op load_one(b + i));               \
        } else if (a_step) {                                                                       \
            const REAL value = load_one(b);                                                             \
            for (; i + VL <= n; i += VL) store(y + i, load(a + i) op splat(value));                \
            for (; i < n; i++) store_one(y + i, load_one(a + i) op value);                         \
        } else {                                                                                   \
            const REAL value = load_one(a);                                                             \
            for (; i + VL <= n; i += VL) store(y + i, splat(value) op load(b + i));                \
            for (; i < n; i++) store_one(y + i, value op load_one(b + i));                         \
        }                                                                                          \
    }
ROW(add_row, +)
ROW(sub_row, -)
ROW(mul_row, *)
ROW(div_row, /)
#undef ROW

static void pair_row(const void *data, const int64_t at[BROADCAST_MOST], int64_t begin, int64_t n)
{
    static void (*const rows[])(const ELEMENT *, int64_t, const ELEMENT *, int64_t, ELEMENT *,
                                int64_t) = {add_row, sub_row, mul_row, div_row};
    const pair *p = data;
    int         last = p->walk.rank - 1;
    rows[p->operation](p->a + at[0], p->walk.step[0][last], p->b + at[1], p->walk.step[1][last], p->y + begin, n);
}

static void pair_tile(void *argument, int64_t tile, int worker)
{
    const pair *p = argument;
    (void)worker;
    broadcast_walk(&p->walk, tile, pair_row, p);
}

static void run_binary(const lk__kernel_call *call, operation operation)
{
    pair p = {.walk = broadcast_merge(call, 2), .operation = operation};
    p.a = call->in[0].data;
    p.b = call->in[1].data;
    p.y = call->out[0].data;
    lk__pool_run(call->pool, p.walk.tiles, pair_tile, &p);
}

void KERNEL(add)(const lk__kernel_call *call) { run_binary(call, ADD); }
void KERNEL(sub)(const lk__kernel_call *call) { run_binary(call, SUB); }
void KERNEL(mul)(const lk__kernel_call *call) { run_binary(call, MUL); }
void KERNEL(div)(const lk__kernel_call *call) { run_binary(call, DIV); }
