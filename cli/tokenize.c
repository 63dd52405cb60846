/* tokenize.c - `lockstep data tokenize`. */
#include "clock.h"
#include "data.h"
#include "json.h"
#include "progress.h"
#include "terminal.h"

#include <lockstep/data.h>
#include <string.h>

static void stop_on_signal(int number) { stop_signal = number; }

static int show_progress(void *user, int64_t done, int64_t total)
{
    if (stop_signal) return 1;
    return progress_bytes(user, done, total);
}

static void print_result(const options *given, const lk_data_tokenize_result *r, double seconds)
{
    const char *out = options_text(given, "out"), *type = r->token_bytes == 4 ? "u32" : "u16";
    double      rate = seconds > 0 ? (double)r->tokens / seconds : 0;
    if (!options_flag(given, "json")) {
        terminal_print(stdout,
                       "%s: %lld tokens (%s) from %lld documents, %lld bytes of text; %.0f tokens/s, %.1f MB/s\n", out,
                       (long long)r->tokens, type, (long long)r->documents, (long long)r->bytes, rate,
                       seconds > 0 ? (double)r->bytes / seconds / 1e6 : 0);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "out", out);
    json_integer(&j, "tokens", r->tokens);
    json_integer(&j, "documents", r->documents);
    json_integer(&j, "bytes", r->bytes);
    json_integer(&j, "invalid", r->invalid);
    json_text(&j, "type", type);
    json_number(&j, "seconds", seconds);
    json_number(&j, "tokens_per_second", rate);
    json_close(&j, '}');
    json_line(&j);
}

int data_tokenize(const options *given)
{
    lk_context             *context;
    lk_data_tokenize_config config = LK_DATA_TOKENIZE_CONFIG_INIT;
    lk_data_tokenize_result result;
    const char             *type = options_text(given, "type"), *missing = NULL;
    progress                bar = {.what = "tokenize"};
    if (!options_text(given, "tokenizer"))
        missing = "--tokenizer is missing: expected byte, char, a tokenizer.json or its directory";
    if (!options_text(given, "out")) missing = "--out is missing: expected the file to write the tokens to";
    if (missing) {
        print_error("data", "%s", missing);
        return EXIT_USER_ERROR;
    }
    int code = data_context(&context);
    if (code != 0) return code;
    config.paths = given->operands + 1;
    config.paths_count = given->operand_count - 1;
    config.tokenizer = options_text(given, "tokenizer");
    config.text_field = options_text(given, "field");
    config.out = options_text(given, "out");
    config.token_bytes = !type ? 0 : strcmp(type, "u32") == 0 ? 4 : 2;
    config.progress = show_progress;
    config.user = &bar;
    signal(SIGINT, stop_on_signal); /* so that no unfinished file is left */
    signal(SIGTERM, stop_on_signal);
    double    begun = now();
    lk_status status = lk_data_tokenize(context, &config, &result);
    if (bar.out) progress_end(&bar);
    if (status == LK_ECANCELED) {
        print_note("data", "%s", lk_context_error(context));
        code = 128 + stop_signal;
    } else if (status < 0)
        code = report("data", context, status);
    else
        print_result(given, &result, now() - begun);
    lk_context_free(context);
    return code;
}
