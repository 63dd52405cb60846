/* kernel_parts.h - checks the line of factors of an operation against its kernel: operands are cut along each factor,
 * the kernel runs on each part, and the results are compared with those of the whole: equal bits where nothing is
 * summed, the sum of the parts where something is. In 2, 3 and 4 parts, also uneven ones. After a case of kernel_case.h
 * or kernel_values.h, as long as it is small. bf16 on the CPU: products that are summands are made in f32 there, as
 * ranks exchange them, and their sum is the whole to one rounding.
 *
 * On the CPU every line is then changed in each of the ways of factor_mutants.h, and some case must find that it is
 * wrong. */
#ifndef KERNEL_PARTS_H
#define KERNEL_PARTS_H

#include "base/bf16.h"
#include "graph/factor_part.h"
#include "graph/op.h"

#include "kernel_device.h"

#include <math.h>

enum {
    PARTS_MOST = 4,
    PARTS_ELEMENTS = 24 << 10, /* of all operands: larger cases are not cut */
    PARTS_CASES = 12,          /* of an operation and type with the same operands and settings */
    PARTS_KINDS = 256,
    PARTS_TEXT = 256,
};

/* Cases of any size and number are cut, with every instruction set. */
static bool parts_of_all;

/* A call whose results are those of the whole. */
typedef struct parts_case {
    lk__op                 op;
    lk_dtype               real;
    const lk__kernel_call *call;
    const double          *initial[LK__MAX_OUT]; /* of outputs that are updated: values before; NULL: none */
    const double          *before[LK__MAX_IN];   /* the same of inputs, such as running statistics */
    double                 terms;                /* the largest term of a result, where terms cancel */
    const char            *isa;
    lk__pool              *pool;
} parts_case;

/* Parts have the bits of the whole on the CPU; a device may add in another order, and its results are compared as sums
 * are. */
static inline bool may_parts_differ(void) { return kernel_device != NULL; }

/* ---- elements ---- */

static inline double part_number(const lk__kernel_operand *o, int64_t i)
{
    switch (o->dtype) {
    case LK_F32: return (double)((const float *)o->data)[i];
    case LK_F64: return ((const double *)o->data)[i];
    case LK_BF16: return (double)lk__from_bf16(((const lk__bf16 *)o->data)[i]);
    case LK_I32: return ((const int32_t *)o->data)[i];
    case LK_I64: return (double)((const int64_t *)o->data)[i];
    case LK_U8: return ((const uint8_t *)o->data)[i];
    default: abort();
    }
}

static inline void set_part_number(lk__kernel_operand *o, int64_t i, double value)
{
    switch (o->dtype) {
    case LK_F32: ((float *)o->data)[i] = (float)value; break;
    case LK_F64: ((double *)o->data)[i] = value; break;
    case LK_I64: ((int64_t *)o->data)[i] = (int64_t)value; break;
    case LK_BF16: ((lk__bf16 *)o->data)[i] = lk__to_bf16((float)value); break;
    default: abort();
    }
}

/* Where an element is: images are stored with their channels last. */
static inline int64_t part_place(const lk__kernel_operand *o, bool image, const int64_t *index)
{
    int64_t at = 0;
    if (image && o->rank == 4)
        return ((index[0] * o->dims[2] + index[2]) * o->dims[3] + index[3]) * o->dims[1] + index[1];
    for (int i = 0; i < o->rank; i++) at = at * o->dims[i] + index[i];
    return at;
}

typedef struct part_elements {
    lk__kernel_operand       *part;
    const lk__kernel_operand *whole;
    const double             *initial; /* of the whole */
    bool                      image;
    double                    tolerance, terms; /* compare: 0: the same bits; else of an element and of its terms */
    bool                      differ;
} part_elements;

static inline void take_part_element(void *user, const int64_t *part, const int64_t *whole)
{
    part_elements *e = user;
    size_t         size = lk_dtype_size(e->part->dtype);
    int64_t        to = part_place(e->part, e->image, part), from = part_place(e->whole, e->image, whole);
    if (e->initial)
        set_part_number(e->part, to, e->initial[from]);
    else
        memcpy((char *)e->part->data + (size_t)to * size, (const char *)e->whole->data + (size_t)from * size, size);
}

