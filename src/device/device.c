/* device.c - opens the devices of this build by name; also functions that are the same for all of them. */
#include "base/environment.h"
#include "device/devices.h"

#include <lockstep/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lk__device_entry *const entries[] = {
#define ENTRY(name) &lk__device_entry_##name,
    LK__DEVICE_LIST(ENTRY)
#undef ENTRY
};
enum { ENTRIES = sizeof entries / sizeof *entries, WHY = 512 };

static bool is_usable(const lk__device_entry *e, char why[WHY]) { return !e->count || e->count(why, WHY) > 0; }

/* The entry that a name with or without a number selects; NULL: there is none. *number: where the text of its number
 * begins, or NULL. */
static const lk__device_entry *find_entry(const char *name, const char **number)
{
    size_t length = strcspn(name, ":");
    *number = name[length] ? name + length + 1 : NULL;
    for (size_t i = 0; i < ENTRIES; i++)
        if (strlen(entries[i]->name) == length && memcmp(entries[i]->name, name, length) == 0 &&
            (!*number || entries[i]->numbered))
            return entries[i];
    return NULL;
}

/* What `auto` chooses; why: the reason for which it is not one with a higher preference, or "". */
static const lk__device_entry *choose_entry(char why[WHY])
{
    const lk__device_entry *best = NULL;
    for (size_t i = 0; i < ENTRIES; i++)
        if (entries[i]->preference > 0 && !entries[i]->count && (!best || entries[i]->preference > best->preference))
            best = entries[i];
    why[0] = 0;
    for (size_t i = 0; i < ENTRIES; i++)
        if (entries[i]->count && entries[i]->preference > best->preference && is_usable(entries[i], why))
            best = entries[i];
    return best;
}

static const lk__device_entry *usable_at(size_t i)
{
    char why[WHY];
    for (size_t k = 0; k < ENTRIES; k++)
        if (is_usable(entries[k], why) && i-- == 0) return entries[k];
    return NULL;
}

const char *lk_device_name(size_t i)
{
    const lk__device_entry *e = usable_at(i);
    return e ? e->name : NULL;
}
const char *lk_device_text(size_t i)
{
    const lk__device_entry *e = usable_at(i);
    return e ? e->text : NULL;
}

lk_status lk_device_at(int index, lk_device *out)
{
    if (index < 0 || (size_t)index >= ENTRIES) return LK_END;
    const lk__device_entry *e = entries[index];
    lk_device               made = {.size = out->size,
                                    .name = e->name,
                                    .text = e->text,
                                    .help = e->help,
                                    .numbered = e->numbered,
                                    .on_host = e->on_host,
                                    .title = e->title,
                                    .unit = e->unit,
                                    .built_with = e->built_with,
                                    .built = e->built,
                                    .reference = e->reference};
    memcpy(out, &made, out->size < sizeof made ? out->size : sizeof made);
    return LK_OK;
}

const char *lk_device_auto(void)
{
    char why[WHY];
    return choose_entry(why)->name;
}

bool lk_context_on_host(const lk_context *c)
{
    const char             *number;
    const lk__device_entry *e = find_entry(lk_context_device(c), &number);
    return e && e->on_host;
}

lk_status lk_device_report(const char *name, lk_text_callback write, void *user)
{
    const char             *number;
    const lk__device_entry *e = find_entry(name, &number);
    if (!e || !e->report) return lk__fail(NULL, LK_EUNSUPPORTED, "there is no report about the device \"%.40s\"", name);
    return e->report(write, user);
}

/* Where there is none of it, it opens for plans alone. */
static lk_status open_entry(lk_context *c, const lk__device_entry *e, const char *name, const char *number,
                            bool plans_only, lk__device **device)
{
    char why[WHY], *end;
    long n = number ? strtol(number, &end, 10) : -1;
    if (number && (*number < '0' || *number > '9' || *end || n > 1023))
        return lk__fail(c, LK_EINVAL, "device \"%.40s\": expected a GPU number, as in %s:0", name, e->name);
    const lk__device_backend *backend = e->load(c);
    if (!backend) return LK_EUNSUPPORTED;
    if (!plans_only && !is_usable(e, why)) return lk__fail(c, LK_EUNSUPPORTED, "device %.40s: %s", name, why);
    return backend->open(c, (int)n, device);
}

