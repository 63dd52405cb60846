/* launch_group.c - finds launch groups (device/launch_group.h): patterns of nodes that follow each other, linked by the
 * results that they read. Views between them do not run and are ignored. A pattern is used only if the device has a
 * kernel for it at the shapes of the full capacity. */
#include "plan/launch_group.h"

enum { MOST_MAKERS = 5 }; /* of the operands of attention: three slices or rotations, two writes */

typedef struct finder {
    lk__plan_list *list;
    const size_t  *at; /* positions of the nodes of a section that run something */
    size_t         count;
} finder;

static const lk__graph_node *node_at(const finder *f, size_t k)
{
    return &f->list->graph->nodes[f->list->order[f->at[k]]];
}

static bool is_op(const finder *f, size_t k, lk__op op) { return k < f->count && node_at(f, k)->op == op; }

/* The value whose bytes v has: views have those of their operand. */
static int source_of(const lk_graph *g, int v)
{
    while (v >= 0 && g->values[v].kind == LK__VALUE_RESULT &&
           lk__op_find(g->nodes[g->values[v].node].op)->runs == LK__RUNS_NOTHING)
        v = g->nodes[g->values[v].node].in[0];
    return v;
}

/* What input i of node k reads; -1: it has none. */
static int read_by(const finder *f, size_t k, int i)
{
    const lk__graph_node *n = node_at(f, k);
    return i < n->inputs ? source_of(f->list->graph, n->in[i]) : -1;
}

static bool reads(const finder *f, size_t k, int i, size_t from, int output)
{
    const lk__graph_node *n = node_at(f, from);
    return output < n->outputs && n->out[output] >= 0 && read_by(f, k, i) == n->out[output];
}

/* ---- patterns: whether one begins with node k; its number of nodes and their roles ---- */

static bool match_norm(const finder *f, size_t k, lk__plan_launch *g)
{
    size_t end = k + 1;
    if ((!is_op(f, k, LK__OP_layer_norm) && !is_op(f, k, LK__OP_rms_norm)) || node_at(f, k)->attrs.axis != 1)
        return false;
    while (end - k <= LK__GROUP_PRODUCTS && is_op(f, end, LK__OP_linear) && reads(f, end, 0, k, 0)) end++;
    if (end == k + 1) return false;
    g->role[LK__ROLE_NORM] = 0;
    g->role[LK__ROLE_PRODUCT] = 1;
    g->role[LK__ROLE_LAST_PRODUCT] = (int)(end - k) - 1;
    if (end == k + 3 && is_op(f, end, LK__OP_swiglu) && reads(f, end, 0, k + 1, 0) && reads(f, end, 1, k + 2, 0))
        g->role[LK__ROLE_GATE] = (int)(end++ - k);
    g->count = (int)(end - k);
    return true;
}

static bool match_product(const finder *f, size_t k, lk__plan_launch *g)
{
    g->count = 1;
    return is_op(f, k, LK__OP_linear);
}

/* The node among `count` from k on whose first result input i of node `reader` reads. */
static int find_maker(const finder *f, size_t k, int count, size_t reader, int i)
{
    for (int j = 0; j < count; j++)
        if (reads(f, reader, i, k + (size_t)j, 0)) return j;
    return -1;
}

static bool makes_row(const lk__graph_node *n)
{
    return (n->op == LK__OP_slice && n->attrs.axis == 2) || (n->op == LK__OP_rope && !n->attrs.inverse);
}

/* All nodes before the attention make its operands. */
static bool match_attention(const finder *f, size_t k, lk__plan_launch *g)
{
    int      makers = 0;
    unsigned used = 0;
    while (makers <= MOST_MAKERS && k + (size_t)makers < f->count && !is_op(f, k + (size_t)makers, LK__OP_attention))
        makers++;
    size_t attention = k + (size_t)makers;
    if (makers > MOST_MAKERS || attention == f->count) return false;
    int key = find_maker(f, k, makers, attention, 1), value = find_maker(f, k, makers, attention, 2);
    if (key < 0 || value < 0 || !is_op(f, k + (size_t)key, LK__OP_cache_write) ||
        !is_op(f, k + (size_t)value, LK__OP_cache_write) ||
        read_by(f, k + (size_t)key, 2) != read_by(f, k + (size_t)value, 2))
        return false;
    g->role[LK__ROLE_ATTENTION] = makers;
    g->role[LK__ROLE_KEY_WRITE] = key;
    g->role[LK__ROLE_VALUE_WRITE] = value;
    g->role[LK__ROLE_QUERY] = find_maker(f, k, makers, attention, 0);
    g->role[LK__ROLE_KEY] = find_maker(f, k, makers, k + (size_t)key, 1);
    g->role[LK__ROLE_VALUE] = find_maker(f, k, makers, k + (size_t)value, 1);
    for (int r = LK__ROLE_QUERY; r <= LK__ROLE_VALUE_WRITE; r++) {
        if (g->role[r] < 0) continue;
        if (r <= LK__ROLE_VALUE && !makes_row(node_at(f, k + (size_t)g->role[r]))) return false;
        used |= 1u << g->role[r];
    }
    g->count = makers + 1;
    return used == (1u << makers) - 1;
}

