/* verify.c - comparisons between ranks before and during training: of their programs, line by line, the order of their
 * collectives, and their parameters. */
#include "run/program.h"

#include "base/hash.h"
#include "plan/pipeline.h"
#include "plan/verify_schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE = LK__VERIFY_LINE };

/* ---- one number, or one text, of every rank ---- */

lk_status lk__find_different(lk_context *c, lk_comm *comm, uint64_t mine, int *different)
{
    int       world = lk_comm_size(comm);
    size_t    bytes = (size_t)world * sizeof(uint64_t);
    uint64_t *all = lk__alloc(c, LK_MEMORY_OTHER, bytes);
    if (!all) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather(comm, &mine, all, sizeof mine, LK_U8, NULL);
    *different = -1;
    for (int i = world; status >= 0 && i-- > 1;)
        if (all[i] != all[0]) *different = i;
    lk__free(c, LK_MEMORY_OTHER, all, bytes);
    return status;
}

lk_status lk__report_difference(lk_context *c, lk_comm *comm, const char *mine, int different, const char *what)
{
    char texts[2][LINE];
    for (int i = 0; i < 2; i++) {
        snprintf(texts[i], LINE, "%s", mine);
        lk_status status = lk_comm_broadcast(comm, texts[i], LINE, LK_U8, i ? different : 0, NULL);
        if (status < 0) return status;
        texts[i][LINE - 1] = 0;
    }
    return lk__fail(c, LK_EMISMATCH, "%s\n  rank 0: %s\n  rank %d: %s", what, texts[0], different, texts[1]);
}

/* ---- lines of text, of which each rank has its own ---- */

typedef struct described {
    lk_context *context;
    lk_comm    *comm;
    const void *subject;
    bool (*line)(const void *subject, size_t index, char text[LINE]); /* false: past the last */
    const char *differ;                                               /* the sentence about the first difference */
} described;

static uint64_t hash_lines(const described *d, size_t from, size_t to)
{
    char     text[LINE];
    uint64_t hash = 7;
    for (size_t i = from; i < to && d->line(d->subject, i, text); i++) hash = lk__hash64(text, strlen(text), hash);
    return hash;
}

/* Names the first line that differs, by bisection; LK_OK: none does. All ranks take the same branches, because all get
 * the same results. */
static lk_status report_lines(const described *d)
{
    char      text[LINE] = "(nothing more)";
    int       different;
    size_t    same = 0, differs = 1;
    lk_status status;
    for (bool found = false; !found; differs *= 2) {
        if ((status = lk__find_different(d->context, d->comm, hash_lines(d, 0, differs), &different)) < 0)
            return status;
        found = different >= 0 || differs > 1u << 20;
        if (found) break;
        same = differs;
    }
    while (differs - same > 1) {
        size_t middle = same + (differs - same) / 2;
        if ((status = lk__find_different(d->context, d->comm, hash_lines(d, 0, middle), &different)) < 0) return status;
        if (different >= 0)
            differs = middle;
        else
            same = middle;
    }
    if ((status = lk__find_different(d->context, d->comm, hash_lines(d, 0, differs), &different)) < 0) return status;
    if (different < 0) return LK_OK;
    (void)d->line(d->subject, same, text);
    return lk__report_difference(d->context, d->comm, text, different, d->differ);
}

/* ---- programs ---- */

