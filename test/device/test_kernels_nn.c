/* test_kernels_nn.c - pooling, dropout, embedding, losses and optimizers against naive loops in double.
 *
 * ctest: label threaded */
#include "base/random.h"
#include "kernel_case.h"

/* ---- pooling; images are channels last ---- */

typedef struct shape {
    int64_t n, c, h, w, kernel, stride, padding;
} shape;

static int64_t at(const shape *s, int64_t h, int64_t w, int64_t n, int64_t i, int64_t j, int64_t c)
{
    return ((n * h + i) * w + j) * s->c + c;
}

static int64_t pooled(int64_t size, const shape *s) { return (size + 2 * s->padding - s->kernel) / s->stride + 1; }

static void set_window(const shape *s)
{
    t.attrs.kernel = s->kernel;
    t.attrs.stride = s->stride;
    t.attrs.padding = s->padding;
}

static void max_pool_case(shape s, bool with_index, double special)
{
    int64_t oh = pooled(s.h, &s), ow = pooled(s.w, &s), outs = s.n * oh * ow * s.c, ins = s.n * s.h * s.w * s.c;
    double *want = zeros(outs), *index = zeros(outs), *dx = zeros(ins);
    begin(LK__OP_max_pool2d);
    set_window(&s);
    double *x = in(t.real, 4, DIMS(s.n, s.c, s.h, s.w));
    for (int64_t i = 0; i < ins; i++) x[i] = i % 7 == 3 && special != 0 ? special : floor(x[i] * 3); /* many equals */
    out(t.real, 4, DIMS(s.n, s.c, oh, ow), NULL);
    if (with_index) out(LK_U8, 4, DIMS(s.n, s.c, oh, ow), NULL);
    run_case();
    for (int64_t o = 0; o < outs; o++) {
        int64_t c = o % s.c, j = o / s.c % ow, i = o / s.c / ow % oh, n = o / s.c / ow / oh;
        want[o] = -INFINITY;
        index[o] = -1;
        for (int64_t a = 0; a < s.kernel; a++) {
            for (int64_t b = 0; b < s.kernel; b++) {
                int64_t row = i * s.stride - s.padding + a, column = j * s.stride - s.padding + b;
                if (row < 0 || row >= s.h || column < 0 || column >= s.w) continue;
                double v = t.x[0][at(&s, s.h, s.w, n, row, column, c)];
                if (index[o] >= 0 && !(v > want[o]) && !isnan(v)) continue;
                want[o] = v;
                index[o] = (double)(a * s.kernel + b);
            }
        }
    }
    expect(0, want, 0);
    if (with_index) expect(1, index, 0);
    end_case();

    begin(LK__OP_max_pool2d_grad);
    set_window(&s);
    in(t.real, 4, DIMS(s.n, s.c, oh, ow));
    memcpy(in(LK_U8, 4, DIMS(s.n, s.c, oh, ow)), index, (size_t)outs * sizeof *index);
    out(t.real, 4, DIMS(s.n, s.c, s.h, s.w), NULL);
    run_case();
    for (int64_t o = 0; o < outs; o++) {
        int64_t c = o % s.c, j = o / s.c % ow, i = o / s.c / ow % oh, n = o / s.c / ow / oh;
        int64_t row = i * s.stride - s.padding + (int64_t)index[o] / s.kernel;
        int64_t column = j * s.stride - s.padding + (int64_t)index[o] % s.kernel;
        dx[at(&s, s.h, s.w, n, row, column, c)] += t.x[0][o];
    }
    expect(0, dx, 5e-7);
    end_case();
    free(want);
    free(index);
    free(dx);
}

