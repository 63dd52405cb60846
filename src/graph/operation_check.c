/* operation_check.c - lk_operation_check: runs a user's operation on random operands, and compares its results with its
 * declarations. */
#include "graph/operation_batch.h"
#include "graph/operation_factors.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct check {
    lk_context        *context;
    lk__kernel_custom *custom;
    lk_text_callback   write;
    void              *user;
    bool               found;
    char               first[1024]; /* sentence */
} check;

__attribute__((format(printf, 2, 3))) static void report(check *k, const char *format, ...)
{
    char    text[sizeof k->first];
    va_list arguments;
    int     used = snprintf(text, sizeof text - 1, "%s: ", k->custom->operation.name);
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - 1 - (size_t)used, format, arguments);
    va_end(arguments);
    if (!k->found) memcpy(k->first, text, sizeof text);
    k->found = true;
    size_t length = strlen(text);
    text[length] = '\n';
    if (k->write) k->write(k->user, text, length + 1);
}

static const char *callback_name(bool backward) { return backward ? "backward" : "forward"; }

/* ---- shapes ---- */

static bool same_shape(const lk_operand *a, const lk_operand *b)
{
    bool same =
        a->rank == b->rank && a->dtype == b->dtype && a->count_axis == b->count_axis && a->count_unit == b->count_unit;
    for (int i = 0; same && i < a->rank; i++) same = i == a->count_axis || a->dims[i] == b->dims[i];
    return same;
}

/* The shapes of these inputs, and of one sample more. */
static bool check_shapes(check *k, const lk_operand *inputs)
{
    const lk_operation *o = &k->custom->operation;
    lk_operand          more[LK_OPERATION_INPUTS], outputs[LK_OPERATION_OUTPUTS];
    char                message[LK__CUSTOM_MESSAGE], a[64], b[64];
    for (int i = 0; i < o->inputs; i++) {
        more[i] = inputs[i];
        if (more[i].rank > 0 && more[i].count_axis >= 0) more[i].dims[more[i].count_axis] += more[i].count_unit;
    }
    bool good = lk__custom_shapes(k->custom, more, message);
    memcpy(outputs, k->custom->outputs, sizeof outputs);
    if (!lk__custom_shapes(k->custom, inputs, message) || !good) {
        report(k, "%s", message);
        return false;
    }
    for (int i = 0; i < o->outputs; i++)
        if (!same_shape(&outputs[i], &k->custom->outputs[i])) {
            report(k, "its shape rule gives output %d %s and, with one sample more, %s: only the batch axis may change",
                   i, lk__operand_text(&k->custom->outputs[i], a), lk__operand_text(&outputs[i], b));
            return false;
        }
    return true;
}

/* ---- runs ---- */

static void fill_inputs(lk__operation_batch *b, const lk_operand *inputs)
{
    const lk_operation *o = &b->custom->operation;
    for (int i = 0; i < o->inputs; i++) {
        lk_operand *x = &b->operands.inputs[i];
        lk__batch_draw(x, (uint64_t)i);
        for (int64_t e = 0; inputs[i].data && !(b->custom->missing >> i & 1) && e < lk_operand_elements(x); e++)
            lk__batch_set(x, e, lk__batch_number(&inputs[i], e));
    }
    for (int i = 0; i < o->outputs; i++) lk__batch_draw(&b->operands.output_gradients[i], 100 + (uint64_t)i);
}

/* Guard bytes, whole outputs, threads. *good: nothing was found. */
static lk_status probe(check *k, lk__operation_batch *b, bool backward, bool *good)
{
    char              finding[LK__CUSTOM_FINDING];
    lk_operation_call call = lk__batch_call(b, backward);
    lk_status         status = lk__custom_probe(k->custom, &call, lk__context_pool(k->context), finding);
    *good = status >= 0;
    if (status >= 0 || status == LK_ENOMEM) return status;
    report(k, "%s%s", finding, b->samples == 0 && lk__batch_samples(k->custom) ? " (in a batch of 0 samples)" : "");
    return LK_OK;
}

/* ---- samples ---- */

static const lk_operand *results_of(const lk__operation_batch *b, bool backward)
{
    return backward ? b->view.input_gradients : b->view.outputs;
}

static const char *result_name(bool backward) { return backward ? "the gradient of input" : "output"; }

/* A sum over all samples is that over two parts of them, up to rounding. */
static bool sums_agree(const lk_operand *whole, const lk_operand *a, const lk_operand *b)
{
    double tolerance = whole->dtype == LK_F32 ? 1e-4 : 1e-9;
    for (int64_t i = 0; i < lk_operand_elements(whole); i++) {
        double w = lk__batch_number(whole, i), x = lk__batch_number(a, i), y = lk__batch_number(b, i);
        if (!(fabs(w - (x + y)) <= tolerance * (1 + fabs(w) + fabs(x) + fabs(y)))) return false;
    }
    return true;
}