/* Line `index` of the description of a program, or false past the last. Nothing in it depends on the rank. */
static bool plan_line(const void *subject, size_t index, char text[LINE])
{
    const lk_plan     *plan = subject;
    const lk_parallel *parallel = &plan->parallel;
    const lk_graph    *g = plan->graph;
    if (index == 0) {
        char mesh[LK__MESH_TEXT];
        snprintf(text, LINE,
                 "%s%s%s, gradients in %s, matmul precision %s, mesh %s, %s state on %d hosts, shard stage %d, %d "
                 "micro-batches, %d leaves%s, %zu buckets, %d helpers",
                 lk_dtype_name(g->real), plan->policy == LK_POLICY_RECORDED ? "" : " with policy ",
                 plan->policy == LK_POLICY_RECORDED ? "" : lk_policy_name(plan->policy),
                 lk_dtype_name(plan->gradient_dtype), lk_matmul_precision_name(plan->matmul_precision),
                 lk__mesh_format(&plan->mesh, mesh), plan->shared ? "shared" : "replicated", parallel->hosts,
                 plan->stage, parallel->micro_batches, parallel->leaves,
                 parallel->reproducible_layout ? " in every layout" : "", plan->buckets_count, plan->helpers);
        return true;
    }
    index -= 1;
    if (index < g->states_count) {
        const lk__graph_state *s = &g->states[index];
        char                   shape[96], splits[160];
        lk__shape_text(&g->values[s->value].shape, shape, sizeof shape);
        snprintf(text, LINE, "%s %.160s %s %s%s%s%s", s->buffer ? "buffer" : "parameter", s->name,
                 lk_dtype_name(g->values[s->value].shape.dtype), shape,
                 lk__plan_trains(plan, index) ? "" : ", not trained", s->not_saved ? ", not saved" : "",
                 lk__plan_splits_text(plan, index, splits, sizeof splits));
        return true;
    }
    index -= g->states_count;
    if (index < g->constants_count) {
        lk__constant_text(g, index, text, LINE);
        return true;
    }
    index -= g->constants_count;
    if (index < g->metrics_count) {
        snprintf(text, LINE, "metric %.160s", g->metrics[index].name);
        return true;
    }
    index -= g->metrics_count;
    if (index >= plan->train.order_count) return false;
    lk__node_text(plan->train.graph, &plan->train.graph->nodes[plan->train.order[index]], text, LINE);
    return true;
}

/* What the ranks of all stages have in common: the states, constants and metrics. */
static bool common_line(const void *subject, size_t index, char text[LINE])
{
    const lk_graph *g = ((const lk_plan *)subject)->graph;
    return index < g->states_count + g->constants_count + g->metrics_count && plan_line(subject, index + 1, text);
}

static described describe_plan(const lk_plan *plan, lk_comm *comm)
{
    return (described){plan->context, comm, plan, plan_line,
                       "the ranks would not run the same program; they first differ in"};
}

/* What all stages of a pipeline have in common besides these lines. */
static uint64_t hash_stages(const lk_plan *plan)
{
    const lk_parallel *parallel = &plan->parallel;
    const int settings[] = {parallel->micro_batches,   parallel->leaves,  (int)parallel->pipeline_schedule, plan->stage,
                            (int)plan->gradient_dtype, (int)plan->policy, (int)plan->matmul_precision};
    return plan->pipeline ? lk__hash64(settings, sizeof settings, plan->pipeline->hash) : 0;
}

/* All ranks' hashes, whether rank 0's device chooses among algorithms, and whether collectives overlap with kernels on
 * all ranks: where the state is shared, which collectives there are depends on it. The algorithms that rank 0 is to use
 * are not compared yet: the others receive them. */
