/* test_kernels_norm.c - layer, RMS, group and batch norm and their gradients against naive loops in double.
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
        row_norm_residual_case(rms, 2, 20011);
    }
}

/* ---- batch norm ---- */

typedef struct bn_case {
    int     rank; /* 2: (N, C); 4: an image */
    int64_t n, c, h, w;
    bool    affine, relu, update;
    double  offset;
} bn_case;

static void batch_norm_forward(const bn_case *b, double *mean, double *rstd, double *x_kept, double *y_kept)
{
    int64_t dims[4] = {b->n, b->c, b->h, b->w}, rows = b->n * (b->rank == 4 ? b->h * b->w : 1), c = b->c;
    double *want = zeros(rows * c), *var = zeros(c), eps = 1e-5;
    begin(LK__OP_batch_norm);
    t.attrs.epsilon = eps;
    t.attrs.momentum = 0.1;
    t.attrs.activation = b->relu ? LK__RELU : LK__IDENTITY;
    double *x = in(t.real, b->rank, dims);
    for (int64_t i = 0; i < rows * c; i++) x[i] += b->offset;
    if (b->affine)
        in(t.wide, 1, &c), in(t.wide, 1, &c);
    else
        no_in(), no_in();
    out(t.real, b->rank, dims, NULL);
    out(t.wide, 1, &c, NULL);
    out(t.wide, 1, &c, NULL);
    /* First without running statistics: the harness runs a case several times, and each run would change them. */
    run_case();
    for (int64_t i = 0; i < rows * c; i++) mean[i % c] += t.x[0][i] / (double)rows;
    for (int64_t i = 0; i < rows * c; i++)
        var[i % c] += (t.x[0][i] - mean[i % c]) * (t.x[0][i] - mean[i % c]) / (double)rows;
    for (int64_t k = 0; k < c; k++) rstd[k] = rows ? 1 / sqrt(var[k] + eps) : 0;
    for (int64_t i = 0; i < rows * c; i++) {
        int64_t k = i % c;
        want[i] = (t.x[0][i] - mean[k]) * rstd[k] * (b->affine ? t.x[1][k] : 1) + (b->affine ? t.x[2][k] : 0);
        if (b->relu && want[i] < 0) want[i] = 0;
    }
    double steepest = 1; /* x rstd and mean rstd cancel: their rounding is what is left */
    for (int64_t k = 0; k < c; k++) steepest = fmax(steepest, rstd[k]);
    t.scale = 1;
    expect(0, want, 1e-6 * steepest * (1 + fabs(b->offset)));
    expect(1, mean, 1e-6);
    expect(2, rstd, 3e-6 * (1 + fabs(b->offset)));
    memcpy(x_kept, t.x[0], (size_t)(rows * c) * sizeof *want);
    memcpy(y_kept, t.y[0], (size_t)(rows * c) * sizeof *want);

    /* Now with them, once. */
    double *running_mean = in(t.wide, 1, &c), *running_var = in(t.wide, 1, &c);
    for (int64_t k = 0; k < c; k++) running_var[k] = fabs(running_var[k]);
    in(LK_I64, 0, NULL)[0] = 41;
    round_inputs();
    t.attrs.update = b->update;
    run_once(3, NULL);
    bool moves = b->update && rows > 0;
    for (int64_t k = 0; k < c; k++) {
        double m = moves ? 0.9 * running_mean[k] + 0.1 * mean[k] : running_mean[k];
        double v = moves ? 0.9 * running_var[k] + 0.1 * var[k] * (double)rows / (double)(rows > 1 ? rows - 1 : 1)
                         : running_var[k];
        double limit = t.real == LK_F64 ? 1e-13 : 1e-6 * (1 + fabs(b->offset));
        if (fabs(get(t.wide, t.in[3].data, k) - m) > limit * (1 + fabs(m))) fail_case("running_mean");
        if (fabs(get(t.wide, t.in[4].data, k) - v) > limit * (1 + fabs(v))) fail_case("running_var");
    }
    if (*(int64_t *)t.in[5].data != (moves ? 42 : 41)) fail_case("num_batches_tracked");
    if (!t.skipped && !kernel_device) check_case_parts();
    end_case();
    free(want), free(var);
}

