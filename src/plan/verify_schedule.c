/* verify_schedule.c - walks over a schedule and writes the messages about errors in it. */
#include "plan/verify_schedule.h"

#include "base/environment.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OTHER_RANKS = 1 << 30 }; /* as if they were a collective in flight */

typedef struct walk {
    const lk__plan_checked     *check;
    lk__plan_accesses           accesses;
    lk__plan_contents          *spaces;
    bool                       *started; /* by flight, below */
    bool                        lent;    /* other ranks read the gradients */
    size_t                      run;     /* the current one */
    const lk__plan_instruction *in;      /* the current one; NULL: none */
    char                       *text;
    size_t                      bytes;
} walk;

/* ---- sentences ---- */

static const char *state_name(const walk *w, int state) { return w->check->plan->graph->states[state].name; }

static void value_text(const walk *w, int v, char *text, size_t bytes)
{
    const lk__plan_list   *list = w->check->list;
    const lk_graph        *g = list->graph;
    const lk__graph_value *value = &g->values[v];
    for (size_t i = 0; list->gradients && i < g->states_count; i++)
        if (list->gradients[i] >= 0 && w->accesses.root[list->gradients[i]] == v) {
            snprintf(text, bytes, "the gradient of \"%s\"", state_name(w, (int)i));
            return;
        }
    switch (value->kind) {
    case LK__VALUE_STATE: snprintf(text, bytes, "\"%s\"", state_name(w, value->state)); break;
    case LK__VALUE_MASTER: snprintf(text, bytes, "the master copy of \"%s\"", state_name(w, value->state)); break;
    case LK__VALUE_OPTIMIZER: snprintf(text, bytes, "optimizer state of \"%s\"", state_name(w, value->state)); break;
    case LK__VALUE_INPUT: snprintf(text, bytes, "input \"%s\"", value->name); break;
    case LK__VALUE_CONSTANT: snprintf(text, bytes, "constant %d", value->state); break;
    case LK__VALUE_RESULT: snprintf(text, bytes, "value %d of %s", v, lk__node_name(g, &g->nodes[value->node])); break;
    default: snprintf(text, bytes, "value %d", v); break;
    }
}

static void content_text(const walk *w, int space, const lk__plan_content *c, char *text, size_t bytes)
{
    static const char *const stages[] = {[LK__STAGE_REDUCED] = ", reduced over the ranks",
                                         [LK__STAGE_UPDATED] = ", updated",
                                         [LK__STAGE_SCALED] = ", scaled"};
    char                     name[160], parts[64] = "";
    switch (space) {
    case LK__SPACE_NUMBERS: snprintf(name, sizeof name, "number %d of the loss", c->value % LK__PLAN_NUMBERS); break;
    case LK__SPACE_REPORT: snprintf(name, sizeof name, "the report of all ranks"); break;
    case LK__SPACE_SUMS: snprintf(name, sizeof name, "the sums of the loss's numbers"); break;
    case LK__SPACE_SQUARES: snprintf(name, sizeof name, "the squares of \"%s\"", state_name(w, c->value)); break;
    case LK__SPACE_PEERS: snprintf(name, sizeof name, "the sums of other ranks' slices"); break;
    case LK__SPACE_LEAF_SUMS: snprintf(name, sizeof name, "sums of a leaf"); break;
    default: value_text(w, c->value, name, sizeof name); break;
    }
    if (c->first >= 0 && c->count == 1) snprintf(parts, sizeof parts, " of part %d", c->first);
    if (c->first >= 0 && c->count > 1)
        snprintf(parts, sizeof parts, " of parts %d to %d", c->first, c->first + c->count - 1);
    snprintf(text, bytes, "%s%s%s", name, parts, stages[c->stage] ? stages[c->stage] : "");
}

