/* store.c - allocates the state of a plan and initialises it. */
#include "run/store.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "base/normal.h"
#include "base/normal_f32.h"
#include "base/random_batch.h"
#include "comm/hosts.h"
#include "comm/queue.h"
#include "plan/pipeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Elements; a tile is a multiple of a draw, and the staged part of a tile. */
enum { TILE = 16384, DRAW = 4 * LK__RANDOM_BATCH, STAGED = 8 * TILE };

typedef struct filling {
    const lk__graph_state *state;
    const lk__plan_slices *slices;
    lk_dtype               type; /* in which numbers are drawn */
    /* to which they are rounded; the same where the state is stored as it is drawn */
    lk_dtype   stored;
    char      *data;       /* of element `first` on */
    int64_t    first, end; /* elements of this rank's slice; first: a multiple of TILE */
    lk__random random;
} filling;

/* Values of elements DRAW·i … DRAW·i + DRAW-1: uniform in (-a, a), or normal with deviation a. */
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
    for (int k = 0; k < 4; k += 2) {
        double cosine[LK__RANDOM_BATCH], sine[LK__RANDOM_BATCH];
        lk__normal_batch(bits[k], bits[k + 1], cosine, sine);
        for (int j = 0; j < LK__RANDOM_BATCH; j++) {
            value[4 * j + k] = a * cosine[j];
            value[4 * j + k + 1] = a * sine[j];
        }
    }
}

/* The common case, random numbers in f32. Uniform ones are f32 throughout: a draw read as a signed integer, scaled to
 * (-a, a). */
static void draw_f32(const filling *f, int64_t i, float value[DRAW])
{
    uint32_t bits[4][LK__RANDOM_BATCH];
    float    scale = (float)(f->state->a / 2147483648.0);
    lk__random4_batch(&f->random, (uint64_t)i >> 27, (uint32_t)(i * LK__RANDOM_BATCH), bits);
    if (f->state->init == LK_INIT_NORMAL)
        lk__normal_f32((const uint32_t(*)[LK__RANDOM_BATCH])bits, f->state->a, value);
    else
        for (int j = 0; j < LK__RANDOM_BATCH; j++)
            for (int k = 0; k < 4; k++) value[4 * j + k] = scale * (float)(int32_t)(bits[k][j] ^ 0x80000000u);
}

/* Elements first … first + count - 1 of the whole array, within one draw, to `out`. */
static void fill_draw(const filling *f, int64_t first, int64_t count, char *out)
{
    bool    random = f->state->init == LK_INIT_UNIFORM || f->state->init == LK_INIT_NORMAL;
    int64_t i = first / DRAW, skipped = first % DRAW;
    if (f->type == LK_F32 && random) {
        float  some[DRAW];
        float *value = count == DRAW && f->stored == LK_F32 ? (float *)out : some;
        draw_f32(f, i, value);
        if (value == some) lk__dtype_of(f->stored)->from_float(out, some + skipped, (size_t)count);
        return;
    }
    double value[DRAW];
    if (random)
        draw(f, i, value);
    else
        for (int64_t k = 0; k < DRAW; k++) value[k] = f->state->init == LK_INIT_CONSTANT ? f->state->a : 0;
    lk__dtype_of(f->stored)->from_double(out, value + skipped, (size_t)count);
}

static size_t filled_size(const filling *f) { return lk_dtype_size(f->stored); }

/* Numbers are functions of the element of the whole array, whichever slice has it. */
static void fill_tile(void *argument, int64_t tile, int worker)
{
    const filling *f = argument;
    int64_t        at = f->first + tile * TILE, end = at + TILE < f->end ? at + TILE : f->end;
    (void)worker;
    while (at < end) {
        lk__plan_run run = lk__slices_run(f->slices, f->slices->own, at);
        int64_t      last = run.count < end - at ? at + run.count : end;
        for (int64_t element = run.first, count; at < last; at += count, element += count) {
            count = DRAW - element % DRAW < last - at ? DRAW - element % DRAW : last - at;
            fill_draw(f, element, count, f->data + (size_t)(at - f->first) * filled_size(f));
        }
    }
}

