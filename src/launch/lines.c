/* lines.c - the prefix of a rank's lines, from a template with torchrun's macros, and the choice of lines for the
 * filtered log. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct macro {
    const char *name, *value;
} macro;

/* Expands the template's macros; returns the whole length, or -1 at an unknown macro (*bad: its position). */
static int expand_template(const char *text, const macro *macros, char *out, size_t size, const char **bad)
{
    size_t used = 0;
    for (const char *at = text; *at;) {
        const macro *m = macros;
        const char  *value = NULL;
        for (; at[0] == '$' && at[1] == '{' && m->name && !value; m++) {
            size_t length = strlen(m->name);
            if (strncmp(at + 2, m->name, length) != 0 || at[2 + length] != '}') continue;
            value = m->value;
            at += length + 3;
        }
        if (!value && at[0] == '$' && at[1] == '{') {
            *bad = at;
            return -1;
        }
        char one[2] = {*at, 0};
        if (!value) at++;
        for (const char *c = value ? value : one; *c; c++, used++)
            if (used + 1 < size) out[used] = *c;
    }
    if (size) out[used < size ? used : size - 1] = 0;
    return (int)used;
}

typedef struct line_source {
    const char *host;
    int         rank, local_rank;
} line_source;

/* Writes up to LK__PREFIX bytes; returns how long the whole prefix is. */
static int write_prefix(const lk_launch_config *config, line_source from, char out[LK__PREFIX], const char **bad)
{
    char        number[16], local[16];
    const macro macros[] = {
        {"rank", number}, {"local_rank", local}, {"role_name", config->role}, {"hostname", from.host}, {NULL, NULL}};
    snprintf(number, sizeof number, "%d", from.rank);
    snprintf(local, sizeof local, "%d", from.local_rank);
    return expand_template(config->line_prefix, macros, out, LK__PREFIX, bad);
}

lk_status lk__prefix_check(lk_context *context, const lk_launch_config *config)
{
    char        longest[65], unused[LK__PREFIX];
    const char *bad = NULL;
    if (!config->line_prefix) return LK_OK;
    memset(longest, 'h', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    int length = write_prefix(config, (line_source){longest, 16777216, 4096}, unused, &bad);
    if (bad)
        return lk__fail(
            context, LK_EINVAL,
            "'%.40s' in the line prefix template is not one of ${rank}, ${local_rank}, ${role_name} and ${hostname}",
            bad);
    if (length >= LK__PREFIX)
        return lk__fail(context, LK_EINVAL, "the line prefix template expands to %d characters: expected at most %d",
                        length, LK__PREFIX - 1);
    return LK_OK;
}

void lk__prefix_make(const lk__launch_job *job, lk__launch_child *child)
{
    static const char *const colours[] = {"36", "33", "32", "35", "34", "31"};
    const lk_launch_config  *config = job->config;
    for (int i = 0; i < 2; i++) {
        lk__launch_stream *stream = &child->streams[i];
        const char        *bad;
        bool               colour = job->part.colour > 0 ||
                      (job->part.colour < 0 && stream->sink->terminal && !lk__environment(NULL, LK__ENV_NO_COLOR));
        snprintf(stream->label, sizeof stream->label, "[rank %d] ", child->rank);
        if (config->line_prefix)
            write_prefix(config, (line_source){job->host, child->rank, child->local_rank}, stream->label, &bad);
        if (config->plain)
            stream->prefix[0] = 0;
        else if (colour && !config->line_prefix)
            snprintf(stream->prefix, sizeof stream->prefix, "\033[%sm[rank %d]\033[0m ", colours[child->rank % 6],
                     child->rank);
        else
            memcpy(stream->prefix, stream->label, sizeof stream->prefix);
    }
}

bool lk__filters_match(const char *filters, const char *line, size_t length)
{
    char   one[LK__LAUNCH_PATH];
    size_t used = 0;
    for (const char *at = filters;; at++) {
        bool escaped = at[0] == ',' && at[1] == ',';
        if (*at && (*at != ',' || escaped)) {
            if (used + 1 < sizeof one) one[used++] = *at;
            at += escaped;
            continue;
        }
        if (used && memmem(line, length, one, used)) return true;
        used = 0;
        if (!*at) return false;
    }
}
