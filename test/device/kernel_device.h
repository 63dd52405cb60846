/* kernel_device.h - runs one call of a kernel on the device that LOCKSTEP_DEVICE names, where that is not the CPU.
 * Every operand, the workspace, the step block and the report of ids are copied to the device, with a guard behind
 * each, and back. Also notes which operations have run, for test_kernels_covered.c.
 *
 * All of them are parts of one allocation, which later calls use again, and there is one copy to the device and one
 * back: an allocation and a wait for each operand take a hundred times as long as the kernel. With LK_TEST_MEMORY=apart
 * each has an allocation of its own, so that the emulation and compute-sanitizer find the first access outside of it;
 * where there is a driver, memory that a kernel is to write before it reads it stays uninitialised, for
 * compute-sanitizer's initcheck. */
#ifndef KERNEL_DEVICE_H
#define KERNEL_DEVICE_H

#include "check.h"
#include "device/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_GUARD = 64 }; /* bytes behind each operand on the host, too */

static lk__device        *kernel_device; /* NULL: the kernels of the CPU's tables are tested */
static lk__device_stream *kernel_stream;
static bool               kernel_ran[LK_DTYPE_COUNT][LK__OP_COUNT];

/* Emulated, under a checking tool, or with sanitizers. */
static inline bool is_slow(void) { return SANITIZED || getenv("LK_TEST_SLOW"); }
/* How often to repeat what is drawn: a fraction where the device is slow. */
static inline int repetitions(int usual) { return is_slow() ? usual / 12 : usual; }

static inline void require_device(lk_status status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "FAIL %s: %s\n", what, lk_context_error(kernel_device->context));
    exit(1);
}

/* After the context was made: sets kernel_device where the device is not the CPU. */
static inline void open_kernel_device(lk_context *context)
{
    lk__device *device = lk__context_device(context);
    if (lk__device_is_host(device)) return;
    kernel_device = device;
    require_device(device->backend->memory.stream_create(device, &kernel_stream), "a stream");
}

/* One line for each operation and type that has run, in a file of LK_KERNELS_RAN, a directory. */
static inline void list_kernels_ran(const char *source)
{
    const char *directory = getenv("LK_KERNELS_RAN"), *name = strrchr(source, '/');
    char        path[4096];
    if (!directory || !*directory) return;
    snprintf(path, sizeof path, "%s/%s", directory, name ? name + 1 : source);
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "FAIL %s: %s\n", path, strerror(errno));
        exit(1);
    }
    for (int type = 0; type < LK_DTYPE_COUNT; type++)
        for (int op = 0; op < LK__OP_COUNT; op++)
            if (kernel_ran[type][op]) fprintf(file, "%s %s\n", lk__op_name((lk__op)op), lk_dtype_name((lk_dtype)type));
    fclose(file);
}

/* ---- memory of a call ---- */

/* What is copied to the device before a call and back after it. */
typedef struct device_block {
    char  *data; /* on the device */
    void  *host; /* `bytes`, and a guard behind them; NULL: the workspace, of which only the guard comes back */
    size_t bytes;
    bool   output; /* and no input */
    size_t at;     /* in the arena */
    char  *memory; /* an allocation of its own */
} device_block;

enum { ARENA_UNIT = 256, ARENA_FIRST = 16 << 20 };
static struct arena {
    char  *device, *host; /* host: pinned, and the same offsets */
    size_t bytes;
} kernel_arena;

static inline void free_arena(void)
{
    if (!kernel_arena.bytes) return;
    lk__device_free(kernel_device, LK_MEMORY_OTHER, kernel_arena.device, kernel_arena.bytes);
    kernel_device->backend->memory.free_host(kernel_device, LK_MEMORY_OTHER, kernel_arena.host, kernel_arena.bytes);
    kernel_arena = (struct arena){0};
}

static inline void reserve_arena(size_t bytes)
{
    if (bytes <= kernel_arena.bytes) return;
    size_t more = kernel_arena.bytes ? 2 * kernel_arena.bytes : ARENA_FIRST;
    free_arena();
    kernel_arena.bytes = bytes > more ? bytes : more;
    require_device(lk__device_alloc(kernel_device, LK_MEMORY_OTHER, kernel_arena.bytes, &kernel_arena.device),
                   "memory of the device");
    kernel_arena.host = kernel_device->backend->memory.alloc_host(kernel_device, LK_MEMORY_OTHER, kernel_arena.bytes);
    require_device(kernel_arena.host ? LK_OK : LK_ENOMEM, "pinned memory");
}

