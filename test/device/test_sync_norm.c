/* test_sync_norm.c - the kernels of synchronised batch norm: a batch split into uneven shares, some of them empty,
 * gives the results of the whole batch by naive loops in double and by plain batch norm, forward and backward.
 *
 * ctest: label threaded */
#include "kernel_case.h"

enum { MOST_SHARES = 5 };

typedef struct share_case {
    int     rank; /* 2: (N, C); 4: an image */
    int64_t c, h, w;
    int64_t shares[MOST_SHARES]; /* samples of each rank; -1 ends */
    bool    weight, bias, relu, running;
    double  offset;
} share_case;

/* The whole batch and its expected results, by rows; got: from the shares, plain: from one batch norm. */
typedef struct whole {
    int64_t samples, pixels, rows, c, shares;
    double *x, *dy, *w, *b, *running_mean, *running_var;
    double *mean, *var, *rstd, *y, *dx, *dw, *db;
    double *plain_y, *plain_mean, *plain_var, *plain_dx, *plain_dw, *plain_db;
    double *got_y, *got_mean, *got_rstd, *got_dw, *got_db, *stats, *centre, *sums;
    double  steepest;
} whole;

static const double epsilon = 1e-5, momentum = 0.1;

static double rounded(double value) /* to what every operand's type holds */
{
    if (t.real == LK_BF16) return (double)lk__from_bf16(lk__to_bf16((float)value));
    return t.real == LK_F32 ? (double)(float)value : value;
}

static double *drawn(int64_t n, double low, double high)
{
    double *p = zeros(n);
    for (int64_t i = 0; i < n; i++) p[i] = rounded(uniform(low, high));
    return p;
}

static double *given(lk_dtype type, int rank, const int64_t *dims, const double *from)
{
    double *to = in(type, rank, dims);
    memcpy(to, from, (size_t)lk__operand_elements(&t.in[t.inputs - 1]) * sizeof *to);
    return to;
}

static void given_or_none(const share_case *k, bool there, const double *from)
{
    if (there)
        given(t.wide, 1, &k->c, from);
    else
        no_in();
}

static void compare(const char *what, const double *got, const double *want, int64_t n, double tolerance, double scale,
                    double rounding)
{
    double limit = t.real == LK_F64 ? tolerance * 1e-7 : tolerance;
    char   text[128];
    for (int64_t i = 0; i < n; i++) {
        if (fabs(got[i] - want[i]) <= limit * fmax(fabs(want[i]), scale) + rounding * fabs(want[i])) continue;
        snprintf(text, sizeof text, "%s [%lld] is %.17g, not %.17g", what, (long long)i, got[i], want[i]);
        fail_case(text);
        return;
    }
}

static void close_enough(const char *what, const double *got, const double *want, int64_t n, double tolerance,
                         double scale)
{
    compare(what, got, want, n, tolerance, scale, 0);
}

/* y and dx: in bf16 each of the two was rounded. */
static void close_elements(const char *what, const double *got, const double *want, int64_t n, double tolerance)
{
    compare(what, got, want, n, tolerance, 1, t.real == LK_BF16 ? 0x1p-7 : 0);
}

/* ---- the oracle: two passes in double over the whole batch ---- */

static void statistics(whole *a)
{
    double n = (double)a->rows;
    for (int64_t c = 0; c < a->c; c++) a->mean[c] = a->var[c] = 0;
    for (int64_t i = 0; i < a->rows * a->c; i++) a->mean[i % a->c] += a->x[i] / n;
    for (int64_t i = 0; i < a->rows * a->c; i++) {
        double d = a->x[i] - a->mean[i % a->c];
        a->var[i % a->c] += d * d / n;
    }
    a->steepest = 1;
    for (int64_t c = 0; c < a->c; c++) {
        a->rstd[c] = a->rows ? 1 / sqrt(a->var[c] + epsilon) : 0;
        a->steepest = fmax(a->steepest, a->rstd[c]);
    }
}

/* Where two rows nearly agree in a channel, dx is what is left of terms that cancel, with an error that grows with the
 * square of 1 / sqrt(variance): such rows are drawn again. */