static void compare_parts(check *k, bool backward, const lk__operation_batch *whole, const lk__operation_batch parts[2])
{
    const lk_operation *o = &k->custom->operation;
    int                 count = backward ? o->inputs : o->outputs;
    for (int i = 0; i < count; i++) {
        const lk_operand *w = &results_of(whole, backward)[i];
        const lk_operand *a = &results_of(&parts[0], backward)[i], *b = &results_of(&parts[1], backward)[i];
        if (!w->data) continue;
        if (w->count_axis >= 0 && (!lk__batch_equals(a, w, 0) || !lk__batch_equals(b, w, parts[0].samples)))
            report(k,
                   "%s: a sample's rows of %s %d change with the other samples of the batch; if that is intended, set "
                   "`coupled`",
                   callback_name(backward), result_name(backward), i);
        bool sum = backward || o->sums >> i & 1;
        if (w->count_axis < 0 && sum && !sums_agree(w, a, b))
            report(k, "%s: %s %d is not a sum over samples: it differs from the sum over two parts of the batch",
                   callback_name(backward), result_name(backward), i);
    }
}

/* The batch in two parts. Saved outputs and gradients are those of the whole batch. */
static lk_status check_parts(check *k, bool backward, lk__operation_batch *whole)
{
    lk__operation_batch parts[2] = {{0}};
    int64_t             middle = whole->samples / 2;
    lk_status           status = lk__batch_create(k->custom, middle, &parts[0]);
    if (status >= 0) status = lk__batch_create(k->custom, whole->samples - middle, &parts[1]);
    for (int i = 0; i < 2 && status >= 0; i++) {
        lk__batch_take(&parts[i], whole, i ? middle : 0);
        status = lk__batch_run(&parts[i], backward);
        if (status < 0 && status != LK_ENOMEM)
            report(k, "its %s fails for a batch of %lld samples", callback_name(backward), (long long)parts[i].samples);
    }
    if (status >= 0) compare_parts(k, backward, whole, parts);
    lk__batch_free(&parts[0]);
    lk__batch_free(&parts[1]);
    return status == LK_ENOMEM ? status : LK_OK;
}

static void check_sums_of_nothing(check *k, bool backward, const lk__operation_batch *none)
{
    const lk_operation *o = &k->custom->operation;
    for (int i = 0; i < (backward ? o->inputs : o->outputs); i++) {
        const lk_operand *y = &results_of(none, backward)[i];
        for (int64_t e = 0; y->data && y->count_axis < 0 && e < lk_operand_elements(y); e++)
            if (lk__batch_number(y, e) != 0) {
                report(k, "%s: %s %d, a sum over samples, is not 0 for an empty batch", callback_name(backward),
                       result_name(backward), i);
                break;
            }
    }
}

/* A rank without data runs with no samples. */
static lk_status check_no_samples(check *k, bool backward, const lk__operation_batch *whole)
{
    lk__operation_batch none;
    bool                good = false;
    lk_status           status = lk__batch_create(k->custom, 0, &none);
    if (status >= 0) {
        lk__batch_take(&none, whole, 0);
        status = probe(k, &none, backward, &good);
    }
    if (good) check_sums_of_nothing(k, backward, &none);
    lk__batch_free(&none);
    return status;
}

/* Everything about one callback. */
static lk_status check_callback(check *k, bool backward, lk__operation_batch *b)
{
    int64_t   samples = lk__batch_samples(k->custom);
    bool      good;
    lk_status status = probe(k, b, backward, &good);
    if (!good || samples == 0) return status;
    status = check_no_samples(k, backward, b);
    if (status >= 0 && samples > 1 && !k->custom->operation.coupled) status = check_parts(k, backward, b);
    return status;
}

static void report_factors(void *user, const char *text) { report(user, "%s", text); }

/* ---- backward against forward ---- */

enum { DIFFERENCES = 48 }; /* elements of each input that are changed */

/* The sum of all outputs, each weighted with its gradient. */
static double weighted_outputs(const lk__operation_batch *b)
{
    double sum = 0;
    for (int i = 0; i < b->custom->operation.outputs; i++) {
        const lk_operand *y = &b->operands.outputs[i], *dy = &b->operands.output_gradients[i];
        for (int64_t e = 0; (y->dtype == LK_F32 || y->dtype == LK_F64) && e < lk_operand_elements(y); e++)
            sum += lk__batch_number(y, e) * lk__batch_number(dy, e);
    }
    return sum;
}

