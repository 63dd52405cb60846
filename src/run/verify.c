/* verify.c - what ranks compare before and during training: their programs, line by line, and their parameters. */
#include "run/program.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE = LK__VERIFY_LINE };

/* ---- programs ---- */

/* Line `index` of the description of a program, or false past the last. Nothing in it depends on the rank. */
static bool plan_line(const lk_plan *plan, size_t index, char text[LINE])
{
    const lk_parallel *parallel = &plan->parallel;
    const lk_graph    *g = plan->graph;
    if (index == 0) {
        char mesh[LK__MESH_TEXT];
        snprintf(
            text,
            LINE, "%s%s, gradients in %s, mesh %s, %s state on %d hosts, %d micro-batches, %d leaves, %zu buckets, %d helpers",
            lk_dtype_name(g->real), plan->policy == LK_POLICY_RECORDED ? "" : " with policy bf16",
            lk_dtype_name(plan->gradient_dtype), lk__mesh_format(&plan->mesh, mesh),
            plan->shared ? "shared" : "replicated", parallel->hosts, parallel->micro_batches, parallel->leaves,
            plan->buckets_count, plan->helpers);
        return true;
    }
    index -= 1;
    if (index < g->states_count) {
        const lk__graph_state *s = &g->states[index];
        char                   shape[96], splits[160];
        lk__shape_text(&g->values[s->value].shape, shape, sizeof shape);
        snprintf(text, LINE, "%s %.160s %s %s%s%s%s", s->buffer ? "buffer" : "parameter", s->name,
                 lk_dtype_name(g->values[s->value].shape.dtype), shape,
                 plan->states[index].trained ? "" : ", not trained", s->not_saved ? ", not saved" : "",
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

static uint64_t hash_plan(const lk_plan *plan, size_t from, size_t to)
{
    char     text[LINE];
    uint64_t hash = 7;
    for (size_t i = from; i < to && plan_line(plan, i, text); i++) hash = lk__hash64(text, strlen(text), hash);
    return hash;
}

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

/* All ranks' hashes, whether rank 0's device chooses among algorithms, and whether collectives overlap with kernels on all ranks: where the
 * state is shared, which collectives there are depends on it. The algorithms that rank 0 is to use are not compared yet: the others
 * receive them. */
static lk_status compare_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses, bool *overlaps, int *different)
{
    int       world = lk_comm_size(comm);
    size_t    bytes = (size_t)world * 2 * sizeof(uint64_t);
    uint64_t *all = lk__alloc(plan->context, LK_MEMORY_OTHER, bytes);
    bool      chooses = plan->device->backend->choose_begin != NULL;
    uint64_t  mine[2] = {hash_plan(plan, 0, SIZE_MAX) ^ lk__plan_hash(plan),
                         (uint64_t)chooses | (uint64_t)*overlaps << 1};
    if (!all) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather(comm, mine, all, sizeof mine, LK_U8, NULL);
    *different = -1;
    for (int i = world; status >= 0 && i-- > 1;)
        if (all[2 * i] != all[0]) *different = i;
    for (int i = 0; i < world && status >= 0 && plan->shared; i++) *overlaps &= all[2 * i + 1] >> 1 != 0;
    *first_chooses = status >= 0 && (all[1] & 1);
    lk__free(plan->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

lk_status lk__verify_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses, bool *overlaps)
{
    char      text[LINE] = "(nothing more)";
    int       different;
    lk_status status = compare_plans(plan, comm, first_chooses, overlaps, &different);
    if (status < 0 || different < 0) return status;
    /* The first line that differs, by bisection. All ranks take the same branches, because all get the same results. */
    size_t same = 0, differs = 1;
    for (bool found = false; !found; differs *= 2) {
        if ((status = lk__find_different(plan->context, comm, hash_plan(plan, 0, differs), &different)) < 0)
            return status;
        found = different >= 0 || differs > 1u << 20;
        if (found) break;
        same = differs;
    }
    while (differs - same > 1) {
        size_t middle = same + (differs - same) / 2;
        if ((status = lk__find_different(plan->context, comm, hash_plan(plan, 0, middle), &different)) < 0)
            return status;
        if (different >= 0)
            differs = middle;
        else
            same = middle;
    }
    if ((status = lk__find_different(plan->context, comm, hash_plan(plan, 0, differs), &different)) < 0) return status;
    if (different < 0)
        return lk__fail(
            plan->context, LK_EMISMATCH,
            "the ranks would run the same instructions with different settings (an optimizer's, a schedule's): "
            "start all of them with the same options");
    (void)plan_line(plan, same, text);
    return lk__report_difference(plan->context, comm, text, different,
                                 "the ranks would not run the same program; they first differ in");
}

/* ---- parameters ---- */

static lk_status hash_state(const lk_program *p, size_t index, uint64_t *hash)
{
    const char *name = p->plan->graph->states[index].name;
    return lk__store_hash_state(p->store, index, lk__hash64(name, strlen(name), 3), hash);
}

/* Buffers may differ, since each rank keeps statistics of its own samples: rank 0's are used. Synchronised statistics may not. What ranks
 * share cannot, except between the copies of hosts, and of the memory nodes of one. All ranks must decide the same, and hosts may have
 * different numbers of nodes, so every rank compares what it reads. */
static bool is_compared(const lk_program *p, size_t index)
{
    bool buffer = p->plan->graph->states[index].buffer;
    if (lk__store_shares(p->store, index)) return lk__store_hosts(p->store) > 1 || p->store->nodes > 1;
    return p->store->comm ? buffer && p->plan->syncs : !buffer;
}

lk_status lk_program_verify(lk_program *p, int64_t step)
{
    size_t    count = lk_store_count(p->store);
    uint64_t  whole = 5, one;
    int       different;
    lk_status status;
    if (!p->comm) return LK_OK;
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
