/* plan/contents.h - what every byte of a program's memory holds at a point of a schedule, as the verifier follows it
 * (verify_schedule.c): for each space, intervals that hold a part of one value, in the order of addresses. Bytes
 * outside all intervals hold nothing. */
#ifndef LK__PLAN_CONTENTS_H
#define LK__PLAN_CONTENTS_H

#include "base/base.h"

typedef enum lk__plan_stage {
    LK__STAGE_MADE,    /* as a kernel made it; a state: as the step found it */
    LK__STAGE_REDUCED, /* a gradient: over the ranks */
    LK__STAGE_UPDATED, /* a state */
    LK__STAGE_SCALED   /* the factor of one of several losses: divided by the weight of all ranks */
} lk__plan_stage;

enum { LK__PART_ALL = -1 }; /* of what is made once in a step */

typedef struct lk__plan_content {
    int value;        /* of the list's graph, or a number in spaces without values */
    int first, count; /* the micro-batches or leaves of this rank that it is of: several where they are added */
    lk__plan_stage stage;
    size_t         origin; /* where the value begins in the space: byte i of it is at origin + i */
} lk__plan_content;

typedef struct lk__plan_interval {
    size_t           begin, end;
    lk__plan_content content;
    int              flight;  /* the collective in flight that uses it, from 1; 0: none */
    bool             arrives; /* it writes there */
} lk__plan_interval;

typedef struct lk__plan_contents {
    lk__plan_interval *all;
    size_t             count, capacity;
} lk__plan_contents;

static inline bool lk__content_equal(const lk__plan_content *a, const lk__plan_content *b)
{
    return a->value == b->value && a->first == b->first && a->count == b->count && a->stage == b->stage &&
           a->origin == b->origin;
}

/* The first interval that ends after `at`; `count` if none does. */
size_t lk__contents_find(const lk__plan_contents *contents, size_t at);
/* Bytes begin … end-1 hold this now, and nothing is in flight there. */
lk_status lk__contents_write(lk_context *context, lk__plan_contents *contents, size_t begin, size_t end,
                             const lk__plan_content *content);
/* A collective uses what is in these bytes. */
lk_status lk__contents_mark(lk_context *context, lk__plan_contents *contents, size_t begin, size_t end, int flight,
                            bool arrives);
/* It has ended. */
void lk__contents_land(lk__plan_contents *contents, int flight);
void lk__contents_free(lk_context *context, lk__plan_contents *contents);

#endif
