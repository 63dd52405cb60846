/* test_kernels_norm.c - layer, RMS and group norm and their gradients against naive loops in double.
 *
 * ctest: label threaded */
#include "kernel_case.h"

/* ---- layer norm, RMS norm ---- */

static void row_norm_case(bool rms, int64_t rows, int64_t n, bool with_w, bool with_b, double offset)
{
    int64_t a = n % 3 == 0 ? 3 : 1, dims[3] = {rows, n / a, a}; /* two trailing dims make a row */
    double *want = zeros(rows * n), *mean = zeros(rows), *rstd = zeros(rows), *dw = zeros(n), *db = zeros(n),
           eps = 1e-5;
    begin(rms ? LK__OP_rms_norm : LK__OP_layer_norm);
    t.attrs.axis = 2;
    t.attrs.epsilon = eps;
    double *x = in(t.real, 3, dims);
    for (int64_t i = 0; i < rows * n; i++) x[i] += offset;
    if (with_w)
        in(t.wide, 2, dims + 1);
    else
        no_in();
    if (with_b) in(t.wide, 2, dims + 1);
    out(t.real, 3, dims, NULL);
    if (!rms) out(t.wide, 1, DIMS(rows), NULL);
    out(t.wide, 1, DIMS(rows), NULL);
    run_case();
    for (int64_t r = 0; r < rows; r++) {
        const double *v = t.x[0] + r * n;
        double        squares = 0;
        for (int64_t i = 0; !rms && i < n; i++) mean[r] += v[i] / (double)n;
        for (int64_t i = 0; i < n; i++) squares += (v[i] - mean[r]) * (v[i] - mean[r]) / (double)n;
        rstd[r] = 1 / sqrt(squares + eps);
        for (int64_t i = 0; i < n; i++)
            want[r * n + i] = (v[i] - mean[r]) * rstd[r] * (with_w ? t.x[1][i] : 1) + (with_b ? t.x[2][i] : 0);
    }
    t.scale = 1;
    expect(0, want, 2e-6 * (1 + fabs(offset)));
    if (!rms) expect(1, mean, 1e-6);
    expect(rms ? 1 : 2, rstd, 2e-6 * (1 + fabs(offset)));
    double *kept = zeros(rows * n), *kept_w = zeros(n);
    memcpy(kept, t.x[0], (size_t)(rows * n) * sizeof *kept);
    if (with_w) memcpy(kept_w, t.x[1], (size_t)n * sizeof *kept_w);
    end_case();

    begin(rms ? LK__OP_rms_norm_grad : LK__OP_layer_norm_grad);
    t.attrs.axis = 2;
    t.attrs.epsilon = eps;
    in(t.real, 3, dims);
    memcpy(in(t.real, 3, dims), kept, (size_t)(rows * n) * sizeof *kept);
    if (with_w)
        memcpy(in(t.wide, 2, dims + 1), kept_w, (size_t)n * sizeof *kept_w);
    else
        no_in();
    if (!rms) memcpy(in(t.wide, 1, DIMS(rows)), mean, (size_t)rows * sizeof *mean);
    memcpy(in(t.wide, 1, DIMS(rows)), rstd, (size_t)rows * sizeof *rstd);
    out(t.real, 3, dims, NULL);
    if (with_w)
        out(t.wide, 2, dims + 1, NULL);
    else
        no_out();
    if (with_b) out(t.wide, 2, dims + 1, NULL);
    run_case();
    const double *dy = t.x[0], *v = t.x[1], *m = rms ? mean : t.x[3], *s = t.x[rms ? 3 : 4];
    for (int64_t r = 0; r < rows; r++) {
        double level = 0, slope = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = dy[r * n + i] * (with_w ? t.x[2][i] : 1), hat = (v[r * n + i] - m[r]) * s[r];
            level += rms ? 0 : g / (double)n;
            slope += g * hat / (double)n;
            dw[i] += dy[r * n + i] * hat;
            db[i] += dy[r * n + i];
        }
        for (int64_t i = 0; i < n; i++) {
            double g = dy[r * n + i] * (with_w ? t.x[2][i] : 1), hat = (v[r * n + i] - m[r]) * s[r];
            want[r * n + i] = s[r] * (g - level - hat * slope);
        }
    }
    t.scale = 1;
    expect(0, want, 5e-6 * (1 + fabs(offset)));
    if (with_w) expect(1, dw, 5e-6);
    if (with_b) expect(2, db, 5e-6);
    end_case();
    free(want), free(mean), free(rstd), free(dw), free(db), free(kept), free(kept_w);
}

