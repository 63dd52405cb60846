/* guarded.c - a device for tests: the CPU's kernels over memory that is mapped twice. The address that callers see can
 * never be read or written; kernels, copies and sums add the offset to the second mapping, which can. So an access to a
 * tensor's memory that does not go through the device is a fault here, as it would be with a GPU, and results have the
 * CPU's bits.
 *
 * One region of addresses is reserved for all of a context's allocations, so that the offset is the same for all. It is
 * backed by a file in memory whose pages exist only where they are used. */
#define _GNU_SOURCE
#include "device/devices.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4096, TYPES = LK_DTYPE_COUNT };
static const size_t REGION = (size_t)1 << 36; /* bytes of addresses, twice */

typedef struct block {
    size_t offset, bytes; /* whole pages */
} block;

typedef struct guarded guarded;

/* A kernel of the CPU, as the device's calls find it. */
typedef struct guarded_kernel {
    guarded          *device;
    lk__device_kernel cpu;
} guarded_kernel;

struct guarded {
    lk__device      base;
    pthread_mutex_t lock; /* guards the blocks, and opening; a leaf */
    int             file;
    char           *seen, *readable; /* the two mappings; NULL until the first allocation */
    block          *blocks;          /* in use, by offset; mapped with the region */
    size_t          count;
    guarded_kernel  kernels[TYPES][LK__OP_COUNT];
};

static lk_status fail_address(guarded *g, const void *address, const char *what)
{
    return lk__fail(g->base.context, LK_EINVAL, "invalid address %p of %s: not in the memory of the device \"guarded\"",
                    address, what);
}

/* Where the device accesses what others see at `address`; NULL: it is not its memory. */
static void *translate(const guarded *g, const void *address)
{
    const char *at = address;
    return g->seen && at >= g->seen && at < g->seen + REGION ? g->readable + (at - g->seen) : NULL;
}

/* ---- memory ---- */

static lk_status reserve_region(guarded *g)
{
    if (g->seen) return LK_OK;
    size_t blocks = BLOCKS * sizeof *g->blocks;
    void  *seen = MAP_FAILED, *readable = MAP_FAILED, *list = MAP_FAILED;
    g->file = memfd_create("lockstep-guarded", MFD_CLOEXEC);
    if (g->file >= 0 && ftruncate(g->file, (off_t)REGION) == 0) {
        seen = mmap(NULL, REGION, PROT_NONE, MAP_SHARED | MAP_NORESERVE, g->file, 0);
        readable = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, g->file, 0);
        list = mmap(NULL, blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (seen != MAP_FAILED && readable != MAP_FAILED && list != MAP_FAILED) {
        g->seen = seen;
        g->readable = readable;
        g->blocks = list;
        return LK_OK;
    }
    int error = errno;
    if (seen != MAP_FAILED) munmap(seen, REGION);
    if (readable != MAP_FAILED) munmap(readable, REGION);
    if (g->file >= 0) close(g->file);
    g->file = -1;
    return lk__fail(g->base.context, LK_ENOMEM, "the device \"guarded\" cannot reserve its address range: %s",
                    strerror(error));
}

/* Inserts a block of whole pages into the first gap; its offset, or REGION where there is none. */
static size_t insert_block(guarded *g, size_t bytes)
{
    size_t at = 0, offset = 0;
    if (g->count == BLOCKS || bytes > REGION) return REGION;
    for (; at < g->count && g->blocks[at].offset - offset < bytes; at++)
        offset = g->blocks[at].offset + g->blocks[at].bytes;
    if (offset + bytes > REGION) return REGION;
    memmove(g->blocks + at + 1, g->blocks + at, (g->count - at) * sizeof *g->blocks);
    g->blocks[at] = (block){offset, bytes};
    g->count++;
    return offset;
}

static size_t whole_pages(size_t bytes) { return lk__round_up(bytes, (size_t)sysconf(_SC_PAGESIZE)); }

static void *guarded_alloc(lk__device *d, lk_memory kind, size_t bytes)
{
    guarded *g = (guarded *)d;
    pthread_mutex_lock(&g->lock);
    lk_status status = reserve_region(g);
    size_t    offset = status >= 0 ? insert_block(g, whole_pages(bytes)) : REGION;
    pthread_mutex_unlock(&g->lock);
    if (status >= 0 && offset == REGION)
        lk__fail(d->context, LK_ENOMEM, "out of memory: cannot allocate %.1f MiB for %s on the device \"guarded\"",
                 (double)bytes / 1048576.0, lk_memory_name(kind));
    if (offset == REGION) return NULL;
    lk__account_allocation(d->context, kind, bytes);
    return g->seen + offset; /* its pages are new, so zero */
}

static void guarded_free(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    guarded  *g = (guarded *)d;
    size_t    offset = (size_t)((char *)memory - g->seen), i = 0;
    const int frees_pages = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(g->file, frees_pages, (off_t)offset, (off_t)whole_pages(bytes)) != 0)
        memset(g->readable + offset, 0, bytes); /* the next user's memory is zero all the same */
    pthread_mutex_lock(&g->lock);
    while (i < g->count && g->blocks[i].offset != offset) i++;
    if (i < g->count) memmove(g->blocks + i, g->blocks + i + 1, (--g->count - i) * sizeof *g->blocks);
    pthread_mutex_unlock(&g->lock);
    lk__account(d->context, kind, -(ptrdiff_t)bytes);
}

