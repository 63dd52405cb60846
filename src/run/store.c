/* store.c - allocates the state of a plan and initialises it. */
#include "run/store.h"

#include "base/bf16.h"
#include "base/hash.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

enum { TILE = 16384, DRAW = 4 * LK__RANDOM_BATCH }; /* elements; a tile is a multiple of a draw */

typedef struct filling {
    const lk__graph_state *state;
    lk_dtype               type;
    void                  *data;
    int64_t                elements;
    lk__random             random;
} filling;

/* Values of elements DRAW·i … DRAW·i + DRAW-1: uniform in (-a, a), or normal by Box–Muller on pairs. */
static void draw(const filling *f, int64_t i, double value[DRAW])
{
    uint32_t bits[4][LK__RANDOM_BATCH];
    double   a = f->state->a;
    lk__random4_batch(&f->random, (uint64_t)i >> 27, (uint32_t)(i * LK__RANDOM_BATCH), bits);
    if (f->state->init == LK_INIT_UNIFORM) {
        for (int j = 0; j < LK__RANDOM_BATCH; j++)
            for (int k = 0; k < 4; k++) value[4 * j + k] = a * (2 * lk__random_unit(bits[k][j]) - 1);
        return;
    }
    for (int j = 0; j < LK__RANDOM_BATCH; j++) {
        for (int k = 0; k < 4; k += 2) {
            double radius = a * sqrt(-2 * log(lk__random_unit(bits[k][j])));
            double angle = 6.283185307179586 * lk__random_unit(bits[k + 1][j]);
            value[4 * j + k] = radius * cos(angle);
            value[4 * j + k + 1] = radius * sin(angle);
        }
    }
}

static inline void write_number(lk_dtype type, void *data, int64_t i, double value)
{
    switch (type) {
    case LK_F32: ((float *)data)[i] = (float)value; break;
    case LK_F64: ((double *)data)[i] = value; break;
    case LK_BF16: ((lk__bf16 *)data)[i] = lk__to_bf16((float)value); break;
    default: ((int64_t *)data)[i] = (int64_t)value; break; /* lk_buffer allows no other type */
    }
}

/* The common case, in f32 throughout: a draw read as a signed integer, scaled to (-a, a). */
static void fill_uniform_f32(const filling *f, int64_t at, int64_t count)
{
    uint32_t bits[4][LK__RANDOM_BATCH];
    float    value[DRAW], scale = (float)(f->state->a / 2147483648.0);
    int64_t  i = at / DRAW;
    lk__random4_batch(&f->random, (uint64_t)i >> 27, (uint32_t)(i * LK__RANDOM_BATCH), bits);
    for (int j = 0; j < LK__RANDOM_BATCH; j++)
        for (int k = 0; k < 4; k++) value[4 * j + k] = scale * (float)(int32_t)(bits[k][j] ^ 0x80000000u);
    memcpy((float *)f->data + at, value, (size_t)count * sizeof *value);
}

static void fill_tile(void *argument, int64_t tile, int worker)
{
    const filling *f = argument;
    int64_t        end = (tile + 1) * TILE < f->elements ? (tile + 1) * TILE : f->elements;
    bool           random = f->state->init == LK_INIT_UNIFORM || f->state->init == LK_INIT_NORMAL;
    double         value[DRAW];
    (void)worker;
    for (int i = 0; i < DRAW; i++) value[i] = f->state->init == LK_INIT_CONSTANT ? f->state->a : 0;
    for (int64_t at = tile * TILE; at < end; at += DRAW) {
        int64_t count = end - at < DRAW ? end - at : DRAW;
        if (f->type == LK_F32 && f->state->init == LK_INIT_UNIFORM) {
            fill_uniform_f32(f, at, count);
            continue;
        }
        if (random) draw(f, at / DRAW, value);
        for (int64_t i = 0; i < count; i++) write_number(f->type, f->data, at + i, value[i]);
    }
}

static void initialise(lk_store *store, size_t index, uint64_t seed)
{
    lk_state               state = lk_store_at(store, index);
    const lk__graph_state *s = &store->plan->graph->states[index];
    filling f = {s, state.dtype, state.data, lk__shape_elements(&store->plan->graph->values[s->value].shape),
                 lk__random_make(seed, LK__FOR_INIT, lk__hash64(s->name, strlen(s->name), 0))};
    lk__pool_run(lk__context_pool(store->context), (f.elements + TILE - 1) / TILE, fill_tile, &f);
    lk__store_round(store, index, 0, (size_t)f.elements);
}