/* Addresses that are multiples of ARENA_UNIT or, with `odd`, of LK__ALIGN and nothing larger. */
static inline void place_in_arena(device_block *blocks, int count, bool odd)
{
    size_t end = 0;
    for (int i = 0; i < count; i++) {
        blocks[i].at = lk__round_up(end, ARENA_UNIT) + (odd ? LK__ALIGN : 0);
        end = blocks[i].at + blocks[i].bytes + KERNEL_GUARD;
    }
    reserve_arena(end);
    for (int i = 0; i < count; i++) blocks[i].data = kernel_arena.device + blocks[i].at;
}

/* One copy, and the workspace, which is the last block, is filled there. */
static inline void send_arena(const device_block *blocks, int count)
{
    const lk__device_backend *backend = kernel_device->backend;
    const device_block       *workspace = &blocks[count - 1];
    size_t                    end = 0;
    for (int i = 0; i < count; i++) {
        memset(kernel_arena.host + end, 0xA5, blocks[i].at - end);
        if (blocks[i].host) memcpy(kernel_arena.host + blocks[i].at, blocks[i].host, blocks[i].bytes + KERNEL_GUARD);
        end = blocks[i].at + blocks[i].bytes + KERNEL_GUARD;
    }
    require_device(
        backend->memory.copy_in(kernel_device, kernel_stream, kernel_arena.device, kernel_arena.host, workspace->at),
        "a copy");
    require_device(
        backend->memory.fill(kernel_device, kernel_stream, workspace->data, 0xA5, workspace->bytes + KERNEL_GUARD),
        "filling memory");
}

/* guard: what is behind the workspace. */
static inline void receive_arena(const device_block *blocks, int count, unsigned char guard[KERNEL_GUARD])
{
    const device_block *workspace = &blocks[count - 1];
    char               *end = kernel_arena.host + workspace->at; /* of what was sent: room for the guard */
    require_device(kernel_device->backend->memory.copy_out(kernel_device, kernel_stream, kernel_arena.host,
                                                           kernel_arena.device, workspace->at),
                   "a copy");
    require_device(lk__device_read(kernel_device, kernel_stream, end, workspace->data + workspace->bytes, KERNEL_GUARD),
                   "a copy");
    for (int i = 0; i < count - 1; i++)
        memcpy(blocks[i].host, kernel_arena.host + blocks[i].at, blocks[i].bytes + KERNEL_GUARD);
    memcpy(guard, end, KERNEL_GUARD);
}

/* ---- with LK_TEST_MEMORY=apart ---- */

static inline bool memory_is_apart(void)
{
    const char *memory = getenv("LK_TEST_MEMORY");
    return memory && strcmp(memory, "apart") == 0;
}

/* The driver's functions to allocate and free; NULL: no driver is loaded, as in the emulation. */
typedef int (*driver_alloc)(unsigned long long *memory, size_t bytes);
typedef int (*driver_free)(unsigned long long memory);
static inline void *find_in_driver(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *symbol = driver ? dlsym(driver, name) : NULL;
    if (driver) dlclose(driver);
    return symbol;
}

/* An allocation for each block, with the guard behind it; without one where the driver allocates exactly its size. */
static inline void place_apart(device_block *blocks, int count, bool odd)
{
    void              *symbol = find_in_driver("cuMemAlloc_v2");
    driver_alloc       alloc;
    unsigned long long address = 0;
    size_t             offset = odd ? LK__ALIGN : 0;
    memcpy(&alloc, &symbol, sizeof alloc); /* ISO C has no cast from data to function pointers */
    for (device_block *b = blocks; b < blocks + count; b++) {
        b->at = offset + b->bytes + (symbol ? 0 : KERNEL_GUARD); /* here: the bytes of the allocation */
        if (b->at == 0) b->at = 1;
        if (symbol) {
            require_device(alloc(&address, b->at) == 0 ? LK_OK : LK_ENOMEM, "memory of the driver");
            b->memory = (char *)(uintptr_t)address;
        } else {
            require_device(lk__device_alloc(kernel_device, LK_MEMORY_OTHER, b->at, &b->memory), "memory of the device");
        }
        b->data = b->memory + offset;
    }
}

/* Whether a test filled an output with 0xA5 or 0xff, because a kernel is to write all of it. */
static inline bool is_poison(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        if ((p[i] != 0xA5 && p[i] != 0xff) || p[i] != p[0]) return false;
    return true;
}