static inline void compare_part_element(void *user, const int64_t *part, const int64_t *whole)
{
    part_elements *e = user;
    size_t         size = lk_dtype_size(e->part->dtype);
    int64_t        a = part_place(e->part, e->image, part), b = part_place(e->whole, e->image, whole);
    if (memcmp((char *)e->part->data + (size_t)a * size, (const char *)e->whole->data + (size_t)b * size, size) == 0)
        return;
    if (e->tolerance > 0 && e->part->dtype != LK_BF16) {
        double x = part_number(e->part, a), y = part_number(e->whole, b);
        if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= e->tolerance * (fabs(y) + e->terms)) return;
    }
    e->differ = true;
}

/* ---- one part ---- */

static inline bool is_part_image(const lk__graph_operand *o) { return o->layout == LK__LAYOUT_LAST; }

static inline lk__factor_shape part_shape(const lk__kernel_operand *o) { return (lk__factor_shape){o->dims, o->rank}; }

static inline void *part_memory(size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + KERNEL_GUARD + 63) / 64 * 64);
    if (!p) abort();
    memset(p, 0xA5, bytes + KERNEL_GUARD);
    return p;
}

/* A dimension that is cut in each of its repetitions has so many of them; 0: it has none. */
static inline int64_t part_repetitions(const lk__factors *f, const lk__factor_dim *dim, int factor)
{
    const lk__factor_product *p = &dim->segment[0];
    int64_t                   outer = 1;
    if (dim->segments != 1 || !lk__factor_in_dim(dim, factor) || p->factor[0] == factor) return 0;
    for (int i = 0; i < p->count && p->factor[i] != factor; i++) outer *= f->factor[p->factor[i]].extent;
    return outer;
}

/* The case itself may be a part. */
static inline lk__kernel_operand make_part(const lk__factors *f, const lk__factor_dim *dims,
                                           const lk__kernel_operand *whole, lk__factor_cut c, lk__op_part *place)
{
    lk__kernel_operand part = *whole;
    place->rank = part.rank;
    for (int i = 0; i < part.rank; i++) {
        part.dims[i] = lk__factor_part_extent(f, &dims[i], whole->dims[i], c);
        place->whole[i] = lk__whole_extent(whole, i);
        place->first[i] = lk__part_first(whole, i) + lk__factor_part_index(f, &dims[i], 0, c);
        place->outer[i] = part_repetitions(f, &dims[i], c.factor);
    }
    part.part = lk__factor_in(dims, c.factor) ? place : whole->part;
    if (whole->data) part.data = part_memory((size_t)lk__operand_elements(&part) * lk_dtype_size(part.dtype));
    return part;
}

typedef struct kernel_part {
    lk__kernel_call call;
    lk__op_part     in[LK__MAX_IN], out[LK__MAX_OUT]; /* where the operands are in the whole */
    lk__op_attrs    attrs;
    lk__kernel_step step;
} kernel_part;

static inline bool sums_any_output(const parts_case *k, const lk__factors *f, int factor)
{
    for (int i = 0; i < k->call->outputs; i++)
        if (k->call->out[i].data && lk__factor_is_summed(f, k->call->inputs, i, factor)) return true;
    return false;
}

static inline void make_part_inputs(const parts_case *k, const lk__factors *f, lk__factor_cut c, kernel_part *p)
{
    bool once = c.first > 0 && sums_any_output(k, f, c.factor);
    for (int i = 0; i < k->call->inputs; i++) {
        const lk__kernel_operand *whole = &k->call->in[i];
        lk__kernel_operand       *part = &p->call.in[i];
        *part = make_part(f, f->in[i], whole, c, &p->in[i]);
        if (!part->data) continue;
        bool             image = is_part_image(lk__op_input(lk__op_find(k->op), i));
        part_elements    e = {.part = part, .whole = whole, .initial = k->before[i], .image = image};
        lk__factor_shape shape = part_shape(whole);
        lk__factor_part_visit(f, f->in[i], &shape, c, take_part_element, &e);
        if (once && f->added >> i & 1) {
            free(part->data);
            part->data = NULL;
        }
    }
}

/* An output that is a summand of a sum of products is wide. */
static inline bool is_part_wide(const parts_case *k, const lk__factors *f, int output, int factor)
{
    return k->real == LK_BF16 && lk__op_find(k->op)->out[output].types == LK__TYPE_PRODUCT &&
           lk__factor_is_summed(f, k->call->inputs, output, factor);
}

