/* plan.c - creates a plan: lays out the state, then runs the passes over a copy of the graph for each mode. */
#include "plan/expert_leaves.h"
#include "plan/experts.h"
#include "plan/fuse.h"
#include "plan/launch_group.h"
#include "plan/leaf_stack.h"
#include "plan/like.h"
#include "plan/pieces.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"
#include "plan/sum_parts.h"

#include "base/config.h"
#include "base/hash.h"
#include "graph/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static lk_status start_list(lk_plan *p, lk__plan_list *list, const lk_plan_config *config, bool outputs)
{
    lk_status status = lk__graph_copy(p->graph, &list->graph);
    if (status < 0) return status;
    lk__plan_find_numbers(p, list, config->loss.graph ? config->loss.id : -1);
    if (!outputs || config->outputs_count == 0) return LK_OK;
    list->outputs = lk__alloc(p->context, LK_MEMORY_OTHER, (size_t)config->outputs_count * sizeof(int));
    if (!list->outputs) return LK_ENOMEM;
    list->outputs_count = config->outputs_count;
    for (int i = 0; i < config->outputs_count; i++) list->outputs[i] = config->outputs[i].id;
    return LK_OK;
}

void lk__plan_freeze_groups(lk_graph *g, const lk_optimizer_config *o)
{
    for (size_t i = 0; i < g->states_count; i++)
        for (int j = 0; j < o->groups_count; j++)
            if (fnmatch(o->groups[j].match, g->states[i].name, 0) == 0) {
                if (o->groups[j].frozen)
                    g->states[i].frozen = true, g->values[g->states[i].value].needs_gradient = false;
                break;
            }
    /* Which values need a gradient follows from the parameters: it is computed again. */
    for (size_t i = 0; i < g->nodes_count; i++) {
        bool needs = lk__node_needs_gradient(g, &g->nodes[i]);
        for (int j = 0; j < g->nodes[i].outputs; j++)
            if (g->nodes[i].out[j] >= 0)
                g->values[g->nodes[i].out[j]].needs_gradient =
                    needs && lk__is_element(g->values[g->nodes[i].out[j]].shape.dtype);
    }
}

/* Leaves that are coupled by sums over the whole batch advance together, each with its own activations; otherwise they
 * run one after the other with the same activations. */
static void count_sets(lk_plan *p)
{
    const lk_parallel *parallel = &p->parallel;
    for (size_t i = 0; i < p->train.order_count; i++) {
        const lk__graph_node *n = &p->train.graph->nodes[p->train.order[i]];
        p->syncs += lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && n->attrs.mesh == 0 &&
                    !lk__plan_is_bucket(p->train.graph, n);
    }
    p->sets = parallel->leaves ? lk__leaf_sets(p) : parallel->micro_batches > 1 ? 2 : 1;
    p->slots = lk__plan_count_slots(p);
}

/* A sum over all leaves needs all of them at once. */
static lk_status check_leaves(const lk_plan *p)
{
    if (!p->parallel.leaves || !p->syncs) return LK_OK;
    if (p->expert_axes)
        return lk__fail(
            p->context, LK_EUNSUPPORTED,
            "leaves are not supported if ranks have different experts and the model sums over all leaves between its "
            "layers (a router loss over the whole batch), because that sum needs all leaves at once: use "
            "--reproducible layout, which computes that loss for each leaf, or remove the loss");
    if (p->parallel.micro_batches == 1) return LK_OK;
    return lk__fail(p->context, LK_EUNSUPPORTED,
                    "%d micro-batches cannot be combined with leaves: the model sums over all leaves between its "
                    "layers (synchronised batch norm, or a router loss over the whole batch), so all leaves must run "
                    "at once: use one micro-batch",
                    p->parallel.micro_batches);
}