/* training: through the batch's statistics; otherwise dx = g w rstd. */
static void batch_norm_backward(const bn_case *b, bool training, const double *mean, const double *second,
                                const double *x_kept, const double *y_kept)
{
    int64_t dims[4] = {b->n, b->c, b->h, b->w}, rows = b->n * (b->rank == 4 ? b->h * b->w : 1), c = b->c;
    double *want = zeros(rows * c), *dw = zeros(c), *db = zeros(c), eps = 1e-5;
    begin(training ? LK__OP_batch_norm_grad : LK__OP_batch_norm_eval_grad);
    t.attrs.epsilon = eps;
    in(t.real, b->rank, dims);
    memcpy(in(t.real, b->rank, dims), x_kept, (size_t)(rows * c) * sizeof(double));
    if (b->affine)
        in(t.wide, 1, &c);
    else
        no_in();
    memcpy(in(t.wide, 1, &c), mean, (size_t)c * sizeof(double));
    memcpy(in(t.wide, 1, &c), second, (size_t)c * sizeof(double));
    if (training && b->relu) {
        t.attrs.activation = LK__RELU;
        memcpy(in(t.real, b->rank, dims), y_kept, (size_t)(rows * c) * sizeof(double));
    }
    out(t.real, b->rank, dims, NULL);
    if (b->affine) out(t.wide, 1, &c, NULL), out(t.wide, 1, &c, NULL);
    run_case();
    double *g = zeros(rows * c), *rstd = zeros(c);
    for (int64_t k = 0; k < c; k++) rstd[k] = training ? t.x[4][k] : 1 / sqrt(t.x[4][k] + eps);
    for (int64_t i = 0; i < rows * c; i++) {
        g[i] = t.x[0][i] * (training && b->relu && t.x[5][i] <= 0 ? 0 : 1);
        dw[i % c] += g[i] * (t.x[1][i] - t.x[3][i % c]) * rstd[i % c];
        db[i % c] += g[i];
    }
    for (int64_t i = 0; i < rows * c; i++) {
        int64_t k = i % c;
        double  hat = (t.x[1][i] - t.x[3][k]) * rstd[k], w = b->affine ? t.x[2][k] : 1;
        want[i] = w * rstd[k] * (training ? g[i] - db[k] / (double)rows - hat * dw[k] / (double)rows : g[i]);
    }
    double steepest = 1;
    for (int64_t k = 0; k < c; k++) steepest = fmax(steepest, rstd[k]);
    t.scale = 1;
    expect(0, want, 2e-6 * steepest * (1 + fabs(b->offset)));
    if (b->affine) {
        t.scale = sqrt((double)rows); /* of sums whose terms cancel */
        expect(1, dw, 3e-6 * (1 + fabs(b->offset)));
        expect(2, db, 3e-6);
    }
    end_case();
    free(want), free(dw), free(db), free(g), free(rstd);
}

static void batch_norm_eval_case(const bn_case *b, const double *mean, const double *var)
{
    int64_t dims[4] = {b->n, b->c, b->h, b->w}, rows = b->n * (b->rank == 4 ? b->h * b->w : 1), c = b->c;
    double *want = zeros(rows * c);
    begin(LK__OP_batch_norm_eval);
    t.attrs.epsilon = 1e-5;
    t.attrs.activation = b->relu ? LK__RELU : LK__IDENTITY;
    t.in_place = 1;
    in(t.real, b->rank, dims);
    if (b->affine)
        in(t.wide, 1, &c), in(t.wide, 1, &c);
    else
        no_in(), no_in();
    memcpy(in(t.wide, 1, &c), mean, (size_t)c * sizeof(double));
    memcpy(in(t.wide, 1, &c), var, (size_t)c * sizeof(double));
    out(t.real, b->rank, dims, NULL);
    run_case();
    for (int64_t i = 0; i < rows * c; i++) {
        int64_t k = i % c;
        want[i] = (t.x[0][i] - t.x[3][k]) / sqrt(t.x[4][k] + 1e-5) * (b->affine ? t.x[1][k] : 1) +
                  (b->affine ? t.x[2][k] : 0);
        if (b->relu && want[i] < 0) want[i] = 0;
    }
    t.scale = 1;
    expect(0, want, 3e-6 * (1 + fabs(b->offset)));
    end_case();
    free(want);
}