lk_status lk_store_create(lk_plan *plan, uint64_t seed, lk_store **store)
{
    lk_context *c = plan->context;
    lk_store   *s = lk__alloc(c, LK_MEMORY_OTHER, sizeof *s);
    *store = NULL;
    if (!s) return LK_ENOMEM;
    s->context = c;
    s->plan = plan;
    s->parameters = lk__alloc(c, LK_MEMORY_PARAMETERS, plan->memory[LK_MEMORY_PARAMETERS]);
    s->master = lk__alloc(c, LK_MEMORY_MASTER, plan->memory[LK_MEMORY_MASTER]);
    s->buffers = lk__alloc(c, LK_MEMORY_BUFFERS, plan->memory[LK_MEMORY_BUFFERS]);
    s->optimizer = lk__alloc(c, LK_MEMORY_OPTIMIZER, plan->memory[LK_MEMORY_OPTIMIZER]);
    if ((plan->memory[LK_MEMORY_PARAMETERS] && !s->parameters) || (plan->memory[LK_MEMORY_MASTER] && !s->master) ||
        (plan->memory[LK_MEMORY_BUFFERS] && !s->buffers) || (plan->memory[LK_MEMORY_OPTIMIZER] && !s->optimizer)) {
        lk_store_free(s);
        return LK_ENOMEM;
    }
    for (size_t i = 0; i < plan->graph->states_count; i++) initialise(s, i, seed);
    for (size_t i = 0; i < plan->graph->constants_count; i++)
        memcpy(s->buffers + plan->constants[i], plan->graph->constants[i].data, plan->graph->constants[i].bytes);
    *store = s;
    return LK_OK;
}

void lk_store_free(lk_store *s)
{
    if (!s) return;
    lk__free(s->context, LK_MEMORY_PARAMETERS, s->parameters, s->plan->memory[LK_MEMORY_PARAMETERS]);
    lk__free(s->context, LK_MEMORY_MASTER, s->master, s->plan->memory[LK_MEMORY_MASTER]);
    lk__free(s->context, LK_MEMORY_BUFFERS, s->buffers, s->plan->memory[LK_MEMORY_BUFFERS]);
    lk__free(s->context, LK_MEMORY_OPTIMIZER, s->optimizer, s->plan->memory[LK_MEMORY_OPTIMIZER]);
    lk__free(s->context, LK_MEMORY_OTHER, s, sizeof *s);
}

size_t lk_store_count(const lk_store *s) { return s->plan->graph->states_count; }

lk_state lk_store_at(const lk_store *s, size_t index)
{
    const lk__graph_state *state = &s->plan->graph->states[index];
    const lk__plan_state  *sp = &s->plan->states[index];
    const lk__graph_shape *shape = &s->plan->graph->values[state->value].shape;
    lk_state               out = {.name = state->name,
                                  .dtype = sp->master ? lk__wide_type(shape->dtype) : shape->dtype,
                                  .stored = shape->dtype,
                                  .rank = shape->rank,
                                  .buffer = state->buffer,
                                  .frozen = !state->buffer && s->plan->trains && !sp->trained,
                                  .moments = sp->moments};
    memcpy(out.dims, shape->dims, sizeof out.dims);
    out.data = lk__store_memory(s, index, LK_STATE_VALUE);
    for (int m = 0; m < sp->moments; m++)
        out.moment[m] = lk__store_memory(s, index, (lk_state_part)(LK_STATE_MOMENT_0 + m));
    return out;
}

const char *lk_store_alias(const lk_store *s, size_t index, size_t i)
{
    const lk__graph_state *state = &s->plan->graph->states[index];
    return i < state->aliases_count ? state->aliases[i] : NULL;
}

int64_t lk_store_parameters(const lk_store *s)
{
    int64_t total = 0;
    for (size_t i = 0; i < lk_store_count(s); i++) {
        const lk__graph_state *state = &s->plan->graph->states[i];
        if (!state->buffer) total += lk__shape_elements(&s->plan->graph->values[state->value].shape);
    }
    return total;
}
