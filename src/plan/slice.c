/* slice.c - which rank updates what of a state that all ranks share: a slice of every bucket, as pieces of tensors. */
#include "plan/plan.h"

static const lk__plan_bucket *bucket_at(const lk_plan *p, size_t offset)
{
    size_t i = 0;
    while (offset >= p->buckets[i].offset + p->buckets[i].bytes) i++;
    return &p->buckets[i];
}

int lk__plan_owner(const lk_plan *p, size_t offset, size_t *end)
{
    const lk__plan_bucket *b = bucket_at(p, offset);
    size_t                 slice = lk__slice_bytes(p, b->bytes), rank = (offset - b->offset) / slice;
    *end = b->offset + (rank + 1) * slice;
    return (int)rank;
}

/* The trained state whose gradient is the first that ends behind `offset`; -1: none. */
static int state_at(const lk_plan *p, size_t offset)
{
    int found = -1;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        const lk__plan_state *s = &p->states[i];
        if (!s->trained || s->wide_bytes == 0 || s->gradient_offset + s->wide_bytes <= offset) continue;
        if (found < 0 || s->gradient_offset < p->states[found].gradient_offset) found = (int)i;
    }
    return found;
}

size_t lk__plan_pieces(const lk_plan *p, int rank, lk__plan_piece *pieces)
{
    size_t count = 0;
    for (size_t i = 0; i < p->buckets_count; i++) {
        const lk__plan_bucket *b = &p->buckets[i];
        size_t                 slice = lk__slice_bytes(p, b->bytes), size = lk_dtype_size(b->dtype);
        size_t                 at = b->offset + (size_t)rank * slice, end = at + slice;
        for (int state; at < end && (state = state_at(p, at)) >= 0;) {
            const lk__plan_state *s = &p->states[state];
            size_t first = s->gradient_offset > at ? s->gradient_offset : at, last = s->gradient_offset + s->wide_bytes;
            if (first >= end) break;
            if (last > end) last = end;
            if (pieces)
                pieces[count] = (lk__plan_piece){state, (int64_t)((first - s->gradient_offset) / size),
                                                 (int64_t)((last - first) / size)};
            count++;
            at = last;
        }
    }
    return count;
}
