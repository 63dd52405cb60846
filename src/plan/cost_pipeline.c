/* cost_pipeline.c - the estimate of a step in stages: what each stage has and takes, the timeline of its schedule, and
 * what unequal stages cost. A rank has the instructions of its own stage alone; the times of other stages are estimated
 * from the nodes of the whole model (stage_costs.c), scaled by the time of its own instructions. */
#include "plan/cost.h"
#include "plan/leaf_stack.h"
#include "plan/pipeline.h"
#include "plan/stages.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Stages, transfers between all pairs of them in both directions, and runs. */
typedef struct estimate {
    const lk_plan                  *plan;
    const lk_rates                 *rates;
    lk__pipeline_schedule_shape     shape;
    double                          scale; /* of the estimates of stages */
    lk__pipeline_schedule_stage    *stages;
    lk__pipeline_schedule_run      *runs;
    lk__pipeline_schedule_transfer *transfers;
    int                             transfers_count;
    size_t                          bytes;
} estimate;

static int runs_of(const lk_plan *p) { return p->pipeline->costs ? lk__plan_runs(p) : 0; }

/* Ranks along tensor have a part each of the values between blocks. */
static double sent_bytes(const lk_plan *p, int from, int to)
{
    return lk__stages_sent(p, from, to) / lk__mesh_extent(&p->mesh, LK__PLAN_PLACED_AXES);
}

/* By the segments' stages as they are; `scale` and the lists stay. */
static void set_times(estimate *e)
{
    const lk_plan *p = e->plan;
    bool           apart = e->shape.schedule == LK_PIPELINE_ZERO_BUBBLE;
    e->transfers_count = 0;
    for (int i = 0; i < e->shape.stages; i++) {
        double *seconds = e->stages[i].seconds;
        double  weights = lk__stages_seconds(p, i, LK__STAGES_WEIGHTS, e->rates);
        seconds[LK__PIPELINE_FORWARD] = e->scale * lk__stages_seconds(p, i, LK__STAGES_FORWARD, e->rates);
        seconds[LK__PIPELINE_BACKWARD] = e->scale * lk__stages_seconds(p, i, LK__STAGES_BACKWARD, e->rates);
        seconds[LK__PIPELINE_WEIGHTS] = 0;
        /* Nobody waits for the first stage: it computes all gradients at once. */
        seconds[apart && i > 0 ? LK__PIPELINE_WEIGHTS : LK__PIPELINE_BACKWARD] += e->scale * weights;
        for (int to = 0; to < e->shape.stages; to++) {
            double bytes = i == to ? 0 : sent_bytes(p, i, to);
            if (bytes > 0)
                e->transfers[e->transfers_count++] =
                    (lk__pipeline_schedule_transfer){i, to, to > i ? LK__PIPELINE_FORWARD : LK__PIPELINE_BACKWARD,
                                                     e->rates->latency + bytes / e->rates->link};
        }
    }
}

static bool open_estimate(estimate *e, const lk_plan *p, const lk_rates *rates)
{
    int    runs = runs_of(p), stages = lk__plan_stages(p);
    size_t pairs = (size_t)stages * (size_t)stages;
    *e = (estimate){.plan = p,
                    .rates = rates,
                    .shape = {stages, runs, p->parallel.pipeline_schedule, p->receives_early},
                    .scale = 1};
    size_t list = (size_t)lk__pipeline_count(&e->shape);
    e->bytes =
        (size_t)stages * sizeof *e->stages + pairs * sizeof *e->transfers + (size_t)stages * list * sizeof *e->runs;
    if (runs == 0 || !(e->stages = lk__alloc(p->context, LK_MEMORY_OTHER, e->bytes))) return false;
    e->transfers = (lk__pipeline_schedule_transfer *)(void *)(e->stages + stages);
    e->runs = (lk__pipeline_schedule_run *)(void *)(e->transfers + pairs);
    for (int i = 0; i < stages; i++) {
        lk__pipeline_schedule_run *own = e->runs + (size_t)i * list;
        lk__pipeline_list(&e->shape, i, own);
        e->stages[i] =
            (lk__pipeline_schedule_stage){.runs = own, .count = (int)list, .slots = lk__pipeline_slots(&e->shape, i)};
    }
    set_times(e);
    return true;
}