static bool same_slices(const lk__plan_slices *a, const lk__plan_slices *b)
{
    bool same = a->splits.count == b->splits.count && a->splits.flat.axes == b->splits.flat.axes;
    for (int i = 0; i < a->splits.count && same; i++)
        same = a->splits.split[i].dim == b->splits.split[i].dim && a->splits.split[i].axes == b->splits.split[i].axes &&
               a->splits.split[i].outer == b->splits.split[i].outer &&
               memcmp(a->splits.split[i].segment, b->splits.split[i].segment, sizeof a->splits.split[i].segment) == 0;
    return same;
}

/* In the host's memory, where it will stay; of what ranks share, each fills a part. `rounds`: the stored copy from the
 * master copy. */
static lk_status fill_here(lk_store *s, size_t index, filling *f, char *memory, bool rounds)
{
    bool      shares = lk__store_shares(s, index);
    int64_t   elements = lk__slices_elements(f->slices, f->slices->own);
    unsigned  apart = f->slices->apart;
    int       rank = lk__plan_rank(s->plan), sharers = shares ? lk__plan_sharers_apart(s->plan, apart, rank) : 1;
    lk__range tiles =
        lk__split_part((elements + TILE - 1) / TILE, sharers, shares ? lk__plan_sharer_apart(s->plan, apart, rank) : 0);
    f->first = tiles.first * TILE;
    f->end = tiles.end * TILE < elements ? tiles.end * TILE : elements;
    if (f->first >= f->end) return LK_OK;
    f->data = memory + (size_t)f->first * filled_size(f);
    lk__pool_run(lk__context_pool(s->context), lk__range_count(tiles), fill_tile, f);
    if (f->slices->holder == LK_HELD_BY_NODE)
        lk__store_replicate(s, f->data, (size_t)(f->end - f->first) * filled_size(f));
    return rounds ? lk__store_round(s, index, (size_t)f->first, (size_t)(f->end - f->first)) : LK_OK;
}

/* In a staging buffer, part by part. */
static lk_status fill_device(lk_store *s, size_t index, filling *f, char *memory, bool rounds)
{
    const lk__device_backend *device = s->device->backend;
    size_t                    size = filled_size(f);
    int64_t                   elements = lk__slices_elements(f->slices, f->slices->own);
    lk_status                 status = LK_OK;
    if (!(f->data = device->memory.alloc_host(s->device, LK_MEMORY_OTHER, STAGED * size))) return LK_ENOMEM;
    for (f->first = 0; f->first < elements && status >= 0; f->first += STAGED) {
        int64_t count = elements - f->first < STAGED ? elements - f->first : STAGED;
        f->end = f->first + count;
        lk__pool_run(lk__context_pool(s->context), (count + TILE - 1) / TILE, fill_tile, f);
        status = lk__device_write(s->device, NULL, memory + (size_t)f->first * size, f->data, (size_t)count * size);
        if (status >= 0 && rounds) status = lk__store_round(s, index, (size_t)f->first, (size_t)count);
    }
    device->memory.free_host(s->device, LK_MEMORY_OTHER, f->data, STAGED * size);
    return status;
}

/* The filling of an array of memory that `f` describes. */
static lk_status fill_memory(lk_store *s, size_t index, lk__plan_array array, filling *f, bool rounds)
{
    char *memory = lk__store_array_memory(s, index, array);
    return s->device->backend->memory.host ? fill_here(s, index, f, memory, rounds)
                                           : fill_device(s, index, f, memory, rounds);
}

