/* memory.c - gives every value a place. Values that share bytes (reshapes, results written in place) form one storage; a
 * storage lives from the node that fills it to the last that reads any of its values; storages that do not live at the same
 * time may overlap in the arena. Largest first, lowest free offset. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

enum { FOR_EVER = 1 << 30 };

typedef struct storage {
    size_t         bytes, offset;
    int            first, last; /* positions in order */
    bool           arena;       /* ours to place; else it lies in `place` */
    lk__plan_place place;
} storage;

typedef struct memory {
    lk__plan_order *t;
    const lk_plan  *plan;
    int            *storage_of; /* by value; -1: none yet */
    int            *last_use;   /* by value: position, or FOR_EVER */
    storage        *storages;
    size_t          count;
} memory;

static size_t bytes_of(const lk__graph_shape *s) { return (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype); }

void lk__plan_call_at_capacity(const lk_graph *g, const lk__graph_node *n, lk__kernel_call *call)
{
    memset(call, 0, sizeof *call);
    call->attrs = &n->attrs;
    call->inputs = n->inputs;
    call->outputs = n->outputs;
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        int                 v = i < n->inputs ? n->in[i] : n->out[i - n->inputs];
        lk__kernel_operand *o = i < n->inputs ? &call->in[i] : &call->out[i - n->inputs];
        if (v < 0) continue;
        const lk__graph_shape *s = &g->values[v].shape;
        o->data = (void *)1;
        o->dtype = s->dtype;
        o->rank = s->rank;
        memcpy(o->dims, s->dims, sizeof o->dims);
    }
}

static int new_storage(memory *m, const storage *s)
{
    m->storages[m->count] = *s;
    return (int)m->count++;
}

static void external_storages(memory *m)
{
    lk_graph *g = m->t->graph;
    for (size_t v = 0; v < g->values_count; v++) {
        const lk__graph_value *value = &g->values[v];
        storage                s = {.bytes = bytes_of(&value->shape), .first = -1, .last = FOR_EVER};
        if (value->kind == LK__VALUE_RESULT) continue;
        if (value->kind == LK__VALUE_INPUT) s.place = (lk__plan_place){LK__IN_INPUT, v};
        if (value->kind == LK__VALUE_STATE) s.place = m->plan->states[value->state].place;
        if (value->kind == LK__VALUE_CONSTANT)
            s.place = (lk__plan_place){LK__IN_BUFFERS, m->plan->constants[value->state]};
        if (value->kind == LK__VALUE_OPTIMIZER)
            s.place = (lk__plan_place){LK__IN_OPTIMIZER, m->plan->states[value->state].moment_offset[value->slot]};
        m->storage_of[v] = new_storage(m, &s);
    }
}

static void find_last_uses(memory *m)
{
    lk__plan_order *t = m->t;
    for (size_t i = 0; i < t->graph->values_count; i++) m->last_use[i] = -1;
    for (size_t p = 0; p < t->order_count; p++) {
        const lk__graph_node *n = &t->graph->nodes[t->order[p]];
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0) m->last_use[n->in[i]] = (int)p;
    }
    int pinned[] = {t->sum, t->weight, t->correct, t->norm};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i] >= 0) m->last_use[pinned[i]] = FOR_EVER;
    for (int i = 0; i < t->outputs_count; i++) m->last_use[t->outputs[i]] = FOR_EVER;
    if (t->gradients)
        for (size_t i = 0; i < t->graph->states_count; i++)
            if (t->gradients[i] >= 0) m->last_use[t->gradients[i]] = FOR_EVER;
}

static bool is_gradient(const lk__plan_order *t, int v)
{
    for (size_t i = 0; t->gradients && i < t->graph->states_count; i++)
        if (t->gradients[i] == v) return true;
    return false;
}

/* The storage that output 0 of n may write over, or -1. A parameter's gradient moves to a region that only backward finds, since
 * it changes from one micro-batch to the next: it takes nothing over that forward fills. */
static int in_place_storage(const memory *m, const lk__graph_node *n, int position)
{
    const lk_graph *g = m->t->graph;
    size_t          bytes = bytes_of(&g->values[n->out[0]].shape);
    for (int i = 0; i < n->inputs; i++) {
        if (!(lk__op_find(n->op)->in_place >> i & 1) || n->in[i] < 0) continue;
        int            id = m->storage_of[n->in[i]];
        const storage *s = &m->storages[id];
        if (!s->arena || s->last != position ||
            !lk__shape_equal(&g->values[n->in[i]].shape, &g->values[n->out[0]].shape) || s->bytes != bytes)
            continue;
        if (s->first < (int)m->t->end[LK_FORWARD] && is_gradient(m->t, n->out[0])) continue;
        bool shared = false; /* another operand in the same bytes would be overwritten while it is read */
        for (int j = 0; j < n->inputs; j++)
            if (j != i && n->in[j] >= 0 && m->storage_of[n->in[j]] == id) shared = true;
        if (!shared) return id;
    }
    return -1;
}

