/* test_kernels_bf16.c - bf16 itself: conversion in vectors and one by one, casts between all types, and the copy of a
 * parameter that optimizers store. What those kernels compute is compared in the other files test_kernels*.c, with the
 * same loops in double as f32 and f64.
 *
 * ctest: timeout 300, label threaded */
#include "kernel_case.h"

#include "base/tree.h"

/* The bf16 nearest to x, ties to even, by arithmetic on doubles: 8 binary digits, fewer below 2^-126. */
static double nearest_bf16(double x)
{
    int exponent;
    if (x == 0 || isnan(x) || isinf(x)) return x;
    frexp(x, &exponent); /* |x| is from 2^(exponent - 1) to 2^exponent */
    double unit = ldexp(1, (exponent > -125 ? exponent : -125) - 8);
    double y = nearbyint(x / unit) * unit;
    return fabs(y) > 0x1.FEp127 ? copysign(INFINITY, x) : y;
}

static bool same_number(double a, double b) { return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b); }

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int64_t add_neighbours(double *to, uint16_t high)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (size_t i = 0; i < COUNT(low); i++) to[i] = (double)float_of((uint32_t)high << 16 | low[i]);
    return COUNT(low);
}

/* Every bf16, and the f32 at and next to the middle between it and its neighbour. */
enum { HALVES = 65536, FLOATS = HALVES * 6 };
static double every_bf16[HALVES], floats_about_ties[FLOATS];

static void list_values(void)
{
    for (int64_t i = 0, n = 0; i < HALVES; i++) {
        every_bf16[i] = (double)lk__from_bf16((lk__bf16){(uint16_t)i});
        n += add_neighbours(floats_about_ties + n, (uint16_t)i);
    }
}

static void one_number_is_rounded_to_nearest_even(void)
{
    for (int64_t i = 0; i < HALVES; i++) {
        lk__bf16 x = {(uint16_t)i};
        lk__bf16 back = lk__to_bf16(lk__from_bf16(x));
        if (isnan(every_bf16[i]) ? back.bits != (x.bits | 0x40) : back.bits != x.bits) fail_case("bf16 → f32 → bf16");
    }
    for (int64_t i = 0; i < FLOATS; i++) {
        double y = (double)lk__from_bf16(lk__to_bf16((float)floats_about_ties[i]));
        if (!same_number(y, nearest_bf16(floats_about_ties[i]))) fail_case("f32 → bf16");
    }
}

/* The f32 kernel of sgd with a rate of 0 stores its parameter in whole vectors and, at the end, in part of one. */
static void vectors_are_rounded_as_one_number_is(void)
{
    if (t.real != LK_F32) return;
    for (int64_t shift = 0; shift < 3; shift++) {
        int64_t n = FLOATS - shift;
        begin(LK__OP_sgd);
        t.step.rate = 0;
        memset(in(LK_F32, 1, DIMS(n)), 0, (size_t)n * sizeof(double));
        scalar_in(1);
        out(LK_F32, 1, DIMS(n), floats_about_ties + shift);
        no_out();
        out(LK_BF16, 1, DIMS(n), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++)
            if (!same_number(t.y[2][i], nearest_bf16(t.y[0][i]))) {
                fail_case("a vector of f32 → bf16");
                break;
            }
        end_case();
    }
}

/* ---- cast ---- */

static double range_of(lk_dtype type)
{
    return type == LK_U8 ? 255 : type == LK_I32 ? 2147483647 : type == LK_I64 ? 0x1p52 : 1e6;
}

static double converted(double x, lk_dtype to)
{
    if (to == LK_F64) return x;
    return to == LK_F32 ? (double)(float)x : nearest_bf16((double)(float)x);
}

static void cast_case(lk_dtype from, lk_dtype to, int64_t n)
{
    bool    real = from == LK_F32 || from == LK_F64 || from == LK_BF16;
    double *want = zeros(n);
    begin(LK__OP_cast);
    double *x = in(from, 1, DIMS(n));
    for (int64_t i = 0; i < n; i++) {
        x[i] = uniform(from == LK_U8 ? 0 : -range_of(from), range_of(from));
        if (!real) x[i] = floor(x[i]);
    }
    out(to, 1, DIMS(n), NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) want[i] = converted(t.x[0][i], to);
    for (int64_t i = 0; i < n; i++)
        if (!same_number(t.y[0][i], want[i])) {
            fail_case("cast");
            break;
        }
    end_case();
    free(want);
}

