/* custom_create.c - copies users' operations, and checks their structs and the results of their shape rules. */
#include "base/config.h"
#include "base/environment.h"
#include "device/custom.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(const char *name)
{
    for (const char *c = name; name && *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-') return false;
    return name && *name && strlen(name) < 64;
}

/* What is invalid in the struct, or NULL. */
static const char *find_mistake(const lk_operation *o)
{
    unsigned inputs = o->inputs >= 1 && o->inputs <= LK_OPERATION_INPUTS ? (1u << o->inputs) - 1 : 0;
    unsigned outputs = o->outputs >= 1 && o->outputs <= LK_OPERATION_OUTPUTS ? (1u << o->outputs) - 1 : 0;
    if (!inputs) return "inputs is out of range: expected 1 to 8";
    if (!outputs) return "outputs is out of range: expected 1 to 4";
    if (!o->shape || !o->forward) return "the callbacks shape and forward are required";
    if ((o->optional | o->no_gradient | o->unread_inputs) & ~inputs)
        return "optional, no_gradient or unread_inputs names an input that the operation does not have";
    if ((o->saved_outputs | o->sums) & ~outputs)
        return "saved_outputs or sums names an output that the operation does not have";
    if (o->attributes_bytes && !o->attributes) return "attributes is NULL, but attributes_bytes is not 0";
    if (o->device && strcmp(o->device, "cpu") != 0)
        return "its device is not \"cpu\", the only device on which user-defined operations run";
    return NULL;
}

static lk__kernel_custom *copy_operation(lk_context *context, const lk_operation *o)
{
    size_t name = strlen(o->name) + 1, factors = o->factors ? strlen(o->factors) + 1 : 0;
    size_t at = lk__round_up(sizeof(lk__kernel_custom), LK__ALIGN);
    size_t bytes = at + lk__round_up(o->attributes_bytes, LK__ALIGN) + name + factors;

    lk__kernel_custom *c = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    if (!c) return NULL;
    char *attributes = (char *)c + at, *text = attributes + lk__round_up(o->attributes_bytes, LK__ALIGN);
    c->operation = *o;
    c->context = context;
    c->bytes = bytes;
    if (o->attributes_bytes) memcpy(attributes, o->attributes, o->attributes_bytes);
    c->operation.attributes = o->attributes_bytes ? attributes : NULL;
    c->operation.name = memcpy(text, o->name, name);
    if (factors) c->operation.factors = memcpy(text + name, o->factors, factors);
    return c;
}

lk_status lk__custom_create(lk_context *context, lk_site site, const lk_operation *given, lk__kernel_custom **custom)
{
    lk_operation o = LK_OPERATION_INIT;
    *custom = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_operation, given, &o);
    if (status < 0) return status;
    if (!is_name(o.name))
        return lk__fail(context, LK_EINVAL,
                        "an operation needs a name of up to 63 letters, digits, _ and -, not \"%.80s\"",
                        o.name ? o.name : "");
    const char *mistake = find_mistake(&o);
    if (mistake) return lk__fail(context, LK_EINVAL, "%s: %s", o.name, mistake);
    if (!(*custom = copy_operation(context, &o))) return LK_ENOMEM;
    (*custom)->site = site;
    (*custom)->check = lk__environment_flag(context, LK__ENV_LOCKSTEP_CHECK_OPERATIONS);
    return LK_OK;
}

lk_status lk__custom_copy(const lk__kernel_custom *from, lk__kernel_custom **copy)
{
    lk__kernel_custom *c = *copy = copy_operation(from->context, &from->operation);
    if (!c) return LK_ENOMEM;
    c->site = from->site;
    c->check = from->check;
    c->missing = from->missing;
    memcpy(c->inputs, from->inputs, sizeof c->inputs);
    memcpy(c->outputs, from->outputs, sizeof c->outputs);
    return LK_OK;
}

void lk__custom_free(lk__kernel_custom *c)
{
    if (c) lk__free(c->context, LK_MEMORY_OTHER, c, c->bytes);
}

/* ---- shapes ---- */

const char *lk__operand_text(const lk_operand *o, char text[64])
{
    size_t used = (size_t)snprintf(text, 64, "(");
    for (int i = 0; i < o->rank && i < LK_MAX_RANK && used < 64; i++)
        used += (size_t)snprintf(text + used, 64 - used, "%s%lld%s", i ? ", " : "", (long long)o->dims[i],
                                 i == o->count_axis ? "*" : "");
    if (used < 64) snprintf(text + used, 64 - used, ")");
    return text;
}

__attribute__((format(printf, 2, 3))) static bool refuse(char message[LK__CUSTOM_MESSAGE], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, LK__CUSTOM_MESSAGE, format, arguments);
    va_end(arguments);
    return false;
}

static bool is_real(lk_dtype type) { return type == LK_F32 || type == LK_F64; }

