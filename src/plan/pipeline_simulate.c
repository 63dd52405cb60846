/* pipeline_simulate.c - simulates the lists of all stages together. A run waits for the values that other stages send
 * to it; a forward that reuses a slot also waits until the values that were sent from that slot have been received. */
#include "plan/pipeline_schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KINDS = LK__PIPELINE_KINDS, TEXT = 96 };

typedef struct simulation {
    lk_context                      *context;
    const lk__pipeline_schedule_job *job;
    int                             *at;   /* by stage, kind and micro-batch: its place in the stage's list; -1: none */
    int                             *next; /* by stage: the run that is not done yet */
    int                             *had;  /* by stage and place: the micro-batch that had its slot before; -1: none */
    int                             *latest;          /* by slot of a stage: the micro-batch that has it */
    double                          *clock, *reached; /* by stage: the end of its last run; by stage and place */
} simulation;

static size_t cell(const simulation *s, int stage, lk__pipeline_schedule_kind kind, int micro_batch)
{
    return ((size_t)stage * KINDS + kind) * (size_t)s->job->micro_batches + (size_t)micro_batch;
}

static size_t place_of(const simulation *s, int stage, int place)
{
    return (size_t)stage * KINDS * (size_t)s->job->micro_batches + (size_t)place;
}

static const lk__pipeline_schedule_run *run_of(const simulation *s, int stage, int place)
{
    return &s->job->stages[stage].runs[place];
}

/* "backward of micro-batch 3 of stage 1" */
static const char *name_run(char text[TEXT], int stage, lk__pipeline_schedule_kind kind, int micro_batch)
{
    snprintf(text, TEXT, "%s of micro-batch %d of stage %d", lk__pipeline_kind_name(kind), micro_batch, stage);
    return text;
}

/* ---- each list by itself ---- */

static lk_status place_runs(simulation *s, int stage)
{
    const lk__pipeline_schedule_stage *list = &s->job->stages[stage];
    char                               text[TEXT];
    bool                               weights = false;
    for (int i = 0; i < list->count; i++) {
        const lk__pipeline_schedule_run *r = &list->runs[i];
        if (r->micro_batch < 0 || r->micro_batch >= s->job->micro_batches)
            return lk__fail(s->context, LK_EINVAL,
                            "the pipeline's schedule has a %s, but there are only %d micro-batches",
                            name_run(text, stage, r->kind, r->micro_batch), s->job->micro_batches);
        int *at = &s->at[cell(s, stage, r->kind, r->micro_batch)];
        if (*at >= 0)
            return lk__fail(s->context, LK_EINVAL, "the pipeline's schedule has the %s twice",
                            name_run(text, stage, r->kind, r->micro_batch));
        if (r->slot < 0 || r->slot >= list->slots)
            return lk__fail(s->context, LK_EINVAL, "the %s uses slot %d, but the stage has only %d",
                            name_run(text, stage, r->kind, r->micro_batch), r->slot, list->slots);
        *at = i;
        weights |= r->kind == LK__PIPELINE_WEIGHTS;
    }
    for (int k = 0; k < (weights ? KINDS : LK__PIPELINE_WEIGHTS); k++)
        for (int m = 0; m < s->job->micro_batches; m++)
            if (s->at[cell(s, stage, (lk__pipeline_schedule_kind)k, m)] < 0)
                return lk__fail(s->context, LK_EINVAL, "the pipeline's schedule lacks the %s",
                                name_run(text, stage, (lk__pipeline_schedule_kind)k, m));
    return LK_OK;
}

/* The last run of a micro-batch that reads its slot. */
static int last_use(const simulation *s, int stage, int micro_batch)
{
    int weights = s->at[cell(s, stage, LK__PIPELINE_WEIGHTS, micro_batch)];
    int backward = s->at[cell(s, stage, LK__PIPELINE_BACKWARD, micro_batch)];
    return weights > backward ? weights : backward;
}

static int before_in_slot(const simulation *s, int stage, int place) { return s->had[place_of(s, stage, place)]; }

static void find_before_in_slots(simulation *s, int stage)
{
    const lk__pipeline_schedule_stage *list = &s->job->stages[stage];
    for (int i = 0; i < list->slots; i++) s->latest[i] = -1;
    for (int i = 0; i < list->count; i++) {
        const lk__pipeline_schedule_run *r = &list->runs[i];
        s->had[place_of(s, stage, i)] = s->latest[r->slot];
        if (r->kind == LK__PIPELINE_FORWARD) s->latest[r->slot] = r->micro_batch;
    }
}