static void cast_values_case(const double *values, int64_t n, lk_dtype from, lk_dtype to)
{
    begin(LK__OP_cast);
    memcpy(in(from, 1, DIMS(n)), values, (size_t)n * sizeof *values);
    out(to, 1, DIMS(n), NULL);
    run_case();
    for (int64_t i = 0; i < n; i++)
        if (!same_number(t.y[0][i], converted(values[i], to))) {
            fail_case("cast of every value");
            break;
        }
    end_case();
}

static void cast_converts_every_type(void)
{
    static const lk_dtype from[] = {LK_BF16, LK_F32, LK_F64, LK_I32, LK_I64, LK_U8}, to[] = {LK_BF16, LK_F32, LK_F64};
    static const int64_t  sizes[] = {0, 1, 3, 4, 5, 8, 9, 16, 17, 33, 1009, 40009};
    for (size_t i = 0; i < COUNT(from); i++)
        for (size_t j = 0; j < COUNT(to); j++)
            for (size_t s = 0; s < COUNT(sizes); s++) cast_case(from[i], to[j], sizes[s]);
    cast_values_case(every_bf16, HALVES, LK_BF16, LK_F32);
    cast_values_case(every_bf16, HALVES, LK_BF16, LK_F64);
    cast_values_case(every_bf16, HALVES, LK_F32, LK_BF16);
    cast_values_case(floats_about_ties, FLOATS, LK_F32, LK_BF16);
    cast_values_case(floats_about_ties, FLOATS, LK_F64, LK_BF16);
}

/* ---- the copy that optimizers store ---- */

static void stored_case(lk__op op, int64_t n, double momentum)
{
    begin(op);
    t.attrs = (lk__op_attrs){.momentum = momentum, .lr_scale = 1};
    if (op != LK__OP_sgd)
        t.attrs = (lk__op_attrs){.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .alpha = 0.9, .lr_scale = 1};
    double *initial = zeros(n), *none = zeros(n);
    for (int64_t i = 0; i < n; i++) initial[i] = uniform(-2, 2);
    in(t.real, 1, DIMS(n));
    scalar_in(1);
    out(t.real, 1, DIMS(n), initial);
    if (op != LK__OP_sgd || momentum != 0)
        out(t.real, 1, DIMS(n), none);
    else
        no_out();
    if (op == LK__OP_adam) out(t.real, 1, DIMS(n), none);
    if (op == LK__OP_rmsprop) no_out(), no_out(); /* neither centered nor with momentum */
    out(LK_BF16, 1, DIMS(n), NULL);
    run_case();
    bool moved = n == 0;
    for (int64_t i = 0; i < n; i++) {
        moved |= t.y[0][i] != initial[i];
        if (same_number(t.y[t.outputs - 1][i], nearest_bf16((double)(float)t.y[0][i]))) continue;
        fail_case("the stored copy is not the updated parameter rounded");
        break;
    }
    if (!moved) fail_case("nothing was updated");
    end_case();
    free(initial), free(none);
}

static void optimizers_store_the_updated_parameter(void)
{
    static const int64_t sizes[] = {0, 1, 3, 4, 5, 8, 9, 17, 1009, 40009};
    if (t.real == LK_BF16) return; /* parameters that are updated are f32 or f64 */
    for (size_t s = 0; s < COUNT(sizes); s++) {
        stored_case(LK__OP_sgd, sizes[s], 0);
        stored_case(LK__OP_sgd, sizes[s], 0.9);
        stored_case(LK__OP_adam, sizes[s], 0);
        stored_case(LK__OP_lion, sizes[s], 0);
        stored_case(LK__OP_rmsprop, sizes[s], 0);
        stored_case(LK__OP_adagrad, sizes[s], 0);
    }
}

/* ---- leaves ---- */

/* The weight gradient with leaves: dw, then db, on bf16 or on the same numbers in f32. leaves 0: of the rows from
 * leaf_rows[0] to leaf_rows[1], without leaves. */
