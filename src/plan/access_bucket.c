/* access_bucket.c - the accesses of instructions on gradients: sums of micro-batches and leaves, rounding, copies,
 * reductions; and the update of a state that the ranks of a host share. A bucket is accessed gradient by gradient: the
 * gaps between gradients are never read. */
#include "plan/access.h"

#include "plan/expert_leaves.h"

/* A range of a gradient, as offsets in the first set. */
typedef struct range {
    int    state;
    size_t begin, end;
} range;

typedef struct gradient_content {
    int            first, count;
    lk__plan_stage stage;
} gradient_content;

static gradient_content complete(const lk__plan_accesses *a) { return (gradient_content){0, a->parts, LK__STAGE_MADE}; }
static gradient_content reduced(const lk__plan_accesses *a)
{
    return (gradient_content){0, a->parts, LK__STAGE_REDUCED};
}

static void put_gradient(lk__plan_accesses *a, lk__plan_access_kind kind, int space, int set, range r,
                         gradient_content c)
{
    const lk_plan  *p = a->plan;
    size_t          base = (size_t)set * p->gradient_bytes;
    lk__plan_access one = {.kind = kind, .space = space, .begin = base + r.begin, .end = base + r.end};
    one.content = (lk__plan_content){.value = a->root[a->list->gradients[r.state]],
                                     .first = c.first,
                                     .count = c.count,
                                     .stage = c.stage,
                                     .origin = base + p->states[r.state].gradient_offset};
    lk__access_put(a, one);
}

/* The same where its bucket is reduced: behind all sets if it is rounded for that. */
static void put_sent(lk__plan_accesses *a, lk__plan_access_kind kind, int space, int bucket, range r,
                     gradient_content c)
{
    const lk_plan         *p = a->plan;
    const lk__plan_bucket *b = &p->buckets[bucket];
    lk_dtype               type = lk__bucket_type(p, b);
    if (type == b->dtype) {
        put_gradient(a, kind, space, 0, r, c);
        return;
    }
    size_t          place = lk__bucket_place(p, b), wide = lk_dtype_size(b->dtype), narrow = lk_dtype_size(type);
    size_t          begins = p->states[r.state].gradient_offset; /* maybe in another bucket, of a plan that is wrong */
    lk__plan_access one = {.kind = kind,
                           .space = space,
                           .begin = place + (r.begin - b->offset) / wide * narrow,
                           .end = place + (r.end - b->offset) / wide * narrow};
    one.content = (lk__plan_content){.value = a->root[a->list->gradients[r.state]],
                                     .first = c.first,
                                     .count = c.count,
                                     .stage = c.stage,
                                     .origin = place + begins / wide * narrow - b->offset / wide * narrow};
    lk__access_put(a, one);
}

/* What bytes begin … end of the first set have of a gradient. */
static bool find_range(const lk__plan_accesses *a, size_t state, size_t begin, size_t end, range *r)
{
    const lk__plan_state *s = &a->plan->states[state];
    if (!s->trained) return false;
    size_t first = s->gradient_offset, last = first + lk__plan_gradient_bytes(a->plan, state);
    *r = (range){(int)state, first > begin ? first : begin, last < end ? last : end};
    return r->begin < r->end;
}

/* ---- sums on this rank ---- */

static void add_sets(lk__plan_accesses *a, const lk__schedule_run *run, range r)
{
    put_gradient(a, LK__READS_IN_PLACE, LK__SPACE_GRADIENTS, 0, r, (gradient_content){0, run->part, LK__STAGE_MADE});
    put_gradient(a, LK__READS, LK__SPACE_GRADIENTS, 1, r, (gradient_content){run->part, 1, LK__STAGE_MADE});
    put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, 0, r, (gradient_content){0, run->part + 1, LK__STAGE_MADE});
}

/* Leaves that have a set each. */
static void add_all_leaves(lk__plan_accesses *a, range r)
{
    lk__plan_leaf_change change = lk__access_leaves(a, 0, a->parts);
    for (int i = 0; i < change.after_count; i++) {
        lk__leaf_sum sum = change.after[i];
        if (sum.count == 1) continue; /* there is nothing to add */
        for (int k = 0; k < sum.count; k++)
            put_gradient(a, k ? LK__READS : LK__READS_IN_PLACE, LK__SPACE_GRADIENTS, sum.set + k, r,
                         (gradient_content){sum.first + k, 1, LK__STAGE_MADE});
        put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, sum.set, r,
                     (gradient_content){sum.first, sum.count, LK__STAGE_MADE});
    }
}

