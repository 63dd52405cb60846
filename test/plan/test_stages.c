/* test_stages.c - how segments of a model become stages: the least slowest stage, then the fewest bytes of the largest;
 * the user's ranges of blocks, and mistakes in them. */
#include "plan/stages.h"
#include "support.h"

#include <string.h>

enum { MOST = 16 };

static lk_context *open_context(void)
{
    lk_context *c = NULL;
    REQUIRE(lk_context_create(NULL, &c) == LK_OK);
    return c;
}

/* The slowest stage of a cut, and the bytes of its largest. */
typedef struct outcome {
    double seconds, bytes;
} outcome;

static outcome weigh(const lk__stages_segment *segments, int count, const lk__stages_request *cut, const int *first)
{
    outcome all = {0, 0};
    for (int stage = 0; stage < cut->shape.stages; stage++) {
        outcome one = {0, 0};
        int     end = stage + 1 < cut->shape.stages ? first[stage + 1] : count;
        for (int i = first[stage]; i < end; i++) {
            one.seconds += segments[i].seconds;
            one.bytes += segments[i].state + lk__pipeline_slots(&cut->shape, stage) * segments[i].activations;
        }
        if (one.seconds > all.seconds) all.seconds = one.seconds;
        if (one.bytes > all.bytes) all.bytes = one.bytes;
    }
    return all;
}

/* All cuts, one after the other: the least seconds, and with `limit` the least bytes of those that keep it. */
static void try_cuts(const lk__stages_segment *segments, int count, const lk__stages_request *cut, int *first,
                     int stage, double limit, double *least)
{
    if (stage == cut->shape.stages) {
        outcome o = weigh(segments, count, cut, first);
        double  value = limit > 0 ? o.bytes : o.seconds;
        if ((limit <= 0 || o.seconds <= limit) && (*least < 0 || value < *least)) *least = value;
        return;
    }
    int begin = stage ? first[stage - 1] + 1 : 0, end = stage ? count : 1;
    for (int i = begin; i < end; i++) {
        first[stage] = i;
        try_cuts(segments, count, cut, first, stage + 1, limit, least);
    }
}

static void stages_take_the_least_time_and_then_the_fewest_bytes(void)
{
    lk_context *c = open_context();
    uint64_t    random = 7;
    for (int round = 0; round < 200; round++) {
        lk__stages_segment segments[MOST];
        lk__stages_request cut = {.shape = {1 + round % 5, 1 + round % 7, round % 3}};
        int                first[MOST], tried[MOST], count = cut.shape.stages + round % 6;
        for (int i = 0; i < count; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            segments[i] = (lk__stages_segment){.seconds = (double)(random >> 60) + (i == count - 1 ? 20 : 1),
                                               .state = (double)(random >> 40 & 1023),
                                               .activations = (double)(random >> 30 & 255),
                                               .block = i};
        }
        CHECK(LK_OK == lk__stages_cut(c, segments, count, &cut, first));
        for (int i = 0; i < cut.shape.stages; i++) CHECK(i == 0 ? first[i] == 0 : first[i] > first[i - 1]);
        double least = -1, bytes = -1;
        try_cuts(segments, count, &cut, tried, 0, 0, &least);
        try_cuts(segments, count, &cut, tried, 0, least * (1 + 1.0 / 64), &bytes);
        outcome o = weigh(segments, count, &cut, first);
        CHECK(o.seconds <= least * (1 + 1.0 / 64));
        CHECK(o.bytes == bytes);
    }
    lk_context_free(c);
}

static void slots_are_those_of_the_schedule(void)
{
    lk__stages_request cut = {.shape = {4, 8, LK_PIPELINE_1F1B}};
    CHECK(lk__pipeline_slots(&cut.shape, 0) == 4 && lk__pipeline_slots(&cut.shape, 3) == 1);
    cut.shape.micro_batches = 2;
    CHECK(lk__pipeline_slots(&cut.shape, 0) == 2 && lk__pipeline_slots(&cut.shape, 2) == 2 &&
          lk__pipeline_slots(&cut.shape, 3) == 1);
    cut.shape.schedule = LK_PIPELINE_GPIPE;
    CHECK(lk__pipeline_slots(&cut.shape, 3) == 2);
    cut.shape = (lk__pipeline_schedule_shape){4, 8, LK_PIPELINE_ZERO_BUBBLE, false};
    CHECK(lk__pipeline_slots(&cut.shape, 0) == 4 && lk__pipeline_slots(&cut.shape, 3) == 4);
}

