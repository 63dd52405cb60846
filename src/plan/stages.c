/* stages.c - cuts a model into stages: by the user's ranges of blocks, or by dynamic programming over the segments. */
#include "plan/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *lk_pipeline_schedule_name(lk_pipeline_schedule schedule)
{
    switch (schedule) {
#define NAME(constant, name) \
    case constant: return name;
        LK_PIPELINE_SCHEDULE_LIST(NAME)
#undef NAME
    default: return NULL;
    }
}

/* ---- the user's ranges ---- */

/* Reads "3", "0-5" or "-" (*last is *begin - 1) up to a comma or the end; returns what follows it, NULL: none of
 * these. */
static const char *read_range(const char *text, int *begin, int *last)
{
    char *end = NULL;
    *begin = 0, *last = -1;
    if (text[0] == '-' && (text[1] == ',' || !text[1])) return text + 1;
    if (*text < '0' || *text > '9') return NULL;
    long from = strtol(text, &end, 10), to = from;
    if (*end == '-') {
        text = end + 1;
        if (*text < '0' || *text > '9') return NULL;
        to = strtol(text, &end, 10);
    }
    if ((*end && *end != ',') || from > INT32_MAX - 1 || to > INT32_MAX - 1 || to < from) return NULL;
    *begin = (int)from, *last = (int)to;
    return end;
}

static int count_stages(const char *text)
{
    int count = 1;
    for (; *text; text++) count += *text == ',';
    return count;
}

/* The number of a segment for the user: that of its block or, in a model without blocks, its own. */
static int number_of(const lk__stages_segment *segments, int i, int blocks) { return blocks ? segments[i].block : i; }

typedef struct range_reader {
    lk_context               *context;
    const lk__stages_segment *segments;
    int                       count, blocks; /* blocks 0: segments are numbered */
    const char               *text;
} range_reader;

static lk_status check_range(const range_reader *r, int stage, int stages, int begin, int last, int expected)
{
    const char *what = r->blocks ? "block" : "part";
    int         all = r->blocks ? r->blocks : r->count;
    if (last < begin) {
        bool outside = stage == 0 ? r->segments[0].block < 0 : r->segments[r->count - 1].block < 0;
        if (r->blocks && (stage == 0 || stage == stages - 1) && outside && (stage == 0 || expected == all))
            return LK_OK;
        return lk__fail(r->context, LK_EINVAL,
                        "stages \"%s\": stage %d has no %ss; only the first and the last stage may have none, and only "
                        "if the model has something before or after all blocks",
                        r->text, stage, what);
    }
    if (last >= all)
        return lk__fail(r->context, LK_EINVAL,
                        "stages \"%s\": stage %d ends with %s %d, but the model has only %ss 0 to %d", r->text, stage,
                        what, last, what, all - 1);
    if (begin != expected)
        return lk__fail(r->context, LK_EINVAL, "stages \"%s\": stage %d begins with %s %d; expected %s %d%s", r->text,
                        stage, what, begin, what, expected,
                        expected ? ", since each must be in exactly one stage, in the model's order" : "");
    return LK_OK;
}

/* The first segment whose number is at least `number`. */
static int find_segment(const range_reader *r, int number)
{
    int i = 0;
    while (i < r->count && number_of(r->segments, i, r->blocks) < number) i++;
    return i;
}

static lk_status cut_by_text(const range_reader *r, int stages, int *first)
{
    const char *at = r->text;
    int         expected = 0, begin, last;
    if (count_stages(at) != stages)
        return lk__fail(r->context, LK_EINVAL, "stages \"%s\": %d stage%s, but the mesh has %d ranks along pipeline",
                        at, count_stages(at), count_stages(at) == 1 ? "" : "s", stages);
    for (int i = 0; i < stages; i++, at++) {
        if (!(at = read_range(at, &begin, &last)))
            return lk__fail(r->context, LK_EINVAL, "stages \"%s\": expected the %s of each stage, such as 0-5,6-11",
                            r->text, r->blocks ? "blocks" : "parts");
        lk_status status = check_range(r, i, stages, begin, last, expected);
        if (status < 0) return status;
        bool none = last < begin, behind = none && i > 0;
        /* What is between two blocks goes with the one before it; behind a first stage without blocks nothing does. */
        first[i] = i == 0 ? 0 : find_segment(r, behind ? INT32_MAX : expected);
        if (behind) /* what follows the last block */
            for (first[i] = r->count; first[i] > 0 && r->segments[first[i] - 1].block < 0;) first[i]--;
        if (!none) expected = last + 1;
    }
    if (expected != (r->blocks ? r->blocks : r->count))
        return lk__fail(r->context, LK_EINVAL, "stages \"%s\": %s %d is in no stage", r->text,
                        r->blocks ? "block" : "part", expected);
    return LK_OK;
}

