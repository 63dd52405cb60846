/* cpu.c - the CPU as a device: the host's memory, kernels from a table by operation, element type and instruction set,
 * and everything done before a call returns. */
#include "device/custom.h"
#include "device/devices.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "base/isa.h"
#include "base/isa_list.h"
#include "base/reduce.h"

#include <string.h>

/* A table for each instruction set and each type that it has kernels for. */
#define COMPUTED_TABLE_ALL(X, isa, element) X(isa, element)
#define COMPUTED_TABLE_BF16(X, isa, element)
#define COMPUTED_TABLE(isa, types, extended, has, use, X, element) COMPUTED_TABLE_##types(X, isa, element)
#define STORED_TABLE(isa, types, extended, has, use, X, element) X(isa, element)
#define EACH_TABLE_COMPUTED(X, element) LK__ISA_LIST(COMPUTED_TABLE, X, element)
#define EACH_TABLE_STORED(X, element) LK__ISA_LIST(STORED_TABLE, X, element)
#define EACH_TABLE_EXCHANGED(X, element)
#define EACH_TABLE_INTEGER(X, element)

#define DECLARE_TABLE(isa, element) extern const lk__kernel_entry lk__table_##element##_##isa[LK__OP_COUNT];
#define DECLARE_TABLES(id, name, bytes, kind, ...) EACH_TABLE_##kind(DECLARE_TABLE, name)
LK__DTYPE_LIST(DECLARE_TABLES)

static const struct {
    const char             *element, *isa;
    const lk__kernel_entry *table;
} tables[] = {
#define TABLE_ROW(isa, element) {#element, #isa, lk__table_##element##_##isa},
#define TABLE_ROWS(id, name, bytes, kind, ...) EACH_TABLE_##kind(TABLE_ROW, name)
    LK__DTYPE_LIST(TABLE_ROWS)};

const lk__kernel_entry *lk__cpu_kernels(lk_dtype element, const char *isa)
{
    for (; isa; isa = lk__isa_extended(isa))
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            if (strcmp(tables[i].element, lk_dtype_name(element)) == 0 && strcmp(tables[i].isa, isa) == 0)
                return tables[i].table;
    return NULL;
}

const lk__kernel_entry *lk__cpu_kernel(lk_dtype element, const char *isa, lk__op op)
{
    for (; isa; isa = lk__isa_extended(isa)) {
        const lk__kernel_entry *table = lk__cpu_kernels(element, isa);
        if (table && table[op].run) return &table[op];
    }
    return NULL;
}

/* ---- memory ---- */

static void *cpu_alloc(lk__device *d, lk_memory kind, size_t bytes) { return lk__alloc(d->context, kind, bytes); }
static void  cpu_free(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    lk__free(d->context, kind, memory, bytes);
}

static lk_status cpu_copy(lk__device *d, lk__device_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)d, (void)stream;
    memcpy(to, from, bytes);
    return LK_OK;
}

static lk_status cpu_fill(lk__device *d, lk__device_stream *stream, void *memory, int byte, size_t bytes)
{
    (void)d, (void)stream;
    memset(memory, byte, bytes);
    return LK_OK;
}

/* ---- streams and events: there is nothing to wait for ---- */

static lk_status cpu_stream_create(lk__device *d, lk__device_stream **stream)
{
    (void)d;
    *stream = NULL;
    return LK_OK;
}
static void      cpu_stream_free(lk__device *d, lk__device_stream *stream) { (void)d, (void)stream; }
static lk_status cpu_stream_wait(lk__device *d, lk__device_stream *stream)
{
    (void)d, (void)stream;
    return LK_OK;
}
static lk_status cpu_event_create(lk__device *d, lk__device_event **event)
{
    (void)d;
    *event = NULL;
    return LK_OK;
}
static void      cpu_event_free(lk__device *d, lk__device_event *event) { (void)d, (void)event; }
static lk_status cpu_event(lk__device *d, lk__device_event *event, lk__device_stream *stream)
{
    (void)d, (void)event, (void)stream;
    return LK_OK;
}

static lk_status cpu_event_sync(lk__device *d, lk__device_event *event)
{
    (void)d, (void)event;
    return LK_OK;
}

/* ---- kernels ---- */

/* The table's kernels cannot fail: what they find wrong in their operands is in call->invalid. */
static lk_status run_kernel(const lk__kernel_call *call)
{
    ((const lk__kernel_entry *)call->prepared)->run(call);
    return LK_OK;
}

static lk_status prepare_kernel(lk__device *d, const lk__device_kernel *kernel, lk__kernel_call *call)
{
    (void)d;
    call->prepared = kernel->entry;
    return LK_OK;
}

/* Every table has casts: those of the narrower type's, whose instruction set may have instructions for them. */
static lk_dtype narrower_type(lk_dtype element, const lk__kernel_call *call)
{
    lk_dtype from = call->in[0].dtype, to = call->out[0].dtype;
    return lk__is_narrow(to) ? to : lk__is_narrow(from) ? from : element;
}

static lk__device_kernel cpu_find(lk__device *d, lk__op op, lk_dtype element, const lk__kernel_call *call)
{
    if (op == LK__OP_cast) element = narrower_type(element, call);
    if (call->custom) return lk__custom_kernel(op);
    /* One kernel for all shapes: it chooses by them itself. */
    const lk__kernel_entry *entry = lk__cpu_kernel(element, lk_context_isa(d->context), op);
    if (!entry) return (lk__device_kernel){0};
    return (lk__device_kernel){run_kernel, entry->workspace, prepare_kernel, entry};
}

