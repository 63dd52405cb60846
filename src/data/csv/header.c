/* header.c - the first line of a table: its names, the label's column, and the columns of the features. Those that a
 * model was trained on are found by name, in any order, where both tables have names; otherwise by their number. Linear
 * in the number of columns. */
#define _GNU_SOURCE
#include "base/json.h"
#include "data/csv/table.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

lk__csv_place lk__csv_show_place(const lk__csv_table *t, const lk__csv *c, int column)
{
    lk__csv_place p;
    char          shown[LK__SHOWN];
    const char   *name = t->names ? t->names[column] : NULL;
    snprintf(p.text, sizeof p.text, "%s: line %lld, column %d%s%s%s", t->source->label, (long long)c->line, column + 1,
             name ? " ('" : "", name ? lk__shown(name, shown) : "", name ? "')" : "");
    return p;
}

const char *lk__csv_show_text(const lk__csv_text *text, char out[LK__SHOWN])
{
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", text->length < 48 ? (int)text->length : 48, text->at);
    return lk__shown(copy, out);
}

lk_status lk__csv_refuse_missing(const lk__csv_table *t, const lk__csv *c, int column)
{
    char shown[LK__SHOWN];
    return lk__fail(t->context, LK_EFORMAT, "%s: missing value ('%s'): fill in missing values, or remove such lines",
                    lk__csv_show_place(t, c, column).text, lk__csv_show_text(&c->fields[column], shown));
}

/* ---- Names. ---- */

static lk_status keep_names(lk__csv_table *t, const lk__csv *c)
{
    size_t list = (size_t)t->columns * sizeof *t->names;
    t->names_bytes = list;
    for (int i = 0; i < c->count; i++) t->names_bytes += c->fields[i].length + 1;
    if (!(t->names_text = lk__alloc(t->context, LK_MEMORY_OTHER, t->names_bytes))) return LK_ENOMEM;
    t->names = (const char **)t->names_text;
    char *to = t->names_text + list;
    for (int i = 0; i < c->count; i++) {
        t->names[i] = to;
        for (size_t k = 0; k < c->fields[i].length; k++) *to++ = c->fields[i].at[k] ? c->fields[i].at[k] : ' ';
        *to++ = 0;
    }
    return LK_OK;
}

/* Whether a name of the header is that of a record, in which it is UTF-8. */
static bool is_named(const char *name, const char *recorded)
{
    char   read[1024];
    size_t length = strlen(name);
    if (strcmp(name, recorded) == 0) return true;
    if (3 * length >= sizeof read || lk__json_check_utf8(name, length)) return false;
    lk__json_as_read(name, length, read);
    return strcmp(read, recorded) == 0;
}

/* All names of the table, by which their columns are found. Free it in either case. */
static lk_status index_names(const lk__csv_table *t, lk__class_names *index, bool *repeated)
{
    lk_status status = LK_OK;
    *index = (lk__class_names){.context = t->context, .most = INT32_MAX / 2};
    *repeated = false;
    for (int i = 0; i < t->columns && status == LK_OK; i++) {
        char        read[1024];
        const char *name = t->names[i];
        size_t      length = strlen(name);
        if (3 * length < sizeof read && !lk__json_check_utf8(name, length)) {
            lk__json_as_read(name, length, read);
            name = read;
        }
        status = lk__class_names_add(index, name, strlen(name));
        if (index->count != i + 1) *repeated = true;
        if (*repeated) break;
    }
    return status == LK_OK ? lk__class_names_keep_order(index) : status;
}

/* ---- The label's column. ---- */

static bool is_unlabelled(const lk__csv_table *t) { return t->options->label && !t->options->label[0]; }

static int find_column(const lk__csv_table *t, const char *name)
{
    for (int i = 0; t->names && i < t->columns; i++)
        if (is_named(t->names[i], name)) return i;
    return -1;
}

enum { NAMES_SHOWN = 256 };

/* The first names of the header, as many as fit. */
static const char *show_names(const lk__csv_table *t, char out[NAMES_SHOWN])
{
    size_t used = 0;
    for (int i = 0; i < t->columns; i++) {
        char   shown[LK__SHOWN];
        size_t left = NAMES_SHOWN - used;
        int    more = snprintf(out + used, left, "%s%s", i ? ", " : "", lk__shown(t->names[i], shown));
        if (more < 0 || (size_t)more + sizeof ", …" > left) {
            snprintf(out + used, left, "%s…", i ? ", " : "");
            break;
        }
        used += (size_t)more;
    }
    return out;
}

static lk_status refuse_label(const lk__csv_table *t, const char *wanted)
{
    if (!t->names)
        return lk__fail(t->context, LK_EINVAL,
                        "%s has no header: give the label's column as a number from 1 to %d, not '%s'",
                        t->source->label, t->columns, wanted);
    char        names[NAMES_SHOWN];
    const char *near = lk__suggest(wanted, t->names, t->columns < 64 ? (size_t)t->columns : 64);
    if (strspn(wanted, "+-0123456789") == strlen(wanted)) near = NULL; /* a number is not a misspelt name */
    return lk__fail(
        t->context, LK_EINVAL,
        "%s has no column '%s' for the label%s%s%s: it has %s; name one of these, or give its number from 1 to %d",
        t->source->label, wanted, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "",
        show_names(t, names), t->columns);
}

