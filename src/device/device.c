/* device.c - the devices of this build, opened by name, and what is the same for all of them. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lk__device_backend *const backends[] = {&lk__device_cpu, &lk__device_guarded};
enum { BACKENDS = sizeof backends / sizeof *backends };

const char *lk_device_name(size_t i) { return i < BACKENDS ? backends[i]->name : NULL; }
const char *lk_device_text(size_t i) { return i < BACKENDS ? backends[i]->text : NULL; }

lk_status lk__device_open(lk_context *c, const char *name, lk__device **device)
{
    const char *chosen = name ? name : getenv("LOCKSTEP_DEVICE");
    *device = NULL;
    if (!chosen || (!name && !*chosen)) chosen = lk__device_cpu.name;
    for (size_t i = 0; i < BACKENDS; i++)
        if (strcmp(backends[i]->name, chosen) == 0) return backends[i]->open(c, device);
    char names[128] = "";
    for (size_t i = 0, used = 0; i < BACKENDS && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", backends[i]->name);
    return lk__fail(c, LK_EUNSUPPORTED, "%s\"%.40s\": there is no such device; this build has %s",
                    name ? "device " : "LOCKSTEP_DEVICE is ", chosen, names);
}

void lk__device_close(lk__device *d)
{
    if (d) d->backend->close(d);
}

const char *lk_context_device(const lk_context *c) { return lk__context_device(c)->backend->name; }

lk_status lk__device_alloc(lk__device *d, lk_memory kind, size_t bytes, char **memory)
{
    *memory = bytes ? d->backend->alloc(d, kind, bytes) : NULL;
    return bytes && !*memory ? LK_ENOMEM : LK_OK;
}

void lk__device_free(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    if (memory) d->backend->free(d, kind, memory, bytes);
}

lk_status lk__device_read(lk__device *d, lk__device_stream *stream, void *host, const void *from, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    lk_status status = d->backend->copy_out(d, stream, host, from, bytes);
    return status < 0 ? status : d->backend->stream_wait(d, stream);
}

lk_status lk__device_write(lk__device *d, lk__device_stream *stream, void *to, const void *host, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    lk_status status = d->backend->copy_in(d, stream, to, host, bytes);
    return status < 0 ? status : d->backend->stream_wait(d, stream);
}

lk_status lk__device_cast(lk__device *d, lk__device_stream *stream, void *from, lk_dtype type, void *to, lk_dtype as,
                          int64_t elements)
{
    static const lk__op_attrs none;
    lk__kernel_call           call = {
                  .attrs = &none, .inputs = 1, .outputs = 1, .pool = lk__context_pool(d->context), .stream = stream};
    call.in[0] = (lk__kernel_operand){.data = from, .dtype = type, .rank = 1, .dims = {elements}};
    call.out[0] = (lk__kernel_operand){.data = to, .dtype = as, .rank = 1, .dims = {elements}};
    lk__device_kernel kernel = d->backend->find(d, LK__OP_cast, LK_F32, &call);
    if (!kernel.run)
        return lk__fail(d->context, LK_EUNSUPPORTED, "the device %s does not convert %s to %s", d->backend->name,
                        lk_dtype_name(type), lk_dtype_name(as));
    lk_status status = kernel.prepare ? kernel.prepare(d, &kernel, &call) : LK_OK;
    return status < 0 ? status : kernel.run(&call);
}
