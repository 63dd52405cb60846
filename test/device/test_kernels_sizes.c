/* test_kernels_sizes.c - kernels at sizes at which they divide their work: sums in several parts, ids that repeat
 * hundreds of times, transposed matrices of many tiles, rows of thousands of classes, parameters of several blocks.
 * Against naive loops in double.
 *
 * ctest: label threaded */
#include "base/random.h"
#include "kernel_case.h"

/* ---- sums over axes ---- */

static void sum_case(int64_t a, int64_t b, int64_t c, bool mean)
{
    double *want = zeros(a * c), *size = zeros(a * c);
    begin(LK__OP_sum);
    t.attrs.mask = 2;
    t.attrs.mean = mean;
    in(t.real, 3, DIMS(a, b, c));
    out(t.real, 2, DIMS(a, c), NULL);
    run_case();
    for (int64_t i = 0; i < a * b * c; i++) {
        want[i / (b * c) * c + i % c] += t.x[0][i];
        size[i / (b * c) * c + i % c] += fabs(t.x[0][i]);
    }
    for (int64_t i = 0; i < a * c && mean; i++) want[i] /= (double)b, size[i] /= (double)b;
    expect_within(0, want, size, sum_roundings(b + 2)); /* a mean multiplies by a rounded 1 / b */
    end_case();
    free(want), free(size);
}

/* Sums over the first and the last axis: no merged pattern. */
static void outer_sum_case(int64_t a, int64_t b, int64_t c)
{
    double *want = zeros(b), *size = zeros(b);
    begin(LK__OP_sum);
    t.attrs.mask = 5;
    in(t.real, 3, DIMS(a, b, c));
    out(t.real, 1, DIMS(b), NULL);
    run_case();
    for (int64_t i = 0; i < a * b * c; i++) want[i / c % b] += t.x[0][i], size[i / c % b] += fabs(t.x[0][i]);
    expect_within(0, want, size, sum_roundings(a * c));
    end_case();
    free(want), free(size);
}

static void sums_of_many_parts_are_whole(void)
{
    static const int64_t shapes[][3] = {{3, 513, 1},  {1, 8193, 1}, {2, 20000, 1}, {300, 40, 1}, {1, 300, 5},
                                        {2, 257, 33}, {1, 1000, 4}, {3, 65, 32},   {2, 64, 7},   {1, 64, 256}};
    for (size_t i = 0; i < COUNT(shapes); i++) sum_case(shapes[i][0], shapes[i][1], shapes[i][2], i % 2);
    outer_sum_case(7, 5, 100);
    outer_sum_case(1, 3, 9000);
}

/* ---- sums over all elements ---- */

static void element_sums_case(int64_t n)
{
    double squares = 0, distance = 0, difference = 0, sum = 0, count = (double)n;
    begin(LK__OP_square_sum);
    in(t.real, 1, DIMS(n));
    out(LK_F64, 0, NULL, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) squares += t.x[0][i] * t.x[0][i];
    expect(0, &squares, 1e-6);
    end_case();
    for (int l1 = 0; l1 < 2; l1++) {
        begin(l1 ? LK__OP_l1 : LK__OP_mse);
        in(t.real, 1, DIMS(n));
        in(t.real, 1, DIMS(n));
        out(LK_F64, 0, NULL, NULL);
        out(LK_F64, 0, NULL, NULL);
        run_case();
        distance = difference = 0;
        for (int64_t i = 0; i < n; i++) {
            double d = t.x[0][i] - t.x[1][i];
            distance += d * d;
            difference += fabs(d);
        }
        expect(0, l1 ? &difference : &distance, 1e-6);
        expect(1, &count, 0);
        end_case();
    }
    begin(LK__OP_total);
    in(t.real, 1, DIMS(n));
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    t.scale = sqrt((double)n);
    run_case();
    for (int64_t i = 0; i < n; i++) sum += t.x[0][i];
    expect(0, &sum, 1e-6);
    expect(1, &count, 0);
    end_case();
}

