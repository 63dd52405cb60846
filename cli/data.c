/* data.c - `lockstep data get NAME` and `lockstep data tokenize FILE…`. */
#include "data.h"

#include "progress.h"
#include "terminal.h"

#include <lockstep.h>
#include <string.h>

static const option data_options[] = {
    HEADING("get"),
    TEXT("dir", "DIR", NULL,
         "Target directory; default $LOCKSTEP_DATA/NAME, else $XDG_CACHE_HOME/lockstep/NAME, else "
         "~/.cache/lockstep/NAME"),
    TEXT("url", "U", NULL, "URL of a directory with the files, such as a mirror"),
    HEADING("tokenize"),
    TEXT_SUGGESTED("tokenizer", "NAME|FILE|DIR", NULL, "byte|char",
                   "byte, char (one token per character; also writes OUT.tokenizer.json), a tokenizer.json, or a "
                   "directory that has one"),
    TEXT("out", "FILE", NULL, "File to write the tokens to, for --data tokens:FILE"),
    TEXT("field", "NAME", "text", "JSONL: name of the text field"),
    CHOICE("type", "TYPE", NULL, "u16|u32",
           "Type of a token (default: u16 if the vocabulary has at most 65536 tokens)"),
    FLAG("json", "Print one line of JSON"),
    OPTIONS_END,
};

static void log_line(void *user, lk_log_level level, const char *text)
{
    (void)user;
    if (level >= LK_LOG_INFO) print_note("data", "%s", text);
}

int data_context(lk_context **context)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.log = log_line;
    lk_status status = lk_context_create(&config, context);
    return status < 0 ? report("data", NULL, status) : 0;
}

static int data_get(const options *given)
{
    lk_context *context;
    const char *name = given->operands[1], *directory = options_text(given, "dir");
    char        path[4096];
    int         code = data_context(&context);
    if (code != 0) return code;
    progress  bar = {.what = name};
    lk_status status = lk_data_get(context, name, directory, options_text(given, "url"), progress_bytes, &bar);
    if (bar.out) progress_end(&bar);
    code = status < 0 ? report("data", context, status) : 0;
    if (code == 0 && !directory && lk_data_directory(context, name, path, sizeof path) >= 0) directory = path;
    if (code == 0) terminal_print(stdout, "%s is in %s\n", name, directory);
    lk_context_free(context);
    return code;
}

/* An option of another verb is a user error, instead of being ignored. */
static int check_options(const options *given, const char *verb)
{
    static const char *const others[][6] = {{"tokenizer", "out", "field", "type", "json", NULL}, {"dir", "url", NULL}};
    bool                     tokenize = strcmp(verb, "tokenize") == 0;
    for (const char *const *name = others[tokenize]; *name; name++)
        if (options_given(given, *name)) {
            print_error("data", "--%s applies only to `data %s`", *name, tokenize ? "get" : "tokenize");
            return EXIT_USER_ERROR;
        }
    if (!tokenize && given->operand_count != 2) {
        print_error("data", "`data get` takes one name, not %d", given->operand_count - 1);
        return EXIT_USER_ERROR;
    }
    return 0;
}

static int run_data(const options *given)
{
    static const char *const verbs[] = {"get", "tokenize", NULL};
    const char              *verb = given->operands[0];
    if (strcmp(verb, "get") != 0 && strcmp(verb, "tokenize") != 0) {
        const char *suggestion = suggest_word(verb, verbs);
        if (suggestion)
            print_error("data", "unknown command `data %s`; did you mean `data %s`?", verb, suggestion);
        else
            print_error("data",
                        "unknown command `data %s`; `lockstep data get NAME` downloads a data set, `lockstep data "
                        "tokenize` turns texts into tokens",
                        verb);
        return EXIT_USER_ERROR;
    }
    int code = check_options(given, verb);
    if (code != 0) return code;
    return strcmp(verb, "get") == 0 ? data_get(given) : data_tokenize(given);
}

const command command_data = {
    "data",
    "download a known data set, or turn texts into tokens",
    "`data get` downloads cifar10, fashion-mnist or mnist, resumes an interrupted download, and verifies the SHA-256 "
    "of each file before giving it its final name.\n\n"
    "`data tokenize` writes the tokens of text files, of all files in directories and their subdirectories, and of "
    "JSON files (.jsonl, or .json: one object per line, or an array of objects) to one file for --data tokens:FILE. "
    "The tokenizer's template says how each document begins, and each is followed by the end token. The memory needed "
    "does not depend on the size of the texts, except for JSON arrays, and the file appears only when it is "
    "complete.\n\n"
    "Examples: lockstep data get cifar10; lockstep data tokenize corpus.jsonl --tokenizer tokenizer.json --out "
    "train.bin",
    "get NAME | tokenize FILE|DIR...",
    2,
    OPTIONS_OPERANDS,
    data_options,
    run_data,
};
