/* environment.c - reads environment variables, by the table in base/environment.h. */
#include "base/environment.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const lk_environment_variable variables[] = {
#define VARIABLE(name, group, type, low, high, doc) \
    {#name, LK_ENVIRONMENT_##type, LK_ENVIRONMENT_##group, low, high, doc},
    LK__ENVIRONMENT(VARIABLE)
#undef VARIABLE
};

struct lk__environment_values {
    pid_t       pid; /* of the process that read them: a forked one may have changed its environment */
    size_t      bytes;
    const char *values[LK__ENV_COUNT];
    char        text[];
};

const lk_environment_variable *lk_environment_at(int index)
{
    return index >= 0 && index < LK__ENV_COUNT ? &variables[index] : NULL;
}

lk__environment_values *lk__environment_read(const lk_allocator *allocator)
{
    size_t bytes = sizeof(lk__environment_values);
    for (int i = 0; i < LK__ENV_COUNT; i++) {
        const char *value = getenv(variables[i].name);
        if (value) bytes += strlen(value) + 1;
    }
    lk__environment_values *e = allocator->alloc(allocator->user, bytes, LK__ALIGN);
    if (!e) return NULL;
    char *at = e->text, *end = (char *)e + bytes;
    e->pid = getpid();
    e->bytes = bytes;
    for (int i = 0; i < LK__ENV_COUNT; i++) {
        const char *value = getenv(variables[i].name);
        size_t      length = value ? strlen(value) + 1 : 0;
        e->values[i] = NULL;
        if (!value || length > (size_t)(end - at))
            continue; /* another thread changes the environment: none is no worse than half */
        e->values[i] = memcpy(at, value, length);
        at += length;
    }
    return e;
}

void lk__environment_values_free(const lk_allocator *allocator, lk__environment_values *e)
{
    if (e) allocator->free(allocator->user, e, e->bytes);
}

const char *lk__environment_value(const lk__environment_values *e, lk__environment_id id)
{
    return e && e->pid == getpid() ? e->values[id] : getenv(variables[id].name);
}

const char *lk__environment_name(lk__environment_id id) { return variables[id].name; }

const char *lk__environment(const lk_context *context, lk__environment_id id)
{
    return lk__environment_value(context ? lk__context_environment(context) : NULL, id);
}

const char *lk__environment_text(const lk_context *context, lk__environment_id id)
{
    const char *value = lk__environment(context, id);
    return value && *value ? value : NULL;
}

bool lk__environment_flag(const lk_context *context, lk__environment_id id)
{
    const char *value = lk__environment_text(context, id);
    return value && strcmp(value, "0") != 0;
}

const char *lk_environment_get(const lk_context *context, const char *name)
{
    for (int i = 0; i < LK__ENV_COUNT; i++)
        if (strcmp(variables[i].name, name) == 0) return lk__environment(context, (lk__environment_id)i);
    return NULL;
}
