/* test_kernels_origin.c - kernels whose results follow from where a part is in the whole: dropout draws the numbers of
 * the whole's elements, embedding looks up ids of the whole table, and cross-entropy of a part of the classes uses the
 * statistics of all parts. Parts are compared with loops in double over the whole.
 *
 * ctest: label threaded */
#include "kernel_case.h"

#include "base/random.h"

/* Operand k (below LK__MAX_IN: an input) is a part. */
static lk__op_part parts[LK__MAX_IN + LK__MAX_OUT];
static void        set_part(lk__kernel_operand *o, lk__op_part *part, const int64_t *whole, const int64_t *first)
{
    *part = (lk__op_part){.rank = o->rank};
    for (int i = 0; i < o->rank; i++) part->whole[i] = whole[i], part->first[i] = first[i];
    o->part = part;
}

/* ---- dropout ---- */

/* `own` dims from `first` on of `whole`; rows > 1: axis 0 has so many rows of each sample, which are cut. */
static void dropout_part(int rank, const int64_t *whole, const int64_t *own, const int64_t *first, int64_t rows)
{
    int64_t    ids[16], samples = own[0] / rows, elements = rows, index[LK_MAX_RANK];
    bool       merged = rows > 1;
    double     p = 0.3;
    lk__random random;
    for (int i = 0; i < 16; i++) ids[i] = 77 * i + 5;
    begin(LK__OP_dropout);
    t.attrs = (lk__op_attrs){.probability = p, .stream = 0xabcdef, .rows = rows};
    t.step.epoch = 2;
    t.step.count = merged ? samples : whole[0];
    t.step.sample_ids = ids;
    t.in_place = 1;
    in(t.real, rank, own);
    out(t.real, rank, own, NULL);
    set_part(&t.in[0], &parts[0], whole, first);
    if (merged) parts[0].outer[0] = samples;
    run_case();
    random = lk__random_make(t.step.seed, LK__FOR_DROPOUT, t.attrs.stream ^ UINT64_C(2) * UINT64_C(0x9E3779B97F4A7C15));
    for (int i = 1; i < rank; i++) elements *= own[i];
    double *want = zeros(samples * elements);
    for (int64_t i = 0; i < samples * elements; i++) {
        int64_t rest = i, at = 0;
        for (int k = rank - 1; k >= 0; k--) index[k] = rest % own[k], rest /= own[k];
        int64_t sample = merged ? index[0] / rows : index[0] + first[0];
        if (merged) at = index[0] % rows + first[0];
        for (int k = 1; k < rank; k++) at = at * whole[k] + index[k] + first[k];
        bool stays = lk__random_unit(lk__random_u32(&random, (uint64_t)ids[sample], (uint32_t)at)) >= p;
        want[i] = stays ? t.x[0][i] / (1 - p) : 0;
    }
    expect(0, want, 2e-7);
    free(want);
    end_case();
}

static void dropout_draws_the_numbers_of_the_whole(void)
{
    dropout_part(2, DIMS(5, 12), DIMS(5, 5), DIMS(0, 7), 1);             /* the last dimension */
    dropout_part(2, DIMS(5, 12), DIMS(2, 12), DIMS(3, 0), 1);            /* samples */
    dropout_part(3, DIMS(3, 8, 300), DIMS(3, 3, 300), DIMS(0, 5, 0), 1); /* the middle one */
    dropout_part(3, DIMS(3, 8, 300), DIMS(3, 3, 151), DIMS(0, 5, 149), 1);
    dropout_part(4, DIMS(2, 6, 5, 130), DIMS(2, 3, 5, 129), DIMS(0, 3, 0, 1), 1);
    dropout_part(2, DIMS(30, 7), DIMS(12, 7), DIMS(6, 0), 4); /* 3 samples of 10 rows, of which 4 from 6 on */
    dropout_part(2, DIMS(30, 10000), DIMS(15, 9000), DIMS(5, 1000), 5);
    dropout_part(2, DIMS(10, 7), DIMS(4, 7), DIMS(6, 0), 4); /* one sample */
    dropout_part(2, DIMS(0, 12), DIMS(0, 5), DIMS(0, 7), 1);
}