static void draw_rows(const share_case *k, whole *a)
{
    do {
        free(a->x);
        a->x = drawn(a->rows * a->c, k->offset - 2, k->offset + 2);
        statistics(a);
    } while (a->rows > 1 && a->steepest > 8);
}

static void oracle(const share_case *k, whole *a)
{
    double  n = (double)a->rows;
    double *g = zeros(a->rows * a->c);
    for (int64_t i = 0; i < a->rows * a->c; i++) {
        int64_t c = i % a->c;
        double  hat = (a->x[i] - a->mean[c]) * a->rstd[c];
        a->y[i] = hat * (k->weight ? a->w[c] : 1) + (k->bias ? a->b[c] : 0);
        g[i] = k->relu && a->y[i] <= 0 ? 0 : a->dy[i];
        if (k->relu && a->y[i] <= 0) a->y[i] = 0;
        a->dw[c] += g[i] * hat;
        a->db[c] += g[i];
    }
    for (int64_t i = 0; i < a->rows * a->c; i++) {
        int64_t c = i % a->c;
        double  hat = (a->x[i] - a->mean[c]) * a->rstd[c];
        a->dx[i] = (k->weight ? a->w[c] : 1) * a->rstd[c] * (g[i] - a->db[c] / n - hat * a->dw[c] / n);
    }
    free(g);
}

/* ---- plain batch norm over the whole ---- */

static void norm_attrs(const share_case *k)
{
    t.attrs.epsilon = epsilon;
    t.attrs.momentum = momentum;
    t.attrs.activation = k->relu ? LK__RELU : LK__IDENTITY;
}

static void plain(const share_case *k, whole *a)
{
    int64_t dims[4] = {a->samples, k->c, k->h, k->w}, c = k->c;
    begin(LK__OP_batch_norm);
    norm_attrs(k);
    given(t.real, k->rank, dims, a->x);
    given_or_none(k, k->weight, a->w);
    given_or_none(k, k->bias, a->b);
    given(t.wide, 1, &c, a->running_mean);
    given(t.wide, 1, &c, a->running_var);
    out(t.real, k->rank, dims, NULL);
    out(t.wide, 1, &c, NULL);
    out(t.wide, 1, &c, NULL);
    run_case();
    memcpy(a->plain_y, t.y[0], (size_t)(a->rows * c) * sizeof(double));
    double *mean = zeros(c), *rstd = zeros(c);
    memcpy(mean, t.y[1], (size_t)c * sizeof *mean);
    memcpy(rstd, t.y[2], (size_t)c * sizeof *rstd);
    t.attrs.update = true;
    run_once(2, NULL);
    for (int64_t i = 0; i < c; i++) {
        a->plain_mean[i] = get(t.wide, t.in[3].data, i);
        a->plain_var[i] = get(t.wide, t.in[4].data, i);
    }
    end_case();

    begin(LK__OP_batch_norm_grad);
    norm_attrs(k);
    given(t.real, k->rank, dims, a->dy);
    given(t.real, k->rank, dims, a->x);
    given_or_none(k, k->weight, a->w);
    given(t.wide, 1, &c, mean);
    given(t.wide, 1, &c, rstd);
    if (k->relu) given(t.real, k->rank, dims, a->plain_y);
    out(t.real, k->rank, dims, NULL);
    out(t.wide, 1, &c, NULL);
    out(t.wide, 1, &c, NULL);
    run_case();
    memcpy(a->plain_dx, t.y[0], (size_t)(a->rows * c) * sizeof(double));
    memcpy(a->plain_dw, t.y[1], (size_t)c * sizeof(double));
    memcpy(a->plain_db, t.y[2], (size_t)c * sizeof(double));
    end_case();
    free(mean), free(rstd);
}

/* ---- the shares ---- */