static lk_status check_slots(simulation *s, int stage)
{
    const lk__pipeline_schedule_stage *list = &s->job->stages[stage];
    char                               text[TEXT], other[TEXT];
    find_before_in_slots(s, stage);
    for (int i = 0; i < list->count; i++) {
        const lk__pipeline_schedule_run *r = &list->runs[i];
        int                              had = before_in_slot(s, stage, i);
        name_run(text, stage, r->kind, r->micro_batch);
        if (r->kind == LK__PIPELINE_FORWARD && had >= 0 && last_use(s, stage, had) > i)
            return lk__fail(s->context, LK_EINVAL, "the %s overwrites slot %d, which the %s still reads", text, r->slot,
                            name_run(other, stage, run_of(s, stage, last_use(s, stage, had))->kind, had));
        if (r->kind == LK__PIPELINE_FORWARD) continue;
        if (had != r->micro_batch && s->at[cell(s, stage, LK__PIPELINE_FORWARD, r->micro_batch)] > i)
            return lk__fail(s->context, LK_EINVAL, "the %s is before its forward", text);
        if (had < 0) return lk__fail(s->context, LK_EINVAL, "the %s uses slot %d, which is empty", text, r->slot);
        if (had != r->micro_batch)
            return lk__fail(s->context, LK_EINVAL, "the %s uses slot %d, which holds micro-batch %d", text, r->slot,
                            had);
        if (r->kind == LK__PIPELINE_WEIGHTS && s->at[cell(s, stage, LK__PIPELINE_BACKWARD, r->micro_batch)] > i)
            return lk__fail(s->context, LK_EINVAL, "the %s is before its backward", text);
    }
    return LK_OK;
}

/* The place of the first run of a kind at or behind `place`: each list has one for every micro-batch. */
static int next_of_kind(const simulation *s, int stage, lk__pipeline_schedule_kind kind, int place)
{
    while (run_of(s, stage, place)->kind != kind) place++;
    return place;
}

/* Messages of one connection are received as they were sent. */
static lk_status check_order(const simulation *s, const lk__pipeline_schedule_transfer *t)
{
    char text[TEXT], other[TEXT];
    int  from = -1, to = -1;
    for (int i = 0; i < s->job->micro_batches; i++) {
        from = next_of_kind(s, t->from, t->kind, from + 1);
        to = next_of_kind(s, t->to, t->kind, to + 1);
        int a = run_of(s, t->from, from)->micro_batch, b = run_of(s, t->to, to)->micro_batch;
        if (a != b)
            return lk__fail(s->context, LK_EINVAL,
                            "the %s and the %s are in a different order in stage %d, which receives from them",
                            name_run(text, t->from, t->kind, a < b ? a : b),
                            name_run(other, t->from, t->kind, a < b ? b : a), t->to);
    }
    return LK_OK;
}

/* ---- together ---- */

/* What the next run of a stage waits for: a run that is not done, or a place that a stage has not reached. */
typedef struct obstacle {
    int  stage, place; /* stage -1: nothing; until all runs before `place` are done … */
    bool done;         /* … and that one, too */
} obstacle;

static bool is_past(const simulation *s, obstacle o)
{
    return s->next[o.stage] > o.place || (!o.done && s->next[o.stage] == o.place);
}

static double time_of(const simulation *s, obstacle o, double seconds)
{
    double reached = o.place ? s->reached[place_of(s, o.stage, o.place - 1)] : 0;
    return o.done ? s->reached[place_of(s, o.stage, o.place)] + seconds : reached;
}

/* When what a run receives has its memory: a forward once the slot is free, a backward behind its forward. */
static double free_time(const simulation *s, int stage, const lk__pipeline_schedule_run *r, int had)
{
    int place = had >= 0 ? last_use(s, stage, had) : -1;
    if (r->kind == LK__PIPELINE_BACKWARD) place = s->at[cell(s, stage, LK__PIPELINE_FORWARD, r->micro_batch)];
    return place >= 0 ? s->reached[place_of(s, stage, place)] : 0;
}

/* The first thing that the next run of a stage waits for; *begin: when it can begin otherwise. */
static obstacle find_obstacle(const simulation *s, int stage, double *begin)
{
    const lk__pipeline_schedule_run *r = run_of(s, stage, s->next[stage]);
    int had = r->kind == LK__PIPELINE_FORWARD ? before_in_slot(s, stage, s->next[stage]) : -1;
    *begin = s->clock[stage];
    for (int i = 0; i < s->job->transfers_count; i++) {
        const lk__pipeline_schedule_transfer *t = &s->job->transfers[i];
        obstacle                              o = {-1, 0, false};
        bool                                  receives = t->to == stage && t->kind == r->kind;
        if (receives)
            o = (obstacle){t->from, s->at[cell(s, t->from, t->kind, r->micro_batch)], true};
        else if (t->from == stage && had >= 0) /* sent from this slot before */
            o = (obstacle){t->to, s->at[cell(s, t->to, t->kind, had)], false};
        if (o.stage < 0) continue;
        if (!is_past(s, o)) return o;
        *begin = fmax(*begin, time_of(s, o, t->seconds));
        if (receives) *begin = fmax(*begin, free_time(s, stage, r, had) + t->seconds);
    }
    return (obstacle){-1, 0, false};
}

