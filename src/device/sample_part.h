/* device/sample_part.h - maps elements of an operand, which may be a part of a sample, to their positions in the whole
 * sample: random numbers depend on the position in the whole sample. */
#ifndef LK__SAMPLE_PART_H
#define LK__SAMPLE_PART_H

#include "device/kernel.h"

#include <string.h>

/* Neighbours in memory are neighbours in the whole within a run. */
typedef struct lk__sample_part {
    int64_t samples, elements;   /* of the operand; elements of a sample */
    int64_t first;               /* the whole's number of the first sample */
    int64_t length, base;        /* elements of a run; where run 0 is in the whole sample, but for dims' origins */
    int     rank;                /* runs are counted by this many dimensions, the slowest first */
    int64_t extent[LK_MAX_RANK]; /* of them */
    int64_t origin[LK_MAX_RANK],
        step[LK_MAX_RANK]; /* where they begin in the whole; its elements from one to the next */
} lk__sample_part;

/* rows: of axis 0 that are one sample of this operand, where a reshape merged axes. */
static inline lk__sample_part lk__sample_part_of(const lk__kernel_operand *x, int64_t rows)
{
    lk__sample_part s;
    int64_t         step = 1;
    int             cut = 0; /* the last dimension that is cut; 0: none, or the first */
    memset(&s, 0, sizeof s); /* C++ warns of an initializer that does not name every member */
    rows = rows > 1 ? rows : 1;
    s.samples = (x->rank ? x->dims[0] : 1) / rows;
    bool repeated = x->part && x->part->outer[0] >= 1; /* a part of each sample, of which there may be one only */
    for (int i = 1; i < x->rank; i++)
        if (lk__whole_extent(x, i) != x->dims[i]) cut = i;
    for (int i = x->rank - 1; i > cut; i--) step *= x->dims[i];
    s.length = step;
    for (int i = cut; i > 0; i--) { /* dimension `cut` is in a run, those before it count the runs */
        if (i == cut)
            s.length *= x->dims[i], s.base = lk__part_first(x, i) * step;
        else
            s.extent[i] = x->dims[i], s.origin[i] = lk__part_first(x, i), s.step[i] = step;
        step *= lk__whole_extent(x, i);
    }
    /* Axis 0: the rows of a sample, of which this may be a part; else samples. */
    s.rank = cut;
    s.extent[0] = rows, s.origin[0] = repeated ? lk__part_first(x, 0) : 0, s.step[0] = step;
    if (cut == 0) s.length *= rows, s.base = s.origin[0] * step;
    s.first = repeated ? 0 : lk__part_first(x, 0) / rows;
    s.elements = s.length;
    for (int i = 0; i < s.rank; i++) s.elements *= s.extent[i];
    return s;
}

/* Where a run begins in the whole sample. */
static inline int64_t lk__sample_run(const lk__sample_part *s, int64_t run)
{
    int64_t at = s->base;
    for (int i = s->rank - 1; i >= 0; i--) {
        at += (run % s->extent[i] + s->origin[i]) * s->step[i];
        run /= s->extent[i];
    }
    return at;
}

#endif