/* An embedding, blocks 0 to 3 with something between the second and the third, and a head. */
static const lk__stages_segment model[] = {{1, 1, 1, -1}, {1, 1, 1, 0}, {1, 1, 1, 1}, {1, 1, 1, -1},
                                           {1, 1, 1, 2},  {1, 1, 1, 3}, {1, 1, 1, -1}};
enum { SEGMENTS = sizeof model / sizeof *model };

static void check_ranges(lk_context *c, const char *text, int stages, const int *expected)
{
    lk__stages_request cut = {.shape = {stages, 4, LK_PIPELINE_1F1B}, .text = text};
    int                first[MOST];
    CHECK(LK_OK == lk__stages_cut(c, model, SEGMENTS, &cut, first));
    for (int i = 0; i < stages; i++) CHECK(first[i] == expected[i]);
}

static void check_mistake(lk_context *c, const char *text, int stages, const char *error)
{
    lk__stages_request cut = {.shape = {stages, 4, LK_PIPELINE_1F1B}, .text = text};
    int                first[MOST];
    CHECK(lk__stages_cut(c, model, SEGMENTS, &cut, first) < 0);
    if (!strstr(lk_context_error(c), error)) printf("%s\n", lk_context_error(c));
    CHECK(strstr(lk_context_error(c), error));
}

static void ranges_of_blocks_are_stages(void)
{
    lk_context *c = open_context();
    check_ranges(c, "0-1,2-3", 2, (int[]){0, 4}); /* what is between them goes with the block before it */
    check_ranges(c, "0,1-3", 2, (int[]){0, 2});
    check_ranges(c, "-,0-3", 2, (int[]){0, 1});
    check_ranges(c, "0-3,-", 2, (int[]){0, 6});
    check_ranges(c, "-,0,1-3,-", 4, (int[]){0, 1, 2, 6});
    check_mistake(c, "0-3", 2, "1 stage, but the mesh has 2 ranks along pipeline");
    check_mistake(c, "0-1,3", 2, "stage 1 begins with block 3; expected block 2");
    check_mistake(c, "0-2,2-3", 2, "stage 1 begins with block 2; expected block 3");
    check_mistake(c, "1-2,3", 2, "stage 0 begins with block 1; expected block 0");
    check_mistake(c, "0-1,2", 2, "block 3 is in no stage");
    check_mistake(c, "0-1,2-4", 2, "stage 1 ends with block 4, but the model has only blocks 0 to 3");
    check_mistake(c, "0,-,1-3", 3, "stage 1 has no blocks");
    check_mistake(c, "0-2,-", 2, "stage 1 has no blocks");
    const char *wrong[] = {"a,b", "0-,1-3", "3-0,1", ",", "0-1;2-3,", "0--1,2"};
    for (int i = 0; i < 6; i++) check_mistake(c, wrong[i], 2, "expected the blocks of each stage, such as 0-5,6-11");
    lk__stages_request cut = {.shape = {8, 4, LK_PIPELINE_1F1B}};
    int                first[MOST];
    CHECK(lk__stages_cut(c, model, SEGMENTS, &cut, first) == LK_EUNSUPPORTED);
    CHECK(
        strstr(lk_context_error(c), "8 ranks along the pipeline axis, but the model can be cut into at most 7 stages"));
    lk_context_free(c);
}

static void parts_of_a_model_without_blocks_are_numbered(void)
{
    lk_context              *c = open_context();
    const lk__stages_segment parts[] = {{1, 0, 0, -1}, {1, 0, 0, -1}, {1, 0, 0, -1}};
    lk__stages_request       cut = {.shape = {2, 1, LK_PIPELINE_1F1B}, .text = "0-1,2"};
    int                      first[2];
    CHECK(LK_OK == lk__stages_cut(c, parts, 3, &cut, first));
    CHECK(first[0] == 0 && first[1] == 2);
    cut.text = "-,0-2";
    CHECK(lk__stages_cut(c, parts, 3, &cut, first) < 0);
    lk_context_free(c);
}

int main(void)
{
    RUN(stages_take_the_least_time_and_then_the_fewest_bytes);
    RUN(slots_are_those_of_the_schedule);
    RUN(ranges_of_blocks_are_stages);
    RUN(parts_of_a_model_without_blocks_are_numbered);
    return check_result();
}
