/* kernel_case.h - runs one kernel on exact-size buffers for every instruction set the machine has, for f32, f64 and
 * bf16, with 1, 2 and 3 threads and in place where allowed, requires the same bits each time, and returns the results
 * as doubles. The bits of a bf16 kernel must be those of the f32 kernel on the same numbers, rounded.
 *
 * Where LOCKSTEP_DEVICE names another device than the CPU, its kernels run instead, on its memory: twice, with the same
 * bits; bf16 is compared with the expected values alone. */
#ifndef KERNEL_CASE_H
#define KERNEL_CASE_H

#include "base/base.h"
#include "base/bf16.h"

#include "kernel_device.h"
#include "kernel_mutants.h"
#include "tested_isas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOLS = 3, GUARD = KERNEL_GUARD };

typedef struct kernel_case {
    const char           *isa;
    lk_dtype              real; /* the type of elements: of what op.h and its descriptor call real */
    lk_dtype              wide; /* the type of sums: f32 where elements are bf16 */
    lk__op                op;
    bool                  on_device;
    bool                  needs_device; /* the CPU's kernel cannot do it */
    bool                  skipped;      /* no kernel: bf16 on the CPU, or what needs a device */
    bool                  computes_f32; /* with bf16, too: more than products, by the set that its own extends */
    lk__op_attrs          attrs;
    lk__kernel_step       step;
    lk__kernel_invalid_id invalid; /* what the latest run reported */
    lk__kernel_operand    in[LK__MAX_IN], out[LK__MAX_OUT];
    int                   inputs, outputs;
    double                scale; /* errors are measured against at least this size of value */
    /* the largest term of a result, where terms cancel: set before run_case */
    double   terms;
    unsigned in_place;             /* bit i: the first output may be input i */
    double  *initial[LK__MAX_OUT]; /* of outputs that are updated; NULL: poison */
    double  *x[LK__MAX_IN];        /* the inputs' values */
    double  *y[LK__MAX_OUT];       /* the results */
} kernel_case;

static kernel_case t;
static lk_context *contexts[POOLS];
static int         failures, cases;
static uint64_t    random_state = 88172645463325252u;

static double uniform(double low, double high)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (high - low) * ((double)(random_state >> 11) / 9007199254740992.0);
}

static void fail_case(const char *what)
{
    fprintf(stderr, "FAIL %s %s %s: %s;", lk__op_name(t.op), lk_dtype_name(t.real), t.isa, what);
    for (int k = 0; k < t.inputs + t.outputs; k++) {
        const lk__kernel_operand *o = k < t.inputs ? &t.in[k] : &t.out[k - t.inputs];
        fprintf(stderr, " %s%s(", k == t.inputs ? "→ " : "", o->data ? "" : "no ");
        for (int i = 0; i < o->rank; i++) fprintf(stderr, i ? ",%lld" : "%lld", (long long)o->dims[i]);
        fprintf(stderr, ")");
    }
    fprintf(stderr, "\n");
    failures++;
}

static void put(lk_dtype type, void *data, int64_t i, double value)
{
    switch (type) {
    case LK_F32: ((float *)data)[i] = (float)value; break;
    case LK_F64: ((double *)data)[i] = value; break;
    case LK_BF16: ((lk__bf16 *)data)[i] = lk__to_bf16((float)value); break;
    case LK_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case LK_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    case LK_U8: ((uint8_t *)data)[i] = (uint8_t)value; break;
    default: abort();
    }
}

static double get(lk_dtype type, const void *data, int64_t i)
{
    switch (type) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_BF16: return (double)lk__from_bf16(((const lk__bf16 *)data)[i]);
    case LK_I32: return ((const int32_t *)data)[i];
    case LK_I64: return (double)((const int64_t *)data)[i];
    case LK_U8: return ((const uint8_t *)data)[i];
    default: abort();
    }
}

/* Memory of exactly `bytes`, so that a sanitizer detects the first byte past it; 64-byte aligned, followed by a
 * guard. */
static void *guarded(size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    if (!p) abort();
    memset(p, 0xA5, bytes + GUARD);
    return p;
}

