/* operation_batch.c - allocates arrays for the operands of a user's operation, and divides them by sample. */
#include "graph/operation_batch.h"

#include "base/random.h"

#include <string.h>

static size_t operand_bytes(const lk_operand *o) { return (size_t)lk_operand_elements(o) * lk_dtype_size(o->dtype); }

static lk_status create_operands(const lk__kernel_custom *c, lk_operand *operands, int count, int64_t samples)
{
    for (int i = 0; i < count; i++) {
        lk_operand *o = &operands[i];
        if (o->count_axis >= 0) o->dims[o->count_axis] = samples * o->count_unit;
        o->data = lk__alloc(c->context, LK_MEMORY_OTHER, operand_bytes(o) + LK__ALIGN); /* of no elements, too */
        if (!o->data) return LK_ENOMEM;
    }
    return LK_OK;
}

static void free_operands(const lk__kernel_custom *c, lk_operand *operands, int count)
{
    for (int i = 0; i < count; i++)
        lk__free(c->context, LK_MEMORY_OTHER, operands[i].data, operand_bytes(&operands[i]) + LK__ALIGN);
}

lk_status lk__batch_create(const lk__kernel_custom *c, int64_t samples, lk__operation_batch *b)
{
    const lk_operation *o = &c->operation;
    lk__custom_operands shapes;
    *b = (lk__operation_batch){.custom = c, .samples = samples};
    lk_operation_call forward = lk__custom_call(c, false, &shapes);
    b->workspace_bytes = lk__custom_workspace(c, &forward, 1);
    lk_operation_call backward = lk__custom_call(c, true, &shapes);
    size_t            bytes = o->backward ? lk__custom_workspace(c, &backward, 1) : 0;
    if (bytes > b->workspace_bytes) b->workspace_bytes = bytes;
    (void)lk__custom_call(c, true, &b->operands);
    if (b->workspace_bytes && !(b->workspace = lk__alloc(c->context, LK_MEMORY_OTHER, b->workspace_bytes)))
        return LK_ENOMEM;
    if (create_operands(c, b->operands.inputs, o->inputs, samples) < 0 ||
        create_operands(c, b->operands.outputs, o->outputs, samples) < 0 ||
        create_operands(c, b->operands.output_gradients, o->outputs, samples) < 0 ||
        create_operands(c, b->operands.input_gradients, o->inputs, samples) < 0)
        return LK_ENOMEM;
    return LK_OK;
}

void lk__batch_free(lk__operation_batch *b)
{
    const lk__kernel_custom *c = b->custom;
    if (!c) return;
    free_operands(c, b->operands.inputs, c->operation.inputs);
    free_operands(c, b->operands.outputs, c->operation.outputs);
    free_operands(c, b->operands.output_gradients, c->operation.outputs);
    free_operands(c, b->operands.input_gradients, c->operation.inputs);
    lk__free(c->context, LK_MEMORY_OTHER, b->workspace, b->workspace_bytes);
    *b = (lk__operation_batch){0};
}

double lk__batch_number(const lk_operand *o, int64_t i)
{
    switch (o->dtype) {
    case LK_F32: return (double)((const float *)o->data)[i];
    case LK_F64: return ((const double *)o->data)[i];
    case LK_I32: return ((const int32_t *)o->data)[i];
    case LK_I64: return (double)((const int64_t *)o->data)[i];
    case LK_U8: return ((const uint8_t *)o->data)[i];
    default: return 0;
    }
}

void lk__batch_set(lk_operand *o, int64_t i, double value)
{
    switch (o->dtype) {
    case LK_F32: ((float *)o->data)[i] = (float)value; break;
    case LK_F64: ((double *)o->data)[i] = value; break;
    case LK_I32: ((int32_t *)o->data)[i] = (int32_t)value; break;
    case LK_I64: ((int64_t *)o->data)[i] = (int64_t)value; break;
    case LK_U8: ((uint8_t *)o->data)[i] = (uint8_t)value; break;
    default: break;
    }
}

