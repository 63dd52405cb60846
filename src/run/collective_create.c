/* collective_create.c - creates what the collectives of a program need: buffers and groups; and decides which
 * collectives overlap with kernels. */
#include "run/collective.h"

#include "comm/abort.h"
#include "comm/comm.h"
#include "plan/expert_leaves.h"

/* The widest operand of a collective other than a bucket, in bytes. Along an axis that does not split the batch values
 * are sent from and to where they are, unless the group does not reach them there. */
static size_t widest_operand(const lk_program *p, const lk__plan_list *list)
{
    size_t most = (LK__RUN_NUMBERS + LK__RUN_REPORT) * sizeof(double);
    for (size_t i = 0; list->graph && i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_COLLECTIVE) continue;
        const lk__graph_value *x = &list->graph->values[n->in[0]], *y = &list->graph->values[n->out[0]];
        size_t                 bytes = (size_t)lk__shape_elements(&x->shape) * lk_dtype_size(x->shape.dtype);
        size_t                 made = (size_t)lk__shape_elements(&y->shape) * lk_dtype_size(y->shape.dtype);
        bool                   in_place = x->kind == LK__VALUE_UNIT || x->kind == LK__VALUE_BUCKET;
        if (in_place && !(p->group.staged && p->plan->stage)) continue;
        if (!in_place && n->attrs.mesh && !p->group.staged) continue;
        if (in_place && n->op == LK__OP_reduce_scatter)
            bytes /= (size_t)n->attrs.parts; /* of which there are so many, at most */
        if (!in_place && n->attrs.mesh && made > bytes) bytes = made;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Reserves the next bytes of one block; with memory NULL it only measures. */
static void *reserve_bytes(char *memory, size_t *used, size_t bytes)
{
    char *at = memory ? memory + *used : NULL;
    *used += lk__round_up(bytes, LK__ALIGN);
    return at;
}

/* The reports of all ranks (lk__gather_reports): ranks that have the same part of the batch each send its numbers. */
static size_t report_bytes(const lk_plan *plan)
{
    size_t numbers = (size_t)plan->evaluate.numbers_count, count = 0;
    for (int rank = 0; rank < lk__plan_ranks(plan); rank++) {
        lk__range leaves = lk__plan_leaves(plan, lk__plan_batch_part_of(plan, rank));
        count += LK__RUN_REPORT + (size_t)lk__range_count(leaves) * numbers;
    }
    return count * sizeof(double);
}

/* The host's copies of what the sends and receives of a list move. */
static size_t lay_out_transfers(const lk_program *p, const lk__run_list *list, lk__run_collective *all, char *memory,
                                size_t used)
{
    for (size_t i = 0; i < list->count && p->group.staged; i++) {
        const lk__run_instruction *in = &list->instructions[i];
        size_t                     bytes = lk__transfer_bytes(in);
        char                      *staged = bytes ? reserve_bytes(memory, &used, bytes) : NULL;
        if (memory && bytes) all[in->collective].staged = staged;
    }
    return used;
}

/* This rank's slice of the largest bucket that is exchanged subtree by subtree; 0: none is. */
static size_t slice_bytes(const lk_plan *plan)
{
    size_t most = 0;
    for (size_t i = 0; i < plan->buckets_count; i++) {
        const lk__plan_bucket *b = &plan->buckets[i];
        bool                   sources = lk__bucket_has_sources(plan, b);
        unsigned               among = sources ? LK__PLAN_BATCH_AXES & ~plan->expert_axes : LK__PLAN_BATCH_AXES;
        unsigned               sliced = sources ? (unsigned)LK_AXIS_SHARD : lk__plan_shard_axes(plan);
        if (!lk__bucket_by_slices(plan, b) || plan->shared || lk__mesh_extent(&plan->mesh, among) == 1) continue;
        size_t slices = (size_t)lk__mesh_extent(&plan->mesh, plan->stage ? sliced : among);
        size_t bytes = lk__round_up(b->bytes / slices + 2 * LK__ALIGN, LK__ALIGN);
        if (bytes > most) most = bytes;
    }
    return most;
}

static size_t lay_out(const lk_program *p, lk__run_collectives *x, char *memory)
{
    const lk_plan *plan = p->plan;
    size_t         used = lk__round_up(sizeof *x, LK__ALIGN), ranks = (size_t)lk__plan_ranks(plan);
    size_t         parts = (size_t)lk__plan_batch_parts(plan), reports = report_bytes(plan);
    size_t         leaves = plan->parallel.leaves ? (size_t)plan->parallel.leaves : parts,
           widest = widest_operand(p, &plan->train);
    if (widest_operand(p, &plan->evaluate) > widest) widest = widest_operand(p, &plan->evaluate);
    x->all = reserve_bytes(memory, &used, x->count * sizeof *x->all);
    x->subtrees = reserve_bytes(memory, &used, 2 * leaves * sizeof *x->subtrees);
    x->counts = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->displacements = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->more_counts = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->more_displacements = reserve_bytes(memory, &used, ranks * sizeof(size_t));
    x->gathered = reserve_bytes(memory, &used, reports > leaves * widest ? reports : leaves * widest);
    x->mine = reserve_bytes(memory, &used, leaves * widest);
    x->reports = reserve_bytes(memory, &used, ranks * sizeof *x->reports);
    x->ranks = reserve_bytes(memory, &used, ranks * sizeof *x->ranks);
    used = lk__routes_lay_out(p, x, memory, used);
    for (size_t i = 0; i * x->each < x->evaluate; i++)
        used = lay_out_transfers(p, &p->slots[i].train, x->all + i * x->each, memory, used);
    used = lay_out_transfers(p, &p->evaluate, x->all + x->evaluate, memory, used);
    bool sources = plan->trains && lk__plan_expert_leaves(plan);
    x->slice_bytes = slice_bytes(plan);
    if (sources) x->joined = reserve_bytes(memory, &used, leaves * sizeof *x->joined);
    if (x->slice_bytes == 0 && !sources) return used;
    x->slices = reserve_bytes(memory, &used, x->slice_bytes * 2 * leaves);
    x->scratch = reserve_bytes(memory, &used, lk__leaf_tree_scratch_bytes());
    return used;
}

static bool overlaps(const lk_program *p, const lk__run_collectives *x, const lk__run_instruction *in)
{
    unsigned axes = in->call.attrs ? in->call.attrs->mesh : 0;
    bool     other = axes && p->mesh && lk__mesh_extent(&p->plan->mesh, axes) > 1;
    return other ? lk__comm_overlaps(lk__run_group(p, axes), lk_context_threads(p->context)) : x->overlaps;
}

/* Those of a list, into `all`. */
static void find_collectives(const lk_program *p, const lk__run_collectives *x, const lk__run_list *list,
                             lk__run_collective *all)
{
    for (size_t i = list->count; i-- > 0;) { /* the first start of each counts: LK_SYNC may have a second of a bucket */
        const lk__run_instruction *in = &list->instructions[i];
        if (lk__action_kind_of(in->action) != LK__IS_START) continue;
        bool bucket = in->bucket >= 0;
        bool follows = i + 1 < list->count && in[1].action == LK__DO_WAIT && in[1].collective == in->collective;
        bool in_flight = lk__action_transfers(in->action);
        all[in->collective] = (lk__run_collective){
            .list = list,
            .start = i,
            .bucket = in->bucket,
            .staged = all[in->collective].staged,
            .at_once = !in_flight && (!overlaps(p, x, in) || (!bucket && (follows || p->group.staged)))};
    }
}

static unsigned axes_of(const lk__run_collectives *x, size_t collective)
{
    const lk__run_collective *c = &x->all[collective];
    const lk__op_attrs       *attrs = c->list ? c->list->instructions[c->start].call.attrs : NULL; /* summed late */
    return attrs ? attrs->mesh : 0;
}

/* Collectives along these axes that may be in flight, other than buckets of the group for these. */
static int count_others(const lk__run_collectives *x, unsigned axes, bool buckets)
{
    int count = 0;
    for (size_t i = 0; i < x->count; i++)
        count += (buckets || x->all[i].bucket < 0) && !x->all[i].at_once && axes_of(x, i) == axes;
    return count;
}

/* Of groups along axes that do not split the batch. */
static lk_status reserve_groups(const lk_program *p, const lk__run_collectives *x)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < x->count && status >= 0; i++) {
        unsigned axes = axes_of(x, i);
        size_t   first = 0;
        while (axes_of(x, first) != axes) first++;
        bool experts = p->plan->expert_axes != 0; /* whose buckets have a group of their own */
        bool alone = lk__mesh_extent(&p->plan->mesh, axes) == 1;
        int  count = axes && !alone && first == i ? count_others(x, axes, experts) : 0;
        if (count && (axes & LK__PLAN_STAGE_AXES)) /* and as many that other stages have sent already */
            status = lk__comm_reserve_transfers(lk__run_group(p, axes), 2 * count + 1);
        else if (count)
            status = lk_comm_reserve(lk__run_group(p, axes), count + 1);
    }
    return status;
}

