/* check_config.c - checks the settings of a plan, each by itself and in combination. */
#include "graph/optimizer.h"
#include "plan/pieces.h"
#include "plan/pipeline_schedule.h"
#include "plan/tactics.h"

#include <fnmatch.h>

static bool is_value(const lk_graph *g, lk_tensor x)
{
    return x.graph == g && x.id >= 0 && (size_t)x.id < g->values_count;
}

/* f32 is the graph's own type; rounded to a narrower one, fewer bytes are sent. */
static bool reduces_gradients(lk_dtype type) { return type == LK_F32 || lk__is_narrow(type); }

static lk_status check_products(lk_graph *g, lk_matmul_precision precision)
{
    lk_context *c = g->context;
    if (!lk_matmul_precision_name(precision))
        return lk__fail(c, LK_EINVAL, "unknown matmul precision %d", (int)precision);
    if (precision == LK_MATMUL_HIGHEST) return LK_OK;
    if (g->real != LK_F32)
        return lk__fail(c, LK_EINVAL,
                        "rounding the operands of matrix products to %s requires a graph recorded in f32, not in %s",
                        lk_matmul_precision_name(precision), lk_dtype_name(g->real));
    if (!lk__context_device(c)->backend->kernels.rounded_products)
        return lk__fail(c, LK_EUNSUPPORTED,
                        "f32 matrix products with operands rounded to %s are not supported on %s, which supports TF32 "
                        "(--tf32) and mixed precision (--dtype bf16) instead",
                        lk_matmul_precision_name(precision), lk_context_device(c));
    return LK_OK;
}

static lk_status check_precision(lk_graph *g, const lk_plan_config *config)
{
    lk_context *c = g->context;
    lk_dtype    reduced = config->gradient_dtype;
    if ((unsigned)config->policy >= LK_POLICY_COUNT)
        return lk__fail(c, LK_EINVAL, "unknown precision policy %d", (int)config->policy);
    if (config->policy != LK_POLICY_RECORDED && g->real != LK_F32)
        return lk__fail(c, LK_EINVAL, "the policy %s requires a graph recorded in f32, not in %s",
                        lk_policy_name(config->policy), lk_dtype_name(g->real));
    if (!reduces_gradients(reduced))
        return lk__fail(c, LK_EINVAL, "gradients can be reduced in %s, not in %s",
                        lk__dtype_names_of(reduces_gradients).text, lk_dtype_name(reduced));
    if (reduced == LK_F32) return LK_OK;
    if (g->real != LK_F32)
        return lk__fail(c, LK_EINVAL, "gradients of a graph in %s cannot be reduced in %s", lk_dtype_name(g->real),
                        lk_dtype_name(reduced));
    if (config->parallel.leaves)
        return lk__fail(c, LK_EINVAL,
                        "gradients in %s are rounded between ranks, so their sum would depend on the number of ranks: "
                        "leaves require gradients in f32",
                        lk_dtype_name(reduced));
    return LK_OK;
}

/* A node that writes a cache is the only one that reads it, so that no order of nodes matters, and runs in evaluation
 * alone. */
static lk_status check_caches(const lk_graph *g, bool trains)
{
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (lk__op_find(n->op)->effect != LK__EFFECT_CACHE) continue;
        const char *name = g->states[g->values[n->in[0]].state].name, *file = n->site.file ? n->site.file : "?";
        if (trains)
            return lk__fail(g->context, LK_EINVAL,
                            "%s:%d: %s into \"%s\" runs only in evaluation, but this plan trains: record a model "
                            "without caches for training",
                            file, n->site.line, lk__op_name(n->op), name);
        for (size_t k = 0; k < g->nodes_count; k++)
            for (int j = 0; j < g->nodes[k].inputs; j++)
                if (g->nodes[k].in[j] == n->in[0] && k != i)
                    return lk__fail(g->context, LK_EINVAL,
                                    "%s:%d: %s reads the buffer \"%s\", which %s at %s:%d writes: read the result of "
                                    "that call instead",
                                    g->nodes[k].site.file ? g->nodes[k].site.file : "?", g->nodes[k].site.line,
                                    lk__op_name(g->nodes[k].op), name, lk__op_name(n->op), file, n->site.line);
    }
    return LK_OK;
}

/* Fails if a group's pattern matches no parameter, with the parameter whose name is nearest. */
static lk_status check_match(const lk_graph *g, const char *pattern)
{
    const char *nearest = NULL;
    size_t      least = SIZE_MAX;
    char        text[LK__SHOWN];
    for (size_t i = 0; i < g->states_count; i++) {
        const lk__graph_state *state = &g->states[i];
        if (state->buffer) continue;
        if (fnmatch(pattern, state->name, 0) == 0) return LK_OK;
        size_t distance = lk__pattern_distance(pattern, state->name);
        if (!nearest || distance < least) nearest = state->name, least = distance;
    }
    return lk__fail(g->context, LK_EINVAL, "no parameter matches \"%s\"%s%s%s", lk__shown(pattern, text),
                    nearest ? "; the nearest name is \"" : ": the model has no parameters", nearest ? nearest : "",
                    nearest ? "\"" : "");
}

