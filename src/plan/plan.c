/* plan.c - makes a plan: lays out the state, then runs the passes over a copy of the graph for each mode. */
#include "plan/plan.h"

#include "base/hash.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static size_t state_bytes(const lk_graph *g, const lk__graph_state *s)
{
    const lk__graph_shape *shape = &g->values[s->value].shape;
    return (size_t)lk__shape_elements(shape) * lk_dtype_size(shape->dtype);
}

/* Takes `bytes` from a region; each piece starts on a cache line. */
static size_t take(lk_plan *p, lk_memory kind, size_t bytes)
{
    size_t offset = p->memory[kind];
    p->memory[kind] += lk__round_up(bytes, LK__ALIGN);
    return offset;
}

static void place_states(lk_plan *p)
{
    for (size_t i = 0; i < p->graph->states_count; i++) {
        const lk__graph_state *s = &p->graph->states[i];
        lk__plan_state        *sp = &p->states[i];
        sp->bytes = state_bytes(p->graph, s);
        sp->place.region = s->buffer ? LK__IN_BUFFERS : LK__IN_PARAMETERS;
        sp->place.offset = take(p, s->buffer ? LK_MEMORY_BUFFERS : LK_MEMORY_PARAMETERS, sp->bytes);
    }
}

static void place_constants(lk_plan *p)
{
    for (size_t i = 0; i < p->graph->constants_count; i++)
        p->constants[i] = take(p, LK_MEMORY_BUFFERS, p->graph->constants[i].bytes);
}

static void place_moments(lk_plan *p)
{
    for (size_t i = 0; i < p->graph->states_count; i++) {
        lk__plan_state *sp = &p->states[i];
        if (p->train.gradients[i] < 0) continue;
        for (int m = 0; m < sp->moments; m++) sp->moment_offset[m] = take(p, LK_MEMORY_OPTIMIZER, sp->bytes);
    }
}

/* The metrics of the loss: its op's own sum, weight and correct, or any single number with weight 1. */
static void find_metrics(lk__plan_order *t, int loss)
{
    t->sum = t->weight = t->correct = t->norm = -1;
    if (loss < 0) return;
    t->sum = loss;
    const lk__graph_value *v = &t->graph->values[loss];
    if (v->kind != LK__VALUE_RESULT) return;
    const lk__graph_node *n = &t->graph->nodes[v->node];
    lk__graph_loss        kind = lk__op_find(n->op)->loss;
    if (kind == LK__LOSS_NO || n->out[0] != loss) return;
    t->weight = n->out[1];
    if (kind == LK__LOSS_SUM_WEIGHT_CORRECT) t->correct = n->out[2];
}

static lk_status start_timeline(lk_plan *p, lk__plan_order *t, const lk_plan_config *config, bool outputs)
{
    lk_status status = lk__graph_copy(p->graph, &t->graph);
    if (status < 0) return status;
    find_metrics(t, config->loss.graph ? config->loss.id : -1);
    if (!outputs || config->outputs_count == 0) return LK_OK;
    t->outputs = lk__alloc(p->context, LK_MEMORY_OTHER, (size_t)config->outputs_count * sizeof(int));
    if (!t->outputs) return LK_ENOMEM;
    t->outputs_count = config->outputs_count;
    for (int i = 0; i < config->outputs_count; i++) t->outputs[i] = config->outputs[i].id;
    return LK_OK;
}

static void freeze_groups(lk_graph *g, const lk_optimizer_config *o)
{
    for (size_t i = 0; i < g->states_count; i++)
        for (int j = 0; j < o->groups_count; j++)
            if (fnmatch(o->groups[j].match, g->states[i].name, 0) == 0) {
                if (o->groups[j].frozen)
                    g->states[i].frozen = true, g->values[g->states[i].value].needs_gradient = false;
                break;
            }
    /* What needs a gradient follows from the parameters: settle it anew. */
    for (size_t i = 0; i < g->nodes_count; i++) {
        bool needs = lk__node_needs_gradient(g, &g->nodes[i]);
        for (int j = 0; j < g->nodes[i].outputs; j++)
            if (g->nodes[i].out[j] >= 0) g->values[g->nodes[i].out[j]].needs_gradient = needs;
    }
}

