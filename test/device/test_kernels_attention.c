/* test_kernels_attention.c - attention, its gradient, rope and swiglu, against naive loops in double with a matrix of
 * all probabilities. Results are within bounds that are derived from their operands.
 *
 * ctest: timeout 600, label threaded */
#include "kernel_case.h"

typedef struct setting {
    int64_t batch, tokens, keys, heads, kv_heads, width; /* keys 0: packed */
    bool    causal, first, last, lengths;
    int64_t window;
    double  scale, spread; /* of the scores; 0: 1 / sqrt(width), and values of -2 … 2 */
} setting;

static const setting settings[] = {
    {1, 1, 1, 1, 1, 1, .causal = false},
    {2, 3, 5, 1, 1, 2, .causal = false},
    {2, 1, 7, 2, 1, 5, .causal = false}, /* one query */
    {1, 1, 130, 4, 2, 17, .lengths = true},
    {3, 2, 2, 1, 1, 3, .causal = true},
    {1, 17, 0, 2, 2, 8, .causal = true},
    {2, 13, 0, 4, 2, 5, .causal = false},
    {1, 64, 64, 1, 1, 64, .causal = true},
    {1, 65, 65, 2, 1, 16, .causal = true},
    {2, 65, 129, 2, 2, 7, .lengths = true},
    {1, 130, 0, 1, 1, 20, .causal = true, .window = 9},
    {1, 131, 131, 2, 2, 33, .window = 70},
    {2, 70, 70, 4, 1, 12, .causal = true, .first = true},
    {2, 66, 140, 3, 3, 6, .first = true, .last = true, .lengths = true},
    {1, 100, 0, 2, 1, 64, .causal = true, .scale = 0.3, .spread = 3}, /* sharp: the largest score wins by far */
    {2, 150, 0, 2, 1, 128, .causal = true, .window = 90},             /* several tiles of tensor cores */
    {1, 130, 200, 2, 2, 64, .first = true, .last = true, .lengths = true},
    {0, 5, 5, 2, 2, 4, .causal = false},
};

/* What a GPU's library may compute, whole tiles and others: for devices that are fast enough. */
static const setting long_settings[] = {
    {2, 128, 0, 4, 2, 64, .causal = true}, {1, 256, 128, 2, 2, 64, .causal = false},
    {2, 200, 0, 4, 2, 64, .causal = true}, {1, 193, 321, 2, 2, 128, .causal = false},
    {3, 65, 0, 2, 1, 40, .causal = true},  {1, 500, 0, 2, 2, 64, .causal = true},
};

/* A GPU multiplies probabilities, and gradients of scores, as bf16 where elements are: each is rounded once more,
 * by 2^-9 at most, and results in which terms cancel show more of it. */
static double allow_rounding(double tolerance)
{
    return kernel_device && t.real == LK_BF16 ? fmax(tolerance, 0x1p-6) * (tolerance > 1e-4 ? 2 : 1) : tolerance;
}

static bool attends(const setting *s, int64_t i, int64_t j, double first, double last, double length)
{
    return !(s->causal && j > i) && !(s->window && j <= i - s->window) && !(s->first && (double)j < first) &&
           !(s->last && (double)j > last) && !(s->lengths && (double)j >= length);
}

/* Inputs of a case, as the kernel reads them. */
typedef struct operands {
    int     q, k, v, first, last, lengths;     /* -1: absent */
    int64_t s, q_row, k_row, q_at, k_at, v_at; /* offsets of head 0 */
} operands;

static void begin_attention(lk__op op)
{
    begin(op);
    t.computes_f32 = true; /* probabilities */
}

