/* memory.c - assigns memory to every value. Values that share bytes (reshapes, results written in place, parts of a
 * larger one) form one storage; a storage is live from the node that writes it to the last that reads any of its values
 * (what a collective reads and writes: to its wait, which has both as operands; what a launch group reads and writes:
 * to its last node); what is received from another stage: from the begin of its section; what is sent: to the end of
 * backward); storages that are not live at the same time may overlap in the arena. They are placed largest first, at
 * the lowest free offset. */
#include "plan/joined.h"
#include "plan/launch_group.h"

#include <stdlib.h>
#include <string.h>

enum { UNTIL_END = 1 << 30 };

typedef struct storage {
    size_t          bytes, offset;
    int             first, last; /* positions in order */
    bool            arena;       /* placed by this pass; otherwise it is at `place` */
    lk__plan_region pool;        /* the same: where */
    bool            in_flight;   /* some value in it is sent to another stage, or received */
    lk__plan_place  place;
    int             bucket; /* above 0: it is inside the storage of bucket - 1, at `place.offset` */
} storage;

typedef struct memory {
    lk__plan_list  *list;
    const lk_plan  *plan;
    int            *storage_of; /* by value; -1: none yet */
    size_t         *shift;      /* by value: where it begins in its storage */
    int            *last_use;   /* by value: position, or UNTIL_END */
    lk__plan_joined joined;
    storage        *storages;
    size_t          count;
} memory;

static size_t bytes_of(const lk__graph_shape *s) { return (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype); }

void lk__plan_call_at_capacity(const lk_graph *g, const lk__graph_node *n, lk__kernel_call *call)
{
    memset(call, 0, sizeof *call);
    call->attrs = &n->attrs;
    call->device = lk__context_device(g->context);
    call->custom = lk__node_custom(g, n);
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
        o->part = g->values[v].part.rank ? &g->values[v].part : NULL;
    }
}

lk__device_kernel lk__plan_kernel(const lk_graph *g, const lk__graph_node *n, lk__kernel_call *call)
{
    lk__device *device = lk__context_device(g->context);
    lk__op      op = n->op == LK__OP_own_part && n->attrs.mesh ? LK__OP_slice : n->op; /* of this rank's range */
    lk__plan_call_at_capacity(g, n, call);
    return device->backend->kernels.find(device, op, lk__node_element(g, n), call);
}

static int new_storage(memory *m, const storage *s)
{
    m->storages[m->count] = *s;
    return (int)m->count++;
}

static lk__plan_place unit_place(const lk_plan *p, const lk__graph_value *v)
{
    const lk__plan_unit *u = &p->units[v->state];
    size_t               own = (size_t)(lk__unit_shard(p, u) * lk__unit_each(p, u)) * lk_dtype_size(u->dtype);
    return (lk__plan_place){LK__IN_PARAMETERS, u->stored + (v->slot && p->stage < 3 ? own : 0)};
}

static void external_storages(memory *m)
{
    lk_graph *g = m->list->graph;
    for (size_t v = 0; v < g->values_count; v++) {
        const lk__graph_value *value = &g->values[v];
        storage                s = {.bytes = bytes_of(&value->shape), .first = -1, .last = UNTIL_END};
        if (value->kind == LK__VALUE_RESULT) continue;
        if (value->kind == LK__VALUE_INPUT) s.place = (lk__plan_place){LK__IN_INPUT, v};
        if (value->kind == LK__VALUE_STATE) s.place = m->plan->states[value->state].place;
        if (value->kind == LK__VALUE_UNIT) s.place = unit_place(m->plan, value);
        if (value->kind == LK__VALUE_SLICE)
            s.place = (lk__plan_place){LK__IN_GRADIENTS, lk__plan_gradient_piece(m->plan, (size_t)value->state)};
        if (value->kind == LK__VALUE_BUCKET && (lk__plan_scatters(m->plan) || value->slot > 1)) {
            s.place = (lk__plan_place){LK__IN_GRADIENTS, m->plan->buckets[value->state].slice};
            s.arena = !value->slot; /* filled by its gradients */
            s.pool = LK__IN_GATHERED;
            if (s.arena) s.first = UNTIL_END, s.last = -1;
        } else if (value->kind == LK__VALUE_BUCKET) {
            const lk__plan_bucket *b = &m->plan->buckets[value->state];
            size_t                 slice = value->slot ? (size_t)lk__bucket_own(m->plan, b) * s.bytes : 0;
            s.place = (lk__plan_place){LK__IN_GRADIENTS, lk__bucket_place(m->plan, b) + slice}; /* this rank's */
        }
        if (value->kind == LK__VALUE_CONSTANT)
            s.place = (lk__plan_place){LK__IN_CONSTANTS,
                                       m->plan->constants[value->state] - lk__plan_constants_begin(m->plan)};
        if (value->kind == LK__VALUE_MASTER)
            s.place = (lk__plan_place){LK__IN_MASTER, m->plan->states[value->state].master_offset};
        if (value->kind == LK__VALUE_OPTIMIZER)
            s.place = (lk__plan_place){LK__IN_OPTIMIZER, m->plan->states[value->state].moment_offset[value->slot]};
        m->storage_of[v] = new_storage(m, &s);
    }
}

