/* matmul.c - batched matrix products; either operand may be shared by the batch or stored transposed. */
#include "device/cpu/gemm.h"

static int64_t batch_of(const lk__kernel_operand *x)
{
    int64_t batch = 1;
    for (int i = 0; i + 2 < x->rank; i++) batch *= x->dims[i];
    return batch;
}

static gemm describe_product(const lk__kernel_call *call)
{
    const lk__kernel_operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    bool                      ta = call->attrs->transpose_a, tb = call->attrs->transpose_b;
    int64_t                   m = y->dims[y->rank - 2], n = y->dims[y->rank - 1], k = a->dims[a->rank - (ta ? 2 : 1)];
    int64_t                   batch = max64(a->rank > 2 ? batch_of(a) : 1, b->rank > 2 ? batch_of(b) : 1);
    gemm g = {.m = m, .n = n, .k = k, .a = a->data, .b = b->data, .c = y->data, .c_row = n, .c_column = 1};
    g.c_wide = lk_dtype_size(y->dtype) == sizeof(REAL);
    if ((a->rank > 2 && batch_of(a) == 0) || (b->rank > 2 && batch_of(b) == 0)) batch = 0;
    g.batch = batch;
    g.alone = a->rank == 2 && b->rank == 2;
    g.sum = y->rank == 2 && (a->rank > 2 || b->rank > 2);
    g.a_row = ta ? 1 : k, g.a_k = ta ? m : 1;
    g.b_k = tb ? 1 : n, g.b_column = tb ? k : 1;
    g.b_transposed = tb;
    g.a_batch = a->rank > 2 ? m * k : 0;
    g.b_batch = b->rank > 2 ? k * n : 0;
    g.c_batch = g.sum ? 0 : m * n;
    g.parts = lk__operand_sum_parts(call->attrs, a, a->rank - (ta ? 2 : 1));
    if (!g.sum && b->rank == 2 && !ta) { /* one tall product */
        g.m = m * batch;
        g.batch = 1;
    } else if (g.sum && ta && !tb && a->rank > 2 && b->rank > 2 && call->attrs->sum.parts <= 1) { /* one deep product */
        g.k = k * batch;
        g.batch = 1;
        g.sum = false;
    }
    return g;
}

void KERNEL(matmul)(const lk__kernel_call *call)
{
    gemm g = describe_product(call);
    gemm_run(&g, call->pool, call->workspace);
}

size_t KERNEL(matmul_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = describe_product(call);
    return gemm_workspace(&g, threads);
}