static void *guarded_alloc_host(lk__device *d, lk_memory kind, size_t bytes)
{
    return lk__alloc(d->context, kind, bytes);
}
static void guarded_free_host(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    lk__free(d->context, kind, memory, bytes);
}

static lk_status guarded_copy_in(lk__device *d, lk__device_stream *stream, void *to, const void *host, size_t bytes)
{
    void *own = translate((guarded *)d, to);
    (void)stream;
    if (!own) return fail_address((guarded *)d, to, "the target of a copy");
    memcpy(own, host, bytes);
    return LK_OK;
}

static lk_status guarded_copy_out(lk__device *d, lk__device_stream *stream, void *host, const void *from, size_t bytes)
{
    const void *own = translate((guarded *)d, from);
    (void)stream;
    if (!own) return fail_address((guarded *)d, from, "the source of a copy");
    memcpy(host, own, bytes);
    return LK_OK;
}

static lk_status guarded_copy(lk__device *d, lk__device_stream *stream, void *to, const void *from, size_t bytes)
{
    const void *own = translate((guarded *)d, from);
    return own ? guarded_copy_in(d, stream, to, own, bytes) : fail_address((guarded *)d, from, "the source of a copy");
}

static lk_status guarded_fill(lk__device *d, lk__device_stream *stream, void *memory, int byte, size_t bytes)
{
    void *own = translate((guarded *)d, memory);
    (void)stream;
    if (!own) return fail_address((guarded *)d, memory, "the memory to fill");
    memset(own, byte, bytes);
    return LK_OK;
}

/* ---- kernels ---- */

static lk_status translate_operands(guarded *g, const lk__kernel_call *call, lk__kernel_call *own)
{
    for (int i = 0; i < call->inputs + call->outputs; i++) {
        lk__kernel_operand *o = i < call->inputs ? &own->in[i] : &own->out[i - call->inputs];
        if (!o->data) continue;
        void *data = translate(g, o->data);
        if (!data)
            return fail_address(g, o->data, i < call->inputs ? "the input of a kernel" : "the output of a kernel");
        o->data = data;
    }
    return LK_OK;
}

/* What a kernel reads besides its operands: the samples' ids and the sums of leaves. What describes the call
 * (attributes, the step's numbers, the rows of leaves) is the host's. */
static lk_status run_guarded(const lk__kernel_call *call)
{
    const guarded_kernel *kernel = call->prepared;
    guarded              *g = kernel->device;
    lk__kernel_call       own = *call;
    lk__kernel_step       step;
    lk__kernel_leaves     leaves;
    lk_status             status = translate_operands(g, call, &own);
    if (status < 0) return status;
    own.prepared = kernel->cpu.entry;
    if (call->workspace && !(own.workspace = translate(g, call->workspace)))
        return fail_address(g, call->workspace, "the workspace of a kernel");
    if (call->step && call->step->sample_ids) {
        step = *call->step;
        own.step = &step;
        if (!(step.sample_ids = translate(g, call->step->sample_ids)))
            return fail_address(g, call->step->sample_ids, "the ids of the samples");
    }
    if (call->leaves) {
        leaves = *call->leaves;
        own.leaves = &leaves;
        if (!(leaves.sums = translate(g, call->leaves->sums)))
            return fail_address(g, call->leaves->sums, "the sums of leaves");
    }
    if (!call->invalid) return kernel->cpu.run(&own);
    if (!(own.invalid = translate(g, call->invalid)))
        return fail_address(g, call->invalid, "the record of invalid ids");
    bool found = own.invalid->found;
    status = kernel->cpu.run(&own);
    if (own.invalid->found && !found) /* others know ids by the address that they see */
        own.invalid->at = (const int32_t *)(g->seen + ((const char *)own.invalid->at - g->readable));
    return status;
}

static lk_status prepare_guarded(lk__device *d, const lk__device_kernel *kernel, lk__kernel_call *call)
{
    (void)d;
    call->prepared = kernel->entry;
    return LK_OK;
}

static lk__device_kernel guarded_find(lk__device *d, lk__op op, lk_dtype element, const lk__kernel_call *call)
{
    guarded          *g = (guarded *)d;
    guarded_kernel   *kernel = &g->kernels[element][op];
    lk__device_kernel cpu = lk__device_cpu.kernels.find(d, op, element, call);
    if (!cpu.run) return cpu;
    pthread_mutex_lock(&g->lock);
    if (!kernel->device) *kernel = (guarded_kernel){g, cpu};
    pthread_mutex_unlock(&g->lock);
    return (lk__device_kernel){run_guarded, cpu.workspace, prepare_guarded, kernel};
}