static void keep_until(memory *m, int v, int position)
{
    if (position > m->last_use[v]) m->last_use[v] = position;
}

/* Where the section of a position begins and ends; forward and backward of a micro-batch are one. */
static size_t section_begin(const lk__plan_list *list, size_t position)
{
    size_t begin = 0;
    for (int s = LK_FORWARD; s <= LK_UPDATE && list->end[s] <= position; s++) begin = list->end[s];
    return begin;
}

static size_t compute_end(const lk__plan_list *list, size_t position)
{
    for (int s = LK_BACKWARD; s <= LK_UPDATE; s++)
        if (position < list->end[s]) return list->end[s];
    return list->order_count;
}

/* Other stages read what is sent until the slot of the micro-batch is used again. */
static void keep_sent(memory *m)
{
    for (size_t p = 0; p < m->list->order_count; p++) {
        const lk__graph_node *n = &m->list->graph->nodes[m->list->order[p]];
        if (n->op == LK__OP_send) keep_until(m, n->in[0], (int)compute_end(m->list, p) - 1);
    }
}

static void find_last_uses(memory *m)
{
    lk__plan_list *list = m->list;
    for (size_t i = 0; i < list->graph->values_count; i++) m->last_use[i] = -1;
    for (size_t p = 0; p < list->order_count; p++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[p]];
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0) keep_until(m, n->in[i], (int)lk__launch_group_keeps(list, p));
    }
    keep_sent(m);
    for (int i = 0; i < list->numbers_count; i++)
        if (list->numbers[i] >= 0) m->last_use[list->numbers[i]] = UNTIL_END;
    if (list->norm >= 0) m->last_use[list->norm] = UNTIL_END;
    for (int i = 0; i < list->outputs_count; i++) m->last_use[list->outputs[i]] = UNTIL_END;
    if (list->gradients && !lk__plan_scatters(m->plan)) /* else they are read by their buckets alone */
        for (size_t i = 0; i < list->graph->states_count; i++)
            if (list->gradients[i] >= 0) m->last_use[list->gradients[i]] = UNTIL_END;
}

/* Where the part of backward with a position begins: between two parts others of the same kind may run. */
static size_t gradients_begin(const lk__plan_list *list, int position)
{
    bool postponed = list->weights_begin && position >= (int)list->weights_begin;
    return postponed ? list->weights_begin : list->end[LK_FORWARD];
}

/* The storage that an output of n may overwrite, or -1. A parameter's gradient is in a region whose address changes
 * from one micro-batch to the next and which only backward knows: it must not share a storage that forward writes. */
static int in_place_storage(const memory *m, const lk__graph_node *n, int output, int position)
{
    const lk_graph *g = m->list->graph;
    int             v = n->out[output];
    size_t          bytes = bytes_of(&g->values[v].shape);
    for (int i = 0; i < n->inputs; i++) {
        if (!(lk__node_in_place(n, output) >> i & 1) || n->in[i] < 0) continue;
        int            id = m->storage_of[n->in[i]];
        const storage *s = &m->storages[id];
        if (!s->arena || s->pool != LK__IN_ACTIVATIONS || s->last != position ||
            !lk__shape_equal(&g->values[n->in[i]].shape, &g->values[v].shape) || s->bytes != bytes)
            continue;
        /* nor one that is written once, if each leaf adds to its own set of it */
        if (m->list->by_leaf && lk__plan_is_gradient(m->list, v)) continue;
        /* nor one that is received before backward begins, or written before gradients that are postponed */
        if ((s->first < (int)gradients_begin(m->list, position) || s->in_flight) && lk__plan_is_gradient(m->list, v))
            continue;
        bool shared = false; /* another operand in the same bytes would be overwritten while it is read */
        for (int j = 0; j < n->inputs; j++)
            if (j != i && n->in[j] >= 0 && m->storage_of[n->in[j]] == id) shared = true;
        if (!shared) return id;
    }
    return -1;
}

