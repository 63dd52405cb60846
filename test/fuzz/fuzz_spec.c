/* fuzz_spec.c - the job specification that a remote launcher reads: any bytes are rejected with an error, or give ranks
 * within the world size, numbers within their bounds and terminated strings. An input is the data of the pipe. */
#include "launch/spec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static lk__launch_spec spec;

static void check_string(const char *text, bool needed)
{
    if (!text && !needed) return;
    if (!text || text < spec.text || text >= spec.text + spec.length) abort();
    if (memchr(text, 0, (size_t)(spec.text + spec.length - text)) == NULL) abort();
}

/* Replaces the system's, with which the environment would grow without bound. */
int setenv(const char *name, const char *value, int overwrite)
{
    check_string(name, true);
    check_string(value, true);
    if (!*name || strchr(name, '=') || !overwrite) abort();
    return 0;
}

static void check_number(int number, int low, int high)
{
    if (number < low || number > high) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) < 0) abort();
    if (size > sizeof spec.text) return 0;
    memset(&spec, 0, sizeof spec);
    memset(spec.text + size, '=', sizeof spec.text - size); /* nothing after the input must be read */
    memcpy(spec.text, data, size);
    spec.length = size;
    if (lk__spec_parse(context, &spec) < 0) {
        if (!*lk_context_error(context)) abort();
        return 0;
    }
    const lk_launch_config *c = &spec.config;
    check_number(c->ranks, 1, 4096);
    check_number(spec.world, c->ranks, 1 << 24);
    check_number(spec.first_rank, 0, spec.world - c->ranks);
    check_number(c->node, 0, c->nodes - 1);
    check_number(c->master_port, 0, 65535);
    check_number(spec.colour, 0, 1);
    check_number(spec.generation, 0, 1 << 24);
    check_number(spec.max_restarts, 0, 1 << 24);
    if (!(c->grace >= 0 && c->grace < 1e9)) abort();
    check_string(spec.directory, true);
    check_string(spec.token, true);
    check_string(spec.job, true);
    check_string(c->master_address, true);
    check_string(c->log_dir, false);
    check_string(c->tee, false);
    check_string(c->redirects, false);
    check_string(c->local_ranks_filter, false);
    check_string(c->line_prefix, false);
    check_string(c->stdout_filters, false);
    check_string(c->stderr_filters, false);
    check_string(c->numa_binding, false);
    check_string(c->device, false);
    if (!c->signals) abort();
    if (!(c->join_timeout >= 0 && c->join_timeout < 1e9)) abort();
    if (strlen(spec.token) != LK__TOKEN - 1) abort();
    if (c->program != spec.program || spec.argument_count < 1 || spec.program[spec.argument_count]) abort();
    for (int i = 0; i < spec.argument_count; i++) check_string(spec.program[i], true);
    return 0;
}
