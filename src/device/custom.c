/* custom.c - users' operations as kernels: a call of the interpreter becomes a call of their callbacks. */
#include "device/custom.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- for callbacks ---- */

int64_t lk_operand_elements(const lk_operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->rank; i++) n *= o->dims[i];
    return n;
}

void lk_operation_parallel(const lk_operation_call *call, int64_t                        tiles,
                           void (*tile)(void *argument, int64_t tile, int worker), void *argument)
{
    const struct lk_operation_run *run = call->run;
    if (run->reversed)
        for (int64_t i = tiles; i-- > 0;) tile(argument, i, (int)(i % run->reversed));
    else if (run->pool)
        lk__pool_run_own(run->pool, tiles, tile, argument); /* on as many threads as the user asked for */
    else
        for (int64_t i = 0; i < tiles; i++) tile(argument, i, 0);
}

lk_status lk_operation_fail(const lk_operation_call *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->run->message, sizeof call->run->message, format, arguments);
    va_end(arguments);
    return LK_EINVAL;
}

/* ---- calls ---- */

lk_operation_call lk__custom_call(const lk__kernel_custom *c, bool backward, lk__custom_operands *o)
{
    memset(o, 0, sizeof *o);
    memcpy(o->inputs, c->inputs, sizeof c->inputs);
    memcpy(o->outputs, c->outputs, sizeof c->outputs);
    memcpy(o->output_gradients, c->outputs, sizeof c->outputs);
    memcpy(o->input_gradients, c->inputs, sizeof c->inputs);
    return (lk_operation_call){.attributes = c->operation.attributes,
                               .user = c->operation.user,
                               .inputs_count = c->operation.inputs,
                               .outputs_count = c->operation.outputs,
                               .inputs = o->inputs,
                               .outputs = o->outputs,
                               .output_gradients = backward ? o->output_gradients : NULL,
                               .input_gradients = backward ? o->input_gradients : NULL,
                               .backward = backward,
                               .threads = 1};
}

size_t lk__custom_workspace(const lk__kernel_custom *c, const lk_operation_call *like, int threads)
{
    struct lk_operation_run run = {0};
    lk_operation_call       call = *like;
    if (!c->operation.workspace) return 0;
    call.threads = threads;
    call.run = &run;
    return c->operation.workspace(&call);
}

/* The samples of the call: rows of an operand that has an axis of them; -1: none is present. */
static int64_t count_samples(const lk_operand *recorded, const lk__kernel_operand *operands, int count)
{
    for (int i = 0; i < count; i++)
        if (operands[i].data && recorded[i].count_axis >= 0)
            return operands[i].dims[recorded[i].count_axis] / recorded[i].count_unit;
    return -1;
}

/* Operands of which the call has none keep their recorded shape, at the number of samples of the others. */
static void set_operands(lk_operand *to, const lk__kernel_operand *from, int count, int64_t samples)
{
    for (int i = 0; i < count; i++) {
        to[i].data = from[i].data;
        if (from[i].data)
            memcpy(to[i].dims, from[i].dims, sizeof to[i].dims);
        else if (to[i].count_axis >= 0 && samples >= 0)
            to[i].dims[to[i].count_axis] = samples * to[i].count_unit;
    }
}

/* The operands of custom_grad are the inputs, the outputs, then the outputs' gradients; its outputs are the inputs'
 * gradients. */
static lk_operation_call make_call(const lk__kernel_call *call, bool backward, lk__custom_operands *operands)
{
    const lk__kernel_custom  *c = call->custom;
    lk_operation_call         own = lk__custom_call(c, backward, operands);
    int                       inputs = own.inputs_count, outputs = own.outputs_count;
    const lk__kernel_operand *saved = backward ? call->in + inputs : call->out,
                             *gradients = call->in + inputs + outputs;
    int64_t samples = count_samples(c->inputs, call->in, inputs);
    if (samples < 0) samples = count_samples(c->outputs, saved, outputs);
    if (samples < 0 && backward) samples = count_samples(c->outputs, gradients, outputs);
    if (samples < 0 && backward) samples = count_samples(c->inputs, call->out, inputs);
    set_operands(own.inputs, call->in, inputs, samples);
    set_operands(own.outputs, saved, outputs, samples);
    if (backward) set_operands(own.output_gradients, gradients, outputs, samples);
    if (backward) set_operands(own.input_gradients, call->out, inputs, samples);
    return own;
}

static lk_status fail_call(const lk__kernel_custom *c, lk_status status, const char *what)
{
    return lk__fail(c->context, status, "%s at %s:%d: %s", c->operation.name, c->site.file ? c->site.file : "?",
                    c->site.line, what);
}

static lk_status run_callback(const lk__kernel_call *call, bool backward)
{
    const lk__kernel_custom *c = call->custom;
    struct lk_operation_run  run;
    lk__custom_operands      operands;
    lk_operation_call        own = make_call(call, backward, &operands);
    char                     finding[LK__CUSTOM_FINDING];
    if (c->check) {
        lk_status status = lk__custom_probe(c, &own, call->pool, finding);
        return status < 0 ? fail_call(c, status, finding) : LK_OK;
    }
    run.pool = call->pool;
    run.reversed = 0;
    run.message[0] = 0;
    own.run = &run;
    own.workspace = call->workspace;
    own.threads = lk__pool_threads(call->pool);
    lk_status status = (backward ? c->operation.backward : c->operation.forward)(&own);
    if (status == LK_OK) return LK_OK;
    if (status > 0) status = LK_EINVAL;
    if (run.message[0]) return fail_call(c, status, run.message);
    snprintf(run.message, sizeof run.message, "its %s returned %s", backward ? "backward" : "forward",
             lk_status_name(status));
    return fail_call(c, status, run.message);
}

static lk_status run_forward(const lk__kernel_call *call) { return run_callback(call, false); }
static lk_status run_backward(const lk__kernel_call *call) { return run_callback(call, true); }

/* The plan's call has operands at the capacity and no data. */
static size_t measure_workspace(const lk__kernel_call *call, bool backward, int threads)
{
    lk__custom_operands operands;
    lk_operation_call   own = make_call(call, backward, &operands);
    for (int i = 0; i < own.inputs_count; i++) operands.inputs[i].data = operands.input_gradients[i].data = NULL;
    for (int i = 0; i < own.outputs_count; i++) operands.outputs[i].data = operands.output_gradients[i].data = NULL;
    return lk__custom_workspace(call->custom, &own, threads);
}

static size_t forward_workspace(const lk__kernel_call *call, int threads)
{
    return measure_workspace(call, false, threads);
}
static size_t backward_workspace(const lk__kernel_call *call, int threads)
{
    return measure_workspace(call, true, threads);
}

lk__device_kernel lk__custom_kernel(lk__op op)
{
    return op == LK__OP_custom ? (lk__device_kernel){.run = run_forward, .workspace = forward_workspace}
                               : (lk__device_kernel){.run = run_backward, .workspace = backward_workspace};
}