static bool match_entropy(const finder *f, size_t k, lk__plan_launch *g)
{
    if (!is_op(f, k, LK__OP_cross_entropy) || !is_op(f, k + 1, LK__OP_cross_entropy_grad)) return false;
    g->role[LK__ROLE_LOSS] = 0;
    g->role[LK__ROLE_GRADIENT] = 1;
    g->count = 2;
    return reads(f, k + 1, 0, k, 3) && read_by(f, k, 1) == read_by(f, k + 1, 1) &&
           read_by(f, k, 2) == read_by(f, k + 1, 2) && read_by(f, k, 3) < 0 && read_by(f, k + 1, 3) < 0;
}

static bool match_gradients(const finder *f, size_t k, lk__plan_launch *g)
{
    if (!is_op(f, k, LK__OP_linear_grad_weight) || !is_op(f, k + 1, LK__OP_linear_grad_input) ||
        read_by(f, k, 1) != read_by(f, k + 1, 0))
        return false;
    g->role[LK__ROLE_WEIGHT] = 0;
    g->role[LK__ROLE_INPUT] = 1;
    g->count = 2;
    if (is_op(f, k + 2, LK__OP_unary_grad) && node_at(f, k + 2)->attrs.unary == LK__RELU &&
        reads(f, k + 2, 0, k + 1, 0))
        g->role[LK__ROLE_RELU] = 2, g->count = 3;
    return true;
}

static size_t count_equal(const finder *f, size_t k, lk__op op)
{
    size_t n = 0;
    while (is_op(f, k + n, op)) n++;
    return n;
}

static bool match_scale(const finder *f, size_t k, lk__plan_launch *g)
{
    size_t squares = count_equal(f, k, LK__OP_square_sum), adds = count_equal(f, k + squares, LK__OP_add);
    if (squares == 0 || adds + 1 != squares || !is_op(f, k + squares + adds, LK__OP_gradient_scale)) return false;
    g->role[LK__ROLE_SQUARES] = (int)squares - 1;
    g->role[LK__ROLE_SCALE] = (int)(squares + adds);
    g->count = (int)(squares + adds) + 1;
    return true;
}

static size_t count_updates(const finder *f, size_t k)
{
    bool updates = k < f->count && lk__op_find(node_at(f, k)->op)->effect == LK__EFFECT_STATE;
    return updates ? count_equal(f, k, node_at(f, k)->op) : 0;
}

static bool match_update(const finder *f, size_t k, lk__plan_launch *g)
{
    g->count = (int)count_updates(f, k);
    return g->count > 1;
}

/* All of the section: the scale, whose weight is the step's, and an optimizer for all parameters, which have one
 * type. */
static bool match_step_end(const finder *f, size_t k, lk__plan_launch *g)
{
    const lk_graph *graph = f->list->graph;
    int             weight = source_of(graph, f->list->numbers[LK__NUMBER_WEIGHT]);
    if (k != 0 || !is_op(f, 0, LK__OP_gradient_scale) || f->count < 2 || count_updates(f, 1) != f->count - 1)
        return false;
    if (read_by(f, 0, 0) != weight || (weight >= 0 && graph->values[weight].shape.dtype != LK_F64)) return false;
    for (int i = 1; i < node_at(f, 0)->inputs; i++)
        if (read_by(f, 0, i) >= 0) return false;
    lk_dtype type = graph->values[node_at(f, 1)->out[0]].shape.dtype;
    for (size_t i = 1; i < f->count; i++)
        if (!reads(f, i, 1, 0, 0) || graph->values[node_at(f, i)->out[0]].shape.dtype != type) return false;
    g->role[LK__ROLE_SCALE] = 0;
    g->count = (int)f->count;
    return true;
}

