/* wide.c - shards that run as one batch: what adds over samples is called once for each of them, on its own rows, into its own sums. */
#include "run/program.h"

#include <string.h>

static const lk__node *node_of(const lk_program *p, size_t i)
{
    return &p->plan->train.graph->nodes[p->lanes[0].train.instructions[i].node];
}

static int          value_of(const lk__node *n, int i) { return i < n->inputs ? n->in[i] : n->out[i - n->inputs]; }
static lk__operand *operand_of(lk__call *call, const lk__node *n, int i)
{
    return i < n->inputs ? &call->in[i] : &call->out[i - n->inputs];
}

/* Sums that `sync` reads: they need a place for each shard. */
static bool is_private(const lk__timeline *t, const lk__node *n, int output)
{
    return (n->op == LK__OP_batch_norm_stats || n->op == LK__OP_batch_norm_grad_stats) && output == 0 && t->by_shard;
}

static size_t private_bytes(const lk__timeline *t, const lk__node *n)
{
    size_t bytes = 0;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && is_private(t, n, i))
            bytes += lk__round_up((size_t)lk__shape_elements(&t->graph->values[n->out[i]].shape) * sizeof(double),
                                  LK__ALIGN);
    return bytes;
}

/* This one adds its parts itself, so it is called once for each subtree of shards. */
static bool adds_parts(const lk__node *n) { return n->op == LK__OP_linear_grad_weight; }

/* Parts, and where they begin. */
static size_t parts_bytes(size_t here)
{
    return lk__round_up(sizeof(lk__parts) + (here + 1) * sizeof(int64_t), LK__ALIGN);
}

lk_status lk__wide_build(lk_program *p)
{
    const lk__timeline *t = &p->plan->train;
    lk__line           *l = &p->lanes[0].train;
    size_t              here = (size_t)lk__shards_here(p), calls = 0, bytes = 0, position = 0;
    for (size_t i = 0; i < l->count; i++) {
        while (t->order[position] != l->instructions[i].node) position++;
        if (!t->by_shard[position]) continue;
        calls += here;
        bytes += here * (private_bytes(t, node_of(p, i)) + (adds_parts(node_of(p, i)) ? parts_bytes(here) : 0));
    }
    p->shard_bytes = lk__round_up(calls * sizeof(lk__call), LK__ALIGN) + bytes;
    p->shard_memory = lk__alloc(p->context, LK_MEMORY_OTHER, p->shard_bytes);
    if (!p->shard_memory) return LK_ENOMEM;
    lk__call *call = (lk__call *)p->shard_memory;
    char     *sums = p->shard_memory + lk__round_up(calls * sizeof(lk__call), LK__ALIGN);
    position = 0;
    for (size_t i = 0; i < l->count; i++) {
        lk__instruction *in = &l->instructions[i];
        while (t->order[position] != in->node) position++;
        if (!t->by_shard[position]) continue;
        in->shards = call;
        for (size_t s = 0; s < here; s++, call++) {
            *call = in->call;
            if (adds_parts(node_of(p, i))) {
                lk__parts *parts = (lk__parts *)sums;
                *parts = (lk__parts){.rows = (int64_t *)(parts + 1), .sums = p->workspace + p->plan->parts_offset};
                call->parts = parts;
                sums += parts_bytes(here);
            }
            for (int k = 0; k < node_of(p, i)->outputs; k++)
                if (call->out[k].data && is_private(t, node_of(p, i), k)) {
                    call->out[k].data = sums;
                    sums += lk__round_up((size_t)lk__elements(&call->out[k]) * sizeof(double), LK__ALIGN);
                }
        }
    }
    return LK_OK;
}

/* Rows first … last of what the whole instruction works on. */
static void place_shard(const lk_program *p, const lk__instruction *in, int shard, int64_t first, int64_t last)
{
    const lk__timeline *t = &p->plan->train;
    const lk__node     *n = &t->graph->nodes[in->node];
    lk__call           *call = &in->shards[shard];
    for (int j = 0; j < n->inputs + n->outputs; j++) {
        int v = value_of(n, j);
        if (v < 0) continue;
        const lk__shape   *s = &t->graph->values[v].shape;
        const lk__operand *whole = operand_of((lk__call *)&in->call, n, j);
        lk__operand       *o = operand_of(call, n, j);
        if (s->count_axis == 0) {
            size_t row = (size_t)(lk__shape_elements(s) / s->dims[0] * s->count_unit) * lk_dtype_size(s->dtype);
            o->data = (char *)whole->data + (size_t)first * row;
            o->dims[0] = (last - first) * s->count_unit;
        } else if (t->places[v].region == LK__IN_GRADIENTS) {
            o->data = lk__gradient_set(p, shard) + t->places[v].offset;
        }
    }
}

/* All rows of the subtree that begins with this shard, and where in them its shards begin. */
static void place_parts(const lk_program *p, const lk__instruction *in, int shard, int count)
{
    lk__parts         *parts = (lk__parts *)in->shards[shard].parts;
    int64_t           *rows = (int64_t *)parts->rows, begin = lk__shard_row(p, shard), each = 1;
    const lk__operand *x = &in->call.in[0];
    for (int i = 0; i + 1 < x->rank; i++) each *= x->dims[i];
    if (p->lanes[0].step.count) each /= p->lanes[0].step.count; /* rows of a sample */
    parts->count = count;
    for (int i = 0; i <= count; i++) rows[i] = (lk__shard_row(p, shard + i) - begin) * each;
    place_shard(p, in, shard, begin - lk__shard_row(p, 0), lk__shard_row(p, shard + count) - lk__shard_row(p, 0));
}

void lk__wide_patch(lk_program *p)
{
    lk__line *l = &p->lanes[0].train;
    int       here = lk__shards_here(p);
    for (size_t i = 0; i < l->count; i++)
        for (int s = 0; l->instructions[i].shards && s < here; s++) {
            int count = lk__exchange_subtree(p, s);
            if (!adds_parts(node_of(p, i)))
                place_shard(p, &l->instructions[i], s, lk__shard_row(p, s) - lk__shard_row(p, 0),
                            lk__shard_row(p, s + 1) - lk__shard_row(p, 0));
            else if (count)
                place_parts(p, &l->instructions[i], s, count);
        }
}

void lk__wide_run(lk_program *p, lk__instruction *in)
{
    const lk__timeline *t = &p->plan->train;
    const lk__node     *n = &t->graph->nodes[in->node];
    bool                metric = false;
    for (int i = 0; i < n->outputs; i++) metric |= n->out[i] >= 0 && n->out[i] == t->sum;
    for (int s = 0; s < lk__shards_here(p); s++) {
        if (adds_parts(n) && !lk__exchange_subtree(p, s)) continue;
        in->run(&in->shards[s]);
        if (metric) p->sums[s] = lk__lane_sums(p, &p->lanes[0], t);
    }
}

/* Where shard `shard` left what the `sync` at `index` sums. */
const double *lk__wide_source(const lk_program *p, size_t index, int shard)
{
    const lk__line *l = &p->lanes[0].train;
    int             v = node_of(p, index)->in[0];
    for (size_t i = index; i-- > 0;) {
        const lk__node *n = node_of(p, i);
        for (int k = 0; k < n->outputs && l->instructions[i].shards; k++)
            if (n->out[k] == v) return l->instructions[i].shards[shard].out[k].data;
    }
    return NULL; /* the plan saw to it that there is one */
}
