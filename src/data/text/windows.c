/* windows.c - samples of a language model: windows of consecutive tokens, or documents that are packed into them. A
 * sample is created when it is read, from ids that may be in a mapped file. Opening the data set reads no ids, so they
 * are checked here. */
#include "data/text/text.h"

#include <stdio.h>
#include <string.h>

void lk__text_source_free(lk__text_source *s)
{
    lk__map_close(&s->map);
    lk__free(s->context, LK_MEMORY_DATA, s->owned, s->owned_bytes);
    lk__free(s->context, LK_MEMORY_OTHER, s->starts, s->starts ? (size_t)s->files.count * sizeof *s->starts : 0);
    lk__free(s->context, LK_MEMORY_OTHER, s->documents, s->documents_capacity * sizeof *s->documents);
    lk__free(s->context, LK_MEMORY_OTHER, s->segments, s->segments_capacity * sizeof *s->segments);
    lk__free(s->context, LK_MEMORY_OTHER, s->windows, s->windows_capacity * sizeof *s->windows);
    lk__text_files_free(&s->files);
    lk_tokenizer_free(s->tokenizer);
}

static void release_source(lk_dataset *d)
{
    lk__text_source_free(d->state);
    lk__free(d->context, LK_MEMORY_OTHER, d->state, sizeof(lk__text_source));
}

/* The file that has token `number` of all, and its number there. */
static const char *find_file(const lk__text_source *s, int64_t number, int64_t *inside)
{
    int low = 0, high = s->starts ? s->files.count - 1 : 0;
    while (low < high) { /* the last that starts at or before it */
        int middle = low + (high - low + 1) / 2;
        if (s->starts[middle] <= number)
            low = middle;
        else
            high = middle - 1;
    }
    *inside = number - (s->starts ? s->starts[low] : 0);
    return s->starts ? s->files.files[low].path : s->path;
}

static int64_t window_start(const lk__text_source *s, int64_t index)
{
    if (s->stride) return lk__text_evaluation_start(s, index);
    return s->overlapping ? index : index * s->length;
}

static const char *name_window(const lk_dataset *d, int64_t index)
{
    static _Thread_local char name[LK__PATH + 32];
    const lk__text_source    *s = d->state;
    int64_t                   inside;
    const char               *path = find_file(s, s->first + window_start(s, index), &inside);
    snprintf(name, sizeof name, "%.*s: token %lld", LK__PATH, path, (long long)inside);
    return name;
}

static lk_status refuse_id(const lk__text_source *s, int64_t number, char message[LK__DATASET_MESSAGE])
{
    int64_t     inside;
    const char *path = find_file(s, s->first + number, &inside);
    uint32_t    id = lk__text_id(&s->ids, number);
    if (s->info.vocabulary)
        snprintf(message, LK__DATASET_MESSAGE, "%.300s: token %lld is %u, but the vocabulary has %lld tokens", path,
                 (long long)inside, id, (long long)s->info.vocabulary);
    else
        snprintf(message, LK__DATASET_MESSAGE,
                 "%.300s: token %lld is %u, but ids must be below 2^31: is the file damaged, or of a different type "
                 "(--token-type)?",
                 path, (long long)inside, id);
    return LK_EFORMAT;
}

bool lk__text_copy_ids(const lk__text_source *s, int64_t start, int64_t n, int32_t *out, int64_t *bad)
{
    uint32_t limit = s->info.vocabulary ? (uint32_t)s->info.vocabulary : (uint32_t)INT32_MAX + 1, most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = lk__text_id(&s->ids, start + i);
        most = id > most ? id : most;
        out[i] = (int32_t)id;
    }
    if (most < limit) return true;
    for (*bad = start; lk__text_id(&s->ids, *bad) < limit;) ++*bad;
    return false;
}

/* Where each document begins; nothing is predicted from its last token, nor from padding, which is as a document of its
 * own. fields: n tokens, and the next ones as labels; then, to write, positions and the first token of the document. */
