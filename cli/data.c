/* data.c - `lockstep data get NAME`. */
#include "command.h"
#include "progress.h"
#include "terminal.h"

#include <lockstep.h>
#include <string.h>

static const option data_options[] = {
    TEXT("dir", "D", NULL, "Target directory; default $LOCKSTEP_DATA/NAME, else ~/.cache/lockstep/NAME"),
    TEXT("url", "U", NULL, "URL of a directory with the files, such as a mirror"),
    OPTIONS_END,
};

static void log_line(void *user, lk_log_level level, const char *text)
{
    (void)user;
    if (level >= LK_LOG_INFO) print_note("data", "%s", text);
}

static int run_data(const options *given)
{
    static const char *const verbs[] = {"get", NULL};
    lk_context              *context;
    const char              *verb = given->operands[0], *name = given->operands[1];
    char                     path[4096];
    if (strcmp(verb, "get") != 0) {
        const char *suggestion = suggest_word(verb, verbs);
        print_error("data", "there is no `data %s`%s", verb,
                    suggestion ? "; did you mean `data get`?" : "; `lockstep data get NAME` downloads");
        return EXIT_USER_ERROR;
    }
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.log = log_line;
    lk_status status = lk_context_create(&config, &context);
    if (status < 0) return report("data", NULL, status);
    progress    bar = {.what = name};
    const char *directory = options_text(given, "dir");
    status = lk_data_get(context, name, directory, options_text(given, "url"), progress_bytes, &bar);
    if (bar.out) progress_end(&bar);
    int code = status < 0 ? report("data", context, status) : 0;
    if (code == 0 && !directory && lk_data_directory(context, name, path, sizeof path) >= 0) directory = path;
    if (code == 0) terminal_print(stdout, "%s is in %s\n", name, directory);
    lk_context_free(context);
    return code;
}

const command command_data = {
    "data",
    "download a known data set",
    "Downloads cifar10, fashion-mnist or mnist, resumes an interrupted download, and checks every file's SHA-256 "
    "before it gets its final name.\n\nExample: lockstep data get cifar10",
    "get NAME",
    2,
    2,
    data_options,
    run_data,
};
