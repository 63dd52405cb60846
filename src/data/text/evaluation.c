/* evaluation.c - the windows of an evaluation of a language model: every token of a document but its first is predicted
 * once. A document's windows depend on that document only, so the loss of a document does not depend on what else is
 * evaluated. Parts of documents that are shorter than a window share one, and do not attend to each other. */
#include "data/text/text.h"

#include <string.h>

/* How many windows n tokens have, of which n - 1 are predicted: the first predicts `length` of them, others
 * `stride`. */
static int64_t count_windows(const lk__text_source *s, int64_t n)
{
    return n - 1 <= s->length ? 1 : 1 + (n - 1 - s->length + s->stride - 1) / s->stride;
}

/* ---- documents ---- */

/* The documents of the split, by numbers of its tokens: those that were recorded for all tokens. */
static void clip_documents(lk__text_source *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->documents_count; i++) {
        int64_t first = s->documents[i].first - s->first, end = s->documents[i].end - s->first;
        if (first < 0) first = 0;
        if (end > s->ids.count) end = s->ids.count;
        if (end > first) s->documents[kept++] = (lk__text_document){first, end};
    }
    s->documents_count = kept;
}

static lk_status add_document(lk__text_source *s, int64_t first, int64_t end)
{
    lk_status status = lk__grow(s->context, (void **)&s->documents, &s->documents_capacity, s->documents_count + 1,
                                sizeof *s->documents);
    if (status == LK_OK) s->documents[s->documents_count++] = (lk__text_document){first, end};
    return status;
}

static bool is_end(const lk__text_source *s, int64_t i)
{
    if (lk__text_id(&s->ids, i) != (uint32_t)s->end) return false;
    return !s->end_begins || i + 1 == s->ids.count || lk__text_id(&s->ids, i + 1) == (uint32_t)s->end;
}

/* Of a token file: what is between end tokens. */
static lk_status find_documents(lk__text_source *s)
{
    lk_status status = LK_OK;
    int64_t   first = 0;
    for (int64_t i = 0; i <= s->ids.count && status == LK_OK; i++) {
        if (i < s->ids.count && !is_end(s, i)) continue;
        if (i > first) status = add_document(s, first, i);
        first = i + 1;
    }
    return status;
}

/* ---- segments and windows ---- */

static lk_status begin_window(lk__text_source *s)
{
    lk_status status =
        lk__grow(s->context, (void **)&s->windows, &s->windows_capacity, s->windows_count + 2, sizeof *s->windows);
    if (status == LK_OK) s->windows[s->windows_count++] = (int64_t)s->segments_count;
    return status;
}

/* *room: tokens that are left in the current window. */
static lk_status add_segment(lk__text_source *s, lk__text_segment segment, int64_t *room)
{
    lk_status status = LK_OK;
    if (segment.count > *room) {
        status = begin_window(s);
        *room = s->length;
    }
    if (status == LK_OK)
        status = lk__grow(s->context, (void **)&s->segments, &s->segments_capacity, s->segments_count + 1,
                          sizeof *s->segments);
    if (status < 0) return status;
    s->segments[s->segments_count++] = segment;
    *room -= segment.count;
    return LK_OK;
}

static lk_status divide_documents(lk__text_source *s)
{
    lk_status status = LK_OK;
    int64_t   room = 0;
    for (size_t i = 0; i < s->documents_count && status == LK_OK; i++) {
        const lk__text_document *d = &s->documents[i];
        int64_t                  n = d->end - d->first, windows = n < 2 ? 0 : count_windows(s, n);
        for (int64_t k = 0; k < windows && status == LK_OK; k++) {
            int64_t begin = k * s->stride, left = n - 1 - begin;
            status = add_segment(s,
                                 (lk__text_segment){.first = d->first + begin,
                                                    .count = (int32_t)(left < s->length ? left : s->length),
                                                    .scored = k ? (int32_t)(s->length - s->stride) : 0},
                                 &room);
        }
        s->info.scored += n - 1;
    }
    if (status == LK_OK && s->windows) s->windows[s->windows_count] = (int64_t)s->segments_count;
    return status;
}