typedef struct pattern {
    bool (*match)(const finder *f, size_t k, lk__plan_launch *g);
    bool blocks;   /* nodes of a group share a launch in any order, so that memory is not used again within it … */
    bool replaces; /* … but for the result of the last one, which may replace its operand */
    bool early;    /* starts before the launch ahead of it has ended */
} pattern;
static const pattern patterns[LK__GROUP_KINDS] = {
    [LK__GROUP_OF_NORM] = {match_norm, .blocks = true, .early = true},
    [LK__GROUP_OF_PRODUCT] = {match_product, .early = true},
    [LK__GROUP_OF_ATTENTION] = {match_attention, .blocks = true, .early = true},
    [LK__GROUP_OF_ENTROPY] = {match_entropy, .blocks = true, .replaces = true},
    [LK__GROUP_OF_GRADIENTS] = {match_gradients, .blocks = true, .replaces = true},
    [LK__GROUP_OF_SCALE] = {match_scale},
    [LK__GROUP_OF_UPDATE] = {match_update},
    [LK__GROUP_OF_STEP_END] = {match_step_end},
};

/* ---- what the device has ---- */

lk_status lk__plan_group_gather(const lk__plan_list *list, const lk__plan_launch *launch, lk__plan_call_of call,
                                void *user, lk__plan_group_calls *calls)
{
    size_t count = (size_t)launch->count, i = 0;
    calls->bytes = count * (sizeof *calls->calls + sizeof *calls->ops);
    calls->calls = lk__alloc(list->graph->context, LK_MEMORY_OTHER, calls->bytes);
    if (!calls->calls) return LK_ENOMEM;
    calls->ops = (lk__op *)(calls->calls + count);
    for (size_t p = launch->first; p <= launch->last; p++) {
        int node = list->order[p];
        if (lk__op_find(list->graph->nodes[node].op)->runs == LK__RUNS_NOTHING) continue;
        calls->ops[i] = list->graph->nodes[node].op;
        calls->calls[i++] = call(user, node);
    }
    calls->group = (lk__device_group){launch->kind, launch->count, calls->ops, calls->calls, {0}};
    for (int r = 0; r < LK__GROUP_ROLES; r++) calls->group.role[r] = launch->role[r];
    return LK_OK;
}

void lk__plan_group_free(lk_context *context, lk__plan_group_calls *calls)
{
    lk__free(context, LK_MEMORY_OTHER, calls->calls, calls->bytes);
}

typedef struct made_calls {
    const lk_graph  *graph;
    lk__kernel_call *next;
} made_calls;

/* At the capacity's shapes; operands have an aligned address that is not read. */
static const lk__kernel_call *make_call(void *user, int node)
{
    made_calls      *m = user;
    lk__kernel_call *call = m->next++;
    lk__plan_call_at_capacity(m->graph, &m->graph->nodes[node], call);
    for (int i = 0; i < call->inputs; i++)
        if (call->in[i].data) call->in[i].data = (void *)(uintptr_t)LK__ALIGN;
    for (int i = 0; i < call->outputs; i++)
        if (call->out[i].data) call->out[i].data = (void *)(uintptr_t)LK__ALIGN;
    return call;
}

static lk_status ask_device(const finder *f, const lk__plan_launch *g, bool *supported)
{
    const lk_graph                *graph = f->list->graph;
    lk__device                    *device = lk__context_device(graph->context);
    const lk__device_group_kernel *kernel = &device->backend->kernels.group_kernels[g->kind];
    size_t                         bytes = (size_t)g->count * sizeof(lk__kernel_call);
    lk__plan_group_calls           calls = {.bytes = 0};
    *supported = false;
    if (!kernel->supports) return LK_OK;
    lk__kernel_call *made = lk__alloc(graph->context, LK_MEMORY_OTHER, bytes);
    lk_status        status = made ? LK_OK : LK_ENOMEM;
    if (status >= 0)
        status = lk__plan_group_gather(f->list, g, make_call, &(made_calls){.graph = graph, .next = made}, &calls);
    if (status >= 0) *supported = kernel->supports(device, &calls.group);
    lk__plan_group_free(graph->context, &calls);
    lk__free(graph->context, LK_MEMORY_OTHER, made, bytes);
    return status;
}