static void share_stats(const share_case *k, whole *a, int64_t first, int64_t samples)
{
    int64_t dims[4] = {samples, k->c, k->h, k->w}, c = k->c, rows = samples * a->pixels;
    double *want = zeros(3 * c), *want_centre = zeros(c);
    begin(LK__OP_batch_norm_stats);
    given(t.real, k->rank, dims, a->x + first * a->pixels * c);
    if (k->running) given(t.wide, 1, &c, a->running_mean);
    out(LK_F64, 2, DIMS(3, c), NULL);
    out(LK_F64, 1, &c, NULL);
    run_case();
    for (int64_t i = 0; i < c; i++) want_centre[i] = k->running ? a->running_mean[i] : 0;
    for (int64_t i = 0; i < c; i++) want[i] = (double)rows;
    for (int64_t i = 0; i < rows * c; i++) {
        double d = t.x[0][i] - want_centre[i % c];
        want[c + i % c] += d;
        want[2 * c + i % c] += d * d;
    }
    if (t.y[0][0] != want[0]) fail_case("the number of rows");
    t.scale = sqrt((double)rows); /* of sums whose terms cancel */
    expect(0, want, 2e-6 * (1 + fabs(k->offset)));
    if (memcmp(t.y[1], want_centre, (size_t)c * sizeof *want) != 0) fail_case("the centre");
    for (int64_t i = 0; i < 3 * c; i++) a->stats[i] += t.y[0][i];
    memcpy(a->centre, t.y[1], (size_t)c * sizeof *a->centre);
    end_case();
    free(want), free(want_centre);
}

static void share_apply(const share_case *k, whole *a, int64_t first, int64_t samples)
{
    int64_t dims[4] = {samples, k->c, k->h, k->w}, c = k->c, rows = samples * a->pixels, at = first * a->pixels * c;
    begin(LK__OP_batch_norm_apply);
    norm_attrs(k);
    given(t.real, k->rank, dims, a->x + at);
    given_or_none(k, k->weight, a->w);
    given_or_none(k, k->bias, a->b);
    given(t.wide, 1, &c, a->running_mean);
    given(t.wide, 1, &c, a->running_var);
    in(LK_I64, 0, NULL)[0] = 41;
    given(LK_F64, 2, DIMS(3, c), a->stats);
    given(LK_F64, 1, &c, a->centre);
    out(t.real, k->rank, dims, NULL);
    out(t.wide, 1, &c, NULL);
    out(t.wide, 1, &c, NULL);
    run_case();
    double slack = 1 + fabs(k->offset);
    t.scale = 1;
    expect(0, a->y + at, 1e-6 * a->steepest * slack);
    expect(1, a->mean, 1e-6);
    /* Where the variance is tiny, the rounding of what cancels in it is not. */
    expect(2, a->rstd, 3e-6 * slack * (t.real == LK_F64 ? a->steepest * a->steepest : 1));
    close_elements("y against batch_norm", t.y[0], a->plain_y + at, rows * c, 1e-6 * a->steepest * slack);
    memcpy(a->got_y + at, t.y[0], (size_t)(rows * c) * sizeof(double));
    memcpy(a->got_mean, t.y[1], (size_t)c * sizeof(double));
    memcpy(a->got_rstd, t.y[2], (size_t)c * sizeof(double));

    /* Running statistics change only where the step updates buffers, to the global ones; y does not depend on them,
     * so that leaves after the one that updates them are right too. */
    bool moves = a->rows > 0;
    for (int turn = 0; turn < 3; turn++) {
        t.attrs.update = true;
        t.step.updates_buffers = turn == 1;
        run_once(3, NULL);
        double *mean = zeros(c), *var = zeros(c), *y = zeros(rows * c), unbiased = a->rows > 1 ? a->rows - 1 : 1;
        for (int64_t i = 0; i < rows * c; i++) y[i] = get(t.real, t.out[0].data, i);
        if (memcmp(y, t.y[0], (size_t)(rows * c) * sizeof *y) != 0) fail_case("running statistics change y");
        for (int64_t i = 0; i < c; i++) {
            double m = a->running_mean[i], v = a->running_var[i];
            bool   moved = turn > 0 && moves;
            mean[i] = moved ? (1 - momentum) * m + momentum * a->mean[i] : m;
            var[i] = moved ? (1 - momentum) * v + momentum * a->var[i] * (double)a->rows / unbiased : v;
            t.y[1][i] = get(t.wide, t.in[3].data, i);
            t.y[2][i] = get(t.wide, t.in[4].data, i);
        }
        close_enough("running_mean", t.y[1], mean, c, 1e-6 * slack, 1);
        close_enough("running_var", t.y[2], var, c, 1e-6 * slack, 1);
        if (turn > 0) close_enough("running_mean against batch_norm", t.y[1], a->plain_mean, c, 1e-6 * slack, 1);
        if (turn > 0) close_enough("running_var against batch_norm", t.y[2], a->plain_var, c, 1e-6 * slack, 1);
        if (*(int64_t *)t.in[5].data != (turn > 0 && moves ? 42 : 41)) fail_case("num_batches_tracked");
        free(mean), free(var), free(y);
    }
    end_case();
}