/* Bytes of the scored tokens: those of all but the first of each document. */
static lk_status count_scored_bytes(lk__text_source *s)
{
    int64_t unscored = 0, bytes;
    if (!s->tokenizer || !s->ids.bytes) { /* without its ids in proportion */
        double part = s->info.tokens ? (double)s->info.scored / (double)s->info.tokens : 0;
        s->info.scored_bytes = (int64_t)((double)s->info.bytes * part + 0.5);
        return LK_OK;
    }
    size_t documents = s->packed ? s->documents_count : 1;
    for (size_t i = 0; i < documents; i++) {
        lk_status status = lk__text_count_bytes(s, s->packed ? s->documents[i].first : 0, 1, &bytes);
        if (status < 0) return status;
        unscored += bytes;
    }
    s->info.scored_bytes = s->info.bytes > unscored ? s->info.bytes - unscored : 0;
    return LK_OK;
}

lk_status lk__text_evaluation_plan(lk__text_source *s, int64_t *windows)
{
    lk_status status = LK_OK;
    if (!s->packed) {
        *windows = count_windows(s, s->ids.count);
        s->info.scored = s->ids.count - 1;
        return count_scored_bytes(s);
    }
    if (s->documents)
        clip_documents(s);
    else
        status = find_documents(s);
    if (status == LK_OK) status = divide_documents(s);
    if (status < 0) return status;
    *windows = (int64_t)s->windows_count;
    if (*windows == 0)
        return lk__fail(s->context, LK_EFORMAT,
                        "%s has no document of two tokens or more: the first token of a document is not predicted",
                        s->path);
    status = count_scored_bytes(s);
    lk__free(s->context, LK_MEMORY_OTHER, s->documents, s->documents_capacity * sizeof *s->documents);
    s->documents = NULL;
    s->documents_count = s->documents_capacity = 0;
    return status;
}

/* ---- samples ---- */

int64_t lk__text_evaluation_start(const lk__text_source *s, int64_t window)
{
    return s->packed ? s->segments[s->windows[window]].first : window * s->stride;
}

/* Writes a segment from number `at` of the window on. */
static bool read_segment(const lk__text_source *s, const lk__text_segment *g, int64_t at, void *const *fields,
                         int64_t *bad)
{
    int32_t *tokens = (int32_t *)fields[0] + at, *label = (int32_t *)fields[1] + at;
    if (!lk__text_copy_ids(s, g->first, g->count, tokens, bad) ||
        !lk__text_copy_ids(s, g->first + g->count, 1, &label[g->count - 1], bad))
        return false;
    memcpy(label, tokens + 1, (size_t)(g->count - 1) * sizeof *label);
    for (int32_t i = 0; i < g->scored; i++) label[i] = LK__TEXT_NO_LABEL;
    for (int32_t i = 0; s->packed && i < g->count; i++) {
        ((int32_t *)fields[2])[at + i] = i;
        ((int32_t *)fields[3])[at + i] = (int32_t)at;
    }
    return true;
}

/* Padding is as a document of its own. */
static void pad_window(const lk__text_source *s, int64_t at, void *const *fields)
{
    for (int64_t i = at; i < s->length; i++) {
        ((int32_t *)fields[0])[i] = 0;
        ((int32_t *)fields[1])[i] = LK__TEXT_NO_LABEL;
        if (!s->packed) continue;
        ((int32_t *)fields[2])[i] = (int32_t)(i - at);
        ((int32_t *)fields[3])[i] = (int32_t)at;
    }
}

bool lk__text_evaluation_read(const lk__text_source *s, int64_t window, void *const *fields, int64_t *bad)
{
    int64_t at = 0;
    if (!s->packed) {
        int64_t          begin = window * s->stride, left = s->ids.count - 1 - begin;
        lk__text_segment all = {.first = begin,
                                .count = (int32_t)(left < s->length ? left : s->length),
                                .scored = window ? (int32_t)(s->length - s->stride) : 0};
        if (!read_segment(s, &all, 0, fields, bad)) return false;
        at = all.count;
    }
    for (int64_t i = s->packed ? s->windows[window] : 0; s->packed && i < s->windows[window + 1]; i++) {
        if (!read_segment(s, &s->segments[i], at, fields, bad)) return false;
        at += s->segments[i].count;
    }
    pad_window(s, at, fields);
    return true;
}