/* ---- embedding_grad ---- */

/* share: of the positions that have one of three ids; the others have any, so that runs of every length occur. A sum of
 * n numbers, in whatever order, is off by at most n - 1 roundings of the sum of their magnitudes. */
static void embedding_grad_case(int64_t count, int64_t rows, int64_t columns, double share)
{
    double *table = zeros(rows * columns), *size = zeros(rows * columns), *terms = zeros(rows);
    begin(LK__OP_embedding_grad);
    double *ids = in(LK_I32, 1, DIMS(count));
    for (int64_t i = 0; i < count; i++) {
        double id = floor(uniform(0, 0.999) * (double)rows), other = floor(uniform(0, 3));
        ids[i] = uniform(0, 1) < share ? fmin((double)rows - 1, other * (double)(rows / 3)) : id;
    }
    if (count > 10) ids[3] = -5, ids[7] = (double)rows;
    in(t.real, 2, DIMS(count, columns));
    out(t.wide, 2, DIMS(rows, columns), NULL);
    run_case();
    for (int64_t i = 0; i < count; i++) {
        int64_t id = (int64_t)t.x[0][i];
        if (id < 0 || id >= rows) continue;
        terms[id]++;
        for (int64_t c = 0; c < columns; c++) {
            table[id * columns + c] += t.x[1][i * columns + c];
            size[id * columns + c] += fabs(t.x[1][i * columns + c]);
        }
    }
    for (int64_t i = 0; i < rows * columns; i++) size[i] *= fmax(0, terms[i / columns] - 1);
    expect_within(0, table, size, 1);
    end_case();
    free(table), free(size), free(terms);
}

static void frequent_ids_are_added_once_each(void)
{
    embedding_grad_case(1000, 3, 24, 0);     /* few rows, all long */
    embedding_grad_case(3000, 1200, 8, 0.5); /* three ranges of ids, long and short runs */
    embedding_grad_case(2049, 1025, 3, 0.9);
    embedding_grad_case(129, 1, 40, 0); /* one run, one more than a part */
    embedding_grad_case(128, 1, 40, 0);
    embedding_grad_case(700, 2, 5, 1);
    embedding_grad_case(0, 600, 16, 0);
    embedding_grad_case(1, 513, 300, 0);
}

/* ---- permute ---- */

static void permute_case(const int64_t *dims, const int *axes, int rank)
{
    int64_t to[LK_MAX_RANK] = {0}, step[LK_MAX_RANK], n = 1;
    for (int i = rank - 1; i >= 0; i--) step[i] = n, n *= dims[i];
    double *want = zeros(n);
    begin(LK__OP_permute);
    for (int i = 0; i < rank; i++) to[i] = dims[axes[i]], t.attrs.axes[i] = axes[i];
    in(t.real, rank, dims);
    out(t.real, rank, to, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, from = 0;
        for (int k = rank - 1; k >= 0; k--) from += rest % to[k] * step[axes[k]], rest /= to[k];
        want[i] = t.x[0][from];
    }
    expect(0, want, 0);
    end_case();
    free(want);
}

static void matrices_of_many_tiles_are_transposed(void)
{
    permute_case(DIMS(65, 97), (const int[]){1, 0}, 2);
    permute_case(DIMS(3, 40, 2, 33), (const int[]){0, 3, 2, 1}, 4);
    permute_case(DIMS(2, 70, 3), (const int[]){0, 2, 1}, 3);
    permute_case(DIMS(2, 9, 4, 32), (const int[]){0, 2, 1, 3}, 4);
    permute_case(DIMS(2, 9, 4, 31), (const int[]){2, 0, 1, 3}, 4);
    permute_case(DIMS(2, 3, 4, 5, 2, 8), (const int[]){5, 3, 1, 0, 2, 4}, 6);
}

/* ---- rows of many classes ---- */

