/* linear.c - y = x w' + b and its gradients: three products of one shape. The weight is (out, in), or (in, out) where
 * transposed. */
#include "device/cpu/gemm.h"

#include "base/tree.h"
#include "device/cpu/activate.h"
#include "device/cpu/lanes.h"

static int64_t rows_of(const lk__kernel_operand *x)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->rank; i++) rows *= x->dims[i];
    return rows;
}

/* Of a summand, which is rounded when it was added to those of other ranks, and of operands that were rounded for the
 * product alone (lk_plan_config.matmul_precision). */
static bool is_wide(const lk__kernel_operand *y) { return lk_dtype_size(y->dtype) == sizeof(REAL); }

/* Such operands have a bias of sums: it is added, and the activation computed, behind the product. */
static bool finishes_wide(const lk__kernel_call *call)
{
    return NARROW && optional_in(call, 2) && is_wide(&call->in[2]);
}

static gemm forward_product(const lk__kernel_call *call)
{
    bool                      wide = finishes_wide(call);
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    bool                      in_first = call->attrs->transposed;
    int64_t                   inputs = w->dims[in_first ? 0 : 1], outputs = w->dims[in_first ? 1 : 0];
    return (gemm){.m = rows_of(x),
                  .n = outputs,
                  .k = inputs,
                  .batch = 1,
                  .alone = true,
                  .a = x->data,
                  .a_row = inputs,
                  .a_k = 1,
                  .b = w->data,
                  .b_k = in_first ? outputs : 1,
                  .b_column = in_first ? 1 : inputs,
                  .b_transposed = !in_first,
                  .c = call->out[0].data,
                  .c_row = outputs,
                  .c_column = 1,
                  .c_wide = is_wide(&call->out[0]),
                  .bias = wide ? NULL : optional_in(call, 2),
                  .activation = wide ? LK__IDENTITY : call->attrs->activation,
                  .parts = lk__operand_sum_parts(call->attrs, x, x->rank - 1)};
}

typedef struct finish {
    REAL        *y; /* (rows, columns) */
    const REAL  *bias;
    int64_t      rows, columns, tiles;
    lk__op_unary activation;
} finish;

static void finish_tile(void *argument, int64_t tile, int worker)
{
    const finish f = *(const finish *)argument;
    int64_t      end = tile_begin(f.rows, f.tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(f.rows, f.tiles, tile); row < end; row++) {
        REAL *y = f.y + row * f.columns;
        EACH_VECTOR(i, f.columns, store_part(y + i, load_part(y + i, lanes) + load_part(f.bias + i, lanes), lanes););
        if (f.activation == LK__RELU)
            relu_in_place(y, f.columns);
        else if (activates(f.activation))
            activate(y, f.columns, f.activation);
    }
}

static void finish_product(const lk__kernel_call *call, const gemm *g)
{
    finish f = {.y = g->c, .bias = call->in[2].data, .rows = g->m, .columns = g->n};
    f.activation = call->attrs->activation;
    f.tiles = tile_count(f.rows, f.columns, 0);
    lk__pool_run(call->pool, f.tiles, finish_tile, &f);
}

void KERNEL(linear)(const lk__kernel_call *call)
{
    gemm g = forward_product(call);
    gemm_run(&g, call->pool, call->workspace);
    if (finishes_wide(call)) finish_product(call, &g);
}

size_t KERNEL(linear_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = forward_product(call);
    return gemm_workspace(&g, threads);
}

static gemm input_product(const lk__kernel_call *call)
{
    const lk__kernel_operand *dy = &call->in[0], *w = &call->in[1];
    bool                      in_first = call->attrs->transposed;
    int64_t                   inputs = w->dims[in_first ? 0 : 1], outputs = w->dims[in_first ? 1 : 0];
    return (gemm){.m = rows_of(dy),
                  .n = inputs,
                  .k = outputs,
                  .batch = 1,
                  .alone = true,
                  .a = dy->data,
                  .a_row = outputs,
                  .a_k = 1,
                  .b = w->data,
                  .b_k = in_first ? 1 : inputs,
                  .b_column = in_first ? outputs : 1,
                  .b_transposed = in_first,
                  .c = call->out[0].data,
                  .c_row = inputs,
                  .c_column = 1,
                  .c_wide = is_wide(&call->out[0]),
                  .parts = lk__operand_sum_parts(call->attrs, dy, dy->rank - 1)};
}

