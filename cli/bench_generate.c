/* bench_generate.c - `lockstep bench generate`: tokens per second with initial weights, and the rate at which weights
 * are read as a share of the memory bandwidth, which bounds it. */
#define _GNU_SOURCE
#include "bench_generate.h"

#include "bandwidth.h"
#include "clock.h"
#include "json.h"
#include "setup.h"
#include "times.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, GPT2_VOCABULARY = 50257 };

typedef struct bench {
    setup         setup;
    transformer   transformer;
    int64_t       batch, prompt_tokens, tokens;
    int32_t      *ids; /* (batch, prompt_tokens) */
    lk_prompt    *prompts;
    lk_generator *generator;
    double       *steps; /* seconds of each */
    int64_t       steps_count;
    double        latest;            /* when the latest step ended */
    double        step, prompt_rate; /* median seconds; best tokens a second */
} bench;

static int read_options(bench *b, const options *given)
{
    int code = transformer_make(&b->transformer, "bench", given, NULL, b->setup.context);
    if (code != 0) return code;
    const char *model = options_text(given, "model");
    if (!b->transformer.used || b->transformer.config.kind == LK_TRANSFORMER_ENCODER) {
        print_error("bench", "--model %s does not generate text: use gpt, llama or a preset such as gpt2", model);
        return EXIT_USER_ERROR;
    }
    if (b->transformer.config.vocabulary == 0) b->transformer.config.vocabulary = GPT2_VOCABULARY;
    b->batch = options_given(given, "batch") ? options_integer(given, "batch") : 1;
    b->prompt_tokens = options_integer(given, "prompt-tokens");
    b->tokens = options_integer(given, "tokens");
    if (b->prompt_tokens + b->tokens > b->transformer.config.context) {
        print_error("bench", "--prompt-tokens %lld plus --tokens %lld exceeds the context of %s, %lld",
                    (long long)b->prompt_tokens, (long long)b->tokens, model, (long long)b->transformer.config.context);
        return EXIT_USER_ERROR;
    }
    return 0;
}

static lk_status create_generator(bench *b, const options *given)
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    int64_t             count = b->batch * b->prompt_tokens;
    b->ids = malloc((size_t)count * sizeof *b->ids);
    b->prompts = malloc((size_t)b->batch * sizeof *b->prompts);
    b->steps = malloc((size_t)(RUNS * b->tokens) * sizeof *b->steps);
    if (!b->ids || !b->prompts || !b->steps) return LK_ENOMEM;
    for (int64_t i = 0; i < count; i++) b->ids[i] = (int32_t)(i * 7919 % b->transformer.config.vocabulary);
    for (int64_t i = 0; i < b->batch; i++) b->prompts[i] = (lk_prompt){b->ids + i * b->prompt_tokens, b->prompt_tokens};
    config.model = &b->transformer.config;
    config.batch = b->batch;
    config.context = b->prompt_tokens + b->tokens;
    config.seed = (uint64_t)options_integer(given, "seed");
    lk_policy_parse(options_text(given, "dtype"), &config.policy, &config.dtype);
    return lk_generator_create(b->setup.context, &config, &b->generator);
}

/* The time from one token of the first prompt to the next is a step. */
static lk_status take_token(void *user, const lk_generated *made)
{
    bench *b = user;
    double time = now();
    if (made->prompt == 0 && made->index > 0) b->steps[b->steps_count++] = time - b->latest;
    if (made->prompt == 0) b->latest = time;
    return LK_OK;
}

static lk_status measure(bench *b)
{
    lk_generate_config config = LK_GENERATE_CONFIG_INIT;
    lk_generate_times  times;
    config.prompts = b->prompts;
    config.prompts_count = (int)b->batch;
    config.ignore_eos = true;
    config.tokens = 2; /* touches all memory */
    lk_status status = lk_generate(b->generator, &config, NULL);
    config.tokens = b->tokens;
    config.token = take_token;
    config.no_logits = true;
    config.user = b;
    for (int run = 0; run < RUNS && status >= 0; run++) {
        status = lk_generate(b->generator, &config, &times);
        double rate = times.prompt_seconds > 0 ? (double)times.prompt_tokens / times.prompt_seconds : 0;
        if (status >= 0 && rate > b->prompt_rate) b->prompt_rate = rate;
    }
    if (status < 0) return status;
    b->step = times_median(b->steps, b->steps_count);
    return LK_OK;
}

/* Of the device that holds the weights: the GPU's, or what these threads read. */
static double memory_speed(const bench *b, bool *device)
{
    lk_device_speed speed;
    lk_status       status = lk_device_measure(b->setup.context, LK_F32, &speed);
    *device = status != LK_EUNSUPPORTED;
    return !*device ? bandwidth_measure(lk_context_threads(b->setup.context)) : status < 0 ? 0 : speed.memory;
}

static void print_result(const bench *b, const options *given)
{
    bool   device;
    int    threads = lk_context_threads(b->setup.context);
    size_t held = 0, weights = lk_generator_weight_bytes(b->generator);
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) held += lk_generator_memory(b->generator, kind);
    double read = (double)weights / b->step, memory = memory_speed(b, &device);
    if (!options_flag(given, "json")) {
        printf("%s, batch %lld, %d thread%s, %s, %s: %.1f new tokens/s, %.1f prompt tokens/s (median of %lld steps)\n",
               options_text(given, "model"), (long long)b->batch, threads, threads == 1 ? "" : "s",
               lk_context_isa(b->setup.context), options_text(given, "dtype"), (double)b->batch / b->step,
               b->prompt_rate, (long long)b->steps_count);
        printf("weights (%.1f MB) are read at %.2f GB/s: %.0f %% of the %.2f GB/s that %s %s memory\n",
               1e-6 * (double)weights, 1e-9 * read, 100 * read / memory, 1e-9 * memory,
               device         ? "the GPU copies"
               : threads == 1 ? "one thread reads"
                              : "these threads read",
               device ? "within its" : "from");
        printf("memory %.1f MiB\n", (double)held / 1048576);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "dtype", options_text(given, "dtype"));
    json_integer(&j, "batch", b->batch);
    json_integer(&j, "threads", threads);
    json_text(&j, "isa", lk_context_isa(b->setup.context));
    json_number(&j, "tokens_per_s", (double)b->batch / b->step);
    json_number(&j, "prompt_tokens_per_s", b->prompt_rate);
    json_number(&j, "weights_bytes", (double)weights);
    json_number(&j, "weights_bytes_per_s", read);
    json_number(&j, "memory_bytes_per_s", memory);
    json_number(&j, "memory_mib", (double)held / 1048576);
    json_close(&j, '}');
    json_line(&j);
}

int bench_generate(const options *given)
{
    bench b = {0};
    int   code = setup_begin(&b.setup, "bench", given, (int)options_integer(given, "threads"));
    if (code == 0) code = read_options(&b, given);
    if (code == 0) {
        lk_status status = create_generator(&b, given);
        if (status >= 0) status = measure(&b);
        if (status < 0) code = report("bench", b.setup.context, status);
    }
    if (code == 0) print_result(&b, given);
    lk_generator_free(b.generator);
    free(b.steps);
    free(b.prompts);
    free(b.ids);
    setup_free(&b.setup);
    return code;
}