/* ---- the pass ---- */

static lk_status try_pattern(const finder *f, lk__device_group_kind kind, size_t k, bool *found)
{
    lk__plan_list  *list = f->list;
    lk__plan_launch g = {.kind = kind};
    for (int r = 0; r < LK__GROUP_ROLES; r++) g.role[r] = -1;
    *found = false;
    if (!patterns[kind].match(f, k, &g)) return LK_OK;
    g.first = f->at[k];
    g.last = f->at[k + (size_t)g.count - 1];
    lk_status status = ask_device(f, &g, found);
    if (status < 0 || !*found) return status;
    status = lk__grow(list->graph->context, (void **)&list->launches, &list->launches_capacity,
                      list->launches_count + 1, sizeof *list->launches);
    if (status >= 0) list->launches[list->launches_count++] = g;
    return status;
}

static lk_status find_groups(lk__plan_list *list, size_t begin, size_t end, lk__device_group_kind first,
                             lk__device_group_kind last)
{
    lk_context *c = list->graph->context;
    size_t      bytes = (end - begin) * sizeof(size_t);
    size_t     *at = lk__alloc(c, LK_MEMORY_OTHER, bytes);
    finder      f = {.list = list, .at = at};
    lk_status   status = bytes && !at ? LK_ENOMEM : LK_OK;
    for (size_t p = begin; p < end && status >= 0; p++)
        if (lk__op_find(list->graph->nodes[list->order[p]].op)->runs != LK__RUNS_NOTHING) at[f.count++] = p;
    for (size_t k = 0, next; k < f.count && status >= 0; k = next) {
        bool found = false;
        next = k + 1;
        for (lk__device_group_kind kind = first; kind <= last && !found && status >= 0; kind++) {
            status = try_pattern(&f, kind, k, &found);
            if (found && status >= 0) next = k + (size_t)list->launches[list->launches_count - 1].count;
        }
    }
    lk__free(c, LK_MEMORY_OTHER, at, bytes);
    return status;
}

/* A step of generation: it writes caches, each of them once, and reads weights that are states. Its kernels may then
 * read weights, and rows of a cache that an earlier run has written, while the ones before still run. */
static bool generates(const lk__plan_list *list)
{
    const lk_graph *g = list->graph;
    bool            caches = false;
    for (size_t p = 0; p < list->order_count; p++) {
        const lk__graph_node *n = &g->nodes[list->order[p]];
        if (n->op == LK__OP_linear && g->values[n->in[1]].kind != LK__VALUE_STATE) return false;
        if (lk__op_find(n->op)->effect != LK__EFFECT_CACHE) continue;
        caches = true;
        for (size_t q = 0; q < p; q++) { /* a cache that is written twice */
            const lk__graph_node *other = &g->nodes[list->order[q]];
            if (lk__op_find(other->op)->effect == LK__EFFECT_CACHE && other->in[0] == n->in[0]) return false;
        }
    }
    return caches;
}

lk_status lk__pass_launch_groups(lk__plan_list *list, const lk_plan *p)
{
    lk_status status = LK_OK;
    if (!p->device->backend->kernels.group_kernels) return LK_OK;
    if (list == &p->evaluate)
        return generates(list) ? find_groups(list, 0, list->end[LK_EVALUATE], LK__GROUP_OF_NORM, LK__GROUP_OF_ATTENTION)
                               : LK_OK;
    size_t update = list->end[LK_SYNC], end = list->end[LK_UPDATE];
    if (lk__plan_queues(p))
        status = find_groups(list, 0, list->end[LK_BACKWARD], LK__GROUP_OF_ENTROPY, LK__GROUP_OF_GRADIENTS);
    if (p->stage > 0) return status; /* LK__DO_SLICE updates, which is no kernel to gather */
    if (status >= 0) status = find_groups(list, update, end, LK__GROUP_OF_SCALE, LK__GROUP_OF_UPDATE);
    if (status >= 0 && lk__plan_queues(p))
        status = find_groups(list, update, end, LK__GROUP_OF_STEP_END, LK__GROUP_OF_STEP_END);
    return status;
}

/* ---- memory ---- */

