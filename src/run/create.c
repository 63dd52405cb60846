/* create.c - creating and freeing programs: every operand is resolved to a pointer once, so that a run is a loop over
 * calls. This and the other files that create programs decide everything that the executor does not check again:
 * whether state is shared, whether there are leaves, which device is used. */
#include "base/environment.h"
#include "run/shared.h"

#include "comm/comm.h"
#include "plan/verify_schedule.h"
#include "run/digest.h"
#include "run/lend.h"
#include "run/shard.h"
#include "run/timeline.h"

#include <stdlib.h>
#include <string.h>

static lk_status prepare_kernel(lk_program *p, const lk_graph *g, const lk__graph_node *n, lk__run_instruction *in)
{
    lk__device_kernel kernel = lk__plan_kernel(g, n, &in->call);
    in->run = kernel.run;
    in->call.stream = p->stream;
    return kernel.prepare ? kernel.prepare(p->device, &kernel, &in->call) : LK_OK;
}

static lk_status build_instruction(lk_program *p, const lk__plan_list *planned, lk__run_slot *slot,
                                   lk__run_instruction *in)
{
    const lk__graph_node *n = &planned->graph->nodes[in->node];
    lk_status             status = prepare_kernel(p, planned->graph, n, in);
    if (status < 0) return status;
    in->op = n->op;
    in->issue = lk__run_call;
    in->call.workspace = p->memory.workspace;
    in->call.pool = lk__context_pool(p->context);
    in->call.step = &slot->step;
    in->call.step_memory = lk__step_memory(slot);
    in->call.invalid = p->memory.report ? p->memory.report : &p->ids.invalid;
    for (int j = 0; j < n->inputs + n->outputs; j++) {
        int                 v = j < n->inputs ? n->in[j] : n->out[j - n->inputs];
        lk__kernel_operand *o = j < n->inputs ? &in->call.in[j] : &in->call.out[j - n->inputs];
        o->data = v < 0 ? NULL : lk__program_resolve(p, slot->arena, p->memory.gradients, planned->places[v]);
    }
    if (in->action == LK__DO_SLICE) lk__shard_cut_operands(p->plan, planned->graph, n, &in->call);
    return LK_OK;
}

static lk_status build_list(lk_program *p, const lk__plan_list *planned, lk__run_slot *slot, lk__run_list *list)
{
    lk__plan_instructions made;
    lk_status             status = lk__plan_instruct(p->plan, planned, p->group, &made);
    list->planned = planned;
    list->samples = -1;
    if (status < 0) return status;
    list->at = made.at;
    list->collectives = (size_t)made.collectives;
    list->instructions = lk__alloc(p->context, LK_MEMORY_OTHER, made.count * sizeof *list->instructions);
    if (!list->instructions) status = LK_ENOMEM;
    if (list->instructions) list->count = made.count;
    for (size_t i = 0; i < list->count && status >= 0; i++) {
        const lk__plan_instruction *from = &made.all[i];
        lk__run_instruction        *in = &list->instructions[i];
        in->node = from->node;
        in->action = from->action;
        in->when = from->when;
        in->bucket = from->bucket;
        in->collective = from->collective;
        in->how = from->how;
        in->launch = from->launch;
        if (in->node >= 0) status = build_instruction(p, planned, slot, in);
    }
    lk__plan_instructions_free(p->context, &made);
    return status;
}