/* ---- sums, hashes, checks ---- */

static lk_status guarded_add(lk__device *d, lk__device_stream *stream, void *out, const void *const *in, int n,
                             size_t count, lk_dtype type)
{
    guarded    *g = (guarded *)d;
    const void *own[LK__DEVICE_ADDENDS];
    void       *to = translate(g, out);
    for (int i = 0; i < n; i++)
        if (!(own[i] = translate(g, in[i]))) return fail_address(g, in[i], "an array to add");
    return to ? lk__device_cpu.kernels.add(d, stream, to, own, n, count, type) : fail_address(g, out, "a sum");
}

static lk_status guarded_hash(lk__device *d, const void *memory, size_t bytes, uint64_t seed, uint64_t *hash)
{
    const void *own = bytes ? translate((guarded *)d, memory) : memory;
    if (!own && bytes) return fail_address((guarded *)d, memory, "the data to hash");
    return lk__device_cpu.kernels.hash(d, own, bytes, seed, hash);
}

static lk_status guarded_finite(lk__device *d, const void *memory, int64_t elements, lk_dtype type, bool *finite)
{
    const void *own = elements ? translate((guarded *)d, memory) : memory;
    if (!own && elements) return fail_address((guarded *)d, memory, "the data to check");
    return lk__device_cpu.kernels.finite(d, own, elements, type, finite);
}

/* ---- opening; streams, events and what the planner asks are the CPU's ---- */

static lk_status guarded_open(lk_context *c, int number, lk__device **device)
{
    guarded *g = lk__alloc(c, LK_MEMORY_OTHER, sizeof *g);
    (void)number;
    if (!g) return LK_ENOMEM;
    g->base = (lk__device){.backend = &lk__device_guarded, .context = c};
    g->file = -1;
    pthread_mutex_init(&g->lock, NULL);
    *device = &g->base;
    return LK_OK;
}

static void guarded_close(lk__device *d)
{
    guarded *g = (guarded *)d;
    if (g->seen) {
        munmap(g->seen, REGION);
        munmap(g->readable, REGION);
        munmap(g->blocks, BLOCKS * sizeof *g->blocks);
        close(g->file);
    }
    pthread_mutex_destroy(&g->lock);
    lk__free(d->context, LK_MEMORY_OTHER, g, sizeof *g);
}

static lk_status stream_create(lk__device *d, lk__device_stream **stream)
{
    return lk__device_cpu.memory.stream_create(d, stream);
}
static void      stream_free(lk__device *d, lk__device_stream *stream) { lk__device_cpu.memory.stream_free(d, stream); }
static lk_status stream_wait(lk__device *d, lk__device_stream *stream)
{
    return lk__device_cpu.memory.stream_wait(d, stream);
}
static lk_status event_create(lk__device *d, lk__device_event **event)
{
    return lk__device_cpu.memory.event_create(d, event);
}
static void      event_free(lk__device *d, lk__device_event *event) { lk__device_cpu.memory.event_free(d, event); }
static lk_status event_use(lk__device *d, lk__device_event *event, lk__device_stream *stream)
{
    return lk__device_cpu.memory.event_record(d, event, stream);
}
static lk_status event_sync(lk__device *d, lk__device_event *event)
{
    return lk__device_cpu.memory.event_sync(d, event);
}
const lk__device_backend lk__device_guarded = {
    .name = "guarded",
    .text = "the CPU with memory that only its kernels can access, to test that nothing else accesses it",
    .open = guarded_open,
    .close = guarded_close,
    .memory =
        {
            .host = false,
            .alloc = guarded_alloc,
            .free = guarded_free,
            .alloc_host = guarded_alloc_host,
            .free_host = guarded_free_host,
            .copy_in = guarded_copy_in,
            .copy_out = guarded_copy_out,
            .copy = guarded_copy,
            .fill = guarded_fill,
            .stream_create = stream_create,
            .stream_free = stream_free,
            .stream_wait = stream_wait,
            .event_create = event_create,
            .event_free = event_free,
            .event_record = event_use,
            .event_wait = event_use,
            .event_sync = event_sync,
        },
    .kernels =
        {
            .rates = {30e9, 10e9}, /* the CPU's, so that plans are equal */
            .find = guarded_find,
            .add = guarded_add,
            .hash = guarded_hash,
            .finite = guarded_finite,
            .fusions = lk__cpu_fusions,
            .channels_last = true,
            .wide_images = true,
            .rounded_products = true,
            .sums_in_parts = true,
            .host_isa = true,
        },
};

static const lk__device_backend *guarded_load(lk_context *c)
{
    (void)c;
    return &lk__device_guarded;
}

const lk__device_entry lk__device_entry_guarded = {
    .name = "guarded",
    .text = "the CPU with memory that only its kernels can access, to test that nothing else accesses it",
    .on_host = true,
    .load = guarded_load,
};
