/* schedule.c - makes schedules. */
#include "plan/schedule.h"

#include "plan/leaf_stack.h"

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
    bool alike = p->parallel.leaves && (p->batch_leaves || lk__plan_runs_alike(p));
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
                             .slots = p->slots,
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

static void put_step(const lk_plan *p, bool held, lk__plan_schedule *s)
{
    int parts = count_parts(p);
    for (int i = 0; i < parts; i++) {
        unsigned end = i + 1 == parts && !held ? LK__IF_LAST : LK__IF_MORE;
        s->runs[s->count++] = part_run(p, LK_FORWARD, i, LK__IF_WAITED | end);
        s->runs[s->count++] = part_run(p, LK_BACKWARD, i, LK__IF_WAITED | end);
    }
    s->runs[s->count++] = step_run(p, LK_SYNC, LK__IF_WAITED | (held ? LK__IF_HELD : 0));
    s->runs[s->count++] = step_run(p, LK_UPDATE, LK__IF_WAITED | LK__IF_LAST | (held ? LK__IF_SEPARATE : 0));
}

static void put_queued(const lk_plan *p, lk__plan_schedule *s)
{
    int parts = count_parts(p);
    for (int i = 0; i < parts; i++) {
        unsigned end = i + 1 == parts ? LK__IF_LAST : LK__IF_MORE;
        s->runs[s->count] = part_run(p, LK_FORWARD, i, LK__IF_QUEUED | end);
        s->runs[s->count++].through = LK_BACKWARD;
    }
    s->runs[s->count++] = step_run(p, LK_UPDATE, LK__IF_QUEUED | LK__IF_LAST | (parts > 1 ? LK__IF_ADDS : 0));
}

lk__schedule_run lk__schedule_run_of(const lk__plan_list *list, unsigned flags)
{
    return (lk__schedule_run){.list = list, .section = LK_EVALUATE, .through = LK_EVALUATE, .slots = 1, .flags = flags};
}

static size_t count_runs(const lk_plan *p, lk__schedule_kind kind)
{
    switch (kind) {
    case LK__SCHEDULE_STEP: /* fall through */
    case LK__SCHEDULE_HELD: return p->trains ? 2 * (size_t)count_parts(p) + 2 : 0;
    case LK__SCHEDULE_QUEUED: return lk__plan_queues(p) ? (size_t)count_parts(p) + 1 : 0;
    case LK__SCHEDULE_WEIGHTS: return p->weights.order_count > 0; /* some are computed */
    default: return 1;
    }
}

lk_status lk__plan_schedule_make(const lk_plan *p, lk__schedule_kind kind, lk__plan_schedule *s)
{
    size_t count = count_runs(p, kind);
    *s = (lk__plan_schedule){.runs = NULL};
    if (count == 0) return LK_OK;
    if (!(s->runs = lk__alloc(p->context, LK_MEMORY_OTHER, count * sizeof *s->runs))) return LK_ENOMEM;
    if (kind == LK__SCHEDULE_STEP || kind == LK__SCHEDULE_HELD)
        put_step(p, kind == LK__SCHEDULE_HELD, s);
    else if (kind == LK__SCHEDULE_QUEUED)
        put_queued(p, s);
    else if (kind == LK__SCHEDULE_WEIGHTS)
        s->runs[s->count++] = lk__schedule_run_of(&p->weights, LK__IF_WAITED);
    else
        s->runs[s->count++] =
            lk__schedule_run_of(&p->evaluate, kind == LK__SCHEDULE_GENERATION ? LK__IF_QUEUED : LK__IF_WAITED);
    return LK_OK;
}

void lk__plan_schedule_free(lk_context *c, lk__plan_schedule *s)
{
    lk__free(c, LK_MEMORY_OTHER, s->runs, s->count * sizeof *s->runs);
    *s = (lk__plan_schedule){.runs = NULL};
}