static operands add_operands(const setting *s, bool packed)
{
    int64_t  together = packed ? s->heads + 2 * s->kv_heads : s->heads;
    operands o = {.first = -1, .last = -1, .lengths = -1, .s = packed ? s->tokens : s->keys};
    o.q_row = together * s->width;
    o.k_row = packed ? o.q_row : s->kv_heads * s->width;
    o.q = o.k = o.v = t.inputs;
    in(t.real, 3, DIMS(s->batch, s->tokens, o.q_row));
    if (packed) {
        o.k_at = s->heads * s->width;
        o.v_at = o.k_at + s->kv_heads * s->width;
        no_in();
        no_in();
    } else {
        o.k = t.inputs;
        in(t.real, 3, DIMS(s->batch, s->keys, o.k_row));
        o.v = t.inputs;
        in(t.real, 3, DIMS(s->batch, s->keys, o.k_row));
    }
    for (int64_t i = 0; s->spread > 0 && i < s->batch * s->tokens * o.q_row; i++) t.x[o.q][i] *= s->spread;
    t.attrs.heads = s->heads;
    t.attrs.kv_heads = s->kv_heads;
    t.attrs.causal = s->causal;
    t.attrs.window = s->window;
    t.attrs.scale = s->scale > 0 ? s->scale : 1 / sqrt((double)s->width);
    return o;
}

static void add_bounds(const setting *s, operands *o)
{
    double *x;
    int64_t n = s->batch * s->tokens;
    if (s->first) {
        o->first = t.inputs;
        x = in(LK_I32, 2, DIMS(s->batch, s->tokens));
        for (int64_t i = 0; i < n; i++) x[i] = (double)(i % s->tokens / 7 * 7 - (i % 11 == 0)); /* below 0 too */
    } else
        no_in();
    if (s->last) {
        o->last = t.inputs;
        x = in(LK_I32, 2, DIMS(s->batch, s->tokens));
        for (int64_t i = 0; i < n; i++)
            x[i] = (double)(i % s->tokens + (i % 5) * 30 - 8); /* before first, past the end */
    } else
        no_in();
    if (s->lengths) {
        o->lengths = t.inputs;
        x = in(LK_I32, 1, DIMS(s->batch));
        for (int64_t i = 0; i < s->batch; i++) x[i] = (double)(i == 1 ? 0 : o->s - 1 - i); /* a sample without keys */
    } else
        no_in();
}

/* ---- bounds ----
 *
 * Of sums of products (sum_roundings). Where instructions multiply bf16, a sum of n products is rounded by at most
 * 2^-23 of the sum of their magnitudes in each of n + 2 steps (kernel_values.h). There and on a GPU, numbers of bf16
 * that are multiplied, probabilities and gradients of scores, are rounded to it before. */
static const double TINY = 0x1p-100;

static double step_size(void) { return t.real == LK_F64 ? 0x1p-53 : multiplies_bf16() ? 0x1p-23 : 0x1p-24; }
static double sum_steps(int64_t n) { return 4 + (multiplies_bf16() ? (double)n : sum_roundings(n)); }

/* Of a number that is known to within `error`, and then is rounded to bf16. */
static double rounded_error(double size, double error)
{
    return error + (multiplies_bf16() || (kernel_device && t.real == LK_BF16) ? 0x1p-8 : 0) * (size + error);
}
/* Of one of `count` terms of a sum: a factor that is known to within `error`, times another. */
static double term_error(double size, double error, double factor, int64_t count)
{
    return (error + sum_steps(count) * step_size() * (size + error)) * fabs(factor) + TINY;
}

/* The probabilities of query i of one head; their log-sum is returned, 0 where there is no key. error: at most so much
 * is each off, relative to itself, before it is divided by their sum: the error of its score, of the number that is
 * subtracted from that, and of exp. */
static double probabilities(const setting *s, const operands *o, int64_t b, int64_t h, int64_t i, double *p,
                            double *error)
{
    int64_t       g = h / (s->heads / s->kv_heads);
    const double *q = t.x[o->q] + (b * s->tokens + i) * o->q_row + o->q_at + h * s->width;
    double        first = s->first ? t.x[o->first][b * s->tokens + i] : 0, most = -INFINITY, total = 0;
    double        last = s->last ? t.x[o->last][b * s->tokens + i] : 0, length = s->lengths ? t.x[o->lengths][b] : 0;
    for (int64_t j = 0; j < o->s; j++) {
        const double *k = t.x[o->k] + (b * o->s + j) * o->k_row + o->k_at + g * s->width;
        double        size = 0;
        p[j] = -INFINITY, error[j] = 0;
        if (!attends(s, i, j, first, last, length)) continue;
        p[j] = 0;
        for (int64_t d = 0; d < s->width; d++) p[j] += q[d] * k[d], size += fabs(q[d] * k[d]);
        p[j] *= t.attrs.scale;
        most = fmax(most, p[j]);
        error[j] = sum_steps(s->width) * step_size() * size * t.attrs.scale;
    }
    for (int64_t j = 0; j < o->s; j++) total += p[j] = isinf(p[j]) ? 0 : exp(p[j] - most);
    for (int64_t j = 0; j < o->s; j++) p[j] = total > 0 ? p[j] / total : 0;
    double logsum = total > 0 ? most + log(total) : 0, subtracted = fabs(most) + fabs(logsum);
    for (int64_t j = 0; j < o->s && total > 0; j++) error[j] = expm1(error[j] + step_size() * (subtracted + 4));
    return logsum;
}