/* The residual is added before relu, in both modes. */
static void batch_norm_residual_case(bool evaluation, int rank, const int64_t *dims, bool relu)
{
    int64_t c = dims[1], rows = dims[0] * (rank == 4 ? dims[2] * dims[3] : 1);
    double *want = zeros(rows * c), *mean = zeros(c), *var = zeros(c), eps = 0.3;
    begin(evaluation ? LK__OP_batch_norm_eval : LK__OP_batch_norm);
    t.attrs.epsilon = eps;
    t.attrs.activation = relu ? LK__RELU : LK__IDENTITY;
    t.in_place = evaluation ? 1 : 0;
    in(t.real, rank, dims);
    in(t.wide, 1, &c), in(t.wide, 1, &c);
    if (evaluation) {
        memcpy(mean, in(t.wide, 1, &c), (size_t)c * sizeof *mean);
        double *variance = in(t.wide, 1, &c);
        for (int64_t k = 0; k < c; k++) variance[k] = fabs(variance[k]);
    } else {
        no_in(), no_in(), no_in();
    }
    in(t.real, rank, dims);
    out(t.real, rank, dims, NULL);
    if (!evaluation) out(t.wide, 1, &c, NULL), out(t.wide, 1, &c, NULL);
    run_case();
    for (int64_t k = 0; evaluation && k < c; k++) mean[k] = t.x[3][k], var[k] = t.x[4][k];
    for (int64_t i = 0; !evaluation && i < rows * c; i++) mean[i % c] += t.x[0][i] / (double)rows;
    for (int64_t i = 0; !evaluation && i < rows * c; i++)
        var[i % c] += (t.x[0][i] - mean[i % c]) * (t.x[0][i] - mean[i % c]) / (double)rows;
    for (int64_t i = 0; i < rows * c; i++) {
        int64_t k = i % c;
        want[i] = (t.x[0][i] - mean[k]) / sqrt(var[k] + eps) * t.x[1][k] + t.x[2][k] + t.x[evaluation ? 5 : 6][i];
        if (relu && want[i] < 0) want[i] = 0;
    }
    t.scale = 1;
    expect(0, want, 5e-6);
    end_case();
    free(want), free(mean), free(var);
}

static void batch_norm_adds_a_residual(void)
{
    for (int evaluation = 0; evaluation < 2; evaluation++)
        for (int relu = 0; relu < 2; relu++) {
            batch_norm_residual_case(evaluation, 2, DIMS(7, 5), relu);
            batch_norm_residual_case(evaluation, 2, DIMS(0, 5), relu);
            batch_norm_residual_case(evaluation, 4, DIMS(3, 16, 5, 7), relu);
            batch_norm_residual_case(evaluation, 4, DIMS(2, 67, 9, 3), relu);
        }
}

static void batch_norm_with_running_statistics(void)
{
    static const bn_case list[] = {
        {4, 2, 3, 5, 7, true, false, true, 0},    {4, 2, 16, 3, 3, true, true, true, 0},
        {2, 7, 5, 0, 0, true, true, true, 0},     {2, 5, 1, 0, 0, false, false, true, 0},
        {2, 1, 4, 0, 0, true, false, true, 0},    {4, 0, 6, 4, 4, true, true, true, 0},
        {2, 0, 6, 0, 0, false, false, true, 0},   {4, 8, 17, 16, 16, true, true, false, 2},
        {4, 16, 32, 19, 23, true, true, true, 0}, {4, 3, 130, 15, 15, false, true, true, 0},
        {2, 3001, 67, 0, 0, true, true, true, 1}, {4, 9, 64, 64, 64, true, false, true, 0.5},
        {2, 257, 1, 0, 0, true, true, true, 0},   {2, 30011, 3, 0, 0, true, true, true, 10},
    };
    for (size_t i = 0; i < COUNT(list); i++) {
        const bn_case *b = &list[i];
        int64_t        n = b->n * b->c * (b->rank == 4 ? b->h * b->w : 1);
        double        *mean = zeros(b->c), *rstd = zeros(b->c), *x = zeros(n), *y = zeros(n), *var = zeros(b->c);
        batch_norm_forward(b, mean, rstd, x, y);
        batch_norm_backward(b, true, mean, rstd, x, y);
        for (int64_t k = 0; k < b->c; k++) var[k] = 0.5 + fabs(mean[k]);
        batch_norm_eval_case(b, mean, var);
        batch_norm_backward(b, false, mean, var, x, y);
        free(mean), free(rstd), free(x), free(y), free(var);
    }
}