/* ---- sums, hashes, checks ---- */

enum { TILE = 16384 }; /* elements that one thread adds at a time */

typedef struct addition {
    char              *out;
    const void *const *in;
    int                n;
    size_t             count;
    lk_dtype           type;
} addition;

static void add_tile(void *argument, int64_t tile, int worker)
{
    const addition *a = argument;
    size_t          begin = (size_t)tile * TILE, size = lk_dtype_size(a->type);
    size_t          count = a->count - begin < TILE ? a->count - begin : TILE;
    const void     *in[LK__DEVICE_ADDENDS];
    (void)worker;
    for (int i = 0; i < a->n; i++) in[i] = (const char *)a->in[i] + begin * size;
    lk__reduce(a->out + begin * size, in, a->n, count, a->type, LK_SUM);
}

static lk_status cpu_add(lk__device *d, lk__device_stream *stream, void *out, const void *const *in, int n,
                         size_t count, lk_dtype type)
{
    addition a = {out, in, n, count, type};
    (void)stream;
    lk__pool_run(lk__context_pool(d->context), (int64_t)((count + TILE - 1) / TILE), add_tile, &a);
    return LK_OK;
}

static lk_status cpu_hash(lk__device *d, const void *memory, size_t bytes, uint64_t seed, uint64_t *hash)
{
    (void)d;
    *hash = lk__hash64(memory, bytes, seed);
    return LK_OK;
}

#define DEFINE_FINITE(id, name, bytes, kind, sums, memory, number, load, ...)   \
    static bool is_finite_##name(const memory *x, int64_t n)                    \
    {                                                                           \
        bool finite = true; /* infinity less infinity is NaN */                 \
        for (int64_t i = 0; i < n; i++) finite &= load(x[i]) - load(x[i]) == 0; \
        return finite;                                                          \
    }
LK__DTYPE_LIST(DEFINE_FINITE)

static lk_status cpu_finite(lk__device *d, const void *memory, int64_t elements, lk_dtype type, bool *finite)
{
    (void)d;
    switch (type) {
#define FINITE_CASE(id, name, ...) \
    case LK_##id: *finite = is_finite_##name(memory, elements); break;
        LK__DTYPE_LIST(FINITE_CASE)
    case LK_DTYPE_COUNT: *finite = true; break;
    }
    return LK_OK;
}

/* ---- what the planner asks ---- */

const lk__device_fusion lk__cpu_fusions[] = {
    {LK__OP_linear, LK__FUSION_FUNCTION, LK__FUSED_FUNCTIONS, 0},
    {LK__OP_conv2d, LK__FUSION_FUNCTION, LK__FUSED_FUNCTIONS, 0},
    {LK__OP_batch_norm, LK__FUSION_FUNCTION, LK__FUSED_FUNCTIONS, 0},
    {LK__OP_batch_norm_eval, LK__FUSION_FUNCTION, LK__FUSED_FUNCTIONS, 0},
    {LK__OP_conv2d, LK__FUSION_MAX_POOL, 0, 0},
    {LK__OP_COUNT, (lk__fusion_kind)0, 0, 0},
};

static lk_status cpu_open(lk_context *c, int number, lk__device **device)
{
    lk__device *d = *device = lk__alloc(c, LK_MEMORY_OTHER, sizeof *d);
    (void)number;
    if (!d) return LK_ENOMEM;
    *d = (lk__device){.backend = &lk__device_cpu, .context = c};
    return LK_OK;
}

static void cpu_close(lk__device *d) { lk__free(d->context, LK_MEMORY_OTHER, d, sizeof *d); }

const lk__device_backend lk__device_cpu = {
    .name = "cpu",
    .text = "the processor's cores",
    .open = cpu_open,
    .close = cpu_close,
    .memory =
        {
            .host = true,
            .alloc = cpu_alloc,
            .free = cpu_free,
            .alloc_host = cpu_alloc,
            .free_host = cpu_free,
            .copy_in = cpu_copy,
            .copy_out = cpu_copy,
            .copy = cpu_copy,
            .fill = cpu_fill,
            .stream_create = cpu_stream_create,
            .stream_free = cpu_stream_free,
            .stream_wait = cpu_stream_wait,
            .event_create = cpu_event_create,
            .event_free = cpu_event_free,
            .event_record = cpu_event,
            .event_wait = cpu_event,
            .event_sync = cpu_event_sync,
        },
    .kernels =
        {
            .rates = {30e9, 10e9},
            .find = cpu_find,
            .add = cpu_add,
            .hash = cpu_hash,
            .finite = cpu_finite,
            .fusions = lk__cpu_fusions,
            .channels_last = true,
            .wide_images = true,
            .rounded_products = true,
            .sums_in_parts = true,
            .host_isa = true,
        },
};

static const lk__device_backend *cpu_load(lk_context *c)
{
    (void)c;
    return &lk__device_cpu;
}

const lk__device_entry lk__device_entry_cpu = {
    .name = "cpu", .text = "the processor's cores", .help = "cpu", .on_host = true, .preference = 1, .load = cpu_load};