static inline void send_apart(const device_block *blocks, int count)
{
    bool   exact = find_in_driver("cuMemAlloc_v2");
    size_t guard = exact ? 0 : KERNEL_GUARD;
    for (const device_block *b = blocks; b < blocks + count; b++) {
        if (exact && (!b->host || (b->output && is_poison(b->host, b->bytes)))) continue; /* stays uninitialised */
        if (b->host)
            require_device(lk__device_write(kernel_device, kernel_stream, b->data, b->host, b->bytes + guard),
                           "a copy");
        else
            require_device(
                kernel_device->backend->memory.fill(kernel_device, kernel_stream, b->data, 0xA5, b->bytes + guard),
                "filling memory");
    }
}

static inline void receive_apart(const device_block *blocks, int count, unsigned char guard[KERNEL_GUARD])
{
    void       *symbol = find_in_driver("cuMemFree_v2");
    driver_free release;
    size_t      behind = symbol ? 0 : KERNEL_GUARD;
    memcpy(&release, &symbol, sizeof release);
    memset(guard, 0xA5, KERNEL_GUARD);
    for (const device_block *b = blocks; b < blocks + count; b++) {
        const char *from = b->host ? b->data : b->data + b->bytes;
        size_t      bytes = (b->host ? b->bytes : 0) + behind;
        require_device(lk__device_read(kernel_device, kernel_stream, b->host ? b->host : guard, from, bytes), "a copy");
        if (symbol)
            require_device(release((uintptr_t)b->memory) == 0 ? LK_OK : LK_EIO, "memory of the driver");
        else
            lk__device_free(kernel_device, LK_MEMORY_OTHER, b->memory, b->at);
    }
}

static inline void close_kernel_device(void)
{
    if (!kernel_device) return;
    free_arena();
    kernel_device->backend->memory.stream_free(kernel_device, kernel_stream);
    kernel_device = NULL;
}

/* ---- a call ---- */

static inline size_t operand_bytes(const lk__kernel_operand *o)
{
    return (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype);
}

static inline int64_t whole_number_of(const char *variable, int64_t otherwise)
{
    const char *value = getenv(variable);
    return value && *value ? strtoll(value, NULL, 10) : otherwise;
}

/* Whether a case runs on the device. Under compute-sanitizer, where all of them take hours, the CPU computes some of
 * them: with LK_TEST_ELEMENTS=N those whose operands have more than N elements, with LK_TEST_EVERY=K all but each K-th
 * of an operation and type. */
static inline bool runs_on_device(lk__op op, lk_dtype element, const lk__kernel_operand *in, int inputs,
                                  const lk__kernel_operand *out, int outputs)
{
    static int64_t seen[LK__OP_COUNT][LK_DTYPE_COUNT];
    int64_t        elements = 0;
    if (!kernel_device) return false;
    for (int k = 0; k < inputs; k++) elements += in[k].data ? lk__operand_elements(&in[k]) : 0;
    for (int k = 0; k < outputs; k++) elements += out[k].data ? lk__operand_elements(&out[k]) : 0;
    return elements <= whole_number_of("LK_TEST_ELEMENTS", INT64_MAX) &&
           seen[op][element]++ % whole_number_of("LK_TEST_EVERY", 1) == 0;
}

/* The call's shapes, without data, as the planner asks a kernel. */
static inline lk__kernel_call shapes_of(const lk__kernel_call *call)
{
    lk__kernel_call shapes = *call;
    for (int i = 0; i < call->inputs; i++) shapes.in[i].data = call->in[i].data ? (void *)1 : NULL;
    for (int i = 0; i < call->outputs; i++) shapes.out[i].data = call->out[i].data ? (void *)1 : NULL;
    shapes.device = kernel_device;
    shapes.stream = kernel_stream;
    shapes.workspace = NULL;
    return shapes;
}

/* The blocks of a call: operands (an output at the address of an input is that one), sample ids, the step block, the
 * report of ids and the workspace, in this order. owners[k]: the block of operand k, -1: it has no data. */
enum { KERNEL_OPERANDS = LK__MAX_IN + LK__MAX_OUT, KERNEL_BLOCKS = KERNEL_OPERANDS + 4 };
typedef struct kernel_blocks {
    device_block block[KERNEL_BLOCKS];
    int          owners[KERNEL_OPERANDS], count;
} kernel_blocks;

static inline device_block *add_block(kernel_blocks *b, void *host, size_t bytes)
{
    b->block[b->count] = (device_block){.host = host, .bytes = bytes};
    return &b->block[b->count++];
}