/* Numbers whose sums are exact in bf16, so that the f32 kernel normalises the same ones. */
static void round_to_sixteenths(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = round(x[i] * 16) / 16;
}

/* With a residual: y is the norm of x + residual, as it is rounded and stored; dx comes with the residual added. */
static void row_norm_residual_case(bool rms, int64_t rows, int64_t n)
{
    int64_t dims[2] = {rows, n};
    double *want = zeros(rows * n), *mean = zeros(rows), *rstd = zeros(rows), *kept = zeros(rows * n), eps = 1e-5;
    int     residual = rms ? 2 : 3;
    begin(rms ? LK__OP_rms_norm : LK__OP_layer_norm);
    t.attrs.axis = 1;
    t.attrs.epsilon = eps;
    round_to_sixteenths(in(t.real, 2, dims), rows * n);
    in(t.wide, 1, &n);
    if (!rms) in(t.wide, 1, &n);
    round_to_sixteenths(in(t.real, 2, dims), rows * n);
    out(t.real, 2, dims, NULL);
    if (!rms) out(t.wide, 1, &rows, NULL);
    out(t.wide, 1, &rows, NULL);
    out(t.real, 2, dims, NULL);
    run_case();
    for (int64_t i = 0; i < rows * n; i++) want[i] = t.x[0][i] + t.x[residual][i];
    t.scale = 1;
    expect(residual, want, 1e-6);
    memcpy(kept, t.y[residual], (size_t)(rows * n) * sizeof *kept);
    for (int64_t r = 0; r < rows; r++) {
        const double *v = kept + r * n;
        double        squares = 0;
        for (int64_t i = 0; !rms && i < n; i++) mean[r] += v[i] / (double)n;
        for (int64_t i = 0; i < n; i++) squares += (v[i] - mean[r]) * (v[i] - mean[r]) / (double)n;
        rstd[r] = 1 / sqrt(squares + eps);
        for (int64_t i = 0; i < n; i++)
            want[r * n + i] = (v[i] - mean[r]) * rstd[r] * t.x[1][i] + (rms ? 0 : t.x[2][i]);
    }
    expect(0, want, 4e-6);
    if (!rms) expect(1, mean, 1e-6);
    expect(rms ? 1 : 2, rstd, 2e-6);
    end_case();

    begin(rms ? LK__OP_rms_norm_grad : LK__OP_layer_norm_grad);
    t.attrs.axis = 1;
    t.attrs.epsilon = eps;
    t.in_place = 1u << (rms ? 4 : 5);
    in(t.real, 2, dims);
    memcpy(in(t.real, 2, dims), kept, (size_t)(rows * n) * sizeof *kept);
    in(t.wide, 1, &n);
    if (!rms) memcpy(in(t.wide, 1, &rows), mean, (size_t)rows * sizeof *mean);
    memcpy(in(t.wide, 1, &rows), rstd, (size_t)rows * sizeof *rstd);
    in(t.real, 2, dims);
    out(t.real, 2, dims, NULL);
    out(t.wide, 1, &n, NULL);
    if (!rms) out(t.wide, 1, &n, NULL);
    run_case();
    const double *dy = t.x[0], *v = t.x[1], *m = rms ? mean : t.x[3], *s = t.x[rms ? 3 : 4];
    for (int64_t r = 0; r < rows; r++) {
        double level = 0, slope = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = dy[r * n + i] * t.x[2][i];
            level += rms ? 0 : g / (double)n;
            slope += g * (v[r * n + i] - m[r]) * s[r] / (double)n;
        }
        for (int64_t i = 0; i < n; i++)
            want[r * n + i] = s[r] * (dy[r * n + i] * t.x[2][i] - level - (v[r * n + i] - m[r]) * s[r] * slope) +
                              t.x[rms ? 4 : 5][r * n + i];
    }
    t.scale = 1;
    expect(0, want, 5e-6);
    end_case();
    free(want), free(mean), free(rstd), free(kept);
}