void lk__batch_draw(lk_operand *o, uint64_t stream)
{
    lk__random random = lk__random_make(0, LK__FOR_SYNTHETIC, stream);
    bool       real = o->dtype == LK_F32 || o->dtype == LK_F64;
    for (int64_t i = 0; i < lk_operand_elements(o); i++)
        lk__batch_set(o, i, real ? 2 * lk__random_unit(lk__random_u32(&random, (uint64_t)i, 0)) - 1 : (double)(i & 1));
}

/* The part of an operand from sample `first` on is, for each index of the axes before that of the samples, one run of
 * bytes. */
typedef struct runs {
    int64_t count;
    size_t  bytes, step, offset; /* of a run; from one to the next in the whole; of the first in the whole */
} runs;

static runs find_runs(const lk_operand *part, const lk_operand *whole, int64_t first)
{
    runs   r = {.count = 1};
    size_t inner = lk_dtype_size(part->dtype);
    int    axis = part->count_axis;
    for (int i = 0; i < axis; i++) r.count *= part->dims[i];
    for (int i = axis < 0 ? 0 : axis + 1; i < part->rank; i++) inner *= (size_t)part->dims[i];
    r.bytes = axis < 0 ? inner : inner * (size_t)part->dims[axis];
    r.step = axis < 0 ? inner : inner * (size_t)whole->dims[axis];
    r.offset = axis < 0 ? 0 : inner * (size_t)(first * part->count_unit);
    return r;
}

static void take_operands(lk_operand *to, const lk_operand *from, int count, int64_t first)
{
    for (int i = 0; i < count; i++) {
        runs r = find_runs(&to[i], &from[i], first);
        for (int64_t k = 0; k < r.count; k++)
            memcpy((char *)to[i].data + (size_t)k * r.bytes, (const char *)from[i].data + r.offset + (size_t)k * r.step,
                   r.bytes);
    }
}

void lk__batch_take(lk__operation_batch *b, const lk__operation_batch *from, int64_t first)
{
    const lk_operation *o = &b->custom->operation;
    take_operands(b->operands.inputs, from->operands.inputs, o->inputs, first);
    take_operands(b->operands.outputs, from->operands.outputs, o->outputs, first);
    take_operands(b->operands.output_gradients, from->operands.output_gradients, o->outputs, first);
}

bool lk__batch_equals(const lk_operand *part, const lk_operand *whole, int64_t first)
{
    runs r = find_runs(part, whole, first);
    for (int64_t k = 0; k < r.count; k++)
        if (memcmp((const char *)part->data + (size_t)k * r.bytes,
                   (const char *)whole->data + r.offset + (size_t)k * r.step, r.bytes) != 0)
            return false;
    return true;
}

static bool is_real(const lk_operand *o) { return o->dtype == LK_F32 || o->dtype == LK_F64; }

lk_operation_call lk__batch_call(lk__operation_batch *b, bool backward)
{
    const lk__kernel_custom *c = b->custom;
    const lk_operation      *o = &c->operation;
    lk_operation_call        call = lk__custom_call(c, backward, &b->view);
    b->view = b->operands;
    for (int i = 0; i < o->inputs; i++) {
        bool missing = c->missing >> i & 1;
        if (missing || (backward && o->unread_inputs >> i & 1)) b->view.inputs[i].data = NULL;
        if (missing || !is_real(&b->view.inputs[i]) || o->no_gradient >> i & 1) b->view.input_gradients[i].data = NULL;
    }
    for (int i = 0; i < o->outputs; i++) {
        if (backward && !(o->saved_outputs >> i & 1)) b->view.outputs[i].data = NULL;
        if (!is_real(&b->view.outputs[i])) b->view.output_gradients[i].data = NULL;
    }
    call.workspace = b->workspace;
    return call;
}

lk_status lk__batch_run(lk__operation_batch *b, bool backward)
{
    struct lk_operation_run run = {0};
    lk_operation_call       call = lk__batch_call(b, backward);
    call.run = &run;
    return (backward ? b->custom->operation.backward : b->custom->operation.forward)(&call);
}

int64_t lk__batch_samples(const lk__kernel_custom *c)
{
    for (int i = 0; i < c->operation.inputs; i++)
        if (!(c->missing >> i & 1) && c->inputs[i].count_axis >= 0)
            return c->inputs[i].dims[c->inputs[i].count_axis] / c->inputs[i].count_unit;
    return 0;
}
