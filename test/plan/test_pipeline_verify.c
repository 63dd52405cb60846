/* test_pipeline_verify.c - the verifier accepts what every stage of a pipeline runs, with every schedule, and refuses
 * runs in a wrong slot or order, and receives and sends that are not waited for. Without a group.
 *
 * ctest: timeout 120 */
#include "check.h"
#include "plan/verify_schedule.h"

#include <lockstep/nn.h>
#include <lockstep/transformer.h>

#include <string.h>

enum { STAGES = 3, PARTS = 5, ROWS = 10 };

typedef struct planned {
    lk_context           *context;
    lk_mesh              *mesh;
    lk_graph             *graph;
    lk_plan              *plan;
    lk__plan_schedule     schedule;
    lk__plan_instructions instructions;
} planned;

static planned open_plan(lk_pipeline_schedule schedule, int stage)
{
    planned               p = {.context = NULL};
    lk_transformer_config gpt = LK_TRANSFORMER_CONFIG_INIT;
    lk_plan_config        config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config   sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_mesh_config        mesh = LK_MESH_CONFIG_INIT;
    gpt.vocabulary = 11;
    gpt.context = 6;
    gpt.layers = 3;
    gpt.heads = 2;
    gpt.width = 8;
    REQUIRE(lk_context_create(NULL, &p.context) == LK_OK);
    mesh.axes = "pipeline=3";
    mesh.rank = stage;
    REQUIRE(lk_mesh_create(p.context, &mesh, &p.mesh) == LK_OK, "%s", lk_context_error(p.context));
    REQUIRE(lk_graph_create(p.context, LK_F64, &p.graph) == LK_OK);
    config.mesh = p.mesh;
    config.parallel.micro_batches = PARTS;
    config.parallel.pipeline_schedule = schedule;
    config.optimizer = &sgd;
    int64_t               rows = lk_mesh_capacity(p.mesh, &config.parallel, ROWS);
    lk_tensor             tokens = lk_input(p.graph, "tokens", LK_I32, 2, ((int64_t[]){rows, 6}));
    lk_tensor             labels = lk_input(p.graph, "labels", LK_I32, 2, ((int64_t[]){rows, 6}));
    lk_transformer_result r = lk_transformer(tokens, &gpt);
    config.loss = lk_linear_cross_entropy(r.hidden, r.head, labels);
    REQUIRE(lk_plan_create(p.graph, &config, &p.plan) == LK_OK, "%s", lk_context_error(p.context));
    REQUIRE(lk__plan_schedule_make(p.plan, LK__SCHEDULE_STEP, &p.schedule) == LK_OK);
    REQUIRE(lk__plan_instruct(p.plan, &p.plan->train, (lk__plan_group){.overlaps = true}, &p.instructions) == LK_OK);
    return p;
}

static void close_plan(planned *p)
{
    lk__plan_instructions_free(p->context, &p->instructions);
    lk__plan_schedule_free(p->context, &p->schedule);
    lk_plan_free(p->plan);
    lk_graph_free(p->graph);
    lk_mesh_free(p->mesh);
    lk_context_free(p->context);
}

static lk_status verify(const planned *p, char text[1024])
{
    lk__plan_checked check = {.plan = p->plan,
                              .group = {.overlaps = true},
                              .list = &p->plan->train,
                              .instructions = &p->instructions,
                              .schedule = &p->schedule,
                              .name = "step"};
    return lk__schedule_verify(&check, text, 1024);
}

static void what_every_stage_runs_is_right(void)
{
    char text[1024];
    for (int k = 0; lk_pipeline_schedule_name((lk_pipeline_schedule)k); k++)
        for (int stage = 0; stage < STAGES; stage++) {
            planned p = open_plan((lk_pipeline_schedule)k, stage);
            CHECK(verify(&p, text) == LK_OK, "%s, stage %d: %s", lk_pipeline_schedule_name((lk_pipeline_schedule)k),
                  stage, text);
            CHECK(lk__plan_verify(p.plan, (lk__plan_group){.staged = true}) == LK_OK, "%s",
                  lk_context_error(p.context));
            close_plan(&p);
        }
}

/* ---- mistakes ---- */

typedef enum mistake {
    NONE,
    SLOT_OF_ANOTHER,    /* a forward takes the slot of a micro-batch whose backward is still to come */
    OTHER_SLOT,         /* a backward reads another slot than its forward wrote */
    BACKWARD_FIRST,     /* a backward precedes its forward */
    RECEIVES_MISSING,   /* what starts the receives of a run is for another micro-batch */
    RECEIVES_TWICE,     /* both a run of their own and the run itself start them */
    MICRO_BATCH_TWICE,  /* one takes the place of another */
    MICRO_BATCH_LOST,   /* the last one's backward is not run */
    WEIGHTS_FIRST,      /* gradients of weights precede the backward that they belong to */
    NO_WAIT_FOR_RECEIVE,
    NO_WAIT_FOR_SENDS,
    MISTAKES
} mistake;

