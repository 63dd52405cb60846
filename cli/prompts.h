/* prompts.h - the prompts of `lockstep generate`: texts, a file or token ids, as tokens. */
#ifndef PROMPTS_H
#define PROMPTS_H

#include "options.h"

#include <lockstep/generate.h>

/* Rows of an option table. */
#define PROMPT_OPTIONS                                                                                           \
    HEADING("Prompts"),                                                                                          \
        TEXTS("prompt", "TEXT", "The text to continue; may be repeated: several prompts are computed together"), \
        TEXT("prompt-file", "FILE", NULL, "Read the text to continue from FILE; -: from standard input"),        \
        TEXTS("prompt-ids", "N[,N...]", "The prompt as token ids, which needs no tokenizer; may be repeated")

typedef struct prompt {
    char    *text; /* as the user gave it, or that of the ids; NULL: ids without a tokenizer */
    size_t   bytes;
    int32_t *ids;
    size_t   count;
} prompt;

typedef struct prompts {
    prompt    *of;
    lk_prompt *tokens; /* for lk_generate_config */
    int        count;
} prompts;

/* Checks which of the options are given, and reads --prompt-file. 0, or the exit status after the error was printed. */
int  prompts_read(prompts *p, const options *given);
bool prompts_are_ids(const options *given);
/* Makes tokens of them; tokenizer may be NULL where they are ids. Without a prompt: the token that begins a text. */
int  prompts_encode(prompts *p, const options *given, lk_context *context, const lk_tokenizer *tokenizer,
                    const lk_transformer_config *model);
void prompts_free(prompts *p);

#endif