static void share_grad_stats(const share_case *k, whole *a, int64_t first, int64_t samples, bool gradients)
{
    int64_t dims[4] = {samples, k->c, k->h, k->w}, c = k->c, rows = samples * a->pixels, at = first * a->pixels * c;
    double *want = zeros(2 * c), *dw = zeros(c);
    begin(LK__OP_batch_norm_grad_stats);
    norm_attrs(k);
    given(t.real, k->rank, dims, a->dy + at);
    given(t.real, k->rank, dims, a->x + at);
    given(t.wide, 1, &c, a->got_mean);
    given(t.wide, 1, &c, a->got_rstd);
    if (k->relu) given(t.real, k->rank, dims, a->got_y + at);
    out(LK_F64, 2, DIMS(2, c), NULL);
    if (gradients) out(t.wide, 1, &c, NULL), out(t.wide, 1, &c, NULL);
    run_case();
    for (int64_t i = 0; i < rows * c; i++) {
        double g = k->relu && a->got_y[at + i] <= 0 ? 0 : t.x[0][i];
        want[i % c] += g * (t.x[1][i] - t.x[2][i % c]);
        want[c + i % c] += g;
    }
    for (int64_t i = 0; i < c; i++) dw[i] = want[i] * t.x[3][i];
    t.scale = sqrt((double)rows);
    expect(0, want, 3e-6 * (1 + fabs(k->offset)));
    if (gradients) {
        expect(1, dw, 3e-6 * a->steepest * (1 + fabs(k->offset)));
        expect(2, want + c, 3e-6);
        for (int64_t i = 0; i < c; i++) a->got_dw[i] += t.y[1][i], a->got_db[i] += t.y[2][i];
    }
    for (int64_t i = 0; i < 2 * c; i++) a->sums[i] += gradients ? t.y[0][i] : 0;
    end_case();
    free(want), free(dw);
}

static void share_grad_apply(const share_case *k, whole *a, int64_t first, int64_t samples)
{
    int64_t dims[4] = {samples, k->c, k->h, k->w}, c = k->c, rows = samples * a->pixels, at = first * a->pixels * c;
    begin(LK__OP_batch_norm_grad_apply);
    norm_attrs(k);
    given(t.real, k->rank, dims, a->dy + at);
    given(t.real, k->rank, dims, a->x + at);
    given_or_none(k, k->weight, a->w);
    given(t.wide, 1, &c, a->got_mean);
    given(t.wide, 1, &c, a->got_rstd);
    if (k->relu)
        given(t.real, k->rank, dims, a->got_y + at);
    else
        no_in();
    given(LK_F64, 2, DIMS(2, c), a->sums);
    given(LK_F64, 2, DIMS(3, c), a->stats);
    out(t.real, k->rank, dims, NULL);
    run_case();
    t.scale = 1;
    double tolerance = 4e-6 * a->steepest * (1 + fabs(k->offset));
    expect(0, a->dx + at, tolerance);
    close_elements("dx against batch_norm_grad", t.y[0], a->plain_dx + at, rows * c, tolerance);
    end_case();
}

