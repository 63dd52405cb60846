/* shared_sum.c - sums of all ranks' gradients, straight from the memory that they share, in the canonical order: the
 * pairwise tree over ranks or, with leaves, over the sums of the subtrees that each rank holds. On several hosts
 * collectives have made the sums of slices, and they are read here. */
#include "run/shared.h"

#include "base/reduce.h"
#include "run/collective.h"

#include <string.h>

/* ---- a range of the gradients that nobody has summed yet ---- */

/* Where a range of the gradients is that is rounded for its reduction, behind all sets. */
static size_t rounded_place(const lk_plan *plan, size_t offset)
{
    return plan->gradient_bytes * (size_t)plan->sets + offset / sizeof(float) * lk_dtype_size(plan->gradient_dtype);
}

/* place: of the range from `offset` on of a set, in each rank's memory. */
static void add_ranks(const lk_program *p, size_t offset, size_t place, size_t count, lk_dtype type, void *out)
{
    const lk__run_shared *x = p->shared;
    const void           *in[LK__REDUCE_MOST];
    bool                  experts = offset >= x->experts_first;
    int                   world = experts ? x->experts_count : lk__plan_batch_parts(p->plan);
    for (int i = 0; i < world; i++) in[i] = (experts ? x->of_experts : x->gradients)[i] + place;
    lk__reduce(out, in, world, count, type, LK_SUM);
}

/* What making a sum needs besides its result, which may be the first block of a thread's memory. */
static char *scratch_of(const lk_program *p, int worker)
{
    return p->shared->scratch + (size_t)worker * p->shared->scratch_bytes + LK__SHARED_BLOCK * sizeof(double);
}

static void sum_ranks(const lk_program *p, size_t offset, size_t count, lk_dtype type, void *out, int worker)
{
    (void)worker;
    add_ranks(p, offset, offset, count, type, out);
}

static void sum_rounded(const lk_program *p, size_t offset, size_t count, lk_dtype type, void *out, int worker)
{
    lk_dtype sent = p->plan->gradient_dtype;
    char    *narrow = scratch_of(p, worker);
    add_ranks(p, offset, rounded_place(p->plan, offset), count, sent, narrow);
    lk__reduce_widen(out, narrow, count, sent, type);
}

static void sum_leaves(const lk_program *p, size_t offset, size_t count, lk_dtype type, void *out, int worker)
{
    lk__leaf_tree_sum(p, p->shared->gradients, offset, count, type, out,
                      scratch_of(p, worker) + LK__SHARED_BLOCK * sizeof(double));
}

lk__run_sum lk__shared_sum_of(bool leaves, bool rounded)
{
    return leaves ? sum_leaves : rounded ? sum_rounded : sum_ranks;
}

/* ---- wherever the sum is ---- */

char *const *lk__shared_gradients(const lk_program *p, int state)
{
    const lk__run_shared *x = p->shared;
    return p->plan->states[state].gradient_offset >= x->experts_first ? x->of_experts : x->gradients;
}

void lk__shared_copy(const lk_program *p, int state, int64_t first, int64_t count, char *out)
{
    lk__plan_slices s = lk__plan_state_slices(p->plan, (size_t)state, LK__ARRAY_STORED);
    size_t          size = lk_dtype_size(p->plan->graph->real), begin = p->plan->states[state].gradient_offset;
    lk__range       owned;
    for (int64_t at = first, end; at < first + count; at = end) {
        const char *from = lk__shared_gradients(p, state)[lk__slices_owner(&s, at, &owned)] + begin + (size_t)at * size;
        end = owned.end < first + count ? owned.end : first + count;
        char *to = out + (size_t)(at - first) * size;
        if (from != to) memcpy(to, from, (size_t)(end - at) * size);
    }
}

void lk__shared_sum(const lk_program *p, int state, int64_t first, int64_t count, void *out, int worker)
{
    lk_dtype type = p->plan->graph->real;
    size_t   size = lk_dtype_size(type), offset = p->plan->states[state].gradient_offset + (size_t)first * size;
    char    *to = out;
    if (p->shared->summed == LK__SUMMED_SLICES) {
        lk__shared_copy(p, state, first, count, to);
        return;
    }
    if (p->shared->summed == LK__SUMMED_WHOLE) {
        memcpy(to, lk__gradient_set(p, 0) + offset, (size_t)count * size);
        return;
    }
    for (int64_t at = 0; at < count; at += LK__SHARED_BLOCK) {
        int64_t here = count - at < LK__SHARED_BLOCK ? count - at : LK__SHARED_BLOCK;
        p->shared->sum(p, offset + (size_t)at * size, (size_t)here, type, to + (size_t)at * size, worker);
    }
}

static void sum_own_block(void *argument, int64_t tile, int worker)
{
    const lk_program    *p = argument;
    const lk__run_block *b = &p->shared->blocks[tile];
    size_t               size = lk_dtype_size(p->plan->graph->real);
    lk__shared_sum(p, b->state, b->first, b->count,
                   lk__gradient_set(p, 0) + p->plan->states[b->state].gradient_offset + (size_t)b->first * size,
                   worker);
}

void lk__shared_sum_own(lk_program *p)
{
    lk__pool_run(lk__context_pool(p->context), (int64_t)p->shared->blocks_count, sum_own_block, p);
}