static void avg_pool_case(shape s)
{
    int64_t oh = pooled(s.h, &s), ow = pooled(s.w, &s), outs = s.n * oh * ow * s.c, ins = s.n * s.h * s.w * s.c;
    for (int grad = 0; grad < 2; grad++) {
        double *want = zeros(grad ? ins : outs);
        begin(grad ? LK__OP_avg_pool2d_grad : LK__OP_avg_pool2d);
        set_window(&s);
        in(t.real, 4, grad ? DIMS(s.n, s.c, oh, ow) : DIMS(s.n, s.c, s.h, s.w));
        out(t.real, 4, grad ? DIMS(s.n, s.c, s.h, s.w) : DIMS(s.n, s.c, oh, ow), NULL);
        run_case();
        for (int64_t o = 0; o < outs; o++) {
            int64_t c = o % s.c, j = o / s.c % ow, i = o / s.c / ow % oh, n = o / s.c / ow / oh;
            for (int64_t a = 0; a < s.kernel; a++) {
                for (int64_t b = 0; b < s.kernel; b++) {
                    int64_t row = i * s.stride - s.padding + a, column = j * s.stride - s.padding + b;
                    if (row < 0 || row >= s.h || column < 0 || column >= s.w) continue;
                    int64_t inside = at(&s, s.h, s.w, n, row, column, c);
                    if (grad)
                        want[inside] += t.x[0][o] / (double)(s.kernel * s.kernel);
                    else
                        want[o] += t.x[0][inside] / (double)(s.kernel * s.kernel);
                }
            }
        }
        expect(0, want, 1e-6);
        free(want);
        end_case();
    }
}

static void global_pool_case(int64_t n, int64_t c, int64_t h, int64_t w)
{
    double *want = zeros(n * c), *dx = zeros(n * c * h * w);
    begin(LK__OP_global_avg_pool2d);
    in(t.real, 4, DIMS(n, c, h, w));
    out(t.real, 2, DIMS(n, c), NULL);
    run_case();
    for (int64_t i = 0; i < n * h * w * c; i++) want[i / (h * w * c) * c + i % c] += t.x[0][i] / (double)(h * w);
    expect(0, want, 1e-6);
    end_case();
    begin(LK__OP_global_avg_pool2d_grad);
    in(t.real, 2, DIMS(n, c));
    out(t.real, 4, DIMS(n, c, h, w), NULL);
    run_case();
    for (int64_t i = 0; i < n * h * w * c; i++) dx[i] = t.x[0][i / (h * w * c) * c + i % c] / (double)(h * w);
    expect(0, dx, 2e-7);
    end_case();
    free(want);
    free(dx);
}

static void pools_as_pytorch(void)
{
    static const shape shapes[] = {
        {1, 1, 2, 2, 2, 2, 0},    {2, 3, 5, 7, 2, 2, 0},    {0, 3, 4, 4, 2, 2, 0}, {3, 5, 9, 8, 3, 2, 1},
        {2, 17, 6, 6, 3, 1, 1},   {1, 4, 11, 11, 5, 3, 2},  {2, 8, 7, 9, 2, 3, 0}, {5, 33, 14, 14, 2, 2, 0},
        {3, 64, 32, 32, 2, 2, 0}, {2, 13, 40, 40, 3, 2, 1}, {1, 9, 3, 3, 1, 1, 0}, {4, 6, 16, 16, 4, 4, 2},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        max_pool_case(shapes[i], true, 0);
        max_pool_case(shapes[i], false, 0);
        max_pool_case(shapes[i], true, NAN);
        max_pool_case(shapes[i], true, -INFINITY);
        avg_pool_case(shapes[i]);
        global_pool_case(shapes[i].n, shapes[i].c, shapes[i].h, shapes[i].w);
    }
    global_pool_case(3, 600, 5, 1);
    global_pool_case(2, 3, 101, 97);
}

/* ---- dropout ---- */

/* A sample is `length` rows of axis 0, where a reshape merged axes. Without ids the step is used instead of the
 * epoch. */
static void dropout_case(int rank, const int64_t *dims, int64_t length, double p, bool with_ids)
{
    int64_t samples = dims[0] / length, columns = length, kept = 0;
    for (int i = 1; i < rank; i++) columns *= dims[i];
    int64_t *ids = malloc((size_t)(samples + 1) * sizeof *ids);
    double  *want = zeros(samples * columns);
    for (int64_t r = 0; r < samples; r++) ids[r] = 1000003 * r + ((int64_t)r << 33);
    begin(LK__OP_dropout);
    t.attrs.probability = p;
    t.attrs.stream = 0xfeedface12345;
    t.attrs.rows = length;
    t.step.epoch = 3;
    t.step.step = 17;
    t.step.count = samples;
    t.step.sample_ids = with_ids ? ids : NULL;
    t.in_place = 1;
    in(t.real, rank, dims);
    out(t.real, rank, dims, NULL);
    run_case();
    uint64_t   turn = with_ids ? 3 : ~UINT64_C(17);
    lk__random random =
        lk__random_make(t.step.seed, LK__FOR_DROPOUT, t.attrs.stream ^ turn * UINT64_C(0x9E3779B97F4A7C15));
    for (int64_t i = 0; i < samples * columns; i++) {
        uint64_t item = (uint64_t)(with_ids ? ids[i / columns] : i / columns);
        bool     stays = lk__random_unit(lk__random_u32(&random, item, (uint32_t)(i % columns))) >= p;
        want[i] = stays ? t.x[0][i] / (1 - p) : 0;
        kept += stays;
    }
    expect(0, want, 2e-7);
    double n = (double)(samples * columns), expected = n * (1 - p);
    if (fabs((double)kept - expected) > 5 * sqrt(n * p * (1 - p)) + 1e-9) fail_case("keeps too many or too few");
    end_case();
    free(ids);
    free(want);
}