/* Of a leaf that has just been made. */
static void add_leaf(lk__plan_accesses *a, const lk__schedule_run *run, range r)
{
    lk__plan_leaf_change change = lk__access_leaves(a, run->part, run->each);
    if (run->each == 0 || change.same == change.before_count) return;
    put_gradient(a, LK__READS, LK__SPACE_GRADIENTS, run->set, r, (gradient_content){run->part, 1, LK__STAGE_MADE});
    for (int i = change.same; i < change.before_count; i++)
        put_gradient(a, LK__READS_IN_PLACE, LK__SPACE_GRADIENTS, change.before[i].set, r,
                     (gradient_content){change.before[i].first, change.before[i].count, LK__STAGE_MADE});
    for (int i = change.same; i < change.after_count; i++)
        put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, change.after[i].set, r,
                     (gradient_content){change.after[i].first, change.after[i].count, LK__STAGE_MADE});
}

/* ---- the leaves of several sources ---- */

static void put_source(lk__plan_accesses *a, lk__plan_access_kind kind, const lk__plan_bucket *b, int source,
                       lk__leaf_sum sum, range r)
{
    size_t          base = lk__source_set(a->plan, b, source, sum.set);
    lk__plan_access one = {.kind = kind,
                           .space = LK__SPACE_GRADIENTS,
                           .begin = base + r.begin - b->offset,
                           .end = base + r.end - b->offset};
    one.content = (lk__plan_content){.value = a->root[a->list->gradients[r.state]],
                                     .first = sum.first,
                                     .count = sum.count,
                                     .origin = base + a->plan->states[r.state].gradient_offset - b->offset};
    lk__access_put(a, one);
}

void lk__access_sources(lk__plan_accesses *a, const lk__schedule_run *run, size_t state)
{
    const lk__plan_bucket *b = lk__gradient_bucket(a->plan, state);
    range                  r;
    if (!find_range(a, state, b->offset, b->offset + b->bytes, &r)) return;
    for (int source = 0; source < lk__plan_sources(a->plan); source++) {
        lk__leaf_sum made = lk__source_leaf(a->plan, source, run->part, run->each);
        if (made.count) put_source(a, LK__WRITES, b, source, made, r);
    }
}

/* Of the leaf of each source that has just been made. */
static void add_source_leaves(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_bucket *b, range r)
{
    for (int source = 0; source < lk__plan_sources(a->plan); source++) {
        lk__leaf_sum         made = lk__source_leaf(a->plan, source, run->part, run->each);
        int                  part = lk__source_part(a->plan, lk__plan_rank(a->plan), source);
        lk__plan_leaf_change change = lk__access_leaves_of(a, part, made.first, made.count);
        if (made.count == 0 || change.same == change.before_count) continue;
        put_source(a, LK__READS, b, source, made, r);
        for (int i = change.same; i < change.before_count; i++)
            put_source(a, LK__READS_IN_PLACE, b, source, change.before[i], r);
        for (int i = change.same; i < change.after_count; i++) put_source(a, LK__WRITES, b, source, change.after[i], r);
    }
}

static void read_sources(lk__plan_accesses *a, const lk__plan_bucket *b, range r)
{
    for (int source = 0; source < lk__plan_sources(a->plan); source++) {
        int                  part = lk__source_part(a->plan, lk__plan_rank(a->plan), source);
        lk__plan_leaf_change change =
            lk__access_leaves_of(a, part, 0, (int)lk__range_count(lk__plan_leaves(a->plan, part)));
        for (int i = 0; i < change.after_count; i++) put_source(a, LK__READS_IN_PLACE, b, source, change.after[i], r);
    }
}

/* The sums of all subtrees of this rank's leaves. */
static void read_subtrees(lk__plan_accesses *a, lk__plan_access_kind kind, int space, range r)
{
    lk__plan_leaf_change change = lk__access_leaves(a, 0, a->parts);
    for (int i = 0; i < change.after_count; i++)
        put_gradient(a, kind, space, change.after[i].set, r,
                     (gradient_content){change.after[i].first, change.after[i].count, LK__STAGE_MADE});
}

/* ---- reductions ---- */

static int exchanged_space(const lk__plan_accesses *a)
{
    return a->group.staged ? LK__SPACE_EXCHANGED : LK__SPACE_GRADIENTS;
}

