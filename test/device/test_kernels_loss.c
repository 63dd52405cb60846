/* test_kernels_loss.c - l1, total, linear_cross_entropy, cross_entropy_each, binary cross-entropy with its gradient,
 * and scale_by, against naive loops in double. Cross-entropy and mse are in test_kernels_nn.c.
 *
 * ctest: label threaded */
#include "kernel_case.h"

static void l1_case(int64_t n)
{
    double sum = 0, weight = (double)n, *dx = zeros(n);
    begin(LK__OP_l1);
    in(t.real, 1, DIMS(n));
    in(t.real, 1, DIMS(n));
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) sum += fabs(t.x[0][i] - t.x[1][i]);
    expect(0, &sum, 1e-6);
    expect(1, &weight, 0);
    end_case();
    for (int with = 0; with < 2; with++) {
        begin(LK__OP_l1_grad);
        double *x = in(t.real, 1, DIMS(n)), *target = in(t.real, 1, DIMS(n)), dloss = with ? scalar_in(-0.125) : 1;
        for (int64_t i = 0; i < n; i += 3) target[i] = x[i]; /* no slope where they are equal, as PyTorch's sign */
        out(t.real, 1, DIMS(n), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++) dx[i] = dloss * ((t.x[0][i] > t.x[1][i]) - (t.x[0][i] < t.x[1][i]));
        expect(0, dx, 0);
        end_case();
    }
    free(dx);
}

/* Gradients of logits are rounded to bf16 before their products: each term by up to 2^-8. Before that, f32 rounds as
 * much as in f32's own cases: 1e-5 of the root mean square. */
static void expect_rounded_terms(int k, const double *want, double *size)
{
    int64_t n = lk__operand_elements(&t.out[k]);
    double  squares = 0;
    for (int64_t i = 0; i < n; i++) squares += want[i] * want[i];
    for (int64_t i = 0; i < n; i++) size[i] += 1e-5 / 0x1p-8 * sqrt(squares / (double)n);
    expect_within(k, want, size, 0x1p-8 / 0x1p-24);
}

/* Against the loss of all logits, in double. outputs: bit 0 dx, bit 1 dw. */
static void linear_entropy_case(int64_t rows, int64_t classes, int64_t width, unsigned outputs, double smoothing)
{
    double  sums[3] = {0}, *dx = zeros(rows * width), *dw = zeros(classes * width), *z = zeros(classes);
    double *dx_size = zeros(rows * width), *dw_size = zeros(classes * width);
    begin(LK__OP_linear_cross_entropy);
    t.attrs.ignore_index = -100;
    t.attrs.label_smoothing = smoothing;
    double *given = in(t.real, 2, DIMS(rows, width)), *weights = in(t.real, 2, DIMS(classes, width));
    double *labels = in(LK_I32, 1, DIMS(rows));
    for (int64_t i = 0; i < rows; i++) labels[i] = i % 7 == 3 ? -100 : (double)(i * 13 % classes);
    /* rows whose label has the largest logit, beyond rounding */
    for (int64_t i = 0; i < rows && classes > 10000; i += 2)
        for (int64_t k = 0; k < width; k++) given[i * width + k] = 1, weights[(i * 13 % classes) * width + k] = 2;
    for (int k = 0; k < 3; k++) out(LK_F64, 0, NULL, NULL);
    if (outputs & 1)
        out(t.real, 2, DIMS(rows, width), NULL);
    else
        no_out();
    if (outputs & 2)
        out(t.wide, 2, DIMS(classes, width), NULL);
    else
        no_out();
    run_case();
    for (int64_t i = 0; i < rows; i++) {
        const double *x = t.x[0] + i * width, *w = t.x[1];
        double        most = -INFINITY, total = 0, all = 0;
        int64_t       label = (int64_t)t.x[2][i], first = 0;
        if (label < 0) continue;
        for (int64_t j = 0; j < classes; j++) {
            z[j] = 0;
            for (int64_t k = 0; k < width; k++) z[j] += x[k] * w[j * width + k];
            if (z[j] > most) most = z[j], first = j;
        }
        for (int64_t j = 0; j < classes; j++) total += exp(z[j] - most), all += most - z[j];
        double each = log(total) + most - z[label];
        sums[0] += (1 - smoothing) * each + smoothing / (double)classes * (all + (double)classes * log(total));
        sums[1] += 1;
        sums[2] += first == label;
        for (int64_t j = 0; j < classes; j++) {
            double d = exp(z[j] - most) / total - (1 - smoothing) * (j == label) - smoothing / (double)classes;
            for (int64_t k = 0; k < width; k++) {
                dx[i * width + k] += d * w[j * width + k], dw[j * width + k] += d * x[k];
                dx_size[i * width + k] += fabs(d * w[j * width + k]), dw_size[j * width + k] += fabs(d * x[k]);
            }
        }
    }
    bool rounded = kernel_device && t.real == LK_BF16; /* a device may store logits in bf16 */
    for (int k = 0; k < 3; k++) expect(k, &sums[k], rounded ? 4e-3 : 5e-6);
    if (t.real == LK_BF16 && !kernel_device) {
        if (outputs & 1) expect_rounded_terms(3, dx, dx_size);
        if (outputs & 2) expect_rounded_terms(4, dw, dw_size);
    } else {
        if (outputs & 1) expect(3, dx, rounded ? 0.15 : 1e-5);
        if (outputs & 2) expect(4, dw, rounded ? 0.15 : 1e-5);
    }
    free(dx), free(dw), free(z), free(dx_size), free(dw_size);
    end_case();
}