/* A store can be used with any plan that has the same states in the same layout. */
static lk_status check_states(const lk_plan *plan, const lk_store *store)
{
    const lk_plan *theirs = store->plan;
    if (theirs == plan) return LK_OK;
    if (theirs->graph->states_count != plan->graph->states_count)
        return lk__fail(plan->context, LK_EMISMATCH, "the store holds %zu states, but the plan has %zu",
                        theirs->graph->states_count, plan->graph->states_count);
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        const lk__graph_state *a = &plan->graph->states[i], *b = &theirs->graph->states[i];
        const lk__plan_state  *pa = &plan->states[i], *pb = &theirs->states[i];
        const lk__graph_shape *sa = &plan->graph->values[a->value].shape, *sb = &theirs->graph->values[b->value].shape;
        bool same = strcmp(a->name, b->name) == 0 && a->buffer == b->buffer && sa->dtype == sb->dtype &&
                    lk__shape_equal(sa, sb);
        if (same && (pa->place.offset != pb->place.offset || pa->unit != pb->unit || plan->stage != theirs->stage))
            return lk__fail(plan->context, LK_EMISMATCH,
                            "the store was created for a plan with different slices: the plans first differ in \"%s\"",
                            a->name);
        bool moments = pa->moments == 0 ||
                       (pa->moments == pb->moments &&
                        memcmp(pa->moment_offset, pb->moment_offset, (size_t)pa->moments * sizeof(size_t)) == 0);
        if (same && pa->master && (!pb->master || pa->master_offset != pb->master_offset))
            return lk__fail(plan->context, LK_EMISMATCH,
                            "the store was created for a plan that does not train: it has no master copy of \"%s\"",
                            a->name);
        if (!same || !moments)
            return lk__fail(plan->context, LK_EMISMATCH,
                            "the store was created for a different plan: the plans first differ in \"%s\"%s", a->name,
                            same ? ", in its optimizer state" : "");
    }
    return LK_OK;
}

/* Whether the store holds the constants of this plan: the same bytes in the same places. */
static bool has_constants(const lk_plan *plan, const lk_store *store)
{
    const lk_graph *g = plan->graph, *theirs = store->plan->graph;
    if (store->plan == plan) return true;
    bool same = theirs->constants_count == g->constants_count;
    for (size_t i = 0; i < g->constants_count && same; i++) {
        const lk__graph_constant *a = &g->constants[i], *b = &theirs->constants[i];
        same = a->bytes == b->bytes && plan->constants[i] == store->plan->constants[i] &&
               memcmp(a->data, b->data, a->bytes) == 0;
    }
    return same;
}

/* A store of another graph serves this program too: constants that it does not hold are the program's own. */
static lk_status make_constants(lk_program *p)
{
    const lk_plan *plan = p->plan;
    size_t         bytes = lk__plan_constants_bytes(plan), begin = lk__plan_constants_begin(plan);
    lk_status      status = LK_OK;
    if (!bytes) return LK_OK;
    p->memory.constants = p->store->buffers + begin;
    if (has_constants(plan, p->store)) return LK_OK;
    if ((status = lk__device_alloc(p->device, LK_MEMORY_BUFFERS, bytes, &p->memory.own_constants)) < 0) return status;
    p->memory.constants = p->memory.own_constants;
    for (size_t i = 0; i < plan->graph->constants_count && status >= 0; i++)
        status = lk__device_write(p->device, p->stream, p->memory.constants + (plan->constants[i] - begin),
                                  plan->graph->constants[i].data, plan->graph->constants[i].bytes);
    return status;
}

static lk_status check_comm(const lk_plan *plan, lk_comm *comm)
{
    int size = comm ? lk_comm_size(comm) : 1, rank = comm ? lk_comm_rank(comm) : 0;
    if (size == lk__plan_ranks(plan) && rank == lk__plan_rank(plan)) return LK_OK;
    return lk__fail(plan->context, LK_EMISMATCH, "the plan is for rank %d of %d, but this is rank %d of %d",
                    lk__plan_rank(plan), lk__plan_ranks(plan), rank, size);
}

/* Who updates a state, and how, must be the same to all who use it. */
static lk_status check_sharing(const lk_plan *plan, const lk_store *store, const lk_comm *comm)
{
    unsigned known = lk__plan_cut_axes(plan) | LK_AXIS_SHARD | LK__PLAN_STAGE_AXES;
    if ((plan->split_axes & ~known) || plan->split_axes != store->plan->split_axes)
        return lk__fail(plan->context, LK_EUNSUPPORTED,
                        "programs do not support the way in which the plan splits the state, or the store was created "
                        "for a plan that splits it differently");
    if (lk__store_shares_buffers(store) && plan->writes_buffers && !plan->shares_buffers)
        return lk__fail(plan->context, LK_EMISMATCH,
                        "the ranks share the store's buffers, but each rank would write to them: plan with "
                        "sync_batch_norm, like the plan that the store was created for");
    if (!plan->trains || (plan->shared ? store->comm && store->group == comm : !store->comm)) return LK_OK;
    if (plan->shared)
        return lk__fail(plan->context, LK_EMISMATCH,
                        "the plan's ranks share their state, but the store was not created with their group: use "
                        "lk_store_create_shared, with the same group");
    return lk__fail(plan->context, LK_EMISMATCH,
                    "the store is shared by %d ranks, but the plan updates the whole state on each rank: set its "
                    "lk_parallel.state to LK_STATE_SHARED",
                    lk_comm_size(store->comm));
}

