/* program.c - a program's life: creating it resolves every operand to a pointer once, so that a run is a walk over calls. What is
 * bound, cut into micro-batches and read is here as well; running is in section.c. */
#include "run/program.h"

#include <stdio.h>
#include <string.h>

static lk_status build_line(lk_program *p, const lk__plan_order *t, lk__run_slot *slot, lk__run_list *l)
{
    const lk__kernel_entry *kernels = lk__cpu_kernels(t->graph->real, lk_context_isa(p->context));
    size_t                  whole = 0;
    l->timeline = t;
    l->samples = -1;
    if (t->order_count == 0) return LK_OK;
    l->instructions = lk__alloc(p->context, LK_MEMORY_OTHER, t->order_count * sizeof *l->instructions);
    if (!l->instructions) return LK_ENOMEM;
    for (size_t i = 0; i < t->order_count; i++) {
        const lk__graph_node *n = &t->graph->nodes[t->order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_NOTHING) {
            for (int section = 0; section < LK_SECTION_COUNT; section++) {
                bool first = section == LK_FORWARD || section == LK_EVALUATE;
                if (!first && i < t->end[section - 1]) l->begin[section] = l->count + 1;
                if (i < t->end[section]) l->end[section] = l->count + 1;
            }
            lk__run_instruction *in = &l->instructions[l->count++];
            in->node = t->order[i];
            in->run = kernels[n->op].run;
            lk__plan_call_at_capacity(t->graph, n, &in->call);
            in->call.workspace = p->workspace;
            in->call.pool = lk__context_pool(p->context);
            in->call.step = &slot->step;
            in->call.invalid = &p->invalid;
            for (int j = 0; j < n->inputs + n->outputs; j++) {
                int                 v = j < n->inputs ? n->in[j] : n->out[j - n->inputs];
                lk__kernel_operand *o = j < n->inputs ? &in->call.in[j] : &in->call.out[j - n->inputs];
                o->data = v < 0 ? NULL : lk__program_resolve(p, slot->arena, p->gradients, t->places[v]);
            }
        }
        while (t == &p->plan->train && whole < p->plan->buckets_count && p->plan->buckets[whole].after <= i) whole++;
        if (l->count) l->instructions[l->count - 1].whole = whole;
    }
    return LK_OK;
}

/* A store outlives plans: any plan that lays out the same states the same way can run on it. */
static lk_status check_states(const lk_plan *plan, const lk_store *store)
{
    const lk_plan *theirs = store->plan;
    if (theirs == plan) return LK_OK;
    if (theirs->graph->states_count != plan->graph->states_count)
        return lk__fail(plan->context, LK_EMISMATCH, "the store holds %zu states, the plan has %zu",
                        theirs->graph->states_count, plan->graph->states_count);
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        const lk__graph_state *a = &plan->graph->states[i], *b = &theirs->graph->states[i];
        const lk__plan_state  *pa = &plan->states[i], *pb = &theirs->states[i];
        const lk__graph_shape *sa = &plan->graph->values[a->value].shape, *sb = &theirs->graph->values[b->value].shape;
        bool same = strcmp(a->name, b->name) == 0 && a->buffer == b->buffer && sa->dtype == sb->dtype &&
                    lk__shape_equal(sa, sb);
        bool moments = pa->moments == 0 ||
                       (pa->moments == pb->moments &&
                        memcmp(pa->moment_offset, pb->moment_offset, (size_t)pa->moments * sizeof(size_t)) == 0);
        if (!same || !moments)
            return lk__fail(plan->context, LK_EMISMATCH,
                            "the store was made for another plan: they first differ in \"%s\"%s", a->name,
                            same ? ", in its optimizer state" : "");
    }
    return LK_OK;
}

