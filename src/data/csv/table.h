/* data/csv/table.h - a table that is being read into a data set: its first line, the meaning of its columns, and its
 * labels. */
#ifndef LK__CSV_TABLE_H
#define LK__CSV_TABLE_H

#include "data/csv/records.h"
#include "data/csv/whole_numbers.h"
#include "data/labels.h"

/* What the labels are; decided once all were seen, or by the samples of training. */
typedef enum lk__csv_kind {
    LK__CSV_NONE,    /* there is no such column */
    LK__CSV_TARGET,  /* numbers to predict */
    LK__CSV_NUMBERS, /* class numbers from 0 */
    LK__CSV_VALUES,  /* other whole numbers: each is the name of a class, in ascending order */
    LK__CSV_NAMES,   /* text: names of classes, in the order of their bytes */
    LK__CSV_KNOWN    /* classes of training */
} lk__csv_kind;

typedef struct lk__csv_table {
    lk_context            *context;
    const lk__csv_source  *source;
    const lk_open_options *options;
    bool                   quiet;             /* nothing is logged */
    const lk_field        *features, *answer; /* of training: the features, and the label or target; NULL: not known */

    /* the first line */
    bool         header;
    int          columns, label; /* label: its column; -1: there is none */
    const char **names;          /* by column, as a record has them; NULL: no header */
    char        *names_text;
    size_t       names_bytes;
    int         *order; /* by feature: its column; features_count of them */
    int          features_count;
    size_t       order_bytes;

    /* the labels */
    int64_t           rows;
    bool              named;   /* some labels are not numbers: all are names of classes */
    bool              whole;   /* all are whole numbers */
    bool              missing; /* some rows have none */
    lk__class_names   classes;
    lk__whole_numbers numbers;
    lk__labels        known;
    lk__csv_kind      kind;
    const char      **value_names; /* of LK__CSV_VALUES, each in the same number of bytes of … */
    char             *value_text;
} lk__csv_table;

/* ---- header.c ---- */

/* Sets what the first record determines. */
lk_status lk__csv_read_first(lk__csv_table *table, lk__csv *csv);
/* "FILE: line 7, column 3 ('age')" */
typedef struct lk__csv_place {
    char text[LK__PATH + 160];
} lk__csv_place;
lk__csv_place lk__csv_show_place(const lk__csv_table *table, const lk__csv *csv, int column);
/* A value as a message shows it. */
const char *lk__csv_show_text(const lk__csv_text *text, char out[LK__SHOWN]);
lk_status   lk__csv_refuse_missing(const lk__csv_table *table, const lk__csv *csv, int column);

/* ---- label_column.c ---- */

/* The label of row table->rows. LK_END: a name after numbers; the pass starts again with names. */
lk_status lk__csv_survey_label(lk__csv_table *table, const lk__csv *csv);
/* After the last row: sets kind, and what belongs to it. */
lk_status lk__csv_decide(lk__csv_table *table);
/* Logs what was inferred from the labels, and which option says otherwise. */
void lk__csv_log_labels(const lk__csv_table *table);
/* The class of a row, or its target; any value for a sample that is left out. */
lk_status lk__csv_read_class(const lk__csv_table *table, const lk__csv *csv, int32_t *class);
lk_status lk__csv_read_target(const lk__csv_table *table, const lk__csv *csv, float *target);

void lk__csv_table_free(lk__csv_table *table);

#endif
