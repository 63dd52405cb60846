/* test_pipeline_segments.c - what is numbered for the user in a model that is cut into stages, by the names of its
 * blocks; what crosses between stages; and what the plan advises about them. Without a group. ctest: timeout 120 */
#include "check.h"
#include "plan/pipeline.h"
#include "plan/stages.h"
#include "run/store.h"

#include <lockstep/nn.h>

#include <string.h>

enum { ROWS = 8, WIDTH = 16, MOST_TEXT = 1 << 16 };

typedef struct model {
    const char *blocks[6]; /* their names, each with a layer inside; NULL: no more */
    int         width[6];  /* of what is between its two products; 0: WIDTH */
    const char *mesh, *stages;
    int         micro_batches;
} model;

typedef struct planned {
    lk_context *context;
    lk_mesh    *mesh;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_status   status;
} planned;

static planned open_plan(const model *m)
{
    planned             p = {.context = NULL};
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_mesh_config      mesh = LK_MESH_CONFIG_INIT;
    REQUIRE(lk_context_create(NULL, &p.context) == LK_OK);
    mesh.axes = m->mesh;
    REQUIRE(lk_mesh_create(p.context, &mesh, &p.mesh) == LK_OK, "%s", lk_context_error(p.context));
    REQUIRE(lk_graph_create(p.context, LK_F64, &p.graph) == LK_OK);
    config.mesh = p.mesh;
    config.parallel.micro_batches = m->micro_batches;
    config.stages = m->stages;
    config.optimizer = &sgd;
    int64_t   rows = lk_mesh_capacity(p.mesh, &config.parallel, ROWS);
    lk_tensor x = lk_input(p.graph, "x", LK_F64, 2, ((int64_t[]){rows, WIDTH})), h = x;
    lk_tensor y = lk_input(p.graph, "y", LK_F64, 2, ((int64_t[]){rows, WIDTH}));
    for (int i = 0; i < 6 && m->blocks[i]; i++) {
        lk_block_begin(h, m->blocks[i]);
        h = lk_tanh(lk_linear(h, "conv1", m->width[i] ? m->width[i] : WIDTH));
        h = lk_linear(h, "conv2", WIDTH);
        lk_block_end(h);
    }
    config.loss = lk_mse(h, y);
    p.status = lk_plan_create(p.graph, &config, &p.plan);
    return p;
}

static void close_plan(planned *p)
{
    lk_plan_free(p->plan);
    lk_graph_free(p->graph);
    lk_mesh_free(p->mesh);
    lk_context_free(p->context);
}

/* The stage of a block's weights; -1: there are none. */
static int stage_of(const planned *p, const char *block)
{
    char name[64];
    snprintf(name, sizeof name, "%s.conv1.weight", block);
    int state = lk__find_state(p->graph, name);
    return state < 0 ? -1 : lk__plan_first_holder(p->plan, (size_t)state);
}

static void layers_are_numbered_by_the_end_of_their_names(void)
{
    const struct {
        model m;
        int   first, count; /* the block that is layer 0, and how many there are */
    } all[] = {
        {{.blocks = {"blocks.0", "blocks.1", "blocks.2", "blocks.3"}}, 0, 4},
        {{.blocks = {"block1", "block2", "block3", "block4"}}, 0, 4},
        {{.blocks = {"stem", "h0", "h1", "h2", "h3"}}, 1, 4},
        {{.blocks = {"0", "1", "2", "3"}}, 0, 4},
        {{.blocks = {"stem1", "layer1.0", "layer1.1", "layer2.0", "layer2.1"}}, 1, 4},
        {{.blocks = {"first", "second", "third", "fourth"}}, 0, 4},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        model    m = all[i].m;
        lk_rates rates = {.flops = 1e9, .memory = 1e9, .link = 1e9};
        lk_stage stages[2];
        m.mesh = "pipeline=2", m.stages = "0,1-3";
        planned p = open_plan(&m);
        REQUIRE(p.status == LK_OK, "%s: %s", m.blocks[0], lk_context_error(p.context));
        REQUIRE(lk_plan_stages(p.plan, &rates, stages, 2) == 2);
        CHECK(stages[0].first_block == 0 && stages[0].last_block == 0 && stages[1].first_block == 1 &&
                  stages[1].last_block == 3,
              "%s: %d to %d, %d to %d", m.blocks[0], stages[0].first_block, stages[0].last_block, stages[1].first_block,
              stages[1].last_block);
        for (int k = 0; k < all[i].first + all[i].count; k++)
            CHECK(stage_of(&p, m.blocks[k]) == (k > all[i].first), "%s is in stage %d", m.blocks[k],
                  stage_of(&p, m.blocks[k]));
        close_plan(&p);
        m.stages = "0,1-4"; /* it has no fifth one */
        p = open_plan(&m);
        CHECK(p.status == LK_EINVAL &&
                  strstr(lk_context_error(p.context), "block 4, but the model has only blocks 0 to 3"),
              "%s: %s", m.blocks[0], lk_context_error(p.context));
        close_plan(&p);
    }
}