/* bad: a label that is out of range. */
static void entropy_each_case(int64_t rows, int64_t classes, double smoothing, bool weighted, bool probabilities,
                              bool bad)
{
    double *each = zeros(rows), *probs = zeros(rows * classes);
    begin(LK__OP_cross_entropy_each);
    t.attrs.ignore_index = -100;
    t.attrs.label_smoothing = smoothing;
    in(t.real, 2, DIMS(rows, classes));
    double *labels = in(LK_I32, 1, DIMS(rows));
    for (int64_t r = 0; r < rows; r++) labels[r] = r % 5 == 4 ? -100 : (double)(r * 13 % classes);
    if (bad) labels[rows / 2] = (double)classes;
    if (weighted) in(t.real, 1, DIMS(rows));
    out(t.real, 1, DIMS(rows), NULL);
    if (probabilities)
        out(t.real, 2, DIMS(rows, classes), NULL);
    else
        no_out();
    run_case();
    for (int64_t r = 0; r < rows; r++) {
        const double *v = t.x[0] + r * classes;
        int64_t       label = (int64_t)t.x[1][r];
        double        total = 0, all = 0, most = -INFINITY;
        if (label < 0 || label >= classes) {
            each[r] = label == -100 ? 0 : NAN;
            continue;
        }
        for (int64_t c = 0; c < classes; c++) most = fmax(most, v[c]);
        for (int64_t c = 0; c < classes; c++) total += exp(v[c] - most);
        for (int64_t c = 0; c < classes; c++) {
            probs[r * classes + c] = exp(v[c] - most) / total;
            all += log(total) + (most - v[c]);
        }
        each[r] = (1 - smoothing) * (log(total) + (most - v[label])) + smoothing / (double)classes * all;
        each[r] *= weighted ? t.x[2][r] : 1;
    }
    expect(0, each, 5e-6);
    if (probabilities) expect(1, probs, 1e-6);
    expect_invalid(bad && rows > 0 ? rows / 2 : -1, 1, (int32_t)classes, classes);
    free(each), free(probs);
    end_case();
}

static void cross_entropy_each_is_that_of_each_row(void)
{
    static const int64_t sizes[][2] = {{0, 3}, {1, 1}, {5, 7}, {17, 65}, {200, 33}, {3, 2049}, {130, 1025}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int how = 0; how < 8; how++)
            entropy_each_case(sizes[i][0], sizes[i][1], how & 1 ? 0.1 : 0, how & 2, how & 4,
                              how == 5 && sizes[i][0] > 1);
}

static void linear_cross_entropy_is_that_of_all_logits(void)
{
    static const int64_t sizes[][3] = {{0, 3, 2}, {1, 1, 1}, {5, 7, 3}, {17, 65, 33}, {200, 300, 20}, {130, 70, 64}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (unsigned outputs = 0; outputs < 4; outputs++)
            linear_entropy_case(sizes[i][0], sizes[i][1], sizes[i][2], outputs, i == 3 ? 0.1 : 0);
    if (t.real == LK_F32) linear_entropy_case(130, 262145, 2, 3, 0); /* three chunks of rows */
}

static void total_case(int64_t n, int64_t weights)
{
    long double sum = 0, weight = weights < 0 ? (long double)n : 0; /* rounded once, at the end */
    begin(LK__OP_total);
    in(t.real, 1, DIMS(n));
    if (weights >= 0) in(t.real, 1, DIMS(weights));
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) sum += t.x[0][i];
    for (int64_t i = 0; i < weights; i++) weight += t.x[1][i];
    double wanted[] = {(double)sum, (double)weight};
    expect(0, &wanted[0], 1e-5); /* terms of both signs cancel */
    expect(1, &wanted[1], weights < 0 ? 0 : 1e-5);
    end_case();
}

