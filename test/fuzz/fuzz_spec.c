/* fuzz_spec.c - what a far end reads from its launcher: any bytes are refused with a sentence, or give ranks that fit
 * into their world, numbers within their bounds and words that end. An input is what comes over the pipe. */
#include "launch/spec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static lk__launch_spec spec;

static void check_word(const char *word, bool needed)
{
    if (!word && !needed) return;
    if (!word || word < spec.text || word >= spec.text + spec.length) abort();
    if (memchr(word, 0, (size_t)(spec.text + spec.length - word)) == NULL) abort();
}

/* In place of the system's: an environment would only grow. */
int setenv(const char *name, const char *value, int overwrite)
{
    check_word(name, true);
    check_word(value, true);
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
    memset(spec.text + size, '=', sizeof spec.text - size); /* nothing behind it is read */
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
    check_word(spec.directory, true);
    check_word(spec.token, true);
    check_word(spec.job, true);
    check_word(c->master_address, true);
    check_word(c->log_dir, false);
    check_word(c->tee, false);
    check_word(c->redirects, false);
    check_word(c->local_ranks_filter, false);
    check_word(c->line_prefix, false);
    check_word(c->stdout_filters, false);
    check_word(c->stderr_filters, false);
    check_word(c->numa_binding, false);
    if (!c->signals) abort();
    if (!(c->join_timeout >= 0 && c->join_timeout < 1e9)) abort();
    if (strlen(spec.token) != LK__TOKEN - 1) abort();
    if (c->program != spec.program || spec.words < 1 || spec.program[spec.words]) abort();
    for (int i = 0; i < spec.words; i++) check_word(spec.program[i], true);
    return 0;
}