static void one_case(const share_case *k)
{
    whole a = {.pixels = k->rank == 4 ? k->h * k->w : 1, .c = k->c};
    for (; a.shares < MOST_SHARES && k->shares[a.shares] >= 0; a.shares++) a.samples += k->shares[a.shares];
    a.rows = a.samples * a.pixels;
    int64_t  all = a.rows * a.c;
    double **by_row[] = {&a.y, &a.dx, &a.plain_y, &a.plain_dx, &a.got_y};
    double **by_channel[] = {&a.mean,      &a.var,      &a.rstd,     &a.dw,       &a.db,       &a.plain_mean,
                             &a.plain_var, &a.plain_dw, &a.plain_db, &a.got_mean, &a.got_rstd, &a.got_dw,
                             &a.got_db,    &a.stats,    &a.centre,   &a.sums};
    for (size_t i = 0; i < COUNT(by_row); i++) *by_row[i] = zeros(all);
    for (size_t i = 0; i < COUNT(by_channel); i++) *by_channel[i] = zeros(3 * a.c);
    draw_rows(k, &a);
    a.dy = drawn(all, -2, 2);
    a.w = drawn(a.c, -2, 2);
    a.b = drawn(a.c, -2, 2);
    a.running_mean = drawn(a.c, k->offset - 1, k->offset + 1);
    a.running_var = drawn(a.c, 0.5, 2);
    oracle(k, &a);
    plain(k, &a);
    for (int step = 0; step < 4; step++) {
        int64_t first = 0;
        for (int64_t i = 0; i < a.shares; first += k->shares[i++]) {
            if (step == 0) share_stats(k, &a, first, k->shares[i]);
            if (step == 1) share_apply(k, &a, first, k->shares[i]);
            if (step == 2) share_grad_stats(k, &a, first, k->shares[i], true);
            if (step == 2 && i == 0) share_grad_stats(k, &a, first, k->shares[i], false);
            if (step == 3) share_grad_apply(k, &a, first, k->shares[i]);
        }
    }
    double tolerance = 4e-6 * (1 + fabs(k->offset)) * a.steepest, scale = sqrt((double)a.rows);
    close_enough("dw", a.got_dw, a.dw, a.c, tolerance, scale);
    close_enough("db", a.got_db, a.db, a.c, tolerance, scale);
    close_enough("dw against batch_norm_grad", a.got_dw, a.plain_dw, a.c, tolerance, scale);
    close_enough("db against batch_norm_grad", a.got_db, a.plain_db, a.c, tolerance, scale);
    for (size_t i = 0; i < COUNT(by_row); i++) free(*by_row[i]);
    for (size_t i = 0; i < COUNT(by_channel); i++) free(*by_channel[i]);
    free(a.x), free(a.dy), free(a.w), free(a.b), free(a.running_mean), free(a.running_var);
}

static void shares_of_a_batch_give_the_whole_batch(void)
{
    static const share_case list[] = {
        {4, 3, 5, 7, {2, 0, 1, 4, -1}, true, true, false, true, 0},
        {4, 16, 3, 3, {3, 1, -1}, true, true, true, true, 0},
        {4, 17, 4, 5, {0, 0, 3, -1}, true, false, true, true, 2},
        {2, 5, 0, 0, {7, 0, 2, 13, 1}, true, true, true, true, 0},
        {2, 1, 0, 0, {5, 6, -1}, false, false, false, true, 0},
        {2, 4, 0, 0, {1, 0, 0, 0, 0}, true, true, false, true, 0}, /* one row anywhere */
        {2, 9, 0, 0, {1, 1, -1}, false, true, true, false, 0},
        {4, 6, 4, 4, {0, 0, -1}, true, true, true, true, 0}, /* no row anywhere */
        {4, 33, 19, 23, {5, 11, 1, -1}, true, true, true, true, 0},
        {4, 130, 15, 15, {1, 2, -1}, false, false, true, false, 1},
        {2, 67, 0, 0, {1500, 1, 0, 777, -1}, true, true, true, true, 1},
        {2, 3, 0, 0, {30011, 12007, -1}, true, true, false, true, 10},
        {4, 64, 32, 32, {2, 3, -1}, true, true, false, true, 0.5},
        {2, 7, 0, 0, {11, 0, 4, -1}, true, true, true, true, 100},
        {2, 7, 0, 0, {11, 0, 4, -1}, true, true, false, false, 100},
    };
    for (size_t i = 0; i < COUNT(list); i++) one_case(&list[i]);
}