static void dropout_draws_by_sample_and_element(void)
{
    static const double ps[] = {0, 0.1, 0.5, 1};
    for (size_t i = 0; i < COUNT(ps); i++) {
        dropout_case(1, DIMS(37), 1, ps[i], false);
        dropout_case(2, DIMS(3, 5), 1, ps[i], true);
        dropout_case(2, DIMS(0, 5), 1, ps[i], true);
        dropout_case(2, DIMS(5, 0), 1, ps[i], true);
        dropout_case(2, DIMS(15, 7), 5, ps[i], true);
        dropout_case(4, DIMS(7, 3, 41, 43), 1, ps[i], true);
        dropout_case(2, DIMS(2, 40009), 1, ps[i], false);
    }
}

/* ---- embedding ---- */

static void embedding_case(int64_t count, int64_t rows, int64_t columns, int bad)
{
    double *want = zeros(count * columns), *table = zeros(rows * columns);
    for (int grad = 0; grad < 2; grad++) {
        begin(grad ? LK__OP_embedding_grad : LK__OP_embedding);
        double *ids = in(LK_I32, 1, DIMS(count));
        for (int64_t i = 0; i < count; i++) ids[i] = floor(uniform(0, 0.999) * (double)rows);
        if (bad && count > 2) ids[0] = -1, ids[2] = (double)rows;
        if (grad)
            in(t.real, 2, DIMS(count, columns));
        else
            in(t.real, 2, DIMS(rows, columns));
        out(grad ? t.wide : t.real, 2, grad ? DIMS(rows, columns) : DIMS(count, columns), NULL);
        run_case();
        for (int64_t i = 0; i < count; i++) {
            int64_t id = (int64_t)t.x[0][i];
            bool    known = id >= 0 && id < rows;
            for (int64_t c = 0; c < columns; c++) {
                if (grad && known) table[id * columns + c] += t.x[1][i * columns + c];
                if (!grad) want[i * columns + c] = known ? t.x[1][id * columns + c] : 0;
            }
        }
        expect(0, grad ? table : want, grad ? 3e-6 : 0);
        expect_invalid(!grad && bad && count > 2 && columns > 0 ? 0 : -1, 0, -1, rows);
        end_case();
    }
    free(want), free(table);
}

/* ---- cache_write ---- */

/* Rows go where `rows` says, nothing else changes; one below 0 goes nowhere, one past the end is reported, the later of
 * two stays. */
static void cache_write_case(int64_t batch, int64_t tokens, int64_t s, int64_t width, bool bad)
{
    double *want = zeros(batch * s * width);
    begin(LK__OP_cache_write);
    double *cache = in(t.real, 3, DIMS(batch + 1, s, width)); /* a buffer has no count */
    in(t.real, 3, DIMS(batch, tokens, width));
    double *rows = in(LK_I32, 2, DIMS(batch, tokens));
    for (int64_t i = 0; i < batch * tokens; i++) rows[i] = floor(uniform(-2, 0.999 * (double)s));
    if (bad) rows[batch * tokens - 1] = (double)s;
    out(t.real, 3, DIMS(batch, s, width), cache);
    run_case();
    for (int64_t i = 0; i < batch * s * width; i++) want[i] = t.initial[0][i];
    for (int64_t i = 0; i < batch * tokens; i++) {
        int64_t row = (int64_t)t.x[2][i], sample = i / tokens;
        for (int64_t c = 0; c < width && row >= 0 && row < s; c++)
            want[(sample * s + row) * width + c] = t.x[1][i * width + c];
    }
    expect(0, want, 0);
    expect_invalid(bad ? batch * tokens - 1 : -1, 2, (int32_t)s, s);
    end_case();
    free(want);
}

