/* test_pipeline_schedule.c - the lists of the schedules of a pipeline: their order, their slots, their time by the
 * formulas of the papers; and broken ones, each of which the simulation refuses with the runs that are to blame. */
#include "plan/pipeline_schedule.h"
#include "support.h"

#include <math.h>

enum { MOST_STAGES = 8, MOST_RUNS = 3 * 16 };

typedef lk__pipeline_schedule_run run;

typedef struct lists {
    run                            runs[MOST_STAGES][MOST_RUNS];
    lk__pipeline_schedule_stage    stages[MOST_STAGES];
    lk__pipeline_schedule_transfer transfers[2 * MOST_STAGES];
    lk__pipeline_schedule_job      job;
} lists;

/* Each stage sends to its neighbours. */
static void make_lists(lists *l, lk__pipeline_schedule_shape shape, double forward, double backward, double weights)
{
    bool apart = shape.schedule == LK_PIPELINE_ZERO_BUBBLE;
    *l = (lists){.job = {l->stages, shape.stages, shape.micro_batches, l->transfers, 0}};
    for (int i = 0; i < shape.stages; i++) {
        lk__pipeline_list(&shape, i, l->runs[i]);
        l->stages[i] = (lk__pipeline_schedule_stage){l->runs[i],
                                                     lk__pipeline_count(&shape),
                                                     lk__pipeline_slots(&shape, i),
                                                     {forward, apart ? backward : backward + weights, weights}};
        if (i == 0) continue;
        l->transfers[l->job.transfers_count++] = (lk__pipeline_schedule_transfer){i - 1, i, LK__PIPELINE_FORWARD, 0};
        l->transfers[l->job.transfers_count++] = (lk__pipeline_schedule_transfer){i, i - 1, LK__PIPELINE_BACKWARD, 0};
    }
}

static lk_context *context;

static double simulate(const lists *l)
{
    double seconds = -1;
    CHECK(lk__pipeline_simulate(context, &l->job, NULL, &seconds) == LK_OK, "%s", lk_context_error(context));
    return seconds;
}

static void every_schedule_of_every_size_can_run(void)
{
    for (int schedule = 0; schedule < LK_PIPELINE_SCHEDULE_COUNT; schedule++)
        for (int stages = 1; stages <= MOST_STAGES; stages++)
            for (int parts = 1; parts <= 16; parts += parts < 5 ? 1 : 3) {
                lists l;
                bool  early = (stages + parts) % 2;
                make_lists(&l, (lk__pipeline_schedule_shape){stages, parts, (lk_pipeline_schedule)schedule, early}, 1,
                           1, 1);
                simulate(&l);
                for (int i = 0; i < stages; i++) { /* backward in the order of micro-batches */
                    int next = 0;
                    for (int k = 0; k < l.stages[i].count; k++)
                        if (l.runs[i][k].kind == LK__PIPELINE_BACKWARD) CHECK(l.runs[i][k].micro_batch == next++);
                    CHECK(next == parts);
                }
            }
}

/* Of stages that take as long: (M + S - 1) (f + b + w) for gpipe and 1f1b; ZB-H1: M (f + b + w) + (S - 1) (f + b - w)
 * ("Zero Bubble Pipeline Parallelism", table 2), where M is at least 2 S. */
static void steps_take_the_time_of_the_papers(void)
{
    const double f = 1, b = 1, w = 1;
    for (int stages = 1; stages <= 4; stages++)
        for (int parts = 2 * stages; parts <= 16; parts += 2) {
            lists l;
            for (int schedule = 0; schedule < LK_PIPELINE_SCHEDULE_COUNT; schedule++) {
                bool   zero = schedule == LK_PIPELINE_ZERO_BUBBLE;
                double expected =
                    zero ? parts * (f + b + w) + (stages - 1) * (f + b - w) : (parts + stages - 1) * (f + b + w);
                make_lists(&l, (lk__pipeline_schedule_shape){stages, parts, (lk_pipeline_schedule)schedule, false}, f,
                           b, w);
                double seconds = simulate(&l);
                CHECK(fabs(seconds - expected) < 1e-9, "%s, %d stages, %d micro-batches: %g, expected %g",
                      lk_pipeline_schedule_name((lk_pipeline_schedule)schedule), stages, parts, seconds, expected);
            }
        }
}

