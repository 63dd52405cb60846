/* csv.c - data sets from CSV files. The text is read twice: first for the number of rows and the labels, which is also what a probe
 * needs, then for the numbers, into columns of the right size. */
#define _GNU_SOURCE
#include "data/csv/csv.h"

#include "data/csv/class_names.h"
#include "data/subset.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct table {
    lk_context            *context;
    const lk__csv_source  *source;
    const lk_open_options *options;
    bool                   header;
    int                    columns, label; /* label: its column; -1: there is none */
    char                  *names;          /* of the columns, each with its NUL; NULL: no header */
    size_t                 names_bytes;
    int64_t                rows;
    bool                   named;         /* some labels are no numbers: all are names of classes */
    bool                   whole;         /* all are whole numbers */
    double                 largest;       /* of them */
    int64_t                negative_line; /* the first with a negative label; 0: none */
    lk__class_names        classes;
} table;

static bool is_unlabelled(const table *t) { return t->options->label && !t->options->label[0]; }

static const char *column_name(const table *t, int column)
{
    const char *name = t->names;
    for (int i = 0; name && i < column; i++) name += strlen(name) + 1;
    return name;
}

/* "FILE: line 7, column 3 ('age')" */
typedef struct place {
    char text[LK__PATH + 160];
} place;
static place show_place(const table *t, const lk__csv *c, int column)
{
    place       p;
    char        shown[LK__SHOWN];
    const char *name = column_name(t, column);
    snprintf(p.text, sizeof p.text, "%s: line %lld, column %d%s%s%s", t->source->label, (long long)c->line, column + 1,
             name ? " ('" : "", name ? lk__shown(name, shown) : "", name ? "')" : "");
    return p;
}

/* A value as a message shows it. */
static const char *show_text(const lk__csv_text *text, char out[LK__SHOWN])
{
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", text->length < 48 ? (int)text->length : 48, text->at);
    return lk__shown(copy, out);
}

static lk_status refuse_missing(const table *t, const lk__csv *c, int column)
{
    char shown[LK__SHOWN];
    return lk__fail(t->context, LK_EFORMAT,
                    "%s: the value is missing ('%s'): fill such values in, or remove these lines",
                    show_place(t, c, column).text, show_text(&c->fields[column], shown));
}

/* ---- The first line. ---- */

static lk_status keep_names(table *t, const lk__csv *c)
{
    for (int i = 0; i < c->count; i++) t->names_bytes += c->fields[i].length + 1;
    char *to = t->names = lk__alloc(t->context, LK_MEMORY_OTHER, t->names_bytes);
    if (!to) return LK_ENOMEM;
    for (int i = 0; i < c->count; i++) {
        for (size_t k = 0; k < c->fields[i].length; k++) *to++ = c->fields[i].at[k] ? c->fields[i].at[k] : ' ';
        *to++ = 0;
    }
    return LK_OK;
}

/* By name, or by number from 1. */
static lk_status find_given_label(table *t)
{
    const char *wanted = t->options->label;
    int         number = 0, used = 0;
    for (int i = 0; t->names && i < t->columns; i++)
        if (strcmp(column_name(t, i), wanted) == 0) {
            t->label = i;
            return LK_OK;
        }
    if (sscanf(wanted, "%9d%n", &number, &used) == 1 && !wanted[used] && number >= 1 && number <= t->columns) {
        t->label = number - 1;
        return LK_OK;
    }
    if (!t->names)
        return lk__fail(t->context, LK_EINVAL, "%s has no header: the label's column is a number from 1 to %d, not '%s'",
                        t->source->label, t->columns, wanted);
    const char *names[64], *suggestion;
    int         n = t->columns < 64 ? t->columns : 64;
    for (int i = 0; i < n; i++) names[i] = column_name(t, i);
    suggestion = lk__suggest(wanted, names, (size_t)n);
    return lk__fail(t->context, LK_EINVAL,
                    "%s has no column '%s' for the label%s%s%s: a name of its header or a number from 1 to %d",
                    t->source->label, wanted, suggestion ? " (did you mean '" : "", suggestion ? suggestion : "",
                    suggestion ? "'?)" : "", t->columns);
}

static lk_status find_label(table *t)
{
    if (is_unlabelled(t)) {
        t->label = -1;
        return LK_OK;
    }
    t->label = t->columns - 1;
    if (t->options->label) return find_given_label(t);
    for (int i = 0; t->names && i < t->columns; i++)
        if (strcasecmp(column_name(t, i), "label") == 0 || strcasecmp(column_name(t, i), "target") == 0) {
            t->label = i;
            break;
        }
    return LK_OK;
}

/* Sets what the first record tells. */
static lk_status read_first(table *t, lk__csv *c)
{
    double    number;
    bool      text = true;
    lk_status status = lk__csv_next(c);
    if (status == LK_END) return lk__fail(t->context, LK_EFORMAT, "%s is empty", t->source->label);
    if (status < 0) return status;
    t->columns = c->count;
    if (t->columns < 2 && !is_unlabelled(t))
        return lk__fail(t->context, LK_EFORMAT,
                        "%s has one column: features and a label are needed, separated by comma, semicolon or tab",
                        t->source->label);
    for (int i = 0; i < c->count; i++)
        if (lk__csv_number(&c->fields[i], &number)) text = false;
    t->header = t->options->header ? t->options->header > 0 : text;
    if (t->header && (status = keep_names(t, c)) < 0) return status;
    return find_label(t);
}

