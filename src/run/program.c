/* program.c - the interpreter. Creating a program resolves every operand to a pointer once; a run is then a walk over calls.
 * Only two things are patched later: the data of inputs, when they are bound, and extents that follow the count, when it moves. */
#include "run/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct instruction {
    lk__kernel run;
    lk__call   call;
    int        node;
    double     seconds; /* while profiling */
    int64_t    runs;
} instruction;

typedef struct line {
    const lk__timeline *timeline;
    instruction        *instructions;
    size_t              count;
    size_t              begin[LK_SECTION_COUNT], end[LK_SECTION_COUNT]; /* of each section among the instructions */
    int64_t             samples; /* the count that extents are set for; -1: none yet, or an input moved */
} line;

struct lk_program {
    lk_context  *context;
    lk_plan     *plan;
    lk_store    *store;
    char        *arena, *workspace, *gradients;
    line         train, evaluate;
    const void **inputs; /* by value id of the plan's graph */
    size_t       values;
    lk__step     step;
    lk_metrics   metrics;
    bool         profile;
};

static void *resolve(const lk_program *p, lk__place place)
{
    switch (place.region) {
    case LK__IN_PARAMETERS: return p->store->parameters + place.offset;
    case LK__IN_BUFFERS: return p->store->buffers + place.offset;
    case LK__IN_OPTIMIZER: return p->store->optimizer + place.offset;
    case LK__IN_GRADIENTS: return p->gradients + place.offset;
    case LK__IN_ACTIVATIONS: return p->arena + place.offset;
    default: return NULL;
    }
}

static int          operand_value(const lk__node *n, int i) { return i < n->inputs ? n->in[i] : n->out[i - n->inputs]; }
static lk__operand *operand(lk__call *call, const lk__node *n, int i)
{
    return i < n->inputs ? &call->in[i] : &call->out[i - n->inputs];
}

static lk_status build_line(lk_program *p, const lk__timeline *t, line *l)
{
    const lk__kernel_entry *kernels = lk__cpu_kernels(t->graph->real, lk_context_isa(p->context));
    l->timeline = t;
    l->samples = -1;
    if (t->order_count == 0) return LK_OK;
    l->instructions = lk__alloc(p->context, LK_MEMORY_OTHER, t->order_count * sizeof *l->instructions);
    if (!l->instructions) return LK_ENOMEM;
    for (size_t i = 0; i < t->order_count; i++) {
        const lk__node *n = &t->graph->nodes[t->order[i]];
        if (n->op == LK__OP_reshape) continue; /* the same bytes: nothing to run */
        for (int section = 0; section < LK_SECTION_COUNT; section++) {
            bool first = section == LK_FORWARD || section == LK_EVALUATE;
            if (!first && i < t->end[section - 1]) l->begin[section] = l->count + 1;
            if (i < t->end[section]) l->end[section] = l->count + 1;
        }
        instruction *in = &l->instructions[l->count++];
        in->node = t->order[i];
        in->run = kernels[n->op].run;
        lk__call_at_capacity(t->graph, n, &in->call);
        in->call.workspace = p->workspace;
        in->call.pool = lk__context_pool(p->context);
        in->call.step = &p->step;
        for (int j = 0; j < n->inputs + n->outputs; j++) {
            int v = operand_value(n, j);
            operand(&in->call, n, j)->data = v < 0 ? NULL : resolve(p, t->places[v]);
        }
    }
    return LK_OK;
}