/* Of sets of leaves those with the sums of subtrees matter: what else is copied with them, nothing reads. */
static void copy_out(lk__plan_accesses *a, const lk__plan_instruction *in, range r)
{
    size_t before = a->count;
    if (in->action == LK__DO_COPY_OUT_SETS)
        read_subtrees(a, LK__COPIES, LK__SPACE_EXCHANGED, r);
    else
        put_sent(a, LK__COPIES, LK__SPACE_EXCHANGED, in->bucket, r, complete(a));
    for (size_t i = before; i < a->count; i++) a->all[i].from = LK__SPACE_GRADIENTS;
}

/* Of bytes begin … end of the first set, in the type of the reduction, what this rank gets of it. */
static void start_scatter(lk__plan_accesses *a, int bucket, range r)
{
    const lk_plan         *p = a->plan;
    const lk__plan_bucket *b = &p->buckets[bucket];
    size_t slice = b->bytes / (size_t)lk__bucket_owners(p, b), begin = b->offset + (size_t)lk__bucket_own(p, b) * slice;
    range  own;
    put_sent(a, LK__READS_IN_PLACE, LK__SPACE_GRADIENTS, bucket, r, complete(a));
    if (find_range(a, (size_t)r.state, begin, begin + slice, &own))
        put_sent(a, LK__WRITES, LK__SPACE_GRADIENTS, bucket, own, reduced(a));
}

static void start_slices(lk__plan_accesses *a, const lk__plan_bucket *b, range r)
{
    if (lk__bucket_has_sources(a->plan, b))
        read_sources(a, b, r);
    else
        read_subtrees(a, LK__READS_IN_PLACE, exchanged_space(a), r);
    if (!a->plan->stage) put_gradient(a, LK__WRITES, exchanged_space(a), 0, r, reduced(a));
}

static void widen_slice(lk__plan_accesses *a, int bucket, range r)
{
    const lk__plan_bucket *b = &a->plan->buckets[bucket];
    size_t                 slice = b->bytes / (size_t)lk__bucket_owners(a->plan, b),
           begin = b->offset + (size_t)lk__bucket_own(a->plan, b) * slice;
    range own;
    if (!find_range(a, (size_t)r.state, begin, begin + slice, &own)) return;
    put_sent(a, LK__READS, LK__SPACE_GRADIENTS, bucket, own, reduced(a));
    if (a->plan->stage)
        lk__access_widened(a, (size_t)r.state);
    else
        put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, 0, own, reduced(a));
}

static void access_range(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in, range r)
{
    int space = exchanged_space(a);
    switch (in->action) {
    case LK__DO_ADD_SETS: add_sets(a, run, r); break;
    case LK__DO_ADD_LEAVES:
        if (lk__bucket_has_sources(a->plan, &a->plan->buckets[in->bucket]))
            add_source_leaves(a, run, &a->plan->buckets[in->bucket], r);
        else if (lk__plan_leaves_together(a->plan))
            add_all_leaves(a, r);
        else
            add_leaf(a, run, r);
        break;
    case LK__DO_ROUND:
        put_gradient(a, LK__READS, LK__SPACE_GRADIENTS, 0, r, complete(a));
        put_sent(a, LK__WRITES, LK__SPACE_GRADIENTS, in->bucket, r, complete(a));
        break;
    case LK__DO_WIDEN:
        put_sent(a, LK__READS, LK__SPACE_GRADIENTS, in->bucket, r, reduced(a));
        put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, 0, r, reduced(a));
        break;
    case LK__DO_WIDEN_SLICE: widen_slice(a, in->bucket, r); break;
    case LK__DO_COPY_OUT:
    case LK__DO_COPY_OUT_SETS: copy_out(a, in, r); break;
    case LK__DO_COPY_IN:
        put_sent(a, LK__READS, LK__SPACE_EXCHANGED, in->bucket, r, reduced(a));
        put_sent(a, LK__WRITES, LK__SPACE_GRADIENTS, in->bucket, r, reduced(a));
        break;
    case LK__DO_START_BUCKET:
        put_sent(a, LK__READS_IN_PLACE, space, in->bucket, r, complete(a));
        put_sent(a, LK__WRITES, space, in->bucket, r, reduced(a));
        break;
    case LK__DO_START_SHARD:
    case LK__DO_START_SHARD_STAGED:
    case LK__DO_START_SCATTER: start_scatter(a, in->bucket, r); break;
    default: start_slices(a, &a->plan->buckets[in->bucket], r); break;
    }
}