static lk_status fill_array(lk_store *s, size_t index, lk__plan_array array, uint64_t seed)
{
    const lk__graph_state *state = &s->plan->graph->states[index];
    lk__plan_slices        slices = lk__plan_state_slices(s->plan, index, array);
    lk__plan_slices        stored = lk__plan_state_slices(s->plan, index, LK__ARRAY_STORED);
    bool                   master = s->plan->states[index].master;
    uint64_t               name = lk__hash64(state->name, strlen(state->name), 0);
    filling                f = {.state = state,
                                .slices = &slices,
                                .type = master ? lk__wide_type(slices.dtype) : slices.dtype,
                                .stored = slices.dtype,
                                .random = lk__random_make(seed, LK__FOR_INIT, name)};
    bool                   rounds = array == LK__ARRAY_MASTER && same_slices(&slices, &stored);
    return fill_memory(s, index, array, &f, rounds);
}

/* Memory is zero, and so are most moments before the first step. */
static lk_status fill_moments(lk_store *s, size_t index)
{
    lk_status status = LK_OK;
    for (int m = 0; m < s->plan->states[index].moments && status >= 0; m++) {
        lk__plan_array  array = (lk__plan_array)(LK__ARRAY_MOMENT_0 + m);
        lk__graph_state constant = {.init = LK_INIT_CONSTANT, .a = s->plan->moments[m].initial};
        lk__plan_slices slices = lk__plan_state_slices(s->plan, index, array);
        filling         f = {.state = &constant, .slices = &slices, .type = slices.dtype, .stored = slices.dtype};
        if (constant.a != 0) status = fill_memory(s, index, array, &f, false);
    }
    return status;
}

/* The values of this rank's slices. A stored copy that has other slices than its master copy is drawn again. */
static lk_status initialise(lk_store *s, size_t index, uint64_t seed)
{
    lk__plan_array  array = lk__store_array(s, index, LK_STATE_VALUE);
    lk__plan_slices value = lk__plan_state_slices(s->plan, index, array);
    lk__plan_slices stored = lk__plan_state_slices(s->plan, index, LK__ARRAY_STORED);
    lk_status       status = fill_array(s, index, array, seed);
    if (status >= 0) status = fill_moments(s, index);
    return status < 0 || same_slices(&value, &stored) ? status : fill_array(s, index, LK__ARRAY_STORED, seed);
}

/* What is this rank's own: of a shared store at most the buffers. Returns how many there are. */
static int list_regions(lk_store *s, lk__device_part parts[LK__STORE_KINDS])
{
    int count = 0;
    for (int i = 0; i < LK__STORE_KINDS; i++) {
        lk_memory kind = lk__store_kind(i);
        bool      symmetric = kind == LK_MEMORY_PARAMETERS && s->sliced;
        if (lk__store_holder(s, kind) == LK_HELD_BY_RANK && !symmetric)
            parts[count++] = (lk__device_part){kind, s->plan->memory[kind], lk__store_region(s, i)};
    }
    return count;
}

lk_status lk__explain_memory(const lk_plan *p, lk_status status)
{
    char   text[512] = "", before[512];
    size_t total = 0, used = 0;
    if (status != LK_ENOMEM || lk__device_is_host(p->device)) return status;
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) {
        if (p->memory[kind] == 0) continue;
        total += p->memory[kind];
        if (used + 64 < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.1f MiB", used ? ", " : "",
                                     lk_memory_name((lk_memory)kind), (double)p->memory[kind] / 1048576.0);
    }
    snprintf(before, sizeof before, "%s", lk_context_error(p->context));
    return lk__fail(
        p->context, status,
        "%s. The plan needs %.1f MiB: %s. More micro-batches (--accumulate) or --recompute would reduce this", before,
        (double)total / 1048576.0, text);
}

/* Parameters of which ranks have slices are where the other ranks of a host reach them, or their GPUs: they are
 * gathered from there, or to there. */
