/* slice.c - which rank updates what of a state that the ranks of a host share: a slice of every bucket, as pieces of tensors. And on which
 * hosts they can. */
#include "plan/plan.h"

#include "base/tree.h"

#include <stdio.h>

static const lk__plan_bucket *bucket_at(const lk_plan *p, size_t offset)
{
    size_t i = 0;
    while (offset >= p->buckets[i].offset + p->buckets[i].bytes) i++;
    return &p->buckets[i];
}

int lk__plan_owner(const lk_plan *p, size_t offset, size_t *end)
{
    const lk__plan_bucket *b = bucket_at(p, offset);
    size_t                 slice = lk__slice_bytes(p, b->bytes), owner = (offset - b->offset) / slice;
    *end = b->offset + (owner + 1) * slice;
    return (int)owner;
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

size_t lk__plan_pieces(const lk_plan *p, int owner, lk__plan_piece *pieces)
{
    size_t count = 0;
    for (size_t i = 0; i < p->buckets_count; i++) {
        const lk__plan_bucket *b = &p->buckets[i];
        size_t                 slice = lk__slice_bytes(p, b->bytes), size = lk_dtype_size(b->dtype);
        size_t                 at = b->offset + (size_t)owner * slice, end = at + slice;
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

/* The sum of each host's ranks, or leaves, then that of the hosts, must be the sum in the canonical order. */
bool lk__plan_hosts_share(int parts, int leaves, int hosts, char *why, size_t bytes)
{
    if (hosts <= 1) return true;
    int each = parts / hosts;
    if (parts % hosts != 0)
        snprintf(why, bytes, "are on %d hosts, with different numbers of ranks", hosts);
    else if (each == 1)
        snprintf(why, bytes, "are each alone on their host");
    else if (leaves && !lk__tree_nests(leaves, hosts))
        snprintf(why, bytes,
                 "of a host do not hold a whole subtree of the %d leaves, in whose order gradients are added", leaves);
    else if (!leaves && !lk__tree_nests(parts, hosts))
        snprintf(why, bytes, "number %d on each host, and sums keep their order only with a power of two", each);
    else
        return true;
    return false;
}