/* Leaves that such sums couple advance together, and stages compute them one after the other. */
static lk_status check_stages(const lk_plan *p, const lk_graph *g)
{
    for (size_t i = 0; p->pipeline && p->parallel.leaves && i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead || lk__op_find(n->op)->runs != LK__RUNS_COLLECTIVE || n->attrs.mesh) continue;
        return lk__fail(p->context, LK_EUNSUPPORTED,
                        "%s:%d: the model sums over all %d leaves between its layers (synchronised batch norm, or a "
                        "router loss over the whole batch), but the stages of a pipeline compute one leaf after "
                        "another: train without --reproducible, or without the pipeline axis",
                        n->site.file ? n->site.file : "?", n->site.line, p->parallel.leaves);
    }
    return LK_OK;
}

/* A parameter that the loss does not depend on gets a gradient of zeros, so that every rank updates it in the same
 * way. */
static lk_status fill_unused(lk__plan_list *list, bool warn)
{
    lk_graph *g = list->graph;
    char      names[512] = "";
    size_t    used = 0;
    int       count = 0;
    for (size_t i = 0; i < g->states_count; i++) {
        const lk__graph_state *s = &g->states[i];
        if (list->gradients[i] >= 0 || s->buffer || s->frozen) continue;
        lk__graph_shape shape = g->values[s->value].shape;
        shape.dtype = lk__wide_type(shape.dtype);
        int node = lk__emit_shaped(g, s->site, LK__OP_fill, NULL, NULL, 0, &shape, 1);
        if (node < 0) return g->status;
        list->gradients[i] = g->nodes[node].out[0];
        count++;
        if (used + 2 < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", g->states[i].name);
    }
    if (count && warn)
        lk__log(g->context, LK_LOG_WARNING, "%d parameter%s not used by the loss and get%s a gradient of zeros: %s",
                count, count == 1 ? " is" : "s are", count == 1 ? "s" : "", names);
    return LK_OK;
}

static lk_status pass_precision(const lk_plan *p, lk__plan_list *list)
{
    if (p->policy == LK_POLICY_RECORDED) return LK_OK;
    return lk__pass_precision(list, p->graph, lk_policy_dtype(p->policy, p->graph->real));
}

/* What ranks along shard have slices of, unless they share their state: nothing that an evaluation has, before stage
 * 3. Without that axis those with different experts have slices of the rest where a stage is asked for. */
static int find_stage(const lk_plan *p)
{
    int  stage = p->parallel.shard_stage ? p->parallel.shard_stage : 3;
    bool sliced =
        lk__plan_shards(p) > 1 || (p->parallel.shard_stage && lk__mesh_extent(&p->mesh, LK__PLAN_EXPERT_AXES) > 1);
    return sliced && !p->shared && (p->trains || stage == 3) ? stage : 0;
}

/* Statistics of the batch that the model recorded are sums over the leaves where the plan has some. */
static void order_recorded_sums(lk_graph *g, lk__op_order order)
{
    for (size_t i = 0; order == LK__ORDER_LEAVES && i < g->nodes_count; i++)
        if (g->nodes[i].op == LK__OP_all_reduce && g->nodes[i].attrs.update) g->nodes[i].attrs.order = order;
}

/* With leaves the sums of each sample are not divided for threads: into how many parts follows from how many samples a
 * run has, which may be those of one leaf, of several, or of a rank. */
static void keep_sums_whole(lk_graph *g)
{
    const lk__attr_set divided = LK__HAS(mask) | LK__HAS(parts);
    for (size_t i = 0; i < g->nodes_count; i++) {
        lk__graph_node *n = &g->nodes[i];
        if ((lk__op_find(n->op)->attributes & divided) != divided) continue;
        int samples = g->values[n->in[0]].shape.count_axis;
        if (samples >= 0 && !(n->attrs.mask >> samples & 1)) n->attrs.parts = 1;
    }
}

/* Statistics of a leaf are not those of the batch: how many leaves there are would be part of the result. */
static lk_status check_norms(const lk_plan *p, const lk_graph *g)
{
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead || lk__op_find(n->op)->evaluation != LK__EVALUATE_BY_BUFFERS) continue;
        return lk__fail(p->context, LK_EUNSUPPORTED,
                        "%s:%d: %s computes statistics for each leaf, so layouts would give different results: "
                        "synchronise it (sync_batch_norm, --sync-batchnorm), or use --reproducible without layout",
                        n->site.file ? n->site.file : "?", n->site.line, lk__node_name(g, n));
    }
    return LK_OK;
}

