/* device.c - the devices of this build, opened by name, and what is the same for all of them. */
#include "base/environment.h"
#include "device/cuda/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lk__device_backend *const built_in[] = {&lk__device_cpu, &lk__device_guarded};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* The CUDA module's, where it can be loaded and there is a GPU; NULL otherwise, and why says the reason. */
static const lk__device_backend *find_cuda(char *why, size_t bytes)
{
    const lk__cuda_module *module;
    if (lk__cuda_load(NULL, &module) < 0) {
        snprintf(why, bytes, "%s", lk_context_error(NULL));
        return NULL;
    }
    return module->devices(why, bytes) > 0 ? module->backend : NULL;
}

static const lk__device_backend *backend_at(size_t i)
{
    char why[512];
    return i < BUILT_IN ? built_in[i] : i == BUILT_IN ? find_cuda(why, sizeof why) : NULL;
}

const char *lk_device_name(size_t i)
{
    const lk__device_backend *backend = backend_at(i);
    return backend ? backend->name : NULL;
}
const char *lk_device_text(size_t i)
{
    const lk__device_backend *backend = backend_at(i);
    return backend ? backend->text : NULL;
}

lk_status lk_device_report(const char *name, lk_text_callback write, void *user)
{
    const lk__cuda_module *module;
    char                   text[512];
    if (strcmp(name, "cuda") != 0)
        return lk__fail(NULL, LK_EUNSUPPORTED, "the device \"%.40s\" has nothing to report", name);
    lk_status status = lk__cuda_load(NULL, &module);
    if (status < 0) return status;
    for (int i = 0; module->line(i, text, sizeof text); i++) {
        write(user, text, strlen(text));
        write(user, "\n", 1);
    }
    return LK_OK;
}

/* "cuda" or "cuda:N": the backend is loaded; without a GPU it opens for plans alone. */
static lk_status open_cuda(lk_context *c, const char *name, bool plans_only, lk__device **device)
{
    const lk__cuda_module *module;
    char                  *end, why[512];
    long                   number = name[4] ? strtol(name + 5, &end, 10) : -1;
    if (name[4] && (name[5] < '0' || name[5] > '9' || *end || number > 1023))
        return lk__fail(c, LK_EINVAL, "device \"%.40s\": a GPU number must follow, as in cuda:0", name);
    lk_status status = lk__cuda_load(c, &module);
    if (status < 0) return status;
    if (!plans_only && module->devices(why, sizeof why) == 0)
        return lk__fail(c, LK_EUNSUPPORTED, "device %.40s: %s", name, why);
    return module->backend->open(c, (int)number, device);
}

static lk_status open_auto(lk_context *c, lk__device **device)
{
    char                      why[512];
    const lk__device_backend *cuda = find_cuda(why, sizeof why);
    if (!cuda) lk__log(c, LK_LOG_DEBUG, "device auto: the CPU, because %s", why);
    return cuda ? cuda->open(c, -1, device) : lk__device_cpu.open(c, -1, device);
}

lk_status lk__device_open(lk_context *c, const char *name, bool plans_only, lk__device **device)
{
    static const char *const known[] = {"auto", "cpu", "cuda", "guarded"};
    const char              *chosen = name ? name : lk__environment(c, LK__ENV_LOCKSTEP_DEVICE);
    *device = NULL;
    if (!chosen || (!name && !*chosen)) chosen = lk__device_cpu.name;
    for (size_t i = 0; i < BUILT_IN; i++)
        if (strcmp(built_in[i]->name, chosen) == 0) return built_in[i]->open(c, -1, device);
    if (strcmp(chosen, "auto") == 0) return open_auto(c, device);
    if (strncmp(chosen, "cuda", 4) == 0 && (chosen[4] == 0 || chosen[4] == ':'))
        return open_cuda(c, chosen, plans_only, device);
    const char *nearest = lk__suggest(chosen, known, sizeof known / sizeof *known);
    return lk__fail(c, LK_EUNSUPPORTED, "%s\"%.40s\": unknown device; %s%s%sdevices are auto, cpu, cuda, cuda:N",
                    name ? "device " : "LOCKSTEP_DEVICE is ", chosen, nearest ? "did you mean \"" : "",
                    nearest ? nearest : "", nearest ? "\"? The " : "the ");
}

void lk__device_close(lk__device *d)
{
    if (d) d->backend->close(d);
}

/* What a CUDA context and its libraries (cuBLASLt, cuDNN) hold, measured on an NVIDIA H200 with `lockstep plan --device cuda`: shown
 * where there is no GPU on which to measure. */
static const size_t H200_CONTEXT = (size_t)524 << 20, H200_LIBRARIES = (size_t)12 << 20;

lk_status lk_device_held(const char *name, lk_device_memory_held *held)
{
    const lk__cuda_module *module;
    char                   why[512];
    const char            *chosen = name ? name : lk__environment(NULL, LK__ENV_LOCKSTEP_DEVICE);
    *held = (lk_device_memory_held){.context = 0};
    bool automatic = chosen && strcmp(chosen, "auto") == 0;
    if (!chosen || (automatic ? !find_cuda(why, sizeof why) : strncmp(chosen, "cuda", 4) != 0)) return LK_OK;
    lk_status status = lk__cuda_load(NULL, &module);
    if (status < 0) return status;
    int number = chosen[0] == 'c' && chosen[4] == ':' ? atoi(chosen + 5) : 0;
    held->measured = module->devices(why, sizeof why) > number && module->held(number, &held->context, &held->libraries);
    if (!held->measured) held->context = H200_CONTEXT, held->libraries = H200_LIBRARIES;
    return LK_OK;
}