static void cache_write_puts_rows_where_they_belong(void)
{
    cache_write_case(1, 1, 1, 1, false);
    cache_write_case(3, 1, 17, 5, false);
    cache_write_case(2, 7, 5, 33, false);
    cache_write_case(0, 3, 4, 8, false);
    cache_write_case(5, 3, 64, 129, true);
    cache_write_case(1, 40, 100, 64, true);
}

static void embedding_looks_up_and_adds_in_order(void)
{
    embedding_case(5, 7, 3, 0);
    embedding_case(5, 7, 4, 1);
    embedding_case(0, 7, 4, 0);
    embedding_case(3, 1, 1, 1);
    embedding_case(3, 5, 0, 0);
    embedding_case(1009, 300, 129, 1);
    embedding_case(301, 10007, 17, 0);
}

/* ---- losses ---- */

static void entropy_case(int64_t rows, int64_t classes, double smoothing, bool weighted, int bad)
{
    double  sum = 0, weight = 0, correct = 0, dloss = 0.37, *probs = zeros(rows * classes), *dx = zeros(rows * classes);
    double *labels_kept = zeros(rows), *w_kept = zeros(rows);
    begin(LK__OP_cross_entropy);
    t.attrs.ignore_index = -100;
    t.attrs.label_smoothing = smoothing;
    double *x = in(t.real, 2, DIMS(rows, classes)), *labels = in(LK_I32, 1, DIMS(rows));
    for (int64_t i = 0; i < rows * classes; i++) x[i] = rint(x[i] * 4); /* with equal maxima */
    for (int64_t r = 0; r < rows; r++) labels[r] = r % 5 == 4 ? -100 : floor(uniform(0, 0.999) * (double)classes);
    if (bad == 1) labels[rows / 2] = (double)classes;
    if (bad == 2) labels[rows / 2] = -1;
    if (weighted) {
        double *w = in(t.real, 1, DIMS(rows));
        for (int64_t r = 0; r < rows; r++) w[r] = fabs(w[r]);
    }
    for (int k = 0; k < 3; k++) out(LK_F64, 0, NULL, NULL);
    out(t.real, 2, DIMS(rows, classes), NULL);
    run_case();
    for (int64_t r = 0; r < rows; r++) {
        const double *v = t.x[0] + r * classes, w = weighted ? t.x[2][r] : 1;
        int64_t       label = (int64_t)t.x[1][r], best = 0;
        double        total = 0, nll, all = 0;
        if (label == -100) continue;
        if (label < 0 || label >= classes) {
            sum = NAN;
            continue;
        }
        for (int64_t c = 1; c < classes; c++) best = v[c] > v[best] ? c : best;
        for (int64_t c = 0; c < classes; c++) total += exp(v[c] - v[best]);
        for (int64_t c = 0; c < classes; c++) {
            probs[r * classes + c] = exp(v[c] - v[best]) / total;
            all += -(v[c] - v[best] - log(total));
        }
        nll = -(v[label] - v[best] - log(total));
        sum += w * ((1 - smoothing) * nll + smoothing / (double)classes * all);
        weight += w;
        correct += best == label;
    }
    expect(0, &sum, 1e-6);
    expect(1, &weight, t.real == LK_F64 ? 1e-6 : 1e-13); /* in double in both */
    expect(2, &correct, 0);
    expect(3, probs, 1e-6);
    expect_invalid(bad && rows > 0 ? rows / 2 : -1, 1, bad == 1 ? (int32_t)classes : -1, classes);
    double *kept_sum = zeros(1);
    kept_sum[0] = t.y[0][0];
    memcpy(labels_kept, t.x[1], (size_t)rows * sizeof(double));
    if (weighted) memcpy(w_kept, t.x[2], (size_t)rows * sizeof(double));
    /* Evaluation needs no probabilities; the sums have the same bits. */
    free(t.out[3].data), free(t.y[3]);
    t.y[3] = NULL;
    t.out[3].data = NULL;
    run_case_there();
    if (memcmp(kept_sum, t.y[0], sizeof(double)) != 0) fail_case("probs change the sum");
    end_case();

    begin(LK__OP_cross_entropy_grad);
    t.attrs.ignore_index = -100;
    t.attrs.label_smoothing = smoothing;
    t.in_place = 1;
    memcpy(in(t.real, 2, DIMS(rows, classes)), probs, (size_t)(rows * classes) * sizeof(double));
    memcpy(in(LK_I32, 1, DIMS(rows)), labels_kept, (size_t)rows * sizeof(double));
    if (weighted)
        memcpy(in(t.real, 1, DIMS(rows)), w_kept, (size_t)rows * sizeof(double));
    else
        no_in();
    scalar_in(dloss);
    out(t.real, 2, DIMS(rows, classes), NULL);
    run_case();
    for (int64_t i = 0; i < rows * classes; i++) {
        int64_t r = i / classes, c = i % classes, label = (int64_t)labels_kept[r];
        double  target = (1 - smoothing) * (c == label) + smoothing / (double)classes;
        bool    counts = label >= 0 && label < classes;
        dx[i] = counts ? dloss * (weighted ? w_kept[r] : 1) * (t.x[0][i] - target) : 0;
    }
    expect(0, dx, 1e-6);
    end_case();
    free(probs), free(dx), free(labels_kept), free(w_kept), free(kept_sum);
}