static void assign_storages(memory *m)
{
    lk__plan_order *t = m->t;
    lk_graph       *g = t->graph;
    for (size_t p = 0; p < t->order_count; p++) {
        const lk__graph_node *n = &g->nodes[t->order[p]];
        for (int i = 0; i < n->outputs; i++) {
            int v = n->out[i];
            if (v < 0 || g->values[v].kind != LK__VALUE_RESULT) continue;
            int id = -1, last = m->last_use[v] < 0 ? (int)p : m->last_use[v];
            if (i == 0 && lk__op_find(n->op)->runs == LK__RUNS_NOTHING) id = m->storage_of[n->in[0]];
            if (i == 0 && id < 0) id = in_place_storage(m, n, (int)p);
            if (id < 0)
                id = new_storage(
                    m, &(storage){.bytes = bytes_of(&g->values[v].shape), .first = (int)p, .last = last, .arena = true});
            m->storage_of[v] = id;
            if (m->storages[id].arena && last > m->storages[id].last) m->storages[id].last = last;
        }
    }
}

/* Gradients of parameters live in their own region, one after the other in the order of the parameters. */
static void home_gradients(memory *m)
{
    lk__plan_order *t = m->t;
    if (!t->gradients) return;
    for (size_t i = 0; i < t->graph->states_count; i++) {
        if (t->gradients[i] < 0) continue;
        storage *s = &m->storages[m->storage_of[t->gradients[i]]];
        s->arena = false;
        s->place = (lk__plan_place){LK__IN_GRADIENTS, m->plan->states[i].gradient_offset};
    }
}

static int larger_first(const void *a, const void *b)
{
    const storage *x = *(const storage *const *)a, *y = *(const storage *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x < y ? -1 : x > y);
}

/* placed is kept sorted by offset; s goes into the first gap between those that live when it does. */
static void place_one(storage **placed, size_t count, storage *s)
{
    size_t offset = 0, need = lk__round_up(s->bytes, LK__ALIGN);
    for (size_t i = 0; i < count; i++) {
        const storage *p = placed[i];
        if (p->last < s->first || s->last < p->first) continue;
        if (p->offset >= offset + need) break;
        size_t end = p->offset + lk__round_up(p->bytes, LK__ALIGN);
        if (end > offset) offset = end;
    }
    s->offset = offset;
    size_t at = count;
    for (; at > 0 && placed[at - 1]->offset > offset; at--) placed[at] = placed[at - 1];
    placed[at] = s;
}

static lk_status place_storages(memory *m)
{
    lk_context *c = m->t->graph->context;
    size_t      bytes = 2 * m->count * sizeof(storage *), ours = 0;
    storage   **sorted = lk__alloc(c, LK_MEMORY_OTHER, bytes), **placed = sorted + m->count;
    if (bytes && !sorted) return LK_ENOMEM;
    for (size_t i = 0; i < m->count; i++)
        if (m->storages[i].arena) sorted[ours++] = &m->storages[i];
    if (ours) qsort(sorted, ours, sizeof *sorted, larger_first);
    for (size_t i = 0; i < ours; i++) {
        place_one(placed, i, sorted[i]);
        size_t end = sorted[i]->offset + lk__round_up(sorted[i]->bytes, LK__ALIGN);
        if (end > m->t->arena) m->t->arena = end;
    }
    lk__free(c, LK_MEMORY_OTHER, sorted, bytes);
    return LK_OK;
}

static lk_status measure_workspace(lk__plan_order *t)
{
    lk_context             *c = t->graph->context;
    const lk__kernel_entry *kernels = lk__cpu_kernels(t->graph->real, lk_context_isa(c));
    for (size_t p = 0; p < t->order_count; p++) {
        const lk__graph_node *n = &t->graph->nodes[t->order[p]];
        lk__kernel_call       call;
        if (!kernels[n->op].workspace) continue;
        lk__plan_call_at_capacity(t->graph, n, &call);
        size_t need = lk__round_up(kernels[n->op].workspace(&call, lk_context_threads(c)), LK__ALIGN);
        if (need > t->workspace) t->workspace = need;
    }
    return LK_OK;
}

lk_status lk__pass_memory(lk__plan_order *t, const lk_plan *plan)
{
    lk_context *c = t->graph->context;
    size_t      values = t->graph->values_count, map = values * sizeof(int), all = values * sizeof(storage);
    memory      m = {.t = t, .plan = plan};
    lk_status   status = LK_ENOMEM;
    m.storage_of = lk__alloc(c, LK_MEMORY_OTHER, map);
    m.last_use = lk__alloc(c, LK_MEMORY_OTHER, map);
    m.storages = lk__alloc(c, LK_MEMORY_OTHER, all);
    t->places = lk__alloc(c, LK_MEMORY_OTHER, values * sizeof *t->places);
    t->places_count = values;
    if (values && (!m.storage_of || !m.last_use || !m.storages || !t->places)) goto done;
    for (size_t i = 0; i < values; i++) m.storage_of[i] = -1;
    external_storages(&m);
    find_last_uses(&m);
    assign_storages(&m);
    home_gradients(&m);
    if (place_storages(&m) < 0) goto done;
    for (size_t i = 0; i < values; i++) {
        if (m.storage_of[i] < 0) continue;
        const storage *s = &m.storages[m.storage_of[i]];
        t->places[i] = s->arena ? (lk__plan_place){LK__IN_ACTIVATIONS, s->offset} : s->place;
    }
    status = measure_workspace(t);
done:
    lk__free(c, LK_MEMORY_OTHER, m.storage_of, map);
    lk__free(c, LK_MEMORY_OTHER, m.last_use, map);
    lk__free(c, LK_MEMORY_OTHER, m.storages, all);
    return status;
}
