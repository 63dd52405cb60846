/* test_kernels.c - elementwise kernels, softmax, reductions and data movement against naive loops in double, and the
 * vector functions of vmath.h against the C library over the whole range of floats.
 *
 * ctest: label threaded */
#define LK_ELEMENT f32
#define LK_ISA test
#include "device/cpu/vmath.h"

#include "kernel_case.h"

/* ---- binary ---- */

static int64_t at_broadcast(const lk__kernel_operand *x, const lk__kernel_operand *y, int64_t flat)
{
    int64_t at = 0, step = 1;
    for (int axis = y->rank - 1; axis >= 0; axis--) {
        int64_t index = flat % y->dims[axis];
        int     own = axis - (y->rank - x->rank);
        flat /= y->dims[axis];
        if (own < 0) continue;
        if (x->dims[own] != 1) at += index * step;
        step *= x->dims[own];
    }
    return at;
}

static double apply(lk__op op, double a, double b)
{
    return op == LK__OP_add ? a + b : op == LK__OP_sub ? a - b : op == LK__OP_mul ? a * b : a / b;
}

static void binary_case(lk__op op, int a_rank, const int64_t *a_dims, int b_rank, const int64_t *b_dims)
{
    int     rank = a_rank > b_rank ? a_rank : b_rank;
    int64_t dims[LK_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int64_t a = i < rank - a_rank ? 1 : a_dims[i - (rank - a_rank)],
                b = i < rank - b_rank ? 1 : b_dims[i - (rank - b_rank)];
        dims[i] = a == 1 ? b : a;
    }
    begin(op);
    in(t.real, a_rank, a_dims);
    in(t.real, b_rank, b_dims);
    out(t.real, rank, dims, NULL);
    t.in_place = 3;
    run_case();
    int64_t n = lk__operand_elements(&t.out[0]);
    double *want = zeros(n);
    for (int64_t i = 0; i < n; i++)
        want[i] = apply(op, t.x[0][at_broadcast(&t.in[0], &t.out[0], i)], t.x[1][at_broadcast(&t.in[1], &t.out[0], i)]);
    expect(0, want, 2e-7);
    free(want);
    end_case();
}

static void binary_broadcasts_as_pytorch(void)
{
    for (int op = LK__OP_add; op <= LK__OP_div; op++) {
        for (int64_t n = 0; n < 20; n++) binary_case(op, 1, DIMS(n), 1, DIMS(n));
        binary_case(op, 0, NULL, 0, NULL);
        binary_case(op, 2, DIMS(101, 401), 2, DIMS(101, 401));
        binary_case(op, 2, DIMS(101, 401), 0, NULL);
        binary_case(op, 0, NULL, 2, DIMS(3, 5));
        binary_case(op, 2, DIMS(1009, 37), 1, DIMS(37));
        binary_case(op, 1, DIMS(37), 2, DIMS(1009, 37));
        binary_case(op, 2, DIMS(37, 1009), 2, DIMS(37, 1));
        binary_case(op, 2, DIMS(7, 1), 2, DIMS(1, 9));
        binary_case(op, 4, DIMS(2, 3, 5, 7), 4, DIMS(1, 3, 1, 1));
        binary_case(op, 4, DIMS(2, 3, 5, 7), 3, DIMS(3, 1, 7));
        binary_case(op, 4, DIMS(1, 3, 1, 7), 4, DIMS(2, 1, 5, 1));
        binary_case(op, 6, DIMS(2, 1, 3, 1, 2, 5), 6, DIMS(1, 3, 1, 2, 2, 1));
        binary_case(op, 2, DIMS(0, 5), 1, DIMS(5));
        binary_case(op, 2, DIMS(5, 0), 2, DIMS(5, 1));
    }
}

/* ---- unary ---- */

/* By the attributes that t has. */
static double unary_value(lk__op_unary unary, double x)
{
    switch (unary) {
    case LK__IDENTITY: return x;
    case LK__RELU: return x > 0 ? x : 0;
    case LK__GELU: return 0.5 * x * erfc(-x / sqrt(2));
    case LK__GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case LK__SILU: return x / (1 + exp(-x));
    case LK__SIGMOID: return 1 / (1 + exp(-x));
    case LK__TANH: return tanh(x);
    case LK__EXP: return exp(x);
    case LK__LOG: return log(x);
    case LK__SQRT: return sqrt(x);
    case LK__POW: return pow(x, t.attrs.exponent);
    case LK__CLAMP: return fmin(fmax(x, t.attrs.minimum), t.attrs.maximum);
    case LK__LEAKY_RELU: return x > 0 ? x : x * t.attrs.slope;
    default: return NAN; /* of a function that is not in the list below */
    }
}