/* Extents that follow the count, and addresses of inputs. */
static lk_status patch(lk_program *p, line *l)
{
    const lk__timeline *t = l->timeline;
    for (size_t i = 0; i < l->count; i++) {
        instruction    *in = &l->instructions[i];
        const lk__node *n = &t->graph->nodes[in->node];
        for (int j = 0; j < n->inputs + n->outputs; j++) {
            int v = operand_value(n, j);
            if (v < 0) continue;
            lk__operand     *o = operand(&in->call, n, j);
            const lk__shape *s = &t->graph->values[v].shape;
            if (s->count_axis >= 0) o->dims[s->count_axis] = p->step.count * s->count_unit;
            if (t->places[v].region != LK__IN_INPUT) continue;
            size_t input = t->places[v].offset;
            o->data = (void *)p->inputs[input];
            if (!o->data)
                return lk__fail(p->context, LK_EINVAL, "input \"%s\" is not bound; call lk_program_bind before a run",
                                p->plan->graph->values[input].name);
        }
    }
    l->samples = p->step.count;
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
        const lk__state      *a = &plan->graph->states[i], *b = &theirs->graph->states[i];
        const lk__state_plan *pa = &plan->states[i], *pb = &theirs->states[i];
        const lk__shape      *sa = &plan->graph->values[a->value].shape, *sb = &theirs->graph->values[b->value].shape;
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

lk_status lk_program_create(lk_plan *plan, lk_store *store, lk_program **program)
{
    lk_context *c = plan->context;
    lk_status   status = LK_ENOMEM;
    *program = NULL;
    if ((status = check_states(plan, store)) < 0) return status;
    status = LK_ENOMEM;
    lk_program *p = lk__alloc(c, LK_MEMORY_OTHER, sizeof *p);
    if (!p) return LK_ENOMEM;
    p->context = c;
    p->plan = plan;
    p->store = store;
    p->values = plan->graph->values_count;
    p->step = (lk__step){.step = 1};
    p->arena = lk__alloc(c, LK_MEMORY_ACTIVATIONS, plan->memory[LK_MEMORY_ACTIVATIONS]);
    p->workspace = lk__alloc(c, LK_MEMORY_WORKSPACE, plan->memory[LK_MEMORY_WORKSPACE]);
    p->gradients = lk__alloc(c, LK_MEMORY_GRADIENTS, plan->memory[LK_MEMORY_GRADIENTS]);
    p->inputs = lk__alloc(c, LK_MEMORY_OTHER, p->values * sizeof *p->inputs);
    if ((plan->memory[LK_MEMORY_ACTIVATIONS] && !p->arena) || (plan->memory[LK_MEMORY_WORKSPACE] && !p->workspace) ||
        (plan->memory[LK_MEMORY_GRADIENTS] && !p->gradients) || (p->values && !p->inputs))
        goto fail;
    if (plan->trains && (status = build_line(p, &plan->train, &p->train)) < 0) goto fail;
    if ((status = build_line(p, &plan->evaluate, &p->evaluate)) < 0) goto fail;
    *program = p;
    return LK_OK;
fail:
    lk_program_free(p);
    return status;
}

void lk_program_free(lk_program *p)
{
    if (!p) return;
    lk_context *c = p->context;
    lk__free(c, LK_MEMORY_ACTIVATIONS, p->arena, p->plan->memory[LK_MEMORY_ACTIVATIONS]);
    lk__free(c, LK_MEMORY_WORKSPACE, p->workspace, p->plan->memory[LK_MEMORY_WORKSPACE]);
    lk__free(c, LK_MEMORY_GRADIENTS, p->gradients, p->plan->memory[LK_MEMORY_GRADIENTS]);
    lk__free(c, LK_MEMORY_OTHER, (void *)p->inputs, p->values * sizeof *p->inputs);
    line *lines[] = {&p->train, &p->evaluate};
    for (int i = 0; i < 2; i++)
        if (lines[i]->instructions)
            lk__free(c, LK_MEMORY_OTHER, lines[i]->instructions, lines[i]->timeline->order_count * sizeof(instruction));
    lk__free(c, LK_MEMORY_OTHER, p, sizeof *p);
}

lk_status lk_program_bind(lk_program *p, const char *input, const void *data)
{
    const lk_graph *g = p->plan->graph;
    for (size_t i = 0; i < p->values; i++) {
        if (g->values[i].kind != LK__VALUE_INPUT || strcmp(g->values[i].name, input) != 0) continue;
        if (p->inputs[i] != data) p->train.samples = p->evaluate.samples = -1;
        p->inputs[i] = data;
        return LK_OK;
    }
    return lk__fail(p->context, LK_ENOENT, "the model has no input \"%s\"", input);
}

static int64_t capacity(const lk_program *p)
{
    const lk_graph *g = p->plan->graph;
    int64_t         least = INT64_MAX;
    for (size_t i = 0; i < p->values; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && g->values[i].shape.count_axis >= 0 &&
            g->values[i].shape.dims[0] < least)
            least = g->values[i].shape.dims[0];
    return least;
}

lk_status lk_program_step(lk_program *p, const lk_step *step)
{
    if (step->count < 0 || step->count > capacity(p))
        return lk__fail(p->context, LK_EINVAL, "a batch of %lld samples; the plan's capacity is %lld",
                        (long long)step->count, (long long)capacity(p));
    if (step->step < 1)
        return lk__fail(p->context, LK_EINVAL, "steps are counted from 1, not %lld", (long long)step->step);
    p->step = (lk__step){step->step, step->epoch, step->count, step->seed, step->rate, step->sample_ids};
    return LK_OK;
}

static double read_number(const lk_program *p, const lk__timeline *t, int value, double otherwise)
{
    if (value < 0) return otherwise;
    const void *data = resolve(p, t->places[value]);
    return t->graph->values[value].shape.dtype == LK_F32 ? (double)*(const float *)data : *(const double *)data;
}

static void read_metrics(lk_program *p, const lk__timeline *t)
{
    lk_metrics *m = &p->metrics;
    m->sum = read_number(p, t, t->sum, 0);
    m->weight = read_number(p, t, t->weight, 1);
    m->correct = read_number(p, t, t->correct, 0);
    m->loss = m->weight != 0 ? m->sum / m->weight : 0;
    m->grad_norm = 0;
}

lk_status lk_program_run(lk_program *p, lk_section section)
{
    line *l = section == LK_EVALUATE ? &p->evaluate : &p->train;
    if ((unsigned)section >= LK_SECTION_COUNT)
        return lk__fail(p->context, LK_EINVAL, "there is no section %d", (int)section);
    if (!l->timeline)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it only evaluates");
    if (l->samples != p->step.count) {
        lk_status status = patch(p, l);
        if (status < 0) return status;
    }
    for (size_t i = l->begin[section]; i < l->end[section]; i++) {
        instruction *in = &l->instructions[i];
        if (!p->profile) {
            in->run(&in->call);
            continue;
        }
        double start = lk__now();
        in->run(&in->call);
        in->seconds += lk__now() - start;
        in->runs++;
    }
    if (section == LK_FORWARD || section == LK_EVALUATE) read_metrics(p, l->timeline);
    if (section == LK_UPDATE) p->metrics.grad_norm = read_number(p, l->timeline, l->timeline->norm, 0);
    return LK_OK;
}

lk_status lk_program_train(lk_program *p, const lk_step *step)
{
    lk_status status = lk_program_step(p, step);
    for (int section = LK_FORWARD; section <= LK_UPDATE && status >= 0; section++)
        status = lk_program_run(p, (lk_section)section);
    return status;
}

void lk_program_metrics(const lk_program *p, lk_metrics *metrics) { *metrics = p->metrics; }

const void *lk_program_output(const lk_program *p, int i)
{
    const lk__timeline *t = &p->plan->evaluate;
    if (i < 0 || i >= t->outputs_count) return NULL;
    lk__place place = t->places[t->outputs[i]];
    return place.region == LK__IN_INPUT ? p->inputs[place.offset] : resolve(p, place);
}

const void *lk_program_gradient(const lk_program *p, const char *parameter)
{
    const lk_graph *g = p->plan->graph;
    for (size_t i = 0; i < g->states_count && p->plan->trains; i++) {
        const lk__state *s = &g->states[i];
        bool             found = strcmp(s->name, parameter) == 0;
        for (size_t j = 0; j < s->aliases_count && !found; j++) found = strcmp(s->aliases[j], parameter) == 0;
        if (found) return p->plan->states[i].trained ? p->gradients + p->plan->states[i].gradient_offset : NULL;
    }
    return NULL;
}

void lk_program_profile(lk_program *p, bool enable)
{
    p->profile = enable;
    line *lines[] = {&p->train, &p->evaluate};
    for (int i = 0; i < 2 && enable; i++)
        for (size_t j = 0; j < lines[i]->count; j++)
            lines[i]->instructions[j].seconds = 0, lines[i]->instructions[j].runs = 0;
}

void lk_program_profile_print(const lk_program *p, lk_write write, void *user)
{
    const line *lines[] = {&p->train, &p->evaluate};
    double      total = 0;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lines[i]->count; j++) total += lines[i]->instructions[j].seconds;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lines[i]->count; j++) {
            const instruction *in = &lines[i]->instructions[j];
            if (in->runs == 0) continue;
            char text[512], full[640];
            lk__node_text(lines[i]->timeline->graph, &lines[i]->timeline->graph->nodes[in->node], text, sizeof text);
            int n = snprintf(full, sizeof full, "%9.3f ms  %5.1f %%  %s\n", 1e3 * in->seconds / (double)in->runs,
                             total > 0 ? 100 * in->seconds / total : 0, text);
            if (n > 0) write(user, full, (size_t)n < sizeof full ? (size_t)n : sizeof full - 1);
        }
}