static lk_status fail(walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static lk_status fail(walk *w, const char *format, ...)
{
    static const char *const sections[LK_SECTION_COUNT] = {"forward", "backward", "sync", "update", "evaluate"};
    const lk__schedule_run  *run = &w->check->schedule->runs[w->run];
    char                     what[512], where[160] = "";
    va_list                  arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (w->in && w->in->bucket >= 0)
        snprintf(where, sizeof where, ", \"%s\" of bucket %d", lk__action_name(w->in->action), w->in->bucket);
    else if (w->in && w->in->node >= 0)
        snprintf(where, sizeof where, ", \"%s\" of node %d, %s", lk__action_name(w->in->action), w->in->node,
                 lk__node_name(w->check->list->graph, &w->check->list->graph->nodes[w->in->node]));
    else if (w->in)
        snprintf(where, sizeof where, ", \"%s\"", lk__action_name(w->in->action));
    snprintf(w->text, w->bytes, "%s: run %zu (%s, part %d)%s: %s", w->check->name, w->run, sections[run->section],
             run->part, where, what);
    return LK_EMISMATCH;
}

/* ---- accesses ---- */

static const char *flight_text(const lk__plan_interval *i)
{
    return i->flight == OTHER_RANKS ? "other ranks still read"
           : i->arrives             ? "a collective in flight writes"
                                    : "a collective in flight reads";
}

static lk_status check_read(walk *w, const lk__plan_access *a)
{
    const lk__plan_contents *c = &w->spaces[a->space];
    char                     needed[256], there[256];
    size_t                   at = a->begin;
    for (size_t i = lk__contents_find(c, at); i < c->count && c->all[i].begin <= at && at < a->end;
         at = c->all[i++].end) {
        const lk__plan_interval *one = &c->all[i];
        if (lk__content_equal(&one->content, &a->content) && !one->arrives) continue;
        content_text(w, a->space, &a->content, needed, sizeof needed);
        content_text(w, a->space, &one->content, there, sizeof there);
        if (one->arrives) return fail(w, "reads %s, which a collective in flight writes", needed);
        if (one->content.value == a->content.value && one->content.origin != a->content.origin)
            return fail(w, "reads %s from a place other than the one where it was written", needed);
        return fail(w, "reads %s from a place that holds %s", needed, there);
    }
    if (at >= a->end) return LK_OK;
    content_text(w, a->space, &a->content, needed, sizeof needed);
    return fail(w, "reads %s, which nothing has written", needed);
}

static lk_status write_content(walk *w, int space, size_t begin, size_t end, const lk__plan_content *content)
{
    lk__plan_contents *c = &w->spaces[space];
    char               made[256], there[256];
    for (size_t i = lk__contents_find(c, begin); i < c->count && c->all[i].begin < end; i++) {
        if (!c->all[i].flight) continue;
        content_text(w, space, content, made, sizeof made);
        content_text(w, space, &c->all[i].content, there, sizeof there);
        return fail(w, "writes %s over %s, which %s", made, there, flight_text(&c->all[i]));
    }
    return lk__contents_write(w->check->plan->context, c, begin, end, content);
}

static lk_status copy_contents(walk *w, const lk__plan_access *a)
{
    const lk__plan_contents *from = &w->spaces[a->from];
    size_t                   at = a->begin;
    lk_status                status = LK_OK;
    for (size_t i = lk__contents_find(from, at); i < from->count && from->all[i].begin <= at && at < a->end; i++) {
        const lk__plan_interval *one = &from->all[i];
        size_t                   end = one->end < a->end ? one->end : a->end;
        if (one->arrives) return fail(w, "copies data that a collective in flight writes");
        if ((status = write_content(w, a->space, at, end, &one->content)) < 0) return status;
        at = end;
    }
    return at < a->end ? fail(w, "copies data that nothing has written") : LK_OK;
}

/* What an instruction starts or waits for, of its slot; the reductions of buckets are once for all slots. */
static int flight_at(const walk *w)
{
    const lk__schedule_run *run = &w->check->schedule->runs[w->run];
    int                     slot = w->in->bucket >= 0 ? 0 : run->slot;
    return slot * w->check->instructions->collectives + w->in->collective;
}

static lk_status mark_flight(walk *w, const lk__plan_access *a)
{
    bool starts = lk__action_kind_of(w->in->action) == LK__IS_START, lends = a->kind == LK__LENDS;
    if ((!starts && !lends) || a->kind == LK__READS_AT_ONCE) return LK_OK;
    w->lent |= lends;
    return lk__contents_mark(w->check->plan->context, &w->spaces[a->space], a->begin, a->end,
                             lends ? OTHER_RANKS : flight_at(w) + 1, a->kind == LK__WRITES);
}

static bool overlap(const lk__plan_access *a, const lk__plan_access *b)
{
    return a->space == b->space && a->begin < b->end && b->begin < a->end;
}

/* A kernel reads while it writes: what it writes is no operand, unless it may be computed in place. */
static lk_status check_overlap(walk *w)
{
    const lk__plan_accesses *a = &w->accesses;
    char                     made[256], other[256];
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < a->count && a->all[i].kind == LK__WRITES; k++) {
            const lk__plan_access *x = &a->all[i], *y = &a->all[k];
            bool                   same = x->begin == y->begin && x->end == y->end;
            if (i == k || !overlap(x, y) || (y->kind == LK__READS_IN_PLACE && same)) continue;
            content_text(w, x->space, &x->content, made, sizeof made);
            content_text(w, y->space, &y->content, other, sizeof other);
            return fail(w, "writes %s over %s, which it also %s", made, other,
                        y->kind == LK__WRITES ? "writes" : "reads");
        }
    return LK_OK;
}