/* The functions, with attributes: an exponent, bounds, a slope. */
static const struct function {
    lk__op_unary unary;
    double       a, b;
    bool         positive; /* defined or smooth only above 0 */
} functions[] = {
    {LK__IDENTITY, 0, 0, false},  {LK__RELU, 0, 0, false},         {LK__GELU, 0, 0, false},
    {LK__GELU_TANH, 0, 0, false}, {LK__SILU, 0, 0, false},         {LK__SIGMOID, 0, 0, false},
    {LK__TANH, 0, 0, false},      {LK__EXP, 0, 0, false},          {LK__LOG, 0, 0, true},
    {LK__SQRT, 0, 0, true},       {LK__POW, 2.5, 0, true},         {LK__POW, -0.75, 0, true},
    {LK__POW, 3, 0, false},       {LK__POW, -1, 0, true},          {LK__POW, 2, 0, false},
    {LK__POW, 1, 0, false},       {LK__POW, 0, 0, false},          {LK__POW, -4, 0, true},
    {LK__CLAMP, -1, 2.5, false},  {LK__CLAMP, 0, INFINITY, false}, {LK__CLAMP, -INFINITY, 1, false},
    {LK__CLAMP, 2, -1, false},    {LK__LEAKY_RELU, 0.1, 0, false}, {LK__LEAKY_RELU, -2, 0, false},
};

static void begin_function(lk__op op, const struct function *f)
{
    begin(op);
    t.attrs.unary = f->unary;
    if (f->unary == LK__POW) t.attrs.exponent = f->a;
    if (f->unary == LK__CLAMP) t.attrs.minimum = f->a, t.attrs.maximum = f->b;
    if (f->unary == LK__LEAKY_RELU) t.attrs.slope = f->a;
    t.in_place = 1;
    t.scale = 1; /* gelu is 0.5 x (1 + erf): exact to the last place of 1, as PyTorch's */
}

/* By central differences of the value in long steps of Richardson's rule: independent of any formula. */
static double unary_slope(lk__op_unary unary, double x)
{
    double h = 1e-2, d[4];
    if (unary == LK__RELU) return x > 0;
    if (unary == LK__CLAMP) return x >= t.attrs.minimum && x <= t.attrs.maximum;
    if (unary == LK__LEAKY_RELU) return x > 0 ? 1 : t.attrs.slope;
    for (int k = 0; k < 4; k++, h /= 2) d[k] = (unary_value(unary, x + h) - unary_value(unary, x - h)) / (2 * h);
    for (int level = 1; level < 4; level++)
        for (int k = 3; k >= level; k--) d[k] += (d[k] - d[k - 1]) / (pow(4, level) - 1);
    return d[3];
}

/* Where the saved result is rounded to bf16, the slope is that at the rounded result. */
static double slope_from_result(lk__op_unary unary, double y)
{
    switch (unary) {
    case LK__SIGMOID: return (1 - y) * y;
    case LK__TANH: return 1 - y * y;
    case LK__EXP: return y;
    case LK__SQRT: return 0.5 / y;
    default: return y > 0; /* relu */
    }
}

static void unary_case(const struct function *f, int64_t n)
{
    double *want = zeros(n);
    begin_function(LK__OP_unary, f);
    double *x = in(t.real, 1, DIMS(n));
    for (int64_t i = 0; i < n; i++) x[i] = f->positive ? fabs(3 * x[i]) + 0.5 : 3 * x[i];
    out(t.real, 1, DIMS(n), NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) want[i] = unary_value(f->unary, t.x[0][i]);
    expect(0, want, 5e-7);
    end_case();

    begin_function(LK__OP_unary_grad, f);
    double *dy = in(t.real, 1, DIMS(n)), *saved = in(t.real, 1, DIMS(n)), *at = zeros(n);
    bool    of_y = lk__unary_saves_result(f->unary);
    for (int64_t i = 0; i < n; i++) {
        at[i] = f->positive ? fabs(3 * saved[i]) + 0.5 : 3 * saved[i];
        saved[i] = of_y ? unary_value(f->unary, at[i]) : at[i];
    }
    out(t.real, 1, DIMS(n), NULL);
    run_case();
    for (int64_t i = 0; i < n; i++)
        want[i] = dy[i] * (of_y && t.real == LK_BF16 ? slope_from_result(f->unary, t.x[1][i])
                                                     : unary_slope(f->unary, of_y ? at[i] : t.x[1][i]));
    /* Differences are good to 1e-11, and a saved y that is rounded near 1 loses the rest of 1 - y. */
    expect(0, want, t.real == LK_F64 ? 1e-3 : 2e-6);
    free(at);
    free(want);
    end_case();
}

