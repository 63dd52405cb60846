/* test_kernels_batch_norm.c - batch norm, in training and evaluation, over one rank and several, and its gradients
 * against naive loops in double.
 *
 * ctest: label threaded */
#include "kernel_case.h"

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
    out(LK_F64, 2, DIMS(3, s->c), NULL);
    out(LK_F64, 1, &s->c, NULL);
    run_case();
    for (int64_t k = 0; k < s->c; k++) s->stats[k] = (double)s->rows;
    memcpy(s->centre, t.x[1], (size_t)s->c * sizeof(double));
    memcpy(s->x, t.x[0], (size_t)(s->rows * s->c) * sizeof(double));
    double *size = zeros(3 * s->c);
    for (int64_t i = 0; i < s->rows * s->c; i++) {
        double d = s->x[i] - s->centre[i % s->c], terms = fabs(s->x[i]) + fabs(s->centre[i % s->c]);
        s->stats[s->c + i % s->c] += d;
        s->stats[2 * s->c + i % s->c] += d * d;
        size[s->c + i % s->c] += terms;
        size[2 * s->c + i % s->c] += 2 * fabs(d) * terms;
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
    copy_in(LK_F64, 2, DIMS(3, s->c), s->stats, 3 * s->c);
    copy_in(LK_F64, 1, &s->c, s->centre, s->c);
    out(t.real, 4, s->dims, NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
    round_inputs();
    run_once(3, NULL);
    for (int64_t k = 0; k < s->c; k++) {
        double d = rows > 0 ? s->stats[s->c + k] / rows : 0, squares = s->stats[2 * s->c + k];
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
    copy_in(LK_F64, 2, DIMS(3, s->c), s->stats, 3 * s->c);
    copy_in(LK_F64, 1, &s->c, s->centre, s->c);
    out(t.real, 4, s->dims, NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
    round_inputs();
    for (int64_t k = 0; k < s->c && s->rows > 0; k++) {
        double d = s->stats[s->c + k] / n, squares = s->stats[2 * s->c + k] / n, variance = squares - d * d + eps;
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
    out(LK_F64, 2, DIMS(2, s->c), NULL), out(t.wide, 1, &s->c, NULL), out(t.wide, 1, &s->c, NULL);
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
    copy_in(LK_F64, 2, DIMS(2, s->c), s->sums, 2 * s->c);
    copy_in(LK_F64, 2, DIMS(3, s->c), s->stats, 3 * s->c);
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
    s.mean = zeros(c), s.rstd = zeros(c), s.centre = zeros(c), s.stats = zeros(3 * c), s.sums = zeros(2 * c);
    synced_stats(&s, offset);
    synced_apply(&s);
    if (cpu_entry()) synced_running(&s);
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
    batch_norm_with_running_statistics();
    batch_norm_adds_a_residual();
    batch_norm_over_ranks();
}

int main(void) { return run_types(tests, LK_BF16); }