/* Heads 2 … 4 of 6, from a run over all of them: equal bits. */
static void attention_drops_the_probabilities_of_the_whole(void)
{
    enum { BATCH = 2, T = 9, HEADS = 6, D = 8, FIRST = 2, OWN = 3 };
    double *q = zeros(3 * BATCH * T * HEADS * D), *all = zeros(BATCH * T * HEADS * D),
           *want = zeros(BATCH * T * OWN * D);
    for (int part = 0; part < 2; part++) {
        int heads = part ? OWN : HEADS, from = part ? FIRST : 0;
        begin(LK__OP_attention);
        t.attrs = (lk__op_attrs){.heads = heads, .kv_heads = heads, .probability = 0.4, .stream = 3, .scale = 0.5};
        for (int k = 0; k < 3; k++) {
            double *x = in(t.real, 3, DIMS(BATCH, T, heads * D));
            for (int64_t i = 0; i < (int64_t)BATCH * T * heads * D; i++) {
                double *kept = q + (k * BATCH * T + i / (heads * D)) * HEADS * D + from * D + i % (heads * D);
                if (part)
                    x[i] = *kept;
                else
                    *kept = x[i];
            }
            if (part) set_part(&t.in[k], &parts[k], DIMS(BATCH, T, HEADS * D), DIMS(0, 0, FIRST * D));
        }
        out(t.real, 3, DIMS(BATCH, T, heads * D), NULL);
        if (part)
            run_case_there(); /* on the CPU or a device as the whole: they round differently */
        else
            run_case();
        if (!part && !t.skipped) memcpy(all, t.y[0], (size_t)(BATCH * T * HEADS * D) * sizeof *all);
        for (int64_t i = 0; part && i < (int64_t)BATCH * T * OWN * D; i++)
            want[i] = all[i / (OWN * D) * HEADS * D + FIRST * D + i % (OWN * D)];
        if (part) expect(0, want, 0);
        end_case();
    }
    free(q), free(all), free(want);
}

/* ---- embedding ---- */

static void embedding_part(int64_t count, int64_t whole, int64_t first, int64_t rows, int64_t columns, bool bad)
{
    double *want = zeros(count * columns), *table = zeros(rows * columns);
    for (int grad = 0; grad < 2; grad++) {
        begin(grad ? LK__OP_embedding_grad : LK__OP_embedding);
        double *ids = in(LK_I32, 1, DIMS(count));
        for (int64_t i = 0; i < count; i++) ids[i] = floor(uniform(0, 0.999) * (double)whole);
        if (bad) ids[count / 2] = (double)whole;
        if (grad)
            in(t.real, 2, DIMS(count, columns));
        else
            in(t.real, 2, DIMS(rows, columns));
        out(grad ? t.wide : t.real, 2, grad ? DIMS(rows, columns) : DIMS(count, columns), NULL);
        set_part(grad ? &t.out[0] : &t.in[1], &parts[0], DIMS(whole, columns), DIMS(first, 0));
        run_case();
        for (int64_t i = 0; i < count; i++) {
            int64_t row = (int64_t)t.x[0][i] - first;
            bool    here = row >= 0 && row < rows;
            for (int64_t c = 0; c < columns; c++) {
                if (grad && here) table[row * columns + c] += t.x[1][i * columns + c];
                if (!grad) want[i * columns + c] = here ? t.x[1][row * columns + c] : 0;
            }
        }
        expect(0, grad ? table : want, grad ? 3e-6 : 0);
        expect_invalid(!grad && bad ? count / 2 : -1, 0, (int32_t)whole, whole);
        end_case();
    }
    free(want), free(table);
}