/* What the simulation looks at is in proportion to the runs: these would otherwise outlast the test's limit. */
static void as_many_micro_batches_as_are_supported_can_run(void)
{
    for (int schedule = 0; lk_pipeline_schedule_name((lk_pipeline_schedule)schedule); schedule++) {
        lk__pipeline_schedule_shape    shape = {2, LK__PIPELINE_PARTS, (lk_pipeline_schedule)schedule, false};
        lk__pipeline_schedule_stage    stages[2];
        lk__pipeline_schedule_transfer transfers[] = {{0, 1, LK__PIPELINE_FORWARD, 0},
                                                      {1, 0, LK__PIPELINE_BACKWARD, 0}};
        lk__pipeline_schedule_job      job = {stages, 2, shape.micro_batches, transfers, 2};
        double                         seconds, least = 3.0 * LK__PIPELINE_PARTS;
        run                           *runs[2];
        for (int i = 0; i < 2; i++) {
            REQUIRE((runs[i] = malloc((size_t)lk__pipeline_count(&shape) * sizeof *runs[i])) != NULL);
            lk__pipeline_list(&shape, i, runs[i]);
            stages[i] = (lk__pipeline_schedule_stage){
                runs[i], lk__pipeline_count(&shape), lk__pipeline_slots(&shape, i), {1, 1, 1}};
            if (lk__pipeline_count(&shape) == 2 * LK__PIPELINE_PARTS) stages[i].seconds[LK__PIPELINE_BACKWARD] = 2;
        }
        CHECK(lk__pipeline_simulate(context, &job, NULL, &seconds) == LK_OK, "%s", lk_context_error(context));
        CHECK(seconds >= least && seconds <= least + 3, "%s: %g", lk_pipeline_schedule_name(shape.schedule), seconds);
        for (int i = 0; i < 2; i++) free(runs[i]);
    }
}

static void events_are_where_the_runs_are(void)
{
    lists                       l;
    lk__pipeline_schedule_event events[2 * MOST_RUNS];
    double                      seconds;
    make_lists(&l, (lk__pipeline_schedule_shape){2, 2, LK_PIPELINE_1F1B, false}, 1, 1, 1);
    l.transfers[0].seconds = 0.5;
    CHECK(lk__pipeline_simulate(context, &l.job, events, &seconds) == LK_OK);
    CHECK(events[0].begin == 0 && events[0].end == 1 && events[0].run.kind == LK__PIPELINE_FORWARD);
    CHECK(events[4].stage == 1 && events[4].begin == 1.5); /* F0 of stage 1, behind the transfer */
    CHECK(events[5].run.kind == LK__PIPELINE_BACKWARD && events[5].begin == 2.5 && events[5].end == 4.5);
    CHECK(events[6].begin == 5); /* F1: it is received once its slot is free */
    CHECK(seconds == 10);
}

/* With 1f1b the last of two stages waits for each message: it has one slot. With one more, and the first stage one
 * forward more ahead, it waits for the first message alone. */
static void one_forward_more_hides_what_is_received(void)
{
    const double f = 1, b = 2, t = 0.25;
    for (int parts = 2; parts <= 16; parts++)
        for (int early = 0; early < 2; early++) {
            lists                       l;
            lk__pipeline_schedule_shape shape = {2, parts, LK_PIPELINE_1F1B, early};
            make_lists(&l, shape, f, b, 0);
            for (int i = 0; i < l.job.transfers_count; i++) l.transfers[i].seconds = t;
            double expected = f + t + parts * (f + b) + (early ? 0 : parts - 1) * t + t + b;
            CHECK(lk__pipeline_slots(&shape, 0) == (parts > 2 ? 2 + early : 2) &&
                  lk__pipeline_slots(&shape, 1) == 1 + early);
            CHECK(fabs(simulate(&l) - expected) < 1e-9, "%d micro-batches: %g, expected %g", parts, simulate(&l),
                  expected);
        }
}

/* ---- broken ones ---- */

static void set(lists *l, int stage, int place, lk__pipeline_schedule_kind kind, int micro_batch, int slot)
{
    l->runs[stage][place] = (run){kind, micro_batch, slot};
}

