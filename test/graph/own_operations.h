/* own_operations.h - operations as a user writes them (lockstep/operation.h), for tests: of two inputs, with
 * parameters, with several outputs, and one that couples samples. In double, element by element: simple, since other
 * tests measure speed. */
#ifndef OWN_OPERATIONS_H
#define OWN_OPERATIONS_H

#include <lockstep/operation.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define OWN __attribute__((unused)) static

OWN double own_get(const lk_operand *o, int64_t i)
{
    return o->dtype == LK_F32 ? (double)((const float *)o->data)[i] : ((const double *)o->data)[i];
}

OWN void own_set(const lk_operand *o, int64_t i, double value)
{
    if (o->dtype == LK_F32)
        ((float *)o->data)[i] = (float)value;
    else
        ((double *)o->data)[i] = value;
}

/* ---- swish_gate: x, gate (N, C) → x × gate × sigmoid(gate), in tiles of rows ---- */

enum { OWN_TILE = 4 }; /* rows */

OWN lk_status swish_shape(const lk_operation_call *call)
{
    const lk_operand *x = &call->inputs[0], *gate = &call->inputs[1];
    if (x->rank != gate->rank || lk_operand_elements(x) != lk_operand_elements(gate))
        return lk_operation_fail(call, "x has %lld elements, the gate %lld", (long long)lk_operand_elements(x),
                                 (long long)lk_operand_elements(gate));
    call->outputs[0] = *x;
    return LK_OK;
}

OWN double own_sigmoid(double x) { return 1 / (1 + exp(-x)); }

OWN void swish_tile(void *argument, int64_t tile, int worker)
{
    const lk_operation_call *call = argument;
    int64_t rows = call->inputs[0].dims[0], each = rows ? lk_operand_elements(&call->inputs[0]) / rows : 0;
    int64_t end = (tile + 1) * OWN_TILE < rows ? (tile + 1) * OWN_TILE : rows;
    (void)worker;
    for (int64_t i = tile * OWN_TILE * each; i < end * each; i++) {
        double x = own_get(&call->inputs[0], i), g = own_get(&call->inputs[1], i), s = own_sigmoid(g);
        if (!call->backward) {
            own_set(&call->outputs[0], i, x * g * s);
            continue;
        }
        double dy = own_get(&call->output_gradients[0], i);
        if (call->input_gradients[0].data) own_set(&call->input_gradients[0], i, dy * g * s);
        if (call->input_gradients[1].data) own_set(&call->input_gradients[1], i, dy * x * s * (1 + g * (1 - s)));
    }
}

OWN lk_status swish_run(const lk_operation_call *call)
{
    lk_operation_parallel(call, (call->inputs[0].dims[0] + OWN_TILE - 1) / OWN_TILE, swish_tile, (void *)call);
    return LK_OK;
}

OWN const lk_operation swish_gate = {.size = sizeof(lk_operation),
                                     .name = "swish_gate",
                                     .inputs = 2,
                                     .outputs = 1,
                                     .shape = swish_shape,
                                     .forward = swish_run,
                                     .backward = swish_run,
                                     .factors = "(d..), (d..) -> (d..)"};

/* ---- affine: x (N, C), w (C), [b (C)] → factor × (w x + b); the gradients of w and b are sums over samples ---- */

OWN lk_status affine_shape(const lk_operation_call *call)
{
    if (call->inputs[0].rank != 2 || call->inputs[1].rank != 1 || call->inputs[0].dims[1] != call->inputs[1].dims[0])
        return lk_operation_fail(call, "expected x (N, C) and w (C)");
    call->outputs[0] = call->inputs[0];
    return LK_OK;
}

