/* label_column.c - the label column: the kind of a table's labels, and the class or the target of each row. Whole
 * numbers are classes or numbers to predict by the rule of whole_numbers.h; for a trained model they are what they were
 * in training. */
#include "data/csv/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_BYTES = 24 }; /* of a whole number as text */

static void trim(const lk__csv_text *text, const char **at, size_t *length)
{
    *at = text->at, *length = text->length;
    while (*length && !text->quoted && (**at == ' ' || **at == '\t')) ++*at, --*length;
    while (*length && !text->quoted && ((*at)[*length - 1] == ' ' || (*at)[*length - 1] == '\t')) --*length;
}

/* ---- The first pass. ---- */

/* The class of training that a label is; -1: none. */
static int32_t find_known(const lk__csv_table *t, const lk__csv_text *text)
{
    const char *at;
    size_t      length;
    double      number;
    trim(text, &at, &length);
    int32_t class = lk__labels_find(&t->known, at, length);
    return class < 0 && lk__csv_number(text, &number) ? lk__labels_find_number(&t->known, number) : class;
}

static lk_status refuse_text(const lk__csv_table *t, const lk__csv *c)
{
    char shown[LK__SHOWN];
    return lk__fail(t->context, LK_EFORMAT, "%s: regression needs numbers, but the label is '%s'",
                    lk__csv_show_place(t, c, t->label).text, lk__csv_show_text(&c->fields[t->label], shown));
}

static lk_status survey_known(lk__csv_table *t, const lk__csv *c)
{
    const lk__csv_text *text = &c->fields[t->label];
    char                name[64];
    if (find_known(t, text) >= 0) return LK_OK;
    snprintf(name, sizeof name, "%.*s", text->length < 60 ? (int)text->length : 60, text->at);
    return lk__labels_refuse(&t->known, t->rows, lk__csv_show_place(t, c, t->label).text, name);
}

static lk_status survey_number(lk__csv_table *t, const lk__csv *c, double number)
{
    if (number - number != 0)
        return lk__fail(t->context, LK_EFORMAT, "%s: the label is infinite", lk__csv_show_place(t, c, t->label).text);
    if (number > 9e15 || number < -9e15 || number != (double)(int64_t)number) t->whole = false;
    return t->whole && !t->options->regression ? lk__whole_numbers_add(&t->numbers, (int64_t)number) : LK_OK;
}

static lk_status survey_name(lk__csv_table *t, const lk__csv *c)
{
    const char *at;
    size_t      length;
    trim(&c->fields[t->label], &at, &length);
    if (memchr(at, 0, length))
        return lk__fail(t->context, LK_EFORMAT, "%s: the label contains a NUL byte",
                        lk__csv_show_place(t, c, t->label).text);
    return lk__class_names_add(&t->classes, at, length);
}

static lk_status refuse_many(const lk__csv_table *t)
{
    return lk__fail(t->context, LK_EFORMAT,
                    "%s has more than %d different labels in column %d%s: choose the label's column with --label",
                    t->source->label, LK__CLASS_NAMES_MOST, t->label + 1,
                    t->options->label ? "" : " (the last, which is the default)");
}

lk_status lk__csv_survey_label(lk__csv_table *t, const lk__csv *c)
{
    if (t->label < 0) return LK_OK;
    const lk__csv_text *text = &c->fields[t->label];
    double              number;
    bool                expected = t->answer != NULL;
    if (lk__csv_missing(text) && !(expected && t->known.field && find_known(t, text) >= 0)) {
        if (!expected || !t->options->label_optional) return lk__csv_refuse_missing(t, c, t->label);
        t->missing = true;
        return LK_OK;
    }
    if (expected && t->known.field) return survey_known(t, c);
    if (!t->named && lk__csv_number(text, &number)) return survey_number(t, c, number);
    if (expected || t->options->regression) return refuse_text(t, c);
    if (!t->named && t->rows > 0) return LK_END;
    t->named = true;
    lk_status status = survey_name(t, c);
    return status == LK_END ? refuse_many(t) : status;
}

/* ---- Between the passes. ---- */

static lk_status name_values(lk__csv_table *t)
{
    size_t count = t->numbers.count;
    if (count > LK__CLASS_NAMES_MOST) return refuse_many(t);
    t->value_names = lk__alloc(t->context, LK_MEMORY_OTHER, count * sizeof *t->value_names);
    t->value_text = lk__alloc(t->context, LK_MEMORY_OTHER, count * VALUE_BYTES);
    if (!t->value_names || !t->value_text) return LK_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        char *text = t->value_text + i * VALUE_BYTES;
        snprintf(text, VALUE_BYTES, "%lld", (long long)t->numbers.slots[i].value);
        t->value_names[i] = text;
    }
    return LK_OK;
}