void KERNEL(linear_grad_input)(const lk__kernel_call *call)
{
    gemm g = input_product(call);
    gemm_run(&g, call->pool, call->workspace);
}

size_t KERNEL(linear_grad_input_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = input_product(call);
    return gemm_workspace(&g, threads);
}

static gemm weight_product(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0], *dy = &call->in[1];
    const lk__kernel_operand *row = call->attrs->transposed ? x : dy, *column = call->attrs->transposed ? dy : x;
    int64_t                   rows = row->dims[row->rank - 1], columns = column->dims[column->rank - 1];
    return (gemm){.m = rows,
                  .n = columns,
                  .k = rows_of(x),
                  .batch = 1,
                  .alone = true,
                  .a = row->data,
                  .a_row = 1,
                  .a_k = rows,
                  .b = column->data,
                  .b_k = columns,
                  .b_column = 1,
                  .c = call->out[0].data,
                  .c_row = columns,
                  .c_column = 1,
                  .c_wide = true,
                  .add = optional_in(call, 2) != NULL};
}

/* What dw is added to, which may be there already. */
static void take_sum(const lk__kernel_call *call)
{
    const void *sum = optional_in(call, 2);
    if (sum && sum != call->out[0].data)
        memcpy(call->out[0].data, sum, (size_t)lk__operand_elements(&call->out[0]) * sizeof(REAL));
}

/* of a bias gradient's tile; of a partial sum: summing in two levels reduces rounding errors */
enum { COLUMNS = 64, ROWS = 64 };

static void sum_rows(const ELEMENT *from, int64_t rows, int64_t outputs, int64_t columns, REAL total[COLUMNS])
{
    memset(total, 0, COLUMNS * sizeof *total);
    for (int64_t i = 0; i < rows; i += ROWS) {
        REAL sum[COLUMNS] = {0};
        for (int64_t q = i; q < min64(rows, i + ROWS); q++)
            for (int64_t j = 0; j < columns; j++) sum[j] += load_one(from + q * outputs + j);
        for (int64_t j = 0; j < columns; j++) total[j] += sum[j];
    }
}

/* Leaves are added in the pairwise tree. */
static void sum_columns(void *argument, int64_t tile, int worker)
{
    const lk__kernel_call    *call = argument;
    const lk__kernel_operand *dy = &call->in[1];
    int64_t                   outputs = dy->dims[dy->rank - 1], whole[2] = {0, rows_of(dy)};
    int64_t                   first = tile * COLUMNS, columns = min64(COLUMNS, outputs - first);
    const lk__kernel_leaves   one = {1, whole, NULL}, *leaves = call->leaves ? call->leaves : &one;
    const ELEMENT            *from = (const ELEMENT *)dy->data + first;
    REAL                      total[LK__LEAVES_DEPTH][COLUMNS];
    int                       depth = 0;
    (void)worker;
    for (int leaf = 0; leaf < leaves->count; leaf++) {
        sum_rows(from + leaves->rows[leaf] * outputs, leaves->rows[leaf + 1] - leaves->rows[leaf], outputs, columns,
                 total[depth++]);
        for (int merges = lk__tree_merges(leaf, leaves->count); merges > 0; merges--, depth--)
            for (int64_t j = 0; j < columns; j++) total[depth - 2][j] += total[depth - 1][j];
    }
    memcpy((REAL *)call->out[1].data + first, total[0], (size_t)columns * sizeof(REAL));
}

/* Leaves run one by one where there is a sum to add to, since it is one of their results. */
void KERNEL(linear_grad_weight)(const lk__kernel_call *call)
{
    gemm g = weight_product(call);
    take_sum(call);
    if (call->leaves)
        gemm_run_leaves(&g, call->leaves, call->pool, call->workspace);
    else
        gemm_run(&g, call->pool, call->workspace);
    if (optional_out(call, 1)) {
        /* One tile unless dy is large: waking a thread costs more than the sum. */
        int64_t outputs = call->out[1].dims[0], tiles = tiles_of(outputs, COLUMNS);
        if (outputs * g.k >= 1 << 16)
            lk__pool_run(call->pool, tiles, sum_columns, (void *)call);
        else
            for (int64_t tile = 0; tile < tiles; tile++) sum_columns((void *)call, tile, 0);
    }
}

size_t KERNEL(linear_grad_weight_workspace)(const lk__kernel_call *call, int threads)
{
    gemm g = weight_product(call);
    return gemm_workspace(&g, threads);
}