/* bound: of y. Probabilities are divided by their sum, which is off by as much as they are, and corrected block by
 * block. */
static void naive_forward(const setting *s, const operands *o, double *y, double *lse, double *bound)
{
    double *p = zeros(o->s + 1), *error = zeros(o->s + 1);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->tokens; i++) {
                double *out = y + ((b * s->tokens + i) * s->heads + h) * s->width;
                double  most = 0;
                lse[(b * s->heads + h) * s->tokens + i] = probabilities(s, o, b, h, i, p, error);
                memset(out, 0, (size_t)s->width * sizeof *out);
                for (int64_t j = 0; j < o->s; j++) most = fmax(most, error[j]);
                for (int64_t j = 0; j < o->s; j++) {
                    int64_t       g = h / (s->heads / s->kv_heads);
                    const double *v = t.x[o->v] + (b * o->s + j) * o->k_row + o->v_at + g * s->width;
                    double        off = rounded_error(p[j], 2 * most * p[j]);
                    for (int64_t d = 0; d < s->width; d++) {
                        out[d] += p[j] * v[d];
                        bound[out - y + d] += term_error(p[j], off, v[d], 2 * o->s);
                    }
                }
            }
    free(p), free(error);
}

/* A gradient and its bound: of q, k and v, laid out as they are; packed: all in that of q. */
typedef struct gradient {
    double *value, *bound;
} gradient;

static void add_term(gradient *to, int64_t at, double x, double error, double factor, int64_t count)
{
    to->value[at] += x * factor;
    to->bound[at] += term_error(fabs(x), error, factor, count);
}

/* cuDNN rounds the gradients of keys and values of each head before it adds those of the heads that share them; it
 * computes whole tiles of such heads. */
static bool rounds_heads(const setting *s, const operands *o)
{
    return kernel_device && t.real == LK_BF16 && s->heads > s->kv_heads && s->tokens % 128 == 0 && o->s % 128 == 0;
}

/* The rounding of one head's gradients of keys or values (at `from` within a row) in a sample; before: without them. */
static void add_head_rounding(const setting *s, const operands *o, gradient *to, const double *before, int64_t sample,
                              int64_t from)
{
    for (int64_t j = sample * o->s; j < (sample + 1) * o->s; j++)
        for (int64_t e = j * o->k_row + from; e < j * o->k_row + from + s->kv_heads * s->width; e++)
            to->bound[e] += fabs(to->value[e] - before[e]) * 0x1p-9;
}

static double *copy_of(const double *x, int64_t count)
{
    double *copy = zeros(count + 1);
    memcpy(copy, x, (size_t)count * sizeof *x);
    return copy;
}