OWN lk_status affine_forward(const lk_operation_call *call)
{
    double  factor = *(const double *)call->attributes;
    int64_t rows = call->inputs[0].dims[0], columns = call->inputs[0].dims[1];
    for (int64_t i = 0; i < rows * columns; i++) {
        double b = call->inputs[2].data ? own_get(&call->inputs[2], i % columns) : 0;
        own_set(&call->outputs[0], i,
                factor * (own_get(&call->inputs[0], i) * own_get(&call->inputs[1], i % columns) + b));
    }
    return LK_OK;
}

/* One column: the sums of a worker's columns are in its part of the workspace. */
OWN void affine_column(void *argument, int64_t column, int worker)
{
    const lk_operation_call *call = argument;
    double                   factor = *(const double *)call->attributes, *sums = (double *)call->workspace + 2 * worker;
    int64_t                  rows = call->inputs[0].dims[0], columns = call->inputs[0].dims[1];
    sums[0] = sums[1] = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t i = row * columns + column;
        double  dy = factor * own_get(&call->output_gradients[0], i);
        if (call->input_gradients[0].data)
            own_set(&call->input_gradients[0], i, dy * own_get(&call->inputs[1], column));
        sums[0] += dy * own_get(&call->inputs[0], i);
        sums[1] += dy;
    }
    if (call->input_gradients[1].data) own_set(&call->input_gradients[1], column, sums[0]);
    if (call->input_gradients[2].data) own_set(&call->input_gradients[2], column, sums[1]);
}

OWN lk_status affine_backward(const lk_operation_call *call)
{
    lk_operation_parallel(call, call->inputs[0].dims[1], affine_column, (void *)call);
    return LK_OK;
}

OWN size_t affine_workspace(const lk_operation_call *call)
{
    return call->backward ? (size_t)call->threads * 2 * sizeof(double) : 0;
}

OWN void affine_print(const void *attributes, char *text, size_t bytes)
{
    snprintf(text, bytes, "factor %g", *(const double *)attributes);
}

/* The caller keeps the factor. */
OWN lk_operation affine_operation(const double *factor)
{
    return (lk_operation){.size = sizeof(lk_operation),
                          .name = "affine",
                          .inputs = 3,
                          .outputs = 1,
                          .optional = 1u << 2,
                          .unread_inputs = 1u << 2,
                          .shape = affine_shape,
                          .forward = affine_forward,
                          .backward = affine_backward,
                          .workspace = affine_workspace,
                          .attributes = factor,
                          .attributes_bytes = sizeof *factor,
                          .print = affine_print,
                          .factors = "(rows, columns), (columns), (columns) -> (rows, columns)"};
}

/* ---- channel_scale: x (N, C, H, W), w (C) → w x ---- */

OWN lk_status channel_shape(const lk_operation_call *call)
{
    if (call->inputs[0].rank != 4 || call->inputs[0].dims[1] != call->inputs[1].dims[0])
        return lk_operation_fail(call, "expected x (N, C, H, W) and w (C)");
    call->outputs[0] = call->inputs[0];
    return LK_OK;
}

OWN lk_status channel_run(const lk_operation_call *call)
{
    const int64_t *dims = call->inputs[0].dims, pixels = dims[2] * dims[3];
    for (int64_t c = 0; c < dims[1]; c++) {
        double w = own_get(&call->inputs[1], c), sum = 0;
        for (int64_t n = 0; n < dims[0]; n++)
            for (int64_t p = 0; p < pixels; p++) {
                int64_t i = (n * dims[1] + c) * pixels + p;
                if (!call->backward) own_set(&call->outputs[0], i, w * own_get(&call->inputs[0], i));
                if (!call->backward) continue;
                double dy = own_get(&call->output_gradients[0], i);
                if (call->input_gradients[0].data) own_set(&call->input_gradients[0], i, w * dy);
                sum += own_get(&call->inputs[0], i) * dy;
            }
        if (call->backward && call->input_gradients[1].data) own_set(&call->input_gradients[1], c, sum);
    }
    return LK_OK;
}

