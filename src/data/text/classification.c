/* classification.c - texts of a JSONL file, each with a class. The classes are those that a model was trained on, or
 * those of the training file, which is read once to find them. */
#include "data/labels.h"
#include "data/subset.h"
#include "data/text/text.h"

#include <stdio.h>
#include <string.h>

typedef struct reading {
    const lk__text_request *request;
    lk__text_corpus         corpus;
    /* the first pass */
    bool            named;   /* some labels are no whole numbers: all are names */
    int64_t         largest; /* of the numbers */
    int64_t         rows;
    lk__class_names names;
    lk_field        label; /* of these classes, or of training */
    /* the second */
    lk__labels     known;
    int64_t        labelled; /* texts that have a label */
    lk__text_store store;
    int64_t       *offsets; /* of each text in the store; room for one more */
    int64_t       *lines;
    int32_t       *labels;
    size_t         offsets_capacity, lines_capacity, labels_capacity;
    int64_t        count, longest, cut;
} reading;

/* The state of the data set. */
typedef struct sequences {
    lk__text_ids  ids;
    void         *owned; /* offsets, lines, ids: LK_MEMORY_DATA */
    size_t        owned_bytes;
    int64_t      *offsets, *lines;
    lk_tokenizer *tokenizer;
    int64_t       length;
    char          path[LK__PATH];
    lk_text_info  info;
} sequences;

enum { LABEL = 512 }; /* bytes of a name, with its NUL */

/* The label as text; *number: it is a whole number from 0, or -1. */
static lk_status read_label(const reading *r, const lk__text_piece *piece, char text[LABEL], int64_t *number)
{
    char            place[LK__TEXT_PLACE];
    const lk__json *label = &piece->label;
    const char     *name = r->request->options->label;
    bool            valid = label->kind == LK__JSON_STRING || label->kind == LK__JSON_BOOL;
    *number = -1;
    if (label->kind == LK__JSON_NUMBER) valid = lk__json_integer(label, number) && *number >= 0 && *number < INT32_MAX;
    if (!valid)
        return lk__fail(r->request->context, LK_EFORMAT,
                        "%s: the field '%s' is not a class: expected a string, an integer of at least 0, true or false",
                        lk__text_place(&r->corpus, piece, place), name);
    size_t length = label->kind == LK__JSON_STRING ? lk__json_string(label, text, LABEL) : label->length;
    if (length >= LABEL || length == 0)
        return lk__fail(r->request->context, LK_EFORMAT, "%s: the class in '%s' is %s",
                        lk__text_place(&r->corpus, piece, place), name,
                        length ? "longer than 511 bytes" : "empty: give it a name");
    if (label->kind != LK__JSON_STRING) {
        memcpy(text, label->text, length);
        text[length] = 0;
    }
    if (strlen(text) == length) return LK_OK;
    return lk__fail(r->request->context, LK_EFORMAT, "%s: the class in '%s' contains a NUL byte",
                    lk__text_place(&r->corpus, piece, place), name);
}

static lk_status survey_labels(reading *r)
{
    lk__text_piece piece;
    lk_status      status;
    char           text[LABEL];
    int64_t        number;
    lk__text_begin(&r->corpus);
    while ((status = lk__text_next(&r->corpus, &piece)) == LK_OK) {
        if ((status = read_label(r, &piece, text, &number)) < 0) break;
        if (number < 0) r->named = true;
        if (number > r->largest) r->largest = number;
        r->rows++;
        if ((status = lk__class_names_add(&r->names, text, strlen(text))) != LK_END) {
            if (status < 0) break;
            continue;
        }
        status = lk__fail(r->request->context, LK_EFORMAT, "%s has more than %d different classes in '%s'",
                          r->corpus.files[0].path, LK__CLASS_NAMES_MOST, r->request->options->label);
        break;
    }
    lk__text_end(&r->corpus);
    if (status < 0) return status;
    if (r->rows == 0) return lk__fail(r->request->context, LK_EFORMAT, "%s is empty", r->corpus.files[0].path);
    if (r->names.count < 2)
        return lk__fail(r->request->context, LK_EFORMAT, "%s has only the class '%s': expected at least two",
                        r->corpus.files[0].path, r->names.text);
    return r->named ? lk__class_names_sort(&r->names) : LK_OK;
}