static void mse_case(int64_t n)
{
    double sum = 0, weight = (double)n, *dx = zeros(n);
    begin(LK__OP_mse);
    in(t.real, 1, DIMS(n));
    in(t.real, 1, DIMS(n));
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) sum += (t.x[0][i] - t.x[1][i]) * (t.x[0][i] - t.x[1][i]);
    expect(0, &sum, 1e-6);
    expect(1, &weight, 0);
    end_case();
    begin(LK__OP_mse_grad);
    in(t.real, 1, DIMS(n));
    in(t.real, 1, DIMS(n));
    double dloss = scalar_in(-0.125);
    out(t.real, 1, DIMS(n), NULL);
    run_case();
    for (int64_t i = 0; i < n; i++) dx[i] = 2 * dloss * (t.x[0][i] - t.x[1][i]);
    expect(0, dx, 3e-7);
    end_case();
    free(dx);
}

static void losses_are_sums_and_weights(void)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        for (int smooth = 0; smooth < 2; smooth++) {
            for (int64_t classes = 1; classes < 19; classes++) entropy_case(7, classes, 0.1 * smooth, weighted, 0);
            entropy_case(0, 10, 0.1 * smooth, weighted, 0);
            entropy_case(1, 10, 0.1 * smooth, weighted, 0);
            entropy_case(5003, 11, 0.1 * smooth, weighted, 0);
            entropy_case(3, 20011, 0.1 * smooth, weighted, 0);
            entropy_case(64, 10, 0.1 * smooth, weighted, 1);
            entropy_case(64, 10, 0.1 * smooth, weighted, 2);
        }
    }
    mse_case(0);
    mse_case(1);
    mse_case(19);
    mse_case(50021);
}

/* ---- optimizers ---- */

static void scale_case(bool weighted, double weight, int squares, double clip)
{
    double total = 0, want[2];
    begin(LK__OP_gradient_scale);
    t.attrs.clip = clip;
    if (weighted)
        scalar_in(weight);
    else
        no_in();
    for (int k = 0; k < squares; k++) total += scalar_in(1.5 + k);
    out(LK_F64, 0, NULL, NULL);
    out(LK_F64, 0, NULL, NULL);
    run_case();
    if (!weighted) weight = 1;
    want[1] = weight == 0 ? 0 : sqrt(total) / weight;
    want[0] = weight == 0 ? 0 : 1 / weight;
    if (clip > 0) want[0] *= fmin(1, clip / (want[1] + 1e-6));
    expect(0, &want[0], 1e-9);
    expect(1, &want[1], 1e-9);
    end_case();
}