/* Where what a node makes is, among what this pass places: parameters that it gathers are by themselves. */
static lk__plan_region pool_of(const memory *m, const lk__graph_node *n)
{
    const lk__graph_value *x = n->op == LK__OP_all_gather ? &m->list->graph->values[n->in[0]] : NULL;
    if (!x || x->kind != LK__VALUE_UNIT) return LK__IN_ACTIVATIONS;
    return lk__unit_on_host(m->plan, &m->plan->units[x->state]) ? LK__IN_HOST : LK__IN_GATHERED;
}

/* That of the larger value of which v is a part, from the first part that is written on. */
static int joined_storage(memory *m, int v, int position)
{
    int whole = m->joined.whole[v];
    if (m->storage_of[whole] < 0)
        m->storage_of[whole] = new_storage(m, &(storage){.bytes = bytes_of(&m->list->graph->values[whole].shape),
                                                         .first = position,
                                                         .last = position,
                                                         .arena = true,
                                                         .pool = LK__IN_ACTIVATIONS});
    m->shift[v] = m->joined.offset[v];
    return m->storage_of[whole];
}

static void assign_storages(memory *m)
{
    lk__plan_list *list = m->list;
    lk_graph      *g = list->graph;
    for (size_t p = 0; p < list->order_count; p++) {
        const lk__graph_node *n = &g->nodes[list->order[p]];
        int                   kept = (int)lk__launch_group_keeps(list, p);
        if (n->op == LK__OP_send) m->storages[m->storage_of[n->in[0]]].in_flight = true;
        for (int i = 0; i < n->outputs; i++) {
            int v = n->out[i];
            if (v < 0 || g->values[v].kind != LK__VALUE_RESULT) continue;
            int id = -1, last = m->last_use[v] < kept ? kept : m->last_use[v];
            if (i == 0 && lk__op_shares_memory(n->op)) id = m->storage_of[n->in[0]];
            if (id < 0 && m->joined.whole[v] >= 0) id = joined_storage(m, v, (int)p);
            if (id < 0 && lk__launch_group_in_place(list, p)) id = in_place_storage(m, n, i, (int)p);
            if (id < 0)
                id = new_storage(m, &(storage){.bytes = bytes_of(&g->values[v].shape),
                                               .first = (int)(n->op == LK__OP_receive ? section_begin(list, p) : p),
                                               .last = last,
                                               .arena = true,
                                               .pool = pool_of(m, n)});
            m->storage_of[v] = id;
            m->storages[id].in_flight |= n->op == LK__OP_receive;
            if (i == 0 && lk__op_shares_memory(n->op)) m->shift[v] = m->shift[n->in[0]];
            if (n->op == LK__OP_reshape)
                m->shift[v] += (size_t)n->attrs.start * lk_dtype_size(g->values[v].shape.dtype);
            if (m->storages[id].arena && last > m->storages[id].last) m->storages[id].last = last;
        }
    }
}

/* Of stages 2 and 3 (plan/shard.h) all gradients of a unit are together until they are reduced. */
static void put_into_bucket(memory *m, size_t state, storage *s)
{
    int                    bucket = m->plan->units[m->plan->states[state].unit].bucket;
    const lk__plan_bucket *b = &m->plan->buckets[bucket];
    storage               *whole = &m->storages[m->storage_of[b->value]];
    s->bucket = bucket + 1;
    s->place.offset -= b->offset;
    if (s->first < whole->first) whole->first = s->first;
    if (s->last > whole->last) whole->last = s->last;
    if (m->last_use[b->value] > whole->last) whole->last = m->last_use[b->value];
}

