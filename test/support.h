/* support.h - shared by tests of whole graphs: numbers that a Python script can generate too, a graph with its plan,
 * store and program, and operands that are parameters, so that every gradient can be read and every value changed. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "check.h"
#include "copies.h"
#include "data/safetensors.h"

#include <lockstep/nn.h>
#include <lockstep/program.h>
#include <math.h>

#define SHARED __attribute__((unused)) static

/* ---- numbers: splitmix64 of (seed, index), the same in test/golden/draw.py ---- */

SHARED uint64_t number_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xD1342543DE82EF95u + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

SHARED double number(uint64_t seed, uint64_t index)
{
    return (double)(number_bits(seed, index) >> 11) * 0x1p-53;
} /* [0, 1) */

typedef enum values {
    PLAIN,    /* uniform in -1 … 1 */
    POSITIVE, /* uniform in 1 … 2 */
    WIDE,     /* uniform in -8 … 8 */
    SPREAD,   /* all different and none near 0: away from the kinks of relu and max pool */
} values;

static inline double value_of(values kind, uint64_t seed, int64_t i, int64_t count)
{
    double u = number(seed, (uint64_t)i);
    if (kind == POSITIVE) return 1 + u;
    if (kind == WIDE) return 16 * u - 8;
    if (kind == PLAIN) return 2 * u - 1;
    int64_t step =
        count > 2 ? (int64_t)((double)count * 0.6180339887) : 1; /* a permutation: a step coprime to the count */
    for (;; step++) {
        int64_t a = step, b = count;
        while (b) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) break;
    }
    return 2 * ((double)((i * step + (int64_t)seed) % count) + 0.3) / (double)count - 1;
}

SHARED double real_at(const void *data, lk_dtype type, int64_t i)
{
    return type == LK_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

SHARED void set_real(void *data, lk_dtype type, int64_t i, double value)
{
    if (type == LK_F32)
        ((float *)data)[i] = (float)value;
    else
        ((double *)data)[i] = value;
}

/* ---- a graph and everything made from it ---- */

typedef struct rig {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    size_t      before[LK_MEMORY_COUNT]; /* of the context itself, and of other rigs in it */
    bool        borrowed;                /* the context is the caller's */
} rig;

/* In the caller's context: one on a GPU takes milliseconds to create. */
SHARED rig rig_open_in(lk_context *context, lk_dtype real)
{
    rig r = {.context = context, .borrowed = true};
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) r.before[kind] = lk_context_memory(context, kind);
    REQUIRE(lk_graph_create(context, real, &r.graph) == LK_OK);
    return r;
}

SHARED rig rig_open(lk_dtype real, int threads)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = threads;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    rig r = rig_open_in(context, real);
    r.borrowed = false;
    return r;
}

/* The store and the program of the plan. */
SHARED void rig_start(rig *r, uint64_t seed)
{
    REQUIRE(lk_store_create(r->plan, seed, &r->store) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_program_create(r->plan, r->store, NULL, &r->program) == LK_OK, "%s", lk_context_error(r->context));
}

