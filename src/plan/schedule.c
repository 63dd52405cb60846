/* schedule.c - creates schedules. */
#include "plan/schedule.h"

#include "plan/leaf_stack.h"
#include "plan/pipeline_schedule.h"

const char *lk__schedule_name(lk__schedule_kind kind)
{
    static const char *const names[LK__SCHEDULE_COUNT] = {
        [LK__SCHEDULE_STEP] = "step",
        [LK__SCHEDULE_HELD] = "step with no_sync",
        [LK__SCHEDULE_QUEUED] = "queued step",
        [LK__SCHEDULE_EVALUATION] = "evaluation",
        [LK__SCHEDULE_GENERATION] = "generation",
        [LK__SCHEDULE_WEIGHTS] = "weights of losses",
    };
    return names[kind];
}

lk__plan_division lk__plan_divide(const lk_plan *p)
{
    lk__range own = lk__plan_own_leaves(p);
    int       micro_batches = p->parallel.micro_batches, leaves = p->parallel.leaves;
    if (!leaves)
        return (lk__plan_division){.parts = micro_batches,
                                   .here = micro_batches,
                                   .rows = 1,
                                   .adds = p->sets > 1,
                                   .several = p->sets > 1,
                                   .by_hand = true};
    int here = (int)lk__range_count(own);
    return (lk__plan_division){
        .parts = leaves, .first = (int)own.first, .here = here, .global = true, .rows = here, .several = true};
}

bool lk__plan_runs_alike(const lk_plan *p)
{
    const lk__plan_list *list = &p->train;
    for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && !lk__plan_is_bucket(list->graph, n) &&
            (lk__node_axes(n) & LK__PLAN_BATCH_AXES) && lk__mesh_extent(&p->mesh, lk__node_axes(n)) > 1)
            return true;
    }
    return false;
}

int lk__plan_runs(const lk_plan *p)
{
    return p->parallel.leaves && !p->batch_leaves ? lk__plan_most_leaves(p) : p->parallel.micro_batches;
}

/* Parts that run one after the other: micro-batches, the leaves of all slots, or runs of leaves that are one batch. */
static int count_parts(const lk_plan *p)
{
    if (lk__plan_leaves_together(p)) return 1;
    bool alike = p->parallel.leaves && (p->batch_leaves || p->pipeline || lk__plan_runs_alike(p)); /* in all stages */
    return alike ? lk__plan_runs(p) : lk__plan_divide(p).here;
}

/* The leaves of a run. Where this rank has fewer than others that run as often, its first runs have none: what they
 * make is overwritten. */
static lk__range leaves_of_run(const lk_plan *p, int index)
{
    int here = lk__plan_divide(p).here;
    if (p->batch_leaves) return lk__split_part(here, p->parallel.micro_batches, index);
    if (lk__plan_leaves_together(p)) return (lk__range){0, 1}; /* of slot 0 */
    int leaf = index - (count_parts(p) - here);
    return leaf < 0 ? (lk__range){0, 0} : (lk__range){leaf, leaf + 1};
}

static lk__schedule_run part_run(const lk_plan *p, lk_section section, int index, unsigned flags)
{
    lk__plan_division division = lk__plan_divide(p);
    bool              leaves = p->parallel.leaves > 0;
    lk__range         own = leaves ? leaves_of_run(p, index) : (lk__range){index, index + 1};
    int               part = (int)own.first;
    lk__schedule_run  run = {.list = &p->train,
                             .section = section,
                             .through = section,
                             .slots = p->pipeline ? 1 : p->slots,
                             .part = part,
                             .each = (int)lk__range_count(own),
                             .number = lk__plan_batch_part(p),
                             .writes_buffers = true,
                             .flags = flags};
    if (!leaves) return index > 0 ? lk__schedule_behind(p, &run) : run;
    run.set = lk__leaf_set(p, lk__plan_batch_part(p), part);
    run.row = part;
    run.number = division.first + part;
    /* Running statistics are those of the first leaf, on the rank that has it; synchronised ones are written on all
     * ranks. */
    run.writes_buffers = part == 0 && run.each > 0 && (division.first == 0 || p->syncs);
    return run;
}

lk__schedule_run lk__schedule_behind(const lk_plan *p, const lk__schedule_run *run)
{
    lk__schedule_run behind = *run;
    if (p->parallel.leaves || p->sets < 2) return behind;
    behind.set = 1;
    behind.flags |= LK__IF_ADDS;
    return behind;
}