void lk__access_bucket(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    const lk__plan_bucket *b = &a->plan->buckets[in->bucket];
    range                  r;
    for (size_t i = 0; i < a->plan->graph->states_count; i++)
        if (find_range(a, i, b->offset, b->offset + b->bytes, &r)) access_range(a, run, in, r);
    if ((in->action == LK__DO_START_SLICES || in->action == LK__DO_START_SOURCES) && a->plan->stage)
        lk__access_made_slices(a, in->bucket);
}

/* ---- a state that the ranks of a host share ---- */

static range piece_range(const lk__plan_accesses *a, const lk__plan_owned *piece)
{
    const lk__plan_state *s = &a->plan->states[piece->state];
    size_t                size = lk_dtype_size(a->plan->graph->real);
    size_t                begin = s->gradient_offset + (size_t)piece->first * size;
    return (range){piece->state, begin, begin + (size_t)piece->count * size};
}

static int bucket_of(const lk_plan *p, size_t offset)
{
    for (size_t i = 0; i < p->buckets_count; i++)
        if (offset >= p->buckets[i].offset && offset < p->buckets[i].offset + p->buckets[i].bytes) return (int)i;
    return -1;
}

/* What ranks sum when they need it: each rank's own part of the sum, where it has it. */
static void read_late(lk__plan_accesses *a, lk__plan_access_kind kind, range r)
{
    int bucket = bucket_of(a->plan, r.begin);
    if (lk__plan_by_slices(a->plan))
        read_subtrees(a, kind, LK__SPACE_GRADIENTS, r);
    else if (bucket >= 0)
        put_sent(a, kind, LK__SPACE_GRADIENTS, bucket, r, complete(a));
    else /* not reached: every gradient is in a bucket */
        put_gradient(a, kind, LK__SPACE_GRADIENTS, 0, r, complete(a));
}

/* Others read what is in their slices; this rank may write to its own. r: of a gradient that begins in it, as its
 * bucket does. */
static void lend_range(lk__plan_accesses *a, range r)
{
    lk__plan_slices s = lk__plan_state_slices(a->plan, (size_t)r.state, LK__ARRAY_STORED);
    size_t          size = lk_dtype_size(a->plan->graph->real), base = a->plan->states[r.state].gradient_offset;
    lk__range       owned;
    for (size_t at = r.begin, end; at < r.end; at = end) {
        int owner = lk__slices_owner(&s, (int64_t)((at - base) / size), &owned);
        end = base + (size_t)owned.end * size;
        if (end > r.end || end <= at) end = r.end;
        read_late(a, owner == s.owner ? LK__READS : LK__LENDS, (range){r.state, at, end});
    }
}

void lk__access_lent(lk__plan_accesses *a)
{
    const lk_plan *p = a->plan;
    range          r;
    for (size_t b = 0; b < p->buckets_count; b++)
        for (size_t i = 0; i < p->graph->states_count; i++)
            if (find_range(a, i, p->buckets[b].offset, p->buckets[b].offset + p->buckets[b].bytes, &r))
                lend_range(a, r);
}

static void sum_piece(lk__plan_accesses *a, const lk__plan_owned *piece)
{
    range r = piece_range(a, piece);
    if (a->late && a->plan->parallel.hosts == 1)
        read_late(a, LK__READS, r);
    else
        put_gradient(a, LK__READS, LK__SPACE_GRADIENTS, 0, r, reduced(a));
}

/* Across hosts: the owners of the same slices add what they have summed over the leaves of their hosts. */
static void exchange_pieces(lk__plan_accesses *a)
{
    for (size_t i = 0; i < a->pieces_count; i++) {
        range r = piece_range(a, &a->pieces[i]);
        read_late(a, LK__READS_IN_PLACE, r);
        put_gradient(a, LK__WRITES, LK__SPACE_GRADIENTS, 0, r, reduced(a));
    }
    lk__access_number(a, LK__WRITES, LK__SPACE_PEERS, 0, LK__PART_ALL, 0); /* not known until a barrier */
}

static void read_peers(lk__plan_accesses *a) { lk__access_number(a, LK__READS, LK__SPACE_PEERS, 0, LK__PART_ALL, 1); }