/* Buckets get a group of their own where other collectives run in backward and must not queue behind them. */
static lk_status open_bulk(lk_program *p, lk__run_collectives *x)
{
    lk_status status = LK_OK;
    int       others = count_others(x, 0, false);
    lk_comm  *from = p->plan->stage && !lk__plan_by_slices(p->plan) ? p->shard : p->batch;
    x->bulk = from;
    if (x->overlaps && (p->plan->syncs || p->plan->expert_axes) && from) {
        status = lk_comm_split(from, 0, lk_comm_rank(from), &x->bulk);
        x->split = status >= 0;
        if (x->split && p->group.queued && p->memory.gradients)
            status = lk__comm_adopt(x->bulk, p->batch, p->memory.gradients);
    }
    /* All buckets at once, and one call that queues behind them. */
    if (status >= 0 && x->overlaps && from) status = lk_comm_reserve(x->bulk, (int)p->plan->buckets_count + 1);
    if (status >= 0 && others) status = lk_comm_reserve(p->batch, others + 1);
    return status;
}

/* All subtrees of the tree over leaves that one rank has whole. */
static void find_subtrees(lk__run_collectives *x, const lk_plan *plan)
{
    for (int part = 0; part < lk__plan_batch_parts(plan); part++) {
        lk__leaf_sum sums[LK__LEAVES_MOST];
        lk__range    own = lk__plan_leaves(plan, part);
        int          count = lk__leaf_stack(plan, part, (int)lk__range_count(own), sums);
        for (int i = 0; i < count; i++) {
            int first = (int)own.first + sums[i].first;
            x->subtrees[x->subtrees_count++] = (lk__run_subtree){first, first + sums[i].count, part, sums[i].set};
        }
    }
}

