/* linear.cu - linear and matmul with their gradients, expressed as products. The weight of linear is (out, in), or (in,
 * out) where transposed. */
#include "device/cuda/gemm.h"

extern "C" {
#include "base/tree.h"
}

static int64_t last_dim(const lk__kernel_operand *x) { return x->dims[x->rank - 1]; }

static lk__cuda_product new_product(const lk__kernel_call *call, int64_t m, int64_t n, int64_t k)
{
    lk__cuda_product p = {};
    p.m = m;
    p.n = n;
    p.k = k;
    p.batch = 1;
    p.alpha = 1;
    p.type = call->in[0].dtype;
    p.type_c = call->out[0].dtype;
    p.c = call->out[0].data;
    p.c_ld = n;
    p.workspace = call->workspace;
    return p;
}

/* The first operand's rows times the weight, or its transpose. */
static lk__cuda_product rows_product(const lk__kernel_call *call, bool weight_transposed)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    lk__cuda_product p = new_product(call, cuda_product(x, 0, x->rank - 1), last_dim(&call->out[0]), last_dim(x));
    p.a = x->data;
    p.a_ld = p.k;
    p.b = w->data;
    p.b_ld = w->dims[1];
    p.b_transposed = weight_transposed;
    p.rows_apart = true;
    return p;
}

/* ---- linear ---- */

static lk__cuda_product forward_product(const lk__kernel_call *call)
{
    lk__cuda_product p = rows_product(call, !call->attrs->transposed);
    p.bias = in_data<void>(call, 2);
    p.activation = call->attrs->activation;
    p.saved = out_data<void>(call, 1);
    return p;
}

extern "C" lk__cuda_product lk__cuda_linear_product(const lk__kernel_call *call) { return forward_product(call); }

extern "C" lk_status lk__cuda_linear(const lk__kernel_call *call)
{
    lk__cuda_product p = forward_product(call);
    return lk__cuda_gemm(call, &p);
}

static size_t bytes_of(const lk__cuda_product *p) { return lk__cuda_product_bytes(p->m, p->n, p->batch); }

extern "C" size_t lk__cuda_linear_workspace(const lk__kernel_call *call, int)
{
    lk__cuda_product p = forward_product(call);
    return bytes_of(&p);
}

extern "C" lk_status lk__cuda_linear_prepare(lk__device *device, const lk__device_kernel *kernel, lk__kernel_call *call)
{
    lk__cuda_product p = forward_product(call);
    (void)kernel;
    return lk__cuda_gemm_prepare(device, &p);
}

/* With a third operand: times gelu's gradient there. With a fourth: that is added. */
static lk__cuda_product input_product(const lk__kernel_call *call)
{
    lk__cuda_product p = rows_product(call, call->attrs->transposed);
    p.saved = (void *)in_data<void>(call, 2);
    p.gradient = p.saved != NULL;
    if (p.gradient) p.activation = LK__GELU_TANH;
    p.addend = in_data<void>(call, 3);
    p.beta = p.addend != NULL;
    return p;
}

lk__cuda_product lk__cuda_input_product(const lk__kernel_call *call) { return input_product(call); }

extern "C" lk_status lk__cuda_linear_grad_input(const lk__kernel_call *call)
{
    lk__cuda_product p = input_product(call);
    return lk__cuda_gemm(call, &p);
}

extern "C" size_t lk__cuda_linear_grad_input_workspace(const lk__kernel_call *call, int)
{
    lk__cuda_product p = input_product(call);
    return bytes_of(&p);
}

extern "C" lk_status lk__cuda_linear_grad_input_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                        lk__kernel_call *call)
{
    lk__cuda_product p = input_product(call);
    (void)kernel;
    return lk__cuda_gemm_prepare(device, &p);
}

/* ---- linear_grad_weight ---- */