/* The graph, the loss and the outputs. */
static lk_status check_tensors(lk_graph *g, const lk_plan_config *config)
{
    lk_context *c = g->context;
    if (g->status < 0) return lk__fail(c, g->status, "%s", g->error);
    if (g->block)
        return lk__fail(c, LK_EINVAL, "block \"%s\" is still open; lk_block_end is missing", g->blocks[g->block].name);
    if (lk__empty_line(config->loss))
        return lk__fail(c, LK_EINVAL, "the loss is an empty tensor, first passed to the call on line %d",
                        lk__empty_line(config->loss));
    if (config->loss.graph && !is_value(g, config->loss))
        return lk__fail(c, LK_EINVAL, "the loss belongs to a different graph");
    lk_dtype type = config->loss.graph ? g->values[config->loss.id].shape.dtype : LK_F64;
    if (type != LK_F32 && type != LK_F64)
        return lk__fail(c, LK_EINVAL, "the loss is %s; expected f32 or f64: use lk_cast", lk_dtype_name(type));
    if (config->outputs_count < 0 || (config->outputs_count > 0 && !config->outputs))
        return lk__fail(c, LK_EINVAL, "outputs_count is %d, but outputs is %s", config->outputs_count,
                        config->outputs ? "set" : "NULL");
    for (int i = 0; i < config->outputs_count; i++)
        if (!is_value(g, config->outputs[i]))
            return lk__fail(c, LK_EINVAL, "output %d is %s", i,
                            config->outputs[i].graph ? "not a tensor of this graph" : "an empty tensor");
    return LK_OK;
}

/* parts: of a batch. */
static lk_status check_division(lk_context *c, const lk_parallel *parallel, int parts)
{
    int most = parallel->leaves > 0 ? (parallel->leaves + parts - 1) / parts : 0; /* leaves of a rank */
    if (parallel->leaves < 0 || parallel->micro_batches < 0)
        return lk__fail(c, LK_EINVAL, "%d leaves and %d micro-batches are invalid: expected 0 or more",
                        parallel->leaves, parallel->micro_batches);
    if (parallel->leaves && parallel->leaves < parts)
        return lk__fail(c, LK_EINVAL, "%d leaves are too few for %d ranks: each rank needs at least one leaf",
                        parallel->leaves, parts);
    if (parallel->leaves && parallel->micro_batches > most)
        return lk__fail(c, LK_EINVAL,
                        "%d micro-batches of %d leaves on %d ranks: a micro-batch must consist of whole leaves, so at "
                        "most %d micro-batches are possible",
                        parallel->micro_batches, parallel->leaves, parts, most);
    if (parallel->hosts < 0)
        return lk__fail(c, LK_EINVAL, "the number of hosts is %d; expected 0 or more", parallel->hosts);
    return LK_OK;
}

static lk_status check_sharing(lk_context *c, const lk_parallel *parallel, const lk__mesh_grid *mesh)
{
    char why[256];
    if ((unsigned)parallel->state > LK_STATE_SHARED)
        return lk__fail(c, LK_EINVAL, "unknown state mode %d", (int)parallel->state);
    if (parallel->state != LK_STATE_SHARED || lk__mesh_extent(mesh, LK__PLAN_BATCH_AXES) == 1) return LK_OK;
    if (!lk__device_is_host(lk__context_device(c)))
        return lk__fail(c, LK_EUNSUPPORTED,
                        "ranks share their state in host memory, which the device %s cannot use: plan it as replicated "
                        "(LK_STATE_REPLICATED, --state replicated)",
                        lk_context_device(c));
    if (!lk__plan_hosts_share(mesh, parallel->leaves, parallel->hosts, why, sizeof why))
        return lk__fail(c, LK_EUNSUPPORTED,
                        "the ranks %s, so they cannot share their state: plan it as replicated (LK_STATE_REPLICATED, "
                        "--state replicated)",
                        why);
    return LK_OK;
}

/* Plans that train: what an evaluation computes is not asked for. */
static lk_status check_layout(lk_context *c, const lk_parallel *parallel)
{
    if (parallel->sum_part_minimum < 0)
        return lk__fail(c, LK_EINVAL, "sum_part_minimum is %d; expected 1 or more, or 0, which means 96",
                        parallel->sum_part_minimum);
    if (!parallel->reproducible_layout) return LK_OK;
    if (!parallel->leaves)
        return lk__fail(c, LK_EINVAL,
                        "reproducible_layout requires leaves, which are the terms of every sum over the batch");
    if (!lk__context_device(c)->backend->kernels.sums_in_parts)
        return lk__fail(c, LK_EUNSUPPORTED,
                        "every layout gives the same bits only on CPUs, but the device is %s: use --device cpu, or "
                        "--reproducible without layout",
                        lk_context_device(c));
    return LK_OK;
}