static void unary_and_its_gradient_agree_with_libm(void)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 1009, 40009};
    for (size_t f = 0; f < COUNT(functions); f++)
        for (size_t s = 0; s < COUNT(sizes); s++) unary_case(&functions[f], sizes[s]);
}

/* A group of vectors, single vectors and the rest of a range are different code: with --reproducible an element may be
 * in any of them. */
static void unary_bits_do_not_depend_on_the_position(void)
{
    enum { N = 167, VALUES = 40 };
    for (size_t f = 0; f < COUNT(functions); f++)
        for (int k = 0; k < VALUES; k++) {
            double value = uniform(-4, 4), slope = uniform(-2, 2);
            for (int grad = 0; grad < 2; grad++) {
                begin_function(grad ? LK__OP_unary_grad : LK__OP_unary, &functions[f]);
                double *dy = grad ? in(t.real, 1, DIMS(N)) : NULL, *x = in(t.real, 1, DIMS(N));
                for (int i = 0; i < N; i++) x[i] = functions[f].positive ? fabs(value) + 0.1 : value;
                for (int i = 0; grad && i < N; i++) dy[i] = slope;
                out(t.real, 1, DIMS(N), NULL);
                run_case();
                for (int i = 1; i < N; i++)
                    if (memcmp(&t.y[0][i], &t.y[0][0], sizeof(double)) != 0) {
                        fail_case("the same number gives other bits behind whole groups");
                        break;
                    }
                end_case();
            }
        }
}

static void unary_keeps_nan_and_infinity(void)
{
    static const double inputs[] = {NAN,   INFINITY, -INFINITY, 0.0,   -0.0,  1e-40, -1e-40,
                                    -1e30, 1e30,     88.0,      -88.0, 120.0, -120.0};
    enum { N = COUNT(inputs) };
    for (size_t f = 0; f < COUNT(functions); f++) {
        lk__op_unary unary = functions[f].unary;
        double       want[N];
        begin_function(LK__OP_unary, &functions[f]);
        t.scale = 0;
        memcpy(in(t.real, 1, DIMS(N)), inputs, sizeof inputs);
        out(t.real, 1, DIMS(N), NULL);
        run_case();
        for (int i = 0; i < N; i++) {
            double x = t.x[0][i];
            want[i] = isnan(x) && unary != LK__POW ? NAN : unary_value(unary, x);
            if (t.real != LK_F64) want[i] = (double)(float)want[i];
            /* -inf * 0 is NaN in PyTorch too; only finite x must give the limit. */
            if (isinf(x) && isnan(t.y[0][i]) && (unary == LK__GELU || unary == LK__GELU_TANH || unary == LK__SILU))
                want[i] = NAN;
            if (want[i] == 0 && unary == LK__POW && !signbit(want[i]) != !signbit(t.y[0][i])) fail_case("sign of 0");
            if (t.real != LK_F64 && fabs(want[i]) < 1e-37)
                want[i] = t.y[0][i] = fabs(t.y[0][i]) < 1e-37 ? 0 : t.y[0][i];
        }
        expect(0, want, 5e-7);
        end_case();
    }
}

static void scale_and_fill(void)
{
    static const int64_t sizes[] = {0, 1, 5, 1009, 40009};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        int64_t n = sizes[s];
        double *want = zeros(n);
        begin(LK__OP_scale);
        t.attrs.scale = -1.75;
        t.in_place = 1;
        in(t.real, 1, DIMS(n));
        out(t.real, 1, DIMS(n), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++) want[i] = t.x[0][i] * -1.75;
        expect(0, want, 2e-7);
        end_case();

        begin(LK__OP_fill);
        t.attrs.scale = 0.625;
        out(t.real, 1, DIMS(n), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++) want[i] = 0.625;
        expect(0, want, 0);
        end_case();
        free(want);
    }
}

/* ---- softmax ---- */