void lk_context_device_memory(const lk_context *c, size_t *available, size_t *total)
{
    lk__device *device = lk__context_device(c);
    *available = *total = 0;
    if (device->backend->memory.available) device->backend->memory.available(device, available, total);
}

const char *lk_context_device(const lk_context *c) { return lk__context_device(c)->backend->name; }

lk_status lk_device_measure(lk_context *c, lk_dtype type, lk_device_speed *speed)
{
    lk__device *d = lk__context_device(c);
    *speed = (lk_device_speed){0};
    if (!d->backend->kernels.measure)
        return lk__fail(c, LK_EUNSUPPORTED, "the speed of the device %s is not measured", d->backend->name);
    return d->backend->kernels.measure(d, type, speed);
}

lk_status lk__device_alloc(lk__device *d, lk_memory kind, size_t bytes, char **memory)
{
    lk_status status = bytes && d->backend->memory.check ? d->backend->memory.check(d) : LK_OK;
    *memory = bytes && status >= 0 ? d->backend->memory.alloc(d, kind, bytes) : NULL;
    return status < 0 ? status : bytes && !*memory ? LK_ENOMEM : LK_OK;
}

void lk__device_free(lk__device *d, lk_memory kind, void *memory, size_t bytes)
{
    if (memory) d->backend->memory.free(d, kind, memory, bytes);
}

/* Bytes of the host's memory from which on they are compared with what is available, which takes some 0.1 ms: pages are zero and take no
 * memory until they are used, so the system would not fail an allocation but end a process. */
enum { CHECKED = 64 << 20 };
enum { PART_ALIGN = 256 }; /* what a GPU's libraries want of their workspaces, at least */

static size_t parts_bytes(const lk__device_part *parts, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += lk__round_up(parts[i].bytes, PART_ALIGN);
    return bytes;
}

lk_status lk__device_alloc_parts(lk__device *d, const lk__device_part *parts, int count, char **block)
{
    size_t    bytes = parts_bytes(parts, count), at = 0;
    lk_status status = LK_OK;
    *block = NULL;
    for (int i = 0; i < count; i++) *parts[i].memory = NULL;
    if (!d->backend->memory.available && bytes >= CHECKED) status = lk_context_check_memory(d->context, NULL, bytes);
    if (status < 0) return status;
    if (d->backend->memory.one_block) status = lk__device_alloc(d, LK_MEMORY_OTHER, bytes, block);
    if (*block) lk__account(d->context, LK_MEMORY_OTHER, -(ptrdiff_t)bytes);
    for (int i = 0; i < count && status >= 0; i++) {
        if (!d->backend->memory.one_block) {
            status = lk__device_alloc(d, parts[i].kind, parts[i].bytes, parts[i].memory);
        } else if (parts[i].bytes) {
            *parts[i].memory = *block + at;
            at += lk__round_up(parts[i].bytes, PART_ALIGN);
            lk__account(d->context, parts[i].kind, (ptrdiff_t)parts[i].bytes);
        }
    }
    return status;
}

void lk__device_free_parts(lk__device *d, const lk__device_part *parts, int count, char *block)
{
    size_t bytes = parts_bytes(parts, count);
    for (int i = 0; i < count; i++) {
        if (!block)
            lk__device_free(d, parts[i].kind, *parts[i].memory, parts[i].bytes);
        else
            lk__account(d->context, parts[i].kind, -(ptrdiff_t)parts[i].bytes);
        *parts[i].memory = NULL;
    }
    if (block) lk__account(d->context, LK_MEMORY_OTHER, (ptrdiff_t)bytes);
    lk__device_free(d, LK_MEMORY_OTHER, block, bytes);
}

lk_status lk__device_read(lk__device *d, lk__device_stream *stream, void *host, const void *from, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    lk_status status = d->backend->memory.copy_out(d, stream, host, from, bytes);
    return status < 0 ? status : d->backend->memory.stream_wait(d, stream);
}

lk_status lk__device_write(lk__device *d, lk__device_stream *stream, void *to, const void *host, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    lk_status status = d->backend->memory.copy_in(d, stream, to, host, bytes);
    return status < 0 ? status : d->backend->memory.stream_wait(d, stream);
}

lk_status lk__device_cast(lk__device *d, lk__device_stream *stream, void *from, lk_dtype type, void *to, lk_dtype as,
                          int64_t elements)
{
    static const lk__op_attrs none;
    lk__kernel_call           call = {
                  .attrs = &none, .inputs = 1, .outputs = 1, .pool = lk__context_pool(d->context), .device = d, .stream = stream};
    call.in[0] = (lk__kernel_operand){.data = from, .dtype = type, .rank = 1, .dims = {elements}};
    call.out[0] = (lk__kernel_operand){.data = to, .dtype = as, .rank = 1, .dims = {elements}};
    lk__device_kernel kernel = d->backend->kernels.find(d, LK__OP_cast, LK_F32, &call);
    if (!kernel.run)
        return lk__fail(d->context, LK_EUNSUPPORTED, "the device %s does not convert %s to %s", d->backend->name,
                        lk_dtype_name(type), lk_dtype_name(as));
    lk_status status = kernel.prepare ? kernel.prepare(d, &kernel, &call) : LK_OK;
    return status < 0 ? status : kernel.run(&call);
}
