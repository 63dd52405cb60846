/* verdict.c - describes the state of a group's ranks: one sentence, then a table with one line per rank. */
#include "comm/verdict.h"

#include <stdio.h>
#include <string.h>

void lk__comm_record_make(lk__comm_record *r, const lk__comm_call *o, uint64_t number)
{
    *r = (lk__comm_record){.number = number,
                           .kind = (int32_t)o->kind,
                           .type = (int32_t)o->type,
                           .reduce = (int32_t)o->reduce,
                           .root = o->root,
                           .tag = o->tag,
                           .line = o->site.line,
                           .count = o->count,
                           .bytes = o->bytes};
}

const char *lk__file_tail(const char *file)
{
    if (!file) return "?";
    size_t length = strlen(file);
    return length > LK__FILE_NAME - 1 ? file + length - (LK__FILE_NAME - 1) : file;
}

uint64_t lk__signature_with_counts(uint64_t h, const size_t *counts, int ranks)
{
    for (int i = 0; i < ranks; i++) {
        h = (h ^ counts[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

enum { PUT_OFF_MS = 4000 };

int64_t lk__verdict_put_off_ms(const lk_comm *c) { return c->timeout_ms < PUT_OFF_MS ? c->timeout_ms : PUT_OFF_MS; }

__attribute__((format(printf, 2, 3))) static void append(lk__comm_report *report, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (report->used < sizeof report->text) {
        int n = vsnprintf(report->text + report->used, sizeof report->text - report->used, format, arguments);
        report->used += n > 0 ? (size_t)n : 0;
    }
    va_end(arguments);
}

static void describe_record(const lk__comm_rank_view *v, uint64_t which, char *out, size_t bytes)
{
    const lk__comm_record *r = &v->records[which & 1];
    lk__comm_call          o = {.kind = (lk__comm_kind)r->kind,
                                .type = (lk_dtype)r->type,
                                .reduce = (unsigned)r->reduce > LK_PROD ? LK_SUM : (lk_reduce_op)r->reduce,
                                .root = r->root,
                                .tag = r->tag,
                                .count = r->count,
                                .bytes = r->bytes,
                                .site = {v->files[which & 1], r->line}};
    lk__call_describe(&o, r->number, out, bytes);
}

/* "in #17 all_reduce … for 12.0 s; last finished #16 barrier …" */
static void append_state(const lk__comm_rank_view *v, lk__comm_report *report)
{
    char        text[256];
    const char *was = v->dead || v->gone || v->cut_off ? "it was " : "";
    if (v->dead)
        append(report, "dead; ");
    else if (v->gone)
        append(report, "left the group; ");
    else if (v->cut_off)
        append(report, "its host is not responding; ");
    else if (v->stopped)
        append(report, "stopped by a signal; ");
    else if (v->silent)
        append(report, "is not responding, though its host is; ");
    if (v->busy[0]) append(report, "busy with %s; ", v->busy);
    if (v->elsewhere) append(report, "waits in another group; ");
    if (v->entered == 0) {
        append(report, "%soutside any operation; it has not started one", was);
        return;
    }
    describe_record(v, v->entered, text, sizeof text);
    if (v->only_arrived) {
        append(report, "last message %.1f s ago, when it entered %s", v->since, text);
        return;
    }
    if (v->entered == v->left) {
        append(report, "%soutside any operation for %.1f s; %s %s", was, v->since,
               v->failed == v->entered ? "failed in" : "last finished", text);
        return;
    }
    append(report, "%sin %s for %.1f s", was, text, v->since);
    if (v->entered == 1) {
        append(report, "; it has not finished any operation");
        return;
    }
    describe_record(v, v->entered - 1, text, sizeof text);
    append(report, "; %s %s", v->failed == v->entered - 1 ? "before that it failed in" : "last finished", text);
}

/* One line per rank, missing ones marked; of very many ranks only the missing ones and this one. */
static void append_table(const lk__comm_table *t, const bool *missing, lk__comm_report *report)
{
    enum { LINES = 32 };
    int  lines = 0;
    char name[LK__MEMBER_TEXT];
    for (int i = 0; i < t->size; i++) {
        lk__comm_rank_view v = {.pid = 0};
        if (t->size > LINES && missing && !missing[i] && i != t->rank) continue;
        if (lines++ == LINES) {
            append(report, "\n  …");
            return;
        }
        t->view(t->state, i, &v);
        append(report, "\n  %s  %s pid %lld  ", lk__comm_member_text(t->comm, i, name), v.host, (long long)v.pid);
        append_state(&v, report);
        if (missing && missing[i]) append(report, "  <- missing");
    }
}

static void describe_own_call(const lk__comm_table *t, char *out, size_t bytes)
{
    lk__comm_rank_view v = {.pid = 0};
    t->view(t->state, t->rank, &v);
    describe_record(&v, v.entered, out, bytes);
}

static void append_rank(const lk__comm_table *t, int rank, lk__comm_report *report)
{
    lk__comm_rank_view v = {.pid = 0};
    char               name[LK__MEMBER_TEXT];
    t->view(t->state, rank, &v);
    if (t->comm->grid.size)
        append(report, "%s (%s, pid %lld)", lk__comm_member_text(t->comm, rank, name), v.host, (long long)v.pid);
    else
        append(report, "rank %d of %d (%s, pid %lld)", rank, t->size, v.host, (long long)v.pid);
}

/* How likely a rank is the cause that others wait: most likely one that is lost or does not run, then one that is in no
 * operation, then one that is in an earlier one, then one that waits in the same one or in another group. Of ranks that
 * are not missing only one that does not run can be the cause: others may wait for it elsewhere. */
static int score_rank(const lk__comm_rank_view *v, bool missing, uint64_t own)
{
    bool halted = v->stopped || v->silent;
    if (!missing) return halted ? 3 : -1;
    if (v->dead || v->gone || v->cut_off) return 5;
    if (halted) return 4;
    if (v->elsewhere) return 0;
    return v->entered == v->left ? 2 : v->entered < own ? 1 : 0;
}

static lk__comm_cause_kind cause_of(const lk__comm_rank_view *v)
{
    return v->dead      ? LK__CAUSE_DEAD
           : v->gone    ? LK__CAUSE_LEFT
           : v->cut_off ? LK__CAUSE_CUT_OFF
           : v->stopped ? LK__CAUSE_STOPPED
                        : LK__CAUSE_LATE;
}

/* The missing rank that is the most likely cause; report->cause names the most likely of all ranks. */
static int find_cause(const lk__comm_table *t, const bool *missing, lk__comm_report *report)
{
    lk__comm_rank_view own = {.pid = 0};
    int                cause = 0, best = -1, best_missing = -1;
    t->view(t->state, t->rank, &own);
    for (int i = 0; i < t->size; i++) {
        lk__comm_rank_view v = {.pid = 0};
        if (i == t->rank) continue;
        t->view(t->state, i, &v);
        int score = score_rank(&v, missing[i], own.entered);
        if (score > best) report->cause = lk__comm_cause_make(t->comm, i, cause_of(&v));
        if (score > best) best = score;
        if (missing[i] && score > best_missing) best_missing = score, cause = i;
    }
    return cause;
}

/* Which axis of the mesh waits. */
static void append_axes(const lk_comm *c, lk__comm_report *report)
{
    char text[64];
    if (c->along) append(report, " along %s", lk__axes_text(c->along, text, sizeof text));
}

void lk__verdict_late(const lk__comm_table *t, const bool *missing, double seconds, bool ended, lk__comm_report *report)
{
    char               call[256], name[LK__MEMBER_TEXT];
    int                cause, missing_count = 0;
    lk__comm_rank_view own = {.pid = 0};
    for (int i = 0; i < t->size; i++) missing_count += missing[i];
    cause = find_cause(t, missing, report);
    t->view(t->state, t->rank, &own);
    describe_record(&own, own.entered, call, sizeof call);
    bool collective = own.records[own.entered & 1].number != 0;
    append_rank(t, cause, report);
    if (missing_count > 1) append(report, " and %d more", missing_count - 1);
    if (ended)
        append(report, " did not %s %s", collective ? "complete" : "take part in", call);
    else
        append(report, " has been missing for %.1f s in %s", seconds, call);
    append_axes(t->comm, report);
    if (ended) append(report, " within %.1f s", seconds);
    append(report, ", reports %s", lk__comm_member_text(t->comm, t->rank, name));
    append_table(t, missing, report);
}

void lk__verdict_lost(const lk__comm_table *t, int peer, lk__comm_report *report)
{
    char               call[256], name[LK__MEMBER_TEXT];
    lk__comm_rank_view v = {.pid = 0};
    bool              *missing = lk__alloc(t->comm->context, LK_MEMORY_OTHER, (size_t)t->size);
    t->view(t->state, peer, &v);
    if (missing) missing[peer] = true;
    describe_own_call(t, call, sizeof call);
    append_rank(t, peer, report);
    append(report, " %s while %s %s %s",
           v.gone      ? "left the group"
           : v.cut_off ? "was cut off (its host is not responding)"
           : v.broken  ? "closed a connection"
                       : "died",
           lk__comm_member_text(t->comm, t->rank, name),
           t->outside ? "was outside any operation, after" : "waited for it in", call);
    append_axes(t->comm, report);
    append_table(t, missing, report);
    report->cause = lk__comm_cause_make(t->comm, peer,
                                        v.gone      ? LK__CAUSE_LEFT
                                        : v.cut_off ? LK__CAUSE_CUT_OFF
                                                    : LK__CAUSE_DEAD);
    lk__free(t->comm->context, LK_MEMORY_OTHER, missing, (size_t)t->size);
}

void lk__verdict_mismatch(const lk__comm_table *t, int peer, uint64_t number, lk__comm_report *report)
{
    char mine[LK__MEMBER_TEXT], its[LK__MEMBER_TEXT];
    append(report, "the ranks do not agree: %s and %s made different calls as operation #%llu",
           lk__comm_member_text(t->comm, t->rank, mine), lk__comm_member_text(t->comm, peer, its),
           (unsigned long long)number);
    append_axes(t->comm, report);
    append_table(t, NULL, report);
}

void lk__verdict_type_mismatch(const lk__comm_call *receive, int rank, const lk__comm_record *sent, const char *file,
                               lk__comm_report *report)
{
    char call[256];
    lk__call_describe(receive, 0, call, sizeof call);
    append(report, "rank %d sent %s × %llu (tag %d) at %.*s:%d, but rank %d receives it as %s", receive->root,
           lk_dtype_name((lk_dtype)sent->type), (unsigned long long)sent->count, sent->tag, LK__FILE_NAME - 1, file,
           sent->line, rank, call);
}

void lk__verdict_crossed(const lk__comm_table *t, int peer, const lk__comm_call *transfer, lk__comm_report *report)
{
    char               mine[256], its[256];
    lk__comm_rank_view v = {.pid = 0};
    t->view(t->state, peer, &v);
    describe_record(&v, v.entered, its, sizeof its);
    lk__call_describe(transfer, 0, mine, sizeof mine);
    append(report, "the ranks do not agree: rank %d waits for rank %d in %s, while rank %d waits for rank %d in %s",
           t->rank, peer, mine, peer, t->rank, its);
    append_table(t, NULL, report);
}