/* ---- batch norm over several ranks, of which this is the only one ---- */

typedef struct synced {
    int64_t dims[4], rows, c;
    bool    relu;
    double *x, *y, *mean, *rstd, *stats, *centre, *sums, *dy;
} synced;

static void copy_in(lk_dtype type, int rank, const int64_t *dims, const double *values, int64_t n)
{
    memcpy(in(type, rank, dims), values, (size_t)n * sizeof *values);
}

/* x scale + shift, or g factor + x slope + shift: each factor, product and sum rounds once, so 2 to 4 roundings of the
 * sum of magnitudes on the CPU; a device may subtract the mean first, and multiply by rstd in steps. Where the mean is
 * many deviations from 0, or a channel has two values, the terms cancel, and the error is large relative to the
 * result. */
enum { ROUNDINGS = 8 };

/* Rows, sums about a centre and sums of squares about it. */
static void synced_stats(synced *s, double offset)
{
    begin(LK__OP_batch_norm_stats);
    double *x = in(t.real, 4, s->dims), *running_mean = in(t.wide, 1, &s->c);
    for (int64_t i = 0; i < s->rows * s->c; i++) x[i] += offset;
    for (int64_t k = 0; k < s->c; k++) running_mean[k] = 0.1 * running_mean[k] + offset;
    out(LK_F64, 1, DIMS(2 * s->c + 1), NULL);
    out(LK_F64, 1, &s->c, NULL);
    run_case();
    s->stats[0] = (double)s->rows;
    memcpy(s->centre, t.x[1], (size_t)s->c * sizeof(double));
    memcpy(s->x, t.x[0], (size_t)(s->rows * s->c) * sizeof(double));
    double *size = zeros(2 * s->c + 1);
    for (int64_t i = 0; i < s->rows * s->c; i++) {
        double d = s->x[i] - s->centre[i % s->c], terms = fabs(s->x[i]) + fabs(s->centre[i % s->c]);
        s->stats[1 + i % s->c] += d;
        s->stats[1 + s->c + i % s->c] += d * d;
        size[1 + i % s->c] += terms;
        size[1 + s->c + i % s->c] += 2 * fabs(d) * terms;
    }
    expect_within(0, s->stats, size, ROUNDINGS);
    expect(1, s->centre, 0);
    end_case();
    free(size);
}