/* Three consecutive steps, each from the result of the previous one. */
static void optimizer_case(lk__op op, int64_t n, double decay, double momentum, double dampening, bool flag)
{
    double *p = zeros(n), *a = zeros(n), *b = zeros(n), scale = 0.3;
    for (int64_t i = 0; i < n; i++) p[i] = uniform(-1, 1);
    for (int step = 1; step <= 3; step++) {
        double rate = 0.02 / step, lr_scale = 0.5, lr = rate * lr_scale;
        begin(op);
        t.attrs.weight_decay = decay;
        t.attrs.momentum = momentum;
        t.attrs.dampening = dampening;
        t.attrs.nesterov = t.attrs.decoupled = flag;
        t.attrs.beta1 = 0.9;
        t.attrs.beta2 = 0.99;
        t.attrs.epsilon = 1e-8;
        t.attrs.lr_scale = lr_scale;
        t.step.step = step;
        t.step.rate = rate;
        double *gradient =
            in(t.real, 1, DIMS(n)); /* never near 0, where decay could cancel it: Adam divides by its size */
        for (int64_t i = 0; i < n; i++) gradient[i] += gradient[i] < 0 ? -1 : 1;
        scalar_in(scale);
        t.scale = 1;
        out(t.real, 1, DIMS(n), p);
        if (op == LK__OP_adam || momentum != 0) out(t.real, 1, DIMS(n), a);
        if (op == LK__OP_adam) out(t.real, 1, DIMS(n), b);
        run_case();
        memcpy(p, t.initial[0], (size_t)n * sizeof *p); /* as the type holds them */
        if (t.outputs > 1) memcpy(a, t.initial[1], (size_t)n * sizeof *a);
        if (t.outputs > 2) memcpy(b, t.initial[2], (size_t)n * sizeof *b);
        for (int64_t i = 0; i < n; i++) {
            double g = t.x[0][i] * scale;
            if (op == LK__OP_sgd) {
                g += decay * p[i];
                if (momentum != 0) {
                    a[i] = step == 1 ? g : momentum * a[i] + (1 - dampening) * g;
                    g = flag ? g + momentum * a[i] : a[i];
                }
                p[i] -= lr * g;
                continue;
            }
            if (flag)
                p[i] *= 1 - lr * decay;
            else
                g += decay * p[i];
            a[i] = 0.9 * a[i] + 0.1 * g;
            b[i] = 0.99 * b[i] + 0.01 * g * g;
            double m = a[i] / (1 - pow(0.9, step)), v = b[i] / (1 - pow(0.99, step));
            p[i] -= lr * m / (sqrt(v) + 1e-8);
        }
        expect(0, p, 5e-7);
        if (t.outputs > 1) expect(1, a, 5e-7);
        if (t.outputs > 2) expect(2, b, 1e-6);
        end_case();
    }
    free(p), free(a), free(b);
}

/* What lion, rmsprop and adagrad do to one element. */
static void update_element(const lk__op_attrs *a, lk__op op, int step, double lr, double gradient, double *p,
                           double m[3])
{
    double g = gradient + (op == LK__OP_lion ? 0 : a->weight_decay * *p);
    if (op == LK__OP_lion) {
        double c = a->beta1 * m[0] + (1 - a->beta1) * g;
        *p -= lr * ((c > 0) - (c < 0) + a->weight_decay * *p);
        m[0] = a->beta2 * m[0] + (1 - a->beta2) * g;
    } else if (op == LK__OP_adagrad) {
        m[0] += g * g;
        *p -= lr / (1 + (step - 1) * a->lr_decay) * g / (sqrt(m[0]) + a->epsilon);
    } else {
        m[0] = a->alpha * m[0] + (1 - a->alpha) * g * g;
        m[1] = a->alpha * m[1] + (1 - a->alpha) * g;
        m[2] = a->momentum * m[2] + g / (sqrt(m[0] - (a->centered ? m[1] * m[1] : 0)) + a->epsilon);
        *p -= lr * m[2];
    }
}

