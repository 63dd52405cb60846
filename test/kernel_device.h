/* kernel_device.h - runs one call of a kernel on the device that LOCKSTEP_DEVICE names, where that is not the CPU. Every operand, the
 * workspace, the step block and the report of ids are copied into allocations of their own on the device, with a guard behind each,
 * and back. Also notes which operations have run, for test_kernels_covered.c. */
#ifndef KERNEL_DEVICE_H
#define KERNEL_DEVICE_H

#include "device/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_GUARD = 64 }; /* bytes behind each operand on the host, too */

static lk__device        *kernel_device; /* NULL: the kernels of the CPU's tables are tested */
static lk__device_stream *kernel_stream;
static bool               kernel_ran[LK_DTYPE_COUNT][LK__OP_COUNT];

/* How often to repeat what is drawn: a fraction where the device is slow: emulated, or under a checking tool. */
static inline int repetitions(int usual) { return getenv("LK_TEST_SLOW") ? usual / 12 : usual; }

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
    require_device(device->backend->stream_create(device, &kernel_stream), "a stream");
}

static inline void close_kernel_device(void)
{
    if (kernel_device) kernel_device->backend->stream_free(kernel_device, kernel_stream);
    kernel_device = NULL;
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

/* A copy of an operand on the device, at an address that is a multiple of LK__ALIGN and, with `odd`, of nothing larger. */
typedef struct device_copy {
    char  *memory;
    size_t bytes, offset;
} device_copy;

static inline void *copy_to_device(device_copy *copy, const void *host, size_t bytes, bool odd)
{
    copy->offset = odd ? LK__ALIGN : 0;
    copy->bytes = copy->offset + bytes + KERNEL_GUARD;
    require_device(lk__device_alloc(kernel_device, LK_MEMORY_OTHER, copy->bytes, &copy->memory),
                   "memory of the device");
    char *data = copy->memory + copy->offset;
    if (host)
        require_device(lk__device_write(kernel_device, kernel_stream, data, host, bytes + KERNEL_GUARD), "a copy");
    else
        require_device(kernel_device->backend->fill(kernel_device, kernel_stream, data, 0xA5, bytes + KERNEL_GUARD),
                       "filling memory");
    return data;
}

static inline void copy_from_device(device_copy *copy, void *host, size_t bytes)
{
    if (host)
        require_device(lk__device_read(kernel_device, kernel_stream, host, copy->memory + copy->offset, bytes),
                       "a copy");
    lk__device_free(kernel_device, LK_MEMORY_OTHER, copy->memory, copy->bytes);
}

static inline size_t operand_bytes(const lk__kernel_operand *o)
{
    return (size_t)lk__operand_elements(o) * lk_dtype_size(o->dtype);
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

/* Runs a call whose operands are the host's, each with KERNEL_GUARD bytes behind it, which are copied, too. An output at the address of
 * an input is one on the device. `capacity`: shapes for the workspace, NULL: the call's own. The report of ids names addresses of the
 * host. NULL, or what is wrong. */
static inline const char *run_on_device(lk__op op, lk_dtype element, const lk__kernel_call *host,
                                        const lk__kernel_call *capacity, bool odd)
{
    enum { OPERANDS = LK__MAX_IN + LK__MAX_OUT };
    lk__kernel_call       shapes = shapes_of(capacity ? capacity : host), call = *host;
    lk__device_kernel     kernel = kernel_device->backend->find(kernel_device, op, element, &shapes);
    device_copy           copies[OPERANDS] = {{0}}, workspace, step, ids = {0}, report;
    lk__kernel_step       numbers = host->step ? *host->step : (lk__kernel_step){0};
    lk__kernel_invalid_id found = {.found = false};
    char                  buffer[sizeof numbers + sizeof found + KERNEL_GUARD];
    const char           *wrong = NULL;
    if (!kernel.run) return "the device has no kernel";
    if (kernel.prepare) require_device(kernel.prepare(kernel_device, &kernel, &shapes), "preparing a kernel");
    size_t bytes = kernel.workspace ? kernel.workspace(&shapes, 1) : 0;
    for (int k = 0; k < call.inputs + call.outputs; k++) {
        lk__kernel_operand *o = k < call.inputs ? &call.in[k] : &call.out[k - call.inputs];
        if (!o->data) continue;
        int same = 0;
        while (same < k && !(copies[same].memory && same < call.inputs && host->in[same].data == o->data)) same++;
        if (same < k && k >= call.inputs)
            o->data = copies[same].memory + copies[same].offset;
        else
            o->data = copy_to_device(&copies[k], o->data, operand_bytes(o), odd);
    }
    call.prepared = shapes.prepared;
    call.device = kernel_device;
    call.stream = kernel_stream;
    call.workspace = copy_to_device(&workspace, NULL, bytes, odd);
    if (numbers.sample_ids) {
        size_t count = (size_t)numbers.count * sizeof *numbers.sample_ids;
        char  *padded = calloc(1, count + KERNEL_GUARD);
        memcpy(padded, numbers.sample_ids, count);
        numbers.sample_ids = copy_to_device(&ids, padded, count, odd);
        free(padded);
    }
    memset(buffer, 0xA5, sizeof buffer);
    memcpy(buffer, &numbers, sizeof numbers);
    call.step_memory = copy_to_device(&step, buffer, sizeof numbers, false);
    call.step = &numbers;
    memset(buffer, 0xA5, sizeof buffer);
    memcpy(buffer, &found, sizeof found);
    call.invalid = copy_to_device(&report, buffer, sizeof found, false);

    lk_status status = kernel.run(&call);
    if (status >= 0) status = kernel_device->backend->stream_wait(kernel_device, kernel_stream);
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", lk__op_name(op), lk_context_error(kernel_device->context));
        wrong = "the kernel failed";
    }
    kernel_ran[element][op] = true;

    unsigned char *guard = malloc(bytes + KERNEL_GUARD);
    copy_from_device(&workspace, guard, bytes + KERNEL_GUARD);
    for (size_t i = 0; i < KERNEL_GUARD && !wrong; i++)
        if (guard[bytes + i] != 0xA5) wrong = "wrote past its workspace";
    free(guard);
    copy_from_device(&report, &found, sizeof found);
    for (int k = 0; k < call.inputs + call.outputs; k++) {
        const lk__kernel_operand *o = k < call.inputs ? &host->in[k] : &host->out[k - call.inputs];
        if (!copies[k].memory) continue;
        const char *at = (const char *)found.at, *begin = copies[k].memory + copies[k].offset;
        if (found.found && k < call.inputs && at >= begin && at < begin + operand_bytes(o))
            found.at = (const int32_t *)(void *)((char *)o->data + (at - begin));
        copy_from_device(&copies[k], o->data, operand_bytes(o) + KERNEL_GUARD);
    }
    if (host->invalid) *host->invalid = found;
    if (ids.memory) copy_from_device(&ids, NULL, 0);
    copy_from_device(&step, NULL, 0);
    return wrong;
}

#endif