/* By name, or by number from 1. */
static lk_status find_given_label(lk__csv_table *t)
{
    const char *wanted = t->options->label;
    int         number = 0, used = 0;
    if ((t->label = find_column(t, wanted)) >= 0) return LK_OK;
    if (sscanf(wanted, "%9d%n", &number, &used) == 1 && !wanted[used] && number >= 1 && number <= t->columns) {
        t->label = number - 1;
        return LK_OK;
    }
    t->label = -1;
    return t->options->label_optional ? LK_OK : refuse_label(t, wanted);
}

/* The last column, or the one that is called as labels are. */
static void find_usual_label(lk__csv_table *t)
{
    t->label = t->columns - 1;
    for (int i = 0; t->names && i < t->columns; i++)
        if (strcasecmp(t->names[i], "label") == 0 || strcasecmp(t->names[i], "target") == 0) {
            t->label = i;
            break;
        }
}

static bool is_feature(const lk__csv_table *t, int column)
{
    for (int64_t i = 0; i < t->features->dims[0]; i++)
        if (is_named(t->names[column], t->features->column_names[i])) return true;
    return false;
}

/* Of a table for a model that reads these features: the column of training where both have names; otherwise there is
 * one more column than features. */
static lk_status find_expected_label(lk__csv_table *t)
{
    const char *recorded = t->answer && t->answer->column_names ? t->answer->column_names[0] : NULL;
    int64_t     features = t->features->dims[0];
    bool        by_name = t->features->column_names && t->names;
    if (!by_name && t->columns == features && t->options->label_optional) {
        t->label = -1; /* also where the label's column has a number */
        return LK_OK;
    }
    if (t->options->label) return find_given_label(t);
    if (recorded && t->names) {
        if ((t->label = find_column(t, recorded)) >= 0 || t->options->label_optional) return LK_OK;
        return refuse_label(t, recorded);
    }
    t->label = -1;
    if (t->columns > features && !recorded) find_usual_label(t);
    if (by_name && t->label >= 0 && is_feature(t, t->label)) t->label = -1;
    if (t->label >= 0 || (by_name && t->options->label_optional)) return LK_OK;
    if (recorded && t->columns > features)
        return lk__fail(t->context, LK_EINVAL,
                        "%s has no header, so the label column ('%s' in training) cannot be found by name: give its "
                        "number, counted from 1, with --label",
                        t->source->label, recorded);
    return lk__fail(t->context, LK_EFORMAT, "%s has %d columns: expected %lld features and a label", t->source->label,
                    t->columns, (long long)features);
}

static lk_status find_label(lk__csv_table *t)
{
    if (is_unlabelled(t)) {
        t->label = -1;
        return LK_OK;
    }
    if (t->features) return find_expected_label(t);
    if (t->options->label) return find_given_label(t);
    find_usual_label(t);
    return LK_OK;
}

/* ---- The columns of the features. ---- */

static void take_all_columns(lk__csv_table *t)
{
    for (int i = 0, n = 0; i < t->columns; i++)
        if (i != t->label) t->order[n++] = i;
}

/* Whether all columns but the label's are those of training, in their order: then names may be repeated. */
static bool has_same_columns(const lk__csv_table *t)
{
    if (t->columns - (t->label >= 0) != t->features_count) return false;
    for (int i = 0; i < t->features_count; i++)
        if (!is_named(t->names[t->order[i]], t->features->column_names[i])) return false;
    return true;
}

/* The column that was probably meant: none of those that the model reads. */
static const char *suggest_column(const lk__csv_table *t, const char *wanted)
{
    enum { MOST = 256 };
    const char *names[MOST];
    size_t      count = 0;
    if (t->columns > MOST || t->features_count > MOST) return NULL;
    for (int i = 0; i < t->columns; i++) {
        bool read = i == t->label;
        for (int k = 0; k < t->features_count && !read; k++) read = is_named(t->names[i], t->features->column_names[k]);
        if (!read) names[count++] = t->names[i];
    }
    return lk__suggest(wanted, names, count);
}

static lk_status refuse_column(const lk__csv_table *t, const char *wanted)
{
    char shown[LK__SHOWN], other[LK__SHOWN];
    if (t->label >= 0 && is_named(t->names[t->label], wanted))
        return lk__fail(t->context, LK_EMISMATCH,
                        "%s: column '%s' cannot be the label: the model reads it as a feature", t->source->label,
                        lk__shown(wanted, shown));
    const char *near = suggest_column(t, wanted);
    return lk__fail(t->context, LK_EMISMATCH,
                    "%s has no column '%s'%s%s%s, which the model was trained on: features are matched by name",
                    t->source->label, lk__shown(wanted, shown), near ? " (did you mean '" : "",
                    near ? lk__shown(near, other) : "", near ? "'?)" : "");
}