static void cross_entropy_case(int64_t rows, int64_t classes, double smoothing)
{
    double  sum = 0, weight = 0, right = 0;
    double *probs = zeros(rows * classes), *dlogits = zeros(rows * classes);
    begin(LK__OP_cross_entropy);
    t.attrs.label_smoothing = smoothing;
    t.attrs.ignore_index = -100;
    double *x = in(t.real, 2, DIMS(rows, classes)), *labels = in(LK_I32, 1, DIMS(rows));
    double *w = in(t.real, 1, DIMS(rows));
    for (int64_t i = 0; i < rows; i++) {
        labels[i] = i == 1 ? -100 : floor(uniform(0, 0.999) * (double)classes);
        w[i] = uniform(0.5, 2);
        if (i % 2 == 0) x[i * classes + (int64_t)labels[i]] = i % 4 == 0 ? 3 : 2.5;
        if (i % 4 == 2 && labels[i] > 0) x[i * classes] = 2.5; /* an earlier class has the same logit */
    }
    for (int k = 0; k < 3; k++) out(LK_F64, 0, NULL, NULL);
    out(t.real, 2, DIMS(rows, classes), NULL);
    run_case();
    for (int64_t i = 0; i < rows; i++) {
        const double *logits = t.x[0] + i * classes;
        int64_t       label = (int64_t)t.x[1][i], best = 0;
        double        total = 0, all = 0;
        if (label == -100) continue;
        for (int64_t c = 0; c < classes; c++) {
            best = logits[c] > logits[best] ? c : best;
            total += exp(logits[c]);
            all -= logits[c];
        }
        for (int64_t c = 0; c < classes; c++) {
            double p = exp(logits[c]) / total;
            probs[i * classes + c] = p;
            dlogits[i * classes + c] = (p - smoothing / (double)classes - (c == label ? 1 - smoothing : 0)) * t.x[2][i];
        }
        double loss = log(total) - logits[label];
        loss = (1 - smoothing) * loss + smoothing * (all / (double)classes + log(total));
        sum += t.x[2][i] * loss;
        weight += t.x[2][i];
        right += best == label;
    }
    expect(0, &sum, 2e-6);
    expect(1, &weight, 2e-6);
    expect(2, &right, 0);
    expect(3, probs, 5e-6);
    double *saved = zeros(rows * classes), *kept = zeros(2 * rows);
    memcpy(saved, t.y[3], (size_t)(rows * classes) * sizeof *saved);
    memcpy(kept, t.x[1], (size_t)rows * sizeof *kept);
    memcpy(kept + rows, t.x[2], (size_t)rows * sizeof *kept);
    end_case();
    begin(LK__OP_cross_entropy_grad);
    t.attrs.label_smoothing = smoothing;
    t.attrs.ignore_index = -100;
    t.in_place = 1u << 0;
    memcpy(in(t.real, 2, DIMS(rows, classes)), saved, (size_t)(rows * classes) * sizeof *saved);
    memcpy(in(LK_I32, 1, DIMS(rows)), kept, (size_t)rows * sizeof *kept);
    memcpy(in(t.real, 1, DIMS(rows)), kept + rows, (size_t)rows * sizeof *kept);
    out(t.real, 2, DIMS(rows, classes), NULL);
    run_case();
    expect(0, dlogits, 5e-6);
    end_case();
    free(probs), free(dlogits), free(saved), free(kept);
}