static lk_status refuse_single(const lk__csv_table *t)
{
    char number[VALUE_BYTES];
    if (!t->named) snprintf(number, sizeof number, "%lld", (long long)t->numbers.slots[0].value);
    return lk__fail(t->context, LK_EFORMAT, "%s has only the label '%s': expected at least two classes",
                    t->source->label, t->named ? t->classes.text : number);
}

lk_status lk__csv_decide(lk__csv_table *t)
{
    if (t->label < 0) return LK_OK;
    t->kind = t->answer ? (t->known.field ? LK__CSV_KNOWN : LK__CSV_TARGET) : t->named ? LK__CSV_NAMES : LK__CSV_TARGET;
    if (t->answer) return LK_OK;
    if (t->named) return t->classes.count == 1 ? refuse_single(t) : lk__class_names_sort(&t->classes);
    if (t->options->regression || !t->whole) return LK_OK;
    lk__whole_numbers_sort(&t->numbers);
    if (!t->options->classification && !lk__whole_numbers_are_classes(&t->numbers)) return LK_OK;
    if (t->numbers.count == 1) return refuse_single(t);
    t->kind = lk__whole_numbers_from_zero(&t->numbers) ? LK__CSV_NUMBERS : LK__CSV_VALUES;
    return t->kind == LK__CSV_VALUES ? name_values(t) : LK_OK;
}

void lk__csv_log_labels(const lk__csv_table *t)
{
    static const char classes[] = "classes; --loss mse predicts them as numbers",
                      numbers[] = "numbers to predict; --loss cross_entropy treats them as classes";
    const lk__whole_number *all = t->numbers.slots;
    char                    shown[LK__SHOWN], column[LK__SHOWN + 48];
    const char             *name = t->names && t->label >= 0 ? t->names[t->label] : NULL;
    if (t->quiet || t->label < 0 || t->answer || t->options->regression || t->options->classification || !t->whole ||
        t->named)
        return;
    snprintf(column, sizeof column, "column %d%s%s%s", t->label + 1, name ? " ('" : "",
             name ? lk__shown(name, shown) : "", name ? "')" : "");
    if (t->kind == LK__CSV_TARGET)
        lk__log(
            t->context, LK_LOG_INFO,
            "%s: the label, %s, has %zu different whole numbers; they are not 0, 1, 2, … or 1, 2, 3, … with at least "
            "%d rows each, so they are treated as %s",
            t->source->label, column, t->numbers.count, LK__CLASS_ROWS, numbers);
    else
        lk__log(t->context, LK_LOG_INFO,
                "%s: the label, %s, has %zu different whole numbers, %lld to %lld: treated as %s", t->source->label,
                column, t->numbers.count, (long long)all[0].value, (long long)all[t->numbers.count - 1].value, classes);
}

/* ---- The second pass. ---- */

lk_status lk__csv_read_class(const lk__csv_table *t, const lk__csv *c, int32_t *class)
{
    const lk__csv_text *text = &c->fields[t->label];
    const char         *at;
    size_t              length;
    double              number;
    *class = -1;
    if (t->kind == LK__CSV_NAMES) {
        trim(text, &at, &length);
        *class = lk__class_names_find(&t->classes, at, length);
    } else if (t->kind == LK__CSV_KNOWN) {
        *class = find_known(t, text);
        if (*class < 0) *class = LK_NO_LABEL; /* missing, or left out */
    } else if (lk__csv_number(text, &number)) {
        *class = lk__whole_numbers_find(&t->numbers, (int64_t)number);
    }
    return *class >= 0 || *class == LK_NO_LABEL ? LK_OK : lk__csv_refuse_missing(t, c, t->label);
}

lk_status lk__csv_read_target(const lk__csv_table *t, const lk__csv *c, float *target)
{
    double number = NAN;
    if (!lk__csv_number(&c->fields[t->label], &number) && !t->missing) return refuse_text(t, c);
    *target = (float)number;
    return LK_OK;
}

void lk__csv_table_free(lk__csv_table *t)
{
    lk_context *context = t->context;
    lk__free(context, LK_MEMORY_OTHER, t->value_names, t->numbers.count * sizeof *t->value_names);
    lk__free(context, LK_MEMORY_OTHER, t->value_text, t->numbers.count * VALUE_BYTES);
    lk__free(context, LK_MEMORY_OTHER, t->names_text, t->names_bytes);
    lk__free(context, LK_MEMORY_OTHER, t->order, t->order_bytes);
    lk__class_names_free(&t->classes);
    lk__whole_numbers_free(&t->numbers);
    lk__labels_free(&t->known);
}