static inline void add_operand_blocks(kernel_blocks *b, const lk__kernel_call *host)
{
    for (int k = 0; k < host->inputs + host->outputs; k++) {
        const lk__kernel_operand *o = k < host->inputs ? &host->in[k] : &host->out[k - host->inputs];
        b->owners[k] = -1;
        for (int same = 0; o->data && k >= host->inputs && same < host->inputs && b->owners[k] < 0; same++)
            if (host->in[same].data == o->data) b->owners[k] = b->owners[same];
        if (!o->data || b->owners[k] >= 0) continue;
        b->owners[k] = b->count;
        add_block(b, o->data, operand_bytes(o))->output = k >= host->inputs;
    }
}

/* The report of ids names addresses of the device: those of the host instead. */
static inline void translate_report(lk__kernel_invalid_id *found, const kernel_blocks *b, int inputs)
{
    for (int k = 0; k < inputs && found->found; k++) {
        const device_block *block = b->owners[k] < 0 ? NULL : &b->block[b->owners[k]];
        const char         *at = (const char *)found->at;
        if (!block || at < block->data || at >= block->data + block->bytes) continue;
        found->at = (const int32_t *)(void *)((char *)block->host + (at - block->data));
        return;
    }
}

/* Runs a call whose operands are the host's, each with KERNEL_GUARD bytes behind it, which are copied, too. An output
 * at the address of an input is one on the device. `capacity`: shapes for the workspace, NULL: the call's own. The
 * report of ids names addresses of the host. NULL, or what is wrong. */
static inline const char *run_on_device(lk__op op, lk_dtype element, const lk__kernel_call *host,
                                        const lk__kernel_call *capacity, bool odd)
{
    lk__kernel_call   shapes = shapes_of(capacity ? capacity : host), call = *host;
    lk__device_kernel kernel = kernel_device->backend->kernels.find(kernel_device, op, element, &shapes);
    lk__kernel_step   numbers = host->step ? *host->step : (lk__kernel_step){0};
    kernel_blocks     b = {.count = 0};
    device_block     *ids = NULL, *step, *report, *workspace;
    unsigned char     step_bytes[sizeof numbers + KERNEL_GUARD] = {0};
    unsigned char     report_bytes[sizeof(lk__kernel_invalid_id) + KERNEL_GUARD] = {0}, *ids_bytes = NULL;
    unsigned char     guard[KERNEL_GUARD];
    bool              apart = memory_is_apart();
    const char       *wrong = NULL;
    if (!kernel.run) return "the device has no kernel";
    if (kernel.prepare) require_device(kernel.prepare(kernel_device, &kernel, &shapes), "preparing a kernel");

    add_operand_blocks(&b, host);
    if (numbers.sample_ids) {
        size_t bytes = (size_t)numbers.count * sizeof *numbers.sample_ids;
        ids_bytes = calloc(1, bytes + KERNEL_GUARD);
        memcpy(ids_bytes, numbers.sample_ids, bytes);
        ids = add_block(&b, ids_bytes, bytes);
    }
    step = add_block(&b, step_bytes, sizeof numbers);
    report = add_block(&b, report_bytes, sizeof(lk__kernel_invalid_id));
    workspace = add_block(&b, NULL, kernel.workspace ? kernel.workspace(&shapes, 1) : 0);
    (apart ? place_apart : place_in_arena)(b.block, b.count, odd);
    if (ids) numbers.sample_ids = (const int64_t *)(void *)ids->data;
    memcpy(step_bytes, &numbers, sizeof numbers);
    (apart ? send_apart : send_arena)(b.block, b.count);

    for (int k = 0; k < call.inputs + call.outputs; k++)
        if (b.owners[k] >= 0)
            (k < call.inputs ? &call.in[k] : &call.out[k - call.inputs])->data = b.block[b.owners[k]].data;
    call.prepared = shapes.prepared;
    call.device = kernel_device;
    call.stream = kernel_stream;
    call.workspace = workspace->data;
    call.step_memory = (const lk__kernel_step *)(void *)step->data;
    call.step = &numbers;
    call.invalid = (lk__kernel_invalid_id *)(void *)report->data;
    if (kernel.run(&call) < 0) {
        fprintf(stderr, "%s: %s\n", lk__op_name(op), lk_context_error(kernel_device->context));
        wrong = "the kernel failed";
    }
    kernel_ran[element][op] = true;

    (apart ? receive_apart : receive_arena)(b.block, b.count, guard);
    for (size_t i = 0; i < KERNEL_GUARD && !wrong; i++)
        if (guard[i] != 0xA5) wrong = "wrote past its workspace";
    if (host->invalid) {
        memcpy(host->invalid, report_bytes, sizeof *host->invalid);
        translate_report(host->invalid, &b, call.inputs);
    }
    free(ids_bytes);
    return wrong;
}

#endif