static lk_status alloc_sliced(lk_store *s)
{
    size_t bytes = s->plan->memory[LK_MEMORY_PARAMETERS];
    void  *memory;
    if (!s->plan->stage || !s->group || bytes == 0) return LK_OK;
    if (s->plan->pipeline) return LK_OK; /* stages have different numbers of bytes */
    if (!s->plan->queued && !lk__comm_reaches(s->group, s->device)) return LK_OK;
    lk_status status = s->plan->queued ? lk__comm_alloc_device(s->group, s->device, bytes, &memory)
                                       : lk_comm_alloc(s->group, bytes, &memory);
    if (status < 0) return lk__fail_prefix(s->context, status, "parameters in shared memory: ");
    s->parameters = s->sliced = memory;
    lk__account(s->context, LK_MEMORY_PARAMETERS, (ptrdiff_t)bytes);
    return LK_OK;
}

static void free_sliced(lk_store *s)
{
    if (!s->sliced) return;
    lk_comm_release(s->group, s->sliced);
    lk__account(s->context, LK_MEMORY_PARAMETERS, -(ptrdiff_t)s->plan->memory[LK_MEMORY_PARAMETERS]);
}

/* The group whose memory this rank's copy is in. */
static lk_status find_sharers(lk_store *s)
{
    int rank = lk__plan_rank(s->plan);
    if (!s->plan->shared || !s->group) return LK_OK;
    if (!s->plan->splits && !s->plan->placed_axes) {
        s->comm = s->group;
        return LK_OK;
    }
    /* Of placed values, the copies of all hosts that are replicas: each has the same number of sharers. */
    unsigned apart = s->plan->placed_axes | (s->plan->pipeline ? LK__PLAN_STAGE_AXES : 0);
    int colour = s->plan->placed_axes ? lk__mesh_coordinate(&s->plan->mesh, apart, rank) : lk__plan_copy(s->plan, rank);
    lk_status status = lk_comm_split(s->group, colour, rank, &s->comm);
    s->split_comm = status >= 0;
    return status;
}

/* group: of ranks that share the state, or have slices of it; NULL: this rank has all of it, for itself. */
static lk_status create_store(lk_plan *plan, uint64_t seed, lk_comm *group, lk_store **store)
{
    lk_context *c = plan->context;
    lk_store   *s = lk__alloc(c, LK_MEMORY_OTHER, sizeof *s);
    if (!s) return LK_ENOMEM;
    s->context = c;
    s->plan = plan;
    s->device = plan->device;
    s->group = group;
    s->writes_buffers = true;
    s->sharers = lk__plan_owners(plan);
    s->sharer = lk__plan_own(plan);
    lk_status status = find_sharers(s);
    if (status >= 0 && s->comm) status = lk__store_alloc_shared(s);
    if (status >= 0) status = alloc_sliced(s);
    if (status >= 0) status = lk__store_alloc_exchange(s);
    if (status >= 0) {
        lk__device_part parts[LK__STORE_KINDS];
        int             count = list_regions(s, parts);
        status = lk__device_alloc_parts(s->device, parts, count, &s->block);
    }
    for (size_t i = 0; i < plan->graph->states_count && status >= 0; i++) status = initialise(s, i, seed);
    for (size_t i = 0; i < plan->graph->constants_count && s->writes_buffers && status >= 0; i++)
        status = lk__device_write(s->device, NULL, s->buffers + plan->constants[i], plan->graph->constants[i].data,
                                  plan->graph->constants[i].bytes);
    if (status >= 0 && s->comm) status = lk_comm_barrier(s->comm, NULL); /* until all have filled their parts */
    if (status < 0) {
        lk_store_free(s);
        return lk__explain_memory(plan, status);
    }
    *store = s;
    return LK_OK;
}

lk_status lk_store_create(lk_plan *plan, uint64_t seed, lk_store **store)
{
    *store = NULL;
    if (plan->shared && plan->trains)
        return lk__fail(plan->context, LK_EINVAL,
                        "the plan's ranks share their state: create the store with lk_store_create_shared, for the "
                        "group of these ranks, or plan it as replicated");
    if (plan->splits)
        return lk__fail(plan->context, LK_EINVAL,
                        "the plan divides the state among its ranks: create the store with lk_store_create_shared, for "
                        "the group of these ranks");
    return create_store(plan, seed, NULL, store);
}

