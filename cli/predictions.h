/* predictions.h - prints predictions as text, JSON or CSV. */
#ifndef PREDICTIONS_H
#define PREDICTIONS_H

#include <lockstep/data.h>
#include <stdio.h>

typedef enum predictions_kind {
    PREDICTIONS_CLASS,  /* one of several classes: probabilities that add up to 1 */
    PREDICTIONS_LABELS, /* any of several labels: a probability for each */
    PREDICTIONS_NUMBERS /* numbers */
} predictions_kind;

typedef enum predictions_format { PREDICTIONS_TEXT, PREDICTIONS_JSON, PREDICTIONS_CSV } predictions_format;

typedef struct predictions {
    predictions_kind   kind;
    predictions_format format;
    int64_t            outputs; /* values per sample */
    int64_t            top;     /* how many of them are printed, the most probable first; not for numbers */
    const lk_field    *classes; /* whose class names are printed; NULL: numbers alone */
    bool               named;   /* samples have names: files */
    bool               labelled, targeted; /* samples have a label, or numbers that should be predicted */
} predictions;

/* One sample and its result. */
typedef struct prediction {
    int64_t       index;
    const char   *name;   /* "" without one */
    const double *values; /* `outputs` of them */
    int64_t       label;  /* if labelled; LK_NO_LABEL: this one is not */
    const double *target; /* if targeted: `outputs` of them; NaN: it has none */
} prediction;

void predictions_begin(const predictions *p); /* the header of CSV */
void predictions_print(const predictions *p, const prediction *one);

#endif