static void softmax_case(int64_t outer, int64_t n, int64_t inner, bool logarithm)
{
    double *want = zeros(outer * n * inner), *dx = zeros(outer * n * inner), *y = zeros(outer * n * inner);
    begin(logarithm ? LK__OP_log_softmax : LK__OP_softmax);
    t.attrs.axis = 1;
    t.in_place = 1u << 0;
    in(t.real, 3, DIMS(outer, n, inner));
    out(t.real, 3, DIMS(outer, n, inner), NULL);
    run_case();
    for (int64_t r = 0; r < outer * inner; r++) {
        int64_t first = r / inner * n * inner + r % inner;
        double  total = 0;
        for (int64_t k = 0; k < n; k++) total += exp(t.x[0][first + k * inner]);
        for (int64_t k = 0; k < n; k++) {
            double x = t.x[0][first + k * inner];
            want[first + k * inner] = logarithm ? x - log(total) : exp(x) / total;
        }
    }
    expect(0, want, 3e-6);
    memcpy(y, t.y[0], (size_t)(outer * n * inner) * sizeof *y);
    end_case();
    begin(logarithm ? LK__OP_log_softmax_grad : LK__OP_softmax_grad);
    t.attrs.axis = 1;
    t.in_place = 1u << 0;
    t.scale = 1;
    in(t.real, 3, DIMS(outer, n, inner));
    memcpy(in(t.real, 3, DIMS(outer, n, inner)), y, (size_t)(outer * n * inner) * sizeof *y);
    out(t.real, 3, DIMS(outer, n, inner), NULL);
    run_case();
    for (int64_t r = 0; r < outer * inner; r++) {
        int64_t first = r / inner * n * inner + r % inner;
        double  total = 0;
        for (int64_t k = 0; k < n; k++)
            total += t.x[0][first + k * inner] * (logarithm ? 1 : t.x[1][first + k * inner]);
        for (int64_t k = 0; k < n; k++) {
            double d = t.x[0][first + k * inner], out = t.x[1][first + k * inner];
            dx[first + k * inner] = logarithm ? d - exp(out) * total : (d - total) * out;
        }
    }
    expect(0, dx, 3e-6);
    end_case();
    free(want), free(dx), free(y);
}

static void rows_of_many_classes_are_whole(void)
{
    cross_entropy_case(3, 1025, 0);
    cross_entropy_case(6, 3000, 0.1);
    cross_entropy_case(40, 17, 0);
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        softmax_case(2, 513, 1, logarithm);
        softmax_case(3, 2000, 1, logarithm);
        softmax_case(9, 40, 1, logarithm);
        softmax_case(2, 33, 65, logarithm);
    }
}

/* ---- maxima of long rows ---- */

static void max_case(int64_t outer, int64_t n, int64_t inner, int64_t special, double value)
{
    double *want = zeros(outer * inner), *index = zeros(outer * inner), *dx = zeros(outer * n * inner);
    begin(LK__OP_max);
    t.attrs.axis = 1;
    double *x = in(t.real, 3, DIMS(outer, n, inner));
    for (int64_t i = 0; i < outer * n * inner; i++) x[i] = floor(x[i] * 4); /* many equals */
    if (special) x[special] = value, x[special + inner] = value;
    out(t.real, 2, DIMS(outer, inner), NULL);
    out(LK_I32, 2, DIMS(outer, inner), NULL);
    run_case();
    for (int64_t r = 0; r < outer * inner; r++) {
        const double *row = t.x[0] + r / inner * n * inner + r % inner;
        want[r] = row[0];
        for (int64_t k = 1; k < n; k++) {
            double v = row[k * inner];
            if (v > want[r] || (isnan(v) && !isnan(want[r]))) want[r] = v, index[r] = (double)k;
        }
    }
    expect(0, want, 0);
    expect(1, index, 0);
    end_case();
    begin(LK__OP_max_grad);
    t.attrs.axis = 1;
    in(t.real, 2, DIMS(outer, inner));
    memcpy(in(LK_I32, 2, DIMS(outer, inner)), index, (size_t)(outer * inner) * sizeof *index);
    out(t.real, 3, DIMS(outer, n, inner), NULL);
    run_case();
    for (int64_t r = 0; r < outer * inner; r++)
        dx[r / inner * n * inner + (int64_t)index[r] * inner + r % inner] = t.x[0][r];
    expect(0, dx, 0);
    end_case();
    free(want), free(index), free(dx);
}

static void maxima_of_long_rows_are_the_first(void)
{
    max_case(2, 2049, 1, 700, NAN);
    max_case(11, 70, 1, 35, 5);
    max_case(2, 300, 37, 37 * 20 + 5, NAN);
    max_case(1, 1, 3, 0, 0);
}