/* The running statistics move towards those of all ranks. */
static void synced_running(const synced *s)
{
    double rows = s->stats[0];
    begin(LK__OP_batch_norm_apply);
    t.attrs = (lk__op_attrs){.epsilon = 1e-5, .momentum = 0.1, .update = true};
    copy_in(t.real, 4, s->dims, s->x, s->rows * s->c);
    in(t.wide, 1, &s->c), in(t.wide, 1, &s->c);
    const double *running_mean = in(t.wide, 1, &s->c), *running_var = in(t.wide, 1, &s->c);
    in(LK_I64, 0, NULL)[0] = 41;
    copy_in(LK_F64, 1, DIMS(2 * s->c + 1), s->stats, 2 * s->c + 1);
    copy_in(LK_F64, 1, &s->c, s->centre, s->c);
    out(t.real, 4, s->dims, NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
    round_inputs();
    run_once(3, NULL);
    for (int64_t k = 0; k < s->c; k++) {
        double d = rows > 0 ? s->stats[1 + k] / rows : 0, squares = s->stats[1 + s->c + k];
        double var = rows > 0 ? (squares - rows * d * d) / fmax(rows - 1, 1) : 0, size = rows > 0 ? squares : 0;
        double m = rows > 0 ? 0.9 * running_mean[k] + 0.1 * (s->centre[k] + d) : running_mean[k];
        double v = rows > 0 ? 0.9 * running_var[k] + 0.1 * var : running_var[k];
        double limit = t.real == LK_F64 ? 1e-13 : 1e-6;
        if (fabs(get(t.wide, t.in[3].data, k) - m) > limit * (1 + fabs(m))) fail_case("running_mean");
        if (fabs(get(t.wide, t.in[4].data, k) - v) > limit * (1 + fabs(v) + size)) fail_case("running_var");
    }
    if (*(int64_t *)t.in[5].data != (rows > 0 ? 42 : 41)) fail_case("num_batches_tracked");
    if (!kernel_device) check_case_parts();
    end_case();
}

static void synced_apply(synced *s)
{
    double *want = zeros(s->rows * s->c), *size = zeros(s->rows * s->c), *rstd_size = zeros(s->c),
           n = fmax(s->stats[0], 1), eps = 1e-5;
    double in_double = t.real == LK_F64 ? 1 : 0x1p-29; /* a rounding of the statistics, in those of results */
    begin(LK__OP_batch_norm_apply);
    t.attrs = (lk__op_attrs){.epsilon = eps, .momentum = 0.1, .activation = s->relu ? LK__RELU : LK__IDENTITY};
    copy_in(t.real, 4, s->dims, s->x, s->rows * s->c);
    in(t.wide, 1, &s->c), in(t.wide, 1, &s->c), no_in(), no_in(), no_in();
    copy_in(LK_F64, 1, DIMS(2 * s->c + 1), s->stats, 2 * s->c + 1);
    copy_in(LK_F64, 1, &s->c, s->centre, s->c);
    out(t.real, 4, s->dims, NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
    round_inputs();
    for (int64_t k = 0; k < s->c && s->rows > 0; k++) {
        double d = s->stats[1 + k] / n, squares = s->stats[1 + s->c + k] / n, variance = squares - d * d + eps;
        s->mean[k] = s->centre[k] + d;
        s->rstd[k] = 1 / sqrt(variance);
        rstd_size[k] = s->rstd[k] * (1 + in_double * (squares + d * d) / variance);
    }
    for (int64_t i = 0; i < s->rows * s->c; i++) {
        int64_t k = i % s->c;
        want[i] = (s->x[i] - s->mean[k]) * s->rstd[k] * t.x[1][k] + t.x[2][k];
        size[i] = (fabs(s->x[i]) + fabs(s->mean[k])) * rstd_size[k] * fabs(t.x[1][k]) + fabs(t.x[2][k]);
        if (s->relu && want[i] < 0) want[i] = 0;
        t.terms = fmax(t.terms, size[i]);
    }
    run_case();
    expect_within(0, want, size, ROUNDINGS);
    t.scale = 1;
    expect(1, s->mean, 1e-6);
    expect_within(2, s->rstd, rstd_size, ROUNDINGS);
    memcpy(s->y, t.skipped ? want : t.y[0], (size_t)(s->rows * s->c) * sizeof(double));
    end_case();
    free(want), free(size), free(rstd_size);
}

static void synced_gradient_sums(synced *s)
{
    double *dw = zeros(s->c), *db = zeros(s->c);
    begin(LK__OP_batch_norm_grad_stats);
    t.attrs.activation = s->relu ? LK__RELU : LK__IDENTITY;
    in(t.real, 4, s->dims);
    copy_in(t.real, 4, s->dims, s->x, s->rows * s->c);
    copy_in(t.wide, 1, &s->c, s->mean, s->c), copy_in(t.wide, 1, &s->c, s->rstd, s->c);
    if (s->relu) copy_in(t.real, 4, s->dims, s->y, s->rows * s->c);
    out(LK_F64, 1, DIMS(2 * s->c), NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
    run_case();
    memcpy(s->dy, t.x[0], (size_t)(s->rows * s->c) * sizeof(double));
    memcpy(s->mean, t.x[2], (size_t)s->c * sizeof(double)), memcpy(s->rstd, t.x[3], (size_t)s->c * sizeof(double));
    for (int64_t i = 0; i < s->rows * s->c; i++) {
        int64_t k = i % s->c;
        double  g = s->relu && !(s->y[i] > 0) ? 0 : s->dy[i];
        s->sums[k] += g * (s->x[i] - s->mean[k]);
        s->sums[s->c + k] += g;
        dw[k] += g * (s->x[i] - s->mean[k]) * s->rstd[k];
        db[k] += g;
    }
    t.scale = 1;
    expect(0, s->sums, 5e-6);
    expect(1, dw, 1e-5);
    expect(2, db, 5e-6);
    end_case();
    free(dw), free(db);
}

static void synced_gradient(synced *s)
{
    double *want = zeros(s->rows * s->c), *size = zeros(s->rows * s->c), n = fmax(s->stats[0], 1);
    begin(LK__OP_batch_norm_grad_apply);
    t.attrs.activation = s->relu ? LK__RELU : LK__IDENTITY;
    copy_in(t.real, 4, s->dims, s->dy, s->rows * s->c), copy_in(t.real, 4, s->dims, s->x, s->rows * s->c);
    in(t.wide, 1, &s->c);
    copy_in(t.wide, 1, &s->c, s->mean, s->c), copy_in(t.wide, 1, &s->c, s->rstd, s->c);
    if (s->relu)
        copy_in(t.real, 4, s->dims, s->y, s->rows * s->c);
    else
        no_in();
    copy_in(LK_F64, 1, DIMS(2 * s->c), s->sums, 2 * s->c);
    copy_in(LK_F64, 1, DIMS(2 * s->c + 1), s->stats, 2 * s->c + 1);
    out(t.real, 4, s->dims, NULL);
    round_inputs();
    for (int64_t i = 0; i < s->rows * s->c; i++) {
        int64_t k = i % s->c;
        double  g = s->relu && !(s->y[i] > 0) ? 0 : s->dy[i], r = s->rstd[k];
        double  mean_g = s->sums[s->c + k] / n, slope = r * r * s->sums[k] / n;
        want[i] = t.x[2][k] * r * (g - mean_g - (s->x[i] - s->mean[k]) * slope);
        size[i] = fabs(t.x[2][k] * r) * (fabs(g) + fabs(mean_g) + (fabs(s->x[i]) + fabs(s->mean[k])) * fabs(slope));
        t.terms = fmax(t.terms, size[i]);
    }
    run_case();
    expect_within(0, want, size, ROUNDINGS);
    end_case();
    free(want), free(size);
}

static void synced_case(int64_t n, int64_t c, int64_t h, int64_t w, double offset, bool relu)
{
    int64_t rows = n * h * w, all = rows * c;
    synced  s = {.dims = {n, c, h, w}, .rows = rows, .c = c, .relu = relu};
    s.x = zeros(all), s.y = zeros(all), s.dy = zeros(all);
    s.mean = zeros(c), s.rstd = zeros(c), s.centre = zeros(c), s.stats = zeros(2 * c + 1), s.sums = zeros(2 * c);
    synced_stats(&s, offset);
    synced_apply(&s);
    if (cpu_entry()->run) synced_running(&s);
    synced_gradient_sums(&s);
    synced_gradient(&s);
    free(s.x), free(s.y), free(s.dy), free(s.mean), free(s.rstd), free(s.centre), free(s.stats), free(s.sums);
}

static void batch_norm_over_ranks(void)
{
    synced_case(4, 3, 5, 7, 0, false);
    synced_case(4, 3, 5, 7, 3, true);
    synced_case(1, 1, 1, 2, 0, true);
    synced_case(1, 8, 1, 2, 1000, false);
    synced_case(0, 5, 4, 4, 0, false);
    synced_case(17, 64, 3, 3, 1, true);
    synced_case(3, 130, 19, 5, 0, false);
}

static void tests(void)
{
    row_norms_and_their_gradients();
    group_norm_and_its_gradient();
    batch_norm_with_running_statistics();
    batch_norm_adds_a_residual();
    batch_norm_over_ranks();
    products_add_residuals();
}

int main(void) { return run_types(tests, LK_BF16); }