static void total_is_a_sum_and_a_weight(void)
{
    for (int64_t n = 0; n < 19; n++) {
        total_case(n, -1);
        total_case(n, 2 * n + 1);
    }
    total_case(50021, -1);
    total_case(3, 50021);
    total_case(50021, 1);
}

/* weighted: one weight for `span` elements, above 0. */
static void bce_case(int64_t rows, int64_t span, bool weighted, bool gradient, double spread)
{
    int64_t     n = rows * span, dims[] = {rows, span};
    double     *dx = zeros(n);
    long double total = 0, weights = 0; /* rounded once, at the end */
    begin(LK__OP_bce_with_logits);
    double *x = in(t.real, 2, dims), *target = in(t.real, 2, dims);
    for (int64_t i = 0; i < n; i++) x[i] *= spread, target[i] = i % 3 ? uniform(0, 1) : i % 2;
    if (weighted) {
        double *w = in(t.real, 1, dims);
        for (int64_t i = 0; i < rows; i++) w[i] = fabs(w[i]);
    }
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    if (gradient)
        out(t.real, 2, dims, NULL);
    else
        no_out();
    run_case();
    for (int64_t i = 0; i < n; i++) {
        double w = weighted ? t.x[2][i / span] : 1, z = t.x[0][i], y = t.x[1][i];
        total += w * (y * log1p(exp(-z)) + (1 - y) * log1p(exp(z)));
        weights += w;
        dx[i] = w * (1 / (1 + exp(-z)) - y);
    }
    double sum = (double)total, weight = (double)weights;
    expect(0, &sum, 2e-6);
    expect(1, &weight, 1e-6);
    t.scale = 1;
    if (gradient) expect(2, dx, 1e-6);
    end_case();
    free(dx);
}

/* For large |x|, e^x alone is infinite or zero. */
static void bce_is_stable(void)
{
    static const double logits[] = {-1000, -90, -30, -1e-30, 0, 1e-30, 30, 90, 1000, 60, -60};
    enum { N = COUNT(logits) };
    for (int i = 0; i < N; i++)
        for (int y = 0; y < 2; y++) {
            double z = y ? -logits[i] : logits[i], want = z > 0 ? z + log1p(exp(-z)) : log1p(exp(z));
            begin(LK__OP_bce_with_logits);
            *in(t.real, 1, DIMS(1)) = logits[i];
            *in(t.real, 1, DIMS(1)) = y;
            out(LK_F64, 0, NULL, NULL);
            out(LK_F64, 0, NULL, NULL);
            out(t.real, 1, DIMS(1), NULL);
            run_case();
            if (t.real == LK_F32 && want < 1e-37) want = t.y[0][0] = t.y[0][0] < 1e-37 ? 0 : t.y[0][0];
            expect(0, &want, 1e-6);
            end_case();
        }
}

static void scale_by_a_number_of_the_program(void)
{
    static const int64_t sizes[] = {0, 1, 17, 40009};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        double *want = zeros(sizes[s]);
        begin(LK__OP_scale_by);
        t.in_place = 1;
        in(t.real, 1, DIMS(sizes[s]));
        double factor = scalar_in(-0.375);
        out(t.real, 1, DIMS(sizes[s]), NULL);
        run_case();
        for (int64_t i = 0; i < sizes[s]; i++) want[i] = factor * t.x[0][i];
        expect(0, want, 2e-7);
        free(want);
        end_case();
    }
}

static void bce_is_a_sum_and_a_weight(void)
{
    for (int k = 0; k < 4; k++) {
        for (int64_t n = 0; n < 19; n++) bce_case(n, 1 + n % 3, k & 1, k & 2, 3);
        bce_case(1, 17, k & 1, k & 2, 8);
        bce_case(7, 1009, k & 1, k & 2, 8);
        bce_case(50021, 1, k & 1, k & 2, 3);
    }
}

/* Rows of bf16 that fit into a GPU's shared memory, and some that do not. */
static void linear_cross_entropy_has_many_classes(void)
{
    if (t.real != LK_BF16) return;
    for (unsigned outputs = 0; outputs < 4; outputs += 3)
        for (int i = 0; i < 4; i++) linear_entropy_case(9, i < 3 ? 16384 + 3 * i : 60001, 4, outputs, i == 1 ? 0.1 : 0);
}

static void tests(void)
{
    for (int64_t n = 0; n < 20; n++) l1_case(n);
    l1_case(50021);
    total_is_a_sum_and_a_weight();
    if (t.real != LK_BF16) cross_entropy_each_is_that_of_each_row();
    linear_cross_entropy_is_that_of_all_logits();
    bce_is_a_sum_and_a_weight();
    bce_is_stable();
    scale_by_a_number_of_the_program();
    linear_cross_entropy_has_many_classes();
}

int main(void) { return run_types(tests, LK_BF16); }
