/* digest.c - digests of the values of a program, to find the first value whose bits differ between two layouts of the
 * ranks (LOCKSTEP_DIGESTS; test/cli/digests.py compares). The digest of a value is the sum of a hash of each element's
 * bits and place in the whole value, so the digests of parts add up to the digest of the whole. A value has the same
 * number in every layout (plan/placement_rewrite.c). */
#include "run/digest.h"

#include "base/environment.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct lk__digests {
    FILE *file;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Where index i along dimension d of a value is in the whole. */
static int64_t whole_index(const lk__graph_value *v, int d, int64_t i)
{
    if (v->part.rank == 0) return i;
    int64_t outer = v->part.outer[d] > 1 ? v->part.outer[d] : 1;
    int64_t whole = v->part.whole[d] / outer, each = v->shape.dims[d] / outer;
    return each > 0 ? i / each * whole + v->part.first[d] + i % each : i;
}

static uint64_t digest_of(const lk__kernel_operand *o, const lk__graph_value *v)
{
    int64_t  at[LK_MAX_RANK] = {0}, count = 1;
    size_t   bytes = lk_dtype_size(o->dtype);
    uint64_t sum = 0;
    for (int d = 0; d < o->rank; d++) count *= o->dims[d];
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0, place = 0;
        memcpy(&bits, (const char *)o->data + (size_t)i * bytes, bytes);
        for (int d = 0; d < o->rank; d++)
            place = mix(place + (uint64_t)whole_index(v, d, at[d]) + UINT64_C(0x9e3779b97f4a7c15));
        sum += mix(bits + mix(place));
        for (int d = o->rank - 1; d >= 0 && ++at[d] == o->dims[d]; d--) at[d] = 0;
    }
    return sum;
}

/* "LIST STEP LEAF OPERATION in|out INDEX VALUE TYPE SHAPE FIRST DIGEST NAME" */
static void write_operand(const lk_program *p, const lk__run_list *list, const lk__graph_node *n,
                          const lk__kernel_call *call, int leaf, int index, bool output)
{
    const lk_graph           *g = list->planned->graph;
    const lk__kernel_operand *o = output ? &call->out[index] : &call->in[index];
    int                       value = output ? n->out[index] : n->in[index];
    FILE                     *file = p->digests->file;
    if (value < 0 || !o->data) return;
    const lk__graph_value *v = &g->values[value];
    fprintf(file, "%s %lld %d %s %s %d %d %s ", list->planned == &p->plan->train ? "train" : "evaluate",
            (long long)call->step->step, leaf, lk__op_name(n->op), output ? "out" : "in", index, value,
            lk_dtype_name(o->dtype));
    for (int d = 0; d < o->rank; d++) fprintf(file, "%s%lld", d ? "," : "", (long long)o->dims[d]);
    fprintf(file, "%s ", o->rank ? "" : "-");
    for (int d = 0; d < v->part.rank; d++) fprintf(file, "%s%lld", d ? "," : "", (long long)v->part.first[d]);
    fprintf(file, "%s %016llx %s\n", v->part.rank ? "" : "-", (unsigned long long)digest_of(o, v),
            v->kind == LK__VALUE_STATE ? g->states[v->state].name : "-");
}

void lk__digests_write(const lk_program *p, const lk__run_list *list, const lk__run_instruction *in, bool outputs)
{
    if (in->node < 0) return;
    const lk__graph_node *n = &list->planned->graph->nodes[in->node];
    int                   leaves = in->leaves ? list->each : 0;
    for (int leaf = leaves ? 0 : -1; leaf < leaves; leaf++) {
        if (leaves && !lk__leaf_batch_count(p, n, leaf)) continue;
        for (int i = 0; i < (outputs ? n->outputs : n->inputs); i++)
            write_operand(p, list, n, leaf < 0 ? &in->call : &in->leaves[leaf], leaf < 0 ? leaf : list->part + leaf, i,
                          outputs);
    }
}

lk_status lk__digests_open(lk_program *p)
{
    const char *path = lk__environment_text(p->context, LK__ENV_LOCKSTEP_DIGESTS);
    char        name[4096];
    if (!path) return LK_OK;
    if (!(p->digests = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *p->digests))) return LK_ENOMEM;
    snprintf(name, sizeof name, "%s.%d", path, lk__plan_rank(p->plan));
    p->digests->file = fopen(name, "we");
    if (!p->digests->file)
        return lk__fail(p->context, LK_EIO, "LOCKSTEP_DIGESTS: cannot write %s: %s", name, strerror(errno));
    p->waits = true;
    return LK_OK;
}

void lk__digests_close(lk_program *p)
{
    if (p->digests && p->digests->file) fclose(p->digests->file);
    lk__free(p->context, LK_MEMORY_OTHER, p->digests, sizeof *p->digests);
}
