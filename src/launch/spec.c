/* spec.c - writes and parses the job specification for a remote launcher. */
#define _GNU_SOURCE
#include "launch/spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lk__spec_add(lk__launch_spec *spec, const char *name, const char *format, ...)
{
    va_list arguments;
    size_t  room = sizeof spec->text - spec->length;
    int     lead = snprintf(spec->text + spec->length, room, "%s=", name);
    if (lead < 0 || (size_t)lead >= room) {
        spec->full = true;
        return;
    }
    va_start(arguments, format);
    int length = vsnprintf(spec->text + spec->length + lead, room - (size_t)lead, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)(lead + length) + 2 > room) /* leaves room for the empty string at the end */
        spec->full = true;
    else
        spec->length += (size_t)(lead + length) + 1;
}

typedef struct number {
    const char *name;
    int        *at, low, high;
} number;
typedef struct string {
    const char  *name;
    const char **at;
} string;

static bool parse_number(const number *numbers, const char *name, size_t length, const char *value, bool *good)
{
    for (; numbers->name; numbers++) {
        if (strlen(numbers->name) != length || memcmp(numbers->name, name, length) != 0) continue;
        char *end;
        long  n = strtol(value, &end, 10);
        *good = end != value && !*end && n >= numbers->low && n <= numbers->high;
        if (*good) *numbers->at = (int)n;
        return true;
    }
    return false;
}

static bool parse_string(const string *strings, const char *name, size_t length, const char *value)
{
    for (; strings->name; strings++) {
        if (strlen(strings->name) != length || memcmp(strings->name, name, length) != 0) continue;
        *strings->at = value;
        return true;
    }
    return false;
}

static bool parse_seconds(const char *value, double *seconds)
{
    char *end;
    *seconds = strtod(value, &end);
    return end != value && !*end && *seconds >= 0 && *seconds < 1e9;
}

/* Parses one `name=value`; false: the name is unknown or the value invalid. */
static bool parse_entry(lk__launch_spec *spec, char *text)
{
    lk_launch_config *c = &spec->config;
    const number      numbers[] = {{"world", &spec->world, 1, 1 << 24},
                                   {"first-rank", &spec->first_rank, 0, 1 << 24},
                                   {"ranks", &c->ranks, 1, 4096},
                                   {"nodes", &c->nodes, 1, 100000},
                                   {"node", &c->node, 0, 100000},
                                   {"port", &c->master_port, 0, 65535},
                                   {"colour", &spec->colour, 0, 1},
                                   {"no-pin", &spec->no_pin, 0, 1},
                                   {"virtual-local-rank", &spec->virtual_local_rank, 0, 1},
                                   {"generation", &spec->generation, 0, 1 << 24},
                                   {"max-restarts", &spec->max_restarts, 0, 1 << 24},
                                   {NULL, NULL, 0, 0}};
    const string      strings[] = {{"directory", &spec->directory},
                                   {"token", &spec->token},
                                   {"job", &spec->job},
                                   {"program-path", &spec->program_path},
                                   {"address", &c->master_address},
                                   {"run-id", &c->run_id},
                                   {"role", &c->role},
                                   {"log-dir", &c->log_dir},
                                   {"tee", &c->tee},
                                   {"redirects", &c->redirects},
                                   {"filter", &c->local_ranks_filter},
                                   {"signals", &c->signals},
                                   {"line-prefix", &c->line_prefix},
                                   {"stdout-filters", &c->stdout_filters},
                                   {"stderr-filters", &c->stderr_filters},
                                   {"numa-binding", &c->numa_binding},
                                   {"device", &c->device},
                                   {NULL, NULL}};
    bool              good = true;
    char             *value = strchr(text, '=');
    if (!value) return false;
    size_t length = (size_t)(value++ - text);
    if (parse_number(numbers, text, length, value, &good)) return good;
    if (parse_string(strings, text, length, value)) return true;
    if (strncmp(text, "argument=", 9) == 0) {
        if (spec->argument_count + 1 >= LK__SPEC_ARGUMENTS) return false;
        spec->program[spec->argument_count++] = value;
        return true;
    }
    if (strncmp(text, "grace=", 6) == 0) return parse_seconds(value, &c->grace);
    if (strncmp(text, "join-timeout=", 13) == 0) return parse_seconds(value, &c->join_timeout);
    if (strncmp(text, "environment=", 12) == 0) {
        char *equals = strchr(value, '=');
        if (!equals || equals == value) return false;
        *equals = 0;
        return setenv(value, equals + 1, 1) == 0;
    }
    return false;
}

lk_status lk__spec_parse(lk_context *context, lk__launch_spec *spec)
{
    static const lk_launch_config defaults = LK_LAUNCH_CONFIG_INIT;
    spec->config = defaults;
    for (size_t at = 0; at < spec->length && spec->text[at];) {
        size_t length = strnlen(spec->text + at, spec->length - at);
        if (at + length == spec->length)
            return lk__fail(context, LK_EFORMAT, "the launcher's job specification is truncated");
        if (!parse_entry(spec, spec->text + at))
            return lk__fail(
                context, LK_EFORMAT,
                "the launcher's job specification contains '%.40s', which this version of lockstep does not support",
                spec->text + at);
        at += length + 1;
    }
    bool whole = spec->argument_count && spec->directory && spec->token && spec->job && spec->config.master_address &&
                 spec->world && spec->config.node < spec->config.nodes &&
                 spec->first_rank + spec->config.ranks <= spec->world;
    if (!whole) return lk__fail(context, LK_EFORMAT, "the launcher's job specification is incomplete");
    if (strlen(spec->token) != LK__TOKEN - 1)
        return lk__fail(context, LK_EFORMAT, "the launcher's token does not have the length that this version expects");
    spec->config.program = spec->program;
    spec->config.no_pin = spec->no_pin;
    spec->config.virtual_local_rank = spec->virtual_local_rank;
    return LK_OK;
}