static bool check_inputs(const lk_operation *o, const lk_operand *inputs, char message[LK__CUSTOM_MESSAGE])
{
    lk_dtype real = LK_DTYPE_COUNT; /* of the inputs that take any floating type */
    for (int i = 0; i < o->inputs; i++) {
        const lk_operand *x = &inputs[i];
        if (x->rank < 0 && !(o->optional >> i & 1)) return refuse(message, "input %d is missing", i);
        if (x->rank < 0) continue;
        bool taken = o->types[i] ? o->types[i] >> x->dtype & 1 : is_real(x->dtype);
        if (!taken)
            return refuse(message, "input %d is %s, %s", i, lk_dtype_name(x->dtype),
                          o->types[i] ? "which is not among the types that it accepts" : "but must be f32 or f64");
        if (o->types[i]) continue;
        if (real != LK_DTYPE_COUNT && x->dtype != real)
            return refuse(message, "input %d is %s, but the inputs before it are %s", i, lk_dtype_name(x->dtype),
                          lk_dtype_name(real));
        real = x->dtype;
    }
    return true;
}

/* The first input with an axis of samples, or NULL. */
static const lk_operand *find_counted(const lk_operation *o, const lk_operand *inputs)
{
    for (int i = 0; i < o->inputs; i++)
        if (inputs[i].rank > 0 && inputs[i].count_axis >= 0) return &inputs[i];
    return NULL;
}

static bool is_output_type(lk_dtype type) { return is_real(type) || type == LK_I32 || type == LK_I64 || type == LK_U8; }

static bool check_output(const lk_operation *o, int i, const lk_operand *y, const lk_operand *counted,
                         char message[LK__CUSTOM_MESSAGE])
{
    char        text[64], other[64];
    const char *shape = lk__operand_text(y, text);
    if (!is_output_type(y->dtype))
        return refuse(message, "its shape rule sets the type of output %d to %s; expected f32, f64, i32, i64 or u8", i,
                      lk_dtype_name(y->dtype));
    if (y->rank < 0 || y->rank > LK_MAX_RANK)
        return refuse(message, "its shape rule gives %d axes to output %d; expected 0 to %d", y->rank, i, LK_MAX_RANK);
    for (int k = 0; k < y->rank; k++)
        if (y->dims[k] < 1)
            return refuse(message, "its shape rule sets the shape of output %d to %s, which is invalid", i, shape);
    if (y->count_axis < -1 || y->count_axis >= y->rank)
        return refuse(message, "its shape rule sets count_axis of output %d %s to %d, but that output has no such axis",
                      i, shape, y->count_axis);
    if (y->count_axis >= 0 && !counted)
        return refuse(message, "its shape rule sets count_axis of output %d %s, but no input has a batch axis", i,
                      shape);
    if (y->count_axis >= 0 && o->sums >> i & 1)
        return refuse(message, "output %d %s has a batch axis, but `sums` says that it is a sum over samples", i,
                      shape);
    if (y->count_axis < 0 && counted && !(o->sums >> i & 1))
        return refuse(message,
                      "output %d %s has no batch axis, but input %s has one: keep that axis, or name the output in "
                      "`sums` if it is a sum over samples",
                      i, shape, lk__operand_text(counted, other));
    if (y->count_axis >= 0) {
        int64_t samples = counted->dims[counted->count_axis] / counted->count_unit;
        if (y->count_unit < 1 || y->dims[y->count_axis] != samples * y->count_unit)
            return refuse(message,
                          "its shape rule sets the shape of output %d to %s, but the batch axis (marked *) must have "
                          "%lld (samples) × %lld (count_unit) rows",
                          i, shape, (long long)samples, (long long)y->count_unit);
    }
    return true;
}

bool lk__custom_shapes(lk__kernel_custom *c, const lk_operand *inputs, char message[LK__CUSTOM_MESSAGE])
{
    const lk_operation     *o = &c->operation;
    struct lk_operation_run run = {0};
    lk__custom_operands     operands;
    if (!check_inputs(o, inputs, message)) return false;
    c->missing = 0;
    memset(c->inputs, 0, sizeof c->inputs);
    memset(c->outputs, 0, sizeof c->outputs);
    for (int i = 0; i < o->inputs; i++) {
        c->inputs[i] = inputs[i].rank >= 0 ? inputs[i] : (lk_operand){.count_axis = -1, .count_unit = 1};
        c->inputs[i].data = NULL;
        if (inputs[i].rank < 0) c->missing |= 1u << i;
    }
    lk_dtype real = LK_F32;
    for (int i = o->inputs; i-- > 0;)
        if (inputs[i].rank >= 0 && is_real(inputs[i].dtype)) real = inputs[i].dtype;
    for (int i = 0; i < o->outputs; i++) c->outputs[i] = (lk_operand){.dtype = real, .count_axis = -1, .count_unit = 1};
    lk_operation_call call = lk__custom_call(c, false, &operands);
    call.run = &run;
    lk_status status = o->shape(&call);
    if (status < 0)
        return refuse(message, "%s", run.message[0] ? run.message : "its shape rule rejects these operands");
    const lk_operand *counted = find_counted(o, c->inputs);
    for (int i = 0; i < o->outputs; i++) {
        if (!check_output(o, i, &operands.outputs[i], counted, message)) return false;
        c->outputs[i] = operands.outputs[i];
        c->outputs[i].data = NULL;
    }
    return true;
}
