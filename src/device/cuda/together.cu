/* together.cu - neighbouring nodes of a step of generation in one launch: a norm with the products that read it, and swiglu of two of them;
 * slices, rotations and writes into the cache with the attention behind them. All results are written, as by the nodes one by one.
 *
 * Nodes run together only where no result of one overlaps what an earlier one reads or writes: blocks of one launch run in any order. Plans
 * of generation are laid out so, and their weights and earlier rows of caches are written by no node of a step (plan/memory.c). */
#include "device/cuda/attention_step.h"
#include "device/cuda/backend.h"
#include "device/cuda/few_rows.h"
#include "device/cuda/operands.h"

#include <stdlib.h>
#include <string.h>

/* A write into a cache has it as its first operand and as its result. */
static bool are_apart(const lk__op *ops, const lk__kernel_call *const *calls, int count)
{
    for (int j = 0; j < count; j++)
        for (int k = 0; k < calls[j]->outputs; k++) {
            if (operand_touches(&calls[j]->out[k], calls[j], ops[j] == LK__OP_cache_write, false)) return false;
            for (int i = 0; i < j; i++)
                if (operand_touches(&calls[j]->out[k], calls[i], 0, true)) return false;
        }
    return true;
}

static bool reads(const lk__kernel_call *call, const lk__kernel_call *from)
{
    return call->in[0].data == from->out[0].data;
}

/* ---- a norm and products of it ---- */

static lk__cuda_row_norm describe_norm(const lk__kernel_call *call, bool rms)
{
    lk__cuda_row_norm n = {};
    n.x = in_data<void>(call, 0);
    n.weight = in_data<void>(call, 1);
    n.bias = rms ? NULL : in_data<void>(call, 2);
    n.residual = in_data<void>(call, rms ? 2 : 3);
    n.y = out_data<void>(call, 0);
    n.mean = rms ? NULL : out_data<void>(call, 1);
    n.rstd = out_data<void>(call, rms ? 1 : 2);
    n.sum = out_data<void>(call, rms ? 2 : 3);
    n.epsilon = call->attrs->epsilon;
    n.rms = rms;
    return n;
}

static lk_status run_norm(lk__device *device, const lk__op *ops, const lk__kernel_call *const *calls, int count,
                          int *done)
{
    lk__cuda_row_norm     norm = describe_norm(calls[0], ops[0] == LK__OP_rms_norm);
    lk__cuda_few_products products = {};
    int                   used = 1;
    if (calls[0]->attrs->axis != 1) return LK_OK;
    products.norm = &norm;
    products.early = true;
    while (used < count && products.count < LK__FEW_PRODUCTS && ops[used] == LK__OP_linear &&
           reads(calls[used], calls[0]))
        products.product[products.count++] = lk__cuda_linear_product(calls[used++]);
    if (products.count == 0) return LK_OK;
    if (products.count == 2 && used < count && ops[used] == LK__OP_swiglu && reads(calls[used], calls[1]) &&
        calls[used]->in[1].data == calls[2]->out[0].data)
        products.gated = calls[used++]->out[0].data;
    if (!are_apart(ops, calls, used) || !lk__cuda_few_products_suit((lk__cuda_device *)device, &products)) return LK_OK;
    *done = used;
    return lk__cuda_run_few_products(calls[1], &products);
}

/* A product by itself: its weight is read early, as those with a norm. */
static lk_status run_linear(lk__device *device, const lk__kernel_call *call, int *done)
{
    lk__cuda_few_products products = {};
    products.product[0] = lk__cuda_linear_product(call);
    products.count = 1;
    products.early = true;
    if (!lk__cuda_few_products_suit((lk__cuda_device *)device, &products)) return LK_OK;
    *done = 1;
    return lk__cuda_run_few_products(call, &products);
}

/* ---- attention, with what makes its operands ---- */

enum { MAKERS = 5 }; /* nodes before the attention, at most: three slices or rotations, two writes */

/* The node before attention whose first result is at this address; NULL: none. */
static int find_maker(const lk__kernel_call *const *calls, int count, const void *data)
{
    for (int i = 0; i < count; i++)
        if (calls[i]->out[0].data == data) return i;
    return -1;
}