static inline void make_part_outputs(const parts_case *k, const lk__factors *f, lk__factor_cut c, kernel_part *p)
{
    for (int i = 0; i < k->call->outputs; i++) {
        const lk__kernel_operand *whole = &k->call->out[i];
        lk__kernel_operand       *part = &p->call.out[i], as_made = *whole;
        if (is_part_wide(k, f, i, c.factor)) as_made.dtype = LK_F32;
        *part = make_part(f, f->out[i], &as_made, c, &p->out[i]);
        if (!part->data || !k->initial[i]) continue;
        part_elements e = {.part = part, .whole = whole, .initial = k->initial[i]};
        e.image = is_part_image(&lk__op_find(k->op)->out[i]);
        lk__factor_shape shape = part_shape(whole);
        lk__factor_part_visit(f, f->out[i], &shape, c, take_part_element, &e);
    }
}

static inline void make_kernel_part(const parts_case *k, const lk__factors *f, lk__factor_cut c, kernel_part *p)
{
    int64_t extents[LK__FACTORS];
    p->call = *k->call;
    p->attrs = *k->call->attrs;
    p->step = k->call->step ? *k->call->step : (lk__kernel_step){0};
    make_part_inputs(k, f, c, p);
    make_part_outputs(k, f, c, p);
    for (int i = 0; i < f->count; i++) extents[i] = i == c.factor ? c.length : f->factor[i].extent;
    lk__factors_attributes(f, extents, &p->attrs);
    p->call.attrs = &p->attrs;
    p->call.step = &p->step;
    p->call.invalid = NULL;
}

static inline void free_kernel_part(kernel_part *p)
{
    for (int i = 0; i < p->call.inputs; i++) free(p->call.in[i].data);
    for (int i = 0; i < p->call.outputs; i++) free(p->call.out[i].data);
}

/* Of what part_memory returned. */
static inline bool is_guard_intact(const void *memory, size_t bytes)
{
    const unsigned char *guard = (const unsigned char *)memory + bytes;
    for (int i = 0; i < KERNEL_GUARD; i++)
        if (guard[i] != 0xA5) return false;
    return true;
}

static inline const char *run_kernel_part(const parts_case *k, kernel_part *p)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(k->real, k->isa, k->op);
    if (kernel_device) return run_on_device(k->op, k->real, &p->call, NULL, false);
    p->call.pool = k->pool;
    size_t bytes = entry->workspace ? entry->workspace(&p->call, 1) : 0;
    p->call.workspace = part_memory(bytes);
    entry->run(&p->call);
    bool intact = is_guard_intact(p->call.workspace, bytes);
    free(p->call.workspace);
    if (!intact) return "of a part, the kernel writes past its workspace";
    for (int i = 0; i < p->call.outputs; i++) {
        const lk__kernel_operand *o = &p->call.out[i];
        if (o->data && !is_guard_intact(o->data, (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype)))
            return "of a part, the kernel writes past an output";
    }
    return NULL;
}

/* ---- all parts of a factor ---- */

/* Sums over the parts, and the sizes of their terms. */
typedef struct part_sums {
    double *sum[LK__MAX_OUT], *size[LK__MAX_OUT];
} part_sums;

static inline double part_tolerance(const parts_case *k) { return k->real == LK_F64 ? 1e-12 : 2e-5; }

/* Inputs that the kernel has updated. */
static inline bool compare_part_updates(const parts_case *k, const lk__factors *f, lk__factor_cut c, kernel_part *p,
                                        char text[PARTS_TEXT])
{
    for (int i = 0; i < k->call->inputs; i++) {
        if (!k->before[i]) continue;
        const lk__kernel_operand *whole = &k->call->in[i];
        part_elements             e = {.part = &p->call.in[i], .whole = whole, .terms = k->terms + 1};
        lk__factor_shape          shape = part_shape(whole);
        if (may_parts_differ()) e.tolerance = part_tolerance(k);
        lk__factor_part_visit(f, f->in[i], &shape, c, compare_part_element, &e);
        if (!e.differ) continue;
        snprintf(text, PARTS_TEXT, "input %d, which is updated, differs from the whole in a part of factor %s", i,
                 f->factor[c.factor].name);
        return false;
    }
    return true;
}