static bool guard_holds(const void *data, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (((const unsigned char *)data)[bytes + (size_t)i] != 0xA5) return false;
    return true;
}

static void begin(lk__op op)
{
    t.op = op;
    t.attrs = (lk__op_attrs){0};
    t.step = (lk__kernel_step){.step = 1, .seed = 7, .rate = 0.01, .updates_buffers = true};
    t.inputs = t.outputs = 0;
    t.in_place = 0;
    t.scale = t.terms = 0;
    t.needs_device = t.computes_f32 = false;
}

static void set_dims(lk__kernel_operand *o, lk_dtype type, int rank, const int64_t *dims)
{
    *o = (lk__kernel_operand){.dtype = type, .rank = rank};
    for (int i = 0; i < rank; i++) o->dims[i] = dims[i];
}

static size_t bytes_of(const lk__kernel_operand *o)
{
    return (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype);
}

/* An input whose values the caller sets in x[], which it returns. round_inputs() rounds them to the type. */
static double *in(lk_dtype type, int rank, const int64_t *dims)
{
    int                 k = t.inputs++;
    lk__kernel_operand *o = &t.in[k];
    set_dims(o, type, rank, dims);
    o->data = guarded(bytes_of(o));
    t.x[k] = malloc(((size_t)lk__operand_elements(o) + 1) * sizeof(double));
    for (int64_t i = 0, n = lk__operand_elements(o); i < n; i++) t.x[k][i] = uniform(-2, 2);
    return t.x[k];
}

static inline void no_in(void)
{
    set_dims(&t.in[t.inputs], t.real, 0, NULL);
    t.x[t.inputs++] = NULL;
}

/* An output. initial != NULL: it is updated, and starts with these values, which are copied. */
static void out(lk_dtype type, int rank, const int64_t *dims, const double *initial)
{
    int                 k = t.outputs++;
    lk__kernel_operand *o = &t.out[k];
    set_dims(o, type, rank, dims);
    size_t n = (size_t)lk__operand_elements(o);
    o->data = guarded(bytes_of(o));
    t.y[k] = calloc(n + 1, sizeof(double));
    t.initial[k] = initial ? malloc((n + 1) * sizeof(double)) : NULL;
    if (initial) memcpy(t.initial[k], initial, n * sizeof(double));
}

static inline void no_out(void)
{
    set_dims(&t.out[t.outputs], t.real, 0, NULL);
    t.initial[t.outputs] = t.y[t.outputs] = NULL;
    t.outputs++;
}

static inline double scalar_in(double value) { return in(LK_F64, 0, NULL)[0] = value; }

/* Rounds the inputs to their types: the values that the kernel reads and that a reference must use. */
static void round_inputs(void)
{
    for (int k = 0; k < t.inputs; k++) {
        for (int64_t i = 0, n = lk__operand_elements(&t.in[k]); t.in[k].data && i < n; i++) {
            put(t.in[k].dtype, t.in[k].data, i, t.x[k][i]);
            t.x[k][i] = get(t.in[k].dtype, t.in[k].data, i);
        }
    }
    for (int k = 0; k < t.outputs; k++) {
        for (int64_t i = 0, n = lk__operand_elements(&t.out[k]); t.initial[k] && i < n; i++) {
            put(t.out[k].dtype, t.out[k].data, i, t.initial[k][i]);
            t.initial[k][i] = get(t.out[k].dtype, t.out[k].data, i);
        }
    }
}

/* Whether instructions multiply bf16 here. Attention then rounds probabilities and gradients of scores to it. */
static inline bool multiplies_bf16(void) { return t.real == LK_BF16 && !kernel_device && lk__isa_extended(t.isa); }
static bool        rounds_on_the_way(void)
{
    /* linear_cross_entropy rounds the gradients of the logits to bf16. */
    if (t.op == LK__OP_linear_cross_entropy) return true;
    return multiplies_bf16() && (t.op == LK__OP_attention || t.op == LK__OP_attention_grad);
}

static const char *cpu_isa(void) { return kernel_device ? lk_context_isa(contexts[0]) : t.isa; }

