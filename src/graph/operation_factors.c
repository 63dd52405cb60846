/* operation_factors.c - cuts the operands of a user's operation along its factors and compares the parts' results with
 * the whole's. */
#include "graph/operation_factors.h"

#include "graph/factor_part.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PARTS_MOST = 4 };

typedef struct check {
    lk__operation_batch *whole;
    bool                 backward;
    lk__factors          factors, forward; /* factors: of the callback that is checked */
    int                  factor;           /* that is cut */
    double              *sums, *sizes;     /* of the results that are sums over the parts, one after the other */
    void (*report)(void *user, const char *text);
    void *user;
} check;

__attribute__((format(printf, 2, 3))) static bool report(check *k, const char *format, ...)
{
    char    text[LK__CUSTOM_FINDING];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    k->report(k->user, text);
    return false;
}

/* ---- operands by their place in the factors ---- */

static const lk_operation *operation_of(const check *k) { return &k->whole->custom->operation; }

static int operands_count(const check *k)
{
    const lk_operation *o = operation_of(k);
    return k->backward ? o->inputs + 2 * o->outputs : o->inputs;
}

static int results_count(const check *k) { return k->backward ? operation_of(k)->inputs : operation_of(k)->outputs; }

static lk_operand *operand_of(const check *k, lk__custom_operands *o, int i)
{
    const lk_operation *operation = operation_of(k);
    if (i < operation->inputs) return &o->inputs[i];
    i -= operation->inputs;
    return i < operation->outputs ? &o->outputs[i] : &o->output_gradients[i - operation->outputs];
}

/* In `view` of a batch, what the callback does not write has no data. */
static lk_operand *result_of(const check *k, lk__operation_batch *b, int i)
{
    return k->backward ? &b->view.input_gradients[i] : &b->view.outputs[i];
}

static const char *result_name(const check *k) { return k->backward ? "the gradient of input" : "output"; }
static const char *callback_name(const check *k) { return k->backward ? "backward" : "forward"; }

static lk__factor_shape shape_of(const lk_operand *o) { return (lk__factor_shape){o->dims, o->rank}; }

/* ---- elements ---- */

typedef struct elements {
    const lk_operand *part, *whole;
    bool              differ;
} elements;

static char *element_at(const lk_operand *o, const int64_t *index)
{
    int64_t at = 0;
    for (int i = 0; i < o->rank; i++) at = at * o->dims[i] + index[i];
    return (char *)o->data + (size_t)at * lk_dtype_size(o->dtype);
}

static void take_element(void *user, const int64_t *part, const int64_t *whole)
{
    elements *e = user;
    memcpy(element_at(e->part, part), element_at(e->whole, whole), lk_dtype_size(e->part->dtype));
}

static void compare_element(void *user, const int64_t *part, const int64_t *whole)
{
    elements *e = user;
    e->differ |= memcmp(element_at(e->part, part), element_at(e->whole, whole), lk_dtype_size(e->part->dtype)) != 0;
}

/* ---- a part ---- */

/* A sample has fewer rows where the factor is one of those that its axis is made of besides the samples. */
static void set_count_unit(const lk__factors *f, const lk__factor_dim *dims, lk__factor_cut c, lk_operand *o)
{
    const lk__factor_dim *d = o->count_axis >= 0 ? &dims[o->count_axis] : NULL;
    if (!d || !lk__factor_in_dim(d, c.factor) || d->segment[0].factor[0] == c.factor) return;
    o->count_unit = o->count_unit / f->factor[c.factor].extent * c.length;
}

