/* text_metrics.h - what a language model's training shows beside its loss. */
#ifndef TEXT_METRICS_H
#define TEXT_METRICS_H

#include "setup.h"

enum { TEXT_METRICS = 5 };

typedef struct text_metrics {
    double          peak;   /* measured operations a second of all ranks; 0: not measured yet; -1: it failed */
    int64_t         tokens; /* seen by this run */
    lk_named_metric all[LK_MAX_METRICS + 1 + TEXT_METRICS];
} text_metrics;

/* Measures how many operations a second large products reach, in the precision of the run; 0 on failure. */
double text_metrics_peak(const setup *s, int world);
/* Perplexity and, where the bytes of the data's text are known, bits_per_byte of a mean loss. Returns their number. */
int text_metrics_of_loss(const lk_dataset *data, double loss, lk_named_metric *out);
/* The event with perplexity and bits_per_byte added and, after a step, tokens_per_s, tokens and mfu; the same event for other models.
 * Valid until the next call. */
lk_event text_metrics_add(text_metrics *m, const setup *s, const lk_event *event);

#endif