/* The CPU's kernel: there is one for every type in which the operation computes, on every device; else NULL. */
static const lk__kernel_entry *cpu_entry(void) { return lk__cpu_kernel(t.real, cpu_isa(), t.op); }

/* One run with fresh outputs; out[0] is alias when that is not NULL. On a device, buffers are at other alignments in
 * every second run. */
static void run_once(int threads, void *alias)
{
    const lk__kernel_entry *entry = cpu_entry();
    lk__kernel_call         call = {.attrs = &t.attrs, .inputs = t.inputs, .outputs = t.outputs, .step = &t.step};
    memcpy(call.in, t.in, sizeof call.in);
    memcpy(call.out, t.out, sizeof call.out);
    call.pool = lk__context_pool(contexts[threads - 1]);
    t.invalid = (lk__kernel_invalid_id){.found = false};
    call.invalid = &t.invalid;
    for (int k = 0; k < t.outputs; k++) {
        if (!t.out[k].data) continue;
        memset(t.out[k].data, 0xA5, bytes_of(&t.out[k]) + GUARD);
        for (int64_t i = 0, n = lk__operand_elements(&t.out[k]); t.initial[k] && i < n; i++)
            put(t.out[k].dtype, t.out[k].data, i, t.initial[k][i]);
    }
    if (t.on_device) {
        if (alias) call.out[0].data = alias;
        const char *wrong = run_on_device(t.op, t.real, &call, NULL, threads % 2 == 0);
        if (wrong) fail_case(wrong);
        for (int k = 0; k < t.outputs; k++)
            if (t.out[k].data && !guard_holds(t.out[k].data, bytes_of(&t.out[k]))) fail_case("wrote past an output");
        return;
    }
    size_t bytes = entry->workspace ? entry->workspace(&call, threads) : 0;
    call.workspace = guarded(bytes);
    if (alias) call.out[0].data = alias;
    entry->run(&call);
    kernel_ran[t.real][t.op] |= !kernel_device;
    if (!guard_holds(call.workspace, bytes)) fail_case("wrote past its workspace");
    for (int k = 0; k < t.outputs; k++)
        if (t.out[k].data && !guard_holds(t.out[k].data, bytes_of(&t.out[k]))) fail_case("wrote past an output");
    free(call.workspace);
}

/* A copy of its own for an operand, f32 where it was bf16, with these values; NULL: poison. */
static void widen(lk__kernel_operand *o, const double *values)
{
    if (o->dtype == LK_BF16) o->dtype = LK_F32;
    if (!o->data) return;
    o->data = guarded(bytes_of(o));
    for (int64_t i = 0, n = lk__operand_elements(o); values && i < n; i++) put(o->dtype, o->data, i, values[i]);
}

/* Whether a bf16 kernel's number is the f32 kernel's, rounded once. The two are builds of one source, in which the
 * compiler may contract other multiplications with additions: a number may then be rounded to the other side where it
 * is near the middle of two, and wide ones differ in their last bits. */
static bool is_rounded(lk_dtype type, double got, double value, double largest)
{
    char buffer[sizeof(double)];
    put(type, buffer, 0, value);
    double rounded = get(type, buffer, 0);
    if (isnan(rounded) ? isnan(got) : rounded == got && signbit(rounded) == signbit(got)) return true;
    if (fabs(got - value) <= 0x1p-20 * largest) return true; /* what is left of terms that cancel, too */
    if (type != LK_BF16) return false;
    double apart = fabs(got - rounded), middle = 0.5 * (got + rounded);
    return apart <= 0x1p-7 * fabs(rounded) && fabs(value - middle) <= 0x1p-6 * apart;
}

/* Runs the f32 kernel on the numbers of a bf16 case, whose outputs have been computed: they must be the f32 kernel's,
 * rounded once. */