/* ---- dropout ---- */

/* Each element by its own draw of (sample, element), with rows of several samples merged and known sample ids. */
static void dropout_case(int64_t samples, int64_t rows, int64_t columns, bool known)
{
    int64_t    ids[] = {90, 3, 1234567890123, 8, 0, 77}, n = samples * rows * columns;
    double     p = 0.3, *want = zeros(n);
    lk__random random;
    begin(LK__OP_dropout);
    t.attrs.probability = p;
    t.attrs.stream = 99;
    t.attrs.rows = rows;
    t.step.epoch = 5;
    t.step.step = 8;
    t.step.count = samples;
    t.step.sample_ids = known ? ids : NULL;
    t.in_place = 1u << 0;
    in(t.real, 2, DIMS(samples * rows, columns));
    out(t.real, 2, DIMS(samples * rows, columns), NULL);
    run_case();
    random = lk__random_make(t.step.seed, LK__FOR_DROPOUT, 99 ^ (known ? 5 : ~(uint64_t)8) * 0x9E3779B97F4A7C15u);
    for (int64_t i = 0; i < n; i++) {
        int64_t  sample = i / (rows * columns), at = i % (rows * columns);
        uint32_t bits[4];
        lk__random4(&random, (uint64_t)(known ? ids[sample] : sample), (uint32_t)(at / 4), bits);
        want[i] = lk__random_unit(bits[at % 4]) >= p ? t.x[0][i] / (1 - p) : 0;
    }
    expect(0, want, 1e-6);
    end_case();
    free(want);
}

/* ---- optimizers ---- */

static void adam_case(int64_t n)
{
    double *p = zeros(n), *m = zeros(n), *v = zeros(n), beta1 = 0.9, beta2 = 0.95, rate;
    for (int64_t i = 0; i < n; i++) p[i] = uniform(-1, 1), m[i] = uniform(-0.1, 0.1), v[i] = uniform(0, 0.1);
    begin(LK__OP_adam);
    t.attrs.beta1 = beta1;
    t.attrs.beta2 = beta2;
    t.attrs.epsilon = 1e-8;
    t.attrs.weight_decay = 0.1;
    t.attrs.decoupled = true;
    t.attrs.lr_scale = 0.5;
    t.step.step = 7;
    in(t.real, 1, DIMS(n));
    scalar_in(0.25);
    out(t.real, 1, DIMS(n), p);
    out(t.real, 1, DIMS(n), m);
    out(t.real, 1, DIMS(n), v);
    out(LK_BF16, 1, DIMS(n), NULL);
    run_case();
    rate = t.step.rate * 0.5;
    for (int64_t i = 0; i < n; i++) {
        double g = t.x[0][i] * 0.25;
        m[i] = beta1 * t.initial[1][i] + (1 - beta1) * g;
        v[i] = beta2 * t.initial[2][i] + (1 - beta2) * g * g;
        p[i] = t.initial[0][i] * (1 - rate * 0.1) -
               rate / (1 - pow(beta1, 7)) * m[i] / (sqrt(v[i] / (1 - pow(beta2, 7))) + 1e-8);
    }
    expect(0, p, 1e-6);
    expect(1, m, 1e-6);
    expect(2, v, 1e-6);
    expect(3, p, 1e-6);
    end_case();
    free(p), free(m), free(v);
}

static void test_sizes(void)
{
    sums_of_many_parts_are_whole();
    element_sums_case(16384);
    element_sums_case(50001);
    frequent_ids_are_added_once_each();
    matrices_of_many_tiles_are_transposed();
    rows_of_many_classes_are_whole();
    maxima_of_long_rows_are_the_first();
    for (int known = 0; known < 2; known++) {
        dropout_case(6, 1, 2048, known);
        dropout_case(6, 3, 701, known);
        dropout_case(5, 2, 6, known);
    }
    adam_case(4097);
    adam_case(2050);
}

int main(void) { return run_types(test_sizes, LK_BF16); }