enum { COMPARED = 3 }; /* numbers of each rank */
static lk_status compare_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses, bool *overlaps, int *different)
{
    int       world = lk_comm_size(comm);
    size_t    bytes = (size_t)world * COMPARED * sizeof(uint64_t);
    uint64_t *all = lk__alloc(plan->context, LK_MEMORY_OTHER, bytes);
    bool      chooses = plan->device->backend->kernels.choose_begin != NULL;
    described lines = describe_plan(plan, comm), common = lines;
    common.line = common_line;
    uint64_t mine[COMPARED] = {hash_lines(&lines, 0, SIZE_MAX) ^ lk__plan_hash(plan),
                               (uint64_t)chooses | (uint64_t)*overlaps << 1,
                               hash_lines(&common, 0, SIZE_MAX) ^ hash_stages(plan)};
    if (!all) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather(comm, mine, all, sizeof mine, LK_U8, NULL);
    *different = -1;
    for (int i = world; status >= 0 && i-- > 1;) {
        int first = lk__mesh_member(&plan->mesh, LK_AXES_ALL & ~(unsigned)LK__PLAN_STAGE_AXES, i, 0); /* of its stage */
        if (all[COMPARED * i] != all[COMPARED * first] || all[COMPARED * i + 2] != all[2]) *different = i;
    }
    for (int i = 0; i < world && status >= 0 && plan->shared; i++) *overlaps &= all[COMPARED * i + 1] >> 1 != 0;
    *first_chooses = status >= 0 && (all[1] & 1);
    lk__free(plan->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

lk_status lk__verify_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses, bool *overlaps)
{
    int       different;
    lk_status status = compare_plans(plan, comm, first_chooses, overlaps, &different);
    if (status < 0 || different < 0) return status;
    described lines = describe_plan(plan, comm);
    if (plan->pipeline) lines.line = common_line; /* instructions differ from stage to stage */
    status = report_lines(&lines);
    return status < 0 ? status
                      : lk__fail(plan->context, LK_EMISMATCH,
                                 "the ranks would run the same instructions with different settings (of an optimizer "
                                 "or a schedule): start all of them with the same options");
}

/* ---- the order of collectives ---- */

static bool order_line(const void *subject, size_t index, char text[LINE])
{
    const lk__plan_order_list *order = subject;
    if (index >= order->count) return false;
    lk__collective_text(order, index, text, LINE);
    return true;
}

/* The collectives of a step, waited for or queued, then of an evaluation. */
static lk_status list_order(const lk_program *p, lk__plan_order_list *order)
{
    static const lk__schedule_kind kinds[] = {LK__SCHEDULE_STEP, LK__SCHEDULE_HELD, LK__SCHEDULE_QUEUED,
                                              LK__SCHEDULE_EVALUATION};
    lk_status                      status = LK_OK;
    *order = (lk__plan_order_list){.all = NULL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && status >= 0; i++)
        status = lk__collective_order_of(p->plan, p->group, kinds[i], order);
    return status;
}

/* Without those of the ranks along axes that place values: where leaves run one after the other, and are not equally
 * many on all ranks, these run more often on some. */
static void keep_common(const lk_plan *plan, lk__plan_order_list *order)
{
    size_t kept = 0;
    for (size_t i = 0; i < order->count; i++) {
        unsigned axes = lk__axes_plain(order->all[i].axes);
        if (!axes || (axes & ~plan->placed_axes)) order->all[kept++] = order->all[i];
    }
    order->count = kept;
}

static lk_status compare_order(lk_program *p, lk_comm *comm, const lk__plan_order_list *order)
{
    int       different = -1;
    described lines = {
        p->context, comm, order, order_line,
        "the ranks would not run their collectives in the same order, and would deadlock or add unrelated "
        "values; they first differ in"};
    lk_status status = lk__find_different(p->context, comm, hash_lines(&lines, 0, SIZE_MAX), &different);
    return status >= 0 && different >= 0 ? report_lines(&lines) : status;
}

/* Ranks along axes that place values run all collectives in one order; all ranks those that they have in common. Then
 * none waits for another: each group arrives at the next common one with its own behind it. */
lk_status lk__verify_order(lk_program *p)
{
    lk__plan_order_list order;
    lk_comm            *placed = p->plan->placed_axes ? lk__mesh_find_group(p->mesh, p->plan->placed_axes) : NULL;
    lk_comm            *all = p->comm;
    if (p->plan->pipeline) all = lk__mesh_find_group(p->mesh, LK_AXES_ALL & ~(unsigned)LK__PLAN_STAGE_AXES);
    lk_status status = list_order(p, &order);
    if (status >= 0 && placed) status = compare_order(p, placed, &order);
    if (placed) keep_common(p->plan, &order);
    if (status >= 0 && all) status = compare_order(p, all, &order); /* of a stage: those of others are simulated */
    lk__collective_order_free(p->context, &order);
    return status;
}

/* ---- parameters ---- */

static lk_status hash_state(const lk_program *p, size_t index, uint64_t *hash)
{
    const char *name = p->plan->graph->states[index].name;
    return lk__store_hash_state(p->store, index, lk__hash64(name, strlen(name), 3), hash);
}

/* Buffers may differ, since each rank keeps statistics of its own samples: rank 0's are used. Synchronised statistics
 * may not. What ranks share cannot, except between the copies of hosts, of coordinates along
 * tensor, and of the memory nodes of a host. All ranks must
 * decide the same, and hosts may have different numbers of nodes, so every rank compares what it reads. */
static bool is_compared(const lk_program *p, size_t index)
{
    bool buffer = p->plan->graph->states[index].buffer;
    if (lk__store_splits(p->store, index, LK_STATE_VALUE)) return false; /* verify_slices does */
    if (lk__store_shares(p->store, index)) return lk__plan_copies(p->plan) > 1 || p->store->nodes > 1;
    return p->store->comm ? buffer && p->plan->syncs : !buffer;
}

/* The axes along which ranks have different slices of a state's value. */
static unsigned split_axes(const lk_program *p, size_t index)
{
    lk__plan_slices s = lk__store_slices(p->store, index, LK_STATE_VALUE);
    unsigned        axes = s.splits.flat.axes | (s.splits.held ? LK__PLAN_STAGE_AXES : 0);
    for (int i = 0; i < s.splits.count; i++) axes |= lk__axes_plain(s.splits.split[i].axes);
    return s.parts > 1 ? axes : 0;
}

/* The hash of what this rank has of it. */
static lk_status hash_slice(const lk_program *p, size_t index, uint64_t *hash)
{
    lk__plan_slices s = lk__store_slices(p->store, index, LK_STATE_VALUE);
    size_t          bytes = (size_t)lk__slices_elements(&s, s.own) * lk_dtype_size(s.dtype);
    const char     *memory = lk__store_memory(p->store, index, LK_STATE_VALUE);
    return p->device->backend->kernels.hash(p->device, memory, bytes, 3, hash);
}

/* The first rank whose hash is not that of the rank with the same coordinates along `axes` and 0 along the others,
 * which is *other. */
static lk_status find_different_along(const lk_program *p, unsigned axes, uint64_t mine, int *different, int *other)
{
    int       ranks = lk__plan_ranks(p->plan);
    size_t    bytes = (size_t)ranks * sizeof(uint64_t);
    uint64_t *all = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    *different = -1;
    if (!all) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather(p->comm, &mine, all, 1, LK_I64, NULL);
    for (int i = ranks; status >= 0 && i-- > 0;) {
        int first = lk__mesh_member(&p->plan->mesh, LK_AXES_ALL & ~axes, i, 0);
        if (all[i] != all[first]) *different = i, *other = first;
    }
    lk__free(p->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

/* Slices that are split along these axes, of the ranks that have copies of them. */
static lk_status verify_slices(const lk_program *p, unsigned axes, int64_t step)
{
    size_t    count = lk_store_count(p->store);
    uint64_t  all = 5, one;
    int       different = -1, other = 0, found = 0;
    lk_status status = lk__store_check(p->store);
    for (size_t i = 0; i < count && status >= 0; i++) {
        if (split_axes(p, i) != axes || p->plan->graph->states[i].buffer) continue;
        status = hash_slice(p, i, &one);
        all = lk__hash64(&one, sizeof one, all);
        found++;
    }
    if (!found || status < 0) return status;
    if ((status = find_different_along(p, axes, all, &different, &other)) < 0 || different < 0) return status;
    for (size_t i = 0; i < count; i++) {
        if (split_axes(p, i) != axes || p->plan->graph->states[i].buffer) continue;
        if ((status = hash_slice(p, i, &one)) < 0 ||
            (status = find_different_along(p, axes, one, &different, &other)) < 0)
            return status;
        if (different >= 0)
            return lk__fail(p->context, LK_EMISMATCH,
                            "replicas diverged: at step %" PRId64
                            " rank %d's slice of \"%s\" differs from rank %d's. Bits must be the same on all ranks: "
                            "look for memory errors, different processors, or a manual change on one rank",
                            step, different, p->plan->graph->states[i].name, other);
    }
    return LK_OK;
}

lk_status lk_program_verify(lk_program *p, int64_t step)
{
    size_t    count = lk_store_count(p->store);
    uint64_t  whole = 5, one;
    int       different;
    lk_status status;
    if (!p->comm) return LK_OK;
    for (unsigned axes = 1; axes <= LK_AXES_ALL && p->plan->splits; axes++)
        if ((status = verify_slices(p, axes, step)) < 0) return status;
    for (size_t i = 0; i < count; i++)
        if (is_compared(p, i)) {
            if ((status = hash_state(p, i, &one)) < 0) return status;
            whole = lk__hash64(&one, sizeof one, whole);
        }
    if ((status = lk__find_different(p->context, p->comm, whole, &different)) < 0 || different < 0) return status;
    for (size_t i = 0; i < count; i++) {
        if (!is_compared(p, i)) continue;
        if ((status = hash_state(p, i, &one)) < 0 ||
            (status = lk__find_different(p->context, p->comm, one, &different)) < 0)
            return status;
        if (different < 0) continue;
        return lk__fail(p->context, LK_EMISMATCH,
                        "replicas diverged: at step %" PRId64
                        " rank %d's \"%s\" differs from rank 0's. Bits must be the same on all ranks: look for memory "
                        "errors, different processors, or a manual change on one rank",
                        step, different, p->plan->graph->states[i].name);
    }
    return LK_OK;
}
