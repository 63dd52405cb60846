/* grouped_linear.c - one product for each expert, of its rows with its weight, and the gradient of the weights: the
 * products of linear.c, one after the other, each divided over all threads. The number of rows of an expert is known
 * only when the kernel runs, so the workspace is large enough for all rows in one expert. */
#include "device/cpu/gemm.h"

/* The rows of expert e: *begin is where the one before ended. Offsets that are not in order give empty groups. */
static int64_t rows_of_expert(const lk__kernel_call *call, int64_t e, int64_t *begin)
{
    const int32_t *offsets = call->in[2].data;
    int64_t        end = max64(*begin, min64(offsets[e + 1], call->in[0].dims[0]));
    return end - *begin;
}

/* The same of the rows of one source, between those of others (graph/op/experts.c). */
static int64_t rows_of_source(const lk__kernel_call *call, int64_t e, int64_t *begin)
{
    const int32_t *bounds = (const int32_t *)call->in[2].data + 2 * e;
    *begin = max64(0, min64(bounds[0], call->in[0].dims[0]));
    return max64(0, min64(bounds[1], call->in[0].dims[0]) - *begin);
}

/* x (rows, in) times a weight (out, in), or (in, out) where transposed. */
static gemm expert_product(const lk__kernel_call *call)
{
    const lk__kernel_operand *w = &call->in[1];
    bool                      in_first = call->attrs->transposed;
    int64_t                   inputs = w->dims[in_first ? 1 : 2], outputs = w->dims[in_first ? 2 : 1];
    return (gemm){.m = call->in[0].dims[0],
                  .n = outputs,
                  .k = inputs,
                  .batch = 1,
                  .alone = true,
                  .grouped = true,
                  .a_row = inputs,
                  .a_k = 1,
                  .b_k = in_first ? outputs : 1,
                  .b_column = in_first ? 1 : inputs,
                  .b_transposed = !in_first,
                  .c_row = outputs,
                  .c_column = 1,
                  .c_wide = lk_dtype_size(call->out[0].dtype) == sizeof(REAL), /* of a summand, see linear.c */
                  .parts = lk__operand_sum_parts(call->attrs, &call->in[0], 1)};
}

void KERNEL(grouped_linear)(const lk__kernel_call *call)
{
    gemm           g = expert_product(call);
    const ELEMENT *x = call->in[0].data, *w = call->in[1].data;
    char          *y = call->out[0].data;
    size_t         row = (size_t)g.n * lk_dtype_size(call->out[0].dtype);
    int64_t        experts = call->in[1].dims[0], all = g.m, begin = 0;
    for (int64_t e = 0; e < experts; e++, begin += g.m) {
        g.m = rows_of_expert(call, e, &begin);
        g.a = x + begin * g.k;
        g.b = w + e * g.k * g.n;
        g.c = y + (size_t)begin * row;
        if (g.m > 0) gemm_run(&g, call->pool, call->workspace);
    }
    memset(y + (size_t)begin * row, 0, (size_t)(all - begin) * row);
}

size_t KERNEL(grouped_linear_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = expert_product(call);
    return gemm_workspace(&g, threads);
}

static gemm expert_weight_product(const lk__kernel_call *call)
{
    bool    in_first = call->attrs->transposed;
    int64_t inputs = call->in[0].dims[1], outputs = call->in[1].dims[1];
    int64_t rows = in_first ? inputs : outputs, columns = in_first ? outputs : inputs;
    return (gemm){.m = rows,
                  .n = columns,
                  .k = call->in[0].dims[0],
                  .batch = 1,
                  .alone = true,
                  .a_row = 1,
                  .a_k = rows,
                  .b_k = columns,
                  .b_column = 1,
                  .c_row = columns,
                  .c_column = 1,
                  .c_wide = true};
}

void KERNEL(grouped_linear_grad_weight)(const lk__kernel_call *call)
{
    gemm           g = expert_weight_product(call);
    const ELEMENT *row = call->in[call->attrs->transposed ? 0 : 1].data;
    const ELEMENT *column = call->in[call->attrs->transposed ? 1 : 0].data;
    REAL          *dw = call->out[0].data;
    int64_t        experts = call->out[0].dims[0], begin = 0;
    for (int64_t e = 0; e < experts; e++, begin += g.k) {
        g.k = call->attrs->parts ? rows_of_source(call, e, &begin) : rows_of_expert(call, e, &begin);
        g.a = row + begin * g.m;
        g.b = column + begin * g.n;
        g.c = dw + e * g.m * g.n;
        if (g.k > 0)
            gemm_run(&g, call->pool, call->workspace);
        else
            memset(g.c, 0, (size_t)(g.m * g.n) * sizeof *dw);
    }
}

size_t KERNEL(grouped_linear_grad_weight_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = expert_weight_product(call);
    return gemm_workspace(&g, threads);
}