/* Row of each sample, of `width` elements, that is at `data` once the nodes have run; *used: bits of those that make it. */
static bool find_row(const lk__op *ops, const lk__kernel_call *const *calls, int count, const void *data, int64_t width,
                     int64_t head, lk__cuda_step_row *row, unsigned *used)
{
    int maker = find_maker(calls, count, data);
    row->data = data;
    row->step = width;
    if (maker < 0) return true;
    const lk__kernel_call *call = calls[maker];
    *used |= 1u << maker;
    row->copy = call->out[0].data;
    row->data = call->in[0].data;
    if (ops[maker] == LK__OP_slice) {
        row->step = call->in[0].dims[2];
        row->data = (const char *)row->data + call->attrs->start * (int64_t)cuda_size(call->in[0].dtype);
        return call->attrs->axis == 2;
    }
    row->table = call->in[1].data;
    row->positions = in_data<int32_t>(call, 2);
    row->limit = call->in[1].dims[0];
    return ops[maker] == LK__OP_rope && row->positions && !call->attrs->inverse && call->in[1].dims[1] == head;
}

/* The write into the cache at this address. */
static bool find_write(const lk__op *ops, const lk__kernel_call *const *calls, int count, const void *cache,
                       const lk__kernel_call **write, unsigned *used)
{
    int maker = find_maker(calls, count, cache);
    if (maker < 0 || ops[maker] != LK__OP_cache_write) return false;
    *write = calls[maker];
    *used |= 1u << maker;
    return calls[maker]->in[1].dims[1] == 1;
}

static lk_status run_attention(const lk__op *ops, const lk__kernel_call *const *calls, int count, int *done)
{
    lk__cuda_attention_step step = {};
    const lk__kernel_call  *k, *v;
    unsigned                used = 0;
    int                     makers = 0;
    while (makers < count && makers <= MAKERS && ops[makers] != LK__OP_attention) makers++;
    if (makers > MAKERS || makers == count) return LK_OK;
    const lk__kernel_call *attention = calls[makers];
    int64_t                width = attention->in[0].dims[2], head = width / attention->attrs->heads;
    if (attention->in[0].dims[1] != 1 || attention->inputs < 3 || !attention->in[1].data) return LK_OK;
    if (!find_write(ops, calls, makers, attention->in[1].data, &k, &used) ||
        !find_write(ops, calls, makers, attention->in[2].data, &v, &used) || k->in[2].data != v->in[2].data)
        return LK_OK;
    step.attention = attention;
    step.k_cache = k->out[0].data;
    step.v_cache = v->out[0].data;
    step.rows = in_data<int32_t>(k, 2);
    if (!find_row(ops, calls, makers, attention->in[0].data, width, head, &step.q, &used) ||
        !find_row(ops, calls, makers, k->in[1].data, k->in[1].dims[2], head, &step.k, &used) ||
        !find_row(ops, calls, makers, v->in[1].data, v->in[1].dims[2], head, &step.v, &used))
        return LK_OK;
    if (used != (1u << makers) - 1 || !are_apart(ops, calls, makers + 1) || !lk__cuda_attention_step_suits(&step))
        return LK_OK;
    *done = makers + 1;
    return lk__cuda_run_attention_step(&step);
}

bool lk__cuda_together_is_off(void)
{
    const char *text = getenv("LOCKSTEP_CUDA_TOGETHER");
    return text && strcmp(text, "0") == 0;
}

lk_status lk__cuda_run_step_nodes(lk__device *device, const lk__op *ops, const lk__kernel_call *const *calls, int count,
                                  int *done)
{
    if (device->by_heuristic || lk__cuda_together_is_off()) return LK_OK;
    switch (ops[0]) {
    case LK__OP_layer_norm:
    case LK__OP_rms_norm: return run_norm(device, ops, calls, count, done);
    case LK__OP_linear: return run_linear(device, calls[0], done);
    case LK__OP_slice:
    case LK__OP_rope:
    case LK__OP_cache_write: return run_attention(ops, calls, count, done);
    default: return LK_OK;
    }
}