/* What the softmax subtracts is dy · y, with y as the kernel gets it, rounded. */
static void naive_backward(const setting *s, const operands *o, const double *dy, const double *y, gradient *dq,
                           gradient *dk, gradient *dv)
{
    double *p = zeros(o->s + 1), *error = zeros(o->s + 1);
    int64_t each = s->heads / s->kv_heads;
    int64_t count = s->batch * o->s * o->k_row;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            double *keys = copy_of(dk->value, count), *values = copy_of(dv->value, count);
            for (int64_t i = 0; i < s->tokens; i++) {
                int64_t       qa = (b * s->tokens + i) * o->q_row + o->q_at + h * s->width;
                const double *d = dy + ((b * s->tokens + i) * s->heads + h) * s->width;
                double        delta = 0, size = 0;
                for (int64_t e = 0; e < s->width; e++)
                    delta += d[e] * y[d - dy + e], size += fabs(d[e] * y[d - dy + e]);
                probabilities(s, o, b, h, i, p, error);
                for (int64_t j = 0; j < o->s; j++) {
                    int64_t va = (b * o->s + j) * o->k_row + o->v_at + h / each * s->width;
                    int64_t ka = va - o->v_at + o->k_at;
                    double  dp = 0, sizes = size, off = p[j] * error[j];
                    for (int64_t e = 0; e < s->width; e++) {
                        dp += d[e] * t.x[o->v][va + e], sizes += fabs(d[e] * t.x[o->v][va + e]);
                        add_term(dv, va + e, p[j], rounded_error(p[j], off), d[e], s->tokens * each);
                    }
                    double ds = p[j] * (dp - delta) * t.attrs.scale;
                    double inner = sum_steps(s->width) * step_size() * sizes; /* of dp - delta */
                    off = (off * fabs(dp - delta) + (p[j] + off) * inner) * t.attrs.scale + 4 * step_size() * fabs(ds);
                    off = rounded_error(fabs(ds), off);
                    for (int64_t e = 0; e < s->width; e++) {
                        add_term(dq, qa + e, ds, off, t.x[o->k][ka + e], o->s);
                        add_term(dk, ka + e, ds, off, t.x[o->q][qa + e], s->tokens * each);
                    }
                }
            }
            if (rounds_heads(s, o)) {
                add_head_rounding(s, o, dk, keys, b, o->k_at);
                add_head_rounding(s, o, dv, values, b, o->v_at);
            }
            free(keys), free(values);
        }
    free(p), free(error);
}

static void forward_case(const setting *s, bool logsum)
{
    begin_attention(LK__OP_attention);
    operands o = add_operands(s, s->keys == 0);
    add_bounds(s, &o);
    int64_t rows = s->batch * s->tokens * s->heads;
    double *y = zeros(rows * s->width), *lse = zeros(rows), *bound = zeros(rows * s->width);
    out(t.real, 3, DIMS(s->batch, s->tokens, s->heads * s->width), NULL);
    if (logsum)
        out(t.wide, 3, DIMS(s->batch, s->heads, s->tokens), NULL);
    else
        no_out();
    run_case();
    naive_forward(s, &o, y, lse, bound);
    /* A score is a sum of `width` products whose mean size is 1, times 1 / sqrt(width). Rounding changes such a sum by
     * at most width^1.5 2^-24, 1e-5 at 33, and exp by as much of its value. Large scores lose more digits. */
    double tolerance = allow_rounding(s->spread > 0 ? 1e-4 : 1e-5);
    expect_bound(0, y, bound);
    if (logsum) expect(1, lse, tolerance);
    free(y), free(lse), free(bound);
    end_case();
}

static void backward_case(const setting *s)
{
    bool packed = s->keys == 0;
    begin_attention(LK__OP_attention_grad);
    int     dy = t.inputs;
    int64_t rows = s->batch * s->tokens * s->heads;
    in(t.real, 3, DIMS(s->batch, s->tokens, s->heads * s->width));
    operands o = add_operands(s, packed);
    int      y_at = t.inputs;
    double  *y = in(t.real, 3, DIMS(s->batch, s->tokens, s->heads * s->width));
    double  *lse = in(t.wide, 3, DIMS(s->batch, s->heads, s->tokens));
    add_bounds(s, &o);
    int64_t q = s->batch * s->tokens * o.q_row, k = s->batch * o.s * o.k_row;
    out(t.real, 3, DIMS(s->batch, s->tokens, o.q_row), NULL);
    for (int i = 0; i < 2; i++) {
        if (packed)
            no_out();
        else
            out(t.real, 3, DIMS(s->batch, s->keys, o.k_row), NULL);
    }
    round_inputs(); /* forward's results are those of the rounded operands */
    double *unused = zeros(rows * s->width);
    naive_forward(s, &o, y, lse, unused);
    gradient dq = {zeros(q), zeros(q)}, dk = packed ? dq : (gradient){zeros(k), zeros(k)},
             dv = packed ? dq : (gradient){zeros(k), zeros(k)};
    run_case();
    naive_backward(s, &o, t.x[dy], t.x[y_at], &dq, &dk, &dv);
    gradient *all[] = {&dq, &dk, &dv};
    for (int i = 0; i < (packed ? 1 : 3); i++) {
        expect_bound(i, all[i]->value, all[i]->bound);
        free(all[i]->value), free(all[i]->bound);
    }
    free(unused);
    end_case();
}