/* Gradients of parameters are in their own region, at the offsets that the bucket pass chose. */
static void place_gradients(memory *m)
{
    lk__plan_list *list = m->list;
    if (!list->gradients) return;
    for (size_t i = 0; i < list->graph->states_count; i++) {
        if (list->gradients[i] < 0) continue;
        storage *s = &m->storages[m->storage_of[list->gradients[i]]];
        s->arena = false;
        s->place = (lk__plan_place){LK__IN_GRADIENTS, m->plan->states[i].gradient_offset};
        if (lk__plan_scatters(m->plan)) put_into_bucket(m, i, s);
    }
}

static int larger_first(const void *a, const void *b)
{
    const storage *x = *(const storage *const *)a, *y = *(const storage *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x < y ? -1 : x > y);
}

/* Those that are live longest first: they do not end up between others that come and go. */
static int longer_first(const void *a, const void *b)
{
    const storage *x = *(const storage *const *)a, *y = *(const storage *const *)b;
    int            lives = x->last - x->first, other = y->last - y->first;
    return lives != other ? (lives < other ? 1 : -1) : larger_first(a, b);
}

/* placed is kept sorted by offset; s is put into the first gap between storages that are live at the same time. */
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

/* Returns the bytes of all, in that order. */
static size_t place_in_order(storage **sorted, storage **placed, size_t count, int (*order)(const void *, const void *))
{
    size_t all = 0;
    if (count) qsort(sorted, count, sizeof *sorted, order);
    for (size_t i = 0; i < count; i++) {
        place_one(placed, i, sorted[i]);
        size_t end = sorted[i]->offset + lk__round_up(sorted[i]->bytes, LK__ALIGN);
        if (end > all) all = end;
    }
    return all;
}

/* Whether a storage is live in no two of the parts of a step between which the stages of a pipeline compute other
 * micro-batches: then all slots have it in one place. Sync and update come once, behind all of them. */
static bool is_common(const memory *m, const storage *s)
{
    const lk__plan_list *list = m->list;
    size_t ends[] = {list->end[LK_FORWARD], list->weights_begin, list->end[LK_BACKWARD], list->end[LK_UPDATE]};
    if (!m->plan->pipeline || list != &m->plan->train || s->in_flight || s->last == UNTIL_END) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if ((size_t)s->first >= ends[i]) continue;
        return s->last < (int)ends[i];
    }
    return false;
}

static void choose_pools(memory *m)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->storages[i].pool == LK__IN_ACTIVATIONS && is_common(m, &m->storages[i]))
            m->storages[i].pool = LK__IN_COMMON;
}

/* Those of one pool; *all: their bytes. */
static lk_status place_storages(memory *m, lk__plan_region pool, size_t *all)
{
    lk_context *c = m->list->graph->context;
    size_t      bytes = 2 * m->count * sizeof(storage *), ours = 0;
    storage   **sorted = lk__alloc(c, LK_MEMORY_OTHER, bytes), **placed = sorted + m->count;
    if (bytes && !sorted) return LK_ENOMEM;
    for (size_t i = 0; i < m->count; i++)
        if (m->storages[i].arena && m->storages[i].pool == pool) sorted[ours++] = &m->storages[i];
    *all = place_in_order(sorted, placed, ours, larger_first);
    /* Parts that are kept for backward lie among gathered values, many times as large, that are there for a product. */
    if (m->plan->placed_axes && ours) {
        size_t other = place_in_order(sorted, placed, ours, longer_first);
        if (other < *all)
            *all = other;
        else
            *all = place_in_order(sorted, placed, ours, larger_first);
    }
    lk__free(c, LK_MEMORY_OTHER, sorted, bytes);
    return LK_OK;
}

/* Sections that have no helpers run on the context's threads alone. */
static size_t kernel_workspace(const lk__device_kernel *kernel, const lk__kernel_call *call, int threads, int workers)
{
    size_t alone = kernel->workspace ? kernel->workspace(call, threads) : 0;
    size_t helped = kernel->workspace && workers > threads ? kernel->workspace(call, workers) : 0;
    return alone > helped ? alone : helped;
}