static double difference(lk__operation_batch *b, lk_operand *x, int64_t e, double step)
{
    double at = lk__batch_number(x, e), sums[2];
    for (int side = 0; side < 2; side++) {
        lk__batch_set(x, e, at + (side ? step : -step));
        if (lk__batch_run(b, false) < 0) return NAN;
        sums[side] = weighted_outputs(b);
    }
    lk__batch_set(x, e, at);
    return (sums[1] - sums[0]) / (2 * step);
}

static void compare_gradients(check *k, lk__operation_batch *b)
{
    (void)lk__batch_call(b, true);
    lk__custom_operands gradients = b->view; /* forward does not write them */
    for (int i = 0; i < k->custom->operation.inputs; i++) {
        lk_operand *x = &b->operands.inputs[i];
        int64_t     elements = lk_operand_elements(x), stride = elements / DIFFERENCES + 1;
        double      step = x->dtype == LK_F64 ? 1e-5 : 1e-2, tolerance = x->dtype == LK_F64 ? 1e-5 : 3e-2;
        for (int64_t e = 0; gradients.input_gradients[i].data && e < elements; e += stride) {
            double given = lk__batch_number(&gradients.input_gradients[i], e), found = difference(b, x, e, step);
            if (fabs(given - found) <= tolerance * (1 + fabs(given) + fabs(found))) continue;
            report(k,
                   "backward gives %.6g for element %lld of the gradient of input %d, but the finite difference of "
                   "forward is %.6g",
                   given, (long long)e, i, found);
            break;
        }
    }
}

static bool takes_f64(const lk_operation *o, const lk_operand *inputs)
{
    for (int i = 0; i < o->inputs; i++)
        if (inputs[i].dtype == LK_F32 && o->types[i] && !(o->types[i] >> LK_F64 & 1)) return false;
    return true;
}

/* In f64 where the operation takes that. */
static lk_status check_gradients(check *k, const lk_operand *inputs)
{
    const lk_operation *o = &k->custom->operation;
    lk__operation_batch b;
    lk_operand          wide[LK_OPERATION_INPUTS];
    char                message[LK__CUSTOM_MESSAGE];
    for (int i = 0; i < o->inputs; i++) {
        wide[i] = inputs[i];
        if (wide[i].dtype == LK_F32 && takes_f64(o, inputs)) wide[i].dtype = LK_F64;
    }
    if (!lk__custom_shapes(k->custom, wide, message)) {
        report(k, "in f64: %s", message);
        return LK_OK;
    }
    int64_t   samples = lk__batch_samples(k->custom);
    lk_status status = lk__batch_create(k->custom, samples, &b);
    if (status >= 0) fill_inputs(&b, inputs);
    if (status >= 0 && (lk__batch_run(&b, false) < 0 || lk__batch_run(&b, true) < 0))
        report(k, "forward or backward fails in %s", takes_f64(o, inputs) ? "f64" : "f32");
    else if (status >= 0)
        compare_gradients(k, &b);
    lk__batch_free(&b);
    return status;
}

/* ---- all of it ---- */

static lk_status check_operation(check *k, const lk_operand *inputs)
{
    const lk_operation *o = &k->custom->operation;
    lk__operation_batch b;
    if (!check_shapes(k, inputs)) return LK_OK;
    lk_status status = lk__batch_create(k->custom, lk__batch_samples(k->custom), &b);
    if (status >= 0) fill_inputs(&b, inputs);
    if (status >= 0) status = check_callback(k, false, &b);
    bool forward = !k->found;
    if (status >= 0 && forward) status = lk__operation_check_factors(&b, false, report_factors, k);
    if (status >= 0 && forward && o->backward) status = check_callback(k, true, &b);
    if (status >= 0 && !k->found && o->backward) status = lk__operation_check_factors(&b, true, report_factors, k);
    lk__batch_free(&b);
    /* A backward that writes out of bounds is not run without guards. */
    return status >= 0 && forward && o->backward && !k->found ? check_gradients(k, inputs) : status;
}

lk_status lk_operation_check(lk_context *context, const lk_operation *operation, const lk_operand *inputs,
                             lk_text_callback write, void *user)
{
    check     k = {.context = context, .write = write, .user = user};
    lk_status status = lk__custom_create(context, LK_HERE, operation, &k.custom);
    if (status < 0) return status;
    status = check_operation(&k, inputs);
    lk__custom_free(k.custom);
    if (status < 0) return status;
    return k.found ? lk__fail(context, LK_EMISMATCH, "%s", k.first) : LK_OK;
}