static lk_status plan_training(lk_plan *p, const lk_plan_config *config)
{
    lk__plan_list *list = &p->train;
    lk_status      status = start_list(p, list, config, false);
    size_t         states = p->graph->states_count;
    if (status < 0) return status;
    if (states && !(list->gradients = lk__alloc(p->context, LK_MEMORY_OTHER, states * sizeof(int)))) return LK_ENOMEM;
    lk__plan_freeze_groups(list->graph, config->optimizer);
    if ((status = pass_precision(p, list)) < 0) return status;
    unsigned without = config->sync_batch_norm ? 1u << LK__FUSION_SUM : 0; /* its normalisation adds no residual */
    if (!config->no_fusion && (status = lk__pass_fuse(list, false, without)) < 0) return status;
    if (config->sync_batch_norm && (status = lk__pass_sync_norm(list, lk__plan_order(p))) < 0) return status;
    if (p->parallel.reproducible_layout && (status = check_norms(p, list->graph)) < 0) return status;
    if (p->parallel.reproducible_layout)
        lk__pass_leaf_statistics(list);
    else
        order_recorded_sums(list->graph, lk__plan_order(p));
    if ((status = lk__pass_loss_scales(p, list)) < 0) return status;
    size_t forward = list->graph->nodes_count;
    if ((status = lk__pass_loss_gradients(p, list)) < 0) return status;
    if ((status = fill_unused(list, lk__plan_rank(p) == 0)) < 0) return status;
    if (p->parallel.leaves) keep_sums_whole(list->graph);
    if ((status = lk__pass_sum_parts(p, list, &forward)) < 0) return status;
    if ((status = lk__pass_placement(p, list, config, &forward)) < 0) return status;
    if ((status = lk__pass_experts(p, list, &forward)) < 0) return status;
    if ((status = check_stages(p, list->graph)) < 0) return status;
    if ((status = lk__pass_pipeline(p, list, &forward)) < 0) return status;
    if (!config->no_fusion && (status = lk__pass_fuse(list, true, 0)) < 0) return status;
    if ((status = lk__pass_pieces(p, list, config->pieces, &forward)) < 0) return status;
    if ((status = lk__pass_matmul_precision(p, list, &forward)) < 0) return status;
    if ((status = lk__pass_postpone(p, list, forward)) < 0) return status;
    if ((status = lk__pass_overlap(p, list, forward)) < 0) return status;
    size_t backward;
    if ((status = lk__pass_buckets(p, &backward)) < 0) return status;
    if ((status = lk__pass_shard_gather(p, list, &forward, &backward)) < 0) return status;
    size_t sync = list->graph->nodes_count;
    if ((status = lk__pass_update(p, config->optimizer)) < 0) return status;
    if ((status = lk__pass_layout(list, forward, backward, sync)) < 0) return status;
    lk__plan_find_postponed(list);
    lk__plan_place_moments(p);
    if ((status = lk__pass_leaf_batch(p)) < 0) return status;
    count_sets(p);
    if ((status = check_leaves(p)) < 0) return status;
    lk__plan_share_buffers(p);
    lk__plan_gradient_memory(p);
    if ((status = lk__pass_launch_groups(list, p)) < 0) return status;
    return lk__pass_memory(list, p);
}