static void softmax_case(bool log_of, int rank, const int64_t *dims, int axis, double spread)
{
    int64_t outer = 1, inner = 1, n = dims[axis];
    for (int i = 0; i < axis; i++) outer *= dims[i];
    for (int i = axis + 1; i < rank; i++) inner *= dims[i];
    double *want = zeros(outer * n * inner);
    begin(log_of ? LK__OP_log_softmax : LK__OP_softmax);
    t.attrs.axis = axis;
    t.in_place = 1;
    double *x = in(t.real, rank, dims);
    for (int64_t i = 0; i < outer * n * inner; i++) x[i] = spread * x[i] + 30;
    out(t.real, rank, dims, NULL);
    run_case();
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            double most = -INFINITY, total = 0;
            for (int64_t k = 0; k < n; k++) most = fmax(most, t.x[0][(o * n + k) * inner + i]);
            for (int64_t k = 0; k < n; k++) total += exp(t.x[0][(o * n + k) * inner + i] - most);
            for (int64_t k = 0; k < n; k++) {
                double z = t.x[0][(o * n + k) * inner + i] - most - log(total);
                want[(o * n + k) * inner + i] = log_of ? z : exp(z);
            }
        }
    }
    expect(0, want, 1e-6);
    end_case();

    begin(log_of ? LK__OP_log_softmax_grad : LK__OP_softmax_grad);
    t.attrs.axis = axis;
    t.in_place = 1;
    in(t.real, rank, dims);
    memcpy(in(t.real, rank, dims), want, (size_t)(outer * n * inner) * sizeof(double));
    out(t.real, rank, dims, NULL);
    run_case();
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++) {
                int64_t at = (o * n + k) * inner + i;
                sum += log_of ? t.x[0][at] : t.x[0][at] * t.x[1][at];
            }
            for (int64_t k = 0; k < n; k++) {
                int64_t at = (o * n + k) * inner + i;
                want[at] = log_of ? t.x[0][at] - exp(t.x[1][at]) * sum : t.x[1][at] * (t.x[0][at] - sum);
                /* It is a difference of products of this size, and as exact as they are. */
                t.scale = fmax(t.scale,
                               log_of ? exp(t.x[1][at]) * fabs(sum) : t.x[1][at] * fmax(fabs(t.x[0][at]), fabs(sum)));
            }
        }
    }
    expect(0, want, 2e-6);
    end_case();
    free(want);
}

static void softmax_along_any_axis(void)
{
    for (int log_of = 0; log_of < 2; log_of++) {
        for (int64_t n = 1; n < 20; n++) softmax_case(log_of, 1, DIMS(n), 0, 2);
        softmax_case(log_of, 2, DIMS(3, 10), 1, 2);
        softmax_case(log_of, 2, DIMS(331, 101), 1, 5);
        softmax_case(log_of, 2, DIMS(2, 20011), 1, 2);
        softmax_case(log_of, 2, DIMS(11, 7), 0, 2);
        softmax_case(log_of, 3, DIMS(5, 13, 3), 1, 30);
        softmax_case(log_of, 3, DIMS(29, 37, 41), 1, 2);
        softmax_case(log_of, 2, DIMS(0, 5), 1, 2);
        softmax_case(log_of, 2, DIMS(5, 0), 1, 2);
        softmax_case(log_of, 2, DIMS(5, 0), 0, 2);
    }
}

/* ---- sum, expand, square_sum ---- */

static void sum_case(int rank, const int64_t *dims, uint32_t mask, bool mean, bool keep)
{
    int64_t kept[LK_MAX_RANK] = {0}, n = 1, outs = 1, added = 1;
    int     kept_rank = 0;
    for (int i = 0; i < rank; i++) {
        bool reduced = mask >> i & 1;
        n *= dims[i];
        if (reduced)
            added *= dims[i];
        else
            outs *= dims[i];
        if (!reduced || keep) kept[kept_rank++] = reduced ? 1 : dims[i];
    }
    double  *want = zeros(outs), *spread = zeros(n);
    int64_t *to = malloc((size_t)(n + 1) * sizeof *to);
    for (int64_t flat = 0; flat < n; flat++) {
        int64_t rest = flat, at = 0, step = 1;
        for (int i = rank - 1; i >= 0; rest /= dims[i--]) {
            if (mask >> i & 1) continue;
            at += rest % dims[i] * step;
            step *= dims[i];
        }
        to[flat] = at;
    }
    begin(LK__OP_sum);
    t.attrs.mask = mask;
    t.attrs.mean = mean;
    double *x = in(t.real, rank, dims);
    for (int64_t i = 0; i < n; i++) x[i] += 1;
    out(t.real, kept_rank, kept, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) want[to[i]] += t.x[0][i];
    for (int64_t i = 0; i < outs; i++) want[i] = mean ? want[i] / (double)added : want[i];
    expect(0, want, 5e-7);
    end_case();

    begin(LK__OP_expand);
    t.attrs.mask = mask;
    t.attrs.mean = mean;
    in(t.real, kept_rank, kept);
    out(t.real, rank, dims, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) spread[i] = t.x[0][to[i]] / (mean ? (double)added : 1);
    expect(0, spread, 2e-7);
    end_case();
    free(to);
    free(want);
    free(spread);
}