/* Three consecutive steps, each from the result of the previous one; the third with a stored copy. */
static void other_optimizer_case(lk__op op, int64_t n, lk__op_attrs attrs)
{
    double *p = zeros(n), *m[3] = {zeros(n), zeros(n), zeros(n)}, scale = 0.3, lr_scale = 0.5;
    bool    used[3] = {true, attrs.centered, attrs.momentum != 0};
    int     places = op == LK__OP_rmsprop ? 3 : 1;
    for (int64_t i = 0; i < n; i++) p[i] = uniform(-1, 1);
    for (int step = 1; step <= 3; step++) {
        int at[3] = {0}, outputs = 1,
            last = op == LK__OP_rmsprop && used[2]   ? 3
                   : op == LK__OP_rmsprop && used[1] ? 2
                                                     : 1;
        begin(op);
        t.attrs = attrs;
        t.attrs.lr_scale = lr_scale;
        t.step.step = step;
        t.step.rate = 0.02 / step;
        double *gradient = in(t.real, 1, DIMS(n));
        for (int64_t i = 0; i < n; i++) gradient[i] += gradient[i] < 0 ? -1 : 1;
        scalar_in(scale);
        t.scale = 1;
        out(t.real, 1, DIMS(n), p);
        for (int k = 0; k < (step == 3 ? places : last); k++) {
            at[k] = outputs++;
            if (used[k])
                out(t.real, 1, DIMS(n), m[k]);
            else
                no_out();
        }
        if (step == 3) out(LK_BF16, 1, DIMS(n), NULL);
        run_case();
        memcpy(p, t.initial[0], (size_t)n * sizeof *p); /* as the type holds them */
        for (int k = 0; k < last; k++)
            if (used[k]) memcpy(m[k], t.initial[at[k]], (size_t)n * sizeof *p);
        for (int64_t i = 0; i < n; i++) {
            double own[3] = {m[0][i], m[1][i], used[2] ? m[2][i] : 0};
            update_element(&t.attrs, op, step, t.step.rate * lr_scale, t.x[0][i] * scale, &p[i], own);
            for (int k = 0; k < 3; k++) m[k][i] = own[k];
        }
        expect(0, p, 1e-6);
        for (int k = 0; k < last; k++)
            if (used[k]) expect(at[k], m[k], 1e-6);
        end_case();
    }
    free(p);
    for (int k = 0; k < 3; k++) free(m[k]);
}