/* A store holds the constants of the plan that it was made for: these must be the same bytes in the same places. */
static lk_status check_constants(const lk_plan *plan, const lk_store *store)
{
    const lk_graph *g = plan->graph, *theirs = store->plan->graph;
    if (store->plan == plan) return LK_OK;
    if (theirs->constants_count != g->constants_count)
        return lk__fail(plan->context, LK_EMISMATCH, "the store holds %zu constants, the plan has %zu",
                        theirs->constants_count, g->constants_count);
    for (size_t i = 0; i < g->constants_count; i++) {
        const lk__graph_constant *a = &g->constants[i], *b = &theirs->constants[i];
        lk_site                   site = g->values[a->value].site;
        if (a->bytes == b->bytes && plan->constants[i] == store->plan->constants[i] &&
            memcmp(a->data, b->data, a->bytes) == 0)
            continue;
        return lk__fail(plan->context, LK_EMISMATCH,
                        "the store was made for another plan: the constant recorded at %s:%d has other data or "
                        "another place in it",
                        site.file ? site.file : "?", site.line);
    }
    return LK_OK;
}

static lk_status check_comm(const lk_plan *plan, lk_comm *comm)
{
    const lk_parallel *f = &plan->parallel;
    int                size = comm ? lk_comm_size(comm) : 1, rank = comm ? lk_comm_rank(comm) : 0;
    if (size == f->world && rank == f->rank) return LK_OK;
    return lk__fail(plan->context, LK_EMISMATCH, "the plan is for rank %d of %d, this is rank %d of %d", f->rank,
                    f->world, rank, size);
}

static lk_status make_slots(lk_program *p)
{
    lk_plan *plan = p->plan;
    size_t   slots = (size_t)plan->slots, inputs = p->values * sizeof *p->bound;
    p->slots = lk__alloc(p->context, LK_MEMORY_OTHER, slots * sizeof *p->slots);
    p->sums = lk__alloc(p->context, LK_MEMORY_OTHER, (size_t)lk__leaves_here(p) * sizeof *p->sums);
    p->bound = lk__alloc(p->context, LK_MEMORY_OTHER, inputs);
    if (!p->slots || !p->sums || (inputs && !p->bound)) return LK_ENOMEM;
    for (int i = 0; i < plan->slots; i++) {
        lk__run_slot *slot = &p->slots[i];
        slot->arena = p->arena + (size_t)i * plan->train.arena;
        slot->step = (lk__kernel_step){.step = 1, .updates_buffers = i == 0};
        slot->inputs = lk__alloc(p->context, LK_MEMORY_OTHER, inputs);
        if (inputs && !slot->inputs) return LK_ENOMEM;
        lk_status status = plan->trains ? build_line(p, &plan->train, slot, &slot->train) : LK_OK;
        if (status < 0) return status;
    }
    lk_status status = plan->parallel.batch_leaves && plan->trains ? lk__leaf_batch_build(p) : LK_OK;
    return status < 0 ? status : build_line(p, &plan->evaluate, &p->slots[0], &p->evaluate);
}

/* Gradients lie where peers of the host can read them; the account of memory is the same. */
static lk_status make_gradients(lk_program *p)
{
    size_t bytes = p->plan->memory[LK_MEMORY_GRADIENTS];
    if (bytes == 0) return LK_OK;
    if (!p->comm) return (p->gradients = lk__alloc(p->context, LK_MEMORY_GRADIENTS, bytes)) ? LK_OK : LK_ENOMEM;
    void     *memory;
    lk_status status = lk_comm_alloc(p->comm, bytes, &memory);
    if (status < 0) return lk__fail_prefix(p->context, status, "gradients in shared memory: ");
    p->gradients = memory;
    lk__account(p->context, LK_MEMORY_GRADIENTS, (ptrdiff_t)bytes);
    return LK_OK;
}

