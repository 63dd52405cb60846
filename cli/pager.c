/* pager.c - starts the pager. A reader that leaves early closes the pipe, which must not end the command. */
#define _GNU_SOURCE
#include "pager.h"

#include <lockstep/environment.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

FILE *pager_open(void)
{
    const char *pager = lk_environment_get(NULL, "PAGER"), *term = lk_environment_get(NULL, "TERM");
    if (!isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) return stdout;
    if (pager && (!*pager || strcmp(pager, "cat") == 0)) return stdout;
    setenv("LESS", "FRX", 0); /* a text that fits is printed as without a pager */
    fflush(stdout);
    /* The shell prints what it does not find: less is optional, and a PAGER that is not there must not cost the
     * text. */
    FILE *out = popen(pager ? "if command -v \"${PAGER%% *}\" >/dev/null 2>&1; then eval \"$PAGER\"; else exec cat; fi"
                            : "if command -v less >/dev/null 2>&1; then exec less -FRX; else exec cat; fi",
                      "we");
    if (!out) return stdout;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* the pager's: it must not be left alone with the terminal */
    return out;
}

void pager_close(FILE *out)
{
    if (out != stdout) pclose(out);
}