static lk__cuda_product weight_product(const lk__kernel_call *call)
{
    bool                      transposed = call->attrs->transposed;
    const lk__kernel_operand *x = &call->in[0], *dy = &call->in[1], *row = transposed ? x : dy,
                             *column = transposed ? dy : x;
    lk__cuda_product p = new_product(call, last_dim(row), last_dim(column), cuda_product(x, 0, x->rank - 1));
    p.a = row->data;
    p.a_ld = p.m;
    p.a_transposed = true;
    p.b = column->data;
    p.b_ld = p.n;
    if (in_data<void>(call, 2)) {
        p.beta = 1;
        p.addend = in_data<void>(call, 2) == p.c ? NULL : in_data<void>(call, 2);
    }
    return p;
}

/* Under by_heuristic the bits must be those of the same rows in another division into ranks and leaves: the bias
 * gradient then always has a kernel of its own, and slabs of dw the algorithm of the whole. */
static bool set_bias_gradient(const lk__cuda_device *device, const lk__kernel_call *call, lk__cuda_product *p)
{
    void *db = out_data<void>(call, 1);
    p->rows_apart = device->base.by_heuristic;
    if (!db || p->beta != 0 || device->base.by_heuristic || call->leaves) return db != NULL;
    (call->attrs->transposed ? p->b_sums : p->a_sums) = db;
    return false;
}

bool lk__cuda_weight_product(const lk__kernel_call *call, lk__cuda_product *p)
{
    *p = weight_product(call);
    return !set_bias_gradient(cuda_device(call), call, p) && !call->leaves && p->beta == 0;
}

/* With leaves, dw is computed in slabs of rows. Sums of leaves wait on a stack, whose bottom is dw itself. */
enum { STACK = LK__LEAVES_DEPTH - 1, STACK_BYTES = 12 << 20 };
static int64_t slab_rows(const lk__cuda_product *p)
{
    int64_t rows = STACK_BYTES / (int64_t)(STACK * sizeof(double)) / (p->n > 0 ? p->n : 1);
    if (rows >= 64) rows = rows / 64 * 64; /* slabs as aligned as the whole */
    return rows < 1 ? 1 : rows < p->m ? rows : p->m;
}

template <typename W> static __global__ void add_to(W *to, const W *from, int64_t n)
{
    EACH_INDEX(i, n) to[i] += from[i];
}

template <typename W>
static lk_status run_slab(const lk__kernel_call *call, const lk__cuda_product *whole, int64_t first, int64_t rows)
{
    const lk__kernel_leaves *leaves = call->leaves;
    size_t                   size = cuda_size(whole->type);
    W                       *stack[LK__LEAVES_DEPTH] = {(W *)whole->c + first * whole->n};
    int                      depth = 0;
    for (int i = 0; i < STACK; i++)
        stack[i + 1] = (W *)((char *)call->workspace + bytes_of(whole)) + i * rows * whole->n;
    for (int leaf = 0; leaf < leaves->count; leaf++) {
        lk__cuda_product p = *whole;
        int64_t          row = leaves->rows[leaf];
        p.m = rows;
        p.k = leaves->rows[leaf + 1] - row;
        p.a = (const char *)whole->a + (size_t)(row * whole->a_ld + first) * size;
        p.b = (const char *)whole->b + (size_t)(row * whole->b_ld) * size;
        p.c = stack[depth++];
        lk_status status = lk__cuda_gemm(call, &p);
        if (status < 0) return status;
        for (int merges = lk__tree_merges(leaf, leaves->count); merges > 0; merges--, depth--)
            LAUNCH((add_to<W>), cuda_blocks(rows * whole->n, 256), 256, 0, cuda_stream(call), stack[depth - 2],
                   stack[depth - 1], rows * whole->n);
    }
    return lk__cuda_launched(call);
}

static lk_status run_leaves(const lk__kernel_call *call, const lk__cuda_product *whole)
{
    int64_t slab = slab_rows(whole);
    for (int64_t first = 0; first < whole->m && whole->n > 0; first += slab) {
        int64_t   rows = first + slab < whole->m ? slab : whole->m - first;
        lk_status status = whole->type_c == LK_F64 ? run_slab<double>(call, whole, first, rows)
                                                   : run_slab<float>(call, whole, first, rows);
        if (status < 0) return status;
    }
    return LK_OK;
}