static void swap(lists *l, int stage, int a, int b)
{
    run kept = l->runs[stage][a];
    l->runs[stage][a] = l->runs[stage][b];
    l->runs[stage][b] = kept;
}

static void refuse(const lists *l, const char *error)
{
    double seconds;
    CHECK(lk__pipeline_simulate(context, &l->job, NULL, &seconds) == LK_EINVAL, "not refused: %s", error);
    CHECK(strstr(lk_context_error(context), error), "'%s' is not in: %s", error, lk_context_error(context));
}

static void broken_schedules_are_refused(void)
{
    const lk__pipeline_schedule_shape shape = {2, 3, LK_PIPELINE_1F1B, false},
                                      zero = {2, 3, LK_PIPELINE_ZERO_BUBBLE, false};
    lists                            l;
    const lk__pipeline_schedule_kind F = LK__PIPELINE_FORWARD, B = LK__PIPELINE_BACKWARD;
#define BROKEN(of, change, error) \
    make_lists(&l, of, 1, 1, 1);  \
    change;                       \
    refuse(&l, error)
    /* stage 0: F0 F1 B0 F2 B1 B2; stage 1: F0 B0 F1 B1 F2 B2 */
    BROKEN(shape, swap(&l, 0, 1, 2); swap(&l, 1, 1, 2); l.stages[1].slots = 2; set(&l, 1, 1, F, 1, 1);
           set(&l, 1, 3, B, 1, 1),
           "would deadlock: the forward of micro-batch 1 of stage 1 waits for the forward of micro-batch 1 of "
           "stage 0, which comes after the backward of micro-batch 0 of stage 0, which waits for the backward of "
           "micro-batch 0 of stage 1");
    BROKEN(shape, set(&l, 0, 3, F, 2, 1),
           "the forward of micro-batch 2 of stage 0 overwrites slot 1, which the backward "
           "of micro-batch 1 of stage 0 still reads");
    BROKEN(shape, l.stages[0].slots = 1,
           "the forward of micro-batch 1 of stage 0 uses slot 1, but the stage has only 1");
    BROKEN(shape, l.stages[1].count = 5, "the pipeline's schedule lacks the backward of micro-batch 2 of stage 1");
    BROKEN(shape, set(&l, 0, 3, F, 1, 0), "the pipeline's schedule has the forward of micro-batch 1 of stage 0 twice");
    BROKEN(shape, set(&l, 0, 3, F, 3, 0),
           "the pipeline's schedule has a forward of micro-batch 3 of stage 0, but there "
           "are only 3 micro-batches");
    BROKEN(shape, swap(&l, 1, 0, 1), "the backward of micro-batch 0 of stage 1 is before its forward");
    BROKEN(shape, set(&l, 0, 2, B, 0, 1),
           "the backward of micro-batch 0 of stage 0 uses slot 1, which holds micro-batch "
           "1");
    BROKEN(shape, set(&l, 0, 4, B, 2, 0);
           set(&l, 0, 5, B, 1, 1),
           "the backward of micro-batch 1 of stage 1 and the backward of micro-batch 2 of stage 1 are in a different "
           "order in stage 0, which receives from them");
    /* zero-bubble, stage 1: F0 B0 F1 B1 W0 F2 B2 W1 W2 */
    BROKEN(zero, swap(&l, 1, 3, 7), "the weight gradient of micro-batch 1 of stage 1 is before its backward");
    BROKEN(zero, swap(&l, 1, 4, 5),
           "the forward of micro-batch 2 of stage 1 overwrites slot 0, which the weight gradient of "
           "micro-batch 0 of stage 1 still reads");
    /* A message back to an earlier stage within forward: nobody can begin. */
    BROKEN(shape, l.transfers[1] = ((lk__pipeline_schedule_transfer){1, 0, F, 0}),
           "would deadlock: the forward of micro-batch 0 of stage");
}

int main(void)
{
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    RUN(every_schedule_of_every_size_can_run);
    RUN(steps_take_the_time_of_the_papers);
    RUN(as_many_micro_batches_as_are_supported_can_run);
    RUN(events_are_where_the_runs_are);
    RUN(one_forward_more_hides_what_is_received);
    RUN(broken_schedules_are_refused);
    lk_context_free(context);
    return check_result();
}
