/* factor_part.c - maps a part of an operand to the whole, by the factors of which its dimensions consist. */
#include "graph/factor_part.h"

static int64_t segment_extent(const lk__factors *f, const lk__factor_product *segment, lk__factor_cut c)
{
    int64_t product = 1;
    for (int k = 0; k < segment->count; k++) {
        int factor = segment->factor[k];
        product *= factor == c.factor ? c.length : f->factor[factor].extent;
    }
    return product;
}

int64_t lk__factor_part_extent(const lk__factors *f, const lk__factor_dim *dim, int64_t whole, lk__factor_cut c)
{
    int64_t extent = 0;
    if (!dim->segments) return whole;
    for (int s = 0; s < dim->segments; s++) extent += segment_extent(f, &dim->segment[s], c);
    return extent;
}

/* Where element i of a segment's part is in the segment: its factors are digits, the last one the fastest. */
static int64_t segment_index(const lk__factors *f, const lk__factor_product *segment, int64_t i, lk__factor_cut c)
{
    int64_t at = 0, stride = 1;
    for (int k = segment->count - 1; k >= 0; k--) {
        int     factor = segment->factor[k];
        bool    cut = factor == c.factor;
        int64_t extent = f->factor[factor].extent, part = cut ? c.length : extent;
        at += (i % part + (cut ? c.first : 0)) * stride;
        i /= part;
        stride *= extent;
    }
    return at;
}

int64_t lk__factor_part_index(const lk__factors *f, const lk__factor_dim *dim, int64_t i, lk__factor_cut c)
{
    int64_t before = 0; /* elements of the whole segments before this one */
    if (!dim->segments) return i;
    for (int s = 0; s < dim->segments; s++) {
        int64_t length = segment_extent(f, &dim->segment[s], c);
        if (i < length) return before + segment_index(f, &dim->segment[s], i, c);
        before += segment_extent(f, &dim->segment[s], (lk__factor_cut){.factor = -1});
        i -= length;
    }
    return before;
}

void lk__factor_part_visit(const lk__factors *f, const lk__factor_dim dims[LK_MAX_RANK], const lk__factor_shape *whole,
                           lk__factor_cut c, lk__factor_visit visit, void *user)
{
    int64_t extent[LK_MAX_RANK], index[LK_MAX_RANK] = {0}, there[LK_MAX_RANK], elements = 1;
    for (int i = 0; i < whole->rank; i++)
        elements *= extent[i] = lk__factor_part_extent(f, &dims[i], whole->dims[i], c);
    for (; elements > 0; elements--) {
        for (int i = 0; i < whole->rank; i++) there[i] = lk__factor_part_index(f, &dims[i], index[i], c);
        visit(user, index, there);
        for (int i = whole->rank - 1; i >= 0 && ++index[i] == extent[i]; i--) index[i] = 0;
    }
}