extern "C" lk_status lk__cuda_linear_grad_weight(const lk__kernel_call *call)
{
    const lk__kernel_operand *dy = &call->in[1];
    lk__cuda_product          p = weight_product(call);
    bool                      sums = set_bias_gradient(cuda_device(call), call, &p);
    lk_status                 status = call->leaves ? run_leaves(call, &p) : lk__cuda_gemm(call, &p);
    if (status < 0 || !sums) return status;
    return lk__cuda_column_sums(call, dy->data, dy->dtype, NULL, p.k, last_dim(dy), call->leaves, call->out[1].data,
                                call->workspace);
}

extern "C" size_t lk__cuda_linear_grad_weight_workspace(const lk__kernel_call *call, int threads)
{
    lk__cuda_product p = weight_product(call);
    size_t           stack = (size_t)(slab_rows(&p) * p.n) * STACK * sizeof(double), product = bytes_of(&p) + stack;
    size_t           sums = out_data<void>(call, 1) ? lk__cuda_column_sums_workspace(p.k, last_dim(&call->in[1])) : 0;
    (void)threads;
    return product > sums ? product : sums;
}

extern "C" lk_status lk__cuda_linear_grad_weight_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                         lk__kernel_call *call)
{
    lk__cuda_product p = weight_product(call);
    (void)kernel;
    set_bias_gradient((lk__cuda_device *)device, call, &p);
    return lk__cuda_gemm_prepare(device, &p);
}

/* ---- matmul ---- */

/* `summed`: C is the sum over the batch. */
static lk__cuda_product matmul_product(const lk__kernel_call *call, bool *summed)
{
    const lk__kernel_operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    bool                      ta = call->attrs->transpose_a, tb = call->attrs->transpose_b;
    int64_t                   batch_a = cuda_product(a, 0, a->rank - 2), batch_b = cuda_product(b, 0, b->rank - 2);
    lk__cuda_product          p = new_product(call, y->dims[y->rank - 2], last_dim(y), a->dims[a->rank - (ta ? 2 : 1)]);
    p.batch = a->rank > 2 ? batch_a : b->rank > 2 ? batch_b : 1;
    p.a = a->data;
    p.a_ld = ta ? p.m : p.k;
    p.a_transposed = ta;
    p.a_batch = a->rank > 2 ? p.m * p.k : 0;
    p.b = b->data;
    p.b_ld = tb ? p.k : p.n;
    p.b_transposed = tb;
    p.b_batch = b->rank > 2 ? p.k * p.n : 0;
    p.c_batch = p.m * p.n;
    *summed = y->rank == 2 && (a->rank > 2 || b->rank > 2);
    p.rows_apart = !*summed;
    if (!*summed && b->rank == 2 && !ta) { /* one tall product */
        p.m *= p.batch;
        p.batch = 1;
    } else if (*summed && ta && !tb && a->rank > 2 && b->rank > 2) { /* one deep product */
        p.k *= p.batch;
        p.batch = 1;
        *summed = false;
    }
    return p;
}

/* A batch of no matrices sums to 0, as k 0 does. */
extern "C" lk_status lk__cuda_matmul(const lk__kernel_call *call)
{
    bool             summed;
    lk__cuda_product p = matmul_product(call, &summed);
    if (!summed) return lk__cuda_gemm(call, &p);
    if (p.batch == 0) p.k = 0, p.batch = 1;
    return p.k ? lk__cuda_gemm_summed(call, &p) : lk__cuda_gemm_plain(call, &p);
}

extern "C" size_t lk__cuda_matmul_workspace(const lk__kernel_call *call, int)
{
    bool             summed;
    lk__cuda_product p = matmul_product(call, &summed);
    return bytes_of(&p);
}

extern "C" lk_status lk__cuda_matmul_prepare(lk__device *device, const lk__device_kernel *kernel, lk__kernel_call *call)
{
    bool             summed;
    lk__cuda_product p = matmul_product(call, &summed);
    (void)kernel;
    return summed ? LK_OK : lk__cuda_gemm_prepare(device, &p);
}