static inline bool compare_kernel_part(const parts_case *k, const lk__factors *f, lk__factor_cut c, kernel_part *p,
                                       part_sums *sums, char text[PARTS_TEXT])
{
    const char *name = f->factor[c.factor].name;
    for (int i = 0; i < k->call->outputs; i++) {
        lk__kernel_operand       *part = &p->call.out[i];
        const lk__kernel_operand *whole = &k->call->out[i];
        if (!part->data) continue;
        if (lk__factor_is_summed(f, k->call->inputs, i, c.factor)) {
            for (int64_t at = 0; at < lk__operand_elements(part); at++) {
                double x = part_number(part, at);
                sums->sum[i][at] += x;
                sums->size[i][at] += fabs(x);
            }
            continue;
        }
        part_elements e = {.part = part, .whole = whole, .terms = k->terms + 1};
        e.image = is_part_image(&lk__op_find(k->op)->out[i]);
        if (may_parts_differ()) e.tolerance = part_tolerance(k);
        lk__factor_shape shape = part_shape(whole);
        lk__factor_part_visit(f, f->out[i], &shape, c, compare_part_element, &e);
        if (!e.differ) continue;
        snprintf(text, PARTS_TEXT, "output %d of %lld…%lld of factor %s (of %lld) differs from the whole", i,
                 (long long)c.first, (long long)(c.first + c.length - 1), name, (long long)f->factor[c.factor].extent);
        return false;
    }
    return true;
}

static inline bool compare_part_sums(const parts_case *k, const lk__factors *f, int factor, const part_sums *sums,
                                     char text[PARTS_TEXT])
{
    for (int i = 0; i < k->call->outputs; i++) {
        const lk__kernel_operand *whole = &k->call->out[i];
        if (!whole->data || !lk__factor_is_summed(f, k->call->inputs, i, factor)) continue;
        for (int64_t at = 0; at < lk__operand_elements(whole); at++) {
            double x = sums->sum[i][at], want = part_number(whole, at), rounding = 0;
            if (whole->dtype == LK_BF16)
                rounding = 0x1p-8 * (fabs(want) + (is_part_wide(k, f, i, factor) ? 0 : sums->size[i][at]));
            if ((isnan(x) && isnan(want)) || x == want) continue;
            if (fabs(x - want) <= part_tolerance(k) * (sums->size[i][at] + k->terms + 1) + rounding) continue;
            snprintf(text, PARTS_TEXT,
                     "output %d: the sum over the parts of factor %s is %.17g at %lld, the whole %.17g", i,
                     f->factor[factor].name, x, (long long)at, want);
            return false;
        }
    }
    return true;
}

static inline bool check_factor_cuts(const parts_case *k, const lk__factors *f, int factor, const int64_t *bounds,
                                     int parts, char text[PARTS_TEXT])
{
    part_sums sums = {0};
    bool      right = true;
    for (int i = 0; i < k->call->outputs; i++) {
        size_t n = (size_t)lk__operand_elements(&k->call->out[i]) + 1;
        sums.sum[i] = calloc(n, sizeof(double));
        sums.size[i] = calloc(n, sizeof(double));
    }
    for (int part = 0; part < parts && right; part++) {
        lk__factor_cut c = {factor, bounds[part], bounds[part + 1] - bounds[part]};
        kernel_part    p;
        make_kernel_part(k, f, c, &p);
        const char *wrong = run_kernel_part(k, &p);
        if (wrong) snprintf(text, PARTS_TEXT, "%s", wrong);
        right = !wrong && compare_kernel_part(k, f, c, &p, &sums, text) && compare_part_updates(k, f, c, &p, text);
        free_kernel_part(&p);
    }
    if (right) right = compare_part_sums(k, f, factor, &sums, text);
    for (int i = 0; i < k->call->outputs; i++) free(sums.sum[i]), free(sums.size[i]);
    return right;
}

static inline lk__factor_query query_parts(const parts_case *k)
{
    const lk__kernel_call *call = k->call;
    lk__factor_query       q = {.op = k->op, .attrs = call->attrs, .inputs = call->inputs, .outputs = call->outputs};
    for (int i = 0; i < call->inputs; i++)
        if (call->in[i].data) q.in[i] = part_shape(&call->in[i]);
    for (int i = 0; i < call->outputs; i++)
        if (call->out[i].data) q.out[i] = part_shape(&call->out[i]);
    return q;
}

