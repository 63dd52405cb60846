/* shared.c - creates what the update of a shared state needs: this rank's slices as blocks of tensors, the parts of the
 * gradient's norm that it computes, and other ranks' gradients. */
#include "run/shared.h"

#include "base/exact_sum.h"
#include "comm/abort.h"
#include "run/collective.h"

/* Elements of a piece in front of the first part of square_sum that begins in it. */
static int64_t head_of(const lk_program *p, const lk__plan_owned *piece)
{
    int64_t elements = lk__state_elements(p->plan, piece->state), parts = lk__square_parts(elements);
    for (int64_t i = 0; i < parts; i++) {
        int64_t begin = lk__square_begin(elements, i);
        if (begin >= piece->first) return begin - piece->first < piece->count ? begin - piece->first : piece->count;
    }
    return piece->count;
}

static void add_blocks(lk__run_shared *x, const lk__plan_owned *piece, int64_t first, int64_t end, bool last)
{
    for (int64_t at = first; at < end; at += LK__SHARED_BLOCK) {
        int64_t count = end - at < LK__SHARED_BLOCK ? end - at : LK__SHARED_BLOCK;
        if (x->blocks) x->blocks[x->blocks_count] = (lk__run_block){piece->state, piece->first + at, count, last};
        x->blocks_count++;
    }
}

static void add_parts(const lk_program *p, lk__run_shared *x, const lk__plan_owned *piece)
{
    int64_t elements = lk__state_elements(p->plan, piece->state), parts = lk__square_parts(elements);
    int64_t end = piece->first + piece->count;
    for (int64_t i = 0; i < parts; i++) {
        int64_t begin = lk__square_begin(elements, i), count = lk__square_begin(elements, i + 1) - begin;
        if (begin < piece->first || begin >= end) continue;
        if (x->parts)
            x->parts[x->parts_count] =
                (lk__run_part){piece->state, begin, count, begin + count < end ? count : end - begin,
                               x->squares + x->first_square[piece->state] + i * x->square_doubles};
        x->parts_count++;
    }
}

/* With the arrays allocated, fills them; else counts. */
static void list_slices(const lk_program *p, lk__run_shared *x, const lk__plan_owned *pieces, size_t count, bool clips)
{
    x->blocks_count = x->parts_count = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t head = clips ? head_of(p, &pieces[i]) : 0;
        add_blocks(x, &pieces[i], 0, head, true);
        add_blocks(x, &pieces[i], head, pieces[i].count, false);
        if (clips) add_parts(p, x, &pieces[i]);
    }
}

static int state_of_gradient(const lk_plan *plan, int value)
{
    for (size_t i = 0; i < plan->graph->states_count; i++)
        if (plan->train.gradients[i] == value) return (int)i;
    return -1;
}

/* The update's instructions by state; returns whether it clips. */
static bool find_instructions(const lk_program *p, int *optimizers, int *norms)
{
    const lk__run_list *list = &p->slots[0].train;
    const lk_graph     *g = p->plan->train.graph;
    bool                clips = false;
    for (size_t i = 0; optimizers && i < p->plan->graph->states_count; i++) optimizers[i] = norms[i] = -1;
    for (size_t i = list->at.begin[LK_UPDATE]; i < list->at.end[LK_UPDATE]; i++) {
        if (list->instructions[i].node < 0) continue;
        const lk__graph_node *n = &g->nodes[list->instructions[i].node];
        bool norm = n->op == LK__OP_square_sum, writes = lk__op_find(n->op)->effect == LK__EFFECT_STATE;
        int  state = norm || writes ? state_of_gradient(p->plan, n->in[0]) : -1;
        clips |= norm;
        if (optimizers && state >= 0) *(norm ? &norms[state] : &optimizers[state]) = (int)i;
    }
    return clips;
}

/* Doubles of all parts, each of which has `each`; where those of a state begin. Ranks with different experts have their
 * own. */
static size_t count_squares(const lk_plan *plan, size_t each, int64_t *first)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        unsigned apart = lk__plan_state_slices(plan, i, LK__ARRAY_STORED).apart;
        size_t   own = plan->states[i].trained ? (size_t)lk__square_parts(lk__state_elements(plan, (int)i)) : 0;
        size_t   part = (size_t)lk__mesh_coordinate(&plan->mesh, apart, lk__plan_rank(plan));
        if (first) first[i] = (int64_t)(count + each * own * part);
        count += each * own * (size_t)lk__mesh_extent(&plan->mesh, apart);
    }
    return count;
}

static void *take_bytes(char *memory, size_t *used, size_t bytes)
{
    char *at = memory ? memory + *used : NULL;
    *used += lk__round_up(bytes, LK__ALIGN);
    return at;
}