/* Values 7 and 9 are made in segment 0; both are read in segments 1 and 2, in turn. */
static void a_value_is_sent_once_to_each_stage(void)
{
    lk__stages_crossing      crossings[] = {{7, 0, 1, 10}, {9, 0, 1, 100}, {7, 0, 2, 10}, {9, 0, 2, 100}};
    lk__plan_segment         segments[] = {{.stage = 0}, {.stage = 1}, {.stage = 1}};
    lk__stages_costs         costs = {.segments = 3, .crossings = crossings, .crossings_count = 4};
    struct lk__plan_pipeline pipeline = {.segments = segments, .segments_count = 3, .costs = &costs};
    lk_plan                  plan = {.pipeline = &pipeline};
    CHECK(lk__stages_sent(&plan, 0, 1) == 110, "%g", lk__stages_sent(&plan, 0, 1));
    segments[2].stage = 2;
    CHECK(lk__stages_sent(&plan, 0, 1) == 110 && lk__stages_sent(&plan, 0, 2) == 110);
    CHECK(lk__stages_sent(&plan, 1, 2) == 0 && lk__stages_sent(&plan, 1, 0) == 0);
}

/* ---- advice ---- */

typedef struct text {
    char   bytes[MOST_TEXT];
    size_t used;
} text;

static void add_text(void *user, const char *more, size_t bytes)
{
    text *t = user;
    REQUIRE(t->used + bytes < sizeof t->bytes);
    memcpy(t->bytes + t->used, more, bytes);
    t->bytes[t->used += bytes] = 0;
}

static void print_step(const planned *p, text *t)
{
    const lk_rates rates = {.flops = 1e9, .memory = 1e9, .link = 1e9};
    t->used = 0;
    (void)lk_plan_step(p->plan, &rates, add_text, t);
}

/* Of two heavy blocks without a number, one could be in the other stage, but --stages has no words for that. */
static void only_stages_that_differ_are_advised(void)
{
    static text t;
    model       m = {.blocks = {"h0", "h1", "h2", "h3"}, .mesh = "pipeline=2", .stages = "0,1-3", .micro_batches = 4};
    planned     p = open_plan(&m);
    REQUIRE(p.status == LK_OK, "%s", lk_context_error(p.context));
    print_step(&p, &t);
    CHECK(strstr(t.bytes, "(--stages 0-1,2-3)"), "%s", t.bytes);
    close_plan(&p);
    m = (model){.blocks = {"wide", "other", "h0", "h1"},
                .width = {512, 512},
                .mesh = "pipeline=2",
                .stages = "-,0-1",
                .micro_batches = 4};
    p = open_plan(&m);
    REQUIRE(p.status == LK_OK, "%s", lk_context_error(p.context));
    print_step(&p, &t);
    CHECK(strstr(t.bytes, "because the stages are unequal") &&
              !strstr(t.bytes, "is the slowest: with one of its blocks"),
          "%s", t.bytes);
    close_plan(&p);
}

static void more_micro_batches_than_samples_are_not_advised(void)
{
    static text t;
    const struct {
        int         micro_batches;
        const char *mesh, *advice;
    } all[] = {{1, "pipeline=2", "use --micro-batches 8 or more"},
               {1, "pipeline=3", "use --micro-batches 8 or more"},
               {2, "pipeline=3,data=4", "a larger --batch allows more micro-batches"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        model   m = {.blocks = {"h0", "h1", "h2", "h3"}, .mesh = all[i].mesh, .micro_batches = all[i].micro_batches};
        planned p = open_plan(&m);
        REQUIRE(p.status == LK_OK, "%s", lk_context_error(p.context));
        print_step(&p, &t);
        CHECK(strstr(t.bytes, all[i].advice), "%s: %s", all[i].mesh, t.bytes);
        close_plan(&p);
    }
}

int main(void)
{
    RUN(layers_are_numbered_by_the_end_of_their_names);
    RUN(a_value_is_sent_once_to_each_stage);
    RUN(only_stages_that_differ_are_advised);
    RUN(more_micro_batches_than_samples_are_not_advised);
    return check_result();
}