static void sum_over_any_axes(void)
{
    for (int mean = 0; mean < 2; mean++) {
        for (uint32_t mask = 0; mask < 16; mask++) {
            sum_case(4, DIMS(2, 3, 5, 7), mask, mean, mask & 1);
            sum_case(4, DIMS(5, 1, 19, 1), mask, mean, mask & 1);
            sum_case(4, DIMS(3, 0, 2, 1), mask, mean, false);
            sum_case(4, DIMS(13, 9, 31, 17), mask, mean, true);
        }
        sum_case(0, NULL, 0, mean, false);
        sum_case(1, DIMS(1), 1, mean, false);
        sum_case(1, DIMS(200003), 1, mean, true);
        sum_case(2, DIMS(3, 70001), 2, mean, false);
        sum_case(2, DIMS(20011, 10), 1, mean, false);
        sum_case(2, DIMS(20011, 3), 1, mean, false);
        sum_case(2, DIMS(997, 131), 1, mean, false);
        sum_case(2, DIMS(3, 40009), 1, mean, false);
        sum_case(2, DIMS(997, 131), 2, mean, false);
        sum_case(3, DIMS(71, 331, 17), 2, mean, false);
        sum_case(3, DIMS(2, 1031, 33), 2, mean, false);
        sum_case(3, DIMS(37, 41, 43), 5, mean, false);
        sum_case(6, DIMS(2, 3, 4, 3, 2, 5), 0x2a, mean, true);
        sum_case(6, DIMS(2, 3, 4, 3, 2, 5), 0x15, mean, false);
    }
    static const int64_t sizes[] = {0, 1, 3, 17, 16385, 200003};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        long double sum = 0; /* 200003 roundings of a double are more than what is allowed to the kernel */
        begin(LK__OP_square_sum);
        in(t.real, 1, DIMS(sizes[s]));
        out(LK_F64, 0, NULL, NULL);
        run_case();
        for (int64_t i = 0; i < sizes[s]; i++) sum += (long double)t.x[0][i] * t.x[0][i];
        double want = (double)sum;
        expect(0, &want, t.real == LK_F64 ? 1e-6 : 1e-13); /* in double in both */
        end_case();
    }
}

/* ---- moves ---- */

static void permute_case(lk_dtype type, int rank, const int64_t *dims, const int *axes)
{
    int64_t to[LK_MAX_RANK], step[LK_MAX_RANK], n = 1;
    for (int i = rank - 1; i >= 0; n *= dims[i--]) step[i] = n;
    for (int i = 0; i < rank; i++) to[i] = dims[axes[i]];
    begin(LK__OP_permute);
    memcpy(t.attrs.axes, axes, (size_t)rank * sizeof *axes);
    double *x = in(type, rank, dims), *want = zeros(n);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(i % 251);
    out(type, rank, to, NULL);
    run_case();
    for (int64_t flat = 0; flat < n; flat++) {
        int64_t rest = flat, from = 0;
        for (int i = rank - 1; i >= 0; rest /= to[i--]) from += rest % to[i] * step[axes[i]];
        want[flat] = t.x[0][from];
    }
    expect(0, want, 0);
    free(want);
    end_case();
}