static lk_status plan_evaluation(lk_plan *p, const lk_plan_config *config)
{
    lk__plan_list *list = &p->evaluate;
    lk_status      status = start_list(p, list, config, true);
    if (status < 0) return status;
    lk__pass_evaluation(list, config->joint_evaluation && !p->parallel.leaves);
    if ((status = pass_precision(p, list)) < 0) return status;
    size_t nodes = list->graph->nodes_count;
    if ((status = lk__pass_sum_parts(p, list, &nodes)) < 0) return status;
    if ((status = lk__pass_placement(p, list, config, &nodes)) < 0) return status;
    if ((status = lk__pass_experts(p, list, &nodes)) < 0) return status;
    if ((status = lk__pass_pipeline(p, list, &nodes)) < 0) return status;
    for (int late = 0; late < 2 && !config->no_fusion; late++)
        if ((status = lk__pass_fuse(list, late, 0)) < 0) return status;
    nodes = list->graph->nodes_count;
    if ((status = lk__pass_pieces(p, list, config->pieces, &nodes)) < 0) return status;
    if ((status = lk__pass_matmul_precision(p, list, &nodes)) < 0) return status;
    size_t end = nodes = list->graph->nodes_count;
    if ((status = lk__pass_shard_gather(p, list, &nodes, &end)) < 0) return status;
    if ((status = lk__pass_layout(list, end, end, end)) < 0) return status;
    if ((status = lk__pass_launch_groups(list, p)) < 0) return status;
    return lk__pass_memory(list, p);
}

lk_status lk_plan_create(lk_graph *graph, const lk_plan_config *config, lk_plan **plan)
{
    return lk__plan_create(graph, config, false, plan);
}

/* The caller's config, that of its optimizer, and its mesh. */
static lk_status read_config(lk_graph *graph, const lk_plan_config *given, lk_plan_config *config,
                             lk_optimizer_config *optimizer, lk__mesh_grid *mesh)
{
    *config = (lk_plan_config)LK_PLAN_CONFIG_INIT;
    *optimizer = (lk_optimizer_config)LK_OPTIMIZER_CONFIG_INIT;
    lk_status status = LK__CONFIG_READ(graph->context, lk_plan_config, given, config);
    if (status >= 0) status = LK__CONFIG_READ(graph->context, lk_optimizer_config, config->optimizer, optimizer);
    if (status >= 0 && config->optimizer) config->optimizer = optimizer;
    return status < 0 ? status : lk__plan_check(graph, config, mesh);
}

static int count_helpers(const lk_plan *p)
{
    int others = lk__plan_owners(p) - 1;
    /* Ranks that place values, and stages, wait for each other within a step: what they have left is not their own
     * alone. */
    bool placed = lk__mesh_used_axes(&p->mesh, LK__PLAN_PLACED_AXES | LK__PLAN_EXPERT_AXES | LK__PLAN_STAGE_AXES) != 0;
    if (!p->shared || !p->trains || p->parallel.keep_cores || placed) return 0;
    return others < LK__HELPERS ? others : LK__HELPERS;
}

/* Then a message takes long enough that a stage is to receive the next while it computes. */
static bool stages_cross_hosts(const lk__mesh_grid *mesh, int hosts)
{
    if (hosts < 2 || mesh->size % hosts != 0) return false;
    for (int rank = 0, each = mesh->size / hosts; rank < mesh->size; rank++)
        if (lk__mesh_member(mesh, LK__PLAN_STAGE_AXES, rank, 0) / each != rank / each) return true;
    return false;
}