static void mark_documents(const lk__text_source *s, int64_t n, void *const *fields)
{
    const int32_t *tokens = fields[0];
    int32_t       *label = fields[1], *positions = fields[2], *first = fields[3], begin = 0;
    for (int64_t i = 0; i < s->length; i++) {
        if (i == n) begin = (int32_t)i;
        first[i] = begin;
        positions[i] = (int32_t)i - begin;
        if (i >= n || tokens[i] != s->end || (s->end_begins && label[i] != s->end)) continue;
        label[i] = LK__TEXT_NO_LABEL;
        begin = (int32_t)i + 1;
    }
}

static lk_status read_window(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                             char message[LK__DATASET_MESSAGE])
{
    const lk__text_source *s = d->state;
    int32_t               *tokens = fields[0], *label = fields[1];
    int64_t                start = window_start(s, index), left = s->ids.count - 1 - start, bad;
    int64_t                n = left < s->length ? left : s->length; /* tokens with a next one */
    (void)scratch;
    if (s->stride) return lk__text_evaluation_read(s, index, fields, &bad) ? LK_OK : refuse_id(s, bad, message);
    if (!lk__text_copy_ids(s, start, n, tokens, &bad) || !lk__text_copy_ids(s, start + n, 1, &label[n - 1], &bad))
        return refuse_id(s, bad, message);
    memcpy(label, tokens + 1, (size_t)(n - 1) * sizeof *label);
    for (int64_t i = n; i < s->length; i++) tokens[i] = 0, label[i] = LK__TEXT_NO_LABEL;
    if (s->packed) mark_documents(s, n, fields);
    return LK_OK;
}

/* How often each id occurs, times its bytes. Ids that are out of range are refused when they are read. */
static lk_status count_many_bytes(const lk__text_source *s, int64_t start, int64_t n, int64_t *total)
{
    size_t   room = (size_t)s->info.vocabulary * sizeof(int64_t);
    int64_t *times = lk__alloc(s->context, LK_MEMORY_OTHER, room);
    if (!times) return LK_ENOMEM;
    for (int64_t i = start; i < start + n; i++) {
        uint32_t id = lk__text_id(&s->ids, i);
        if (id < (uint32_t)s->info.vocabulary) times[id]++;
    }
    *total = 0;
    for (int32_t id = 0; id < s->info.vocabulary; id++) {
        size_t bytes = 0;
        if (!lk_tokenizer_is_special(s->tokenizer, id) && lk_tokenizer_token(s->tokenizer, id, &bytes))
            *total += times[id] * (int64_t)bytes;
    }
    lk__free(s->context, LK_MEMORY_OTHER, times, room);
    return LK_OK;
}

lk_status lk__text_count_bytes(const lk__text_source *s, int64_t start, int64_t n, int64_t *total)
{
    size_t bytes = 0;
    if (n != 1) return count_many_bytes(s, start, n, total);
    int32_t id = (int32_t)lk__text_id(&s->ids, start);
    *total = 0;
    if (!lk_tokenizer_is_special(s->tokenizer, id) && lk_tokenizer_token(s->tokenizer, id, &bytes))
        *total = (int64_t)bytes;
    return LK_OK;
}

/* Bytes of text of the split. Ids of a file are read for that only where an evaluation was asked for, which reads them
 * all; a run of training would wait for it, so that they are in proportion. */
static lk_status set_bytes(const lk__text_request *r, lk__text_source *s, int64_t all)
{
    bool part = s->ids.count != all, known = s->info.bytes > 0, bytewise = s->info.bytes == all;
    bool read = s->ids.bytes && s->tokenizer && (s->owned || r->options->stride > 0);
    if ((part ? !bytewise : !known) && read) return lk__text_count_bytes(s, 0, s->ids.count, &s->info.bytes);
    if (part) s->info.bytes = (int64_t)((double)s->info.bytes * ((double)s->ids.count / (double)all) + 0.5);
    return LK_OK;
}

/* Reduces the ids to those of the split: of the training set the first part, of the test set the rest. */
static lk_status take_split(const lk__text_request *r, lk__text_source *s)
{
    int64_t all = s->ids.count;
    if (r->paths[1][0]) return LK_OK;
    if (r->holdout == 0) return r->split == LK_SPLIT_TEST ? LK_END : LK_OK;
    int64_t kept = (int64_t)((double)all * (1 - r->holdout));
    s->first = r->split == LK_SPLIT_TEST ? kept : 0;
    s->ids = lk__text_ids_part(&s->ids, s->first, r->split == LK_SPLIT_TEST ? all - kept : kept);
    return LK_OK;
}

