/* group_generation.cu - launch groups of a step of generation: a norm with the products that read it, and swiglu of two
 * of these; slices, rotations and writes into the cache with the attention that follows them. All results are written,
 * as when the nodes run one by one. */
#include "device/cuda/attention_step.h"
#include "device/cuda/backend.h"
#include "device/cuda/skinny.h"

#include <stdlib.h>
#include <string.h>

bool lk__cuda_groups_are_off(void)
{
    const char *text = lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_LAUNCH_GROUPS);
    if (!text) text = lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_TOGETHER); /* its name before */
    return text && strcmp(text, "0") == 0;
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

static lk__cuda_few_products describe_products(const lk__device_group *g, lk__cuda_row_norm *norm)
{
    lk__cuda_few_products products = {};
    *norm = describe_norm(g->calls[g->role[LK__ROLE_NORM]], g->ops[g->role[LK__ROLE_NORM]] == LK__OP_rms_norm);
    products.norm = norm;
    products.early = true;
    for (int i = g->role[LK__ROLE_PRODUCT]; i <= g->role[LK__ROLE_LAST_PRODUCT]; i++)
        products.product[products.count++] = lk__cuda_linear_product(g->calls[i]);
    if (lk__group_call(g, LK__ROLE_GATE)) products.gated = lk__group_call(g, LK__ROLE_GATE)->out[0].data;
    return products;
}

bool lk__cuda_supports_norm(lk__device *device, const lk__device_group *g)
{
    lk__cuda_row_norm     norm;
    lk__cuda_few_products products = describe_products(g, &norm);
    return runs_groups(device) && lk__cuda_few_products_support((lk__cuda_device *)device, &products);
}

lk_status lk__cuda_run_norm(lk__device *, const lk__device_group *g)
{
    lk__cuda_row_norm     norm;
    lk__cuda_few_products products = describe_products(g, &norm);
    return lk__cuda_run_few_products(lk__group_call(g, LK__ROLE_PRODUCT), &products);
}

/* ---- a product by itself: its weight is read early, as those with a norm ---- */

static lk__cuda_few_products describe_product(const lk__device_group *g)
{
    lk__cuda_few_products products = {};
    products.product[0] = lk__cuda_linear_product(g->calls[0]);
    products.count = 1;
    products.early = true;
    return products;
}

bool lk__cuda_supports_product(lk__device *device, const lk__device_group *g)
{
    lk__cuda_few_products products = describe_product(g);
    return runs_groups(device) && lk__cuda_few_products_support((lk__cuda_device *)device, &products);
}

lk_status lk__cuda_run_product(lk__device *, const lk__device_group *g)
{
    lk__cuda_few_products products = describe_product(g);
    return lk__cuda_run_few_products(g->calls[0], &products);
}

/* ---- attention, with what makes its operands ---- */

/* Row of each sample, of `width` elements, which is at `data` once the call with this role, if there is one, has
 * run. */
static bool describe_row(const lk__device_group *g, int role, const void *data, int64_t width, int64_t head,
                         lk__cuda_step_row *row)
{
    const lk__kernel_call *call = lk__group_call(g, role);
    row->data = data;
    row->step = width;
    if (!call) return true;
    row->copy = call->out[0].data;
    row->data = call->in[0].data;
    if (g->ops[g->role[role]] == LK__OP_slice) {
        row->step = call->in[0].dims[2];
        row->data = (const char *)row->data + call->attrs->start * (int64_t)cuda_size(call->in[0].dtype);
        return true;
    }
    row->table = call->in[1].data;
    row->positions = in_data<int32_t>(call, 2);
    row->limit = call->in[1].dims[0];
    return row->positions && call->in[1].dims[1] == head;
}

static bool describe_step(const lk__device_group *g, lk__cuda_attention_step *step)
{
    const lk__kernel_call *attention = lk__group_call(g, LK__ROLE_ATTENTION);
    const lk__kernel_call *k = lk__group_call(g, LK__ROLE_KEY_WRITE), *v = lk__group_call(g, LK__ROLE_VALUE_WRITE);
    int64_t                width = attention->in[0].dims[2], head = width / attention->attrs->heads;
    if (attention->in[0].dims[1] != 1 || k->in[1].dims[1] != 1 || v->in[1].dims[1] != 1) return false;
    *step = {};
    step->attention = attention;
    step->k_cache = k->out[0].data;
    step->v_cache = v->out[0].data;
    step->rows = in_data<int32_t>(k, 2);
    return describe_row(g, LK__ROLE_QUERY, attention->in[0].data, width, head, &step->q) &&
           describe_row(g, LK__ROLE_KEY, k->in[1].data, k->in[1].dims[2], head, &step->k) &&
           describe_row(g, LK__ROLE_VALUE, v->in[1].data, v->in[1].dims[2], head, &step->v);
}

bool lk__cuda_supports_attention(lk__device *device, const lk__device_group *g)
{
    lk__cuda_attention_step step;
    return runs_groups(device) && describe_step(g, &step) && lk__cuda_attention_step_supports(&step);
}

lk_status lk__cuda_run_attention(lk__device *, const lk__device_group *g)
{
    lk__cuda_attention_step step;
    (void)describe_step(g, &step);
    return lk__cuda_run_attention_step(&step);
}