/* What the plan knows before it has a graph. */
static void set_config(lk_plan *p, const lk_graph *graph, const lk_plan_config *config, const lk__mesh_grid *mesh,
                       bool one_by_one)
{
    p->context = graph->context;
    p->device = lk__context_device(p->context);
    p->trains = config->optimizer != NULL;
    p->lr = config->optimizer ? config->optimizer->lr : 0;
    p->mesh = *mesh;
    p->parallel = config->parallel;
    p->policy = config->policy;
    p->matmul_precision = config->matmul_precision;
    p->gradient_dtype = config->gradient_dtype == LK_F32 ? graph->real : config->gradient_dtype;
    p->shared = p->parallel.state == LK_STATE_SHARED && lk__plan_batch_parts(p) > 1;
    p->stage = find_stage(p);
    p->receives_early = stages_cross_hosts(&p->mesh, p->parallel.hosts);
    if (p->parallel.blocks_in_flight == 0) p->parallel.blocks_in_flight = 2;
    if (p->parallel.hosts == 0 || !p->shared) p->parallel.hosts = 1;
    if (p->parallel.micro_batches == 0) p->parallel.micro_batches = 1;
    p->helpers = count_helpers(p);
    p->slots = p->sets = 1;
    p->batch_leaves = p->parallel.leaves && p->trains && !one_by_one;
    p->couples = -1;
}

static lk_status copy_graph(lk_plan *p, const lk_graph *graph)
{
    size_t    states = graph->states_count * sizeof *p->states;
    size_t    constants = graph->constants_count * sizeof *p->constants;
    lk_status status = lk__graph_copy(graph, &p->graph);
    if (status >= 0) status = lk__graph_copy_rest(graph, p->graph);
    if (status < 0) return status;
    if (p->policy != LK_POLICY_RECORDED) lk__precision_states(p->graph, lk_policy_dtype(p->policy, graph->real));
    if (states && !(p->states = lk__alloc(p->context, LK_MEMORY_OTHER, states))) return LK_ENOMEM;
    if (constants && !(p->constants = lk__alloc(p->context, LK_MEMORY_OTHER, constants))) return LK_ENOMEM;
    return LK_OK;
}

/* How the axes of the mesh divide values, layers and states. */
static lk_status divide_over_axes(lk_plan *p, lk_graph *graph, const lk_plan_config *config,
                                  const lk__plan_placement *placement)
{
    bool           like = lk__plan_is_like(placement);
    const lk_plan *other = like ? placement->user : NULL;
    lk_status      status;
    if (!placement || like) {
        p->placed_axes = lk__mesh_used_axes(&p->mesh, LK__PLAN_PLACED_AXES);
        p->expert_axes = lk__mesh_used_axes(&p->mesh, LK__PLAN_EXPERT_AXES);
    }
    if (p->stage == 3 && lk__device_is_host(p->device))
        p->host = lk__plan_find_host(&p->mesh, lk__plan_shard_axes(p), config->parallel.hosts);
    if (like && p->placed_axes) lk__plan_copy_splits(p, other);
    if ((status = lk__plan_find_losses(p, graph, config->loss.graph ? config->loss.id : -1)) < 0) return status;
    if ((!placement || like) && (status = lk__plan_make_stages(p, config, other)) < 0) return status;
    if (like) placement = NULL; /* without an axis that cuts values, nothing is placed otherwise */
    return p->placed_axes ? LK_OK : lk__plan_place_states(p, placement, config->optimizer);
}

static lk_status plan_lists(lk_plan *p, const lk_plan_config *config)
{
    lk_status status;
    if (lk__sum_parts_needs_leaves(p)) p->batch_leaves = false;
    if (p->pipeline) p->batch_leaves = false; /* whether leaves can be one batch may differ from stage to stage */
    if (p->parallel.leaves && !p->batch_leaves) lk__plan_reduce_capacity(p);
    if (p->trains && (status = plan_training(p, config)) < 0) return status;
    if (p->trains && p->pipeline && (status = lk__plan_check_schedule(p)) < 0) return status;
    if (p->trains && (status = lk__plan_weights(p)) < 0) return status;
    if (!p->trains) lk__plan_share_buffers(p);
    return plan_evaluation(p, config);
}

