/* straggler.c - names the slowest stage, and estimates what moving a block would gain. */
#include "straggler.h"

#include <math.h>

enum { MOST_STAGES = 64 };

static int stages_of(const setup *s) { return s->mesh ? lk_mesh_extent(s->mesh, LK_AXIS_PIPELINE) : 1; }
static int stage_of(const setup *s, int rank) { return lk_mesh_coordinate(s->mesh, LK_AXIS_PIPELINE, rank); }

bool straggler_matters(const straggler *w) { return w->rank >= 0 && w->late >= 0.0005 && w->late > 0.1 * w->seconds; }

void straggler_name(const setup *s, const straggler *w, char *text, size_t size)
{
    if (stages_of(s) > 1)
        snprintf(text, size, "stage %d (rank %d)", stage_of(s, w->rank), w->rank);
    else
        snprintf(text, size, "rank %d", w->rank);
}

/* How many blocks a stage has; -1: unknown. */
static int count_blocks(const setup *s, int stage)
{
    lk_trainer_config config = s->config;
    lk_rates          rates = {.flops = 30e9, .memory = 10e9, .link = 1e9, .latency = 1e-4};
    lk_graph         *graph = NULL;
    lk_plan          *plan = NULL;
    lk_stage          stages[MOST_STAGES];
    size_t            memory[LK_MEMORY_COUNT];
    int               count = -1;
    config.comm = NULL;
    config.plan_world = lk_mesh_size(s->mesh);
    if (lk_trainer_plan(s->context, &config, &graph, &plan, memory) >= 0 &&
        lk_plan_stages(plan, &rates, stages, MOST_STAGES) > stage && stage < MOST_STAGES)
        count = stages[stage].last_block - stages[stage].first_block + 1;
    lk_plan_free(plan);
    lk_graph_free(graph);
    return count;
}

void straggler_note(const setup *s, const char *name, const straggler *w)
{
    char text[64], gain[160] = "";
    int  stages = stages_of(s), parts = s->config.accumulate > 1 ? s->config.accumulate : 1;
    if (stages == 1 || !straggler_matters(w)) return;
    int blocks = count_blocks(s, stage_of(s, w->rank));
    straggler_name(s, w, text, sizeof text);
    /* It works while micro-batches pass; then a neighbour has that block, and may be the slowest. */
    double block = w->seconds * parts / (parts + stages - 1) / fmax(blocks, 1), less = fmin(block, w->late - block);
    if (blocks >= 2 && less > 0)
        snprintf(gain, sizeof gain,
                 ": moving one of its %d blocks to a neighbouring stage (--stages) would save about %.1f ms", blocks,
                 1e3 * less);
    else if (blocks >= 2)
        snprintf(gain, sizeof gain, ": moving one of its %d blocks would make another stage the slowest", blocks);
    else if (blocks >= 0)
        snprintf(gain, sizeof gain, ": it has no block that could be moved");
    print_note(name, "%s was the slowest, by %.1f ms of a %.1f ms step%s", text, 1e3 * w->late, 1e3 * w->seconds, gain);
}