static void finish_run(simulation *s, int stage, double begin, lk__pipeline_schedule_event *events)
{
    const lk__pipeline_schedule_run *r = run_of(s, stage, s->next[stage]);
    double                           end = begin + s->job->stages[stage].seconds[r->kind];
    size_t                           first = 0;
    for (int i = 0; i < stage; i++) first += (size_t)s->job->stages[i].count;
    if (events) events[first + (size_t)s->next[stage]] = (lk__pipeline_schedule_event){stage, *r, begin, end};
    s->reached[place_of(s, stage, s->next[stage])] = end;
    s->clock[stage] = end;
    s->next[stage]++;
}

/* Every stage that is not done waits for another: following them leads into a circle, of which two are named. */
static lk_status report_deadlock(const simulation *s, int stage)
{
    char     text[4][TEXT];
    double   begin;
    obstacle o = {stage, 0, false};
    for (int i = 0; i <= s->job->count; i++) { /* into the circle */
        stage = o.stage;
        o = find_obstacle(s, stage, &begin);
    }
    const lk__pipeline_schedule_run *waits = run_of(s, stage, s->next[stage]), *for_run = run_of(s, o.stage, o.place);
    const lk__pipeline_schedule_run *blocked = run_of(s, o.stage, s->next[o.stage]);
    obstacle                         other = find_obstacle(s, o.stage, &begin);
    const lk__pipeline_schedule_run *wanted = run_of(s, other.stage, other.place);
    return lk__fail(s->context, LK_EINVAL,
                    "the pipeline's schedule would deadlock: the %s waits for the %s, which comes after the %s, which "
                    "waits for the %s",
                    name_run(text[0], stage, waits->kind, waits->micro_batch),
                    name_run(text[1], o.stage, for_run->kind, for_run->micro_batch),
                    name_run(text[2], o.stage, blocked->kind, blocked->micro_batch),
                    name_run(text[3], other.stage, wanted->kind, wanted->micro_batch));
}

static lk_status run_all(simulation *s, lk__pipeline_schedule_event *events, double *seconds)
{
    bool moved = true;
    int  waiting = -1;
    *seconds = 0;
    while (moved) {
        moved = false;
        waiting = -1;
        for (int stage = 0; stage < s->job->count; stage++)
            while (s->next[stage] < s->job->stages[stage].count) {
                double begin;
                if (find_obstacle(s, stage, &begin).stage >= 0) {
                    waiting = stage;
                    break;
                }
                finish_run(s, stage, begin, events);
                moved = true;
            }
    }
    for (int stage = 0; stage < s->job->count; stage++) *seconds = fmax(*seconds, s->clock[stage]);
    return waiting < 0 ? LK_OK : report_deadlock(s, waiting);
}

static size_t most_slots(const lk__pipeline_schedule_job *job)
{
    int most = 0;
    for (int i = 0; i < job->count; i++)
        if (job->stages[i].slots > most) most = job->stages[i].slots;
    return (size_t)most;
}

lk_status lk__pipeline_simulate(lk_context *c, const lk__pipeline_schedule_job *job,
                                lk__pipeline_schedule_event *events, double *seconds)
{
    size_t     stages = (size_t)job->count, cells = stages * KINDS * (size_t)job->micro_batches;
    size_t     slots = most_slots(job);
    size_t     bytes = (cells + stages) * sizeof(double) + (2 * cells + stages + slots) * sizeof(int);
    simulation s = {.context = c, .job = job, .reached = lk__alloc(c, LK_MEMORY_OTHER, bytes)};
    lk_status  status = LK_OK;
    if (!s.reached) return LK_ENOMEM;
    s.clock = s.reached + cells;
    s.at = (int *)(void *)(s.clock + stages);
    s.next = s.at + cells;
    s.had = s.next + stages;
    s.latest = s.had + cells;
    for (size_t i = 0; i < cells; i++) s.at[i] = -1;
    for (int i = 0; i < job->count && status >= 0; i++) status = place_runs(&s, i);
    for (int i = 0; i < job->count && status >= 0; i++) status = check_slots(&s, i);
    for (int i = 0; i < job->transfers_count && status >= 0; i++) status = check_order(&s, &job->transfers[i]);
    if (status >= 0) status = run_all(&s, events, seconds);
    lk__free(c, LK_MEMORY_OTHER, s.reached, bytes);
    return status;
}