/* The memory of a program, which runs one list at a time. */
static void measure_memory(lk_plan *p)
{
    const lk__plan_list *others[] = {&p->evaluate, &p->weights};
    p->memory[LK_MEMORY_ACTIVATIONS] = p->train.arena * (size_t)p->slots + p->train.common;
    p->memory[LK_MEMORY_WORKSPACE] = p->train.workspace;
    p->gathered = p->train.gathered;
    p->host.bytes = p->train.host;
    for (int i = 0; i < 2; i++) {
        if (others[i]->arena > p->memory[LK_MEMORY_ACTIVATIONS]) p->memory[LK_MEMORY_ACTIVATIONS] = others[i]->arena;
        if (others[i]->gathered > p->gathered) p->gathered = others[i]->gathered;
        if (others[i]->host > p->host.bytes) p->host.bytes = others[i]->host;
        if (others[i]->workspace > p->memory[LK_MEMORY_WORKSPACE])
            p->memory[LK_MEMORY_WORKSPACE] = others[i]->workspace;
    }
    p->leaf_sums_offset = p->memory[LK_MEMORY_WORKSPACE];
    if (p->batch_leaves) p->memory[LK_MEMORY_WORKSPACE] += (size_t)lk__plan_workers(p) * lk__kernel_leaves_bytes();
    p->memory[LK_MEMORY_STAGING] = lk__plan_staging_bytes(p);
}

lk_status lk__plan_create(lk_graph *graph, const lk_plan_config *given, bool one_by_one, lk_plan **plan)
{
    return lk__plan_create_placed(graph, given, one_by_one, NULL, plan);
}