/* ---- by time and memory ---- */

typedef struct load {
    double first, second; /* compared in this order */
} load;

static load largest(load a, load b) { return (load){fmax(a.first, b.first), fmax(a.second, b.second)}; }
static bool is_less(load a, load b) { return a.first < b.first || (a.first == b.first && a.second < b.second); }

typedef struct cutter {
    const lk__stages_segment *segments;
    const lk__stages_request *cut;
    int                       count;
    double                    limit;    /* of seconds; 0: they are what is minimised, else bytes are */
    load                     *best;     /* by stage and segment behind it: of all stages so far */
    int                      *previous; /* the same: the first segment of that stage */
} cutter;

/* Adds a segment to the load of a stage. */
static load add_segment(const cutter *c, int stage, load sum, const lk__stages_segment *s)
{
    double bytes = s->state + s->activations * lk__pipeline_slots(&c->cut->shape, stage);
    return c->limit > 0 ? (load){sum.first + bytes, sum.second + s->seconds}
                        : (load){sum.first + s->seconds, sum.second + bytes};
}

/* best[stage][j]: the least of the largest loads of stages 0 to `stage` over segments 0 to j - 1. */
static void find_best(cutter *c)
{
    int        n = c->count, stages = c->cut->shape.stages;
    const load none = {INFINITY, INFINITY};
    for (int stage = 0; stage < stages; stage++)
        for (int j = 0; j <= n; j++) {
            load *best = &c->best[stage * (n + 1) + j], sum = {0, 0};
            *best = none;
            for (int i = j - 1; i >= stage; i--) { /* every stage has a segment */
                sum = add_segment(c, stage, sum, &c->segments[i]);
                if (c->limit > 0 && sum.second > c->limit) break;
                if (stage == 0 && i > 0) continue;
                load whole = stage ? largest(c->best[(stage - 1) * (n + 1) + i], sum) : sum;
                if (!is_less(whole, *best)) continue;
                *best = whole;
                c->previous[stage * (n + 1) + j] = i;
            }
        }
}

static lk_status cut_by_cost(lk_context *context, cutter *c, int *first)
{
    size_t cells = (size_t)c->cut->shape.stages * (size_t)(c->count + 1),
           bytes = cells * (sizeof *c->best + sizeof(int));
    if (!(c->best = lk__alloc(context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    c->previous = (int *)(void *)(c->best + cells);
    find_best(c);
    c->limit = c->best[cells - 1].first * (1 + 1.0 / 64);
    if (c->limit > 0) find_best(c);
    for (int stage = c->cut->shape.stages - 1, end = c->count; stage >= 0; stage--)
        end = first[stage] = c->previous[stage * (c->count + 1) + end];
    lk__free(context, LK_MEMORY_OTHER, c->best, bytes);
    return LK_OK;
}

lk_status lk__stages_cut(lk_context *context, const lk__stages_segment *segments, int count,
                         const lk__stages_request *cut, int *first)
{
    int blocks = 0;
    for (int i = 0; i < count; i++) blocks += segments[i].block >= 0;
    if (count < cut->shape.stages)
        return lk__fail(context, LK_EUNSUPPORTED,
                        "%d ranks along the pipeline axis, but the model can be cut into at most %d stage%s (%d "
                        "block%s, and the parts outside them): use %d or fewer",
                        cut->shape.stages, count, count == 1 ? "" : "s", blocks, blocks == 1 ? "" : "s", count);
    if (cut->text) {
        range_reader r = {context, segments, count, blocks, cut->text};
        return cut_by_text(&r, cut->shape.stages, first);
    }
    cutter c = {.segments = segments, .cut = cut, .count = count};
    return cut_by_cost(context, &c, first);
}