static void compare_with_f32(void)
{
    kernel_case narrow = t;
    t.real = LK_F32;
    for (int k = 0; k < t.inputs; k++) widen(&t.in[k], t.x[k]);
    for (int k = 0; k < t.outputs; k++) widen(&t.out[k], NULL);
    run_once(1, NULL);
    kernel_case wide = t;
    t = narrow;
    for (int k = 0; k < t.outputs; k++) {
        lk_dtype type = t.out[k].dtype;
        char     text[128];
        double   largest = t.terms;
        int64_t  n = t.out[k].data ? lk__operand_elements(&t.out[k]) : 0;
        for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(get(wide.out[k].dtype, wide.out[k].data, i)));
        for (int64_t i = 0; i < n; i++) {
            double value = get(wide.out[k].dtype, wide.out[k].data, i), got = get(type, t.out[k].data, i);
            if (is_rounded(type, got, value, largest)) continue;
            snprintf(text, sizeof text, "output %d [%lld] is %.9g; the f32 kernel gives %.9g", k, (long long)i, got,
                     value);
            fail_case(text);
            break;
        }
    }
    for (int k = 0; k < t.inputs; k++) free(wide.in[k].data);
    for (int k = 0; k < t.outputs; k++) free(wide.out[k].data);
}

/* Instructions in C have the bits of the machine's, where it has them. An operation that computes in f32 as well is
 * compared where both sets extend the same one, whose vectors and fused products are then theirs. */
static void compare_with_instructions(void *const *first)
{
    const char *emulated = t.isa, *end = strstr(t.isa, "_emulated");
    char        name[40];
    if (!end) return;
    snprintf(name, sizeof name, "%.*s", (int)(end - t.isa), t.isa);
    if (!lk__isa_available(name)) return;
    if (t.computes_f32 && strcmp(lk__isa_extended(name), lk__isa_extended(emulated)) != 0) return;
    t.isa = name;
    run_once(1, NULL);
    t.isa = emulated;
    for (int k = 0; k < t.outputs; k++)
        if (t.out[k].data && memcmp(first[k], t.out[k].data, bytes_of(&t.out[k])) != 0)
            fail_case("the instructions give other bits");
}

/* Whether the kernel has changed an input. */
static bool is_updated(int k)
{
    for (int64_t i = 0, n = lk__operand_elements(&t.in[k]); t.in[k].data && i < n; i++) {
        double now = get(t.in[k].dtype, t.in[k].data, i);
        if (now != t.x[k][i] && !isnan(now)) return true;
    }
    return false;
}

/* The factors of the operation, on the case that has run. */
static void check_case_parts(void)
{
    lk__kernel_call call = {.attrs = &t.attrs, .inputs = t.inputs, .outputs = t.outputs, .step = &t.step};
    parts_case      k = {.op = t.op, .real = t.real, .call = &call, .terms = t.terms, .isa = cpu_isa()};
    char            text[PARTS_TEXT];
    memcpy(call.in, t.in, sizeof call.in);
    memcpy(call.out, t.out, sizeof call.out);
    for (int i = 0; i < t.outputs; i++) k.initial[i] = t.initial[i];
    for (int i = 0; i < t.inputs; i++) k.before[i] = is_updated(i) ? t.x[i] : NULL;
    k.pool = lk__context_pool(contexts[0]);
    if (!kernel_device && strcmp(t.isa, lk_context_isa(contexts[0])) != 0) return; /* the best one */
    if (!check_parts(&k, text))
        fail_case(text);
    else
        try_mutants(&k);
}