/* A device may add a residual to the gradient by a linear's input. */
static void product_residual_case(int64_t rows, int64_t inputs, int64_t outputs, bool transposed)
{
    int64_t dy[2] = {rows, outputs}, dx[2] = {rows, inputs}, w[2] = {outputs, inputs}, turned[2] = {inputs, outputs};
    double *want = zeros(rows * inputs);
    begin(LK__OP_linear_grad_input);
    t.needs_device = true;
    t.attrs.transposed = transposed;
    in(t.real, 2, dy);
    in(t.real, 2, transposed ? turned : w);
    no_in();
    in(t.real, 2, dx);
    out(t.real, 2, dx, NULL);
    run_case();
    for (int64_t i = 0; i < rows * inputs; i++) {
        const double *weight = t.x[1] + (transposed ? i % inputs * outputs : i % inputs);
        want[i] = t.x[3][i];
        for (int64_t k = 0; k < outputs; k++)
            want[i] += t.x[0][i / inputs * outputs + k] * weight[k * (transposed ? 1 : inputs)];
    }
    t.scale = 1;
    expect(0, want, 1e-5);
    end_case();
    free(want);
}

static void products_add_residuals(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 64, 40}, {4, 256, 128}, {130, 96, 300}};
    for (size_t i = 0; kernel_device && i < COUNT(sizes); i++)
        for (int transposed = 0; transposed < 2; transposed++)
            product_residual_case(sizes[i][0], sizes[i][1], sizes[i][2], transposed);
}

/* ---- group norm ---- */

typedef struct group_case {
    int64_t n, c, size, groups; /* size: elements of a channel, on one axis */
    bool    with_w, with_b;
    double  offset;
} group_case;

static void group_norm_backward(const group_case *g, const double *x, const double *w, const double *mean,
                                const double *rstd)
{
    int64_t each = g->c / g->groups, row = each * g->size, dims[3] = {g->n, g->c, g->size};
    double *want = zeros(g->n * g->c * g->size), *dw = zeros(g->c), *db = zeros(g->c);
    begin(LK__OP_group_norm_grad);
    t.attrs.groups = g->groups;
    in(t.real, 3, dims);
    memcpy(in(t.real, 3, dims), x, (size_t)(g->n * g->c * g->size) * sizeof *x);
    if (g->with_w)
        memcpy(in(t.wide, 1, DIMS(g->c)), w, (size_t)g->c * sizeof *w);
    else
        no_in();
    memcpy(in(t.wide, 2, DIMS(g->n, g->groups)), mean, (size_t)(g->n * g->groups) * sizeof *mean);
    memcpy(in(t.wide, 2, DIMS(g->n, g->groups)), rstd, (size_t)(g->n * g->groups) * sizeof *rstd);
    out(t.real, 3, dims, NULL);
    if (g->with_w)
        out(t.wide, 1, DIMS(g->c), NULL);
    else
        no_out();
    if (g->with_b) out(t.wide, 1, DIMS(g->c), NULL);
    run_case();
    for (int64_t r = 0; r < g->n * g->groups; r++) {
        const double *dy = t.x[0] + r * row, *v = t.x[1] + r * row;
        double        level = 0, slope = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < row; i++) {
                int64_t c = r % g->groups * each + i / g->size;
                double  hat = (v[i] - t.x[3][r]) * t.x[4][r], d = dy[i] * (g->with_w ? t.x[2][c] : 1);
                if (pass == 1) {
                    want[r * row + i] = t.x[4][r] * (d - level - hat * slope);
                    continue;
                }
                level += d / (double)row;
                slope += d * hat / (double)row;
                dw[c] += dy[i] * hat;
                db[c] += dy[i];
            }
    }
    t.scale = 1;
    expect(0, want, 5e-6 * (1 + fabs(g->offset)));
    if (g->with_w) expect(1, dw, 5e-6);
    if (g->with_b) expect(2, db, 5e-6);
    end_case();
    free(want), free(dw), free(db);
}

