/* device/cpu/entropy.h - the cross-entropy of one row, for the loss of logits and the loss of a linear layer, also for
 * rows whose classes are cut into parts. */
#ifndef LK__CPU_ENTROPY_H
#define LK__CPU_ENTROPY_H

#include "base/sum_parts.h"
#include "device/cpu/vmath.h"

/* NaN is not a maximum. */
static inline REAL row_most(const REAL *x, int64_t classes)
{
    vec     best = splat(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= classes; i += VL) best = vmax(load(x + i), best);
    REAL most = lanes_max(best);
    for (; i < classes; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* The cross-entropy of one row of logits; its softmax goes to probs unless NULL, and may replace x. correct: the label
 * has the first of the largest logits. */
static inline double row_loss(const REAL *x, int64_t classes, int64_t label, double smoothing, REAL *probs,
                              bool *correct)
{
    double  total = 0, all = 0;
    int64_t first = 0;
    REAL    most = row_most(x, classes);
    while (first < label && x[first] != most) first++;
    double at_label = (double)x[label];
    *correct = first == label && x[label] == most;
    if (smoothing != 0) SUM_VECTORS(all, k, classes, most - load_part(x + k, lanes));
    if (probs) {
        MAP_VECTORS(store_part, probs, k, classes, vexp(load_part(x + k, lanes) - most));
        SUM_VECTORS(total, k, classes, load_part(probs + k, lanes));
        REAL factor = (REAL)(1 / total);
        EACH_VECTOR(k, classes, store_part(probs + k, load_part(probs + k, lanes) * factor, lanes););
    } else {
        SUM_VECTORS(total, k, classes, vexp(load_part(x + k, lanes) - most));
    }
    double log_total = log(total);
    double loss = log_total + ((double)most - at_label);
    if (smoothing == 0) return loss;
    all += (double)classes * log_total;
    return (1 - smoothing) * loss + smoothing / (double)classes * all;
}

/* ---- rows whose classes are cut ----
 *
 * A part knows about its logits what class_statistics writes; the records of all parts give the loss of the whole row.
 * The parts are the ones that ranks have or, where any number of ranks must give the same bits, the parts of attrs.sum:
 * a rank then has a record of each of its own. */

typedef struct row_statistics {
    double most, total; /* the largest logit, and the sum of exp(logit - most); 0 where all are -infinity */
    double at_label;    /* the label's logit; 0 where it is in another part */
    double all;         /* with smoothing: the sum of the logits */
    double first;       /* which class of the whole row has the first of the largest */
} row_statistics;
_Static_assert(sizeof(row_statistics) == LK__CLASS_STATISTICS * sizeof(double), "the last axis of statistics");

/* Of classes origin … origin + classes - 1. */
static inline row_statistics part_statistics(const REAL *x, int64_t classes, int64_t origin, int64_t label,
                                             double smoothing)
{
    REAL           most = row_most(x, classes), less = most == -INFINITY ? 0 : most; /* not -infinity + infinity */
    row_statistics s = {.most = (double)most};
    int64_t        first = 0;
    while (first < classes - 1 && x[first] != most) first++;
    s.first = (double)(origin + first);
    if (label >= origin && label < origin + classes) s.at_label = (double)x[label - origin];
    if (smoothing != 0) SUM_VECTORS(s.all, k, classes, load_part(x + k, lanes));
    SUM_VECTORS(s.total, k, classes, vexp(load_part(x + k, lanes) - less));
    return s;
}

/* Of a row that has classes from `origin` on: a record of each of these parts of them, `step` records apart. */
static inline void parts_statistics(const REAL *x, const lk__sum_parts *parts, int64_t origin, int64_t label,
                                    double smoothing, row_statistics *to, int64_t step)
{
    for (int i = 0; i < parts->count; i++, to += step) {
        int64_t begin = parts->begin[0][i], classes = parts->begin[0][i + 1] - begin;
        *to = part_statistics(x + begin, classes, origin + begin, label, smoothing);
    }
}

/* The record of the whole row, from the records of its parts (parts, rows), in their order. */
static inline row_statistics join_statistics(const row_statistics *parts, int64_t count, int64_t rows, int64_t row)
{
    row_statistics all = parts[row];
    for (int64_t p = 1; p < count; p++) {
        const row_statistics *s = &parts[p * rows + row];
        if (s->most > all.most) all.most = s->most, all.first = s->first;
        all.at_label += s->at_label;
        all.all += s->all;
    }
    all.total = 0;
    for (int64_t p = 0; p < count; p++) {
        const row_statistics *s = &parts[p * rows + row];
        if (s->total != 0) all.total += s->total * exp(s->most - all.most);
    }
    return all;
}

/* row_loss of the whole row; classes: of the whole row. */
static inline double joined_loss(const row_statistics *s, int64_t classes, double smoothing)
{
    double log_total = log(s->total), loss = log_total + (s->most - s->at_label);
    if (smoothing == 0) return loss;
    double all = (double)classes * (s->most + log_total) - s->all;
    return (1 - smoothing) * loss + smoothing / (double)classes * all;
}

/* The softmax of a part of a row; may replace x. */
static inline void part_softmax(const row_statistics *s, const REAL *x, int64_t classes, REAL *probs)
{
    REAL most = (REAL)s->most, factor = (REAL)(1 / s->total);
    MAP_VECTORS(store_part, probs, k, classes, vexp(load_part(x + k, lanes) - most) * factor);
}

#endif
