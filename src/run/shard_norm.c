/* shard_norm.c - the norm of a gradient of which ranks have slices, with the bits of one rank: each part of square_sum
 * (device/kernel.h) is summed by the rank in whose slice it begins, the parts in their order on every rank. A slice may
 * end within a part: the rest of that is fetched from the ranks that have it. */
#include "run/shard.h"

#include "run/collective.h"
#include "run/interpreter.h"

#include <string.h>

/* Elements that one rank has, of a part that begins in the slice of another. */
typedef struct fragment {
    size_t memory; /* of the sender: bytes from the beginning of the gradients */
    size_t buffer; /* elements from the beginning of what is sent or received */
    size_t count;
} fragment;

/* A part that begins in this rank's slice. */
typedef struct norm_part {
    int     state, number;              /* of the part */
    size_t  memory;                     /* of what this rank has of it */
    int64_t own, count;                 /* elements that it has, and all */
    int     fragments, fragments_first; /* that it receives */
} norm_part;

struct lk__shard_norm {
    norm_part *parts;
    fragment  *sent, *received;
    size_t     parts_count, sent_count, received_count;
    size_t     send_elements, receive_elements;
    size_t    *counts, *places, *more_counts, *more_places; /* by rank along shard: what is sent, and received */
    char      *send, *receive, *scratch;                    /* scratch: a part for each thread */
    double    *squares;                                     /* of all parts of all states */
    size_t    *first_square;                                /* by state */
    int       *instructions;                                /* by state: that of its squares; -1: none */
    size_t     squares_count, bytes;
};

/* ---- creation ---- */

/* Where element `at` of a unit is in the first set of gradients. */
static size_t unit_memory(const lk_plan *plan, int unit, int64_t at)
{
    const lk__plan_bucket *b = &plan->buckets[plan->units[unit].bucket];
    return b->offset + (size_t)at * lk_dtype_size(b->dtype);
}

/* What other ranks have of elements at … end of a unit, which this rank needs. */
static void add_received(lk__shard_norm *x, int64_t at, int64_t end, int64_t each)
{
    for (int64_t next; at < end; at = next) {
        int rank = (int)(at / each);
        next = (rank + 1) * each < end ? (rank + 1) * each : end;
        if (x->received)
            x->received[x->received_count] =
                (fragment){.buffer = x->more_places[rank] + x->more_counts[rank], .count = (size_t)(next - at)};
        if (x->more_counts) x->more_counts[rank] += (size_t)(next - at);
        x->received_count++;
        x->receive_elements += (size_t)(next - at);
    }
}

/* What this rank has of elements at … end, which `owner` needs. */
static void add_sent(const lk_plan *plan, lk__shard_norm *x, int unit, int64_t at, int64_t end, int owner)
{
    int64_t each = lk__unit_each(plan, &plan->units[unit]), first = lk__plan_shard(plan) * each;
    if (at < first) at = first;
    if (end > first + each) end = first + each;
    if (at >= end) return;
    if (x->sent)
        x->sent[x->sent_count] = (fragment){.memory = unit_memory(plan, unit, at),
                                            .buffer = x->places[owner] + x->counts[owner],
                                            .count = (size_t)(end - at)};
    if (x->counts) x->counts[owner] += (size_t)(end - at);
    x->sent_count++;
    x->send_elements += (size_t)(end - at);
}

static void add_part(const lk_plan *plan, lk__shard_norm *x, size_t state, int64_t number)
{
    const lk__plan_state *s = &plan->states[state];
    int64_t               elements = s->unit_elements, each = lk__unit_each(plan, &plan->units[s->unit]);
    int64_t               begin = s->unit_at + lk__square_begin(elements, number),
            end = s->unit_at + lk__square_begin(elements, number + 1);
    int owner = (int)(begin / each);
    if (owner != lk__plan_shard(plan)) {
        add_sent(plan, x, s->unit, begin, end, owner);
        return;
    }
    int64_t own = (owner + 1) * each < end ? (owner + 1) * each : end;
    size_t  before = x->received_count;
    add_received(x, own, end, each);
    if (x->parts)
        x->parts[x->parts_count] = (norm_part){.state = (int)state,
                                               .number = (int)number,
                                               .memory = unit_memory(plan, s->unit, begin),
                                               .own = own - begin,
                                               .count = end - begin,
                                               .fragments_first = (int)before,
                                               .fragments = (int)(x->received_count - before)};
    x->parts_count++;
}