/* ---- The first pass: rows and labels. ---- */

static void trim(const lk__csv_text *text, const char **at, size_t *length)
{
    *at = text->at, *length = text->length;
    while (*length && !text->quoted && (**at == ' ' || **at == '\t')) ++*at, --*length;
    while (*length && !text->quoted && ((*at)[*length - 1] == ' ' || (*at)[*length - 1] == '\t')) --*length;
}

/* LK_END: a name after numbers; the pass starts again with names. */
static lk_status survey_label(table *t, const lk__csv *c)
{
    if (t->label < 0) return LK_OK;
    const lk__csv_text *text = &c->fields[t->label];
    const char         *at;
    size_t              length;
    double              number;
    char                shown[LK__SHOWN];
    if (lk__csv_missing(text)) return refuse_missing(t, c, t->label);
    if (!t->named && lk__csv_number(text, &number)) {
        if (number - number != 0)
            return lk__fail(t->context, LK_EFORMAT, "%s: the label is infinite", show_place(t, c, t->label).text);
        if (number < 0 && !t->negative_line) t->negative_line = c->line;
        if (number > t->largest) t->largest = number;
        if (number > 9e15 || number < -9e15 || number != (double)(int64_t)number) t->whole = false;
        return LK_OK;
    }
    if (t->options->regression)
        return lk__fail(t->context, LK_EFORMAT, "%s: the label is '%s': regression needs numbers",
                        show_place(t, c, t->label).text, show_text(text, shown));
    if (!t->named && t->rows > 0) return LK_END;
    t->named = true;
    trim(text, &at, &length);
    if (memchr(at, 0, length))
        return lk__fail(t->context, LK_EFORMAT, "%s: a zero byte", show_place(t, c, t->label).text);
    lk_status status = lk__class_names_add(&t->classes, at, length);
    if (status != LK_END) return status;
    return lk__fail(t->context, LK_EFORMAT,
                    "%s has more than %d different labels in column %d%s: choose the label's column with --label",
                    t->source->label, LK__CLASS_NAMES_MOST, t->label + 1,
                    t->options->label ? "" : " (the last, which is the default)");
}

static lk_status check_count(const table *t, const lk__csv *c)
{
    if (c->count == t->columns) return LK_OK;
    return lk__fail(t->context, LK_EFORMAT, "%s: line %lld has %d fields, but line 1 has %d, separated by %s",
                    t->source->label, (long long)c->line, c->count, t->columns,
                    c->separator == ','   ? "commas"
                    : c->separator == ';' ? "semicolons"
                                          : "tabs");
}