/* The arrays behind the struct; with memory NULL only measures. */
static size_t lay_out(const lk_program *p, lk__run_shared *x, char *memory)
{
    size_t used = lk__round_up(sizeof *x, LK__ALIGN), states = p->plan->graph->states_count;
    size_t block = LK__SHARED_BLOCK * sizeof(double);
    x->gradients = take_bytes(memory, &used, (size_t)lk__plan_owners(p->plan) * sizeof *x->gradients);
    x->of_experts = take_bytes(memory, &used, (size_t)lk__plan_owners(p->plan) * sizeof *x->of_experts);
    x->blocks = take_bytes(memory, &used, x->blocks_count * sizeof *x->blocks);
    x->parts = take_bytes(memory, &used, x->parts_count * sizeof *x->parts);
    x->optimizers = take_bytes(memory, &used, states * sizeof *x->optimizers);
    x->norms = take_bytes(memory, &used, states * sizeof *x->norms);
    x->first_square = take_bytes(memory, &used, states * sizeof *x->first_square);
    x->scratch_bytes = 2 * block + (lk__plan_by_slices(p->plan) ? lk__leaf_tree_scratch_bytes() : 0);
    x->scratch = take_bytes(memory, &used, (size_t)lk__plan_workers(p->plan) * x->scratch_bytes);
    return used;
}

static lk_status make_squares(lk_program *p, lk__run_shared *x)
{
    size_t    owners = (size_t)lk__plan_owners(p->plan);
    lk_status status =
        lk_comm_alloc(p->batch, (x->squares_count * sizeof *x->squares + owners - 1) / owners, &x->symmetric);
    if (status >= 0) x->squares = (double *)lk__comm_peer(p->batch, x->symmetric, 0);
    return status;
}

/* Everybody's gradients, and those of the ranks with the same experts. */
static void find_gradients(const lk_program *p, lk__run_shared *x)
{
    const lk_plan *plan = p->plan;
    int            owners = lk__plan_owners(plan), rank = lk__plan_rank(plan);
    x->experts_first = SIZE_MAX;
    for (size_t i = plan->buckets_count; i-- > 0 && plan->buckets[i].experts;)
        x->experts_first = plan->buckets[i].offset;
    for (int i = 0; i < owners; i++) {
        int member = lk__mesh_member(&plan->mesh, LK__PLAN_BATCH_AXES, rank, i);
        x->gradients[i] = lk__comm_peer(p->batch, p->memory.gradients, i);
        if (lk__mesh_coordinate(&plan->mesh, plan->expert_axes, member) ==
            lk__mesh_coordinate(&plan->mesh, plan->expert_axes, rank))
            x->of_experts[x->experts_count++] = x->gradients[i];
    }
}

static lk_status make_shared(lk_program *p, const lk__plan_owned *pieces, size_t count)
{
    int            each = lk__plan_exact_norm(p->plan) ? lk__exact_count(p->plan->graph->real) : 1;
    lk__run_shared measured = {.squares_count = count_squares(p->plan, (size_t)each, NULL), .square_doubles = each};
    bool           clips = find_instructions(p, NULL, NULL);
    list_slices(p, &measured, pieces, count, clips);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_shared *x = p->shared = (lk__run_shared *)memory;
    *x = measured;
    x->bytes = bytes;
    lay_out(p, x, memory);
    find_gradients(p, x);
    (void)find_instructions(p, x->optimizers, x->norms);
    (void)count_squares(p->plan, (size_t)each, x->first_square);
    lk_status status = clips ? make_squares(p, x) : LK_OK;
    if (status >= 0) list_slices(p, x, pieces, count, clips);
    x->lazy = lk__plan_sums_late(p->plan, p->group);
    x->sum = lk__shared_sum_of(lk__plan_by_slices(p->plan), p->plan->gradient_dtype != p->plan->graph->real);
    return status;
}

lk_status lk__shared_create(lk_program *p)
{
    if (!p->plan->shared || !p->plan->trains) return LK_OK;
    int             own = lk__plan_own(p->plan);
    size_t          count = lk__plan_list_owned(p->plan, own, NULL), bytes = count * sizeof(lk__plan_owned);
    lk__plan_owned *pieces = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (bytes && !pieces) return LK_ENOMEM;
    if (count) lk__plan_list_owned(p->plan, own, pieces);
    lk_status status = make_shared(p, pieces, count);
    lk__free(p->context, LK_MEMORY_OTHER, pieces, bytes);
    return status;
}

void lk__shared_free(lk_program *p)
{
    if (!p->shared) return;
    lk_comm_release(p->batch, p->shared->symmetric);
    lk__free(p->context, LK_MEMORY_OTHER, p->shared, p->shared->bytes);
    p->shared = NULL;
}