/* Dropout: whether a weight is kept does not depend on the blocks. Values of 1 in one dimension make y the sum of kept
 * weights. */
static void dropout_keeps_the_mean_and_is_the_same_in_the_gradient(void)
{
    enum { B = 2, T = 70, H = 3 };
    double sum = 0, squares = 0;
    begin_attention(LK__OP_attention);
    t.attrs = (lk__op_attrs){.heads = H, .kv_heads = H, .scale = 1, .probability = 0.25, .stream = 5};
    double *q = in(t.real, 3, DIMS(B, T, H)), *k = in(t.real, 3, DIMS(B, T, H)), *v = in(t.real, 3, DIMS(B, T, H));
    for (int i = 0; i < B * T * H; i++) q[i] = k[i] = 0, v[i] = 1; /* all weights are 1 / T */
    out(t.real, 3, DIMS(B, T, H), NULL);
    out(t.wide, 3, DIMS(B, H, T), NULL);
    run_case();
    for (int i = 0; i < B * T * H; i++) sum += t.y[0][i], squares += (t.y[0][i] - 1) * (t.y[0][i] - 1);
    sum /= B * T * H, squares /= B * T * H;
    /* a sum of T weights, each 0 or 1 / (0.75 T): variance 1/3 / T */
    if (!t.skipped && (fabs(sum - 1) > 0.02 || fabs(squares * 3 * T - 1) > 0.25)) {
        fprintf(stderr, "dropout: mean %g, variance %g of %g\n", sum, squares, 1.0 / 3 / T);
        failures++;
    }
    double *kept = zeros(B * T * H);
    for (int i = 0; i < B * T * H && !t.skipped; i++) kept[i] = t.y[0][i];
    end_case();
    begin_attention(LK__OP_attention_grad);
    t.attrs = (lk__op_attrs){.heads = H, .kv_heads = H, .scale = 1, .probability = 0.25, .stream = 5};
    double *dy = in(t.real, 3, DIMS(B, T, H));
    q = in(t.real, 3, DIMS(B, T, H)), k = in(t.real, 3, DIMS(B, T, H)), v = in(t.real, 3, DIMS(B, T, H));
    double *y = in(t.real, 3, DIMS(B, T, H)), *lse = in(t.wide, 3, DIMS(B, H, T)), total = 0, wanted = 0;
    for (int i = 0; i < B * T * H; i++) dy[i] = 1, q[i] = k[i] = 0, v[i] = 1, y[i] = kept[i], lse[i] = log(T);
    for (int i = 0; i < 3; i++) out(t.real, 3, DIMS(B, T, H), NULL);
    run_case();
    for (int i = 0; i < B * T * H && !t.skipped; i++)
        total += t.y[2][i], wanted += kept[i]; /* Σ dv = Σ y where v and dy are 1 */
    if (fabs(total - wanted) > (t.real == LK_BF16 ? 1e-2 : 1e-5) * fabs(wanted)) {
        fprintf(stderr, "dropout: the gradient of the values adds to %g, not %g\n", total, wanted);
        failures++;
    }
    free(kept);
    end_case();
}