/* The classes by which labels are found. */
static lk_status set_classes(reading *r)
{
    const lk__text_request *q = r->request;
    const lk_field         *expected = lk__expected_field(q->options, "label");
    lk_status               status = expected ? LK_OK : survey_labels(r);
    if (status < 0) return status;
    if (expected) {
        r->label = *expected;
    } else {
        r->label = (lk_field){.classes = r->named ? r->names.count : (int)r->largest + 1};
        if (r->named) r->label.class_names = r->names.sorted;
    }
    return lk__labels_begin(q->context, &r->label, q->options->skip_unknown, &r->known);
}

/* Of a label that may be missing: null and "" are none. */
static bool has_label(const reading *r, const lk__json *label)
{
    bool missing = label->kind == LK__JSON_NULL || (label->kind == LK__JSON_STRING && label->length == 2);
    return !missing || !r->corpus.label_optional;
}

static lk_status find_class(reading *r, const lk__text_piece *piece, int32_t *class)
{
    char    text[LABEL], place[LK__TEXT_PLACE];
    int64_t number;
    *class = LK_NO_LABEL;
    if (!has_label(r, &piece->label)) return LK_OK;
    lk_status status = read_label(r, piece, text, &number);
    if (status < 0) return status;
    r->labelled++;
    int32_t found = lk__labels_find(&r->known, text, strlen(text));
    if (found < 0 && number >= 0) found = lk__labels_find_number(&r->known, (double)number);
    if (found < 0 && r->request->options->label_numbers && number >= 0 && number < r->label.classes)
        found = (int32_t)number;
    if (found < 0) return lk__labels_refuse(&r->known, r->count, lk__text_place(&r->corpus, piece, place), text);
    *class = found;
    return LK_OK;
}

/* The tokens of a text within those of the tokenizer's template; of a text that is too long the first. */
static lk_status store_tokens(reading *r, const int32_t *ids, size_t count)
{
    int            before, after;
    const int32_t *prefix = lk_tokenizer_prefix(r->corpus.tokenizer, &before),
                  *suffix = lk_tokenizer_suffix(r->corpus.tokenizer, &after);
    size_t most = (size_t)r->request->length;
    if (lk__text_has_prefix(r->corpus.tokenizer, ids, count)) before = 0;
    size_t around = (size_t)(before + after), whole = count + around;
    if (around >= most)
        return lk__fail(r->request->context, LK_EINVAL,
                        "a context of %zu tokens is too short: the tokenizer adds %zu to each text", most, around);
    if ((int64_t)whole > r->longest) r->longest = (int64_t)whole;
    if (whole > most) r->cut++, count = most - around;
    lk_status status = lk__text_store_add(&r->store, prefix, (size_t)before);
    if (status >= 0) status = lk__text_store_add(&r->store, ids, count);
    return status < 0 ? status : lk__text_store_add(&r->store, suffix, (size_t)after);
}

/* Keeps the first tokens of a text, and its class. */
static lk_status keep_text(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    reading    *r = user;
    lk_context *context = r->request->context;
    size_t      n = (size_t)r->count;
    char        place[LK__TEXT_PLACE];
    lk_status   status;
    if (count == 0)
        return lk__fail(context, LK_EFORMAT, "%s: the text is empty", lk__text_place(&r->corpus, piece, place));
    if ((status = lk__grow(context, (void **)&r->offsets, &r->offsets_capacity, n + 2, sizeof *r->offsets)) < 0 ||
        (status = lk__grow(context, (void **)&r->lines, &r->lines_capacity, n + 1, sizeof *r->lines)) < 0 ||
        (status = lk__grow(context, (void **)&r->labels, &r->labels_capacity, n + 1, sizeof *r->labels)) < 0 ||
        (status = find_class(r, piece, &r->labels[n])) < 0)
        return status;
    r->lines[n] = piece->line;
    r->offsets[n] = r->store.count;
    r->count++;
    status = store_tokens(r, ids, count);
    r->offsets[n + 1] = r->store.count;
    return status;
}