static void close_estimate(estimate *e) { lk__free(e->plan->context, LK_MEMORY_OTHER, e->stages, e->bytes); }

static double stage_seconds(const estimate *e, int stage)
{
    double sum = 0;
    for (int k = 0; k < LK__PIPELINE_KINDS; k++) sum += e->stages[stage].seconds[k];
    return sum;
}

/* own: measured or estimated seconds of a micro-batch on this rank; 0: as the others. */
static void set_scale(estimate *e, double own)
{
    double estimated = stage_seconds(e, lk__plan_own_stage(e->plan));
    if (own > 0 && estimated > 0) e->scale = own / estimated;
    set_times(e);
}

static lk_status run_lists(const estimate *e, lk__pipeline_schedule_event *events, double *seconds)
{
    lk__pipeline_schedule_job job = {e->stages, e->shape.stages, e->shape.micro_batches, e->transfers,
                                     e->transfers_count};
    return lk__pipeline_simulate(e->plan->context, &job, events, seconds);
}

static double simulate(const estimate *e, lk__pipeline_schedule_event *events)
{
    double seconds = 0;
    (void)run_lists(e, events, &seconds);
    return seconds;
}

lk_status lk__plan_check_schedule(const lk_plan *p)
{
    lk__device_rates typical = p->device->backend->kernels.rates;
    lk_rates         rates = {.flops = typical.flops, .memory = typical.memory, .link = typical.memory};
    estimate         e;
    double           seconds;
    if (runs_of(p) == 0) return LK_OK; /* stages like those of another plan, which was checked */
    if (!open_estimate(&e, p, &rates)) return LK_ENOMEM;
    e.stages[lk__plan_own_stage(p)].slots = p->slots;
    lk_status status = run_lists(&e, NULL, &seconds);
    close_estimate(&e);
    return status;
}

/* ---- what is in a stage ---- */

/* The layers of a stage; of a model without layers its segments. False: none. */
static bool find_blocks(const lk_plan *p, int stage, int *first, int *last)
{
    const struct lk__plan_pipeline *x = p->pipeline;
    int                             layers = 0, number = 0;
    *first = 0, *last = -1;
    for (size_t i = 0; i < x->segments_count; i++) layers += x->segments[i].layer;
    for (size_t i = 0; i < x->segments_count; i++) {
        if (layers && !x->segments[i].layer) continue;
        if (x->segments[i].stage == stage && *last < 0) *first = number;
        if (x->segments[i].stage == stage) *last = number;
        number++;
    }
    return *last >= 0;
}

static bool has_layers(const lk_plan *p)
{
    for (size_t i = 0; i < p->pipeline->segments_count; i++)
        if (p->pipeline->segments[i].layer) return true;
    return false;
}

/* "blocks 4 to 7 and what follows them" */
static void describe_stage(const lk_plan *p, int stage, char *text, size_t size)
{
    const struct lk__plan_pipeline *x = p->pipeline;
    bool                            outside = false, layers = has_layers(p);
    int                             first, last;
    const char                     *what = layers ? "block" : "part";
    for (size_t i = 0; i < x->segments_count; i++) outside |= x->segments[i].stage == stage && !x->segments[i].layer;
    if (!find_blocks(p, stage, &first, &last)) {
        snprintf(text, size, "what %s all blocks", stage == 0 ? "precedes" : "follows");
        return;
    }
    size_t used = (size_t)snprintf(text, size, first == last ? "%s %d" : "%ss %d to %d", what, first, last);
    if (outside && layers && used < size)
        snprintf(text + used, size - used, " and what %s %s",
                 stage == 0                        ? "precedes"
                 : stage + 1 == lk__plan_stages(p) ? "follows"
                                                   : "is between",
                 first == last ? "it" : "them");
}

/* As --stages takes them. */
static void list_stages(const lk_plan *p, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < lk__plan_stages(p) && used < size; i++) {
        int first, last;
        if (!find_blocks(p, i, &first, &last))
            used += (size_t)snprintf(text + used, size - used, "%s-", i ? "," : "");
        else
            used += (size_t)snprintf(text + used, size - used, first == last ? "%s%d" : "%s%d-%d", i ? "," : "", first,
                                     last);
    }
}