static void group_norm_case(group_case g)
{
    int64_t rows = g.n * g.groups, each = g.c / g.groups, row = each * g.size, dims[3] = {g.n, g.c, g.size};
    double *want = zeros(rows * row), *mean = zeros(rows), *rstd = zeros(rows), *x, *w = zeros(g.c), eps = 1e-3;
    begin(LK__OP_group_norm);
    t.attrs.groups = g.groups;
    t.attrs.epsilon = eps;
    x = in(t.real, 3, dims);
    for (int64_t i = 0; i < rows * row; i++) x[i] += g.offset;
    if (g.with_w)
        in(t.wide, 1, DIMS(g.c));
    else
        no_in();
    if (g.with_b) in(t.wide, 1, DIMS(g.c));
    out(t.real, 3, dims, NULL);
    out(t.wide, 2, DIMS(g.n, g.groups), NULL);
    out(t.wide, 2, DIMS(g.n, g.groups), NULL);
    run_case();
    for (int64_t r = 0; r < rows; r++) {
        const double *v = t.x[0] + r * row;
        double        squares = 0;
        for (int64_t i = 0; i < row; i++) mean[r] += v[i] / (double)row;
        for (int64_t i = 0; i < row; i++) squares += (v[i] - mean[r]) * (v[i] - mean[r]) / (double)row;
        rstd[r] = 1 / sqrt(squares + eps);
        for (int64_t i = 0; i < row; i++) {
            int64_t c = r % g.groups * each + i / g.size;
            want[r * row + i] = (v[i] - mean[r]) * rstd[r] * (g.with_w ? t.x[1][c] : 1) + (g.with_b ? t.x[2][c] : 0);
        }
    }
    t.scale = 1;
    expect(0, want, 5e-6 * (1 + fabs(g.offset)));
    expect(1, mean, 1e-6);
    expect(2, rstd, 2e-6 * (1 + fabs(g.offset)));
    memcpy(want, t.x[0], (size_t)(rows * row) * sizeof *want);
    if (g.with_w) memcpy(w, t.x[1], (size_t)g.c * sizeof *w);
    end_case();
    group_norm_backward(&g, want, w, mean, rstd);
    free(want), free(mean), free(rstd), free(w);
}

static void group_norm_and_its_gradient(void)
{
    static const int64_t shapes[][4] = {{1, 1, 17, 1},    {3, 6, 5, 1},   {3, 6, 5, 3},  {3, 6, 5, 6},
                                        {0, 6, 5, 3},     {7, 12, 1, 4},  {2, 8, 33, 2}, {67, 16, 257, 4},
                                        {1, 4, 40009, 2}, {200, 8, 49, 8}};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (int with = 0; with < 4; with++)
            group_norm_case((group_case){shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], with & 1, with & 2,
                                         with == 3 ? 10 : 0});
}

static void row_norms_and_their_gradients(void)
{
    for (int rms = 0; rms < 2; rms++) {
        for (int64_t n = 2; n < 20; n++) row_norm_case(rms, 3, n, true, !rms, 0);
        row_norm_case(rms, 0, 6, true, !rms, 0);
        row_norm_case(rms, 1, 6, false, false, 0);
        row_norm_case(rms, 5, 9, true, false, 0);
        row_norm_case(rms, 1009, 37, true, !rms, 3);
        row_norm_case(rms, 70, 769, true, !rms, 0);
        row_norm_case(rms, 2, 20011, true, !rms, 0);
        row_norm_case(rms, 19, 504, true, !rms, 0); /* packs, but no multiple of a warp's */
        row_norm_case(rms, 9, 1024, true, !rms, 0);
        row_norm_case(rms, 3, 1031, true, !rms, 0);
        row_norm_case(rms, 3, 8192, true, !rms, 1);
        row_norm_case(rms, 3001, 60, false, false, -1);
        for (int64_t n = 2; n < 20; n++) row_norm_residual_case(rms, 3, n);
        row_norm_residual_case(rms, 0, 6);
        row_norm_residual_case(rms, 301, 256);
        row_norm_residual_case(rms, 70, 768);
        row_norm_residual_case(rms, 5, 1024);
        row_norm_residual_case(rms, 3, 2048);
        row_norm_residual_case(rms, 2, 4096);
        row_norm_residual_case(rms, 2, 8192);
        row_norm_residual_case(rms, 2, 20011);
    }
}

static void tests(void)
{
    row_norms_and_their_gradients();
    group_norm_and_its_gradient();
    products_add_residuals();
}

int main(void) { return run_types(tests, LK_BF16); }