static lk_status measure_workspace(lk__plan_list *list, int workers)
{
    const lk_graph *g = list->graph;
    lk_context     *c = g->context;
    for (size_t p = 0; p < list->order_count; p++) {
        const lk__graph_node *n = &g->nodes[list->order[p]];
        lk__kernel_call       call;
        lk__device_kernel     kernel = lk__plan_kernel(g, n, &call);
        if (!kernel.run && call.custom)
            return lk__fail(
                c, LK_EUNSUPPORTED,
                "%s at %s:%d: user-defined operations run on the host, which the device %s does not support",
                lk__node_name(g, n), n->site.file ? n->site.file : "?", n->site.line, lk_context_device(c));
        if (!kernel.run && lk__op_find(n->op)->runs == LK__RUNS_KERNEL)
            return lk__fail(c, LK_EUNSUPPORTED, "%s at %s:%d: the device %s has no kernel for %s", lk__node_name(g, n),
                            n->site.file ? n->site.file : "?", n->site.line, lk_context_device(c),
                            lk_dtype_name(lk__node_element(g, n)));
        size_t bytes = kernel_workspace(&kernel, &call, lk_context_threads(c), workers);
        if (bytes > SIZE_MAX - LK__ALIGN)
            return lk__fail(c, LK_EINVAL, "%s at %s:%d: a workspace of %zu bytes is more than can be addressed",
                            lk__node_name(g, n), n->site.file ? n->site.file : "?", n->site.line, bytes);
        size_t need = lk__round_up(bytes, LK__ALIGN);
        if (need > list->workspace) list->workspace = need;
    }
    return LK_OK;
}

lk_status lk__pass_memory(lk__plan_list *list, const lk_plan *plan)
{
    lk_context *c = list->graph->context;
    size_t      values = list->graph->values_count, map = values * sizeof(int), all = values * sizeof(storage);
    size_t      shifts = values * sizeof(size_t);
    memory      m = {.list = list, .plan = plan};
    lk_status   status = LK_ENOMEM;
    m.storage_of = lk__alloc(c, LK_MEMORY_OTHER, map);
    m.last_use = lk__alloc(c, LK_MEMORY_OTHER, map);
    m.shift = lk__alloc(c, LK_MEMORY_OTHER, shifts);
    m.storages = lk__alloc(c, LK_MEMORY_OTHER, all);
    list->places = lk__alloc(c, LK_MEMORY_OTHER, values * sizeof *list->places);
    list->places_count = values;
    if (values && (!m.storage_of || !m.last_use || !m.shift || !m.storages || !list->places)) goto done;
    if (lk__joined_find(list, &m.joined) < 0) goto done;
    for (size_t i = 0; i < values; i++) m.storage_of[i] = -1;
    external_storages(&m);
    find_last_uses(&m);
    assign_storages(&m);
    place_gradients(&m);
    choose_pools(&m);
    if (place_storages(&m, LK__IN_ACTIVATIONS, &list->arena) < 0 ||
        place_storages(&m, LK__IN_COMMON, &list->common) < 0 ||
        place_storages(&m, LK__IN_GATHERED, &list->gathered) < 0 || place_storages(&m, LK__IN_HOST, &list->host) < 0)
        goto done;
    for (size_t i = 0; i < values; i++) {
        if (m.storage_of[i] < 0) continue;
        const storage *s = &m.storages[m.storage_of[i]];
        list->places[i] = s->arena ? (lk__plan_place){s->pool, s->offset} : s->place;
        if (s->bucket) {
            size_t whole = m.storages[m.storage_of[plan->buckets[s->bucket - 1].value]].offset;
            list->places[i] = (lk__plan_place){LK__IN_GATHERED, whole + s->place.offset};
        }
        if (s->place.region != LK__IN_INPUT || s->arena) list->places[i].offset += m.shift[i];
    }
    lk__launch_group_check(list);
    status = measure_workspace(list, list == &plan->train ? lk__plan_workers(plan) : lk_context_threads(c));
done:
    lk__joined_free(list, &m.joined);
    lk__free(c, LK_MEMORY_OTHER, m.storage_of, map);
    lk__free(c, LK_MEMORY_OTHER, m.last_use, map);
    lk__free(c, LK_MEMORY_OTHER, m.shift, shifts);
    lk__free(c, LK_MEMORY_OTHER, m.storages, all);
    return status;
}