static void leaves_run(lk_dtype real, int64_t rows, int64_t inputs, int64_t outputs, const int64_t *leaf_rows,
                       int leaves, int threads, float *dw, float *db)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(real, t.isa, LK__OP_linear_grad_weight);
    lk__kernel_leaves       split = {leaves, leaf_rows, guarded((size_t)threads * lk__kernel_leaves_bytes())};
    lk__op_attrs            attrs = {0};
    lk__kernel_call         call = {.attrs = &attrs, .inputs = 2, .outputs = 2, .leaves = &split};
    set_dims(&call.in[0], real, 2, DIMS(rows, inputs));
    set_dims(&call.in[1], real, 2, DIMS(rows, outputs));
    set_dims(&call.out[0], LK_F32, 2, DIMS(outputs, inputs));
    set_dims(&call.out[1], LK_F32, 1, DIMS(outputs));
    random_state = 88172645463325252u; /* the same numbers each time */
    for (int k = 0; k < 2; k++) {
        int64_t n = lk__operand_elements(&call.in[k]);
        call.in[k].data = guarded(bytes_of(&call.in[k]));
        for (int64_t i = 0; i < n; i++) put(real, call.in[k].data, i, nearest_bf16(uniform(-2, 2)));
    }
    void *data[2] = {call.in[0].data, call.in[1].data};
    for (int k = 0; k < 2 && leaves == 0; k++) {
        call.leaves = NULL;
        call.in[k].dims[0] = leaf_rows[1] - leaf_rows[0];
        call.in[k].data = (char *)data[k] + (size_t)(leaf_rows[0] * call.in[k].dims[1]) * lk_dtype_size(real);
    }
    call.out[0].data = dw, call.out[1].data = db;
    call.pool = lk__context_pool(contexts[threads - 1]);
    size_t bytes = entry->workspace(&call, threads);
    call.workspace = guarded(bytes);
    entry->run(&call);
    if (!guard_holds(call.workspace, bytes)) fail_case("leaves: wrote past its workspace");
    free(call.workspace), free(split.sums), free(data[0]), free(data[1]);
}

/* The same leaf by leaf, each without leaves, added in the pairwise tree: where f32 has other bits. */
static void add_leaves(int64_t rows, int64_t inputs, int64_t outputs, const int64_t *leaf_rows, int leaves, float *dw,
                       float *db)
{
    size_t n = (size_t)(outputs * inputs), all = n + (size_t)outputs;
    float *stack = malloc(((size_t)leaves + 1) * all * sizeof *stack);
    int    depth = 0;
    for (int leaf = 0; leaf < leaves; leaf++) {
        float *top = stack + (size_t)depth++ * all;
        leaves_run(LK_BF16, rows, inputs, outputs, leaf_rows + leaf, 0, 1, top, top + n);
        for (int merges = lk__tree_merges(leaf, leaves); merges > 0; merges--, depth--) {
            float *to = stack + (size_t)(depth - 2) * all;
            for (size_t i = 0; i < all; i++) to[i] += to[all + i];
        }
    }
    memcpy(dw, stack, n * sizeof *dw);
    memcpy(db, stack + n, (all - n) * sizeof *db);
    free(stack);
}

static void leaves_are_added_in_the_tree(void)
{
    static const int64_t splits[][6] = {{0, 7}, {0, 300, 600}, {0, 0, 5, 5, 9, 11}, {0, 1, 2, 3, 4, 5}};
    static const int     counts[] = {1, 2, 5, 5};
    static const int64_t sizes[][2] = {{1, 1}, {17, 5}, {70, 130}, {33, 600}, {10, 1500}};
    if (t.real != LK_BF16) return;
    t.op = LK__OP_linear_grad_weight;
    t.inputs = t.outputs = 0;
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t i = 0; i < COUNT(counts); i++) {
            int64_t rows = splits[i][counts[i]], outputs = sizes[s][0], inputs = sizes[s][1];
            size_t  n = (size_t)(outputs * inputs), bytes = (n + (size_t)outputs) * sizeof(float);
            float  *want = malloc(bytes), *got = malloc(bytes);
            if (lk__isa_extended(t.isa))
                add_leaves(rows, inputs, outputs, splits[i], counts[i], want, want + n);
            else
                leaves_run(LK_F32, rows, inputs, outputs, splits[i], counts[i], 1, want, want + n);
            for (int threads = 1; threads <= POOLS; threads++) {
                leaves_run(LK_BF16, rows, inputs, outputs, splits[i], counts[i], threads, got, got + n);
                if (memcmp(want, got, bytes) != 0) fail_case("leaves are added otherwise");
                cases++;
            }
            free(want), free(got);
        }
}

static void tests(void)
{
    one_number_is_rounded_to_nearest_even();
    vectors_are_rounded_as_one_number_is();
    cast_converts_every_type();
    optimizers_store_the_updated_parameter();
    if (kernel_device) {
        printf("skipped: leaves, of the CPU\n");
        return;
    }
    leaves_are_added_in_the_tree();
}

int main(void)
{
    list_values();
    return run_types(tests, LK_BF16);
}