static void free_reading(reading *r)
{
    lk_context *context = r->request->context;
    lk__class_names_free(&r->names);
    lk__labels_free(&r->known);
    lk__text_store_free(&r->store);
    lk__free(context, LK_MEMORY_OTHER, r->offsets, r->offsets_capacity * sizeof *r->offsets);
    lk__free(context, LK_MEMORY_OTHER, r->lines, r->lines_capacity * sizeof *r->lines);
    lk__free(context, LK_MEMORY_OTHER, r->labels, r->labels_capacity * sizeof *r->labels);
}

/* ---- the data set ---- */

static lk_status read_tokens(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                             char message[LK__DATASET_MESSAGE])
{
    const sequences *s = d->state;
    int32_t         *tokens = fields[0];
    int64_t          first = s->offsets[index], n = s->offsets[index + 1] - first;
    (void)scratch, (void)message;
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)lk__text_id(&s->ids, first + i);
    memset(tokens + n, 0, (size_t)(s->length - n) * sizeof *tokens);
    return LK_OK;
}

static const char *name_text(const lk_dataset *d, int64_t index)
{
    static _Thread_local char name[LK__PATH + 32];
    const sequences          *s = d->state;
    snprintf(name, sizeof name, "%s: line %lld", s->path, (long long)s->lines[index]);
    return name;
}

static void release_sequences(lk_dataset *d)
{
    sequences *s = d->state;
    lk_tokenizer_free(s->tokenizer);
    lk__free(d->context, LK_MEMORY_DATA, s->owned, s->owned_bytes);
    lk__free(d->context, LK_MEMORY_OTHER, s, sizeof *s);
}

/* Copies of what was read, in their exact sizes; lengths and labels are columns. */
static lk_status keep_samples(const reading *r, lk_dataset *d)
{
    sequences *s = d->state;
    size_t     offsets = (size_t)(r->count + 1) * sizeof *s->offsets, lines = (size_t)r->count * sizeof *s->lines;
    size_t     ids = (size_t)r->store.count * (size_t)r->store.width;
    bool       labelled = d->fields_count > 2;
    int32_t   *length = lk__dataset_column(d, 1), *label = labelled ? lk__dataset_column(d, 2) : NULL;
    s->owned_bytes = offsets + lines + ids;
    char *at = s->owned = lk__alloc(d->context, LK_MEMORY_DATA, s->owned_bytes);
    if (!length || (labelled && !label) || !at) return LK_ENOMEM;
    s->offsets = memcpy(at, r->offsets, offsets);
    s->lines = memcpy(at + offsets, r->lines, lines);
    s->ids = (lk__text_ids){memcpy(at + offsets + lines, r->store.bytes, ids), r->store.width, r->store.count};
    if (labelled) memcpy(label, r->labels, (size_t)r->count * sizeof *label);
    for (int64_t i = 0; i < r->count; i++) length[i] = (int32_t)(s->offsets[i + 1] - s->offsets[i]);
    d->read = read_tokens;
    d->sample_name = name_text;
    return LK_OK;
}

static lk_status hold_out(const lk__text_request *r, lk_dataset *d)
{
    return r->paths[1][0] ? LK_OK : lk__dataset_hold_out(d, r->split, r->holdout, NULL);
}