static lk__schedule_run step_run(const lk_plan *p, lk_section section, unsigned flags)
{
    return (lk__schedule_run){.list = &p->train, .section = section, .through = section, .slots = 1, .flags = flags};
}

lk__schedule_run lk__schedule_by_hand(const lk_plan *p, lk_section section, unsigned flags)
{
    if (section == LK_EVALUATE) return lk__schedule_run_of(&p->evaluate, flags | LK__IF_WAITED);
    bool computes = section == LK_FORWARD || section == LK_BACKWARD;
    return computes ? part_run(p, section, 0, flags | LK__IF_WAITED) : step_run(p, section, flags | LK__IF_WAITED);
}

/* ---- stages of a pipeline ---- */

static lk__pipeline_schedule_shape shape_of(const lk_plan *p)
{
    return (lk__pipeline_schedule_shape){lk__plan_stages(p), count_parts(p), p->parallel.pipeline_schedule,
                                         p->receives_early};
}

int lk__plan_count_slots(const lk_plan *p)
{
    lk__pipeline_schedule_shape shape = shape_of(p);
    if (p->pipeline) return lk__pipeline_slots(&shape, lk__plan_own_stage(p));
    return lk__plan_leaves_together(p) ? (int)lk__range_count(lk__plan_own_leaves(p)) : 1;
}

static lk__schedule_run stage_run(const lk_plan *p, const lk__pipeline_schedule_run *r, bool held)
{
    static const lk__schedule_half halves[LK__PIPELINE_KINDS] = {LK__HALF_BOTH, LK__HALF_INPUTS, LK__HALF_WEIGHTS};
    bool                           last = r->micro_batch + 1 == count_parts(p) && !held;
    bool                           apart = p->parallel.pipeline_schedule == LK_PIPELINE_ZERO_BUBBLE;
    lk__schedule_run run = part_run(p, r->kind == LK__PIPELINE_FORWARD ? LK_FORWARD : LK_BACKWARD, r->micro_batch,
                                    LK__IF_WAITED | (last ? LK__IF_LAST : LK__IF_MORE));
    run.slot = r->slot;
    run.half = apart ? halves[r->kind] : LK__HALF_BOTH;
    return run;
}

/* Whether what run `at` receives may have its memory once run `before` is done: a forward's when the slot is free, a
 * backward's when its forward has ended. */
static bool frees_memory(const lk__pipeline_schedule_run *runs, int before, int at)
{
    return runs[before].slot == runs[at].slot;
}

/* Whether the run before has freed the memory: then it starts its receives first. At the beginning of a step those of
 * all slots start in the order in which they are sent. */
static bool starts_itself(const lk__pipeline_schedule_run *runs, int at)
{
    return at > 0 && frees_memory(runs, at - 1, at);
}

/* Starts the receives of runs that must wait for run `done` and for none behind it; done -1: for none at all. */
static void put_receives(const lk_plan *p, const lk__pipeline_schedule_run *runs, int count, int done, bool held,
                         lk__plan_schedule *s)
{
    for (int at = done + 1; at < count; at++) {
        int before = at - 1;
        if (runs[at].kind == LK__PIPELINE_WEIGHTS) continue;
        while (before >= 0 && !frees_memory(runs, before, at)) before--;
        if (before != done || starts_itself(runs, at)) continue;
        s->runs[s->count] = stage_run(p, &runs[at], held);
        s->runs[s->count++].receives = LK__RECEIVES_ALONE;
    }
}

static lk_status put_stages(const lk_plan *p, bool held, lk__plan_schedule *s)
{
    lk__pipeline_schedule_shape shape = shape_of(p);
    int                         count = lk__pipeline_count(&shape);
    size_t                      bytes = (size_t)count * sizeof(lk__pipeline_schedule_run);
    lk__pipeline_schedule_run  *runs = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!runs) return LK_ENOMEM;
    lk__pipeline_list(&shape, lk__plan_own_stage(p), runs);
    put_receives(p, runs, count, -1, held, s);
    for (int i = 0; i < count; i++) {
        lk__schedule_run run = stage_run(p, &runs[i], held);
        run.receives = starts_itself(runs, i) ? LK__RECEIVES_FIRST : LK__RECEIVES_STARTED;
        s->runs[s->count++] = run;
        put_receives(p, runs, count, i, held, s);
    }
    lk__free(p->context, LK_MEMORY_OTHER, runs, bytes);
    return LK_OK;
}