/* The operation with the shapes of the part, which its shape rule must give. false: reported, or no memory. */
static bool make_part_shapes(check *k, lk__factor_cut c, lk__kernel_custom *part)
{
    const lk__kernel_custom *whole = k->whole->custom;
    lk_operand               inputs[LK_OPERATION_INPUTS];
    char                     message[LK__CUSTOM_MESSAGE], got[64], expected[64];
    const char              *name = k->forward.factor[c.factor].name;
    for (int i = 0; i < whole->operation.inputs; i++) {
        inputs[i] = k->whole->operands.inputs[i];
        inputs[i].data = NULL;
        for (int d = 0; d < inputs[i].rank; d++)
            inputs[i].dims[d] = lk__factor_part_extent(&k->forward, &k->forward.in[i][d], inputs[i].dims[d], c);
        set_count_unit(&k->forward, k->forward.in[i], c, &inputs[i]);
        if (whole->missing >> i & 1) inputs[i].rank = -1;
    }
    if (!lk__custom_shapes(part, inputs, message))
        return report(k, "its shape rule rejects parts of factor %s: %s", name, message);
    for (int i = 0; i < whole->operation.outputs; i++) {
        lk_operand y = k->whole->operands.outputs[i];
        bool       same = y.rank == part->outputs[i].rank;
        for (int d = 0; d < y.rank; d++)
            y.dims[d] = lk__factor_part_extent(&k->forward, &k->forward.out[i][d], y.dims[d], c);
        for (int d = 0; same && d < y.rank; d++) same = y.dims[d] == part->outputs[i].dims[d];
        if (!same)
            return report(k,
                          "for a part of the factor %s, its shape rule sets the shape of output %d to %s, but its "
                          "factors imply %s",
                          name, i, lk__operand_text(&part->outputs[i], got), lk__operand_text(&y, expected));
    }
    return true;
}

static void take_operands(check *k, lk__factor_cut c, lk__operation_batch *part)
{
    for (int i = 0; i < operands_count(k); i++) {
        elements e = {.part = operand_of(k, &part->operands, i), .whole = operand_of(k, &k->whole->operands, i)};
        lk__factor_shape shape = shape_of(e.whole);
        lk__factor_part_visit(&k->factors, k->factors.in[i], &shape, c, take_element, &e);
    }
}

static void add_to_sums(check *k, const lk_operand *part, int64_t offset)
{
    for (int64_t i = 0; i < lk_operand_elements(part); i++) {
        k->sums[offset + i] += lk__batch_number(part, i);
        k->sizes[offset + i] += fabs(lk__batch_number(part, i));
    }
}

static bool compare_results(check *k, lk__factor_cut c, lk__operation_batch *part)
{
    int64_t offset = 0;
    for (int i = 0; i < results_count(k); i++) {
        elements e = {.part = result_of(k, part, i), .whole = result_of(k, k->whole, i)};
        if (!e.whole->data) continue;
        if (lk__factor_is_summed(&k->factors, operands_count(k), i, c.factor)) {
            add_to_sums(k, e.part, offset);
        } else {
            lk__factor_shape shape = shape_of(e.whole);
            lk__factor_part_visit(&k->factors, k->factors.out[i], &shape, c, compare_element, &e);
            if (e.differ)
                return report(k,
                              "%s: %s %d of a part of the factor %s differs from the whole: if it depends on other "
                              "parts, write !%s in `factors`",
                              callback_name(k), result_name(k), i, k->factors.factor[c.factor].name,
                              k->factors.factor[c.factor].name);
        }
        offset += lk_operand_elements(e.whole);
    }
    return true;
}

static lk_status check_part(check *k, lk__factor_cut c, bool *good)
{
    lk__operation_batch part = {0};
    lk__kernel_custom  *custom;
    lk_status           status = lk__custom_copy(k->whole->custom, &custom);
    if (status < 0) return status;
    *good = make_part_shapes(k, c, custom);
    if (*good && (status = lk__batch_create(custom, lk__batch_samples(custom), &part)) >= 0) {
        take_operands(k, c, &part);
        if (lk__batch_run(&part, k->backward) < 0)
            *good = report(k, "its %s fails for a part of the factor %s", callback_name(k),
                           k->factors.factor[c.factor].name);
        if (*good) *good = compare_results(k, c, &part);
    }
    lk__batch_free(&part);
    lk__custom_free(custom);
    return status;
}

/* ---- all parts of a factor ---- */

static bool compare_sums(check *k)
{
    int64_t offset = 0;
    for (int i = 0; i < results_count(k); i++) {
        const lk_operand *whole = result_of(k, k->whole, i);
        if (!whole->data) continue;
        double tolerance = whole->dtype == LK_F32 ? 1e-4 : 1e-9;
        bool   summed = lk__factor_is_summed(&k->factors, operands_count(k), i, k->factor);
        for (int64_t e = 0; summed && e < lk_operand_elements(whole); e++) {
            double want = lk__batch_number(whole, e), got = k->sums[offset + e];
            if (fabs(want - got) <= tolerance * (1 + fabs(want) + k->sizes[offset + e])) continue;
            return report(k, "%s: %s %d is not the sum over the parts of the factor %s: write !%s in `factors`",
                          callback_name(k), result_name(k), i, k->factors.factor[k->factor].name,
                          k->factors.factor[k->factor].name);
        }
        offset += lk_operand_elements(whole);
    }
    return true;
}