static lk_status apply_accesses(walk *w)
{
    const lk__plan_accesses *a = &w->accesses;
    bool                     kernel =
        w->in && (w->in->action == LK__DO_KERNEL || w->in->action == LK__DO_LEAVES || w->in->action == LK__DO_SOURCES);
    lk_status status = kernel ? check_overlap(w) : LK_OK;
    for (size_t i = 0; i < a->count && status >= 0; i++)
        if (a->all[i].kind != LK__WRITES && a->all[i].kind != LK__COPIES) status = check_read(w, &a->all[i]);
    for (size_t i = 0; i < a->count && status >= 0; i++) {
        const lk__plan_access *one = &a->all[i];
        if (one->kind == LK__WRITES) status = write_content(w, one->space, one->begin, one->end, &one->content);
        if (one->kind == LK__COPIES) status = copy_contents(w, one);
    }
    for (int writes = 0; writes < 2; writes++) /* what a start reads and writes is in flight as what it writes */
        for (size_t i = 0; i < a->count && w->in && status >= 0; i++)
            if ((a->all[i].kind == LK__WRITES) == writes) status = mark_flight(w, &a->all[i]);
    return status;
}

/* ---- starts and waits ---- */

static void land(walk *w, int flight)
{
    for (int i = 0; i < lk__space_count(w->check->plan); i++) lk__contents_land(&w->spaces[i], flight);
}

static bool waits_for_one(lk__plan_action action)
{
    return action == LK__DO_WAIT || action == LK__DO_WAIT_RECEIVED || action == LK__DO_WAIT_RECEIVED_STAGED;
}

/* What the run's slot has sent has arrived; behind the last backward what all of them have. */
static void land_sends(walk *w)
{
    const lk__plan_instructions *all = w->check->instructions;
    int                          slot = w->check->schedule->runs[w->run].slot, sync = w->in->section == LK_SYNC;
    for (size_t i = 0; i < all->count; i++) {
        lk__plan_action action = all->all[i].action;
        if (action != LK__DO_START_SEND && action != LK__DO_START_SEND_STAGED) continue;
        for (int k = 0; k < w->check->plan->slots; k++) {
            int flight = k * all->collectives + all->all[i].collective;
            if ((k != slot && !sync) || !w->started[flight]) continue;
            w->started[flight] = false;
            land(w, flight + 1);
        }
    }
}