static size_t find_run(const planned *p, lk_section section, int part, lk__schedule_half half,
                       lk__schedule_receives receives)
{
    size_t i = 0;
    while (i < p->schedule.count) {
        const lk__schedule_run *r = &p->schedule.runs[i];
        bool                    alone = (r->receives == LK__RECEIVES_ALONE) == (receives == LK__RECEIVES_ALONE);
        if (r->section == section && r->part == part && alone && (half == LK__HALF_BOTH || r->half == half)) break;
        i++;
    }
    REQUIRE(i < p->schedule.count);
    return i;
}

static void move_run(planned *p, size_t from, size_t to)
{
    lk__schedule_run moved = p->schedule.runs[from];
    for (size_t i = from; i > to; i--) p->schedule.runs[i] = p->schedule.runs[i - 1];
    p->schedule.runs[to] = moved;
}

static void skip_actions(planned *p, lk__plan_action action)
{
    for (size_t i = 0; i < p->instructions.count; i++)
        if (p->instructions.all[i].action == action) p->instructions.all[i].when = 1u << 30;
}

static void make_mistake(planned *p, mistake m)
{
    lk__schedule_run *runs = p->schedule.runs;
    size_t            forward = find_run(p, LK_FORWARD, 1, LK__HALF_BOTH, LK__RECEIVES_FIRST);
    size_t            backward = find_run(p, LK_BACKWARD, 1, LK__HALF_BOTH, LK__RECEIVES_FIRST);
    switch (m) {
    case SLOT_OF_ANOTHER: runs[forward].slot = runs[find_run(p, LK_FORWARD, 0, 0, LK__RECEIVES_FIRST)].slot; break;
    case OTHER_SLOT: runs[backward].slot = 1 - runs[backward].slot; break;
    case BACKWARD_FIRST: move_run(p, backward, forward); break;
    case RECEIVES_MISSING: runs[find_run(p, LK_FORWARD, 1, 0, LK__RECEIVES_ALONE)].part = PARTS; break;
    case RECEIVES_TWICE: runs[forward].receives = LK__RECEIVES_FIRST; break;
    case MICRO_BATCH_TWICE: runs[backward].part = runs[forward].part = 0; break;
    case MICRO_BATCH_LOST:
        move_run(p, p->schedule.count - 2, find_run(p, LK_BACKWARD, PARTS - 1, 0, LK__RECEIVES_FIRST));
        break;
    case WEIGHTS_FIRST: move_run(p, find_run(p, LK_BACKWARD, 1, LK__HALF_WEIGHTS, 0), backward); break;
    case NO_WAIT_FOR_RECEIVE: skip_actions(p, LK__DO_WAIT_RECEIVED); break;
    case NO_WAIT_FOR_SENDS: skip_actions(p, LK__DO_WAIT_SENT); break;
    default: break;
    }
}

/* Of the stage in the middle, which sends and receives in both directions. */
static void mistakes_are_refused(void)
{
    char text[1024];
    for (int m = 0; m < MISTAKES; m++) {
        planned p = open_plan(m == WEIGHTS_FIRST ? LK_PIPELINE_ZERO_BUBBLE : LK_PIPELINE_1F1B, 1);
        make_mistake(&p, (mistake)m);
        lk_status status = verify(&p, text);
        CHECK(status == (m == NONE ? LK_OK : LK_EMISMATCH), "mistake %d: %d %s", m, status, text);
        if (m != NONE) CHECK(strstr(text, "step: run "), "mistake %d: %s", m, text);
        if (getenv("LK_TEST_VERBOSE")) printf("%d: %s\n", m, text);
        close_plan(&p);
    }
}

/* ---- limits ---- */

static void too_many_micro_batches_are_refused(void)
{
    planned             p = open_plan(LK_PIPELINE_1F1B, 0);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan            *plan;
    config.mesh = p.mesh;
    config.optimizer = &sgd;
    config.parallel.micro_batches = 65537;
    CHECK(lk_plan_create(p.graph, &config, &plan) == LK_EUNSUPPORTED && !plan);
    CHECK(strstr(lk_context_error(p.context), "at most 65536"), "%s", lk_context_error(p.context));
    close_plan(&p);
}

int main(void)
{
    RUN(what_every_stage_runs_is_right);
    RUN(mistakes_are_refused);
    RUN(too_many_micro_batches_are_refused);
    return check_result();
}