lk_status lk_store_create_shared(lk_plan *plan, uint64_t seed, lk_comm *comm, lk_store **store)
{
    *store = NULL;
    if (!comm && lk__plan_ranks(plan) == 1) return create_store(plan, seed, NULL, store);
    if (!comm)
        return lk__fail(plan->context, LK_EMISMATCH, "the plan is for rank %d of %d, but there is no group",
                        lk__plan_rank(plan), lk__plan_ranks(plan));
    if (lk_comm_size(comm) != lk__plan_ranks(plan) || lk_comm_rank(comm) != lk__plan_rank(plan))
        return lk__fail(plan->context, LK_EMISMATCH, "the plan is for rank %d of %d, but this is rank %d of %d",
                        lk__plan_rank(plan), lk__plan_ranks(plan), lk_comm_rank(comm), lk_comm_size(comm));
    if (!plan->shared && !plan->splits) return create_store(plan, seed, NULL, store);
    const char *why;
    int         hosts = plan->shared ? lk__comm_hosts(comm, &why) : plan->parallel.hosts;
    if (hosts == 0)
        return lk__fail(plan->context, LK_EUNSUPPORTED,
                        "the ranks of this group (%s) %s, so they cannot share their state: plan it as replicated "
                        "(LK_STATE_REPLICATED, --state replicated)",
                        lk_comm_backend(comm), why);
    if (hosts != plan->parallel.hosts)
        return lk__fail(
            plan->context, LK_EMISMATCH,
            "the plan is for %d host%s, but the ranks of this group are on %d: set lk_parallel.hosts to lk_comm_hosts",
            plan->parallel.hosts, plan->parallel.hosts == 1 ? "" : "s", hosts);
    bool      first_chooses, overlaps = false;
    lk_status status = lk__verify_plans(plan, comm, &first_chooses, &overlaps);
    if (status >= 0) status = lk__plan_use_group(plan, comm);
    return status < 0 ? status : create_store(plan, seed, comm, store);
}

void lk_store_free(lk_store *s)
{
    if (!s) return;
    lk__device_part parts[LK__STORE_KINDS];
    int             count = list_regions(s, parts);
    lk__device_free_parts(s->device, parts, count, s->block);
    free_sliced(s);
    if (s->comm) lk__store_free_shared(s);
    if (s->split_comm) lk_comm_free(s->comm);
    lk__store_free_exchange(s);
    lk__free(s->context, LK_MEMORY_OTHER, s, sizeof *s);
}

size_t lk_store_count(const lk_store *s) { return s->plan->graph->states_count; }

/* NULL: this rank has slices of it. */
static void *whole_memory(const lk_store *s, size_t index, lk_state_part part)
{
    return lk__store_splits(s, index, part) ? NULL : lk__store_memory(s, index, part);
}

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
                                  .not_saved = state->not_saved,
                                  .frozen = !state->buffer && s->plan->trains && !lk__plan_trains(s->plan, index),
                                  .moments = sp->moments};
    memcpy(out.dims, shape->dims, sizeof out.dims);
    if (!lk__device_is_host(s->device)) return out;
    out.data = whole_memory(s, index, LK_STATE_VALUE);
    for (int m = 0; m < 2; m++) out.moment[m] = lk_store_moment(s, index, m);
    return out;
}

void *lk_store_moment(const lk_store *s, size_t index, int i)
{
    bool has = lk_store_moment_name(s, index, i) && lk__device_is_host(s->device);
    return has ? whole_memory(s, index, (lk_state_part)(LK_STATE_MOMENT_0 + i)) : NULL;
}

const char *lk_store_moment_name(const lk_store *s, size_t index, int i)
{
    return i >= 0 && i < s->plan->states[index].moments ? s->plan->moments[i].name : NULL;
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
