/* tuning.c - the algorithms that a program's kernels use, where its device measures them: all ranks take rank 0's, so
 * they measure nothing and, on the same kind of GPU, compute with the same bits; and the list becomes part of the
 * plan's fingerprint, which ranks compare, and of checkpoints. */
#include "run/program.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* Those that run the same kernels: all ranks, or those of this stage of a pipeline; NULL: this one alone. */
static lk_comm *tuned_with(const lk_program *p)
{
    bool stages = lk__mesh_extent(&p->plan->mesh, LK__PLAN_STAGE_AXES) > 1;
    return stages ? lk__mesh_find_group(p->mesh, LK_AXES_ALL & ~(unsigned)LK__PLAN_STAGE_AXES) : p->comm;
}

static bool chooses(const lk_program *p) { return p->device->backend->kernels.choose_begin != NULL; }

/* ---- before kernels are prepared ---- */

/* Receives rank 0's list; it is the plan's then. */
static lk_status receive_list(lk_program *p, lk_comm *with)
{
    int64_t   length = 0;
    char     *text = NULL;
    lk_status status = lk_comm_broadcast(with, &length, 1, LK_I64, 0, NULL);
    if (status < 0) return status;
    if (length > 0 && !(text = lk__alloc(p->context, LK_MEMORY_OTHER, (size_t)length + 1))) return LK_ENOMEM;
    if (length > 0) status = lk_comm_broadcast(with, text, (size_t)length, LK_U8, 0, NULL);
    if (status >= 0) status = lk__plan_set_algorithms(p->plan, text, (size_t)length);
    lk__free(p->context, LK_MEMORY_OTHER, text, (size_t)length + 1);
    return status;
}

lk_status lk__tuning_begin(lk_program *p)
{
    lk_comm  *with = tuned_with(p);
    bool      follows = with && lk_comm_rank(with) > 0;
    lk_status status = LK_OK;
    if (follows && p->first_chooses) status = receive_list(p, with);
    if (with && !follows && chooses(p)) lk_comm_busy_begin(with, "choosing algorithms");
    if (status < 0 || !chooses(p)) return status;
    return p->device->backend->kernels.choose_begin(p->device, p->plan->algorithms,
                                                    follows ? "rank 0" : "the checkpoint", follows);
}

/* ---- the costliest kernels first ---- */

/* Nodes that have the same operation and shapes. */
typedef struct tuned_shape {
    const lk_graph       *graph;
    const lk__graph_node *node; /* the first of them */
    uint64_t              key;
    double                seconds; /* of all, as estimated */
    size_t                number;  /* in the order of the plan, so that all ranks have one order */
} tuned_shape;