static lk_status check_flight(walk *w)
{
    int collective = w->in->collective, flight = flight_at(w);
    if (lk__action_kind_of(w->in->action) == LK__IS_START) {
        if (w->started[flight]) return fail(w, "starts collective %d again before waiting for it", collective);
        w->started[flight] = true;
    } else if (waits_for_one(w->in->action)) {
        if (!w->started[flight]) return fail(w, "waits for collective %d, which was not started", collective);
        w->started[flight] = false;
        land(w, flight + 1);
    } else if (w->in->action == LK__DO_WAIT_SENT) {
        land_sends(w);
    } else if (w->in->action == LK__DO_BARRIER_UPDATE) {
        w->lent = false;
        land(w, OTHER_RANKS);
    }
    return LK_OK;
}

static lk_status check_ended(walk *w)
{
    w->in = NULL;
    int count = w->check->instructions->collectives;
    for (int i = 0; i < count * w->check->plan->slots; i++)
        if (w->started[i]) return fail(w, "ends while collective %d is in flight: nothing waits for it", i % count);
    return w->lent ? fail(w, "ends while other ranks still read the gradients: there is no barrier") : LK_OK;
}

/* ---- buckets and slices ---- */

static lk_status check_buckets(walk *w)
{
    const lk_plan *p = w->check->plan;
    for (size_t i = 0; i < p->graph->states_count && p->trains; i++) {
        const lk__plan_state *s = &p->states[i];
        bool                  found = !s->trained || s->wide_bytes == 0;
        for (size_t b = 0; b < p->buckets_count && !found; b++)
            found = s->gradient_offset >= p->buckets[b].offset &&
                    s->gradient_offset + lk__plan_gradient_bytes(p, i) <= p->buckets[b].offset + p->buckets[b].bytes;
        if (!found) return fail(w, "no bucket has the whole gradient of \"%s\"", state_name(w, (int)i));
    }
    return LK_OK;
}

/* Every piece is in this rank's slices; that they are all of them, the walk finds at the end of the update. */
static lk_status check_pieces(walk *w)
{
    const lk_plan *p = w->check->plan;
    for (size_t i = 0; i < w->check->pieces_count; i++) {
        const lk__plan_owned *piece = &w->check->pieces[i];
        lk__plan_slices       s = lk__plan_state_slices(p, (size_t)piece->state, LK__ARRAY_STORED);
        lk__range             owned = lk__slices_owned(&s, s.owner);
        int64_t               last = piece->first + piece->count;
        if (last > lk__slices_elements(&s, s.own))
            return fail(w, "this rank updates elements %lld to %lld of its slice of \"%s\", which has fewer",
                        (long long)piece->first, (long long)(piece->first + piece->count - 1),
                        state_name(w, piece->state));
        if (piece->first >= owned.first && last <= owned.end) continue;
        return fail(
            w, "this rank updates elements %lld to %lld of its slice of \"%s\", some of which another rank updates",
            (long long)piece->first, (long long)(piece->first + piece->count - 1), state_name(w, piece->state));
    }
    return LK_OK;
}

/* ---- the walk ---- */

static lk_status walk_run(walk *w, const lk__schedule_run *run)
{
    const lk__plan_instructions *all = w->check->instructions;
    lk_status                    status = LK_OK;
    for (size_t i = lk__schedule_begin(&all->at, run), end = lk__schedule_end(&all->at, run); i < end && status >= 0;
         i++) {
        w->in = &all->all[i];
        if (w->in->when & ~run->flags) continue;
        status = check_flight(w);
        if (status >= 0) status = lk__accesses_find(&w->accesses, run, w->in);
        if (status >= 0) status = apply_accesses(w);
    }
    w->in = NULL;
    return status;
}

static lk_status walk_all(walk *w)
{
    const lk__plan_schedule *s = w->check->schedule;
    lk_status                status = check_buckets(w);
    if (status >= 0) status = check_pieces(w);
    if (status >= 0) status = lk__accesses_before(&w->accesses, &s->runs[0]);
    if (status >= 0) status = apply_accesses(w);
    for (w->run = 0; w->run < s->count && status >= 0; w->run++) status = walk_run(w, &s->runs[w->run]);
    w->run = s->count - 1;
    if (status >= 0) status = check_ended(w);
    if (status >= 0) status = lk__accesses_after(&w->accesses, &s->runs[s->count - 1]);
    return status < 0 ? status : apply_accesses(w);
}