/* As run_case, where the case before, whose results are compared with these, was computed. */
static void run_case_there(void)
{
    void *first[LK__MAX_OUT] = {0};
    t.skipped = !cpu_entry() || (t.needs_device && !t.on_device);
    round_inputs();
    if (t.skipped) return;
    cases++;
    run_once(1, NULL);
    for (int k = 0; k < t.outputs; k++) {
        size_t bytes = bytes_of(&t.out[k]);
        if (!t.out[k].data) continue;
        first[k] = malloc(bytes + 1);
        memcpy(first[k], t.out[k].data, bytes);
        for (int64_t i = 0, n = lk__operand_elements(&t.out[k]); i < n; i++)
            t.y[k][i] = get(t.out[k].dtype, t.out[k].data, i);
    }
    if (t.real == LK_BF16 && !kernel_device && t.op != LK__OP_cast && !rounds_on_the_way()) compare_with_f32();
    if (multiplies_bf16() && rounds_on_the_way()) compare_with_instructions(first);
    for (int threads = 2; threads <= (kernel_device ? 2 : POOLS); threads++) {
        run_once(threads, NULL);
        for (int k = 0; k < t.outputs; k++)
            if (t.out[k].data && memcmp(first[k], t.out[k].data, bytes_of(&t.out[k])) != 0)
                fail_case(kernel_device ? "a second run gives other bits" : "the number of threads changes bits");
    }
    check_case_parts();
    for (int k = 0; k < t.inputs; k++) {
        size_t bytes = bytes_of(&t.in[k]);
        if (!(t.in_place & 1u << k) || bytes != bytes_of(&t.out[0])) continue;
        void *kept = malloc(bytes + 1);
        memcpy(kept, t.in[k].data, bytes);
        run_once(2, t.in[k].data);
        if (memcmp(first[0], t.in[k].data, bytes) != 0) fail_case("in place changes bits");
        if (!guard_holds(t.in[k].data, bytes)) fail_case("in place wrote past the end");
        memcpy(t.in[k].data, kept, bytes);
        free(kept);
    }
    for (int k = 0; k < t.inputs; k++)
        if (t.in[k].data && !guard_holds(t.in[k].data, bytes_of(&t.in[k]))) fail_case("wrote past an input");
    for (int k = 0; k < t.outputs; k++) free(first[k]);
}

/* Runs with 1 thread, keeps the results in t.y, then requires the same bits of 2 and 3 threads and in place. An
 * operation without a bf16 kernel is skipped: expect does nothing then. */
static void run_case(void)
{
    t.on_device = runs_on_device(t.op, t.real, t.in, t.inputs, t.out, t.outputs);
    run_case_there();
}

/* Output k equals want to a relative tolerance, of each element, of the array's root mean square or of t.scale. NaN and
 * infinity must be the same. In f64 the tolerance is 1e-7 of what it is in f32; what is stored in bf16 may in addition
 * be rounded once. */
static inline void expect(int k, const double *want, double tolerance)
{
    int64_t n = lk__operand_elements(&t.out[k]);
    double  squares = 0, limit = t.real == LK_F64 ? tolerance * 1e-7 : tolerance;
    double  rounding = t.out[k].dtype == LK_BF16 ? 0x1p-8 : 0;
    /* On a device, attention multiplies probabilities and gradients of scores that were rounded to bf16. */
    bool   rounds = kernel_device && (t.op == LK__OP_attention || t.op == LK__OP_attention_grad);
    double inner = rounds ? rounding : 0;
    char   text[128];
    if (t.skipped) return;
    for (int64_t i = 0; i < n; i++) squares += isfinite(want[i]) ? want[i] * want[i] : 0;
    double scale = fmax(t.scale, n ? sqrt(squares / (double)n) : 0);
    for (int64_t i = 0; i < n; i++) {
        double got = t.y[k][i], error = fabs(got - want[i]);
        bool   same = isnan(want[i])   ? isnan(got)
                      : isinf(want[i]) ? got == want[i]
                                       : error <= limit * fmax(fabs(want[i]), scale) + rounding * fabs(want[i]) +
                                                    (inner > 0 ? inner * scale : 0);
        if (same) continue;
        snprintf(text, sizeof text, "output %d [%lld] is %.9g, not %.9g", k, (long long)i, got, want[i]);
        fail_case(text);
        return;
    }
}

/* Output k equals want, each element to `roundings` roundings of size[i]: the sum of the magnitudes of the terms that
 * the element is computed from, which may cancel. What is stored in bf16 may in addition be rounded once. */
static inline void expect_within(int k, const double *want, const double *size, double roundings)
{
    double unit = t.real == LK_F64 ? 0x1p-53 : 0x1p-24, rounding = t.out[k].dtype == LK_BF16 ? 0x1p-8 : 0;
    char   text[128];
    for (int64_t i = 0, n = lk__operand_elements(&t.out[k]); !t.skipped && i < n; i++) {
        double got = t.y[k][i];
        if (fabs(got - want[i]) <= roundings * unit * size[i] + rounding * fabs(want[i])) continue;
        snprintf(text, sizeof text, "output %d [%lld] is %.9g, not %.9g (terms of %.3g)", k, (long long)i, got, want[i],
                 size[i]);
        fail_case(text);
        return;
    }
}