static void permute_moves_every_element(void)
{
    static const int orders[24][4] = {
        {0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}, {0, 3, 2, 1}, {1, 0, 2, 3}, {1, 0, 3, 2},
        {1, 2, 0, 3}, {1, 2, 3, 0}, {1, 3, 0, 2}, {1, 3, 2, 0}, {2, 0, 1, 3}, {2, 0, 3, 1}, {2, 1, 0, 3}, {2, 1, 3, 0},
        {2, 3, 0, 1}, {2, 3, 1, 0}, {3, 0, 1, 2}, {3, 0, 2, 1}, {3, 1, 0, 2}, {3, 1, 2, 0}, {3, 2, 0, 1}, {3, 2, 1, 0}};
    for (int k = 0; k < 24; k++) {
        permute_case(t.real, 4, DIMS(2, 3, 5, 7), orders[k]);
        permute_case(t.real, 4, DIMS(9, 8, 17, 40), orders[k]);
        permute_case(t.real, 4, DIMS(3, 1, 4, 1), orders[k]);
        permute_case(t.real, 4, DIMS(3, 0, 4, 1), orders[k]);
        permute_case(LK_I32, 4, DIMS(2, 3, 5, 7), orders[k]);
        permute_case(LK_U8, 4, DIMS(2, 3, 5, 7), orders[k]);
    }
    permute_case(t.real, 2, DIMS(1009, 67), (int[]){1, 0});
    permute_case(t.real, 2, DIMS(3, 20011), (int[]){1, 0});
    permute_case(t.real, 2, DIMS(20011, 3), (int[]){1, 0});
    permute_case(t.real, 1, DIMS(5), (int[]){0});
    permute_case(t.real, 0, NULL, (int[]){0});
    permute_case(t.real, 6, DIMS(2, 3, 2, 5, 3, 2), (int[]){5, 3, 1, 0, 2, 4});
}

static void channels_case(lk_dtype type, int64_t n, int64_t c, int64_t h, int64_t w)
{
    double *want = zeros(n * c * h * w);
    for (int last = 0; last < 2; last++) {
        begin(last ? LK__OP_to_channels_last : LK__OP_to_channels_first);
        double *x = in(type, 4, DIMS(n, c, h, w));
        for (int64_t i = 0; i < n * c * h * w; i++) x[i] = (double)(i % 251);
        out(type, 4, DIMS(n, c, h, w), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < c; j++)
                for (int64_t p = 0; p < h * w; p++) {
                    int64_t first_at = (i * c + j) * h * w + p, last_at = (i * h * w + p) * c + j;
                    want[last ? last_at : first_at] = t.x[0][last ? first_at : last_at];
                }
        expect(0, want, 0);
        end_case();
    }
    free(want);
}

static void slice_and_concat_case(int rank, const int64_t *dims, int axis, int64_t start, int64_t length)
{
    int64_t outer = 1, inner = 1, from = dims[axis], part[LK_MAX_RANK];
    for (int i = 0; i < axis; i++) outer *= dims[i];
    for (int i = axis + 1; i < rank; i++) inner *= dims[i];
    memcpy(part, dims, (size_t)rank * sizeof *dims);
    part[axis] = length;
    double *want = zeros(outer * from * inner);
    begin(LK__OP_slice);
    t.attrs.axis = axis;
    t.attrs.start = start;
    t.attrs.length = length;
    in(t.real, rank, dims);
    out(t.real, rank, part, NULL);
    run_case();
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < length * inner; i++)
            want[o * length * inner + i] = t.x[0][(o * from + start) * inner + i];
    expect(0, want, 0);
    end_case();

    begin(LK__OP_slice_grad);
    t.attrs.axis = axis;
    t.attrs.start = start;
    t.attrs.length = length;
    in(t.real, rank, part);
    out(t.real, rank, dims, NULL);
    run_case();
    memset(want, 0, (size_t)(outer * from * inner) * sizeof *want);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < length * inner; i++)
            want[(o * from + start) * inner + i] = t.x[0][o * length * inner + i];
    expect(0, want, 0);
    end_case();

    begin(LK__OP_concat);
    t.attrs.axis = axis;
    int64_t sizes[3] = {start, length, from - start - length}, at = 0;
    for (int k = 0; k < 3; k++) {
        part[axis] = sizes[k];
        in(t.real, rank, part);
    }
    out(t.real, rank, dims, NULL);
    run_case();
    for (int k = 0; k < 3; at += sizes[k++])
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < sizes[k] * inner; i++)
                want[(o * from + at) * inner + i] = t.x[k][o * sizes[k] * inner + i];
    expect(0, want, 0);
    end_case();
    free(want);
}

