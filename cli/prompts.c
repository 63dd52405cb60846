/* prompts.c - prompts from options. */
#define _GNU_SOURCE
#include "prompts.h"

#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 64 << 20 }; /* of a file; a context is much shorter */

bool prompts_are_ids(const options *given) { return options_given(given, "prompt-ids"); }

static int fail_memory(void)
{
    print_error("generate", "out of memory");
    return EXIT_FAILED;
}

static int read_file(const char *path, prompt *p)
{
    bool  standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        print_error("generate", "--prompt-file %s: %s", path, strerror(errno));
        return EXIT_USER_ERROR;
    }
    int code = 0;
    if (!(p->text = malloc(MOST_BYTES + 1))) code = fail_memory();
    if (code == 0) p->bytes = fread(p->text, 1, MOST_BYTES + 1, file);
    if (code == 0 && (ferror(file) || p->bytes == 0 || p->bytes > MOST_BYTES)) {
        print_error("generate", "--prompt-file %s: %s", path,
                    ferror(file)    ? strerror(errno)
                    : p->bytes == 0 ? "the file is empty"
                                    : "the file is larger than the limit of 64 MiB");
        code = EXIT_USER_ERROR;
    }
    if (!standard) fclose(file);
    char *shorter = code == 0 ? realloc(p->text, p->bytes) : NULL;
    if (shorter) p->text = shorter;
    return code;
}

int prompts_read(prompts *p, const options *given)
{
    const char *file = options_text(given, "prompt-file");
    int         texts = 0, ids = 0, code = 0;
    while (options_text_at(given, "prompt", texts)) texts++;
    while (options_text_at(given, "prompt-ids", ids)) ids++;
    if ((texts > 0) + (ids > 0) + (file != NULL) > 1) {
        print_error("generate", "--prompt, --prompt-file and --prompt-ids are mutually exclusive");
        return EXIT_USER_ERROR;
    }
    p->count = texts ? texts : ids ? ids : 1;
    p->of = calloc((size_t)p->count, sizeof *p->of);
    p->tokens = calloc((size_t)p->count, sizeof *p->tokens);
    if (!p->of || !p->tokens) return fail_memory();
    for (int i = 0; i < texts && code == 0; i++) {
        if (!(p->of[i].text = strdup(options_text_at(given, "prompt", i)))) return fail_memory();
        p->of[i].bytes = strlen(p->of[i].text);
    }
    return file ? read_file(file, &p->of[0]) : 0;
}

/* "1,2,3" */
static int parse_ids(const char *text, prompt *p)
{
    if (!(p->ids = malloc((strlen(text) / 2 + 1) * sizeof *p->ids))) return fail_memory();
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || (*end && *end != ',') || at[0] == ' ') {
            print_error("generate", "--prompt-ids '%.80s' is not a comma-separated list of token ids", text);
            return EXIT_USER_ERROR;
        }
        p->ids[p->count++] = (int32_t)id;
        at = end;
        if (!*at) return 0;
    }
}

static int encode_text(prompt *p, lk_context *context, const lk_tokenizer *tokenizer)
{
    size_t    invalid = 0;
    size_t    room = 0, count;
    lk_status status = lk_tokenizer_encode(tokenizer, p->text, p->bytes, NULL, 0, &room, NULL);
    if (status < 0) return report_as("generate", "the prompt: ", context, status);
    int            before;
    const int32_t *prefix = lk_tokenizer_prefix(tokenizer, &before);
    if (!(p->ids = malloc((room + (size_t)before + 1) * sizeof *p->ids))) return fail_memory();
    int32_t *ids = p->ids + before;
    status = lk_tokenizer_encode(tokenizer, p->text, p->bytes, ids, room, &count, &invalid);
    if (status < 0) return report_as("generate", "the prompt: ", context, status);
    bool spelled = count >= (size_t)before && memcmp(ids, prefix, (size_t)before * sizeof *ids) == 0;
    if (spelled)
        memmove(p->ids, ids, count * sizeof *ids);
    else
        memcpy(p->ids, prefix, (size_t)before * sizeof *ids);
    p->count = count + (spelled ? 0 : (size_t)before);
    if (invalid)
        print_note("generate", "warning: the prompt has %zu invalid UTF-8 sequences; each is read as U+FFFD", invalid);
    return 0;
}

static int decode_ids(prompt *p, const lk_tokenizer *tokenizer)
{
    p->bytes = lk_tokenizer_decode(tokenizer, p->ids, p->count, NULL, 0);
    if (!(p->text = malloc(p->bytes + 1))) return fail_memory();
    lk_tokenizer_decode(tokenizer, p->ids, p->count, p->text, p->bytes);
    return 0;
}

/* Without a prompt: the token that begins a text, or the one that ends the text before it. */
static int begin_text(prompt *p, const lk_tokenizer *tokenizer, const lk_transformer_config *model)
{
    int64_t token = model->bos >= 0   ? model->bos
                    : model->eos >= 0 ? model->eos
                    : tokenizer       ? lk_tokenizer_end(tokenizer)
                                      : -1;
    if (token < 0) {
        print_error("generate", "--prompt is missing, and the model has no token that begins a text");
        return EXIT_USER_ERROR;
    }
    if (!(p->ids = malloc(sizeof *p->ids))) return fail_memory();
    p->ids[p->count++] = (int32_t)token;
    p->text = strdup("");
    return p->text ? 0 : fail_memory();
}

int prompts_encode(prompts *p, const options *given, lk_context *context, const lk_tokenizer *tokenizer,
                   const lk_transformer_config *model)
{
    int code = 0;
    for (int i = 0; i < p->count && code == 0; i++) {
        prompt *one = &p->of[i];
        if (prompts_are_ids(given)) {
            code = parse_ids(options_text_at(given, "prompt-ids", i), one);
            if (code == 0 && tokenizer) code = decode_ids(one, tokenizer);
        } else {
            code = one->text ? encode_text(one, context, tokenizer) : begin_text(one, tokenizer, model);
        }
        p->tokens[i] = (lk_prompt){one->ids, (int64_t)one->count};
    }
    return code;
}

void prompts_free(prompts *p)
{
    for (int i = 0; i < p->count && p->of; i++) {
        free(p->of[i].text);
        free(p->of[i].ids);
    }
    free(p->of);
    free(p->tokens);
}