SHARED void rig_plan(rig *r, const lk_plan_config *config, uint64_t seed)
{
    REQUIRE(lk_plan_create(r->graph, config, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
    rig_start(r, seed);
}

SHARED void rig_close(rig *r)
{
    lk_program_free(r->program);
    lk_store_free(r->store);
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) {
        size_t left = lk_context_memory(r->context, kind) - r->before[kind];
        CHECK(left == 0, "%s: %zu bytes are not freed", lk_memory_name(kind), left);
    }
    if (!r->borrowed) lk_context_free(r->context);
    *r = (rig){0};
}

SHARED lk_metrics rig_metrics(const rig *r)
{
    lk_metrics m;
    lk_program_metrics(r->program, &m);
    return m;
}

/* ---- a case: operands as parameters, and constant inputs ---- */

enum { MOST_OPERANDS = 16, MOST_INPUTS = 4 };

typedef struct cell {
    lk_graph *graph;
    lk_dtype  real;
    int       variant;
    values    kinds[MOST_OPERANDS]; /* by state, in the order of recording */
    int       operands;
    struct {
        char  name[16];
        void *data;
    } inputs[MOST_INPUTS];
    int inputs_count;
} cell;

#define DIMS(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define OPERAND(c, kind, ...) operand(c, kind, DIMS(__VA_ARGS__))

SHARED lk_tensor operand(cell *c, values kind, int rank, const int64_t *dims)
{
    char name[16];
    REQUIRE(c->operands < MOST_OPERANDS);
    snprintf(name, sizeof name, "p%d", c->operands);
    c->kinds[c->operands++] = kind;
    return lk_parameter(c->graph, name, rank, dims);
}

/* An i32 input of fixed size: value i is numbers[i % count]. */
SHARED lk_tensor integers(cell *c, const int *numbers, int count, int rank, const int64_t *dims)
{
    REQUIRE(c->inputs_count < MOST_INPUTS);
    int     index = c->inputs_count++;
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= dims[i];
    int32_t *data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = numbers[i % count];
    snprintf(c->inputs[index].name, sizeof c->inputs[index].name, "i%d", index);
    c->inputs[index].data = data;
    return lk_input(c->graph, c->inputs[index].name, LK_I32, rank, dims, .fixed = true);
}

/* A floating input of fixed size with given values. */
SHARED lk_tensor reals(cell *c, const double *numbers, int count)
{
    REQUIRE(c->inputs_count < MOST_INPUTS);
    int   index = c->inputs_count++;
    void *data = malloc((size_t)count * 8);
    for (int i = 0; i < count; i++) set_real(data, c->real, i, numbers[i]);
    snprintf(c->inputs[index].name, sizeof c->inputs[index].name, "i%d", index);
    c->inputs[index].data = data;
    return lk_input(c->graph, c->inputs[index].name, c->real, 1, &(int64_t){count}, .fixed = true);
}

/* The operands' values and the inputs; state i is drawn from seed + i. Buffers are not changed. */
SHARED void cell_fill(cell *c, rig *r, uint64_t seed)
{
    int operand_index = 0;
    for (size_t i = 0; i < lk_store_count(r->store); i++) {
        lk_state s = lk_store_at(r->store, i);
        if (s.buffer) continue;
        values  kind = operand_index < c->operands ? c->kinds[operand_index] : PLAIN;
        int64_t n = state_elements(&s);
        void   *data = copy_room(state_bytes(&s));
        for (int64_t j = 0; j < n; j++)
            set_real(data, s.dtype, j, value_of(kind, seed + (uint64_t)operand_index, j, n));
        write_state(r->store, &s, data);
        operand_index++;
    }
    for (int i = 0; i < c->inputs_count; i++)
        REQUIRE(lk_program_bind(r->program, c->inputs[i].name, c->inputs[i].data) == LK_OK, "%s",
                lk_context_error(r->context));
}

SHARED void cell_close(cell *c)
{
    for (int i = 0; i < c->inputs_count; i++) free(c->inputs[i].data);
}

/* sum(y * k) with fixed k of y's shape: every element of y counts differently. */
SHARED lk_tensor weighted_sum(cell *c, lk_tensor y)
{
    int64_t dims[LK_MAX_RANK];
    for (int i = 0; i < lk_tensor_rank(y); i++) dims[i] = lk_tensor_dim(y, i);
    lk_tensor k = lk_parameter(c->graph, "k", lk_tensor_rank(y), dims, .frozen = true);
    return lk_sum(lk_mul(y, k));
}

/* ---- values that PyTorch computed ---- */

SHARED uint64_t seed_of(const char *name) /* FNV-1a */
{
    uint64_t h = 0xCBF29CE484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return h;
}

SHARED lk__safetensors *golden_open(lk_context *context, const char *name)
{
    char             path[512];
    lk__safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/test/golden/%s", LK_SOURCE_DIR, name);
    REQUIRE(lk__safetensors_open(context, path, &file) == LK_OK, "%s", lk_context_error(context));
    return file;
}

/* A stored array of f64; the caller frees it. *count may be NULL. */
SHARED double *golden(lk__safetensors *file, const char *prefix, const char *name, int64_t *count)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const lk__safetensors_tensor *t = lk__safetensors_find(file, full);
    REQUIRE(t && t->dtype == LK_F64, "no \"%s\"", full);
    double *data = malloc(t->bytes ? t->bytes : 1);
    REQUIRE(lk__safetensors_read(file, t, 0, data, t->bytes) == LK_OK);
    if (count) *count = (int64_t)(t->bytes / sizeof *data);
    return data;
}

#endif