/* Whether the line holds for this case; quick: in two parts alone. */
static inline bool check_factor_line(const parts_case *k, const char *line, bool quick, char text[PARTS_TEXT])
{
    static lk__factors f;
    char               why[128];
    lk__factor_query   query = query_parts(k);
    const char        *wrong = lk__factors_solve(line, &query, &f, why);
    if (wrong) snprintf(text, PARTS_TEXT, "%s", wrong);
    for (int i = 0; i < f.count && !wrong; i++) {
        int64_t n = f.factor[i].extent;
        if (f.factor[i].coupled || n < 2) continue;
        if (!check_factor_cuts(k, &f, i, (int64_t[]){0, 1, n}, 2, text)) return false;
        for (int parts = 2; parts <= (quick ? 2 : PARTS_MOST) && parts <= n; parts++) {
            int64_t bounds[PARTS_MOST + 1];
            for (int p = 0; p <= parts; p++) bounds[p] = n * p / parts;
            if (!check_factor_cuts(k, &f, i, bounds, parts, text)) return false;
        }
    }
    return !wrong;
}

/* The terms of a sum are at least as large as an operand's elements. */
static inline void find_terms(parts_case *k)
{
    for (int i = 0; i < k->call->inputs; i++) {
        const lk__kernel_operand *x = &k->call->in[i];
        for (int64_t e = 0; x->data && lk__is_element(x->dtype) && e < lk__operand_elements(x); e++) {
            double size = fabs(part_number(x, e));
            if (isfinite(size)) k->terms = fmax(k->terms, size);
        }
    }
}

/* Cases with other operands, ranks or settings find other mistakes: they are numbered, by operation, as they come. */
static inline int kind_of_case(const parts_case *k)
{
    static uint64_t known[LK__OP_COUNT][PARTS_KINDS];
    static int      count[LK__OP_COUNT];
    lk__attr_set    set = lk__attrs_set(k->call->attrs);
    uint64_t        hash = (uint64_t)(set ^ set >> 64);
    for (int i = 0; i < k->call->inputs; i++)
        hash = hash * 31 + (uint64_t)(k->call->in[i].data ? k->call->in[i].rank + 1 : 0);
    for (int i = 0; i < k->call->outputs; i++) hash = hash * 31 + (k->call->out[i].data ? 1 : 0);
    for (int i = 0; i < count[k->op]; i++)
        if (known[k->op][i] == hash) return i;
    if (count[k->op] == PARTS_KINDS) abort();
    known[k->op][count[k->op]] = hash;
    return count[k->op]++;
}

static inline int64_t elements_of_case(const parts_case *k)
{
    int64_t elements = 0;
    for (int i = 0; i < k->call->inputs + k->call->outputs; i++) {
        const lk__kernel_operand *o = i < k->call->inputs ? &k->call->in[i] : &k->call->out[i - k->call->inputs];
        elements += o->data ? lk__operand_elements(o) : 0;
    }
    return elements;
}

/* A dimension that is cut in each of its repetitions cannot be cut a second time. */
static inline bool is_cut_by_repetitions(const parts_case *k)
{
    const lk__op_part *part = k->call->in[0].part;
    return part && part->outer[0] > 0;
}

/* After a case has run: false, with what is wrong. */
static inline bool check_parts(parts_case *k, char text[PARTS_TEXT])
{
    static unsigned char seen[LK__OP_COUNT][LK_DTYPE_COUNT][PARTS_KINDS];
    if ((k->real == LK_BF16 && kernel_device) || is_cut_by_repetitions(k)) return true;
    unsigned char *times = &seen[k->op][k->real][kind_of_case(k)];
    bool           slow = is_slow();
    int64_t        elements = slow ? PARTS_ELEMENTS / 8 : PARTS_ELEMENTS;
    if (!parts_of_all && (*times == (slow ? 1 : PARTS_CASES) || elements_of_case(k) > elements)) return true;
    if (!parts_of_all) (*times)++;
    find_terms(k);
    return check_factor_line(k, lk__op_find(k->op)->factors, slow, text);
}

#endif