static size_t numbers_bytes(const lk_program *p)
{
    return (size_t)p->division.rows * (size_t)p->plan->evaluate.numbers_count * sizeof *p->numbers;
}

static lk_status make_slots(lk_program *p)
{
    lk_plan *plan = p->plan;
    size_t   slots = (size_t)plan->slots, inputs = p->values * sizeof *p->bound;
    p->slots = lk__alloc(p->context, LK_MEMORY_OTHER, slots * sizeof *p->slots);
    p->numbers = lk__alloc(p->context, LK_MEMORY_OTHER, numbers_bytes(p));
    p->named = lk__alloc(p->context, LK_MEMORY_OTHER, plan->graph->metrics_count * sizeof *p->named);
    p->bound = lk__alloc(p->context, LK_MEMORY_OTHER, inputs);
    if (!p->slots || !p->numbers || (inputs && !p->bound) || (plan->graph->metrics_count && !p->named))
        return LK_ENOMEM;
    for (int i = 0; i < p->division.rows; i++)
        for (int k = 0; k < plan->evaluate.numbers_count; k++)
            lk__row_numbers(p, i)[k] = lk__number_otherwise(plan, k); /* where the loss has none */
    p->memory.common = p->memory.arena + slots * plan->train.arena;
    for (int i = 0; i < plan->slots; i++) {
        lk__run_slot *slot = &p->slots[i];
        slot->arena = p->memory.arena + (size_t)i * plan->train.arena;
        slot->step = (lk__kernel_step){
            .step = 1, .updates_buffers = i == 0 && p->store->writes_buffers, .part = lk__plan_batch_part(plan)};
        slot->inputs = lk__alloc(p->context, LK_MEMORY_OTHER, inputs);
        if (inputs && !slot->inputs) return LK_ENOMEM;
    }
    return LK_OK;
}

static lk_status build_lists(lk_program *p)
{
    const lk_plan *plan = p->plan;
    lk_status      status = LK_OK;
    for (int i = 0; i < plan->slots && plan->trains && status >= 0; i++)
        status = build_list(p, &plan->train, &p->slots[i], &p->slots[i].train);
    if (status >= 0 && plan->batch_leaves && plan->trains) status = lk__leaf_batch_build(p);
    if (status >= 0 && plan->weights.graph) status = build_list(p, &plan->weights, &p->slots[0], &p->weights);
    return status < 0 ? status : build_list(p, &plan->evaluate, &p->slots[0], &p->evaluate);
}

static lk_status prepare_lists(lk_program *p)
{
    lk_status status = lk__tuning_begin(p);
    if (status >= 0) status = lk__tuning_prepare(p);
    return lk__tuning_end(p, status < 0 ? status : build_lists(p));
}

enum { GROUPS = LK__MESH_GROUPS };

static int add_group(unsigned listed[GROUPS], int count, unsigned axes)
{
    for (int i = 0; i < count; i++)
        if (listed[i] == axes) return count;
    if (count == GROUPS) return count; /* not reached: a mesh has no more */
    listed[count] = axes;
    return count + 1;
}

/* The sets of axes along which collectives of this rank are. */
static int list_own_groups(const lk_plan *plan, unsigned listed[GROUPS])
{
    const lk__plan_list *lists[] = {&plan->train, &plan->evaluate, &plan->weights};
    int                  count = lk__plan_batch_parts(plan) > 1 ? add_group(listed, 0, LK__PLAN_BATCH_AXES) : 0;
    if (plan->expert_axes && plan->placed_axes) /* gradients by name (gradient_part.c) */
        count = add_group(listed, count, plan->expert_axes | plan->placed_axes);
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < lists[k]->order_count; i++) {
            const lk__graph_node *n = &lists[k]->graph->nodes[lists[k]->order[i]];
            lk__graph_runs        runs = lk__op_find(n->op)->runs;
            if ((runs == LK__RUNS_COLLECTIVE || runs == LK__RUNS_TRANSFER) && n->attrs.mesh &&
                lk__mesh_extent(&plan->mesh, n->attrs.mesh) > 1)
                count = add_group(listed, count, n->attrs.mesh);
        }
    return count;
}