/* ---- unequal stages ---- */

static int slowest_stage(const estimate *e)
{
    int slowest = 0;
    for (int i = 1; i < e->shape.stages; i++)
        if (stage_seconds(e, i) > stage_seconds(e, slowest)) slowest = i;
    return slowest;
}

/* What a step would take if all stages took as long. */
static double simulate_equal(estimate *e)
{
    double mean = 0;
    for (int i = 0; i < e->shape.stages; i++) mean += stage_seconds(e, i) / e->shape.stages;
    for (int i = 0; i < e->shape.stages; i++) {
        double own = stage_seconds(e, i);
        for (int k = 0; k < LK__PIPELINE_KINDS && own > 0; k++) e->stages[i].seconds[k] *= mean / own;
    }
    double seconds = simulate(e, NULL);
    set_times(e);
    return seconds;
}

/* Moves the segment at an end of a stage to the next stage (by 1) or the one before (by -1); returns which one, -1:
 * that is the stage's only one, or there is no such stage. */
static int move_segment(const lk_plan *p, int stage, int by)
{
    lk__plan_segment *segments = p->pipeline->segments;
    int               count = 0, moved = -1;
    if (stage + by < 0 || stage + by >= lk__plan_stages(p)) return -1;
    for (size_t i = 0; i < p->pipeline->segments_count; i++) {
        if (segments[i].stage != stage) continue;
        count++;
        if (by > 0 || moved < 0) moved = (int)i;
    }
    if (count < 2) return -1;
    segments[moved].stage += by;
    return moved;
}

/* What moving a block from the slowest stage to one of its neighbours would gain, if that is worth a line. */
static void print_move(estimate *e, double seconds, const lk__plan_cost_output *o)
{
    const lk_plan *p = e->plan;
    int            slowest = slowest_stage(e), to = 0;
    double         best = seconds;
    char           present[512], stages[512] = "", moved_stages[512];
    list_stages(p, present, sizeof present);
    for (int by = -1; by <= 1; by += 2) {
        int moved = move_segment(p, slowest, by);
        if (moved < 0) continue;
        set_times(e);
        double with = simulate(e, NULL);
        list_stages(p, moved_stages, sizeof moved_stages);
        p->pipeline->segments[moved].stage = slowest;
        if (with >= best || strcmp(moved_stages, present) == 0) continue; /* what has no number cannot be moved */
        best = with;
        to = slowest + by;
        snprintf(stages, sizeof stages, "%s", moved_stages);
    }
    set_times(e);
    if (best < 0.97 * seconds)
        lk__cost_print(o,
                       "  stage %d is the slowest: with one of its blocks moved to stage %d (--stages %s), a step "
                       "would take %.3f ms less\n",
                       slowest, to, stages, 1e3 * (seconds - best));
}

static void print_stage(const estimate *e, int stage, const lk__plan_cost_output *o)
{
    const double *s = e->stages[stage].seconds;
    char          text[128];
    describe_stage(e->plan, stage, text, sizeof text);
    lk__cost_print(o, "  stage %d: %s; per micro-batch %.3f ms forward, %.3f ms backward", stage, text,
                   1e3 * s[LK__PIPELINE_FORWARD], 1e3 * s[LK__PIPELINE_BACKWARD]);
    if (s[LK__PIPELINE_WEIGHTS] > 0) lk__cost_print(o, ", %.3f ms weight gradients", 1e3 * s[LK__PIPELINE_WEIGHTS]);
    lk__cost_print(o, "; activations of %d micro-batch%s", e->stages[stage].slots,
                   e->stages[stage].slots == 1 ? "" : "es");
    double bytes = stage + 1 < e->shape.stages ? sent_bytes(e->plan, stage, stage + 1) : 0;
    if (bytes > 0) lk__cost_print(o, "; sends %.0f bytes of each to stage %d", bytes, stage + 1);
    lk__cost_print(o, "\n");
}