static void moves_keep_every_element(void)
{
    channels_case(t.real, 2, 3, 5, 7);
    channels_case(t.real, 3, 1, 4, 4);
    channels_case(t.real, 3, 8, 1, 1);
    channels_case(t.real, 0, 3, 4, 4);
    channels_case(t.real, 5, 3, 33, 31);
    channels_case(t.real, 7, 64, 8, 8);
    channels_case(t.real, 1, 130, 19, 17);
    channels_case(LK_U8, 2, 3, 5, 7); /* what max_pool2d has for its gradient */
    channels_case(LK_U8, 5, 130, 9, 11);
    slice_and_concat_case(1, DIMS(10), 0, 3, 4);
    slice_and_concat_case(3, DIMS(3, 7, 5), 1, 0, 7);
    slice_and_concat_case(3, DIMS(3, 7, 5), 1, 6, 1);
    slice_and_concat_case(3, DIMS(3, 7, 5), 2, 2, 0);
    slice_and_concat_case(3, DIMS(0, 7, 5), 2, 2, 2);
    slice_and_concat_case(2, DIMS(1009, 64), 1, 17, 31);
    slice_and_concat_case(2, DIMS(301, 200), 0, 100, 101);
    static const int64_t sizes[] = {0, 1, 7, 65537, 200003};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        begin(LK__OP_reshape);
        in(t.real, 1, DIMS(sizes[s]));
        out(t.real, 2, DIMS(1, sizes[s]), NULL);
        run_case();
        expect(0, t.x[0], 0);
        end_case();
        begin(LK__OP_stop_gradient);
        in(t.real, 1, DIMS(sizes[s]));
        out(t.real, 1, DIMS(sizes[s]), NULL);
        run_case();
        expect(0, t.x[0], 0);
        end_case();
        begin(LK__OP_own_part);
        t.step.part = 2;
        in(t.real, 2, DIMS(3, sizes[s]));
        out(t.real, 1, DIMS(sizes[s]), NULL);
        run_case();
        expect(0, t.x[0] + 2 * sizes[s], 0);
        end_case();
    }
}

/* ---- vmath ---- */

/* The error of got in units of the last place of a float at want. */
static double ulps(float got, double want)
{
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf((float)want)) return got == (float)want ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    double ulp = ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - want) / ulp;
}

static void vector_functions_are_within_3_ulp_everywhere(void) /* the CPU's alone */
{
    enum { FUNCTIONS = 7 };
    static const char *const names[FUNCTIONS] = {"exp", "tanh", "erf", "log", "pow 2.7", "pow -1/3", "pow 3"};
    double                   worst[FUNCTIONS] = {0};
    float                    where[FUNCTIONS] = {0};
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 1009 * VL) {
        vec x;
        for (int l = 0; l < VL; l++) {
            uint32_t word = (uint32_t)(bits + (uint64_t)l * 1009);
            float    value;
            memcpy(&value, &word, sizeof value);
            x[l] = value;
        }
        vec y[FUNCTIONS] = {vexp(x), vtanh(x), verf(x), vlog(x), vpow(x, 2.7), vpow(x, -1.0 / 3), vpow(x, 3)};
        for (int l = 0; l < VL; l++) {
            double d = (double)x[l];
            double want[FUNCTIONS] = {exp(d), tanh(d), erf(d), log(d), pow(d, 2.7), pow(d, -1.0 / 3), pow(d, 3)};
            for (int f = 0; f < FUNCTIONS; f++) {
                double error = ulps(y[f][l], want[f]);
                if (error > worst[f]) worst[f] = error, where[f] = x[l];
            }
        }
    }
    for (int f = 0; f < FUNCTIONS; f++) {
        printf("%s: at most %.2f ulp (at %.9g)\n", names[f], worst[f], (double)where[f]);
        if (!(worst[f] <= 3))
            failures++, fprintf(stderr, "FAIL v%s: %.2f ulp at %.9g\n", names[f], worst[f], (double)where[f]);
    }
}

static void tests(void)
{
    binary_broadcasts_as_pytorch();
    unary_and_its_gradient_agree_with_libm();
    unary_bits_do_not_depend_on_the_position();
    unary_keeps_nan_and_infinity();
    scale_and_fill();
    softmax_along_any_axis();
    sum_over_any_axes();
    permute_moves_every_element();
    moves_keep_every_element();
}

int main(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    if (!device || strcmp(device, "cuda") != 0) vector_functions_are_within_3_ulp_everywhere();
    return run_types(tests, LK_BF16);
}