/* Elements of a value of the state from which a piece begins, in its own type. */
static void access_elements(lk__plan_accesses *a, lk__plan_access_kind kind, int v, const lk__plan_owned *piece)
{
    size_t            before = a->count, size = lk_dtype_size(a->list->graph->values[v].shape.dtype);
    lk__plan_content *content = lk__access_value(a, kind, v, 0, LK__PART_ALL, 0);
    (void)content;
    if (a->count == before) return;
    a->all[before].end = a->all[before].begin + (size_t)(piece->first + piece->count) * size;
    a->all[before].begin += (size_t)piece->first * size;
}

static int state_of(const lk__plan_accesses *a, int gradient)
{
    for (size_t i = 0; i < a->plan->graph->states_count; i++)
        if (a->list->gradients[i] == gradient) return (int)i;
    return -1;
}

static void update_pieces(lk__plan_accesses *a, const lk__graph_node *n)
{
    int state = state_of(a, n->in[0]);
    lk__access_number(a, LK__READS, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    if (a->late && a->plan->parallel.hosts == 1) read_peers(a);
    for (int i = 1; i < n->inputs; i++)
        if (n->in[i] >= 0) lk__access_value(a, LK__READS, n->in[i], 0, LK__PART_ALL, 0);
    for (size_t i = 0; i < a->pieces_count; i++) {
        if (a->pieces[i].state != state) continue;
        sum_piece(a, &a->pieces[i]);
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) access_elements(a, LK__READS_IN_PLACE, n->out[k], &a->pieces[i]);
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) access_elements(a, LK__WRITES, n->out[k], &a->pieces[i]);
    }
}

static void square_pieces(lk__plan_accesses *a, const lk__graph_node *n)
{
    int state = state_of(a, n->in[0]);
    read_peers(a);
    for (size_t i = 0; i < a->pieces_count; i++)
        if (a->pieces[i].state == state) sum_piece(a, &a->pieces[i]);
    lk__access_number(a, LK__WRITES, LK__SPACE_SQUARES, (size_t)state, LK__PART_ALL, 1);
}

/* Then all ranks have the squares of all slices. */
static void gather_squares(lk__plan_accesses *a)
{
    for (size_t i = 0; i < a->list->order_count; i++) {
        const lk__graph_node *n = &a->list->graph->nodes[a->list->order[i]];
        if (n->op != LK__OP_square_sum) continue;
        lk__access_number(a, LK__READS, LK__SPACE_SQUARES, (size_t)state_of(a, n->in[0]), LK__PART_ALL, 1);
        lk__access_value(a, LK__WRITES, n->out[0], 0, LK__PART_ALL, 0);
    }
}

/* What this rank owns must be new; then all is, since the other owners are at the barrier as well. */
static void end_update(lk__plan_accesses *a)
{
    const lk_plan *p = a->plan;
    for (size_t i = 0; i < a->list->order_count; i++) {
        const lk__graph_node *n = &a->list->graph->nodes[a->list->order[i]];
        if (lk__op_find(n->op)->effect != LK__EFFECT_STATE) continue;
        int             state = state_of(a, n->in[0]);
        lk__plan_slices s = lk__plan_state_slices(p, (size_t)state, LK__ARRAY_STORED);
        lk__range       owned = lk__slices_owned(&s, s.owner);
        lk__plan_owned  piece = {state, owned.first, lk__range_count(owned)};
        for (int k = 0; k < n->outputs && piece.count > 0; k++) {
            size_t before = a->count;
            if (n->out[k] >= 0) access_elements(a, LK__READS_IN_PLACE, n->out[k], &piece);
            if (a->count > before) a->all[before].content.stage = LK__STAGE_UPDATED;
        }
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) lk__access_value(a, LK__WRITES, n->out[k], 0, LK__PART_ALL, 0);
    }
}

void lk__access_shared(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    const lk__graph_node *n = in->node >= 0 ? &a->list->graph->nodes[in->node] : NULL;
    (void)run;
    switch (in->action) {
    case LK__DO_EXCHANGE: exchange_pieces(a); break;
    case LK__DO_WAIT_SLICES: lk__access_number(a, LK__WRITES, LK__SPACE_PEERS, 0, LK__PART_ALL, 1); break;
    case LK__DO_SQUARE_SLICES: square_pieces(a, n); break;
    case LK__DO_BARRIER_NORM: gather_squares(a); break;
    case LK__DO_UPDATE_SLICES: update_pieces(a, n); break;
    default: end_update(a); break;
    }
}