/* A channel that is everywhere the same has no variance, whatever its centre, and never one below zero. */
static void a_constant_channel_has_no_variance(void)
{
    enum { ROWS = 37, C = 61 };
    double stats[3 * C], centre[C], values[C], zero[ROWS * C] = {0}, epsilons[] = {1e-5, 1e-24};
    for (int c = 0; c < C; c++) values[c] = uniform(-9, 9);
    for (int k = 0; k < 2; k++) {
        begin(LK__OP_batch_norm_stats);
        double *x = in(t.real, 2, DIMS(ROWS, C));
        for (int64_t i = 0; i < ROWS * C; i++) x[i] = values[i % C];
        in(t.wide, 1, DIMS(C));
        out(LK_F64, 2, DIMS(3, C), NULL);
        out(LK_F64, 1, DIMS(C), NULL);
        run_case();
        memcpy(stats, t.y[0], sizeof stats);
        memcpy(centre, t.y[1], sizeof centre);
        end_case();
        begin(LK__OP_batch_norm_apply);
        t.attrs.epsilon = epsilons[k];
        x = in(t.real, 2, DIMS(ROWS, C));
        for (int64_t i = 0; i < ROWS * C; i++) x[i] = values[i % C];
        for (int i = 1; i < 6; i++) no_in();
        given(LK_F64, 2, DIMS(3, C), stats);
        given(LK_F64, 1, DIMS(C), centre);
        out(t.real, 2, DIMS(ROWS, C), NULL);
        out(t.wide, 1, DIMS(C), NULL);
        out(t.wide, 1, DIMS(C), NULL);
        run_case();
        double steepest = 1 / sqrt(epsilons[k]);
        t.scale = 9 * steepest; /* what cancels in y = x factor + shift */
        expect(0, zero, 1e-6);
        for (int c = 0; c < C; c++) {
            double rstd = t.y[2][c];
            if (!(rstd > 0 && rstd <= 1.0001 * steepest)) fail_case("rstd of a constant");
            if (k == 0 && !(rstd >= 0.9999 * steepest)) fail_case("a constant has a variance");
        }
        end_case();
    }
}

static void one_rank_sums_to_itself(void)
{
    for (int64_t n = 0; n < 70; n += 23) {
        begin(LK__OP_all_reduce);
        in(LK_F64, 1, &n);
        out(LK_F64, 1, &n, NULL);
        run_case();
        if (!t.skipped && memcmp(t.x[0], t.y[0], (size_t)n * sizeof(double)) != 0) fail_case("a copy");
        end_case();
    }
}

/* The last part of a gathered value, and a gather of one. */
static void a_part_is_copied_whole(void)
{
    for (int64_t n = 0; n < 70; n += 23) {
        begin(LK__OP_own_part);
        t.step.part = 2;
        in(LK_F64, 2, DIMS(3, n));
        out(LK_F64, 1, &n, NULL);
        run_case();
        if (n && !t.skipped && memcmp((double *)t.x[0] + 2 * n, t.y[0], (size_t)n * sizeof(double)) != 0)
            fail_case("part 2");
        end_case();
        begin(LK__OP_all_gather);
        in(LK_F64, 1, &n);
        out(LK_F64, 2, DIMS(1, n), NULL);
        run_case();
        if (n && !t.skipped && memcmp(t.x[0], t.y[0], (size_t)n * sizeof(double)) != 0) fail_case("a copy");
        end_case();
        begin(LK__OP_reduce_scatter);
        in(LK_F64, 2, DIMS(1, n));
        out(LK_F64, 1, &n, NULL);
        run_case();
        if (n && !t.skipped && memcmp(t.x[0], t.y[0], (size_t)n * sizeof(double)) != 0) fail_case("a copy");
        end_case();
    }
}

static void tests(void)
{
    shares_of_a_batch_give_the_whole_batch();
    a_constant_channel_has_no_variance();
    one_rank_sums_to_itself();
    a_part_is_copied_whole();
}

int main(void) { return run_types(tests, LK_BF16); }