static lk_status check_cuts(check *k, const int64_t *bounds, int parts, bool *good)
{
    int64_t     elements = 1;
    lk_context *context = k->whole->custom->context;
    for (int i = 0; i < results_count(k); i++) elements += lk_operand_elements(result_of(k, k->whole, i));
    size_t    bytes = (size_t)elements * sizeof(double);
    lk_status status = LK_ENOMEM;
    k->sums = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    k->sizes = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    if (k->sums && k->sizes) {
        status = LK_OK;
        memset(k->sums, 0, bytes);
        memset(k->sizes, 0, bytes);
        for (int p = 0; p < parts && status >= 0 && *good; p++)
            status = check_part(k, (lk__factor_cut){k->factor, bounds[p], bounds[p + 1] - bounds[p]}, good);
        if (status >= 0 && *good) *good = compare_sums(k);
    }
    lk__free(context, LK_MEMORY_OTHER, k->sums, bytes);
    lk__free(context, LK_MEMORY_OTHER, k->sizes, bytes);
    return status;
}

/* Rows of a sample, where they and the samples are one factor: no part has a part of a sample. */
static int64_t rows_of_sample(const check *k)
{
    const lk__kernel_custom *c = k->whole->custom;
    for (int i = 0; i < c->operation.inputs; i++) {
        const lk_operand     *x = &c->inputs[i];
        const lk__factor_dim *d = x->count_axis >= 0 ? &k->forward.in[i][x->count_axis] : NULL;
        if (d && d->segments == 1 && d->segment[0].count == 1 && d->segment[0].factor[0] == k->factor)
            return x->count_unit;
    }
    return 1;
}

/* One part of one element and the rest; then 2, 3 and 4 parts. */
static lk_status check_factor(check *k)
{
    int64_t   unit = rows_of_sample(k), n = k->factors.factor[k->factor].extent / unit;
    bool      good = true;
    lk_status status = n < 2 ? LK_OK : check_cuts(k, (int64_t[]){0, unit, n * unit}, 2, &good);
    for (int parts = 2; parts <= PARTS_MOST && parts <= n && status >= 0 && good; parts++) {
        int64_t bounds[PARTS_MOST + 1];
        for (int p = 0; p <= parts; p++) bounds[p] = n * p / parts * unit;
        status = check_cuts(k, bounds, parts, &good);
    }
    return status;
}

static const char *find_factors(check *k, char text[static 128])
{
    const lk__kernel_custom  *c = k->whole->custom;
    static const lk__op_attrs none;
    lk__factor_query          q = {.op = LK__OP_custom, .attrs = &none, .inputs = c->operation.inputs};
    q.outputs = c->operation.outputs;
    for (int i = 0; i < q.inputs; i++)
        if (!(c->missing >> i & 1)) q.in[i] = shape_of(&k->whole->operands.inputs[i]);
    for (int i = 0; i < q.outputs; i++) q.out[i] = shape_of(&k->whole->operands.outputs[i]);
    const char *wrong = lk__factors_solve(c->operation.factors, &q, &k->forward, text);
    if (wrong) return wrong;
    k->factors = k->forward;
    if (k->backward) lk__factors_of_backward(&k->forward, q.inputs, q.outputs, &k->factors);
    return NULL;
}

lk_status lk__operation_check_factors(lk__operation_batch *whole, bool                  backward,
                                      void (*tell)(void *user, const char *text), void *user)
{
    check     k = {.whole = whole, .backward = backward, .report = tell, .user = user};
    char      text[128];
    lk_status status = LK_OK;
    if (!whole->custom->operation.factors) return LK_OK;
    const char *wrong = find_factors(&k, text);
    if (wrong) report(&k, "factors: %s", wrong);
    for (k.factor = 0; k.factor < k.factors.count && !wrong && status >= 0; k.factor++)
        if (!k.factors.factor[k.factor].coupled) status = check_factor(&k);
    return status;
}