/* "auto, cpu, cuda, cuda:N", without those for tests. */
static const char *list_names(char *out, size_t bytes)
{
    size_t used = (size_t)snprintf(out, bytes, "auto");
    for (size_t i = 0; i < ENTRIES && used < bytes; i++) {
        const lk__device_entry *e = entries[i];
        if (!e->help) continue;
        used += (size_t)snprintf(out + used, bytes - used, ", %s", e->name);
        if (e->numbered && used < bytes) used += (size_t)snprintf(out + used, bytes - used, ", %s:N", e->name);
    }
    return out;
}

static lk_status refuse_name(lk_context *c, const char *name, const char *chosen)
{
    const char *known[ENTRIES + 1] = {"auto"};
    char        list[256];
    for (size_t i = 0; i < ENTRIES; i++) known[i + 1] = entries[i]->name;
    const char *nearest = lk__suggest(chosen, known, ENTRIES + 1);
    return lk__fail(c, LK_EUNSUPPORTED, "%s\"%.40s\": unknown device; %s%s%sdevices are %s",
                    name ? "device " : "LOCKSTEP_DEVICE is ", chosen, nearest ? "did you mean \"" : "",
                    nearest ? nearest : "", nearest ? "\"? The " : "the ", list_names(list, sizeof list));
}

lk_status lk__device_open(lk_context *c, const char *name, bool plans_only, lk__device **device)
{
    const char             *chosen = name ? name : lk__environment(c, LK__ENV_LOCKSTEP_DEVICE), *number = NULL;
    const lk__device_entry *e;
    char                    why[WHY];
    *device = NULL;
    if (!chosen || (!name && !*chosen)) chosen = entries[0]->name;
    if (strcmp(chosen, "auto") == 0) {
        e = choose_entry(why);
        if (*why) lk__log(c, LK_LOG_DEBUG, "device auto: %s, because %s", e->name, why);
    } else {
        e = find_entry(chosen, &number);
    }
    return e ? open_entry(c, e, chosen, number, plans_only, device) : refuse_name(c, name, chosen);
}

const char *lk__device_uuid_text(const unsigned char uuid[LK__DEVICE_UUID], char text[LK__DEVICE_UUID_TEXT])
{
    int used = snprintf(text, LK__DEVICE_UUID_TEXT, "GPU-");
    for (int i = 0; i < LK__DEVICE_UUID; i++)
        used += snprintf(text + used, (size_t)(LK__DEVICE_UUID_TEXT - used), "%s%02x",
                         i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return text;
}

void lk__device_close(lk__device *d)
{
    if (d) d->backend->close(d);
}

lk_status lk_device_overhead(const char *name, lk_device_memory_overhead *overhead)
{
    const char *chosen = name ? name : lk__environment(NULL, LK__ENV_LOCKSTEP_DEVICE), *number = NULL;
    char        why[WHY];
    *overhead = (lk_device_memory_overhead){.context = 0};
    if (!chosen) return LK_OK;
    const lk__device_entry *e = strcmp(chosen, "auto") == 0 ? choose_entry(why) : find_entry(chosen, &number);
    return e && e->overhead ? e->overhead(number ? atoi(number) : 0, overhead) : LK_OK;
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
        return lk__fail(c, LK_EUNSUPPORTED, "measuring the speed of the device %s is not supported", d->backend->name);
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

/* Bytes of the host's memory from which on they are compared with what is available, which takes some 0.1 ms: pages are
 * zero and take no memory until they are used, so the system would not fail an allocation but end a process. */
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
    lk__kernel_call           call = {.attrs = &none, .inputs = 1, .outputs = 1, .device = d, .stream = stream};
    call.pool = lk__context_pool(d->context);
    call.in[0] = (lk__kernel_operand){.data = from, .dtype = type, .rank = 1, .dims = {elements}};
    call.out[0] = (lk__kernel_operand){.data = to, .dtype = as, .rank = 1, .dims = {elements}};
    lk__device_kernel kernel = d->backend->kernels.find(d, LK__OP_cast, LK_F32, &call);
    if (!kernel.run)
        return lk__fail(d->context, LK_EUNSUPPORTED, "the device %s cannot convert %s to %s", d->backend->name,
                        lk_dtype_name(type), lk_dtype_name(as));
    lk_status status = kernel.prepare ? kernel.prepare(d, &kernel, &call) : LK_OK;
    return status < 0 ? status : kernel.run(&call);
}
