/* device/cpu/entropy.h - the cross-entropy of one row, for the loss of logits and for that of a linear layer. */
#ifndef LK__CPU_ENTROPY_H
#define LK__CPU_ENTROPY_H

#include "device/cpu/vmath.h"

/* The cross-entropy of one row of logits; its softmax goes to probs unless NULL, and may replace x. correct: the label
 * has the first of the largest logits. */
static inline double row_loss(const REAL *x, int64_t classes, int64_t label, double smoothing, REAL *probs,
                              bool *correct)
{
    vec     best = splat(-INFINITY);
    double  total = 0, all = 0;
    int64_t i = 0, first = 0;
    for (; i + VL <= classes; i += VL) best = vmax(load(x + i), best);
    REAL most = lanes_max(best);
    for (; i < classes; i++) most = x[i] > most ? x[i] : most;
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

#endif