/* Slots whose collectives may be in flight at the same time; slots that advance together have one for all. */
static int count_flying_slots(const lk_plan *plan) { return lk__plan_leaves_together(plan) ? 1 : plan->slots; }

lk_status lk__collectives_create(lk_program *p)
{
    const lk_parallel  *parallel = &p->plan->parallel;
    size_t              each = p->slots[0].train.collectives;
    lk__run_collectives measured = {.each = each, .evaluate = each * (size_t)count_flying_slots(p->plan)};
    if (parallel->leaves > LK__LEAVES_MOST)
        return lk__fail(p->context, LK_EUNSUPPORTED, "too many leaves (%d): at most %d are supported", parallel->leaves,
                        LK__LEAVES_MOST);
    measured.count = measured.evaluate + p->evaluate.collectives;
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_collectives *x = p->collectives = (lk__run_collectives *)memory;
    x->count = measured.count;
    x->evaluate = measured.evaluate;
    x->each = measured.each;
    lay_out(p, x, memory);
    x->bytes = bytes;
    if (parallel->leaves) find_subtrees(x, p->plan);
    if (x->joined) lk__expert_tree_join(x, p->plan);
    x->overlaps = p->group.overlaps;
    for (size_t i = 0; i * x->each < x->evaluate; i++) find_collectives(p, x, &p->slots[i].train, x->all + i * x->each);
    find_collectives(p, x, &p->evaluate, x->all + x->evaluate);
    lk_status status = p->batch ? open_bulk(p, x) : LK_OK;
    if (status >= 0) status = lk__collective_queue_create(p);
    return status < 0 ? status : reserve_groups(p, x);
}

void lk__collectives_free(lk_program *p)
{
    lk__run_collectives *x = p->collectives;
    if (!x) return;
    lk__collective_queue_free(p);
    for (size_t i = 0; i < x->count; i++)
        if (x->all[i].work) (void)lk_work_wait(x->all[i].work);
    if (x->split) lk_comm_free(x->bulk);
    lk__free(p->context, LK_MEMORY_OTHER, x, x->bytes);
    p->collectives = NULL;
}