/* A capacity is that of the samples that run together, and with leaves how many these are depends on the ranks. */
static lk_status check_capacities(const lk_graph *g, int leaves)
{
    for (size_t i = 0; i < g->nodes_count && leaves; i++) {
        const lk__graph_node *n = &g->nodes[i];
        if (!(lk__op_find(n->op)->attributes & LK__HAS(capacity)) || n->attrs.capacity == 0) continue;
        return lk__fail(
            g->context, LK_EUNSUPPORTED,
            "%s:%d: %s has a capacity, which applies to all samples that run together, but with %d leaves their number "
            "depends on the number of ranks: remove the capacity, or train without leaves (omit --reproducible)",
            n->site.file ? n->site.file : "?", n->site.line, lk__op_name(n->op), leaves);
    }
    return LK_OK;
}

static lk_status check_pipeline(lk_context *c, const lk_plan_config *config, const lk__mesh_grid *mesh)
{
    if (!lk_pipeline_schedule_name(config->parallel.pipeline_schedule))
        return lk__fail(c, LK_EINVAL, "unknown pipeline schedule %d", (int)config->parallel.pipeline_schedule);
    if (config->stages && lk__mesh_extent(mesh, LK_AXIS_PIPELINE) == 1)
        return lk__fail(c, LK_EINVAL, "stages is \"%s\", but the mesh has no pipeline axis with several ranks",
                        config->stages);
    if (config->parallel.micro_batches > LK__PIPELINE_PARTS && lk__mesh_extent(mesh, LK_AXIS_PIPELINE) > 1)
        return lk__fail(c, LK_EUNSUPPORTED, "%d micro-batches in a pipeline: at most %d are supported",
                        config->parallel.micro_batches, LK__PIPELINE_PARTS);
    return LK_OK;
}

static lk_status check_placements(lk_context *c, const lk_plan_config *config)
{
    if (config->pieces < LK_PIECES_ESTIMATED || config->pieces > LK__PIECES_MOST)
        return lk__fail(c, LK_EINVAL, "%d pieces of a collective are invalid: expected 0 to %d, or LK_PIECES_ESTIMATED",
                        config->pieces, LK__PIECES_MOST);
    const lk_parallel *parallel = &config->parallel;
    if (parallel->shard_stage < 0 || parallel->shard_stage > 3)
        return lk__fail(c, LK_EINVAL, "shard_stage is %d; expected 1, 2 or 3, or 0, which means 3",
                        parallel->shard_stage);
    if (parallel->blocks_in_flight < 0)
        return lk__fail(c, LK_EINVAL, "blocks_in_flight is %d; expected 1 or more, or 0, which means 2",
                        parallel->blocks_in_flight);
    return lk__tactics_check(c, config->tactics);
}

static lk_status check_optimizer(lk_graph *g, const lk_plan_config *config)
{
    lk_context                *c = g->context;
    const lk_optimizer_config *o = config->optimizer;
    char                       wrong[256];
    lk_status                  status = LK_OK;
    if (!config->loss.graph) return lk__fail(c, LK_EINVAL, "an optimizer needs a loss");
    if (!lk__optimizer_check(o, wrong, sizeof wrong)) return lk__fail(c, LK_EINVAL, "%s", wrong);
    if (o->groups_count < 0 || (o->groups_count > 0 && !o->groups))
        return lk__fail(c, LK_EINVAL, "groups_count is %d, but groups is %s", o->groups_count,
                        o->groups ? "set" : "NULL");
    for (int i = 0; i < o->groups_count && status >= 0; i++) {
        if (!o->groups[i].match)
            return lk__fail(c, LK_EINVAL,
                            "parameter group %d has no match: set it to a shell pattern, such as \"*.bias\"", i);
        if (o->groups[i].must_match) status = check_match(g, o->groups[i].match);
    }
    return status;
}

lk_status lk__plan_check(lk_graph *g, const lk_plan_config *config, lk__mesh_grid *mesh)
{
    lk_status status = check_tensors(g, config);
    if (status >= 0) status = lk__plan_mesh(g->context, config, mesh);
    int parts = status >= 0 ? lk__mesh_extent(mesh, LK__PLAN_BATCH_AXES) : 0;
    if (status >= 0) status = check_division(g->context, &config->parallel, parts);
    if (status >= 0 && config->parallel.leaves && lk__mesh_used_axes(mesh, LK__PLAN_EXPERT_AXES) &&
        !lk__device_is_host(lk__context_device(g->context)))
        status = lk__fail(
            g->context, LK_EUNSUPPORTED,
            "%d leaves cannot be combined with ranks that have different experts: on %s an expert's rows are not "
            "summed leaf by leaf, so train without leaves (omit --reproducible) or without the expert axis",
            config->parallel.leaves, lk_context_device(g->context));
    if (status >= 0) status = check_sharing(g->context, &config->parallel, mesh);
    if (status >= 0) status = check_placements(g->context, config);
    if (status >= 0) status = check_pipeline(g->context, config, mesh);
    if (status >= 0 && config->optimizer) status = check_layout(g->context, &config->parallel);
    if (status >= 0 && config->optimizer) status = check_capacities(g, config->parallel.leaves);
    if (status >= 0) status = check_precision(g, config);
    if (status >= 0) status = check_products(g, config->matmul_precision);
    if (status >= 0) status = check_caches(g, config->optimizer != NULL);
    return status >= 0 && config->optimizer ? check_optimizer(g, config) : status;
}