/* Output k is within bound[i] of want[i]. What is stored in bf16 may in addition be rounded once. */
static inline void expect_bound(int k, const double *want, const double *bound)
{
    double rounding = t.out[k].dtype == LK_BF16 ? 0x1p-8 : 0;
    char   text[128];
    for (int64_t i = 0, n = lk__operand_elements(&t.out[k]); !t.skipped && i < n; i++) {
        if (fabs(t.y[k][i] - want[i]) <= bound[i] + rounding * (fabs(want[i]) + bound[i])) continue;
        snprintf(text, sizeof text, "output %d [%lld] is %.9g, not %.9g within %.3g", k, (long long)i, t.y[k][i],
                 want[i], bound[i]);
        fail_case(text);
        return;
    }
}

/* What rounding may change a sum of n products by, in roundings of the sum of their magnitudes: n at worst. Errors of
 * any sign stay below 4 √n even where all terms have one sign and partial sums are as large as can be, save with a
 * probability of 2 e^-8 (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019, theorem 2.4);
 * where terms have either sign, partial sums are smaller by the square root of their number. */
static inline double sum_roundings(int64_t n) { return fmin((double)n, 4 * sqrt((double)n)); }

static void end_case(void)
{
    for (int k = 0; k < t.inputs; k++) free(t.in[k].data), free(t.x[k]);
    for (int k = 0; k < t.outputs; k++) free(t.out[k].data), free(t.y[k]), free(t.initial[k]);
}

static inline double *zeros(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof(double));
    if (!p) abort();
    return p;
}

static void run_each_type(void (*tests)(void), lk_dtype first, lk_dtype last)
{
    for (t.real = first; t.real <= last; t.real++) {
        t.wide = t.real == LK_F64 ? LK_F64 : LK_F32;
        tests();
    }
}

/* The smallest position whose id is out of range is reported, for any number of threads; -1: none is. */
static inline void expect_invalid(int64_t position, int operand, int32_t value, int64_t limit)
{
    const lk__kernel_invalid_id *got = &t.invalid;
    bool                         right = got->found == (position >= 0);
    if (position >= 0 && right)
        right = got->op == t.op && got->at == (const int32_t *)t.in[operand].data + position && got->value == value &&
                got->limit == limit;
    if (!right && !t.skipped) fail_case("reports another id as out of range");
}

/* Runs `tests` for each instruction set, or for the device, and each type up to `last`: f32, f64, bf16. Returns the
 * program's exit status. */
static int run_types(void (*tests)(void), lk_dtype last)
{
    for (int i = 0; i < POOLS; i++) {
        lk_context_config config = LK_CONTEXT_CONFIG_INIT;
        config.threads = i + 1;
        if (lk_context_create(&config, &contexts[i]) != LK_OK) {
            fprintf(stderr, "FAIL %s\n", lk_context_error(NULL));
            return 1;
        }
    }
    open_kernel_device(contexts[0]);
    if (kernel_device) {
        t.isa = kernel_device->backend->name;
        run_each_type(tests, LK_F32, last);
    }
    for (const char *const *isa = tested_isas(); *isa && !kernel_device; isa++) {
        t.isa = *isa;
        if (lk__isa_available(t.isa) && lk__cpu_kernels(LK_F32, t.isa))
            run_each_type(tests, first_tested_type(t.isa), last);
    }
    list_kernels_ran(__BASE_FILE__);
    list_mutants_tried(__BASE_FILE__);
    close_kernel_device();
    for (int i = 0; i < POOLS; i++) lk_context_free(contexts[i]);
    printf("%d cases, %d failures\n", cases, failures);
    return failures || !cases;
}

static inline int run_all(void (*tests)(void)) { return run_types(tests, LK_F64); }

#define DIMS(...) \
    (const int64_t[]) { __VA_ARGS__ }
#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