/* Takes the tokenizer into the state. */
static lk_status make_dataset(const reading *r, lk_tokenizer **tokenizer, lk_dataset **dataset)
{
    const lk__text_request *q = r->request;
    lk_field                fields[] = {{.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {q->length}},
                                        {.name = "length", .dtype = LK_I32},
                                        {.name = "label", .dtype = LK_I32}};
    fields[0].classes = (int)lk_tokenizer_vocabulary(*tokenizer);
    fields[2].classes = r->label.classes;
    fields[2].class_names = r->label.class_names;
    if (r->count == 0) return lk__fail(q->context, LK_EFORMAT, "%s is empty", lk__text_path(q));
    lk_status status =
        lk__dataset_make(q->context, &(lk__dataset_about){q->kind, r->count, fields, r->labelled > 0 ? 3 : 2}, dataset);
    if (status < 0) return status;
    lk_dataset *d = *dataset;
    sequences  *s = d->state = lk__alloc(q->context, LK_MEMORY_OTHER, sizeof *s);
    if (!s) return LK_ENOMEM;
    d->release = release_sequences;
    d->text = &s->info;
    d->computed_order = true;
    d->unlabelled = r->labelled < r->count;
    s->length = q->length;
    snprintf(s->path, sizeof s->path, "%s", lk__text_path(q));
    s->info = (lk_text_info){.vocabulary = lk_tokenizer_vocabulary(*tokenizer), .longest = r->longest};
    s->info.tokenizer = s->tokenizer = *tokenizer;
    *tokenizer = NULL;
    if (!q->probe && (status = keep_samples(r, d)) < 0) return status;
    if ((status = lk__labels_drop(&r->known, s->path, q->probe, d)) < 0 || (status = hold_out(q, d)) < 0) return status;
    for (int64_t i = 0; i < d->count; i++)
        s->info.tokens += r->offsets[lk__dataset_stored(d, i) + 1] - r->offsets[lk__dataset_stored(d, i)];
    return LK_OK;
}

static lk_status read_texts(reading *r, const lk_tokenizer *tokenizer, const lk__text_files *files)
{
    const lk__text_request *q = r->request;
    lk__text_files          training = {0};
    lk__text_totals         totals;
    lk_status               status = lk__text_files_add(q->context, &training, q->paths[0], LK__TEXT_ALL_JSONL);
    r->corpus = (lk__text_corpus){.context = q->context, .files = training.files, .count = training.count};
    r->corpus.text_field = q->options->text_field;
    r->corpus.label_field = q->options->label && *q->options->label ? q->options->label : NULL;
    r->corpus.label_optional = q->options->label_optional;
    if (status == LK_OK && !r->corpus.label_field && !r->corpus.label_optional)
        status = lk__fail(q->context, LK_EINVAL, "jsonl: --label is required: the field with the class of each text");
    if (status == LK_OK) status = set_classes(r);
    r->corpus.files = files->files;
    r->corpus.count = files->count;
    r->corpus.expected = (size_t)files->bytes;
    r->corpus.quiet = lk__text_quiet(q);
    r->store.width = lk__text_width(lk_tokenizer_vocabulary(tokenizer));
    if (status == LK_OK)
        status = lk__text_encode(&r->corpus, &(lk__text_encoding){tokenizer, false, -1, keep_text, r}, &totals);
    if (status == LK_OK && r->cut && !r->corpus.quiet)
        lk__log(q->context, LK_LOG_INFO,
                "%s: %lld of %lld texts are longer than the context of %lld tokens; only their first %lld are used",
                files->files[0].path, (long long)r->cut, (long long)r->count, (long long)q->length,
                (long long)q->length);
    lk__text_files_free(&training);
    return status;
}

lk_status lk__text_classification(const lk__text_request *q, lk_tokenizer *tokenizer, lk__text_files *files,
                                  lk_dataset **dataset)
{
    reading     r = {.request = q,
                     .names = {.context = q->context},
                     .known = {.context = q->context},
                     .store = {.context = q->context, .counting = q->probe, .limit = SIZE_MAX}};
    lk_dataset *d = NULL;
    lk_status   status = LK_OK;
    if (q->options->regression)
        status = lk__fail(q->context, LK_EINVAL, "jsonl: labels are classes, not numbers to predict");
    if (status == LK_OK) status = read_texts(&r, tokenizer, files);
    if (status == LK_OK) status = make_dataset(&r, &tokenizer, &d);
    if (status == LK_OK)
        *dataset = d;
    else
        lk_dataset_free(d);
    lk_tokenizer_free(tokenizer);
    lk__text_files_free(files);
    free_reading(&r);
    return status;
}
