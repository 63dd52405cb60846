/* memory_check.c - compares what one process needs with the memory that is available; comm/memory.c does it for all
 * ranks of a host. */
#include "base/memory_check.h"

#include "base/base.h"

#include <stdio.h>

const char *lk__bytes_text(int64_t bytes, char out[LK__BYTES_TEXT])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    double                   value = (double)bytes / 1024;
    int                      unit = 0;
    while (value >= 1000 && unit < 4) value /= 1024, unit++;
    snprintf(out, LK__BYTES_TEXT, "%.1f %s", value, units[unit]);
    return out;
}

lk_status lk__memory_refuse(lk_context *context, const char *who, int64_t bytes, const lk__memory_limit *limit)
{
    char need[LK__BYTES_TEXT], available[LK__BYTES_TEXT], most[LK__BYTES_TEXT];
    lk__bytes_text(bytes, need);
    lk__bytes_text(limit->available, available);
    if (limit->limit == 0)
        return lk__fail(context, LK_ETOOLARGE, "%s would need %s of memory, but the host has %s available", who, need,
                        available);
    return lk__fail(context, LK_ETOOLARGE, "%s would need %s of memory, but %s is available: the limit of %s is %s",
                    who, need, available, limit->process ? "a process (ulimit -v)" : "a control group (cgroup)",
                    lk__bytes_text(limit->limit, most));
}

lk_status lk_context_check_memory(lk_context *context, const char *who, size_t bytes)
{
    lk__memory_limits limits;
    lk__context_limits(context, &limits);
    for (int i = 0; i < limits.count; i++)
        if (bytes > (size_t)limits.all[i].available && !(limits.all[i].process && who)) /* several may need `bytes` */
            return lk__memory_refuse(context,
                                     who                     ? who
                                     : limits.all[i].process ? "a process"
                                                             : "this process",
                                     bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX, &limits.all[i]);
    return LK_OK;
}

void lk_limits_read(lk_limits *limits)
{
    lk__memory_limits memory;
    *limits = (lk_limits){.cores = lk__limits_cores(""), .available = SIZE_MAX};
    lk__limits_memory("", &memory);
    for (int i = 0; i < memory.count; i++) {
        size_t limit = (size_t)memory.all[i].limit, available = (size_t)memory.all[i].available;
        if (memory.all[i].process) continue; /* which other processes do not share */
        if (limit > 0 && (limits->memory == 0 || limit < limits->memory)) limits->memory = limit;
        if (available < limits->available) limits->available = available, limits->available_of = limit;
    }
}