static lk_status survey_rows(table *t)
{
    lk__csv   c;
    lk_status status = lk__csv_open(t->context, t->source, &c);
    t->rows = 0, t->whole = true, t->largest = 0, t->negative_line = 0;
    if (status == LK_OK && (status = t->columns ? lk__csv_next(&c) : read_first(t, &c)) == LK_OK && t->header)
        status = lk__csv_next(&c);
    while (status == LK_OK && (status = check_count(t, &c)) == LK_OK && (status = survey_label(t, &c)) == LK_OK) {
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

static lk_status survey(table *t)
{
    lk_status status = survey_rows(t);
    if (status == LK_END) {
        t->named = true;
        status = survey_rows(t);
    }
    if (status < 0 || t->label < 0) return status;
    if (t->named ? t->classes.count == 1 : t->whole && t->largest == 0 && !t->negative_line && !t->options->regression)
        return lk__fail(t->context, LK_EFORMAT, "%s has only the label '%s': at least two classes are needed",
                        t->source->label, t->named ? t->classes.text : "0");
    if (t->named) return lk__class_names_sort(&t->classes);
    if (t->options->regression || !t->whole) return LK_OK;
    if (t->negative_line)
        return lk__fail(t->context, LK_EFORMAT,
                        "%s: line %lld has a negative label: class numbers start at 0; for regression use --loss mse",
                        t->source->label, (long long)t->negative_line);
    if (t->largest >= INT32_MAX)
        return lk__fail(t->context, LK_EFORMAT, "%s has the label %.0f: class numbers are below %d", t->source->label,
                        t->largest, INT32_MAX);
    return LK_OK;
}

/* ---- The second pass: numbers. ---- */

static lk_status refuse_feature(const table *t, const lk__csv *c, int column)
{
    const lk__csv_text *text = &c->fields[column];
    char                shown[LK__SHOWN];
    double              number;
    if (lk__csv_missing(text)) return refuse_missing(t, c, column);
    show_text(text, shown);
    if (lk__csv_number(text, &number) || strcasestr(shown, "inf"))
        return lk__fail(t->context, LK_EFORMAT, "%s: '%s' is infinite as f32", show_place(t, c, column).text, shown);
    return lk__fail(t->context, LK_EFORMAT,
                    "%s: '%s' is no number: features are numbers. If this is the label, say --label %d",
                    show_place(t, c, column).text, shown, column + 1);
}

static lk_status fill_row(const table *t, const lk__csv *c, float *features, int32_t *label, float *target)
{
    double number = 0;
    for (int i = 0; i < t->columns; i++) {
        if (i == t->label) continue;
        if (!lk__csv_number(&c->fields[i], &number)) return refuse_feature(t, c, i);
        float value = (float)number;
        if (value - value != 0) return refuse_feature(t, c, i);
        *features++ = value;
    }
    if (t->label < 0) return LK_OK;
    const char *at;
    size_t      length;
    trim(&c->fields[t->label], &at, &length);
    if (t->named)
        *label = lk__class_names_find(&t->classes, at, length);
    else if (!lk__csv_number(&c->fields[t->label], &number))
        return refuse_feature(t, c, t->label);
    else if (label)
        *label = (int32_t)number;
    else
        *target = (float)number;
    return LK_OK;
}

static lk_status fill(const table *t, lk_dataset *d)
{
    lk__csv  c;
    bool     labelled = t->label >= 0;
    float   *features = lk__dataset_column(d, 0);
    void    *second = labelled ? lk__dataset_column(d, 1) : NULL;
    int32_t *label = labelled && d->fields[1].dtype == LK_I32 ? second : NULL;
    float   *target = label ? NULL : second;
    int64_t  row = 0;
    if (!features || (labelled && !second)) return LK_ENOMEM;
    lk_status status = lk__csv_open(t->context, t->source, &c);
    if (status == LK_OK && (status = lk__csv_next(&c)) == LK_OK && t->header) status = lk__csv_next(&c);
    for (; status == LK_OK && row < t->rows; row++, features += t->columns - labelled) {
        if ((status = check_count(t, &c)) < 0) break;
        if ((status = fill_row(t, &c, features, label ? label + row : NULL, target ? target + row : NULL)) < 0) break;
        status = lk__csv_next(&c);
    }
    lk__csv_close(&c);
    if (status < 0) return status;
    return row == t->rows && status == LK_END
               ? LK_OK
               : lk__fail(t->context, LK_EFORMAT, "%s changed while it was read", t->source->label);
}

/* The names of the features, of which `*bytes` are allocated; NULL without a header. */
static lk_status list_features(const table *t, const char ***names, size_t *bytes)
{
    const char *name = t->names;
    *bytes = name ? (size_t)t->columns * sizeof **names : 0;
    if (!name) return LK_OK;
    if (!(*names = lk__alloc(t->context, LK_MEMORY_OTHER, *bytes))) return LK_ENOMEM;
    for (int i = 0, n = 0; i < t->columns; i++, name += strlen(name) + 1)
        if (i != t->label) (*names)[n++] = name;
    return LK_OK;
}

lk_status lk__csv_dataset(lk_context *context, const lk__csv_source *source, lk_split split,
                          const lk_open_options *options, bool probe, lk_dataset **dataset)
{
    table        t = {.context = context, .source = source, .options = options, .classes = {.context = context}};
    lk_dataset  *d = NULL;
    const char **names = NULL;
    size_t       names_bytes = 0;
    *dataset = NULL;
    if (split == LK_SPLIT_TEST && options->holdout == 0) return LK_END;
    lk_status status = survey(&t);
    if (status == LK_OK) status = list_features(&t, &names, &names_bytes);
    if (status == LK_OK) {
        bool     labelled = t.label >= 0, target = !t.named && (options->regression || !t.whole);
        lk_field fields[2] = {
            {.name = "features", .dtype = LK_F32, .rank = 1, .dims = {t.columns - labelled}, .column_names = names},
            {.name = target ? "target" : "label", .dtype = target ? LK_F32 : LK_I32},
        };
        if (!target) fields[1].classes = t.named ? t.classes.count : (int)t.largest + 1;
        if (t.named) fields[1].class_names = t.classes.sorted;
        status = lk__dataset_make(context, "csv", t.rows, fields, 1 + labelled, &d);
    }
    if (status == LK_OK && !probe) status = fill(&t, d);
    if (status == LK_OK) status = lk__dataset_hold_out(d, split, options->holdout, NULL);
    if (status == LK_OK)
        *dataset = d;
    else
        lk_dataset_free(d);
    lk__class_names_free(&t.classes);
    lk__free(context, LK_MEMORY_OTHER, names, names_bytes);
    lk__free(context, LK_MEMORY_OTHER, t.names, t.names_bytes);
    return status;
}

lk_status lk__csv_open_data(lk_context *context, const char *path, lk_split split, const lk_open_options *options,
                            bool probe, lk_dataset **dataset)
{
    if (!path) return lk__fail(context, LK_EINVAL, "csv needs a file: csv:FILE");
    return lk__csv_dataset(context, &(lk__csv_source){.label = path}, split, options, probe, dataset);
}