/* Those of all ranks, in one order: stages of a pipeline have different ones. */
static lk_status list_groups(const lk_plan *plan, lk_comm *comm, unsigned listed[GROUPS], int *count)
{
    int       ranks = lk__plan_ranks(plan);
    size_t    bytes = (size_t)ranks * GROUPS * sizeof(unsigned);
    unsigned *all;
    *count = list_own_groups(plan, listed);
    if (!plan->pipeline) return LK_OK;
    if (!(all = lk__alloc(plan->context, LK_MEMORY_OTHER, bytes))) return LK_ENOMEM;
    for (int i = *count; i < GROUPS; i++) listed[i] = 0;
    lk_status status = lk_comm_all_gather(comm, listed, all, GROUPS * sizeof *all, LK_U8, NULL);
    *count = add_group(listed, 0, LK__PLAN_STAGE_AXES);
    *count = add_group(listed, *count, LK_AXES_ALL & ~(unsigned)LK__PLAN_STAGE_AXES); /* verify.c */
    for (int i = 0; i < ranks * GROUPS && status >= 0; i++)
        if (all[i]) *count = add_group(listed, *count, all[i]);
    lk__free(plan->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

static lk_status make_groups(lk_program *p, lk_comm *comm)
{
    unsigned listed[GROUPS];
    int      count = 0;
    if (lk__plan_ranks(p->plan) == 1) return LK_OK;
    lk_status status = lk__mesh_over(p->context, &p->plan->mesh, comm, &p->mesh);
    if (status >= 0) status = list_groups(p->plan, comm, listed, &count);
    if (status >= 0) status = lk_mesh_create_groups(p->mesh, listed, count);
    if (status >= 0 && lk__plan_batch_parts(p->plan) > 1)
        status = lk_mesh_group(p->mesh, LK__PLAN_BATCH_AXES, &p->batch);
    p->comm = comm;
    if (status < 0) return status;
    if (p->plan->stage)
        p->shard = lk__mesh_find_group(p->mesh, lk__plan_shard_axes(p->plan)); /* NULL: no state is sliced */
    p->group.queued = p->plan->queued;
    p->group.overlaps = p->group.queued || (p->batch && lk__comm_overlaps(p->batch, lk_context_threads(p->context)));
    p->group.staged = !p->group.queued && !lk__comm_reaches(p->batch ? p->batch : comm, p->device);
    p->group.awaits_buffers = p->plan->writes_buffers && lk__store_shares_buffers(p->store);
    return LK_OK;
}

/* What those who run the program need not ask the plan or the device for. */
static void set_facts(lk_program *p)
{
    const lk_plan *plan = p->plan;
    bool           shares = plan->shared && plan->trains;
    p->division = lk__plan_divide(plan);
    p->gradients = shares ? &lk__gradients_of_sharers : plan->stage ? &lk__gradients_of_shards : &lk__gradients_of_all;
    p->visible = lk__device_is_host(p->device);
    p->visible_gradients = p->visible && !shares && !plan->stage;
    /* Parameters that all ranks share are in the caches of those that updated them: ranks begin at different ones. */
    p->tiles_first = shares ? lk__plan_own(plan) : 0;
    p->tiles_of = shares ? lk__plan_owners(plan) : 1;
}

static lk_status make_schedules(lk_program *p)
{
    lk_status status = lk__plan_schedule_make(p->plan, LK__SCHEDULE_STEP, &p->step_schedule);
    return status < 0 ? status : lk__plan_schedule_make(p->plan, LK__SCHEDULE_HELD, &p->held_schedule);
}

lk_status lk_program_create(lk_plan *plan, lk_store *store, lk_comm *comm, lk_program **program)
{
    lk_context *c = plan->context;
    lk_status   status;
    *program = NULL;
    if ((status = check_states(plan, store)) < 0 || (status = check_comm(plan, comm)) < 0 ||
        (status = check_sharing(plan, store, comm)) < 0)
        return status;
    lk_program *p = lk__alloc(c, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM;
    p->context = c;
    p->plan = plan;
    p->store = store;
    p->values = plan->graph->values_count;
    p->capacity = lk_plan_capacity(plan);
    p->progress.evaluated = -1;
    p->device = plan->device;
    set_facts(p);
    p->device->by_heuristic |= plan->parallel.leaves > 0;
    p->waits = lk__environment_flag(c, LK__ENV_LOCKSTEP_DEVICE_SYNC);
    if (lk__device_is_host(p->device) && (status = lk__digests_open(p)) < 0) goto fail;
    if ((status = lk__plan_use_group(plan, comm)) < 0 || (status = make_groups(p, comm)) < 0 ||
        (status = p->device->backend->memory.stream_create(p->device, &p->stream)) < 0 ||
        (status = lk__regions_create(p)) < 0)
        goto fail;
    if (p->comm && (status = lk__verify_plans(plan, p->comm, &p->first_chooses, &p->group.overlaps)) < 0) goto fail;
    if (p->comm && (status = lk__verify_order(p)) < 0) goto fail;
    if (lk__schedule_verifies(c) && (status = lk__plan_verify(plan, p->group)) < 0) goto fail;
    if ((status = make_constants(p)) < 0 || (status = lk__gradients_share(p)) < 0 || (status = make_slots(p)) < 0 ||
        (status = make_schedules(p)) < 0 || (status = lk__losses_create(p)) < 0 ||
        (status = lk__staging_create(p)) < 0 || (status = prepare_lists(p)) < 0 ||
        (status = lk__collectives_create(p)) < 0 || (status = lk__shared_create(p)) < 0 ||
        (status = lk__norm_create(p)) < 0 || (status = lk__lend_create(p)) < 0 || (status = lk__graphs_create(p)) < 0 ||
        (status = lk__queue_create(p)) < 0 || (status = lk__launch_create(p)) < 0)
        goto fail;
    if (p->comm && (status = lk_program_verify(p, 0)) < 0) goto fail;
    *program = p;
    return LK_OK;
fail:
    lk_program_free(p);
    return lk__explain_memory(plan, status);
}

static void free_list(lk_context *c, lk__run_list *list)
{
    if (list->instructions) lk__free(c, LK_MEMORY_OTHER, list->instructions, list->count * sizeof *list->instructions);
}

void lk_program_free(lk_program *p)
{
    if (!p) return;
    lk_context *c = p->context;
    size_t      inputs = p->values * sizeof *p->bound;
    if (p->stream)
        (void)p->device->backend->memory.stream_wait(p->device,
                                                     p->stream); /* a step may still be queued: it uses what is freed */
    lk__digests_close(p);
    lk__timeline_free(p);
    lk__launch_free(p);
    lk__queue_free(p);
    lk__sources_free(p);
    lk__graphs_free(p);
    lk__lend_free(p);
    lk__shared_free(p);
    lk__norm_free(p);
    lk__collectives_free(p);
    lk__staging_free(p);
    lk__gradients_release(p);
    lk__regions_free(p);
    lk_mesh_free(p->mesh);
    lk__device_free(p->device, LK_MEMORY_BUFFERS, p->memory.own_constants, lk__plan_constants_bytes(p->plan));
    for (int i = 0; p->slots && i < p->plan->slots; i++) {
        free_list(c, &p->slots[i].train);
        lk__free(c, LK_MEMORY_OTHER, (void *)p->slots[i].inputs, inputs);
    }
    free_list(c, &p->evaluate);
    free_list(c, &p->weights);
    lk__losses_free(p);
    lk__plan_schedule_free(c, &p->step_schedule);
    lk__plan_schedule_free(c, &p->held_schedule);
    p->device->backend->memory.stream_free(p->device, p->stream);
    lk__free(c, LK_MEMORY_OTHER, p->leaf_memory, p->leaf_bytes);
    lk__free(c, LK_MEMORY_OTHER, p->trace_names, p->trace_names_bytes);
    lk__free(c, LK_MEMORY_OTHER, p->numbers, numbers_bytes(p));
    lk__free(c, LK_MEMORY_OTHER, p->named, p->plan->graph->metrics_count * sizeof *p->named);
    lk__free(c, LK_MEMORY_OTHER, p->slots, (size_t)p->plan->slots * sizeof *p->slots);
    lk__free(c, LK_MEMORY_OTHER, (void *)p->bound, inputs);
    lk__free(c, LK_MEMORY_OTHER, p, sizeof *p);
}
