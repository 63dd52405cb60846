/* csv.c - data sets from CSV files. The text is read twice: first for the number of rows and the labels, which is also
 * what a probe needs, then for the numbers, into columns of the right size. */
#define _GNU_SOURCE
#include "data/csv/csv.h"

#include "data/csv/table.h"
#include "data/format.h"
#include "data/subset.h"

#include <stdio.h>
#include <string.h>

/* ---- The first pass: rows and labels. ---- */

static lk_status check_count(const lk__csv_table *t, const lk__csv *c)
{
    if (c->count == t->columns) return LK_OK;
    return lk__fail(t->context, LK_EFORMAT, "%s: line %lld has %d fields separated by %s, but line 1 has %d",
                    t->source->label, (long long)c->line, c->count,
                    c->separator == ','   ? "commas"
                    : c->separator == ';' ? "semicolons"
                                          : "tabs",
                    t->columns);
}

static lk_status survey_rows(lk__csv_table *t)
{
    lk__csv   c;
    lk_status status = lk__csv_open(t->context, t->source, &c);
    t->rows = 0, t->whole = true;
    if (status == LK_OK && (status = t->columns ? lk__csv_next(&c) : lk__csv_read_first(t, &c)) == LK_OK && t->header)
        status = lk__csv_next(&c);
    while (status == LK_OK && (status = check_count(t, &c)) == LK_OK &&
           (status = lk__csv_survey_label(t, &c)) == LK_OK) {
        t->rows++;
        if ((status = lk__csv_next(&c)) != LK_END) continue;
        status = LK_OK;
        break;
    }
    if (status == LK_END && t->rows == 0 && !t->named)
        status = lk__fail(t->context, LK_EFORMAT, "%s has a header, but no rows", t->source->label);
    lk__csv_close(&c);
    return status;
}

static lk_status survey(lk__csv_table *t)
{
    lk_status status = survey_rows(t);
    if (status == LK_END) {
        t->named = true;
        status = survey_rows(t);
    }
    return status < 0 ? status : lk__csv_decide(t);
}

/* ---- The second pass: numbers. ---- */

static lk_status refuse_feature(const lk__csv_table *t, const lk__csv *c, int column)
{
    const lk__csv_text *text = &c->fields[column];
    char                shown[LK__SHOWN];
    double              number;
    if (lk__csv_missing(text)) return lk__csv_refuse_missing(t, c, column);
    lk__csv_show_text(text, shown);
    if (lk__csv_number(text, &number) || strcasestr(shown, "inf"))
        return lk__fail(t->context, LK_EFORMAT, "%s: '%s' is infinite as f32", lk__csv_show_place(t, c, column).text,
                        shown);
    char advice[64] = "";
    if (!t->features) snprintf(advice, sizeof advice, ". If this is the label, use --label %d", column + 1);
    return lk__fail(t->context, LK_EFORMAT, "%s: '%s' is not a number: features must be numbers%s",
                    lk__csv_show_place(t, c, column).text, shown, advice);
}

static lk_status fill_features(const lk__csv_table *t, const lk__csv *c, float *features)
{
    double number = 0;
    for (int i = 0; i < t->features_count; i++) {
        int column = t->order[i];
        if (!lk__csv_number(&c->fields[column], &number)) return refuse_feature(t, c, column);
        float value = (float)number;
        if (value - value != 0) return refuse_feature(t, c, column);
        features[i] = value;
    }
    return LK_OK;
}

static lk_status fill(const lk__csv_table *t, lk_dataset *d)
{
    lk__csv c;
    bool    labelled = t->kind != LK__CSV_NONE;
    float  *features = lk__dataset_column(d, 0);
    void   *second = labelled ? lk__dataset_column(d, 1) : NULL;
    int64_t row = 0;
    if (!features || (labelled && !second)) return LK_ENOMEM;
    lk_status status = lk__csv_open(t->context, t->source, &c);
    if (status == LK_OK && (status = lk__csv_next(&c)) == LK_OK && t->header) status = lk__csv_next(&c);
    for (; status == LK_OK && row < t->rows; row++, features += t->features_count) {
        if ((status = check_count(t, &c)) < 0 || (status = fill_features(t, &c, features)) < 0) break;
        if (t->kind == LK__CSV_TARGET)
            status = lk__csv_read_target(t, &c, (float *)second + row);
        else if (labelled)
            status = lk__csv_read_class(t, &c, (int32_t *)second + row);
        if (status == LK_OK) status = lk__csv_next(&c);
    }
    lk__csv_close(&c);
    if (status < 0) return status;
    return row == t->rows && status == LK_END
               ? LK_OK
               : lk__fail(t->context, LK_EFORMAT, "%s changed while being read", t->source->label);
}