static void other_optimizers_as_pytorch(int64_t n)
{
    other_optimizer_case(LK__OP_lion, n, (lk__op_attrs){.beta1 = 0.9, .beta2 = 0.99});
    other_optimizer_case(LK__OP_lion, n, (lk__op_attrs){.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
    for (int k = 0; k < 4; k++)
        other_optimizer_case(LK__OP_rmsprop, n,
                             (lk__op_attrs){.alpha = 0.9,
                                            .epsilon = 1e-8,
                                            .momentum = k & 1 ? 0.9 : 0,
                                            .centered = k & 2,
                                            .weight_decay = k == 3 ? 0.1 : 0});
    other_optimizer_case(LK__OP_adagrad, n, (lk__op_attrs){.epsilon = 1e-10});
    other_optimizer_case(LK__OP_adagrad, n, (lk__op_attrs){.epsilon = 1e-8, .lr_decay = 0.25, .weight_decay = 0.1});
}

static int outputs_of(lk__op op, double momentum)
{
    return op == LK__OP_sgd ? 1 + (momentum != 0) : op == LK__OP_adam ? 3 : op == LK__OP_rmsprop ? 4 : 2;
}

static void slice_step(lk__op op, int64_t first, int64_t n, const double *const values[5], double momentum, bool flag)
{
    begin(op);
    t.attrs.alpha = 0.95;
    t.attrs.lr_decay = 0.1;
    t.attrs.centered = true;
    t.attrs.weight_decay = 0.01;
    t.attrs.momentum = momentum;
    t.attrs.nesterov = t.attrs.decoupled = flag;
    t.attrs.beta1 = 0.9;
    t.attrs.beta2 = 0.999;
    t.attrs.epsilon = 1e-8;
    t.attrs.lr_scale = 1;
    t.step.step = 3;
    memcpy(in(t.real, 1, DIMS(n)), values[0] + first, (size_t)n * sizeof(double));
    scalar_in(1.0 / 7);
    for (int i = 0; i < outputs_of(op, momentum); i++) out(t.real, 1, DIMS(n), values[1 + i] + first);
    run_case();
}

/* Ranks that share their state update slices of a tensor: an element's bits do not depend on where its slice begins and
 * ends. */
static void slices_case(lk__op op, double momentum, bool flag)
{
    enum { N = 4001, SLICE = 61 };
    double *values[5], *whole[4];
    int     different = 0;
    for (int k = 0; k < 5; k++) values[k] = zeros(N);
    for (int k = 0; k < 4; k++) whole[k] = zeros(N);
    for (int64_t i = 0; i < N; i++)
        for (int k = 0; k < 5; k++) values[k][i] = uniform(k == 3 ? 0 : -1, 1);
    if (op == LK__OP_rmsprop || op == LK__OP_adagrad) /* its moment is a sum of squares */
        for (int64_t i = 0; i < N; i++) values[2][i] = 1 + fabs(values[2][i]);
    slice_step(op, 0, N, (const double *const *)values, momentum, flag);
    for (int k = 0; k < t.outputs; k++) memcpy(whole[k], t.y[k], N * sizeof(double));
    end_case();
    for (int64_t first = 0, n; first < N; first += n) {
        n = N - first < SLICE ? N - first : SLICE;
        slice_step(op, first, n, (const double *const *)values, momentum, flag);
        for (int k = 0; k < t.outputs && !t.skipped; k++)
            different += memcmp(whole[k] + first, t.y[k], (size_t)n * sizeof(double)) != 0;
        if (first + n == N && different) fail_case("slices have other bits than the whole tensor");
        end_case();
    }
    for (int k = 0; k < 5; k++) free(values[k]);
    for (int k = 0; k < 4; k++) free(whole[k]);
}

static void optimizers_update_slices_with_the_bits_of_the_whole(void)
{
    for (int flag = 0; flag < 2; flag++) {
        slices_case(LK__OP_sgd, 0, flag);
        slices_case(LK__OP_sgd, 0.9, flag);
        slices_case(LK__OP_adam, 0, flag);
    }
    slices_case(LK__OP_lion, 0, false);
    slices_case(LK__OP_rmsprop, 0.9, false);
    slices_case(LK__OP_adagrad, 0, false);
}

/* A gradient that is always 0 must not change a parameter, nor make it NaN. */
static void adam_leaves_what_has_no_gradient(void)
{
    enum { N = 21 };
    double p[N], zero[N] = {0};
    begin(LK__OP_adam);
    t.attrs.beta1 = 0.9;
    t.attrs.beta2 = 0.999;
    t.attrs.epsilon = 1e-8;
    t.attrs.lr_scale = 1;
    memcpy(in(t.real, 1, DIMS(N)), zero, sizeof zero);
    scalar_in(1);
    for (int i = 0; i < N; i++) p[i] = i;
    out(t.real, 1, DIMS(N), p);
    out(t.real, 1, DIMS(N), zero);
    out(t.real, 1, DIMS(N), zero);
    run_case();
    expect(0, p, 0);
    expect(1, zero, 0);
    expect(2, zero, 0);
    end_case();
}

static void optimizers_as_pytorch(void)
{
    static const int64_t sizes[] = {0, 1, 3, 5, 17, 8192, 40009};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        optimizer_case(LK__OP_sgd, sizes[s], 0, 0, 0, false);
        optimizer_case(LK__OP_sgd, sizes[s], 0.1, 0.9, 0, false);
        optimizer_case(LK__OP_sgd, sizes[s], 0.1, 0.9, 0.25, false);
        optimizer_case(LK__OP_sgd, sizes[s], 0, 0.9, 0, true);
        optimizer_case(LK__OP_adam, sizes[s], 0, 0, 0, false);
        optimizer_case(LK__OP_adam, sizes[s], 0.1, 0, 0, false);
        optimizer_case(LK__OP_adam, sizes[s], 0.1, 0, 0, true);
        other_optimizers_as_pytorch(sizes[s]);
    }
    adam_leaves_what_has_no_gradient();
    scale_case(false, 0, 0, 0);
    scale_case(false, 0, 8, 0);
    scale_case(true, 64, 3, 0);
    scale_case(true, 64, 3, 0.01);
    scale_case(true, 64, 3, 100);
    scale_case(true, 0, 2, 1);
}

static void tests(void)
{
    pools_as_pytorch();
    dropout_draws_by_sample_and_element();
    embedding_looks_up_and_adds_in_order();
    cache_write_puts_rows_where_they_belong();
    losses_are_sums_and_weights();
    optimizers_as_pytorch();
    if (!kernel_device)
        optimizers_update_slices_with_the_bits_of_the_whole(); /* on a GPU every rank has its own state */
}

int main(void) { return run_types(tests, LK_BF16); }
