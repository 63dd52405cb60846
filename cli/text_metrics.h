/* text_metrics.h - the metrics that a language model's training shows besides its loss. */
#ifndef TEXT_METRICS_H
#define TEXT_METRICS_H

#include "setup.h"

enum { TEXT_METRICS = 5 };

typedef struct text_metrics {
    double          peak;     /* operations a second of all ranks: the best of those measured; 0: none, or it failed */
    int             measured; /* how often */
    int             world;
    int64_t         tokens; /* seen by this run */
    lk_named_metric all[LK_MAX_METRICS + 1 + TEXT_METRICS];
} text_metrics;

/* Measures how many operations a second the ranks can do, in the precision of the run: some 30 ms, between steps. */
void text_metrics_measure(text_metrics *m, const setup *s, int world);
/* Model FLOP utilisation at that speed, 0 … 1. NAN: nothing was measured, or what was measured is not the machine's
 * peak, since the model exceeds it. */
double text_metrics_utilisation(text_metrics *m, const setup *s, double tokens_per_s);
/* Perplexity and, where the bytes of the data's text are known, bits_per_byte of a mean loss. Returns their number. */
int text_metrics_of_loss(const lk_dataset *data, double loss, lk_named_metric *out);
/* The event with perplexity and bits_per_byte added and, after a step, tokens_per_s, tokens and mfu; the same event for
 * other models. Valid until the next call. */
lk_event text_metrics_add(text_metrics *m, const setup *s, const lk_event *event);

#endif