/* ---- all of them ---- */

static lk_status put_step(const lk_plan *p, bool held, lk__plan_schedule *s)
{
    int       parts = p->pipeline ? 0 : count_parts(p);
    lk_status status = p->pipeline ? put_stages(p, held, s) : LK_OK;
    for (int i = 0; i < parts; i++) {
        unsigned end = i + 1 == parts && !held ? LK__IF_LAST : LK__IF_MORE;
        s->runs[s->count++] = part_run(p, LK_FORWARD, i, LK__IF_WAITED | end);
        s->runs[s->count++] = part_run(p, LK_BACKWARD, i, LK__IF_WAITED | end);
    }
    s->runs[s->count++] = step_run(p, LK_SYNC, LK__IF_WAITED | (held ? LK__IF_HELD : 0));
    s->runs[s->count++] = step_run(p, LK_UPDATE, LK__IF_WAITED | LK__IF_LAST | (held ? LK__IF_SEPARATE : 0));
    return status;
}

static void put_queued(const lk_plan *p, lk__plan_schedule *s)
{
    int  parts = count_parts(p);
    bool apart = p->queued && p->stage && parts > 1; /* slices are those of the first set, whatever the last run made */
    for (int i = 0; i < parts; i++) {
        unsigned end = i + 1 == parts ? LK__IF_LAST : LK__IF_MORE;
        s->runs[s->count] = part_run(p, LK_FORWARD, i, LK__IF_QUEUED | end);
        s->runs[s->count++].through = i + 1 == parts && p->queued && !apart ? LK_SYNC : LK_BACKWARD;
    }
    if (apart) s->runs[s->count++] = step_run(p, LK_SYNC, LK__IF_QUEUED | LK__IF_LAST);
    s->runs[s->count++] = step_run(p, LK_UPDATE, LK__IF_QUEUED | LK__IF_LAST | (parts > 1 ? LK__IF_ADDS : 0));
}

lk__schedule_run lk__schedule_run_of(const lk__plan_list *list, unsigned flags)
{
    return (lk__schedule_run){.list = list, .section = LK_EVALUATE, .through = LK_EVALUATE, .slots = 1, .flags = flags};
}

/* Forward, backward and, in a pipeline, gradients of weights; and the starts of what the first two receive. */
static size_t most_runs(const lk_plan *p) { return (p->pipeline ? 5 : 2) * (size_t)count_parts(p); }

static size_t count_runs(const lk_plan *p, lk__schedule_kind kind)
{
    switch (kind) {
    case LK__SCHEDULE_STEP: /* fall through */
    case LK__SCHEDULE_HELD: return p->trains ? most_runs(p) + 2 : 0;
    case LK__SCHEDULE_QUEUED: return lk__plan_queues(p) ? (size_t)count_parts(p) + 2 : 0;
    case LK__SCHEDULE_WEIGHTS: return p->weights.order_count > 0; /* some are computed */
    default: return 1;
    }
}

lk_status lk__plan_schedule_make(const lk_plan *p, lk__schedule_kind kind, lk__plan_schedule *s)
{
    size_t    count = count_runs(p, kind);
    lk_status status = LK_OK;
    *s = (lk__plan_schedule){.runs = NULL};
    if (count == 0) return LK_OK;
    if (!(s->runs = lk__alloc(p->context, LK_MEMORY_OTHER, count * sizeof *s->runs))) return LK_ENOMEM;
    s->capacity = count;
    if (kind == LK__SCHEDULE_STEP || kind == LK__SCHEDULE_HELD)
        status = put_step(p, kind == LK__SCHEDULE_HELD, s);
    else if (kind == LK__SCHEDULE_QUEUED)
        put_queued(p, s);
    else if (kind == LK__SCHEDULE_WEIGHTS)
        s->runs[s->count++] = lk__schedule_run_of(&p->weights, LK__IF_WAITED);
    else
        s->runs[s->count++] =
            lk__schedule_run_of(&p->evaluate, kind == LK__SCHEDULE_GENERATION ? LK__IF_QUEUED : LK__IF_WAITED);
    if (status < 0) lk__plan_schedule_free(p->context, s);
    return status;
}

void lk__plan_schedule_free(lk_context *c, lk__plan_schedule *s)
{
    lk__free(c, LK_MEMORY_OTHER, s->runs, s->capacity * sizeof *s->runs);
    *s = (lk__plan_schedule){.runs = NULL};
}