/* Leaves that couple (a sum over the whole batch in the midst of them) go side by side, each with its own activations;
 * otherwise one after the other over the same ones. */
static void count_sets(lk_plan *p)
{
    const lk_parallel *f = &p->parallel;
    for (size_t i = 0; i < p->train.order_count; i++)
        p->syncs += lk__op_find(p->train.graph->nodes[p->train.order[i]].op)->runs == LK__RUNS_COLLECTIVE;
    int mine = lk__first_leaf(f->leaves, f->world, f->rank + 1) - lk__first_leaf(f->leaves, f->world, f->rank);
    p->sets = f->leaves ? (f->leaves + f->world - 1) / f->world /* alike on all ranks, as shared memory must be */
              : f->micro_batches > 1 ? 2
                                     : 1;
    p->slots = f->leaves && p->syncs && !f->batch_leaves ? mine : 1;
    p->memory[LK_MEMORY_GRADIENTS] = p->gradient_bytes * (size_t)p->sets;
}

/* A parameter that the loss does not depend on gets a gradient of zeros: every rank updates it alike. */
static lk_status fill_unused(lk__plan_order *t, bool names_them)
{
    lk_graph *g = t->graph;
    char      names[512] = "";
    size_t    used = 0;
    int       count = 0;
    for (size_t i = 0; i < g->states_count; i++) {
        const lk__graph_state *s = &g->states[i];
        if (t->gradients[i] >= 0 || s->buffer || s->frozen) continue;
        lk__graph_shape shape = g->values[s->value].shape;
        int             node = lk__emit_shaped(g, s->site, LK__OP_fill, NULL, NULL, 0, &shape, 1);
        if (node < 0) return g->status;
        t->gradients[i] = g->nodes[node].out[0];
        count++;
        if (used + 2 < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", g->states[i].name);
    }
    if (count && names_them)
        lk__log(g->context, LK_LOG_WARNING, "%d parameter%s not used by the loss and get%s a gradient of zeros: %s",
                count, count == 1 ? " is" : "s are", count == 1 ? "s" : "", names);
    return LK_OK;
}

static lk_status plan_training(lk_plan *p, const lk_plan_config *config)
{
    lk__plan_order *t = &p->train;
    lk_status       status = start_timeline(p, t, config, false);
    size_t          states = p->graph->states_count;
    if (status < 0) return status;
    if (states && !(t->gradients = lk__alloc(p->context, LK_MEMORY_OTHER, states * sizeof(int)))) return LK_ENOMEM;
    freeze_groups(t->graph, config->optimizer);
    if (!config->no_fusion && (status = lk__pass_fuse(t)) < 0) return status;
    if (config->sync_batch_norm && (status = lk__pass_sync_norm(t)) < 0) return status;
    size_t forward = t->graph->nodes_count;
    if ((status = lk__graph_grad(t->graph, config->loss.id, t->gradients)) < 0) return status;
    if ((status = fill_unused(t, p->parallel.rank == 0)) < 0) return status;
    size_t backward = t->graph->nodes_count;
    if ((status = lk__pass_update(t, config->optimizer, p->states)) < 0) return status;
    if ((status = lk__pass_layout(t, forward, backward)) < 0) return status;
    place_moments(p);
    if ((status = lk__pass_buckets(p)) < 0) return status;
    count_sets(p);
    if (p->parallel.batch_leaves && (status = lk__pass_leaf_batch(p)) < 0) return status;
    return lk__pass_memory(t, p);
}

static lk_status plan_evaluation(lk_plan *p, const lk_plan_config *config)
{
    lk__plan_order *t = &p->evaluate;
    lk_status       status = start_timeline(p, t, config, true);
    if (status < 0) return status;
    lk__pass_evaluation(t);
    if (!config->no_fusion && (status = lk__pass_fuse(t)) < 0) return status;
    size_t nodes = t->graph->nodes_count;
    if ((status = lk__pass_layout(t, nodes, nodes)) < 0) return status;
    return lk__pass_memory(t, p);
}

static bool is_value(const lk_graph *g, lk_tensor x)
{
    return x.graph == g && x.id >= 0 && (size_t)x.id < g->values_count;
}

static lk_status check(lk_graph *g, const lk_plan_config *config)
{
    lk_context *c = g->context;
    if (config->size != sizeof *config)
        return lk__fail(c, LK_EINVAL, "lk_plan_config is of another version of Lockstep");
    if (g->status < 0) return lk__fail(c, g->status, "%s", g->error);
    if (g->block)
        return lk__fail(c, LK_EINVAL, "block \"%s\" is still open; lk_block_end is missing", g->blocks[g->block].name);
    if (lk__empty_line(config->loss))
        return lk__fail(c, LK_EINVAL, "the loss is an empty tensor: line %d was the first call on one",
                        lk__empty_line(config->loss));
    if (config->loss.graph && !is_value(g, config->loss))
        return lk__fail(c, LK_EINVAL, "the loss is not of this graph");
    for (int i = 0; i < config->outputs_count; i++)
        if (!is_value(g, config->outputs[i]))
            return lk__fail(c, LK_EINVAL, "output %d is %s", i,
                            config->outputs[i].graph ? "not of this graph" : "an empty tensor");
    const lk_parallel *f = &config->parallel;
    if (f->world < 0 || f->rank < 0 || (f->rank > 0 && f->rank >= f->world))
        return lk__fail(c, LK_EINVAL, "rank %d of a world of %d", f->rank, f->world);
    if (f->leaves < 0 || f->micro_batches < 0 || (f->leaves && f->micro_batches > 1))
        return lk__fail(
            c, LK_EINVAL,
            "%d leaves and %d micro-batches: leaves are run one after the other already, so either may be given, "
            "not both",
            f->leaves, f->micro_batches);
    if (f->batch_leaves && !f->leaves)
        return lk__fail(c, LK_EINVAL, "batch_leaves is how leaves are run, and there are none");
    if (f->leaves && f->leaves < f->world)
        return lk__fail(c, LK_EINVAL, "%d leaves cannot be shared among %d ranks: take at least one leaf a rank",
                        f->leaves, f->world);
    const lk_optimizer_config *o = config->optimizer;
    if (!o) return LK_OK;
    if (o->size != sizeof *o) return lk__fail(c, LK_EINVAL, "lk_optimizer_config is of another version of Lockstep");
    if (!config->loss.graph) return lk__fail(c, LK_EINVAL, "an optimizer needs a loss");
    if (!(o->lr >= 0) || !(o->weight_decay >= 0) || !(o->clip >= 0) || !(o->momentum >= 0) ||
        !(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1) || !(o->epsilon >= 0))
        return lk__fail(c, LK_EINVAL,
                        "an optimizer setting is out of range: lr, weight decay, clip, momentum and epsilon are at "
                        "least 0, betas from 0 to below 1");
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        return lk__fail(c, LK_EINVAL, "nesterov needs a momentum above 0 and no dampening");
    for (int i = 0; i < o->groups_count; i++)
        if (!o->groups[i].match)
            return lk__fail(c, LK_EINVAL,
                            "parameter group %d matches no names: set match to a shell pattern, such as \"*.bias\"", i);
    return LK_OK;
}

lk_status lk_plan_create(lk_graph *graph, const lk_plan_config *config, lk_plan **plan)
{
    *plan = NULL;
    if (!graph) return LK_EINVAL; /* of an empty tensor: there is no context to say it to */
    lk_context *c = graph->context;
    lk_status   status = check(graph, config);
    if (status < 0) return status;
    lk_plan *p = lk__alloc(c, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM;
    p->context = c;
    p->trains = config->optimizer != NULL;
    p->parallel = config->parallel;
    if (p->parallel.world == 0) p->parallel.world = 1;
    if (p->parallel.micro_batches == 0) p->parallel.micro_batches = 1;
    p->slots = p->sets = 1;
    if ((status = lk__graph_copy(graph, &p->graph)) < 0) goto fail;
    if ((status = lk__graph_copy_rest(graph, p->graph)) < 0) goto fail;
    if (graph->states_count && !(p->states = lk__alloc(c, LK_MEMORY_OTHER, graph->states_count * sizeof *p->states)))
        goto no_memory;
    if (graph->constants_count &&
        !(p->constants = lk__alloc(c, LK_MEMORY_OTHER, graph->constants_count * sizeof *p->constants)))
        goto no_memory;
    place_states(p);
    place_constants(p);
    if (p->trains && (status = plan_training(p, config)) < 0) goto fail;
    if ((status = plan_evaluation(p, config)) < 0) goto fail;
    size_t arenas = p->train.arena * (size_t)p->slots;
    p->memory[LK_MEMORY_ACTIVATIONS] = arenas > p->evaluate.arena ? arenas : p->evaluate.arena;
    p->memory[LK_MEMORY_WORKSPACE] =
        p->train.workspace > p->evaluate.workspace ? p->train.workspace : p->evaluate.workspace;
    p->parts_offset = p->memory[LK_MEMORY_WORKSPACE];
    if (p->parallel.batch_leaves)
        p->memory[LK_MEMORY_WORKSPACE] += (size_t)lk_context_threads(c) * lk__kernel_leaves_bytes();
    *plan = p;
    return LK_OK;
no_memory:
    status = LK_ENOMEM;
fail:
    if (p->train.graph && p->train.graph->status == LK_EINVAL) lk__fail(c, status, "%s", p->train.graph->error);
    lk_plan_free(p);
    return status;
}

static void free_timeline(lk_context *c, lk__plan_order *t, size_t states)
{
    lk_graph_free(t->graph);
    lk__free(c, LK_MEMORY_OTHER, t->order, t->order_capacity * sizeof *t->order);
    lk__free(c, LK_MEMORY_OTHER, t->by_leaf, t->order_count * sizeof *t->by_leaf);
    lk__free(c, LK_MEMORY_OTHER, t->places, t->places_count * sizeof *t->places);
    lk__free(c, LK_MEMORY_OTHER, t->gradients, states * sizeof(int));
    lk__free(c, LK_MEMORY_OTHER, t->outputs, (size_t)t->outputs_count * sizeof(int));
}

void lk_plan_free(lk_plan *p)
{
    if (!p) return;
    lk_context *c = p->context;
    size_t      states = p->graph ? p->graph->states_count : 0;
    free_timeline(c, &p->train, states);
    free_timeline(c, &p->evaluate, states);
    lk__free(c, LK_MEMORY_OTHER, p->states, states * sizeof *p->states);
    if (p->graph) lk__free(c, LK_MEMORY_OTHER, p->constants, p->graph->constants_count * sizeof *p->constants);
    lk__free(c, LK_MEMORY_OTHER, p->buckets, p->buckets_capacity * sizeof *p->buckets);
    lk_graph_free(p->graph);
    lk__free(c, LK_MEMORY_OTHER, p, sizeof *p);
}

size_t lk_plan_memory(const lk_plan *p, lk_memory kind)
{
    return (unsigned)kind < LK_MEMORY_COUNT ? p->memory[kind] : 0;
}

static uint64_t hash_timeline(const lk__plan_order *t, uint64_t hash)
{
    for (size_t i = 0; t->graph && i < t->order_count; i++) {
        char text[1024];
        lk__node_text(t->graph, &t->graph->nodes[t->order[i]], text, sizeof text);
        hash = lk__attrs_hash(&t->graph->nodes[t->order[i]].attrs, lk__hash64(text, strlen(text), hash));
    }
    return hash;
}

uint64_t lk_plan_fingerprint(const lk_plan *p)
{
    uint64_t hash = hash_timeline(&p->evaluate, hash_timeline(&p->train, 1 + (uint64_t)p->graph->real));
    for (size_t i = 0; i < p->graph->constants_count; i++) {
        char text[256];
        lk__constant_text(p->graph, i, text, sizeof text);
        hash = lk__hash64(text, strlen(text), hash);
    }
    return hash;
}