static void embedding_knows_the_ids_of_its_part(void)
{
    embedding_part(50, 20, 0, 7, 5, false);
    embedding_part(50, 20, 7, 13, 8, false);
    embedding_part(1500, 40, 38, 2, 33, true); /* an id out of the whole's range is reported, one of another part not */
    embedding_part(2000, 3000, 1000, 1200, 4, false);
}

/* ---- cross-entropy ---- */

enum { MOST_PARTS = 3, MOST_ROWS = 64, MOST_CLASSES = 2100 };

typedef struct whole_rows {
    int64_t rows, classes, starts[MOST_PARTS + 1];
    int     parts;
    double  smoothing;
    bool    weighted, bad;
    double  logits[MOST_ROWS * MOST_CLASSES], labels[MOST_ROWS], weights[MOST_ROWS];
    double  statistics[MOST_PARTS * MOST_ROWS * LK__CLASS_STATISTICS];
    double  each[MOST_ROWS], probs[MOST_ROWS * MOST_CLASSES], sums[3];
} whole_rows;

static bool has_class(const whole_rows *w, int64_t row)
{
    return w->labels[row] >= 0 && w->labels[row] < (double)w->classes;
}

/* The logits of a part as input 0, the labels as input 1. */
static void begin_part(const whole_rows *w, lk__op op, const double *values, int part)
{
    int64_t own = w->starts[part + 1] - w->starts[part];
    begin(op);
    t.attrs.ignore_index = -100;
    t.attrs.label_smoothing = w->smoothing;
    double *x = in(t.real, 2, DIMS(w->rows, own)), *labels = in(LK_I32, 1, DIMS(w->rows));
    for (int64_t i = 0; i < w->rows * own; i++) x[i] = values[i / own * w->classes + w->starts[part] + i % own];
    memcpy(labels, w->labels, (size_t)w->rows * sizeof *labels);
    set_part(&t.in[0], &parts[0], DIMS(w->rows, w->classes), DIMS(0, w->starts[part]));
}

static void add_weights(const whole_rows *w)
{
    if (w->weighted)
        memcpy(in(t.real, 1, DIMS(w->rows)), w->weights, (size_t)w->rows * sizeof(double));
    else
        no_in();
}

/* Of a part; the logits are rounded to the type, so that the whole is that of the rounded ones. */
static void find_statistics(whole_rows *w, int part)
{
    int64_t first = w->starts[part], own = w->starts[part + 1] - first;
    double *want = zeros(w->rows * LK__CLASS_STATISTICS);
    begin_part(w, LK__OP_class_statistics, w->logits, part);
    out(LK_F64, 3, DIMS(1, w->rows, LK__CLASS_STATISTICS), NULL);
    run_case();
    for (int64_t row = 0; row < w->rows; row++) {
        const double *x = t.x[0] + row * own;
        double       *s = want + row * LK__CLASS_STATISTICS;
        int64_t       best = 0, label = (int64_t)w->labels[row] - first;
        for (int64_t c = 0; c < own; c++) w->logits[row * w->classes + first + c] = x[c];
        if (!has_class(w, row)) continue;
        for (int64_t c = 1; c < own; c++) best = x[c] > x[best] ? c : best;
        s[0] = x[best];
        for (int64_t c = 0; c < own; c++) s[1] += x[best] == -INFINITY ? 0 : exp(x[c] - x[best]);
        s[2] = label >= 0 && label < own ? x[label] : 0;
        for (int64_t c = 0; c < own && w->smoothing != 0; c++) s[3] += x[c];
        s[4] = (double)(first + best);
    }
    t.scale = 1;
    expect(0, want, 2e-6);
    memcpy(w->statistics + part * w->rows * LK__CLASS_STATISTICS, t.y[0],
           (size_t)(w->rows * LK__CLASS_STATISTICS) * sizeof(double));
    free(want);
    end_case();
}