/* Fewer micro-batches than stages: more of them, as far as this rank's samples go. */
static void print_few_runs(const estimate *e, const lk__plan_cost_output *o)
{
    int     runs = e->shape.micro_batches, stages = e->shape.stages;
    int64_t most = (lk_plan_capacity(e->plan) - 1) * runs + 1; /* at least so many samples of a batch */
    char    advice[64] = "a larger --batch allows more micro-batches";
    if (most > runs)
        snprintf(advice, sizeof advice, "use --micro-batches %d or more", most < 4 * stages ? (int)most : 4 * stages);
    lk__cost_print(o, "  %d micro-batch%s for %d stages: some stages always wait; %s\n", runs, runs == 1 ? "" : "es",
                   stages, advice);
}

double lk__cost_pipeline(const lk_plan *p, const lk_rates *r, double own, const lk__plan_cost_output *o)
{
    estimate e;
    if (!open_estimate(&e, p, r)) return own * runs_of(p);
    set_scale(&e, own);
    int    runs = e.shape.micro_batches;
    double seconds = simulate(&e, NULL), equal = simulate_equal(&e), work = 0;
    for (int i = 0; i < e.shape.stages; i++) work += runs * stage_seconds(&e, i) / e.shape.stages;
    lk__cost_print(o, "  pipeline of %d stages, schedule %s, %d micro-batch%s\n", e.shape.stages,
                   lk_pipeline_schedule_name(e.shape.schedule), runs, runs == 1 ? "" : "es");
    for (int i = 0; i < e.shape.stages; i++) print_stage(&e, i, o);
    lk__cost_print(
        o,
        "  all micro-batches pass through the stages in %.3f ms: %.3f ms of work, %.3f ms (%.1f %%) in which a stage "
        "waits for the first and last micro-batches, %.3f ms (%.1f %%) because the stages are unequal\n",
        1e3 * seconds, 1e3 * work, 1e3 * (equal - work), 100 * (equal - work) / seconds, 1e3 * fmax(0, seconds - equal),
        100 * fmax(0, seconds - equal) / seconds);
    print_move(&e, seconds, o);
    if (runs < e.shape.stages) print_few_runs(&e, o);
    close_estimate(&e);
    return seconds;
}

/* ---- for callers ---- */

int lk_plan_stages(const lk_plan *p, const lk_rates *r, lk_stage *stages, int most)
{
    estimate e;
    int      count = p->pipeline ? lk__plan_stages(p) : 0;
    if (count == 0 || !open_estimate(&e, p, r)) return 0;
    set_scale(&e, lk__cost_section(p, r, 0, p->train.end[LK_BACKWARD]));
    for (int i = 0; i < count && i < most; i++) {
        const double *s = e.stages[i].seconds;
        stages[i] = (lk_stage){.slots = e.stages[i].slots,
                               .forward = s[LK__PIPELINE_FORWARD],
                               .backward = s[LK__PIPELINE_BACKWARD],
                               .weights = s[LK__PIPELINE_WEIGHTS]};
        (void)find_blocks(p, i, &stages[i].first_block, &stages[i].last_block);
    }
    close_estimate(&e);
    return count;
}

size_t lk_plan_timeline(const lk_plan *p, const lk_rates *r, lk_stage_run *runs, size_t most)
{
    estimate e;
    if (!p->pipeline || !open_estimate(&e, p, r)) return 0;
    size_t                       count = (size_t)e.shape.stages * (size_t)lk__pipeline_count(&e.shape);
    lk__pipeline_schedule_event *events = lk__alloc(p->context, LK_MEMORY_OTHER, count * sizeof *events);
    set_scale(&e, lk__cost_section(p, r, 0, p->train.end[LK_BACKWARD]));
    if (events) (void)simulate(&e, events);
    for (size_t i = 0; i < count && i < most && events; i++)
        runs[i] = (lk_stage_run){.stage = events[i].stage,
                                 .micro_batch = events[i].run.micro_batch,
                                 .kind = lk__pipeline_kind_name(events[i].run.kind),
                                 .begin = events[i].begin,
                                 .end = events[i].end};
    lk__free(p->context, LK_MEMORY_OTHER, events, count * sizeof *events);
    close_estimate(&e);
    return events ? count : 0;
}