/* Columns that the model was not trained on are no features. */
static void log_unused(const lk__csv_table *t, const bool *used)
{
    enum { LISTED = 4 };
    char   list[LISTED * (LK__SHOWN + 4) + 1] = "", shown[LK__SHOWN];
    size_t length = 0;
    int    count = 0;
    for (int i = 0; i < t->columns; i++) {
        if (used[i] || i == t->label) continue;
        if (count++ < LISTED)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s'%s'", length ? ", " : "",
                                       lk__shown(t->names[i], shown));
    }
    if (count && !t->quiet)
        lk__log(t->context, LK_LOG_INFO, "%s: %d column%s that the model was not trained on %s not used: %s%s",
                t->source->label, count, count == 1 ? "" : "s", count == 1 ? "is" : "are", list,
                count > LISTED ? ", …" : "");
}

static lk_status find_by_name(lk__csv_table *t)
{
    lk__class_names index;
    bool            repeated, *used = NULL;
    lk_status       status = index_names(t, &index, &repeated);
    if (status == LK_OK && repeated)
        status = lk__fail(t->context, LK_EMISMATCH,
                          "%s has two columns with the same name, so its columns must match those that the model was "
                          "trained on, in the same order",
                          t->source->label);
    if (status == LK_OK && !(used = lk__alloc(t->context, LK_MEMORY_OTHER, (size_t)t->columns))) status = LK_ENOMEM;
    for (int i = 0; i < t->features_count && status == LK_OK; i++) {
        const char *wanted = t->features->column_names[i];
        t->order[i] = lk__class_names_find(&index, wanted, strlen(wanted));
        if (t->order[i] < 0 || t->order[i] == t->label)
            status = refuse_column(t, wanted);
        else
            used[t->order[i]] = true;
    }
    if (status == LK_OK) log_unused(t, used);
    lk__free(t->context, LK_MEMORY_OTHER, used, (size_t)t->columns);
    lk__class_names_free(&index);
    return status;
}

static lk_status find_features(lk__csv_table *t)
{
    int left = t->columns - (t->label >= 0);
    t->features_count = t->features ? (int)t->features->dims[0] : left;
    bool by_name = t->features && t->features->column_names && t->names;
    if (!by_name && left != t->features_count)
        return lk__fail(t->context, LK_EMISMATCH, "%s has %d columns%s; the model was trained on %d features",
                        t->source->label, left, t->label >= 0 ? " besides the label" : "", t->features_count);
    t->order_bytes = (size_t)(left > t->features_count ? left : t->features_count) * sizeof *t->order;
    if (!(t->order = lk__alloc(t->context, LK_MEMORY_OTHER, t->order_bytes))) return LK_ENOMEM;
    take_all_columns(t);
    return !by_name || has_same_columns(t) ? LK_OK : find_by_name(t);
}

/* ---- The first record. ---- */

/* Whether it has the names that the model was trained on, which may be numbers. */
static lk_status has_expected_names(const lk__csv_table *t, const lk__csv *c, bool *has)
{
    lk__class_names index = {.context = t->context, .most = INT32_MAX / 2};
    lk_status       status = LK_OK;
    *has = t->features && t->features->column_names && c->count >= t->features->dims[0];
    if (!*has) return LK_OK;
    for (int i = 0; i < c->count && status == LK_OK; i++)
        status = lk__class_names_add(&index, c->fields[i].at, strnlen(c->fields[i].at, c->fields[i].length));
    if (status == LK_OK) status = lk__class_names_keep_order(&index);
    for (int i = 0; i < (int)t->features->dims[0] && *has && status == LK_OK; i++)
        *has = lk__class_names_find(&index, t->features->column_names[i], strlen(t->features->column_names[i])) >= 0;
    lk__class_names_free(&index);
    return status;
}

lk_status lk__csv_read_first(lk__csv_table *t, lk__csv *c)
{
    double    number;
    bool      text = true;
    lk_status status = lk__csv_next(c);
    if (status == LK_END) return lk__fail(t->context, LK_EFORMAT, "%s is empty", t->source->label);
    if (status < 0) return status;
    t->columns = c->count;
    if (t->columns < 2 && !is_unlabelled(t) && !(t->features && t->options->label_optional))
        return lk__fail(t->context, LK_EFORMAT,
                        "%s has one column: expected features and a label, separated by commas, semicolons or tabs",
                        t->source->label);
    for (int i = 0; i < c->count; i++)
        if (lk__csv_number(&c->fields[i], &number)) text = false;
    t->header = t->options->header ? t->options->header > 0 : text;
    if (t->options->header == 0 && !text && (status = has_expected_names(t, c, &t->header)) < 0) return status;
    if (t->header && (status = keep_names(t, c)) < 0) return status;
    status = find_label(t);
    return status < 0 ? status : find_features(t);
}