lk_status lk__plan_create_placed(lk_graph *graph, const lk_plan_config *given, bool one_by_one,
                                 const lk__plan_placement *placement, lk_plan **plan)
{
    lk_plan_config      config;
    lk_optimizer_config optimizer;
    lk__mesh_grid       mesh;
    if (plan) *plan = NULL;
    if (!graph) return LK_EINVAL; /* of an empty tensor: there is no context for a message */
    lk_context *c = graph->context;
    if (!plan) return lk__fail(c, LK_EINVAL, "lk_plan_create: the plan pointer is NULL");
    lk_status status = read_config(graph, given, &config, &optimizer, &mesh);
    if (status < 0) return status;
    lk_plan *p = lk__alloc(c, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM;
    set_config(p, graph, &config, &mesh, one_by_one);
    status = copy_graph(p, graph);
    if (status >= 0) status = divide_over_axes(p, graph, &config, placement);
    if (status >= 0) status = plan_lists(p, &config);
    if (status < 0) {
        if (p->train.graph && p->train.graph->status == LK_EINVAL) lk__fail(c, status, "%s", p->train.graph->error);
        lk_plan_free(p);
        return status;
    }
    measure_memory(p);
    *plan = p;
    return LK_OK;
}

static void free_list(lk_context *c, lk__plan_list *list, size_t states)
{
    lk_graph_free(list->graph);
    lk__free(c, LK_MEMORY_OTHER, list->order, list->order_capacity * sizeof *list->order);
    lk__free(c, LK_MEMORY_OTHER, list->launches, list->launches_capacity * sizeof *list->launches);
    lk__free(c, LK_MEMORY_OTHER, list->by_leaf, list->by_leaf_count * sizeof *list->by_leaf);
    lk__free(c, LK_MEMORY_OTHER, list->places, list->places_count * sizeof *list->places);
    lk__free(c, LK_MEMORY_OTHER, list->gradients, states * sizeof(int));
    lk__free(c, LK_MEMORY_OTHER, list->outputs, (size_t)list->outputs_count * sizeof(int));
}

void lk_plan_free(lk_plan *p)
{
    if (!p) return;
    lk_context *c = p->context;
    size_t      states = p->graph ? p->graph->states_count : 0;
    free_list(c, &p->train, states);
    free_list(c, &p->evaluate, states);
    free_list(c, &p->weights, states);
    lk__free(c, LK_MEMORY_OTHER, p->states, states * sizeof *p->states);
    lk__free(c, LK_MEMORY_OTHER, p->algorithms, p->algorithms_bytes);
    lk__cost_free_times(p);
    if (p->graph) lk__free(c, LK_MEMORY_OTHER, p->constants, p->graph->constants_count * sizeof *p->constants);
    lk__free(c, LK_MEMORY_OTHER, p->buckets, p->buckets_capacity * sizeof *p->buckets);
    lk__free(c, LK_MEMORY_OTHER, p->units, p->units_capacity * sizeof *p->units);
    lk__plan_free_stages(p);
    lk_graph_free(p->graph);
    lk__free(c, LK_MEMORY_OTHER, p, sizeof *p);
}

size_t lk_plan_memory(const lk_plan *p, lk_memory kind)
{
    return (unsigned)kind < LK_MEMORY_COUNT ? p->memory[kind] : 0;
}

size_t lk_plan_instructions(const lk_plan *p) { return p->train.order_count; }

int64_t lk_plan_capacity(const lk_plan *p)
{
    const lk_graph *g = p->graph;
    int64_t         smallest = INT64_MAX;
    for (size_t i = 0; i < g->values_count; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && g->values[i].shape.count_axis >= 0 &&
            g->values[i].shape.dims[0] < smallest)
            smallest = g->values[i].shape.dims[0];
    return smallest;
}

int           lk_plan_helpers(const lk_plan *p) { return p->helpers; }
lk_state_mode lk_plan_state(const lk_plan *p) { return p->shared ? LK_STATE_SHARED : LK_STATE_REPLICATED; }

lk_holder lk_plan_holder(const lk_plan *p, lk_memory kind)
{
    bool by_node = kind == LK_MEMORY_PARAMETERS || (kind == LK_MEMORY_BUFFERS && p->shares_buffers);
    bool by_host = kind == LK_MEMORY_MASTER || kind == LK_MEMORY_OPTIMIZER;
    return !p->shared ? LK_HELD_BY_RANK : by_node ? LK_HELD_BY_NODE : by_host ? LK_HELD_BY_HOST : LK_HELD_BY_RANK;
}

static uint64_t hash_list(const lk__plan_list *list, uint64_t hash)
{
    for (size_t i = 0; list->graph && i < list->order_count; i++)
        hash = lk__node_hash(list->graph, &list->graph->nodes[list->order[i]], hash);
    return hash;
}

uint64_t lk__plan_hash(const lk_plan *p)
{
    uint64_t hash = hash_list(&p->evaluate, hash_list(&p->train, 1 + (uint64_t)p->graph->real + 16 * p->policy +
                                                                     64 * (uint64_t)p->gradient_dtype +
                                                                     4096 * (uint64_t)p->matmul_precision));
    for (size_t i = 0; i < p->graph->constants_count; i++) {
        char text[256];
        lk__constant_text(p->graph, i, text, sizeof text);
        hash = lk__hash64(text, strlen(text), hash);
    }
    return hash;
}

uint64_t lk_plan_fingerprint(const lk_plan *p)
{
    uint64_t hash = lk__plan_hash(p);
    return p->algorithms ? lk__hash64(p->algorithms, strlen(p->algorithms), hash) : hash;
}

lk_status lk__plan_set_algorithms(lk_plan *p, const char *text, size_t length)
{
    char *copy = length ? lk__alloc(p->context, LK_MEMORY_OTHER, length + 1) : NULL;
    if (length && !copy) return LK_ENOMEM;
    if (copy) memcpy(copy, text, length);
    lk__free(p->context, LK_MEMORY_OTHER, p->algorithms, p->algorithms_bytes);
    p->algorithms = copy;
    p->algorithms_bytes = copy ? length + 1 : 0;
    return LK_OK;
}