static int compare_shapes(const void *a, const void *b)
{
    const tuned_shape *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static uint64_t hash_shape(lk__op op, const lk__kernel_call *call)
{
    uint64_t key = (uint64_t)op;
    for (int i = 0; i < call->inputs + call->outputs; i++) {
        const lk__kernel_operand *o = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
        int32_t                   kind[2] = {o->data ? (int32_t)o->dtype : -1, (int32_t)o->rank};
        key = lk__hash64(kind, sizeof kind, key);
        key = lk__hash64(o->dims, (size_t)o->rank * sizeof *o->dims, key);
    }
    return key;
}

static size_t list_shapes(const lk_program *p, const lk__plan_list *list, tuned_shape *shapes, size_t count)
{
    const lk__device_rates *rates = &p->device->backend->kernels.rates;
    for (size_t i = 0; i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        lk__kernel_call       call = {0};
        size_t                k = 0;
        if (!lk__plan_kernel(list->graph, n, &call).prepare || call.custom) continue;
        uint64_t key = hash_shape(n->op, &call);
        while (k < count && shapes[k].key != key) k++;
        if (k == count) shapes[count++] = (tuned_shape){list->graph, n, key, 0, k};
        shapes[k].seconds += lk__node_seconds(list->graph, n, rates->flops, rates->memory);
    }
    return count;
}

lk_status lk__tuning_prepare(lk_program *p)
{
    const lk__plan_list *lists[] = {&p->plan->train, &p->plan->weights, &p->plan->evaluate};
    size_t               most = 0, count = 0;
    lk_status            status = LK_OK;
    if (!chooses(p) || p->device->by_heuristic) return LK_OK;
    for (int i = 0; i < 3; i++) most += lists[i]->order_count;
    tuned_shape *shapes = lk__alloc(p->context, LK_MEMORY_OTHER, most * sizeof *shapes);
    if (!shapes) return LK_ENOMEM;
    for (int i = 0; i < 3; i++)
        if (lists[i]->graph) count = list_shapes(p, lists[i], shapes, count);
    qsort(shapes, count, sizeof *shapes, compare_shapes);
    for (size_t i = 0; i < count && status >= 0; i++) {
        lk__kernel_call   call = {0};
        lk__device_kernel kernel = lk__plan_kernel(shapes[i].graph, shapes[i].node, &call);
        status = kernel.prepare(p->device, &kernel, &call);
        if (p->device->tuning.measured > 0) lk__progress(p->context, "tune", (int64_t)i + 1, (int64_t)count);
    }
    lk__free(p->context, LK_MEMORY_OTHER, shapes, most * sizeof *shapes);
    return status;
}

/* ---- afterwards ---- */

/* That some were not measured is said once, when it is decided: the file then has it. */
static void report_tuning(const lk_program *p)
{
    const lk__device_tuning *t = &p->device->tuning;
    if (t->measured + t->first == 0) return;
    if (t->first == 0)
        lk__log(p->context, LK_LOG_DEBUG, "algorithms were measured for %d shapes, in %.1f s", t->measured, t->seconds);
    else
        lk__log(p->context, LK_LOG_INFO,
                "algorithms were measured for the %d costliest shapes, in %.1f s; the library's first choice is used "
                "for %d more; LOCKSTEP_CUDA_TUNING_SECONDS allows more time",
                t->measured, t->seconds, t->first);
}

/* What the kernels took becomes the plan's list; *mismatch: they could not take all that they were given. */
static lk_status take_list(lk_program *p, bool *mismatch)
{
    const lk__device_backend *backend = p->device->backend;
    size_t                    bytes = backend->kernels.list_tuned(p->device, NULL, 0, mismatch) + 1;
    char                     *text = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!text) return LK_ENOMEM;
    (void)backend->kernels.list_tuned(p->device, text, bytes, mismatch);
    lk_status status = lk__plan_set_algorithms(p->plan, text, bytes - 1);
    lk__free(p->context, LK_MEMORY_OTHER, text, bytes);
    return status;
}

static lk_status send_list(lk_program *p, lk_comm *with)
{
    int64_t   length = p->plan->algorithms ? (int64_t)strlen(p->plan->algorithms) : 0;
    lk_status status = lk_comm_broadcast(with, &length, 1, LK_I64, 0, NULL);
    if (status < 0 || length == 0) return status;
    return lk_comm_broadcast(with, p->plan->algorithms, (size_t)length, LK_U8, 0, NULL);
}

lk_status lk__tuning_end(lk_program *p, lk_status status)
{
    uint64_t theirs = lk_plan_fingerprint(p->plan); /* of a rank above 0: with rank 0's list */
    lk_comm *with = tuned_with(p);
    bool     follows = with && lk_comm_rank(with) > 0, mismatch = !chooses(p);
    if (chooses(p) && with && !follows) lk_comm_busy_end(with);
    if (chooses(p)) report_tuning(p);
    if (status < 0 || (chooses(p) && (status = take_list(p, &mismatch)) < 0)) return status;
    if (!with || !p->first_chooses) return LK_OK;
    if (!follows && (status = send_list(p, with)) < 0) return status;
    /* A rank with another GPU has said that it cannot take rank 0's list. */
    int      different;
    uint64_t mine = follows && mismatch ? theirs : lk_plan_fingerprint(p->plan);
    if ((status = lk__find_different(p->context, with, mine, &different)) < 0 || different < 0) return status;
    return lk__fail(p->context, LK_EMISMATCH,
                    "rank %d and rank 0 would use different algorithms on the same kind of GPU: start all ranks with "
                    "the same libraries and the same LOCKSTEP_CUDA_… settings",
                    different);
}