/* Counts all; fills the arrays that are there. */
static void list_parts(const lk_plan *plan, lk__shard_norm *x)
{
    x->parts_count = x->sent_count = x->received_count = x->send_elements = x->receive_elements = 0;
    x->squares_count = 0;
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        if (x->first_square) x->first_square[i] = x->squares_count;
        if (!plan->states[i].trained) continue;
        int64_t parts = lk__square_parts(plan->states[i].unit_elements);
        for (int64_t k = 0; k < parts; k++) add_part(plan, x, i, k);
        x->squares_count += (size_t)parts;
    }
}

static void *reserve_bytes(char *memory, size_t *used, size_t bytes)
{
    char *at = memory ? memory + *used : NULL;
    *used += lk__round_up(bytes, LK__ALIGN);
    return at;
}

static size_t lay_out(const lk_program *p, lk__shard_norm *x, char *memory)
{
    size_t used = lk__round_up(sizeof *x, LK__ALIGN), ranks = (size_t)lk__plan_shards(p->plan);
    size_t size = lk_dtype_size(p->plan->graph->real), states = p->plan->graph->states_count;
    x->parts = reserve_bytes(memory, &used, x->parts_count * sizeof *x->parts);
    x->sent = reserve_bytes(memory, &used, x->sent_count * sizeof *x->sent);
    x->received = reserve_bytes(memory, &used, x->received_count * sizeof *x->received);
    x->counts = reserve_bytes(memory, &used, ranks * sizeof *x->counts);
    x->places = reserve_bytes(memory, &used, ranks * sizeof *x->places);
    x->more_counts = reserve_bytes(memory, &used, ranks * sizeof *x->more_counts);
    x->more_places = reserve_bytes(memory, &used, ranks * sizeof *x->more_places);
    x->send = reserve_bytes(memory, &used, x->send_elements * size);
    x->receive = reserve_bytes(memory, &used, x->receive_elements * size);
    x->scratch = reserve_bytes(memory, &used, (size_t)lk__plan_workers(p->plan) * LK__SQUARE_PART * size);
    x->squares = reserve_bytes(memory, &used, x->squares_count * sizeof *x->squares);
    x->first_square = reserve_bytes(memory, &used, states * sizeof *x->first_square);
    x->instructions = reserve_bytes(memory, &used, states * sizeof *x->instructions);
    return used;
}

/* Where what goes to each rank, or comes from it, begins in the buffers, in order of ranks. */
static void set_places(const lk_plan *plan, lk__shard_norm *x)
{
    size_t sent = 0, received = 0;
    for (int i = 0; i < lk__plan_shards(plan); i++) {
        x->places[i] = sent;
        x->more_places[i] = received;
        sent += x->counts[i];
        received += x->more_counts[i];
        x->counts[i] = x->more_counts[i] = 0; /* counted again */
    }
}

static bool find_instructions(const lk_program *p, int *instructions)
{
    const lk__run_list *list = &p->slots[0].train;
    bool                any = false;
    for (size_t i = 0; instructions && i < p->plan->graph->states_count; i++) instructions[i] = -1;
    for (size_t i = list->at.begin[LK_UPDATE]; i < list->at.end[LK_UPDATE]; i++) {
        if (list->instructions[i].action != LK__DO_SQUARE_PARTS) continue;
        const lk_graph *g = p->plan->train.graph;
        any = true;
        if (instructions) instructions[g->values[g->nodes[list->instructions[i].node].in[0]].state] = (int)i;
    }
    return any;
}