static void compute_whole(whole_rows *w)
{
    memset(w->sums, 0, sizeof w->sums);
    for (int64_t row = 0; row < w->rows; row++) {
        const double *x = w->logits + row * w->classes;
        double  total = 0, all = 0, weight = w->weighted ? w->weights[row] : 1, *probs = w->probs + row * w->classes;
        int64_t best = 0, label = (int64_t)w->labels[row];
        memset(probs, 0, (size_t)w->classes * sizeof *probs);
        w->each[row] = label == -100 ? 0 : NAN;
        if (label != -100 && !has_class(w, row)) w->sums[0] = NAN;
        if (!has_class(w, row)) continue;
        for (int64_t c = 1; c < w->classes; c++) best = x[c] > x[best] ? c : best;
        for (int64_t c = 0; c < w->classes; c++) total += exp(x[c] - x[best]);
        for (int64_t c = 0; c < w->classes; c++)
            probs[c] = exp(x[c] - x[best]) / total, all += x[best] - x[c] + log(total);
        double loss = log(total) + x[best] - x[label];
        if (w->smoothing != 0) loss = (1 - w->smoothing) * loss + w->smoothing / (double)w->classes * all;
        w->each[row] = weight * loss;
        w->sums[0] += weight * loss;
        w->sums[1] += weight;
        w->sums[2] += best == label;
    }
}

static void expect_columns(const whole_rows *w, int output, const double *whole, int part, double tolerance)
{
    int64_t first = w->starts[part], own = w->starts[part + 1] - first;
    double *want = zeros(w->rows * own);
    for (int64_t i = 0; i < w->rows * own; i++) want[i] = whole[i / own * w->classes + first + i % own];
    t.scale = 1e-2; /* of probabilities */
    expect(output, want, tolerance);
    free(want);
}

/* Probabilities may replace the logits whose statistics are known: the output is in the memory of input 0. */
static void expect_same_in_place(int output)
{
    size_t bytes = bytes_of(&t.in[0]);
    char  *logits = malloc(bytes), *kept = t.out[output].data;
    if (t.on_device) { /* has copies of its own */
        free(logits);
        return;
    }
    memcpy(logits, t.in[0].data, bytes);
    lk__kernel_call call = {.attrs = &t.attrs, .inputs = t.inputs, .outputs = t.outputs, .step = &t.step};
    memcpy(call.in, t.in, sizeof call.in);
    memcpy(call.out, t.out, sizeof call.out);
    call.pool = lk__context_pool(contexts[1]);
    call.invalid = &(lk__kernel_invalid_id){.found = false};
    call.workspace = malloc(cpu_entry()->workspace ? cpu_entry()->workspace(&call, 2) + 1 : 1);
    call.out[output].data = t.in[0].data;
    cpu_entry()->run(&call);
    if (memcmp(t.in[0].data, kept, bytes) != 0) fail_case("in place changes bits");
    memcpy(t.in[0].data, logits, bytes);
    free(call.workspace);
    free(logits);
}

static void expect_losses(const whole_rows *w, int part)
{
    int64_t own = w->starts[part + 1] - w->starts[part], bad = w->bad ? w->rows / 2 : -1;
    for (int each = 0; each < 2; each++) {
        begin_part(w, each ? LK__OP_cross_entropy_each : LK__OP_cross_entropy, w->logits, part);
        add_weights(w);
        memcpy(in(LK_F64, 3, DIMS(w->parts, w->rows, LK__CLASS_STATISTICS)), w->statistics,
               (size_t)(w->parts * w->rows * LK__CLASS_STATISTICS) * sizeof(double));
        for (int k = 0; k < 3 && !each; k++) out(LK_F64, 0, NULL, NULL);
        if (each) out(t.real, 1, DIMS(w->rows), NULL);
        out(t.real, 2, DIMS(w->rows, own), NULL);
        run_case();
        if (each) {
            expect(0, w->each, 5e-6);
        } else {
            expect(0, &w->sums[0], 2e-6);
            expect(1, &w->sums[1], 1e-6);
            expect(2, &w->sums[2], 0);
        }
        expect_columns(w, each ? 1 : 3, w->probs, part, 2e-6);
        expect_same_in_place(each ? 1 : 3);
        expect_invalid(bad, 1, (int32_t)w->classes, w->classes);
        end_case();
    }
}