static void rope_rotates_pairs(void)
{
    static const struct {
        int64_t batch, tokens, heads, half, positions;
    } shapes[] = {{1, 1, 1, 1, 1}, {2, 3, 2, 5, 3}, {2, 17, 3, 16, 20}, {0, 4, 1, 2, 4}, {1, 70, 2, 33, 70}};
    for (size_t k = 0; k < COUNT(shapes) * 4; k++) {
        int64_t batch = shapes[k / 4].batch, tokens = shapes[k / 4].tokens, heads = shapes[k / 4].heads,
                half = shapes[k / 4].half;
        int64_t limit = shapes[k / 4].positions, width = heads * 2 * half, n = batch * tokens * width;
        double *want = zeros(n), *positions = NULL, *table;
        begin(LK__OP_rope);
        t.in_place = 1;
        t.attrs.heads = heads;
        t.attrs.inverse = k & 1;
        in(t.real, 3, DIMS(batch, tokens, width));
        table = in(t.wide, 2, DIMS(limit, 2 * half));
        if (k & 2) positions = in(LK_I32, 2, DIMS(batch, tokens));
        for (int64_t i = 0; positions && i < batch * tokens; i++) positions[i] = (double)(i * 7 % limit);
        out(t.real, 3, DIMS(batch, tokens, width), NULL);
        run_case();
        table = t.x[1];
        for (int64_t token = 0; token < batch * tokens; token++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t i = 0; i < half; i++) {
                    int64_t p = positions ? (int64_t)t.x[2][token] : token % tokens,
                            at = token * width + h * 2 * half + i;
                    double c = table[p * 2 * half + i], s = table[p * 2 * half + half + i] * (k & 1 ? -1 : 1);
                    double a = t.x[0][at], b = t.x[0][at + half];
                    want[at] = a * c - b * s;
                    want[at + half] = b * c + a * s;
                }
        expect(0, want, 1e-6);
        free(want);
        end_case();
    }
}

static void swiglu_gates(void)
{
    static const int64_t sizes[] = {0, 1, 7, 17, 1009, 40009};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        int64_t n = sizes[s];
        double *want = zeros(n), *other = zeros(n);
        begin(LK__OP_swiglu);
        t.in_place = 3;
        in(t.real, 1, DIMS(n));
        in(t.real, 1, DIMS(n));
        out(t.real, 1, DIMS(n), NULL);
        run_case();
        for (int64_t i = 0; i < n; i++) want[i] = t.x[0][i] / (1 + exp(-t.x[0][i])) * t.x[1][i];
        expect(0, want, 1e-6);
        end_case();
        for (int which = 1; which < 4; which++) { /* either gradient alone, and both */
            begin(LK__OP_swiglu_grad);
            for (int i = 0; i < 3; i++) in(t.real, 1, DIMS(n));
            for (int i = 0; i < 2; i++) {
                if (which >> i & 1)
                    out(t.real, 1, DIMS(n), NULL);
                else
                    no_out();
            }
            run_case();
            for (int64_t i = 0; i < n; i++) {
                double d = t.x[0][i], x = t.x[1][i], sigma = 1 / (1 + exp(-x));
                want[i] = d * t.x[2][i] * sigma * (1 + x * (1 - sigma));
                other[i] = d * x * sigma;
            }
            if (which & 1) expect(0, want, 2e-6);
            if (which & 2) expect(1, other, 2e-6);
            end_case();
        }
        free(want), free(other);
    }
}

static int64_t draw(int64_t count) { return (int64_t)uniform(0, (double)count) % count; }

static setting draw_setting(void)
{
    static const int64_t heads[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}};
    static const int64_t widths[] = {1, 4, 7, 12, 16, 24, 31, 40, 64};
    const int64_t       *of = heads[draw(COUNT(heads))];
    setting              s = {.batch = 1 + draw(2), .tokens = 1 + draw(110), .heads = of[0], .kv_heads = of[1]};
    s.keys = draw(2) ? 0 : 1 + draw(200);
    s.width = widths[draw(COUNT(widths))];
    s.causal = draw(2), s.first = !draw(3), s.last = !draw(3), s.lengths = !draw(3);
    s.window = draw(3) ? 0 : 1 + draw(100);
    return s;
}

static void all_directions(const setting *s)
{
    forward_case(s, true);
    forward_case(s, false);
    backward_case(s);
}

static void all_cases(void)
{
    enum { DRAWN = 12 };
    swiglu_gates();
    for (size_t i = 0; i < COUNT(settings); i++) all_directions(&settings[i]);
    for (size_t i = 0; i < COUNT(long_settings) && kernel_device && !is_slow(); i++) all_directions(&long_settings[i]);
    for (int i = 0; i < DRAWN && multiplies_bf16(); i++) { /* each element has a bound */
        setting s = draw_setting();
        forward_case(&s, true);
        backward_case(&s);
    }
    dropout_keeps_the_mean_and_is_the_same_in_the_gradient();
    rope_rotates_pairs();
}

int main(void) { return run_types(all_cases, LK_BF16); }