OWN const lk_operation channel_scale = {.size = sizeof(lk_operation),
                                        .name = "channel_scale",
                                        .inputs = 2,
                                        .outputs = 1,
                                        .shape = channel_shape,
                                        .forward = channel_run,
                                        .backward = channel_run,
                                        .factors = "(n, c, h, w), (c) -> (n, c, h, w)"};

/* ---- moments: x (N, C) → exp of x's rows summed (N), the sum of all squares f64 () over samples,
 *      the largest column i32 (N) ---- */

OWN lk_status moments_shape(const lk_operation_call *call)
{
    if (call->inputs[0].rank != 2) return lk_operation_fail(call, "expected x (N, C)");
    call->outputs[0] = call->outputs[2] = call->inputs[0];
    call->outputs[0].rank = call->outputs[2].rank = 1;
    call->outputs[1].dtype = LK_F64;
    call->outputs[2].dtype = LK_I32;
    return LK_OK;
}

OWN lk_status moments_forward(const lk_operation_call *call)
{
    int64_t rows = call->inputs[0].dims[0], columns = call->inputs[0].dims[1];
    double  squares = 0;
    for (int64_t row = 0; row < rows; row++) {
        double  sum = 0;
        int64_t largest = 0;
        for (int64_t i = 0; i < columns; i++) {
            double x = own_get(&call->inputs[0], row * columns + i);
            sum += x;
            squares += x * x;
            if (x > own_get(&call->inputs[0], row * columns + largest)) largest = i;
        }
        own_set(&call->outputs[0], row, exp(sum));
        ((int32_t *)call->outputs[2].data)[row] = (int32_t)largest;
    }
    *(double *)call->outputs[1].data = squares;
    return LK_OK;
}

OWN lk_status moments_backward(const lk_operation_call *call)
{
    int64_t rows = call->inputs[0].dims[0], columns = call->inputs[0].dims[1];
    for (int64_t i = 0; i < rows * columns; i++) {
        double d = 0;
        if (call->output_gradients[0].data) /* the saved output: the derivative of exp */
            d += own_get(&call->output_gradients[0], i / columns) * own_get(&call->outputs[0], i / columns);
        if (call->output_gradients[1].data)
            d += *(double *)call->output_gradients[1].data * 2 * own_get(&call->inputs[0], i);
        own_set(&call->input_gradients[0], i, d);
    }
    return LK_OK;
}

OWN const lk_operation moments = {.size = sizeof(lk_operation),
                                  .name = "moments",
                                  .inputs = 1,
                                  .outputs = 3,
                                  .saved_outputs = 1u << 0,
                                  .sums = 1u << 1,
                                  .shape = moments_shape,
                                  .forward = moments_forward,
                                  .backward = moments_backward,
                                  .factors = "(n, !c) -> (n), (), (n)"};

/* ---- centre: x (N, C) → x less the mean of its columns over the batch: samples are coupled ---- */

OWN lk_status same_shape_as_input(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    return LK_OK;
}

OWN lk_status centre_run(const lk_operation_call *call)
{
    const lk_operand *from = call->backward ? &call->output_gradients[0] : &call->inputs[0];
    const lk_operand *to = call->backward ? &call->input_gradients[0] : &call->outputs[0];
    int64_t           rows = from->dims[0], columns = from->dims[1];
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += own_get(from, r * columns + c);
        for (int64_t r = 0; r < rows; r++)
            own_set(to, r * columns + c, own_get(from, r * columns + c) - sum / (double)rows);
    }
    return LK_OK;
}

OWN const lk_operation centre = {.size = sizeof(lk_operation),
                                 .name = "centre",
                                 .inputs = 1,
                                 .outputs = 1,
                                 .unread_inputs = 1u << 0,
                                 .coupled = true,
                                 .shape = same_shape_as_input,
                                 .forward = centre_run,
                                 .backward = centre_run,
                                 .factors = "(!n, c) -> (n, c)"};

#endif