/* The group with blocks in any order that has the node at this position; NULL: none. */
static const lk__plan_launch *group_around(const lk__plan_list *list, size_t position)
{
    for (size_t i = 0; i < list->launches_count; i++) {
        const lk__plan_launch *g = &list->launches[i];
        if (patterns[g->kind].blocks && position >= g->first && position <= g->last) return g;
    }
    return NULL;
}

/* What a launch that starts early reads and writes is kept for some nodes more: using it again at once made a step of
 * GPT-2's generation 3 % slower on an H200. */
enum { SPACING = 8 };

size_t lk__launch_group_keeps(const lk__plan_list *list, size_t position)
{
    for (size_t i = 0; i < list->launches_count; i++) {
        const lk__plan_launch *g = &list->launches[i];
        if (position < g->first || position > g->last) continue;
        if (patterns[g->kind].early) return g->last + SPACING;
        if (patterns[g->kind].blocks) return g->last;
    }
    return position;
}

bool lk__launch_group_in_place(const lk__plan_list *list, size_t position)
{
    const lk__plan_launch *g = group_around(list, position);
    return !g || (patterns[g->kind].replaces && position == g->last);
}

static bool overlap(const lk__plan_list *list, int a, int b)
{
    const lk_graph *g = list->graph;
    if (a < 0 || b < 0) return false;
    lk__plan_place         x = list->places[a], y = list->places[b];
    const lk__graph_shape *s = &g->values[a].shape, *t = &g->values[b].shape;
    if (x.region != y.region) return false;
    if (x.region == LK__IN_INPUT) return x.offset == y.offset;
    return x.offset < y.offset + (size_t)lk__shape_elements(t) * lk_dtype_size(t->dtype) &&
           y.offset < x.offset + (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype);
}

/* Whether result v of node n overlaps what the node `other`, n itself or one before it in the group, reads or
 * writes. */
static bool collides(const lk__plan_list *list, const lk__graph_node *n, int v, const lk__graph_node *other,
                     bool replaces)
{
    bool cache = lk__op_find(n->op)->effect == LK__EFFECT_CACHE;
    for (int i = 0; i < other->inputs; i++) {
        bool same = (replaces || (cache && n == other && i == 0)) && other->in[i] >= 0 &&
                    list->places[other->in[i]].region == list->places[v].region &&
                    list->places[other->in[i]].offset == list->places[v].offset;
        if (!same && overlap(list, v, other->in[i])) return true;
    }
    for (int i = 0; i < other->outputs && other != n; i++) {
        bool same = replaces && other->out[i] >= 0 && list->places[other->out[i]].region == list->places[v].region &&
                    list->places[other->out[i]].offset == list->places[v].offset;
        if (!same && overlap(list, v, other->out[i])) return true;
    }
    return false;
}

static bool group_collides(const lk__plan_list *list, const lk__plan_launch *g)
{
    const lk__graph_node *nodes = list->graph->nodes;
    for (size_t p = g->first; p <= g->last; p++) {
        const lk__graph_node *n = &nodes[list->order[p]];
        if (lk__op_find(n->op)->runs == LK__RUNS_NOTHING) continue;
        for (int k = 0; k < n->outputs; k++)
            for (size_t q = g->first; q <= p && n->out[k] >= 0; q++)
                if (lk__op_find(nodes[list->order[q]].op)->runs != LK__RUNS_NOTHING &&
                    collides(list, n, n->out[k], &nodes[list->order[q]],
                             patterns[g->kind].replaces && p == g->last && k == 0))
                    return true;
    }
    return false;
}

void lk__launch_group_check(lk__plan_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->launches_count; i++)
        if (!patterns[list->launches[i].kind].blocks || !group_collides(list, &list->launches[i]))
            list->launches[kept++] = list->launches[i];
    list->launches_count = kept;
}

/* ---- for instructions ---- */

int lk__launch_group_at(const lk__plan_list *list, size_t position)
{
    for (size_t i = 0; i < list->launches_count; i++)
        if (list->launches[i].first == position && list->launches[i].kind != LK__GROUP_OF_STEP_END) return (int)i;
    return -1;
}

int lk__launch_group_step_end(const lk__plan_list *list)
{
    for (size_t i = 0; i < list->launches_count; i++)
        if (list->launches[i].kind == LK__GROUP_OF_STEP_END) return (int)i;
    return -1;
}