lk_status lk__norm_create(lk_program *p)
{
    lk__shard_norm measured = {.parts = NULL};
    if (!p->plan->trains || !lk__plan_squares_by_part(p->plan) || !find_instructions(p, NULL)) return LK_OK;
    list_parts(p->plan, &measured);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__shard_norm *x = p->norm = (lk__shard_norm *)memory;
    *x = measured;
    lay_out(p, x, memory);
    x->bytes = bytes;
    list_parts(p->plan, x); /* counts, from which places follow, which fragments need */
    set_places(p->plan, x);
    list_parts(p->plan, x);
    (void)find_instructions(p, x->instructions);
    return LK_OK;
}

void lk__norm_free(lk_program *p)
{
    if (p->norm) lk__free(p->context, LK_MEMORY_OTHER, p->norm, p->norm->bytes);
    p->norm = NULL;
}

/* ---- a step ---- */

lk_status lk__run_fetch_parts(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__shard_norm *x = p->norm;
    lk_dtype        type = p->plan->graph->real;
    size_t          size = lk_dtype_size(type);
    double          start = lk__now();
    (void)run, (void)at, (void)next;
    for (size_t i = 0; i < x->sent_count; i++)
        memcpy(x->send + x->sent[i].buffer * size, lk__gradient_set(p, 0) + x->sent[i].memory, x->sent[i].count * size);
    lk_status status = lk_comm_all_to_allv(p->shard, x->send, x->counts, x->places, x->receive, x->more_counts,
                                           x->more_places, type, NULL);
    double    end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, lk__action_name(LK__DO_FETCH_PARTS), start, end, x->send_elements * size);
    return status;
}

static void square_part(void *argument, int64_t tile, int worker)
{
    const lk_program          *p = argument;
    const lk__shard_norm      *x = p->norm;
    const norm_part           *part = &x->parts[tile];
    const lk__run_instruction *in = &p->slots[0].train.instructions[x->instructions[part->state]];
    lk__kernel_call            call = in->call;
    double                     partial;
    size_t                     size = lk_dtype_size(p->plan->graph->real);
    char                      *data = lk__gradient_set(p, 0) + part->memory;
    if (part->fragments) {
        char  *all = x->scratch + (size_t)worker * LK__SQUARE_PART * size;
        size_t used = (size_t)part->own * size;
        memcpy(all, data, used);
        for (int i = part->fragments_first; i < part->fragments_first + part->fragments; i++) {
            memcpy(all + used, x->receive + x->received[i].buffer * size, x->received[i].count * size);
            used += x->received[i].count * size;
        }
        data = all;
    }
    call.in[0] = (lk__kernel_operand){.data = data, .dtype = call.in[0].dtype, .rank = 1, .dims = {part->count}};
    call.out[0].data = x->squares + x->first_square[part->state] + part->number;
    call.workspace = &partial;
    call.pool = NULL;
    (void)in->run(&call);
}

/* Of all states at once: the instructions behind this one are the other states'. */
lk_status lk__run_square_parts(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__shard_norm *x = p->norm;
    while (lk__run_at(p, run, *next)->action == LK__DO_SQUARE_PARTS) ++*next; /* another action follows */
    (void)at;
    memset(x->squares, 0, x->squares_count * sizeof *x->squares);
    lk__pool_run(lk__context_pool(p->context), (int64_t)x->parts_count, square_part, p);
    return LK_OK;
}

/* The parts of other ranks are 0 here: a sum has each of them as it is. */
lk_status lk__run_add_squares(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__shard_norm *x = p->norm;
    double          start = lk__now();
    (void)at, (void)next;
    lk_status status = lk_comm_all_reduce(p->shard, x->squares, x->squares, x->squares_count, LK_F64, LK_SUM, NULL);
    double    end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, lk__action_name(LK__DO_ADD_SQUARES), start, end, x->squares_count * sizeof *x->squares);
    for (size_t i = 0; i < p->plan->graph->states_count && status >= 0; i++) {
        if (x->instructions[i] < 0) continue;
        const double *parts = x->squares + x->first_square[i];
        double        total = 0;
        for (int64_t k = 0, n = lk__square_parts(p->plan->states[i].unit_elements); k < n; k++) total += parts[k];
        *(double *)lk__run_at(p, run, (size_t)x->instructions[i])->call.out[0].data = total;
    }
    return status;
}