static void expect_gradient(const whole_rows *w, int part)
{
    int64_t own = w->starts[part + 1] - w->starts[part], first = w->starts[part];
    double *want = zeros(w->rows * own), dloss = 0.37;
    begin_part(w, LK__OP_cross_entropy_grad, w->probs, part);
    t.in_place = 1;
    add_weights(w);
    scalar_in(dloss);
    out(t.real, 2, DIMS(w->rows, own), NULL);
    run_case();
    for (int64_t i = 0; i < w->rows * own; i++) {
        int64_t row = i / own, c = first + i % own;
        double  d = t.x[0][i] - w->smoothing / (double)w->classes - ((double)c == w->labels[row]) * (1 - w->smoothing);
        want[i] = has_class(w, row) ? d * dloss * (w->weighted ? t.x[2][row] : 1) : 0;
    }
    t.scale = 1e-2;
    expect(0, want, 2e-6);
    free(want);
    end_case();
}

/* hidden: no class of the last part is possible. */
static void entropy_parts(int64_t rows, int parts_count, const int64_t *starts, int how, bool hidden)
{
    static whole_rows w;
    w.rows = rows, w.parts = parts_count, w.classes = starts[parts_count];
    w.smoothing = how & 1 ? 0.1 : 0, w.weighted = how & 2, w.bad = how & 4 && rows > 1;
    memcpy(w.starts, starts, (size_t)(parts_count + 1) * sizeof *starts);
    for (int64_t i = 0; i < rows * w.classes; i++) w.logits[i] = rint(uniform(-8, 8)); /* with equal maxima */
    for (int64_t i = 0; i < rows * w.classes && hidden; i++)
        if (i % w.classes >= starts[parts_count - 1]) w.logits[i] = -INFINITY;
    int64_t possible = hidden ? starts[parts_count - 1] : w.classes;
    for (int64_t row = 0; row < rows; row++) {
        w.labels[row] = row % 5 == 4 ? -100 : floor(uniform(0, 0.999) * (double)possible);
        w.weights[row] = rint(uniform(1, 9)) / 8;
    }
    if (w.bad) w.labels[rows / 2] = (double)w.classes;
    for (int p = 0; p < w.parts; p++) find_statistics(&w, p);
    compute_whole(&w);
    for (int p = 0; p < w.parts; p++) {
        expect_losses(&w, p);
        expect_gradient(&w, p);
    }
}

static void cross_entropy_of_parts_is_that_of_the_whole(void)
{
    if (t.real == LK_BF16) return;
    for (int how = 0; how < 8; how++) {
        entropy_parts(7, 2, DIMS(0, 5, 11), how, false);
        entropy_parts(64, 3, DIMS(0, 1, 34, 99), how, false);
        entropy_parts(3, 2, DIMS(0, 1050, 2100), how, false);
        entropy_parts(1, 1, DIMS(0, 17), how, false);
    }
    entropy_parts(0, 2, DIMS(0, 3, 6), 0, false);
    entropy_parts(9, 2, DIMS(0, 6, 12), 2, true);
}

static void tests(void)
{
    dropout_draws_the_numbers_of_the_whole();
    if (t.real != LK_BF16 || kernel_device) attention_drops_the_probabilities_of_the_whole();
    embedding_knows_the_ids_of_its_part();
    cross_entropy_of_parts_is_that_of_the_whole();
}

int main(void) { return run_types(tests, LK_BF16); }