lk_status lk_program_create(lk_plan *plan, lk_store *store, lk_comm *comm, lk_program **program)
{
    lk_context *c = plan->context;
    lk_status   status;
    *program = NULL;
    if ((status = check_states(plan, store)) < 0 || (status = check_constants(plan, store)) < 0 ||
        (status = check_comm(plan, comm)) < 0)
        return status;
    lk_program *p = lk__alloc(c, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM;
    p->context = c;
    p->plan = plan;
    p->store = store;
    p->comm = plan->parallel.world > 1 ? comm : NULL;
    p->values = plan->graph->values_count;
    p->capacity = lk_plan_capacity(plan);
    p->arena = lk__alloc(c, LK_MEMORY_ACTIVATIONS, plan->memory[LK_MEMORY_ACTIVATIONS]);
    p->workspace = lk__alloc(c, LK_MEMORY_WORKSPACE, plan->memory[LK_MEMORY_WORKSPACE]);
    status = LK_ENOMEM;
    if ((plan->memory[LK_MEMORY_ACTIVATIONS] && !p->arena) || (plan->memory[LK_MEMORY_WORKSPACE] && !p->workspace))
        goto fail;
    if (p->comm && (status = lk__verify_plans(p)) < 0) goto fail;
    if ((status = make_gradients(p)) < 0 || (status = make_slots(p)) < 0 || (status = lk__exchange_create(p)) < 0)
        goto fail;
    if (p->comm && (status = lk_program_verify(p, 0)) < 0) goto fail;
    *program = p;
    return LK_OK;
fail:
    lk_program_free(p);
    return status;
}

static void free_line(lk_context *c, lk__run_list *l)
{
    if (l->instructions)
        lk__free(c, LK_MEMORY_OTHER, l->instructions, l->timeline->order_count * sizeof *l->instructions);
}

void lk_program_free(lk_program *p)
{
    if (!p) return;
    lk_context *c = p->context;
    size_t      inputs = p->values * sizeof *p->bound, gradients = p->plan->memory[LK_MEMORY_GRADIENTS];
    lk__exchange_free(p);
    lk__free(c, LK_MEMORY_ACTIVATIONS, p->arena, p->plan->memory[LK_MEMORY_ACTIVATIONS]);
    lk__free(c, LK_MEMORY_WORKSPACE, p->workspace, p->plan->memory[LK_MEMORY_WORKSPACE]);
    if (p->comm && p->gradients) {
        lk_comm_release(p->comm, p->gradients);
        lk__account(c, LK_MEMORY_GRADIENTS, -(ptrdiff_t)gradients);
    } else {
        lk__free(c, LK_MEMORY_GRADIENTS, p->gradients, gradients);
    }
    for (int i = 0; p->slots && i < p->plan->slots; i++) {
        free_line(c, &p->slots[i].train);
        lk__free(c, LK_MEMORY_OTHER, (void *)p->slots[i].inputs, inputs);
    }
    free_line(c, &p->evaluate);
    lk__free(c, LK_MEMORY_OTHER, p->leaf_memory, p->leaf_bytes);
    lk__free(c, LK_MEMORY_OTHER, p->trace_names, p->trace_names_bytes);
    lk__free(c, LK_MEMORY_OTHER, p->sums, (size_t)lk__leaves_here(p) * sizeof *p->sums);
    lk__free(c, LK_MEMORY_OTHER, p->slots, (size_t)p->plan->slots * sizeof *p->slots);
    lk__free(c, LK_MEMORY_OTHER, (void *)p->bound, inputs);
    lk__free(c, LK_MEMORY_OTHER, p, sizeof *p);
}

/* ---- what a run works on ---- */

static bool counts(const lk__graph_value *v) { return v->kind == LK__VALUE_INPUT && v->shape.count_axis >= 0; }

/* Lane `slot` works on `count` of the bound samples from `first` on. */
static lk_status cut(lk_program *p, int slot, int64_t first, int64_t count)
{
    const lk_graph *g = p->plan->graph;
    lk__run_slot   *l = &p->slots[slot];
    const lk_step  *s = &p->step;
    if (count < 0 || count > p->capacity)
        return lk__fail(p->context, LK_EINVAL, "a batch of %lld samples; the plan's capacity is %lld", (long long)count,
                        (long long)p->capacity);
    for (size_t i = 0; i < p->values; i++) {
        const lk__graph_value *v = &g->values[i];
        const char            *data = p->bound[i];
        if (v->kind != LK__VALUE_INPUT) continue;
        if (data && first > 0 && counts(v))
            data += (size_t)first * (size_t)(lk__shape_elements(&v->shape) / v->shape.dims[0]) *
                    lk_dtype_size(v->shape.dtype);
        if (l->inputs[i] == data) continue;
        l->inputs[i] = data;
        l->train.samples = -1;
        if (slot == 0) p->evaluate.samples = -1;
    }
    l->step.step = s->step;
    l->step.epoch = s->epoch;
    l->step.count = count;
    l->step.seed = s->seed;
    l->step.rate = s->rate;
    l->step.sample_ids = s->sample_ids ? s->sample_ids + first : NULL;
    return LK_OK;
}

lk_status lk_program_bind(lk_program *p, const char *input, const void *data)
{
    const lk_graph *g = p->plan->graph;
    for (size_t i = 0; i < p->values; i++) {
        if (g->values[i].kind != LK__VALUE_INPUT || strcmp(g->values[i].name, input) != 0) continue;
        p->bound[i] = data;
        return cut(p, 0, 0, p->slots[0].step.count);
    }
    return lk__fail(p->context, LK_ENOENT, "the model has no input \"%s\"", input);
}

static lk_status set_step(lk_program *p, const lk_step *step)
{
    if (step->step < 1)
        return lk__fail(p->context, LK_EINVAL, "steps are counted from 1, not %lld", (long long)step->step);
    p->step = *step;
    return LK_OK;
}

lk_status lk_program_step(lk_program *p, const lk_step *step)
{
    lk_status status = set_step(p, step);
    return status < 0 ? status : cut(p, 0, 0, step->count);
}

lk_status lk_program_run(lk_program *p, lk_section section)
{
    if ((unsigned)section >= LK_SECTION_COUNT)
        return lk__fail(p->context, LK_EINVAL, "there is no section %d", (int)section);
    if (section != LK_EVALUATE && !p->plan->trains)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it only evaluates");
    if (p->plan->parallel.leaves && (section == LK_FORWARD || section == LK_BACKWARD))
        return lk__fail(p->context, LK_EINVAL, "a program with leaves runs them together: call lk_program_compute");
    return lk__section_run(p, section);
}

static lk_status compute_leaves(lk_program *p)
{
    const lk_parallel *f = &p->plan->parallel;
    int                here = lk__leaves_here(p), slots = p->plan->slots;
    int64_t            begin = lk__leaf_row(p, 0), rows = lk__leaf_row(p, here) - begin;
    bool               first = lk__first_leaf(f->leaves, f->world, f->rank) == 0 || p->plan->syncs;
    lk_status          status = LK_OK;
    if (p->step.total < p->step.count || rows != p->step.count)
        return lk__fail(p->context, LK_EINVAL,
                        "%lld samples here of a batch of %lld: rank %d's %d of %d leaves hold %lld",
                        (long long)p->step.count, (long long)p->step.total, f->rank, here, f->leaves, (long long)rows);
    for (int leaf = 0; leaf < here && status >= 0; leaf += f->batch_leaves ? here : slots) {
        p->leaf = leaf;
        for (int slot = 0; slot < slots && status >= 0; slot++) {
            int64_t row = lk__leaf_row(p, leaf + slot), next = lk__leaf_row(p, f->batch_leaves ? here : leaf + slot + 1);
            status = cut(p, slot, row - begin, next - row);
            /* Running statistics are those of the first leaf, whoever has it; synchronised ones are everybody's. */
            p->slots[slot].step.updates_buffers = slot == 0 && leaf == 0 && first;
        }
        if (status >= 0 && (status = lk__section_run(p, LK_FORWARD)) >= 0) status = lk__section_run(p, LK_BACKWARD);
    }
    p->leaf = 0;
    return status;
}

static lk_status compute_micro_batches(lk_program *p)
{
    int64_t   parts = p->plan->parallel.micro_batches, count = p->step.count;
    bool      no_sync = p->no_sync;
    lk_status status = LK_OK;
    for (int64_t i = 0; i < parts && status >= 0; i++) {
        int64_t row = count * i / parts, next = count * (i + 1) / parts;
        p->no_sync = no_sync || i + 1 < parts;
        if ((status = cut(p, 0, row, next - row)) >= 0 && (status = lk__section_run(p, LK_FORWARD)) >= 0)
            status = lk__section_run(p, LK_BACKWARD);
    }
    p->no_sync = no_sync;
    return status;
}

lk_status lk_program_compute(lk_program *p, const lk_step *step)
{
    if (!p->plan->trains)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it only evaluates");
    lk_status status = set_step(p, step);
    if (status >= 0) status = p->plan->parallel.leaves ? compute_leaves(p) : compute_micro_batches(p);
    return status < 0 ? status : lk__section_run(p, LK_SYNC);
}

lk_status lk_program_train(lk_program *p, const lk_step *step)
{
    lk_status status = lk_program_compute(p, step);
    return status < 0 ? status : lk__section_run(p, LK_UPDATE);
}

void lk_no_sync(lk_program *p, bool enable) { p->no_sync = enable; }

void lk_program_metrics(const lk_program *p, lk_metrics *metrics) { *metrics = p->metrics; }

const void *lk_program_output(const lk_program *p, int i)
{
    const lk__plan_order *t = &p->plan->evaluate;
    if (i < 0 || i >= t->outputs_count) return NULL;
    lk__plan_place place = t->places[t->outputs[i]];
    if (place.region == LK__IN_INPUT) return p->slots[0].inputs[place.offset];
    return lk__program_resolve(p, p->slots[0].arena, p->gradients, place);
}

/* Profiles are of the first slot. */
void lk_program_profile(lk_program *p, bool enable)
{
    lk__run_list *lines[] = {&p->slots[0].train, &p->evaluate};
    p->profile = enable;
    for (int i = 0; i < 2 && enable; i++)
        for (size_t j = 0; j < lines[i]->count; j++)
            lines[i]->instructions[j].seconds = 0, lines[i]->instructions[j].runs = 0;
}

void lk_program_profile_seconds(const lk_program *p, double *seconds, size_t count)
{
    const lk__run_list   *l = &p->slots[0].train;
    const lk__plan_order *t = l->timeline;
    for (size_t i = 0, at = 0; i < count && t; i++) {
        const lk__run_instruction *in = &l->instructions[at];
        bool                       runs = i < t->order_count && at < l->count && in->node == t->order[i];
        seconds[i] = runs && in->runs ? in->seconds / (double)in->runs : 0;
        at += runs;
    }
}

void lk_program_profile_print(const lk_program *p, lk_write write, void *user)
{
    const lk__run_list *lines[] = {&p->slots[0].train, &p->evaluate};
    double              total = 0;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lines[i]->count; j++) total += lines[i]->instructions[j].seconds;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lines[i]->count; j++) {
            const lk__run_instruction *in = &lines[i]->instructions[j];
            if (in->runs == 0) continue;
            char text[512], full[640];
            lk__node_text(lines[i]->timeline->graph, &lines[i]->timeline->graph->nodes[in->node], text, sizeof text);
            int n = snprintf(full, sizeof full, "%9.3f ms  %5.1f %%  %s\n", 1e3 * in->seconds / (double)in->runs,
                             total > 0 ? 100 * in->seconds / total : 0, text);
            if (n > 0) write(user, full, (size_t)n < sizeof full ? (size_t)n : sizeof full - 1);
        }
}