lk_status lk__schedule_verify(const lk__plan_checked *check, char *text, size_t bytes)
{
    lk_context *c = check->plan->context;
    walk        w = {.check = check, .text = text, .bytes = bytes};
    int         spaces = lk__space_count(check->plan);
    size_t      started = (size_t)check->instructions->collectives * (size_t)check->plan->slots + 1;
    if (bytes) *text = 0;
    if (check->schedule->count == 0) return LK_OK;
    lk_status status =
        lk__accesses_create(check->plan, check->list, check->group, check->pieces, check->pieces_count, &w.accesses);
    if (status < 0) return status;
    w.spaces = lk__alloc(c, LK_MEMORY_OTHER, (size_t)spaces * sizeof *w.spaces);
    w.started = lk__alloc(c, LK_MEMORY_OTHER, started * sizeof *w.started);
    status = w.spaces && w.started ? walk_all(&w) : LK_ENOMEM;
    for (int i = 0; i < spaces && w.spaces; i++) lk__contents_free(c, &w.spaces[i]);
    lk__free(c, LK_MEMORY_OTHER, w.spaces, (size_t)spaces * sizeof *w.spaces);
    lk__free(c, LK_MEMORY_OTHER, w.started, started * sizeof *w.started);
    lk__accesses_free(&w.accesses);
    return status;
}

/* ---- all schedules of a plan ---- */

static lk_status verify_kind(const lk_plan *plan, lk__plan_group group, lk__schedule_kind kind,
                             const lk__plan_owned *pieces, size_t count)
{
    lk__plan_schedule     schedule;
    lk__plan_instructions instructions = {.all = NULL};
    char                  text[1024];
    lk_status             status = lk__plan_schedule_make(plan, kind, &schedule);
    if (status < 0 || schedule.count == 0) return status;
    const lk__plan_list *list = schedule.runs[0].list;
    if ((status = lk__plan_instruct(plan, list, group, &instructions)) >= 0) {
        lk__plan_checked check = {plan, group, list, &instructions, &schedule, pieces, count, lk__schedule_name(kind)};
        status = lk__schedule_verify(&check, text, sizeof text);
    }
    if (status == LK_EMISMATCH) (void)lk__fail(plan->context, status, "internal error in the schedule of a %s", text);
    lk__plan_instructions_free(plan->context, &instructions);
    lk__plan_schedule_free(plan->context, &schedule);
    return status;
}

lk_status lk__plan_verify(const lk_plan *plan, lk__plan_group group)
{
    bool            slices = plan->shared && plan->trains;
    size_t          count = slices ? lk__plan_list_owned(plan, lk__plan_own(plan), NULL) : 0;
    lk__plan_owned *pieces = count ? lk__alloc(plan->context, LK_MEMORY_OTHER, count * sizeof *pieces) : NULL;
    lk_status       status = LK_OK;
    if (count && !pieces) return LK_ENOMEM;
    if (count) lk__plan_list_owned(plan, lk__plan_own(plan), pieces);
    for (int kind = 0; kind < LK__SCHEDULE_COUNT && status >= 0; kind++)
        status = verify_kind(plan, group, (lk__schedule_kind)kind, pieces, count);
    lk__free(plan->context, LK_MEMORY_OTHER, pieces, count * sizeof *pieces);
    return status;
}

bool lk__schedule_verifies(const lk_context *context)
{
    const char *asked = lk__environment(context, LK__ENV_LOCKSTEP_VERIFY_SCHEDULE);
#ifdef NDEBUG
    return asked && *asked && strcmp(asked, "0") != 0;
#else
    return !asked || strcmp(asked, "0") != 0;
#endif
}