/* ---- The data set. ---- */

/* The classes of the label, by its kind. */
static void set_classes(const lk__csv_table *t, lk_field *label)
{
    if (t->kind == LK__CSV_NAMES) label->classes = t->classes.count, label->class_names = t->classes.sorted;
    if (t->kind == LK__CSV_NUMBERS) label->classes = (int)t->numbers.count;
    if (t->kind == LK__CSV_VALUES) label->classes = (int)t->numbers.count, label->class_names = t->value_names;
    if (t->kind == LK__CSV_KNOWN) label->classes = t->answer->classes, label->class_names = t->answer->class_names;
}

static lk_status make_dataset(const lk__csv_table *t, lk_dataset **dataset)
{
    bool         labelled = t->kind != LK__CSV_NONE, target = t->kind == LK__CSV_TARGET;
    size_t       bytes = t->names ? (size_t)t->features_count * sizeof(char *) : 0;
    const char **names = bytes ? lk__alloc(t->context, LK_MEMORY_OTHER, bytes) : NULL;
    if (bytes && !names) return LK_ENOMEM;
    for (int i = 0; names && i < t->features_count; i++) names[i] = t->names[t->order[i]];
    lk_field fields[2] = {
        {.name = "features", .dtype = LK_F32, .rank = 1, .dims = {t->features_count}, .column_names = names},
        {.name = target ? "target" : "label", .dtype = target ? LK_F32 : LK_I32},
    };
    if (t->names && labelled) fields[1].column_names = &t->names[t->label];
    set_classes(t, &fields[1]);
    lk_status status =
        lk__dataset_make(t->context, &(lk__dataset_about){"csv", t->rows, fields, 1 + labelled}, dataset);
    if (status == LK_OK) (*dataset)->unlabelled = t->missing;
    lk__free(t->context, LK_MEMORY_OTHER, names, bytes);
    return status;
}

lk_status lk__csv_dataset(lk_context *context, const lk__csv_source *source, const lk__data_request *request,
                          lk_dataset **dataset)
{
    const lk_open_options *options = request->options;
    lk_split               split = request->split;
    bool                   probe = request->probe;
    lk__csv_table          t = {.context = context, .source = source, .options = options, .quiet = probe, .label = -1};
    lk_dataset            *d = NULL;
    *dataset = NULL;
    if (split == LK_SPLIT_TEST && options->holdout == 0) return LK_END;
    t.classes = (lk__class_names){.context = context};
    t.numbers = (lk__whole_numbers){.context = context};
    if (options->expected && options->expected_count > 0 && options->expected->rank == 1) {
        t.features = options->expected;
        const lk_field *label = lk__expected_field(options, "label"), *target = lk__expected_field(options, "target");
        t.answer = label ? label : target;
    }
    bool      classes = t.answer && t.answer->classes > 0;
    lk_status status = lk__labels_begin(context, classes ? t.answer : NULL, options->skip_unknown, &t.known);
    if (status == LK_OK) status = survey(&t);
    if (status == LK_OK && split == LK_SPLIT_TRAIN) lk__csv_log_labels(&t);
    if (status == LK_OK) status = make_dataset(&t, &d);
    if (status == LK_OK && !probe) status = fill(&t, d);
    if (status == LK_OK) status = lk__labels_drop(&t.known, source->label, probe, d);
    if (status == LK_OK) status = lk__dataset_hold_out(d, split, options->holdout, NULL);
    if (status == LK_OK)
        *dataset = d;
    else
        lk_dataset_free(d);
    lk__csv_table_free(&t);
    return status;
}

static lk_status open_csv(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    if (!request->rest) return lk__fail(context, LK_EINVAL, "csv needs a file: csv:FILE");
    return lk__csv_dataset(context, &(lk__csv_source){.label = request->rest}, request, dataset);
}

const lk__data_format lk__data_format_csv = {
    .about = {.name = "csv",
              .form = "csv:FILE",
              .doc = "rows of numbers and a label",
              .options = "label header holdout unknown-label",
              .traits = LK_DATA_TABLE},
    .open = open_csv,
};