static lk_status check_length(const lk__text_request *r, const lk__text_source *s, int64_t all)
{
    char    part[80] = "";
    int64_t least = s->stride ? 2 : s->length + 1;
    if (s->ids.count >= least) return LK_OK;
    if (s->ids.count != all)
        snprintf(part, sizeof part, ", %lld of them for %s", (long long)s->ids.count,
                 r->split == LK_SPLIT_TEST ? "validation" : "training");
    if (s->stride)
        return lk__fail(r->context, LK_EFORMAT, "%s has %lld token%s%s: expected at least 2", s->path, (long long)all,
                        all == 1 ? "" : "s", part);
    return lk__fail(r->context, LK_EFORMAT,
                    "%s has %lld tokens%s: a context of %lld needs at least %lld; use a shorter --context or more text",
                    s->path, (long long)all, part, (long long)s->length, (long long)least);
}

/* Keeps only the split of ids that are in memory. */
static lk_status trim_owned(lk__text_source *s)
{
    size_t bytes = (size_t)s->ids.count * (size_t)s->ids.width;
    if (!s->owned || !s->ids.bytes || bytes == s->owned_bytes) return LK_OK;
    unsigned char *exact = lk__alloc(s->context, LK_MEMORY_DATA, bytes);
    if (!exact) return LK_ENOMEM;
    memcpy(exact, s->ids.bytes, bytes);
    lk__free(s->context, LK_MEMORY_DATA, s->owned, s->owned_bytes);
    s->owned = exact;
    s->owned_bytes = bytes;
    s->ids.bytes = exact;
    return LK_OK;
}

static lk_status make_windows(const lk__text_request *r, lk__text_source *s, lk_dataset **dataset)
{
    int64_t   T = s->length, n = s->ids.count;
    int       vocabulary = (int)s->info.vocabulary; /* 0: not known */
    lk_field  fields[] = {{.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {T}, .classes = vocabulary},
                          {.name = "label", .dtype = LK_I32, .rank = 1, .dims = {T}},
                          {.name = "positions", .dtype = LK_I32, .rank = 1, .dims = {T}},
                          {.name = "first", .dtype = LK_I32, .rank = 1, .dims = {T}}};
    int64_t   count = s->overlapping ? n - T : (n - 1 + T - 1) / T;
    lk_status status = s->stride ? lk__text_evaluation_plan(s, &count) : LK_OK;
    if (status == LK_OK)
        status = lk__dataset_make(r->context, &(lk__dataset_about){r->kind, count, fields, s->packed ? 4 : 2}, dataset);
    if (status < 0) return status;
    lk_dataset      *d = *dataset;
    lk__text_source *state = d->state = lk__alloc(r->context, LK_MEMORY_OTHER, sizeof *state);
    if (!state) {
        lk_dataset_free(d);
        *dataset = NULL;
        return LK_ENOMEM;
    }
    *state = *s;
    *s = (lk__text_source){.context = r->context};
    d->text = &state->info;
    d->computed_order = true;
    d->release = release_source;
    if (!r->probe) d->read = read_window, d->sample_name = name_window;
    return LK_OK;
}

lk_status lk__text_windows(const lk__text_request *r, lk__text_source *s, lk_dataset **dataset)
{
    int64_t   all = s->ids.count;
    lk_status status = take_split(r, s);
    s->length = r->length;
    s->stride = r->stride;
    s->overlapping = !s->packed && !s->stride;
    if (status == LK_OK) status = check_length(r, s, all);
    if (status == LK_OK) status = trim_owned(s);
    if (status == LK_OK) {
        s->info.tokens = s->ids.count;
        s->info.longest = s->length;
        s->info.tokenizer = s->tokenizer;
        status = set_bytes(r, s, all);
    }
    if (status == LK_OK) status = make_windows(r, s, dataset);
    lk__text_source_free(s);
    return status;
}

bool lk_dataset_text(const lk_dataset *d, lk_text_info *info)
{
    *info = d->text ? *d->text : (lk_text_info){0};
    return d->text != NULL;
}
